"""The store on real Redis: each commit counts once, whatever is lost, killed or late."""

import asyncio
import contextlib
import random
from collections import Counter

import msgspec
import pytest
import redis
import servers
from model import Server
from proxy import Proxy
from test_experiments import assert_first_lists

from streameval.base.errors import RefusedError, UnreachableError
from streameval.core.experiments.users import Visit
from streameval.core.windows.tables import cluster_of
from streameval.store import redis_servers
from streameval.store import redis_store as store_module
from streameval.store.redis_store import RedisStateStore
from streameval.store.stored_values import Applied, CheckpointWrite, Commit, Fenced, parse_arm_users

pytestmark = pytest.mark.servers
NOW = 1_700_000_000_000
FIRST = NOW, (1, 7)  # of a visit that does not say


def delta(user="u1", impressions=10, slates=1, first=NOW, last=NOW + 5, positives=(1, 0)):
    return [user, impressions, slates, first, last, *positives]


def commit_of(start, end, users=(), checkpoint=None, fingerprint="f1", partition=0, visits=()):
    return Commit(
        partition=partition,
        start=start,
        end=end,
        users=list(users),
        cluster_id="cluster",
        topic_id="topic-id",
        fingerprint=fingerprint,
        definition='{"ks":[5]}',
        now=NOW,
        checkpoint=checkpoint,
        visits=[Visit(*visit, *FIRST[len(visit) - 3 :]) for visit in visits],
        first=start is None,
    )


def counts(users):
    by_arm = {arm: clusters.tolist() for arm, clusters in users.by_arm.items()}
    return by_arm, users.exactly, users.crossed


@contextlib.asynccontextmanager
async def opened(url, topic=None, **options):
    store = RedisStateStore(url, "group", topic or servers.unique(), ["click", "like"], **options)
    try:
        yield store
    finally:
        await store.close()


SERVERS = {
    "one server": servers.shared_redis,
    "cluster": servers.shared_redis_cluster,
    "Valkey's cluster": servers.shared_valkey_cluster,
    "Redis 6.2": servers.shared_redis_6,
}


@pytest.fixture(scope="module", params=SERVERS)
def url(request):
    return SERVERS[request.param]().url


def test_a_partition_never_committed_is_empty(url):
    async def scenario():
        async with opened(url) as store:
            stored = await store.load(3)
            assert stored.offset is None
            assert stored.chunks == {}
            assert stored.header is None
            assert await store.user("u1", 4) is None

    asyncio.run(scenario())


def test_connections_that_the_server_closed_while_they_were_idle_are_made_anew():
    """As Redis does with its option `timeout`, and as balancers before it do."""

    async def scenario(server):
        async with opened(server.url) as store:
            for _ in range(3):
                assert (await asyncio.gather(*map(store.load, range(4))))[3].offset is None
                with contextlib.closing(redis.Redis(port=server.port)) as other:
                    assert other.client_kill_filter(_type="normal", skipme=True) == 4
                await asyncio.sleep(0.05)

    with servers.redis() as server:
        asyncio.run(scenario(server))


def test_counters_add_up_and_the_earliest_and_latest_times_stay(url):
    async def scenario():
        async with opened(url) as store:
            assert await store.commit(commit_of(None, 10, [delta()])) == Applied()
            later = delta(impressions=3, slates=0, first=NOW - 7, last=NOW + 1, positives=(-1, 2))
            assert await store.commit(commit_of(10, 20, [later, delta("u2")])) == Applied()
            user = await store.user("u1", 4)
            assert user == ([0], 13, 1, {"click": 0, "like": 2}, NOW - 7, NOW + 5, {})
            stored = await store.load(0)
            assert (stored.offset, stored.committed_at) == (20, NOW)
            assert (stored.cluster_id, stored.topic_id) == ("cluster", "topic-id")
            assert (stored.fingerprint, stored.definition) == ("f1", '{"ks":[5]}')

    asyncio.run(scenario())


def test_notes_of_a_batch_count_who_left_one_and_go_by_themselves(url):
    async def scenario():
        topic = servers.unique()
        async with opened(url, topic) as store:
            for left in (0, 1, 2, 2):
                async with opened(url, topic) as other:
                    for _ in range(3):  # as where a reply is lost
                        assert await other.note_batch(3, 70, 2) == left
            key = f"streameval:{{group:{topic}:3}}:unpacking"
            left = servers.redis_client(url).pttl(key)
            assert 0 < left <= store_module.NOTE_TTL_MS
            assert await store.note_batch(3, 71, 2) == 0, "another batch"
            await store.forget_batch(3)
            assert await store.note_batch(3, 71, 2) == 0

    asyncio.run(scenario())


def test_a_user_is_one_readable_hash(url):
    """The documented key, with plain integers, also for large ones."""

    async def scenario():
        async with opened(url, topic="readable") as store:
            large = delta("ü\u2028{x}", impressions=2**40, last=4_102_444_799_999)
            await store.commit(commit_of(None, 10, [large], partition=7))

    asyncio.run(scenario())
    client = servers.redis_client(url, decode_responses=True)
    with contextlib.closing(client):
        assert client.hgetall("streameval:{group:readable:7}:user:ü\u2028{x}") == {
            "impressions": str(2**40),
            "slates": "1",
            "first_ts": str(NOW),
            "last_ts": "4102444799999",
            "positives:click": "1",
            "at": "10",
        }


