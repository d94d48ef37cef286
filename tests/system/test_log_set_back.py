"""A log that is not the one that was read is refused, however far it has grown, and not counted.

On a real broker that is killed, and whose folder of a partition is replaced with an older copy.
"""

import contextlib
import shutil
import signal

import pytest
import redis
import servers
import service
from scene import Scene

pytestmark = pytest.mark.servers

REFUSED = 2
# Nobody leaves the group while a test stops a worker.
PATIENT = {"session_timeout": "30s", "batch_interval": "100ms"}


@pytest.fixture
def kafka():
    return servers.mortal_kafka()


def read_by(worker, it):
    """Have everything counted; answers the counters of all users, as they lie in Redis."""
    it.read_all()
    assert worker.running
    return counters(it)


def counters(it):
    with contextlib.closing(redis.Redis.from_url(it.redis.url)) as client:
        users = client.scan_iter(f"streameval:{{test:{it.topic}:0}}:user:*")
        return {user: client.hgetall(user) for user in users}


def copy_of(kafka, it):
    """A copy of the partition's folder as it is now."""
    folder = kafka.folder / "data" / f"{it.topic}-0"
    return shutil.copytree(folder, kafka.folder / f"{it.topic}-copy")


def set_back(kafka, it, copy):
    """What a restored disk does: the log is what it was when the copy was made, and grows on."""
    kafka.kill()
    folder = kafka.folder / "data" / f"{it.topic}-0"
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    kafka.start()
    it.produce(3_000)


def test_a_log_set_back_and_grown_again_while_no_worker_ran_is_refused(kafka):
    with Scene(kafka, servers.shared_redis(), partitions=1) as it:
        worker = it.worker()
        it.produce(500)
        copy = copy_of(kafka, it)
        it.produce(500)
        before = read_by(worker, it)
        assert worker.stop() == 0
        set_back(kafka, it, copy)
        worker.start()
        assert worker.process.wait(30) == REFUSED
        assert "the log was set back and has grown again" in worker.logged()
        assert "Choose another `group`" in worker.logged()
        assert counters(it) == before


def test_a_log_set_back_and_grown_again_under_a_running_worker_is_refused(kafka):
    """It slept meanwhile, so the offset to read next is in the log when it looks."""
    with Scene(kafka, servers.shared_redis(), partitions=1, settings=PATIENT) as it:
        worker = it.worker()
        it.produce(500)
        copy = copy_of(kafka, it)
        it.produce(500)
        before = read_by(worker, it)
        worker.signal(signal.SIGSTOP)
        set_back(kafka, it, copy)
        worker.signal(signal.SIGCONT)
        assert worker.process.wait(30) == REFUSED
        assert "the log was set back and has grown again" in worker.logged()
        assert counters(it) == before


def test_of_a_topic_made_anew_that_outgrew_the_old_one_nothing_is_read(kafka):
    """It has the old name and holds the offset to read next before the worker looks again."""
    with Scene(kafka, servers.shared_redis(), partitions=1, settings=PATIENT) as it:
        worker = it.worker()
        it.produce(300)
        before = read_by(worker, it)
        worker.signal(signal.SIGSTOP)
        service.delete_topic(kafka.port, it.topic)
        service.create_topic(kafka.port, it.topic, 1)
        it.produce(3_000)
        worker.signal(signal.SIGCONT)
        assert worker.process.wait(30) == REFUSED
        assert "another Kafka topic" in worker.logged()
        assert counters(it) == before


def test_a_log_that_lost_its_beginning_or_got_markers_is_the_same(kafka):
    """Retention took the last record that was counted; a transaction ended after it."""
    with Scene(kafka, servers.shared_redis(), partitions=1) as it:
        worker = it.worker()
        service.produce_in_transactions(kafka.port, it.topic, it.traffic(500))
        read_by(worker, it)
        assert worker.stop() == 0
        worker.start()
        it.produce(500)
        _, ends = service.read_log(kafka.port, it.topic, 1)
        service.wait_until_read(it.redis.url, it.topic, ends)
        assert worker.stop() == 0
        service.truncate(kafka.port, it.topic, ends[0])
        worker.start()
        it.produce(500)
        read_by(worker, it)
