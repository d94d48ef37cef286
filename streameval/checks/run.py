"""Running the checks of a specification, and their results as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb

from streameval.base.errors import InputError
from streameval.checks.catalogue import CHECKS
from streameval.checks.evidence import Evidence, readable
from streameval.checks.result import Check, CheckSettings, Found, Result
from streameval.checks.specification import Specification
from streameval.files.locations import UnreadableError


def run(
    evidence: Evidence,
    specification: Specification,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Result]:
    """Run each check that is not off, in the order of the table.

    A check that cannot be run has failed, and the others go on. Raises `UnreadableError` and
    `UnreachableError` for the outcome files, because every check reads them.
    """
    for check in CHECKS:
        settings: CheckSettings = getattr(specification, check.name)
        if settings.severity == "off":
            continue
        begin = clock()
        found = _found(check, evidence, settings)
        yield Result(
            check.name,
            found.passed,
            settings.severity,
            found.value,
            found.threshold,
            found.message,
            found.due,
            clock() - begin,
        )


def _found(check: Check, evidence: Evidence, settings: CheckSettings) -> Found:
    try:
        with readable():
            return check.run(evidence, settings)
    except UnreadableError:
        raise
    except (InputError, duckdb.Error) as error:
        said = str(error).splitlines()[0]
        return Found(passed=False, value=None, threshold=None, message=f"cannot be run: {said}")


def has_failed(results: Sequence[Result]) -> bool:
    """Tell whether a check of severity error failed: exit code 1."""
    return any(result.passed is False and result.severity == "error" for result in results)


def document(results: Sequence[Result], now: int) -> dict[str, Any]:
    """Return the document of `streameval check --json`; `now` (ms) is the present."""
    return {
        "passed": not has_failed(results),
        "time": now,
        "checks": [result.document() for result in results],
    }
