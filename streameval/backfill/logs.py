"""The logs to read: event files as one partition, or each partition of the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from streameval.base.durations import utc
from streameval.base.errors import InputError
from streameval.core.event_lines import lines_of
from streameval.kafka import admin
from streameval.kafka.range_reader import open_range_reader, records_of
from streameval.kafka.security import client_arguments

if TYPE_CHECKING:
    from streameval.config.settings import Settings


class Records(NamedTuple):
    """Records of a log, at least one: parallel sequences; files have no timestamps of records."""

    numbers: Sequence[int]
    values: Sequence[bytes | None]
    timestamps: Sequence[int] | None


@dataclass(frozen=True)
class Log:
    """The log of a partition: `read(begin)` yields its records from the number `begin` on."""

    begin: int
    read: Callable[[int], Generator[Records, None, None]]


class Extent(NamedTuple):
    """The part of a partition to read: from `begin` up to and without `end`."""

    partition: int
    begin: int
    end: int


class Topic(NamedTuple):
    """The topic's identity, the parts of it to read, and the gaps in them."""

    identity: str
    extents: list[Extent]
    notes: list[str]


def of_files(names: Sequence[str]) -> Log:
    """Return the log of event files: one partition, in the order given, numbered by line."""
    return Log(0, partial(_lines, names))


def _lines(names: Sequence[str], begin: int) -> Generator[Records, None, None]:
    number = 0
    for name in names:
        for values in lines_of(name):
            following = number + len(values)
            if begin < following:
                known = max(0, begin - number)
                yield Records(range(number + known, following), values[known:], None)
            number = following


def of_topic(settings: Settings, extents: Sequence[Extent]) -> list[Log]:
    """Return the logs of the topic's partitions."""
    return [Log(extent.begin, partial(_records, settings, extent)) for extent in extents]


def _records(settings: Settings, extent: Extent, begin: int) -> Generator[Records, None, None]:
    with closing(records_of(settings, extent.partition, begin, extent.end)) as found:
        for lists in found:
            yield Records(lists.offsets, lists.values, lists.timestamps)


def find_topic(settings: Settings, since: int) -> Topic:
    """Find the part of the topic from the time `since` (ms) to its present end.

    Raises `InputError` without a topic, and like every call of `kafka.admin`.
    """
    return asyncio.run(_find_topic(settings, since))


async def _find_topic(settings: Settings, since: int) -> Topic:
    client, name = client_arguments(settings), settings.topic
    found = await admin.extents(client, name)
    if not found:
        raise InputError(f"topic: {settings.kafka} has no topic {name}: name the one with events")
    async with open_range_reader(settings) as topic:
        identity = await topic.identity()
        # An accepted event is at most so much later than its record.
        first = max(0, since - settings.max_clock_skew)
        begins = await topic.since(dict(zip(found, repeat(first))))
    extents, notes = [], []
    for number, extent in sorted(found.items()):
        begin = begins[number]
        begin = extent.end if begin is None else begin
        extents.append(Extent(number, begin, extent.end))
        if 0 < extent.start == begin:
            notes.append(
                f"partition {number} of {name} holds no records before offset {begin}: figures of"
                f" windows that need events since {utc(since)} lack what is gone"
            )
    assert identity is not None, "a topic with partitions has one"
    return Topic(f"{identity.cluster_id}/{identity.topic_id}", extents, notes)
