"""Fill of late experiments: slates that were final before the state knew the experiment.

Outcome files still hold these slates. They are read hour by hour, the newest first. The sums of an
hour and the time from which the experiment counts change together in the partition's state, and
reach the store together, with a checkpoint. So a worker that restores the partition goes on at that
time: each slate counts once, whatever is killed when. Users come with the commits, as visits.

A gap stays open where nothing can fill it exactly: before the first file, and at files of another
definition, without the arm, or with pseudonyms in place of users.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from streameval.base.errors import InputError
from streameval.base.retry import persist, persist_in_thread
from streameval.core.definition import Definition
from streameval.core.experiments.outcome_slates import OutcomeSlates
from streameval.core.experiments.sums import ExperimentSums, Gap
from streameval.worker.assigned_partition import AssignedPartition

if TYPE_CHECKING:
    from streameval.files.outcome_files import OutcomeFolder

log = logging.getLogger(__name__)

# Partitions come, and commits take visits, within seconds.
PAUSE_SECONDS: Final = 0.5
_DONE: Final = object()


class ExperimentFill:
    """Fills the experiments of the `partitions` of a worker, which come and go."""

    def __init__(
        self,
        files: OutcomeFolder,
        definition: Definition,
        partitions: Mapping[int, AssignedPartition],
    ) -> None:
        self._files, self._definition, self._partitions = files, definition, partitions

    async def run(self) -> None:
        """Fill every gap, one after another, until cancelled."""
        while True:
            for partition in list(self._partitions.values()):
                for gap in partition.state.experiments.gaps():
                    if gap.experiment.key not in partition.filled:
                        await self._fill(partition, gap)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _fill(self, partition: AssignedPartition, gap: Gap) -> None:
        """Fill a gap as far back as files reach; stop where the partition has gone."""
        name, number = gap.experiment.name, partition.number
        for hour in await persist_in_thread(self._files.hours, gap.begin, gap.end):
            here = await persist_in_thread(self._files.of_hour, hour)
            files = [file.name for file in here if file.span.partition == number]
            try:
                found = await persist(partial(self._read, files, gap))
            except InputError as error:
                log.warning("partition %d: experiment %s: %s", number, name, error)
                break
            if found is None:
                break
            if not await self._is_ready(partition):
                return
            if files:
                begin = max(gap.begin, hour)
                partition.fill(found.arm_sums[0], found.take_visits(), begin)
                log.info("partition %d: experiment %s counts from %s on", number, name, _utc(begin))
        partition.filled.add(gap.experiment.key)

    async def _read(self, files: Sequence[str], gap: Gap) -> ExperimentSums | None:
        """Return the sums and visits of a gap in files; None where their rows are no match.

        It reads half of the time, because the thread and the loop share the processor.
        """
        # A worker without outcome files has no gaps to fill, and needs no pyarrow.
        from streameval.evaluation.arms import consumer_of

        consumer = consumer_of(self._definition, gap.experiment)
        for file in files:
            if not await asyncio.to_thread(self._files.fits, file, gap.experiment.arm):
                return None
        steps = _adding(consumer, self._definition, gap, files)
        began = time.monotonic()
        while await asyncio.to_thread(next, steps, _DONE) is not _DONE:
            await asyncio.sleep(time.monotonic() - began)
            began = time.monotonic()
        return consumer

    async def _is_ready(self, partition: AssignedPartition) -> bool:
        """Wait until a partition takes an hour; return False where it has gone."""
        while self._partitions.get(partition.number) is partition:
            if partition.can_fill:
                return True
            await asyncio.sleep(PAUSE_SECONDS)
        return False


def _adding(
    consumer: ExperimentSums, definition: Definition, gap: Gap, files: Sequence[str]
) -> Iterator[None]:
    """Add the slates of files that lie in the gap, some thousand at a step."""
    from streameval.evaluation.arms import arm_batches, slates_of

    made, arm, (sums,) = OutcomeSlates(definition), gap.experiment.arm, consumer.arm_sums
    for record in arm_batches(files, arm, lambda _: None):
        consumer.add(list(slates_of(record, arm, made, (gap.begin, gap.end), sums)))
        yield from consumer.settling()
        yield


def _utc(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))
