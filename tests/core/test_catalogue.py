"""The catalogue of evaluate: cases computed by hand, other tools' values, exactness."""

import json
import math
import sys
from pathlib import Path

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from evaluating import CONVENTIONS, GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import fbeta_score, ndcg_score, roc_auc_score

from streameval.base.errors import InputError
from streameval.base.limits import MAX_RANK
from streameval.core.metrics import (
    METRICS,
    UNCUT,
    Lists,
    MeanMetric,
    Metric,
    curve,
    nano,
    precision_recall,
    user_models,
)
from streameval.core.metrics.curve import LEVELS, interpolate
from streameval.core.metrics.precision_recall import harmonic_mean
from streameval.core.metrics.user_models import HALF_LIFE, HALF_LIFE_UTILITY, NEUTRAL

BY_NAME = {
    entry.name: entry
    for entry in METRICS
    # The k of a level of recall is no rank: it has its own cases.
    if isinstance(entry, Metric) and entry.cutoff != "recall"
}
KS = (1, 3, 5, 10)


def lists_of(*cases):
    """Lists from (ranked items by place, gains by item, scores by place or None)."""
    rows, lengths, places, above = [], [], [], []
    for ranked, gains, scores in cases:
        relevant = {item: gain for item, gain in gains.items() if gain > 0}
        found = [(rank, item) for rank, item in enumerate(ranked, 1) if item in relevant]
        missing = [gain for item, gain in relevant.items() if item not in ranked]
        rows.append((tuple(r for r, _ in found), (*(relevant[i] for _, i in found), *missing)))
        lengths.append(len(ranked))
        judged = [gains.get(item) == 0 for item in ranked]
        above.append([sum(judged[:rank]) for rank, _ in found])
        known = [-float(rank) for rank in range(len(ranked))] if scores is None else scores
        places.append(
            [
                sum(other > known[rank - 1] for other in known)
                + (known.count(known[rank - 1]) + 1) / 2
                for rank, _ in found
            ]
        )
    lists = Lists.of(rows)
    return Lists(
        lists.ranks,
        lists.gains,
        lists.relevant,
        np.array(lengths),
        padded(places, lists.ranks.shape, float),
        np.array([sum(gain == 0 for gain in gains.values()) for _, gains, _ in cases]),
        padded(above, lists.ranks.shape, int),
        np.zeros(lists.ranks.shape, int),
    )


def padded(rows, shape, kind):
    found = np.zeros(shape, kind)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


def score(name, ranked, gains, k=UNCUT, scores=None):
    return BY_NAME[name].score(lists_of((ranked, gains, scores)), k)[0]


# --- The catalogue


def test_names_are_unique_and_every_row_says_what_it_means():
    assert len({entry.name for entry in METRICS}) == len(METRICS)
    for entry in METRICS:
        for said in (entry.formula, entry.source, entry.convention, entry.undefined):
            assert said and "\n" not in said and not said.endswith("."), entry.name


# --- Computed by hand. Case A: ranked [a, b, c], grades {b: 3, c: 1, z: 2}, k = 5.
# Hits at ranks 2 and 3, R = 3; 1/log2(3) = 0.63093, 1/log2(4) = 0.5.

