"""A schema registry: values of all its types, and what happens while it is away or wrong."""

import base64
import contextlib
import http.server
import json
import ssl
import threading
import time
import uuid
from types import SimpleNamespace
from urllib.error import URLError

import protos
import pytest
import servers
import service
import trackers
from authorities import two_authorities
from test_profiles_live import BEGIN, figures, read

from streameval.base.errors import InputError, UnreachableError
from streameval.config.load import load
from streameval.core.definition import Definition
from streameval.core.events import EventDecoder
from streameval.kafka.records import value_of
from streameval.profiles import library, registry
from streameval.profiles.frames import SCHEMA_HEADER, RecordValue

DEFINITION = Definition(dimensions=())
EVENTS = trackers.stream(8, count=120)
PLAIN = EventDecoder.of(DEFINITION).decode_batch(trackers.lines(EVENTS))[0]
AVRO = {
    "type": "record",
    "name": "Event",
    "namespace": "shop",
    "fields": [
        {"name": "type", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "user_id", "type": "string"},
        {"name": "request_id", "type": "string"},
        *(
            {"name": name, "type": ["null", kind], "default": None}
            for name, kind in {
                "item_id": "string",
                "feedback": "string",
                "value": "double",
                "items": {"type": "array", "items": "string"},
            }.items()
        ),
    ],
}


# ------------------------------------------------------------- answers that a registry may give