def test_a_user_in_a_commit_costs_one_read_and_one_write():
    """Redis serves every worker with one core, and whoever waits for it while a commit runs."""
    ids = [f"u{number}" for number in range(300)]
    later = {"first": NOW + 5, "last": NOW + 7, "positives": (0, 1)}

    async def scenario(server):
        async with opened(server.url) as store:
            await store.commit(commit_of(None, 10, [delta(user) for user in ids]))
            with contextlib.closing(servers.redis_client(server.url)) as client:
                client.config_resetstat()
                await store.commit(commit_of(10, 20, [delta(user, **later) for user in ids]))
                statistics = client.info("commandstats")
            assert (await store.user("u299", 1)).impressions == 20
            return {name: counted["calls"] for name, counted in statistics.items()}

    with servers.redis() as server:
        calls = asyncio.run(scenario(server))
    partition = {"hmget": 1, "hset": 2}
    assert calls["cmdstat_hmget"] == len(ids) + partition["hmget"]
    assert calls["cmdstat_hset"] == len(ids) + partition["hset"]
    assert calls.pop("cmdstat_hincrby") == 2, "begun and done"
    assert calls.keys() <= {"cmdstat_evalsha", "cmdstat_hmget", "cmdstat_hset"} | OF_THE_CLIENT


OF_THE_CLIENT = {"cmdstat_config|resetstat", "cmdstat_info", "cmdstat_client|setinfo"}


def test_a_user_known_in_two_partitions_is_summed(url):
    async def scenario():
        async with opened(url) as store:
            await store.commit(commit_of(None, 10, [delta()], partition=0))
            await store.commit(commit_of(None, 9, [delta(last=NOW + 9)], partition=3))
            user = await store.user("u1", 4)
            assert user == ([0, 3], 20, 2, {"click": 2, "like": 0}, NOW, NOW + 9, {})

    asyncio.run(scenario())


def test_a_user_counts_once_in_each_arm_and_crosses_once(url):
    """Whatever the order of the visits, and however often each comes."""

    async def scenario():
        async with opened(url) as store:
            await store.commit(commit_of(None, 10, [delta()], visits=[("u1", "e", "A")]))
            found = await store.arm_users(0, "e")
            assert (found.exactly, found.crossed) == ({"A": 1}, 0)
            again = [("u1", "e", "A"), ("u2", "e", "B"), ("u2", "e", "B"), ("u2", "f", "B")]
            await store.commit(commit_of(10, 20, [delta(), delta("u2")], visits=again))
            found = await store.arm_users(0, "e")
            assert (found.exactly, found.crossed) == ({"A": 1, "B": 1}, 0)
            crossing = [("u1", "e", "B"), ("u1", "e", "C"), ("u1", "e", "A")]
            await store.commit(commit_of(20, 30, [delta()], visits=crossing))
            await store.commit(
                commit_of(None, 5, [delta("u9")], visits=[("u9", "e", "A")], partition=1)
            )
            found = await store.arm_users(0, "e")
            found.add(await store.arm_users(1, "e"))
            assert (found.exactly, found.crossed) == ({"A": 1, "B": 1}, 1)
            assert {arm: sum(found.by_arm[arm]) for arm in "ABC"} == {"A": 2, "B": 2, "C": 1}
            assert found.by_arm["C"][cluster_of("u1")] == 1
            assert (await store.user("u1", 2)).arms == {"e": ["A", "B", "C"]}
            assert (await store.user("u2", 2)).arms == {"e": ["B"], "f": ["B"]}
            assert [row.impressions for row in (await store.users(0)).rows] == [30, 10]

    asyncio.run(scenario())


def test_users_of_visits_need_no_counters(url):
    """A visit may be of a user whom the batch counts nothing for."""

    async def scenario():
        topic = servers.unique()
        async with opened(url, topic, user_ttl=60_000) as store:
            visits = [("u2", "e/1", 'ä:"x'), ("u1", "e/1", "A"), ("u3", "e/1", "A")]
            await store.commit(commit_of(None, 10, [delta()], visits=visits))
            found = await store.arm_users(0, "e/1")
            assert (found.exactly, found.crossed) == ({"A": 2, 'ä:"x': 1}, 0)
            assert await store.user("u2", 1) is None, "no counters"
            assert [row.user for row in (await store.users(0)).rows] == ["u1"]
            await store.commit(commit_of(10, 20, [delta("u2")], visits=visits))
            assert (await store.user("u2", 1)).arms == {"e/1": ['ä:"x']}
            assert counts(await store.arm_users(0, "e/1")) == counts(found)
        with contextlib.closing(servers.redis_client(url)) as client:
            key = f"streameval:{{group:{topic}:0}}:"
            assert 0 < client.pttl(f"{key}user:u3") <= 60_000
            assert client.pttl(f"{key}arms:e/1") == -1

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", ["string", "only:A", "span"])
def test_an_experiment_of_a_wrong_type_ends_the_commit_with_nothing_changed(url, wrong):
    async def scenario():
        topic = servers.unique()
        key = f"streameval:{{group:{topic}:0}}:"
        async with opened(url, topic) as store:
            with contextlib.closing(servers.redis_client(url)) as client:
                if wrong == "string":
                    client.set(f"{key}arms:e", "a string")
                else:
                    client.hset(f"{key}arms:e", wrong, "text")
                with pytest.raises(RefusedError):
                    await store.commit(commit_of(None, 10, [delta()], visits=[("u1", "e", "A")]))
                assert not client.exists(f"{key}user:u1", f"{key}partition")

    asyncio.run(scenario())


