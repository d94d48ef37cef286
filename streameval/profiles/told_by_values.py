"""The ids of users, items and lists that no name tells, found by their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from streameval.profiles.message_fields import (
    ENOUGH,
    ID_LENGTH,
    WHO,
    Told,
    all_lists,
    columns_of_lists,
    examples_of,
    flags_of,
    has_several,
    item_of,
    leaves_of,
    lists_of_items,
    name_of,
    names_of_lists,
    paths_of,
    values_at,
)
from streameval.profiles.message_kinds import shown_by_views, with_lists
from streameval.profiles.message_times import is_epoch, is_written_time

Fields = dict[str, Any]
"""The values of a message, by their paths."""

# The end of the name of an id, whatever it is of, and what is no item and no list.
_ID: Final = re.compile(r"(id|identifier|key|token|ur[iln]|hash|slug)\Z|\Aid")
_OTHER: Final = re.compile(
    r"session|visit|page|device|campaign|app(lication)?(?=(id|key|token)?\Z)|site|shop|store|order|cart"
)
# What is an item where nothing else may be one.
_RARELY: Final = re.compile(r"campaign|app|shop|store")
# The names of an address, which tells a user where nothing else does.
_ADDRESSES: Final = {"email", "emailaddress", "useremail"}
# This share of the items of a list is in it once: a few come twice.
_ONCE: Final = 0.9


def ids_told_by_values(
    groups: Mapping[str, list[Fields]], acts: Mapping[str, str], users: Sequence[str]
) -> dict[str, Told]:
    """Find the ids of items and lists whose names tell nothing: feedback has those that were shown.

    `groups` are the messages of each kind, and `acts` what a kind says, as `act_of`.
    """
    read = _all_of(groups)
    shown, feedback = _shown_and_feedback(groups, acts, users)
    if not shown and not feedback and flags_of(read):
        shown = feedback = {"": read}
    paths = examples_of(read)
    of_one_user = {
        path for path in paths if len(values_at(path, read, users)) == len(values_at(path, read))
    }
    listed = _listed(_all_of(shown))
    if not listed and (shared := _shared(_all_of(shown), users)):
        return shared | ids_told_by_values(renamed(groups, shared), acts, users)
    own = _own(read)
    items: dict[str, list[str]] = {}
    beside = set[str]()
    for group in sorted(feedback.values(), key=len, reverse=True):
        examples = examples_of(group)
        named = paths_of("item_id", examples)[:1]
        fields = {path: one for path, one in examples.items() if path not in {*users, *own}}
        if items.keys() & fields.keys():
            continue  # more messages have told it
        for path in (found := _items_told(group, fields, _all_of(shown), listed, of_one_user)):
            items[path] = named
        if named and not found:  # what is beside an item is another thing
            beside.update(fields)
    if not (items or listed or paths_of("item_id", examples_of(read))):
        unlikely = of_one_user | {*users, *own}
        found = _most_in_both(_all_of(shown), _all_of(feedback), unlikely)
        items = {path: [] for path in found}
    items = {path: named for path, named in items.items() if path not in beside}
    wrong = {path for named in items.values() for path in named if path not in beside}
    told = {path: Told.of(path, "") for path in wrong - items.keys()}
    told |= {path: Told.of(path, "itemid") for path in items}
    others = {*users, *(items or paths_of("item_id", examples_of(_all_of(feedback)))[:1])}
    lists = _lists_told(shown, _all_of(feedback), of_one_user - others, whole=bool(listed))
    known = {one for path in lists for one in values_at(path, _all_of(shown))}
    unnamed = [path for path in lists if not paths_of("request_id", {path: ""})]
    elsewhere = {path for path in unnamed if not values_at(path, _all_of(feedback)) & known}
    # Feedback of a list has its id at another path, and its own at this one.
    told |= {path: Told.of(path, "list" if path in elsewhere else "requestid") for path in unnamed}
    among = [*feedback.values(), *(() if lists else shown.values())] if shown else []
    return _misnamed(read, among, known) | _of_pages(read) | told


def _of_pages(read: Sequence[Fields]) -> dict[str, Told]:
    """Return the paths of ids that all rows of a moment share, where another one tells the items.

    An ad is on the page of a document, and both have names of items.
    """
    fields = examples_of(read)
    named, times = paths_of("item_id", fields), paths_of("ts", fields)[:1]
    moments: dict[Any, list[Fields]] = {}
    for leaves in read if len(named) > 1 and times and not all_lists(fields) else ():
        moments.setdefault(leaves.get(times[0]), []).append(leaves)
    several = [rows for rows in moments.values() if len(rows) > 1]
    alike = [path for path in named if all(len(values_at(path, rows)) == 1 for rows in several)]
    told = len(several) >= ENOUGH and len(alike) < len(named)
    return {path: Told.of(path, "") for path in alike if told}


def _lists_told(
    shown: Mapping[str, list[Fields]], feedback: list[Fields], may_be: set[str], *, whole: bool
) -> list[str]:
    """Return the paths of a list's id, in what shows it and in feedback; none if there is no id.

    `may_be` are the paths to look at, whose values have one user each. No two `whole` lists of a
    kind have one id, and impressions of one list have. Of several that may be an id any will do.
    """
    all_shown = _all_of(shown)
    ids: dict[str, set[tuple[Any, ...]]] = {}
    for path, example in examples_of(all_shown).items():
        before = values_at(path, all_shown)
        alone = sum(len(values_at(path, each)) for each in shown.values()) == _count(
            path, all_shown
        )
        # One that each list has alone needs no name of an id, if it is no time.
        tells = _are_long(before) and not (is_written_time(example) or is_epoch(example))
        if path in may_be and (alone or not whole) and (_may_be_id(path) or (whole and tells)):
            ids[path] = before
    known = {one for before in ids.values() for one in before}
    here = {path: values_at(path, feedback) for path in examples_of(feedback) if path in may_be}
    here = {path: found for path, found in here.items() if _may_be_id(path) or found & known}
    elsewhere = set().union(*here.values())
    ids = {path: before for path, before in ids.items() if before & elsewhere}
    # At best both have it at one path.
    ids = {path: known for path, known in ids.items() if here.get(path, set()) & known} or ids
    named = paths_of("request_id", examples_of(all_shown))
    lists = [path for path in named if _count(path, all_shown)][:1]
    count = len(values_at(lists[0], all_shown)) if lists else 0
    of = _count(lists[0], all_shown) if lists else 0
    if whole and 2 * count < of:
        lists = []  # many lists share it, as the name of a place
    several = {path: known for path, known in ids.items() if len(known) < _count(path, all_shown)}
    if not whole and several and count in {0, of}:
        lists, ids = [], several  # what each impression has alone is not of a list
    if ids and not lists:
        lists = [max(ids, key=lambda path: len(ids[path]))]
    known = {one for path in lists for one in values_at(path, all_shown)}
    return lists + [path for path, found in here.items() if found & known and path not in lists]


def _misnamed(
    read: list[Fields], groups: Iterable[list[Fields]], known: set[tuple[Any, ...]]
) -> dict[str, Told]:
    """Return the paths whose names say that they are ids of lists or items, and wrongly so.

    No list has the values that they have in `groups` of messages; `known` are the ids of lists. Or
    they are the ids of the messages themselves.
    """
    found = [
        path
        for group in groups
        for path, example in examples_of(group).items()
        if paths_of("request_id", {path: example}) and not values_at(path, group) & known
    ]
    own = _own(read)
    if len(paths_of("item_id", examples_of(read))) > len(own):
        found += own
    return {path: Told.of(path, "") for path in found}


def _shared(shown: list[Fields], users: Sequence[str]) -> dict[str, Told]:
    """Return the ids of recommendations of which most have several users: those of items."""
    return {
        path: Told.of(path, "id")
        for path in paths_of("request_id", examples_of(shown))
        if name_of(path).startswith("rec")
        and 2 * len(values_at(path, shown, users)) > 3 * len(values_at(path, shown))
    }


def _own(read: Sequence[Fields]) -> list[str]:
    """Return the paths of the ids of messages, by the name of an item's id; few tell none."""
    items = [path for path in paths_of("item_id", examples_of(read)) if name_of(path) == "id"]
    return [path for path in items if len(values_at(path, read)) == _count(path, read) >= ENOUGH]


