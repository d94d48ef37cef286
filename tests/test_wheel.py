"""What `pip install` of the wheel gives: its size, and what runs without extras.

CI tests the built wheel: a test that imported the source tree would prove nothing about it.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution

import pytest
from packaging.requirements import Requirement

import streameval

PACKAGE = pathlib.Path(streameval.__file__).parent
PROJECT = pathlib.Path(__file__).parent.parent / "pyproject.toml"
MOST_BYTES = 150_000_000
SLATE = (
    '{"type": "slate", "ts": "2026-01-05T12:00:00Z", "user_id": "ann", "request_id": "r1",'
    ' "variant": "A", "items": ["i1", "i2"]}\n'
)


def test_continuous_integration_imports_the_wheel_and_not_the_source_tree():
    if not os.environ.get("STREAMEVAL_TEST_WHEEL"):
        pytest.skip("`make test WHEEL=1` tests the wheel, this run the source tree")
    assert "site-packages" in PACKAGE.parts


def test_the_wheel_has_the_charts_of_the_live_page_with_their_licence():
    """npm fetches uPlot while the wheel is built; a build without npm says what the page lacks."""
    folder = PACKAGE / "web" / "static" / "uplot"
    if not os.environ.get("STREAMEVAL_TEST_WHEEL") and not folder.exists():
        pytest.skip("this source tree was installed without npm")
    assert "uPlot (v1.6" in (folder / "uPlot.iife.min.js").read_text()[:200]
    assert (folder / "uPlot.min.css").exists()
    assert "The MIT License" in (folder / "LICENSE").read_text()


def needed() -> dict[str, Distribution]:
    """The distributions that streameval needs without extras, and those that they need."""
    waiting = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    asked = [Requirement(text) for text in waiting]
    found = {}
    while asked:
        requirement = asked.pop()
        key = (requirement.name, *sorted(requirement.extras))
        if key in found:
            continue
        found[key] = distribution(requirement.name)
        for text in found[key].requires or ():
            each = Requirement(text)
            extras = ("", *requirement.extras)
            if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                asked.append(each)
    return {each.name: each for each in found.values()}


def size_of(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> pathlib.Path:
    """A folder with what an installation without extras has, as links."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "streameval").symlink_to(PACKAGE)
    for each in needed().values():
        for top in {file.parts[0] for file in each.files if file.parts[0] != ".."}:
            link = folder / top
            if not link.exists() and top != "__pycache__":
                link.symlink_to(each.locate_file(top))
    return folder


def test_without_extras_it_takes_150_megabytes_at_most():
    sizes = {
        each.name: sum(
            path.stat().st_size
            for file in each.files
            if (path := pathlib.Path(file.locate())).is_file()
        )
        for each in needed().values()
    }
    sizes["streameval"] = size_of(PACKAGE)
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])[:5]
    assert sizes["numpy"] > 10_000_000
    assert sum(sizes.values()) <= MOST_BYTES, largest
    assert not {"pyarrow", "duckdb", "matplotlib"} & set(sizes)


def run(bare: pathlib.Path, folder: pathlib.Path, *arguments: str) -> tuple[int, str, str]:
    program = (
        f"import sys; sys.path.append({str(bare)!r})\nfrom streameval.__main__ import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_worker_and_replay_run_without_extras(bare, tmp_path):
    (tmp_path / "e.jsonl").write_text(SLATE)
    code, output, errors = run(bare, tmp_path, "replay", "e.jsonl", "--json")
    assert (code, errors, json.loads(output)["watermark"]) == (0, "", 1_767_614_400_000)
    code, output, errors = run(bare, tmp_path, "worker", "--help")
    assert (code, errors, "--reset-windows" in output) == (0, "", True)


def test_the_worker_starts_without_extras(bare, tmp_path):
    """It makes all its parts; nothing is connected yet."""
    program = (
        f"import sys; sys.path.append({str(bare)!r})\n"
        "from streameval.worker import restore, worker_loop\n"
        "from streameval.config.settings import Settings\n"
        "worker_loop.open_ingest(Settings(), reset_windows=False)\n"
        "print(sorted({'pyarrow', 'duckdb'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["snapshot"], "files"),
        (["evaluate", "--list"], "evaluate"),
        (["demo"], "demo"),
        (["mcp"], "mcp"),
        (["rules", "--dashboard", "quality"], "dashboards"),
    ],
)
def test_other_commands_name_the_missing_extra(bare, tmp_path, arguments, extra):
    code, _, errors = run(bare, tmp_path, *arguments)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert f"not installed: pip install 'streameval[{extra}]'" in errors


def test_a_worker_that_is_to_write_files_says_what_that_takes(bare, tmp_path):
    (tmp_path / "streameval.yaml").write_text("outcomes: outcomes")
    cure = "writing files needs pyarrow, which is not installed: pip install 'streameval[files]'"
    expected = (2, "", f"streameval: outcomes: {cure}\n")
    assert run(bare, tmp_path, "worker", "--config", "streameval.yaml") == expected


def test_the_docs_name_every_extra():
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    page = (PROJECT.parent / "docs" / "operations.md").read_text()
    table = page.partition("| extra | adds | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras.keys()
