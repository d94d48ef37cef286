"""Outcome files: each slate that can no longer change stands in them exactly once.

The oracle's slates whose time has passed A + L before the checkpoint's watermark are what the files
must hold, whatever was killed when: in the core, in a model of every fault, on real servers.
"""

import asyncio
import contextlib
import json
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow.parquet
import pytest
from default_events import DIMENSIONS, ImpressionEvent, SlateEvent
from pyarrow import fs
from streams import cuts, hostile
from world import World, simulate

from streameval.base.durations import utc
from streameval.base.errors import InputError, RefusedError, UnreachableError
from streameval.base.limits import MAX_LOGGED_FEEDBACK
from streameval.base.steps import drain
from streameval.config.settings import Settings
from streameval.core.checkpoint import checkpoint, restore
from streameval.core.definition import Definition
from streameval.core.events import FeedbackEvent, SlateItem
from streameval.core.metrics import order_ranks
from streameval.core.oracle import history
from streameval.core.outcome import FeedbackOutcome, Outcome, Span
from streameval.core.partition import Partition
from streameval.files import outcome_files
from streameval.files.outcome_files import OutcomeFolder, dataset, pseudonyms, schema_of
from streameval.worker.outcome_writer import OutcomeWriter
from streameval.worker.snapshot_job import needed_from

SEEDS = 100
OWNER = {"group": "g", "topic": "t"}
HOUR = 3_600_000
TIME = 472_222 * HOUR  # 2023-11-14T22:00Z


# --- what the oracle says the files hold ---------------------------------------------------------


def expected(definition, events, offsets, *, closed=True):
    """The oracle's slates that can no longer change (or those that can), as comparable rows."""
    known = history(definition, events)
    if known.watermark is None:
        return []
    opened = _offset_by_arrival(definition, events, offsets)
    over = known.watermark - definition.horizon
    return sorted(
        _row(definition, slate, opened[slate.arrival])
        for slate in known.slates
        if (slate.time < over) == closed
    )


def _offset_by_arrival(definition, events, offsets):
    """The offset of the record of each accepted impression, in order of arrival."""
    found, watermark = [], 0
    for event, offset in zip(events, offsets, strict=True):
        if event.ts >= watermark - definition.allowed_lateness:
            watermark = max(watermark, event.ts)
            if not isinstance(event, FeedbackEvent):
                found += [offset] * (len(event.items) or 1 if isinstance(event, SlateEvent) else 1)
    return found


def _row(definition, slate, offset):
    shown = slate.items
    ranks = order_ranks((item, one.position, one.ts) for item, one in shown.items())
    items = tuple(
        (
            ranks[item],
            item,
            one.position or 0,
            one.ts,
            max((definition.gain(kind) for kind in one.positives()), default=0.0),
        )
        for item, one in sorted(shown.items(), key=lambda pair: ranks[pair[0]])
    )
    feedback = sorted(
        (item, kind, event.value, event.ts - slate.time, event.retract)
        for item, one in shown.items()
        for kind, events in one.feedback.items()
        for event in events
    )
    request = slate.request_id or ""
    return slate.user_id, request, slate.time, offset, slate.segment, items, feedback


def plain(definition, row):
    """The same of a row of ours, an `Outcome` or a dictionary read from a file."""
    row = row if isinstance(row, dict) else _as_dictionary(definition, row)
    items = tuple(
        (rank, item, position or 0, shown, gain)
        for rank, item, position, shown, gain in zip(
            row["ranks"],
            row["items"],
            row["positions"],
            row["shown"],
            row["gains"],
            strict=True,
        )
    )
    feedback = sorted(
        (row["items"][one["item"]], one["kind"], one["value"], one["delay"], one["retract"])
        for one in row["feedback"]
    )
    segment = tuple(row[name] or "" for name in definition.dimensions)
    return (
        row["user"],
        row["request"] or "",
        row["time"],
        row["offset"],
        segment,
        items,
        feedback,
    )