def _count(path: str, group: Sequence[Fields]) -> int:
    """Return how many messages have something at a path."""
    return sum(leaves.get(path) is not None for leaves in group)


def _items_told(
    group: Sequence[Fields],
    fields: Fields,
    shown: Sequence[Fields],
    listed: set[tuple[Any, None]],
    of_one_user: set[str],
) -> list[str]:
    """Return the path of the item's id in feedback of one kind, where no name tells it.

    `fields` are examples of what may have it, and `of_one_user` the paths whose values have one
    user each, as lists do.

    There are more items than lists. Of two paths with as many values none is taken. A name is wrong
    where another path has the items that were shown, as for a click on the page of a product.
    """
    if lists_of_items(fields):
        return []
    plurals = {name for leaves in shown for name in names_of_lists(leaves)}
    ids, hits, rare = {}, {}, set[str]()
    named = paths_of("item_id", fields)[:1]
    for path, example in fields.items():
        here, before = values_at(path, group), values_at(path, shown)
        is_one = path in named or f"{name_of(path)}s" in plurals
        is_list = paths_of("request_id", {path: example})
        if not is_one and not _may_be_id(path):
            rare.add(path)
        found = [one in listed for one in _each_at(path, group)]
        always = len(found) == len(group) and all(found) and _are_long(here)
        if is_one or always or (not is_list and _may_be_id(path, rarely=True)):
            hits[path] = sum(found)
            if here & (listed or before):
                ids[path] = here | before
    best = max(hits.values(), default=0)
    if named and 2 * hits[named[0]] >= best:
        return []
    names = {name_of(item_of(inner)) for inner in map(_inner, shown)}
    ids = {path: known for path, known in ids.items() if not named or hits[path] == best}
    # An impression has an id as its item has; a list has only items.
    apart = {path for path in ids if path not in of_one_user or listed}
    of_several = {path for path in apart if len(ids[path]) > 1}
    likely = ids.keys() - rare
    ids = {path: ids[path] for path in of_several - rare or of_several or likely or ids}
    return _most({path: known for path, known in ids.items() if name_of(path) in names} or ids)


