"""Finds profiles: built in by name, a file by path, a class of another package by name.

An entry point of the group `streameval.decoders` names a class, a subclass of `EventDecoder`, which
decodes what no profile can say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import ValidationError

from streameval.base import yaml_file
from streameval.base.errors import ConfigError, UnreachableError
from streameval.base.limits import MAX_DETAIL_LENGTH
from streameval.base.nearest import nearest
from streameval.core.events import Decoded, EventDecoder, Rejection, printable
from streameval.profiles.decoder import ProfileDecoder
from streameval.profiles.language import Profile
from streameval.profiles.mapping import Mapping

if TYPE_CHECKING:
    from streameval.core.definition import Definition
    from streameval.profiles.registry import Registry

GROUP: Final = "streameval.decoders"
_FOLDER: Final = "builtin"


def names() -> list[str]:
    """List the built-in profiles."""
    folder = files("streameval.profiles") / _FOLDER
    return sorted(each.name.removesuffix(".yaml") for each in folder.iterdir() if _is_yaml(each))


def classes() -> dict[str, EntryPoint]:
    """Return the entry points of classes that decode, by their names."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _is_yaml(each: Any) -> bool:
    return bool(each.name.endswith(".yaml"))


def text_of(name: str) -> str:
    """Return a built-in profile as it is written. Raises ConfigError."""
    if name in classes():
        raise ConfigError(f"{name} is a class ({classes()[name].value}), and no profile in YAML")
    if name not in names():
        known = [*names(), *classes()]
        close = nearest(name, known)
        others = f": {', '.join(known)}; `streameval map FILE --init` drafts one of your own"
        meant = f"; did you mean {close[0]}?" if close else others
        raise ConfigError(f"no profile {name}{meant}")
    return (files("streameval.profiles") / _FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def decoder_of(
    definition: Definition, profile: str, registry: Registry | None = None
) -> EventDecoder:
    """Return the decoder that a profile names, under `definition`. Raises ConfigError.

    A `registry` reads the values that have its frame.
    """
    if profile in classes():
        decoder = _loaded(classes()[profile]).of(definition)
        # (mypy takes a method for what nobody may replace.)
        decoder.decode_records = partial(_guarded, profile, decoder.decode_records)  # type: ignore[method-assign]
        return decoder
    return ProfileDecoder.by(definition, profile_name(profile), mapping_of(profile), registry)


def _loaded(point: EntryPoint) -> type[EventDecoder]:
    """Load a class of another package. Raises ConfigError where that fails."""
    try:
        found = point.load()
    except Exception as error:  # it runs code of others
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"{point.name}: cannot load {point.value}: {said}") from error
    if not (isinstance(found, type) and issubclass(found, EventDecoder)):
        raise ConfigError(f"{point.name}: {point.value} is no subclass of EventDecoder")
    return found


def _guarded(
    name: str,
    read: Callable[[Sequence[bytes | None], Sequence[int] | None], Decoded],
    values: Sequence[bytes | None],
    timestamps: Sequence[int] | None = None,
) -> Decoded:
    """Decode by a class of others; reject the values at which it raises.

    Otherwise one such record would end each worker that reads it.
    """
    try:
        return read(values, timestamps)
    except UnreachableError:
        raise
    except Exception as error:  # noqa: BLE001  # as above
        if len(values) == 1:
            said = printable(f"the class {name} raised {type(error).__name__}: {error}")
            return Decoded([], [], [(0, Rejection("malformed", said[:MAX_DETAIL_LENGTH]))])
    alone = [
        _guarded(name, read, (value,), timestamps and timestamps[index : index + 1])
        for index, value in enumerate(values)
    ]
    return Decoded(
        [event for each in alone for event in each.events],
        [index for index, each in enumerate(alone) for _ in each.events],
        [(index, why) for index, each in enumerate(alone) for _, why in each.rejected],
        sum(each.ignored for each in alone),
    )


def profile_name(profile: str) -> str:
    """Return how messages call a profile: a file without its folder."""
    return Path(profile).stem


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
