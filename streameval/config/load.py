"""Loading the settings: one YAML file, and each key also as an environment variable.

The environment beats the file, whole keys at a time: `STREAMEVAL_GAINS` replaces `gains`. An
unknown key of the file is an error, and so is a variable that nearly names a key. Other variables
are left alone, because Kubernetes adds some (`STREAMEVAL_PORT`, for a service of that name). Each
error is one line that names the key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import SettingsError

from streameval.base import yaml_file
from streameval.base.errors import ConfigError
from streameval.base.nearest import nearest
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
        said = _from_environment()
        everything = from_file | said | dict(keys or {})
        place, problem = yaml_file.problem(
            error,
            Settings,
            everything,
            "docs/configuration.md lists them",
            others=OTHER_NAMES,
            secrets=SECRETS,
        )
        key = str(place[0]) if place else ""
        if key in said:
            problem = f"{PREFIX}{key.upper()}: {problem}"
        elif named and key not in (keys or {}):
            problem = f"{named}: {yaml_file.line_of(Path(named), place)}{problem}"
        raise ConfigError(problem) from None
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


def _from_environment() -> dict[str, Any]:
    """Return the values of the environment by key, parsed where they are JSON."""
    found: dict[str, Any] = {}
    for key in filter(_in_environment, Settings.model_fields):
        found[key] = os.environ.get(f"{PREFIX}{key.upper()}", "")
        with suppress(ValueError):
            found[key] = json.loads(found[key])
    return found


def _example(key: str) -> str:
    return {
        "ks": "[5,10]",
        "gains": '{"purchase":3}',
        "dimensions": '["variant"]',
        "windows": '[{"size":"1h","slide":"1m"}]',
        "experiments": '[{"name":"ranker","arm":"variant","control":"A","primary":"ndcg@10"}]',
    }.get(key, '["click"]')
