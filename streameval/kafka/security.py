"""How clients of Kafka are let in: certificates, passwords and tokens, read anew by connections.

A file that changes while a worker runs holds from the next connection on. Brokers end connections
whose login has lapsed (`connections.max.reauth.ms`), and the next one logs in anew.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from aiokafka.abc import AbstractTokenProvider

from streameval.base.certificates import NO_CERTIFICATES, read_certificates
from streameval.base.errors import ConfigError
from streameval.base.extras import require
from streameval.kafka.connection_errors import TokenError

if TYPE_CHECKING:
    from streameval.config.settings import Settings

# Connections within so many seconds share the token of a command.
_TOKEN_SECONDS: Final = 10.0
_COMMAND_SECONDS: Final = 15.0
# Balancers before servers forget a connection that rests for longer, and tell nobody: Azure's after
# 4 minutes, AWS's after 6. What is sent on it waits 40 s for an answer.
_IDLE_MS: Final = 180_000


def client_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments that every client of aiokafka takes: servers and security.

    Raises ConfigError for files that hold no certificates, `InputError` without Kerberos' package.
    """
    # It reads secrets anew for each connection, and notes addresses. Another aiokafka does neither.
    with suppress(ImportError):
        import streameval.kafka.aiokafka_internals  # noqa: F401
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.kafka,
        "security_protocol": settings.kafka_security_protocol,
        "connections_max_idle_ms": _IDLE_MS,
    }
    if settings.kafka_security_protocol.endswith("SSL"):
        files = settings.kafka_ca_file, settings.kafka_cert_file, settings.kafka_key_file
        try:
            arguments["ssl_context"] = _Certificates.of(
                *files, check_hostname=settings.kafka_check_hostname
            )
        except OSError as error:  # of which `ssl.SSLError` is one
            raise ConfigError(
                f"kafka_ca_file, kafka_cert_file, kafka_key_file: {NO_CERTIFICATES}: {error}"
            ) from None
    if settings.kafka_security_protocol.startswith("SASL"):
        arguments["sasl_mechanism"] = settings.kafka_sasl_mechanism
        if settings.kafka_sasl_mechanism == "OAUTHBEARER":
            arguments["sasl_oauth_token_provider"] = _Tokens(
                settings.kafka_token_file, settings.kafka_token_command
            )
        elif settings.kafka_sasl_mechanism == "GSSAPI":
            require("kafka_sasl_mechanism: GSSAPI", "gssapi")
            arguments["sasl_kerberos_service_name"] = settings.kafka_kerberos_service
        else:
            arguments["sasl_plain_username"] = settings.kafka_username
            arguments["sasl_plain_password"] = _Password.of(
                lambda: settings.secret("kafka_password")
            )
    return arguments


class _Password(str):
    """A password that `anew` reads again."""

    __slots__ = ("_read",)
    _read: Callable[[], str]

    @classmethod
    def of(cls, read: Callable[[], str]) -> Self:
        """Return the password as it is now."""
        made = cls(read())
        made._read = read  # its own
        return made

    def anew(self) -> Self:
        """Return it as it is now."""
        return self.of(self._read)


class _Certificates(ssl.SSLContext):
    """Certificates of files that `anew` reads again: who is trusted, and who we are."""

    _files: tuple[Path | None, Path | None, Path | None]

    @classmethod
    def of(
        cls,
        ca_file: Path | None,
        cert_file: Path | None,
        key_file: Path | None,
        *,
        check_hostname: bool,
    ) -> Self:
        """Read the certificates. Raises OSError, of which `ssl.SSLError` is one."""
        made = cls(ssl.PROTOCOL_TLS_CLIENT)  # they are verified
        made.check_hostname = check_hostname
        made._files = ca_file, cert_file, key_file  # its own
        read_certificates(made, ca_file, cert_file, key_file)
        return made

    def anew(self) -> Self:
        """Read them again."""
        return self.of(*self._files, check_hostname=self.check_hostname)


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Bearer tokens from a file, or from a command that prints one."""

    def __init__(self, file: Path | None, command: Sequence[str]) -> None:
        self._file, self._command = file, command
        self._asking = asyncio.Lock()
        self._known = "", float("-inf")

    async def token(self) -> str:
        """Return the token as it is now. Raises TokenError."""
        if self._file is not None:
            try:
                return self._file.read_text(encoding="utf-8-sig").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise TokenError(f"kafka_token_file: {error}") from None
        async with self._asking:
            if time.monotonic() - self._known[1] > _TOKEN_SECONDS:
                self._known = await self._ask(), time.monotonic()
            return self._known[0]

    async def _ask(self) -> str:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise TokenError(f"kafka_token_command: {error}") from None
        try:
            async with asyncio.timeout(_COMMAND_SECONDS):
                said, problem = await process.communicate()
        except TimeoutError:
            process.kill()
            late = f"kafka_token_command takes more than {_COMMAND_SECONDS:.0f} s"
            raise TokenError(late) from None
        token = _token(said.decode().strip())
        if process.returncode or not token:
            last = (problem.decode(errors="replace").strip() or "no token").splitlines()[-1]
            raise TokenError(f"kafka_token_command ended with {process.returncode}: {last}")
        return token


def _token(said: str) -> str:
    """Return the token that a command printed, alone or as `access_token` or `token` in JSON."""
    with suppress(ValueError):
        found = json.loads(said)
        if isinstance(found, dict):
            return str(found.get("access_token") or found.get("token") or "")
    return said
