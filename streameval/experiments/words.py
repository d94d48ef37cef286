"""Scorecards in words: one sentence for each arm, the same on the page and in the terminal.

A sentence names the decided metrics first, and then the open ones: "B is ahead of A by 0.4 to 1.1
points of NDCG@10 (since 31 January, 182,000 users); positives per impression (click): no difference
shown (-0.2 to +0.4 points), about 50,000 more users needed." The words for an open figure are those
of its row. Points are hundredths of a share or score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from streameval.base.counts import count_of
from streameval.base.durations import utc
from streameval.base.instants import now
from streameval.core.definition import Definition
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.core.metrics import MEANS
from streameval.experiments.left_out import without_arm_remark, without_arm_warning
from streameval.experiments.scorecard import scorecard, split
from streameval.stats.confidence_sequences import FLOOR
from streameval.stats.sample_ratio import ALPHA, CrossedUsers, crossed_bound

Row = Mapping[str, Any]

_NAMED: Final = ("primary", "guardrail")
_NAMES: Final = {
    "ndcg": "NDCG",
    "map": "MAP",
    "mrr": "MRR",
    "latency_ms_mean": "mean latency (ms)",
}
# Figures in [0, 1] are told in points; the others (money, time, ranks, errors) are as they are.
_SHARES: Final = frozenset(mean.name for mean in MEANS.values() if mean.is_share)
_BASES: Final[Mapping[str | None, str]] = {
    "first lists": "share of first lists",
    "users": "mean over users",
    "separation": "without any overlap",
}
_MOST_DECIMALS: Final = 6
# A smaller share of saved users rounds to none.
_LEAST_SAVED: Final = 0.005
# Users, or slates, of which one surely has what none has. Of 1,000 users an arm that gets 1 % of
# them gets none with a chance of 4 in 100,000.
_SURELY: Final = 1_000
# Of more users than so many times those there are, a plan says more than the sentence.
MOST_NEEDED: Final = 100


@dataclass(frozen=True, slots=True)
class Scorecard:
    """The figures of an experiment so far.

    `rows` and `split` are its rows of the sections `experiments` and `splits`. `since` is the time
    (ms) from which slates count; None before the first. `counts_from` is set where it is later than
    the experiment wants, which was configured late. `named_arms` are the control, and the arms
    that the experiment names beside it. `field` is the event field of the arm, which `without_arm`
    slates do not have. `uncapped` are the named metrics that have a cap in windows. `notes` are
    sentences of the leader, on figures beside the rows that it withholds. `leaves_out`: figures
    without crossed users are wanted. `failing` are sentences on checks that doubt the data.
    """

    name: str
    since: int | None
    rows: Sequence[Row]
    split: Row
    named_arms: Sequence[str]
    counts_from: int | None = None
    field: str = ""
    without_arm: int = 0
    uncapped: Sequence[str] = ()
    notes: Sequence[str] = ()
    leaves_out: bool = False
    failing: Sequence[str] = ()

    @property
    def is_mismatched(self) -> bool:
        """Whether users surely do not fall into the arms as the split says."""
        p_value = self.split["p_value"]
        return p_value is not None and p_value <= ALPHA

    @property
    def crossed(self) -> CrossedUsers:
        """The share of users who were in several arms, and whether they are too many."""
        crossed = self.split["crossed_users"]
        return crossed_bound(crossed, crossed + sum(self.split["users"].values()))


def scorecards(
    definition: Definition, found: Sequence[ArmSums], users: Mapping[str, ArmUsers]
) -> list[Scorecard]:
    """Judge each experiment; `users` are by `Experiment.key`."""
    cards = []
    for arms in found:
        experiment = arms.experiment
        counts = users.get(experiment.key, ArmUsers())
        cards.append(
            Scorecard(
                experiment.name,
                _since(arms),
                list(scorecard(definition, arms, counts)),
                split(arms, counts),
                experiment.named_arms,
                _late(arms),
                experiment.arm,
                arms.without_arm,
                uncapped_metrics(experiment.margins, definition),
                leaves_out=experiment.crossed_users == "leave_out",
            )
        )
    return cards


def with_beside(
    card: Scorecard, key: str, figures: Iterable[Row], time: int, notes: Iterable[str] = ()
) -> Scorecard:
    """Put further figures as of `time` (ms) beside the named rows of a card, under a key.

    These are the `adjusted` ones, and those `without_crossed` users.
    """
    found = {
        (row["metric"], row["arm"]): {
            "time": time,
            **{name: value for name, value in row.items() if name not in {"metric", "arm"}},
        }
        for row in figures
    }
    rows = [
        {**row, key: beside}
        if row["role"] in _NAMED and (beside := found.get((row["metric"], row["arm"])))
        else row
        for row in card.rows
    ]
    return replace(card, rows=rows, notes=[*card.notes, *notes])


def _since(arms: ArmSums) -> int | None:
    """Return the time of the first slate that can have been counted in every partition (ms)."""
    begun = (arms.experiment.since, arms.counts_from, arms.earliest)
    return max((time for time in begun if time is not None), default=None)


def document_of(card: Scorecard) -> dict[str, Any]:
    """Return a scorecard as JSON has it: rows as in `replay --json`, and the sentences."""
    return {
        "name": card.name,
        "since": card.since,
        "sentences": sentences(card),
        "beside": beside_sentences(card),
        "warnings": warnings(card),
        "remarks": remarks(card),
        "experiments": list(card.rows),
        "splits": [card.split],
    }


def _late(arms: ArmSums) -> int | None:
    """Return the time from which an experiment counts that should have counted before."""
    since = arms.experiment.since
    is_late = since is not None and arms.counts_from is not None and arms.counts_from > since
    return arms.counts_from if is_late else None


Outcome = Literal["passed", "failed", "open"]


def gate(card: Scorecard) -> Outcome:
    """Judge a scorecard for a release: "failed" where it must not go out, "open" if not known yet.

    It fails where the primary figure or a guardrail is worse, and where the users cannot be
    trusted. It is open while bounds of a named figure are missing.
    """
    verdicts = [row["verdict"] for row in card.rows if row["role"] in _NAMED]
    if "worse" in verdicts or card.is_mismatched or card.crossed.too_many:
        return "failed"
    return "open" if "not yet" in verdicts or not verdicts else "passed"


def sentences(card: Scorecard) -> list[str]:
    """Return a sentence for each arm that is compared with the control, in the order of the rows.

    Exploratory figures are left out: they promise nothing together.
    """
    arms: dict[str, list[Row]] = {}
    for row in card.rows:
        if row["role"] in _NAMED:
            arms.setdefault(row["arm"], []).append(row)
    return [_sentence(each, card) for each in arms.values()]


def warnings(card: Scorecard) -> list[str]:
    """Return a sentence for each reason to trust no figure of the experiment, or to expect none."""
    users = card.split["users"]
    found = _missing(card)
    if lacking := without_arm_warning(card.split, card.field):
        found.append(lacking)
    found += dict.fromkeys(row["withheld"] for row in card.rows if row.get("withheld"))
    if card.is_mismatched:
        total = sum(users.get(arm, 0) for arm in card.named_arms)
        shares = ", ".join(f"{arm} {users.get(arm, 0) / total:.1%}" for arm in card.named_arms)
        found.append(
            f"Users do not fall into the arms as the split says ({shares}): find out why before you"
            " trust a figure."
        )
    crossed = card.crossed
    if crossed.too_many:
        found.append(
            f"{card.split['crossed_users']:,} users ({crossed.share:.1%}) have been in several"
            " arms: they blur every difference."
        )
    strange = {arm: count for arm, count in users.items() if arm not in card.named_arms and count}
    if strange and len(card.named_arms) > 1:
        listed = ", ".join(f"{arm} ({count:,} users)" for arm, count in sorted(strange.items()))
        found.append(f"The experiment does not name the arm {listed}.")
    if card.rows and all(row["role"] not in _NAMED for row in card.rows):
        several = sorted({row["arm"] for row in card.rows if row["users"] >= FLOOR})
        found.append(
            f"Several arms have come ({', '.join(several)}) and the experiment names none of them,"
            " so all its figures are exploratory: list the arms that it judges under `arms`."
        )
    return [*found, *card.failing]


def _missing(card: Scorecard) -> list[str]:
    """Return a sentence where the control, a named arm or all arms never came."""
    users = card.split["users"]
    there = {arm: count for arm, count in sorted(users.items()) if count}
    if not there and not card.split["crossed_users"] and card.without_arm >= _SURELY:
        missing = f"None of the {card.without_arm:,} slates so far has the field {card.field}"
        return [f"{missing}, which holds the arm: correct `arm`, or have producers send it."]
    if sum(there.values()) < _SURELY:
        return []
    listed = ", ".join(f"{arm} ({count:,} users)" for arm, count in there.items())
    alone = " alone" if card.split["crossed_users"] else ""
    return [
        f"No user is in the {'arm' if number else 'control'} {arm}{alone}, and {card.field} has"
        f" {listed}: without it nothing is ever decided."
        for number, arm in enumerate(card.named_arms)
        if arm not in there
    ]


def uncapped_metrics(metrics: Iterable[str], definition: Definition) -> list[str]:
    """Return the metrics whose values have a cap in windows, which experiments do not have."""
    kinds = {positive.kind for positive in definition.positives if positive.cap is not None}
    return [
        metric
        for metric in metrics
        if metric.startswith("value_per_") and metric.partition("=")[2].removesuffix("}") in kinds
    ]


def cap_remark(metrics: Iterable[str]) -> str:
    """Return a sentence on the `uncapped` metrics."""
    named = ", ".join(map(metric_name, metrics))
    return f"Without `cap`, which holds in windows only: {named}. One large value can move it."


def remarks(card: Scorecard) -> list[str]:
    """Return sentences on missing caps, on slates that are left out, and the leader's notes."""
    found = [cap_remark(card.uncapped)] if card.uncapped else []
    if remark := without_arm_remark(card.split, card.field):
        found.append(remark)
    if remark := _still_crossed(card):
        found.append(remark)
    if card.counts_from is not None:
        found.append(
            f"Slates before {_moment(card.counts_from)} do not count: the experiment was configured"
            " later, and outcome files have not given any."
        )
    return [*found, *card.notes]


