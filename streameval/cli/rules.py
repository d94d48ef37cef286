"""Prometheus' recording rules and alerts, for the dimensions and intervals of a configuration.

`rules.yml` beside this file holds the text and the alerts, with gaps to fill (`@recorded`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from string import Template
from textwrap import indent
from typing import TYPE_CHECKING, Final

from streameval.base.limits import ALL
from streameval.core.merged_segments import totals_of
from streameval.core.metrics import MEAN_SECTIONS, RATES

if TYPE_CHECKING:
    from streameval.config.settings import Settings

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


_HOUR: Final = 3_600_000
_HALF_AN_HOUR: Final = 1_800_000
_DAY: Final = 86_400_000
# Weeks that a figure is compared with.
_WEEKS: Final = 4
# Standard errors of a fall: at 4 a month without any told of one in 60 sites.
_FAR: Final = 4.25


class _Gaps(Template):
    delimiter = "@"


def rules(settings: Settings, runbook: str | None = None) -> str:
    """Return the YAML of the recording rules and alerts.

    `runbook` is the address of the page docs/operations.md, where each alert has a heading; by
    default each worker's own.
    """
    runbook = runbook or f"{settings.pages_url}/runbook"
    text = files("streameval.cli").joinpath("rules.yml").read_text(encoding="utf-8")
    dimensions = settings.dimensions
    filled = _Gaps(text).substitute(
        recorded="\n".join(_recordings(dimensions)),
        usual="\n".join(_usual(dimensions, _live(settings))),
        rates="\n              or\n".join(
            _collapse(rate.name, rate.weight, "feedback") for rate in RATES
        ),
        ndcg=_collapse("ndcg", "slates", "k"),
        weeks="\n".join(_weeks(settings)),
        part_fell=_fell("part", unless_alike=True),
        whole_fell=_fell("whole"),
        empty=_rise("empty_rate"),
        fallback=_rise("fallback_rate"),
        and_dimensions="".join(f", {name}" for name in dimensions),
        segment=", ".join(f"{name}={{{{ $labels.{name} }}}}" for name in dimensions) or "all",
        watermark_lead=_FOUR_MINUTES + settings.max_clock_skew // 1000,
        checkpoint_age=max(_CHECKPOINT_AGE, 3 * settings.checkpoint_interval // 1000),
    )
    return re.sub(
        r"- alert: (\w+)\n(?:.*\n)*?        annotations:\n",
        lambda alert: f"{alert[0]}          runbook_url: {runbook}#{alert[1].lower()}\n",
        filled,
    )


def _live(settings: Settings) -> str:
    """Select live figures that show a fault soon: of windows up to an hour, or the shortest.

    They are of segments: a fault is one alert for each segment, and not one more for each total.
    """
    windows = sorted(settings.definition().windows, key=lambda window: window.size)
    chosen = [window.name for window in windows if window.size <= _HOUR] or [windows[0].name]
    segments = "".join(f', {name}!="{ALL}"' for name in _with_totals(settings))
    return f'{{basis="live", window=~"{"|".join(chosen)}"{segments}}}'


def _with_totals(settings: Settings) -> tuple[str, ...]:
    """Return the dimensions that have totals."""
    return settings.dimensions if totals_of(settings.dimensions) else ()


def _recordings(dimensions: tuple[str, ...]) -> Iterator[str]:
    by, of_window = (
        ", ".join(("job", "namespace", "window", *basis, *dimensions)) for basis in (("basis",), ())
    )
    yield "      # Counts: users, impressions and slates of a window are distinct by construction."
    counts = [(count, section.label) for section in MEAN_SECTIONS for count in section.counts]
    for count, label in sorted(counts, key=lambda each: each[0].by_label):
        yield _sum(count.name, f"{by}, {label}" if count.by_label else by)
    for section in MEAN_SECTIONS:
        yield f"      # The section {section.name}."
        for mean in section.means:
            name = mean.series or mean.name
            if mean.weight == "positives":  # they have the label, too
                yield from _mean(name, mean.weight, f"{by}, {section.label}")
            else:
                yield from _mean(name, mean.weight, by, section.label)
    yield _MATURITY.format(by=of_window)


def _sum(count: str, by: str) -> str:
    return _record(
        f"job:streameval_window_{count}:sum", f"sum by ({by}) (streameval_window_{count})"
    )


def _mean(name: str, weight: str, by: str, label: str = "") -> Iterator[str]:
    """Write a mean and its standard error; `label` is one that the weight lacks."""
    weights = f"streameval_window_{weight}"
    joined = f" ignoring ({label}) group_left ()" if label else ""
    both = f"{by}, {label}" if label else by
    weighted = f"streameval_{{}} *{joined} {weights}"
    for figure, total in (
        (name, f"sum by ({both}) ({weighted})"),
        (f"{name}_stderr", f"sqrt(sum by ({both}) (({weighted}) ^ 2))"),
    ):
        yield _record(
            f"job:streameval_{figure}:mean",
            f"{total.format(figure)}\n  /{joined}\nsum by ({by}) ({weights})",
        )


def _usual(dimensions: tuple[str, ...], live: str) -> Iterator[str]:
    """Write the stream as it is now, as it usually is, and the first as a share of the second."""
    requests = "job:streameval_requests:rate10m"
    yield "      # Slates and single impressions, without feedback."
    yield _record(requests, _per_second('events_total{event!="feedback"}'))
    yield "      # While a minute of work waits, the rate of reading says nothing of the producers."
    behind = "job:streameval_behind:lag"
    yield _record(behind, f"sum by (job, namespace) (streameval_lag) > 60 * {requests} > 1000")
    at_pace = "job:streameval_requests_at_pace:rate10m"
    yield _record(at_pace, f"{requests}\n  unless max_over_time({behind}[20m])")
    yield from _usual_and_now("requests", requests, at_pace)
    yield "      # Feedback for each slate or single impression, and each kind of it."
    ratio = "/ on (job, namespace) group_left ()"
    for name, by in (("feedback", ()), ("feedback_kind", ("feedback",))):
        series = f"job:streameval_{name}:per_request"
        rate = _per_second("feedback_total", *by)
        yield _record(series, f"{rate}\n  {ratio} ({requests} > 0)")
        yield from _usual_and_now(name, series)
    yield "      # The share of impressions that each value of each dimension has."
    impressions = "job:streameval_impressions:rate10m"
    yield _record(impressions, _per_second("impressions_total"))
    series = "job:streameval_impressions:share"
    for dimension in dimensions:
        rate = _per_second("impressions_total", dimension)
        named = f'label_replace({rate}, "value", "$1", "{dimension}", "(.*)")'
        yield _record(
            series,
            f"sum by (job, namespace, value) (\n  {named}\n)\n  {ratio} ({impressions} > 0)",
            f"{{dimension: {dimension}}}",
        )
    yield from _usual_and_now("impressions", series)
    yield "      # Live figures."
    for figure in (*(rate.name for rate in RATES), "ndcg"):
        yield from _usual_and_now(figure, f"job:streameval_{figure}:mean{live}", vanishes=False)
    for figure in ("empty_rate", "fallback_rate"):
        yield _usually(figure, f"job:streameval_{figure}:mean{live}")


def _per_second(counter: str, *by: str) -> str:
    return f"sum by ({', '.join(('job', 'namespace', *by))}) (rate(streameval_{counter}[10m]))"


def _usual_and_now(name: str, now: str, past: str = "", *, vanishes: bool = True) -> Iterator[str]:
    """Write what `now` usually is (by `past`, a cleaner series), and `now` as a share of it.

    A series that `vanishes` counts as 0 then: without it, a fault would end with a restart.
    """
    usual = f"job:streameval_{name}:usual"
    yield _usually(name, past or now)
    filled = f"({now} or {usual} * 0)" if vanishes and not past else now
    yield _record(f"job:streameval_{name}:of_usual", f"{filled}\n  / ({usual} > 0)")


def _usually(name: str, series: str) -> str:
    """Write the median of the last day without the last half hour, of a series an hour old."""
    median = f"quantile_over_time(0.5, {series}[1d:15m] offset 30m)"
    return _record(
        f"job:streameval_{name}:usual",
        f"{median}\n  and present_over_time({series}[1h:15m] offset 1h)",
    )


def _collapse(figure: str, weight: str, label: str) -> str:
    """Write the condition that a live mean is far below its usual value."""
    usual, mean, of_usual = (
        f"job:streameval_{figure}:{kind}" for kind in ("usual", "mean", "of_usual")
    )
    condition = f"""\
{of_usual} < 0.5
  and {usual} * (1 - {of_usual}) ^ 2
    * ignoring ({label}) group_left () job:streameval_window_{weight}:sum > 36
  unless {usual} - {mean} <= 4 * job:streameval_{figure}_stderr:mean
  unless max_over_time({of_usual}[1h] offset 23h30m) < 0.5"""
    return indent(condition, " " * 14)


def _weeks(settings: Settings) -> Iterator[str]:
    """Write matured figures by part and as a whole, and how far they fell beside past weeks."""
    dimensions, windows = settings.dimensions, settings.definition().windows
    apt = [window.name for window in windows if _HALF_AN_HOUR <= window.size <= _DAY]
    names = apt or [max(windows, key=lambda window: window.size).name]
    matured = f'basis="matured", window=~"{"|".join(names)}"'
    for figure, weight in (*((rate.name, rate.weight) for rate in RATES), ("ndcg", "slates")):
        label = "k" if figure == "ndcg" else "feedback"
        chosen = matured + (f', k="{settings.ks[-1]}"' if figure == "ndcg" else "")
        named = f"{{figure: {figure}}}"
        for name in (figure, f"{figure}_stderr"):
            series = f"job:streameval_figure{name.removeprefix(figure)}"
            of_parts, of_all = _parts(dimensions, f"job:streameval_{name}:mean{{{{{chosen}{{}}}}}}")
            if dimensions:
                yield _record(f"{series}:part", of_parts, named)
            if len(dimensions) == 1:
                weights = f"job:streameval_window_{weight}:sum{{{matured}}}"
                weighted = f"{of_all} * ignoring ({label}) group_left () {weights}"
                total = f"sum without ({dimensions[0]}) ({weights})"
                over = f"\n  / ignoring ({label}) group_left () {total}"
                by = f"sum without ({dimensions[0]})"
                of_all = (
                    f"{by} ({weighted}){over}"
                    if name == figure
                    else f"sqrt({by} (({weighted}) ^ 2)){over}"
                )
            yield _record(f"{series}:whole", of_all, named)
    for level in ("part", "whole") if dimensions else ("whole",):
        yield from _beside_the_weeks(level)


def _parts(dimensions: tuple[str, ...], series: str) -> tuple[str, str]:
    """Return the series of each value of each dimension, and that of everything.

    `series` has a gap for matchers. With one dimension there is no series of everything.
    """
    if len(dimensions) < 2:
        return series.format(""), series.format("")
    parts = [
        series.format("".join(f', {d}{"!=" if d == own else "="}"{ALL}"' for d in dimensions))
        for own in dimensions
    ]
    everything = series.format("".join(f', {name}="{ALL}"' for name in dimensions))
    return "\n  or ".join(parts), f"sum without ({', '.join(dimensions)}) ({everything})"


def _beside_the_weeks(level: str) -> Iterator[str]:
    """Write the weeks before, their mean, the error of the difference, and the fall as a share."""
    now, error = f"job:streameval_figure:{level}", f"job:streameval_figure_stderr:{level}"
    before, errors = f"{now}_before", f"{error}_before"
    for series, past in ((now, before), (error, errors)):
        # In its first day a window of a day holds less, and other hours, than later.
        weeks = (
            f"label_replace({series} offset {week}w and {series} offset {7 * week + 1}d,"
            f' "week", "{week}", "", "")'
            for week in range(1, _WEEKS + 1)
        )
        yield _record(past, "\n  or ".join(weeks))
    usual = f"{now}_weeks"
    yield _record(usual, f"avg without (week) ({before})")
    count, variance = f"{usual}_count", f"{usual}_variance"
    yield _record(count, f"count without (week) ({before})")
    spread = f"stdvar without (week) ({before}) * {count} / ({count} - 1)"
    by_chance = f"avg without (week) ({errors} ^ 2)"
    yield _record(variance, f"({spread} > 3 * {by_chance})\n  or {by_chance}")
    yield _record(
        f"{usual}_stderr", f"sqrt(({error} ^ 2 > {variance} or {variance}) + {variance} / {count})"
    )
    yield _record(f"{now}_fall", f"1 - {now} / {usual}")


def _fell(level: str, *, unless_alike: bool = False) -> str:
    """Write the condition that a figure fell beside the weeks before."""
    now = f"job:streameval_figure:{level}"
    condition = f"""\
{now}_fall > 0.05
  and {now}_weeks - {now} > {_FAR} * {now}_weeks_stderr"""
    if unless_alike:
        condition += """
  and job:streameval_figure:part_fall
    > on (job, namespace, window, basis, figure, feedback, k) group_left ()
      1.5 * job:streameval_figure:whole_fall"""
    return indent(condition, " " * 12)


def _rise(figure: str) -> str:
    """Write the condition that a live share of the slates is far above its usual value."""
    usual, mean = (f"job:streameval_{figure}:{kind}" for kind in ("usual", "mean"))
    condition = f"""\
{mean} > 2 * {usual} + 0.02
  and ({mean} - {usual}) ^ 2 * job:streameval_window_slates:sum > 36 * {mean}
  unless {mean} - {usual} <= 4 * job:streameval_{figure}_stderr:mean
  unless {mean} < 1.5 * max_over_time({mean}[1h] offset 23h30m)"""
    return indent(condition, " " * 14)


def _record(name: str, expression: str, labels: str = "") -> str:
    """Write a recording rule."""
    written = f"      - record: {name}\n        expr: |\n" + indent(expression, " " * 10)
    return f"{written}\n        labels: {labels}" if labels else written
