"""Arms of outcome files: the sums of an experiment, as the stream keeps them of final slates.

Each row becomes a final slate and goes through `core.experiments`, so the sums equal the stream's
over the same slates, to the bit. Memory grows with the users: some 300 bytes each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streameval.base.arrays import Ints
from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS, NANO
from streameval.base.steps import drain
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.metrics import metrics_of, refusal
from streameval.core.experiments.outcome_slates import OutcomeSlates
from streameval.core.experiments.sums import ArmSums, ExperimentSums
from streameval.core.experiments.users import ArmUsers, UserArms
from streameval.core.list_shapes import by_rank, slots_of
from streameval.core.outcome import FeedbackOutcome
from streameval.core.segments import Segments
from streameval.core.slate import Slate
from streameval.core.windows.aggregates import AGGREGATES
from streameval.core.windows.tables import cluster_of
from streameval.evaluation.answer import Note
from streameval.evaluation.batches import Advance
from streameval.evaluation.readers.outcomes import files_of, record_batches
from streameval.experiments.scorecard import ratio_sums
from streameval.files.outcome_files import begin_of
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.rank_mix import RankCounts, control_beside, over_expected

EVERYBODY: Final = "everybody"
"""The arm of all slates, where no column tells arms apart."""
_HOUR: Final = re.compile(r"/(dt=\d{4}-\d\d-\d\d/hour=\d\d)/[^/]*$")
_HOUR_MS: Final = 3_600_000
_COLUMNS: Final = ("user", "request", "time", "ranks", "feedback")
# Files of a version before have neither.
_OPTIONAL: Final = ("fallback", "latency_ms")
OVER_EXPECTED: Final = "positives_over_expected"
_OVER_EXPECTED: Final = re.compile(OVER_EXPECTED + r"(?:\{feedback=(.*)\})?")
_RATE: Final = re.compile(r"positive_rate(?:\{feedback=(.*)\})?")


@dataclass(slots=True)
class UserRates:
    """Impressions and positives of each user: `positive_rate` is a mean over users.

    `by_arm` holds by arm and user a list: impressions, then positives by index of the kind.
    """

    kinds: int
    by_arm: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def add(self, arm: str, slate: Slate) -> None:
        """Add a slate."""
        users = self.by_arm.setdefault(arm, {})
        counts = users.get(slate.user)
        if counts is None:
            counts = users[slate.user] = [0] * (1 + self.kinds)
        counts[0] += slate.booked_impressions
        for kind, count in enumerate(slate.booked.positives or ()):
            counts[1 + kind] += count

    def without(self, users: Collection[str]) -> UserRates:
        """Return the rates of all other users."""
        rest = {
            arm: {user: counts for user, counts in known.items() if user not in users}
            for arm, known in self.by_arm.items()
        }
        return UserRates(self.kinds, rest)

    def ratio(self, arm: str, kind: int) -> ClusterSums:
        """Return the sums of users' rates in nano-units, and of users with an impression."""
        x, y = np.zeros(CLUSTERS, np.int64), np.zeros(CLUSTERS, np.int64)
        for user, counts in self.by_arm.get(arm, {}).items():
            if counts[0]:
                cluster = cluster_of(user)
                x[cluster] += round(counts[1 + kind] / counts[0] * NANO)
                y[cluster] += 1
        return ClusterSums(x, y, int(y.sum()), NANO)


@dataclass(slots=True)
class RanksOfArms:
    """Counts by rank of each arm: int64 (slots, 256) of `core.list_shapes`, for slates.

    Slates are those with a request, as in the windows.
    """

    kinds: int
    by_arm: dict[str, Ints] = field(default_factory=dict)

    def add(self, arm: str, slate: Slate) -> None:
        """Add a slate."""
        shape = slate.booked_list
        if shape is None:
            return
        counts = self.by_arm.get(arm)
        if counts is None:
            counts = self.by_arm[arm] = np.zeros((slots_of(self.kinds), CLUSTERS), np.int64)
        cluster = cluster_of(slate.user)
        for slot, count in shape.slots:
            counts[slot, cluster] += count

    def without(self, other: RanksOfArms) -> RanksOfArms:
        """Return the counts without those of some users."""
        rest = {
            arm: counts - other.by_arm[arm] if arm in other.by_arm else counts
            for arm, counts in self.by_arm.items()
        }
        return RanksOfArms(self.kinds, rest)

    def of(self, arm: str, kind: int, users: int) -> RankCounts:
        """Return an arm's impressions and positives of a kind, by cluster and rank."""
        nothing = np.zeros((slots_of(self.kinds), CLUSTERS), np.int64)
        impressions, *positives = by_rank(self.by_arm.get(arm, nothing))
        return RankCounts(impressions.T, positives[kind].T, users)


