"""The hostile streams tell the rules from looser ones: an oracle with a loosened rule must differ.

A generator that no wrong rule fails on would let a wrong engine pass. Each looser rule below is one
that an engine could easily have; none of the generated streams' figures may hide it for long.
"""

import math
from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
from oracle import figures as windows
from oracle import lists, values
from oracle.figures import oracle
from streams import accepted, crowded, hostile

from streameval.base.limits import MICRO, MILLI
from streameval.core import oracle as rules
from streameval.core.events import FeedbackEvent

SEEDS = range(150)
ENOUGH = 10  # seeds of 150: in 300, a rule that shows this rarely is missed once in 10^9

LOOSER = {}
CROWDED = set()  # the rules that show in `crowded` streams


def looser(function):
    """Register a looser rule, a function of (monkeypatch, events, definition)."""
    LOOSER[function.__name__] = function
    return function


def looser_in_crowds(function):
    CROWDED.add(function.__name__)
    return looser(function)


def figures(definition, events):
    """The document without the split of unattributed feedback, which is a diagnostic."""
    document = oracle(definition, events)
    document["events"]["unattributed"] = sum(document["events"]["unattributed"].values())
    return document


@cache
def strict(stream, seed):
    definition, events = stream(seed)
    return definition, events, figures(definition, events)


@pytest.mark.long
@pytest.mark.parametrize("name", LOOSER_NAMES := [])
def test_a_looser_rule_shows(name, monkeypatch):
    caught = []
    stream = crowded if name in CROWDED else hostile
    for seed in SEEDS:
        definition, events, expected = strict(stream, seed)
        with monkeypatch.context() as patch:
            LOOSER[name](patch, events, definition)
            if figures(definition, events) != expected:
                caught.append(seed)
        if len(caught) == ENOUGH:
            return
    pytest.fail(f"{name}: only seeds {caught}")


# --- slates --------------------------------------------------------------------------------------


@looser
def the_first_arrival_sets_the_slates_time(patch, events, definition):
    def form(impressions, window):
        groups = []
        latest = {}
        for one in impressions:  # in order of arrival
            key = (one.user_id, one.request_id)
            if one.request_id is None:
                key += (one.item_id, one.ts)
            group = latest.get(key)
            if group is None or abs(one.ts - group[0].ts) > window:
                group = latest[key] = []
                groups.append(group)
            group.append(one)
        return groups

    patch.setattr(rules, "_form_slates", form)


@looser
def a_request_is_one_slate_for_ever(patch, events, definition):
    form = rules._form_slates
    patch.setattr(rules, "_form_slates", lambda impressions, _: form(impressions, 10**12))


@looser
def an_impression_at_just_a_starts_a_new_slate(patch, events, definition):
    form = rules._form_slates
    patch.setattr(rules, "_form_slates", lambda impressions, window: form(impressions, window - 1))


@looser
def a_slate_is_held_together_by_its_last_impression(patch, events, definition):
    def form(impressions, window):
        groups = defaultdict(list)
        for one in impressions:
            alone = (one.item_id, one.ts) if one.request_id is None else ()
            groups[one.user_id, one.request_id, *alone].append(one)
        for members in groups.values():
            members.sort(key=lambda one: one.ts)
            begin = 0
            for index in range(1, len(members) + 1):
                last = index == len(members)
                if last or members[index].ts > members[index - 1].ts + window:
                    yield members[begin:index]
                    begin = index

    patch.setattr(rules, "_form_slates", form)


@looser
def the_first_arrival_sets_the_segment(patch, events, definition):
    patch.setattr(rules, "_segment", lambda group: min(group).segment)


@looser
def the_first_arrival_breaks_a_tie_of_segments(patch, events, definition):
    def segment(group):
        return min(one for one in group if one.ts == group[0].ts).segment

    patch.setattr(rules, "_segment", segment)


@looser
def the_last_position_stays(patch, events, definition):
    def lower(position, other):
        return other if other is not None else position

    patch.setattr(rules, "_lower", lower)


@looser
def no_position_beats_a_given_one(patch, events, definition):
    def lower(position, other):
        return None if position is None or other is None else min(position, other)

    patch.setattr(rules, "_lower", lower)


# --- feedback ------------------------------------------------------------------------------------


def items_of(event):
    """The items of a slate event or an impression."""
    return event.positions if hasattr(event, "positions") else [event.item_id]


