"""`streameval compare` and `evaluate --against`: differences with bounds, equal to other tools'."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from evaluating import run as evaluate
from scipy import stats
from typer.testing import CliRunner

from streameval.base.errors import InputError
from streameval.cli.app import app
from streameval.core.outcome import Outcome
from streameval.files.outcome_files import table
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, compare_ratios


def invoke(*arguments: str) -> str:
    """What `streameval compare` prints; it must succeed."""
    result = CliRunner().invoke(app, ["compare", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(*arguments: str) -> list[dict[str, Any]]:
    """The rows of `--json`."""
    found: list[dict[str, Any]] = json.loads(invoke(*arguments, "--json"))["experiments"]
    return found


def refused(*arguments: str, command: str = "compare") -> str:
    """The one line with which it refuses the arguments, or what they name."""
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, [command, *arguments], catch_exceptions=False)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are of files here."""
    monkeypatch.chdir(tmp_path)


# --- Models on the same users


def write_runs(topics: int, seed: int = 0, items: int = 10) -> None:
    """Write runs `a` and `b` of equal topics; `b` puts the relevant item a little higher."""
    chance = random.Random(seed)
    lines: dict[str, list[str]] = {"a": [], "b": [], "qrels": []}
    for topic in range(topics):
        lines["qrels"].append(f"q{topic} 0 d{chance.randrange(items)} 1")
        for model, bonus in (("a", 0.0), ("b", 0.2)):
            relevant = lines["qrels"][-1].split()[2]
            for item in range(items):
                score = chance.random() + bonus * (f"d{item}" == relevant)
                lines[model].append(f"q{topic} Q0 d{item} 0 {score} x")
    for name, text in lines.items():
        Path(name).write_text("\n".join(text))


@pytest.mark.parametrize("metric", ["ndcg@10", "mrr", "precision@3", "map"])
def test_two_runs_are_compared_as_by_the_paired_t_test(metric: str) -> None:
    write_runs(150)
    (row,) = rows("--run", "a", "--run", "b", "--qrels", "qrels", "--metrics", metric)
    one, other = (
        evaluate("--run", name, "--qrels", "qrels", "--metrics", metric, "--per-list")["lists"]
        for name in "ba"
    )
    topics = sorted(one)
    sides = [[scores[topic][metric] for topic in topics] for scores in (one, other)]
    expected = stats.ttest_rel(*sides).confidence_interval(0.95)
    assert row["difference"] == pytest.approx(np.mean(sides[0]) - np.mean(sides[1]), abs=1e-9)
    assert row["once_low"] == pytest.approx(expected.low, abs=1e-5)
    assert row["once_high"] == pytest.approx(expected.high, abs=1e-5)
    assert (row["arm"], row["control"], row["users"]) == ("b", "a", 150)
    assert row["low"] < row["once_low"] < row["difference"] < row["once_high"] < row["high"]


def test_lists_of_one_user_count_as_one_unit() -> None:
    """Twice the same lists of each user say nothing new."""
    chance = random.Random(1)
    text: dict[str, list[str]] = {"a": [], "b": [], "twice_a": [], "twice_b": []}
    labels = []
    for user in range(120):
        for model in "ab":
            order = chance.sample("xyz", 3)
            for copy in range(2):
                name = f"twice_{model}"
                lines = [f"{user}-{copy},u{user},{item},{n}" for n, item in enumerate(order, 1)]
                text[name] += lines
                if not copy:
                    text[model] += lines
        labels += [f"{user}-0,x", f"{user}-1,x"]
    for name, lines in text.items():
        Path(f"{name}.csv").write_text("\n".join(["list,user,item,rank", *lines]))
    Path("l.csv").write_text("\n".join(["list,item", *(one for one in labels if "-0" in one)]))
    Path("twice.csv").write_text("\n".join(["list,item", *labels]))
    (once,) = rows("a.csv", "b.csv", "--labels", "l.csv", "--metrics", "mrr")
    (twice,) = rows("twice_a.csv", "twice_b.csv", "--labels", "twice.csv", "--metrics", "mrr")
    assert once["users"] == twice["users"] == 120
    for name in ("value", "control_value", "difference", "low", "high", "once_low", "once_high"):
        assert twice[name] == pytest.approx(once[name], abs=1e-12)


