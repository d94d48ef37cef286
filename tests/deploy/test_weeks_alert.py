"""Alerts on a fall beside the weeks before: on lasting falls and holidays, and on no rhythm.

    PYTHONPATH=tests python tests/deploy/test_weeks_alert.py 20

for so many seeds without a fault, and a quarter of them with each

A site of 20,000 users a day, half of them in each of two variants. Rates swing by 30 % over the
day, are 15 % lower at weekends, and traffic grows by 5 % a week.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from prometheus import RULES, promtool

STEP = 15
HOUR, DAY, WEEK = 60, 1_440, 10_080
WEEKS = 4
LAG = 45
"""Minutes until figures are matured."""
ALERTS = SEGMENT, ALIKE = "StreamevalSegmentFell", "StreamevalFellEverywhere"
FAULTS = {
    "a lasting tenth of B": ({"B": 0.9}, WEEK, SEGMENT, DAY),
    "three tenths of B": ({"B": 0.7}, WEEK, SEGMENT, 2 * HOUR),
    "a holiday": ({"A": 0.9, "B": 0.9}, DAY, ALIKE, DAY),
}
"""By name: the factor of each variant, for how many minutes, the alert, and within how many."""


def rules(folder: Path) -> Path:
    """The rules that these alerts rest on, alone: the others would take most of the time."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    weeks = next(group for group in groups if group["name"] == "streameval-weeks")
    needed = json.dumps(weeks)
    kept = [
        rule
        for group in groups
        for rule in group["rules"]
        if group is not weeks
        if f"{rule.get('record')}{{" in needed or rule.get("alert") in ALERTS
    ]
    records = [rule for rule in kept if "record" in rule]
    alerts = [rule for rule in kept if "alert" in rule]
    path = folder / "rules.yml"
    one = {"name": "all", "rules": [*records, *weeks["rules"], *alerts]}
    path.write_text(yaml.safe_dump({"groups": [one]}, sort_keys=False))
    return path


def site(
    seed: int, factors: dict[str, float], begin: int, minutes: int, until: int
) -> dict[str, str]:
    """Matured figures of both variants; each value is that of the windows that end there."""
    chance = np.random.default_rng(seed)
    t = np.arange(0, until + STEP, STEP)
    weekend = np.where((t // DAY) % 7 >= 5, 0.85, 1.0)
    swing = 1 + 0.3 * np.sin(2 * np.pi * t / DAY)
    slates = (
        20_000 * 3 / 2 * STEP / DAY * 1.05 ** (t / WEEK) * (1 + 0.4 * np.cos(2 * np.pi * t / DAY))
    )
    found = {}
    for variant in "AB":
        fault = np.where((t >= begin) & (t < begin + minutes), factors.get(variant, 1.0), 1.0)
        shown = chance.poisson(slates)
        rate, quality = 0.07 * swing * weekend * fault, 0.21 * swing * weekend * fault
        # Users come back, and some react more than others: half more variance than by themselves.
        clicks = chance.normal(10 * shown * rate, np.sqrt(1.5 * 10 * shown * rate))
        gains = chance.normal(shown * quality, np.sqrt(1.5 * shown) * 0.3)
        for window, width in (("1h", HOUR // STEP), ("24h", DAY // STEP)):
            count, positives, scores = (over(part, width) for part in (shown, clicks, gains))
            labels = f'job="j", window="{window}", basis="matured", variant="{variant}"'
            click = f'{labels}, feedback="click"'
            impressions = 10 * count
            means = positives / impressions
            error = np.sqrt(1.5 * means / impressions)
            for name in ("positives_per_impression", "positive_rate"):
                found[f"streameval_{name}{{{click}}}"] = means
                found[f"streameval_{name}_stderr{{{click}}}"] = error
            found[f'streameval_ndcg{{{labels}, k="10"}}'] = scores / count
            found[f'streameval_ndcg_stderr{{{labels}, k="10"}}'] = np.sqrt(1.5 / count) * 0.3
            found[f"streameval_window_impressions{{{labels}}}"] = impressions
            found[f"streameval_window_users{{{labels}}}"] = count / 3
            found[f"streameval_window_slates{{{labels}}}"] = count
    late = LAG // STEP
    return {
        name: " ".join(["_"] * late + [f"{value:.6g}" for value in values[: len(values) - late]])
        for name, values in found.items()
    }


def over(part: np.ndarray, width: int) -> np.ndarray:
    """The sums of windows of `width` steps; the first ones are shorter."""
    whole = np.cumsum(np.concatenate([np.zeros(width), part]))
    return whole[width:] - whole[:-width]


def judge(folder: Path, seed: int, name: str | None, begin: int) -> None:
    """Assert which alert fires after a fault that begins at a minute, and that none does else."""
    factors, minutes, alert, within = FAULTS[name] if name else ({}, 0, None, 0)
    until = begin + within if name else begin + WEEK
    ever = 'group by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{}m]))'

    def asked(minute: int, back: int, *alerts: str) -> dict:
        samples = [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in alerts]
        return {"expr": ever.format(back), "eval_time": f"{minute}m", "exp_samples": samples}

    tests = [asked(begin if name else until, begin if name else until)]
    if alert is not None:
        tests.append(asked(begin + within, within, alert))
    series = site(seed, factors, begin, minutes, until)
    document = {
        "rule_files": [str(rules(folder))],
        "evaluation_interval": f"{STEP}m",
        "tests": [
            {
                "interval": f"{STEP}m",
                "input_series": [{"series": key, "values": text} for key, text in series.items()],
                "promql_expr_test": tests,
            }
        ],
    }
    path = folder / "weeks_test.yml"
    path.write_text(json.dumps(document))
    promtool("test", "rules", str(path))


@pytest.mark.parametrize("name", [None, *FAULTS])
def test_a_lasting_fall_is_told_and_a_rhythm_is_not(name, tmp_path):
    """With a week of history; the command above has four."""
    judge(tmp_path, 1, name, WEEK + 2 * DAY + 9 * HOUR)


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        for fault in (None, *(FAULTS if seed % 4 == 0 else ())):
            with tempfile.TemporaryDirectory() as made:
                try:
                    judge(Path(made), seed, fault, WEEKS * WEEK + 9 * HOUR)
                    print(seed, fault, "as wanted", flush=True)
                except AssertionError as error:
                    print(seed, fault, str(error)[:1_500], flush=True)