class Answers(http.server.ThreadingHTTPServer):
    """Gives the answers of `by_path`, each a status and a body, and notes the requests."""

    def __init__(self, by_path):
        self.by_path, self.asked, self.headers = dict(by_path), [], []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        self.server.headers.append(self.headers.get("Authorization"))
        status, body = self.server.by_path.get(path, (404, {"error_code": 40403}))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body)
        self.end_headers()
        if body == "slow":
            for _ in range(20):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        else:
            self.wfile.write(body.encode() if isinstance(body, str) else json.dumps(body).encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def answers(by_path):
    server = Answers(by_path)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def avro_of(*fields, name="A", **more):
    schema = {"type": "record", "name": name, "fields": list(fields)}
    return {"schema": json.dumps(schema), **more}


def decoder(url, **more):
    return library.decoder_of(DEFINITION, "native", registry.Registry(url, **more))


def test_a_schema_is_asked_for_once_and_others_that_it_refers_to():
    inner = avro_of({"name": "b", "type": "string"}, name="shop.Inner")
    refers = [{"name": "shop.Inner", "subject": "in/ner", "version": 3}]
    outer = avro_of({"name": "a", "type": "shop.Inner"}, references=refers, schemaType="AVRO")
    by_path = {"/schemas/ids/7": (200, outer), "/subjects/in%2Fner/versions/3": (200, inner)}
    with answers(by_path) as server:
        asked = registry.Registry(server.url + "/")
        value = b"\0\0\0\0\x07\x02x"
        assert asked.missing([value, None, b"{}", b"\0\0\0"]) == ["7"]
        asked.ask(["7"])
        assert asked.missing([value]) == []
        assert asked.read(value) == {"a": {"b": "x"}}
        assert server.asked == ["/schemas/ids/7", "/subjects/in%2Fner/versions/3"]


def test_an_id_that_is_not_known_is_told_and_asked_for_again_later(monkeypatch):
    with answers({}) as server:
        read_by = decoder(server.url)
        for _ in range(2):
            ((_, said),) = read_by.decode_batch([b"\0\0\0\0\x07{}"])[1]
            assert said.reason == "malformed"
            assert "the schema registry has no schema with the id 7" in said.detail
        assert server.asked == ["/schemas/ids/7"]
        server.by_path["/schemas/ids/7"] = (200, {"schemaType": "JSON", "schema": "{}"})
        now = time.monotonic()
        monkeypatch.setattr(registry.time, "monotonic", lambda: now + registry.AGAIN_SECONDS + 1)
        read_by.unready([b"\0\0\0\0\x07{}"])()
        line = trackers.lines(EVENTS)[0]
        assert read_by.decode_batch([b"\0\0\0\0\x07" + line]) == (PLAIN[:1], [])


def test_more_unknown_ids_than_any_bound_are_told_all_the_same():
    """Each is asked for once: whoever waits for all of them gets them."""
    values = [b"\0" + number.to_bytes(4, "big") + b"{}" for number in range(1_500)]
    with answers({}) as server:
        read_by = decoder(server.url)
        read_by.unready(values)()
        assert read_by.unready(values) is None
        assert len(read_by.decode_batch(values)[1]) == 1_500
        assert len(server.asked) == 1_500


def test_a_header_names_the_schema_by_its_id_or_its_guid():
    """The value then is alone; without a registry nobody looks at the header."""
    guid = uuid.UUID(int=0x6F1E_0000_0000_4000_8000_0000_0000_0001)
    line = trackers.lines(EVENTS[:1])[0]
    json_schema = (200, {"schemaType": "JSON", "schema": "{}"})
    by_path = {"/schemas/ids/7": json_schema, f"/schemas/guids/{guid}": json_schema}
    headers = [b"\0\0\0\0\x07", b"\1" + guid.bytes]
    values = [RecordValue.of(line, None, [(SCHEMA_HEADER, header)]) for header in headers]
    with answers(by_path) as server:
        read_by = decoder(server.url)
        read_by.unready(values)()
        assert sorted(server.asked) == sorted(by_path)
        assert read_by.decode_batch(values) == (PLAIN[:1] * 2, [])
    assert library.decoder_of(DEFINITION, "native").decode_batch(values) == (PLAIN[:1] * 2, [])
    assert values == [line, line], "they are the values for everybody else"
    for record in (
        SimpleNamespace(value=line, key=b"k", headers=[("x", b"1"), (SCHEMA_HEADER, headers[0])]),
        SimpleNamespace(value=line, key=b"k", headers=((SCHEMA_HEADER, headers[0]),)),
    ):
        assert dict(value_of(record).headers)[SCHEMA_HEADER] == headers[0]
    for record in (
        SimpleNamespace(value=None, headers=[(SCHEMA_HEADER, headers[0])]),
        SimpleNamespace(value=line, key=b"k", headers=[(SCHEMA_HEADER, b"")]),
        SimpleNamespace(value=line, key=b"k", headers=[(SCHEMA_HEADER, None)]),
        SimpleNamespace(value=line, key=b"k", headers=()),
    ):
        assert value_of(record) is record.value


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"schemaType": "AVRO", "schema": "{"}, "the schema 7 of the registry is no schema of"),
        ({"schemaType": "XML", "schema": ""}, "is of type XML: Avro, Protobuf and JSON are read"),
        ({"schemaType": "PROTOBUF", "schema": "message"}, "is no schema of Protobuf"),
        ({"nothing": 1}, "the schema 7 of the registry has no text"),
        (avro_of(references=[{"name": "x", "subject": "s", "version": 1}]), "refers to x, which"),
        (avro_of({"name": "b", "type": "string"}), "its schema does not read it"),
        (avro_of(), "2 bytes are left after the value: another schema wrote it"),
    ],
)
def test_a_schema_that_does_not_serve_is_told(answer, said):
    with answers({"/schemas/ids/7": (200, answer)}) as server:
        ((_, told),) = decoder(server.url).decode_batch([b"\0\0\0\0\x07\x04x"])[1]
    assert said in told.detail


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, ""), "answers 500: look at its log"),
        ((503, {"error_code": 50001}), "answers 503"),
        ((401, {"error_code": 401}), "does not let us in (401): correct registry_username"),
        ((404, "<html>"), "answers 404 Not Found: correct the path of `registry`"),
        ((200, "<html>"), "answers with something else than JSON: is it its API?"),
        ((200, "slow"), "does not answer (its answer is too long, or too slow)"),
    ],
)
def test_a_registry_that_does_not_answer_rejects_nothing(answer, said, monkeypatch):
    monkeypatch.setattr(registry, "_TIMEOUT", 1.0)
    with answers({"/schemas/ids/7": answer}) as server:
        read_by = decoder(server.url)
        with pytest.raises(UnreachableError) as told:
            read_by.decode_batch([b"\0\0\0\0\x07{}"])
        assert said in str(told.value)
        assert str(told.value).startswith(f"the schema registry {server.url} ")
        server.by_path["/schemas/ids/7"] = (200, {"schemaType": "JSON", "schema": "{}"})
        assert read_by.decode_batch([b"\0\0\0\0\x07" + trackers.lines(EVENTS)[0]])[1] == []


def test_of_several_registries_the_first_that_answers_is_asked():
    schemas = {f"/schemas/ids/{n}": (200, {"schemaType": "JSON", "schema": "{}"}) for n in (7, 8)}
    down = dict.fromkeys(schemas, (500, ""))
    with answers(down) as first, answers(schemas) as second:
        read_by = decoder(f"http://127.0.0.1:{servers.free_port()},{first.url}/,{second.url}")
        for number in (b"\x07", b"\x08"):
            value = b"\0\0\0\0" + number + trackers.lines(EVENTS)[0]
            assert read_by.decode_batch([value])[1] == []
        assert first.asked == ["/schemas/ids/7"]  # the second one is asked first from then on
        assert second.asked == ["/schemas/ids/7", "/schemas/ids/8"]
    with answers(down) as first, answers(down) as second:
        read_by = decoder(f"{first.url},{second.url}")
        with pytest.raises(UnreachableError, match=f"{second.url} answers 500"):
            read_by.decode_batch([b"\0\0\0\0\x07{}"])


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    return two_authorities(tmp_path_factory.mktemp("authorities"))


