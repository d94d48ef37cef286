"""Fetches by topic id, with the epoch of the record before: no other log can answer them.

aiokafka asks for records by topic name and offset. A topic may be deleted and made anew. A log may
be set back (an unclean leader election, a restored disk) and grow again. Both answer with records
that do not follow those read before. Kafka's protocol can tell, from version 13 of Fetch on:

* requests name topics by their ids, so a topic made anew is an unknown topic;
* a request carries the leader epoch of the last record read (KIP-320, KIP-595). A broker whose log
  ends that epoch earlier answers where the logs diverge, with no records.

Before Kafka 4 a broker that is killed, and back within its session, goes on in the same epoch,
whatever its disk holds. So over a new connection the last batch read is fetched once more, and its
header compared.

`VerifyingClient` stands between aiokafka's fetcher and its client. It sends this version and
answers in the layout of version 11, which the fetcher reads. It asks brokers before 3.1 as aiokafka
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    for_code,
)

from streameval.core.record_mark import NO_RECORD, RecordMark, mark
from streameval.kafka.aiokafka_internals import (
    READ_UNCOMMITTED,
    CompactArray,
    CompactBytes,
    CompactString,
    FetchRequest,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    RequestStruct,
    Response,
    Schema,
    TaggedFields,
    connection_to,
    fetch_options,
)
from streameval.kafka.batch_format import RECORDS, batches, open_batch
from streameval.kafka.records import UNIT
from streameval.kafka.topic_identity import UUID
from streameval.kafka.unpacking import Memory, Parts

FETCH: Final = 1
NO_EPOCH: Final = -1
# Error codes for an id that a broker does not know (any more), or knows by another name.
_OTHER_TOPIC: Final = (100, 103)
# The tagged field of a partition's response that says where the logs diverge.
_DIVERGING: Final = 0
# Before a request that was refused is sent again; aiokafka would do it at once.
PAUSE_SECONDS: Final = 0.1

# Of a batch's header: base offset, length, leader epoch, version; then crc, attributes and the
# offset of the last record, counted from the base offset.
_HEADER: Final = struct.Struct(">qiib4x2xi")
_BEFORE_LENGTH: Final = 12  # bytes that the length does not count
_VERSION: Final = 2  # earlier ones have no leader epoch

_TEXT: Final = CompactString("utf-8")


class _Response13(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = FETCH
    API_VERSION = 13
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        (
            "responses",
            CompactArray(
                ("topic_id", UUID),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("high_watermark", Int64),
                        ("last_stable_offset", Int64),
                        ("log_start_offset", Int64),
                        (
                            "aborted_transactions",
                            CompactArray(
                                ("producer_id", Int64),
                                ("first_offset", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("preferred_read_replica", Int32),
                        ("records", CompactBytes),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _Request13(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    FLEXIBLE_VERSION = True
    API_KEY = FETCH
    API_VERSION = 13
    RESPONSE_TYPE = _Response13
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("max_wait_ms", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        (
            "topics",
            CompactArray(
                ("topic_id", UUID),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("fetch_offset", Int64),
                        ("last_fetched_epoch", Int32),
                        ("log_start_offset", Int64),
                        ("partition_max_bytes", Int32),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        (
            "forgotten_topics_data",
            CompactArray(
                ("topic_id", UUID), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("rack_id", _TEXT),
        ("tags", TaggedFields),
    )


class _FetchById(Request[_Request13]):  # type: ignore[misc]  # aiokafka has no types
    """A request of aiokafka's fetcher, by topic id; `epochs` by partition."""

    API_KEY = FETCH

    def __init__(self, plain: FetchRequest, topic_id: str, epochs: dict[int, int]) -> None:
        self._plain, self._topic_id, self._epochs = plain, topic_id, epochs

    def build(self, request_struct_class: type[_Request13]) -> _Request13:
        plain = self._plain
        partitions: list[tuple[Any, ...]] = [
            (partition, NO_EPOCH, offset, self._epochs[partition], -1, max_bytes, {})
            for _, asked in plain.topics
            for partition, offset, max_bytes in asked
        ]
        *limits, rack = fetch_options(plain)
        topics: list[tuple[Any, ...]] = [(self._topic_id, partitions, {})]
        no_replica, no_session = -1, (0, -1)
        return request_struct_class(no_replica, *limits, *no_session, topics, [], rack, {})


