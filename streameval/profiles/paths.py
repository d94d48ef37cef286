"""Paths of JMESPath, written as expressions of Python; its library walks a tree each time.

`$` at the beginning of a path stands for the whole message, within `each`. The parts of the
language that profiles use are written as code, and others are left to the library, with four
functions of our own. No text of a profile becomes code itself: names and literals stand there as
Python quotes them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Final, TypeAlias
from warnings import catch_warnings, simplefilter

import jmespath
import msgspec
from jmespath.functions import Functions, signature
from jmespath.parser import Parser

from streameval.base.errors import ConfigError
from streameval.base.nearest import nearest
from streameval.profiles.binary_values import as_json

Path: TypeAlias = Callable[[Any, Any], Any]
"""A function of an element and its message; None where it finds nothing."""

_MESSAGE: Final = "$"
# A list or an object with texts in the quotes of Python.
_PYTHON: Final = re.compile(r"\s*[\[{(][\s\[{(]*'")
# Texts of numpy have blanks alone between them, and Python makes one text of such.
_APART: Final = re.compile(r"'\s+'")
# JMESPath takes it for a name, in quotes.
_ROOT: Final = re.compile(r"(?<![\w'\"`])\$(?=[.\[\s)|]|\Z)")
_TYPES: Final = {
    type(None): "null",
    bool: "boolean",
    str: "string",
    int: "number",
    float: "number",
    list: "array",
}


class _Functions(Functions):  # type: ignore[misc]
    """The functions of JMESPath, two for lists that came as texts, and two for what was taken."""

    @signature({"types": ["string", "null"]}, {"types": ["string"]})  # type: ignore[untyped-decorator]
    def _func_split(self, text: str | None, separator: str) -> list[str] | None:
        """Return the parts of a text, as `parts_of` it."""
        return None if text is None else parts_of(text, separator)

    @signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_from_json(self, found: Any) -> Any:
        """Return what a text of JSON or Python says, else what is there. Raises ValueError."""
        try:
            return msgspec.json.decode(found) if isinstance(found, str) else found
        except msgspec.DecodeError as error:
            if value := of_python(found):
                return value
            raise ValueError(f"from_json(): {error}") from None
        except RecursionError:
            raise ValueError("from_json(): nested too deep") from None

    @signature({"types": ["array", "null"]}, {"types": ["array", "null"]})  # type: ignore[untyped-decorator]
    def _func_where(self, values: list[Any] | None, flags: list[Any] | None) -> list[Any] | None:
        """Return the values beside flags that are not 0, false, no, empty, or a text of these."""
        if values is None or flags is None:
            return None
        if len(values) != len(flags):
            raise ValueError(f"where(): {len(values):,} values, and {len(flags):,} flags")
        lower = (flag.lower() if isinstance(flag, str) else flag for flag in flags)
        return [one for one, flag in zip(values, lower, strict=True) if flag not in _FALSE]

    @signature(
        {"types": ["array", "null"]},
        {"types": ["array", "number", "null"]},
        {"types": ["number"]},
    )  # type: ignore[untyped-decorator]
    def _func_at(self, values: list[Any] | None, places: Any, first: float) -> list[Any] | None:
        """Return the values at places, or at one place, of a list that counts from `first`."""
        if values is None or places is None:
            return None
        numbered = dict(enumerate(values, int(first)))
        found = places if isinstance(places, list) else [places]
        if wrong := [one for one in found if not isinstance(one, int) or one not in numbered]:
            raise ValueError(f"at(): no place {wrong[0]!r} in {len(values):,} values")
        return [numbered[place] for place in found]


_BRACKETED: Final = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}|\([^()]*\)", re.DOTALL)
_FALSE: Final[tuple[Any, ...]] = (0, None, "", "0", "false", "f", "no", "n", [], {})
_OPTIONS: Final = jmespath.Options(custom_functions=_Functions())


class _UnknownError(Exception):
    """A part of the language that is left to the library."""


def compile_path(text: str) -> Path:
    """Compile a path. Raises ConfigError."""
    code = Code()
    function: Path = code.function("element, message", [f"return {code.path(text)}"])
    return function


def of_python(text: str) -> Any:
    """Return the list or the object that a text of Python has, as pandas writes them; else None."""
    if not _PYTHON.match(text) or _APART.search(text):
        return None
    try:
        with catch_warnings():  # of wrong escapes, which later Pythons print
            simplefilter("ignore")
            found = ast.literal_eval(text)
        return msgspec.json.decode(msgspec.json.encode(as_json(found)))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def parts_of(text: str, separator: str) -> list[str]:
    """Return the parts of a text, none of them empty; an empty separator is any blank.

    Blanks and quotes around each go. So do brackets around all that a comma or a blank separates:
    databases write {a,b} and ['a', 'b'].
    """
    if separator.strip() in {"", ","} and _BRACKETED.fullmatch(text):
        text = text[1:-1]
    parts = (part.strip() for part in text.split(separator or None))
    return [
        part[1:-1] if len(part) > 1 and part[0] == part[-1] and part[0] in "'\"" else part
        for part in parts
        if part
    ]


def is_false(found: Any) -> bool:
    """Tell whether JMESPath takes a value for false: nothing, false, or empty; not the number 0."""
    return found is None or found is False or (isinstance(found, str | list | dict) and not found)


class Code:
    """Code of one function with an `element` and its `message`, and the values it has names for.

    A method with the name of a kind of node of JMESPath writes such nodes.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {
            "_is_false": is_false,
            "_same": _same,
            "_type_of": _type_of,
        }
        self._numbers = count()

    def new(self) -> str:
        """Return a name that no other part of the code has."""
        return f"_{next(self._numbers)}"

    def value(self, value: Any) -> str:
        """Return a name for a value."""
        name = self.new()
        self._values[name] = value
        return name

    def path(self, text: str) -> str:
        """Write a path as an expression. Raises ConfigError."""
        tree = _tree(text)
        try:
            written = self.expression(tree, "element")
            compile(written, text, "eval")
        except (_UnknownError, SyntaxError, MemoryError, RecursionError):  # it may be too deep
            search = jmespath.compile(_ROOT.sub('"$"', text)).search

            def by_library(element: Any, message: Any) -> Any:
                has_root = _MESSAGE in text and isinstance(element, dict)
                rooted = {**element, _MESSAGE: message} if has_root else element
                return search(rooted, options=_OPTIONS)

            written = f"{self.value(by_library)}(element, message)"
        return written

    def condition(self, text: str) -> str:
        """Write whether what a path finds is true, as an expression. Raises ConfigError."""
        return f"not _is_false({self.path(text)})"

    def function(self, parameters: str, lines: Iterable[str]) -> Any:
        """Return the function of these lines."""
        body = "\n    ".join(lines)
        exec(f"def written({parameters}):\n    {body}\n", self._values)  # noqa: S102  # our own code
        return self._values["written"]

    def expression(self, tree: Any, element: str) -> str:
        """Write a tree as an expression of the variable `element`. Raises _UnknownError."""
        names = _names(tree)
        if names is not None:
            return self._steps(names, element)
        writer: Callable[[Any, str], str] | None = getattr(self, tree["type"], None)
        if writer is None:
            raise _UnknownError
        return writer(tree, element)

    def _steps(self, names: Sequence[str], element: str) -> str:
        is_root = names[0] == _MESSAGE
        source = "message" if is_root else element
        for name in names[is_root:]:
            held = source if source.isidentifier() else self.new()
            found = source if source.isidentifier() else f"({held} := {source})"
            source = f"({held}.get({name!r}) if {found}.__class__ is dict else None)"
        return source

    def subexpression(self, tree: Any, element: str) -> str:
        """Write parts of which each looks in what the one before has found."""
        first, *rest = tree["children"]
        found = self.expression(first, element)
        for part in rest:
            if part["type"] == "index" or _names(part):  # it looks there once
                found = self.expression(part, found)
            else:
                held = self.new()
                found = f"({held} := {found}, {self.expression(part, held)})[1]"
        return found

    index_expression = pipe = subexpression

    def index(self, tree: Any, element: str) -> str:
        """Write the element of a list."""
        at, held = tree["value"], self.new()
        first_or_last = at if at >= 0 else -at - 1
        is_there = f"({held} := {element}).__class__ is list and len({held}) > {first_or_last}"
        return f"({held}[{at}] if {is_there} else None)"

    def or_expression(self, tree: Any, element: str) -> str:
        """Write the first value, or the second where that is false."""
        one, other = tree["children"]
        held = self.new()
        return (
            f"({held} if {self._holds(held, one, element)} else {self.expression(other, element)})"
        )

    def and_expression(self, tree: Any, element: str) -> str:
        """Write the second value, or the first where that is false."""
        one, other = tree["children"]
        held = self.new()
        return (
            f"({self.expression(other, element)} if {self._holds(held, one, element)} else {held})"
        )

    def _holds(self, held: str, tree: Any, element: str) -> str:
        """Write whether a value is true, and let `held` have it."""
        held_value = f"({held} := {self.expression(tree, element)})"
        if tree["type"] in {"comparator", "not_expression"}:
            return held_value
        # What Python takes for true is true; of the rest most is None.
        return f"({held_value} or {held} is not None and not _is_false({held}))"

    def not_expression(self, tree: Any, element: str) -> str:
        """Write whether a value is false."""
        return f"_is_false({self.expression(tree['children'][0], element)})"

    def comparator(self, tree: Any, element: str) -> str:
        """Write whether two values are the same, or not."""
        if tree["value"] not in {"eq", "ne"}:
            raise _UnknownError
        is_equal, children = tree["value"] == "eq", tree["children"]
        one, other = (self.expression(child, element) for child in children)
        if any(
            child["type"] == "literal" and isinstance(child["value"], str) for child in children
        ):
            return f"({one} {'==' if is_equal else '!='} {other})"
        return f"(_same({one}, {other}) is {is_equal})"

    def literal(self, tree: Any, _: str) -> str:
        """Write a value that stands in the path."""
        value = tree["value"]
        return repr(value) if isinstance(value, str) else self.value(value)

    def current(self, _: Any, element: str) -> str:
        """Write the element itself."""
        return element

    identity = current

    def filter_projection(self, tree: Any, element: str) -> str:
        """Write what each element of a list has, where conditions hold for it."""
        source, each, *conditions = tree["children"]
        rows, row, found = self.new(), self.new(), self.new()
        tests = [
            *(self._holds(self.new(), condition, row) for condition in conditions),
            f"({found} := {self.expression(each, row)}) is not None",
        ]
        taken = f"[{found} for {row} in {rows} if {' and '.join(tests)}]"
        is_list = f"({rows} := {self.expression(source, element)}).__class__ is list"
        return f"({taken} if {is_list} else None)"

    projection = filter_projection

    def function_expression(self, tree: Any, element: str) -> str:
        """Write the call of a function."""
        parts = [self.expression(child, element) for child in tree["children"]]
        if tree["value"] == "type" and len(parts) == 1:
            return f"_type_of({parts[0]})"
        if tree["value"] != "not_null":
            raise _UnknownError
        found = "None"
        for part in reversed(parts):
            held = self.new()
            found = f"({held} if ({held} := {part}) is not None else {found})"
        return found


