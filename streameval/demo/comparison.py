"""The demo's result: figures beside the truth, the service's counters beside the sent events."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from streameval.core.definition import Window
from streameval.demo.simulator import World
from streameval.demo.truth import truth
from streameval.experiments.words import Scorecard

_SAMPLE: Final = re.compile(r"^(streameval_\w+)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]


class Page:
    """The samples of one scrape, by name and labels."""

    def __init__(self, text: str) -> None:
        self._samples: dict[tuple[str, Labels], float] = {}
        for line in text.splitlines():
            match = _SAMPLE.match(line)
            if match:
                name, labels, value = match.groups()
                self._samples[name, frozenset(_LABEL.findall(labels or ""))] = float(value)

    def value(self, name: str, labels: Mapping[str, str]) -> float | None:
        """Return one sample; None if the page lacks it."""
        return self._samples.get((name, frozenset(labels.items())))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the samples of a name, by their value of one label."""
        return {
            dict(labels).get(label, ""): value
            for (sample, labels), value in self._samples.items()
            if sample == name
        }


def scrape(address: str) -> Page:
    """Read `address`/metrics; raises `OSError` if the worker does not answer."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:  # noqa: S310
        return Page(answer.read().decode())


FIGURES: Final = (
    ("click rate", "click_rate", "positive_rate", {"feedback": "click"}),
    ("like rate", "like_rate", "positive_rate", {"feedback": "like"}),
    ("NDCG@10", "ndcg_10", "ndcg", {"k": "10"}),
)
"""Each figure's heading, field of `Truth`, metric without its prefix, and labels beside the common
ones."""

EXPERIMENT: Final = {
    "positives_per_impression{feedback=click}": "clicks_per_impression",
    "ndcg@10": "ndcg_10",
    "latency_ms_mean": "latency_ms",
    "empty_rate": "empty_rate",
}
"""The metrics of the experiment, the primary one first, and their fields of `Truth`. They weigh
slates alike, so it does not matter how long the experiment has run."""

LIMIT: Final = 4.0
"""Standard errors that a figure may lie from the truth."""


@dataclass(frozen=True, slots=True)
class Span:
    """The start of the stream (ms), the window to compare, and H (ms)."""

    start: int
    window: Window
    horizon: int

    def filled(self, watermark: int) -> int:
        """Return the part of the matured window (ms) that the stream has filled."""
        slide = self.window.slide
        end = (watermark - self.horizon) // slide * slide
        return max(0, end - max(self.start, end - self.window.size))


class Comparison(NamedTuple):
    """One figure of one variant; None stands for a value that has not come yet."""

    variant: str
    label: str
    live: float | None
    matured: float | None
    stderr: float | None
    truth: float | None

    @property
    def distance(self) -> float | None:
        """The distance from the truth, in standard errors."""
        if self.matured is None or self.truth is None or not self.stderr:
            return None
        return (self.matured - self.truth) / self.stderr


def compare(page: Page, world: World, span: Span, live_window: str) -> list[Comparison]:
    """Compare every figure of every variant; live figures have a shorter window."""
    watermarks = page.by("streameval_watermark_timestamp_seconds", "partition").values()
    filled = span.filled(round(max(watermarks) * 1000)) if watermarks else 0
    expected = truth(world, filled) if filled else {}
    rows = []
    for variant in world.variants:
        for label, field, name, labels in FIGURES:
            true = getattr(expected[variant.name], field) if filled else None
            metric = f"streameval_{name}"
            common = {"variant": variant.name, **labels}
            live = common | {"window": live_window, "basis": "live"}
            matured = common | {"window": span.window.name, "basis": "matured"}
            found = (
                page.value(metric, live),
                page.value(metric, matured),
                page.value(f"{metric}_stderr", matured),
            )
            rows.append(Comparison(variant.name, label, *found, true))
    return rows


def within(comparisons: Sequence[Comparison]) -> bool:
    """Tell whether every figure has matured within `LIMIT` standard errors of the truth."""
    distances = [comparison.distance for comparison in comparisons]
    return all(distance is not None and abs(distance) <= LIMIT for distance in distances)


def differences(world: World) -> dict[str, float]:
    """Compute the true differences of the experiment's metrics, second variant − first."""
    control, treatment = truth(world, 1).values()
    return {
        metric: getattr(treatment, field) - getattr(control, field)
        for metric, field in EXPERIMENT.items()
    }


def bounds_hold(card: Scorecard, true: Mapping[str, float]) -> bool:
    """Tell whether the true differences lie between all bounds that are known so far."""
    return all(
        row["low"] <= true[row["metric"]] <= row["high"]
        for row in card.rows
        if row["metric"] in true and row["low"] is not None
    )


def fates(page: Page) -> Counter[str]:
    """Count the service's events by fate, as in `Message.fate`; without zeros."""
    accepted = sum(page.by("streameval_events_total", "event").values())
    rejected = page.by("streameval_events_rejected_total", "reason")
    counts = {"accepted": accepted, **rejected}
    return Counter({fate: int(count) for fate, count in counts.items() if count})
