"""The interfaces of the log and the store: Kafka and Redis, or the models of the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from streameval.core.record_mark import RecordMark
from streameval.kafka.records import DeadLetter, Listener, Records
from streameval.store.lease import Lease
from streameval.store.scorecards import ExperimentStore
from streameval.store.stored_values import Applied, Commit, Facts, Fenced, Stored, Torn


class EventLog(Protocol):
    """The topic, as one member of the consumer group sees it. Offsets count records."""

    cluster_id: str
    topic_id: str
    partitions: int  # of the topic; 0 before `connect`

    @property
    def trouble(self) -> str:
        """One line on what Kafka lacks though it answers; "" where it lacks nothing."""

    async def connect(self) -> int:
        """Wait for the brokers and the topic (a line every few seconds); return its partitions."""

    async def start(self, listener: Listener) -> None:
        """Join the group; connect first, unless `connect` came before."""

    async def poll(self, seconds: float, max_records: int) -> list[Records]:
        """Return the next records, by partition; wait at most `seconds`."""

    def seek(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on."""

    def pause(self, partition: int) -> None:
        """Do not read `partition` for now."""

    def resume(self, partition: int) -> None:
        """Read `partition` again."""

    async def bounds(self, partition: int) -> tuple[int, int | None]:
        """Return the first offset of the log, and the one after its last (None: not told)."""

    async def mark_at(self, partition: int, offset: int) -> RecordMark | None:
        """Return the mark of the record at `offset`; None where the log holds no record there."""

    def lag(self, partition: int, next_offset: int) -> int | None:
        """Count records from `next_offset` to the end, as of the last fetch or probe, if known."""

    def unreadable(self, partition: int) -> str | None:
        """Name the unreadable batch that `partition` waits before, and why it is unreadable."""

    async def write_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Write to the dead-letter topic until acknowledged; count those that Kafka refuses."""

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell the group's offsets, for tools that show lag; failure is of no consequence."""

    async def probe(self) -> bool:
        """Whether a broker answers."""

    async def close(self, deadline: float) -> None:
        """Leave the group and close, within `deadline` seconds."""


class StateStore(ExperimentStore, Protocol):
    """The store of counters, offsets and checkpoints."""

    async def facts(self) -> Facts:
        """Ask the server about itself."""

    async def check(self) -> None:
        """Raise where the server is away or not fit for use."""

    async def offset(self, partition: int) -> int | None:
        """Read the stored offset alone."""

    async def standing(self, partition: int) -> Stored:
        """Read everything stored of a partition but for the chunks of its checkpoint."""

    async def checkpoint_offset(self, partition: int) -> int | None:
        """Read the offset of the stored checkpoint alone."""

    async def note_batch(self, partition: int, offset: int, most: int) -> int:
        """Note that the batch at `offset` is being unpacked; count the notes that others left."""

    async def forget_batch(self, partition: int) -> None:
        """Withdraw the note: the batch was committed or given up, or is another worker's now."""

    async def load(self, partition: int) -> Stored:
        """Read everything stored of a partition."""

    async def commit(self, commit: Commit) -> Applied | Fenced | Torn:
        """Apply whole or not at all; tries until the store answers."""

    async def mend(self, partition: int, torn: int) -> None:
        """Put right what a commit left that was applied in part."""

    async def reset_windows(self, partition: int, fingerprint: str, definition: str) -> None:
        """Forget the windows, keep the counters."""

    def lease(self, owner: str, ttl: int) -> Lease:
        """Make the leader's lease of this group and topic; it lapses `ttl` ms after renewal."""

    async def close(self, deadline: float) -> None:
        """Close, within `deadline` seconds."""
