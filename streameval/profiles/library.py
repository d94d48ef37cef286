"""Finds profiles: built in by name, a file by path, a class of another package by name.

An entry point of the group `streameval.decoders` names a class, a subclass of `EventDecoder`, which
decodes what no profile can say.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import ValidationError

from streameval.base import yaml_file
from streameval.base.errors import ConfigError
from streameval.base.nearest import nearest
from streameval.profiles.decoder import ProfileDecoder
from streameval.profiles.language import Profile
from streameval.profiles.mapping import Mapping

if TYPE_CHECKING:
    from streameval.core.definition import Definition
    from streameval.core.events import EventDecoder
    from streameval.profiles.registry import Registry

GROUP: Final = "streameval.decoders"
_FOLDER: Final = "builtin"


def names() -> list[str]:
    """List the built-in profiles."""
    folder = files("streameval.profiles") / _FOLDER
    return sorted(each.name.removesuffix(".yaml") for each in folder.iterdir() if _is_yaml(each))


def _is_yaml(each: Any) -> bool:
    return bool(each.name.endswith(".yaml"))


def text_of(name: str) -> str:
    """Return a built-in profile as it is written. Raises ConfigError."""
    if name not in names():
        close = nearest(name, names())
        meant = f"; did you mean {close[0]}?" if close else f": {', '.join(names())}"
        raise ConfigError(f"no profile {name}{meant}")
    return (files("streameval.profiles") / _FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def decoder_of(
    definition: Definition, profile: str, registry: Registry | None = None
) -> EventDecoder:
    """Return the decoder that a profile names, under `definition`. Raises ConfigError.

    A `registry` reads the values that have its frame.
    """
    for point in entry_points(group=GROUP, name=profile):
        found: EventDecoder = point.load().of(definition)
        return found
    return ProfileDecoder.by(definition, profile_name(profile), mapping_of(profile), registry)


def profile_name(profile: str) -> str:
    """Return how messages call a profile: a file without its folder."""
    return Path(profile).stem


@cache
def mapping_of(profile: str) -> Mapping:
    """Compile a profile: built in, or a file by its path. Raises ConfigError."""
    if _is_path(profile):
        given = yaml_file.read(Path(profile), "rules: [...]")
    else:
        given = yaml.safe_load(text_of(profile))
    try:
        folder = Path(profile).parent if _is_path(profile) else Path()
        return Mapping(Profile.model_validate(given), folder)
    except ValidationError as error:
        place, problem = yaml_file.problem(error, Profile, given, "docs/profiles.md lists them")
        line = yaml_file.line_of(Path(profile), place)
        raise ConfigError(f"{profile}: {line}{problem}") from None
    except ConfigError as error:
        raise ConfigError(f"{profile}: {error}") from None


def _is_path(profile: str) -> bool:
    return "/" in profile or profile.endswith((".yaml", ".yml"))
