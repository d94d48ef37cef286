"""Every query of every dashboard, and the gates of releases, on real Prometheus, Kafka and Redis.

Two workers read a stream in which variant B is better, and lists of every kind come. `streameval
forward` reads the same from another topic. Prometheus scrapes all, and evaluates the rules of
deploy/, in which an hour lasts some seconds here.
"""

import asyncio
import json
import random
import re
import threading
import zlib
from collections import Counter
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain, product
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import servers
import service
import yaml
from aiokafka import AIOKafkaProducer
from command_line import streameval
from test_dashboards import BOARDS, board, each_board, queries_of, variables_of
from test_forward import Forward

from streameval.cli import dashboards
from streameval.cli.rules import rules as prometheus_rules
from streameval.config.settings import Settings
from streameval.files.users_past import last_before

pytestmark = [pytest.mark.servers]

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
BEGIN, SINCE = 1_700_092_800_000, "2023-11-16T00:00:00Z"
PARTITIONS = 4
DIMENSIONS = ("variant", "surface")
CLICKS = "positives_per_impression{feedback=click}"
COMMON = {"arm": "variant", "primary": CLICKS, "guardrails": ["ndcg@10"]}
BOTH = {"split": {"A": 1, "B": 1}, "since": SINCE}
SETTINGS = {
    "dimensions": DIMENSIONS,
    "positives": ["click", {"kind": "purchase", "value": "sum"}],
    "windows": [{"size": "1h", "slide": "1m"}],
    "ks": [3, 10],
    "attribution_window": "2m",
    "allowed_lateness": "10s",
    "checkpoint_interval": "1s",
    "snapshot_interval": "10s",
    "experiments": [
        {"name": "better", "control": "A", **BOTH, "crossed_users": "leave_out", **COMMON},
        {"name": "worse", "control": "B", **BOTH, **COMMON},
        {"name": "early", "control": "A", "until": "2023-11-15T01:00:00Z", **COMMON},
    ],
}
SCALED = {
    "[1d:15m] offset 30m": "[15s:1s] offset 2s",
    "[1h:15m] offset 1h": "[3s:1s] offset 3s",
    # A week ago is some seconds ago.
    "interval: 5m": "interval: 1s",
    "offset 1w": "offset 5s",
    "offset 8d": "offset 6s",
    "[10m]": "[4s]",
    "[20m]": "[4s]",
    "interval: 1m": "interval: 1s",
}
"""Durations of the rules that compare with the past, and what they are here."""


# --- the stream -----------------------------------------------------------------------------------


def one_slate(chance, ts, number):
    """The events of a slate and its feedback: B's lists are clicked three times as often.

    Before `BEGIN` everybody has A: users whom B served already would have no past.
    """
    user = f"u{chance.randrange(1500)}"
    variant = "AB"[zlib.crc32(user.encode()) % 2] if ts >= BEGIN else "A"
    request = {"user_id": user, "request_id": f"r{number}"}
    items = [f"i{item}" for item in chance.sample(range(100), chance.choice((0, 2, 5, 5, 5)))]
    yield {"type": "slate", "ts": ts, "variant": variant, "items": items, **request} | {
        "surface": chance.choice(("home", "search")),
        "fallback": chance.random() < 0.1,
        "latency_ms": chance.randrange(20, 200),
    }
    for item in items:
        if chance.random() < (0.1 if variant == "A" else 0.3):
            kind = chance.choice(("click", "click", "purchase"))
            feedback = {"type": "feedback", "item_id": item, "feedback": kind, **request}
            later = {"ts": ts + min(int(chance.expovariate(1 / 20_000)), 100_000)}
            yield feedback | later | ({"value": 5.5} if kind == "purchase" else {})


def past(chance):
    """Two days with few slates up to `BEGIN`, and an hour and a half of the next day with many."""
    times = [BEGIN - 2 * DAY + chance.randrange(2 * DAY) for _ in range(400)]
    times += [BEGIN + chance.randrange(90 * MINUTE) for _ in range(2500)]
    events = [
        event for number, ts in enumerate(sorted(times)) for event in one_slate(chance, ts, number)
    ]
    return sorted(events, key=lambda event: event["ts"])


