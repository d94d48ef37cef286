"""What is checked and how strictly: a YAML file with a key for each check, all of them optional.

    period: 24h
    sample_ratio: {split: {A: 1, B: 1}}
    metric_regression: {control: A, metrics: [ndcg@10, map@10]}
    drift: {severity: warning}

`streameval check --schema` prints its JSON Schema.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, create_model

from streameval.base import yaml_file
from streameval.base.durations import Duration
from streameval.base.errors import ConfigError
from streameval.checks.registry import CHECKS

_Written: TypeAlias = Annotated[
    int,
    Duration("1s", "366d"),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(ms|s|m|h|d)$", "examples": ["24h"]}),
]
"""A duration as people write it; ms in the model."""


class _Base(BaseModel):
    """What is checked, and how strictly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    period: _Written | None = Field(
        None,
        description="Time before the newest row that the checks of traffic look at, e.g. 24h;"
        " null: everything.",
    )
    reference: _Written = Field(
        86_400_000,
        description="Age of the snapshot that scheduled checks compare with, e.g. 24h; the oldest"
        " kept where none is so old.",
    )


if TYPE_CHECKING:
    Specification: TypeAlias = _Base
else:
    Specification = create_model(
        "Specification",
        __base__=_Base,
        __doc__=_Base.__doc__,
        **{
            check.name: (
                check.settings,
                Field(default_factory=check.settings, description=check.sentence),
            )
            for check in CHECKS
        },
    )
    """One field per row of the table of checks."""


def load(path: Path | None) -> Specification:
    """The specification in a YAML file; without one, all defaults. Raises ConfigError."""
    if path is None:
        return Specification.model_validate({})
    given = yaml_file.read(path, "drift: {severity: warning}")
    try:
        return Specification.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            raise ConfigError(
                f"{path}: {key}: there is no such key{_meant(problem['loc'])}"
            ) from None
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"{path}: {key}: {message} (streameval check --schema lists all)"
        ) from None


def _meant(location: Sequence[str | int]) -> str:
    """The key that stands where a misspelt one does."""
    *above, key = location
    model: Any = Specification
    for name in above:
        model = model.model_fields[name].annotation
    close = difflib.get_close_matches(str(key), model.model_fields, n=1)
    return f"; did you mean {close[0]}?" if close else "; streameval check --schema lists all"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Specification.model_json_schema(),
    }
