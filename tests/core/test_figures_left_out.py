"""The key `figures`: what is left out is nowhere, and everything else is the same to the bit."""

import dataclasses

import pytest
from streams import hostile
from test_exposition import a_status, samples, text_of

from streameval.config.settings import Settings
from streameval.core.definition import OPTIONAL_FIGURES, Definition
from streameval.core.figures import SECTIONS
from streameval.core.fingerprint import describe, differences, fingerprint
from streameval.core.partition import Partition
from streameval.web.overview import choices

ALONE = [(), ("lists",), ("nowcast",)]
SEEDS = 40


def sections(definition, events):
    partition = Partition(definition)
    for at in range(0, len(events), 20):
        partition.apply(events[at : at + 20])
        partition.flush()
    return partition.document()


@pytest.mark.parametrize("kept", ALONE)
def test_the_rest_is_the_same_to_the_bit(seed, kept):
    definition, events = hostile(seed)
    whole, found = (
        sections(dataclasses.replace(definition, figures=figures), events)
        for figures in (OPTIONAL_FIGURES, kept)
    )
    for section in SECTIONS:
        rows = whole[section]
        if "nowcast" not in kept:
            rows = [row for row in rows if row.get("basis") != "nowcast"]
        left_out = section in {"lists", "ranks"} - set(kept) and "lists" not in kept
        left_out |= section == "nowcast" and "nowcast" not in kept
        assert found[section] == ([] if left_out else rows), section
    assert found["events"] == whole["events"]


def page(figures):
    definition = dataclasses.replace(Definition(), figures=figures)
    _, events = hostile(4)
    shown = {
        name: found for name, found in sections(definition, events).items() if name in SECTIONS
    }
    return samples(text_of(a_status(definition, shown)))


def names(figures):
    return {name for name, _ in page(figures)}


def test_series_of_what_is_left_out_are_not_there():
    whole, least = names(OPTIONAL_FIGURES), names(())
    gone = whole - least
    assert {"streameval_empty_rate", "streameval_window_empty_slates"} <= gone
    assert "streameval_positive_delay_seconds_count" in gone
    assert {"streameval_ndcg", "streameval_positive_rate", "streameval_window_slates"} <= least
    assert "nowcast" not in {dict(labels).get("basis") for _, labels in page(())}


def test_the_page_offers_only_what_is_there():
    least = choices(dataclasses.replace(Definition(), figures=()))
    assert {choice["section"] for choice in least} == {"rates", "ranking"}


def test_state_of_other_figures_is_refused_and_that_of_all_is_described_as_before():
    whole, least = Definition(), Settings(figures=()).definition()
    assert fingerprint(whole) == fingerprint(Settings(figures=("nowcast", "lists")).definition())
    assert fingerprint(whole) != fingerprint(least)
    assert "figures" in "".join(differences(describe(whole), describe(least)).values())
    assert "figures" not in describe(whole)


def test_a_figure_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="'lists' or 'nowcast'"):
        Settings(figures=["rates"])
    with pytest.raises(ValueError, match="stands there twice"):
        Settings(figures=["lists", "lists"])
