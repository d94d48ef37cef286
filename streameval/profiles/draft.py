"""A draft of a profile for messages of an unknown format, guessed from their fields."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from streameval.base.errors import InputError
from streameval.core import rejection_words
from streameval.core.events import in_words
from streameval.core.foreign_formats import format_of
from streameval.profiles.envelopes import unwrap, without_types

# Names of fields, the likeliest first, without what is no letter.
_WORDS: Final = {
    "ts": "ts timestamp time eventtime createdat occurredat sentat datetime date unixtime dt at t",
    "user_id": "userid uid user usrid visitorid customerid clientid distinctid profileid memberid"
    " accountid subscriberid viewerid shopperid actorid deviceid anonymousid cookieid sessionid"
    " session u",
    "item_id": "itemid productid contentid objectid sku item product articleid videoid movieid"
    " trackid songid episodeid postid newsid documentid docid bookid listingid offerid jobid"
    " hotelid recipeid titleid assetid adid asin isbn ean gtin article video movie aid id",
    "request_id": "requestid reqid queryid impressionid listid slateid traceid recommendationid"
    " recid searchid searchqueryuid resultid trackingid attributiontoken request req query list",
    "kind": "event eventname eventtype action actionname actiontype interaction interactiontype"
    " feedback feedbacktype activity activitytype kind type name",
    "items": "items products itemids productids results recommendations"
    " recommendeditems recs hits impressions ads shown",
    "position": "position pos rank index",
    "variant": "variant variation arm bucket group abgroup testgroup experiment algorithm algo"
    " model",
}
# How long a word has to be that names a field at the end of its name, as in `client_event_time`.
_LONG_WORD: Final = {"items": 4, "position": 4, "ts": 4}
_LONG: Final = 6
# What the words of an event's name say that somebody did. The first that is found counts.
_ACTS: Final = {
    "": r"\b(remove|cancel|refund|un[a-z])",
    "purchase": r"\b(purchase|order|buy|bought|booked|booking|transaction)",
    "cart": r"(\b|\baddto)(cart|basket)",
    "like": r"\b(like|favou?rite)",
    "click": r"\b(click|clk|tap|select)",
    "shown": r"\b(imps?\b|impression|show|display|serve[ds]?\b|expos|recommend|search|lists?\b)",
    "play": r"\b(play|watch|listen)",
    "view": r"\b(view|visit)",
}
_KNOWN: Final = {word for words in _WORDS.values() for word in words.split()}
_SHOWS: Final = {"shown", "view"}
_MOST_RULES: Final = 12
_MOST_FIELDS: Final = 40
_LONGEST_EXAMPLE: Final = 40
# What stands before the last name of a path, also within a function.
_LAST: Final = re.compile(r"\.(?=\w*\W*\Z|\"[^\"]*\"\Z)|\A\w+\(")
# The end of a name that tells the unit of its time.
_UNIT: Final = re.compile(
    r"(?<=.)(ms|millis|micros|us|ns|seconds|secs?|utc|epoch|unix(time)?|iso)+\Z"
)
# How long an id is that no other value is by chance.
_ID_LENGTH: Final = 4
_UUID: Final = re.compile(r"(?<=.)[ug]uid(?=s?\Z)")
# The end of the name of an id, whatever it is of, and what is no item and no list.
_ID: Final = re.compile(r"(id|key|token)\Z")
_OTHER: Final = re.compile(r"session|visit|page|device|campaign|app|site|shop|store|order|cart")
_NO_LETTER: Final = re.compile(r"[^a-z]")
# What needs no quotes in JMESPath, and what may need none in YAML.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)


class _Told(str):
    """A path of which not its name but its values tell the field; `word` is a word for that."""

    __slots__ = ("word",)
    word: str

    @classmethod
    def of(cls, path: str, word: str) -> _Told:
        """Return a path that is known to be of a field."""
        told = cls(path)
        told.word = word
        return told

    def below(self, path: str) -> _Told:
        """Return the same field at another path."""
        return self.of(path, self.word)


def types_off(values: Sequence[bytes]) -> tuple[str, Sequence[bytes]]:
    """Return the format of a profile and the values by it, where most are Avro's JSON; else ""."""
    plain = [_without_types(value) for value in values]
    if 2 * sum(each is not None for each in plain) <= len(values):
        return "", values
    return "avro_json", [each or value for each, value in zip(plain, values, strict=True)]


