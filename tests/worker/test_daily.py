"""The positive rate of the last whole day: Gorse's toy case, which day it is, who shows it."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from types import SimpleNamespace

import pytest
from clean_service import DEFINITION, MINUTE, Service, stream
from command_line import streameval
from default_events import SlateEvent

from streameval.base.errors import ConfigError
from streameval.checks.daily_rate import daily_rates, take_daily
from streameval.core.definition import Positive
from streameval.core.events import FeedbackEvent
from streameval.files.outcome_days import OutcomeDays
from streameval.files.snapshot_folder import DAILY
from streameval.worker import snapshot_job
from streameval.worker.snapshot_job import SnapshotSchedule

HOUR = 60 * MINUTE
DAY = 24 * HOUR
MIDNIGHT = 1_700_006_400_000  # of 2023-11-15
LIKES = replace(DEFINITION, positives=(Positive("like"), Positive("buy")), gains={})


def shown(user, items, ts, request):
    return SlateEvent(ts=ts, user_id=user, request_id=request, items=tuple(items))


def liked(user, item, ts, *, kind="like", retract=False):
    return FeedbackEvent(
        ts=ts, user_id=user, item_id=item, feedback=kind, request_id=None, retract=retract
    )


def toy(day):
    """Gorse's toy case on a day, from 1 am: u3 likes an item that nobody showed to it."""
    ts = day + HOUR
    return [
        *(shown(user, ["a", "b"], ts, f"{user}-{day}") for user in ("u1", "u2", "u4")),
        liked("u1", "a", ts + MINUTE),
        liked("u3", "c", ts + MINUTE),
    ]


def tick(ts):
    """A slate of nobody in both partitions."""
    return [shown(f"t{number}", ["x"], ts, f"t-{ts}") for number in range(8)]


def served(root, *events):
    """What a service leaves of events, with one snapshot."""
    service = Service(root, LIKES).take(sorted(chain(*events), key=lambda event: event.ts))
    (root / "snapshots").mkdir()
    service.snapshot("snapshots/20231117T000000Z-1")
    return service


def settings_of(service, **changes):
    values = {
        "outcomes": str(service.outcomes),
        "snapshots": service.root / "snapshots",
        "snapshot_interval": 60_000,
        "checks": None,
        "owner": {"group": "g", "topic": "t"},
        "definition": lambda: service.definition,
    }
    return SimpleNamespace(**(values | changes))


def rates_of(service, day="2023-11-15"):
    files = OutcomeDays(str(service.outcomes), (), service.root / "copies")
    users, rates = daily_rates(service.definition, files, day)
    return {row.pop("feedback"): row for row in rates} | {"users": users}


# --- figures --------------------------------------------------------------------------------------


def test_gorses_toy_case_has_both_of_its_answers(tmp_path):
    """u1 read a and b and liked a; u2 and u4 read a and b; u3 read nothing: 1/6 and 1/2."""
    found = rates_of(served(tmp_path, toy(MIDNIGHT), tick(MIDNIGHT + DAY)))
    assert found["like"] == {
        "daily_positive_rate": pytest.approx(1 / 6),
        "daily_positive_rate_gorse_v05": 0.5,
    }
    assert found["users"] == 3


def test_a_kind_without_a_positive_has_one_rate_of_0_and_one_of_nobody(tmp_path):
    found = rates_of(served(tmp_path, toy(MIDNIGHT), tick(MIDNIGHT + DAY)))
    assert found["buy"] == {"daily_positive_rate": 0.0, "daily_positive_rate_gorse_v05": None}


def test_items_are_distinct_over_the_day_and_what_is_taken_back_is_no_positive(tmp_path):
    """u1 reads a, b, and a again (2 items), likes a twice, and takes back its like of b."""
    ts = MIDNIGHT + HOUR
    events = [
        shown("u1", ["a", "b"], ts, "r1"),
        shown("u1", ["a"], ts + 2 * HOUR, "r2"),
        liked("u1", "a", ts + 1),
        liked("u1", "a", ts + 2 * HOUR + 1),
        liked("u1", "b", ts + 1),
        liked("u1", "b", ts + 2, retract=True),
    ]
    assert (
        rates_of(served(tmp_path, events, tick(MIDNIGHT + DAY)))["like"]["daily_positive_rate"]
        == 0.5
    )


def test_the_rates_of_one_kind_are_those_of_evaluate(tmp_path):
    """Which counts in another way, over the same files."""
    clicks = replace(DEFINITION, positives=(Positive("click"),), gains={})
    service = Service(tmp_path, clicks).take(stream(slates=2_000))
    names = "daily_positive_rate,daily_positive_rate_gorse_v05"
    ran = streameval("evaluate", "--json", "--metrics", names, service.outcomes / "dt=2023-11-15")
    figures = json.loads(ran.stdout)["figures"]
    found = rates_of(service)["click"]
    for name in names.split(","):
        assert found[name] == pytest.approx(figures[name]["value"], rel=1e-8)
        assert 0 < found[name] < 1


