"""The API on real servers: two workers give the figures of the whole topic, and the same ones."""

import asyncio
import json
import math
import os
import random
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import browser
import programs
import pytest
import servers
import service
from command_line import streameval
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters
from openapi_spec_validator import OpenAPIV31SpecValidator

from streameval.config.load import load
from streameval.core.figures import SECTIONS
from streameval.store.shared_store import SharedStore
from streameval.web.intervals import with_intervals
from streameval.web.whole_topic import WholeTopic
from streameval.worker.history_job import HistoryJob

pytestmark = pytest.mark.servers

API = Path(__file__).parents[2] / "docs" / "api.md"
SLIDE = 600_000
END = 1_700_000_400_000 // SLIDE * SLIDE + 60_000  # figures stay for nine minutes of idling
PRIMARY = "positives_per_impression{feedback=click}"
TOKEN = "a token of sixteen characters or more"
SETTINGS = {
    "attribution_window": "5m",
    "windows": [{"size": "30m", "slide": "10m"}, {"size": "2h", "slide": "10m"}],
    "positives": ["click", {"kind": "purchase", "value": "sum"}],
    "session_timeout": "6s",
    "user_token": TOKEN,
    "experiments": [
        {
            "name": "ranker",
            "arm": "variant",
            "control": "A",
            "split": {"A": 1, "B": 1},
            "primary": PRIMARY,
        }
    ],
}
EXACT = ("ranking", "values", "lists", "ranks")


def events(count=1_500, users=300):
    """Records (key, value) in order of time, the last ones at `END`."""
    rng = random.Random(14)
    found = []
    for number in range(count):
        ts = END - 40_000 - (count - number) * 2_500
        user = f"u{rng.randrange(users)}"
        items = [f"i{item}" for item in rng.sample(range(50), rng.choice((0, 5, 10)))]
        slate = {"type": "slate", "ts": ts, "user_id": user, "request_id": f"r{number}"}
        found.append(slate | {"items": items, "variant": "AB"[int(user[1:]) % 2]})
        feedback = {"type": "feedback", "user_id": user, "request_id": f"r{number}"}
        for item in items:
            if rng.random() < 0.1:
                found.append(feedback | {"ts": ts + 900, "item_id": item, "feedback": "click"})
            if rng.random() < 0.02:
                bought = {"feedback": "purchase", "value": round(rng.uniform(1, 99), 2)}
                found.append(feedback | {"ts": ts + 900, "item_id": item} | bought)
    found += [
        {"type": "impression", "ts": END, "user_id": f"last{number}", "item_id": "i1"}
        | {"variant": "A"}
        for number in range(40)
    ]
    return [(event["user_id"].encode(), json.dumps(event).encode()) for event in found]


def get(worker, path, **headers):
    """Status, headers and document of a path of the API, which is as the API describes itself."""
    status, fields, document = ask(worker, path, **headers)
    _, _, described = ask(worker, "/openapi.json")
    get_ = next(
        paths["get"]
        for pattern, paths in described["paths"].items()
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", f"{pattern}"), f"/api/v1{path.split('?')[0]}")
    )
    if document is not None:
        schema = get_["responses"][str(status)]["content"]["application/json"]["schema"]
        Draft202012Validator(schema | {"components": described["components"]}).validate(document)
    return status, fields, document


