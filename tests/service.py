"""The whole service on real servers, for tests: topics, producers, workers, and what they leave.

`comparison` holds what they leave against the oracle.
"""

import asyncio
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import weakref

import redis as redis_client
import servers
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from prometheus_client.parser import text_string_to_metric_families

from streameval.config.load import load


def administer(kafka_port, ask):
    """Await `ask(admin)` with an admin client."""

    async def run():
        admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{kafka_port}")
        await admin.start()
        try:
            return await ask(admin)
        finally:
            await admin.close()

    return asyncio.run(run())


def create_topic(kafka_port, topic, partitions=4, replicas=1, **config):
    settings = {"message.timestamp.type": "LogAppendTime"} | config
    new = NewTopic(topic, partitions, replicas, topic_configs=settings)

    def created():
        """Not while Kafka still deletes one of that name."""
        answer = administer(kafka_port, lambda admin: admin.create_topics([new]))
        return not any(code for _, code, *_ in answer.topic_errors)

    wait_for(created, 20, f"topic {topic} is created")


def delete_topic(kafka_port, topic):
    """Delete a topic, and wait until the broker knows: until then it takes records of it."""
    administer(kafka_port, lambda admin: admin.delete_topics([topic]))
    left = functools.partial(administer, kafka_port, lambda admin: admin.list_topics())
    wait_for(lambda: topic not in left(), 30, "the topic is gone")


def add_partitions(kafka_port, topic, partitions):
    administer(
        kafka_port, lambda admin: admin.create_partitions({topic: NewPartitions(partitions)})
    )


def configure_topic(kafka_port, topic, config):
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, config)
    administer(kafka_port, lambda admin: admin.alter_configs([resource]))


def truncate(kafka_port, topic, before):
    """Delete the records of partition 0 below `before`, as retention would."""
    doomed = {TopicPartition(topic, 0): RecordsToDelete(before)}
    administer(kafka_port, lambda admin: admin.delete_records(doomed))


def produce(kafka_port, topic, records, *, seconds=None, **options):
    """Send records, each key, value and perhaps headers; spread over `seconds` if given.

    All replicas have them then, so that consumers see them: a reader of the log misses none.
    """

    async def send():
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{kafka_port}",
            # A broker that was away for a moment must not get records twice.
            enable_idempotence=True,
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
            for number, (key, value, *headers) in enumerate(batch):
                last = await producer.send(topic, value, key=key, headers=(headers or [None])[0])
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


def produce_large(kafka_port, topic, value, partition=0):
    """Send one record to `partition`, in a batch that packs well."""

    async def send():
        size = len(value) + 1_000
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{kafka_port}",
            compression_type="zstd",
            max_request_size=size,
            max_batch_size=size,
        )
        await producer.start()
        try:
            await producer.send_and_wait(topic, value, key=b"u1", partition=partition)
        finally:
            await producer.stop()

    asyncio.run(send())


def produce_in_transactions(kafka_port, topic, records, size=100):
    """Send (key, value) records in transactions; after each, one of other records is aborted."""

    async def send():
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{kafka_port}", transactional_id=f"{topic}-writer"
        )
        await producer.start()
        try:
            for at in range(0, len(records), size):
                async with producer.transaction():
                    for key, value in records[at : at + size]:
                        await producer.send(topic, value, key=key)
                await producer.begin_transaction()
                for key, value in records[:5]:
                    await producer.send(topic, value, key=key)
                await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(send())


