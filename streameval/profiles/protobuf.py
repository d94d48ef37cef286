"""Messages in Protobuf: a file of their types, and the plain data of a value."""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from streameval.base.extras import require
from streameval.profiles.binary_values import text_of_bytes

_MAIN: Final = "streameval_main.proto"
_GOOGLE: Final = "google/protobuf/"
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_COMPILE_SECONDS: Final = 60


class ProtobufSchema:
    """A file of message types that reads values.

    `text` is a `.proto` file, a set of descriptors as protoc writes it, or one descriptor in base64
    as registries keep it; `others` are the files that it imports, by name. `message` is the type of
    values that do not say theirs: the first one of the file unless named. Raises ValueError for a
    file that cannot be used, and InputError where a package is missing.
    """

    def __init__(
        self, text: str | bytes, others: Mapping[str, str] | None = None, message: str = ""
    ) -> None:
        require("a message in Protobuf", "google.protobuf", "protobuf")
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass
        from google.protobuf.unknown_fields import UnknownFieldSet

        files = _files(text, others or {})
        pool = DescriptorPool()
        self._class_of, self._unknown = GetMessageClass, UnknownFieldSet
        try:
            for each in files:
                pool.Add(each)
            self._file = pool.FindFileByName(files[-1].name)
        except (TypeError, KeyError) as error:
            raise ValueError(f"is no schema of Protobuf: {error}") from None
        self._types = list(self._file.message_types_by_name.values())
        if not self._types:
            raise ValueError("has no message")
        self._named = self._types[0]
        if message:
            try:
                self._named = pool.FindMessageTypeByName(message)
            except KeyError:
                known = ", ".join(each.full_name for each in self._types)
                raise ValueError(f"message: {message} is not in it: {known}") from None

    def read(self, body: bytes) -> Any:
        """Return a value as plain data. Raises ValueError, and what protobuf raises."""
        return _plain(self._message(body, self._named))

    def read_framed(self, body: bytes) -> Any:
        """Read what follows a registry's id: the path of the type in the file, and the value.

        The path is a count and so many indexes, zigzag varints; a single 0 is the first type.
        """
        count, at = _varint(body, 0)
        kind, among = self._types[0], self._types
        for _ in range(count or 1):
            index, at = _varint(body, at) if count else (0, at)
            if not 0 <= index < len(among):
                raise ValueError(f"the schema has no message {index} where the value says")
            kind = among[index]
            among = list(kind.nested_types)
        message = self._message(body[at:], kind)
        if len(self._unknown(message)):  # the id names the schema that wrote it
            raise ValueError(f"it has fields that {kind.full_name} lacks: another schema wrote it")
        return _plain(message)

    def _message(self, body: bytes, kind: Any) -> Any:
        message = self._class_of(kind)()
        message.ParseFromString(body)
        return message


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and where it ends. Raises ValueError."""
    value = shift = 0
    while at < len(body) and shift < 64:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise ValueError("it ends early")


def _files(text: str | bytes, others: Mapping[str, str]) -> list[Any]:
    """Return descriptors of a file and of what it imports, which come first."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        if isinstance(text, bytes):
            return list(FileDescriptorSet.FromString(text).file)
        main, *read = (
            FileDescriptorProto.FromString(base64.b64decode(each, validate=True))
            for each in (text, *others.values())
        )
    except (binascii.Error, ValueError, DecodeError):
        if not isinstance(text, bytes):
            return _compile(text, others)
        problem = "is no set of descriptors (protoc --include_imports -o)"
        raise ValueError(problem) from None
    for one, name in zip(read, others, strict=True):
        one.name = name
    google = {name for each in (main, *read) for name in each.dependency if _is_google(name)}
    return [*_google_files(google), *read, main]


def _is_google(name: str) -> bool:
    return name.startswith(_GOOGLE)


def _google_files(names: set[str]) -> list[Any]:
    """Return the descriptors of files that come with protobuf."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    found: dict[str, Any] = {}

    def add(name: str) -> None:
        module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
        try:
            packed = import_module(module).DESCRIPTOR.serialized_pb
        except ImportError:
            raise ValueError(f"imports {name}, which protobuf does not have") from None
        one = FileDescriptorProto.FromString(packed)
        for other in one.dependency:
            if other not in found:
                add(other)
        found[name] = one

    for name in sorted(names):
        add(name)
    return list(found.values())


def _compile(text: str, others: Mapping[str, str]) -> list[Any]:
    """Compile `.proto` files by protoc."""
    require("a .proto file", "grpc_tools", "protobuf")
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    found = find_spec("grpc_tools")
    assert found is not None, "it is installed"
    assert found.origin is not None, "a package has a file"
    with TemporaryDirectory() as name:
        folder = Path(name)
        for path, each in {**others, _MAIN: text}.items():
            target = (folder / path).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise ValueError(f"imports {path}, which is outside of its folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(each, encoding="utf-8")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}"]
        command += [f"-I{Path(found.origin).parent / '_proto'}", "--include_imports"]
        command += [f"--descriptor_set_out={folder / 'set'}", _MAIN]
        done = subprocess.run(  # noqa: S603  # our own command
            command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "warning" not in line]
            problem = (said or ["protoc failed"])[0].removeprefix(f"{folder}/")
            problem = problem.removeprefix(f"{_MAIN}:")
            raise ValueError(f"is no schema of Protobuf: {problem}")
        return list(FileDescriptorSet.FromString((folder / "set").read_bytes()).file)


def _plain(message: Any) -> dict[str, Any]:
    """Return the fields of a message; numbers without presence that are not set are 0.

    Texts and lists that are not set are absent, as profiles take an empty text.
    """
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            each = field.message_type
            if each is not None and each.GetOptions().map_entry:
                kind = each.fields_by_name["value"]
                found: Any = {str(key): _cell(one, kind) for key, one in value.items()}
            else:
                found = [_cell(one, field) for one in value]
        else:
            found = _cell(value, field)
        if found not in ("", [], {}) or field.has_presence:
            fields[field.name] = found
    return fields


def _cell(value: Any, field: Any) -> Any:
    """Return one value as JSON would have it; a Timestamp is ms since the epoch."""
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return value.seconds * 1000 + value.nanos // 1_000_000
        if not name.startswith("google.protobuf."):
            return _plain(value)
        if name.endswith("Value") and "value" in field.message_type.fields_by_name:
            return value.value  # StringValue and its like
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return text_of_bytes(value) if isinstance(value, bytes) else value
