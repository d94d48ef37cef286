"""`streameval demo`: the service at work on a stream with known truth, and the result.

1. Start broker and store (unless given), create a topic of the run's own, start a worker.
2. Send the simulated stream as time goes by; each second read the worker's page and show it.
3. Stop sending, wait until every event is counted, compare figures and counters, print the result.
4. Take a snapshot, run the offline checks on it and on the worker's outcome files, show the result.
5. End the processes, worker first; remove files and topics.

The compared figures are the last ones read while the stream was still flowing. Afterwards an idle
worker's time moves on, and feedback that was never sent would seem due and missing.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from streameval.base.errors import StreamevalError
from streameval.base.extras import install_advice, is_installed
from streameval.base.instants import now
from streameval.config.load import Settings, load
from streameval.config.settings import PREFIX
from streameval.core.definition import Window
from streameval.demo.comparison import (
    EXPERIMENT,
    Page,
    Span,
    bounds_hold,
    compare,
    differences,
    fates,
    scrape,
    within,
)
from streameval.demo.display import Show, Titles, View, display, print_summary
from streameval.demo.simulator import Recommender, World
from streameval.demo.stack import Worker, embedded_broker, embedded_store, free_port, worker
from streameval.demo.truth import LIKE_GAIN
from streameval.store.redis_store import RedisStateStore
from streameval.store.scorecards import ScorecardReader

PARTITIONS: Final = 4
LIVE, MATURED = Window("20s", 20_000, 1_000), Window("5m", 300_000, 5_000)
# Seconds after which a demo must have matured figures: H, a pane, and time to start.
LONG_ENOUGH: Final = 30
# Time (seconds) for the worker to count the last events.
SETTLE_SECONDS: Final = 20
FEED_EVERY: Final = 0.05


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line; `seconds` None means until Ctrl-C."""

    seconds: int | None
    kafka: str | None
    redis: str | None
    seed: int
    rate: int


def run(options: Options) -> int:
    """Run the whole demo and return the exit code: 1 if figures or counters disagree."""
    # A terminated demo ends its processes just as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Settings of the environment beat a file, and the demo's must hold, here and in the worker.
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    console = Console()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="streameval-demo-")))
        console.print("starting broker, store and worker …", highlight=False)
        kafka = options.kafka or stack.enter_context(embedded_broker(folder))
        redis = options.redis or stack.enter_context(embedded_store(folder))
        topic = f"streameval-demo-{secrets.token_hex(4)}"
        stack.enter_context(_topics(kafka, topic, keep=options.kafka is None))
        port = free_port()
        config = folder / "demo.yaml"
        where = {"kafka": kafka, "redis": redis, "topic": topic, "group": topic}
        missing = next((name for name in ("pyarrow", "duckdb") if not is_installed(name)), None)
        if not missing:
            where |= {name: str(folder / name) for name in ("outcomes", "snapshots")}
        where["listen"] = f"127.0.0.1:{port}"
        config.write_bytes(msgspec.json.encode(where | _figures(World(), options.rate)))
        running = stack.enter_context(worker(folder, config, port))
        good = asyncio.run(_Demo(options, load(config), running, console).play())
        if missing:
            console.print(Text(install_advice("no offline checks: a snapshot", missing, "demo")))
            return 0 if good else 1
        return 0 if _check(console, config) and good else 1


def _figures(world: World, rate: int) -> dict[str, object]:
    """Return the settings of the figures, with seconds in place of a service's minutes."""
    control = world.variants[0].name
    primary, *guardrails = EXPERIMENT
    return {
        "gains": {"like": LIKE_GAIN},
        "windows": [
            {"size": window.name, "slide": f"{window.slide}ms"} for window in (LIVE, MATURED)
        ],
        "attribution_window": f"{world.attribution_window}ms",
        "allowed_lateness": f"{world.allowed_lateness}ms",
        "checkpoint_interval": "5s",
        "experiments": [
            {
                "name": "demo",
                "arm": "variant",
                "control": control,
                "split": dict.fromkeys((variant.name for variant in world.variants), 1),
                "planned_users": world.users_for(rate),
                "primary": primary,
                "guardrails": guardrails,
            }
        ],
        # On real servers the users of a demo do not stay.
        "user_ttl": "1h",
    }


