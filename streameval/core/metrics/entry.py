"""What every row of the catalogue says about itself, whatever it is computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Cut: TypeAlias = Literal["required", "optional", "none", "recall"]
"""Whether a name takes `@k`: `precision@10` only, `ndcg@10` or `ndcg`, `auc` only.

`recall`: a level of recall in place of k, `interpolated_precision@0.3`; k is in tenths then."""

Sort: TypeAlias = Literal[
    "lists",
    "items",
    "coverage",
    "ratings",
    "rated_items",
    "neighbours",
    "index",
    "sampled",
    "reads",
]
"""What a metric is computed from; `evaluate.input_kinds` says which files that takes."""

UNCUT = 2**31 - 1
"""The k of a metric that is asked for without one: no list is longer."""

UnitSums: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]
"""x and y of each unit, shape (n,) each; both 0 where a unit has no value."""

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of the catalogue: `formula` is one sentence, `source` says whose convention it is.

    `convention` names what sets the figure apart from others of the same name, `undefined` what
    becomes of an input that has no value.
    """

    sort: Sort
    name: str
    formula: str
    source: str
    convention: str
    undefined: str
    cut: Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMetric(Entry, Generic[Data]):
    """A figure Σx/Σy over units (users, lists, queries), or its root where `root` is set.

    `score(data, k)` gives x and y of each unit of `data`. `own`: x/y is what the unit itself has
    of the figure; else a unit has no score of its own, as with errors that are means over pairs.
    """

    score: Callable[[Data, int], UnitSums]
    root: bool = False
    own: bool = True
