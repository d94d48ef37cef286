"""What the service leaves, held against the oracle over the log, exactly.

`expected` recounts the log as Kafka holds it, partition by partition; `compare_all` holds users in
Redis, figures on the pages and checkpoints against it, `compare_letters` the dead-letter topic.
"""

import asyncio
import math
import time

import servers
from oracle.figures import oracle
from plain_parser import Rejected, parse, parse_all
from service import dead_letters, wait_for

from streameval.core.checkpoint import restore
from streameval.core.metrics import RANKING as CATALOGUED
from streameval.store.redis_store import RedisStateStore

RANKING = [metric.name for metric in CATALOGUED]


def expected(definition, log, at=None):
    """The oracle's document of each partition of `log`; `at`: reading times by partition."""
    documents = {}
    for number, records in log.items():
        events, reasons = parsed(definition, records)
        documents[number] = oracle(definition, events, at=(at or {}).get(number), rejected=reasons)
    return documents


def parsed(definition, records):
    """The events among records, and how many are rejected by reason, without the decoder."""
    values = [value for _, _, _, value in records]
    timestamps = [timestamp for _, timestamp, _, _ in records]
    return parse_all(values, timestamps, definition.max_clock_skew)


def compare_users(redis_url, topic, documents, group="test"):
    """Every user's counters in Redis equal the oracle's; answers how many users there are."""
    with servers.redis_client(redis_url, decode_responses=True) as client:
        known = 0
        for number, document in documents.items():
            prefix = f"streameval:{{{group}:{topic}:{number}}}:user:"
            keys = set(client.scan_iter(f"{prefix}*", count=10_000))
            assert keys == {prefix + user for user in document["users"]}
            users = sorted(document["users"])
            offset = int(client.hget(prefix.removesuffix("user:") + "partition", "offset"))
            pipeline = client.pipeline(transaction=False)
            for user in users:
                pipeline.hgetall(prefix + user)
            for user, fields in zip(users, pipeline.execute(), strict=True):
                found = {name: int(value) for name, value in fields.items() if int(value)}
                assert found.pop("at") <= offset
                counters = document["users"][user]
                wanted = {
                    name: counters[name]
                    for name in ("impressions", "slates", "first_ts", "last_ts")
                }
                wanted |= {f"positives:{kind}": n for kind, n in counters["positives"].items()}
                wanted = {name: value for name, value in wanted.items() if value}
                assert found == wanted, (number, user)
            known += len(users)
        return known


def reading_times(metrics):
    return {
        int(dict(labels)["partition"]): round(value * 1000)
        for (name, labels), value in metrics.items()
        if name == "streameval_reading_time_timestamp_seconds"
    }


def compare_all(redis_url, topic, workers, log, group="test"):
    """Everything that the workers leave equals the oracle over `log`; they are stopped by this.

    Users in Redis, figures on the pages, and what a restart would get from the checkpoints.
    Answers how many users and figures there were.
    """
    definition = workers[0].definition
    wait_for(lambda: shown(workers, log), 30, "the pages show all partitions, all read")
    documents, figures = compare_pages(workers, definition, log)
    users = compare_users(redis_url, topic, documents, group)
    for worker in workers:
        assert worker.stop() == 0, worker.logged()[-3000:]
    compare_checkpoints(redis_url, topic, definition, log, documents, group)
    return users, figures


def compare_pages(workers, definition, log, seconds=30):
    """The figures of the pages equal the oracle's at their T; answers its documents and how many.

    Figures may be some ticks older than the rest of a page, so they are looked at until they agree.
    The oracle may take longer than `seconds` on a busy machine, and still gets several tries.
    """
    end = time.monotonic() + seconds
    tries = 0
    while True:
        tries += 1
        pages = [worker.metrics() for worker in workers]
        at = {}
        for page in pages:
            at |= reading_times(page)
        documents = expected(definition, log, at)
        try:
            return documents, compare_figures(pages, definition, documents)
        except (AssertionError, KeyError):
            if time.monotonic() > end and tries >= 4:
                raise
            time.sleep(0.5)


def shown(workers, log):
    """Whether the pages together show every partition, and all of it read."""
    pages = [worker.metrics() for worker in workers]
    restoring = {
        int(dict(labels)["partition"]): value
        for page in pages
        for (name, labels), value in page.items()
        if name == "streameval_restoring"
    }
    lags = [
        value for page in pages for (name, _), value in page.items() if name == "streameval_lag"
    ]
    return restoring == dict.fromkeys(log, 0) and lags == [0] * len(log)


def compare_checkpoints(redis_url, topic, definition, log, documents, group="test"):
    """A restart would count every record once: checkpoint, then the log from there on."""

    async def load():
        store = RedisStateStore(redis_url, group, topic, definition.kinds)
        try:
            return {number: await store.load(number) for number in log}
        finally:
            await store.close()

    for number, stored in asyncio.run(load()).items():
        if stored.header is None:
            assert not log[number], "a partition with records has a checkpoint"
            continue
        state = restore(definition, stored.header, stored.chunks)
        rest = [record for record in log[number] if record[0] >= stored.checkpoint_offset]
        events, reasons = parsed(definition, rest)
        state.apply(events)
        for reason, count in reasons.items():
            state.reject(reason, count)
        state.flush()
        found, wanted = without_split(state.events), without_split(documents[number]["events"])
        place = f"partition {number}, from the checkpoint at {stored.checkpoint_offset}"
        assert found == wanted, f"{place}: {found} is not {wanted}"


