"""The definition of an experiment: the field with the arm, the figures, and the time they span.

An experiment is no part of the definition of the windows' figures: one may begin or end while the
state goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

MAX_ARMS: Final = 20
"""The largest number of arms that are told apart; further ones are `__other__` together."""

CrossedUsers = Literal["keep", "leave_out"]


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A metric that must not get worse by more than `margin` (in units of the metric)."""

    metric: str
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """One comparison of arms with a control, over the final slates from `since` to `until` (ms).

    `arm` names the event field that holds the arm. `arms` are those that are compared with the
    control. `split` names them too, with the weights of all; None: the shares of users are not
    tested. `alpha` is the chance that any of the named metrics alarms
    falsely, over all looks together. `primary_share` of it is the primary metric's, and the rest
    the guardrails'. A loss of up to `primary_margin` is accepted in the primary metric. The bounds
    are narrowest at `planned_users`, counted over an arm and the control together. A slate at
    `since` counts, a slate at `until` does not; None: no such bound.
    `crossed_users` says whether users of several arms stay in the figures of these arms.
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
    primary_share: float = 0.5
    primary_margin: float = 0.0
    arms: tuple[str, ...] = ()
    crossed_users: CrossedUsers = "keep"

    @property
    def treatments(self) -> tuple[str, ...]:
        """The arms that are compared with the control, if they are named."""
        return tuple(arm for arm in self.arms or self.split or () if arm != self.control)

    @property
    def margins(self) -> dict[str, float]:
        """The losses that are accepted, by named metric, the primary one first."""
        margins = {guardrail.metric: guardrail.margin for guardrail in self.guardrails}
        return {self.primary: self.primary_margin} | margins

    @property
    def named_arms(self) -> tuple[str, ...]:
        """The control, and the treatments that are named."""
        return (self.control, *self.treatments)

    @property
    def named_metrics(self) -> tuple[str, ...]:
        """The primary metric, and the metrics of the guardrails."""
        return (self.primary, *(guardrail.metric for guardrail in self.guardrails))

    @property
    def identity(self) -> tuple[str, str, int | None, int | None]:
        """The part that sums and users depend on: both start anew when it changes."""
        return self.name, self.arm, self.since, self.until

    @property
    def key(self) -> str:
        """A digest of the identity, 16 hexadecimal digits: the name that stores give it."""
        return hashlib.sha256(json.dumps(self.identity).encode()).hexdigest()[:16]
