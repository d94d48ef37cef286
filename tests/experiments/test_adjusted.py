"""Experiments adjusted by their users' past (CUPED), as of each snapshot: the figures of `compare`.

The streams go through the core, and leave outcome files, snapshots and checkpoints as workers do.
"""

import asyncio
import dataclasses
import json
import random
import re
import zlib
from fractions import Fraction
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from clean_service import DEFINITION, LENGTH, MINUTE, START, Service, stream
from pydantic import SecretStr

from streameval.core.checkpoint import checkpoint
from streameval.core.events import FeedbackEvent
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.experiments.metrics import metrics_of
from streameval.core.experiments.users import UserArms
from streameval.core.windows.tables import cluster_of
from streameval.evaluation.arm_comparison import compare_arms, read_past
from streameval.evaluation.arms import read_arms
from streameval.files.outcome_files import user_name
from streameval.files.snapshot_folder import snapshots
from streameval.files.snapshots import report_adjusted, retire, take_from
from streameval.files.users_past import PAST, ArmsOfTopic, last_before, snapshots_needed
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, compare_ratios
from streameval.stats.regression_adjustment import compare_adjusted
from streameval.store.stored_values import Stored
from streameval.store.user_scan import UserRow, UserScan

FLOOR, SEEDS = 8, 60
CLICKS = "positives_per_impression{feedback=click}"
MIDDLE = START + LENGTH // 2


class Topic:
    """A service with an experiment, and the store that its workers would have left."""

    def __init__(self, root, experiment):
        definition = dataclasses.replace(DEFINITION, experiments=(experiment,))
        self.service = Service(root, definition)
        self.definition, self.experiment = definition, experiment
        self.root = root / "snapshots"
        self.arms = [UserArms() for _ in self.service.states]
        self.first_lists = {}
        self.chunks = [{} for _ in self.service.states]
        self.token = 0
        self.reported = None

    def take(self, events):
        self.service.take(events)
        for state, arms in zip(self.service.states, self.arms, strict=True):
            visits = state.experiments.take_visits()
            arms.add(visits)
            for user, key, arm, *first in visits:
                known = self.first_lists.setdefault((key, user), {})
                known[arm] = min(first, known.get(arm, first))

    def snapshot(self, meanwhile=lambda: None, **changes):
        """Take a snapshot as the leader does; return its folder and the rows that it reported.

        `meanwhile` is called before it looks at the past.
        """
        self.token += 1
        values = {"pseudonymize": None, "group": "g", "topic": "t", "user_ttl": None}
        values |= {"definition": lambda: self.definition, "snapshot_interval": 900_000}
        settings = SimpleNamespace(**values | changes)
        pasts = snapshots_needed(self.root, self.definition.experiments)
        arms = ArmsOfTopic(self.definition, pasts, user_name(settings))
        partitions = range(len(self.arms))

        async def scenario():
            folder = await take_from(self, settings, self.root, partitions, self.token, arms=arms)
            meanwhile()
            await report_adjusted(self, settings, folder, self.token, arms)
            return folder

        folder = asyncio.run(scenario())
        return folder, self.reported["experiments"].get(self.experiment.key)

    def compared(self, before):
        """The adjusted rows of `compare --before` over the outcome files, where it has any."""
        files, column = [str(self.service.outcomes)], self.experiment.arm
        arms = read_arms(
            files, self.definition, self.experiment, lambda _: None, with_rates=False, column=column
        )
        found = compare_arms(arms, [], read_past(before, arms))
        return [row.document() for row in found if row.adjusted and row.adjusted.theta is not None]

    async def load(self, number):
        end = self.service.saved[number]
        saved = checkpoint(self.service.states[number], f"{self.token}-{number}")
        chunks = self.chunks[number] = self.chunks[number] | saved.chunks
        return Stored(end, "cluster", "topic", "f", saved.header, chunks, end, 0, "{}")

    async def users(self, number):
        end, kinds, key = self.service.saved[number], self.definition.kinds, self.experiment.key
        rows = []
        for (partition, user), (
            impressions,
            slates,
            first,
            last,
            counts,
        ) in self.service.users.items():
            if partition == number:
                positives = dict(zip(kinds, counts, strict=True))
                arms = {key: self.first_lists.get((key, user), {}), "ended": {"A": (0, ())}}
                rows.append(UserRow(user, end, impressions, slates, positives, first, last, arms))
        return UserScan(end, end, rows)

    async def fence(self):
        return self.token

    async def report(self, name, token, value, ttl):
        assert (name, token) == ("adjusted", self.token)
        assert ttl >= 24 * 60 * MINUTE
        self.reported = json.loads(value)