def _as_dictionary(definition, row):
    names = ("offset", "user", "request", "time", "items", "positions", "ranks")
    found = {name: getattr(row, name) for name in (*names, "shown", "gains")}
    found |= dict(zip(definition.dimensions, row.labels, strict=True))
    found["feedback"] = [
        {name: getattr(one, name) for name in ("item", "kind", "value", "delay", "retract")}
        for one in row.feedback
    ]
    return found


# --- in the core ---------------------------------------------------------------------------------


class Log:
    """A log, and what outlives a worker: the committed offset, the checkpoint, the rows."""

    def __init__(self, definition, events, rng):
        self.definition, self.events, self.rng = definition, events, rng
        self.committed = self.saved = 0
        self.header, self.chunks, self.rows = None, {}, []

    def start(self):
        if self.header is None:
            partition = Partition(self.definition, journal=True, keep_outcomes=True)
        else:
            partition = restore(self.definition, self.header, self.chunks, keep_outcomes=True)
        at = self.saved
        for batch in cuts(self.events[self.saved : self.committed], self.rng):
            partition.apply(batch, range(at, at + len(batch)))
            at += len(batch)
            if self.rng.random() < 0.5:
                partition.flush()
        partition.flush()
        return partition

    def run(self):
        rng, end = self.rng, len(self.events)
        kills, saves = rng.choice((0.05, 0.3)), rng.choice((0.1, 0.5, 1.0))
        longest = rng.choice((1, 5, 30, end))
        partition = self.start()
        while self.committed < end or self.saved < end:
            until = min(end, self.committed + rng.randint(0, longest))
            partition.apply(self.events[self.committed : until], range(self.committed, until))
            partition.flush()
            rows, saved = [], None
            if rng.random() < saves:
                rows = partition.outcomes_of(drain(partition.finalizing()))
                saved = checkpoint(partition, f"{until}-{rng.random()}")
            if rng.random() < kills:  # before the pointer flips
                partition = self.start()
                continue
            self.committed = until
            if saved is not None:
                self.chunks |= saved.chunks
                self.header, self.saved = saved.header, until
                self.rows += rows
            if rng.random() < kills:
                partition = self.start()
        return self.rows


def test_outcomes_over_kills_and_restores_are_the_oracles_slates_exactly_once(seed):
    definition, events = hostile(seed)
    rows = Log(definition, events, random.Random(f"kills of {seed}")).run()
    found = sorted(plain(definition, row) for row in rows)
    assert found == expected(definition, events, range(len(events)))


def test_slates_from_before_outcomes_were_kept_have_none():
    """Half a slate's feedback would be a wrong label in a training set."""
    definition = Definition()
    before = Partition(definition, journal=True)
    before.apply([ImpressionEvent(TIME, "u1", "a", "r1", 1)], [0])
    before.flush()
    saved = checkpoint(before, "0")
    state = restore(definition, saved.header, saved.chunks, keep_outcomes=True)
    again = ImpressionEvent(TIME + 1, "u1", "b", "r1", 2)
    other = ImpressionEvent(TIME + 1, "u2", "b", "r2", 1)
    end = ImpressionEvent(TIME + 2 * definition.horizon, "u3", "b", "r3", 1)
    state.apply([again, other, end], [1, 2, 3])
    state.flush()
    assert [(row.user, row.offset) for row in state.outcomes_of(drain(state.finalizing()))] == [
        ("u2", 2)
    ]


