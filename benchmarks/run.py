"""`make bench`: streameval beside other ways to do the job, in one run on real Kafka and Redis.

What is measured, on what, and what the last run gave: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

HERE: Final = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import pytest  # noqa: E402 - as servers.py does
import servers  # noqa: E402 - they stand beside
from installed import OPTIONAL, version  # noqa: E402
from log import Filled, fill  # noqa: E402
from machine import cores, facts  # noqa: E402
from measure import Run, Scrapes, Stack, memory, peer, scrapes, throughput  # noqa: E402
from workload import Shape, records  # noqa: E402

# So that some fall into every run: a slate is written more often than at the default of 30 s.
CHECKPOINT_INTERVAL: Final = "3s"
# Items of the longer slates: what a slate costs is spread over more impressions.
LONG: Final = 30
# How the same impressions may arrive; the order of `make bench`'s headline is the friendliest.
ORDERS: Final = {
    "side by side": {},
    "jitter of 50 ms": {"jitter": 50},
    "items 100 ms apart": {"apart": 100},
    "without a request": {"sent": "lone"},
    "heavy-tailed users": {"skew": 4.0},
    "20 variants": {"variants": 20},
    "40 % feedback": {"feedback": 0.4},
}
# What an order may cost beside the friendliest one, in CPU an event; of the others it is shown.
ORDER_BOUNDS: Final = {"items 100 ms apart": 1.2, "jitter of 50 ms": 1.2}
# All that one experiment brings: a value, guardrails, and the split of users.
EXPERIMENT: Final = {
    "positives": ["click", {"kind": "like", "value": "sum"}],
    "experiments": [
        {
            "name": "bench",
            "arm": "variant",
            "control": "A",
            "split": {"A": 1, "B": 1},
            "primary": "positives_per_impression{feedback=click}",
            "guardrails": ["ndcg@10", "empty_rate", "value_per_user{feedback=like}"],
        }
    ],
}
WITH_EXPERIMENT: Final = {
    "an experiment": "streameval",
    "slates, an experiment": "streameval, slates",
}
# What a worker keeps beside the peers, each of which does a part of its work. A loss of a quarter
# of what runs have had shows (docs/benchmarks.md).
OF_RAW_READER: Final = 0.24
TIMES_FAUST: Final = 11.0
TIMES_LOOP: Final = 1.7
VERDICTS: Final = {True: "met", False: "MISSED", None: ""}


@dataclass(frozen=True)
class Sizes:
    """How much is measured; `per_second` is impressions a second of event time."""

    impressions: int = 3_000_000
    order_impressions: int = 1_500_000
    slate_impressions: int = 8_000_000
    memory_impressions: int = 1_500_000
    loop: int = 800_000
    agent: int = 100_000
    repeats: int = 3
    users: int = 100_000
    per_second: int = 1_000
    hopping: int = 50_000
    sql: int = 1_000_000

    def of(self, name: str) -> int:
        """Return how much an optional peer reads: of hopping windows SQL adds up minutes."""
        return self.sql if name == "flink" else self.hopping


QUICK: Final = Sizes(
    1_000_000, 300_000, 1_000_000, 150_000, 100_000, 20_000, 1, 10_000, hopping=5_000, sql=100_000
)


@dataclass(frozen=True)
class Target:
    """A figure with its unit, what it should be, and whether it is (None: nothing is asked)."""

    name: str
    measured: str
    wanted: str
    met: bool | None


def main() -> int:
    """Measure everything, print tables; 1 when a target was missed, 2 without a server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean little")
    parser.add_argument("--repeats", type=int, help="of each contender")
    parser.add_argument(
        "--per-second",
        type=int,
        help="impressions a second of event time: the more, the more slates are open at a time",
    )
    given = parser.parse_args()
    chosen = {"repeats": given.repeats, "per_second": given.per_second}
    sizes = dataclasses.replace(
        QUICK if given.quick else Sizes(), **{key: n for key, n in chosen.items() if n}
    )
    _, other = cores()
    os.sched_setaffinity(0, {other})
    try:
        print("\n".join(facts()))
        for name, (title, _) in OPTIONAL.items():
            print(f"{title}: {version(name) or 'not installed, `make bench-peers` gets it'}")
        with servers.kafka() as kafka, servers.redis() as redis:
            targets = measure(Stack(kafka, redis), sizes)
    except (pytest.skip.Exception, pytest.fail.Exception) as error:  # of `programs.need`
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    _table(
        ("target", "measured", "wanted", ""),
        [(t.name, t.measured, t.wanted, VERDICTS[t.met]) for t in targets],
    )
    return any(target.met is False for target in targets)


