"""A simulated recommender: a stream of events whose true figures are known in advance.

The model, in the order in which chance decides:

1. A user has one variant (a coin) and one habit (drawn by its share): how often they ask, and how
   readily they react.
2. Requests are a Poisson process for each user. Each shows one slate, in positions 1, 2, …; items
   never repeat for a user within the attribution window, so that credit is never in doubt. A share
   of the slates is empty, and each takes a while to make: alike in all variants.
3. Each item of a slate is clicked, independently, with probability `appetite * appeal * bias`; a
   clicked item is liked with probability `like_share`.
4. Feedback happens an exponential delay after its slate. `late_share` of it is delivered so late
   that the service must reject it.
5. Delivery shuffles events within the allowed lateness, repeats `duplicate_share` of them, and puts
   broken ones between.

Nothing here reads a clock: simulated time is moved by `Recommender.until`, and a seed gives the
same stream again. `truth.py` computes the expected figures of this model without any simulation.
All times are integer milliseconds.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple

import msgspec

# Later than the allowed lateness by this much (ms), so that some event of the same partition has
# certainly moved the watermark on: at 200 events/s and four partitions 150 of them have.
LATE_MARGIN = 3_000
ITEMS = 100_000
QUICKNESS = 3  # power of a uniform: most deliveries are quick, a few use the whole lateness


@dataclass(frozen=True, slots=True)
class Habit:
    """A kind of user: its share of all users, its requests a minute, how readily it reacts."""

    share: float
    requests_per_minute: float
    appetite: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One side of the experiment; `appeal` multiplies every probability of a click."""

    name: str
    appeal: float


@dataclass(frozen=True, slots=True)
class World:
    """All parameters of the model; the last two are the service's own A and L (ms)."""

    habits: tuple[Habit, ...] = (
        Habit(share=0.6, requests_per_minute=2, appetite=0.8),
        Habit(share=0.3, requests_per_minute=6, appetite=1.0),
        Habit(share=0.1, requests_per_minute=20, appetite=1.6),
    )
    variants: tuple[Variant, ...] = (Variant("A", 0.18), Variant("B", 0.23))
    bias: tuple[float, ...] = tuple(position**-0.7 for position in range(1, 11))
    like_share: float = 0.3
    click_delay: float = 2_000.0
    like_delay: float = 2_500.0
    late_share: float = 0.02
    duplicate_share: float = 0.03
    broken_share: float = 0.005
    anonymous_share: float = 0.2
    whole_slate_share: float = 0.5
    empty_share: float = 0.03
    least_latency_ms: float = 40.0
    mean_wait_ms: float = 3.0
    attribution_window: int = 10_000
    allowed_lateness: int = 2_000

    def requests_per_user(self) -> float:
        """Compute the mean requests of a user in a millisecond."""
        return sum(habit.share * habit.requests_per_minute for habit in self.habits) / 60_000

    def events_per_request(self) -> float:
        """Estimate the mean events of one request: its impressions and their feedback."""
        positions = len(self.bias)
        impressions = self.whole_slate_share + (1 - self.whole_slate_share) * positions
        busy = sum(h.share * h.requests_per_minute * h.appetite for h in self.habits)
        appetite = busy / sum(h.share * h.requests_per_minute for h in self.habits)
        appeal = sum(variant.appeal for variant in self.variants) / len(self.variants)
        clicks = appetite * appeal * sum(self.bias)
        full = impressions + clicks * (1 + self.like_share)
        once = self.empty_share + (1 - self.empty_share) * full
        return once * (1 + self.duplicate_share + self.broken_share)

    def users_for(self, events_per_second: float) -> int:
        """Return the number of users who send about so many events a second."""
        requests = events_per_second / 1000 / self.events_per_request()
        return max(1, round(requests / self.requests_per_user()))


class Message(NamedTuple):
    """One record to send: its time (ms), key and value, and its expected fate.

    `fate` is `accepted`, or the reason for which the service must reject it.
    """

    delivery: int
    key: bytes
    value: bytes
    fate: str


class _User(NamedTuple):
    user_id: str
    variant: Variant
    habit: Habit


