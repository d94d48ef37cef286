"""Messages in Avro, by schemas of files: the events of the same stream as JSON, or why not."""

import io
import json
import random
import struct
import zlib
from uuid import UUID

import pytest
import trackers

from streameval.base.errors import ConfigError
from streameval.base.limits import MAX_TS, MIN_TS
from streameval.cli.map import draft_profile
from streameval.core.definition import Definition
from streameval.core.events import EventDecoder
from streameval.profiles import library

fastavro = pytest.importorskip("fastavro")

DEFINITION = Definition(dimensions=())
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def optional(kind):
    return {"type": ["null", kind], "default": None}


def schema(*more, time=MILLIS):
    return {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "type", "type": "string"},
            {"name": "ts", "type": time},
            {"name": "user_id", "type": "string"},
            {"name": "request_id", **optional("string")},
            {"name": "item_id", **optional("string")},
            {"name": "feedback", **optional("string")},
            {"name": "value", **optional("double")},
            {"name": "items", **optional({"type": "array", "items": "string"})},
            *more,
        ],
    }


FIRST = schema()
SECOND = schema({"name": "shop", "type": "string", "default": "x"})
THIRD = schema({"name": "page", "type": "string"})
MICROS = schema(time={"type": "long", "logicalType": "timestamp-micros"})


def body(event, of=FIRST):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(of), event)
    return stream.getvalue()


def framed(event, number, of=FIRST):
    return b"\0" + struct.pack(">I", number) + body(event, of)


def reader(folder, text, **schemas):
    for name, each in schemas.items():
        (folder / f"{name}.avsc").write_text(json.dumps(each))
    profile = folder / "mine.yaml"
    profile.write_text(f"native: true\nformat: avro\n{text}\n")
    return library.decoder_of(DEFINITION, str(profile))


EVENTS = trackers.stream(8, count=120)
PLAIN = EventDecoder.of(DEFINITION).decode_batch(trackers.lines(EVENTS))[0]


def test_times_of_avro_are_exact_to_the_millisecond(tmp_path):
    read = reader(tmp_path, "schemas: first.avsc", first=FIRST)
    chance = random.Random(3)
    times = [chance.randrange(MIN_TS, MAX_TS) for _ in range(1_000)]
    found, rejected = read.decode_batch([body(EVENTS[0] | {"ts": ts}) for ts in times])
    assert rejected == []
    assert [event.ts for event in found] == times


def test_two_ids_of_bytes_that_are_no_text_stay_two(tmp_path):
    as_bytes = schema()
    as_bytes["fields"][2] = {"name": "user_id", "type": "bytes"}
    read = reader(tmp_path, "schemas: bytes.avsc", bytes=as_bytes)
    values = [body(EVENTS[0] | {"user_id": one}, as_bytes) for one in (b"ann", b"\xff", b"\xfe")]
    found, rejected = read.decode_batch(values)
    assert rejected == []
    assert [event.user_id for event in found] == ["ann", "ff", "fe"]


def test_a_stream_in_avro_is_the_stream_in_json(tmp_path):
    read = reader(tmp_path, "schemas: first.avsc", first=FIRST)
    assert read.decode_batch([body(event) for event in EVENTS]) == (PLAIN, [])
    micros = reader(tmp_path, "schemas: micros.avsc", micros=MICROS)
    values = [body(event | {"ts": 1_000 * event["ts"]}, MICROS) for event in EVENTS]
    assert micros.decode_batch(values) == (PLAIN, [])


def test_avros_json_is_recognised_and_read(tmp_path):
    """As kafka-avro-console-consumer prints a topic: `{"string": "x"}` where null may stand too."""
    about = {"type": "record", "name": "shop.About", "fields": [{"name": "page", "type": "string"}]}
    of = schema({"name": "about", "type": ["null", about]})
    printed = io.StringIO()
    events = [event | {"about": {"page": "home"}} for event in EVENTS]
    fastavro.json_writer(printed, fastavro.parse_schema(of), events)
    file = tmp_path / "events.jsonl"
    file.write_text(printed.getvalue())
    lines = printed.getvalue().encode().splitlines()
    assert b'"about": {"shop.About": {"page": "home"}}' in lines[0]
    assert b'"request_id": {"string": "' in lines[0]
    profile = tmp_path / "mine.yaml"
    profile.write_text(draft_profile(file.read_bytes().splitlines()))
    read = library.decoder_of(DEFINITION, str(profile))
    assert read.decode_batch(lines) == (PLAIN, [])
    assert EventDecoder.of(DEFINITION).decode_batch(lines)[0] == []


