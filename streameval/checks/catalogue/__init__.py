"""The checks, one file each, in the order in which they run and people read them.

Each file of this folder has a row `CHECK`. The rows feed the specification's schema, the help of
`streameval check`, the report and the docs. Checks whose failure discredits the other results come
first.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from streameval.checks.result import Check


def _checks() -> tuple[Check, ...]:
    files = (import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__))
    return tuple(sorted((file.CHECK for file in files), key=lambda check: check.place))


CHECKS: Final = _checks()
