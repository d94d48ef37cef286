"""The API without servers: errors, bounds, and the documents of health and checks."""

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from test_experiment_words import a_card, a_row, adjusted, lacking, open_clicks, without_crossed

from streameval.base.errors import RefusedError, UnreachableError
from streameval.base.limits import HISTORY_POINTS, MAX_LISTENERS
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.figures import SECTIONS
from streameval.experiments.words import Scorecard, document_of, with_beside
from streameval.web import experiment_history
from streameval.web.api import CHART_DEBT_SECONDS, Api, StatusError
from streameval.web.health import describe, health
from streameval.web.openapi import openapi
from streameval.web.pages import Pages
from streameval.web.status import (
    CheckStatus,
    DailyStatus,
    PartitionStatus,
    ProcessCounters,
    ServiceStatus,
)
from streameval.worker.sharing import checks_of

DEFINITION = Definition(dimensions=("variant", "hours"))
DESCRIBED = openapi(DEFINITION)


def status(**changed):
    fields = {
        "version": "1.0",
        "topic": "events",
        "group": "group",
        "started_at": 0.0,
        "definition": DEFINITION,
        "counters": ProcessCounters(DEFINITION),
        "store_up": True,
        "broker_up": True,
        "ready": True,
        "topic_partitions": 2,
    }
    return ServiceStatus(**fields | changed)


class Described:
    def __init__(self, **changed):
        self.status, self.described_at, self.stopping = status(**changed), 0.0, False


AWAY = UnreachableError("Redis at r:6379 cannot be used now: is it running?")


class Away:
    """A store that does not answer, or refuses."""

    def __init__(self, error=AWAY):
        self._error = error

    def __getattr__(self, name):
        async def fail(*_):
            raise self._error

        return fail


def get(path, *, listeners=0, error=AWAY, token=None, **changed):
    """Status and document of a path, of a worker whose Redis answers with an error."""

    async def ask():
        worker = Described(**changed)
        api = Api(worker, DEFINITION, Away(error), user_token=token)
        api._listeners = listeners
        app = web.Application()
        Pages(worker, api).add_to(app)
        async with (
            TestClient(TestServer(app)) as client,
            client.get(f"/api/v1{path}", headers={"Authorization": f"Bearer {token}"}) as answer,
        ):
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.content_type == "application/json"
            return answer.status, await answer.json()

    return asyncio.run(ask())


def test_the_description_of_any_definition_is_openapi():
    """Also where a dimension has the name of a parameter."""
    OpenAPIV31SpecValidator(DESCRIBED).validate()


def test_every_section_of_figures_is_described():
    described = DESCRIBED["components"]["schemas"]["Figures"]
    assert set(SECTIONS) == described["properties"].keys() - {*described["required"], "next"}


@pytest.mark.parametrize("path", ["/figures", "/history", "/checks", "/health", "/stream"])
def test_redis_that_is_away_is_one_line(path):
    assert get(path) == (503, {"error": "Redis at r:6379 cannot be used now: is it running?"})


def test_redis_that_refuses_is_no_fault_of_the_request():
    said = "Redis at r:6379: no permission: extend the rights of the user (ACL SETUSER)"
    assert get("/figures", error=RefusedError(said)) == (503, {"error": said})


def test_a_user_is_not_unknown_while_the_worker_starts():
    said = {"error": "the worker is starting: ask again"}
    assert get("/users/u1", token="t" * 16, topic_partitions=0) == (503, said)


def test_what_needs_no_redis_is_there_meanwhile():
    assert get("/experiments") == (200, {"experiments": []})
    assert get("/openapi.json") == (200, DESCRIBED)


def test_no_user_is_told_without_a_configured_token():
    said = "users are not shown: set user_token in the configuration"
    assert get("/users/u1") == (403, {"error": said})


def test_clients_that_wait_for_changes_are_bounded():
    code, said = get("/stream", listeners=MAX_LISTENERS)
    assert code == 503
    assert said["error"].startswith(f"{MAX_LISTENERS} clients wait for changes")


def test_charts_take_no_more_than_their_share(monkeypatch):
    monkeypatch.setattr("streameval.web.api.time.time", lambda: 6_000.0)  # within one minute

    class Store(Away):
        async def history(self, name, first, last):
            return []

    async def ask(api, hours):
        request = make_mocked_request("GET", f"/api/v1/history?hours={hours}")
        return (await api.history(request)).value

    api = Api(Described(), DEFINITION, Store())
    empty = {"times": [], "series": [], "segments_left_out": 0}
    assert asyncio.run(ask(api, 1)) == empty
    api._charts_paid_at += CHART_DEBT_SECONDS + 30
    with pytest.raises(StatusError, match=r"too many different charts: ask again in \d+ s"):
        asyncio.run(ask(api, 2))
    assert asyncio.run(ask(api, 1)) == empty, "it was made before"


