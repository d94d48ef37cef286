"""Events under the dimensions that most tests use, and their decoder."""

from streameval.core.events import EventDecoder, event_types

DIMENSIONS = ("variant", "surface")
Impression, SlateEvent, FeedbackEvent = event_types(DIMENSIONS)


def ImpressionEvent(  # noqa: N802  # reads as the class that it makes
    ts,
    user_id,
    item_id,
    request_id=None,
    position=None,
    variant=None,
    surface=None,
    score=None,
    propensity=None,
    fallback=None,
    latency_ms=None,
):
    logged = (request_id, position, score, propensity, fallback, latency_ms)
    return Impression(ts, user_id, item_id, *logged, variant, surface)


def decode(value, timestamp=None, max_clock_skew=0):
    return EventDecoder(DIMENSIONS, max_clock_skew).decode(value, timestamp)


def decode_batch(values, timestamps=None, max_clock_skew=0):
    return EventDecoder(DIMENSIONS, max_clock_skew).decode_batch(values, timestamps)
