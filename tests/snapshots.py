"""Snapshots written by tests, with the counters of some users."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streameval.files.snapshots import FORMAT, MANIFEST, USERS


class Counters(NamedTuple):
    """A user's counters; `last_ts` in ms."""

    impressions: int
    slates: int
    clicks: int
    last_ts: int


def write_snapshot(folder: Path, users: Mapping[str, Counters]) -> None:
    """Write a snapshot of one partition without windows and open slates."""
    rows = [
        {
            "partition": 0,
            "user": user,
            "offset": 0,
            "impressions": counters.impressions,
            "slates": counters.slates,
            "positives": [("click", counters.clicks)],
            "first_ts": counters.last_ts,
            "last_ts": counters.last_ts,
        }
        for user, counters in users.items()
    ]
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, USERS), folder / "users.parquet")
    for name in ("figures.json", "open.parquet"):
        (folder / name).write_text("{}")
    manifest = {
        "format": FORMAT,
        "fingerprint": "",
        "definition": {},
        "pseudonymous": False,
        "partitions": [],
        "files": {
            path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in folder.iterdir()
        },
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))
