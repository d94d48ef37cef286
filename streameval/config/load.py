"""Loading the settings: one YAML file, and each key also as an environment variable.

The environment beats the file, whole keys at a time: `STREAMEVAL_GAINS` replaces `gains`. An
unknown key of the file is an error, and so is a variable that nearly names a key. Other variables
are left alone, because Kubernetes adds some (`STREAMEVAL_PORT`, for a service of that name). Each
error is one line that names the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError

from streameval.base import yaml_file
from streameval.base.errors import ConfigError
from streameval.base.nearest import nearest
from streameval.config.experiments import ExperimentSettings, NamedMetricSettings
from streameval.config.figure_settings import PositiveSettings, WindowSettings
from streameval.config.reference import reference
from streameval.config.settings import PREFIX, SECRETS, Settings

__all__ = ["Settings", "load", "reference"]

NEARLY: Final = 0.93
"""The likeness (0 to 1) of two variables that differ by a letter or two of the key."""

OTHER_NAMES: Final = {
    "bootstrap": "kafka",
    "bootstrap_servers": "kafka",
    "brokers": "kafka",
    "kafka_bootstrap": "kafka",
    "kafka_bootstrap_servers": "kafka",
    "kafka_brokers": "kafka",
    "kafka_servers": "kafka",
    "kafka_url": "kafka",
    "kafka_topic": "topic",
    "kafka_group": "group",
    "group_id": "group",
    "consumer_group": "group",
    "kafka_user": "kafka_username",
    "redis_url": "redis",
    "redis_host": "redis",
    "host": "listen",
    "port": "listen",
    "address": "listen",
    "k": "ks",
    "cutoffs": "ks",
    "feedback": "positives",
    "lateness": "allowed_lateness",
}
"""Other systems' names of some keys."""


USUAL: Final = "streameval.yaml"
"""The file that a command reads where none is named, if the working folder has it."""


def settings_file(path: Path | None) -> str | None:
    """Return the file that a command takes its settings from; None: defaults and environment.

    It is that at `path`, else that of `STREAMEVAL_CONFIG`, else `USUAL` where it is there.
    """
    named = path or os.environ.get(f"{PREFIX}CONFIG") or (USUAL if Path(USUAL).exists() else None)
    return None if named is None else str(named)


def load(path: Path | None, keys: Mapping[str, Any] | None = None) -> Settings:
    """Load the file at `path`, else at `STREAMEVAL_CONFIG`, else only defaults and environment.

    `keys` come before both. Raises ConfigError.
    """
    _refuse_misspelt(os.environ)
    named = path or os.environ.get(f"{PREFIX}CONFIG")
    given = yaml_file.read(Path(named), "ks: [5, 10]") if named else {}
    from_file = {key: value for key, value in given.items() if not _in_environment(key)}
    try:
        return Settings(**(from_file | dict(keys or {})))
    except ValidationError as error:
        problems: list[Any] = list(error.errors(include_url=False))
        # A misspelt key also leaves the right one missing: report the misspelling first.
        problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
        is_own = not problems[0]["loc"] or problems[0]["loc"][0] not in (keys or {})
        source = f"{named}: " if named and is_own else ""
        raise ConfigError(source + _problem(problems[0])) from None
    except SettingsError as error:
        # pydantic names the key in quotes and leaves out the variable's value.
        key = str(error).split('"')[1]
        raise ConfigError(f"{PREFIX}{key.upper()}: write JSON, like {_example(key)}") from None


def _refuse_misspelt(environment: Mapping[str, str]) -> None:
    """Raise ConfigError for a variable that misspells one of ours by a letter or two."""
    known = [PREFIX + key.upper() for key in Settings.model_fields]
    known += [f"{PREFIX}{key.upper()}_FILE" for key in SECRETS]
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in known:
            continue
        close = nearest(variable, known, cutoff=NEARLY)
        if close:
            raise ConfigError(f"{variable}: no key has that name; did you mean {close[0]}?")


def _in_environment(key: str) -> bool:
    variable = PREFIX + key.upper()
    return bool(os.environ.get(variable)) or (
        key in SECRETS and bool(os.environ.get(f"{variable}_FILE"))
    )


def _problem(problem: Any) -> str:
    """Write one of pydantic's errors as one line: the key, and the cure."""
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{key}: no such key{_suggestion(str(problem['loc'][-1]))}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}: {message}" if key else message
    message = (message[:1].lower() + message[1:]).replace("tuple", "list")
    if message == "input should be a valid list" and isinstance(problem["input"], str | int):
        shown = str(problem["input"]).replace(",", ", ").replace(",  ", ", ")
        return f"{key}: this key is a list: write {key}: [{shown}]"
    given = "" if _secret(problem["loc"]) else f", not {str(problem['input'])[:60]!r}"
    return f"{key}: {message}{given}"


def _secret(location: tuple[int | str, ...]) -> bool:
    return bool(location) and location[0] in SECRETS


def _suggestion(key: str) -> str:
    """Say which key is close. A key that is right elsewhere is not its own cure."""
    models: tuple[type[BaseModel], ...] = (
        *(Settings, WindowSettings, PositiveSettings),
        *(ExperimentSettings, NamedMetricSettings),
    )
    keys = [known for model in models for known in model.model_fields if known != key]
    close = [OTHER_NAMES[key]] if key in OTHER_NAMES else nearest(key, keys)
    return f"; did you mean {close[0]}?" if close else "; docs/configuration.md lists them"


def _example(key: str) -> str:
    return {
        "ks": "[5,10]",
        "gains": '{"purchase":3}',
        "dimensions": '["variant"]',
        "windows": '[{"size":"1h","slide":"1m"}]',
        "experiments": '[{"name":"ranker","arm":"variant","control":"A","primary":"ndcg@10"}]',
    }.get(key, '["click"]')
