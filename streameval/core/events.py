"""Events: the messages of producers, decoded and checked.

`EventDecoder.decode_batch` is the hot path of streameval. Its rules:

1. A value becomes an event or a `Rejection`; nothing in it can raise.
2. `malformed` is a value other than JSON (syntax, UTF-8, too deep, empty, a tombstone). `invalid`
   is JSON that breaks the schema. `too_large` is decided before anything is parsed, `future` by
   the record's own timestamp. (`late` needs a watermark: `partition` decides it.)
3. After decoding, `ts` is an integer (ms since the epoch), and an optional field that was absent
   or null has its default.
4. msgspec checks types, lengths and ranges. It could check control characters only with patterns,
   at 1.4 us an event. JSON forbids raw ones below 0x20. The others need a backslash, a 0x7f or a
   byte beyond ASCII: the bytes of a whole batch are searched at once for these three, and only
   events that have one are looked at again.
5. Half a surrogate pair, which JavaScript leaves where it cuts a text within an emoji, is no text:
   an id or a label with one is invalid. In fields that nobody reads it does no harm.
6. No label is `__all__`, which stands for all values of a dimension in figures. The bytes of a
   whole batch are searched for it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache, partial
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, Self, Union

import msgspec

from streameval.base.durations import EPOCH, MS
from streameval.base.limits import (
    ALL,
    MAX_DETAIL_LENGTH,
    MAX_EVENT_BYTES,
    MAX_ID_LENGTH,
    MAX_ITEMS,
    MAX_LABEL_LENGTH,
    MAX_LATENCY,
    MAX_POSITION,
    MAX_TS,
    MAX_VALUE,
    MIN_TS,
)
from streameval.core import rejection_words as words
from streameval.core.near_misses import NearMisses

REASONS: Final = ("malformed", "invalid", "too_large", "future", "late")
"""Why an event is rejected: a closed set, in the order it is shown."""

if TYPE_CHECKING:
    from streameval.core.definition import Definition

    # The types of decoded fields (rule 3). The wire allows more types, see below.
    Timestamp = int
    Id = str
    Label = str
    Value = str
    Position = int
    Number = float
    Flag = bool
else:
    # The pattern stands in the JSON Schema only: msgspec does not enforce extra keys of a schema.
    _NO_CONTROL = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}
    Timestamp = (
        Annotated[
            int,
            msgspec.Meta(ge=MIN_TS, lt=MAX_TS, description="Milliseconds since the epoch."),
        ]
        | Annotated[
            str,
            msgspec.Meta(
                description="RFC 3339 with an offset, from 2000 to 2099.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
    )
    Id = Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH, extra_json_schema=_NO_CONTROL),
    ]
    Label = Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=MAX_LABEL_LENGTH, extra_json_schema=_NO_CONTROL),
    ]
    # (msgspec does not enforce `not` either: rule 5.)
    Value = Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=MAX_LABEL_LENGTH,
            extra_json_schema=_NO_CONTROL | {"not": {"const": ALL}},
        ),
    ]
    Position = Annotated[
        int, msgspec.Meta(ge=1, le=MAX_POSITION, description="Rank in the slate, from 1.")
    ]
    Number = Annotated[float, msgspec.Meta(ge=-MAX_VALUE, le=MAX_VALUE)] | None
    Flag = bool | None

Propensity = Annotated[
    float, msgspec.Meta(gt=0, le=1, description="Probability with which the item was shown here.")
]

Latency = Annotated[
    float, msgspec.Meta(ge=0, le=MAX_LATENCY, description="Milliseconds the list took to make.")
]


class ImpressionEvent(
    msgspec.Struct, tag_field="type", tag="impression", gc=False, omit_defaults=True
):
    """One item was shown to a user. Items of one `request_id` form a slate."""

    ts: Timestamp
    user_id: Id
    item_id: Id
    request_id: Id | None = None
    position: Position | None = None
    score: float | None = None
    propensity: Propensity | None = None
    fallback: bool | None = None
    latency_ms: Latency | None = None

    whole: ClassVar[bool] = False


class FeedbackEvent(msgspec.Struct, tag_field="type", tag="feedback", gc=False, omit_defaults=True):
    """A user did something with an item; `retract` takes an earlier feedback back."""

    ts: Timestamp
    user_id: Id
    item_id: Id
    feedback: Label
    request_id: Id | None = None
    value: Number = 1.0
    retract: Flag = False


class SlateItem(msgspec.Struct, gc=False, omit_defaults=True):
    """An item of a slate with more than its id; a missing position is its index + 1."""

    item_id: Id
    position: Position | None = None
    score: float | None = None
    propensity: Propensity | None = None


class SlateEvent(msgspec.Struct, tag_field="type", tag="slate", gc=False, omit_defaults=True):
    """A whole ranked list was shown to a user; `items` holds ids or objects, no item twice.

    A list without items showed nothing.
    """

    ts: Timestamp
    user_id: Id
    request_id: Id
    items: Annotated[tuple[Id | SlateItem, ...], msgspec.Meta(max_length=MAX_ITEMS)]
    fallback: bool | None = None
    latency_ms: Latency | None = None

    whole: ClassVar[bool] = True

    @property
    def positions(self) -> dict[str, int]:
        """The position of each item, in the order of the list."""
        return {
            item if isinstance(item, str) else item.item_id: index
            if isinstance(item, str) or item.position is None
            else item.position
            for index, item in enumerate(self.items, 1)
        }

    @property
    def details(self) -> dict[str, tuple[float | None, float | None]]:
        """Score and propensity of the items that have one."""
        return {
            item.item_id: (item.score, item.propensity)
            for item in self.items
            if not isinstance(item, str) and (item.score is not None or item.propensity is not None)
        }


Event = ImpressionEvent | SlateEvent | FeedbackEvent


class EventTypes(NamedTuple):
    """The types of events under one configuration: impressions and slates have the label fields."""

    impression: type[ImpressionEvent]
    slate: type[SlateEvent]
    feedback: type[FeedbackEvent]


@cache
def event_types(labels: tuple[str, ...]) -> EventTypes:
    """Return the types of events whose fields `labels` are read; equal labels give equal types."""
    fields: list[Any] = [(name, Value | None, None) for name in labels]

    def with_labels(base: type[Any]) -> Any:
        tag = base.__struct_config__.tag
        options = {"tag_field": "type", "tag": tag, "gc": False, "module": base.__module__}
        return msgspec.defstruct(base.__name__, fields, bases=(base,), **options)

    return EventTypes(with_labels(ImpressionEvent), with_labels(SlateEvent), FeedbackEvent)


Labels = Any
"""The label fields of an event as `label_reader` returns them: equal where all of them are."""


def label_reader(names: Sequence[str]) -> Callable[[Any], Labels]:
    """Return the function that reads the fields `names` of an event.

    One name is read as it is, several as a tuple. It runs for each event, and is compiled as
    `namedtuple` is: `operator.attrgetter` takes three times as long.
    """
    assert all(name.isidentifier() for name in names), "settings let no other name through"
    fields = ", ".join(f"event.{name}" for name in names)
    read: Callable[[Any], Labels] = eval(f"lambda event: ({fields})")  # noqa: S307  # as above
    return read


def label_values(labels: Labels, count: int) -> tuple[str, ...]:
    """Return `labels` of `count` fields as a tuple of texts; an absent field is ""."""
    each = labels if count > 1 else (labels,) * count
    return tuple(label or "" for label in each)


class Rejection(NamedTuple):
    """The reason against a value, one of `REASONS`, and a bounded, printable line for a person."""

    reason: str
    detail: str


class Newest:
    """The newest event so far, by which others are late. `ts` (ms) is the watermark, if any yet.

    A decoder knows no watermark, and the core only tells which events are late.
    """

    def __init__(self, ts: int | None = None) -> None:
        self._ts = ts or 0
        self._step = 0
        self._place = ""

    def rejections(
        self,
        events: Sequence[Event],
        late: Sequence[int],
        allowed: int,
        place: Callable[[int], str],
    ) -> list[tuple[int, Rejection]]:
        """Take events in; return the indices of the late ones, each with its rejection.

        `place` names the record of an index. An event that moves the watermark by more than
        `allowed` (ms), and so makes others late, is named.
        """
        found, coming = [], iter(late)
        next_late = next(coming, -1)
        newest = self._ts
        for index, event in enumerate(events):
            ts = event.ts
            if ts > newest:
                self._step = ts - newest if newest else 0
                if self._step > allowed:
                    self._place = place(index)
                newest = ts
            elif index == next_late:
                mover = (self._place, self._step) if self._step > allowed else None
                detail = words.late(ts, newest, allowed, mover)
                found.append((index, Rejection("late", detail)))
                next_late = next(coming, -1)
        self._ts = newest
        return found


class TooLarge(bytes):
    """A stand-in for a value of more than `MAX_EVENT_BYTES`, which nobody keeps.

    The stand-in is empty, so that nothing is joined or parsed. `size` (bytes) and `head`, the
    beginning, describe the value to the dead letter.
    """

    size: int
    head: bytes

    @classmethod
    def of(cls, size: int, head: bytes) -> TooLarge:
        """Stand for a value of `size` bytes that begins with `head`."""
        made = cls()
        made.size, made.head = size, head
        return made


class Decoded(NamedTuple):
    """What a batch of values has become.

    `records` has for each event the index of its value. `rejected` are indices of values, in order,
    each with the reason. `ignored` counts messages that no rule of a profile takes.
    """

    events: list[Event]
    records: Sequence[int]
    rejected: list[tuple[int, Rejection]]
    ignored: int = 0


class EventDecoder:
    """Turns the values of records into events.

    `labels` are the text fields of impressions and slates that are kept: dimensions and arms. An
    event that is later than its record by more than `max_clock_skew` (ms) is `future`. `kinds` of
    positives are configured; `near_misses` counts names that are like theirs, and like fields.

    The decoder of another format overrides `parse` and nothing else; one whose values hold several
    events, or none, overrides `decode_records`.
    """

    def __init__(
        self, labels: tuple[str, ...], max_clock_skew: int, kinds: Sequence[str] = ()
    ) -> None:
        self.types = event_types(labels)
        self.max_clock_skew = max_clock_skew
        self._labels_of = label_reader(labels)
        self._label_count = len(labels)
        self._union: Any = Union[tuple(self.types)]  # noqa: UP007
        self._is_json = type(self).parse is EventDecoder.parse
        self._decode_wire: Callable[[Any], Any] = (
            msgspec.json.Decoder(self._union).decode if self._is_json else self._converted
        )
        fields = {str(each.__struct_config__.tag): each.__struct_fields__ for each in self.types}
        items = SlateItem.__struct_fields__
        self.near_misses = NearMisses(fields, items, kinds, self.parse, labels)

    reads_records = False
    """Whether values are `RecordValue`s, which know the keys and the headers of their records."""

    def parse(self, value: bytes) -> Any:
        """Return a value as plain data: a dict of fields, with texts, numbers, lists and dicts.

        It may raise anything for a value that cannot be parsed, which is `malformed` then.
        """
        return msgspec.json.decode(mend(value))

    def _converted(self, value: bytes) -> Any:
        event = msgspec.convert(self.parse(value), self._union)
        _refuse_not_finite(event)
        return event

    @classmethod
    def of(cls, definition: Definition) -> Self:
        """Return the decoder of events under `definition`."""
        return cls(definition.labels, definition.max_clock_skew, definition.kinds)

    def unready(self, values: Iterable[bytes | None]) -> Callable[[], None] | None:
        """Return what must be called before `values` can be decoded; None for nothing.

        It may ask a server, for seconds, and raises `UnreachableError` where that is away. Decoding
        calls it by itself; who may not wait there calls it before.
        """
        del values
        return None

    def decode(self, value: bytes | None, record_timestamp: int | None = None) -> Event | Rejection:
        """Decode one record's value, as `decode_batch` does."""
        timestamps = None if record_timestamp is None else (record_timestamp,)
        events, rejected = self.decode_batch((value,), timestamps)
        return events[0] if events else rejected[0][1]

    def decode_batch(
        self, values: Sequence[bytes | None], timestamps: Sequence[int] | None = None
    ) -> tuple[list[Event], list[tuple[int, Rejection]]]:
        """Decode the values of a batch into events, in order, and the rejected with their index.

        `timestamps` (ms) come from the records, and a negative one counts as absent. Values that
        come without records have None.
        """
        assert timestamps is None or len(timestamps) == len(values), "each record has one"
        joined = b"".join(filter(None, values))
        readable = values
        if len(joined) > MAX_EVENT_BYTES:
            # (In the stream such a value is a `TooLarge` before anything joins it.)
            readable = [
                None if value and len(value) > MAX_EVENT_BYTES else value for value in values
            ]
        decoded, rejected = self._parse(values, readable)
        self.near_misses.look(readable)
        suspicious = not (self._is_json and is_plain(joined) and not has_all(joined))
        rejected += self._check(values, decoded, timestamps, suspicious=suspicious)
        if rejected:
            rejected.sort()
            decoded = [event for event in decoded if event is not None]
        return decoded, rejected

    def decode_records(
        self, values: Sequence[bytes | None], timestamps: Sequence[int] | None = None
    ) -> Decoded:
        """Decode as `decode_batch` does, and tell of which value each event is."""
        events, rejected = self.decode_batch(values, timestamps)
        records: Sequence[int] = range(len(values))
        if rejected:
            wrong = {index for index, _ in rejected}
            records = [index for index in records if index not in wrong]
        return Decoded(events, records, rejected)

    def rewrite(
        self,
        values: Sequence[bytes | None],
        timestamps: Sequence[int] | None = None,
        *,
        short: bool = False,
    ) -> tuple[Decoded, list[bytes]]:
        """Decode as `decode_records` does; also return each event as JSON.

        `short`: without positions that only say the order of the items, where that saves time.
        """
        del short
        decoded = self.decode_records(values, timestamps)
        return decoded, list(map(msgspec.json.encode, decoded.events))

    def _check(  # noqa: C901  # the hot loop: a call for each event would cost more
        self,
        values: Sequence[Any],
        decoded: list[Any],
        timestamps: Sequence[int] | None,
        *,
        suspicious: bool,
    ) -> list[tuple[int, Rejection]]:
        """Check what types cannot; put None for events that fail, and return their rejections."""
        rejected: list[tuple[int, Rejection]] = []
        slate_type = self.types.slate
        newest = MIN_TS
        for index, event in enumerate(decoded):
            if event is None:
                continue
            kind, ts = event.__class__, event.ts
            try:
                if ts.__class__ is str:
                    ts = event.ts = _milliseconds(ts)
                if ts > newest:  # noqa: PLR1730  # a call takes several times as long
                    newest = ts
                if kind is slate_type:
                    _refuse_repeated(event)
                elif kind is FeedbackEvent:
                    if event.value is None:
                        event.value = 1.0
                    if event.retract is None:
                        event.retract = False
                if suspicious:
                    self._check_text(values[index], event)
            except Exception as error:  # noqa: BLE001  # rule 1
                rejected.append((index, self._rejection(values[index], error)))
                decoded[index] = None
        # Nearly always one look at all of them is enough.
        if timestamps and newest > min(timestamps) + self.max_clock_skew:
            rejected += _refuse_future(decoded, timestamps, self.max_clock_skew)
        return rejected

    def fresh(self) -> list[str]:
        """Return what a person should be told of the values so far, each line once."""
        return list(self.near_misses.fresh())

    def said_ignored(self) -> str:
        """Return a sentence on values that are no events and not wrong; "" without any."""
        return ""

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema (2020-12) of an event; readers ignore all other fields."""
        schema = msgspec.json.schema(self._union)
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "streameval event",
            "description": "One JSON object per Kafka record, keyed by user_id. "
            "Fields that are not listed are ignored; null means absent.",
            **schema,
        }

    def _parse(
        self, values: Sequence[bytes | None], readable: Sequence[bytes | None]
    ) -> tuple[list[Any], list[tuple[int, Rejection]]]:
        """Parse `readable`; return an event or None for each, and the rejected with their index."""
        rejected: list[tuple[int, Rejection]] = []
        decoded: list[Any] = []
        rest: Iterator[Any] = iter(readable)
        while len(decoded) < len(values):
            try:
                # Events before one that cannot be decoded stay in the list.
                decoded.extend(map(self._decode_wire, rest))
            except Exception as error:  # noqa: BLE001  # rule 1
                index = len(decoded)
                value = readable[index]
                try:
                    decoded.append(self._decode_mended(value, error))
                except Exception as final:  # noqa: BLE001  # rule 1
                    rejected.append((index, self._rejection(values[index], final)))
                    decoded.append(None)
        return decoded, rejected

    def _decode_mended(self, value: bytes | None, error: Exception) -> Any:
        """Decode JSON with its halves of surrogate pairs replaced; raise `error` without any."""
        whole = mend(value) if value and self._is_json else value
        if whole is value:
            raise error
        return self._decode_wire(whole)

    def _check_text(self, value: bytes | None, event: Event) -> None:
        """Raise ValueError for control characters, for a label `__all__`, for bytes not UTF-8."""
        if value is None:
            return
        if self._is_json:
            if is_plain(value) and not has_all(value):
                return
            value.decode()  # msgspec does not look into fields that it ignores
        texts = [event.user_id, event.request_id]
        if isinstance(event, FeedbackEvent):
            texts += [event.feedback, event.item_id]
        else:
            texts += event.positions if isinstance(event, SlateEvent) else [event.item_id]
            labels = label_values(self._labels_of(event), self._label_count)
            if ALL in labels:
                raise ValueError(f"The label {ALL} stands for all values, and no event may have it")
            texts += labels
        if any(text is not None and words.CONTROL.search(text) for text in texts):
            raise ValueError("Control character, or half a surrogate pair, in an id or a label")

    def _rejection(self, value: bytes | None, error: Exception) -> Rejection:
        """Say which: a value that breaks the schema is invalid, one that is no JSON malformed."""
        if value is None:
            return Rejection("malformed", "Tombstone: the record has no value")
        size = value.size if isinstance(value, TooLarge) else len(value)
        if size > MAX_EVENT_BYTES:
            return Rejection("too_large", f"{size} bytes, at most {MAX_EVENT_BYTES}")
        try:
            if self._is_json:
                value.decode()
                _decode_raw(mend(value))
            else:
                self.parse(value)
        except Exception as syntax:  # noqa: BLE001  # msgspec also raises RecursionError and others
            said = words.malformed if self._is_json else _as_it_is
            return Rejection("malformed", in_words(said, value, str(syntax)))
        said = partial(words.invalid, self.parse)
        return Rejection("invalid", in_words(said, value, str(error)))


def _refuse_future(
    decoded: list[Any], timestamps: Sequence[int], max_clock_skew: int
) -> Iterable[tuple[int, Rejection]]:
    """Replace the events that are later than their record allows by None, and say why."""
    for index, (event, stamp) in enumerate(zip(decoded, timestamps, strict=True)):
        if event is not None and event.ts > stamp + max_clock_skew and stamp >= 0:
            yield index, Rejection("future", words.future(event.ts, stamp, max_clock_skew))
            decoded[index] = None


def _refuse_repeated(event: SlateEvent) -> None:
    """Raise ValueError where an item stands twice in a slate.

    Objects that say only their places become ids, which the core reads several times as fast.
    """
    items = event.items
    try:
        # Usually all are ids. A struct cannot be hashed, so an object raises TypeError.
        distinct = len(set(items))
    except TypeError:
        ids = tuple([one if isinstance(one, str) else one.item_id for one in items])
        distinct = len(set(ids))
        if _say_only_places(items):
            event.items = ids
    if distinct != len(items):
        raise ValueError("An item stands twice in the slate - at `$.items`")


_PLACES = [(position, None, None) for position in range(1, MAX_ITEMS + 1)]


def _say_only_places(items: Sequence[Any]) -> bool:
    """Return whether all are objects with a position, which is their place, and no more."""
    try:
        # One look is enough where scores are logged.
        return items[0].score is None and _PLACES[: len(items)] == [
            (item.position, item.score, item.propensity) for item in items
        ]
    except AttributeError:  # an id among objects
        return False


_RFC_3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
    r"([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_SECONDS = slice(17, 19)


def _milliseconds(text: str) -> int:
    """RFC 3339 with an offset, floored to ms since the epoch; raises ValueError otherwise.

    A leap second (:60) is the last millisecond before it: the epoch's clock has no room for it.
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError("Expected RFC 3339 with an offset - at `$.ts`")
    if text[_SECONDS] == "60":
        text = f"{text[: _SECONDS.start]}59.999{match[1]}"
    try:
        ts = (datetime.fromisoformat(text.upper()) - EPOCH) // MS
    except ValueError:
        raise ValueError("Expected a day of the calendar - at `$.ts`") from None
    if not MIN_TS <= ts < MAX_TS:
        raise ValueError("Expected a time from 2000 to 2099 - at `$.ts`")
    return ts


