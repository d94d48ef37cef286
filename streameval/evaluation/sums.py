"""Figures that are sums over units (ranked lists, users, queries), divided once.

A list's score is a double in integer nano-units; sums by segment and cluster of users are integers
(`core.metrics`), so batches, files and their order do not change a bit, and memory follows the
number of segments and not the size of the files. Intervals come from the jackknife over clusters
of users.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Flags, Floats, Ints, distinct
from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS, MAX_EVALUATED_RANK, MAX_EVALUATED_SEGMENTS, NANO
from streameval.base.nearest import nearest
from streameval.core.metrics import METRICS, RANKING, Entry, Metric, UnitMetric
from streameval.core.metrics.entry import UNCUT
from streameval.core.metrics.inputs import Parameter
from streameval.core.metrics.lists import MeanMetric
from streameval.evaluation.answer import Answer, Figure, Figures, Note, Segment
from streameval.evaluation.batches import Batch
from streameval.evaluation.compared import Compared, pairs_of
from streameval.evaluation.request import Given
from streameval.stats import exact_sums
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, Scored, compare_arms
from streameval.stats.intervals import ENOUGH_USERS, Arm, interval, linear_count, share_interval

DEFAULT: Final = tuple(f"{metric.name}@10" for metric in RANKING)
"""The figures of ranked lists where nothing is asked for: the stream's metrics."""

_NAME: Final = re.compile(r"(?P<metric>[a-z0-9_]+)(?:@(?P<cutoff>[0-9.]+))?")
_RANK: Final = re.compile("[1-9][0-9]{0,6}")
_LEVEL: Final = re.compile(r"0(\.[0-9])?|1(\.0)?")

# Segments that a note names.
_MOST_NAMED: Final = 5
_FEW_USERS: Final = (
    f"with fewer than {ENOUGH_USERS} an interval for 95 % may hold in 90 % of the cases, where a"
    " few users make most of the lists."
)

_CHECKSUMS: Final = 1 << 32
"""So many checksums can a user have."""
CELLS: Final = 1 << 14
"""Cells that users are hashed into to be counted: to 1 % up to 30,000, roughly up to 150,000."""
# Ids in a row have checksums in a pattern; Knuth's multiplier spreads them.
_SPREAD: Final = 2_654_435_769

BY_NAME: Final = {entry.name: entry for entry in METRICS}
"""The metrics by name."""

LIST_METRICS: Final = {
    entry.name: entry
    for entry in METRICS
    if isinstance(entry, Metric | MeanMetric) and entry.input_kind == "lists"
}
"""The metrics of ranked lists with labels, by name."""


Column: TypeAlias = tuple[Any, int]
"""A metric (`Metric`, or `UnitMetric` of the batches' data) and its k: a sum for each unit."""


