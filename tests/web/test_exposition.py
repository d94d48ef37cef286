"""The `/metrics` page: golden text, what is absent, bounded series, exact sums of workers."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
from prometheus import promtool
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from test_experiment_words import a_card, a_row, adjusted, open_clicks, without_crossed

from streameval.base.limits import CLUSTERS, NANO
from streameval.core.definition import DEFAULT_WINDOWS, Definition, Positive
from streameval.core.delays import delay_edges
from streameval.core.figures import BASES, SECTIONS, Figures, figures
from streameval.core.list_shapes import slots_of
from streameval.core.metrics import LIST_MEANS, RANKING, RATES, VALUE_MEANS
from streameval.core.sums import BasisSums, merge
from streameval.experiments.words import with_beside
from streameval.web.exposition import Exposition, page, registry
from streameval.web.forward_page import Families, ForwardStatus
from streameval.web.status import (
    BUCKETS,
    CheckStatus,
    DailyStatus,
    PartitionStatus,
    ProcessCounters,
    ServiceStatus,
)

HERE = Path(__file__).parents[1]
GOLDEN = HERE / "golden" / "metrics.prom"
RULES = HERE.parent / "deploy" / "prometheus" / "rules.yml"
DOCUMENTATION = HERE.parent / "docs" / "metrics.md"

ONE_WINDOW = Definition(
    positives=(Positive("click"), Positive("like", value="sum")),
    ks=(10,),
    windows=DEFAULT_WINDOWS[1:2],
)
NO_FIGURES = {name: [] for name in SECTIONS}


def a_status(definition: Definition = ONE_WINDOW, shown: Figures | None = None, **given):
    """A worker that runs well."""
    defaults = {
        "version": "1.0",
        "topic": "recsys-events",
        "group": "streameval",
        "started_at": 1_700_000_000.0,
        "definition": definition,
        "counters": ProcessCounters(definition),
        "store_up": True,
        "broker_up": True,
        "ready": True,
        "topic_partitions": 4,
        "digests": {"profile": "1a2b", "outcomes": "3c4d"},
        "figures": shown,
    }
    return ServiceStatus(**(defaults | given))


def some_sums(definition: Definition, seed: int, segments: list[tuple[str, ...]], come: int = 0):
    """Random but possible sums of one worker, for every window and basis.

    Of the feedback, `come` millionths have come; 0: no nowcast.
    """
    chance = np.random.default_rng(seed)
    kinds = len(definition.kinds)
    columns = 1 + len(RANKING) * len(definition.ks)

    size = (len(segments), CLUSTERS)

    def of_basis() -> BasisSums:
        impressions = chance.integers(1, 50, size)
        slates = chance.integers(0, impressions + 1)
        positives = chance.integers(0, impressions + 1, (kinds, *size))
        scores = chance.integers(0, slates * NANO + 1, (columns, *size))
        scores[0] = chance.integers(0, slates + 1)
        rows = [impressions, slates, *positives, *scores, np.ones(size, np.int64)]
        rows += [*chance.integers(0, slates + 1, (7 + 2, *size))]
        return BasisSums(
            names=segments,
            users=chance.integers(2, 5_000, len(segments)),
            rate_means=chance.random((kinds, len(segments))),
            rate_squares=chance.random((kinds, len(segments))),
            keys=np.arange(len(segments) * CLUSTERS),
            by_cluster=np.array(rows).reshape(len(rows), -1),
            plain={"ranks": chance.integers(1, 100, (slots_of(kinds), len(segments)))},
            effective=come
            * np.array([impressions] * kinds + [slates] * (kinds + columns - 1)).reshape(
                2 * kinds + columns - 1, -1
            ),
            mature_impressions=chance.integers(0, impressions.sum(axis=1) + 1),
        )

    return {
        (index, basis): of_basis() for index in range(len(definition.windows)) for basis in BASES
    }


def text_of(status: ServiceStatus) -> str:
    return page(only_ours(status), "")[0].decode()


def only_ours(status: ServiceStatus) -> CollectorRegistry:
    """The page without the figures of the process, which no test can know."""
    made = CollectorRegistry()
    made.register(Exposition(lambda: status))
    return made


def samples(text: str) -> dict[tuple[str, frozenset], float]:
    """Every sample of a page by name and labels; a series that stands there twice fails."""
    found = {}
    for family in parse(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(found, name: str, **labels: str) -> float | None:
    return found.get((f"streameval_{name}", frozenset(labels.items())))


def _means(means) -> dict[str, float]:
    return {f"{mean.name}{end}": 0.5 for mean in means for end in ("", "_stderr")}


def golden_status() -> ServiceStatus:
    """One of everything."""
    rate = {"users": 2, "impressions": 4, "positives": 1, "positive_rate": 0.25}
    rate |= {"positive_rate_stderr": 0.25, "positives_per_impression": 0.25}
    rate |= {"positives_per_impression_stderr": None}
    names = [metric.name for metric in RANKING]
    scores = dict.fromkeys(names, 0.5) | {f"{name}_stderr": 0.125 for name in names}
    empty = dict.fromkeys(scores)
    rates = [
        {"window": "1h", "basis": "live", "variant": variant, "feedback": kind} | rate
        for variant in ("", 'quote " backslash \\ newline \n')
        for kind in ("click", "like")
    ]
    ranking = [
        {"window": "1h", "basis": "live", "variant": variant, "k": 10, **counts, **means}
        for variant, counts, means in (
            ("", {"slates": 0, "slates_with_positive": 0}, empty),
            (
                'quote " backslash \\ newline \n',
                {"slates": 2, "slates_with_positive": 1},
                scores,
            ),
        )
    ]
    come = {"positive_rate": None, "positive_rate_stderr": None, "positives_per_impression": 0.375}
    rates.append(rates[0] | {"basis": "nowcast"} | come)
    maturity = [{"window": "1h", "variant": "", "maturity": 0.75}]
    of_clicks = {"window": "1h", "variant": "", "feedback": "click"}
    nowcast = [of_clicks | {"basis": "nowcast", "observed_ratio": 0.625}]
    head = {"window": "1h", "basis": "live", "variant": ""}
    values = [head | {"feedback": "like", "value": 12.5} | _means(VALUE_MEANS)]
    counts = ("slates", "empty_slates", "short_slates", "fallback_slates", "abandoned_slates")
    counts += ("slates_with_latency", "positive_items")
    lists = [head | dict.fromkeys(counts, 1) | _means(LIST_MEANS)]
    ranks = [
        head
        | {"basis": "matured", "feedback": kind, "rank": rank, "impressions": 2, "positives": 1}
        for kind in ("click", "like")
        for rank in (1, "21+")
    ]
    shown = {
        "rates": rates,
        "ranking": ranking,
        "values": values,
        "lists": lists,
        "ranks": ranks,
        "nowcast": nowcast,
        "maturity": maturity,
    }
    counters = ProcessCounters(ONE_WINDOW)
    counters.events.add("impression", 4)
    counters.rejected.add("late", 1)
    counters.feedback.add("dislike", 2)
    counters.impressions.add(("",), 4)
    counters.impressions_retracted.add(("",), 1)
    counters.positives.add((("",), "click"), 2)
    counters.positives_retracted.add((("",), "click"), 1)
    counters.add_latency(("",), 12_500)
    counters.add_latency(("",), 20_000_000)
    counters.unattributed.add("expired", 3)
    counters.overflow.add("segments", 1)
    counters.delays[0][0] = 2
    counters.delays[0][63] = 1
    counters.commits = 2
    counters.batch_seconds.observe(0.2)
    counters.batch_seconds.observe(99.0)
    partitions = [
        PartitionStatus(
            partition=0,
            watermark=1_700_000_000_500,
            lag=12,
            committed_offset=100,
            open_slates=3,
            users=2,
            checkpoint_age_seconds=1.5,
            checkpoint_bytes=2048,
        ),
        PartitionStatus(partition=3, restoring=True, unreadable="offsets 7 to 9 (damaged)"),
    ]
    return a_status(
        shown=shown,
        counters=counters,
        partitions=partitions,
        nowcast_errors=[
            head | {"metric": metric, "feedback": kind, "k": k, "error_ratio": -0.0625}
            for metric, kind, k in (("positives_per_impression", "click", ""), ("ndcg", "", 10))
        ],
        leader=True,
        fencing_token=7,
        checks=[
            CheckStatus(
                "drift", "error", passed=False, value=0.25, time=1_700_000_000, seconds=0.5
            ),
            CheckStatus("off_policy", "warning", None, None, time=1_700_000_000, seconds=0.0),
            CheckStatus(
                "freshness",
                "error",
                None,
                None,
                time=1_700_000_000,
                seconds=0.25,
                unanswered_seconds=900.0,
            ),
        ],
        scorecards=[
            with_beside(
                a_card(
                    adjusted(a_row()),
                    open_clicks(relative_difference=None),
                    a_row(
                        metric="mrr@10", role="exploratory", low=None, high=None, verdict="not yet"
                    ),
                ),
                "without_crossed",
                [without_crossed(a_row(), low=0.0035)],
                1_769_843_700_000,
            )
        ],
        check_interval=900.0,
        check_running=12.5,
        daily=DailyStatus(
            1_700_006_400.0,
            users=3,
            rates=[
                {
                    "feedback": "click",
                    "daily_positive_rate": 1 / 6,
                    "daily_positive_rate_gorse_v05": 0.5,
                },
                {
                    "feedback": "like",
                    "daily_positive_rate": 0.0,
                    "daily_positive_rate_gorse_v05": None,
                },
            ],
        ),
    )


def test_the_page_is_the_golden_one():
    """A change of the page is a change people's dashboards see: STREAMEVAL_GOLDEN=1 accepts it."""
    text = text_of(golden_status())
    if os.environ.get("STREAMEVAL_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_promtool_finds_nothing_to_improve():
    """Names, help and types follow Prometheus' conventions."""
    assert promtool("check", "metrics", given=GOLDEN.read_text(encoding="utf-8")) == ""


def test_no_family_breaks_our_own_conventions():
    """Only counters end in _total, no label is called type, help is a sentence."""
    for family in Exposition(golden_status).collect():
        assert family.name.startswith("streameval")
        assert family.documentation[0].isupper() or family.documentation[0].isdigit()
        for sample in family.samples:
            assert "type" not in sample.labels
            assert sample.name.endswith("_total") == (family.type == "counter")


def test_help_of_a_figure_is_its_formula():
    """What a figure means is said once, in the catalogue."""
    said = {family.name: family.documentation for family in Exposition(golden_status).collect()}
    for figure in (*RATES, *RANKING):
        assert said[f"streameval_{figure.name}"] == figure.formula
    for mean in (*VALUE_MEANS, *LIST_MEANS):
        assert said[f"streameval_{mean.series or mean.name}"] == mean.formula


def test_every_family_is_documented():
    """docs/metrics.md names each family, and no other."""
    endings = {"counter": "_total", "info": "_info"}
    forward = Families(lambda: ForwardStatus("", {}))
    exported = {
        family.name + endings.get(family.type, "")
        for families in (Exposition(golden_status), forward)
        for family in families.collect()
    }
    named = set(re.findall(r"`(streameval_[a-z0-9_]+)`", DOCUMENTATION.read_text(encoding="utf-8")))
    assert named == exported


def test_openmetrics_page_parses_too():
    """The negotiated format is valid as well."""
    body, content_type = page(
        registry(golden_status), "application/openmetrics-text; version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(body.decode())}
    assert {"streameval_events", "streameval_positive_rate", "process_cpu_seconds"} <= names


def test_empty_is_not_zero():
    """A segment seen in one window has counts of 0 and no means in the others."""
    definition = Definition()
    sums = some_sums(definition, 1, [("A",)])
    only_last_live = {(2, "live"): sums[2, "live"]}
    found = samples(text_of(a_status(definition, figures(definition, only_last_live))))
    full = {"window": "24h", "basis": "live", "variant": "A"}
    empty = {"window": "5m", "basis": "live", "variant": "A"}
    assert value(found, "window_users", **full) > 0
    assert value(found, "positive_rate", **full, feedback="click") is not None
    for count in ("users", "impressions", "slates", "slates_with_positive"):
        assert value(found, f"window_{count}", **empty) == 0
    assert value(found, "window_positives", **empty, feedback="click") == 0
    for name in ("positive_rate", "positive_rate_stderr", "positives_per_impression"):
        assert value(found, name, **empty, feedback="click") is None
    for metric in RANKING:
        assert value(found, metric.name, **empty, k="5") is None


@pytest.mark.parametrize("shown", [None, NO_FIGURES])
def test_a_segment_that_no_window_holds_is_gone(shown):
    """Without an impression anywhere there is no series of a figure, and the page still parses."""
    found = samples(text_of(a_status(shown=shown)))
    names = {name for name, _ in found}
    assert "streameval_ready" in names
    assert not [name for name in names if "window" in name or "rate" in name]


def test_rows_without_dimensions():
    """With no dimension configured a window and basis has one series."""
    definition = Definition(dimensions=(), windows=DEFAULT_WINDOWS[:1], ks=(5,))
    sums = some_sums(definition, 2, [()])
    found = samples(text_of(a_status(definition, figures(definition, sums))))
    assert value(found, "window_users", window="5m", basis="live") > 0
    assert value(found, "ndcg", window="5m", basis="matured", k="5") is not None


def hostile_segments(count: int, seed: int) -> list[tuple[str, str]]:
    """Labels with everything an attacker would try, a lone surrogate too."""
    chance = random.Random(seed)
    hostile = 'a"\\\n{},= #\té漢🎉\ud800'
    return [(f"{number}" + "".join(chance.choices(hostile, k=60)), "") for number in range(count)]


def test_the_worst_page_parses_and_is_bounded():
    """200 segments of hostile labels in all windows: every series once, and no more than that."""
    definition = Definition(dimensions=("variant", "surface"))
    segments = hostile_segments(definition.max_segments, 3)
    shown = figures(definition, some_sums(definition, 3, segments, come=500_000))
    status = a_status(definition, shown)
    text = text_of(status)
    found = samples(text)
    per_place = 4 + 5 * len(definition.kinds) + 2 * len(RANKING) * len(definition.ks)
    per_place += 6 + 2 * len(LIST_MEANS)
    ranks = len(segments) * 21 * (1 + len(definition.kinds))
    places = len(segments) * len(definition.windows) * len(BASES)
    maturity = len(segments) * len(definition.windows)
    # Counts, then positives, the rate with its error and the share that has come, then ranking.
    nowcast = 4 + 4 * len(definition.kinds) + 2 * len(RANKING) * len(definition.ks)
    nowcasts = len(segments) * len(definition.windows) * nowcast
    rest = len(samples(text_of(a_status(definition))))
    assert len(found) == places * per_place + ranks + nowcasts + maturity + rest
    variants = {dict(labels).get("variant") for _, labels in found} - {None}
    assert variants == {variant.replace("\ud800", "?") for variant, _ in segments}
    assert promtool("check", "metrics", given=text) == ""


def test_counts_by_what_producers_write_are_bounded():
    """100,000 kinds of feedback and variants make a bounded number of series, and lose no count."""
    definition = Definition(max_segments=5)
    counters = ProcessCounters(definition)
    for number in range(100_000):
        counters.feedback.add(f"kind {number}", 1)
        counters.impressions.add((f"variant {number}",), 1)
    found = samples(text_of(a_status(definition, counters=counters)))
    for name, most in (("feedback_total", 60), ("impressions_total", 6)):
        counts = [count for (each, _), count in found.items() if each == f"streameval_{name}"]
        assert len(counts) <= most
        assert sum(counts) == 100_000
    assert value(found, "impressions_total", variant="__other__") == 100_000 - 5


def test_histograms_count_by_upper_bounds():
    """A bucket holds what is at most its bound, and the last one everything."""
    counters = ProcessCounters(ONE_WINDOW)
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] * 1.01, 1e9):
        counters.commit_seconds.observe(seconds)
    found = samples(text_of(a_status(counters=counters)))
    name = "commit_duration_seconds"
    assert value(found, f"{name}_bucket", le=str(BUCKETS[0])) == 2
    assert value(found, f"{name}_bucket", le=str(BUCKETS[1])) == 3
    assert value(found, f"{name}_bucket", le="+Inf") == 4
    assert value(found, f"{name}_count") == 4
    assert value(found, f"{name}_sum") == pytest.approx(1e9)


