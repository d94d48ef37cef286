"""The command line. Each command does its imports when it runs, so help is instant.

Exit codes: 0 good, 1 a check failed or nothing was found, 2 bad input or configuration, 3 a server
cannot be reached. An error is one line on stderr, with its cure.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from streameval import __version__
from streameval.base import extras
from streameval.base.counts import count_of
from streameval.base.errors import InputError, StreamevalError
from streameval.base.instants import instant
from streameval.cli import check
from streameval.cli.backfill import EPILOG as BACKFILL_EPILOG
from streameval.cli.backfill import backfill
from streameval.cli.common import Config, Json, print_json, refuse_future, run_async, settings_of
from streameval.cli.compare import EPILOG as COMPARE_EPILOG
from streameval.cli.compare import PLAN_EPILOG, compare, plan
from streameval.cli.dead_letters import EPILOG as DEAD_LETTERS_EPILOG
from streameval.cli.dead_letters import dead_letters
from streameval.cli.evaluate import EPILOG, EvaluateCommand, evaluate
from streameval.cli.forward import EPILOG as FORWARD_EPILOG
from streameval.cli.forward import forward
from streameval.cli.map import Profile, map_, profiles

if TYPE_CHECKING:
    from streameval.experiments.words import Scorecard

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells have it."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors of a full or broken disk."""

_WHOLE: Final = 10_000
"""The steps of a bar over shares."""

FIRST: Final = "Begin with"
SERVICE: Final = "Look after a service"
FILES: Final = "Work with files, without a server"

