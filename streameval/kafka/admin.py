"""Short visits to Kafka for `doctor`, `user` and `demo`, beside the worker's event log.

`client` always stands for the arguments from `consumer.client_arguments`: servers and security.
Every call raises `UnreachableError` if no server answers and `RefusedError` if one refuses us.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
)

from streameval.base.errors import RefusedError, StreamevalError, UnreachableError
from streameval.kafka.connection_errors import listening
from streameval.kafka.records import value_of

log = logging.getLogger(__name__)
Client = Mapping[str, Any]
Send = Callable[[bytes, bytes], Awaitable[object]]
"""Hands over a key and a value; they are sent soon, and all of them before the sender ends."""

TIMESTAMP_TYPE: Final = "message.timestamp.type"
TIMESTAMP_AHEAD: Final = "message.timestamp.after.max.ms"
CLEANUP_POLICY: Final = "cleanup.policy"
# A consumer that has just started fetches nothing for a while.
SAMPLE_SECONDS: Final = 5.0
# Kafka makes the topic of groups when the first one comes.
GROUP_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.5
FETCH_MS: Final = 500
REQUEST_MS: Final = 10_000

# Errors are raised here and reported as one line; aiokafka would print several.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


class Cluster(NamedTuple):
    """A cluster's description of itself; `topics` are how many replicas each topic has.

    `cluster_id` is "" where the server does not say which it is.
    """

    cluster_id: str
    topics: Mapping[str, int]


class Extent(NamedTuple):
    """The offsets of a partition: its first record's, and the next one's."""

    start: int
    end: int


class Sampled(NamedTuple):
    """A record as it lies in the log; `timestamp` in ms."""

    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def creation(servers: str, topic: str, partitions: int) -> str:
    """Return the command that creates a topic."""
    return (
        f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic}"
        f" --partitions {partitions}"
    )


async def cluster(client: Client) -> Cluster:
    """Ask for the cluster's id and its topics (asking for all creates none)."""
    async with _admin(client) as admin:
        about = await admin.describe_cluster()
        return Cluster(about["cluster_id"] or "", await replicas(admin))


async def replicas(admin: AIOKafkaAdminClient) -> dict[str, int]:
    """Return for each topic how many replicas it is to have, also while their brokers are down.

    It asks for all topics: to ask for one might create it.
    """
    return {
        topic["topic"]: max((len(each["replicas"]) for each in topic["partitions"]), default=0)
        for topic in await admin.describe_topics()
    }


async def partitions(client: Client, topic: str) -> int:
    """Count the partitions of a topic; 0 if it does not exist."""
    async with _admin(client) as admin:
        if topic not in await admin.list_topics():
            return 0
        described = await admin.describe_topics([topic])
        return len(described[0]["partitions"])


async def topic_settings(client: Client, topic: str) -> dict[str, str]:
    """Read the topic's settings that matter here; empty if the broker does not tell."""
    names = dict.fromkeys((TIMESTAMP_TYPE, TIMESTAMP_AHEAD, CLEANUP_POLICY), "")
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, names)
    async with _admin(client) as admin:
        # The embedded broker closes the connection instead of an answer.
        with contextlib.suppress(KafkaError):
            responses = await admin.describe_configs([resource])
            entries = responses[0].resources[0][-1]
            return {entry[0]: entry[1] for entry in entries}
    return {}


