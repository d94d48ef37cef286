"""The doctor's judgements on facts: pure functions, each result a finding with its cure.

`doctor` visits the servers and hands the facts over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from streameval.base.counts import count_of
from streameval.base.durations import UNITS, format_duration
from streameval.base.errors import InputError, StreamevalError, UnreachableError, UnusableStateError
from streameval.base.nearest import nearest
from streameval.core.events import Decoded, Event, EventDecoder, FeedbackEvent, Rejection
from streameval.core.experiments.definition import MAX_ARMS
from streameval.core.foreign_formats import format_of, sentence_on
from streameval.kafka.admin import CLEANUP_POLICY, compacts, creation

if TYPE_CHECKING:
    from streameval.config.load import Settings
    from streameval.config.settings import ForwardSettings
    from streameval.kafka.admin import Cluster, Extent, Sampled
    from streameval.store.stored_values import Facts, Stored

# Clocks that differ by less are as good as equal: a tick, a round trip, a leap second.
CLOCK_TOLERANCE: Final = 2_000

# A few broken producers reject less; a larger share means the wrong topic.
MANY: Final = 0.01

# Among so many users an arm that gets 5 % of them is missing in 1 sample of 170.
ENOUGH: Final = 100

# Kafka's value for a timestamp that may lie any time ahead.
FOREVER: Final = 2**63 - 1

# Kafka's list of topics leaves out those that a user may not describe.
_ABSENT: Final = "does not exist, or this user may not see it"

Level = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """The outcome of one check; `code` is its exit code, 0 unless it failed."""

    check: str
    level: Level
    message: str
    cure: str = ""
    code: int = 0


class Log(NamedTuple):
    """The topic in Kafka, to compare with the state in Redis."""

    cluster_id: str
    extents: Mapping[int, Extent]


def judge_cluster(settings: Settings, cluster: Cluster) -> list[Finding]:
    """Judge whether the topics exist; a worker may create the one of dead letters itself."""
    named = f" (cluster {cluster.cluster_id})" if cluster.cluster_id else ""
    findings = [Finding("kafka", "ok", f"{settings.kafka} answers{named}")]
    topic, dead_letters = settings.topic, settings.dead_letter_topic
    if topic in cluster.topics:
        findings.append(Finding("topic", "ok", f"{topic} exists"))
    else:
        cure = f"{_create(settings, topic, 4)} --config message.timestamp.type=LogAppendTime"
        message = f"{topic} {_ABSENT}: there is nothing to read"
        if near := nearest(topic, cluster.topics, most=3):
            message += f"; if {' or '.join(near)} is meant, correct `topic`"
        findings.append(failed("topic", message, cure, InputError.exit_code))
    if dead_letters in cluster.topics:
        findings.append(_judge_replicas(topic, dead_letters, cluster.topics))
    else:
        message = f"{dead_letters} {_ABSENT}: a rejected event waits until a worker makes it"
        findings.append(
            Finding("dead letters", "warn", message, _create(settings, dead_letters, 1))
        )
    return findings


def missing_source(topic: str, topics: Iterable[str]) -> Finding:
    """Make the finding of a topic of `forward` that is not among `topics`: it needs all."""
    near = nearest(topic, topics)
    cure = f"if {near[0]} is meant, correct `forward`" if near else "correct `forward`"
    return failed(f"forward {topic}", f"{topic} {_ABSENT}", cure, InputError.exit_code)


def _judge_replicas(topic: str, dead_letters: str, replicas: Mapping[str, int]) -> Finding:
    """Judge whether dead letters have as many replicas as events; fewer may hold up partitions."""
    check, has, wanted = "dead letters", replicas[dead_letters], replicas.get(topic, 0)
    if has >= wanted:
        return Finding(check, "ok", f"{dead_letters} exists")
    message = (
        f"{dead_letters} has fewer replicas ({has}) than {topic} ({wanted}): with a broker down,"
        " rejected events may hold up their partitions"
    )
    return Finding(check, "warn", message, "add replicas with kafka-reassign-partitions.sh")


def _create(settings: Settings, topic: str, partitions: int) -> str:
    return creation(settings.kafka, topic, partitions)


def judge_timestamps(settings: Settings, stamps: Mapping[str, str]) -> list[Finding]:
    """Judge who stamps the records: one producer with a wrong clock must not move time far."""
    check, kind = "timestamps", stamps.get("message.timestamp.type")
    if kind is None:
        return [Finding(check, "warn", "the broker does not tell who stamps records")]
    if kind == "LogAppendTime":
        return [Finding(check, "ok", "the broker stamps records (LogAppendTime)")]
    ahead = stamps.get("message.timestamp.after.max.ms", "")
    far = format_duration(int(ahead)) if ahead.isdecimal() and int(ahead) < FOREVER else "any time"
    cure = (
        f"kafka-configs.sh --bootstrap-server {settings.kafka} --alter --entity-type topics"
        f" --entity-name {settings.topic} --add-config message.timestamp.type=LogAppendTime"
    )
    message = (
        f"producers stamp records ({kind}): a wrong clock can move the watermark {far} ahead,"
        " and up to the year 2100 in a record without a timestamp"
    )
    return [Finding(check, "warn", message, cure)]


def judge_group(group: str, missing: str) -> Finding:
    """Judge whether a broker coordinates the group: `missing` says why none does."""
    if not missing:
        return Finding("group", "ok", f"a broker coordinates the group {group}")
    message = (
        f"no broker coordinates the group {group} ({missing}): no worker would get a partition"
    )
    cure = (
        "start all brokers; where fewer exist than their offsets.topic.replication.factor, set it"
        " to how many there are"
    )
    return failed("group", message, cure, UnreachableError.exit_code)


def judge_policy(settings: Settings, name: str, topic: Mapping[str, str]) -> list[Finding]:
    """Judge whether Kafka keeps all events of a user until retention, in the topic `name`."""
    if not compacts(topic):
        return []
    cure = (
        f"kafka-configs.sh --bootstrap-server {settings.kafka} --alter --entity-type topics"
        f" --entity-name {name} --add-config cleanup.policy=delete"
    )
    message = (
        f"{name} is compacted (cleanup.policy={topic[CLEANUP_POLICY]}): Kafka deletes all"
        " but the last event of each key, before or after they are counted"
    )
    return [failed("compaction", message, cure)]


def judge_records(settings: Settings, records: Sequence[Sampled], now: int) -> list[Finding]:
    """Judge whether sampled records are events, keyed by their user, with clocks that agree."""
    if not records:
        return [Finding("events", "warn", f"{settings.topic} holds no record yet")]
    decoder = settings.decoder()
    findings, decoded = _judge_messages(decoder, settings.profile or "", records)
    events, kept = decoded.events, [records[index] for index in decoded.records]
    newest = max(record.timestamp for record in records)
    return [
        *findings,
        # (Of many records the first has lines of the second.)
        *_judge_fields(dict.fromkeys((*decoder.fresh(), *decoder.near_misses.absent()))),
        _judge_keys(kept, events),
        _judge_event_clocks(settings, kept, events),
        *_judge_values(settings, events),
        *_judge_arms(settings, events, now),
        # A record from the future shows a wrong clock; one from the past is merely old.
        judge_clock(
            "record clock", "the newest record", max(newest, now), now, settings.max_clock_skew
        ),
    ]


def judge_messages_of(
    settings: Settings, source: ForwardSettings, records: Sequence[Sampled]
) -> list[Finding]:
    """Judge whether sampled records of a topic of `forward` become events."""
    check = f"forward {source.topic}"
    if not records:
        return [Finding(check, "warn", f"{source.topic} holds no record yet")]
    decoder = settings.decoder_by(source.profile)
    findings, _ = _judge_messages(decoder, source.profile, records)
    # A kind of feedback that is not here may come from another topic.
    findings += _judge_fields(decoder.fresh())
    return [finding._replace(check=check) for finding in findings]


def _judge_messages(
    decoder: EventDecoder, profile: str, records: Sequence[Sampled]
) -> tuple[list[Finding], Decoded]:
    """Judge whether records become events; return these too."""
    # Decode without the records' timestamps: a wrong clock is a finding of its own.
    values = [record.value for record in records]
    decoded = decoder.decode_records(values)
    rejected = [(values[index], rejection) for index, rejection in decoded.rejected]
    ignored = decoder.said_ignored()
    findings = [
        _judge_decoding(len(records), rejected, are_events=not ignored),
        *_judge_profile(profile, ignored, mapped=len(decoded.events)),
    ]
    return findings, decoded


def _judge_fields(lines: Iterable[str]) -> Iterator[Finding]:
    for line in lines:
        yield Finding("fields", "warn", line, "correct the producer, or ignore this line")


def _judge_decoding(
    count: int, rejected: Sequence[tuple[bytes | None, Rejection]], *, are_events: bool
) -> Finding:
    """Judge how many records are rejected; `are_events`: no rule ignores one of the others."""
    check = "events"
    if not rejected:
        kept = "are events" if are_events else "have none that is rejected"
        return Finding(check, "ok", f"the last {count:,} records {kept}")
    reasons = Counter(rejection.reason for _, rejection in rejected)
    named = ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common())
    message = f"of the last {count:,} records {named} (the first: {rejected[0][1].detail})"
    if formats := sentence_on(Counter(format_of(value) for value, _ in rejected)):
        message += f"; {formats}"
    cure = (
        "send what `streameval schema` prints, or map what you have (docs/profiles.md); the"
        " dead-letter topic holds each with its reason"
    )
    if len(rejected) > count * MANY:
        return failed(check, message, cure)
    return Finding(check, "warn", message, cure)


def _judge_profile(profile: str, ignored: str, *, mapped: int) -> Iterator[Finding]:
    """Name the messages that no rule of the profile takes, if there are any."""
    if not ignored:
        return
    message = f"{profile}: {ignored}"
    if mapped:
        yield Finding("profile", "ok", message)
    else:
        cure = "take the profile of this tracker (streameval profiles), or write rules for these"
        yield failed("profile", f"no record becomes an event; {message}", cure)


def _judge_keys(records: Sequence[Sampled], events: Sequence[Event]) -> Finding:
    check = "keys"
    wrong = sum(
        record.key != event.user_id.encode() for record, event in zip(records, events, strict=True)
    )
    homes: dict[str, set[int]] = {}
    for record, event in zip(records, events, strict=True):
        homes.setdefault(event.user_id, set()).add(record.partition)
    scattered = sum(len(partitions) > 1 for partitions in homes.values())
    users = f"{scattered:,} of {len(homes):,} users are in several partitions"
    if wrong:
        message = (
            f"{wrong:,} of {len(records):,} records are not keyed by their user_id, and {users}:"
            " their figures would be wrong"
        )
        return failed(check, message, "have producers send user_id, in UTF-8, as the record's key")
    if scattered:
        message = (
            f"{users}, though records are keyed by their user_id: feedback in one does not find"
            " lists in the other"
        )
        cure = (
            "have all producers choose the partition of a key in the same way, as clients of two"
            " families do not (docs/events.md); after partitions were added it passes by itself"
        )
        if scattered > len(homes) * MANY:
            return failed(check, message, cure)
        return Finding(check, "warn", message, cure)
    return Finding(check, "ok", "records are keyed by their user_id")


def _judge_event_clocks(
    settings: Settings, records: Sequence[Sampled], events: Sequence[Event]
) -> Finding:
    """Compare events' times with their records': the service rejects both early and late ones."""
    check = "event time"
    ahead = [event.ts - record.timestamp for record, event in zip(records, events, strict=True)]
    future = sum(gap > settings.max_clock_skew for gap in ahead)
    late = sum(-gap > settings.allowed_lateness for gap in ahead)
    if future:
        message = (
            f"{future:,} of {len(ahead):,} events are dated up to"
            f" {_rounded(max(ahead))} after their record: they are rejected as `future`"
        )
        return failed(check, message, "set the clocks of these producers (NTP)")
    if late:
        message = (
            f"{late:,} of {len(ahead):,} events are dated up to {_rounded(-min(ahead))} before"
            f" their record, more than allowed_lateness: beside fresh events they are `late`"
        )
        cure = "set the clocks of these producers (NTP), or raise allowed_lateness"
        return Finding(check, "warn", message, cure)
    return Finding(check, "ok", "events and their records agree on the time")


def _judge_values(settings: Settings, events: Sequence[Event]) -> Iterator[Finding]:
    """Warn of each kind without a threshold that has values of 0 or less."""
    odd = {
        event.feedback
        for event in events
        if isinstance(event, FeedbackEvent) and event.value <= 0 and not event.retract
    }
    for positive in settings.definition().positives:
        if positive.threshold is None and positive.kind in odd:
            message, _, cure = positive.counts_anyway().partition(": ")
            yield Finding("values", "warn", message, cure)


def _judge_arms(settings: Settings, events: Sequence[Event], now: int) -> Iterator[Finding]:
    """Judge whether the events name arms of each experiment that has not ended, and its control."""
    lists = [event for event in events if not isinstance(event, FeedbackEvent)]
    for experiment in settings.definition().experiments:
        if not lists or (experiment.until is not None and experiment.until <= now):
            continue
        field, control, check = experiment.arm, experiment.control, "arms"
        in_arms = [(arm, event.user_id) for event in lists if (arm := getattr(event, field))]
        arms, users = sorted({arm for arm, _ in in_arms}), {user for _, user in in_arms}
        listed = ", ".join(arms[:MAX_ARMS])
        if not arms:
            message = (
                f"{experiment.name}: of {len(lists):,} slates and impressions none has the field"
                f" {field}: the experiment would count nothing"
            )
            cure = "have producers send the arm in that field, or correct `arm`"
            yield Finding(check, "warn", message, cure)
        elif control not in arms and len(users) >= ENOUGH:
            message = (
                f"{experiment.name}: of {len(users):,} users with a {field} none is in the control"
                f" {control}, they are in {listed}: nothing can be compared with it"
            )
            cure = "have producers send that arm, or correct `control`"
            yield Finding(check, "warn", message, cure)
        else:
            yield Finding(check, "ok", f"{experiment.name}: {field} has {listed}")


def judge_clock(check: str, whose: str, theirs: int, ours: int, max_clock_skew: int) -> Finding:
    """Compare this machine's clock with another (ms): ours moves an idle stream's figures on."""
    gap = theirs - ours
    if abs(gap) <= CLOCK_TOLERANCE:
        return Finding(check, "ok", f"this machine and {whose} agree")
    side = "ahead of" if gap > 0 else "behind"
    message = f"the clock of {whose} is {_rounded(abs(gap))} {side} this machine's"
    cure = "set both clocks (NTP)"
    if abs(gap) > max_clock_skew:
        return failed(check, message, cure)
    return Finding(check, "warn", message, cure)


def judge_redis(address: str, facts: Facts, now: int, max_clock_skew: int) -> list[Finding]:
    """Judge whether Redis keeps its data and agrees on the time."""
    findings = [Finding("redis", "ok", f"{address} answers (version {facts.version})")]
    if not facts.evicts:
        message = f"Redis forgets no counters by itself ({facts.policy})"
        findings.append(Finding("eviction", "ok", message))
    else:
        message = f"Redis evicts keys when memory is short ({facts.policy}): counters would be lost"
        cure = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        findings.append(failed("eviction", message, cure, InputError.exit_code))
    if facts.persistent:
        findings.append(Finding("persistence", "ok", "Redis keeps its data over a restart"))
    else:
        message = (
            "Redis has no append-only file and has written no snapshot since it started: after a"
            " restart all counters may have to be read from Kafka again"
        )
        cure = "redis-cli CONFIG SET appendonly yes, and the same in redis.conf"
        findings.append(Finding("persistence", "warn", message, cure))
    return [*findings, judge_clock("redis clock", "Redis", facts.now, now, max_clock_skew)]


def judge_stored(settings: Settings, log: Log, stored: Mapping[int, Stored]) -> list[Finding]:
    """Judge whether stored state belongs to this log and definition, and how far it lags."""
    begun = {number: state for number, state in stored.items() if state.offset is not None}
    if not begun:
        return [Finding("offsets", "ok", f"group {settings.group} has not begun with this topic")]
    return [
        _judge_origin(settings, log, begun),
        _judge_definition(settings, begun),
        _judge_offsets(log, begun),
    ]


def _judge_origin(settings: Settings, log: Log, stored: Mapping[int, Stored]) -> Finding:
    check = "origin"
    known = {state.cluster_id for state in stored.values()} - {None, log.cluster_id}
    if not (known and log.cluster_id):  # a server may not say which cluster it is
        return Finding(check, "ok", "the stored state was read from this cluster")
    message = (
        f"Redis holds offsets of another cluster ({', '.join(map(str, sorted(known, key=str)))})"
    )
    cure = f"correct `kafka` or `redis`, or take another group than {settings.group}"
    return failed(check, message, cure, InputError.exit_code)


def _judge_definition(settings: Settings, stored: Mapping[int, Stored]) -> Finding:
    """Judge the stored definition as a worker does at its start."""
    from streameval.core.fingerprint import refuse_other_description  # it imports numpy

    check, definition = "definition", settings.definition()
    try:
        for state in stored.values():
            refuse_other_description(state.fingerprint, state.definition, definition)
    except UnusableStateError as error:
        message, _, cure = str(error).partition(". ")
        return failed(check, message, cure or "take another group", InputError.exit_code)
    return Finding(check, "ok", "the stored state has the definition of this configuration")


def _judge_offsets(log: Log, stored: Mapping[int, Stored]) -> Finding:
    check = "offsets"
    offsets = {number: state.offset or 0 for number, state in stored.items()}
    beyond = [number for number, offset in offsets.items() if offset > log.extents[number].end]
    lost = sum(max(0, log.extents[number].start - offset) for number, offset in offsets.items())
    lag = sum(
        max(0, extent.end - offsets.get(number, extent.start))
        for number, extent in log.extents.items()
    )
    if beyond:
        message = (
            f"stored offsets of partitions {beyond} lie beyond the log, in several readings:"
            " the topic was made anew or set back"
        )
        cure = "set another `group`: it counts this log from its start, and the old counters stay"
        return failed(check, message, cure, InputError.exit_code)
    if lost:
        message = f"{lost:,} records were deleted before they were counted"
        return failed(check, message, "raise the topic's retention, and keep workers running")
    return Finding(check, "ok", f"{count_of(lag, 'record')} to read")


def _rounded(duration: int) -> str:
    """Write a duration (ms) in the largest unit that it holds twice."""
    unit = next((unit for unit in reversed(UNITS) if duration >= 2 * UNITS[unit]), "ms")
    return f"{duration // UNITS[unit]}{unit}"


def failed(
    check: str, message: str, cure: str = "", code: int = StreamevalError.exit_code
) -> Finding:
    """Make the finding of a failed check, with its exit code."""
    return Finding(check, "fail", message, cure, code)
