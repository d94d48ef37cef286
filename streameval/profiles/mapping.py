"""A profile compiled: from a message, as plain data, to the fields of events.

`Mapping.events` is on the way of each record. So the fields of an event are read by one function,
which is written as code when a profile is compiled: a call for each field would take as long as all
the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

import msgspec

from streameval.base.errors import ConfigError
from streameval.base.limits import MAX_ITEMS
from streameval.profiles.binary_values import as_json
from streameval.profiles.cells import IS_DIGITS, CellError, converter, short_way, value_in_words
from streameval.profiles.envelopes import ENVELOPE, is_bare, of_text, parse, unwrap, within
from streameval.profiles.language import Feedback, Impression, Items, Profile, Rule, Slate, Take
from streameval.profiles.paths import Code, Path, compile_path
from streameval.profiles.schema_files import SchemaFiles
from streameval.profiles.typed_json import without_types

MAX_EVENTS: Final = 10_000
"""Events that one message may become."""
NAMELESS: Final = "messages without a name"
"""The name of messages that have nothing where the rules look."""
# What paths may ask for that is no field of a message (`envelopes.beside`).
_AROUND: Final = re.compile(rf"\b(?:{ENVELOPE}|_key|_headers)\b")
# Texts of which the letters are known: most are the names of events.
_KNOWN_TEXTS: Final = 1_000
_NONE: Final = "finds nothing"
_CONST: Final = "const"
# Fields in which trackers put the name of an event.
_NAMES: Final = ("event_name", "event", "eventType", "event_type", "action_name", "type", "name")
_OF_ITEMS: Final = ("item_id", "position", "score", "propensity")
_TEXT: Final = frozenset({str})
_WHOLE: Final = frozenset({int})
_COUNTS: Final = [*range(MAX_ITEMS + 2)]
_DIGITS: Final = [*map(str, _COUNTS)]
_unpack = msgspec.msgpack.Decoder(Any).decode


class MappingError(ValueError):
    """Why a message does not become an event, in a person's words."""


class Mapped(msgspec.Struct, gc=False):
    """The fields of an event, and the name of the rule that made it.

    `plain`: no text of the message can hold a control character or the label `__all__`.
    """

    fields: dict[str, Any]
    rule: str
    plain: bool = True

    def write_places(self) -> None:
        """Write the place of each item, where their ids stand alone for it."""
        if (ids := self.fields.get("items")).__class__ is _Placed:
            items = [{"item_id": one, "position": place} for place, one in enumerate(ids, 1)]
            self.fields["items"] = items


class _Placed(list[str]):
    """Ids of items that said their places here, and no more."""

    __slots__ = ()


class _Field(NamedTuple):
    """A field of an event: where its value is, how it is converted, whether it must be there.

    `source` names the place to people. Where `path` is given, a value found there for which the
    code `test` holds becomes the code `quick`, without a call; so does one of digits alone, if the
    field `is_number`. `made` is the value of a field that always has the same. The text `absent`
    stands for no value.
    """

    name: str
    find: Path
    convert: Callable[[Any], Any]
    source: str
    required: bool
    path: str | None = None
    test: str = ""
    quick: str = ""
    is_number: bool = False
    made: Any = None
    absent: str | None = None

    def fill(self, fields: dict[str, Any], element: Any, message: Any) -> None:
        """Put the value into `fields`, if there is one. Raises MappingError."""
        try:
            value = self.find(element, message)
            if value is not None and value not in ("", self.absent):
                fields[self.name] = self.convert(value)
                return
        except CellError as error:
            raise MappingError(f"`{self.name}`: {self.source} {error}") from None
        if self.required:
            found = _NONE if value is None else f"is {value or 'empty'}"
            raise MappingError(f"`{self.name}`: {self.source} {found}")


def _filling(code: Code, fields: Sequence[_Field]) -> Iterator[str]:
    """Write the lines that put values of `element` and `message` into `fields`.

    They raise CellError, and `fill` tells of which field that is.
    """
    for field in fields:
        fill = f"{code.value(field.fill)}(fields, element, message)"
        if field.made is not None:
            yield f"fields[{field.name!r}] = {code.value(field.made)}"
            continue
        if field.path is None:
            yield fill
            continue
        yield f"found = {code.path(field.path)}"
        if field.absent is not None:
            yield f"if found == {field.absent!r}: found = None"
        put = f"fields[{field.name!r}] ="
        if field.test:
            yield f"if {field.test}: {put} {field.quick}"
            if field.is_number:
                yield f"elif {IS_DIGITS} and ({field.test}): {put} {field.quick}"
        convert = f"{code.value(field.convert)}(found)"
        yield f"{'el' * bool(field.test)}if found is not None and found != '': {put} {convert}"
        yield f"else: {fill}"


