"""Events of other trackers, recognised by their fields, so that a person learns what to convert.

streameval reads its own format only (docs/events.md). What is sent instead is nearly always one of
these. The first row whose fields are all there decides, so rarer sets of fields stand first.
"""

from __future__ import annotations

from collections.abc import Iterable
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
"""Names for people and the fields that tell a format; the first row that fits counts."""

_decode = msgspec.json.Decoder(Any).decode
# Confluent's serializers put a zero byte and the number of a schema before an Avro value.
_SCHEMA_ID: Final = b"\x00"


def recognise(values: Iterable[bytes | None]) -> str | None:
    """Return what is known of the first of these values that shows its format, else None.

    The line says which format it is and what to do.
    """
    for value in values:
        found = _advice(value or b"")
        if found is not None:
            return found
    return None


def _advice(value: bytes) -> str | None:
    text = value.strip()
    if text.startswith(_SCHEMA_ID):
        return "this looks like Avro or Protobuf with a schema id: send JSON objects"
    if text in {b"{", b"["}:
        return "this looks like JSON over several lines: write one event a line (jq -c)"
    if text.startswith(b"["):
        return "this looks like one JSON array: write one event a line (jq -c '.[]')"
    if text[:1].isalpha() and (b"," in text or b"\t" in text):
        return "this looks like a table (CSV or TSV): write one JSON object a line"
    try:
        event = _decode(text)
    except Exception:  # noqa: BLE001 - msgspec raises more than its own errors
        return None
    if not isinstance(event, dict):
        return None
    for name, fields in FORMATS:
        if fields <= event.keys():
            return f"this looks like {name}: convert it to the format of docs/events.md"
    return None
