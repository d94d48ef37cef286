"""`streameval init`: files that load as written, and that never replace another without --force."""

import json
from pathlib import Path

import pytest
import yaml
from command_line import streameval
from prometheus import promtool

from streameval.base import extras
from streameval.base.errors import InputError
from streameval.checks import specification
from streameval.cli.init import init
from streameval.config.load import load
from streameval.config.reference import starter
from streameval.config.settings import PREFIX, Settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for key in Settings.model_fields:
        monkeypatch.delenv(f"{PREFIX}{key.upper()}", raising=False)


def test_both_files_load_as_written_and_are_the_defaults(tmp_path):
    init(tmp_path / "new", rules=False, force=False)
    assert load(tmp_path / "new/streameval.yaml") == Settings()
    written = specification.load(tmp_path / "new/checks.yaml")
    assert written == specification.load(None)
    # A dimension named `variant` is not asked for.
    assert "arm" not in written.model_fields_set


def test_every_key_stands_there_below_its_description(tmp_path):
    init(tmp_path, rules=False, force=False)
    lines = (tmp_path / "streameval.yaml").read_text().splitlines()
    for key, field in Settings.model_fields.items():
        (at,) = [
            n for n, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{key}: ")
        ]
        assert lines[at - 1].startswith("# ")
        comment = " ".join(line.removeprefix("# ") for line in lines[:at])
        assert field.description.split("[")[0].split("`")[0].strip() in comment
    assert max(map(len, lines)) <= 100
    every_check = yaml.safe_load((tmp_path / "checks.yaml").read_text())
    for name, settings in every_check.items():
        fields = specification.Specification.model_fields
        if isinstance(settings, dict):
            assert settings.keys() == fields[name].annotation.model_fields.keys()
    assert fields.keys() - every_check.keys() == {"arm"}


def test_what_is_there_stays_unless_forced(tmp_path, capsys):
    config = tmp_path / "streameval.yaml"
    config.write_text("dimensions: [surface]\n")
    init(tmp_path, rules=True, force=False)
    assert config.read_text() == "dimensions: [surface]\n"
    assert f"kept {config}, which was there (--force writes it anew)\n" in capsys.readouterr().out
    rules = tmp_path / "rules.yml"
    assert "window, basis, surface) (" in rules.read_text()
    rules.write_text("")
    init(tmp_path, rules=True, force=True)
    assert config.read_text() == "dimensions: [surface]\n"
    assert rules.read_text()
    init(tmp_path, rules=False, force=True)
    assert config.read_text() == starter()


def test_rules_of_a_fresh_folder_are_good_rules(tmp_path, capsys):
    init(tmp_path, rules=True, force=False)
    assert "rule_files" in capsys.readouterr().out
    promtool("check", "rules", str(tmp_path / "rules.yml"))


def test_dashboards_of_a_folder_follow_its_dimensions(tmp_path):
    (tmp_path / "streameval.yaml").write_text("dimensions: [surface]\n")
    init(tmp_path, rules=True, force=False)
    boards = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("grafana/*.json")}
    assert {*boards} == {"quality", "experiments", "pipeline", "checks"}
    variables = {each["name"] for each in boards["quality"]["templating"]["list"]}
    assert "surface" in variables
    assert "variant" not in variables


def test_without_duckdb_the_checks_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(extras, "is_installed", lambda package: package != "duckdb")
    init(tmp_path, rules=False, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["streameval.yaml"]
    assert extras.install("evaluate") in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        init(tmp_path / "file" / "new", rules=False, force=False)


def test_the_command_says_what_to_do_next(tmp_path):
    done = streameval("init", folder=tmp_path, text=True)
    assert done.stdout == (
        "wrote streameval.yaml: every key with its default\n"
        "wrote checks.yaml: every check with its bounds\n"
        "\n"
        "Next:\n"
        "  1. name your servers, topic, positives and dimensions in streameval.yaml\n"
        "  2. streameval doctor --config streameval.yaml    # finds missing parts\n"
        "  3. streameval worker --config streameval.yaml    # counts; pages on"
        " http://127.0.0.1:8080\n"
        "  4. streameval init --rules    # alerts and dashboards, for your dimensions\n"
    )


def test_what_comes_next_names_the_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init(Path("new"), rules=False, force=False)
    assert "  4. streameval init new --rules    # alerts" in capsys.readouterr().out
    init(Path("new"), rules=True, force=False)
    assert capsys.readouterr().out.endswith(
        "  4. name new/rules.yml under rule_files of your prometheus.yml\n"
        "  5. import the dashboards in new/grafana/ into Grafana\n"
    )