def test_a_commit_with_visits_whose_replies_are_lost_counts_once():
    async def scenario(proxy):
        async with opened(f"redis://127.0.0.1:{proxy.port}") as store:
            await store.commit(commit_of(None, 10, [delta()]))
            proxy.drop_replies(2)
            await store.commit(commit_of(10, 20, [delta()], visits=[("u1", "e", "A")]))
            assert proxy.dropped
            assert (await store.arm_users(0, "e")).exactly == {"A": 1}

    with Proxy(servers.shared_redis().port) as proxy:
        asyncio.run(scenario(proxy))


@pytest.mark.parametrize("chance", range(5))
def test_arms_agree_with_sets_however_visits_are_cut_into_batches(url, chance):
    """Against sets of Python, and against the store that the simulated world believes in."""
    rng = random.Random(chance)
    visits = [
        (f"u{rng.randrange(40)}", rng.choice("ef"), rng.choice("AABBC"), *random_first(rng))
        for _ in range(200)
    ]

    async def scenario():
        model = Server(rng)
        async with opened(url) as store:
            at, waiting = None, list(visits)
            while waiting:
                count = rng.randint(1, 40)
                batch, waiting = waiting[:count], waiting[count:]
                users = [delta(user) for user, *_ in batch[:: rng.randint(1, 3)]]
                users = list({row[0]: row for row in users}.values())
                commit = commit_of(at, (at or 0) + count, users, visits=batch)
                await store.commit(commit)
                model.commit("p:partition", store._arguments(commit, "identity"))
                at = commit.end
            for name in "ef":
                users = await store.arm_users(0, name)
                believed = parse_arm_users(model.keys[f"p:arms:{name}"])
                assert counts(users)[0] == counts(believed)[0]
                assert (+Counter(users.exactly), users.crossed) == (
                    +Counter(believed.exactly),
                    believed.crossed,
                )
                arms = {
                    user: {a for u, e, a, *_ in visits if (u, e) == (user, name)}
                    for user, *_ in visits
                }
                firsts = [((u, a), first) for u, e, a, *first in visits if e == name]
                earliest = dict(sorted(firsts, reverse=True))
                assert_first_lists(users, earliest)
                assert (users.first.begin, users.first.end) == (
                    believed.first.begin,
                    believed.first.end,
                )
                rows = (await store.users(0)).rows
                assert {
                    (row.user, arm): [*first]
                    for row in rows
                    for arm, first in row.arms.get(name, {}).items()
                } == {
                    (user, arm): first
                    for (user, arm), first in earliest.items()
                    if user in {row.user for row in rows}
                }
                alone = [*(each for each in arms.values() if len(each) == 1)]
                assert users.crossed == sum(len(each) > 1 for each in arms.values())
                assert {arm: count for arm, count in users.exactly.items() if count} == Counter(
                    arm for each in alone for arm in each
                )
                assert {arm: sum(counts) for arm, counts in users.by_arm.items()} == Counter(
                    arm for each in arms.values() for arm in each
                )

    asyncio.run(scenario())


def random_first(rng):
    """A first list soon after NOW, or long after; some at the same time."""
    time = NOW + 60_000 * rng.randrange(3) + rng.choice((0, 0, rng.randrange(10**8), 10**10))
    return time, (rng.randrange(2), rng.choice((0, 10**9, rng.randrange(10**9))))


def test_sums_of_first_lists_are_integers_however_large(url):
    """A million users of one bucket would take long: each of these has the sums of many."""

    async def scenario():
        topic, most = servers.unique(), 10**15
        visits = [(f"u{n}", "e", "A", NOW, (1, most + n)) for n in range(9)]
        async with opened(url, topic) as store:
            for at, visit in enumerate(visits):
                await store.commit(commit_of(at or None, at + 1, [delta()], visits=[visit]))
            first = (await store.arm_users(0, "e")).first
        wanted = [9, 9, 9 * most + 36]
        assert [sums.tolist() for sums in first.sums.values()] == [wanted]
        field = f"first:{NOW // 60_000}:A"
        with contextlib.closing(servers.redis_client(url)) as client:
            stored = msgspec.msgpack.decode(
                client.hget(f"streameval:{{group:{topic}:0}}:arms:e", field)
            )
        assert [(type(count), count) for count in stored] == [(int, count) for count in wanted]

    asyncio.run(scenario())