def _tree(text: str) -> Any:
    try:
        tree = Parser().parse(_ROOT.sub('"$"', text)).parsed
    except (jmespath.exceptions.JMESPathError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"{text!r} is no path of JMESPath: {said}") from None
    for part in _parts(tree):
        kind, inner = part["type"], part["children"]
        if kind == "subexpression" and inner[0]["type"] == "not_expression":
            raise ConfigError(f"{text!r}: !a.b means (!a).b, which finds nothing: write !(a.b)")
        if kind == "function_expression":
            _require_function(text, part["value"], len(inner))
    return tree


def _require_function(text: str, name: str, given: int) -> None:
    """Raise ConfigError where a path calls what is no function, or with too little or too much."""
    known = _Functions.FUNCTION_TABLE
    if name not in known:
        close = "".join(f"; did you mean {one}()?" for one in nearest(name, known))
        raise ConfigError(f"{text!r}: no function {name}(){close}")
    wanted = known[name]["signature"]
    if given < len(wanted) or (given > len(wanted) and not wanted[-1].get("variadic")):
        raise ConfigError(f"{text!r}: {name}() takes {len(wanted)} values, not {given}")


def _parts(tree: Any) -> Iterator[Any]:
    """Yield the nodes of a tree."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):  # a slice has numbers
            yield part
            waiting += part["children"]


def _names(tree: Any) -> list[str] | None:
    """Return the names of a tree that is a chain of them; None for any other."""
    if tree["type"] == "field":
        return [tree["value"]]
    if tree["type"] != "subexpression":
        return None
    parts = [_names(child) for child in tree["children"]]
    return None if None in parts else [name for part in parts if part for name in part]


def _same(one: Any, other: Any) -> bool:
    # For Python true is 1.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _type_of(value: Any) -> str:
    return _TYPES.get(value.__class__, "object")