class Stream:
    """The past at once, then 20 event seconds and some 40 slates a second until it is closed.

    A snapshot in `folder` is waited for between the two days and what follows: the past of users.
    """

    def __init__(self, kafka, topic, folder):
        self._kafka, self._topic, self._folder = kafka, topic, folder
        self._chance = random.Random(7)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._flow()))

    def __enter__(self):
        before, after = [], []
        for event in past(self._chance):
            (before if event["ts"] < BEGIN else after).append(record(event))
        service.produce(self._kafka.port, self._topic, before)
        service.wait_for(lambda: last_before(self._folder, BEGIN), 120, "a snapshot is taken")
        service.produce(self._kafka.port, self._topic, after)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    async def _flow(self):
        producer = AIOKafkaProducer(bootstrap_servers=self._kafka.address)
        await producer.start()
        ts, number, waiting = BEGIN + 90 * MINUTE, 1_000_000, []
        try:
            while not self._ended.is_set():
                for _ in range(10):
                    number += 1
                    moment = ts + self._chance.randrange(5_000)
                    waiting += one_slate(self._chance, moment, number)
                ts += 5_000
                waiting.sort(key=lambda event: event["ts"])
                while waiting and waiting[0]["ts"] < ts:
                    key, value = record(waiting.pop(0))
                    await producer.send(self._topic, value, key=key)
                    await producer.send(other(self._topic), value)
                await producer.send(self._topic, b"not json", key=b"u1")
                await asyncio.sleep(0.25)
        finally:
            await producer.stop()


def other(topic):
    """The topic of the same events with another key."""
    return f"{topic}.other"


def record(event):
    return event["user_id"].encode(), json.dumps(event).encode()


# --- Prometheus -----------------------------------------------------------------------------------


class Prometheus:
    """Answers of a real Prometheus."""

    def __init__(self, address):
        self._address = address

    def get(self, path, **parameters):
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def ask(self, query, **when):
        """The values that a query has now, or at a `time`: [(labels, value)]."""
        found = self.get("query", query=query, **when)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def wait_for(self, condition, seconds, what):
        """Wait as `service.wait_for`; what comes too late names what the scrapes met."""
        try:
            service.wait_for(condition, seconds, what)
        except AssertionError as late:
            scrapes = self.get("targets")["activeTargets"]
            raise AssertionError(f"{late}; scraped: {scrapes}") from None


def configuration(rules, ports):
    targets = [f"127.0.0.1:{port}" for port in ports]
    scraped = {"job_name": "streameval", "static_configs": [{"targets": targets}]}
    often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    return json.dumps({"global": often, "rule_files": [str(rules)], "scrape_configs": [scraped]})