class _Response11:
    """The part of a response that the fetcher reads, in the layout of version 11."""

    API_VERSION: Final = 11

    def __init__(self, topic: str, partitions: list[tuple[Any, ...]]) -> None:
        self.topics = [(topic, partitions)]


class _Past:
    """What was fetched of one partition: leader epochs up to offset `end`, and the last batch.

    Its `header` is b"" where none is known. The log was read over `connection`.
    """

    def __init__(self) -> None:
        self.end = -1
        self.header = b""
        self.connection: Any = None
        self._starts: list[int] = []
        self._epochs: list[int] = []

    def before(self, offset: int) -> int:
        """Return the epoch of the record before `offset`, `NO_EPOCH` where nobody knows it."""
        at = bisect_left(self._starts, offset)
        return self._epochs[at - 1] if at and offset <= self.end else NO_EPOCH

    @property
    def last(self) -> int:
        """The offset at which the last batch begins."""
        return int(_HEADER.unpack_from(self.header)[0])

    def learn(self, offset: int, records: bytes, connection: Any) -> None:
        """Take note of the records that a fetch at `offset` brought over a connection."""
        self.connection = connection
        at = bisect_left(self._starts, offset) if offset <= self.end else 0
        del self._starts[at:], self._epochs[at:]
        for at, start, end, epoch in _batches(records):
            if not self._epochs or epoch != self._epochs[-1]:
                self._starts.append(start)
                self._epochs.append(epoch)
            self.end = end
            self.header = records[at : at + RECORDS]


