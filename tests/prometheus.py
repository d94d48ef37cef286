"""promtool for tests: its commands, and which alerts fire on a timeline."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import programs
import yaml

RULES = Path(__file__).parent.parent / "deploy" / "prometheus" / "rules.yml"
FIRING = 'group by (alertname) (ALERTS{alertstate="firing"})'


def promtool(*arguments: str, given: str = "") -> str:
    """What promtool prints; skips without it, fails in CI."""
    command = [programs.need("promtool"), *arguments]
    # Memory is there: collecting garbage less often saves a fifth of days of rules.
    result = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"GOGC": "800"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@cache
def rules_of_alerts(path: Path) -> str:
    """The rules that alerts read, one through another: the others take a quarter of the time."""
    groups = yaml.load(path.read_bytes(), yaml.CSafeLoader)["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    wanted, read = {None}, [rule["expr"] for rule in rules if "alert" in rule]
    while read:
        names = {*re.findall(r"[\w:]+", read.pop())} - wanted
        wanted |= names
        read += [rule["expr"] for rule in rules if rule.get("record") in names]
    for group in groups:
        group["rules"] = [rule for rule in group["rules"] if rule.get("record") in wanted]
    return json.dumps({"groups": groups})


def firing(
    folder: Path,
    timeline: dict[str, str],
    expected: dict[int, str],
    *,
    query: str = FIRING,
    minutes: int = 1,
    rules: Path = RULES,
) -> None:
    """Assert which alert fires at some minutes of a timeline with a value each so many minutes."""
    tests = [
        {
            "expr": query,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else [],
        }
        for minute, alert in expected.items()
    ]
    series = [{"series": name, "values": values} for name, values in timeline.items()]
    interval = f"{minutes}m"
    (folder / "alerts_rules.yml").write_text(rules_of_alerts(rules), encoding="utf-8")
    document = {
        "rule_files": ["alerts_rules.yml"],
        "evaluation_interval": interval,
        "tests": [{"interval": interval, "input_series": series, "promql_expr_test": tests}],
    }
    path = folder / "alerts_test.yml"
    path.write_text(json.dumps(document), encoding="utf-8")
    promtool("test", "rules", str(path))
