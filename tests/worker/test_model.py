"""Every fault at once, seeded: what must hold holds at the end and while everything goes wrong.

`world` says what runs and what can fail, `brokers` and `model` what stands for Kafka and Redis.
`make simulate SEEDS=10000` runs more of it, and `make planted-bugs` shows what it finds.
"""

import random
import zlib

import pytest
import redis as redis_client
import servers
from model import COMMIT, Server, first_lists
from msgspec.msgpack import encode as msgpack
from world import simulate

from streameval.base.limits import MAX_TS, MIN_TS

FLOOR, SEEDS = 40, 200

pytestmark = pytest.mark.usefixtures("quiet")


def test_whatever_fails_users_figures_letters_and_files_equal_the_oracle(seed, monkeypatch):
    """Looked at during the faults too: counters are exactly those of the stored offset's log."""
    simulate(seed, monkeypatch)


def test_a_seed_does_the_same_every_time(monkeypatch):
    """Else nobody could replay what it found."""
    runs = []
    for _ in range(2):
        with monkeypatch.context() as patches:
            world = simulate(7, patches)
            runs.append((world.cluster.requests, world.history.commits, world.faults))
    assert runs[0] == runs[1]


@pytest.mark.servers
def test_the_model_of_the_store_answers_as_redis_does():
    """The same commits to the script on a real server and to the model: same answers, same keys."""
    rng = random.Random(24)
    model = Server(rng)
    prefix = f"streameval:{{{servers.unique('model')}:t:0}}:"
    answers = set()
    with redis_client.Redis.from_url(servers.shared_redis().url) as client:
        script = client.register_script(COMMIT)
        for number in range(400):
            for key, changed in torn(rng, model.keys, prefix).items():
                client.hset(key, mapping=changed)
                model.keys[key] = model.keys[key] | changed
            arguments, chunks = random_commit(rng, model.keys.get(f"{prefix}partition", {}), number)
            for name in chunks:
                client.set(f"{prefix}chunk:{name}", b"x")
                model.keys[f"{prefix}chunk:{name}"] = b"x"
            answer = model.commit(f"{prefix}partition", arguments)
            assert script([f"{prefix}partition"], arguments) == answer
            assert keys_of(client, prefix) == unordered(model.keys)
            answers.add(answer[0])
    assert answers == {b"applied", b"fenced", b"missing", b"torn"}


def torn(rng, keys, prefix):
    """The fields by key that a part of a commit changed, and what put an earlier one right."""
    changed, key = {}, f"{prefix}partition"
    partition = keys.get(key, {})
    if partition and partition[b"begun"] != partition[b"done"]:
        changed[key] = {b"done": partition[b"begun"]}
    elif partition and rng.random() < 0.05:
        changed[key] = {b"begun": b"%d" % (int(partition[b"begun"]) + 1)}
    user = f"{prefix}user:u{rng.randrange(6)}"
    if b"at" in keys.get(user, {}) and rng.random() < 0.2:
        changed[user] = {b"at": b"%d" % (int(partition[b"offset"]) + rng.randrange(9))}
    return changed


def random_commit(rng, stored, number):
    """The script's arguments, mostly such as fit what is stored, and the chunks to write before."""
    offset = stored.get(b"offset", b"")
    start = offset if rng.random() < 0.8 else rng.choice((b"", 3, int(offset or 0) + 1))
    listed = stored.get(b"chunks", b"").decode().split()
    new = [f"c{number}-{index}" for index in range(rng.randrange(3))]
    keep = [name for name in listed if rng.random() < 0.7] + new
    if rng.random() < 0.1:
        keep.append("unheard-of")
    users = [(f"u{user}", *random_times(rng)) for user in rng.sample(range(6), rng.randrange(4))]
    ids, firsts, lasts = zip(*users, strict=True) if users else ((), (), ())
    columns = [ids, firsts, [str(last) for last in lasts]]
    for field in ("impressions", "slates", "positives:click", "positives:like"):
        if rng.random() < 0.8:
            columns += [field, [rng.choice((-2, 0, 0, 1, 7, 2**40)) for _ in users]]
    saved = rng.random() < 0.5
    arguments = [start, int(offset or 0) + rng.randrange(9), number, f"commit-{number}"]
    arguments += ["cluster", "topic", "f2" if rng.random() < 0.05 and stored else "f1", "{}", 0]
    arguments += [msgpack(columns), b"header" if saved else b""]
    arguments += [msgpack(keep if saved else []), msgpack(new if saved else [])]
    arguments += [f"{number}:0123abcd" if rng.random() < 0.8 else ""]
    before = stored.get(b"checkpoint_offset", b"")
    arguments += [before if rng.random() < 0.9 else int(before or 0) + 1]
    pairs = [(key, f"u{user}") for key in ("e1", "e2") for user in range(6)]
    visits = [
        (key, user, rng.choice("ABC"), zlib.crc32(user.encode()) & 255, random_first(rng))
        for key, user in rng.sample(pairs, rng.randrange(5))
    ]
    arguments += [
        msgpack([list(column) for column in zip(*visits, strict=True)]) if visits else b"",
        rng.randrange(2),
    ]
    return arguments, [name for name in new if saved and rng.random() < 0.9]


def random_times(rng):
    """First and last ts of a user; those before September 2001 have a digit less."""
    return sorted(rng.choice((10**12 - 1, 10**12, MIN_TS, MAX_TS - 1)) for _ in range(2))


def random_first(rng):
    """A first list: early ones share a bucket, others make the buckets longer."""
    time = rng.choice((MIN_TS, MIN_TS + 10 ** rng.randrange(12), MAX_TS - 1))
    return [time, rng.randrange(2), rng.choice((0, 10**9)), rng.randrange(10**9)]


def keys_of(client, prefix):
    """Every key under `prefix` with its value. The script leaves counts of an experiment at 0."""
    keys = [key.decode() for key in client.scan_iter(f"{prefix}*", count=1_000)]
    values = {key: client.get(key) if ":chunk:" in key else client.hgetall(key) for key in keys}
    for key in (key for key in keys if ":arms:" in key):
        values[key] = {field: count for field, count in values[key].items() if count != b"0"}
    return unordered(values)


def unordered(keys):
    """The keys with the arms of each user as dicts: their order in MessagePack means nothing."""
    return {
        key: {name: first_lists(it) if name[:6] == b"first:" else it for name, it in value.items()}
        if ":user:" in key
        else value
        for key, value in keys.items()
    }
