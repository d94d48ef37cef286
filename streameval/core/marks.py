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
from streameval.core.definition import ValueRule

NEVER: Final = -1
"""A time (ms) before all others, and an unknown offset or index."""

FeedbackKey = tuple[str, int]  # item, index of the kind
ValueEntries = tuple[tuple[int, int], ...]
"""Distinct (ts, value in 10**-6), rising: at most `MAX_LOGGED_FEEDBACK`, the largest."""
FeedbackMark = tuple[
    int,  # records
    int,  # earliest positive ts
    int,  # latest positive ts
    int,  # latest retraction ts
    ValueEntries,  # of the positives, where the values of this kind are figures
]
LoneMark = tuple[str, int, int, int, int, int, ValueEntries]
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


def to_stored(marks: Marks | None) -> StoredMarks | None:
    """Return marks as a checkpoint holds them."""
    return None if marks is None else list(by_key(marks).items())


def from_stored(marks: StoredMarks | None) -> Marks | None:
    """Return stored marks in the form in which they take the least memory."""
    if not marks:
        return None
    (key, mark), *more = marks
    return dict(marks) if more else (*key, *mark)


def add_mark(  # noqa: PLR0917  # on the hot path, in the order of a feedback's fields
    marks: Marks | None,
    item: str,
    kind: int,
    ts: int,
    retract: bool,  # noqa: FBT001  # the same
    micro: int | None,
) -> Marks:
    """Return `marks` with one more record: the latest positive and the latest retraction stay.

    `micro` is the record's value in 10**-6, None where the values of its kind are no figures. A
    dict of marks is changed in place.
    """
    entries: ValueEntries = () if micro is None else ((ts, micro),)
    if marks is None:
        moments = (NEVER, NEVER, ts) if retract else (ts, ts, NEVER)
        return (item, kind, 1, *moments, entries)
    marks = by_key(marks)
    known = marks.get((item, kind))
    one = (1, NEVER, NEVER, ts, ()) if retract else (1, ts, ts, NEVER, entries)
    marks[item, kind] = one if known is None else _join(known, one)
    return marks


def remove_mark(marks: Marks | None, item: str, kind: int) -> Marks | None:
    """Return `marks` without one record, the oldest of its item and kind.

    Its ts and value may stay, because the caller has entered the record elsewhere.
    """
    assert marks is not None, "a record that is removed was entered"
    if not isinstance(marks, dict):
        _, _, records, *rest = marks
        return (item, kind, records - 1, *rest) if records > 1 else None  # type: ignore[return-value]  # these
    records, first, positive, retraction, entries = marks[item, kind]
    if records > 1:
        marks[item, kind] = (records - 1, first, positive, retraction, entries)
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


def merge_marks(marks: Marks | None, more: Marks | None) -> Marks | None:
    """Return both together; neither is changed."""
    if marks is None or more is None:
        return marks or more
    both = dict(by_key(marks))
    for key, mark in by_key(more).items():
        both[key] = _join(both[key], mark) if key in both else mark
    return both


def _join(one: FeedbackMark, other: FeedbackMark) -> FeedbackMark:
    entries = one[4] or other[4]
    if one[4] and other[4]:
        entries = tuple(sorted({*one[4], *other[4]})[-MAX_LOGGED_FEEDBACK:])
    return (
        one[0] + other[0],
        min(one[1], other[1]) if NEVER not in {one[1], other[1]} else max(one[1], other[1]),
        max(one[2], other[2]),
        max(one[3], other[3]),
        entries,
    )


def value_of(rule: ValueRule, mark: FeedbackMark) -> int:
    """Return the value of one impression and kind in 10**-6: 0 where no entry counts.

    The entries later than the latest retraction count: by `rule` the latest of them (at equal ts
    the larger), their sum, or the largest.
    """
    *_, retraction, entries = mark
    counted = [entry for entry in entries if entry[0] > retraction]
    if not counted:
        return 0
    if rule == "last":
        return counted[-1][1]
    values = [micro for _, micro in counted]
    return sum(values) if rule == "sum" else max(values)


def bound_log(log: Iterable[LoggedFeedback]) -> list[LoggedFeedback]:
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
