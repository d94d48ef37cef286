"""The metrics of experiments: each a ratio of two rows of the sums of final slates.

`row_names` lists the rows that a slate adds to. A metric divides one of them by another, or by the
users of the arm. So a new metric is a row of `metrics_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, MICRO, NANO
from streameval.core.definition import Definition
from streameval.core.metrics import LIST_MEANS, RANKING, VALUE_MEANS
from streameval.core.windows.values import HALF

USERS: Final = "users"
"""The denominator that is no row of the sums: the users of the arm."""


@dataclass(frozen=True, slots=True)
class ExperimentMetric:
    """Σ `numerator` / (`unit` · Σ `denominator`), both names of rows (`row_names`).

    A numerator of values is two rows, the high and the low half of each sum. A share has
    0 <= numerator <= `unit` · denominator in every slate, so it lies in [0, 1].
    """

    name: str
    numerator: tuple[str, ...]
    denominator: str
    unit: int = 1
    lower_is_better: bool = False
    is_share: bool = False


def row_names(definition: Definition) -> tuple[str, ...]:
    """Return the names of the rows of the sums, in their order.

    These are the rows of the aggregates that are `by_worth`, in their order. Then come the values,
    as plain sums.
    """
    return (
        *("impressions", "slates"),
        *(f"positives{{feedback={kind}}}" for kind in definition.kinds),
        "slates_with_positive",
        *(f"{metric.name}@{k}" for k in definition.ks for metric in RANKING),
        *("empty_slates", "short_slates", "fallback_slates", "abandoned_slates"),
        *("positive_items", "ranks_of_positive_items", "positive_items_on_top"),
        *("slates_with_latency", "latency"),
        *(name for kind in definition.valued_kinds for name in _halves(kind)),
    )


def metrics_of(definition: Definition) -> dict[str, ExperimentMetric]:
    """Return every metric that an experiment may name under a definition, by name."""
    found = [
        ExperimentMetric(
            f"positives_per_impression{{feedback={kind}}}",
            (_positives(kind),),
            "impressions",
            is_share=True,
        )
        for kind in definition.kinds
    ]
    found += [
        ExperimentMetric(
            f"{metric.name}@{k}", (f"{metric.name}@{k}",), "slates", NANO, is_share=True
        )
        for k in definition.ks
        for metric in RANKING
    ]
    for kind in definition.valued_kinds:
        for mean in VALUE_MEANS:
            row = _positives(kind) if mean.weight == "positives" else mean.weight
            name = f"{mean.name}{{feedback={kind}}}"
            found.append(ExperimentMetric(name, _halves(kind), row, MICRO))
    found += [
        ExperimentMetric(
            mean.name, (mean.total,), mean.weight, mean.per, mean.lower_is_better, mean.is_share
        )
        for mean in LIST_MEANS
    ]
    return {metric.name: metric for metric in found}


def refusal(name: str, definition: Definition) -> str | None:
    """Return why an experiment cannot have a metric of that name, and what to do; None if it can.

    The line has no subject: who asked for the metric stands before it.
    """
    known = metrics_of(definition)
    if name in known:
        return None
    metric, _, rest = name.partition("{")
    if metric == "positive_rate":
        kind = rest.removeprefix("feedback=").removesuffix("}") or definition.kinds[0]
        return (
            f"{name} needs the sums of each user, which a stream does not keep: take the ratio of"
            f" means, positives_per_impression{{feedback={kind}}}"
        )
    if metric.startswith("value_per_") and not definition.valued_kinds:
        return f"{name}: no positive has a value; write {{kind: …, value: sum}} in positives"
    alike = [one for one in known if one.partition("{")[0].partition("@")[0] == _base(metric)]
    return f"no metric is called {name}; write one of {', '.join(alike or known)}"


def ratio_rows(
    metric: ExperimentMetric, sums: Mapping[str, Ints], users: Ints
) -> tuple[npt.NDArray[np.object_], Ints]:
    """Return numerators and denominators by cluster, (256,) each, of `sums` by name of the row.

    Numerators are Python's integers, because sums of values exceed 64 bits.
    """
    high, *low = (sums[name].astype(object) for name in metric.numerator)
    numerator = (high << HALF) + low[0] if low else high
    return numerator, users if metric.denominator == USERS else sums[metric.denominator]


def named_rows(definition: Definition, sums: Ints | None) -> dict[str, Ints]:
    """Return the rows of `sums`, int64 (rows, 256), by name; zeros for None."""
    names = row_names(definition)
    rows = np.zeros((len(names), CLUSTERS), np.int64) if sums is None else sums
    return dict(zip(names, rows, strict=True))


def _positives(kind: str) -> str:
    return f"positives{{feedback={kind}}}"


def _halves(kind: str) -> tuple[str, str]:
    return f"value_high{{feedback={kind}}}", f"value_low{{feedback={kind}}}"


def _base(metric: str) -> str:
    return metric.partition("@")[0]
