"""A late experiment, filled from outcome files, is the experiment that was there from the start.

The same streams, cuts, deaths and definitions as in `test_experiments`, and real files. The worker
dies anywhere in the fill; the time from which the experiment counts tells where to go on.
"""

import asyncio
import contextlib
import dataclasses
import random
from pathlib import Path

import msgspec
import pytest
from test_compare_arms import _counted
from test_experiments import Worker, cuts, in_one_span, watched

from streameval.base.steps import drain
from streameval.core.checkpoint import checkpoint, restore
from streameval.core.experiments.sums import COUNTS
from streameval.core.experiments.users import ArmUsers
from streameval.core.outcome import Span
from streameval.files.outcome_files import OutcomeFolder, pseudonyms
from streameval.worker import experiment_fill
from streameval.worker.experiment_fill import ExperimentFill

# A seed takes some 0.6 s.
FLOOR = 8


def folder(root, definition, **options):
    about = {"version": "1", "definition": definition.described()}
    return OutcomeFolder(str(root), {}, about, definition.labels, **options)


class Filling(Worker):
    """A worker whose slates go to files with its checkpoints."""

    number = 0
    filled = frozenset()

    def __init__(self, definition, rng, files):
        super().__init__(definition, rng)
        self.files = files
        self.start_anew()

    def start_anew(self):
        self.state = type(self.state)(self.definition, journal=True, keep_outcomes=True)

    def checkpoint(self):
        self.state.flush()
        rows = self.state.outcomes_of(drain(self.state.finalizing()))
        self.checkpoints += 1
        saved = checkpoint(self.state, str(self.checkpoints))
        if rows:
            span = Span(0, self.at, len(self.log), f"{self.checkpoints:x}")
            self.files.write(span, rows)
            self.files.publish(span.name)
        self.chunks |= saved.chunks
        self.header, self.at = saved.header, len(self.log)
        # Those of the header are stored by the next commit.
        self.users.add(list(self.state.experiments.visits))

    def commit(self):
        if self.rng.random() < 0.1:
            self.checkpoint()

    def die(self):
        self.state = restore(self.definition, self.header, self.chunks, keep_outcomes=True)
        self.filled = set()
        for again in cuts(self.log[self.at :], self.rng):
            self.state.apply(again)
        self.state.flush()

    # --- what the fill sees of a partition

    @property
    def can_fill(self):
        return True

    def fill(self, found, visits, begin):
        if self.rng.random() < 0.3:
            raise DiedError
        self.state.experiments.fill(found, visits, begin)
        if self.rng.random() < 0.5:
            self.checkpoint()
        if self.rng.random() < 0.3:
            raise DiedError


async def at_once(call, *arguments):
    """Call as if a thread had done it."""
    return call(*arguments)


class DiedError(Exception):
    """The worker was killed."""


def fill(worker):
    """Fill until nothing is left, and die now and then."""
    filler = ExperimentFill(worker.files, worker.definition, {0: worker})

    async def until_done():
        running = asyncio.ensure_future(filler.run())
        while not running.done():
            gaps = {gap.experiment.key for gap in worker.state.experiments.gaps()}
            if gaps <= worker.filled:
                running.cancel()
            await asyncio.sleep(0)
        with contextlib.suppress(asyncio.CancelledError):
            await running

    while True:
        try:
            asyncio.run(until_done())
        except DiedError:
            worker.die()
        else:
            return


def again_and_again(seed):
    """A hostile stream three times, far enough apart for slates of the first to become final."""
    definition, events = watched(seed)
    span = max(event.ts for event in events) - min(event.ts for event in events)
    step = definition.horizon // 2 + span + random.Random(seed).randrange(3_600_000)
    return definition, [
        msgspec.structs.replace(event, ts=event.ts + number * step)
        for number in range(3)
        for event in events
    ]


