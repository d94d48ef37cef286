"""A model of Kafka, Redis and time, in one process, under the real `Ingest` and the real `Store`.

* `VirtualLoop`: an event loop whose clock jumps to the next timer, so hours take moments. What
  belongs to a `Process` stands still while that sleeps, as after SIGSTOP, and for good when it is
  killed: no line of it runs, no timer, no thread.
* `Server`, `Client`: Redis with the meaning of `commit.lua`, and a connection that loses requests
  and replies.
* `Topic`, `Group`, `Member`: a plain log, a consumer group, and what one member sees of both
  (`ports.EventLog`), for tests that need no brokers; `brokers` has those.

A member that is `dead` or `stopped` gets no answer to anything: for good, or until it wakes up.
"""

import asyncio
import collections
import contextlib
import contextvars
import copy
import hashlib
import random
import selectors
import sys
import time
import zlib
from importlib import resources

import aiokafka
import aiokafka.client
import msgspec
from aiokafka.structs import BrokerMetadata, TopicPartition
from brokers import PROCESS
from redis import exceptions

from streameval.core.experiments.first_lists import width_of
from streameval.core.record_mark import mark
from streameval.kafka.records import Records
from streameval.store.user_scan import STAYS

SESSION_SECONDS = 10.0
REBALANCE_SECONDS = 30.0
COMMIT = resources.files("streameval.store").joinpath("commit.lua").read_text()
MEND = resources.files("streameval.store").joinpath("mend.lua").read_text()
COMMIT_SHA, MEND_SHA, STAYS_SHA = (
    hashlib.sha1(text.encode()).hexdigest() for text in (COMMIT, MEND, STAYS)
)


class _Jump(selectors.SelectSelector):
    """Never waits and never asks: the clock of its loop jumps over the wait."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise AssertionError("nothing will ever happen again")
        # A round of the loop takes a moment: what waits for 1e-16 s would else wait for ever.
        self.now += max(1e-6, timeout)
        return []


class Process:
    """One worker: its tasks, timers and threads, which `stop` and `kill` hold up together.

    What is started with `context` belongs to it, and what that starts.
    """

    def __init__(self, loop):
        self.loop = loop
        self.asleep = self.dead = False
        self.held = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        loop.processes.append(self)

    @property
    def answers(self):
        return not self.asleep

    def start(self, work):
        """A task of this process."""
        return self.loop.create_task(work, context=self.context)

    def stop(self):
        self.asleep = True

    def kill(self):
        self.asleep = self.dead = True

    def wake(self):
        """As SIGCONT: everything that came due meanwhile happens now."""
        if not self.dead:
            self.asleep = False
            held, self.held = self.held, []
            for callback, args, context in held:
                self.loop.call_soon(callback, *args, context=context)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time is what the timers say; threads are calls, so a seed always runs the same way.

    `thread_seconds` says how long the next thread takes; 0: it is done at once.
    """

    def __init__(self):
        self._jump = _Jump()
        self.processes = []
        self.thread_seconds = float
        super().__init__(self._jump)

    def time(self):
        return self._jump.now

    def call_soon(self, callback, *args, context=None):
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None and process.asleep:
            context = contextvars.copy_context() if context is None else context
            process.held.append((callback, args, context))
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, self._due, process, callback, args, context=context)

    @staticmethod
    def _due(process, callback, args):
        if process.asleep:
            process.held.append((callback, args, contextvars.copy_context()))
        else:
            callback(*args)

    def run_in_executor(self, _executor, func, *args):
        answer = self.create_future()
        seconds = self.thread_seconds()
        if seconds:
            self.call_later(seconds, self._finish, answer, func, args)
        else:
            self._finish(answer, func, args)
        return answer

    @staticmethod
    def _finish(answer, func, args):
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - the caller's to see
            answer.cancelled() or answer.set_exception(error)
        else:
            answer.cancelled() or answer.set_result(result)


class Topic:
    """Partitions of records (offset, timestamp, key, value); offsets have gaps."""

    def __init__(self, rng, partitions):
        self.rng = rng
        self.log = {number: [] for number in range(partitions)}
        self.ends = dict.fromkeys(self.log, 0)

    def append(self, partition, timestamp, key, value):
        self.log[partition].append((self.ends[partition], timestamp, key, value))
        self.ends[partition] += 1 if self.rng.random() < 0.95 else 1 + self.rng.randrange(5)

    def read(self, partition, position, count):
        """Up to `count` records from `position` on, and the position after them."""
        found = [record for record in self.log[partition] if record[0] >= position]
        taken = found[:count]
        if len(taken) == len(found):
            return taken, self.ends[partition]
        return taken, taken[-1][0] + 1 if self.rng.random() < 0.5 else found[count][0]


