"""Inputs that a metric's row declares beside its data: tables of files, and parameters.

`evaluate` makes an option of each, checks its value, and takes the words of messages and help from
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from streameval.base.errors import InputError

LISTS: Final = "Ranked lists"
RATED: Final = "Ratings and predictions"
KNOWN: Final = "Facts about items and users"
OTHER: Final = "Other inputs"
HEADINGS: Final = (LISTS, RATED, KNOWN, OTHER)
"""Headings of the options in help, in order."""


@dataclass(frozen=True, slots=True)
class _Option:
    """An input by its name. `meaning` is a noun phrase for help and messages."""

    name: str
    meaning: str

    @property
    def detail(self) -> str:
        """The columns or the bounds, for people."""
        return ""

    @property
    def option(self) -> str:
        """The option as people write it."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def described(self) -> str:
        """The option with its meaning, for messages."""
        return f"{self.option}, {self.meaning}" + (f" ({self.detail})" if self.detail else "")

    @property
    def help(self) -> str:
        """The sentence for the option's help."""
        text = self.meaning + (f": {self.detail}" if self.detail else "")
        return f"{text[:1].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class Table(_Option):
    """Files of one role. `columns` lists their columns. A `single` table is one file."""

    heading: str
    columns: str = ""
    single: bool = False

    @property
    def detail(self) -> str:
        """The columns."""
        return self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(_Option):
    """A value that a metric takes beside its cutoff; without a `default` the metric needs it.

    `metavar` stands for the value in help. A `note` is a sentence with the value, for people who
    read the figures.
    """

    default: Any = None
    metavar: str | None = None
    note: str = ""

    def read(self, value: Any) -> Any:
        """Return the value as the metric takes it. Raises `InputError`."""
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Parameter):
    """A finite number, larger than `above`, not smaller than `least`, and smaller than `below`."""

    above: float = -math.inf
    least: float = -math.inf
    below: float = math.inf

    @property
    def detail(self) -> str:
        """The bounds, if there are any."""
        if self.below < math.inf:
            return f"above {self.above:g} and below {self.below:g}"
        if self.above > -math.inf:
            return f"above {self.above:g}"
        return f"not below {self.least:g}" if self.least > -math.inf else ""

    def read(self, value: Any) -> float:
        """Return the number. Raises `InputError`."""
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.option} {value}: give a number") from error
        if not math.isfinite(number):
            raise InputError(f"{self.option} {value}: give a finite number")
        if not (self.above < number < self.below and number >= self.least):
            raise InputError(f"{self.option} {value}: give a number {self.detail}")
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Parameter):
    """Two finite numbers, the lower one first: `1:5`, or a pair."""

    metavar: str | None = "LOW:HIGH"

    def read(self, value: str | Sequence[float]) -> tuple[float, float]:
        """Return the two numbers. Raises `InputError`."""
        written = value if isinstance(value, str) else ":".join(map(str, value))
        low, _, high = written.partition(":")
        try:
            found = float(low), float(high)
        except ValueError as error:
            raise InputError(f"{self.option} {written}: give {self.meaning}") from error
        if not all(map(math.isfinite, found)):
            raise InputError(f"{self.option} {written}: give finite numbers, such as 1:5")
        if not found[0] < found[1]:
            raise InputError(f"{self.option} {written}: give the lower number first, such as 1:5")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Parameter):
    """One of `words`, or None; without them, of the words of `metavar`, `this|that`."""

    metavar: str
    words: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        """The words, if the metavar does not name them."""
        return ", ".join(self.words)

    def read(self, value: Any) -> Any:
        """Return the word. Raises `InputError`."""
        words = self.words or tuple(self.metavar.split("|"))
        if value is not None and value not in words:
            raise InputError(f"{self.option} {value}: give {' or '.join(words)}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Parameter):
    """Yes or no; `--no-name` says no."""


Input: TypeAlias = Table | Parameter


FEATURES: Final = Table(
    "features", "features of items", KNOWN, "item, feature or category[, value]"
)
TRAIN: Final = Table("train", "who has which item", KNOWN, "user, item")
ITEMS: Final = Table("items", "all items of the catalogue", KNOWN, "item")
