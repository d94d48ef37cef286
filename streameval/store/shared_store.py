"""The keys that the workers of a group share in Redis, so that each can show the figures of all.

  key                               type    TTL     meaning
  streameval:{g:t:p}:sums:<window>  hash    10 min  sums of a partition in a window: time (T, ms),
                                                    offset, fingerprint, at (ms, when they were
                                                    made), packed (`core.shared_sums`)
  streameval:{g:t}:asked:<window>   string  30 s    somebody looks at the figures of the window
  streameval:{g:t}:workers          hash    1 min   what each worker says of itself: the time (ms),
                                                    and JSON, by the name of the worker
  streameval:{g:t}:history:<name>   hash    the     a ring of points (`web.history`): by slot, the
                                            ring's  number of a point in 8 bytes, and the point

Nothing here is needed to count: losing all of it costs a minute of figures, and the history. Times
are of Redis' clock. Sums are a function of the log up to their offset and of T, so a later
offset or T tells the newer ones, and an owner whose partition has gone on elsewhere
overwrites nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from streameval.base.limits import HISTORY_POINTS
from streameval.store.redis_store import RedisStateStore
from streameval.store.stored_values import PackedSums

SUMS_TTL_MS: Final = 600_000
ASKED_TTL_MS: Final = 30_000
# A worker says something of itself every few seconds.
WORKER_TTL_MS: Final = 30_000
# Bytes of the number of a point.
_NUMBER: Final = 8

_PUBLISH: Final = """
local function newer(one, other) return one and tonumber(one) > tonumber(other) end
local stored = redis.call('HGET', KEYS[1], 'fingerprint')
local offset, time, fingerprint = ARGV[2], ARGV[3], ARGV[4]
if stored and stored ~= fingerprint then return 0 end
local known = redis.call('HMGET', ARGV[1], 'offset', 'time', 'fingerprint')
if known[3] == fingerprint then
  if newer(known[1], offset) or (known[1] == offset and newer(known[2], time)) then return 0 end
end
local now = redis.call('TIME')
local at = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[7])
redis.call('HSET', ARGV[1], 'offset', offset, 'time', time, 'fingerprint', fingerprint, 'at', at,
  'packed', ARGV[5])
redis.call('PEXPIRE', ARGV[1], ARGV[6])
return 1
"""
_TELL: Final = """
local now = redis.call('TIME')
local at = now[1] * 1000 + math.floor(now[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
for index = 1, #all, 2 do
  local said = tonumber(string.match(all[index + 1], '^%d+'))
  if not said or said + ARGV[3] < at then redis.call('HDEL', KEYS[1], all[index]) end
end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', at) .. ' ' .. ARGV[2])
end
redis.call('PEXPIRE', KEYS[1], 2 * ARGV[3])
return 1
"""


class SumsVersion(NamedTuple):
    """Which sums of a partition are stored; `age` (ms) since they were made."""

    offset: int
    time: int
    at: int
    age: int


class SharedStore(RedisStateStore):
    """The store of shared values; calls raise as in `RedisStateStore`."""

    async def publish(self, sums: PackedSums, fingerprint: str) -> bool:
        """Write the sums of a partition, unless newer ones are stored; return whether it did."""
        key = self._key(sums.partition, "partition")
        target = self._key(sums.partition, f"sums:{sums.window}")
        age = round((time.monotonic() - sums.made_at) * 1000)
        arguments = [target, sums.offset, sums.time, fingerprint, sums.packed, SUMS_TTL_MS, age]
        return bool(await self._run_once(_PUBLISH, key, arguments))

    async def versions(
        self, partitions: int, window: str, fingerprint: str
    ) -> dict[int, SumsVersion]:
        """Return which sums are stored, by partition."""
        keys = [self._key(partition, f"sums:{window}") for partition in range(partitions)]
        asked = [("HMGET", key, "offset", "time", "at", "fingerprint") for key in keys]
        (seconds, microseconds), *rows = await self._calls(("TIME",), *asked)
        now = seconds * 1000 + microseconds // 1000
        return {
            partition: SumsVersion(int(row[0]), int(row[1]), int(row[2]), max(0, now - int(row[2])))
            for partition, row in enumerate(rows)
            if row[3] == fingerprint.encode()
        }

    async def sums(self, partition: int, window: str) -> bytes | None:
        """Read the packed sums of a partition."""
        key = self._key(partition, f"sums:{window}")
        packed: bytes | None = await self._once(lambda: self._raw("HGET", key, "packed"))
        return packed

    async def ask(self, windows: Sequence[str]) -> bool:
        """Ask the owners of partitions for fresh sums of these windows, for half a minute.

        Return whether somebody had asked for all of them before.
        """
        keys = [self._group_key(f"asked:{window}") for window in windows]
        before = await self._calls(*(("EXISTS", key) for key in keys))
        await self._calls(*(("SET", key, 1, "PX", ASKED_TTL_MS) for key in keys))
        return all(before)

    async def asked(self, windows: Sequence[str]) -> set[str]:
        """Return the windows that somebody asked for."""
        keys = [self._group_key(f"asked:{window}") for window in windows]
        found = await self._calls(*(("EXISTS", key) for key in keys))
        return {window for window, there in zip(windows, found, strict=True) if there}

    async def tell(self, worker: str, said: str, lasts: int = WORKER_TTL_MS) -> None:
        """Write the state of a worker, "" when it goes; forget those older than `lasts` (ms)."""
        await self._run_once(_TELL, self._group_key("workers"), [worker, said, lasts])

    async def workers(self, lasts: int = WORKER_TTL_MS) -> dict[str, tuple[int, str]]:
        """Return what each worker said of itself within `lasts` (ms), and how long ago (ms)."""
        asked = "HGETALL", self._group_key("workers")
        (seconds, microseconds), rows = await self._calls(("TIME",), asked)
        now = seconds * 1000 + microseconds // 1000
        found = {}
        for name, row in rows.items():
            at, _, said = row.decode().partition(" ")
            if now - int(at) <= lasts:
                found[name.decode()] = max(0, now - int(at)), said
        return dict(sorted(found.items()))

    async def remember(self, name: str, number: int, point: bytes, period: int) -> None:
        """Add a point to a history, in place of the one that is `HISTORY_POINTS` older.

        Numbers of points rise by one each `period` (ms).
        """
        key = self._group_key(f"history:{name}")
        slot, packed = str(number % HISTORY_POINTS), number.to_bytes(_NUMBER, "big") + point
        ttl = (HISTORY_POINTS + 60) * period
        await self._calls(("HSET", key, slot, packed), ("PEXPIRE", key, ttl))

    async def history(self, name: str, first: int, last: int) -> list[bytes]:
        """Return the points of a history with numbers from first to last, in their order."""
        key = self._group_key(f"history:{name}")
        numbers = range(max(first, last - HISTORY_POINTS + 1), last + 1)
        fields = [str(number % HISTORY_POINTS) for number in numbers]
        found: list[bytes | None] = await self._once(lambda: self._raw("HMGET", key, *fields))
        return [
            point[_NUMBER:]
            for number, point in zip(numbers, found, strict=True)
            if point is not None and int.from_bytes(point[:_NUMBER], "big") == number
        ]