@looser
def no_nearer_impression_takes_over(patch, events, definition):
    """Feedback stays with the nearest showing that was known when it could first be attributed."""
    nearest = rules._nearest
    kept = accepted(events, definition)
    first_seen = {}
    arrival_of = {}
    for index, event in enumerate(kept):
        if isinstance(event, FeedbackEvent):
            arrival_of.setdefault(id(event), index)
            continue
        for item in items_of(event):
            first_seen.setdefault((event.user_id, event.request_id, item, event.ts), index)

    def known(slate, item):
        return first_seen[slate.user_id, slate.request_id, item, slate.items[item].ts]

    def first_known(slates, event, window):
        item = event.item_id
        arrival = arrival_of[id(event)]
        fits = [slate for slate in slates if nearest([slate], event, window)[0]]
        before = [slate for slate in fits if known(slate, item) < arrival]
        after = sorted(fits, key=lambda slate: known(slate, item))[:1]
        return nearest(before or after, event, window)

    patch.setattr(rules, "_nearest", first_known)


@looser
def expiry_at_just_a(patch, events, definition):
    patch.setattr(rules, "_in_time", lambda ts, slate, window: ts - slate.time < window)


@looser
def expiry_a_moment_after_a(patch, events, definition):
    patch.setattr(rules, "_in_time", lambda ts, slate, window: ts - slate.time <= window + 1)


@looser
def the_age_of_feedback_counts_from_the_showing(patch, events, definition):
    def nearest(slates, event, window):
        item = event.item_id
        fits = [slate for slate in slates if 0 <= event.ts - slate.items[item].ts <= window]
        if not fits:
            return None, False
        best = min(fits, key=lambda slate: rules._nearness(slate, item))
        return best.items[item], False

    patch.setattr(rules, "_nearest", nearest)


@looser
def the_nearest_showing_is_the_one_of_the_latest_slate(patch, events, definition):
    def nearness(slate, item):
        return -slate.time, slate.request_id is not None, slate.request_id or ""

    patch.setattr(rules, "_nearness", nearness)


@looser
def the_nearest_showing_alone_is_asked_for_its_age(patch, events, definition):
    nearest, in_time = rules._nearest, rules._in_time

    def only_nearest(slates, event, window):
        showing, expired = nearest(slates, event, 10**12)
        for slate in slates:
            if slate.items[event.item_id] is showing and not in_time(event.ts, slate, window):
                return None, True
        return showing, expired

    patch.setattr(rules, "_nearest", only_nearest)


@looser
def slates_with_a_request_come_first_in_a_tie(patch, events, definition):
    def nearness(slate, item):
        return -slate.items[item].ts, slate.request_id is None, slate.request_id or ""

    patch.setattr(rules, "_nearness", nearness)


@looser
def the_larger_request_comes_first_in_a_tie(patch, events, definition):
    def nearness(slate, item):
        name = [-ord(letter) for letter in slate.request_id or ""]
        return -slate.items[item].ts, slate.request_id is not None, name

    patch.setattr(rules, "_nearness", nearness)


@looser
def an_item_may_be_shown_after_the_feedback_that_names_its_request(patch, events, definition):
    def named(slates, event, window):
        begun = [slate for slate in slates if slate.time <= event.ts]
        for slate in sorted(begun, key=lambda slate: -slate.time)[:1]:
            if event.ts - slate.time <= window:
                return slate.items.get(event.item_id), False
        return None, False

    patch.setattr(rules, "_find_named", named)


@looser
def feedback_before_its_impression_is_lost(patch, events, definition):
    attribute = rules._attribute
    kept = accepted(events, definition)
    arrival_of = {}
    shown = {}
    for index, event in enumerate(kept):
        if isinstance(event, FeedbackEvent):
            arrival_of.setdefault(id(event), index)
            continue
        for item in items_of(event):
            shown.setdefault((event.user_id, item), index)

    def known_only(slates, feedback, definition, watermark):
        known = [
            event
            for event in feedback
            if shown.get((event.user_id, event.item_id), len(kept)) < arrival_of[id(event)]
        ]
        return attribute(slates, known, definition, watermark)

    patch.setattr(rules, "_attribute", known_only)


@looser
def the_positive_wins_a_tie_with_its_retraction(patch, events, definition):
    def deciding(feedback):
        return max(feedback, key=lambda event: (event.ts, not event.retract))

    patch.setattr(rules, "_deciding", deciding)


@looser
def the_last_arrival_decides(patch, events, definition):
    patch.setattr(rules, "_deciding", lambda feedback: feedback[-1])


@looser
def a_retraction_is_for_ever(patch, events, definition):
    patch.setattr(rules, "_deciding", lambda feedback: max(feedback, key=lambda one: one.retract))


@looser
def a_retraction_must_reach_the_threshold(patch, events, definition):
    def counts(event, definition):
        return any(
            positive.kind == event.feedback
            and (positive.threshold is None or event.value >= positive.threshold)
            for positive in definition.positives
        )

    patch.setattr(rules, "_counts", counts)


@looser
def feedback_stops_waiting_at_just_l(patch, events, definition):
    patch.setattr(rules, "_waits", lambda ts, watermark, lateness: watermark < ts + lateness)


