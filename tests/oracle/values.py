"""Values of feedback: one value for each impression and kind, and their figures (rules 24, 25)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from oracle.means import ratio
from streameval.base.limits import MAX_LOGGED_FEEDBACK, MICRO
from streameval.core.definition import Positive
from streameval.core.oracle import Item, Slate

Entry = tuple[int, int]
"""The `ts` and the value, in integers of 10**-6, of one feedback."""


def value_figures(slates: Sequence[Slate], positive: Positive) -> dict[str, object]:
    """Return the figures of the values of one kind, of one window, basis and segment."""
    users: dict[str, Sums] = defaultdict(Sums)
    for slate in slates:
        users[slate.user_id].add(slate, positive)
    row: dict[str, object] = {"feedback": positive.kind}
    for column in _DENOMINATORS.values():
        row[column] = sum(getattr(sums, column) for sums in users.values())
    row["value"] = sum(sums.value for sums in users.values()) / MICRO
    for name, column in _DENOMINATORS.items():
        row[name], row[f"{name}_stderr"] = ratio(
            [
                (user_id, capped(sums.value, positive.cap), getattr(sums, column))
                for user_id, sums in users.items()
            ],
            MICRO,
        )
    return row


_DENOMINATORS = {
    "value_per_user": "users",
    "value_per_slate": "slates",
    "value_per_impression": "impressions",
    "value_per_positive": "positives",
}


@dataclass(slots=True)
class Sums:
    """What one user has; `slates` are those with a request, `value` in integers of 10**-6."""

    slates: int = 0
    impressions: int = 0
    positives: int = 0
    value: int = 0

    @property
    def users(self) -> int:
        """1 for a user with an impression."""
        return int(self.impressions > 0)

    def add(self, slate: Slate, positive: Positive) -> None:
        """Add a slate of the user."""
        self.slates += slate.request_id is not None
        self.impressions += len(slate.items)
        for item in slate.items.values():
            self.positives += positive.kind in item.positives()
            self.value += value_of(item, positive)


def capped(total: int, cap: float | None) -> int:
    """Return a user's sum, at most the cap, in integers of 10**-6."""
    return total if cap is None else min(total, _micro(cap))


# --- rule 24: the value of one impression and kind -----------------------------------------------


def _micro(value: float) -> int:
    """Return the integer of 10**-6, half to even of the exact number."""
    return round(Fraction(value) * MICRO)


def _entries(item: Item, kind: str) -> list[Entry]:
    """Return the distinct entries later than the latest retraction, in order."""
    events = item.feedback.get(kind, [])
    retracted = max((event.ts for event in events if event.retract), default=None)
    entries = {
        (event.ts, _micro(event.value))
        for event in events
        if not event.retract and (retracted is None or event.ts > retracted)
    }
    return sorted(entries)


def value_of(item: Item, positive: Positive) -> int:
    """Return the total of the kind's entries of one impression, in integers of 10**-6."""
    values = [value for _, value in _entries(item, positive.kind)[-MAX_LOGGED_FEEDBACK:]]
    if not values:
        return 0
    if positive.value == "last":
        return values[-1]
    return max(values) if positive.value == "max" else sum(values)
