"""`streameval check`: options, the checks, their results on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from streameval.base.errors import ConfigError, InputError
from streameval.base.extras import require
from streameval.base.instants import instant
from streameval.cli.common import Config, Json, print_json, settings_of

if TYPE_CHECKING:
    from streameval.checks.result import Result
    from streameval.config.settings import Settings


class Sources(NamedTuple):
    """The files to check; the settings name those that are left out.

    `reference` is a path or URI. `logs` are PARTITION=FILE or PARTITION@OFFSET=FILE; without any,
    Kafka is read.
    """

    outcomes: str | None = None
    snapshot: Path | None = None
    reference: str | None = None
    spec: Path | None = None
    logs: Sequence[str] = ()


def command(  # noqa: PLR0917  # typer passes them by name
    outcomes: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder or URI of outcome files. Default: `outcomes`."),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A snapshot. Default: the newest of `snapshots`."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="An earlier snapshot, or a folder or URI of outcome files to compare with.",
        ),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML of thresholds and severities (see --schema)."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTITION[@OFFSET]=FILE",
            help="The log of a partition as JSON lines, a record a line, from this offset on."
            " Default: Kafka is read.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="The present, for the age of rows (ms, or RFC 3339). Default: now."),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of --spec and end.")
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Check outcome files, snapshots and the log. Exit code 1 if a check finds an error.

    Each check reports its finding and the cure; docs/checks.md explains them.
    """
    require("streameval check", "duckdb")
    from streameval.checks.specification import json_schema

    if schema:
        print_json(json_schema(), indent=2)
        return
    settings = settings_of(config)
    from streameval.checks import run
    from streameval.cli.tables import print_results

    now = round(time.time() * 1000) if at is None else instant(at)
    results = check(settings, now, Sources(outcomes, snapshot, reference, spec, log or ()))
    found = list(results) if as_json else print_results(results)
    if as_json:
        print_json(run.document(found, now))
    raise typer.Exit(int(run.has_failed(found)))


def check(settings: Settings, now: int, sources: Sources) -> Iterator[Result]:
    """Run the checks at the time `now` (ms).

    Raises ConfigError, InputError, UnreachableError.
    """
    from streameval.checks.event_log import of_files, of_kafka
    from streameval.checks.evidence import gather
    from streameval.checks.run import run
    from streameval.checks.specification import arm_of, load
    from streameval.files.locations import on_disk
    from streameval.files.outcome_files import user_name
    from streameval.files.snapshot_folder import earlier_than, snapshots

    specification, definition = load(sources.spec), settings.definition()
    root = sources.outcomes or settings.outcomes
    if root is None:
        raise ConfigError("outcomes: name the folder of outcome files, here or with --outcomes")
    snapshot, logs, reference = sources.snapshot, sources.logs, sources.reference
    if snapshot is None and settings.snapshots is not None:
        snapshot = next(reversed(snapshots(settings.snapshots)), None)
    if snapshot is None and logs:
        raise InputError("--log: a log is compared with a snapshot: give --snapshot too")
    before = [] if snapshot is None else earlier_than(snapshot)
    with gather(
        root,
        definition,
        now,
        snapshot=snapshot,
        reference=None if reference is None else on_disk(reference),
        period=specification.period,
        arm=arm_of(specification, definition),
        recorded=of_files(logs, settings.decoder()) if logs else of_kafka(settings, before),
        user=user_name(settings),
        users_expire=settings.user_ttl is not None,
    ) as evidence:
        yield from run(evidence, specification)
