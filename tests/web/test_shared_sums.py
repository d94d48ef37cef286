"""Shared sums: the same bits after packing, bounds, and owners that do not know they lost."""

import asyncio
import dataclasses
import json
import random
from collections import Counter
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest
import servers
from streams import hostile

from streameval.base.errors import RefusedError, UnreachableError
from streameval.core import shared_sums
from streameval.core.figures import figures
from streameval.core.fingerprint import fingerprint
from streameval.core.partition import Partition
from streameval.core.shared_sums import pack, share, unpack
from streameval.core.sums import BasisSums, merge, merge_disjoint
from streameval.store.shared_store import SharedStore
from streameval.store.stored_values import Commit, PackedSums
from streameval.web.intervals import with_intervals
from streameval.web.whole_topic import LOOKED_AT_STALE_MS, WholeTopic
from streameval.worker.sharing import Sharing, SumsToShare


def partition(seed):
    definition, events = hostile(seed)
    found = Partition(definition)
    found.apply(events)
    found.flush()
    return definition, found


def packed(found, window):
    return pack(share(found.sums(), window, 5, found.watermark, found.events))


@pytest.mark.parametrize("number", range(12))
def test_packed_sums_are_the_sums_to_the_bit(number):
    definition, found = partition(number)
    sums = found.sums()
    for index in range(len(definition.windows)):
        shared = unpack(pack(share(sums, index, 5, found.watermark, found.events)))
        assert shared.events == found.events
        back = shared.sums(index)
        assert [*back] == [key for key in sums if key[0] == index]
        for key, one in back.items():
            same(one, sums[key])


def same(one, other):
    for field in dataclasses.fields(one):
        mine, yours = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            mine, yours = {"": mine}, {"": yours}
        if isinstance(mine, dict):
            assert mine.keys() == yours.keys()
            for name, array in mine.items():
                assert array.dtype == yours[name].dtype
                assert array.shape == yours[name].shape
                assert (array == yours[name]).all()
        else:
            assert mine == yours


def test_too_many_segments_become_other_and_no_impression_is_lost(monkeypatch):
    definition, found = next(
        pair for pair in map(partition, range(99)) if names_of(pair[1].sums(), (0, "live")) > 3
    )
    sums = found.sums()
    monkeypatch.setattr(shared_sums, "MAX_SHARED_SUMS", sums[0, "live"].by_cluster.size - 1)
    shared = share(sums, 0, 5, found.watermark, found.events)
    kept = shared.sums(0)[0, "live"]
    other = ("__other__",) * len(definition.dimensions)
    assert shared.left_out > 0
    assert other in kept.names
    assert kept.by_cluster[0].sum() == sums[0, "live"].by_cluster[0].sum()
    unchanged = figures(definition, merge([found.sums()]))
    assert figures(definition, merge([sums])) == unchanged, "the sums themselves stay"


def names_of(sums, key):
    return len(sums[key].names) if key in sums else 0


