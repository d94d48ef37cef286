"""The figures of single slates: the smallest and the largest of them, and those of first lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streameval.base.arrays import Floats, Ints
from streameval.core.definition import Definition
from streameval.core.experiments.first_lists import first_rows, first_share
from streameval.core.experiments.metrics import USERS, metrics_of, row_names


class SlateFigures:
    """The figures of a slate, from its rows: each metric, with the slate as the only one.

    Values and latencies are not among the columns of a slate, and are its *amounts*.
    """

    def __init__(self, definition: Definition) -> None:
        self._rows = {name: number for number, name in enumerate(row_names(definition))}
        self._metrics = list(metrics_of(definition).values())
        amounts = {
            "latency",
            *(f"value_high{{feedback={kind}}}" for kind in definition.valued_kinds),
        }
        by_amount = [one.numerator[0] in amounts for one in self._metrics]
        self._by_amount = np.flatnonzero(by_amount).tolist()
        self._by_columns = np.flatnonzero(~np.array(by_amount)).tolist()
        plain = [self._metrics[number] for number in self._by_columns]
        self._above = [self._rows[one.numerator[0]] for one in plain]
        self._below = [self._rows[one.denominator] for one in plain]
        self._units = np.array([one.unit for one in plain], np.int64)
        self._shares = [one for one in self._metrics if one.is_share]
        _, *rows = first_rows(definition)
        self._denominators = rows[: -len(self._shares)]

    def extremes(
        self, columns: Ints, repeated: Sequence[int] | Ints, amounts: Mapping[str, Floats]
    ) -> Floats:
        """Return the smallest and the largest figures of slates, float64 (2, metrics).

        `columns`, int64 (kinds, rows), are of each kind of slate, and `repeated` tells the kind of
        each slate. `amounts`, float64 (slates,), are by name of the row. NaN: no slate has it.
        """
        found = np.full((2, len(self._metrics)), np.nan)
        figures = _ratios(columns[:, self._above], columns[:, self._below] * self._units)
        found[:, self._by_columns] = _ends(figures)
        users = np.ones(len(repeated))
        for number in self._by_amount:
            metric = self._metrics[number]
            if metric.denominator == USERS:
                below = users
            elif metric.denominator in amounts:
                below = amounts[metric.denominator]
            else:
                below = columns[repeated, self._rows[metric.denominator]].astype(np.float64)
            found[:, number] = _ends(_ratios(amounts[metric.numerator[0]], below * metric.unit))
        return found

    def values_of_first(self, columns: Sequence[int]) -> tuple[int, ...]:
        """Return the values of a slate as a `FirstList`, from its rows."""
        rows = self._rows
        there = [int(columns[rows[name]] > 0) for name in self._denominators]
        shares = [
            first_share(one, columns[rows[one.numerator[0]]], columns[rows[one.denominator]])
            for one in self._shares
        ]
        return (*there, *(share or 0 for share in shares))


def widen(one: Floats, other: Floats) -> Floats:
    """Return the smaller of the first values and the larger of the second; NaN is no value."""
    return np.array([np.fmin(one[0], other[0]), np.fmax(one[1], other[1])])


def _ratios(above: Ints | Floats, below: Ints | Floats) -> Floats:
    found = np.full(above.shape, np.nan)
    np.divide(above, below, out=found, where=below > 0)
    return found


def _ends(figures: Floats) -> Floats:
    """Return the smallest and the largest figure of slates, the first axis."""
    return np.array([np.fmin.reduce(figures), np.fmax.reduce(figures)])
