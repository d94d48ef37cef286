"""The servers that a URL names: one Redis, the master that Sentinels know, or a cluster.

All keys of a partition have one hash tag, so in a cluster they are on one node, and every call here
is for one key. The cluster is spoken to by plain clients of its nodes, for the sake of one rule:

A call is never sent on to the node that a slot is moving to (`ASK`). There a key that has not come
yet is a missing key to a script, and counters would begin at 0 again. The node that it moves from
answers with an error for each key that it no longer has, before the script has written. So the call
is tried again, until the slot has moved.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.credentials import CredentialProvider

from streameval.base.urls import split_url

# One connection is busy for a commit of one partition; more wait for a free one.
CONNECTIONS: Final = 8
# Redis that is silent for longer is asked again, which the comparison of offsets makes safe.
REPLY_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 3.0
# With the newer protocol redis-py 8 keeps a connection that the server has closed for being idle.
_OPTIONS: Final = {
    "socket_timeout": REPLY_SECONDS,
    "socket_connect_timeout": CONNECT_SECONDS,
    "protocol": 2,
}
# A Sentinel answers from memory, and another one waits to be asked.
_ANSWERS_SOON: Final = _OPTIONS | {"socket_timeout": CONNECT_SECONDS}
# Times that a call follows a slot to another node.
_MOVES: Final = 5
# A cluster is not asked more often where its slots are.
_ASK_SECONDS: Final = 0.2
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_SENTINEL_LOGIN: Final = ("sentinel_username", "sentinel_password")
# Commands without a key; scripts have theirs behind their text and the number of keys.
_KEYLESS: Final = frozenset({"TIME", "INFO", "SCAN"})
_SCRIPTS: Final = frozenset({"EVAL", "EVALSHA"})

# How Python writes an object that has no text of its own.
_OBJECT: Final = re.compile(r"<[^<>]*>")

# After these another node may have the slots by now. A node that has lost the others answers
# "cluster down", and goes on to say that its slots are its own.
_PERHAPS_ELSEWHERE: Final = (
    *(exceptions.ConnectionError, exceptions.TimeoutError, OSError),
    *(exceptions.ClusterDownError, exceptions.ReadOnlyError),
)

# Redis 6 tells where in a script a command failed, and only then why. Redis 7 begins with why, as
# without a script.
_WHERE: Final = re.compile(
    r"Error running script \(call to \w+\): @user_script: ?\d+: @user_script: \d+: -?"
)

Command = tuple[Any, ...]
Url = Callable[[], str]
"""Returns the URL as it is now, with a password that may have changed."""


class Servers(Protocol):
    """Where commands go. Errors are redis-py's."""

    address: str
    has_slots: bool
    """Whether each key has its server, which others name."""

    async def call(self, *command: Any) -> Any:
        """Send a command to the server that has its key."""

    async def calls(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together; one without a key goes where the first key is."""

    async def each(self, *command: Any) -> list[Any]:
        """Send a command without a key to every server that has keys."""

    def home(self, key: str) -> Redis | None:
        """Return the client of the server that has a key, as far as it is known."""

    async def close(self) -> None:
        """Close the connections."""


def servers_of(url: Url) -> Servers:
    """Return the servers of a URL: `redis://`, `rediss+cluster://` and so on.

    Nothing is connected yet.
    """
    split = split_url(url())
    scheme, _, kind = split.scheme.partition("+")
    if kind == "cluster":
        return _Cluster(url, scheme, split)
    if kind == "sentinel":
        return _sentinel(url, scheme, split)
    options = dict(parse_qsl(split.query))
    if split.scheme == "unix":
        return _One(_client(url, split.geturl().replace(_login_of(split), "")), unquote(split.path))
    place = split.netloc.rpartition("@")[2]
    query = urlencode(options)
    return _One(_client(url, f"{scheme}://{place}{split.path}?{query}"), _address(place, _PORT))


class _Login(CredentialProvider):
    """The login of the URL as it is at each new connection."""

    def __init__(self, url: Url) -> None:
        self._url = url

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        split = split_url(self._url())
        user, password = unquote(split.username or ""), unquote(split.password or "")
        return (user, password) if user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()

    @property
    def is_there(self) -> bool:
        split = split_url(self._url())
        return bool(split.username or split.password)


class _FreshConnection(SSLConnection):
    """A connection that reads its certificates anew each time that it connects.

    From Python 3.13 on redis-py refuses what many private authorities leave out, such as the use
    of a key. Kafka's client and ours of the registry take it.
    """

    async def _connect(self) -> None:
        self.ssl_context.context = None
        self.ssl_context.get().verify_flags &= ~ssl.VERIFY_X509_STRICT
        await super()._connect()  # type: ignore[no-untyped-call]


class _Sentinel(Sentinel):
    """Sentinels whose errors are one line: redis-py writes out its clients in them."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the master. Raises MasterNotFoundError."""
        try:
            found: tuple[str, int] = await super().discover_master(service_name)
        except MasterNotFoundError as error:
            said, count = str(error), 1
            while count:  # one object stands within the other
                said, count = _OBJECT.subn("a Sentinel", said)
            raise MasterNotFoundError(said) from None
        return found


class _FreshMasterConnection(SentinelManagedSSLConnection, _FreshConnection):
    """The same, to the master of Sentinels."""


def _client(url: Url, place: str) -> Redis:
    """Return a client of one server; `place` is its URL without a login."""
    login = _Login(url)
    own: dict[str, Any] = {"credential_provider": login} if login.is_there else {}
    pool = BlockingConnectionPool.from_url(
        place,
        max_connections=CONNECTIONS,
        timeout=REPLY_SECONDS,
        retry=Retry(NoBackoff(), 0),  # redis-py's own: a retried increment counts twice
        **_OPTIONS,
        **own,
    )
    if place.startswith("rediss"):
        pool.connection_class = _FreshConnection
    return Redis.from_pool(pool)  # closes the pool with itself


def _login_of(split: SplitResult) -> str:
    login, at, _ = split.netloc.rpartition("@")
    return login + at


def _address(place: str, port: int) -> str:
    """Return host and port of a place."""
    host, colon, given = place.rpartition(":")
    if colon and given.isdigit() and not host.endswith(":"):
        return place
    return f"{place}:{port}"


def _places(split: SplitResult, port: int) -> list[str]:
    """Return the hosts and ports of a URL that has several."""
    return [_address(each, port) for each in split.netloc.rpartition("@")[2].split(",")]


def _key_of(command: Command) -> str | None:
    name = command[0]
    if name in _KEYLESS:
        return None
    return str(command[3] if name in _SCRIPTS else command[1])


async def _execute(client: Redis, command: Command) -> Any:
    """Send a command; raises the error of a script as Redis 7 tells it."""
    try:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]
    except exceptions.ResponseError as error:
        why, count = _WHERE.subn("", str(error))
        if not count:
            raise
        read_only = why.startswith("READONLY")
        kind = exceptions.ReadOnlyError if read_only else exceptions.ResponseError
        raise kind(why) from None


