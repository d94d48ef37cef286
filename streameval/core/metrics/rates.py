"""The rates of feedback: figures over users and impressions, not over ranked lists.

They need no kernel: sums of integers, divided when they are read (`figures`). Their formulas stand
here because this is the catalogue that help, docs and Prometheus read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A row of the catalogue: a rate for each configured kind of positive."""

    name: str
    formula: str
    source: str


POSITIVE_RATE = Rate(
    name="positive_rate",
    formula="Mean over users with an impression of their positives divided by their impressions",
    source="Gorse's documented online evaluation, (1/|U|) sum over u of |R^p_u| / |R^r_u|",
)
POSITIVES_PER_IMPRESSION = Rate(
    name="positives_per_impression",
    formula="Positives divided by impressions, pooled over users",
    source="click-through rate",
)