@contextmanager
def forwarding(kafka, redis, topic, folder):
    """`streameval forward` on the other topic, and its port."""
    port, copy, config = servers.free_port(), f"{topic}.copy", folder / "forward.yaml"
    for name in (other(topic), copy):
        service.create_topic(kafka.port, name, 1)
    where = {"kafka": kafka.address, "redis": redis.url, "topic": copy, "group": copy}
    sources = [{"topic": other(topic), "profile": "native"}]
    config.write_text(json.dumps(where | {"listen": f"127.0.0.1:{port}", "forward": sources}))
    one = Forward(config, folder / "forward.log")
    try:
        yield port
        assert one.end() == 0
    finally:
        one.process.kill()


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Prometheus and the workers that it scrapes, while the stream flows."""
    root = tmp_path_factory.mktemp("prometheus")
    rules = root / "rules.yml"
    text = prometheus_rules(Settings(dimensions=DIMENSIONS))
    for duration, here in SCALED.items():
        assert duration in text
        text = text.replace(duration, here)
    rules.write_text(text)
    specification = root / "checks.yaml"
    specification.write_text(json.dumps({"sample_ratio": {"split": {"A": 1, "B": 1}}}))
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = servers.unique("dashboards")
    service.create_topic(kafka.port, topic, PARTITIONS)
    settings = SETTINGS | {
        "outcomes": str(root / "outcomes"),
        "snapshots": str(root / "snapshots"),
        "checks": str(specification),
    }
    workers = [service.Worker(kafka.port, redis.url, topic, **settings) for _ in range(2)]
    with workers[0], workers[1]:
        for worker in workers:
            service.wait_for(lambda worker=worker: worker.page("/healthz"), 120, "pages are served")
        with (
            forwarding(kafka, redis, topic, root) as port,
            Stream(kafka, topic, root / "snapshots"),
            servers.prometheus(
                configuration(rules, [port, *(worker.port for worker in workers)])
            ) as running,
        ):
            yield Prometheus(running.address), workers


# --- dashboards -----------------------------------------------------------------------------------

CHOSEN = {
    "window": "1h",
    "basis": "live|matured|nowcast",
    "feedback": "purchase",
    "k": "10",
    "experiment": "better",
    "control": "A",
    "metric": r"positives_per_impression\\{feedback=click\\}",
    "__rate_interval": "5s",
}
"""Choices among values. Grafana escapes those of which several may be chosen."""


def filled(document, query):
    """A query as Grafana asks it when the dashboard is opened."""
    for name, each in variables_of(document).items():
        if name in CHOSEN or "current" not in each:
            continue
        values = each["current"]["value"]
        value = each["allValue"] if values == ["$__all"] else "|".join(values)
        query = re.sub(rf"\${name}\b", lambda _, value=value: value, query)
    for variable, value in CHOSEN.items():
        query = re.sub(rf"\${variable}\b", lambda _, value=value: value, query)
    # The deploy that is marked for five minutes may have been longer ago on a busy machine.
    query = query.replace("offset 5m", "offset 1d")
    assert not re.search(r"\$[a-z_{]", query)
    return query


def documents(name):
    """A dashboard as it is in deploy/, and for the dimensions of the workers."""
    return [board(name), json.loads(dashboards.dashboard_json(name, DIMENSIONS))]


def defined(values):
    return [value for _, value in values if value == value]


@each_board
def test_every_query_of_a_dashboard_has_data(name, scene):
    """A query that Prometheus refuses raises."""
    prometheus, workers = scene
    missing = {filled(one, query) for one in documents(name) for query in queries_of(one)}

    def complete():
        assert all(worker.running for worker in workers)
        missing.difference_update([query for query in missing if defined(prometheus.ask(query))])
        return not missing

    try:
        prometheus.wait_for(complete, 420, "all queries have data")
    except AssertionError as late:
        for worker in workers:
            print(f"--- a worker said:\n{worker.logged()[-4000:]}")
        pytest.fail(f"{late}\nno data:\n" + "\n".join(sorted(missing)))


@each_board
def test_every_variable_of_a_dashboard_has_choices(name, scene):
    prometheus, workers = scene
    document = documents(name)[1]
    for label, each in variables_of(document).items():
        if each["type"] != "query" or label == "namespace":
            continue
        series, of = re.fullmatch(r"label_values\((.*), (\w+)\)", each["query"]).groups()
        asked = {"match[]": filled(document, series)}
        least = len(workers) if label == "instance" else 1

        def choices(of=of, asked=asked):
            return prometheus.get(f"label/{of}/values", **asked)

        prometheus.wait_for(lambda c=choices, n=least: len(c()) >= n, 60, f"choices of {label}")
        chosen = each.get("current", {}).get("value", ["$__all"])
        assert chosen == ["$__all"] or {*chosen} <= {*choices()}


def test_both_workers_have_a_part_in_what_is_shown(scene):
    """The recorded counts are the sums over two workers, each of which has some."""
    prometheus, workers = scene
    counted = 'streameval_window_users{basis="live", window="1h"}'

    def parts():
        return [value for _, value in prometheus.ask(f"sum by (instance) ({counted})")]

    prometheus.wait_for(
        lambda: len(parts()) == len(workers) and all(parts()), 60, "both workers have users"
    )


def test_annotations_name_verdicts_and_alerts(judged):
    prometheus, _ = judged
    document = board("experiments")
    marks = {mark["name"]: mark for mark in document["annotations"]["list"]}

    def verdicts():
        found = prometheus.ask(filled(document, marks["Verdicts"]["expr"]))
        return {(one["experiment"], one["arm"], one["verdict"]) for one, _ in found}

    decided = {("better", "B", "better"), ("worse", "A", "worse")}
    prometheus.wait_for(lambda: verdicts() == decided, 60, "both verdicts are marked")

    def alerts():
        found = prometheus.ask(filled(document, marks["Alerts"]["expr"]))
        return {labels["alertname"] for labels, _ in found}

    wanted = {"StreamevalVariantBetter", "StreamevalVariantWorse"}
    prometheus.wait_for(lambda: wanted <= alerts(), 60, "both alerts are marked")


# --- figures by rank ------------------------------------------------------------------------------

LENGTHS = {"A": 25, "B": 5}
METRICS = BOARDS["quality"].parent.parent.parent / "docs" / "metrics.md"
RANKS = [*map(str, range(1, 21)), "21+"]
BY_RANK = "Positives of $feedback per impression by rank, over time"
OVER_EXPECTED = "Positives of $feedback over expected, by variant"


def planted():
    """Impressions and clicks by worker, variant, surface and rank, with totals.

    B's lists are shorter, and at the same ranks they have about 0.9 times the clicks of A's.
    """
    chance, counts = random.Random(5), Counter()
    for worker, variant, surface in product("ab", LENGTHS, ("home", "search")):
        for rank in range(1, LENGTHS[variant] + 1):
            impressions = chance.randrange(500, 1000)
            rate = 0.3 / rank * {"A": 1, "B": 0.9}[variant]
            clicks = sum(chance.random() < rate for _ in range(impressions))
            for total in product({variant, "__all__"}, {surface, "__all__"}):
                key = (worker, *total, RANKS[min(rank, 21) - 1])
                counts[*key, "impressions"] += impressions
                counts[*key, "positives"] += clicks
    return counts


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Prometheus with the planted counts at `BEGIN`, and the counts."""
    counts, families = planted(), {}
    for (worker, variant, surface, rank, of), count in counts.items():
        where = f'job="streameval",instance="{worker}",window="24h",basis="matured"'
        labels = f'{where},variant="{variant}",surface="{surface}",rank="{rank}"'
        labels += ',feedback="click"' if of == "positives" else ""
        name = f"streameval_window_rank_{of}"
        sample = f"{name}{{{labels}}} {count} {BEGIN // 1000}"
        families.setdefault(name, [f"# TYPE {name} gauge"]).append(sample)
    path = tmp_path_factory.mktemp("ranks") / "ranks.om"
    path.write_text("\n".join([*chain(*families.values()), "# EOF\n"]))
    with servers.prometheus("{}", openmetrics=path) as running:
        yield Prometheus(running.address), counts


