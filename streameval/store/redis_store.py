"""The store: counters, offsets and checkpoints of partitions in Redis, exactly once.

`commit.lua` describes the keys and the commit script.

A commit carries the offset its batch was read from. The script applies it only if that is the
stored offset. So the client may send it again after a lost reply, and a worker that lost its
partition without noticing changes nothing. The loop here tries the script again as a whole.

A checkpoint goes in three steps, safe to stop between any two:

1. its chunks are written under new names, with a time to live: unlisted, they go by themselves;
2. the commit script lists them, makes them last and stores header and offset: the pointer flips;
3. the next commit unlinks the chunks no longer listed; a reader that misses one reads again.
"""

from __future__ import annotations

import functools
import importlib.resources
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from streameval.base.errors import RefusedError, UnusableStateError
from streameval.core.experiments.users import ArmUsers, UserArms, Visit
from streameval.core.ledger import UserDelta
from streameval.core.windows.tables import cluster_of
from streameval.store.lease import Lease
from streameval.store.redis_calls import RedisCalls
from streameval.store.redis_servers import Url
from streameval.store.stored_values import (
    Applied,
    CheckpointWrite,
    Commit,
    Facts,
    Fenced,
    Stored,
    Torn,
    UserCounters,
    arm_user_fields,
    parse_arm_users,
    parse_stored,
)
from streameval.store.user_scan import KEYS_A_CALL, STAYS, UserScan, parse_user, scan_users

if TYPE_CHECKING:
    from streameval.config.settings import Settings

# After so long a chunk is not asked for again: its checkpoint is read from the beginning.
CHUNK_SECONDS: Final = 15.0
# A chunk that no checkpoint lists goes after an hour; a commit takes seconds.
CHUNK_TTL_MS: Final = 3_600_000
# A batch that workers died of is tried again after an hour: they may have died of something else.
NOTE_TTL_MS: Final = 3_600_000

