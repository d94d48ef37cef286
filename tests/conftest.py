"""How the tests run: in tiers, over seeds within a budget, and spread over processes.

Tiers. `make fast` gives `--fast`: files that import only the layers of `FAST`, themselves and
through their helpers, and that start no program. It leaves out what is marked `long` as well.
`make test` leaves out what is marked `slow`.
`.ci/run` runs the rest: `--passed` writes which tests passed, and `--but` leaves those out.

Seeds. A test that takes `seed` is cut into `SHARES` items; each calls the test for every fourth
seed. The first `FLOOR` seeds of a test (20, or its module's own `FLOOR`; 8 with `--fast`) always
run. Further ones, up to the module's own `SEEDS` (or 300), run until the test has used
`STREAMEVAL_SEED_SECONDS` of CPU time (default 1.5). The last lines of a run say how many seeds ran,
and which files are dear.
`STREAMEVAL_SEEDS=2000` runs that many whatever they take, and `STREAMEVAL_SEED=17` runs that one,
as a failure says.

Under pytest-xdist (`make test`) tests of a file that share a fixture stay in one process. Each
process starts servers of its own.
"""

import ast
import collections
import functools
import logging
import os
import pathlib
import sys
import time
import zlib

import programs
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: no example and no generator is timed.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Kafka and Spark live for seconds here: the optimising compiler would cost them more than it gives.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

HERE = pathlib.Path(__file__).parent
# A test may take what a test of another folder has made.
sys.path += sorted({str(path.parent) for path in HERE.glob("*/test_*.py")})
# Layers that `make fast` tests: no server, no file and no program.
FAST = {"base", "config", "core", "experiments", "metrics", "stats"}
FLOOR, FAST_FLOOR = 20, 8
SHARES = 4
SEED_SECONDS = float(os.environ.get("STREAMEVAL_SEED_SECONDS", "1.5"))
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


def pytest_report_header(config):
    missing = [] if config.option.fast else programs.missing()
    return [f"skipped: {line}" for line in missing]


# --- tiers ---------------------------------------------------------------------------------------


def pytest_addoption(parser):
    group = parser.getgroup("tiers")
    group.addoption("--fast", action="store_true", help="only what needs no file and no program")
    group.addoption("--passed", metavar="FILE", help="write the names of tests that passed")
    group.addoption("--but", metavar="FILE", help="leave out the tests that a file names")


@functools.cache
def imported(path):
    """The modules that a file imports; of streameval, with one name more."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += names if node.module == "streameval" else [node.module]
    return found


@functools.cache
def files_under(folder):
    """The Python files of a folder and its folders, by name."""
    return {path.stem: path for path in folder.rglob("*.py")}


def is_fast(path):
    """Whether a file and its helpers import the layers of `FAST` alone, and start no program."""
    seen, waiting, helpers = {path}, [path], files_under(HERE)
    while waiting:
        for module in imported(waiting.pop()):
            first, _, rest = module.partition(".")
            layer = rest.split(".")[0]
            if first in {"subprocess", "typer"} or (first == "streameval" and layer not in FAST):
                return False
            helper = helpers.get(first)
            if helper is not None and helper not in seen:
                seen.add(helper)
                waiting.append(helper)
    return True


def pytest_ignore_collect(collection_path, config):
    if config.option.fast and collection_path.suffix == ".py" and not is_fast(collection_path):
        return True
    return None


def pytest_make_parametrize_id(val, argname):
    """Name bytes after their argument: packed and random ones differ between processes."""
    return argname if isinstance(val, bytes) else None


def name_of(nodeid):
    """A test's name without the group that pytest-xdist adds."""
    return nodeid.removesuffix(f"@{nodeid.partition('::')[0].rpartition('/')[2]}")


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
    most = getattr(item.module, "SEEDS", 300)
    floor = FAST_FLOOR if item.config.option.fast else getattr(item.module, "FLOOR", FLOOR)
    end = time.process_time() + SEED_SECONDS / SHARES
    for seed in range(share, int(EXACTLY or most), SHARES):
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


def pytest_terminal_summary(terminalreporter, config):
    ran = collections.Counter()
    passed = [one for one in terminalreporter.stats.get("passed", ()) if one.when == "call"]
    for report in passed:
        ran[report.nodeid.split("[")[0]] += dict(report.user_properties).get("seeds", 0)
    if config.option.passed:
        names = sorted(f"{name_of(report.nodeid)}\n" for report in passed)
        pathlib.Path(config.option.passed).write_text("".join(names))
    if COSTS.total() > LONG:
        terminalreporter.section(f"CPU seconds: {COSTS.total():.0f}; the dearest files")
        for file, seconds in COSTS.most_common(25):
            terminalreporter.write_line(f"{seconds:6.0f} {file}")
    if +ran:
        terminalreporter.section("seeds that ran")
        for test, count in sorted((+ran).items()):
            terminalreporter.write_line(f"{count:6} {test}")


# --- processes -----------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Run one process more than there are cores: many tests wait for a server."""
    return len(os.sched_getaffinity(0)) + 1


# Before pytest-xdist, which reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what has passed, and keep tests in one process that share what a file sets up.

    What is left over mostly waits for servers. Its files are mixed, or those that wait would come
    together, at the end, and leave the cores idle.
    """
    if config.option.but:
        passed = set(pathlib.Path(config.option.but).read_text().splitlines())
        config.hook.pytest_deselected(items=[one for one in items if one.nodeid in passed])
        items[:] = [one for one in items if one.nodeid not in passed]
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs.values()
        fixtures = (each for group in definitions for each in group)
        if any(each.scope != "function" and each.baseid for each in fixtures) or remembers(item):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    if config.option.but:
        items.sort(key=lambda item: zlib.crc32(group_of(item).encode()))


def group_of(item):
    """What of a run stays together: the tests of a group, or one test."""
    marker = item.get_closest_marker("xdist_group")
    return item.nodeid if marker is None else marker.args[0]


def remembers(item):
    """Whether a function of the test's own file keeps what it has worked out."""
    return any(
        hasattr(value, "cache_info") and value.__module__ == item.module.__name__
        for value in vars(item.module).values()
    )