def read_log(kafka_port, topic, partitions, seconds=120):
    """Every record of the topic, by partition: lists of (offset, timestamp, key, value).

    A transaction that was just committed may still be open for readers: it is waited for.
    """
    client = {"bootstrap_servers": f"127.0.0.1:{kafka_port}", "enable_auto_commit": False}
    client["auto_offset_reset"] = "earliest"
    places = [TopicPartition(topic, number) for number in range(partitions)]

    async def read():
        async with AIOKafkaConsumer(**client, isolation_level="read_uncommitted") as consumer:
            ends = await consumer.end_offsets(places)
        consumer = AIOKafkaConsumer(**client, isolation_level="read_committed")
        await consumer.start()
        await asyncio.sleep(0)  # aiokafka stops badly what has not yet run
        try:
            consumer.assign(places)
            log = {number: [] for number in range(partitions)}
            positions = dict.fromkeys(places, 0)
            try:
                async with asyncio.timeout(seconds):
                    while any(positions[place] < ends[place] for place in places):
                        for place, messages in (await consumer.getmany(timeout_ms=500)).items():
                            log[place.partition] += [
                                (m.offset, m.timestamp, m.key, m.value) for m in messages
                            ]
                        positions = {place: await consumer.position(place) for place in places}
            except TimeoutError:
                raise AssertionError(f"read to {positions} of {ends}") from None
            return log, {place.partition: at for place, at in positions.items()}
        finally:
            await consumer.stop()

    return asyncio.run(read())


# Everything committed, or the signal came before the worker had begun to take signals.
CLEAN_ENDS = {0, -signal.SIGTERM}


class Worker:
    """One `streameval worker` in a process of its own."""

    def __init__(self, kafka_port, redis_url, topic, **settings):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="streameval-worker-"))
        # Its log is read, and the worker started anew, for as long as a test holds it.
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
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
        self.environment = {}  # besides that of the tests

    def start(self, *arguments, program=("-m", "streameval")):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STREAMEVAL_")}
        environment |= self.environment
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *program,
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

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def wait_until_up(self):
        """Wait until the pages are served: from then on it also takes signals."""
        wait_for(lambda: self.page("/healthz"), 20, "the pages are served")

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

    def __exit__(self, failed, *_):
        if self.process.poll() is None:
            self.kill()
        if failed:
            print(f"the last that the worker said:\n{self.logged()[-3000:]}")


def refused(worker, path):
    """The body of a page that answers with an error, "" where it does not."""
    try:
        worker.page(path)
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    return ""


def resident(worker):
    """Bytes of memory that the worker has."""
    pages = pathlib.Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def peak(worker):
    """The most bytes of memory that the worker has had."""
    status = pathlib.Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def stored_offsets(redis_url, topic, partitions, group="test"):
    with servers.redis_client(redis_url, decode_responses=True) as client:
        return {
            number: client.hget(f"streameval:{{{group}:{topic}:{number}}}:partition", "offset")
            for number in range(partitions)
        }


def wait_for(condition, seconds, what):
    """Wait until a condition holds; an AssertionError after `seconds`, or in CI after thrice that.

    A machine of CI may be three times as slow, and a worker's checks get what others leave.
    """
    seconds *= 3 if os.environ.get("CI") else 1
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, KafkaError, redis_client.RedisError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def wait_until_read(redis_url, topic, ends, seconds=120, group="test"):
    """Wait until the stored offsets are the ends of the log: lag 0."""

    def read():
        stored = stored_offsets(redis_url, topic, len(ends), group)
        return all(int(stored[number] or 0) >= end for number, end in ends.items())

    wait_for(read, seconds, f"offsets {ends}, stored {stored_offsets(redis_url, topic, len(ends))}")


def dead_letters(kafka_port, topic):
    """The dead-letter topic of `topic`: a list of (headers, key, value)."""

    async def read():
        consumer = AIOKafkaConsumer(
            bootstrap_servers=f"127.0.0.1:{kafka_port}",
            enable_auto_commit=False,
            fetch_max_bytes=64 << 20,
            max_partition_fetch_bytes=16 << 20,
        )
        await consumer.start()
        try:
            place = TopicPartition(f"{topic}.dead-letter", 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            end = (await consumer.end_offsets([place]))[place]
            letters = []
            while await consumer.position(place) < end:
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    letters += [
                        ({k: v.decode() for k, v in m.headers}, m.key, m.value) for m in messages
                    ]
            return letters
        finally:
            await consumer.stop()

    return asyncio.run(read())
