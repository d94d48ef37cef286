"""The engine equals the oracle on hostile streams, in whatever way the events come in.

Each test runs once a seed (see conftest): the stream as it arrives, other orders within L,
redelivery, all cuts into batches, readings in between, and checkpoint + restore at any cut.
"""

import random
from collections.abc import Iterable, Sequence

import pytest
from oracle import nowcast as oracle_nowcast
from oracle.figures import oracle
from streams import accepted, cuts, hostile, permute_within_lateness, redeliver

from streameval.core import checkpoint as checkpoint_module
from streameval.core import ledger, nowcast, relevance, users
from streameval.core.checkpoint import checkpoint, restore
from streameval.core.figures import SECTIONS, figures
from streameval.core.nowcast import ArrivalCurves
from streameval.core.partition import Partition
from streameval.core.sums import merge
from streameval.core.windows import panes

SEEDS = 150  # of each property; STREAMEVAL_SEEDS=2000 for a change of the core

# --- what is equal -------------------------------------------------------------------------------


def assert_same(document, expected, *, but: Sequence[str] = ()):
    """Integers and ranking figures to the bit; the mean over users to 1e-12, errors to 1e-9."""
    document, expected = _without_split(document), _without_split(expected)
    assert document.keys() == expected.keys()
    for part in expected.keys() - set(but):
        if part in SECTIONS:
            assert_same_rows(part, document[part], expected[part])
        else:
            assert document[part] == expected[part], part


def _without_split(document):
    """Sum up unattributed feedback: why it is so is a diagnostic."""
    events = dict(document["events"])
    events["unattributed"] = sum(events["unattributed"].values())
    return document | {"events": events}


def assert_same_rows(part, rows, expected):
    assert [_place(row) for row in rows] == [_place(row) for row in expected], part
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys(), (part, _place(row))
        for name, value in other.items():
            figure = other.get(name.removesuffix("_stderr"))
            is_same = _same(name, row[name], value, figure or 0.0)
            assert is_same, (part, _place(row), name, row[name], value)


def _place(row):
    labels = ("window", "basis", "variant", "surface", "feedback", "k", "rank")
    return [(name, row[name]) for name in labels if name in row]


def _same(name, value, expected, figure):
    if value is None or expected is None:
        return value is expected
    if name.endswith("_stderr"):  # below 1e-15 of the figure it counts as rounding, and is 0
        return value == pytest.approx(expected, rel=1e-9, abs=max(1e-12, 1e-15 * abs(figure)))
    if name == "positive_rate":
        return abs(value - expected) <= 1e-12
    return value == expected


# --- running the engine --------------------------------------------------------------------------