def _still_crossed(card: Scorecard) -> str | None:
    """Return a sentence where crossed users are to be left out, and no figures without them are."""
    crossed = card.split["crossed_users"]
    is_there = any("without_crossed" in row for row in card.rows)
    if not (card.leaves_out and crossed) or is_there or card.notes:
        return None
    return (
        f"{crossed:,} users of several arms are in these figures: the leader shows figures without"
        " them after each snapshot, from outcome files."
    )


def adjusted_sentences(card: Scorecard) -> list[str]:
    """Return a sentence on the adjusted figures of each arm; none where nothing is adjusted."""
    return [_adjusted_sentence(each) for each in _having(card, "adjusted")]


def beside_sentences(card: Scorecard) -> list[str]:
    """Return the sentences on figures beside the rows: as of a snapshot, they decide nothing."""
    return [*adjusted_sentences(card), *without_crossed_sentences(card)]


def without_crossed_sentences(card: Scorecard) -> list[str]:
    """Return a sentence on the figures of each arm without crossed users; none where none are."""
    return [_without_crossed_sentence(each) for each in _having(card, "without_crossed")]


def _having(card: Scorecard, key: str) -> list[list[Row]]:
    """Return the rows that have figures of a key beside them, by arm."""
    arms: dict[str, list[Row]] = {}
    for row in card.rows:
        if key in row:
            arms.setdefault(row["arm"], []).append(row)
    return list(arms.values())