@dataclass(frozen=True, slots=True)
class Arms:
    """The sums of an experiment's arms; `user_arms` has the arms of each user.

    The figures leave out the users of `left_out`, which has the arms of each of them.
    """

    definition: Definition
    sums: ArmSums
    user_arms: UserArms
    rates: UserRates | None
    ranks: RanksOfArms | None
    notes: list[Note]
    left_out: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return self.sums.experiment

    @property
    def users(self) -> ArmUsers:
        """The users of the arms."""
        counts = self.user_arms.counts.get(self.experiment.key, ArmUsers())
        return counts.without_crossed(self.left_out.items())

    def arms_of(self, user: str) -> Collection[str]:
        """Return the arms in whose figures a user counts."""
        return () if user in self.left_out else self.user_arms.of(self.experiment.key, user)

    def ratio(self, metric: str, arm: str) -> ClusterSums:
        """Return the sums of a metric in an arm."""
        kind = over_expected_kind(metric, self.definition)
        if kind is not None:
            control = self.experiment.control
            base = control if control in self.sums.sums else arm
            return over_expected(self._ranks(arm, kind), self._ranks(base, kind))
        kind = rate_kind(metric, self.definition)
        if kind is not None:
            assert self.rates is not None, "the metrics were named before the rows were read"
            return self.rates.ratio(arm, kind)
        known = metrics_of(self.definition)[metric]
        return ratio_sums(self.definition, known, self.sums, self.users, arm)

    def control(self, metric: str, arm: str) -> ClusterSums:
        """Return the control's sums of a metric, for the comparison with an arm."""
        control, kind = self.experiment.control, over_expected_kind(metric, self.definition)
        if kind is None:
            return self.ratio(metric, control)
        return control_beside(self._ranks(arm, kind), self._ranks(control, kind))

    def _ranks(self, arm: str, kind: int) -> RankCounts:
        assert self.ranks is not None, "the metrics were named before the rows were read"
        return self.ranks.of(arm, kind, int(self.users.of(arm).sum()))


def rate_kind(metric: str, definition: Definition) -> int | None:
    """Return the index of the kind of a `positive_rate`; None for every other metric."""
    return _kind(_RATE.fullmatch(metric), definition)


def over_expected_kind(metric: str, definition: Definition) -> int | None:
    """Return the index of the kind of `positives_over_expected`; None for every other metric."""
    return _kind(_OVER_EXPECTED.fullmatch(metric), definition)


def _kind(found: re.Match[str] | None, definition: Definition) -> int | None:
    if found is None:
        return None
    kind = found[1] or definition.kinds[0]
    return definition.kinds.index(kind) if kind in definition.kinds else None


def offline_metrics(definition: Definition) -> list[str]:
    """Return the metrics that need more than the sums of a stream."""
    return [
        f"{name}{{feedback={kind}}}"
        for name in ("positive_rate", OVER_EXPECTED)
        for kind in definition.kinds
    ]


def require_metrics(names: Sequence[str], definition: Definition) -> None:
    """Raise `InputError` for a metric that no experiment can have."""
    for name in names:
        if any(find(name, definition) is not None for find in (rate_kind, over_expected_kind)):
            continue
        base, _, _ = name.partition("{")
        if alike := [one for one in offline_metrics(definition) if one.startswith(f"{base}{{")]:
            raise InputError(f"{name}: no such kind of feedback; write one of {', '.join(alike)}")
        refused = refusal(name, definition)
        if refused is not None:
            raise InputError(refused)


