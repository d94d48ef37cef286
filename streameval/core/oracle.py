"""The same figures by sort-and-scan over a finite list of events: what the engine must equal.

Written from the rules alone, and slow on purpose: no state that moves with the stream, so nothing
here can depend on the order of arrival by accident. It shares with the engine the event types,
the definition, the limits and the per-slate metrics, and nothing else.

The rules (A is the attribution window, L the allowed lateness, H = A + L):

1.  Watermark: the largest accepted `ts`. An event with `ts < watermark - L` on arrival is late:
    counted, otherwise as if it had never been written.
2.  A slate event is its impressions, one an item.
3.  In `ts` order, an impression joins the current slate of its (user, request) when
    `ts <= slate time + A`, else it starts the next one. Without a request it is a slate of its
    own, (user, item, ts).
4.  A slate's time is its earliest `ts`; its segment is that of its earliest event (ties: the
    smaller values, "" for an absent one).
5.  An item stands once in a slate, with its earliest `ts` and the lowest position given.
6.  Feedback counts when its kind is configured and it reaches the kind's threshold; a retraction
    of a configured kind counts whatever its value. All other feedback is ignored.
7.  Feedback that names a request belongs to the latest slate of (user, request) whose time is at
    or before `ts`; it is attributed when that slate showed the item at or before `ts` and
    `ts - slate time <= A`.
8.  Feedback that names none belongs to the user's latest showing of the item at or before `ts`
    among slates with `ts - slate time <= A` (ties: the slate without a request, then the smaller
    request).
9.  Feedback that belongs nowhere waits until the watermark is past `ts + L`, strictly; from then
    on it is unattributed: `expired` where a slate it could belong to is known and too old, else
    `no_impression`.
10. For an impression and a kind the attributed event with the latest `ts` decides (ties: the
    retraction): positive unless it is a retraction.
11. Duplicates: impressions less distinct (slate, item), plus attributed feedback less distinct
    (impression, kind).
12. A slate, its impressions and its positives count in the pane of the slate's time. T is the
    watermark, or `at` where that is later. Live: the W/S panes that end with the one that holds
    T. Matured: the W/S panes that end at or before T - H.
13. Relevant: gain > 0, the gain of an item being the largest of its positives. Ranks: items by
    (position or 0, ts, item), `rank = max(position or 0, previous rank + 1)`. Only slates with a
    request are scored.
14. Above the bounds the order of arrival decides: the items of a slate after the first
    `MAX_ITEMS`, and the segments after the first `max_segments` (by their slates' first arrival;
    each dimension becomes `__other__`).
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from streameval.core.definition import Definition, Window
from streameval.core.events import REASONS, Event, FeedbackEvent, ImpressionEvent, SlateEvent
from streameval.core.limits import CLUSTERS, MAX_ITEMS, NANO
from streameval.core.metrics import RANKING, Scorer

Segment = tuple[str, ...]
OTHER = "__other__"


class _Impression(NamedTuple):
    """One item shown; `arrival` numbers the accepted impressions in order of arrival."""

    arrival: int
    ts: int
    user_id: str
    item_id: str
    request_id: str | None
    position: int | None
    segment: Segment


@dataclass(slots=True)
class _Showing:
    """One item of one slate, duplicates merged, with the feedback attributed to it by kind."""

    ts: int
    position: int | None
    feedback: dict[str, list[FeedbackEvent]] = field(default_factory=dict)

    def positives(self) -> list[str]:
        """Return the kinds that count (rule 10)."""
        return [kind for kind, events in self.feedback.items() if not _deciding(events).retract]


@dataclass(slots=True)
class _Slate:
    """A slate of `records` impressions; `scores` (nano-units) are empty without a request."""

    user_id: str
    request_id: str | None
    time: int
    segment: Segment
    arrival: int
    records: int
    showings: dict[str, _Showing]
    scores: tuple[int, ...] = ()


@dataclass(slots=True)
class _Attribution:
    """What became of the feedback, in numbers of events."""

    attributed: int = 0
    no_impression: int = 0
    expired: int = 0
    waiting: int = 0
    ignored: int = 0


def oracle(
    definition: Definition,
    events: Iterable[Event],
    *,
    at: int | None = None,
    rejected: Mapping[str, int] | None = None,
) -> dict[str, object]:
    """Compute the whole `replay` document for `events`, given in order of arrival.

    `at` (ms) moves T on as for an idle stream. `rejected` counts, by reason, what decoding turned
    away; late events are added to it. Undefined figures are None; rows and users are sorted.
    """
    accepted, late, watermark = _sift(events, definition.allowed_lateness)
    impressions = _impressions(accepted, definition.dimensions)
    slates = [_slate(group) for group in _form_slates(impressions, definition.attribution_window)]
    _limit_segments(slates, definition.max_segments)
    feedback = [event for event in accepted if isinstance(event, FeedbackEvent)]
    attribution = _attribute(slates, feedback, definition, watermark)
    scorer = Scorer(definition.ks, definition.ndcg_gain)
    _score(slates, definition, scorer)
    rates, ranking, maturity = [], [], []
    for window in sorted(definition.windows, key=lambda window: window.name):
        if watermark is None:
            break
        time = watermark if at is None else max(watermark, at)
        live = _in_panes(slates, window, _last_live(window, time))
        matured = _in_panes(slates, window, _last_matured(window, time, definition.horizon))
        for basis, inside in (("live", live), ("matured", matured)):
            for segment, members in _by_segment(inside).items():
                head = {"window": window.name, "basis": basis}
                head |= dict(zip(definition.dimensions, segment, strict=True))
                rates += [head | _rates(members, kind) for kind in sorted(definition.kinds)]
                ranking += [head | _ranking(members, k, scorer) for k in definition.ks]
        maturity += _maturity(live, window, time, definition)
    rejections = dict.fromkeys(REASONS, 0) | dict(rejected or {})
    rejections["late"] += late
    return {
        "watermark": watermark,
        "events": {
            "accepted": _accepted(accepted),
            "rejected": rejections,
            "duplicates": _duplicates(slates, attribution.attributed),
            "unattributed": {
                "no_impression": attribution.no_impression,
                "expired": attribution.expired,
            },
            "waiting": attribution.waiting,
            "ignored": attribution.ignored,
        },
        "rates": rates,
        "ranking": ranking,
        "maturity": maturity,
        "users": _users(accepted, slates, definition.kinds),
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


def _impressions(accepted: Sequence[Event], dimensions: Sequence[str]) -> list[_Impression]:
    """Every accepted impression, those of slate events included, in order of arrival."""
    found: list[_Impression] = []
    for event in accepted:
        if isinstance(event, FeedbackEvent):
            continue
        segment = tuple(getattr(event, name) or "" for name in dimensions)
        items: Iterable[tuple[str, int | None]] = (
            event.items.items()
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
                )
            )
    return found


# --- rules 3, 4, 5 and 14: slates ----------------------------------------------------------------


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


def _slate(group: Sequence[_Impression]) -> _Slate:
    """Merge the impressions of one slate, given in `ts` order."""
    time = group[0].ts
    first_items = dict.fromkeys(one.item_id for one in sorted(group))  # by arrival
    kept = set(list(first_items)[:MAX_ITEMS])
    showings: dict[str, _Showing] = {}
    within = [one for one in group if one.item_id in kept]
    for one in within:
        showing = showings.setdefault(one.item_id, _Showing(one.ts, one.position))
        showing.position = _lower(showing.position, one.position)
    return _Slate(
        user_id=group[0].user_id,
        request_id=group[0].request_id,
        time=time,
        segment=_segment(group),
        arrival=min(one.arrival for one in group),
        records=len(within),
        showings=showings,
    )


def _segment(group: Sequence[_Impression]) -> Segment:
    return min(one.segment for one in group if one.ts == group[0].ts)


def _lower(position: int | None, other: int | None) -> int | None:
    given = [one for one in (position, other) if one is not None]
    return min(given) if given else None


def _limit_segments(slates: Iterable[_Slate], max_segments: int) -> None:
    """Give the slates of segments beyond the bound the segment `__other__`."""
    by_arrival = sorted(slates, key=lambda slate: slate.arrival)
    segments = list(dict.fromkeys(slate.segment for slate in by_arrival))
    beyond = set(segments[max_segments:])
    for slate in by_arrival:
        if slate.segment in beyond:
            slate.segment = (OTHER,) * len(slate.segment)


# --- rules 6 to 11: feedback ---------------------------------------------------------------------


def _counts(event: FeedbackEvent, definition: Definition) -> bool:
    """Whether the feedback is a positive or takes one back (rule 6)."""
    for positive in definition.positives:
        if positive.kind == event.feedback:
            return event.retract or positive.threshold is None or event.value >= positive.threshold
    return False


def _in_time(ts: int, slate: _Slate, attribution_window: int) -> bool:
    return ts - slate.time <= attribution_window


def _named(
    slates: Iterable[_Slate], event: FeedbackEvent, attribution_window: int
) -> tuple[_Showing | None, bool]:
    """Rule 7 among the slates of (user, request): the showing, and whether it came too late."""
    begun = [slate for slate in slates if slate.time <= event.ts]
    if not begun:
        return None, False
    latest = max(begun, key=lambda slate: slate.time)
    if not _in_time(event.ts, latest, attribution_window):
        return None, True
    showing = latest.showings.get(event.item_id)
    return (showing if showing is not None and showing.ts <= event.ts else None), False


def _nearest(
    slates: Iterable[_Slate], event: FeedbackEvent, attribution_window: int
) -> tuple[_Showing | None, bool]:
    """Rule 8 among the slates of the user that hold the item: as `_named`."""
    item_id = event.item_id
    shown = [slate for slate in slates if slate.showings[item_id].ts <= event.ts]
    fresh = [slate for slate in shown if _in_time(event.ts, slate, attribution_window)]
    if not fresh:
        return None, bool(shown)
    return min(fresh, key=lambda slate: _nearness(slate, item_id)).showings[item_id], False


def _nearness(slate: _Slate, item_id: str) -> tuple[int, bool, str]:
    """Sorts the latest showing first, then the slate without a request, then the smaller one."""
    return -slate.showings[item_id].ts, slate.request_id is not None, slate.request_id or ""


def _attribute(
    slates: Iterable[_Slate],
    feedback: Iterable[FeedbackEvent],
    definition: Definition,
    watermark: int | None,
) -> _Attribution:
    """Put every event that counts on the showing it belongs to."""
    by_request: dict[tuple[str, str], list[_Slate]] = defaultdict(list)
    by_item: dict[tuple[str, str], list[_Slate]] = defaultdict(list)
    for slate in slates:
        if slate.request_id is not None:
            by_request[slate.user_id, slate.request_id].append(slate)
        for item_id in slate.showings:
            by_item[slate.user_id, item_id].append(slate)
    result = _Attribution()
    for event in feedback:
        if not _counts(event, definition):
            result.ignored += 1
            continue
        if event.request_id is not None:
            candidates = by_request.get((event.user_id, event.request_id), [])
            showing, too_old = _named(candidates, event, definition.attribution_window)
        else:
            candidates = by_item.get((event.user_id, event.item_id), [])
            showing, too_old = _nearest(candidates, event, definition.attribution_window)
        if showing is not None:
            showing.feedback.setdefault(event.feedback, []).append(event)
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


def _duplicates(slates: Iterable[_Slate], attributed: int) -> int:
    """Log records that added nothing; items beyond the bound of a slate are not among them."""
    repeated = sum(slate.records - len(slate.showings) for slate in slates)
    pairs = sum(len(showing.feedback) for slate in slates for showing in slate.showings.values())
    return repeated + attributed - pairs


def _accepted(accepted: Iterable[Event]) -> dict[str, int]:
    counts = {"impression": 0, "slate": 0, "feedback": 0}
    for event in accepted:
        if isinstance(event, ImpressionEvent):
            counts["impression"] += 1
        elif isinstance(event, SlateEvent):
            counts["slate"] += 1
        else:
            counts["feedback"] += 1
    return counts


def _users(
    accepted: Iterable[Event], slates: Iterable[_Slate], kinds: Sequence[str]
) -> dict[str, dict[str, object]]:
    """Lifetime counters of every user with an accepted event."""
    moments: dict[str, list[int]] = defaultdict(list)
    for event in accepted:
        moments[event.user_id].append(event.ts)
    slates_of: dict[str, list[_Slate]] = defaultdict(list)
    for slate in slates:
        slates_of[slate.user_id].append(slate)
    users: dict[str, dict[str, object]] = {}
    for user_id in sorted(moments):
        own = slates_of[user_id]
        users[user_id] = {
            "impressions": sum(len(slate.showings) for slate in own),
            "slates": sum(slate.request_id is not None for slate in own),
            "positives": {kind: sum(_positives(slate, kind) for slate in own) for kind in kinds},
            "first_ts": min(moments[user_id]),
            "last_ts": max(moments[user_id]),
        }
    return users


# --- rule 12: windows ----------------------------------------------------------------------------


def _last_live(window: Window, time: int) -> int:
    return time // window.slide


def _last_matured(window: Window, time: int, horizon: int) -> int:
    """Return the last pane that ends at or before T - H."""
    return (time - horizon) // window.slide - 1


def _in_panes(slates: Iterable[_Slate], window: Window, last: int) -> list[_Slate]:
    """Return the slates whose pane is one of the W/S that end with pane `last`."""
    first = last - window.panes + 1
    return [slate for slate in slates if first <= slate.time // window.slide <= last]


def _by_segment(slates: Iterable[_Slate]) -> dict[Segment, list[_Slate]]:
    groups: dict[Segment, list[_Slate]] = defaultdict(list)
    for slate in slates:
        groups[slate.segment].append(slate)
    return dict(sorted(groups.items()))


def _maturity(
    live: Iterable[_Slate], window: Window, time: int, definition: Definition
) -> list[dict[str, object]]:
    """Return the share of the live impressions whose figures can no longer change, by segment."""
    last = _last_matured(window, time, definition.horizon)
    rows: list[dict[str, object]] = []
    for segment, members in _by_segment(live).items():
        settled = [slate for slate in members if slate.time // window.slide <= last]
        row: dict[str, object] = {"window": window.name}
        row |= dict(zip(definition.dimensions, segment, strict=True))
        row["maturity"] = _shown(settled) / _shown(members)
        rows.append(row)
    return rows


# --- figures of the slates of one window, basis and segment --------------------------------------


def _shown(slates: Iterable[_Slate]) -> int:
    return sum(len(slate.showings) for slate in slates)


def _positives(slate: _Slate, kind: str) -> int:
    return sum(kind in showing.positives() for showing in slate.showings.values())


def _by_user(slates: Iterable[_Slate]) -> dict[str, list[_Slate]]:
    groups: dict[str, list[_Slate]] = defaultdict(list)
    for slate in slates:
        groups[slate.user_id].append(slate)
    return groups


def _rates(slates: Sequence[_Slate], kind: str) -> dict[str, object]:
    """Return the rates of one kind: mean over users, and pooled over impressions."""
    counts = [
        (user_id, sum(_positives(slate, kind) for slate in own), _shown(own))
        for user_id, own in _by_user(slates).items()
    ]
    shares = [Fraction(positives, shown) for _, positives, shown in counts]
    mean, mean_stderr = _mean(shares)
    pooled, pooled_stderr = _ratio(counts, 1)
    return {
        "feedback": kind,
        "users": len(counts),
        "impressions": sum(shown for _, _, shown in counts),
        "positives": sum(positives for _, positives, _ in counts),
        "positive_rate": mean,
        "positive_rate_stderr": mean_stderr,
        "positives_per_impression": pooled,
        "positives_per_impression_stderr": pooled_stderr,
    }


def _ranking(slates: Sequence[_Slate], k: int, scorer: Scorer) -> dict[str, object]:
    """Return the ranking metrics at one k: means over the slates that have a request."""
    scored = [slate for slate in slates if slate.request_id is not None]
    with_positive = [
        slate for slate in scored if any(one.positives() for one in slate.showings.values())
    ]
    row: dict[str, object] = {
        "k": k,
        "slates": len(scored),
        "slates_with_positive": len(with_positive),
    }
    for metric in RANKING:
        column = scorer.columns.index((metric.name, k))
        sums = [(slate.user_id, slate.scores[column], 1) for slate in scored]
        row[metric.name], row[f"{metric.name}_stderr"] = _ratio(sums, NANO)
    return row


def _mean(values: Sequence[Fraction]) -> tuple[float | None, float | None]:
    """Mean and its standard error, sd (n - 1) / √n; None below one and two values."""
    n = len(values)
    if n == 0:
        return None, None
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    squares = math.fsum((float(value) - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (n - 1)) / math.sqrt(n)


def _ratio(sums: Iterable[tuple[str, int, int]], unit: int) -> tuple[float | None, float | None]:
    """Σx/Σy over (user, x in 1/unit, y), and its standard error, clustered by crc32 of the user.

    With R = Σx/Σy and d = x - R·y a cluster, `se = sqrt(n/(n-1) · Σd²) / Σy`; d·Σy is an integer,
    so all but the last division and the root is exact.
    """
    clusters: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for user_id, x, y in sums:
        cluster = clusters[zlib.crc32(user_id.encode()) & (CLUSTERS - 1)]
        cluster[0] += x
        cluster[1] += y
    total_x = sum(x for x, _ in clusters.values())
    total_y = sum(y for _, y in clusters.values())
    if total_y == 0:
        return None, None
    ratio = total_x / (total_y * unit)
    n = len(clusters)
    if n == 1:
        return ratio, None
    squares = sum((x * total_y - total_x * y) ** 2 for x, y in clusters.values())
    variance = Fraction(n * squares, (n - 1) * total_y**4 * unit**2)
    return ratio, math.sqrt(variance)


# --- rule 13: ranks and scores -------------------------------------------------------------------


def _ranks(slate: _Slate) -> dict[str, int]:
    """Item to rank: positions where they rise, the next free rank where they do not."""
    ordered = sorted(
        (showing.position or 0, showing.ts, item_id) for item_id, showing in slate.showings.items()
    )
    ranks: dict[str, int] = {}
    rank = 0
    for position, _, item_id in ordered:
        rank = max(position, rank + 1)
        ranks[item_id] = rank
    return ranks


def _relevant(slate: _Slate, definition: Definition) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ranks and gains of the relevant items, ascending by rank."""
    found: list[tuple[int, float]] = []
    for item_id, rank in _ranks(slate).items():
        gains = [definition.gain(kind) for kind in slate.showings[item_id].positives()]
        gain = max(gains, default=0.0)
        if gain > 0.0:
            found.append((rank, gain))
    return tuple(rank for rank, _ in found), tuple(gain for _, gain in found)


def _score(slates: Iterable[_Slate], definition: Definition, scorer: Scorer) -> None:
    """Score every slate that has a request, in one batch."""
    with_request = [slate for slate in slates if slate.request_id is not None]
    if not with_request:
        return
    scores = scorer.score([_relevant(slate, definition) for slate in with_request])
    for slate, row in zip(with_request, scores.tolist(), strict=True):
        slate.scores = tuple(row)
