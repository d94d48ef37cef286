"""Slates and users of a finite list of events by sort and scan: half of the oracle.

Rules 1 to 11, 14, 26 and 38 of docs/rules.md. Tests turn these slates into figures, which the
engine's must equal; `checks` recount users. No state moves with the stream, so nothing here can
depend on the order of arrival by accident.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from streameval.base.limits import MAX_ITEMS, MILLI
from streameval.core.definition import Definition
from streameval.core.events import Event, FeedbackEvent, SlateEvent

Segment = tuple[str, ...]
OTHER = "__other__"
ALL = "__all__"


class _Impression(NamedTuple):
    """One item shown, or a list without items: its `item_id` is None.

    `arrival` numbers them in order of arrival. The event gives `fallback` and `latency` (us) of its
    slate.
    """

    arrival: int
    ts: int
    user_id: str
    item_id: str | None
    request_id: str | None
    position: int | None
    segment: Segment
    fallback: bool
    latency: int | None


@dataclass(slots=True)
class Item:
    """One item of one slate, duplicates merged, with the feedback attributed to it by kind."""

    ts: int
    position: int | None
    feedback: dict[str, list[FeedbackEvent]] = field(default_factory=dict)

    def positives(self) -> list[str]:
        """Return the kinds that count (rule 10)."""
        return [kind for kind, events in self.feedback.items() if not _deciding(events).retract]


@dataclass(slots=True)
class Slate:
    """A slate of `records` impressions.

    `latency` (us) is None where no event gives it. `scores` (nano-units) are empty without a
    request.
    """

    user_id: str
    request_id: str | None
    time: int
    segment: Segment
    arrival: int
    records: int
    items: dict[str, Item]
    fallback: bool
    latency: int | None
    scores: tuple[int, ...] = ()

    def positives(self, kind: str) -> int:
        """Return the number of items with a positive of that kind."""
        return sum(kind in item.positives() for item in self.items.values())


@dataclass(slots=True)
class Attribution:
    """Numbers of feedback events, by fate."""

    attributed: int = 0
    no_impression: int = 0
    expired: int = 0
    waiting: int = 0
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """The accepted events, the number of late ones, and the slates with their feedback."""

    accepted: list[Event]
    late: int
    watermark: int | None
    slates: list[Slate]
    attribution: Attribution
    duplicates: int


def history(definition: Definition, events: Iterable[Event]) -> History:
    """Form the slates of `events`, given in order of arrival, and attribute the feedback."""
    accepted, late, watermark = _sift(events, definition.allowed_lateness)
    impressions = _impressions(accepted, definition)
    slates = [_slate(group) for group in _form_slates(impressions, definition.attribution_window)]
    feedback = [event for event in accepted if isinstance(event, FeedbackEvent)]
    attribution = _attribute(slates, feedback, definition, watermark)
    duplicates = _duplicates(slates, attribution.attributed)
    return History(accepted, late, watermark, slates, attribution, duplicates)


def users(known: History, kinds: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return the lifetime counters of every user with an accepted event."""
    moments: dict[str, list[int]] = defaultdict(list)
    for event in known.accepted:
        moments[event.user_id].append(event.ts)
    slates_of: dict[str, list[Slate]] = defaultdict(list)
    for slate in known.slates:
        slates_of[slate.user_id].append(slate)
    return {
        user_id: {
            "impressions": sum(len(slate.items) for slate in slates_of[user_id]),
            "slates": sum(slate.request_id is not None for slate in slates_of[user_id]),
            "positives": {
                kind: sum(slate.positives(kind) for slate in slates_of[user_id]) for kind in kinds
            },
            "first_ts": min(moments[user_id]),
            "last_ts": max(moments[user_id]),
        }
        for user_id in sorted(moments)
    }


# --- rules 1 and 2: which events there are -------------------------------------------------------


def _is_late(ts: int, watermark: int, allowed_lateness: int) -> bool:
    return ts < watermark - allowed_lateness


