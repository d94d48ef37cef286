"""Paths of JMESPath, compiled: plain functions where they are simple, which most are.

`$.` at the beginning stands for the whole message, within `each`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import jmespath

from streameval.base.errors import ConfigError

Path: TypeAlias = Callable[[Any, Any], Any]
"""A function of an element and its message; None where it finds nothing."""

_NAME: Final = r'(?:[A-Za-z_]\w*|"[^"\\]+")'
_PLAIN: Final = re.compile(rf"{_NAME}(?:\.{_NAME})*\Z", re.ASCII)
_STEP: Final = re.compile(_NAME, re.ASCII)


def compiled(text: str) -> Path:
    """Compile a path. Raises ConfigError."""
    either = [part.strip() for part in text.split("||")]
    if len(either) > 1 and all(_is_plain(part) for part in either):
        return _first([compiled(part) for part in either])
    if text == "@":
        return lambda element, _: element
    if text == "$":
        return lambda _, message: message
    if text.startswith("$."):
        inner = compiled(text.removeprefix("$."))
        return lambda _, message: inner(message, message)
    if _PLAIN.match(text):
        return _steps([name.strip('"') for name in _STEP.findall(text)])
    try:
        search = jmespath.compile(text).search
    except (jmespath.exceptions.JMESPathError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"{text!r} is no path of JMESPath: {said}") from None
    return lambda element, _: search(element)


def first_steps(text: str) -> tuple[bool, list[str]] | None:
    """Return the names of a plain path, or of its first alternative; None for any other path.

    Before them stands whether they begin at the message.
    """
    first = text.split("||", maxsplit=1)[0].strip()
    if not _is_plain(first):
        return None
    return first.startswith("$."), [
        name.strip('"') for name in _STEP.findall(first.removeprefix("$."))
    ]


def _is_plain(text: str) -> bool:
    return bool(_PLAIN.match(text.removeprefix("$.")))


def _first(paths: Sequence[Path]) -> Path:
    """As `||` of JMESPath: the first value that is neither false nor empty."""

    def find(element: Any, message: Any) -> Any:
        found = None
        for path in paths:
            found = path(element, message)
            if not is_false(found):
                return found
        return found

    return find


def is_false(found: Any) -> bool:
    """Tell what JMESPath takes for false: nothing, false, and what is empty; not the number 0."""
    return found is None or found is False or (isinstance(found, str | list | dict) and not found)


def _steps(names: Sequence[str]) -> Path:
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
