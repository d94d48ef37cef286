"""The error tree: what can go wrong in the world, and how a command ends because of it.

    StreamevalError          1   anything streameval stops for
    ├── InputError           2   what you gave us cannot be used: a file, an argument, an id
    │   ├── ConfigError      2   a key of the configuration is unknown or impossible
    │   └── RefusedError     2   the servers hold something else than this configuration means:
    │       │                    a replaced topic, an eviction policy
    │       └── UnusableStateError  2   stored windows that `worker --reset-windows` begins anew:
    │                            of another definition or format, damaged, in part missing
    └── UnreachableError     3   a server cannot be reached or does not answer

The number is the exit code. Each message is one line that says what to do. A bug of our own is an
assertion, and a bad event is no error at all: it is a counted `Rejection`.
"""

from __future__ import annotations

from typing import ClassVar


class StreamevalError(Exception):
    """Whatever streameval stops for; its message is one line that says what to do."""

    exit_code: ClassVar[int] = 1


class InputError(StreamevalError):
    """What the user gave (a file, an argument, an id) cannot be used."""

    exit_code: ClassVar[int] = 2


class ConfigError(InputError):
    """A key of the configuration is unknown or its value impossible; the message names the key."""


class RefusedError(InputError):
    """Going on would give wrong figures: the servers do not hold what this configuration means."""


class UnusableStateError(RefusedError):
    """Stored windows cannot be gone on with; to forget them is a cure, to ask again is none."""


class UnreachableError(StreamevalError):
    """A server cannot be reached, or does not answer within its time."""

    exit_code: ClassVar[int] = 3
