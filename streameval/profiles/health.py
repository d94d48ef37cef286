"""The health of a profile: faults that no single event shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from streameval.base.counts import count_of
from streameval.base.durations import utc
from streameval.core.events import Event, FeedbackEvent, ImpressionEvent
from streameval.profiles.mapping import Mapped, Mapping

MANY: Final = 0.01
"""The share from which a fault is told as one of the profile."""
_AHEAD: Final = 3_600_000
_MOST: Final = 0.5


class Line(NamedTuple):
    """A finding: whether all is well, and a sentence."""

    good: bool
    text: str


class Health:
    """Looks at mapped events; memory grows with the lists and the items that users were shown."""

    def __init__(self, mapping: Mapping) -> None:
        self._optional = list(dict.fromkeys(mapping.optional_fields()))
        self._made: Counter[tuple[str, str]] = Counter()
        self._found: set[tuple[tuple[str, str], str]] = set()
        self._lists: dict[tuple[str, str], frozenset[str]] = {}
        self._shown: set[tuple[str, str]] = set()
        self._positions: Counter[int] = Counter()
        self._feedback: list[FeedbackEvent] = []
        self._slates = self._impressions = self._without_request = 0
        self._repeated = self._late_start = self._placed = 0
        self._several = self._all_at_one = 0
        self._times: list[int] = []

    def look(self, events: Sequence[Event], mapped: Sequence[Mapped]) -> None:
        """Look at the next events, and at the fields of all that were mapped."""
        for one in mapped if self._optional else ():
            made = one.rule, one.fields["type"]
            self._made[made] += 1
            items = [item for item in one.fields.get("items", ()) if isinstance(item, dict)]
            self._found.update((made, name) for fields in (one.fields, *items) for name in fields)
        for event in events:
            self._times.append(event.ts)
            if isinstance(event, FeedbackEvent):
                self._feedback.append(event)
            elif isinstance(event, ImpressionEvent):
                self._impressions += 1
                self._without_request += event.request_id is None
                if event.position is not None:
                    self._positions[event.position] += 1
                key = event.user_id, event.request_id or ""
                self._lists[key] = self._lists.get(key, frozenset()) | {event.item_id}
                self._shown.add((event.user_id, event.item_id))
            else:
                self._look_at_list(event)

    def _look_at_list(self, event: Event) -> None:
        self._slates += 1
        places = event.positions  # type: ignore[union-attr]  # a slate
        items = frozenset(places)
        self._placed += bool(places)
        self._late_start += bool(places) and min(places.values()) > 1
        self._several += len(places) > 1
        self._all_at_one += len(places) > 1 and len(set(places.values())) == 1
        key = event.user_id, event.request_id or ""
        self._repeated += self._lists.get(key, items) != items
        self._lists[key] = self._lists.get(key, frozenset()) | items
        self._shown.update((event.user_id, item) for item in items)

    def lines(self, now: int, allowed_lateness: int) -> Iterator[Line]:
        """Yield the findings at the time `now`; it and `allowed_lateness` are in ms."""
        if not self._times:
            return
        if not (self._slates or self._impressions):
            yield Line(good=False, text="there is feedback, and no list and no impression")
        yield from _few(
            self._without_request,
            self._impressions,
            "impressions have no request: rates alone",
        )
        yield from self._of_lists()
        yield from self._of_feedback()
        for made, name, source in self._optional:
            if self._made[made] and (made, name) not in self._found:
                rule, kind = made
                thing = "feedback event" if kind == "feedback" else kind
                text = f"{source} finds nothing in {count_of(self._made[made], thing)}"
                yield Line(good=False, text=f"rule {rule}: `{name}`: {text}")
        behind = (
            newest - ts
            for ts, newest in zip(self._times, accumulate(self._times, max), strict=True)
        )
        yield from _few(
            sum(each > allowed_lateness for each in behind),
            len(self._times),
            "events are late: older by more than allowed_lateness than one before them",
            "; `replay --sort` puts those of files in order",
        )
        first, last = min(self._times), max(self._times)
        ahead = " in the future: is the unit right?" if last > now + _AHEAD else ""
        yield Line(not ahead, f"times from {utc(first)} to {utc(last)} UTC{ahead}")

    def _of_lists(self) -> Iterator[Line]:
        yield from _few(
            self._repeated,
            self._slates,
            "lists repeat the request of another list of the same user, with other items: their"
            " items are counted as one list",
        )
        yield from _few(
            self._late_start,
            self._placed,
            "lists begin below position 1",
            ": do they count from 1? then write base: 1",
        )
        yield from _few(
            self._all_at_one,
            self._several,
            "lists of several items have one position for all",
            ": is it that in the list?",
        )
        if self._impressions and len(self._positions) == 1 < self._impressions:
            (only,) = self._positions
            yield Line(good=False, text=f"all positions are {only}: is it that in the list?")

    def _of_feedback(self) -> Iterator[Line]:
        named, others = [], []
        nothing: frozenset[str] = frozenset()
        for one in self._feedback:
            if one.request_id is None:
                others.append((one.user_id, one.item_id) in self._shown)
            else:
                listed = self._lists.get((one.user_id, one.request_id), nothing)
                named.append(one.item_id in listed)
        for found, text in (
            (named, "that name a list were for an item of it that the user was shown"),
            (others, "that name no list were for an item that the user was shown"),
        ):
            if found:
                good = sum(found) / len(found) >= _MOST  # the file may begin after a list
                yield Line(good, f"{sum(found):,} of {len(found):,} feedback events {text}")


def _few(count: int, total: int, fault: str, cure: str = "") -> Iterator[Line]:
    """Yield how many of `total` have a fault, with the cure where they are many."""
    if total:
        good = count / total <= MANY
        yield Line(good, f"{count:,} of {total:,} {fault}{'' if good else cure}")
