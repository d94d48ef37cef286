"""The image: built from deploy/Dockerfile, and a worker in it counts a stream on real servers.

There is no Docker here. buildah builds in a chroot, on a base that debootstrap makes under the name
with which the Dockerfile begins. Both need root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
import servers
import service

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
BASE = "python3,python3-venv,python3-pip,ca-certificates"
# Most megabytes of what the Dockerfile installs.
MOST = 350

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a chroot needs root"),
]


class Image:
    """Images and containers in a folder of their own; `container` is made from the built one."""

    def __init__(self, folder: Path) -> None:
        self._program = [
            programs.need("buildah"),
            *("--root", str(folder / "store"), "--runroot", str(folder / "run")),
        ]
        self._environment = os.environ | {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
        base = folder / "base"
        called(
            programs.need("debootstrap"), "--variant=minbase", f"--include={BASE}", "bookworm", base
        )
        (base / "usr/bin/python").symlink_to("python3")
        (name,) = set(re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE))
        empty = self("from", "scratch")
        self("add", "--quiet", empty, str(base), "/")
        self("commit", "--quiet", "--rm", empty, f"docker.io/library/{name}")
        shutil.rmtree(base)
        # The certificates of this machine, with which it reaches its registries.
        certificates = "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"
        known = [f"--env={key}" for key in ("PIP_CERT", "NODE_EXTRA_CA_CERTS") if key in os.environ]
        how = ["--layers=false", "--pull-never", "--format=docker", certificates, *known]
        self("bud", *how, f"--file={DOCKERFILE}", "--tag=streameval", str(ROOT))
        self.container = self("from", "--pull-never", "localhost/streameval")

    def command(self, *arguments: str) -> list[str]:
        return [*self._program, *arguments]

    def __call__(self, *arguments: str) -> str:
        return called(*self.command(*arguments), env=self._environment)

    def run(self, *arguments: str) -> str:
        """What a command in a container prints."""
        return self("run", "--user=10001", self.container, "--", *arguments)

    def start(self, log: Path, *arguments: str) -> subprocess.Popen:
        command = self.command("run", "--user=10001", self.container, "--", *arguments)
        with log.open("wb") as file:
            return subprocess.Popen(command, env=self._environment, stdout=file, stderr=file)


def called(*command: object, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*map(str, command)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    made = Image(folder)
    yield made
    made("rm", "--all")
    shutil.rmtree(folder, ignore_errors=True)


def test_the_image_says_what_it_runs_and_as_whom(image):
    about = json.loads(image("inspect", "--type=image", "localhost/streameval"))["Docker"]["config"]
    assert (about["Entrypoint"], about["Cmd"]) == (["streameval"], ["worker"])
    assert about["User"] == "10001"
    assert "/healthz" in " ".join(about["Healthcheck"]["Test"])


def test_nothing_but_data_and_temporary_folders_can_be_written(image):
    """So the root may be read-only."""
    found = image.run("sh", "-c", "find / -xdev -type d -writable 2>/dev/null || true").split()
    mine = ("/data", "/tmp", "/var/tmp", "/run", "/dev", "/proc", "/sys")
    assert [path for path in found if not path.startswith(mine)] == []


def test_the_image_has_its_runbook_and_no_more_than_it_needs(image):
    script = "from streameval.web.runbook import page; print('id=\"streamevalabsent\"' in page())"
    assert image.run("python", "-c", script) == "True"
    assert int(image.run("du", "-sm", "/opt/streameval").split()[0]) <= MOST


def test_a_worker_in_the_image_counts_a_stream_and_stops(image, tmp_path):
    kafka = servers.shared_kafka()
    topic, port = servers.unique("image"), servers.free_port()
    service.create_topic(kafka.port, topic, 2)
    with servers.redis() as redis:
        settings = {
            "KAFKA": kafka.address,
            "REDIS": redis.url,
            "TOPIC": topic,
            "LISTEN": f"127.0.0.1:{port}",
        }
        given = [f"STREAMEVAL_{key}={value}" for key, value in settings.items()]
        log = tmp_path / "log.txt"
        running = image.start(log, "env", *given, "streameval", "worker")
        try:
            service.wait_for(lambda: "assigned partitions" in log.read_text(), 60, "it reads")
            event = {"type": "slate", "user_id": "u", "request_id": "r", "items": ["a", "b"]}
            event["ts"] = int(time.time() * 1000)
            service.produce(kafka.port, topic, [(b"u", json.dumps(event).encode())])
            counted = 'streameval_events_total{event="slate"} 1.0'
            service.wait_for(lambda: counted in metrics(port), 60, "it counts")
            worker = worker_below(running.pid)
            assert worker, "to send a signal to 0 would end whoever runs the tests"
            os.kill(worker, signal.SIGTERM)
            assert running.wait(30) == 0, log.read_text()
        finally:
            running.kill()


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        return page.read().decode()


def worker_below(pid: int) -> int:
    """The process of the worker, or 0: the innermost, as buildah's own have its command too."""
    for thread in Path(f"/proc/{pid}/task").iterdir():  # any thread of Go may have started one
        for child in (thread / "children").read_text().split():
            if found := worker_below(int(child)):
                return found
            if b"streameval\x00worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return 0
