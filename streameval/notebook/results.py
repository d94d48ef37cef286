"""The results of the public functions: figures, differences, and all figures of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from streameval.base.terminal import format_figure
from streameval.notebook.charts import Chart, Interval, Panel, draw
from streameval.notebook.rows import Row, Rows, html_table

if TYPE_CHECKING:
    from streameval.evaluation.answer import Answer, Figure, Note
    from streameval.evaluation.compared import Compared

# Figures that a chart shows where nobody named any.
_PANELS: Final = 8
_SECTIONS: Final = ("rates", "values", "ranking", "lists")
_STDERR: Final = "_stderr"
_OF_FIGURE: Final = frozenset({"feedback", "k"})


class Evaluation(Rows):
    """The figures of all and of each segment, a row for each, with intervals of 95 %."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        super().__init__(list(_figure_rows(answer)))

    def __getitem__(self, name: str) -> Figure:
        """Return a figure of all by its name: its value, bounds and count."""
        return self._answer.figures[name]

    @property
    def differences(self) -> Comparison | None:
        """The segments beside the control, where `against` named one."""
        found = self._answer.differences
        return None if found is None else Comparison(found, ())

    @property
    def lists(self) -> Rows | None:
        """The scores of each list, where `per_list` asked for them."""
        found = self._answer.lists
        if found is None:
            return None
        return Rows([{"list": name, **found[name]} for name in sorted(found)])

    def document(self) -> dict[str, Any]:
        """Return what `streameval evaluate --json` prints."""
        return self._answer.document()

    def chart(self, *figures: str) -> Chart:
        """Draw figures with their intervals, all of them or those that are named."""
        return draw(_panels(self._rows, self._answer.by, figures))

    def _print(self, console: Console) -> None:
        from streameval.evaluation.report.terminal import print_answer

        print_answer(replace(self._answer, lists=None), with_intervals=True, console=console)

    def _repr_html_(self) -> str:
        by = dict.fromkeys(self._answer.by, "all")
        return html_table([_fill_missing(row, by) for row in self._rows]) + _notes(
            self._answer.notes
        )


def _fill_missing(row: Row, defaults: Mapping[str, str]) -> Row:
    """Return a row with a word in place of its missing values."""
    return {name: defaults.get(name) if value is None else value for name, value in row.items()}


def _figure_rows(answer: Answer) -> Iterator[Row]:
    everything: list[tuple[Sequence[str | None], Mapping[str, Figure]]] = [
        ([None] * len(answer.by), answer.figures),
        *answer.segments.items(),
    ]
    for segment, figures in everything:
        for name, figure in figures.items():
            yield {
                **dict(zip(answer.by, segment, strict=True)),
                "figure": name,
                **figure.document(),
            }


class Comparison(Rows):
    """Differences between arms or models, a row for each metric and arm."""

    def __init__(self, rows: Sequence[Compared], notes: Sequence[Note]) -> None:
        self._compared, self._notes = rows, notes
        super().__init__([_flat(row.document()) for row in rows])

    @property
    def sentences(self) -> list[str]:
        """The bounds in words, a sentence for each row."""
        return [row.sentence() for row in self._compared]

    def document(self) -> dict[str, Any]:
        """Return what `streameval compare --json` prints."""
        from streameval.evaluation.comparison import document

        return document(self._compared, self._notes)

    def chart(self, *metrics: str) -> Chart:
        """Draw relative differences with their bounds for all looks, of all metrics or some."""
        chosen = [row for row in self._compared if not metrics or row.metric in metrics]
        several = len({row.arm for row in chosen}) > 1
        return draw([_difference_panel(chosen, with_arms=several)])

    def _print(self, console: Console) -> None:
        from streameval.evaluation.report.terminal import print_comparison

        print_comparison(self._compared, self._notes, console)

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.sentences)
        return f"{html_table(self._rows)}<ul>{said}</ul>{_notes(self._notes)}"


def _flat(row: dict[str, Any]) -> Row:
    adjusted = row.pop("adjusted", {})
    return {**row, **{f"adjusted_{name}": value for name, value in adjusted.items()}}


def _difference_panel(rows: Sequence[Compared], *, with_arms: bool) -> Panel:
    intervals = []
    for row in rows:
        scored, base = row.scored, row.scored.control_value
        label = " · ".join([row.metric, *row.labels.values(), *([row.arm] if with_arms else [])])
        if scored.relative_difference is None or not base:
            intervals.append(Interval(label, None, None, None))
            continue
        low, high = (None if end is None else end / abs(base) for end in (scored.low, scored.high))
        intervals.append(Interval(label, scored.relative_difference, low, high))
    control = rows[0].control if rows else "the control"
    arm = "" if with_arms or not rows else f"{rows[0].arm}: "
    title = f"{arm}relative difference from {control}, with bounds for all looks"
    return Panel(title, intervals, shares=True)


