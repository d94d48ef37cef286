"""Messages in Protobuf, by schemas of files: the events of the same stream as JSON, or why not."""

import base64

import protos
import pytest
import trackers

from streameval.base.errors import ConfigError
from streameval.core.definition import Definition
from streameval.core.events import EventDecoder
from streameval.profiles import library
from streameval.profiles.protobuf import ProtobufSchema

descriptors = pytest.importorskip("google.protobuf.descriptor_pb2")
pytest.importorskip("grpc_tools")

DEFINITION = Definition(dimensions=())
EVENTS = trackers.stream(8, count=120)
PLAIN = EventDecoder.of(DEFINITION).decode_batch(trackers.lines(EVENTS))[0]
NATIVE = protos.EVENT.replace(
    "message Event {",
    """import "shop/item.proto";
message Note { string text = 1; }
message Event {
  message Inner { string a = 1; int64 b = 2; repeated Item many = 3; }
  Inner inner = 9;""",
)
ITEM = """syntax = "proto3";
package shop;
enum Kind { NONE = 0; NEW = 1; }
message Item {
  string id = 1;
  sint32 place = 2;
  Kind kind = 3;
  map<string, int64> more = 4;
  bytes raw = 5;
}
"""
FILES = {"event.proto": NATIVE, "shop/item.proto": ITEM}


def write(folder, files=FILES):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def reader(folder, text):
    profile = folder / "mine.yaml"
    profile.write_text(f"native: true\nformat: protobuf\n{text}\n")
    return library.decoder_of(DEFINITION, str(profile))


OTHERS = {"shop/item.proto": ITEM}


@pytest.fixture(scope="module")
def types():
    """The classes of the messages."""
    return protos.classes(NATIVE, OTHERS)


def body(types, event):
    return protos.message(types["shop.Event"], event).SerializeToString()


def test_a_stream_in_protobuf_is_the_stream_in_json(types, tmp_path):
    write(tmp_path)
    values = [body(types, event) for event in EVENTS]
    read = reader(tmp_path, "schemas: event.proto\nmessage: shop.Event")
    assert read.decode_batch(values) == (PLAIN, [])
    framed = [b"\0\0\0\0\x07\x02\x02" + value for value in values]  # one index, 1
    assert reader(tmp_path, "schemas: {7: event.proto}").decode_batch(framed) == (PLAIN, [])
    guid = "00000000-0000-0000-0000-000000000007"
    glue = b"\3\0" + bytes(15) + b"\7\1" + values[0]  # its number of the message is another one
    (_, said), *_ = reader(tmp_path, f"schemas: {{{guid}: event.proto}}").decode_batch([glue])[1]
    assert "Protobuf in AWS Glue's frame is not read" in said.detail


def test_a_set_of_descriptors_needs_no_compiler(types, tmp_path):
    files = protos.descriptors(NATIVE, OTHERS).values()
    packed = descriptors.FileDescriptorSet(file=files)
    (tmp_path / "event.binpb").write_bytes(packed.SerializeToString())
    read = reader(tmp_path, "schemas: event.binpb\nmessage: shop.Event")
    assert read.decode_batch([body(types, event) for event in EVENTS]) == (PLAIN, [])


def test_fields_of_any_kind_are_plain(types):
    schema = ProtobufSchema(NATIVE, OTHERS, "shop.Event")
    message = types["shop.Event"](type="slate")
    message.inner.b = 2**60
    message.inner.many.add(id="x", kind=1, place=0)
    message.inner.many[0].more["k"] = 3
    message.inner.many[0].raw = b"r\xff"
    assert schema.read(message.SerializeToString()) == {
        "type": "slate",
        "inner": {
            "b": 2**60,
            "many": [{"id": "x", "place": 0, "kind": "NEW", "more": {"k": 3}, "raw": "72ff"}],
        },
    }


def test_a_registrys_descriptor_in_base64_is_read_with_what_it_imports(types):
    packed = {
        name: base64.b64encode(each.SerializeToString()).decode()
        for name, each in protos.descriptors(NATIVE, OTHERS).items()
    }
    schema = ProtobufSchema(list(packed.values())[-1], {name: packed[name] for name in OTHERS})
    value = body(types, EVENTS[0])
    assert schema.read_framed(b"\x02\x02" + value)["user_id"] == EVENTS[0]["user_id"]
    inner = types["shop.Event"].Inner(a="x").SerializeToString()
    assert schema.read_framed(b"\x04\x02\x00" + inner) == {"a": "x", "b": 0}
    assert schema.read_framed(b"\x00" + b"\x0a\x01t") == {"text": "t"}  # the first message


def test_a_descriptor_that_imports_what_nobody_has_is_told():
    main = descriptors.FileDescriptorProto(name="a.proto", dependency=["google/protobuf/no.proto"])
    with pytest.raises(ValueError, match=r"imports google/protobuf/no\.proto, which protobuf does"):
        ProtobufSchema(base64.b64encode(main.SerializeToString()).decode())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x02\x06", "the schema has no message 3 where the value says"),
        (b"\x02\x03", "the schema has no message -2"),
        (b"\x80", "it ends early"),
        (b"\x80" * 30, "it ends early"),
        (b"", "it ends early"),
        (b"\x02\x02\xff\xff", "Error parsing message"),
        (b"\x00\x52\x01x", "it has fields that shop.Note lacks: another schema wrote it"),
    ],
)
def test_what_is_no_value_of_the_schema_is_told(value, said, tmp_path):
    write(tmp_path)
    read = reader(tmp_path, "schemas: {7: event.proto}")
    events, ((_, rejection),) = read.decode_batch([b"\0\0\0\0\x07" + value])
    assert events == []
    assert said in rejection.detail
    assert rejection.detail.isprintable()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schemas: none.proto", "none.proto: cannot be read: No such file or directory"),
        ("schemas: broken.proto", 'broken.proto: is no schema of Protobuf: 3:1: Expected ";"'),
        ("schemas: empty.proto", "empty.proto: has no message"),
        ("schemas: lacks.proto", "is no schema of Protobuf: "),
        ("schemas: some.binpb", "some.binpb: is no set of descriptors"),
        ("schemas: event.proto\nmessage: Event", "message: Event is not in it: shop.Note, shop.Ev"),
        ("", "schemas: name the files of format: avro or protobuf"),
    ],
)
def test_a_wrong_schema_is_told(text, said, tmp_path):
    write(tmp_path)
    write(tmp_path, {"broken.proto": 'syntax = "proto3"\n\nmessage X {}', "some.binpb": "\xff"})
    write(tmp_path, {"empty.proto": 'syntax = "proto3";'})
    write(tmp_path, {"lacks.proto": 'syntax = "proto3"; import "no.proto"; message X {}'})
    with pytest.raises(ConfigError) as told:
        reader(tmp_path, text)
    assert said in str(told.value)