def ask(worker, path, **headers):
    """Status, headers and document of a path of the API."""
    url = f"http://127.0.0.1:{worker.port}/api/v1{path}"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        body = answer.read()
        return answer.status, answer.headers, json.loads(body) if body else None


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Two workers that have read a log, and what `replay --json` says of it, with intervals."""
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = group = servers.unique("api")
    service.create_topic(kafka.port, topic)
    records = events()
    settings = SETTINGS | {"group": group}
    workers = [service.Worker(kafka.port, redis.url, topic, **settings) for _ in range(2)]
    with workers[0], workers[1]:
        service.wait_for(
            lambda: all(shares(worker) == [2, 2] for worker in workers), 60, "two partitions each"
        )
        service.produce(kafka.port, topic, records)
        _, ends = service.read_log(kafka.port, topic, 4)
        assert all(ends.values())
        service.wait_until_read(redis.url, topic, ends, group=group)
        log = tmp_path_factory.mktemp("log") / "events.jsonl"
        log.write_bytes(b"".join(value + b"\n" for _, value in records))
        wanted = replayed(log, workers[0].config)
        sections = {name: rows for name, rows in wanted.items() if isinstance(rows, list)}
        yield workers, wanted | with_intervals(sections, ("variant",))


def shares(worker):
    """How many partitions each worker of the group has, as this one knows."""
    found = get(worker, "/health")[2]["partitions"]
    return sorted(Counter(each["worker"] for each in found).values())


def printed(*arguments):
    """What a command prints as JSON."""
    done = streameval(*arguments, "--json", text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def replayed(log, config):
    return printed("replay", log, "--config", config)


def of(document, section):
    return [row for row in document[section] if row.get("basis", "live") != "nowcast"]


def complete(worker, wanted):
    """The figures of the worker, once they are of the whole log."""
    found = {}

    def read():
        found["last"] = get(worker, "/figures")
        document = found["last"][2]
        read = document.get("events") == wanted["events"]
        return read and of(document, "lists") == of(wanted, "lists")

    service.wait_for(read, 60, f"{found} has the whole log")
    return found["last"]


def test_two_workers_give_the_figures_of_a_replay(running):
    workers, wanted = running
    answers = [complete(worker, wanted) for worker in workers]
    for _, headers, found in answers:
        partitions = found["partitions"]
        made = time.time() - partitions.pop("made_at") / 1000
        assert -1 < made < 15, "of sums no older than that, or they are stale"
        assert partitions == {"shown": [0, 1, 2, 3], "of": 4, "stale": [], "missing": []}
        assert found["workers"] == 2
        assert found["watermark"] == wanted["watermark"] == END
        assert found["segments_in_other"] == 0
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        for section in EXACT:
            assert of(found, section) == of(wanted, section), section
        compare_rates(of(found, "rates"), of(wanted, "rates"))
    assert any(row["value"] for row in answers[0][2]["values"])
    one, other = (found for _, _, found in answers)
    for section in (*EXACT, "rates"):
        assert of(one, section) == of(other, section), "the same bits, whoever is asked"


def compare_rates(found, wanted):
    """Sums to the bit; means over users merge by Chan's formula, to 1e-12."""
    assert len(found) == len(wanted) > 0
    for row, same in zip(found, wanted, strict=True):
        means = {name for name in row if name.startswith("positive_rate")}
        assert all(math.isclose(row[name], same[name], rel_tol=1e-12) for name in means)
        assert {k: v for k, v in row.items() if k not in means} == {
            k: v for k, v in same.items() if k not in means
        }


def test_the_page_of_each_worker_shows_the_figures_of_both(running):
    """Each has two of four partitions; both show the sum, which is the whole log's."""
    workers, wanted = running
    complete(workers[0], wanted)
    slates = {
        row["variant"]: f"{row['slates']:,}"
        for row in wanted["lists"]
        if (row["window"], row["basis"]) == ("2h", "matured")
    }

    async def read(tab, worker):
        page = await tab()
        await page.open(f"http://127.0.0.1:{worker.port}/?window=2h&basis=matured")
        await page.wait_for("document.querySelector('#freshness').innerText.includes('4 of 4')")
        await page.wait_for("document.querySelector('#key-figures .compared') !== null")
        assert page.complaints == []
        return await page.text("#key-figures")

    async def both():
        async with browser.browser() as tab:
            return [await read(tab, worker) for worker in workers]

    one, other = asyncio.run(both())
    assert one == other
    assert re.search(r"slates\s+" + r"\s+".join(slates[name] for name in sorted(slates)), one)


def test_one_window_and_basis_may_be_asked_for(running):
    workers, wanted = running
    complete(workers[0], wanted)
    _, _, found = get(workers[1], "/figures?window=2h&basis=matured")
    rows = [row for section in (*EXACT, "rates") for row in found[section]]
    assert {(row["window"], row["basis"]) for row in rows} == {("2h", "matured")}
    assert found["ranking"] == [
        row for row in wanted["ranking"] if (row["window"], row["basis"]) == ("2h", "matured")
    ]


def test_rows_come_in_pages(running):
    workers, wanted = running
    whole = [row for row in complete(workers[0], wanted)[2]["ranks"] if row["basis"] == "matured"]
    rows, after = [], 0
    while after is not None:
        path = f"/figures?basis=matured&section=ranks&limit=7&after={after}"
        _, _, found = get(workers[0], path)
        assert "rates" not in found
        assert len(found["ranks"]) == min(7, len(whole) - after)
        rows += found["ranks"]
        after = found["next"]
    assert rows == whole


def test_a_client_that_has_the_document_gets_no_copy(running):
    workers, wanted = running
    complete(workers[0], wanted)

    def unchanged():
        _, headers, _ = get(workers[0], "/figures?basis=matured")
        status, again, found = get(
            workers[0], "/figures?basis=matured", **{"If-None-Match": headers["ETag"]}
        )
        return status == 304 and found is None and again["ETag"] == headers["ETag"]

    service.wait_for(unchanged, 20, "the same document twice")


def wait_until_judged(workers, wanted):
    def judged():
        cards = [get(worker, "/experiments")[2]["experiments"] for worker in workers]
        return cards[0] == cards[1] and cards[0][0]["splits"] == wanted["splits"]

    service.wait_for(judged, 60, "scorecards of all partitions")


