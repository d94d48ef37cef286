"""A Faust agent that only counts: not even the JSON is read."""

import os
import shutil
import sys
import tempfile

from meter import Meter, arguments

given = arguments()
sys.argv = ["agent", "worker", "--loglevel=error", "--without-web"]

import faust  # noqa: E402 - it reads sys.argv when imported

folder = tempfile.mkdtemp(prefix="streameval-bench-faust-")
app = faust.App(
    given.group,
    broker=f"kafka://{given.kafka}",
    store="memory://",
    datadir=folder,
    topic_disable_leader=True,
    web_enabled=False,
)
topic = app.topic(given.topic, value_serializer="raw", key_serializer="raw")
meter = Meter(given.records)


@app.agent(topic)
async def count(stream: faust.Stream[bytes]) -> None:
    async for _ in stream:
        meter.count(1)
        if meter.done:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)  # its own way out takes seconds and says nothing more


app.main()
