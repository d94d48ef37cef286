"""Simulated days of a recommender, clean or with a planted fault, and what the checks say of them.

    python tests/planted.py [--days 65] [--seed 1] [--only TEXT]

prints which checks found each fault and with what message, and how many alarms the clean days
raised (`planted_world` makes the days, `planted_faults` the faults).
"""

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from clean_service import failures
from planted_faults import FAULTS, HONEST, VARIANTS
from planted_world import Deployment


def planted(root, fault, before, only=None):
    """What the checks (or one) say of a day with a fault, after the clean one `before`."""
    deployment = before.copied(root)
    deployment.day(fault)
    return deployment.checked(only)


def clean_day(root, seed=1):
    """A deployment after one clean day."""
    deployment = Deployment(root, seed)
    deployment.day()
    return deployment


def clean_days(root, days, seed=1):
    """What the checks say of each of several clean days in a row."""
    deployment = Deployment(root, seed, eventful=True)
    for _ in range(days):
        deployment.day()
        yield deployment.checked()


def brief(message):
    """What was found; the advice after it is left out."""
    return re.split(r"\. [A-Z]|: people do not", message)[0].replace("|", "/")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=int, default=65, help="clean days")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    given = parser.parse_args()
    faults = [fault for fault in (*FAULTS, *VARIANTS) if given.only in fault.name]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        print("| planted | found by | what it says, in short |")
        print("| --- | --- | --- |")
        before = clean_day(Path(folder) / "before", given.seed)
        for number, fault in enumerate(faults):
            found = planted(Path(folder) / f"fault{number}", fault, before)
            failed = failures(found)
            said = found[fault.check].message
            wrong += fault.check not in failed or fault.cause not in said
            names = ", ".join(f"`{name}`" for name in sorted(failed)) or "**none**"
            print(f"| {fault.name} | {names} | {brief(said)} |", flush=True)
        for number, fault in enumerate(HONEST):
            found = planted(Path(folder) / f"honest{number}", fault, before)
            names = sorted(failures(found) - {"metric_regression"})
            wrong += len(names)
            said = brief(found["traffic_alike"].message)
            print(f"| {fault.name} | {', '.join(names) or 'nothing'} | {said} |", flush=True)
        alarms, spent = Counter(), time.process_time()
        for number, found in enumerate(clean_days(Path(folder) / "clean", given.days, given.seed)):
            for name in sorted(failures(found)):
                alarms[name] += 1
                print(f"day {number}: {name}: {found[name].message}", file=sys.stderr)
        wrong += alarms.total()
    spent = time.process_time() - spent
    print(
        f"\n{given.days} clean days ({spent:.0f} s of CPU): {alarms.total()} alarms {dict(alarms)}"
    )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
