"""Sums of scores by key: the same as a dict's, whatever is added and taken back."""

from collections import defaultdict

import numpy as np
import pytest

from streameval.core.windows.tables import SparseTotals, Table


def test_a_row_whose_sum_is_zero_is_found_again_while_room_is_made():
    sums = SparseTotals(1)
    first = Table(np.arange(256, dtype=np.int32), np.ones((1, 256), np.int64))
    sums.add(first, 1)
    sums.add(first, -1)
    sums.add(Table(np.array([0, 256], np.int32), np.array([[5, 7]])), 1)
    assert sums.of(np.array([0, 1, 255, 256]))[:, 0].tolist() == [5, 0, 0, 7]


@pytest.mark.parametrize("number", range(10))
def test_sums_are_those_of_a_dict_in_any_order(number):
    chance = np.random.default_rng(number)
    sums, known, added = SparseTotals(2), defaultdict(lambda: np.zeros(2, np.int64)), []
    for _ in range(60):
        sign = 1
        if added and chance.random() < 0.5:
            rows, sign = added.pop(int(chance.integers(len(added)))), -1
        else:
            size = int(chance.integers(1, 200))
            keys = chance.integers(0, 4_000, size).astype(np.int32)
            rows = Table(keys, chance.integers(0, 9, (2, size)))
            added.append(rows)
        sums.add(rows, sign)
        for key, values in zip(rows.keys.tolist(), rows.values.T, strict=True):
            known[key] += sign * values
        everything = np.arange(4_000)
        expected = np.array([known[key] for key in range(4_000)])
        assert (sums.of(everything) == expected).all()
