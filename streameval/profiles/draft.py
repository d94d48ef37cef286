"""A draft of a profile for messages of an unknown format, guessed from their fields."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Sequence
from itertools import chain
from typing import Any, Final

from streameval.base.errors import InputError
from streameval.core import rejection_words
from streameval.core.events import in_words
from streameval.profiles.deliveries import bare
from streameval.profiles.language import in_yaml
from streameval.profiles.message_fields import (
    Taken,
    Told,
    above,
    act_of,
    all_lists,
    examples_of,
    flags_of,
    has_several,
    in_most_columns,
    item_of,
    leaves_of,
    lists_in_text,
    lists_of_items,
    name_of,
    own_ids,
    paths_of,
    read_json,
    taken_of_list,
    values_at,
)
from streameval.profiles.message_kinds import (
    acts_by_name,
    acts_of,
    groups_of,
    kind_path,
    tags_of,
    taken_times,
    telling_time,
    tells,
)
from streameval.profiles.message_times import lacks_zone, pattern_of
from streameval.profiles.told_by_values import (
    ids_told_by_values,
    renamed,
    told_by_feedback,
    users_told,
)

# A date without a time of day, and one without a date.
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK: Final = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?")
# What stands behind the kind of feedback, the last field of a rule.
_GUESS: Final = "  # a guess: no field says what was done"
# The name of a time that is of an event, not of an item.
_OF_EVENTS: Final = re.compile(r"event|occur|\A(ts|time|timestamp)\Z")
_SHOWS: Final = {"shown", "view"}
_MOST_RULES: Final = 12
# So deep may lists of messages lie within each other.
_DEEPEST: Final = 3
_MOST_FIELDS: Final = 40
_LONGEST_EXAMPLE: Final = 40


def draft(values: Sequence[bytes]) -> str:
    """Return a profile to complete: a rule for each kind of message whose name says what it is.

    Raises `InputError` where no line is a JSON object.
    """
    values = [message for value in values for message in bare(value, keep=True)]
    whole = [dict(leaves_of(message, "")) for value in values if (message := read_json(value))]
    split, read = _parts(in_most_columns(whole))
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
            *([f"split: {in_yaml(split if split[1:] else split[0])}"] if split else []),
            "rules:",
            *rules,
            "",
        ]
    )


def _parts(
    whole: Sequence[dict[str, Any]], depth: int = 0
) -> tuple[list[str], Sequence[dict[str, Any]]]:
    """Return the path of several events in one message, step by step, and the fields of each.

    A message that is one event may stand beside such.
    """
    for path, listed in examples_of(whole).items():
        first = dict(leaves_of(listed[0], "")) if isinstance(listed, list) and listed else {}
        if not first or path.startswith("_batch."):
            continue
        batches = [leaves for leaves in whole if isinstance(leaves.get(path), list)]
        says, times = tells(batches), paths_of("ts", examples_of(batches))
        if says and times:
            continue
        parts = [
            dict(leaves_of(part, "")) | {f"_batch.{p}": v for p, v in leaves.items() if p != path}
            for leaves in batches
            for part in leaves[path]
        ]
        each, kind = paths_of("ts", first), kind_path(parts)
        alone = [one for one in whole if kind in one and not isinstance(one.get(path), list)]
        if says:  # what is missing is the time
            if any(_OF_EVENTS.search(name_of(one)) for one in each):
                return [path], parts
        elif (each or times) and kind:
            if tells(parts, most=not (each and paths_of("kind", first))):
                return [path], parts + alone
        elif depth < _DEEPEST and (inner := _parts(parts, depth + 1))[0]:
            return [path, *inner[0]], inner[1]
    return [], whole


def _rules(read: Sequence[dict[str, Any]], fields: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the rules, with one to complete for what is missing, and the kinds without a rule."""
    kind = kind_path(read)
    tags, words = tags_of(read, kind)
    groups, several = groups_of(read, kind, tags)
    users = users_told([*chain(*groups.values())])
    acts = acts_by_name(groups, words, kind, users)
    own = own_ids([*chain(*groups.values())])
    groups = _with_ids(groups, acts, users)
    fields = examples_of(leaves for group in groups.values() for leaves in group)
    acts = acts_of(groups, kind, words, acts)
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
        when = _when(kind, said, words) if said else ""
        if said in several:
            when = _each(when, several[said])
        # A click beside events that show lists has the list that was clicked, at most.
        both = act in {"", "shown"} or (act in {"view", "click"} and not shows)
        rule = None if said == "null" else _rule(when, act, groups[said], own, both=both)
        if rule is not None and len(made) < _MOST_RULES:
            is_guess = said.startswith("!")
            made[said] = rule + _GUESS if is_guess else rule
    rules = list(made.values())
    if kind is None and not rules and paths_of("item_id", fields):
        act = act_of(telling_time(fields))
        if act == "shown":
            return [_impression("", [*chain(*groups.values())])], []
        return [_feedback("", act or "click", fields, "" if act else _GUESS)], []
    if not any("slate:" in rule or "impression:" in rule for rule in rules):
        first, has_list = next(iter(groups)), any(isinstance(one, list) for one in fields.values())
        said = first if has_list and not rules and first not in {"", "null"} else '"..."'
        when = f"{_when(kind, said, words)}  # the event that shows a list"
        rules.append(_slate(when, fields, _made_id(fields)))
    if not any("feedback:" in rule for rule in rules):
        plain = {path: value for path, value in fields.items() if not isinstance(value, list)}
        when = f"{_when(kind, 'click', {})}  # the event of a click"
        rules.append(_feedback(when, "click", plain))
    left = [said[:_LONGEST_EXAMPLE] for said in groups if said and said not in made]
    return rules, left[:_MOST_RULES]


