"""Experiments: sums and users of each arm equal the oracle's, and the scorecard follows from them.

The oracle sorts and scans all events. The engine is cut, killed and restored anywhere, takes its
events in any order within L, and meets experiments that were added while it ran.
"""

import dataclasses
import json
import os
import random
from collections import Counter

import numpy as np
import pytest
from default_events import DIMENSIONS
from oracle.experiments import experiment_arms, ratio
from streams import accepted, cuts, hostile, permute_within_lateness

from streameval.base.errors import InputError
from streameval.base.in_memory import InMemory
from streameval.base.limits import CLUSTERS
from streameval.base.steps import drain
from streameval.core.checkpoint import checkpoint, restore
from streameval.core.definition import Definition
from streameval.core.events import FeedbackEvent, ImpressionEvent, event_types
from streameval.core.experiments import sums as engine
from streameval.core.experiments import sums as visits_module
from streameval.core.experiments.definition import MAX_ARMS, Experiment, Guardrail
from streameval.core.experiments.first_lists import MOST_BUCKETS, FirstLists
from streameval.core.experiments.metrics import metrics_of, named_rows
from streameval.core.experiments.users import ArmUsers, UserArms, Visit
from streameval.core.fingerprint import fingerprint
from streameval.core.partition import Partition
from streameval.core.replay import replay
from streameval.core.windows.values import HALF
from streameval.experiments.scorecard import sections
from streameval.files.outcome_files import dimensions_in, table

FIELDS = ("variant", "surface", "bucket")


def watched(seed, buckets=3):
    """A hostile stream whose events have one more field, and experiments over all three.

    It often has more segments than the definition tells apart.
    """
    definition, events = hostile(seed)
    rng = random.Random(f"experiments of {seed}")
    types = event_types((*DIMENSIONS, "bucket"))
    values = [None, *(f"b{number:02}" for number in range(buckets))]
    events = [_with_bucket(event, types, rng.choice(values)) for event in events]
    moments = [None, *(event.ts for event in events)]
    experiments = tuple(
        Experiment(
            name=f"e{number}",
            arm=rng.choice(FIELDS),
            control=rng.choice(("A", "home", "b00", "nobody")),
            primary=rng.choice(list(metrics_of(definition))),
            split=rng.choice((None, {"A": 1, "B": 2}, {"b00": 1, "b01": 1})),
            arms=rng.choice(((), (), ("b02", "C"))),
            since=rng.choice(moments),
            until=rng.choice(moments),
        )
        for number in range(rng.choice((1, 1, 2, 3)))
    )
    most = rng.choice((1, 2, definition.max_segments))
    return dataclasses.replace(definition, experiments=experiments, max_segments=most), events


def _with_bucket(event, types, bucket):
    if isinstance(event, FeedbackEvent):
        return event
    kind = types.impression if isinstance(event, ImpressionEvent) else types.slate
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return kind(**fields, bucket=bucket)


def assert_arms(definition, found, users, wanted):
    """The sums of each arm by cluster, and its users, are those of the oracle."""
    for sums, experiment, arms in zip(found, definition.experiments, wanted, strict=True):
        assert sums.sums.keys() == arms.sums.keys(), experiment
        assert sums.earliest == arms.earliest
        assert {name: getattr(sums, name) for name in engine.COUNTS} == {
            name: getattr(arms, name) for name in engine.COUNTS
        }
        for arm, by_name in arms.sums.items():
            assert exact(definition, sums.sums[arm]) == plain(by_name), (experiment, arm)
        assert_extremes(definition, sums, arms)
        counts = users.get(experiment.key, ArmUsers())
        by_arm = {arm: int(counts.of(arm).sum()) for arm in arms.users}
        assert by_arm == {arm: len(members) for arm, members in arms.users.items()}
        assert {arm: number for arm, number in counts.exactly.items() if number} == {
            arm: arms.exactly(arm) for arm in arms.users if arms.exactly(arm)
        }
        assert counts.crossed == len(arms.crossed)
        assert_first_lists(counts, arms.first_lists)


def assert_extremes(definition, sums, arms):
    """The smallest and largest figure of a slate in each arm are those of the oracle."""
    names = list(metrics_of(definition))
    assert sums.extremes.keys() == sums.sums.keys()
    assert {
        (arm, names[number]): tuple(both)
        for arm, extremes in sums.extremes.items()
        for number, both in enumerate(extremes.T.tolist())
        if not np.isnan(both).any()
    } == arms.extremes


