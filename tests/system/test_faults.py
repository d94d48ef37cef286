"""Every fault of the matrix on real servers: afterwards all that is left equals the oracle.

Users in Redis, figures on the pages, checkpoints and dead letters are compared (`Scene.verify`).
Kills at random moments are in `test_exactly_once`, broken records in `test_poison`.
"""

import asyncio
import contextlib
import functools
import pathlib
import random
import shutil
import signal
import time

import dying_worker
import pytest
import redis as redis_client
import servers
import service
from proxy import Proxy
from scene import Scene

from streameval.cli.doctor import examine

DYING_WORKER = pathlib.Path(dying_worker.__file__).read_text()

pytestmark = pytest.mark.servers


@contextlib.contextmanager
def scene(kafka=None, store=None, **options):
    """A scene on the shared broker and a Redis of its own, unless given."""
    with contextlib.ExitStack() as stack:
        store = store or stack.enter_context(servers.redis(aof="always"))
        yield stack.enter_context(Scene(kafka or servers.shared_kafka(), store, **options))


@contextlib.contextmanager
def broken_line():
    """A proxy before Redis, and a scene whose workers go through it."""
    with (
        servers.redis(aof="always") as store,
        Proxy(store.port) as proxy,
        scene(store=store, via=proxy.port) as it,
    ):
        yield proxy, it


def ends_in_time(worker):
    """SIGTERM once it takes signals, and the exit code within 15 s (`TimeoutExpired` otherwise)."""
    worker.wait_until_up()
    return worker.stop(timeout=15)


# --- stopping --------------------------------------------------------------------------------


def test_sigterm_in_the_middle_of_a_batch_commits_it():
    with scene() as it:
        worker = it.worker()
        sending = it.producing(9_000, seconds=9)
        for _ in range(3):
            it.wait_for_progress()
            assert ends_in_time(worker) == 0
            worker.start()
        sending.result()
        it.verify()


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_sigterm_while_redis_is_away_ends_in_time_and_loses_nothing(how):
    with scene() as it:
        worker = it.worker()
        sending = it.producing(5_000, seconds=5)
        it.wait_for_progress()
        it.redis.kill() if how == "killed" else it.redis.pause()
        time.sleep(1.5)
        assert ends_in_time(worker) == 75, "what was read could not be committed"
        it.redis.start() if how == "killed" else it.redis.resume()
        worker.start()
        sending.result()
        it.verify()


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_sigterm_while_kafka_is_away_ends_in_time_and_loses_nothing(how):
    kafka = servers.mortal_kafka()
    with scene(kafka) as it:
        worker = it.worker()
        it.produce(2_000)
        it.read_all()
        assert " ERROR " not in worker.logged(), "the first start of a group is no error"
        kafka.kill() if how == "killed" else kafka.pause()
        time.sleep(1)
        assert ends_in_time(worker) in {0, 75}
        kafka.start() if how == "killed" else kafka.resume()
        worker.start()
        it.produce(2_000)
        it.verify()


def test_a_worker_waits_for_redis_and_kafka_with_a_line_and_then_works():
    """It also ends on SIGTERM while it waits."""
    kafka = servers.mortal_kafka()
    with scene(kafka) as it:
        kafka.kill()
        it.redis.kill()
        worker = it.worker()
        service.wait_for(lambda: worker.logged().count(it.redis.address) >= 2, 20, "two lines")
        it.redis.start()
        service.wait_for(lambda: worker.logged().count(kafka.address) >= 2, 20, "two lines")
        assert ends_in_time(worker) == 0
        worker.start()
        kafka.start()
        it.produce(2_000)
        it.verify()


def test_a_worker_whose_topic_is_absent_says_so_where_it_is_asked():
    """Kafka answers: what is missing is the topic, before and while it works."""
    with scene(partitions=1) as it:
        service.delete_topic(it.kafka.port, it.topic)
        worker = it.worker()
        absent = f"the topic {it.topic} does not exist: "
        service.wait_for(lambda: absent in service.refused(worker, "/readyz"), 20, "it says so")
        service.create_topic(it.kafka.port, it.topic, 1)
        service.wait_for(lambda: worker.page("/readyz"), 20, "it is ready")
        service.delete_topic(it.kafka.port, it.topic)
        service.wait_for(lambda: absent in service.refused(worker, "/readyz"), 20, "again")


