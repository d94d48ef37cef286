"""The OpenAPI 3.1 description of the API, for the windows and dimensions of a definition.

Names and meanings of figures come from the metrics, and tests hold every answer against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from streameval import __version__
from streameval.core.definition import Definition
from streameval.core.figures import SECTIONS
from streameval.core.metrics import MEAN_SECTIONS
from streameval.web import history, intervals

PREFIX: Final = "/api/v1"
MAX_HOURS: Final = 24
# Rows of one section that can be asked for at once: all that `MAX_SEGMENTS` could make.
MAX_ROWS: Final = 10_000_000

Schema = dict[str, Any]
CHARTED: Final = ("section", "figure", "window", "basis", "hours")
"""The parameters of a chart beside the labels of its rows."""

_INTEGER: Final[Schema] = {"type": "integer"}
_END: Final = "The end of its 95 % interval, for one look."
_NUMBER: Final[Schema] = {"type": ["number", "null"]}
_TEXT: Final[Schema] = {"type": "string"}
_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_MAYBE_INTEGER: Final[Schema] = {"type": ["integer", "null"]}
_FLAG: Final[Schema] = {"type": "boolean"}
_COUNTS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "integer"}}
_TOKEN: Final[list[dict[str, list[str]]]] = [{"token": []}]


def openapi(definition: Definition) -> dict[str, Any]:
    """Return the description as plain values."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "streameval",
            "version": __version__,
            "description": "Figures of a recommender while it serves, of all workers of a group."
            " Any worker gives the same answers. See docs/api.md.",
        },
        "paths": {f"{PREFIX}{path}": {"get": get} for path, get in _paths(definition).items()},
        "components": {
            "schemas": _schemas(definition),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def filters(definition: Definition) -> dict[str, str]:
    """Return the labels that choose rows of a chart, by the name of the parameter."""
    labels = {"kind": "feedback", "k": "k"}
    return {name: name for name in definition.dimensions if name not in CHARTED} | labels


def _paths(definition: Definition) -> dict[str, Any]:
    window = _parameter("window", "Default: all.", _one_of([w.name for w in definition.windows]))
    basis = _parameter("basis", "Default: all.", _one_of(history.BASES))
    rows = [
        _parameter(name, "Only rows with this label.", _INTEGER if name == "k" else _TEXT)
        for name in filters(definition)
    ]
    charted = [
        _parameter("section", "Default: rates.", _one_of(intervals.SECTIONS)),
        _parameter("figure", "Default: positives_per_impression.", _TEXT),
        _parameter("window", "Default: the first.", window["schema"]),
        _parameter("basis", "Default: live.", basis["schema"]),
        _parameter("hours", "How far back. Default: 6.", _within(1, MAX_HOURS)),
        *rows,
    ]
    figures = [
        window,
        basis,
        _parameter("section", "Only this one. Default: all.", _one_of(SECTIONS)),
        _parameter("limit", "At most so many rows of the section.", _within(1, MAX_ROWS)),
        _parameter(
            "after", "Rows to leave out: `next` of the answer before.", _within(0, MAX_ROWS)
        ),
    ]
    name = {**_parameter("name", "Its name.", _TEXT), "in": "path", "required": True}
    metric = _parameter("metric", "The bounds of this named metric only. Default: all.", _TEXT)
    user = {**_parameter("id", "The user_id of the events.", _TEXT), "in": "path", "required": True}
    stream = _get("stream", "Wait for new figures.", "", [window])
    stream["responses"]["200"] = {
        "description": "An event `changed` with an id whenever there are new figures.",
        "content": {"text/event-stream": {"schema": _TEXT}},
    }
    itself = _get("openapi", "This description.", "", ())
    itself["responses"]["200"]["content"] = {"application/json": {"schema": {"type": "object"}}}
    return {
        "/figures": _get("figures", "The figures of all partitions.", "Figures", figures),
        "/history": _get("history", "One figure over time.", "Chart", charted),
        "/experiments": _get("experiments", "All scorecards.", "Experiments", ()),
        "/experiments/{name}": _get(
            "experiment", "One scorecard, and its bounds over time.", "Experiment", [name, metric]
        ),
        "/checks": _get("checks", "How the last checks ended.", "Checks", ()),
        "/health": _get("health", "The workers and their partitions.", "Health", ()),
        "/users/{id}": {
            **_get("user", "One user's lifetime counters.", "User", [user], (401, 403)),
            "security": _TOKEN,
        },
        "/stream": stream,
        "/openapi.json": itself,
    }


def _get(
    name: str,
    summary: str,
    schema: str,
    parameters: Sequence[Schema],
    more: Sequence[int] = (),
) -> dict[str, Any]:
    """Describe a path; `more` are statuses of errors beside the usual ones."""
    failed = _content("Error")
    return {
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": summary, **_content(schema)},
            "304": {"description": "The document of the ETag in If-None-Match is the newest."},
            **{
                str(status): {"description": "One line that says what to do.", **failed}
                for status in sorted((400, 404, 503, *more))
            },
        },
    }


