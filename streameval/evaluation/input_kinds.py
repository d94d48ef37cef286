"""Input kinds: for each kind of data that metrics take, its files and the function that computes.

This is the one table that knows all values of `core.metrics.entry.InputKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from streameval.base.errors import InputError
from streameval.base.paths import is_folder
from streameval.core.definition import Definition
from streameval.core.metrics import METRICS
from streameval.core.metrics.entry import Entry, InputKind
from streameval.core.metrics.inputs import (
    HEADINGS,
    ITEMS,
    KNOWN,
    LISTS,
    OTHER,
    RATED,
    TRAIN,
    Input,
    Parameter,
    Table,
)
from streameval.evaluation.answer import Answer, Note, merge_answers, refuse_losses
from streameval.evaluation.batches import Advance
from streameval.evaluation.item_means import item_figures
from streameval.evaluation.pooled import pooled_figures
from streameval.evaluation.ranked_arms import arm_figures
from streameval.evaluation.readers.daily_reads import read_figures
from streameval.evaluation.readers.item_tables import neighbour_figures
from streameval.evaluation.readers.labelled_scores import label_figures
from streameval.evaluation.readers.list_contents import (
    count_figures,
    item_list_figures,
    user_figures,
)
from streameval.evaluation.readers.ranked_tables import tie_notes
from streameval.evaluation.readers.rating_tables import rating_figures
from streameval.evaluation.readers.retrieval_tables import index_figures, sampled_figures
from streameval.evaluation.readers.round_tables import round_figures
from streameval.evaluation.request import (
    COMPLETE,
    EVENTS,
    EXACT,
    EXCLUDE_SEEN,
    FILES,
    LABELS,
    NEIGHBOURS,
    PREDICTIONS,
    QRELS,
    RATINGS,
    RELEVANT,
    ROUNDS,
    RUN,
    SAMPLED,
    SEEN_LABELS,
    TIES,
    Given,
)
from streameval.evaluation.sources import Source, source
from streameval.evaluation.sums import DEFAULT, Asked, compute_figures
from streameval.files.locations import redact, require_name
from streameval.files.tables import require_disk

Compute: TypeAlias = Callable[[Given, Sequence[Asked], Advance], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """The computation of figures of an input kind. `inputs` names its files for people.

    `takes`: every input that it may read. `reads` picks the ones that it does read, if these depend
    on the given files. `present` tells whether its files were given. `default` names its
    figures where nobody asked for any. Help shows its metrics' parameters under
    `heading`.
    """

    inputs: str
    heading: str
    takes: Collection[Input]
    present: Callable[[Given], bool]
    answer: Compute
    default: Sequence[str] = ()
    reads: Callable[[Given], Collection[Input]] | None = None

    def read_of(self, given: Given) -> Collection[Input]:
        """Return the inputs that it reads."""
        return self.takes if self.reads is None else self.reads(given)


def given_of(
    files: Sequence[str], inputs: Mapping[str, Any], definition: Callable[[], Definition]
) -> Given:
    """Check the inputs, by name, and sort them into tables and parameters. Raises `InputError`."""
    tables: dict[Table, Sequence[str]] = {FILES: files}
    values: dict[Parameter, Any] = {}
    for one in inputs_by_heading():
        value = inputs.get(one.name)
        if not isinstance(one, Table):
            if value is not None:
                values[one] = one.read(value)
        elif not one.single:
            tables[one] = value or ()
        elif value is not None:
            tables[one] = [value]
            require_name(value)
            if is_folder(value):
                raise InputError(f"{one.option} {value}: is a folder: give the file")
    given = Given(definition=definition, tables=tables, values=values)
    for table, files_of_it in given.tables.items():
        for file in files_of_it:
            # Events are read once, so they may come from a pipe.
            if table != EVENTS:
                require_name(file)
    return given


def answer(given: Given, names: Sequence[str], advance: Advance) -> Answer:
    """Compute the figures `names`, or those that fit the files. Raises `InputError`."""
    if given.against is not None and not given.by:
        raise InputError("--against: name the column of the arms too, such as --by variant")
    asked = asked_for(given, names)
    by_kind: dict[InputKind, list[Asked]] = {}
    for figure in asked:
        by_kind.setdefault(figure.entry.input_kind, []).append(figure)
    _check(given, asked)
    parts = [INPUT_KINDS[kind].answer(given, chosen, advance) for kind, chosen in by_kind.items()]
    if given.against is not None:
        _require_differences(parts)
    found = merge_answers([figure.name for figure in asked], parts, given.notes)
    if given.strict:
        refuse_losses(found.notes)
    return found


def _require_differences(parts: Sequence[Answer]) -> None:
    """Raise `InputError` for figures that have no sums by user."""
    for part in parts:
        if part.differences is None:
            names = ", ".join(part.figures)
            raise InputError(f"{names}: --against compares figures that are sums over users")


def asked_for(given: Given, names: Sequence[str]) -> list[Asked]:
    """Return the figures of these names, or else the default of the first kind with files."""
    if not names:
        fitting = (kind for kind in INPUT_KINDS.values() if kind.default and kind.present(given))
        chosen = next(fitting, None)
        if chosen is None:
            _require_companions(given)
        names = DEFAULT if chosen is None else chosen.default
    return [Asked.parse(name, given.values) for name in names]


def _require_companions(given: Given) -> None:
    """Raise `InputError` for an input that has no figure without another, and name the other."""
    for one in given.inputs():
        alone = f"{one.option} alone has no figure"
        for entry in METRICS:
            if one in entry.required():
                raise InputError(f"{alone}: {entry.name} needs {inputs_of(entry)}")
        for kind in INPUT_KINDS.values():
            if one in kind.takes:
                raise InputError(f"{alone}: give {kind.inputs}")


def inputs_of(entry: Entry) -> str:
    """Name the inputs of a metric for people."""
    kind = INPUT_KINDS[entry.input_kind]
    return "; ".join([kind.inputs, *(one.described for one in entry.required())])


def inputs_by_heading() -> dict[Input, str]:
    """Return every input of any kind and metric with its heading in help, by heading."""
    found: dict[Input, str] = {}
    for name, kind in INPUT_KINDS.items():
        entries = [entry for entry in METRICS if entry.input_kind == name]
        inputs: list[Input] = [*kind.takes]
        for entry in entries:
            inputs += [*entry.needs, *entry.parameters]
        for one in inputs:
            if one != FILES:
                found.setdefault(one, one.heading if isinstance(one, Table) else kind.heading)
    return dict(sorted(found.items(), key=lambda pair: HEADINGS.index(pair[1])))


def _check(given: Given, asked: Sequence[Asked]) -> None:
    """Refuse a figure without its inputs, and an input that no figure reads."""
    require_disk(given.all_files()[len(given[FILES]) :])
    present = given.inputs()
    used: set[Input] = set()
    for figure in asked:
        entry, kind = figure.entry, INPUT_KINDS[figure.entry.input_kind]
        # The source of ranked lists says itself which files it lacks.
        if entry.input_kind != "lists" and not kind.present(given):
            raise InputError(f"{figure.name}: needs {kind.inputs}")
        for one in entry.required():
            if one not in present:
                raise InputError(f"{figure.name}: needs {one.described}")
        used |= {*kind.read_of(given), *entry.needs, *entry.parameters}
        if not figure.graded:
            used.add(RELEVANT)
    for one in present:
        if one not in used:
            raise InputError(f"{_words_of(given, one)}: no figure that was asked for uses it")


def _words_of(given: Given, one: Input) -> str:
    """Return an input as people write it."""
    if one == FILES:
        first, *others = given[FILES]
        return redact(first) + (f" and {len(others)} more" if others else "")
    return f"--no-{one.name}" if one == COMPLETE else one.option


def list_source(given: Given, asked: Sequence[Asked] = (), *, with_ids: bool = False) -> Source:
    """Return the reader of ranked lists with the labels for `asked`. Raises `InputError`."""
    return source(
        given[FILES],
        labels=given[LABELS],
        run=given.file(RUN),
        qrels=given.file(QRELS),
        by=given.by,
        ties=given.value(TIES),
        complete=given.value(COMPLETE),
        with_ids=with_ids,
        with_scores=any(figure.by_score for figure in asked),
        with_judged=any(figure.by_judged for figure in asked),
        level=given.value(RELEVANT),
        seen=given[EXCLUDE_SEEN],
        drop_labels=given.value(SEEN_LABELS) == "drop",
    )


def _list_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    chosen = list_source(given, asked, with_ids=given.per_list)
    found = compute_figures(chosen.read(advance), asked, given)
    level = given.value(RELEVANT)
    notes = [] if level is None else [Note(RELEVANT.name, level, RELEVANT.note.format(level))]
    return found.answer(*tie_notes(found.tied, found.scored, chosen.ties), *chosen.notes, *notes)


def _lists_present(given: Given) -> bool:
    return bool((given[FILES] and not given[EXACT]) or given[RUN] or given[QRELS])


def _read_of_lists(given: Given) -> Collection[Input]:
    in_tables = given[LABELS] or given[RUN] or given[QRELS]
    in_both = (FILES, EXCLUDE_SEEN, SEEN_LABELS) if given[EXCLUDE_SEEN] else (FILES,)
    return (*in_both, LABELS, RUN, QRELS, TIES, COMPLETE) if in_tables else in_both


def _read_of_labels(given: Given) -> Collection[Input]:
    tables = (FILES, LABELS, EXCLUDE_SEEN) if given[FILES] else (RATINGS, PREDICTIONS)
    return (*tables, RELEVANT)


def _of_predictions(answer: Compute) -> Computation:
    """Return the computation of figures of ratings and their predictions."""
    return Computation(
        inputs="--ratings with a column prediction, or with --predictions",
        heading=RATED,
        takes=(RATINGS, PREDICTIONS),
        present=lambda given: bool(given[RATINGS]),
        answer=answer,
    )


def _of_items(answer: Compute, more: str = "") -> Computation:
    """Return the computation of figures of the items of lists, relevant or not."""
    return Computation(
        inputs=f"outcome files or slates {more}".strip(),
        heading=LISTS,
        takes=(FILES, TIES, EXCLUDE_SEEN),
        present=lambda given: bool(given[FILES]),
        answer=answer,
    )


INPUT_KINDS: Final[dict[InputKind, Computation]] = {
    "lists": Computation(
        inputs="outcome files, slates with --labels, or --run and --qrels",
        heading=LISTS,
        takes=(FILES, LABELS, RUN, QRELS, TIES, COMPLETE, RELEVANT, EXCLUDE_SEEN, SEEN_LABELS),
        reads=_read_of_lists,
        present=_lists_present,
        default=DEFAULT,
        answer=_list_figures,
    ),
    "neighbours": Computation(
        inputs="--neighbours (user, neighbour), and --train or --ratings (user, item)",
        heading=KNOWN,
        takes=(NEIGHBOURS, TRAIN, RATINGS, ITEMS),
        reads=lambda given: (NEIGHBOURS, TRAIN if given[TRAIN] else RATINGS, ITEMS),
        present=lambda given: bool(given[NEIGHBOURS] and (given[TRAIN] or given[RATINGS])),
        default=("neighbour_coverage",),
        answer=neighbour_figures,
    ),
    "ratings": replace(_of_predictions(rating_figures), default=("rmse", "mae")),
    "rated_items": _of_predictions(item_figures),
    "rated_pairs": _of_predictions(pooled_figures),
    "items": _of_items(item_list_figures),
    "judged_items": Computation(
        inputs="outcome files, or slates with --labels",
        heading=LISTS,
        takes=(FILES, LABELS, TIES, RELEVANT, EXCLUDE_SEEN),
        present=lambda given: bool(given[FILES]),
        answer=item_list_figures,
    ),
    "scored_items": _of_items(item_list_figures, "with scores"),
    "labelled_scores": Computation(
        inputs="outcome files with scores, slates with scores and --labels, or ratings with"
        " predictions",
        heading=LISTS,
        takes=(FILES, LABELS, EXCLUDE_SEEN, RATINGS, PREDICTIONS, RELEVANT),
        reads=_read_of_labels,
        present=lambda given: bool(given[FILES] or given[RATINGS]),
        answer=label_figures,
    ),
    "ranked_arms": Computation(
        inputs="outcome files, --by and --against",
        heading=LISTS,
        takes=(FILES, RELEVANT),
        present=lambda given: bool(given[FILES]),
        answer=arm_figures,
    ),
    "item_counts": _of_items(count_figures),
    "users": _of_items(user_figures),
    "index": Computation(
        inputs="an index's results, and --exact (list, item, rank or score)",
        heading=OTHER,
        takes=(FILES, EXACT, TIES),
        present=lambda given: bool(given[FILES] and given[EXACT]),
        default=("index_recall@10",),
        answer=index_figures,
    ),
    "sampled": Computation(
        inputs="--sampled (list, item, score, positive)",
        heading=OTHER,
        takes=(SAMPLED,),
        present=lambda given: bool(given[SAMPLED]),
        default=("sampled_hit_rate@10", "sampled_ndcg@10"),
        answer=sampled_figures,
    ),
    "reads": Computation(
        inputs="--events, or outcome files",
        heading=OTHER,
        takes=(EVENTS, FILES),
        reads=lambda given: (EVENTS,) if given[EVENTS] else (FILES,),
        present=lambda given: bool(given[EVENTS] or given[FILES]),
        default=("daily_positive_rate",),
        answer=read_figures,
    ),
    "rounds": Computation(
        inputs="--rounds (reward, propensity, target[, predicted, expected])",
        heading=OTHER,
        takes=(ROUNDS,),
        present=lambda given: bool(given[ROUNDS]),
        default=("ips", "snips"),
        answer=round_figures,
    ),
}
"""Each input kind, in the order in which defaults are looked for."""
