"""The language of profiles, YAML files that map messages to events (docs/profiles.md)."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from streameval.base.nearest import nearest

UNITS: Final = ("rfc3339", "s", "ms", "us", "ns", "auto")
"""Units of a time; any other text is a pattern of Python's `strptime`.

`auto` takes RFC 3339, or a number whose unit is the one in which it lies between 2000 and 2099, or
`/Date(1767614400000)/` of .NET, or [2026, 1, 5, 12, 0] of Java. Texts may be ISO 8601 as databases
write it too: with a space for the T, and +00 or UTC at the end.
"""
# What may need no quotes in YAML.
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Take(_Model):
    """The source of a field that a path alone does not describe.

    One of `from`, `const` and `product` (numbers that are multiplied). `values` renames texts; one
    that it lacks stays. `absent` is a text that stands for no value. `unit` and `zone` read a time.
    `base` is the first position of a list: 0 or 1, or `auto`, which is 0 for lists that have a 0,
    and else 1.
    """

    path: str | None = Field(None, alias="from")
    const: str | int | float | bool | None = None
    product: Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    values: dict[str, str] | None = None
    absent: str | None = None
    unit: str = "rfc3339"
    zone: str | None = None
    base: Literal[0, 1, "auto"] = 1

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(one is not None for one in (self.path, self.const, self.product)) != 1:
            raise ValueError("give one of `from`, `const` and `product`")
        if self.unit not in UNITS:
            if "%" not in self.unit:
                raise ValueError(
                    f"unit {self.unit!r}: write one of {', '.join(UNITS)}, or a pattern such as"
                    " %Y-%m-%d %H:%M:%S"
                )
            if "%z" not in self.unit and self.zone is None:
                raise ValueError("a pattern without %z needs a zone: UTC, +02:00 or Europe/Berlin")
        return self


Source: TypeAlias = str | Take
"""A path, or a `Take`."""
Each: TypeAlias = str | Annotated[dict[str, str], Field(min_length=1)]
"""The path of a list, or the names and paths of parallel lists, whose values then stand together.

The first of parallel lists must be there.
"""


class Items(_Model):
    """The items of a list: those that `each` finds, and the fields of one of them.

    `after` is how many items stand before the first one, on the pages before.
    """

    each: Each
    after: Source | None = None
    item_id: Source
    position: Source | None = None
    score: Source | None = None
    propensity: Source | None = None


class _Fields(BaseModel):
    """Fields of an event. Other names are labels, such as dimensions."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Source]

    ts: Source
    user_id: Source

    @model_validator(mode="after")
    def _refuse_misspelt(self) -> Self:
        known = list(type(self).model_fields)
        for name in self.model_extra or {}:
            if not name.isidentifier():
                raise ValueError(f"{name!r}: a label is a name of letters, digits and _")
            if name == "type":
                raise ValueError("`type` is the event's own: give the label another name")
            if close := nearest(name, known, cutoff=0.8):
                raise ValueError(f"no such field {name}; did you mean {close[0]}?")
        return self


class Slate(_Fields):
    """A whole list; `items` is a path to ids, or says how to read each item."""

    request_id: Source
    items: str | Items
    fallback: Source | None = None
    latency_ms: Source | None = None


class Impression(_Fields):
    """One item that was shown."""

    item_id: Source
    request_id: Source | None = None
    position: Source | None = None
    score: Source | None = None
    propensity: Source | None = None
    fallback: Source | None = None
    latency_ms: Source | None = None


class Feedback(_Fields):
    """An action of a user on an item, or one for each value of `each`, which may find nothing."""

    each: Each | None = None
    item_id: Source
    kind: Source
    request_id: Source | None = None
    value: Source | None = None
    retract: Source | None = None

    @model_validator(mode="after")
    def _refuse_labels(self) -> Self:
        for name in self.model_extra or {}:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"no such field {name}: feedback has {known}; labels stand with lists")
        return self


class Rule(_Model):
    """A rule for messages for which `when` holds: an event, or one for each value of `each`.

    A message that says both has a list and a feedback, or several, in this order. `when` is an
    expression that is true, or paths with the value, or values, that each must have.
    """

    name: str | None = None
    when: str | dict[str, Any] | None = None
    each: Each | None = None
    slate: Slate | None = None
    impression: Impression | None = None
    feedback: Feedback | tuple[Feedback, ...] | None = None

    @model_validator(mode="after")
    def _has_event(self) -> Self:
        if not self.shapes:
            raise ValueError("a rule has a `slate`, an `impression` or a `feedback`")
        return self

    @property
    def shapes(self) -> list[tuple[str, Slate | Impression | Feedback]]:
        """The events that a message becomes, each with its type."""
        several = self.feedback if isinstance(self.feedback, tuple) else (self.feedback,)
        return [
            (kind, shape)
            for kind, shapes in (
                ("slate", (self.slate,)),
                ("impression", (self.impression,)),
                ("feedback", several),
            )
            for shape in shapes
            if shape is not None
        ]


class Profile(_Model):
    """A profile. The first rule that holds maps a message; without one, it is ignored.

    `unwrap` are paths of which the first that finds something is the message, `split` is the path
    of several messages in one; of several paths each begins at the parts before it. An envelope of
    CloudEvents is taken off before. `native`: messages are events of streameval. With `record_time`
    a message without a time has its record's. JSON may have a registry's frame, which is taken off.
    In `typed_json` values name their types, as in JSON of Avro, MongoDB, DynamoDB or OpenTelemetry.
    Avro and Protobuf are read by `schemas`: the file of each id of a registry, or one file for
    values without a frame, with the type `message` of Protobuf, or its first; MessagePack needs
    none. A configured registry reads framed values of any profile.
    """

    description: str = ""
    format: Literal["json", "snowplow", "avro", "typed_json", "protobuf", "messagepack"] = "json"
    schemas: str | dict[str, str] = Field(default_factory=dict)
    message: str = ""
    unwrap: str | tuple[str, ...] = ()
    split: str | tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    native: bool = False
    record_time: bool = False

    @field_validator("schemas", mode="before")
    @classmethod
    def _by_text(cls, given: Any) -> Any:
        """Take ids as numbers too, as YAML has them."""
        return {str(key): path for key, path in given.items()} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _has_rules(self) -> Self:
        if bool(self.schemas) != self.reads_schemas:
            raise ValueError("schemas: name the files of format: avro or protobuf, and only there")
        if self.message and self.format != "protobuf":
            raise ValueError("message: only format: protobuf has types of messages")
        if not self.rules and not self.native:
            raise ValueError("rules: write at least one")
        return self

    @property
    def reads_schemas(self) -> bool:
        """Whether schemas of files read the values."""
        return self.format in {"avro", "protobuf"}

    @property
    def is_binary(self) -> bool:
        """Whether the values are no text."""
        return self.reads_schemas or self.format == "messagepack"


def in_yaml(value: Any) -> str:
    """Write a value on one line of YAML, where JSON is YAML too."""
    if isinstance(value, str) and _PLAIN_TEXT.match(value) and yaml.safe_load(value) == value:
        return value
    written = json.dumps(value, ensure_ascii=False)
    return written if written.isprintable() else json.dumps(value)