CASE_A = (["a", "b", "c"], {"b": 3, "c": 1, "z": 2})
L3 = 1 / math.log2(3)
DCG = 3 * L3 + 0.5
CASES_OF_A = {
    "precision": 2 / 5,
    "recall": 2 / 3,
    "recall_capped": 2 / 3,  # min(R, k) = 3
    "f1_user": 2 * 2 / (5 + 3),  # 2 · 0.4 · 0.6667 / 1.0667 = 0.5
    "f_beta_user": 5 * 2 / (4 * 3 + 5),  # beta 2: 5 · 0.4 · 0.6667 / (4 · 0.4 + 0.6667)
    "mar": (1 / 3 + 2 / 3) / 3,
    "map": (1 / 2 + 2 / 3) / 3,
    "map_capped": (1 / 2 + 2 / 3) / 3,
    "map_over_k": (1 / 2 + 2 / 3) / 5,
    # P@1 to P@5 are 0, 1/2, 2/3, 2/4, 2/5: their sum 2.06667 over 5.
    "map_blog": (0 + 1 / 2 + 2 / 3 + 2 / 4 + 2 / 5) / 5,
    "mrr": 1 / 2,
    "hit_rate": 1,
    "r_precision": 2 / 3,  # R = 3: both hits are within rank 3
    "rbp": 0.2 * (0.8 + 0.8**2),
    "bpref": 2 / 3,  # nobody called an item irrelevant
    # At rank 2 nothing judged is above: 1/2. At rank 3 one of two items above is judged.
    "inf_ap": (1 / 2 + 1 / 3 + 2 / 3 * 1 / 2 * (1 + 1e-5) / (1 + 2e-5)) / 3,
    "ndcg": DCG / (3 + 2 * L3 + 1 * 0.5),
    "ndcg_exp": (7 * L3 + 1 * 0.5) / (7 + 3 * L3 + 0.5),
    "ndcg_binary": (L3 + 0.5) / (1 + L3 + 0.5),
    "ndcg_binary_full": (L3 + 0.5) / (1 + L3 + 0.5 + 1 / math.log2(5) + 1 / math.log2(6)),
    "dcg": DCG,
    "dcg_exp": 7 * L3 + 0.5,
    "dcg_binary": L3 + 0.5,
    "auc": 0,  # both relevant items stand below the only other one
    # Half-life 5, neutral 0: 3 / 2^(1/4) + 1 / 2^(2/4).
    "half_life": 3 / 2**0.25 + 1 / 2**0.5,
    "precision_over_length": 2 / 3,
    "ndcg_over_k": (L3 + 0.5) / 5,
    "ndcg_sum": L3 + 0.5,
    "dcg_ln": 3 / math.log(3) + 1 / math.log(4),
    "mrr_plus_one": 1 / (1 + 2),
}
PUBLISHED_OF_A = {
    "map_blog": 0.4133,
    "ndcg": 0.5025,
    "ndcg_exp": 0.5234,
    "ndcg_binary": 0.5307,
    "ndcg_binary_full": 0.3836,
    "dcg": 2.3928,
    "dcg_binary": 1.1309,
    "precision_over_length": 0.6667,
    "ndcg_over_k": 0.2262,
    "ndcg_sum": 1.1309,
}


def test_case_a_has_the_value_of_each_convention():
    assert CASES_OF_A.keys() == BY_NAME.keys()
    for name, value in CASES_OF_A.items():
        assert score(name, *CASE_A, 5) == pytest.approx(value, abs=1e-12), name
    for name, value in PUBLISHED_OF_A.items():
        assert CASES_OF_A[name] == pytest.approx(value, abs=5e-5), name


@pytest.mark.parametrize(
    ("name", "value"),
    [("map", 2 / 3), ("map_capped", 1), ("map_over_k", 1), ("recall_capped", 1), ("recall", 2 / 3)],
)
def test_case_b_tells_the_denominators_apart(name, value):
    """Case B: ranked [a, b, x], relevant {a, b, c}, k = 2."""
    assert score(name, ["a", "b", "x"], dict.fromkeys("abc", 1), 2) == pytest.approx(value)


def test_precision_over_length_takes_the_shorter_of_the_list_and_k():
    assert score("precision_over_length", ["a", "x", "b"], {"a": 1, "b": 1}, 2) == 1 / 2
    assert score("precision_over_length", [], {"a": 1}, 2) == 0