def measure(stack: Stack, sizes: Sizes) -> list[Target]:
    """All measurements, one after the other; contenders take turns."""
    port = stack.kafka.port
    # More users than the windows are to hold: not everyone looks at a slate.
    users = sizes.users * 6 // 5
    shape = Shape(sizes.impressions, per_second=sizes.per_second, users=users)
    items = _filled("impressions", fill(port, "impressions", records(shape)))
    slates = Shape(sizes.slate_impressions, "slates", per_second=sizes.per_second, users=users)
    whole = _filled("whole slates", fill(port, "slates", records(slates)))
    longer = dataclasses.replace(slates, length=LONG)
    long = _filled("long slates", fill(port, "long", records(longer)))
    ordered = dataclasses.replace(shape, impressions=sizes.order_impressions)
    orders = {
        name: _filled(
            name, fill(port, f"order-{number}", records(dataclasses.replace(ordered, **changed)))
        )
        for number, (name, changed) in enumerate(ORDERS.items())
    }
    contenders: dict[str, Callable[[], Run]] = {
        "streameval": lambda: throughput(stack, items, CHECKPOINT_INTERVAL),
        "aiokafka, counts": lambda: peer(stack, "raw", items.topic, items.records),
        "json + redis-py": lambda: peer(stack, "loop", items.topic, sizes.loop),
        "the same, added up": lambda: peer(stack, "loop", items.topic, sizes.loop, "--add-up"),
        "Faust, counts": lambda: peer(stack, "agent", items.topic, sizes.agent),
        "streameval, slates": lambda: throughput(stack, whole, CHECKPOINT_INTERVAL),
        "an experiment": lambda: throughput(stack, items, CHECKPOINT_INTERVAL, **EXPERIMENT),
        "slates, an experiment": lambda: throughput(
            stack, whole, CHECKPOINT_INTERVAL, **EXPERIMENT
        ),
        "slates of thirty": lambda: throughput(stack, long, CHECKPOINT_INTERVAL),
        **{
            name: functools.partial(throughput, stack, log, CHECKPOINT_INTERVAL)
            for name, log in orders.items()
        },
    }
    for name, (title, _) in OPTIONAL.items():
        if version(name):
            contenders[title] = functools.partial(peer, stack, name, items.topic, sizes.of(name))
    folder = contextlib.ExitStack()
    file = pathlib.Path(folder.enter_context(tempfile.TemporaryDirectory())) / "events.jsonl"
    written = _write(file, ordered)
    contenders["DuckDB, a file"] = lambda: peer(stack, "file", "", written, "--file", str(file))
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(sizes.repeats):
        for name, contender in contenders.items():
            run = contender()
            runs[name].append(run)
            load = os.getloadavg()[0]
            print(f"  run {number + 1}: {name}: {run.rate:,.0f} events/s (load {load:.1f})")
    folder.close()
    _contenders(runs)
    targets = _orders(runs)
    targets += _experiments(runs)
    targets += _windows(runs)
    targets += _rates(runs, slates.impressions / whole.records, longer.impressions / long.records)
    targets += _memory(stack, sizes.memory_impressions)
    return targets + _metrics(*scrapes(stack, items, sizes.users))


def _write(file: pathlib.Path, shape: Shape) -> int:
    """Write the events of `shape` to a file, one a line; how many there are."""
    with file.open("wb") as lines:
        return sum(bool(lines.write(value + b"\n")) for _, _, value in records(shape))


def _orders(runs: dict[str, list[Run]]) -> list[Target]:
    """What each order of arrival costs beside the friendliest one, run by run."""
    friendly = runs["side by side"]
    targets = []
    for name in ORDERS:
        if name != "side by side":
            ratio = cost_ratio(runs[name], friendly)
            bound = ORDER_BOUNDS.get(name)
            wanted, met = ("", None) if bound is None else (f"{bound} x", ratio <= bound)
            targets.append(Target(f"CPU an event: {name}", f"{ratio:.2f} x", wanted, met))
    return targets


def _experiments(runs: dict[str, list[Run]]) -> list[Target]:
    """The rate of a core with an experiment as a share of that without, by CPU, run by run."""
    ratios = {name: cost_ratio(runs[plain], runs[name]) for name, plain in WITH_EXPERIMENT.items()}
    return [
        Target(f"rate with {name}", f"{ratio:.2f} x", "0.85 x", ratio >= 0.85)
        for name, ratio in ratios.items()
    ]


def _filled(what: str, log: Filled) -> Filled:
    size = log.value_bytes / log.records
    print(f"{what}: {log.records:,} events of {size:.0f} bytes, lz4, 4 partitions")
    return log


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _rate(runs: list[Run]) -> float:
    return _median([run.rate for run in runs])


