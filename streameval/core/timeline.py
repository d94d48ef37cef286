"""Values in the order of a key: adding, finding and removing one takes O(log n) comparisons.

One user can have all the traffic (a bot, or one id for everybody who is not logged in), so nothing
here may grow faster than the logarithm of that user's open slates: neither comparisons nor the
memory that an insertion shifts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

if TYPE_CHECKING:
    from streameval.core.slate import Slate

# Values in a block at most: shifting so many costs less than one comparison in Python, and a walk
# through a block is the constant part of a search.
BLOCK: Final = 64
# Pairs that are sorted in one go, in 2 ms.
RUN: Final = 4_096

K = TypeVar("K")
V = TypeVar("V")


class Timeline(Generic[V]):
    """Values in ascending order of their key, each key once, in blocks of at most `BLOCK`."""

    __slots__ = ("_firsts", "_keys", "_values")

    def __init__(self) -> None:
        self._keys: list[list[Any]] = []
        self._values: list[list[V]] = []
        self._firsts: list[Any] = []

    def __bool__(self) -> bool:
        """Return whether the timeline holds anything."""
        return bool(self._firsts)

    def __iter__(self) -> Iterator[V]:
        """Yield all values, in order."""
        for values in self._values:
            yield from values

    def filling(self, pairs: Sequence[tuple[Any, V]]) -> Iterator[None]:
        """Enter pairs of key and value, in any order, into an empty timeline.

        Adding one after the other would be slower. The method yields for every `BLOCK` pairs.
        """
        runs = []
        for start in range(0, len(pairs), RUN):
            runs.append(sorted(pairs[start : start + RUN], key=_first))
            for _ in range(0, len(runs[-1]), BLOCK):
                yield
        ordered = merge(*runs, key=_first)
        while part := list(islice(ordered, BLOCK // 2)):
            keys, values = map(list, zip(*part, strict=True))
            self._insert(len(self._firsts), keys, values)
            yield

    def add(self, key: Any, value: V) -> None:
        """Enter a value; it replaces the value of the same key."""
        if not self._firsts:
            self._insert(0, [key], [value])
            return
        number = max(0, bisect_right(self._firsts, key) - 1)
        keys, values = self._keys[number], self._values[number]
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            values[at] = value
            return
        if len(keys) < BLOCK:
            keys.insert(at, key)
            values.insert(at, value)
            self._firsts[number] = keys[0]
        elif at == len(keys) and number == len(self._keys) - 1:
            self._insert(number + 1, [key], [value])  # in order of arrival: blocks stay full
        else:
            half = BLOCK // 2
            self._insert(number + 1, keys[half:], values[half:])
            del keys[half:], values[half:]
            self.add(key, value)

    def discard(self, key: Any) -> None:
        """Remove the value of a key, if it is there."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return
        keys = self._keys[number]
        at = bisect_left(keys, key)
        if at == len(keys) or keys[at] != key:
            return
        del keys[at], self._values[number][at]
        if keys:
            self._firsts[number] = keys[0]
        else:
            self._remove(number)

    def get(self, key: Any) -> V | None:
        """Return the value of exactly this key."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return None
        keys = self._keys[number]
        at = bisect_left(keys, key)
        return self._values[number][at] if at < len(keys) and keys[at] == key else None

    def latest(self, key: Any) -> V | None:
        """Return the value with the largest key up to `key`."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return None
        return self._values[number][bisect_right(self._keys[number], key) - 1]

    def next(self, key: Any) -> V | None:
        """Return the value with the smallest key from `key` on."""
        number = max(0, bisect_right(self._firsts, key) - 1)
        if number == len(self._keys):
            return None
        at = bisect_left(self._keys[number], key)
        if at == len(self._keys[number]):
            number, at = number + 1, 0
        return self._values[number][at] if number < len(self._keys) else None

    def _insert(self, number: int, keys: list[Any], values: list[V]) -> None:
        """Make these a block, the one of that number."""
        self._firsts.insert(number, keys[0])
        self._keys.insert(number, keys)
        self._values.insert(number, values)

    def _remove(self, number: int) -> None:
        """Drop an empty block."""
        del self._firsts[number], self._keys[number], self._values[number]