def test_experiments_are_those_of_the_command(running):
    workers, wanted = running
    wait_until_judged(workers, wanted)
    card = get(workers[1], "/experiments/ranker")[2]
    said = printed("experiment", "ranker", "--config", workers[0].config)
    assert {name: part for name, part in card.items() if name != "history"} == said


def test_health_is_that_of_all_workers(running):
    workers, _ = running

    def agreed():
        found = [get(worker, "/health")[2] for worker in workers]
        return all(health["ready"] and health["lag"] == 0 for health in found) and found

    service.wait_for(agreed, 30, "all is well")
    for health in agreed():
        assert [each["partition"] for each in health["partitions"]] == [0, 1, 2, 3]
        assert {each["state"] for each in health["partitions"]} == {"running"}
        assert len({each["worker"] for each in health["partitions"]}) == 2
        assert sorted(worker["leader"] for worker in health["workers"]) == [False, True]
        assert health["missing_partitions"] == []


def test_a_copy_with_another_redis_takes_partitions_away_and_is_told():
    """Kafka shares the partitions of a group out, whatever stores its members have."""
    kafka, topic = servers.shared_kafka(), servers.unique("copied")
    service.create_topic(kafka.port, topic, 4)
    with (
        servers.redis() as redis,
        servers.redis() as another,
        service.Worker(kafka.port, redis.url, topic) as worker,
    ):
        worker.wait_until_up()
        service.wait_for(lambda: get(worker, "/health")[2]["ready"], 60, "it has all partitions")
        assert worker.metrics()["streameval_topic_partitions", frozenset()] == 4
        with service.Worker(kafka.port, another.url, topic) as copy:
            copy.wait_until_up()
            for each in (worker, copy):
                service.wait_for(
                    lambda of=each: "another deployment" in str(get(of, "/health")[2]["reason"]),
                    60,
                    "it is told",
                )

                def held(of=each):
                    return sum(name == "streameval_restoring" for name, _ in of.metrics())

                service.wait_for(lambda held=held: held() == 2, 30, "it has half of them")


def test_checks_are_empty_where_none_are_configured(running):
    workers, _ = running
    assert [get(worker, "/checks")[2]["checks"] for worker in workers] == [[], []]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/history?hours=25", 400, "hours: write a number from 1 to 24"),
        ("/history?section=ranks", 400, "section: write one of rates, ranking, values, lists"),
        ("/experiments/absent", 404, "no experiment has this name: ranker"),
        ("/experiments/ranker?metric=ndcg@10", 400, f"metric: write one of {PRIMARY}"),
        ("/figures?window=1h", 400, "window: write one of 30m, 2h"),
        (
            "/figures?limit=5",
            400,
            f"limit, after: they need a section, one of {', '.join(SECTIONS)}",
        ),
        ("/figures?section=rates&limit=0", 400, "limit: write a number from 1 to 10000000"),
        ("/figures?basis=x", 400, "basis: write one of live, matured, nowcast"),
        (
            "/figures?bases=live",
            400,
            "unknown parameter: /api/v1/figures has window, basis, section, limit, after",
        ),
        ("/health?a=b", 400, "unknown parameter: /api/v1/health has no parameters"),
    ],
)
def test_a_bad_request_gets_one_line(running, path, status, said):
    workers, _ = running
    answer = get(workers[0], path)
    assert (answer[0], answer[2]) == (status, {"error": said})


def test_a_path_that_does_not_exist_names_the_description(running):
    workers, _ = running
    status, _, error = ask(workers[0], "/nothing")
    assert status == 404
    assert error == {"error": "no such path: /api/v1/openapi.json lists all of them"}


def test_the_description_is_openapi(running):
    workers, _ = running
    (_, headers, described), (_, _, same) = (ask(worker, "/openapi.json") for worker in workers)
    OpenAPIV31SpecValidator(described).validate()
    assert headers["Content-Type"] == "application/json"
    assert described == same
    named = [
        parameter["name"]
        for parameter in described["paths"]["/api/v1/history"]["get"]["parameters"]
    ]
    assert named == ["section", "figure", "window", "basis", "hours", "variant", "kind", "k"]


def test_a_user_is_for_who_has_the_token(running):
    workers, wanted = running
    complete(workers[0], wanted)
    right = {"Authorization": f"Bearer {TOKEN}"}
    for worker in workers:
        status, headers, said = get(worker, "/users/u7")
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert said["error"].startswith("send the header Authorization")
        assert get(worker, "/users/u7", Authorization=f"Bearer {TOKEN}x")[0] == 401
        assert get(worker, "/users/u7", Authorization=f"Basic {TOKEN}")[0] == 401
        assert get(worker, "/users/nobody", **right)[0] == 404
        said = printed("user", "u7", "--config", worker.config)
        assert get(worker, "/users/u7", **right)[2] == said
        assert TOKEN not in worker.logged()


