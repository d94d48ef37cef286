"""Settings of experiments: what a file may say, and the one line that says what is wrong."""

import json
import re
import time
from pathlib import Path

import pytest

from streameval.base.errors import ConfigError
from streameval.cli.common import refuse_future
from streameval.config.experiments import ExperimentSettings
from streameval.config.load import load
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.fingerprint import describe
from streameval.stats.confidence_sequences import ALPHA, PLANNED_UNITS

WHOLE = """
positives: [click, {kind: purchase, value: sum, cap: 500}]
dimensions: [surface]
experiments:
  - name: ranker-v2
    arm: variant
    control: A
    split: {A: 1, B: 2}
    since: 2026-01-31T00:00:00Z
    until: 2026-02-28T01:00:00+01:00
    planned_users: 100000
    alpha: 0.1
    primary: {metric: "positives_per_impression{feedback=click}", margin: 0.002}
    primary_share: 0.8
    guardrails:
      - ndcg@10
      - {metric: empty_rate, margin: 0.01}
      - value_per_user{feedback=purchase}
"""
DOCS = Path(__file__).parents[2] / "docs" / "experiments.md"
SHORT = "{name: e, arm: variant, control: A, primary: ndcg@10}"


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "streameval.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_file_defines_an_experiment(write):
    definition = load(write(WHOLE)).definition()
    (experiment,) = definition.experiments
    assert experiment == Experiment(
        name="ranker-v2",
        arm="variant",
        control="A",
        primary="positives_per_impression{feedback=click}",
        guardrails=(
            Guardrail("ndcg@10"),
            Guardrail("empty_rate", 0.01),
            Guardrail("value_per_user{feedback=purchase}"),
        ),
        split={"A": 1.0, "B": 2.0},
        since=1_769_817_600_000,
        until=1_772_236_800_000,
        planned_users=100_000,
        alpha=0.1,
        primary_share=0.8,
        primary_margin=0.002,
    )
    assert definition.labels == ("surface", "variant")


def test_only_four_keys_are_needed(write, monkeypatch):
    (experiment,) = load(write(f"experiments: [{SHORT}]")).definition().experiments
    assert experiment == Experiment("e", "variant", "A", "ndcg@10")
    assert (experiment.planned_users, experiment.alpha) == (PLANNED_UNITS, ALPHA)
    given = {"name": "e", "arm": "variant", "control": "A", "primary": "ndcg@10"}
    monkeypatch.setenv("STREAMEVAL_EXPERIMENTS", json.dumps([given]))
    assert load(None).definition().experiments == (experiment,)
    monkeypatch.setenv("STREAMEVAL_EXPERIMENTS", "e")
    with pytest.raises(ConfigError, match=r'EXPERIMENTS: write JSON, like \[{"name":"ranker"'):
        load(None)


@pytest.mark.skipif(not DOCS.exists(), reason="the docs are not here")
def test_the_page_has_a_row_for_each_key():
    rows = re.findall(r"^\| (`\w+`.*?) \| ", DOCS.read_text(), re.MULTILINE)
    keys = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
    assert set(ExperimentSettings.model_fields) <= set(keys)


def test_arms_may_be_named_without_a_split(write):
    path = write(f"experiments: [{SHORT[:-1]}, arms: [B, C]}}]")
    (experiment,) = load(path).definition().experiments
    assert (experiment.treatments, experiment.named_arms) == (("B", "C"), ("A", "B", "C"))


