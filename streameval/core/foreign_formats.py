"""Values in the formats of other trackers and encodings, recognised, so that a person can convert.

Without a profile streameval reads its own format only (docs/events.md). Other input nearly always
has one of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec


class Format(NamedTuple):
    """A format: its name, the fields that identify it, and the values that some of them have."""

    name: str
    fields: frozenset[str]
    values: Mapping[str, str] = {}


def _format(name: str, *fields: str, **values: str) -> Format:
    return Format(name, frozenset((*fields, *values)), values)


PROFILES: Final = {
    "Segment": "segment",
    "Snowplow": "snowplow",
    "Google Analytics 4 (Measurement Protocol)": "ga4_measurement",
    "Google Analytics 4": "ga4_export",
    "CloudEvents": "native",
    "Algolia Insights": "algolia",
    "an Algolia search response": "algolia",
    "OpenSearch UBI": "ubi",
    "Metarank": "metarank",
    "Recombee": "recombee",
    "Amazon Personalize (PutEvents)": "personalize",
    "recsys.app": "recsys_app",
    "Gorse feedback": "gorse",
}
"""The profile that maps a format, by how its name begins; the first counts."""

ENVELOPES: Final = {
    "a Debezium change": "after",
    "JSON with a schema (Kafka Connect)": "payload",
    "a record of kcat -J": "payload",
    "an event of EventBridge": "detail",
    "a notification of SNS": "Message",
}
"""The field with the message, of formats that are around messages of any other."""


FORMATS: Final = (
    _format("Segment or RudderStack", "messageId", "anonymousId"),
    _format("Segment or RudderStack", "messageId", "userId", "event"),
    _format("Snowplow", "collector_tstamp", "event_id"),
    _format("Snowplow", "derived_tstamp", "event_id"),
    _format("Snowplow (tracker payload)", "schema", "data"),
    _format("Google Analytics 4 (Measurement Protocol)", "client_id", "events"),
    _format("Google Analytics 4 (Measurement Protocol)", "app_instance_id", "events"),
    _format("Google Analytics 4", "event_name", "user_pseudo_id"),
    _format("Google Analytics 4", "event_name", "event_params"),
    _format("Google Retail API", "eventType", "visitorId"),
    _format("CloudEvents", "specversion", "source", "id"),
    _format("Algolia Insights", "eventType", "eventName", "userToken"),
    _format("an Algolia search response", "hits", "queryID"),
    _format("OpenSearch UBI (query)", "query_id", "user_query"),
    _format("OpenSearch UBI (query)", "query_id", "query_response_hit_ids"),
    _format("OpenSearch UBI (event)", "action_name", "event_attributes"),
    _format("OpenSearch UBI (event)", "action_name", "query_id"),
    _format("Metarank (ranking)", "items", "timestamp", event="ranking"),
    _format("Metarank (interaction)", "item", "timestamp", event="interaction"),
    _format("Metarank (item)", "fields", "timestamp", event="item"),
    _format("Metarank (user)", "fields", "timestamp", event="user"),
    _format("Recombee", "userId", "itemId", "recommId"),
    _format("Recombee", "userId", "itemId", "cascadeCreate"),
    _format("Recombee", "recommId", "recomms"),
    _format("Amazon Personalize (PutEvents)", "trackingId", "eventList"),
    _format("Amazon Personalize (PutEvents)", "sessionId", "eventList"),
    _format("Amazon Personalize", "sessionId", "eventType", "sentAt"),
    _format("Amazon Personalize", "USER_ID", "ITEM_ID", "TIMESTAMP"),
    _format("recsys.app (exposure)", "request_id", "items", "context"),
    _format("recsys.app (outcome)", "request_id", "item_id", "event_type"),
    _format("Gorse feedback", "FeedbackType", "UserId", "ItemId"),
    _format("Amplitude", "event_type", "event_properties"),
    _format("PostHog", "event", "distinct_id"),
    _format("Mixpanel", "event", "properties"),
    _format("a Debezium change", "before", "after", "op"),
    _format("JSON with a schema (Kafka Connect)", "schema", "payload"),
    _format("a record of kcat -J", "topic", "offset", "payload"),
    _format("an event of EventBridge", "detail-type", "detail"),
    _format("a notification of SNS", "TopicArn", "Message"),
)
"""The first row decides whose fields and values are all there, so rarer ones stand first."""

_BATCHES: Final = ("batch", "events", "requests")
"""Fields in which trackers send several messages; a batch has the format of the first."""

_PARTS: Final = (*FORMATS, _format("Recombee (Batch)", "method", "path", "params"))
"""The formats of such messages."""

_MARKS: Final = frozenset((*(min(known.fields) for known in FORMATS), *_BATCHES))
"""One field of each format: nearly all other values have none of them, and are done with."""

OURS: Final = frozenset({"impression", "slate", "feedback"})
"""A value with one of these as `type` is meant for us."""

_UNWRAP: Final = "take the message out by a profile with `unwrap: {}` (docs/profiles.md)"
_DOCS: Final = "convert it to the format of docs/events.md"
_UNPACK: Final = "send the JSON itself (the producer's compression.type packs whole batches)"
_SCHEMA: Final = "read it by a profile and its schema (docs/profiles.md), or send JSON objects"
_FRAME: Final = "read it by a profile, which takes off what stands before the JSON"
_ROWS: Final = "write one JSON object a line (DuckDB: COPY (FROM 'a.csv') TO 'a.jsonl')"
# Snowplow's enriched events as TSV begin with application, platform, and two times.
_SNOWPLOW: Final = rb"[^\t\n]*\t[a-z]{2,4}\t[-\d:. ]*\t\d{4}-\d\d-\d\d [\d:.]+(?:\t|\Z)"

BYTES: Final = (
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
    (rb"[\x80-\x8f\xde\xdf]", "MessagePack", "send JSON objects"),
    (rb"\xef\xbb\xbf", "JSON after a byte order mark (BOM)", "send UTF-8 without the mark"),
    (rb"[\[{]\s*\Z", "JSON over several lines", "write one event a line (jq -c)"),
    (rb"\[", "one JSON array", "write one event a line (jq -c '.[]')"),
    (rb"\"\s*\{", "JSON encoded twice", "send the object, not a text that holds it"),
    (rb"\{\s*'", "Python's repr of a dict", "write it with json.dumps"),
    (_SNOWPLOW, "Snowplow (TSV)", _DOCS),
    (rb"\w[^{]*[,\t]", "a table (CSV or TSV)", _ROWS),
)
"""Patterns of values other than JSON objects, their names, the advice; the first match counts."""

# One expression is a third of the time of many. The group that matches has the number of a row.
_match: Final = re.compile(
    b"|".join(b"(?P<row%d>%s)" % (row, pattern) for row, (pattern, _, _) in enumerate(BYTES)),
    re.DOTALL,
).match
# The patterns look no further: a Snowplow line is longer, and its first columns tell.
_HEAD: Final = 4_096

_decode = msgspec.json.Decoder(Any).decode


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
    if found := _known(fields, FORMATS):
        return found
    parts = next((held for field in _BATCHES if isinstance(held := fields.get(field), list)), None)
    return _known(parts[0], _PARTS) if parts and isinstance(parts[0], Mapping) else None


def _known(fields: Mapping[Any, Any], formats: Iterable[Format]) -> Foreign | None:
    for known in formats:
        if known.fields <= fields.keys() and all(
            fields[name] == wanted for name, wanted in known.values.items()
        ):
            return _foreign(known.name, _DOCS)
    return None


def is_ours(value: bytes) -> bool:
    """Return whether a value is meant to be an event of streameval."""
    try:
        fields = _decode(value)
    except Exception:  # noqa: BLE001  # as above
        return False
    return isinstance(fields, Mapping) and fields.get("type") in OURS


def _foreign(name: str, advice: str) -> Foreign:
    if field := ENVELOPES.get(name):
        return Foreign(name, _UNWRAP.format(field), envelope=field)
    for begin, profile in PROFILES.items():
        if name.startswith(begin):
            return Foreign(name, f"map it by the profile {profile} (docs/profiles.md)", profile)
    return Foreign(name, advice)


def format_of_bytes(value: bytes) -> Foreign | None:
    """Return the format of a value that is no JSON object, by how it begins."""
    text = value.strip(b" \r\n")
    found = _match(text if len(text) <= _HEAD else text[:_HEAD])
    if found is None or found.lastgroup is None:
        return None
    _, name, advice = BYTES[int(found.lastgroup.removeprefix("row"))]
    return _foreign(name, advice)


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
