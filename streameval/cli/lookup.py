"""One user's counters, for `streameval user`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streameval.base.errors import InputError, StreamevalError

if TYPE_CHECKING:
    from streameval.config.load import Settings


async def user_counters(settings: Settings, user_id: str) -> dict[str, Any]:
    """Return the lifetime counters of a user, over all partitions that know the id.

    Kafka tells the number of partitions, Redis holds the counters. Raises `StreamevalError`
    for a user without any, `InputError` for a topic that does not exist.
    """
    from streameval.kafka.admin import partitions
    from streameval.kafka.consumer import client_arguments
    from streameval.store.redis_store import RedisStateStore

    count = await partitions(client_arguments(settings), settings.topic)
    if not count:
        raise InputError(f"the topic {settings.topic} does not exist: correct `topic`")
    definition = settings.definition()
    store = RedisStateStore(settings.redis_url, settings.group, settings.topic, definition.kinds)
    try:
        counters = await store.user(user_id, count)
    finally:
        await store.close()
    if counters is None:
        raise StreamevalError(
            f"nothing is stored of the user {user_id!r} in group {settings.group}: "
            "check the id, or wait until a worker has committed"
        )
    # An experiment that ended, or began anew since, has its arms under its key.
    names = {experiment.key: experiment.name for experiment in definition.experiments}
    arms = {names.get(key, key): found for key, found in counters.arms.items()}
    return {"user_id": user_id, **counters._asdict(), "arms": arms}
