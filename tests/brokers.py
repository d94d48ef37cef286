"""Kafka below aiokafka: brokers that answer its requests in virtual time, with real batches.

Only the connection is replaced (`create_conn`). Everything above it is the real thing: aiokafka's
metadata, fetcher, group coordinator and producer, and the service's reader, record path and
dead letters.

* `PartitionLog`: batches as a broker keeps them (message format 2 with all codecs, now and then the
  older format 1), gaps of compaction, empty batches, transactions that are committed or aborted,
  a beginning that retention moves, leaders with their epochs.
* `Group`: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, by generations as Kafka's coordinator.
* `Cluster`: three brokers, what they answer and how they fail: they die, hang, break connections,
  lose leadership, cut a fetch anywhere, and flip a bit now and then.
"""

import bisect
import contextvars
import struct
from types import SimpleNamespace

from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaConnectionError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

NODES = (1, 2, 3)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"

# The versions that brokers answer to, by the keys of the protocol.
PRODUCE, FETCH, OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC, CREATE_TOPICS = 10, 11, 12, 13, 14, 19
VERSIONS = {
    PRODUCE: (0, 7),
    FETCH: (0, 13),
    OFFSETS: (0, 5),
    METADATA: (0, 12),
    OFFSET_COMMIT: (0, 3),
    OFFSET_FETCH: (0, 3),
    COORDINATOR: (0, 1),
    JOIN: (0, 5),
    HEARTBEAT: (0, 1),
    LEAVE: (0, 1),
    SYNC: (0, 3),
    CREATE_TOPICS: (0, 3),
}

TOO_LARGE, UNKNOWN_TOPIC_ID = 10, 100
OUT_OF_RANGE, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER = 1, 3, 5, 6
NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE_IN_PROGRESS = 16, 22, 25, 27

ELECTION_SECONDS = 3.0

PROCESS = contextvars.ContextVar("process", default=None)


# --- batches -------------------------------------------------------------------------------------


class Batch:
    """A batch on the disk of a broker: offsets `base` to `end` - 1, whatever it still holds."""

    __slots__ = ("base", "end", "producer", "raw")

    def __init__(self, base, end, raw, producer=-1):
        self.base, self.end, self.raw, self.producer = base, end, raw, producer


def batch(records, end, *, codec=NONE, producer=-1, epoch=0, control=False):
    """The batch of `records` (offset, timestamp, key, value), up to offset `end`, as bytes."""
    base = records[0][0]
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(producer >= 0),
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 24,
    )
    for offset, timestamp, key, value in records:
        builder.append(offset - base, timestamp, key, value, [])
    raw = builder.build()
    return _finished(raw, base, end, epoch, 0x20 if control else 0)


def empty_batch(base, end, epoch):
    """What compaction leaves of a batch whose records are all gone: its header."""
    raw = bytearray(batch([(base, 0, None, None)], end))[:61]
    struct.pack_into(">i", raw, 8, 61 - 12)
    struct.pack_into(">i", raw, 57, 0)
    return _finished(raw, base, end, epoch, 0)


def _finished(raw, base, end, epoch, attributes):
    """Fill in what the broker fills in: the offset, the epoch; and the checksum anew."""
    struct.pack_into(">q", raw, 0, base)
    struct.pack_into(">i", raw, 12, epoch)
    struct.pack_into(">i", raw, 23, end - base - 1)
    raw[22] |= attributes
    struct.pack_into(">I", raw, 17, calc_crc32c(bytes(raw[21:])))
    return bytes(raw)


def old_batch(record, codec):
    """One record in Kafka's format 1, as topics hold that began before 0.11."""
    offset, timestamp, key, value = record
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=codec, batch_size=1 << 24)
    builder.append(0, timestamp, key, value)
    raw = bytearray(builder.build())
    struct.pack_into(">q", raw, 0, offset)
    return bytes(raw)


# --- one partition -------------------------------------------------------------------------------


