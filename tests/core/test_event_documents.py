"""Event files that are no JSON lines: arrays, values over several lines or on one, cut anywhere."""

import gzip
import io
import json
import random
import re

import pytest

from streameval.base.limits import MAX_EVENT_BYTES
from streameval.core import event_lines
from streameval.core.event_lines import numbered_lines_of

TEXTS = ("", "a", "{", "}}", '"', "\\", '\\"', "},{", "[", "é\u2028", "\n\t", '{"a": "}"}')


def some_value(random, depth=0):
    kind = random.randrange(6 if depth < 3 else 3)
    if kind < 2:
        return random.choice(TEXTS)
    if kind == 2:
        return random.choice((0, -1.5, None, True))
    if kind < 5:
        return some_object(random, depth + 1)
    return [some_value(random, depth + 1) for _ in range(random.randrange(4))]


def some_object(random, depth=0):
    keys = random.sample(TEXTS, random.randrange(4))
    return {key: some_value(random, depth + 1) for key in keys}


# How programs write several objects into one file, but for JSON lines.
WRITERS = {
    "an array on one line": json.dumps,
    "json.dump with an indent": lambda rows: json.dumps(rows, indent=2),
    "an indent of nothing": lambda rows: json.dumps(rows, indent=0),
    "windows": lambda rows: json.dumps(rows, indent="\t").replace("\n", "\r\n"),
    "mongoexport --jsonArray": lambda rows: "[" + ",\n".join(map(json.dumps, rows)) + "]\n",
    "an array with a line each": lambda rows: "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]",
    "jq": lambda rows: "".join(json.dumps(row, indent=2) + "\n" for row in rows),
    "Firehose": lambda rows: "".join(map(json.dumps, rows)),
    "arrays of arrays": lambda rows: json.dumps([rows[:3], [], rows[3:]], indent=1),
    "blank lines and a mark": lambda rows: "\ufeff" + json.dumps(rows) + "\n\n",
}


@pytest.mark.parametrize("name", WRITERS)
def test_values_of_a_document_are_those_that_json_finds(tmp_path, monkeypatch, seed, name):
    source = random.Random(seed)
    monkeypatch.setattr(event_lines, "_CHUNK_BYTES", source.choice((1, 7, 1 << 18)))
    rows = [{"type": "first"}, *(some_object(source) for _ in range(source.randrange(2, 12)))]
    (tmp_path / "events").write_text(WRITERS[name](rows))
    with gzip.open(tmp_path / "events.gz", "wb") as file:
        file.write(WRITERS[name](rows).encode())
    for file in ("events", "events.gz"):
        found = [*numbered_lines_of(str(tmp_path / file))]
        values = [value for lines in found for value in lines.values]
        assert [json.loads(value) for value in values] == rows
        assert [n for lines in found for n in lines.numbers] == [*range(1, len(rows) + 1)]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}\n{"a": "}{"}\n',
        '{"a": "} {"}\n{"b": 2}\n',
        '{"a": {"b": "cut off\n{"a": 1}\n[{"b": 2}]\n',
        '[{"a": 1}]\n[{"b": 2}, {"c": 3}]\n',
        '[2026-01-05 12:00] INFO {"a": 1}\n{"a": 2}\n',
        "{'a': 1}\n{'b': {}}{\n",
        '"{"\n"}"\n',
        "a,b\n{,}\n",
        "[1, 2]\n",
    ],
)
def test_lines_stay_lines(tmp_path, text):
    """A line that is broken, or an array in a topic's dump, must not change what others are."""
    (tmp_path / "events").write_text(text)
    (lines,) = numbered_lines_of(str(tmp_path / "events"))
    assert [line.decode() for line in lines.values] == text.splitlines()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('[\n{"a": 1},\n{"b": "cut', ['{"a": 1}', '{"b": "cut']),
        ('[\n{"a": 1},\n{"b": {"c": 2},\n', ['{"a": 1}', '{"b": {"c": 2}']),
        ('[{"a": 1},\n7, "x",\n{"b": 2}]', ['{"a": 1}', '7, "x"', '{"b": 2}']),
        ('[{"a": 1},\n{"lost: 2},\n{"c": 3}]', ['{"a": 1}', '{"lost: 2}', '{"c": 3}']),
        ('[{"a": 1,\n{"b": 2},\n{"c": 3}]', ['{"a": 1', '{"b": 2}', '{"c": 3}']),
        ('{"a": 1}{"b": 2}}\n{"c": 3}\n', ['{"a": 1}', '{"b": 2}', "}", '{"c": 3}']),
        ("[", []),
        ("[]", ["[]"]),
    ],
)
def test_what_is_no_object_of_a_broken_document_is_kept_to_be_rejected(tmp_path, text, wanted):
    (tmp_path / "events").write_text(text)
    found = [value for lines in numbered_lines_of(str(tmp_path / "events")) for value in lines[0]]
    assert [value.decode() for value in found] == wanted


@pytest.mark.parametrize("name", WRITERS)
def test_a_lost_brace_or_bracket_costs_its_own_object_alone(tmp_path, monkeypatch, seed, name):
    source = random.Random(seed)
    monkeypatch.setattr(event_lines, "_CHUNK_BYTES", source.choice((1, 7, 1 << 18)))
    rows = [{"n": n, "of": some_object(source), "l": [{"a": n}, 7]} for n in range(9)]
    text = WRITERS[name]([*rows[:4], "broken", *rows[5:]])
    whole = json.dumps(rows[4], indent=source.choice((None, 1)))
    bare = re.sub(r'"(\\.|[^"\\])*"', lambda found: "x" * len(found[0]), whole)
    # Without its first brace it is no object.
    lost = source.choice([at for at, sign in enumerate(bare) if at and sign in "{}[]"])
    (tmp_path / "events").write_text(text.replace('"broken"', whole[:lost] + whole[lost + 1 :]))
    found = [value for lines in numbered_lines_of(str(tmp_path / "events")) for value in lines[0]]
    readable = [row for value in found if (row := event_or_none(value)) is not None]
    assert [row for row in readable if "n" in row] == [*rows[:4], *rows[5:]]
    assert len(found) > len(readable)


def event_or_none(value):
    try:
        return json.loads(value)
    except ValueError:
        return None


def test_of_a_value_that_is_too_large_a_document_keeps_the_beginning(monkeypatch, tmp_path):
    large = {"text": "x" * (2 * MAX_EVENT_BYTES)}
    rows = [{"a": 1}, large, {"b": {"c": 2}}]
    for text in (json.dumps(rows), json.dumps(rows, indent=1), json.dumps(rows[1:])):
        (tmp_path / "events").write_text(text)
        found = [one for lines in numbered_lines_of(str(tmp_path / "events")) for one in lines[0]]
        assert [len(one) for one in found if len(one) > 99] == [MAX_EVENT_BYTES + 1]
        assert json.loads(found[-1]) == rows[-1]


def test_a_pipe_of_lines_waits_for_none_but_the_next(monkeypatch):
    class Live(io.BytesIO):
        """It fails where a reader wants more than the line that was sent."""

        def read(self, size=-1):
            raise AssertionError(size)

        read1 = read

    for sent in (b'{"a": 1}\n', b'{"a": "}{"}\n', b"no JSON\n"):
        (line, *_) = event_lines._lines("-", Live(sent * 2))
        assert line == sent.strip()
