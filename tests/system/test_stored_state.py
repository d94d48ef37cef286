"""State that another version wrote: it is read to the same figures, or refused with a reason.

`golden/state-N.json` is what format N of the checkpoint looks like: the records of a log, and what
the store held of it in the middle. A change of the layout fails here until it has a new number;
with STREAMEVAL_GOLDEN=1 the test of the present one writes its file.
"""

import base64
import itertools
import json
import os
import pathlib
import random
import zlib

import comparison
import cramjam
import msgspec
import pytest
import redis as redis_client
import servers
import service
from comparison import compare_users, expected
from default_events import decode_batch
from oracle.figures import oracle
from scene import Scene
from test_partition_properties import Counters, assert_same
from traffic import traffic

from streameval.base.errors import UnusableStateError
from streameval.core import fingerprint as fingerprint_module
from streameval.core.checkpoint import FORMAT, checkpoint, restore
from streameval.core.definition import Definition
from streameval.core.fingerprint import fingerprint
from streameval.core.partition import Partition

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
RECORDS = 400


def decoded(lines):
    events, rejected = decode_batch([line.encode() for line in lines], None, 60_000)
    reasons = {}
    for _, rejection in rejected:
        reasons[rejection.reason] = reasons.get(rejection.reason, 0) + 1
    return events, reasons


def applied(state, lines):
    events, reasons = decoded(lines)
    state.apply(events)
    for reason, count in reasons.items():
        for _ in range(count):
            state.reject(reason)
    return state.flush()


def write_golden():
    """Four checkpoints, with slates that are closed and panes that are final, and the log."""
    lines = [
        value.decode()
        for _, value in itertools.islice(traffic(1, 2 * RECORDS, step=120_000), 2 * RECORDS)
        if value is not None and value.isascii()
    ][:RECORDS]
    state, chunks, quarter = Partition(Definition(), journal=True), {}, RECORDS // 8
    for number in range(4):
        applied(state, lines[number * quarter : (number + 1) * quarter])
        saved = checkpoint(state, f"c{number}")
        chunks |= saved.chunks
        chunks = {name: chunks[name] for name in saved.keep}
    document = {
        "log": lines,
        "offset": 4 * quarter,
        "header": base64.b64encode(saved.header).decode(),
        "chunks": {name: base64.b64encode(chunk).decode() for name, chunk in chunks.items()},
    }
    (GOLDEN / f"state-{FORMAT}.json").write_text(json.dumps(document, indent=1) + "\n")


def golden(number):
    return json.loads((GOLDEN / f"state-{number}.json").read_text())


def restored(stored):
    chunks = {name: base64.b64decode(chunk) for name, chunk in stored["chunks"].items()}
    return restore(Definition(), base64.b64decode(stored["header"]), chunks)


def test_the_present_format_is_read_as_it_was_written():
    """Restored, and fed the rest of the log: the figures of the whole log.

    STREAMEVAL_GOLDEN=1 writes it anew.
    """
    if os.environ.get("STREAMEVAL_GOLDEN"):
        write_golden()
    stored = golden(FORMAT)
    state = restored(stored)
    applied(state, stored["log"][stored["offset"] :])
    events, reasons = decoded(stored["log"])
    users = Counters(Definition().kinds)
    whole = Partition(Definition())
    users.add(applied(whole, stored["log"]))
    wanted = oracle(Definition(), events, rejected=reasons)
    assert wanted["rates"] and wanted["ranking"] and len(stored["chunks"]) > 2
    assert_same(state.document(None, users.users), wanted)


def sealed(value):
    packed = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(value)))
    return zlib.crc32(packed).to_bytes(4, "little") + packed


def of_format(header, number):
    """A header as it is, but for the number of its format."""
    fields = msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(header[4:])))
    return sealed([number, *fields[1:]])


def of_another_catalogue(fields):
    """What a version with one metric less would have stored."""
    header = msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(fields[b"header"][4:])))
    header[1]["metrics"].pop()
    definition = json.dumps(header[1], sort_keys=True)
    return {"header": sealed(header), "fingerprint": "another", "definition": definition}


def of_another_layout(header):
    return sealed({"format": FORMAT + 1})


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_and_the_cure_named(number):
    stored = golden(FORMAT)
    header = of_format(base64.b64decode(stored["header"]), number)
    with pytest.raises(UnusableStateError, match=f"has format {number},.*--reset-windows"):
        restored(stored | {"header": base64.b64encode(header).decode()})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "RANKING",
            fingerprint_module.RANKING[:-1],
            rf"metrics was \['precision', .*'{fingerprint_module.RANKING[-2].name}'\] and is",
        ),
        (
            "AGGREGATES",
            fingerprint_module.AGGREGATES[:-1],
            rf"aggregates was \['counts', .*'{fingerprint_module.AGGREGATES[-2].name}'\] and is",
        ),
        ("CLUSTERS", 128, "clusters was 128 and is 256"),
        ("NANO", 1_000, "score_scale was 1000 and is 1000000000"),
        ("MAX_ITEMS", 500, "max_items was 500 and is 1000"),
    ],
)
def test_state_of_another_catalogue_or_bound_is_refused_and_says_what_changed(
    monkeypatch, name, value, said
):
    """Columns that do not fit ended the worker in the middle of a batch."""
    ours = fingerprint(Definition())
    with monkeypatch.context() as another:
        another.setattr(fingerprint_module, name, value)
        assert fingerprint(Definition()) != ours
        saved = checkpoint(Partition(Definition(), journal=True), "c")
    reason = f"another version of streameval: {said}.*Run that version, or .*--reset-windows"
    with pytest.raises(UnusableStateError, match=reason):
        restore(Definition(), saved.header, saved.chunks)


