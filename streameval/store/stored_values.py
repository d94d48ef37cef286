"""The values that go to the store and come from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streameval.base.limits import CLUSTERS
from streameval.core import record_mark
from streameval.core.experiments.users import ArmUsers, Visit
from streameval.core.ledger import UserDelta
from streameval.core.record_mark import RecordMark


class CheckpointWrite(NamedTuple):
    """A checkpoint to store: the changes since the last one, and the chunks that still count."""

    header: bytes
    chunks: Mapping[str, bytes]  # new ones, by a name that nobody has used or will use
    keep: Sequence[str]  # names of all chunks that the header refers to, the new ones among them
    since: int | None = None  # the offset of the checkpoint before it, None where there is none


@dataclass(frozen=True, slots=True)
class Commit:
    """The changes of one batch of a partition; offsets count records, times are ms."""

    partition: int
    start: int | None  # the stored offset the batch was read from, None before the first commit
    end: int
    users: Sequence[UserDelta]
    cluster_id: str
    topic_id: str
    fingerprint: str
    definition: str
    now: int
    checkpoint: CheckpointWrite | None = None
    last_record: RecordMark | None = None  # None where the batch has no records
    visits: Sequence[Visit] = ()
    first: bool = True  # since the partition was loaded


class Applied(NamedTuple):
    """The commit is stored, by this try or by an earlier one whose reply was lost."""


class Fenced(NamedTuple):
    """The commit changed nothing: the partition is at `offset`, stored by another writer."""

    offset: int | None


class Torn(NamedTuple):
    """The commit changed nothing: an earlier one was applied in part, see `commit.lua`.

    Some users have been counted up to `end`, where this batch must end. None: load the partition
    again and `mend` it.
    """

    end: int | None


class Stored(NamedTuple):
    """The stored data of a partition; all None and empty before the first commit."""

    offset: int | None
    cluster_id: str | None
    topic_id: str | None
    fingerprint: str | None
    header: bytes | None
    chunks: dict[str, bytes]
    checkpoint_offset: int | None
    committed_at: int | None
    definition: str | None
    last_record: RecordMark | None = None
    torn: int | None = None  # the number of commits begun, where one was applied in part

    @property
    def checkpoint_bytes(self) -> int | None:
        """The size of the checkpoint, header and chunks; None before the first."""
        if self.header is None:
            return None
        return len(self.header) + sum(map(len, self.chunks.values()))


class PackedSums(NamedTuple):
    """The sums of a partition in one window, up to `offset` of its log and at T (ms).

    `made_at` is in seconds of a clock that never goes back.
    """

    partition: int
    window: str
    offset: int
    time: int
    packed: bytes
    made_at: float


def _last_times(arms: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return arms by `Experiment.key`, from arms by `ArmSums.users_key`."""
    found: dict[str, tuple[int, list[str]]] = {}
    for name, those in arms.items():
        key, _, begun = name.partition("@")
        time = int(begun or -1)
        if key not in found or time > found[key][0]:
            found[key] = time, those
    return {key: those for key, (_, those) in found.items()}


class UserCounters(NamedTuple):
    """Lifetime counters of one user, summed over the partitions that know the user.

    `arms` names the arms that the user has been in, by experiment.
    """

    partitions: list[int]
    impressions: int
    slates: int
    positives: dict[str, int]
    first_ts: int
    last_ts: int
    arms: dict[str, list[str]]

    def document(self, user_id: str, names: Mapping[str, str]) -> dict[str, Any]:
        """Return plain values for JSON; `names` of experiments by key.

        An experiment that ended, or was given another time, has its arms under its key. Of one
        that began anew, the arms of the last time are shown.
        """
        arms = {names.get(key, key): found for key, found in _last_times(self.arms).items()}
        return {"user_id": user_id, **self._asdict(), "arms": arms}


class Facts(NamedTuple):
    """The server's description of itself."""

    version: str
    policy: str  # maxmemory-policy
    persistent: bool  # it has an append-only file, or has written or loaded a snapshot
    now: int  # the server's clock (ms)
    evicts: bool = False  # the policy lets counters go


def parse_arm_users(fields: Mapping[bytes, bytes]) -> ArmUsers:
    """Parse the hash of an experiment in one partition; `commit.lua` says what stands in it."""
    users = ArmUsers()
    for name, value in fields.items():
        what, _, rest = name.decode().partition(":")
        if what == "users":
            cluster, _, arm = rest.partition(":")
            users.by_arm.setdefault(arm, np.zeros(CLUSTERS, np.int64))[int(cluster)] = int(value)
        elif what == "only":
            users.exactly[rest] = int(value)
        elif what == "first":
            bucket, _, arm = rest.partition(":")
            sums = msgspec.msgpack.decode(value, type=list[int])
            users.first.sums[int(bucket), arm] = np.array(sums, np.int64)
        elif what == "span":
            users.first.begin, users.first.end = map(int, value.split())
        else:
            users.crossed = int(value)
    return users


def arm_user_fields(users: ArmUsers) -> dict[str, str | list[int]]:
    """Return the hash that `parse_arm_users` reads; `mend.lua` packs the lists."""
    first = users.first
    fields: dict[str, str | list[int]] = {"crossed": str(users.crossed)}
    for arm, counts in users.by_arm.items():
        fields |= {f"users:{at}:{arm}": str(count) for at, count in enumerate(counts) if count}
    fields |= {f"only:{arm}": str(count) for arm, count in users.exactly.items()}
    for (bucket, arm), sums in first.sums.items():
        fields[f"first:{bucket}:{arm}"] = sums.tolist()
    return fields | ({} if first.begin is None else {"span": f"{first.begin} {first.end}"})


def parse_stored(fields: dict[bytes, bytes], chunks: dict[str, bytes]) -> Stored:
    """Parse the fields of a partition's hash."""

    def text(name: bytes) -> str | None:
        return fields.get(name, b"").decode() or None

    def number(name: bytes) -> int | None:
        return int(fields[name]) if fields.get(name) else None

    last, begun = text(b"last_record"), number(b"begun")
    return Stored(
        offset=number(b"offset"),
        cluster_id=text(b"cluster_id"),
        topic_id=text(b"topic_id"),
        fingerprint=text(b"fingerprint"),
        header=fields.get(b"header") or None,
        chunks=chunks,
        checkpoint_offset=number(b"checkpoint_offset"),
        committed_at=number(b"committed_at"),
        definition=text(b"definition"),
        last_record=None if last is None else record_mark.parse(last),
        torn=None if begun == number(b"done") else begun,
    )
