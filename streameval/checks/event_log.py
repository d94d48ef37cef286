"""The log for a recount: from files, or from Kafka itself.

Reading takes no more of Kafka than needed. If the topic still begins at offset 0 and every record
was counted, it takes the whole log, and counters are recounted whole. Otherwise it takes the growth
of users' counters since an earlier snapshot: the oldest one that asks for no more than the given
number of records. If every snapshot asks for more, it takes the one before, for some of the
partitions.

Reading then begins 2 (A + L) before that snapshot's watermark (A the attribution window, L the
allowed lateness), found by the records' timestamps: an accepted event is at most `max_clock_skew`
later than its record.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from zlib import crc32

from streameval.base.errors import InputError
from streameval.base.paths import is_file
from streameval.checks.evidence import Log, Recorded, Records, Snapshot, read_snapshot
from streameval.checks.result import duration
from streameval.core.event_lines import lines_of
from streameval.core.events import Event, EventDecoder
from streameval.files.locations import reaching, require_name
from streameval.files.snapshots import Manifest, PartFacts, facts_of
from streameval.kafka.range_reader import RangeReader, open_range_reader, records_of

if TYPE_CHECKING:
    from streameval.config.settings import Settings

Begins: TypeAlias = dict[int, tuple[int, int | None]]
"""By partition: the first offset, and the ts that exceeds all accepted events before it."""

_NAMED: Final = re.compile(r"(\d{1,9})(?:@(\d{1,18}))?=(.+)", re.DOTALL)


def decode(
    values: Sequence[bytes | None],
    timestamps: Sequence[int] | None,
    decoder: EventDecoder,
    offsets: Sequence[int],
) -> Iterator[tuple[int, Event | None]]:
    """Decode the events of records, each with its record's offset; None for a record without."""
    events, records, *_ = decoder.decode_records(values, timestamps)
    at = 0
    for index, offset in enumerate(offsets):
        if at == len(records) or records[at] != index:
            yield offset, None
        while at < len(records) and records[at] == index:
            yield offset, events[at]
            at += 1


# ------------------------------------------------------------------------------------------ files


def of_files(
    texts: Iterable[str], decoder: EventDecoder
) -> Callable[[Snapshot, Snapshot | None], Recorded]:
    """Read the logs that options name: files of JSON lines, a record a line.

    `texts` are PARTITION=FILE or PARTITION@OFFSET=FILE. A line's record timestamp is its event's
    own, as in `replay`. Raises `InputError`, for an option at once, for a partition that the
    snapshot does not have when that is known, for a file when it is read.
    """
    named = [_place_of(text) for text in texts]
    numbers = [number for number, _, _ in named]
    for number in numbers:
        if numbers.count(number) > 1:
            raise InputError(f"--log: partition {number} is given twice: give one file, with all")

    def recorded(later: Snapshot, earlier: Snapshot | None) -> Recorded:
        for number in numbers:
            if number not in later.parts:
                known = ", ".join(map(str, sorted(later.parts)))
                raise InputError(f"--log {number}=…: the snapshot has the partitions {known}")
        logs = {
            number: Log(
                begin,
                partial(_lines, name, begin, decoder),
                since=earlier if begin else None,
            )
            for number, begin, name in named
        }
        return lambda _: logs

    return recorded


def _place_of(text: str) -> tuple[int, int, str]:
    found = _NAMED.fullmatch(text)
    if found is None:
        raise InputError(
            f"--log {text}: write PARTITION=FILE, or PARTITION@OFFSET=FILE where the file does not"
            " begin at offset 0"
        )
    require_name(found[3])
    with reaching(found[3], "--log: "):
        if not is_file(found[3]):
            raise InputError(f"--log {text}: cannot read {found[3]}: no such file")
    return int(found[1]), int(found[2] or 0), found[3]


def _lines(name: str, begin: int, decoder: EventDecoder) -> Iterator[Records]:
    for values in lines_of(name):
        yield list(decode(values, None, decoder, range(begin, begin + len(values))))
        begin += len(values)


# ------------------------------------------------------------------------------------------ Kafka


def of_kafka(
    settings: Settings,
    candidates: Sequence[Path],
    from_start: bool = True,  # noqa: FBT001  # `scheduled` passes it with the candidates
) -> Callable[[Snapshot, Snapshot | None], Recorded]:
    """Read the topic of the settings; `candidates` are snapshots that may be the earlier one.

    They are in the order of time. An earlier snapshot that was given is the only candidate.
    `from_start`: read the whole log if it is complete.
    """

    def recorded(later: Snapshot, earlier: Snapshot | None) -> Recorded:
        chosen = [earlier.path] if earlier is not None else None if from_start else candidates
        return lambda most: asyncio.run(_choose(settings, later, chosen, candidates, most))

    return recorded