class Mapping:
    """A compiled profile; relative paths in it begin at `folder`.

    It `reads_records` if it asks for more than their values.
    """

    parse: Callable[[bytes], Any]
    """Parses the bytes of a record; raises any exception for malformed ones."""

    def __init__(self, profile: Profile, folder: FilePath = FilePath()) -> None:
        if profile.reads_schemas:
            named = {"": profile.schemas} if isinstance(profile.schemas, str) else profile.schemas
            self.parse = SchemaFiles(profile.format, named, folder, profile.message).read
        elif profile.format == "messagepack":
            self.parse = lambda value: as_json(_unpack(value))
        elif profile.format == "typed_json":
            self.parse = lambda value: without_types(parse("json", value))
        else:
            self.parse = partial(parse, profile.format)
        self.profile = profile
        self._native, self._format = profile.native, profile.format
        self._unwrap = _compiled(profile.unwrap)
        self._splits = _compiled(profile.split)
        may_lack = ("ts",) if profile.record_time else ()
        self._rules = [
            _CompiledRule(rule, at, may_lack) for at, rule in enumerate(profile.rules, 1)
        ]
        self._choose = _chooser(self._rules)
        self._choose_alike = _chooser(self._rules, alike=True)
        asked = _AROUND.findall(profile.model_dump_json(include={"split", "rules"}))
        self._keep, self.reads_records = ENVELOPE in asked, bool(asked)

    def messages(self, value: Any) -> Iterable[Any]:
        """Return the messages of a parsed value: envelopes off, batches split. Raises MappingError.

        Parts of a batch see what stands around it as `_batch`. They are made one by one, since a
        megabyte may hold very many.
        """
        messages = self._bare(value)
        if self._unwrap:
            inner = map(self._unwrapped, messages)
            messages = chain.from_iterable(map(self._bare, inner))  # one envelope in another
        for split in self._splits:
            if messages.__class__ is tuple:  # nearly always it is the value alone
                messages = self._parts(split, value)
            else:
                messages = chain.from_iterable(map(partial(self._parts, split), messages))
        return messages

    def _bare(self, value: Any) -> Iterable[Any]:
        """Return the messages of a value: itself alone, where nothing known is around it."""
        if is_bare(value, self._format):
            return (value,)
        return unwrap(value, self._format, keep=self._keep)

    def _unwrapped(self, message: Any) -> Any:
        inner = next(
            (found for _, path in self._unwrap if (found := path(message, message)) is not None),
            message,
        )
        found = [*map(of_text, inner)] if isinstance(inner, list) else of_text(inner)
        if not self._keep or inner is message:
            return found
        return within({name: each for name, each in message.items() if each is not inner}, found)

    def _parts(self, split: tuple[str, Path], message: Any) -> Iterable[Any]:
        text, path = split
        parts = path(message, message) if isinstance(message, dict) else None
        if parts is None:
            return [message]
        if not isinstance(parts, list):
            raise MappingError(f"split: {text} finds no list")
        if self._native:  # no rule looks around an event
            return parts
        held: dict[str, Any] = {
            "_batch": {key: each for key, each in message.items() if each is not parts}
        }
        if self._keep and ENVELOPE in message:  # it is around the parts too
            held[ENVELOPE] = held["_batch"].pop(ENVELOPE)
        return ({**part, **held} if isinstance(part, dict) else part for part in parts)

    def rule_of(self, message: Any) -> _CompiledRule | None:
        """Return the first rule that holds for a message, if any does.

        Of its texts the spelling does not count where no rule has them exactly.
        """
        try:
            return self._choose(message, message) or self._choose_alike(message, message)
        except ValueError:  # of a function of JMESPath: its rule does not hold
            return next((rule for rule in self._rules if rule.holds(message)), None)

    def rules_of(self, message: Any) -> list[str]:
        """Name all rules that hold for a message."""
        return [rule.name for rule in self._rules if rule.holds(message)]

    def optional_fields(self) -> Iterator[tuple[tuple[str, str], str, str]]:
        """Yield rule and type of event, name, and source of each field that may find nothing."""
        for rule in self._rules:
            for shape in rule.shapes:
                for field in shape.optional:
                    yield (rule.name, shape.kind), field.name, field.source

    def events(
        self, value: Any, beside: dict[str, Any] | None = None
    ) -> tuple[list[Mapped], list[str]]:
        """Return the events of a parsed value, and names of the messages in it without a rule.

        Messages also have the fields that stand `beside` the value. Raises MappingError.
        """
        if self._native:
            return [Mapped(each, "native") for each in self.messages(value)], []
        events: list[Mapped] = []
        ignored: list[str] = []
        for each in self.messages(value):
            if not isinstance(each, dict):
                raise MappingError(f"a message is {value_in_words(each)}, not an object")
            message = {**beside, **each} if beside else each
            rule = self.rule_of(message)
            if rule is None:
                ignored.append(self._name(message))
                continue
            events += rule.events(message)
            if len(events) > MAX_EVENTS:
                raise MappingError(f"a message of more than {MAX_EVENTS:,} events")
        return events, ignored

    def _name(self, message: dict[str, Any]) -> str:
        """Name a message that no rule takes, by the values that the rules look at."""
        asked = [path(message, message) for rule in self._rules for path in rule.paths]
        for found in (*asked, *map(message.get, _NAMES)):
            if isinstance(found, str | int):
                return str(found)[:60]
        return NAMELESS