def _most_in_both(
    shown: Sequence[Fields], feedback: Sequence[Fields], unlikely: set[str]
) -> list[str]:
    """Return the path with the most values that were shown and taken, whatever its name says."""
    both = {}
    for path, example in examples_of(feedback).items():
        here, before = values_at(path, feedback), values_at(path, shown)
        is_text = isinstance(example, str) and not is_written_time(example)
        if (
            path not in unlikely
            and is_text
            and _are_long(before)
            and 2 * len(here & before) > len(here)
        ):
            both[path] = before
    return _most(both)


def _listed(shown: Sequence[Fields]) -> set[tuple[Any, None]]:
    """Return the values in lists that may be ids of items: an item is in a list once.

    Lists of one each are no lists where what was shown has an item of its own.
    """
    values: dict[str, set[Any]] = {}
    lists, counts, distinct = Counter[str](), Counter[str](), Counter[str]()
    for leaves in shown:
        for path, found in columns_of_lists(leaves):
            lists[path] += 1
            counts[path] += len(found)
            distinct[path] += len({*found})
            values.setdefault(path, set()).update(found)
    least = lists if paths_of("item_id", examples_of(shown)) else Counter[str]()
    ids = [
        path for path, count in counts.items() if distinct[path] > max(_ONCE * count, least[path])
    ]
    return {(one, None) for path in ids for one in values[path]}


