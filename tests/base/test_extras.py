"""What is missing is named with a command that works where this installation came from."""

import ast
import itertools
import json
import pathlib
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions

import pytest

import streameval
from streameval.base import extras

ROOT = pathlib.Path(streameval.__file__).parents[1]


def origin(monkeypatch, found):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return None if found is None else json.dumps(found)

    monkeypatch.setattr(extras, "distribution", lambda _: Installed())


@pytest.mark.parametrize(
    ("found", "command"),
    [
        (None, "pip install 'streameval[mcp]'"),
        (
            {"url": "file:///srv/a%20clone", "dir_info": {"editable": True}},
            "pip install -e '/srv/a clone[mcp]'",
        ),
        ({"url": "file:///srv/clone", "dir_info": {}}, "pip install '/srv/clone[mcp]'"),
        (
            {"url": "file:///tmp/it's/streameval-0.1.0-py3-none-any.whl", "archive_info": {}},
            """pip install '/tmp/it'"'"'s/streameval-0.1.0-py3-none-any.whl[mcp]'""",
        ),
        (
            {"url": "https://files.example/streameval-0.1.0.whl", "archive_info": {"hash": "x"}},
            "pip install 'streameval[mcp] @ https://files.example/streameval-0.1.0.whl'",
        ),
        (
            {"url": "https://git.example/s.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'streameval[mcp] @ git+https://git.example/s.git@abc'",
        ),
        (
            {"url": "file:///srv/s", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'streameval[mcp] @ git+file:///srv/s@abc'",
        ),
    ],
)
def test_the_command_installs_from_where_this_came_from(monkeypatch, found, command):
    origin(monkeypatch, found)
    assert extras.install("mcp") == command


def test_a_folder_that_is_only_on_the_path_is_named(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert str(ROOT) in extras.install("demo")


def test_every_imported_package_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *itertools.chain.from_iterable(optional)]
    declared = {re.match(r"[\w.-]+", each)[0].lower().replace("_", "-") for each in wanted}
    # The user's own, where a function takes what they make.
    declared |= {"pandas", "polars", "pyspark", "ipython"}
    names = packages_distributions()
    undeclared = set()
    for file in (ROOT / "streameval").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            for module in {each.partition(".")[0] for each in modules}:
                if module not in sys.stdlib_module_names and module != "streameval":
                    found = {name.lower().replace("_", "-") for name in names.get(module, [module])}
                    undeclared |= {module} if not found & declared else set()
    assert not undeclared
