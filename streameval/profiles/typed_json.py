"""JSON in which values name their types, as databases and tools write it, without these names.

Sources: "JSON Encoding" of Avro's specification, as kafka-avro-console-consumer and kcat print;
Extended JSON of MongoDB; attribute values of DynamoDB; `AnyValue` of OpenTelemetry's protocol;
columns of wal2json's format 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_AVRO: Final = "string bytes int long float double boolean array map"
_MONGODB: Final = "$oid $uuid $date $symbol $numberInt $numberLong $numberDouble $numberDecimal"
_DYNAMODB: Final[Mapping[type, str]] = {str: "S N B", bool: "BOOL NULL", list: "L SS NS", dict: "M"}
_OTLP: Final = "stringValue intValue doubleValue boolValue bytesValue"
# OpenTelemetry's names of what has `values`.
_HOLDERS: Final = frozenset({"arrayValue", "kvlistValue"})
# What stands within each name: single letters are names of fields, too.
_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(f"{_AVRO} {_MONGODB} {_OTLP}".split(), object),
    **{name: of for of, names in _DYNAMODB.items() for name in names.split()},
}


def without_types(value: Any) -> Any:
    """Return a value without the names of types around it: "x" of {"string": "x"}.

    OpenTelemetry's lists of attributes become objects, and lists of columns.
    """
    if isinstance(value, dict):
        held = _within_type(value) if len(value) == 1 else value
        if held is not value:
            return without_types(held)
        return {name: without_types(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if value and all(map(_is_attribute, value)):
            return {each["key"]: without_types(each["value"]) for each in value}
        if value and all(map(_is_column, value)):
            return {each["name"]: each["value"] for each in value}
        return [without_types(each) for each in value]
    return value


def _within_type(value: dict[str, Any]) -> Any:
    """Return what stands within the name of a type, or the value where its only name is none."""
    ((name, inner),) = value.items()
    if "." in name and isinstance(inner, dict):  # a record of Avro, with its full name
        return inner
    if name in _HOLDERS and isinstance(inner, dict):
        return inner.get("values", [])
    if name not in _TYPES or not isinstance(inner, _TYPES[name]):
        return value
    return None if name == "NULL" else inner


def _is_attribute(value: Any) -> bool:
    """Tell whether a value is an attribute of OpenTelemetry: a key, and a value with its type."""
    held = value.get("value") if isinstance(value, dict) and "key" in value else None
    return isinstance(held, dict) and len(held) == 1 and next(iter(held)).endswith("Value")


def _is_column(value: Any) -> bool:
    """Tell whether a value is a column of a row, with its name and type."""
    return isinstance(value, dict) and value.keys() == {"name", "type", "value"}