class _CompiledRule:
    """One rule, compiled."""

    def __init__(self, rule: Rule, number: int, may_lack: Collection[str]) -> None:
        self.when = rule.when
        self.paths: list[Path] = []
        said = rule.when
        if isinstance(rule.when, dict):
            self.paths = [compile_path(path) for path in rule.when]
            said = ", ".join(_words_of(value) for value in rule.when.values())
        self._choose = _chooser([self])
        self.name = rule.name or str(said or f"rule {number}")
        self._each = None if rule.each is None else _elements("each", rule.each, MAX_EVENTS)
        self.shapes = [_CompiledShape(kind, shape, may_lack) for kind, shape in rule.shapes]
        first, *others = self.shapes
        self._alone = None if others or first.each else first

    def holds(self, message: Any) -> bool:
        """Tell whether this rule is for a message."""
        try:
            return self._choose(message, message) is not None
        except ValueError:  # a function of JMESPath that met another type
            return False

    def events(self, message: Any) -> list[Mapped]:
        """Return the events of a message, at most `MAX_EVENTS` and one. Raises MappingError."""
        try:
            elements = [message] if self._each is None else self._each(message, message)
            if self._alone is None:
                return list(islice(self._many(elements, message), MAX_EVENTS + 1))
            name, fields = self.name, self._alone.fields
            return [Mapped(fields(element, message), name) for element in elements]
        except MappingError as error:
            raise MappingError(f"rule {self.name}: {error}") from None
        except ValueError as error:  # of JMESPath
            said = str(error).splitlines()[0]
            raise MappingError(f"rule {self.name}: {said}") from None

    def _many(self, elements: Iterable[Any], message: Any) -> Iterator[Mapped]:
        """Yield the events of elements: a megabyte may hold thousands, with as many in each."""
        for element in elements:
            for shape in self.shapes:
                parts = (element,) if shape.each is None else shape.each(element, message)
                for part in parts:
                    yield Mapped(shape.fields(part, message), self.name)


class _CompiledShape:
    """One event of a rule, compiled."""

    def __init__(
        self, kind: str, shape: Slate | Impression | Feedback, may_lack: Collection[str]
    ) -> None:
        self.kind = kind
        each = shape.each if isinstance(shape, Feedback) else None
        self.each = None if each is None else _elements("each", each, MAX_EVENTS, may_lack=True)
        code, self._fields = Code(), list(_fields(shape, may_lack))
        filling = _filling(code, self._fields)
        begin = f"fields = {{'type': {kind!r}}}"
        self._read = code.function("element, message", [begin, *filling, "return fields"])
        self._items = _ItemReader(shape.items) if isinstance(shape, Slate) else None

    @property
    def optional(self) -> list[_Field]:
        """Fields, also those of items, whose source may find nothing."""
        fields = [*self._fields, *(self._items.fields if self._items else ())]
        return [field for field in fields if not field.required and field.source != _CONST]

    def fields(self, element: Any, message: Any) -> dict[str, Any]:
        """Return the fields of the event. Raises MappingError, and ValueError of JMESPath."""
        try:
            fields: dict[str, Any] = self._read(element, message)
        except CellError:
            for field in self._fields:
                field.fill({}, element, message)
            raise
        if self._items is not None:
            fields["items"] = self._items.read(element, message)
        return fields


