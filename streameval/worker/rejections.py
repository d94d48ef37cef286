"""Rejected records of late: for the page, and for a line a minute, at most, in the log."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streameval.kafka.records import DeadLetter

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 60.0
RECENT_SECONDS: Final = 900.0
"""The page looks back as far as the alert `StreamevalRejecting` does."""


class Rejections:
    """Counts of committed records, and the latest one that was rejected. All times in seconds."""

    def __init__(self) -> None:
        self._unsaid = _Counted()
        self._minutes: dict[int, _Counted] = {}
        self._latest: DeadLetter | None = None
        self._said = -math.inf

    def note(
        self, accepted: int, rejected: Mapping[str, int], letters: Sequence[DeadLetter], now: float
    ) -> None:
        """Count a batch: its events, its rejected records by reason, and their dead letters."""
        minute = self._minutes.setdefault(int(now // 60), _Counted())
        for counted in (self._unsaid, minute):
            counted.add(accepted + sum(rejected.values()), rejected)
        if letters:
            self._latest = letters[-1]

    def say(self, now: float) -> None:
        """Log a line where records were rejected, a minute after the last one."""
        counted = self._unsaid
        if self._latest is None or not counted.reasons or now - self._said < EVERY_SECONDS:
            return
        log.warning(
            "%s of %s records rejected: %s; latest: %s. The dead-letter topic has them, and"
            " `streameval doctor` sums them up",
            f"{counted.reasons.total():,}",
            f"{counted.records:,}",
            ", ".join(f"{count:,} {reason}" for reason, count in counted.reasons.most_common()),
            _words_of(self._latest),
        )
        self._said, self._unsaid = now, _Counted()

    def recent(self, now: float) -> dict[str, Any]:
        """Return the counts of the last `RECENT_SECONDS`, as plain values."""
        oldest = (now - RECENT_SECONDS) // 60
        self._minutes = {minute: one for minute, one in self._minutes.items() if minute > oldest}
        counted = _Counted()
        for one in self._minutes.values():
            counted.add(one.records, one.reasons)
        latest = _words_of(self._latest) if self._latest and counted.reasons else None
        return {"records": counted.records, "reasons": dict(counted.reasons), "latest": latest}


class _Counted:
    """Records, and the rejected ones of them by reason."""

    def __init__(self) -> None:
        self.records = 0
        self.reasons: Counter[str] = Counter()

    def add(self, records: int, reasons: Mapping[str, int]) -> None:
        self.records += records
        self.reasons.update({reason: count for reason, count in reasons.items() if count})


def _words_of(letter: DeadLetter) -> str:
    place = f"partition {letter.partition}, offset {letter.offset}"
    return f"{place}, {letter.rejection.reason}: {letter.rejection.detail}"
