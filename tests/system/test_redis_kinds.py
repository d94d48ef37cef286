"""A URL for another kind of Redis than the one that is there is told what to write."""

import asyncio
import ssl

import pytest
import servers
from authorities import two_authorities

from streameval.base.errors import RefusedError, UnreachableError
from streameval.store.redis_store import RedisStateStore

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    return two_authorities(tmp_path_factory.mktemp("authorities"))


def told(url, error):
    """What is said to somebody who asks for facts, and for data of some partitions."""

    async def ask():
        store = RedisStateStore(url, "group", "topic", ["click"])
        try:
            await store.facts()
            for partition in range(8):
                await store.standing(partition)
        finally:
            await store.close()

    with pytest.raises(error) as said:
        asyncio.run(ask())
    return str(said.value)


def test_a_node_of_a_cluster_and_no_cluster():
    first = servers.shared_redis_cluster().url.partition("://")[2].partition(",")[0]
    said = told(f"redis://{first}/0", RefusedError)
    assert said == f"Redis at {first} is a node of a cluster: write redis+cluster://"
    alone = servers.shared_redis().url.partition("://")[2].partition("/")[0]
    said = told(f"redis+cluster://{alone}", RefusedError)
    assert said.endswith("; it is no cluster, write redis:// or rediss://")


def test_a_sentinel_in_place_of_redis():
    with servers.redis_sentinels() as watched:
        said = told(watched.url.replace("/main", "/other"), UnreachableError)
        assert said.endswith(
            "(No master found for 'other'): is it running, and known to them by this name?"
        )
        place = watched.url.partition("://")[2].partition(",")[0]
        said = told(f"redis://{place}/0", RefusedError)
        assert said.endswith("; is it a Sentinel? Write redis+sentinel://HOST:PORT/NAME")
        said = told(f"redis+cluster://{place}", RefusedError)
        assert said.endswith("; it is no cluster, write redis:// or rediss://")


def test_tls_on_one_side_only_and_certificates_of_another_authority(authorities):
    first, second = authorities
    files = {"tls_cert_file": first["server"], "tls_key_file": first["server"]}
    files |= {"tls_ca_cert_file": first["ca"], "tls_auth_clients": "no"}
    port = servers.free_port()
    with servers.redis(tls_port=port, **files) as redis:
        said = told(f"redis://localhost:{port}/0", UnreachableError)
        assert said.endswith(": is it running, or does it want rediss://?")
        said = told(f"rediss://localhost:{redis.port}/0", UnreachableError)
        assert said.endswith(": is it running, and does it speak TLS?")
        said = told(f"rediss://localhost:{port}/0?ssl_ca_certs={second['ca']}", UnreachableError)
        assert said.endswith(
            ": correct ssl_ca_certs of `redis`, or the host that its certificate names"
        )
    said = told(f"redis://localhost:{port}/0", UnreachableError)
    assert said.endswith(": is it running?")


def test_an_authority_that_leaves_out_the_use_of_its_key_is_taken(authorities, monkeypatch):
    """Python 3.13 asks for it by default, and many private authorities have none."""
    plain = ssl.create_default_context

    def strict(*arguments, **options):
        context = plain(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    async def version(url):
        store = RedisStateStore(url, "group", "topic", ["click"])
        try:
            return (await store.facts()).version
        finally:
            await store.close()

    monkeypatch.setattr(ssl, "create_default_context", strict)
    first, _ = authorities
    own = str(first["server"])
    with servers.redis_sentinels(replicas=0, sentinels=1, certificate=(own, own)) as watched:
        assert asyncio.run(version(watched.secure_url.replace(own, str(first["ca"]))))
