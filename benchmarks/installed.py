"""Peers that are there only once `make bench-peers` has got them, and how each peer starts."""

from __future__ import annotations

import functools
import pathlib
import shutil
import subprocess
import sys
from typing import Final

PEERS: Final = pathlib.Path(__file__).parent / "peers"
CACHE: Final = pathlib.Path(__file__).parent.parent / ".cache"
QUIX: Final = "venv-quix/lib/python3*/site-packages/quixstreams-{}.dist-info"
# What each is called, and the file whose name ends in its version.
OPTIONAL: Final = {
    "quix": ("Quix Streams", QUIX),
    "streams": ("Kafka Streams", "peers/streams/kafka-streams-{}.jar"),
    "flink": ("Flink SQL", "peers/flink/flink-clients-{}.jar"),
}
# A heap as small as Flink runs well in: by default it would grow with the machine's memory.
JAVA: Final = ("java", "-XX:+UseSerialGC", "-Xmx2g")


def version(name: str) -> str | None:
    """Return the version of an optional peer, None where it is not installed."""
    _, pattern = OPTIONAL[name]
    before, after = pathlib.Path(pattern).name.split("{}")
    found = sorted(CACHE.glob(pattern.format("[0-9]*")))
    if not found or (name != "quix" and shutil.which("javac") is None):
        return None
    return found[-1].name.removeprefix(before).removesuffix(after)


def program(name: str, folder: str) -> list[str]:
    """Return the command that runs a peer, whose files go into `folder`."""
    if name == "quix":
        return [str(CACHE / "venv-quix/bin/python"), str(PEERS / "quix.py")]
    if name in OPTIONAL:
        return [*JAVA, f"-Djava.io.tmpdir={folder}", "-cp", _compiled(name), name.capitalize()]
    return [sys.executable, str(PEERS / f"{name}.py")]


@functools.cache
def _compiled(name: str) -> str:
    """Compile a peer in Java, and return its class path."""
    classes, jars = CACHE / "peers" / "classes" / name, f"{CACHE}/peers/{name}/*"
    sources = [str(PEERS / f"{kind}.java") for kind in ("Meter", name.capitalize())]
    subprocess.run(["javac", "-d", str(classes), "-cp", jars, *sources], check=True)
    return f"{classes}:{jars}"
