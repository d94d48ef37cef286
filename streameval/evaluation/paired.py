"""Models on the same users: each list's score of one beside its score of the other.

The spread is of each user's difference, so what makes a user easy or hard for both models
cancels. With one list a user, the bounds of one look equal the bounds of the paired t test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.base.limits import NANO
from streameval.core.metrics.inputs import Table
from streameval.core.metrics.lists import Metric
from streameval.evaluation import input_kinds
from streameval.evaluation.answer import Answer, Note, refuse_losses
from streameval.evaluation.batches import Advance
from streameval.evaluation.compared import Compared
from streameval.evaluation.request import Given
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, compare_paired
from streameval.stats.verdicts import WITHOUT_SPREAD, join_bounds, of_pairs


@dataclass(frozen=True, slots=True)
class Models:
    """Files of models: `given` is what all have in common, and `table` takes each one's file."""

    given: Given
    table: Table
    files: Sequence[str]

    def all_files(self) -> list[str]:
        """List every file as often as it is read."""
        return [name for file in self.files for name in self.of(file).all_files()]

    def of(self, file: str) -> Given:
        """Return the inputs of one model."""
        tables = {**self.given.tables, self.table: [file]}
        return replace(self.given, tables=tables, per_list=True, notes=[])


def compare_models(
    models: Models, names: Sequence[str], rules: Rules, advance: Advance
) -> tuple[list[Compared], list[Note]]:
    """Compare each model with the first one on the lists of both, figure by figure.

    `names` are figures, or else those that fit the files. Raises `InputError` for models that share
    no list, and for a figure that has no score for a list.
    """
    control, *others = models.files
    asked = input_kinds.asked_for(models.of(control), names)
    for figure in asked:
        if not figure.own:
            raise InputError(
                f"{figure.name}: has no score for a single list or user, so models cannot be"
                " compared by it"
            )
    base = input_kinds.answer(models.of(control), names, advance)
    rows, notes = [], list(_name_notes(control, base.notes))
    for file in others:
        found = input_kinds.answer(models.of(file), names, advance)
        notes += _name_notes(file, found.notes)
        notes += _unpaired_notes(file, found, control, base)
        for figure in asked:
            sides, users = _pair(found, base, figure.name)
            if users < 2:
                raise InputError(
                    f"{file} and {control} have {figure.name} of {count_of(users, 'user')} in"
                    " common: a difference with bounds needs two"
                )
            entry = figure.entry
            chosen = replace(rules, lower_is_better=entry.lower_is_better, reserved=WITHOUT_SPREAD)
            is_share = isinstance(entry, Metric) and entry.is_share
            beside = of_pairs(*sides, chosen, is_share=is_share)
            rows.append(
                Compared(
                    metric=figure.name,
                    arm=file,
                    control=control,
                    users=users,
                    scored=join_bounds(compare_paired(*sides, chosen), beside, chosen),
                )
            )
    if models.given.strict:
        refuse_losses(notes)
    return rows, list({note.key: note for note in notes}.values())


def _name_notes(file: str, notes: Sequence[Note]) -> Iterator[Note]:
    """Yield the notes on one model's lists; the number of its users is not the models' own."""
    for note in notes:
        if not note.key.startswith("few_users"):
            text = note.text and f"{file}: {note.text}"
            shared = note.kind == "warning"  # of the labels, which all models have
            yield note if shared else note._replace(key=f"{note.key} of {file}", text=text)


def _unpaired_notes(file: str, found: Answer, control: str, base: Answer) -> Iterator[Note]:
    """Yield a note on lists of only one model. Raises `InputError` if there are no others."""
    one, other = (set(answer.lists or ()) for answer in (found, base))
    if not (one - found.unseen) & (other - base.unseen):
        raise InputError(
            f"{file} and {control} share no list: are the ids of lists (topics, users) written in"
            " the same way in both?"
        )
    if alone := len(one ^ other):
        text = f"{file}: left out, as only one of the two models has it: {count_of(alone, 'list')}."
        yield Note(f"unpaired of {file}", alone, text, "loss")


def _pair(found: Answer, base: Answer, figure: str) -> tuple[tuple[ClusterSums, ClusterSums], int]:
    """Return the sums of both models by user, over the lists with a score in both."""
    assert found.lists is not None, "the scores of lists were asked for"
    assert base.lists is not None, "the same"
    numbers: dict[str, int] = {}
    sums: tuple[list[int], list[int]] = ([], [])
    lists: list[int] = []
    for name, scores in base.lists.items():
        pair = _scores(found.lists.get(name), scores, figure)
        if pair is None:
            continue
        user = numbers.setdefault(base.users[name], len(numbers))
        if user == len(lists):
            lists.append(0)
            for side in sums:
                side.append(0)
        lists[user] += 1
        for side, score in zip(sums, pair, strict=True):
            side[user] += round(score * NANO)
    count, below = len(numbers), np.array(lists, np.int64)
    one, other = (ClusterSums(np.array(side, object), below, count, NANO) for side in sums)
    return (one, other), count


def _scores(
    one: Mapping[str, float | None] | None, other: Mapping[str, Any], figure: str
) -> tuple[float, float] | None:
    """Return the scores of a list in both models; None if it has not both."""
    above, below = None if one is None else one.get(figure), other.get(figure)
    return None if above is None or below is None else (above, below)
