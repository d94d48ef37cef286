"""One partition that this worker owns: from records to the next commit. No I/O.

1. `take` queues records; `work` decodes and applies them, a slice at a time.
2. While it is *restoring*, records below the committed offset change the state and nothing else:
   their counters are in the store already. The first record at or beyond that offset ends this.
3. `make_commit` flushes and makes the commit of everything applied since the last one. It is
   pipelined: the state goes on while the commit is under way, and is dropped if the commit is
   refused. The state is `held` until the commit is made, and until `save` has made its
   checkpoint if it has one. Both are made in steps of bounded work, whatever the log holds.
4. `tallies.settle` counts a commit that went through. Counters of the process rise only here.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from streameval.base.limits import (
    MAX_BATCH_DEAD_LETTER_BYTES,
    MAX_BATCH_EVENTS,
    MAX_BATCH_VISITS,
    MAX_DEAD_LETTER_BYTES,
    MAX_WAITING_OUTCOMES,
)
from streameval.core.checkpoint import Checkpoint, pieces
from streameval.core.events import Event, EventDecoder, Newest, TooLarge
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import Visit
from streameval.core.ledger import UserDelta
from streameval.core.outcome import Outcome, Span
from streameval.core.partition import Partition
from streameval.core.record_mark import RecordMark, mark
from streameval.kafka.records import DeadLetter, Records, cut
from streameval.web.status import PartitionStatus
from streameval.worker.backlog import Backlog, overlap
from streameval.worker.tallies import Tally, highest, rise

if TYPE_CHECKING:
    from streameval.config.settings import Settings


@dataclass(slots=True)
class PendingCommit:
    """A batch to be committed: offsets, increments, dead letters and perhaps a checkpoint.

    One with `pieces` is ready when `AssignedPartition.save` has made its `checkpoint` of them.
    """

    partition: int
    start: int | None
    end: int
    users: list[UserDelta]
    dead_letters: list[DeadLetter]
    pieces: Generator[None, None, Checkpoint] | None
    tally: Tally
    checkpoint: Checkpoint | None = None
    last_record: RecordMark | None = None  # None where no record came
    since: int | None = None  # the offset of the checkpoint before this one
    span: Span | None = None  # of the outcomes, where there are any
    outcomes: Callable[[], list[Outcome]] = list  # slow, so call it in another thread
    visits: Sequence[Visit] = ()
    first: bool = True  # since the partition came to this worker


@dataclass(frozen=True, slots=True)
class Limits:
    """When a batch ends (events, users, seconds), and seconds between checkpoints."""

    events: int
    users: int
    seconds: float
    checkpoint_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Return the limits of the configuration."""
        return cls(
            events=settings.batch_events,
            users=settings.batch_users,
            seconds=settings.batch_interval / 1000,
            checkpoint_seconds=settings.checkpoint_interval / 1000,
        )


Appended = tuple[int, int]
"""The earliest timestamp (ms) of some records, and their number."""


