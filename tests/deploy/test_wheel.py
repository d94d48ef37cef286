"""What `pip install` of the wheel gives: its size, and what runs without extras.

CI tests the built wheel: a test that imported the source tree would prove nothing about it.
"""

import collections
import collections.abc
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import typing
import venv

import programs
import pytest
import servers

import streameval

PACKAGE = pathlib.Path(streameval.__file__).parent
ROOT = pathlib.Path(__file__).parents[2]
PROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
MOST_BYTES = 150_000_000
SLATE = (
    '{"type": "slate", "ts": "2026-01-05T12:00:00Z", "user_id": "ann", "request_id": "r1",'
    ' "variant": "A", "items": ["i1", "i2"]}\n'
)


of_the_wheel = pytest.mark.skipif(
    not os.environ.get("STREAMEVAL_TEST_WHEEL"),
    reason="`make test WHEEL=1` tests the wheel, this run the source tree",
)


@of_the_wheel
def test_continuous_integration_imports_the_wheel_and_not_the_source_tree():
    assert "site-packages" in PACKAGE.parts


@of_the_wheel
def test_the_wheel_has_the_files_of_the_source_tree_byte_for_byte():
    """CI runs tests without servers on the source tree; so they hold for the wheel as well."""

    def content(folder):
        files = (path for path in folder.rglob("*") if path.is_file())
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if path.suffix != ".pyc"
        }

    found = content(PACKAGE)
    assert len(found) > 300
    packed = gzip.compress((ROOT / "docs/operations.md").read_bytes(), mtime=0)
    runbook = {"web/operations.md.gz": hashlib.sha256(packed).hexdigest()}
    assert found == content(ROOT / "streameval") | runbook


def test_the_wheel_has_the_charts_of_the_live_page_with_their_licence():
    """npm fetches uPlot while the wheel is built; a build without npm says what the page lacks."""
    folder = PACKAGE / "web" / "static" / "uplot"
    if not os.environ.get("STREAMEVAL_TEST_WHEEL") and not folder.exists():
        pytest.skip("this source tree was installed without npm")
    assert "uPlot (v1.6" in (folder / "uPlot.iife.min.js").read_text()[:200]
    assert (folder / "uPlot.min.css").exists()
    assert "The MIT License" in (folder / "LICENSE").read_text()


