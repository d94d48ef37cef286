"""What Kafka refuses for good is named with its cure."""

import asyncio
import contextlib
import json
import re
import socket

import pytest
import servers
import service
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from command_line import streameval

from streameval.base.errors import RefusedError, UnreachableError
from streameval.config.settings import Settings
from streameval.kafka import admin
from streameval.kafka.consumer import KafkaEventLog
from streameval.kafka.security import client_arguments

pytestmark = pytest.mark.servers
TURNS = 300


class Nobody:
    """Hears of partitions, and does nothing with them."""

    async def assigned(self, partitions):
        """There are none."""

    async def revoked(self, partitions):
        """There were none."""


async def poll(address, topic, **changes):
    log = KafkaEventLog({"bootstrap_servers": address}, topic, topic, "letters", **changes)
    await log.start(Nobody())
    try:
        for _ in range(TURNS):
            await log.poll(0.1, 100)
    finally:
        await log.close(5)


def forwarded(address, topic, **keys):
    """What `streameval forward` says as it ends."""
    keys |= {"kafka": address, "redis": servers.shared_redis().url, "topic": f"{topic}.to"}
    keys |= {"group": topic, "forward": json.dumps([{"topic": topic, "profile": "segment"}])}
    keys["listen"] = "127.0.0.1:0"
    given = {f"STREAMEVAL_{key.upper()}": value for key, value in keys.items()}
    done = streameval("forward", text=True, **given)
    assert done.returncode == RefusedError.exit_code, done.stderr
    return done.stderr


def test_the_port_of_a_controller():
    """It answers, but not to clients."""
    kafka = servers.shared_kafka()
    listeners = (kafka.folder / "server.properties").read_text()
    (port,) = re.findall(r"^listeners=.*CONTROLLER://127.0.0.1:(\d+)", listeners, re.MULTILINE)
    said = "is that the port of a controller? Name the listener of the brokers"
    with pytest.raises(RefusedError, match=re.escape(said)):
        asyncio.run(admin.cluster({"bootstrap_servers": f"127.0.0.1:{port}"}))


def test_a_session_that_the_brokers_do_not_allow():
    said = "does not take this session_timeout: its brokers have bounds, from group.min"
    with servers.kafka(**{"group.min.session.timeout.ms": 6_000}) as kafka:
        topic = servers.unique()
        for each in (topic, f"{topic}.to"):
            service.create_topic(kafka.port, each, 1)
        with pytest.raises(RefusedError, match=said):
            asyncio.run(poll(kafka.address, topic, session_ms=3_000))
        assert said in forwarded(kafka.address, topic, session_timeout="3s")


def test_a_group_of_another_application():
    kafka, topic = servers.shared_kafka(), servers.unique()
    for each in (topic, f"{topic}.to"):
        service.create_topic(kafka.port, each, 1)
    said = "has members of another application: choose another `group`"

    async def beside(group, ours):
        other = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.address,
            group_id=group,
            partition_assignment_strategy=[StickyPartitionAssignor],
        )
        await other.start()
        try:
            return await ours
        finally:
            await other.stop()

    with pytest.raises(RefusedError, match=f"the group {topic} {said}"):
        asyncio.run(beside(topic, poll(kafka.address, topic)))
    forwarding = asyncio.to_thread(forwarded, kafka.address, topic)
    assert f"the group {topic}.forward {said}" in asyncio.run(
        beside(f"{topic}.forward", forwarding)
    )


def test_a_listener_that_takes_no_password():
    client = {"bootstrap_servers": servers.shared_kafka().address, "sasl_plain_username": "user"}
    client |= {"security_protocol": "SASL_PLAINTEXT", "sasl_plain_password": "word"}
    client["sasl_mechanism"] = "PLAIN"
    with pytest.raises(RefusedError, match="asks nobody for a password: correct kafka_security"):
        asyncio.run(admin.cluster(client))


@contextlib.contextmanager
def silent_port():
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def closed_port():
    """A port where nobody is."""
    return contextlib.nullcontext(servers.free_port())


@pytest.mark.parametrize(
    ("other_port", "why"),
    [
        (closed_port, "does not answer ([Errno"),
        (silent_port, "does not answer (it is silent, or no Kafka)"),
    ],
)
def test_a_broker_with_an_address_of_another_network(other_port, why, caplog):
    """Kafka answers, and names itself by an address that leads nowhere from here."""
    with other_port() as advertised, servers.kafka(advertised_port=advertised) as kafka:
        client = client_arguments(Settings(kafka=kafka.address))
        place = f"the broker at 127.0.0.1:{advertised}, as Kafka at {kafka.address} names it, {why}"
        with pytest.raises(UnreachableError, match=r"advertised\.listeners") as found:
            asyncio.run(admin.cluster(client))
        assert place in str(found.value)

        async def waits_for_it():
            log = KafkaEventLog(client, servers.unique(), "group", "letters")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(log.connect(), 8)

        asyncio.run(waits_for_it())
        assert any("waiting for it" in line and place in line for line in caplog.messages)