def test_a_connection_that_is_cut_may_want_a_certificate(monkeypatch):
    """A reset may overtake what a server says of the certificate that it lacks."""

    class Cut:
        def open(self, *_, **__):
            raise URLError(ConnectionResetError(104, "Connection reset by peer"))

    monkeypatch.setattr(registry.Registry, "_with_certificates", lambda _: Cut())
    for url, said in (("https://a", "want a registry_cert_file"), ("http://a", "is it running")):
        read_by = load(None, {"registry": url, "profile": "native"}).decoder()
        with pytest.raises(UnreachableError, match=said):
            read_by.unready([b"\0\0\0\0\x07"])()


def test_a_registry_that_asks_for_certificates(authorities, tmp_path):
    """mTLS, and what is said without one of the two sides, and for a file that holds none."""
    first, second = authorities
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("-----BEGIN CERTIFICATE-----")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(first["ca"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(first["server"])
    with answers({"/schemas/ids/7": (200, {"schemaType": "JSON", "schema": "{}"})}) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = f"https://localhost:{server.server_port}"

        def rejected_by(**keys):
            told = {f"registry_{key}": str(path) for key, path in keys.items()}
            read_by = load(None, told | {"registry": url, "profile": "native"}).decoder()
            read_by.unready([b"\0\0\0\0\x07"])()

        rejected_by(ca_file=first["ca"], cert_file=first["worker"])
        for keys, said in (
            ({"ca_file": second["ca"], "cert_file": first["worker"]}, "set or correct registry_ca"),
            ({"ca_file": first["ca"]}, "want a registry_cert_file"),
            ({"ca_file": first["ca"], "cert_file": second["worker"]}, "want a registry_cert_file"),
            ({"ca_file": wrong}, "no certificates in PEM"),
            ({"ca_file": first["ca"], "cert_file": wrong}, "no certificates in PEM"),
            ({"ca_file": first["ca"], "cert_file": first["locked"]}, "a key with a password"),
        ):
            with pytest.raises(UnreachableError, match=said):
                rejected_by(**keys)


def test_a_secret_that_changes_is_the_new_one_and_goes_to_no_other_server(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    monkeypatch.setenv("STREAMEVAL_REGISTRY_PASSWORD_FILE", str(secret))
    json_schema = (200, {"schemaType": "JSON", "schema": "{}"})
    with answers({"/schemas/ids/8": json_schema}) as other:
        by_path = {"/schemas/ids/7": json_schema}
        by_path["/schemas/ids/8"] = (302, f"{other.url}/schemas/ids/8")
        with answers(by_path) as server:
            keys = {"registry": server.url, "registry_username": "ann", "profile": "native"}
            read_by = load(None, keys).decoder()
            read_by.unready([b"\0\0\0\0\x07"])()
            secret.write_text("two\n")
            read_by.unready([b"\0\0\0\0\x08"])()
            wanted = [base64.b64encode(f"ann:{word}".encode()).decode() for word in ("one", "two")]
            assert server.headers == [f"Basic {word}" for word in wanted]
            assert other.headers == [None]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"registry": "http://r:1"}, "registry: set profile too, to `native`"),
        ({"registry": "r:8081", "profile": "native"}, "registry: write http://"),
        ({"registry": "http://r:1,r:2", "profile": "native"}, "registry: write http://"),
        (
            {"registry": "http://ann:secret@r:1", "profile": "native"},
            "registry: write the address without a user and a password: they have keys",
        ),
        (
            {"registry_key_file": __file__},
            "registry_cert_file: set it too, or drop registry_key_file",
        ),
        ({"registry_username": "ann"}, "registry_username, registry_password: a login needs both"),
        (
            {"registry_username": "a", "registry_password": "b", "registry_token": "c"},
            "registry_token: drop it, or the user",
        ),
    ],
)
def test_keys_that_do_not_agree_are_told(keys, said):
    with pytest.raises(InputError) as told:
        load(None, keys)
    assert said in str(told.value)
    assert "secret" not in str(told.value)


# ----------------------------------------------------------------------- a registry, for real


@contextlib.contextmanager
def serialisers(url, topic):
    """By encoding: what turns an event into the bytes that Confluent's own serialisers write."""
    client_of = pytest.importorskip("confluent_kafka.schema_registry").SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(topic, MessageField.VALUE)
    kind = protos.classes(protos.EVENT, {})["shop.Event"]
    plain = {"title": "Event", "type": "object", "properties": {"type": {"type": "string"}}}
    contexts = {
        name: SerializationContext(f"{topic}-{name}", MessageField.VALUE)
        for name in ("protobuf", "json")
    }
    with client_of({"url": url}) as client:
        avro = AvroSerializer(client, json.dumps(AVRO))
        in_json = JSONSerializer(json.dumps(plain), client)
        protobuf = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
        yield {
            "avro": lambda event: avro(event, context),
            "json": lambda event: in_json(event, contexts["json"]),
            "protobuf": lambda event: protobuf(protos.message(kind, event), contexts["protobuf"]),
        }