def test_f1_of_the_means_is_not_the_mean_of_f1():
    """Three lists: P@1 is 1, 0, 1 and recall@1 is 1/2, 0, 1, so their means are 2/3 and 1/2.

    Of the means: 2 · 2/3 · 1/2 / (2/3 + 1/2) = (2/3) / (7/6) = 4/7. List by list: 2/3, 0 and 1,
    of which the mean is 5/9.
    """
    cases = [(["a"], {"a": 1, "b": 1}, None), (["x"], {"a": 1}, None), (["a"], {"a": 1}, None)]
    lists = lists_of(*cases)
    entry = next(entry for entry in METRICS if isinstance(entry, MeanMetric))
    means = [part.score(lists, 1).mean() for part in entry.parts]
    assert means == pytest.approx([2 / 3, 1 / 2])
    assert entry.combine(*means) == pytest.approx(4 / 7)
    assert BY_NAME["f1_user"].score(lists, 1).mean() == pytest.approx(5 / 9)
    assert harmonic_mean(0.0, 0.0) == 0.0


def utility(half_life, neutral):
    return HALF_LIFE_UTILITY.with_values({HALF_LIFE: half_life, NEUTRAL: neutral})


def test_half_life_halves_the_worth_at_its_rank():
    """Half-life 2, neutral 1, ratings 5, 1, 3 at ranks 1 to 3: 4/1 + 0/2 + 2/4 = 4.5."""
    lists = lists_of((["a", "b", "c"], {"a": 5, "b": 1, "c": 3}, None))
    assert utility(2.0, 1.0).score(lists, UNCUT)[0] == 4.5
    assert utility(2.0, 1.0).score(lists, 2)[0] == 4.0


@pytest.mark.parametrize(("half_life", "neutral"), [(1.0, 0.0), (5.0, -1.0)])
def test_half_life_refuses_parameters_without_a_meaning(half_life, neutral):
    with pytest.raises(InputError, match=r"give a number (above 1|not below 0)"):
        utility(half_life, neutral)


def test_bpref_by_hand():
    """Irrelevant at ranks 1, 3 and out of the list; relevant at 2, 4 and 5 (not labelled), R = 2.

    Of at most 2 irrelevant items 1 stands above the first and 2 above the second: 1/2 and 0.
    """
    gains = {"x": 0, "a": 1, "y": 0, "b": 1, "z": 0}
    assert score("bpref", list("xaybc"), gains) == pytest.approx((1 / 2 + 0) / 2)


def test_auc_is_undefined_where_a_class_is_missing():
    assert math.isnan(score("auc", ["a"], {"a": 1}))
    assert math.isnan(score("auc", ["a"], {}))
    assert math.isnan(score("auc", [], {"a": 1}))


def test_a_list_without_relevant_items_scores_0_and_is_kept():
    for name in BY_NAME.keys() - {"auc"}:
        assert score(name, ["a", "b"], {"a": 0}, 5) == 0, name
        assert score(name, [], {}, 5) == 0, name


def test_interpolated_precision_by_hand():
    """Relevant at ranks 2 and 5 of R = 4: P 1/2 and 2/5; half of them is all that is found.

    Levels 0 to 0.3 need int(4 · level + 0.5) = 0 to 1 items, 0.4 to 0.6 two, the rest more.
    """
    lists = lists_of((list("xaxxb"), dict.fromkeys("abcd", 1), None), ([], {}, None))
    assert interpolate(lists)[0].tolist() == [0.5] * 4 + [0.4] * 3 + [0.0] * 4
    assert interpolate(lists)[1].tolist() == [0.0] * 11
    assert curve.METRIC.score(lists, 4).tolist() == [0.4, 0.0], "k is in tenths"


def test_ranks_beyond_those_of_a_stream_are_scored_too():
    lists = Lists.of([((MAX_RANK + 5,), (1.0,))])
    assert BY_NAME["dcg"].score(lists, UNCUT)[0] == 1 / math.log2(MAX_RANK + 6)
    assert BY_NAME["mrr"].score(lists, UNCUT)[0] == 1 / (MAX_RANK + 5)


def test_a_score_too_large_for_an_exact_sum_is_refused():
    lists = Lists.of([((1,), (90.0,))])
    with pytest.raises(InputError, match="gains or errors are too large"):
        nano(BY_NAME["dcg_exp"].score(lists, 10))


# --- Properties


