"""Running the checks of a specification, and what comes out as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streameval.offline.checks.evidence import Evidence, readable
from streameval.offline.checks.result import CheckSettings, Result
from streameval.offline.checks.table import CHECKS
from streameval.offline.specification import Specification


def run(
    evidence: Evidence,
    specification: Specification,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Result]:
    """Run each check that is not off, in the order of the table. Raises `UnreachableError`."""
    for check in CHECKS:
        settings: CheckSettings = getattr(specification, check.name)
        if settings.severity == "off":
            continue
        begin = clock()
        with readable():
            found = check.run(evidence, settings)
        yield Result(
            check.name,
            found.passed,
            settings.severity,
            found.value,
            found.threshold,
            found.message,
            clock() - begin,
        )


def failed(results: Sequence[Result]) -> bool:
    """Whether a check of severity error failed: exit code 1."""
    return any(result.passed is False and result.severity == "error" for result in results)


def document(results: Sequence[Result], now: int) -> dict[str, Any]:
    """What `streameval check --json` prints; `now` (ms) is the time that freshness goes by."""
    return {
        "passed": not failed(results),
        "time": now,
        "checks": [result.document() for result in results],
    }
