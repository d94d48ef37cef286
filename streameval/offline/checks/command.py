"""`streameval check`: from options to results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from streameval.core.errors import ConfigError, InputError
from streameval.core.events import Event, decode_batch
from streameval.offline.checks.evidence import Log, gather
from streameval.offline.checks.result import Result
from streameval.offline.checks.runner import run
from streameval.offline.outcomes import pseudonyms
from streameval.offline.snapshots import snapshots
from streameval.offline.specification import load
from streameval.replay import lines_of

if TYPE_CHECKING:
    from streameval.settings import Settings

_LOG = re.compile(r"(\d{1,9})(?:@(\d{1,18}))?=(.+)", re.DOTALL)


def check(
    settings: Settings,
    now: int,
    *,
    outcomes: str | None = None,
    snapshot: Path | None = None,
    reference: Path | None = None,
    spec: Path | None = None,
    logs: Sequence[str] = (),
) -> Iterator[Result]:
    """Run the checks; what is not given is taken from the settings.

    `snapshot` is then the newest of `snapshots`. `logs` are PARTITION=FILE or
    PARTITION@OFFSET=FILE. Raises ConfigError, InputError, UnreachableError.
    """
    specification = load(spec)
    root = outcomes or settings.outcomes
    if root is None:
        raise ConfigError("outcomes: name the folder of outcome files, here or with --outcomes")
    if snapshot is None and settings.snapshots is not None:
        snapshot = next(reversed(snapshots(settings.snapshots)), None)
    key = settings.pseudonymize
    evidence = gather(
        root,
        settings.definition(),
        now,
        snapshot=snapshot,
        reference=reference,
        period=specification.period,
        log=dict(read_log(text, settings.max_clock_skew) for text in logs),
        user=None if key is None else pseudonyms(key.get_secret_value().encode()),
    )
    return run(evidence, specification)


def read_log(text: str, max_clock_skew: int) -> tuple[int, Log]:
    """The partition and the log that an option names: a file of JSON lines, a record a line.

    A line's record timestamp is its event's own, as in `replay`. Raises `InputError`.
    """
    found = _LOG.fullmatch(text)
    if found is None:
        raise InputError(
            f"--log {text}: write PARTITION=FILE, or PARTITION@OFFSET=FILE where the file does not"
            " begin at offset 0"
        )
    events: list[Event | None] = []
    for values in lines_of(found[3]):
        events += decoded(values, None, max_clock_skew)
    return int(found[1]), Log(int(found[2] or 0), events)


def decoded(
    values: Sequence[bytes | None], timestamps: Sequence[int] | None, max_clock_skew: int
) -> Iterator[Event | None]:
    """The event of each record, None for a rejected one."""
    events, rejected = decode_batch(values, timestamps, max_clock_skew)
    wrong = {index for index, _ in rejected}
    good = iter(events)
    return (None if index in wrong else next(good) for index in range(len(values)))