class PartitionLog:
    """One partition. `records` are those that count: (offset, timestamp, key, value), by offset."""

    def __init__(self, rng, number):
        self.rng, self.number = rng, number
        self.batches, self.records = [], []
        self.lost, self.between = set(), set()  # offsets within batches that count; between batches
        self.start = self.end = 0
        self.leader, self.epoch = NODES[number % len(NODES)], 0
        self.settled_at = 0.0  # an election was over; before, ends are not told
        self._open = {}  # transactions under way: producer to records
        self._first = {}  # and to the offset where each began
        self.aborted = []  # (producer, first offset, offset of the marker)
        self.epochs = []  # (epoch, offset of its first batch), rising

    @property
    def stable_end(self):
        """The end for those who read what is committed."""
        return min([*self._first.values(), self.end])

    def append(self, rows, *, producer=-1):
        """Write a batch of (timestamp, key, value), with gaps as compaction leaves them."""
        rng = self.rng
        old = producer < 0 and len(rows) == 1 and rng.random() < 0.05
        records, begin = [], self.end
        for timestamp, key, value in rows:
            if not old and rng.random() < 0.05:
                self.end += 1 + rng.randrange(5)
            records.append((self.end, timestamp, key, value))
            self.end += 1
        if old:
            raw = old_batch(records[0], rng.choice((NONE, GZIP)))
        else:
            if rng.random() < 0.05:
                self.end += 1 + rng.randrange(5)
            codec = rng.choice(CODECS)
            raw = batch(records, self.end, codec=codec, producer=producer, epoch=self.epoch)
        base = records[0][0]
        self._add(Batch(base, self.end, raw, producer))
        self.between |= set(range(begin, base))
        if producer < 0:
            self._insert(records)
            self.lost |= set(range(base, self.end)) - {record[0] for record in records}
        else:
            self._first.setdefault(producer, records[0][0])
            self._open.setdefault(producer, []).extend(records)

    def append_empty(self):
        """What is left of a batch that was compacted away."""
        end = self.end + 1 + self.rng.randrange(5)
        self._add(Batch(self.end, end, empty_batch(self.end, end, self.epoch)))
        self.lost |= set(range(self.end, end))
        self.end = end

    def finish(self, producer, *, commit):
        """End a transaction with its marker; the records of an aborted one do not count."""
        records = self._open.pop(producer)
        marker = [(self.end, 1, COMMIT if commit else ABORT, b"\0\0\0\0\0\0")]
        raw = batch(marker, self.end + 1, producer=producer, epoch=self.epoch, control=True)
        first = self._first.pop(producer)
        if commit:
            self._insert(records)
            offsets = {
                offset
                for one in self.batches
                if one.producer == producer
                for offset in range(one.base, one.end)
            }
            self.lost |= offsets - {record[0] for record in records}
        else:
            self.aborted.append((producer, first, self.end))
        self._add(Batch(self.end, self.end + 1, raw, producer))
        self.end += 1

    def _add(self, one):
        self.batches.append(one)
        if not self.epochs or self.epochs[-1][0] != self.epoch:
            self.epochs.append((self.epoch, one.base))

    def diverges(self, epoch, offset):
        """Whether what a reader read of `epoch`, up to `offset`, is no part of this log.

        As brokers tell it, by where the epoch ends here.
        """
        known = [one for one, _ in self.epochs if one <= epoch]
        later = [start for one, start in self.epochs if one > epoch]
        if epoch < 0 or not self.epochs:
            return False
        if known and known[-1] < epoch:
            return True
        return (later[0] if later else self.end) < offset

    def _insert(self, records):
        for record in records:
            if self.records and self.records[-1][0] > record[0]:
                bisect.insort(self.records, record, key=lambda one: one[0])
            else:
                self.records.append(record)

    def truncate(self, start):
        """Retention: whole batches below `start` go. `records` stay: they were in the log."""
        self.start = max(self.start, min(start, self.stable_end))
        self.batches = [one for one in self.batches if one.end > self.start]

    def set_back(self, end):
        """As after an unclean election: batches from `end` on are gone, and other ones may follow.

        Answers the offset where the log ends now.
        """
        self.batches = [one for one in self.batches if one.end <= end]
        self.end = max([self.start, *(one.end for one in self.batches)])
        self.records = [record for record in self.records if record[0] < self.end]
        self.lost = {offset for offset in self.lost if offset < self.end}
        self.between = {offset for offset in self.between if offset < self.end}
        self._open, self._first = {}, {}
        self.aborted = [one for one in self.aborted if one[2] < self.end]
        self.epochs = [one for one in self.epochs if one[1] < self.end]
        self.epoch += 1
        return self.end

    def fetch(self, offset, most):
        """What a broker answers from `offset` on: about `most` batches, the last cut anywhere."""
        stable = self.stable_end
        begin = bisect.bisect_right(self.batches, offset, key=lambda one: one.end - 1)
        if begin and self.batches[begin - 1].end > offset:
            begin -= 1
        found = [one for one in self.batches[begin : begin + most + 1] if one.base < stable]
        if not found:
            return b"", []
        whole, cut = found[:most], found[most:]
        raw = b"".join(one.raw for one in whole)
        if cut:
            raw += cut[0].raw[: self.rng.randrange(len(cut[0].raw))]
        end = whole[-1].end
        aborted = [
            (producer, first)
            for producer, first, marker in self.aborted
            if marker >= offset and first < end
        ]
        return raw, aborted