# --- time ----------------------------------------------------------------------------------------


@looser
def an_event_just_l_behind_is_late(patch, events, definition):
    patch.setattr(rules, "_is_late", lambda ts, watermark, lateness: ts <= watermark - lateness)


@looser
def a_pane_is_matured_a_moment_later(patch, events, definition):
    matured = windows._last_matured
    patch.setattr(windows, "_last_matured", lambda window, time, h: matured(window, time, h + 1))


@looser
def the_live_window_ends_before_the_pane_of_t(patch, events, definition):
    live = windows._last_live
    patch.setattr(windows, "_last_live", lambda window, time: live(window, time) - 1)


# --- slates without items ------------------------------------------------------------------------


@looser
def a_list_without_items_is_no_slate(patch, events, definition):
    impressions = rules._impressions

    def with_items(kept, definition):
        return [one for one in impressions(kept, definition) if one.item_id is not None]

    patch.setattr(rules, "_impressions", with_items)


@looser
def a_list_without_items_joins_no_impression(patch, events, definition):
    form = rules._form_slates

    def form_apart(impressions, window):
        impressions = list(impressions)
        yield from form([one for one in impressions if one.item_id is None], window)
        yield from form([one for one in impressions if one.item_id is not None], window)

    patch.setattr(rules, "_form_slates", form_apart)


@looser
def a_slate_begins_with_its_first_item(patch, events, definition):
    merge = rules._slate
    patch.setattr(
        rules,
        "_slate",
        lambda group: merge([one for one in group if one.item_id is not None] or group),
    )


@looser
def a_list_without_items_gives_no_segment(patch, events, definition):
    segment = rules._segment

    def of_items(group):
        return segment([one for one in group if one.item_id is not None] or group)

    patch.setattr(rules, "_segment", of_items)


@looser
def a_repeated_list_without_items_is_a_duplicate(patch, events, definition):
    merge = rules._slate

    def slate(group):
        made = merge(group)
        made.records += sum(one.item_id is None for one in group[1:])
        return made

    patch.setattr(rules, "_slate", slate)


@looser
def a_segment_without_impressions_has_no_rows(patch, events, definition):
    by_segment = windows._by_segment

    def with_impressions(slates):
        found = by_segment(slates).items()
        return {segment: own for segment, own in found if any(slate.items for slate in own)}

    patch.setattr(windows, "_by_segment", with_impressions)


# --- fallback and latency ------------------------------------------------------------------------


@looser
def the_first_event_says_whether_a_slate_is_a_fallback(patch, events, definition):
    merge = rules._slate

    def slate(group):
        made = merge(group)
        made.fallback = min(group).fallback
        return made

    patch.setattr(rules, "_slate", slate)


@looser
def events_that_add_no_item_say_nothing_of_their_slate(patch, events, definition):
    merge = rules._slate

    def slate(group):
        made = merge(group)
        first = {one.item_id: one for one in reversed(group)}.values()
        made.fallback, made.latency = any(one.fallback for one in first), rules._latency(first)
        return made

    patch.setattr(rules, "_slate", slate)


@looser
def the_first_latency_stays(patch, events, definition):
    def latency(group):
        return next((one.latency for one in sorted(group) if one.latency is not None), None)

    patch.setattr(rules, "_latency", latency)


@looser
def no_latency_is_a_latency_of_0(patch, events, definition):
    patch.setattr(rules, "_latency", lambda group: max(one.latency or 0 for one in group))


@looser
def a_latency_is_rounded_in_floats(patch, events, definition):
    patch.setattr(rules, "_micros", lambda ms: None if ms is None else round(ms * MILLI))


# --- values --------------------------------------------------------------------------------------


def entries_after(item, kind, later):
    """The entries in order of arrival for which `later(ts, ts of the latest retraction)`."""
    feedback = item.feedback.get(kind, [])
    retracted = max((event.ts for event in feedback if event.retract), default=0)
    return [
        (event.ts, values._micro(event.value))
        for event in feedback
        if not event.retract and later(event.ts, retracted)
    ]


@looser
def an_entry_wins_a_tie_with_its_retraction(patch, events, definition):
    def entries(item, kind):
        return sorted(set(entries_after(item, kind, lambda ts, retracted: ts >= retracted)))

    patch.setattr(values, "_entries", entries)


@looser
def a_retraction_leaves_the_values(patch, events, definition):
    def entries(item, kind):
        return sorted(set(entries_after(item, kind, lambda *_: True)))

    patch.setattr(values, "_entries", entries)


@looser
def the_last_arrival_has_the_last_value(patch, events, definition):
    def entries(item, kind):
        return list(dict.fromkeys(entries_after(item, kind, lambda ts, retracted: ts > retracted)))

    patch.setattr(values, "_entries", entries)


