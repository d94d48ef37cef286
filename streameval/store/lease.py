"""A lease in the store: the right of one process, for a time, to do the work of only one.

It does not know the client of the store: `RedisStateStore.lease` passes a function that runs a
script.
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

    Each new holder gets a larger fencing token, to be stored with everything it writes. The token
    tells a holder that slept through the end of its lease from the next one. A store that lost its
    data counts anew, so the token belongs beside the data it guards.
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
        """Take or renew the lease; return its fencing token, None while somebody else holds it.

        Raises `UnreachableError` and `RefusedError`, like all calls of the store.
        """
        token = await self._run(_ACQUIRE, self._key, [self._owner, self._ttl])
        return None if token is None else int(token)

    async def release(self) -> None:
        """Give the lease back, if it is still ours; raises like `acquire`."""
        await self._run(_RELEASE, self._key, [self._owner])
