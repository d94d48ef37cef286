"""The worker process, with Faust as its frame.

Faust gives the process its service tree, its timers and its web server; its Kafka parts are
switched off (they reach a fraction of the rate of `worker_loop`). In the tree:

    Worker
    └── App          boot strategy without Kafka
        ├── Site     our pages only, in a thread of its own: a scrape never waits for a batch
        ├── Ingesting    runs `Ingest`, which owns Kafka and Redis
        ├── ticking  figures and status
        └── timers   the leader's lease; what workers share

The steps of a stop, under one deadline (see `shutdown`):

1. The lease is given up, while Redis is still connected.
2. `Ingest` stops reading, flushes, commits, commits offsets to Kafka, closes its connections.
   From here on the exit code is settled.
3. Faust stops the tree; the pages go last, so that a scrape sees the final counts.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import faust
from aiohttp import web
from faust.app.base import BootStrategy
from faust.web.drivers.aiohttp import Web
from faust.worker import Worker
from mode import Service

from streameval.base.errors import StreamevalError
from streameval.base.limits import CONNECTION_SECONDS, MAX_CONNECTIONS, MAX_READERS
from streameval.config import logs
from streameval.web.connections import Connections, Readers, bind, url_of
from streameval.web.status import ServiceStatus
from streameval.worker.leadership import LEASE_SECONDS, RENEW_SECONDS, Leadership
from streameval.worker.shutdown import EXIT_FLUSHED, Shutdown, take_signals
from streameval.worker.snapshot_job import SnapshotSchedule

if TYPE_CHECKING:
    from streameval.config.settings import Settings
    from streameval.store.lease import Lease
    from streameval.store.shared_store import SharedStore
    from streameval.web.api import Api
    from streameval.web.pages import Described
    from streameval.worker.sharing import Sharing
    from streameval.worker.worker_loop import Ingest

log = logging.getLogger(__name__)

# The services of Faust log under Faust's name, also where the class is ours.
FAUST: Final = logging.getLogger("faust")

# Seconds of the deadline: at most so much for the lease, so much kept for the pages.
LEASE_SHARE: Final = 1.0
RESERVE: Final = 1.0
# A flush that ends at its very deadline is not cut off before it could say so.
GRACE: Final = 0.5

# The state of millions of slates makes no cycles, and each search for cycles walks all of it. A
# search by the number of new objects costs a tenth of the throughput; one by the clock costs less.
# The few cycles hold buffers of Kafka: 40 MB after a minute of catching up. So only the youngest
# objects are searched by their number, while they are in the processor's caches. That search finds
# that tuples of ids need no collector, and later searches skip them. A search by the clock takes
# newer objects, and every twelfth time all of them.
COLLECT_SECONDS: Final = 5.0
# How often a worker looks whether a tick is due: `Pace` decides. It adds so much to freshness.
LOOK_SECONDS: Final = 0.1
# How old the description may be where ticks are rare: it tells of partitions and of health too.
DESCRIBE_SECONDS: Final = 1.0
# How often workers share: the figures that somebody looks at are no older than that and a tick.
SHARE_SECONDS: Final = 2.0
COLLECT_ALL: Final = 12
YOUNG_OBJECTS: Final = 1_000
NEVER: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """The frame's own options: `name` of the app; times in seconds; `hosts` that it goes by.

    `digests` are those of the settings.
    """

    name: str
    host: str
    port: int
    shutdown_seconds: float = 12.0
    connection_seconds: float = CONNECTION_SECONDS
    hosts: Sequence[str] = ()
    digests: Mapping[str, str] = field(default_factory=dict)


Build = Callable[[], Awaitable["tuple[Ingest, Lease, Sharing | None]"]]
OpenApi = Callable[["Described"], "Api"]


def run(
    options: FrameOptions,
    build: Build,
    snapshots: SnapshotSchedule | None = None,
    open_api: OpenApi | None = None,
) -> int:
    """Run a worker until it is told to stop, or fails; return the exit code.

    Call it last in a process, in the main thread. `build` makes the parts inside the loop.
    `open_api` makes the API for the site's thread. Raises InputError where `listen` names an
    address that this machine lacks, or a port that is taken.
    """
    shutdown = Shutdown(options.shutdown_seconds)
    listening = bind(options.host, options.port)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    frame = Frame(options, shutdown, listening, snapshots, open_api)
    log.info("pages and /metrics on %s/", url_of(listening))
    take_signals(shutdown, lambda name: _tell(loop, frame, f"{name} received"))
    return loop.run_until_complete(frame.main(build))


def run_worker(settings: Settings, *, reset_windows: bool = False) -> int:
    """Run the worker that `settings` describe until it is told to stop; return the exit code.

    `reset_windows` keeps users' counters and starts anew windows that cannot be used after a change
    of the definition. Errors are logged in one line each; only `listen` raises InputError.
    """
    logs.configure(settings.log_level, settings.log_format)
    options = FrameOptions(
        name=settings.group,
        host=settings.listen_host,
        port=settings.listen_port,
        shutdown_seconds=settings.shutdown_deadline / 1000,
        hosts=(settings.listen_host, *settings.allowed_hosts),
        digests=settings.digests(),
    )

    async def build() -> tuple[Ingest, Lease, Sharing]:
        from streameval.kafka.admin import warn_of_compaction
        from streameval.kafka.security import client_arguments
        from streameval.worker.sharing import Sharing
        from streameval.worker.worker_loop import open_ingest

        ingest = open_ingest(settings, reset_windows=reset_windows)
        ingest.at_start = partial(warn_of_compaction, client_arguments(settings), settings.topic)
        name = f"{socket.gethostname()}:{os.getpid()}"
        lease = ingest.store.lease(f"{name}:{uuid.uuid4()}", round(LEASE_SECONDS * 1000))
        return ingest, lease, Sharing(open_shared(), ingest.live.sums_to_share, name)

    def open_shared() -> SharedStore:
        from streameval.store.shared_store import SharedStore

        return SharedStore.of(settings)

    def open_api(described: Described) -> Api:
        from streameval.web.api import Api

        token = None if settings.user_token is None else settings.user_token.get_secret_value()
        return Api(described, settings.definition(), open_shared(), token)

    return run(options, build, SnapshotSchedule(settings), open_api)


def _tell(loop: asyncio.AbstractEventLoop, frame: Frame, why: str) -> None:
    # A signal while the last lines run finds the loop closed: the stop is done then.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(frame.request_stop, why)


class Frame:
    """The worker process around one `Ingest`."""

    def __init__(
        self,
        options: FrameOptions,
        shutdown: Shutdown,
        listening: socket.socket,
        snapshots: SnapshotSchedule | None = None,
        open_api: OpenApi | None = None,
    ) -> None:
        self.options = options
        self.open_api = open_api
        self._snapshots = snapshots
        self.listening = listening
        self._shutdown = shutdown
        self._stop = asyncio.Event()
        self._failure: int | None = None
        self._collections = 0

    @property
    def stopping(self) -> bool:
        """Whether the worker has begun to stop."""
        return self._stop.is_set()

    async def main(self, build: Build) -> int:
        """Start everything, wait for the end, stop everything; return the exit code."""
        ingest, lease, self.sharing = await build()
        self.ingest, self.leadership = ingest, Leadership(lease)
        self.describe()
        app = _App(self)
        worker = _Worker(app, loop=asyncio.get_running_loop())
        running = asyncio.ensure_future(worker.start())
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([running, stop], return_when=asyncio.FIRST_COMPLETED)
        if not self.stopping:
            self.fail(worker.crash_reason or running.exception() or AssertionError("Faust ended"))
        await self._close(worker)
        return self._shutdown.exit_code

    def request_stop(self, why: str) -> None:
        """Begin to stop; `main` does the steps."""
        log.info("stopping: %s", why)
        self._stop.set()

    def fail(self, error: BaseException) -> None:
        """End the worker because of an error, with its exit code."""
        if self._failure is not None or self.stopping:
            log.error("failed while stopping: %s", error)
            return
        if isinstance(error, StreamevalError):
            self._failure = error.exit_code
            log.error("%s", error)
        else:
            self._failure = StreamevalError.exit_code
            log.critical("a bug of streameval ends this worker", exc_info=error)
        self._shutdown.exit_code = self._failure
        self._shutdown.begin()
        self.request_stop("an error")

    async def ticking(self) -> None:
        """Tick for as long as the worker runs. A timer would make up for ticks that came late."""
        while not self.stopping:
            await self.tick()
            await asyncio.sleep(LOOK_SECONDS)

    async def tick(self) -> None:
        """Compute the figures and the description that pages and scrapes read until the next."""
        if self.stopping:
            return
        try:
            ticked = await self.ingest.tick()
            if ticked or time.monotonic() >= self.described_at + DESCRIBE_SECONDS:
                self.describe()
        except Exception as error:  # noqa: BLE001  a bug: it must end the worker, not one timer
            self.fail(error)

    def describe(self) -> None:
        """Take the service's description as the one to show."""
        status = self.ingest.status()
        status.fencing_token = self.leadership.token
        status.leader = status.fencing_token is not None
        status.digests = self.options.digests
        if status.leader and self._snapshots is not None:
            status.checks = self._snapshots.results()
            status.check_interval = self._snapshots.check_interval
            status.check_running = self._snapshots.running_seconds
            status.daily = self._snapshots.daily()
        self.status: ServiceStatus = status
        self.described_at = time.monotonic()

    async def collect(self) -> None:
        """Collect cyclic garbage, of which there is little (0.1 s at 400,000 open slates)."""
        self._collections += 1
        gc.collect(1 if self._collections % COLLECT_ALL else 2)

    async def lead(self) -> None:
        """Take or renew the lease, where this worker could do the leader's work."""
        if not self.stopping:
            servers = self.status.broker_up and self.status.store_up
            await self.leadership.renew(None if servers else self.status.unready())
            if self._snapshots is not None and not self.stopping:
                self._snapshots.turn(self.leadership.token)

    async def share(self) -> None:
        """Share figures and health with the other workers."""
        if self.sharing is not None and not self.stopping:
            await self.sharing.turn(self.status, self.leadership.token)

    async def _close(self, worker: Worker) -> None:
        shutdown = self._shutdown
        shutdown.begin()
        if self._snapshots is not None:
            self._snapshots.stop()
        # 1. Give up the lease: the next leader need not wait.
        leaving = self.leadership.step_down("stopping")
        await shutdown.bounded(leaving, time.monotonic() + LEASE_SHARE)
        # 2. Commit everything that was read.
        until = shutdown.deadline(RESERVE)
        flushing = self.ingest.stop(until - GRACE)
        if await shutdown.bounded(flushing, until) and self._failure is None:
            shutdown.exit_code = EXIT_FLUSHED
        if self.sharing is not None:
            await shutdown.bounded(self.sharing.close(), shutdown.deadline())
        self.describe()
        # 3. Stop the tree, pages last.
        await shutdown.bounded(worker.stop(), shutdown.deadline())
        log.info("stopped")