def test_the_histogram_of_delays_counts_by_upper_bounds():
    """The edges are those of the buckets: a positive at just A is in the last one."""
    counters = ProcessCounters(ONE_WINDOW)
    counters.delays[1][:5] = [1, 2, 3, 4, 5]
    counters.delays[1][63] = 6
    found = samples(text_of(a_status(counters=counters)))
    name = "positive_delay_seconds"
    like = {"feedback": "like"}
    edges = delay_edges(ONE_WINDOW.attribution_window)
    assert value(found, f"{name}_bucket", **like, le=str((edges[4] - 1) / 1000)) == 10
    assert value(found, f"{name}_bucket", **like, le=str((edges[60] - 1) / 1000)) == 15
    assert value(found, f"{name}_bucket", **like, le="1800.0") == 21
    assert value(found, f"{name}_count", **like) == 21
    assert 6 * 1_600 < value(found, f"{name}_sum", **like) < 6 * 1_800
    assert value(found, f"{name}_count", feedback="click") == 0


def test_the_rules_combine_workers_exactly(tmp_path):
    """Two workers' pages through the recording rules are the figures of one that has it all."""
    definition = Definition(ks=(5,), windows=DEFAULT_WINDOWS[:1])
    workers = [
        some_sums(definition, 10, [("A",), ("B",)]),
        some_sums(definition, 11, [("A",), ("only here",)]),
    ]
    series = [
        {
            "series": selector(name, labels | {"job": "j", "instance": str(instance)}),
            "values": number,
        }
        for instance, sums in enumerate(workers)
        for (name, labels), number in printed(definition, figures(definition, sums))
    ]
    together = figures(definition, merge(workers))
    checks = [check(name, labels, number) for name, labels, number in expected(together)]
    assert len(checks) > 100
    document = {
        "rule_files": [str(RULES)],
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}],
    }
    path = tmp_path / "rules_test.yml"
    path.write_text(json.dumps(document), encoding="utf-8")
    promtool("test", "rules", str(path))


