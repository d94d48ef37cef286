"""The Open Bandit sample as a stream: its known totals come out in Redis and on `/metrics`.

ZOZOTOWN's log of two policies, random and Bernoulli Thompson sampling (bts), 10,000 rows each; it
lies beside the repository, and the test skips without it. The log has no user ids: the four
features of a user, hashed, stand for one, and such a user is named `pseudo-...`. Nor has it slate
ids: each row is an impression without `request_id`. A click comes with its impression's own time,
which is unique for a user and item, so no other impression can take it over. Both logs are merged
by time; otherwise one would make the other late.
"""

import csv
import hashlib
import json
import os
import pathlib
from collections import Counter
from datetime import datetime

import comparison
import pytest
import redis as redis_client
import servers
import service

DATA = pathlib.Path(
    os.environ.get("STREAMEVAL_OPEN_BANDIT")
    or pathlib.Path(__file__).parents[3] / "shared" / "data" / "obd"
)
CLICKS = {"random": 46, "bts": 69}
POSITIONS = 3

pytestmark = pytest.mark.servers


@pytest.mark.skipif(not DATA.is_dir(), reason="the Open Bandit sample is not here")
def test_open_bandit_totals_come_out():
    """20,000 impressions, 46 clicks for random and 69 for bts."""
    kafka, topic = servers.shared_kafka(), servers.unique("obd")
    with servers.redis(aof="always") as store:
        service.create_topic(kafka.port, topic)
        assert service.produce(kafka.port, topic, records()) == 20_000 + sum(CLICKS.values())
        log, ends = service.read_log(kafka.port, topic, 4)
        with service.Worker(kafka.port, store.url, topic) as worker:
            service.wait_until_read(store.url, topic, ends)
            for variant, clicks in CLICKS.items():
                by_variant = frozenset({"variant": variant}.items())
                by_click = by_variant | {("feedback", "click")}
                service.wait_for(
                    lambda where=by_variant: total(worker, "impressions", where) == 10_000,
                    10,
                    "all impressions on the page",
                )
                assert total(worker, "positives", by_click) == clicks
                assert total(worker, "impressions_retracted", by_variant) == 0
                assert total(worker, "positives_retracted", by_click) == 0
            assert in_redis(store.url) == {"impressions": 20_000, "positives:click": 115}
            users, _ = comparison.compare_all(store.url, topic, [worker], log)
            assert users == 265
            assert not comparison.rejections(worker.definition, log)


def total(worker, name, labels):
    return worker.metrics().get((f"streameval_{name}_total", labels), 0)


def in_redis(url):
    """Counters of all users, summed up."""
    sums = Counter()
    with redis_client.Redis.from_url(url, decode_responses=True) as client:
        for key in client.scan_iter("streameval:*:user:pseudo-*", count=1_000):
            fields = {name: int(value) for name, value in client.hgetall(key).items()}
            sums.update(
                {name: n for name, n in fields.items() if name != "at" and name[-3:] != "_ts"}
            )
    return dict(sums)


def records():
    """The rows of both logs as (key, value), merged by time, each click after its impression."""
    rows = sorted((row for variant in CLICKS for row in read(variant)), key=lambda row: row["ts"])
    shown = {(row["user_id"], row["item_id"], row["ts"]) for row in rows}
    assert len(shown) == len(rows), "an impression is known by user, item and time"
    for row in rows:
        clicked = row.pop("clicked")
        yield row["user_id"].encode(), json.dumps(row).encode()
        if clicked:
            names = ("ts", "user_id", "item_id")
            click = {"type": "feedback", "feedback": "click"} | {name: row[name] for name in names}
            yield row["user_id"].encode(), json.dumps(click).encode()


def read(variant):
    with (DATA / variant / "men" / "men.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert 1 <= int(row["position"]) <= POSITIONS
            features = "|".join(row[f"user_feature_{number}"] for number in range(4))
            yield {
                "type": "impression",
                "ts": int(datetime.fromisoformat(row["timestamp"]).timestamp() * 1000),
                "user_id": f"pseudo-{hashlib.sha256(features.encode()).hexdigest()[:16]}",
                "item_id": row["item_id"],
                "position": int(row["position"]),
                "variant": variant,
                "propensity": float(row["propensity_score"]),
                "clicked": row["click"] == "1",
            }
