"""Messages in Avro, by schemas from files: single objects, a registry's frame, or the value alone.

A registry's frame (a zero byte and the four bytes of an id) names the schema that wrote a value,
and only its file can read it: another one may read something else without an error.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from streameval.base.errors import ConfigError
from streameval.base.extras import require

_FRAME: Final = 5
_SINGLE_OBJECT: Final = b"\xc3\x01"
_FINGERPRINT: Final = slice(2, 10)


class AvroReader:
    """Reads values by schemas: those of a registry by their id, or one for values without a frame.

    `named` has the path of each `.avsc` file by id, or by "" for the one; `folder` is where
    relative paths begin. Raises ConfigError.
    """

    def __init__(self, named: Mapping[str, str], folder: Path) -> None:
        require("a profile of format avro", "fastavro", "avro")
        from fastavro import schemaless_reader

        self._read = schemaless_reader
        self._schemas = {key: _schema(folder / path) for key, path in named.items()}
        self._fingerprints = {_fingerprint(schema): schema for schema in self._schemas.values()}

    def read(self, value: bytes) -> Any:
        """Return a value as plain data. Raises ValueError, and what fastavro raises."""
        schema, body = self._of(value)
        stream = io.BytesIO(body)
        found = self._read(stream, schema, None)
        left = len(body) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left after the value: another schema wrote it")
        return _plain(found)

    def _of(self, value: bytes) -> tuple[Any, bytes]:
        """Return the schema of a value, and the value without its frame."""
        if value.startswith(_SINGLE_OBJECT):
            schema = self._fingerprints.get(value[_FINGERPRINT])
            if schema is None:
                raise ValueError("no schema in `schemas` has its fingerprint")
            return schema, value[_FINGERPRINT.stop :]
        if "" in self._schemas:
            return self._schemas[""], value
        if len(value) < _FRAME or value[0]:
            raise ValueError("no frame of a registry: write schemas: FILE for values without one")
        number = str(int.from_bytes(value[1:_FRAME], "big"))
        if number not in self._schemas:
            known = ", ".join(sorted(self._schemas))
            raise ValueError(f"schema id {number}, and `schemas` has {known}: add its file")
        return self._schemas[number], value[_FRAME:]


def _schema(path: Path) -> Any:
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException

    try:
        return parse_schema(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"schemas: {path}: cannot be read: {error.strerror}") from None
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"schemas: {path}: is no schema of Avro: {error}") from None


def _fingerprint(schema: Any) -> bytes:
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def _plain(value: Any) -> Any:
    """Return what fastavro reads as JSON would have it; times are ms since the epoch."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        whole = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int(whole.timestamp() * 1000)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, UUID | date | time):
        return str(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
