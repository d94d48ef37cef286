"""A release is one command: what its dry run makes."""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile

import programs
import pytest

import streameval

pytestmark = [pytest.mark.servers, pytest.mark.slow]
NAME = f"streameval-{streameval.__version__}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of a dry run, by name."""
    programs.need_pinned("helm")
    folder = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, ".ci/release.py", "--dry-run", "--into", folder]
    done = subprocess.run(command, cwd=programs.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: path for path in folder.iterdir()}


def test_a_release_has_its_files_and_their_checksums(made):
    sums = dict(reversed(line.split("  ")) for line in made["SHA256SUMS"].read_text().splitlines())
    assert sums.keys() == made.keys() - {"SHA256SUMS"}
    assert sums.keys() == {
        f"{NAME}-py3-none-any.whl",
        f"{NAME}.tar.gz",
        f"{NAME}-sbom.json",
        f"streameval-chart-{streameval.__version__}.tgz",
        "CHANGES.md",
    }
    for name, digest in sums.items():
        assert hashlib.sha256(made[name].read_bytes()).hexdigest() == digest


def test_the_changes_are_those_of_the_version(made):
    changes = made["CHANGES.md"].read_text()
    assert changes.startswith("The first version.") or "* " in changes
    assert changes.strip() in (programs.ROOT / "CHANGELOG.md").read_text()


def test_the_list_of_packages_is_that_of_the_image(made):
    found = json.loads(made[f"{NAME}-sbom.json"].read_text())
    listed = {(each["name"], each["version"]) for each in found["components"]}
    lock = (programs.ROOT / "deploy/requirements.lock").read_text().splitlines()
    pinned = [line.partition(" ")[0].split("==") for line in lock if "==" in line]
    assert {(name, version) for name, version in pinned} <= listed


def test_the_chart_has_the_version_the_rules_and_the_dashboards(made):
    with tarfile.open(made[f"streameval-chart-{streameval.__version__}.tgz"]) as chart:
        names = chart.getnames()
        meta = chart.extractfile("streameval/Chart.yaml").read().decode()
    assert f"appVersion: {streameval.__version__}" in meta
    assert "streameval/files/rules.yml" in names
    assert "streameval/files/quality.json" in names


def test_the_source_has_nothing_that_is_made(made):
    with tarfile.open(made[f"{NAME}.tar.gz"]) as source:
        names = {name.split("/")[1] for name in source.getnames() if "/" in name}
    hidden = {name for name in names if name.startswith(".")}
    ours = {path.name for path in programs.ROOT.iterdir() if path.name.startswith(".")}
    made_here = {".cache", ".hypothesis", ".venv", ".git"} | {
        n for n in ours if n.endswith("_cache")
    }
    assert hidden <= ours - made_here
    assert {".ci", "streameval", "tests", "pyproject.toml"} <= names


def test_the_wheel_has_the_profiles_and_the_scripts(made):
    with zipfile.ZipFile(made[f"{NAME}-py3-none-any.whl"]) as wheel:
        names = set(wheel.namelist())
    assert {"streameval/store/commit.lua", "streameval/profiles/builtin/segment.yaml"} <= names
    assert "streameval/web/static/uplot/uPlot.iife.min.js" in names