class _ItemReader:
    """Reads the items of a list."""

    def __init__(self, items: str | Items) -> None:
        each = items if isinstance(items, str) else items.each
        self._find = _elements("`items`", each, MAX_ITEMS)
        self.fields: list[_Field] = []
        self._after: _Field | None = None
        self._base: int | str = 1
        self._convert = converter("item_id", None)
        if isinstance(items, Items):
            self.fields = [
                _field(name, source, required=name == "item_id")
                for name in _OF_ITEMS
                if (source := getattr(items, name)) is not None
            ]
            where = items.position
            self._base = where.base if isinstance(where, Take) else 1
            self._after = None if items.after is None else _field("after", items.after)
        self._each = self._reader()

    def _reader(self) -> Callable[[Any, Any], list[Any]]:
        """Return the function that reads the items of a list and its message."""
        if not self.fields:
            return lambda found, _: list(map(self._convert, found))
        code = Code()
        alone = "fields if len(fields) > 1 else fields['item_id']"
        lines = ["fields = {}", *_filling(code, self.fields), f"items.append({alone})"]
        each = (f"    {line}" for line in lines)
        head = [*self._ids_alone(code), "items = []", "for element in found:"]
        read: Callable[[Any, Any], list[Any]] = code.function(
            "found, message", [*head, *each, "return items"]
        )
        return read

    def _ids_alone(self, code: Code) -> Iterator[str]:
        """Write the lines that return ids alone, of items that say no more than their places.

        Field by field these are read in a fraction of the time. Others are left to the next lines.
        """
        paths = {field.name: field.path for field in self.fields}
        item_id, position = paths.pop("item_id"), paths.pop("position", None)
        if item_id is None or not self.fields[0].test or paths:
            return
        if len(self.fields) > 1 and (position is None or self._after is not None):
            return
        yield f"ids = {_of_all(code.path(item_id))}"
        test = f"{code.value(_TEXT)}.issuperset(map(type, ids)) and all(ids)"
        test += f" and {self.fields[0].absent!r} not in ids"
        ids = "ids"
        if position is not None:
            are_places = code.value(partial(_are_places, self._base))
            test += f" and {are_places}({_of_all(code.path(position))})"
            ids = f"{code.value(_Placed)}(ids)"
        yield f"if {test}: return {ids}"

    def read(self, element: Any, message: Any) -> list[Any]:
        found = self._find(element, message)
        try:
            items = self._each(found, message)
        except (CellError, MappingError):
            self._explain(found, message)
            raise
        if self._after is not None:
            before: dict[str, Any] = {}
            self._after.fill(before, element, message)
            if first := int(before.get("after") or 0):
                items = [
                    {
                        "position": first + number,
                        **(item if isinstance(item, dict) else {"item_id": item}),
                    }
                    for number, item in enumerate(items, 1)
                ]
        if self._base == "auto" and items.__class__ is not _Placed:
            _count_from_one(items)
        return items

    def _explain(self, found: Sequence[Any], message: Any) -> None:
        """Raise the MappingError of the first item that cannot be read."""
        for at, item in enumerate(found):
            try:
                if not self.fields:
                    self._convert(item)
                for field in self.fields:
                    field.fill({}, item, message)
            except CellError as error:
                raise MappingError(f"item {at}: `item_id` {error}") from None
            except MappingError as error:
                raise MappingError(f"item {at}: {error}") from None


def _elements(
    name: str, each: str | dict[str, str], most: int, *, may_lack: bool = False
) -> Callable[[Any, Any], list[Any]]:
    """Return the function that finds the elements of `each`. It raises MappingError.

    More than `most` are refused before anything is made of them: a megabyte may hold very many.
    """
    if isinstance(each, dict):
        return _together(name, each, most, may_lack=may_lack)
    path = compile_path(each)

    def find(element: Any, message: Any) -> list[Any]:
        found = path(element, message)
        if found is None and may_lack:
            return []
        if isinstance(found, list):
            if len(found) > most:
                raise MappingError(f"{name}: {len(found):,} items, at most {most:,}")
            return found
        raise MappingError(f"{name}: {each} {_NONE if found is None else 'finds no list'}")

    return find


def _together(
    name: str, each: dict[str, str], most: int, *, may_lack: bool
) -> Callable[[Any, Any], list[Any]]:
    """Return the function that makes objects of the values of parallel lists."""
    paths = {key: compile_path(path) for key, path in each.items()}
    lists = {key: _elements(name, path, most) for key, path in each.items()}
    first = next(iter(each))

    def find(element: Any, message: Any) -> list[Any]:
        if may_lack and paths[first](element, message) is None:
            return []
        found = {
            key: lists[key](element, message)
            for key, path in paths.items()
            if key == first or path(element, message) is not None
        }
        for key, values in found.items():
            if len(values) != len(found[first]):
                counts = f"{len(found[first]):,} values, and {each[key]} has {len(values):,}"
                raise MappingError(f"{name}: {each[first]} has {counts}")
        return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]

    return find


