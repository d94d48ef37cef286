"""Sums of final slates: those of the oracle's slates before wm - H, each exactly once."""

import random
from collections import defaultdict

import numpy as np
from streams import accepted, cuts, hostile, permute_within_lateness

from streameval.base.limits import CLUSTERS
from streameval.core.checkpoint import checkpoint, restore
from streameval.core.metrics import Scorer, order_ranks
from streameval.core.oracle.slates import history
from streameval.core.partition import Partition, drained
from streameval.core.windows.cells import cluster_of


def expected(definition, events):
    """By segment: impressions, slates, positives by kind, slates with a positive, scores."""
    known = history(definition, events)
    scorer = Scorer(definition.ks, definition.ndcg_gain)
    kinds = definition.kinds
    rows = 3 + len(kinds) + len(scorer.columns)
    found = defaultdict(lambda: np.zeros((rows, CLUSTERS), np.int64))
    for slate in known.slates:
        if slate.time >= known.watermark - definition.horizon:
            continue
        sums, cluster = found[slate.segment], cluster_of(slate.user_id)
        sums[0, cluster] += len(slate.items)
        sums[1, cluster] += slate.request_id is not None
        gains = {}
        for item, one in slate.items.items():
            for kind in one.positives():
                sums[2 + kinds.index(kind), cluster] += 1
                gains[item] = max(gains.get(item, 0.0), definition.gain(kind))
        if gains and slate.request_id is not None:
            shown = slate.items.items()
            ranks = order_ranks((item, one.position, one.ts) for item, one in shown)
            ranked = sorted((ranks[item], gain) for item, gain in gains.items() if gain > 0)
            row = tuple(rank for rank, _ in ranked), tuple(gain for _, gain in ranked)
            sums[2 + len(kinds), cluster] += 1
            sums[3 + len(kinds) :, cluster] += scorer.score([row])[0]
    return found


def sums_of(partition):
    drained(partition.finalizing())
    (sums,) = partition.finals
    return sums.by_segment


def assert_sums(found, wanted):
    assert found.keys() == wanted.keys()
    for segment, sums in wanted.items():
        assert (found[segment] == sums).all(), segment


def test_the_sums_are_those_of_the_oracles_final_slates_however_it_is_cut(seed):
    definition, events = hostile(seed)
    rng = random.Random(f"finals of {seed}")
    partition = Partition(definition, journal=True, keep_sums=True)
    header, chunks, applied = None, {}, 0
    for batch in cuts(events, rng):
        partition.apply(batch)
        applied += len(batch)
        if rng.random() < 0.6:
            partition.flush()
            if rng.random() < 0.5:
                assert_sums(sums_of(partition), expected(definition, events[:applied]))
            if rng.random() < 0.4:
                saved = checkpoint(partition, str(applied))
                chunks |= saved.chunks
                header, at = saved.header, applied
            if header is not None and rng.random() < 0.3:  # a worker dies, another reads again
                partition = restore(definition, header, chunks, keep_sums=True)
                for again in cuts(events[at:applied], rng):
                    partition.apply(again)
                partition.flush()
    partition.flush()
    assert_sums(sums_of(partition), expected(definition, events))


def test_the_order_of_arrival_within_l_changes_no_bit(seed):
    definition, events = hostile(seed)
    rng = random.Random(f"orders of {seed}")
    events = accepted(events, definition)
    permuted = permute_within_lateness(events, definition, rng)
    found = []
    for order in (events, permuted):
        partition = Partition(definition, keep_sums=True)
        for batch in cuts(order, rng):
            partition.apply(batch)
            partition.flush()
        found.append(dict(sums_of(partition)))
    assert_sums(*found)
