"""Classes of other packages that decode what no profile can say: found, named, and not trusted."""

import json
import re

import pytest
from typer.testing import CliRunner

from streameval.base.errors import ConfigError, StreamevalError, UnreachableError
from streameval.cli.app import app
from streameval.config.settings import Settings
from streameval.core.definition import Definition
from streameval.kafka import forwarder
from streameval.kafka.records import RecordLists
from streameval.profiles import library

TS = 1_700_000_000_000
CODE = """
from streameval.base.errors import UnreachableError
from streameval.core.events import Decoded, EventDecoder
import json

class Lines(EventDecoder):
    def parse(self, value):
        user, item, kind, ts = value.decode().split(",")
        event = {"user_id": user, "item_id": item, "ts": int(ts)}
        return event | ({"type": "impression"} if kind == "shown" else
                        {"type": "feedback", "feedback": kind})

class Several(EventDecoder):
    def decode_records(self, values, timestamps=None):
        events, records = [], []
        for index, value in enumerate(values):
            if value == b"away":
                raise UnreachableError("its server is away")
            for item in value.decode().split(":")[1].split(","):
                fields = {"type": "impression", "user_id": "u", "item_id": item}
                fields["ts"] = 1_700_000_000_000
                events += super().decode_records([json.dumps(fields).encode()]).events
                records.append(index)
        return Decoded(events, records, [])
"""
POINTS = """[streameval.decoders]
lines = shop_events:Lines
several = shop_events:Several
absent = nowhere:Lines
other = json:dumps
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package that is installed."""
    (tmp_path / "shop_events.py").write_text(CODE)
    about = tmp_path / "shop_events-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-events\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def run(*words, given=None):
    return CliRunner().invoke(app, words, input=given, catch_exceptions=False)


def test_replay_reads_events_by_the_class():
    lines = f"ann,a,shown,{TS}\nann,a,click,{TS + 5}\nann,a\n"
    found = run("replay", "--profile", "lines", "--json", "-", given=lines)
    events = json.loads(found.stdout)["events"]
    assert events["accepted"] == {"impression": 1, "slate": 0, "feedback": 1}
    assert events["rejected"]["malformed"] == 1


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("absent", "absent: cannot load nowhere:Lines: ModuleNotFoundError: No module named"),
        ("other", "other: json:dumps is no subclass of EventDecoder"),
        ("line", "no profile line; did you mean lines?"),
    ],
)
def test_a_class_that_cannot_be_had_is_one_line(profile, said):
    with pytest.raises(ConfigError, match="^(profile: )?" + said.replace("?", r"\?")):
        library.decoder_of(Definition(), profile)
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        Settings(profile=profile)


def test_map_prints_the_events_of_a_class():
    found = run("map", "--profile", "lines", "-", given=f"ann,a,shown,{TS}\nann,a\nann,a,click,7\n")
    assert json.loads(found.stdout) == {
        "type": "impression", "ts": TS, "user_id": "ann", "item_id": "a"
    }  # fmt: skip
    malformed, invalid = found.stderr.splitlines()
    assert malformed.startswith("-:2: malformed: not enough values to unpack")
    assert invalid.startswith("-:3: invalid: ")
    assert run("map", "--profile", "lines", "-", given="ann,a\n").exit_code == 1


def test_a_class_is_forwarded_as_a_profile_is():
    settings = Settings(topic="t", forward=[{"topic": "shop", "profile": "several"}])
    source = forwarder._Source()
    records = RecordLists([4, 5, 6], [TS] * 3, [b"k"] * 3, [b"x:a,b", b"none", b"y:c"], 20)
    source.take(0, records, settings.decoder_by("several"))
    held = source.due(TS)
    sent = [[(key, json.loads(value)["item_id"]) for key, value in one.events] for one in held]
    assert sent == [[(b"u", "a"), (b"u", "b")], [], [(b"u", "c")]]
    assert [one.letter and one.letter.offset for one in held] == [None, 5, None]
    forwarder.Forwarder(settings, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("profiles", "lines"), "lines is a class (shop_events:Lines), and no profile in YAML"),
        (
            ("map", "--profile", "lines", "--explain", "-"),
            "--explain: the rules of a profile are explained, and a class has none",
        ),
    ],
)
def test_a_class_is_named_where_only_a_profile_will_do(words, said):
    with pytest.raises(StreamevalError, match=re.escape(said)):
        run(*words)


def test_classes_are_listed():
    assert "lines            the class shop_events:Lines" in run("profiles").stdout


def test_a_value_at_which_the_class_raises_is_rejected_and_the_others_go_on():
    """Or each worker that reads it would end."""
    decoder = library.decoder_of(Definition(), "several")
    values = [b"x:a,b", b"none", b"\xff:", b"x:c"]
    events, records, rejected, _ = decoder.decode_records(values, [TS] * 4)
    assert ([event.item_id for event in events], records) == (["a", "b", "c"], [0, 0, 3])
    assert [(index, reason) for index, (reason, _) in rejected] == [
        (1, "malformed"),
        (2, "malformed"),
    ]
    assert rejected[0][1].detail == "the class several raised IndexError: list index out of range"
    with pytest.raises(UnreachableError):
        decoder.decode_records([b"x:a", b"away"])
