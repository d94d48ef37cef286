"""The same figures by sort-and-scan over a finite list of events: the engine must equal them.

The oracle is written from the rules alone, and slow on purpose: no state moves with the stream, so
nothing here can depend on the order of arrival by accident. `streameval.core.oracle` forms the
slates (rules 1 to 11, 14 and 26), `oracle.values` and `oracle.lists` have the figures of values and
of lists (rules 24, 25, 27 and 28), `oracle.nowcast` has those of nowcasts (rules 30 to 33),
`oracle.experiments` has the arms (rules 34 to 37), this file the others. The oracle shares with the
engine the event types, the definition, the limits and the per-slate metrics, and nothing else.

The rules, with the numbers of docs/rules.md, where 15 to 23 describe the figures below in the same
way (A is the attribution window, L the allowed lateness, H = A + L):

1.  Watermark: the largest accepted `ts`. An event with `ts < watermark - L` on arrival is late:
    counted, otherwise as if it had never been written.
2.  A slate event is its impressions, one an item. Without items it showed nothing: it opens or
    joins a slate as an impression would (rules 3 and 4), and adds no item and no duplicate.
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
    `MAX_ITEMS`, and segments (each dimension becomes `__other__`). An impression or a slate
    without items that names a new segment enters it into a table of `max_segments`. A full table
    first drops the segments last shown more than 2 * H and the largest W + 2 * S before that
    event. If the table is still full, the event is `__other__`.
24. The entries of an impression and a kind are the attributed feedback that counts, later than the
    latest retraction (ties: the retraction), as distinct (ts, value in integers of 10**-6, half to
    even). Beyond `MAX_LOGGED_FEEDBACK` the largest stay. The value is that of the largest entry
    (`last`), the sum (`sum`) or the largest value (`max`); without entries 0.
25. The value of a window, basis and segment is the plain sum. For the means a user's sum there is
    at most `cap`. They are over users with an impression, slates with a request, impressions and
    positives.
26. A slate is a fallback when one of its events says so. Its latency is the largest that one of
    its events gives, in integer microseconds, half to even. Events that add no item count here.
27. Lists are the slates with a request. Short: fewer items than the smallest k. Abandoned: no
    positive of any kind. Mean rank of positives and the share of them at ranks 1 to 3 are over
    items with a positive of any kind, whatever its gain. Mean latency is over slates with one.
28. Impressions and positives by rank are those of lists; ranks from 21 on are one, `21+`.
29. A window, basis and segment has rows where it has a slate. Those of `rates` and `maturity` need
    an impression.
30. The delay of a positive: its kind's earliest `ts` that is no retraction, less the slate's time.
    Up to 64 buckets with the edges floor((A + 1) (1.1^i - 1) / (1.1^64 - 1)). The delays at T are
    those of the matured panes of the longest window. The score of a slate with 1 to `MAX_FOLLOWED`
    positives with a gain > 0 changes in each bucket that has some of them: they count from there.
31. F(x): the share of delays below x, even within a bucket; of slates at t the feedback below
    T + 1 - t has come. A pane has the mean over t from its begin to its end or T + 1, in 10**-6,
    upwards. The segment's own F from `MIN_SEGMENT_DELAYS` on, else that of all from `MIN_DELAYS`.
    Of a ranking metric at k: the sum of changes below x by the sum of all, which must be above 0;
    the slates that are followed are counted in place of delays.
32. Effective: impressions and slates of live panes times the share of their pane. Nowcasts divide
    by these, and have the standard errors of rule 20 with them. No nowcast of means over users.
33. None where the effective count is 0 or below `MIN_OBSERVED` of the count.
38. With two dimensions or more a slate counts in its segment, and again in each segment that has
    `__all__` instead of some or all of its values. Rows of these totals come first, those with
    more `__all__` before the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from oracle.lists import list_figures, rank_figures, ranks_of, with_request
from oracle.means import mean, ratio
from oracle.nowcast import Arrivals, nowcast_figures
from oracle.values import value_figures
from streameval.base.limits import NANO
from streameval.core.definition import Definition, Window
from streameval.core.events import REASONS, Event, ImpressionEvent, SlateEvent
from streameval.core.metrics import RANKING, Scorer
from streameval.core.oracle import ALL, Segment, Slate, counted_in, history, users

Rows = dict[str, list[dict[str, object]]]
"""Rows by section of the document."""


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
    rows: Rows = {name: [] for name in _SECTIONS}
    if watermark is not None:
        time = watermark if at is None else max(watermark, at)
        for window in sorted(definition.windows, key=lambda window: window.name):
            for name, found in _windowed(slates, window, time, definition, scorer).items():
                rows[name] += found
            for name, found in _nowcast(slates, window, time, definition, scorer).items():
                rows[name] += found
        for name in ("rates", "ranking", "values"):
            # A nowcast follows the other bases of its window.
            rows[name].sort(key=lambda row: (row["window"], row["basis"]))
    if "lists" not in definition.figures:
        rows["lists"], rows["ranks"] = [], []
    if "nowcast" not in definition.figures:
        rows = {
            name: [row for row in found if row.get("basis") != "nowcast"]
            if name != "nowcast"
            else []
            for name, found in rows.items()
        }
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
        **rows,
        "users": users(known, definition.kinds),
    }


_SECTIONS = ("rates", "ranking", "maturity", "values", "lists", "ranks", "nowcast")


def _windowed(
    slates: Sequence[Slate], window: Window, time: int, definition: Definition, scorer: Scorer
) -> Rows:
    """Return the rows of one window at T = `time`, by section."""
    live = _in_panes(slates, window, _last_live(window, time))
    matured = _in_panes(slates, window, _last_matured(window, time, definition.horizon))
    rows: Rows = {name: [] for name in _SECTIONS}
    rows["maturity"] = _maturity(live, window, time, definition)
    for basis, inside in (("live", live), ("matured", matured)):
        for segment, members in _by_segment(inside).items():
            head = {"window": window.name, "basis": basis}
            head |= dict(zip(definition.dimensions, segment, strict=True))
            for name, found in _figures(members, definition, scorer).items():
                rows[name] += [head | row for row in found]
    return rows


def _nowcast(
    slates: Sequence[Slate], window: Window, time: int, definition: Definition, scorer: Scorer
) -> Rows:
    """Return the rows of the nowcasts of one window at T = `time`, by section."""
    longest = max(definition.windows, key=lambda one: one.size)
    final = _in_panes(slates, longest, _last_matured(longest, time, definition.horizon))
    arrivals = Arrivals(definition, final, time, scorer)
    rows: Rows = defaultdict(list)
    live = _in_panes(slates, window, _last_live(window, time))
    for segment, members in _by_segment(live).items():
        head = {"window": window.name, "basis": "nowcast"}
        head |= dict(zip(definition.dimensions, segment, strict=True))
        found = nowcast_figures(members, segment, window, arrivals, scorer)
        for name, of_name in found.items():
            rows[name] += [head | row for row in of_name]
    return rows


def _figures(members: Sequence[Slate], definition: Definition, scorer: Scorer) -> Rows:
    """Return the rows of the slates of one window, basis and segment, by section (rule 29)."""
    kinds = sorted(definition.kinds)
    positives = sorted(definition.positives, key=lambda positive: positive.kind)
    return {
        "rates": [_rates(members, kind) for kind in kinds] if _impressions(members) else [],
        "ranking": [_ranking(members, k, scorer) for k in definition.ks],
        "values": [value_figures(members, one) for one in positives if one.value != "none"],
        "lists": [list_figures(members, definition)],
        "ranks": rank_figures(members, kinds),
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
        for segment in counted_in(slate.segment):
            groups[segment].append(slate)
    in_order = sorted(groups, key=lambda one: [value == ALL for value in one] + [*one])
    return {one: groups[one] for one in sorted(in_order, key=lambda one: -one.count(ALL))}


def _maturity(
    live: Iterable[Slate], window: Window, time: int, definition: Definition
) -> list[dict[str, object]]:
    """Return the share of the live impressions whose figures can no longer change, by segment."""
    last = _last_matured(window, time, definition.horizon)
    rows: list[dict[str, object]] = []
    for segment, members in _by_segment(live).items():
        if not _impressions(members):
            continue
        settled = [slate for slate in members if slate.time // window.slide <= last]
        row: dict[str, object] = {"window": window.name}
        row |= dict(zip(definition.dimensions, segment, strict=True))
        row["maturity"] = _impressions(settled) / _impressions(members)
        rows.append(row)
    return rows


# --- figures of the slates of one window, basis and segment --------------------------------------


def _impressions(slates: Iterable[Slate]) -> int:
    return sum(len(slate.items) for slate in slates)


def _by_user(slates: Iterable[Slate]) -> dict[str, list[Slate]]:
    groups: dict[str, list[Slate]] = defaultdict(list)
    for slate in slates:
        groups[slate.user_id].append(slate)
    return groups


def _rates(slates: Sequence[Slate], kind: str) -> dict[str, object]:
    """Return the rates of one kind: mean over users, and pooled over impressions."""
    counts = [
        (user_id, sum(slate.positives(kind) for slate in own), _impressions(own))
        for user_id, own in _by_user(slates).items()
        if _impressions(own)
    ]
    shares = [Fraction(positives, impressions) for _, positives, impressions in counts]
    rate, rate_stderr = mean(shares)
    pooled, pooled_stderr = ratio(counts, 1)
    return {
        "feedback": kind,
        "users": len(counts),
        "impressions": sum(impressions for _, _, impressions in counts),
        "positives": sum(positives for _, positives, _ in counts),
        "positive_rate": rate,
        "positive_rate_stderr": rate_stderr,
        "positives_per_impression": pooled,
        "positives_per_impression_stderr": pooled_stderr,
    }


def _ranking(slates: Sequence[Slate], k: int, scorer: Scorer) -> dict[str, object]:
    """Return the ranking metrics at one k: means over the slates that have a request."""
    scored = with_request(slates)
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
        row[metric.name], row[f"{metric.name}_stderr"] = ratio(sums, NANO)
    return row


# --- rule 13: ranks and scores -------------------------------------------------------------------


def relevant(slate: Slate, definition: Definition) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ranks and gains of the relevant items, ascending by rank."""
    found: list[tuple[int, float]] = []
    for item_id, rank in ranks_of(slate).items():
        gains = [definition.gain(kind) for kind in slate.items[item_id].positives()]
        gain = max(gains, default=0.0)
        if gain > 0.0:
            found.append((rank, gain))
    return tuple(rank for rank, _ in found), tuple(gain for _, gain in found)


def _score(slates: Sequence[Slate], definition: Definition, scorer: Scorer) -> None:
    """Score every slate that has a request, in one batch."""
    lists = with_request(slates)
    if not lists:
        return
    scores = scorer.score([relevant(slate, definition) for slate in lists])
    for slate, row in zip(lists, scores.tolist(), strict=True):
        slate.scores = tuple(row)
