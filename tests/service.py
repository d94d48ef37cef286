"""The whole service on real servers, for tests: topics, producers, workers, and the comparison.

`expected` recounts the log as Kafka holds it with the oracle, partition by partition; `compare`
holds what Redis and `/metrics` say against it, exactly.
"""

import asyncio
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import redis as redis_client
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

import servers
from streameval.config import load
from streameval.core.events import decode_batch
from streameval.core.oracle import oracle

RANKING = ("precision", "recall", "ndcg", "map", "mrr", "hit_rate")


def create_topic(kafka_port, topic, partitions=4, **config):
    async def create():
        admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{kafka_port}")
        await admin.start()
        try:
            settings = {"message.timestamp.type": "LogAppendTime"} | config
            await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)])
        finally:
            await admin.close()

    asyncio.run(create())


def produce(kafka_port, topic, records, *, seconds=None, **options):
    """Send (key, value) records; spread over `seconds` if given."""

    async def send():
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{kafka_port}",
            compression_type="lz4",
            linger_ms=5,
            max_batch_size=256 << 10,
            **options,
        )
        await producer.start()
        try:
            batch = list(records)
            began = time.monotonic()
            last = None
            for number, (key, value) in enumerate(batch):
                last = await producer.send(topic, value, key=key)
                if seconds and number % 500 == 0:
                    ahead = began + seconds * number / len(batch) - time.monotonic()
                    await asyncio.sleep(max(0, ahead))
            await producer.flush()
            if last is not None:
                await last
        finally:
            await producer.stop()
        return len(batch)

    return asyncio.run(send())


def read_log(kafka_port, topic, partitions):
    """Every record of the topic, by partition: lists of (offset, timestamp, key, value)."""

    async def read():
        consumer = AIOKafkaConsumer(
            bootstrap_servers=f"127.0.0.1:{kafka_port}",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        try:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            log = {number: [] for number in range(partitions)}
            positions = dict.fromkeys(places, 0)
            while positions != ends:
                found = await consumer.getmany(timeout_ms=500)
                for place, messages in found.items():
                    log[place.partition] += [
                        (m.offset, m.timestamp, m.key, m.value) for m in messages
                    ]
                positions = {place: await consumer.position(place) for place in places}
            return log, {place.partition: end for place, end in ends.items()}
        finally:
            await consumer.stop()

    return asyncio.run(read())


class Worker:
    """One `streameval worker` in a process of its own."""

    def __init__(self, kafka_port, redis_url, topic, **settings):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="streameval-worker-"))
        self.port = servers.free_port()
        values = {
            "kafka": f"127.0.0.1:{kafka_port}",
            "redis": redis_url,
            "topic": topic,
            "dead_letter_topic": f"{topic}.dead-letter",
            "listen": f"127.0.0.1:{self.port}",
            "checkpoint_interval": "2s",
            "group": "test",
        } | settings
        self.config = self.folder / "streameval.yaml"
        self.config.write_text(json.dumps(values))
        self.log = self.folder / "log.txt"
        self.process = None

    def start(self, *arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STREAMEVAL_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "streameval.cli",
                    "worker",
                    "--config",
                    self.config,
                    *arguments,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        return self

    @property
    def definition(self):
        return load(self.config).definition()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self, timeout=20):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def page(self, path="/metrics"):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as page:
            return page.read().decode()

    def metrics(self):
        """Samples of the page: {(name, frozenset of labels): value}."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.page())
            for sample in family.samples
        }

    def logged(self):
        return self.log.read_text(errors="replace")

    def __enter__(self):
        return self if self.process else self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


def stored_offsets(redis_url, topic, partitions, group="test"):
    with redis_client.Redis.from_url(redis_url, decode_responses=True) as client:
        return {
            number: client.hget(f"streameval:{{{group}:{topic}:{number}}}:partition", "offset")
            for number in range(partitions)
        }


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, redis_client.RedisError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def wait_until_read(redis_url, topic, ends, seconds=120, group="test"):
    """Wait until the stored offsets are the ends of the log: lag 0."""

    def read():
        stored = stored_offsets(redis_url, topic, len(ends), group)
        return all(int(stored[number] or 0) == end for number, end in ends.items())

    wait_for(read, seconds, f"offsets {ends}, stored {stored_offsets(redis_url, topic, len(ends))}")


def expected(definition, log, at=None):
    """The oracle's document of each partition of `log`; `at`: reading times by partition."""
    documents = {}
    for number, records in log.items():
        events, rejected = decode_batch(
            [value for _, _, _, value in records],
            [timestamp for _, timestamp, _, _ in records],
            definition.max_clock_skew,
        )
        reasons = {}
        for _, rejection in rejected:
            reasons[rejection.reason] = reasons.get(rejection.reason, 0) + 1
        documents[number] = oracle(definition, events, at=(at or {}).get(number), rejected=reasons)
    return documents