def read_arms(
    paths: Sequence[str],
    definition: Definition,
    experiment: Experiment,
    advance: Advance,
    *,
    with_rates: bool,
    with_ranks: bool = False,
    column: str | None,
) -> Arms:
    """Sum up the rows of outcome files by the arm that `column` holds; None: one arm, `EVERYBODY`.

    Rows without a value of the column take no part, and are counted. `with_rates` and `with_ranks`:
    keep what `positive_rate` and `positives_over_expected` need. Where the experiment leaves out
    crossed users, the files are read again for their sums. Raises `InputError`, `UnreachableError`.
    """
    consumer = consumer_of(definition, experiment)
    made = OutcomeSlates(definition)
    users, rates = UserArms(), UserRates(len(definition.kinds)) if with_rates else None
    ranks = RanksOfArms(len(definition.kinds)) if with_ranks else None
    files = [file for file in files_of(paths) if overlaps(file, experiment)]
    (sums,) = consumer.arm_sums
    for record in arm_batches(files, column, advance):
        slates = list(slates_of(record, column, made, sums.bounds, sums))
        consumer.add(slates)
        # Beyond the bound of arms, those that files name first have room.
        drain(consumer.settling())
        users.add(consumer.take_visits())
        for kept in [one for one in (rates, ranks) if one is not None]:
            for slate in slates:
                if (arm := _arm(slate)) in sums.sums:
                    kept.add(arm, slate)
    found = Arms(definition, sums, users, rates, ranks, list(_notes(made)))
    crossed = users.crossed(experiment.key) if experiment.crossed_users == "leave_out" else {}
    return _without(found, crossed, files, column) if crossed else found


def _without(
    arms: Arms, crossed: Mapping[str, Collection[str]], files: Sequence[str], column: str | None
) -> Arms:
    """Leave users out of the sums: read their rows again, and subtract them."""
    ranks = None if arms.ranks is None else RanksOfArms(arms.ranks.kinds)
    batches = arm_batches(files, column, lambda _: None)
    keep = None if ranks is None else ranks.add
    gone = sums_of_users(batches, arms.definition, arms.sums, crossed, column, keep=keep)
    return replace(
        arms,
        sums=arms.sums.without(gone),
        rates=None if arms.rates is None else arms.rates.without(crossed),
        ranks=None if arms.ranks is None or ranks is None else arms.ranks.without(ranks),
        left_out=crossed,
    )


def sums_of_users(
    batches: Iterable[Any],
    definition: Definition,
    known: ArmSums,
    users: Collection[str],
    column: str | None,
    *,
    keep: Callable[[str, Slate], None] | None = None,
) -> ArmSums:
    """Return the part of some users in the sums that are `known`, from the rows of `arm_batches`.

    `keep` is given the arm and the slate of each of their rows.
    """
    consumer = consumer_of(definition, known.experiment)
    consumer.restrict({known.experiment.key: users}, [known])
    (sums,) = consumer.arm_sums
    made, wanted = OutcomeSlates(definition), pa.array(list(users), pa.string())
    for record in batches:
        theirs = pc.is_in(record.column("user").cast(pa.string()), value_set=wanted)
        slates = list(slates_of(record.filter(theirs), column, made, sums.bounds, sums))
        consumer.add(slates)
        drain(consumer.settling())
        if keep is not None:
            for slate in slates:
                keep(_arm(slate), slate)
    return sums


def consumer_of(definition: Definition, experiment: Experiment) -> ExperimentSums:
    """Return empty sums of one experiment, for slates of `slates_of`."""
    # The arm is the only label that the slates are given.
    narrowed = replace(definition, dimensions=(), experiments=(experiment,))
    segments = Segments((), 1, definition.segment_span, 1)
    return ExperimentSums(narrowed, segments, [one(narrowed) for one in AGGREGATES])


def arm_batches(files: Sequence[str], column: str | None, advance: Advance) -> Iterator[Any]:
    """Yield the rows of files as Arrow batches with what `slates_of` needs.

    Raises `InputError`, `UnreachableError`.
    """
    columns = [*_COLUMNS, *([] if column is None else [column])]
    return record_batches(files, columns, advance, optional=_OPTIONAL)