def without_split(events):
    """Event counters with unattributed feedback summed up: why it is so is a diagnostic."""
    return events | {"unattributed": sum(events["unattributed"].values())}


def rejections(definition, log):
    """Why each rejected record of the log is rejected: {(partition, offset): reason}."""
    found = {}
    for number, records in log.items():
        watermark = 0
        for offset, timestamp, _, value in records:
            event = parse(value, timestamp, definition.max_clock_skew)
            if isinstance(event, Rejected):
                found[number, offset] = event.reason
            elif event.ts < watermark - definition.allowed_lateness:
                found[number, offset] = "late"
            else:
                watermark = max(watermark, event.ts)
    return found


def compare_letters(kafka_port, topic, definition, log):
    """The dead-letter topic holds every rejected record, and no other; answers how many."""
    wanted = rejections(definition, log)
    found = {}
    for headers, _, _ in dead_letters(kafka_port, topic) if wanted else ():
        assert headers["topic"] == topic
        found[int(headers["partition"]), int(headers["offset"])] = headers["reason"]
    assert found == wanted
    return len(found)


def compare_figures(pages, definition, documents):
    """The figures on the workers' pages, combined, equal the oracle's; answers how many.

    `documents` are to be computed for the reading times of the same pages.
    """
    figures = 0
    wanted = _combined(documents.values(), definition)
    found = _from_pages(pages, definition)
    for key, (weight, values) in wanted.items():
        have_weight, have = found.pop(key)
        assert have_weight == weight, key
        for name, value in values.items():
            if value is None:
                assert have.get(name) is None, (key, name)
            else:
                assert math.isclose(have[name], value, rel_tol=1e-9, abs_tol=1e-12), (key, name)
                figures += 1
    assert not any(weight for weight, _ in found.values()), "no figure too many"
    return figures


def _combined(documents, definition):
    """Means over all partitions: {(window, basis, segment, kind or k): (weight, {name: value})}.

    Without nowcasts: a worker takes the delays of all its partitions, a document those of one.
    """
    sums = {}
    for document in documents:
        for row in _counted(document["rates"]):
            key = _key(row, definition, row["feedback"])
            _add(sums, key, row["users"], {"positive_rate": row["positive_rate"]})
            counts = sums[key].setdefault("counts", [0, 0])
            counts[0] += row["positives"]
            counts[1] += row["impressions"]
        for row in _counted(document["ranking"]):
            key = _key(row, definition, row["k"])
            _add(sums, key, row["slates"], {name: row[name] for name in RANKING})
    combined = {}
    for key, found in sums.items():
        weight = found["weight"]
        values = {
            name: math.fsum(parts) / weight if weight else None
            for name, parts in found["values"].items()
        }
        if "counts" in found:
            positives, impressions = found["counts"]
            values["positives_per_impression"] = positives / impressions
        combined[key] = (weight, values)
    return combined


def _counted(rows):
    return [row for row in rows if row["basis"] != "nowcast"]


def _add(sums, key, weight, values):
    found = sums.setdefault(key, {"weight": 0, "values": {name: [] for name in values}})
    found["weight"] += weight
    for name, value in values.items():
        if value is not None:
            found["values"][name].append(value * weight)


def _key(labels, definition, last):
    dimensions = tuple(labels[name] for name in definition.dimensions)
    return labels["window"], labels["basis"], dimensions, str(last)


def _from_pages(pages, definition):
    sums = {}
    for whole_page in pages:
        page = {
            key: value for key, value in whole_page.items() if ("basis", "nowcast") not in key[1]
        }
        weights = {
            _place(labels, definition, name): value
            for (name, labels), value in page.items()
            if name in {"streameval_window_users", "streameval_window_slates"}
        }
        means = {}
        for (name, pairs), value in page.items():
            short = name.removeprefix("streameval_")
            labels = dict(pairs)
            if short in RANKING:
                means.setdefault(_key(labels, definition, labels["k"]), {})[short] = value
            elif short in {"positive_rate", "positives_per_impression"}:
                means.setdefault(_key(labels, definition, labels["feedback"]), {})[short] = value
        counts = {
            _place(labels, definition, name): value
            for (name, labels), value in page.items()
            if name == "streameval_window_impressions"
        }
        for key, values in means.items():
            ranked = "positive_rate" not in values
            name = "streameval_window_slates" if ranked else "streameval_window_users"
            weight = weights[(name, *key[:3])]
            found = sums.setdefault(key, [0, {}])
            found[0] += weight
            for metric, value in values.items():
                by = weight
                if metric == "positives_per_impression":
                    by = counts[("streameval_window_impressions", *key[:3])]
                parts = found[1].setdefault(metric, [0.0, 0.0])
                parts[0] += value * by
                parts[1] += by
        for name, window, basis, dimensions in weights:
            lasts = definition.kinds if name == "streameval_window_users" else definition.ks
            for last in lasts:
                sums.setdefault((window, basis, dimensions, str(last)), [0, {}])
    return {
        key: (weight, {name: total / by for name, (total, by) in values.items() if by})
        for key, (weight, values) in sums.items()
    }


def _place(labels, definition, name):
    labels = dict(labels)
    dimensions = tuple(labels[dimension] for dimension in definition.dimensions)
    return name, labels["window"], labels["basis"], dimensions
