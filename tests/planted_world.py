"""Simulated days of a recommender, clean or with a fault, for the tests of checks.

Each day has 2,000 to 5,000 slates, a fifth fewer at weekends, with a fifth fewer clicks. Activity
is Pareto's, drawn anew each day; users differ in taste; lists of 5 to 10 items, some of them second
pages, some impressions without a list; some lists are looked at again after seconds or minutes;
disorder, late and broken records as usual. An eventful world (`EVENTS`) also grows and has
holidays, experiments, ramps, a canary and a release. All goes through the core and the service's
own writers (`clean_service.Service`).
"""

import copy
import itertools
import random
import shutil
import zlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from clean_service import Service, results
from default_events import ImpressionEvent, SlateEvent

from streameval.checks.catalogue import CHECKS
from streameval.core.events import FeedbackEvent, SlateItem
from streameval.files.outcome_files import OutcomeFolder

MONDAY = 1_699_833_600_000  # 2023-11-13
DAY = 86_400_000
HOUR = 3_600_000
MINUTE = 60_000
USERS = 1_800
ITEMS = 40
WEEKEND = 0.8
# Every file costs every check that reads it a millisecond: people come in these hours only.
HOURS = (2, 7, 11, 15, 18, 21)
# Looks at the same list again: a share of the slates, and seconds later (median, spread of logs).
AGAIN, AGAIN_AFTER = 0.02, (20, 1.2)
# Of eventful worlds: the growth of a day, and the slates and reactions of holidays beside usual.
GROWTH = 1.004
HOLIDAYS = {17: (0.6, 0.95), 38: (1.4, 1.05)}
# The day from which a release is out: reactions, and how much its choice of items differs.
RELEASE, RELEASED = 52, (1.06, 0.1)
# The split from each day on. The first experiment's B is better; a ramp moves users into B.
EVENTS = {
    0: {"A": 1.0},
    10: {"A": 0.5, "B": 0.5},
    20: {"A": 0.95, "B": 0.05},
    25: {"A": 0.8, "B": 0.2},
    30: {"A": 0.5, "B": 0.5},
    40: {"A": 0.485, "B": 0.485, "canary": 0.03},
    47: {"A": 0.5, "B": 0.5},
}
BETTER = range(10, 20)
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

    def __init__(self, seed, *, eventful=False):
        self.eventful, self.split, self.better = eventful, {"A": 0.5, "B": 0.5}, 1.0
        self.chance = np.random.default_rng(seed)
        self.taste = self.chance.gamma(2, 0.5, USERS)
        self.worth = self.chance.beta(2, 18, ITEMS)
        self.draw = self.chance.uniform(0.5, 1.5, ITEMS)
        self.draw /= self.draw.sum()

    def day(self, number):
        chance = self.chance
        busy = liking = WEEKEND if number % 7 >= 5 else 1.0
        if self.eventful:
            more, merry = HOLIDAYS.get(number, (1.0, 1.0))
            busy, liking = busy * more * GROWTH**number, liking * merry
            self.split = EVENTS[since(number)]
            self.better = 1.15 if number in BETTER else 1.0
            if number >= RELEASE:
                liking *= RELEASED[0]
            if number == RELEASE:
                self.draw = self.draw * chance.uniform(1 - RELEASED[1], 1 + RELEASED[1], ITEMS)
                self.draw /= self.draw.sum()
        slates = int(chance.integers(2_500, 5_001) * busy)
        # Of activity: a few users have most of the slates.
        weights = chance.pareto(1.2, USERS) + 1
        users = chance.choice(USERS, slates, p=weights / weights.sum())
        # More in the evening than in the night.
        hours = chance.choice(HOURS, slates, p=_RHYTHM)
        times = MONDAY + number * DAY + hours * HOUR + chance.integers(0, HOUR, slates)
        for index, (user, ts) in enumerate(zip(users.tolist(), times.tolist(), strict=True)):
            slate = self.slate(f"u{user}", ts, f"r{number}-{index}", self.taste[user] * liking)
            yield slate
            if slate.request is not None and chance.random() < AGAIN:
                middle, spread = AGAIN_AFTER
                later = int(1_000 * middle * chance.lognormal(0, spread))
                yield replace(slate, ts=ts + later, request=f"{slate.request}-again")

    def arm(self, user):
        """The variant of a user: the first so many of 1,000 groups have the last variant."""
        group, edge = zlib.crc32(user.encode()) // 7 % 1_000, 0.0
        for name, share in reversed(self.split.items()):
            edge += 1_000 * share
            if group < edge:
                return name
        return "A"

    def slate(self, user, ts, request, taste):
        chance = self.chance
        kind = chance.random()
        variant = self.arm(user)
        taste = taste * self.better if variant == "B" else taste
        count = 1 if kind < 0.05 else int(chance.integers(5, 11))
        items = chance.choice(ITEMS, count, replace=False, p=self.draw)
        first = 11 if 0.05 <= kind < 0.15 else 1
        places = np.arange(first, first + count)
        rates = np.minimum(self.worth[items] * 1.3 / np.sqrt(1 + (places - 1) % 10 / 4), 1)
        return Slate(
            ts=ts,
            user=user,
            request=None if kind < 0.05 else request,
            variant=variant,
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

    def __init__(self, root, seed=1, *, eventful=False):
        self.root, self.seed = root, seed
        self.world = World(seed, eventful=eventful)
        self.service = Service(root)
        self.days = 0
        self.memory = {}

    def copied(self, root):
        """The same deployment with files of its own, to go on with another day."""
        same = [self.service.definition, *itertools.chain(*self.service.logs.values())]
        twin = copy.deepcopy(self, {id(each): each for each in same})  # nobody changes these
        shutil.copytree(self.root, root)
        twin.root = twin.service.root = root
        twin.service.outcomes = root / self.service.outcomes.name
        owner = {"group": "g", "topic": "t"}
        dimensions = self.service.definition.dimensions
        twin.service.folder = OutcomeFolder(str(twin.service.outcomes), owner, {}, dimensions)
        return twin

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

    def asked(self, day):
        """What people ask of the checks on a day: the split in force, since it is."""
        if not self.world.eventful:
            return {}
        split, begin = EVENTS[since(day)], MONDAY + since(day) * DAY
        begin = f"{datetime.fromtimestamp(begin / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        two = len(split) > 1
        return {
            "sample_ratio": {"split": split, "since": begin} if two else {},
            "metric_regression": {"control": "A", "since": begin} if two else {},
        }

    def checked(self, only=None):
        """What the checks (or one) say of the last day, against the snapshot before; by name."""
        last = self.days - 1
        off = {} if only is None else {check.name: OFF for check in CHECKS if check.name != only}
        return results(
            self.service,
            GIVEN | self.asked(last) | off,
            memory=self.memory,
            snapshot=self.root / f"day{last}",
            reference=self.root / f"day{last - 1}" if last else None,
            recorded=None,
        )


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


def since(number):
    """The day since which the split of a day is in force."""
    return max(day for day in EVENTS if day <= number)


def day_folder(number):
    """The folder of a day's outcome files."""
    return f"dt={datetime.fromtimestamp(MONDAY / 1000 + number * 86_400, UTC):%Y-%m-%d}"