def test_predictions_are_compared_by_the_error_of_each_user() -> None:
    chance = random.Random(2)
    ratings, good, bad = [], [], []
    for user in range(200):
        for item in range(3):
            rating = chance.randint(1, 5)
            ratings.append(f"u{user},i{item},{rating}")
            good.append(f"u{user},i{item},{rating + chance.gauss(0, 0.5)}")
            bad.append(f"u{user},i{item},{rating + chance.gauss(0, 1.0)}")
    Path("r.csv").write_text("\n".join(["user,item,rating", *ratings]))
    for name, lines in (("good.csv", good), ("bad.csv", bad)):
        Path(name).write_text("\n".join(["user,item,prediction", *lines]))
    (row,) = rows(
        *("--ratings", "r.csv", "--predictions", "bad.csv", "--predictions", "good.csv"),
        *("--metrics", "mae_user"),
    )
    assert row["high"] < 0
    assert row["verdict"] == "better", "an error that is lower"
    assert "has no score for a single list or user" in refused(
        *("--ratings", "r.csv", "--predictions", "bad.csv", "--predictions", "good.csv"),
        *("--metrics", "rmse"),
    )


def test_lists_of_only_one_model_are_left_out_and_counted() -> None:
    for name, lists in (("a.csv", "uvw"), ("b.csv", "uvx")):
        body = [f"{one},i,1" for one in lists]
        Path(name).write_text("\n".join(["list,item,rank", *body]))
    Path("l.csv").write_text("list,item\nu,i\n")
    found = json.loads(invoke("a.csv", "b.csv", "--labels", "l.csv", "--metrics", "mrr", "--json"))
    assert found["notes"] == {
        "gain_column": None,
        "lists_without_labels of a.csv": 2,
        "lists_without_labels of b.csv": 2,
        "unpaired of b.csv": 2,
    }
    (row,) = found["experiments"]
    assert (row["users"], row["value"], row["verdict"]) == (2, 0.5, "not yet")
    words = invoke("a.csv", "b.csv", "--labels", "l.csv", "--metrics", "mrr")
    assert "b.csv against a.csv: MRR: not yet." in words
    assert "left out, as only one of the two models has it: 2 lists." in words


