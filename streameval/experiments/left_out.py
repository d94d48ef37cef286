"""Slates that no arm of an experiment has: how many, and what they are.

An arm that is written on the success branch only is missing where a list fell back or stayed empty.
The figures of all arms then leave out the very slates in which the arms may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streameval.core.experiments.sums import ArmSums

# The share of slates without an arm from which on there is a warning.
NOTICED: Final = 0.01


def without_arm(arms: ArmSums) -> dict[str, Any]:
    """Return the slates without an arm, their share, and how many are fallbacks, and empty."""
    total = arms.without_arm + arms.with_arm
    return {
        "without_arm": arms.without_arm,
        "without_arm_share": arms.without_arm / total if total else None,
        "without_arm_fallback": arms.without_arm_fallback,
        "without_arm_empty": arms.without_arm_empty,
    }


def without_arm_sentence(found: Mapping[str, Any], field: str) -> str | None:
    """Return a sentence on slates without an arm (`without_arm`); None where there are none.

    `field` holds the arm. Where no slate has it, nothing is left out of any figure.
    """
    count, share = found["without_arm"], found["without_arm_share"]
    if not share or share == 1:
        return None
    seems = ""
    if 2 * max(found["without_arm_fallback"], found["without_arm_empty"]) >= count:
        seems = ": the arm seems to be written on the success branch only"
    return (
        f"{count:,} of {round(count / share):,} slates ({_percent(share)}) have no {field}, and the"
        f" figures of the arms leave them out; {_kinds(found)}{seems}."
    )


def without_arm_warning(found: Mapping[str, Any], field: str) -> str | None:
    """Return the sentence with what to do, where so many slates have no arm; else None."""
    said = without_arm_sentence(found, field)
    if said is None or found["without_arm_share"] < NOTICED:
        return None
    return (
        f"{said} Have producers send {field} with every slate of the experiment. Nothing is wrong"
        " if these slates lie outside of it on purpose, such as on another surface."
    )


def without_arm_remark(found: Mapping[str, Any], field: str) -> str | None:
    """Return the sentence where too few slates for a warning have no arm; else None."""
    is_warned = without_arm_warning(found, field) is not None
    return None if is_warned else without_arm_sentence(found, field)


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= NOTICED else f"{share:.2%}"


def _kinds(found: Mapping[str, Any]) -> str:
    """Say how many slates without an arm are fallbacks, and how many are empty."""
    count = found["without_arm"]
    kinds = [
        (found["without_arm_fallback"], "fallbacks"),
        (found["without_arm_empty"], "empty"),
    ]
    told = [
        f"{'all' if number == count else f'{number:,}'} of them are {kind}"
        for number, kind in kinds
        if number
    ]
    return " and ".join(told) or "none of them is a fallback or empty"