class _One:
    """One server, or the master of Sentinels."""

    has_slots = False

    def __init__(self, client: Redis, address: str, sentinels: Sequence[Redis] = ()) -> None:
        self._client, self.address, self._sentinels = client, address, sentinels

    async def call(self, *command: Any) -> Any:
        try:
            return await _execute(self._client, command)
        except exceptions.ReadOnlyError:
            # The name may stand for another server by now, and this one keeps the connection.
            await self._client.connection_pool.disconnect(inuse_connections=False)
            raise

    async def calls(self, commands: Sequence[Command]) -> list[Any]:
        return await _together(self._client, commands)

    async def each(self, *command: Any) -> list[Any]:
        return [await self.call(*command)]

    def home(self, key: str) -> Redis:
        del key
        return self._client

    async def close(self) -> None:
        for client in (self._client, *self._sentinels):
            await client.aclose()


async def _together(
    client: Redis, commands: Sequence[Command], *, raises: bool = True
) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    found: list[Any] = await pipeline.execute(raise_on_error=raises)
    return found


def _sentinel(url: Url, scheme: str, split: SplitResult) -> _One:
    """Return the master that the Sentinels of a URL know by the name in its path."""
    name, _, database = split.path.strip("/").partition("/")
    options = dict(parse_qsl(split.query))
    own = {key: options.pop(key) for key in _SENTINEL_LOGIN if key in options}
    tls: dict[str, Any] = {}
    if scheme == "rediss":
        place = f"rediss://localhost?{urlencode(options)}"
        parsed = BlockingConnectionPool.from_url(place).connection_kwargs
        tls = {key: parsed[key] for key in options} | {"connection_class": _FreshMasterConnection}
    login = _Login(url)
    once = {"retry": Retry(NoBackoff(), 0)}  # another Sentinel may know, and calls are tried again
    known: dict[str, Any] = _OPTIONS | once | {"db": int(database or 0)}
    if login.is_there:
        known["credential_provider"] = login
    places = [each.rpartition(":") for each in _places(split, _SENTINEL_PORT)]
    login_there = {key.removeprefix("sentinel_"): value for key, value in own.items()}
    tls_there = {key: value for key, value in tls.items() if key != "connection_class"}
    sentinel = _Sentinel(  # type: ignore[no-untyped-call]
        [(host.strip("[]"), int(port)) for host, _, port in places],
        sentinel_kwargs=_ANSWERS_SOON | once | tls_there | login_there | {"ssl": bool(tls)},
    )
    if tls:
        for each in sentinel.sentinels:
            each.connection_pool.connection_class = _FreshConnection
    client = sentinel.master_for(name, **tls, **known)
    address = f"{name} of the Sentinels {split.netloc.rpartition('@')[2]}"
    return _One(client, address, sentinel.sentinels)