def test_another_configuration_is_refused_and_says_what_changed():
    saved = checkpoint(Partition(Definition(ks=(3,)), journal=True), "c")
    reason = r"another configuration: ks was \[3\] and is \[5, 10\]\. Set it back"
    with pytest.raises(UnusableStateError, match=reason):
        restore(Definition(), saved.header, saved.chunks)


def spoiled(data):
    """`data` with one changed bit, here and there; cut off; empty; and other bytes altogether."""
    rng = random.Random(len(data))
    for at in range(0, len(data), max(1, len(data) // 100)):
        yield data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    yield from (data[:-1], b"", sealed([])[4:])


@pytest.mark.parametrize("what", ["header", "slates", "panes"])
def test_what_was_changed_in_the_store_is_refused_with_a_cure_and_never_counted(what):
    stored = golden(FORMAT)
    if what == "header":
        place, name = stored, "header"
    else:
        place = stored["chunks"]
        name = next(name for name in place if what in name)
    for spoilt in spoiled(base64.b64decode(place[name])):
        place[name] = base64.b64encode(spoilt).decode()
        with pytest.raises(UnusableStateError, match=r"damaged.*--reset-windows"):
            restored(stored)
    del place[name]
    if what != "header":
        with pytest.raises(UnusableStateError, match=rf"chunk {name} .*damaged.*--reset-windows"):
            restored(stored)


# --- on real servers -----------------------------------------------------------------------------


@pytest.mark.servers
def test_a_worker_refuses_state_of_another_version_in_one_line_and_can_begin_anew():
    """Exit code 2, nothing changed in Redis; `--reset-windows` goes on with the counters."""
    with servers.redis() as store, Scene(servers.shared_kafka(), store, partitions=1) as it:
        worker = it.worker()
        it.produce(1_000)
        it.read_all()
        assert worker.stop() == 0
        key = f"streameval:{{test:{it.topic}:0}}:partition"
        with redis_client.Redis.from_url(store.url) as client:
            fields = client.hgetall(key)
            header = fields[b"header"]
            for strange, reason in (
                (
                    {"header": of_format(header, FORMAT + 1)},
                    f"has format {FORMAT + 1}, this version reads",
                ),
                ({"header": of_another_layout(header)}, "cannot be read by this version"),
                (
                    {"header": header[:-1]},
                    "header of the stored checkpoint is damaged, or another version",
                ),
                (of_another_catalogue(fields), "another version of streameval: metrics was ["),
            ):
                client.hset(key, mapping=fields | strange)
                before, said = client.hgetall(key), len(worker.logged())
                assert worker.start().process.wait(30) == 2
                (line,) = [line for line in worker.logged()[said:].splitlines() if reason in line]
                assert "`worker --reset-windows`" in line
                assert client.hgetall(key) == before
        at = it.committed()
        worker.start("--reset-windows")
        it.produce(1_000)
        it.read_all()
        log, _ = service.read_log(it.kafka.port, it.topic, 1)
        worker.stop()
        compare_users(store.url, it.topic, users_of_two_halves(worker.definition, log[0], at))


@pytest.mark.servers
def test_windows_that_start_anew_do_so_once_however_partitions_move():
    """Two workers with `--reset-windows`: what one has begun, the other goes on with."""
    with servers.redis() as store, Scene(servers.shared_kafka(), store, partitions=2) as it:
        old = it.worker()
        it.produce(1_000)
        it.read_all()
        assert old.stop() == 0
        it.settings |= {"ks": [3]}
        at = service.stored_offsets(store.url, it.topic, 2)
        first = it.worker(arguments=["--reset-windows"])
        it.produce(1_000)
        it.read_all()
        second = it.worker(arguments=["--reset-windows"])
        service.wait_for(lambda: "assigned partitions" in second.logged(), 20, "they share")
        it.produce(500)
        it.read_all()
        assert first.stop() == 0
        log, _ = service.read_log(it.kafka.port, it.topic, 2)
        since = {
            number: [record for record in records if record[0] >= int(at[number])]
            for number, records in log.items()
        }
        service.wait_for(lambda: comparison.shown([second], log), 30, "all is restored")
        _, figures = comparison.compare_pages([second], second.definition, since)
        assert figures > 50
        anew = [f"partition {number}: its windows start anew" for number in range(2)]
        assert [first.logged().count(line) for line in anew] == [1, 1]
        assert "anew" not in second.logged()


def users_of_two_halves(definition, records, at):
    """Counters go on, windows begin anew: each half of the log by itself, added up."""
    halves = [
        {0: [record for record in records if record[0] < at]},
        {0: [record for record in records if record[0] >= at]},
    ]
    first, second = (expected(definition, half)[0]["users"] for half in halves)
    users = dict(first)
    for user, counters in second.items():
        users[user] = added(users[user], counters) if user in users else counters
    return {0: {"users": users}}


def added(one, other):
    return {
        "impressions": one["impressions"] + other["impressions"],
        "slates": one["slates"] + other["slates"],
        "positives": {k: n + other["positives"][k] for k, n in one["positives"].items()},
        "first_ts": min(one["first_ts"], other["first_ts"]),
        "last_ts": max(one["last_ts"], other["last_ts"]),
    }
