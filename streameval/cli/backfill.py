"""`streameval backfill`: options, the request, and what to do with the file."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from streameval.base.durations import Duration
from streameval.base.errors import InputError
from streameval.base.instants import instant
from streameval.cli.common import Config, settings_of

if TYPE_CHECKING:
    from streameval.backfill.logs import Log
    from streameval.backfill.run import Span
    from streameval.backfill.work_folder import WorkFolder
    from streameval.config.settings import Settings

EPILOG: Final = (
    "Example: streameval backfill --from 2026-01-05T00:00:00Z --to 2026-01-06T00:00:00Z"
    " --label job=streameval --output day.om"
    " && promtool tsdb create-blocks-from openmetrics day.om data/"
)
# Prometheus takes a sample for gone after five minutes; its parser takes whole seconds exactly.
_STEP: Final = Duration("1s", "5m")
_SECOND: Final = 1_000
_OWN: Final = frozenset({"window", "basis", "feedback", "k", "rank"})
"""Labels that series of figures have beside the dimensions."""


def backfill(  # noqa: PLR0917  # typer passes them by name
    begin: Annotated[
        str, typer.Option("--from", help="The first step (ms since the epoch, or RFC 3339).")
    ],
    end: Annotated[str, typer.Option("--to", help="The last step.")],
    output: Annotated[Path, typer.Option(help="The file of OpenMetrics to write.")],
    step: Annotated[str, typer.Option(help="Time between two samples, 1s to 5m.")] = "1m",
    files: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Read event files, one partition in the order given; default: the topic.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Put a label into every series, such as job=streameval."
        ),
    ] = None,
    config: Config = None,
) -> None:
    """Write the figures of a past span of time for Prometheus, as it would have scraped them.

    Reads the log once and takes the figures at each step. Start a killed run again, and it goes on
    where it was. Until the end its work is in FILE.partial.
    """
    settings = settings_of(config)
    from streameval.backfill.run import Span
    from streameval.backfill.run import backfill as fill
    from streameval.backfill.work_folder import WorkFolder
    from streameval.base.terminal import share_bar

    definition = settings.definition()
    first, last, width = instant(begin, "--from"), instant(end, "--to"), _step(step)
    if last > time.time() * _SECOND:
        raise InputError(f"--to {end}: lies in the future; give a time that has passed")
    span = Span.of(definition, first, last, width)
    if span.begin > span.end:
        raise InputError(f"--from {begin} --to {end}: no multiple of {step} lies in between")
    labels = _labels(label or (), definition.dimensions)
    with WorkFolder(output) as work:
        logs, notes = _logs(settings, span, files or (), labels, work)
        for note in notes:
            typer.echo(f"note: {note}", err=True)
        with share_bar("backfill", span.end - span.first_read) as advance:
            fill(
                definition,
                span,
                logs,
                work,
                labels=labels,
                advance=advance,
                decoder=settings.decoder(),
            )
        series, samples = work.finish()
    steps = (span.end - span.begin) // span.step + 1
    typer.echo(f"wrote {output}: {steps:,} steps, {series:,} series, {samples:,} samples")
    typer.echo(f"Next: promtool tsdb create-blocks-from openmetrics {output} DATA_OF_PROMETHEUS")


def _step(text: str) -> int:
    try:
        step = _STEP.parse(text)
    except ValueError as error:
        raise InputError(f"--step {text}: {error}") from None
    if not step or step % _SECOND:
        raise InputError(f"--step {text}: give whole seconds, such as 15s")
    return step


def _labels(texts: Sequence[str], dimensions: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name, re.ASCII) is None:
            raise InputError(f"--label {text}: write NAME=VALUE, such as job=streameval")
        if name in {*_OWN, *dimensions, *labels}:
            raise InputError(f"--label {text}: the series have a label {name} already")
        labels[name] = value
    return labels


def _logs(
    settings: Settings,
    span: Span,
    files: Sequence[str],
    labels: dict[str, str],
    work: WorkFolder,
) -> tuple[list[Log], Sequence[str]]:
    """Return the logs to read and the gaps in them; a run that goes on keeps its first logs."""
    from streameval.backfill.logs import Extent, find_topic, of_files, of_topic
    from streameval.files.event_tables import with_rows

    request: dict[str, Any] = {
        "definition": json.dumps(settings.definition().described()),
        "from, to or step": [span.begin, span.end, span.step],
        "labels": labels,
        "files or topic": [[name, _size(name)] for name in files],
    }
    if files:
        work.agree(request)
        return [of_files(with_rows(files))], ()
    topic = find_topic(settings, span.first_read)
    request |= {"files or topic": topic.identity, "extents": topic.extents}
    extents = [Extent(*each) for each in work.agree(request)["extents"]]
    return of_topic(settings, extents), topic.notes


def _size(name: str) -> int:
    from streameval.files.locations import require_name

    require_name(name)
    try:
        return Path(name).stat().st_size
    except OSError as error:
        raise InputError(f"--files {name}: cannot be read: {error.strerror}") from error
