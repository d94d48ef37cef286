"""`make planted-bugs`: plant bugs, one at a time, and see within how many seeds each is found.

Each bug is a line or two of the service replaced in a copy of it (or in the model of the commit
script: what if it meant something else?). A search runs on the copy until something does not hold:
the simulated world, seed by seed; for the script itself, the test that holds it against the model.
The table goes into docs/guarantees.md. A bug that nothing finds is a test that is missing.

`tests/project/test_planted_bugs.py` keeps the patches applicable.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- planted bugs: make planted-bugs -->\n", "<!-- end of planted bugs -->\n"
MOST_SEEDS = 300
WORLD = "the simulated world"
SCRIPT = "the script against its model, on Redis"


class Bug(NamedTuple):
    """What is wrong, where, and the lines that make it so."""

    what: str
    file: str
    old: str
    new: str
    search: str = WORLD
    test: str = ""  # of its own, which is run where the search finds nothing


BUGS = (
    Bug(
        "commit, its meaning: the stored offset is not compared",
        "tests/model.py",
        """        if stored.get(b"offset", b"") != _bytes(start):\n            return fenced\n""",
        "",
    ),
    Bug(
        "commit, its meaning: a checkpoint need not go on from the stored one",
        "tests/model.py",
        """stored.get(b"checkpoint_offset", b"") != _bytes(since)""",
        "False",
        test="tests/worker/test_model.py::test_the_model_of_the_store_answers_as_redis_does",
    ),
    Bug(
        "commit, its meaning: offset first, counters in a call of their own that may be lost",
        "tests/model.py",
        "        self._count(prefix, ",
        "        self.rng.random() < 0.02 or self._count(prefix, ",
    ),
    Bug(
        "commit, the script: the stored offset is not compared",
        "streameval/store/commit.lua",
        "if (stored[1] or '') ~= ARGV[1] then return fenced() end\n",
        "",
        SCRIPT,
    ),
    Bug(
        "commit, the script: a new user's `first_ts` is not written",
        "streameval/store/commit.lua",
        "  if not known then\n    earlier[#earlier + 1] = at\n",
        "  if not known then\n",
        SCRIPT,
    ),
    Bug(
        "commit, the script: chunks no longer listed stay",
        "streameval/store/commit.lua",
        "for _, key in ipairs(old) do call('UNLINK', key) end\n",
        "",
        SCRIPT,
    ),
    Bug(
        "restore: reading goes on at the stored offset, not at the checkpoint's",
        "streameval/worker/restore.py",
        "at = committed if stored.checkpoint_offset is None else stored.checkpoint_offset",
        "at = committed",
    ),
    Bug(
        "restore: a state kept from before is taken to be at whatever offset is stored",
        "streameval/worker/restore.py",
        "if standing.offset == parked.committed and held:",
        'if held and not setattr(parked, "committed", standing.offset):',
    ),
    Bug(
        "revoke: a partition that went is still held",
        "streameval/worker/assignment.py",
        "if self.partitions.pop(partition.number, None) is partition and",
        "if self.partitions.get(partition.number) is partition and",
    ),
    Bug(
        "revoke: a new owner's state is restored, and another's kept instead",
        "streameval/worker/assignment.py",
        "self._parked.pop(number, None))",
        "next(iter(self._parked.values()), None))",
    ),
    Bug(
        "restore: a log that was set back and has grown again is read on",
        "streameval/worker/restore.py",
        "if found is not None and found != last:",
        "if False:",
    ),
    Bug(
        "restore: records below the stored offset are counted again",
        "streameval/worker/assigned_partition.py",
        "self.restoring = self.committed is not None and self.next_offset < self.committed",
        "self.restoring = False",
    ),
    Bug(
        "fence: a worker whose commit was refused goes on with its state",
        "streameval/worker/commits.py",
        "            self._fenced(partition, answer.offset)\n",
        "            partition.stored = answer.offset\n",
    ),
    Bug(
        "attribution: feedback exactly at the end of its window does not count",
        "streameval/core/attribution.py",
        "not 0 <= ts - slate.time <= self._window",
        "not 0 <= ts - slate.time < self._window",
    ),
    Bug(
        "attribution: feedback is final one moment too early",
        "streameval/core/attribution.py",
        "        while due and due[0][0] < final:\n",
        "        while due and due[0][0] <= final:\n",
    ),
    Bug(
        "retraction: of a positive and a retraction at one moment the positive wins",
        "streameval/core/relevance.py",
        "            if positive > retraction:\n                counts[kind] += 1",
        "            if positive >= retraction:\n                counts[kind] += 1",
    ),
    Bug(
        "checkpoint: feedback that waits is not saved",
        "streameval/core/checkpoint.py",
        """("pending", partition.attribution.state()),""",
        """("pending", partition.attribution.state()[:0]),""",
    ),
    Bug(
        "checkpoint: panes that matured are not saved",
        "streameval/core/checkpoint.py",
        "for window, number in windows.unsaved if window == index]",
        "for window, number in windows.unsaved if window < 0]",
    ),
    Bug(
        "windows: a pane matures one slide too early",
        "streameval/core/windows/panes.py",
        "        return (time - self.horizon) // self.window.slide - 1\n",
        "        return (time - self.horizon) // self.window.slide\n",
    ),
    Bug(
        "experiments: a slate at `until` counts",
        "streameval/core/experiments/sums.py",
        "if begin <= slate.time < end:",
        "if begin <= slate.time <= end:",
        test="tests/core/test_experiments.py::"
        "test_the_arms_are_those_of_the_oracle_however_the_stream_is_cut",
    ),
    Bug(
        "visits: a checkpoint does not hold those that no commit has taken",
        "streameval/core/checkpoint.py",
        """VISITS: ("visits", list(partition.experiments.visits)),""",
        """VISITS: ("visits", []),""",
        test="tests/core/test_visits.py::"
        "test_a_checkpoint_holds_the_visits_that_no_moved_offset_confirms",
    ),
    Bug(
        "values: a cap is compared with the upper half of a sum only",
        "streameval/core/windows/values.py",
        "above = (high > top) | ((high == top) & (low > rest))",
        "above = high > top",
    ),
    Bug(
        "nowcasts: feedback that comes exactly at T is taken to be missing",
        "streameval/core/nowcast.py",
        "now = windows.reading_time + 1\n",
        "now = windows.reading_time\n",
        test="tests/core/test_partition_properties.py::"
        "test_the_stream_as_it_arrives_gives_the_oracles_figures",
    ),
    Bug(
        "dead letters: written after the commit",
        "streameval/worker/commits.py",
        "refused = await self._event_log.write_dead_letters(pending.dead_letters)",
        "refused = 0 if asyncio.create_task("
        "self._event_log.write_dead_letters(pending.dead_letters)) else 1",
    ),
    Bug(
        "dead letters: late events are not written",
        "streameval/worker/assigned_partition.py",
        "[*rejected, *((index[at], rejection) for at, rejection in found)]",
        "rejected",
    ),
    Bug(
        "record path: records of aborted transactions are handed out",
        "streameval/kafka/aiokafka_internals.py",
        "batch.is_transactional and batch.producer_id in self._aborted_producers",
        "False",
    ),
    Bug(
        "record path: a batch is not checked against its checksum",
        "streameval/kafka/aiokafka_internals.py",
        "if self._check_crcs and not batch.validate_crc():",
        "if False:",
    ),
    Bug(
        "reader: offsets without records are not passed",
        "streameval/kafka/consumer.py",
        "if topic_partition not in self._positions or position == before:",
        "if topic_partition not in self._positions or position == before or not found:",
    ),
    Bug(
        "outcome files: published without a look at the pointer",
        "streameval/worker/outcome_writer.py",
        "name in await self._named(pending.partition)",
        "True",
        test="tests/files/test_outcomes.py::"
        "test_a_worker_that_slept_until_the_store_lost_its_checkpoint_publishes_nothing",
    ),
    Bug(
        "outcome files: a restore that is slow removes what was committed since",
        "streameval/worker/outcome_writer.py",
        "        lost = [name for name in names if _span(name).end > pointer]\n",
        "        lost = names\n",
        test="tests/files/test_outcomes.py::"
        "test_a_span_goes_where_the_store_lost_it_and_not_where_another_worker_wrote_it",
    ),
    Bug(
        "outcome files: a restore that is slow discards as too old what was committed since",
        "streameval/worker/outcome_writer.py",
        "            if _span(name).begin < pointer and name not in named:\n    ",
        "",
        test="tests/files/test_outcomes.py::"
        "test_a_restore_leaves_an_old_span_that_was_committed_meanwhile",
    ),
    Bug(
        "outcome files: a refused commit's span goes although the checkpoint names it",
        "streameval/worker/commits.py",
        "await self._outcome_writer.publish(pending)\n            return",
        "await asyncio.to_thread(\n"
        "                self._outcome_writer._files.discard, pending.span.name\n"
        "            ) if pending.span and self._outcome_writer.on else None\n"
        "            return",
        test="tests/worker/test_ingest.py::"
        "test_a_commit_that_went_through_unheard_keeps_its_span_when_it_is_refused",
    ),
    Bug(
        "outcome files: a span that was not published is named by one checkpoint only",
        "streameval/worker/assigned_partition.py",
        """{token}", list(self._unpublished))""",
        """{token}", self._unpublished[-1:] if span else [])""",
        test="tests/worker/test_ingest.py::test_a_checkpoint_names_the_spans_that_are_not_published_yet",
    ),
)