def pip(python: pathlib.Path, *arguments: str) -> None:
    """Run pip as a person would, with its cache; skip without a registry that answers."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode and "connection broken" in done.stderr:
        programs.absent("no package registry answers")
    assert done.returncode == 0, done.stderr


def environment() -> dict[str, str]:
    """Our environment without what would let Python find the source tree."""
    ours = ("PYTHON", "STREAMEVAL_")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)}


def built_wheel(folder: pathlib.Path) -> pathlib.Path:
    """The wheel that `make WHEEL=1` built and installed, or one of a copy of the source tree."""
    built = ROOT / "dist"
    if not os.environ.get("STREAMEVAL_TEST_WHEEL"):
        # A build fetches uPlot into the tree that it builds, and ours stays as it is.
        copy, built = folder / "tree", folder / "dist"
        unwanted = shutil.ignore_patterns("__pycache__", "uplot")
        for name in ("streameval", ".ci/npm"):
            shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
        (copy / "docs").mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE", "docs/operations.md"):
            shutil.copy(ROOT / name, copy / name)
        pip(pathlib.Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", built, copy)
    [wheel] = built.glob("streameval-*.whl")
    return wheel


def bytes_by_name(folder: pathlib.Path) -> collections.Counter[str]:
    """The bytes of files below a folder, by what lies directly in it."""
    sizes: collections.Counter[str] = collections.Counter()
    for file in folder.rglob("*"):
        if file.is_file():
            sizes[file.relative_to(folder).parts[0]] += file.stat().st_size
    return sizes


class Bare(typing.NamedTuple):
    """A new virtual environment with the wheel and no extras."""

    programs: pathlib.Path
    sizes: collections.Counter[str]  # bytes that the installation added to site-packages

    def run(self, folder: pathlib.Path, *arguments: str, program: str = "streameval"):
        """Run a program of the environment in a folder; gives its code, output and errors."""
        done = subprocess.run(
            [self.programs / program, *arguments],
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment(),
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


slow = pytest.mark.slow  # installing takes a minute


@pytest.fixture(scope="module")
def bare() -> collections.abc.Iterator[Bare]:
    """Install the wheel with the locked versions, which the cache of pip has from `make venv`.

    Bytecode holds the path of each file, so the folder has a short one, as in an image.
    """
    with tempfile.TemporaryDirectory() as short:
        yield installed(pathlib.Path(short))


def installed(folder: pathlib.Path) -> Bare:
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    [packages] = (folder / "venv" / "lib").glob("python3.*/site-packages")
    before = bytes_by_name(packages)
    # A constraint with hashes would ask for the hash of the wheel as well.
    versions = re.findall(r"^\w\S*==[^\\\n]+", LOCK.read_text(), re.MULTILINE)
    (folder / "versions.txt").write_text("\n".join(versions))
    pip(python, "install", "--constraint", folder / "versions.txt", built_wheel(folder))
    pip(python, "check")
    return Bare(python.parent, bytes_by_name(packages) - before)


@slow
def test_without_extras_it_takes_150_megabytes_at_most(bare):
    assert 10_000_000 < bare.sizes["numpy"] < bare.sizes.total() <= MOST_BYTES, (
        bare.sizes.most_common(5)
    )
    assert bare.sizes["streameval"] > 1_000_000
    assert not {"pyarrow", "duckdb", "matplotlib"} & set(bare.sizes)


@slow
def test_help_and_replay_run_without_extras(bare, tmp_path):
    code, output, errors = bare.run(tmp_path, "--help")
    assert (code, errors, "replay" in output) == (0, "", True)
    (tmp_path / "e.jsonl").write_text(SLATE)
    code, output, errors = bare.run(tmp_path, "replay", "e.jsonl", "--json")
    assert (code, errors, json.loads(output)["watermark"]) == (0, "", 1_767_614_400_000)
    code, output, errors = bare.run(tmp_path, "worker", "--help")
    assert (code, errors, "--reset-windows" in output) == (0, "", True)


@slow
def test_the_worker_starts_without_extras(bare, tmp_path):
    """It makes all its parts; nothing is connected yet."""
    program = (
        "import pathlib, sys\n"
        "import streameval.worker.app\n"
        "from streameval.worker import restore, worker_loop\n"
        "from streameval.config.settings import Settings\n"
        "worker_loop.open_ingest(Settings(), reset_windows=False)\n"
        "print(pathlib.Path(streameval.__file__).is_relative_to(sys.prefix))\n"
        "print(sorted({'pyarrow', 'duckdb'} & set(sys.modules)))"
    )
    assert bare.run(tmp_path, "-c", program, program="python") == (0, "True\n[]\n", "")


@slow
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["snapshot"], "files"),
        (["evaluate", "--list"], "evaluate"),
        (["demo"], "demo"),
        (["mcp"], "mcp"),
    ],
)
def test_other_commands_name_the_missing_extra(bare, tmp_path, arguments, extra):
    code, _, errors = bare.run(tmp_path, *arguments)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert re.search(rf"not installed: pip install \S+\.whl\[{extra}\]", errors), errors


@slow
def test_dashboards_need_no_extra(bare, tmp_path):
    code, text, _ = bare.run(tmp_path, "rules", "--dashboard", "quality")
    assert (code, json.loads(text)["uid"]) == (0, "streameval-quality")


@slow
@pytest.mark.parametrize("arguments", [["user", "u1"], ["experiment", "e", "--gate"]])
def test_commands_that_look_at_a_service_run_without_extras(bare, tmp_path, arguments):
    """They get as far as the servers."""
    experiment = {"name": "e", "arm": "variant", "control": "A", "primary": "ndcg@10"}
    address = f"127.0.0.1:{servers.free_port()}"
    config = {"kafka": address, "experiments": [experiment]}
    (tmp_path / "streameval.yaml").write_text(json.dumps(config))
    code, _, errors = bare.run(tmp_path, *arguments, "--config", "streameval.yaml")
    assert (code, f"Kafka at {address} does not answer" in errors) == (3, True), errors


@slow
def test_a_worker_that_is_to_write_files_says_what_that_takes(bare, tmp_path):
    (tmp_path / "streameval.yaml").write_text("outcomes: outcomes")
    code, said, errors = bare.run(tmp_path, "worker", "--config", "streameval.yaml")
    cure = r"writing files needs pyarrow, which is not installed: pip install \S+\.whl\[files\]'?"
    assert (code, said) == (2, "")
    assert re.fullmatch(f"streameval: outcomes: {cure}\n", errors), errors


def test_the_docs_name_every_extra():
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page.partition("| extra | adds | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras.keys()