def renamed(groups: Mapping[str, list[Fields]], told: dict[str, Told]) -> dict[str, list[Fields]]:
    """Return messages with the paths that are told."""
    return {
        said: [{told.get(path, path): value for path, value in one.items()} for one in group]
        for said, group in groups.items()
    }


def told_by_feedback(
    groups: Mapping[str, list[Fields]], acts: Mapping[str, str], users: Sequence[str]
) -> dict[str, list[Fields]]:
    """Return messages that tell an item by the id that feedback has of it, whatever its name.

    In a list, each object has that id once more, at a path that tells it. Parameters are as above.
    """
    shown, feedback = _shown_and_feedback(groups, acts, users)
    taken = {
        str(one)
        for group in feedback.values()
        for path in paths_of("item_id", examples_of(group))[:1]
        for one, _ in values_at(path, group)
    }
    found = {**groups}
    for said, group in shown.items():
        fields = examples_of(group)
        for path in [path for path, one in fields.items() if isinstance(one, list)]:
            objects = [
                dict(leaves_of(one, "")) for leaves in group for one in _objects(leaves, path)
            ]
            if column := _column_taken(objects, taken):
                found[said] = [_with_column(leaves, path, column) for leaves in found[said]]
        if not lists_of_items(fields) and (column := _column_taken(group, taken)):
            found |= renamed({said: groups[said]}, {column: Told.of(column, "itemid")})
    return found


def _column_taken(rows: Sequence[Fields], taken: set[str]) -> str:
    """Return the path of the values that were taken; "" where it is the one that names tell."""
    fields = examples_of(rows)
    hits = {
        path: len(taken & {str(one) for one, _ in found})
        for path in fields
        if _are_long(found := values_at(path, rows))  # a place is like an id by chance
    }
    best = max(hits, key=hits.__getitem__, default="")
    is_known = not best or 2 * hits.get(item_of(fields), 0) >= hits[best]
    return "" if is_known or 2 * hits[best] <= len(taken) else best


def _objects(leaves: Fields, path: str) -> list[dict[str, Any]]:
    """Return the objects in a list of a message."""
    listed = leaves.get(path)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _with_column(leaves: Fields, path: str, column: str) -> Fields:
    """Return a message in whose list each object has its value at `column` as an item's id, too."""
    told = Told.of(column, "itemid")
    objects = [{told: dict(leaves_of(one, "")).get(column)} | one for one in _objects(leaves, path)]
    return {**leaves, path: objects} if objects else leaves


def _all_of(groups: Mapping[str, list[Fields]]) -> list[Fields]:
    """Return the messages of all kinds."""
    return [leaves for group in groups.values() for leaves in group]


def _are_long(ids: set[tuple[Any, ...]]) -> bool:
    """Tell whether values are so long that they are others by no chance."""
    return all(len(str(one)) >= ID_LENGTH for one, *_ in ids)


def _shown_and_feedback(
    groups: Mapping[str, list[Fields]], acts: Mapping[str, str], users: Sequence[str]
) -> tuple[dict[str, list[Fields]], dict[str, list[Fields]]]:
    """Return the messages that show something, and those of feedback, of each kind.

    Feedback says so, or has an id that was shown.
    """
    shown = {said: group for said, group in groups.items() if acts[said] == "shown"}
    if not shown:
        shown = {
            said: [leaves for leaves in groups[said] if has_several([leaves])]
            for said in with_lists(groups, acts)
        }
    if not shown and (view := shown_by_views(groups, acts)):
        shown = {view: groups[view]}
    all_shown = _all_of(shown)
    listed = _listed(all_shown)
    ids = [path for path in examples_of(all_shown) if _may_be_id(path) and path not in users]
    known = {path: values_at(path, all_shown) for path in ids}
    is_shown = {*map(id, all_shown)}

    def is_feedback(said: str, leaves: Fields) -> bool:
        if id(leaves) in is_shown:
            return False
        if acts[said] or not listed.isdisjoint(_scalars(leaves)):
            return True
        return not listed and any(values_at(path, [leaves]) & known[path] for path in ids)

    feedback = {
        said: found
        for said, group in groups.items()
        if (found := [leaves for leaves in group if is_feedback(said, leaves)])
    }
    return shown, feedback