def test_a_worker_that_ends_at_each_named_point_of_its_work():
    """At each step, one after the other: read, apply, write dead letters, script, restore."""
    rng = random.Random(2)
    with scene() as it:
        worker = it.worker()
        # Longer than all starts take on a busy machine: without events no point is reached.
        sending = it.producing(14_000, seconds=50)
        worker.kill()
        for point in dying_worker.POINTS:
            count = rng.randint(1, 4)
            worker.start(program=("-c", DYING_WORKER, point, str(count)))
            assert worker.process.wait(30) == dying_worker.EXIT_CODE, point
        worker.start()
        sending.result()
        it.verify()


# --- several workers -------------------------------------------------------------------------


def test_a_worker_that_slept_past_its_session_is_fenced_and_counted():
    """It wakes up with a batch in its hands that another worker has read already."""
    with scene() as it:
        sleeper = it.worker()
        sending = it.producing(16_000, seconds=16)
        it.wait_for_progress()
        sleeper.signal(signal.SIGSTOP)
        it.worker()
        it.wait_for_progress(at_least=1_500)
        sleeper.signal(signal.SIGCONT)
        service.wait_for(lambda: it.metric("fences_total") >= 1, 20, "a fence is counted")
        sending.result()
        it.verify()
        assert "fenced at offset" in sleeper.logged()


def test_three_members_that_join_and_leave_all_the_time():
    rng = random.Random(5)
    with scene() as it:
        workers = [it.worker() for _ in range(3)]
        sending = it.producing(20_000, seconds=20)
        for _ in range(14):
            time.sleep(1)
            worker = rng.choice(workers)
            if worker.running:
                assert worker.stop(timeout=15) in service.CLEAN_ENDS
            else:
                worker.start()
        sending.result()
        for worker in workers:
            if not worker.running:
                worker.start()
        it.verify()


# --- Kafka -----------------------------------------------------------------------------------


def test_kafka_killed_and_started_again_needs_no_restart_of_the_worker():
    kafka = servers.mortal_kafka()
    with scene(kafka) as it:
        it.worker()
        sending = it.producing(12_000, seconds=12)
        for _ in range(2):
            it.wait_for_progress()
            kafka.kill()
            time.sleep(0.5)
            kafka.start()
        sending.result()
        it.verify()


def test_kafka_that_moves_behind_its_name_is_read_on():
    """All brokers have other addresses when they are back: the configured servers tell them."""
    kafka = servers.mortal_kafka()
    with (
        Proxy(kafka.port) as name,
        scene(kafka, partitions=2, settings={"kafka": f"127.0.0.1:{name.port}"}) as it,
    ):
        worker = it.worker()
        it.produce(500)
        it.read_all()
        kafka.kill()
        before, kafka.port = kafka.port, servers.free_port()
        properties = kafka.folder / "server.properties"
        properties.write_text(properties.read_text().replace(str(before), str(kafka.port)))
        name.target_port = kafka.port
        kafka.start()
        it.produce(500)
        it.read_all(90)
        assert worker.running
        it.verify()


def test_kafka_that_stands_still_for_20_seconds():
    kafka = servers.mortal_kafka()
    with scene(kafka) as it:
        worker = it.worker()
        it.produce(3_000)
        it.read_all()
        kafka.pause()
        time.sleep(12)
        assert worker.metrics()["streameval_broker_up", frozenset()] == 0
        assert "Kafka does not answer" in service.refused(worker, "/readyz")
        time.sleep(8)
        kafka.resume()
        it.produce(3_000)
        it.verify()


def test_events_that_the_log_lost_are_counted_exactly():
    """Retention took records that no worker had read: the gap is known to the record."""
    with scene(partitions=1) as it:
        worker = it.worker()
        it.produce(1_500)
        before, ends = service.read_log(it.kafka.port, it.topic, 1)
        service.wait_until_read(it.redis.url, it.topic, ends)
        assert ends_in_time(worker) == 0
        it.produce(1_500)
        service.truncate(it.kafka.port, it.topic, ends[0] + 700)
        worker.start()
        after, ends_then = service.read_log(it.kafka.port, it.topic, 1)
        assert after[0][0][0] == ends[0] + 700
        service.wait_until_read(it.redis.url, it.topic, ends_then)
        assert it.metric("events_lost_total") == 700
        it.verify({0: before[0] + after[0]})


def test_a_topic_made_anew_under_its_old_name_is_refused_with_a_cure():
    with scene(partitions=1) as it:
        worker = it.worker()
        it.produce(1_000)
        it.read_all()
        assert ends_in_time(worker) == 0
        service.delete_topic(it.kafka.port, it.topic)
        service.create_topic(it.kafka.port, it.topic, 1)
        it.produce(3_000)
        worker.start()
        assert worker.process.wait(30) == 2
        assert "of another Kafka topic" in worker.logged()
        assert "Choose another `group`" in worker.logged()


