"""The figures of `/metrics` as series of OpenMetrics with a time, for backfill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.utils import floatToGoString

from streameval.core.definition import Definition
from streameval.core.figures import Figures
from streameval.web.figure_families import figure_families
from streameval.web.status import ProcessCounters, ServiceStatus


class Sample(NamedTuple):
    """A value of a series, whose text is its name and labels, with its family and HELP."""

    family: str
    text: str
    series: str
    value: float


def figure_samples(
    definition: Definition, figures: Figures, labels: Mapping[str, str]
) -> Iterator[Sample]:
    """Yield all figures as a worker shows them; `labels` stand in every series beside its own."""
    status = ServiceStatus(
        version="",
        topic="",
        group="",
        started_at=0.0,
        definition=definition,
        counters=ProcessCounters(definition),
        figures=figures,
    )
    for family in figure_families(status):
        assert family.type == "gauge", "no figure is a counter, and the header says so"
        for name, own, value, *_ in family.samples:
            yield Sample(name, family.documentation, _series(name, {**own, **labels}), value)


def header(family: str, text: str) -> str:
    """Return the lines before the samples of a gauge."""
    return f"# HELP {family} {_escape(text)}\n# TYPE {family} gauge\n"


def line(series: str, value: float, seconds: int) -> str:
    """Return the line of one sample; times are whole seconds."""
    written: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return f"{series} {written} {seconds}\n"


END = "# EOF\n"


def _series(name: str, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}" if pairs else name


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
