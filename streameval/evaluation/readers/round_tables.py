"""Rounds of a policy that served, with another policy's probabilities and a model's rewards.

A table has a row a round. Columns that a figure needs must be whole. Without a column of users each
round counts as a user of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from streameval.base.errors import InputError
from streameval.base.limits import NANO
from streameval.core.metrics.off_policy_value import Rounds
from streameval.evaluation.answer import Answer, Note
from streameval.evaluation.batches import ROWS, Advance
from streameval.evaluation.readers.outcomes import files_of
from streameval.evaluation.request import ROUNDS, Given
from streameval.evaluation.sums import Asked, compute_figures
from streameval.evaluation.units import BY, UnitBatch, batch_of, dimensions
from streameval.files.tables import (
    USER_NAMES,
    connect,
    find_column,
    label,
    load,
    number,
    open_tables,
    optional,
    size,
    text,
)
from streameval.stats.off_policy import LEAST_EFFECTIVE, importance

NAMES: Final = {
    "reward": ("reward", "click", "gain", "label"),
    "propensity": ("propensity", "propensity_score", "pscore"),
    "target": ("target", "target_probability"),
    "predicted": ("predicted", "predicted_reward"),
    "expected": ("expected", "expected_reward"),
}
"""The names that a column may have."""

_WEIGHTS: Final = ("propensity", "target")
_NEEDED: Final = {
    "dm": ("expected",),
    "dr": ("reward", *_WEIGHTS, "predicted", "expected"),
    "mean_weight": _WEIGHTS,
}
_DEFAULT: Final = ("reward", *_WEIGHTS)


def round_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Estimate the reward of the target policy. Raises `InputError`."""
    needed = {name for figure in asked for name in _NEEDED.get(figure.entry.name, _DEFAULT)}
    with connect(*given[ROUNDS]) as connection:
        files = _load(connection, given, needed)
        advance(size(files))
        notes = _weight_notes(connection, files) if needed.issuperset(_WEIGHTS) else []
        found = compute_figures(_rounds(connection, given.by, needed), asked, given)
    return found.answer(*notes)


def _load(connection: Any, given: Given, needed: set[str]) -> list[str]:
    """Make the table `rounds`, whose columns in `needed` are whole; the others are null."""
    files = files_of(given[ROUNDS])
    tables, known = open_tables(connection, files)
    columns = {
        name: number(find_column(files, known, names))
        for name, names in NAMES.items()
        if name in needed
    }
    user = optional(known, USER_NAMES)
    if user is not None:
        columns["user"] = text(user)
    columns |= {BY + name: label(find_column(files, known, (name,))) for name in given.by}
    load(connection, "rounds", tables, columns)
    for name in sorted(needed):
        wrong = f"SELECT line FROM rounds WHERE {name} IS NULL ORDER BY line LIMIT 1"  # noqa: S608  # ours
        for (line,) in connection.execute(wrong).fetchall():
            raise InputError(f"{', '.join(files)}: row {line}: each round needs its {name}")
    for name in NAMES.keys() - needed:
        connection.execute(f"ALTER TABLE rounds ADD COLUMN {name} DOUBLE")
    if user is None:
        connection.execute("ALTER TABLE rounds ADD COLUMN user VARCHAR")
    return files


def _weight_notes(connection: Any, files: Sequence[str]) -> list[Note]:
    """Note how good the weights are. Raises `InputError` where they leave too few rounds.

    Sums are of integers: neither threads nor the order of files change a bit.
    """
    ((count, total, squares, largest),) = connection.execute(f"""
        SELECT count(*), sum(round(weight * {NANO})::HUGEINT),
            sum(round(weight * weight * {NANO})::HUGEINT), max(weight)
        FROM (SELECT target / propensity AS weight FROM rounds WHERE propensity > 0)
    """).fetchall()  # noqa: S608  # our own number
    effective = total * total / (squares * NANO) if squares else 0.0
    if effective < LEAST_EFFECTIVE:
        raise InputError(
            f"{', '.join(files)}: the weights leave {effective:.1f} effective rounds of {count:,}"
            f" (fewer than {LEAST_EFFECTIVE:.0f}): the log hardly has the target policy's"
            " items; only dm needs no weights"
        )
    value = {"mean": total / (count * NANO), "largest": largest, "effective": effective}
    text_ = (
        f"Weights: mean {value['mean']:.3f} (1, but for chance), largest {largest:.4g}, effective"
        f" {effective:,.0f} of {count:,} rounds."
    )
    return [Note("weights", value, text_)]


def _rounds(connection: Any, by: Sequence[str], needed: set[str]) -> Iterator[UnitBatch[Rounds]]:
    connection.execute(
        "SELECT coalesce(user, line::VARCHAR), line::VARCHAR, reward, propensity, target,"  # noqa: S608  # names are quoted
        f" predicted, expected{dimensions(by)} FROM rounds ORDER BY line"
    )
    while rows := connection.fetchmany(ROWS):
        columns = list(zip(*rows, strict=True))
        reward, logged, target, predicted, expected = (
            np.array(column, np.float64) for column in columns[2:7]
        )
        weighted = needed.issuperset(_WEIGHTS)
        weights = importance(target, logged) if weighted else np.full(len(rows), np.nan)
        data = Rounds(reward, weights, predicted, expected)
        segments = [tuple(row[7:]) for row in rows]
        yield batch_of(data, columns[0], segments, columns[1])
