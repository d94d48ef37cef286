"""Event files through the core, with no server: the work of `streameval replay`.

The files are one partition, in the order given. Without a broker a record's timestamp is the
event's own `ts`: nothing is ever `future`. Memory holds the state of the partition and one slice of
lines, never a whole file, unless the events have to be put in order first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import add, attrgetter
from typing import Any, Final, NamedTuple

from streameval.base.errors import InputError
from streameval.base.in_memory import InMemory
from streameval.base.steps import drain
from streameval.core.definition import Definition
from streameval.core.event_lines import BATCH_LINES, Lines, batches, is_pipe, open_lines
from streameval.core.events import Event, EventDecoder, Newest, Rejection
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
    sort: bool = False,
    with_users: bool = False,
    judged: Judge | None = None,
    decoder: EventDecoder | None = None,
    on_rejected: Callable[[RejectedLine], None] = _ignore,
    warn: Callable[[str], Any] = _ignore,
) -> dict[str, Any]:
    """Return the document of `streameval replay`, after all lines of the files.

    `-` is standard input. `at` (ms) moves T on, and with it the windows; experiments end at the
    watermark. `sort` puts all events in order of their time first, in memory. `with_users` adds the
    users to the document, and each costs memory. `judged` returns the document's sections of the
    experiments. Blank lines are skipped; `decoder` reads the others (as JSON events by default).
    `on_rejected` is called for each line that cannot be decoded or comes too late, and `warn` for
    each kind of feedback that counts though its value is not above 0, and for what the decoder
    tells. Raises `InputError` for a file that cannot be read.
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
    read = partial(_read, decoder, sort=sort)
    read(partition, _parts(names, progress), flush, on_rejected)
    for line in filter(None, (*decoder.fresh(), decoder.said_ignored())):
        warn(line)
    arms.add(partition.experiments.take_visits())
    for positive in partition.attribution.counted_anyway:
        warn(positive.counts_anyway())
    document = partition.document(at, users.rows() if users else None)
    if judged is not None:
        parts = partial(_parts, names, _ignore)
        document |= judged(definition, *_without_crossed(partition, parts, read, arms))
    return document


def _parts(names: Sequence[str], progress: Progress) -> Iterator[tuple[str, Lines]]:
    """Yield the lines of files by the thousand, each time with the name of the file."""
    for name in names:
        with open_lines(name) as (found, position, size):
            done = 0
            for lines in batches(found):
                yield name, lines
                progress(position() - done)
                done = position()
            progress(size - done)


def _read(
    decoder: EventDecoder,
    partition: Partition,
    parts: Iterable[tuple[str, Lines]],
    flush: Callable[[], object],
    on_rejected: Callable[[RejectedLine], None],
    *,
    sort: bool,
) -> None:
    """Take all lines of files into a partition, and finalize its slates."""
    newest = Newest()
    held: list[Event] = []
    for count, (name, lines) in enumerate(parts, 1):
        events, records, rejected = _decode(partition, decoder, name, lines)
        if sort:
            held += events
        else:
            rejected += _apply(partition, newest, events, records, name, lines)
            if not count % FLUSH_EVERY:
                flush()
        for one in sorted(rejected, key=attrgetter("line")):
            on_rejected(one)
    held.sort(key=attrgetter("ts"))
    for begin in range(0, len(held), FLUSH_EVERY * BATCH_LINES):
        partition.apply(held[begin : begin + FLUSH_EVERY * BATCH_LINES])
        flush()
    flush()
    drain(partition.finalizing())


def _without_crossed(
    partition: Partition,
    parts: Callable[[], Iterable[tuple[str, Lines]]],
    read: Callable[..., None],
    arms: UserArms,
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
    read(again, parts(), again.flush, _ignore)
    gone = again.experiments.arm_sums
    sums = [one.without(part) for one, part in zip(found, gone, strict=True)]
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
        InMemory.of(name, list(name.data))
        if leaving and isinstance(name, InMemory) and isinstance(name.data, Iterator)
        else name
        for name in names
    ]


def _decode(
    partition: Partition, decoder: EventDecoder, file: str, lines: Lines
) -> tuple[list[Event], Sequence[int], list[RejectedLine]]:
    """Decode the lines of a file; return the events, their lines, and the lines rejected."""
    events, records, found, _ = decoder.decode_records(lines.values)
    for _, rejection in found:
        partition.reject(rejection.reason)
    return events, records, [_rejected(file, lines, index, why) for index, why in found]


def _apply(  # noqa: PLR0917  # called once, above
    partition: Partition,
    newest: Newest,
    events: Sequence[Event],
    records: Sequence[int],
    file: str,
    lines: Lines,
) -> Iterator[RejectedLine]:
    """Apply the events of a file's lines; yield the lines that are late."""
    late = newest.rejections(
        events,
        partition.apply(events),
        partition.definition.allowed_lateness,
        lambda at: f"line {lines.numbers[records[at]]:,} of {file}",
    )
    return (_rejected(file, lines, records[at], why) for at, why in late)


def _rejected(file: str, lines: Lines, index: int, why: Rejection) -> RejectedLine:
    return RejectedLine(file, lines.numbers[index], lines.values[index], why)


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