def test_the_first_scores_and_the_earliest_labels_stay():
    definition = Definition(dimensions=("variant", "surface"))
    state = Partition(definition, keep_outcomes=True)
    first = SlateEvent(
        TIME, "u1", "r1", (SlateItem("a", 1, 0.5, 0.25), "b"), variant="A", surface="home"
    )
    state.apply(
        [
            first,
            ImpressionEvent(TIME + 1, "u1", "b", "r1", 2, "A", "late", 0.75, None),
            FeedbackEvent(TIME + 9, "u1", "b", "click", "r1"),
            ImpressionEvent(TIME + 2 * definition.horizon, "u3", "b", "r3", 1),
        ],
        [5, 6, 7, 8],
    )
    state.flush()
    (row,) = state.outcomes_of(drain(state.finalizing()))
    assert (row.offset, row.labels) == (5, ("A", "home"))
    assert (row.scores, row.propensities) == ([0.5, 0.75], [0.25, None])
    assert (row.gains, row.feedback) == (
        [0.0, 1.0],
        [FeedbackOutcome(1, "click", 1.0, 9, retract=False)],
    )
    assert state.outcomes_of(drain(state.finalizing())) == []


@pytest.mark.parametrize("dimensions", [("variant", "surface"), ("surface",), ()])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("come", ["together", "apart", "flushed"])
def test_of_labels_at_one_moment_the_smaller_stays_in_any_order(order, come, dimensions):
    definition = Definition(dimensions=dimensions)
    state = Partition(definition, keep_outcomes=True)
    shown = [
        ImpressionEvent(TIME, "u1", "a", "r1", 1, "B", "feed"),
        ImpressionEvent(TIME, "u1", "b", "r1", 2, "A", "a-page"),
    ]
    others = [
        ImpressionEvent(TIME, "u2", "a", "r2", 1, "B", "feed"),
        ImpressionEvent(TIME, "u2", "a", "r3", 1, "A", "a-page"),
    ]
    first, second = (shown[index] for index in order)
    apart = [first, others[0], second] if come == "apart" else [first, second]
    for batch in [others, *([[first], [second]] if come == "flushed" else [apart])]:
        state.apply(batch, [7] * len(batch))
        state.flush()
    state.apply([ImpressionEvent(TIME + 2 * definition.horizon, "u3", "b", "r3", 1)], [9])
    state.flush()
    row = next(row for row in state.outcomes_of(drain(state.finalizing())) if row.user == "u1")
    smaller = {"variant": "A", "surface": "a-page"}
    assert row.labels == tuple(smaller[name] for name in dimensions)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [7, 1_000, 100_000])
@pytest.mark.parametrize("request_id", ["r1", None])
def test_a_machine_that_repeats_a_click_fills_neither_memory_nor_files(batch, request_id):
    """Whatever the order and the cuts: the earliest entries, and the latest of either sign."""
    definition = Definition()
    clicks = [
        FeedbackEvent(TIME + 10 * n, "u1", "a", "click", request_id, retract=n % 3 == 1)
        for n in range(3_000)
    ]
    random.Random(f"{batch} {request_id}").shuffle(clicks)
    events = [
        SlateEvent(TIME, "u1", "r1", ("a", "b"), variant="A"),
        *clicks,
        FeedbackEvent(TIME + 40_000, "u1", "b", "click", request_id),
        ImpressionEvent(TIME + 2 * definition.horizon, "u3", "b", "r3", 1),
    ]
    state = Partition(definition, keep_outcomes=True)
    longest = 0
    for start in range(0, len(events), batch):
        part = events[start : start + batch]
        state.apply(part, list(range(start, start + len(part))))
        state.flush()
        longest = max(
            [
                longest,
                *(
                    len(slate.details.log)
                    for user in state.slates.users.values()
                    for slate in user.open_slates()
                ),
            ]
        )
    (row,) = state.outcomes_of(drain(state.finalizing()))
    of_a = [entry for entry in row.feedback if entry.item == 0]
    assert [entry.delay for entry in of_a[:98]] == [10 * n for n in range(98)]
    assert [(entry.delay, entry.retract) for entry in of_a[98:]] == [
        (29_980, True),
        (29_990, False),
    ]
    assert row.gains == [1.0, 1.0]
    assert longest <= 2 * MAX_LOGGED_FEEDBACK + 1
    assert state.attribution.overflow_feedback == 3_000 - MAX_LOGGED_FEEDBACK


