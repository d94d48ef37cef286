"""Planted faults are found by name and cause, and clean days raise nothing (`planted`).

`make planted` runs all checks on each, and 60 clean days; here are fewer days, and on a day with a
fault only the check that is about it.
"""

import pytest
from clean_service import failures
from planted import FAULTS, Deployment, SilentBots, planted

from streameval.checks.registry import CHECKS

TUESDAY, SATURDAY = 1, 5


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_planted_fault_is_found_by_the_check_and_the_cause(tmp_path, fault):
    found = planted(tmp_path / "service", fault, only=fault.check)
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


def test_the_message_about_bots_names_them_and_their_share(tmp_path):
    fault = SilentBots()
    found = planted(tmp_path / "service", fault, seed=2, only=fault.check)
    message = found[fault.check].message
    assert "'bot" in message
    assert "'u" not in message
