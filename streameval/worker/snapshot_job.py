"""The leader's periodic job: a snapshot every `snapshot_interval`, in a process of its own.

Another process follows. If there are outcome files, it computes the positive rate of the last whole
day, and the figures of experiments without crossed users. If `checks` names a specification, it
runs the checks. Their results lie beside the snapshot, and the leader shows the newest. If they
take longer than the interval, snapshots go on meanwhile. The newest snapshot is checked next, and
those in between are not.

A snapshot restores each partition's state. In the worker that would cost memory and stop commits
for seconds. The process gets the leader's fencing token, so it can tell when it was replaced. The
newest folder tells the time of the last snapshot, so a new leader does not begin the interval anew.

The process is a plain child. One of `multiprocessing` unblocks the signals that `shutdown` waits
for. The settings go to it through a pipe, since they hold secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from streameval.base.errors import StreamevalError, UnreachableError
from streameval.base.extras import EXTRAS, install, is_installed
from streameval.base.paths import exists
from streameval.config import logs
from streameval.files.locations import end_process
from streameval.files.snapshot_folder import (
    DAILY,
    claim,
    last_daily,
    last_results,
    snapshots,
    taken_at,
)
from streameval.web.status import CheckStatus, DailyStatus

if TYPE_CHECKING:
    from streameval.config.settings import Settings

log = logging.getLogger(__name__)
T = TypeVar("T")

# A failed job is tried again after so long, or after the interval if that is shorter.
RETRY_SECONDS: Final = 60.0
# The process runs beside a worker that is busy.
NICENESS: Final = 10
# How far back the checks compare: four weeks and three days, in ms.
COMPARED_MS: Final = 31 * 86_400_000

Process = subprocess.Popen[bytes]


class SnapshotSchedule:
    """Starts a snapshot when one is due, if this worker leads; `turn` is called every 2 s.

    Raises `RefusedError` for a folder of another deployment.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        if settings.snapshots is not None:
            with contextlib.suppress(UnreachableError):  # each snapshot tells it
                claim(settings.snapshots, settings.owner)
        self._interval = settings.snapshot_interval / 1000
        if settings.snapshots is not None and self._follows() and not is_installed("duckdb"):
            log.warning(
                "scheduled checks and the daily positive rate need DuckDB, which is not installed,"
                " and do not run: %s",
                install(EXTRAS["duckdb"]),
            )
        self._process: Process | None = None
        # The process after a snapshot: of which one, since when it runs, whether it has left the
        # day's figures, and whether the newest waits for one.
        self._following: Process | None = None
        self._followed = Path()
        self._followed_since = 0.0
        self._has_day = self._is_waiting = self._is_late = False
        self._token: int | None = None
        self._left: tuple[list[CheckStatus], DailyStatus | None] = [], None
        self._is_read = False
        self._read_not_before = self._not_before = 0.0

    def turn(self, token: int | None) -> None:
        """Look after a snapshot under way, or begin one; `token` is None unless this worker leads.

        Errors are only logged: counting does not wait for snapshots.
        """
        if token != self._token:  # another led meanwhile, and left something else
            self._token, self._left = token, ([], None)
            self._is_read, self._read_not_before = False, 0.0
        self._look_after_snapshot()
        self._look_after_followers()
        if token is None:
            return
        try:
            if self._process is None and self._due(time.time()):
                self._process = self._begin(token)
            if self._is_waiting and self._following is None:
                self._follow(token)
        except (StreamevalError, OSError) as error:
            log.warning("no snapshot: %s", error)
            self._not_before = self._later()

    def _look_after_snapshot(self) -> None:
        code = None if self._process is None else self._process.poll()
        if code is None:
            return
        if code != 0:
            log.warning("the snapshot failed (exit code %s)", code)
            self._not_before = self._later()
        self._process = None
        answerable = self._follows() and is_installed("duckdb")
        self._is_waiting = self._is_waiting or (code == 0 and answerable)

    def _follows(self) -> bool:
        return self._settings.outcomes is not None or self._settings.checks is not None

    def _look_after_followers(self) -> None:
        if self._following is None:
            return
        code = self._following.poll()
        if code is None:
            self._look_for_day()
            if not self._is_late and time.time() > self._followed_since + self._interval:
                self._is_late = True
                log.warning(
                    "the checks take longer than snapshot_interval (%.0f s): snapshots go on, and"
                    " the checks look at the newest when they are through",
                    self._interval,
                )
            return
        if code != 0:
            log.warning("the checks failed (exit code %s)", code)
        self._following, self._is_read, self._read_not_before = None, False, 0.0

    def _look_for_day(self) -> None:
        """Have the results read again once the day's figures are there: long before the checks."""
        with contextlib.suppress(OSError):  # the next turn looks again
            if not self._has_day and exists(self._followed / DAILY):
                self._has_day, self._is_read = True, False

    def _follow(self, token: int) -> None:
        """Begin the process that follows the newest snapshot."""
        assert self._settings.snapshots is not None, "a snapshot was taken"
        newest = snapshots(self._settings.snapshots)[-1:]
        self._has_day = self._is_waiting = self._is_late = False
        if newest:
            self._following, self._followed_since = self._begin(token, newest[0]), time.time()
            self._followed = newest[0]

    def _later(self) -> float:
        return time.time() + min(RETRY_SECONDS, self._interval)

    def _begin(self, token: int, folder: Path | None = None) -> Process:
        """Begin a snapshot, or the process that follows the one in a folder."""
        command = [sys.executable, "-m", __name__]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603  our own module
        assert process.stdin is not None
        # A pipe holds far more, so this never waits. A process that is gone has an exit code.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            # Checks under way need their snapshots: they remove old ones at their end instead.
            tidy = self._following is None
            pickle.dump((self._settings, token, folder, tidy), pipe)
        return process

    def results(self) -> list[CheckStatus]:
        """Return the results of the checks of the newest checked snapshot."""
        return self._read()[0]

    def daily(self) -> DailyStatus | None:
        """Return the positive rate of the last whole day; None before there is one."""
        return self._read()[1]

    def _read(self) -> tuple[list[CheckStatus], DailyStatus | None]:
        """Read the results that processes of any worker left, and again once ours left some.

        If they cannot be read, the last known ones stay.
        """
        if not self._is_read and time.time() >= self._read_not_before:
            checks, daily = self._left
            self._is_read = True
            self._left = self._tried(_last_results, checks), self._tried(_last_daily, daily)
        return self._left

    def _tried(self, read: Callable[[Settings], T], known: T) -> T:
        try:
            return read(self._settings)
        except (StreamevalError, ValueError) as error:
            log.warning("results beside the snapshots are not shown: %s", error)
            self._is_read, self._read_not_before = False, self._later()
            return known

    @property
    def check_interval(self) -> float | None:
        """Seconds between two runs of the checks; None without checks."""
        settings = self._settings
        checked = settings.snapshots is not None and settings.checks is not None
        return self._interval if checked else None

    @property
    def running_seconds(self) -> float | None:
        """For how many seconds the checks under way have run; None if none are."""
        if self._following is None or self._settings.checks is None:
            return None
        return max(0.0, time.time() - self._followed_since)

    def stop(self) -> None:
        """End processes under way; nobody looks at their unfinished files."""
        for process in (self._process, self._following):
            if process is not None:
                process.kill()
                process.wait()

    def _due(self, now: float) -> bool:
        if self._settings.snapshots is None or now < self._not_before:
            return False
        known = snapshots(self._settings.snapshots)
        return not known or now >= taken_at(known[-1]) + self._interval


