"""A draft of a profile for messages of an unknown format, guessed from their fields."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import yaml

from streameval.base.errors import InputError
from streameval.core import rejection_words
from streameval.core.events import in_words
from streameval.core.foreign_formats import format_of
from streameval.profiles.envelopes import ENVELOPE, of_text, unwrap
from streameval.profiles.message_fields import (
    Taken,
    Told,
    act_of,
    all_lists,
    examples_of,
    flags_of,
    has_several,
    ids_in,
    item_of,
    kind_of,
    kind_path,
    leaves_of,
    lists_in_text,
    lists_of_items,
    name_of,
    names_of_lists,
    own_ids,
    paths_of,
    read_json,
    shown_by_views,
    taken_of_list,
    values_at,
    values_in_lists,
)
from streameval.profiles.message_times import is_time, lacks_zone, pattern_of
from streameval.profiles.told_by_values import ids_told_by_values, users_told
from streameval.profiles.typed_json import without_types

# What may need no quotes in YAML.
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)
# A date without a time of day, and one without a date.
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK: Final = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?")
# What stands behind the kind of feedback, the last field of a rule.
_GUESS: Final = "  # a guess: no field says what was done"
# The end of the name of a time.
_NAME_OF_TIME: Final = re.compile(
    r"(?i:[_\s](at|on|ts|time|date|timestamp)|time(stamp)?)(_?ms|Ms|Millis)?\Z|(?<=[a-z])(At|Ts|Date)\Z"
)
# The field at the beginning of a path that goes on below it.
_OBJECT: Final = re.compile(r"([A-Za-z_]\w*)\.", re.ASCII)
# The name of a time that is of an event, not of an item.
_OF_EVENTS: Final = re.compile(r"event|occur|\A(ts|time|timestamp)\Z")
_SHOWS: Final = {"shown", "view"}
_MOST_RULES: Final = 12
_ALL: Final = 5
# So deep may lists of messages lie within each other.
_DEEPEST: Final = 3
_MOST_FIELDS: Final = 40
_LONGEST_EXAMPLE: Final = 40


def types_off(values: Sequence[bytes]) -> tuple[str, Sequence[bytes]]:
    """Return the format of a profile and values by it, where most name their types; else ""."""
    plain = [_without_types(value) for value in values]
    if 2 * sum(each is not None for each in plain) <= len(values):
        return "", values
    return "typed_json", [each or value for each, value in zip(plain, values, strict=True)]


def _without_types(value: bytes) -> bytes | None:
    """Return a value without the names of types; None where it has none, or is too deep."""
    message = read_json(value)
    try:
        plain = without_types(message)
        return None if plain == message else msgspec.json.encode(plain)
    except RecursionError:
        return None


def taken_out(values: Sequence[bytes]) -> tuple[str, Sequence[bytes]]:
    """Return the path to messages within the envelopes that most values are, and the messages.

    The path is "" for values without an envelope, or with one that says more than its message.
    CloudEvents and arrays need no path.
    """
    values = [message for value in values for message in _bare(value)]
    path, found = "", [("", values)]
    while True:
        field, inner = _in_envelopes(values) or _in_texts(values)
        if not inner:
            break
        path = f"{path}.{field}" if path else field
        values = [
            each.encode() if isinstance(each, str) else msgspec.json.encode(each) for each in inner
        ]
        found.append((path, values))
        if any(isinstance(each, str) for each in inner):  # no path goes into a text
            break
    return max(reversed(found), key=lambda one: _says(one[1]))


def _in_envelopes(values: Sequence[bytes]) -> tuple[str, list[Any]] | None:
    """Return the field of the envelope that most values are, and the messages; None without."""
    formats = [format_of(each) for each in values]
    known = Counter(found.envelope for found in formats if found and found.envelope)
    for field, count in known.most_common(1):
        inner = [
            message
            for each, found in zip(values, formats, strict=True)
            if found and found.envelope == field
            if (message := msgspec.json.decode(each)[field]) is not None
        ]
        if inner and 2 * count > len(values):
            return field, inner
    return None


def _in_texts(values: Sequence[bytes]) -> tuple[str, list[str]]:
    """Return the path of a text that is a message itself, and the messages; ("", []) without."""
    found: dict[str, list[str]] = {}
    for value in values:
        for path, text in leaves_of(read_json(value), ""):
            inner = of_text(text) if isinstance(text, str) else None
            if isinstance(inner, dict):
                found.setdefault(path, []).append(msgspec.json.encode(inner).decode())
    path = max(found, key=lambda path: len(found[path]), default="")
    held = found.get(path, [])
    return (path, held) if 2 * len(held) > len(values) else ("", [])


def _says(values: Sequence[bytes]) -> int:
    """Return how much of an event messages say: when, who, of what item, and what was done.

    Those of a tracker that is known say more than any.
    """
    formats = map(format_of, values)
    if 2 * sum(bool(found and found.profile) for found in formats) > len(values):
        return _ALL
    read = [dict(leaves_of(each, "")) for value in values if (each := read_json(value))]
    fields = examples_of(read)
    item = paths_of("item_id", fields) or lists_of_items(fields)
    return sum(map(bool, (paths_of("ts", fields), paths_of("user_id", fields), item, _tells(read))))


def _bare(value: bytes, *, keep: bool = False) -> Iterable[bytes]:
    """Yield the messages of a value, without what every profile takes off.

    With `keep`, a message has what an event tells around it, as a profile sees it.
    """
    try:
        messages = list(unwrap(msgspec.json.decode(value), "json", keep=keep))
        return [msgspec.json.encode(_of_event(each) if keep else each) for each in messages]
    except (ValueError, RecursionError):  # the draft says what is wrong with it
        return (value,)


def _of_event(message: Any) -> Any:
    """Return a message with the part of its envelope that is about what happened, at its end."""
    around = message.pop(ENVELOPE, None) if isinstance(message, dict) else None
    if not around:
        return message
    return {**message, ENVELOPE: {name: around.get(name) for name in ("type", "time", "subject")}}


def draft(values: Sequence[bytes]) -> str:
    """Return a profile to complete: a rule for each kind of message whose name says what it is.

    Raises `InputError` where no line is a JSON object.
    """
    values = [message for value in values for message in _bare(value, keep=True)]
    whole = [dict(leaves_of(message, "")) for value in values if (message := read_json(value))]
    split, read = _parts(whole)
    fields = examples_of(read)
    if not values:
        raise InputError("no line has a message")
    if not fields:
        why = in_words(rejection_words.malformed, values[0], "a profile maps JSON objects")
        raise InputError(f"no line is a JSON object; of the first one: {why}")
    rules, left = _rules(read, fields)
    counts = Counter(path for leaves in read for path in leaves)
    return "\n".join(
        [
            "# A draft: no known format. Fields of these messages, each with an example:",
            *(
                f"#   {in_yaml(path)}: {in_yaml(fields[path])[:_LONGEST_EXAMPLE]}"
                for path, _ in counts.most_common(_MOST_FIELDS)
            ),
            "# Check and complete it; `streameval map FILE --profile THIS --explain` says what",
            "# each line becomes. docs/profiles.md has the language.",
            *([f"# No rule takes {', '.join(left)}."] if left else []),
            *([f"split: {in_yaml(split)}"] if split else []),
            "rules:",
            *rules,
            "",
        ]
    )


def _parts(whole: Sequence[dict[str, Any]], depth: int = 0) -> tuple[str, Sequence[dict[str, Any]]]:
    """Return the path of several events in one message, "" without one, and the fields of each."""
    fields = examples_of(whole)
    tells, times = _tells(whole), paths_of("ts", fields)
    for path, listed in () if tells and times else fields.items():
        first = dict(leaves_of(listed[0], "")) if isinstance(listed, list) and listed else {}
        parts = [
            dict(leaves_of(part, "")) | {f"_batch.{p}": v for p, v in leaves.items() if p != path}
            for leaves in (whole if first else ())
            if isinstance(leaves.get(path), list)
            for part in leaves[path]
        ]
        each = paths_of("ts", first)
        if tells:  # what is missing is the time
            if any(_OF_EVENTS.search(name_of(one)) for one in each):
                return path, parts
        elif (each or times) and kind_path(parts):
            if _tells(parts, most=not (each and paths_of("kind", first))):
                return f"{path}[]" if depth else path, parts
        elif depth < _DEEPEST and (inner := _parts(parts, depth + 1))[0]:
            return f"{path}[].{inner[0]}", inner[1]
    return "", whole


def _tells(read: Sequence[dict[str, Any]], *, most: bool = False) -> bool:
    """Tell whether a message has a name that says what somebody did, or whether most have one."""
    kind = kind_path(read)
    count = sum(bool(act_of(leaves.get(kind or ""))) for leaves in read)
    return 2 * count > len(read) if most else count > 0


def _rules(read: Sequence[dict[str, Any]], fields: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the rules, with one to complete for what is missing, and the kinds without a rule."""
    kind = kind_path(read)
    tags, words = _tags(read, kind)
    groups, several = _groups(read, kind, tags)
    acts = {said: _act(words.get(said), group, kind) for said, group in groups.items()}
    own = own_ids([*chain(*groups.values())])
    groups = _with_ids(groups, acts)
    fields = examples_of(leaves for group in groups.values() for leaves in group)
    acts = _acts(groups, kind, words, acts)
    if _SHOWS.intersection(acts.values()):  # then what has no name that is known shows nothing
        acts = {said: act for said, act in acts.items() if act}
    shows = any(
        act == "shown" and lists_of_items(examples_of(groups[said])) for said, act in acts.items()
    )
    made: dict[str, str] = {}
    # A click may have the time of its list too, and the first rule that holds counts.
    for said, act in sorted(
        acts.items(), key=lambda one: kind is None and (not one[0] or one[1] == "shown")
    ):
        when = f"when: {{{in_yaml(kind)}: {said}}}" if said else ""
        if said and said in words:
            when = f"when: {in_yaml(said)}"
        if said in several:
            when = _each(when, several[said])
        # A click beside events that show lists has the list that was clicked, at most.
        both = act in {"", "shown"} or (act in {"view", "click"} and not shows)
        rule = None if said == "null" else _rule(when, act, groups[said], own, both=both)
        if rule is not None and len(made) < _MOST_RULES:
            is_guess = kind is None and said.startswith("!")
            made[said] = rule + _GUESS if is_guess else rule
    rules = list(made.values())
    if kind is None and not rules and paths_of("item_id", fields):
        act = act_of(_telling_time(fields))
        if act == "shown":
            return [_impression("", [*chain(*groups.values())])], []
        return [_feedback("", act or "click", fields, "" if act else _GUESS)], []
    event = in_yaml(kind or "event")
    if not any("slate:" in rule or "impression:" in rule for rule in rules):
        first, has_list = next(iter(groups)), any(isinstance(one, list) for one in fields.values())
        said = first if has_list and not rules and first not in {"", "null"} else '"..."'
        when = f"when: {{{event}: {said}}}  # the event that shows a list"
        rules.append(_slate(when, fields, _made_id(fields)))
    if not any("feedback:" in rule for rule in rules):
        plain = {path: value for path, value in fields.items() if not isinstance(value, list)}
        when = f"when: {{{event}: click}}  # the event of a click"
        rules.append(_feedback(when, "click", plain))
    left = [said[:_LONGEST_EXAMPLE] for said in groups if said and said not in made]
    return rules, left[:_MOST_RULES]


