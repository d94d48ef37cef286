"""What reading needs of aiokafka, and where it is used; no server."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

import streameval.kafka
from streameval.base.errors import RefusedError

PRIVATE = re.compile(
    r"(from|import) aiokafka\.(client|cluster|conn|consumer|protocol|record|producer)\b"
    r"|\b(consumer|client|producer|admin)\._[a-z]"
)


@pytest.mark.parametrize("version", ["0.13.0", "0.14.1", "1.0.0"])
def test_another_version_of_aiokafka_is_refused_in_one_line(version, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(RefusedError, match=f"aiokafka {version} is installed, .*: pip install"):
        importlib.reload(streameval.kafka)


def test_the_release_that_is_known_is_the_one_that_is_installed():
    known = f"aiokafka[lz4,snappy,zstd]=={streameval.kafka.AIOKAFKA}"
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert known in tomllib.loads(text)["project"]["dependencies"]


def test_only_one_file_touches_private_parts_of_aiokafka():
    """Ruff's SLF001 holds this for attributes of all names, where no comment says otherwise."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(streameval.__file__).parent.rglob("*.py")
        for line in path.read_text().splitlines()
        if PRIVATE.search(line) and path.name != "aiokafka_internals.py"
    ]
    assert found == []
