"""Checks that follow each snapshot: the leader's process runs them and leaves `checks.json`.

The file lies beside the snapshot, in the form of `streameval check --json`. A worker that begins to
lead finds the last results there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streameval.base.errors import ConfigError, InputError
from streameval.base.paths import exists
from streameval.checks.catalogue import counters_match_log
from streameval.checks.event_log import of_kafka
from streameval.checks.evidence import gather
from streameval.checks.result import Result
from streameval.checks.run import document, run
from streameval.checks.specification import arm_of, load
from streameval.files.locations import reaching
from streameval.files.outcome_days import COPIES
from streameval.files.outcome_files import user_name
from streameval.files.snapshot_folder import CHECKS, earlier_than, last_results, taken_at
from streameval.files.snapshots import attach

# The end of `<check>.memory`, a file beside the snapshot for the next run.
MEMORY: Final = ".memory"

if TYPE_CHECKING:
    from streameval.config.settings import Settings


def check_snapshot(settings: Settings, folder: Path) -> list[Result]:
    """Check a snapshot and the outcome files, against an earlier snapshot if one exists.

    Raises ConfigError without `outcomes`, InputError, UnreachableError.
    """
    if settings.outcomes is None:
        raise ConfigError("outcomes: name the folder of outcome files, for `checks`")
    specification = load(settings.checks)
    definition = settings.definition()
    now = round(time.time() * 1000)
    memory = _memory(folder)
    with gather(
        settings.outcomes,
        definition,
        now,
        snapshot=folder,
        reference=reference_for(folder, specification.reference),
        period=specification.period,
        arm=arm_of(specification, definition),
        # Not that reference: the log since then may be long.
        recorded=lambda later, _: of_kafka(settings, *_candidates(folder))(later, None),
        user=user_name(settings),
        users_expire=settings.user_ttl is not None,
        memory=memory,
        copies=folder.parent / COPIES,
    ) as evidence:
        results = list(run(evidence, specification))
    for name, content in memory.items():
        attach(folder, f"{name}{MEMORY}", content)
    attach(folder, CHECKS, _document(results, now, _unanswered_since(folder)))
    return results


def _candidates(folder: Path) -> tuple[list[Path], bool]:
    """Return the snapshots at which a recount may begin, and whether offset 0 may too.

    A recount begins at the newest snapshot with right counters: an earlier run recounted those.
    Without such a snapshot (the check always failed, or the snapshot is gone) it begins at the
    oldest, or at offset 0.
    """
    before = earlier_than(folder)
    right = [
        number
        for number, path in enumerate(before)
        if exists(path / f"{counters_match_log.MEMORY}{MEMORY}")
    ]
    return (before[right[-1] :], False) if right else (before, True)


def _memory(folder: Path) -> dict[str, bytes]:
    """Read the files that the checks of the previous snapshot left for this run, by name."""
    for earlier in reversed(earlier_than(folder)):
        if exists(earlier / CHECKS):
            with reaching(str(earlier), "snapshots: "):
                return {
                    path.name.removesuffix(MEMORY): path.read_bytes()
                    for path in earlier.glob(f"*{MEMORY}")
                }
    return {}


def _document(results: Sequence[Result], now: int, known: Mapping[str, int]) -> dict[str, Any]:
    """Return the document of the results, with the time since when a due answer is missing."""
    found = document(results, now)
    for one in found["checks"]:
        missing = one["due"] and one["passed"] is None
        one["unanswered_since"] = known.get(one["name"], now) if missing else None
    return found


def _unanswered_since(folder: Path) -> dict[str, int]:
    """Read since when (ms) checks had no answer at the run before, by name."""
    try:
        before = last_results(folder.parent)
    except InputError:
        return {}  # damaged: counted anew
    found = [] if before is None else before["checks"]
    return {
        one["name"]: one["unanswered_since"] for one in found if one["unanswered_since"] is not None
    }


def reference_for(folder: Path, age: int) -> Path | None:
    """Return the newest snapshot that is `age` (ms) older than `folder`, else the oldest one."""
    before = earlier_than(folder)
    old = [path for path in before if taken_at(path) <= taken_at(folder) - age / 1000]
    return old[-1] if old else next(iter(before), None)


def failures(results: Sequence[Result]) -> list[Result]:
    """Return the results that failed, of any severity."""
    return [result for result in results if result.passed is False]
