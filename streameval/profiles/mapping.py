"""A profile compiled: from a message, as plain data, to the fields of events.

`Mapping.events` is on the way of each record, so paths and conversions are looked up once, when a
profile is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple, TypeAlias

from streameval.base.errors import ConfigError
from streameval.base.limits import MAX_ITEMS
from streameval.profiles.cells import CellError, converter, text
from streameval.profiles.envelopes import of_text, opened, parsed
from streameval.profiles.language import Feedback, Impression, Items, Profile, Rule, Slate, Take
from streameval.profiles.paths import Path, compiled, first_steps, is_false
from streameval.profiles.schema_files import SchemaFiles

MAX_EVENTS: Final = 10_000
"""Events that one message may become."""
_NONE: Final = "finds nothing"
# Names of a path that has a short way.
_SHORT: Final = 2
# Fields in which trackers put the name of an event.
_NAMES: Final = ("event_name", "event", "eventType", "event_type", "action_name", "type", "name")
_OF_ITEMS: Final = ("item_id", "position", "score", "propensity")


class MappingError(ValueError):
    """Why a message does not become an event, in a person's words."""


class Mapped(NamedTuple):
    """The fields of an event, and the name of the rule that made it.

    `plain`: no text of the message can hold a control character or the label `__all__`.
    """

    fields: dict[str, Any]
    rule: str
    plain: bool = True


class _Field(NamedTuple):
    """A field of an event: where its value is, how it is converted, whether it must be there."""

    name: str
    find: Path
    convert: Callable[[Any], Any]
    source: str
    required: bool

    def fill(self, fields: dict[str, Any], element: Any, message: Any) -> None:
        """Put the value into `fields`, if there is one. Raises MappingError."""
        try:
            value = self.find(element, message)
            if value is not None and value != "":
                fields[self.name] = self.convert(value)
                return
        except CellError as error:
            raise MappingError(f"`{self.name}`: {self.source} {error}") from None
        if self.required:
            found = _NONE if value is None else "is empty"
            raise MappingError(f"`{self.name}`: {self.source} {found}")


Fill: TypeAlias = Callable[[dict[str, Any], Any, Any], None]
"""A function that puts a value of an element and its message into fields. Raises MappingError."""


def _fill(field: _Field, path: str | None, take: Take | None) -> Fill:
    """Return `field.fill`, with a short way for a text that is there and goes as it is."""
    steps = None if path is None else first_steps(path)
    is_text = field.convert is text or (field.name == "ts" and take is None)
    if steps is None or len(steps[1]) > _SHORT or not is_text:
        return field.fill
    of_message, names = steps
    target, slow = field.name, field.fill
    first, second = names[0], names[1] if len(names) > 1 else None

    def fill(fields: dict[str, Any], element: Any, message: Any) -> None:
        try:
            value = (message if of_message else element)[first]
            if second is not None:
                value = value[second]
        except (KeyError, TypeError):
            value = None
        if value.__class__ is str and value:
            fields[target] = value
        else:
            slow(fields, element, message)

    return fill


class Mapping:
    """A compiled profile; relative paths in it begin at `folder`."""

    parse: Callable[[bytes], Any]
    """Parses the bytes of a record; raises any exception for malformed ones."""

    def __init__(self, profile: Profile, folder: FilePath = FilePath()) -> None:
        if profile.is_binary:
            named = {"": profile.schemas} if isinstance(profile.schemas, str) else profile.schemas
            self.parse = SchemaFiles(profile.format, named, folder, profile.message).read
        else:
            self.parse = partial(parsed, form=profile.format)
        unwrap = (profile.unwrap,) if isinstance(profile.unwrap, str) else profile.unwrap
        self.profile = profile
        self._unwrap = [compiled(path) for path in unwrap]
        self._split = None if profile.split is None else compiled(profile.split)
        self._split_text = profile.split
        may_lack = ("ts",) if profile.record_time else ()
        self._rules = [
            _CompiledRule(rule, at, may_lack) for at, rule in enumerate(profile.rules, 1)
        ]
        self._by_value = _by_value(profile.rules, self._rules)

    def messages(self, value: Any) -> Iterator[Any]:
        """Yield the messages of a parsed value: envelopes off, batches split. Raises MappingError.

        Parts of a batch see what stands around it as `_batch`.
        """
        for message in opened(value, self.profile.format):
            inner = next(
                (found for path in self._unwrap if (found := path(message, message)) is not None),
                message,
            )
            if isinstance(inner, str):  # JSON within JSON
                inner = of_text(inner)
            if self._split is None or not isinstance(inner, dict):
                yield inner
                continue
            parts = self._split(inner, inner)
            if parts is None:
                yield inner
                continue
            if not isinstance(parts, list):
                raise MappingError(f"split: {self._split_text} finds no list")
            around = {key: each for key, each in inner.items() if each is not parts}
            for part in parts:
                yield {**part, "_batch": around} if isinstance(part, dict) else part

    def rule_of(self, message: Any) -> _CompiledRule | None:
        """Return the first rule that holds for a message, if any does."""
        if self._by_value is not None:
            find, rules = self._by_value
            found = find(message, message)
            return rules.get(found) if isinstance(found, str) else None
        return next((rule for rule in self._rules if rule.holds(message)), None)

    def rules_of(self, message: Any) -> list[str]:
        """Name all rules that hold for a message."""
        return [rule.name for rule in self._rules if rule.holds(message)]

    def events(self, value: Any) -> tuple[list[Mapped], list[str]]:
        """Return the events of a parsed value, and names of the messages in it without a rule.

        Raises MappingError.
        """
        if self.profile.native:
            return [Mapped(each, "native") for each in opened(value, "json")], []
        events: list[Mapped] = []
        ignored: list[str] = []
        for message in [value] if self._is_bare(value) else self.messages(value):
            if not isinstance(message, dict):
                raise MappingError(f"a message is {type(message).__name__}, not an object")
            rule = self.rule_of(message)
            if rule is None:
                ignored.append(self._name(message))
                continue
            events += rule.events(message)
            if len(events) > MAX_EVENTS:
                raise MappingError(f"a message of more than {MAX_EVENTS:,} events")
        return events, ignored

    def _is_bare(self, value: Any) -> bool:
        """Tell whether a value is one message, with nothing around it."""
        return (
            value.__class__ is dict
            and self.profile.format != "snowplow"
            and not self._unwrap
            and "specversion" not in value
            and (self._split is None or self._split(value, value) is None)
        )

    def _name(self, message: dict[str, Any]) -> str:
        """Name a message that no rule takes, by the values that the rules look at."""
        asked = [path(message, message) for rule in self._rules for path, _ in rule.wanted]
        for found in (*asked, *map(message.get, _NAMES)):
            if isinstance(found, str | int):
                return str(found)[:60]
        return "messages without a name"


