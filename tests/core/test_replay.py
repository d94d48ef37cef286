"""`streameval replay` on files equals the oracle, for every figure, row and user."""

import gzip
import random

import pytest
import streams
from oracle.figures import oracle
from plain_parser import parse_all

from streameval.core.replay import replay

SEEDS = 2000

BROKEN = (
    b"no json",
    b'{"type":"impression"}',
    b'{"type":"impression","ts":-1,"user_id":"u","item_id":"i"}',
    b'{"type":"view","ts":1700000000000,"user_id":"u","item_id":"i"}',
    b'{"type":"feedback","ts":1700000000000,"user_id":"u","item_id":"i","feedback":""}',
    b'{"type":"slate","ts":1700000000000,"user_id":"u","request_id":"r","items":["a","a"]}',
    b"\xff",
    b"[" * 100_000,
)


def near(value):
    """Exact but for rates and standard errors, whose sums of doubles differ by order."""
    if isinstance(value, dict):
        return {
            name: pytest.approx(one, rel=1e-9, abs=1e-12)
            if isinstance(one, float) and (name == "positive_rate" or name.endswith("_stderr"))
            else near(one)
            for name, one in value.items()
        }
    return [near(one) for one in value] if isinstance(value, list) else value


def without_split(document):
    """`unattributed` as one count: its split is a diagnostic, its sum is exact."""
    events = document["events"]
    return document | {"events": events | {"unattributed": sum(events["unattributed"].values())}}


def test_a_file_gives_the_figures_of_the_oracle(seed, tmp_path):
    """With broken lines between the events, cut into two files, one of them compressed."""
    rng = random.Random(f"lines of {seed}")
    definition, events = streams.hostile(seed)
    lines = [streams.to_json(event) for event in events]
    for _ in range(rng.randrange(5)):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(BROKEN))
    cut = rng.randrange(len(lines) + 1)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl.gz"
    first.write_bytes(b"".join(line + b"\n" for line in lines[:cut]))
    second.write_bytes(gzip.compress(b"\n".join(lines[cut:])))
    parsed, reasons = parse_all(lines, None, definition.max_clock_skew)
    at = rng.choice((None, max(event.ts for event in events) + rng.randrange(200_000)))

    found = replay(definition, [str(first), str(second)], lambda _: None, at=at, with_users=True)

    wanted = oracle(definition, parsed, at=at, rejected=reasons)
    assert without_split(found) == near(without_split(wanted))


def test_without_events_there_is_no_watermark_and_no_row(tmp_path):
    definition, _ = streams.hostile(1)
    (tmp_path / "empty").write_bytes(b"\n\n")
    found = replay(definition, [str(tmp_path / "empty")], lambda _: None)
    assert found["watermark"] is None
    assert found["rates"] == found["ranking"] == found["maturity"] == []
