"""CI's script says how long it took, and walks the newcomer's way; tiers leave nothing out."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import conftest
import programs
import pytest
import yaml

ROOT = Path(__file__).parents[2]
RUN = ROOT / ".ci" / "run"


def test_a_failed_run_says_how_long_it_took(tmp_path):
    """On a machine without any tool it can install nothing, and ends at once."""
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    command = [shutil.which("bash"), str(RUN)]
    run = subprocess.run(
        command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert re.fullmatch(r"\d+ s in all", run.stdout.splitlines()[-1])


def test_the_newcomer_runs_both_commands_of_the_readme_among_look_alikes():
    script = RUN.read_text()
    readme = re.findall(r"^make (?:demo|test)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert re.findall(r"^newcomer (make \w+)", script, re.MULTILINE) == readme
    looked_alike = re.search(r"^for name in (.*?); do$", script, re.MULTILINE | re.DOTALL)[1]
    names = looked_alike.replace("\\\n", " ").split()
    every = programs.PROGRAMS | programs.BUILDING
    assert set(names) >= every.keys() | {"moto_server"}


def test_the_workflow_runs_the_commands_of_the_readme_and_of_ci():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    commands = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    readme = re.findall(r"^make test$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == [*readme, "bash .ci/run"]
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert hook["entry"] == "make lint"
    assert re.search("^lint:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    wanted = {"pip": "requirements.lock", "npm": "package.json", "docker": "Dockerfile"}
    for update in updates:
        folder, system = update["directory"].lstrip("/"), update["package-ecosystem"]
        assert (ROOT / folder / wanted.get(system, ".github/workflows")).exists()
    for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir():
        assert {"name", "description", "body"} <= yaml.safe_load(path.read_text()).keys()


def test_a_test_is_fast_by_what_its_file_and_helpers_import(tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "HERE", tmp_path)
    files = {
        "plain": "from streameval.core import events\nimport streameval.stats.intervals\n",
        "round": "import plain\nfrom other_round import f\n",
        "other_round": "from round import g\n",
        "layer": "from streameval.files.locations import open_location\n",
        "starts": "def f():\n    import subprocess\n",
        "command": "from typer.testing import CliRunner\n",
        "through": "import plain\nimport starts\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = {name for name in files if conftest.is_fast(tmp_path / f"{name}.py")}
    assert found == {"plain", "round", "other_round"}


def test_what_has_passed_is_left_out_by_its_name(tmp_path):
    """pytest-xdist adds a group to a name, and a name may have its sign."""
    assert conftest.name_of("tests/test_a.py::test_b[ndcg@5]@test_a.py") == (
        "tests/test_a.py::test_b[ndcg@5]"
    )
    assert conftest.name_of("tests/test_a.py::test_b[ndcg@5]") == "tests/test_a.py::test_b[ndcg@5]"


@pytest.fixture(scope="module")
def shared():
    """Something that is dear to make."""


def test_tests_that_share_a_fixture_of_their_file_stay_in_one_process(shared, request):
    """pytest-xdist adds the group to a test's name; with pytest 9.2 it did not."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    assert alone or request.node.nodeid.endswith("@test_ci.py")
