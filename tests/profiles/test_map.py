"""`streameval map` and `profiles`, and `--profile` of the other commands, as people call them."""

import json
import subprocess
import sys
from collections import Counter

import command_line
import pytest
import trackers

from streameval.cli.diagnosis import judge_records
from streameval.config.load import Settings
from streameval.core.definition import Definition
from streameval.kafka.admin import Sampled
from streameval.profiles import draft, library
from streameval.profiles.paths import compile_path

EVENTS = trackers.stream(2, count=40)
CALLS = [trackers.segment(event) for event in EVENTS]
PAGE = {"type": "page", "event": "Page Viewed", "messageId": "m", "userId": "u"}


def streameval(*arguments, folder):
    return command_line.streameval(*arguments, folder=folder, text=True)


def file_of(folder, *messages, name="calls.jsonl"):
    (folder / name).write_text("".join(json.dumps(one) + "\n" for one in messages))
    return name


def test_map_prints_events_and_nothing_else_on_standard_output(tmp_path):
    wrong = trackers.segment(EVENTS[0]) | {"timestamp": 5}
    calls = file_of(tmp_path, *CALLS, PAGE)
    with (tmp_path / calls).open("a") as file:  # numbers count blank lines too
        file.write("\n\n" + json.dumps(wrong) + "\n")
    done = streameval("map", calls, "--profile", "segment", folder=tmp_path)
    assert done.returncode == 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["type"] for event in events] == [event["type"] for event in EVENTS]
    first, second = done.stderr.splitlines()
    assert first.startswith(
        f"calls.jsonl:{len(CALLS) + 4}: invalid: profile segment, rule product list: `ts`:"
        " timestamp is 5, and RFC 3339 is wanted"
    )
    assert second == "no rule takes 1 Page Viewed"
    native = file_of(tmp_path, *events, name="native.jsonl")
    plain = streameval("replay", native, "--json", folder=tmp_path)
    through = streameval("replay", calls, "--profile", "segment", "--json", folder=tmp_path)
    found, wanted = json.loads(through.stdout), json.loads(plain.stdout)
    assert found["events"]["rejected"]["invalid"] == 1
    assert found["rates"] == wanted["rates"]
    assert found["ranking"] == wanted["ranking"]


