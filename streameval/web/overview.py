"""The live page `/`: its HTML shell, with the state of the worker and what the script needs.

The files of `static` fetch the figures of all workers as JSON and draw them, so a viewer costs a
worker next to nothing. Every value is escaped.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any, Final

from streameval.base.durations import utc
from streameval.base.limits import ALL
from streameval.core.definition import Definition
from streameval.core.experiments.metrics import metrics_of
from streameval.experiments.words import in_units, metric_name
from streameval.stats.intervals import ENOUGH_USERS
from streameval.web.figure_families import sections_of
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


# The figures at the top of the page, those of ranking at the largest k.
_KEY_FIGURES: Final = {
    *("positive_rate", "positives_per_impression", "ndcg", "hit_rate"),
    *("value_per_user", "empty_rate"),
}


def choices(definition: Definition) -> list[dict[str, Any]]:
    """Return every figure that the page can show or draw, in its order.

    `section`, `figure` and `key` find it in the document of `replay`. `label` is its name for
    people, `unit` is `%` for shares, `is_key` marks those at the top of the page.
    """
    found = [
        {
            "section": section.name,
            "figure": mean.name,
            "by": section.label,
            "key": key or None,
            "label": metric_name(_full_name(mean.name, section.label, key)),
            "unit": "%" if mean.is_share and section.label != "k" else "",
            "is_key": mean.name in _KEY_FIGURES and (section.label != "k" or key == keys[-1]),
        }
        for section, keys in sections_of(definition)
        for mean in section.means
        for key in keys
    ]
    return sorted(found, key=lambda choice: not choice["is_key"])


def _full_name(figure: str, label: str, key: Any) -> str:
    if label == "k":
        return f"{figure}@{key}"
    return f"{figure}{{{label}={key}}}" if label else figure


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
    " <a href=metrics>/metrics</a> and <a href=api/v1/figures>/api/v1/figures</a>.</p></noscript>"
    "</section>"
)
_FILES: Final = "".join(
    (
        "<link rel=icon type=image/svg+xml href=static/icon.svg>",
        *(f"<link rel=stylesheet href=static/{name}>" for name in STATIC if name.endswith("css")),
        f"<script defer src=static/{CHARTS}></script>" if CHARTS in STATIC else "",
        "<script type=module src=static/page.js></script>",
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
    listed = " · ".join(f"<a href={link[1:]}>{link}</a>" for link in links)
    return f"<footer class=dim>streameval {escape(status.version)} · {listed}</footer>"
