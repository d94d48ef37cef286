"""Dead letters read back, and sent again once.

A resend is a transaction of Kafka: the records, and for each a *mark* in the dead-letter topic that
it was sent. Both are there or neither is. Who resends has the transactional id of the group, so a
second one ends the first before it reads the marks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced, UnknownError, UnsupportedVersionError

from streameval.base.errors import RefusedError, UnreachableError
from streameval.base.limits import MAX_DEAD_LETTER_BYTES
from streameval.kafka.admin import our_errors, partitions
from streameval.kafka.dead_letters import FORMS, OUR_HEADERS
from streameval.kafka.range_reader import SILENCE_SECONDS
from streameval.kafka.records import cut, headers_of
from streameval.profiles.frames import RecordValue

RESENT: Final = "resent"
"""The header of a mark: the topic, partition and offset of the record that was sent."""
# Letters in a transaction.
_TOGETHER: Final = 1_000
_FETCH_MS: Final = 500
_TIMEOUT_MS: Final = 60_000


class Place(NamedTuple):
    """The place of a rejected record in the log."""

    topic: str
    partition: int
    offset: int


class Letter(NamedTuple):
    """A dead letter; `written` is its own time (ms), `timestamp` the record's.

    `size` (bytes) counts the whole value of the letter; `value` may be its beginning.
    """

    place: Place
    reason: str
    detail: str
    written: int
    timestamp: int
    key: bytes | None
    value: bytes
    size: int

    @property
    def whole(self) -> bool:
        """Whether it surely holds all of the record, which has a value."""
        return 0 < self.size <= MAX_DEAD_LETTER_BYTES and self.size not in FORMS


class Found(NamedTuple):
    """The letters of a dead-letter topic, each record once, and the places that were sent again."""

    letters: list[Letter]
    resent: set[Place]


async def read(
    client: Mapping[str, Any], topic: str, wanted: Callable[[Letter], bool], *, most: int
) -> Found:
    """Read the letters that are `wanted`, and at most so many bytes of the value of each.

    Raises `UnreachableError`, and `RefusedError` without a topic.
    """
    count = await partitions(client, topic)
    if not count:
        raise RefusedError(
            f"the topic {topic} does not exist: nothing was rejected, or correct `topic`"
        )
    letters: dict[Place, Letter] = {}
    resent: set[Place] = set()
    with our_errors(client):
        consumer = AIOKafkaConsumer(
            **client,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        try:
            await consumer.start()
            await asyncio.sleep(0)  # as in `admin`
            places = [TopicPartition(topic, number) for number in range(count)]
            ends = await consumer.end_offsets(places)
            consumer.assign(places)
            heard = time.monotonic()
            while places:
                found = await consumer.getmany(timeout_ms=_FETCH_MS)
                if found:
                    heard = time.monotonic()
                elif time.monotonic() - heard > SILENCE_SECONDS:
                    numbers = ", ".join(str(each.partition) for each in places)
                    raise UnreachableError(
                        f"partitions {numbers} of {topic} gave nothing for {SILENCE_SECONDS:.0f} s:"
                        " do all brokers run?"
                    )
                for records in found.values():
                    for record in records:
                        letter = _letter(record, resent, most)
                        if letter is not None and wanted(letter):
                            letters[letter.place] = letter
                places = [each for each in places if await consumer.position(each) < ends[each]]
        finally:
            await consumer.stop()
    return Found(list(letters.values()), resent)


def _letter(record: Any, resent: set[Place], most: int) -> Letter | None:
    """Return the letter of a record; a mark goes into `resent`, and other records are left out."""
    headers = {name: value.decode(errors="replace") for name, value in record.headers}
    try:
        if RESENT in headers:
            topic, partition, offset = headers[RESENT].rsplit(":", 2)
            resent.add(Place(topic, int(partition), int(offset)))
            return None
        place = Place(headers["topic"], int(headers["partition"]), int(headers["offset"]))
        value = RecordValue.of(record.value or b"", record.key, record.headers[:-OUR_HEADERS])
        return Letter(
            place,
            headers["reason"],
            headers["detail"],
            record.timestamp,
            int(headers["timestamp"]),
            record.key,
            cut(value, most),
            len(value),
        )
    except (KeyError, ValueError):
        return None


@asynccontextmanager
async def resender(client: Mapping[str, Any], group: str) -> AsyncIterator[AIOKafkaProducer]:
    """Open the only producer of a group that resends, for the length of a block."""
    with our_errors(client):
        producer = AIOKafkaProducer(
            **client,
            transactional_id=f"{group}.resend",
            transaction_timeout_ms=_TIMEOUT_MS,
        )
        try:
            try:
                await producer.start()
            except (UnknownError, UnsupportedVersionError) as error:
                raise RefusedError(
                    f"Kafka begins no transaction ({error!r}), without which a record may be sent"
                    " twice: has this server none?"
                ) from error
            yield producer
        except ProducerFenced as error:
            raise RefusedError(
                "another resend of this group has begun, and goes on: this one has ended"
            ) from error
        finally:
            await producer.stop()


async def resend(
    producer: AIOKafkaProducer, letters: Sequence[Letter], topic: str, dead_letter_topic: str
) -> int:
    """Send the records of letters to `topic` again, into their partitions; return how many."""
    for first in range(0, len(letters), _TOGETHER):
        async with producer.transaction():
            sent = []
            for letter in letters[first : first + _TOGETHER]:
                mark = "{}:{}:{}".format(*letter.place).encode()
                sent += [
                    await producer.send(
                        topic,
                        letter.value,
                        letter.key,
                        headers=list(headers_of(letter.value)),
                        partition=letter.place.partition,
                        timestamp_ms=letter.timestamp if letter.timestamp >= 0 else None,
                    ),
                    await producer.send(dead_letter_topic, b"", headers=[(RESENT, mark)]),
                ]
            await asyncio.gather(*sent)
    return len(letters)
