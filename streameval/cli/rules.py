"""Prometheus' recording rules and alerts, for the dimensions and intervals of a configuration.

`rules.yml` beside this file holds the text and the alerts, with gaps to fill (`@recorded`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Final

from streameval.core.metrics import RANKING, RATES

if TYPE_CHECKING:
    from streameval.config.settings import Settings

_WEIGHTS: Final = {"positive_rate": "users", "positives_per_impression": "impressions"}
"""The count that weighs a rate; slates weigh every ranking metric."""

_MATURITY: Final = """\
      # How much of the live figures can no longer change.
      - record: job:streameval_maturity_ratio:mean
        expr: |
          sum by ({by}) (streameval_maturity_ratio * ignoring (basis) streameval_window_impressions{{basis="live"}})
            /
          sum by ({by}) (streameval_window_impressions{{basis="live"}})"""  # noqa: E501

_FOUR_MINUTES: Final = 240
_CHECKPOINT_AGE: Final = 900
"""Seconds since a checkpoint at which a restart begins to take noticeably long."""


class _Gaps(Template):
    delimiter = "@"


def rules(settings: Settings) -> str:
    """Return the YAML of the recording rules and alerts."""
    text = files("streameval.cli").joinpath("rules.yml").read_text(encoding="utf-8")
    return _Gaps(text).substitute(
        recorded="\n".join(_recorded(settings.dimensions)),
        watermark_lead=_FOUR_MINUTES + settings.max_clock_skew // 1000,
        checkpoint_age=max(_CHECKPOINT_AGE, 3 * settings.checkpoint_interval // 1000),
    )


def _recorded(dimensions: tuple[str, ...]) -> Iterator[str]:
    by, of_window = (
        ", ".join(("job", "namespace", "window", *basis, *dimensions)) for basis in (("basis",), ())
    )
    yield "      # Counts: users, impressions and slates of a window are distinct by construction."
    for count in ("users", "impressions", "slates", "slates_with_positive"):
        yield _sum(count, by)
    yield _sum("positives", f"{by}, feedback")
    yield "      # Rates of feedback."
    for rate in RATES:
        yield from _mean(rate.name, _WEIGHTS[rate.name], "feedback", by)
    yield "      # Ranking metrics."
    for metric in RANKING:
        yield from _mean(metric.name, "slates", "k", by)
    yield _MATURITY.format(by=of_window)


def _sum(count: str, by: str) -> str:
    return f"""\
      - record: job:streameval_window_{count}:sum
        expr: |
          sum by ({by}) (streameval_window_{count})"""


def _mean(name: str, weight: str, label: str, by: str) -> Iterator[str]:
    """Write a mean and its standard error; `label` is the one that the weight lacks."""
    weights = f"streameval_window_{weight}"
    joined = f"ignoring ({label}) group_left ()"
    weighted = f"streameval_{{}} * {joined} {weights}"
    for figure, total in (
        (name, f"sum by ({by}, {label}) ({weighted})"),
        (f"{name}_stderr", f"sqrt(sum by ({by}, {label}) (({weighted}) ^ 2))"),
    ):
        yield f"""\
      - record: job:streameval_{figure}:mean
        expr: |
          {total.format(figure)}
            / {joined}
          sum by ({by}) ({weights})"""
