"""`streameval forward`: other topics onto the worker's, until it is told to stop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from streameval.base import signals
from streameval.base.errors import ConfigError
from streameval.cli.common import Config, run_async, settings_of

if TYPE_CHECKING:
    from streameval.config.settings import Settings

log = logging.getLogger(__name__)

EPILOG: Final = "Example: streameval forward --config streameval.yaml"


def forward(config: Config = None) -> None:
    """Read the topics of `forward`, and write their events to `topic`, keyed by user.

    Run as many of it as help: they share the partitions. A process that is killed sends its last
    events again, and duplicates count once.
    """
    settings = settings_of(config)
    if not settings.forward:
        raise ConfigError("forward: name the topics to read, each `{topic: clicks, profile: ...}`")
    run_async(_run(settings))


async def _run(settings: Settings) -> None:
    import asyncio

    from streameval.config import logs
    from streameval.kafka.forwarder import Forwarder
    from streameval.store.shared_store import SharedStore
    from streameval.web.connections import Hosts, bind, url_of
    from streameval.web.forward_page import ForwardStatus, serving

    logs.configure(settings.log_level, settings.log_format)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def end(_: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    signals.take(end)
    listening = bind(settings.listen_host, settings.listen_port)
    pace = SharedStore(settings.redis_url, f"{settings.group}.forward", settings.topic, ())
    try:
        forwarder = Forwarder(settings, pace)
        hosts = Hosts((settings.listen_host, *settings.allowed_hosts))
        async with serving(
            lambda: ForwardStatus(forwarder.trouble, forwarder.counts()), listening, hosts
        ):
            log.info("/metrics on %s/metrics", url_of(listening))
            await forwarder.run(stop)
    finally:
        listening.close()
        await pace.close()
