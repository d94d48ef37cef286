"""A recommender's traffic for tests on real servers: seeded, with everything that goes wrong.

Slates of several items, shown at once or item by item, as `slate` events or as impressions; clicks
and likes with delays, some without `request_id`, some retracted; duplicates, disorder within the
lateness, late events, broken ones.
"""

import heapq
import json
import random

START = 1_700_000_000_000
BROKEN = (
    b"",
    b"not json",
    b'{"type":"impression","ts":1700000000000,"user_id":"u\xff","item_id":"i"}',
    b'{"type":"impression","ts":true,"user_id":"u1","item_id":"i"}',
    b'{"type":"view","ts":1700000000000,"user_id":"u1","item_id":"i"}',
    b'{"type":"impression","ts":1700000000000,"user_id":"","item_id":"i"}',
    b"[1,2,3]",
    None,
)


def traffic(  # noqa: C901  # one walk
    seed, count, *, users=2_000, tail=0.8, lateness=60_000, step=40, begin=0
):
    """About `count` records (key, value) in order of arrival.

    `step` is ms between slates, `begin` ms of event time after `START`. The smaller `tail`, the
    more alike are the users: at 0.8 one of them has two slates of five.
    """
    rng = random.Random(seed)
    arrivals = []
    number = 0

    def send(moment, event):
        nonlocal number
        delay = 0
        if rng.random() < 0.2:
            delay = rng.randrange(lateness * 9 // 10)
        if rng.random() < 0.003:
            delay = lateness * 2 + rng.randrange(lateness)  # late, by a lot
        value = json.dumps(event, separators=(",", ":")).encode()
        for _ in range(2 if rng.random() < 0.05 else 1):
            number += 1
            heapq.heappush(arrivals, (moment + delay, number, event["user_id"].encode(), value))
        if rng.random() < 0.002:
            number += 1
            heapq.heappush(arrivals, (moment, number, b"u1", rng.choice(BROKEN)))

    sent = 0
    ts = START + begin
    request = 0
    while sent < count:
        ts += rng.randrange(2 * step)
        user = f"u{int(rng.paretovariate(tail)) % users}"
        request += 1
        variant = rng.choice(("A", "B"))
        items = rng.sample(range(300), rng.choice((3, 5, 10)))
        base = {"ts": ts, "user_id": user, "request_id": f"r{seed}-{request}", "variant": variant}
        base["surface"] = ("home", "search")[request % 2]
        if rng.random() < 0.3:
            send(ts, base | {"type": "slate", "items": [f"i{item}" for item in items]})
            sent += 1
        else:
            for position, item in enumerate(items, 1):
                seen = ts + (rng.randrange(20_000) if rng.random() < 0.3 else 0)
                send(
                    seen,
                    base
                    | {
                        "type": "impression",
                        "ts": seen,
                        "item_id": f"i{item}",
                        "position": position,
                    },
                )
            sent += len(items)
        for item in items:
            if rng.random() < 0.12:
                delay = int(rng.expovariate(1 / 120_000))
                event = {
                    "type": "feedback",
                    "ts": ts + delay,
                    "user_id": user,
                    "item_id": f"i{item}",
                    "feedback": rng.choice(("click", "click", "like", "view")),
                }
                if rng.random() < 0.7:
                    event["request_id"] = base["request_id"]
                send(ts + delay, event)
                sent += 1
                if rng.random() < 0.1:
                    send(ts + delay + 500, event | {"ts": ts + delay + 500, "retract": True})
                    sent += 1
    while arrivals:
        _, _, key, value = heapq.heappop(arrivals)
        yield key, value