async def _choose(
    settings: Settings,
    later: Snapshot,
    given: Sequence[Path] | None,
    candidates: Sequence[Path],
    most: int,
) -> Mapping[int, Log] | str:
    """Choose at most `most` records of the topic, or say why none fit."""
    parts = {number: part for number, part in later.parts.items() if part["users_end"]}
    if not parts:
        return "nothing was counted yet"
    ends = {number: part["users_end"] for number, part in parts.items()}
    async with open_range_reader(settings) as topic:
        identity = await topic.identity()
        names = {(part["cluster_id"], part["topic_id"]) for part in parts.values()}
        if identity is None or names != {(identity.cluster_id, identity.topic_id)}:
            return f"{settings.topic} at {settings.kafka} is not the topic of the snapshot"
        starts = await topic.starts(ends)
        if given is None and sum(ends.values()) <= most and _counted_whole(later, starts):
            return {number: _log(settings, number, 0, end) for number, end in ends.items()}
        paths = candidates if given is None else given
        chosen = await _since(settings, topic, later, paths, starts=starts, ends=ends, most=most)
    if isinstance(chosen, str):
        return chosen
    path, begins = chosen
    earlier = read_snapshot(path)
    return {
        number: _log(settings, number, begin, ends[number], since=earlier, before=before)
        for number, (begin, before) in begins.items()
    }


async def _since(
    settings: Settings,
    topic: RangeReader,
    later: Snapshot,
    candidates: Sequence[Path],
    *,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    most: int,
) -> tuple[Path, Begins] | str:
    """Return the first candidate whose log fits, else the last of which a part fits."""
    context = duration(_context(settings))
    found: tuple[Path, Begins] | None = None
    why = "no earlier snapshot has this configuration"
    for path in candidates:
        facts = _facts(path)
        if facts is None or facts["fingerprint"] != later.fingerprint:
            continue
        begins = await _begins(settings, topic, facts["partitions"], starts, ends)
        if begins is None:
            why = (
                f"Kafka has deleted records that it takes: all since {path.name}, and of {context}"
                " before it. Keep the topic longer"
            )
            continue
        sizes = {number: ends[number] - begin for number, (begin, _) in begins.items()}
        fitting = _fitting(sizes, most, later)
        if not fitting:
            why = (
                f"each partition's log since {path.name} and of {context} before it has more than"
                " `max_records`"
            )
            continue
        found = path, {number: begins[number] for number in fitting}
        if len(fitting) == len(ends):
            break
    return found or why


def _fitting(sizes: Mapping[int, int], most: int, later: Snapshot) -> set[int]:
    """Choose partitions with at most `most` records together; the choice moves on each snapshot."""
    numbers = sorted(sizes)
    turn = crc32(later.path.name.encode()) % len(numbers)
    chosen: set[int] = set()
    for number in numbers[turn:] + numbers[:turn]:
        if sizes[number] <= most:
            most -= sizes[number]
            chosen.add(number)
    return chosen


def _counted_whole(later: Snapshot, starts: Mapping[int, int]) -> bool:
    """Tell whether the log has every record since offset 0, and today's state counted them all.

    It is false if reading began later, or the windows were started anew. Offsets without a record
    (compaction, transactions) look the same.
    """
    for number, start in starts.items():
        if start or number not in later.figures:
            return False
        events = later.figures[number]["events"]
        counted = sum(events["accepted"].values()) + sum(events["rejected"].values())
        if counted != later.parts[number]["checkpoint_offset"]:
            return False
    return True


def _facts(path: Path) -> Manifest | None:
    """Read a candidate's manifest; checksums wait until it is chosen."""
    try:
        return facts_of(path)
    except InputError:
        return None


def _context(settings: Settings) -> int:
    """Return the time (ms) that reading begins before the earlier snapshot."""
    return 2 * settings.definition().horizon


async def _begins(
    settings: Settings,
    topic: RangeReader,
    parts: Iterable[PartFacts],
    starts: Mapping[int, int],
    ends: Mapping[int, int],
) -> Begins | None:
    """Find the first offset of each partition; None if the log no longer holds one."""
    times = {
        part["partition"]: max(0, part["watermark"] - _context(settings))
        for part in parts
        if part["partition"] in ends and part["watermark"] is not None
    }
    skew = settings.max_clock_skew
    found = await topic.since({number: max(0, moment - skew) for number, moment in times.items()})
    begins: Begins = {}
    for number, end in ends.items():
        # Without a watermark the snapshot had counted nothing.
        first = found[number] if number in times else 0
        if first is None or (starts[number] and first <= starts[number]):
            return None
        begins[number] = min(first, end), times.get(number)
    return begins


def _log(
    settings: Settings,
    number: int,
    begin: int,
    end: int,
    *,
    since: Snapshot | None = None,
    before: int | None = None,
) -> Log:
    return Log(begin, partial(_records, settings, number, begin, end), end, since, before)


def _records(settings: Settings, number: int, begin: int, end: int) -> Iterator[Records]:
    decoder = settings.decoder()
    for lists in records_of(settings, number, begin, end):
        yield list(decode(lists.values, lists.timestamps, decoder, lists.offsets))
