"""A clean service for the tests of checks: a seeded stream, its outcome files and snapshots.

The files are written by the service's own writers from the stream through the core: two
partitions and one with rejected records only, two variants of equal quality, scores that are the
truth, propensities that are.
"""

import copy
import random
import shutil
import zlib

import msgspec
import pyarrow as pa
import pyarrow.parquet
from default_events import SlateEvent

from streameval.base.steps import drain
from streameval.checks import run, specification
from streameval.checks.evidence import Log, gather
from streameval.core.definition import Definition, Positive, Window
from streameval.core.events import FeedbackEvent, SlateItem
from streameval.core.fingerprint import describe, fingerprint
from streameval.core.outcome import Span
from streameval.core.partition import Partition
from streameval.files import snapshots
from streameval.files.outcome_files import OutcomeFolder
from streameval.store.user_scan import UserRow

START = 1_700_000_000_000
MINUTE = 60_000
LENGTH = 300 * MINUTE
DEFINITION = Definition(
    positives=(Positive("click"), Positive("buy")),
    gains={"buy": 3.0},
    dimensions=("variant", "surface"),
    windows=(Window("1h", 60 * MINUTE, MINUTE), Window("4h", 240 * MINUTE, 10 * MINUTE)),
)
PARTITIONS = 2
REJECTED = 3  # records of one partition more, which has no others
SPECIFICATION = {
    "sample_ratio": {"split": {"A": 1, "B": 1}},
    "metric_regression": {"control": "A"},
    "logged_scores": {"probabilities": True},
    "off_policy": {"catalogue_size": 20},
    "freshness": {"max_age_seconds": 600},
}


# --- a clean stream -------------------------------------------------------------------------------


def stream(seed=1, users=3_000, slates=8_000, share_of_b=0.5, score_shift=0.0, skill=None):
    """Events of a recommender by `(ts, event)`; `skill` scales what variant B's people click."""
    chance = random.Random(seed)
    events = []
    for number in range(slates):
        user = f"u{chance.randrange(users)}"
        ts = START + chance.randrange(LENGTH)
        variant = "B" if zlib.crc32(user.encode()) % 1000 < 1000 * share_of_b else "A"
        events += one_slate(chance, number, user, ts, variant, score_shift, skill)
    return sorted(events, key=lambda event: event.ts)


def one_slate(chance, number, user, ts, variant, score_shift=0.0, skill=None):
    """A slate of 5 out of 20 items that the policy samples, and the feedback to it."""
    weights = [1 + item % 4 for item in range(20)]
    items = []
    while len(items) < 5:
        (item,) = chance.choices(range(20), weights)
        if item not in items:
            items.append(item)
    request = f"r{number}"
    rates = [0.05 + 0.02 * (item % 4) + 0.1 * chance.random() for item in items]
    shown = tuple(
        SlateItem(f"i{item}", place, rate + score_shift, weights[item] / sum(weights))
        for place, (item, rate) in enumerate(zip(items, rates, strict=True), 1)
    )
    yield SlateEvent(ts=ts, user_id=user, request_id=request, items=shown, variant=variant)
    for item, rate in zip(items, rates, strict=True):
        if chance.random() < rate * (skill or {}).get(variant, 1.0):
            kind = "buy" if chance.random() < 0.1 else "click"
            later = ts + chance.randrange(1, 10 * MINUTE)
            yield FeedbackEvent(
                ts=later, user_id=user, item_id=f"i{item}", feedback=kind, request_id=request
            )
            if chance.random() < 0.05:
                yield FeedbackEvent(
                    ts=later + chance.randrange(MINUTE),
                    user_id=user,
                    item_id=f"i{item}",
                    feedback=kind,
                    request_id=request,
                    retract=True,
                )


def encoded(event, later=0):
    """An event as a producer sends it, `later` ms."""
    event = msgspec.structs.replace(event, ts=event.ts + later)
    if isinstance(event, FeedbackEvent):
        return msgspec.json.encode(event)
    items = [
        {"item_id": item, "position": place, "score": score, "propensity": propensity}
        for item, place in event.positions.items()
        for score, propensity in (event.details[item],)
    ]
    return msgspec.json.encode({"type": "slate", **head_of(event), "items": items})


def head_of(event):
    """What the slate and each of its impressions say."""
    return {name: getattr(event, name) for name in ("ts", "user_id", "request_id", "variant")}


# --- what the service writes of it ----------------------------------------------------------------


