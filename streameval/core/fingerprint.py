"""What stored state depends on: the definition, and what this version makes of every definition.

State that was written under one description is refused under another, and the refusal says what
changed. This stands apart from `definition` because the catalogue brings numpy with it.
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


def _of_version() -> dict[str, object]:
    """What no configuration changes: columns of scores, their unit, clusters, and bounds."""
    return {
        "metrics": [metric.name for metric in RANKING],
        "score_scale": NANO,
        "clusters": CLUSTERS,
        "max_items": MAX_ITEMS,
        "max_position": MAX_POSITION,
        "max_feedback_kinds": MAX_FEEDBACK_KINDS,
    }


def described(definition: Definition) -> dict[str, Any]:
    """Everything that state under `definition` depends on, as plain values."""
    return definition.described() | _of_version()


def fingerprint(definition: Definition) -> str:
    """A short digest of it: equal where state of one can be used by the other."""
    text = json.dumps(described(definition), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, str]:
    """What changed between two descriptions: a phrase by key."""
    plain = json.loads(json.dumps(current))
    return {
        key: f"{key} was {stored.get(key)!r} and is {plain.get(key)!r}"
        for key in sorted({*stored, *plain})
        if stored.get(key) != plain.get(key)
    }


def refuse_other_description(
    fingerprint_stored: str | None, stored: str | None, definition: Definition
) -> None:
    """Raise `UnusableStateError` for state whose stored fingerprint is another one's.

    `stored` is the description (JSON) that is stored beside it.
    """
    if fingerprint_stored not in {None, fingerprint(definition)}:
        refuse_other_definition(json.loads(stored or "{}"), definition)


def refuse_other_definition(stored: Mapping[str, Any], definition: Definition) -> None:
    """Raise `UnusableStateError`, saying what changed, for state of another description."""
    changes = differences(stored, described(definition))
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
