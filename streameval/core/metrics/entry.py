"""What every row of the catalogue says about itself, whatever it is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

Cut: TypeAlias = Literal["required", "optional", "none"]
"""Whether a name takes `@k`: `ndcg@10` or `ndcg`, `precision@10` only, `auc` only."""

Sort: TypeAlias = Literal[
    "lists", "ratings", "index", "sampled", "neighbours", "items", "coverage", "reads"
]
"""What a metric is computed from; each sort has one class of entries and one class of input."""

UNCUT = 2**31 - 1
"""The k of a metric that is asked for without one: no list is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of the catalogue: `formula` is one sentence, `source` says whose convention it is.

    `convention` names what sets the figure apart from others of the same name, `undefined` what
    becomes of an input that has no value.
    """

    sort: ClassVar[Sort]

    name: str
    formula: str
    source: str
    convention: str
    undefined: str
    cut: Cut
