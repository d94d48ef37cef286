"""promtool for tests: its commands, and which alerts fire on a timeline."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import programs

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
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": interval,
        "tests": [{"interval": interval, "input_series": series, "promql_expr_test": tests}],
    }
    path = folder / "alerts_test.yml"
    path.write_text(json.dumps(document), encoding="utf-8")
    promtool("test", "rules", str(path))
