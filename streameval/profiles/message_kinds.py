"""What kinds of messages there are, and what each says that somebody did."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from streameval.profiles.language import in_yaml
from streameval.profiles.message_fields import (
    WHO,
    above,
    act_of,
    all_lists,
    examples_of,
    has_several,
    ids_in,
    kind_of,
    leaves_of,
    lists_of_items,
    name_of,
    names_of_lists,
    own_ids,
    paths_of,
    read_json,
    values_at,
    values_in_lists,
)
from streameval.profiles.message_times import is_time

# So many kinds of messages are few; of many messages, a tenth of them is.
_FEW: Final = 20
# The end of the name of a time.
_NAME_OF_TIME: Final = re.compile(
    r"(?i:[_\s](at|on|ts|time|date|timestamp)|time(stamp)?)(_?ms|Ms|Millis)?\Z|(?<=[a-z])(At|Ts|Date)\Z"
)
# The field at the beginning of a path that goes on below it.
_OBJECT: Final = re.compile(r"([A-Za-z_]\w*)\.", re.ASCII)


def kind_path(read: Sequence[dict[str, Any]]) -> str | None:
    """Return the path that tells events apart: by what its values say, then by its name.

    Of many messages each kind has several: other values are titles of items, or addresses. What is
    in lists is an item, as one that was taken.
    """
    acts: dict[str, Counter[str]] = {}
    values: dict[str, Counter[str]] = {}
    for leaves in read:
        for path, value in leaves.items():
            if isinstance(value, str):
                values.setdefault(path, Counter())[value] += 1
            if act := act_of(value):
                acts.setdefault(path, Counter())[act] += 1
    named = paths_of("kind", examples_of(read))
    few = [path for path in acts if len(values[path]) <= max(_FEW, values[path].total() / 10)]
    told = [path for path in few if path in named or len(acts[path]) > 1]
    told += [path for path in few if path not in told and _is_kind(path, acts[path], values[path])]
    if told:
        return max(told, key=lambda path: (len(acts[path]), path in named, acts[path].total()))
    listed = {one for leaves in read for one in values_in_lists(leaves)}
    named = [path for path in named if path not in values or not values[path].keys() <= listed]
    named = [path for path in named if name_of(path) != "name" or not WHO.search(path)]
    return named[0] if named else None


def kind_in_short(value: bytes) -> object:
    """Return what tells the kind of one message, without a look at others: a name, or its fields.

    Of a line of columns it is which ones are filled.
    """
    message = read_json(value)
    if not isinstance(message, dict):
        return tuple(number for number, cell in enumerate(value.split(b"\t")) if cell)
    leaves = dict(leaves_of(message, ""))
    lists = (value for value in leaves.values() if isinstance(value, list))
    parts = (dict(leaves_of(one, "")) for each in lists for one in each if isinstance(one, dict))
    return _kind_by_name(leaves) or frozenset(map(_kind_by_name, parts)) or tuple(leaves)


def _kind_by_name(leaves: dict[str, Any]) -> str:
    return next((str(leaves[path]) for path in paths_of("kind", leaves) if leaves[path]), "")


def _is_kind(path: str, acts: Counter[str], values: Counter[str]) -> bool:
    """Tell whether a name ends as that of a kind does, and all values are feedback."""
    is_named = name_of(path).endswith(("type", "kind", "action"))
    return is_named and acts.total() == values.total() and acts.keys().isdisjoint({"shown", "view"})


def tells(read: Sequence[dict[str, Any]], *, most: bool = False) -> bool:
    """Tell whether a message has a name that says what somebody did, or whether most have one."""
    kind = kind_path(read)
    count = sum(bool(act_of(leaves.get(kind or ""))) for leaves in read)
    return 2 * count > len(read) if most else count > 0


def acts_by_name(
    groups: Mapping[str, list[dict[str, Any]]],
    words: Mapping[str, str],
    kind: str | None,
    users: Container[str],
) -> dict[str, str]:
    """Return what the messages of each kind say that somebody did, by a word or by their kind.

    What has no items shows none where others have them, as a search that is an event of its own.
    `users` are paths of their ids that no name tells.
    """
    acts = {
        said: act_of(words.get(said) or group[0].get(kind or "")) for said, group in groups.items()
    }
    shows = [said for said, act in acts.items() if act in {"shown", "view"}]
    empty = [said for said in shows if not has_items(groups[said], users)]
    lists = [said for said in with_lists(groups, acts) if said not in shows]
    if not lists and len(empty) == len(shows):
        taken = [leaves for said in acts if acts[said] == "click" for leaves in groups[said]]
        alike = {said for said in shows if _share_ids(taken, groups[said], users)}
        empty = [said for said in shows if said not in alike] if alike else []
    return acts | dict.fromkeys(empty, "")


def with_lists(groups: Mapping[str, list[dict[str, Any]]], acts: Mapping[str, str]) -> list[str]:
    """Return the kinds whose lists may be what was shown, though their names do not say so.

    Other messages have a value of such a list, or it has the name of one: the fields of a form are
    in nothing else.
    """
    found = [said for said in acts if acts[said] in {"", "view"} and has_several(groups[said])]
    others = [leaves for said, group in groups.items() if said not in found for leaves in group]
    elsewhere = {str(one) for leaves in others for one in leaves.values()}
    elsewhere |= {str(one) for leaves in others for one in values_in_lists(leaves)}
    shared = [
        said
        for said in found
        if any(str(one) in elsewhere for leaves in groups[said] for one in values_in_lists(leaves))
    ]
    named = [said for said in found if lists_of_items(examples_of(groups[said]))]
    return shared or named or ([] if {*acts.values()} - {"", "shown", "view"} else found)


def has_items(group: Sequence[dict[str, Any]], users: Container[str]) -> bool:
    """Tell whether messages have a list, or the id of an item by its name, which no user has."""
    items = paths_of("item_id", examples_of(group))
    lists = (name for leaves in group for name in names_of_lists(leaves))
    return any(path not in users for path in items) or any(True for _ in lists)


def tags_of(read: Sequence[dict[str, Any]], kind: str | None) -> tuple[list[str], dict[str, str]]:
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
    said = [leaves for leaves in kinds if _shows(leaves)] or kinds  # a login is of no item
    acts = {act_of(leaves[kind]) for leaves in said}
    if rest and not acts & {"", "shown", "view"} and _shows(examples_of(rest)):
        return [_lacks(kind) if without else "" for without in lacks], {_lacks(kind): "shown"}
    return [""] * len(read), {}


def _tags_by_fields(read: Sequence[dict[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """Return what tells the kind of messages without a kind, as above: those of several topics.

    It is the name of a time, as `clickedAt`, or the id of what was done, as `click_id`, that others
    lack. Or some have lists: others are clicks, most likely.
    """
    if taken_times(read):
        return [""] * len(read), {}
    tags = [telling_time(leaves) for leaves in read]
    if len({*tags}) > 1:
        known = examples_of(leaves for leaves, tag in zip(read, tags, strict=True) if tag)
        tags = [tag or _own_time(leaves, known) for leaves, tag in zip(read, tags, strict=True)]
        return tags, {tag: _NAME_OF_TIME.sub("", tag) for tag in tags if tag}
    ids = [path for path in own_ids(read) if _is_of_feedback(path)]
    tags = [(path if leaves.get(path) else _lacks(path)) for leaves in read for path in ids]
    if len(ids) == 1 < len({*tags}):
        return tags, {tag: "shown" if tag.startswith("!") else act_of(tag) for tag in tags}
    lists = [next(chain(lists_of_items(leaves), _lists(leaves)), ("",))[0] for leaves in read]
    if "" not in lists or len({*lists}) != 2:
        return [""] * len(read), {}
    path = max(lists)
    return [one or _lacks(path) for one in lists], {path: "shown", _lacks(path): "click"}


def _lacks(path: str) -> str:
    """Return the condition that a message has nothing at a path."""
    return f"!({path})" if "." in path else f"!{path}"


def _shows(fields: dict[str, Any]) -> bool:
    """Tell whether messages have items."""
    return bool(all_lists(fields) or paths_of("item_id", fields))


def _is_of_feedback(path: str) -> bool:
    """Tell whether a path is by its name the id of feedback."""
    return name_of(path).endswith("id") and act_of(path) not in {"", "shown", "view"}


def _own_time(leaves: dict[str, Any], known: dict[str, Any]) -> str:
    """Return the path of a time that messages of known kinds lack, as `openedAt`; "" without."""
    return next((path for path in _named_times(leaves) if path not in known), "")


def _lists(leaves: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the lists of a message, whatever they are of."""
    yield from ((path, value) for path, value in leaves.items() if isinstance(value, list))


