"""Nowcasts by sort and scan (rules 30 to 33): live figures over the feedback come so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from oracle.lists import ranks_of, with_request
from oracle.means import ratio
from oracle.values import Sums, capped, value_figures
from streameval.base.limits import (
    DELAY_BUCKETS,
    MAX_FOLLOWED,
    MICRO,
    MIN_DELAYS,
    MIN_OBSERVED,
    MIN_SEGMENT_DELAYS,
    NANO,
)
from streameval.core.definition import Definition, Window
from streameval.core.metrics import RANKING, Scorer
from streameval.core.oracle import Item, Segment, Slate, counted_in

Row = dict[str, object]
Share = Callable[[Slate], int]
"""The share of a slate's feedback that has come, in 10**-6."""

Name = str | int
"""Whose curve: a kind of feedback, or the number of a column of scores."""
Weighed = tuple[int, int]
"""A delay (ms), and its weight: 1, or the change of a score (nano-units)."""


def _first(item: Item, kind: str) -> int:
    return min(event.ts for event in item.feedback[kind] if not event.retract)


def _delays(slate: Slate) -> list[tuple[str, int]]:
    """Return the delays of a slate's positives, with their kinds (rule 30)."""
    return [
        (kind, _first(item, kind) - slate.time)
        for item in slate.items.values()
        for kind in item.positives()
    ]


