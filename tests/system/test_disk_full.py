"""A Redis that cannot write to its disk: nothing moves on, and all is right once it can again.

The disk is full by the process' own limit on the size of files, so that no rights are needed: the
write fails in Redis as it does on a full disk, and works again when the limit is lifted.
"""

import contextlib
import resource
import time

import pytest
import redis as redis_client
import servers
import service
from scene import Scene

pytestmark = pytest.mark.servers

SECONDS_AWAY = 5


def fill_disk(store):
    """No file of the server grows beyond what the largest one is now."""
    largest = max(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    _limit(store, largest)


def make_room(store):
    _limit(store, resource.RLIM_INFINITY)


def _limit(store, size):
    resource.prlimit(store.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def refuses_writes(store):
    with redis_client.Redis.from_url(store.url) as client:
        try:
            client.set("probe", "x" * 100)
        except redis_client.ResponseError as error:
            return "MISCONF" in str(error)
    return False


def waits(it, worker):
    """Nothing is committed, nobody ends, and the log says why every few seconds."""
    said, committed = worker.logged().count("not possible, trying on"), it.committed()
    time.sleep(SECONDS_AWAY)
    assert it.committed() == committed
    assert worker.running
    more = worker.logged().count("not possible, trying on") - said
    assert 1 <= more <= 2, "a line every three seconds"
    assert "MISCONF" in worker.logged()


@pytest.mark.parametrize(
    "options",
    [{"aof": "everysec"}, {"save": "3600 1", "stop_writes_on_bgsave_error": "yes"}],
    ids=["append-only file", "snapshots"],
)
def test_a_full_disk_stops_everything_and_nothing_is_lost(options):
    """Redis answers MISCONF to writes: workers wait with their batches."""
    with servers.redis(**options) as store, Scene(servers.shared_kafka(), store) as it:
        worker = it.worker()
        sending = it.producing(5_000, seconds=5)
        it.wait_for_progress()
        fill_disk(store)
        if "save" in options:
            with redis_client.Redis.from_url(store.url) as client:
                client.bgsave()
        service.wait_for(lambda: refuses_writes(store), 20, "Redis refuses to write")
        waits(it, worker)
        make_room(store)
        if "save" in options:
            with redis_client.Redis.from_url(store.url) as client:
                client.bgsave()
        service.wait_for(lambda: not refuses_writes(store), 20, "Redis writes")
        sending.result()
        it.verify()


def test_a_full_disk_that_ends_redis_loses_nothing():
    """With `appendfsync always` Redis ends at the first write that fails."""
    with (
        servers.redis(aof="always", aof_load_truncated="yes") as store,
        Scene(servers.shared_kafka(), store) as it,
    ):
        worker = it.worker()
        sending = it.producing(4_000, seconds=4)
        it.wait_for_progress()
        fill_disk(store)
        with contextlib.suppress(redis_client.RedisError):
            refuses_writes(store)
        assert store.process.wait(20) == 1, "it ended by itself"
        time.sleep(2)
        assert worker.running
        store.start()
        sending.result()
        it.verify()