class Counters:
    """What the users' counters in the store come to: the deltas of every flush, added up."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.users = {}

    def add(self, deltas: Iterable[list]):
        for user_id, impressions, slates, first_ts, last_ts, *positives in deltas:
            zero = {
                "impressions": 0,
                "slates": 0,
                "positives": dict.fromkeys(self.kinds, 0),
                "first_ts": first_ts,
                "last_ts": last_ts,
            }
            user = self.users.setdefault(user_id, zero)
            user["impressions"] += impressions
            user["slates"] += slates
            user["first_ts"] = min(user["first_ts"], first_ts)
            user["last_ts"] = max(user["last_ts"], last_ts)
            for kind, count in zip(self.kinds, positives, strict=True):
                user["positives"][kind] += count


def run(definition, batches, *, flush_share=1.0, rng=None, at=None):
    """Feed the batches, flush after some of them, and print the document at T."""
    rng = rng or random.Random(0)
    partition = Partition(definition)
    counters = Counters(definition.kinds)
    for batch in batches:
        partition.apply(batch)
        if rng.random() < flush_share:
            counters.add(partition.flush())
    counters.add(partition.flush())
    return partition.document(at, counters.users)


class Log:
    """A log with its committed offset, counters and checkpoint: what outlives a worker."""

    def __init__(self, definition, events, rng):
        self.definition = definition
        self.events = events
        self.rng = rng
        self.committed = 0
        self.counters = Counters(definition.kinds)
        self.header = None
        self.checkpointed = 0
        self.chunks = {}

    def start(self):
        """A new worker: restore, then read again up to the committed offset, state only."""
        if self.header is None:
            partition = Partition(self.definition, journal=True)
        else:
            partition = restore(self.definition, self.header, self.chunks)
        for batch in cuts(self.events[self.checkpointed : self.committed], self.rng):
            partition.apply(batch)
            if self.rng.random() < 0.5:
                partition.flush()
        partition.flush()
        return partition

    def commit(self, end, deltas, saved):
        self.counters.add(deltas)
        self.committed = end
        if saved is not None:
            self.chunks |= saved.chunks
            self.chunks = {name: self.chunks[name] for name in saved.keep}
            self.header, self.checkpointed = saved.header, end


def run_with_kills(definition, events, rng):
    """Work through the log with checkpoints, and with kills before and after any commit."""
    log = Log(definition, events, rng)
    kills, saves = rng.choice((0.05, 0.3)), rng.choice((0.1, 0.5, 1.0))
    longest = rng.choice((1, 5, 30, len(events)))
    partition = log.start()
    while log.committed < len(events):
        end = min(len(events), log.committed + rng.randint(0, longest))
        partition.apply(events[log.committed : end])
        deltas = partition.flush()
        saved = checkpoint(partition, f"{end}-{rng.random()}") if rng.random() < saves else None
        if rng.random() < kills:  # the chunks may be there, the pointer was not flipped
            log.chunks |= saved.chunks if saved is not None else {}
            partition = log.start()
            continue
        log.commit(end, deltas, saved)
        if rng.random() < kills:
            partition = log.start()
    return log.start().document(users=log.counters.users)


def drawn(seed):
    definition, events = hostile(seed)
    return definition, events, random.Random(f"cuts of {seed}")


@pytest.fixture(autouse=True)
def _tidy_up_often(seed, monkeypatch):
    """The streams are too small for nowcasts, for slates that are not followed, for cells to be
    renumbered, for rows to be summed up, and for several parts of a flush or chunks of a
    checkpoint: all but the first for half."""
    for module in (nowcast, oracle_nowcast):
        monkeypatch.setattr(module, "MIN_DELAYS", 1 + seed % 3)
        monkeypatch.setattr(module, "MIN_SEGMENT_DELAYS", 3)
    if seed % 2:
        for module in (relevance, oracle_nowcast):
            monkeypatch.setattr(module, "MAX_FOLLOWED", 2)
        monkeypatch.setattr(ledger, "SCORE_SLICE", 3)
        monkeypatch.setattr(checkpoint_module, "CHUNK_RECORDS", 3)
        monkeypatch.setattr(panes, "SMALLEST_RENUMBERING", 2)
        monkeypatch.setattr(panes, "MAX_PIECES", 2)


# --- the properties ------------------------------------------------------------------------------


def test_the_stream_as_it_arrives_gives_the_oracles_figures(seed):
    definition, events, _ = drawn(seed)
    assert_same(run(definition, [events]), oracle(definition, events))


def test_the_cuts_into_batches_change_nothing(seed):
    definition, events, rng = drawn(seed)
    expected = oracle(definition, events)
    assert_same(run(definition, [[event] for event in events]), expected)
    for flush_share in (1.0, 0.3):
        document = run(definition, cuts(events, rng), flush_share=flush_share, rng=rng)
        assert_same(document, expected)


def test_the_order_of_arrival_within_l_changes_nothing(seed):
    definition, events, rng = drawn(seed)
    events = accepted(events, definition)
    expected = oracle(definition, events)
    for _ in range(3):
        permuted = permute_within_lateness(events, definition, rng)
        document = run(definition, cuts(permuted, rng), flush_share=0.7, rng=rng)
        assert_same(document, expected)


def test_an_index_of_slates_by_item_changes_nothing(seed, monkeypatch):
    """As if every user had too many open slates to look through."""
    monkeypatch.setattr(users, "MANY_SLATES", seed % 3)
    definition, events, rng = drawn(seed)
    expected = oracle(definition, events)
    assert_same(run(definition, [[event] for event in events]), expected)
    assert_same(run(definition, cuts(events, rng), flush_share=0.7, rng=rng), expected)


def test_redelivery_changes_the_event_counters_only(seed):
    definition, events, rng = drawn(seed)
    expected = oracle(definition, events)
    again = redeliver(events, rng)
    document = run(definition, cuts(again, rng), flush_share=0.7, rng=rng)
    assert_same(document, expected, but=["events"])
    assert_same(document, oracle(definition, again))


def test_the_clock_moves_t_on_for_reading_only(seed):
    """Readings ahead of the watermark while events still come in, and one at the end."""
    definition, events, rng = drawn(seed)
    spans = [definition.horizon, *(window.size for window in definition.windows)]
    end = max(event.ts for event in events)
    at = end + rng.choice((0, 1, rng.choice(spans), rng.randint(0, 2 * max(spans))))
    partition, counters = Partition(definition), Counters(definition.kinds)
    for batch in cuts(events, rng):
        partition.apply(batch)
        counters.add(partition.flush())
        if rng.random() < 0.2:
            partition.sums(rng.choice((None, end, rng.randint(events[0].ts, at))))
    assert_same(partition.document(at, counters.users), oracle(definition, events, at=at))


def test_figures_of_partitions_with_disjoint_users_add_up(seed):
    definition, events, rng = drawn(seed)
    events = accepted(events, definition)
    end = max(event.ts for event in events)
    partitions = [Partition(definition) for _ in range(rng.choice((2, 3)))]
    home = {user: rng.choice(partitions) for user in sorted({event.user_id for event in events})}
    for event in events:
        home[event.user_id].apply([event])
    for partition in partitions:
        partition.flush()
    curves = ArrivalCurves(definition, [partition.delays(end) for partition in partitions])
    found = figures(definition, merge(partition.sums(end, curves) for partition in partitions))
    expected = oracle(definition, events)
    for part in SECTIONS:
        assert_same_rows(part, found[part], expected[part])


def test_checkpoint_and_restore_at_any_cut_change_nothing(seed):
    definition, events, rng = drawn(seed)
    assert_same(run_with_kills(definition, events, rng), oracle(definition, events))