class Group:
    """A consumer group with eager rebalances: everybody lets go, then partitions are dealt out."""

    def __init__(self, rng, topic):
        self.rng, self.topic = rng, topic
        self.members = []
        self._turn = asyncio.Lock()

    async def join(self, member):
        if member not in self.members and not member.closed:
            self.members.append(member)
        await self.rebalance()

    async def leave(self, member):
        if member in self.members:
            self.members.remove(member)
            await self.rebalance()

    async def rebalance(self):
        async with self._turn:
            members = list(self.members)
            await asyncio.gather(*(self._let_go(member) for member in members))
            members = [member for member in members if member in self.members]
            partitions = list(self.topic.log)
            self.rng.shuffle(partitions)
            for at, member in enumerate(members):
                member.begin(partitions[at :: len(members)])

    async def _let_go(self, member):
        """Wait for a member to let go; one that does not answer is out of the group."""
        letting_go = asyncio.ensure_future(member.let_go())
        silent = REBALANCE_SECONDS if member.answers else SESSION_SECONDS
        await asyncio.wait({letting_go}, timeout=silent)
        if not letting_go.done() and member in self.members:
            self.members.remove(member)


class Member:
    """`ports.EventLog` for one worker."""

    cluster_id = "cluster"
    topic_id = "topic"
    partitions = 0
    trouble = ""

    def __init__(self, rng, topic, group):
        self.rng, self.topic, self.group = rng, topic, group
        self.dead = self.closed = False
        self._positions = {}
        self._paused = set()
        self._listener = None
        self._awake = asyncio.Event()
        self._awake.set()
        self._calls = asyncio.Lock()  # of the listener: one after the other, as aiokafka does

    @property
    def answers(self):
        return not self.dead

    def kill(self):
        self.dead = True
        self._awake.clear()
        self._missed = asyncio.ensure_future(self._miss())

    async def _miss(self):
        """The group notices, when the session is over."""
        await asyncio.sleep(SESSION_SECONDS)
        if not self.answers:
            await self.group.leave(self)

    async def gate(self):
        """Where the world reaches a worker, or does not."""
        await self._awake.wait()

    async def let_go(self):
        await self.gate()
        async with self._calls:
            lost = list(self._positions)
            self._positions.clear()
            await self._listener.revoked(lost)

    def begin(self, partitions):
        self._background = asyncio.ensure_future(self._begin(partitions))

    async def _begin(self, partitions):
        await self.gate()
        async with self._calls:
            if self in self.group.members:
                self._positions = dict.fromkeys(partitions)
                self._paused = set(partitions)
                await self._listener.assigned(partitions)

    async def connect(self):
        return len(self.topic.log)

    async def start(self, listener):
        self._listener = listener
        self._joining = asyncio.ensure_future(self.group.join(self))

    async def poll(self, seconds, _max_records):
        await self.gate()
        await asyncio.sleep(seconds if self.rng.random() < 0.5 else 0.01)
        await self.gate()
        found = []
        for partition, position in list(self._positions.items()):
            if position is None or partition in self._paused or self.rng.random() < 0.3:
                continue
            records, after = self.topic.read(partition, position, self.rng.randint(1, 40))
            if after != position:
                self._positions[partition] = after
                columns = list(zip(*records, strict=True)) or [(), (), (), ()]
                size = sum(len(value or b"") for value in columns[3])
                found.append(Records(partition, *columns, after, size))
        return found

    def seek(self, partition, offset):
        if partition in self._positions:
            self._positions[partition] = offset

    def pause(self, partition):
        self._paused.add(partition)

    def resume(self, partition):
        self._paused.discard(partition)

    async def bounds(self, partition):
        await self.gate()
        return 0, self.topic.ends[partition]

    async def mark_at(self, partition, offset):
        await self.gate()
        found = [record for record in self.topic.log[partition] if record[0] == offset]
        return mark(*found[0]) if found else None

    def lag(self, partition, next_offset):
        return max(0, self.topic.ends[partition] - next_offset)

    def unreadable(self, _partition):
        return None

    async def write_dead_letters(self, dead_letters):
        await self.gate()
        await asyncio.sleep(self.rng.uniform(0, 0.1))
        await self.gate()
        return 0

    async def commit(self, _offsets):
        await self.gate()

    async def probe(self):
        await self.gate()
        return True

    async def close(self, _deadline):
        self.closed = True
        await self.gate()
        self._positions.clear()
        self._background = asyncio.ensure_future(self.group.leave(self))


