"""Messages in Avro: a schema, and the plain data of what it reads."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

from streameval.base.extras import require
from streameval.profiles.binary_values import as_json


class AvroSchema:
    """A schema that reads values. `text` is its JSON, `others` the schemas that it refers to.

    Raises ValueError for one that cannot be used, and InputError where fastavro is missing.
    """

    def __init__(self, text: str, others: Iterable[str] = ()) -> None:
        require("a message in Avro", "fastavro", "avro")
        from fastavro import parse_schema, schemaless_reader
        from fastavro.schema import SchemaParseException

        self._read = schemaless_reader
        named: dict[str, Any] = {}
        try:
            for other in others:
                parse_schema(json.loads(other), named)
            self._schema = parse_schema(json.loads(text), named)
        except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"is no schema of Avro: {error}") from None

    def read(self, body: bytes) -> Any:
        """Return a value as plain data. Raises ValueError, and what fastavro raises."""
        stream = io.BytesIO(body)
        found = self._read(stream, self._schema, None)
        left = len(body) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left after the value: another schema wrote it")
        return as_json(found)

    read_framed = read
    """Read what follows a registry's id."""

    @property
    def fingerprint(self) -> bytes:
        """The eight bytes that name the schema in single objects."""
        from fastavro.schema import fingerprint, to_parsing_canonical_form

        form = to_parsing_canonical_form(self._schema)
        return bytes.fromhex(fingerprint(form, "CRC-64-AVRO"))