class Units(Protocol):
    """A batch of n units: ranked lists (`batches.Batch`) or what `units.UnitBatch` holds.

    `checksums` (n,): the CRC-32 of each unit's user, whose low bits are the cluster; `segments`
    (n,): the index in `names` of its values of `--by`. `ids` and `users`: the units' names and
    their users, where they were asked for. `tied`: how many lists have equal scores, whose order a
    rule decided, and how many scores put in order at all.
    """

    @property
    def checksums(self) -> Ints: ...  # noqa: D102  # said above
    @property
    def segments(self) -> Ints: ...  # noqa: D102
    @property
    def names(self) -> Sequence[Segment]: ...  # noqa: D102
    @property
    def ids(self) -> Sequence[str] | None: ...  # noqa: D102
    @property
    def users(self) -> Sequence[str] | None: ...  # noqa: D102
    @property
    def tied(self) -> tuple[int, int]: ...  # noqa: D102

    def sums(self, columns: Sequence[Column]) -> tuple[Floats, Ints]:
        """Return x and y of each unit, shape (n, columns); both 0 where a unit has no value."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A figure by its name, `ndcg@10`; k is `UNCUT` where the name has none."""

    name: str
    entry: Entry
    k: int

    @classmethod
    def parse(cls, name: str, values: Mapping[Parameter, Any] | None = None) -> Asked:
        """Read a name; its metric takes its parameters from `values`. Raises `InputError`."""
        name = name.strip()
        found = _NAME.fullmatch(name)
        entry = BY_NAME.get(found["metric"]) if found else None
        if found is None or entry is None:
            raise InputError(
                f"{name}: no such figure{_suggestion(name)} (streameval evaluate --list has all)"
            )
        k = _cutoff(name, entry, found["cutoff"])
        return cls(name, entry.with_values(values or {}), k)

    def columns(self) -> list[Column]:
        """Return the metrics that score units: itself, or the parts of a figure of means."""
        parts = self.entry.parts if isinstance(self.entry, MeanMetric) else (self.entry,)
        return [(part, self.k) for part in parts]

    @property
    def by_score(self) -> bool:
        """Whether it goes by the logged scores and not by the order of the list."""
        return isinstance(self.entry, Metric) and self.entry.by_score

    @property
    def by_judged(self) -> bool:
        """Whether items that labels call irrelevant differ for it from those without a label."""
        return isinstance(self.entry, Metric) and self.entry.by_judged

    @property
    def graded(self) -> bool:
        """Whether a threshold of relevance does not change it."""
        return all(not isinstance(one, Metric) or one.graded for one, _ in self.columns())

    @property
    def own(self) -> bool:
        """Whether a unit has its own score, and not only a part in the figure."""
        return isinstance(self.entry, Metric) or (
            isinstance(self.entry, UnitMetric) and self.entry.own
        )


def _suggestion(name: str) -> str:
    """Name the figure that a misspelt name is closest to, with its cutoff."""
    metric, at, cutoff = name.lower().partition("@")
    close = nearest(metric, BY_NAME)
    if not close:
        return ": write the name of a metric, with a cutoff where it has one, such as ndcg@10"
    takes = BY_NAME[close[0]].cutoff
    sound, usual = (_LEVEL, "0.3") if takes == "recall" else (_RANK, "10")
    if takes == "none" or (takes == "optional" and not at):
        return f"; did you mean {close[0]}?"
    return f"; did you mean {close[0]}@{cutoff if sound.fullmatch(cutoff) else usual}?"


def _cutoff(name: str, entry: Entry, cutoff: str | None) -> int:
    """Return the k of a name, in tenths for a level of recall."""
    if entry.cutoff == "recall":
        if cutoff is None or not _LEVEL.fullmatch(cutoff):
            raise InputError(f"{name}: needs a level of recall in tenths, such as {entry.name}@0.3")
        return round(float(cutoff) * 10)
    if cutoff is None:
        if entry.cutoff == "required":
            raise InputError(f"{name}: needs a cutoff, such as {entry.name}@10")
        return UNCUT
    if entry.cutoff == "none":
        raise InputError(f"{name}: {entry.name} has no cutoff")
    if not _RANK.fullmatch(cutoff) or int(cutoff) > MAX_EVALUATED_RANK:
        raise InputError(
            f"{name}: a cutoff is a whole number from 1 to {MAX_EVALUATED_RANK:,}, such as"
            f" {entry.name}@10"
        )
    return int(cutoff)


