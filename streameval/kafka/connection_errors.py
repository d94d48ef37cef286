"""The reason why Kafka cannot be reached: aiokafka logs it, and raises an error without it."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiokafka.errors import (
    AuthenticationFailedError,
    BrokerResponseError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    KafkaConnectionError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from streameval.base.errors import RefusedError, StreamevalError, UnreachableError

_LOGGER = logging.getLogger("aiokafka")
# OpenSSL's codes for a certificate that names another host, or another address.
_OTHER_HOST: Final = frozenset({62, 64})
# The beginnings of its messages about a failed connection; other messages give no reason.
_FAILED: Final = ("Unable connect to", "Unable to request metadata")


class TokenError(OSError):
    """No token could be had; an OSError is to aiokafka a connection that failed."""


REFUSALS: Final = (
    *(SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError),
    *(AuthenticationFailedError, ssl.SSLError, TokenError),
)
"""Errors of a connection that say that nobody lets us in, and not that nobody is there."""


class LastConnectionError(logging.Handler):
    """The last `error` of a connection that aiokafka logged; None until it logs one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the error among the arguments of a record."""
        if not str(record.msg).startswith(_FAILED):
            return
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, BaseException):
                self.error = argument


@contextmanager
def listening() -> Iterator[LastConnectionError]:
    """Listen to the log of aiokafka during the block."""
    handler = LastConnectionError()
    _LOGGER.addHandler(handler)
    try:
        yield handler
    finally:
        _LOGGER.removeHandler(handler)


def refused_member(error: BaseException, group: str) -> RefusedError | None:
    """Make the error of a group that takes no member like us; None for any other `error`."""
    if isinstance(error, InconsistentGroupProtocolError):
        return RefusedError(
            f"the group {group} has members of another application: choose another `group`"
        )
    if isinstance(error, InvalidSessionTimeoutError):
        return RefusedError(
            "Kafka does not take this session_timeout: its brokers have bounds, from"
            " group.min.session.timeout.ms (6 s unless set) to group.max.session.timeout.ms (30 m)"
        )
    return None


def unreached_error(where: str, error: BaseException) -> StreamevalError:
    """Make the error whose line says how to put it right; `where` names the servers."""
    said = str(error) or repr(error)
    if isinstance(error, TokenError):
        return UnreachableError(f"{where} is not asked, for want of a token: {said}")
    if isinstance(error, ssl.SSLCertVerificationError):
        cure = "set or correct kafka_ca_file"
        if error.verify_code in _OTHER_HOST:
            cure = "correct `kafka`, or see kafka_check_hostname"
        return RefusedError(f"{where} cannot be verified ({said}): {cure}")
    if isinstance(error, IncompatibleBrokerVersion):
        return RefusedError(
            f"{where} takes no requests of clients ({said}): is that the port of a controller? Name"
            " the listener of the brokers"
        )
    if isinstance(error, BrokerResponseError):
        return RefusedError(
            f"{where} does not let us in ({said}): correct kafka_username, kafka_password,"
            " the token or kafka_sasl_mechanism"
        )
    if isinstance(error, KafkaConnectionError | ConnectionResetError | ssl.SSLError):
        return UnreachableError(
            f"{where} closes the connection ({said}): is kafka_security_protocol its listener's,"
            " and does it want a kafka_cert_file?"
        )
    return UnreachableError(f"{where} does not answer ({said}): is it running?")
