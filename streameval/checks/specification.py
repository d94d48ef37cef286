"""The specification of checks: a YAML file with an optional key for each check.

    period: 24h
    sample_ratio: {split: {A: 1, B: 1}}
    metric_regression: {control: A, metrics: [ndcg@10, map@10]}
    drift: {severity: warning}

`streameval check --schema` prints its JSON Schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, create_model

from streameval.base import yaml_file
from streameval.base.durations import Duration
from streameval.base.errors import ConfigError
from streameval.checks.catalogue import CHECKS
from streameval.core.definition import Definition

_Written: TypeAlias = Annotated[
    int,
    Duration("1s", "366d"),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(ms|s|m|h|d)$", "examples": ["24h"]}),
]
"""A duration as people write it; ms in the model."""


class _Base(BaseModel):
    """The checks to run, and their bounds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    period: _Written | None = Field(
        None,
        description="Time before the newest row for the checks of traffic, e.g. 24h; null: all.",
    )
    arm: str = Field(
        "variant", description="The dimension whose values the checks compare with each other."
    )
    reference: _Written = Field(
        86_400_000,
        description="Age of the snapshot that scheduled checks compare with, e.g. 24h; the oldest"
        " snapshot if all are younger.",
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
    """One field for each row of the table of checks."""


def load(path: Path | None) -> Specification:
    """Read a specification from a YAML file; None gives all defaults. Raises ConfigError."""
    if path is None:
        return Specification.model_validate({})
    given = yaml_file.read(path, "drift: {severity: warning}")
    try:
        return Specification.model_validate(given)
    except ValidationError as error:
        advice = "streameval check --schema lists all"
        place, problem = yaml_file.problem(error, Specification, given, advice)
        raise ConfigError(f"{path}: {yaml_file.line_of(path, place)}{problem}") from None


def arm_of(specification: Specification, definition: Definition) -> str | None:
    """Return the dimension that holds the arms; None if it is missing and nobody asks for it.

    Raises ConfigError if the specification asks for an arm outside the dimensions.
    """
    arm = specification.arm
    if arm in definition.dimensions:
        return arm
    asked = "arm" in specification.model_fields_set
    if asked or any(getattr(specification, check.name).compares_arms for check in CHECKS):
        known = ", ".join(definition.dimensions) or "empty"
        raise ConfigError(
            f"checks: arm: {arm!r} is not among the `dimensions` of the configuration ({known}):"
            " correct one of the two"
        )
    return None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Specification.model_json_schema(),
    }
