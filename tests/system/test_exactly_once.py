"""Nothing is counted twice or missed, whatever is killed when: real Kafka, real Redis.

Workers die by `kill -9` at random moments, a second one joins and leaves, Redis is killed and
started again, while a hostile stream flows. `STREAMEVAL_CHAOS_KILLS` and `STREAMEVAL_CHAOS_EVENTS`
say how much of it (`make chaos`: 30 and 300,000); each run prints its seed, and
`STREAMEVAL_CHAOS_SEED` replays one.
"""

import os
import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import comparison
import pytest
import servers
import service
from scene import SETTINGS
from traffic import traffic

PARTITIONS = 4
KILLS = int(os.environ.get("STREAMEVAL_CHAOS_KILLS", "8"))
EVENTS = int(os.environ.get("STREAMEVAL_CHAOS_EVENTS", "60000"))
pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_counters_and_figures_survive_kills_of_workers_and_of_redis():
    """Users, figures, checkpoints and dead letters equal the oracle after every sort of kill."""
    seed = int(os.environ.get("STREAMEVAL_CHAOS_SEED") or secrets.randbelow(1_000_000))
    print(f"replay: STREAMEVAL_CHAOS_SEED={seed}, {KILLS} kills, {EVENTS} events")
    rng = random.Random(seed)
    plan = ["worker"] * KILLS + ["other"] * max(4, KILLS // 4) + ["redis"] * max(2, KILLS // 6)
    rng.shuffle(plan)
    gaps = [rng.uniform(0.3, 5.5) for _ in plan]
    kafka, topic = servers.shared_kafka(), servers.unique("chaos")
    with (
        servers.redis(aof="always") as redis,
        ThreadPoolExecutor() as pool,
    ):
        service.create_topic(kafka.port, topic, PARTITIONS)
        records = list(traffic(seed, EVENTS, step=40_000_000 // EVENTS))
        # By two dimensions there are totals: most users are in several segments.
        settings = SETTINGS | {"dimensions": ["variant", "surface"]}
        workers = [service.Worker(kafka.port, redis.url, topic, **settings) for _ in range(2)]
        with workers[0], workers[1]:
            sending = pool.submit(service.produce, kafka.port, topic, records, seconds=sum(gaps))
            for what, gap in zip(plan, gaps, strict=True):
                sleep(gap)
                FAULTS[what](rng, workers, redis)
            assert sending.result() == len(records)
            if not workers[1].running:
                workers[1].start()
            log, ends = service.read_log(kafka.port, topic, PARTITIONS)
            service.wait_until_read(redis.url, topic, ends)
            users, figures = comparison.compare_all(redis.url, topic, workers, log)
            letters = comparison.compare_letters(kafka.port, topic, workers[0].definition, log)
        print(f"{users} users, {figures} figures, {letters} rejected records")
        assert users > 100 and figures > 50 and letters > EVENTS // 1000


def kill_a_worker(rng, workers, redis):
    running = [worker for worker in workers if worker.running]
    assert workers[0] in running, workers[0].logged()[-5000:]
    victim = rng.choice(running)
    victim.kill()
    victim.start()


def second_joins_or_leaves(rng, workers, redis):
    other = workers[1]
    if not other.running:
        other.start()
    elif rng.random() < 0.5:
        other.kill()
    else:
        assert other.stop() in service.CLEAN_ENDS, other.logged()[-5000:]


def kill_redis(rng, workers, redis):
    redis.kill()
    sleep(rng.uniform(0, 2))
    redis.start()


FAULTS = {"worker": kill_a_worker, "other": second_joins_or_leaves, "redis": kill_redis}
