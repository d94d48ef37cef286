"""Reading figures off a worker's `/metrics` page, as Prometheus would."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from typing import Final

_SAMPLE: Final = re.compile(r"^(streameval_\w+)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]


class Page:
    """The samples of one scrape, by name and labels."""

    def __init__(self, text: str) -> None:
        self._samples: dict[tuple[str, Labels], float] = {}
        for line in text.splitlines():
            match = _SAMPLE.match(line)
            if match:
                name, labels, value = match.groups()
                self._samples[name, frozenset(_LABEL.findall(labels or ""))] = float(value)

    def value(self, name: str, labels: Mapping[str, str]) -> float | None:
        """Return one sample; None if the page lacks it."""
        return self._samples.get((name, frozenset(labels.items())))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the samples of a name, by their value of one label."""
        return {
            dict(labels).get(label, ""): value
            for (sample, labels), value in self._samples.items()
            if sample == name
        }


def scrape(address: str) -> Page:
    """Read `address`/metrics; raises `OSError` if the worker does not answer."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:  # noqa: S310
        return Page(answer.read().decode())
