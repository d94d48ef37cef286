"""The dead-letter topic: rejected records with the reason in their headers.

A dead letter carries the record's key, the first `MAX_DEAD_LETTER_BYTES` of its value, and these
headers: `reason`, `detail`, `topic`, `partition`, `offset`, `timestamp` (ms). It is sent again
until it is acknowledged, so it may come twice, with the same offset.

Some records Kafka refuses for good. They must not stop their partition. A batch that is refused is
sent again in halves. A single dead letter that is refused is shortened, then sent as headers only,
and then given up and counted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    BrokerResponseError,
    InvalidReplicationFactorError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedForMessageFormatError,
    for_code,
)
from aiokafka.partitioner import DefaultPartitioner

from streameval.base.errors import RefusedError
from streameval.base.limits import MAX_DEAD_LETTER_BYTES
from streameval.base.retry import Complaints, answer_within
from streameval.kafka.admin import replicas
from streameval.kafka.records import DeadLetter, headers_of

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 5.0
# A broker that was killed is named as the controller until Kafka misses it. aiokafka would try to
# reach that one for 40 s; we ask again who it is.
CREATE_SECONDS: Final = 5.0
# An election of leaders takes less; a longer wait is reported.
WAITING_SECONDS: Final = 15.0
OUR_HEADERS: Final = 6
"""The number of headers that each dead letter has; those of its record come before."""
# Bytes of key and value that each next form of a dead letter keeps; the last has our headers only.
FORMS: Final = (MAX_DEAD_LETTER_BYTES, 1_024, 256, 0)
# Errors about the records themselves, which no waiting changes.
_FOR_GOOD: Final = (
    InvalidTimestampError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    UnsupportedForMessageFormatError,
)
# Other errors that aiokafka does not call passing (it knows few codes) are believed after so many.
TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class _Group:
    """Dead letters for one partition, in one of `FORMS`, that were sent `tries` times."""

    partition: int
    dead_letters: Sequence[DeadLetter]
    form: int = 0
    tries: int = 0

    def refused(self) -> list[_Group]:
        """Return groups to send for a batch that was refused for good; none if it is given up."""
        half = len(self.dead_letters) // 2
        if half:
            return [
                replace(self, dead_letters=some)
                for some in (self.dead_letters[:half], self.dead_letters[half:])
            ]
        return [replace(self, form=self.form + 1)] if self.form + 1 < len(FORMS) else []


class DeadLetters:
    """Writes rejected records of `source` to `topic`; connects at the first one.

    `client` are the arguments that every client of aiokafka takes.
    """

    def __init__(self, client: Mapping[str, Any], source: str, topic: str) -> None:
        self._client, self._source, self._topic = client, source, topic
        self._producer: AIOKafkaProducer | None = None
        self._opening = asyncio.Lock()
        self._complaints = Complaints(log, f"Kafka at {client['bootstrap_servers']}")
        self._said: set[str] = set()
        self._calls = itertools.count()
        self._waiting: dict[int, float] = {}  # since when, by call of `write`

    @property
    def trouble(self) -> str:
        """Say that dead letters have waited for longer than an election; "" where none have."""
        since = min(self._waiting.values(), default=math.inf)
        if time.monotonic() - since < WAITING_SECONDS:
            return ""
        return f"Kafka does not take dead letters for the topic {self._topic}"

    async def write(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Write `dead_letters`; return how many were given up, when all others are acknowledged.

        Tries until then. Raises `RefusedError` where the topic is missing and may not be created,
        or may not be written to.
        """
        number = next(self._calls)
        self._waiting[number] = time.monotonic()
        try:
            return await self._write(dead_letters)
        finally:
            del self._waiting[number]

    async def _write(self, dead_letters: Sequence[DeadLetter]) -> int:
        abandoned, left, groups = 0, list(dead_letters), list[_Group]()
        while left or groups:
            try:
                producer = await self._open()
                partitions = await producer.partitions_for(self._topic)
                # The topic may have been made anew, with fewer partitions.
                gone = [group for group in groups if group.partition not in partitions]
                left += [letter for group in gone for letter in group.dead_letters]
                groups = [group for group in groups if group.partition in partitions]
                groups += self._by_partition(partitions, left)
                left = []
                groups, lost = await self._send_all(producer, groups)
                abandoned += lost
            except TopicAuthorizationFailedError as error:
                raise self._forbidden() from error
            except (KafkaError, OSError) as error:
                self._complaints.say("waiting for it to take dead letters", error)
                await asyncio.sleep(RETRY_SECONDS)
        return abandoned

    def _by_partition(
        self, partitions: Iterable[int], dead_letters: Iterable[DeadLetter]
    ) -> list[_Group]:
        """Group them by the partition of their key, as any producer would send them."""
        numbers, choose = sorted(partitions), DefaultPartitioner()
        found: dict[int, list[DeadLetter]] = {}
        for letter in dead_letters:
            found.setdefault(choose(letter.key, numbers, numbers), []).append(letter)
        return [_Group(partition, those) for partition, those in found.items()]

    async def _send_all(
        self, producer: AIOKafkaProducer, groups: Sequence[_Group]
    ) -> tuple[list[_Group], int]:
        """Send `groups` in batches; return those to send again, and how many are given up."""
        batches: list[tuple[_Group, Awaitable[Any]]] = []
        waiting = list(reversed(groups))
        again: list[_Group] = []
        while waiting:
            group = waiting.pop()
            if group.partition not in await producer.partitions_for(self._topic):
                again.append(group)
                continue
            batch, count = self._filled(producer, group)
            if count < len(group.dead_letters):
                waiting.append(replace(group, dead_letters=group.dead_letters[count:]))
                group = replace(group, dead_letters=group.dead_letters[:count])
            sent = await producer.send_batch(batch, self._topic, partition=group.partition)
            batches.append((group, sent))
        responses = await asyncio.gather(*(sent for _, sent in batches), return_exceptions=True)
        abandoned = 0
        passing: BaseException | None = None
        for (group, _), answer in zip(batches, responses, strict=True):
            if not isinstance(answer, BaseException):
                continue
            tried = replace(group, tries=group.tries + 1)
            if not self._refuses(answer, tried):
                passing = answer
                again.append(tried)
                continue
            smaller = tried.refused()
            again += smaller
            abandoned += 0 if smaller else 1
            if len(group.dead_letters) == 1:
                self._say_once(smaller, answer)
        if passing is not None:
            self._complaints.say("sending dead letters again", passing)
            await asyncio.sleep(RETRY_SECONDS)
        return again, abandoned

    def _refuses(self, answer: BaseException, group: _Group) -> bool:
        """Whether Kafka refused a batch for good."""
        if isinstance(answer, TopicAuthorizationFailedError):
            raise self._forbidden() from answer
        if isinstance(answer, _FOR_GOOD):
            return True
        answered = isinstance(answer, BrokerResponseError) and not answer.retriable
        return answered and group.tries >= TRIES

    def _forbidden(self) -> RefusedError:
        return RefusedError(
            f"Kafka forbids to write dead letters to the topic {self._topic}: grant WRITE on it"
            " to this user"
        )

    def _say_once(self, smaller: Sequence[_Group], answer: BaseException) -> None:
        """Log the outcome for a single dead letter that is refused, once for each outcome."""
        outcome = "they are shortened" if smaller else "they are given up, and counted"
        if outcome not in self._said:
            self._said.add(outcome)
            log.warning(
                "Kafka refuses dead letters (%s): %s; raise max.message.bytes of the topic %s,"
                " which must not be compacted",
                str(answer) or repr(answer),
                outcome,
                self._topic,
            )

    def _filled(self, producer: AIOKafkaProducer, group: _Group) -> tuple[Any, int]:
        """Fill a batch with as many dead letters of a group as it holds; also return how many."""
        batch, count = producer.create_batch(), 0
        for letter in group.dead_letters:
            if self._append(batch, letter, FORMS[group.form]) is None:
                break
            count += 1
        return batch, count

    def _append(self, batch: Any, letter: DeadLetter, size: int) -> Any:
        """Append one with `size` bytes of key and value; return None if the batch is full."""
        headers = {
            "reason": letter.rejection.reason,
            "detail": letter.rejection.detail,
            "topic": self._source,
            "partition": letter.partition,
            "offset": letter.offset,
            "timestamp": letter.timestamp,
        }
        assert len(headers) == OUR_HEADERS, "the record's own come before"
        return batch.append(
            timestamp=None,
            # A record without key and value is legal, but aiokafka sends none.
            value=b"" if letter.value is None else letter.value[:size],
            key=None if letter.key is None or not size else letter.key[:size],
            # (Of one name, the last is ours.)
            headers=[
                *(headers_of(letter.value) if size else ()),
                *(
                    (name, str(value).encode(errors="backslashreplace"))
                    for name, value in headers.items()
                ),
            ],
        )

    async def _open(self) -> AIOKafkaProducer:
        async with self._opening:  # partitions share it and may come at once
            if self._producer is None:
                await self._create_topic()
                # No idempotence: the embedded broker has none, and a repetition does no harm. Not
                # packed: some servers refuse that, such as Azure's Event Hubs.
                producer = AIOKafkaProducer(**self._client, acks="all")
                try:
                    await producer.start()
                except BaseException:
                    await answer_within(producer.stop(), CLOSE_SECONDS)
                    raise
                self._producer = producer
            return self._producer

    async def _create_topic(self) -> None:
        admin = AIOKafkaAdminClient(**self._client)
        try:
            await admin.start()
            topics = await replicas(admin)
            if self._topic in topics:
                return
            # As many replicas as the source has. To count the brokers that run would leave too
            # few for good, if the first dead letter comes while one is down.
            count = topics.get(self._source, 0)
            if not count:
                raise UnknownTopicOrPartitionError(f"the topic {self._source} does not exist")
            try:
                async with asyncio.timeout(CREATE_SECONDS):
                    answer = await admin.create_topics(
                        [NewTopic(self._topic, num_partitions=1, replication_factor=count)]
                    )
            except TimeoutError:
                raise KafkaTimeoutError(f"the topic {self._topic} is not made yet") from None
            for _, code, message in answer.topic_errors:
                kind = for_code(code)
                if code in {0, TopicAlreadyExistsError.errno}:
                    continue
                if kind.retriable or kind is InvalidReplicationFactorError:
                    raise kind(message)
                raise RefusedError(
                    f"the dead-letter topic {self._topic} does not exist, or this user may not"
                    " see it, and Kafka does not let us create it"
                    f" ({message or kind.__name__}): create it, and grant this user WRITE on it"
                )
        finally:
            await answer_within(admin.close(), CLOSE_SECONDS)

    async def close(self, deadline: float) -> None:
        """Close the connection, within `deadline` seconds."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await answer_within(producer.stop(), deadline)