class Server:
    """Redis: keys with their values, and the commit script's meaning in Python."""

    def __init__(self, rng):
        self.rng = rng
        self.down = False
        self.keys = {}
        self.volatile = set()
        self._copies = []

    def snapshot(self):
        self._copies.append(copy.deepcopy((self.keys, self.volatile)))

    def roll_back(self):
        """Start again from one of the older files, or from nothing."""
        empty = ({}, set())
        self.keys, self.volatile = copy.deepcopy(self.rng.choice([empty, *self._copies]))

    def commit(self, key, arguments):
        """What `commit.lua` does, step by step."""
        start, end, _, _, _, _, fingerprint = arguments[:7]
        users, header, keep, new, _, since = arguments[9:15]
        prefix = key.removesuffix("partition")
        stored = self.keys.get(key, {})
        listed = stored.get(b"chunks", b"").decode().split()
        fenced = [b"fenced", stored.get(b"offset", b""), stored.get(b"commit", b"")]
        if stored.get(b"offset", b"") != _bytes(start):
            return fenced
        if stored.get(b"fingerprint", b"") not in {b"", _bytes(fingerprint)}:
            return fenced
        if stored.get(b"begun") != stored.get(b"done"):
            return [b"torn", b""]
        if header and stored.get(b"checkpoint_offset", b"") != _bytes(since):
            return fenced
        new, keep = msgspec.msgpack.decode(new), msgspec.msgpack.decode(keep)
        if any(f"{prefix}chunk:{name}" not in self.keys for name in new):
            return [b"missing"]
        if not set(keep) <= {*listed, *new}:
            return fenced
        users = msgspec.msgpack.decode(users)
        begin = int(start) if _bytes(start) else -1
        rows = [self.keys.get(f"{prefix}user:{user}", {}) for user in users[0]]
        cuts = [at for row in rows if begin < (at := int(row.get(b"at", -1))) < int(end)]
        if cuts:
            return [b"torn", _bytes(min(cuts))]
        self._write(key, arguments, begin, users, new, keep)
        return [b"applied"]

    def _write(self, key, arguments, begin, users, new, keep):
        start, end, now, identity, cluster, topic, fingerprint, definition = arguments[:8]
        header, last_record, visits, first = (arguments[at] for at in (10, 13, 15, 16))
        prefix = key.removesuffix("partition")
        stored = self.keys.get(key, {})
        listed, dropped = stored.get(b"chunks", b""), stored.get(b"dropped", b"")
        for name in dropped.decode().split():
            self.keys.pop(f"{prefix}chunk:{name}", None)
        fields = {b"offset": end, b"commit": identity, b"dropped": b""}
        fields |= {b"begun": (commits := int(stored.get(b"begun", 0)) + 1), b"done": commits}
        if first:
            pointer = (b"checkpoint_offset", b"header", b"chunks", b"last_record")
            fields |= {name: stored.get(name, b"") for name in pointer}
        fields |= {} if _bytes(start) == _bytes(end) else {b"committed_at": now}
        fields |= {b"last_record": last_record} if last_record else {}
        known = b"fingerprint" in stored
        fields |= {} if known else {b"cluster_id": cluster, b"topic_id": topic}
        fields |= {} if known else {b"fingerprint": fingerprint, b"definition": definition}
        if header:
            fields |= {b"checkpoint_offset": end, b"header": header, b"chunks": " ".join(keep)}
            self.volatile -= {f"{prefix}chunk:{name}" for name in new}
            fields[b"dropped"] = " ".join(
                name for name in listed.decode().split() if name not in keep
            )
        self.keys[key] = stored | {name: _bytes(value) for name, value in fields.items()}
        self._count(prefix, begin, int(end), *users)
        if visits:
            self._visit(prefix, *msgspec.msgpack.decode(visits))

    def mend(self, key, arguments):
        """What `mend.lua` does, for sums that it counts by itself."""
        begun, counted = arguments
        if self.keys[key][b"begun"] == _bytes(begun):
            prefix = key.removesuffix("partition")
            for experiment, fields in msgspec.msgpack.decode(counted).items():
                begin, end = map(int, fields["span"].split())
                found = self._counted(prefix, experiment, width_of(begin, end))
                assert _sums(found) == _sums(fields), "the store counted otherwise"
                self.keys[f"{prefix}arms:{experiment}"] = found | {b"span": fields["span"].encode()}
            self.keys[key] = self.keys[key] | {b"done": _bytes(begun)}

    def rows(self, key, arguments):
        """What the script of `user_scan` does."""
        prefix, *users = arguments
        rows = [self.keys.get(prefix + user, {}) for user in users]
        flat = [[text for pair in row.items() for text in pair] for row in rows]
        return [self.keys.get(key, {}).get(b"offset"), *flat]

    def _count(self, prefix, begin, end, users, firsts, lasts, *counters):
        for at, user in enumerate(users):
            row = dict(self.keys.get(f"{prefix}user:{user}", {}))
            ahead = int(row.get(b"at", -1)) > begin
            row[b"at"] = row[b"at"] if ahead else _bytes(end)
            for field, column in zip(counters[::2], counters[1::2], strict=True):
                if column[at]:
                    counted = 0 if ahead else column[at]
                    row[field.encode()] = _bytes(int(row.get(field.encode(), 0)) + counted)
            first, last = firsts[at], int(lasts[at])
            row[b"first_ts"] = _bytes(min(first, int(row.get(b"first_ts", first))))
            row[b"last_ts"] = _bytes(max(last, int(row.get(b"last_ts", last))))
            self.keys[f"{prefix}user:{user}"] = row

    def _visit(self, prefix, experiments, users, arms, _clusters, firsts):
        """Enter the arms, and count the users of each experiment anew from what all users hold."""
        spans = {}
        for experiment, user, arm, first in zip(experiments, users, arms, firsts, strict=True):
            row = dict(self.keys.get(f"{prefix}user:{user}", {}))
            field = f"first:{experiment}".encode()
            known = first_lists(row.get(field))
            known[arm] = min(first, known.get(arm, first))
            row[field] = msgspec.msgpack.encode(known)
            self.keys[f"{prefix}user:{user}"] = row
            if experiment not in spans:
                stored = self.keys.get(f"{prefix}arms:{experiment}", {}).get(b"span", b"")
                spans[experiment] = [int(time) for time in stored.split()]
            spans[experiment] += [known[arm][0]] if len(known) == 1 else []
        for experiment, times in spans.items():
            counted = self._counted(prefix, experiment, width_of(min(times), max(times)))
            counted[b"span"] = b"%d %d" % (min(times), max(times))
            self.keys[f"{prefix}arms:{experiment}"] = counted

    def _counted(self, prefix, name, width):
        counts, sums = collections.Counter(), {}
        for key, row in self.keys.items():
            if key.startswith(f"{prefix}user:"):
                arms = first_lists(row.get(f"first:{name}".encode()))
                cluster = zlib.crc32(key.removeprefix(f"{prefix}user:").encode()) & 255
                counts.update(f"users:{cluster}:{arm}" for arm in arms)
                counts.update(f"only:{arm}" for arm in arms if len(arms) == 1)
                counts["crossed"] += len(arms) > 1
                for arm, (time, *values) in arms.items() if len(arms) == 1 else ():
                    sums.setdefault(f"first:{time // width}:{arm}", []).append([1, *values])
        found = {field.encode(): _bytes(count) for field, count in counts.items() if count}
        packed = msgspec.msgpack.encode
        return found | {
            field.encode(): packed([sum(column) for column in zip(*rows, strict=True)])
            for field, rows in sums.items()
        }

    def lose_unlisted(self):
        """Let the chunks that no checkpoint lists yet run out of time."""
        for key in self.volatile:
            self.keys.pop(key, None)
        self.volatile.clear()


