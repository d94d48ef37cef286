"""The fields of messages of an unknown format, found by their names and their values."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from streameval.profiles.message_times import (
    is_in_parts,
    is_time,
    is_written_time,
    may_be_either,
)

# Names of fields, the likeliest first, without what is no letter. The last ones are German,
# Spanish, French, Italian and Portuguese.
_WORDS: Final = {
    "ts": "ts timestamp time eventtime createdat occurredat sentat datetime date unixtime dt at t"
    " created published recorded logged received",
    "user_id": "userid uid user usrid visitorid customerid clientid distinctid profileid memberid"
    " accountid subscriberid viewerid shopperid actorid customer visitor shopper deviceid"
    " anonymousid cookieid sessionid session actor cookie u",
    "item_id": "itemid productid contentid objectid sku item product articleid videoid movieid"
    " trackid songid episodeid postid newsid documentid docid bookid listingid offerid jobid"
    " hotelid recipeid titleid assetid adid asin isbn ean gtin article video movie post job song"
    " track book recipe hotel course game ad aid object produkt artikel producto articulo produit"
    " prodotto articolo produto artigo id",
    "request_id": "requestid reqid queryid impressionid listid slateid traceid recommendationid"
    " recid searchid searchqueryuid resultid trackingid attributiontoken request req query list",
    "kind": "event eventname eventtype action actionname actiontype interaction interactiontype"
    " feedback feedbacktype activity activitytype kind type evt verb logtype ereignis"
    " aktion evento accion evenement azione acao name",
    "items": "items products itemids productids results recommendations"
    " recommendeditems recs hits impressions ads docs shown list ids",
    "position": "position pos rank index slot",
    "variant": "variant variation arm bucket group abgroup testgroup experiment algorithm algo"
    " model",
}
# How long a word has to be that names a field at the end of its name, as in `client_event_time`.
_LONG_WORD: Final = {"items": 4, "position": 4, "ts": 4}
_LONG: Final = 6
# What the words of an event's name say that somebody did. The first that is found counts.
_ACTS: Final = {
    "": r"\b(remove|cancel|refund|un[a-z])",
    "purchase": r"\b(purchase|order|buy|bought|booked|booking|transaction|checkout complete"
    r"|gekauft|bestell|compra|achat|acquist)",
    "cart": r"(\b|\baddto)(cart|basket)|\b(warenkorb|carrito|panier|carrello|carrinho)",
    "like": r"\b(like|favou?rite)",
    "click": r"\b(clic|clk|tap|select|interact|klick|geklickt)",
    "shown": r"\b(imps?\b|impression|show|display|render|serve[ds]?\b|seen\b|expos|recommend|search"
    r"|lists?\b|responses?\b|anzeige|angezeigt|impres|mostrad|affich|exibi)",
    "play": r"\b(play|watch|listen)",
    "view": r"\b(view|visit|read\b)",
}
_KNOWN: Final = {word for words in _WORDS.values() for word in words.split()}
# What stands before the last name of a path, also within a function.
_LAST: Final = re.compile(r"\.(?=\w*[^\w\"]*\Z|\"[^\"]*\"\Z)|\A\w+\(")
# The end of a name that tells the unit of its time.
_UNIT: Final = re.compile(
    r"(?<=.)(ms|millis|micros|us|ns|nanos?|seconds|secs?|utc|epoch|unix(time)?|iso)+\Z"
)
# The end of a path that tells a time in short, as in `request_ts` and `shownAt`.
_AT: Final = re.compile(r"(?i:(?<=[a-z\d])_(ts|at|dt)\Z)|(?<=[a-z\d])(Ts|At|Dt|TS)\Z")
# How long an id is that no other value is by chance.
_ID_LENGTH: Final = 4
# A text that holds ids, with one character between them that is no blank.
_IDS: Final = re.compile(r"[\w.:-]+([|;,])[\w.:-]+(\1[\w.:-]+)*")
# Other words for an id, at the end of a name.
_SAME_AS_ID: Final = re.compile(r"(?<=.)([ug]uid|number|(?<!na)no|nr|code|key|ref)(?=s?\Z)")
# The end of the name of an id, whatever it is of, and what is no item and no list.
_ID: Final = re.compile(r"(id|identifier|key|token|ur[iln]|hash|slug)\Z|\Aid")
_OTHER: Final = re.compile(r"session|visit|page|device|campaign|app|site|shop|store|order|cart")
# What the path of a user's id says where its name says nothing: `customer_ids.cookie`.
_WHO: Final = re.compile(
    r"user|customer|visitor|member|client|identit|profile|shopper|viewer|subscriber|account|person"
    r"|reader|listener|player_?id|buyer|guest|recipient|candidate|consumer|learner|student|patient"
    r"|nutzer|kunde|usuario|utilisateur|cliente|utente",
    re.IGNORECASE,
)
# A list of several ids of one user, as Adobe, mParticle and Segment have it.
_IDENTITIES: Final = re.compile(r"identit|(user|customer|external)_?ids\b", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,18}\Z", re.ASCII)
_NO_LETTER: Final = re.compile(r"[^a-z]")
# What needs no quotes in JMESPath.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)


class Told(str):
    """A path of which not its name but its values tell the field; `word` is a word for that."""

    __slots__ = ("word",)
    word: str

    @classmethod
    def of(cls, path: str, word: str) -> Told:
        """Return a path that is known to be of a field."""
        told = cls(path)
        told.word = word
        return told

    def below(self, path: str) -> Told:
        """Return the same field at another path."""
        return self.of(path, self.word)


def ids_told_by_values(
    read: Sequence[dict[str, Any]], kind: str | None, users: Sequence[str]
) -> dict[str, Told]:
    """Find the ids of items and lists whose names tell nothing: feedback has those that were shown.

    There are more items than lists. A list has one user, and no two whole lists have one id. Of two
    paths with as many values none is taken.
    """
    acts = [(act_of(leaves.get(kind or "")), leaves) for leaves in read]
    lists = [leaves for act, leaves in acts if act in {"", "view"} and has_several([leaves])]
    shown = [leaves for act, leaves in acts if act == "shown"] or lists
    listed = {(each, None) for leaves in shown for each in values_in_lists(leaves)}
    is_shown = {*map(id, shown)}
    feedback = [
        leaves
        for act, leaves in acts
        if id(leaves) not in is_shown and (act or not listed.isdisjoint(_scalars(leaves)))
    ]
    fields, told = examples_of(feedback), {}
    items, requests, alike = {}, {}, set[str]()
    names = {name_of(item_of(inner)) for inner in map(_inner, shown)}
    named = paths_of("item_id", fields)[:1]
    if [name_of(path) for path in named] == ["id"] and not values_at(named[0], feedback) & listed:
        named = []  # the id of the event itself
    plurals = {name for leaves in shown for name in names_of_lists(leaves)}
    for path in fields.keys() - {*users, *named}:
        here, before = values_at(path, feedback), values_at(path, shown)
        is_id = _ID.search(name_of(path)) or f"{name_of(path)}s" in plurals
        if not is_id or _OTHER.search(name_of(path)):
            continue
        if here & (listed or before):
            items[path] = here | before
            alike |= {path} if name_of(path) in names else set()
        of_one_user = len(values_at(path, read, users)) == len(values_at(path, read))
        if here & before and of_one_user and (len(before) == len(shown) or not listed):
            requests[path] = here | before
    if not named and not lists_of_items(fields):
        items = {path: items[path] for path in alike} or items
        told = {path: Told.of(path, "itemid") for path in _most(items)}
    if not paths_of("request_id", examples_of(shown)):
        requests = {path: known for path, known in requests.items() if path not in told}
        told |= {path: Told.of(path, "requestid") for path in _most(requests)}
    return told


def users_told_by_paths(fields: dict[str, Any]) -> dict[str, Told]:
    """Find the id of a user whose own name tells nothing, by what it stands in."""
    if paths_of("user_id", fields):
        return {}
    found = [
        path
        for path, value in fields.items()
        if _WHO.search(path) and isinstance(value, str | int) and not isinstance(value, bool)
    ]
    best = min(found, key=lambda path: not _ID.search(name_of(path)), default="")
    same = {best, f"$.{best}", best.removeprefix("$.")}  # of a part, the message has it
    return {path: Told.of(path, "userid") for path in found if path in same}


def values_at(
    path: str, group: Sequence[dict[str, Any]], users: Sequence[str] = ()
) -> set[tuple[Any, ...]]:
    """Return the values at a path, each with its user, if `users` are paths of one."""
    rows = ([leaves.get(name) for name in (path, *users)] for leaves in group)
    rows = ([one if isinstance(one, str | int) else None for one in row] for row in rows)
    return {(value, next(filter(None, user), None)) for value, *user in rows if value is not None}


def _inner(leaves: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the first object in the likeliest list of items."""
    first = next((first for _, first in lists_of_items(leaves)), None)
    return dict(leaves_of(first, "")) if isinstance(first, dict) else {}