@pytest.mark.servers
def test_text_of_protobuf_is_compiled_as_java_producers_register_it():
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    server = servers.shared_registry()
    topic = servers.unique("text")
    with SchemaRegistryClient({"url": servers.api_of(server)}) as client:
        number = client.register_schema(f"{topic}-value", Schema(protos.EVENT, "PROTOBUF"))
    kind = protos.classes(protos.EVENT, {})["shop.Event"]
    message = protos.message(kind, EVENTS[0]).SerializeToString()
    value = b"\0" + number.to_bytes(4, "big") + b"\0" + message
    assert decoder(servers.api_of(server)).decode_batch([value]) == (PLAIN[:1], [])


def stream():
    """A stream of seconds, so that figures stay the same while a worker idles."""
    events = trackers.stream(9, count=600)
    return [event | {"ts": BEGIN + 5 * number} for number, event in enumerate(events)]


@pytest.mark.servers
def test_a_stream_in_every_encoding_has_the_same_figures():
    url = servers.api_of(servers.shared_registry())
    events = stream()
    keys = [event["user_id"].encode() for event in events]
    lines = trackers.lines(events)
    with read([*zip(keys, lines, strict=True)], kill=False) as (plain, _):
        service.wait_for(lambda: len(figures(plain)) > 20, 30, "figures")
        wanted = figures(plain)
    with serialisers(url, servers.unique("encoded")) as by_encoding:
        streams = {name: [*map(write, events)] for name, write in by_encoding.items()}
    kinds = [*streams.values(), lines]
    streams["all"] = [kinds[at % 4][at] for at in range(len(events))]
    streams["headers"] = [kinds[at % 3][at] for at in range(len(events))]
    for name, values in streams.items():
        records = [*zip(keys, values, strict=True)]
        if name == "headers":  # what a frame begins with stands in a header, as others have it
            sizes = {"avro": 5, "json": 5, "protobuf": 6}  # which has the index of the message too
            sizes = [sizes[kind] for kind in list(streams)[:3]]
            records = [
                (key, value[sizes[at % 3] :], [(SCHEMA_HEADER, value[: sizes[at % 3]])])
                for at, (key, value) in enumerate(records)
            ]
        more = {"profile": "native", "registry": url}
        with read(records, kill=name in {"all", "headers"}, **more) as (worker, letters):
            service.wait_for(lambda w=worker: figures(w) == wanted, 60, f"the figures of {name}")
            assert letters() == []


def accepted(worker):
    metrics = worker.metrics().items()
    return sum(value for (name, _), value in metrics if name == "streameval_events_total")


@pytest.mark.servers
@pytest.mark.slow
def test_a_worker_waits_for_a_registry_that_was_killed():
    """It was killed for a minute under load: nothing is lost, and nothing is a dead letter."""
    events = stream()
    keys = [event["user_id"].encode() for event in events]
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = group = servers.unique("registry")
    with servers.registry() as server:
        url = servers.api_of(server)
        kinds = ["avro", "protobuf", "json"]
        third = len(events) // 3
        with serialisers(url, topic) as by:
            values = [by[kinds[at // third % 3]](event) for at, event in enumerate(events)]
        service.create_topic(kafka.port, topic, 2)
        service.create_topic(kafka.port, f"{topic}.dead-letter", 1)
        more = {"profile": "native", "registry": url, "group": group, "dimensions": []}
        with service.Worker(kafka.port, redis.url, topic, **more) as worker:
            worker.wait_until_up()
            records = [*zip(keys, values, strict=True)]
            service.produce(kafka.port, topic, records[:third])
            ends = service.read_log(kafka.port, topic, 2)[1]
            service.wait_until_read(redis.url, topic, ends, group=group)
            server.kill()
            began = time.monotonic()
            service.produce(kafka.port, topic, records[third:], seconds=20)
            service.wait_for(
                lambda: "waits: the schema registry" in worker.page("/readyz"), 60, "its line"
            )
            assert f"{url} does not answer" in worker.page("/readyz")
            time.sleep(max(0.0, 60 - (time.monotonic() - began)))
            assert worker.running
            server.start()
            ends = service.read_log(kafka.port, topic, 2)[1]
            service.wait_until_read(redis.url, topic, ends, group=group)
            service.wait_for(lambda: accepted(worker) == len(events), 60, "all are counted")
            assert worker.page("/readyz") == "ok\n"
            lines = [one for one in worker.logged().splitlines() if "Waiting for it." in one]
    assert service.dead_letters(kafka.port, topic) == []
    assert 2 < len(lines) < 80
