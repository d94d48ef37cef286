"""Paths of JMESPath, compiled to plain functions; its library walks a tree each time.

`$` at the beginning of a path stands for the whole message, within `each`. The parts of the
language that profiles use are compiled, and others are left to the library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import jmespath
from jmespath.parser import Parser

from streameval.base.errors import ConfigError

Path: TypeAlias = Callable[[Any, Any], Any]
"""A function of an element and its message; None where it finds nothing."""

_MESSAGE: Final = "$"
# JMESPath takes it for a name, in quotes.
_ROOT: Final = re.compile(r"(?<![\w'\"`])\$(?=[.\[\s)|]|\Z)")
_TYPES: Final = ((bool, "boolean"), (str, "string"), (int | float, "number"), (list, "array"))


class _UnknownError(Exception):
    """A part of the language that is left to the library."""


def compiled(text: str) -> Path:
    """Compile a path. Raises ConfigError."""
    tree = _tree(text)
    try:
        return _function(tree)
    except _UnknownError:
        search = jmespath.compile(_ROOT.sub('"$"', text)).search
        return lambda element, message: search(
            {**element, _MESSAGE: message} if isinstance(element, dict) else element
        )


def first_steps(text: str) -> tuple[bool, list[str]] | None:
    """Return the names of a path that is no more than that, or of its first alternative, else None.

    Before them stands whether they begin at the message.
    """
    tree = _tree(text)
    while tree["type"] == "or_expression":
        tree = tree["children"][0]
    names = _names(tree)
    if names is None or names == [_MESSAGE]:
        return None
    return (True, names[1:]) if names[0] == _MESSAGE else (False, names)


def is_false(found: Any) -> bool:
    """Tell whether JMESPath takes a value for false: nothing, false, or empty; not the number 0."""
    return found is None or found is False or (isinstance(found, str | list | dict) and not found)


def _tree(text: str) -> Any:
    try:
        return Parser().parse(_ROOT.sub('"$"', text)).parsed
    except (jmespath.exceptions.JMESPathError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"{text!r} is no path of JMESPath: {said}") from None


def _names(tree: Any) -> list[str] | None:
    """Return the names of a tree that is a chain of them; None for any other."""
    if tree["type"] == "field":
        return [tree["value"]]
    if tree["type"] != "subexpression":
        return None
    parts = [_names(child) for child in tree["children"]]
    return None if None in parts else [name for part in parts if part for name in part]


def _function(tree: Any) -> Path:
    names = _names(tree)
    if names is not None:
        return _steps(names)
    make = _MAKERS.get(tree["type"])
    if make is None:
        raise _UnknownError
    return make(tree.get("value"), [_function(child) for child in tree["children"]])


def _steps(names: Sequence[str]) -> Path:
    if names[0] == _MESSAGE:
        inner = _steps(names[1:]) if len(names) > 1 else None
        return lambda _, message: message if inner is None else inner(message, message)
    if len(names) == 1:
        (name,) = names
        return lambda element, _: element.get(name) if isinstance(element, dict) else None

    def find(element: Any, _: Any) -> Any:
        for name in names:
            if not isinstance(element, dict):
                return None
            element = element.get(name)
        return element

    return find


def _chain(_: Any, parts: Sequence[Path]) -> Path:
    first, *rest = parts

    def find(element: Any, message: Any) -> Any:
        found = first(element, message)
        for path in rest:
            found = path(found, message)
        return found

    return find


def _index(at: int, _: Sequence[Path]) -> Path:
    def find(element: Any, _: Any) -> Any:
        if not isinstance(element, list) or not -len(element) <= at < len(element):
            return None
        return element[at]

    return find


def _either(_: Any, parts: Sequence[Path]) -> Path:
    one, other = parts

    def find(element: Any, message: Any) -> Any:
        found = one(element, message)
        return other(element, message) if is_false(found) else found

    return find


def _both(_: Any, parts: Sequence[Path]) -> Path:
    one, other = parts

    def find(element: Any, message: Any) -> Any:
        found = one(element, message)
        return found if is_false(found) else other(element, message)

    return find


def _compared(sign: str, parts: Sequence[Path]) -> Path:
    if sign not in {"eq", "ne"}:
        raise _UnknownError
    one, other = parts

    def find(element: Any, message: Any) -> bool:
        found, wanted = one(element, message), other(element, message)
        # For Python true is 1.
        same = found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
        return same == (sign == "eq")

    return find


def _projected(_: Any, parts: Sequence[Path]) -> Path:
    rows, each, *conditions = parts

    def find(element: Any, message: Any) -> Any:
        found = rows(element, message)
        if not isinstance(found, list):
            return None
        taken = (
            each(row, message)
            for row in found
            if not any(is_false(condition(row, message)) for condition in conditions)
        )
        return [one for one in taken if one is not None]

    return find


def _called(name: str, parts: Sequence[Path]) -> Path:
    if name == "not_null":
        return lambda element, message: next(
            (found for path in parts if (found := path(element, message)) is not None), None
        )
    if name == "type" and len(parts) == 1:
        return lambda element, message: _type_of(parts[0](element, message))
    raise _UnknownError


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "object")


_MAKERS: Final[dict[str, Callable[[Any, Sequence[Path]], Path]]] = {
    "subexpression": _chain,
    "index_expression": _chain,
    "pipe": _chain,
    "index": _index,
    "or_expression": _either,
    "and_expression": _both,
    "not_expression": lambda _, parts: (
        lambda element, message: is_false(parts[0](element, message))
    ),
    "comparator": _compared,
    "literal": lambda value, _: lambda *_: value,
    "current": lambda *_: lambda element, _: element,
    "identity": lambda *_: lambda element, _: element,
    "filter_projection": _projected,
    "projection": _projected,
    "function_expression": _called,
}
"""Makers of functions by kind of node, from its value and the functions of its parts."""
