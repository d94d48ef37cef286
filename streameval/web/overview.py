"""The live page `/`: its HTML shell, with the state of the worker and what the script needs.

The files of `static` fetch the figures of all workers as JSON and draw them, so a viewer costs a
worker next to nothing. Every value is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from streameval.base.durations import utc
from streameval.base.limits import ALL
from streameval.core.definition import Definition
from streameval.core.experiments.metrics import metrics_of
from streameval.core.metrics import LIST_MEANS, RANKING, RATES, VALUE_MEANS
from streameval.experiments.words import in_units, metric_name
from streameval.stats.intervals import ENOUGH_USERS
from streameval.web.static_files import CHARTS, STATIC
from streameval.web.status import ServiceStatus

# Seconds between two looks of a page at the figures.
REFRESH_SECONDS: Final = 5
# Segments side by side; `/metrics` and the API have them all.
MAX_SEGMENTS: Final = 12

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy under which the page works: files of this worker, nothing inline."""

# Figures that are neither shares nor scores.
_PLAIN: Final = ("mean_rank_of_positives", "latency_ms_mean")


def choices(definition: Definition) -> list[dict[str, Any]]:
    """Return every figure that the page can show or draw, in its order.

    `section`, `figure` and `key` find it in the document of `replay`. `label` is its name for
    people, `unit` is `%` for shares, `is_key` marks those at the top of the page.
    """
    shares = [(rate.name, "%") for rate in RATES]
    values = [(mean.name, "") for mean in VALUE_MEANS]
    means = LIST_MEANS if "lists" in definition.figures else ()
    of_lists = [(mean.name, "" if mean.name in _PLAIN else "%") for mean in means]
    scores = [(metric.name, "") for metric in RANKING]
    of_values = [one.kind for one in definition.positives if one.value != "none"]
    deepest = definition.ks[-1:]
    found = [
        *_choices(
            "rates",
            shares,
            "feedback",
            definition.kinds,
            definition.kinds,
            *(name for name, _ in shares),
        ),
        *_choices("ranking", scores, "k", definition.ks, deepest, "ndcg", "hit_rate"),
        *_choices("values", values, "feedback", of_values, of_values, "value_per_user"),
        *_choices("lists", of_lists, "", (None,), (None,), "empty_rate"),
    ]
    return sorted(found, key=lambda choice: not choice["is_key"])


def _choices(
    section: str,
    figures: Sequence[tuple[str, str]],
    by: str,
    keys: Sequence[Any],
    top_keys: Sequence[Any],
    *top: str,
) -> Iterator[dict[str, Any]]:
    for figure, unit in figures:
        for key in keys:
            name = f"{figure}@{key}" if by == "k" else f"{figure}{{{by}={key}}}" if by else figure
            yield {
                "section": section,
                "figure": figure,
                "by": by,
                "key": key,
                "label": metric_name(name),
                "unit": unit,
                "is_key": figure in top and key in top_keys,
            }


def render(status: ServiceStatus, now: float) -> str:
    """Write the page; `now` in seconds since the epoch."""
    return "".join(
        (
            "<!doctype html><html lang=en><head><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width, initial-scale=1'>",
            "<meta name=color-scheme content='light dark'>",
            f"<title>streameval: {escape(status.topic)}</title>",
            _FILES,
            f"</head><body data-settings='{escape(_settings(status))}'>",
            "<a class=skip href=#figures>Skip to the figures</a>",
            _head(status, now),
            f"<main id=main>{_FIGURES}</main>{_footer(status)}</body></html>",
        )
    )


_FIGURES: Final = (
    "<section id=figures aria-labelledby=figures-title><h2 id=figures-title>Key figures</h2>"
    "<noscript><p class=dim>This page needs JavaScript. The figures are also on"
    " <a href=/metrics>/metrics</a> and <a href=/api/v1/figures>/api/v1/figures</a>.</p></noscript>"
    "</section>"
)
_FILES: Final = "".join(
    (
        "<link rel=icon type=image/svg+xml href=/static/icon.svg>",
        *(f"<link rel=stylesheet href=/static/{name}>" for name in STATIC if name.endswith("css")),
        f"<script defer src=/static/{CHARTS}></script>" if CHARTS in STATIC else "",
        "<script type=module src=/static/page.js></script>",
    )
)


def _settings(status: ServiceStatus) -> str:
    """Return the configuration that the script needs, as JSON."""
    definition = status.definition
    windows = sorted(definition.windows, key=lambda window: window.size)
    return json.dumps(
        {
            "windows": [window.name for window in windows],
            "horizon": definition.horizon,
            "metrics": {
                name: {"label": metric_name(name), "points": in_units(name)[0] != 1}
                for name in metrics_of(definition)
            },
            "dimensions": definition.dimensions,
            "total": ALL,
            "figures": choices(definition),
            "bases": ["matured", *({"nowcast"} & {*definition.figures}), "live"],
            "refresh_seconds": REFRESH_SECONDS,
            "enough_users": ENOUGH_USERS,
            "max_segments": MAX_SEGMENTS,
        }
    )


def _head(status: ServiceStatus, now: float) -> str:
    problem = status.unready()
    kind, word = ("bad", escape(problem)) if problem else ("good", "Serving")
    return (
        "<header><h1>streameval</h1>"
        f"<p id=state class={kind} role=status>{word}</p>"
        f"<p id=freshness class=dim>topic <b>{escape(status.topic)}</b>, group "
        f"<b>{escape(status.group)}</b>, at {utc(now * 1000)} UTC</p></header>"
    )


def _footer(status: ServiceStatus) -> str:
    links = ("/metrics", "/readyz", "/healthz")
    listed = " · ".join(f"<a href={link}>{link}</a>" for link in links)
    return f"<footer class=dim>streameval {escape(status.version)} · {listed}</footer>"