def test_counters_of_a_silent_user_go_after_the_ttl(url):
    async def scenario():
        async with opened(url, topic="with-ttl", user_ttl=60_000) as store:
            await store.commit(commit_of(None, 10, [delta()]))

    asyncio.run(scenario())
    with contextlib.closing(servers.redis_client(url)) as client:
        assert 0 < client.pttl("streameval:{group:with-ttl:0}:user:u1") <= 60_000
        assert client.pttl("streameval:{group:with-ttl:0}:partition") == -1


@pytest.mark.parametrize("start", [None, 5, 20])
def test_a_commit_from_another_offset_changes_nothing(url, start):
    async def scenario():
        async with opened(url) as store:
            await store.commit(commit_of(None, 10, [delta()]))
            assert await store.commit(commit_of(start, 30, [delta()])) == Fenced(10)
            assert (await store.user("u1", 1)).impressions == 10
            assert (await store.load(0)).offset == 10

    asyncio.run(scenario())


def test_a_commit_after_the_store_was_emptied_changes_nothing(url):
    async def scenario():
        async with opened(url) as store:
            assert await store.commit(commit_of(10, 20, [delta()])) == Fenced(None)
            assert await store.user("u1", 1) is None

    asyncio.run(scenario())


def test_a_twin_that_ends_at_the_same_offset_is_told_from_an_own_earlier_try(url):
    """The zombie's batch ends where the new owner's did: its write is refused all the same."""

    async def scenario():
        topic = servers.unique()
        async with opened(url, topic) as zombie, opened(url, topic) as owner:
            await zombie.commit(commit_of(None, 10, [delta()]))
            assert await owner.commit(commit_of(10, 20, [delta()])) == Applied()
            assert await zombie.commit(commit_of(10, 20, [delta()])) == Fenced(20)
            assert (await owner.user("u1", 1)).impressions == 20

    asyncio.run(scenario())


def test_another_definition_is_fenced(url):
    async def scenario():
        async with opened(url) as store:
            await store.commit(commit_of(None, 10, [delta()]))
            assert await store.commit(commit_of(10, 20, [], fingerprint="f2")) == Fenced(10)

    asyncio.run(scenario())


def saved(header, *names, keep=(), since=None):
    """A checkpoint after that at `since`, whose new chunks `names` hold their own names."""
    return CheckpointWrite(header, {name: name.encode() for name in names}, [*keep, *names], since)


def test_a_checkpoint_is_the_chunks_that_are_kept_and_the_new_ones(url):
    async def scenario():
        topic = servers.unique()
        async with opened(url, topic) as store:
            first = CheckpointWrite(b"h1", {"one": b"\x00\xffone", "pane": b"p"}, ["one", "pane"])
            await store.commit(commit_of(None, 10, [delta()], first))
            await store.commit(commit_of(10, 15, [delta()]))
            second = saved(b"h2", "two", keep=["one", "pane"], since=10)
            await store.commit(commit_of(15, 20, [], second))
            stored = await store.load(0)
            assert stored.header == b"h2"
            assert stored.chunks == {"one": b"\x00\xffone", "pane": b"p", "two": b"two"}
            assert (stored.checkpoint_offset, stored.offset) == (20, 20)
            third = saved(b"h3", "three", keep=["pane", "two"], since=20)
            await store.commit(commit_of(20, 30, [], third))
            await store.commit(commit_of(30, 40))
            stored = await store.load(0)
            assert stored.header == b"h3"
            assert list(stored.chunks) == ["pane", "two", "three"]
            assert (stored.checkpoint_offset, stored.offset) == (30, 40)
        with contextlib.closing(servers.redis_client(url)) as client:
            keys = [*client.scan_iter(f"streameval:{{group:{topic}:0}}:chunk:*")]
            assert len(keys) == 3, "the chunk no longer listed is unlinked"
            assert {client.pttl(key) for key in keys} == {-1}, "listed chunks stay"

    asyncio.run(scenario())


def test_a_checkpoint_without_new_chunks_keeps_the_old_ones(url):
    async def scenario():
        async with opened(url) as store:
            await store.commit(commit_of(None, 10, [], saved(b"h1", "one")))
            await store.commit(commit_of(10, 20, [], saved(b"h2", keep=["one"], since=10)))
            stored = await store.load(0)
            assert (stored.header, stored.chunks) == (b"h2", {"one": b"one"})

    asyncio.run(scenario())


def test_a_fenced_checkpoint_leaves_the_pointer_and_its_chunk_goes_by_itself(url):
    async def scenario():
        topic = servers.unique()
        async with opened(url, topic) as store:
            await store.commit(commit_of(None, 10, [], saved(b"h1", "one")))
            late = saved(b"h2", "two", keep=["one"])
            assert await store.commit(commit_of(5, 20, [], late)) == Fenced(10)
            stored = await store.load(0)
            assert (stored.header, list(stored.chunks)) == (b"h1", ["one"])
        with contextlib.closing(servers.redis_client(url)) as client:
            keys = [*client.scan_iter(f"streameval:{{group:{topic}:0}}:chunk:*")]
            ttls = sorted(client.pttl(key) for key in keys)
            assert ttls[0] == -1
            assert 0 < ttls[1] <= store_module.CHUNK_TTL_MS

    asyncio.run(scenario())


