"""Settings of experiments: arms of an event field that are compared over some time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from keyword import iskeyword
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from streameval.base.errors import ConfigError
from streameval.base.limits import ALL, MAX_LABEL_LENGTH, MAX_TS, MIN_TS
from streameval.config.figure_settings import Amount, Integer, Label
from streameval.core.definition import RESERVED_NAMES, Definition
from streameval.core.experiments.definition import MAX_ARMS, CrossedUsers, Experiment, Guardrail

# Nobody has more users; the bounds are as good at any such number.
_MOST_USERS: Final = 10**12


def names_of_figures() -> frozenset[str]:
    """Return the names of means and of other figures in rows, which no field may have."""
    # numpy comes with the catalogue: a configuration without fields of its own goes without.
    from streameval.core.metrics import MEAN_SECTIONS, MEANS

    counts = (count.name for section in MEAN_SECTIONS for count in section.counts)
    return frozenset([*MEANS, *counts, "observed_ratio"])


def event_field(value: str) -> str:
    """Return the name of a text field of events; raises ValueError for one that cannot be."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value, re.ASCII) is None or iskeyword(value):
        raise ValueError(f"{value!r} cannot name a field: write letters, digits, _, a letter first")
    if value.lower() in RESERVED_NAMES | names_of_figures() or len(value) > MAX_LABEL_LENGTH:
        raise ValueError(f"{value!r} has a meaning of its own: choose another field of the event")
    return value


def _moment(value: object) -> object:
    """Read a time as YAML or JSON gives it, as ms since the epoch."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"write a time with its zone, like 2026-01-31T00:00:00Z, not {value}")
    ms = round(moment.timestamp() * 1_000)
    if not MIN_TS <= ms < MAX_TS:
        raise ValueError(f"write a time from 2000 to 2099, not {value}")
    return ms


def _named_only(given: object) -> object:
    """Read a metric that is only named."""
    return {"metric": given} if isinstance(given, str) else given


class NamedMetricSettings(BaseModel):
    """A metric that an experiment names, and the loss that is accepted in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: str
    margin: Annotated[Amount, Field(ge=0)] = 0.0

    _short = model_validator(mode="before")(_named_only)


Moment = Annotated[int | None, BeforeValidator(_moment)]
Weight = Annotated[Amount, Field(gt=0)]


class ExperimentSettings(BaseModel):
    """One experiment; docs/experiments.md says what each key means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Label
    arm: Annotated[str, AfterValidator(event_field)]
    control: Label
    arms: Annotated[tuple[Label, ...], Field(max_length=MAX_ARMS - 1)] = ()
    primary: NamedMetricSettings
    primary_share: Annotated[Amount, Field(gt=0, lt=1)] = 0.5
    guardrails: tuple[NamedMetricSettings, ...] = ()
    crossed_users: CrossedUsers = "keep"
    split: Annotated[dict[Label, Weight], Field(min_length=2, max_length=MAX_ARMS)] | None = None
    since: Moment = None
    until: Moment = None
    planned_users: Annotated[Integer, Field(ge=1, le=_MOST_USERS)] = 10_000
    alpha: Annotated[Amount, Field(gt=0, lt=1)] = 0.05

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.split is not None and self.control not in self.split:
            raise ValueError(
                f"control: {self.control!r} is not in split, which has {', '.join(self.split)}"
            )
        if self.arms and self.split is not None:
            raise ValueError("arms: split names the arms already; leave one of them out")
        if len({self.control, *self.arms}) <= len(self.arms):
            raise ValueError("arms: name each arm once, and the control only under control")
        if ALL in {self.control, *self.arms, *(self.split or ())}:
            raise ValueError(f"arms, split, control: no event may have the arm {ALL}; name others")
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise ValueError("until: write a time after since")
        metrics = [named.metric for named in (self.primary, *self.guardrails)]
        for metric in metrics:
            if metrics.count(metric) > 1:
                raise ValueError(f"guardrails: {metric} is named twice; name each metric once")
        return self

    def definition(self) -> Experiment:
        """Return the part of the definition."""
        return Experiment(
            name=self.name,
            arm=self.arm,
            control=self.control,
            arms=self.arms,
            crossed_users=self.crossed_users,
            primary=self.primary.metric,
            guardrails=tuple(Guardrail(one.metric, one.margin) for one in self.guardrails),
            split=None if self.split is None else dict(self.split),
            since=self.since,
            until=self.until,
            planned_users=self.planned_users,
            alpha=self.alpha,
            primary_share=self.primary_share,
            primary_margin=self.primary.margin,
        )


def check_experiments(definition: Definition) -> None:
    """Raise ValueError where experiments do not fit each other, or the figures."""
    from streameval.core.experiments.metrics import refusal  # numpy, for those who need it

    names = [experiment.name for experiment in definition.experiments]
    labels = [name.lower() for name in definition.labels]
    for experiment in definition.experiments:
        if names.count(experiment.name) > 1:
            raise ValueError(f"experiments: {experiment.name!r} stands there twice; rename one")
        if labels.count(experiment.arm.lower()) > 1:
            raise ValueError(
                f"experiments: {experiment.name}: arm: another field is {experiment.arm!r} but for"
                " capitals; write both alike"
            )
        for metric in experiment.margins:
            refused = refusal(metric, definition)
            if refused is not None:
                raise ValueError(f"experiments: {experiment.name}: {refused}")


def refuse_future(experiments: Iterable[Experiment], now: int) -> None:
    """Raise ConfigError for an experiment that begins after `now` (ms)."""
    for experiment in experiments:
        if experiment.since is not None and experiment.since > now:
            raise ConfigError(
                f"experiments: {experiment.name}: since is in the future: it would count nothing;"
                " add the experiment when it has begun, or correct the time"
            )
