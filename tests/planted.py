"""Simulated days of a recommender, clean or with a planted fault, and what the checks say of them.

    python tests/planted.py [--days 60] [--seed 1]

prints which checks found each fault and with what message, and how many alarms the clean days
raised. Each day has 2,000 to 5,000 slates, a fifth fewer at weekends, with a fifth fewer clicks.
Activity is Pareto's, drawn anew each day; users differ in taste; lists of 5 to 10 items, some of
them second pages, some impressions without a list; disorder, late and broken records as usual. All
goes through the core and the service's own writers (`clean_service.Service`).
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from clean_service import Service, edit, failures, results
from default_events import ImpressionEvent, SlateEvent

from streameval.checks.registry import CHECKS
from streameval.core.events import FeedbackEvent, SlateItem

MONDAY = 1_699_833_600_000  # 2023-11-13
DAY = 86_400_000
HOUR = 3_600_000
MINUTE = 60_000
USERS = 1_800
ITEMS = 40
WEEKEND = 0.8
# Every file costs every check that reads it a millisecond: people come in these hours only.
HOURS = (2, 7, 11, 15, 18, 21)
OFF = {"severity": "off"}
GIVEN = {"freshness": {"max_age_seconds": 7_200}, "off_policy": {"catalogue_size": ITEMS}}


@dataclass
class Slate:
    """A slate with all that a fault may change before it becomes events."""

    ts: int
    user: str
    request: str | None
    variant: str
    surface: str
    items: list[int]
    positions: list[int]
    scores: list[float]
    propensities: list[float]
    chances: list[float]


class World:
    """Users and items; `day` gives the slates of a day."""

    def __init__(self, seed):
        self.chance = np.random.default_rng(seed)
        self.taste = self.chance.gamma(2, 0.5, USERS)
        self.worth = self.chance.beta(2, 18, ITEMS)
        self.draw = self.chance.uniform(0.5, 1.5, ITEMS)
        self.draw /= self.draw.sum()

    def day(self, number):
        chance = self.chance
        weekend = WEEKEND if number % 7 >= 5 else 1.0
        slates = int(chance.integers(2_500, 5_001) * weekend)
        # Of activity: a few users have most of the slates.
        weights = chance.pareto(1.2, USERS) + 1
        users = chance.choice(USERS, slates, p=weights / weights.sum())
        # More in the evening than in the night.
        hours = chance.choice(HOURS, slates, p=_RHYTHM)
        times = MONDAY + number * DAY + hours * HOUR + chance.integers(0, HOUR, slates)
        for index, (user, ts) in enumerate(zip(users.tolist(), times.tolist(), strict=True)):
            yield self.slate(f"u{user}", ts, f"r{number}-{index}", self.taste[user] * weekend)

    def slate(self, user, ts, request, taste):
        chance = self.chance
        kind = chance.random()
        count = 1 if kind < 0.05 else int(chance.integers(5, 11))
        items = chance.choice(ITEMS, count, replace=False, p=self.draw)
        first = 11 if 0.05 <= kind < 0.15 else 1
        places = np.arange(first, first + count)
        rates = np.minimum(self.worth[items] * 1.3 / np.sqrt(1 + (places - 1) % 10 / 4), 1)
        return Slate(
            ts=ts,
            user=user,
            request=None if kind < 0.05 else request,
            variant="AB"[zlib.crc32(user.encode()) // 7 % 2],
            surface="mail" if kind < 0.05 else "home",
            items=items.tolist(),
            positions=places.tolist(),
            scores=np.clip(rates * taste * chance.lognormal(0, 0.2, count), 0, 1).tolist(),
            propensities=self.draw[items].tolist(),
            chances=np.minimum(rates * taste, 1).tolist(),
        )


_RHYTHM = np.array([1, 2, 3, 3, 5, 6]) / 20


def events_of(slate, chance):
    """What producers send for a slate and the feedback to it."""
    names = [f"i{item}" for item in slate.items]
    parts = list(zip(names, slate.positions, slate.scores, slate.propensities, strict=True))
    head = {
        "ts": slate.ts,
        "user_id": slate.user,
        "variant": slate.variant,
        "surface": slate.surface,
    }
    if slate.request is None:
        for name, position, score, propensity in parts:
            yield ImpressionEvent(
                **head, item_id=name, position=position, score=score, propensity=propensity
            )
    else:
        yield SlateEvent(
            **head, request_id=slate.request, items=tuple(SlateItem(*part) for part in parts)
        )
    for name, rate in zip(names, slate.chances, strict=True):
        if chance.random() < rate:
            said = FeedbackEvent(
                ts=slate.ts + chance.randrange(1_000, 20 * MINUTE),
                user_id=slate.user,
                item_id=name,
                feedback="buy" if chance.random() < 0.1 else "click",
                request_id=slate.request,
            )
            yield said
            if chance.random() < 0.03:
                yield msgspec.structs.replace(said, ts=said.ts + 5_000, retract=True)


def arrivals(slates, chance):
    """The events of slates in the order in which they arrive: seconds apart, a few far too late."""
    found = []
    for slate in slates:
        for event in events_of(slate, chance):
            delay = chance.randrange(10_000)
            if chance.random() < 0.002:
                delay = chance.randrange(5 * MINUTE, 20 * MINUTE)
            found.append((event.ts + delay, event))
    return [event for _, event in sorted(found, key=lambda pair: pair[0])]


class Deployment:
    """A service that takes day after day, with a snapshot after each."""

    def __init__(self, root, seed=1):
        self.root, self.seed = root, seed
        self.world = World(seed)
        self.service = Service(root)
        self.days = 0

    def day(self, fault=None):
        """Take a day and a snapshot. `fault` may change the slates, the events and the service."""
        chance = random.Random(self.seed * 1_000 + self.days)
        slates = list(self.world.day(self.days))
        if fault is not None:
            slates = fault.slates(slates, random.Random(5))
        events = arrivals(slates, chance)
        if fault is not None:
            events = fault.events(events, random.Random(6))
        self.broken(chance.randrange(5, 15))
        before = [len(log) for log in self.service.logs.values()]
        if fault is not None:
            fault.feeds(self.service, events)
        else:
            self.service.take(events)
        assert before != [len(log) for log in self.service.logs.values()]
        self.service.snapshot(f"day{self.days}")
        self.compact(self.days - 2)
        if fault is not None:
            fault.files(self)
        self.days += 1

    def compact(self, number):
        """Make one file an hour of a day long over, as archives do: only time depends on it."""
        folder = self.service.outcomes / day_folder(number)
        for hour in sorted(folder.glob("hour=*")):
            files = sorted(hour.glob("*.parquet"))
            rows = pa.concat_tables([pa.parquet.ParquetFile(path).read() for path in files])
            for path in files:
                path.unlink()
            pa.parquet.write_table(rows, files[0])

    def broken(self, count):
        """Records that are no events."""
        for number in range(count):
            self.service.states[number % 2].reject("invalid")

    def checked(self, only=None):
        """What the checks (or one) say of the last day, against the snapshot before; by name."""
        last = self.days - 1
        off = {} if only is None else {check.name: OFF for check in CHECKS if check.name != only}
        return results(
            self.service,
            GIVEN | off,
            snapshot=self.root / f"day{last}",
            reference=self.root / f"day{last - 1}" if last else None,
            recorded=None,
        )


# --- faults ---------------------------------------------------------------------------------------


class Fault:
    """A fault in a day; each overrides the one step in which it happens."""

    name = ""
    check = ""
    cause = ""

    def slates(self, slates, _):
        return slates

    def events(self, events, _):
        return events

    def feeds(self, service, events):
        service.take(events)

    def files(self, deployment):
        """Change what was written."""


class Rerandomised(Fault):
    name = "all users assigned anew half way"
    check, cause = "sample_ratio", "Users were assigned anew"

    def slates(self, slates, _):
        noon = sorted(slate.ts for slate in slates)[len(slates) // 2]
        for slate in slates:
            if slate.ts > noon:
                slate.variant = "AB"[zlib.crc32(b"anew" + slate.user.encode()) // 7 % 2]
        return slates


class Crossed(Fault):
    name = "one user of fifty in both variants"
    check, cause = "sample_ratio", "were in more than one variant"

    def slates(self, slates, chance):
        for slate in slates:
            if zlib.crc32(b"some" + slate.user.encode()) % 25 == 0:
                slate.variant = chance.choice("AB")
        return slates


class Requestless(Fault):
    name = "variant B without `request_id`"
    check, cause = "requests_complete", "its ranking figures rest on"

    def slates(self, slates, _):
        for slate in slates:
            if slate.variant == "B":
                slate.request = None
        return slates


class Shuffled(Fault):
    name = "scores shuffled within lists"
    check, cause = "logged_scores", "scores do not tell the items of a list apart"

    def slates(self, slates, chance):
        for slate in slates:
            chance.shuffle(slate.scores)
        return slates


class Fed(Fault):
    name = "a partition's feed repeated into another"
    check, cause = "slates_once", "a feed is sent twice"

    def feeds(self, service, events):
        service.take(events, repeated={0: 1})


class Copied(Fault):
    name = "the same rows again, in another file"
    check, cause = "slates_once", "files were copied"

    def files(self, deployment):
        folder = deployment.service.outcomes / day_folder(deployment.days)
        for path in sorted(folder.glob("hour=1*/*.parquet")):
            shutil.copy(path, path.with_name(f"copy-{path.name}"))


class SilentBots(Fault):
    name = "40 bots with a third of the slates never click"
    check, cause = "traffic_sane", "have no positive"

    def slates(self, slates, chance):
        for slate in slates:
            if chance.random() < 1 / 3:
                slate.user = f"bot{chance.randrange(40)}"
                slate.variant = "AB"[zlib.crc32(slate.user.encode()) // 7 % 2]
                slate.chances = [0.0] * len(slate.items)
        return slates


class EagerUsers(Fault):
    name = "20 users click everything"
    check, cause = "traffic_sane", "gave positives to 90% or more"

    def slates(self, slates, chance):
        users = sorted({slate.user for slate in slates})
        eager = set(chance.sample(users, 20))
        for slate in slates:
            if slate.user in eager:
                slate.chances = [1.0] * len(slate.items)
        return slates


class FromTwo(Fault):
    name = "positions 2 to 11"
    check, cause = "positions_complete", "most begin at 2"

    def slates(self, slates, _):
        for slate in slates:
            slate.positions = [position + 1 for position in slate.positions]
        return slates


class Ahead(Fault):
    name = "a quarter of the users 5 h ahead, in the files"
    check, cause = "clocks_agree", "are about 5 h ahead"

    def files(self, deployment):
        begin = MONDAY + deployment.days * DAY

        def shift(row):
            if not quarter(row["user"]) or row["time"].timestamp() * 1000 < begin:
                return row
            later = [ms + 5 * HOUR for ms in row["shown"]]
            return row | {"time": row["time"] + timedelta(hours=5), "shown": later}

        edit(deployment.service, shift)


class AheadInTheLog(Fault):
    name = "a quarter of the users 5 h ahead, and the records' timestamps with them"
    check, cause = "records_accepted", "clocks of some producers are ahead and make all others late"

    def events(self, events, _):
        return [
            msgspec.structs.replace(event, ts=event.ts + 5 * HOUR)
            if quarter(event.user_id)
            else event
            for event in events
        ]


class Future(Fault):
    name = "a quarter of the users 5 h ahead, under Kafka's timestamps"
    check, cause = "records_accepted", "clocks of some producers are ahead of Kafka's"

    def feeds(self, service, events):
        kept = [event for event in events if not quarter(event.user_id)]
        service.states[0].reject("future", len(events) - len(kept))
        service.take(kept)


class Broken(Fault):
    name = "3 % of the records are no valid events"
    check, cause = "records_accepted", "a producer sends events of another form"

    def feeds(self, service, events):
        kept = [event for event in events if zlib.crc32(str(event.ts).encode()) % 100 >= 3]
        service.states[1].reject("invalid", len(events) - len(kept))
        service.take(kept)


class Late(Fault):
    name = "3 % of the records come 10 minutes late"
    check, cause = "records_accepted", "events arrive later than `allowed_lateness`"

    def events(self, events, chance):
        delayed = [
            (event.ts + (10 * MINUTE if chance.random() < 0.03 else 0), event) for event in events
        ]
        return [event for _, event in sorted(delayed, key=lambda pair: pair[0])]


def day_folder(number):
    """The folder of a day's outcome files."""
    return f"dt={datetime.fromtimestamp(MONDAY / 1000 + number * 86_400, UTC):%Y-%m-%d}"


