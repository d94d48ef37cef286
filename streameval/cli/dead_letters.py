"""`streameval dead-letters`: rejected records and their reasons, and a resend of them."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.base.instants import instant
from streameval.base.limits import MAX_DEAD_LETTER_BYTES
from streameval.cli.common import Config, Json, print_json, run_async, settings_of

if TYPE_CHECKING:
    from streameval.config.settings import Settings
    from streameval.kafka.resend import Found, Letter

EPILOG: Final = "Example: streameval dead-letters --reason invalid --resend"
_RULE: Final = re.compile(r"profile (?P<profile>\S+), rule (?P<rule>.+?): ")
_VALUE: Final = 200
"""Bytes of an example's key and value."""


class _Group(NamedTuple):
    """A reason, and the profile and rule that gave it, if any did."""

    reason: str
    profile: str
    rule: str

    @classmethod
    def of(cls, letter: Letter) -> _Group:
        found = _RULE.match(letter.detail)
        return cls(letter.reason, *(found.groups() if found else ("", "")))


def dead_letters(  # noqa: PLR0917  # typer passes them by name
    reason: Annotated[
        Literal["malformed", "invalid", "too_large", "future", "late"] | None,
        typer.Option(help="Only those that were rejected for this reason."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only those written since (ms since the epoch, or RFC 3339)."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="Only those of this topic: `topic`, or one of `forward`."),
    ] = None,
    resend: Annotated[
        bool,
        typer.Option(
            "--resend",
            help="Send these records to `topic` (or --topic) again, each once for all times.",
        ),
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show the dead letters: how many, by reason, profile and rule, each with an example.

    After the cure, --resend sends exactly those that are chosen, to the topic that they came from,
    into the same partition. A second run sends none of them.
    """
    settings = settings_of(config)
    begin = None if since is None else instant(since, "--since")
    document = run_async(_visit(settings, reason, begin, topic, resend=resend))
    if as_json:
        print_json(document)
        return
    if not document["letters"]:
        typer.echo("no dead letter")
    for group in document["groups"]:
        _print(group)
    for line in _lines_on(document, resend=resend):
        typer.echo(line, err=True)


async def _visit(
    settings: Settings,
    reason: str | None,
    since: int | None,
    topic: str | None,
    *,
    resend: bool,
) -> dict[str, Any]:
    from streameval.kafka import resend as resending
    from streameval.kafka.security import client_arguments

    client, letters = client_arguments(settings), settings.dead_letter_topic
    ours = [settings.topic, *(source.topic for source in settings.forward)]
    if topic not in {None, *ours}:
        raise InputError(f"--topic: {topic} is none of this configuration: {', '.join(ours)}")

    def wanted(letter: Letter) -> bool:
        return (
            reason in {None, letter.reason}
            and topic in {None, letter.place.topic}
            and (since is None or letter.written >= since)
        )

    if not resend:
        return _document(await resending.read(client, letters, wanted, most=_VALUE))
    async with resending.resender(client, settings.group) as producer:
        found = await resending.read(client, letters, wanted, most=MAX_DEAD_LETTER_BYTES)
        target = topic or settings.topic
        others = {letter.place.topic for letter in found.letters} - {target}
        if others:
            raise InputError(
                f"--resend: these letters come from {', '.join(sorted(others))}, and `topic` is"
                f" {target}: choose one topic with --topic, in the configuration that has it"
            )
        document = _document(found)
        sendable = [one for one in found.letters if one.whole and one.place not in found.resent]
        document["sent"] = await resending.resend(producer, sendable, target, letters)
        return document


def _document(found: Found) -> dict[str, Any]:
    letters = found.letters
    counts = Counter(map(_Group.of, letters))
    newest = {_Group.of(letter): letter for letter in sorted(letters, key=lambda one: one.written)}
    return {
        "letters": len(letters),
        "resent": sum(letter.place in found.resent for letter in letters),
        "cut": sum(not letter.whole for letter in letters),
        "late": sum(letter.reason in {"late", "future"} for letter in letters),
        "groups": [
            {**group._asdict(), "letters": count, "example": _example(newest[group])}
            for group, count in counts.most_common()
        ],
    }


def _example(letter: Letter) -> dict[str, Any]:
    return {
        **letter.place._asdict(),
        "written": letter.written,
        "detail": letter.detail,
        "key": None if letter.key is None else letter.key[:_VALUE].decode(errors="replace"),
        "value": letter.value[:_VALUE].decode(errors="replace"),
    }


def _print(group: dict[str, Any]) -> None:
    example = group["example"]
    by = f" (profile {group['profile']}, rule {group['rule']})" if group["profile"] else ""
    where = f"{example['topic']}, partition {example['partition']}, offset {example['offset']}"
    typer.echo(f"{group['letters']:,} {group['reason']}{by}")
    from streameval.base.terminal import moment

    typer.echo(f"  the latest: {moment(example['written'])}, {where}: {example['detail']}")
    typer.echo(f"  {example['value']!r}")


def _lines_on(document: dict[str, Any], *, resend: bool) -> list[str]:
    """Return lines on the records that were sent, and on the others."""
    lines = []
    if document["resent"]:
        lines.append(f"{document['resent']:,} of them were sent again before")
    if not resend:
        return lines
    if document["cut"]:
        lines.append(
            f"{document['cut']:,} hold no value, or a part of their record only, and were not sent:"
            " read them at their offset"
        )
    if document["late"]:
        lines.append(f"{document['late']:,} were late or future, and will be late again")
    return [*lines, f"sent {count_of(document['sent'], 'record')}"]
