"""Feedback marks of a slate: how many records each impression got, and which of them decides.

A slate holds marks for the feedback attributed to it. Most slates with feedback have one record, so
marks have two forms: one flat tuple for a single (item, kind), and a dict for more. Only this file
knows the forms.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from streameval.base.limits import MAX_LOGGED_FEEDBACK

NEVER: Final = -1
"""A time (ms) before all others, and an unknown offset or index."""

FeedbackKey = tuple[str, int]  # item, index of the kind
FeedbackMark = tuple[int, int, int]  # records, latest positive ts, latest retraction ts
LoneMark = tuple[str, int, int, int, int]
"""The key and the mark of the only feedback to a slate."""
Marks = LoneMark | dict[FeedbackKey, FeedbackMark]
StoredMarks = list[tuple[FeedbackKey, FeedbackMark]]

LoggedFeedback = tuple[str, int, int, float, bool]
"""Item, index of the kind, ts (ms), value, retract."""


def lone(marks: Marks) -> LoneMark | None:
    """Return the only mark, or None where there are several."""
    return marks if isinstance(marks, tuple) else None


def by_key(marks: Marks) -> dict[FeedbackKey, FeedbackMark]:
    """Return marks as a dict: the same object where it is one."""
    if isinstance(marks, dict):
        return marks
    item, kind, *mark = marks
    return {(item, kind): tuple(mark)}  # type: ignore[dict-item]  # these three


def several(marks: Marks | None) -> int:
    """Return the cost of a look at the marks: their number where there are several, else 0."""
    return len(marks) if isinstance(marks, dict) else 0


def stored(marks: Marks | None) -> StoredMarks | None:
    """Return marks as a checkpoint holds them."""
    return None if marks is None else list(by_key(marks).items())


def restored(marks: StoredMarks | None) -> Marks | None:
    """Return stored marks in the form in which they take the least memory."""
    if not marks:
        return None
    (key, mark), *more = marks
    return dict(marks) if more else (*key, *mark)


def marked(
    marks: Marks | None,
    item: str,
    kind: int,
    ts: int,
    retract: bool,  # noqa: FBT001  # on the hot path, in the order of a feedback's fields
) -> Marks:
    """Return `marks` with one more record: the latest positive and the latest retraction stay.

    A dict of marks is changed in place.
    """
    if marks is None:
        return (item, kind, 1, NEVER, ts) if retract else (item, kind, 1, ts, NEVER)
    marks = by_key(marks)
    records, positive, retraction = marks.get((item, kind), (0, NEVER, NEVER))
    if retract:
        retraction = max(retraction, ts)
    else:
        positive = max(positive, ts)
    marks[item, kind] = (records + 1, positive, retraction)
    return marks


def unmarked(marks: Marks | None, item: str, kind: int) -> Marks | None:
    """Return `marks` without one record, the oldest of its item and kind.

    Its ts may stay, because the caller has entered the record elsewhere.
    """
    assert marks is not None, "a record that is removed was entered"
    if not isinstance(marks, dict):
        _, _, records, positive, retraction = marks
        return (item, kind, records - 1, positive, retraction) if records > 1 else None
    records, positive, retraction = marks[item, kind]
    if records > 1:
        marks[item, kind] = (records - 1, positive, retraction)
    else:
        del marks[item, kind]
    return marks or None


def without(marks: Marks | None, item: str, kinds: int) -> Marks | None:
    """Return `marks` without the marks of an item, for all of `kinds` kinds."""
    if not isinstance(marks, dict):
        return None if marks is not None and marks[0] == item else marks
    for kind in range(kinds):
        marks.pop((item, kind), None)
    return marks or None


def merged(marks: Marks | None, more: Marks | None) -> Marks | None:
    """Return both together; neither is changed."""
    if marks is None or more is None:
        return marks or more
    both = dict(by_key(marks))
    for key, (records, positive, retraction) in by_key(more).items():
        known = both.get(key, (0, NEVER, NEVER))
        both[key] = (known[0] + records, max(known[1], positive), max(known[2], retraction))
    return both


def bounded(log: Iterable[LoggedFeedback]) -> list[LoggedFeedback]:
    """Return `log` in order of ts, with at most `MAX_LOGGED_FEEDBACK` entries of an item and kind.

    The earliest entries stay, and the latest positive and retraction, which decide. The result
    depends neither on the order of arrival nor on earlier calls.
    """
    entries: dict[FeedbackKey, list[LoggedFeedback]] = {}
    for entry in log:
        entries.setdefault(entry[:2], []).append(entry)
    kept: list[LoggedFeedback] = []
    for group in entries.values():
        group.sort(key=itemgetter(2, 3, 4))
        first, rest = group[: MAX_LOGGED_FEEDBACK - 2], group[MAX_LOGGED_FEEDBACK - 2 :]
        last = {entry[4]: entry for entry in rest}
        kept += [*first, *last.values()]
    return sorted(kept, key=itemgetter(2, 0, 1, 3, 4))