def _content(schema: str) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"content": {"application/json": {"schema": reference}}}


def _parameter(name: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _within(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _one_of(values: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(values)}


def _each(schema: Schema, *names: str) -> dict[str, Schema]:
    """Describe properties of one schema."""
    return dict.fromkeys(names, schema)


def _object(more: Schema | bool = False, /, **properties: Schema) -> Schema:  # noqa: FBT001
    """Describe an object that has all of these properties, and `more` of its own."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": more,
    }


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _schemas(definition: Definition) -> dict[str, Schema]:
    return {
        "Error": _object(error=_TEXT),
        "Figures": _figures(definition),
        "Chart": _object(
            times=_list(_INTEGER),
            series=_list(
                _object(
                    labels={
                        "type": "object",
                        "additionalProperties": {"type": ["string", "integer"]},
                    },
                    **_each(_list(_NUMBER), "value", "low", "high"),
                )
            ),
            segments_left_out=_INTEGER,
        ),
        **_experiments(),
        "Checks": _checks(),
        "Health": _health(),
        "User": _object(
            user_id=_TEXT,
            partitions=_list(_INTEGER),
            **_each(_INTEGER, "impressions", "slates"),
            positives=_COUNTS,
            **_each(_INTEGER, "first_ts", "last_ts"),
            arms={"type": "object", "additionalProperties": _list(_TEXT)},
        ),
    }


def _figures(definition: Definition) -> Schema:
    labels = {"window": _TEXT, "basis": _one_of(history.BASES)}
    labels |= dict.fromkeys(definition.dimensions, _TEXT)
    by_kind = {**labels, "feedback": _TEXT}
    by_label = {"feedback": by_kind, "k": {**labels, "k": _INTEGER}, "": labels}
    sections = {
        **{one.name: _rows(by_label[one.label], one.means) for one in MEAN_SECTIONS},
        "ranks": _rows({**by_kind, "rank": {"type": ["integer", "string"]}}, ()),
        "nowcast": _rows(by_kind, ()),
        "maturity": _rows({name: labels[name] for name in labels if name != "basis"}, ()),
    }
    described = _object(
        at=_MAYBE_INTEGER,
        partitions=_object(
            shown=_list(_INTEGER),
            of=_INTEGER,
            stale=_list(_INTEGER),
            missing=_list(_INTEGER),
            made_at=_INTEGER,
        ),
        workers=_INTEGER,
        segments_in_other=_INTEGER,
        watermark=_MAYBE_INTEGER,
        events={"type": "object"},
        **sections,
    )
    # With a section, the others are left out.
    described["required"] = [name for name in described["properties"] if name not in sections]
    described["properties"]["next"] = _MAYBE_INTEGER
    return described


def _rows(labels: Mapping[str, Schema], metrics: Sequence[Any]) -> Schema:
    """Describe rows: their labels, the means of some metrics with intervals, and counts."""
    figures: dict[str, Schema] = {}
    for metric in metrics:
        figures[metric.name] = {**_NUMBER, "description": metric.formula}
        figures[f"{metric.name}_stderr"] = {**_NUMBER, "description": "Its standard error."}
        for end in ("low", "high"):
            figures[f"{metric.name}_{end}"] = {**_NUMBER, "description": _END}
    return _list(_object(_NUMBER, **labels, **figures))


def _experiments() -> dict[str, Schema]:
    figures = {
        **_each(_NUMBER, "value", "control_value", "difference", "relative_difference"),
        **_each(_NUMBER, "low", "high"),
        "verdict": _one_of(("better", "worse", "no difference shown", "not yet")),
        "users_needed": _MAYBE_INTEGER,
        "bounds": {"enum": ["all lists", "first lists", "users", "separation", None]},
        "withheld": {"type": ["string", "null"]},
    }
    row = _object(
        **_each(_TEXT, "name", "metric"),
        role=_one_of(("primary", "guardrail", "exploratory")),
        **_each(_TEXT, "arm", "control"),
        users=_INTEGER,
        **figures,
    )
    # Only the named figures of an experiment whose users have a past have it.
    row["properties"]["adjusted"] = _object(
        **_each(_INTEGER, "time", "users_with_past", "users_of"),
        **figures,
        **_each(_NUMBER, "once_low", "once_high"),
        **_each({"type": "number"}, "theta", "users_saved"),
    )
    # Only those of an experiment that leaves crossed users out have it.
    row["properties"]["without_crossed"] = _object(
        **_each(_INTEGER, "time", "left_out", "users"),
        **figures,
    )
    split = _object(
        experiment=_TEXT,
        users=_COUNTS,
        crossed_users=_INTEGER,
        **_each(_NUMBER, "log_evidence", "p_value"),
        **_each(_INTEGER, "without_arm", "without_arm_fallback", "without_arm_empty"),
        without_arm_share=_NUMBER,
    )
    card = {
        "name": _TEXT,
        "since": _MAYBE_INTEGER,
        **_each(_list(_TEXT), "sentences", "beside", "warnings", "remarks"),
        "experiments": _list(row),
        "splits": _list(split),
    }
    bounds = _object(
        **_each(_TEXT, "metric", "arm"),
        times=_list(_INTEGER),
        **_each(_list(_NUMBER), "difference", "low", "high"),
    )
    return {
        "Experiments": _object(experiments=_list(_object(**card))),
        "Experiment": _object(**card, history=_list(bounds)),
    }


def _checks() -> Schema:
    check = _object(
        name=_TEXT,
        state=_one_of(("passed", "failed", "warns", "no answer", "not checked")),
        severity=_one_of(("error", "warning")),
        value=_NUMBER,
        message=_TEXT,
        ended=_INTEGER,
        seconds={"type": "number"},
        unanswered_seconds=_NUMBER,
    )
    rate = _object(_NUMBER, feedback=_TEXT)
    daily = _object(begin={"type": "number"}, users=_INTEGER, rates=_list(rate))
    return _object(
        checks=_list(check),
        **_each(_NUMBER, "interval_seconds", "running_seconds"),
        daily={"oneOf": [daily, {"type": "null"}]},
    )


def _health() -> Schema:
    partition = _object(
        partition=_INTEGER,
        worker=_TEXT,
        state=_one_of(("running", "restoring", "waiting")),
        **_each(_MAYBE_INTEGER, "lag", "committed_offset", "watermark", "reading_time"),
        **_each(_INTEGER, "open_slates", "users"),
        **_each(_NUMBER, "behind_seconds", "checkpoint_age_seconds"),
    )
    worker = _object(
        **_each(_TEXT, "name", "version"),
        leader=_FLAG,
        **_each(_MAYBE_TEXT, "reason", "remark"),
        uptime_seconds={"type": "number"},
        **_each(_FLAG, "kafka", "redis"),
        said_seconds_ago={"type": "number"},
        rejected={"type": "object"},
        digests={"type": "object"},
    )
    return _object(
        ready=_FLAG,
        reason=_MAYBE_TEXT,
        **_each(_TEXT, "topic", "group"),
        at=_INTEGER,
        reading_time=_MAYBE_INTEGER,
        behind_seconds=_NUMBER,
        lag=_MAYBE_INTEGER,
        partitions=_list(partition),
        missing_partitions=_list(_INTEGER),
        rejected=_object(
            records=_INTEGER,
            reasons=_COUNTS,
            is_much=_FLAG,
            **_each(_MAYBE_TEXT, "message", "latest"),
        ),
        workers=_list(worker),
    )
