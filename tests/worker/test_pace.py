"""Turns of repeated work lie apart as far as their own time asks for."""

import asyncio
import types

import pytest

from streameval.worker import live_figures


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is told to go on; all time is the processor's."""
    now = [100.0]
    told = types.SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0])
    monkeypatch.setattr(live_figures, "time", told)
    return now


async def turn(paced, clock, work, others):
    """A turn that works twice, with a pause in which another task works."""

    async def other():
        clock[0] += others

    clock[0] += work / 2
    between = asyncio.create_task(other())
    await paced.pause()
    assert between.done()
    clock[0] += work / 2
    paced.end()


@pytest.mark.parametrize(("share", "rest"), [(0.05, 2.0), (0.25, 0.4)])
def test_a_turn_is_due_when_it_has_had_its_share(share, rest, clock):
    paced = live_figures.Pace()
    assert paced.begins(share)
    asyncio.run(turn(paced, clock, work=0.1, others=0))
    clock[0] = 100 + rest - 0.01
    assert not paced.begins(share)
    clock[0] = 100 + rest + 0.01
    assert paced.begins(share)


def test_what_others_do_at_its_pauses_is_not_its_time(clock):
    paced = live_figures.Pace()
    assert paced.begins(0.05)
    asyncio.run(turn(paced, clock, work=0.1, others=1.95))
    assert clock[0] == pytest.approx(102.05)
    assert paced.begins(0.05)


def test_turns_begin_the_given_seconds_apart_however_short(clock):
    paced = live_figures.Pace(1.0)
    assert paced.begins(0.05)
    asyncio.run(turn(paced, clock, work=0.01, others=0))
    clock[0] = 100.99
    assert not paced.begins(0.05)
    clock[0] = 101.01
    assert paced.begins(0.05)


def test_steps_are_taken_with_a_pause_after_each(clock):
    """Another task has its turn between them, and the result comes at the end."""
    seen = []

    def steps():
        for number in range(3):
            seen.append(number)
            yield
        return "done"

    async def both():
        paced = live_figures.Pace()
        assert paced.begins(0.05)
        other = asyncio.create_task(note())
        assert await paced.take(steps()) == "done"
        await other

    async def note():
        for letter in "abc":
            seen.append(letter)
            await asyncio.sleep(0)

    asyncio.run(both())
    assert seen == [0, "a", 1, "b", 2, "c"]
