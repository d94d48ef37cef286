"""`streameval evaluate` called from tests, and what other libraries call its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streameval.base.errors import InputError
from streameval.cli.app import app

GOLDEN = Path(__file__).parents[2] / "shared" / "golden" / "ranking_golden.json"
"""200 lists with the values of six tools in every convention; beside the repository, not in it."""

CONVENTIONS = {
    "precision": "precision",
    "recall": "recall",
    "f1": "f1_user",
    "ndcg_linear": "ndcg",
    "ndcg_exp": "ndcg_exp",
    "ndcg_binary": "ndcg_binary",
    "ndcg_binary_fullk": "ndcg_binary_full",
    "dcg_linear": "dcg",
    "dcg_exp": "dcg_exp",
    "dcg_binary": "dcg_binary",
    "ap": "map",
    "ap_min_Rk": "map_capped",
    "ap_div_k": "map_over_k",
    "rr": "mrr",
    "hit": "hit_rate",
    "r_precision": "r_precision",
    "auc_slate": "auc",
}
"""The catalogue's name of each convention of `GOLDEN`."""


def invoke(*arguments: str) -> str:
    """What `streameval evaluate` prints; it must succeed."""
    result = CliRunner().invoke(app, ["evaluate", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run(*arguments: str) -> dict[str, Any]:
    """The document of `--json`."""
    answer: dict[str, Any] = json.loads(invoke(*arguments, "--json"))
    return answer


def refused(*arguments: str) -> str:
    """The one line with which it refuses the arguments, or what they name."""
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, ["evaluate", *arguments], catch_exceptions=False)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)
