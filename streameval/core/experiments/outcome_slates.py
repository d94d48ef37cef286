"""Final slates as rows of outcome files hold them, booked as the ledger books them.

So the consumers of final slates take rows of files too, and come to the same sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streameval.base.limits import MICRO
from streameval.base.scaled import scale
from streameval.core.definition import Definition
from streameval.core.list_shapes import ListShapes
from streameval.core.marks import NEVER, Marks, add_mark
from streameval.core.outcome import FeedbackOutcome
from streameval.core.relevance import Judge
from streameval.core.slate import NO_FEEDBACK, Slate, SlateDetails, extras_of

_PLAIN_SIZES = 64


class OutcomeSlates:
    """Makes slates of rows under a definition; `unknown` counts feedback of other kinds.

    The items of such a slate are numbers in text, from 0.
    """

    def __init__(self, definition: Definition) -> None:
        self.unknown: dict[str, int] = {}
        self._kinds = {kind: index for index, kind in enumerate(definition.kinds)}
        self._judge = Judge(definition, follows=False)
        self._shapes = ListShapes(definition)
        self._plain = [_items(range(1, size + 1)) for size in range(_PLAIN_SIZES)]

    def of(
        self,
        user: str,
        request: str | None,
        time: int,
        labels: tuple[str, ...],
        *,
        ranks: Sequence[int],
        feedback: Iterable[FeedbackOutcome],
        fallback: bool | None,
        latency_ms: float | None,
    ) -> Slate:
        """Return the slate of a row, with everything booked that it is worth.

        `ranks` rise; its earliest event gave the `labels`.
        """
        size = len(ranks)
        is_plain = not size or ranks[-1] == size
        items = self._plain[size] if is_plain and size < _PLAIN_SIZES else _items(ranks)
        slate = Slate(user, request, time, 0, time, items, booked_impressions=size)
        slate.details = SlateDetails(NEVER, time, labels, {}, [])
        slate.feedback = self._marks(time, feedback)
        if slate.feedback is not None:
            slate.booked = self._judge.relevance(slate, items)
        if request is not None:
            slate.extras = slate.booked_extras = extras_of(fallback, latency_ms)
            hits = slate.booked.hits if slate.booked is not NO_FEEDBACK else ()
            slate.booked_list = self._shapes.of(
                size, None if is_plain else tuple(ranks), fallback=slate.extras & 1, hits=hits
            )
        return slate

    def _marks(self, time: int, feedback: Iterable[FeedbackOutcome]) -> Marks | None:
        marks: Marks | None = None
        for entry in feedback:
            kind = self._kinds.get(entry.kind)
            if kind is None:
                self.unknown[entry.kind] = self.unknown.get(entry.kind, 0) + 1
                continue
            is_valued = self._judge.rules[kind] != "none" and not entry.retract
            micro = scale(entry.value, MICRO) if is_valued else None
            ts = time + entry.delay
            marks = add_mark(marks, str(entry.item), kind, ts, entry.retract, micro)
        return marks


def _items(ranks: Iterable[int]) -> dict[str, int]:
    return {str(number): rank for number, rank in enumerate(ranks)}