# --- the group -----------------------------------------------------------------------------------


class Group:
    """A consumer group as its coordinator keeps it; `respond` sends an answer's fields."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.members = {}  # by id, in the order of joining
        self.generation, self.state = 0, "empty"
        self.number = 0
        self._round = 0
        self.offsets = {}

    def join(self, request, respond):
        name = request.member_id
        if name and name not in self.members:
            respond(error_code=UNKNOWN_MEMBER)
            return
        if not name:
            self.number += 1
            name = f"member-{self.number}"
            self.members[name] = SimpleNamespace(
                name=name, join=None, sync=None, assignment=b"", beat=0, session=0.0
            )
        member = self.members[name]
        member.session = request.session_timeout / 1000
        member.protocol, member.metadata = request.group_protocols[0][:2]
        member.join = respond
        if self.state != "preparing":
            self._prepare(request.rebalance_timeout / 1000)
        self._all_joined()

    def _prepare(self, seconds=30.0):
        """Have everybody join anew; who does not within `seconds` is out."""
        self.state = "preparing"
        self._round += 1
        for member in self.members.values():
            if member.sync is not None:
                member.sync(error_code=REBALANCE_IN_PROGRESS, member_assignment=b"")
                member.sync = None
        self.cluster.after(seconds, self._joining_is_over, self._round)

    def _joining_is_over(self, number):
        if number == self._round and self.state == "preparing":
            self.members = {n: one for n, one in self.members.items() if one.join is not None}
            self._all_joined()

    def _all_joined(self):
        members = list(self.members.values())
        if self.state != "preparing" or any(member.join is None for member in members):
            return
        if not members:
            self.state = "empty"
            return
        self.generation += 1
        self.state = "completing"
        leader = members[0]
        everybody = [(member.name, None, member.metadata) for member in members]
        for member in members:
            respond, member.join = member.join, None
            respond(
                generation_id=self.generation,
                group_protocol=member.protocol,
                leader_id=leader.name,
                member_id=member.name,
                members=everybody if member is leader else [],
            )
            self._heard(member)

    def sync(self, request, respond):
        member = self.members.get(request.member_id)
        error = self._error(member, request)
        if error or self.state == "preparing":
            respond(error_code=error or REBALANCE_IN_PROGRESS, member_assignment=b"")
            return
        self._heard(member)
        member.sync = respond
        if request.group_assignment:
            for name, assignment in request.group_assignment:
                if name in self.members:
                    self.members[name].assignment = assignment
            self.state = "stable"
        if self.state == "stable":
            for one in self.members.values():
                if one.sync is not None:
                    one.sync(member_assignment=one.assignment)
                    one.sync = None

    def heartbeat(self, request, respond):
        member = self.members.get(request.member_id)
        error = self._error(member, request)
        if not error:
            self._heard(member)
            error = REBALANCE_IN_PROGRESS if self.state == "preparing" else 0
        respond(error_code=error)

    def leave(self, request, respond):
        self._remove(request.member_id)
        respond()

    def commit(self, request, respond):
        member = self.members.get(request.consumer_id)
        error = self._error(member, request, "consumer_group_generation_id")
        topics = []
        for topic, partitions in request.topics:
            for number, offset, _ in partitions:
                if not error:
                    self.offsets[number] = offset
            topics.append((topic, [(number, error) for number, _, _ in partitions]))
        respond(topics=topics)

    def committed(self, request, respond):
        """Nobody's offsets: the service keeps its own, whatever the group remembers."""
        topics = [
            (topic, [(number, -1, "", 0) for number in numbers])
            for topic, numbers in request.topics
        ]
        respond(topics=topics)

    def _error(self, member, request, name="generation_id"):
        if member is None:
            return UNKNOWN_MEMBER
        return 0 if getattr(request, name) == self.generation else ILLEGAL_GENERATION

    def _heard(self, member):
        member.beat += 1
        self.cluster.after(member.session, self._silent, member.name, member.beat)

    def _silent(self, name, beat):
        """The session is over, unless the member was heard since, or waits for the others."""
        member = self.members.get(name)
        if member is not None and member.beat == beat and member.join is None:
            self._remove(name)

    def _remove(self, name):
        if self.members.pop(name, None) is not None:
            if self.state != "preparing":
                self._prepare()
            self._all_joined()


