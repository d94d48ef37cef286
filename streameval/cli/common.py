"""Options and output that commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from streameval.base.errors import InputError
from streameval.base.instants import now

if TYPE_CHECKING:
    from streameval.config.load import Settings
    from streameval.evaluation.answer import Note

T = TypeVar("T")

Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="STREAMEVAL_CONFIG", help="The YAML file of settings."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="End with an error if a part of the input is left out or meets nothing in the others.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. Commands that have none begin without asyncio, 40 ms earlier."""
    import asyncio

    return asyncio.run(work)


def settings_of(config: Path | None, *, profile: str | None = None) -> Settings:
    """Load the settings of a configuration file, the environment and the defaults.

    A file that nobody named is named on standard error. A `profile` beats theirs.
    """
    from streameval.config.load import USUAL, load, settings_file

    used = settings_file(config)
    if config is None and used == USUAL:
        typer.echo(f"configuration: {USUAL} of this folder", err=True)
    return load(None if used is None else Path(used), {"profile": profile} if profile else None)


def refuse_future(settings: Settings) -> None:
    """Raise `ConfigError` for an experiment that has not begun."""
    from streameval.config import experiments

    experiments.refuse_future(settings.definition().experiments, now())


def warn(notes: Sequence[Note], *, as_json: bool) -> list[Note]:
    """Write warnings to standard error, beside JSON losses too; return the other notes."""
    aside = {"warning", "loss"} if as_json else {"warning"}
    for note in notes:
        if note.kind in aside:
            typer.echo(note.text, err=True)
    return [note for note in notes if note.kind not in aside]


def print_json(document: Mapping[str, Any], indent: int | None = None) -> None:
    """Print a document, or none of it: half a document is worse than none.

    It stands on one line unless it has an `indent`, and in ASCII where standard output lacks
    characters.
    """
    takes_all = (sys.stdout.encoding or "").lower().startswith("utf")
    try:
        text = json.dumps(document, ensure_ascii=not takes_all, allow_nan=False, indent=indent)
    except ValueError as error:
        raise InputError("a figure is not a finite number: look for one in the input") from error
    sys.stdout.write(f"{text}\n")
