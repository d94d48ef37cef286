"""The store: counters, offsets and checkpoints of partitions in Redis, exactly once.

The only file that knows Redis. Keys and the commit script are described in `commit.lua`.

A commit carries the offset its batch was read from. The script applies it only if that is the
stored offset, so the client may send it again after a lost reply, and a worker that lost its
partition without noticing changes nothing. That is why redis-py's own retries are off (a retried
increment counts twice) and why the loop here retries the script as a whole.

A checkpoint goes in three steps, safe to stop between any two:

1. its chunks are written under new names, with a time to live: unlisted, they go by themselves;
2. the commit script lists them, makes them last and stores header and offset: the pointer flips;
3. in the same script the chunks no longer listed are unlinked; who is reading them reads again.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib.resources
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streameval.base.errors import RefusedError, UnreachableError, UnusableStateError
from streameval.core import record_mark
from streameval.core.record_mark import RecordMark
from streameval.core.slate import UserDelta
from streameval.store.lease import Lease
from streameval.store.user_scan import UserScan, scan_users

logger = logging.getLogger(__name__)
T = TypeVar("T")

# One connection is busy for a commit of one partition; more wait for a free one.
CONNECTIONS: Final = 8
# Redis that is silent for longer is asked again, which the comparison of offsets makes safe.
REPLY_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 3.0
# How long a chunk is asked for again before its checkpoint is read from the beginning.
CHUNK_SECONDS: Final = 15.0
# A chunk that no checkpoint lists goes after an hour; a commit takes seconds.
CHUNK_TTL_MS: Final = 3_600_000
# A batch that workers died of is tried again after an hour: they may have died of something else.
NOTE_TTL_MS: Final = 3_600_000
# While the store is away: how often it is tried, and how often the log says so.
RETRY_SECONDS: Final = (0.05, 1.0)
COMPLAINT_SECONDS: Final = 3.0

# What INFO says of a server that keeps its data. CONFIG would tell whether snapshots are planned,
# but whoever may read it may read the administrator's password.
_PERSISTENT: Final = ("aof_enabled", "rdb_saves", "rdb_last_load_keys_loaded")

# Answers that stand for a state of the server that passes, so the same command may work later.
_PASSING: Final = ("OOM", "MISCONF", "LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "BUSY")


class CheckpointWrite(NamedTuple):
    """A checkpoint to store: what changed since the last one, and which chunks still count."""

    header: bytes
    chunks: Mapping[str, bytes]  # new ones, by a name that nobody has used or will use
    keep: Sequence[str]  # names of all chunks that the header refers to, the new ones among them
    since: int | None = None  # the offset of the checkpoint before it, None where there is none


@dataclass(frozen=True, slots=True)
class Commit:
    """What one batch of a partition changes; offsets count records, times are ms."""

    partition: int
    start: int | None  # the stored offset the batch was read from, None before the first commit
    end: int
    users: Sequence[UserDelta]
    cluster_id: str
    topic_id: str
    fingerprint: str
    definition: str
    now: int
    checkpoint: CheckpointWrite | None = None
    last_record: RecordMark | None = None  # None where the batch has no records


class Applied(NamedTuple):
    """The commit is stored, by this try or by an earlier one whose reply was lost."""


class Fenced(NamedTuple):
    """The commit changed nothing: the partition is at `offset`, stored by another writer."""

    offset: int | None


class Stored(NamedTuple):
    """What the store holds of a partition; all None and empty before the first commit."""

    offset: int | None
    cluster_id: str | None
    topic_id: str | None
    fingerprint: str | None
    header: bytes | None
    chunks: dict[str, bytes]
    checkpoint_offset: int | None
    committed_at: int | None
    definition: str | None
    last_record: RecordMark | None = None

    @property
    def checkpoint_bytes(self) -> int | None:
        """The size of the checkpoint, header and chunks; None where there is none."""
        if self.header is None:
            return None
        return len(self.header) + sum(map(len, self.chunks.values()))


class UserCounters(NamedTuple):
    """Lifetime counters of one user, summed over the partitions that know the user."""

    partitions: list[int]
    impressions: int
    slates: int
    positives: dict[str, int]
    first_ts: int
    last_ts: int


class Facts(NamedTuple):
    """What the server says about itself."""

    version: str
    policy: str  # maxmemory-policy
    persistent: bool  # it has an append-only file, or has written or loaded a snapshot
    now: int  # the server's clock (ms)


class RedisStateStore:
    """Redis, for one consumer group and topic.

    `url` is redis://, rediss:// or unix://; `kinds` are the kinds of positives in the order of
    the deltas; `user_ttl` (ms) lets counters of silent users go. Redis Cluster is not spoken,
    though the keys are made for it. Every call raises `UnreachableError` where the server does
    not answer and `RefusedError` where it holds or is something we must not work with.
    """

    def __init__(
        self,
        url: str,
        group: str,
        topic: str,
        kinds: Sequence[str],
        *,
        user_ttl: int | None = None,
    ) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=REPLY_SECONDS,
            socket_timeout=REPLY_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis: Redis = Redis.from_pool(pool)  # closes the pool with itself
        options = pool.connection_kwargs
        self.address = options.get("path") or f"{options['host']}:{options.get('port', 6379)}"
        self._scope = f"{group}:{topic}"
        self._kinds = tuple(kinds)
        self._counters = ("impressions", "slates", *(f"positives:{kind}" for kind in kinds))
        self._user_ttl = user_ttl or 0
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._complained = -COMPLAINT_SECONDS
        self._author = secrets.token_hex(4)  # of notes

    # --- Before work --------------------------------------------------------------------------

    async def facts(self) -> Facts:
        """Ask the server about itself."""
        info: dict[str, Any] = await self._once(self._redis.info)
        seconds, microseconds = await self._once(self._redis.time)
        return Facts(
            version=str(info["redis_version"]),
            policy=str(info["maxmemory_policy"]),
            persistent=any(info.get(sign) for sign in _PERSISTENT),
            now=seconds * 1000 + microseconds // 1000,
        )

    async def check(self) -> None:
        """Refuse a server that may forget keys on its own."""
        facts = await self.facts()
        if facts.policy != "noeviction":
            raise RefusedError(
                f"Redis at {self.address} evicts keys (maxmemory-policy {facts.policy}), which"
                " would lose counters: run `redis-cli CONFIG SET maxmemory-policy noeviction`"
                " and set it in redis.conf"
            )

    # --- Partitions ---------------------------------------------------------------------------

    async def standing(self, partition: int) -> Stored:
        """Read what is stored of `partition` but for the chunks of its checkpoint."""
        key = self._key(partition, "partition")
        return _stored(await self._once(lambda: self._raw("HGETALL", key)), {})

    async def load(self, partition: int) -> Stored:
        """Read what is stored of `partition`, its checkpoint included."""
        key = self._key(partition, "partition")
        found: dict[str, bytes] = {}
        before: list[str] = []
        while True:
            fields: dict[bytes, bytes] = await self._once(lambda: self._raw("HGETALL", key))
            names = fields.get(b"chunks", b"").decode(errors="replace").split()
            for name in names:
                if name not in found:
                    chunk = await self._chunk(partition, name)
                    if chunk is None:
                        break
                    found[name] = chunk
            else:
                return _stored(fields, {name: found[name] for name in names})
            if names == before:
                raise UnusableStateError(
                    f"a chunk of the checkpoint of partition {partition} is missing in Redis at"
                    f" {self.address}: restore it, or start with `worker --reset-windows`"
                )
            # Another writer moved the pointer on while we read: read what it points to now.
            before = names

    async def commit(self, commit: Commit) -> Applied | Fenced:
        """Apply `commit` whole or not at all, however often replies are lost.

        Tries until it went through. One that is cancelled may have been applied; `load` tells.
        """
        assert commit.start is None or commit.end >= commit.start, "offsets only grow"
        assert commit.end != commit.start or not commit.users, "a retry could count them twice"
        # Tells this commit, whose reply was lost, from a twin's that ends at the same offset.
        identity = secrets.token_hex(8)
        new = commit.checkpoint.chunks if commit.checkpoint is not None else {}
        arguments = self._arguments(commit, identity)
        key = self._key(commit.partition, "partition")
        upload = bool(new)

        async def attempt() -> list[bytes]:
            nonlocal upload
            if upload:
                await self._upload(commit.partition, new)
            upload = False  # on a further try only if the script misses it: it may be listed now
            answer: list[bytes] = await self._script(_lua("commit"), key, arguments)
            upload = answer[0] == b"missing"
            return answer

        while True:
            answer = await self._persistently("commit", attempt)
            if answer[0] == b"applied" or answer[2:] == [identity.encode()]:
                return Applied()
            if answer[0] == b"fenced":
                return Fenced(int(answer[1]) if answer[1] else None)

    def _arguments(self, commit: Commit, identity: str) -> list[str | bytes | int]:
        saved = commit.checkpoint or CheckpointWrite(b"", {}, ())
        assert saved.header or commit.checkpoint is None, "an empty header stands for none"
        return [
            "" if commit.start is None else commit.start,
            commit.end,
            commit.now,
            identity,
            commit.cluster_id,
            commit.topic_id,
            commit.fingerprint,
            commit.definition,
            self._user_ttl,
            msgspec.msgpack.encode(self._columns(commit.users)),
            saved.header,
            msgspec.msgpack.encode(list(saved.keep)),
            msgspec.msgpack.encode(list(saved.chunks)),
            "" if commit.last_record is None else str(commit.last_record),
            "" if saved.since is None else saved.since,
        ]

    def _columns(self, users: Sequence[UserDelta]) -> list[Any]:
        """The users as `commit.lua` takes them: columns, of counters only those that change."""
        if not users:
            return [(), (), ()]
        ids, impressions, slates, firsts, lasts, *positives = zip(*users, strict=True)
        columns = zip(self._counters, (impressions, slates, *positives), strict=True)
        changed = [each for each in columns if any(each[1])]
        return [ids, firsts, tuple(map(str, lasts)), *chain.from_iterable(changed)]

    async def reset_windows(self, partition: int, fingerprint: str, definition: str) -> None:
        """Forget the windows of `partition`, keep its counters and offset, take on a definition."""
        key = self._key(partition, "partition")
        chunks = self._key(partition, "chunk:")
        await self._run_once(_lua("reset"), key, [chunks, fingerprint, definition])

    async def note_batch(self, partition: int, offset: int, most: int) -> int:
        """Note that the batch at `offset` is being unpacked; how many notes others left of it.

        Nobody takes back the note of a worker that died. Where `most` were left, none is added:
        they lapse together, an hour after the last one. Our own does not count: the reply to it may
        have been lost. Exactly-once does not depend on notes.
        """
        key = self._key(partition, "unpacking")
        found: bytes | None = await self._once(lambda: self._raw("GET", key))
        at, left, author = [*(found or b"").decode(errors="replace").split(" "), "", ""][:3]
        count = int(left) if at == str(offset) and left.isdigit() else 0
        if count and author == self._author:
            count -= 1
        if count < most:
            note = f"{offset} {count + 1} {self._author}"
            await self._once(lambda: self._redis.set(key, note, px=NOTE_TTL_MS))
        return count

    async def forget_batch(self, partition: int) -> None:
        """Take the note back: the batch was committed or given up, or is another worker's now."""
        key = self._key(partition, "unpacking")
        await self._once(lambda: self._raw("DEL", key))

    async def offset(self, partition: int) -> int | None:
        """The stored offset of `partition` alone."""
        key = self._key(partition, "partition")
        offset: bytes | None = await self._once(lambda: self._raw("HGET", key, "offset"))
        return None if offset is None else int(offset)

    async def checkpoint_offset(self, partition: int) -> int | None:
        """The offset of the stored checkpoint of `partition` alone."""
        key = self._key(partition, "partition")
        offset: bytes | None = await self._once(lambda: self._raw("HGET", key, "checkpoint_offset"))
        return None if offset is None else int(offset)

    async def header(self, partition: int) -> bytes | None:
        """The header of the stored checkpoint of `partition` alone."""
        key = self._key(partition, "partition")
        header: bytes | None = await self._once(lambda: self._raw("HGET", key, "header"))
        return header

    async def _chunk(self, partition: int, name: str) -> bytes | None:
        """One chunk, asked for again where a reply is lost: it is one of hundreds."""
        key = self._key(partition, f"chunk:{name}")
        chunk: bytes | None = await self._persistently(
            "reading a checkpoint", lambda: self._raw("GET", key), CHUNK_SECONDS
        )
        return chunk

    async def _upload(self, partition: int, chunks: Mapping[str, bytes]) -> None:
        for name, chunk in chunks.items():
            key = self._key(partition, f"chunk:{name}")
            # Only where it is not there: a write that timed out may arrive late, and must not put
            # a time to live on a chunk that is listed by then.
            await self._redis.set(key, chunk, px=CHUNK_TTL_MS, nx=True)

    def _key(self, partition: int, rest: str) -> str:
        return f"streameval:{{{self._scope}:{partition}}}:{rest}"

    # --- Users --------------------------------------------------------------------------------

    async def user(self, user_id: str, partitions: int) -> UserCounters | None:
        """Counters of one user, looked up in `partitions` partitions; None if unknown."""
        keys = [self._key(partition, f"user:{user_id}") for partition in range(partitions)]

        async def look_up() -> list[dict[bytes, bytes]]:
            pipeline = self._redis.pipeline(transaction=False)
            for key in keys:
                pipeline.hgetall(key)
            rows: list[dict[bytes, bytes]] = await pipeline.execute()
            return rows

        found = await self._once(look_up)
        rows = [
            (partition, {name.decode(): int(value) for name, value in row.items()})
            for partition, row in enumerate(found)
            if row
        ]
        if not rows:
            return None
        kinds = dict.fromkeys(self._kinds)
        for _, row in rows:
            kinds |= {name[10:]: None for name in row if name.startswith("positives:")}
        total = functools.partial(_total, [row for _, row in rows])
        return UserCounters(
            partitions=[partition for partition, _ in rows],
            impressions=total("impressions"),
            slates=total("slates"),
            positives={kind: total(f"positives:{kind}") for kind in kinds},
            first_ts=min(row["first_ts"] for _, row in rows),
            last_ts=max(row["last_ts"] for _, row in rows),
        )

    async def users(self, partition: int) -> UserScan:
        """The counters of all users of `partition`; `scan` says how exact."""
        keys = self._key(partition, "partition"), self._key(partition, "user:")

        async def command(*words: str) -> Any:
            return await self._once(lambda: self._raw(*words))

        return await scan_users(command, self._run_once, *keys)

    # --- Leases -------------------------------------------------------------------------------

    def lease(self, owner: str, ttl: int) -> Lease:
        """The leader's lease of this group and topic for `owner`, which lapses after `ttl` ms."""
        return Lease(self._run_once, f"streameval:{{{self._scope}}}:leader", owner, ttl)

    async def fence(self) -> int | None:
        """The fencing token of the leader's lease that was given out last."""
        key = f"streameval:{{{self._scope}}}:leader:fence"
        token: bytes | None = await self._once(lambda: self._raw("GET", key))
        return None if token is None else int(token)

    # --- Calls --------------------------------------------------------------------------------

    async def _script(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        """Run a script by its digest; a server that does not know it is sent the script."""
        try:
            return await self._redis.evalsha(_sha(script), 1, key, *arguments)
        except exceptions.NoScriptError:
            return await self._redis.eval(script, 1, key, *arguments)

    async def _raw(self, *command: str) -> Any:
        return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]

    async def _run_once(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        return await self._once(functools.partial(self._script, script, key, arguments))

    async def _once(self, call: Callable[[], Awaitable[T]]) -> T:
        """One try of `call`, never cut off half-way; errors as our own."""
        try:
            return await self._shielded(call)
        except (exceptions.RedisError, OSError) as error:
            raise self._ours(error) from error

    async def _persistently(
        self, doing: str, call: Callable[[], Awaitable[T]], give_up_after: float | None = None
    ) -> T:
        """Try `call` until it goes through, or for `give_up_after` seconds.

        What cannot pass by itself is raised at once.
        """
        end = None if give_up_after is None else time.monotonic() + give_up_after
        pause = RETRY_SECONDS[0]
        while True:
            try:
                return await self._shielded(call)
            except (exceptions.RedisError, OSError) as error:
                if not _passes(error) or (end is not None and time.monotonic() + pause > end):
                    raise self._ours(error) from error
                self._complain(doing, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_SECONDS[1])

    async def _shielded(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call` so that a cancelled caller does not cut it off.

        A call cut off half-way could leave its answer to the next one on the connection; it
        runs on to its own end or time limit, and `close` waits for it.
        """

        async def run() -> T:
            return await call()

        task = asyncio.create_task(run())
        self._in_flight.add(task)
        task.add_done_callback(self._landed)
        return await asyncio.shield(task)

    def _landed(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone: nobody else would look at it

    def _complain(self, doing: str, error: Exception) -> None:
        if time.monotonic() - self._complained >= COMPLAINT_SECONDS:
            self._complained = time.monotonic()
            logger.warning(
                "Redis at %s: %s not possible, trying on: %s", self.address, doing, error
            )

    def _ours(self, error: Exception) -> RefusedError | UnreachableError:
        """The error of our own tree that `error` of redis-py or of the network means."""
        where = f"Redis at {self.address}"
        if isinstance(error, exceptions.AuthenticationError):
            return RefusedError(f"{where} refuses the password or user ({error}): set it in redis")
        if isinstance(error, exceptions.NoPermissionError):
            return RefusedError(f"{where}: {error}: extend the rights of the user (ACL SETUSER)")
        if _passes(error):
            return UnreachableError(f"{where} cannot be used now ({error}): is it running?")
        return RefusedError(f"{where} answers: {error}")

    async def close(self, deadline: float = 1.0) -> None:
        """Wait up to `deadline` seconds for calls under way, then close the connections."""
        if self._in_flight:
            await asyncio.wait(set(self._in_flight), timeout=deadline)
        for task in self._in_flight:
            task.cancel()
        closing = asyncio.ensure_future(self._redis.aclose())
        await asyncio.wait({closing}, timeout=deadline)


@functools.cache
def _lua(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(f"{name}.lua").read_text()


@functools.cache
def _sha(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _stored(fields: dict[bytes, bytes], chunks: dict[str, bytes]) -> Stored:
    def text(name: bytes) -> str | None:
        return fields[name].decode() if name in fields else None

    def number(name: bytes) -> int | None:
        return int(fields[name]) if name in fields else None

    last = text(b"last_record")
    return Stored(
        offset=number(b"offset"),
        cluster_id=text(b"cluster_id"),
        topic_id=text(b"topic_id"),
        fingerprint=text(b"fingerprint"),
        header=fields.get(b"header"),
        chunks=chunks,
        checkpoint_offset=number(b"checkpoint_offset"),
        committed_at=number(b"committed_at"),
        definition=text(b"definition"),
        last_record=None if last is None else record_mark.parse(last),
    )


def _total(rows: list[dict[str, int]], field: str) -> int:
    return sum(row.get(field, 0) for row in rows)


def _passes(error: Exception) -> bool:
    """Whether the same call may work later without anybody changing it."""
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return False
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        return True
    kinds = exceptions.BusyLoadingError | exceptions.OutOfMemoryError | exceptions.ReadOnlyError
    return isinstance(error, kinds) or str(error).startswith(_PASSING)
