"""YAML files of keys and values, each key once, held against a model; each error is one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel, ValidationError

from streameval.base.errors import ConfigError
from streameval.base.nearest import nearest

_PLAIN: Final = {
    "dict_type": "write keys and values",
    "list_type": "write a list",
    "tuple_type": "write a list",
    "string_type": "write a text",
    "model_type": "write keys and values",
    "path_type": "write a path",
    **dict.fromkeys(("bool_type", "bool_parsing"), "write true or false"),
    **dict.fromkeys(
        ("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"),
        "write a time with its zone, like 2026-01-31T00:00:00Z",
    ),
    **dict.fromkeys(("float_type", "float_parsing"), "write a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "write a whole number"),
}
"""What to write, by the type of pydantic's error."""


def read(path: Path, example: str) -> Mapping[str, Any]:
    """Read the keys and values of a file; `example` shows people the form. Raises ConfigError."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506  # safe
    except FileNotFoundError:
        cure = "correct the path, or write one with `streameval init`"
        raise ConfigError(f"{path}: no such file: {cure}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        # Within [ ] or { } YAML ends a text at either: names of some metrics have one, and paths.
        is_text = any(f"got '{each}'" in str(error.problem) for each in "{[")
        cure = "; write text with braces or brackets in quotes" if is_text else ""
        raise ConfigError(f"{path}: line {line}: {error.problem}{cure}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deep; write keys, like `{example}`") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: write keys and values, like `{example}`")
    return {str(key): value for key, value in document.items()}


def problem(
    error: ValidationError,
    model: type[BaseModel],
    given: Mapping[str, Any],
    advice: str,
    *,
    others: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
) -> tuple[Sequence[int | str], str]:
    """Return where in the keys `given` the worst problem stands, and a sentence with the cure.

    `advice` is for a key that is like none of the model's. `others` are other systems' names of
    some keys. Values of the keys that are `secrets` are not shown.
    """
    # A misspelt key also leaves the right one missing: report the misspelling first. Of the ways in
    # which a value can be written, the deepest place says most.
    errors = error.errors(include_url=False)
    worst = min(
        errors,
        key=lambda one: (
            one["type"] != "extra_forbidden",
            one["type"] == "string_type",
            -len(one["loc"]),
        ),
    )
    place = _place(worst, given)
    message = worst["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    name = ".".join(map(str, place))
    fields = [pair for each in _models(model) for pair in each.model_fields.items()]
    names = {field.alias or one for one, field in fields}
    match worst["type"]:
        case "value_error":
            about = message.partition(":")[0].split(".")  # it is of several keys
            return place or about, f"{name}: {message}" if name else message
        case "extra_forbidden":
            key = str(worst["loc"][-1])
            meant = (others or {}).get(key) or next(iter(nearest(key, names - {key})), None)
            cure = f"; did you mean {meant}?" if meant else f"; {advice}"
            return place, f"{name}: no such key{cure}"
        case "missing":
            key = str(worst["loc"][-1])
            near = nearest(key, {str(one) for one in worst["input"] or ()} - names)
            meant = f"; is {near[0]} meant?" if near else ""
            return place[:-1], f"{name}: is missing{meant}"
        case "too_short" | "string_too_short":
            what = " characters" if isinstance(worst["input"], str) else ""
            return place, f"{name}: write {worst['ctx']['min_length']}{what} or more"
        case "list_type" | "tuple_type" if isinstance(worst["input"], str | int):
            one = str(worst["input"]).replace(",", ", ").replace(",  ", ", ")
            return place, f"{name}: this key is a list: write {place[-1]}: [{one}]"
    if worst["type"] in _PLAIN:  # it may be written in several ways
        types = [one["type"] for one in errors if _place(one, given) == place]
        message = " or ".join(dict.fromkeys(_PLAIN[each] for each in types if each in _PLAIN))
        message = message.replace(" or write ", ", or ")
    said = message[:1].lower() + message[1:]
    is_secret = bool(place) and place[0] in secrets
    shown = "" if is_secret else f", not {repr(worst['input'])[:60]}"
    return place, f"{name}: {said}{shown}"


def line_of(path: Path, place: Sequence[int | str]) -> str:
    """Return "line N: " of the deepest part of a place that a file has; "" if it has none of it."""
    node, line = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader), None
    for part in place:
        if isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if pair[0].value == str(part)]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = [(each, each) for each in node.value[part : part + 1]]
        else:
            break
        if not found:
            break
        key, node = found[0]
        line = key.start_mark.line + 1
    return "" if line is None else f"line {line}: "


def _place(error: Mapping[str, Any], given: Any) -> list[int | str]:
    """Return the parts of the location of an error that are keys, without its names of types."""
    place: list[int | str] = []
    location = error["loc"]
    for number, part in enumerate(location, 1):
        is_key = isinstance(given, Mapping) and part in given
        if is_key or (isinstance(given, list | tuple) and isinstance(part, int)):
            given = given[part]
        elif number < len(location) or error["type"] != "missing":
            continue
        place.append(part)
    return place


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and those within its fields."""
    yield model
    waiting = [field.annotation for field in model.model_fields.values()]
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and issubclass(one, BaseModel):
            yield from _models(one)
        waiting += get_args(one)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which also refuses a key that stands twice and a wrong date."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001  # as PyYAML
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError) as error:
            problem = f"{node.value!r} does not fit its tag"
            if isinstance(error, ValueError):
                problem = f"{node.value!r} is neither a date nor a number: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(  # as PyYAML has it
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001  # the same
    ) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for index, (key, _) in enumerate(node.value):
            if key.value in keys[:index]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands there twice", key.start_mark
                )
        return super().construct_mapping(node, deep=deep)