def _scalars(leaves: dict[str, Any]) -> Iterator[tuple[Any, None]]:
    """Yield the values of a message that may be ids."""
    yield from ((one, None) for one in leaves.values() if isinstance(one, str | int))


def values_in_lists(leaves: dict[str, Any]) -> Iterator[Any]:
    """Yield what stands in the lists of a message, and in their objects."""
    for value in leaves.values():
        for one in value if isinstance(value, list) else ():
            below = dict(leaves_of(one, "")).values() if isinstance(one, dict) else [one]
            yield from (each for each in below if isinstance(each, str | int))


def _most(ids: dict[str, set[tuple[Any, ...]]]) -> list[str]:
    """Return the path with the most values, if there is one."""
    most = max(map(len, ids.values()), default=0)
    found = [path for path, values in ids.items() if len(values) == most]
    return found if len(found) == 1 else []


def act_of(name: Any) -> str:
    """Return what the name of an event says: a kind of feedback, "shown", or "" for neither."""
    said = _words_of(name)
    return next((act for act, known in _ACTS.items() if re.search(known, said)), "")


def kind_of(name: str) -> str:
    """Return the name of an event as a kind of feedback: `jobs.ItemSaved` is item_saved.

    It is "" for what takes something back.
    """
    if re.search(_ACTS[""], _words_of(name)):
        return ""
    return _words_of(re.split(r"[./:]", name)[-1]).strip().replace(" ", "_")


