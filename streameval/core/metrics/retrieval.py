"""Figures of retrieval that are not those of a ranked list, and that names keep apart from them.

Source: Gorse's code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def index_recall(approximate: Sequence[str], exact: Sequence[str], n: int) -> float:
    """Return how many of the exact top n an approximate index found in its top n, / n."""
    return len(set(approximate[:n]) & set(exact[:n])) / n


def sampled_rank(positive: float, negatives: Sequence[float]) -> int:
    """Return the rank of one positive among sampled negatives; a tie counts against it."""
    return 1 + sum(negative >= positive for negative in negatives)


def sampled_hit_rate(rank: int, k: int) -> float:
    """Return 1 when the positive is in the top k of its sample, else 0."""
    return float(rank <= k)


def sampled_ndcg(rank: int, k: int) -> float:
    """Return 1 / log2(rank + 1) when the positive is in the top k of its sample, else 0."""
    return 1 / math.log2(rank + 1) if rank <= k else 0.0
