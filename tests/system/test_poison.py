"""Poison pills in the middle of a stream, on real servers: every row of hostile input.

Each is counted by its reason on `/metrics` and stands in the dead-letter topic with its headers;
everything else is counted as if the pills were not there. A batch that is too large to unpack is
named, until it is skipped.
"""

import json
import os
import pathlib
from collections import Counter

import comparison
import dying_worker
import pytest
import redis as redis_client
import servers
import service
from scene import Scene
from traffic import START

pytestmark = pytest.mark.servers

DYING_WORKER = pathlib.Path(dying_worker.__file__).read_text()

NOW = START + 3_600_000  # when the scene's traffic begins


def event(**changes):
    plain = {"type": "impression", "ts": NOW, "user_id": "u1", "item_id": "i1"} | changes
    return json.dumps(plain, separators=(",", ":")).encode()


def raw(text):
    """An impression whose JSON has `text` in the place of its position."""
    return event(position=0).replace(b'"position":0', b'"position":' + text)


PILLS = {
    "tombstone": (None, "malformed"),
    "empty": (b"", "malformed"),
    "not JSON": (b"\x00\x01\x02", "malformed"),
    "cut off": (event()[:-9], "malformed"),
    "two documents": (event() + event(), "malformed"),
    "a byte order mark": (b"\xef\xbb\xbf" + event(), "malformed"),
    "NaN": (raw(b"NaN"), "malformed"),
    "Infinity": (raw(b"Infinity"), "malformed"),
    "invalid UTF-8": (event(user_id="u").replace(b'"u"', b'"\xff"'), "malformed"),
    "nested 500,000 deep": (raw(b"[" * 500_000 + b"]" * 500_000), "malformed"),
    "nested deep where nobody looks": (
        event(extra=0).replace(b"0}", b'{"a":' * 50_000 + b"1" + b"}" * 50_001),
        "malformed",
    ),
    "a list": (b"[1,2,3]", "invalid"),
    "null": (b"null", "invalid"),
    "no type": (b"{}", "invalid"),
    "an unknown type": (event(type="view"), "invalid"),
    "1e400": (event(propensity=0).replace(b'"propensity":0', b'"propensity":1e400'), None),
    "10^40 for a position": (raw(b"1" + b"0" * 40), "invalid"),
    "10^40 for a time": (event(ts=10**40), "invalid"),
    "true for a position": (raw(b"true"), "invalid"),
    "text for a position": (raw(b'"3"'), "invalid"),
    "position 0": (raw(b"0"), "invalid"),
    "position 1,001": (raw(b"1001"), "invalid"),
    "a negative time": (event(ts=-1), "invalid"),
    "the year 2200": (event(ts=7_258_118_400_000), "invalid"),
    "ten years ahead": (event(ts=2_110_000_000_000), "future"),
    "NUL in an id": (event(item_id="i\0"), "invalid"),
    "a newline in an id": (event(user_id="u\n1"), "invalid"),
    "a lone surrogate in an id": (
        event(user_id="u").replace(b'"u"', b'"\\ud800"'),
        None,
    ),
    "an id of 257 characters": (event(item_id="i" * 257), "invalid"),
    "an id of 1 MB": (event(item_id="i" * 1_000_000), "invalid"),
    "more than 1 MiB": (event(extra="x" * (1 << 20)), "too_large"),
    "an item twice": (event(type="slate", request_id="r", items=["a", "a"]), "invalid"),
    "no items": (event(type="slate", request_id="r", items=None), "invalid"),
    "1,001 items": (event(type="slate", request_id="r", items=[*map(str, range(1001))]), "invalid"),
    "propensity 0": (event(propensity=0), "invalid"),
    "a variant of 65 characters": (event(variant="v" * 65), "invalid"),
}
HARMLESS = {
    "duplicate keys": event(item_id="harmless").replace(b'"ts"', b'"user_id":"other","ts"'),
    "quotes in an id": event(user_id="u1", item_id="\"'\\"),
    "labels to escape": event(item_id="i2", variant='A"} 1\\'),
}


