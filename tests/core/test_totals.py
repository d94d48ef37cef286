"""Totals: the figures over all values of a dimension are those of a replay without the dimension.

Each property runs once a seed (see conftest): hostile streams by two dimensions and by three.
"""

import random
from dataclasses import replace

import msgspec
import pytest
from oracle import nowcast as oracle_nowcast
from oracle.figures import oracle
from streams import cuts, hostile
from test_dimensions import OWN, labelled
from test_oracle import DEFINITION, click, show
from test_partition_properties import assert_same, run, run_with_kills

from streameval.base.limits import ALL
from streameval.core import nowcast
from streameval.core.definition import Positive
from streameval.core.events import FeedbackEvent
from streameval.core.figures import SECTIONS, ShownSegments, figures, figuring
from streameval.core.partition import Partition
from streameval.core.sums import merge

SEEDS = 60
BOTH = ("variant", "surface")


@pytest.fixture(autouse=True)
def _nowcasts_of_few_delays(monkeypatch):
    for module in (nowcast, oracle_nowcast):
        monkeypatch.setattr(module, "MIN_DELAYS", 2)
        monkeypatch.setattr(module, "MIN_SEGMENT_DELAYS", 3)


def totals(document, dimensions, whole):
    """The rows over all values of `whole`, as they are without these dimensions."""
    kept = [name for name in dimensions if name not in whole]

    def mine(row):
        return all(row[name] == ALL for name in whole) and all(row[name] != ALL for name in kept)

    return {
        part: [
            {name: value for name, value in row.items() if name not in whole}
            for row in document[part]
            if mine(row)
        ]
        for part in SECTIONS
    }


def segments(document, dimensions):
    """The rows that are no totals."""
    return {
        part: [row for row in document[part] if ALL not in (row[name] for name in dimensions)]
        for part in SECTIONS
    }


def without(definition, events, batches, whole):
    """The document of the same events by the other dimensions."""
    kept = tuple(name for name in definition.dimensions if name not in whole)
    narrowed = replace(definition, dimensions=kept)
    return segments(run(narrowed, batches), kept)


def test_totals_are_the_figures_without_the_dimensions(seed):
    """To the bit. By the first ones: of a slate whose events disagree these values win."""
    definition, events = hostile(seed)
    definition = replace(definition, dimensions=BOTH)
    batches = list(cuts(events, random.Random(seed)))
    document = run(definition, batches)
    assert document["rates"] or not any(document[part] for part in SECTIONS)
    for whole in (("surface",), BOTH):
        expected = without(definition, events, batches, whole)
        assert totals(document, BOTH, whole) == expected, whole


def test_totals_over_the_first_dimension_are_the_figures_by_the_second(seed):
    """Where all events of a request have one surface."""
    definition, events = hostile(seed)
    definition = replace(definition, dimensions=BOTH)

    def placed(event):
        if isinstance(event, FeedbackEvent):
            return event
        one = event.request_id or event.item_id
        return msgspec.structs.replace(event, surface=f"s{hash_of(event.user_id, one) % 3}")

    events = [placed(event) for event in events]
    batches = list(cuts(events, random.Random(seed)))
    expected = without(definition, events, batches, ("variant",))
    assert totals(run(definition, batches), BOTH, ("variant",)) == expected


def hash_of(*texts):
    return random.Random("/".join(texts)).randrange(1 << 30)


def test_totals_survive_kills_and_equal_the_oracle(seed):
    definition, events = hostile(seed)
    definition = replace(definition, dimensions=BOTH)
    document = run_with_kills(definition, events, random.Random(seed))
    assert_same(document, oracle(definition, events))


def test_three_dimensions_have_seven_totals(seed):
    definition, events = labelled(seed)
    definition = replace(definition, dimensions=OWN)
    document = run(definition, [events])
    for whole in (OWN[2:], OWN[1:], OWN):
        assert totals(document, OWN, whole) == without(definition, events, [events], whole)
    wholes = {tuple(row[name] == ALL for name in OWN) for row in document["rates"]}
    assert len(wholes) in {0, 8}