def test_a_topic_made_anew_while_the_worker_runs_is_refused_however_long_it_is():
    """Its log holds the offset to read next, so nothing else would tell."""
    with scene(partitions=1) as it:
        worker = it.worker()
        it.produce(300)
        it.read_all()
        service.delete_topic(it.kafka.port, it.topic)
        service.create_topic(it.kafka.port, it.topic, 1)
        it.produce(3_000)
        assert worker.process.wait(10) == 2, "the probe sees it, long before the group does"
        (line,) = [line for line in worker.logged().splitlines() if "made anew" in line]
        assert "another Kafka topic" in line and "Choose another `group`" in line


def test_another_cluster_is_refused_with_a_cure():
    other = servers.mortal_kafka()
    with scene(partitions=1) as it:
        worker = it.worker()
        it.produce(1_000)
        it.read_all()
        assert ends_in_time(worker) == 0
        service.create_topic(other.port, it.topic, 1)
        stranger = service.Worker(other.port, it.redis.url, it.topic, **it.settings).start()
        with stranger:
            assert stranger.process.wait(30) == 2
        assert "of another Kafka cluster" in stranger.logged()


@contextlib.contextmanager
def compacted(produce):
    """A scene whose topic was compacted after `produce` of Kafka's port, a topic and records."""
    fast = {"log_cleaner_backoff_ms": 200, "log_cleaner_min_cleanable_ratio": 0.01}
    policy = {"cleanup.policy": "compact", "segment.ms": "100", "segment.bytes": "1048576"}
    with servers.kafka(**fast) as kafka, scene(kafka, topic_config=policy) as it:
        produce(kafka.port, it.topic, it.traffic(4_000))
        service.wait_for(lambda: _gaps(it) > 1_000, 40, "the cleaner made gaps")
        service.configure_topic(kafka.port, it.topic, {"cleanup.policy": "delete"})
        yield it


def test_offsets_with_gaps_of_aborted_transactions_and_compaction():
    with compacted(service.produce_in_transactions) as it:
        it.worker()
        it.read_all()
        lost = it.metric("events_lost_total")
        service.produce_in_transactions(it.kafka.port, it.topic, it.traffic(3_000))
        it.read_all()
        assert it.metric("events_lost_total") == lost, "nobody lost what was aborted"
        it.verify()


def test_records_that_compaction_took_are_counted_as_lost_once():
    with compacted(functools.partial(service.produce, seconds=4)) as it:
        worker = it.worker()
        it.read_all()
        service.wait_for(lambda: it.metric("events_lost_total") == _gaps(it), 20, "all is counted")
        assert "are gone from the log" in worker.logged()
        worker.kill()
        it.worker()
        it.produce(1_000)
        it.read_all()
        assert it.metric("events_lost_total") == 0
        it.verify()


def _gaps(it):
    log, ends = service.read_log(it.kafka.port, it.topic, it.partitions)
    return sum(ends.values()) - sum(map(len, log.values()))


def test_partitions_added_while_running_are_read_and_each_partition_stays_exact():
    """Users move to other partitions: each partition equals the oracle over its own records.

    What this costs is said in the log: a slate open at that time is not joined with feedback
    that comes by the new partition, and a user stands in two partitions.
    """
    with scene() as it:
        worker = it.worker()
        it.produce(3_000)
        it.read_all()
        service.add_partitions(it.kafka.port, it.topic, 8)
        service.wait_for(lambda: "has 8 partitions now" in worker.logged(), 20, "noticed")
        it.partitions = 8
        it.produce(3_000)
        it.verify(seconds=60)


# --- Redis -----------------------------------------------------------------------------------


@pytest.mark.parametrize("aof", ["always", "everysec", None])
def test_redis_killed_and_started_again(aof):
    """What it forgets, with `everysec` a second and without AOF everything, is read again."""
    with servers.redis(aof=aof) as store, scene(store=store) as it:
        it.worker()
        sending = it.producing(8_000, seconds=8)
        for _ in range(2):
            it.wait_for_progress()
            store.kill()
            time.sleep(0.5)
            store.start()
        sending.result()
        it.verify()