def compare_users(redis_url, topic, documents, group="test"):
    """Every user's counters in Redis equal the oracle's; answers how many users there are."""
    with redis_client.Redis.from_url(redis_url, decode_responses=True) as client:
        known = 0
        for number, document in documents.items():
            prefix = f"streameval:{{{group}:{topic}:{number}}}:user:"
            keys = set(client.scan_iter(f"{prefix}*", count=10_000))
            assert keys == {prefix + user for user in document["users"]}
            users = sorted(document["users"])
            pipeline = client.pipeline(transaction=False)
            for user in users:
                pipeline.hgetall(prefix + user)
            for user, fields in zip(users, pipeline.execute(), strict=True):
                found = {name: int(value) for name, value in fields.items() if int(value)}
                counters = document["users"][user]
                wanted = {
                    name: counters[name]
                    for name in ("impressions", "slates", "first_ts", "last_ts")
                }
                wanted |= {f"positives:{kind}": n for kind, n in counters["positives"].items()}
                wanted = {name: value for name, value in wanted.items() if value}
                assert found == wanted, (number, user)
            known += len(users)
        return known


def reading_times(metrics):
    return {
        int(dict(labels)["partition"]): round(value * 1000)
        for (name, labels), value in metrics.items()
        if name == "streameval_reading_time_timestamp_seconds"
    }


def compare_figures(pages, definition, log):
    """The figures on the workers' pages, combined, equal the oracle's; answers how many."""
    at = {}
    for page in pages:
        at |= reading_times(page)
    documents = expected(definition, log, at)
    figures = 0
    wanted = _combined(documents.values(), definition)
    found = _from_pages(pages, definition)
    for key, (weight, values) in wanted.items():
        have_weight, have = found.pop(key)
        assert have_weight == weight, key
        for name, value in values.items():
            if value is None:
                assert have.get(name) is None, (key, name)
            else:
                assert math.isclose(have[name], value, rel_tol=1e-9, abs_tol=1e-12), (key, name)
                figures += 1
    assert not any(weight for weight, _ in found.values()), "no figure too many"
    return figures


def _combined(documents, definition):
    """Means over all partitions: {(window, basis, segment, kind or k): (weight, {name: value})}."""
    sums = {}
    for document in documents:
        for row in document["rates"]:
            key = _key(row, definition, row["feedback"])
            _add(sums, key, row["users"], {"positive_rate": row["positive_rate"]})
            counts = sums[key].setdefault("counts", [0, 0])
            counts[0] += row["positives"]
            counts[1] += row["impressions"]
        for row in document["ranking"]:
            key = _key(row, definition, row["k"])
            _add(sums, key, row["slates"], {name: row[name] for name in RANKING})
    combined = {}
    for key, found in sums.items():
        weight = found["weight"]
        values = {
            name: math.fsum(parts) / weight if weight else None
            for name, parts in found["values"].items()
        }
        if "counts" in found:
            positives, impressions = found["counts"]
            values["positives_per_impression"] = positives / impressions
        combined[key] = (weight, values)
    return combined


def _add(sums, key, weight, values):
    found = sums.setdefault(key, {"weight": 0, "values": {name: [] for name in values}})
    found["weight"] += weight
    for name, value in values.items():
        if value is not None:
            found["values"][name].append(value * weight)


def _key(labels, definition, last):
    dimensions = tuple(labels[name] for name in definition.dimensions)
    return labels["window"], labels["basis"], dimensions, str(last)


def _from_pages(pages, definition):
    sums = {}
    for page in pages:
        weights = {
            _place(labels, definition, name): value
            for (name, labels), value in page.items()
            if name in {"streameval_window_users", "streameval_window_slates"}
        }
        means = {}
        for (name, labels), value in page.items():
            short = name.removeprefix("streameval_")
            labels = dict(labels)
            if short in RANKING:
                means.setdefault(_key(labels, definition, labels["k"]), {})[short] = value
            elif short in {"positive_rate", "positives_per_impression"}:
                means.setdefault(_key(labels, definition, labels["feedback"]), {})[short] = value
        counts = {
            _place(labels, definition, name): value
            for (name, labels), value in page.items()
            if name == "streameval_window_impressions"
        }
        for key, values in means.items():
            ranked = "positive_rate" not in values
            name = "streameval_window_slates" if ranked else "streameval_window_users"
            weight = weights[(name, *key[:3])]
            found = sums.setdefault(key, [0, {}])
            found[0] += weight
            for metric, value in values.items():
                by = weight
                if metric == "positives_per_impression":
                    by = counts[("streameval_window_impressions", *key[:3])]
                parts = found[1].setdefault(metric, [0.0, 0.0])
                parts[0] += value * by
                parts[1] += by
        for (name, window, basis, dimensions), weight in weights.items():
            lasts = definition.kinds if name == "streameval_window_users" else definition.ks
            for last in lasts:
                sums.setdefault((window, basis, dimensions, str(last)), [0, {}])
    return {
        key: (weight, {name: total / by for name, (total, by) in values.items() if by})
        for key, (weight, values) in sums.items()
    }


def _place(labels, definition, name):
    labels = dict(labels)
    dimensions = tuple(labels[dimension] for dimension in definition.dimensions)
    return name, labels["window"], labels["basis"], dimensions