def _of_all(value: str) -> str:
    return f"[{value} for element in found]"


def _are_places(base: int | str, positions: list[Any]) -> bool:
    """Tell whether positions, as numbers or as digits, count the items of a list from its base."""
    if not positions:
        return True
    is_text = positions[0].__class__ is str
    counts = _DIGITS if is_text else _COUNTS
    first = base if isinstance(base, int) else int(positions[0] != counts[0])
    # For Python true is 1, and so is 1.0.
    is_whole = is_text or _WHOLE.issuperset(map(type, positions))
    return is_whole and positions == counts[first : first + len(positions)]


def _count_from_one(items: Sequence[Any]) -> None:
    """Let positions of a list that count from 0 count from 1."""
    placed = [item for item in items if item.__class__ is dict and "position" in item]
    if 0 in [item["position"] for item in placed]:
        for item in placed:
            item["position"] += 1


def _fields(shape: Slate | Impression | Feedback, may_lack: Collection[str]) -> Iterator[_Field]:
    """Yield the fields that a rule fills; items are read apart."""
    for name, info in type(shape).model_fields.items():
        source = getattr(shape, name)
        if source is not None and name not in {"items", "each"}:
            ours = "feedback" if name == "kind" else name
            yield _field(ours, source, required=info.is_required() and name not in may_lack)
    for name, source in (shape.model_extra or {}).items():
        yield _field(name, source)


def _field(name: str, source: str | Take, *, required: bool = False) -> _Field:
    take = source if isinstance(source, Take) else None
    path = source if isinstance(source, str) else source.path
    convert = converter(name, take)
    if path is not None:
        quick = short_way(name, take)
        absent = take.absent if take else None
        return _Field(
            name, compile_path(path), convert, path, required, path, *quick, absent=absent
        )
    assert take is not None, "a source is a path or a Take"
    if take.const is not None:
        value, made = take.const, None
        with suppress(CellError):  # one that does not fit is told for each message
            made = None if value == "" else convert(value)
        return _Field(name, lambda _, __: value, convert, _CONST, required, made=made)
    assert take.product is not None, "the language sees to it"
    factors = [compile_path(path) for path in take.product]
    return _Field(name, _product(factors), convert, " * ".join(take.product), required)


def _compiled(paths: str | Sequence[str]) -> list[tuple[str, Path]]:
    """Return one path or several with their texts."""
    return [(path, compile_path(path)) for path in ([paths] if isinstance(paths, str) else paths)]


def _product(factors: Sequence[Path]) -> Path:
    as_number = converter("value", None)

    def multiply(element: Any, message: Any) -> Any:
        found = 1
        for path in factors:
            value = path(element, message)
            if value is None or value == "":
                return None
            found *= as_number(value)
        return found

    return multiply


def _chooser(
    rules: Sequence[_CompiledRule], *, alike: bool = False
) -> Callable[[Any, Any], _CompiledRule | None]:
    """Return the function that finds the first rule for a message, given twice.

    `alike`: values of a rule hold whatever their spelling, and expressions are not looked at.
    """
    code, lines, found = Code(), list[str](), dict[str, str]()
    read = code.value(_unspelt)
    for rule in rules:
        if not isinstance(rule.when, str):
            wanted = (rule.when or {}).items()
            for path, _ in wanted:
                if path not in found:  # one look for all rules
                    found[path] = code.new()
                    look = code.path(path)
                    lines.append(f"{found[path]} = {f'{read}({look})' if alike else look}")
            values = [(path, [*map(_unspelt, _set(v))] if alike else _set(v)) for path, v in wanted]
            tests = [f"{found[path]} in {code.value(value)}" for path, value in values]
            test = " and ".join(tests) or "True"
        elif alike:
            continue
        else:
            test = code.condition(rule.when)
        lines.append(f"if {test}: return {code.value(rule)}")
    choose: Callable[[Any, Any], _CompiledRule | None] = code.function(
        "element, message", [*lines, "return None"]
    )
    return choose


def _unspelt(value: Any) -> Any:
    """Return a text in lower case, letters and digits alone, if it has any; else the value."""
    return _in_letters(value) if isinstance(value, str) else value


@lru_cache(_KNOWN_TEXTS)
def _in_letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold())) or text


def _set(value: Any) -> Sequence[Any]:
    values = value if isinstance(value, list) else [value]
    for one in values:
        if isinstance(one, list | dict):
            raise ConfigError(f"when: {one!r}: write a value, or a list of values")
    return values


def _words_of(value: Any) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)
