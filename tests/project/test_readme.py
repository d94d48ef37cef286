"""README and docs are true: examples run, names and links exist, messages are those of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer
import yaml
from default_events import Impression, SlateEvent, decode
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from streameval.base.errors import StreamevalError
from streameval.cli.app import INTERRUPTED, app
from streameval.cli.experiment import GATE
from streameval.config.settings import PREFIX, SECRETS, Settings
from streameval.core.events import REASONS, Rejection
from streameval.web import exposition
from streameval.web.forward_page import Families, ForwardStatus
from streameval.worker.shutdown import EXIT_UNFLUSHED

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
EVENTS = ROOT / "docs" / "events.md"
OPERATIONS = ROOT / "docs" / "operations.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "streameval"
# These ask for variables of the environment.
ASKING = ("conftest", "programs", "web/test_exposition")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


# --- Examples -------------------------------------------------------------------------------------


def test_every_example_of_an_event_is_one():
    kinds = [type(decode(text.encode(), None, 0)) for text in blocks(EVENTS, "json")]
    assert Rejection not in kinds
    assert {SlateEvent, Impression} < set(kinds)


def test_every_example_of_a_rejection_is_rejected_for_that_reason():
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", EVENTS.read_text(), re.MULTILINE)
    found = [
        (reason, text)
        for reason, cell in rows
        if reason in REASONS
        for text in re.findall(r"`([^`]*)`", cell)
    ]
    assert len(found) > 5
    for reason, text in found:
        assert decode(text.encode(), None, 0)[0] == reason, text


# --- Names ----------------------------------------------------------------------------------------

COMMAND = r"(?:^|/|[|] )streameval ([a-z]+(?:-[a-z]+)*)\b([^`#\n]*)"


@pages
def test_every_command_and_option_of_the_docs_exists(page):
    commands = typer.main.get_command(app).commands
    for name, rest in re.findall(COMMAND, code_of(page), re.MULTILINE):
        assert name in commands, name
        # `evaluate` builds its options when it is used.
        parameters = commands[name].get_params(typer.Context(commands[name]))
        known = {option for parameter in parameters for option in parameter.opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest.split("|")[0])) <= known, (name, rest)


@pages
def test_every_make_target_of_the_docs_exists(page):
    targets = re.findall(r"^([\w-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make ([\w-]+)", code_of(page), re.MULTILINE)) <= set(targets)


def code_of(page: Path) -> str:
    """What stands in code on a page: spans, fenced and indented blocks, one a line."""
    text = page.read_text()
    fenced = [
        block for _, block in re.findall(r"^```(sh|ini)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4,}(.*)$", prose, re.MULTILINE)
    return "\n".join([*fenced, *indented, *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)])


def forward_page() -> str:
    """What `/metrics` of `streameval forward` shows."""
    registry = CollectorRegistry()
    registry.register(Families(lambda: ForwardStatus("", {"calls": {}})))
    return exposition.page(registry, "")[0].decode()


@pages
def test_every_series_of_the_docs_exists(page):
    golden = (ROOT / "tests" / "golden" / "metrics.prom").read_text(encoding="utf-8")
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    known = set(re.findall(r"streameval_\w+", golden + rules + forward_page()))
    assert set(re.findall(r"\bstreameval_[a-z]\w+", page.read_text())) <= known


def test_the_first_screen_shows_lines_as_prometheus_reads_them():
    """Series with labels that `/metrics` has, and the two commands, within a screen."""
    (lines,) = blocks(README, "text")
    golden = (ROOT / "tests" / "golden" / "metrics.prom").read_text(encoding="utf-8")
    known = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(golden)
        for sample in family.samples
    }
    shown = [s for family in text_string_to_metric_families(lines) for s in family.samples]
    assert len(shown) == len(lines.splitlines()) == 5
    for sample in shown:
        assert known[sample.name] == set(sample.labels)
    screen = "\n".join(README.read_text().splitlines()[:35])
    assert re.findall(r"^make .*$", screen, re.MULTILINE) == ["make demo", "make test"]
    assert len(README.read_text().splitlines()) < 75


@pages
def test_every_variable_of_the_docs_sets_something(page):
    keys = {f"{PREFIX}{key.upper()}" for key in Settings.model_fields}
    keys |= {f"{PREFIX}{key.upper()}_FILE" for key in SECRETS}
    keys |= {f"{PREFIX}CONFIG", PREFIX}
    tests = "".join((ROOT / "tests" / f"{name}.py").read_text() for name in ASKING)
    keys |= set(re.findall(rf"\b{PREFIX}(?:SEED\w*|GOLDEN|TEST_PROGRAMS|KAFKA_LIBS)", tests))
    assert set(re.findall(rf"\b{PREFIX}\w*", page.read_text())) <= keys


@pages
def test_every_link_of_the_docs_leads_somewhere(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-").strip("-")
        for heading in headings
    }


def test_every_module_has_its_place_in_the_architecture():
    text = ARCHITECTURE.read_text()
    summed_up = {"cli", "demo", "checks"}  # by one row: a command, a check
    for layer in SOURCE.iterdir():
        if layer.is_dir() and layer.name not in summed_up:
            for path in layer.glob("*.py"):
                assert path.stem == "__init__" or re.search(rf"[`/]{path.stem}\b", text), path


def test_the_ways_through_the_code_name_what_there_is():
    """Each `Class.method` and each `package/module` of the two walks."""
    walks = ARCHITECTURE.read_text().split("## The way of a record")[1].split("\n## Layers")[0]
    methods = {
        f"{node.name}.{part.name}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    named = set(re.findall(r"`([A-Z]\w+\.\w+)`", walks))
    assert len(named) > 10
    assert named <= methods
    for module in re.findall(r"`(\w+(?:/\w+)+)`", walks):
        assert (SOURCE / f"{module}.py").is_file() or (SOURCE / module).is_dir(), module


def test_every_test_that_the_docs_name_exists():
    for page in PAGES:
        for name in re.findall(r"tests/\w+\.py", page.read_text()):
            assert (ROOT / name).is_file(), name


# --- Messages -------------------------------------------------------------------------------------

LOGGED = {"warning", "error", "critical", "say"}
RAISED = {"RefusedError", "UnusableStateError", "UnreachableError"}


def template(node: ast.expr) -> str:
    """A string in the code with … for what is filled in; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%\S", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" for part in node.values)
    return ""


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [
        (getattr(node.func, "attr", getattr(node.func, "id", "")), node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]


def templates(*, of_a_worker: bool) -> set[str]:
    """Texts of the code: all, or those with which a worker warns or ends."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if not of_a_worker:
            found |= {template(node) for node in ast.walk(tree) if isinstance(node, ast.expr)}
        elif path.stem == "checkpoint" or (path.parent.name == "stream" and path.stem != "tools"):
            found |= {
                template(call.args[0])
                for name, call in calls(tree)
                if name in LOGGED | RAISED and call.args
            }
    # What only frames another message has no words of its own.
    return {text for text in found if len(re.findall(r"[a-z]", text)) > 5}


def documented() -> dict[str, list[str]]:
    """Messages of the runbook, and the parts that a text of the code has to hold in this order."""
    section = OPERATIONS.read_text().partition("## Messages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    return {row: [part.strip(" :") for part in row.split("…")] for row in rows}


def holds(text: str, parts: list[str]) -> bool:
    """Whether a text holds all parts, one behind the other."""
    end = 0
    for part in parts:
        begin = text.find(part, end)
        if begin < 0:
            return False
        end = begin + len(part)
    return True


def test_every_message_of_the_runbook_is_one_of_the_code():
    texts = templates(of_a_worker=False)
    messages = documented()
    assert len(messages) > 20
    gone = [row for row, parts in messages.items() if not any(holds(text, parts) for text in texts)]
    assert gone == []


def test_every_warning_and_refusal_of_a_worker_has_its_cure_in_the_runbook():
    messages = documented().values()
    missing = [
        text
        for text in templates(of_a_worker=True)
        if not any(holds(text, parts) for parts in messages)
    ]
    assert missing == []


def test_exit_codes_of_the_runbook_are_those_of_the_code():
    _, _, table = OPERATIONS.read_text().partition("| exit code | meaning |")
    rows = re.findall(r"^\| (\d+) \| ", table.partition("\n\n")[0], re.MULTILINE)
    of_errors = {each.exit_code for each in _family(StreamevalError)}
    others = {*GATE.values(), EXIT_UNFLUSHED, INTERRUPTED}
    assert [int(code) for code in rows] == sorted(of_errors | others)


def _family(kind: type[StreamevalError]) -> set[type[StreamevalError]]:
    return {kind}.union(*map(_family, kind.__subclasses__()))


def test_make_screenshots_takes_every_picture_and_each_is_small_enough_to_load_at_once():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs").glob("*.png")}
    program = (ROOT / "tests/screenshots.py").read_text()
    assert set(re.findall(r'save\(.*"([\w-]+\.png)"\)', program)) == sizes.keys()
    assert max(sizes.values()) < 200_000


def test_the_compose_file_is_named_as_the_docs_say():
    assert "worker" in yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
