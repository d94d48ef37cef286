"""Faults to plant into a simulated day, each in the one step in which it happens."""

import hashlib
import shutil
import uuid
import zlib
from dataclasses import replace
from datetime import timedelta

import msgspec
from clean_service import edit
from default_events import SlateEvent
from planted_world import DAY, HOUR, MINUTE, MONDAY, Fault, day_folder

from streameval.core.events import FeedbackEvent


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
                slate.variant = half(slate.user)
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


class Scores(Fault):
    """Scores that say nothing; `change` gives the score of an item from its slate and index."""

    check = "logged_scores"

    def __init__(self, name, cause, change, chosen=lambda *_: True):
        self.name, self.cause, self.change, self.chosen = name, cause, change, chosen

    def slates(self, slates, chance):
        for slate in slates:
            if self.chosen(slate, chance):
                slate.scores = [self.change(slate, index) for index in range(len(slate.items))]
        return slates


class Resent(Fault):
    """A share of the slates again `gap` ms later, under new request ids; `part` of their items."""

    check, cause = "slates_once", "show a user the list before again"

    def __init__(self, share, gap, part=1.0, arms="AB"):
        self.share, self.gap, self.part, self.arms = share, gap, part, arms
        partly = "" if part == 1 else f", {part:.0%} of their items"
        where = "" if len(arms) > 1 else f" of {arms}"
        self.name = f"{share:.0%} of the slates{where} sent again {gap} ms later{partly}"

    def slates(self, slates, chance):
        for slate in list(slates):
            if slate.request and slate.variant in self.arms and chance.random() < self.share:
                kept = max(1, round(self.part * len(slate.items)))
                later = slate.ts + round(self.gap * chance.uniform(0.95, 1.05))
                again = replace(slate, ts=later, request=f"{slate.request}-b")
                cut(again, kept)
                again.chances = [0.0] * kept
                slates.append(again)
        return slates


class OneId(Fault):
    """A share of all slates of both variants under few ids."""

    check = "traffic_sane"

    def __init__(self, share, *ids, cause="shared by several people", arms="AB"):
        self.share, self.ids, self.cause, self.arms = share, ids, cause, arms
        self.name = f"{', '.join(map(repr, ids))} with {share:.0%} of the slates of {arms}"

    def slates(self, slates, chance):
        for slate in slates:
            if slate.variant in self.arms and chance.random() < self.share:
                slate.user = chance.choice(self.ids)
        return slates


class Lists(Fault):
    """Lists of an arm cut to a share of their items; the others' feedback never comes."""

    check, cause = "traffic_alike", "items a list"

    def __init__(self, name, length, arms="B"):
        self.name, self.length, self.arms = name, length, arms

    def slates(self, slates, _):
        for slate in slates:
            if slate.variant in self.arms:
                cut(slate, self.length(len(slate.items)))
        return slates


class Empty(Fault):
    check, cause = "traffic_alike", "are empty"

    def __init__(self, share, arms="B"):
        self.share, self.arms = share, arms
        self.name = f"{share:.0%} of the lists of {arms} empty"

    def slates(self, slates, chance):
        for slate in slates:
            if slate.request and slate.variant in self.arms and chance.random() < self.share:
                cut(slate, 0)
        return slates


class OfFeedback(Fault):
    """A share of the feedback that users of some arms give, changed to several events or none."""

    def __init__(self, name, check, cause, share, change, arms="B"):
        self.name, self.check, self.cause = name, check, cause
        self.share, self.change, self.arms = share, change, arms

    def slates(self, slates, _):
        self.users = {slate.user for slate in slates if slate.variant in self.arms}
        return slates

    def events(self, events, chance):
        for event in events:
            is_theirs = isinstance(event, FeedbackEvent) and event.user_id in self.users
            faulty = is_theirs and chance.random() < self.share
            yield from self.change(event, chance) if faulty else [event]


class LostUsers(Fault):
    check, cause = "sample_ratio", "of the period's"

    def __init__(self, share, arms="B"):
        self.share, self.arms = share, arms
        self.name = f"{share:.0%} of the users of {arms} missing"

    def slates(self, slates, _):
        return [
            slate
            for slate in slates
            if slate.variant not in self.arms or not chosen(slate.user, self.share)
        ]


class ShuffledPositions(Fault):
    check, cause = "positions_complete", "is not where people saw the item"

    def __init__(self, arms):
        self.arms = arms
        self.name = f"positions of {arms} shuffled within lists"

    def slates(self, slates, chance):
        for slate in slates:
            if slate.variant in self.arms:
                chance.shuffle(slate.positions)
        return slates