@dataclass(slots=True)
class Evaluation:
    """Sums of the figures `asked` for, over all and by the values of the dimensions `by`.

    `columns` are the sums they need, numbered. `segments` holds Σx in nano-units (`exact_sums`,
    (2, CLUSTERS, columns)) and Σy, int64 (CLUSTERS, columns): of lists the scores and the number of
    lists that have one. `cells` tells which of `CELLS` have a user. `lists` holds each list's
    scores and `users` its user if `per_list`, and both grow with the file then; `unseen` are the
    lists without an item. `tied` counts the lists with equal scores, `scored` those that were put
    in order by score at all. With a control to
    compare with (`against`), `checksums` holds a checksum of each segment's users.
    """

    asked: Sequence[Asked]
    by: Sequence[str] = ()
    per_list: bool = False
    against: str | None = None
    segments: dict[Segment, tuple[Ints, Ints]] = field(default_factory=dict)
    cells: dict[Segment, Flags] = field(default_factory=dict)
    lists: dict[str, dict[str, float | None]] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    checksums: dict[Segment, set[int]] = field(default_factory=dict)
    tied: int = 0
    scored: int = 0
    columns: dict[Column, int] = field(init=False)

    def __post_init__(self) -> None:
        """Number the columns that the metrics ask for."""
        needed = dict.fromkeys(column for asked in self.asked for column in asked.columns())
        self.columns = {column: number for number, column in enumerate(needed)}

    def add(self, batch: Units) -> None:
        """Score a batch and add its sums."""
        if not len(batch.checksums):
            return
        try:
            with np.errstate(over="raise", invalid="raise"):
                x, y = batch.sums(list(self.columns))
                self._add_sums(batch, x, y)
        except FloatingPointError as error:
            raise InputError("gains or ratings are too large to be added up") from error
        cells = (batch.checksums * _SPREAD % _CHECKSUMS) // (_CHECKSUMS // CELLS)
        for number, name in enumerate(batch.names):
            self.add_cells(name, cells[batch.segments == number])
        if self.per_list:
            self._add_lists(batch, x, y)
        self._add_users(batch, np.any(y, axis=1))
        tied, scored = batch.tied
        self.tied += tied
        self.scored += scored

    def _add_users(self, batch: Units, valued: npt.NDArray[np.bool_]) -> None:
        """Remember the users of the units that have a value."""
        for number, name in enumerate(batch.names):
            known = self.checksums.setdefault(name, set())
            if self.against is not None or len(known) < ENOUGH_USERS:
                known.update(batch.checksums[valued & (batch.segments == number)].tolist())

    def _add_sums(self, batch: Units, scores: Floats, counts: Ints) -> None:
        """Add up rows of the same segment and cluster, which sorting puts side by side."""
        keys = batch.segments * CLUSTERS + (batch.checksums & (CLUSTERS - 1))
        order = np.argsort(keys, kind="stable")
        found = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
        sums = exact_sums.sums_of(scores[order], starts)
        numbers_of = np.add.reduceat(counts[order], starts, axis=0)
        numbers, clusters = np.divmod(found[starts], CLUSTERS)
        for number in distinct(numbers):
            rows = numbers == number
            self.add_sums(batch.names[number], clusters[rows], sums[:, rows], numbers_of[rows])

    def add_sums(self, name: Segment, clusters: Ints, sums: Ints, counts: Ints) -> None:
        """Add a segment's sums in `clusters` (n,), all different.

        `sums` (2, n, columns), `counts` (n, columns). Several scans add up to the sums of one.
        Raises `InputError` beyond `MAX_EVALUATED_SEGMENTS`.
        """
        x, y = self._segment(name)
        exact_sums.add(x, clusters, sums)
        y[clusters] += counts

    def add_cells(self, name: Segment, cells: Ints) -> None:
        """Add the cells of a segment's users."""
        self.cells.setdefault(name, np.zeros(CELLS, np.bool_))[cells] = True

    def _segment(self, name: Segment) -> tuple[Ints, Ints]:
        known = self.segments.get(name)
        if known is None:
            check_segments(len(self.segments) + 1, self.by)
            shape = (CLUSTERS, len(self.columns))
            known = exact_sums.zeros(*shape), np.zeros(shape, np.int64)
            self.segments[name] = known
        return known

    def _add_lists(self, batch: Units, x: Floats, y: Ints) -> None:
        assert batch.ids is not None, "lists are told apart by their names"
        assert batch.users is not None, "they come with the names"
        self.users.update(zip(batch.ids, batch.users, strict=True))
        if isinstance(batch, Batch):
            self.unseen.update(batch.ids[row] for row in np.flatnonzero(batch.length == 0).tolist())
        # A figure made of means, or over pairs, has no score for a list.
        figures = [
            (asked.name, self.columns[asked.entry, asked.k]) for asked in self.asked if asked.own
        ]
        for name, above, below in zip(batch.ids, x.tolist(), y.tolist(), strict=True):
            if name in self.lists:
                raise InputError(f"{name}: two lists of this name, so --per-list cannot show both")
            self.lists[name] = {
                figure: above[column] / below[column] if below[column] else None
                for figure, column in figures
            }

    def figures(self, segment: Segment | None = None) -> Figures:
        """Return the figures by name, of one segment or of all lists."""
        names = list(self.segments) if segment is None else [segment]
        chosen = [self.segments[name] for name in names]
        shape = (CLUSTERS, len(self.columns))
        x = sum((sums for sums, _ in chosen), start=exact_sums.zeros(*shape))
        y = sum((counts for _, counts in chosen), start=np.zeros(shape, np.int64))
        cells = np.logical_or.reduce(
            [np.zeros(CELLS, np.bool_), *(self.cells[name] for name in names)]
        )
        users = linear_count(int(np.count_nonzero(cells)), CELLS)
        found = {}
        for asked in self.asked:
            parts = [
                _figure(exact_sums.integers(x[..., n]), y[:, n], asked.entry, users)
                for n in map(self.columns.__getitem__, asked.columns())
            ]
            found[asked.name] = _finish(asked.entry, parts)
        return found

    def answer(self, *notes: Note) -> Answer:
        """Return the figures, with `notes` on them."""
        return Answer(
            figures=self.figures(),
            by=self.by,
            segments={name: self.figures(name) for name in sorted(self.segments)}
            if self.by
            else {},
            lists=self.lists if self.per_list else None,
            users=self.users,
            unseen=self.unseen,
            differences=None if self.against is None else self._differences(self.against),
            entries=[asked.entry for asked in self.asked],
            notes=[*notes, *self._parameters(), *self._few_users()],
        )

    def _differences(self, control: str) -> list[Compared]:
        """Compare each segment with the control's, figure by figure."""
        return [
            Compared(
                metric=asked.name,
                arm=one[0],
                control=control,
                users=self._users(one),
                scored=self._scored(asked, one, other),
                labels=dict(zip(self.by[1:], one[1:], strict=True)),
            )
            for one, other in pairs_of(self.segments, self.by, control)
            for asked in self.asked
        ]

    def _users(self, name: Segment) -> int:
        """Count the users of a segment."""
        return users_of(self.checksums[name])

    def _scored(self, asked: Asked, treatment: Segment, control: Segment) -> Scored:
        """Compare a figure of two segments."""
        arms = [self._arm(asked, name) for name in (treatment, control)]
        one, other = arms
        if one is None or other is None:
            values = [self.figures(name)[asked.name].value for name in (treatment, control)]
            return Scored(values[0], values[1])
        return compare_arms(one, other, Rules(lower_is_better=asked.entry.lower_is_better))

    def _arm(self, asked: Asked, name: Segment) -> Arm | None:
        """Return a figure with its error; None where no formula gives one."""
        entry = asked.entry
        if isinstance(entry, MeanMetric):
            return None
        column = self.columns[entry, asked.k]
        x, y = self.segments[name]
        above = np.array(exact_sums.integers(x[..., column]), object)
        arm = ClusterSums(above, y[:, column], self._users(name), NANO).arm()
        if arm is None or not (isinstance(entry, UnitMetric) and entry.root):
            return arm
        # The slope of the root carries the error over.
        root = math.sqrt(arm.value)
        return replace(arm, value=root, stderr=arm.stderr / (2 * root)) if root else None

    def _parameters(self) -> Iterator[Note]:
        """Return a note for each parameter that has one."""
        values = dict(pair for asked in self.asked for pair in asked.entry.values)
        for parameter, value in values.items():
            if parameter.note:
                yield Note(parameter.name, value, parameter.note.format(value))

    def _few_users(self) -> Iterator[Note]:
        """Yield a note if intervals rest on too few users.

        It is of all users, or else of the segments with too few.
        """
        users = len(set[int]().union(*self.checksums.values()))
        if 1 < users < ENOUGH_USERS:
            yield Note("few_users", users, f"{count_of(users, 'user')}: {_FEW_USERS}")
            return
        few = {" ".join(name): len(self.checksums[name]) for name in sorted(self.checksums)}
        few = {name: count for name, count in few.items() if 1 < count < ENOUGH_USERS}
        if few:
            named = [f"{name} {count}" for name, count in islice(few.items(), _MOST_NAMED)]
            more = f" and {len(few) - _MOST_NAMED} more" if len(few) > _MOST_NAMED else ""
            text = f"Segments of few users ({', '.join(named)}{more}): {_FEW_USERS}"
            yield Note("few_users_of", few, text)

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return self.answer().document()


