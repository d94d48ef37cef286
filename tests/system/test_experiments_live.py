"""Experiments survive kills: the same scorecard as a replay's, to the bit. Real Kafka, real Redis.

Workers are killed, the leader among them, and Redis is killed and started again, while users flow
into the arms and some of them cross. `STREAMEVAL_CHAOS_SEED` replays one.
"""

import json
import os
import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
import servers
import service
from command_line import streameval
from scene import SETTINGS
from traffic import traffic

from streameval.base.steps import drain
from streameval.core.events import EventDecoder
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers, UserArms
from streameval.core.partition import Partition
from streameval.experiments.scorecard import sections
from streameval.files.snapshot_folder import snapshots

PARTITIONS = 3
EVENTS = 20_000
pytestmark = [pytest.mark.servers, pytest.mark.slow]

BASE, HOUR = 1_700_000_000_000, 3_600_000
CLICKS = "positives_per_impression{feedback=click}"
EXPERIMENTS = [
    {
        "name": "ranker",
        "arm": "variant",
        "control": "A",
        "split": {"A": 1, "B": 1},
        "primary": CLICKS,
        "guardrails": ["ndcg@10", {"metric": "empty_rate", "margin": 0.01}],
    },
    {"name": "until", "arm": "variant", "control": "B", "primary": "ndcg@5"},
]


def replayed(definition, log):
    """The sections of the experiments by the core alone, each partition read in one go."""
    sums = [ArmSums(experiment) for experiment in definition.experiments]
    users = {experiment.key: ArmUsers() for experiment in definition.experiments}
    decoder = EventDecoder.of(definition)
    for records in log.values():
        partition, arms = Partition(definition), UserArms()
        _, timestamps, _, values = zip(*records, strict=True)
        events, _ = decoder.decode_batch(list(values), list(timestamps))
        partition.apply(events)
        partition.flush()
        drain(partition.finalizing())
        arms.add(partition.experiments.take_visits())
        for total, part in zip(sums, partition.experiments.arm_sums, strict=True):
            total.merge(part)
        for key, counts in arms.counts.items():
            users[key].add(counts)
    return sections(definition, sums, users)


def command(worker, *arguments):
    """Run a command of streameval with the configuration of a worker."""
    done = streameval(*arguments, "--config", worker.config, text=True)
    assert done.returncode in {0, 1, 4}, done.stderr
    return done


def printed(worker, name, *options):
    """What `streameval experiment NAME` prints with `options`, and its exit code."""
    done = command(worker, "experiment", name, *options)
    return done.stdout, done.returncode


def scorecard(worker, name):
    """The rows of an experiment, as programs read them."""
    document = json.loads(printed(worker, name, "--json")[0])
    return {section: document[section] for section in ("experiments", "splits")}


def test_the_scorecard_survives_kills_of_workers_leader_and_redis():
    seed = int(os.environ.get("STREAMEVAL_CHAOS_SEED") or secrets.randbelow(1_000_000))
    print(f"replay: STREAMEVAL_CHAOS_SEED={seed}")
    rng = random.Random(seed)
    plan = [kill_a_worker] * 3 + [kill_the_leader] * 2 + [kill_redis] * 2
    rng.shuffle(plan)
    gaps = [rng.uniform(1.0, 4.0) for _ in plan]
    settings = SETTINGS | {"experiments": EXPERIMENTS}
    kafka, topic = servers.shared_kafka(), servers.unique()
    with (
        servers.redis(aof="always") as redis,
        ThreadPoolExecutor() as pool,
    ):
        service.create_topic(kafka.port, topic, PARTITIONS)
        records = list(traffic(seed, EVENTS, tail=0.05, step=2_000))
        workers = [service.Worker(kafka.port, redis.url, topic, **settings) for _ in range(2)]
        with workers[0], workers[1]:
            sending = pool.submit(service.produce, kafka.port, topic, records, seconds=sum(gaps))
            for fault, gap in zip(plan, gaps, strict=True):
                sleep(gap)
                fault(workers, redis, rng)
            assert sending.result() == len(records)
            log, ends = service.read_log(kafka.port, topic, PARTITIONS)
            service.wait_until_read(redis.url, topic, ends)
            wanted = replayed(workers[0].definition, log)
            compare(workers, wanted)


