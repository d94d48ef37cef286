"""Texts made from a settings model: docs/configuration.md, and a YAML file with every key.

In the file a key has its meaning as a comment and its default as value, so neither can drift.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from streameval.base.durations import Duration, format_duration
from streameval.config.figure_settings import PositiveSettings
from streameval.config.settings import PREFIX, SECRETS, Settings

SECTIONS = {
    "positives": "The meaning of the figures",
    "experiments": "Experiments",
    "kafka": "Kafka",
    "redis": "Redis",
    "batch_interval": "The worker",
    "outcomes": "Files",
    "listen": "Pages and log",
}
"""The heading above the first key of each section."""

_HEAD = f"""# Configuration

<!-- Written by `python -m streameval.config.reference`; do not edit. -->

One YAML file, named by `--config` or by the variable `{PREFIX}CONFIG`, else `streameval.yaml` of
the working folder, which a command then names on standard error. Each key is also an
environment variable, `{PREFIX}` and the key in capitals; lists and maps are written as JSON
(`{PREFIX}KS=[5,10]`). The environment beats the file, whole keys at a time; an empty variable
counts as unset. Secrets ({", ".join(f"`{key}`" for key in SECRETS)}) may also stand in a file
that a variable with `_FILE` names: `{PREFIX}REDIS_PASSWORD_FILE=/run/secrets/redis`.

Durations are a whole number and a unit: `500ms`, `30s`, `5m`, `24h`, `7d`; `0` needs none.
An unknown key or an impossible value ends the program with exit code 2 and a line that names the
key. The keys under "{SECTIONS["positives"]}" define every figure. A worker refuses stored
state of other values at its start and says which keys changed
(`streameval worker --reset-windows` keeps the counters and starts the windows anew).
"""


def reference() -> str:
    """Return the text of docs/configuration.md."""
    return _HEAD + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for key, field in Settings.model_fields.items():
        if key in SECTIONS:
            yield f"\n## {SECTIONS[key]}\n"
            yield "| key | default | values | meaning |"
            yield "| --- | --- | --- | --- |"
        yield f"| `{key}` | `{default_text(field)}` | {_values(key, field)} | {field.description} |"


def default_text(field: FieldInfo) -> str:
    """Write the default of a key as YAML in one line."""
    default = field.default
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    if _duration(field) is not None and default is not None:
        return format_duration(default)
    return _yaml(default)


def _yaml(value: Any) -> str:
    """Write a value as YAML in one line."""
    if isinstance(value, PositiveSettings):
        return value.kind
    if isinstance(value, BaseModel):
        return f"{{size: {value.size}, slide: {format_duration(value.slide)}}}"  # type: ignore[attr-defined]
    if isinstance(value, tuple):
        return f"[{', '.join(_yaml(part) for part in value)}]"
    return value if isinstance(value, str) else json.dumps(value)


def _duration(field: FieldInfo) -> Duration | None:
    return next((mark for mark in field.metadata if isinstance(mark, Duration)), None)


def _values(key: str, field: FieldInfo) -> str:
    """Describe the values of a key: the choices, the range with its unit, or just the type."""
    duration = _duration(field)
    if duration is not None:
        return f"duration, {duration}"
    choices = [part for part in get_args(field.annotation) if isinstance(part, str)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    low = next((mark.ge for mark in field.metadata if isinstance(mark, Ge)), None)
    high = next((mark.le for mark in field.metadata if isinstance(mark, Le)), None)
    if low is not None:
        return f"{low} to {high}"
    least = next((mark.min_length for mark in field.metadata if isinstance(mark, MinLen)), 0)
    most = next((mark.max_length for mark in field.metadata if isinstance(mark, MaxLen)), None)
    if key in SECRETS:
        return f"secret, at least {least} characters" if least > 1 else "secret"
    types: dict[object, str] = {tuple: "list", dict: "map", str: "text", bool: "true or false"}
    kind = types.get(type(field.default), "text")
    return kind if most is None else f"{kind} of {least} to {most}"


_WIDTH = 100


def starter() -> str:
    """Return the text of a `streameval.yaml`."""
    head = (
        "The settings of streameval: every key with its default. Change what you need, and delete"
        " the rest if you like. Write secrets into the environment, as STREAMEVAL_REDIS_PASSWORD,"
        " or into files that it names: STREAMEVAL_REDIS_PASSWORD_FILE=/run/secrets/redis."
    )
    # Written out, this default would no longer follow `topic`.
    return commented_yaml(Settings, head, SECTIONS, follows={"dead_letter_topic"})


def commented_yaml(
    model: type[BaseModel],
    head: str,
    sections: Mapping[str, str] | None = None,
    follows: Collection[str] = (),
) -> str:
    """Return the YAML of a model whose keys all have defaults.

    `sections` are headings by the first key below them. Keys that `follows` names stay comments,
    because to write them changes their meaning.
    """
    return "\n".join([*_comment(head), *_keys(model, "", sections or {}, follows)]) + "\n"


def _keys(
    model: type[BaseModel], indent: str, sections: Mapping[str, str], follows: Collection[str]
) -> Iterator[str]:
    for key, field in model.model_fields.items():
        if not indent:
            yield ""
        if key in sections:
            yield from (f"# ---- {sections[key]}", "")
        yield from _comment(_meaning(field), indent)
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield f"{indent}{key}:"
            yield from _keys(type(default), f"{indent}  ", {}, ())
        else:
            mark = "# " if key in follows else ""
            yield f"{indent}{mark}{key}: {default_text(field)}"


def _meaning(field: FieldInfo) -> str:
    assert field.description, "every key has its description"
    said = re.sub(r"\[([^\]]+)\]\((?:\w+\.md)?(?:#[^)]*)?\)", r"\1", field.description)
    choices = [part for part in get_args(field.annotation) if isinstance(part, str)]
    named = [choice for choice in choices if choice not in said]
    return f"{said} One of {', '.join(choices)}." if named else said


def _comment(text: str, indent: str = "") -> list[str]:
    mark = f"{indent}# "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=mark, subsequent_indent=mark, break_on_hyphens=False
    )


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201  # the purpose of the command
