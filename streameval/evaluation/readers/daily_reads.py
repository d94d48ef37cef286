"""Gorse's positive rate of a day, from logs of events or from outcome files.

In a log an item is read on the day (UTC) of its impression and positive on the day of its feedback,
as in Gorse. The configuration defines positive feedback, and the latest feedback of a day decides
if some is retracted. In outcome files an item is read, and positive if it has a gain, on the day of
its slate; its feedback tells kinds apart. Either way items are distinct: shown twice a day counts
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streameval.base.errors import InputError
from streameval.core.definition import Definition, Positive
from streameval.core.event_lines import STDIN, lines_of
from streameval.core.events import EventDecoder, FeedbackEvent, ImpressionEvent
from streameval.core.metrics.daily_positive_rate import Reads
from streameval.evaluation.answer import Answer, Note
from streameval.evaluation.batches import ROWS, Advance
from streameval.evaluation.readers.matching import part_note
from streameval.evaluation.readers.outcomes import file_of_other_shape, files_of, record_batches
from streameval.evaluation.request import EVENTS, FILES, Given
from streameval.evaluation.sums import Asked, compute_figures
from streameval.evaluation.units import UnitBatch, batch_of
from streameval.files import locations
from streameval.files.event_tables import with_rows
from streameval.files.table_scans import literal
from streameval.files.tables import connect, size

DAY: Final = "day"
FEEDBACK: Final = "feedback"
_DAY_MS: Final = 86_400_000

_TABLES: Final = """
    CREATE TABLE reads (user VARCHAR, item VARCHAR, day INTEGER);
    CREATE TABLE feedback (user VARCHAR, item VARCHAR, kind VARCHAR, ts BIGINT, retract BOOLEAN)