def test_words_name_the_better_model() -> None:
    write_runs(2_000)
    words = invoke("--run", "a", "--run", "b", "--qrels", "qrels", "--metrics", "mrr")
    assert "b is ahead of a by 1" in words
    assert "points of MRR." in words


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "give --by and --against"),
        ("--run a --run b", "--run: needs --qrels"),
        ("--run a --qrels qrels", "--run: give at least two"),
        ("--run a --run a --qrels qrels", "one file is given twice"),
        ("--run a --run b --qrels qrels --labels l.csv", "give the models in one form"),
        ("--run a --run b --qrels qrels --alpha 2", "--alpha 2: give a chance"),
        ("--run a --run b --qrels qrels --metrics f1_mean@3", "f1_mean@3: has no score"),
        ("--run a --run other --qrels qrels", "share no list"),
        ("--run one --run same --qrels one-qrels", "of 1 user in common"),
        ("--run a --run b --qrels qrels --metrics nonsense", "nonsense: no such figure"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(given: str, said: str) -> None:
    write_runs(3)
    qrels = Path("qrels").read_text()
    Path("qrels").write_text(f"{qrels}\nz9 0 d1 1")
    Path("other").write_text("z9 Q0 d1 0 1.0 x")
    for name in ("one", "same"):
        Path(name).write_text("q1 Q0 d1 0 1.0 x")
    Path("one-qrels").write_text("q1 0 d1 1")
    assert said in refused(*given.split())


# --- `evaluate --against`


def slate(number: int, chance: random.Random, users: int, better: float) -> Outcome:
    """A slate of three items with at most one click; the users of B click more."""
    user = f"u{chance.randrange(users)}"
    variant = "AB"[zlib.crc32(user.encode()) // 256 % 2]
    click = chance.random() < 0.3 + better * (variant == "B")
    return Outcome(
        offset=number,
        user=user,
        request=f"r{number}",
        labels=(variant, ("home", "search")[number % 2]),
        time=1_769_842_800_000 + number,
        items=["a", "b", "c"],
        positions=[1, 2, 3],
        ranks=[1, 2, 3],
        shown=[0, 0, 0],
        scores=[None] * 3,
        propensities=[None] * 3,
        gains=[float(click), 0.0, 0.0],
        feedback=[],
    )


def write_outcomes(count: int = 6_000, users: int = 2_000, better: float = 0.1) -> list[Outcome]:
    """Write the file `o.parquet`."""
    chance = random.Random(3)
    found = [slate(number, chance, users, better) for number in range(count)]
    pq.write_table(table(0, found, DIMENSIONS), "o.parquet")
    return found


def test_evaluate_adds_differences_of_segments() -> None:
    found = write_outcomes()
    printed = evaluate(
        "o.parquet", "--metrics", "mrr,f1_mean@1", "--by", "variant", "--against", "A"
    )
    row, without_formula = printed["differences"]
    sums = []
    for variant in "BA":
        x, y, users = np.zeros(256, np.int64), np.zeros(256, np.int64), set()
        for one in found:
            if one.labels[0] == variant:
                cluster = zlib.crc32(one.user.encode()) & 255
                x[cluster] += int(one.gains[0] * 10**9)
                y[cluster] += 1
                users.add(one.user)
        sums.append(ClusterSums(x, y, len(users), 10**9))
    expected = compare_ratios(*sums, Rules())
    assert {name: row[name] for name in ("arm", "control", "metric", "role", "users")} == {
        "arm": "B",
        "control": "A",
        "metric": "mrr",
        "role": "exploratory",
        "users": sums[0].users,
    }
    assert expected.verdict == "better"
    for name in ("value", "difference", "low", "high", "once_low", "once_high", "users_needed"):
        assert row[name] == getattr(expected, name), name
    assert (without_formula["metric"], without_formula["difference"]) == ("f1_mean@1", None)


def test_arms_are_compared_within_each_value_of_the_other_columns() -> None:
    write_outcomes()
    given = ("o.parquet", "--metrics", "mrr", "--by", "variant,surface", "--against", "B")
    found = evaluate(*given)["differences"]
    assert [(row["arm"], row["surface"], row["verdict"]) for row in found] == [
        ("A", "home", "worse"),
        ("A", "search", "worse"),
    ]
    printed = CliRunner().invoke(app, ["evaluate", *given], catch_exceptions=False).stdout
    assert "all looks" in printed
    assert printed.count("worse") == 2


def test_the_report_shows_differences() -> None:
    write_outcomes()
    given = ("o.parquet", "--metrics", "mrr", "--by", "variant", "--against", "A")
    evaluate(*given, "--report", "r.html")
    page = Path("r.html").read_text()
    assert "<h2>Differences</h2>" in page
    assert "<td>better</td>" in page
    evaluate("o.parquet", "--metrics", "mrr", "--by", "variant", "--report", "r.html")
    assert "<h2>Differences</h2>" not in Path("r.html").read_text()


def test_a_root_of_a_mean_has_the_error_that_its_slope_gives() -> None:
    chance = random.Random(5)
    lines = [
        f"u{user},{'AB'[user % 2]},i,0,{chance.gauss(0, 1 + user % 2)}" for user in range(2_000)
    ]
    Path("r.csv").write_text("\n".join(["user,model,item,rating,prediction", *lines]))
    given = ("--ratings", "r.csv", "--metrics", "rmse,mse", "--by", "model", "--against", "A")
    root, square = evaluate(*given)["differences"]
    assert (root["verdict"], square["verdict"]) == ("worse", "worse")
    reach = (root["once_high"] - root["once_low"]) / 2
    errors = [float(line.rpartition(",")[2]) for line in lines]
    arms = [np.array(errors[number::2]) for number in (0, 1)]
    variance = sum(np.var(arm**2) / len(arm) / (4 * np.mean(arm**2)) for arm in arms)
    assert reach == pytest.approx(1.96 * variance**0.5, rel=0.1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--against A", "--against: name the column of the arms too"),
        ("--by variant --against C", "--against C: no variant has this name; there are 'A', 'B'"),
        ("--by variant --against A", "there is no other variant to compare"),
    ],
)
def test_a_control_that_is_not_there_is_refused(given: str, said: str) -> None:
    found = write_outcomes(40)
    if "no other" in said:
        kept = [one for one in found if one.labels[0] == "A"]
        pq.write_table(table(0, kept, DIMENSIONS), "o.parquet")
    assert said in refused("o.parquet", *given.split(), command="evaluate")


def test_figures_without_sums_by_user_are_refused_a_comparison() -> None:
    Path("r.csv").write_text("user,model,item,rating,prediction\nu,A,i,1,2\nv,B,i,1,3\n")
    given = ("--ratings", "r.csv", "--metrics", "mae_item", "--by", "model", "--against", "A")
    said = refused(*given, command="evaluate")
    assert said == "mae_item: --against compares figures that are sums over users"