def test_the_feedback_that_is_kept_does_not_depend_on_the_order_of_arrival():
    def kept(delays):
        state = Partition(Definition(), keep_outcomes=True)
        for event in (
            ImpressionEvent(TIME, "u", "x", "r"),
            *(FeedbackEvent(TIME + delay, "u", "x", "click", "r") for delay in delays),
            ImpressionEvent(TIME + HOUR, "u", "x", "r"),
        ):
            state.apply([event], [0])
            state.flush()
        (row,) = state.outcomes_of(drain(state.finalizing()))
        return [entry.delay for entry in row.feedback]

    for size in (97, 98, 99, 100, 101, 199, 200, 201, 205, 350):
        delays = list(range(1, size + 1))
        assert kept(delays) == kept(delays[::-1]) == [*delays[:98], *delays[98:][-1:]]


def an_outcome(number, time=TIME, **changes):
    values = {
        "offset": number,
        "user": f"u{number}",
        "request": f"r{number}",
        "labels": ("A", ""),
        "time": time,
        "items": ["a", "b"],
        "positions": [1, None],
        "ranks": [1, 2],
        "shown": [time, time + 3],
        "scores": [0.5, None],
        "propensities": [None, 0.125],
        "gains": [0.0, 3.0],
        "feedback": [FeedbackOutcome(1, "buy", 2.0, 700, retract=False)],
    }
    return Outcome(**(values | changes))


@pytest.fixture
def folder(tmp_path):
    opened = OutcomeFolder(str(tmp_path / "out"), OWNER, {"version": "0"}, DIMENSIONS)
    opened.check()
    return opened


def read(folder):
    """All visible rows, `time` in ms."""
    with contextlib.suppress(FileNotFoundError):
        rows = dataset(folder.root).to_table().to_pylist()
        return [with_ms(row) for row in rows]
    return []


def with_ms(row):
    return row | {"time": round(row["time"].timestamp() * 1000)}


def pending(folder):
    return [path.name for path in Path(folder.root, "_pending").iterdir()]


def make_old(folder, name):
    for path in Path(folder.root, "_pending", name).rglob("*.parquet"):
        os.utime(path, (0, 0))


def clean(folder, partition, offset, since):
    """Remove what a partition restored at an offset writes again; answers how many files."""
    return folder.remove(partition, folder.beyond(partition, offset, since), since)


def offsets(folder):
    return sorted(row["offset"] for row in read(folder))


def test_hours_that_are_over_go_and_files_of_others_stay(folder):
    """A day goes with its last hour; a row that comes late is written again, and goes again."""
    days = [0, 24 * HOUR, 25 * HOUR, 48 * HOUR]
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(n, TIME + at) for n, at in enumerate(days)])
    folder.publish("p0-0-9-aa")
    first, *_, last = sorted(path.name for path in Path(folder.root).glob("dt=*"))
    (foreign,) = Path(folder.root, last).iterdir()
    foreign.joinpath("notes.txt").write_text("mine")
    begin = TIME // HOUR * HOUR
    assert folder.remove_before(begin + HOUR - 1) == 0
    assert folder.remove_before(begin + HOUR) == 1
    assert offsets(folder) == [1, 2, 3]
    assert not Path(folder.root, first).exists()
    assert folder.remove_before(begin + 25 * HOUR) == 1
    assert offsets(folder) == [2, 3]
    assert folder.remove_before(begin + 99 * HOUR) == 2
    assert offsets(folder) == []
    assert [path.name for path in foreign.iterdir()] == ["notes.txt"]
    folder.write(Span(0, 9, 12, "aa"), [an_outcome(10)])
    folder.publish("p0-9-12-aa")
    assert offsets(folder) == [10]


DAY = 24 * HOUR
NOW = 1_767_614_400_000


