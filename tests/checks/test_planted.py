"""Planted faults are found by name and cause, and clean days raise nothing (`planted`).

`make planted` runs all checks on each and on more variants, and 65 clean days; here are fewer days,
and on a day with a fault only the check that is about it.
"""

import pytest
from clean_service import failures
from planted import clean_day, planted
from planted_faults import FAULTS, HONEST, SilentBots
from planted_world import Deployment

from streameval.checks.catalogue import CHECKS

TUESDAY, SATURDAY = 1, 5


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A deployment after a clean day."""
    return clean_day(tmp_path_factory.mktemp("planted") / "before")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_planted_fault_is_found_by_the_check_and_the_cause(before, tmp_path, fault):
    found = planted(tmp_path / "service", fault, before, only=fault.check)
    assert failures(found) == {fault.check}
    assert fault.cause in found[fault.check].message


def test_clean_days_of_a_week_raise_nothing(tmp_path):
    deployment = Deployment(tmp_path / "service")
    for day in range(SATURDAY + 1):
        deployment.day()
        if day in (TUESDAY, SATURDAY):
            found = deployment.checked()
            assert list(found) == [check.name for check in CHECKS]
            assert {name: found[name].message for name in failures(found)} == {}


def test_the_message_about_bots_names_them_and_their_share(before, tmp_path):
    fault = SilentBots()
    found = planted(tmp_path / "service", fault, before, only=fault.check)
    message = found[fault.check].message
    assert "'bot" in message
    assert "'u" not in message


@pytest.mark.parametrize("arm", HONEST, ids=lambda arm: arm.name)
def test_a_better_or_worse_ranker_is_told_and_no_fault(before, tmp_path, arm):
    found = planted(tmp_path / "service", arm, before)
    assert failures(found) <= {"metric_regression"}
    assert "it ranks worse, or a part of its feedback is lost" in found["traffic_alike"].message
