"""A line a minute, at most, about the records that were rejected."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streameval.kafka.records import DeadLetter

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 60.0
_MOST_DETAIL: Final = 200


class Rejections:
    """Counts of committed records since the last line, and the latest one that was rejected."""

    def __init__(self) -> None:
        self._records = 0
        self._reasons: Counter[str] = Counter()
        self._latest: DeadLetter | None = None
        self._said = -math.inf

    def note(
        self, accepted: int, rejected: Mapping[str, int], letters: Sequence[DeadLetter]
    ) -> None:
        """Count a batch: its events, its rejected records by reason, and their dead letters."""
        self._records += accepted + sum(rejected.values())
        self._reasons.update(rejected)
        if letters:
            self._latest = letters[-1]

    def say(self, now: float) -> None:
        """Log a line where records were rejected, a minute after the last one (`now` in s)."""
        if self._latest is None or now - self._said < EVERY_SECONDS:
            return
        reasons = ", ".join(f"{n} {reason}" for reason, n in self._reasons.most_common() if n)
        latest, detail = self._latest, self._latest.rejection.detail[:_MOST_DETAIL]
        log.warning(
            "%s of %s records rejected: %s; latest: partition %d, offset %d, %s: %s. The"
            " dead-letter topic has them, and `streameval doctor` sums them up",
            f"{self._reasons.total():,}",
            f"{self._records:,}",
            reasons,
            latest.partition,
            latest.offset,
            latest.rejection.reason,
            detail,
        )
        self._said, self._latest = now, None
        self._records = 0
        self._reasons.clear()
