"""The recount of users' counters: of the whole log, of a part of it, of a sample of the users."""

import random
from pathlib import Path

import pytest
from clean_service import clean, stream
from oracle.figures import oracle
from streams import _arrive, _definition, _History

from streameval.base.errors import UnreachableError
from streameval.checks.catalogue import counters_match_log
from streameval.checks.catalogue.counters_match_log import Sample, collect, uncertain
from streameval.checks.evidence import Counters, Evidence, Log, Snapshot, read_snapshot

SEEDS = 60


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A clean service that no test changes."""
    return clean(tmp_path_factory.mktemp("clean"), stream(slates=3_000))


def checked(service, recorded, *, earlier="earlier", settings=None, **given):
    """What the check finds of what a service left."""
    later = read_snapshot(service.root / "later")
    before = None if earlier is None else read_snapshot(service.root / earlier)
    evidence = Evidence(
        None,
        service.definition,
        service.now(),
        snapshot=later,
        recording=recorded(later, before),
        **given,
    )
    return counters_match_log.check(evidence, counters_match_log.Settings(**(settings or {})))


def part_of(service):
    """The log without its first twentieth."""
    return service.log({number: len(events) // 20 for number, events in service.logs.items()})


# --- parts of the log -----------------------------------------------------------------------------


def test_a_part_of_the_log_gives_what_counters_grew_by(service):
    found = checked(service, part_of(service))
    assert found.passed is True, found.message
    assert "since earlier" in found.message


def test_a_part_of_the_log_needs_an_earlier_snapshot(service):
    found = checked(service, part_of(service), earlier=None)
    assert found.passed is None
    assert "give an earlier snapshot" in found.message


def test_a_part_that_begins_too_late_is_no_answer(service):
    late = service.log({number: len(events) // 2 - 5 for number, events in service.logs.items()})
    found = checked(service, late)
    assert found.passed is None
    assert "must begin 62 min before the earlier snapshot" in found.message.replace(
        "1.03 h", "62 min"
    )


@pytest.mark.parametrize(
    ("column", "field"), [(0, "impressions"), (1, "slates"), (2, "first_ts"), (3, "last_ts")]
)
def test_growth_that_the_log_does_not_give_is_found_in_every_counter(tmp_path, column, field):
    changed = []

    def change(users):
        changed.append(min(users))
        users[changed[0]][column] += -1 if field == "first_ts" else 1

    service = clean(tmp_path, stream(slates=1_500), change=change)
    found = checked(service, part_of(service))
    assert (found.passed, found.value) == (False, 1)
    assert f"user {changed[0][1]!r} has {field} " in found.message


def test_counters_that_were_deleted_since_the_earlier_snapshot_are_missed(tmp_path):
    """Unless users expire: then nobody can tell."""
    service = clean(tmp_path, stream(slates=1_500), change=lambda users: users.pop(min(users)))
    assert "has none, the log gives" in checked(service, part_of(service)).message
    assert checked(service, part_of(service), users_expire=True).passed is True


def events_of(seed):
    """A definition and a long hostile stream, in order of arrival."""
    rng = random.Random(seed)
    definition = _definition(rng)
    return definition, _arrive(_History(rng, definition).events(1_200), definition, rng), rng


def pseudonym(user):
    return f"somebody-{user[::-1]}"


def snapshot_of(definition, events, end, pseudonymous):
    """What a snapshot at the offset `end` holds, by the oracle over everything before."""
    users = {
        pseudonym(name) if pseudonymous else name: Counters(end, **counters)
        for name, counters in oracle(definition, events[:end])["users"].items()
    }

    class Known(Snapshot):
        def users(self, partition, chosen):
            assert partition == 0
            return {name: found for name, found in users.items() if chosen(name)}

    return Known(
        Path(f"at-{end}"),
        fingerprint="",
        definition={},
        pseudonymous=pseudonymous,
        parts={0: {"users_begin": end, "users_end": end}},
        watermarks={},
        figures={},
        combined={},
    )


def test_growth_over_any_part_that_reaches_back_far_enough_is_exact(seed):
    """Where it cannot be, because a request goes on from before the part, the user is left out.

    The snapshots of every other seed have pseudonyms.
    """
    definition, events, rng = events_of(seed)
    middle = rng.randrange(len(events) // 2, len(events))
    watermarks = [0]
    for event in events:
        late = event.ts < watermarks[-1] - definition.allowed_lateness
        watermarks.append(watermarks[-1] if late else max(watermarks[-1], event.ts))
    before = watermarks[middle] - 2 * definition.horizon
    begin = sum(watermark < before for watermark in watermarks[1:])
    log = Log(
        begin,
        lambda: iter([list(enumerate(events[begin:], begin))]),
        len(events),
        snapshot_of(definition, events, middle, seed % 2 == 1),
        before,
    )
    evidence = Evidence(
        None,
        definition,
        0,
        snapshot=snapshot_of(definition, events, len(events), seed % 2 == 1),
        recording=lambda _: {0: log},
        user=pseudonym,
    )
    found = counters_match_log.check(evidence, counters_match_log.Settings())
    assert found.passed is not False, found.message


def test_hostile_streams_begin_later_and_leave_some_users_out():
    """What the test before stands on."""
    parts = left_out = 0
    for seed in range(20):
        definition, events, _ = events_of(seed)
        high = max(event.ts for event in events)
        before = high - 2 * definition.horizon
        begin = next(at for at, event in enumerate(events) if event.ts >= before)
        log = Log(begin, lambda: iter([list(enumerate(events[begin:], begin))]))  # noqa: B023
        sample = Sample(1.0, None)
        part = collect(log, definition, sample, 10_000, len(events))
        parts += begin > 0
        left_out += len(uncertain(definition, sample, part, before))
    assert parts > 10
    assert left_out > 5


# --- samples --------------------------------------------------------------------------------------


def test_a_sample_recounts_some_users(service):
    every, some = (checked(service, service.log(), settings={"sample": n}) for n in (1.0, 0.1))
    assert every.passed is True
    assert some.passed is True
    assert "a sample of 10 %" in some.message
    assert users_in(some) < users_in(every) / 5


def test_a_log_with_more_events_than_fit_is_recounted_for_fewer_users(service):
    found = checked(service, service.log(), settings={"max_events": 1_000})
    assert found.passed is True
    assert "a sample of 25 %" in found.message


def users_in(found):
    return int(found.message.split(" users")[0].split()[-1].replace(",", ""))


# --- no log ---------------------------------------------------------------------------------------


def test_a_log_that_cannot_be_read_is_neither_pass_nor_fail(service):
    def away(*_):
        raise UnreachableError("Kafka at 127.0.0.1:9 does not answer")

    found = checked(service, lambda *_: away)
    assert (found.passed, found.due) == (None, True)
    assert found.message == (
        "no answer: the log cannot be read: Kafka at 127.0.0.1:9 does not answer"
    )
    assert checked(service, lambda *_: lambda _: "deleted").message == "no answer: deleted"


def test_only_counters_that_were_all_right_are_what_the_next_run_begins_from(service):
    memory = {}
    assert checked(service, service.log(), earlier=None, memory=memory).passed is True
    assert set(memory) == {"counters_match_log"}
    assert checked(service, lambda *_: lambda _: "deleted", memory=memory).passed is None
    assert memory == {}
