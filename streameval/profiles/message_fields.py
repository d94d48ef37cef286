"""The fields of messages of an unknown format, found by their names and their values."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import msgspec

from streameval.profiles.message_times import (
    is_epoch,
    is_in_parts,
    is_time,
    is_written_time,
    may_be_either,
)
from streameval.profiles.paths import of_python, parts_of

# Names of fields, the likeliest first, without what is no letter. The last ones are German,
# Spanish, French, Italian and Portuguese.
_WORDS: Final = {
    "ts": "ts timestamp time eventtime createdat occurredat sentat datetime date unixtime dt tm at"
    " t created published recorded logged received",
    "user_id": "userid uid user usrid visitorid customerid clientid distinctid profileid memberid"
    " accountid subscriberid viewerid shopperid actorid externaluserid customer visitor shopper"
    " deviceid anonymousid anonid guestid cookieid sessionid session actor cookie sub who usr u",
    "item_id": "itemid productid contentid objectid sku item product articleid videoid movieid"
    " trackid songid episodeid postid newsid documentid docid bookid listingid offerid jobid"
    " hotelid recipeid courseid gameid titleid assetid adid asin isbn ean gtin article video movie"
    " post job song track book recipe hotel course game ad aid object produkt artikel producto"
    " articulo produit prodotto articolo produto artigo tweetid entityid storyid itm id",
    "request_id": "requestid reqid queryid impressionid listid slateid traceid recommendationid"
    " recid searchid searchqueryuid resultid trackingid attributiontoken request req query list"
    " lst",
    "kind": "event eventname eventtype action actionname actiontype interaction interactiontype"
    " feedback feedbacktype activity activitytype behavior behaviortype behaviour kind type evt"
    " verb verbid logtype ereignis aktion evento accion evenement azione acao name",
    "items": "items products itemids productids results recommendations"
    " recommendeditems recs hits impressions ads docs shown list ids candidates slate itms",
    "position": "position pos rank index slot",
    "variant": "variant variation arm bucket group abgroup testgroup experiment algorithm algo"
    " model",
}
# How long a word has to be that names a field at the end of its name, as in `client_event_time`.
_LONG_WORD: Final = {"items": 4, "position": 4, "ts": 4}
_LONG: Final = 6
# What the words of an event's name say that somebody did. The first that is found counts.
_ACTS: Final = {
    "": r"\b(remove|cancel|refund"
    r"|un(like|fav|sav|book|follow|watch|select|subscri|star|vote|pin|heart|do|click))",
    "purchase": r"\b(purchase|order|buy|bought|booked|booking|transaction|checkout complete)",
    "cart": r"(\b|\baddto)(cart|basket)",
    "like": r"\b(like|fav(s|ou?rite)?)",
    "click": r"\b(clic|clk|tap|select|interact)",
    "shown": r"\b(imps?\b|impression|show|display|render|serve[ds]?\b|seen\b|expos|visib)"
    # What may also be saved or hidden.
    r"|\A(?!.*\b(sav|shar|dismiss|hid|add|rat(e|ed|ing)\b|appl(y|ied)|skip|accept|reject|open"
    r"|comment|feedback|report|follow|download)).*\b(recommend|suggest|search|lists?\b|responses?\b)",
    "play": r"\b(play|watch|listen)",
    "view": r"\b(view|visit|read\b|pv\b)",
}
# How such words begin in other languages: Dutch, French, German, Italian, Polish, Portuguese,
# Russian, Spanish, Turkish, Chinese, Japanese, Korean.
_ELSEWHERE: Final = {
    "purchase": "gekocht achat gekauft bestell acquist zakup compra покуп купил куплен sat.n 購入"
    " 购买 支付 下单 구매",
    "cart": "winkelwagen panier warenkorb carrello koszyk carrinho корзин carrito sepet 购物车 加购"
    " カート 장바구니",
    "like": "лайк нрав 点赞 收藏 喜欢 いいね 좋아요",
    "click": "aangeklikt geklikt klik klick geklickt клик нажат t.kla 点击 クリック 클릭",
    "shown": "getoond vertoon affich anzeige angezeigt wyświetl exibi показ mostrad impres g.ster"
    " 曝光 展示 展现 表示 노출",
    "view": "bekeken просмотр 浏览 閲覧 조회",
}
_LETTER: Final = "a-zà-žа-я"
_SAYS: Final = {
    act: re.compile(
        rf"{known}|(?<![{_LETTER}])({_ELSEWHERE[act].replace(' ', '|')})"
        if act in _ELSEWHERE
        else known
    )
    for act, known in _ACTS.items()
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
ID_LENGTH: Final = 4
# A text that holds ids, with one character between them that is no blank, or in brackets.
_IDS: Final = re.compile(
    r"[\w.:-]+([|;,])[\w.:-]+(\1[\w.:-]+)*"
    r"|[\[({] ?(['\"]?[\w.:-]+['\"]?((, ?| )['\"]?[\w.:-]+['\"]?)*)? ?[\])}]"
)
# What a flag tells of nothing but an item.
_TAKEN: Final = {"purchase", "cart", "like", "click"}
# The words of the name of a place in a list, after one for what was done: clicked_index.
_PLACE: Final = re.compile(
    r"\w+ ((item|product|result|doc|video|article)s? )?"
    r"(index|indices|idx|pos|positions?|ranks?|places?|slots?) ?"
)
# So many messages do not have the same by chance.
ENOUGH: Final = 5
# Other words for an id, at the end of a name.
_SAME_AS_ID: Final = re.compile(r"(ref|(?<=.)([ug]uid|number|(?<!na)no|nr|code|key))(?=s?\Z)")
# The type of a value at the end of its name, as in `item_id_str`.
_TYPE: Final = re.compile(r"_(str|int|real)s?\Z")
# The whole name of a number that is a time: what it is the time of has the name.
_OF_TIME: Final = re.compile(
    r"((epoch|unix)_?(seconds|secs|millis|ms)?|seconds|millis|milliseconds)\Z", re.IGNORECASE
)
# A list of several ids of one user, as Adobe, mParticle and Segment have it.
_IDENTITIES: Final = re.compile(r"identit|((user|customer)_?ids|external_?ids?)\b", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,18}\Z", re.ASCII)
# Items with a number each in a text, and the types of such pairs in a list.
_SCORED: Final = re.compile(
    r"[^\s,;|:]+:-?[\d.]+(e-?\d+)?([,;| ][^\s,;|:]+:-?[\d.]+(e-?\d+)?)+"
    r"|\w+-[01]([,;| ]\w+-[01])+"  # as MIND has clicks
)
_DIGIT: Final = re.compile(r"\d")
# The name of an object with the scores of items.
_SCORES: Final = re.compile(rf"(scores|\b({_WORDS['items'].replace(' ', '|')}))\Z", re.IGNORECASE)
_PAIRS: Final = [[one, number] for one in (str, int) for number in (int, float, bool)]
# The number of a column, and names of columns in which items stand.
_COLUMN: Final = re.compile(r"_?\d{1,2}\Z")
_ALL_COLUMNS: Final = "][?@]"
_OF_COLUMNS: Final = {
    *f"slot pos position rank rec reco recommendation candidate result {_WORDS['item_id']}".split()
} - {"id"}
_NO_LETTER: Final = re.compile(r"[^a-z]")
# The keys of fields in a list, in the order of the alphabet.
_NAMES_AND_VALUES: Final = {("key", "value"), ("name", "value"), ("k", "v")}
# What the path of a user's id says where its name says nothing: `customer_ids.cookie`.
WHO: Final = re.compile(
    r"user|customer|visitor|member|client|identi[tf]|profile|shopper|viewer|subscriber|account|person"
    r"|reader|listener|player_?id|buyer|guest|recipient|candidate|consumer|learner|student|patient"
    r"|nutzer|kunde|usuario|utilisateur|cliente|utente",
    re.IGNORECASE,
)
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


def values_at(
    path: str, group: Sequence[dict[str, Any]], others: Sequence[str] = ()
) -> set[tuple[Any, ...]]:
    """Return the values at a path, each with the first one at the paths `others`, if any."""
    rows = ([leaves.get(name) for name in (path, *others)] for leaves in group)
    rows = ([one if isinstance(one, str | int) else None for one in row] for row in rows)
    return {(value, next(filter(None, rest), None)) for value, *rest in rows if value is not None}


def columns_of_lists(leaves: dict[str, Any], above: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield what may be ids in each list of a message, also of one in a text or in another list.

    Objects have a column for each path; the name of a column is no path of JMESPath.
    """
    for path, value in leaves.items():
        if not isinstance(value, list) and not (isinstance(value, str) and _IDS.fullmatch(value)):
            continue
        columns: dict[str, list[Any]] = {}
        for one in parted(value)[1]:
            below = dict(leaves_of(one, "")) if isinstance(one, dict) else {"": one}
            for inner, each in below.items():
                if isinstance(each, str | int):
                    columns.setdefault(f"{above}{path}[].{inner}", []).append(each)
            if isinstance(one, dict):
                yield from columns_of_lists(below, f"{above}{path}[].")
        yield from columns.items()


