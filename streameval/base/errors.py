"""The error tree: faults of the world, and the exit code of each.

    StreamevalError          1   anything streameval stops for
    ├── InputError           2   a file, an argument or an id that you gave cannot be used
    │   ├── ConfigError      2   a key of the configuration is unknown or impossible
    │   └── RefusedError     2   the servers contradict this configuration: a replaced topic,
    │       │                    an eviction policy
    │       └── UnusableStateError  2   stored windows have another definition or format, or
    │                            are damaged; `worker --reset-windows` begins them anew
    └── UnreachableError     3   a server cannot be reached or does not answer

The number is the exit code. Each message is one line that says what to do. A bug of our own is an
assertion. A bad event raises nothing: it is a counted `Rejection`.
"""

from __future__ import annotations

from typing import ClassVar


class StreamevalError(Exception):
    """A reason for streameval to stop; its message is one line that says what to do."""

    exit_code: ClassVar[int] = 1


class InputError(StreamevalError):
    """A file, an argument or an id that the user gave cannot be used."""

    exit_code: ClassVar[int] = 2


class ConfigError(InputError):
    """A key of the configuration is unknown or its value impossible; the message names the key."""


class RefusedError(InputError):
    """The servers contradict this configuration: going on would give wrong figures."""


class UnusableStateError(RefusedError):
    """Stored windows cannot be continued. Forgetting them helps, asking again does not."""


class UnreachableError(StreamevalError):
    """A server cannot be reached, or does not answer within its time."""

    exit_code: ClassVar[int] = 3