# --- brokers and connections ---------------------------------------------------------------------


class Connection:
    """What `create_conn` gives aiokafka: one connection of a process to one broker."""

    def __init__(self, cluster, node, on_close):
        self.cluster, self.node, self.host, self.port = cluster, node, "broker", node
        self._on_close = on_close
        self._pending = {}  # by arrival: sets have no order
        self.owner = PROCESS.get()
        self._open = True
        cluster.connections[self] = None

    def connected(self):
        return self._open

    def send(self, request, expect_response=True):
        """Send a request; answers a future of the response."""
        prepared = request.prepare(VERSIONS)
        future = self.cluster.loop.create_future()
        self._pending[future] = None
        self.cluster.after(self.cluster.latency(), self._arrive, prepared, future)
        return future

    def _arrive(self, request, future):
        if self._open:
            self.cluster.reach(
                self.node, self, request, lambda answer: self._answer(future, answer)
            )

    def _answer(self, future, answer):
        self.cluster.after(self.cluster.latency(), self._deliver, future, answer)

    def _deliver(self, future, answer):
        self._pending.pop(future, None)
        if self._open and not future.done():
            future.set_result(answer)

    def break_off(self):
        """The broker's side is gone."""
        self.close(CloseReason.CONNECTION_BROKEN, ConnectionError("broken"))

    def close(self, reason=None, exc=None):
        done = self.cluster.loop.create_future()
        done.set_result(None)
        if self._open:
            self._open = False
            self.cluster.connections.pop(self, None)
            for future in self._pending:
                if not future.done():
                    future.set_exception(KafkaConnectionError(f"connection to {self.node} closed"))
                    future.exception()  # nobody may wait for it any more
            self._pending.clear()
            if reason is not None and self._on_close is not None:
                self._on_close(self, reason)
        return done


