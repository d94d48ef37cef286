"""Plans of experiments from the stream's own variance, as outcome files have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streameval.base.counts import count_of
from streameval.evaluation.answer import Note
from streameval.evaluation.arms import EVERYBODY, Arms
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.confidence_sequences import FLOOR
from streameval.stats.plan import Plan, smallest_effect, spread_of, users_for


@dataclass(frozen=True, slots=True)
class Wanted:
    """The lift that an experiment is to show: relative, with a `power` and false alarms `alpha`.

    `share` is the treatment's share of the users.
    """

    lift: float
    alpha: float
    power: float
    share: float


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a metric: the users of both arms for an effect, and the smallest effect.

    `value` is the figure over all users so far. `needed` are the users that show `effect`;
    `smallest` is the effect that as many users as there are now show. None: the users do not differ
    yet, or the figure is 0.
    """

    metric: str
    users: int
    value: float | None
    effect: float | None
    needed: Plan | None
    smallest: Plan | None

    def document(self, wanted: Wanted) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        needed = (None, None) if self.needed is None else self.needed
        smallest = (None, None) if self.smallest is None else self.smallest
        return {
            "metric": self.metric,
            "users": self.users,
            "value": self.value,
            "lift": wanted.lift,
            "effect": self.effect,
            "users_one_look": needed[0],
            "users_all_looks": needed[1],
            "smallest_effect_one_look": smallest[0],
            "smallest_effect_all_looks": smallest[1],
        }


def few_users(arms: Arms) -> list[Note]:
    """Return a note where the users are too few to know a variance."""
    users = arms.user_arms.count(arms.experiment.key)
    if users >= FLOOR:
        return []
    text = f"Of {count_of(users, 'user')}: the variance of fewer than {FLOOR} is hardly known."
    return [Note("few_users", users, text)]


def plan(arms: Arms, metrics: Sequence[str], wanted: Wanted) -> list[Planned]:
    """Plan each metric from the sums of all users."""
    return [_plan(metric, arms.ratio(metric, EVERYBODY), wanted) for metric in metrics]


def _plan(metric: str, sums: ClusterSums, wanted: Wanted) -> Planned:
    value = sums.value
    spread = spread_of(sums, wanted.share)
    effect = None if value is None else abs(value) * wanted.lift
    if not spread or not effect:
        return Planned(metric, sums.users, value, effect, None, None)
    here = smallest_effect(sums.users, spread, sums.users, wanted.alpha, wanted.power)
    needed = users_for(effect, spread, wanted.alpha, wanted.power)
    return Planned(metric, sums.users, value, effect, needed, here)