def _sift(events: Iterable[Event], allowed_lateness: int) -> tuple[list[Event], int, int | None]:
    """Return the accepted events, the number of late ones, and the final watermark."""
    accepted: list[Event] = []
    late = 0
    watermark: int | None = None
    for event in events:
        if watermark is not None and _is_late(event.ts, watermark, allowed_lateness):
            late += 1
            continue
        accepted.append(event)
        watermark = event.ts if watermark is None else max(watermark, event.ts)
    return accepted, late, watermark


def _impressions(accepted: Sequence[Event], definition: Definition) -> list[_Impression]:
    """Return every accepted impression, also of slate events, in order of arrival.

    A slate event without items gives one without an item.
    """
    found: list[_Impression] = []
    newest: dict[Segment, int] = {}  # when each segment of the table was last shown
    for event in accepted:
        if isinstance(event, FeedbackEvent):
            continue
        segment = tuple(getattr(event, name) or "" for name in definition.dimensions)
        segment = _bound(segment, event.ts, newest, definition)
        items: Iterable[tuple[str | None, int | None]] = (
            event.positions.items() or [(None, None)]
            if isinstance(event, SlateEvent)
            else [(event.item_id, event.position)]
        )
        for item_id, position in items:
            found.append(
                _Impression(
                    len(found),
                    event.ts,
                    event.user_id,
                    item_id,
                    event.request_id,
                    position,
                    segment,
                    event.fallback is True,
                    _micros(event.latency_ms),
                )
            )
    return found


def _micros(latency_ms: float | None) -> int | None:
    """Return a latency in microseconds, half to even of the exact number (rule 26)."""
    return None if latency_ms is None else round(Fraction(latency_ms) * MILLI)


def counted_in(segment: Segment) -> set[Segment]:
    """Return the segment and its totals (rule 38)."""
    found = {segment}
    for index in range(len(segment) if len(segment) > 1 else 0):
        found |= {(*one[:index], ALL, *one[index + 1 :]) for one in found}
    return found


# --- rules 3, 4, 5, 14 and 26: slates ------------------------------------------------------------


def _form_slates(
    impressions: Iterable[_Impression], attribution_window: int
) -> list[list[_Impression]]:
    """Return the impressions of each slate, in `ts` order."""
    by_request: dict[tuple[object, ...], list[_Impression]] = defaultdict(list)
    for one in impressions:
        if one.request_id is None:
            by_request[one.user_id, None, one.item_id, one.ts].append(one)
        else:
            by_request[one.user_id, one.request_id].append(one)
    groups: list[list[_Impression]] = []
    for members in by_request.values():
        current: list[_Impression] = []
        for one in sorted(members, key=lambda one: one.ts):
            if not current or one.ts > current[0].ts + attribution_window:
                current = []
                groups.append(current)
            current.append(one)
    return groups


def _slate(group: Sequence[_Impression]) -> Slate:
    """Merge the impressions of one slate, given in `ts` order."""
    time = group[0].ts
    shown = [one.item_id for one in sorted(group) if one.item_id is not None]  # by arrival
    kept = set(list(dict.fromkeys(shown))[:MAX_ITEMS])
    items: dict[str, Item] = {}
    records = 0
    for one in group:
        if one.item_id is not None and one.item_id in kept:
            records += 1
            item = items.setdefault(one.item_id, Item(one.ts, one.position))
            item.position = _lower(item.position, one.position)
    return Slate(
        user_id=group[0].user_id,
        request_id=group[0].request_id,
        time=time,
        segment=_segment(group),
        arrival=min(one.arrival for one in group),
        records=records,
        items=items,
        fallback=any(one.fallback for one in group),
        latency=_latency(group),
    )


def _latency(group: Iterable[_Impression]) -> int | None:
    return max((one.latency for one in group if one.latency is not None), default=None)


def _segment(group: Sequence[_Impression]) -> Segment:
    return min(one.segment for one in group if one.ts == group[0].ts)


def _lower(position: int | None, other: int | None) -> int | None:
    given = [one for one in (position, other) if one is not None]
    return min(given) if given else None