def test_redis_rolled_back_to_an_older_file_is_noticed_and_healed():
    with servers.redis() as store, scene(store=store) as it:
        it.worker()
        sending = it.producing(8_000, seconds=8)
        it.wait_for_progress()
        with redis_client.Redis.from_url(store.url) as client:
            client.save()
        shutil.copy(store.folder / "dump.rdb", store.folder / "older.rdb")
        it.wait_for_progress(at_least=2_000)
        store.kill()
        shutil.copy(store.folder / "older.rdb", store.folder / "dump.rdb")
        store.start()
        sending.result()
        it.verify()
        assert it.workers[0].logged().count("fenced at offset") >= 1


@pytest.mark.parametrize("busy", [True, False])
def test_flushall_is_noticed_and_healed_also_while_no_events_come(busy):
    with scene() as it:
        it.worker()
        sending = it.producing(5_000, seconds=5 if busy else 0.5)
        it.wait_for_progress(at_least=2_000)
        if not busy:
            sending.result()
            it.read_all()
        with redis_client.Redis.from_url(it.redis.url) as client:
            client.flushall()
        sending.result()
        it.verify()


def test_replies_of_redis_lost_on_the_way():
    rng = random.Random(10)
    with broken_line() as (proxy, it):
        it.worker(batch_interval="100ms")
        sending = it.producing(8_000, seconds=8)
        for _ in range(12):
            proxy.drop_replies(rng.randint(1, 3), after=rng.randrange(10))
            service.wait_for(lambda: proxy.dropped, 20, "the replies are lost")
        sending.result()
        it.verify()


def test_a_silent_redis_pauses_reading_and_bounds_memory():
    """Nothing is half applied, and no more is read ahead than the limits allow."""
    with broken_line() as (proxy, it):
        worker = it.worker()
        it.produce(2_000)
        it.read_all()
        proxy.silent = True
        sending = it.producing(150_000, seconds=8)
        time.sleep(5)
        before, committed = service.resident(worker), it.committed()
        sending.result()
        time.sleep(4)
        grown = service.resident(worker) - before
        assert it.committed() == committed
        assert grown < 150 << 20, f"{grown >> 20} MiB more while nothing could be committed"
        service.wait_for(lambda: lag(worker) > 140_000, 20, "the lag is shown all the same")
        proxy.silent = False
        it.verify()


def test_a_slow_redis_slows_commits_down_and_nothing_else():
    """Every answer comes two seconds late: each commit takes longer, and counts once."""
    with broken_line() as (proxy, it):
        worker = it.worker()
        it.produce(1_000)
        it.read_all()
        proxy.delay = 2.0
        sending = it.producing(4_000, seconds=4)
        it.wait_for_progress(at_least=100)
        assert worker.running
        proxy.delay = 0.0
        sending.result()
        it.verify()
        assert "fenced" not in worker.logged()


def lag(worker):
    return sum(value for (name, _), value in worker.metrics().items() if name == "streameval_lag")


def test_redis_without_memory_takes_nothing_and_goes_on_when_it_has_some():
    with scene() as it:
        worker = it.worker()
        sending = it.producing(8_000, seconds=8)
        it.wait_for_progress()
        with redis_client.Redis.from_url(it.redis.url) as client:
            client.config_set("maxmemory", "1mb")
            service.wait_for(lambda: "not possible" in worker.logged(), 20, "the log says so")
            stored = it.committed()
            time.sleep(2)
            assert it.committed() == stored
            assert worker.running
            client.config_set("maxmemory", 0)
        sending.result()
        it.verify()


def test_another_definition_is_refused_and_says_what_changed_and_disturbs_nobody():
    """It never joins the group: whoever works keeps its partitions, however often it starts."""
    with scene() as it:
        worker = it.worker()
        it.produce(1_000)
        it.read_all()
        for _ in range(2):
            other = it.worker(ks=[3])
            assert other.process.wait(30) == 2
            assert "ks" in other.logged() and "--reset-windows" in other.logged()
            assert "assigned partitions" not in other.logged()
        it.produce(1_000)
        it.verify()
        assert worker.logged().count("assigned partitions") == 1


def test_a_compacted_topic_is_told_by_worker_and_doctor():
    with scene(topic_config={"cleanup.policy": "compact"}) as it:
        worker = it.worker()
        service.wait_for(lambda: "cleanup.policy=compact" in worker.logged(), 60, "it is told")
        findings = asyncio.run(examine(worker.config))
        (found,) = (finding for finding in findings if finding.check == "compaction")
        assert found.level == "fail"
        assert "cleanup.policy=delete" in found.cure
