"""The health of the whole group, by the report of each worker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streameval.web.status import PartitionStatus, ServiceStatus

MUCH_REJECTED: Final = 0.01
"""The share of records above which the alert `StreamevalRejecting` fires, and the page warns."""

_PARTITION: Final = ("lag", "committed_offset", "watermark", "reading_time", "open_slates", "users")


def describe(status: ServiceStatus, now: float) -> dict[str, Any]:
    """Return a worker's report on itself, as plain values; `now` in seconds since the epoch."""
    return {
        "version": status.version,
        "leader": status.leader,
        "reason": status.unready(),
        "remark": status.waiting() or None,
        "uptime_seconds": max(0.0, now - status.started_at),
        "kafka": status.broker_up,
        "redis": status.store_up,
        "rejected": dict(status.rejected),
        "digests": dict(status.digests),
        "partitions": [_partition(each, now) for each in status.partitions],
    }


def _partition(partition: PartitionStatus, now: float) -> dict[str, Any]:
    time = partition.reading_time
    waits = partition.unreadable or partition.waits_for
    state = "waiting" if waits else "restoring" if partition.restoring else "running"
    return {
        "partition": partition.partition,
        "state": state,
        **{name: getattr(partition, name) for name in _PARTITION},
        "behind_seconds": None if time is None else max(0.0, now - time / 1000),
        "checkpoint_age_seconds": partition.checkpoint_age_seconds,
    }


def health(status: ServiceStatus, said: Mapping[str, tuple[int, str]], now: int) -> dict[str, Any]:
    """Return the document of `/api/v1/health`; `said` by worker: how long ago (ms), and JSON.

    `status` tells the topic, the group and the number of partitions. Of two workers that say they
    have a partition, the one that has committed more is right.
    """
    workers: list[dict[str, Any]] = []
    partitions: dict[int, dict[str, Any]] = {}
    for name, (age, text) in said.items():
        worker = json.loads(text)
        for each in worker.pop("partitions"):
            known = partitions.get(each["partition"])
            if known is None or _committed_offset(each) > _committed_offset(known):
                partitions[each["partition"]] = {**each, "worker": name}
        workers.append({"name": name, **worker, "said_seconds_ago": age / 1000})
    times = [each["reading_time"] for each in partitions.values() if each["reading_time"]]
    lags = [each["lag"] for each in partitions.values()]
    missing = [each for each in range(status.topic_partitions) if each not in partitions]
    reason = _reason(workers, missing)
    return {
        "ready": reason is None,
        "reason": reason,
        "topic": status.topic,
        "group": status.group,
        "at": now,
        "reading_time": max(times, default=None),
        "behind_seconds": max(
            (each["behind_seconds"] for each in partitions.values() if each["reading_time"]),
            default=None,
        ),
        "lag": None if missing or None in lags else sum(lags),
        "partitions": [partitions[number] for number in sorted(partitions)],
        "missing_partitions": missing,
        "rejected": _rejections([worker.get("rejected", {}) for worker in workers]),
        "workers": workers,
    }


def _rejections(said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up what workers rejected of late, with a sentence where it is any."""
    records = sum(each.get("records", 0) for each in said)
    reasons: Counter[str] = Counter()
    for each in said:
        reasons.update(each.get("reasons", {}))
    latest = next((each["latest"] for each in said if each.get("latest")), None)
    rejected = reasons.total()
    share = rejected / records if records else 0.0
    listed = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    return {
        "records": records,
        "reasons": dict(reasons),
        "is_much": share > MUCH_REJECTED,
        "message": f"{rejected:,} of {records:,} records of the last 15 minutes rejected: {listed}"
        if rejected
        else None,
        "latest": latest,
    }


def _committed_offset(partition: Mapping[str, Any]) -> int:
    return partition["committed_offset"] or 0


def _reason(workers: list[dict[str, Any]], missing: list[int]) -> str | None:
    """Say in one line why not all is well; None when it is."""
    for worker in workers:
        if worker["reason"]:
            return f"{worker['name']}: {worker['reason']}"
    if not workers:
        return "no worker has said anything within half a minute"
    if missing:
        return (
            f"no worker has partition {', '.join(map(str, missing))}: is one away, or does another"
            " deployment use this group of Kafka with a Redis of its own?"
        )
    remarks = (f"{each['name']}: {each['remark']}" for each in workers if each["remark"])
    return next(remarks, None) or _differences([each.get("digests", {}) for each in workers])


def _differences(digests: Sequence[Mapping[str, str]]) -> str | None:
    """Name the settings that workers have in common, and of which their values differ."""
    alike = set(digests[0]).intersection(*digests)
    found = [key for key in digests[0] if key in alike and len({of[key] for of in digests}) > 1]
    if not found:
        return None
    return f"workers of this group differ in {', '.join(found)}: give all the same configuration"