async def missing_coordinator(client: Client, group: str) -> str:
    """Return why no broker coordinates a group for some seconds; "" where one does."""
    said = ""
    give_up = time.monotonic() + GROUP_SECONDS
    async with _admin(client) as admin:
        while time.monotonic() < give_up:
            try:
                await admin.find_coordinator(group)
            except GroupCoordinatorNotAvailableError as error:
                said = repr(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return ""
    return said


def compacts(settings: Mapping[str, str]) -> bool:
    """Return whether Kafka deletes all but the last event of each key."""
    return "compact" in settings.get(CLEANUP_POLICY, "")


async def warn_of_compaction(client: Client, topic: str) -> None:
    """Log a warning where the topic is compacted; say nothing where Kafka does not tell."""
    with contextlib.suppress(StreamevalError):
        if compacts(await topic_settings(client, topic)):
            log.warning(
                "topic %s has cleanup.policy=compact: Kafka deletes all but the last event of each"
                " key, before or after they are counted; set cleanup.policy=delete",
                topic,
            )


async def create_topics(client: Client, topics: Mapping[str, int]) -> None:
    """Create topics, each with its number of partitions."""
    new = [NewTopic(name, count, replication_factor=1) for name, count in topics.items()]
    async with _admin(client) as admin:
        answer = await admin.create_topics(new)
        for name, code, message in answer.topic_errors:
            if code:
                raise RefusedError(f"Kafka does not create the topic {name}: {message}")


async def delete_topics(client: Client, topics: Sequence[str]) -> None:
    """Delete topics."""
    async with _admin(client) as admin:
        await admin.delete_topics(list(topics))


@asynccontextmanager
async def sender(client: Client, topic: str) -> AsyncIterator[Send]:
    """Open a way to send records to a topic; at the end of the block all are acknowledged."""
    with our_errors(client):
        # The embedded broker knows no idempotent producers, so none is asked for.
        producer = AIOKafkaProducer(**client, acks="all", linger_ms=20)
        try:
            await producer.start()

            async def send(key: bytes, value: bytes) -> None:
                await producer.send(topic, value, key)

            yield send
        finally:
            await producer.stop()


async def extents(client: Client, topic: str) -> dict[int, Extent]:
    """Return the extent of each partition of a topic."""
    topic_partitions = await _topic_partitions(client, topic)
    async with _consumer(client) as consumer:
        return {
            topic_partition.partition: each
            for topic_partition, each in (await _extents(consumer, topic_partitions)).items()
        }


async def sample(client: Client, topic: str, count: int) -> tuple[dict[int, Extent], list[Sampled]]:
    """Return the extent of each partition, and its last `count` records at most."""
    topic_partitions = await _topic_partitions(client, topic)
    async with _consumer(client) as consumer:
        found = await _extents(consumer, topic_partitions)
        records = await _read(consumer, found, count)
    return {topic_partition.partition: extent for topic_partition, extent in found.items()}, records


async def _topic_partitions(client: Client, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(await partitions(client, topic))]


@asynccontextmanager
async def _consumer(client: Client) -> AsyncIterator[AIOKafkaConsumer]:
    """Start a consumer without a group, and stop it at the end of the block."""
    with our_errors(client):
        consumer = AIOKafkaConsumer(
            **client,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=REQUEST_MS,
        )
        try:
            await consumer.start()
            # A consumer stopped before its own tasks have begun raises their cancellation.
            await asyncio.sleep(0)
            yield consumer
        finally:
            await consumer.stop()


async def _extents(
    consumer: AIOKafkaConsumer, topic_partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Extent]:
    async def extent(each: TopicPartition) -> Extent:
        starts = await consumer.beginning_offsets([each])
        return Extent(starts[each], (await consumer.end_offsets([each]))[each])

    found = await asyncio.gather(*map(extent, topic_partitions), return_exceptions=True)
    pairs = list(zip(topic_partitions, found, strict=True))
    failed = [(str(each.partition), it) for each, it in pairs if isinstance(it, BaseException)]
    if failed:
        raise UnreachableError(
            f"the leader of partitions {', '.join(number for number, _ in failed)} does not answer"
            f" ({failed[0][1]!r}): do all brokers run?"
        )
    return {each: it for each, it in pairs if isinstance(it, Extent)}


async def _read(
    consumer: AIOKafkaConsumer, extents: Mapping[TopicPartition, Extent], count: int
) -> list[Sampled]:
    consumer.assign(list(extents))
    for topic_partition, extent in extents.items():
        consumer.seek(topic_partition, max(extent.start, extent.end - count))
    missing = {
        topic_partition for topic_partition, extent in extents.items() if extent.end > extent.start
    }
    found = []
    give_up = time.monotonic() + SAMPLE_SECONDS
    while missing and time.monotonic() < give_up:
        for topic_partition, records in (await consumer.getmany(timeout_ms=FETCH_MS)).items():
            found += [
                Sampled(each.partition, each.timestamp, each.key, value_of(each, whole=True))
                for each in records
            ]
            # The position also counts offsets without a record of a compacted or transactional log.
            if await consumer.position(topic_partition) >= extents[topic_partition].end:
                missing.discard(topic_partition)
    return found


@asynccontextmanager
async def _admin(client: Client) -> AsyncIterator[AIOKafkaAdminClient]:
    with our_errors(client):
        admin = AIOKafkaAdminClient(**client, request_timeout_ms=REQUEST_MS)
        try:
            await admin.start()
            yield admin
        finally:
            await admin.close()


@contextmanager
def our_errors(client: Client) -> Iterator[None]:
    """Translate aiokafka's errors into our own."""
    servers = client["bootstrap_servers"]
    where = f"Kafka at {servers}"
    with listening() as heard:
        try:
            yield
        except (TimeoutError, KafkaConnectionError, KafkaTimeoutError, OSError) as error:
            silent = UnreachableError(f"{where} does not answer ({error}): is it running?")
            raise heard.told(servers) or silent from error
        except KafkaError as error:
            if isinstance(error, NodeNotReadyError) and (told := heard.told(servers)):
                raise told from error
            if error.retriable:
                cure = "do all of its brokers run?"
                raise UnreachableError(f"{where} cannot answer now ({error!r}): {cure}") from error
            raise RefusedError(f"{where} refuses: {error!r}") from error
