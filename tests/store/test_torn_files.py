"""A power cut tears Redis' append-only file within a commit, at any byte; the counts stay exact.

Redis loads none of a torn commit and leaves it open at the end of the file. The next load applies
the part that is there, before the commits that came after it (`commit.lua`).
"""

import asyncio
import contextlib
import os
import random
import time

import pytest
import redis
import servers

from streameval.core.experiments.first_lists import FirstLists
from streameval.core.experiments.users import UserArms, Visit
from streameval.store.redis_store import RedisStateStore
from streameval.store.stored_values import (
    Applied,
    CheckpointWrite,
    Commit,
    Fenced,
    Torn,
    parse_arm_users,
)

pytestmark = pytest.mark.servers
NOW = 1_700_000_000_000
TOPIC = "torn"
# user, time (minutes), clicks, arm of the slate ("" for none): users come back, earlier too, one
# crosses from arm to arm, and the times spread until buckets of first lists get longer.
EVENTS = [
    ("ann", 50, 1, "A"),
    ("bob", 51, 0, "B"),
    ("cat", 52, 2, "A"),
    # the commit that is torn
    ("ann", 40, 1, "A"),
    ("dan", 53, 0, "B"),
    ("bob", 400, 1, "A"),
    ("cat", 54, 1, ""),
    ("eve", 55, 0, "A"),
    ("ann", 56, 0, ""),
    ("eve", 30, 3, "A"),
    # later
    ("dan", 57, 1, "B"),
    ("fay", 58, 1, "B"),
    ("cat", 20, 1, "A"),
]
BEFORE, TORN_END = 3, 10


def changes(begin, end):
    """What a worker sends of the events from `begin` up to `end`."""
    users, visits = {}, []
    for user, minute, clicks, arm in EVENTS[begin:end]:
        at = NOW + minute * 60_000
        row = users.setdefault(user, [user, 0, 0, at, at, 0])
        row[1] += 1
        row[3], row[4] = min(row[3], at), max(row[4], at)
        row[5] += clicks
        visits += [Visit(user, "exp", arm, at, (1, clicks))] if arm else []
    return list(users.values()), visits


def commit_of(begin, end, checkpoint=None, *, first=False):
    users, visits = changes(begin or 0, end)
    ids = {"cluster_id": "c", "topic_id": "t", "fingerprint": "f", "definition": "{}"}
    return Commit(0, begin, end, users, **ids, now=NOW, checkpoint=checkpoint, visits=visits,
                  first=first)  # fmt: skip


@contextlib.asynccontextmanager
async def worker(url):
    """The store of a worker that has just come, and a client of the server."""
    store = RedisStateStore(url, "group", TOPIC, ["click"])
    client = redis.Redis.from_url(url)
    try:
        yield store, client
    finally:
        client.close()
        await store.close()


async def to_the_end(store):
    """Count all events as `Ingest` does; return how often a commit was found to be torn."""
    found, cut, first = 0, None, True
    while True:
        stored = await store.load(0)
        if stored.torn is not None:
            found += 1
            await store.mend(0, stored.torn)
        begin = stored.offset
        assert stored.checkpoint_offset is None or stored.checkpoint_offset <= (begin or 0)
        if begin == len(EVENTS):
            return found
        end = min(len(EVENTS), (begin or 0) + 4)
        answer = await store.commit(
            commit_of(begin, min(end, cut or end) if cut != begin else end, first=first)
        )
        assert not isinstance(answer, Fenced)
        first = False
        if isinstance(answer, Torn):
            assert answer.end is None or begin is None or answer.end > begin
            found, cut = found + 1, answer.end


async def assert_exact(store, client):
    users, visits = changes(0, len(EVENTS))
    rows = {row.user: row for row in (await store.users(0)).rows}
    assert rows.keys() == {row[0] for row in users}
    for user, impressions, _, first, last, clicks in users:
        row = rows[user]
        assert (row.impressions, row.positives.get("click", 0)) == (impressions, clicks), user
        assert (row.first_ts, row.last_ts) == (first, last), user
    arms = UserArms()
    arms.add(visits)
    found = parse_arm_users(client.hgetall(f"streameval:{{group:{TOPIC}:0}}:arms:exp"))
    expected = arms.counts["exp"]
    # Buckets may be longer than they need to be, where a time is gone that once made them so.
    found.first.merge(FirstLists(expected.first.begin, expected.first.end))
    expected.first.merge(FirstLists(found.first.begin, found.first.end))
    assert comparable(found) == comparable(expected)
    for row in rows.values():
        assert set(row.arms.get("exp", {})) == arms.of("exp", row.user)