def _without_crossed_sentence(rows: Sequence[Row]) -> str:
    first = rows[0]
    beside = first["without_crossed"]
    figures = "; ".join(
        f"{metric_name(row['metric'])}: {_bounds(row['metric'], row['without_crossed'])}"
        for row in rows
    )
    return (
        f"{first['arm']} against {first['control']}, without the {beside['left_out']:,} users of"
        f" several arms (at {_moment(beside['time'])}): {figures}."
    )


def _adjusted_sentence(rows: Sequence[Row]) -> str:
    first = rows[0]
    beside = first["adjusted"]
    figures = "; ".join(
        f"{metric_name(row['metric'])}: {_bounds(row['metric'], row['adjusted'])},"
        f" {words_of_saving(row['adjusted']['users_saved'])}"
        for row in rows
    )
    return (
        f"{first['arm']} against {first['control']}, adjusted by what {beside['users_with_past']:,}"
        f" of {beside['users_of']:,} users did before (at {_moment(beside['time'])}): {figures}."
    )


def words_of_saving(share: float) -> str:
    """Say which share of the users an adjustment saves. A spread that grew saves none."""
    return f"{share:.0%} of users saved" if share >= _LEAST_SAVED else "no users saved"


def _moment(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment.day} {moment:%B %H:%M} UTC"