@pytest.mark.parametrize(
    ("given", "since", "kept"),
    [
        ({}, None, 90 * DAY),
        ({"outcome_keep": "35d"}, None, 35 * DAY),
        ({"outcome_keep": "35d", "windows": [{"size": "60d", "slide": "1d"}]}, None, 60 * DAY),
        ({}, NOW - 40 * DAY, 90 * DAY),
        ({}, NOW - 200 * DAY, 200 * DAY),
        ({}, "none", NOW),
    ],
)
def test_what_checks_windows_and_experiments_need_stays(tmp_path, given, since, kept):
    names = {"outcomes": str(tmp_path / "o"), "snapshots": tmp_path, "outcome_keep": "90d"}
    experiment = {"name": "e", "arm": "variant", "control": "A", "primary": "ndcg@10"}
    if since is not None:
        begins = {} if since == "none" else {"since": f"{utc(since).replace(' ', 'T')}Z"}
        names["experiments"] = [experiment | begins]
    settings = Settings(**names | given)
    horizon = settings.definition().horizon
    found = NOW - needed_from(settings, NOW)
    assert found == (kept if found == kept else kept + horizon)


def test_a_row_comes_back_as_it_was_written(folder):
    alone = an_outcome(2, TIME + HOUR, request=None, labels=("", ""), feedback=[])
    folder.write(Span(3, 0, 9, "aa"), [an_outcome(1), alone])
    folder.publish("p3-0-9-aa")
    one, two = sorted(read(folder), key=lambda row: row["offset"])
    names = [field.name for field in schema_of(DIMENSIONS)]
    assert {name: one[name] for name in names} == {
        "partition": 3,
        "offset": 1,
        "user": "u1",
        "request": "r1",
        "variant": "A",
        "surface": None,
        "time": TIME,
        "items": ["a", "b"],
        "positions": [1, None],
        "ranks": [1, 2],
        "shown": [TIME, TIME + 3],
        "scores": [0.5, None],
        "propensities": [None, 0.125],
        "gains": [0.0, 3.0],
        "feedback": [{"item": 1, "kind": "buy", "value": 2.0, "delay": 700, "retract": False}],
        "fallback": False,
        "latency_ms": None,
    }
    assert (two["request"], two["variant"], two["feedback"]) == (None, None, [])
    assert [(row["dt"], row["hour"]) for row in (one, two)] == [
        ("2023-11-14", "22"),
        ("2023-11-14", "23"),
    ]


def test_duckdb_reads_the_visible_rows_and_no_others(folder):
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(n) for n in range(5)])
    folder.publish("p0-0-9-aa")
    folder.write(Span(0, 9, 12, "bb"), [an_outcome(7)])
    query = f"SELECT count(*), sum(list_sum(gains)) FROM '{folder.root}/dt=*/hour=*/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(5, 15.0)]
    assert offsets(folder) == [0, 1, 2, 3, 4]


def test_files_are_zstd_and_say_under_which_definition_they_were_written(folder):
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    folder.publish("p0-0-9-aa")
    path = f"{folder.root}/dt=2023-11-14/hour=22/p0-0-9-aa.parquet"
    facts = pyarrow.parquet.ParquetFile(path).metadata
    assert facts.row_group(0).column(0).compression == "ZSTD"
    about = {"version": "0", "pseudonymous": False}
    assert json.loads(facts.metadata[b"streameval"]) == about


def test_to_publish_again_changes_nothing_and_finishes_what_was_begun(folder):
    """A death between two files of one span: whoever restores goes on where it stopped."""
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1), an_outcome(2, TIME + HOUR)])
    unseen = f"{folder.root}/_pending/p0-0-9-aa/dt=2023-11-14/hour=22/p0-0-9-aa.parquet"
    visible = f"{folder.root}/dt=2023-11-14/hour=22/p0-0-9-aa.parquet"
    os.renames(unseen, visible)
    for _ in range(2):
        folder.publish("p0-0-9-aa")
        assert offsets(folder) == [1, 2]
    assert pending(folder) == []


