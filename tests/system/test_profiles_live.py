"""A worker with a profile on real servers: the figures of native events, under a kill."""

import contextlib
import functools
import json
import time

import pytest
import servers
import service
import trackers

from streameval.core.definition import Definition
from streameval.profiles import library

pytestmark = pytest.mark.servers

SLIDE = 600_000
BEGIN = trackers.BEGIN // SLIDE * SLIDE + 30_000  # figures stay for nine minutes of idling
SETTINGS = {
    "positives": ["click", "detail_view", "purchase"],
    "dimensions": [],
    "windows": [{"size": "30m", "slide": "10m"}],
    "attribution_window": "1m",
    "allowed_lateness": "30s",
    "batch_events": 200,
}
FIGURES = ("positive", "ndcg", "precision", "recall", "map", "mrr", "hit_rate", "window_")


def figures(worker):
    """The series of windows."""
    return {
        line
        for line in worker.page().splitlines()
        if line.removeprefix("streameval_").startswith(FIGURES) and "window=" in line
    }


def messages(events):
    """Batches of a user's calls, pages that no rule takes, and calls that are wrong."""
    by_user = {}
    for event in events:
        by_user.setdefault(event["user_id"], []).append(trackers.segment(event))
    for user, own in by_user.items():
        for batch in trackers.batches(own, 3):
            yield user, batch
        yield user, {"type": "page", "event": "Page Viewed", "messageId": "p"}
        yield user, own[0] | {"event": "Product Clicked", "properties": {"product_id": ["x"]}}


def stream():
    """A stream of 15 seconds, so that batches of a user may come together."""
    events = trackers.stream(9, count=1_500)
    return [event | {"ts": BEGIN + 5 * number} for number, event in enumerate(events)]


@contextlib.contextmanager
def read(records, *, kill, **more):
    """A worker that has read records, and its topic; with `kill` it died once on the way."""
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = group = servers.unique("profile")
    service.create_topic(kafka.port, topic, 1)
    service.create_topic(kafka.port, f"{topic}.dead-letter", 1)
    with service.Worker(kafka.port, redis.url, topic, **SETTINGS, group=group, **more) as worker:
        worker.wait_until_up()
        half = len(records) // 2 if kill else 0
        if kill:
            service.produce(kafka.port, topic, records[:half])
            service.wait_for(
                lambda: service.stored_offsets(redis.url, topic, 1, group)[0], 60, "a commit"
            )
            worker.kill()
            worker.start().wait_until_up()
        service.produce(kafka.port, topic, records[half:])
        _, ends = service.read_log(kafka.port, topic, 1)
        service.wait_until_read(redis.url, topic, ends, group=group)
        yield worker, lambda: service.dead_letters(kafka.port, topic)


def test_a_worker_with_a_profile_has_the_figures_of_native_events():
    found = [(user.encode(), json.dumps(one).encode()) for user, one in messages(stream())]
    decoder = library.decoder_of(Definition(), "segment")
    decoded, mapped = decoder.take([value for _, value in found])
    assert decoded.ignored == len(decoded.rejected) == 60
    native = [(one.fields["user_id"].encode(), json.dumps(one.fields).encode()) for one in mapped]
    with read(native, kill=False) as (plain, _):
        service.wait_for(lambda: len(figures(plain)) > 20, 30, "figures")
        wanted = figures(plain)
    with read(found, kill=False, profile="segment") as (worker, letters):
        service.wait_for(lambda: figures(worker) == wanted, 30, "the same figures")
        ignored = "streameval_messages_ignored_total 60.0"
        service.wait_for(lambda: ignored in worker.page(), 30, ignored)
        assert 'streameval_events_rejected_total{reason="invalid"} 60.0' in worker.page()
        dead = letters()
    with read(found, kill=True, profile="segment") as (worker, _):
        service.wait_for(lambda: figures(worker) == wanted, 30, "the same figures after a kill")
    assert len(dead) == 60
    headers, _, value = dead[0]
    assert json.loads(value)["event"] == "Product Clicked"
    (detail,) = [text for text in headers.values() if "profile segment" in text]
    assert detail == (
        "profile segment, rule Product Clicked: `item_id`: properties.product_id is a list, and a"
        " text is wanted"
    )


@functools.cache
def native_figures(lacks):
    """The figures of the stream without what a format does not say."""
    said = [trackers.as_said(event, lacks) for event in stream()]
    keys = [event["user_id"].encode() for event in said]
    with read([*zip(keys, trackers.lines(said), strict=True)], kill=False) as (worker, _):
        service.wait_for(lambda: len(figures(worker)) > 20, 30, "figures")
        time.sleep(2)
        return figures(worker)


@pytest.mark.slow
@pytest.mark.parametrize("profile", sorted(trackers.WRITERS.keys() - {"segment"}))
def test_a_worker_has_the_figures_of_native_events_by_any_profile(profile):
    """Equal to the bit; `trackers.LACKS` names what a format cannot say."""
    wanted = native_figures(trackers.LACKS.get(profile, ()))
    events = stream()
    keys = [event["user_id"].encode() for event in events]
    values = trackers.lines([trackers.WRITERS[profile](event) for event in events])
    with read([*zip(keys, values, strict=True)], kill=False, profile=profile) as (worker, letters):
        service.wait_for(lambda: figures(worker) == wanted, 30, "the same figures")
        assert letters() == []
