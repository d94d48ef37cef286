"""A partition's state as bytes, incrementally: the changes since the last checkpoint.

A checkpoint is a *header*, written whole (watermark, segments, event counters, the list of chunks),
and *chunks*, written once and never changed:

* slate chunks hold the slates that changed, also those finalized since; the newest version wins;
* pane chunks hold, for one window, the panes that can no longer change, written once, large ones in
  several parts. The other panes are rebuilt from their slates;
* pending chunks hold all feedback that is pending, for one checkpoint only;
* visit chunks hold all visits of arms that may not be stored yet, for one checkpoint only.

A slate chunk is needed until every pane that its slates belong to, of every window, has matured;
slate chunks go oldest first only, so no older version of a slate can come back. A pane chunk is
needed until its last pane has left the matured window.

A checkpoint is made chunk by chunk (`pieces`). Each is a bounded amount of work, and the caller may
do something else in between, as long as the state stays as it is.

Encoding: MessagePack, compressed with Zstandard. A checksum (CRC-32) stands before the header. The
header has the checksums of the chunks: damaged bytes are refused and never counted. `FORMAT` guards
the layout. A state of another definition is refused, and the refusal says what changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import cramjam
import msgspec
import numpy as np

from streameval.base.arrays import distinct
from streameval.base.errors import UnusableStateError
from streameval.base.limits import CHUNK_ITEMS, CHUNK_RECORDS
from streameval.base.steps import drain
from streameval.core.definition import Definition
from streameval.core.experiments.sums import ArmSums, ExperimentSums, stored_sums
from streameval.core.experiments.users import Visit
from streameval.core.fingerprint import describe, refuse_other_definition
from streameval.core.marks import NEVER
from streameval.core.partition import Partition
from streameval.core.pending import PendingRecord
from streameval.core.slate import Slate, SlateDetails, SlateIdentity, SlateRecord, record_identity
from streameval.core.windows.panes import Pane, Windows
from streameval.core.windows.tables import Table

FORMAT = 10
COMPRESSION_LEVEL = 1
CHECKSUM_BYTES: Final = 4
# Stand in a chunk's description where a pane chunk has the number of its window.
SLATES: Final = -1
PENDING: Final = -2
VISITS: Final = -3
_WAITING: Final[dict[int, Any]] = {PENDING: list[PendingRecord], VISITS: list[Visit]}

PaneRecord = tuple[
    int,  # number of the pane
    list[str],  # users of its cells
    list[int],  # their segments
    dict[str, list[tuple[bytes, bytes]]],  # by name of the aggregate: keys (int32) and values
]


class ChunkInfo(msgspec.Struct, frozen=True, array_like=True):
    """A chunk: its name, the window of its panes (or what else it holds), its newest time or pane.

    `size` and `checksum` describe the bytes stored.
    """

    name: str
    window: int
    newest: int
    size: int
    checksum: int


class Header(msgspec.Struct, array_like=True):
    """The small parts of the state, and the chunks that hold the rest."""

    format: int
    definition: dict[str, Any]
    watermark: int | None
    reading_time: int | None
    segments: list[tuple[str, ...]]
    segments_shown: list[int]
    overflowed: tuple[int, int]
    accepted: dict[str, int]
    rejected: dict[str, int]
    late: int
    duplicates: tuple[int, int]
    ignored: int
    unattributed: dict[str, int]
    feedback_kinds: dict[str, int]
    settled: list[int | None]
    chunks: list[ChunkInfo]
    attachments: list[str] = []
    finals: dict[str, Any] = {}
    arm_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The header, the chunks to write before it, and the names of all chunks it refers to.

    `size` is the size of the header and all of these chunks together (bytes).
    """

    header: bytes
    chunks: dict[str, bytes]
    keep: list[str]
    size: int


def _pack(value: object) -> bytes:
    encoded = msgspec.msgpack.encode(value)
    return bytes(cramjam.zstd.compress(encoded, level=COMPRESSION_LEVEL))


def _unpack(data: bytes, type_: Any) -> Any:
    """Undo `_pack`. The checksum was right, so unreadable bytes were written by other software."""
    try:
        return msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(data)), type=type_)
    except (msgspec.MsgspecError, cramjam.DecompressionError, UnicodeDecodeError) as error:
        raise UnusableStateError(
            "the stored checkpoint cannot be read by this version of streameval"
            f" ({error}); run the version that wrote it, or `worker --reset-windows`"
        ) from error


def _checksum(data: bytes) -> bytes:
    return crc32(data).to_bytes(CHECKSUM_BYTES, "little")


