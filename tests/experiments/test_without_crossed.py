"""The leader's figures without crossed users: as `compare` has them of a checkpoint's files."""

import asyncio
import json
import random
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from clean_service import stream
from test_adjusted import CLICKS, MIDDLE, Topic, crossing, experiment, parts

from streameval.base.errors import InputError
from streameval.core.events import FeedbackEvent
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.evaluation.arm_comparison import compare_arms
from streameval.evaluation.arms import read_arms
from streameval.experiments.scorecard import scorecard
from streameval.experiments.words import remarks, warnings
from streameval.files import outcome_days
from streameval.files.outcome_days import OutcomeDays
from streameval.files.outcome_files import OutcomeFolder, pseudonyms
from streameval.store.scorecards import ScorecardReader
from streameval.web.status import CheckStatus
from streameval.worker import without_crossed
from streameval.worker.sharing import checks_of
from streameval.worker.without_crossed import figures, parts_of

FLOOR, SEEDS = 8, 30


class Store(Topic):
    """The store of a topic; its headers stay behind until the next `checkpoint`."""

    def __init__(self, root, **changes):
        super().__init__(root, experiment(since=None, crossed_users="leave_out", **changes))
        self.headers, self.offsets = {}, {}

    def checkpoint(self):
        for number in range(len(self.arms)):
            stored = asyncio.run(self.load(number))
            self.headers[number], self.offsets[number] = stored.header, stored.checkpoint_offset

    async def header(self, number):
        return self.headers.get(number)

    async def checkpoint_offset(self, number):
        return self.offsets.get(number)

    def figures(self, files=None, name=None):
        found = asyncio.run(parts_of(self, self.definition, range(len(self.arms))))
        mine = found[self.experiment.key]
        files = files or self.service.folder
        days = OutcomeDays(files.root, self.definition.labels, self.service.root / "copies")
        return figures(self.definition, self.experiment, mine, files, days, name=name)


class Reported(Store):
    """A store that keeps reports, as the leader and the readers of scorecards use it."""

    def __init__(self, root):
        super().__init__(root)
        del self.reported  # what `Topic` remembers
        self.reports = {}

    async def report(self, name, token, value, ttl):
        self.reports[name] = value

    async def reported(self, name):
        return self.reports.get(name)

    async def arm_users(self, number, experiment):
        return self.arms[number].counts.get(experiment, ArmUsers())

    async def close(self):
        pass


def compared(topic):
    """Rows of `compare` over all files, and the users whom it left out."""
    files, column = [str(topic.service.outcomes)], topic.experiment.arm
    arms = read_arms(
        files, topic.definition, topic.experiment, lambda _: None, with_rates=False, column=column
    )
    return [row.document() for row in compare_arms(arms, [], None)], arms.left_out


def some_events(seed):
    chance = random.Random(seed)
    return parts(crossing(stream(seed, users=150, slates=600), chance), MIDDLE)


def test_figures_are_those_of_compare_to_the_bit_whatever_comes_after_a_checkpoint(seed, tmp_path):
    topic = Store(tmp_path / str(seed))
    before, after = some_events(seed)
    topic.take(before)
    topic.checkpoint()
    wanted, crossed = compared(topic)
    found = topic.figures()
    assert [row["left_out"] for row in found] == [len(crossed)] * 3
    assert crossed
    for row, known in zip(found, wanted, strict=True):
        assert row == {"left_out": row["left_out"]} | {
            name: known[name] for name in row.keys() - {"left_out"}
        }
    topic.take(after)  # files of a later checkpoint, and users who cross meanwhile
    later = {row["metric"]: row for row in topic.figures()}
    assert later[CLICKS]["left_out"] >= len(crossed)
    topic.checkpoint()
    assert {row["metric"]: row["value"] for row in topic.figures()} == {
        row["metric"]: row["value"] for row in compared(topic)[0]
    }


def test_figures_are_the_same_from_copies_of_hours(tmp_path, monkeypatch):
    topic = Store(tmp_path / "service")
    before, after = some_events(9)
    topic.take(before)
    topic.checkpoint()
    plain = topic.figures()
    monkeypatch.setattr(outcome_days, "FEW", 0)
    assert topic.figures() == plain
    copies = set((topic.service.root / "copies").rglob("*.parquet"))
    assert copies
    fits = topic.service.folder.fits
    monkeypatch.setattr(topic.service.folder, "fits", pytest.fail)
    assert topic.figures() == plain, "the small files are not opened again"
    monkeypatch.setattr(topic.service.folder, "fits", fits)
    topic.take(after)
    topic.checkpoint()
    assert {row["metric"]: row["value"] for row in topic.figures()} == {
        row["metric"]: row["value"] for row in compared(topic)[0]
    }
    other = OutcomeFolder(
        topic.service.folder.root, {}, {"definition": {"ks": [7]}}, topic.definition.dimensions
    )
    with pytest.raises(InputError, match=r"outcome files of partition \d have 0 of the"):
        topic.figures(other)