def ratio_of(some: list[Run], others: list[Run]) -> float:
    """The median of the rates of some runs beside those of others of the same turn."""
    return _median([a.rate / b.rate for a, b in zip(some, others, strict=True)])


def cost_ratio(some: list[Run], others: list[Run]) -> float:
    """The median of the CPU an event of some runs beside that of others of the same turn."""
    return _median([a.cpu_cost / b.cpu_cost for a, b in zip(some, others, strict=True)])


def _windows(runs: dict[str, list[Run]]) -> list[Target]:
    """What the rolling positive rate alone costs in the peers that are installed."""
    titles = [title for title, _ in OPTIONAL.values() if title in runs]
    ratios = {title: cost_ratio(runs[title], runs["streameval"]) for title in titles}
    return [Target(f"CPU an event: {title}", f"{n:.0f} x", "", None) for title, n in ratios.items()]


def _contenders(runs: dict[str, list[Run]]) -> None:
    rows = []
    for name, mine in runs.items():
        rates = [run.rate for run in mine]
        cost = _median([run.cpu_cost * 1e6 for run in mine])
        rows.append(
            (
                name,
                f"{mine[0].records:,}",
                f"{_median(rates):,.0f}",
                f"{min(rates):,.0f}-{max(rates):,.0f}",
                f"{cost:.2f}",
                f"{_median([run.cpu_seconds for run in mine]):.1f}",
                f"{max(run.peak_bytes for run in mine) / 2**20:.0f}",
                str(mine[0].checkpoints or ""),
            )
        )
    head = ("", "events", "events/s", "spread", "CPU us/event", "CPU s", "peak MB", "checkpoints")
    _table(head, rows)


def _rates(runs: dict[str, list[Run]], impressions: float, of_thirty: float) -> list[Target]:
    """The targets of throughput; impressions for each record of the topics of whole slates."""
    ours = _rate(runs["streameval"])

    def ratio(name: str) -> float:
        return ratio_of(runs["streameval"], runs[name])

    raw, loop, agent = map(ratio, ("aiokafka, counts", "json + redis-py", "Faust, counts"))
    added_up = ratio("the same, added up")
    shown = _rate(runs["streameval, slates"]) * impressions
    longer = _rate(runs["slates of thirty"]) * of_thirty
    whole = ratio_of(runs["streameval, slates"], runs["streameval"]) * impressions
    return [
        Target(
            "one worker, one core",
            f"{ours:,.0f} events/s, {raw:.2f} of the raw reader",
            f"{OF_RAW_READER} of it",
            raw >= OF_RAW_READER,
        ),
        Target(
            "beside the Faust agent",
            f"{agent:.1f} x",
            f"{TIMES_FAUST:g} x",
            agent >= TIMES_FAUST,
        ),
        Target(
            "beside the pipelined loop",
            f"{loop:.1f} x",
            f"{TIMES_LOOP:g} x",
            loop >= TIMES_LOOP,
        ),
        Target("beside the loop that adds up first", f"{added_up:.1f} x", "", None),
        Target(
            "whole slates of ten",
            f"{shown:,.0f} impressions/s, {whole:.2f} x single events",
            "1.4 x",
            whole >= 1.4,
        ),
        Target("whole slates of thirty", f"{longer:,.0f} impressions/s", "", None),
    ]


def _memory(stack: Stack, impressions: int) -> list[Target]:
    targets = []
    for sent, name in (
        ("impressions", "slates of ten, an event an impression"),
        ("slates", "slates of ten, whole"),
        ("lone", "impressions without a request"),
    ):
        size = memory(stack, sent, impressions)
        # A lone impression is a slate of its own: shown, but the target is of slates.
        met = None if sent == "lone" else size <= 200
        wanted = "" if sent == "lone" else "200 B"
        targets.append(Target(f"an open impression: {name}", f"{size:.0f} B", wanted, met))
    return targets


def _metrics(loading: Scrapes, idle: Scrapes) -> list[Target]:
    return [
        Target(
            f"/metrics, {what}, {found.users:,} users",
            f"median {found.median * 1e3:.0f} ms, max {max(found.seconds) * 1e3:.0f} ms,"
            f" {found.page_bytes / 1000:.0f} kB",
            "200 ms",
            found.median < 0.2,
        )
        for what, found in (("loading", loading), ("idle", idle))
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[index]) for row in (head, *rows)) for index in range(len(head))]
    print()
    for row in (head, tuple("-" * width for width in widths), *rows):
        cells = [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("| " + " | ".join(cells) + " |")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