class Prefetched(Fault):
    """The first item of a share of an arm's lists is clicked as soon as it is shown."""

    check, cause = "traffic_alike", "no person is as fast"

    def __init__(self, share, delay, arms="B"):
        self.share, self.delay, self.arms = share, delay, arms
        self.name = f"a click {delay} ms after {share:.0%} of the lists of {arms}"

    def events(self, events, chance):
        for event in events:
            yield event
            is_theirs = isinstance(event, SlateEvent) and event.variant in self.arms
            if is_theirs and chance.random() < self.share:
                yield FeedbackEvent(
                    ts=event.ts + self.delay,
                    user_id=event.user_id,
                    item_id=event.items[0].item_id,
                    feedback="click",
                    request_id=event.request_id,
                )


class Bubbled(Fault):
    """A share of the feedback of an arm's users is sent for the next item of its list too."""

    check, cause = "traffic_alike", "one action of a person is sent for several items"

    def __init__(self, share, delay, arms="B"):
        self.share, self.delay, self.arms = share, delay, arms
        self.name = f"{share:.0%} of the feedback of {arms} on the next item too, {delay} ms later"

    def events(self, events, chance):
        lists = {}
        for event in events:
            yield event
            if isinstance(event, SlateEvent) and event.variant in self.arms:
                lists[event.request_id] = [item.item_id for item in event.items]
            is_theirs = isinstance(event, FeedbackEvent) and event.request_id in lists
            if is_theirs and not event.retract and chance.random() < self.share:
                names = lists[event.request_id]
                other = names[(names.index(event.item_id) + 1) % len(names)]
                yield msgspec.structs.replace(event, item_id=other, ts=event.ts + self.delay)


class Renamed(Bubbled):
    """A fault of an arm that names its surfaces otherwise than the others do."""

    def __init__(self, share, delay, arms="B"):
        super().__init__(share, delay, arms)
        self.name = f"{self.name}, and other names of its surfaces"

    def slates(self, slates, _):
        for slate in slates:
            if slate.variant in self.arms:
                slate.surface = slate.surface.upper()
        return slates


class Unnamed(Fault):
    check, cause = "traffic_alike", "figures by surface lack them"

    def __init__(self, share, arms="B"):
        self.share, self.arms = share, arms
        self.name = f"{share:.0%} of the slates of {arms} without their surface"

    def slates(self, slates, chance):
        for slate in slates:
            if slate.variant in self.arms and chance.random() < self.share:
                slate.surface = ""
        return slates


class Impatient(Fault):
    """What users of an arm do later than so many minutes after their list is not sent."""

    check, cause = "traffic_alike", "late feedback is lost"

    def __init__(self, minutes, arms="B"):
        self.minutes, self.arms = minutes, arms
        self.name = f"feedback of {arms} lost from {minutes} minutes on"

    def events(self, events, _):
        shown = {
            event.request_id: event.ts
            for event in events
            if isinstance(event, SlateEvent) and event.variant in self.arms
        }
        for event in events:
            is_theirs = isinstance(event, FeedbackEvent) and event.request_id in shown
            if not is_theirs or event.ts - shown[event.request_id] < self.minutes * MINUTE:
                yield event


class LostSlates(Fault):
    """The slates of an arm at some hours are lost."""

    check, cause = "traffic_alike", "its slates were lost"

    def __init__(self, *hours, arms="B"):
        self.hours, self.arms = hours, arms
        self.name = (
            f"slates of {arms} lost from {', '.join(f'{h}:00 to {h + 1}:00' for h in hours)}"
        )

    def slates(self, slates, _):
        return [
            slate
            for slate in slates
            if slate.variant not in self.arms or slate.ts % DAY // HOUR not in self.hours
        ]


class Mute(Fault):
    """A client that a share of an arm's users have sends no feedback."""

    check, cause = "traffic_alike", "clients that do not send it"

    def __init__(self, share, arms="B"):
        self.share, self.arms = share, arms
        self.name = f"{share:.0%} of the users of {arms} without feedback"

    def slates(self, slates, _):
        theirs = (slate.user for slate in slates if slate.variant in self.arms)
        self.users = {user for user in theirs if chosen(user, self.share)}
        return slates

    def events(self, events, _):
        return [
            event
            for event in events
            if not (isinstance(event, FeedbackEvent) and event.user_id in self.users)
        ]


