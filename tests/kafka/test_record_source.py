"""What reading needs of aiokafka, and where it is used; no server."""

import asyncio
import importlib.metadata
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaConsumer

import streameval.kafka
from streameval.base.errors import RefusedError
from streameval.kafka import aiokafka_internals
from streameval.kafka.record_source import RecordSource

PRIVATE = re.compile(
    r"(from|import) aiokafka\.(client|cluster|conn|consumer|protocol|record|producer)\b"
    r"|\b(consumer|client|producer|admin)\._[a-z]"
)


@pytest.mark.parametrize("version", ["0.13.0", "0.15.0", "1.0.0"])
def test_another_version_of_aiokafka_is_refused_in_one_line(version, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(RefusedError, match=f"aiokafka {version} is installed, .*: pip install"):
        importlib.reload(streameval.kafka)


def test_a_release_that_lacks_a_part_is_refused_in_one_line():
    with pytest.raises(RefusedError, match=r"lacks .* \(_client.cluster._bootstrap_brokers\): pip"):
        RecordSource(SimpleNamespace(_client=SimpleNamespace()))


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (aiokafka_internals.PartitionRecords, "_contains_abort_marker"),
        (aiokafka_internals.PartitionRecords, "__init__"),
    ],
)
def test_a_part_that_another_version_may_lack_is_found_lacking(owner, name, monkeypatch):
    async def scenario():
        consumer = started()
        assert aiokafka_internals.lacking(consumer) == ""
        if name == "__init__":
            monkeypatch.setattr(owner, name, object.__init__)
        else:
            monkeypatch.delattr(owner, name)
        assert aiokafka_internals.lacking(consumer)

    asyncio.run(scenario())


def started():
    """A consumer as far as its attributes go, without a server."""
    consumer = AIOKafkaConsumer()
    consumer._fetcher = SimpleNamespace(
        _client=None,
        _fetch_max_bytes=1,
        _fetch_task=None,
        _get_actions_per_node=None,
        _max_partition_fetch_bytes=1,
        _records={},
    )
    consumer._closed = True
    return consumer


def test_only_one_file_touches_private_parts_of_aiokafka():
    """Ruff's SLF001 holds this for attributes of all names, where no comment says otherwise."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(streameval.__file__).parent.rglob("*.py")
        for line in path.read_text().splitlines()
        if PRIVATE.search(line) and path.name != "aiokafka_internals.py"
    ]
    assert found == []