class _CompiledRule:
    """One rule, compiled."""

    def __init__(self, rule: Rule, number: int, may_lack: Collection[str]) -> None:
        self.wanted: list[tuple[Path, Any]] = []
        self._expression: Path | None = None
        said = rule.when
        if isinstance(rule.when, str):
            self._expression = compiled(rule.when)
        elif rule.when:
            self.wanted = [(compiled(path), _set(value)) for path, value in rule.when.items()]
            said = ", ".join(_said(value) for value in rule.when.values())
        self.name = rule.name or str(said or f"rule {number}")
        self._each_text = rule.each
        self._each = None if rule.each is None else compiled(rule.each)
        shapes = rule.shapes.items()
        self._shapes = [_CompiledShape(kind, shape, may_lack) for kind, shape in shapes]

    def holds(self, message: Any) -> bool:
        """Tell whether this rule is for a message."""
        if self._expression is not None:
            try:
                return not is_false(self._expression(message, message))
            except ValueError:  # a function of JMESPath that met another type
                return False
        for path, wanted in self.wanted:
            found = path(message, message)
            if isinstance(found, list | dict) or found not in wanted:
                return False
        return True

    def events(self, message: Any) -> list[Mapped]:
        """Return the events of a message. Raises MappingError."""
        try:
            elements = [message] if self._each is None else self._each(message, message)
            if not isinstance(elements, list):
                found = _NONE if elements is None else "finds no list"
                raise MappingError(f"each: {self._each_text} {found}")  # noqa: TRY301  # as others
            return [
                Mapped(shape.fields(element, message), self.name)
                for element in elements
                for shape in self._shapes
            ]
        except MappingError as error:
            raise MappingError(f"rule {self.name}: {error}") from None
        except ValueError as error:  # of JMESPath
            said = str(error).splitlines()[0]
            raise MappingError(f"rule {self.name}: {said}") from None


class _CompiledShape:
    """One event of a rule, compiled."""

    def __init__(
        self, kind: str, shape: Slate | Impression | Feedback, may_lack: Collection[str]
    ) -> None:
        self._kind = kind
        self._fills = list(_fills(shape, may_lack))
        self._items = _ItemReader(shape.items) if isinstance(shape, Slate) else None

    def fields(self, element: Any, message: Any) -> dict[str, Any]:
        """Return the fields of the event. Raises MappingError, and ValueError of JMESPath."""
        fields: dict[str, Any] = {"type": self._kind}
        for fill in self._fills:
            fill(fields, element, message)
        if self._items is not None:
            fields["items"] = self._items.read(element, message)
        return fields