def evaluate(
    batches: Iterable[Units],
    names: Sequence[str] = DEFAULT,
    by: Sequence[str] = (),
    *,
    per_list: bool = False,
) -> Evaluation:
    """Compute the figures `names` of ranked lists. Raises `InputError`."""
    asked = [Asked.parse(name) for name in names]
    for figure in asked:
        if figure.entry.name not in LIST_METRICS:
            raise InputError(f"{figure.name}: not a figure of ranked lists with labels")
    return _add(Evaluation(asked, by, per_list), batches)


def compute_figures(batches: Iterable[Units], asked: Sequence[Asked], given: Given) -> Evaluation:
    """Compute the figures `asked` for, as `given` wants them, from batches of their units."""
    return _add(Evaluation(asked, given.by, given.per_list, given.against), batches)


def _add(evaluation: Evaluation, batches: Iterable[Units]) -> Evaluation:
    for batch in batches:
        evaluation.add(batch)
    return evaluation


def users_of(checksums: Collection[int]) -> int:
    """Count users: as many as there are checksums, but for the few that share one."""
    return linear_count(len(checksums), _CHECKSUMS)


def check_segments(count: int, by: Sequence[str]) -> None:
    """Raise `InputError` for more segments than a run may have."""
    if count > MAX_EVALUATED_SEGMENTS:
        raise InputError(
            f"--by {','.join(by)}: more than {MAX_EVALUATED_SEGMENTS:,} segments: split by"
            " something with fewer values"
        )