# ------------------------------------------------------------------------------------- writing


def checkpoint(partition: Partition, stem: str, attachments: Sequence[str] = ()) -> Checkpoint:
    """Make a checkpoint in one go; see `pieces`."""
    return drain(pieces(partition, stem, attachments))


def pieces(
    partition: Partition, stem: str, attachments: Sequence[str] = ()
) -> Generator[None, None, Checkpoint]:
    """Write what changed since the last checkpoint; names of chunks begin with `stem`, a new one.

    `attachments` are names of files that count only if this checkpoint does.

    Begin right after a flush, and change nothing of the partition until the end; it may be read.
    Each step encodes one chunk. The partition takes the checkpoint for written: if it was not,
    drop the state and restore.
    """
    assert partition.journal, "a partition without a journal has no checkpoints"
    assert not partition.slates.dirty, "flush first"
    assert not partition.ledger.rows.size, "flush first"
    if partition.finals:
        # A restored state finalizes these slates at once, and must not count them again.
        left = yield from partition.finalizing()
        assert not left, "outcomes are taken before"
    partition.update_windows()
    chunks: dict[str, bytes] = {}
    infos = _needed_chunks(partition)
    for info, data in _new_chunks(partition, stem):
        chunks[info.name] = data
        infos.append(info)
        yield
    partition.slates.unsaved.clear()
    partition.windows.unsaved.clear()
    partition.chunks = infos
    header = _header(partition, attachments)
    size = len(header) + sum(info.size for info in infos)
    return Checkpoint(header, chunks, [info.name for info in infos], size)


def _needed_chunks(partition: Partition) -> list[ChunkInfo]:
    """Return the chunks so far without those that nothing needs any more."""
    kept: list[ChunkInfo] = []
    oldest_slates_go = True
    for info in partition.chunks:
        if info.window in _WAITING:
            needed = False
        elif info.window == SLATES:
            oldest_slates_go = oldest_slates_go and all(
                info.newest // state.window.slide <= (state.last_settled or 0)
                for state in partition.windows.states
            )
            needed = not oldest_slates_go
        else:
            state = partition.windows.states[info.window]
            needed = info.newest > (state.last_settled or 0) - state.window.panes
        if needed:
            kept.append(info)
    return kept


def _new_chunks(partition: Partition, stem: str) -> Iterator[tuple[ChunkInfo, bytes]]:
    windows = partition.windows
    for number, (newest, slates) in enumerate(_portions(partition.slates.unsaved)):
        yield _chunk(f"{stem}.slates.{number}", SLATES, newest, slates)
    for index, state in enumerate(windows.states):
        unsaved = [number for window, number in windows.unsaved if window == index]
        panes = ((number, state.panes[number]) for number in unsaved if number in state.panes)
        for number, (newest, parts) in enumerate(_pane_portions(panes, windows)):
            yield _chunk(f"{stem}.panes.{index}.{number}", index, newest, parts)
    waiting: dict[int, tuple[str, Sequence[object]]] = {
        PENDING: ("pending", partition.attribution.state()),
        VISITS: ("visits", list(partition.experiments.visits)),
    }
    for kind, (name, records) in waiting.items():
        for number, start in enumerate(range(0, len(records), CHUNK_RECORDS)):
            some = records[start : start + CHUNK_RECORDS]
            yield _chunk(f"{stem}.{name}.{number}", kind, NEVER, some)


def _chunk(name: str, window: int, newest: int, records: object) -> tuple[ChunkInfo, bytes]:
    data = _pack(records)
    return ChunkInfo(name, window, newest, len(data), crc32(data)), data


def _portions(slates: Iterable[Slate]) -> Iterator[tuple[int, list[SlateRecord]]]:
    """Yield the time of the newest slate and the records, by chunk. The slates are saved then.

    One visit to each: most have left the processor's caches.
    """
    records: list[SlateRecord] = []
    items, newest = 0, NEVER
    for slate in slates:
        slate.unsaved = False
        records.append(slate.record())
        newest = max(newest, slate.time)
        items += slate.booked_impressions
        if items >= CHUNK_ITEMS or len(records) >= CHUNK_RECORDS:
            yield newest, records
            records, items, newest = [], 0, NEVER
    if records:
        yield newest, records


