"""Nothing is counted twice or missed where Redis is a cluster, or has Sentinels: real servers.

Nodes are killed, replicas take over, slots move key by key, and an old master returns, while
workers commit. `STREAMEVAL_CLUSTER_SEEDS` says how many seeds run.
"""

import asyncio
import contextlib
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import comparison
import pytest
import redis as redis_client
import servers
import service
from redis.crc import key_slot
from scene import SETTINGS
from traffic import traffic

from streameval.base.errors import UnreachableError
from streameval.store.redis_store import RedisStateStore

PARTITIONS = 4
EVENTS = 20_000
SECONDS = 40
SEEDS = int(os.environ.get("STREAMEVAL_CLUSTER_SEEDS", "1"))
pytestmark = [pytest.mark.servers, pytest.mark.slow]


def client_of(node):
    return redis_client.Redis(port=node.port, socket_timeout=5)


def names(cluster):
    """By node: its name in the cluster, of those that are up."""
    up = [node for node in cluster.nodes if node.process is not None]
    return {cluster.cli(node, "CLUSTER", "MYID"): node for node in up}


def owner_of(cluster, slot):
    """The name of the node that has a slot, as a primary says."""
    node = cluster.primaries()[0]
    for line in cluster.cli(node, "CLUSTER", "NODES").splitlines():
        (
            name,
            _,
            flags,
            *_,
        ) = line.split()[:3]
        if "master" not in flags or "fail" in flags.split(","):
            continue
        for each in line.split()[8:]:
            first, _, last = each.partition("-")
            if first.isdigit() and int(first) <= slot <= int(last or first):
                return name
    return None


class Mover:
    """Moves slots of partitions between primaries, key by key, slowly."""

    def __init__(self, cluster, prefix):
        self.cluster, self.moved = cluster, 0
        self.slots = [key_slot(f"{prefix}{number}}}:".encode()) for number in range(PARTITIONS)]

    def move(self, rng, keys_at_a_time=2, pause=0.1):
        """Move one slot to another primary, in seconds; keys are on both nodes meanwhile."""
        slot, known = rng.choice(self.slots), names(self.cluster)
        source = owner_of(self.cluster, slot)
        primaries = {self.cluster.cli(node, "CLUSTER", "MYID") for node in self.cluster.primaries()}
        others = sorted(primaries & known.keys() - {source})
        if source not in known or not others:
            return
        target = rng.choice(others)
        ours, theirs = client_of(known[source]), client_of(known[target])
        theirs.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
        ours.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
        place = ["127.0.0.1", known[target].port, "", 0, 5000]
        while keys := ours.execute_command("CLUSTER", "GETKEYSINSLOT", slot, keys_at_a_time):
            # Without REPLACE: a key that is there already was made by a commit that went astray.
            answer = ours.execute_command("MIGRATE", *place, "KEYS", *keys)
            assert answer in {b"OK", b"NOKEY", True}, answer
            time.sleep(pause)
        for client in (theirs, ours):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)
        self.moved += 1


def kill_a_primary(cluster, rng):
    """Kill it, wait until its replica has taken over, and start it again: it has old data."""
    victim = rng.choice(cluster.primaries())
    victim.kill()
    end = time.monotonic() + 60
    while "cluster_state:ok" not in cluster.cli(cluster.primaries()[0], "CLUSTER", "INFO") or (
        len(cluster.primaries()) < 3
    ):
        assert time.monotonic() < end, "no replica has taken over"
        time.sleep(0.2)
    victim.start()


def fail_over(cluster, rng):
    """Let a replica take over from its primary, as for maintenance."""
    replicas = [
        node
        for node in cluster.nodes
        if node.process is not None and "role:slave" in cluster.cli(node, "INFO", "replication")
    ]
    cluster.cli(rng.choice(replicas), "CLUSTER", "FAILOVER")
    time.sleep(2)