def _bound(
    segment: Segment, ts: int, newest: dict[Segment, int], definition: Definition
) -> Segment:
    """Return the segment, or `__other__` where the table is full (rule 14)."""
    other = (OTHER,) * len(segment)
    if segment == other:
        return other
    if segment not in newest and len(newest) >= definition.max_segments:
        oldest = ts - definition.segment_span
        for gone in [name for name, last in newest.items() if last < oldest]:
            del newest[gone]
        if len(newest) >= definition.max_segments:
            return other
    newest[segment] = max(ts, newest.get(segment, ts))
    return segment


# --- rules 6 to 11: feedback ---------------------------------------------------------------------


def _counts(event: FeedbackEvent, definition: Definition) -> bool:
    """Return whether the feedback is a positive or retracts one (rule 6)."""
    for positive in definition.positives:
        if positive.kind == event.feedback:
            return event.retract or positive.threshold is None or event.value >= positive.threshold
    return False


def _in_time(ts: int, slate: Slate, attribution_window: int) -> bool:
    return ts - slate.time <= attribution_window


def _find_named(
    slates: Iterable[Slate], event: FeedbackEvent, attribution_window: int
) -> tuple[Item | None, bool]:
    """Apply rule 7 to the slates of (user, request): the item, and whether it is too late."""
    begun = [slate for slate in slates if slate.time <= event.ts]
    if not begun:
        return None, False
    latest = max(begun, key=lambda slate: slate.time)
    if not _in_time(event.ts, latest, attribution_window):
        return None, True
    item = latest.items.get(event.item_id)
    return (item if item is not None and item.ts <= event.ts else None), False


def _nearest(
    slates: Iterable[Slate], event: FeedbackEvent, attribution_window: int
) -> tuple[Item | None, bool]:
    """Apply rule 8 to the slates of the user that hold the item; return what `_find_named` does."""
    item_id = event.item_id
    candidates = [slate for slate in slates if slate.items[item_id].ts <= event.ts]
    fresh = [slate for slate in candidates if _in_time(event.ts, slate, attribution_window)]
    if not fresh:
        return None, bool(candidates)
    return min(fresh, key=lambda slate: _nearness(slate, item_id)).items[item_id], False


def _nearness(slate: Slate, item_id: str) -> tuple[int, bool, str]:
    """Return a key: latest item first, then no request, then the smaller request."""
    return -slate.items[item_id].ts, slate.request_id is not None, slate.request_id or ""


def _attribute(
    slates: Iterable[Slate],
    feedback: Iterable[FeedbackEvent],
    definition: Definition,
    watermark: int | None,
) -> Attribution:
    """Give every event that counts to the item that it belongs to."""
    by_request: dict[tuple[str, str], list[Slate]] = defaultdict(list)
    by_item: dict[tuple[str, str], list[Slate]] = defaultdict(list)
    for slate in slates:
        if slate.request_id is not None:
            by_request[slate.user_id, slate.request_id].append(slate)
        for item_id in slate.items:
            by_item[slate.user_id, item_id].append(slate)
    result = Attribution()
    for event in feedback:
        if not _counts(event, definition):
            result.ignored += 1
            continue
        if event.request_id is not None:
            candidates = by_request.get((event.user_id, event.request_id), [])
            item, too_old = _find_named(candidates, event, definition.attribution_window)
        else:
            candidates = by_item.get((event.user_id, event.item_id), [])
            item, too_old = _nearest(candidates, event, definition.attribution_window)
        if item is not None:
            item.feedback.setdefault(event.feedback, []).append(event)
            result.attributed += 1
        elif _waits(event.ts, watermark, definition.allowed_lateness):
            result.waiting += 1
        elif too_old:
            result.expired += 1
        else:
            result.no_impression += 1
    return result


def _waits(ts: int, watermark: int | None, allowed_lateness: int) -> bool:
    return watermark is None or watermark <= ts + allowed_lateness


def _deciding(events: Iterable[FeedbackEvent]) -> FeedbackEvent:
    """Return the event that decides for one impression and kind."""
    return max(events, key=lambda event: (event.ts, event.retract))


def _duplicates(slates: Iterable[Slate], attributed: int) -> int:
    """Count log records that added nothing; items beyond the bound of a slate do not count."""
    repeated = sum(slate.records - len(slate.items) for slate in slates)
    pairs = sum(len(item.feedback) for slate in slates for item in slate.items.values())
    return repeated + attributed - pairs