def _pane_portions(
    panes: Iterable[tuple[int, Pane]], windows: Windows
) -> Iterator[tuple[int, list[PaneRecord]]]:
    """Yield the number of the newest settled pane and the records, by chunk."""
    records: list[PaneRecord] = []
    size, newest = 0, NEVER
    for number, pane in panes:
        for start in range(0, max(1, pane.rows), CHUNK_RECORDS):
            records.append(_pane_record(number, pane.part(start, start + CHUNK_RECORDS), windows))
            newest = max(newest, number)
            size += min(pane.rows - start, CHUNK_RECORDS)
            if size >= CHUNK_RECORDS:
                yield newest, records
                records, size, newest = [], 0, NEVER
    if records:
        yield newest, records


def _pane_record(number: int, pane: Pane, windows: Windows) -> PaneRecord:
    """Return one settled pane or a part of it, with users in place of cells."""
    cells = windows.cells
    named = list(zip(windows.aggregates, pane.tables, strict=True))
    counted = [aggregate.cells_of(table) for aggregate, tables in named for table in tables]
    used = distinct(np.concatenate(counted)) if counted else np.empty(0, np.int32)
    numbers = np.zeros(len(cells), np.int64)
    numbers[used] = np.arange(len(used))
    return (
        number,
        [cells.users[cell] for cell in used.tolist()],
        [cells.segments[cell] for cell in used.tolist()],
        {
            aggregate.name: [
                (
                    stored.keys.astype("<i4").tobytes(),
                    stored.values.astype(aggregate.dtype).tobytes(),
                )
                for stored in (aggregate.recoded(table, numbers) for table in tables)
            ]
            for aggregate, tables in named
        },
    )


def _header(partition: Partition, attachments: Sequence[str]) -> bytes:
    attribution, slates = partition.attribution, partition.slates
    segments, shown, overflowed = partition.segments.state()
    header = Header(
        format=FORMAT,
        definition=describe(partition.definition),
        watermark=attribution.watermark,
        reading_time=partition.reading_time,
        segments=segments,
        segments_shown=shown,
        overflowed=(slates.overflow_items, overflowed),
        accepted=attribution.accepted,
        rejected=partition.rejected,
        late=attribution.late,
        duplicates=(slates.duplicate_impressions, partition.ledger.duplicate_feedback),
        ignored=attribution.ignored,
        unattributed=attribution.unattributed,
        feedback_kinds=attribution.feedback_kinds,
        settled=[state.last_settled for state in partition.windows.states],
        chunks=partition.chunks,
        attachments=list(attachments),
        finals={consumer.name: consumer.state() for consumer in partition.finals},
        arm_fields=partition.definition.arm_fields,
    )
    packed = _pack(header)
    return _checksum(packed) + packed


# ----------------------------------------------------------------------------------- restoring


def attachments_of(header: bytes) -> list[str]:
    """Return the names that were attached to the checkpoint of `header`."""
    return _decode(header).attachments


def arm_sums_of(header: bytes, definition: Definition) -> list[ArmSums]:
    """Return the sums of the definition's experiments that the checkpoint of `header` has.

    Raises `UnusableStateError` for another definition or format.
    """
    decoded = _decode(header)
    refuse_other_definition(decoded.definition, definition)
    found = stored_sums(definition.experiments, decoded.finals.get(ExperimentSums.name))
    return [arms for arms in found if arms is not None]


def _decode(header: bytes) -> Header:
    checksum, packed = header[:CHECKSUM_BYTES], header[CHECKSUM_BYTES:]
    if checksum != _checksum(packed):
        raise UnusableStateError(
            "the header of the stored checkpoint is damaged, or another version wrote it: restore"
            " Redis from a backup, run that version, or start with `worker --reset-windows`"
        )
    decoded: Header = _unpack(packed, Header)
    if decoded.format != FORMAT:
        raise UnusableStateError(
            f"the stored checkpoint has format {decoded.format}, this version reads {FORMAT};"
            " run the version that wrote it, or `worker --reset-windows`"
        )
    return decoded


def refuse_header(header: bytes, definition: Definition) -> None:
    """Raise `UnusableStateError` where `restore` would because of the header."""
    refuse_other_definition(_decode(header).definition, definition)


