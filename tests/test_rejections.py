"""The line about rejected records: once a minute at most, with reasons and the latest one."""

import logging

import pytest

from streameval.core.events import Rejection
from streameval.kafka.records import DeadLetter
from streameval.worker.rejections import Rejections


def letter(offset, reason="invalid", detail="Expected `int` - at `$.ts`"):
    return DeadLetter(1, offset, 0, b"u", b"{}", Rejection(reason, detail))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def test_nothing_is_said_while_nothing_is_rejected(lines):
    rejections = Rejections()
    rejections.note(1_000, {"invalid": 0, "late": 0}, [])
    rejections.say(0.0)
    assert lines() == []


def test_the_first_is_said_at_once_and_the_next_after_a_minute(lines):
    rejections = Rejections()
    rejections.note(2_309, {"invalid": 22, "late": 6, "malformed": 3, "future": 0}, [letter(88)])
    rejections.say(0.0)
    (line,) = lines()
    assert line.startswith(
        "31 of 2,340 records rejected: 22 invalid, 6 late, 3 malformed; latest: partition 1,"
        " offset 88, invalid: Expected `int` - at `$.ts`. "
    )
    rejections.note(9, {"late": 1}, [letter(90, "late", "older")])
    rejections.say(59.0)
    assert len(lines()) == 1
    rejections.note(10, {"late": 1}, [letter(95, "late", "older " * 1_000)])
    rejections.note(10, {"late": 0}, [])
    rejections.say(60.0)
    assert lines()[1].startswith("2 of 31 records rejected: 2 late; latest: partition 1, offset 95")
    assert len(lines()[1]) < 450
    rejections.say(500.0)
    assert len(lines()) == 2