class Timelines(dict[K, V | Timeline[V]]):
    """Timelines by name, in a dict: the only value of a name stands there itself.

    A subclass defines the key of a value. The key never changes while the value is here.
    """

    __slots__ = ()
    key_of: ClassVar[Any]

    def add(self, name: K, value: V) -> None:
        """Enter a value under a name."""
        group = self.get(name)
        if group is None:
            self[name] = value
        elif isinstance(group, Timeline):
            group.add(self.key_of(value), value)
        else:
            timeline: Timeline[V] = Timeline()
            self[name] = timeline
            for each in (group, value):
                timeline.add(self.key_of(each), each)

    def discard(self, name: K, value: V) -> None:
        """Remove a value, if it is there."""
        group = self.get(name)
        if isinstance(group, Timeline):
            group.discard(self.key_of(value))
            if not group:
                del self[name]
        elif group is value:
            del self[name]

    def find(self, name: K, key: Any) -> V | None:
        """Return the value of exactly this key."""
        group = self.get(name)
        if isinstance(group, Timeline):
            return group.get(key)
        return group if group is not None and self.key_of(group) == key else None

    def latest(self, name: K, key: Any) -> V | None:
        """Return the value with the largest key up to `key`."""
        group = self.get(name)
        if isinstance(group, Timeline):
            return group.latest(key)
        return group if group is not None and self.key_of(group) <= key else None

    def next(self, name: K, key: Any) -> V | None:
        """Return the value with the smallest key from `key` on."""
        group = self.get(name)
        if isinstance(group, Timeline):
            return group.next(key)
        return group if group is not None and self.key_of(group) >= key else None

    def all(self, name: K) -> Iterator[V]:
        """Yield the values of a name, in order."""
        group = self.get(name)
        if isinstance(group, Timeline):
            yield from group
        elif group is not None:
            yield group

    def everything(self) -> Iterator[V]:
        """Yield the values of all names."""
        for name in self:
            yield from self.all(name)


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


class SlatesOfItem(Timeline["Slate"]):
    """The slates of one user that show one item, the latest impression first.

    The key is (-ms of the impression, request): at equal times the smaller request comes first. A
    search wants the first slate from a time on that is not too old. Any number of older slates can
    stand before it, because an item may be shown long after its slate began. So a tree over the
    blocks says which of them hold a slate that is young enough.
    """

    __slots__ = ("_tops", "_tree")

    def __init__(self) -> None:
        super().__init__()
        # For each block a bound: all its slates are at or before it. The bound may be too high,
        # because slates move back in time and leave.
        self._tops: list[int] = []
        # A heap of maxima over `_tops`, made when it is needed; [] where it is not up to date.
        self._tree: list[int] = []

    def add(self, key: Any, value: Slate) -> None:
        """Enter a slate."""
        super().add(key, value)
        number = bisect_right(self._firsts, key) - 1
        if value.time > self._tops[number]:
            self._set_top(number, value.time)

    def nearest(self, ts: int, oldest: int) -> Slate | None:
        """Return the slate shown last at or before `ts` whose time is from `oldest` on."""
        key = (-ts,)
        number = max(0, bisect_right(self._firsts, key) - 1)
        if number == len(self._keys):
            return None
        values = self._values[number]
        for at in range(bisect_left(self._keys[number], key), len(values)):
            if values[at].time >= oldest:
                return values[at]
        while True:
            number = self._reaching(number + 1, oldest)
            if number == len(self._values):
                return None
            for slate in self._values[number]:
                if slate.time >= oldest:
                    return slate
            self._set_top(number, max(slate.time for slate in self._values[number]))

    def _reaching(self, number: int, oldest: int) -> int:
        """Return the first block from `number` on that reaches `oldest`; else how many blocks."""
        size = len(self._tops)
        if number >= size:
            return size
        if not self._tree:
            self._plant()
        tree = self._tree
        leaves = len(tree) // 2
        node = number + leaves
        while tree[node] < oldest:
            while node & 1:
                node >>= 1
            if node == 0:
                return size
            node += 1
        while node < leaves:
            node *= 2
            if tree[node] < oldest:
                node += 1
        return node - leaves

    def _plant(self) -> None:
        leaves = 1 << (len(self._tops) - 1).bit_length()
        level = self._tops + [-1] * (leaves - len(self._tops))
        levels = [level]
        while len(level) > 1:
            level = list(map(max, level[::2], level[1::2]))
            levels.append(level)
        self._tree = [-1]
        for level in reversed(levels):
            self._tree += level

    def _set_top(self, number: int, top: int) -> None:
        self._tops[number] = top
        tree = self._tree
        if not tree:
            return
        node = number + len(tree) // 2
        tree[node] = top
        while node > 1:
            node //= 2
            tree[node] = max(tree[2 * node], tree[2 * node + 1])

    def _insert(self, number: int, keys: list[Any], values: list[Slate]) -> None:
        super()._insert(number, keys, values)
        self._tops.insert(number, max(slate.time for slate in values))
        self._tree = []

    def _remove(self, number: int) -> None:
        super()._remove(number)
        del self._tops[number]
        self._tree = []
