"""All users of a partition, read while a worker goes on counting.

Keys come from SCAN. Counters come a thousand users at a time, from a script that returns the
partition's offset with them. Whatever happens meanwhile, each row is exact at the offset beside it.
A scan that saw one offset only is consistent as a whole; it is tried a few times. A user who is not
among the rows had no counters at the first offset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from streameval.base.errors import UnreachableError
from streameval.core.experiments.first_lists import FirstList

# Users of one call: it blocks Redis for a few ms, as a commit does.
USERS_A_CALL: Final = 1_000
KEYS_A_CALL: Final = 5_000
ATTEMPTS: Final = 3

# A key that is not there: in a cluster a node from which its slot is moving refuses it.
STAYS: Final = "return redis.call('EXISTS', KEYS[1] .. ':none')"
_READ: Final = """
redis.call('EXISTS', KEYS[1] .. ':none')
local rows = {redis.call('HGET', KEYS[1], 'offset')}
for number = 2, #ARGV do rows[number] = redis.call('HGETALL', ARGV[1] .. ARGV[number]) end
return rows
"""


class UserRow(NamedTuple):
    """The hash of one user at `offset` of the partition; times in ms.

    `arms` has by experiment the arms of the user, with the first list in each.
    """

    user: str
    offset: int
    impressions: int
    slates: int
    positives: dict[str, int]
    first_ts: int
    last_ts: int
    arms: Mapping[str, Mapping[str, FirstList]] = {}


class UserScan(NamedTuple):
    """All users of a partition; consistent as a whole where `begin` is `end`."""

    begin: int
    end: int
    rows: list[UserRow]


async def scan_users(
    names_of: Callable[[str], Awaitable[list[str] | None]],
    script: Callable[[str, str, Sequence[Any]], Awaitable[Any]],
    partition_key: str,
    prefix: str,
) -> UserScan:
    """Read every user below `prefix`; `names_of` and `script` ask Redis.

    Where names are None, the keys moved to another server, and are read again. Raises
    `UnreachableError` where they still do.
    """
    found: UserScan | None = None
    for _ in range(ATTEMPTS):
        first: list[Any] = await script(_READ, partition_key, [prefix])
        begin = end = int(first[0] or 0)
        rows: list[UserRow] = []
        names = await names_of(prefix)
        if names is None:
            continue
        for at in range(0, len(names), USERS_A_CALL):
            portion = names[at : at + USERS_A_CALL]
            answer: list[Any] = await script(_READ, partition_key, [prefix, *portion])
            end = int(answer[0] or 0)
            rows += _rows(portion, answer[1:], end)
        found = UserScan(begin, end, rows)
        if begin == end:
            break
    if found is None:
        raise UnreachableError(f"the keys {prefix}* move from server to server: ask again")
    return found


def _rows(names: Sequence[str], found: Sequence[list[bytes]], offset: int) -> Iterator[UserRow]:
    for name, flat in zip(names, found, strict=True):
        row = parse_user(name, offset, zip(flat[::2], flat[1::2], strict=True))
        if row is not None:
            yield row


def parse_user(user: str, offset: int, found: Iterable[tuple[bytes, bytes]]) -> UserRow | None:
    """Parse fields and values of a user's hash; None for one without counters.

    Its time to live may have ended since its key was seen. One that was made anew since may hold
    arms alone, and one of a commit that was applied in part may hold `first_ts` alone.
    """
    fields = {key.decode(): value for key, value in found}
    if "last_ts" not in fields:
        return None

    def below(prefix: str) -> dict[str, bytes]:
        return {
            key.removeprefix(prefix): value
            for key, value in fields.items()
            if key.startswith(prefix)
        }

    return UserRow(
        user,
        offset,
        int(fields.get("impressions", 0)),
        int(fields.get("slates", 0)),
        {kind: int(count) for kind, count in below("positives:").items()},
        int(fields["first_ts"]),
        int(fields["last_ts"]),
        {name: _first_lists(packed) for name, packed in below("first:").items()},
    )


def _first_lists(packed: bytes) -> dict[str, FirstList]:
    found = msgspec.msgpack.decode(packed, type=dict[str, list[int]])
    return {arm: (time, tuple(values)) for arm, (time, *values) in found.items()}