def late(seed, root, user=None, **options):
    """A worker with experiments that were added late, the rest of its events, and one that had all.

    An arm that was not read before is not in the files, so other experiments read it.
    """
    definition, events = again_and_again(seed)
    rng = random.Random(f"fill of {seed}")
    split = rng.randrange(len(events) // 2, len(events))
    moments = [None, *(event.ts for event in events[: len(events) // 2])]
    some = tuple(
        dataclasses.replace(experiment, since=rng.choice(moments), until=None)
        for experiment in definition.experiments
    )
    some = tuple(
        dataclasses.replace(one, until=one.since + rng.randrange(1, 8_000_000))
        if one.since is not None and rng.random() < 0.3
        else one
        for one in some
    )
    before = tuple(
        dataclasses.replace(one, name=f"reads {one.arm}", arm=arm)
        for arm, one in {one.arm: one for one in some}.items()
    )
    files = folder(root, definition, user=user)
    worker = Filling(dataclasses.replace(definition, experiments=before), rng, files)
    definition = dataclasses.replace(definition, experiments=(*before, *some))
    for batch in cuts(events[:split], rng):
        worker.apply(batch)
        if rng.random() < 0.1:
            worker.checkpoint()
    worker.checkpoint()
    worker.definition = definition
    worker.die()
    whole = Worker(definition, random.Random(0))
    whole.apply(events)
    return worker, whole, events[split:]


def test_a_filled_experiment_is_one_that_was_there_from_the_start(seed, tmp_path, monkeypatch):
    """The sums to the bit, the users, and the earliest slate; whether it is idle or goes on."""
    monkeypatch.setattr(experiment_fill, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    monkeypatch.setattr(OutcomeFolder, "_sync", lambda *_: None)
    worker, whole, rest = late(seed, tmp_path)
    if worker.rng.random() < 0.5:
        fill(worker)
    worker.run(rest)
    fill(worker)
    for found, wanted in zip(worker.arms(), whole.arms(), strict=True):
        if found.experiment.since is None and found.counts_from is not None:
            continue  # it counts from then on
        assert found.state()["sums"] == wanted.state()["sums"], found.experiment
        assert found.earliest == wanted.earliest
        assert found.state()["extremes"] == wanted.state()["extremes"]
        assert [getattr(found, name) for name in COUNTS] == [
            getattr(wanted, name) for name in COUNTS
        ]
        key = found.experiment.key
        counts = [one.users.counts.get(key, ArmUsers()) for one in (worker, whole)]
        assert _counted(counts[0]) == _counted(counts[1])
        assert in_one_span(*counts) == in_one_span(*reversed(counts))


@pytest.fixture
def one(tmp_path, monkeypatch):
    """A worker with gaps that files fill, if nothing is wrong with them."""
    monkeypatch.setattr(experiment_fill, "PAUSE_SECONDS", 0)
    worker, _, _ = late(0, tmp_path)
    assert worker.state.experiments.gaps(), "something is missing"
    return worker


def counted_from(worker):
    return [arms.counts_from for arms in worker.state.experiments.arm_sums]


def test_what_files_cannot_give_exactly_stays_missing(one):
    """Pseudonyms, another definition, and an arm that the files do not have."""
    before = counted_from(one)
    other = dataclasses.replace(one.definition, gains={"click": 7.0})
    root = one.files.root
    for files in (
        folder(root, one.definition, user=pseudonyms(b"key")),
        folder(root, other),
        folder(f"{root}/nothing", one.definition),
    ):
        one.files, one.filled = files, set()
        fill(one)
        assert one.filled == {gap.experiment.key for gap in one.state.experiments.gaps()}
        assert counted_from(one) == before


def test_files_that_were_written_with_pseudonyms_fill_nothing(tmp_path, monkeypatch):
    """Also once `pseudonymize` is gone: each user would count twice."""
    monkeypatch.setattr(experiment_fill, "PAUSE_SECONDS", 0)
    worker, _, _ = late(0, tmp_path, user=pseudonyms(b"key"))
    assert worker.state.experiments.gaps(), "something is missing"
    before = counted_from(worker)
    worker.files, worker.filled = folder(worker.files.root, worker.definition), set()
    fill(worker)
    assert counted_from(worker) == before


def test_a_damaged_file_ends_the_fill_with_a_line(one, caplog):
    before = counted_from(one)
    for file in Path(one.files.root).rglob("*.parquet"):
        whole = file.read_bytes()
        file.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    fill(one)
    assert counted_from(one) == before
    assert "experiment e0: " in caplog.text
    assert ".parquet: " in caplog.text
