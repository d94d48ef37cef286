"""A partition's state as bytes, incrementally: what changed since the last checkpoint.

A checkpoint is a *header*, written whole (watermark, segments, event counters, the list of chunks),
and *chunks*, written once and never changed:

* slate chunks hold the slates that changed, also those closed since; the newest version wins;
* pane chunks hold, for one window, the panes that can no longer change, written once, large ones in
  several parts. The other panes are rebuilt from their slates;
* pending chunks hold the feedback that is pending, all of it, for one checkpoint only.

A slate chunk is needed until every pane that its slates belong to, of every window, has matured;
slate chunks go oldest first only, so no older version of a slate can come back. A pane chunk is
needed until its last pane has left the matured window.

A checkpoint is made chunk by chunk (`pieces`): each is a bounded amount of work, so that whoever
makes it can do something else in between, as long as the state stays as it is.

Encoding: MessagePack, compressed with Zstandard. A checksum (CRC-32) stands before the header,
those of the chunks stand in it: what was damaged in the store is refused and never counted.
`FORMAT` guards the layout; a state of another definition is refused, and the refusal says what
changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import cramjam
import msgspec
import numpy as np

from streameval.base.errors import UnusableStateError
from streameval.base.limits import CHUNK_ITEMS, CHUNK_RECORDS
from streameval.core.attribution import Attribution
from streameval.core.definition import Definition
from streameval.core.fingerprint import described, refuse_other_definition
from streameval.core.partition import Partition, drained
from streameval.core.slate import (
    NEVER,
    FeedbackKey,
    FeedbackMark,
    Marks,
    Particulars,
    Pending,
    Slate,
    sharing,
)
from streameval.core.windows.panes import Cells, Counts, Pane, Positives, Scores

FORMAT = 4
COMPRESSION_LEVEL = 1
CHECKSUM_BYTES: Final = 4
# Stand in a chunk's description where a pane chunk has the number of its window.
SLATES: Final = -1
PENDING: Final = -2

SlateRecord = tuple[
    str,  # user
    str | None,  # request
    int,  # time
    int,  # segment
    int,  # anchor
    dict[str, int] | str,  # items shown, as slates keep them
    list[tuple[FeedbackKey, FeedbackMark]] | None,
    Particulars | None,
]
PendingRecord = tuple[
    str,  # user
    str,  # item
    str | None,  # request
    int,  # ts
    int,  # index of the kind
    bool,  # retract
    float,  # value
    bool,  # expired
    int,  # its number, which orders those of the same ts
]
PaneRecord = tuple[
    int,  # number of the pane
    list[str],  # users of its cells
    list[int],  # their segments
    list[bytes],  # counts: impressions, slates by cell (int32)
    list[bytes],  # positives: index of the cell, kind, positives (int32)
    list[bytes],  # scores: keys (int32), values (int64)
]


class ChunkInfo(msgspec.Struct, frozen=True, array_like=True):
    """A chunk: its name, the window of its panes (or `SLATES`, `PENDING`), its newest time or pane.

    `size` and `checksum` are those of the bytes stored.
    """

    name: str
    window: int
    newest: int
    size: int
    checksum: int


class Header(msgspec.Struct, array_like=True):
    """Everything of the state that is small, and the chunks that hold the rest."""

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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The header, the chunks to write before it, and the names of all chunks it refers to.

    `size` is that of the header and all of these chunks together (bytes).
    """

    header: bytes
    chunks: dict[str, bytes]
    keep: list[str]
    size: int


def _pack(value: object) -> bytes:
    encoded = msgspec.msgpack.encode(value)
    return bytes(cramjam.zstd.compress(encoded, level=COMPRESSION_LEVEL))


def _unpack(data: bytes, type_: Any) -> Any:
    """What `_pack` packed; the checksum was right, so what cannot be read was written otherwise."""
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
    return drained(pieces(partition, stem, attachments))