def test_changes_are_told_as_they_come(running):
    workers, _ = running
    url = f"http://127.0.0.1:{workers[0].port}/api/v1/stream?window=2h"
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["X-Accel-Buffering"] == "no"
        lines = [answer.readline().decode().strip() for _ in range(6)]
    assert lines[:3] == ["retry: 1000", "", "event: changed"]
    assert re.fullmatch(r"id: [0-9a-f]{16}", lines[3])
    assert lines[4:] == ["data: {}", ""]


def test_the_history_has_the_figures_of_its_minute(running):
    """The leader's job, as it runs each minute, and what both workers say of it."""
    workers, wanted = running
    complete(workers[0], wanted)
    now = time.time()

    async def remember():
        settings = load(workers[0].config)
        store = SharedStore(settings.redis_url, settings.group, settings.topic, ("click",))
        definition = settings.definition()
        job = HistoryJob(store, WholeTopic(store, definition, lambda: 4), definition)
        try:
            await job.turn(now // 60 * 60 + 30, [])
        finally:
            await store.close()

    asyncio.run(remember())
    path = "/history?window=2h&basis=matured&kind=click&figure=positives_per_impression&hours=1"
    charts = [get(worker, path)[2] for worker in workers]
    rows = {
        row["variant"]: row
        for row in wanted["rates"]
        if (row["window"], row["basis"], row["feedback"]) == ("2h", "matured", "click")
    }
    for found in charts:
        assert [series["labels"]["variant"] for series in found["series"]] == ["A", "B"]
        for series in found["series"]:
            row = rows[series["labels"]["variant"]]
            value = row["positives_per_impression"]
            assert series["value"][-1] == pytest.approx(value, rel=1e-6)
            reach = 1.97 * row["positives_per_impression_stderr"]
            assert series["low"][-1] == pytest.approx(value - reach, rel=0.02)
            assert series["high"][-1] == pytest.approx(value + reach, rel=0.02)
        assert len(found["times"]) == len(found["series"][0]["value"])
    status, _, error = get(workers[0], "/history?figure=clicks")
    assert status == 400
    assert error["error"].startswith("figure: write one of impressions, ")


def test_an_agent_reads_the_same(running):
    """The official client starts `streameval mcp` and calls each tool."""
    workers, wanted = running
    complete(workers[0], wanted)
    wait_until_judged(workers, wanted)
    command = ["-m", "streameval", "mcp"]
    environment = {"NO_PROXY": "127.0.0.1", **os.environ}

    async def calls():
        arguments = [*command, "--config", str(workers[1].config)]
        parameters = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
        async with Client(parameters) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}

            async def call(tool, **given):
                found = await client.call_tool(tool, given)
                return found.structured_content or found.content[0].text

            return tools, {
                "figures": await call("figures", window="2h", section="ranking"),
                "experiments": await call("experiments"),
                "experiment": await call("experiment", name="ranker"),
                "over time": await call("experiment", name="ranker", history_of=PRIMARY),
                "checks": await call("checks"),
                "health": await call("health"),
                "wrong": await call("figures", window="1h"),
            }

    over_time = f"/experiments/ranker?metric={quote(PRIMARY)}"
    before = get(workers[1], over_time)[2]
    tools, found = asyncio.run(calls())
    assert [*tools] == ["figures", "experiments", "experiment", "checks", "health"]
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert found["figures"]["ranking"] == [
        row for row in wanted["ranking"] if (row["window"], row["basis"]) == ("2h", "matured")
    ]
    assert found["experiments"] == get(workers[0], "/experiments")[2]
    assert found["experiment"] == found["experiments"]["experiments"][0], "without its history"
    # A worker draws a history once a minute, so this may be the one of the minute before.
    assert found["over time"] in (before, get(workers[1], over_time)[2])
    assert found["checks"]["checks"] == []
    assert found["health"]["ready"]
    assert "window: write one of 30m, 2h" in found["wrong"]


PROGRAMS = re.findall(r"^```(sh|python)\n(.*?)^```", API.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("language", "program"), PROGRAMS)
def test_the_programs_of_the_docs_run(running, language, program):
    workers, wanted = running
    complete(workers[0], wanted)
    if language == "sh":
        program = program.replace("curl ", f"{programs.need('curl')} ")
    command = ["bash", "-eu"] if language == "sh" else [sys.executable, "-"]
    done = subprocess.run(
        command,
        input=program.replace("127.0.0.1:8080", f"127.0.0.1:{workers[0].port}"),
        env={**os.environ, "TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "error" not in done.stdout