class Replay(Rows):
    """All figures of events; a row for each one that has a standard error.

    `sections` holds the rows of `streameval replay --json` by their name: `rates`, `ranking` and so
    on, and `users` where they were asked for. `rejected` says which of the first events were
    rejected, and why. `warnings` names the kinds of feedback that count though their value is not
    above 0.
    """

    def __init__(
        self,
        document: dict[str, Any],
        rejected: Sequence[str],
        dimensions: Sequence[str],
        warnings: Sequence[str] = (),
    ) -> None:
        from streameval.web.intervals import with_intervals

        self._document, self._dimensions = document, dimensions
        self.rejected, self.warnings = rejected, warnings
        sections = {name: rows for name, rows in document.items() if isinstance(rows, list)}
        self.sections = {name: Rows(rows) for name, rows in sections.items()}
        if "users" in document:
            self.sections["users"] = Rows(list(_user_rows(document["users"])))
        self._bounded = with_intervals(sections, dimensions)
        super().__init__([row for name in _SECTIONS for row in _long(self._bounded[name])])

    def __getitem__(self, section: str) -> Rows:
        """Return the rows of a section."""
        return self.sections[section]

    def document(self) -> dict[str, Any]:
        """Return what `streameval replay --json` prints."""
        return self._document

    def chart(self, *figures: str) -> Chart:
        """Draw figures with their intervals, the first or those that are named."""
        names = list(self._rows[0]) if self._rows else ["figure"]
        return draw(_panels(self._rows, names[: names.index("figure")], figures))

    def _print(self, console: Console) -> None:
        from streameval.evaluation.report.replay_tables import print_figures

        print_figures(self._document, self._dimensions, console)
        for line in self.rejected:
            console.print(line, markup=False, soft_wrap=True)

    def _repr_html_(self) -> str:
        tables = (
            html_table([_with_intervals(row) for row in rows], name.capitalize())
            for name in _SECTIONS
            if (rows := self._bounded[name])
        )
        return "".join(tables) + "".join(f"<p>{escape(line)}</p>" for line in self.rejected)


def _user_rows(users: Mapping[str, Row]) -> Iterator[Row]:
    for user, row in users.items():
        positives = {f"positives_{kind}": count for kind, count in row["positives"].items()}
        yield {"user": user, **row, **positives} | {"positives": sum(positives.values())}


def _with_intervals(row: Row) -> Row:
    """Return a row for people, the ends of each interval beside their figure."""
    return {
        name: _between(row, name) if f"{name}{_STDERR}" in row else value
        for name, value in row.items()
        if not name.endswith((_STDERR, "_low", "_high"))
    }


def _between(row: Row, name: str) -> str:
    value, low, high = (format_figure(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return value if row[f"{name}_low"] is None else f"{value} ({low} to {high})"


def _long(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a row for each figure with a standard error, under the name that experiments use."""
    for row in rows:
        whose = {
            name: value
            for name, value in row.items()
            if isinstance(value, str) and name not in _OF_FIGURE
        }
        suffix = f"@{row['k']}" if "k" in row else ""
        suffix += f"{{feedback={row['feedback']}}}" if "feedback" in row else ""
        for name in row:
            if not name.endswith(_STDERR):
                continue
            figure = name.removesuffix(_STDERR)
            yield {
                **whose,
                "figure": f"{figure}{suffix}",
                "value": row[figure],
                "low": row[f"{figure}_low"],
                "high": row[f"{figure}_high"],
                "stderr": row[name],
            }


def _panels(rows: Sequence[Row], labels: Sequence[str], names: Sequence[str]) -> list[Panel]:
    """Make a panel for each figure, with a line for each segment."""
    chosen = names or list(dict.fromkeys(row["figure"] for row in rows))[:_PANELS]
    return [
        Panel(
            name,
            [
                Interval(_label(row, labels), row["value"], row["low"], row["high"])
                for row in rows
                if row["figure"] == name
            ],
        )
        for name in chosen
    ]


def _label(row: Row, labels: Sequence[str]) -> str:
    return " ".join(str(row[name]) for name in labels if row[name] is not None) or "all"


def _notes(notes: Sequence[Note]) -> str:
    return "".join(f"<p>{escape(note.text)}</p>" for note in notes if note.text)