def _without_types(value: bytes) -> bytes | None:
    """Return a value without the types that unions name; None where it has none, or is too deep."""
    message = _read(value)
    try:
        plain = without_types(message)
        return None if plain == message else msgspec.json.encode(plain)
    except RecursionError:
        return None


def taken_out(values: Sequence[bytes]) -> tuple[str, Sequence[bytes]]:
    """Return the path to messages within the envelopes that most values are, and the messages.

    The path is "" for values without an envelope. CloudEvents and arrays need no path.
    """
    path: list[str] = []
    values = [message for value in values for message in _bare(value)]
    while True:
        formats = [format_of(each) for each in values]
        known = Counter(found.envelope for found in formats if found and found.envelope)
        (field, count), *_ = known.most_common(1) or (("", 0),)
        inner = [
            message
            for each, found in zip(values, formats, strict=True)
            if found and found.envelope == field
            if (message := msgspec.json.decode(each)[field]) is not None
        ]
        if not inner or 2 * count <= len(values):
            return ".".join(path), values
        path.append(field)
        values = [
            each.encode() if isinstance(each, str) else msgspec.json.encode(each) for each in inner
        ]
        if any(isinstance(each, str) for each in inner):  # no path goes into a text
            return ".".join(path), values


def _bare(value: bytes) -> Iterable[bytes]:
    """Yield the messages of a value, without what every profile takes off."""
    try:
        return [msgspec.json.encode(each) for each in unwrap(msgspec.json.decode(value), "json")]
    except (ValueError, RecursionError):  # the draft says what is wrong with it
        return (value,)


def draft(values: Sequence[bytes]) -> str:
    """Return a profile to complete: a rule for each kind of message whose name says what it is.

    Raises `InputError` where no line is a JSON object.
    """
    whole = [dict(_leaves(message, "")) for value in values if (message := _read(value))]
    split, read = _parts(whole)
    fields = _together(read)
    if not fields:
        why = in_words(rejection_words.malformed, values[0], "a profile maps JSON objects")
        raise InputError(f"no line is a JSON object; of the first one: {why}")
    rules, left = _rules(read, fields)
    counts = Counter(path for leaves in read for path in leaves)
    return "\n".join(
        [
            "# A draft: no known format. Fields of these messages, each with an example:",
            *(
                f"#   {_yaml(path)}: {_yaml(fields[path])[:_LONGEST_EXAMPLE]}"
                for path, _ in counts.most_common(_MOST_FIELDS)
            ),
            "# Check and complete it; `streameval map FILE --profile THIS --explain` says what",
            "# each line becomes. docs/profiles.md has the language.",
            *([f"# No rule takes {', '.join(left)}."] if left else []),
            *([f"split: {_yaml(split)}"] if split else []),
            "rules:",
            *rules,
            "",
        ]
    )


def _parts(whole: Sequence[dict[str, Any]]) -> tuple[str, Sequence[dict[str, Any]]]:
    """Return the path of several events in one message, "" without one, and the fields of each."""
    for path, listed in () if _tells(whole) else _together(whole).items():
        first = dict(_leaves(listed[0], "")) if isinstance(listed, list) and listed else {}
        if not (_paths("ts", first) and _paths("kind", first)):
            continue
        parts = [
            dict(_leaves(part, "")) | {f"_batch.{p}": v for p, v in leaves.items() if p != path}
            for leaves in whole
            if isinstance(leaves.get(path), list)
            for part in leaves[path]
        ]
        if _tells(parts):
            return path, parts
    return "", whole