class Cluster:
    """Three brokers with one topic of events and one of dead letters."""

    cluster_id = "cluster"
    topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"

    def __init__(self, loop, rng, partitions, topic="t", dead_letters="t.dead-letter"):
        self.loop, self.rng, self.topic, self.dead_letters = loop, rng, topic, dead_letters
        self.logs = {number: PartitionLog(rng, number) for number in range(partitions)}
        self.letters = []  # (key, value, headers) as they came
        self.topics = {topic}
        self.group = Group(self)
        self.coordinator = NODES[0]
        self.down, self.hanging = set(), set()
        self.connections = {}
        self.corrupt = 0.0
        self.most_batches = rng.choice((1, 2, 8))
        self.largest_letters = rng.choice((None, 900))  # bytes of a batch, as `max.message.bytes`
        self._fetches = []
        self._neutral = contextvars.Context()
        self._held = []
        self.requests = 0

    # Time and connections -------------------------------------------------------------------

    def after(self, seconds, call, *arguments):
        """Call something that belongs to no process, `seconds` from now."""
        self.loop.call_later(seconds, call, *arguments, context=self._neutral)

    def latency(self):
        return self.rng.expovariate(100)

    async def connect(self, host, port, *, on_close=None, **_):
        """What takes the place of aiokafka's `create_conn`."""
        node = port if port in NODES else self.rng.choice(NODES)
        answer = self.loop.create_future()
        self.after(self.latency(), lambda: answer.done() or answer.set_result(None))
        await answer
        if node in self.down:
            raise KafkaConnectionError(f"no broker at {host}:{port}")
        return Connection(self, node, on_close)

    def reach(self, node, connection, request, respond):
        """A request has come to a broker."""
        self.requests += 1
        if node in self.hanging:
            self._held.append((node, connection, request, respond))
            return
        handle = getattr(self, f"_{_NAMES[request.API_KEY]}")

        def answer(**fields):
            respond(_response(request, fields))

        handle(node, request, answer)

    # Faults ---------------------------------------------------------------------------------

    def stop(self, node):
        """A broker dies; what it led is led by others after the election."""
        self.down.add(node)
        for connection in [one for one in self.connections if one.node == node]:
            connection.break_off()
        self.after(self.rng.uniform(0, ELECTION_SECONDS), self._elect)

    def start(self, node):
        self.down.discard(node)
        self._elect()

    def hang(self, node):
        """A broker that takes requests and answers none."""
        self.hanging.add(node)

    def go_on(self, node):
        self.hanging.discard(node)
        held, self._held = self._held, []
        for one in held:
            self.reach(*one)

    def elect(self, number=None):
        """Move the leadership of a partition, as a broker does that is rolled."""
        alive = [node for node in NODES if node not in self.down]
        if alive:
            log = self.logs[self.rng.choice(list(self.logs)) if number is None else number]
            log.leader = self.rng.choice(alive)
            log.epoch += 1
            log.settled_at = self.loop.time() + self.rng.uniform(0, 2)
            self.poke()

    def _elect(self):
        for number, log in self.logs.items():
            if log.leader in self.down:
                self.elect(number)
        alive = [node for node in NODES if node not in self.down]
        if alive and self.coordinator in self.down:
            self.coordinator = self.rng.choice(alive)

    def poke(self):
        """Something changed: look again at the fetches that wait."""
        waiting, self._fetches = self._fetches, []
        for node, request, answer, end in waiting:
            self._try_fetch(node, request, answer, end)

    # Requests -------------------------------------------------------------------------------

    def _metadata(self, node, request, answer):
        # A broker of an old version of the request does not know the topic's id.
        flexible = request.API_VERSION >= 9
        brokers = [(n, "broker", n, None, *([{}] if flexible else ())) for n in NODES]
        brokers = [one for one in brokers if one[0] not in self.down]
        asked = request.topics
        names = [topic[1] if flexible else topic for topic in asked] if asked else self.topics
        topics = [self._described(name, flexible) for name in sorted(names)]
        answer(
            brokers=brokers,
            cluster_id=self.cluster_id,
            controller_id=brokers[0][0] if brokers else -1,
            topics=topics,
        )

    def _described(self, name, flexible):
        known = name in self.topics
        partitions = []
        for number, log in self.logs.items() if known and name == self.topic else ():
            epoch = (log.epoch,) if flexible else ()
            tags = ({},) if flexible else ()
            partitions.append((0, number, log.leader, *epoch, list(NODES), list(NODES), [], *tags))
        if known and name != self.topic:
            alive = [n for n in NODES if n not in self.down] or [-1]
            partitions.append((0, 0, alive[0], list(NODES), list(NODES), []))
        error = 0 if known else UNKNOWN_TOPIC
        if flexible:
            return (error, name, self.topic_id if known else "", False, partitions, 0, {})
        return (error, name, False, partitions)

    def _offsets(self, node, request, answer):
        topics = []
        for topic, partitions in request.topics:
            found = []
            for number, *_, time in partitions:
                log = self.logs[number]
                error, offset = 0, log.start if time == -2 else log.stable_end
                if log.leader != node:
                    error, offset = NOT_LEADER, -1
                elif self.loop.time() < log.settled_at and time == -1:
                    error, offset = LEADER_NOT_AVAILABLE, -1
                tail = (log.epoch,) if request.API_VERSION >= 4 else ()
                found.append((number, error, -1, offset, *tail))
            topics.append((topic, found))
        answer(topics=topics)

    def _fetch(self, node, request, answer):
        names = request.SCHEMA.names
        wait = request.get_item("max_wait_ms" if "max_wait_ms" in names else "max_wait_time")
        self._try_fetch(node, request, answer, self.loop.time() + wait / 1000)

    def _try_fetch(self, node, request, answer, end):
        ready, asked = False, []
        for topic, partitions in _asked(request):
            for number, offset, epoch in partitions:
                log = self.logs[number]
                error = 0
                if topic not in {self.topic, self.topic_id}:
                    error = UNKNOWN_TOPIC_ID
                elif log.leader != node:
                    error = NOT_LEADER
                elif not log.start <= offset <= log.end:
                    error = OUT_OF_RANGE
                diverges = not error and log.diverges(epoch, offset)
                asked.append((number, log, offset, error, diverges))
                settled = self.loop.time() >= log.settled_at
                ready = ready or error or diverges or (settled and offset < log.stable_end)
        if not ready and self.loop.time() < end:
            self._fetches.append((node, request, answer, end))
            self.after(end - self.loop.time(), self._give_up_waiting, answer)
            return
        found = [self._fetched(request.API_VERSION, *one) for one in asked]
        topic = request.topics[0][0]
        answer(topics=[(topic, found)], responses=[(topic, found, {})])

    def _fetched(self, version, number, log, offset, error, diverges):
        """Return the answer for one partition."""
        raw, aborted = b"", []
        if not error and not diverges and self.loop.time() >= log.settled_at:
            raw, aborted = log.fetch(offset, self.rng.randint(1, self.most_batches))
            if raw and self._may_be_damaged(raw):
                raw = self._damaged(raw)
        head = (number, error, log.end, log.stable_end, log.start)
        if version >= 13:
            aborted = [(*one, {}) for one in aborted]
            tags = {0: b"where they diverge"} if diverges else {}
            return (*head, aborted, -1, raw, tags)
        return (*head, aborted, -1, raw) if version >= 11 else (*head, aborted, raw)

    def _may_be_damaged(self, raw):
        """Whether its first batch is of the newer format, and holds records."""
        whole = raw[16] == 2 and struct.unpack_from(">i", raw, 8)[0] > 61
        return whole and self.rng.random() < self.corrupt

    def _damaged(self, raw):
        """Flip a bit that a checksum covers (that of a batch leaves out its offset and length)."""
        (length,) = struct.unpack_from(">i", raw, 8)
        raw = bytearray(raw)
        raw[self.rng.randrange(61, 12 + length)] ^= 1 << self.rng.randrange(8)
        return bytes(raw)

    def _give_up_waiting(self, answer):
        for one in self._fetches:
            if one[2] is answer:
                self._fetches.remove(one)
                self._try_fetch(*one)
                return

    def _coordinator(self, node, request, answer):
        answer(coordinator_id=self.coordinator, host="broker", port=self.coordinator)

    def _grouped(self, node, request, answer, handle, **otherwise):
        if node != self.coordinator:
            answer(error_code=NOT_COORDINATOR, **otherwise)
        else:
            handle(request, answer)

    def _join(self, node, request, answer):
        self._grouped(node, request, answer, self.group.join)

    def _sync(self, node, request, answer):
        self._grouped(node, request, answer, self.group.sync, member_assignment=b"")

    def _heartbeat(self, node, request, answer):
        self._grouped(node, request, answer, self.group.heartbeat)

    def _leave(self, node, request, answer):
        self._grouped(node, request, answer, self.group.leave)

    def _commit(self, node, request, answer):
        self.group.commit(request, answer)

    def _committed(self, node, request, answer):
        self.group.committed(request, answer)

    def _produce(self, node, request, answer):
        """Take dead letters; a reply that is lost afterwards makes them come twice."""
        topics = []
        for topic, partitions in request.topics:
            assert topic == self.dead_letters, f"nobody writes to {topic}"
            tail = (0,) if request.API_VERSION >= 5 else ()
            found = []
            for number, raw in partitions:
                error = TOO_LARGE if len(raw) > (self.largest_letters or len(raw)) else 0
                if not error:
                    self._take(bytes(raw))
                found.append((number, error, 0, -1, *tail))
            topics.append((topic, found))
        answer(topics=topics)

    def _take(self, raw):
        records = MemoryRecords(raw)
        while records.has_next():
            for record in records.next_batch():
                headers = {name: value.decode() for name, value in record.headers}
                self.letters.append((record.key, record.value, headers))

    def _create_topics(self, node, request, answer):
        names = [one[0] for one in request.create_topic_requests]
        self.topics.update(names)
        answer(topic_errors=[(name, 0, None) for name in names])


