"""The 95 % interval of each mean of a row: one for the page, the API, its history and notebooks.

Shares, as the rows of the metrics declare them, have Wilson's interval on the effective trials,
others Student's (docs/uncertainty.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from streameval.base.limits import CLUSTERS
from streameval.core.figures import Row
from streameval.core.metrics import MEAN_SECTIONS, MEANS
from streameval.stats.intervals import Arm, interval, share_interval

SECTIONS: Final = tuple(section.name for section in MEAN_SECTIONS)
"""The sections with means."""
STDERR: Final = "_stderr"


def with_intervals(
    sections: Mapping[str, Sequence[Row]], dimensions: Sequence[str]
) -> dict[str, list[Row]]:
    """Return the sections, with `…_low` and `…_high` in a row for each mean that has an error."""
    labels = ("window", "basis", *dimensions)
    users = {tuple(row[name] for name in labels): row["users"] for row in sections["rates"]}
    found = {name: list(rows) for name, rows in sections.items()}
    for section in SECTIONS:
        found[section] = [
            row | _ends(row, users.get(tuple(row[name] for name in labels), 0))
            for row in found[section]
        ]
    return found


def _ends(row: Row, users: int) -> Row:
    ends: Row = {}
    for figure in means_of(row):
        found = bounds(row, figure, users)
        ends[f"{figure}_low"], ends[f"{figure}_high"] = found or (None, None)
    return ends


def means_of(row: Row) -> list[str]:
    """Return the figures of a row that have a standard error."""
    return [name.removesuffix(STDERR) for name in row if name.endswith(STDERR)]


def bounds(row: Row, figure: str, users: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean from its row, for a segment of so many `users`.

    Standard errors come from clusters of users; about so many of the clusters have one. A mean that
    may exceed 1 has no interval where no user differs: nothing is known of its spread.
    """
    value, stderr = row[figure], row[f"{figure}{STDERR}"]
    if value is None or stderr is None or users < 2:
        return None
    clusters = users if figure == "positive_rate" else _clusters_filled(users)
    arm = Arm(value, stderr, math.nan, users, clusters)
    mean = MEANS[figure]
    count = row[mean.weight]
    # A nowcast of a share may exceed 1.
    if mean.is_share and count and value <= 1:
        found = share_interval(arm, count)
    elif stderr:
        found = interval(arm)
    else:
        return None
    return found.low, found.high


def _clusters_filled(users: int) -> int:
    """Return the clusters that so many users fill, at least 2."""
    return max(2, round(CLUSTERS * (1 - (1 - 1 / CLUSTERS) ** users)))
