"""The ranking metrics: hand-computed cases, other tools' values, and exactness."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.base.limits import MAX_MEMOISED_ROWS, NANO, SCORE_SLICE
from streameval.core.metrics import METRICS, RANKING, RATES, Lists, Scorer, nano, order_ranks

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "ranking_golden.json"


def scores(row, k, ndcg_gain="linear"):
    scorer = Scorer([k], ndcg_gain)
    return {
        metric: score / NANO
        for (metric, _), score in zip(scorer.columns, scorer.score([row])[0], strict=True)
    }


# --- Cases computed by hand

# Case A: ranked [a, b, c], grades {b: 3, c: 1, z: 2}: z is relevant and not in the list.
CASE_A = ((2, 3), (3.0, 1.0, 2.0))


def test_case_a_has_trec_evals_values_at_5():
    dcg = 3 / math.log2(3) + 1 / math.log2(4)
    ideal = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert scores(CASE_A, 5) == pytest.approx(
        {
            "precision": 2 / 5,
            "recall": 2 / 3,
            "ndcg": dcg / ideal,
            "map": (1 / 2 + 2 / 3) / 3,
            "mrr": 1 / 2,
            "hit_rate": 1.0,
        },
        abs=1e-9,
    )
    assert dcg / ideal == pytest.approx(0.5025, abs=5e-5)


def test_case_a_with_exponential_gains_changes_ndcg_only():
    linear, exponential = scores(CASE_A, 5), scores(CASE_A, 5, "exponential")
    assert exponential.pop("ndcg") == pytest.approx(0.5234, abs=5e-5)
    linear.pop("ndcg")
    assert exponential == linear


def test_case_b_divides_average_precision_by_all_relevant_items():
    # Case B: ranked [a, b, x], relevant {a, b, c}, k = 2: min(R, k) would give 1.
    assert scores(((1, 2), (1.0, 1.0, 1.0)), 2) == pytest.approx(
        {
            "precision": 1.0,
            "recall": 2 / 3,
            "ndcg": 1.0,
            "map": 2 / 3,
            "mrr": 1.0,
            "hit_rate": 1.0,
        },
        abs=1e-9,
    )


def test_a_hit_below_the_cut_off_counts_only_in_what_is_relevant():
    row = ((1, 4), (1.0, 1.0))
    assert scores(row, 3) == pytest.approx(
        {
            "precision": 1 / 3,
            "recall": 1 / 2,
            "ndcg": 1 / (1 + 1 / math.log2(3)),
            "map": 1 / 2,
            "mrr": 1.0,
            "hit_rate": 1.0,
        },
        abs=1e-9,
    )
    assert set(scores(((4,), (1.0,)), 3).values()) == {0.0}


def test_a_slate_without_a_positive_scores_0():
    assert set(scores(((), ()), 5).values()) == {0.0}


def test_gains_in_falling_order_from_the_top_are_a_perfect_ndcg():
    assert scores(((1, 2, 3), (5.0, 3.0, 3.0)), 3)["ndcg"] == 1.0
    assert scores(((1, 2, 3), (3.0, 5.0, 3.0)), 3)["ndcg"] < 1.0


def test_scores_are_rounded_to_the_nearest_nano_unit():
    assert nano(np.array([0.0, 1 / 3, 2 / 3, 1.0])).tolist() == [0, 333333333, 666666667, NANO]


# --- The catalogue


def test_the_catalogue_has_its_order_and_one_sentence_each():
    assert [metric.name for metric in RANKING] == [
        *("precision", "recall", "ndcg", "map", "mrr", "hit_rate")
    ]
    places = [metric.windowed and metric.windowed.place for metric in RANKING]
    assert places == list(range(1, len(RANKING) + 1))
    assert tuple(row for row in METRICS if getattr(row, "windowed", None)) == RANKING
    assert [rate.name for rate in RATES] == ["positive_rate", "positives_per_impression"]
    for row in METRICS:
        assert row.formula and row.source
        assert "\n" not in row.formula and not row.formula.endswith(".")


def test_columns_are_all_metrics_of_one_k_then_of_the_next():
    columns = Scorer([5, 10], "linear").columns
    assert columns == [(metric.name, k) for k in (5, 10) for metric in RANKING]


# --- Ranks


@pytest.mark.parametrize(
    ("items", "ranks"),
    [
        ([], {}),
        ([("b", 2, 0), ("a", 1, 0)], {"a": 1, "b": 2}),
        ([("a", 3, 0), ("b", 7, 0)], {"a": 3, "b": 7}),  # gaps stay
        ([("a", 2, 5), ("b", 2, 4), ("c", 3, 0)], {"b": 2, "a": 3, "c": 4}),  # ts decides
        ([("b", 1, 0), ("a", 1, 0)], {"a": 1, "b": 2}),  # then the id
        ([("a", None, 9), ("b", None, 8), ("c", 1, 0)], {"b": 1, "a": 2, "c": 3}),
        ([("a", None, 0), ("c", 5, 0)], {"a": 1, "c": 5}),
    ],
)
def test_ranks_follow_position_then_time_then_id_and_strictly_rise(items, ranks):
    assert order_ranks(items) == ranks
    assert list(order_ranks(items)) == list(ranks)


@given(
    st.dictionaries(
        st.text(max_size=3), st.tuples(st.none() | st.integers(1, 9), st.integers(0, 3))
    )
)
def test_every_item_has_a_rank_of_its_own_not_above_its_position(items):
    ranks = order_ranks((item, position, ts) for item, (position, ts) in items.items())
    assert ranks.keys() == items.keys()
    assert len(set(ranks.values())) == len(ranks)
    assert all(rank >= (items[item][0] or 1) for item, rank in ranks.items())
    assert order_ranks((item, *rest) for item, rest in reversed(items.items())) == ranks


# --- Properties


@st.composite
def rows(draw):
    ranks = sorted(draw(st.sets(st.integers(1, 30), max_size=8)))
    gain = st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, 7.25])
    missing = draw(st.integers(0, 2))
    gains = draw(st.lists(gain, min_size=len(ranks) + missing, max_size=len(ranks) + missing))
    return tuple(ranks), tuple(gains)


def naive(row, k, ndcg_gain):
    """The definitions, item by item, in plain Python."""
    ranks, gains = row
    worth = [2**gain - 1 if ndcg_gain == "exponential" else gain for gain in gains]
    top = [rank for rank in ranks if rank <= k]
    relevant = len(gains)
    if not top:
        return dict.fromkeys((metric.name for metric in RANKING), 0.0)
    dcg = math.fsum(g / math.log2(r + 1) for r, g in zip(ranks, worth, strict=False) if r <= k)
    best = sorted(worth, reverse=True)[:k]
    ideal = math.fsum(g / math.log2(place + 1) for place, g in enumerate(best, 1))
    return {
        "precision": len(top) / k,
        "recall": len(top) / relevant,
        "ndcg": dcg / ideal,
        "map": math.fsum(hits / rank for hits, rank in enumerate(top, 1)) / relevant,
        "mrr": 1 / top[0],
        "hit_rate": 1.0,
    }


@given(rows(), st.sampled_from([1, 2, 5, 10, 50]), st.sampled_from(["linear", "exponential"]))
def test_the_kernel_agrees_with_the_definitions_in_plain_python(row, k, ndcg_gain):
    assert scores(row, k, ndcg_gain) == pytest.approx(naive(row, k, ndcg_gain), abs=1e-9)


@given(st.lists(rows(), max_size=20), st.data(), st.sampled_from(["linear", "exponential"]))
def test_a_row_has_the_same_score_bit_for_bit_in_any_batch(batch, data, ndcg_gain):
    whole = Scorer([1, 5, 10], ndcg_gain).score(batch)
    assert ((whole >= 0) & (whole <= NANO)).all()
    cut = data.draw(st.integers(0, len(batch)))
    halves = Scorer([1, 5, 10], ndcg_gain)
    parts = [halves.score(batch[:cut]), halves.score(batch[cut:])]
    assert np.concatenate(parts).tolist() == whole.tolist()
    alone = [Scorer([1, 5, 10], ndcg_gain).score([row])[0].tolist() for row in batch]
    assert alone == whole.tolist()


@given(st.lists(rows(), min_size=1, max_size=20))
def test_the_floats_of_a_kernel_do_not_depend_on_the_width_of_the_batch(batch):
    """Nano-units could hide a last bit: the kernels themselves are compared."""
    together = Lists.of(batch)
    for metric in RANKING:
        alone = [metric.score(Lists.of([row]), 10)[0] for row in batch]
        assert metric.score(together, 10).tolist() == alone


def test_what_is_forgotten_is_scored_again_to_the_same():
    """More distinct rows than memory holds, and more relevant items than it holds."""
    scorer = Scorer([10], "linear")
    many = [((1 + i % 40, 50 + i // 40), (1.0, 3.0)) for i in range(MAX_MEMOISED_ROWS + 1)]
    first = scorer.score(many)
    assert scorer.score(many[:SCORE_SLICE]).tolist() == first[:SCORE_SLICE].tolist()
    wide = [(tuple(range(1, 1001)), (1.0 + i,) * 1000) for i in range(300)]
    assert scorer.score(wide).tolist() == Scorer([10], "linear").score(wide[::-1]).tolist()[::-1]
    assert scorer.score(many[-1:]).tolist() == first[-1:].tolist()


def test_a_scored_batch_may_be_changed_by_its_owner():
    scorer = Scorer([5], "linear")
    row = ((1,), (1.0,))
    scorer.score([row])[:] = -1
    assert scorer.score([row]).min() > 0


# --- Other tools


@pytest.fixture(scope="module")
def golden():
    if not GOLDEN.exists():
        pytest.skip("the golden values stand beside the repository, not in it")
    return json.loads(GOLDEN.read_text())


def golden_row(case):
    relevant = {item: float(grade) for item, grade in case["qrels"].items() if grade >= 1}
    ranked = [(rank, item) for rank, item in enumerate(case["ranked"], 1) if item in relevant]
    missing = [grade for item, grade in relevant.items() if item not in case["ranked"]]
    gains = [relevant[item] for _, item in ranked] + missing
    return tuple(rank for rank, _ in ranked), tuple(gains)


@pytest.mark.parametrize(
    ("theirs", "ours", "ndcg_gain"),
    [
        ("precision", "precision", "linear"),
        ("recall", "recall", "linear"),
        ("ndcg_linear", "ndcg", "linear"),
        ("ndcg_exp", "ndcg", "exponential"),
        ("ap", "map", "linear"),
        ("rr", "mrr", "linear"),
        ("hit", "hit_rate", "linear"),
    ],
)
def test_five_other_tools_give_the_same_values(golden, theirs, ours, ndcg_gain):
    rows = [golden_row(case) for case in golden["cases"]]
    scorer = Scorer(golden["ks"], ndcg_gain)
    table = scorer.score(rows) / NANO
    compared = 0
    for case, values in zip(golden["cases"], table, strict=True):
        for k in golden["ks"]:
            mine = values[scorer.columns.index((ours, k))]
            for package, value in case["values"].get(f"{theirs}@{k}", {}).items():
                rounded = ours == "ndcg" and ndcg_gain == "exponential" and package == "ir_measures"
                assert mine == pytest.approx(value, abs=1e-5 if rounded else 1e-9), case["id"]
                compared += 1
    assert compared >= 200 * len(golden["ks"])