class OtherStore:
    """A disk that lacks what pyarrow lacks of Google's and Azure's stores.

    It lists no folder but those that it was told to make, moves nothing, and says in words of its
    own that a folder is gone.
    """

    type_name = "gcs"

    def __init__(self):
        self.disk, self.made = fs.LocalFileSystem(), set()

    def __getattr__(self, name):
        return getattr(self.disk, name)

    def create_dir(self, path):
        self.made |= {path, *map(str, Path(path).parents)}
        self.disk.create_dir(path)

    def move(self, source, target):
        raise NotImplementedError

    def delete_dir(self, path):
        if not Path(path).exists():
            raise OSError(f"No such directory: {path}")
        self.disk.delete_dir(path)

    def get_file_info(self, what):
        found = self.disk.get_file_info(what)
        if isinstance(what, str) or what.recursive:
            return found
        return [info for info in found if info.is_file or info.path in self.made]


@pytest.mark.parametrize("copied", [False, True])
def test_stores_without_moves_and_without_folders_will_do(folder, copied):
    span = Span(0, 0, 9, "aa")
    folder.write(span, [an_outcome(1), an_outcome(2, TIME + HOUR)])
    store = OtherStore()
    folder._location = folder._location._replace(files=store)
    for _ in range(2):
        folder.publish(span.name)
        assert not folder.is_pending(span.name)
    if copied:  # by something else, which makes no folders
        store.made.clear()
    assert offsets(folder) == [1, 2]
    assert folder.hours(0, TIME + 9 * HOUR) == [TIME + HOUR, TIME]
    assert folder.beyond(0, 3, None) == [span.name]
    assert folder.remove_before(TIME + HOUR) == 1
    assert offsets(folder) == [2]
    assert folder.remove(0, [span.name], None) == 1
    folder.discard(span.name)
    assert offsets(folder) == []


def test_what_lies_beyond_the_checkpoint_is_removed_for_its_partition_only(folder):
    for span in (Span(0, 0, 9, "aa"), Span(0, 9, 12, "bb"), Span(1, 9, 12, "cc")):
        folder.write(span, [an_outcome(100 * span.partition + span.end)])
        folder.publish(span.name)
    assert clean(folder, 0, 9, TIME) == 1
    assert offsets(folder) == [9, 112]


def test_hours_before_the_first_slate_still_open_are_not_looked_at(folder):
    """None of their slates can be written again."""
    folder.write(Span(0, 9, 12, "aa"), [an_outcome(1), an_outcome(2, TIME + HOUR)])
    folder.publish("p0-9-12-aa")
    assert clean(folder, 0, 9, TIME + HOUR) == 1
    assert offsets(folder) == [1]
    assert clean(folder, 0, 9, None) == 1


def test_an_unpublished_span_of_hours_ago_is_found_by_its_partition(folder):
    folder.write(Span(0, 9, 12, "aa"), [an_outcome(1)])
    assert folder.unpublished(0) == []
    make_old(folder, "p0-9-12-aa")
    assert (folder.unpublished(0), folder.unpublished(1)) == (["p0-9-12-aa"], [])


def test_the_folder_of_another_deployment_is_refused(folder):
    OutcomeFolder(folder.root, OWNER, {}, DIMENSIONS).check()
    with pytest.raises(RefusedError, match=r"another deployment.*choose another folder"):
        OutcomeFolder(folder.root, OWNER | {"group": "h"}, {}, DIMENSIONS).check()


def test_a_folder_that_cannot_be_used_is_an_error_of_the_world(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnreachableError, match=r"outcomes: .* cannot be used now"):
        OutcomeFolder(str(tmp_path / "file" / "out"), OWNER, {}, DIMENSIONS).check()


def test_a_uri_that_names_no_file_system_is_refused():
    with pytest.raises(InputError, match="not a URI of a file system"):
        OutcomeFolder("gopher://host/out", OWNER, {}, DIMENSIONS).check()


