"""A test that takes `seed` runs once for each of them, and says how to replay the one that fails.

`STREAMEVAL_SEEDS=2000` runs more seeds than the ordinary 300 (or a module's own `SEEDS`);
`STREAMEVAL_SEED=17` runs one.
"""

import logging
import os

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: no example and no generator is timed.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def quiet():
    """Nothing is logged, where a test makes thousands of things go wrong."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        one = os.environ.get("STREAMEVAL_SEED")
        ordinary = getattr(metafunc.module, "SEEDS", 300)
        many = range(int(os.environ.get("STREAMEVAL_SEEDS", ordinary)))
        metafunc.parametrize("seed", many if one is None else [int(one)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    seed = getattr(item, "callspec", None) and item.callspec.params.get("seed")
    if report.failed and seed is not None:
        test = item.nodeid.split("[")[0]
        report.sections.append(("replay this seed", f"STREAMEVAL_SEED={seed} pytest {test}"))
    return report
