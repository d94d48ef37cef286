"""Errors of scripts as Redis 6 tells them: commits wait until they can be done."""

import asyncio
import contextlib
import resource

import pytest
import servers
from test_store import commit_of, delta, opened

from streameval.store.stored_values import Applied

pytestmark = pytest.mark.servers


@contextlib.contextmanager
def without_memory(server, client):
    client.config_set("maxmemory", 1)
    yield
    client.config_set("maxmemory", 0)


@contextlib.contextmanager
def as_a_replica(server, client):
    client.replicaof("127.0.0.1", servers.free_port())
    yield
    client.replicaof("NO", "ONE")


@contextlib.contextmanager
def without_disk(server, client):
    """No file of the server grows, by the process' own limit."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    client.set("written", "later")
    yield
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [(without_memory, "OOM"), (as_a_replica, "READONLY"), (without_disk, "MISCONF")],
)
def test_a_commit_waits_until_the_server_takes_it(trouble, said, caplog):
    async def scenario(server):
        async with opened(server.url) as store:
            await store.commit(commit_of(None, 10, [delta()]))
            with contextlib.closing(servers.redis_client(server.url)) as client:
                with trouble(server, client):
                    await asyncio.sleep(1.2)  # Redis looks at its disk once a second
                    committing = asyncio.create_task(store.commit(commit_of(10, 20, [delta()])))
                    await asyncio.sleep(0.3)
                    assert not committing.done()
                assert await committing == Applied()
            assert (await store.user("u1", 1)).impressions == 20

    with servers.redis_6(appendonly="yes") as server:
        asyncio.run(scenario(server))
    assert f"commit not possible, trying on: {said} " in caplog.text