def _may_be_id(path: str, *, rarely: bool = False) -> bool:
    """Tell whether a path may be the id of an item, a list or a user, also if it `rarely` is."""
    name = name_of(path)
    is_other = _OTHER.search(name) and not (rarely and _RARELY.search(name))
    return bool(_ID.search(name)) and not is_other


def users_told(read: Sequence[Fields]) -> dict[str, Told]:
    """Find the id of a user whose own name tells nothing: by what it stands in, or its values."""
    fields = examples_of(read)
    sessions = paths_of("user_id", fields)
    if any("session" not in path.lower() for path in sessions):
        return {}
    found = [
        path
        for path, value in fields.items()
        if WHO.search(path) and isinstance(value, str | int) and not isinstance(value, bool)
    ]
    found = (
        found or [path for path in fields if name_of(path) in _ADDRESSES] or _told_by_lists(read)
    )
    for session in sessions:  # a session has one user
        found = [path for path in found if path not in sessions and _has_one(read, session, path)]
    best = min(
        found, key=lambda path: (_unlikely_user(path), len(values_at(path, read)) == 1), default=""
    )
    same = {best, f"$.{best}", best.removeprefix("$.")}  # of a part, the message has it
    return {path: Told.of(path, "userid") for path in found if path in same}


def _has_one(read: Sequence[Fields], path: str, other: str) -> bool:
    """Tell whether each value at a path has one value at the other beside it."""
    pairs = values_at(path, [leaves for leaves in read if leaves.get(other)], [other])
    return len(pairs) == len({one for one, _ in pairs}) > 0


def _unlikely_user(path: str) -> int:
    """Return how unlikely a path is the id of what it stands in: least for an id."""
    name = name_of(path)
    return 0 if _ID.search(name) else 1 if WHO.fullmatch(name) else 2


def _told_by_lists(read: Sequence[Fields]) -> list[str]:
    """Return the path of an id that all messages have, of which each has several lists.

    Where only one id may be of users it is taken.
    """
    values: dict[str, list[Any]] = {}
    for path, example in examples_of(read).items():
        found = [leaves.get(path) for leaves in read]
        is_item = paths_of("item_id", {path: example}) and not path.lower().endswith(
            (".id", ".ref")
        )
        is_id = _may_be_id(path) and not is_item
        if is_id and all(isinstance(one, str | int) for one in found):
            values[path] = found
    counts = {path: len({*found}) for path, found in values.items()}
    users = [path for path, count in counts.items() if 2 < count < len(read)]
    users = [path for path in users if not paths_of("request_id", {path: ""})]
    several = [
        path
        for path in users
        for other in values
        if counts[other] > counts[path]
        and len({*zip(values[other], values[path], strict=True)}) == counts[other] < len(read)
    ]
    several = several or (users if len(users) == 1 else [])
    return [max(several, key=counts.__getitem__)] if several else []


def _each_at(path: str, group: Sequence[Fields]) -> Iterator[tuple[Any, None]]:
    """Yield the values at a path that may be ids."""
    yield from ((leaves[path], None) for leaves in group if isinstance(leaves.get(path), str | int))


def _inner(leaves: Fields) -> dict[str, Any]:
    """Return the fields of the first object in the likeliest list of items."""
    first = next((first for _, first in lists_of_items(leaves)), None)
    return dict(leaves_of(first, "")) if isinstance(first, dict) else {}


def _scalars(leaves: Fields) -> Iterator[tuple[Any, None]]:
    """Yield the values of a message that may be ids."""
    yield from ((one, None) for one in leaves.values() if isinstance(one, str | int))


def _most(ids: dict[str, set[tuple[Any, ...]]]) -> list[str]:
    """Return the path with the most values, if there is one."""
    most = max(map(len, ids.values()), default=0)
    found = [path for path, values in ids.items() if len(values) == most]
    return found if len(found) == 1 else []
