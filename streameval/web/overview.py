"""The overview page `/`: a worker at a glance, as one HTML document.

The page fetches no font and no image, nothing but itself. So the content security policy can refuse
everything but one style sheet and one script. The script puts the newest page in place every few
seconds and keeps the scroll position of tables. Without scripts the browser reloads. Every value is
escaped, and the number of rows is bounded.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from streameval.core.figures import Figures, Row, Segment
from streameval.core.metrics import RANKING
from streameval.experiments.words import Scorecard, metric_name, remarks, sentences, warnings
from streameval.web.status import CheckStatus, PartitionStatus, ServiceStatus

RELOAD_SECONDS: Final = 5

# Segments per window on the page; `/metrics` has them all.
MAX_SEGMENT_ROWS: Final = 12
# Partitions named in the line that says which of them the page shows.
MAX_PARTITIONS_NAMED: Final = 20

STYLE: Final = """
:root { color-scheme: light dark; --text: #1b2430; --dim: #5d6b7c; --line: #dfe4ea;
  --back: #f6f7f9; --card: #fff; --good: #18794e; --bad: #b42318; --accent: #3157d5; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ee; --dim: #93a0b0; --line: #2a323d;
  --back: #12161c; --card: #1a2028; --good: #4cc38a; --bad: #ff8b7c; --accent: #8da8ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 3rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem 1rem; }
h1 { font-size: 1.4rem; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
.dim { color: var(--dim); }
.said { font-size: 1.1rem; margin: .2rem 0 .8rem; }
.part { border-left: .25rem solid var(--bad); padding-left: .75rem; }
a { color: var(--accent); }
.state { padding: .05rem .6rem; border-radius: 1rem; border: 1px solid currentColor;
  font-size: .85rem; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem;
  margin: 1.2rem 0 0; }
dl div, .table { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
dl div { padding: .5rem .8rem; }
dt { color: var(--dim); font-size: .8rem; } dd { margin: 0; font-size: 1.2rem; font-weight: 600; }
.table { overflow-x: auto; margin-bottom: .8rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { padding: .32rem .75rem; text-align: right; white-space: nowrap; }
th { color: var(--dim); font-weight: 500; border-bottom: 1px solid var(--line); }
tbody tr + tr td { border-top: 1px solid var(--line); }
.name { text-align: left; max-width: 18rem; overflow: hidden; text-overflow: ellipsis; }
.stale { opacity: .5; }
.live td { color: var(--dim); } td small { color: var(--dim); }
meter { width: 5rem; vertical-align: middle; }
"""

SCRIPT: Final = f"""
setInterval(async () => {{
  const answer = await fetch(location, {{ cache: "no-store" }}).catch(() => null);
  if (!answer || !answer.ok) {{ document.body.classList.add("stale"); return; }}
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const left = [...document.querySelectorAll(".table")].map((table) => table.scrollLeft);
  document.body.replaceWith(page.body);
  document.querySelectorAll(".table")
    .forEach((table, at) => {{ table.scrollLeft = left[at] || 0; }});
}}, {RELOAD_SECONDS * 1000});
"""


def _digest(text: str) -> str:
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_digest(STYLE)}'; "
    f"script-src 'sha256-{_digest(SCRIPT)}'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy under which the page works: one style sheet, one script, itself."""


def render(status: ServiceStatus, now: float) -> str:
    """Write the page; `now` in seconds since the epoch."""
    return "".join(
        (
            "<!doctype html><html lang=en><head><meta charset=utf-8>",
            f"<noscript><meta http-equiv=refresh content={RELOAD_SECONDS}></noscript>",
            "<meta name=viewport content='width=device-width, initial-scale=1'>",
            f"<title>streameval: {escape(status.topic)}</title><style>{STYLE}</style>",
            f"<script>{SCRIPT}</script></head><body>",
            _head(status, now),
            _experiments(status.scorecards),
            _totals(status),
            _windows(status),
            _partitions(status.partitions, now),
            _checks(status.checks, now),
            _footer(status),
            "</body></html>",
        )
    )


def _head(status: ServiceStatus, now: float) -> str:
    problem = status.unready()
    state = f"<span class='state bad'>{escape(problem)}</span>" if problem else _READY
    role = "leader" if status.leader else "follower"
    return (
        f"<header><h1>streameval</h1>{state}<span class=dim>topic <b>{escape(status.topic)}</b> · "
        f"group <b>{escape(status.group)}</b> · {role} · up {_duration(now - status.started_at)} · "
        f"{_moment(now * 1000)}</span></header>{_coverage(status)}"
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
        f"<p class=part>This worker's part only: {mine} of {count} partitions{which}. Other workers"
        " have the rest; Prometheus adds them up.</p>"
    )


_NOTHING: Final = "&ndash;"
_READY: Final = "<span class='state good'>ready</span>"


def _experiments(cards: Sequence[Scorecard]) -> str:
    """Say how each experiment stands, in words and in a table, over all partitions."""
    return "".join(_experiment(card) for card in cards)


def _experiment(card: Scorecard) -> str:
    said = "".join(f"<p class=said>{escape(sentence)}</p>" for sentence in sentences(card))
    trouble = "".join(f"<p class='part bad'>{escape(warning)}</p>" for warning in warnings(card))
    left_out = "".join(f"<p class=part>{escape(remark)}</p>" for remark in remarks(card))
    users = ", ".join(f"{escape(arm)} {count:,}" for arm, count in card.split["users"].items())
    named = [row for row in card.rows if row["role"] != "exploratory"]
    more = (
        " Exploratory figures are on the leader's /metrics." if len(named) < len(card.rows) else ""
    )
    return (
        f"<h2>Experiment {escape(card.name)}</h2>{said}{trouble}{left_out}"
        + _table(("metric", "role", "arm"), _COMPARISON, (_compared(row) for row in named))
        + f"<p class=dim>Bounds of the difference hold at all looks together. Users in one arm"
        f" only: {users}; in several: {card.split['crossed_users']:,}.{more}</p>"
    )


_COMPARISON: Final = (
    *("value", "control", "difference", "low", "high", "verdict", "users", "users needed"),
)


def _compared(row: Mapping[str, Any]) -> str:
    figures = ("value", "control_value", "difference", "low", "high")
    mark = {"better": "good", "worse": "bad"}.get(row["verdict"], "dim")
    cells = [
        *(_figure(row[name]) for name in figures),
        f"<span class={mark}>{escape(row['verdict'])}</span>",
        _number(row["users"]),
        _number(row["users_needed"]),
    ]
    return _row("matured", [metric_name(row["metric"]), row["role"], row["arm"]], cells)


def _totals(status: ServiceStatus) -> str:
    """Add up the partitions' exact counts over the log."""
    counts = [partition.counters for partition in status.partitions if partition.counters]
    lags = [partition.lag for partition in status.partitions if partition.lag is not None]
    totals = {
        "accepted": sum(sum(each["accepted"].values()) for each in counts),
        "rejected": sum(sum(each["rejected"].values()) for each in counts),
        "duplicates": sum(each["duplicates"] for each in counts),
        "unattributed": sum(sum(each["unattributed"].values()) for each in counts),
        "waiting": sum(each["waiting"] for each in counts),
        "ignored": sum(each["ignored"] for each in counts),
        "lag": sum(lags) if lags else None,
        "open slates": sum(partition.open_slates for partition in status.partitions),
    }
    cards = (
        f"<div><dt>{name}</dt><dd>{_number(value)}</dd></div>" for name, value in totals.items()
    )
    return f"<dl>{''.join(cards)}</dl>"


def _windows(status: ServiceStatus) -> str:
    figures = status.figures
    if figures is None or not figures.rates:
        return "<h2>Figures</h2><p class=dim>No impression in any window yet.</p>"
    return (
        "<p class=dim>Matured figures no longer change: compare variants by them. Live ones are "
        "fresh, and low while feedback is still coming in. &plusmn; is one standard error: a 95 % "
        "interval reaches about twice as far.</p>"
        + "".join(_window(status, figures, window.name) for window in status.definition.windows)
    )


def _window(status: ServiceStatus, figures: Figures, window: str) -> str:
    dimensions = status.definition.dimensions
    seen = {_segment(row, dimensions) for row in figures.rates if row["window"] == window}
    if not seen:
        return f"<h2>{escape(window)}</h2><p class=dim>No impression in this window.</p>"
    kept = set(sorted(seen)[:MAX_SEGMENT_ROWS])

    def of_window(rows: Sequence[Row]) -> list[Row]:
        mine = (row for row in rows if row["window"] == window)
        kept_rows = [row for row in mine if _segment(row, dimensions) in kept]
        return sorted(kept_rows, key=lambda row: row["basis"] == "live")

    maturity = {
        _segment(row, dimensions): row["maturity"]
        for row in figures.maturity
        if row["window"] == window
    }
    rest = len(seen) - len(kept)
    more = f"<p class=dim>{rest} more segments are on <a href=/metrics>/metrics</a>.</p>"
    return (
        f"<h2>{escape(window)}</h2>"
        + _rates(of_window(figures.rates), dimensions, maturity)
        + _ranking(of_window(figures.ranking), dimensions)
        + (more if rest else "")
    )


def _rates(
    rows: Sequence[Row],
    dimensions: Sequence[str],
    maturity: dict[Segment, float | None],
) -> str:
    heads = (*dimensions, "feedback", "basis")
    columns = ("positive rate", "per impression", "users", "impressions", "positives", "matured")
    body = (
        _row(
            row["basis"],
            [*_segment(row, dimensions), row["feedback"], row["basis"]],
            [
                _mean(row, "positive_rate"),
                _mean(row, "positives_per_impression"),
                _number(row["users"]),
                _number(row["impressions"]),
                _number(row["positives"]),
                _meter(maturity.get(_segment(row, dimensions))) if row["basis"] == "live" else "",
            ],
        )
        for row in rows
    )
    return _table(heads, columns, body)


def _ranking(rows: Sequence[Row], dimensions: Sequence[str]) -> str:
    names = [metric.name for metric in RANKING]
    body = (
        _row(
            row["basis"],
            [*_segment(row, dimensions), f"@{row['k']}", row["basis"]],
            [
                *(_mean(row, name) for name in names),
                _number(row["slates"]),
                _number(row["slates_with_positive"]),
            ],
        )
        for row in rows
    )
    columns = [*(name.replace("_", " ") for name in names), "slates", "with positive"]
    return _table((*dimensions, "k", "basis"), columns, body)


def _partitions(partitions: Sequence[PartitionStatus], now: float) -> str:
    if not partitions:
        return "<h2>Partitions</h2><p class=dim>None is assigned to this worker.</p>"
    columns = (
        "lag",
        "offset",
        "watermark",
        "behind",
        "open slates",
        "users by segment",
        "checkpoint",
    )
    body = (
        _row(
            "matured",
            [str(each.partition), "restoring" if each.restoring else "running"],
            [
                _number(each.lag),
                _number(each.committed_offset),
                _moment(each.watermark),
                _NOTHING if each.watermark is None else _duration(now - each.watermark / 1000),
                _number(each.open_slates),
                _number(each.users),
                _checkpoint(each),
            ],
        )
        for each in partitions
    )
    return "<h2>Partitions</h2>" + _table(("partition", "state"), columns, body)


def _checkpoint(partition: PartitionStatus) -> str:
    if partition.checkpoint_bytes is None:
        return "none yet"
    size = f"{partition.checkpoint_bytes / 1024:,.0f} KiB"
    if partition.checkpoint_age_seconds is None:
        return f"{size}, from before this worker"
    return f"{size}, {_duration(partition.checkpoint_age_seconds)} ago"


def _checks(checks: Sequence[CheckStatus], now: float) -> str:
    """List the checks of the newest snapshot, which the leader knows."""
    if not checks:
        return ""
    body = (
        _row(
            "matured",
            [each.name],
            [_ended(each), _figure(each.value), f"{_duration(now - each.time)} ago"],
        )
        for each in checks
    )
    return "<h2>Checks</h2>" + _table(("check",), ("ended", "value", "ran"), body)


def _ended(check: CheckStatus) -> str:
    if check.passed is None:
        return check.state
    return f"<span class={'good' if check.passed else 'bad'}>{check.state}</span>"


def _footer(status: ServiceStatus) -> str:
    return (
        f"<p class=dim>streameval {escape(status.version)} · <a href=/metrics>/metrics</a> · "
        "<a href=/readyz>/readyz</a> · <a href=/healthz>/healthz</a></p>"
    )


def _table(names: Sequence[str], columns: Sequence[str], body: Iterable[str]) -> str:
    head = "".join(f"<th class=name>{escape(name)}</th>" for name in names)
    head += "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = "".join(body)
    return (
        f"<div class=table><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(kind: str, names: Sequence[str], cells: Sequence[str]) -> str:
    """Write a row; `names` are escaped here, `cells` are HTML of our own."""
    left = "".join(f"<td class=name>{escape(name) or _NOTHING}</td>" for name in names)
    return f"<tr class={escape(kind)}>{left}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _mean(row: Row, name: str) -> str:
    value, error = row[name], row[f"{name}_stderr"]
    if value is None:
        return _NOTHING
    return f"{value:.4f}" if error is None else f"{value:.4f} <small>± {error:.4f}</small>"


def _meter(share: float | None) -> str:
    if share is None:
        return _NOTHING
    return f"<meter min=0 max=1 value={share:.3f}></meter> {share:.0%}"


def _segment(row: Row, dimensions: Sequence[str]) -> Segment:
    return tuple(row[dimension] for dimension in dimensions)


def _figure(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.4g}"


def _number(value: Any) -> str:
    return _NOTHING if value is None else f"{value:,}"


def _moment(milliseconds: float | None) -> str:
    if milliseconds is None:
        return _NOTHING
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(seconds: float) -> str:
    """Write a duration in its two largest units, such as 3 h 20 min."""
    left = max(0, int(seconds))
    if left < 60:
        return f"{left} s"
    if left < 3_600:
        return f"{left // 60} min {left % 60} s"
    if left < 86_400:
        return f"{left // 3_600} h {left % 3_600 // 60} min"
    return f"{left // 86_400} d {left % 86_400 // 3_600} h"