def _check(console: Console, config: Path) -> bool:
    """Take a snapshot, show what the offline checks find, and tell whether all is well."""
    console.print("offline checks of a snapshot, the outcome files and the log:", highlight=False)
    for command in ("snapshot", "check"):
        called = [sys.executable, "-m", "streameval", command, "--config", str(config)]
        done = subprocess.run(called, check=False, capture_output=True, text=True)  # noqa: S603  # our own
        if command == "check" or done.returncode:
            console.print(Text(done.stdout + done.stderr))
        if done.returncode:
            return False
    return True


@contextmanager
def _topics(kafka: str, topic: str, *, keep: bool) -> Iterator[None]:
    """Create the run's topic and its dead-letter topic; `keep` them if the broker ends with us."""
    from streameval.kafka.admin import create_topics, delete_topics

    asyncio.run(create_topics(_client(kafka), {topic: PARTITIONS, f"{topic}.dead-letter": 1}))
    try:
        yield
    finally:
        if not keep:
            asyncio.run(delete_topics(_client(kafka), [topic, f"{topic}.dead-letter"]))


def _client(kafka: str) -> dict[str, str]:
    return {"bootstrap_servers": kafka}


class _Demo:
    """Steps 2 and 3: the stream, the worker's page, and the result."""

    def __init__(
        self, options: Options, settings: Settings, running: Worker, console: Console
    ) -> None:
        self._seconds, self._settings = options.seconds, settings
        self._worker, self._console = running, console
        self._world = World()
        self._differences = differences(self._world)
        self._titles = Titles(running.address, LIVE.name, MATURED.name, self._differences)
        self._start = now()
        users = self._world.users_for(options.rate)
        self._recommender = Recommender(self._world, users, self._start, options.seed)
        self._stop = asyncio.Event()

    async def play(self) -> bool:
        """Send and watch until it is time to stop, then judge."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        feed = asyncio.create_task(self._feed())
        with display(self._console, self._titles) as show:
            view = await self._watch(feed, show)
        self._stop.set()
        # From here on another signal ends at once; asyncio leaves SIGTERM to end nothing but us.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler)
        await feed
        counted = await self._settled()
        sent = self._recommender.sent
        print_summary(self._console, self._titles, view, sent, counted)
        return self._good(view) and sent == counted

    async def _feed(self) -> None:
        """Send due events until it is time to stop; at the end Kafka has acknowledged all."""
        from streameval.kafka.admin import sender

        async with sender(_client(self._settings.kafka), self._settings.topic) as send:
            while not self._stop.is_set():
                for message in self._recommender.until(now()):
                    await send(message.key, message.value)
                await asyncio.sleep(FEED_EVERY)

    async def _watch(self, feed: asyncio.Task[None], show: Show) -> View:
        """Show a view each second, and return the last one."""
        settings, definition = self._settings, self._settings.definition()
        store = RedisStateStore.of(settings)
        reader = ScorecardReader(store, definition)
        try:
            while True:
                view = await self._view(reader, definition.horizon)
                show(view)
                if feed.done() or (self._seconds is not None and view.seconds >= self._seconds):
                    return view
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), 1)
                    return view
        finally:
            await store.close()

    async def _view(self, reader: ScorecardReader, horizon: int) -> View:
        """Read the worker's page and the scorecard."""
        page = await self._page()
        (card,) = await reader.read(PARTITIONS)
        span = Span(self._start, MATURED, horizon)
        return View(
            seconds=(now() - self._start) // 1000,
            sent=self._recommender.sent.total(),
            lag=int(sum(page.by("streameval_lag", "partition").values())),
            comparisons=compare(page, self._world, span, LIVE.name),
            card=card,
        )

    async def _settled(self) -> Counter[str]:
        """Return the worker's counts as soon as they are complete, or its time is over."""
        end = now() + SETTLE_SECONDS * 1000
        counted = Counter[str]()
        while now() < end and counted.total() < self._recommender.sent.total():
            await asyncio.sleep(0.5)
            counted = fates(await self._page())
        return counted

    async def _page(self) -> Page:
        try:
            return await asyncio.to_thread(scrape, self._worker.address)
        except OSError as error:
            last = self._worker.last_line()
            raise StreamevalError(f"the demo's worker no longer answers: {last}") from error

    def _good(self, view: View) -> bool:
        """Tell whether the figures agree with the truth; a short run may have none yet."""
        matured = any(comparison.matured is not None for comparison in view.comparisons)
        agree = within(view.comparisons) if matured else view.seconds < LONG_ENOUGH
        return agree and bounds_hold(view.card, self._differences)