def test_the_bounds_of_an_experiment_are_read_once_a_minute(monkeypatch):
    """Of two rings of 1,440 points, for all who ask; its scorecard is always the newest."""
    monkeypatch.setattr("streameval.web.api.time.time", lambda: 6_000.0)
    bounds = {"metric": "ndcg@10", "arm": "B", "role": "primary", "difference": 0.5}
    row = bounds | {"low": 0.1, "high": 0.9, "verdict": "better", "users": 5, "control": "A"}
    row |= {"users_needed": None}
    split = {"experiment": "e", "users": {}, "crossed_users": 0, "log_evidence": 0, "p_value": None}
    split |= lacking()
    asked = []

    class Store(Away):
        async def history(self, name, first, last):
            asked.append(name)
            card = Scorecard("e", None, [row], {}, ())
            return [experiment_history.point(card, 60_000 * n) for n in range(HISTORY_POINTS)]

    definition = replace(DEFINITION, experiments=(Experiment("e", "variant", "A", "ndcg@10"),))
    worker = Described(definition=definition)
    api = Api(worker, definition, Store())

    async def ask(since, query=""):
        worker.status.scorecards = [Scorecard("e", since, [row], split, ("A",))]
        path = f"/api/v1/experiments/e{query}"
        request = make_mocked_request("GET", path, match_info={"name": "e"})
        return (await api.experiment(request)).value

    async def scenario():
        found = [await ask(since) for since in (1, 2)]
        assert [one["since"] for one in found] == [1, 2]
        assert len(asked) == 2, "two rings, once"
        (series,) = found[1]["history"]
        assert len(series["times"]) <= experiment_history.MOST_POINTS
        assert (await ask(2, "?metric=ndcg@10"))["history"] == [series]
        assert len(asked) == 4

    asyncio.run(scenario())


def test_figures_beside_the_plain_ones_are_described():
    card = a_card(adjusted(a_row()), adjusted(open_clicks(), low=None, high=None), a_row(arm="C"))
    card = with_beside(card, "without_crossed", [without_crossed(a_row(), low=None)], 5)
    (found,) = valid("Experiments", {"experiments": [document_of(card)]})["experiments"]
    assert [("adjusted" in row) for row in found["experiments"]] == [1, 1, 0]
    assert [("without_crossed" in row) for row in found["experiments"]] == [1, 0, 0]
    assert [said.split(",")[0] for said in found["beside"]] == ["B against A", "B against A"]


# --- Health ---------------------------------------------------------------------------------------


def valid(name, document):
    schema = {"$ref": f"#/components/schemas/{name}", "components": DESCRIBED["components"]}
    Draft202012Validator(schema).validate(document)
    return document


def partition(number, offset, **changed):
    fields = {"lag": 3, "committed_offset": offset, "watermark": 50_000, "reading_time": 60_000}
    return PartitionStatus(number, **fields | changed)


def said(*workers):
    """What workers say, as it comes from Redis."""
    return {
        f"w{number}": (500, json.dumps(describe(status(partitions=partitions, **changed), 90.0)))
        for number, (partitions, changed) in enumerate(workers)
    }


def told(*workers):
    return valid("Health", health(status(), said(*workers), 90_000))


def test_all_is_well():
    found = told(([partition(0, 5)], {"leader": True}), ([partition(1, 6)], {}))
    assert (found["ready"], found["reason"], found["lag"]) == (True, None, 6)
    assert found["behind_seconds"] == 30.0
    assert [(each["partition"], each["worker"]) for each in found["partitions"]] == [
        (0, "w0"),
        (1, "w1"),
    ]


def test_a_worker_of_another_version_is_compared_by_the_settings_that_both_have():
    digests = {"profile": "1a2b"}
    for other in ({}, digests | {"since": "7a8b"}):
        found = told(
            ([partition(0, 5)], {"digests": digests}), ([partition(1, 5)], {"digests": other})
        )
        assert found["ready"]


def test_of_two_owners_the_one_that_went_on_is_right():
    found = told(([partition(0, 5), partition(1, 1)], {}), ([partition(0, 9)], {}))
    assert [each["worker"] for each in found["partitions"]] == ["w1", "w0"]


NOBODY = (
    "no worker has partition 0: is one away, or does another deployment use this group of Kafka"
    " with a Redis of its own?"
)


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([], "no worker has said anything within half a minute"),
        ([([partition(1, 5)], {})], NOBODY),
        ([([partition(0, 5), partition(1, 5)], {"broker_up": False})], "w0: Kafka does not answer"),
        (
            [([partition(0, 5, restoring=True), partition(1, 5)], {})],
            "w0: restoring partitions 0",
        ),
        (
            [([partition(0, 5, unreadable="offset 7: damaged"), partition(1, 5)], {})],
            "w0: partition 0 waits before the batch at offset 7: damaged",
        ),
        (
            [
                ([partition(0, 5)], {"digests": {"profile": "1a2b", "outcomes": "3c4d"}}),
                ([partition(1, 5)], {"digests": {"profile": "1a2b", "outcomes": "5e6f"}}),
            ],
            "workers of this group differ in outcomes: give all the same configuration",
        ),
    ],
)
def test_the_first_trouble_is_named(workers, reason):
    found = told(*workers)
    assert (found["ready"], found["reason"]) == (False, reason)


# --- Checks ---------------------------------------------------------------------------------------


def test_checks_say_how_they_ended():
    checks = [
        CheckStatus("a", "error", passed=True, value=1.0, time=9.0, seconds=1.0),
        CheckStatus(
            "b", "error", passed=False, value=1.0, time=9.0, seconds=1.0, message="raise it"
        ),
        CheckStatus("c", "warning", passed=False, value=1.0, time=9.0, seconds=1.0),
        CheckStatus("d", "error", None, None, 9.0, 1.0),
        CheckStatus("e", "error", None, None, 9.0, 1.0, unanswered_seconds=0.0),
    ]
    daily = DailyStatus(86_400.0, 5, [{"feedback": "click", "daily_positive_rate": None}])
    found = checks_of(status(checks=checks, daily=daily, check_interval=900.0))
    valid("Checks", json.loads(json.dumps(found)))
    ended = [(each["state"], each["message"], each["ended"]) for each in found["checks"]]
    assert ended == [
        ("passed", "", 9_000),
        ("failed", "raise it", 9_000),
        ("warns", "", 9_000),
        ("not checked", "", 9_000),
        ("no answer", "", 9_000),
    ]
