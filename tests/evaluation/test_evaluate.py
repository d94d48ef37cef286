"""`streameval evaluate`: the same figures whatever the file, its cut into batches and its order."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from evaluating import CONVENTIONS, GOLDEN, invoke, refused, run

from streameval.base.limits import CLUSTERS, NANO
from streameval.core.metrics import RANKING, Scorer
from streameval.core.outcome import Outcome
from streameval.core.windows.tables import cluster_of
from streameval.evaluation.readers.outcomes import files_of, read_outcomes
from streameval.evaluation.sources import source
from streameval.evaluation.sums import DEFAULT, evaluate
from streameval.files.outcome_files import table
from streameval.stats.cluster_sums import stderrs


def outcome(number: int, chance: random.Random) -> Outcome:
    size = chance.randint(1, 30)
    ranks = sorted(chance.sample(range(1, 60), size))
    gains = [chance.choice([0.0, 0.0, 0.0, 1.0, 3.0]) for _ in range(size)]
    return Outcome(
        offset=number,
        user=f"ü{chance.randrange(300)}",
        request=f"r{number}" if chance.random() < 0.9 else None,
        labels=(chance.choice(["A", "B", ""]), chance.choice(["home", "search"])),
        time=1_700_000_000_000 + number,
        items=[f"i{rank}" for rank in range(size)],
        positions=list(ranks),
        ranks=ranks,
        shown=[1_700_000_000_000 + number] * size,
        scores=[None] * size,
        propensities=[None] * size,
        gains=gains,
        feedback=[],
    )


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    chance = random.Random(7)
    return [outcome(number, chance) for number in range(2_000)]


def write(path: Path, rows: Sequence[Outcome], row_group: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(0, rows, DIMENSIONS), path, row_group_size=row_group)
    return str(path)


@pytest.mark.parametrize(("gain", "ndcg"), [("linear", "ndcg"), ("exponential", "ndcg_exp")])
def test_outcome_files_give_the_streams_own_scores_to_the_bit(
    outcomes: list[Outcome], tmp_path: Path, gain: Literal["linear", "exponential"], ndcg: str
) -> None:
    file = write(tmp_path / "a.parquet", outcomes, 700)
    names = [name.replace("ndcg", ndcg) for name in DEFAULT]
    found = evaluate(read_outcomes([file], ["variant"], lambda _: None), names, ["variant"])
    lists = [row for row in outcomes if row.request is not None]
    rows = []
    for row in lists:
        relevant = [(r, g) for r, g in zip(row.ranks, row.gains, strict=True) if g > 0]
        rows.append((tuple(r for r, _ in relevant), tuple(g for _, g in relevant)))
    units = Scorer([10], gain).score(rows)
    for variant in ("A", "B", ""):
        x = np.zeros((CLUSTERS, len(RANKING)), np.int64)
        y = np.zeros(CLUSTERS, np.int64)
        for row, score in zip(lists, units, strict=True):
            if row.labels[0] == variant:
                x[cluster_of(row.user)] += score
                y[cluster_of(row.user)] += 1
        for number, name in enumerate(names):
            figure = found.figures((variant,))[name]
            (stderr,) = stderrs(x[np.newaxis, :, number], y[np.newaxis])
            assert figure.n == y.sum()
            assert figure.value == int(x[:, number].sum()) / (figure.n * NANO)
            assert stderr is not None
            assert figure.low is not None
            assert figure.high is not None
            # Student's t of 100 to 255 clusters, a little more as users are not equally active.
            assert figure.low < figure.value < figure.high
            assert 3.9 < (figure.high - figure.low) * NANO / stderr < 4.4


def test_neither_files_nor_row_groups_nor_order_change_a_bit(
    outcomes: list[Outcome], tmp_path: Path
) -> None:
    whole = write(tmp_path / "whole.parquet", outcomes, 65_536)
    shuffled = random.Random(1).sample(outcomes, len(outcomes))
    write(tmp_path / "parts/dt=1/one.parquet", shuffled[:313], 50)
    write(tmp_path / "parts/dt=2/two.parquet", shuffled[313:], 7)
    names = "ndcg@3,map,precision@40,mar@5,f_beta_user@3,rbp,bpref,inf_ap"
    arguments = ["--by", "variant,surface", "--metrics", names]
    assert run(whole, *arguments) == run(str(tmp_path / "parts"), *arguments)


def test_unconfirmed_files_of_a_folder_are_not_read(tmp_path: Path) -> None:
    rows = [outcome(number, random.Random(number)) for number in range(3)]
    seen = write(tmp_path / "dt=1/hour=1/p0-0-9-ab.parquet", rows, 10)
    write(tmp_path / "_pending/p0-9-12-cd/dt=1/hour=1/p0-9-12-cd.parquet", rows, 10)
    assert files_of([str(tmp_path)]) == [seen]


def test_lists_of_very_different_widths_score_as_alone(tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = []
    for number, size in enumerate([1, 700, 1, 2, 64, 65, 3, 1000]):
        row = outcome(number, chance)
        ranks = list(range(1, size + 1))
        rows.append(
            Outcome(
                offset=number,
                user=row.user,
                request=f"r{number}",
                labels=("", ""),
                time=row.time,
                items=[f"i{rank}" for rank in ranks],
                positions=list(ranks),
                ranks=ranks,
                shown=[row.time] * size,
                scores=[None] * size,
                propensities=[None] * size,
                gains=[chance.choice([0.0, 1.0]) for _ in ranks],
                feedback=[],
            )
        )
    together = run(write(tmp_path / "all.parquet", rows, 100), "--per-list")["lists"]
    for number, row in enumerate(rows):
        alone = run(write(tmp_path / f"{number}.parquet", [row], 100), "--per-list")["lists"]
        assert alone[f"r{number}"] == together[f"r{number}"]


SLATES = [
    {"list_id": "u1", "item_id": "a", "rank": 1, "variant": "A"},
    {"list_id": "u1", "item_id": "b", "rank": 2, "variant": "A"},
    {"list_id": "u1", "item_id": "c", "rank": 3, "variant": "A"},
    {"list_id": "u2", "item_id": "x", "rank": 1, "variant": "B"},
]
LABELS = [
    {"list_id": "u1", "item_id": "b", "gain": 3},
    {"list_id": "u1", "item_id": "c", "gain": 1},
    {"list_id": "u1", "item_id": "z", "gain": 2},
    {"list_id": "u3", "item_id": "a", "gain": 1},
]


def tables(folder: Path, kind: str) -> tuple[str, str]:
    names = []
    for name, rows in (("slates", SLATES), ("labels", LABELS)):
        path = folder / f"{name}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif kind == "csv":
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
            path.write_text("\n".join(lines) + "\n")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        names.append(str(path))
    return names[0], names[1]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_slates_and_labels_of_case_a_give_its_figures(kind: str, tmp_path: Path) -> None:
    """Case A of docs: [a, b, c] with b: 3, c: 1 and z: 2 not shown, k = 5.

    DCG = 3/log2(3) + 1/log2(4), ideal = 3 + 2/log2(3) + 1/log2(4).
    """
    slates, labels = tables(tmp_path, kind)
    names = "precision@5,recall@5,ndcg@5,map@5,mrr@5"
    found = run(slates, "--labels", labels, "--metrics", names, "--per-list", "--by", "variant")
    log3 = math.log2(3)
    ideal = 3 + 2 / log3 + 1 / 2
    assert found["lists"]["u1"] == pytest.approx(
        {
            "precision@5": 2 / 5,
            "recall@5": 2 / 3,
            "ndcg@5": (3 / log3 + 1 / 2) / ideal,
            "map@5": (1 / 2 + 2 / 3) / 3,
            "mrr@5": 1 / 2,
        },
        abs=1e-12,
    )
    assert set(found["lists"]["u2"].values()) == {0.0}
    assert set(found["lists"]["u3"].values()) == {0.0}, "a user without a list counts 0"
    assert found["figures"]["precision@5"]["n"] == 3
    by = {segment["variant"]: segment["figures"]["recall@5"]["n"] for segment in found["segments"]}
    assert by == {"A": 1, "B": 1, "": 1}


def test_lists_that_only_labels_know_can_be_left_out(tmp_path: Path) -> None:
    slates, labels = tables(tmp_path, "csv")
    found = run(slates, "--labels", labels, "--no-complete", "--per-list")
    assert list(found["lists"]) == ["u1", "u2"]


def test_ranks_with_gaps_and_repeated_items_follow_the_streams_rule(tmp_path: Path) -> None:
    slates, labels = tmp_path / "s.csv", tmp_path / "l.csv"
    # Ranks become 1, 3, 4, 7: an equal rank moves down, gaps stay, the second b is a duplicate.
    slates.write_text("list,item,rank\nu,a,1\nu,b,3\nu,c,3\nu,b,5\nu,d,7\n")
    labels.write_text("list,item\nu,b\nu,c\nu,d\n")
    found = run(str(slates), "--labels", str(labels), "--metrics", "map", "--per-list")
    assert found["lists"]["u"]["map"] == pytest.approx((1 / 3 + 2 / 4 + 3 / 7) / 3, abs=1e-12)


def trec(folder: Path) -> tuple[str, str]:
    run_file, qrels = folder / "run", folder / "qrels"
    run_file.write_text("1 Q0 d1 1 2.0 x\n1 Q0 d2 2\t2.0 x\n1 Q0 d3 3 3.5 x\n9 Q0 d1 1 1.0 x\n")
    qrels.write_text("1 0 d1 1\n1 0 d3 0\n1 0 d4 -1\n2 0 d1 2\n")
    return str(run_file), str(qrels)


@pytest.mark.parametrize(("ties", "rank"), [("trec", 3), ("input", 2)])
def test_equal_scores_are_ordered_as_asked(ties: str, rank: int, tmp_path: Path) -> None:
    run_file, qrels = trec(tmp_path)
    arguments = ["--run", run_file, "--qrels", qrels, "--metrics", "mrr", "--per-list"]
    assert run(*arguments, "--ties", ties)["lists"]["1"]["mrr"] == pytest.approx(1 / rank)
    if ties == "trec":
        assert run(*arguments)["lists"]["1"]["mrr"] == pytest.approx(1 / rank), "the default"


def test_topics_of_the_qrels_without_a_run_count_0_unless_left_out(tmp_path: Path) -> None:
    run_file, qrels = trec(tmp_path)
    arguments = ["--run", run_file, "--qrels", qrels, "--metrics", "mrr", "--per-list"]
    assert run(*arguments)["lists"]["2"]["mrr"] == 0.0
    assert list(run(*arguments, "--no-complete")["lists"]) == ["1"]


def test_json_has_exactly_the_documented_keys(tmp_path: Path) -> None:
    run_file, qrels = trec(tmp_path)
    found = run("--run", run_file, "--qrels", qrels, "--metrics", "ndcg@10", "--per-list")
    assert list(found) == ["figures", "lists", "notes"], "notes as a run is put in order by score"
    assert list(found["figures"]["ndcg@10"]) == ["value", "low", "high", "n"]
    assert list(found["lists"]["1"]) == ["ndcg@10"]


def test_nothing_to_average_is_null_and_not_zero(tmp_path: Path) -> None:
    file = write(tmp_path / "none.parquet", [], 10)
    assert run(file)["figures"]["ndcg@10"] == {"value": None, "low": None, "high": None, "n": 0}


def test_the_catalogue_names_formula_and_source() -> None:
    rows = {row["name"]: row for row in run("--list")["catalogue"]}
    assert {metric.name for metric in RANKING} <= set(rows)
    assert all(row["formula"] and row["source"] for row in rows.values())
    text = invoke("--list")
    assert "ndcg@k" in text
    assert rows["ndcg"]["formula"] in text


def test_what_cannot_be_answered_is_said_in_one_sentence(tmp_path: Path) -> None:
    slates, labels = tables(tmp_path, "csv")
    file = write(tmp_path / "o.parquet", [outcome(1, random.Random(1))], 10)
    bad = tmp_path / "bad"
    bad.write_text("1 Q0 d1 1 2.0\n")
    assert "nosuch@5" in refused(file, "--metrics", "nosuch@5")
    assert "needs a cutoff" in refused(file, "--metrics", "precision")
    assert "go together" in refused("--run", str(bad))
    assert "bad:1: 6 fields" in refused("--run", str(bad), "--qrels", str(bad))
    assert "not an outcome file" in refused(slates)
    assert "no column" in refused(labels, "--labels", labels)
    assert "no such file" in refused(str(tmp_path / "away.parquet"))
    assert "--by user" in refused(file, "--by", "user")
    assert "no files" in refused()
    assert "--ties" in refused(file, "--ties", "some")


def test_two_lists_of_one_name_cannot_be_shown_apart(tmp_path: Path) -> None:
    row = outcome(1, random.Random(1))
    file = write(tmp_path / "o.parquet", [row, row], 10)
    assert "two lists of this name" in refused(file, "--per-list")


def test_a_source_says_whether_its_files_are_outcomes(tmp_path: Path) -> None:
    file = write(tmp_path / "o.parquet", [outcome(1, random.Random(1))], 10)
    slates, labels = tables(tmp_path, "csv")
    assert source([file]).outcomes
    assert not source([slates], labels=[labels]).outcomes


@pytest.mark.skipif(not GOLDEN.exists(), reason="needs the golden cases")
def test_200_lists_as_tables_have_the_scores_other_libraries_give(tmp_path: Path) -> None:
    cases = json.loads(GOLDEN.read_text())["cases"]
    shown, labels = [], []
    for case in cases:
        scores = case["scores"] or [None] * len(case["ranked"])
        shown += [
            {"list": case["id"], "item": item, "score": score}
            for item, score in zip(case["ranked"], scores, strict=True)
        ]
        labels += [
            {"list": case["id"], "item": item, "gain": gain} for item, gain in case["qrels"].items()
        ]
    pq.write_table(pa.Table.from_pylist(shown), tmp_path / "shown.parquet")
    pq.write_table(pa.Table.from_pylist(labels), tmp_path / "labels.parquet")
    wanted = {}
    for case in cases:
        for measure, values in case["values"].items():
            name, _, cut = measure.partition("@")
            mine = CONVENTIONS[name] + (f"@{cut}" if cut else "")
            # ir_measures rounds this one to five digits.
            exact = {
                value
                for library, value in values.items()
                if (library, name) != ("ir_measures", "ndcg_exp")
            }
            wanted[case["id"], mine] = exact
    found = run(
        *(str(tmp_path / "shown.parquet"), "--labels", str(tmp_path / "labels.parquet")),
        *("--metrics", ",".join(sorted({name for _, name in wanted})), "--per-list"),
    )["lists"]
    assert len(cases) == 200
    for (case, name), values in wanted.items():
        # A case without any item and any label is in neither table.
        if case in found:
            for value in values:
                assert found[case][name] == pytest.approx(value, abs=1e-9), (case, name)


def test_a_figure_made_of_means_has_no_interval_and_no_score_of_a_list(tmp_path: Path) -> None:
    slates, labels = tables(tmp_path, "csv")
    names = "precision@2,recall@2,f1_mean@2,auc"
    found = run(slates, "--labels", labels, "--metrics", names, "--per-list")
    # Of u1 [a, b, c] b is relevant at 2; u2 and u3 have none: means of 1/2 and 1/3 over 3 lists.
    precision, recall = 1 / 6, 1 / 9
    mean = found["figures"]["f1_mean@2"]
    assert mean["value"] == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-9)
    assert (mean["low"], mean["high"], mean["n"]) == (None, None, 3)
    assert "f1_mean@2" not in found["lists"]["u1"]
    # One class is missing in u2 and u3: no value, so one list is counted.
    assert found["figures"]["auc"] == {"value": 0.0, "low": None, "high": None, "n": 1}
    assert found["lists"]["u2"]["auc"] is None