ENVELOPES = {
    "payload": lambda call: {
        "topic": "t",
        "partition": 0,
        "offset": 5,
        "payload": json.dumps(call),
    },
    "payload.after": lambda call: {
        "schema": {"type": "struct"},
        "payload": {"before": None, "after": call, "op": "c"},
    },
    "detail": lambda call: {"version": "0", "detail-type": "calls", "detail": call},
    "Message": lambda call: {"TopicArn": "arn:aws:sns:x", "Message": json.dumps(call)},
    "": lambda call: {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": call},
}


@pytest.mark.parametrize("path", ENVELOPES)
@pytest.mark.parametrize("kind", ["segment", "native"])
def test_init_looks_into_envelopes_and_its_profile_takes_them_off(path, kind, tmp_path):
    messages = CALLS if kind == "segment" else EVENTS
    bare = file_of(tmp_path, *messages, name="bare.jsonl")
    wanted = streameval("map", bare, "--profile", kind, folder=tmp_path).stdout
    within = file_of(tmp_path, *map(ENVELOPES[path], messages))
    profile = streameval("map", within, "--init", folder=tmp_path).stdout
    assert profile.startswith(f"# {len(messages)} of {len(messages)} lines look like")
    (tmp_path / "mine.yaml").write_text(profile)
    found = streameval("map", within, "--profile", "./mine.yaml", folder=tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (0, wanted, "")
    if path:
        without = streameval("map", within, "--profile", "segment", folder=tmp_path)
        assert f"profile with `unwrap: {path.partition('.')[0]}`" in without.stderr


def test_init_goes_by_what_has_a_profile_among_other_lines(tmp_path):
    """Lines that are no envelope, no JSON, or of a format without a profile change nothing."""
    others = [{"event_type": "x", "event_properties": {}}] * 30
    calls = file_of(tmp_path, *map(ENVELOPES["detail"], [*CALLS[:20], *others]), [1], "text", 5)
    with (tmp_path / calls).open("a") as file:
        file.write("a,b,c\n\\x00\n")
    profile = streameval("map", calls, "--init", folder=tmp_path).stdout
    assert profile.startswith(
        "# 20 of 50 lines look like messages of this profile.\nunwrap: detail"
    )


@pytest.mark.parametrize("inner", [None, 5, "x", {}, [1]])
def test_init_of_an_envelope_without_a_message_is_one_line_or_a_draft(inner, tmp_path):
    calls = file_of(tmp_path, {"schema": 1, "payload": inner})
    done = streameval("map", calls, "--init", folder=tmp_path)
    if done.returncode:
        assert len(done.stderr.splitlines()) == 1
    else:
        assert "A draft" in done.stdout


def test_events_of_streameval_are_split_and_unwrapped_too(tmp_path):
    (tmp_path / "mine.yaml").write_text("native: true\nunwrap: data.batch\nsplit: events\n")
    batch = file_of(tmp_path, {"data": {"batch": {"events": EVENTS}}})
    done = streameval("map", batch, "--profile", "./mine.yaml", folder=tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == EVENTS


def test_messages_of_another_format_are_told_their_profile(tmp_path):
    """Where nothing is mapped: what a profile leaves out otherwise is nobody's mistake."""
    done = streameval("map", file_of(tmp_path, *CALLS), "--profile", "ga4_export", folder=tmp_path)
    assert done.stderr.endswith("RudderStack: map it by the profile segment (docs/profiles.md)\n")
    (tmp_path / "mine.yaml").write_text(library.text_of("segment"))
    mixed = file_of(tmp_path, PAGE, *CALLS)
    done = streameval("map", mixed, "--profile", "./mine.yaml", folder=tmp_path)
    assert done.stderr == "no rule takes 1 Page Viewed\n"


def test_nothing_mapped_is_an_error(tmp_path):
    done = streameval("map", file_of(tmp_path, PAGE), "--profile", "segment", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no rule takes 1 Page Viewed\n"


def test_explain_says_what_became_of_each_line_and_what_one_would_overlook(tmp_path):
    shown = CALLS[0]
    again = json.loads(json.dumps(shown))
    again["properties"]["products"] = [{"product_id": "other", "position": 4}]
    clicked = {"type": "track", "event": "Product Clicked", "userId": "nobody"}
    clicked |= {"timestamp": "2099-01-01T00:00:00Z", "properties": {"product_id": "p"}}
    calls = file_of(tmp_path, shown, again, clicked, PAGE, {"event": "Product Clicked"})
    done = streameval("map", calls, "--profile", "segment", "--explain", folder=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0] == "calls.jsonl:1: 1 slate (product list)"
    assert lines[3] == "calls.jsonl:4: ignored: no rule takes it"
    assert lines[4].startswith("calls.jsonl:5: rejected, invalid: profile segment, rule Product")
    said = "\n".join(lines[5:])
    assert "warn 1 of 2 lists repeat the request of another list of the same user" in said
    assert "warn 1 of 2 lists begin below position 1: do they count from 1?" in said
    assert (
        "warn 0 of 1 feedback events that name no list were for an item that the user was shown"
        in said
    )
    assert "2099-01-01 00:00:00 UTC in the future: is the unit right?" in said
    turned = file_of(tmp_path, clicked, shown, again)
    said = streameval("map", turned, "--profile", "segment", "--explain", folder=tmp_path).stdout
    assert "warn 2 of 3 events are late: older by more than allowed_lateness" in said
    assert "`replay --sort` puts those of files in order" in said


def test_explain_warns_of_lists_whose_items_have_one_position(tmp_path):
    calls = json.loads(json.dumps(CALLS))
    for product in (one for call in calls for one in call["properties"].get("products", ())):
        product["position"] = 3
    fine, wrong = (
        streameval("map", file_of(tmp_path, *some), "--profile", "segment", "--explain",
                   folder=tmp_path).stdout
        for some in (CALLS, calls)
    )  # fmt: skip
    assert "ok   0 of" in fine.split("lists of several items have one position for all")[0]
    assert f"ok   0 of {len(CALLS)} events are late: older by more than allowed_lateness" in fine
    assert "lists of several items have one position for all: is it that in the list?" in wrong


def test_explain_names_paths_that_find_nothing_and_labels_that_nobody_reads(tmp_path):
    shown = "slate: {ts: t, user_id: u, request_id: r, items: {each: i, item_id: d, position: p}"
    (tmp_path / "mine.yaml").write_text(
        f"rules: [{{when: i, name: shown, {shown}, variant: v.w, varaint: v}}}}, {{feedback:"
        " {ts: t, user_id: u, item_id: d, kind: {const: click}, value: {const: 5}, request_id: r}}]"
    )
    message = {"t": "2026-01-05T12:00:00Z", "u": "u", "r": "r", "v": "A", "i": [{"d": "a"}]}
    calls = file_of(tmp_path, message, {"t": message["t"], "u": "u", "d": "a", "r": "r"})
    done = streameval("map", calls, "--profile", "mine.yaml", "--explain", folder=tmp_path)
    assert [line for line in done.stdout.splitlines() if "warn" in line] == [
        "warn rule shown: `variant`: v.w finds nothing in 1 slate",
        "warn rule shown: `position`: p finds nothing in 1 slate",
        (
            "warn the field 'varaint' is not read, in 1 of 2 events looked at; if 'variant'"
            " is meant, send that"
        ),
    ]


def test_two_rules_that_both_hold_are_told(tmp_path):
    rule = "{feedback: {ts: t, user_id: u, item_id: i, kind: {const: click}}"
    (tmp_path / "mine.yaml").write_text(
        f"rules: [{rule}, when: {{a: 1}}, name: one}}, {rule}, when: u, name: two}}]"
    )
    message = {"t": "2026-01-05T12:00:00Z", "u": "u", "i": "i", "a": 1}
    calls = file_of(tmp_path, message)
    done = streameval("map", calls, "--profile", "mine.yaml", "--explain", folder=tmp_path)
    assert done.stdout.splitlines()[0] == (
        "calls.jsonl:1: 1 feedback (one); rules two hold too: the first counts"
    )


@pytest.mark.parametrize("profile", trackers.WRITERS | trackers.PARTLY)
def test_init_recognises_each_format(profile, tmp_path):
    write = (trackers.WRITERS | trackers.PARTLY)[profile]
    calls = file_of(tmp_path, *map(write, EVENTS))
    done = streameval("map", calls, "--init", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(library.text_of(profile))
    # Feedback of UBI looks like either of its profiles.
    of_it = [one for one in EVENTS if one["type"] == "slate" or profile != "ubi_impressions"]
    assert done.stdout.startswith(
        f"# {len(of_it)} of {len(EVENTS)} lines look like messages of this profile."
    )


@pytest.mark.parametrize("profile", ["segment", "ubi_impressions", "ga4_measurement"])
@pytest.mark.parametrize("first", [0, 1])
def test_init_counts_positions_as_the_file_does(profile, first, tmp_path):
    write = (trackers.WRITERS | trackers.PARTLY)[profile]
    moved = first - (profile != "ga4_measurement")
    calls = file_of(tmp_path, *(_moved(write(event), moved) for event in EVENTS))
    mine = streameval("map", calls, "--init", folder=tmp_path).stdout
    assert f", base: {first}}}" in mine
    (tmp_path / "mine.yaml").write_text(mine)
    done = streameval("map", calls, "--profile", "mine.yaml", folder=tmp_path)
    usual = file_of(tmp_path, *map(write, EVENTS))
    assert done.stdout == streameval("map", usual, "--profile", profile, folder=tmp_path).stdout
    assert '"position":1' in done.stdout.replace(" ", "")


def _moved(message, by):
    """The message with its positions moved by so many."""
    if isinstance(message, dict):
        return {
            name: value + by
            if name in {"position", "ordinal", "index"} and isinstance(value, int)
            else _moved(value, by)
            for name, value in message.items()
        }
    return [_moved(one, by) for one in message] if isinstance(message, list) else message


def test_init_takes_the_profile_that_takes_most(tmp_path):
    """Events of UBI's own clients also have the text that was searched for, as queries do."""
    usual = [{"user_query": "hat"} | trackers.PARTLY["ubi_impressions"](one) for one in EVENTS]
    done = streameval("map", file_of(tmp_path, *usual), "--init", folder=tmp_path)
    assert done.stdout.endswith(library.text_of("ubi_impressions"))


def test_init_drafts_where_the_profile_of_like_names_takes_nothing(tmp_path):
    """These have the names of recsys.app's outcomes, and another one for the time."""
    one = {
        "request_id": "r",
        "item_id": "i",
        "event_type": "click",
        "user_id": "u",
        "at": 1767614400,
    }
    done = streameval("map", file_of(tmp_path, one), "--init", folder=tmp_path)
    assert done.stdout.startswith(
        "# 1 of 1 lines look like messages of recsys_app, which takes none"
        " (`streameval profiles recsys_app` prints it).\n# A draft"
    )
    assert "ts: {from: at, unit: auto}" in done.stdout


def test_init_drafts_where_a_known_tracker_sends_events_of_its_owners_names(tmp_path):
    call = {"type": "track", "messageId": "m", "userId": "u", "timestamp": "2026-01-05T12:00:00Z"}
    shown = call | {"event": "Recs Shown", "properties": {"products": [{"product_id": "i"}]}}
    done = streameval("map", file_of(tmp_path, shown), "--init", folder=tmp_path)
    assert done.stdout.startswith("# 1 of 1 lines look like messages of segment, which takes none")
    assert 'when: {event: "Recs Shown"}\n    slate:' in done.stdout


def test_init_drafts_a_profile_for_an_unknown_format(tmp_path):
    who = {"created_at": 1767614400, "visitor_id": "v"}
    message = {"kind": "shown", "meta": who, "rows": [{"n": 1, "SKU": "a"}]}
    done = streameval("map", file_of(tmp_path, message), "--init", folder=tmp_path)
    assert "#   meta.created_at: 1767614400" in done.stdout
    assert "ts: {from: meta.created_at, unit: auto}" in done.stdout
    assert "user_id: meta.visitor_id" in done.stdout
    assert "items: {each: rows, item_id: SKU}" in done.stdout
    (tmp_path / "mine.yaml").write_text(done.stdout)
    assert library.mapping_of(str(tmp_path / "mine.yaml")).profile.rules


def test_init_looks_into_each_file_though_the_first_is_long(tmp_path):
    times = {"servedAt": 1767614400000, "clickedAt": 1767614400005}
    who = [{"userId": f"u{number % 3}", "requestId": f"l{number}"} for number in range(1_200)]
    lists = [one | {"servedAt": times["servedAt"], "items": ["a", "b"]} for one in who]
    clicks = [one | {"clickedAt": times["clickedAt"], "itemId": "b"} for one in who[:9]]
    files = [
        file_of(tmp_path, *messages, name=name)
        for name, messages in {"lists": lists, "nothing": [], "clicks": clicks}.items()
    ]
    done = streameval("map", *files, "--init", folder=tmp_path)
    (tmp_path / "mine.yaml").write_text(done.stdout)
    done = streameval("map", *files, "--profile", "mine.yaml", folder=tmp_path)
    kinds = Counter(json.loads(line)["type"] for line in done.stdout.splitlines())
    assert (kinds, done.stderr) == ({"slate": 1_200, "feedback": 9}, "")


def own_events():
    for number in range(20):
        who = {"visitor": f"v{number % 5}", "time": 1767614400 + number}
        yield who | {"name": "recs_shown", "list_id": f"l{number}", "skus": ["a1", "b2", "c3"]}
        yield who | {"name": "rec_clicked", "list_id": f"l{number}", "sku": "b2"}


VIEW = {"name": "page_view", "params": {"page_location": "/"}}
MOSTLY_PAGES = {
    "segment": (PAGE, CALLS),
    "in batches": (
        {"client_id": "c", "timestamp_micros": "1767614400000000", "events": [VIEW]},
        [trackers.ga4_measurement(event) for event in EVENTS],
    ),
    "in envelopes": ({"payload": json.dumps(PAGE)}, [{"payload": json.dumps(c)} for c in CALLS]),
    "unknown": ({"visitor": "v", "time": 1767614400, "name": "page_viewed"}, [*own_events()]),
}


@pytest.mark.parametrize("name", MOSTLY_PAGES)
def test_init_finds_what_is_rare_behind_thousands_of_pages(name, tmp_path):
    page, messages = MOSTLY_PAGES[name]
    file = file_of(tmp_path, *[page] * 2_500, *messages)
    done = streameval("map", file, "--init", folder=tmp_path)
    assert f"of {1_000 + len(messages):,} lines this profile makes " in done.stderr
    (tmp_path / "mine.yaml").write_text(done.stdout)
    done = streameval("map", file, "--profile", "mine.yaml", folder=tmp_path)
    kinds = Counter(json.loads(line)["type"] for line in done.stdout.splitlines())
    alone = file_of(tmp_path, *messages, name="alone")
    wanted = streameval("map", alone, "--profile", "mine.yaml", folder=tmp_path).stdout
    assert kinds["slate"] >= 20
    assert kinds["feedback"] >= 20
    assert kinds.total() == len(wanted.splitlines())


def test_init_reads_so_many_lines_of_a_kind(tmp_path):
    """Of what is behind the first thousand, 200 lines of each kind that is not among them."""
    later = [{**PAGE, "event": f"e{number % 3}"} for number in range(900)]
    done = streameval("map", file_of(tmp_path, *[PAGE] * 1_000, *later), "--init", folder=tmp_path)
    assert done.stderr.startswith("of 1,600 lines this profile makes no event")


def test_init_does_not_wait_for_a_pipe_that_sends_no_more():
    """As `kcat` does at the end of a topic, unless it is told to end."""
    command = [sys.executable, "-m", "streameval", "map", "-", "--init"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        try:
            process.stdin.write(b"".join(json.dumps(PAGE).encode() + b"\n" for _ in range(1_000)))
            process.stdin.flush()
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
        assert process.stdout.read().startswith(b"# 1,000 of 1,000 lines look like messages of")


def test_init_says_what_its_profile_makes_of_the_file(tmp_path):
    """A click on what nobody saw is odd, as where the id of another thing was taken."""
    who = {"ts": 1767614400000, "uid": "ann"}
    shown = {"event": "shown", "items": ["a", "b"]} | who
    clicks = [{"event": "click", "item": "c"} | who] * 3
    done = streameval("map", file_of(tmp_path, shown, *clicks), "--init", folder=tmp_path)
    said = done.stderr.splitlines()
    assert said[0] == "of 4 lines this profile makes 1 slate, 3 feedback (--explain says more)"
    assert said[1].startswith("warn 0 of 3 feedback events that name no list were for an item")
    no_user = {"event": "shown", "items": ["a"], "ts": 1767614400000}
    done = streameval("map", file_of(tmp_path, no_user), "--init", folder=tmp_path)
    assert done.stderr.splitlines()[1].startswith(
        "warn 1 are rejected; the first is invalid: profile draft, rule shown: `user_id`"
    )
    done = streameval("map", file_of(tmp_path, *CALLS), "--init", folder=tmp_path)
    assert done.stderr.startswith(f"of {len(CALLS)} lines this profile makes ")


def test_a_profile_that_is_edited_holds_at_the_next_call_of_a_notebook(tmp_path):
    mine = tmp_path / "mine.yaml"
    for kind in ("click", "like"):
        told = f"{{ts: {{from: t, unit: ms}}, user_id: u, item_id: i, kind: {{const: {kind}}}}}"
        mine.write_text(f"rules: [{{when: u, feedback: {told}}}]")
        decoder = library.decoder_of(Definition(), str(mine))
        (event,) = decoder.decode_records([b'{"t": 1767614400000, "u": "u", "i": "i"}']).events
        assert event.feedback == kind


ODD_NAMES = [
    "event name", "$event", "a-b", "größe", 'a "b" c', "it's", "a\nb", "\x1b[31m", "yes", "null",
    "1", "a: b", "a #b", "x" * 60, "{a}", "[a]", "&a", "\\", "\u2028",
]  # fmt: skip


@pytest.mark.parametrize("value", [*ODD_NAMES, 3, True])
def test_a_draft_takes_the_message_that_it_was_made_of_whatever_stands_there(value, tmp_path):
    name = str(value)
    message = {name: {"event": value, "user_id": "u", "ts": 1767614400, name: [1]}}
    made = draft.draft([json.dumps(message).encode()])
    (tmp_path / "mine.yaml").write_text(made)
    mapping = library.mapping_of(str(tmp_path / "mine.yaml"))
    assert mapping.rule_of(message) is not None
    found = mapping.profile.rules[0].slate
    paths = [found.ts.path, found.user_id, found.items]
    assert [compile_path(path)(message, message) for path in paths] == [1767614400, "u", [1]]
    assert all(line.isprintable() for line in made.split("\n"))


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("", ("--profile", "segment"), "odd.jsonl: no line to map"),
        ("\n\n", ("--profile", "segment", "--explain"), "odd.jsonl: no line to map"),
        ("", ("--init",), "odd.jsonl: no line to map"),
        (
            "a,b\n1,2\n",
            ("--init",),
            "looks like a table (CSV or TSV): send JSON objects; a file of rows is read",
        ),
        (
            "{'a': 1}\n",
            ("--init",),
            "looks like Python's repr of a dict: write it with json.dumps",
        ),
        ("5\n", ("--init",), "no line is a JSON object; of the first one: "),
    ],
)
def test_a_file_with_nothing_to_map_is_one_line(text, arguments, said, tmp_path):
    (tmp_path / "odd.jsonl").write_text(text)
    done = streameval("map", "odd.jsonl", *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_profiles_lists_and_prints(tmp_path):
    done = streameval("profiles", folder=tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()] == library.names()
    assert streameval("profiles", "ubi", folder=tmp_path).stdout == library.text_of("ubi")
    schema = json.loads(streameval("profiles", "--schema", folder=tmp_path).stdout)
    assert "rules" in schema["properties"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("map", "calls.jsonl"), "--profile: name one of `streameval profiles`"),
        (("map", "none.jsonl", "--profile", "ubi"), "none.jsonl"),
        (("map", "calls.jsonl", "--profile", "ubbi"), "no profile ubbi; did you mean ubi?"),
        (("map", "calls.jsonl", "--profile", "./no.yaml"), "no.yaml: no such file"),
        (
            ("profiles", "nothing"),
            "ubi_impressions; `streameval map FILE --init` drafts one of your own",
        ),
        (("replay", "calls.jsonl", "--profile", "segmen"), "did you mean segment?"),
    ],
)
def test_a_wrong_name_is_one_line(arguments, said, tmp_path):
    file_of(tmp_path, PAGE)
    done = streameval(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_doctor_names_what_no_rule_takes():
    settings = Settings(profile="segment")
    values = [json.dumps(one).encode() for one in (*CALLS, PAGE)]
    stamp = EVENTS[0]["ts"]
    records = [Sampled(0, stamp, b"u", value) for value in values]
    found = {each.check: each for each in judge_records(settings, records, stamp)}
    assert found["profile"][1:3] == ("ok", "segment: no rule takes 1 Page Viewed")
    found = {each.check: each for each in judge_records(settings, records[-1:], stamp)}
    assert found["profile"].level == "fail"
    assert "no record becomes an event; segment: no rule takes 1 Page Viewed" in (
        found["profile"].message
    )
