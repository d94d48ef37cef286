"""`streameval check`: from options to results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from streameval.base.errors import ConfigError, InputError
from streameval.checks.event_log import of_files, of_kafka
from streameval.checks.evidence import gather
from streameval.checks.result import Result
from streameval.checks.run import run
from streameval.checks.specification import load
from streameval.files.locations import on_disk
from streameval.files.outcome_files import pseudonyms
from streameval.files.snapshot_folder import earlier_than, snapshots

if TYPE_CHECKING:
    from streameval.config.settings import Settings


def check(
    settings: Settings,
    now: int,
    *,
    outcomes: str | None = None,
    snapshot: Path | None = None,
    reference: str | None = None,
    spec: Path | None = None,
    logs: Sequence[str] = (),
) -> Iterator[Result]:
    """Run the checks; what is not given is taken from the settings.

    `snapshot` is then the newest of `snapshots`. `reference` is a path or URI. `logs` are
    PARTITION=FILE or PARTITION@OFFSET=FILE; without any, Kafka's is read. Raises ConfigError,
    InputError, UnreachableError.
    """
    specification = load(spec)
    root = outcomes or settings.outcomes
    if root is None:
        raise ConfigError("outcomes: name the folder of outcome files, here or with --outcomes")
    if snapshot is None and settings.snapshots is not None:
        snapshot = next(reversed(snapshots(settings.snapshots)), None)
    if snapshot is None and logs:
        raise InputError("--log: what is compared with the log is a snapshot: give --snapshot too")
    before = [] if snapshot is None else earlier_than(snapshot)
    key = settings.pseudonymize
    with gather(
        root,
        settings.definition(),
        now,
        snapshot=snapshot,
        reference=None if reference is None else on_disk(reference),
        period=specification.period,
        recorded=of_files(logs, settings.max_clock_skew) if logs else of_kafka(settings, before),
        user=None if key is None else pseudonyms(key.get_secret_value().encode()),
        users_expire=settings.user_ttl is not None,
    ) as evidence:
        yield from run(evidence, specification)
