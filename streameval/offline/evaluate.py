"""Figures of ranked lists: sums over batches, divided once.

A list's score is a double in integer nano-units; sums by segment and cluster of users are integers
(`core.metrics`), so batches, files and their order do not change a bit, and memory follows the
number of segments and not the size of the files. Intervals are those of the delta method over
clusters of users.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streameval.core.errors import InputError
from streameval.core.figures import ratio_stderr
from streameval.core.limits import CLUSTERS, NANO
from streameval.core.metrics import CATALOGUE, RANKING, Metric, nano
from streameval.core.metrics.entry import UNCUT
from streameval.core.metrics.lists import MeanMetric
from streameval.offline.batches import Batch, Floats, Ints
from streameval.offline.intervals import Arm, interval

MAX_SEGMENTS: Final = 1_000
"""Segments of one run: 4 KB each and figure. `--by user` is a mistake, not a question."""

DEFAULT: Final = tuple(f"{metric.name}@10" for metric in RANKING)
"""What is computed where nothing is asked for: the stream's metrics."""

_NAME: Final = re.compile(r"(?P<metric>[a-z0-9_]+)(?:@(?P<k>[1-9][0-9]{0,8}))?")

LIST_METRICS: Final[dict[str, Metric | MeanMetric]] = {
    entry.name: entry for entry in CATALOGUE if isinstance(entry, Metric | MeanMetric)
}
"""The rows of the catalogue that are computed from ranked lists, by name."""