def printed(definition: Definition, shown: Figures):
    """Every sample of a worker's page as text, as a scrape would read it."""
    pattern = re.compile(r"(streameval_\w+)\{(.*)\} (\S+)")
    for line in text_of(a_status(definition, shown)).splitlines():
        if (found := pattern.fullmatch(line)) and "window=" in line:
            yield (found[1], dict(re.findall(r'(\w+)="([^"]*)"', found[2]))), found[3]


def expected(shown: Figures):
    """What the rules must say: every mean and count of the combined figures."""
    for row in shown["rates"]:
        place = {name: row[name] for name in ("window", "basis", "variant")}
        kind = place | {"feedback": row["feedback"]}
        yield "window_users:sum", place, row["users"]
        yield "window_impressions:sum", place, row["impressions"]
        yield "window_positives:sum", kind, row["positives"]
        yield "positive_rate:mean", kind, row["positive_rate"]
        yield "positives_per_impression:mean", kind, row["positives_per_impression"]
    for row in shown["ranking"]:
        place = {name: row[name] for name in ("window", "basis", "variant")}
        yield "window_slates:sum", place, row["slates"]
        yield "window_slates_with_positive:sum", place, row["slates_with_positive"]
        for metric in RANKING:
            yield f"{metric.name}:mean", place | {"k": str(row["k"])}, row[metric.name]
    for row in shown["maturity"]:
        labels = {"window": row["window"], "variant": row["variant"]}
        yield "maturity_ratio:mean", labels, row["maturity"]


