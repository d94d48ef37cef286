"""Stray files, odd cells and odd answers that a cold reviewer broke the service with."""

import asyncio
import math
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pyarrow.parquet as pq
import pytest
from evaluating import refused

from streameval.base.errors import InputError, RefusedError, UnreachableError
from streameval.core.outcome import FeedbackOutcome, Outcome
from streameval.files import locations, tables
from streameval.files.locations import MARKER
from streameval.files.outcome_columns import require_rows
from streameval.files.outcome_files import OutcomeFolder, table
from streameval.files.snapshots import USERS
from streameval.files.users_past import last_event
from streameval.stats import off_policy
from streameval.worker.leadership import Leadership

TS = 1_700_000_000_000
HOUR = 3_600_000


def row(latency=5.0, **feedback):
    entry = {"item": 0, "kind": "click", "value": 1.0, "delay": 5, "retract": False} | feedback
    lists = ([1], [1], [TS], [0.5], [0.1], [1.0])
    return Outcome(
        0, "u", "r", (), TS, ["i"], *lists, [FeedbackOutcome(**entry)], latency_ms=latency
    )


def test_what_else_lies_in_a_folder_of_outcome_files_is_left_alone(tmp_path):
    folder = OutcomeFolder(str(tmp_path), {"group": "g"}, {}, ())
    folder.check()
    for name in ("dt=2023-11-14/hour=22", "dt=2023-11-14/tmp", "dt=2023-02-30/hour=01", "dt=x"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("dt=2023-11-14/.DS_Store", "dt=2023-11-15", "dt=2023-11-14/hour=23"):
        (tmp_path / name).write_text("")
    assert folder.hours(TS - HOUR, TS + HOUR) == [TS // HOUR * HOUR]


def test_a_folder_with_a_damaged_owner_is_refused(tmp_path):
    (tmp_path / MARKER).write_bytes(b"")
    with pytest.raises(RefusedError, match="choose another folder"):
        OutcomeFolder(str(tmp_path), {"group": "g"}, {}, ()).check()


@pytest.mark.parametrize("propensity", [1e-110, 1e-160, 1e-300])
def test_a_weight_without_bound_leaves_no_effective_rounds(propensity):
    logged = np.full(3_000, 0.1)
    logged[7] = propensity
    sums = off_policy.WeightSums.of(np.ones(3_000), np.full(3_000, 0.1), logged)
    found = off_policy.estimate(sums)
    assert found.refused is not None
    assert math.isfinite(found.effective)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"value": math.nan}, "column feedback has a value that is not finite"),
        ({"value": None}, "column feedback has a value without a value"),
        ({"delay": None}, "column feedback has a delay without a value"),
        ({"item": None}, "column feedback has a item without a value"),
        ({"latency": math.nan}, "column latency_ms has values that are not a latency"),
        ({"latency": 1e300}, "column latency_ms has values that are not a latency"),
        ({"latency": -1.0}, "column latency_ms has values that are not a latency"),
    ],
)
def test_cells_that_no_worker_writes_are_refused(odd, said):
    require_rows("f", table(0, [row()], ()).to_batches()[0])
    require_rows("f", table(0, [row(latency=None)], ()).to_batches()[0])
    with pytest.raises(InputError, match=said):
        require_rows("f", table(0, [row(**odd)], ()).to_batches()[0])


def test_a_snapshot_without_users_has_no_last_event(tmp_path):
    pq.write_table(USERS.empty_table(), tmp_path / "users.parquet")
    with pq.ParquetWriter(tmp_path / "users.parquet", USERS) as writer:
        writer.write_table(USERS.empty_table())
    assert last_event(tmp_path) is None


def test_a_first_line_that_is_too_long_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.csv").write_text("x" * 200_000 + "\n")
    (tmp_path / "l.csv").write_text("list,item\n")
    assert refused("long.csv", "--labels", "l.csv").startswith("long.csv: line 1: field larger")


def test_a_file_uri_is_a_file_on_disk(tmp_path):
    tables.require_disk([f"file://{tmp_path}/x.csv"])
    with pytest.raises(InputError, match="copy it to a disk"):
        tables.require_disk(["s3://bucket/x.csv"])


def test_an_object_store_that_does_not_answer_is_asked_three_times():
    """By itself pyarrow asks a store that is silent some thirty times, of 3 s each."""
    asked = []

    class Away(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.close_connection = True

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Away) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        uri = f"s3://k:secret@b/x?region=r&scheme=http&endpoint_override={host}"
        with pytest.raises(UnreachableError, match=r"^s3://b/x cannot be used now"):
            locations.size(uri)
        server.shutdown()
    assert len(asked) == 3


class Lease:
    """A lease in a store that answers when it is told to."""

    def __init__(self):
        self.answers, self.released = asyncio.Event(), 0

    async def acquire(self):
        await self.answers.wait()
        return 7

    async def release(self):
        self.released += 1


def test_a_renewal_under_way_does_not_undo_a_step_down():
    async def scenario():
        lease = Lease()
        leadership = Leadership(lease)
        lease.answers.set()
        await leadership.renew(None)
        assert leadership.token == 7
        lease.answers.clear()
        renewing = asyncio.create_task(leadership.renew(None))
        await asyncio.sleep(0)
        await leadership.step_down("stopping")
        lease.answers.set()
        await renewing
        assert leadership.token is None
        assert lease.released == 2

    asyncio.run(scenario())
