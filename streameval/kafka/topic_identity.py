"""The identity of a log: cluster id, topic id and partitions, in one request.

A topic that was deleted and made anew has its old name and another id. Kafka tells ids since
Metadata version 10, which aiokafka does not speak. So the request is written here on aiokafka's
protocol classes, field by field as in Kafka's MetadataRequest.json and MetadataResponse.json.
"""

from __future__ import annotations

import asyncio
import base64
import random
from io import BytesIO
from typing import Any, Final

from aiokafka import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, UnknownTopicOrPartitionError, for_code

from streameval.kafka.aiokafka_internals import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    MetadataRequest,
    Request,
    RequestStruct,
    Response,
    Schema,
    TaggedFields,
)
from streameval.kafka.records import LogIdentity

METADATA: Final = 3
# A broker that is silent for so long may be down: another one is asked, too.
HESITATION_SECONDS: Final = 0.5


class _Uuid(CompactString):  # type: ignore[misc]  # aiokafka has no types
    """16 bytes, written in URL-safe base 64 without padding as Kafka does; "" stands for none."""

    def decode(self, data: BytesIO) -> str:
        raw = data.read(16)
        return base64.urlsafe_b64encode(raw).decode().rstrip("=") if any(raw) else ""

    def encode(self, value: str | None) -> bytes:
        return base64.urlsafe_b64decode(f"{value}==") if value else bytes(16)


UUID: Final = _Uuid("utf-8")
_TEXT: Final = CompactString("utf-8")


class _Response10(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = METADATA
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", _TEXT),
                ("port", Int32),
                ("rack", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _TEXT),
                ("topic_id", UUID),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _Request10(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    FLEXIBLE_VERSION = True
    API_KEY = METADATA
    API_VERSION = 10
    RESPONSE_TYPE = _Response10
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", UUID), ("name", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _TopicRequest(Request[_Request10]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = METADATA

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_Request10]) -> _Request10:
        return request_struct_class([("", self._topic, {})], False, False, False, {})  # noqa: FBT003 - fields of the wire


async def identify(client: AIOKafkaClient, topic: str) -> LogIdentity | None:
    """Ask the brokers for the identity of `topic`; None if it does not exist.

    The first broker that answers will do. If one fails or hesitates, another one is asked.
    Raises aiokafka's errors.
    """
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(nodes)
    asking: set[asyncio.Task[LogIdentity | None]] = set()
    error: BaseException = KafkaConnectionError("no broker is known")
    try:
        while nodes or asking:
            if nodes:
                asking.add(asyncio.ensure_future(_ask(client, nodes.pop(), topic)))
            done, asking = await asyncio.wait(
                asking,
                timeout=HESITATION_SECONDS if nodes else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                failed = task.exception()
                if failed is None:
                    return task.result()
                error = failed
        raise error
    finally:
        for task in asking:
            task.cancel()


async def _ask(client: AIOKafkaClient, node: int, topic: str) -> LogIdentity | None:
    """Ask one broker; one without version 10 tells neither id. No question creates a topic."""
    try:
        answer: Any = await client.send(node, _TopicRequest(topic))
    except NotImplementedError:
        answer = await client.send(node, MetadataRequest([topic], allow_auto_topic_creation=False))
    found = answer.to_object()
    described = found["topics"][0]
    error = for_code(described["error_code"])
    if error is UnknownTopicOrPartitionError:
        return None
    if described["error_code"]:
        raise error(topic)
    return LogIdentity(
        cluster_id=found.get("cluster_id") or "",
        topic_id=described.get("topic_id", ""),
        partitions=len(described["partitions"]),
        leaderless=frozenset(
            each["partition"] for each in described["partitions"] if each["leader"] < 0
        ),
    )