class _Cluster:
    """The primaries of a cluster: each call goes to the node of its key's slot."""

    has_slots = True

    def __init__(self, url: Url, scheme: str, split: SplitResult) -> None:
        self._url, self._scheme, self._query = url, scheme, split.query
        self._seeds = _places(split, _PORT)
        self.address = f"the cluster {','.join(self._seeds)}"
        self._nodes: dict[str, Redis] = {}
        self._ranges: list[tuple[int, int, str]] = []
        self._primaries: list[str] = []  # of the last answer
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._turn = 0

    def _client(self, address: str) -> Redis:
        if address not in self._nodes:
            self._nodes[address] = _client(self._url, f"{self._scheme}://{address}/0?{self._query}")
        return self._nodes[address]

    async def call(self, *command: Any) -> Any:
        key = _key_of(command)
        assert key is not None, "a command without a key is for `each`"
        for _ in range(_MOVES):
            client = self.home(key) or await self._found(key)
            try:
                return await _execute(client, command)
            except exceptions.MovedError:  # first: it is an AskError too
                await self._ask()
            except exceptions.AskError as error:
                raise exceptions.TryAgainError(f"slot {error.slot_id} is being moved") from None
            except _PERHAPS_ELSEWHERE:
                self._ranges = []
                raise
        raise exceptions.TryAgainError("its slot moves from node to node")

    async def calls(self, commands: Sequence[Command]) -> list[Any]:
        keys = [_key_of(command) for command in commands]
        first = next(key for key in keys if key is not None)
        await self._found(first)
        by_node: dict[Redis, list[int]] = {}
        for at, key in enumerate(keys):
            client = self.home(key or first) or await self._found(key or first)
            by_node.setdefault(client, []).append(at)
        found: list[Any] = [None] * len(commands)

        async def ask(client: Redis, places: Sequence[int]) -> None:
            answers = await _together(client, [commands[at] for at in places], raises=False)
            for at, answer in zip(places, answers, strict=True):
                if isinstance(answer, exceptions.MovedError) and keys[at] is not None:
                    found[at] = await self.call(*commands[at])
                elif isinstance(answer, Exception):
                    raise answer
                else:
                    found[at] = answer

        try:
            await asyncio.gather(*(ask(client, places) for client, places in by_node.items()))
        except _PERHAPS_ELSEWHERE:
            self._ranges = []
            raise
        return found

    async def each(self, *command: Any) -> list[Any]:
        await self._ask()
        nodes = dict.fromkeys(address for _, _, address in self._ranges)
        return [await self._client(each).execute_command(*command) for each in nodes]  # type: ignore[no-untyped-call]

    def home(self, key: str) -> Redis | None:
        slot = key_slot(key.encode())
        for first, last, address in self._ranges:
            if first <= slot <= last:
                return self._client(address)
        return None

    async def _found(self, key: str) -> Redis:
        client = self.home(key)
        if client is None:
            await self._ask()
            client = self.home(key)
        if client is None:
            raise exceptions.ClusterDownError("no node has the slot of a key")
        return client

    async def _ask(self) -> None:
        """Ask any node where the slots are. Raises what the last one raises."""
        async with self._asking:
            if self._ranges and time.monotonic() - self._asked_at < _ASK_SECONDS:
                return
            error: Exception = exceptions.ConnectionError("no node answers")
            known = deque(dict.fromkeys((*self._primaries, *self._seeds)))
            self._turn += 1  # another one each time: the one before may have lost the others
            known.rotate(self._turn)
            for address in dict.fromkeys((*known, *self._nodes)):  # those that left come last
                try:
                    rows = await self._client(address).execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
                except (exceptions.RedisError, OSError) as found:
                    error = found
                    continue
                if rows:
                    self._ranges = [
                        (int(first), int(last), _address_of(node, address))
                        for first, last, node, *_ in rows
                    ]
                    self._primaries = list({address for *_, address in self._ranges})
                    self._asked_at = time.monotonic()
                    return
            raise error

    async def close(self) -> None:
        for client in self._nodes.values():
            await client.aclose()


def _address_of(node: Sequence[Any], asked: str) -> str:
    """Return the address that a cluster tells of a node; one without a host has that of `asked`."""
    host = node[0].decode() if isinstance(node[0], bytes) else node[0]
    if not host:
        host = asked.rpartition(":")[0]
    elif ":" in host:
        host = f"[{host}]"
    return f"{host}:{int(node[1])}"
