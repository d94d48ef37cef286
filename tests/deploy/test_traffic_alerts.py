"""Alerts on traffic and feedback fire on their faults within half an hour, and on no rhythm."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from prometheus import firing

from streameval.cli.rules import rules
from streameval.config.settings import Settings

HOUR, DAY = 60, 1440
FAULT = 3 * HOUR
"""The minute at which a fault begins: three hours of history are all that Prometheus has."""
EVER_FIRED = (
    'group by (alertname) (max_over_time(ALERTS{alertstate="firing",'
    ' alertname!~"StreamevalAbsent|StreamevalWorkerDown"}[15d]) > 0)'
)
"""Of the alerts on a worker that is away, two are right."""

TRAFFIC = 'group by (alertname) (ALERTS{alertname="StreamevalTrafficCollapsed"})'

Course = Callable[[np.ndarray], np.ndarray]
"""A factor at each minute."""


def usual(t: np.ndarray) -> np.ndarray:
    return np.ones(len(t))


def since(fault: float, until: float = np.inf) -> Course:
    """A factor that holds from the fault on, and 1 before it and after `until`."""
    return lambda t: np.where((t >= FAULT) & (t < until), fault, 1.0)


def week(t: np.ndarray) -> np.ndarray:
    """Nights at a tenth, from one step to the next, and weekends at 80 %."""
    night = (t % DAY) // HOUR < 7
    weekend = (t // DAY) % 7 >= 5
    return np.where(night, 0.1, 1.0) * np.where(weekend, 0.8, 1.0)


def swing(t: np.ndarray) -> np.ndarray:
    """A daily curve between a tenth and 1."""
    return 0.55 - 0.45 * np.cos(2 * np.pi * t / DAY)


@dataclass
class Site:
    """What a site's worker exposes, a value each `step` minutes, with Poisson noise.

    Slates are of ten items, half of them of variant B. The courses say how a fault changes each
    part.
    """

    minutes: int = 6 * HOUR
    step: int = 1
    slates: float = 600.0  # a minute
    traffic: Course = usual
    feedback: Course = usual
    likes: Course = usual
    share_b: Course = usual
    rate_b: Course = usual
    ndcg_b: Course = usual
    empty: Course = usual
    fallback: Course = usual
    duplicates: float = 0.01
    duplicated: Course = usual
    lag: Course = usual
    session: int = 1
    """Slates of a user come together: so many at once."""
    instance: str = "a"
    down: tuple[int, int] = (-1, -1)
    """The minutes between which the worker is away; its counters begin again."""
    seed: int = 0

    def series(self) -> dict[str, str]:
        self.chance = np.random.default_rng(self.seed)
        self.t = np.arange(0, self.minutes + 1, self.step)
        found: dict[str, np.ndarray] = {}
        expected = self.slates * self.step / self.session * self.traffic(self.t)
        slates = self.session * self.chance.poisson(expected)
        of_b = self.chance.binomial(slates, np.clip(self.share_b(self.t) * 0.5, 0, 1))
        kinds = {"click": 0.05 * self.feedback(self.t), "like": 0.01 * self.feedback(self.t)}
        kinds["like"] = kinds["like"] * self.likes(self.t)
        total = {kind: np.zeros(len(self.t)) for kind in kinds}
        for variant, part in (("A", slates - of_b), ("B", of_b)):
            found[f'impressions_total{{variant="{variant}"}}'] = self.counter(10 * part)
            for kind, rate in kinds.items():
                change = self.rate_b(self.t) if variant == "B" else 1.0
                positives = self.chance.binomial(10 * part, np.clip(rate * change, 0, 1))
                total[kind] += positives
                of_kind = f'variant="{variant}", feedback="{kind}"'
                found[f"positives_total{{{of_kind}}}"] = self.counter(positives)
                self.rate(found, of_kind, part, positives)
            self.ranking(found, variant, part)
        for kind, count in total.items():
            found[f'feedback_total{{feedback="{kind}"}}'] = self.counter(count)
        found['events_total{event="slate"}'] = self.counter(slates)
        found['events_total{event="feedback"}'] = self.counter(sum(total.values()))
        repeated = 10 * slates * self.duplicates * self.duplicated(self.t)
        found["duplicates_total"] = self.counter(repeated)
        return self.written(found)

    def counter(self, increments: np.ndarray) -> np.ndarray:
        """Count since the start of the process."""
        counts = np.cumsum(increments)
        if self.down[1] < 0:
            return counts
        before = counts[np.searchsorted(self.t, self.down[1]) - 1]
        return np.where(self.t >= self.down[1], counts - before, counts)

    def windows(self, part: np.ndarray, minutes: int) -> np.ndarray:
        """The sum over the last `minutes` of a window, at least over one step."""
        width = max(1, minutes // self.step)
        whole = np.cumsum(np.concatenate([np.zeros(width), part]))
        return whole[width:] - whole[:-width]

    def rate(self, found: dict, of_kind: str, part: np.ndarray, positives: np.ndarray) -> None:
        for window, minutes in (("5m", 5), ("1h", 60)):
            impressions = 10 * self.windows(part, minutes)
            rate = self.windows(positives, minutes) / np.where(impressions, impressions, np.nan)
            labels = f'window="{window}", basis="live", {of_kind}'
            error = np.sqrt(rate / np.where(impressions, impressions, np.nan))
            for figure in ("positives_per_impression", "positive_rate"):
                found[f"{figure}{{{labels}}}"] = rate
                found[f"{figure}_stderr{{{labels}}}"] = error
            labels = labels.partition(", feedback")[0]
            found[f"window_impressions{{{labels}}}"] = impressions
            found[f"window_users{{{labels}}}"] = impressions / 20

    def ranking(self, found: dict, variant: str, part: np.ndarray) -> None:
        change = self.ndcg_b(self.t) if variant == "B" else 1.0
        shares = {"empty_rate": self.empty, "fallback_rate": self.fallback}
        counts = {
            figure: self.chance.binomial(part, 0.01 * course(self.t))
            for figure, course in shares.items()
        }
        for window, minutes in (("5m", 5), ("1h", 60)):
            slates = self.windows(part, minutes)
            error = 0.4 / np.sqrt(np.where(slates, slates, np.nan))
            score = np.clip(0.44 * change + self.chance.normal(size=len(self.t)) * error, 0, 1)
            labels = f'window="{window}", basis="live", variant="{variant}"'
            found[f"window_slates{{{labels}}}"] = slates
            for figure, count in counts.items():
                share = self.windows(count, minutes) / np.where(slates, slates, np.nan)
                found[f"{figure}{{{labels}}}"] = share
                found[f"{figure}_stderr{{{labels}}}"] = np.sqrt(share) * error
            for k in (5, 10):
                found[f'ndcg{{{labels}, k="{k}"}}'] = score
                found[f'ndcg_stderr{{{labels}, k="{k}"}}'] = error

    def written(self, found: dict[str, np.ndarray]) -> dict[str, str]:
        """Write the series with the gauges of a service that is well."""
        gauges = {
            "ready": 1, "broker_up": 1, "store_up": 1, 'batch_unreadable{partition="0"}': 0,
            'checkpoint_age_seconds{partition="0"}': 20,
        }  # fmt: skip
        constant = {name: np.full(len(self.t), value) for name, value in gauges.items()}
        moving = {
            'committed_offset{partition="0"}': self.t * 60_000.0,
            'lag{partition="0"}': 20 * self.lag(self.t),
        }
        away = (self.t >= self.down[0]) & (self.t < self.down[1])
        own = {
            f"streameval_{name}": np.where(away, np.nan, values)
            for name, values in (constant | moving | found).items()
        }
        own["up"] = np.where(away, 0, 1)
        return {self.labelled(name): text(values) for name, values in own.items()}

    def labelled(self, name: str) -> str:
        """Add the labels of a target."""
        metric, _, labels = name.partition("{")
        return f'{metric}{{job="streameval", instance="{self.instance}", {labels or "}"}'


def text(values: np.ndarray) -> str:
    return " ".join("_" if np.isnan(value) else f"{value:.9g}" for value in values)


FIRES = {
    "StreamevalTrafficCollapsed": Site(traffic=since(0.001)),
    "StreamevalFeedbackStopped": Site(feedback=since(0.01)),
    "StreamevalFeedbackKindStopped": Site(likes=since(0.0)),
    "StreamevalSegmentStopped": Site(share_b=since(0.0)),
    "StreamevalDuplicates": Site(duplicated=since(100.0)),
    "StreamevalRateCollapsed": Site(rate_b=since(0.2)),
    "StreamevalEmptySlates": Site(empty=since(10.0)),
    "StreamevalFallbacks": Site(fallback=since(8.0)),
    "StreamevalRankingCollapsed": Site(ndcg_b=since(0.08 / 0.44, FAULT + 80)),
}


@pytest.mark.parametrize("alert", FIRES)
def test_a_fault_is_told_within_half_an_hour(alert, tmp_path):
    quiet = dict.fromkeys((HOUR + 40, 2 * HOUR, FAULT), "")
    site = replace(FIRES[alert], minutes=FAULT + 75)
    firing(tmp_path, site.series(), quiet | dict.fromkeys((FAULT + 30, FAULT + 75), alert))


def stepwise(*levels: tuple[int, float]) -> Course:
    """A factor that changes at some minutes; 1 before the first."""
    begins, factors = zip(*levels, strict=True)
    return lambda t: np.concatenate([[1.0], factors])[np.searchsorted(begins, t, side="right")]


def closed_at_night(t: np.ndarray) -> np.ndarray:
    return np.where((t % DAY) // HOUR < 7, 0.0, 1.0)


LONG = "eight days, a weekend among them, with nights at a tenth"
QUIET = {
    LONG: Site(8 * DAY, step=5, traffic=week),
    "three days of a small site": Site(3 * DAY, step=5, traffic=week, slates=3, session=3),
    "a daily curve, and feedback that falls by more than half at night": Site(
        3 * DAY, step=5, traffic=swing, feedback=lambda t: 0.4 + 0.6 * swing(t)
    ),
    "a deployment that begins with a backlog": Site(
        traffic=stepwise((0, 100), (90, 1)), lag=stepwise((0, 5000), (90, 1))
    ),
    "a deployment whose feedback has to come first": Site(feedback=lambda t: np.minimum(1, t / 40)),
    "a restart": Site(down=(FAULT, FAULT + 4)),
    "a worker that was away catches up": Site(
        traffic=stepwise((FAULT, 0), (FAULT + 60, 12), (FAULT + 66, 1)),
        lag=stepwise((FAULT + 60, 2000), (FAULT + 66, 1)),
        down=(FAULT, FAULT + 60),
    ),
    "a small fall of each figure": Site(
        feedback=since(0.7),
        share_b=since(0.3),
        ndcg_b=since(0.7),
        duplicated=since(10.0),
        empty=since(2.0),
        fallback=since(2.5),
    ),
    "a campaign ends": Site(traffic=since(0.05)),
    "a small site loses a variant": Site(slates=3, session=3, share_b=since(0.0)),
}


@pytest.mark.parametrize(
    "story",
    [pytest.param(story, marks=[pytest.mark.slow] * (story == LONG)) for story in QUIET],
)
def test_no_alert_on_traffic_fires_on(story, tmp_path):
    site = QUIET[story]
    firing(tmp_path, site.series(), {site.minutes: ""}, query=EVER_FIRED, minutes=site.step)


def test_a_variant_that_rests_every_night_is_told_once(tmp_path):
    """What was so at this time yesterday is a rhythm."""
    site = Site(3 * DAY, step=5, share_b=closed_at_night)
    nights = {DAY + 4 * HOUR: "StreamevalSegmentStopped", 2 * DAY + 4 * HOUR: ""}
    firing(tmp_path, site.series(), nights, minutes=5)


def test_a_partition_that_moves_is_no_change_of_traffic(tmp_path):
    """The first worker hands half of its partitions to a second one."""
    first = Site(traffic=since(0.5))
    second = Site(traffic=lambda t: np.where(t < FAULT, 0.0, 0.5), instance="b", seed=1)
    together = first.series() | second.series()
    firing(tmp_path, together, {6 * HOUR: ""}, query=EVER_FIRED)


def test_traffic_that_waits_to_be_read_has_not_stopped(tmp_path):
    """The worker hangs: records wait, and another alert says so."""
    site = Site(traffic=since(0.0), lag=lambda t: 1 + np.maximum(t - FAULT, 0) * 30.0)
    firing(tmp_path, site.series(), {FAULT + 30: ""}, query=TRAFFIC)


def by_surface(name: str) -> list[str]:
    """The series of a segment with a second dimension, and the totals that show the same."""
    if "variant=" not in name:
        return [name]
    placed = re.sub(r'variant="(\w)"', r'variant="\1", surface="home"', name)
    if "_total{" in name:  # counters have no totals: their segments add up
        return [placed]
    return [
        placed,
        placed.replace('"home"', '"__all__"'),
        re.sub(r'variant="B"', 'variant="__all__"', placed),
        re.sub(r'variant="B", surface="home"', 'variant="__all__", surface="__all__"', placed),
    ][: 4 if 'variant="B"' in name else 2]


@pytest.mark.parametrize("alert", ["StreamevalRateCollapsed", "StreamevalFallbacks"])
def test_a_fault_of_a_segment_is_not_told_of_its_totals_again(alert, tmp_path):
    path = tmp_path / "rules.yml"
    path.write_text(rules(Settings(dimensions=("variant", "surface"))), encoding="utf-8")
    timeline = {
        placed: values
        for name, values in replace(FIRES[alert], minutes=FAULT + 30).series().items()
        for placed in by_surface(name)
    }
    assert any('variant="__all__", surface="__all__"' in name for name in timeline)
    firing(tmp_path, timeline, {FAULT + 30: alert}, rules=path)
    of_totals = 'group by (alertname) (ALERTS{surface="__all__"} or ALERTS{variant="__all__"})'
    firing(tmp_path, timeline, {FAULT + 30: ""}, query=of_totals, rules=path)
