"""The reader for the files of `evaluate`: this module knows all kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from streameval.base.errors import InputError
from streameval.evaluation.answer import Note
from streameval.evaluation.batches import Advance, Batch
from streameval.evaluation.readers.outcomes import file_of_other_shape, files_of, read_outcomes
from streameval.evaluation.readers.ranked_tables import Tables, Ties, read_tables, refuse_seen
from streameval.files.locations import redact
from streameval.files.tables import require_disk


@dataclass(frozen=True, slots=True)
class Source:
    """Files and how to read them; `outcomes` says that they are outcome files.

    `ties` is the rule for equal scores, where scores decide an order. `notes` are findings for
    people; they are complete when all is read.
    """

    files: Sequence[str]
    read: Callable[[Advance], Iterator[Batch]]
    outcomes: bool
    ties: Ties = "input"
    notes: list[Note] = field(default_factory=list)


def source(
    paths: Sequence[str],
    *,
    labels: Sequence[str] = (),
    run: str | None = None,
    qrels: str | None = None,
    by: Sequence[str] = (),
    ties: Ties | None = None,
    complete: bool = True,
    with_ids: bool = False,
    with_scores: bool = False,
    with_judged: bool = False,
    level: float | None = None,
    seen: Sequence[str] = (),
    drop_labels: bool = False,
) -> Source:
    """Choose the reader for the given files. Raises `InputError` if none takes them.

    The default of `ties` is `trec` for a run and `input` for tables. `with_ids` and `with_scores`
    add the columns that `--per-list` and `auc` need. `Tables` describes the others.
    """
    tables = partial(
        Tables,
        by=by,
        complete=complete,
        level=level,
        with_judged=with_judged,
        seen=seen,
        drop_labels=drop_labels,
        with_ids=with_ids,
    )
    if (run is None) != (qrels is None):
        raise InputError("--run and --qrels go together: one without the other has no figure")
    if run is not None and qrels is not None:
        if paths or labels:
            raise InputError("give files, or --run and --qrels, not both")
        return _of_tables(tables([run], [qrels], "trec", ties=ties or "trec"))
    if not paths:
        raise InputError(
            "no files: give outcome files, slates with --labels, or --run and --qrels"
            " (docs/evaluate.md has what other figures take)"
        )
    if labels:
        return _of_tables(tables(paths, labels, "tables", ties=ties or "input"))
    refuse_seen(seen)
    files = files_of(paths)
    _require_outcomes(files)

    def read(advance: Advance) -> Iterator[Batch]:
        return read_outcomes(
            files,
            by,
            advance,
            with_ids=with_ids,
            with_scores=with_scores,
            with_judged=with_judged,
            level=level,
        )

    return Source(files, read, outcomes=True)


def _require_outcomes(files: Sequence[str]) -> None:
    """Raise `InputError` for a file that is not an outcome file."""
    if file := file_of_other_shape(files):
        raise InputError(
            f"{redact(file)}: not an outcome file; slates of another shape need --labels,"
            " a TREC run --run and --qrels"
        )


def _of_tables(tables: Tables) -> Source:
    require_disk([*tables.slates, *tables.labels])
    slates, labels = files_of(tables.slates), files_of(tables.labels)
    tables = replace(tables, slates=slates, labels=labels)
    notes: list[Note] = []
    return Source(
        [*slates, *labels],
        lambda advance: read_tables(tables, advance, notes),
        outcomes=False,
        ties=tables.ties,
        notes=notes,
    )
