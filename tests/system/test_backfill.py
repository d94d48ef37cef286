"""`streameval backfill`: blocks of Prometheus that answer as one that scraped at the time."""

import contextlib
import json
import os
import pathlib
import pty
import random
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from datetime import UTC, datetime

import programs
import pytest
import servers
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from service import Worker, create_topic, produce, read_log, wait_for, wait_until_read

from streameval.base.errors import InputError
from streameval.cli.backfill import backfill
from streameval.config.load import load
from streameval.core.metrics import LIST_MEANS, RANKING, RATES
from streameval.core.replay import replay

BEGIN = 1_767_614_400_000  # 2026-01-05T12:00:00Z
MINUTE = 60_000
FIRST, LAST = BEGIN + 40 * MINUTE, BEGIN + 70 * MINUTE
CONFIG = """
windows: [{size: 5m, slide: 1m}, {size: 20m, slide: 2m}]
attribution_window: 4m
ks: [3]
"""
VARIANTS = ("A", 'a "quoted\\name"')
EMPTY = {"global": {"scrape_interval": "1s"}}


def arriving():
    """Lines in the order of arrival, up to a minute late, with the `ts` of each."""
    rng = random.Random(7)
    events = []
    for number in range(1_500):
        user, ts = f"u{rng.randrange(40)}", BEGIN + rng.randrange(80 * MINUTE)
        items = [f"i{item}" for item in rng.sample(range(20), 5)]
        event = {"type": "slate", "ts": ts, "user_id": user, "request_id": f"r{number}"}
        events.append(event | {"variant": rng.choice(VARIANTS), "items": items})
        if rng.random() < 0.6:
            delay = rng.randrange(3 * MINUTE)
            kind = rng.choice(["click", "like"])
            event = {"type": "feedback", "ts": ts + delay, "user_id": user, "feedback": kind}
            events.append(event | {"request_id": f"r{number}", "item_id": rng.choice(items)})
    events.sort(key=lambda event: event["ts"] + rng.randrange(MINUTE))
    return [(event["ts"], json.dumps(event)) for event in events]


def iso(ms):
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def command(folder, *more, begin=FIRST, end=LAST):
    options = ["--from", iso(begin), "--to", iso(end), "--output", folder / "figures.om"]
    config = ["--config", folder / "streameval.yaml"]
    return ["backfill", *map(str, [*options, *config, *more])]