def test_a_user_of_two_segments_is_one_user_of_the_total():
    """One rate, one cap: neither the sum nor the mean of the segments' figures."""
    definition = replace(
        DEFINITION, dimensions=BOTH, positives=(Positive("click", value="sum", cap=5),)
    )
    events = [
        show(0, "i", request="r", variant="A", surface="home"),
        show(0, "j", request="r", variant="A", surface="home"),
        show(0, "i", request="s", variant="A", surface="search"),
        click(1, "i", request="r", value=4),
        click(1, "i", request="s", value=4),
    ]
    partition = Partition(definition)
    partition.apply(events)
    partition.flush()
    document = partition.document()
    rates = {
        (row["variant"], row["surface"]): (row["users"], row["positive_rate"])
        for row in document["rates"]
        if row["basis"] == "live"
    }
    assert list(rates.items()) == [
        ((ALL, ALL), (1, 2 / 3)),
        (("A", ALL), (1, 2 / 3)),
        ((ALL, "home"), (1, 0.5)),
        ((ALL, "search"), (1, 1.0)),
        (("A", "home"), (1, 0.5)),
        (("A", "search"), (1, 1.0)),
    ]
    values = {
        row["surface"]: (row["value"], row["value_per_user"])
        for row in document["values"]
        if (row["basis"], row["variant"]) == ("live", "A")
    }
    assert values == {ALL: (8, 5), "home": (4, 4), "search": (4, 4)}
    assert_same(document | {"users": {}}, oracle(definition, events) | {"users": {}})


def test_one_dimension_has_no_total():
    partition = Partition(replace(DEFINITION, dimensions=("variant",)))
    partition.apply([show(0, variant="A"), show(1, request="s", variant="B")])
    partition.flush()
    assert {row["variant"] for row in partition.document()["rates"]} == {"A", "B"}


def test_totals_take_no_place_of_a_segment():
    """Beyond the bound segments are `__other__`, and the total over everything has them still."""
    definition = replace(DEFINITION, dimensions=BOTH, max_segments=2)
    events = [
        show(0, "i", request="r", variant="A", surface="home"),
        show(0, "i", request="s", variant="B", surface="home"),
        show(0, "i", request="t", variant="C", surface="home"),
    ]
    partition = Partition(definition)
    partition.apply(events)
    partition.flush()
    document = partition.document()
    assert_same(document | {"users": {}}, oracle(definition, events) | {"users": {}})
    found = {
        (row["variant"], row["surface"]): row["impressions"]
        for row in document["rates"]
        if row["basis"] == "live" and row["feedback"] == "click"
    }
    other = "__other__"
    assert found == {
        (ALL, ALL): 3,
        ("A", ALL): 1,
        ("B", ALL): 1,
        (other, ALL): 1,
        (ALL, other): 1,
        (ALL, "home"): 2,
        ("A", "home"): 1,
        ("B", "home"): 1,
        (other, other): 1,
    }


def test_a_worker_shows_the_totals_of_the_segments_that_it_shows():
    definition = replace(DEFINITION, dimensions=BOTH)
    partitions = []
    for variants in ("AB", "BC", "CD"):
        partition = Partition(definition)
        partition.apply([show(0, v, user=v, variant=v, surface="home") for v in variants])
        partition.flush()
        partitions.append(partition.sums())
    shown = ShownSegments(2)
    rows = [
        row
        for row in figures(definition, merge(partitions, shown))["rates"]
        if row["basis"] == "live" and row["feedback"] == "click"
    ]
    found = {(row["variant"], row["surface"]): row["impressions"] for row in rows}
    other = "__other__"
    assert found == {
        (ALL, ALL): 6,
        ("A", ALL): 1,
        ("B", ALL): 2,
        (other, ALL): 3,
        (ALL, "home"): 6,
        ("A", "home"): 1,
        ("B", "home"): 2,
        (other, other): 3,
    }
    shown.keep({("B", "home")})
    assert shown(("A", ALL)) == (other, ALL), "nothing of it is shown any more"
    assert shown(("C", "home")) == ("C", "home")
    assert shown(("C", ALL)) == ("C", ALL)


def test_figures_of_many_segments_are_made_in_steps():
    """A step makes the rows of some segments in one window and basis, or orders a section."""
    partition = Partition(DEFINITION)
    partition.apply([show(0, request=f"r{n}", variant=f"v{n}") for n in range(40)])
    partition.flush()
    sums = partition.sums()
    steps = len(list(figuring(DEFINITION, sums)))
    assert steps > sum(len(found.names) for found in sums.values()) / 16
