"""The figures of the whole topic, added up from the shared sums of its partitions.

Whichever worker is asked adds up the same bytes in the same order, so all give the same figures.
They are computed when somebody asks, once for all who ask, and seldom enough that it takes at most
`SHARE` of the time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from streameval.base.errors import UnreachableError
from streameval.core.definition import Definition
from streameval.core.figures import Row, figures
from streameval.core.fingerprint import fingerprint
from streameval.core.merged_segments import Segment, beyond_bound
from streameval.core.shared_sums import SharedSums, busiest, unpack
from streameval.core.sums import Sums, merge
from streameval.web import history
from streameval.web.intervals import SECTIONS, with_intervals

# Of a worker's time, all windows and bases together. With the shares of owners, charts and the
# leader's history it is 2 %.
SHARE: Final = 0.008
# Owners share new sums as often, at most.
FRESH_SECONDS: Final = 2.0
# Sums come every minute even where nobody looks: an owner that missed one is away or stuck.
STALE_MS: Final = 90_000
# Where somebody looks, they come within a few seconds, unless there are very many segments.
LOOKED_AT_STALE_MS: Final = 15_000
# The first who looks waits so long for the owners: a turn to hear of it, a tick, and a turn.
FIRST_SECONDS: Final = 6.0
LOOK_SECONDS: Final = 0.25


class Version(Protocol):
    """Which sums of a partition are stored; `age` (ms) since they were made."""

    @property
    def offset(self) -> int:
        """The offset of the log up to which they go."""

    @property
    def time(self) -> int:
        """T (ms)."""

    @property
    def at(self) -> int:
        """When they were made (ms since the epoch, by Redis' clock)."""

    @property
    def age(self) -> int:
        """The time since they were made (ms)."""


class User(Protocol):
    """The lifetime counters of a user."""

    def document(self, user_id: str, names: Mapping[str, str]) -> dict[str, Any]:
        """Return plain values for JSON; `names` of experiments by key."""


class SharedState(Protocol):
    """The part of the store that workers read of each other."""

    async def ask(self, windows: Sequence[str]) -> bool:
        """Ask the owners for fresh sums of these windows; return whether somebody had before."""

    async def versions(
        self, partitions: int, window: str, fingerprint: str
    ) -> Mapping[int, Version]:
        """Return which sums are stored, by partition."""

    async def sums(self, partition: int, window: str) -> bytes | None:
        """Read the packed sums of a partition."""

    async def history(self, name: str, first: int, last: int) -> list[bytes]:
        """Return the points of a history with numbers from first to last, in their order."""

    async def workers(self) -> Mapping[str, tuple[int, str]]:
        """Return what each worker said of itself, and how long ago (ms)."""

    async def user(self, user_id: str, partitions: int) -> User | None:
        """Look up the counters of one user."""

    async def reported(self, name: str) -> str | None:
        """Return the last report of the leader."""


class Document(NamedTuple):
    """JSON with its entity tag, and the plain values that it was written of."""

    body: bytes
    etag: str
    value: Mapping[str, Any]


def document(value: Mapping[str, Any]) -> Document:
    """Write a document; a figure that is no finite number is a bug."""
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return Document(body, f'"{hashlib.sha256(body).hexdigest()[:16]}"', value)


@dataclass(slots=True)
class _Kept:
    """A computed document, with its inputs' versions."""

    made_of: Any
    document: Document
    until: float = 0.0


class WholeTopic:
    """Reads the sums that owners share, for one definition; `partitions` is their number."""

    def __init__(
        self, store: SharedState, definition: Definition, partitions: Callable[[], int]
    ) -> None:
        self._store, self._definition, self._partitions = store, definition, partitions
        self._fingerprint = fingerprint(definition)
        self._kept: dict[tuple[str, ...], _Kept] = {}
        self._free_at = 0.0  # until then the document computed before is returned
        self._asked_at = -math.inf  # when nobody had asked for a while
        self._seen: dict[str, tuple[float, str]] = {}
        self._busy = asyncio.Lock()

    async def figures(self, window: str | None, basis: str | None) -> Document:
        """Return the figures of one window or all, on one basis or all.

        Whoever asks first for a while waits for fresh sums. Raises `UnreachableError` while Redis
        is away, the topic is not known yet, or no partition has been shared.
        """
        windows = self._windows(window)
        async with self._busy:
            kept = self._kept.get((window or "", basis or ""))
            if kept is not None and time.monotonic() < max(kept.until, self._free_at):
                return kept.document
            versions = await self._fresh(windows)
            coverage = self._coverage(versions, LOOKED_AT_STALE_MS)
            if not coverage["partitions"]["shown"]:
                raise UnreachableError("no worker has shared figures yet: ask again")
            coverage["workers"] = len(await self._store.workers())
            made_of = (
                {name: _written_offsets(found) for name, found in versions.items()},
                coverage,
            )
            if kept is None or kept.made_of != made_of:
                shared = {name: await self._read(name, versions[name]) for name in windows}
                found, took = await asyncio.to_thread(self._document, shared, basis, coverage)
                kept = self._kept[window or "", basis or ""] = _Kept(made_of, found)
                self._free_at = max(time.monotonic(), self._free_at) + took / SHARE
            kept.until = time.monotonic() + FRESH_SECONDS
            return kept.document

    async def version(self, window: str | None) -> str:
        """Return an id that changes with the figures, and ask for fresh ones."""
        windows = self._windows(window)
        async with self._busy:
            until, known = self._seen.get(window or "", (0.0, ""))
            if time.monotonic() >= until:
                await self._ask(windows)
                found = [_written_offsets(await self._versions(name)) for name in windows]
                known = hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]
                self._seen[window or ""] = time.monotonic() + FRESH_SECONDS, known
            return known

    async def points(self) -> tuple[dict[str, bytes], float]:
        """Return a point of history by window and basis, and the processor time it took.

        There are none while a partition is missing or stale: its figures would seem to fall.
        """
        windows = self._windows(None)
        versions = {name: await self._versions(name) for name in windows}
        coverage = self._coverage(versions, STALE_MS)["partitions"]
        if coverage["missing"] or coverage["stale"]:
            return {}, 0.0
        shared = {name: await self._read(name, versions[name]) for name in windows}
        return await asyncio.to_thread(self._points, shared)

    def _windows(self, window: str | None) -> list[str]:
        return [each.name for each in self._definition.windows if window in {None, each.name}]

    async def _fresh(self, windows: Sequence[str]) -> dict[str, Mapping[int, Version]]:
        """Return the versions, once all were made after the first question for a while."""
        await self._ask(windows)
        while True:
            versions = {name: await self._versions(name) for name in windows}
            asked_for = time.monotonic() - self._asked_at
            ages = [
                found[number].age / 1000 if number in found else math.inf
                for found in versions.values()
                for number in range(self._partitions())
            ]
            if asked_for >= FIRST_SECONDS or max(ages) <= asked_for:
                return versions
            await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self, windows: Sequence[str]) -> None:
        now = time.monotonic()
        if not await self._store.ask(windows):
            self._asked_at = now

    async def _versions(self, window: str) -> Mapping[int, Version]:
        partitions = self._partitions()
        if not partitions:
            raise UnreachableError("the worker does not know the topic yet: try again")
        return await self._store.versions(partitions, window, self._fingerprint)

    async def _read(self, window: str, versions: Iterable[int]) -> list[SharedSums]:
        """Read the sums of partitions; those that have gone meanwhile are left out."""
        found = [await self._store.sums(partition, window) for partition in sorted(versions)]
        try:
            return [unpack(packed) for packed in found if packed is not None]
        except ValueError as error:
            raise UnreachableError(f"{error}: run one version on all workers") from error

    def _coverage(
        self, versions: Mapping[str, Mapping[int, Version]], stale_ms: int
    ) -> dict[str, Any]:
        """Say which partitions the figures are of; the sums of stale ones are older than that."""
        every = range(self._partitions())
        there = [n for n in every if all(n in found for found in versions.values())]
        stale = [n for n in there if any(f[n].age > stale_ms for f in versions.values())]
        missing = [number for number in every if number not in there]
        return {
            "partitions": {
                "shown": there,
                "of": len(every),
                "stale": stale,
                "missing": missing,
                "made_at": min((f[n].at for f in versions.values() for n in there), default=None),
            }
        }

    def _document(
        self, shared: Mapping[str, Sequence[SharedSums]], basis: str | None, coverage: Any
    ) -> tuple[Document, float]:
        """Return the document, and the processor time that it took."""
        began = time.thread_time()
        every = [part for parts in shared.values() for part in parts]
        newest = max(shared.values(), key=len, default=())
        written = {
            "at": _latest(part.time for part in every),
            **coverage,
            "segments_in_other": max((part.left_out for part in every), default=0),
            "watermark": _latest(part.watermark for part in every),
            "events": _add_up([part.events for part in newest]),
            **with_intervals(self._sections(shared, basis), self._definition.dimensions),
        }
        return document(written), time.thread_time() - began

    def _points(self, shared: Mapping[str, Sequence[SharedSums]]) -> tuple[dict[str, bytes], float]:
        began = time.thread_time()
        sections = self._sections(shared, None)
        points = {}
        for window, parts in shared.items():
            now = _latest(part.time for part in parts)
            if now is None:
                continue
            for basis in history.BASES:
                rows = {
                    name: [
                        r for r in sections[name] if (r["window"], r["basis"]) == (window, basis)
                    ]
                    for name in SECTIONS
                }
                point = history.pack(now, rows, self._definition.dimensions)
                points[history.name_of(window, basis)] = point
        return points, time.thread_time() - began

    def _sections(
        self, shared: Mapping[str, Sequence[SharedSums]], basis: str | None
    ) -> dict[str, list[Row]]:
        """Return the rows of partitions together; all of them without a basis."""
        sums: Sums = {}
        for index, window in enumerate(self._definition.windows):
            parts = [part.sums(index) for part in shared.get(window.name, ())]
            sums |= merge(parts, self._bounded(parts))
        if basis is not None:
            source = "matured" if basis == "matured" else "live"
            sums = {key: found for key, found in sums.items() if key[1] == source}
        return {
            name: [row for row in rows if basis is None or row.get("basis", basis) == basis]
            for name, rows in figures(self._definition, sums).items()
        }

    def _bounded(self, parts: Sequence[Sums]) -> Callable[[Segment], Segment]:
        """Return the name that a segment counts under: its own, or `__other__` beyond the bound.

        Each partition bounds only its own segments.
        """
        impressions: Counter[Segment] = Counter()
        for sums in parts:
            for found in sums.values():
                impressions.update(dict(zip(found.names, found.impressions.tolist(), strict=True)))
        kept = busiest(impressions, self._definition.max_segments)
        return lambda segment: segment if segment in kept else beyond_bound(segment)


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def _written_offsets(versions: Mapping[int, Version]) -> list[tuple[int, int, int]]:
    return [(number, each.offset, each.time) for number, each in sorted(versions.items())]


def _add_up(many: Sequence[Any]) -> Any:
    """Add up counters by name, however deep."""
    if not many:
        return {}
    if isinstance(many[0], Mapping):
        names = dict.fromkeys(name for one in many for name in one)
        return {name: _add_up([one[name] for one in many if name in one]) for name in names}
    return sum(many)
