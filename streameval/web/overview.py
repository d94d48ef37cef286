"""The live page `/`: its HTML shell, with the essentials already written in it.

The server writes one short document for everybody: the state, how experiments stand, and the key
figures of each variant. All this can be read without JavaScript. The files of `static` then fetch
the figures of all workers as JSON and draw the rest, so a further viewer costs a worker next to
nothing. Every value is escaped, and the number of segments is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from streameval.base.durations import utc
from streameval.base.limits import ALL
from streameval.core.definition import Definition, Window
from streameval.core.experiments.metrics import metrics_of
from streameval.core.figures import Figures, Row
from streameval.core.merged_segments import Segment, by_generality
from streameval.core.metrics import LIST_MEANS, RANKING, RATES, VALUE_MEANS
from streameval.experiments.words import (
    Scorecard,
    beside_sentences,
    decimals_of,
    in_units,
    metric_name,
    remarks,
    sentences,
    warnings,
)
from streameval.stats.intervals import ENOUGH_USERS
from streameval.web.intervals import SECTIONS, with_intervals
from streameval.web.static_files import CHARTS, STATIC
from streameval.web.status import ServiceStatus

# Seconds between two looks of a page at the figures, by its script or by the browser itself.
REFRESH_SECONDS: Final = 5
# Segments side by side; `/metrics` and the API have them all.
MAX_SEGMENTS: Final = 12
# Partitions named in the line that says which of them the page shows.
MAX_PARTITIONS_NAMED: Final = 20

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
            f"<noscript><meta http-equiv=refresh content={REFRESH_SECONDS}></noscript>",
            "<meta name=viewport content='width=device-width, initial-scale=1'>",
            "<meta name=color-scheme content='light dark'>",
            f"<title>streameval: {escape(status.topic)}</title>",
            _FILES,
            f"</head><body data-settings='{escape(_settings(status))}'>",
            "<a class=skip href=#figures>Skip to the figures</a>",
            _head(status, now),
            "<main id=main>",
            _experiments(status.scorecards),
            _key_figures(status),
            _NO_SCRIPT,
            f"</main>{_footer(status)}</body></html>",
        )
    )


_NO_SCRIPT: Final = (
    "<noscript><p class=dim>Charts, all tables, stream health and checks need JavaScript. The same"
    " figures are on <a href=/metrics>/metrics</a>.</p></noscript>"
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
    """Return the configuration that the script needs, and what is shown at first, as JSON."""
    definition = status.definition
    window, basis = _shown(definition, status.figures)
    return json.dumps(
        {
            "windows": [window.name for window in _by_size(definition)],
            "window": window,
            "basis": basis,
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


def _coverage(status: ServiceStatus) -> str:
    """Say which part of the topic the page shows, unless it shows all of it."""
    count, mine = status.topic_partitions, len(status.partitions)
    if not count or mine >= count:
        return ""
    numbers = ", ".join(str(each.partition) for each in status.partitions[:MAX_PARTITIONS_NAMED])
    more = " …" if mine > MAX_PARTITIONS_NAMED else ""
    which = f": {numbers}{more}" if mine else ""
    return (
        f"<p class=warning>This worker's part only: {mine} of {count} partitions{which}. Other"
        " workers have the rest.</p>"
    )


def _experiments(cards: Sequence[Scorecard]) -> str:
    """Say how each experiment stands; the script adds the bounds."""
    if not cards:
        return ""
    told = "".join(_card(card) for card in cards)
    title = "<h2 id=experiments-title>Experiments</h2>"
    return f"<section id=experiments aria-labelledby=experiments-title>{title}{told}</section>"


def _card(card: Scorecard) -> str:
    said = sentences(card) if card.rows else ["No arm has a final slate yet."]
    return (
        f"<article><h3>{escape(card.name)}</h3>"
        + "".join(f"<p class=said>{escape(sentence)}</p>" for sentence in said)
        + "".join(f"<p class=dim>{escape(sentence)}</p>" for sentence in beside_sentences(card))
        + "".join(f"<p class=warning>{escape(text)}</p>" for text in warnings(card) + remarks(card))
        + "</article>"
    )


def _key_figures(status: ServiceStatus) -> str:
    title = "<h2 id=figures-title>Key figures</h2>"
    opening = f"<section id=figures aria-labelledby=figures-title>{title}{_coverage(status)}"
    found = status.figures
    rows = [] if found is None else [*found["rates"], *found["ranking"]]
    if found is None or not rows:
        return f"{opening}<p class=dim>No slate in any window yet.</p></section>"
    window, basis = _shown(status.definition, found)
    return f"{opening}{_table(status.definition, found, window, basis)}</section>"


def _by_size(definition: Definition) -> list[Window]:
    return sorted(definition.windows, key=lambda window: window.size)


def _shown(definition: Definition, found: Figures | None) -> tuple[str, str]:
    """Return the smallest window with figures, and the basis: matured if it has such figures."""
    smallest = [window.name for window in _by_size(definition)]
    held = {} if found is None else {(row["window"], row["basis"]) for row in found["rates"]}
    for window in smallest:
        for basis in ("matured", "live"):
            if (window, basis) in held:
                return window, basis
    return smallest[0], "live"


def _table(definition: Definition, found: Figures, window: str, basis: str) -> str:
    """Write a row for each key figure and a column for each segment."""
    dimensions = definition.dimensions
    rows: dict[tuple[str, Any], dict[Segment, Row]] = {}
    chosen = {
        section: [r for r in found[section] if (r["window"], r["basis"]) == (window, basis)]
        for section in SECTIONS
    }
    for section, each in with_intervals(chosen, dimensions).items():
        for row in each:
            key = row.get("feedback", row.get("k"))
            segment = tuple(row[dimension] for dimension in dimensions)
            rows.setdefault((section, key), {})[segment] = row
    found_in = {segment for by_segment in rows.values() for segment in by_segment}
    segments = sorted(found_in, key=by_generality)
    listed = segments[:MAX_SEGMENTS]
    titles = [_title(segment, dimensions) for segment in listed]
    users = {tuple(row[name] for name in dimensions): row["users"] for row in chosen["rates"]}
    few = [
        title
        for title, segment in zip(titles, listed, strict=True)
        if users.get(segment, 0) < ENOUGH_USERS
    ]
    warned = f"<p class=dim>{escape(_few_users(few))}</p>" if few else ""
    heads = "".join(f"<th scope=col>{escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr><th scope=row>{escape(choice['label'])}</th>"
        + "".join(
            f"<td data-of='{escape(title)}'>{_mean(found_rows.get(segment), choice)}</td>"
            for segment, title in zip(listed, titles, strict=True)
        )
        + "</tr>"
        for choice in choices(definition)
        if choice["is_key"] and (found_rows := rows.get((choice["section"], choice["key"])))
    )
    rest = len(segments) - len(listed)
    more = f"<p class=dim>{rest} more segments are on <a href=/metrics>/metrics</a>.</p>"
    by = ", ".join(dimensions) or "all traffic"
    return (
        f"<p class=dim>A 95 % interval stands in brackets.</p>{warned}"
        "<div class='table stacked' role=region tabindex=0 aria-label='Table: key figures'><table>"
        f"<caption>{escape(f'{window}, {basis}, by {by}')}</caption>"
        f"<thead><tr><th scope=col>figure</th>{heads}</tr></thead><tbody>{body}</tbody></table>"
        f"</div>{more if rest else ''}"
    )


def _title(segment: Segment, dimensions: Sequence[str]) -> str:
    named = zip(segment, dimensions, strict=True)
    return (
        " · ".join(f"any {name}" if value == ALL else value or "(none)" for value, name in named)
        or "all"
    )


def _few_users(titles: Sequence[str]) -> str:
    return (
        f"Fewer than {ENOUGH_USERS} users: {', '.join(titles)}. Their intervals may hold less often"
        " than 95 times in 100, where a few users make most of the traffic."
    )


def _mean(row: Row | None, choice: Mapping[str, Any]) -> str:
    """Write a figure with its 95 % interval, in per cent where it is a share."""
    value = None if row is None else row[choice["figure"]]
    if row is None or value is None:
        return "&ndash;"
    scale, decimals, unit = (100, 2, " %") if choice["unit"] == "%" else (1, 4, "")
    low, high = (row[f"{choice['figure']}_{end}"] for end in ("low", "high"))
    if low is None:
        return f"{value * scale:.{decimals}f}{unit}"
    decimals = max(decimals, decimals_of((high - low) * scale))
    first, last = (f"{end * scale:.{decimals}f}" for end in (low, high))
    return f"{value * scale:.{decimals}f}{unit} <small>({first} to {last})</small>"


def _footer(status: ServiceStatus) -> str:
    links = ("/metrics", "/readyz", "/healthz")
    listed = " · ".join(f"<a href={link}>{link}</a>" for link in links)
    return f"<footer class=dim>streameval {escape(status.version)} · {listed}</footer>"
