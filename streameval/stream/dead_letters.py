"""The dead-letter topic: rejected records with the reason in their headers.

A letter carries the record's key and the first `MAX_DEAD_LETTER_BYTES` of its value, and as headers
`reason`, `detail`, and where it was: `topic`, `partition`, `offset`, `timestamp` (ms). Letters are
sent again until they are acknowledged, so one may come twice, with the same offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from streameval.core.errors import RefusedError
from streameval.core.limits import MAX_DEAD_LETTER_BYTES
from streameval.stream.owned import DeadLetter
from streameval.stream.patience import Complaints, within

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 5.0
# Brokers that keep a letter, where there are as many.
REPLICAS: Final = 3


class DeadLetters:
    """Writes rejected records of `source` to `topic`; connects at the first letter.

    `client` are the arguments that every client of aiokafka takes.
    """

    def __init__(self, client: Mapping[str, Any], source: str, topic: str) -> None:
        self._client, self._source, self._topic = client, source, topic
        self._producer: AIOKafkaProducer | None = None
        self._opening = asyncio.Lock()
        self._complaints = Complaints(log, f"Kafka at {client['bootstrap_servers']}")

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Write `letters`; returns when all are acknowledged, tries until then.

        Raises `RefusedError` where the topic is missing and may not be created.
        """
        left = list(letters)
        while left:
            try:
                producer = await self._open()
                sent = [await self._send(producer, letter) for letter in left]
            except (KafkaError, OSError) as error:
                self._complaints.say("waiting for it to take dead letters", error)
            else:
                results = await asyncio.gather(*sent, return_exceptions=True)
                failed = [result for result in results if isinstance(result, BaseException)]
                left = [
                    letter
                    for letter, result in zip(left, results, strict=True)
                    if isinstance(result, BaseException)
                ]
                if failed:
                    self._complaints.say("sending dead letters again", failed[0])
            if left:
                await asyncio.sleep(RETRY_SECONDS)

    async def _send(self, producer: AIOKafkaProducer, letter: DeadLetter) -> Awaitable[Any]:
        """Hand a letter to the producer; the answer is to be awaited."""
        headers = {
            "reason": letter.rejection.reason,
            "detail": letter.rejection.detail,
            "topic": self._source,
            "partition": letter.partition,
            "offset": letter.offset,
            "timestamp": letter.timestamp,
        }
        sent: Awaitable[Any] = await producer.send(
            self._topic,
            # A record without key and value is legal, but aiokafka sends none.
            b"" if letter.value is None else letter.value[:MAX_DEAD_LETTER_BYTES],
            key=None if letter.key is None else letter.key[:MAX_DEAD_LETTER_BYTES],
            headers=[
                (name, str(value).encode(errors="backslashreplace"))
                for name, value in headers.items()
            ],
        )
        return sent

    async def _open(self) -> AIOKafkaProducer:
        async with self._opening:  # partitions share it and may come at once
            if self._producer is None:
                await self._create_topic()
                # No idempotence: the embedded broker has none, and a letter twice does no harm.
                producer = AIOKafkaProducer(**self._client, acks="all", compression_type="lz4")
                try:
                    await producer.start()
                except BaseException:
                    await within(producer.stop(), CLOSE_SECONDS)
                    raise
                self._producer = producer
            return self._producer

    async def _create_topic(self) -> None:
        admin = AIOKafkaAdminClient(**self._client)
        try:
            await admin.start()
            if self._topic in await admin.list_topics():
                return
            brokers = len((await admin.describe_cluster())["brokers"])
            answer = await admin.create_topics(
                [NewTopic(self._topic, num_partitions=1, replication_factor=min(REPLICAS, brokers))]
            )
            for _, code, message in answer.topic_errors:
                if code not in {0, TopicAlreadyExistsError.errno}:
                    raise RefusedError(
                        f"the dead-letter topic {self._topic} does not exist and Kafka does not"
                        f" let us create it ({message or for_code(code).__name__}): create it, or"
                        " grant this user CREATE"
                    )
        finally:
            await within(admin.close(), CLOSE_SECONDS)

    async def close(self, deadline: float) -> None:
        """Close the connection, within `deadline` seconds."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await within(producer.stop(), deadline)