def metric_name(metric: str) -> str:
    """Return a figure's name for people: `ndcg@10` is NDCG@10."""
    name, _, selector = metric.partition("{")
    stem, at, cutoff = name.partition("@")
    words = _NAMES.get(stem) or stem.replace("_", " ")
    kind = re.sub(r"^\w+=|}$", "", selector)
    return f"{words}{at}{cutoff}" + (f" ({kind})" if kind else "")


def in_units(metric: str) -> tuple[float, str]:
    """Return how many units one of the figure is, and their name: points, or none of their own."""
    stem = re.split(r"[@{]", metric)[0]
    return (100.0, "points ") if stem in _SHARES else (1.0, "")


def comparison_sentence(row: Row, labels: Mapping[str, str]) -> str:
    """Return a sentence on one figure; `labels` are the values that both arms share."""
    of = "".join(f", {name} {value}" for name, value in labels.items())
    if row["verdict"] in {"better", "worse"}:
        return f"{_decision(row)}{of}."
    return f"{row['arm']} against {row['control']}{of}: {_open(row)}."


def _sentence(rows: Sequence[Row], card: Scorecard) -> str:
    decided = [row for row in rows if row["verdict"] in {"better", "worse"}]
    still_open = [row for row in rows if row not in decided]
    arm, control = rows[0]["arm"], rows[0]["control"]
    users = sum(card.split["users"].get(name, 0) for name in (arm, control))
    facts = [] if card.since is None else [f"since {_begin(card.since)}"]
    facts.append(count_of(users, "user"))
    about = f" ({', '.join(facts)})"
    parts = [_decision(row) for row in decided] or [f"{arm} against {control}"]
    parts[0] += about
    if rows[0].get("withheld"):
        return f"{parts[0]}: not yet, as the arms' shares of the users changed."
    opening, *more = [*parts, *map(_open, still_open)]
    if not decided:
        return f"{opening}: {'; '.join(more)}."
    return "; ".join((opening, *more)) + "."


def _decision(row: Row) -> str:
    scale, unit = in_units(row["metric"])
    near, far = sorted((abs(row["low"]) * scale, abs(row["high"]) * scale))
    decimals = max(_decimals_of(far - near), _decimals_of(near, 1))
    side = "ahead of" if row["verdict"] == "better" else "behind"
    # Of a figure that should be low, the arm that has less is ahead.
    less = (row["verdict"] == "better") != (row["difference"] > 0)
    return (
        f"{row['arm']} is {side} {row['control']} by {near:.{decimals}f} to {far:.{decimals}f} "
        f"{unit}of {'lower ' if less and side == 'ahead of' else 'higher ' if less else ''}"
        f"{metric_name(row['metric'])}" + (f" ({of})" if (of := _basis(row)) else "")
    )


def _open(row: Row) -> str:
    """Name the figure with the verdict of its row, its bounds, and the users still needed."""
    said = f"{metric_name(row['metric'])}: {row['verdict']}"
    if row["verdict"] != "not yet":
        of = _basis(row)
        said += f" ({_bounds(row['metric'], row)}{of and ', '}{of})"
    needed = row["users_needed"]
    means_something = needed and needed <= MOST_NEEDED * max(row["users"], 1)
    return f"{said}, about {needed:,} more users needed" if means_something else said


def _basis(row: Row) -> str:
    """Say what bounds are of that are not of the figure itself; "" for the others."""
    return _BASES.get(row.get("bounds"), "")


def _bounds(metric: str, row: Row) -> str:
    """Write the bounds of a difference; "no bounds yet" before there are any."""
    if row["low"] is None:
        return "no bounds yet"
    scale, unit = in_units(metric)
    low, high = row["low"] * scale, row["high"] * scale
    decimals = _decimals_of(high - low)
    return f"{low:+.{decimals}f} to {high:+.{decimals}f} {unit}".rstrip()


def _decimals_of(number: float, steps: int = 5) -> int:
    """Return the decimals that leave at least `steps` steps of the last digit in a number."""
    if number <= 0:
        return 0
    return min(_MOST_DECIMALS, max(0, math.ceil(math.log10(steps / number))))


def _begin(ms: int) -> str:
    """Write a day, or the time of day where it is today."""
    at = utc(ms)
    return f"{at[11:16]} UTC today" if at[:10] == utc(now())[:10] else _day(ms)


def _day(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment.day} {moment:%B}"