def test_the_state_does_not_depend_on_experiments(write):
    definition = load(write(f"experiments: [{SHORT}]")).definition()
    assert describe(definition) == describe(Definition())
    assert definition.labels == definition.dimensions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("split: {B: 1, C: 1}", "experiments.0: control: 'A' is not in split, which has B, C"),
        (
            "split: {A: 1, B: 1}, arms: [B]",
            "experiments.0: arms: split names the arms already; leave one of them out",
        ),
        ("arms: [__all__]", "experiments.0: arms, split, control: no event may have the arm"),
        ("split: {A: 1, __all__: 1}", "experiments.0: arms, split, control: no event may have"),
        ("arms: [B, A]", "experiments.0: arms: name each arm once, and the control only"),
        ("arms: [B, B]", "experiments.0: arms: name each arm once, and the control only"),
        ("split: {A: 1, B: 0}", "experiments.0.split.B: must be greater than 0"),
        ("split: {A: 1}", "experiments.0.split: write 2 or more"),
        (
            "primary: ndgc@10",
            "experiments: e: no metric is called ndgc@10; write one of positives_per_impression{",
        ),
        (
            "primary: ndcg@7",
            "experiments: e: no metric is called ndcg@7; write one of ndcg@5",
        ),
        (
            "primary: 'positives_per_impression{feedback=buy}'",
            "experiments: e: no metric is called positives_per_impression{feedback=buy}; write one",
        ),
        (
            "primary: 'value_per_user{feedback=click}'",
            "experiments: e: value_per_user{feedback=click}: no positive has a value; write",
        ),
        (
            "primary: 'positive_rate{feedback=click}'",
            "experiments: e: positive_rate{feedback=click} needs the sums of each user, which a",
        ),
        ("guardrails: [ndcg@10]", "experiments.0: guardrails: ndcg@10 is named twice"),
        (
            "guardrails: [{metric: ndcg@5, margin: -1}]",
            "experiments.0.guardrails.0.margin: must be greater than or equal to 0",
        ),
        (
            "primary: {metric: ndcg@5, margin: -1}",
            "experiments.0.primary.margin: must be greater than or equal to 0",
        ),
        ("primary_share: 0", "experiments.0.primary_share: must be greater than 0"),
        ("primary_share: 1", "experiments.0.primary_share: must be less than 1"),
        ("guardrail: [ndcg@5]", "experiments.0.guardrail: no such key; did you mean guardrails?"),
        (
            "since: 2026-01-31",
            "experiments.0.since: write a time with its zone, like 2026-01-31T00:00:00Z, not 2026-",
        ),
        ("since: soon", "experiments.0.since: write a time with its zone, like 2026-01-31T00:00"),
        ("since: 1769817600", "experiments.0.since: write a time with its zone, like 2026-01-31T0"),
        (
            "since: 2026-01-31T00:00:00Z, until: 2026-01-31T00:00:00Z",
            "experiments.0: until: write a time after since",
        ),
        ("arm: the arm", "experiments.0.arm: 'the arm' cannot name a field: write letters"),
        ("arm: score", "experiments.0.arm: 'score' has a meaning of its own: choose another field"),
        ("arm: Variant", "experiments: e: arm: another field is 'Variant' but for capitals"),
        ("control: ''", "experiments.0.control: must be 1 to 64 characters"),
        ("alpha: 1", "experiments.0.alpha: must be less than 1"),
        ("planned_users: 0", "experiments.0.planned_users: must be greater than or equal"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(write, changes, message):
    key = changes.partition(":")[0]
    kept = [part for part in SHORT[1:-1].split(", ") if not part.startswith(f"{key}:")]
    path = write(f"experiments: [{{{', '.join([*kept, changes])}}}]")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: line 1: {message}")
    assert "\n" not in str(caught.value)


def test_the_line_names_the_metric_to_take_instead(write):
    primary = "primary: positive_rate{feedback=like}"
    path = write("experiments:\n  - name: e\n    arm: v\n    control: A\n    " + primary)
    with pytest.raises(ConfigError, match=r"take the ratio of means, positives_per_impression\{f"):
        load(path)


def test_a_metric_with_braces_within_brackets_is_written_in_quotes(write):
    metric = "positives_per_impression{feedback=click}"
    head = "experiments:\n  - {name: e, arm: v, control: A, primary: ndcg@5}\n"
    with pytest.raises(
        ConfigError, match=r"line 5: .*; write text with braces or brackets in quotes$"
    ):
        load(write(head.replace("}", f"\n    , guardrails:\n    [mrr@5,\n    {metric}]}}")))
    quoted = head.replace("}", f", guardrails: [mrr@5, '{metric}']}}")
    (experiment,) = load(write(quoted)).definition().experiments
    assert experiment.guardrails == (Guardrail("mrr@5"), Guardrail(metric))


def test_two_experiments_have_two_names(write):
    path = write(f"experiments: [{SHORT}, {SHORT}]")
    with pytest.raises(ConfigError, match="experiments: 'e' stands there twice; rename one"):
        load(path)


def test_an_experiment_has_begun_when_it_is_run(write):
    now = int(time.time())
    for seconds, refused in ((-60, False), (3_600, True)):
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + seconds))
        settings = load(write(f"experiments: [{SHORT[:-1]}, since: {moment}}}]"))
        if refused:
            with pytest.raises(ConfigError, match="experiments: e: since is in the future"):
                refuse_future(settings)
        else:
            refuse_future(settings)