def test_the_leader_reports_figures_or_why_there_are_none(tmp_path, monkeypatch):
    topic = Reported(tmp_path / "service")
    topic.take(some_events(4)[0])
    topic.checkpoint()
    values = {"definition": lambda: topic.definition, "pseudonymize": None, "user_ttl": None}
    settings = SimpleNamespace(snapshot_interval=900_000, snapshots=tmp_path / "s", **values)

    async def opened(_):
        return topic, len(topic.arms)

    monkeypatch.setattr(without_crossed, "opened_store", opened)
    monkeypatch.setattr(without_crossed, "open_files", lambda _: topic.service.folder)

    def card():
        asyncio.run(without_crossed.report_without_crossed(settings, 7))
        reader = ScorecardReader(topic, topic.definition)
        (found,) = asyncio.run(reader.read(len(topic.arms)))
        return found

    found = card()
    wanted = {row["metric"]: row for row in topic.figures()}
    rows = [row for row in found.rows if row["role"] != "exploratory"]
    beside = {row["metric"]: row["without_crossed"] for row in rows}
    assert beside.keys() == wanted.keys()
    for metric, row in beside.items():
        assert row["value"] == wanted[metric]["value"]
        assert row["left_out"] == found.split["crossed_users"] > 0
    assert remarks(found) == []
    max(topic.service.outcomes.rglob("*.parquet")).unlink()
    lacking = card()
    assert not any("without_crossed" in row for row in lacking.rows)
    (remark,) = remarks(lacking)
    assert remark.startswith("No figures without crossed users: the outcome files of partition")
    settings.user_ttl = 1
    (remark,) = remarks(card())
    assert "as old as `user_ttl`" in remark


def test_checks_that_doubt_the_data_stand_beside_the_verdict(tmp_path):
    topic = Reported(tmp_path / "service")
    topic.take(some_events(4)[0])
    topic.checkpoint()
    reader = ScorecardReader(topic, topic.definition)

    def warned():
        (card,) = asyncio.run(reader.read(len(topic.arms)))
        return warnings(card)

    before = warned()
    ended = [
        ("slates_once", "error", True, "0 of 9 slates repeat another one"),
        ("traffic_alike", "error", False, "variant 'B': 5.1 % of it is fast. variant 'A': so too"),
        ("metric_regression", "error", False, "B is worse"),
        ("drift", "warning", False, "items moved"),
        ("freshness", "error", None, "no snapshot"),
    ]
    checks = [CheckStatus(*head, 0.5, 9.0, 1.0, message=text) for *head, text in ended]
    status = SimpleNamespace(checks=checks, check_interval=None, check_running=None, daily=None)
    asyncio.run(topic.report("checks", 7, json.dumps(checks_of(status)), 1))
    said = (
        "The check traffic_alike fails (variant 'B': 5.1 % of it is fast): find out why before you"
        " trust a figure."
    )
    assert warned() == [*before, said]


def test_figures_without_a_crossed_user_are_the_plain_ones_and_open_no_file(tmp_path):
    topic = Store(tmp_path / "service")
    topic.take(stream(3, users=100, slates=300))
    topic.checkpoint()
    for path in topic.service.outcomes.rglob("*.parquet"):
        path.unlink()
    sums, users = ArmSums(topic.experiment), ArmUsers()
    for state, arms in zip(topic.service.states, topic.arms, strict=True):
        sums.merge(state.experiments.arm_sums[0])
        users.add(arms.counts.get(topic.experiment.key, ArmUsers()))
    plain = {row["metric"]: row for row in scorecard(topic.definition, sums, users)}
    for row in topic.figures():
        assert row["left_out"] == 0
        assert (row["low"], row["high"]) == (
            plain[row["metric"]]["low"],
            plain[row["metric"]]["high"],
        )


@pytest.mark.parametrize("lost", ["an hour", "another definition"])
def test_files_that_lack_a_slate_give_no_figures(lost, tmp_path):
    topic = Store(tmp_path / "service")
    topic.take(some_events(5)[0])
    topic.checkpoint()
    files = topic.service.folder
    if lost == "an hour":
        max(topic.service.outcomes.rglob("*.parquet")).unlink()
    else:
        about = {"definition": {"ks": [7]}}
        files = OutcomeFolder(files.root, {}, about, topic.definition.dimensions)
    with pytest.raises(
        InputError, match=r"outcome files of partition \d have [\d,]+ of the [\d,]+"
    ):
        topic.figures(files)


def test_users_with_pseudonyms_are_found(tmp_path):
    found = []
    for name in (None, pseudonyms(b"k" * 32)):
        topic = Store(tmp_path / f"{name is None}")
        dimensions = topic.definition.dimensions
        root = str(topic.service.outcomes)
        topic.service.folder = OutcomeFolder(root, {}, {}, dimensions, user=name)
        topic.take(some_events(6)[0])
        topic.checkpoint()
        found.append(topic.figures(name=name))
    assert found[0] == found[1]
    assert found[0][0]["left_out"]


def test_a_user_who_crosses_takes_the_past_in_the_arm_along(tmp_path):
    """What the user did before crossing is gone too: as if the user had never come."""
    events = stream(7, users=100, slates=400)
    last = {event.user_id for event in events[-20:]}  # they end what is final
    slates = [event for event in events if not isinstance(event, FeedbackEvent)]
    ((mover, _),) = Counter(
        event.user_id for event in slates if event.user_id not in last
    ).most_common(1)
    theirs = [event for event in slates if event.user_id == mover]
    moved = [
        msgspec.structs.replace(event, variant="AB"[theirs.index(event) > 0])
        if event in theirs
        else event
        for event in events
    ]
    rows = []
    for name, given in (
        ("moved", moved),
        ("never", [event for event in events if event.user_id != mover]),
    ):
        topic = Store(tmp_path / name)
        topic.take(given)
        topic.checkpoint()
        found = topic.figures()
        assert {row.pop("left_out") for row in found} == {int(name == "moved")}
        rows.append(found)
    assert rows[0] == rows[1]
