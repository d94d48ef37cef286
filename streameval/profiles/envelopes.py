"""Envelopes of messages: CloudEvents of any shape, and Snowplow's own forms.

CloudEvents 1.0 comes structured (`data`, or base64 in `data_base64`) and in batches (an array). In
its binary form the value is the message itself, and the envelope is in headers (`beside`).
Snowplow's enriched event as TSV has the columns of its canonical event model.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import msgspec

from streameval.core.events import mend
from streameval.profiles.frames import RecordValue, body_of, framed_id

COLUMNS: Final = tuple(
    """
    app_id platform etl_tstamp collector_tstamp dvce_created_tstamp event event_id txn_id
    name_tracker v_tracker v_collector v_etl user_id user_ipaddress user_fingerprint
    domain_userid domain_sessionidx network_userid geo_country geo_region geo_city geo_zipcode
    geo_latitude geo_longitude geo_region_name ip_isp ip_organization ip_domain ip_netspeed
    page_url page_title page_referrer page_urlscheme page_urlhost page_urlport page_urlpath
    page_urlquery page_urlfragment refr_urlscheme refr_urlhost refr_urlport refr_urlpath
    refr_urlquery refr_urlfragment refr_medium refr_source refr_term mkt_medium mkt_source
    mkt_term mkt_content mkt_campaign contexts se_category se_action se_label se_property
    se_value unstruct_event tr_orderid tr_affiliation tr_total tr_tax tr_shipping tr_city
    tr_state tr_country ti_orderid ti_sku ti_name ti_category ti_price ti_quantity
    pp_xoffset_min pp_xoffset_max pp_yoffset_min pp_yoffset_max useragent br_name br_family
    br_version br_type br_renderengine br_lang br_features_pdf br_features_flash
    br_features_java br_features_director br_features_quicktime br_features_realplayer
    br_features_windowsmedia br_features_gears br_features_silverlight br_cookies
    br_colordepth br_viewwidth br_viewheight os_name os_family os_manufacturer os_timezone
    dvce_type dvce_ismobile dvce_screenwidth dvce_screenheight doc_charset doc_width
    doc_height tr_currency tr_total_base tr_tax_base tr_shipping_base ti_currency
    ti_price_base base_currency geo_timezone mkt_clickid mkt_network etl_tags dvce_sent_tstamp
    refr_domain_userid refr_device_tstamp derived_contexts domain_sessionid derived_tstamp
    event_vendor event_name event_format event_version event_fingerprint true_tstamp
    """.split()  # noqa: SIM905  # 131 quoted names are no easier to read
)


ENVELOPE: Final = "_envelope"
_HELD: Final = ("data", "data_base64")
_DEEPEST: Final = 5
_decode = msgspec.json.Decoder(Any).decode


def parse(form: str, value: bytes) -> Any:
    """Parse the bytes of a record. Raises any exception for malformed ones."""
    if value[:1] == b"{":
        try:
            return _decode(mend(value))
        except msgspec.DecodeError:
            return _of_lines(value)
    if form == "snowplow" and value[:1] != b"[" and value.count(b"\t") >= _FEWEST_TABS:
        return _of_tsv(value.decode())
    if framed_id(value) is not None and (body := body_of(value))[:1] in {b"{", b"["}:
        value = body  # JSON Schema in a registry's frame
    return _decode(mend(value))


def _of_lines(value: bytes) -> Any:
    """Return the JSON of each line of a record, or raise what the whole raises."""
    lines = [line for line in mend(value).splitlines() if line.strip()]
    if len(lines) > 1:
        with suppress(msgspec.DecodeError):
            return list(map(_decode, lines))
    return _decode(mend(value))


def is_bare(value: Any, form: str) -> bool:
    """Tell whether a value is one message, with nothing around it."""
    return (
        value.__class__ is dict
        and "specversion" not in value
        and (form != "snowplow" or ("data" not in value and _JSON_COLUMNS.isdisjoint(value)))
    )


def unwrap(value: Any, form: str, depth: int = 0, *, keep: bool = False) -> Iterator[Any]:
    """Yield the messages of a value without their envelopes.

    With `keep`, a message has what stands around it as `_envelope`.
    """
    if isinstance(value, list):
        for part in value:
            yield from unwrap(part, form, depth, keep=keep)
        return
    if (
        depth < _DEEPEST
        and isinstance(value, dict)
        and "specversion" in value
        and any(name in value for name in _HELD)
    ):
        data = value.get("data")
        if data is None and "data_base64" in value:
            data = _unpack(value["data_base64"])
            if data is None:
                raise ValueError("data_base64 holds none")
        else:
            data = of_text(data)
        messages = unwrap(data, form, depth + 1, keep=keep)
        around = {name: each for name, each in value.items() if name not in _HELD}
        yield from (within(around, message) for message in messages) if keep else messages
        return
    if form == "snowplow" and isinstance(value, dict):
        if isinstance(value.get("data"), list) and "payload_data" in str(value.get("schema")):
            yield from (_of_tracker(part) for part in value["data"] if isinstance(part, dict))
            return
        value = _by_name(value)
    yield value


def within(around: dict[str, Any], message: Any) -> Any:
    """Return a message with what stands around it as `_envelope`, unless it has a nearer one."""
    return {ENVELOPE: around, **message} if isinstance(message, dict) else message


def beside(value: bytes | None) -> dict[str, Any]:
    """Return what stands beside a `RecordValue`, as `_key`, `_headers` and `_envelope`.

    A key may be JSON. What is no text is left out.
    """
    if not isinstance(value, RecordValue):
        return {}
    headers = {name: text for name, each in value.headers if (text := _text(each)) is not None}
    found: dict[str, Any] = {"_headers": headers}
    if (key := _text(value.key)) is not None:
        found["_key"] = of_text(key) if key[:1] in {"{", '"'} else key
    attributes = {name[3:]: text for name, text in headers.items() if name.startswith("ce_")}
    return within(attributes, found) if attributes else found


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def of_text(text: Any) -> Any:
    """Return the JSON that a text holds, also an object in base64; else the value."""
    if not isinstance(text, str):
        return text
    try:
        return _decode(text.encode())
    except (msgspec.DecodeError, RecursionError):
        packed = _unpack(text)
        return packed if isinstance(packed, dict) else text


def _unpack(text: Any) -> Any:
    """Decode JSON in base64, padded or not, in either alphabet; None for any other text."""
    try:
        packed = str(text).translate({ord("-"): "+", ord("_"): "/"})
        return _decode(base64.b64decode(packed + "=" * (-len(packed) % 4)))
    except (binascii.Error, msgspec.DecodeError, ValueError, RecursionError):
        return None


# -------------------------------------------------------------------------------------- Snowplow

_FEWEST_TABS: Final = 100
_JSON_COLUMNS: Final = frozenset({"contexts", "derived_contexts", "unstruct_event"})
# Names of the tracker protocol, and the columns of the enriched event that they become.
_PROTOCOL: Final = {
    "e": "event",
    "eid": "event_id",
    "uid": "user_id",
    "duid": "domain_userid",
    "nuid": "network_userid",
    "aid": "app_id",
    "p": "platform",
    "dtm": "dvce_created_tstamp",
}
_EVENTS: Final = {"ue": "unstruct", "pv": "page_view", "se": "struct", "pp": "page_ping"}


def _of_tsv(line: str) -> dict[str, Any]:
    """Return an enriched event of the TSV by the names of its columns."""
    cells = line.rstrip("\r\n").split("\t")
    named = zip(COLUMNS, cells, strict=False)
    return {
        name: _decode(cell.encode()) if name in _JSON_COLUMNS else cell
        for name, cell in named
        if cell
    }


def _of_tracker(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return one event of a tracker's payload by the names of the enriched event."""
    event = {_PROTOCOL[key]: value for key, value in part.items() if key in _PROTOCOL}
    event["event"] = _EVENTS.get(str(event.get("event")), event.get("event"))
    for plain, packed, name in (("ue_pr", "ue_px", "unstruct_event"), ("co", "cx", "contexts")):
        if plain in part:
            event[name] = of_text(str(part[plain]))
        elif packed in part:
            event[name] = _unpack(part[packed])
    if "dvce_created_tstamp" in event:  # ms, as text
        event["derived_tstamp"] = event["dvce_created_tstamp"]
    return _by_name(event)