def test_a_schema_that_evolves_in_the_middle_of_a_topic_is_named_by_its_id(tmp_path):
    read = reader(tmp_path, "schemas: {7: a.avsc, 12: b.avsc}", a=FIRST, b=SECOND)
    half = len(EVENTS) // 2
    values = [framed(event, 7) for event in EVENTS[:half]]
    values += [framed(event | {"shop": "s"}, 12, SECOND) for event in EVENTS[half:]]
    assert read.decode_batch(values) == (PLAIN, [])
    (said,) = [one for _, one in read.decode_batch([framed(EVENTS[0], 13)])[1]]
    assert said.reason == "malformed"
    assert "schema id 13, and `schemas` has 12, 7: add its file" in said.detail


GUID = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")


def glue(value, *, packed=False):
    """A value as AWS's serialisers write it: header version 3, packing, the schema version's id."""
    return b"\x03" + (b"\x05" if packed else b"\0") + GUID.bytes + (
        zlib.compress(value) if packed else value
    )  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_glue_names_a_schema_by_its_guid(tmp_path, packed):
    read = reader(tmp_path, f"schemas: {{{GUID}: a.avsc, 12: b.avsc}}", a=FIRST, b=SECOND)
    values = [glue(body(event), packed=packed) for event in EVENTS]
    assert read.decode_batch(values) == (PLAIN, [])
    as_json = [glue(line, packed=packed) for line in trackers.lines(EVENTS)]
    assert library.decoder_of(DEFINITION, "native").decode_batch(as_json) == (PLAIN, [])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x03\x05" + GUID.bytes[:15], "no frame"),
        (b"\x03\x05" + GUID.bytes + zlib.compress(bytes(2_000_000)), "more than 1,048,576 bytes"),
        (b"\x03\x05" + GUID.bytes + b"no zlib", "its schema does not read it"),
        (b"\x03\x07" + GUID.bytes + body(EVENTS[0]), "no frame"),
        (b"\x03\0" + bytes(16) + body(EVENTS[0]), "schema id 00000000-0000-0000-0000-0000000000"),
    ],
)
def test_what_glue_did_not_write_is_told(tmp_path, value, said):
    read = reader(tmp_path, f"schemas: {{{GUID}: a.avsc}}", a=FIRST)
    events, ((_, rejection),) = read.decode_batch([value])
    assert events == []
    assert said in rejection.detail


def test_single_objects_name_their_schema(tmp_path):
    read = reader(tmp_path, "schemas: {7: a.avsc, 12: b.avsc}", a=FIRST, b=SECOND)

    def single(event, of):
        form = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(of))
        mark = bytes.fromhex(fastavro.schema.fingerprint(form, "CRC-64-AVRO"))
        return b"\xc3\x01" + mark + body(event, of)

    values = [single(event | {"shop": "s"}, SECOND) for event in EVENTS]
    assert read.decode_batch(values) == (PLAIN, [])
    ((_, said),) = read.decode_batch([single(EVENTS[0] | {"page": "p"}, THIRD)])[1]
    assert "no schema in `schemas` has its fingerprint" in said.detail


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (body(EVENTS[0])[:-3], "its schema does not read it"),
        (body(EVENTS[0]) + b"\0", "1 bytes are left after the value: another schema wrote it"),
        (b"", "its schema does not read it"),
        (b'{"type": "impression"}', "its schema does not read it"),
        (body(EVENTS[0] | {"user_id": "a\u0007"}), "Control character"),
        (body(EVENTS[0] | {"user_id": ""}), "`user_id`"),
    ],
)
def test_what_is_no_value_of_the_schema_is_told(value, said, tmp_path):
    read = reader(tmp_path, "schemas: first.avsc", first=FIRST)
    events, ((_, rejection),) = read.decode_batch([value])
    assert events == []
    assert said in rejection.detail
    assert rejection.detail.isprintable()


def test_json_in_a_registrys_frame_is_json():
    read = library.decoder_of(DEFINITION, "native")
    values = [b"\0\0\0\0\x11" + line for line in trackers.lines(EVENTS)]
    assert read.decode_batch(values) == (PLAIN, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schemas: none.avsc", "none.avsc: cannot be read: No such file or directory"),
        ("schemas: broken.avsc", "broken.avsc: is no schema of Avro"),
        ("", "schemas: name the files of format: avro or protobuf"),
    ],
)
def test_a_wrong_schema_is_told(text, said, tmp_path):
    with pytest.raises(ConfigError) as told:
        reader(tmp_path, text, broken={"type": "reckord"})
    assert said in str(told.value)
