"""Values by schemas of files: in a registry's frame, single objects of Avro, or the value alone.

A registry's frame names the schema that wrote a value, and only its file can read it: another one
may read something else without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from streameval.base.errors import ConfigError
from streameval.profiles.avro import AvroSchema
from streameval.profiles.frames import body_of, framed_id, is_glue
from streameval.profiles.protobuf import ProtobufSchema

_SINGLE_OBJECT: Final = b"\xc3\x01"
_FINGERPRINT: Final = slice(2, 10)


class SchemaFiles:
    """Reads values by the schemas of a profile.

    `named` has the path of each file by id, or by "" for the one of values without a frame;
    `folder` is where relative paths begin, `message` the type of Protobuf. Raises ConfigError.
    """

    def __init__(self, form: str, named: Mapping[str, str], folder: Path, message: str) -> None:
        self._schemas = {key: _schema(form, folder / path, message) for key, path in named.items()}
        self._fingerprints = {
            schema.fingerprint: schema
            for schema in self._schemas.values()
            if isinstance(schema, AvroSchema)
        }

    def read(self, value: bytes) -> Any:
        """Return a value as plain data. Raises ValueError, and what the libraries raise."""
        if self._fingerprints and value.startswith(_SINGLE_OBJECT):
            schema = self._fingerprints.get(value[_FINGERPRINT])
            if schema is None:
                raise ValueError("no schema in `schemas` has its fingerprint")
            return schema.read(value[_FINGERPRINT.stop :])
        if "" in self._schemas:
            return self._schemas[""].read(value)
        number = framed_id(value)
        if number is None:
            raise ValueError("no frame of a registry: write schemas: FILE for values without one")
        if number not in self._schemas:
            known = ", ".join(sorted(self._schemas))
            raise ValueError(f"schema id {number}, and `schemas` has {known}: add its file")
        named = self._schemas[number]
        if is_glue(value) and isinstance(named, ProtobufSchema):
            raise ValueError("Protobuf in AWS Glue's frame is not read: send Avro or JSON")
        return named.read_framed(body_of(value))


def _schema(form: str, path: Path, message: str) -> AvroSchema | ProtobufSchema:
    try:
        if form == "avro":
            return AvroSchema(path.read_text(encoding="utf-8"))
        is_text = path.suffix == ".proto"
        text = path.read_text(encoding="utf-8") if is_text else path.read_bytes()
        others = {} if not is_text else _beside(path)
        return ProtobufSchema(text, others, message)
    except OSError as error:
        raise ConfigError(f"schemas: {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"schemas: {path}: {error}") from None


def _beside(path: Path) -> dict[str, str]:
    """Return the other `.proto` files of a folder, by the names that imports have for them."""
    return {
        str(each.relative_to(path.parent)): each.read_text(encoding="utf-8")
        for each in path.parent.rglob("*.proto")
        if each != path
    }