class BySurface(Fault):
    """Half of the users have each arm; of an app, which people like more, B has a larger share."""

    check, cause = "traffic_alike", "figures of all traffic compare values of surface too"

    def __init__(self, share):
        self.share, self.name = share, f"B with {share:.0%} of the users of one surface"

    def slates(self, slates, _):
        for slate in slates:
            share = self.share if slate.variant == "B" else 1 - self.share
            slate.surface = "app" if chosen(slate.user, share) else "web"
            if slate.surface == "app":
                slate.chances = [min(1.0, 1.5 * each) for each in slate.chances]
        return slates


class LostHour(Fault):
    check, cause = "traffic_alike", "feedback was lost"

    def __init__(self, share=1.0, begin=18 * HOUR, length=HOUR, arms="AB"):
        self.share, self.begin, self.length, self.arms = share, begin, length, arms
        self.name = (
            f"{share:.0%} of the feedback of {arms} lost for {length // MINUTE} minutes"
            f" from {begin // HOUR}:{begin // MINUTE % 60:02}"
        )

    def slates(self, slates, _):
        self.users = {slate.user for slate in slates if slate.variant in self.arms}
        return slates

    def events(self, events, chance):
        return [
            event
            for event in events
            if not (
                isinstance(event, FeedbackEvent)
                and self.begin <= event.ts % DAY < self.begin + self.length
                and event.user_id in self.users
                and chance.random() < self.share
            )
        ]


class HourOfBots(Fault):
    check, cause = "traffic_alike", "came only then"

    def __init__(self, bots, share, begin=15 * HOUR, length=HOUR):
        self.bots, self.share, self.begin, self.length = bots, share, begin, length
        self.name = (
            f"{bots} silent bots within {length // MINUTE} minutes, {share:.0%} of the slates"
        )

    def slates(self, slates, chance):
        for slate in slates:
            if chance.random() < self.share:
                slate.user = f"bot{chance.randrange(self.bots)}"
                slate.variant = half(slate.user)
                slate.ts += self.begin - slate.ts % DAY + chance.randrange(self.length)
                slate.chances = [0.0] * len(slate.items)
        return slates


class NewIds(Fault):
    check, cause = "traffic_alike", "in no other slate"

    def __init__(self, share, arms="AB"):
        self.share, self.arms = share, arms
        self.name = f"{share:.0%} of the users of {arms} with a new id for each slate"

    def slates(self, slates, chance):
        for slate in slates:
            if slate.variant in self.arms and chosen(slate.user, self.share):
                slate.user = str(uuid.UUID(int=chance.getrandbits(128)))
        return slates


class Skilled(Fault):
    """No fault: what B shows is liked more or less."""

    def __init__(self, factor):
        self.factor, self.name = factor, f"B's lists liked {factor} times as much (no fault)"

    def slates(self, slates, _):
        for slate in slates:
            if slate.variant == "B":
                slate.chances = [min(1.0, self.factor * each) for each in slate.chances]
        return slates


def cut(slate, kept):
    """Leave the first so many items in a slate."""
    for field in ("items", "positions", "scores", "propensities", "chances"):
        setattr(slate, field, getattr(slate, field)[:kept])


def chosen(user, share):
    """Whether a user is of so large a share of all, in no relation to the variant."""
    return (
        int(hashlib.md5(user.encode(), usedforsecurity=False).hexdigest(), 16) % 997 < 997 * share
    )