@pytest.mark.parametrize("number", range(30))
def test_sums_merge_as_if_added_one_by_one(number):
    """Partitions with other names and clusters, some of whose names become the same."""
    chance = random.Random(number)
    parts = [some_sums(chance) for _ in range(chance.randint(1, 4))]
    shown = {name: chance.choice([name, ("x",), ("other",)]) for name in NAMES}
    whole = merge_disjoint(parts, shown.__getitem__)
    expected: dict = {}
    rates: dict = {}
    for part in parts:
        for index, name in enumerate(part.names):
            into = shown[name]
            one = expected.setdefault(into, Counter())
            one["users"] += int(part.users[index])
            one["mature"] += int(part.mature_impressions[index])
            one["plain"] += int(part.plain["ranks"][0, index])
            for key, sums in zip(part.keys.tolist(), part.by_cluster.T.tolist(), strict=True):
                if key // 256 == index:
                    one[key % 256] += sums[0]
            users = int(part.users[index])
            mean, square = part.rate_means[0, index], part.rate_squares[0, index]
            # Users who stand for them: half above the mean and half below.
            apart = (square / users) ** 0.5
            rates.setdefault(into, []).extend([mean + apart, mean - apart] * (users // 2))
    assert set(whole.names) == set(expected)
    assert sorted(whole.keys.tolist()) == whole.keys.tolist()
    for index, name in enumerate(whole.names):
        found = Counter(users=int(whole.users[index]), mature=int(whole.mature_impressions[index]))
        found["plain"] = int(whole.plain["ranks"][0, index])
        for key, sums in zip(whole.keys.tolist(), whole.by_cluster.T.tolist(), strict=True):
            if key // 256 == index:
                found[key % 256] += sums[0]
        assert found == expected[name]
        assert whole.rate_means[0, index] == pytest.approx(np.mean(rates[name]))
        assert whole.rate_squares[0, index] == pytest.approx(np.var(rates[name]) * len(rates[name]))
    assert (whole.effective == 2 * whole.by_cluster).all()


NAMES = [("a",), ("b",), ("x",), ("other",)]


def some_sums(chance):
    names = chance.sample(NAMES, chance.randint(1, len(NAMES)))
    size = len(names)
    keys = sorted(
        {
            index * 256 + chance.choice((0, 1, 2, 255))
            for index in range(size)
            for _ in range(chance.randint(1, 3))
        }
    )
    by_cluster = np.array([[chance.randint(0, 9) for _ in keys]])

    def each(least=0):
        return np.array([2 * chance.randint(least, 9) for _ in names])

    return BasisSums(
        names,
        each(1),
        np.array([[chance.random() for _ in names]]),
        np.array([[chance.random() for _ in names]]),
        np.array(keys),
        by_cluster,
        {"ranks": each()[np.newaxis]},
        2 * by_cluster,
        each(),
    )


def test_what_another_version_packed_is_refused():
    for data in (b"", b"nonsense", pack(shared_sums.SharedSums(1, 1, {}, {}))[:-3]):
        with pytest.raises(ValueError, match="of another version"):
            unpack(data)


def test_a_partition_without_events_is_shared_too():
    """Its figures are known: there are none. Else a topic with one would have no history."""
    definition, one = partition(3)
    packing = SumsToShare(definition)
    windows = packing.due(60.0)
    for number, state in enumerate((one, Partition(definition))):
        packing.take(Assigned(number, state), state.sums(), windows)
    packing.packed(windows, 60.0)
    assert packing.due(61.0) == [], "nobody asks"
    packing.ask({windows[0]})
    assert packing.due(119.0) == windows[:1]
    by_number = {(each.partition, each.window): each.packed for each in packing.taken()}
    assert len(by_number) == 2 * len(windows)
    shared = Shared(by_number)
    shared.fingerprint, shared.found = fingerprint(definition), {0: Version(), 1: Version()}
    topic = WholeTopic(shared, definition, lambda: 2)
    found = asyncio.run(topic.figures(None, None)).value
    assert found["partitions"]["shown"] == [0, 1]
    assert found["watermark"] == one.watermark
    wanted = with_intervals(figures(definition, one.sums()), definition.dimensions)
    assert {name: found[name] for name in wanted} == wanted
    points, _ = asyncio.run(topic.points())
    assert len(points) == 3 * len(windows)


@dataclasses.dataclass
class Assigned:
    number: int
    state: Partition
    next_offset: int = 0


# --- On Redis -----------------------------------------------------------------------------------


def on_redis(test):
    """Run a test with a store of its own group."""

    async def run():
        url = servers.shared_redis().url
        store = SharedStore(url, servers.unique("group"), "topic", ("click",))
        try:
            return await test(store)
        finally:
            await store.close()

    return asyncio.run(run())


def commit(start, end, fingerprint="f"):
    return Commit(0, start, end, [], "c", "t", fingerprint, "{}", 1)


@pytest.mark.servers
def test_older_sums_never_replace_newer_ones():
    async def test(store):
        async def publish(offset, time, packed, name="f"):
            made_at = monotonic() - 30
            return await store.publish(PackedSums(0, "1h", offset, time, packed, made_at), name)

        assert await publish(5, 100, b"first")
        assert await publish(5, 101, b"idle")
        assert not await publish(5, 100, b"an earlier T")
        assert not await publish(4, 900, b"an earlier offset")
        await store.commit(commit(None, 9))
        assert await publish(8, 900, b"of before the last commit: it goes on while they wait")
        assert await publish(9, 50, b"a later offset")
        assert not await publish(20, 900, b"of another definition", "g")
        assert await store.sums(0, "1h") == b"a later offset"
        found = (await store.versions(2, "1h", "f"))[0]
        assert (found.offset, found.time) == (9, 50)
        assert 30_000 <= found.age < 60_000, "they were made before they were written"
        assert await store.versions(2, "1h", "g") == {}

    on_redis(test)


@pytest.mark.servers
def test_what_is_asked_said_and_reported():
    async def test(store):
        assert await store.asked(("1h", "24h")) == set()
        await store.ask(("24h",))
        assert await store.asked(("1h", "24h")) == {"24h"}
        await store.tell("two", '{"a": 2}')
        await store.tell("one", '{"a": 1}')
        assert [(name, said) for name, (_, said) in (await store.workers()).items()] == [
            ("one", '{"a": 1}'),
            ("two", '{"a": 2}'),
        ]
        await store.tell("one", "")
        assert [*(await store.workers())] == ["two"]
        assert await store.reported("checks") is None
        await store.report("checks", 7, "new")
        await store.report("checks", 6, "of a leader that was replaced")
        assert await store.reported("checks") == "new"

    on_redis(test)


# --- Added up -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Version:
    offset: int = 1
    time: int = 5
    age: int = 0
    at: int = 3


class Shared:
    """What owners share, in memory; counts how often sums are read."""

    def __init__(self, packed):
        self.packed, self.read = packed, 0
        self.found = {}

    async def ask(self, windows):
        return True

    async def versions(self, partitions, window, fingerprint):
        assert fingerprint == self.fingerprint
        return self.found

    async def sums(self, partition, window):
        self.read += 1
        return self.packed[partition, window]

    async def workers(self):
        return {"one": (0, "{}")}


def added_up(found):
    """The documents of partitions 0 and 1, and of 2, which is missing, as time goes on."""
    definition, one = partition(3)
    names = [window.name for window in definition.windows]
    shared = Shared({(n, name): packed(one, at) for n in (0, 1) for at, name in enumerate(names)})
    shared.fingerprint = fingerprint(definition)
    topic = WholeTopic(shared, definition, lambda: 3)
    for versions in found:
        shared.found = versions
        topic._free_at = 0.0
        for kept in topic._kept.values():
            kept.until = 0.0
        yield shared, asyncio.run(topic.figures(names[0], None))


def test_missing_and_stale_partitions_are_named():
    (_, first), (_, second) = added_up(
        ({0: Version(), 1: Version()}, {0: Version(), 1: Version(age=LOOKED_AT_STALE_MS + 1)})
    )
    assert json.loads(first.body)["partitions"] == {
        "shown": [0, 1],
        "of": 3,
        "stale": [],
        "missing": [2],
        "made_at": 3,
    }
    assert json.loads(second.body)["partitions"]["stale"] == [1]
    assert first.etag != second.etag


class Woken(Shared):
    """Owners who share fresh sums after some looks, because somebody asks; nobody did before."""

    looks = 0

    async def ask(self, windows):
        return False

    async def versions(self, partitions, window, fingerprint):
        self.looks += 1
        return {0: Version(), 1: Version(age=40_000 if self.looks < 3 else 0)}


def woken(monkeypatch, of=2):
    monkeypatch.setattr("streameval.web.whole_topic.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("streameval.web.whole_topic.FIRST_SECONDS", 0.1)
    definition, one = partition(3)
    name = definition.windows[0].name
    shared = Woken({(n, name): packed(one, 0) for n in (0, 1)})
    return shared, asyncio.run(WholeTopic(shared, definition, lambda: of).figures(name, None))


def test_whoever_looks_first_for_a_while_waits_for_fresh_sums(monkeypatch):
    shared, found = woken(monkeypatch)
    assert shared.looks == 3
    assert found.value["partitions"]["stale"] == []


def test_sums_that_stay_old_although_somebody_looks_are_stale(monkeypatch):
    monkeypatch.setattr(Woken, "looks", -(10**9))
    _, found = woken(monkeypatch, of=3)
    assert found.value["partitions"]["stale"] == [1]
    assert found.value["partitions"]["missing"] == [2]


def test_before_any_partition_is_shared_nothing_is_said():
    definition, _ = partition(3)
    topic = WholeTopic(Shared({}), definition, lambda: 3)
    topic._fingerprint = Shared.fingerprint = "f"
    with pytest.raises(UnreachableError, match="no worker has shared figures yet: ask again"):
        asyncio.run(topic.figures(None, None))


def test_unchanged_sums_are_not_read_again():
    reads = [
        shared.read
        for shared, _ in added_up(({0: Version()}, {0: Version(age=9)}, {0: Version(offset=2)}))
    ]
    assert reads == [1, 1, 2]


def test_computing_takes_no_more_than_its_share_whatever_is_asked(monkeypatch):
    """A document that nobody has asked for is computed at once; the others wait for it."""
    definition, one = partition(3)
    names = [window.name for window in definition.windows]
    shared = Shared({(n, name): packed(one, at) for n in (0, 1) for at, name in enumerate(names)})
    shared.fingerprint, shared.found = fingerprint(definition), {0: Version()}
    topic = WholeTopic(shared, definition, lambda: 1)
    clock = iter(range(0, 10**9, 10))  # ten seconds between two looks at it
    monkeypatch.setattr("streameval.web.whole_topic.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("streameval.web.whole_topic.time.thread_time", iter([0, 9, 9, 18]).__next__)

    async def ask():
        bases = ("live", "matured")
        first = [await topic.figures(names[0], basis) for basis in bases]
        shared.found = {0: Version(offset=2)}
        return first, [await topic.figures(names[0], basis) for basis in bases]

    first, again = asyncio.run(ask())
    assert [one.etag for one in first] == [one.etag for one in again], (
        "18 s of work in half an hour"
    )
    assert shared.read == 2


def test_what_redis_refuses_to_share_is_said_once(caplog):
    class Refusing:
        async def asked(self, windows):
            raise RefusedError("Redis: no permission to run 'mget'")

    sharing = Sharing(Refusing(), SumsToShare(partition(3)[0]), "a worker")
    status = SimpleNamespace(store_up=True, topic_partitions=1)
    for _ in range(3):
        asyncio.run(sharing.turn(status, None))
    (said,) = caplog.messages
    assert said.endswith("may be incomplete: Redis: no permission to run 'mget'")
