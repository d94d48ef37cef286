"""Why Kafka cannot be reached: aiokafka logs the reason, and raises an error without it."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiokafka.errors import BrokerResponseError, KafkaConnectionError

from streameval.base.errors import RefusedError, StreamevalError, UnreachableError

_LOGGER = logging.getLogger("aiokafka")
# What it says of a connection that failed; its other errors are no reasons.
_FAILED: Final = ("Unable connect to", "Unable to request metadata")


class Reason(logging.Handler):
    """The last error of a connection that aiokafka logged; `error` is None where it logged none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the error that a record tells of."""
        if not str(record.msg).startswith(_FAILED):
            return
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, BaseException):
                self.error = argument


@contextmanager
def listening() -> Iterator[Reason]:
    """What aiokafka logs meanwhile."""
    reason = Reason()
    _LOGGER.addHandler(reason)
    try:
        yield reason
    finally:
        _LOGGER.removeHandler(reason)


def unreached(where: str, reason: BaseException) -> StreamevalError:
    """The line for whoever has to put it right; `where` names the servers."""
    said = str(reason) or repr(reason)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return RefusedError(f"{where} cannot be verified ({said}): set or correct kafka_ca_file")
    if isinstance(reason, BrokerResponseError):
        return RefusedError(
            f"{where} does not let us in ({said}): correct kafka_username, kafka_password or"
            " kafka_sasl_mechanism"
        )
    if isinstance(reason, KafkaConnectionError | ConnectionResetError | ssl.SSLError):
        return UnreachableError(
            f"{where} closes the connection ({said}): is kafka_security_protocol its listener's?"
        )
    return UnreachableError(f"{where} does not answer ({said}): is it running?")
