"""`streameval map` and `streameval profiles`: messages of other trackers as events, and why."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from streameval.base.errors import InputError
from streameval.base.instants import now
from streameval.cli.common import Config, print_json, settings_of

if TYPE_CHECKING:
    from streameval.core.events import Decoded, EventDecoder
    from streameval.profiles.decoder import ProfileDecoder
    from streameval.profiles.mapping import Mapped

Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="The profile of the messages: one of `streameval profiles`, or your own file.",
    ),
]

_NAMED: Final = 5
"""Rejected lines to name."""
_SAMPLE: Final = 1_000
"""Lines by which a format is recognised, and as many of kinds that are rare among them."""
_TIMES: Final = 20
"""So many times as many lines of a file are looked at."""
_OF_EACH: Final = 200
"""Lines of a kind that are enough."""
_TOGETHER: Final = 1_000
"""Lines that are mapped in one go."""


def map_(
    files: Annotated[
        list[str],
        typer.Argument(
            help="JSON: plain, .gz or .zst, or - for standard input; rows: .csv, .tsv, .parquet,"
            " .avro; or folders of such files."
        ),
    ],
    profile: Profile = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print what became of each line and why, and the profile's health."
        ),
    ] = False,
    init: Annotated[
        bool,
        typer.Option("--init", help="Recognise the format, and print a profile to begin with."),
    ] = False,
    config: Config = None,
) -> None:
    """Map messages of another tracker to events of streameval, as JSON lines.

    Nothing else goes to standard output; standard error says what was rejected or ignored. Exit
    code 1 if no line becomes an event.
    """
    from streameval.files.event_tables import with_rows

    files = with_rows(files)
    if init:
        values = _sample(files)
        text = draft_profile(values)
        typer.echo(text, nl=False)
        for said in _tried(text, values):
            typer.echo(said, err=True)
        return
    settings = settings_of(config, profile=profile)
    if settings.profile is None:
        raise InputError(
            "--profile: name one of `streameval profiles`, or your own file;"
            " `streameval map FILE --init` recognises a format"
        )
    decoder, rejected = settings.decoder(), _Rejected()
    if explain:
        count = _explain(decoder, files, rejected, settings.definition().allowed_lateness)
    else:
        count = _map(decoder, files, rejected)
    for said in (*rejected.lines(), decoder.said_ignored()):
        if said:
            typer.echo(said, err=True)
    raise typer.Exit(int(not count))


def _map(decoder: EventDecoder, files: Sequence[str], rejected: _Rejected) -> int:
    """Print the events of all lines; return how many there are."""
    count = 0
    for places, values in _lines(files, _TOGETHER):
        decoded, events = decoder.rewrite(values)
        rejected.add(places, decoded)
        count += len(events)
        for event in events:
            sys.stdout.buffer.write(event + b"\n")
    sys.stdout.buffer.flush()
    return count


def _explain(
    decoder: EventDecoder, files: Sequence[str], rejected: _Rejected, allowed_lateness: int
) -> int:
    """Print what each line becomes, and the profile's health; return how many events there are."""
    from streameval.profiles.decoder import ProfileDecoder
    from streameval.profiles.health import Health

    if not isinstance(decoder, ProfileDecoder):
        raise InputError("--explain: the rules of a profile are explained, and a class has none")
    count, health = 0, Health(decoder.mapping)
    for places, values in _lines(files, 1):
        decoded, mapped = decoder.take(values)
        rejected.add(places, decoded)
        count += len(mapped)
        health.look(decoded.events, mapped)
        typer.echo(f"{places[0]}: {_became(decoder, values[0], decoded, mapped)}")
    for line in health.lines(now(), allowed_lateness):
        typer.echo(f"{'ok  ' if line.good else 'warn'} {line.text}")
    for said in decoder.near_misses.fresh():
        typer.echo(f"warn {said}")
    return count


def profiles(
    name: Annotated[str | None, typer.Argument(help="Print this profile, to copy.")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a profile.")
    ] = False,
) -> None:
    """List the profiles that are built in and the classes of other packages, or print one."""
    from streameval.profiles import library
    from streameval.profiles.language import Profile as Model

    if schema:
        print_json(Model.model_json_schema(by_alias=True), indent=2)
    elif name is not None:
        typer.echo(library.text_of(name), nl=False)
    else:
        for each in library.names():
            typer.echo(f"{each:16} {library.mapping_of(each).profile.description}")
        for each, point in library.classes().items():
            typer.echo(f"{each:16} the class {point.value}")


