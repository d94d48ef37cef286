"""Experiments by sort and scan: the sums and the users of each arm (rules 34 to 37b).

34. A slate belongs to an experiment when its time is before the watermark less H, at or after
    `since` and before `until`, and when it has an arm. The arm is what its earliest event gives the
    field (ties: the smaller value), and no arm where that event gives none. If the field is a
    dimension, of several such events the one with the smaller values of the dimensions counts, as
    in rule 4. The bound of segments (rule 14) changes no arm.
35. The control and the arms of `arms` or `split` count as themselves. The other arms do too while
    there are at most `MAX_ARMS` of all these, in the order of their earliest slates (ties: the
    smaller name). The rest is `__other__`.
36. A metric is a sum over the slates of an arm divided by another, or by the users of the arm.
    Values are plain sums: no cap.
37. A user of an arm has a slate there, or an impression without a request. A user who was in
    several arms has crossed.
37b. The first list of a user in an arm is the earliest of these slates: its time, which of the
    denominators of shares it has, and its shares in nano-units (ties: the smaller values). The
    extremes of an arm are the smallest and the largest figure of a slate alone; a value per user
    is the slate's value then.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from oracle.figures import relevant
from oracle.lists import positive_ranks
from oracle.values import value_of
from streameval.base.limits import CLUSTERS, MICRO, MILLI, NANO
from streameval.core.definition import Definition
from streameval.core.events import Event, FeedbackEvent, SlateEvent
from streameval.core.experiments.definition import MAX_ARMS, Experiment
from streameval.core.experiments.metrics import metrics_of
from streameval.core.metrics import RANKING, Scorer
from streameval.core.oracle import OTHER, Slate, history

Sums = dict[str, dict[int, int]]
"""By name of the row, then by cluster of users."""


@dataclass
class Arms:
    """One experiment: the sums and the users by arm, and the slates with and without an arm."""

    sums: dict[str, Sums] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)
    earliest: int | None = None
    without_arm: int = 0
    with_arm: int = 0
    without_arm_fallback: int = 0
    without_arm_empty: int = 0
    first_lists: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    extremes: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """By user and arm; by arm and metric."""

    def exactly(self, arm: str) -> int:
        """Return the number of users who were in that arm and no other."""
        return len(self.users.get(arm, set()) - self.crossed)

    @property
    def crossed(self) -> set[str]:
        """The users who were in several arms."""
        found: dict[str, int] = defaultdict(int)
        for members in self.users.values():
            for user in members:
                found[user] += 1
        return {user for user, arms in found.items() if arms > 1}


def experiment_arms(
    definition: Definition, events: Iterable[Event], counts_from: Sequence[int | None] = ()
) -> list[Arms]:
    """Return the arms of each experiment, for `events` in order of arrival.

    `counts_from` (ms), by experiment, leaves out the slates before it.
    """
    known = history(definition, events)
    if known.watermark is None:
        return [Arms() for _ in definition.experiments]
    final = [slate for slate in known.slates if slate.time < known.watermark - definition.horizon]
    starts = counts_from or [None] * len(definition.experiments)
    found = []
    for experiment, start in zip(definition.experiments, starts, strict=True):
        arm_of = _arms_of(experiment, definition, known.accepted)
        members = [
            (slate, arm)
            for slate in final
            if (start is None or slate.time >= start) and _within(slate, experiment)
            for arm in [arm_of(slate)]
        ]
        arms = _arms(experiment, [member for member in members if member[1]], definition)
        nameless = [slate for slate, arm in members if not arm]
        lists = [slate for slate in nameless if slate.request_id is not None]
        arms.without_arm, arms.with_arm = len(nameless), len(members) - len(nameless)
        arms.without_arm_fallback = sum(bool(slate.fallback) for slate in lists)
        arms.without_arm_empty = sum(not slate.items for slate in lists)
        found.append(arms)
    return found


def ratio(arms: Arms, metric: str, arm: str) -> Fraction | None:
    """Return a metric of an arm exactly; None where nothing is there to divide by."""
    sums = {name: sum(by.values()) for name, by in arms.sums.get(arm, {}).items()}
    above, unit, below = _terms(metric)
    among = len(arms.users.get(arm, ())) if below == "users" else sums.get(below, 0)
    return Fraction(sums.get(above, 0), among * unit) if among else None


def _terms(metric: str) -> tuple[str, int, str]:
    """Return numerator, unit and denominator of a metric."""
    base, _, label = metric.partition("{")
    positives = f"positives{{{label}"
    if base == "positives_per_impression":
        return positives, 1, "impressions"
    if base.startswith("value_per_"):
        unit = base.removeprefix("value_per_")
        return f"value{{{label}", MICRO, positives if unit == "positive" else f"{unit}s"
    if "@" in base:
        return base, NANO, "slates"
    return {
        "empty_rate": ("empty_slates", 1, "slates"),
        "short_rate": ("short_slates", 1, "slates"),
        "fallback_rate": ("fallback_slates", 1, "slates"),
        "abandonment_rate": ("abandoned_slates", 1, "slates"),
        "mean_rank_of_positives": ("ranks_of_positive_items", 1, "positive_items"),
        "top3_share": ("positive_items_on_top", 1, "positive_items"),
        "latency_ms_mean": ("latency", MILLI, "slates_with_latency"),
    }[base]


def _within(slate: Slate, experiment: Experiment) -> bool:
    since, until = experiment.since, experiment.until
    return (since is None or slate.time >= since) and (until is None or slate.time < until)


def _arms_of(experiment: Experiment, definition: Definition, accepted: Iterable[Event]) -> Any:
    """Return the function that names the arm of a slate, "" for none (rule 34)."""
    is_dimension = experiment.arm in definition.dimensions
    names = definition.dimensions if is_dimension else (experiment.arm,)
    index = names.index(experiment.arm)
    given: dict[tuple[object, ...], list[tuple[str, ...]]] = defaultdict(list)
    for event in accepted:
        if isinstance(event, FeedbackEvent):
            continue
        arm = tuple(getattr(event, name) or "" for name in names)
        if event.request_id is not None:
            given[event.user_id, event.request_id, event.ts].append(arm)
        elif not isinstance(event, SlateEvent):
            given[event.user_id, None, event.ts, event.item_id].append(arm)

    def arm_of(slate: Slate) -> str:
        if slate.request_id is not None:
            return min(given[slate.user_id, slate.request_id, slate.time])[index]
        (item,) = slate.items
        return min(given[slate.user_id, None, slate.time, item])[index]

    return arm_of


def _arms(
    experiment: Experiment, members: Sequence[tuple[Slate, str]], definition: Definition
) -> Arms:
    arms = Arms(earliest=min((slate.time for slate, _ in members), default=None))
    told_apart = {experiment.control, *(experiment.arms or experiment.split or ())}
    by_time = sorted({(slate.time, arm) for slate, arm in members if arm != OTHER})
    for _, arm in by_time:
        if len(told_apart - {OTHER}) < MAX_ARMS:
            told_apart.add(arm)
    scorer = Scorer(definition.ks, definition.ndcg_gain)
    for slate, own in members:
        arm = own if own in told_apart else OTHER
        arms.users.setdefault(arm, set()).add(slate.user_id)
        sums = arms.sums.setdefault(arm, defaultdict(lambda: defaultdict(int)))
        cluster = zlib.crc32(slate.user_id.encode()) & (CLUSTERS - 1)
        worth = _worth(slate, definition, scorer)
        for name, count in worth.items():
            sums[name][cluster] += count
        first, key = _first_list(slate, worth, definition), (slate.user_id, arm)
        arms.first_lists[key] = min(first, arms.first_lists.get(key, first))
        for metric in metrics_of(definition):
            above, below = _figure(metric, worth)
            if below:
                figure, known = above / below, arms.extremes.get((arm, metric))
                low, high = known or (figure, figure)
                arms.extremes[arm, metric] = min(low, figure), max(high, figure)
    return arms


def _figure(metric: str, worth: dict[str, int]) -> tuple[float, float]:
    """Return numerator and denominator of a metric of one slate."""
    above, unit, below = _terms(metric)
    return float(worth.get(above, 0)), float(unit * (worth | {"users": 1}).get(below, 0))


def _first_list(
    slate: Slate, worth: dict[str, int], definition: Definition
) -> tuple[int, tuple[int, ...]]:
    shares = [_terms(metric) for metric in metrics_of(definition) if _is_share(metric)]
    among = dict.fromkeys(below for *_, below in shares)
    there = [int(worth.get(below, 0) > 0) for below in among]
    values = [
        round(Fraction(worth.get(above, 0) * NANO, unit * worth[below])) if worth.get(below) else 0
        for above, unit, below in shares
    ]
    return slate.time, (*there, *values)


def _is_share(metric: str) -> bool:
    """Return whether a metric cannot be more than 1 of a slate."""
    others = ("value_per_", "mean_rank_of_positives", "latency_ms_mean")
    return not metric.startswith(others)


def _worth(slate: Slate, definition: Definition, scorer: Scorer) -> dict[str, int]:
    """Return the terms that a slate adds to the sums (rule 36)."""
    worth = {"impressions": len(slate.items)}
    for positive in definition.positives:
        kind = positive.kind
        having = [item for item in slate.items.values() if kind in item.positives()]
        worth[f"positives{{feedback={kind}}}"] = len(having)
        if positive.value != "none":
            values = (value_of(item, positive) for item in slate.items.values())
            worth[f"value{{feedback={kind}}}"] = sum(values)
    if slate.request_id is None:
        return worth
    ranks = positive_ranks(slate)
    (scores,) = scorer.score([relevant(slate, definition)]).tolist()
    names = [f"{metric.name}@{k}" for k in definition.ks for metric in RANKING]
    return (
        worth
        | dict(zip(names, scores, strict=True))
        | {
            "slates": 1,
            "slates_with_positive": int(bool(ranks)),
            "empty_slates": int(not slate.items),
            "short_slates": int(len(slate.items) < definition.ks[0]),
            "fallback_slates": int(slate.fallback),
            "abandoned_slates": int(not ranks),
            "positive_items": len(ranks),
            "ranks_of_positive_items": sum(ranks),
            "positive_items_on_top": sum(rank <= 3 for rank in ranks),
            "slates_with_latency": int(slate.latency is not None),
            "latency": slate.latency or 0,
        }
    )
