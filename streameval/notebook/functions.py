"""The public functions `evaluate`, `compare`, `replay` and `outcomes`.

They take the options of the commands by the same names, refuse what those refuse in the same words,
and return the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streameval.base.errors import InputError
from streameval.base.extras import NOTEBOOK, require
from streameval.base.instants import instant, now
from streameval.base.nearest import nearest
from streameval.notebook.arguments import Events, Tables, events_of, instant_of, path_of, tables_of
from streameval.notebook.outcome_rows import Outcomes, outcomes_at
from streameval.notebook.results import Comparison, Evaluation, Replay

if TYPE_CHECKING:
    from streameval.config.load import Settings
    from streameval.core.experiments.definition import CrossedUsers
    from streameval.core.metrics.inputs import Input

Config = str | os.PathLike[str] | Mapping[str, Any] | None
"""The path of a configuration, or its keys; None: `STREAMEVAL_CONFIG`, or else the defaults."""
Names = str | Iterable[str]
"""Names in a list, or in a text with commas between them."""


def evaluate(
    files: Tables = None,
    metrics: Names = (),
    *,
    by: Names = (),
    against: str | None = None,
    config: Config = None,
    per_list: bool = False,
    strict: bool = False,
    **inputs: Any,
) -> Evaluation:
    """Compute figures of outcomes, ranked lists, ratings or contents of lists.

    `files` are outcome files or slates: paths, or frames of pandas, polars, pyarrow or DuckDB.
    `inputs` are the other options of `streameval evaluate` by name, such as `labels`, `ratings` or
    `train`: tables too, or values. Raises `StreamevalError`.
    """
    require("streameval.evaluate", "pyarrow", NOTEBOOK)
    from streameval.evaluation import input_kinds
    from streameval.evaluation.request import EVENTS, QRELS, RUN, names_of

    known = {one.name: one for one in input_kinds.inputs_by_heading()}
    given: dict[str, Any] = {}
    for name, value in inputs.items():
        if name not in known:
            raise InputError(f"{name}: no such option{_suggestion(name, known)}")
        if known[name] in {RUN, QRELS}:
            given[name] = None if value is None else path_of(name, value)
        elif known[name] == EVENTS:
            given[name] = events_of(name, value)
        else:
            given[name] = _value(known[name], value)
    request = input_kinds.given_of(
        tables_of("files", files), given, lambda: _settings(config).definition()
    )
    request = replace(request, by=names_of(by), against=against, per_list=per_list, strict=strict)
    return Evaluation(input_kinds.answer(request, names_of(metrics), _ignore))


def compare(
    files: Tables = None,
    *,
    by: str | None = None,
    against: str | None = None,
    primary: str | None = None,
    guardrails: Names = (),
    metrics: Names = (),
    since: str | int | datetime | None = None,
    until: str | int | datetime | None = None,
    before: str | os.PathLike[str] | None = None,
    crossed_users: CrossedUsers | None = None,
    experiment: str | None = None,
    labels: Tables = None,
    run: Iterable[str | os.PathLike[str]] = (),
    qrels: str | os.PathLike[str] | None = None,
    ratings: Tables = None,
    predictions: Tables = None,
    alpha: float = 0.05,
    planned_users: int = 10_000,
    strict: bool = False,
    config: Config = None,
) -> Comparison:
    """Compare arms of outcomes, or models on the same users: differences, bounds, verdicts.

    The options are as in `streameval compare`. Models are several `files` with `labels`, `run`
    with `qrels` or `predictions` with `ratings`, the first one the control. A mapping gives frames
    the names of models. Raises `StreamevalError`.
    """
    require("streameval.compare", "pyarrow", NOTEBOOK)
    from streameval.evaluation.comparison import Wanted, comparison_of
    from streameval.evaluation.request import LABELS, PREDICTIONS, QRELS, RATINGS, RUN, names_of

    runs = [run] if isinstance(run, str | os.PathLike) else run
    wanted = Wanted(
        files=tables_of("files", files),
        by=by,
        against=against,
        primary=primary,
        guardrails=names_of(guardrails),
        metrics=names_of(metrics),
        since=instant_of(since),
        until=instant_of(until),
        before=None if before is None else Path(before),
        crossed_users=crossed_users,
        experiment=experiment,
        tables={
            LABELS: tables_of("labels", labels),
            RUN: [path_of("run", one) for one in runs],
            QRELS: [] if qrels is None else [path_of("qrels", qrels)],
            RATINGS: tables_of("ratings", ratings),
            PREDICTIONS: tables_of("predictions", predictions),
        },
        alpha=alpha,
        planned_users=planned_users,
        strict=strict,
    )
    return Comparison(*comparison_of(wanted, lambda: _settings(config).definition(), _no_progress))


def replay(
    events: Events,
    *,
    config: Config = None,
    at: str | int | datetime | None = None,
    sort: bool = False,
    users: bool = False,
    **settings: Any,
) -> Replay:
    """Compute all figures of events, with no server, as the running service would.

    `events` are dicts or JSON as bytes, a frame with a row for each, or paths of event files.
    `settings` are keys of the configuration, such as `positives` or `ks`, and override `config`.
    `at` moves time on, `sort` puts the events in order of time first, and `users` adds each user's
    counters. Raises `StreamevalError`.
    """
    from streameval.config import experiments
    from streameval.core import replay as replaying
    from streameval.experiments.scorecard import sections
    from streameval.files.rejected_lines import RejectedLines

    moment = instant_of(at)
    definition = _settings(config, settings).definition()
    experiments.refuse_future(definition.experiments, now())
    rejected, warnings = RejectedLines(None, sort="sort=True"), list[str]()
    document = replaying.replay(
        definition,
        events_of("events", events),
        _ignore,
        at=None if moment is None else instant(moment),
        sort=sort,
        with_users=users,
        judged=sections,
        on_rejected=rejected.add,
        warn=warnings.append,
    )
    return Replay(document, list(rejected.report()), definition.dimensions, warnings)


def outcomes(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Outcomes:
    """Return the rows of outcome files, of their folder or URI, as a table that is read lazily.

    Raises `StreamevalError`.
    """
    return outcomes_at(path)


def _settings(config: Config, keys: Mapping[str, Any] | None = None) -> Settings:
    from streameval.config.load import load

    if isinstance(config, Mapping):
        return load(None, {**config, **(keys or {})})
    return load(None if config is None else Path(config), keys or {})


def _value(one: Input, value: Any) -> Any:
    from streameval.core.metrics.inputs import Table

    return tables_of(one.name, value) if isinstance(one, Table) else value


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    return f"; did you mean {close[0]}?" if close else " (docs/evaluate.md has all)"


def _ignore(_: int) -> None:
    """Show no progress: frames are in memory, and a notebook has a busy mark of its own."""


def _no_progress(_: Sequence[str]) -> AbstractContextManager[Any]:
    return nullcontext(_ignore)
