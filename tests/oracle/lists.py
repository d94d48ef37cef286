"""Figures of lists: ranks, and the health of slates with a request (rules 13, 27 and 28)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from oracle.means import ratio
from streameval.base.limits import MILLI
from streameval.core.definition import Definition
from streameval.core.oracle import Slate

LAST_RANK = 20
"""Deeper ranks have one row together, `21+`."""

TOP = 3


def ranks_of(slate: Slate) -> dict[str, int]:
    """Return the rank of each item: positions where they rise, the next free rank elsewhere."""
    ordered = sorted(
        (item.position or 0, item.ts, item_id) for item_id, item in slate.items.items()
    )
    ranks: dict[str, int] = {}
    rank = 0
    for position, _, item_id in ordered:
        rank = max(position, rank + 1)
        ranks[item_id] = rank
    return ranks


def with_request(slates: Sequence[Slate]) -> list[Slate]:
    """Return the slates that figures of lists are about."""
    return [slate for slate in slates if slate.request_id is not None]


def list_figures(slates: Sequence[Slate], definition: Definition) -> dict[str, object]:
    """Return the health of the lists of one window, basis and segment."""
    lists = with_request(slates)
    of_lists = {
        "empty": [not slate.items for slate in lists],
        "short": [_is_short(slate, definition) for slate in lists],
        "fallback": [slate.fallback for slate in lists],
        "abandoned": [not positive_ranks(slate) for slate in lists],
    }
    row: dict[str, object] = {"slates": len(lists)}
    row |= {f"{name}_slates": sum(flags) for name, flags in of_lists.items()}
    users = [slate.user_id for slate in lists]
    found = {
        f"{'abandonment' if name == 'abandoned' else name}_rate": ratio(
            [(user, int(flag), 1) for user, flag in zip(users, flags, strict=True)], 1
        )
        for name, flags in of_lists.items()
    }
    ranks = [(slate.user_id, positive_ranks(slate)) for slate in lists]
    row["slates_with_latency"] = sum(slate.latency is not None for slate in lists)
    row["positive_items"] = sum(len(own) for _, own in ranks)
    found["mean_rank_of_positives"] = ratio([(user, sum(own), len(own)) for user, own in ranks], 1)
    found["top3_share"] = ratio([(user, _at_top(own), len(own)) for user, own in ranks], 1)
    found["latency_ms_mean"] = ratio(
        [(slate.user_id, slate.latency, 1) for slate in lists if slate.latency is not None], MILLI
    )
    for name, (value, stderr) in found.items():
        row[name], row[f"{name}_stderr"] = value, stderr
    return row


def rank_figures(slates: Sequence[Slate], kinds: Sequence[str]) -> list[dict[str, object]]:
    """Return impressions and positives by kind and rank, of one window, basis and segment."""
    impressions: Counter[int] = Counter()
    positives: Counter[tuple[str, int]] = Counter()
    for slate in with_request(slates):
        for item_id, rank in ranks_of(slate).items():
            row = min(rank, LAST_RANK + 1)
            impressions[row] += 1
            positives.update((kind, row) for kind in slate.items[item_id].positives())
    return [
        {
            "feedback": kind,
            "rank": rank if rank <= LAST_RANK else f"{LAST_RANK + 1}+",
            "impressions": impressions[rank],
            "positives": positives[kind, rank],
        }
        for kind in sorted(kinds)
        for rank in sorted(impressions)
    ]


def _is_short(slate: Slate, definition: Definition) -> bool:
    return len(slate.items) < min(definition.ks)


def positive_ranks(slate: Slate) -> list[int]:
    """Return the ranks of the items with a positive of any kind, whatever its gain."""
    return [rank for item_id, rank in ranks_of(slate).items() if slate.items[item_id].positives()]


def _at_top(ranks: Sequence[int]) -> int:
    return sum(rank <= TOP for rank in ranks)