def values_in_lists(leaves: dict[str, Any]) -> Iterator[Any]:
    """Yield what may be ids in the lists of a message."""
    for _, values in columns_of_lists(leaves):
        yield from values


def act_of(name: Any) -> str:
    """Return what the name of an event says: a kind of feedback, "shown", or "" for neither."""
    said = _words_of(name)
    return next((act for act, known in _SAYS.items() if known.search(said)), "")


def kind_of(name: str) -> str:
    """Return the name of an event as a kind of feedback: `jobs.ItemSaved` is item_saved.

    It is "" for what takes something back.
    """
    if _SAYS[""].search(_words_of(name)):
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


def _of_text(text: str) -> Any:
    """Return what a text of JSON or of Python says; None where it is neither."""
    found = read_json(text)
    return of_python(text) if found is None else found


def examples_of(group: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return an example of each path, null or empty only where there is no other."""
    examples: dict[str, Any] = {}
    for leaves in group:
        for path, value in leaves.items():
            known = examples.get(path)
            if known in (None, [], "") or (may_be_either(known) and not may_be_either(value)):
                examples[path] = value
    return examples


class Taken(NamedTuple):
    """A list and the items of it that somebody took, as paths with an example of each.

    `each` are the paths of these items by the names that say what was done.
    """

    listed: str
    items: list[Any]
    each: dict[str, str]
    first: Any


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
                        telling = 2 if min(map(len, found)) >= ID_LENGTH else 1
                        counts[path, other] += telling if found < whole else -2 * len(group)
    if flagged := _flagged(group) or _beside(group) or _by_place(group):
        return flagged
    fields = examples_of(group)
    named = " ".join(path for path, _ in lists_of_items(fields))
    pair = max(counts, key=lambda pair: (counts[pair], pair[0] in named), default=("", ""))
    if counts[pair] < 2 or _is_first(group, *pair):
        return None
    listed, items = _as_list(pair[0], fields[pair[0]])
    each, parts = _as_list(pair[1], fields[pair[1]])
    if each == pair[1] and not isinstance(fields[each], list):
        each = f"[{each}][?@]"  # messages of a list that nobody took from lack it
    return Taken(listed, items, {pair[1]: each}, parts[0])


def _is_first(group: Sequence[dict[str, Any]], listed: str, taken: str) -> bool:
    """Tell whether what seems to be taken is the first of each list: the one on top."""
    pairs = [(leaves[listed], leaves[taken]) for leaves in group if {listed, taken} <= {*leaves}]
    firsts = [
        ids_in(parted(whole)[1][:1]) == ids_in(found) for whole, found in pairs if whole and found
    ]
    return len(firsts) >= ENOUGH and all(firsts)


def _flagged(group: Sequence[dict[str, Any]]) -> Taken | None:
    """Find a list whose items have a flag for what somebody did."""
    fields = examples_of(group)
    named = {path for path, _ in lists_of_items(fields)}
    for path, example in fields.items():
        if not isinstance(example, list) or not example:
            continue
        lists = [leaves[path] for leaves in group if isinstance(leaves.get(path), list)]
        items = [dict(leaves_of(item, "")) for each in lists for item in each]
        flags = flags_of(items)
        shown = flags.pop("shown", None)  # others were candidates
        if not (path in named or item_ids(example) or _TAKEN.intersection(flags)):
            continue
        if each := {act: f"{path}[?{test}]" for act, test in flags.items()}:
            return Taken(f"{path}[?{shown}]" if shown else path, example, each, example[0])
    return None


def _beside(group: Sequence[dict[str, Any]]) -> Taken | None:
    """Find a list of items with other lists beside it that have a flag for each item."""
    fields = examples_of(group)
    lists = {
        path: (rows, *_in_parts(path, value))
        for path, value in fields.items()
        if len(parted(value)[1]) > 1
        if (rows := [parted(leaves[path])[1] for leaves in group if leaves.get(path)])
    }
    flags = {path: act for path, (rows, *_) in lists.items() if (act := act_of_flag(path, rows))}
    named = [path for path, _ in lists_of_items(fields)]
    for rows, listed, items in sorted(lists.values(), key=lambda one: one[1] not in named):
        beside = {
            act: (path, f"where({listed}, {lists[path][1]})")
            for path, act in flags.items()
            if [*map(len, lists[path][0])] == [*map(len, rows)]
        }
        if beside and _are_items(rows):
            _, shown = beside.pop("shown", ("", listed))  # others were candidates
            return Taken(shown, items, dict(beside.values()), items[0]) if beside else None
    return None


def _by_place(group: Sequence[dict[str, Any]]) -> Taken | None:
    """Find a list of items, and a field with the places in it of those that somebody took."""
    fields = examples_of(group)
    lists = [path for path, _ in lists_of_items(fields) if isinstance(fields.get(path), list)]
    named = [path for path in fields if _PLACE.fullmatch(_words_of(_LAST.split(path)[-1]))]
    named = [path for path in named if act_of(path) not in {"", "shown"}]
    for path, listed in product(named, lists):
        places = [
            (place, len(leaves[listed]))
            for leaves in group
            if isinstance(leaves.get(listed), list)
            for place in _listed(leaves.get(path))
        ]
        if len(places) >= ENOUGH and len({str(place) for place, _ in places}) == 1:
            continue  # it is the one on top
        # An index counts from 0, and a place from 1, unless the places say more.
        for first in (0, 1) if "ind" in name_of(path) else (1, 0):
            if places and all(
                isinstance(place, int) and first <= place < count + first for place, count in places
            ):
                each = {path: f"at({listed}, {path}, `{first}`)"}
                return Taken(listed, fields[listed], each, fields[listed][0])
    return None


def _listed(value: Any) -> list[Any]:
    """Return a list, or a value as one; none for null."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _are_items(rows: Sequence[Sequence[Any]]) -> bool:
    """Tell whether lists may have items: each once, and not the same in each list, as places."""
    are_ids = all(item_ids([one]) or isinstance(one, str | int) for row in rows for one in row)
    if not are_ids or any(len({*map(str, row)}) < len(row) for row in rows):
        return False
    return len(rows) < 2 or len({tuple(map(str, row)) for row in rows}) > 1


# What a flag says beyond the acts: it was done to the item, or is what a model learns from.
_DONE: Final = re.compile(r"\b(opened|engaged|converted|saved|accepted|consumed)\b")
_FLAGS: Final = [["0", "1"], ["false", "true"], ["f", "t"], ["n", "y"], ["no", "yes"]]
_LEARNED: Final = re.compile(r"\b(label|reward|target|outcome)s?\Z")


def act_of_flag(name: str, rows: Iterable[Iterable[Any]]) -> str:
    """Return the act that flags of items tell, as 0 and 1, or no and yes; "" where they are none.

    `rows` are the flags of the items of each list.
    """
    words = _words_of(name.word if isinstance(name, Told) else name).strip()
    if sorted({str(one).lower() for row in rows for one in row}) not in _FLAGS:
        return ""
    if name == "order":  # an item's place
        return ""
    done = _DONE.search(words)
    return "click" if _LEARNED.search(words) else act_of(name) or (done[1] if done else "")


def flags_of(items: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return a test of JMESPath for each act that a flag of items tells: 0 or 1, true or false."""
    found: dict[str, str] = {}
    for name in examples_of(items):
        values = [item[name] for item in items if isinstance(item.get(name), int | str)]
        if act := act_of_flag(name, [values]):
            true = max(values, key=lambda one: str(one).lower())
            written = f"'{true}'" if isinstance(true, str) else f"`{true}`"
            found.setdefault(act, name if true is True else f"{name} == {written}")
    return found


def _as_list(path: str, value: Any) -> tuple[str, list[Any]]:
    """Return the path of a list, also where ids came as a text, and the list."""
    at, parts = _in_parts(path, value)
    if at == path or _IDS.fullmatch(value):
        return at, parts
    return path, [value]  # a text with blanks or commas


def _in_parts(path: str, value: Any) -> tuple[str, list[Any]]:
    """Return the path of a list, also of one in any text, and the list."""
    separator, parts = parted(value)
    return f"split({path}, '{separator}')" if separator else path, parts


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
        separator = next(
            (one for one in "|;, " if one in value), "," if _IDS.fullmatch(value) else ""
        )
        if separator:
            return separator, parts_of(value, separator)
    return "", value if isinstance(value, list) else [value]


def has_several(group: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a message has a list of two or more: a view of one item is its page."""
    found = [value for leaves in group for value in leaves.values() if isinstance(value, list)]
    in_text = any(path not in group[0] for path, _ in lists_of_items(group[0]))
    return in_text or any(len(value) > 1 for value in found)


def names_of_lists(leaves: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the lists in a message, also of those in a text."""
    for path, value in leaves.items():
        if isinstance(value, list) or (isinstance(value, str) and _IDS.fullmatch(value)):
            yield name_of(path)


def lists_in_text(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the paths of lists in texts whose names are plurals, each with its first part."""
    found = []
    for path, value in fields.items():
        if isinstance(value, str) and _IDS.fullmatch(value) and name_of(path).endswith("s"):
            separator, parts = parted(value)
            found.append((f"split({path}, '{separator}')", next(iter(parts), "")))
    return found


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
    plurals = tuple(f"{word}s" for word in ids if len(word) + 1 >= _LONG)
    whole = {path: one for path, one in fields.items() if not lists_within(one)}
    lists = {path: whole[path] for path in paths_of("items", whole, list)}
    for path, found in whole.items():
        if not isinstance(found, list) or _IDENTITIES.search(path):
            continue
        name = name_of(path)
        if item_ids(found) or name.removesuffix("s") in ids or name.endswith(plurals):
            lists.setdefault(path, found)
    ids = [path for path, value in fields.items() if isinstance(value, str)]
    ids = [path for path in ids if name_of(path).endswith("ids") and _IDS.fullmatch(fields[path])]
    for path in (*paths_of("items", fields, str), *ids):
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
    """Yield the values below an object by their path of JMESPath; a list is a value.

    Items that come as pairs, and in columns, become a list of objects or of ids.
    """
    if not isinstance(value, dict):
        if path:
            inner = _of_text(value) if isinstance(value, str) else None
            if isinstance(inner, list | dict):
                yield from leaves_of(inner, f"from_json({path})")
            else:
                yield _with_pairs(path, value)
        if isinstance(value, list) and value and _IDENTITIES.search(path):
            yield from leaves_of(value[0], f"{path}[0]")
        yield from _named_values(value, path)
        return
    if path and _are_slots(value):
        yield f"{path}.*", [*value.values()]
        return
    if path and len(value) > 1 and all(map(_NUMBER.match, value)):
        yield _numbered(value, path)
        return
    if _are_scored(value) and _SCORES.search(path):
        yield Told.of(f"keys({path})", "items"), [*value]
        return
    columns = _columns_of(value, path)
    yield from columns.values()
    for name, inner in value.items():
        if not (_COLUMN.search(name) and _COLUMN.sub("", name) in columns):
            yield from leaves_of(inner, path_of(name, path))


def _named_values(listed: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields that a list has as pairs of a name and a value."""
    rows = listed if isinstance(listed, list) else []
    keys = {tuple(sorted(row)) if isinstance(row, dict) else () for row in rows}
    for name, held in _NAMES_AND_VALUES.intersection(keys) if len(keys) == 1 else ():
        for row in rows:
            field, value = row[name], row[held]
            if isinstance(field, str) and _PLAIN_NAME.match(field):
                word = _NO_LETTER.sub("", field.lower())
                yield Told.of(f"{path}[?{name} == '{field}'].{held} | [0]", word), value


def _are_slots(value: dict[str, Any]) -> bool:
    """Tell whether objects alike with an item each stand in an object, by the names of places."""
    keys = {tuple(one) if isinstance(one, dict) else () for one in value.values()}
    alike = len(value) > 2 and len(keys) == 1
    return alike and any(name_of(item) != "id" for item in item_ids([*value.values()]))


def _are_scored(value: dict[str, Any]) -> bool:
    """Tell whether the names in an object are ids with a score each: {"p1": 0.5, "p2": 0.4}."""
    types = {*map(type, value.values())}  # JavaScript writes 1 for 1.0
    return len(value) > 1 and types in ({float}, {float, int}) and all(map(_DIGIT.search, value))


def _with_pairs(path: str, value: Any) -> tuple[str, Any]:
    """Return a path and its value, or the objects in items and a number each: [["a", 0.5]].

    They may also stand in a text, as a:0.5,b:0.4 or a-0 b-1, or be objects: [{"a": 0.5}]. What is
    no list of items by its name is left alone.
    """
    rows, at, steps, types = value, path, ("[0]", "[1]"), _PAIRS
    if isinstance(value, list) and all(isinstance(one, dict) and len(one) == 1 for one in value):
        named = [[*pair] for one in value for pair in one.items()]
        if len({name for name, _ in named}) > 1:  # else it is a field
            rows, steps = named, ("keys(@)[0]", "values(@)[0]")
    if isinstance(value, str) and _SCORED.fullmatch(value):
        (listed, parts), between = _in_parts(path, value), ":" if ":" in value else "-"
        rows, at = [part.split(between) for part in parts], Told.of(listed, name_of(path))
        steps = f"split(@, '{between}')[0]", f"split(@, '{between}')[1]"
        types = [[str, str]]
    are_pairs = isinstance(rows, list) and rows and all(_types_of(row) in types for row in rows)
    if not (are_pairs and paths_of("items", {path: []}, list)):
        return path, value
    item, label = Told.of(steps[0], "itemid"), Told.of(steps[1], "label")
    return at, [{item: one, label: number} for one, number in rows]


def _types_of(row: Any) -> list[type]:
    """Return the types in a list; none for another value."""
    return [*map(type, row)] if isinstance(row, list) else []


def _columns_of(value: dict[str, Any], path: str) -> dict[str, tuple[str, list[Any]]]:
    """Return the list of items that stands in columns, `item_1` to `item_9`, by its name."""
    columns: dict[str, list[str]] = {}
    for name, one in value.items():
        if _COLUMN.search(name) and isinstance(one, str | int | None):
            columns.setdefault(_COLUMN.sub("", name), []).append(name)
    found: dict[str, tuple[str, list[Any]]] = {}
    for name, each in columns.items():
        each.sort(key=lambda one: (len(one), one))  # by number
        word = name_of(path_of(name, path))
        ids = [value[one] for one in each if value[one]]
        if len(each) > 2 and len({*ids}) == len(ids) and word in _OF_COLUMNS:
            listed = ", ".join(path_of(one, path) for one in each)
            found[name] = Told.of(f"[{listed}{_ALL_COLUMNS}", "items"), ids
    return found


def in_most_columns(read: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose lists in columns have the path of the longest such list."""
    paths = {path for leaves in read for path in leaves if path.endswith(_ALL_COLUMNS)}
    longest = {
        path: max(
            (one for one in paths if one.startswith(path.removesuffix(_ALL_COLUMNS))), key=len
        )
        for path in paths
    }
    return [{longest.get(path, path): one for path, one in leaves.items()} for leaves in read]


def path_of(name: str, above: str) -> str:
    """Return the path of a field of the object at the path `above`; "" is the message."""
    step = name if isinstance(name, Told) or _PLAIN_NAME.match(name) else json.dumps(name)
    return f"{above}.{step}" if above else step


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
        words += [name for path, name in names.items() if _OF_TIME.match(path.rpartition(".")[2])]
    exact = [path for word in words for path, name in names.items() if name == word]
    long = tuple(word for word in words if len(word) >= _LONG_WORD.get(field, _LONG))
    found = exact or [path for path, name in names.items() if name.endswith(long)]
    if field == "ts" and not found:
        times = [path for path, value in fields.items() if is_written_time(value)]
        numbers = (path for path, value in fields.items() if is_epoch(value))
        return times or [path for path in numbers if not name_of(path).endswith("id")]
    return found


def name_of(path: str) -> str:
    """Return the last name of a path in letters, with its owner's where both are one: `user.id`."""
    if isinstance(path, Told):
        return path.word
    before, *rest = _LAST.split(path)
    parts = [_TYPE.sub("", part.lower()) for part in (_LAST.split(before)[-1], *rest)]
    letters = [_NO_LETTER.sub("", part) for part in parts]
    names = [_SAME_AS_ID.sub("id", name) for name in letters]
    together = "".join(names)
    if len(names) > 1 and _OF_TIME.match(names[-1]):  # as Firestore and Protobuf have it
        return names[0]
    return together if together in _KNOWN else names[-1]


def above(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message as a part of it names them."""
    return {
        path.below(f"$.{path}") if isinstance(path, Told) else f"$.{path}": value
        for path, value in fields.items()
    }
