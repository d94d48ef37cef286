"""`make simulate SEEDS=N`: N seeds of the simulated world, on all cores, with a way to replay.

    python tests/simulate.py [SEEDS] [--from FIRST] [--seed SEED] [--first-only]

Ends with 1 where something did not hold. Options of a seed are all in `world`; the same seed does
the same in every process.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

# The world asks what tests of other folders ask.
sys.path += sorted({str(path.parent) for path in Path(__file__).parent.glob("*/test_*.py")})

ORDINARY = 300
REPORT_SECONDS = 30.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seeds", nargs="?", type=int, default=ORDINARY)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay this one, with the whole traceback")
    parser.add_argument("--first-only", action="store_true", help="end with the first that fails")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return replay(arguments.seed)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return run(seeds, arguments.workers, first_only=arguments.first_only)


def replay(seed):
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("aiokafka").disabled = True
    import world

    world.run_seed(seed)
    print(f"seed {seed} holds")
    return 0


def run(seeds, workers, *, first_only=False):
    began, said = time.monotonic(), time.monotonic()
    failed, cpu, totals = [], 0.0, Counter()
    # (An executor of `concurrent.futures` stands still where its processes are to be replaced.)
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=500) as pool:
        for done, (seed, error, seconds, counts) in enumerate(pool.imap(one, seeds), 1):
            cpu += seconds
            totals.update(counts)
            if error is not None:
                failed.append(seed)
                print(f"\nseed {seed} does not hold:\n{error}", flush=True)
                print(f"replay: {replayed(seed)}", flush=True)
                if first_only:
                    break
            if time.monotonic() - said >= REPORT_SECONDS:
                said = time.monotonic()
                print(f"{done} of {len(seeds)} seeds, {len(failed)} failed", flush=True)
    print(
        f"{len(seeds)} seeds, {len(failed)} failed; {cpu / max(1, len(seeds)):.2f} CPU s a seed,"
        f" {time.monotonic() - began:.0f} s in all"
    )
    print(", ".join(f"{name} {count:,}" for name, count in totals.most_common()))
    if failed:
        print("failed: " + ", ".join(map(str, failed)))
    return bool(failed)


def replayed(seed):
    return f"{os.path.relpath(sys.executable)} tests/simulate.py --seed {seed}"


def one(seed):
    """Run a seed; answers it, what did not hold, its CPU seconds and what happened in it."""
    import world

    logging.disable(logging.CRITICAL)
    began = time.process_time()
    error, counts = None, {}
    try:
        counts = world.run_seed(seed)
    except Exception as problem:  # noqa: BLE001 - whatever a seed finds
        text = "".join(traceback.format_exception_only(problem)).strip()
        error = text if len(text) < 2_000 else f"{text[:2_000]}…"
    return seed, error, time.process_time() - began, counts


if __name__ == "__main__":
    sys.exit(main())
