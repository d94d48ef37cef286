"""Rows that are remembered by key: the same as computed anew, in bounded memory."""

import numpy as np
import pytest

from streameval.core.windows import memory as memory_module
from streameval.core.windows.memory import RowMemory


def rows_of(key):
    return [(key, number) for number in range(key % 4)]


class Counting:
    """A memory of `rows_of` that counts the keys it computes."""

    def __init__(self):
        self.computed = []
        self.memory = RowMemory(2, self.compute)

    def compute(self, keys):
        self.computed += keys
        found = [rows_of(key) for key in keys]
        flat = [row for rows in found for row in rows]
        return list(map(len, found)), np.array(flat, np.int64).reshape(-1, 2)

    def of(self, keys):
        owners, rows = self.memory.of(keys)
        return list(zip(owners.tolist(), map(tuple, rows.tolist()), strict=True))


def expected(keys):
    return [(index, row) for index, key in enumerate(keys) for row in rows_of(key)]


def test_each_key_gives_its_rows_in_order_and_is_computed_once():
    it = Counting()
    for keys in ([], [4], [7, 1, 7, 4, 2], [2, 2], [1, 8, 3]):
        assert it.of(keys) == expected(keys)
    assert sorted(it.computed) == [1, 2, 3, 4, 7, 8]


def test_rows_that_are_given_out_can_be_changed():
    it = Counting()
    _, rows = it.memory.of([3])
    rows *= -1
    assert it.of([3]) == expected([3])


def test_keys_that_repeat_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(memory_module, "MAX_REMEMBERED", 5)
    it = Counting()
    it.of([1, 2])
    assert it.of([1] * 9 + [3] * 9) == expected([1] * 9 + [3] * 9)
    assert it.computed == [1, 2, 3]


@pytest.mark.parametrize("bound", [1, 5, 40])
def test_a_full_memory_forgets_and_gives_the_same_rows(monkeypatch, bound):
    monkeypatch.setattr(memory_module, "MAX_REMEMBERED", bound)
    it, random = Counting(), np.random.default_rng(bound)
    for _ in range(100):
        keys = random.integers(30, size=random.integers(12)).tolist()
        assert it.of(keys) == expected(keys)
        assert len(it.memory._numbers) <= max(bound, 12)
        assert len(it.memory._rows) <= 2 * (max(bound, 12) + 3 * 12)
    assert len(it.computed) > 30, "some were forgotten"
