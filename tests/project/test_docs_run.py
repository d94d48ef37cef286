"""Every block of README and docs runs as it is written: a test for each, by its language.

Only names of servers, and the folders /data, /etc/streameval and /opt, are replaced by those of the
test. What runs until it is stopped (`worker`, `make demo`) is stopped when it has done something.
"""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import duckdb
import programs
import pyarrow.parquet as pq
import pytest
import servers
import snapshots
from default_events import DIMENSIONS, decode

from streameval.base import yaml_file
from streameval.checks import specification
from streameval.config.load import load
from streameval.config.settings import PREFIX
from streameval.core.events import Rejection
from streameval.core.outcome import FeedbackOutcome, Outcome
from streameval.files.outcome_files import table
from streameval.kafka.admin import create_topics, delete_topics, sample

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {"text"}  # drawings, formulas and output: nothing that could run
WAIT = 240
TOPICS = {"recsys-events": 1, "recsys-events.dead-letter": 1}


class Block(NamedTuple):
    """A fenced block: its page, the line it begins at, its language and its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}:{self.language}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page; within a list they are indented."""
    found = re.finditer(r"^( *)```(\w+)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [
        Block(
            page,
            page.read_text()[: match.start()].count("\n") + 1,
            match[2],
            re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE),
        )
        for match in found
    ]


BLOCKS = [block for page in PAGES for block in blocks(page)]


def of(*languages: str, but: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """A test for each block in one of the languages, but those of some pages."""
    chosen = [
        block for block in BLOCKS if block.language in languages and block.page.name not in but
    ]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.name)


def test_every_block_has_a_language_that_a_test_runs() -> None:
    tested = {"sh", "console", "python", "java", "sql", "yaml", "json", "promql", "conf", "ini"}
    assert {block.language for block in BLOCKS} <= tested | TEXT
    for page in PAGES:
        prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert prose.count("```") == 0, f"{page.name}: a block without a language"
        assert not re.findall(r"(?:^|\n)\n(?: {4,}\S.*\n)+\n", prose), f"{page.name}: indented code"


# --- The scene ------------------------------------------------------------------------------------

SHIMS = {
    "kafka-topics.sh": "exec java -cp {jars} org.apache.kafka.tools.TopicCommand {arguments}",
    "kafka-acls.sh": "exec java -cp {jars} org.apache.kafka.tools.AclCommand {arguments}",
    "kafka-delete-records.sh": (
        "exec java -cp {jars} org.apache.kafka.tools.DeleteRecordsCommand {arguments}"
    ),
    "redis-cli": "exec {redis_cli} -p {redis_port} {arguments}",
    # A worker runs until it is stopped: here when it has counted the event that was sent.
    "streameval": (
        'if [[ $1 != worker ]]; then exec {python} -m streameval "$@"; fi\n'
        '{python} -m streameval "$@" &\n'
        "for _ in {{1..300}}; do\n"
        "  redis-cli --scan --pattern 'streameval:*:user:u42' | grep -q . && break\n"
        "  sleep 0.2\n"
        "done\n"
        "kill -TERM $!\n"
        "wait $!"
    ),
}


class Scene:
    """Servers, a folder, and programs that find both."""

    def __init__(self, folder: Path, kafka: servers.Server, redis: servers.Server) -> None:
        self.folder, self.kafka, self.redis = folder, kafka, redis
        here = folder / "bin"
        here.mkdir()
        # What a page calls is what tests start, whatever comes first on PATH.
        for name in programs.PROGRAMS.keys() - SHIMS.keys():
            if (found := programs.find(name)) is not None:
                (here / name).symlink_to(found)
        for name, text in SHIMS.items():
            filled = text.format(
                jars=shlex.quote(f"{programs.KAFKA_LIBS}/*"),
                redis_cli=programs.need("redis-cli"),
                redis_port=redis.port,
                python=shlex.quote(sys.executable),
                arguments='"$@"',
            )
            (here / name).write_text(f"#!/bin/bash\n{filled}\n")
            (here / name).chmod(0o755)
        # What `make test` was called with is not for a `make` of the docs.
        ours = (PREFIX, "MAKE", "MFLAGS", "VENV", "WHEEL", "ARGS", "PROCESSES")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        self.environment = clean | {"PATH": f"{here}:{clean['PATH']}", "PYTHONUTF8": "1"}
        self.environment["STREAMEVAL_LISTEN"] = "127.0.0.1:0"
        self.environment.setdefault("PYTHONPATH", "" if "PYTHONSAFEPATH" in clean else str(ROOT))

    def placed(self, text: str) -> str:
        """A text with the servers and folders of this scene."""
        text = re.sub(
            r"(?:kafka(?:-\d)?|localhost):9092(?:,kafka-\d:9092)*", self.kafka.address, text
        )
        text = re.sub(r"rediss://\w+@redis-1:6379/0", self.redis.url, text)
        text = text.replace("--replication-factor 3", "--replication-factor 1")
        for folder in ("/data", "/etc/streameval", "/opt/streameval"):
            text = text.replace(folder, f"{self.folder}{folder}")
        return text

    def run(self, script: str, *, where: Path | None = None) -> str:
        """Run a script as a person's shell would; gives what it printed."""
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", self.placed(script)],
            cwd=where or self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


