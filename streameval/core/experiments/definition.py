"""The definition of an experiment: which field holds the arm, and what is compared over which time.

An experiment is no part of the definition of the windows' figures: one may begin or end while the
state goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MAX_ARMS: Final = 20
"""The largest number of arms that are told apart; further ones are `__other__` together."""


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A metric that must not get worse by more than `margin` (in units of the metric)."""

    metric: str
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """One comparison of arms with a control, over the final slates from `since` to `until` (ms).

    `arm` names the event field that holds the arm. `split` has the weights of the arms; None: the
    shares of users are not tested. `alpha` is the chance that any of the named metrics alarms
    falsely, over all looks together. The bounds are narrowest at `planned_users`, those of an arm
    and the control together. A slate at `since` counts, a slate at `until` does not; None: no such
    bound.
    """

    name: str
    arm: str
    control: str
    primary: str
    guardrails: tuple[Guardrail, ...] = ()
    split: Mapping[str, float] | None = None
    since: int | None = None
    until: int | None = None
    planned_users: int = 10_000
    alpha: float = 0.05

    @property
    def named_arms(self) -> tuple[str, ...]:
        """The control, and the other arms of the split."""
        return tuple(dict.fromkeys((self.control, *(self.split or ()))))

    @property
    def identity(self) -> tuple[str, str, int | None, int | None]:
        """What its sums and its users depend on: where it changes, both start anew."""
        return self.name, self.arm, self.since, self.until

    @property
    def key(self) -> str:
        """A digest of the identity, 16 hexadecimal digits: the name that stores give it."""
        return hashlib.sha256(json.dumps(self.identity).encode()).hexdigest()[:16]