def assert_first_lists(users, known):
    """The sums by bucket are those of `known`, a first list by user and arm, without who crossed.

    The span may be longer than theirs: whoever gave way was in it.
    """
    arms = Counter(user for user, _ in known)
    wanted, first = {}, users.first
    for (user, arm), (time, values) in known.items():
        if arms[user] == 1:
            wanted.setdefault((time // first.width, arm), []).append((1, *values))
            assert first.begin <= time <= first.end
    assert {key: sums.tolist() for key, sums in first.sums.items()} == {
        key: [sum(column) for column in zip(*rows, strict=True)] for key, rows in wanted.items()
    }
    if wanted:
        buckets = [first.begin // first.width, first.end // first.width]
        assert buckets[1] - buckets[0] < MOST_BUCKETS
        assert all(buckets[0] <= bucket <= buckets[1] for bucket, _ in wanted)


def in_one_span(users, others):
    """The sums of first lists of users, by buckets of a length for the times of others too."""
    found = FirstLists(others.first.begin, others.first.end)
    found.merge(users.first)
    return {key: sums.tolist() for key, sums in found.sums.items()}


def exact(definition, sums):
    """The rows that are not 0, by name and cluster; the two halves of values as one number."""
    rows = {name: row.tolist() for name, row in named_rows(definition, sums).items()}
    for name in [name for name in rows if name.startswith("value_high")]:
        low = rows.pop(name.replace("high", "low"))
        assert all(0 <= half < 1 << HALF for half in low), "equal sums have equal bits"
        joined = [(high << HALF) + half for high, half in zip(rows.pop(name), low, strict=True)]
        rows[name.replace("_high", "")] = joined
    found = {(name, n): row[n] for name, row in rows.items() for n in range(CLUSTERS)}
    return {key: count for key, count in found.items() if count}


def plain(by_name):
    found = {(name, n): count for name, row in by_name.items() for n, count in row.items()}
    return {key: count for key, count in found.items() if count}


class Worker:
    """A partition that dies now and then, and a store that keeps what was committed."""

    def __init__(self, definition, rng):
        self.definition, self.rng = definition, rng
        self.state = Partition(definition, journal=True, keep_outcomes=rng.random() < 0.3)
        self.users = UserArms()
        self.header, self.chunks, self.at, self.log = None, {}, 0, []
        self.checkpoints = 0

    def apply(self, batch):
        self.state.apply(batch)
        self.log += batch

    def commit(self):
        """Store the users that are new, and often a checkpoint with them."""
        self.state.flush()
        drain(self.state.finalizing())
        visits = [] if self.rng.random() < 0.5 else self.state.experiments.take_visits()
        if self.rng.random() < 0.6:
            self.checkpoints += 1
            saved = checkpoint(self.state, str(self.checkpoints))
            self.chunks |= saved.chunks
            self.header, self.at = saved.header, len(self.log)
            visits += self.state.experiments.take_visits()
        self.users.add(visits)

    def die(self):
        """Forget what no checkpoint has, and read the log again; others' experiments stay."""
        if self.header is None:
            return
        keep = self.rng.random() < 0.3
        self.state = restore(self.definition, self.header, self.chunks, keep_outcomes=keep)
        for again in cuts(self.log[self.at :], self.rng):
            self.state.apply(again)
        self.state.flush()

    def arms(self):
        self.state.flush()
        drain(self.state.finalizing())
        self.users.add(self.state.experiments.take_visits())
        return self.state.experiments.arm_sums

    def run(self, events):
        for batch in cuts(events, self.rng):
            self.apply(batch)
            if self.rng.random() < 0.5:
                self.commit()
                if self.rng.random() < 0.3:
                    self.die()


def test_the_arms_are_those_of_the_oracle_however_the_stream_is_cut(seed):
    definition, events = watched(seed)
    worker = Worker(definition, random.Random(f"cuts of {seed}"))
    half = len(events) // 2
    for part in (events[:half], events[half:]):
        worker.run(part)
        found = worker.arms()
        assert_arms(definition, found, worker.users.counts, experiment_arms(definition, worker.log))
    assert all(one.counts_from is None for one in found)


def test_the_order_of_arrival_within_l_changes_no_bit(seed, monkeypatch):
    monkeypatch.setattr(visits_module, "MOST_VISITS", 3)
    definition, events = watched(seed, buckets=40)
    rng = random.Random(f"orders of {seed}")
    events = accepted(events, definition)
    states = []
    for order in (events, permute_within_lateness(events, definition, rng)):
        worker = Worker(definition, rng)
        worker.run(order)
        wanted = experiment_arms(definition, worker.log)
        assert_arms(definition, worker.arms(), worker.users.counts, wanted)
        states.append([one.state() for one in worker.arms()])
        for state in states[-1]:
            state["sums"] = dict(sorted(state["sums"].items()))
            assert len(state["sums"]) <= MAX_ARMS + 1
    assert states[0] == states[1]


def test_an_experiment_that_is_added_later_counts_what_can_still_be_known(seed):
    definition, events = watched(seed)
    rng = random.Random(f"late ones of {seed}")
    split = rng.randrange(len(events))
    before = dataclasses.replace(
        definition, experiments=tuple(e for e in definition.experiments if rng.random() < 0.4)
    )
    assert fingerprint(before) == fingerprint(definition)
    worker = Worker(before, rng)
    for batch in cuts(events[:split], rng):
        worker.apply(batch)
        worker.commit()
    worker.state.flush()
    saved = checkpoint(worker.state, "last")
    worker.definition = definition
    chunks = worker.chunks | saved.chunks
    worker.state = restore(definition, saved.header, chunks, keep_outcomes=rng.random() < 0.5)
    watermark = worker.state.watermark
    for one in worker.arms():
        if one.experiment in before.experiments or watermark is None:
            assert one.counts_from is None
        elif one.experiment.arm in before.labels:
            assert one.counts_from == watermark - definition.horizon
        else:
            assert one.counts_from == watermark + 1
    worker.header, worker.chunks, worker.at = saved.header, chunks, split
    worker.run(events[split:])
    found = worker.arms()
    wanted = experiment_arms(definition, worker.log, [one.counts_from for one in found])
    assert_arms(definition, found, worker.users.counts, wanted)


# --- the scorecard -------------------------------------------------------------------------------


def test_the_rows_are_the_ratios_of_the_oracle(seed):
    definition, events = watched(seed)
    worker = Worker(definition, random.Random(seed))
    worker.run(events)
    found = worker.arms()
    wanted = dict(
        zip(
            [e.name for e in definition.experiments],
            experiment_arms(definition, events),
            strict=True,
        )
    )
    document = sections(definition, found, worker.users.counts)
    for row in document["experiments"]:
        arms = wanted[row["name"]]
        values = [ratio(arms, row["metric"], arm) for arm in (row["arm"], row["control"])]
        assert [row["value"], row["control_value"]] == [
            None if value is None else float(value) for value in values
        ]
        assert row["users"] == len(arms.users.get(row["arm"], ()))
        if row["difference"] is not None:
            assert row["difference"] == pytest.approx(
                float(values[0] - values[1]), 1e-9, 1e-9 + 4e-16 * abs(float(values[1]))
            )
        assert row["verdict"] in {"better", "worse", "no difference shown", "not yet"}
    for experiment, split in zip(definition.experiments, document["splits"], strict=True):
        arms = wanted[experiment.name]
        rows = [row for row in document["experiments"] if row["name"] == experiment.name]
        compared = dict.fromkeys(experiment.treatments) or arms.users
        assert {row["arm"] for row in rows} == compared.keys() - {experiment.control}
        assert len({(row["metric"], row["arm"]) for row in rows}) == len(rows)
        assert split["users"] == {
            arm: arms.exactly(arm) for arm in {*experiment.named_arms, *split["users"]}
        }
        assert split["crossed_users"] == len(arms.crossed)
        assert (split["log_evidence"] is None) == (experiment.split is None)


def visitors(lines, users, arm_of, click_of, slates=2):
    """Write one list of five items a visit, and a click to its first item where `click_of` says."""
    events, hour = [], 3_600_000
    for number in range(users):
        for visit in range(slates):
            user, request = f"u{number}", f"r{number}-{visit}"
            ts = 1_767_225_600_000 + number * 1_000 + visit * hour
            head = {"ts": ts, "user_id": user, "request_id": request}
            arm = arm_of(number, visit)
            items = [f"i{n}" for n in range(5)]
            events.append(
                {"type": "slate", **head, "variant": arm, "items": items, "latency_ms": number % 7}
            )
            if click_of(arm):
                click = {"type": "feedback", "feedback": "click", "item_id": "i0"}
                events.append({**head, **click, "ts": ts + 1_000})
    events.append(
        {"type": "slate", "ts": ts + 24 * hour, "user_id": "z", "request_id": "z", "items": []}
    )
    events.sort(key=lambda event: event["ts"])
    lines.write_text("\n".join(json.dumps(event) for event in events))
    return lines


CLICKS = "positives_per_impression{feedback=click}"
RANKER = Experiment("ranker", "variant", "A", CLICKS, split={"A": 1, "B": 1})


def replayed(path, **changes):
    experiment = dataclasses.replace(RANKER, **changes)
    definition = Definition(experiments=(experiment,))
    document = replay(definition, [str(path)], lambda _: None, judged=sections)
    rows = {(row["metric"], row["arm"]): row for row in document["experiments"]}
    return rows, document["splits"][0]


def worse_arm(path):
    """Write the visits of 3,000 users: half of the lists of A are clicked, and fewer of B."""
    rng = random.Random(3)
    return visitors(
        path,
        3_000,
        lambda number, _: "AB"[number % 2],
        lambda arm: rng.random() < (0.5 if arm == "A" else 0.35),
    )


def test_a_worse_arm_is_found_and_equal_arms_are_not_told_apart(tmp_path):
    path = worse_arm(tmp_path / "events")
    guardrails = (Guardrail("latency_ms_mean"), Guardrail("abandonment_rate", margin=0.05))
    rows, split = replayed(path, guardrails=guardrails)
    clicks = rows[CLICKS, "B"]
    assert (clicks["role"], clicks["verdict"], clicks["users"]) == ("primary", "worse", 1_500)
    assert clicks["low"] < clicks["difference"] < clicks["high"] < 0
    assert clicks["relative_difference"] == pytest.approx(
        clicks["difference"] / clicks["control_value"]
    )
    assert clicks["users_needed"] == 0
    # More abandoned lists are worse, by more than the margin.
    assert rows["abandonment_rate", "B"]["role"] == "guardrail"
    assert rows["abandonment_rate", "B"]["verdict"] == "worse"
    assert rows["abandonment_rate", "B"]["low"] > 0.05
    assert rows["latency_ms_mean", "B"]["verdict"] == "no difference shown"
    assert rows["hit_rate@5", "B"]["role"] == "exploratory"
    assert split["users"] == {"A": 1_500, "B": 1_500}
    assert split["crossed_users"] == 0
    assert split["p_value"] == 1.0


def test_alpha_is_shared_by_named_metrics_and_arms(tmp_path):
    rng = random.Random(4)
    path = visitors(
        tmp_path / "events",
        900,
        lambda number, _: "ABC"[number % 3],
        lambda _: rng.random() < 0.3,
    )
    guardrails = (Guardrail("ndcg@10"), Guardrail("empty_rate"))
    split = {"A": 1, "B": 1, "C": 1}
    rows, _ = replayed(path, guardrails=guardrails, split=split, planned_users=600)
    shares = {CLICKS: 0.05 / 4, "ndcg@10": 0.05 / 8, "mrr@10": 0.05}
    for metric, alpha in shares.items():
        for arm in "BC":
            row = rows[metric, arm]
            alone, _ = replayed(
                path, primary=metric, split=split, alpha=2 * alpha, planned_users=600
            )
            assert (row["low"], row["high"]) == (
                alone[metric, arm]["low"],
                alone[metric, arm]["high"],
            )
            assert row["low"] is not None
    widths = [rows[m, "B"]["high"] - rows[m, "B"]["low"] for m in ("ndcg@10", "mrr@10")]
    assert widths[0] > widths[1]


def test_the_primary_figure_has_its_own_share_of_alpha_and_its_own_margin(tmp_path):
    path = worse_arm(tmp_path / "events")
    guarded = {"guardrails": (Guardrail("ndcg@10"), Guardrail("mrr@10"))}
    rows, _ = replayed(path, **guarded, primary_share=0.8)
    for metric, alpha in ((CLICKS, 0.05 * 0.8), ("ndcg@10", 0.05 * 0.1)):
        alone, _ = replayed(path, primary=metric, alpha=alpha)
        for bound in ("low", "high"):
            assert rows[metric, "B"][bound] == pytest.approx(alone[metric, "B"][bound], rel=1e-12)
    high = rows[CLICKS, "B"]["high"]
    for margin, verdict in ((-high * 0.99, "worse"), (-high * 1.01, "no difference shown")):
        judged, _ = replayed(path, **guarded, primary_share=0.8, primary_margin=margin)
        assert judged[CLICKS, "B"]["verdict"] == verdict


def test_a_bad_split_and_crossed_users_and_a_stranger_arm_are_seen(tmp_path):
    path = visitors(
        tmp_path / "events",
        2_000,
        lambda number, visit: (
            "C" if number == 0 else "AB"[(number % 5 < 2) ^ (number % 50 == visit)]
        ),
        lambda _: False,
    )
    rows, split = replayed(path)
    assert split["p_value"] < 1e-6
    assert split["users"]["C"] == 1
    assert split["crossed_users"] > 0
    assert sum(split["users"].values()) + split["crossed_users"] == 2_000
    assert {arm for _, arm in rows} == {"B"}
    _, untested = replayed(path, split=None)
    assert untested["log_evidence"] is untested["p_value"] is None
    assert untested["users"] == split["users"]


def test_without_a_slate_every_metric_of_a_named_arm_is_not_yet_known(tmp_path):
    path = tmp_path / "nothing"
    path.write_text("")
    rows, split = replayed(path)
    assert {row["verdict"] for row in rows.values()} == {"not yet"}
    assert {row["value"] for row in rows.values()} == {None}
    assert split == {
        "experiment": "ranker",
        "users": {"A": 0, "B": 0},
        "crossed_users": 0,
        "log_evidence": 0.0,
        "p_value": 1.0,
        "without_arm": 0,
        "without_arm_share": None,
        "without_arm_fallback": 0,
        "without_arm_empty": 0,
    }


def test_slates_without_an_arm_are_counted_by_what_they_are(tmp_path):
    """2,000 slates, of which each third of ten is a fallback, written before the arm is known."""
    path = visitors(tmp_path / "events", 1_000, lambda number, _: "AB"[number % 2], lambda _: False)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    lists = [event for event in events if event["user_id"] != "z"]
    for number, event in enumerate(lists):
        if number % 10 < 3:
            event |= {"fallback": True, "variant": None}
            event["items"] = event["items"] if number % 100 < 95 else []
    path.write_text("\n".join(map(json.dumps, events)))
    rows, split = replayed(path)
    assert rows["fallback_rate", "B"]["value"] == 0.0
    found = {name: split[name] for name in split if name.startswith("without_arm")}
    assert found == {
        "without_arm": 600,
        "without_arm_share": 0.3,
        "without_arm_fallback": 600,
        "without_arm_empty": 0,
    }
    _, within = replayed(path, since=lists[1_000]["ts"], until=lists[1_500]["ts"])
    assert (within["without_arm"], within["without_arm_share"]) == (150, 0.3)
    documents = replay(
        Definition(
            dimensions=("surface",),
            experiments=(RANKER, dataclasses.replace(RANKER, name="other", arm="surface")),
        ),
        [str(path)],
        lambda _: None,
        judged=sections,
    )["splits"]
    assert [one["without_arm"] for one in documents] == [600, 2_000], "each has its own"


def test_replay_leaves_crossed_users_out_as_if_they_never_came(tmp_path):
    """Every tenth user is in another arm at the second visit."""
    rng = random.Random(8)
    path = visitors(
        tmp_path / "events",
        1_500,
        lambda number, visit: "AB"[(number % 2) ^ (number % 10 == 0 and visit)],
        lambda arm: rng.random() < (0.5 if arm == "A" else 0.35),
    )
    lines = path.read_text().splitlines()
    stayed = [line for line in lines if int(json.loads(line)["user_id"][1:] or 1) % 10]
    (tmp_path / "stayed").write_text("\n".join(stayed))
    kept, split = replayed(path)
    assert split["crossed_users"] == 150
    wanted, _ = replayed(tmp_path / "stayed")
    found, left = replayed(path, crossed_users="leave_out")
    assert found == wanted != kept
    assert left == split, "they are still told"
    definition = Definition(experiments=(dataclasses.replace(RANKER, crossed_users="leave_out"),))
    given = InMemory.of("events", (line.encode() for line in lines))
    again = replay(definition, [given], lambda _: None, judged=sections)
    assert again["experiments"] == list(found.values())
    os.mkfifo(tmp_path / "pipe")
    for pipe in ("-", str(tmp_path / "pipe")):
        with pytest.raises(InputError, match="reads the events twice: name a file"):
            replay(definition, [pipe], lambda _: None, judged=sections)


def test_slates_without_the_field_take_no_part_and_a_moved_t_changes_nothing(tmp_path):
    path = visitors(
        tmp_path / "events", 50, lambda number, _: ("A", None)[number % 2], lambda _: True
    )
    rows, split = replayed(path)
    assert split["users"] == {"A": 25, "B": 0}
    definition = Definition(experiments=(RANKER,))
    later = replay(
        definition, [str(path)], lambda _: None, at=1_767_225_600_000 + 10**10, judged=sections
    )
    assert {(row["metric"], row["arm"]): row for row in later["experiments"]} == rows


def test_outcome_files_have_the_arms_that_are_no_dimensions():
    """At one ts the smaller segment stays as a whole, and each arm by itself."""
    experiments = (
        dataclasses.replace(RANKER, arm="bucket"),
        dataclasses.replace(RANKER, name="other", arm="variant"),
    )
    definition = Definition(dimensions=("surface",), experiments=experiments)
    assert definition.labels == ("surface", "bucket", "variant")
    impression = event_types(definition.labels).impression
    state = Partition(definition, keep_outcomes=True)
    shown = [
        impression(1_000, "u", "x", "r", surface="home", bucket="b2", variant="A"),
        impression(1_000, "u", "y", "r", surface="feed", bucket="b3", variant=None),
        impression(2_000, "u", "z", "r", surface="a", bucket="b1", variant="A"),
        impression(10**8, "v", "x", "r"),
    ]
    state.apply(shown, range(4))
    state.flush()
    rows = state.outcomes_of(drain(state.finalizing()))
    assert [row.labels for row in rows] == [("feed", "b2", "")]
    written = table(0, rows, definition.labels)
    assert dimensions_in(written.schema) == list(definition.labels)
    assert written.select(definition.labels).to_pylist() == [
        {"surface": "feed", "bucket": "b2", "variant": None}
    ]
    assert [list(one.sums) for one in state.experiments.arm_sums] == [["b2"], []]


def test_the_arms_of_all_partitions_together_keep_the_bound():
    """Each partition bounds its own arms, and a topic has many partitions."""
    experiment = Experiment(name="e", arm="variant", control="A", primary="ndcg@5")
    total, users = engine.ArmSums(experiment), ArmUsers()
    for number in range(3):
        part, met = engine.ArmSums(experiment), UserArms()
        part.without_arm = number
        for arm in ("A", *(f"v{number}-{index}" for index in range(MAX_ARMS - 1))):
            part.of(arm, 1)[0, number] += 1
            met.add([Visit(f"{number}-{arm}", experiment.key, arm, number * 10**9, (1, number))])
        total.merge(part)
        users.add(met.counts[experiment.key])
    assert len(total.sums.keys() - {"__other__"}) == MAX_ARMS
    assert sum(int(sums.sum()) for sums in total.sums.values()) == 3 * MAX_ARMS
    assert total.without_arm == 3
    shown = users.within(total.sums)
    assert shown.by_arm.keys() == shown.exactly.keys() == total.sums.keys()
    assert {arm: int(counts.sum()) for arm, counts in shown.by_arm.items()} == shown.exactly
    assert shown.exactly["__other__"] == 2 * (MAX_ARMS - 1)
    assert shown.exactly["A"] == 3
    by_time = list(shown.first.by_time("A", 3))
    assert [(time // 10**8, sums.tolist()) for time, sums in by_time] == [
        (0, [1, 1, 0]),
        (9, [1, 1, 1]),
        (19, [1, 1, 2]),
    ]