@st.composite
def cases(draw):
    """A ranked list, gains of its items and of some that it does not show, scores with ties."""
    ranked = [f"i{n:02}" for n in draw(st.permutations(range(draw(st.integers(0, 15)))))]
    known = [*ranked, *(f"m{n}" for n in range(draw(st.integers(0, 3))))]
    gains = {item: draw(st.sampled_from([0, 0, 1, 2, 3])) for item in known}
    scores = sorted((draw(st.integers(0, 6)) / 2 for _ in ranked), reverse=True)
    return ranked, gains, scores


@given(st.lists(cases(), min_size=1, max_size=12), st.sampled_from([1, 5, 10, 30]))
def test_a_list_has_the_same_bits_in_any_batch(batch, k):
    together = lists_of(*batch)
    for name, metric in BY_NAME.items():
        alone = np.concatenate([metric.score(lists_of(case), k) for case in batch])
        assert metric.score(together, k).tobytes() == alone.tobytes(), name
    alone = np.concatenate([interpolate(lists_of(case)) for case in batch])
    assert interpolate(together).tobytes() == alone.tobytes()


# --- Other tools, asked here and now


def run_and_qrels(batch):
    """The same lists for trec_eval: scores fall with rank, every list has a line in both."""
    run, qrels = {}, {}
    for number, (ranked, gains, _) in enumerate(batch):
        run[f"q{number}"] = {item: float(len(ranked) - n) for n, item in enumerate(ranked)}
        qrels[f"q{number}"] = gains
    return run, qrels


@given(st.lists(cases().filter(lambda case: case[0]), min_size=1, max_size=8))
def test_trec_eval_gives_the_same_scores(batch):
    run, qrels = run_and_qrels(batch)
    theirs = {
        "P": "precision",
        "recall": "recall",
        "ndcg_cut": "ndcg",
        "map_cut": "map",
        "success": "hit_rate",
    }
    whole = {"map": "map", "recip_rank": "mrr", "ndcg": "ndcg", "Rprec": "r_precision"}
    whole |= {"bpref": "bpref", "infAP": "inf_ap"}
    names = {f"{name}.{','.join(map(str, KS))}" for name in theirs} | set(whole)
    found = pytrec_eval.RelevanceEvaluator(qrels, names | {"iprec_at_recall"}).evaluate(run)
    lists = lists_of(*batch)
    curve = interpolate(lists)
    ours = {f"{a}_{k}": BY_NAME[b].score(lists, k) for a, b in theirs.items() for k in KS}
    ours |= {a: BY_NAME[b].score(lists, UNCUT) for a, b in whole.items()}
    for number in range(len(batch)):
        for place, level in enumerate(LEVELS):
            # Its copy is version 9, which rounds level · R in another way.
            needed = level * int(lists.relevant[number])
            if int(needed + 0.9) == int(needed + 0.5):
                expected = found.get(f"q{number}", {}).get(f"iprec_at_recall_{level:.2f}", 0.0)
                assert curve[number, place] == pytest.approx(expected, abs=1e-9), level
        for name, values in ours.items():
            # A list whose items are all unjudged has no line of trec_eval's.
            expected = found.get(f"q{number}", {}).get(name, 0.0)
            assert values[number] == pytest.approx(expected, abs=1e-9), name


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="ir_measures 0.4 asks for ast.Num")
@given(st.lists(cases().filter(lambda case: case[0]), min_size=1, max_size=6))
def test_ir_measures_gives_the_same_means(batch):
    run, qrels = run_and_qrels(batch)
    measures = {"P": "precision", "R": "recall", "AP": "map", "RR": "mrr", "nDCG": "ndcg"}
    asked = {
        ir_measures.parse_measure(f"{theirs}@{k}"): (ours, k)
        for theirs, ours in {**measures, "Success": "hit_rate"}.items()
        for k in KS
    }
    found = ir_measures.calc_aggregate(list(asked), qrels, run)
    lists = lists_of(*batch)
    for measure, (ours, k) in asked.items():
        mean = BY_NAME[ours].score(lists, k).mean()
        assert mean == pytest.approx(found[measure], abs=1e-9), measure