def test_a_uri_names_a_folder_too(tmp_path):
    opened = OutcomeFolder(f"file://{tmp_path}/out", OWNER, {}, DIMENSIONS)
    opened.check()
    opened.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    opened.publish("p0-0-9-aa")
    assert offsets(opened) == [1]


def test_pseudonyms_are_hmac_sha256_in_hex(tmp_path):
    """RFC 4231, test case 2."""
    name = pseudonyms(b"Jefe")
    assert name("what do ya want for nothing?") == (
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )
    folder = OutcomeFolder(str(tmp_path), OWNER, {}, DIMENSIONS, user=name)
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    folder.publish("p0-0-9-aa")
    assert [row["user"] for row in read(folder)] == [name("u1")]


# --- every fault at once, in the model -----------------------------------------------------------


class Dated(OutcomeFolder):
    """Files whose age is counted by the world's clock, and not by the machine's."""

    def write(self, span, rows):
        super().write(span, rows)
        now = outcome_files.time.time()
        for path in Path(self._pending(span.name)).rglob("*.parquet"):
            os.utime(path, (now, now))


class Recorded(World):
    """The simulated world, whose workers write real outcome files."""

    root = None

    def folder(self):
        return Dated(self.root, OWNER, {}, self.definition.dimensions)

    def files_of(self, number):
        return [row for row in read(self.files) if row["partition"] == number]


def test_whatever_fails_each_slate_stands_in_the_files_once(seed, monkeypatch, tmp_path, quiet):
    """Kills, zombies, lost replies, rebalances, a Redis that goes back to an older file."""
    simulate(seed, monkeypatch, type("Here", (Recorded,), {"root": str(tmp_path)}))


# --- the worker's part ---------------------------------------------------------------------------


class OneHeader:
    """A store with the header of one checkpoint at offset 9, as long as nothing is lost."""

    def __init__(self, *attachments):
        state = Partition(Definition(), journal=True)
        self.stored = checkpoint(state, "0", attachments).header
        self.pointer = 9

    async def header(self, _partition):
        return self.stored

    async def checkpoint_offset(self, _partition):
        return self.pointer


def published(folder, store):
    """Write a span, publish it as after its commit; the visible offsets."""
    span = Span(0, 0, 9, "aa")
    cut = SimpleNamespace(partition=0, span=span, outcomes=lambda: [an_outcome(1)])
    outbox = OutcomeWriter(folder, store)

    async def commit():
        await outbox.write(cut)
        assert offsets(folder) == []
        await outbox.publish(cut)

    asyncio.run(commit())
    assert pending(folder) == []
    return offsets(folder)


def test_a_span_is_published_while_the_stored_checkpoint_names_it(folder):
    assert published(folder, OneHeader("p0-0-9-aa")) == [1]


def test_a_worker_that_slept_until_the_store_lost_its_checkpoint_publishes_nothing(folder):
    """Its slates are written again by whoever reads the log again."""
    assert published(folder, OneHeader("p0-0-5-bb")) == []
    empty = OneHeader()
    empty.stored = None
    assert published(folder, empty) == []


@pytest.mark.parametrize("pointer", [None, 5])
def test_a_span_is_not_left_where_the_store_lost_it_while_it_was_published(folder, pointer):
    """The next owner looked for such spans before this one was visible."""
    store = OneHeader("p0-0-9-aa")
    store.pointer = pointer
    assert published(folder, store) == []


class Moved:
    """A store whose checkpoint moved on since it was loaded, or went back."""

    def __init__(self, offset):
        self.checkpoint = offset

    async def checkpoint_offset(self, _partition):
        return self.checkpoint


