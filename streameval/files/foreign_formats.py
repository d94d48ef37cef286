"""Events of other trackers, recognised by their fields, so that a person learns to convert them.

streameval reads its own format only (docs/events.md). Other input nearly always has one of these
formats. The first row whose fields are all present decides, so rarer sets of fields stand first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

FORMATS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("Segment or RudderStack", frozenset({"messageId", "anonymousId"})),
    ("Segment or RudderStack", frozenset({"messageId", "userId", "event"})),
    ("Snowplow", frozenset({"collector_tstamp", "event_id"})),
    ("Google Analytics 4", frozenset({"event_name", "user_pseudo_id"})),
    ("Google Analytics 4", frozenset({"event_name", "event_params"})),
    ("Google Retail API", frozenset({"eventType", "visitorId"})),
    ("CloudEvents", frozenset({"specversion", "source", "id"})),
    ("Amazon Personalize", frozenset({"sessionId", "eventType", "sentAt"})),
    ("Amazon Personalize", frozenset({"USER_ID", "ITEM_ID", "TIMESTAMP"})),
    ("Gorse feedback", frozenset({"FeedbackType", "UserId", "ItemId"})),
    ("Amplitude", frozenset({"event_type", "event_properties"})),
    ("PostHog", frozenset({"event", "distinct_id"})),
    ("Mixpanel", frozenset({"event", "properties"})),
    ("a Debezium change", frozenset({"before", "after", "op"})),
    ("JSON with a schema (Kafka Connect)", frozenset({"schema", "payload"})),
)
"""The name of a format and the fields that identify it; the first row that fits counts."""

TEXTS: Final = (
    # Confluent's serializers put a zero byte and the number of a schema before an Avro value.
    (rb"\x00", "Avro or Protobuf with a schema id: send JSON objects"),
    (rb"[\[{]\Z", "JSON over several lines: write one event a line (jq -c)"),
    (rb"\[", "one JSON array: write one event a line (jq -c '.[]')"),
    (rb"[A-Za-z].*[,\t]", "a table (CSV or TSV): write one JSON object a line"),
)
"""Patterns of values other than JSON objects, and the advice; the first match counts."""

_decode = msgspec.json.Decoder(Any).decode


def recognise(values: Iterable[bytes | None]) -> str | None:
    """Return the advice for the first value whose format is known, else None.

    The advice names the format and says what to do.
    """
    for value in values:
        found = _advice(value or b"")
        if found is not None:
            return found
    return None


def _advice(value: bytes) -> str | None:
    text = value.strip()
    for pattern, advice in TEXTS:
        if re.match(pattern, text, re.DOTALL):
            return f"this looks like {advice}"
    fields = set(_fields(text))
    for name, typical in FORMATS:
        if typical <= fields:
            return f"this looks like {name}: convert it to the format of docs/events.md"
    return None


def _fields(text: bytes) -> Collection[str]:
    """Return the names of an object's fields; empty for any other text."""
    try:
        event = _decode(text)
    except Exception:  # noqa: BLE001 - msgspec raises more than its own errors
        return frozenset()
    return event.keys() if isinstance(event, dict) else frozenset()
