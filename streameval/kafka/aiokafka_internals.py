"""Every private part of aiokafka that the service uses; no other file touches one.

aiokafka makes a `ConsumerRecord` of eleven fields for each record and hands them out one by one.
This takes 1.0 of the 1.6 us that a record costs on its way to us. We need four fields, and lists of
them. There is no public way to fetched batches, nor to a fetch that names a topic by its id, so
reading stands on private parts of aiokafka 0.14.0:

1. The fetcher keeps the records of a partition in `_records`, as a `FetchResult`. Its
   `_partition_records` is an iterator with a `next_fetch_offset`. `FetchTap` replaces `_records`,
   so that `record_batches` can replace each iterator as it is stored. Positions, seeks, pauses and
   rebalances stay with aiokafka.
2. The fetcher looks its class for the bytes of a response up by the name `MemoryRecords`. Ours
   keeps the bytes.
3. The fetcher reads `_fetch_max_bytes` and `_max_partition_fetch_bytes` before each fetch.
4. `_get_actions_per_node` returns the fetches to send. Ours returns none while enough is fetched.
   The fetcher wakes up when records are handed out or forgotten.
5. The fetcher deletes a `FetchResult` that ends from `_records`. One that only waits for memory
   stays (`Fetched.__delitem__`), so nothing is fetched twice.
6. Clients connect by the name `create_conn`, with secrets as they were when the client was made.
   Ours reads those again that can be.
7. Clients ask for metadata by `_metadata_update`, and only brokers that they know. Ours asks the
   configured servers where none of these answers: all may have other addresses by now (KIP-899).
8. Errors of brokers are looked up by code in `kafka_errors`, which ends at 72. Ours has more.
9. The classes of the protocol and of batches let us write requests of newer versions, and unpack
   batches within a budget.

Another release of aiokafka may lack some of this: the package refuses it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import client as _client_module
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.consumer import fetcher as _fetcher_module
from aiokafka.consumer.fetcher import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchResult,
    PartitionRecords,
)
from aiokafka.errors import (
    CorruptRecordException,
    UnknownError,
    UnknownMemberIdError,
    kafka_errors,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import BrokerMetadata

from streameval.kafka.connection_errors import TokenError, note_place

__all__ = [
    "READ_UNCOMMITTED",
    "Boolean",
    "CompactArray",
    "CompactBytes",
    "CompactString",
    "DefaultRecordBatch",
    "FetchRequest",
    "FetchResult",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "LegacyRecordBatch",
    "MetadataRequest",
    "Request",
    "RequestStruct",
    "Response",
    "Schema",
    "TaggedFields",
]

_BOOTSTRAP: Final = "bootstrap"
_LEGACY_CODECS: Final = {1: "gzip_decode", 2: "snappy_decode", 3: "lz4_decode"}


# --- The client ---------------------------------------------------------------------------------


def client_of(consumer: AIOKafkaConsumer) -> Any:
    """Return the client of a consumer, which sends requests of our own."""
    return consumer._client


def replace_fetch_client(consumer: AIOKafkaConsumer, wrap: Callable[[Any], Any]) -> Any:
    """Have a consumer fetch through what `wrap` makes of its client, and return that."""
    fetcher = consumer._fetcher
    fetcher._client = wrapped = wrap(fetcher._client)
    return wrapped


def connection_to(client: Any, node: int) -> Any:
    """Return the connection that requests to a broker take; None where there is none."""
    return client._conns.get((node, ConnectionGroup.DEFAULT))


def fetch_options(request: FetchRequest) -> tuple[int, int, int, int, str]:
    """Return longest wait (ms), fewest and most bytes, isolation level and rack of a request."""
    return (
        request._max_wait_ms,
        request._min_bytes,
        request._max_bytes,
        request._isolation_level,
        request._rack_id,
    )


def is_broken(consumer: AIOKafkaConsumer) -> bool:
    """Whether a background task of a member of a group has ended."""
    tasks = (consumer._fetcher._fetch_task, consumer._coordinator._coordination_task)
    return any(task.done() for task in tasks)


def forget_failed_read(consumer: AIOKafkaConsumer) -> None:
    """Count no read as under way: aiokafka counts one that failed for ever.

    It would not notice a reader that hangs then.
    """
    consumer._subscription._fetch_count = 0


async def stop_whole(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer whole: where its fetcher leaks a `CancelledError`, it leaves the rest."""
    leaked: BaseException | None = None
    try:
        await consumer.stop()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - not GeneratorExit: a loop that is gone awaits nothing
        leaked = error
    client = getattr(consumer, "_client", None)
    if client is not None:  # nobody else closes its connections then
        await client.close()
    if leaked is not None:
        raise leaked


# --- Errors -------------------------------------------------------------------------------------