def of_variant(counts, variant):
    """Impressions and clicks of a variant by rank, without totals."""
    found = {}
    for (_, of, surface, rank, name), count in counts.items():
        if of == variant and surface != "__all__":
            found.setdefault(rank, Counter())[name] += count
    return found


def over_expected(arm, control):
    both = arm.keys() & control.keys()
    expected = sum(
        arm[rank]["impressions"]
        * Fraction(control[rank]["positives"], control[rank]["impressions"])
        for rank in both
    )
    return sum(arm[rank]["positives"] for rank in both) / expected


def panel_query(document, title):
    (query,) = (
        target["expr"]
        for panel in document["panels"]
        if panel["title"] == title
        for target in panel["targets"]
    )
    return query.replace("$feedback", "click")


@pytest.mark.parametrize("control", LENGTHS)
def test_positives_over_expected_are_those_of_the_planted_counts(control, ranks):
    """A shows ranks that B lacks, so with B as the control they are left out."""
    prometheus, counts = ranks
    arms = {variant: of_variant(counts, variant) for variant in LENGTHS}
    expected = {name: float(over_expected(arm, arms[control])) for name, arm in arms.items()}
    assert expected[control] == 1
    for document in documents("quality"):
        query = panel_query(document, OVER_EXPECTED).replace("$control", control)
        found = prometheus.ask(filled(document, query), time=BEGIN // 1000)
        assert {one["variant"]: value for one, value in found} == pytest.approx(expected, rel=1e-12)
    (query,) = re.findall(r"```promql\n([^`]*rank_positives[^`]*)```", METRICS.read_text())
    query = query.replace('variant="A"', f'variant="{control}"')
    found = prometheus.ask(query, time=BEGIN // 1000)
    in_docs = {one["variant"]: value for one, value in found if one["variant"] != "__all__"}
    assert in_docs == pytest.approx(expected, rel=1e-12)


def test_lists_that_are_only_shorter_are_not_better(ranks):
    """B has more clicks per impression than A, and fewer than A at the same ranks."""
    a, b = (of_variant(ranks[1], variant) for variant in LENGTHS)
    rates = [
        Fraction(*(sum(of[name] for of in arm.values()) for name in ("positives", "impressions")))
        for arm in (a, b)
    ]
    assert rates[1] > 2 * rates[0]
    assert 0.8 < over_expected(b, a) < 1


def test_rows_of_the_heat_map_come_in_the_order_of_ranks(ranks):
    """They hold all segments, and so does a cell; Grafana keeps the order of the series."""
    prometheus, counts = ranks
    arms = [of_variant(counts, variant) for variant in LENGTHS]
    times = {"start": BEGIN // 1000, "end": BEGIN // 1000 + 60, "step": 60}
    for document in documents("quality"):
        query = filled(document, panel_query(document, BY_RANK))
        found = prometheus.get("query_range", query=query, **times)["result"]
        assert [one["metric"]["rank"] for one in found] == [rank.zfill(2) for rank in RANKS]
        for rank, one in zip(RANKS, found, strict=True):
            total = sum((arm[rank] for arm in arms if rank in arm), Counter())
            share = total["positives"] / total["impressions"]
            assert [float(value) for _, value in one["values"]] == pytest.approx([share] * 2)


# --- gates ----------------------------------------------------------------------------------------

GATES = BOARDS["quality"].parent.parent / "gates"
EXPECTED = {"better": "passed", "worse": "failed", "early": "open"}
each_experiment = pytest.mark.parametrize("experiment", EXPECTED)


def resources(name):
    """The resources of a file of gates, by kind and name."""
    found = yaml.safe_load_all((GATES / name).read_text())
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in found}


@pytest.fixture(scope="module")
def judged(scene):
    """Wait until the leader has judged all experiments, the planted ones for good."""
    prometheus, workers = scene
    series = "min by (experiment) (streameval_experiment_gate)"
    numbers = {"better": 1, "worse": -1, "early": 0}
    prometheus.wait_for(
        lambda: {one["experiment"]: value for one, value in prometheus.ask(series)} == numbers,
        120,
        "the gates are decided",
    )
    return prometheus, workers


def condition(text, result):
    """What Argo's conditions say of a vector, in the part of their language that gates use."""
    python = text.replace("&&", "and").replace("||", "or")
    assert re.fullmatch(r"[\w\s\[\]().<>=-]+", python), "a condition of another form"
    return eval(python, {"__builtins__": {}}, {"result": result, "len": len})


def argo(prometheus, template, arguments):
    """The phase of a measurement, as Argo Rollouts gives it (utils/evaluate)."""
    given = {each["name"]: each.get("value") for each in template["args"]} | arguments
    (metric,) = template["metrics"]

    def resolved(text):
        return re.sub(r"{{args\.(\w+)}}", lambda gap: given[gap[1]], text)

    assert resolved(metric["provider"]["prometheus"]["address"]).startswith("http://")
    query = resolved(metric["provider"]["prometheus"]["query"])
    assert "{{" not in query
    result = [value for _, value in prometheus.ask(query)]
    if condition(metric["failureCondition"], result):
        return "Failed"
    return "Successful" if condition(metric["successCondition"], result) else "Inconclusive"


PHASES = {"passed": "Successful", "failed": "Failed", "open": "Inconclusive"}


@each_experiment
def test_argos_template_says_what_the_gate_says(experiment, judged):
    template = resources("argo-rollouts.yaml")["AnalysisTemplate", "streameval-experiment"]
    phase = argo(judged[0], template, {"experiment": experiment})
    assert phase == PHASES[EXPECTED[experiment]]


def test_argo_waits_where_nobody_shows_the_experiment(judged):
    template = resources("argo-rollouts.yaml")["AnalysisTemplate", "streameval-experiment"]
    assert argo(judged[0], template, {"experiment": "nobody's"}) == "Inconclusive"


@pytest.mark.parametrize(
    ("experiment", "arm", "margin", "phase"),
    [
        ("better", "B", "0", "Successful"),
        ("worse", "A", "0", "Failed"),
        ("worse", "A", "0.001", "Failed"),
        ("worse", "A", "0.9", "Successful"),
        ("early", "B", "0", "Inconclusive"),
    ],
)
def test_argos_template_of_a_bound_takes_a_margin(experiment, arm, margin, phase, judged):
    template = resources("argo-rollouts.yaml")["AnalysisTemplate", "streameval-bound"]
    arguments = {"experiment": experiment, "arm": arm, "metric": CLICKS, "margin": margin}
    assert argo(judged[0], template, arguments) == phase


def flagger(prometheus, check, **changed):
    """Whether a check of a canary passes, as Flagger judges it (pkg/controller)."""
    template = resources("flagger.yaml")["MetricTemplate", check["templateRef"]["name"]]
    given = check["templateVariables"] | changed
    query = re.sub(r"{{ variables\.(\w+) }}", lambda gap: given[gap[1]], template["query"])
    assert "{{" not in query
    values = [value for _, value in prometheus.ask(" ".join(query.split()))]
    accepted = check["thresholdRange"]
    return bool(values) and accepted["min"] <= values[-1]


def canary():
    """The metrics of the example, by name."""
    metrics = resources("flagger.yaml")["Canary", "ranker"]["analysis"]["metrics"]
    return {metric["name"]: metric for metric in metrics}


@pytest.mark.parametrize(
    ("experiment", "least", "passes"),
    [
        ("better", 0, True),
        ("better", 1, True),
        ("early", 0, True),
        ("early", 1, False),
        ("worse", 0, False),
        ("nobody's", 0, False),
    ],
)
def test_flaggers_template_says_what_the_gate_says(experiment, least, passes, judged):
    check = canary()["streameval-gate"] | {"thresholdRange": {"min": least}}
    assert flagger(judged[0], check, experiment=experiment) is passes


@pytest.mark.parametrize("template", ["streameval-lower-bound", "streameval-upper-bound"])
@pytest.mark.parametrize(("experiment", "arm"), [("better", "B"), ("worse", "A")])
def test_flaggers_bounds_part_better_from_worse(template, experiment, arm, judged):
    check = canary()["ndcg-loss"] | {"templateRef": {"name": template}}
    passes = flagger(judged[0], check, experiment=experiment, arm=arm, metric=CLICKS)
    assert passes is (experiment == "better")


@each_experiment
def test_the_command_ends_with_what_the_gate_says(experiment, judged):
    _, workers = judged
    done = streameval("experiment", experiment, "--gate", "--config", workers[0].config, text=True)
    codes = {"passed": 0, "failed": 1, "open": 4}
    assert done.returncode == codes[EXPECTED[experiment]], done.stdout + done.stderr


def test_the_example_of_a_rollout_gives_its_templates_their_arguments():
    found = resources("argo-rollouts.yaml")
    *_, step = found["Rollout", "ranker"]["strategy"]["canary"]["steps"]
    given = {each["name"] for each in step["analysis"]["args"]}
    known = set()
    for each in step["analysis"]["templates"]:
        arguments = found["AnalysisTemplate", each["templateName"]]["args"]
        assert {one["name"] for one in arguments if "value" not in one} <= given
        known |= {one["name"] for one in arguments}
    assert given <= known


def test_the_example_of_a_canary_names_templates_that_exist():
    found = resources("flagger.yaml")
    for metric in canary().values():
        template = found["MetricTemplate", metric["templateRef"]["name"]]
        asked = set(re.findall(r"{{ variables\.(\w+) }}", template["query"]))
        assert asked == set(metric["templateVariables"])