def test_of_two_checkpoints_at_one_offset_that_go_on_from_the_same_one_the_second_is_fenced(url):
    """The stored offset does not move: without this both would give up the same slates."""

    async def scenario():
        async with opened(url) as store:
            await store.commit(commit_of(None, 10, [], saved(b"h1", "one")))
            await store.commit(commit_of(10, 20, [delta()]))
            first = saved(b"h2", "two", keep=["one"], since=10)
            assert await store.commit(commit_of(20, 20, [], first)) == Applied()
            second = saved(b"h3", "three", keep=["one"], since=10)
            assert await store.commit(commit_of(20, 20, [], second)) == Fenced(20)
            assert (await store.load(0)).header == b"h2"

    asyncio.run(scenario())


def test_a_checkpoint_that_builds_on_a_chunk_of_nobody_is_fenced(url):
    async def scenario():
        async with opened(url) as store:
            await store.commit(commit_of(None, 10))
            wrong = saved(b"h", "two", keep=["of nobody"])
            assert await store.commit(commit_of(10, 20, [], wrong)) == Fenced(10)

    asyncio.run(scenario())


def test_a_chunk_that_vanished_before_the_flip_is_written_again(url, monkeypatch):
    upload, uploads = RedisStateStore._upload, []

    async def forgetful(self, partition, chunks):
        uploads.append(chunks)
        if len(uploads) > 1:
            await upload(self, partition, chunks)

    monkeypatch.setattr(RedisStateStore, "_upload", forgetful)

    async def scenario():
        async with opened(url) as store:
            await store.commit(commit_of(None, 10, [delta()], saved(b"h", "one")))
            assert (await store.load(0)).chunks == {"one": b"one"}
            assert (await store.user("u1", 1)).impressions == 10

    asyncio.run(scenario())
    assert len(uploads) == 2


def test_a_missing_chunk_is_refused_with_a_cure(url):
    async def scenario():
        topic = servers.unique()
        async with opened(url, topic) as store:
            await store.commit(commit_of(None, 10, [], saved(b"h", "one")))
            with contextlib.closing(servers.redis_client(url)) as client:
                client.delete(*[*client.scan_iter(f"streameval:{{group:{topic}:0}}:chunk:*")])
            with pytest.raises(RefusedError, match="--reset-windows"):
                await store.load(0)

    asyncio.run(scenario())


def test_a_reader_that_loses_a_chunk_to_a_new_checkpoint_reads_the_new_one(url, monkeypatch):
    read, raced = RedisStateStore._chunk, []

    async def scenario():
        topic = servers.unique()
        async with opened(url, topic) as writer, opened(url, topic) as reader:
            await writer.commit(commit_of(None, 10, [], saved(b"h1", "one")))

            async def racing(self, partition, name):
                if not raced:
                    raced.append(name)
                    await writer.commit(commit_of(10, 20, [], saved(b"h2", "two", since=10)))
                    await writer.commit(commit_of(20, 30))
                return await read(self, partition, name)

            monkeypatch.setattr(RedisStateStore, "_chunk", racing)
            stored = await reader.load(0)
            assert (stored.header, stored.chunks) == (b"h2", {"two": b"two"})

    asyncio.run(scenario())
    assert raced


def test_reset_windows_keeps_counters_and_offset(url):
    async def scenario():
        topic = servers.unique()
        async with opened(url, topic) as store:
            await store.commit(commit_of(None, 10, [delta()], saved(b"h", "one")))
            await store.reset_windows(0, "f2", "{}")
            stored = await store.load(0)
            assert (stored.offset, stored.fingerprint, stored.definition) == (10, "f2", "{}")
            assert (stored.header, stored.checkpoint_offset, stored.chunks) == (None, None, {})
            assert await store.commit(commit_of(10, 20)) == Fenced(10), "the old definition"
            applied = await store.commit(commit_of(10, 20, [delta()], fingerprint="f2"))
            assert applied == Applied()
            assert (await store.user("u1", 1)).impressions == 20
        with contextlib.closing(servers.redis_client(url)) as client:
            assert not [*client.scan_iter(f"streameval:{{group:{topic}:0}}:chunk:*")]

    asyncio.run(scenario())