class Found(NamedTuple):
    """Which search found a bug, within how many seeds (None: it did not), and what it said."""

    bug: Bug
    seeds: int | None
    said: str


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="per bug, at most")
    parser.add_argument("--only", default="", help="bugs that hold this text")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    bugs = [bug for bug in BUGS if arguments.only in bug.what]
    rows = []
    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as pool:
        for found in pool.map(lambda bug: search(bug, arguments.seeds), bugs):
            rows.append(found)
            within = "NOT FOUND" if found.seeds is None else f"within {found.seeds}"
            print(f"{within}: {found.bug.what} ({found.said})", flush=True)
    if not arguments.only:
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(before + BEGIN + table(rows, arguments.seeds) + END + after)
    return any(found.seeds is None for found in rows)


def table(rows, most):
    lines = ["\n| bug | found by | within |\n| --- | --- | --- |\n"]
    for bug, seeds, said in rows:
        within = f"**not found** in {most} seeds" if seeds is None else within_of(bug, seeds)
        lines.append(f"| {bug.what} | {bug.search}: {said} | {within} |\n")
    return "".join([*lines, "\n"])


def within_of(bug, seeds):
    if bug.search == SCRIPT:
        return "one run of 400 commits"
    if seeds == 0:
        return "`" + bug.test.partition("::")[2] + "`"
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def planted(bug, folder):
    """Copy the service and its tests, with the bug in them."""
    for name in ("streameval", "tests"):
        skip = shutil.ignore_patterns("__pycache__", "golden")
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", folder)
    path = folder / bug.file
    text = path.read_text()
    assert text.count(bug.old) == 1, f"{bug.file} holds {text.count(bug.old)} times: {bug.old}"
    path.write_text(text.replace(bug.old, bug.new))


