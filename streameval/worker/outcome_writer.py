"""Outcome files beside the commits of a partition: written before, made visible after.

`files.outcome_files` says why a span of rows is visible exactly when its checkpoint counts. This
file has the worker's part. Files block, so every step is a call in a thread. While a disk or an
object store is away, the partition waits for it as it waits for Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streameval import __version__
from streameval.base.errors import UnreachableError
from streameval.base.retry import persist, persist_in_thread
from streameval.core.checkpoint import attachments_of
from streameval.core.outcome import Span
from streameval.store.stored_values import Stored
from streameval.worker.assigned_partition import AssignedPartition, PendingCommit
from streameval.worker.ports import StateStore

if TYPE_CHECKING:
    from streameval.config.settings import Settings
    from streameval.files.outcome_files import OutcomeFolder

log = logging.getLogger(__name__)


def open_files(settings: Settings) -> OutcomeFolder | None:
    """Make the folder that the settings name, if any; nothing is touched yet."""
    if settings.outcomes is None:
        return None
    from streameval.files.outcome_files import OutcomeFolder, user_name

    definition = settings.definition()
    return OutcomeFolder(
        settings.outcomes,
        settings.owner,
        {"version": __version__, "definition": definition.described()},
        definition.labels,
        user=user_name(settings),
    )


class OutcomeWriter:
    """The outcome files of a worker; with `files` None it writes none."""

    def __init__(self, files: OutcomeFolder | None, store: StateStore) -> None:
        self._files, self._store = files, store

    @property
    def on(self) -> bool:
        """Whether outcomes are kept."""
        return self._files is not None

    async def check(self) -> None:
        """Make the folder ours; raises where it is another's, or cannot be used."""
        if self._files is not None:
            await asyncio.to_thread(self._files.check)

    async def write(self, pending: PendingCommit) -> None:
        """Write the rows before the commit, whole and not visible."""
        if self._files is not None and pending.span is not None:
            files, span = self._files, pending.span
            await persist_in_thread(lambda: files.write(span, pending.outcomes()))

    async def publish(self, pending: PendingCommit) -> None:
        """Make the rows visible where the stored checkpoint names their span; else remove them.

        After a commit that went through, the checkpoint does not name it where this worker slept
        since. Then the partition's next owner has published the span, or the store lost data and
        the slates are written again. After a refused commit it does not, and another worker writes
        them, with one exception: the commit had gone through, its reply was lost, and another
        commit came before it was tried again.
        """
        if self._files is None or pending.span is None:
            return
        name = pending.span.name
        if name in await self._named(pending.partition):
            await self._show(self._files, pending.partition, name)
        else:
            with contextlib.suppress(UnreachableError):  # a restore finds it one day
                await asyncio.to_thread(self._files.discard, name)

    async def settle(self, partition: AssignedPartition, stored: Stored) -> None:
        """Bring the files to where a partition just restored from `stored` begins."""
        if self._files is None:
            return
        beyond, since = partition.next_offset, None
        if stored.header is not None and stored.checkpoint_offset is not None:
            beyond = stored.checkpoint_offset
            for name in attachments_of(stored.header):
                await self._show(self._files, partition.number, name)
            if partition.state.watermark is not None:
                since = partition.state.watermark - partition.state.definition.horizon
        removed = await self._clean(self._files, partition.number, beyond, since)
        if removed:
            log.warning(
                "partition %d: %d outcome files lay beyond the checkpoint at %d, because Redis"
                " lost data; they are removed, and their slates written again",
                partition.number,
                removed,
                beyond,
            )
        await self._discard_abandoned(self._files, partition.number)

    async def _named(self, number: int) -> list[str]:
        """Return the spans that the stored checkpoint names."""
        header = await persist(lambda: self._store.header(number))
        return [] if header is None else attachments_of(header)

    async def _show(self, files: OutcomeFolder, number: int, name: str) -> None:
        """Make a span visible; remove it if the store has lost it meanwhile.

        A reply or a disk may take long. Then the next owner looked for lost spans before this span
        was there.
        """
        await persist_in_thread(files.publish, name)
        await self._remove_lost(files, number, [name], None)

    async def _clean(
        self, files: OutcomeFolder, number: int, offset: int, since: int | None
    ) -> int:
        """Remove the spans beyond the checkpoint that the store points to; count their files.

        A pointer read before the spans are found proves nothing: another worker may have committed
        and published since.
        """
        names = await persist_in_thread(files.beyond, number, offset, since)
        return await self._remove_lost(files, number, names, since) if names else 0

    async def _remove_lost(
        self, files: OutcomeFolder, number: int, names: Sequence[str], since: int | None
    ) -> int:
        """Remove visible spans that the store has lost; count their files.

        A visible span was committed before. So it is lost if the pointer does not reach it now.
        """
        pointer = await persist(lambda: self._store.checkpoint_offset(number)) or 0
        lost = [name for name in names if _span(name).end > pointer]
        removed: int = await persist_in_thread(files.remove, number, lost, since) if lost else 0
        return removed

    async def _discard_abandoned(self, files: OutcomeFolder, number: int) -> None:
        """Remove old spans that nobody can publish any more.

        A span that is not committed may still be, however old it is, until the pointer is beyond
        its begin: from there on the script refuses it. A committed one is named by every checkpoint
        until it is visible. So the checkpoint must be read after the pointer.
        """
        names = await persist_in_thread(files.unpublished, number)
        if not names:
            return
        pointer = await persist(lambda: self._store.checkpoint_offset(number)) or 0
        named = await self._named(number)
        for name in names:
            if _span(name).begin < pointer and name not in named:
                await persist_in_thread(files.discard, name)


def _span(name: str) -> Span:
    span = Span.parse(name)
    assert span is not None, "only spans are found"
    return span
