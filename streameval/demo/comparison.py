"""The demo's verdict: the service's figures beside the truth, its counters beside what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from streameval.core.definition import Window
from streameval.demo.scrape import Page
from streameval.demo.simulator import World
from streameval.demo.truth import truth

FIGURES: Final = (
    ("click rate", "positive_rate", {"feedback": "click"}),
    ("like rate", "positive_rate", {"feedback": "like"}),
    ("NDCG@10", "ndcg", {"k": "10"}),
)
"""What people see, the metric's name without its prefix, and its labels beside the common ones; in
the order of `Truth`."""

LIMIT: Final = 4.0
"""How many standard errors a figure may lie from the truth."""


@dataclass(frozen=True, slots=True)
class Span:
    """When the stream began (ms), the window that is compared, and H (ms)."""

    start: int
    window: Window
    horizon: int

    def filled(self, watermark: int) -> int:
        """How much of the matured window (ms) the stream has filled."""
        slide = self.window.slide
        end = (watermark - self.horizon) // slide * slide
        return max(0, end - max(self.start, end - self.window.size))


class Comparison(NamedTuple):
    """One figure of one variant; None is what has not come in yet."""

    variant: str
    label: str
    live: float | None
    matured: float | None
    stderr: float | None
    truth: float | None

    @property
    def distance(self) -> float | None:
        """From the truth, in standard errors."""
        if self.matured is None or self.truth is None or not self.stderr:
            return None
        return (self.matured - self.truth) / self.stderr


def compare(page: Page, world: World, span: Span, live_window: str) -> list[Comparison]:
    """Every figure of every variant, the live one from a shorter window."""
    watermarks = page.by("streameval_watermark_timestamp_seconds", "partition").values()
    filled = span.filled(round(max(watermarks) * 1000)) if watermarks else 0
    expected = truth(world, filled) if filled else {}
    rows = []
    for variant in world.variants:
        truths = expected.get(variant.name, (None,) * len(FIGURES))
        for (label, name, labels), true in zip(FIGURES, truths, strict=True):
            metric = f"streameval_{name}"
            place = {"variant": variant.name, **labels}
            live = place | {"window": live_window, "basis": "live"}
            matured = place | {"window": span.window.name, "basis": "matured"}
            found = (
                page.value(metric, live),
                page.value(metric, matured),
                page.value(f"{metric}_stderr", matured),
            )
            rows.append(Comparison(variant.name, label, *found, true))
    return rows


def within(comparisons: Sequence[Comparison]) -> bool:
    """Whether every figure has matured and lies within `LIMIT` standard errors of the truth."""
    distances = [comparison.distance for comparison in comparisons]
    return all(distance is not None and abs(distance) <= LIMIT for distance in distances)


def fates(page: Page) -> Counter[str]:
    """What the service has done with events, in the words of `Message.fate`; nothing at 0."""
    accepted = sum(page.by("streameval_events_total", "event").values())
    rejected = page.by("streameval_events_rejected_total", "reason")
    counts = {"accepted": accepted, **rejected}
    return Counter({fate: int(count) for fate, count in counts.items() if count})