def _when(kind: str | None, said: str, words: Container[str]) -> str:
    """Return the condition of a rule: what a message's kind is, or an expression of `words`."""
    if said in words:
        return f"when: {in_yaml(said)}"
    return f"when: {{{in_yaml(kind or 'event')}: {said}}}"


def _with_ids(
    groups: dict[str, list[dict[str, Any]]], acts: dict[str, str], users: dict[str, Told]
) -> dict[str, list[dict[str, Any]]]:
    """Return messages whose paths tell the ids that only their values do, and one user."""
    read = [leaves for group in groups.values() for leaves in group]
    first, others = _other_users(read, paths_of("user_id", examples_of(read)))
    known = [*users, first, *others]
    told = ids_told_by_values(groups, acts, known) | users
    groups = told_by_feedback(renamed(groups, told), acts, known)
    if users:
        return groups
    return {said: _of_one_user(group, first, others) for said, group in groups.items()}


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
    lists, items = all_lists(fields), paths_of("item_id", fields)
    unnamed = act == "shown" and not items and (has_several(group) or lists_in_text(fields))
    if unnamed or (lists and (act in {"", "shown"} or (act == "view" and has_several(group)))):
        return _slate(when, fields, own_id)
    flags = {act: test for act, test in flags_of(group).items() if act != "shown"}
    if not lists and items and act in {"", "shown"}:
        item, shown = in_yaml(f"$.{items[0]}"), _impression(when, group)
        rest = {path: value for path, value in fields.items() if not isinstance(value, list)}
        if flags:
            kinds = ", ".join(f"{test} && '{kind}'" for kind, test in flags.items())
            return _with_feedback(shown, above(rest), {f"[{kinds}][?@]": '"@"'}, item)
        if times := taken_times(group):
            each = {f"[{path}][?@]": f"{{const: {kind}}}" for path, kind in times.items()}
            at: dict[str, Any] = {Told.of("@", "ts"): fields[path] for path in times}
            rest = {path: value for path, value in rest.items() if path not in times}
            return _with_feedback(shown, at | above(rest), each, item)
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
        base = 0 if any(str(leaves.get(place)) == "0" for leaves in group) else 1
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
    item = in_yaml(item_of(first) if first else "@")
    usual = act if act not in {"", "shown"} else "click"
    each = {path: f"{{const: {in_yaml(act_of(said) or usual)}}}" for said, path in of.each.items()}
    return _with_feedback(slate, above(rest), each, item)


def _with_feedback(shown: str, fields: dict[str, Any], each: dict[str, str], item: str) -> str:
    """Return the rule `shown` with feedback for each of what stands in its message too.

    `each` are paths with the kind of feedback, and `fields` what each of them sees.
    """
    parts = []
    for path, kind in each.items():
        _, _, body = _event("", "feedback", fields, item_id=item, kind=kind).partition("\n")
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
    path, first = [*all_lists(fields), *unnamed, ("items", {})][0]
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
    return _event(_each(when, path), "feedback", above(fields), item_id=item, kind=source)


def _each(when: str, path: str) -> str:
    before = f"{when}\n    " if when else ""
    return f"{before}each: {in_yaml(path)}  # $ is the message"


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
