"""Figures of two arms side by side: the rows that `compare` and `evaluate --against` return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from streameval.base.errors import InputError
from streameval.experiments.past import adjusted_document
from streameval.experiments.words import comparison_sentence
from streameval.stats.experiments import Scored
from streameval.stats.regression_adjustment import Adjusted

# Arms that a message lists.
_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A figure of an arm beside the control's.

    `users` counts the arm's users, or with paired models the users of both. `labels` are the values
    that the two arms share. `adjusted` is the comparison by the users' past (CUPED).
    """

    metric: str
    arm: str
    control: str
    users: int
    scored: Scored
    name: str = ""
    role: str = "exploratory"
    labels: Mapping[str, str] = field(default_factory=dict)
    adjusted: Adjusted | None = None

    @property
    def is_decided(self) -> bool:
        """Whether the arm is better or worse."""
        return self.scored.verdict in {"better", "worse"}

    def document(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        row = {
            **({"name": self.name} if self.name else {}),
            **self.labels,
            "metric": self.metric,
            "role": self.role,
            "arm": self.arm,
            "control": self.control,
            "users": self.users,
            **asdict(self.scored),
        }
        if self.adjusted is not None:
            row["adjusted"] = adjusted_document(self.adjusted)
        return row

    def sentence(self) -> str:
        """Put the bounds for all looks into words."""
        return comparison_sentence(self.document(), self.labels)


def pairs_of(
    segments: Iterable[Sequence[str]], by: Sequence[str], control: str
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Pair each segment with the segment of the control, as (treatment, control), in order.

    The first dimension of `by` holds the arm, and the others are the same on both sides. Raises
    `InputError` without a control, and without another arm.
    """
    there = {tuple(segment) for segment in segments}
    arms = sorted({segment[0] for segment in there})
    require_arms(arms, by[0], control)
    return [
        (segment, (control, *segment[1:]))
        for segment in sorted(there)
        if segment[0] != control and (control, *segment[1:]) in there
    ]


def require_arms(arms: Sequence[str], dimension: str, control: str) -> None:
    """Raise `InputError` unless the control is one of at least two arms."""
    if not arms:
        raise InputError(f"--against {control}: there is nothing to compare: no row was found")
    if control not in arms:
        some = ", ".join(map(repr, arms[:_LISTED]))
        raise InputError(f"--against {control}: no {dimension} has this name; there are {some}")
    if len(arms) < 2:
        raise InputError(
            f"--against {control}: there is no other {dimension} to compare: give rows of another"
        )