def with_bounds(arm: Arm, n: int, entry: Entry) -> Figure:
    """Return a figure of `n` values with its bounds: Wilson's of a share, else Student's."""
    bounds = share_interval(arm, n) if entry.is_share else interval(arm)
    return Figure(arm.value, bounds.low, bounds.high, n)


def _figure(x: Sequence[int], y: Ints, entry: Entry, users: int) -> Figure:
    """Divide Σx by Σy over clusters, x in nano-units, of so many users."""
    n = int(y.sum())
    if n == 0:
        return Figure(None, None, None, 0)
    value = sum(x) / (n * NANO)
    arm = ClusterSums(np.array(x, object), y, users, NANO).arm()
    if arm is None:
        return Figure(value, None, None, n)
    return with_bounds(arm, n, entry)


def _finish(entry: Entry, parts: Sequence[Figure]) -> Figure:
    """Make the figure of an entry from its Σx/Σy."""
    if isinstance(entry, MeanMetric):
        return _combine(entry, parts)
    (figure,) = parts
    if isinstance(entry, UnitMetric) and entry.root:
        return Figure(_root(figure.value), _root(figure.low), _root(figure.high), figure.n)
    return figure


def _root(value: float | None) -> float | None:
    """Return the root of a mean of squares or of its bound, which may lie below 0."""
    return None if value is None else math.sqrt(max(value, 0.0))


def _combine(metric: MeanMetric, parts: Sequence[Figure]) -> Figure:
    """Combine means into a figure; no formula gives its interval."""
    means = [part.value for part in parts]
    value = None if None in means else metric.combine(*means)
    return Figure(value, None, None, min(part.n for part in parts))
