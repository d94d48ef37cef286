"""Dimensions of the producer's own: any flat text fields, from the event to every file."""

import json
import random
from dataclasses import replace

import pytest
from default_events import DIMENSIONS
from oracle.figures import oracle
from streams import hostile, to_json
from test_partition_properties import assert_same, run

from streameval.base.steps import drain
from streameval.config.experiments import event_field, names_of_figures
from streameval.core.definition import RESERVED_NAMES, Positive
from streameval.core.events import EventDecoder, FeedbackEvent, SlateItem, event_types
from streameval.core.outcome import Span
from streameval.core.partition import Partition
from streameval.files.outcome_files import COLUMNS, OutcomeFolder, dataset, dimensions_in, table

OWN = ("platform", "country", "age_group")


def labelled(seed):
    """A hostile stream whose impressions and slates have fields of one's own, or lack them."""
    definition, events = hostile(seed)
    rng = random.Random(f"labels of {seed}")
    decoder = EventDecoder(OWN, definition.max_clock_skew)
    lines = []
    for event in events:
        fields = json.loads(to_json(event))
        for name in DIMENSIONS:
            fields.pop(name, None)
        if not isinstance(event, FeedbackEvent):
            fields |= {name: rng.choice("ab") for name in OWN if rng.random() < 0.7}
        lines.append(json.dumps(fields).encode())
    found, rejected = decoder.decode_batch(lines)
    assert not rejected
    return definition, found


@pytest.mark.parametrize("names", [OWN, OWN[:1], OWN[::-1][:2]])
def test_figures_by_ones_own_dimensions_are_the_oracles(names, seed):
    definition, events = labelled(seed)
    definition = replace(definition, dimensions=names, max_segments=50)
    document = run(definition, [events[:9], events[9:]])
    assert_same(document, oracle(definition, events))
    assert not document["rates"] or set(names) < document["rates"][0].keys()


def test_outcome_files_have_a_column_for_each_dimension(tmp_path):
    definition, events = labelled(3)
    definition = replace(definition, dimensions=OWN)
    partition = Partition(definition, keep_outcomes=True)
    partition.apply(events, range(len(events)))
    end = event_types(OWN).impression(max(e.ts for e in events) + 3 * definition.horizon, "z", "z")
    partition.apply([end], [len(events)])
    partition.flush()
    rows = partition.outcomes_of(drain(partition.finalizing()))
    written = table(0, rows, OWN)
    assert dimensions_in(written.schema) == list(OWN)
    folder = OutcomeFolder(str(tmp_path), {"group": "g"}, {}, OWN)
    folder.check()
    folder.write(Span(0, 0, 9, "ab"), rows)
    folder.publish(Span(0, 0, 9, "ab").name)
    read = dataset(str(tmp_path)).to_table()
    assert sorted(zip(*(read[name].to_pylist() for name in OWN), strict=True), key=str) == sorted(
        (tuple(value or None for value in row.labels) for row in rows), key=str
    )
    later = dataset(str(tmp_path), [*OWN, "added"]).to_table()
    assert set(later["added"].to_pylist()) == {None}


def test_no_dimension_can_take_a_name_that_has_a_meaning():
    types = (*event_types(()), SlateItem)
    fields = {field for type_ in types for field in type_.__struct_fields__}
    assert fields | set(COLUMNS.names) <= RESERVED_NAMES
    definition, events = hostile(1)
    definition = replace(definition, positives=(Positive("click", value="sum"),), gains={})
    sections = [rows for rows in run(definition, [events]).values() if isinstance(rows, list)]
    keys = {key for rows in sections for row in rows for key in row}
    assert {"value_per_user", "short_slates", "mean_rank_of_positives", "rank"} <= keys
    keys = {key for key in keys if not key.endswith("_stderr")}
    assert keys <= RESERVED_NAMES | names_of_figures() | set(definition.dimensions)
    for name in ("ts", "impressions", "k", "short_slates", *names_of_figures()):
        with pytest.raises(ValueError, match="has a meaning of its own"):
            event_field(name)