class Recommender:
    """The simulated stream from `start` (ms) on; `sent` counts the messages of `until` by fate."""

    def __init__(self, world: World, users: int, start: int, seed: int) -> None:
        self.sent: Counter[str] = Counter()
        self._world = world
        self._random = Random(seed)  # noqa: S311  # a simulation, no secret
        self._users = [self._draw_user(number) for number in range(users)]
        rates = (user.habit.requests_per_minute for user in self._users)
        self._cumulative = list(accumulate(rates))
        self._rate = self._cumulative[-1] / 60_000
        self._requests = [0] * users
        self._next_request = start + self._random.expovariate(self._rate)
        self._undelivered: list[tuple[int, int, Message]] = []
        self._sequence = 0

    def until(self, now: int) -> list[Message]:
        """Return new messages delivered at or before `now` (ms), in order."""
        while self._next_request <= now:
            self._request(int(self._next_request))
            self._next_request += self._random.expovariate(self._rate)
        due = []
        while self._undelivered and self._undelivered[0][0] <= now:
            due.append(heapq.heappop(self._undelivered)[2])
        self.sent.update(message.fate for message in due)
        return due

    def _draw_user(self, number: int) -> _User:
        habits = self._world.habits
        habit = self._random.choices(habits, [habit.share for habit in habits])[0]
        return _User(f"u{number}", self._random.choice(self._world.variants), habit)

    def _request(self, ts: int) -> None:
        """Let one user ask: impressions go out, and feedback follows."""
        point = self._random.random() * self._cumulative[-1]
        number = bisect(self._cumulative, point, hi=len(self._users) - 1)
        user, count = self._users[number], self._requests[number]
        self._requests[number] += 1
        first = (number * 7_919 + count * len(self._world.bias)) % ITEMS
        empty = self._random.random() < self._world.empty_share
        length = 0 if empty else len(self._world.bias)
        items = [f"i{(first + index) % ITEMS}" for index in range(length)]
        request_id = f"{user.user_id}-{count}"
        for event in self._impressions(user, request_id, items, ts):
            self._deliver(event, ts)
        self._react(user, request_id, items, ts)
        if self._random.random() < self._world.broken_share * self._world.events_per_request():
            self._deliver_broken(user, ts)

    def _impressions(
        self, user: _User, request_id: str, items: list[str], ts: int
    ) -> Iterator[dict[str, object]]:
        shared: dict[str, object] = {
            "ts": ts,
            "user_id": user.user_id,
            "request_id": request_id,
            "variant": user.variant.name,
            "latency_ms": self._latency_ms(),
        }
        if not items or self._random.random() < self._world.whole_slate_share:
            yield {"type": "slate", **shared, "items": items}
            return
        for position, item_id in enumerate(items, 1):
            yield {"type": "impression", **shared, "item_id": item_id, "position": position}

    def _latency_ms(self) -> float:
        wait = self._random.expovariate(1 / self._world.mean_wait_ms)
        return self._world.least_latency_ms + wait

    def _react(self, user: _User, request_id: str, items: list[str], ts: int) -> None:
        world, random = self._world, self._random
        # An empty slate has no position.
        for item_id, bias in zip(items, world.bias, strict=False):
            if random.random() >= user.habit.appetite * user.variant.appeal * bias:
                continue
            event: dict[str, object] = {
                "type": "feedback",
                "user_id": user.user_id,
                "item_id": item_id,
            }
            if random.random() >= world.anonymous_share:
                event["request_id"] = request_id
            self._feedback(event | {"feedback": "click"}, ts, world.click_delay)
            if random.random() < world.like_share:
                self._feedback(event | {"feedback": "like"}, ts, world.like_delay)

    def _feedback(self, event: dict[str, object], slate_ts: int, delay: float) -> None:
        """Deliver feedback that comes an exponential delay after its slate."""
        ts = slate_ts + int(self._random.expovariate(1 / delay))
        event["ts"] = ts
        late = self._random.random() < self._world.late_share
        self._deliver(event, ts, late=late)

    def _deliver(self, event: dict[str, object], ts: int, *, late: bool = False) -> None:
        key, value = str(event["user_id"]).encode(), msgspec.json.encode(event)
        lateness = self._world.allowed_lateness
        if late:
            self._post(Message(ts + lateness + LATE_MARGIN, key, value, "late"))
            return
        # At most L after its ts, while nothing is ever sent before its ts: never late.
        delay = int(lateness * self._random.random() ** QUICKNESS)
        self._post(Message(ts + delay, key, value, "accepted"))
        if self._random.random() < self._world.duplicate_share:
            again = self._random.randint(ts + delay, ts + lateness)
            self._post(Message(again, key, value, "accepted"))

    def _deliver_broken(self, user: _User, ts: int) -> None:
        broken = (
            (b'{"type":"feedback","ts":', "malformed"),
            (
                b'{"type":"feedback","ts":%d,"user_id":"%s"}' % (ts, user.user_id.encode()),
                "invalid",
            ),
            (b'{"type":"impression","ts":"yesterday","user_id":"x","item_id":"y"}', "invalid"),
        )
        value, reason = self._random.choice(broken)
        self._post(Message(ts, user.user_id.encode(), value, reason))

    def _post(self, message: Message) -> None:
        self._sequence += 1
        heapq.heappush(self._undelivered, (message.delivery, self._sequence, message))
