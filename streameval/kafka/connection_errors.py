"""The reason why Kafka cannot be reached, in a line that says what to do.

aiokafka logs the reason, and raises an error without it.
"""

from __future__ import annotations

import logging
import ssl
from asyncio import CancelledError
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

# OpenSSL's codes for a certificate that names another host, or another address.
_OTHER_HOST: Final = frozenset({62, 64})
_LOGGER = logging.getLogger("aiokafka")
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

    def told(self, servers: str) -> StreamevalError | None:
        """Make the error whose line says what was heard of the configured `servers`; or None."""
        if self.error is None:
            return None
        # (Another aiokafka notes no address.)
        notes: list[str] = getattr(self.error, "__notes__", [])
        return unreached_error(servers, self.error, *notes[:1])


@contextmanager
def listening() -> Iterator[LastConnectionError]:
    """Listen to the log of aiokafka during the block."""
    handler = LastConnectionError()
    _LOGGER.addHandler(handler)
    try:
        yield handler
    finally:
        _LOGGER.removeHandler(handler)


def note_place(error: BaseException, host: str, port: int) -> None:
    """Note at which address a connection failed.

    aiokafka logs none that was given up before it failed, so those are handed over here.
    """
    error.add_note(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    if isinstance(error, CancelledError):
        for handler in _LOGGER.handlers:
            if isinstance(handler, LastConnectionError):
                handler.error = error


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


def unreached_error(servers: str, error: BaseException, place: str = "") -> StreamevalError:
    """Make the error whose line says how to put it right.

    A connection failed to one of the configured `servers`, or to `place`, a broker's address as
    they name it, which only Kafka's own network may know.
    """
    where, cure = f"Kafka at {servers}", "is it running?"
    if place not in {"", *map(str.strip, servers.split(","))}:
        where = f"the broker at {place}, as {where} names it,"
        cure = f"{cure} Has it that address for this machine, too? (advertised.listeners of Kafka)"
    said = str(error) or type(error).__name__
    if isinstance(error, CancelledError | TimeoutError):
        said = "it is silent, or no Kafka"
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
        cure = "correct kafka_username, kafka_password, the token or kafka_sasl_mechanism"
        if isinstance(error, IllegalSaslStateError):
            cure = "it asks nobody for a password: correct kafka_security_protocol"
        return RefusedError(f"{where} does not let us in ({said}): {cure}")
    if isinstance(error, KafkaConnectionError | ConnectionResetError | ssl.SSLError):
        return UnreachableError(
            f"{where} closes the connection ({said}): is kafka_security_protocol its listener's,"
            " and does it want a kafka_cert_file?"
        )
    return UnreachableError(f"{where} does not answer ({said}): {cure}")