@given(cases().filter(lambda case: len(case[0]) > 1))
def test_scikit_learn_gives_the_same_auc_and_ndcg(case):
    ranked, gains, scores = case
    labels = [int(gains[item] > 0) for item in ranked]
    if 0 < sum(labels) < len(labels):
        assert score("auc", ranked, gains, scores=scores) == pytest.approx(
            roc_auc_score(labels, scores), abs=1e-12
        )
    grades = [gains[item] for item in ranked]
    falling = [[-n for n in range(len(ranked))]]
    shown = {item: gains[item] for item in ranked}
    for k in KS:
        for name, worth in [("ndcg", grades), ("ndcg_exp", [2**g - 1 for g in grades])]:
            theirs = ndcg_score([worth], falling, k=k, ignore_ties=True)
            assert score(name, ranked, shown, k) == pytest.approx(theirs, abs=1e-9), name


@given(cases(), st.sampled_from([0.5, 2.0]))
def test_scikit_learn_gives_the_same_f_beta(case, beta):
    """Of the items that are shown or relevant; a list shorter than k is filled up with others."""
    ranked, gains, _ = case
    filled = [*ranked, *(f"filler{n}" for n in range(10 - len(ranked)))]
    known = [*filled, *(gains.keys() - set(filled))]
    theirs = fbeta_score(
        [gains.get(item, 0) > 0 for item in known],
        [item in filled[:10] for item in known],
        beta=beta,
        zero_division=0.0,
    )
    mine = precision_recall.F_BETA_USER.with_values({precision_recall.BETA: beta})
    assert mine.score(lists_of(case), 10)[0] == pytest.approx(theirs, abs=1e-12)


# --- Other tools, asked before

# ir_measures 0.4.3 with cwl-eval 1.0.12: RBP(rel=1, p=...) of relevant items at these ranks.
RANKS_RBP = [1, 3, 4, 9]
RBP_OF_CWL = {0.5: 0.689453125, 0.8: 0.4639544319999999, 0.95: 0.17116477156445326}


def test_rank_biased_precision_is_cwls():
    lists = Lists.of([(tuple(RANKS_RBP), (1.0,) * len(RANKS_RBP))])
    for persistence, value in RBP_OF_CWL.items():
        metric = user_models.RBP
        mine = metric.with_values({user_models.PERSISTENCE: persistence})
        assert mine.score(lists, UNCUT)[0] == pytest.approx(value, abs=1e-9)


def test_200_lists_have_the_values_of_six_tools_in_every_convention():
    if not GOLDEN.exists():
        pytest.skip("the golden values stand beside the repository, not in it")
    golden = json.loads(GOLDEN.read_text())
    lists = lists_of(*((case["ranked"], case["qrels"], None) for case in golden["cases"]))
    compared = dict.fromkeys(CONVENTIONS, 0)
    cache = {}
    for number, case in enumerate(golden["cases"]):
        for figure, by_tool in case["values"].items():
            name, _, k = figure.partition("@")
            cut = int(k or UNCUT)
            if (name, cut) not in cache:
                cache[name, cut] = BY_NAME[CONVENTIONS[name]].score(lists, cut)
            for tool, value in by_tool.items():
                # gdeval prints five decimals.
                rounded = name == "ndcg_exp" and tool == "ir_measures"
                mine = cache[name, cut][number]
                assert mine == pytest.approx(value, abs=1e-5 if rounded else 1e-9), (
                    case["id"],
                    figure,
                )
                compared[name] += 1
    assert min(compared.values()) >= 133


def test_the_documentation_has_every_row():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    suffix = {"required": "@k", "optional": "[@k]", "none": "", "recall": "@0.3"}
    for entry in (row.with_values({}) for row in METRICS):
        said = (entry.formula, entry.convention, entry.undefined, entry.source)
        assert f"| `{entry.name}{suffix[entry.cutoff]}` | {' | '.join(said)} |" in page