class _Boot(BootStrategy):
    """Faust's services less everything that talks to Kafka."""

    enable_kafka = False
    enable_sensors = False

    def web_components(self) -> list[Any]:
        return []

    def agents(self) -> list[Any]:
        return []


class _App(faust.App):
    """The application: our pages, the ingest service, ticks, three timers."""

    BootStrategy = _Boot
    logger = FAUST

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        options = frame.options
        super().__init__(
            options.name,
            env={},  # otherwise WEB_PORT and the like would beat these settings
            web_enabled=True,
            web_in_thread=True,
        )
        self.task(frame.ticking)
        self.timer(RENEW_SECONDS, name="lead")(frame.lead)
        self.timer(SHARE_SECONDS, name="share")(frame.share)
        self.timer(COLLECT_SECONDS, name="collect")(frame.collect)

    def _new_web(self) -> Web:
        return _Site(self, self.frame)

    async def on_first_start(self) -> None:
        """Leave out Faust's data folder: nothing is stored on this disk."""

    async def on_start(self) -> None:
        """Leave out Faust's consumer, which its own version would create here."""
        self.finalize()

    async def on_started_init_extra_services(self) -> None:
        await self.add_runtime_dependency(_Ingesting(self.frame, loop=self.loop))
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)


class _Worker(Worker):
    """Faust's worker without its signal handlers, debugger, logging and terminal output."""

    def __init__(self, app: _App, **options: Any) -> None:
        super().__init__(app, quiet=True, override_logging=False, redirect_stdouts=False, **options)
        self.spinner = None

    def install_signal_handlers(self) -> None:
        """Leave signals to `shutdown`; SIGUSR2 would open a debugger."""