def search(bug, seeds):
    """Plant a bug and look for it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planted(bug, folder)
        command = [
            sys.executable,
            "tests/simulate.py",
            str(seeds),
            "--workers",
            "1",
            "--first-only",
        ]
        if bug.search == SCRIPT:
            test = "tests/worker/test_model.py::test_the_model_of_the_store_answers_as_redis_does"
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode in {0, 1}, run.stdout + run.stderr
        if bug.search == SCRIPT:
            return Found(bug, 1 if run.returncode else None, "keys and answers differ")
        failed = re.search(r"^seed (\d+) does not hold:\n(.*)", run.stdout, re.MULTILINE)
        if failed is None and bug.test:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", bug.test]
            run = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert run.returncode in {0, 1}, run.stdout + run.stderr
            if run.returncode:
                return Found(bug, 0, f"nothing within {seeds} seeds")
    if failed is None:
        return Found(bug, None, "nothing")
    return Found(bug, int(failed[1]) + 1, summary(failed[2]))


def summary(said):
    """What did not hold, without its numbers."""
    for pattern, short in (
        (r"\(found, true\)|: missing", "counters of users, during faults"),
        (r"went back|log ends at \d+$", "stored offset, during faults"),
        (r"no dead letters", "dead letters, during faults"),
        (r"stands twice", "outcome files, during faults"),
        (r"stuck", "the end is never reached"),
        (r"set back", "a log that was set back"),
        (r"AssertionError: partition \d", "outcome files at the end"),
        (r"AssertionError", "figures, users or letters at the end"),
    ):
        if re.search(pattern, said):
            return short
    return said.partition(":")[0]


if __name__ == "__main__":
    sys.exit(main())
