"""Seeded hostile streams of small alphabets and few moments, so that all of docs/rules.md collides.

`hostile(seed)` gives a definition and its events in order of arrival; the same seed gives the same
stream for ever after. Events carry a number of arrival delay besides their `ts`: an order of
arrival in which no event is late is the same as sorting by `ts + delay`, 0 <= delay <= L.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping, Sequence

from default_events import ImpressionEvent, SlateEvent

from streameval.base.limits import MAX_LOGGED_FEEDBACK
from streameval.core.definition import OPTIONAL_FIGURES, Definition, Positive, Window
from streameval.core.events import Event, FeedbackEvent, SlateItem

BASE = 1_700_000_040_000  # on the border of a minute
KINDS = ("click", "like", "watch", "buy", "share")  # share is never configured
# Values at and beside the bounds, and half an integer of 10**-6: exactly, and only in decimals.
VALUES = (
    *(0.1, -3.5, 1e12, -1e12, 5e-7, 1.5e-6, 2.5e-6, 3.5e-6, 1e-300, 123_456.1234565),
    *(0.0078125, 0.0234375, -0.0078125),
)
FIGURES = (*[OPTIONAL_FIGURES] * 4, (), *((name,) for name in OPTIONAL_FIGURES))
LATENCIES = (None, None, 0.0, 12.0, 12.5, 0.0625, 0.1875, 0.0005, 33.3335, 1e-300, 3_600_000.0)


def hostile(seed: int) -> tuple[Definition, list[Event]]:
    """A definition and 40 to 300 events for it, in order of arrival, some of them late."""
    rng = random.Random(seed)
    definition = _definition(rng)
    figures = random.Random(f"figures of {seed}").choice(FIGURES)
    definition = dataclasses.replace(definition, figures=figures)
    events = _History(rng, definition).events(rng.choice((40, 80, 150, 300)))
    return definition, _arrive(events, definition, rng)


def crowded(seed: int) -> tuple[Definition, list[Event]]:
    """A hostile stream, and in it an impression with more feedback of a kind than is kept.

    Nothing else befalls its user, so which feedback it gets does not change with the order.
    """
    definition, events = hostile(seed)
    rng = random.Random(f"crowd of {seed}")
    kind = rng.choice([one.kind for one in definition.positives if one.value != "none"] or KINDS)
    ts = rng.choice(events).ts
    crowd: list[Event] = [ImpressionEvent(ts, "crowd", "i0", "crowd")]
    for number in range(MAX_LOGGED_FEEDBACK + rng.choice((0, 1, 20, 60))):
        later = ts + rng.randint(0, definition.attribution_window)
        value = rng.choice((number / 8, number / 8, -number / 8, rng.choice(VALUES)))
        crowd.append(FeedbackEvent(later, "crowd", "i0", kind, "crowd", value))
    if rng.random() < 0.3:
        crowd.append(FeedbackEvent(ts, "crowd", "i0", kind, "crowd", retract=True))
    together = [*accepted(events, definition), *crowd]
    together = permute_within_lateness(together, definition, rng)
    return definition, redeliver(together, rng) if rng.random() < 0.3 else together


def accepted(events: Sequence[Event], definition: Definition) -> list[Event]:
    """The events that are not late, in the same order."""
    kept: list[Event] = []
    watermark = 0
    for event in events:
        if event.ts >= watermark - definition.allowed_lateness:
            kept.append(event)
            watermark = max(watermark, event.ts)
    return kept


def permute_within_lateness(
    events: Sequence[Event], definition: Definition, rng: random.Random
) -> list[Event]:
    """Another order of arrival in which no event is late (none of `events` may be)."""
    lateness = definition.allowed_lateness
    style = rng.randrange(5)
    if style == 0:
        delays = [rng.randint(0, lateness) for _ in events]
    elif style == 1:
        delays = [rng.choice((0, lateness)) for _ in events]
    elif style == 2:
        delays = [rng.choice((0, min(1, lateness), lateness)) for _ in events]
    elif style == 3:
        delays = [0 if isinstance(event, FeedbackEvent) else lateness for event in events]
    else:
        delays = [lateness if isinstance(event, FeedbackEvent) else 0 for event in events]
    # Events that arrive at one moment do so in any order, most hostile of all the reverse one.
    sign = rng.choice((0, 0, 1, -1))
    keyed = [
        (event.ts + delay, sign * event.ts, rng.random(), event)
        for event, delay in zip(events, delays, strict=True)
    ]
    return [entry[-1] for entry in sorted(keyed, key=lambda entry: entry[:3])]


def redeliver(events: Sequence[Event], rng: random.Random) -> list[Event]:
    """The same log with records in it again: whole stretches, as after a crash, and single ones."""
    result: list[Event] = []
    for index, event in enumerate(events):
        result.append(event)
        if rng.random() < 0.04:
            result += events[max(0, index - rng.randrange(1, 40)) : index + 1]
        if rng.random() < 0.15:
            result.append(rng.choice(events[: index + 1]))
    return result


def cuts(events: Sequence[Event], rng: random.Random) -> Iterator[Sequence[Event]]:
    """The events in batches: single ones, large ones, now and then an empty one."""
    longest = rng.choice((1, 2, 7, 30, len(events) + 1))
    begin = 0
    while begin < len(events):
        end = begin + (0 if rng.random() < 0.05 else rng.randint(1, longest))
        yield events[begin:end]
        begin = end


def to_json(event: Event) -> bytes:
    """The event as a producer writes it; what is absent is left out."""
    names = ("ts", "user_id", "item_id", "feedback", "request_id", "position", "variant")
    names += ("surface", "score", "propensity", "fallback", "latency_ms", "value", "retract")
    plain = {name: getattr(event, name) for name in names if getattr(event, name, None) is not None}
    if isinstance(event, SlateEvent):
        return _dump({"type": "slate", **plain, "items": _wire_items(event)})
    return _dump(
        {"type": "feedback" if isinstance(event, FeedbackEvent) else "impression", **plain}
    )


def _dump(plain: dict[str, object]) -> bytes:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def placed(positions: Mapping[str, int]) -> tuple[str | SlateItem, ...]:
    """The items of a slate at their positions: a bare id where that is its place in the list."""
    return tuple(
        item if position == index else SlateItem(item, position)
        for index, (item, position) in enumerate(positions.items(), 1)
    )


def _wire_items(event: SlateEvent) -> list[object]:
    """Ids where the position is the index + 1 and nothing else is known, else objects."""
    items: list[object] = []
    for index, (item_id, position) in enumerate(event.positions.items()):
        score, propensity = event.details.get(item_id, (None, None))
        item: dict[str, object] = {"item_id": item_id}
        if position != index + 1:
            item["position"] = position
        if score is not None:
            item["score"] = score
        if propensity is not None:
            item["propensity"] = propensity
        items.append(item_id if len(item) == 1 else item)
    return items


# --- definitions ---------------------------------------------------------------------------------


def _definition(rng: random.Random) -> Definition:
    """Small A and L in every relation, windows shorter than L and longer than everything."""
    unit = rng.choice((1, 1, 10, 1_000))
    attribution = rng.choice((1, 5, 10, 20, 60)) * unit
    lateness = rng.choice(
        (attribution, attribution, attribution - 1, attribution // 2, attribution // 5, 0)
    )
    slide = rng.choice((1, 2, 5, 7)) * unit
    windows = (
        Window("tiny", slide, slide),
        Window("short", slide * rng.choice((2, 3)), slide),
        Window("middle", 4 * rng.choice((1, 2)) * attribution, attribution),
        Window("long", 60 * 3 * attribution, 3 * attribution),
    )
    positives = [
        _positive(rng, "click", (None,)),
        _positive(rng, "watch", (0.5, 0.0, None)),
        _positive(rng, "buy", (None, 2.0)),
        _positive(rng, "like", (None,)),
    ][: rng.choice((1, 2, 3, 4))]
    rng.shuffle(positives)
    gains = {"click": 1.0, "watch": 0.0, "buy": 3.0, "like": 0.5}
    return Definition(
        positives=tuple(positives),
        gains=rng.choice(({}, gains, {"click": 0.0})),
        ndcg_gain=rng.choice(("linear", "exponential")),
        dimensions=rng.choice(((), ("variant",), ("variant",), ("variant", "surface"))),
        ks=rng.choice(((5, 10), (1, 2, 3), (2,))),
        windows=tuple(rng.sample(windows, rng.randint(2, len(windows)))),
        attribution_window=attribution,
        allowed_lateness=lateness,
    )


def _positive(rng: random.Random, kind: str, thresholds: Sequence[float | None]) -> Positive:
    """A kind; every rule of values, and caps that bind rarely, often and always."""
    rule = rng.choice(("none", "last", "sum", "max"))
    cap = rng.choice((None, None, 1e-6, 0.0234375, 1.0, 2.5, 1e9)) if rule != "none" else None
    return Positive(kind, rng.choice(thresholds), rule, cap)


# --- histories -----------------------------------------------------------------------------------


class _History:
    """What truly happened, scene by scene: most scenes refer to something that came before."""

    def __init__(self, rng: random.Random, definition: Definition) -> None:
        self.rng = rng
        self.A = definition.attribution_window
        self.L = definition.allowed_lateness
        self.kinds = definition.kinds
        self.panes = [window.slide for window in definition.windows]
        self.users = [f"u{n}" for n in range(rng.choice((1, 2, 2, 3, 3, 8, 8, 300)))]
        self.items = [f"i{n}" for n in range(rng.choice((2, 3, 6, 12)))]
        self.requests = [f"r{n}" for n in range(rng.choice((2, 4, 12)))]
        self.unnamed = rng.choice((0.1, 0.5, 0.9))  # share of feedback that names no request
        self.odd = rng.choice((0.0, 0.3, 0.9))  # share of feedback with one of VALUES
        self.details = rng.choice((0.0, 0.3, 0.9))  # share of events with fallback, latency
        self.past: list[Event] = []
        self.now = BASE + rng.choice((0, 0, -1, 1, rng.randrange(10_000)))
        self.scenes = (
            self.show_list,
            self.show_list,
            self.show_over_time,
            self.show_alone,
            self.show_again,
            self.show_interleaved,
            self.show_earlier,
            self.show_after_window,
            self.show_nothing,
            self.show_nothing_beside,
            self.react,
            self.react,
            self.react,
            self.react_often,
            self.react_at_the_edge,
            self.react_to_nothing,
            self.take_back,
            self.take_back,
            self.repeat_reaction,
        )
        self.weights = [rng.choice((0.3, 1, 1, 3)) for _ in self.scenes]

    def events(self, size: int) -> list[Event]:
        """About `size` events, in the order in which they came to mind."""
        while len(self.past) < size:
            self.now += self._step()
            self.rng.choices(self.scenes, self.weights)[0]()
        if self.rng.random() < 0.3:
            self.end_with_waiting()
        return self.past

    def _step(self) -> int:
        """Mostly small steps; sometimes just an edge, a pane border or an idle gap."""
        rng, window = self.rng, self.A
        small = rng.randint(0, max(1, window // 4))
        edge = rng.choice((window - 1, window, window + 1, window + self.L, window + self.L + 1))
        pane = rng.choice(self.panes)
        border = pane - self.now % pane - rng.choice((0, 0, 1))
        gap = rng.choice((3, 10, 100)) * (window + self.L)
        return rng.choices((0, 1, small, edge, max(0, border), gap), (20, 10, 50, 3, 10, 1))[0]

    # Scenes ---------------------------------------------------------------------------------

    def show_list(self) -> None:
        user, request = self.rng.choice(self.users), self.rng.choice(self.requests)
        self._show(user, request, self.now)

    def show_over_time(self) -> None:
        """A list whose items come into view one after the other, at the last up to A + 1."""
        rng = self.rng
        user, request = rng.choice(self.users), rng.choice(self.requests)
        labels = self._labels()
        for index, item in enumerate(self._some_items()):
            ts = self.now + rng.choice((0, 0, 1, self.A // 3, self.A, self.A + 1))
            position = rng.choice((index + 1, index + 1, None))
            if rng.random() < 0.1:  # part of it as a list
                self._slate(ts, user, request, placed({item: index + 1}), labels)
            else:
                self._impression(ts, user, item, request, position, labels)

    def show_alone(self) -> None:
        """An impression without a request, sometimes twice at the same moment."""
        rng = self.rng
        user, item = rng.choice(self.users), rng.choice(self.items)
        for _ in range(rng.choice((1, 1, 2))):
            self._impression(self.now, user, item, None, rng.choice((None, 1, 2)), self._labels())

    def show_again(self) -> None:
        """An item of an earlier slate again: other moment, position or variant, or the same."""
        if (seen := self._earlier_showing()) is None:
            return
        ts, user, item, request = seen
        ts = self.rng.choice((ts, ts + 1, max(ts, self.now - self.L), self.now))
        position = self.rng.choice((None, 1, 2, 3, 9))
        self._impression(ts, user, item, request, position, self._labels())

    def show_interleaved(self) -> None:
        """The same item in slates of two requests, now and then at the same moment."""
        rng = self.rng
        user, item = rng.choice(self.users), rng.choice(self.items)
        ts = self.now
        for request in rng.sample((*self.requests, None), 2):
            if rng.random() < 0.3:  # the one that began first shows the item last
                other = rng.choice(self.items)
                begin = self.now - rng.choice((1, max(1, self.A - 2)))
                self._impression(begin, user, other, request, None, self._labels())
                ts += 1
            ts += rng.choice((0, 0, 1, self.A // 2))
            self._impression(ts, user, item, request, rng.choice((None, 1, 4)), self._labels())
        if rng.random() < 0.5:
            self._feedback(ts + rng.choice((0, 1, self.A // 2)), user, item, None)

    def show_earlier(self) -> None:
        """An impression from before a slate's first one: it moves the slate's time."""
        if (seen := self._earlier_showing()) is None:
            return
        ts, user, _, request = seen
        back = self.rng.choice((1, self.L, self.A, self.A + 1, self.rng.randint(0, self.A)))
        item = self.rng.choice(self.items)
        self._impression(ts - back, user, item, request, None, self._labels())

    def show_after_window(self) -> None:
        """A request id used again after just A, or just more."""
        if (seen := self._earlier_showing()) is None:
            return
        ts, user, _, request = seen
        later = ts + self.A + self.rng.choice((-1, 0, 1, self.A))
        if request is not None:
            self._show(user, request, later)

    def show_nothing(self) -> None:
        """A list without items: alone, twice, or with impressions of its request around it."""
        rng = self.rng
        user, request = rng.choice(self.users), rng.choice(self.requests)
        for _ in range(rng.choice((1, 1, 2))):
            self._slate(self.now, user, request, (), self._labels_of_nothing())
        for _ in range(rng.choice((0, 0, 1, 2))):
            ts = self.now + rng.choice((-self.A, -1, 0, 0, 1, self.A // 2, self.A, self.A + 1))
            position = rng.choice((None, 1, 3))
            self._impression(ts, user, rng.choice(self.items), request, position, self._labels())

    def show_nothing_beside(self) -> None:
        """A list without items for a request that had one: before it, with it, after it."""
        if (seen := self._earlier_showing()) is None or seen[-1] is None:
            return
        ts, user, _, request = seen
        ts += self.rng.choice((-self.A, -1, 0, 0, 0, 1, self.A, self.A + 1))
        self._slate(ts, user, request, (), self._labels_of_nothing())

    def react(self) -> None:
        """Feedback to something shown, before, at and after the moment it was shown."""
        if (seen := self._earlier_showing()) is None:
            return
        ts, user, item, request = seen
        rng = self.rng
        ts = rng.choice((ts - 1, ts, ts + 1, ts + rng.randint(0, self.A), max(ts, self.now)))
        self._feedback(ts, user, item, request)

    def react_often(self) -> None:
        """One kind again and again, with few moments and values; retractions among them."""
        if (seen := self._earlier_showing()) is None:
            return
        ts, user, item, request = seen
        rng = self.rng
        kind = rng.choice(self.kinds)
        moments = [ts + rng.choice((0, 1, self.A // 2, self.A)) for _ in range(2)]
        values = [1.0, rng.choice(VALUES), rng.choice(VALUES)]
        for _ in range(rng.randint(2, 6)):
            if rng.random() < 0.15:
                moment = rng.choice(moments)
                undo = FeedbackEvent(moment, user, item, kind, request, 1.0, retract=True)
                self.past.append(undo)
            else:
                value = rng.choice(values)
                self._feedback(rng.choice(moments), user, item, request, kind, value)

    def react_at_the_edge(self) -> None:
        if (seen := self._earlier_showing()) is None:
            return
        ts, user, item, request = seen
        ts += self.A + self.rng.choice((-1, 0, 0, 1, 1))
        self._feedback(ts, user, item, request)

    def react_to_nothing(self) -> None:
        rng = self.rng
        user, item = rng.choice(self.users), rng.choice(self.items)
        self._feedback(self.now, user, item, rng.choice((*self.requests, None)))

    def take_back(self) -> None:
        """A retraction around the moment of the feedback, or near the end of its window."""
        reactions = [event for event in self._recent() if isinstance(event, FeedbackEvent)]
        if not reactions:
            return
        rng = self.rng
        event = rng.choice(reactions)
        shift = rng.choice((-1, 0, 0, 0, 1, self.A // 2, self.A, self.A + 1))
        request = event.request_id if rng.random() < 0.7 else None
        self.past.append(
            FeedbackEvent(
                event.ts + shift,
                event.user_id,
                event.item_id,
                event.feedback,
                request,
                rng.choice((0.0, 1.0)),
                retract=True,
            )
        )

    def repeat_reaction(self) -> None:
        """The same kind again after a retraction or a positive, with or without the request."""
        reactions = [event for event in self._recent() if isinstance(event, FeedbackEvent)]
        if not reactions:
            return
        event = self.rng.choice(reactions)
        ts = event.ts + self.rng.choice((0, 0, 1, 2, self.A // 2))
        value = self.rng.choice((None, event.value))
        self._feedback(ts, event.user_id, event.item_id, event.request_id, event.feedback, value)

    def end_with_waiting(self) -> None:
        """Feedback to nothing, and the watermark at last at just L after it, or a moment more."""
        self.now = max(event.ts for event in self.past)
        self.past.append(FeedbackEvent(self.now, self.users[0], "unseen", self.kinds[0]))
        end = self.now + self.L + self.rng.choice((0, 0, 1))
        self.past.append(FeedbackEvent(end, self.users[0], "unseen", KINDS[-1]))

    # Parts of scenes ------------------------------------------------------------------------

    def _show(self, user: str, request: str, ts: int) -> None:
        """A list at one moment: a slate event, impressions, or some of both."""
        rng = self.rng
        items, labels = self._some_items(), self._labels()
        start = rng.choice((1, 1, 1, 3, 17))
        if rng.random() < 0.6:
            positions = {item: start + index for index, item in enumerate(items)}
            if rng.random() < 0.2:
                positions = {item: rng.randint(1, 4) for item in items}
            self._slate(ts, user, request, placed(positions), labels)
            items = items[: rng.choice((0, 0, 0, 1, 2))]
        for index, item in enumerate(items):
            position = rng.choice((start + index, start + index, None, 1))
            self._impression(ts, user, item, request, position, labels)

    def _impression(
        self,
        ts: int,
        user: str,
        item: str,
        request: str | None,
        position: int | None,
        labels: tuple[str | None, str | None],
    ) -> None:
        details = (None, None, *self._details())
        self.past.append(ImpressionEvent(ts, user, item, request, position, *labels, *details))

    def _slate(
        self,
        ts: int,
        user: str,
        request: str,
        items: tuple[str | SlateItem, ...],
        labels: tuple[str | None, str | None],
    ) -> None:
        self.past.append(SlateEvent(ts, user, request, items, *self._details(), *labels))

    def _details(self) -> tuple[bool | None, float | None]:
        """Fallback and latency, which events of one slate give or not, and differently."""
        if self.rng.random() >= self.details:
            return None, None
        return self.rng.choice((None, None, False, True)), self.rng.choice(LATENCIES)

    def _feedback(
        self,
        ts: int,
        user: str,
        item: str,
        request: str | None,
        kind: str | None = None,
        value: float | None = None,
    ) -> None:
        rng = self.rng
        if rng.random() < self.unnamed:
            request = None
        kind = kind or rng.choice(self.kinds if rng.random() < 0.8 else KINDS)
        if value is None:
            plain = (1.0, 1.0, 0.5, 0.49, 2.0, -1.0, 0.0)
            value = rng.choice(VALUES if rng.random() < self.odd else plain)
        self.past.append(FeedbackEvent(ts, user, item, kind, request, value))

    def _labels(self) -> tuple[str | None, str | None]:
        return self.rng.choice(("A", "B", "A", None)), self.rng.choice(("home", "feed", None))

    def _labels_of_nothing(self) -> tuple[str | None, str | None]:
        """Labels of an empty list, now and then of a segment that shows nothing at all."""
        return self.rng.choice((self._labels(), self._labels(), ("N", None)))

    def _some_items(self) -> list[str]:
        return self.rng.sample(self.items, self.rng.randint(1, len(self.items)))

    def _recent(self) -> list[Event]:
        return self.past[-self.rng.choice((3, 10, 40)) :]

    def _earlier_showing(self) -> tuple[int, str, str, str | None] | None:
        """The `ts`, user, item and request of something shown not long ago."""
        shown = [event for event in self._recent() if not isinstance(event, FeedbackEvent)]
        if not shown:
            return None
        event = self.rng.choice(shown)
        if isinstance(event, SlateEvent):
            item = self.rng.choice(list(event.positions) or self.items)
            return event.ts, event.user_id, item, event.request_id
        return event.ts, event.user_id, event.item_id, event.request_id


def _arrive(events: list[Event], definition: Definition, rng: random.Random) -> list[Event]:
    """An order of arrival: within L for most events, beyond it for some, with redelivery."""
    arrived = permute_within_lateness(events, definition, rng)
    share = rng.choice((0.0, 0.0, 0.03, 0.15))
    for index in range(len(arrived)):
        if rng.random() < share:
            later = min(len(arrived) - 1, index + rng.randint(1, 30))
            arrived.insert(later, arrived.pop(index))
    return redeliver(arrived, rng) if rng.random() < 0.3 else arrived