def pieces(
    partition: Partition, stem: str, attachments: Sequence[str] = ()
) -> Generator[None, None, Checkpoint]:
    """Write what changed since the last checkpoint; names of chunks begin with `stem`, a new one.

    `attachments` are names of whatever else counts only if this checkpoint does.

    Begin right after a flush, and change nothing of the partition until the end; it may be read.
    Each step encodes one chunk. The partition takes the checkpoint for written: if it was not,
    drop the state and restore.
    """
    assert partition.journal, "a partition without a journal has no checkpoints"
    attribution = partition.attribution
    assert not attribution.dirty, "flush first"
    assert not attribution.rows, "flush first"
    assert not attribution.segments.leaving, "a flush releases them"
    partition.update_windows()
    chunks: dict[str, bytes] = {}
    infos = _needed(partition)
    for info, data in _new_chunks(partition, stem):
        chunks[info.name] = data
        infos.append(info)
        yield
    attribution.unsaved.clear()
    partition.unsaved_panes.clear()
    partition.chunks = infos
    header = _header(partition, attachments)
    size = len(header) + sum(info.size for info in infos)
    return Checkpoint(header, chunks, [info.name for info in infos], size)


def _needed(partition: Partition) -> list[ChunkInfo]:
    """The chunks so far without those that nothing needs any more."""
    kept: list[ChunkInfo] = []
    oldest_slates_go = True
    for info in partition.chunks:
        if info.window == PENDING:
            needed = False
        elif info.window == SLATES:
            oldest_slates_go = oldest_slates_go and all(
                info.newest // state.window.slide <= (state.last_settled or 0)
                for state in partition.windows
            )
            needed = not oldest_slates_go
        else:
            state = partition.windows[info.window]
            needed = info.newest > (state.last_settled or 0) - state.window.panes
        if needed:
            kept.append(info)
    return kept


def _new_chunks(partition: Partition, stem: str) -> Iterator[tuple[ChunkInfo, bytes]]:
    for number, (newest, slates) in enumerate(_portions(partition.attribution.unsaved)):
        yield _chunk(f"{stem}.slates.{number}", SLATES, newest, slates)
    for index, state in enumerate(partition.windows):
        unsaved = [number for window, number in partition.unsaved_panes if window == index]
        panes = ((number, state.panes[number]) for number in unsaved if number in state.panes)
        for number, (newest, parts) in enumerate(_pane_portions(panes, partition.cells)):
            yield _chunk(f"{stem}.panes.{index}.{number}", index, newest, parts)
    pending = partition.attribution.pending()
    for number, start in enumerate(range(0, len(pending), CHUNK_RECORDS)):
        waiting: list[PendingRecord] = [
            (p.user, p.item, p.request, p.ts, p.kind, p.retract, p.value, p.expired, p.number)
            for p in pending[start : start + CHUNK_RECORDS]
        ]
        yield _chunk(f"{stem}.pending.{number}", PENDING, NEVER, waiting)


def _chunk(name: str, window: int, newest: int, records: object) -> tuple[ChunkInfo, bytes]:
    data = _pack(records)
    return ChunkInfo(name, window, newest, len(data), crc32(data)), data


def _portions(slates: Iterable[Slate]) -> Iterator[tuple[int, list[SlateRecord]]]:
    """What is written of `slates`, which are saved then: time of the newest and records, by chunk.

    One visit to each: most have left the processor's caches.
    """
    records: list[SlateRecord] = []
    items, newest = 0, NEVER
    for slate in slates:
        slate.unsaved = False
        time, shown, marks = slate.time, slate.shown, slate.feedback
        records.append(
            (
                slate.user,
                slate.request,
                time,
                slate.segment,
                slate.anchor,
                shown,
                None if marks is None else _listed(marks),
                slate.particulars,
            )
        )
        newest = max(newest, time)
        items += slate.booked_impressions
        if items >= CHUNK_ITEMS or len(records) >= CHUNK_RECORDS:
            yield newest, records
            records, items, newest = [], 0, NEVER
    if records:
        yield newest, records


def _listed(marks: Marks) -> list[tuple[FeedbackKey, FeedbackMark]]:
    return [(marks[:2], marks[2:])] if isinstance(marks, tuple) else list(marks.items())