def test_poison_is_counted_buried_and_harms_nothing_else():
    """By reason on the page, with headers in the dead-letter topic; all else equals the oracle."""
    with (
        servers.redis(aof="always") as store,
        Scene(servers.shared_kafka(), store, topic_config={"max.message.bytes": "4194304"}) as it,
    ):
        worker = it.worker()
        good = it.traffic(3_000)
        pills = [(b"u1", value) for value in HARMLESS.values()]  # first, so as not to be late
        pills += [(b"u1", value) for value, _ in PILLS.values()]
        step = len(good) // (len(pills) + 1)
        records = [
            record
            for number, pill in enumerate(pills)
            for record in (*good[number * step : (number + 1) * step], pill)
        ]
        records += good[len(pills) * step :]
        service.produce(it.kafka.port, it.topic, records, max_request_size=4 << 20)
        log, ends = service.read_log(it.kafka.port, it.topic, it.partitions)
        service.wait_until_read(it.redis.url, it.topic, ends)

        wanted = comparison.rejections(worker.definition, log)
        assert_reasons(worker, log, wanted)
        counted = dict.fromkeys(("malformed", "invalid", "too_large", "future", "late"), 0)
        counted |= Counter(wanted.values())
        service.wait_for(
            lambda: (
                {name: it.metric("events_rejected_total", reason=name) for name in counted}
                == counted
            ),
            10,
            "rejections are counted by reason",
        )
        assert it.metric("dead_letters_total") == len(wanted)
        assert_letters(it, log, wanted)
        service.wait_for(lambda: "records rejected: " in worker.logged(), 10, "it is told")
        it.verify()


def assert_reasons(worker, log, wanted):
    """Each pill is rejected for the reason it should be; what only looks odd is accepted."""
    values = {
        value: wanted.get((number, offset))
        for number, records in log.items()
        for offset, _, _, value in records
    }
    for name, (value, reason) in PILLS.items():
        allowed = {reason} if reason else {"malformed", "invalid"}  # either says enough
        assert values[value] in allowed, name
    for name, value in HARMLESS.items():
        assert values[value] is None, name


def assert_letters(it, log, wanted):
    """Each letter has its record's bytes (capped) and says why it was rejected and where it was."""
    records = {
        (number, offset): (str(timestamp), key, value)
        for number, kept in log.items()
        for offset, timestamp, key, value in kept
    }
    letters = service.dead_letters(it.kafka.port, it.topic)
    assert len(letters) == len(wanted), "nothing failed, so none came twice"
    for headers, key, value in letters:
        place = int(headers["partition"]), int(headers["offset"])
        assert headers["reason"] == wanted[place]
        assert headers["topic"] == it.topic
        assert headers["detail"]
        timestamp, its_key, its_value = records[place]
        assert (headers["timestamp"], key) == (timestamp, its_key)
        assert value == (its_value or b"")[: len(value)]
        assert len(value) >= min(1_000, len(its_value or b"")), "capped, not cut to nothing"


# The smallest budget: a batch may have 14 MiB of it, unpacked.
BUDGET = 32 << 20
LARGEST = BUDGET // 32 * 14


def test_a_batch_too_large_to_unpack_is_named_harms_nothing_else_and_can_be_skipped():
    """Some KB that would be 28 MiB: no memory is taken, also after a restart; other partitions
    go on, and when it is deleted, so does this one."""
    settings = {"read_memory": BUDGET}
    with (
        servers.redis() as store,
        Scene(servers.shared_kafka(), store, partitions=2, settings=settings) as it,
    ):
        worker = it.worker()
        it.produce(500)
        it.read_all()
        it.produce(500)
        before, ends = service.read_log(it.kafka.port, it.topic, 2)
        service.produce_large(it.kafka.port, it.topic, bytes(2 * LARGEST))
        usual = service.peak(worker)
        it.produce(500)
        named = f"the batch at offsets {ends[0]} to {ends[0]} (damaged, or larger than"
        service.wait_for(lambda: f"partition 0: {named}" in worker.logged(), 20, "it is named")
        assert service.peak(worker) - usual < BUDGET
        ready = f"ok, but partition 0 waits before {named}"
        service.wait_for(lambda: worker.page("/readyz").startswith(ready), 20, "/readyz names it")
        assert it.metric("batch_unreadable", partition="0") == 1
        assert it.metric("batch_unreadable_offset", partition="0") == ends[0]
        assert it.metric("batch_unreadable", partition="1") == 0
        assert worker.stop() == 0
        worker.start()
        service.wait_for(lambda: worker.logged().count(named) > 1, 20, "it is named again")
        with redis_client.Redis.from_url(store.url) as client:
            read = [
                int(client.hget(f"streameval:{{test:{it.topic}:{number}}}:partition", "offset"))
                for number in range(2)
            ]
        assert read[0] == ends[0], "all before it is counted"
        service.truncate(it.kafka.port, it.topic, ends[0] + 1)
        after, ends = service.read_log(it.kafka.port, it.topic, 2)
        service.wait_until_read(it.redis.url, it.topic, ends)
        assert read[1] == ends[1], "the other partition went on"
        assert it.metric("events_lost_total") == 1
        service.wait_for(lambda: worker.page("/readyz") == "ok\n", 20, "it waits no longer")
        assert it.metric("batch_unreadable", partition="0") == 0
        it.verify({0: before[0] + after[0], 1: after[1]})