@pytest.mark.parametrize("run", range(SEEDS))
def test_counters_are_the_logs_while_nodes_die_and_slots_move(run):
    rng = random.Random(run)
    kafka, group = servers.shared_kafka(), f"cluster{run}"
    topic = servers.unique(group)
    with servers.redis_cluster() as cluster, ThreadPoolExecutor() as pool:
        service.create_topic(kafka.port, topic, PARTITIONS)
        records = list(traffic(run, EVENTS, step=40_000_000 // EVENTS))
        settings = SETTINGS | {"group": group}
        workers = [service.Worker(kafka.port, cluster.url, topic, **settings) for _ in range(2)]
        mover = Mover(cluster, f"streameval:{{{group}:{topic}:")
        with workers[0], workers[1]:
            sending = pool.submit(service.produce, kafka.port, topic, records, seconds=SECONDS)
            plan = ["move"] * 6 + ["kill", "kill", "failover"]
            rng.shuffle(plan)
            for what in plan:
                time.sleep(rng.uniform(0.2, 2))
                if what == "move":
                    mover.move(rng)
                elif what == "kill":
                    kill_a_primary(cluster, rng)
                else:
                    fail_over(cluster, rng)
            assert sending.result() == len(records)
            log, ends = service.read_log(kafka.port, topic, PARTITIONS)
            service.wait_until_read(cluster.url, topic, ends, group=group)
            users, figures = comparison.compare_all(cluster.url, topic, workers, log, group)
            letters = comparison.compare_letters(kafka.port, topic, workers[0].definition, log)
        print(f"run {run}: {users} users, {figures} figures, {letters} rejected, {mover.moved}")
        assert users > 100 and figures > 50 and mover.moved >= 3


def test_users_are_read_whole_while_their_slot_moves():
    """A scan sees all users or none of it: never those of one node only."""
    with servers.redis_cluster() as cluster:
        topic = servers.unique("scan")
        prefix = f"streameval:{{group:{topic}:"

        async def scenario():
            store = RedisStateStore(cluster.url, "group", topic, ["click"])
            try:
                with servers.redis_client(cluster.url) as client:
                    client.hset(f"{prefix}0}}:partition", mapping={"offset": 5})
                    for number in range(2_000):
                        fields = {"impressions": 1, "first_ts": 1, "last_ts": 1, "at": 5}
                        client.hset(f"{prefix}0}}:user:u{number}", mapping=fields)
                mover, rng = Mover(cluster, prefix), random.Random(1)
                mover.slots = mover.slots[:1]
                whole = refused = 0
                with ThreadPoolExecutor() as pool:
                    moving = pool.submit(lambda: [mover.move(rng, 100, 0) for _ in range(4)])
                    while not moving.done():
                        try:
                            found = await store.users(0)
                        except UnreachableError:
                            refused += 1
                            continue
                        assert len(found.rows) == 2_000
                        whole += 1
                    moving.result()
                found = None
                while found is None:  # some nodes may not know yet where the slot is now
                    with contextlib.suppress(UnreachableError):
                        found = await store.users(0)
                assert len(found.rows) == 2_000
                return whole, refused, mover.moved
            finally:
                await store.close()

        whole, refused, moved = asyncio.run(scenario())
        assert moved == 4
        assert whole + refused > 4, (whole, refused)


def test_counters_are_the_logs_when_sentinels_name_another_master():
    rng = random.Random(3)
    kafka, topic = servers.shared_kafka(), servers.unique("sentinel")
    with servers.redis_sentinels(replicas=2) as watched, ThreadPoolExecutor() as pool:
        service.create_topic(kafka.port, topic, PARTITIONS)
        records = list(traffic(3, EVENTS, step=40_000_000 // EVENTS))
        worker = service.Worker(kafka.port, watched.url, topic, **SETTINGS)
        with worker:
            sending = pool.submit(service.produce, kafka.port, topic, records, seconds=SECONDS)
            for _ in range(2):
                time.sleep(rng.uniform(2, 5))
                (master,) = watched.primaries()
                master.kill()
                service.wait_for(lambda: len(watched.primaries()) == 1, 60, "another master")
                time.sleep(rng.uniform(0, 3))
                master.start()  # with old data; the Sentinels make it a replica
                service.wait_for(lambda: len(watched.primaries()) == 1, 60, "it is a replica")
            assert sending.result() == len(records)
            log, ends = service.read_log(kafka.port, topic, PARTITIONS)
            service.wait_until_read(watched.url, topic, ends)
            users, figures = comparison.compare_all(watched.url, topic, [worker], log)
        assert users > 100 and figures > 50
