"""Work that waits for a server: until it answers, and again after an end."""

import asyncio

import pytest

from streameval.base import retry
from streameval.base.errors import InputError, UnreachableError
from streameval.base.retry import Waiting


async def until(condition):
    while not condition():  # noqa: ASYNC110  # what is waited for is in another's hands
        await asyncio.sleep(0.001)


def test_work_waits_until_the_server_answers(monkeypatch, caplog):
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.01)
    failures = [UnreachableError("away"), UnreachableError("still away")]

    def ask():
        if failures:
            raise failures.pop(0)

    async def scenario():
        waiting = Waiting()
        assert waiting.holds("a", ask)
        assert waiting.holds("a", ask), "it is under way"
        assert not waiting.holds("b", None), "another key waits for nothing"
        said = set()
        while "a" in waiting:
            said |= set(waiting.why.values())
            await asyncio.sleep(0.001)
        assert not waiting.holds("a", None)
        assert said <= {"away", "still away"}
        assert not waiting.why

    asyncio.run(scenario())
    assert "a: away Waiting for it." in caplog.text


def test_what_is_no_absence_is_raised_to_whoever_waits():
    def ask():
        raise InputError("fastavro is missing")

    async def scenario():
        waiting = Waiting()
        assert waiting.holds("a", ask)
        await until(lambda: "a" not in waiting)
        with pytest.raises(InputError, match="fastavro is missing"):
            waiting.holds("a", ask)

    asyncio.run(scenario())


def test_after_an_end_it_begins_anew(monkeypatch):
    monkeypatch.setattr(retry, "RETRY_SECONDS", 60)

    def ask():
        raise UnreachableError("away")

    async def scenario():
        waiting = Waiting()
        assert waiting.holds("a", ask)
        await until(lambda: waiting.why)
        waiting.close()
        await asyncio.sleep(0)
        assert not waiting.why
        assert not waiting.holds("a", None)
        assert waiting.holds("a", lambda: None)
        await until(lambda: "a" not in waiting)
        assert not waiting.holds("a", None)

    asyncio.run(scenario())