THAT_MORNING = 1_769_842_800_000  # 31 January 2026, 07:00 UTC


def outcome(number: int, begin: int = THAT_MORNING) -> Outcome:
    """A slate soon after `begin` (ms), with a click on the first of two items where it is odd."""
    return Outcome(
        offset=number,
        user=f"u{number % 7}",
        request=f"r{number}",
        labels=("AB"[number % 2], "home"),
        time=begin + number * 1_000,
        items=[f"i{number % 5}", "i9"],
        positions=[1, 2],
        ranks=[1, 2],
        shown=[begin + number * 1_000] * 2,
        scores=[0.5, 0.25],
        propensities=[None, None],
        gains=[float(number % 2), 0.0],
        feedback=[FeedbackOutcome(0, "click", 1.0, 2_000, retract=False)] * (number % 2),
    )


def fill(folder: Path) -> None:
    """Write the files that the blocks name."""
    for name in (
        "data/outcomes/dt=2026-01-31/hour=07",
        "data/days",
        "data/snapshots",
        "outcomes",
        "fresh",
    ):
        (folder / name).mkdir(parents=True)
    rows = table(0, [outcome(number) for number in range(40)], DIMENSIONS)
    pq.write_table(rows, folder / "data/outcomes/dt=2026-01-31/hour=07/p0-0-40-a.parquet")
    pq.write_table(rows, folder / "outcomes/p0-0-40-a.parquet")
    hour_ago = time.time_ns() // 1_000_000 - 3_600_000
    fresh = table(0, [outcome(number, hour_ago) for number in range(40)], DIMENSIONS)
    pq.write_table(fresh, folder / "fresh/p0-0-40-a.parquet")
    (folder / "etc/streameval").mkdir(parents=True)
    files = {
        "etc/streameval/checks.yaml": "",
        "checks.yaml": "",
        "run.txt": "q1 Q0 d1 1 2.0 x\nq1 Q0 d2 2 1.0 x\nq2 Q0 d2 1 1.0 x\n",
        "other-run.txt": "q1 Q0 d2 1 2.0 x\nq1 Q0 d1 2 1.0 x\nq2 Q0 d2 1 1.0 x\n",
        "qrels.txt": "q1 0 d2 1\nq2 0 d2 1\n",
        "labels.csv": "list,item\nu1,b\nu2,b\n",
        "slates.csv": "list,item,rank\nu1,a,1\nu1,b,2\nu2,b,1\nu2,a,2\n",
        "other-slates.csv": "list,item,rank\nu1,b,1\nu1,a,2\nu2,b,1\nu2,a,2\n",
        "categories.csv": "item,feature\na,red\nb,blue\n",
        "test.csv": "user,item,rating\nu,i,4\nu,j,3\nv,i,5\n",
        "model.csv": "user,item,prediction\nu,i,3\nu,j,3\nv,i,4\n",
        "other-model.csv": "user,item,prediction\nu,i,4\nu,j,3\nv,i,5\n",
        "events.jsonl": "".join(
            json.dumps(json.loads(block.text)) + "\n"
            for block in BLOCKS
            if (block.page.name, block.language) == ("events.md", "json")
        ),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    before = {f"u{user}": snapshots.Counters(10, 5, user, THAT_MORNING - 1) for user in range(7)}
    snapshots.write_snapshot(folder / "before", before)
    duckdb.execute(f"COPY (FROM '{folder}/slates.csv') TO '{folder}/slates.parquet'")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("docs")
    fill(folder)
    rights = {
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    with servers.kafka(**rights) as kafka, servers.redis() as redis:
        asyncio.run(create_topics({"bootstrap_servers": kafka.address}, TOPICS))
        yield Scene(folder, kafka, redis)


# --- Programs -------------------------------------------------------------------------------------


def repository(folder: Path) -> Path:
    """What a clone holds that the README needs, with an environment that is made already.

    The environment of the tests stands in for the one that `make demo` would install for a minute.
    """
    clone = folder / "clone"
    clone.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements-demo.lock"):
        shutil.copy(ROOT / name, clone / name)
    made = clone / ".venv" / "bin"
    made.mkdir(parents=True)
    here = Path(sys.executable).parent
    for program in here.iterdir():
        (made / program.name).symlink_to(program)
    for stamp in (".demo", "activate", "streameval"):
        (made / stamp).unlink(missing_ok=True)
    (made / ".demo").touch()
    activate = (here / "activate").read_text()
    activate = re.sub(r"""(VIRTUAL_ENV=)["'/].*""", rf'\1"{made.parent}"', activate)
    (made / "activate").write_text(activate)
    (made / "streameval").symlink_to(folder / "bin" / "streameval")
    return clone


@pytest.mark.servers
def test_the_blocks_of_the_readme_and_the_start_run_from_top_to_bottom(scene: Scene) -> None:
    start = blocks(ROOT / "docs" / "start.md")
    readme = [block for block in blocks(ROOT / "README.md") if block.language == "sh"] + start
    (settings,) = [block.text for block in readme if block.language == "yaml"]
    example, service = "streameval replay", "streameval worker"
    scripts = [block.text for block in readme if block.language == "sh"]
    marked = []
    for script in scripts:
        if script.startswith("make demo"):
            # It has no end of its own, and within five seconds no verdict yet.
            marked.append('make demo ARGS="--seconds 5" >demo.txt || test -s demo.txt\n')
        elif script == "make test\n":
            # `.ci/run` has just run it, in a clone of its own.
            assert re.search("^newcomer make test ", (ROOT / ".ci/run").read_text(), re.MULTILINE)
        elif service in script:
            # After the configuration that stands above these commands.
            marked.append(f"cat > streameval.yaml <<'END'\n{settings}END\n{script}")
        else:
            marked.append(f"echo '<<<'\n{script}\necho '>>>'\n" if example in script else script)
    assert any(service in script for script in scripts)
    scene.run("redis-cli FLUSHALL")
    send_an_event_of_u42(scene)
    printed = scene.run("".join(marked), where=repository(scene.folder))
    (expected,) = [block.text for block in readme if block.language == "text"]
    found = printed.partition("<<<\n")[2].partition(">>>")[0]
    assert [line.rstrip() for line in found.rstrip().splitlines()] == [
        line.rstrip() for line in expected.rstrip().splitlines()
    ]
    assert "u42" in printed


def send_an_event_of_u42(scene: Scene) -> None:
    """Run the example of the docs that sends one, so that a worker has something to count."""
    (block,) = [
        each for each in BLOCKS if (each.page.name, each.language) == ("events.md", "python")
    ]
    run_python(scene, block)


def run_python(scene: Scene, block: Block) -> str:
    done = subprocess.run(
        [sys.executable, "-"],
        input=scene.placed(block.text),
        cwd=scene.folder,
        env=scene.environment,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(scene: Scene) -> list:
    client = {"bootstrap_servers": scene.kafka.address}
    return asyncio.run(sample(client, "recsys-events", 100))[1]


@pytest.mark.servers
@of("python", but=("evaluate.md", "notebooks.md", "api.md"))
def test_a_program_in_python_runs(scene: Scene, block: Block) -> None:
    before = len(records(scene))
    printed = run_python(scene, block)
    if block.page.name == "events.md":
        assert_an_event(records(scene)[before:])
    else:
        assert printed.strip()


@pytest.mark.servers
@of("java")
def test_a_program_in_java_runs(scene: Scene, block: Block) -> None:
    programs.need("javac")
    before = len(records(scene))
    program = (
        "import java.util.Properties;\nimport org.apache.kafka.clients.producer.*;\n"
        "import org.apache.kafka.common.serialization.StringSerializer;\n"
        "public class Example { public static void main(String[] arguments) {\n"
        f"{block.text}}} }}\n"
    )
    (scene.folder / "Example.java").write_text(scene.placed(program))
    jars = shlex.quote(f"{programs.KAFKA_LIBS}/*")
    scene.run(f"javac -cp {jars} Example.java && java -cp .:{jars} Example")
    assert_an_event(records(scene)[before:])


def assert_an_event(found: list) -> None:
    """One record was sent: an event, keyed by its user."""
    (record,) = found
    event = decode(record.value, record.timestamp, 60_000)
    assert not isinstance(event, Rejection), event
    assert record.key == event.user_id.encode()


@pytest.mark.servers
@of("sh", but=("README.md", "start.md", "api.md"))
def test_a_script_runs(scene: Scene, block: Block) -> None:
    script = block.text
    scene.run("redis-cli FLUSHALL")  # of another test's topics and definition
    if "pip install" in script:
        # A minute of installing, which is what `make venv` does in CI.
        assert "--require-hashes --requirement requirements.lock" in script
        assert (ROOT / "requirements.lock").is_file()
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        return
    if "kafka-topics.sh" in script:
        asyncio.run(delete_topics({"bootstrap_servers": scene.kafka.address}, [*TOPICS]))
    for name in ("kcat", "promtool"):
        if name in script:
            programs.need(name)
    if "offset" in script:
        for _ in range(3):
            send_an_event_of_u42(scene)
        script = script.replace("962", "1")  # that many there are
    settings = "kafka: kafka:9092\nredis: rediss://streameval@redis-1:6379/0\n"
    if "streameval check" in script:
        settings += "outcomes: fresh\n"
    if "--gate" in script:
        arms = "arm: variant, control: A, primary: ndcg@10"
        settings += f"experiments: [{{name: ranker-v2, {arms}}}]\n"
    (scene.folder / "streameval.yaml").write_text(scene.placed(settings))
    if "streameval user" in script:
        send_an_event_of_u42(scene)
        scene.run("streameval worker --config streameval.yaml\n")
        script = script.replace("user u42", "user u42 --config streameval.yaml")
    scene.run(script)


@pytest.mark.servers
@of("console")
def test_the_commands_of_a_session_run(scene: Scene, block: Block) -> None:
    for line in block.text.splitlines():
        assert line.startswith("$ ")
        assert scene.run(line.removeprefix("$ ")), line


# --- Texts that programs read ---------------------------------------------------------------------


@of("yaml")
def test_a_configuration_is_good(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(variable)
    fill(tmp_path)
    path = tmp_path / "block.yaml"
    path.write_text(re.sub(r"(/data|/etc/streameval)", rf"{tmp_path}\1", block.text))
    keys = yaml_file.read(path, "")
    if "sample_ratio" in keys:
        specification.load(path)
    else:
        load(path)


@of("json")
def test_an_example_in_json_is_sound(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.servers
@of("sql")
def test_a_query_runs(scene: Scene, block: Block) -> None:
    assert duckdb.execute(scene.placed(block.text)).fetchall()


@of("promql")
def test_a_query_of_prometheus_is_sound(block: Block, tmp_path: Path) -> None:
    tool = programs.need("promtool")
    rules = {"groups": [{"name": "docs", "rules": [{"record": "a:b", "expr": block.text}]}]}
    (tmp_path / "rules.yml").write_text(json.dumps(rules))
    subprocess.run([tool, "check", "rules", "rules.yml"], cwd=tmp_path, check=True)


@pytest.mark.servers
@of("conf")
def test_redis_starts_with_these_settings(block: Block) -> None:
    options = dict(line.split(" ", 1) for line in block.text.splitlines())
    policy = options.pop("maxmemory-policy")
    assert options.pop("appendonly") == "yes"
    with servers.redis(policy=policy, aof=options.pop("appendfsync")) as redis:
        assert redis.url
    assert options == {}


@of("ini")
def test_a_unit_of_systemd_can_be_read(block: Block) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string(block.text)
    assert unit["Service"]["ExecStart"].split()[1] == "worker"
