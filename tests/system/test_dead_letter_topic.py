"""The dead-letter topic on real Kafka: made anew while letters are sent, or forbidden."""

import asyncio
import subprocess

import programs
import pytest
import servers
import service
from aiokafka.admin import AIOKafkaAdminClient
from test_security import OTHERS, PLAIN

from streameval.base.errors import RefusedError
from streameval.core.events import Rejection
from streameval.kafka import dead_letters as dead_letters_module
from streameval.kafka.dead_letters import DeadLetters
from streameval.kafka.records import DeadLetter

pytestmark = pytest.mark.servers


def letters(count):
    """Dead letters of `count` keys, which lie in all partitions of a topic."""
    return [
        DeadLetter(0, number, 0, b"u%d" % number, b"no JSON", Rejection("malformed", "no JSON"))
        for number in range(count)
    ]


def test_a_topic_that_is_made_anew_with_fewer_partitions_gets_them_all():
    port, source = servers.shared_kafka().port, servers.unique("anew")
    topic = f"{source}.dead-letter"
    service.create_topic(port, source, 1)
    service.create_topic(port, topic, 3)

    async def scenario():
        client = {"bootstrap_servers": f"127.0.0.1:{port}", "request_timeout_ms": 2_000}
        dead_letters = DeadLetters(client, source, topic)
        assert await dead_letters.write(letters(20)) == 0
        await asyncio.to_thread(service.delete_topic, port, topic)
        writing = asyncio.create_task(dead_letters.write(letters(20)))
        await asyncio.sleep(1)  # they are on their way to partitions that are gone
        await asyncio.to_thread(service.create_topic, port, topic, 1)
        assert await asyncio.wait_for(writing, 60) == 0
        await dead_letters.close(5)

    asyncio.run(scenario())
    found = {headers["offset"] for headers, _, _ in service.dead_letters(port, source)}
    assert found == {str(number) for number in range(20)}


def test_a_controller_that_is_gone_is_not_waited_for(monkeypatch):
    """Metadata names a killed broker for a while, and aiokafka tries to reach it for 40 s."""
    port, source = servers.shared_kafka().port, servers.unique("controller")
    service.create_topic(port, source, 1)
    monkeypatch.setattr(dead_letters_module, "CREATE_SECONDS", 0.5)
    to_controller, asked = AIOKafkaAdminClient._send_to_controller, []

    async def send(client, request):
        asked.append(request)
        return await (asyncio.Future() if len(asked) == 1 else to_controller(client, request))

    monkeypatch.setattr(AIOKafkaAdminClient, "_send_to_controller", send)

    async def scenario():
        dead_letters = DeadLetters(
            {"bootstrap_servers": f"127.0.0.1:{port}"}, source, f"{source}.dead-letter"
        )
        assert await asyncio.wait_for(dead_letters.write(letters(3)), 60) == 0
        await dead_letters.close(5)

    asyncio.run(scenario())
    assert len(asked) == 2
    assert len(service.dead_letters(port, source)) == 3


ACLS = {
    "listener.security.protocol.map": f"{OTHERS},SECURE:SASL_PLAINTEXT",
    "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} required user_worker="right";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""A broker that asks the user `worker` of its secure listener for rights."""


def test_a_topic_that_the_user_may_not_even_see_is_named_with_the_right_it_needs():
    """Kafka lets the user create topics, and says that this one exists."""
    port, topic = servers.free_port(), "forbidden.dead-letter"
    client = {
        "bootstrap_servers": f"localhost:{port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "worker",
        "sasl_plain_password": "right",
    }

    async def scenario():
        dead_letters = DeadLetters(client, "forbidden", topic)
        with pytest.raises(RefusedError, match=f"topic {topic}: grant WRITE on it to this user"):
            await asyncio.wait_for(dead_letters.write(letters(1)), 30)
        await dead_letters.close(5)

    with servers.kafka(secure_port=port, **ACLS) as kafka:
        for name in ("forbidden", topic):
            service.create_topic(kafka.port, name, 1)
        allow(kafka, "--operation", "Describe", "--topic", "forbidden")
        allow(kafka, "--operation", "Create", "--cluster")
        asyncio.run(scenario())


def allow(kafka, *rights):
    """Give the user of the secure listener rights, as docs/operations.md does."""
    command = [programs.need("java"), "-cp", f"{programs.KAFKA_LIBS}/*"]
    command += ["org.apache.kafka.tools.AclCommand"]
    command += ["--bootstrap-server", kafka.address, "--add", "--allow-principal", "User:worker"]
    subprocess.run([*command, *rights], check=True, capture_output=True)