class _ItemReader:
    """Reads the items of a list."""

    def __init__(self, items: str | Items) -> None:
        self._text = items if isinstance(items, str) else items.each
        self._find = compiled(self._text)
        self._fills: list[Fill] | None = None
        self._after: Fill | None = None
        self._fast: Callable[[Any], list[Any] | None] = lambda _: None
        self._auto = False
        self._convert = converter("item_id", None)
        if isinstance(items, Items):
            self._fills = [
                _filled(name, source, required=name == "item_id")
                for name in _OF_ITEMS
                if (source := getattr(items, name)) is not None
            ]
            self._fast = _fast_items(items)
            where = items.position
            self._auto = isinstance(where, Take) and where.base == "auto"
            self._after = None if items.after is None else _filled("after", items.after)

    def read(self, element: Any, message: Any) -> list[Any]:
        found = self._find(element, message)
        if found is None:
            raise MappingError(f"`items`: {self._text} {_NONE}")
        if not isinstance(found, list):
            raise MappingError(f"`items`: {self._text} finds no list")
        if len(found) > MAX_ITEMS:
            raise MappingError(f"`items`: {len(found):,} items, at most {MAX_ITEMS:,}")
        if (fast := self._fast(found)) is not None:
            return fast
        before: dict[str, Any] = {}
        if self._after is not None:
            self._after(before, element, message)
        first = int(before.get("after") or 0)
        items = []
        for number, item in enumerate(found):
            try:
                read = self._item(item, message)
            except MappingError as error:
                raise MappingError(f"item {number}: {error}") from None
            if first:
                fields = read if isinstance(read, dict) else {"item_id": read}
                read = {"position": first + number + 1, **fields}
            items.append(read)
        if self._auto:
            _count_from_one(items)
        return items

    def _item(self, item: Any, message: Any) -> Any:
        if self._fills is None:
            try:
                return self._convert(item)
            except CellError as error:
                raise MappingError(f"`item_id` {error}") from None
        fields: dict[str, Any] = {}
        for fill in self._fills:
            fill(fields, item, message)
        return fields if len(fields) > 1 else fields["item_id"]


def _count_from_one(items: Sequence[Any]) -> None:
    """Let positions of a list that count from 0 count from 1."""
    placed = [item for item in items if isinstance(item, dict) and "position" in item]
    if any(item["position"] == 0 for item in placed):
        for item in placed:
            item["position"] += 1


def _fast_items(items: Items) -> Callable[[Any], list[Any] | None]:
    """Return the short way for items with an id of text, and a whole number as position.

    It returns None for a list with any other item.
    """
    nothing: Callable[[Any], None] = lambda _: None  # noqa: E731
    position = items.position
    base = position.base if isinstance(position, Take) else 1
    where = position.path if isinstance(position, Take) else position
    if not isinstance(items.item_id, str) or items.after or items.score or items.propensity:
        return nothing
    if base == "auto":
        return nothing
    names = [first_steps(path) for path in (items.item_id, where or "position")]
    if where is None or "||" in f"{items.item_id}{where}":
        return nothing
    if any(one is None or one[0] or len(one[1]) > 1 for one in names):
        return nothing
    (item_id,), (place,) = (one[1] for one in names if one is not None)
    add = 1 - base

    def read(found: Any) -> list[Any] | None:
        rows = []
        try:
            for item in found:
                name, number = item[item_id], item[place]
                if name.__class__ is not str or number.__class__ is not int:
                    return None
                if number < base or not name:
                    return None
                rows.append({"item_id": name, "position": number + add})
        except (KeyError, TypeError):
            return None
        return rows

    return read


def _fills(shape: Slate | Impression | Feedback, may_lack: Collection[str]) -> Iterator[Fill]:
    """Yield the fields that a rule fills; items are read apart."""
    for name, info in type(shape).model_fields.items():
        source = getattr(shape, name)
        if source is not None and name != "items":
            ours = "feedback" if name == "kind" else name
            yield _filled(ours, source, required=info.is_required() and name not in may_lack)
    for name, source in (shape.model_extra or {}).items():
        yield _filled(name, source)


def _filled(name: str, source: str | Take, *, required: bool = False) -> Fill:
    field = _field(name, source, required=required)
    take = source if isinstance(source, Take) else None
    return _fill(field, source if isinstance(source, str) else source.path, take)


def _field(name: str, source: str | Take, *, required: bool = False) -> _Field:
    take = source if isinstance(source, Take) else None
    convert = converter(name, take)
    if take is None:
        assert isinstance(source, str), "a source is a path or a Take"
        return _Field(name, compiled(source), convert, source, required)
    if take.path is not None:
        return _Field(name, compiled(take.path), convert, take.path, required)
    if take.const is not None:
        value = take.const
        return _Field(name, lambda _, __: value, convert, "const", required)
    assert take.product is not None, "the language sees to it"
    factors = [compiled(path) for path in take.product]
    return _Field(name, _product(factors), convert, " * ".join(take.product), required)


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


def _by_value(
    rules: Sequence[Rule], compiled_rules: Sequence[_CompiledRule]
) -> tuple[Path, dict[str, _CompiledRule]] | None:
    """Return the one path by which all rules choose, and the rule of each value; else None."""
    paths = {next(iter(rule.when)) for rule in rules if isinstance(rule.when, dict) and rule.when}
    found: dict[str, _CompiledRule] = {}
    for one in compiled_rules:
        if len(one.wanted) != 1 or len(paths) != 1:
            return None
        ((_, values),) = one.wanted
        if not all(isinstance(value, str) for value in values):
            return None
        for value in values:
            found.setdefault(value, one)
    return (compiled(paths.pop()), found) if found else None


def _set(value: Any) -> Sequence[Any]:
    values = value if isinstance(value, list) else [value]
    for one in values:
        if isinstance(one, list | dict):
            raise ConfigError(f"when: {one!r}: write a value, or a list of values")
    return values


def _said(value: Any) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)