def _pane_portions(
    panes: Iterable[tuple[int, Pane]], cells: Cells
) -> Iterator[tuple[int, list[PaneRecord]]]:
    """What is written of settled panes: number of the newest and records, by chunk."""
    records: list[PaneRecord] = []
    size, newest = 0, NEVER
    for number, pane in panes:
        for start in range(0, max(1, pane.rows), CHUNK_RECORDS):
            records.append(_pane_record(number, pane.part(start, start + CHUNK_RECORDS), cells))
            newest = max(newest, number)
            size += min(pane.rows - start, CHUNK_RECORDS)
            if size >= CHUNK_RECORDS:
                yield newest, records
                records, size, newest = [], 0, NEVER
    if records:
        yield newest, records


def _pane_record(number: int, pane: Pane, cells: Cells) -> PaneRecord:
    """One settled pane or a part of it, with users in place of cells."""
    counted = [rows.cells for rows in pane.counts] + [rows.cells for rows in pane.positives]
    used = np.unique(np.concatenate(counted)) if counted else np.empty(0, np.int32)
    return (
        number,
        [cells.users[cell] for cell in used.tolist()],
        [cells.segments[cell] for cell in used.tolist()],
        [
            np.searchsorted(used, rows.cells).astype("<i4").tobytes()
            + rows.impressions.astype("<i4").tobytes()
            + rows.slates.astype("<i4").tobytes()
            for rows in pane.counts
        ],
        [
            np.searchsorted(used, rows.cells).astype("<i4").tobytes()
            + rows.kinds.astype("<i4").tobytes()
            + rows.positives.astype("<i4").tobytes()
            for rows in pane.positives
        ],
        [
            part
            for rows in pane.scores
            for part in (rows.keys.astype("<i4").tobytes(), rows.values.astype("<i8").tobytes())
        ],
    )


def _header(partition: Partition, attachments: Sequence[str]) -> bytes:
    attribution = partition.attribution
    header = Header(
        format=FORMAT,
        definition=described(partition.definition),
        watermark=attribution.watermark,
        reading_time=partition.reading_time,
        segments=attribution.segments.values,
        segments_shown=attribution.segments.shown,
        overflowed=(attribution.overflow_items, attribution.segments.overflowed),
        accepted=attribution.accepted,
        rejected=partition.rejected,
        late=attribution.late,
        duplicates=(attribution.duplicate_impressions, partition.duplicate_feedback),
        ignored=attribution.ignored,
        unattributed=attribution.unattributed,
        feedback_kinds=attribution.feedback_kinds,
        settled=[state.last_settled for state in partition.windows],
        chunks=partition.chunks,
        attachments=list(attachments),
    )
    packed = _pack(header)
    return _checksum(packed) + packed


# ----------------------------------------------------------------------------------- restoring


def attachments_of(header: bytes) -> list[str]:
    """What was attached to the checkpoint of `header`."""
    return _decode(header).attachments


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
    """The partition as it was at the checkpoint.

    Raises `UnusableStateError` for another definition or format, and for what is damaged.

    `at_watermark`: T is the watermark, however far an idle stream had moved it on.
    """
    stored = _decode(header)
    refuse_other_definition(stored.definition, definition)
    partition = Partition(definition, journal=True, keep_outcomes=keep_outcomes)
    attribution = partition.attribution
    attribution.segments.restore(stored.segments, stored.segments_shown)
    attribution.watermark = stored.watermark
    for state, settled in zip(partition.windows, stored.settled, strict=True):
        state.last_settled = settled
    versions: dict[tuple[str, str, int], SlateRecord] = {}
    pending: list[PendingRecord] = []
    for info in stored.chunks:
        if info.window == SLATES:
            for record in _read(info, chunks, list[SlateRecord]):
                versions[_identity(record)] = record
        elif info.window == PENDING:
            pending += _read(info, chunks, list[PendingRecord])
        else:
            for pane_record in _read(info, chunks, list[PaneRecord]):
                _restore_pane(partition, info.window, pane_record)
    records = sorted(versions.values(), key=lambda record: record[2])
    versions.clear()
    records.reverse()
    while records:  # what is adopted is freed: records and slates need not both fit
        _adopt(attribution, records.pop())
    pending.sort(key=lambda record: (record[3], record[-1]))
    for user, item, request, ts, kind, retract, value, expired, _ in pending:
        attribution.wait(Pending(user, item, request, ts, kind, retract, NEVER, value, expired))
    partition.flush()
    partition.update_windows()
    for _ in attribution.closing_exactly():
        pass
    attribution.given_up.clear()  # their outcomes were taken before the checkpoint
    _restore_counters(partition, stored)
    if stored.reading_time is not None and not at_watermark:
        partition.read_at(stored.reading_time)
    return partition


