"""The generators keep their promises: a test that rests on them must not pass by an accident."""

import random
from collections import Counter

from default_events import DIMENSIONS, decode
from oracle.figures import oracle
from streams import accepted, cuts, hostile, permute_within_lateness, redeliver, to_json

from streameval.core.events import EventDecoder


def test_a_seed_gives_the_same_stream_again(seed):
    assert hostile(seed) == hostile(seed)


def test_what_producers_write_decodes_to_the_same_event(seed):
    _, events = hostile(seed)
    assert [decode(to_json(event), None, 0) for event in events] == events


def test_what_a_decoder_writes_anew_is_the_same_event(seed):
    """What a class decodes is forwarded so."""
    _, events = hostile(seed)
    decoder = EventDecoder(DIMENSIONS, 0)
    values = [to_json(event) for event in events]
    decoded, written = decoder.rewrite([*values, b"{"])
    assert (decoded.events, decoded.records) == (events, [*range(len(events))])
    assert [decode(value) for value in written] == events
    assert all(b"null" not in value for value in written)


def test_no_event_of_a_permutation_is_late_and_none_is_lost(seed):
    definition, events = hostile(seed)
    events = accepted(events, definition)
    permuted = permute_within_lateness(events, definition, random.Random(seed))
    assert accepted(permuted, definition) == permuted
    assert Counter(map(to_json, permuted)) == Counter(map(to_json, events))


def test_redelivery_keeps_the_order_of_first_arrivals(seed):
    _, events = hostile(seed)
    again = redeliver(events, random.Random(seed))
    assert list(dict.fromkeys(map(to_json, again))) == list(dict.fromkeys(map(to_json, events)))


def test_cuts_put_together_are_the_stream(seed):
    _, events = hostile(seed)
    assert [one for batch in cuts(events, random.Random(seed)) for one in batch] == events


def test_order_within_l_and_redelivery_change_no_figure_of_the_oracle(seed):
    definition, events = hostile(seed)
    events = accepted(events, definition)
    expected = oracle(definition, events)
    permuted = permute_within_lateness(events, definition, random.Random(seed))
    assert oracle(definition, permuted) == expected
    again = oracle(definition, redeliver(permuted, random.Random(seed)))
    assert again | {"events": None} == expected | {"events": None}