def _words_of(name: Any) -> str:
    """Return the words of a name in small letters, with a blank between them."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|[\W\d_]+", " ", name) if isinstance(name, str) else ""
    return spaced.lower()


def read_json(value: bytes | str) -> Any:
    """Return the JSON of a text; None where it is none."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def examples_of(group: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return an example of each path, null or empty only where there is no other."""
    examples: dict[str, Any] = {}
    for leaves in group:
        for path, value in leaves.items():
            known = examples.get(path)
            if known in (None, []) or (may_be_either(known) and not may_be_either(value)):
                examples[path] = value
    return examples


def kind_path(read: Sequence[dict[str, Any]]) -> str | None:
    """Return the path that tells events apart: by what its values say, then by its name."""
    acts: dict[str, Counter[str]] = {}
    for leaves in read:
        for path, value in leaves.items():
            if act := act_of(value):
                acts.setdefault(path, Counter())[act] += 1
    named = paths_of("kind", examples_of(read))
    told = [path for path, found in acts.items() if path in named or len(found) > 1]
    if told:
        return max(told, key=lambda path: (len(acts[path]), path in named, acts[path].total()))
    return named[0] if named else None


class Taken(NamedTuple):
    """A list and the items of it that somebody took, as paths with an example of each.

    `each` are the paths of these items by the names that say what was done. `item` is the path of
    an item's id, where a text holds more than that.
    """

    listed: str
    items: list[Any]
    each: dict[str, str]
    first: Any
    item: str = ""