"""
_POSITIVE: Final = f"""
    CREATE TABLE positives AS
    SELECT DISTINCT user, item, day, kind FROM (
        SELECT user, item, kind, (ts // {_DAY_MS})::INTEGER AS day,
            arg_max(retract, ts * 2 + retract::INTEGER) AS retracted
        FROM feedback GROUP BY ALL
    ) WHERE NOT retracted
"""  # noqa: S608  # our own number
_OF_KINDS: Final = f"""
    INSERT INTO positives SELECT DISTINCT user, item, day, kind FROM (
        SELECT slate, user, day, item, kind,
            arg_max(retract, delay * 2 + retract::INTEGER) AS retracted
        FROM (
            SELECT slate, user, (epoch_ms(time) // {_DAY_MS})::INTEGER AS day,
                items[found.item + 1] AS item, found.kind AS kind, found.value AS value,
                found.delay AS delay, found.retract AS retract
            FROM (
                SELECT row_number() OVER () AS slate, user, time, items, unnest(feedback) AS found
                FROM part
            )
        ) WHERE {{counts}} GROUP BY ALL
    ) WHERE NOT retracted
"""  # noqa: S608  # our own number
_RATES: Final = """
    SELECT user, strftime(DATE '1970-01-01' + day, '%Y-%m-%d') AS day, count(*),
        count(*) FILTER ((user, item, day) IN (SELECT (user, item, day) FROM positives{of_kind}))
    FROM (SELECT DISTINCT user, item, day FROM reads) GROUP BY user, day
"""


def read_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute the positive rate over users and days; with `--by` of each day, kind, or both.

    Raises `InputError`.
    """
    for dimension in given.by:
        if dimension not in {DAY, FEEDBACK}:
            raise InputError(f"--by {dimension}: the daily positive rate is split by day, feedback")
    by_kind = FEEDBACK in given.by
    with connect(*given[EVENTS], *given[FILES]) as connection:
        connection.execute(_TABLES)
        # Without a split by kind, outcome files need no configuration: gains are positive.
        definition = given.definition() if given[EVENTS] or by_kind else None
        kinds = definition.kinds if definition is not None and by_kind else ()
        notes: list[Note] = []
        if given[EVENTS]:
            assert definition is not None, "it says which feedback is positive"
            notes = _load_events(connection, given[EVENTS], definition, advance)
            connection.execute(_POSITIVE)
        else:
            counting = definition if by_kind else None
            _load_outcomes(connection, files_of(given[FILES]), advance, counting)
        if not by_kind:
            return compute_figures(_users(connection, given), asked, given).answer(*notes)
        # A read counts once over all kinds, so their sums are no part of the whole.
        whole = compute_figures(
            _users(connection, given), asked, replace(given, by=(), against=None)
        )
        batches = (batch for kind in kinds for batch in _users(connection, given, kind))
        split = compute_figures(batches, asked, replace(given, per_list=False)).answer()
        return replace(
            whole.answer(*notes),
            by=split.by,
            segments=split.segments,
            differences=split.differences,
        )


def _load_events(
    connection: Any, files: Sequence[str], definition: Definition, advance: Advance
) -> list[Note]:
    positives = {positive.kind: positive for positive in definition.positives}
    anyway: set[Positive] = set()
    decoder = EventDecoder.of(definition)
    rejected = 0
    for file in with_rows(files):
        for lines in lines_of(file):
            events, refused = decoder.decode_batch(lines)
            rejected += len(refused)
            reads: list[tuple[str, str, int]] = []
            said: list[tuple[str, str, str, int, bool]] = []
            for event in events:
                if isinstance(event, FeedbackEvent):
                    positive = positives.get(event.feedback)
                    if positive is not None and _counts(event, positive):
                        retract = event.retract
                        if positive.threshold is None and event.value <= 0 and not retract:
                            anyway.add(positive)
                        said.append(
                            (event.user_id, event.item_id, event.feedback, event.ts, retract)
                        )
                else:
                    items = (
                        [event.item_id] if isinstance(event, ImpressionEvent) else event.positions
                    )
                    day = event.ts // _DAY_MS
                    reads += ((event.user_id, item, day) for item in items)
            _insert(connection, "reads", reads)
            _insert(connection, "feedback", said)
        advance(size([file]) if file != STDIN else 0)
    notes = part_note("rejected", rejected, "line", "Left out, as no valid event: {}.")
    if anyway:
        kinds = sorted(positive.kind for positive in anyway)
        text = "; ".join(sorted(positive.counts_anyway() for positive in anyway))
        notes.append(Note("counted_anyway", kinds, text, "warning"))
    return notes


def _counts(event: FeedbackEvent, positive: Positive) -> bool:
    """Whether feedback says that an item is positive, or takes it back (at any value)."""
    least = positive.threshold
    return event.retract or least is None or event.value >= least


def _insert(connection: Any, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        part = pa.table(columns, names=[str(number) for number in range(len(columns))])
        connection.register("part", part)
        connection.execute(f"INSERT INTO {table} SELECT * FROM part")  # noqa: S608  # our names
        connection.unregister("part")


def _load_outcomes(
    connection: Any, files: Sequence[str], advance: Advance, definition: Definition | None
) -> None:
    """Read slates; with a definition also the positives of each of its kinds.

    Positives of any kind are items with a gain, and their kind is "".
    """
    if file := file_of_other_shape(files):
        raise InputError(
            f"{locations.redact(file)}: not an outcome file; files of events are given as --events"
        )
    connection.execute(
        "CREATE TABLE positives (user VARCHAR, item VARCHAR, day INTEGER, kind VARCHAR)"
    )
    columns = ["user", "time", "items", "gains", *(["feedback"] if definition else [])]
    for record in record_batches(files, columns, advance):
        connection.register("part", pa.Table.from_batches([record]))
        connection.execute(f"""
            CREATE OR REPLACE TEMP TABLE of_slates AS
            SELECT user, unnest(items) AS item, (epoch_ms(time) // {_DAY_MS})::INTEGER AS day,
                unnest(gains) AS gain FROM part
        """)  # noqa: S608  # our own number
        if definition is not None:
            connection.execute(_OF_KINDS.format(counts=_counting(definition)))
        connection.unregister("part")
        connection.execute("INSERT INTO reads SELECT DISTINCT user, item, day FROM of_slates")
        connection.execute(
            "INSERT INTO positives SELECT DISTINCT user, item, day, '' FROM of_slates"
            " WHERE gain > 0"
        )


def _counting(definition: Definition) -> str:
    """Return the condition under which feedback counts, as `_counts` has it."""
    found = []
    for positive in definition.positives:
        least = positive.threshold
        counts = "" if least is None else f" AND (retract OR value >= {least!r})"
        found.append(f"kind = {literal(positive.kind)}{counts}")
    return " OR ".join(found)


def _users(connection: Any, given: Given, kind: str | None = None) -> Iterator[UnitBatch[Reads]]:
    """Yield the reads of users and days, with positives of one kind or of any."""
    wanted = "" if kind is None and not given[EVENTS] else kind
    of_kind = "" if wanted is None else f" WHERE kind = {literal(wanted)}"
    connection.execute(_RATES.format(of_kind=of_kind))
    by = () if kind is None and FEEDBACK in given.by else given.by
    while rows := connection.fetchmany(ROWS):
        users, days, reads, positives = zip(*rows, strict=True)
        ids = [f"{user} {day}" for user, day in zip(users, days, strict=True)]
        segments = [tuple(day if name == DAY else kind or "" for name in by) for day in days]
        data = Reads(np.array(reads, np.int64), np.array(positives, np.int64))
        yield batch_of(data, users, segments, ids if given.per_list else ())
