"""One user's counters, for `streameval user`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streameval.base.errors import StreamevalError

if TYPE_CHECKING:
    from streameval.config.load import Settings


async def user_counters(settings: Settings, user_id: str) -> dict[str, Any]:
    """Return the lifetime counters of a user, over all partitions that know the id.

    Kafka tells the number of partitions, Redis holds the counters. Raises `StreamevalError`
    for a user without any, `InputError` for a topic that does not exist.
    """
    from streameval.files.group_store import opened_store

    store, count = await opened_store(settings)
    try:
        counters = await store.user(user_id, count)
    finally:
        await store.close()
    if counters is None:
        raise StreamevalError(
            f"nothing is stored of the user {user_id!r} in group {settings.group}: "
            "check the id, or wait until a worker has committed"
        )
    names = {experiment.key: experiment.name for experiment in settings.definition().experiments}
    return counters.document(user_id, names)