# A report that nobody wrote anew goes after a day, if its writer does not say more.
REPORT_TTL_MS: Final = 86_400_000
_REPORT: Final = """
local known = redis.call('HGET', KEYS[1], 'token')
if known and tonumber(known) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

# Fields of INFO of a server that keeps its data. CONFIG would tell whether snapshots are planned,
# but a user who may read it may read the administrator's password.
_KEEPS: Final = "noeviction"
_ONLY_EXPIRING: Final = "volatile-"  # policies that evict keys with a time to live
_UNTOLD: Final = "unknown"
_PERSISTENT: Final = ("aof_enabled", "rdb_saves", "rdb_last_load_keys_loaded")
_SAVED: Final = "rdb_last_bgsave_time_sec"  # Redis 6 has not the others of snapshots; -1: never


class RedisStateStore(RedisCalls):
    """Redis, for one consumer group and topic.

    `url` is one of `servers_of`, or returns it as it is now. `kinds` are the kinds of positives in
    the order of the deltas. `user_ttl` (ms) lets counters of silent users go. Every call raises
    `UnreachableError` if the server does not answer, and `RefusedError` if the server, or the data
    in it, is not fit for use.
    """

    def __init__(
        self,
        url: str | Url,
        group: str,
        topic: str,
        kinds: Sequence[str],
        *,
        user_ttl: int | None = None,
    ) -> None:
        super().__init__(url)
        self._scope = f"{group}:{topic}"
        self._kinds = tuple(kinds)
        self._counters = ("impressions", "slates", *(f"positives:{kind}" for kind in kinds))
        self._user_ttl = user_ttl or 0
        self._author = secrets.token_hex(4)  # of notes

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Make the store of a worker with these settings; nothing is connected yet."""
        return cls(
            settings.redis_url,
            settings.group,
            settings.topic,
            settings.definition().kinds,
            user_ttl=settings.user_ttl,
        )

    # --- Before work --------------------------------------------------------------------------

    async def facts(self) -> Facts:
        """Ask the servers about themselves: of several, what is worst."""
        infos: list[dict[str, Any]] = await self._once(lambda: self._servers.each("INFO"))
        (seconds, microseconds), *_ = await self._once(lambda: self._servers.each("TIME"))
        # Some servers that speak Redis's protocol do not tell these.
        policies = [str(info.get("maxmemory_policy", _UNTOLD)) for info in infos]
        losing = [each for each in policies if self._may_lose(each)]
        return Facts(
            version=", ".join(sorted({str(info.get("redis_version", _UNTOLD)) for info in infos})),
            policy=next(iter(losing or policies)),
            persistent=all(
                any(info.get(sign) for sign in _PERSISTENT) or info.get(_SAVED, -1) >= 0
                for info in infos
            ),
            now=seconds * 1000 + microseconds // 1000,
            evicts=bool(losing),
        )

    def _may_lose(self, policy: str) -> bool:
        """Whether a policy lets counters go: they expire with `user_ttl` alone."""
        expire = bool(self._user_ttl)
        return policy != _KEEPS and (expire or not policy.startswith(_ONLY_EXPIRING))

    async def check(self) -> None:
        """Refuse a server that may forget keys on its own."""
        facts = await self.facts()
        if facts.evicts:
            raise RefusedError(
                f"Redis at {self.address} evicts keys (maxmemory-policy {facts.policy}), which"
                " would lose counters: run `redis-cli CONFIG SET maxmemory-policy noeviction`"
                " and set it in redis.conf"
            )

    # --- Partitions ---------------------------------------------------------------------------

    async def standing(self, partition: int) -> Stored:
        """Read everything stored of `partition` but for the chunks of its checkpoint."""
        key = self._key(partition, "partition")
        return parse_stored(await self._once(lambda: self._raw("HGETALL", key)), {})

    async def load(self, partition: int) -> Stored:
        """Read everything stored of `partition`."""
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
                return parse_stored(fields, {name: found[name] for name in names})
            if names == before:
                raise UnusableStateError(
                    f"a chunk of the checkpoint of partition {partition} is missing in Redis at"
                    f" {self.address}: restore it, or start with `worker --reset-windows`"
                )
            # Another writer moved the pointer on while we read: read the new checkpoint.
            before = names

    async def commit(self, commit: Commit) -> Applied | Fenced | Torn:
        """Apply `commit` whole or not at all, however often replies are lost.

        Tries until it went through. One that is cancelled may have been applied; `load` tells.
        """
        assert commit.start is None or commit.end >= commit.start, "offsets only grow"
        assert commit.end != commit.start or not commit.users, "a retry could count them twice"
        # The identity tells this commit from a twin's that ends at the same offset.
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
            if answer[0] == b"torn":
                return Torn(int(answer[1]) if answer[1] else None)

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
            _visits(commit.visits) if commit.visits else "",
            int(commit.first),
        ]

    def _columns(self, users: Sequence[UserDelta]) -> list[Any]:
        """Turn users into the columns of `commit.lua`, with only the counters that change."""
        if not users:
            return [(), (), ()]
        ids, impressions, slates, firsts, lasts, *positives = zip(*users, strict=True)
        columns = zip(self._counters, (impressions, slates, *positives), strict=True)
        changed = [each for each in columns if any(each[1])]
        return [ids, firsts, tuple(map(str, lasts)), *chain.from_iterable(changed)]

    async def mend(self, partition: int, torn: int) -> None:
        """Count the users of experiments anew after a commit that was applied in part.

        `torn` is `Stored.torn`. No commit goes through before that. Users whose time to live has
        ended count no more.
        """
        arms = UserArms()
        for row in (await self.users(partition)).rows:
            for experiment, lists in row.arms.items():
                in_order = sorted(lists.items(), key=lambda each: each[1])
                arms.add(Visit(row.user, experiment, arm, *first) for arm, first in in_order)
        fields = {key: arm_user_fields(users) for key, users in arms.counts.items()}
        arguments = [torn, msgspec.msgpack.encode(fields)]
        await self._run_once(_lua("mend"), self._key(partition, "partition"), arguments)

    async def reset_windows(self, partition: int, fingerprint: str, definition: str) -> None:
        """Forget the windows of `partition`, keep its counters and offset, take on a definition."""
        key = self._key(partition, "partition")
        chunks = self._key(partition, "chunk:")
        await self._run_once(_lua("reset"), key, [chunks, fingerprint, definition])

    async def note_batch(self, partition: int, offset: int, most: int) -> int:
        """Note that the batch at `offset` is being unpacked; count the notes that others left.

        Nobody withdraws the note of a worker that died. Beyond `most` notes none is added: they
        lapse together, an hour after the last one. Our own note does not count: the reply to it may
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
            await self._once(lambda: self._raw("SET", key, note, "PX", NOTE_TTL_MS))
        return count

    async def forget_batch(self, partition: int) -> None:
        """Withdraw the note: the batch was committed or given up, or is another worker's now."""
        key = self._key(partition, "unpacking")
        await self._once(lambda: self._raw("DEL", key))

    async def offset(self, partition: int) -> int | None:
        """Read the stored offset of `partition` alone."""
        key = self._key(partition, "partition")
        offset: bytes | None = await self._once(lambda: self._raw("HGET", key, "offset"))
        return None if offset is None else int(offset)

    async def checkpoint_offset(self, partition: int) -> int | None:
        """Read the offset of the stored checkpoint of `partition` alone."""
        key = self._key(partition, "partition")
        offset: bytes | None = await self._once(lambda: self._raw("HGET", key, "checkpoint_offset"))
        return int(offset) if offset else None

    async def header(self, partition: int) -> bytes | None:
        """Read the header of the stored checkpoint of `partition` alone."""
        key = self._key(partition, "partition")
        header: bytes | None = await self._once(lambda: self._raw("HGET", key, "header"))
        return header or None

    async def arm_users(self, partition: int, experiment: str) -> ArmUsers:
        """Read the users of an experiment (`ArmSums.users_key`) by arm."""
        key = self._key(partition, f"arms:{experiment}")
        return parse_arm_users(await self._once(lambda: self._raw("HGETALL", key)))

    async def _chunk(self, partition: int, name: str) -> bytes | None:
        """Read one chunk of hundreds; ask again if a reply is lost."""
        key = self._key(partition, f"chunk:{name}")
        chunk: bytes | None = await self._persistently(
            "reading a checkpoint", lambda: self._raw("GET", key), CHUNK_SECONDS
        )
        return chunk

    async def _upload(self, partition: int, chunks: Mapping[str, bytes]) -> None:
        for name, chunk in chunks.items():
            key = self._key(partition, f"chunk:{name}")
            # `nx`: a write that timed out may arrive late. It must not put a time to live on a
            # chunk that is listed by then.
            await self._raw("SET", key, chunk, "PX", CHUNK_TTL_MS, "NX")

    def _key(self, partition: int, rest: str) -> str:
        return f"streameval:{{{self._scope}:{partition}}}:{rest}"

    # --- Users --------------------------------------------------------------------------------

    async def user(self, user_id: str, partitions: int) -> UserCounters | None:
        """Look up the counters of one user in `partitions` partitions; None if unknown."""
        keys = [self._key(partition, f"user:{user_id}") for partition in range(partitions)]

        found = await self._calls(*(("HGETALL", key) for key in keys))
        parsed = [
            (partition, parse_user(user_id, 0, row.items())) for partition, row in enumerate(found)
        ]
        rows = [(partition, row) for partition, row in parsed if row is not None]
        if not rows:
            return None
        kinds = dict.fromkeys(self._kinds)
        arms: dict[str, set[str]] = {}
        for _, row in rows:
            kinds |= dict.fromkeys(row.positives)
            for experiment, names in row.arms.items():
                arms.setdefault(experiment, set()).update(names)
        return UserCounters(
            partitions=[partition for partition, _ in rows],
            impressions=sum(row.impressions for _, row in rows),
            slates=sum(row.slates for _, row in rows),
            positives={kind: sum(row.positives.get(kind, 0) for _, row in rows) for kind in kinds},
            first_ts=min(row.first_ts for _, row in rows),
            last_ts=max(row.last_ts for _, row in rows),
            arms={experiment: sorted(names) for experiment, names in sorted(arms.items())},
        )

    async def users(self, partition: int) -> UserScan:
        """Read the counters of all users of `partition`; `user_scan` says how exact."""
        keys = self._key(partition, "partition"), self._key(partition, "user:")

        return await scan_users(partial(self._names, keys[0]), self._run_once, *keys)

    async def _names(self, home: str, prefix: str) -> list[str] | None:
        """Return what follows a prefix in the keys beside `home`; None if they moved meanwhile."""
        client = self._servers.home(home)
        if client is None:
            return None
        found: set[str] = set()
        cursor = 0
        while True:
            command = "SCAN", str(cursor), "MATCH", f"{prefix}*", "COUNT", str(KEYS_A_CALL)
            answer = await self._once(partial(client.execute_command, *command))
            cursor, keys = answer
            found.update(key.decode().removeprefix(prefix) for key in keys)
            if not int(cursor):
                break
        # A slot that moves tells by the next call, and its keys may be on both nodes.
        await self._run_once(STAYS, home, [])
        return sorted(found) if self._servers.home(home) is client else None

    # --- Leases -------------------------------------------------------------------------------

    def lease(self, owner: str, ttl: int) -> Lease:
        """Make the leader's lease of this group and topic for `owner`, for `ttl` ms at a time."""
        return Lease(self._run_once, f"streameval:{{{self._scope}}}:leader", owner, ttl)

    async def fence(self) -> int | None:
        """Read the last fencing token of the leader's lease."""
        key = f"streameval:{{{self._scope}}}:leader:fence"
        token: bytes | None = await self._once(lambda: self._raw("GET", key))
        return None if token is None else int(token)

    # --- Reports ------------------------------------------------------------------------------

    async def report(self, name: str, token: int, value: str, ttl: int = REPORT_TTL_MS) -> None:
        """Write the leader's report, unless a later leader did; it stays for `ttl` ms."""
        await self._run_once(_REPORT, self._group_key(f"report:{name}"), [token, value, ttl])

    async def reported(self, name: str) -> str | None:
        """Return the last report of the leader."""
        key = self._group_key(f"report:{name}")
        value: bytes | None = await self._once(lambda: self._raw("HGET", key, "value"))
        return None if value is None else value.decode()

    def _group_key(self, rest: str) -> str:
        return f"streameval:{{{self._scope}}}:{rest}"


def _visits(visits: Sequence[Visit]) -> bytes:
    """Encode visits as the columns of `commit.lua`."""
    rows = (
        (experiment, user, arm, cluster_of(user), (time, *values))
        for user, experiment, arm, time, values in visits
    )
    return msgspec.msgpack.encode(list(zip(*rows, strict=True)))


@functools.cache
def _lua(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(f"{name}.lua").read_text()