Column: TypeAlias = tuple[Metric, int]
"""A metric and its k: a score for each list."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A figure by its name, `ndcg@10`; k is `UNCUT` where the name has none."""

    name: str
    entry: Metric | MeanMetric
    k: int

    @classmethod
    def parse(cls, name: str) -> Asked:
        """Read a name. Raises `InputError` where the catalogue has no such figure."""
        name = name.strip()
        found = _NAME.fullmatch(name)
        entry = LIST_METRICS.get(found["metric"]) if found else None
        if found is None or entry is None:
            raise InputError(
                f"{name}: no such figure of ranked lists: a name of the catalogue"
                " (streameval evaluate --list), with a cut, such as ndcg@10"
            )
        if found["k"] is None and entry.cut == "required":
            raise InputError(f"{name}: needs a cut, such as {entry.name}@10")
        if found["k"] is not None and entry.cut == "none":
            raise InputError(f"{name}: {entry.name} has no cut")
        return cls(name, entry, int(found["k"]) if found["k"] else UNCUT)

    def columns(self) -> list[Column]:
        """What lists are scored by: itself, or the parts of a figure that is made of means."""
        parts = (self.entry,) if isinstance(self.entry, Metric) else self.entry.parts
        return [(part, self.k) for part in parts]


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over `n` lists and its interval, each None where it is undefined.

    `value` is that of `n` lists with a value; bounds need two clusters of users.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int

    def document(self) -> dict[str, float | int | None]:
        """What `--json` prints of it."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


@dataclass(slots=True)
class Evaluation:
    """Sums of the figures `asked` for, over all and by the values of the dimensions `by`.

    `columns` are the scores they need, numbered. `segments` holds Σ score in nano-units and the
    number of lists with a score, int64 (CLUSTERS, columns) each. `lists` holds each list's scores
    if `per_list`, and grows with the file then.
    """

    asked: Sequence[Asked]
    by: Sequence[str] = ()
    per_list: bool = False
    segments: dict[tuple[str, ...], tuple[Ints, Ints]] = field(default_factory=dict)
    lists: dict[str, dict[str, float | None]] = field(default_factory=dict)
    columns: dict[Column, int] = field(init=False)

    def __post_init__(self) -> None:
        needed = dict.fromkeys(column for asked in self.asked for column in asked.columns())
        self.columns = {column: number for number, column in enumerate(needed)}

    def add(self, batch: Batch) -> None:
        """Score a batch and add its sums."""
        if not len(batch.relevant):
            return
        scores = batch.scores(list(self.columns))
        defined = ~np.isnan(scores)
        units = nano(np.where(defined, scores, 0.0))
        self._add_sums(batch, units, defined)
        if self.per_list:
            self._add_lists(batch, scores)

    def _add_sums(self, batch: Batch, units: Ints, defined: npt.NDArray[np.bool_]) -> None:
        """Add up rows of the same segment and cluster, which sorting puts side by side."""
        keys = batch.segments * CLUSTERS + batch.clusters
        order = np.argsort(keys, kind="stable")
        found = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
        sums = np.add.reduceat(units[order], starts, axis=0)
        counts = np.add.reduceat(defined[order], starts, axis=0, dtype=np.int64)
        numbers, clusters = np.divmod(found[starts], CLUSTERS)
        for number in np.unique(numbers):
            rows = numbers == number
            self.add_sums(batch.names[number], clusters[rows], sums[rows], counts[rows])

    def add_sums(self, name: tuple[str, ...], clusters: Ints, sums: Ints, counts: Ints) -> None:
        """Add what a segment has in `clusters` (n,), all different; sums and counts (n, columns).

        So sums of several scans become those of one. Raises `InputError` beyond `MAX_SEGMENTS`.
        """
        x, y = self._segment(name)
        x[clusters] += sums
        y[clusters] += counts

    def _segment(self, name: tuple[str, ...]) -> tuple[Ints, Ints]:
        known = self.segments.get(name)
        if known is None:
            if len(self.segments) == MAX_SEGMENTS:
                raise InputError(
                    f"--by {','.join(self.by)}: more than {MAX_SEGMENTS:,} segments: split by"
                    " something with fewer values"
                )
            shape = (CLUSTERS, len(self.columns))
            known = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
            self.segments[name] = known
        return known

    def _add_lists(self, batch: Batch, scores: Floats) -> None:
        assert batch.ids is not None, "lists are told apart by their names"
        # A figure made of means has no score for a list.
        shown = [
            (asked.name, self.columns[asked.entry, asked.k])
            for asked in self.asked
            if isinstance(asked.entry, Metric)
        ]
        for name, row in zip(batch.ids, scores.tolist(), strict=True):
            if name in self.lists:
                raise InputError(f"{name}: two lists of this name, so --per-list cannot show both")
            self.lists[name] = {
                metric: None if math.isnan(row[column]) else row[column] for metric, column in shown
            }

    def figures(self, segment: tuple[str, ...] | None = None) -> dict[str, Figure]:
        """The figures by name, of one segment or of all lists."""
        chosen = [self.segments[segment]] if segment is not None else list(self.segments.values())
        shape = (CLUSTERS, len(self.columns))
        x = sum((sums for sums, _ in chosen), start=np.zeros(shape, np.int64))
        y = sum((counts for _, counts in chosen), start=np.zeros(shape, np.int64))
        found = {}
        for asked in self.asked:
            parts = [
                _figure(x[:, n], y[:, n]) for n in map(self.columns.__getitem__, asked.columns())
            ]
            entry = asked.entry
            found[asked.name] = parts[0] if isinstance(entry, Metric) else _combined(entry, parts)
        return found

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        answer: dict[str, Any] = {"figures": _documents(self.figures())}
        if self.by:
            answer["segments"] = [
                {**dict(zip(self.by, name, strict=True)), "figures": _documents(self.figures(name))}
                for name in sorted(self.segments)
            ]
        if self.per_list:
            answer["lists"] = {name: self.lists[name] for name in sorted(self.lists)}
        return answer


def evaluate(
    batches: Iterable[Batch],
    names: Sequence[str] = DEFAULT,
    by: Sequence[str] = (),
    *,
    per_list: bool = False,
) -> Evaluation:
    """The figures `names` of ranked lists. Raises `InputError`."""
    evaluation = Evaluation([Asked.parse(name) for name in names], by, per_list)
    for batch in batches:
        evaluation.add(batch)
    return evaluation


def _documents(figures: dict[str, Figure]) -> dict[str, Any]:
    return {name: figure.document() for name, figure in figures.items()}


def _figure(x: Ints, y: Ints) -> Figure:
    """Σx/Σy of clusters, x in nano-units."""
    n = int(y.sum())
    if n == 0:
        return Figure(None, None, None, 0)
    value = int(x.sum()) / (n * NANO)
    stderr = ratio_stderr(x, y)
    if stderr is None:
        return Figure(value, None, None, n)
    clusters = int(np.count_nonzero(y))
    bounds = interval(Arm(value, stderr / NANO, float("nan"), clusters, clusters))
    return Figure(value, bounds.low, bounds.high, n)


def _combined(metric: MeanMetric, parts: Sequence[Figure]) -> Figure:
    """A figure of means; no formula gives its interval."""
    means = [part.value for part in parts]
    value = None if None in means else metric.combine(*means)
    return Figure(value, None, None, min(part.n for part in parts))