def _asked(request):
    """Topics with their partitions: number, offset and epoch of the last record (-1: none)."""
    for topic, partitions, *_ in request.topics:
        rows = []
        for number, *rest in partitions:
            if request.API_VERSION >= 12:
                rows.append((number, rest[1], rest[2]))
            else:
                rows.append((number, rest[1] if request.API_VERSION >= 9 else rest[0], -1))
        yield topic, rows


_NAMES = {
    PRODUCE: "produce",
    FETCH: "fetch",
    OFFSETS: "offsets",
    METADATA: "metadata",
    OFFSET_COMMIT: "commit",
    OFFSET_FETCH: "committed",
    COORDINATOR: "coordinator",
    JOIN: "join",
    HEARTBEAT: "heartbeat",
    LEAVE: "leave",
    SYNC: "sync",
    CREATE_TOPICS: "create_topics",
}

_ABSENT = {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "session_id": 0}
_EMPTY = {"generation_id": -1, "group_protocol": "", "leader_id": "", "member_id": ""}
_PLAIN = {
    "members": [],
    "authorized_operations": 0,
    "tags": {},
    "coordinator_id": -1,
    "host": "",
    "port": 0,
}


def _response(request, fields):
    kind = request.RESPONSE_TYPE
    fields = _ABSENT | _EMPTY | _PLAIN | fields
    return kind(*(fields[name] for name in kind.SCHEMA.names))
