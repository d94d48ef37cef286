"""One standard error: the same slates have the same in `/metrics`, the API, `replay` and files."""

import json
import random

import pyarrow.parquet as pq
import pytest
from test_compare_arms import arms_of
from test_exposition import a_status, samples, text_of

from streameval.base.steps import drain
from streameval.core.definition import Definition, Positive, Window
from streameval.core.events import EventDecoder
from streameval.core.experiments.definition import Experiment
from streameval.core.figures import SECTIONS
from streameval.core.partition import Partition
from streameval.evaluation.readers.outcomes import read_outcomes
from streameval.evaluation.sums import Asked, evaluate
from streameval.files.outcome_files import table
from streameval.web.intervals import with_intervals

START = 1_769_842_800_000
DEFINITION = Definition(
    positives=(Positive("click"), Positive("buy", value="sum")),
    windows=(Window("30d", 2_592_000_000, 3_600_000),),
    experiments=(Experiment("e", "variant", "A", "ndcg@10"),),
)
SCORES = ("precision", "recall", "ndcg", "map", "mrr", "hit_rate")
RATES = ("positives_per_impression",)
LISTS = ("empty_rate", "abandonment_rate", "mean_rank_of_positives", "top3_share")
VALUES = ("value_per_slate", "value_per_impression", "value_per_positive")


def stream():
    """300 users, a few of whom make most of the lists, and a last list far behind all others."""
    chance = random.Random(5)
    for number in range(2_000):
        ts = START + number * 1_000
        user = f"u{min(299, int(3 * chance.paretovariate(0.6)))}"
        items = [f"i{chance.randrange(50)}" for _ in range(chance.randint(0, 12))]
        items = list(dict.fromkeys(items))
        of = {"ts": ts, "user_id": user, "request_id": f"r{number}"}
        yield {"type": "slate", **of, "variant": "AB"[hash_of(user)], "items": items}
        for item in items:
            if chance.random() < 0.1:
                kind = chance.choice(("click", "buy"))
                value = {"value": chance.lognormvariate(2, 1)} if kind == "buy" else {}
                yield {"type": "feedback", **of, "item_id": item, "feedback": kind, **value}
    later = START + 20 * 86_400_000
    yield {"type": "slate", "ts": later, "user_id": "z", "request_id": "z", "items": ["i"]}


def hash_of(user):
    return sum(user.encode()) % 2


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory):
    """The matured rows of the window, its page, the arms of files, and figures of files."""
    decoder = EventDecoder.of(DEFINITION)
    events, rejected = decoder.decode_batch([json.dumps(one).encode() for one in stream()])
    assert not rejected
    state = Partition(DEFINITION, keep_outcomes=True)
    state.apply(events)
    state.flush()
    file = tmp_path_factory.mktemp("outcomes") / "p0-0-1-a.parquet"
    final = state.outcomes_of(drain(state.finalizing()))
    pq.write_table(table(0, final, DEFINITION.labels), file)
    found = state.document()
    shown = {name: found[name] for name in SECTIONS}
    page = samples(text_of(a_status(DEFINITION, shown)))
    (experiment,) = DEFINITION.experiments
    return shown, page, arms_of(DEFINITION, experiment, file), file


def row_of(sections, section, arm, **labels):
    (row,) = [
        row
        for row in sections[section]
        if (row["basis"], row["variant"]) == ("matured", arm)
        and all(row[name] == value for name, value in labels.items())
    ]
    return row


def cases():
    for name in SCORES:
        for k in DEFINITION.ks:
            yield "ranking", name, {"k": k}, f"{name}@{k}"
    for name in RATES:
        for kind in DEFINITION.kinds:
            yield "rates", name, {"feedback": kind}, f"{name}{{feedback={kind}}}"
    for name in LISTS:
        yield "lists", name, {}, name
    for name in VALUES:
        yield "values", name, {"feedback": "buy"}, f"{name}{{feedback=buy}}"


@pytest.mark.parametrize("arm", ["A", "B"])
@pytest.mark.parametrize(("section", "name", "labels", "metric"), list(cases()))
def test_a_figure_has_the_same_error_everywhere(everywhere, arm, section, name, labels, metric):
    sections, page, arms, _ = everywhere
    error = row_of(sections, section, arm, **labels)[f"{name}_stderr"]
    assert error > 0
    api = with_intervals(sections, DEFINITION.dimensions)
    assert row_of(api, section, arm, **labels)[f"{name}_stderr"] == error
    of = {"window": "30d", "basis": "matured", "variant": arm}
    of |= {label: str(value) for label, value in labels.items()}
    assert page[f"streameval_{name}_stderr", frozenset(of.items())] == error
    compared = arms.ratio(metric, arm).arm()
    assert compared.value == pytest.approx(row_of(sections, section, arm, **labels)[name])
    assert compared.stderr == pytest.approx(error, rel=1e-12)


@pytest.mark.parametrize("arm", ["A", "B"])
@pytest.mark.parametrize("name", SCORES)
def test_figures_of_files_have_it_too(everywhere, arm, name):
    sections, _, _, file = everywhere
    row = row_of(sections, "ranking", arm, k=10)
    asked = Asked.parse(f"{name}@10")
    found = evaluate(
        read_outcomes([str(file)], ["variant"], lambda _: None), [asked.name], ["variant"]
    )
    ours = found._arm(asked, (arm,))
    assert ours.value == row[name]
    assert ours.stderr == pytest.approx(row[f"{name}_stderr"], rel=1e-12)