def check(name: str, labels: dict[str, str], number: float) -> dict:
    """A test of promtool: the rule's value lies within rounding of `number`."""
    rule = selector(f"job:streameval_{name}", labels | {"job": "j"})
    return {
        "expr": f"abs({rule} - {number!r}) <= bool 1e-12 * {max(1.0, number)!r}",
        "eval_time": "0m",
        "exp_samples": [{"labels": selector("", labels | {"job": "j"}), "value": 1}],
    }


def selector(name: str, labels: dict[str, str]) -> str:
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def test_only_the_leader_shows_series_of_experiments():
    """All workers judge the whole topic: several of them would show each series twice."""
    card = a_card(a_row())
    for leads in (True, False):
        text = text_of(a_status(scorecards=[card], leader=leads))
        assert bool([one for one in samples(text) if "experiment" in one[0]]) is leads


def test_what_an_experiment_does_not_know_has_no_sample():
    early = a_row(low=None, high=None, verdict="not yet", users_needed=None, control_value=None)
    card = a_card(early, p_value=None, since=None, users={})
    found = samples(text_of(a_status(scorecards=[card], leader=True)))
    names = {
        name.removeprefix("streameval_experiment_") for name, _ in found if "experiment" in name
    }
    assert names == {
        *("value", "difference", "relative_difference", "crossed_users", "crossed_evidence"),
        *("without_arm", "without_arm_share", "without_arm_fallback", "without_arm_empty"),
        "gate",
    }


@pytest.mark.parametrize(
    ("verdict", "value"), [("better", 1), ("no difference shown", 1), ("not yet", 0), ("worse", -1)]
)
def test_the_gate_of_an_experiment_has_a_number(verdict, value):
    card = a_card(a_row(verdict=verdict))
    found = samples(text_of(a_status(scorecards=[card], leader=True)))
    gates = {name: one for (name, *_), one in found.items() if name.endswith("experiment_gate")}
    assert gates == {"streameval_experiment_gate": value}
