"""Every command in the table of sources (docs/evaluate.md) runs and gives the figures it names."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from msgspec import structs
from test_evaluate import outcome
from typer.testing import CliRunner

from streameval.cli.app import app
from streameval.core.outcome import Outcome
from streameval.files.outcome_files import table

PAGE = Path(__file__).parents[2] / "docs" / "evaluate.md"
USERS = [f"u{number}" for number in range(40)]
ITEMS = [f"i{number}" for number in range(20)]

Rows = list[dict[str, Any]]


def commands() -> list[tuple[str, list[str], list[str]]]:
    """What a row names, the charts it promises, and the words of its command."""
    section = PAGE.read_text(encoding="utf-8").partition("## By source")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|[^|]*\| ([^|]*) \| ([^|]*) \|$", section, re.MULTILINE)[2:]
    found = []
    for names, command in rows:
        written = re.fullmatch(r"`streameval evaluate (.*)`", command)
        assert written or command.startswith("none: "), command
        if written:
            charts = re.findall(r"\*([A-Z][^*]+)\*", names)
            found.append((names, charts, shlex.split(written[1])))
    return found


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    chance = random.Random(11)
    lists = {user: chance.sample(ITEMS, 8) for user in USERS}
    slates = [
        {"user": user, "item": item, "rank": rank, "score": 3 - rank / 8 + chance.random()}
        for user, items in lists.items()
        for rank, item in enumerate(items, 1)
    ]
    labels = [
        {"user": user, "item": item, "gain": chance.randint(0, 4)}
        for user in USERS
        for item in chance.sample(ITEMS, 12)
    ]
    pairs = [(user, item) for user in USERS for item in chance.sample(ITEMS, 5)]
    tables: dict[str, Rows] = {
        "slates": slates,
        "labels": labels,
        "train": [{"user": user, "item": item} for user, item in pairs] + [
            {"user": "u0", "item": item} for item in ITEMS
        ],
        "items": [{"item": item} for item in ITEMS],
        "features": [{"item": item, "feature": one} for item in ITEMS
                     for one in chance.sample("abcd", 2)],
        "similarities": [{"item": a, "other": b, "similarity": chance.random()}
                         for a in ITEMS for b in ITEMS if a < b],
        "users": [{"user": user, "feature": chance.choice(["old", "new"])} for user in USERS],
        "neighbours": [{"user": user, "neighbour": one} for user in USERS
                       for one in chance.sample(USERS, 3) if one != user],
        "ratings": [{"user": user, "item": item, "rating": chance.randint(1, 5),
                     "prediction": chance.randint(2, 10) / 2} for user, item in pairs],
        "sampled": [{"list": user, "item": f"n{number}", "score": chance.random(),
                     "positive": int(number == 0)} for user in USERS for number in range(101)],
        "exact": [{"list": user, "item": item, "rank": rank} for user in USERS
                  for rank, item in enumerate(sorted(lists[user]), 1)],
        "found": [row for row in slates if row["rank"] != 2],
        "rounds": [{"reward": chance.randint(0, 1), "propensity": 0.25, "predicted": 0.4,
                    "target": chance.choice([0.1, 0.4]), "expected": 0.45} for _ in range(500)],
        "probabilities": [{"user": user, "item": item, "label": chance.randint(0, 1),
                           "prediction": chance.random()} for user, item in pairs],
    }  # fmt: skip
    for name, rows in tables.items():
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    run = [f"{row['user']} Q0 {row['item']} 0 {row['score']} x" for row in slates]
    (folder / "run.txt").write_text("\n".join(run) + "\n")
    qrels = [f"{row['user']} 0 {row['item']} {row['gain']}" for row in labels]
    (folder / "qrels.txt").write_text("\n".join(qrels) + "\n")
    (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events(lists)))
    (folder / "outcomes").mkdir()
    rows = [scored(outcome(number, chance), chance) for number in range(200)]
    pq.write_table(table(0, rows, DIMENSIONS), folder / "outcomes" / "part.parquet")
    return folder


def scored(row: Outcome, chance: random.Random) -> Outcome:
    return structs.replace(row, scores=[chance.random() for _ in row.items])


def events(lists: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    for number, (user, items) in enumerate(lists.items()):
        for day in range(2):
            ts = 1_700_006_400_000 + day * 86_400_000 + number
            for item in items:
                yield {"type": "impression", "ts": ts, "user_id": user, "item_id": item}
            yield {"type": "feedback", "ts": ts + 9, "user_id": user, "item_id": items[day],
                   "feedback": "click" if number % 2 else "like"}  # fmt: skip


def test_the_table_names_every_source() -> None:
    assert len(commands()) > 40


@pytest.mark.parametrize(("names", "charts", "words"), commands())
def test_the_command_of_each_source_gives_its_figures(
    names: str,
    charts: list[str],
    words: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, ["evaluate", *words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, (names, result.output)
    found = json.loads(result.stdout)
    asked = words[words.index("--metrics") + 1].split(",") if "--metrics" in words else ()
    assert found["figures"].keys() >= set(asked)
    for part in (found, *found.get("segments", ())):
        for name, figure in part["figures"].items():
            assert figure["value"] is not None, (names, name)
            assert figure["n"] > 0
    assert bool(charts) == ("--report" in words)
    if charts:
        page = (folder / "report.html").read_text(encoding="utf-8")
        for title in charts:
            assert f'aria-label="{title}"' in page