# A member whose name another one took is fenced (82). It forgets its id and joins anew, as after a
# heartbeat, where Kafka has no code for it. Else it would come with its old id for ever.
kafka_errors.setdefault(82, UnknownMemberIdError)
_NAMES: Final = {
    76: "UnsupportedCompressionType",
    81: "GroupMaxSizeReached",
    87: "InvalidRecord",
    89: "ThrottlingQuotaExceeded",
}
for _code, _name in _NAMES.items():
    kafka_errors.setdefault(_code, type(f"{_name}Error", (UnknownError,), {"errno": _code}))

# --- Connections --------------------------------------------------------------------------------


_create_conn = _client_module.create_conn


async def _connect(host: str, port: int, **options: Any) -> Any:
    for name in ("ssl_context", "sasl_plain_password"):
        if (anew := getattr(options.get(name), "anew", None)) is not None:
            options[name] = anew()
    try:
        return await _create_conn(host, port, **options)
    except (Exception, asyncio.CancelledError) as error:
        note_place(error, host, port)
        if type(error).__module__.startswith("gssapi."):  # no error of a connection to aiokafka
            raise TokenError(str(error)) from error
        raise


_client_module.create_conn = _connect
_metadata_update = AIOKafkaClient._metadata_update


async def _update_metadata(client: Any, cluster: Any, topics: Any) -> bool:
    """Update what a client knows of the cluster; returns whether some broker has answered."""
    if await _metadata_update(client, cluster, topics):
        return True
    brokers = client.cluster._bootstrap_brokers
    try:
        for host, port, _ in client.hosts:
            brokers[_BOOTSTRAP] = BrokerMetadata(_BOOTSTRAP, host, port, None)
            if await client._get_conn(_BOOTSTRAP) is not None:  # it is asked, too, and closed
                return bool(await _metadata_update(client, cluster, topics))
    finally:
        brokers.pop(_BOOTSTRAP, None)
    return False


AIOKafkaClient._metadata_update = _update_metadata


# --- Fetched records ----------------------------------------------------------------------------


class KeptRecords(MemoryRecords):  # type: ignore[misc]  # aiokafka calls it final
    """The bytes of a partition in a response; `data` are all of them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


class FetchedPartition(PartitionRecords):  # type: ignore[misc]  # it has no types
    """An iterator over one fetch of a partition, in place of the `plain` one of aiokafka.

    A subclass yields the records in `unpack`, and keeps `next_fetch_offset` after those handed out.
    """

    next_fetch_offset: int

    def __init__(self, plain: PartitionRecords) -> None:
        super().__init__(
            plain._tp,
            plain._records,
            plain._aborted_transactions,
            plain.next_fetch_offset,
            None,
            None,
            plain._check_crcs,
            plain._isolation_level,
        )
        self._records_iterator: Generator[Any, None, None] | None

    def unpack(self) -> Generator[Any, None, None]:
        """Yield the items to hand out."""
        raise NotImplementedError

    def _unpack_records(self) -> Generator[Any, None, None]:
        return self.unpack()

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that was fetched."""
        return self._tp

    @property
    def data(self) -> bytes:
        """All bytes that the broker sent."""
        data: bytes = self._records.data
        return data

    def close(self) -> None:
        """Give back the memory of the batch that is being read."""
        if self._records_iterator is not None:
            self._records_iterator.close()
            self._records_iterator = None

    def holds_records(self, batch: Any) -> bool:
        """Whether a batch has records for us: no marker, and not of an aborted transaction.

        Raises `CorruptRecordException`.
        """
        if self._check_crcs and not batch.validate_crc():
            raise CorruptRecordException(f"Invalid CRC - {self._tp}")
        if self._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return False
        return not batch.is_control_batch


class FetchTap:
    """The fetcher of one consumer, as `record_batches` steers it."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._client, self._fetcher = consumer._client, consumer._fetcher

    def install(
        self, fetched: dict[Any, Any], restrain: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """Have the fetcher keep records in `fetched`, and send the fetches that `restrain` lets."""
        fetcher = self._fetcher
        assert not fetcher._records, "nothing is fetched before there is a subscription"
        fetcher._records = fetched
        fetcher._get_actions_per_node = restrain(fetcher._get_actions_per_node)
        _fetcher_module.MemoryRecords = KeptRecords

    def set_fetch_bytes(self, total: int, partition: int) -> None:
        """Bound the bytes of a fetch from all brokers together, and of one partition in it."""
        brokers = len(self._client.cluster.brokers())
        self._fetcher._fetch_max_bytes = total // max(1, brokers)
        self._fetcher._max_partition_fetch_bytes = partition


def records_of(result: FetchResult) -> PartitionRecords:
    """Return the iterator over the records of a fetch."""
    return result._partition_records


def set_records(result: FetchResult, records: FetchedPartition) -> None:
    """Replace the iterator over the records of a fetch."""
    result._partition_records = records


def set_legacy_codecs(decoders: dict[int, Callable[[Any], bytes]]) -> None:
    """Have batches of Kafka's first formats unpacked by `decoders`, by the number of the codec."""
    codecs = sys.modules[LegacyRecordBatch.__module__]
    for number, name in _LEGACY_CODECS.items():
        setattr(codecs, name, decoders[number])