_ALL = ALL.encode()
# A pair, or any other escape but a half; then a half.
_HALVES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
# A syntax check parses into this: nothing is built.
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def mend(value: bytes) -> bytes:
    """Return JSON with a control character for each half of a surrogate pair."""
    if b"\\" not in value or (b"\\ud" not in value and b"\\uD" not in value):
        return value
    return _HALVES.sub(lambda found: b"\\u0000" if found[1] else found[0], value)


def _refuse_not_finite(event: Any) -> None:
    """Raise ValueError for a number that JSON could not hold."""
    for value in msgspec.structs.astuple(event):
        if isinstance(value, float) and not isfinite(value):
            raise ValueError("A number that is not finite")
        for item in value if isinstance(value, tuple) else ():
            if isinstance(item, SlateItem):
                _refuse_not_finite(item)


def is_plain(raw: bytes) -> bool:
    """Return whether every text in `raw`, if it is JSON, is free of control characters."""
    return raw.isascii() and b"\\" not in raw and b"\x7f" not in raw


def has_all(raw: bytes) -> bool:
    """Return whether `raw` holds the label that stands for all values."""
    return raw.rfind(_ALL) >= 0  # a quarter of the time that `in` takes


def _as_it_is(_: bytes, error: str) -> str:
    return error


def in_words(said: Callable[[bytes, str], str], value: bytes, error: str) -> str:
    """Return the error in a person's words, as one bounded line of printable characters."""
    try:
        text = said(value, error)
    except Exception:  # noqa: BLE001  # rule 1
        text = error
    return printable(text[:MAX_DETAIL_LENGTH])[:MAX_DETAIL_LENGTH]


def printable(text: str) -> str:
    """Return a text of others on one line, with escapes for what a terminal does not print."""
    return text if text.isprintable() else ascii(text)[1:-1]