def _read(info: ChunkInfo, chunks: Mapping[str, bytes], type_: Any) -> Any:
    data = chunks.get(info.name, b"")
    if (len(data), crc32(data)) != (info.size, info.checksum):
        raise UnusableStateError(
            f"the chunk {info.name} of the stored checkpoint is damaged: restore Redis from a"
            " backup, or start with `worker --reset-windows`"
        )
    return _unpack(data, type_)


def _identity(record: SlateRecord) -> tuple[str, str, int]:
    user, request, _, _, anchor, items, _, _ = record
    # Ids have no control characters: "\n" keeps a lone impression apart from every request.
    return (user, "\n" + next(iter(items)) if request is None else request, anchor)


def _adopt(attribution: Attribution, record: SlateRecord) -> None:
    """Open a slate as stored; the first flush books it, and gives it up if its time is over."""
    user_id, request, time, segment, anchor, items, marks, particulars = record
    if isinstance(items, dict):
        share = sharing()
        items = {share(item, item): packed for item, packed in items.items()}
    user = attribution.user(user_id)
    if not attribution.keep_outcomes:
        particulars = None  # whole only if kept from the first impression to the last
    elif particulars is None:
        particulars = Particulars(NEVER, NEVER, None, None, {}, [])
    slate = Slate(user_id, request, time, segment, anchor, items, particulars=particulars)
    if marks:
        (key, mark), *more = marks
        slate.feedback = dict(marks) if more else (*key, *mark)
    attribution.enter(slate, user)


def _restore_pane(partition: Partition, window: int, record: PaneRecord) -> None:
    number, users, segments, counts, positives, scores = record
    state = partition.windows[window]
    cells = np.array(
        [partition.cells.of(user, segment) for user, segment in zip(users, segments, strict=True)],
        np.int32,
    )
    pane = state.panes.setdefault(number, Pane(settled=True))
    for data in counts:
        index, impressions, slates = np.frombuffer(data, "<i4").reshape(3, -1)
        pane.counts.append(Counts(cells[index], impressions, slates))
    for data in positives:
        index, kinds, values = np.frombuffer(data, "<i4").reshape(3, -1)
        pane.positives.append(Positives(cells[index], kinds, values))
    if scores:
        keys = np.frombuffer(scores[0], "<i4")
        values = np.frombuffer(scores[1], "<i8").reshape(len(keys), -1)
        pane.scores.append(Scores(keys, values))


def _restore_counters(partition: Partition, stored: Header) -> None:
    """Undo what the first flush counted: it booked what had been counted before."""
    attribution = partition.attribution
    attribution.overflow_items, attribution.segments.overflowed = stored.overflowed
    attribution.accepted = stored.accepted
    attribution.late = stored.late
    attribution.ignored = stored.ignored
    attribution.unattributed = stored.unattributed
    attribution.feedback_kinds = stored.feedback_kinds
    attribution.duplicate_impressions, partition.duplicate_feedback = stored.duplicates
    partition.rejected = stored.rejected
    partition.chunks = stored.chunks
    for slate in partition.attribution.unsaved:
        slate.unsaved = False
    partition.attribution.unsaved.clear()
    partition.unsaved_panes.clear()
