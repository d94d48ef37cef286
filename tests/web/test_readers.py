"""Who may read the pages, and that many readers starve neither each other nor the probes."""

import asyncio
import socket
import types

import aiohttp
import pytest
from aiohttp import web

from streameval.web import connections
from streameval.web.connections import Connections, Hosts, Readers
from streameval.web.pages import Pages

OURS = (
    *("localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1", "127.0.0.1:8080", "[::1]:80"),
    *("[::ffff:10.0.0.1]", "10.1.2.3:8080", "192.168.0.9", "metrics.example", "a.metrics.example"),
    *("Worker-7.Example.org.:1", "deep.in.below.example", "below.example:9"),
)
OTHERS = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost"),
    *("metrics.example.evil", "xmetrics.example", "xbelow.example", "localhost@evil.example"),
    *("evil.example@localhost", "[::1].evil.example", "::1", "evil.example:8080", "", " ", "::"),
    *("localhost/evil.example", "localhost evil", "0x7f.1", "2130706433", "[localhost]"),
)
NAMES = (".metrics.example", "worker-7.example.org", ".below.example")


@pytest.mark.parametrize("host", OURS)
def test_addresses_and_our_own_names_are_let_through(host):
    assert asyncio.run(Hosts(NAMES).know([host]))


@pytest.mark.parametrize("host", OTHERS)
def test_other_names_are_not(host):
    assert not asyncio.run(Hosts(NAMES).know([host]))


def test_a_request_names_one_host_or_none():
    hosts = Hosts()
    assert asyncio.run(hosts.know([])), "a browser always names one"
    assert not asyncio.run(hosts.know(["localhost", "evil.example"]))
    assert not asyncio.run(hosts.know(["localhost", "localhost"]))


def test_all_names_may_be_let_through():
    assert asyncio.run(Hosts(["*"]).know(["anything.example"]))


@pytest.mark.parametrize(
    ("host", "shown", "reached"),
    [
        ("127.0.0.1", "127.0.0.1", ["127.0.0.1"]),
        ("::1", "[::1]", ["::1"]),
        ("::", "[::]", ["::1", "127.0.0.1"]),
    ],
)
def test_an_address_of_either_family_can_be_listened_at(host, shown, reached):
    if ":" in host:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
    with connections.bind(host, 0) as listening:
        port = listening.getsockname()[1]
        assert connections.url_of(listening) == f"http://{shown}:{port}"
        for each in reached:
            socket.create_connection((each, port), timeout=5).close()


class Described:
    status = types.SimpleNamespace(unready=lambda: None, waiting=lambda: "")
    described_at = float("inf")
    stopping = False


def served(scenario, *, most=8, readers=2, write=None, monkeypatch=None):
    """Run a scenario with the address of a site whose page is `write`'s."""

    async def run():
        app = web.Application()
        counted = Readers(readers)
        app.middlewares.append(counted.count)
        Pages(Described()).add_to(app)
        if write is not None:
            monkeypatch.setattr(
                "streameval.web.exposition.writer", lambda accept: (write, f"text/{accept}")
            )
        runner = web.AppRunner(app)
        await runner.setup()
        factory = Connections(runner.server, 5.0, most, counted)
        server = await factory.listen(listening := socket.create_server(("127.0.0.1", 0)))
        try:
            return await scenario(listening.getsockname()[1])
        finally:
            server.close()
            await runner.cleanup()

    return asyncio.run(run())


async def get(port, path, host="localhost", accept="plain"):
    headers = {"Host": host, "Accept": accept}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as answer,
    ):
        return answer.status, await answer.read(), answer.headers


def test_a_page_of_another_site_reads_nothing_and_probes_are_answered():
    async def scenario(port):
        for path in ("/", "/metrics", "/static/page.js", "/api/v1/figures", "/nothing"):
            status, text, headers = await get(port, path, "evil.example")
            assert (status, headers["Server"]) == (421, "streameval"), path
            assert b"allowed_hosts" in text
        assert (await get(port, "/healthz", "evil.example"))[0] == 200
        assert (await get(port, "/readyz", "evil.example"))[0] == 200

    served(scenario)


def test_a_page_is_written_once_for_all_scrapes_of_a_tick(monkeypatch):
    written = []

    def write(_):
        written.append(Described.described_at)
        return b"page"

    monkeypatch.setattr(Described, "described_at", 1.0)

    async def scenario(port):
        answers = await asyncio.gather(*(get(port, "/metrics") for _ in range(20)))
        answers += [await get(port, "/metrics", accept="other")]
        Described.described_at = 2.0
        return [*answers, await get(port, "/metrics")]

    answers = served(scenario, most=40, readers=40, write=write, monkeypatch=monkeypatch)
    assert {answer[:2] for answer in answers} == {(200, b"page")}
    assert written == [1.0, 1.0, 2.0], "by format and by tick"


def test_readers_beyond_the_bound_are_told_to_come_again_and_probes_are_served(monkeypatch):
    release, begun = asyncio.Event(), asyncio.Semaphore(0)
    monkeypatch.setattr(connections, "READ_SECONDS", 60.0)

    async def slow(self, _request):
        begun.release()
        await release.wait()
        return web.Response(text="page")

    monkeypatch.setattr(Pages, "metrics", slow)

    async def scenario(port):
        reading = [asyncio.create_task(get(port, "/metrics")) for _ in range(2)]
        for _ in reading:
            await begun.acquire()
        status, text, headers = await get(port, "/metrics")
        assert status == 503
        assert text == b"too many readers at a time: ask again\n"
        assert headers["Retry-After"] == "1"
        assert (await get(port, "/healthz"))[0] == 200
        monkeypatch.setattr(connections, "READ_SECONDS", 0.0)
        third = asyncio.create_task(get(port, "/metrics"))
        await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        release.set()
        assert (await third)[0] == 200
        ended = await asyncio.gather(*reading, return_exceptions=True)
        assert sum(isinstance(each, aiohttp.ClientError) for each in ended) == 1

    served(scenario)