class Service:
    """Runs a stream through the core and leaves outcome files and snapshots as a worker would."""

    def __init__(self, root, definition=DEFINITION):
        self.root, self.definition = root, definition
        self.outcomes = root / "outcomes"
        root.mkdir(exist_ok=True)
        owner = {"group": "g", "topic": "t"}
        self.folder = OutcomeFolder(str(self.outcomes), owner, {}, definition.dimensions)
        self.folder.check()
        self.logs = {number: [] for number in range(PARTITIONS + 1)}
        self.states = [Partition(definition, journal=True, keep_outcomes=True) for _ in self.logs]
        self.states[PARTITIONS].reject("malformed", REJECTED)
        self.users = {}
        self.saved = [0] * len(self.states)

    def take(self, events, repeated=None):
        """Take events in; `repeated` says into which partition one's feed goes a second time."""
        for event in events:
            number = zlib.crc32(event.user_id.encode()) % PARTITIONS
            self.logs[number].append(event)
            if number in (repeated or {}):
                self.logs[repeated[number]].append(event)
        for number, state in enumerate(self.states):
            fresh = self.logs[number][self.saved[number] :]
            state.apply(fresh, range(self.saved[number], self.saved[number] + len(fresh)))
            self._count(number, state.flush())
            span = Span(number, self.saved[number], len(self.logs[number]), "ab")
            self.folder.write(span, state.outcomes_of(drain(state.finalizing())))
            self.folder.publish(span.name)
            self.saved[number] = span.end
        return self

    def _count(self, number, deltas):
        for user, impressions, slates, first, last, *positives in deltas:
            known = self.users.setdefault((number, user), [0, 0, first, last, [0] * len(positives)])
            known[0] += impressions
            known[1] += slates
            known[2:4] = min(known[2], first), max(known[3], last)
            known[4] = [a + b for a, b in zip(known[4], positives, strict=True)]

    def snapshot(self, name, change=None):
        """Take a snapshot; `change` may tamper with the users' counters in Redis before."""
        if change is not None:
            change(self.users)
        folder = self.root / name
        folder.mkdir()
        parts = [self._part(number) for number in self.logs]
        manifest = {
            "format": snapshots.FORMAT,
            "fingerprint": fingerprint(self.definition),
            "definition": describe(self.definition),
            "pseudonymous": False,
            "partitions": [part.facts for part in parts],
            "files": snapshots._write(folder, self.definition, parts),
        }
        snapshots._put(folder / snapshots.MANIFEST, manifest)
        return folder

    def _part(self, number):
        state, end = self.states[number], self.saved[number]
        rows = [
            UserRow(user, end, known[0], known[1], dict(zip(kinds, known[4], strict=True)), *ends)
            for (partition, user), known in self.users.items()
            if partition == number
            for kinds, ends in ((self.definition.kinds, known[2:4]),)
        ]
        facts = {
            "partition": number,
            "watermark": state.watermark,
            "users_begin": end,
            "users_end": end,
            "checkpoint_offset": end,
            "cluster_id": "cluster",
            "topic_id": "topic",
        }
        return snapshots._Part(
            facts,
            snapshots._user_table(number, rows, None),
            snapshots.schema_of(self.definition.dimensions).empty_table(),
            state.sums(),
            state.document(),
        )

    def log(self, begins=None):
        """The log of each partition, from offset 0 or that of `begins`, without reading a file."""

        def recorded(_, earlier):
            logs = {
                number: Log(
                    begin,
                    lambda rest=events[begin:], begin=begin: iter([list(enumerate(rest, begin))]),
                    since=earlier if begin else None,
                )
                for number, events in self.logs.items()
                for begin in ((begins or {}).get(number, 0),)
            }
            return lambda _: logs

        return recorded

    def now(self):
        return max(state.watermark or 0 for state in self.states)


def clean(root, events=None, *, change=None, halves=True):
    """A service after both halves of a stream, with a snapshot after each."""
    service = Service(root)
    events = stream() if events is None else events
    middle = START + LENGTH // 2 + DEFINITION.horizon
    if halves:
        service.take([event for event in events if event.ts < middle])
        service.snapshot("earlier")
        events = [event for event in events if event.ts >= middle]
    service.take(events)
    service.snapshot("later", change)
    return service


def copied(service, root):
    """The same service with files of its own, for a test that changes them."""
    twin = copy.copy(service)
    twin.root = root / "copy"
    shutil.copytree(service.root, twin.root)
    twin.outcomes = twin.root / service.outcomes.name
    return twin


def results(service, given=None, **changes):
    """The results by name of all checks over what a service left."""
    spec = specification.Specification.model_validate(SPECIFICATION | (given or {}))
    arguments = {
        "snapshot": service.root / "later",
        "reference": service.root / "earlier",
        "recorded": service.log(),
        "period": spec.period,
        "arm": specification.arm_of(spec, service.definition),
    } | changes
    with gather(str(service.outcomes), service.definition, service.now(), **arguments) as evidence:
        return {result.name: result for result in run.run(evidence, spec)}


def failures(found):
    return {name for name, result in found.items() if result.passed is False}


def edit(service, change):
    """Change the rows of every outcome file; `change` answers a row, or None to drop it."""
    for path in sorted(service.outcomes.glob("dt=*/hour=*/*.parquet")):
        rows = pa.parquet.ParquetFile(path).read()
        kept = [row for row in map(change, rows.to_pylist()) if row is not None]
        pa.parquet.write_table(pa.Table.from_pylist(kept, rows.schema), path)
