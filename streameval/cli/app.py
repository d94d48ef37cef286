"""The command line. Each command imports what it needs when it runs, so that help is instant.

Exit codes: 0 good, 1 a check failed or nothing was found, 2 bad input or configuration, 3 a server
cannot be reached. An error is one line on stderr that says what to do.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from streameval import __version__
from streameval.base.errors import InputError, StreamevalError

if TYPE_CHECKING:
    from streameval.config.load import Settings

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells have it."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a full or broken disk says."""

app = typer.Typer(
    name="streameval",
    help="Evaluate a recommender while it serves.",
    epilog="Example: streameval demo --seconds 60",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="STREAMEVAL_CONFIG", help="The YAML file of settings."),
]
Tables = list[str] | None


def _panel(name: str) -> Callable[..., Any]:
    """Options under a heading of their own, by what they say and what stands for their value."""

    def option(said: str, value: str | None = None) -> Any:
        return typer.Option(help=said, metavar=value, rich_help_panel=name)

    return option


_lists = _panel("Ranked lists")
_rated = _panel("Ratings and predictions")
_known = _panel("What is known of items and users")
_other = _panel("Other inputs")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def main() -> None:
    """Run the command line; ends the process with the documented exit code."""
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`): that is how they say enough.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        code = _failed(f"the output cannot be written: {error.strerror}", 1)
        # What is still to be written would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run() -> int:
    """Run a command; the line that says what went wrong, and the exit code."""
    try:
        code = app(standalone_mode=False)
    except StreamevalError as error:
        return _failed(str(error), error.exit_code)
    except typer.TyperException as error:
        said = f"{_usage_message(error)} (streameval --help shows how)"
        return _failed(said, InputError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _failed("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _failed(message: str, code: int) -> int:
    sys.stderr.write(f"streameval: {' '.join(message.split())}\n")
    return code


def _usage_message(error: typer.TyperException) -> str:
    message = getattr(error, "format_message", error.__str__)()
    return str(message).rstrip(".")


def _settings(config: Path | None) -> Settings:
    from streameval.config.load import load

    return load(config)


def _print_json(document: Mapping[str, Any]) -> None:
    # All of it before any is written: half a document is worse than none.
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InputError("a figure is not a finite number: look for one in the input") from error
    sys.stdout.write(f"{text}\n")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"streameval {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  # its callback acts on it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(InputError.exit_code)


@app.command(epilog="Example: streameval demo --seconds 60")
def demo(
    seconds: Annotated[
        int | None,
        typer.Option(min=1, help="End after so long, with a summary. Default: at Ctrl-C."),
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Use this Kafka, not the embedded one.")
    ] = None,
    redis: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this Redis, not the embedded one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same users and tastes.")] = 1,
    rate: Annotated[int, typer.Option(min=200, max=20_000, help="Events a second, about.")] = 2_000,
) -> None:
    """Show the whole service at work on a simulated recommender whose truth is known.

    Starts an embedded broker and store, a worker, and a stream with two variants. Figures and
    truth stand side by side; with --seconds the exit code is 1 where they disagree.
    """
    from streameval.demo.run import Options, run

    raise typer.Exit(run(Options(seconds, kafka, redis, seed, rate)))


@app.command(epilog="Example: streameval worker --config streameval.yaml")
def worker(
    config: Config = None,
    reset_windows: Annotated[
        bool,
        typer.Option(
            "--reset-windows",
            help="Where the stored windows cannot be used (the configuration or the format of"
            " checkpoints changed), start them anew and keep the users' counters.",
        ),
    ] = False,
) -> None:
    """Run the service: Kafka in, counters in Redis, figures on /metrics."""
    settings = _settings(config)
    from streameval.worker.app import run_worker

    raise typer.Exit(run_worker(settings, reset_windows=reset_windows))


@app.command(epilog="Example: zcat events.gz | streameval replay - --json | jq .rates")
def replay(
    files: Annotated[
        list[str], typer.Argument(help="JSON lines: plain, .gz or .zst, or - for standard input.")
    ],
    config: Config = None,
    at: Annotated[
        str | None,
        typer.Option(help="Move time on to here (ms since the epoch, or RFC 3339), as if idle."),
    ] = None,
    users: Annotated[bool, typer.Option("--users", help="With each user's counters.")] = False,
    rejected: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write every line that is rejected here (JSON lines), and why."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 where a line is rejected.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compute all figures of event files, with no server.

    The files are one partition, in the order given, through the same core as the service. The
    first lines that are rejected are named on standard error, with the reason.
    """
    reading_time = _instant(at) if at is not None else None
    definition = _settings(config).definition()
    from streameval.base.terminal import progress_bar
    from streameval.cli.rejected_lines import rejected_lines
    from streameval.cli.tables import print_figures
    from streameval.core import replay as replaying

    with rejected_lines(rejected) as found, progress_bar(files) as advance:
        document = replaying.replay(
            definition, files, advance, at=reading_time, with_users=users, on_rejected=found.add
        )
    if as_json:
        _print_json(document)
    else:
        print_figures(document)
    for line in found.report():
        typer.echo(line, err=True)
    raise typer.Exit(int(strict and found.count > 0))


@app.command(epilog="Example: streameval snapshot --config streameval.yaml")
def snapshot(config: Config = None, as_json: Json = False) -> None:
    """Take a snapshot of counters, windows and open slates into the folder `snapshots`.

    Reads Redis while workers go on, and changes nothing there. Prints the new folder.
    """
    settings = _settings(config)
    from streameval.files.snapshots import manifest_of, take

    folder = asyncio.run(take(settings))
    if as_json:
        _print_json({"snapshot": str(folder), **manifest_of(folder)})
    else:
        typer.echo(folder)


@app.command(
    epilog="Examples: streameval evaluate outcomes/ --metrics ndcg@10,map --by variant --ci"
    " · streameval evaluate --ratings test.csv --predictions model.csv --metrics rmse,mae_user"
)
def evaluate(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Outcome files, their folder or URI, slates (with --labels), an index's results"
            " (with --exact)."
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(metavar="LIST", help="Such as ndcg@10,map@5. Default: what fits the files."),
    ] = "",
    by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Also for each value of these: variant,surface.")
    ] = "",
    ci: Annotated[
        bool, typer.Option("--ci", help="Show 95 % intervals, clustered by user (JSON has them).")
    ] = False,
    labels: Annotated[Tables, _lists("What was relevant: list, item, gain.")] = None,
    run: Annotated[str | None, _lists("A TREC run; goes with --qrels.")] = None,
    qrels: Annotated[str | None, _lists("TREC's relevance judgements.")] = None,
    ties: Annotated[
        str | None,
        _lists(
            "At equal scores: trec_eval's order (default of a run) or the file's.", "trec|input"
        ),
    ] = None,
    complete: Annotated[
        bool, _lists("Lists that only the labels or qrels know count 0, or are left out.")
    ] = True,
    half_life: Annotated[float, _lists("The rank that counts half in half_life; above 1.")] = 5.0,
    neutral: Annotated[
        float, _lists("The gain that is worth nothing in half_life; not below 0.")
    ] = 0.0,
    ratings: Annotated[Tables, _rated("Ratings: user, item, rating[, prediction].")] = None,
    predictions: Annotated[
        Tables, _rated("Predictions of their own: user, item, prediction.")
    ] = None,
    threshold: Annotated[
        float | None, _rated("The rating from which on an item is relevant.")
    ] = None,
    scale: Annotated[str | None, _rated("The range of ratings, such as 1:5.", "LOW:HIGH")] = None,
    train: Annotated[Tables, _known("Who has what: user, item.")] = None,
    features: Annotated[Tables, _known("What items are like: item, feature[, value].")] = None,
    catalogue: Annotated[Tables, _known("The items there are: item.")] = None,
    neighbours: Annotated[Tables, _known("Whose neighbour is who: user, neighbour.")] = None,
    exact: Annotated[Tables, _other("What an exact index answers: list, item, rank.")] = None,
    sampled: Annotated[
        Tables, _other("A positive among sampled negatives: list, item, score, positive.")
    ] = None,
    events: Annotated[Tables, _other("Event files, for the daily positive rate.")] = None,
    config: Config = None,
    per_list: Annotated[bool, typer.Option("--per-list", help="Also each list's scores.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write a page of figures and charts (HTML) here.")
    ] = None,
    checks: Annotated[
        Path | None, typer.Option(help="Results of `check --json`, to show in the report.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Print the figures there are, and end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compute figures of files: ranked lists, ratings, indexes, what lists are made of.

    docs/evaluate.md says which figure takes which file; tables are Parquet, CSV, TSV or JSON Lines.
    """
    from streameval.cli import evaluate as evaluating
    from streameval.evaluate import request

    evaluating.run(
        evaluating.Request(
            given=request.Given(
                definition=lambda: _settings(config).definition(),
                files=files or (),
                labels=labels or (),
                run=run,
                qrels=qrels,
                ties=evaluating.ties_of(ties),
                complete=complete,
                half_life=half_life,
                neutral=neutral,
                ratings=ratings or (),
                predictions=predictions or (),
                threshold=threshold,
                scale=evaluating.scale_of(scale) if scale is not None else None,
                train=train or (),
                features=features or (),
                catalogue=catalogue or (),
                neighbours=neighbours or (),
                exact=exact or (),
                sampled=sampled or (),
                events=events or (),
                by=[name.strip() for name in by.split(",") if name.strip()],
                per_list=per_list,
            ),
            metrics=[name for name in metrics.split(",") if name.strip()],
            intervals=ci,
            report=report,
            checks=checks,
            catalogue=listing,
            as_json=as_json,
        ),
        _print_json,
    )


@app.command(epilog="Example: streameval check --config streameval.yaml --spec checks.yaml")
def check(
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
        typer.Option(help="The time that freshness goes by (ms, or RFC 3339). Default: now."),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of --spec and end.")
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Check outcome files, snapshots and the log. Exit code 1 where an error was found.

    Each check says what it found and what to do; docs/checks.md explains them.
    """
    from streameval.checks import specification

    if schema:
        typer.echo(json.dumps(specification.json_schema(), indent=2, ensure_ascii=False))
        return
    settings = _settings(config)
    from streameval.checks import run
    from streameval.cli import check
    from streameval.cli.tables import print_results

    now = round(time.time() * 1000) if at is None else _instant(at)
    results = check.check(
        settings,
        now,
        outcomes=outcomes,
        snapshot=snapshot,
        reference=reference,
        spec=spec,
        logs=log or (),
    )
    found = list(results) if as_json else print_results(results)
    if as_json:
        _print_json(run.document(found, now))
    raise typer.Exit(int(run.failed(found)))


@app.command(epilog="Example: streameval user u42 --json")
def user(
    user_id: Annotated[str, typer.Argument(metavar="ID", help="The user_id of the events.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show one user's lifetime counters from Redis. Exit code 1 where there are none."""
    settings = _settings(config)
    from streameval.cli.lookup import user_counters
    from streameval.cli.tables import print_counters

    counters = asyncio.run(user_counters(settings, user_id))
    if as_json:
        _print_json(counters)
    else:
        print_counters(counters)


@app.command(epilog="Example: streameval doctor --config streameval.yaml")
def doctor(config: Config = None, as_json: Json = False) -> None:
    """Look for what commonly goes wrong, and say how to cure it.

    Exit code 3: a server cannot be reached; 2: bad configuration or servers that the worker
    refuses; 1: another check failed.
    """
    from streameval.cli.doctor import examine, exit_code
    from streameval.cli.tables import print_findings

    findings = asyncio.run(examine(config))
    if as_json:
        _print_json({"findings": [finding._asdict() for finding in findings]})
    else:
        print_findings(findings)
    raise typer.Exit(exit_code(findings))


@app.command(epilog="Example: streameval rules --config streameval.yaml > rules.yml")
def rules(
    config: Config = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print Grafana's dashboard (JSON) in their place.")
    ] = False,
) -> None:
    """Print Prometheus' recording rules and alerts, for the dimensions of the configuration."""
    settings = _settings(config)
    from streameval.cli import dashboard as grafana
    from streameval.cli import rules as prometheus

    written = grafana.dashboard(settings.dimensions) if dashboard else prometheus.rules(settings)
    typer.echo(written, nl=False)


@app.command(epilog="Example: streameval schema > event.schema.json")
def schema() -> None:
    """Print the JSON Schema of the events that producers send."""
    from streameval.core.events import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _instant(text: str) -> int:
    """An instant as people write it, in ms since the epoch."""
    from streameval.base.limits import MAX_TS, MIN_TS

    try:
        instant = int(text) if text.isdecimal() else _rfc3339(text)
    except ValueError as error:
        raise InputError(
            f"--at {text}: give milliseconds since the epoch or RFC 3339 with an offset, "
            "such as 2025-01-31T12:00:00Z"
        ) from error
    if not MIN_TS <= instant < MAX_TS:
        raise InputError(f"--at {text}: give an instant from 2000 to 2099")
    return instant


def _rfc3339(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no offset")
    return int(moment.timestamp() * 1000)


if __name__ == "__main__":
    main()