class Arrivals:
    """The delays of final slates, and T: what rules 30 and 31 need."""

    def __init__(
        self, definition: Definition, final: Sequence[Slate], time: int, scorer: Scorer
    ) -> None:
        self.definition = definition
        self._time = time
        self._scorer = scorer
        last = Fraction(11, 10) ** DELAY_BUCKETS - 1
        edges = {
            int((definition.attribution_window + 1) * (Fraction(11, 10) ** i - 1) / last)
            for i in range(DELAY_BUCKETS + 1)
        }
        self._edges = sorted(edges)
        self._delays: dict[tuple[Segment | None, Name], list[Weighed]] = defaultdict(list)
        self._followed: dict[Segment | None, int] = defaultdict(int)
        for slate in final:
            score_changes = self._score_changes(slate)
            for segment in (None, *counted_in(slate.segment)):
                for kind, delay in _delays(slate):
                    self._delays[segment, kind].append((delay, 1))
                for name, weighed in score_changes:
                    self._delays[segment, name].append(weighed)
                self._followed[segment] += bool(score_changes)

    def _score_changes(self, slate: Slate) -> list[tuple[int, Weighed]]:
        """Return the changes of each column of scores as the feedback came (rule 30)."""
        gain = self.definition.gain
        relevant = [
            (_first(item, kind) - slate.time, name, gain(kind))
            for name, item in slate.items.items()
            for kind in item.positives()
            if gain(kind) > 0
        ]
        if slate.request_id is None or not 1 <= len(relevant) <= MAX_FOLLOWED:
            return []
        ranks = ranks_of(slate)
        found: list[tuple[int, Weighed]] = []
        before = (0,) * len(self._scorer.columns)
        for first, last in zip(self._edges, self._edges[1:], strict=False):
            if any(first <= delay < last for delay, _, _ in relevant):
                come: dict[int, float] = {}
                for delay, name, worth in relevant:
                    if delay < last:
                        come[ranks[name]] = max(worth, come.get(ranks[name], 0.0))
                items = sorted(come.items())
                row = (tuple(rank for rank, _ in items), tuple(worth for _, worth in items))
                (now,) = self._scorer.score([row]).tolist()
                found += [
                    (column, (first, score - earlier))
                    for column, (score, earlier) in enumerate(zip(now, before, strict=True))
                ]
                before = tuple(now)
        return found

    def share(self, segment: Segment, name: Name, window: Window) -> Share | None:
        """Return what tells the share of a slate of a window that has come; None: unknown."""
        own, everywhere = self._delays[segment, name], self._delays[None, name]
        if isinstance(name, str):
            counts = len(own), len(everywhere)
        else:
            counts = self._followed[segment], self._followed[None]
        if counts[0] >= MIN_SEGMENT_DELAYS and _total(own) > 0:
            delays = own
        elif counts[1] >= MIN_DELAYS and _total(everywhere) > 0:
            delays = everywhere
        else:
            return None
        known: dict[int, int] = {}

        def of(slate: Slate) -> int:
            pane = slate.time // window.slide
            if pane not in known:
                known[pane] = self._of_pane(pane * window.slide, (pane + 1) * window.slide, delays)
            return known[pane]

        return of

    def _of_pane(self, begin: int, end: int, delays: Sequence[Weighed]) -> int:
        """Return the mean of F over the pane up to T, in 10**-6, cut off upwards (rule 31)."""
        now = self._time + 1
        older, younger = now - begin, max(0, now - end)
        to_come = Fraction(0)
        for first, last in zip(self._edges, self._edges[1:], strict=False):
            inside = sum(weight for delay, weight in delays if first <= delay < last)
            if inside:
                area = _come(older, first, last) - _come(younger, first, last)
                to_come += inside * (1 - area / (older - younger))
        return MICRO - -(-MICRO * to_come // _total(delays))


def _total(delays: Sequence[Weighed]) -> int:
    return sum(weight for _, weight in delays)


def _come(x: int, first: int, last: int) -> Fraction:
    """Return the integral, up to x, of the share of a bucket that lies below an age."""
    within = min(max(x - first, 0), last - first)
    return Fraction(within * within, 2 * (last - first)) + max(x - last, 0)


def _enough(effective: int, whole: int) -> bool:
    return effective > 0 and effective >= MIN_OBSERVED * whole


def nowcast_figures(
    slates: Sequence[Slate],
    segment: Segment,
    window: Window,
    arrivals: Arrivals,
    scorer: Scorer,
) -> dict[str, list[Row]]:
    """Return the rows of one live window and segment or total, by section (rules 32 and 33)."""
    definition = arrivals.definition
    rows: dict[str, list[Row]] = {"rates": [], "ranking": [], "values": [], "nowcast": []}
    for positive in sorted(definition.positives, key=lambda positive: positive.kind):
        share = arrivals.share(segment, positive.kind, window)
        if share is None:
            continue
        shown = sum(len(slate.items) for slate in slates)
        effective = sum(len(slate.items) * share(slate) for slate in slates)
        if effective:
            rows["nowcast"].append(
                {"feedback": positive.kind, "observed_ratio": effective / (shown * MICRO)}
            )
        if not _enough(effective, shown):
            continue
        rows["rates"].append(_rates(slates, positive.kind, share))
        if positive.value != "none":
            row = value_figures(slates, positive)
            rows["values"].append(row | _values(slates, definition, positive.kind, share))
    lists = with_request(slates)
    shares: dict[tuple[str, int], Share] = {}
    for number, column in enumerate(scorer.columns):
        share = arrivals.share(segment, number, window)
        if share is not None and _enough(sum(map(share, lists)), len(lists)):
            shares[column] = share
    cutoffs = [k for k in definition.ks if any(k == known for _, known in shares)]
    rows["ranking"] = [_ranking(lists, k, scorer, shares) for k in cutoffs]
    return rows


def _rates(slates: Sequence[Slate], kind: str, share: Share) -> Row:
    counts = [
        (
            slate.user_id,
            sum(kind in item.positives() for item in slate.items.values()),
            len(slate.items),
            len(slate.items) * share(slate),
        )
        for slate in slates
    ]
    rate, stderr = ratio([(user, x * MICRO, y) for user, x, _, y in counts], 1)
    return {
        "feedback": kind,
        "users": len({user for user, _, impressions, _ in counts if impressions}),
        "impressions": sum(impressions for _, _, impressions, _ in counts),
        "positives": sum(positives for _, positives, _, _ in counts),
        "positive_rate": None,
        "positive_rate_stderr": None,
        "positives_per_impression": rate,
        "positives_per_impression_stderr": stderr,
    }


def _ranking(
    lists: Sequence[Slate], k: int, scorer: Scorer, shares: Mapping[tuple[str, int], Share]
) -> Row:
    row: Row = {
        "k": k,
        "slates": len(lists),
        "slates_with_positive": sum(
            any(item.positives() for item in slate.items.values()) for slate in lists
        ),
    }
    for metric in RANKING:
        column, share = scorer.columns.index((metric.name, k)), shares.get((metric.name, k))
        found: tuple[float | None, float | None] = (None, None)
        if share is not None:
            sums = [(one.user_id, one.scores[column] * MICRO, share(one)) for one in lists]
            found = ratio(sums, NANO)
        row[metric.name], row[f"{metric.name}_stderr"] = found
    return row


def _values(slates: Sequence[Slate], definition: Definition, kind: str, share: Share) -> Row:
    """Return the means of values that are not those of the live window."""
    (positive,) = [one for one in definition.positives if one.kind == kind]
    users: dict[str, Sums] = defaultdict(Sums)
    effective: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for slate in slates:
        users[slate.user_id].add(slate, positive)
        effective[slate.user_id][0] += len(slate.items) * share(slate)
        if slate.request_id is not None:
            effective[slate.user_id][1] += share(slate)
    row: Row = {"value_per_user": None, "value_per_user_stderr": None}
    whole = [sum(map(len, (one.items for one in slates))), len(with_request(slates))]
    for index, unit in enumerate(("impression", "slate")):
        found: tuple[float | None, float | None] = (None, None)
        if _enough(sum(sums[index] for sums in effective.values()), whole[index]):
            found = ratio(
                [
                    (user, capped(sums.value, positive.cap) * MICRO, effective[user][index])
                    for user, sums in users.items()
                ],
                MICRO,
            )
        row[f"value_per_{unit}"], row[f"value_per_{unit}_stderr"] = found
    return row