def taken_of_list(group: Sequence[dict[str, Any]]) -> Taken | None:
    """Find a list in a message that also says which of its items somebody took.

    An item has a flag for it, or another field has the ids of some, and never of another item. Two
    messages must have both, or one an id that is no chance.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for leaves in group:
        ids = {path: ids_in(value) for path, value in leaves.items()}
        for path, whole in ids.items():
            if len(whole) > 1 and not all(one.isdigit() and len(one) < 3 for one in whole):
                for other, found in ids.items():
                    if found and other != path:
                        telling = 2 if min(map(len, found)) >= _ID_LENGTH else 1
                        counts[path, other] += telling if found < whole else -2 * len(group)
    if flagged := _flagged(group) or _marked(group):
        return flagged
    fields = examples_of(group)
    named = " ".join(path for path, _ in lists_of_items(fields))
    pair = max(counts, key=lambda pair: (counts[pair], pair[0] in named), default=("", ""))
    if counts[pair] < 2:
        return None
    listed, items = _as_list(pair[0], fields[pair[0]])
    each, parts = _as_list(pair[1], fields[pair[1]])
    if each == pair[1] and not isinstance(fields[each], list):
        each = f"[{each}][?@]"  # messages of a list that nobody took from lack it
    return Taken(listed, items, {pair[1]: each}, parts[0])


def _flagged(group: Sequence[dict[str, Any]]) -> Taken | None:
    """Find a list whose items have a flag for what somebody did."""
    for path, example in examples_of(group).items():
        if not isinstance(example, list) or not item_ids(example):
            continue
        lists = [leaves[path] for leaves in group if isinstance(leaves.get(path), list)]
        items = [dict(leaves_of(item, "")) for each in lists for item in each]
        flags = flags_of(items)
        shown = flags.pop("shown", None)  # others were candidates
        if each := {act: f"{path}[?{test}]" for act, test in flags.items()}:
            return Taken(f"{path}[?{shown}]" if shown else path, example, each, example[0])
    return None


def _marked(group: Sequence[dict[str, Any]]) -> Taken | None:
    """Find a text of ids that end in -1 for what somebody took, and else in -0, as MIND has it."""
    for path in examples_of(group):
        texts = [leaves[path] for leaves in group if isinstance(leaves.get(path), str)]
        parts = [part for text in texts for part in text.split()]
        if len(parts) > len(texts) and {part[-2:] for part in parts} == {"-0", "-1"}:
            listed = f"split({path}, ' ')"
            each = {"": f"{listed}[?ends_with(@, '-1')]"}
            return Taken(listed, parts, each, parts[0], "split(@, '-')[0]")
    return None


def flags_of(items: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return a test of JMESPath for each act that a flag of items tells: 0 or 1, true or false."""
    found: dict[str, str] = {}
    for name in examples_of(items):
        values = [item[name] for item in items if isinstance(item.get(name), int)]
        # (An item's `order` is its place.)
        if set(values) == {0, 1} and act_of(name) and name != "order":
            is_bool = isinstance(values[0], bool)
            found.setdefault(act_of(name), name if is_bool else f"{name} == `1`")
    return found


def _as_list(path: str, value: Any) -> tuple[str, list[Any]]:
    """Return the path of a list, also where ids came as a text, and the list."""
    separator, parts = parted(value)
    if not separator or _IDS.fullmatch(value):
        return f"split({path}, '{separator}')" if separator else path, parts
    return path, [value]  # a text with blanks or commas


def ids_in(value: Any) -> set[str]:
    """Return the ids that a list has, also one in a text, or the value itself."""
    _, parts = _as_list("", value)
    if parts and isinstance(parts[0], dict):
        paths = item_ids(parts)
        parts = [dict(leaves_of(part, "")).get(paths[0]) for part in parts] if paths else []
    return {str(one) for one in parts if isinstance(one, str | int) and one is not True and one}


def parted(value: Any) -> tuple[str, list[Any]]:
    """Return the separator of a list in a text, "" without one, and the parts of a list."""
    if isinstance(value, str):
        for separator in "|;, ":
            if separator in value:
                return separator, value.split(separator)
    return "", value if isinstance(value, list) else [value]