class Client:
    """The `Servers` of `Store`, for one worker, on a bad line."""

    def __init__(self, rng, server, member, lost):
        self.rng, self.server, self.member, self.lost = rng, server, member, lost

    async def _call(self, command):
        """A request may not arrive; it may arrive and its answer may not."""
        await self.member.gate()
        await asyncio.sleep(self.rng.expovariate(20))
        if self.server.down or self.rng.random() < self.lost:
            raise exceptions.ConnectionError("request lost")
        answer = command()
        await asyncio.sleep(self.rng.expovariate(20))
        await self.member.gate()
        if self.rng.random() < self.lost:
            raise exceptions.ConnectionError("reply lost")
        return answer

    async def call(self, name, *words):
        """What `Servers.call` answers; a script is known by its digest."""
        if name == "EVALSHA":
            sha, _, key, *arguments = words
            scripts = {COMMIT_SHA: self.server.commit, MEND_SHA: self.server.mend}
            if sha == STAYS_SHA:
                return await self._call(lambda: 0)
            return await self._call(lambda: scripts.get(sha, self.server.rows)(key, arguments))
        return await self._call(lambda: self._plain(name, *words))

    async def execute_command(self, *command):
        return await self.call(*command)

    def _plain(self, name, key, *rest):
        if name == "SET":
            self.server.keys[key] = _bytes(rest[0])
            self.server.volatile.add(key)
            return True
        if name == "DEL":
            return self.server.keys.pop(key, None)
        if name == "SCAN":
            prefix = rest[1].removesuffix("*")
            return 0, [key.encode() for key in self.server.keys if key.startswith(prefix)]
        value = self.server.keys.get(key)
        if name == "HGET":
            return (value or {}).get(rest[0].encode())
        return value if name == "GET" else dict(value or {})

    async def each(self, name):
        facts = {"maxmemory_policy": "noeviction", "redis_version": "0", "aof_enabled": 1}
        return [await self._call(lambda: facts if name == "INFO" else (0, 0))]

    def home(self, _key):
        return self

    async def close(self):
        """Nothing to close."""


