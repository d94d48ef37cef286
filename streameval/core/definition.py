"""The meaning of every figure: the part of the configuration that the state depends on.

A `Definition` is immutable. Two runs over the same log with the same definition give the same
figures; state written under one definition is refused under another (`fingerprint`). All durations
are integer milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from streameval.core.experiments.definition import Experiment

ValueRule = Literal["none", "last", "sum", "max"]
"""How the values of several feedbacks of one kind to one impression become one value (R24)."""


@dataclass(frozen=True, slots=True)
class Positive:
    """A kind of feedback that counts as success, from `threshold` on where one is set.

    `value` says whether its values are figures too. `cap` bounds the amount that one user adds
    to the means of values.
    """

    kind: str
    threshold: float | None = None
    value: ValueRule = "none"
    cap: float | None = None

    def counts_anyway(self) -> str:
        """Return the warning about feedback whose value is not above 0, without a threshold."""
        return (
            f"feedback {self.kind!r} with a value of 0 or less counts as positive: write"
            f" `{self.kind}>0` in `positives` if it should not"
        )


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window; `name` is the label people see, `slide` divides `size` (both ms)."""

    name: str
    size: int
    slide: int

    @property
    def panes(self) -> int:
        """The number of panes in the window (W / S)."""
        return self.size // self.slide


MAX_DIMENSIONS: Final = 4
"""The largest number of dimensions; `max_segments` bounds the product of their values."""

_EVENT_FIELDS = """
    type ts user_id item_id request_id position items score propensity feedback value retract
    fallback latency_ms
"""
_OUTCOME_COLUMNS = """
    partition offset request user time positions ranks shown scores propensities gains dt hour
    ms item rank gain kind delay day list
"""
_FIGURE_KEYS = """
    window basis k metric users impressions positives slates maturity
    reason arm experiment le quantile job instance namespace
    name role control arms
"""
RESERVED_NAMES: Final = frozenset((_EVENT_FIELDS + _OUTCOME_COLUMNS + _FIGURE_KEYS).split())
"""Names that no dimension may have: they would stand twice in an event, a row or a series.

The names of figures are taken too (`config.experiments.event_field`)."""

OPTIONAL_FIGURES: Final = ("lists", "nowcast")
"""Figures of windows that may be left out: health and ranks of the lists, and nowcasts."""

DEFAULT_WINDOWS = (
    Window("5m", 300_000, 5_000),
    Window("1h", 3_600_000, 60_000),
    Window("24h", 86_400_000, 900_000),
)


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of every figure (docs/metrics.md); defaults are the documented ones.

    `positives` have distinct kinds, `ks` rise strictly, window names are distinct, and
    `allowed_lateness <= attribution_window`: the configuration model checks all of it. `figures`
    are those of `OPTIONAL_FIGURES` that windows hold. No figure of a window depends on the
    `experiments`, so state of other experiments can be used, and they have all metrics anyway.
    """

    positives: tuple[Positive, ...] = (Positive("click"), Positive("like"))
    gains: Mapping[str, float] = field(default_factory=dict)
    ndcg_gain: Literal["linear", "exponential"] = "linear"
    dimensions: tuple[str, ...] = ("variant",)
    ks: tuple[int, ...] = (5, 10)
    figures: tuple[str, ...] = OPTIONAL_FIGURES
    windows: tuple[Window, ...] = DEFAULT_WINDOWS
    attribution_window: int = 1_800_000
    allowed_lateness: int = 60_000
    max_clock_skew: int = 60_000
    max_segments: int = 200
    experiments: tuple[Experiment, ...] = ()

    @property
    def arm_fields(self) -> tuple[str, ...]:
        """The fields of experiments' arms that are no dimensions, in the order of configuration."""
        fields = (experiment.arm for experiment in self.experiments)
        return tuple(dict.fromkeys(name for name in fields if name not in self.dimensions))

    @property
    def labels(self) -> tuple[str, ...]:
        """The text fields of impressions and slates that are read: dimensions, then arm fields."""
        return self.dimensions + self.arm_fields

    @property
    def kinds(self) -> tuple[str, ...]:
        """The positive kinds, in the order of configuration."""
        return tuple(positive.kind for positive in self.positives)

    @property
    def horizon(self) -> int:
        """H = A + L (ms): a slate older than H can no longer change."""
        return self.attribution_window + self.allowed_lateness

    @property
    def segment_span(self) -> int:
        """The longest time (ms) for which a segment is needed after it was last shown.

        Its last slate is open for H. The pane of that slate is in the longest window for W + S
        after H. H and S once more allow for slates that are finalized a little late.
        """
        return 2 * self.horizon + max(w.size + 2 * w.slide for w in self.windows)

    @property
    def valued_kinds(self) -> tuple[str, ...]:
        """The kinds whose values are figures."""
        return tuple(positive.kind for positive in self.positives if positive.value != "none")

    def gain(self, kind: str) -> float:
        """Return the gain of a positive of `kind`: 1 unless one is configured."""
        return float(self.gains.get(kind, 1.0))

    def described(self) -> dict[str, object]:
        """Return what stored state depends on as plain values: all but the experiments."""
        plain = asdict(self)
        del plain["experiments"]
        if self.figures == OPTIONAL_FIGURES:  # as described before they could be left out
            del plain["figures"]
        plain["gains"] = {kind: self.gain(kind) for kind in sorted(self.kinds)}
        return plain