app = typer.Typer(
    name="streameval",
    help="Evaluate a recommender while it serves.",
    epilog="Example: streameval demo --seconds 60",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run the command line, and end the process with the documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe may lack a character: its escape is better than no output.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): it had enough.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        code = _fail(f"the output cannot be written: {error.strerror}", 1)
        # Python would fail again at its end with the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run() -> int:
    """Run a command, write the line about its error, and return the exit code."""
    try:
        code = app(standalone_mode=False)
    except StreamevalError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(_usage_message(error), InputError.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in extras.EXTRAS:
            raise
        return _fail(extras.install_advice("this command", error.name), InputError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"streameval: {' '.join(message.split())}\n")
    return code


def _usage_message(error: typer.TyperException) -> str:
    message = getattr(error, "format_message", error.__str__)()
    context = getattr(error, "ctx", None)
    command = f"streameval {context.info_name}" if context and context.parent else "streameval"
    return f"{str(message).rstrip('.')} ({command} --help shows how)"


def _version(wanted: bool) -> None:  # noqa: FBT001  # typer calls it
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


@app.command(epilog="Example: streameval demo --seconds 60", rich_help_panel=FIRST)
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
    truth stand side by side; with --seconds the exit code is 1 if they disagree.
    """
    from streameval.demo.run import Options, run

    raise typer.Exit(run(Options(seconds, kafka, redis, seed, rate)))


@app.command(
    epilog="Example: streameval init && streameval doctor --config streameval.yaml",
    rich_help_panel=FIRST,
)
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write into.")
    ] = Path(),
    rules: Annotated[
        bool,
        typer.Option(
            "--rules",
            help="Also Prometheus' rules and Grafana's dashboards, for the dimensions of"
            " DIR/streameval.yaml.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace files that are there: with --rules the rules, else all other files.",
        ),
    ] = False,
) -> None:
    """Write a commented streameval.yaml and checks.yaml, and say what to do next."""
    from streameval.cli.init import init as write

    write(folder, rules=rules, force=force)


@app.command(epilog="Example: streameval worker --config streameval.yaml", rich_help_panel=FIRST)
def worker(
    config: Config = None,
    reset_windows: Annotated[
        bool,
        typer.Option(
            "--reset-windows",
            help="Start windows anew if the stored ones cannot be used (the configuration or the"
            " format of checkpoints changed). Users' counters stay.",
        ),
    ] = False,
) -> None:
    """Run the service: Kafka in, counters in Redis, figures on /metrics."""
    settings = settings_of(config)
    refuse_future(settings)
    for key in ("outcomes", "snapshots"):
        if getattr(settings, key) is not None:
            extras.require(f"{key}: writing files", "pyarrow", extras.FILES)
    from streameval.worker.app import run_worker

    raise typer.Exit(run_worker(settings, reset_windows=reset_windows))


@app.command(
    epilog="Example: zcat events.gz | streameval replay - --json | jq .rates", rich_help_panel=FILES
)
def replay(  # noqa: PLR0917  # typer passes them by name
    files: Annotated[
        list[str],
        typer.Argument(
            help="JSON: plain, .gz or .zst, or - for standard input; rows: .csv, .tsv, .parquet,"
            " .avro; or folders of such files."
        ),
    ],
    config: Config = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Move time on to this instant (ms since the epoch, or RFC 3339), as if idle."
        ),
    ] = None,
    sort: Annotated[
        bool,
        typer.Option(
            "--sort",
            help="Put all events in order of time first, in memory: lists and clicks may be in"
            " files of their own.",
        ),
    ] = False,
    users: Annotated[bool, typer.Option("--users", help="Print each user's counters too.")] = False,
    rejected: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write every rejected line to this file (JSON lines), with the reason.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 if a line is rejected.")
    ] = False,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Compute all figures of event files, with no server.

    The files are one partition, in the order given, and go through the same core as the service.
    Standard error names the first rejected lines, with the reason.
    """
    reading_time = instant(at) if at is not None else None
    settings = settings_of(config, profile=profile)
    refuse_future(settings)
    definition = settings.definition()
    from streameval.base.terminal import progress_bar
    from streameval.cli.experiment import print_scorecard
    from streameval.core import replay as replaying
    from streameval.evaluation.report.replay_tables import print_figures
    from streameval.experiments.words import scorecards
    from streameval.files.event_tables import with_rows
    from streameval.files.rejected_lines import rejected_lines

    cards: list[Scorecard] = []

    def judged(*found: Any) -> dict[str, Any]:
        cards.extend(scorecards(*found))
        rows = [row for card in cards for row in card.rows]
        return {"experiments": rows, "splits": [card.split for card in cards]}

    native = settings.profile is None
    names = with_rows(files)
    with rejected_lines(rejected, foreign=native) as found, progress_bar(names) as advance:
        document = replaying.replay(
            definition,
            names,
            advance,
            at=reading_time,
            sort=sort,
            with_users=users,
            judged=judged,
            decoder=settings.decoder(),
            on_rejected=found.add,
            warn=partial(typer.echo, err=True),
        )
    if as_json:
        print_json(document)
    else:
        print_figures(document, definition.dimensions)
        for card in cards:
            typer.echo(f"\nExperiment {card.name}")
            print_scorecard(card)
    none = not any(document["events"]["accepted"].values())
    advice = "" if rejected else "; --rejected FILE writes all of them"
    for line in found.report(advice, none_accepted=none):
        typer.echo(line, err=True)
    raise typer.Exit(int(found.count > 0 and (strict or none)))


@app.command(
    epilog="Example: streameval snapshot --config streameval.yaml", rich_help_panel=SERVICE
)
def snapshot(config: Config = None, as_json: Json = False) -> None:
    """Take a snapshot of counters, windows and open slates into the folder `snapshots`.

    Reads Redis while workers go on, and changes nothing there. Prints the new folder.
    """
    settings = settings_of(config)
    extras.require("streameval snapshot", "pyarrow", extras.FILES)
    from streameval.base.terminal import share_bar
    from streameval.files.snapshots import manifest_of, take

    with share_bar("reading partitions", _WHOLE) as advance:
        folder = run_async(take(settings, on_part=lambda share: advance(round(share * _WHOLE))))
    manifest = manifest_of(folder)
    if as_json:
        print_json({"snapshot": str(folder), **manifest})
        return
    typer.echo(folder)
    parts = manifest["partitions"]
    users = sum(part.get("users", 0) for part in parts)
    slates = sum(part.get("open_slates", 0) for part in parts)
    typer.echo(
        f"{count_of(len(parts), 'partition')}: {count_of(users, 'user')},"
        f" {count_of(slates, 'open slate')}; workers went on",
        err=True,
    )


app.command(epilog=FORWARD_EPILOG, rich_help_panel=SERVICE)(forward)
app.command("dead-letters", epilog=DEAD_LETTERS_EPILOG, rich_help_panel=SERVICE)(dead_letters)
app.command(
    "map",
    epilog="Example: streameval map events.jsonl --profile segment > events.native.jsonl",
    rich_help_panel=FILES,
)(map_)
app.command(epilog="Example: streameval profiles segment > mine.yaml", rich_help_panel=FILES)(
    profiles
)
app.command(epilog=BACKFILL_EPILOG, rich_help_panel=SERVICE)(backfill)
app.command(cls=EvaluateCommand, epilog=EPILOG, rich_help_panel=FILES)(evaluate)
app.command(epilog=COMPARE_EPILOG, rich_help_panel=FILES)(compare)
app.command(epilog=PLAN_EPILOG, rich_help_panel=FILES)(plan)
app.command(
    "check",
    epilog="Example: streameval check --config streameval.yaml --spec checks.yaml",
    rich_help_panel=FILES,
)(check.command)


@app.command(epilog="Example: streameval user u42 --json", rich_help_panel=SERVICE)
def user(
    user_id: Annotated[str, typer.Argument(metavar="ID", help="The user_id of the events.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show one user's lifetime counters from Redis. Exit code 1 for an unknown user."""
    settings = settings_of(config)
    from streameval.cli.tables import print_counters, user_counters

    counters = run_async(user_counters(settings, user_id))
    if as_json:
        print_json(counters)
    else:
        print_counters(counters)


@app.command(epilog="Example: streameval experiment ranker-v2 --gate", rich_help_panel=SERVICE)
def experiment(
    name: Annotated[str, typer.Argument(help="The name of the experiment in the configuration.")],
    config: Config = None,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate",
            help="Exit code 1 if the primary figure or a guardrail is worse, or users are not split"
            " as configured; 4 while the answer is open.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print how an experiment stands, from the sums in Redis.

    Prints one sentence for each arm, and bounds of every metric that hold at all looks together.
    """
    settings = settings_of(config)
    from streameval.cli import experiment as command
    from streameval.experiments.words import document_of
    from streameval.experiments.words import gate as judged

    card = run_async(command.read_scorecard(settings, name))
    outcome = judged(card) if gate else None
    if as_json:
        print_json(document_of(card))
    else:
        command.print_scorecard(card, outcome)
    raise typer.Exit(0 if outcome is None else command.GATE[outcome])


@app.command(epilog="Example: streameval doctor --config streameval.yaml", rich_help_panel=SERVICE)
def doctor(config: Config = None, profile: Profile = None, as_json: Json = False) -> None:
    """Look for common faults, and say how to cure them.

    Exit code 3: a server cannot be reached; 2: bad configuration or servers that the worker
    refuses; 1: another check failed.
    """
    from streameval.cli.doctor import examine, exit_code
    from streameval.cli.tables import print_findings

    findings = run_async(examine(config, profile))
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings]})
    else:
        print_findings(findings)
    raise typer.Exit(exit_code(findings))


@app.command(
    epilog="Example: streameval rules --config streameval.yaml > rules.yml", rich_help_panel=SERVICE
)
def rules(
    config: Config = None,
    dashboard: Annotated[
        Literal["quality", "experiments", "pipeline", "checks"] | None,
        typer.Option(help="Print this dashboard for Grafana (JSON) instead."),
    ] = None,
    runbook: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A copy of docs/operations.md, for the alerts' runbook_url. Default: the page"
            " /runbook of the workers, at `public_url`.",
        ),
    ] = None,
) -> None:
    """Print Prometheus' recording rules and alerts, for the dimensions of the configuration."""
    settings = settings_of(config)
    if dashboard is not None:
        from streameval.cli import dashboards

        text = dashboards.dashboard_json(dashboard, settings.dimensions)
    else:
        from streameval.cli import rules as prometheus

        text = prometheus.rules(settings, runbook)
    typer.echo(text, nl=False)


@app.command(epilog="Example: streameval mcp --url http://127.0.0.1:8080", rich_help_panel=SERVICE)
def mcp(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A worker's pages. Default: `listen` of the configuration."
        ),
    ] = None,
    config: Config = None,
) -> None:
    """Let an agent read figures, experiments, checks and health: a server of the MCP.

    It speaks over standard input and output, reads the API of one worker, and changes nothing.
    """
    extras.require("streameval mcp", "mcp")
    address = url or f"http://{settings_of(config).listen}"
    from streameval.cli.mcp_server import server

    server(address).run()


@app.command(epilog="Example: streameval schema > event.schema.json", rich_help_panel=FILES)
def schema(config: Config = None) -> None:
    """Print the JSON Schema of the events that producers send."""
    from streameval.core.events import EventDecoder

    decoder = EventDecoder.of(settings_of(config).definition())
    print_json(decoder.json_schema(), indent=2)


if __name__ == "__main__":
    main()