def quarter(user):
    """Whether a user is of the quarter whose clocks are wrong."""
    return zlib.crc32(b"clock" + user.encode()) % 4 == 0


FAULTS = (
    Rerandomised(),
    Crossed(),
    Requestless(),
    Shuffled(),
    Fed(),
    Copied(),
    SilentBots(),
    EagerUsers(),
    FromTwo(),
    Ahead(),
    AheadInTheLog(),
    Future(),
    Broken(),
    Late(),
)


# --- what the checks say --------------------------------------------------------------------------


def planted(root, fault, seed=1, only=None):
    """What the checks (or one) say of a day with a fault, after a clean one."""
    deployment = Deployment(root, seed)
    deployment.day()
    deployment.day(fault)
    return deployment.checked(only)


def clean_days(root, days, seed=1):
    """What the checks say of each of several clean days in a row."""
    deployment = Deployment(root, seed)
    for _ in range(days):
        deployment.day()
        yield deployment.checked()


def brief(message):
    """What was found; the advice after it is left out."""
    return re.split(r"\. [A-Z]|: people do not", message)[0].replace("|", "/")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=int, default=60, help="clean days")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        print("| planted | found by | what it says, in short |")
        print("| --- | --- | --- |")
        for number, fault in enumerate(FAULTS):
            found = planted(Path(folder) / f"fault{number}", fault, given.seed)
            failed = failures(found)
            said = found[fault.check].message
            wrong += fault.check not in failed or fault.cause not in said
            names = ", ".join(f"`{name}`" for name in sorted(failed)) or "**none**"
            print(f"| {fault.name} | {names} | {brief(said)} |", flush=True)
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