def first_lists(field):
    """The first list of a user in each arm, as a field of the user's hash holds them."""
    return {} if field is None else msgspec.msgpack.decode(field)


def _sums(fields):
    """The fields of an experiment but for its span, and for counts of 0."""
    named = {name.decode() if isinstance(name, bytes) else name: it for name, it in fields.items()}
    plain = {
        name: msgspec.msgpack.decode(it) if isinstance(it, bytes) and name[:6] == "first:" else it
        for name, it in named.items()
    }
    return {
        name: it if isinstance(it, list) else int(it)
        for name, it in plain.items()
        if name != "span" and it not in ("0", b"0")
    }


def _bytes(value):
    return value if isinstance(value, bytes) else str(value).encode()


class _Clock:
    """Stands for the module `time` where the service and aiokafka look at the clock."""

    def __init__(self, loop):
        self.monotonic = self.perf_counter = self.thread_time = loop.time
        self.time = lambda: 1.8e9 + loop.time()

    def __getattr__(self, name):
        return getattr(time, name)


@contextlib.contextmanager
def virtual_time(seed, monkeypatch, connect=None):
    """A loop with a clock of its own, which the service and aiokafka take for the time.

    `connect` takes the place of aiokafka's connections. Chance is seeded, and sets of partitions
    and brokers have the same order in every process, so that a seed runs the same way everywhere.
    Everything is cancelled at the end.
    """
    loop = VirtualLoop()
    clock = _Clock(loop)
    for name, module in list(sys.modules.items()):
        ours = name.startswith(("streameval", "aiokafka"))
        if ours and getattr(module, "time", None) is time:
            monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(TopicPartition, "__hash__", lambda place: place.partition)
    monkeypatch.setattr(BrokerMetadata, "__hash__", lambda broker: hash(broker.nodeId))
    clients = []
    if connect is not None:
        monkeypatch.setattr(aiokafka.client, "create_conn", connect)
        for kind in (aiokafka.AIOKafkaConsumer, aiokafka.AIOKafkaProducer):
            monkeypatch.setattr(kind, "__init__", _noting(kind.__init__, clients))
    chance = random.getstate()
    random.seed(seed)
    try:
        yield loop, random.Random(seed)
    finally:
        loop.run_until_complete(_cancel_the_others())
        loop.close()
        random.setstate(chance)
        for client in clients:  # of processes that were killed
            client._closed = True


def _noting(begin, clients):
    def noted(self, *arguments, **options):
        clients.append(self)
        begin(self, *arguments, **options)

    return noted


async def _cancel_the_others():
    """End every task; aiokafka's own may take more than one cancellation."""
    for process in asyncio.get_running_loop().processes:
        process.dead = False
        process.wake()
    for _ in range(5):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=30)