def _tells(read: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a message has a name that says what somebody did."""
    kind = _kind_path(read)
    return kind is not None and any(act_of(leaves.get(kind)) for leaves in read)


def _rules(read: Sequence[dict[str, Any]], fields: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the rules, with one to complete for what is missing, and the kinds without a rule."""
    kind = _kind_path(read)
    groups, several = _groups(read, kind)
    read = [leaves for group in groups.values() for leaves in group]
    fields = _together(read)
    told = _told(read, kind, _paths("user_id", fields))
    groups = {
        said: [{told.get(path, path): value for path, value in one.items()} for one in group]
        for said, group in groups.items()
    }
    others = _other_users(read, _paths("user_id", fields))
    groups = {said: _of_one_user(group, *others) for said, group in groups.items()}
    fields = _together(leaves for group in groups.values() for leaves in group)
    acts = {said: act_of(group[0].get(kind or "")) for said, group in groups.items()}
    if _SHOWS.intersection(acts.values()):  # then what has no name that is known shows nothing
        acts = {said: act for said, act in acts.items() if act}
    own = _own_ids(read)
    made: dict[str, str] = {}
    for said, act in acts.items():
        when = f"when: {{{_yaml(kind)}: {said}}}" if said else ""
        if said in several:
            when = _each(when, several[said])
        rule = None if said == "null" else _rule(when, act, groups[said], own)
        if rule is not None and len(made) < _MOST_RULES:
            made[said] = rule
    rules = list(made.values())
    if kind is None and not rules and _paths("item_id", fields):
        return [_feedback("", "click", fields, "  # a guess: no field says what was done")], []
    event = _yaml(kind or "event")
    if not any("slate:" in rule or "impression:" in rule for rule in rules):
        first, has_list = next(iter(groups)), any(isinstance(one, list) for one in fields.values())
        said = first if has_list and not rules and first not in {"", "null"} else '"..."'
        rules.append(_slate(f"when: {{{event}: {said}}}  # the event that shows a list", fields))
    if not any("feedback:" in rule for rule in rules):
        plain = {path: value for path, value in fields.items() if not isinstance(value, list)}
        when = f"when: {{{event}: click}}  # the event of a click"
        rules.append(_feedback(when, "click", plain))
    left = [said[:_LONGEST_EXAMPLE] for said in groups if said and said not in made]
    return rules, left[:_MOST_RULES]


def _groups(
    read: Sequence[dict[str, Any]], kind: str | None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Return the messages of each kind, and the path of several lists within one.

    Of such messages, as a page with rows is one, each list stands for itself.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    several: dict[str, str] = {}
    for leaves in read:
        value = None if isinstance(leaves.get(kind or ""), list) else leaves.get(kind or "")
        groups.setdefault("" if kind is None else _yaml(value), []).append(leaves)
    if kind is None:
        return groups, several
    for said, group in groups.items():
        fields = _together(group)
        path = next(filter(lambda path: _has_lists(fields[path]), fields), None)
        if path and act_of(fields.get(kind)) == "shown" and not _lists(fields):
            several[said] = path
            groups[said] = [
                {kind: leaves.get(kind), **dict(_leaves(part, "")), **_above(leaves)}
                for leaves in group
                if isinstance(leaves.get(path), list)
                for part in leaves[path]
            ]
    return groups, several


def _has_lists(value: Any) -> bool:
    """Tell whether the objects of a list have lists of items."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and bool(_lists(dict(_leaves(first, ""))))


def _told(
    read: Sequence[dict[str, Any]], kind: str | None, users: Sequence[str]
) -> dict[str, _Told]:
    """Find the ids of items and lists whose names tell nothing: feedback has those that were shown.

    There are more items than lists. A list has one user, and no two whole lists have one id. Of two
    paths with as many values none is taken.
    """
    acts = [(act_of(leaves.get(kind or "")), leaves) for leaves in read]
    shown = [leaves for act, leaves in acts if act == "shown"]
    feedback = [leaves for act, leaves in acts if act not in {"", "shown"}]
    listed = {each for leaves in shown for value in leaves.values() for each in _listed(value)}
    fields, told = _together(feedback), {}
    items, lists = {}, {}
    named = _paths("item_id", fields)[:1]
    for path in fields.keys() - {*users, *named}:
        here, before = _values(path, feedback), _values(path, shown)
        if not _ID.search(_name(path)) or _OTHER.search(_name(path)):
            continue
        if here & (listed or before):
            items[path] = here | before
        of_one_user = len(_values(path, read, users)) == len(_values(path, read))
        if here & before and of_one_user and (len(before) == len(shown) or not listed):
            lists[path] = here | before
    if not named and not _lists(fields):
        told = {path: _Told.of(path, "itemid") for path in _most(items)}
    if not _paths("request_id", _together(shown)):
        lists = {path: known for path, known in lists.items() if path not in told}
        told |= {path: _Told.of(path, "requestid") for path in _most(lists)}
    return told


def _values(
    path: str, group: Sequence[dict[str, Any]], users: Sequence[str] = ()
) -> set[tuple[Any, ...]]:
    """Return the values at a path, each with its user, if `users` are paths of one."""
    rows = ([leaves.get(name) for name in (path, *users)] for leaves in group)
    rows = ([one if isinstance(one, str | int) else None for one in row] for row in rows)
    return {(value, next(filter(None, user), None)) for value, *user in rows if value is not None}


def _listed(value: Any) -> Iterator[tuple[Any, None]]:
    """Yield what stands in a list, and in its objects."""
    for one in value if isinstance(value, list) else ():
        below = dict(_leaves(one, "")).values() if isinstance(one, dict) else [one]
        yield from ((each, None) for each in below if isinstance(each, str | int))


def _most(ids: dict[str, set[tuple[Any, ...]]]) -> list[str]:
    """Return the path with the most values, if there is one."""
    most = max(map(len, ids.values()), default=0)
    found = [path for path, values in ids.items() if len(values) == most]
    return found if len(found) == 1 else []


def _other_users(read: Sequence[dict[str, Any]], paths: Sequence[str]) -> tuple[str, set[str]]:
    """Return the id of the user that most messages have, and the others: two ids are two users.

    A session is no user where another one is known.
    """
    counts = Counter(path for path in paths for leaves in read if leaves.get(path) is not None)
    lasting = [path for path in paths if "session" not in path.lower()]
    first = max(lasting or paths, key=counts.__getitem__, default="")
    return first, {*paths} - {first}


def _of_one_user(
    group: Sequence[dict[str, Any]], user: str, others: set[str]
) -> list[dict[str, Any]]:
    """Return messages without the ids of `others`, where most have the one of `user`."""
    count = sum(leaves.get(user) is not None for leaves in group)
    gone = others if 2 * count > len(group) else set()
    return [{path: value for path, value in leaves.items() if path not in gone} for leaves in group]


def act_of(name: Any) -> str:
    """Return what the name of an event says: a kind of feedback, "shown", or "" for neither."""
    if not isinstance(name, str):
        return ""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[\W\d_]+", " ", name).lower()
    return next((act for act, known in _ACTS.items() if re.search(known, words)), "")


def _read(value: bytes | str) -> Any:
    """Return the JSON of a text; None where it is none."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _together(group: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return an example of each path, null or empty only where there is no other."""
    examples: dict[str, Any] = {}
    for leaves in group:
        for path, value in leaves.items():
            if examples.get(path) in (None, []):
                examples[path] = value
    return examples


def _kind_path(read: Sequence[dict[str, Any]]) -> str | None:
    """Return the path that tells events apart: by what its values say, then by its name."""
    acts: dict[str, Counter[str]] = {}
    for leaves in read:
        for path, value in leaves.items():
            if act := act_of(value):
                acts.setdefault(path, Counter())[act] += 1
    named = _paths("kind", _together(read))
    told = [path for path, found in acts.items() if path in named or len(found) > 1]
    if told:
        return max(told, key=lambda path: (len(acts[path]), path in named, acts[path].total()))
    return named[0] if named else None


def _rule(when: str, act: str, group: Sequence[dict[str, Any]], own: Sequence[str]) -> str | None:
    """Return the rule for messages of a kind; None where they say nothing of lists or items."""
    fields = _together(group)
    own_id = next((path for path in own if path in fields), "request_id")
    if taken := _taken(group):
        return _list_and_taken(when, act, fields, own_id, taken)
    lists, items = _lists(fields), _paths("item_id", fields)
    unnamed = act == "shown" and not items and _has_several(group)
    if unnamed or (lists and (act in {"", "shown"} or (act == "view" and _has_several(group)))):
        return _slate(when, fields, own_id)
    if not act or not (lists or items):
        return None
    if act != "shown":
        return _feedback(when, act, fields)
    more = {"item_id": _yaml(items[0])} | _variant(fields)
    for place in _paths("position", fields)[:1]:
        base = 0 if any(leaves.get(place) == 0 for leaves in group) else 1
        more["position"] = f"{{from: {_yaml(place)}, base: {base}}}"
    return _event(when, "impression", fields, **more)


class _Taken(NamedTuple):
    """A list and the items of it that somebody took, as paths with an example of each.

    `said` is the name that says what was done.
    """

    listed: str
    items: list[Any]
    each: str
    first: Any
    said: str


def _taken(group: Sequence[dict[str, Any]]) -> _Taken | None:
    """Find a list in a message that also says which of its items somebody took.

    An item has a flag for it, or another field has the ids of some, and never of another item. Two
    messages must have both, or one an id that is no chance.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for leaves in group:
        ids = {path: _ids_in(value) for path, value in leaves.items()}
        for path, whole in ids.items():
            if len(whole) > 1 and not all(one.isdigit() and len(one) < 3 for one in whole):
                for other, found in ids.items():
                    if found and other != path:
                        telling = 2 if min(map(len, found)) >= _ID_LENGTH else 1
                        counts[path, other] += telling if found < whole else -2 * len(group)
    if flagged := _flagged(group):
        return flagged
    fields = _together(group)
    pair = max(counts, key=counts.__getitem__, default=("", ""))
    if counts[pair] < 2:
        return None
    listed, items = _as_list(pair[0], fields[pair[0]])
    each, parts = _as_list(pair[1], fields[pair[1]])
    if each == pair[1] and not isinstance(fields[each], list):
        each = f"[{each}][?@]"  # messages of a list that nobody took from lack it
    return _Taken(listed, items, each, parts[0], pair[1])


def _flagged(group: Sequence[dict[str, Any]]) -> _Taken | None:
    """Find a list whose items have a flag for what somebody did."""
    for path, example in _together(group).items():
        if not isinstance(example, list) or not _item_ids(example):
            continue
        lists = [leaves[path] for leaves in group if isinstance(leaves.get(path), list)]
        items = [dict(_leaves(item, "")) for each in lists for item in each]
        for flag in [name for name in _together(items) if act_of(name) not in {"", "shown"}]:
            values = [item[flag] for item in items if isinstance(item.get(flag), int)]
            # (An item's `order` is its place.)
            if set(values) == {0, 1} and flag != "order":
                test = flag if isinstance(values[0], bool) else f"{flag} == `1`"
                return _Taken(path, example, f"{path}[?{test}]", example[0], flag)
    return None


def _as_list(path: str, value: Any) -> tuple[str, list[Any]]:
    """Return the path of a list, also where it came as a text, and the list."""
    separator, parts = _parted(value)
    return f"split({path}, '{separator}')" if separator else path, parts


def _ids_in(value: Any) -> set[str]:
    """Return the ids that a list has, also one in a text, or the value itself."""
    _, parts = _parted(value)
    if parts and isinstance(parts[0], dict):
        paths = _item_ids(parts)
        parts = [dict(_leaves(part, "")).get(paths[0]) for part in parts] if paths else []
    return {str(one) for one in parts if isinstance(one, str | int) and one is not True and one}


def _parted(value: Any) -> tuple[str, list[Any]]:
    """Return the separator of a list in a text, "" without one, and the parts of a list."""
    if isinstance(value, str):
        for separator in "|;, ":
            if separator in value:
                return separator, value.split(separator)
    return "", value if isinstance(value, list) else [value]


def _list_and_taken(when: str, act: str, fields: dict[str, Any], own_id: str, of: _Taken) -> str:
    """Return a rule for a list, and for feedback on each item of it that somebody took."""
    rest = {
        path: value
        for path, value in fields.items()
        if not isinstance(value, list) and path not in {of.listed, of.said}
    }
    slate = _slate(when, {**rest, of.listed: of.items}, own_id)
    first = dict(_leaves(of.first, "")) if isinstance(of.first, dict) else {}
    item = _best("item_id", first) if first else '"@"'
    kind = act if act not in {"", "shown"} else act_of(of.said) or "click"
    feedback = _event("", "feedback", _above(rest), item_id=item, kind=f"{{const: {kind}}}")
    head, _, body = feedback.partition("\n")
    return f"{slate}\n{head.replace('-', ' ')}\n      each: {_yaml(of.each)}\n{body}"


def _has_several(group: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a message has a list of two or more: a view of one item is its page."""
    found = [value for leaves in group for value in leaves.values() if isinstance(value, list)]
    return any(len(value) > 1 for value in found)


def _own_ids(read: Sequence[dict[str, Any]]) -> list[str]:
    """Return the paths of ids that no two messages share: a list without a request has one."""
    fields, found = _together(read), []
    for path in fields.keys() - {*_paths("user_id", fields)}:
        count = sum(isinstance(leaves.get(path), str | int) for leaves in read)
        if _LAST.split(path)[-1].lower().endswith("id") and len(_values(path, read)) == count > 1:
            found.append(path)
    return [path for path in fields if path in found]


def _slate(when: str, fields: dict[str, Any], own_id: str = "request_id") -> str:
    """Return a rule for a whole list."""
    unnamed = [(path, one[0]) for path, one in fields.items() if isinstance(one, list) and one]
    path, first = [*_lists(fields), *unnamed, ("items", {})][0]
    items = _yaml(path)
    if isinstance(first, dict):
        inner = dict(_leaves(first, ""))
        place = _paths("position", inner)
        position = f", position: {{from: {_yaml(place[0])}, base: auto}}" if place else ""
        items = f"{{each: {items}, item_id: {_best('item_id', inner)}{position}}}"
    request = {} if _paths("request_id", fields) else {"request_id": _yaml(own_id)}
    return _event(when, "slate", fields, **request, items=items, **_variant(fields))


def _feedback(when: str, kind: str, fields: dict[str, Any], remark: str = "") -> str:
    """Return a rule for feedback on one item, or on each of a list."""
    lists, source = _lists(fields), f"{{const: {kind}}}{remark}"
    # Many things have an `id`: an order, a session.
    if not lists or any(_name(path) != "id" for path in _paths("item_id", fields)):
        return _event(when, "feedback", fields, item_id=_best("item_id", fields), kind=source)
    path, first = lists[0]
    item = _best("item_id", dict(_leaves(first, ""))) if isinstance(first, dict) else '"@"'
    return _event(_each(when, path), "feedback", _above(fields), item_id=item, kind=source)


def _each(when: str, path: str) -> str:
    before = f"{when}\n    " if when else ""
    return f"{before}each: {_yaml(path)}  # $ is the message"


def _above(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message as a part of it names them."""
    return {
        path.below(f"$.{path}") if isinstance(path, _Told) else f"$.{path}": value
        for path, value in fields.items()
    }


def _event(when: str, shape: str, fields: dict[str, Any], **more: str) -> str:
    """Return a rule with the fields that each event has, and `more` of this one."""
    zone = ", zone: UTC" if any(_lacks_zone(fields[path]) for path in _paths("ts", fields)) else ""
    lines = {
        "ts": f"{{from: {_best('ts', fields)}, unit: auto{zone}}}",
        "user_id": _best("user_id", fields),
        "request_id": _best("request_id", fields),
        **more,
    }
    if shape != "slate" and not _paths("request_id", fields):
        del lines["request_id"]  # only a list must have one
    guesses = {_yaml(path) for path in fields if isinstance(path, _Told)}
    marked = {one: "  # a guess, by its values" for one in lines.values() if one in guesses}
    written = "".join(
        f"\n      {field}: {one}{marked.get(one, '')}" for field, one in lines.items()
    )
    return f"  - {when}\n    {shape}:{written}" if when else f"  - {shape}:{written}"


def _is_time(value: Any) -> bool:
    """Tell whether a value may be a time: a text with a date, or seconds since 1970 or less."""
    if isinstance(value, str):
        return bool(re.search(r"\d{2}[-/.]\d|\d{9}", value))
    return isinstance(value, int | float) and value > 1e8


def _lacks_zone(time: Any) -> bool:
    """Tell whether a text is a time that does not say its offset from UTC."""
    try:
        return datetime.fromisoformat(time).tzinfo is None
    except (TypeError, ValueError):
        return False


def _variant(fields: dict[str, Any]) -> dict[str, str]:
    """Return the label of lists that says which variant made them, if one does."""
    paths = _paths("variant", fields)
    return {"variant": _yaml(paths[0])} if paths else {}


def _lists(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the paths of lists of items, each with its first one, the likeliest first.

    Those have a known name, such as that of an item or its plural, or objects with the id of one.
    """
    ids = _WORDS["item_id"].split()
    lists = {path: fields[path] for path in _paths("items", fields, list)}
    for path, found in fields.items():
        if isinstance(found, list) and (_item_ids(found) or _name(path).removesuffix("s") in ids):
            lists.setdefault(path, found)
    for path in _paths("items", fields, str):
        separator, parts = _parted(fields[path])
        if separator:
            lists.setdefault(f"split({path}, '{separator}')", parts)
    return [(path, found[0] if found else {}) for path, found in lists.items()]


def _item_ids(listed: list[Any]) -> list[str]:
    """Return the paths of an item's id in the objects of a list."""
    first = listed[0] if listed else None
    return _paths("item_id", dict(_leaves(first, ""))) if isinstance(first, dict) else []


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values below an object by their path of JMESPath; a list is a value."""
    if not isinstance(value, dict):
        if path:
            yield path, value
        if isinstance(value, str) and isinstance(listed := _read(value), list):
            yield f"from_json({path})", listed
        return
    for name, inner in value.items():
        step = name if _PLAIN_NAME.match(name) else json.dumps(name)
        yield from _leaves(inner, f"{path}.{step}" if path else step)


def _yaml(value: Any) -> str:
    """Write a value on one line of YAML, where JSON is YAML too."""
    if isinstance(value, str) and _PLAIN_TEXT.match(value) and yaml.safe_load(value) == value:
        return value
    written = json.dumps(value, ensure_ascii=False)
    return written if written.isprintable() else json.dumps(value)


def _paths(field: str, fields: dict[str, Any], of: Any = str | int | float | None) -> list[str]:
    """Return the paths of values of a type whose last name is a word for a field, best first."""
    names = {path: _name(path) for path, value in fields.items() if isinstance(value, of)}
    if field == "position":
        names = {path: name for path, name in names.items() if str(fields[path]).isdigit()}
    if field == "ts":
        names = {path: _UNIT.sub("", name) for path, name in names.items()}
        names = {path: name for path, name in names.items() if _is_time(fields[path])} or names
    words = _WORDS[field].split()
    exact = [path for word in words for path, name in names.items() if name == word]
    long = tuple(word for word in words if len(word) >= _LONG_WORD.get(field, _LONG))
    return exact or [path for path, name in names.items() if name.endswith(long)]


def _name(path: str) -> str:
    """Return the last name of a path in letters, with its owner's where both are one: `user.id`."""
    if isinstance(path, _Told):
        return path.word
    before, *rest = _LAST.split(path)
    letters = [_NO_LETTER.sub("", part.lower()) for part in (_LAST.split(before)[-1], *rest)]
    names = [_UUID.sub("id", name) for name in letters]
    together = "".join(names)
    return together if together in _KNOWN else names[-1]


def _best(field: str, fields: dict[str, Any]) -> str:
    """Return the likeliest path of a field in YAML, else the field's own name."""
    return _yaml([*_paths(field, fields), field][0])