def run(*arguments, program=("-m", "streameval")):
    done = subprocess.run(
        [sys.executable, *program, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def lines():
    return arriving()


@pytest.fixture(scope="module")
def files(tmp_path_factory, lines):
    """A folder with the configuration and the events in two files."""
    folder = tmp_path_factory.mktemp("backfill")
    (folder / "streameval.yaml").write_text(CONFIG)
    for name, part in (("a.jsonl", lines[:900]), ("b.jsonl", lines[900:])):
        (folder / name).write_text("".join(f"{line}\n" for _, line in part))
    return folder


@pytest.fixture(scope="module")
def read_files(files):
    return ["--files", str(files / "a.jsonl"), "--files", str(files / "b.jsonl")]


@pytest.fixture(scope="module")
def filled(files, read_files):
    """The OpenMetrics of the files, made in one go."""
    code, said, errors = run(*command(files, *read_files, "--label", "job=past"))
    assert (code, errors) == (0, ""), errors
    assert said.startswith(f"wrote {files / 'figures.om'}: 31 steps, ")
    assert f"promtool tsdb create-blocks-from openmetrics {files / 'figures.om'}" in said
    return files / "figures.om"


def ask(server, ms, names="streameval_.+"):
    """The series of a Prometheus at a time: {(name, labels): value}."""
    query = urllib.parse.urlencode({"query": f'{{__name__=~"{names}"}}', "time": ms / 1000})
    with urllib.request.urlopen(f"http://{server.address}/api/v1/query?{query}", timeout=30) as got:
        found = json.load(got)["data"]["result"]
    return {
        (each["metric"].pop("__name__"), frozenset(each["metric"].items())): float(each["value"][1])
        for each in found
    }


def figures_of(document):
    """The series of the figures in a document of `replay`, named as on /metrics."""
    found = {}
    sections = [("rates", "feedback", RATES), ("ranking", "k", RANKING), ("lists", "", LIST_MEANS)]
    for section, key, means in sections:
        for row in document[section]:
            labels = {name: row[name] for name in ("window", "basis", "variant")}
            labels |= {key: str(row[key])} if key else {}
            for mean in means:
                name = getattr(mean, "series", "") or mean.name
                for column, series in (
                    (mean.name, name),
                    (f"{mean.name}_stderr", f"{name}_stderr"),
                ):
                    if row[column] is not None:
                        value = row[column] * getattr(mean, "scale", 1.0)
                        place = (
                            f"streameval_{series}",
                            frozenset((labels | {"job": "past"}).items()),
                        )
                        found[place] = value
    return found


def test_blocks_answer_as_replay_at_those_times(files, filled, lines):
    definition = load(files / "streameval.yaml").definition()
    with servers.prometheus(json.dumps(EMPTY), openmetrics=filled) as server:
        for moment in (FIRST, FIRST + 7 * MINUTE, LAST - 4 * MINUTE, LAST):
            before = next(at for at, (ts, _) in enumerate(lines) if ts > moment)
            (files / "head.jsonl").write_text("".join(f"{line}\n" for _, line in lines[:before]))
            head = replay(definition, [str(files / "head.jsonl")], lambda _: None, at=moment)
            expected, found = figures_of(head), ask(server, moment)
            names = {name for name, _ in expected}
            assert len(names) > 20
            # Means over users agree to 1e-12: another flush adds them in another order.
            assert {place: found[place] for place in expected} == {
                place: pytest.approx(value, rel=1e-12, abs=1e-15)
                for place, value in expected.items()
            }
            # OpenMetrics cannot say that a series ends: Prometheus shows it for five minutes more.
            ended = {place for place in found if place[0] in names} - set(expected)
            assert all(("basis", "nowcast") in labels for _, labels in ended)
            shown = {(row["window"], row["basis"], row["variant"]): row for row in head["rates"]}
            for (window, basis, variant), row in shown.items():
                if basis != "nowcast":
                    labels = {"window": window, "basis": basis, "variant": variant, "job": "past"}
                    place = ("streameval_window_impressions", frozenset(labels.items()))
                    assert found[place] == row["impressions"]


def test_recorded_series_follow_from_the_blocks(filled):
    """The dashboards read the means of all workers, which the rules record."""
    rules = pathlib.Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
    with servers.prometheus(json.dumps(EMPTY), openmetrics=filled) as server:
        between = ["--start", iso(FIRST), "--end", iso(LAST), "--eval-interval", "1m"]
        where = ["--url", f"http://{server.address}", "--output-dir", "data"]
        command = [programs.need("promtool"), "tsdb", "create-blocks-from", "rules"]
        done = subprocess.run(
            [*command, *between, *where, rules],
            cwd=server.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        server.stop()
        server.start()  # it would see the new blocks by itself, but only after a minute
        found = ask(server, LAST, "job:streameval_.+:mean")
        # Rules are evaluated each minute, but not on the minute.
        raw = [ask(server, moment) for moment in (LAST - MINUTE, LAST)]
    means = {f"job:streameval_{mean.name}:mean" for mean in (*RANKING, *RATES)}
    assert means <= {name for name, _ in found}
    for (name, labels), value in found.items():
        figure = name.removeprefix("job:").removesuffix(":mean")
        figures = [each[figure, labels] for each in raw if (figure, labels) in each]
        # Prometheus 3 shows what a rule recorded of a series that has ended for a little longer.
        assert figures or ("basis", "nowcast") in labels
        near = [value == pytest.approx(one, rel=1e-12, abs=1e-15) for one in figures]
        assert any(near) or not figures, name


def test_the_file_is_sound_openmetrics(filled):
    """The strict parser refuses families and series that are not whole, and times that fall."""
    text = filled.read_text()
    families = list(text_string_to_metric_families(text))
    assert {family.type for family in families} == {"gauge"}
    times = {float(sample.timestamp) for family in families for sample in family.samples}
    assert times == {moment / 1000 for moment in range(FIRST, LAST + 1, MINUTE)}
    assert not filled.with_name("figures.om.partial").exists()


KILLED = """
import os, signal, sys
from streameval.backfill import run, work_folder
from streameval.cli.app import main

save, left = work_folder.WorkFolder.save, int(sys.argv.pop(1))
run.SAVE_SECONDS = run.SAVE_SHARE = 0

def saved(self, state):
    global left
    left -= 1
    if not left:
        self._database.commit()  # killed between the samples and the state
        os.kill(os.getpid(), signal.SIGKILL)
    return save(self, state)

work_folder.WorkFolder.save = saved
main()
"""


def test_a_killed_run_goes_on_and_writes_the_same_bytes(files, filled, read_files, tmp_path):
    expected = filled.read_bytes()
    (tmp_path / "streameval.yaml").write_text(CONFIG)
    arguments = command(tmp_path, *read_files, "--label", "job=past")
    for saves in ("3", "75", "12"):
        code, said, _ = run(*arguments, program=("-c", KILLED, saves))
        assert (code, said) == (-9, "")
        assert not (tmp_path / "figures.om").exists()
    code, _, errors = run(*arguments)
    assert (code, errors) == (0, "")
    assert (tmp_path / "figures.om").read_bytes() == expected


def on_a_terminal(*arguments, program=("-m", "streameval")):
    """The exit code of a run whose errors go to a terminal, and the shares that its bar showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, *program, *arguments]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux says so when the last writer has gone
        while more := os.read(ours, 65_536):
            shown += more
    os.close(ours)
    shares = re.findall(rb"backfill .*?(\d+)%", shown)
    return process.wait(), [int(share) for share in shares]


def test_on_a_terminal_a_bar_grows_and_a_run_that_goes_on_takes_it_to_its_end(
    filled, read_files, tmp_path
):
    (tmp_path / "streameval.yaml").write_text(CONFIG)
    arguments = command(tmp_path, *read_files, "--label", "job=past")
    code, shares = on_a_terminal(*arguments, program=("-c", KILLED, "75"))
    assert (code, shares[0]) == (-9, 0)
    assert max(shares) < 100
    code, shares = on_a_terminal(*arguments)
    assert (code, shares[-1]) == (0, 100)
    assert shares == sorted(shares)
    assert (tmp_path / "figures.om").read_bytes() == filled.read_bytes()


def test_a_folder_of_another_request_is_refused(files, read_files, tmp_path):
    (tmp_path / "streameval.yaml").write_text(CONFIG)
    run(*command(tmp_path, *read_files), program=("-c", KILLED, "2"))
    code, _, said = run(*command(tmp_path, *read_files, end=LAST + MINUTE))
    folder = tmp_path / "figures.om.partial"
    cure = "delete it, or name another --output"
    line = f"streameval: {folder} was begun with other from, to or step: {cure}\n"
    assert (code, said) == (2, line)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"end": "2098-01-01T00:00:00Z"}, "lies in the future"),
        ({"end": "2026-01-05T12:00:00Z"}, "no multiple of 1m lies in between"),
        ({"step": "10m"}, "must be from 1s to 5m"),
        ({"step": "1500ms"}, "give whole seconds"),
        ({"label": ["job"]}, "write NAME=VALUE"),
        ({"label": ["variant=A"]}, "the series have a label variant already"),
        ({"files": ["absent.jsonl"]}, "cannot be read: No such file"),
    ],
)
def test_a_wrong_request_is_refused(tmp_path, more, said):
    asked = {"begin": iso(FIRST), "end": iso(LAST), "output": tmp_path / "figures.om"}
    with pytest.raises(InputError, match=said):
        backfill(**(asked | more))


@pytest.mark.servers
def test_blocks_of_the_topic_answer_as_a_prometheus_that_scraped_the_worker(tmp_path):
    """Two partitions, compared in the pauses between three bursts of events."""
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = servers.unique()
    create_topic(kafka.port, topic, partitions=2)
    settings = {"windows": [{"size": "7d", "slide": "7d"}], "ks": [3], "attribution_window": "10s"}
    settings |= {"allowed_lateness": "1s", "dead_letter_topic": f"{topic}.dead-letter"}
    create_topic(kafka.port, f"{topic}.dead-letter", partitions=1)
    pauses = []
    with Worker(kafka.port, redis.url, topic, **settings) as worker:
        worker.wait_until_up()
        scraped = {"job_name": "now", "static_configs": [{"targets": [f"127.0.0.1:{worker.port}"]}]}
        with servers.prometheus(json.dumps(EMPTY | {"scrape_configs": [scraped]})) as server:
            for burst in range(3):
                produce(kafka.port, topic, some_events(burst))
                wait_until_read(redis.url, topic, read_log(kafka.port, topic, 2)[1])
                pauses.append(settled(server, 180 * (burst + 1)))
            live = [ask(server, moment) for moment in pauses]
        (tmp_path / "streameval.yaml").write_bytes(worker.config.read_bytes())
    begin = pauses[0] // 1000 * 1000
    arguments = command(tmp_path, "--step", "1s", begin=begin, end=pauses[-1])
    # Each partition saves its state at least once a step, so this is before the end.
    saves = str((pauses[-1] - begin) // 1000)
    assert run(*arguments, program=("-c", KILLED, saves))[0] == -9
    # It goes on with the records that it began with.
    produce(kafka.port, topic, some_events(3))
    code, _, errors = run(*arguments)
    assert (code, errors) == (0, "")
    resumed = (tmp_path / "figures.om").read_bytes()
    assert (run(*arguments)[0], (tmp_path / "figures.om").read_bytes()) == (0, resumed)
    with servers.prometheus(json.dumps(EMPTY), openmetrics=tmp_path / "figures.om") as server:
        for moment, scraped in zip(pauses, live, strict=True):
            expected = {
                (name, frozenset(pair for pair in labels if pair[0] not in {"job", "instance"})): v
                for (name, labels), v in scraped.items()
            }
            found = ask(server, moment)
            names = {name for name, _ in found}
            assert {"streameval_ndcg", "streameval_positive_rate"} < names
            assert found == {place: v for place, v in expected.items() if place[0] in names}
    assert len({json.dumps(sorted(map(str, each.items()))) for each in live}) == 3


def some_events(burst):
    now = round(time.time() * 1000)
    for number in range(60):
        user = f"u{burst}-{number % 20}"
        common = {"user_id": user, "request_id": f"r{burst}-{number}"}
        slate = {"type": "slate", "ts": now + number, "variant": "AB"[number % 2], **common}
        yield user.encode(), json.dumps(slate | {"items": ["i1", "i2", "i3"]}).encode()
        if number % 3 == 0:
            click = {"type": "feedback", "ts": now + number, "feedback": "click", **common}
            yield user.encode(), json.dumps(click | {"item_id": f"i{1 + number % 2}"}).encode()


def settled(server, impressions):
    """A whole second at which figures of so many have stayed the same over three scrapes."""
    seen = []

    def same():
        now = int(time.time()) * 1000
        figures = {
            place: value
            for place, value in ask(server, now).items()
            if place[0] == "streameval_window_impressions"
        }
        if not seen or seen[-1][1] != figures:
            seen[:] = []
        if not seen or seen[-1][0] < now:
            seen.append((now, figures))
        live = sum(value for (_, labels), value in figures.items() if ("basis", "live") in labels)
        return len(seen) > 3 and live == impressions

    wait_for(same, 60, "the figures stand still")
    return seen[-2][0]
