"""Locations of files: a path, or a URI for pyarrow (`s3://bucket/prefix?region=eu-west-1`).

A URI can carry keys and options of its file system. Messages show it `redacted`, without them.
`file:///…` means the path in it. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from urllib.parse import quote, unquote, urlsplit

from streameval.base.errors import InputError, RefusedError, UnreachableError
from streameval.base.in_memory import InMemory
from streameval.base.paths import exists, is_file, is_folder

if TYPE_CHECKING:  # slow to import, and not needed for a path
    from pyarrow import fs

MARKER: Final = "_streameval.json"
"""The file that names a folder's owner: deployments in one folder take each other's files."""
_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
_IMPLIED: Final = _OBJECT_STORES - {"gcs"}
"""The file systems that list a folder where there is a file below it."""
_BELOW: Final = re.compile(r"(\w+://[^/?#]+/[^?#]*[^/?#])/([\w.=-]+)(\?[^#]*)?", re.ASCII)
"""The URI of a file: its folder, its name, options."""

# pyarrow asks S3 for 100 s, and Google's store for 15 minutes, while it hears nothing.
_ATTEMPTS: Final = 3
_RETRY_SECONDS: Final = "retry_limit_seconds=10"


class NoFileError(InputError):
    """There is no file of that name."""


class UnreadableError(InputError):
    """A file is damaged."""


class Location(NamedTuple):
    """A file system, and the path of a file or folder in it."""

    files: fs.FileSystem
    path: str

    @property
    def local(self) -> bool:
        """Whether this is a disk of this machine, as far as it knows."""
        return bool(self.files.type_name == "local")

    @property
    def has_folders(self) -> bool:
        """Whether a folder must be made before files go into it, or else no listing has it."""
        return self.files.type_name not in _IMPLIED


def end_process(code: int | str | None) -> NoReturn:
    """End a process that has written its output, and wait for no thread of pyarrow's.

    Where S3's keys come from a role, Python may wait for one for ever
    (https://github.com/apache/arrow/issues/50188).
    """
    if isinstance(code, int) and "pyarrow._s3fs" in sys.modules:
        os._exit(code)
    sys.exit(code)


def is_uri(name: str) -> bool:
    """Tell a URI from a path, and from a name of data in memory."""
    return "://" in name and not isinstance(name, InMemory)


def redact(name: str) -> str:
    """Return a name for messages: a URI without keys and options."""
    if not is_uri(name):
        return name
    scheme, _, rest = name.partition("://")
    address, _, _ = rest.partition("?")
    host, slash, path = address.partition("/")
    keys, at, host = host.rpartition("@")
    # abfss://container@account: no key stands there.
    kept = f"{keys}{at}" if scheme in {"abfs", "abfss"} and ":" not in keys else ""
    return f"{scheme}://{kept}{host}{slash}{path}"


def join(name: str, tail: str) -> str:
    """Return the name of `tail` below the folder `name`."""
    if not is_uri(name):
        return str(Path(name) / tail)
    folder, question, options = name.partition("?")
    return f"{folder.rstrip('/')}/{quote(tail, safe='/=')}{question}{options}"


def open_location(name: str) -> Location:
    """The location of a path or URI. Raises `InputError`, `UnreachableError`."""
    from pyarrow import fs

    if not is_uri(name):
        return Location(fs.LocalFileSystem(), str(Path(name).absolute()))
    if below := _BELOW.fullmatch(name):
        folder, tail, options = below.groups("")
        location = _of_uri(folder + options)
        return Location(location.files, f"{location.path}/{tail}")
    return _of_uri(name)


# A file system keeps its connections: the files of a folder share them.
@lru_cache(maxsize=64)
def _of_uri(name: str) -> Location:
    from pyarrow import fs

    try:
        scheme = urlsplit(name).scheme
        if scheme == "file":
            name = f"file://{quote(unquote(name.removeprefix('file://').partition('?')[0]))}"
        if scheme in {"gs", "gcs"} and "retry_limit_seconds=" not in name:
            name += f"{'&' if '?' in name else '?'}{_RETRY_SECONDS}"
        files, path = fs.FileSystem.from_uri(name)
        if files.type_name == "s3":  # its URIs have no option for that
            _, (options,) = files.__reduce__()
            attempts = fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS)
            files = fs.S3FileSystem(**options, retry_strategy=attempts)
    except ValueError as error:
        raise InputError(
            f"{redact(name)} is not a URI of a file system: {first_line(error, name)}"
        ) from error
    except OSError as error:
        raise UnreachableError(
            f"{redact(name)} cannot be used now ({first_line(error, name)})"
        ) from error
    return Location(files, path.rstrip("/"))


def list_folder(files: fs.FileSystem, path: str, *, recursive: bool = False) -> list[fs.FileInfo]:
    """List a folder in order of name; an absent folder is empty."""
    from pyarrow import fs

    def below(*, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        return list(files.get_file_info(selector))

    found = below(recursive=recursive)
    folders = [info for info in found if info.type == fs.FileType.Directory]
    if files.type_name == "gcs" and not (recursive or folders):
        # It lists only folders that were made: whoever copies files there may have made none.
        tails = (info.path.removeprefix(f"{path}/") for info in below(recursive=True))
        names = {tail.partition("/")[0] for tail in tails if "/" in tail}
        found += [fs.FileInfo(f"{path}/{name}", type=fs.FileType.Directory) for name in names]
    return sorted(found, key=lambda info: info.path)


def require_bucket(location: Location) -> None:
    """Raise OSError for an absent bucket, which listings take for an empty one."""
    if location.files.type_name not in _OBJECT_STORES:
        return
    from pyarrow import fs

    bucket = location.path.partition("/")[0]
    if location.files.get_file_info(bucket).type == fs.FileType.NotFound:
        raise FileNotFoundError(f"there is no bucket {bucket}, or these keys may not see it")


def read(name: str) -> tuple[Any, int]:
    """A file opened for reading, and its size in bytes. Raises `InputError`, `UnreachableError`."""
    location = open_location(name)
    try:
        file = location.files.open_input_file(location.path)
        return file, file.size()
    except FileNotFoundError as error:
        raise NoFileError(f"{redact(name)}: no such file") from error
    except OSError as error:
        wrong = InputError if location.local else UnreachableError
        raise wrong(f"{redact(name)} cannot be read ({first_line(error, name)})") from error


def on_disk(name: str) -> str:
    """Return the path in `file:///…`, and any other name unchanged. Raises `InputError`."""
    return open_location(name).path if is_uri(name) and name.startswith("file://") else name


def size(name: str) -> int:
    """Return the bytes of a file, or of all files below a folder; 0 for an absent name."""
    from pyarrow import fs

    with reaching(name):
        location = open_location(name)
        found = location.files.get_file_info(location.path)
        if found.type == fs.FileType.Unknown:  # a pipe
            return 0
        below = [found] if found.is_file else list_folder(*location, recursive=True)
        return sum(info.size for info in below if info.is_file)


def is_away(error: BaseException, name: str) -> bool:
    """Tell a file system that cannot be used from a damaged file: pyarrow has OSError for both."""
    if isinstance(error, FileNotFoundError):
        return True
    # On a disk those of damage have no number; from afar few are of damage.
    return isinstance(error, OSError) and (error.errno is not None or is_uri(name))


def unread(name: str, error: Exception) -> UnreachableError | UnreadableError:
    """Return the error for a file that cannot be read: it is damaged, or its store is away."""
    wrong = UnreachableError if is_away(error, name) else UnreadableError
    return wrong(f"{redact(name)}: {first_line(error, name)}")


def first_line(error: BaseException, name: str) -> str:
    """Return the first line of an error, without the keys in its URI."""
    line = next(iter(str(error).splitlines()), "") or repr(error)
    for chatter in (" (Request ID: ", " error_info={", " Azure Error: "):
        line = line.partition(chatter)[0]
    return line.replace(name, redact(name))


def require_name(name: str) -> None:
    """Raise `InputError` for a path that no file can have, or for a pipe.

    Raises `UnreachableError` where it is away.
    """
    if not isinstance(name, InMemory) and not is_uri(name):
        with reaching(name):
            path = Path(name)
            is_pipe = exists(path) and not (is_file(path) or is_folder(path))
        if is_pipe or name == "-":
            raise InputError(
                f"{name}: is a pipe, which can be read only once: write the data to a file before"
            )


def require_owner(subject: str, known: bytes, owner: Mapping[str, str]) -> None:
    """Raise `RefusedError` where a folder's marker, of the bytes `known`, names another owner."""
    try:
        is_ours = json.loads(known) == owner
    except ValueError:  # somebody damaged it
        is_ours = False
    if not is_ours:
        raise RefusedError(
            f"{subject} holds the files of another deployment"
            f" ({known.decode(errors='replace')}): choose another folder"
        )


@contextlib.contextmanager
def reaching(name: str, subject: str = "") -> Iterator[None]:
    """Turn errors of a file system into ours; `subject` begins the line, such as the key.

    Raises `InputError` for a name that no file can have, `UnreachableError` for all else.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(
                f"{subject}{redact(name)} is too long for the name of a file"
            ) from error
        raise UnreachableError(
            f"{subject}{redact(name)} cannot be used now ({first_line(error, name)})"
        ) from error