def main() -> int:
    """Take one snapshot, or do the work that follows one; return an exit code."""
    settings, token, folder, tidy = pickle.load(sys.stdin.buffer)  # noqa: S301  what `_begin` wrote
    os.nice(NICENESS)
    logs.configure(settings.log_level, settings.log_format)
    if folder is None:
        return _snapshot(settings, token, tidy=tidy)
    return _followers(settings, token, folder)


def _snapshot(settings: Settings, token: int, *, tidy: bool) -> int:
    from streameval.files.snapshots import take

    try:
        folder = asyncio.run(take(settings, token, tidy=tidy))
    except StreamevalError as error:
        log.warning("no snapshot: %s", error)
        return error.exit_code
    log.info("snapshot %s", folder)
    if not is_installed("duckdb"):  # else at the end of the checks, which may need the files
        _discard_copies(settings, time.time())
        _remove_old(settings)
    return 0


def _followers(settings: Settings, token: int, folder: Path) -> int:
    """Do the work that follows a snapshot; then remove the old snapshots and copies it kept."""
    from streameval.files.snapshots import retire_old

    begun, went_through = time.time(), []
    if settings.outcomes is not None:
        went_through += [_without_crossed(settings, token), _daily(settings, folder)]
    if settings.checks is not None:
        went_through.append(_check(settings, folder))
    try:
        retire_old(settings)
    except StreamevalError as error:
        log.warning("old snapshots stay: %s", error)
    if all(went_through):  # else the next run wants copies that this one did not use
        _discard_copies(settings, begun)
    _remove_old(settings)
    return 0