def test_a_late_experiment_is_filled_from_outcome_files_whatever_is_killed(tmp_path):
    """It is configured when its slates are in files already; the stream stands still from then."""
    settings = SETTINGS | {"outcomes": str(tmp_path), "checkpoint_interval": "1s"}
    kafka, topic = servers.shared_kafka(), servers.unique()
    with servers.redis(aof="always") as redis:
        service.create_topic(kafka.port, topic, PARTITIONS)
        service.produce(kafka.port, topic, traffic(7, EVENTS, tail=0.05, step=2_000))
        log, ends = service.read_log(kafka.port, topic, PARTITIONS)
        with service.Worker(kafka.port, redis.url, topic, **settings) as before:
            service.wait_until_read(redis.url, topic, ends)
            assert before.stop() == 0, before.logged()[-3000:]
        since = [one | {"since": "2020-01-01T00:00:00Z"} for one in EXPERIMENTS]
        with service.Worker(kafka.port, redis.url, topic, **settings, experiments=since) as worker:
            for kills in range(3):
                service.wait_for(
                    lambda kills=kills: worker.logged().count(" counts from ") > kills,
                    60,
                    "an hour is filled",
                )
                sleep(random.Random(kills).uniform(0, 1.5))
                worker.kill()
                worker.start()
            wanted = replayed(worker.definition, log)
            compare([worker], wanted)


def test_the_leader_adjusts_by_the_past_as_compare_does(tmp_path):
    """Events an hour apart, and `since` between them; one snapshot is kept beside the past."""
    outcomes, root = tmp_path / "outcomes", tmp_path / "snapshots"
    settings = SETTINGS | {"outcomes": str(outcomes), "snapshots": str(root)}
    settings |= {"checkpoint_interval": "1s", "snapshot_interval": "10s", "snapshot_keep": 1}
    settings["experiments"] = [EXPERIMENTS[0] | {"since": "2023-11-14T23:13:20Z"}]
    kafka, topic = servers.shared_kafka(), servers.unique()
    with servers.redis(aof="always") as redis:
        service.create_topic(kafka.port, topic, PARTITIONS)
        with service.Worker(kafka.port, redis.url, topic, **settings) as worker:
            send(kafka, redis, topic, traffic(7, EVENTS, tail=0.05, step=280))
            command(worker, "snapshot")
            assert all("adjusted" not in row for row in scorecard(worker, "ranker")["experiments"])
            send(kafka, redis, topic, traffic(8, EVENTS, tail=0.05, step=280, begin=3_600_000))

            service.wait_for(lambda: snapshots(root / "past"), 60, "newer ones push the past aside")
            (past,) = snapshots(root / "past")

            def compared():
                given = ("--experiment", "ranker", "--before", past, "--json")
                rows = json.loads(command(worker, "compare", outcomes, *given).stdout)
                return {
                    (row["metric"], row["arm"]): row["adjusted"]
                    for row in rows["experiments"]
                    if row["adjusted"]["theta"] is not None
                }

            def shown_low():
                return {
                    (metric, arm): value
                    for (_, arm, metric), value in shown([worker], "adjusted_low").items()
                }

            service.wait_for(
                lambda: shown_low() == {key: row["low"] for key, row in compared().items()},
                90,
                "the leader shows the bounds of compare",
            )
            wanted = compared()
            assert wanted.keys() == {(CLICKS, "B"), ("ndcg@10", "B")}, "no list is empty"
            for row in scorecard(worker, "ranker")["experiments"]:
                found = wanted.get((row["metric"], row["arm"]))
                assert (found is not None) == ("adjusted" in row)
                if found is not None:
                    assert {name: row["adjusted"][name] for name in found} == found
            said = printed(worker, "ranker")[0]
            assert "B against A, adjusted by what" in said
            service.wait_for(
                lambda: "B against A, adjusted by what" in worker.page("/api/v1/experiments"),
                30,
                "the API says it",
            )
            listed = json.loads(worker.page("/api/v1/experiments/ranker"))
            assert [("adjusted" in row) for row in listed["experiments"]][:3] == [1, 1, 0]
            assert "adjusted" not in worker.logged()


def shown_to(users, begin):
    """A slate for each of `users`, in both arms by turns, and a later one that makes them final."""
    for number, user in enumerate(users):
        value = {"type": "slate", "ts": begin + number, "user_id": user, "items": ["x", "y"]}
        value |= {"request_id": f"{begin}-{number}", "variant": "AB"[number % 2]}
        yield user.encode(), json.dumps(value).encode()
    later = {"type": "slate", "ts": begin + HOUR, "user_id": "z", "request_id": f"{begin}"}
    yield b"z", json.dumps(later | {"items": ["x"]}).encode()


