"""How the tests run: properties over seeds within a budget, and files spread over processes.

A test that takes `seed` is cut into `SHARES` items; each calls the test for every fourth seed. The
first `FLOOR` seeds of a test (60, or its module's own `FLOOR`) always run. Further ones, up to the
module's own `SEEDS` (or 300), run until the test has used `STREAMEVAL_SEED_SECONDS` of CPU time
(default 12). The last lines of a run say how many seeds ran, and which files are dear.
`STREAMEVAL_SEEDS=2000` runs that many whatever they take, and `STREAMEVAL_SEED=17` runs that one,
as a failure says.

Under pytest-xdist (`make test`) tests of a file that share a fixture stay in one process. Each
process starts servers of its own.
"""

import collections
import logging
import os
import time

import pytest
import servers
from hypothesis import HealthCheck, settings

# A busy machine is no failure: no example and no generator is timed.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

FLOOR = 60
SHARES = 4
SEED_SECONDS = float(os.environ.get("STREAMEVAL_SEED_SECONDS", "12"))
EXACTLY = os.environ.get("STREAMEVAL_SEEDS")
ONE = os.environ.get("STREAMEVAL_SEED")
FAILING = pytest.StashKey()
# CPU seconds by file; a run that takes more than LONG says which files are dear.
COSTS = collections.Counter()
LONG = 60


@pytest.fixture
def quiet():
    """Nothing is logged, where a test makes thousands of things go wrong."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pytest_report_header():
    missing = servers.missing_programs()
    if not missing:
        return "servers: everything that tests start is installed"
    return f"servers: tests that need {', '.join(missing)} are skipped (.ci/run installs them)"


# --- seeds ---------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        shares = [0] if ONE is not None else range(SHARES)
        metafunc.parametrize("seed", shares, ids=[f"share{share}" for share in shares])


def share_of(item):
    """Which share of its seeds an item runs; None for a test without seeds."""
    return item.callspec.params.get("seed") if hasattr(item, "callspec") else None


def seeds_of(item):
    """The seeds that an item runs, in order; stops where its part of the budget is used up."""
    share = share_of(item)
    if ONE is not None:
        yield int(ONE)
        return
    ordinary = getattr(item.module, "SEEDS", 300)
    floor = getattr(item.module, "FLOOR", FLOOR)
    end = time.process_time() + SEED_SECONDS / SHARES
    for seed in range(share, int(EXACTLY or ordinary), SHARES):
        if seed >= floor and EXACTLY is None and time.process_time() > end:
            return
        yield seed


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Call a test for each of its seeds, with a folder of its own and nothing patched before."""
    if share_of(pyfuncitem) is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    count = 0
    for seed in seeds_of(pyfuncitem):
        pyfuncitem.stash[FAILING] = seed
        given["seed"] = seed
        if "tmp_path" in given:
            given["tmp_path"] = pyfuncitem.funcargs["tmp_path"] / str(seed)
            given["tmp_path"].mkdir()
        assert pyfuncitem.obj(**given) is None, "a test returns nothing"
        if "monkeypatch" in given:
            given["monkeypatch"].undo()
        count += 1
    pyfuncitem.user_properties.append(("seeds", count))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    seed = item.stash.get(FAILING, None)
    if report.failed and seed is not None:
        test = item.nodeid.split("[")[0]
        report.sections.append(("replay this seed", f"STREAMEVAL_SEED={seed} pytest {test}"))
    return report


def cpu_seconds():
    """CPU seconds of this process, and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Note what a test costs, with its fixtures and the programs that end with it."""
    began = cpu_seconds()
    answer = yield
    COSTS[item.path.name] += cpu_seconds() - began
    return answer


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    # A process that crashed has no output.
    COSTS.update(getattr(node, "workeroutput", {}).get("costs", {}))


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["costs"] = dict(COSTS)


def pytest_terminal_summary(terminalreporter):
    ran = collections.Counter()
    for report in terminalreporter.stats.get("passed", ()):
        properties = dict(report.user_properties)
        if report.when == "call" and "seeds" in properties:
            ran[report.nodeid.split("[")[0]] += properties["seeds"]
    if COSTS.total() > LONG:
        terminalreporter.section(f"CPU seconds: {COSTS.total():.0f}; the dearest files")
        for file, seconds in COSTS.most_common(25):
            terminalreporter.write_line(f"{seconds:6.0f} {file}")
    if ran:
        terminalreporter.section("seeds that ran")
        for test, count in sorted(ran.items()):
            terminalreporter.write_line(f"{count:6} {test}")


# --- processes -----------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Run one process more than there are cores: many tests wait for a server."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(items):
    """Keep tests in one process that share what only a whole file sets up."""
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs.values()
        if any(each.scope != "function" and each.baseid for group in definitions for each in group):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
