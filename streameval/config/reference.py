"""The text of docs/configuration.md, made from the settings model."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    types: dict[object, str] = {tuple: "list", dict: "map", str: "text"}
    kind = types.get(type(field.default), "text")
    return kind if most is None else f"{kind} of {least} to {most}"


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201  # the purpose of the command
