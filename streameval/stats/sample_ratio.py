"""Sample ratio mismatch: whether users fall into the variants as the split says.

A split of 52/48 where 50/50 was configured means that assignment, logging or filtering differs by
variant, and then no other figure of the experiment can be believed. The test is sequential: it may
be looked at after every user, and its false alarms stay below alpha over all looks together (χ²
looked at repeatedly: 55-58 %).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats
from streameval.base.errors import InputError

ALPHA = 0.001
# How close to the configured split the alternatives are looked for: large finds small mismatches.
CONCENTRATION = 1_000.0
# Users in several arms above this share of all users make the arms incomparable.
MAX_CROSSED = 0.01


@dataclass(frozen=True, slots=True)
class RatioMismatch:
    """How the users fell into the variants.

    `log_evidence` is ln E, the evidence against the split; `p_value` min(1, 1/E), the smallest so
    far; `alarm` says E ≥ 1/alpha now or earlier. `observed` and `expected` are shares by variant.
    """

    users: int
    observed: dict[str, float]
    expected: dict[str, float]
    log_evidence: float
    p_value: float
    alarm: bool


def ratio_mismatch(
    counts: Mapping[str, int],
    split: Mapping[str, float],
    alpha: float = ALPHA,
    earlier_p_value: float = 1.0,
) -> RatioMismatch:
    """Judge `counts` (users by variant, each once) against `split` (weights by variant).

    A user of a variant that the split does not name is impossible: E is infinite. The test never
    takes evidence back: `earlier_p_value` comes from the look before.

    Raises InputError for a split without two variants of positive weight.
    """
    expected = shares(split)
    total = sum(counts.values())
    if any(count > 0 and variant not in expected for variant, count in counts.items()):
        evidence = math.inf
    else:
        found = [counts.get(variant, 0) for variant in expected]
        evidence = float(log_evidence(found, list(expected.values())))
    p_value = min(earlier_p_value, 1.0, math.exp(-evidence) if evidence > 0 else 1.0)
    names = [*expected, *sorted(set(counts) - set(expected))]
    return RatioMismatch(
        users=total,
        observed={name: counts.get(name, 0) / total if total else 0.0 for name in names},
        expected=expected,
        log_evidence=evidence,
        p_value=p_value,
        alarm=p_value <= alpha,
    )


class SplitEvidence(NamedTuple):
    """ln E, the evidence against the split, and min(1, 1/E)."""

    log_evidence: float
    p_value: float


def split_evidence(users_by_arm: Mapping[str, int], split: Mapping[str, float]) -> SplitEvidence:
    """Weigh the users of each arm against the configured `split`; look as often as you like.

    Users of an arm that `split` does not name are left out: that they exist is a finding of its
    own. Raises InputError for a split without two arms of positive weight.
    """
    named = {arm: count for arm, count in users_by_arm.items() if arm in split}
    found = ratio_mismatch(named, split)
    return SplitEvidence(found.log_evidence, found.p_value)


class CrossedUsers(NamedTuple):
    """The share of users who were in several arms, and whether that is surely more than allowed."""

    share: float | None
    p_value: float
    too_many: bool


def crossed_bound(crossed: int, users: int, alpha: float = ALPHA) -> CrossedUsers:
    """Tell whether more than `MAX_CROSSED` of all users (crossed ones included) are crossed.

    The test is the one of the split, with the parts `MAX_CROSSED` and the rest, and alarms on one
    side only. One crossed user of the first fifty raises no alarm; look as often as you like.
    """
    assert 0 <= crossed <= users, "a crossed user is a user"
    share = crossed / users if users else None
    if share is None or share <= MAX_CROSSED:
        return CrossedUsers(share, 1.0, too_many=False)
    evidence = float(log_evidence([crossed, users - crossed], [MAX_CROSSED, 1 - MAX_CROSSED]))
    p_value = math.exp(-max(evidence, 0.0))
    return CrossedUsers(share, p_value, too_many=p_value <= alpha)


def shares(split: Mapping[str, float]) -> dict[str, float]:
    """The weights of a split divided by their sum: {"A": 9, "B": 1} is 0.9 and 0.1."""
    if len(split) < 2 or not all(0 < weight < math.inf for weight in split.values()):
        raise InputError("a split needs two variants or more, each with a weight above 0")
    total = sum(split.values())
    return {variant: weight / total for variant, weight in split.items()}


def log_evidence(
    counts: npt.ArrayLike, expected: npt.ArrayLike, concentration: float = CONCENTRATION
) -> Floats:
    """Return ln E, shape (...), for `counts` (..., variants) against the shares `expected`.

    E = Γ(κ)/Γ(κ+n) · Π Γ(κp_k+S_k)/Γ(κp_k) · Π p_k^(−S_k): the likelihood under shares drawn from
    a Dirichlet distribution around the split, over that under the split. A martingale with mean 1
    if the split holds, so it ever reaches 1/alpha with a chance of at most alpha (Ville). Lindon
    and Malek, "Anytime-valid inference for multinomial count data", NeurIPS 2022, arXiv 2011.03567.
    """
    found = np.asarray(counts, np.float64)
    split = np.asarray(expected, np.float64)
    total = found.sum(axis=-1)
    gamma = np.vectorize(math.lgamma, otypes=[np.float64])
    answer = math.lgamma(concentration) - gamma(concentration + total)
    for variant, share in enumerate(split.tolist()):
        seen = found[..., variant]
        start = concentration * share
        answer = answer + gamma(start + seen) - math.lgamma(start) - seen * math.log(share)
    return np.asarray(answer)
