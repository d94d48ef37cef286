"""Rejected records of late: a line a minute at most, and what the page says."""

import json
import logging

import pytest

from streameval.core.definition import Definition
from streameval.core.events import Rejection
from streameval.kafka.records import DeadLetter
from streameval.web.health import health
from streameval.web.status import ProcessCounters, ServiceStatus
from streameval.worker.tallies import Rejections

DEFINITION = Definition()


def letter(offset, reason="invalid", detail="`ts` is null"):
    return DeadLetter(1, offset, 0, b"u", b"{}", Rejection(reason, detail))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def test_nothing_is_said_while_nothing_is_rejected(lines):
    rejections = Rejections()
    rejections.note(1_000, {"invalid": 0, "late": 0}, [], 0.0)
    rejections.say(0.0)
    assert lines() == []
    assert rejections.recent(0.0) == {"records": 1_000, "reasons": {}, "latest": None}


def test_the_first_is_said_at_once_and_the_next_after_a_minute(lines):
    rejections = Rejections()
    counted = {"invalid": 22, "late": 6, "malformed": 3, "future": 0}
    rejections.note(2_309, counted, [letter(88)], 0.0)
    rejections.say(0.0)
    (line,) = lines()
    assert line.startswith(
        "31 of 2,340 records rejected: 22 invalid, 6 late, 3 malformed; latest: partition 1,"
        " offset 88, invalid: `ts` is null. "
    )
    rejections.note(9, {"late": 1}, [letter(90, "late", "older")], 50.0)
    rejections.say(59.0)
    assert len(lines()) == 1
    rejections.note(10, {"late": 1}, [letter(95, "late", "older")], 59.0)
    rejections.note(10, {"late": 0}, [], 59.0)
    rejections.say(60.0)
    assert lines()[1].startswith("2 of 31 records rejected: 2 late; latest: partition 1, offset 95")
    rejections.say(500.0)
    assert len(lines()) == 2


def test_the_page_has_the_last_quarter_of_an_hour():
    rejections = Rejections()
    rejections.note(90, {"invalid": 10}, [letter(1)], 30.0)
    rejections.note(98, {"late": 2}, [letter(7, "late", "older")], 600.0)
    assert rejections.recent(700.0) == {
        "records": 200,
        "reasons": {"invalid": 10, "late": 2},
        "latest": "partition 1, offset 7, late: older",
    }
    assert rejections.recent(1_000.0)["reasons"] == {"late": 2}
    assert rejections.recent(9_000.0) == {"records": 0, "reasons": {}, "latest": None}


@pytest.mark.parametrize(("records", "is_much"), [(1_000, False), (900, False), (800, True)])
def test_the_health_of_the_group_adds_the_workers_up(records, is_much):
    latest = "partition 1, offset 7: late"
    first = {"records": records, "reasons": {"late": 7, "invalid": 2}, "latest": latest}
    said = {
        name: (0, json.dumps({"partitions": [], "reason": None, "remark": None, "rejected": each}))
        for name, each in {"w1": {}, "w2": first}.items()
    }
    older = json.dumps({"partitions": [], "reason": None, "remark": None})
    said["of a version before"] = (0, older)
    status = ServiceStatus("1", "t", "g", 0.0, DEFINITION, ProcessCounters(DEFINITION))
    assert health(status, said, 0)["rejected"] == {
        "records": records,
        "reasons": {"late": 7, "invalid": 2},
        "is_much": is_much,
        "message": f"9 of {records:,} records of the last 15 minutes rejected: 7 late, 2 invalid",
        "latest": latest,
    }