class _Ingesting(Service):
    """Runs the loop that reads, counts and commits; `Frame` stops it before anything else."""

    logger = FAUST

    def __init__(self, frame: Frame, **options: Any) -> None:
        super().__init__(**options)
        self.frame = frame

    @Service.task
    async def _run(self) -> None:
        try:
            await self.frame.ingest.run()
            if not self.frame.stopping:
                self.frame.fail(AssertionError("ingest ended by itself"))
        except Exception as error:  # noqa: BLE001  whatever ended it ends the worker
            self.frame.fail(error)


class _Site(Web):
    """Faust's web server on our socket, with our pages and none of its own."""

    logger = FAUST

    def __init__(self, app: _App, frame: Frame) -> None:
        super().__init__(app)
        from streameval.web.pages import Pages

        self._frame = frame
        self._server: asyncio.Server | None = None
        # Faust's runner would wait 60 s for a scraper that keeps its connection.
        self._runner = web.AppRunner(self.web_app, access_log=None, shutdown_timeout=1.0)
        api = None if frame.open_api is None else frame.open_api(frame)
        self._readers = Readers(MAX_READERS)
        self.web_app.middlewares.append(self._readers.count)
        Pages(frame, api, frame.options.hosts).add_to(self.web_app)

    def _enabled_blueprints(self) -> list[Any]:
        """Serve none of Faust's pages: they show tables and statistics to everybody."""
        return []

    async def start_server(self) -> None:
        """Serve the pages; called in the site's own thread."""
        await self._runner.setup()
        assert self._runner.server is not None, "`setup` makes it"
        seconds = self._frame.options.connection_seconds
        connections = Connections(self._runner.server, seconds, MAX_CONNECTIONS, self._readers)
        self._server = await connections.listen(self._frame.listening)

    async def stop_server(self) -> None:
        """Accept no more connections, and end the open ones."""
        if self._server is not None:
            self._server.close()
        await super().stop_server()
