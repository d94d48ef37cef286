"""`streameval init`: the files that a service of one's own begins with, in a folder.

Files that are there already stay. The rules and the dashboards follow the dimensions of the
folder's `streameval.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import typer

from streameval.base import extras
from streameval.base.errors import InputError
from streameval.cli.common import settings_of

CONFIG: Final = "streameval.yaml"
CHECKS: Final = "checks.yaml"
RULES: Final = "rules.yml"
GRAFANA: Final = "grafana"


class StarterFile(NamedTuple):
    """A file to write: its name in the folder, its contents in a few words, and its text."""

    name: str
    contents: str
    text: Callable[[], str]


def init(folder: Path, *, rules: bool, force: bool) -> None:
    """Write the files into a folder and say what to do next. Raises `InputError`.

    `force` replaces the files asked for. With rules alone, the configuration they are made
    from stays.
    """
    wanted = [StarterFile(CONFIG, "every key with its default", _config)]
    if extras.is_installed("duckdb"):
        wanted.append(StarterFile(CHECKS, "every check with its bounds", _checks))
    else:
        typer.echo(f"left out {folder / CHECKS}: {extras.install_advice('a check', 'duckdb')}")
    for file in wanted:
        _write(folder, file, force=force and not rules)
    if rules:
        for made in _monitoring(folder):
            _write(folder, made, force=force)
    typer.echo(_next(folder, rules=rules))


def _config() -> str:
    from streameval.config.reference import starter

    return starter()


def _checks() -> str:
    from streameval.checks.specification import Specification
    from streameval.config.reference import commented_yaml

    head = (
        "The checks of outcome files, snapshots and the log: each with its bounds, at their"
        " defaults. Change what you need, and delete the rest if you like."
    )
    # Written out, a default arm would be asked for, and missed where no dimension has its name.
    return commented_yaml(Specification, head, follows={"arm"})


def _monitoring(folder: Path) -> Iterator[StarterFile]:
    """Yield the rules for Prometheus and the dashboards for Grafana."""
    from streameval.cli.dashboards import NAMES, dashboard_json
    from streameval.cli.rules import rules

    settings = settings_of(folder / CONFIG)
    said = "Prometheus' recording rules and alerts"
    yield StarterFile(RULES, said, lambda: rules(settings))
    for name in NAMES:
        text = partial(dashboard_json, name, settings.dimensions)
        yield StarterFile(f"{GRAFANA}/{name}.json", f"Grafana's dashboard of {name}", text)


def _write(folder: Path, file: StarterFile, *, force: bool) -> None:
    path = folder / file.name
    try:
        if path.exists() and not force:
            typer.echo(f"kept {path}, which was there (--force writes it anew)")
            return
        text = file.text()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    typer.echo(f"wrote {path}: {file.contents}")


def _next(folder: Path, *, rules: bool) -> str:
    config = folder / CONFIG
    given = "" if folder == Path() else f" {folder}"
    steps = [f"name your servers, topic, positives and dimensions in {config}"]
    steps += [
        f"streameval doctor --config {config}    # finds missing parts",
        f"streameval worker --config {config}    # counts; pages on http://127.0.0.1:8080",
    ]
    if rules:
        steps.append(f"name {folder / RULES} under rule_files of your prometheus.yml")
        steps.append(f"import the dashboards in {folder / GRAFANA}/ into Grafana")
    else:
        steps.append(
            f"streameval init{given} --rules    # alerts and dashboards, for your dimensions"
        )
    return "\n".join(
        ["", "Next:", *(f"  {number}. {step}" for number, step in enumerate(steps, 1))]
    )
