"""What figures are computed from: which files each sort needs, and who computes it.

The one table that knows all sorts of `core.metrics.entry.Sort`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from streameval.base.errors import InputError
from streameval.core.metrics.entry import Entry, Sort
from streameval.core.metrics.half_life import half_life_utility
from streameval.evaluate.answer import Answer, merged
from streameval.evaluate.batches import Advance
from streameval.evaluate.item_means import item_figures
from streameval.evaluate.readers.daily_reads import read_figures
from streameval.evaluate.readers.list_contents import coverage_figures, item_list_figures
from streameval.evaluate.readers.neighbour_tables import neighbour_figures
from streameval.evaluate.readers.ranked_tables import tie_notes
from streameval.evaluate.readers.rating_tables import rating_figures
from streameval.evaluate.readers.retrieval_tables import index_figures, sampled_figures
from streameval.evaluate.request import Given
from streameval.evaluate.sources import Source, source
from streameval.evaluate.sums import DEFAULT, METRICS, Asked, evaluated
from streameval.files.locations import shown
from streameval.files.tables import require_disk


@dataclass(frozen=True, slots=True)
class Work:
    """How a sort is computed. `inputs`: what it is computed from, in words.

    `present` tells whether that was given, `uses` which of what was given it reads, by name.
    `default` is computed where no figure was asked for. `answer` computes figures of the sort.
    """

    inputs: str
    uses: Callable[[Given], Sequence[str]]
    present: Callable[[Given], bool]
    default: Sequence[str]
    answer: Callable[[Given, Sequence[Asked], Advance], Answer]


def answer(given: Given, names: Sequence[str], advance: Advance) -> Answer:
    """Compute the figures `names`, or what fits the files. Raises `InputError`."""
    asked = asked_for(given, names)
    by_sort: dict[Sort, list[Asked]] = {}
    for figure in asked:
        by_sort.setdefault(figure.entry.sort, []).append(figure)
    _check(given, asked)
    answers = [SORTS[sort].answer(given, chosen, advance) for sort, chosen in by_sort.items()]
    return merged([figure.name for figure in asked], answers)


def asked_for(given: Given, names: Sequence[str]) -> list[Asked]:
    """The figures of these names, or without any the default of the first sort with files."""
    if not names:
        chosen = [work for work in SORTS.values() if work.default and work.present(given)]
        if not chosen:
            _require_companions(given)
        names = chosen[0].default if chosen else DEFAULT
    return [Asked.parse(name) for name in names]


def _require_companions(given: Given) -> None:
    """Raise `InputError` for a file that says nothing without another, naming that."""
    for option, sort in _COMPANIONS.items():
        if _has(given, option):
            raise InputError(f"--{option} alone has no figure: give {SORTS[sort].inputs}")
    for name, needed in _PARAMETERS.items():
        for option in needed:
            if _has(given, option):
                inputs = inputs_of(METRICS[name])
                raise InputError(f"--{option} alone has no figure: {name} needs {inputs}")


def inputs_of(entry: Entry) -> str:
    """What a figure is computed from, in words."""
    more = _PARAMETERS.get(entry.name, {})
    return SORTS[entry.sort].inputs + "".join(
        f"; --{option}, {what}" for option, what in more.items()
    )


def _check(given: Given, asked: Sequence[Asked]) -> None:
    """Refuse a figure whose files are missing, and what was given that no figure uses."""
    require_disk(given.all_files()[len(given.files) :])
    used: set[str] = set()
    for figure in asked:
        name, sort = figure.entry.name, figure.entry.sort
        # What lists lack is said by their source.
        if sort != "lists" and not SORTS[sort].present(given):
            raise InputError(f"{figure.name}: needs {SORTS[sort].inputs}")
        for option, what in _PARAMETERS.get(name, {}).items():
            if not _has(given, option):
                raise InputError(f"{figure.name}: needs --{option}, {what}")
        used |= {*SORTS[sort].uses(given), *_PARAMETERS.get(name, ()), *_OPTIONAL.get(name, ())}
    for option in sorted(_OPTIONS - used):
        if _has(given, option):
            raise InputError(f"{_shown(given, option)}: no figure that was asked for uses it")


def _has(given: Given, option: str) -> bool:
    """Whether an option was given a value of its own."""
    value = getattr(given, option)
    return value not in (None, (), []) and value != _DEFAULTS.get(option)


def _shown(given: Given, option: str) -> str:
    """An option as it was written."""
    if option == "files":
        more = len(given.files) - 1
        return shown(given.files[0]) + (f" and {more} more" if more else "")
    return "--no-complete" if option == "complete" else f"--{option.replace('_', '-')}"


def list_source(given: Given, *, with_ids: bool = False, with_scores: bool = False) -> Source:
    """The reader of ranked lists with labels. Raises `InputError`."""
    return source(
        given.files,
        labels=given.labels,
        run=given.run,
        qrels=given.qrels,
        by=given.by,
        ties=given.ties,
        complete=given.complete,
        with_ids=with_ids,
        with_scores=with_scores,
    )


def _list_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    with_scores = any(figure.by_score for figure in asked)
    chosen = list_source(given, with_ids=given.per_list, with_scores=with_scores)
    utility = half_life_utility(given.half_life, given.neutral)
    asked = [
        replace(figure, entry=utility) if figure.entry.name == utility.name else figure
        for figure in asked
    ]
    found = evaluated(chosen.read(advance), asked, given.by, per_list=given.per_list)
    return found.answer(*tie_notes(found.tied, found.scored, chosen.ties), *chosen.notes)


def _read_by_lists(given: Given) -> Sequence[str]:
    if given.labels or given.run or given.qrels:
        return "files", "labels", "run", "qrels", "ties", "complete"
    return ("files",)


_LISTS = "outcome files, slates with --labels, or --run and --qrels"
_SHOWN = "outcome files or slates"
_RATINGS = "--ratings with a column prediction, or with --predictions"

SORTS: Final[dict[Sort, Work]] = {
    "lists": Work(
        _LISTS,
        _read_by_lists,
        lambda given: bool((given.files and not given.exact) or given.run or given.qrels),
        DEFAULT,
        _list_figures,
    ),
    "neighbours": Work(
        "--neighbours (user, neighbour), and --train or --ratings (user, item)",
        lambda given: ("neighbours", "train" if given.train else "ratings", "catalogue"),
        lambda given: bool(given.neighbours and (given.train or given.ratings)),
        ("neighbour_coverage",),
        neighbour_figures,
    ),
    "ratings": Work(
        _RATINGS,
        lambda _: ("ratings", "predictions"),
        lambda given: bool(given.ratings),
        ("rmse", "mae"),
        rating_figures,
    ),
    "rated_items": Work(
        _RATINGS,
        lambda _: ("ratings", "predictions"),
        lambda given: bool(given.ratings),
        (),
        item_figures,
    ),
    "items": Work(
        _SHOWN,
        lambda _: ("files", "ties"),
        lambda given: bool(given.files),
        (),
        item_list_figures,
    ),
    "coverage": Work(
        _SHOWN,
        lambda _: ("files", "ties"),
        lambda given: bool(given.files),
        (),
        coverage_figures,
    ),
    "index": Work(
        "an index's results, and --exact (list, item, rank or score)",
        lambda _: ("files", "exact", "ties"),
        lambda given: bool(given.files and given.exact),
        ("index_recall@10",),
        index_figures,
    ),
    "sampled": Work(
        "--sampled (list, item, score, positive)",
        lambda _: ("sampled",),
        lambda given: bool(given.sampled),
        ("sampled_hit_rate@10", "sampled_ndcg@10"),
        sampled_figures,
    ),
    "reads": Work(
        "--events, or outcome files",
        lambda given: ("events",) if given.events else ("files",),
        lambda given: bool(given.events or given.files),
        ("positive_rate",),
        read_figures,
    ),
}
"""Each sort, in the order in which defaults are looked for."""

_SIMILARITY: Final = {"features": "what items are like (item, feature or category[, value])"}
_THRESHOLD: Final = {"threshold": "the rating from which on an item is relevant"}
_SCALE: Final = {"scale": "the lowest and the highest rating there can be, such as 1:5"}
_PARAMETERS: Final[dict[str, dict[str, str]]] = {
    "novelty": _SIMILARITY,
    "diversity": _SIMILARITY,
    "novelty_self_information": {"train": "who has what (user, item)"},
    "catalogue_coverage": {"catalogue": "the items there are (item)"},
    "precision_threshold": _THRESHOLD,
    "recall_threshold": _THRESHOLD,
    "f1_threshold": _THRESHOLD,
    "nrmse": _SCALE,
    "nmae": _SCALE,
}
"""Options that some figures of a sort need, and what they say."""

_OPTIONAL: Final = {"half_life": ("half_life", "neutral")}
"""Options that some figures read where they are given."""

_COMPANIONS: Final[dict[str, Sort]] = {
    "neighbours": "neighbours",
    "predictions": "ratings",
    "exact": "index",
}
"""Files that say nothing without others, and whose figures those belong to."""

_DEFAULTS: Final = {field.name: field.default for field in fields(Given)}
_OPTIONS: Final = _DEFAULTS.keys() - {"definition", "by", "per_list"}
