"""Figures of windows on the `/metrics` page: every one is a gauge, with its weight beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from streameval.core.definition import Definition
from streameval.core.figures import BASES, SECTIONS, Figures, Row
from streameval.core.merged_segments import Segment
from streameval.core.metrics import MEAN_SECTIONS, Section
from streameval.web.status import ServiceStatus


def gauge(
    name: str,
    text: str,
    labels: Sequence[str] = (),
    samples: Iterable[tuple[Sequence[str], float | None]] = (),
) -> GaugeMetricFamily:
    """Return a gauge of `samples`: label values and a number each; None is left out."""
    family = GaugeMetricFamily(f"streameval_{name}", text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(clean(values), number)
    return family


def single(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge without labels; without a sample if the value is None."""
    return gauge(name, text, samples=[((), value)])


def counter(
    name: str, text: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    """Return a counter of `counts`: label values and a number each."""
    family = CounterMetricFamily(f"streameval_{name}", text, labels=labels)
    for values, count in counts:
        family.add_metric(clean(values), count)
    return family


def clean(values: Sequence[str]) -> list[str]:
    """Replace lone surrogates: a single one would make the whole page fail."""
    return [value.encode("utf-8", "replace").decode() for value in values]


def seconds(milliseconds: int | None) -> float | None:
    """Return a time in seconds."""
    return None if milliseconds is None else milliseconds / 1_000


_NO_FIGURES: Final[Figures] = {name: [] for name in SECTIONS}

Labels = tuple[Any, ...]
"""Label values of a sample: window, basis, segment, and a kind of feedback or a k if it has one."""


@dataclass(frozen=True)
class _Grid:
    """Rows of figures by their labels, and all labels that have a sample.

    Labels are (window, basis, segment, key), the key being a kind of feedback or a k.
    """

    label_names: tuple[str, ...]
    label_sets: Sequence[Labels]
    rows: Mapping[Labels, Row]

    def family(
        self, name: str, text: str, column: str, empty: int | None, scale: float = 1.0
    ) -> Metric:
        """Build the gauge of `scale` times `column`.

        Labels without a row get `empty` (None: no sample).
        """
        family = gauge(name, text, self.label_names)
        for labels in self.label_sets:
            row = self.rows.get(labels)
            value = empty if row is None else row[column]
            if value is not None:
                window, basis, segment, *key = labels
                value = value if scale == 1 else scale * value
                family.add_metric(clean([window, basis, *segment, *map(str, key)]), value)
        return family

    def weights(self) -> _Grid:
        """Drop the key, for the counts that are the same for every key."""
        return _Grid(
            self.label_names[:-1],
            list(dict.fromkeys(labels[:-1] for labels in self.label_sets)),
            {labels[:-1]: row for labels, row in self.rows.items()},
        )


def _grid(status: ServiceStatus, label: str, rows: Sequence[Row], keys: Sequence[Any]) -> _Grid:
    dimensions = status.definition.dimensions
    windows = [window.name for window in status.definition.windows]
    segments = sorted(_segments_seen(status.figures or _NO_FIGURES, dimensions))
    by_labels = {
        (row["window"], row["basis"], _segment(row, dimensions), row.get(label, "")): row
        for row in rows
    }
    # A nowcast may not be known, and is no count of nothing then.
    nowcasts = [labels for labels in by_labels if labels[1] == "nowcast"]
    return _Grid(
        ("window", "basis", *dimensions, label),
        [*product(windows, BASES, segments, keys), *nowcasts],
        by_labels,
    )


def _segments_seen(figures: Figures, dimensions: Sequence[str]) -> set[Segment]:
    """Collect the segments that have an impression in any window: they show in all of them."""
    return {_segment(row, dimensions) for row in (*figures["rates"], *figures["ranking"])}


def _segment(row: Mapping[str, Any], dimensions: Sequence[str]) -> Segment:
    return tuple(row[dimension] for dimension in dimensions)


def sections_of(definition: Definition) -> Iterator[tuple[Section, Sequence[Any]]]:
    """Yield the sections that have figures under a definition, with the values of their label."""
    keys = {"feedback": definition.kinds, "k": definition.ks, "": ("",)}
    for section in MEAN_SECTIONS:
        if not section.optional or section.optional in definition.figures:
            is_valued = section.name == "values"
            yield section, definition.valued_kinds if is_valued else keys[section.label]


def figure_families(status: ServiceStatus) -> Iterator[Metric]:
    """Build the families of figures, all of them gauges."""
    figures = status.figures or _NO_FIGURES
    for section, keys in sections_of(status.definition):
        yield from _section(status, section, figures[section.name], keys)
    if "lists" in status.definition.figures:
        yield from _ranks(status, figures)
    yield _maturity(figures["maturity"], status.definition.dimensions)
    yield from _nowcasts(status, figures)


def _nowcasts(status: ServiceStatus, figures: Figures) -> Iterator[Metric]:
    """Build the gauges that tell how far to trust nowcasts."""
    dimensions = status.definition.dimensions
    for column, text, labels, rows in (
        (
            "observed",
            "Share of the positives expected of the live impressions that have already come",
            ("feedback",),
            figures["nowcast"],
        ),
        (
            "error",
            "Nowcast less matured, divided by matured: the last of each metric",
            ("metric", "feedback", "k"),
            status.nowcast_errors,
        ),
    ):
        names, ratio = ["window", *dimensions, *labels], f"{column}_ratio"
        samples = [([str(row[label]) for label in names], row[ratio]) for row in rows]
        yield gauge(f"nowcast_{ratio}", text, names, samples)


def _section(
    status: ServiceStatus, section: Section, rows: Sequence[Row], keys: Sequence[Any]
) -> Iterator[Metric]:
    """Build the gauges of counts and means."""
    grid = _grid(status, section.label, rows, keys)
    whole = grid.weights()
    if not section.label:
        grid = whole
    for count in section.counts:
        of = grid if count.by_label else whole
        yield of.family(f"window_{count.name}", count.formula, count.name, 0)
    for mean in section.means:
        name = mean.series or mean.name
        yield grid.family(name, mean.formula, mean.name, None, mean.scale)
        text = f"Standard error of {name}, clustered by user"
        yield grid.family(f"{name}_stderr", text, f"{mean.name}_stderr", None, mean.scale)


def _ranks(status: ServiceStatus, figures: Figures) -> Iterator[Metric]:
    """Build the gauges by rank."""
    # Each segment has 21 ranks: one window and basis are enough to see the shape.
    window = max(status.definition.windows, key=lambda one: one.size).name
    dimensions = status.definition.dimensions
    labels = ["window", "basis", *dimensions, "rank"]
    impressions = gauge("window_rank_impressions", "Impressions by rank of the slates", labels)
    positives = gauge(
        "window_rank_positives", "Positives by rank of the slates", [*labels, "feedback"]
    )
    first = status.definition.kinds[0]
    for row in figures["ranks"]:
        if (row["window"], row["basis"]) != (window, "matured"):
            continue
        values = clean([window, "matured", *_segment(row, dimensions), str(row["rank"])])
        positives.add_metric([*values, *clean([row["feedback"]])], row["positives"])
        if row["feedback"] == first:
            impressions.add_metric(values, row["impressions"])
    yield impressions
    yield positives


def _maturity(rows: Sequence[Row], dimensions: Sequence[str]) -> Metric:
    text = "Share of the live impressions whose figures can no longer change"
    samples = (([row["window"], *_segment(row, dimensions)], row["maturity"]) for row in rows)
    return gauge("maturity_ratio", text, ["window", *dimensions], samples)
