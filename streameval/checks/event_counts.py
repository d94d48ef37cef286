"""The partitions' counts of the log's records, from a snapshot: all time, or since another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from streameval.checks.evidence import Snapshot


def counts_by_partition(snapshot: Snapshot) -> dict[int, Counter[str]]:
    """Return event counters by partition; a dot joins groups, as in `rejected.late`."""
    return {
        partition: Counter(dict(_flat(document["events"])))
        for partition, document in snapshot.figures.items()
    }


def _flat(events: Mapping[str, Any]) -> list[tuple[str, int]]:
    found = []
    for name, value in events.items():
        if isinstance(value, Mapping):
            found += [(f"{name}.{key}", count) for key, count in value.items()]
        else:
            found.append((name, value))
    return found


def growth(later: Snapshot, earlier: Snapshot | None) -> dict[int, Counter[str]]:
    """Return the growth of each partition's counters since `earlier`.

    A partition that counts less than before was counted anew: its growth is its whole count.
    """
    now, before = (
        counts_by_partition(later),
        {} if earlier is None else counts_by_partition(earlier),
    )
    found = {}
    for partition, counts in now.items():
        growth = Counter(counts)
        growth.subtract(before.get(partition, Counter()))
        # `waiting` counts the events that wait now, and may fall.
        anew = any(count < 0 for name, count in growth.items() if name != "waiting")
        found[partition] = counts if anew else growth
    return found


def total(counts: Mapping[str, int], group: str) -> int:
    """Sum up a group, such as `rejected`."""
    return sum(count for name, count in counts.items() if name.startswith(f"{group}."))
