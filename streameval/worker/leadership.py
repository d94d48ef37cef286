"""Leadership: the right to the jobs that only one worker of a group may do.

Leadership is a lease in Redis with a fencing token. Each new leader has a higher token, and its
writes carry the token, so that a leader that was paused cannot write over its successor. The rules:

1. A leader believes in its lease no longer than Redis does: time is counted from before the call.
2. A leader that loses Kafka or Redis steps down at once: it could not do the work.
3. A leader that gives up tells Redis where it can, so that the next leader need not wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from streameval.base.errors import StreamevalError
from streameval.store.lease import Lease

log = logging.getLogger(__name__)

# A dead leader is replaced within LEASE + RENEW; two renewals may fail before a lease is lost.
LEASE_SECONDS: Final = 6.0
RENEW_SECONDS: Final = 2.0

assert 2 * RENEW_SECONDS < LEASE_SECONDS, "one late renewal does not cost the lease"


class Leadership:
    """One worker's part in the lease; `clock` gives seconds that never go back."""

    def __init__(self, lease: Lease, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease
        self._clock = clock
        self._token: int | None = None
        self._until = 0.0
        self._resigned = 0

    @property
    def token(self) -> int | None:
        """The fencing token while this worker leads, else None."""
        return self._token if self._clock() < self._until else None

    async def renew(self, unfit: str | None) -> None:
        """Take or renew the lease; `unfit` says why this worker could not do the leader's work."""
        if unfit is not None:
            await self.step_down(unfit)
            return
        asked, resigned = self._clock(), self._resigned
        try:
            token = await self._lease.acquire()
        except StreamevalError as error:
            self._lose(str(error))
            return
        if token is None:
            self._lose("another worker holds the lease")
            return
        if self._resigned != resigned:  # it stepped down while Redis was asked
            await self._release()
            return
        if token != self._token:
            log.info("this worker leads the group now (fencing token %d)", token)
        self._token, self._until = token, asked + LEASE_SECONDS

    async def step_down(self, why: str) -> None:
        """Give up the lease, if we have it; Redis forgets it by itself if it does not answer."""
        self._resigned += 1
        if self._token is not None:
            self._lose(why)
            await self._release()

    async def _release(self) -> None:
        try:
            await self._lease.release()
        except StreamevalError as error:
            log.info("the lease could not be released and will run out: %s", error)

    def _lose(self, why: str) -> None:
        if self._token is not None:
            log.info("this worker leads no longer: %s", why)
        self._token = None