def _with_ids(
    groups: dict[str, list[dict[str, Any]]], acts: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Return messages whose paths tell the ids that only their values do, and one user."""
    read = [leaves for group in groups.values() for leaves in group]
    users = users_told(read)
    first, others = _other_users(read, paths_of("user_id", examples_of(read)))
    told = ids_told_by_values(groups, acts, [*users, first, *others]) | users
    groups = {
        said: [{told.get(path, path): value for path, value in one.items()} for one in group]
        for said, group in groups.items()
    }
    if users:
        return groups
    return {said: _of_one_user(group, first, others) for said, group in groups.items()}


def _act(word: str | None, group: list[dict[str, Any]], kind: str | None) -> str:
    """Return what the messages of a kind say that somebody did, by a word or by their kind."""
    return act_of(word or group[0].get(kind or ""))


def _tags(read: Sequence[dict[str, Any]], kind: str | None) -> tuple[list[str], dict[str, str]]:
    """Return what tells the kind of each message without one, as an expression; else "".

    With them comes what each expression says. It is the name of the message's one object, as in a
    `oneof` of Protobuf, where no other message has it too. Or it is the value of a field in which
    these differ from the others, as a table. Where no message has a kind, its fields tell.
    """
    lacks = [leaves.get(kind or "") is None for leaves in read]
    held = [{found[1] for path in leaves if (found := _OBJECT.match(path))} for leaves in read]
    others = {
        name for names, without in zip(held, lacks, strict=True) if not without for name in names
    }
    tags = [
        "".join(names - others) if without and len(names) == 1 else ""
        for names, without in zip(held, lacks, strict=True)
    ]
    if any(tags) and (kind is not None or len({*tags}) > 1):
        return tags, {tag: tag for tag in tags if tag}
    if kind is None:
        return _tags_by_fields(read)
    rest = [leaves for leaves, without in zip(read, lacks, strict=True) if without]
    kinds = [leaves for leaves, without in zip(read, lacks, strict=True) if not without]
    for path in examples_of(rest) if kinds else ():
        values = {str(leaves.get(path)) for leaves in rest}
        elsewhere = {str(leaves.get(path)) for leaves in kinds}
        if not values & elsewhere and all(act_of(one) and "'" not in one for one in values):
            tags = [
                f"{path} == '{leaves[path]}'" if without else ""
                for leaves, without in zip(read, lacks, strict=True)
            ]
            return tags, {f"{path} == '{value}'": value for value in values}
    return [""] * len(read), {}


def _tags_by_fields(read: Sequence[dict[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """Return what tells the kind of messages without a kind, as above: those of several topics.

    It is the name of a time, as `clickedAt`. Or some have lists: others are clicks, most likely.
    """
    tags = [_telling_time(leaves) for leaves in read]
    if len({*tags}) > 1:
        known = examples_of(leaves for leaves, tag in zip(read, tags, strict=True) if tag)
        tags = [tag or _own_time(leaves, known) for leaves, tag in zip(read, tags, strict=True)]
        return tags, {tag: _NAME_OF_TIME.sub("", tag) for tag in tags if tag}
    lists = [next(chain(lists_of_items(leaves), _lists(leaves)), ("",))[0] for leaves in read]
    if "" not in lists or len({*lists}) != 2:
        return [""] * len(read), {}
    path = max(lists)
    return [one or f"!{path}" for one in lists], {path: "shown", f"!{path}": "click"}


def _own_time(leaves: dict[str, Any], known: dict[str, Any]) -> str:
    """Return the path of a time that messages of known kinds lack, as `openedAt`; "" without."""
    return next((path for path in _named_times(leaves) if path not in known), "")


def _lists(leaves: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the lists of a message, whatever they are of."""
    yield from ((path, value) for path, value in leaves.items() if isinstance(value, list))


def _telling_time(leaves: dict[str, Any]) -> str:
    """Return the path of a time whose name says what was done: of a click before its list's."""
    told = [path for path in _named_times(leaves) if act_of(path)]
    return min(told, key=lambda path: act_of(path) == "shown", default="")


def _named_times(leaves: dict[str, Any]) -> list[str]:
    """Return the paths of times by name and value: a `play_time` may be how long it played."""
    return [path for path, one in leaves.items() if _NAME_OF_TIME.search(path) and is_time(one)]


def _acts(
    groups: dict[str, list[dict[str, Any]]],
    kind: str | None,
    words: dict[str, str],
    acts: dict[str, str],
) -> dict[str, str]:
    """Return what the messages of each kind say that somebody did, beyond what its name says.

    Those that are about an item that was shown are feedback of their own kind. `words` are what
    kinds say that have no name.
    """
    acts = {**acts}
    several = [said for said in acts if acts[said] in {"", "view"} and has_several(groups[said])]
    for said in several:  # "suggestions" shows its suggestions
        is_list = any(name in said.lower() for name in names_of_lists(groups[said][0]))
        if said in words or (is_list and "shown" not in acts.values()):
            acts[said] = acts[said] or "shown"
    if not several and (view := shown_by_views(groups, acts)):
        acts[view] = "shown"
    shown: set[str] = set()
    for said in [*several, *(said for said, act in acts.items() if act == "shown")]:
        for leaves in groups[said]:
            shown.update(*map(ids_in, leaves.values()), map(str, values_in_lists(leaves)))
    for said in [said for said, act in acts.items() if not act and said not in several]:
        fields = examples_of(groups[said])
        item, *_ = (*paths_of("item_id", fields), "")
        if {str(one) for one, _ in values_at(item, groups[said])} & shown:
            acts[said] = kind_of(words.get(said) or str(fields.get(kind or "", said)))
    return acts


def _groups(
    read: Sequence[dict[str, Any]], kind: str | None, tags: Sequence[str]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Return the messages of each kind, and the path of several lists within one.

    Of such messages, as a page with rows is one, each list stands for itself.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    several: dict[str, str] = {}
    for leaves, tag in zip(read, tags, strict=True):
        value = None if isinstance(leaves.get(kind or ""), list) else leaves.get(kind or "")
        groups.setdefault(tag or ("" if kind is None else in_yaml(value)), []).append(leaves)
    if kind is None:
        return groups, several
    for said, group in groups.items():
        fields = examples_of(group)
        path = next(filter(lambda path: _has_lists(fields[path]), fields), None)
        if path and act_of(fields.get(kind)) == "shown" and not lists_of_items(fields):
            several[said] = path
            groups[said] = [
                {kind: leaves.get(kind), **dict(leaves_of(part, "")), **_above(leaves)}
                for leaves in group
                if isinstance(leaves.get(path), list)
                for part in leaves[path]
            ]
    return groups, several


def _has_lists(value: Any) -> bool:
    """Tell whether the objects of a list have lists of items."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and bool(lists_of_items(dict(leaves_of(first, ""))))


def _other_users(read: Sequence[dict[str, Any]], paths: Sequence[str]) -> tuple[str, set[str]]:
    """Return the id of the user that most messages have, and the others: two ids are two users.

    A session is no user where another one is known.
    """
    counts = Counter(path for path in paths for leaves in read if leaves.get(path))
    lasting = [path for path in paths if "session" not in path.lower()]
    first = max(lasting or paths, key=counts.__getitem__, default="")
    return first, {*paths} - {first}


def _of_one_user(
    group: Sequence[dict[str, Any]], user: str, others: set[str]
) -> list[dict[str, Any]]:
    """Return messages without the ids of `others`, where most have the one of `user`."""
    count = sum(bool(leaves.get(user)) for leaves in group)
    gone = others if 2 * count > len(group) else set()
    return [{path: value for path, value in leaves.items() if path not in gone} for leaves in group]


def _rule(
    when: str, act: str, group: Sequence[dict[str, Any]], own: Sequence[str], *, both: bool
) -> str | None:
    """Return the rule for messages of a kind; None where they say nothing of lists or items.

    `both`: a message may say what was shown, and what was taken of it.
    """
    fields = examples_of(group)
    own_id = next((path for path in own if path in fields), "") or _made_id(fields)
    if both and (taken := taken_of_list(group)):
        return _list_and_taken(when, act, fields, own_id, taken)
    lists, items = lists_of_items(fields), paths_of("item_id", fields)
    unnamed = act == "shown" and not items and (has_several(group) or lists_in_text(fields))
    if unnamed or (lists and (act in {"", "shown"} or (act == "view" and has_several(group)))):
        return _slate(when, fields, own_id)
    flags = {act: test for act, test in flags_of(group).items() if act != "shown"}
    if flags and not lists and items and act in {"", "shown"}:
        kinds = ", ".join(f"{test} && '{kind}'" for kind, test in flags.items())
        rest = {path: value for path, value in fields.items() if not isinstance(value, list)}
        each = {f"[{kinds}][?@]": '"@"'}
        return _with_feedback(_impression(when, group), rest, each, in_yaml(f"$.{items[0]}"))
    if not act or not (items or all_lists(fields)):
        return None
    return _impression(when, group) if act == "shown" else _feedback(when, act, fields)


def _made_id(fields: dict[str, Any]) -> str:
    """Return an id for lists that have none, of their user and time."""
    parts = [*paths_of("user_id", fields)[:1], *paths_of("ts", fields)[:1]]
    if len(parts) < 2:
        return "request_id"
    return f"join(' ', [{', '.join(f'to_string({path})' for path in parts)}])"


def _impression(when: str, group: Sequence[dict[str, Any]]) -> str:
    """Return a rule for one item that was shown."""
    fields = examples_of(group)
    more = {"item_id": _best("item_id", fields)} | _variant(fields)
    places = sorted(paths_of("position", fields), key=lambda path: -len(values_at(path, group)))
    for place in places[:1]:  # the one that differs most: a place in a row, not the row
        base = 0 if any(leaves.get(place) == 0 for leaves in group) else 1
        more["position"] = f"{{from: {in_yaml(place)}, base: {base}}}"
    return _event(when, "impression", fields, **more)


def _list_and_taken(when: str, act: str, fields: dict[str, Any], own_id: str, of: Taken) -> str:
    """Return a rule for a list, and for feedback on each item of it that somebody took."""
    rest = {
        path: value
        for path, value in fields.items()
        if not isinstance(value, list) and path not in {of.listed, *of.each}
    }
    if not paths_of("request_id", rest):  # feedback names the list too
        told = {Told.of(path, "requestid") if path == own_id else path: path for path in rest}
        rest = {name: rest[path] for name, path in told.items()}
    slate = _slate(when, {**rest, of.listed: of.items}, own_id)
    first = dict(leaves_of(of.first, "")) if isinstance(of.first, dict) else {}
    item = in_yaml(item_of(first) if first else of.item or "@")
    if of.item:
        listed = in_yaml(of.listed)
        slate = slate.replace(f"items: {listed}", f"items: {{each: {listed}, item_id: {item}}}")
    usual = act if act not in {"", "shown"} else "click"
    each = {path: f"{{const: {in_yaml(act_of(said) or usual)}}}" for said, path in of.each.items()}
    return _with_feedback(slate, rest, each, item)


def _with_feedback(shown: str, fields: dict[str, Any], each: dict[str, str], item: str) -> str:
    """Return the rule `shown` with feedback for each of what stands in its message too.

    `each` are paths with the kind of feedback.
    """
    parts = []
    for path, kind in each.items():
        _, _, body = _event("", "feedback", _above(fields), item_id=item, kind=kind).partition("\n")
        parts.append(f"      each: {in_yaml(path)}\n{body}")
    if len(parts) > 1:
        parts = [
            part.replace("\n", "\n  ").replace("      each", "      - each", 1) for part in parts
        ]
    return "\n".join([shown, "    feedback:", *parts])


def _slate(when: str, fields: dict[str, Any], own_id: str = "request_id") -> str:
    """Return a rule for a whole list."""
    unnamed = [(path, one[0]) for path, one in fields.items() if isinstance(one, list) and one]
    unnamed += lists_in_text(fields)
    path, first = [*lists_of_items(fields), *unnamed, ("items", {})][0]
    items = in_yaml(path)
    if isinstance(first, dict):
        inner = dict(leaves_of(first, ""))
        place = paths_of("position", inner)
        position = f", position: {{from: {in_yaml(place[0])}, base: auto}}" if place else ""
        items = f"{{each: {items}, item_id: {in_yaml(item_of(inner))}{position}}}"
    request = {} if paths_of("request_id", fields) else {"request_id": in_yaml(own_id)}
    return _event(when, "slate", fields, **request, items=items, **_variant(fields))


def _feedback(when: str, kind: str, fields: dict[str, Any], remark: str = "") -> str:
    """Return a rule for feedback on one item, or on each of a list."""
    lists, source = all_lists(fields), f"{{const: {in_yaml(kind)}}}{remark}"
    # Many things have an `id`: an order, a session.
    if not lists or any(name_of(path) != "id" for path in paths_of("item_id", fields)):
        return _event(when, "feedback", fields, item_id=_best("item_id", fields), kind=source)
    path, first = lists[0]
    item = in_yaml(item_of(dict(leaves_of(first, "")))) if isinstance(first, dict) else '"@"'
    return _event(_each(when, path), "feedback", _above(fields), item_id=item, kind=source)


def _each(when: str, path: str) -> str:
    before = f"{when}\n    " if when else ""
    return f"{before}each: {in_yaml(path)}  # $ is the message"


def _above(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message as a part of it names them."""
    return {
        path.below(f"$.{path}") if isinstance(path, Told) else f"$.{path}": value
        for path, value in fields.items()
    }


def _event(when: str, shape: str, fields: dict[str, Any], **more: str) -> str:
    """Return a rule with the fields that each event has, and `more` of this one."""
    lines = {
        "ts": _time(fields, shape),
        "user_id": _best("user_id", fields),
        "request_id": _best("request_id", fields),
        **more,
    }
    if shape != "slate" and not paths_of("request_id", fields):
        del lines["request_id"]  # only a list must have one
    guesses = {in_yaml(path) for path in fields if isinstance(path, Told)}
    marked = {one: "  # a guess, by its values" for one in lines.values() if one in guesses}
    marked[in_yaml(_made_id(fields))] = "  # no id of lists was found"
    written = "".join(
        f"\n      {field}: {one}{marked.get(one, '')}" for field, one in lines.items()
    )
    return f"  - {when}\n    {shape}:{written}" if when else f"  - {shape}:{written}"


def _variant(fields: dict[str, Any]) -> dict[str, str]:
    """Return the label of lists that says which variant made them, if one does."""
    paths = paths_of("variant", fields)
    return {"variant": in_yaml(paths[0])} if paths else {}


def in_yaml(value: Any) -> str:
    """Write a value on one line of YAML, where JSON is YAML too."""
    if isinstance(value, str) and _PLAIN_TEXT.match(value) and yaml.safe_load(value) == value:
        return value
    written = json.dumps(value, ensure_ascii=False)
    return written if written.isprintable() else json.dumps(value)


def _time(fields: dict[str, Any], shape: str) -> str:
    """Return the source of a time: its path, its unit, and a zone where it names none.

    Of a click's time and that of its list, it is the one of the shape.
    """
    path, *others = paths_of("ts", fields) or ["ts"]
    if act_of(path):
        path = min(
            [path, *others], key=lambda one: (act_of(one) == "shown") == (shape == "feedback")
        )
    time = fields.get(path)
    clock = next((one for one, each in fields.items() if _CLOCK.fullmatch(str(each))), None)
    if clock is not None and _DATE.fullmatch(str(time)):
        time = f"{time}T{fields[clock]}"
        root = "$." if path.startswith("$.") else ""
        path = f"{root}join('T', [{path.removeprefix(root)}, {clock.removeprefix(root)}])"
    zone = ", zone: UTC" if lacks_zone(time) else ""
    return f"{{from: {in_yaml(path)}, unit: {in_yaml(pattern_of(time) or 'auto')}{zone}}}"


def _best(field: str, fields: dict[str, Any]) -> str:
    """Return the likeliest path of a field in YAML, else the field's own name."""
    return in_yaml([*paths_of(field, fields), field][0])
