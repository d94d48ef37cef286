"""The service runs where the packages that read files are not there."""

import shutil
from pathlib import Path

import pytest
import servers
from scene import Scene

import streameval

pytestmark = pytest.mark.servers
LEFT_OUT = ("backfill", "checks", "demo", "evaluation", "notebook")
PROGRAM = """
import sys
sys.path.insert(0, {!r})
import streameval
print(streameval.__file__, flush=True)
from streameval.__main__ import main
main()
"""


def test_a_worker_counts_writes_and_stops_without_what_reads_files(tmp_path):
    package = Path(streameval.__file__).parent
    shutil.copytree(
        package,
        tmp_path / "streameval",
        ignore=lambda folder, _: LEFT_OUT if Path(folder) == package else (),
    )
    folders = {name: str(tmp_path / name) for name in ("outcomes", "snapshots")}
    with servers.redis(aof="always") as store, Scene(servers.shared_kafka(), store) as it:
        worker = it.worker(program=("-c", PROGRAM.format(str(tmp_path))), **folders)
        it.produce(3_000)
        it.verify()
        assert worker.logged().startswith(f"{tmp_path}/streameval/")
        assert "Traceback" not in worker.logged()
    assert list((tmp_path / "outcomes").rglob("*.parquet"))
