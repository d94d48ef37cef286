"""What is known of the log between two fetches, and what the fetcher is told; no server is needed.

On real brokers: `test_log_set_back`.
"""

import asyncio
import struct
from types import SimpleNamespace

import pytest
from aiokafka.client import ConnectionGroup
from aiokafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from streameval.kafka import fetch_by_id
from streameval.kafka.fetch_by_id import NO_EPOCH, VerifyingClient

LEADER, FOLLOWER = 1, 2
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def batch(first, count, epoch):
    """A batch of `count` records from offset `first` on, as far as its header tells."""
    return struct.pack(">qiibIhi", first, 49, epoch, 2, 0, 0, count - 1).ljust(61, b"\0")


class Client:
    """Answers fetches of partition 0 from a list; keeps what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        self.cluster = SimpleNamespace(leader_for_partition=lambda _: LEADER)
        self.connection = "first"

    async def ready(self, _):
        return True

    @property
    def _conns(self):
        return {(node, ConnectionGroup.DEFAULT): self.connection for node in (LEADER, FOLLOWER)}

    async def send(self, _, request):
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answer(records=b"", error=0, tags=None):
    partition = (0, error, 100, 90, 5, [(7, 30, {})], -1, records, tags or {})
    return SimpleNamespace(responses=[(TOPIC_ID, [partition], {})])


def answer_by_name(records=b""):
    return SimpleNamespace(topics=[("t", [(0, 0, 100, 90, 5, [], -1, records)])])


def fetch(client, *offsets, node=LEADER):
    """Fetch from each offset; what the fetcher is told, and the epochs that were sent."""

    async def scenario():
        return [await client.send(node, request(offset)) for offset in offsets]

    told = [each.topics[0][1][0] for each in asyncio.run(scenario())]
    struct_class = fetch_by_id._Request13
    sent = [
        asked.build(struct_class).topics[0][1][0][3]
        for asked in client._client.asked
        if isinstance(asked, fetch_by_id._FetchById)
    ]
    return told, sent


def request(offset):
    return FetchRequest(500, 1, 50 << 20, 1, [("t", [(0, offset, 1 << 20)])])


def verifying(*answers, topic_id=TOPIC_ID):
    return VerifyingClient(Client(*answers), "t", topic_id)


def test_a_fetch_says_the_epoch_of_the_record_before_it_where_that_is_known():
    """Not at first, in the middle, across a change of leaders, at the end, and not beyond it."""
    read = batch(10, 10, 3) + batch(20, 10, 3) + batch(30, 5, 6)
    client = verifying(answer(read), *[answer()] * 6)
    _, sent = fetch(client, 12, 13, 20, 30, 31, 35, 36)
    assert sent == [NO_EPOCH, 3, 3, 3, 6, 6, NO_EPOCH]


def test_what_is_fetched_again_replaces_what_was_known():
    client = verifying(answer(batch(0, 10, 1)), answer(batch(5, 3, 2)), answer(), answer())
    _, sent = fetch(client, 0, 5, 8, 10)
    assert sent == [NO_EPOCH, 1, 2, NO_EPOCH]


def test_what_is_forgotten_is_not_compared():
    client = verifying(answer(batch(0, 10, 1)), answer(), answer())
    fetch(client, 0)
    client.forget(0)
    _, sent = fetch(client, 10)
    assert sent == [NO_EPOCH, NO_EPOCH]


def test_a_follower_is_not_asked_whether_the_log_goes_on():
    """It may lag behind what its leader has handed out."""
    client = verifying(answer(batch(0, 10, 1)), answer())
    _, sent = fetch(client, 0, 10, node=FOLLOWER)
    assert sent == [NO_EPOCH, NO_EPOCH]


def test_a_cut_batch_and_old_formats_are_not_known():
    old = struct.pack(">qiib", 0, 49, 0, 1).ljust(61, b"\0")
    for records in (batch(0, 10, 1)[:-1], old, b""):
        client = verifying(answer(records), answer())
        assert fetch(client, 0, 10)[1] == [NO_EPOCH, NO_EPOCH]


@pytest.mark.parametrize(
    ("code", "tags", "told"),
    [
        (0, {0: b"diverging"}, OffsetOutOfRangeError.errno),
        (100, {}, UnknownTopicOrPartitionError.errno),
        (103, {}, UnknownTopicOrPartitionError.errno),
        (6, {}, 6),
        (0, {}, 0),
    ],
)
def test_another_log_is_an_error_that_the_fetcher_knows(code, tags, told, monkeypatch):
    monkeypatch.setattr(fetch_by_id, "PAUSE_SECONDS", 0)
    (partition,), _ = fetch(verifying(answer(b"", code, tags)), 50)
    assert partition == (0, told, 100, 90, 5, [(7, 30)], -1, b"")


def reconnected(*answers, topic_id=TOPIC_ID):
    """What the fetcher is told of offset 20, over another connection than offset 10 was read by.

    Also the offsets that were asked for then.
    """
    client = verifying(*answers, topic_id=topic_id)
    fetch(client, 10)
    client._client.connection = "another"
    told, _ = fetch(client, 20)
    return told[0], [each.topics[0][1][0][1] for each in asked_of(client)][1:]


def asked_of(client):
    return [getattr(each, "_plain", each) for each in client._client.asked]


def test_over_a_new_connection_the_last_batch_is_compared_first():
    """It begins at offset 13; the batches before it may be gone."""
    read, there = batch(10, 3, 1) + batch(13, 7, 1), batch(13, 7, 1) + batch(20, 1, 1)
    told, asked = reconnected(answer(read), answer(there), answer())
    assert (told[1], asked) == (0, [13, 20])


def test_the_same_connection_and_a_log_of_which_nothing_was_read_are_not_compared():
    client = verifying(answer(), answer(batch(10, 10, 1)), answer(), answer())
    fetch(client, 10)
    client._client.connection = "another"
    fetch(client, 10, 20, 20)
    assert [each.topics[0][1][0][1] for each in asked_of(client)] == [10, 10, 20, 20]


@pytest.mark.parametrize("topic_id", [TOPIC_ID, ""])
def test_another_batch_in_its_place_is_out_of_range(topic_id, monkeypatch):
    """Also where the broker tells no ids."""
    monkeypatch.setattr(fetch_by_id, "PAUSE_SECONDS", 0)
    said = answer if topic_id else answer_by_name
    for other in (batch(13, 8, 1), batch(12, 8, 1), batch(13, 7, 1)[:-1] + b"x"):
        read = batch(13, 7, 1)
        told, asked = reconnected(said(read), said(other), topic_id=topic_id)
        assert (told[1], asked) == (OffsetOutOfRangeError.errno, [13])


@pytest.mark.parametrize("nothing", [answer(), answer(error=OffsetOutOfRangeError.errno)])
def test_a_batch_that_is_not_there_tells_nothing(nothing, monkeypatch):
    """A follower may not have it yet, and retention may have taken it."""
    monkeypatch.setattr(fetch_by_id, "PAUSE_SECONDS", 0)
    told, asked = reconnected(answer(batch(13, 7, 1)), nothing, answer())
    assert (told[1], asked) == (0, [13, 20])


def test_a_comparison_that_is_refused_is_made_again(monkeypatch):
    monkeypatch.setattr(fetch_by_id, "PAUSE_SECONDS", 0)
    read = batch(13, 7, 1)
    client = verifying(answer(read), answer(error=6), answer(read), answer())
    fetch(client, 10)
    client._client.connection = "another"
    told, _ = fetch(client, 20, 20)
    assert [each[1] for each in told] == [6, 0]
    assert [each.topics[0][1][0][1] for each in asked_of(client)] == [10, 13, 13, 20]


def test_an_old_broker_and_one_without_ids_are_asked_by_name():
    plain = answer_by_name()
    old = verifying(NotImplementedError(), plain)
    fetch(old, 0)
    assert isinstance(old._client.asked[-1], FetchRequest)
    nameless = verifying(plain, topic_id="")
    assert fetch(nameless, 0)[1] == []


def test_other_requests_and_all_else_go_to_the_client():
    other = OffsetRequest(-1, 0, [])
    client = verifying("answered")
    assert asyncio.run(client.send(LEADER, other)) == "answered"
    assert client.cluster is client._client.cluster
