"""`streameval doctor`: common faults, each with its name and its cure.

1. The configuration loads; without it nothing else makes sense.
2. Kafka: it answers, coordinates the group, and has the topics, also those of `forward`, whose
   records become events; the broker or producers stamp the records' time.
3. The last records of the topic: they are events, keyed by their user, with clocks that agree, and
   name the arms of the experiments.
4. Redis: it answers, evicts no keys, keeps them over a restart, and its clock is right.
5. The stored state: it belongs to this log and definition, and lags by so many records.

This module visits the servers; `diagnosis` judges the facts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streameval.base.errors import InputError, RefusedError, StreamevalError, UnreachableError
from streameval.base.instants import now
from streameval.cli.diagnosis import (
    Finding,
    Log,
    failed,
    judge_cluster,
    judge_group,
    judge_messages_of,
    judge_policy,
    judge_records,
    judge_redis,
    judge_stored,
    judge_timestamps,
    missing_source,
)

if TYPE_CHECKING:
    from streameval.config.load import Settings
    from streameval.store.redis_store import RedisStateStore

SAMPLE: Final = 1_000
"""Records of each partition to look at."""
READINGS: Final = 3
"""Readings of Redis and the log that must agree on a fault of the stored state."""
READING_SECONDS: Final = 0.5


def exit_code(findings: Sequence[Finding]) -> int:
    """Return the highest code: a server that cannot be reached may hide other faults."""
    return max((finding.code for finding in findings), default=0)


async def examine(config: Path | None, profile: str | None = None) -> list[Finding]:
    """Return all findings, in the order of the module's list."""
    from streameval.config.load import load, settings_file

    used = settings_file(config)
    try:
        settings = load(
            None if used is None else Path(used), {"profile": profile} if profile else None
        )
    except InputError as error:
        return [failed("config", str(error), code=InputError.exit_code)]
    findings = [Finding("config", "ok", f"good ({used or 'environment and defaults'})")]
    log = await _visit_kafka(settings, findings)
    await _visit_redis(settings, log, findings)
    return findings


async def _visit_kafka(settings: Settings, findings: list[Finding]) -> Log | None:
    """Add the findings on Kafka and the topic; stop at the first that prevents the others."""
    from streameval.kafka import admin
    from streameval.kafka.security import client_arguments

    try:
        client = client_arguments(settings)
        cluster = await admin.cluster(client)
        findings += judge_cluster(settings, cluster)
        missing = await admin.missing_coordinator(client, settings.group)
        findings.append(judge_group(settings.group, missing))
        for source in settings.forward:
            if source.topic in cluster.topics:
                of_source = await admin.topic_settings(client, source.topic)
                findings += judge_policy(settings, source.topic, of_source)
                _, records = await admin.sample(client, source.topic, SAMPLE)
                findings += judge_messages_of(settings, source, records)
            else:
                findings.append(missing_source(source.topic, cluster.topics))
        if settings.topic not in cluster.topics:
            return None
        topic = await admin.topic_settings(client, settings.topic)
        findings += judge_timestamps(settings, topic)
        findings += judge_policy(settings, settings.topic, topic)
        extents, records = await admin.sample(client, settings.topic, SAMPLE)
        findings += judge_records(settings, records, now())
    except StreamevalError as error:
        findings.append(_kafka_failed(error))
        return None
    return Log(cluster.cluster_id, extents)


async def _visit_redis(settings: Settings, log: Log | None, findings: list[Finding]) -> None:
    """Add the findings on Redis and the stored state; stop where Redis fails."""
    from streameval.store.redis_store import RedisStateStore

    store = RedisStateStore.of(settings)
    try:
        facts = await store.facts()
        findings += judge_redis(store.address, facts, now(), settings.max_clock_skew)
        if log is not None:
            findings += await _compare(settings, log, store)
    except UnreachableError as error:
        cure = "start Redis, or correct `redis`"
        findings.append(failed("redis", str(error), cure, error.exit_code))
    except RefusedError as error:
        findings.append(failed("redis", str(error), code=error.exit_code))
    finally:
        await store.close()


async def _compare(settings: Settings, log: Log, store: RedisStateStore) -> list[Finding]:
    """Compare the stored state with the log; a fault must show in each of `READINGS` readings.

    Workers and producers go on meanwhile. So each reading takes the stored offsets first: the log
    held them by then, and its end, read later, cannot lie before them.
    """
    from streameval.kafka import admin
    from streameval.kafka.security import client_arguments

    client = client_arguments(settings)
    found: list[Finding] = []
    for reading in range(READINGS):
        if reading:
            await asyncio.sleep(READING_SECONDS)
        stored = {partition: await store.standing(partition) for partition in log.extents}
        try:
            log = Log(log.cluster_id, await admin.extents(client, settings.topic))
        except StreamevalError as error:
            return [_kafka_failed(error)]
        found = judge_stored(settings, log, stored)
        if all(finding.level != "fail" for finding in found):
            break
    return found


def _kafka_failed(error: StreamevalError) -> Finding:
    cure = "start Kafka, or correct `kafka` and its security keys"
    return failed("kafka", str(error), cure, error.exit_code)
