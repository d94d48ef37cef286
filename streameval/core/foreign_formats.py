"""Values in the formats of other trackers and encodings, recognised, so that a person can convert.

Without a profile streameval reads its own format only (docs/events.md). Other input nearly always
has one of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec


class Foreign(NamedTuple):
    """The name of a format, what to do, and the profile that maps it, if there is one.

    `envelope`: the field with the message, where the format is an envelope.
    """

    name: str
    advice: str
    profile: str | None = None
    envelope: str | None = None

    def __str__(self) -> str:
        """Return a sentence on one value."""
        return f"this looks like {self.name}: {self.advice}"


class Format(NamedTuple):
    """A format, the fields that identify it, and the values that some of them have.

    `part`: a field that each message of a batch has, where the format is of batches.
    """

    format: Foreign
    fields: frozenset[str]
    values: Mapping[str, str]
    part: str = ""


def _other(name: str, *fields: str, **values: str) -> Format:
    return Format(Foreign(name, _DRAFT), frozenset((*fields, *values)), values)


def _mapped(profile: str, name: str, *fields: str, **values: str) -> Format:
    return Format(_by_profile(profile, name), frozenset((*fields, *values)), values)


def _batch(profile: str, name: str, *fields: str, part: str) -> Format:
    return Format(_by_profile(profile, name), frozenset(fields), {}, part)


def _around(field: str, name: str, *fields: str) -> Format:
    """Return a format that is around messages of any other, in a field."""
    advice = f"take the message out by a profile with `unwrap: {field}` (docs/profiles.md)"
    return Format(Foreign(name, advice, envelope=field), frozenset(fields), {})


def _by_profile(profile: str, name: str) -> Foreign:
    return Foreign(name, f"map it by the profile {profile} (docs/profiles.md)", profile)


_DRAFT: Final = "`streameval map FILE --init` drafts a profile for it (docs/profiles.md)"
_GA4: Final = "Google Analytics 4"
_PROTOCOL: Final = f"{_GA4} (Measurement Protocol)"

FORMATS: Final = (
    _mapped("segment", "Segment or RudderStack", "messageId", "anonymousId"),
    _mapped("segment", "Segment or RudderStack", "messageId", "userId", "event"),
    _mapped("snowplow", "Snowplow", "collector_tstamp", "event_id"),
    _mapped("snowplow", "Snowplow", "derived_tstamp", "event_id"),
    _mapped("snowplow", "Snowplow (tracker payload)", "schema", "data"),
    _batch("ga4_measurement", _PROTOCOL, "client_id", "events", part="name"),
    _batch("ga4_measurement", _PROTOCOL, "app_instance_id", "events", part="name"),
    _mapped("ga4_export", _GA4, "event_name", "user_pseudo_id"),
    _mapped("ga4_export", _GA4, "event_name", "event_params"),
    _other("Google Retail API", "eventType", "visitorId"),
    _mapped("native", "CloudEvents", "specversion", "source", "id"),
    _mapped("algolia", "Algolia Insights", "eventType", "eventName", "userToken"),
    _mapped("algolia", "an Algolia search response", "hits", "queryID"),
    _mapped("ubi_impressions", "OpenSearch UBI (impression)", "query_id", action_name="impression"),
    _mapped("ubi", "OpenSearch UBI (event)", "action_name", "event_attributes"),
    _mapped("ubi", "OpenSearch UBI (event)", "action_name", "query_id"),
    _mapped("ubi", "OpenSearch UBI (query)", "query_id", "user_query"),
    _mapped("ubi", "OpenSearch UBI (query)", "query_id", "query_response_hit_ids"),
    _mapped("metarank", "Metarank (ranking)", "items", "timestamp", event="ranking"),
    _mapped("metarank", "Metarank (interaction)", "item", "timestamp", event="interaction"),
    _mapped("metarank", "Metarank (item)", "fields", "timestamp", event="item"),
    _mapped("metarank", "Metarank (user)", "fields", "timestamp", event="user"),
    _mapped("recombee", "Recombee", "userId", "itemId", "recommId"),
    _mapped("recombee", "Recombee", "userId", "itemId", "cascadeCreate"),
    _mapped("recombee", "Recombee", "recommId", "recomms"),
    _mapped("personalize", "Amazon Personalize (PutEvents)", "trackingId", "eventList"),
    _mapped("personalize", "Amazon Personalize (PutEvents)", "sessionId", "eventList"),
    _other("Amazon Personalize", "sessionId", "eventType", "sentAt"),
    _other("Amazon Personalize", "USER_ID", "ITEM_ID", "TIMESTAMP"),
    _mapped("recsys_app", "recsys.app (exposure)", "request_id", "items", "context"),
    _mapped("recsys_app", "recsys.app (outcome)", "request_id", "item_id", "event_type"),
    _mapped("gorse", "Gorse feedback", "FeedbackType", "UserId", "ItemId"),
    _mapped("gorse", "Gorse feedback", "feedbackType", "userId", "itemId"),
    _mapped("gorse", "Gorse feedback", "feedback_type", "user_id", "item_id"),
    _other("Amplitude", "event_type", "event_properties"),
    _other("PostHog", "event", "distinct_id"),
    _other("Mixpanel", "event", "properties"),
    _around("after", "a Debezium change", "before", "after", "op"),
    _around("payload", "JSON with a schema (Kafka Connect)", "schema", "payload"),
    _around("payload", "a record of kcat -J", "topic", "offset", "payload"),
    _around("detail", "an event of EventBridge", "detail-type", "detail"),
    _around("Message", "a notification of SNS", "TopicArn", "Message"),
)
"""The first row decides whose fields and values are all there, so rarer ones stand first."""

_BATCHES: Final = ("batch", "events", "requests")
"""Fields in which trackers send several messages; a batch has the format of the first."""

_PARTS: Final = (*FORMATS, _mapped("recombee", "Recombee (Batch)", "method", "path", "params"))
"""The formats of such messages."""

_MARKS: Final = frozenset((*(min(known.fields) for known in FORMATS), *_BATCHES))
"""One field of each format: nearly all other values have none of them, and are done with."""

OURS: Final = frozenset({"impression", "slate", "feedback"})
"""A value with one of these as `type` is meant for us."""

_UNPACK: Final = "send the JSON itself (the producer's compression.type packs whole batches)"
_SCHEMA: Final = "read it by a profile and its schema (docs/profiles.md), or send JSON objects"
_FRAME: Final = "read it by a profile, which takes off what stands before the JSON"
_PACKED: Final = "read it by a profile of format: messagepack, or send JSON objects"
_ROWS: Final = "send JSON objects; a file of rows is read where its name ends in .csv or .tsv"
_REST: Final = "send the JSON alone (sed 's/^[^{]*//' takes the rest off a line)"
# What console consumers and loggers put before a value; no JSON begins like this.
_PREFIX: Final = (
    rb"(?:\[[^\0-\x1f{]*[^\0-\x1f{\"\[, ]"  # [2026-01-05] INFO
    rb"|[^\0-\x1f{\[\"](?:[^\0-\x08\n-\x1f{]*[^\s{\"])?)"  # a key and a tab
    rb"\s*\{\s*\""
)
# Snowplow's enriched events as TSV begin with application, platform, and two times.
_SNOWPLOW: Final = rb"[^\t\n]*\t[a-z]{2,4}\t[-\d:. ]*\t\d{4}-\d\d-\d\d [\d:.]+(?:\t|\Z)"

BYTES: Final[Sequence[tuple[Any, ...]]] = (
    (rb"\x1f\x8b", "gzip", _UNPACK),
    (rb"\x28\xb5\x2f\xfd", "zstd", _UNPACK),
    (rb"\x04\x22\x4d\x18", "lz4", _UNPACK),
    (rb"Obj\x01", "an Avro file", "send JSON objects"),
    (rb"\xc3\x01.{8}", "Avro (single object)", _SCHEMA),
    (rb"PAR1", "a Parquet file", "send JSON objects"),
    (rb"(?:\xff\xfe|\xfe\xff).{2}|\{\x00|\x00\{\x00", "UTF-16", "send UTF-8"),
    (rb"\x00.{4}\s*\{", "JSON Schema with a schema id", _FRAME),
    # Confluent's serializers put a zero byte and the number of a schema before a value.
    (rb"\x00.{4}", "Avro or Protobuf with a schema id", _SCHEMA),
    (rb"\x03\x00.{16}\s*\{", "JSON Schema in AWS Glue's frame", _FRAME),
    (rb"\x03[\x00\x05].{16}", "Avro or JSON in AWS Glue's frame", _SCHEMA),
    (rb"[\x80-\x8f\xde\xdf]", "MessagePack", _PACKED),
    (rb"\xef\xbb\xbf", "JSON after a byte order mark (BOM)", "send UTF-8 without the mark"),
    (_SNOWPLOW, *_by_profile("snowplow", "Snowplow (TSV)")),
    (_PREFIX, "JSON after other text", _REST),
    (rb"[\[{]\s*\Z", "JSON over several lines", "write one event a line (jq -c)"),
    (rb"\[", "one JSON array", "write one event a line (jq -c '.[]')"),
    (rb"\"\s*\{", "JSON encoded twice", "send the object, not a text that holds it"),
    (rb"\{\s*'", "Python's repr of a dict", "write it with json.dumps"),
    (rb"\w[^{]*[,\t]", "a table (CSV or TSV)", _ROWS),
)
"""Patterns of values other than JSON objects, and their `Foreign`; the first match counts."""

# One expression is a third of the time of many. The group that matches has the number of a row.
_match: Final = re.compile(
    b"|".join(b"(?P<row%d>%s)" % (row, pattern) for row, (pattern, *_) in enumerate(BYTES)),
    re.DOTALL,
).match
# The patterns look no further: a Snowplow line is longer, and its first columns tell.
_HEAD: Final = 4_096

_decode = msgspec.json.Decoder(Any).decode


def format_of(value: bytes | None, fields: object = None) -> Foreign | None:
    """Return the format of a value, if it is known and not ours; `fields`: what it parses to."""
    if not value:
        return None
    if fields is None:
        try:
            fields = _decode(value)
        except Exception:  # noqa: BLE001  # msgspec raises more than its own errors
            return format_of_bytes(value)
    if not isinstance(fields, Mapping):
        return format_of_bytes(value)
    kind = fields.get("type")
    if _MARKS.isdisjoint(fields) or (isinstance(kind, str) and kind in OURS):
        return None
    parts = next((held for field in _BATCHES if isinstance(held := fields.get(field), list)), None)
    part = parts[0] if parts and isinstance(parts[0], Mapping) else {}
    return _known(fields, FORMATS, part) or _known(part, _PARTS, {})


def _known(
    fields: Mapping[Any, Any], formats: Iterable[Format], part: Mapping[Any, Any]
) -> Foreign | None:
    for known in formats:
        if (
            known.fields <= fields.keys()
            and all(fields[name] == wanted for name, wanted in known.values.items())
            and (not known.part or known.part in part)
        ):
            return known.format
    return None


def is_ours(value: bytes) -> bool:
    """Return whether a value is meant to be an event of streameval."""
    try:
        fields = _decode(value)
    except Exception:  # noqa: BLE001  # as above
        return False
    return isinstance(fields, Mapping) and fields.get("type") in OURS


def format_of_bytes(value: bytes) -> Foreign | None:
    """Return the format of a value that is no JSON object, by how it begins."""
    text = value.strip(b" \r\n")
    found = _match(text if len(text) <= _HEAD else text[:_HEAD])
    if found is None or found.lastgroup is None:
        return None
    _, *said = BYTES[int(found.lastgroup.removeprefix("row"))]
    return Foreign(*said)


def sentence_on(counts: Mapping[Foreign | None, int]) -> str:
    """Return a sentence on formats and how many values have each; "" where none is known."""
    known = sorted(((n, one) for one, n in counts.items() if one is not None), reverse=True)
    if not known:
        return ""
    if len(known) == 1:
        ((count, one),) = known
        return f"{count:,} of them look like {one.name}: {one.advice}" if count > 1 else str(one)
    named = ", ".join(f"{count:,} {one.name}" for count, one in known)
    advice = "; ".join(dict.fromkeys(one.advice for _, one in known))
    return f"they look like several formats: {named}: {advice}"