def experiment(since=MIDDLE, **changes):
    values = {"guardrails": (Guardrail("ndcg@10"), Guardrail("empty_rate")), "arms": ("B",)}
    return Experiment("e", "variant", "A", CLICKS, since=since, **values | changes)


def halves(events, since):
    """Events before, when A served everybody, and the events of the experiment."""
    before, after = parts(events, since)
    return [
        event if isinstance(event, FeedbackEvent) else msgspec.structs.replace(event, variant="A")
        for event in before
    ], after


def parts(events, since):
    return [event for event in events if event.ts < since], [
        event for event in events if event.ts >= since
    ]


def crossing(events, chance):
    """Some slates in any variant, so that users cross."""
    return [
        event
        if isinstance(event, FeedbackEvent) or chance.random() < 0.9
        else msgspec.structs.replace(event, variant=chance.choice(("A", "B", "C", None)))
        for event in events
    ]


def test_a_snapshot_adjusts_as_compare_does_over_the_same_files_to_the_bit(seed, tmp_path):
    chance = random.Random(seed)
    metrics = chance.sample(list(metrics_of(DEFINITION)), 3)
    since = START + chance.randrange(LENGTH // 4, LENGTH // 2)
    primary, *guardrails = metrics
    topic = Topic(
        tmp_path / str(seed),
        Experiment(
            *("e", "variant", "A", primary, tuple(map(Guardrail, guardrails))),
            since=since,
            arms=chance.choice(((), ("B",), ("B", "C"))),
            planned_users=chance.randrange(100, 2_000),
        ),
    )
    events = stream(seed, users=chance.choice((40, 300)), slates=600)
    before, after = halves(crossing(events, chance), since)
    cut = chance.randrange(len(before))
    for part in (before[:cut], before[cut:]):
        topic.take(part)
        past, rows = topic.snapshot()
        assert not rows, "no user is in an arm yet"
    topic.take(after)
    _, rows = topic.snapshot()
    wanted = topic.compared(past)
    if topic.experiment.arms:
        named = [row for row in wanted if row["role"] != "exploratory"]
        assert [(row["metric"], row["arm"]) for row in rows] == [
            (row["metric"], row["arm"]) for row in named
        ]
    by_key = {(row["metric"], row["arm"]): row["adjusted"] for row in wanted}
    assert rows
    for row in rows:
        found = by_key[row["metric"], row["arm"]]
        assert {name: row[name] for name in found} == found


def test_the_adjusted_difference_is_that_of_a_regression_on_the_counters(tmp_path):
    """By fractions, of the events alone: users of 256 clusters, in two arms that nobody leaves."""
    topic = Topic(tmp_path / "service", experiment())
    events = stream(5, users=500, slates=4_000)
    before, after = halves(events, MIDDLE)
    topic.take(before)
    counters = {user: list(known) for (_, user), known in topic.service.users.items()}
    past_folder, _ = topic.snapshot()
    topic.take(after)
    _, rows = topic.snapshot()
    sums = {(arm, cluster): [0, 0, 0, 0] for arm in "AB" for cluster in range(256)}
    users = set()
    for row in rows_of(topic):
        if row["time"].timestamp() * 1000 >= MIDDLE:
            found = sums[row["variant"], cluster_of(row["user"])]
            clicks = [one for one in row["feedback"] if one["kind"] == "click"]
            last = {}
            for one in sorted(clicks, key=lambda one: (one["delay"], one["retract"])):
                last[one["item"]] = one["retract"]
            found[0] += sum(not retracted for retracted in last.values())
            found[1] += len(row["items"])
            users.add((row["user"], row["variant"]))
    for user, arm in users:
        impressions, _, _, _, positives = counters.get(user, (0, 0, 0, 0, (0, 0)))
        found = sums[arm, cluster_of(user)]
        found[2] += positives[0]
        found[3] += impressions
    (first, *_) = rows
    assert first["metric"] == CLICKS
    total = {arm: [sum(sums[arm, n][i] for n in range(256)) for i in range(4)] for arm in "AB"}
    now, past = ({arm: Fraction(*total[arm][i : i + 2]) for arm in "AB"} for i in (0, 2))
    both = [sum(total[arm][i] for arm in "AB") for i in range(4)]
    linear = [
        (x - Fraction(both[0], both[1]) * y, p - Fraction(both[2], both[3]) * i)
        for x, y, p, i in sums.values()
    ]
    slope = sum(y * x for y, x in linear) / sum(x * x for _, x in linear)
    theta = slope * Fraction(both[3], both[1])
    assert first["theta"] == pytest.approx(float(theta), rel=1e-9)
    difference = now["B"] - now["A"] - theta * (past["B"] - past["A"])
    assert first["difference"] == pytest.approx(float(difference), rel=1e-9)
    (wanted, *_) = topic.compared(past_folder)
    bounds = wanted["adjusted"]["low"], wanted["adjusted"]["high"]
    assert (first["low"], first["high"]) == bounds
    assert first["low"] < first["difference"] < first["high"]
    assert first["users_with_past"] == len({user for user, _ in users} & counters.keys())
    assert first["users_of"] == len({user for user, _ in users})


def not_adjusted(topic, before, after):
    """Take the snapshot of a past, and return why the next one adjusts nothing."""
    topic.take(before)
    past, _ = topic.snapshot()
    topic.take(after)
    _, rows = topic.snapshot()
    assert rows == []
    assert not topic.compared(past), "nor does compare"
    (reason,) = topic.reported["notes"][topic.experiment.key]
    assert reason.startswith("B against A is not adjusted by what users did before: ")
    return reason


@pytest.mark.parametrize("skill", [1.0, 1.4])
def test_users_whom_the_arms_served_before_have_no_past(skill, tmp_path):
    """`since` was moved while the experiment ran: the effect, if any, is in the past too."""
    events = stream(5, users=800, slates=4_000, skill={"B": skill})
    topic = Topic(tmp_path / "service", experiment())
    reason = not_adjusted(topic, *parts(events, MIDDLE))
    arms = {
        event.user_id: event.variant for event in events if not isinstance(event, FeedbackEvent)
    }
    of_b = sum(arm == "B" for arm in arms.values())
    served, seen, none, others = map(int, re.findall(r"\d+", reason)[:4])
    assert (served, none) == (seen, 0)
    assert 100 < seen < of_b, "those of the last slates before"
    assert 100 < others < len(arms) - of_b
    assert f"B served {seen} of {seen} users of B before, and 0 of {others} users of A." in reason


def test_users_of_arms_that_differed_before_have_no_past(tmp_path):
    """Something without a name treated the users of B before, such as a pilot of another field."""
    events = stream(5, users=800, slates=8_000, skill={"B": 1.8})
    reason = not_adjusted(Topic(tmp_path / "service", experiment()), *halves(events, MIDDLE))
    assert re.search(r"the users of B had \+\d\.\d\d points of positives per impression", reason)


def test_an_adjustment_that_makes_the_spread_grow_saves_no_users():
    """Arms are apart before and now, and within an arm the past tells nothing about now."""
    rng = np.random.default_rng(1)
    many = np.full(256, 1_000)

    def arm(rate):
        return ClusterSums(rng.binomial(1_000, rate, 256), many, 2_560)

    now, before = (arm(0.4), arm(0.2)), (arm(0.4), arm(0.2))
    found = compare_adjusted(now, before, Rules())
    plain = compare_ratios(*now, Rules())
    assert found.scored.high - found.scored.low > 1.2 * (plain.high - plain.low)
    assert found.users_saved == 0.0


def test_a_canary_before_that_is_dealt_anew_leaves_the_past(tmp_path):
    """A tenth of all users had B before, and none of them more likely gets B again."""
    events = stream(6, users=800, slates=4_000)
    before, after = halves(events, MIDDLE)
    before = [
        msgspec.structs.replace(event, variant="B")
        if not isinstance(event, FeedbackEvent) and zlib.adler32(event.user_id.encode()) % 10 == 0
        else event
        for event in before
    ]
    topic = Topic(tmp_path / "service", experiment())
    topic.take(before)
    topic.snapshot()
    topic.take(after)
    assert topic.snapshot()[1]


def rows_of(topic):
    for path in topic.service.outcomes.glob("dt=*/hour=*/*.parquet"):
        yield from pq.ParquetFile(path).read().to_pylist()


def test_nothing_is_adjusted_where_nothing_lies_before(tmp_path):
    events = stream(3, slates=500)
    late = Topic(tmp_path / "late", experiment())
    late.take(events)
    late.snapshot()
    assert late.snapshot()[1] is None, "all snapshots have events of the experiment"
    endless = Topic(tmp_path / "endless", experiment(since=None))
    endless.take(halves(events, MIDDLE)[0])
    endless.snapshot()
    assert endless.snapshot()[1] is None, "it has no beginning"


def test_users_with_pseudonyms_have_their_past(tmp_path):
    found = []
    for name, key in (("plain", None), ("secret", SecretStr("k" * 32))):
        topic = Topic(tmp_path / name, experiment())
        for part in halves(stream(4, slates=1_000), MIDDLE):
            topic.take(part)
            _, rows = topic.snapshot(pseudonymize=key)
        found.append(rows)
    assert found[0] == found[1] != []


def test_where_users_may_have_been_forgotten_nothing_is_adjusted(tmp_path):
    topic = Topic(tmp_path / "service", experiment())
    for part in halves(stream(4, slates=1_000), MIDDLE):
        topic.take(part)
        topic.snapshot()
    age = 1_000 * 86_400_000  # the stream is of 2023
    assert topic.snapshot(user_ttl=age * 100)[1]
    assert topic.snapshot(user_ttl=age // 100)[1] is None


def test_the_snapshot_with_the_past_is_the_last_before_and_stays(tmp_path):
    topic = Topic(tmp_path / "service", experiment())
    before, after = halves(stream(4, slates=1_000), MIDDLE)
    taken = []
    for events in (before[:50], before[50:], after[:50], after[50:]):
        topic.take(events)
        taken.append(topic.snapshot()[0])
    assert last_before(topic.root, START) is None
    assert last_before(topic.root, MIDDLE) == taken[1]
    last = max(known[3] for known in topic.service.users.values())
    assert last_before(topic.root, last) == taken[2]
    assert last_before(topic.root, last + 1) == taken[3]
    plain = topic.compared(taken[1])
    for _ in range(2):
        retire(topic.root, 1, topic.definition.experiments)
        assert snapshots(topic.root) == [taken[3]], "no check compares with the others"
        kept = topic.root / PAST / taken[1].name
        assert snapshots(topic.root / PAST) == [kept]
        assert topic.compared(last_before(topic.root, MIDDLE)) == plain
    retire(topic.root, 1)
    assert not snapshots(topic.root / PAST)


def test_a_log_that_is_read_again_leaves_the_past_as_it_was(tmp_path):
    """Redis lost its keys: a snapshot of the first events of the log knows few users."""
    topic, again = (Topic(tmp_path / name, experiment()) for name in ("service", "again"))
    again.root = topic.root
    before, after = halves(stream(4, slates=1_000), MIDDLE)
    topic.take(before)
    past, _ = topic.snapshot()
    topic.take(after)
    _, rows = topic.snapshot()
    retire(topic.root, 1, topic.definition.experiments)
    again.token = topic.token
    for events in (before[:50], [*before[50:], *after]):
        again.take(events)
        found = again.snapshot()[1]
        retire(topic.root, 1, topic.definition.experiments)
        assert last_before(topic.root, MIDDLE) == topic.root / PAST / past.name
    assert found == rows


@pytest.mark.parametrize("wrong", [b"\0", b"\xff"])
def test_a_damaged_end_of_a_file_stops_no_snapshot(wrong, tmp_path):
    """Such bytes make pyarrow raise an OSError, as a disk that is away would."""
    topic = Topic(tmp_path / "service", experiment())
    topic.take(halves(stream(4, slates=100), MIDDLE)[0])
    kept, _ = topic.snapshot()
    damaged, _ = topic.snapshot()
    whole = (damaged / "users.parquet").read_bytes()
    # The last 8 bytes are the length of the metadata before them, and a mark.
    (damaged / "users.parquet").write_bytes(whole[:-1_000] + 992 * wrong + whole[-8:])
    assert last_before(topic.root, MIDDLE) == kept
    topic.snapshot()


def test_a_damaged_past_is_passed_over_or_said(tmp_path, caplog):
    topic = Topic(tmp_path / "service", experiment())
    before, after = halves(stream(4, slates=1_000), MIDDLE)
    topic.take(before)
    kept, _ = topic.snapshot()
    damaged, _ = topic.snapshot()
    (damaged / "users.parquet").write_bytes(b"not Parquet")
    topic.take(after)
    assert topic.snapshot()[1], "of the one before"
    (kept / "figures.json").write_text("{}")
    assert topic.snapshot()[1] is None
    assert "experiment e is not adjusted:" in caplog.text
    assert "changed since the snapshot was taken" in caplog.text


def test_a_past_that_is_moved_aside_meanwhile_is_found_there(tmp_path, caplog):
    """As another process does that takes a snapshot at the same time."""
    topic = Topic(tmp_path / "service", experiment())
    before, after = halves(stream(4, slates=1_000), MIDDLE)
    topic.take(before)
    past, _ = topic.snapshot()
    topic.take(after)
    _, rows = topic.snapshot()

    def retired():
        retire(topic.root, 1, topic.definition.experiments)
        assert not past.exists()

    assert topic.snapshot(retired)[1] == rows != []
    assert "not adjusted" not in caplog.text


def test_a_past_under_other_names_is_said(tmp_path, caplog):
    topic = Topic(tmp_path / "service", experiment())
    before, after = halves(stream(4, slates=1_000), MIDDLE)
    topic.take(before)
    topic.snapshot(pseudonymize=SecretStr("k" * 32))
    topic.take(after)
    assert topic.snapshot()[1] is None
    assert "`pseudonymize` or its key has changed since" in caplog.text