def _discard_copies(settings: Settings, begun: float) -> None:
    """Remove the copies of outcome files that no job has used since two intervals before `begun`.

    Snapshots use some too, and go on while checks take longer than the interval. Errors are only
    logged.
    """
    from streameval.files.outcome_days import COPIES, discard_unused

    assert settings.snapshots is not None, "a snapshot was taken"
    try:
        since = begun - 2 * settings.snapshot_interval / 1000
        discard_unused(settings.snapshots / COPIES, since)
    except StreamevalError as error:
        log.warning("old copies of outcome files stay: %s", error)


def _remove_old(settings: Settings) -> None:
    """Remove the outcome files that are older than wanted; errors are only logged."""
    if settings.outcomes is None or settings.outcome_keep is None:
        return
    from streameval.files.outcome_files import OutcomeFolder

    end = needed_from(settings, round(time.time() * 1000))
    try:
        removed = OutcomeFolder(settings.outcomes, {}, {}, ()).remove_before(end)
    except StreamevalError as error:
        log.warning("old outcome files stay: %s", error)
    else:
        if removed:
            log.info("removed %d outcome files older than outcome_keep", removed)


def needed_from(settings: Settings, now: int) -> int:
    """Return the time (ms) from which outcome files are kept: by age, and by who needs them."""
    assert settings.outcome_keep is not None, "the caller has looked"
    definition = settings.definition()
    longest = max(window.size for window in definition.windows)
    begun = [experiment.since or 0 for experiment in definition.experiments]
    needed = min(now - max(COMPARED_MS, longest), *begun, now)
    return min(now - settings.outcome_keep, needed - definition.horizon)


def _without_crossed(settings: Settings, token: int) -> bool:
    """Report figures without crossed users; errors are only logged, as in `_daily`."""
    from streameval.worker.without_crossed import report_without_crossed

    try:
        asyncio.run(report_without_crossed(settings, token))
    except StreamevalError as error:
        log.warning("no figures without crossed users: %s", error)
        return False
    return True


def _daily(settings: Settings, folder: Path) -> bool:
    """Compute the daily rate, and tell whether it went through.

    Errors are only logged, since the snapshot is good without it.
    """
    from streameval.checks.daily_rate import take_daily

    try:
        take_daily(settings, folder)
    except StreamevalError as error:
        log.warning("no daily positive rate: %s", error)
        return False
    return True


def _check(settings: Settings, folder: Path) -> bool:
    """Run the checks; errors are only logged, as in `_daily`."""
    from streameval.checks.scheduled import check_snapshot, failures

    try:
        results = check_snapshot(settings, folder)
    except StreamevalError as error:
        log.warning("no checks: %s", error)
        return False
    for result in failures(results):
        log.warning("check %s failed: %s", result.name, result.message)
    log.info("%d checks ran", len(results))
    return True


def _last_results(settings: Settings) -> list[CheckStatus]:
    if settings.checks is None or settings.snapshots is None:
        return []
    found = last_results(settings.snapshots)
    if found is None:
        return []
    return [
        CheckStatus(
            one["name"],
            one["severity"],
            one["passed"],
            one["value"],
            found["time"] / 1000,
            one["seconds"],
            _seconds_since(one["unanswered_since"], found["time"]),
            one["message"],
        )
        for one in found["checks"]
    ]


def _seconds_since(begin: int | None, end: int) -> float | None:
    """Return the seconds between two times in ms; None if it did not begin."""
    return None if begin is None else max(0, end - begin) / 1000


def _last_daily(settings: Settings) -> DailyStatus | None:
    if settings.outcomes is None or settings.snapshots is None:
        return None
    found = last_daily(settings.snapshots)
    if found is None:
        return None
    begin = datetime.fromisoformat(found["day"]).replace(tzinfo=UTC).timestamp()
    return DailyStatus(begin, found["users"], found["rates"])


if __name__ == "__main__":
    end_process(main())