@pytest.mark.parametrize("how", ["reset", "left out for a while"])
def test_an_experiment_that_begins_anew_has_users_of_its_own(how):
    """Its sums begin anew, and a figure per user would be too small with the users of before."""
    settings = SETTINGS | {"allowed_lateness": "1s", "checkpoint_interval": "1s"}
    kafka, topic = servers.shared_kafka(), servers.unique()
    with servers.redis() as redis:
        service.create_topic(kafka.port, topic, 1)
        worker = service.Worker(
            kafka.port, redis.url, topic, **settings, experiments=[EXPERIMENTS[0]]
        )
        without = service.Worker(kafka.port, redis.url, topic, **settings)

        def users():
            (split,) = scorecard(worker, "ranker")["splits"]
            return split["users"]

        def serve(one, records, expected, *arguments):
            with one.start(*arguments):
                send(kafka, redis, topic, records, 1)
                if one is worker:
                    service.wait_for(lambda: users() == expected, 30, f"{users()} is {expected}")
                assert one.stop() == 0, one.logged()[-3000:]

        serve(worker, shown_to([f"old{n}" for n in range(40)], BASE), {"A": 20, "B": 20})
        new = shown_to(["old1", *(f"new{n}" for n in range(9))], BASE + 5 * HOUR)
        if how == "reset":
            settings["allowed_lateness"] = "2s"
            worker.config.write_text(json.dumps(json.loads(worker.config.read_text()) | settings))
            serve(worker, new, {"A": 5, "B": 5}, "--reset-windows")
        else:
            serve(without, shown_to(["old2"], BASE + 2 * HOUR), {})
            serve(worker, new, {"A": 5, "B": 5})
        more = shown_to(["new1", "new20"], BASE + 7 * HOUR)
        serve(worker, more, {"A": 5, "B": 6})
        found = json.loads(command(worker, "user", "old1", "--json").stdout)
        assert found["arms"] == {"ranker": ["A"]}, "it was in B before"


def send(kafka, redis, topic, records, partitions=PARTITIONS):
    """Send records, and wait until all are counted."""
    service.produce(kafka.port, topic, records)
    _, ends = service.read_log(kafka.port, topic, partitions)
    service.wait_until_read(redis.url, topic, ends)


def compare(workers, wanted):
    """The terminal, the pages of both workers and the series of the leader say what is `wanted`."""
    for name in ("ranker", "until"):
        of_name = {
            "experiments": [row for row in wanted["experiments"] if row["name"] == name],
            "splits": [row for row in wanted["splits"] if row["experiment"] == name],
        }
        assert any(row["low"] is not None for row in of_name["experiments"]), "there are bounds"
        service.wait_for(
            lambda name=name, of_name=of_name: scorecard(workers[0], name) == of_name,
            60,
            f"{name}: {scorecard(workers[0], name)} is {of_name}",
        )
    said, code = printed(workers[0], "ranker", "--gate")
    sentence = said.splitlines()[0]
    assert "have been in several arms" in said
    assert (code, "The gate has failed: " in said) == (1, True), "crossed users fail the gate"
    rows = {(row["name"], row["arm"], row["metric"]): row for row in wanted["experiments"]}
    service.wait_for(lambda: shown(workers, "low") == of(rows, "low"), 30, "the leader's series")
    for column in ("difference", "high", "relative_difference", "users_needed"):
        assert shown(workers, column) == of(rows, column)
    for worker in workers:
        if worker.running:
            service.wait_for(
                lambda worker=worker: sentence in sentences_of(worker), 30, f"it says {sentence}"
            )


def sentences_of(worker):
    """What the page says of all experiments."""
    cards = json.loads(worker.page("/api/v1/experiments"))["experiments"]
    return [sentence for card in cards for sentence in card["sentences"]]


def of(rows, column):
    return {key: row[column] for key, row in rows.items() if row[column] is not None}


def shown(workers, column):
    """The samples of a figure, of all workers together: only the leader has them."""
    return {
        tuple(dict(labels)[name] for name in ("experiment", "arm", "metric")): value
        for worker in workers
        if worker.running
        for (name, labels), value in worker.metrics().items()
        if name == f"streameval_experiment_{column}"
    }


def kill_a_worker(workers, _redis, rng):
    victim = rng.choice([worker for worker in workers if worker.running] or workers)
    restart(victim)
    for worker in workers:
        if not worker.running:
            worker.start()


def kill_the_leader(workers, _redis, rng):
    leaders = [worker for worker in workers if leads(worker)]
    restart(rng.choice(leaders or workers))


def restart(worker):
    if worker.running:
        worker.kill()
    worker.start()


def leads(worker):
    try:
        found = worker.metrics()
    except OSError:  # it has just been started
        return False
    return found.get(("streameval_leader", frozenset())) == 1


def kill_redis(_workers, redis, rng):
    redis.kill()
    sleep(rng.uniform(0, 2))
    redis.start()