def test_many_large_batches_take_no_more_memory_than_one():
    """Twelve of 12 MiB, of some KB each, in two partitions: all at once would be 144 MiB."""
    settings = {"read_memory": BUDGET}
    with (
        servers.redis() as store,
        Scene(servers.shared_kafka(), store, partitions=2, settings=settings) as it,
    ):
        worker = it.worker()
        it.produce(500)
        it.read_all()
        usual = service.peak(worker)
        for number in range(12):
            service.produce_large(
                it.kafka.port, it.topic, bytes(LARGEST - (2 << 20)), partition=number % 2
            )
        it.read_all()
        taken = service.peak(worker) - usual
        print(f"12 batches of {LARGEST - (2 << 20) >> 20} MiB took {taken >> 20} MiB")
        assert taken < BUDGET
        assert it.metric("events_rejected_total", reason="too_large") == 12
        assert worker.stop() == 0
        worker.start()  # the last record counted is known again, though nobody keeps its value
        it.produce(500)
        it.read_all()
        with redis_client.Redis.from_url(store.url) as client:
            service.wait_for(lambda: not client.keys("*:unpacking"), 20, "no note is left")
        it.verify()


def test_a_worker_that_dies_of_a_batch_says_so_and_the_next_but_one_leaves_it_alone():
    settings = {"read_memory": BUDGET}
    with (
        servers.redis() as store,
        Scene(servers.shared_kafka(), store, partitions=2, settings=settings) as it,
    ):
        it.produce(500)
        before, ends = service.read_log(it.kafka.port, it.topic, 2)
        service.produce_large(it.kafka.port, it.topic, bytes(LARGEST // 2))
        it.produce(500)
        dying = ("-c", DYING_WORKER, "large batch about to be unpacked", "1")
        worker = service.Worker(it.kafka.port, it.store_url, it.topic, **it.settings)
        it.workers.append(worker)
        for _ in range(2):
            worker.start(program=dying)
            assert worker.process.wait(60) == dying_worker.EXIT_CODE
        at = f"the batch at offsets {ends[0]} to {ends[0]}"
        said = f"partition 0: a worker ended while it had {at} unpacked; trying it once more"
        assert worker.logged().count(said) == 1, "at the second start"
        worker.start(program=dying)
        named = f"partition 0: {at} (2 workers ended while they had it unpacked"
        service.wait_for(lambda: named in worker.logged(), 30, "it is named")
        _, ends = service.read_log(it.kafka.port, it.topic, 2)
        service.wait_for(
            lambda: int(service.stored_offsets(it.redis.url, it.topic, 2)[1] or 0) == ends[1],
            30,
            "the other partition went on",
        )
        ready = f"ok, but partition 0 waits before {at}"
        service.wait_for(lambda: ready in worker.page("/readyz"), 20, "/readyz names it")
        service.truncate(it.kafka.port, it.topic, len(before[0]) + 1)
        after, ends = service.read_log(it.kafka.port, it.topic, 2)
        service.wait_until_read(it.redis.url, it.topic, ends)
        it.verify({0: before[0] + after[0], 1: after[1]})


def test_a_broken_record_whose_letter_is_refused_stops_nothing():
    """Its topic takes less than a kilobyte: the value is shortened, and every record counted."""
    with (
        servers.redis() as store,
        Scene(servers.shared_kafka(), store, partitions=1) as it,
    ):
        small = {"max.message.bytes": "800"}
        service.create_topic(it.kafka.port, f"{it.topic}.dead-letter", 1, **small)
        worker = it.worker()
        broken = [(b"u1", b"{" + os.urandom(size)) for size in (100, 2_000, 100_000)]
        service.produce(it.kafka.port, it.topic, broken)
        it.produce(500)
        it.verify()
        values = [len(value) for _, _, value in service.dead_letters(it.kafka.port, it.topic)]
        assert {101, 256} <= set(values)
        assert worker.logged().count("Kafka refuses dead letters") == 1
        assert it.metric("dead_letters_refused_total") == 0