def _by_name(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event with its self-describing parts by the names of Snowplow's analytics SDKs.

    `contexts_com_snowplowanalytics_snowplow_ecommerce_product_1` is a list of such entities.
    """
    if _JSON_COLUMNS.isdisjoint(event):
        return dict(event)
    named = {key: value for key, value in event.items() if key not in _JSON_COLUMNS}
    for column in ("contexts", "derived_contexts"):
        held = event.get(column)
        for part in held.get("data") or () if isinstance(held, dict) else ():
            if isinstance(part, dict) and (name := _schema_name(str(part.get("schema", "")))):
                named.setdefault(f"contexts_{name}", []).append(part.get("data"))
    held = event.get("unstruct_event")
    inner = held.get("data") if isinstance(held, dict) else None
    if isinstance(inner, dict) and (name := _schema_name(str(inner.get("schema", "")))):
        named[f"unstruct_event_{name}"] = inner.get("data")
    return named


@lru_cache(maxsize=1_000)
def _schema_name(schema: str) -> str:
    """Return `iglu:com.acme/a_b/jsonschema/1-0-0` as `com_acme_a_b_1`."""
    vendor, _, rest = schema.removeprefix("iglu:").partition("/")
    name, _, version = rest.partition("/")
    model = version.rpartition("/")[2].partition("-")[0]
    return f"{vendor}_{name}_{model}".replace(".", "_").lower() if name and model else ""