def test_a_key_of_a_wrong_type_ends_the_commit_with_nothing_changed(url):
    async def scenario():
        topic = servers.unique()
        async with opened(url, topic) as store:
            with contextlib.closing(servers.redis_client(url)) as client:
                client.set(f"streameval:{{group:{topic}:0}}:user:u2", "a string")
            with pytest.raises(RefusedError, match="WRONGTYPE"):
                await store.commit(commit_of(None, 10, [delta("u1"), delta("u2"), delta("u3")]))
            assert (await store.load(0)).offset is None
            with contextlib.closing(servers.redis_client(url)) as client:
                assert not client.exists(f"streameval:{{group:{topic}:0}}:user:u1")

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize(("chunk", "after"), [(None, 0), ("one", 0), ("one", 1)])
def test_a_commit_whose_replies_are_lost_counts_once(chunk, after, lost):
    """The reply to the script, or to the chunk before it, and those of the tries that follow."""

    topic = servers.unique()

    async def scenario(proxy):
        async with opened(f"redis://127.0.0.1:{proxy.port}", topic) as store:
            await store.commit(commit_of(None, 10, [delta()]))
            proxy.drop_replies(lost, after)
            checkpoint = saved(b"h", chunk) if chunk else None
            await store.commit(commit_of(10, 20, [delta()], checkpoint))
            assert proxy.dropped
            stored = await store.load(0)
            assert stored.offset == 20
            assert list(stored.chunks) == ([chunk] if chunk else [])
            assert (await store.user("u1", 1)).impressions == 20
        if chunk:
            with contextlib.closing(redis.Redis(port=proxy.target_port)) as client:
                keys = [*client.scan_iter(f"*{topic}*:chunk:{chunk}")]
                assert [client.pttl(key) for key in keys] == [-1]

    with Proxy(servers.shared_redis().port) as proxy:
        asyncio.run(scenario(proxy))


def test_a_checkpoint_is_read_on_after_a_lost_reply_and_not_from_its_beginning():
    """A bad line would never bring hundreds of chunks in a row."""
    names = [f"c{number}" for number in range(40)]

    async def scenario(proxy):
        async with opened(f"redis://127.0.0.1:{proxy.port}") as store:
            await store.commit(commit_of(None, 10, [], saved(b"h", *names)))
            with contextlib.closing(redis.Redis(port=proxy.target_port)) as client:
                client.config_resetstat()
                proxy.drop_replies(2, 30)
                stored = await store.load(0)
                assert proxy.dropped
                assert list(stored.chunks) == names
                asked = client.info("commandstats")["cmdstat_get"]["calls"]
                assert asked <= len(names) + 2, "only what was lost is asked for again"

    with servers.redis() as server, Proxy(server.port) as proxy:
        asyncio.run(scenario(proxy))


def test_a_silent_store_gets_each_commit_once(monkeypatch):
    """No answer within the time limit: the script is sent again, and the old one may run too."""
    monkeypatch.setitem(redis_servers._OPTIONS, "socket_timeout", 0.2)

    async def scenario(proxy):
        async with opened(f"redis://127.0.0.1:{proxy.port}") as store:
            await store.commit(commit_of(None, 10, [delta()]))
            proxy.silent = True
            committing = asyncio.create_task(store.commit(commit_of(10, 20, [delta()])))
            await asyncio.sleep(0.7)
            assert not committing.done()
            proxy.silent = False
            assert await committing == Applied()
            assert (await store.user("u1", 1)).impressions == 20

    with Proxy(servers.shared_redis().port) as proxy:
        asyncio.run(scenario(proxy))


@pytest.mark.parametrize("chance", range(20))
def test_calls_cancelled_anywhere_leave_answers_to_nobody_else(url, chance):
    """Seeded: cancelled loads and commits, then every answer still fits its question."""
    rng = random.Random(chance)

    async def scenario():
        async with opened(url) as store:
            stored = None
            for number in range(1, 11):
                commit = commit_of(stored, number * 10, [delta(f"u{number}")])
                task = asyncio.create_task(store.commit(commit))
                for _ in range(rng.randrange(12)):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                found = await store.load(0)
                if found.offset != number * 10:
                    # It may still be under way: the comparison decides which of the two counts.
                    answer = await store.commit(commit)
                    assert answer in (Applied(), Fenced(number * 10))
                stored = number * 10
            for number in range(1, 11):
                assert (await store.user(f"u{number}", 1)).impressions == 10

    asyncio.run(scenario())


@pytest.mark.parametrize("aof", ["always", "everysec", None])
def test_counters_and_offset_agree_after_the_store_was_killed(aof):
    """kill -9 while commits run: what the offset says is exactly what was counted."""

    async def scenario(server):
        async with opened(server.url, topic="killed") as store:
            committed = 0

            async def work():
                nonlocal committed
                for number in range(1, 100_000):
                    start = None if number == 1 else number - 1
                    await store.commit(commit_of(start, number, [delta(impressions=1)]))
                    committed = number

            working = asyncio.create_task(work())
            while committed < 50:  # noqa: ASYNC110 - the other side counts
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            working.cancel()
            await asyncio.wait({working})
        await asyncio.to_thread(server.start)
        async with opened(server.url, topic="killed") as store:
            offset = (await store.load(0)).offset
            user = await store.user("u1", 1)
            assert (offset or 0) == (user.impressions if user else 0)
            if aof == "always":
                assert offset >= committed
            again = await store.commit(commit_of(offset, (offset or 0) + 1, [delta()]))
            assert again == Applied()

    with servers.redis(aof=aof) as server:
        asyncio.run(scenario(server))


