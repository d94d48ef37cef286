"""Figures of ranked lists: sums over batches, divided once.

A list's score is a double in integer nano-units; sums by segment and cluster of users are integers
(`core.metrics`), so batches, files and their order do not change a bit, and memory follows the
number of segments and not the size of the files. Intervals are those of the delta method over
clusters of users.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streameval.core.errors import InputError
from streameval.core.figures import ratio_stderr
from streameval.core.limits import CLUSTERS, NANO
from streameval.core.metrics import CATALOGUE, RANKING, Metric, nano
from streameval.core.metrics.entry import UNCUT
from streameval.offline.batches import Batch, Floats, Ints
from streameval.offline.intervals import Arm, interval

MAX_SEGMENTS: Final = 1_000
"""Segments of one run: 4 KB each and figure. `--by user` is a mistake, not a question."""

DEFAULT: Final = tuple(f"{metric.name}@10" for metric in RANKING)
"""What is computed where nothing is asked for: the stream's metrics."""

_NAME: Final = re.compile(r"(?P<metric>[a-z0-9_]+)(?:@(?P<k>[1-9][0-9]{0,8}))?")

LIST_METRICS: Final = {entry.name: entry for entry in CATALOGUE if isinstance(entry, Metric)}
"""The rows of the catalogue that score ranked lists, by name."""


@dataclass(frozen=True, slots=True)
class Column:
    """A figure by its name, `ndcg@10`; k is `UNCUT` where the name has none."""

    name: str
    metric: Metric
    k: int

    @classmethod
    def parse(cls, name: str) -> Column:
        """Read a name. Raises `InputError` where the catalogue has no such figure."""
        found = _NAME.fullmatch(name.strip())
        metric = LIST_METRICS.get(found["metric"]) if found else None
        if found is None or metric is None:
            raise InputError(
                f"{name}: no such figure of ranked lists: a name of the catalogue"
                " (streameval evaluate --list), with a cut, such as ndcg@10"
            )
        if found["k"] is None and metric.cut == "required":
            raise InputError(f"{name}: needs a cut, such as {metric.name}@10")
        if found["k"] is not None and metric.cut == "none":
            raise InputError(f"{name}: {metric.name} has no cut")
        return cls(name.strip(), metric, int(found["k"]) if found["k"] else UNCUT)


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
    """Sums of the figures in `columns`, over all and by the values of the dimensions `by`.

    `segments` holds Σ score in nano-units and the lists with a score, int64 (CLUSTERS, columns)
    each. `lists` holds each list's scores if `per_list`, and grows with the file then.
    """

    columns: Sequence[Column]
    by: Sequence[str] = ()
    per_list: bool = False
    segments: dict[tuple[str, ...], tuple[Ints, Ints]] = field(default_factory=dict)
    lists: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        """Score a batch and add its sums."""
        if not len(batch.relevant):
            return
        scores = batch.scores([(column.metric, column.k) for column in self.columns])
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
            x, y = self._segment(batch.names[number])
            rows = numbers == number
            x[clusters[rows]] += sums[rows]
            y[clusters[rows]] += counts[rows]

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
        names = [column.name for column in self.columns]
        for name, row in zip(batch.ids, scores.tolist(), strict=True):
            if name in self.lists:
                raise InputError(f"{name}: two lists of this name, so --per-list cannot show both")
            self.lists[name] = {
                metric: None if score != score else score  # noqa: PLR0124  # NaN
                for metric, score in zip(names, row, strict=True)
            }

    def figures(self, segment: tuple[str, ...] | None = None) -> dict[str, Figure]:
        """The figures by name, of one segment or of all lists."""
        chosen = [self.segments[segment]] if segment is not None else list(self.segments.values())
        shape = (CLUSTERS, len(self.columns))
        x = sum((sums for sums, _ in chosen), start=np.zeros(shape, np.int64))
        y = sum((counts for _, counts in chosen), start=np.zeros(shape, np.int64))
        return {
            column.name: _figure(x[:, number], y[:, number])
            for number, column in enumerate(self.columns)
        }

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
    evaluation = Evaluation([Column.parse(name) for name in names], by, per_list)
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
