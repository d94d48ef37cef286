"""Gorse's positive rate of a day: of the distinct items a user read, how many were positive.

`gorse_doc`, its documentation: the mean over all users who read something. `gorse_v05`, its
releases 0.5.0 to 0.5.6: only those with a positive among what they read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal


def daily_positive_rate(
    reads: Mapping[str, AbstractSet[str]],
    positives: Mapping[str, AbstractSet[str]],
    convention: Literal["gorse_doc", "gorse_v05"] = "gorse_doc",
) -> float:
    """Return the mean over users of read positives / reads, items by user; NaN without users."""
    rates = [
        len(read & positives.get(user, frozenset())) / len(read)
        for user, read in reads.items()
        if read
    ]
    if convention == "gorse_v05":
        rates = [rate for rate in rates if rate > 0]
    return math.fsum(rates) / len(rates) if rates else math.nan