def _batches(records: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield place, first offset, next offset and leader epoch of each whole batch."""
    at, size = 0, len(records)
    while at + _HEADER.size <= size:
        first, length, epoch, version, last = _HEADER.unpack_from(records, at)
        end = at + _BEFORE_LENGTH + length
        if version != _VERSION or end > size:
            return
        yield at, first, first + last + 1, epoch
        at = end


def _mark_in(topic_partition: TopicPartition, records: bytes, offset: int) -> RecordMark | None:
    """Find the record at `offset` in the batch that a fetch from there begins with.

    None where the offset has no record, or the batch is so large that it would have to wait for its
    turn.
    """
    raw = next(batches(records), None)
    if raw is None:
        return None
    batch = open_batch(raw)
    if not batch.validate_crc():
        raise CorruptRecordException(f"a damaged batch at offset {offset}")
    if batch.is_control_batch:
        return RecordMark(offset, NO_RECORD) if batch.base_offset <= offset else None
    memory = Memory()  # its pages take memory when they are written to
    try:
        found = memory.records(topic_partition, raw, batch, offset, UNIT)
        with contextlib.closing(_parts(found)) as parts:
            for part in parts:
                if memory.asked is not None:
                    return None
                for row in part:
                    if row.offset == offset:
                        return mark(offset, row.timestamp, row.key, row.value)
    except Exception as error:  # any codec's error too
        raise CorruptRecordException(f"the batch at offset {offset}: {error}") from error
    return None


def _parts(found: list[Any] | Parts) -> Parts:
    """Yield the records of a batch part by part, also where they come all at once."""
    if isinstance(found, list):
        yield found
    else:
        yield from found


class VerifyingClient:
    """The client of one consumer's fetcher, which verifies that the log goes on where it was left.

    If it does not, the fetcher hears that the offset is out of range. A topic with another id is
    unknown. While `topic_id` is "", for a broker that tells no ids, nothing is verified.
    """

    def __init__(self, client: Any, topic: str, topic_id: str = "") -> None:
        self._client, self._topic, self.topic_id = client, topic, topic_id
        self._pasts: dict[int, _Past] = {}

    def __getattr__(self, name: str) -> Any:
        """Take everything else from the client."""
        return getattr(self._client, name)

    def forget(self, partition: int) -> None:
        """Compare the next fetch of a partition with nothing that was read before."""
        self._pasts.pop(partition, None)

    async def mark_at(self, partition: int, offset: int) -> RecordMark | None:
        """Return the mark of the record at `offset`; None where the log holds no record there.

        For a marker of transactions at the offset, the mark has the checksum `NO_RECORD`. Raises
        aiokafka's errors.
        """
        topic_partition = TopicPartition(self._topic, partition)
        self.forget(partition)
        leader = self._client.cluster.leader_for_partition(topic_partition)
        if leader is None or leader < 0:
            self._client.force_metadata_update()
            raise LeaderNotAvailableError(topic_partition)
        # The batch that holds the offset comes whole, however small the limits are.
        request = FetchRequest(0, 1, 1, READ_UNCOMMITTED, [(self._topic, [(partition, offset, 1)])])
        answer = await self.send(leader, request)
        for _, partitions in answer.topics:
            for _, code, *_, records in partitions:
                if code:
                    self._client.force_metadata_update()
                    raise for_code(code)(topic_partition)
                # The batch may hold a million records: a second.
                return await asyncio.to_thread(_mark_in, topic_partition, records, offset)
        return None

    async def send(self, node: int, request: Any, **options: Any) -> Any:
        """Send a request to a broker; raises aiokafka's errors."""
        if not isinstance(request, FetchRequest) or not self._topic:
            return await self._client.send(node, request, **options)
        await self._client.ready(node)
        connection = connection_to(self._client, node)
        asked = {partition: offset for _, asked in request.topics for partition, offset, _ in asked}
        for partition in asked:
            if code := await self._compare(node, connection, partition):
                await asyncio.sleep(PAUSE_SECONDS)
                return _Response11(self._topic, [(partition, code, -1, -1, -1, [], -1, b"")])
        answer = await self._fetch(node, request, **options)
        for _, partitions in answer.topics:
            for partition, code, *_, records in partitions:
                if records and not code:
                    past = self._pasts.setdefault(partition, _Past())
                    past.learn(asked[partition], records, connection)
        return answer

    async def _compare(self, node: int, connection: Any, partition: int) -> int:
        """Return the error of a partition where another batch stands for the last; 0 without any.

        Nothing is asked over the connection by which it was read. A follower may not have the batch
        yet, and retention may have removed it: that tells nothing.
        """
        past = self._pasts.get(partition)
        if past is None or past.connection is connection or not past.header:
            return 0
        place = [(self._topic, [(partition, past.last, 1)])]
        answer = await self._fetch(node, FetchRequest(0, 1, 1, READ_UNCOMMITTED, place))
        for _, partitions in answer.topics:
            for _, code, *_, records in partitions:
                if code and code != OffsetOutOfRangeError.errno:
                    return int(code)
                if records and records[:RECORDS] != past.header:
                    return int(OffsetOutOfRangeError.errno)
        past.connection = connection
        return 0

    async def _fetch(self, node: int, request: FetchRequest, **options: Any) -> Any:
        """Fetch by the topic's id, where the broker tells one, else by its name."""
        if not self.topic_id:
            return await self._client.send(node, request, **options)
        epochs = {
            partition: self._known(node, partition, offset)
            for _, asked in request.topics
            for partition, offset, _ in asked
        }
        try:
            answer = await self._client.send(node, _FetchById(request, self.topic_id, epochs))
        except NotImplementedError:  # a broker before 3.1
            return await self._client.send(node, request, **options)
        partitions = [
            _translated(*partition)
            for _, partitions, _ in answer.responses
            for partition in partitions
        ]
        if any(partition[1] for partition in partitions):
            await asyncio.sleep(PAUSE_SECONDS)
        return _Response11(self._topic, partitions)

    def _known(self, node: int, partition: int, offset: int) -> int:
        """Return the epoch to send, if any: a follower that lags would call it a divergence."""
        past = self._pasts.get(partition)
        leader = self._client.cluster.leader_for_partition(TopicPartition(self._topic, partition))
        return past.before(offset) if past is not None and node == leader else NO_EPOCH


def _translated(  # noqa: PLR0917  # the fields of the response, in its order
    partition: int,
    error: int,
    high_watermark: int,
    last_stable: int,
    log_start: int,
    aborted: list[tuple[int, int, Any]] | None,
    preferred: int,
    records: bytes | None,
    tags: dict[int, bytes],
) -> tuple[Any, ...]:
    if error in _OTHER_TOPIC:
        error = UnknownTopicOrPartitionError.errno
    elif not error and _DIVERGING in tags:
        error = OffsetOutOfRangeError.errno
    aborts = [(producer, first) for producer, first, _ in aborted or ()]
    return (
        partition,
        error,
        high_watermark,
        last_stable,
        log_start,
        aborts,
        preferred,
        records or b"",
    )
