"""A draft of a profile for messages of an unknown format, guessed from their fields."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import yaml

from streameval.base.errors import InputError
from streameval.core import rejection_words
from streameval.core.events import in_words
from streameval.core.foreign_formats import format_of
from streameval.profiles.envelopes import unwrap

_WORDS: Final = {
    "ts": ("ts", "timestamp", "time", "event_time", "eventtime", "created_at", "occurred_at"),
    "user_id": ("user_id", "userid", "uid", "user", "visitor_id", "customer_id", "client_id"),
    "item_id": ("item_id", "itemid", "product_id", "productid", "content_id", "object_id", "sku"),
    "request_id": ("request_id", "requestid", "query_id", "impression_id", "list_id", "trace_id"),
    "kind": ("event", "event_name", "event_type", "action", "type", "name"),
}
_MOST_FIELDS: Final = 40
_LONGEST_EXAMPLE: Final = 40
# What needs no quotes in JMESPath, and what may need none in YAML.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)


def taken_out(values: Sequence[bytes]) -> tuple[str, Sequence[bytes]]:
    """Return the path to messages within the envelopes that most values are, and the messages.

    The path is "" for values without an envelope. CloudEvents and arrays need no path.
    """
    path: list[str] = []
    values = [message for value in values for message in _bare(value)]
    while True:
        formats = [format_of(each) for each in values]
        known = Counter(found.envelope for found in formats if found and found.envelope)
        (field, count), *_ = known.most_common(1) or (("", 0),)
        inner = [
            message
            for each, found in zip(values, formats, strict=True)
            if found and found.envelope == field
            if (message := msgspec.json.decode(each)[field]) is not None
        ]
        if not inner or 2 * count <= len(values):
            return ".".join(path), values
        path.append(field)
        values = [
            each.encode() if isinstance(each, str) else msgspec.json.encode(each) for each in inner
        ]
        if any(isinstance(each, str) for each in inner):  # no path goes into a text
            return ".".join(path), values


def _bare(value: bytes) -> Iterable[bytes]:
    """Yield the messages of a value, without what every profile takes off."""
    try:
        return [msgspec.json.encode(each) for each in unwrap(msgspec.json.decode(value), "json")]
    except (ValueError, RecursionError):  # the draft says what is wrong with it
        return (value,)


def draft(values: Sequence[bytes]) -> str:
    """Return a profile to complete. Raises `InputError` where no line is a JSON object."""
    counts: Counter[str] = Counter()
    examples: dict[str, Any] = {}
    for value in values:
        try:
            message = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for path, found in _leaves(message, ""):
            counts[path] += 1
            examples.setdefault(path, found)
    if not counts:
        why = in_words(rejection_words.malformed, values[0], "a profile maps JSON objects")
        raise InputError(f"no line is a JSON object; of the first one: {why}")
    lists = [path for path, found in examples.items() if isinstance(found, list)]
    paths = [path for path in examples if path not in lists]
    guessed = {field: _best(field, paths) for field in _WORDS}
    ts, user_id, item_id, request_id, kind = (_yaml(path) for path in guessed.values())
    items = _items(lists[0], examples[lists[0]]) if lists else _items("items", [{}])
    shown = _yaml(examples.get(guessed["kind"], "..."))
    listed = [
        f"#   {_yaml(path)}: {_yaml(examples[path])[:_LONGEST_EXAMPLE]}"
        for path, _ in counts.most_common(_MOST_FIELDS)
    ]
    return "\n".join(
        [
            "# A draft: no known format. Fields of these messages, each with an example:",
            *listed,
            "# Complete the paths; `streameval map FILE --profile THIS --explain` says what each",
            "# line becomes. docs/profiles.md has the language.",
            "rules:",
            f"  - when: {{{kind}: {shown}}}  # the event that shows a list",
            "    slate:",
            f"      ts: {{from: {ts}, unit: auto}}",
            f"      user_id: {user_id}",
            f"      request_id: {request_id}",
            f"      items: {items}",
            f"  - when: {{{kind}: click}}  # the event of a click",
            "    feedback:",
            "      kind: {const: click}",
            f"      ts: {{from: {ts}, unit: auto}}",
            f"      user_id: {user_id}",
            f"      item_id: {item_id}",
            f"      request_id: {request_id}",
            "",
        ]
    )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values below an object by their path of JMESPath; a list is a value."""
    if not isinstance(value, dict):
        if path:
            yield path, value
        return
    for name, inner in value.items():
        step = name if _PLAIN_NAME.match(name) else json.dumps(name)
        yield from _leaves(inner, f"{path}.{step}" if path else step)


def _items(path: str, listed: Sequence[Any]) -> str:
    """Return the source of items: a path to ids, or also where an item has its id."""
    first = listed[0] if listed else {}
    if not isinstance(first, dict):
        return _yaml(path)
    item_id = _best("item_id", [inner for inner, _ in _leaves(first, "")])
    return f"{{each: {_yaml(path)}, item_id: {_yaml(item_id)}}}"


def _yaml(value: Any) -> str:
    """Write a value on one line of YAML, where JSON is YAML too."""
    if isinstance(value, str) and _PLAIN_TEXT.match(value) and yaml.safe_load(value) == value:
        return value
    written = json.dumps(value, ensure_ascii=False)
    return written if written.isprintable() else json.dumps(value)


def _best(field: str, paths: Sequence[str]) -> str:
    """Return the path whose last name is a word for a field, else the field's own name."""
    for word in _WORDS[field]:
        for path in paths:
            if path.rpartition(".")[2].strip('"').lower() == word:
                return path
    return field
