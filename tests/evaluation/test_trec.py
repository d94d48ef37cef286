"""Runs and qrels as trec_eval reads them: its order at equal scores, its lists, its values."""

import random
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from evaluating import refused, run

from streameval.core.metrics.curve import LEVELS, interpolate
from streameval.evaluation.readers.ranked_tables import Tables, read_tables
from streameval.evaluation.sums import evaluate

TREC = Path(__file__).parents[3] / "shared" / "data" / "trec_eval"
CUTS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)
OURS = {
    **{f"P_{k}": f"precision@{k}" for k in CUTS},
    **{f"recall_{k}": f"recall@{k}" for k in CUTS},
    **{f"ndcg_cut_{k}": f"ndcg@{k}" for k in CUTS},
    **{f"map_cut_{k}": f"map@{k}" for k in CUTS},
    **{f"success_{k}": f"hit_rate@{k}" for k in (1, 5, 10)},
    "map": "map",
    "recip_rank": "mrr",
    "ndcg": "ndcg",
    "Rprec": "r_precision",
    "bpref": "bpref",
    "infAP": "inf_ap",
}
CURVE = tuple(f"iprec_at_recall_{level:.2f}" for level in LEVELS)


def values(run_file, qrels, *, complete, level=None):
    """What we say, by list (and "all") and trec_eval's name of the figure."""
    tables = Tables(
        [str(run_file)],
        [str(qrels)],
        "trec",
        ties="trec",
        complete=complete,
        level=level,
        with_judged=True,
    )
    batches = list(read_tables(tables, lambda _: None, []))
    found = evaluate(batches, list(OURS.values()), per_list=True).document()
    answer = {name: {a: row[b] for a, b in OURS.items()} for name, row in found["lists"].items()}
    curves = {}
    for batch in batches:
        for rows, lists in batch.lists():
            for row, curve in zip(rows, interpolate(lists), strict=True):
                curves[batch.ids[row]] = curve
    for name, curve in curves.items():
        answer[name] |= dict(zip(CURVE, curve, strict=True))
    means = np.mean(list(curves.values()), axis=0)
    answer["all"] = {a: found["figures"][b]["value"] for a, b in OURS.items()}
    answer["all"] |= dict(zip(CURVE, means, strict=True))
    return answer


@pytest.mark.parametrize(
    ("run", "expected", "complete"),
    [
        ("results.test", "out.test.aq", False),
        # -c: a list of the qrels that the run does not have counts 0.
        ("results.trunc", "out.test.aqc", True),
    ],
)
def test_trec_evals_own_files_give_its_own_figures(run, expected, complete):
    if not TREC.exists():
        pytest.skip("trec_eval's files stand beside the repository, not in it")
    ours = values(TREC / run, TREC / "qrels.test", complete=complete)
    compared = 0
    for line in (TREC / expected).read_text().splitlines():
        figure, name, value = line.split()
        if figure in OURS or figure in CURVE:
            assert f"{ours[name][figure]:.4f}" == value, (name, figure)
            compared += 1
    assert compared == 4 * (len(OURS) + len(CURVE))


def test_rank_biased_precision_of_its_own_files_is_trec_evals():
    if not TREC.exists():
        pytest.skip("trec_eval's files stand beside the repository, not in it")
    names = ["--run", str(TREC / "results.test"), "--qrels", str(TREC / "qrels.test")]
    found = run(*names, "--no-complete", "--metrics", "rbp", "--persistence", "0.9", "--per-list")
    expected = {}
    for line in (TREC / "out.test.aq").read_text().splitlines():
        figure, name, value = line.split()
        if figure == "rbp":
            expected[name] = value
    mine = {name: row["rbp"] for name, row in found["lists"].items()}
    mine["all"] = found["figures"]["rbp"]["value"]
    assert {name: f"{value:.4f}" for name, value in mine.items()} == expected