def has_several(group: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a message has a list of two or more: a view of one item is its page."""
    found = [value for leaves in group for value in leaves.values() if isinstance(value, list)]
    in_text = any(path not in group[0] for path, _ in lists_of_items(group[0]))
    return in_text or any(len(value) > 1 for value in found)


def names_of_lists(leaves: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the lists in a message."""
    yield from (name_of(path) for path, value in leaves.items() if isinstance(value, list))


def own_ids(read: Sequence[dict[str, Any]]) -> list[str]:
    """Return the paths of ids that no two messages share: a list without a request has one."""
    fields, found = examples_of(read), []
    for path in fields.keys() - {*paths_of("user_id", fields)}:
        count = sum(isinstance(leaves.get(path), str | int) for leaves in read)
        if _LAST.split(path)[-1].lower().endswith("id") and len(values_at(path, read)) == count > 1:
            found.append(path)
    return [path for path in fields if path in found]


def lists_of_items(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the paths of lists of items, each with its first one, the likeliest first.

    Those have a known name, such as that of an item or its plural, or objects with the id of one.
    """
    ids = _WORDS["item_id"].split()
    lists = {path: fields[path] for path in paths_of("items", fields, list)}
    for path, found in fields.items():
        if not isinstance(found, list) or _IDENTITIES.search(path) or lists_within(found):
            continue
        if item_ids(found) or name_of(path).removesuffix("s") in ids:
            lists.setdefault(path, found)
    for path in paths_of("items", fields, str):
        separator, parts = parted(fields[path])
        if separator:
            lists.setdefault(f"split({path}, '{separator}')", parts)
    return [(path, found[0] if found else {}) for path, found in lists.items()]


def lists_within(listed: Any) -> list[tuple[str, Any]]:
    """Return the paths of lists of items, by their names, in the objects of a list, as above."""
    first = listed[0] if isinstance(listed, list) and listed else None
    inner = dict(leaves_of(first, "")) if isinstance(first, dict) else {}
    return [(path, inner[path][0]) for path in paths_of("items", inner, list) if inner[path]]


def all_lists(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the paths of lists of items, as above, or else of all that lie within one list."""
    return lists_of_items(fields) or [
        (f"{path}[].{inner}[]", first)
        for path, found in fields.items()
        for inner, first in lists_within(found)
    ]


def item_of(inner: dict[str, Any]) -> str:
    """Return the likeliest path of an item's id in an object of a list: by name, or the first."""
    ids = [path for path, value in inner.items() if isinstance(value, str | int)]
    return next(iter([*paths_of("item_id", inner), *ids]), "item_id")


def item_ids(listed: list[Any]) -> list[str]:
    """Return the paths of an item's id in the objects of a list."""
    first = listed[0] if listed else None
    return paths_of("item_id", dict(leaves_of(first, ""))) if isinstance(first, dict) else []


def leaves_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values below an object by their path of JMESPath; a list is a value."""
    if not isinstance(value, dict):
        if path:
            yield path, value
            if isinstance(value, str) and isinstance(listed := read_json(value), list):
                yield f"from_json({path})", listed
        if isinstance(value, list) and value and _IDENTITIES.search(path):
            yield from leaves_of(value[0], f"{path}[0]")
        return
    if path and len(value) > 1 and all(map(_NUMBER.match, value)):
        yield _numbered(value, path)
        return
    for name, inner in value.items():
        step = name if _PLAIN_NAME.match(name) else json.dumps(name)
        yield from leaves_of(inner, f"{path}.{step}" if path else step)


def _numbered(value: dict[str, Any], path: str) -> tuple[str, list[Any]]:
    """Return the list in an object whose names are numbers: places, as PHP writes lists, or ids."""
    places = [int(name) for name in value]
    if places in ([*range(len(places))], [*range(1, len(places) + 1)]) or isinstance(
        next(iter(value.values())), dict
    ):
        return f"not_null({path}.*, {path})", [*value.values()]  # in order it is a list
    return f"keys({path})", [*value]


def paths_of(field: str, fields: dict[str, Any], of: Any = str | int | float | None) -> list[str]:
    """Return the paths of values of a type whose last name is a word for a field, best first."""
    names = {
        path: name_of(path)
        for path, value in fields.items()
        if isinstance(value, of) or (field == "ts" and is_in_parts(value))
    }
    if field == "position":
        names = {path: name for path, name in names.items() if str(fields[path]).isdigit()}
    if field == "ts":
        names = {path: _UNIT.sub("", name) for path, name in names.items()}
        names = {path: name for path, name in names.items() if is_time(fields[path])} or names
    words = _WORDS[field].split()
    if field == "ts":
        words += [name for path, name in names.items() if _AT.search(path)]
    exact = [path for word in words for path, name in names.items() if name == word]
    long = tuple(word for word in words if len(word) >= _LONG_WORD.get(field, _LONG))
    found = exact or [path for path, name in names.items() if name.endswith(long)]
    if field == "ts" and not found:
        return [path for path, value in fields.items() if is_written_time(value)]
    return found


def name_of(path: str) -> str:
    """Return the last name of a path in letters, with its owner's where both are one: `user.id`."""
    if isinstance(path, Told):
        return path.word
    before, *rest = _LAST.split(path)
    letters = [_NO_LETTER.sub("", part.lower()) for part in (_LAST.split(before)[-1], *rest)]
    names = [_SAME_AS_ID.sub("id", name) for name in letters]
    together = "".join(names)
    if len(names) > 1 and names[-1] == "seconds":  # of a time: Firestore's, or Protobuf's
        return names[0]
    return together if together in _KNOWN else names[-1]
