"""The store of a group with the partitions of its topic, for commands that look at a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streameval.base.errors import InputError
from streameval.store.redis_store import RedisStateStore

if TYPE_CHECKING:
    from streameval.config.load import Settings


async def opened_store(settings: Settings) -> tuple[RedisStateStore, int]:
    """Return the store of a group, and the number of the topic's partitions.

    Kafka tells that number. Raises `InputError` for a topic that does not exist.
    """
    from streameval.kafka.admin import partitions
    from streameval.kafka.security import client_arguments

    count = await partitions(client_arguments(settings), settings.topic)
    if not count:
        raise InputError(f"the topic {settings.topic} does not exist: correct `topic`")
    return RedisStateStore.of(settings), count