@pytest.mark.parametrize(("pointer", "left"), [(12, [9, 12]), (9, [9]), (None, [])])
def test_a_span_goes_where_the_store_lost_it_and_not_where_another_worker_wrote_it(
    folder, pointer, left
):
    """The restore loaded the checkpoint at 0 and took its time over the disk."""
    for span in (Span(0, 0, 9, "aa"), Span(0, 9, 12, "bb")):
        folder.write(span, [an_outcome(span.end)])
        folder.publish(span.name)
    state = Partition(Definition())
    owned = SimpleNamespace(number=0, next_offset=0, state=state)
    loaded = SimpleNamespace(header=None, checkpoint_offset=None)
    asyncio.run(OutcomeWriter(folder, Moved(pointer)).settle(owned, loaded))
    assert offsets(folder) == left


def settled(folder, store):
    """Settle the files of a partition whose stored data was loaded before it had a checkpoint."""
    owned = SimpleNamespace(number=0, next_offset=0, state=Partition(Definition()))
    loaded = SimpleNamespace(header=None, checkpoint_offset=None)
    asyncio.run(OutcomeWriter(folder, store).settle(owned, loaded))


def test_a_restore_leaves_an_old_span_that_was_committed_meanwhile(folder):
    """Redis was away for hours, and the commit that waited for it came before the cleaning."""
    span = Span(0, 0, 9, "aa")
    store = OneHeader(span.name)
    cut = SimpleNamespace(partition=0, span=span, outcomes=lambda: [an_outcome(1)])
    outbox = OutcomeWriter(folder, store)
    asyncio.run(outbox.write(cut))
    make_old(folder, span.name)
    settled(folder, store)
    asyncio.run(outbox.publish(cut))
    assert offsets(folder) == [1]


class CommitsBetween(OneHeader):
    """A store where the commit of a span goes through behind the first of two reads."""

    def __init__(self, span):
        super().__init__()
        self._span, self._reads = span, 0
        self.pointer = span.begin

    def _read(self, value):
        self._reads += 1
        if self._reads == 1:
            self.stored, self.pointer = OneHeader(self._span.name).stored, self._span.end
        return value

    async def header(self, _partition):
        return self._read(self.stored)

    async def checkpoint_offset(self, _partition):
        return self._read(self.pointer)


def test_a_restore_leaves_an_old_span_that_is_committed_while_it_looks(folder):
    span = Span(0, 9, 12, "aa")
    folder.write(span, [an_outcome(1)])
    make_old(folder, span.name)
    settled(folder, CommitsBetween(span))
    assert pending(folder) == [span.name]


@pytest.mark.parametrize(("begin", "left"), [(8, []), (9, ["p0-9-12-aa"]), (10, ["p0-10-12-aa"])])
def test_a_restore_discards_an_old_span_that_no_commit_can_name_any_more(folder, begin, left):
    """The script takes a checkpoint that goes on from the stored one, which ends at 9."""
    span = Span(0, begin, 12, "aa")
    folder.write(span, [an_outcome(1)])
    make_old(folder, span.name)
    settled(folder, OneHeader("p0-5-9-bb"))
    assert pending(folder) == left


# --- the examples of the docs --------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "outcomes.md"


@pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not part of what is installed")
def test_the_examples_of_the_docs_run(folder, tmp_path, capsys):
    text = PAGE.read_text().replace("/data/outcomes", folder.root)
    text = text.replace("/data/days", str(tmp_path)).replace("2026-01-31", "2023-11-14")
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1), an_outcome(2)])
    folder.publish("p0-0-9-aa")
    items, copied = re.findall(r"^```sql\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rows = duckdb.sql(items).select("user", "request", "item", "rank", "gain").fetchall()
    assert sorted(rows)[:2] == [
        ("u1", "r1", "a", 1, 0.0),
        ("u1", "r1", "b", 2, 3.0),
    ]
    duckdb.sql(copied)
    assert pyarrow.parquet.read_metadata(tmp_path / "2023-11-14.parquet").num_rows == 2
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(example, {})
    assert capsys.readouterr().out == "2\n"