@looser
def the_smaller_value_is_the_last_in_a_tie(patch, events, definition):
    strictly = values._entries

    def entries(item, kind):
        return sorted(strictly(item, kind), key=lambda entry: (entry[0], -entry[1]))

    patch.setattr(values, "_entries", entries)


@looser
def a_repeated_entry_adds_its_value_again(patch, events, definition):
    def entries(item, kind):
        return sorted(entries_after(item, kind, lambda ts, retracted: ts > retracted))

    patch.setattr(values, "_entries", entries)


@looser
def the_same_value_at_another_moment_is_one_entry(patch, events, definition):
    strictly = values._entries

    def entries(item, kind):
        return [(ts, value) for value, ts in {v: ts for ts, v in strictly(item, kind)}.items()]

    patch.setattr(values, "_entries", entries)


@looser
def a_value_is_rounded_in_floats(patch, events, definition):
    patch.setattr(values, "_micro", lambda value: round(value * MICRO))


@looser
def a_value_is_cut_to_its_decimals(patch, events, definition):
    patch.setattr(values, "_micro", lambda value: int(value * MICRO))


@looser
def the_cap_cuts_the_value_of_each_impression(patch, events, definition):
    value, value_figures = values.value_of, values.value_figures

    def figures(slates, positive):
        def capped(item, _):
            return values.capped(value(item, positive), positive.cap)

        items = [item for slate in slates for item in slate.items.values()]
        plain = sum(value(item, positive) for item in items) / MICRO
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(values, "value_of", capped)
            return value_figures(slates, replace(positive, cap=None)) | {"value": plain}

    patch.setattr(windows, "value_figures", figures)


@looser
def the_cap_cuts_the_value_of_all_users_together(patch, events, definition):
    value_figures = values.value_figures

    def capped(slates, positive):
        row = value_figures(slates, replace(positive, cap=None))
        if positive.cap is not None and row["value"] > positive.cap:
            cap = values._micro(positive.cap)
            for name, column in values._DENOMINATORS.items():
                row[name] = cap / (row[column] * MICRO) if row[column] else None
        return row

    patch.setattr(windows, "value_figures", capped)


@looser
def the_cap_cuts_the_plain_sum_too(patch, events, definition):
    value_figures = values.value_figures

    def capped(slates, positive):
        row = value_figures(slates, positive)
        total = (row["value_per_user"] or 0.0) * row["users"]
        return row if math.isclose(total, row["value"]) else row | {"value": total}

    patch.setattr(windows, "value_figures", capped)


@looser
def the_cap_cuts_negative_sums_as_well(patch, events, definition):
    def capped(total, cap):
        if cap is None:
            return total
        return max(-values._micro(cap), min(total, values._micro(cap)))

    patch.setattr(values, "capped", capped)


@looser_in_crowds
def all_entries_stay(patch, events, definition):
    patch.setattr(values, "MAX_LOGGED_FEEDBACK", 10**9)


@looser_in_crowds
def the_first_entries_stay(patch, events, definition):
    strictly = values._entries
    patch.setattr(values, "_entries", lambda item, kind: strictly(item, kind)[:100])


@looser_in_crowds
def repeated_entries_take_places(patch, events, definition):
    def entries(item, kind):
        found = sorted(entries_after(item, kind, lambda ts, retracted: ts > retracted))
        return sorted(set(found[-100:]))

    patch.setattr(values, "_entries", entries)


# --- lists ---------------------------------------------------------------------------------------


@looser
def a_slate_without_a_request_is_a_list(patch, events, definition):
    patch.setattr(lists, "with_request", list)


@looser
def a_list_of_the_smallest_k_is_short(patch, events, definition):
    patch.setattr(lists, "_is_short", lambda slate, d: len(slate.items) <= min(d.ks))


@looser
def an_empty_list_is_not_short(patch, events, definition):
    short = lists._is_short
    patch.setattr(lists, "_is_short", lambda slate, d: bool(slate.items) and short(slate, d))


@looser
def a_positive_without_gain_has_no_rank(patch, events, definition):
    def ranks(slate):
        found = lists.ranks_of(slate).items()
        kinds = {item: slate.items[item].positives() for item, _ in found}
        return [rank for item, rank in found if any(map(definition.gain, kinds[item]))]

    patch.setattr(lists, "positive_ranks", ranks)


@looser
def an_item_counts_once_for_each_kind(patch, events, definition):
    def ranks(slate):
        found = lists.ranks_of(slate).items()
        return [rank for item, rank in found for _ in slate.items[item].positives()]

    patch.setattr(lists, "positive_ranks", ranks)


@looser
def ranks_ignore_positions_given(patch, events, definition):
    ranks_of = lists.ranks_of
    patch.setattr(lists, "ranks_of", lambda slate: {i: n for n, i in enumerate(ranks_of(slate), 1)})


LOOSER_NAMES += LOOSER
