"""Event files through the core, with no server: the work of `streameval replay`.

The files are one partition, in the order given. Without a broker a record's timestamp is the
event's own `ts`: nothing is ever `future`. Memory holds the state of the partition and one slice of
lines, never a whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import Any, Final, NamedTuple

from streameval.base.errors import InputError
from streameval.base.in_memory import InMemory
from streameval.base.steps import drain
from streameval.core.definition import Definition
from streameval.core.event_lines import Lines, batches, is_pipe, open_lines
from streameval.core.events import EventDecoder, Newest, Rejection
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers, UserArms
from streameval.core.ledger import FIRST_TS, LAST_TS, UserDelta
from streameval.core.partition import Partition

# Batches between two flushes: attributing in bulk is cheaper (20,000 events).
FLUSH_EVERY: Final = 20

Progress = Callable[[int], None]
"""A function that takes the number of bytes read from disk since the last call."""


Judge = Callable[[Definition, Sequence[ArmSums], Mapping[str, ArmUsers]], dict[str, Any]]
"""Judges the experiments: their sums, and their users by `Experiment.key`, become sections."""


class RejectedLine(NamedTuple):
    """A rejected line: its file and number (from 1), its bytes, and the reason."""

    file: str
    line: int
    value: bytes
    rejection: Rejection


def _ignore(_: object) -> None:
    """Ignore a rejected line, which the document counts, or a warning."""


def replay(
    definition: Definition,
    names: Sequence[str],
    progress: Progress,
    *,
    at: int | None = None,
    with_users: bool = False,
    judged: Judge | None = None,
    decoder: EventDecoder | None = None,
    on_rejected: Callable[[RejectedLine], None] = _ignore,
    warn: Callable[[str], Any] = _ignore,
) -> dict[str, Any]:
    """Return the document of `streameval replay`, after all lines of the files.

    `-` is standard input. `at` (ms) moves T on, and with it the windows; experiments end at the
    watermark. `with_users` adds the users to the document, and each costs memory. `judged` returns
    the document's sections of the experiments. Blank lines are skipped; `decoder` reads the others
    (as JSON events by default). `on_rejected` is called for each line that cannot be decoded or
    comes too late, and `warn` for each kind of feedback that counts though its value is not above
    0, and for what the decoder tells. Raises `InputError` for a file that cannot be read.
    """
    names = _readable_twice(names, definition.experiments)
    partition = Partition(definition)
    users = _Users(definition) if with_users else None
    arms = UserArms()

    def flush() -> None:
        deltas = partition.flush()
        if users is not None:
            users.add(deltas)
        arms.add(partition.experiments.take_visits())

    decoder = decoder or EventDecoder.of(definition)
    _read(partition, decoder, names, flush, progress, on_rejected)
    for line in filter(None, (*decoder.fresh(), decoder.said_ignored())):
        warn(line)
    arms.add(partition.experiments.take_visits())
    for positive in partition.attribution.counted_anyway:
        warn(positive.counts_anyway())
    document = partition.document(at, users.rows() if users else None)
    if judged is not None:
        document |= judged(definition, *_without_crossed(partition, decoder, names, arms))
    return document


def _read(  # noqa: PLR0917  # called twice, below
    partition: Partition,
    decoder: EventDecoder,
    names: Sequence[str],
    flush: Callable[[], object],
    progress: Progress,
    on_rejected: Callable[[RejectedLine], None],
) -> None:
    """Take all lines of the files into a partition, and finalize its slates."""
    newest = Newest()
    for name in names:
        with open_lines(name) as (found, position, size):
            done = 0
            for count, lines in enumerate(batches(found), 1):
                for rejected in _apply(partition, decoder, newest, name, lines):
                    on_rejected(rejected)
                if not count % FLUSH_EVERY:
                    flush()
                progress(position() - done)
                done = position()
            progress(size - done)
    flush()
    drain(partition.finalizing())


def _without_crossed(
    partition: Partition, decoder: EventDecoder, names: Sequence[str], arms: UserArms
) -> tuple[list[ArmSums], dict[str, ArmUsers]]:
    """Leave crossed users out of the experiments that want it: return their sums and users.

    Who crossed is known at the end. So the files are read again for the sums of these users, which
    are subtracted.
    """
    definition, found = partition.definition, partition.experiments.arm_sums
    leaving = [one.key for one in definition.experiments if one.crossed_users == "leave_out"]
    crossed = {key: users for key in leaving if (users := arms.crossed(key))}
    if not crossed:
        return found, arms.counts
    again = Partition(definition)
    again.experiments.restrict(crossed, found)
    _read(again, decoder, names, again.flush, lambda _: None, _ignore)
    parts = again.experiments.arm_sums
    sums = [one.without(part) for one, part in zip(found, parts, strict=True)]
    counts = {
        key: arms.counts[key].without_crossed(users.items()) for key, users in crossed.items()
    }
    return sums, arms.counts | counts


def _readable_twice(names: Sequence[str], experiments: Iterable[Experiment]) -> Sequence[str]:
    """Return the names of files that can be read twice, where an experiment needs it.

    Raises `InputError` for a pipe.
    """
    leaving = [one.name for one in experiments if one.crossed_users == "leave_out"]
    pipes = [name for name in names if is_pipe(name)]
    if leaving and pipes:
        raise InputError(
            f"{pipes[0]}: crossed_users: leave_out, of the experiment {leaving[0]}, reads the"
            " events twice: name a file"
        )
    return [
        InMemory.of(name, list(name.data)) if leaving and isinstance(name, InMemory) else name
        for name in names
    ]


def _apply(
    partition: Partition, decoder: EventDecoder, newest: Newest, file: str, lines: Lines
) -> Iterator[RejectedLine]:
    """Apply the lines of a file; return the rejected lines, in order."""
    values, numbers = lines
    events, records, rejected, _ = decoder.decode_records(values)
    for _, rejection in rejected:
        partition.reject(rejection.reason)
    late = partition.apply(events)
    found = newest.rejections(
        events,
        late,
        partition.definition.allowed_lateness,
        lambda at: f"line {numbers[records[at]]:,} of {file}",
    )
    rejected = sorted([*rejected, *((records[at], rejection) for at, rejection in found)])
    return (
        RejectedLine(file, numbers[index], values[index], rejection)
        for index, rejection in rejected
    )


class _Users:
    """Each user's lifetime counters, as the store would hold them."""

    def __init__(self, definition: Definition) -> None:
        self._kinds = definition.kinds
        self._counters: dict[str, UserDelta] = {}

    def add(self, deltas: Iterable[UserDelta]) -> None:
        for delta in deltas:
            known = self._counters.get(delta[0])
            self._counters[delta[0]] = delta if known is None else _join(known, delta)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the users of the document, sorted by id."""
        return {
            user_id: {
                "impressions": impressions,
                "slates": slates,
                "positives": dict(zip(self._kinds, positives, strict=True)),
                "first_ts": first_ts,
                "last_ts": last_ts,
            }
            for user_id, impressions, slates, first_ts, last_ts, *positives in sorted(
                self._counters.values()
            )
        }


def _join(one: UserDelta, other: UserDelta) -> UserDelta:
    joined = [one[0], *map(add, one[1:], other[1:])]
    joined[FIRST_TS] = min(one[FIRST_TS], other[FIRST_TS])
    joined[LAST_TS] = max(one[LAST_TS], other[LAST_TS])
    return joined