class _Rejected:
    """Rejected lines: their reasons, and the first of them."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()
        self._first: list[str] = []

    def add(self, places: Sequence[str], decoded: Decoded) -> None:
        for index, (reason, detail) in decoded.rejected:
            self._reasons[reason] += 1
            if len(self._first) < _NAMED:
                self._first.append(f"{places[index]}: {reason}: {detail}")

    def lines(self) -> Iterator[str]:
        yield from self._first
        if self._reasons.total() > _NAMED:
            listed = ", ".join(f"{n:,} {reason}" for reason, n in self._reasons.most_common())
            yield f"{self._reasons.total():,} lines rejected in all: {listed}"


def _lines(files: Sequence[str], together: int) -> Iterator[tuple[list[str], list[bytes]]]:
    """Yield lines of files, so many at a time, with their places. Raises `InputError` for none."""
    found = False
    for file in files:
        for part in _lines_of(file, together):
            found = True
            yield part
    if not found:
        raise InputError(f"{', '.join(files)}: no line to map")


def _lines_of(file: str, together: int) -> Iterator[tuple[list[str], list[bytes]]]:
    from streameval.core.event_lines import numbered_lines_of

    for values, numbers in numbered_lines_of(file):
        places = [f"{file}:{number}" for number in numbers]
        for first in range(0, len(values), together):
            part = slice(first, first + together)
            yield places[part], values[part]


def _sample(files: Sequence[str]) -> list[bytes]:
    """Return lines of each file, as many of each. Raises `InputError` for none."""
    count = max(1, _SAMPLE // len(files))
    values = [value for file in files for value in _telling(file, count)]
    return values or [value for _, (value,) in _lines(files, 1)]


def _telling(file: str, count: int) -> Iterator[bytes]:
    """Yield the first lines, and as many later ones at most, of kinds that are rare so far.

    Most of what a site sends is views of pages. Of a pipe the first lines are all: a topic that is
    read live may send no more.
    """
    from streameval.core.event_lines import is_pipe
    from streameval.profiles.message_kinds import kind_in_short

    kinds: Counter[object] = Counter()
    rest = count
    lines = islice(_lines_of(file, 1), count if is_pipe(file) else _TIMES * count)
    for number, (_, (value,)) in enumerate(lines):
        kind = kind_in_short(value)
        kinds[kind] += 1
        is_first = number < count
        if is_first or kinds[kind] <= _OF_EACH:
            yield value
            rest -= not is_first
        if not rest:
            return


def _became(
    decoder: ProfileDecoder, value: bytes, decoded: Decoded, mapped: Sequence[Mapped]
) -> str:
    """Say in one line what became of a line."""
    if decoded.rejected:
        ((_, rejection),) = decoded.rejected
        return f"rejected, {rejection.reason}: {rejection.detail}"
    if not mapped:
        return "ignored: no rule takes it" if decoded.ignored else "no event: its list is empty"
    counts = Counter((one.fields["type"], one.rule) for one in mapped)
    said = ", ".join(f"{n:,} {kind} ({rule})" for (kind, rule), n in counts.items())
    several = decoder.also(value)
    return said + (f"; rules {', '.join(several)} hold too: the first counts" if several else "")


def _decoder(profile: str) -> ProfileDecoder:
    """Return the decoder of a profile's text."""
    import yaml

    from streameval.core.definition import Definition
    from streameval.profiles.decoder import ProfileDecoder
    from streameval.profiles.language import Profile as Model
    from streameval.profiles.mapping import Mapping

    mapping = Mapping(Model.model_validate(yaml.safe_load(profile)))
    return ProfileDecoder.by(Definition(), "draft", mapping)


def _with_base(profile: str, messages: Sequence[bytes]) -> str:
    """Return a profile that counts positions as messages do: from 0 or from 1.

    Fewer are rejected then, or their first position is 1.
    """

    def unlike(text: str) -> tuple[int, int]:
        decoded, mapped = _decoder(text).take(messages)
        items = (item for one in mapped for item in (one.fields, *(one.fields.get("items") or ())))
        found = [item.get("position") for item in items if isinstance(item, dict)]
        return len(decoded.rejected), min((at for at in found if isinstance(at, int)), default=0)

    other = re.sub("(?<=base: )[01](?=[,}])", lambda found: str(1 - int(found[0])), profile)
    return min(profile, other, key=unlike)


def _tried(profile: str, values: Sequence[bytes]) -> Iterator[str]:
    """Say in lines what a profile makes of messages, and what is odd about that."""
    from streameval.core.definition import Definition
    from streameval.profiles.health import Health

    decoder = _decoder(profile)
    decoded, mapped = decoder.take(values)
    health = Health(decoder.mapping)
    health.look(decoded.events, mapped)
    counts = Counter(one.fields["type"] for one in mapped)
    made = ", ".join(f"{n:,} {kind}" for kind, n in counts.items()) or "no event"
    yield f"of {len(values):,} lines this profile makes {made} (--explain says more)"
    for _, (reason, detail) in decoded.rejected[:1]:
        yield f"warn {len(decoded.rejected):,} are rejected; the first is {reason}: {detail}"
    if ignored := decoder.said_ignored():
        yield ignored
    for line in health.lines(now(), Definition().allowed_lateness):
        if not line.good:
            yield f"warn {line.text}"


def draft_profile(values: Sequence[bytes]) -> str:
    """Return the known profile that takes most messages, or a draft from their fields."""
    from streameval.core.foreign_formats import format_of, is_ours
    from streameval.profiles import library
    from streameval.profiles.deliveries import taken_out, types_off
    from streameval.profiles.draft import draft
    from streameval.profiles.language import in_yaml

    form, plain = types_off(values)
    path, messages = taken_out(plain)
    around = f"format: {form}  # values name their types\n" if form else ""
    around += f"unwrap: {in_yaml(path)}  # the message, within an envelope\n" if path else ""
    formats = Counter(
        found.profile for value in messages if (found := format_of(value)) and found.profile
    )
    formats["native"] = sum(map(is_ours, messages))
    texts = {
        profile: _with_base(library.text_of(profile), messages)
        for profile, count in formats.items()
        if count
    }
    untold = messages if path else plain  # an event's envelope tells more
    if not texts:
        return around + draft(untold)
    taken = {
        name: len(set(_decoder(text).take(messages)[0].records)) for name, text in texts.items()
    }
    profile = max(texts, key=lambda name: (taken[name], formats[name]))
    lines = f"# {formats[profile]:,} of {len(messages):,} lines look like messages of"
    if not taken[profile]:  # another tracker's fields may have the same names
        known = f"{profile}, which takes none (`streameval profiles {profile}` prints it)"
        return f"{lines} {known}.\n{around}{draft(untold)}"
    return f"{lines} this profile.\n{around}{texts[profile]}"