@dataclass(slots=True)
class AssignedPartition:
    """The partition `state`, applied up to `next_offset`.

    The last commit ends at `committed`, and the next one begins there. The store is known to hold
    the offset `stored`. The last checkpoint was made at `saved` (or reading began there), and is
    stored at `checkpoint_offset` (None before the first). Until a commit counts them, `lost` counts
    offsets that the log's beginning has passed, and `gaps` offsets without a record within the log.
    A batch ends at `batch_end`, if that is set.
    During a flush, and while a checkpoint is made, the state is `held`: nothing may be applied.

    Every `now` is in seconds, of a clock that never goes back.
    """

    number: int
    limits: Limits
    state: Partition
    decoder: EventDecoder
    next_offset: int
    committed: int | None
    lost: int = 0
    gaps: int = 0
    batch_end: int | None = None
    first: bool = True  # the next commit is the first since the partition came
    stored: int | None = None
    saved: int = 0
    checkpoint_at: float = 0.0
    idle_since: float = 0.0
    backlog: Backlog = field(default_factory=Backlog)
    restoring: bool = False
    held: bool = False
    paused: bool = False  # the log is not read, as the partition waits for the store
    checkpoint_offset: int | None = None
    checkpoint_bytes: int | None = None
    checkpointed_at: float | None = None
    filled: set[str] = field(default_factory=set)  # keys of experiments: no file gives more
    _last: tuple[int, int, bytes | None, bytes | None] | None = None
    _unpublished: list[str] = field(default_factory=list)
    _events: int = 0
    _appended: list[Appended] = field(default_factory=list)
    _flushed: list[Appended] = field(default_factory=list)
    _began: float | None = None
    committing_bytes: int = 0  # of rejected records, in the commit under way
    _dead_letters: list[DeadLetter] = field(default_factory=list)
    _dead_letter_bytes: int = 0
    _key_mismatches: int = 0
    _ignored: int = 0
    _known: dict[str, Any] = field(default_factory=dict)
    _unsaved_fill: bool = False

    def __post_init__(self) -> None:
        """Begin to restore where the state is behind the stored offset."""
        self.stored = self.committed
        self.saved = self.next_offset
        self.restoring = self.committed is not None and self.next_offset < self.committed
        if self.committed is None or self.next_offset > self.committed:
            # Keep the offset where reading begins, or goes on after a gap: commit it at once.
            self._began = 0.0
        self._known = self._counts()

    # ------------------------------------------------------------------ records

    @property
    def waiting_bytes(self) -> int:
        """Bytes of records that wait to be applied, and of rejected ones not written yet."""
        return self.backlog.size + self._dead_letter_bytes + self.committing_bytes

    @property
    def uncommitted(self) -> bool:
        """Whether records were applied that no commit covers."""
        return not self.restoring and self._began is not None

    @property
    def under_way(self) -> bool:
        """Whether a commit of records was made that is not known to be stored."""
        return self.stored != self.committed

    @property
    def unsaved(self) -> bool:
        """Whether records were applied, or slates filled in, that no checkpoint covers."""
        return not self.restoring and (
            self._began is not None or self.next_offset > self.saved or self._unsaved_fill
        )

    def take(self, records: Records) -> None:
        """Queue records just read."""
        self.backlog.add(records, self.next_offset)

    def unready(self) -> Callable[[], None] | None:
        """Return what the decoder must call before the next slice; None for nothing."""
        return self.decoder.unready(self.backlog.next_values)

    def work(self, now: float) -> Iterator[None]:
        """Apply the next slice: one step, plus the steps of a flush where a restore needs one."""
        assert not self.held, "a checkpoint is of one offset"
        records = self._next_slice()
        if self.restoring:
            assert self.committed is not None
            end = bisect_left(records.offsets, self.committed)
            if end == 0 and (records.offsets or records.next_offset >= self.committed):
                yield from self._restored()
            elif end < len(records.offsets):
                records = self.backlog.split(records, self.committed)
        reached = records.next_offset
        if records.offsets:
            self._apply(records)
            if not self.restoring:  # records read again did not happen now
                self.idle_since = now
                self._last = (
                    records.offsets[-1],
                    records.timestamps[-1],
                    records.keys[-1],
                    records.values[-1],
                )
        if self._began is None and not self.restoring and reached != self.next_offset:
            self._began = now
        begin = max(self.next_offset, self.committed or 0)  # before, they were counted
        self.gaps += overlap(records.missing, begin, reached)
        self.next_offset = reached
        self._events += len(records.offsets)
        if self.restoring:
            if self._events >= MAX_BATCH_EVENTS:
                yield from self._flush()
                self._events = 0
            if self.committed is not None and reached >= self.committed:
                yield from self._restored()

    def _next_slice(self) -> Records:
        """Take the next slice, up to `batch_end` if that is within it."""
        records = self.backlog.take()
        if self.batch_end is not None and self.next_offset < self.batch_end < records.next_offset:
            return self.backlog.split(records, self.batch_end)._replace(next_offset=self.batch_end)
        return records

    def _apply(self, records: Records) -> None:
        events, index, rejected, ignored = self.decoder.decode_records(
            records.values, records.timestamps
        )
        keys, offsets = records.keys, records.offsets
        if len(index) != len(offsets) or rejected:
            keys = [keys[at] for at in index]
            offsets = [offsets[at] for at in index]
        newest = Newest(self.state.watermark)
        late = self.state.apply(events, offsets)
        for _, rejection in rejected:
            self.state.reject(rejection.reason)
        if self.restoring:
            return
        stamps = [stamp for stamp in records.timestamps if stamp >= 0]
        if stamps:  # a producer may leave them out
            self._appended.append((min(stamps), len(stamps)))
        self._ignored += ignored
        self._key_mismatches += _mismatches(keys, events)
        if late:
            allowed = self.state.definition.allowed_lateness
            found = newest.rejections(events, late, allowed, lambda at: f"offset {offsets[at]}")
            rejected = [*rejected, *((index[at], rejection) for at, rejection in found)]
        for at, rejection in rejected:
            key, value = _head(records.keys[at]), _head(records.values[at])
            letter = DeadLetter(
                self.number, records.offsets[at], records.timestamps[at], key, value, rejection
            )
            self._dead_letters.append(letter)
            self._dead_letter_bytes += letter.size

    def _flush(self) -> Generator[None, None, list[UserDelta]]:
        """Flush the state; it is held meanwhile."""
        self.held = True
        deltas = yield from self.state.flushing()
        self._flushed += self._appended
        self._appended = []
        self.held = False
        return deltas

    @property
    def newest(self) -> int:
        """When the last record was appended that figures do not hold yet (ms); 0 for none."""
        return max((earliest for earliest, _ in self._flushed + self._appended), default=0)

    def take_flushed(self) -> list[Appended]:
        """Return the records that figures hold since the last call."""
        flushed, self._flushed = self._flushed, []
        return flushed

    def _restored(self) -> Iterator[None]:
        """End the restore: the state has reached the stored offset, and its bookings are stored."""
        yield from self._flush()
        self.restoring = False
        self._events = 0
        self._began = None
        self._known = self._counts()

    # ------------------------------------------------------------------ commits

    def due(self, now: float) -> bool:
        """Whether the batch ends here, or an empty one is due for a checkpoint or for visits."""
        visits = 0 if self.restoring else self.state.experiments.untaken
        if self.restoring or self._began is None:
            return visits > 0 or (self.unsaved and now >= self.checkpoint_at)
        return (
            visits >= MAX_BATCH_VISITS
            or self._events >= self.limits.events
            or self.state.users_touched >= self.limits.users
            or self._dead_letter_bytes >= MAX_BATCH_DEAD_LETTER_BYTES
            or self.next_offset == self.batch_end
            or now - self._began >= self.limits.seconds
        )

    def make_commit(
        self, now: float, *, with_checkpoint: bool = False
    ) -> Generator[None, None, PendingCommit]:
        """Flush, and make the commit of everything applied since the last one.

        The state is held between the steps, and after them where there is a checkpoint to `save`.
        """
        start = self.committed
        users = yield from self._flush()
        self.held = True
        many = self.state.waiting_outcomes >= MAX_WAITING_OUTCOMES
        # The commit of the first offset has nothing to save; the next commit has.
        empty = start is None and self._events == 0
        due = with_checkpoint or many or (now >= self.checkpoint_at and not empty)
        since = self.checkpoint_offset
        saving = (yield from self._checkpoint(now)) if due else (None, None, list)
        self.held = due
        # Before the checkpoint is encoded, which holds the rest.
        visits = self.state.experiments.take_visits(
            MAX_BATCH_VISITS, for_good=start != self.next_offset
        )
        began = self._began or now
        pending = PendingCommit(
            self.number,
            start,
            self.next_offset,
            users,
            self._dead_letters,
            saving[0],
            self._tally(now - began),
            last_record=self._mark_last(),
            since=since,
            span=saving[1],
            outcomes=saving[2],
            visits=visits,
            first=self.first,
        )
        self.first = False
        self.committed = self.next_offset
        self._dead_letters = []
        self.committing_bytes, self._dead_letter_bytes = self._dead_letter_bytes, 0
        self._key_mismatches = self._ignored = 0
        self.lost = self.gaps = 0
        self._events = 0
        self._began = None
        return pending

    def save(self, pending: PendingCommit) -> Iterator[None]:
        """Make the checkpoint of a pending, if it has one, a bounded piece at a step."""
        if pending.pieces is not None:
            pending.checkpoint = yield from pending.pieces
            pending.pieces = None
            self.held = False

    @property
    def can_fill(self) -> bool:
        """Whether `fill` may be called: nothing is under way, and visits do not pile up."""
        many = self.state.experiments.untaken >= MAX_BATCH_VISITS
        return not (self.restoring or self.held or many)

    def fill(self, found: ArmSums, visits: Sequence[Visit], begin: int) -> None:
        """Fill slates of outcome files into an experiment, see `ExperimentSums.fill`.

        The next checkpoint has all of it, or none where it does not count.
        """
        assert not self.held, "a checkpoint is of one state"
        self.state.experiments.fill(found, visits, begin)
        self._unsaved_fill = True

    def _mark_last(self) -> RecordMark | None:
        """Return the mark of the last record applied since the last commit; None where none was."""
        last, self._last = self._last, None
        return None if last is None else mark(*last)

    def published(self, pending: PendingCommit) -> None:
        """Name the span of a commit in no further checkpoint.

        Until then every checkpoint names it. A worker may be told to stop before it could publish
        a span, and still write another checkpoint. The next owner then publishes both.
        """
        if pending.span is not None:
            self._unpublished.remove(pending.span.name)

    def _checkpoint(
        self, now: float
    ) -> Generator[
        None,
        None,
        tuple[Generator[None, None, Checkpoint], Span | None, Callable[[], list[Outcome]]],
    ]:
        self.checkpoint_at = now + self.limits.checkpoint_seconds
        token = secrets.token_hex(6)
        slates = yield from self.state.finalizing()
        span = Span(self.number, self.saved, self.next_offset, token) if slates else None
        if span is not None:
            self._unpublished.append(span.name)
        steps = pieces(self.state, f"{self.next_offset}-{token}", list(self._unpublished))
        self.saved = self.checkpoint_offset = self.next_offset
        self._unsaved_fill = False
        return steps, span, partial(self.state.outcomes_of, slates)

    def _tally(self, seconds: float) -> Tally:
        counts = self._counts()
        risen = rise(self._known, counts)
        # A count that a correction lowered keeps its old height: it was counted up to there.
        self._known = highest(self._known, counts)
        return Tally(
            counters=risen["events"],
            changes=self.state.changes,
            feedback=risen["feedback"],
            overflow=risen["overflow"],
            key_mismatches=self._key_mismatches,
            messages_ignored=self._ignored,
            dead_letters=len(self._dead_letters),
            lost=self.lost + self.gaps,
            gaps=self.gaps,
            batch_seconds=seconds,
        )

    def _counts(self) -> dict[str, Any]:
        """Return the counts of the state so far."""
        return {
            "events": self.state.events,
            "feedback": dict(self.state.attribution.feedback_kinds),
            "overflow": self.state.overflow,
        }

    # ------------------------------------------------------------------- status

    def status(self, now: float, lag: int | None) -> PartitionStatus:
        """Describe this partition for the pages."""
        age = None if self.checkpointed_at is None else now - self.checkpointed_at
        return PartitionStatus(
            partition=self.number,
            watermark=self.state.watermark,
            reading_time=self.state.reading_time,
            lag=lag,
            committed_offset=self.stored,
            open_slates=self.state.slates.count,
            users=len(self.state.windows.cells),
            checkpoint_age_seconds=age,
            checkpoint_bytes=self.checkpoint_bytes,
            counters=self.state.events,
            restoring=self.restoring,
        )


def _head(text: bytes | None) -> bytes | None:
    """Keep as much of a key or a value as a dead letter may hold."""
    if text is None:
        return None
    return text.head if isinstance(text, TooLarge) else cut(text, MAX_DEAD_LETTER_BYTES)


def _mismatches(keys: Sequence[bytes | None], events: Sequence[Event]) -> int:
    """Count records whose key is not their user; rare, so all are compared at once first."""
    users = [event.user_id for event in events]
    try:
        if b"\n".join(keys) == "\n".join(users).encode():  # type: ignore[arg-type]
            return 0
    except TypeError:  # a record without a key
        pass
    return sum(key != user.encode() for key, user in zip(keys, users, strict=True))
