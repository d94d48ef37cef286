"""A draft of a profile for messages of an unknown format, guessed from their fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from streameval.base.errors import InputError

_WORDS: Final = {
    "ts": ("ts", "timestamp", "time", "event_time", "eventtime", "created_at", "occurred_at"),
    "user_id": ("user_id", "userid", "uid", "user", "visitor_id", "customer_id", "client_id"),
    "item_id": ("item_id", "itemid", "product_id", "productid", "content_id", "object_id", "sku"),
    "request_id": ("request_id", "requestid", "query_id", "impression_id", "list_id", "trace_id"),
    "kind": ("event", "event_name", "event_type", "action", "type", "name"),
}
_MOST_FIELDS: Final = 40


def draft(values: Sequence[bytes]) -> str:
    """Return a profile to complete. Raises `InputError` where no line is a JSON object."""
    paths: Counter[str] = Counter()
    lists: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for value in values:
        try:
            message = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for path, found in _leaves(message, ""):
            (lists if isinstance(found, list) else paths)[path] += 1
            examples.setdefault(path, str(found)[:40])
    if not paths and not lists:
        raise InputError("no line is a JSON object: a profile maps JSON objects")
    guessed = {field: _best(field, paths) for field in _WORDS}
    items = next(iter(lists), "items")
    listed = [
        f"#   {path}: {examples[path]!r}" for path, _ in (paths + lists).most_common(_MOST_FIELDS)
    ]
    kind = guessed["kind"]
    kinds = sorted({examples[kind]}) if kind in examples else ["..."]
    return "\n".join(
        [
            "# A draft: no known format. Fields of these messages, each with an example:",
            *listed,
            "# Complete the paths; `streameval map FILE --profile THIS --explain` says what each",
            "# line becomes. docs/profiles.md has the language.",
            "rules:",
            f"  - when: {{{kind}: {kinds[0]!r}}}  # the event that shows a list",
            "    slate:",
            f"      ts: {{from: {guessed['ts']}, unit: auto}}",
            f"      user_id: {guessed['user_id']}",
            f"      request_id: {guessed['request_id']}",
            f"      items: {{each: {items}, item_id: item_id}}",
            f"  - when: {{{kind}: click}}  # the event of a click",
            "    feedback:",
            "      kind: {const: click}",
            f"      ts: {{from: {guessed['ts']}, unit: auto}}",
            f"      user_id: {guessed['user_id']}",
            f"      item_id: {guessed['item_id']}",
            f"      request_id: {guessed['request_id']}",
            "",
        ]
    )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values below an object by their path; a list is a value."""
    if not isinstance(value, dict):
        if path:
            yield path, value
        return
    for name, inner in value.items():
        step = name if name.isidentifier() else f'"{name}"'
        yield from _leaves(inner, f"{path}.{step}" if path else step)


def _best(field: str, paths: Counter[str]) -> str:
    """Return the path whose last name is a word for a field, else the field's own name."""
    for word in _WORDS[field]:
        for path in paths:
            if path.rpartition(".")[2].strip('"').lower() == word:
                return path
    return field