def telling_time(leaves: dict[str, Any]) -> str:
    """Return the path of a time whose name says what was done: of a click before its list's."""
    told = [path for path in _named_times(leaves) if act_of(path)]
    return min(told, key=lambda path: act_of(path) == "shown", default="")


def taken_times(read: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return what was done to the items of rows by the paths of its times, none without such rows.

    Each item or list that was shown has one row, with the time of that, and the others where they
    came.
    """
    fields = examples_of(read)
    acts = {path: act_of(path) for path in _named_times(fields)}
    shown = [path for path, act in acts.items() if act == "shown"][:1]
    lists = [path for path, _ in lists_of_items(fields) if path in fields]
    rows = {
        (leaves.get(path), str(leaves.get(item) or ""))
        for item in (lists or paths_of("item_id", fields))[:1]
        for path in shown
        for leaves in read
    }
    if len(rows) < len(read) or any(not all(row) for row in rows):
        return {}
    return {path: act for path, act in acts.items() if act not in {"", "shown"}}


def _named_times(leaves: dict[str, Any]) -> list[str]:
    """Return the paths of times by name and value: a `play_time` may be how long it played."""
    return [path for path, one in leaves.items() if _NAME_OF_TIME.search(path) and is_time(one)]


def acts_of(
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
    several = with_lists(groups, acts)
    for said in several:  # "suggestions" shows its suggestions
        is_list = any(name in said.lower() for name in names_of_lists(groups[said][0]))
        if said in words or ((is_list or len(several) == 1) and "shown" not in acts.values()):
            acts[said] = acts[said] or "shown"
    if not several and (view := shown_by_views(groups, acts)):
        acts[view] = "shown"
    shown: set[str] = set()
    shows = [said for said, act in acts.items() if act == "shown"] or several
    for leaves in chain(*map(groups.__getitem__, shows)):
        shown.update(*map(ids_in, leaves.values()), map(str, values_in_lists(leaves)))
    for said in [said for said, act in acts.items() if not act and said not in shows]:
        fields = examples_of(groups[said])
        item, *_ = (*paths_of("item_id", fields), "")
        if {str(one) for one, _ in values_at(item, groups[said])} & shown:
            acts[said] = kind_of(words.get(said) or str(fields.get(kind or "", said)))
    return acts


def groups_of(
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
                {kind: leaves.get(kind), **dict(leaves_of(part, "")), **above(leaves)}
                for leaves in group
                if isinstance(leaves.get(path), list)
                for part in leaves[path]
            ]
    return groups, several


def _has_lists(value: Any) -> bool:
    """Tell whether the objects of a list have lists of items."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and bool(lists_of_items(dict(leaves_of(first, ""))))


def shown_by_views(groups: Mapping[str, Sequence[Any]], acts: Mapping[str, str]) -> str | None:
    """Return the kind of views that shows items where nothing else does, as those of banners.

    Pages are viewed less often than what leads to them.
    """
    if "click" not in acts.values() or "shown" in acts.values():
        return None
    views = [said for said, act in acts.items() if act == "view"]
    return max(views, key=lambda said: len(groups[said]), default=None)


def _share_ids(
    group: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], users: Container[str]
) -> bool:
    """Tell whether messages of two kinds have a value in common, but of a user, a time or all."""
    fields = examples_of([*group, *other])
    unlike = {*paths_of("user_id", fields), *paths_of("ts", fields)}
    return any(
        values_at(path, group) & values_at(path, other)
        for path in fields
        if path not in users and path not in unlike and len(values_at(path, [*group, *other])) > 1
    )
