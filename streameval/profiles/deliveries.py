"""Messages of an unknown format without what a delivery puts around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from streameval.core.foreign_formats import OURS, format_of
from streameval.profiles.envelopes import ENVELOPE, of_text, unwrap
from streameval.profiles.message_fields import (
    columns_of_lists,
    examples_of,
    leaves_of,
    lists_of_items,
    path_of,
    paths_of,
    read_json,
)
from streameval.profiles.message_kinds import tells
from streameval.profiles.told_by_values import users_told
from streameval.profiles.typed_json import without_types

# What a message says that no other says more than.
_ALL: Final = 5


def types_off(values: Sequence[bytes]) -> tuple[str, Sequence[bytes]]:
    """Return the format of a profile and values by it, where most name their types; else ""."""
    plain = [_without_types(value) for value in values]
    if 2 * sum(each is not None for each in plain) <= len(values):
        return "", values
    return "typed_json", [each or value for each, value in zip(plain, values, strict=True)]


def _without_types(value: bytes) -> bytes | None:
    """Return a value without the names of types; None where it has none, or is too deep."""
    message = read_json(value)
    try:
        plain = without_types(message)
        return None if plain == message else msgspec.json.encode(plain)
    except RecursionError:
        return None


def taken_out(values: Sequence[bytes]) -> tuple[str, Sequence[bytes]]:
    """Return the path to messages within the envelopes that most values are, and the messages.

    The path is "" for values without an envelope, or with one that says more than its message.
    CloudEvents and arrays need no path.
    """
    values = [message for value in values for message in bare(value)]
    path, found = "", [("", values)]
    while True:
        field, inner = _in_envelopes(values) or _in_fields(values)
        if not inner:
            break
        path = f"{path}.{field}" if path else field
        texts = (
            each.encode() if isinstance(each, str) else msgspec.json.encode(each) for each in inner
        )
        values = [message for each in texts for message in bare(each)]
        found.append((path, values))
        if any(isinstance(each, str) for each in inner):  # no path goes into a text
            break
    return max(reversed(found), key=lambda one: _says(one[1]))


def _in_envelopes(values: Sequence[bytes]) -> tuple[str, list[Any]] | None:
    """Return the field of the envelope that most values are, and the messages; None without."""
    formats = [format_of(each) for each in values]
    known = Counter(found.envelope for found in formats if found and found.envelope)
    for field, count in known.most_common(1):
        inner = [
            message
            for each, found in zip(values, formats, strict=True)
            if found and found.envelope == field
            if (message := msgspec.json.decode(each)[field]) is not None
        ]
        if inner and 2 * count > len(values):
            return field, inner
    return None


def _in_fields(values: Sequence[bytes]) -> tuple[str, list[Any]]:
    """Return the path of messages within most values, and the messages; ("", []) without.

    A text is one if it is an object, and an object if a tracker that is known wrote it. A list may
    have several such texts or objects.
    """
    found: dict[str, list[list[Any]]] = {}
    for value in values:
        message = read_json(value)
        leaves = dict(leaves_of(message, ""))
        texts = {path: [each] for path, each in leaves.items() if isinstance(each, str)}
        texts |= {path.removesuffix("[]."): each for path, each in columns_of_lists(leaves)}
        for path, each in texts.items():
            if (inner := [*map(of_text, each)]) and all(isinstance(one, dict) for one in inner):
                found.setdefault(path, []).append(
                    [msgspec.json.encode(one).decode() for one in inner]
                )
        if not _is_known(message):
            for path, parts in _parts(message):
                if all(map(_is_known, parts[:1])):
                    found.setdefault(path, []).append(parts)
    path = max(found, key=lambda path: len(found[path]), default="")
    held = found.get(path, [])
    return (path, [*chain(*held)]) if 2 * len(held) > len(values) else ("", [])


def _parts(message: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists and objects within an object, the inner ones first; an object as a list."""
    for name, inner in message.items() if isinstance(message, dict) else ():
        below = path_of(name, path)
        yield from _parts(inner, below)
        if isinstance(inner, dict):
            yield below, [inner]
        elif isinstance(inner, list) and inner:
            yield below, inner


def _is_known(message: Any) -> bool:
    """Tell whether a message has a profile, and says when it was and of whom, as a batch may."""
    if not isinstance(message, dict):
        return False
    found = format_of(b"{}", message)
    if not (message.get("type") in OURS or (found and found.profile)):
        return False
    firsts = (listed[0] for listed in message.values() if isinstance(listed, list) and listed)
    fields = dict(chain.from_iterable(leaves_of(one, "") for one in (message, *firsts)))
    return bool(paths_of("ts", fields) and (paths_of("user_id", fields) or users_told([fields])))


def _says(values: Sequence[bytes]) -> int:
    """Return how much of an event messages say: when, who, of what item, and what was done.

    Those of a tracker that is known say more than any.
    """
    formats = map(format_of, values)
    if 2 * sum(bool(found and found.profile) for found in formats) > len(values):
        return _ALL
    read = [dict(leaves_of(each, "")) for value in values if (each := read_json(value))]
    fields = examples_of(read)
    item = paths_of("item_id", fields) or lists_of_items(fields)
    return sum(map(bool, (paths_of("ts", fields), paths_of("user_id", fields), item, tells(read))))


def bare(value: bytes, *, keep: bool = False) -> Iterable[bytes]:
    """Yield the messages of a value, without what every profile takes off.

    With `keep`, a message has what an event tells around it, as a profile sees it.
    """
    try:
        messages = list(unwrap(msgspec.json.decode(value), "json", keep=keep))
        return [msgspec.json.encode(_of_event(each) if keep else each) for each in messages]
    except (ValueError, RecursionError):  # the draft says what is wrong with it
        return (value,)


def _of_event(message: Any) -> Any:
    """Return a message with the part of its envelope that is about what happened, at its end."""
    around = message.pop(ENVELOPE, None) if isinstance(message, dict) else None
    if not around:
        return message
    return {**message, ENVELOPE: {name: around.get(name) for name in ("type", "time", "subject")}}
