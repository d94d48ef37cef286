"""The result of an evaluation, whatever it read: figures by name, and notes for their readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from streameval.base.errors import InputError
from streameval.core.metrics.entry import Entry
from streameval.evaluation.compared import Compared


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure over `n` lists, users, pairs or items and its interval; None where undefined.

    `n` counts those with a value; bounds need two clusters of users.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int

    def document(self) -> dict[str, float | int | None]:
        """Return the figure as `--json` prints it."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


Figures: TypeAlias = dict[str, Figure]
"""Figures by the name that asked for them."""

Segment: TypeAlias = tuple[str, ...]
"""Values of the dimensions of `--by`, in their order."""


class Note(NamedTuple):
    """A fact beside the figures: `key` and `value` for programs, `text` for people.

    With an empty `text` only programs get it. A `warning` tells how the input was understood, and a
    `loss` what of it was left out or met nothing: `--strict` refuses that.
    """

    key: str
    value: Any
    text: str
    kind: Literal["remark", "warning", "loss"] = "remark"


def refuse_losses(notes: Sequence[Note]) -> None:
    """Raise `InputError` if any of the input was left out or met nothing."""
    lost = [note.text for note in notes if note.kind == "loss"]
    if lost:
        raise InputError(f"--strict: {' '.join(lost)}")


def with_notes(document: dict[str, Any], notes: Sequence[Note]) -> dict[str, Any]:
    """Return a document with its notes, if there are any."""
    said = {note.key: note.value for note in notes}
    return {**document, "notes": said} if said else document


@dataclass(frozen=True, slots=True)
class Answer:
    """The figures of all and, with `by`, of each segment, in order.

    `lists` holds each list's (user's, query's) scores, None where they were not asked for, and
    `users` the user of each; `unseen` are those without an item. `entries` are the rows of the
    metrics that were asked for. `differences` compare segments, where a control was named.
    """

    figures: Figures
    by: Sequence[str] = ()
    segments: Mapping[Segment, Figures] = field(default_factory=dict)
    lists: Mapping[str, Mapping[str, float | None]] | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    unseen: AbstractSet[str] = frozenset()
    differences: Sequence[Compared] | None = None
    entries: Sequence[Entry] = ()
    notes: Sequence[Note] = ()

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        answer: dict[str, Any] = {"figures": _documents(self.figures)}
        if self.by:
            answer["segments"] = [
                {**dict(zip(self.by, name, strict=True)), "figures": _documents(figures)}
                for name, figures in self.segments.items()
            ]
        if self.differences is not None:
            answer["differences"] = [row.document() for row in self.differences]
        if self.lists is not None:
            answer["lists"] = {name: dict(self.lists[name]) for name in sorted(self.lists)}
        return with_notes(answer, self.notes)


def merge_answers(
    names: Sequence[str], parts: Sequence[Answer], notes: Sequence[Note] = ()
) -> Answer:
    """Merge parts into one answer with the figures `names` in their order, and more `notes`."""
    said = [note for part in parts for note in part.notes]
    segments = sorted({name for part in parts for name in part.segments})
    lists: dict[str, dict[str, float | None]] = {}
    for part in parts:
        for name, scores in (part.lists or {}).items():
            lists.setdefault(name, {}).update(scores)
    return Answer(
        figures=_in_order(names, (part.figures for part in parts)),
        by=parts[0].by,
        segments={
            segment: _in_order(names, (part.segments.get(segment, {}) for part in parts))
            for segment in segments
        },
        lists=None if parts[0].lists is None else lists,
        users={name: user for part in parts for name, user in part.users.items()},
        unseen=frozenset().union(*(part.unseen for part in parts)),
        differences=_differences(names, parts),
        entries=list({entry.name: entry for part in parts for entry in part.entries}.values()),
        notes=list({note.key: note for note in [*said, *notes]}.values()),
    )


def _in_order(names: Sequence[str], parts: Iterable[Mapping[str, Figure]]) -> Figures:
    found = {name: figure for part in parts for name, figure in part.items()}
    return {name: found[name] for name in names if name in found}


def _differences(names: Sequence[str], parts: Sequence[Answer]) -> list[Compared] | None:
    """Return the differences of all parts, arm after arm, each in the order of `names`."""
    if all(part.differences is None for part in parts):
        return None
    found = [row for part in parts for row in part.differences or ()]
    return sorted(found, key=lambda row: (row.arm, *row.labels.values(), names.index(row.metric)))


def _documents(figures: Mapping[str, Figure]) -> dict[str, Any]:
    return {name: figure.document() for name, figure in figures.items()}
