"""The row of a metric: everything that `evaluate`, help and docs need to know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Concatenate, Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.inputs import Input, Parameter, Table

Cutoff: TypeAlias = Literal["required", "optional", "none", "recall"]
"""Whether a name takes `@k`: `precision@10` only, `ndcg@10` or `ndcg`, `auc` only.

`recall`: the name takes a level of recall instead of k, `interpolated_precision@0.3`. Then k is in
tenths."""

InputKind: TypeAlias = Literal[
    "lists",
    "items",
    "judged_items",
    "scored_items",
    "labelled_scores",
    "ranked_arms",
    "item_counts",
    "users",
    "ratings",
    "rated_items",
    "rated_pairs",
    "neighbours",
    "index",
    "sampled",
    "reads",
    "rounds",
]
"""The data that a metric takes; `evaluate.input_kinds` says which files give it."""

UNCUT = 2**31 - 1
"""The k of a metric that is asked for without one: no list is longer."""

UnitSums: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]
"""x and y of each unit, shape (n,) each; both 0 where a unit has no value."""

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The row of a metric: `formula` is one sentence, `source` says whose convention it is.

    `convention` names the difference from other figures of the same name. `undefined` says how an
    input without a value counts. `needs` names tables beside the tables of the input kind.
    `score` takes each of `parameters` by name; `convention` may hold their values in braces.
    `lower_is_better`: it is an error, and not a worth. `is_share`: it is a mean of values in
    [0, 1], so its bounds lie there too.
    """

    input_kind: InputKind
    name: str
    formula: str
    source: str
    convention: str
    undefined: str
    cutoff: Cutoff
    needs: tuple[Table, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    values: tuple[tuple[Parameter, Any], ...] = ()
    score: Callable[..., Any] | None = None
    lower_is_better: bool = False
    is_share: bool = False

    def required(self) -> list[Input]:
        """List the inputs without which the metric cannot be computed."""
        return [*self.needs, *(one for one in self.parameters if one.default is None)]

    def with_values(self, values: Mapping[Parameter, Any]) -> Self:
        """Return the row with its parameters set: to `values`, else to their defaults.

        A parameter that has neither stays open. Raises `InputError` for a value out of bounds.
        """
        if not self.parameters:
            return self
        assert self.score is not None, "a metric with parameters has a function that takes them"
        chosen = {one: values.get(one, one.default) for one in self.parameters}
        known = [(one, one.read(value)) for one, value in chosen.items() if value is not None]
        by_name = {one.name: value for one, value in known}
        return replace(
            self,
            score=partial(self.score, **by_name),
            convention=self.convention.format(**by_name),
            values=tuple(known),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMetric(Entry, Generic[Data]):
    """A figure Σx/Σy over units (users, lists, queries), or its root where `root` is set.

    `score(data, k)` returns x and y of each unit of `data`. With `own` a unit has the score x/y
    itself. Without it a unit only has a part in the figure, as with means over pairs.
    """

    score: Callable[Concatenate[Data, int, ...], UnitSums]
    root: bool = False
    own: bool = True