def test_a_commit_waits_for_a_store_that_is_away_and_goes_through():
    async def scenario(server):
        async with opened(server.url) as store:
            await store.commit(commit_of(None, 10, [delta()]))
            await asyncio.to_thread(server.kill)
            committing = asyncio.create_task(store.commit(commit_of(10, 20, [delta()])))
            await asyncio.sleep(0.3)
            assert not committing.done()
            await asyncio.to_thread(server.start)
            assert await committing == Applied()
            assert (await store.user("u1", 1)).impressions == 20

    with servers.redis(aof="always") as server:
        asyncio.run(scenario(server))


def test_whoever_asks_a_store_that_is_away_is_told_where_it_should_be():
    async def scenario(port):
        async with opened(f"redis://127.0.0.1:{port}") as store:
            with pytest.raises(UnreachableError, match=str(port)):
                await store.load(0)
            with pytest.raises(UnreachableError):
                await store.check()

    asyncio.run(scenario(servers.free_port()))


def test_a_sentinel_that_is_away_is_asked_once_a_call():
    """The next one may know the master: redis-py's own tries take seconds."""
    asked = []

    async def gone(_, writer):
        asked.append(1)
        writer.close()

    async def scenario():
        async with await asyncio.start_server(gone, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with opened(f"redis+sentinel://127.0.0.1:{port}/master") as store:
                with pytest.raises(UnreachableError, match="No master found for 'master'"):
                    await store.facts()

    asyncio.run(scenario())
    assert len(asked) == 1


def test_a_node_that_left_the_cluster_is_asked_no_more():
    """Its address stays silent, as that of a pod that came back with another one."""
    asked = []

    async def gone(_, writer):
        asked.append(1)
        writer.close()

    async def scenario(url):
        async with await asyncio.start_server(gone, "127.0.0.1", 0) as server, opened(url) as store:
            await store.facts()
            port = server.sockets[0].getsockname()[1]
            store._servers._client(f"127.0.0.1:{port}")
            for _ in range(6):
                store._servers._ranges = []
                await store.facts()

    asyncio.run(scenario(servers.shared_redis_cluster().url))
    assert asked == []


def test_a_full_store_takes_nothing_of_a_commit_and_all_of_it_later():
    async def scenario(server):
        async with opened(server.url) as store:
            await store.commit(commit_of(None, 10, [delta()]))
            with contextlib.closing(servers.redis_client(server.url)) as client:
                client.config_set("maxmemory", 1)
                users = [delta(f"u{number}") for number in range(500)]
                committing = asyncio.create_task(store.commit(commit_of(10, 20, users)))
                await asyncio.sleep(0.3)
                assert not committing.done()
                assert client.dbsize() == 2
                client.config_set("maxmemory", 0)
            assert await committing == Applied()
            assert (await store.user("u1", 1)).impressions == 20
            assert (await store.user("u499", 1)).impressions == 10

    with servers.redis() as server:
        asyncio.run(scenario(server))


@pytest.mark.parametrize("kind", [servers.redis, servers.redis_6])
def test_a_master_that_became_a_replica_is_left_for_what_its_name_stands_for_now(kind):
    """As with a managed Redis: the old master keeps its connections, and the name moves."""

    async def scenario(old, new, proxy):
        clients = [servers.redis_client(server.url) for server in (old, new)]
        async with opened(f"redis://127.0.0.1:{proxy.port}/0") as store:
            await store.commit(commit_of(None, 10, [delta()]))
            clients[1].replicaof("127.0.0.1", old.port)
            while not clients[1].dbsize():  # noqa: ASYNC110 - the server copies
                await asyncio.sleep(0.1)
            clients[1].replicaof("NO", "ONE")
            clients[0].replicaof("127.0.0.1", new.port)
            proxy.target_port = new.port
            async with asyncio.timeout(10):
                assert await store.commit(commit_of(10, 20, [delta()])) == Applied()
            assert (await store.user("u1", 1)).impressions == 20
        for client in clients:
            client.close()

    with kind() as old, kind() as new, Proxy(old.port) as proxy:
        asyncio.run(scenario(old, new, proxy))


def test_users_who_come_again_without_a_ttl_have_none_any_more(url):
    async def scenario():
        async with opened(url, topic="no-ttl", user_ttl=60_000) as store:
            await store.commit(commit_of(None, 10, [delta("u1"), delta("u2")]))
        async with opened(url, topic="no-ttl") as store:
            await store.commit(commit_of(10, 20, [delta("u1")]))

    asyncio.run(scenario())
    with contextlib.closing(servers.redis_client(url)) as client:
        key = "streameval:{group:no-ttl:0}:user"
        assert client.pttl(f"{key}:u1") == -1
        assert 0 < client.pttl(f"{key}:u2") <= 60_000


def test_a_policy_that_evicts_what_expires_is_fit_for_counters_that_do_not():
    async def scenario(server):
        async with opened(server.url) as store:
            await store.check()
            assert (await store.facts()).policy == "volatile-lru"
        async with opened(server.url, user_ttl=60_000) as store:
            with pytest.raises(RefusedError, match=r"evicts keys \(maxmemory-policy volatile-lru"):
                await store.check()

    with servers.redis(policy="volatile-lru") as server:
        asyncio.run(scenario(server))


def test_a_store_that_evicts_is_refused_and_the_cure_named():
    async def scenario(server):
        async with opened(server.url) as store:
            with pytest.raises(RefusedError, match="maxmemory-policy noeviction"):
                await store.check()

    with servers.redis(policy="allkeys-lru") as server:
        asyncio.run(scenario(server))


def test_the_policy_is_found_out_also_where_config_is_forbidden():
    async def scenario(server):
        with contextlib.closing(servers.redis_client(server.url)) as client:
            client.acl_setuser(
                "limited",
                enabled=True,
                passwords=["+secret"],
                commands=["+@all", "-config"],
                keys=["streameval:*"],
            )
        async with opened(f"redis://limited:secret@{server.address}") as store:
            with pytest.raises(RefusedError, match="evicts"):
                await store.check()
            await store.commit(commit_of(None, 10, [delta()]))

    with servers.redis(policy="allkeys-lru") as server:
        asyncio.run(scenario(server))


def test_a_wrong_password_is_refused_without_showing_it():
    async def scenario(server):
        async with opened(f"redis://:hunter2@{server.address}") as store:
            with pytest.raises(RefusedError, match="password") as caught:
                await store.check()
            assert "hunter2" not in str(caught.value)

    with servers.redis(password="right") as server:
        asyncio.run(scenario(server))


def test_facts_tell_version_policy_persistence_and_clock():
    async def facts(server):
        async with opened(server.url) as store:
            await store.check()
            return await store.facts()

    with servers.redis() as server:
        found = asyncio.run(facts(server))
        assert found.policy == "noeviction"
        assert not found.persistent
        assert found.now > NOW
        with contextlib.closing(servers.redis_client(server.url)) as client:
            client.save()
        assert asyncio.run(facts(server)).persistent, "it writes snapshots"
    with servers.redis(aof="everysec") as server:
        assert asyncio.run(facts(server)).persistent


@pytest.mark.parametrize(("seconds", "persistent"), [(-1, False), (0, True)])
def test_redis_6_tells_of_its_snapshots_by_how_long_the_last_one_took(
    seconds, persistent, monkeypatch
):
    async def scenario(server):
        async with opened(server.url) as store:
            (info,) = await store._servers.each("INFO")
            old = {"redis_version": "6.2.14", "maxmemory_policy": "noeviction"}
            old |= {"aof_enabled": info["aof_enabled"], "rdb_last_bgsave_time_sec": seconds}
            answers = {"INFO": [old], "TIME": [(1, 2)]}

            async def each(word):
                return answers[word]

            monkeypatch.setattr(store._servers, "each", each)
            return await store.facts()

    with servers.redis() as server:
        assert asyncio.run(scenario(server)).persistent is persistent


def test_a_server_that_does_not_tell_its_policy_is_refused():
    async def scenario(server):
        async with opened(server.url) as store:

            async def each(word):
                return {"INFO": [{"aof_enabled": 1}], "TIME": [(1, 2)]}[word]

            store._servers.each = each
            assert (await store.facts()).version == "unknown"
            with pytest.raises(RefusedError, match="maxmemory-policy unknown"):
                await store.check()

    with servers.redis() as server:
        asyncio.run(scenario(server))


def test_the_embedded_store_runs_the_same_script():
    async def scenario(server):
        async with opened(server.url) as store:
            await store.check()
            checkpoint = saved(b"h", "one")
            await store.commit(commit_of(None, 10, [delta()], checkpoint))
            assert await store.commit(commit_of(5, 10, [delta()])) == Fenced(10)
            assert (await store.load(0)).chunks == {"one": b"one"}
            assert (await store.user("u1", 1)).first_ts == NOW

    with servers.valkey() as server:
        asyncio.run(scenario(server))


def test_a_lease_has_one_holder_and_a_growing_token(url):
    async def scenario():
        async with opened(url) as store:
            one, two = store.lease("one", 60_000), store.lease("two", 60_000)
            assert await one.acquire() == 1
            assert await two.acquire() is None
            assert await one.acquire() == 1, "renewing keeps the token"
            await two.release()
            assert await two.acquire() is None, "only the holder gives it back"
            await one.release()
            assert await two.acquire() == 2

    asyncio.run(scenario())


def test_a_lease_not_renewed_goes_to_the_next(url):
    async def scenario():
        async with opened(url) as store:
            one, two = store.lease("one", 100), store.lease("two", 60_000)
            assert await one.acquire() == 1
            while (token := await two.acquire()) is None:  # noqa: ASYNC110 - Redis lets it go
                await asyncio.sleep(0.02)
            assert token == 2
            assert await one.acquire() is None

    asyncio.run(scenario())
