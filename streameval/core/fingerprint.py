"""The description of stored state: the definition, and the constants of this version.

State that was written under one description is refused under another, and the refusal names the
differences. The module stands apart from `definition` because the metrics import numpy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from streameval.base.errors import UnusableStateError
from streameval.base.limits import CLUSTERS, MAX_FEEDBACK_KINDS, MAX_ITEMS, MAX_POSITION, NANO
from streameval.core.definition import Definition
from streameval.core.metrics import RANKING
from streameval.core.windows.aggregates import AGGREGATES


def _of_version() -> dict[str, object]:
    """Return the constants of this version: sums, columns of scores, clusters, and bounds."""
    return {
        "aggregates": [aggregate.name for aggregate in AGGREGATES],
        "metrics": [metric.name for metric in RANKING],
        "score_scale": NANO,
        "clusters": CLUSTERS,
        "max_items": MAX_ITEMS,
        "max_position": MAX_POSITION,
        "max_feedback_kinds": MAX_FEEDBACK_KINDS,
    }


def describe(definition: Definition) -> dict[str, Any]:
    """Return everything that state under `definition` depends on, as plain values."""
    return definition.described() | _of_version()


def fingerprint(definition: Definition) -> str:
    """Return a short digest of the description: equal where one can use the state of the other."""
    text = json.dumps(describe(definition), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, str]:
    """Return the differences between two descriptions: a phrase by key."""
    plain = json.loads(json.dumps(current))
    return {
        key: f"{key} was {stored.get(key)!r} and is {plain.get(key)!r}"
        for key in sorted({*stored, *plain})
        if stored.get(key) != plain.get(key)
    }


def refuse_other_description(
    fingerprint_stored: str | None, stored: str | None, definition: Definition
) -> None:
    """Raise `UnusableStateError` for state that has another fingerprint.

    `stored` is the description (JSON) beside the stored fingerprint.
    """
    if fingerprint_stored not in {None, fingerprint(definition)}:
        refuse_other_definition(json.loads(stored or "{}"), definition)


def refuse_other_definition(stored: Mapping[str, Any], definition: Definition) -> None:
    """Raise `UnusableStateError` with the differences for state of another description."""
    changes = differences(stored, describe(definition))
    if not changes:
        return
    if changes.keys() <= _of_version().keys():
        whose, cure = "version of streameval", "Run that version"
    else:
        whose, cure = "configuration", "Set it back"
    raise UnusableStateError(
        f"the stored state belongs to another {whose}: {'; '.join(changes.values())}."
        f" {cure}, or start the windows anew with `worker --reset-windows` (users' counters stay)"
    )