def test_a_day_is_read_in_portions_of_its_users(tmp_path, monkeypatch):
    service = Service(tmp_path).take(stream(slates=500))
    whole = rates_of(service, "2023-11-15")
    monkeypatch.setattr("streameval.checks.daily_rate.PORTION_ITEMS", 100)
    assert rates_of(service, "2023-11-15") == {
        key: pytest.approx(figure, rel=1e-12) for key, figure in whole.items()
    }
    assert whole["users"] > 0


# --- which day ------------------------------------------------------------------------------------


def test_a_day_is_whole_once_nothing_can_change_it(tmp_path):
    """The watermark has passed its end by the attribution window and the lateness."""
    first, second = toy(MIDNIGHT), toy(MIDNIGHT + DAY)
    end = MIDNIGHT + 2 * DAY + LIKES.horizon
    for name, ts, day in (("early", end - 1, None), ("late", end, "2023-11-16")):
        (tmp_path / name).mkdir()
        service = served(tmp_path / name, first, second, tick(ts))
        (folder,) = (service.root / "snapshots").iterdir()
        found = take_daily(settings_of(service), folder)
        assert (found and found["day"]) == day, name


def test_the_first_day_of_the_files_may_be_half_of_one(tmp_path):
    service = served(tmp_path, toy(MIDNIGHT), tick(MIDNIGHT + DAY + 2 * HOUR))
    (folder,) = (tmp_path / "snapshots").iterdir()
    assert take_daily(settings_of(service), folder) is None
    assert not (folder / DAILY).exists()


def test_a_days_figures_are_computed_once_and_handed_on(tmp_path):
    service = served(tmp_path, toy(MIDNIGHT), toy(MIDNIGHT + DAY), tick(MIDNIGHT + 3 * DAY - 1))
    (first,) = (tmp_path / "snapshots").iterdir()
    found = take_daily(settings_of(service), first)
    second = service.snapshot("snapshots/20231117T010000Z-1")
    for path in service.outcomes.glob("dt=2023-11-16/hour=*/*.parquet"):
        path.unlink()
    assert take_daily(settings_of(service), second) == found
    assert json.loads((second / DAILY).read_text()) == found


def test_there_is_no_daily_rate_without_outcome_files(tmp_path):
    with pytest.raises(ConfigError, match="outcomes: name the folder"):
        take_daily(
            settings_of(SimpleNamespace(root=tmp_path, outcomes=None), outcomes=None), tmp_path
        )


# --- who shows it ---------------------------------------------------------------------------------


def test_the_leader_shows_the_rates_that_the_newest_snapshot_has(tmp_path):
    service = served(tmp_path, toy(MIDNIGHT), toy(MIDNIGHT + DAY), tick(MIDNIGHT + 3 * DAY - 1))
    settings = settings_of(service)
    assert SnapshotSchedule(settings).daily() is None
    (folder,) = (tmp_path / "snapshots").glob("2*")
    snapshot_job._daily(settings, folder)
    service.snapshot("snapshots/20231117T010000Z-1")
    shown = SnapshotSchedule(settings).daily()
    assert datetime.fromtimestamp(shown.begin, UTC) == datetime(2023, 11, 16, tzinfo=UTC)
    assert [row["feedback"] for row in shown.rates] == ["like", "buy"]
    assert shown.rates[0]["daily_positive_rate"] == pytest.approx(1 / 6)
    assert SnapshotSchedule(settings_of(service, outcomes=None)).daily() is None


def test_what_goes_wrong_with_it_is_said_and_the_snapshot_stays_good(tmp_path, caplog):
    service = served(tmp_path, toy(MIDNIGHT), toy(MIDNIGHT + DAY), tick(MIDNIGHT + 3 * DAY - 1))
    (folder,) = (tmp_path / "snapshots").iterdir()
    for path in service.outcomes.glob("dt=2023-11-16/hour=*/*.parquet"):
        path.write_bytes(b"not Parquet")
    snapshot_job._daily(settings_of(service), folder)
    assert "no daily positive rate: outcomes: a file cannot be read" in caplog.text


def test_too_little_memory_for_it_is_said_too(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("streameval.files.tables.MEMORY", "1MB")
    service = served(tmp_path, toy(MIDNIGHT), toy(MIDNIGHT + DAY), tick(MIDNIGHT + 3 * DAY - 1))
    (folder,) = (tmp_path / "snapshots").iterdir()
    snapshot_job._daily(settings_of(service), folder)
    assert "no daily positive rate: outcomes: out of memory: " in caplog.text
