"""A schema registry with Confluent's API: reads values by the schema whose id they carry.

A registry that is away raises `UnreachableError`, and whoever reads waits: nothing is rejected for
it. An id that the registry does not know makes a value malformed; it is asked for again after
`AGAIN_SECONDS`.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPSHandler, OpenerDirector, Request, build_opener

from streameval.base.certificates import NO_CERTIFICATES, read_certificates
from streameval.base.errors import UnreachableError
from streameval.profiles.avro import AvroSchema
from streameval.profiles.envelopes import parse
from streameval.profiles.frames import body_of, framed_id
from streameval.profiles.protobuf import ProtobufSchema

AGAIN_SECONDS: Final = 60.0
"""Time until an unknown id is asked for again."""
_CUT: Final = (ConnectionResetError, BrokenPipeError)
_TIMEOUT: Final = 5.0
_MOST_BYTES: Final = 4 << 20
_MOST_REFERENCES: Final = 100
_ACCEPT: Final = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
# What the registry says for a schema, a subject or a version that it does not have.
_UNKNOWN: Final = frozenset({40401, 40402, 40403})


class Schema(Protocol):
    """A schema that reads the body of a framed value."""

    def read_framed(self, body: bytes) -> Any:
        """Return a value as plain data; raise anything for one that is wrong."""


class _Json:
    """JSON Schema: the body is JSON, and is checked as any event is."""

    def read_framed(self, body: bytes) -> Any:
        """Return the value as any JSON is read."""
        return parse("json", body)


class _Wrong:
    """A schema that cannot be used: each of its values is told why."""

    def __init__(self, said: str) -> None:
        self._said = said

    def read_framed(self, body: bytes) -> Any:
        """Raise ValueError."""
        del body
        raise ValueError(self._said)


class Registry:
    """The schemas of a registry at `url`, asked for once each; with commas, the first that answers.

    `login` returns the value of the header Authorization, "" for none; it is called for each
    request, so that secrets may change. `ca_file` has the certificates (PEM) that sign the
    registry's, `cert_file` and `key_file` ours.
    """

    def __init__(
        self,
        url: str,
        login: Callable[[], str] = lambda: "",
        *,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
    ) -> None:
        self._urls = tuple(each.rstrip("/") for each in url.split(","))
        self._login, self._ca_file = login, ca_file
        self._cert_file, self._key_file = cert_file, key_file
        self._opener: OpenerDirector | None = None
        self._schemas: dict[str, Schema] = {}
        self._unknown: dict[str, float] = {}  # those that it lacks, and until when

    def missing(self, values: Iterable[bytes | None]) -> list[str]:
        """Return the ids in frames of values whose schemas have not been asked for."""
        ids = {number for value in values if value and (number := framed_id(value)) is not None}
        return sorted(ids - self._schemas.keys()) if ids else []

    def expire(self) -> None:
        """Forget the ids that were unknown a while ago."""
        now = time.monotonic()
        for number in [number for number, until in list(self._unknown.items()) if until < now]:
            del self._unknown[number], self._schemas[number]

    def ask(self, ids: Sequence[str]) -> None:
        """Ask for schemas, and wait for the answers. Raises `UnreachableError`, and `InputError`.

        A schema that is known stays, for others may be reading by it.
        """
        self._opener = None  # the certificates may have changed
        unknown = [number for number in ids if not self._ask(number)]
        # As one, or the first of many would be asked for again before the last has been.
        self._unknown |= dict.fromkeys(unknown, time.monotonic() + AGAIN_SECONDS)

    def read(self, value: bytes) -> Any:
        """Return a framed value as plain data. Raises ValueError, and what its library raises."""
        number = framed_id(value)
        schema = None if number is None else self._schemas.get(number)
        if schema is None:
            raise ValueError("no frame of a registry")
        return schema.read_framed(body_of(value))

    def _ask(self, number: str) -> bool:
        """Ask for one schema; return whether the registry has it."""
        found = self._get(
            f"schemas/{'guids' if '-' in number else 'ids'}/{number}?format=serialized"
        )
        if found is None:
            said = f"the schema registry has no schema with the id {number}"
            self._schemas[number] = _Wrong(said)
            return False
        try:
            self._schemas[number] = self._made(found)
        except ValueError as error:
            self._schemas[number] = _Wrong(f"the schema {number} of the registry {error}")
        return True

    def _made(self, found: dict[str, Any]) -> Schema:
        kind = found.get("schemaType") or "AVRO"
        text = found.get("schema")
        if not isinstance(text, str):
            raise ValueError("has no text")  # noqa: TRY004  # as others, told of the schema
        if kind == "JSON":
            return _Json()
        others = self._references(found, {})
        if kind == "AVRO":
            return AvroSchema(text, others.values())
        if kind == "PROTOBUF":
            return ProtobufSchema(text, others)
        raise ValueError(f"is of type {kind}: Avro, Protobuf and JSON are read")

    def _references(self, found: dict[str, Any], known: dict[str, str]) -> dict[str, str]:
        """Return the texts that a schema refers to by their names, those first that others need."""
        for each in found.get("references") or ():
            name = str(each.get("name"))
            if name in known:
                continue
            if len(known) >= _MOST_REFERENCES:
                raise ValueError(f"refers to more than {_MOST_REFERENCES} others")
            subject = quote(str(each.get("subject")), safe="")
            version = f"subjects/{subject}/versions/{each.get('version')}"
            other = self._get(f"{version}?format=serialized")
            if other is None:
                raise ValueError(f"refers to {name}, which the registry does not have")
            known[name] = ""  # a circle ends here
            self._references(other, known)
            del known[name]
            known[name] = str(other.get("schema"))
        return known

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the answer to a request; None for what the registry does not have."""
        urls, failed = self._urls, None
        for at, url in enumerate(urls):
            try:
                found = self._get_from(url, path)
            except UnreachableError as error:
                failed = error
            else:
                self._urls = urls[at:] + urls[:at]  # the next request begins here
                return found
        assert failed is not None, "there is a URL"
        raise failed

    def _get_from(self, url: str, path: str) -> dict[str, Any] | None:
        where = f"the schema registry {url}"
        request = Request(f"{url}/{path}", headers=_ACCEPT)  # noqa: S310  # http or https
        if login := self._login():
            request.add_unredirected_header("Authorization", login)  # for no other server
        opener = self._opener = self._opener or self._with_certificates()
        try:
            with opener.open(request, timeout=_TIMEOUT) as answer:
                body = _whole(answer, time.monotonic() + _TIMEOUT)
        except HTTPError as error:
            with error:
                said = error.read(1_000)
            if error.code == 404 and _code(said) in _UNKNOWN:
                return None
            raise UnreachableError(f"{where} {_refusal(error.code)}") from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError):
                cure = "set or correct registry_ca_file"
                raise UnreachableError(f"{where} cannot be verified ({reason}): {cure}") from None
            # (A reset may overtake what a server says of a certificate that it lacks.)
            cut = url.startswith("https:") and isinstance(reason, _CUT)
            if isinstance(reason, ssl.SSLError) or cut:
                cure = "does it speak TLS, and want a registry_cert_file?"
                raise UnreachableError(f"{where} does not let us in ({reason}): {cure}") from None
            raise UnreachableError(f"{where} does not answer ({reason}): is it running?") from None
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UnreachableError(f"{where} answers with something else than JSON: is it its API?")
        return found

    def _with_certificates(self) -> OpenerDirector:
        """Read the certificates, which takes longer than a request."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it verifies
            read_certificates(context, self._ca_file, self._cert_file, self._key_file)
        except OSError as error:  # of which `ssl.SSLError` is one
            keys = "registry_ca_file, registry_cert_file, registry_key_file"
            raise UnreachableError(f"{keys}: {NO_CERTIFICATES}: {error}") from None
        return build_opener(HTTPSHandler(context=context))


def basic(user: str, password: str) -> str:
    """Return the header of a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _whole(answer: Any, end: float) -> bytes:
    """Read an answer, but no longer than until `end`: a server may send it byte by byte."""
    body = b""
    while piece := answer.read1(1 << 16):
        body += piece
        if len(body) > _MOST_BYTES or time.monotonic() > end:
            raise TimeoutError("its answer is too long, or too slow")
    return body


def _code(body: bytes) -> Any:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found.get("error_code") if isinstance(found, dict) else None


def _refusal(code: int) -> str:
    if code in {401, 403}:
        return f"does not let us in ({code}): correct registry_username, or its password or token"
    if code == 404:
        return "answers 404 Not Found: correct the path of `registry`"
    return f"answers {code}: look at its log"
