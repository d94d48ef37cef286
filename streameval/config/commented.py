"""A YAML file with every key of a settings model: its meaning as a comment, its default as value.

The text comes from the model's descriptions, so that it cannot drift from the keys.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from streameval.config.reference import SECTIONS, default_text
from streameval.config.settings import Settings

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
