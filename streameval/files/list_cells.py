"""Tables with a list in each row, as recommenders write them: a user, and all of its items.

They are read as one row for each item, with its place in the list as `rank`. The items may be
objects, whose fields become columns, and other columns may have a value for each item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from streameval.files.table_scans import (
    MARK,
    TableFile,
    column_types,
    literal,
    plain_name,
    quote,
    reading,
)

WANTED: Final = (
    *("relevant", "relevant_items", "positives", "targets", "truth", "ground_truth", "actual"),
    "purchased",
)
"""Names of a column with the items that a list should have."""

# Names of a column of lists, beside those of one value and their plurals.
_LISTS: Final = (
    *("recommendations", "recommended", "recommended_items", "recs", "ranking", "ranked_items"),
    *("results", "hits", "slate", "candidates", *WANTED, "clicked", "labels"),
)
# Rows in which lists in texts and the fields of JSON objects are looked for.
_SAMPLE: Final = 1_000
# A list of values in a text: of Python or JSON, or of NumPy, which has no commas.
_LIST: Final = r"\s*\[[^\[\]{}]*\]\s*"
_VALUE: Final = r"""('[^']*'|"[^"]*"|[^\s,'"\[\]]+)"""
_QUOTES: Final = "'\""
_NUMPY: Final = rf"\s*\[\s*{_VALUE}(\s+{_VALUE})+\s*\]\s*"


class Several(NamedTuple):
    """What may come as lists: the names of its column, and those of columns `beside` it.

    A table with a column of `ranks` has a row for each value already. In others the places in a
    list become the first of these columns. Lists with a name of `first` come before all others.
    """

    names: Sequence[str]
    beside: Sequence[str] = ()
    ranks: Sequence[str] = ()
    first: Sequence[str] = ()


def one_value_a_row(connection: Any, table: TableFile, several: Several) -> TableFile:
    """Return a table with a row for each value of a column of lists, or the table as it is."""
    whole = table
    if table.parsed and not table.json:
        table = _with_lists(connection, table)
    names = {plain_name(name): name for name in reversed([*table.types])}
    sought = [*map(plain_name, several.names)]
    one = next((names[name] for name in sought if name in names), None)
    has_ranks = not names.keys().isdisjoint(map(plain_name, several.ranks))
    if not table.lists or has_ranks or (one is not None and one not in table.lists):
        return whole
    first, last = ([*map(plain_name, known)] for known in (several.first, _LISTS))
    known = [*first, *sought, *(f"{name}s" for name in sought), *last]
    found = [names[name] for name in known if names.get(name) in table.lists]
    if not found and len(table.lists) > 1:
        return whole
    column = next(iter([*found, *table.lists]))
    words = {plain_name(name) + end: name for name in several.beside for end in ("", "s")}
    beside = {name: words.get(plain_name(name), "") for name in table.lists if name != column}
    return _unnested(connection, table, {column: "each", **beside}, several)


def _with_lists(connection: Any, table: TableFile) -> TableFile:
    """Return a table of texts in which those that are lists are read as lists."""
    tests = ", ".join(
        f"bool_and(regexp_full_match({quote(name)}, {literal(_LIST)}))" for name in table.types
    )
    sample = f"(SELECT * FROM {table.scan} LIMIT {_SAMPLE})"  # noqa: S608  # quoted
    with reading(table.file):
        (row,) = connection.execute(f"SELECT {tests} FROM {sample}").fetchall()  # noqa: S608  # quoted
    lists = [name for name, is_list in zip(table.types, row, strict=True) if is_list]
    if not lists:
        return table
    read = {name: _list_in_text(table, name) for name in lists}
    scan = f"(SELECT * REPLACE ({_named(read)}) FROM {table.scan})"  # noqa: S608  # quoted
    types = {**table.types, **dict.fromkeys(lists, "VARCHAR[]")}
    return replace(table, scan=scan, types=types, lists=lists)


def _list_in_text(table: TableFile, column: str) -> str:
    """Return the SQL of the list that a text is. Values that NumPy left out end the query."""
    cell = quote(column)
    said = f"{MARK}{table.file}: column {column}: values were left out (...): write whole lists"
    values = f"regexp_extract_all({cell}, {literal(_VALUE)})"
    return (
        f"CASE WHEN regexp_matches({cell}, '[\\s,]\\.\\.\\.[\\s,]') THEN error({literal(said)})"
        f" WHEN regexp_full_match({cell}, {literal(_NUMPY)})"
        f" THEN [trim(one, {literal(_QUOTES)}) FOR one IN {values}]"
        f" ELSE {cell}::VARCHAR[] END"
    )


def _unnested(
    connection: Any, table: TableFile, lists: Mapping[str, str], several: Several
) -> TableFile:
    """Return a table with a row for each value of `lists`, which have new names ("": left out)."""

    def values(column: str) -> str:
        if table.json:
            return f"json_extract({quote(column)}, '$[*]')"
        return f"{quote(column)}::{table.types[column].rpartition('[')[0]}[]"

    first, *_ = lists
    added = {new: f"unnest({values(column)})" for column, new in lists.items() if new}
    if several.ranks:
        places = f"generate_subscripts({values(first)}, 1)"
        added[several.ranks[0]] = f"to_json({places})" if table.json else places
    new = {*map(str.lower, added)}
    gone = [name for name in table.types if name in lists or name.lower() in new]
    scan = f"(SELECT * EXCLUDE ({_listed(gone)}), {_named(added)} FROM {table.scan})"  # noqa: S608  # quoted
    fields = _fields(connection, table, scan, first) or {several.names[0]: "each"}
    taken = {*map(str.lower, fields), "each"}
    kept = [*(name for name in table.types if name not in gone), *added]
    columns = {name: quote(name) for name in kept if name.lower() not in taken} | fields
    scan = f"(SELECT {_named(columns)} FROM {scan})"  # noqa: S608  # quoted
    return replace(table, scan=scan, types=column_types(connection, scan), lists=())


def _fields(connection: Any, table: TableFile, scan: str, column: str) -> dict[str, str]:
    """Return the SQL of each field of the objects `each`; nothing for other values."""
    if table.json:
        rows = connection.execute(
            "SELECT DISTINCT unnest(json_keys(each)) AS field FROM"  # noqa: S608  # quoted
            f" (SELECT each FROM {scan} LIMIT {_SAMPLE})"
            " WHERE json_type(each) = 'OBJECT' ORDER BY field"
        ).fetchall()
        return {name: f"json_extract(each, {_path(name)})" for (name,) in rows}
    if not table.types[column].startswith("STRUCT"):
        return {}
    found = column_types(connection, f"(SELECT unnest(each) FROM {scan})")  # noqa: S608  # quoted
    return {name: f"each.{quote(name)}" for name in found}


def _path(name: str) -> str:
    """Return the path of a field of JSON as SQL has it."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("'", "''")
    return f"'$.\"{escaped}\"'"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))


def _named(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{sql} AS {quote(name)}" for name, sql in columns.items())
