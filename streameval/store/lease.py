"""A lease in the store: the right of one process to do what only one may do, given for a time.

It names no client of a store: `RedisStateStore.lease` hands in how a script is run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

_ACQUIRE: Final = """
local owner, fence = redis.call('GET', KEYS[1]), KEYS[1] .. ':fence'
if owner and owner ~= ARGV[1] then return false end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if owner then return redis.call('GET', fence) end
return redis.call('INCR', fence)
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return false
"""


class Lease:
    """A lease under `key` for `owner`, which lapses `ttl` ms after it was last acquired.

    Each new holder gets a larger fencing token, to be stored with what it writes: it tells a
    holder that slept through the end of its lease from the next one. A store that lost its data
    counts anew, so the token belongs beside the data it guards.
    """

    def __init__(
        self,
        run: Callable[[str, str, Sequence[Any]], Awaitable[Any]],
        key: str,
        owner: str,
        ttl: int,
    ) -> None:
        self._run, self._key, self._owner, self._ttl = run, key, owner, ttl

    async def acquire(self) -> int | None:
        """Take or renew the lease: its fencing token, or None while somebody else holds it.

        Raises what the store's calls raise: `UnreachableError`, `RefusedError`.
        """
        token = await self._run(_ACQUIRE, self._key, [self._owner, self._ttl])
        return None if token is None else int(token)

    async def release(self) -> None:
        """Give the lease back, if it is still ours; raises like `acquire`."""
        await self._run(_RELEASE, self._key, [self._owner])
