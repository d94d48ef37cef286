"""The same figures by sort-and-scan over a finite list of events: the engine must equal them.

The oracle is written from the rules alone, and slow on purpose: no state moves with the stream, so
nothing here can depend on the order of arrival by accident. `oracle.slates` forms the slates (rules
1 to 11 and 14), this file the figures. The oracle shares with the engine the event types, the
definition, the limits and the per-slate metrics, and nothing else.

The rules (A is the attribution window, L the allowed lateness, H = A + L):

1.  Watermark: the largest accepted `ts`. An event with `ts < watermark - L` on arrival is late:
    counted, otherwise as if it had never been written.
2.  A slate event is its impressions, one an item.
3.  In `ts` order, an impression joins the current slate of its (user, request) when
    `ts <= slate time + A`, else it starts the next one. Without a request it is a slate of its
    own, (user, item, ts).
4.  A slate's time is its earliest `ts`; its earliest event gives its segment (ties: the
    smaller values, "" for an absent one).
5.  An item stands once in a slate, with its earliest `ts` and the lowest position given.
6.  Feedback counts when its kind is configured and it reaches the kind's threshold; a retraction
    of a configured kind counts whatever its value. All other feedback is ignored.
7.  Feedback that names a request belongs to the latest slate of (user, request) whose time is at
    or before `ts`; it is attributed when that slate showed the item at or before `ts` and
    `ts - slate time <= A`.
8.  Feedback that names none belongs to the user's latest impression of the item at or before `ts`
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
    `MAX_ITEMS`, and segments (each dimension becomes `__other__`). An impression
    that names a new segment enters it into a table of `max_segments`. A full table first drops
    the segments last shown more than 2 * H and the largest W + 2 * S before that impression. If
    the table is still full, the impression is `__other__`.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from streameval.base.limits import CLUSTERS, NANO
from streameval.core.definition import Definition, Window
from streameval.core.events import REASONS, Event, ImpressionEvent, SlateEvent
from streameval.core.metrics import RANKING, Scorer
from streameval.core.oracle.slates import Segment, Slate, history


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
    known = history(definition, events)
    slates, watermark = known.slates, known.watermark
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
    rejections["late"] += known.late
    return {
        "watermark": watermark,
        "events": {
            "accepted": _accepted(known.accepted),
            "rejected": rejections,
            "duplicates": known.duplicates,
            "unattributed": {
                "no_impression": known.attribution.no_impression,
                "expired": known.attribution.expired,
            },
            "waiting": known.attribution.waiting,
            "ignored": known.attribution.ignored,
        },
        "rates": rates,
        "ranking": ranking,
        "maturity": maturity,
        "users": _users(known.accepted, slates, definition.kinds),
    }


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
    accepted: Iterable[Event], slates: Iterable[Slate], kinds: Sequence[str]
) -> dict[str, dict[str, object]]:
    """Return the lifetime counters of every user with an accepted event."""
    moments: dict[str, list[int]] = defaultdict(list)
    for event in accepted:
        moments[event.user_id].append(event.ts)
    slates_of: dict[str, list[Slate]] = defaultdict(list)
    for slate in slates:
        slates_of[slate.user_id].append(slate)
    users: dict[str, dict[str, object]] = {}
    for user_id in sorted(moments):
        own = slates_of[user_id]
        users[user_id] = {
            "impressions": sum(len(slate.items) for slate in own),
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


def _in_panes(slates: Iterable[Slate], window: Window, last: int) -> list[Slate]:
    """Return the slates whose pane is one of the W/S that end with pane `last`."""
    first = last - window.panes + 1
    return [slate for slate in slates if first <= slate.time // window.slide <= last]


def _by_segment(slates: Iterable[Slate]) -> dict[Segment, list[Slate]]:
    groups: dict[Segment, list[Slate]] = defaultdict(list)
    for slate in slates:
        groups[slate.segment].append(slate)
    return dict(sorted(groups.items()))


def _maturity(
    live: Iterable[Slate], window: Window, time: int, definition: Definition
) -> list[dict[str, object]]:
    """Return the share of the live impressions whose figures can no longer change, by segment."""
    last = _last_matured(window, time, definition.horizon)
    rows: list[dict[str, object]] = []
    for segment, members in _by_segment(live).items():
        settled = [slate for slate in members if slate.time // window.slide <= last]
        row: dict[str, object] = {"window": window.name}
        row |= dict(zip(definition.dimensions, segment, strict=True))
        row["maturity"] = _impressions(settled) / _impressions(members)
        rows.append(row)
    return rows


# --- figures of the slates of one window, basis and segment --------------------------------------


def _impressions(slates: Iterable[Slate]) -> int:
    return sum(len(slate.items) for slate in slates)


def _positives(slate: Slate, kind: str) -> int:
    return sum(kind in item.positives() for item in slate.items.values())


def _by_user(slates: Iterable[Slate]) -> dict[str, list[Slate]]:
    groups: dict[str, list[Slate]] = defaultdict(list)
    for slate in slates:
        groups[slate.user_id].append(slate)
    return groups


def _rates(slates: Sequence[Slate], kind: str) -> dict[str, object]:
    """Return the rates of one kind: mean over users, and pooled over impressions."""
    counts = [
        (user_id, sum(_positives(slate, kind) for slate in own), _impressions(own))
        for user_id, own in _by_user(slates).items()
    ]
    shares = [Fraction(positives, impressions) for _, positives, impressions in counts]
    mean, mean_stderr = _mean(shares)
    pooled, pooled_stderr = _ratio(counts, 1)
    return {
        "feedback": kind,
        "users": len(counts),
        "impressions": sum(impressions for _, _, impressions in counts),
        "positives": sum(positives for _, positives, _ in counts),
        "positive_rate": mean,
        "positive_rate_stderr": mean_stderr,
        "positives_per_impression": pooled,
        "positives_per_impression_stderr": pooled_stderr,
    }


def _ranking(slates: Sequence[Slate], k: int, scorer: Scorer) -> dict[str, object]:
    """Return the ranking metrics at one k: means over the slates that have a request."""
    scored = [slate for slate in slates if slate.request_id is not None]
    with_positive = [
        slate for slate in scored if any(one.positives() for one in slate.items.values())
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


def _ranks(slate: Slate) -> dict[str, int]:
    """Item to rank: positions where they rise, the next free rank where they do not."""
    ordered = sorted(
        (item.position or 0, item.ts, item_id) for item_id, item in slate.items.items()
    )
    ranks: dict[str, int] = {}
    rank = 0
    for position, _, item_id in ordered:
        rank = max(position, rank + 1)
        ranks[item_id] = rank
    return ranks


def _relevant(slate: Slate, definition: Definition) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ranks and gains of the relevant items, ascending by rank."""
    found: list[tuple[int, float]] = []
    for item_id, rank in _ranks(slate).items():
        gains = [definition.gain(kind) for kind in slate.items[item_id].positives()]
        gain = max(gains, default=0.0)
        if gain > 0.0:
            found.append((rank, gain))
    return tuple(rank for rank, _ in found), tuple(gain for _, gain in found)


def _score(slates: Iterable[Slate], definition: Definition, scorer: Scorer) -> None:
    """Score every slate that has a request, in one batch."""
    with_request = [slate for slate in slates if slate.request_id is not None]
    if not with_request:
        return
    scores = scorer.score([_relevant(slate, definition) for slate in with_request])
    for slate, row in zip(with_request, scores.tolist(), strict=True):
        slate.scores = tuple(row)