def comparable(users):
    return (
        {arm: counts.tolist() for arm, counts in users.by_arm.items()},
        {arm: count for arm, count in users.exactly.items() if count},
        users.crossed,
        (users.first.begin, users.first.end),
        {key: sums.tolist() for key, sums in users.first.sums.items()},
    )


async def begin(server):
    """Count the first events, then commit more with a checkpoint; the file before and after."""
    async with worker(server.url) as (store, _):
        one = CheckpointWrite(b"h1", {"a": b"a", "b": b"b"}, ["a", "b"])
        assert await store.commit(commit_of(None, BEFORE, one, first=True)) == Applied()
        before = log_file(server).stat().st_size
        two = CheckpointWrite(b"h2", {"c": b"c"}, ["b", "c"], BEFORE)
        assert await store.commit(commit_of(BEFORE, TORN_END, two)) == Applied()
    return before, log_file(server).read_bytes()


def log_file(server):
    (found,) = server.folder.glob("appendonlydir/*.incr.aof")
    return found


def restart(server, content):
    server.kill()
    log_file(server).write_bytes(content)
    server.spawn()
    while not server._answers():
        time.sleep(0.002)


async def torn_at(server, at, whole, reload, *, other_first):
    """Tear the file at `at`; another worker counts a part and goes; load, count on, compare."""
    reload(whole[:at])
    async with worker(server.url) as (store, client):
        if other_first:
            # Another partition's commit closes what is open at the end of the file.
            client.eval("redis.call('SET', KEYS[1], 1) redis.call('SET', KEYS[1], 2)", 1, "other")
        else:
            stored = await store.load(0)
            assert stored.torn is None, "the first load applies nothing of it"
            if stored.offset == BEFORE:
                assert await store.commit(commit_of(BEFORE, 6, first=True)) == Applied()
            assert set((await store.load(0)).chunks) in ({"a", "b"}, {"b", "c"})
    reload(None)
    async with worker(server.url) as (store, client):
        found = await to_the_end(store)
        await assert_exact(store, client)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other_first", "step"), [(False, 3), (True, 5)], ids=["same-partition", "another-partition"]
)
def test_a_file_torn_at_any_byte_of_a_commit_counts_exactly(other_first, step):
    """Every third or fifth byte, from the one that `STREAMEVAL_SEED` says: three seeds are all."""
    begin_at = int(os.environ.get("STREAMEVAL_SEED", "1")) % step

    async def scenario(server):
        before, whole = await begin(server)
        found = {}

        def reload(content):
            if content is None:
                with contextlib.closing(redis.Redis.from_url(server.url)) as client:
                    client.execute_command("DEBUG", "LOADAOF")  # which ends at a torn file
            else:
                restart(server, content)

        for at in [before, *range(before + begin_at, len(whole), step), len(whole)]:
            found[at] = await torn_at(server, at, whole, reload, other_first=other_first)
        assert any(found.values()), "some of these files hold a part of a commit"
        assert not found[before], "an end between two commits tears nothing"
        assert not found[len(whole)]

    with servers.redis(aof="always", enable_debug_command="yes") as server:
        asyncio.run(scenario(server))


def test_torn_files_of_servers_that_start_again_count_exactly():
    """The same with new processes instead of DEBUG LOADAOF, at bytes by chance."""
    rng = random.Random(int(os.environ.get("STREAMEVAL_SEED", "1")))

    async def scenario(server):
        before, whole = await begin(server)

        def reload(content):
            restart(server, log_file(server).read_bytes() if content is None else content)

        for at in sorted(rng.sample(range(before, len(whole)), 12)):
            await torn_at(server, at, whole, reload, other_first=rng.random() < 0.5)

    with servers.redis(aof="always") as server:
        asyncio.run(scenario(server))