def restore(
    definition: Definition,
    header: bytes,
    chunks: Mapping[str, bytes],
    *,
    keep_outcomes: bool = False,
    at_watermark: bool = False,
) -> Partition:
    """Return the partition as it was at the checkpoint.

    Raises `UnusableStateError` for another definition or format, and for damaged bytes.

    `at_watermark`: T is the watermark, however far an idle stream had moved it on.
    """
    stored = _decode(header)
    refuse_other_definition(stored.definition, definition)
    partition = Partition(definition, journal=True, keep_outcomes=keep_outcomes)
    partition.segments.restore(stored.segments, stored.segments_shown)
    partition.attribution.watermark = stored.watermark
    for state, settled in zip(partition.windows.states, stored.settled, strict=True):
        state.last_settled = settled
    versions: dict[SlateIdentity, SlateRecord] = {}
    waiting: dict[int, list[Any]] = {PENDING: [], VISITS: []}
    for info in stored.chunks:
        if info.window == SLATES:
            for record in _read(info, chunks, list[SlateRecord]):
                versions[record_identity(record)] = record
        elif info.window in waiting:
            waiting[info.window] += _read(info, chunks, _WAITING[info.window])
        else:
            for pane_record in _read(info, chunks, list[PaneRecord]):
                _restore_pane(partition.windows, info.window, pane_record)
    records = sorted(versions.values(), key=lambda record: record[2])
    versions.clear()
    records.reverse()
    while records:  # a record is freed once its slate is open: both need not fit in memory
        partition.slates.enter(_slate(records.pop(), partition, stored))
    partition.attribution.restore(waiting[PENDING])
    # Book all that is open. Slates that are final now were taken before the checkpoint.
    consumers, partition.finals = partition.finals, []
    partition.flush()
    partition.update_windows()
    drain(partition.finalizing())
    partition.finals = consumers
    for consumer in consumers:
        consumer.restore(stored.finals.get(consumer.name), stored.watermark)
    partition.experiments.restore_visits(waiting[VISITS])
    _restore_counters(partition, stored)
    if stored.reading_time is not None and not at_watermark:
        partition.windows.read_at(stored.reading_time)
    return partition


def _slate(record: SlateRecord, partition: Partition, stored: Header) -> Slate:
    """Return a stored slate with the arm fields of today, "" for one that was not read then."""
    slate = Slate.of(record, keep_outcomes=partition.keep_outcomes)
    if slate.details is None and partition.slates.keep_details:
        values = partition.segments.values[slate.segment]
        slate.details = SlateDetails.arms(slate.time, values)
    if slate.details is not None:
        labels, definition = slate.details.labels, partition.definition
        dimensions = len(definition.dimensions)
        arms = dict(zip(stored.arm_fields, labels[dimensions:], strict=False))
        today = (arms.get(name, "") for name in definition.arm_fields)
        slate.details.labels = (*labels[:dimensions], *today)
    return slate


def _read(info: ChunkInfo, chunks: Mapping[str, bytes], type_: Any) -> Any:
    data = chunks.get(info.name, b"")
    if (len(data), crc32(data)) != (info.size, info.checksum):
        raise UnusableStateError(
            f"the chunk {info.name} of the stored checkpoint is damaged: restore Redis from a"
            " backup, or start with `worker --reset-windows`"
        )
    return _unpack(data, type_)


def _restore_pane(windows: Windows, window: int, record: PaneRecord) -> None:
    number, users, segments, stored = record
    cells = np.array(
        [windows.cells.of(user, segment) for user, segment in zip(users, segments, strict=True)],
        np.int64,
    )
    pane = windows.states[window].panes.setdefault(number, Pane(settled=True))
    for aggregate, tables in zip(windows.aggregates, pane.tables, strict=True):
        for keys, values in stored[aggregate.name]:
            columns = np.frombuffer(values, aggregate.dtype).reshape(aggregate.columns, -1)
            table = Table(np.frombuffer(keys, "<i4"), columns)
            tables.append(aggregate.recoded(table, cells))


def _restore_counters(partition: Partition, stored: Header) -> None:
    """Undo the counts of the first flush: it booked again the slates that were counted before."""
    attribution, slates = partition.attribution, partition.slates
    slates.overflow_items, partition.segments.overflowed = stored.overflowed
    attribution.accepted = stored.accepted
    attribution.late = stored.late
    attribution.ignored = stored.ignored
    attribution.unattributed = stored.unattributed
    attribution.feedback_kinds = stored.feedback_kinds
    slates.duplicate_impressions, partition.ledger.duplicate_feedback = stored.duplicates
    partition.rejected = stored.rejected
    partition.chunks = stored.chunks
    for slate in slates.unsaved:
        slate.unsaved = False
    slates.unsaved.clear()
    partition.windows.unsaved.clear()
    if stored.arm_fields != partition.definition.arm_fields:
        # The next header names other fields: it must not stand before labels of the old ones.
        for user in slates.users.values():
            for slate in user.open_slates():
                slates.note(slate)
