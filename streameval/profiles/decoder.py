"""The decoder of a profile: records of other trackers to events, with the checks of native ones.

A message is taken whole or not at all: where one of its events is refused, the record is rejected
with all of them, and so a resend counts nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self, Union

import msgspec

from streameval.base.limits import MAX_DETAIL_LENGTH, MAX_EVENT_BYTES
from streameval.core import rejection_words as words
from streameval.core.events import (
    Decoded,
    EventDecoder,
    Rejection,
    TooLarge,
    has_all,
    in_words,
    is_plain,
    printable,
)
from streameval.core.foreign_formats import Foreign, format_of
from streameval.profiles.envelopes import beside
from streameval.profiles.frames import framed_id, with_frame
from streameval.profiles.mapping import NAMELESS, Mapped, Mapping, MappingError

if TYPE_CHECKING:
    from streameval.core.definition import Definition
    from streameval.profiles.registry import Registry

ENOUGH: Final = 1_000
"""Messages after which a profile that has mapped none is told."""
_ENCODE: Final = msgspec.json.Encoder().encode
_MOST_NAMES: Final = 200
_MOST_LISTED: Final = 5


def _add_times(mapped: Iterable[Mapped], timestamps: Iterable[int]) -> None:
    """Give events without a time that of their record (ms; negative: none)."""
    for one, timestamp in zip(mapped, timestamps, strict=True):
        if timestamp >= 0:
            one.fields.setdefault("ts", timestamp)


def _no_messagepack(value: bytes, error: str) -> str:
    if value[:1] in {b"{", b"["}:
        return "this looks like JSON: leave out `format: messagepack`"
    return f"no MessagePack: {error or 'it ends early'}"


def _by_schema(_: bytes, error: str) -> str:
    return f"its schema does not read it: {error or 'it ends early'}"


class ProfileDecoder(EventDecoder):
    """Decodes records by a profile; a `registry` reads the values that have its frame.

    `ignored` counts messages that no rule takes, by their name.
    """

    def __init__(self, name: str, mapping: Mapping, registry: Registry | None, *args: Any) -> None:
        super().__init__(*args)
        self._name, self.mapping, self._registry = name, mapping, registry
        self._is_binary = mapping.profile.is_binary
        self.reads_records = mapping.reads_records
        # Values by one schema alone may begin with what looks like a frame.
        by_id = isinstance(mapping.profile.schemas or "", dict)
        self._has_frames = registry is not None or by_id
        self._by_kind: dict[Any, Any] = dict(
            zip(("impression", "slate", "feedback"), self.types, strict=True)
        )
        self._any: Any = Union[tuple(self.types)]  # noqa: UP007
        self.ignored: Counter[str] = Counter()
        self._ignored = self.mapped = 0
        self._told = False
        self._looks_like: Foreign | None = None

    @classmethod
    def by(
        cls, definition: Definition, name: str, mapping: Mapping, registry: Registry | None = None
    ) -> Self:
        """Return the decoder of a profile under `definition`."""
        args = (definition.labels, definition.max_clock_skew, definition.kinds)
        return cls(name, mapping, registry, *args)

    def unready(self, values: Iterable[bytes | None]) -> Callable[[], None] | None:
        """Return the call that asks the registry for schemas of values that lack theirs."""
        if self._registry is None:
            return None
        self._registry.expire()
        missing = self._registry.missing(map(with_frame, values))
        return partial(self._registry.ask, missing) if missing else None

    def parse(self, value: Any) -> Any:
        """Return the fields of an event, which stand for its value here."""
        return value.fields

    def decode_batch(
        self, values: Sequence[bytes | None], timestamps: Sequence[int] | None = None
    ) -> tuple[list[Any], list[tuple[int, Rejection]]]:
        """Decode as `decode_records` does."""
        decoded = self.decode_records(values, timestamps)
        return decoded.events, decoded.rejected

    def decode_records(
        self, values: Sequence[bytes | None], timestamps: Sequence[int] | None = None
    ) -> Decoded:
        """Map the values, and check the events."""
        return self.take(values, timestamps, with_places=False)[0]

    def take(
        self,
        values: Sequence[bytes | None],
        timestamps: Sequence[int] | None = None,
        *,
        with_places: bool = True,
    ) -> tuple[Decoded, list[Mapped]]:
        """Decode as `decode_records` does; also return the fields of each event.

        `with_places`: items have their positions also where these only say the order of the items.
        """
        framed = self._with_schemas(values)
        before = self._ignored
        mapped: list[Mapped] = []
        records: list[int] = []
        rejected: dict[int, Rejection] = {}
        joined = b"".join(filter(None, framed))
        plain = not self._is_binary and is_plain(joined) and not has_all(joined)
        for index, value in enumerate(framed):
            around = beside(values[index]) if self.reads_records else {}
            found = self._mapped(value, around, plain=plain)
            if isinstance(found, Rejection):
                rejected[index] = found
            elif found:
                mapped += found
                records += [index] * len(found)
        if timestamps is not None and self.mapping.profile.record_time:
            _add_times(mapped, map(timestamps.__getitem__, records))
        self.near_misses.look(mapped)
        decoded = [
            self._decoded(one, index, rejected) for one, index in zip(mapped, records, strict=True)
        ]
        stamps = timestamps and [timestamps[index] for index in records]
        suspicious = not all(map(attrgetter("plain"), mapped))
        for at, rejection in self._check(mapped, decoded, stamps, suspicious=suspicious):
            rejected.setdefault(records[at], rejection)
        if rejected:
            kept = [at for at, index in enumerate(records) if index not in rejected]
            decoded, records = [decoded[at] for at in kept], [records[at] for at in kept]
            mapped = [mapped[at] for at in kept]
        if with_places:
            for one in mapped:
                one.write_places()
        self.mapped += len(decoded)
        ignored = self._ignored - before
        return Decoded(decoded, records, sorted(rejected.items()), ignored), mapped

    def rewrite(
        self,
        values: Sequence[bytes | None],
        timestamps: Sequence[int] | None = None,
        *,
        short: bool = False,
    ) -> tuple[Decoded, list[bytes]]:
        """Decode as `decode_records` does; also return each event as JSON, with all its fields."""
        decoded, mapped = self.take(values, timestamps, with_places=not short)
        return decoded, [_ENCODE(one.fields) for one in mapped]

    def _with_schemas(self, values: Sequence[bytes | None]) -> Sequence[bytes | None]:
        """Return values with the frames of headers, after the registry was asked for new ids."""
        if self._has_frames:
            values = list(map(with_frame, values))
        if self._registry is not None and (missing := self._registry.missing(values)):
            self._registry.ask(missing)
        return values

    def _mapped(
        self, value: bytes | None, around: dict[str, Any], *, plain: bool
    ) -> list[Mapped] | Rejection:
        """Map a value with what is around it, and count its messages that no rule takes.

        `plain`: the texts of no value need to be looked at, unless a schema or a header has more.
        """
        if value is None or isinstance(value, TooLarge) or len(value) > MAX_EVENT_BYTES:
            return super()._rejection(value, ValueError())
        parse = self._parser_of(value)
        by_schema = self._is_binary or parse is not self.mapping.parse
        try:
            found, ignored = self.mapping.events(parse(value), around)
        except MappingError as error:
            return self._invalid(str(error))
        except Exception as error:  # noqa: BLE001  # a parser raises more than its own errors
            packed = parse is self.mapping.parse and not self.mapping.profile.reads_schemas
            no_text = _no_messagepack if packed else _by_schema
            said = no_text if by_schema else words.malformed
            return Rejection("malformed", in_words(said, value, str(error)))
        self._ignored += len(ignored)
        if ignored and not self.ignored and not by_schema:
            self._looks_like = format_of(value)
        for name in ignored:
            if name in self.ignored or len(self.ignored) < _MOST_NAMES:
                self.ignored[name] += 1
        if by_schema or around or not (plain or (is_plain(value) and not has_all(value))):
            for one in found:
                one.plain = False
        return found

    def _parser_of(self, value: bytes) -> Callable[[bytes], Any]:
        """Return the function that parses a value: the registry's, if it has its frame."""
        if self._registry is not None and framed_id(value) is not None:
            return self._registry.read
        return self.mapping.parse

    def _check_text(self, value: Any, event: Any) -> None:
        if not value.plain:
            super()._check_text(value, event)

    def _decoded(self, one: Mapped, index: int, rejected: dict[int, Rejection]) -> Any:
        fields = one.fields
        kind = fields.get("type") if fields.__class__ is dict else None
        try:
            # msgspec looks a union up anew for each call, which takes four times as long.
            wanted = self._by_kind.get(kind, self._any) if kind.__class__ is str else self._any
            return msgspec.convert(fields, wanted)
        except Exception as error:  # noqa: BLE001  # as above
            rejected.setdefault(index, self._rejection(one, error))
            return None

    def _rejection(self, value: Any, error: Exception) -> Rejection:
        if not isinstance(value, Mapped):
            return super()._rejection(value, error)
        said = in_words(partial(words.invalid, lambda _: value.fields), b"", str(error))
        return self._invalid(f"rule {value.rule}: {said}")

    def _invalid(self, said: str) -> Rejection:
        detail = f"profile {self._name}, {said}"[:MAX_DETAIL_LENGTH]
        return Rejection("invalid", printable(detail))

    def fresh(self) -> list[str]:
        """Tell also that none of many messages has become an event."""
        lines = super().fresh()
        if not (self._told or self.mapped) and self._ignored >= ENOUGH:
            self._told = True
            lines.append(
                f"profile {self._name} has mapped none of {ENOUGH:,} messages:"
                f" {self.said_ignored()}"
            )
        return lines

    def also(self, value: bytes) -> list[str]:
        """Name the rules that hold for messages of a value beside the first one."""
        mapping = self.mapping
        if mapping.profile.native:
            return []
        (found,) = self._with_schemas([value])
        assert found is not None, "a value"
        messages = mapping.messages(self._parser_of(found)(found))
        return list(dict.fromkeys(name for one in messages for name in mapping.rules_of(one)[1:]))

    def said_ignored(self) -> str:
        """Return a sentence on the messages that no rule takes; "" without any."""
        if not self.ignored:
            return ""
        listed = ", ".join(
            f"{count:,} {printable(name)}" for name, count in self.ignored.most_common(_MOST_LISTED)
        )
        more = len(self.ignored) - _MOST_LISTED
        rest = f" and {more} other names" if more > 0 else ""
        found, hint = self._looks_like, ""
        # (Every profile takes CloudEvents off, and that is all that `native` would do.)
        if found and found.profile not in {self._name, "native"} and not self.mapped:
            hint = f"; {found}"
        elif self.ignored.keys() == {NAMELESS} and not self.mapped:
            hint = ": is this their format? `streameval map FILE --init` tells"
        return f"no rule takes {listed}{rest}{hint}"
