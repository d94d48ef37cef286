"""Parts of the `/metrics` page: families whose names begin with `streameval_`, and clean labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def gauge(
    name: str,
    text: str,
    labels: Sequence[str] = (),
    samples: Iterable[tuple[Sequence[str], float | None]] = (),
) -> GaugeMetricFamily:
    """Return a gauge of `samples`: label values and a number each; None is left out."""
    family = GaugeMetricFamily(f"streameval_{name}", text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(clean(values), number)
    return family


def single(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge without labels; without a sample if the value is None."""
    return gauge(name, text, samples=[((), value)])


def counter(
    name: str, text: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    """Return a counter of `counts`: label values and a number each."""
    family = CounterMetricFamily(f"streameval_{name}", text, labels=labels)
    for values, count in counts:
        family.add_metric(clean(values), count)
    return family


def clean(values: Sequence[str]) -> list[str]:
    """Replace lone surrogates: a single one would make the whole page fail."""
    return [value.encode("utf-8", "replace").decode() for value in values]


def seconds(milliseconds: int | None) -> float | None:
    """Return a time in seconds."""
    return None if milliseconds is None else milliseconds / 1_000
