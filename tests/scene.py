"""A topic on a broker, a store and workers, for one test: traffic in, everything compared."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import comparison
import servers
import service
from traffic import traffic

SETTINGS = {
    "session_timeout": "2s",
    "attribution_window": "5m",
    "windows": [{"size": "5m", "slide": "5s"}, {"size": "30m", "slide": "1m"}],
}


class Scene:
    """A context manager; workers that still run at the end are killed.

    `via` is the port at which the workers find Redis, where that is a proxy's; `settings` are the
    workers'. Traffic has 40 event seconds for a thousand events, so that some of it matures.
    """

    def __init__(self, kafka, redis, *, partitions=4, via=None, settings=None, topic_config=None):
        self.kafka, self.redis, self.partitions = kafka, redis, partitions
        self.settings = SETTINGS | (settings or {})
        self.store_url = f"redis://127.0.0.1:{via or redis.port}/0"
        self.topic = servers.unique("scene")
        self.workers = []
        self._seed = 0
        self._sending = []
        self._exit = contextlib.ExitStack()
        service.create_topic(kafka.port, self.topic, partitions, **(topic_config or {}))

    def __enter__(self):
        self._pool = self._exit.enter_context(ThreadPoolExecutor())
        return self

    def __exit__(self, *error):
        for worker in self.workers:
            if worker.running:
                worker.kill()
        if error[0] is not None:
            for worker in self.workers:
                print(f"--- a worker said:\n{worker.logged()[-4000:]}")
        self._exit.close()

    def worker(self, *, arguments=(), program=("-m", "streameval"), **settings):
        """Start one more worker."""
        worker = service.Worker(
            self.kafka.port, self.store_url, self.topic, **(self.settings | settings)
        )
        self.workers.append(worker)
        return worker.start(*arguments, program=program)

    def traffic(self, count):
        """More hostile records, the next ones in event time."""
        self._seed += 1
        return list(traffic(self._seed, count, step=280, begin=self._seed * 3_600_000))

    def produce(self, count):
        service.produce(self.kafka.port, self.topic, self.traffic(count))

    def producing(self, count, seconds):
        """Produce in the background, once all workers read; `.result()` waits and raises errors.

        On a busy machine all would else be sent before a worker has started, and a fault that
        follows would meet no traffic.
        """
        for worker in self.workers:
            if worker.running:
                service.wait_for(
                    lambda of=worker: "assigned partitions" in of.logged(), 60, "a worker reads"
                )
        sending = self._pool.submit(
            service.produce,
            self.kafka.port,
            self.topic,
            self.traffic(count),
            seconds=seconds,
            request_timeout_ms=120_000,
        )
        self._sending.append(sending)
        return sending

    def read_all(self, seconds=60):
        """Read the whole log, once everything in it is committed; as `service.read_log`.

        A broker that leads no longer and does not know it yet names an end before what was read.
        """
        stored, ends = {0: 1}, {0: 0}
        while any(int(stored[number] or 0) > end for number, end in ends.items()):
            log, ends = service.read_log(self.kafka.port, self.topic, self.partitions)
            service.wait_until_read(self.redis.url, self.topic, ends, seconds)
            stored = service.stored_offsets(self.redis.url, self.topic, self.partitions)
        return log

    def wait_for_progress(self, seconds=60, at_least=1):
        """Wait until `at_least` records more than now are committed, or no more are to come."""
        before = self.committed()

        def done():
            coming = any(not sending.done() for sending in self._sending)
            return self.committed() >= before + at_least or not coming

        service.wait_for(done, seconds, "progress")

    def committed(self):
        """Offsets in Redis, summed up."""
        stored = service.stored_offsets(self.redis.url, self.topic, self.partitions)
        return sum(int(offset or 0) for offset in stored.values())

    def verify(self, log=None, seconds=60):
        """Wait until all is read, then compare everything; answers users and figures compared."""
        read = self.read_all(seconds)
        workers = [worker for worker in self.workers if worker.running]
        assert workers, "a worker is left"
        found = comparison.compare_all(self.redis.url, self.topic, workers, log or read)
        comparison.compare_letters(self.kafka.port, self.topic, workers[0].definition, log or read)
        assert min(found) > 0
        return found

    def metric(self, name, **labels):
        """One sample, summed over the pages of the running workers."""
        key = (f"streameval_{name}", frozenset(labels.items()))
        return sum(worker.metrics().get(key, 0) for worker in self.workers if worker.running)