def overlaps(file: str, experiment: Experiment) -> bool:
    """Whether a file may have rows of the experiment, by the hour in its path."""
    found = _HOUR.search(file)
    if found is None:
        return True
    begin = begin_of(found[1])
    since, until = experiment.since, experiment.until
    return (until is None or begin < until) and (since is None or begin + _HOUR_MS > since)


def slates_of(
    record: Any, column: str | None, made: OutcomeSlates, bounds: tuple[int, int], sums: ArmSums
) -> Iterator[Slate]:
    """Yield the slates of an Arrow batch that have an arm, with a time within `bounds` (ms).

    `sums` count those without an arm.
    """
    times = record.column("time").cast(pa.int64()).to_numpy()
    chosen = _within(record, bounds)
    if column is not None:
        named = _is_named(record, column)
        _count_without_arm(record.filter(pa.array(chosen & ~named)), sums)
        chosen &= named
    if not chosen.all():
        record, times = record.filter(pa.array(chosen)), times[chosen]
    count = len(record)
    names = set(record.schema.names)
    fallbacks, latencies = (
        record.column(name).to_pylist() if name in names else [None] * count for name in _OPTIONAL
    )
    arms = [EVERYBODY] * count if column is None else record.column(column).to_pylist()
    rows = zip(
        record.column("user").to_pylist(),
        record.column("request").to_pylist(),
        times.tolist(),
        arms,
        record.column("ranks").to_pylist(),
        _feedback(record.column("feedback")),
        fallbacks,
        latencies,
        strict=True,
    )
    for user, request, time, arm, ranks, feedback, fallback, latency in rows:
        if any(not 0 <= entry.item < len(ranks) for entry in feedback):
            raise InputError("column feedback names an item that its slate does not have")
        yield made.of(
            user,
            request,
            time,
            (arm,),
            ranks=ranks,
            feedback=feedback,
            fallback=fallback,
            latency_ms=latency,
        )


def rows_of_arms(record: Any, column: str, bounds: tuple[int, int]) -> int:
    """Count the rows of an Arrow batch that have an arm, with a time within `bounds` (ms)."""
    return int(np.count_nonzero(_within(record, bounds) & _is_named(record, column)))


def _within(record: Any, bounds: tuple[int, int]) -> npt.NDArray[np.bool_]:
    begin, end = bounds
    times = record.column("time").cast(pa.int64()).to_numpy()
    return np.asarray((times >= begin) & (times < end))


def _is_named(record: Any, column: str) -> npt.NDArray[np.bool_]:
    named = pc.not_equal(pc.fill_null(record.column(column), ""), "")
    return np.asarray(named.to_numpy(zero_copy_only=False))


def _count_without_arm(record: Any, arms: ArmSums) -> None:
    """Count rows without an arm, as `ArmSums.leave_out` does."""
    arms.without_arm += len(record)
    lists = record.filter(pc.is_valid(record.column("request")))
    if "fallback" in lists.schema.names:
        arms.without_arm_fallback += lists.column("fallback").true_count
    empty = pc.equal(pc.list_value_length(lists.column("ranks")), 0)
    arms.without_arm_empty += pc.sum(empty).as_py() or 0


def _feedback(column: Any) -> Iterator[Sequence[FeedbackOutcome]]:
    """Yield the feedback of each row; null is none."""
    names = FeedbackOutcome.__struct_fields__
    columns = zip(*(column.flatten().field(name).to_pylist() for name in names), strict=True)
    entries = (FeedbackOutcome(*values) for values in columns)
    for count in pc.fill_null(pc.list_value_length(column), 0).to_pylist():
        yield list(islice(entries, count)) if count else ()


def _arm(slate: Slate) -> str:
    assert slate.details is not None, "a row has labels"
    (arm,) = slate.details.labels
    return arm


def _notes(made: OutcomeSlates) -> Iterator[Note]:
    """Yield a note on feedback that the configuration does not know."""
    if made.unknown:
        kinds, entries = ", ".join(sorted(made.unknown)), sum(made.unknown.values())
        text = (
            f"Left out, as no positive of the configuration: {entries:,} of feedback ({kinds});"
            " give the worker's configuration with --config."
        )
        yield Note("unknown_feedback", made.unknown, text)