@pytest.mark.parametrize("level", [None, 1, 2, 3])
def test_the_gain_from_which_an_item_is_relevant_is_trec_evals_l(tmp_path, level):
    """Graded labels, items without one, and items of the pool that nobody judged (-1)."""
    chance = random.Random(level)
    scores, qrels = {}, {}
    for number in range(30):
        items = [f"D{n:03}" for n in chance.sample(range(60), chance.randint(1, 40))]
        scores[f"q{number}"] = {item: -float(rank) for rank, item in enumerate(items)}
        grades = chance.choice([[0, 0, 1, 2, 3, -1], [0, 1], [2, 3], [-1, 0, 3]])
        judged = chance.sample(range(60), 50)
        qrels[f"q{number}"] = {f"D{n:03}": chance.choice(grades) for n in judged}
    write_trec(tmp_path, scores, qrels)
    measures = {
        f"{name}.{','.join(map(str, CUTS))}" for name in ("P", "recall", "ndcg_cut", "map_cut")
    }
    measures |= {"success.1,5,10", "map", "recip_rank", "ndcg", "Rprec", "bpref", "infAP"}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, measures, relevance_level=level or 1)
    theirs = evaluator.evaluate(scores)
    ours = values(tmp_path / "run", tmp_path / "qrels", complete=True, level=level)
    for name, row in theirs.items():
        for figure in OURS:
            value = ours[name][figure]
            assert value == pytest.approx(row[figure], abs=1e-9), (name, figure)


def test_a_threshold_of_relevance_is_an_option_of_what_it_changes(tmp_path):
    """Relevant from 4 on: b alone, at rank 2. NDCG goes by the gains, whatever they are."""
    write_trec(tmp_path, {"q": {"a": 3.0, "b": 2.0}}, {"q": {"a": 3, "b": 4, "c": 1}})
    files = ["--run", str(tmp_path / "run"), "--qrels", str(tmp_path / "qrels")]
    found = run(*files, "--metrics", "mrr,recall,ndcg", "--relevant", "4")
    assert found["figures"]["mrr"]["value"] == 0.5
    assert found["figures"]["recall"]["value"] == 1.0
    assert found["notes"]["relevant"] == 4.0
    graded = run(*files, "--metrics", "ndcg")["figures"]["ndcg"]
    assert found["figures"]["ndcg"] == graded
    assert "no figure" in refused(*files, "--metrics", "ndcg,dcg@2", "--relevant", "4")
    assert "above 0" in refused(*files, "--metrics", "mrr", "--relevant", "0")


def write_trec(folder, found, qrels):
    lines = [f"{q} Q0 {i} 0 {s!r} x" for q, row in found.items() for i, s in row.items()]
    (folder / "run").write_text("\n".join(lines) + "\n")
    lines = [f"{q} 0 {i} {g}" for q, gains in qrels.items() for i, g in gains.items()]
    (folder / "qrels").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("series", range(5))
def test_runs_full_of_ties_have_trec_evals_values(tmp_path, series):
    """The tool itself is asked: scores with ties, also such that only single precision ties."""
    chance = random.Random(series)
    scores, qrels = {}, {}
    for number in range(20):
        items = [f"D{n:03}" for n in chance.sample(range(60), 40)]
        scores[f"q{number}"] = {
            item: chance.choice([1.0, 2.0, 2.0 + 1e-12, 0.5, chance.random()]) for item in items
        }
        qrels[f"q{number}"] = {f"D{n:03}": chance.choice([0, 0, 1, 2]) for n in range(60)}
    qrels["unanswered"] = {"D001": 1}
    write_trec(tmp_path, scores, qrels)
    asked = {
        f"{name}.{','.join(map(str, CUTS))}" for name in ("P", "recall", "ndcg_cut", "map_cut")
    }
    asked |= {"success.1,5,10", "map", "recip_rank", "ndcg", "Rprec", "bpref", "infAP"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, asked).evaluate(scores)
    ours = values(tmp_path / "run", tmp_path / "qrels", complete=True)
    for name, row in theirs.items():
        for figure in OURS:
            value = ours[name][figure]
            assert value == pytest.approx(row[figure], abs=1e-9), (name, figure)
    assert set(ours["unanswered"].values()) == {0.0}
    assert ours["all"]["map"] == pytest.approx(sum(row["map"] for row in theirs.values()) / 21)