def half(user):
    """The variant of a user who is no person."""
    return "AB"[zlib.crc32(user.encode()) // 7 % 2]


def quarter(user):
    """Whether a user is of the quarter whose clocks are wrong."""
    return zlib.crc32(b"clock" + user.encode()) % 4 == 0


def _lost(share, arms="B"):
    name = f"{share:.0%} of the feedback of {arms} lost"
    cause = "of its feedback was lost"
    return OfFeedback(name, "attribution_complete", cause, share, lambda *_: [], arms)


def _twice(share, gap, arms="B"):
    def again(event, _):
        return [event, msgspec.structs.replace(event, ts=event.ts + gap)]

    name = f"{share:.0%} of the feedback of {arms} sent again {gap} ms later"
    return OfFeedback(name, "traffic_alike", "it is sent twice", share, again, arms)


def _priced(factor, arms="B"):
    def other(event, chance):
        priced = event.feedback == "buy" and not event.retract
        value = factor * chance.lognormvariate(0, 0.5)
        return [msgspec.structs.replace(event, value=value) if priced else event]

    name = f"values of {arms} in {factor} times the unit"
    return OfFeedback(name, "traffic_alike", "in the same unit", 1.0, other, arms)


def _named(share, field, cause="of its feedback was lost", arms="B"):
    def other(event, _):
        return [msgspec.structs.replace(event, **{field: f"x{getattr(event, field)}"})]

    name = f"another `{field}` in {share:.0%} of the feedback of {arms}"
    return OfFeedback(name, "attribution_complete", cause, share, other, arms)


def _never_taken_back(arms="B"):
    name, cause = f"the retractions of {arms} lost", "retractions are lost"
    return OfFeedback(
        name, "traffic_alike", cause, 1.0, lambda event, _: [] if event.retract else [event], arms
    )


def _of_one_kind(arms="B"):
    def other(event, _):
        return [msgspec.structs.replace(event, feedback="click")]

    name, cause = f"all feedback of {arms} as clicks", "this feedback is lost, or has another name"
    return OfFeedback(name, "traffic_alike", cause, 1.0, other, arms)


def _same(name, change, chosen=lambda *_: True, cause="same score"):
    return Scores(name, cause, change, chosen)


_UNKNOWN = "stands for no user"
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
    _same("the score 0.5 for every item", lambda *_: 0.5),
    _same(
        "a default score in a tenth of the lists",
        lambda *_: 0.0,
        lambda _, chance: chance.random() < 0.1,
    ),
    _same("the score 1 / position", lambda slate, i: 1 / slate.positions[i], cause="its position"),
    Resent(0.3, 200),
    Resent(0.1, 5_000, arms="B"),
    OneId(0.1, "anonymous", cause=_UNKNOWN),
    OneId(0.1, "k3x9"),
    Lists("lists of B half as long", lambda length: -(-length // 2)),
    Empty(0.1),
    _lost(0.5),
    LostUsers(0.4),
    ShuffledPositions("B"),
    LostHour(),
    HourOfBots(300, 0.15),
    NewIds(1 / 3, arms="B"),
    Prefetched(0.1, 80),
    _twice(0.5, 700),
    _priced(100),
    _named(0.12, "user_id", cause="before the earlier snapshot"),
    BySurface(0.8),
    Bubbled(0.2, 300),
    Renamed(0.2, 300),
    Unnamed(1.0),
    Mute(0.5),
    Impatient(15),
    LostSlates(7),
    _never_taken_back(),
    _of_one_kind(),
)
# More of the same classes, for `make planted`.
VARIANTS = (
    _same(
        "the score 0.5 for every item of B",
        lambda *_: 0.5,
        lambda slate, _: slate.variant == "B",
    ),
    _same(
        "one score for all items of a list",
        lambda slate, _: max(slate.chances),
    ),
    _same("one score for each variant", lambda slate, _: {"A": 0.1, "B": 0.3}[slate.variant]),
    _same("scores rounded to two values", lambda slate, i: float(slate.scores[i] > 0.05)),
    _same(
        "the position as score", lambda slate, i: float(slate.positions[i]), cause="its position"
    ),
    Resent(0.02, 200),
    Resent(0.3, 900, part=0.8),
    OneId(0.1, "0", cause=_UNKNOWN),
    OneId(0.05, "00000000-0000-0000-0000-000000000000", cause=_UNKNOWN),
    OneId(0.02, "-", cause=_UNKNOWN),
    OneId(0.02, "k3x9"),
    OneId(0.1, "k3x9", "k3x8", "m2"),
    OneId(0.1, "null", cause=_UNKNOWN, arms="B"),
    Lists("lists cut to five items", lambda length: min(length, 5), arms="AB"),
    Lists("the last item of B's lists not logged", lambda length: max(1, length - 1)),
    Empty(0.04),
    _lost(0.5, arms="AB"),
    LostUsers(0.2),
    ShuffledPositions("AB"),
    LostHour(begin=17 * HOUR + 30 * MINUTE),
    LostHour(arms="B"),
    HourOfBots(150, 0.08),
    NewIds(1 / 3),
    Prefetched(0.05, 80, arms="AB"),
    _twice(0.2, 700, arms="AB"),
    _priced(0.01),
    _named(0.3, "item_id"),
    _named(0.3, "request_id", arms="AB"),
    BySurface(0.65),
    Bubbled(0.5, 0, arms="AB"),
    Unnamed(0.1),
    Unnamed(1.0, arms="AB"),
    Mute(0.3),
    Impatient(5, arms="AB"),
    LostSlates(2, 7, 11),
    LostSlates(18),
    _never_taken_back(arms="AB"),
    _of_one_kind(arms="AB"),
)

HONEST = (Skilled(0.5), Skilled(1.5))
