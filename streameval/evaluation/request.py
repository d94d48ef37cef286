"""The inputs that `evaluate` was given: files by their role, and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from streameval.core.definition import Definition
from streameval.core.metrics.inputs import (
    KNOWN,
    LISTS,
    OTHER,
    RATED,
    Choice,
    Flag,
    Input,
    Number,
    Parameter,
    Table,
)
from streameval.evaluation.answer import Note

FILES: Final = Table(
    "files",
    "outcome files, their folder or URI, slates (with --labels), or an index's results"
    " (with --exact)",
    "",
)
LABELS: Final = Table("labels", "relevant items of lists", LISTS, "list, item, gain")
RUN: Final = Table("run", "a TREC run, with --qrels", LISTS, single=True)
QRELS: Final = Table("qrels", "TREC's relevance judgements", LISTS, single=True)
RATINGS: Final = Table("ratings", "ratings", RATED, "user, item, rating[, prediction]")
PREDICTIONS: Final = Table(
    "predictions", "predictions in a table of their own", RATED, "user, item, prediction"
)
EXCLUDE_SEEN: Final = Table(
    "exclude_seen",
    "items that users have seen, which are left out of their lists",
    LISTS,
    "user, item",
)
NEIGHBOURS: Final = Table("neighbours", "neighbours of users", KNOWN, "user, neighbour")
EXACT: Final = Table("exact", "results of an exact index", OTHER, "list, item, rank or score")
SAMPLED: Final = Table(
    "sampled", "a positive among sampled negatives", OTHER, "list, item, score, positive"
)
EVENTS: Final = Table("events", "event files, for the daily positive rate", OTHER)
ROUNDS: Final = Table(
    "rounds",
    "rounds of a policy, with the probabilities of another one",
    OTHER,
    "reward, propensity, target[, predicted, expected]",
)

TIES: Final = Choice(
    name="ties",
    meaning="the order of equal scores: trec_eval's (default of a run) or the file's",
    metavar="trec|input",
)
COMPLETE: Final = Flag(
    name="complete",
    meaning="lists that only the labels or qrels know count 0, or are left out",
    default=True,
)
RELEVANT: Final = Number(
    name="relevant",
    meaning="the lowest gain of a relevant item of a list (trec_eval's -l)",
    above=0.0,
    note="Relevant: a gain of at least {:g}.",
)
SEEN_LABELS: Final = Choice(
    name="seen_labels",
    meaning="labels of the items of --exclude-seen stay, so that a user can still miss them, or"
    " drop out with the items",
    metavar="keep|drop",
    default="keep",
)


def names_of(written: str | Iterable[str]) -> list[str]:
    """Return names that are given as a list, or as text with commas between them."""
    names = written.split(",") if isinstance(written, str) else written
    return [name.strip() for name in names if name.strip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Files and parameters. `definition` reads the configuration, which defines positives.

    `tables` holds files by role: `FILES` are outcome files, slates, or an index's approximate
    results (with `EXACT`). `values` holds the parameters that were given. `against` is the value of
    the first of `by` that the others are compared with. `strict` refuses losses (`answer.Note`).
    Readers add `notes` on what they found.
    """

    definition: Callable[[], Definition]
    tables: Mapping[Table, Sequence[str]] = field(default_factory=dict)
    values: Mapping[Parameter, Any] = field(default_factory=dict)
    by: Sequence[str] = ()
    against: str | None = None
    per_list: bool = False
    strict: bool = False
    notes: list[Note] = field(default_factory=list)

    def __getitem__(self, table: Table) -> Sequence[str]:
        """Return the files of a table, none where it was not given."""
        return self.tables.get(table, ())

    def file(self, table: Table) -> str | None:
        """Return the file of a table that has one file."""
        return next(iter(self[table]), None)

    def value(self, parameter: Parameter) -> Any:
        """Return the value of a parameter, or its default."""
        return self.values.get(parameter, parameter.default)

    def inputs(self) -> list[Input]:
        """List the inputs that were given. A value that equals the default counts as not given."""
        values = self.values.items()
        return [
            *(table for table, files in self.tables.items() if files),
            *(one for one, value in values if value is not None and value != one.default),
        ]

    def all_files(self) -> list[str]:
        """List every file that was given, `FILES` first."""
        others = [files for table, files in self.tables.items() if table != FILES]
        return [*self[FILES], *(name for files in others for name in files)]
