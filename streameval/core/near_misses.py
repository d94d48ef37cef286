"""Fields and kinds that nobody reads, though their names look like ours.

A producer that sends `rank` for `position` gets no error, and other figures than it thinks. To look
at the names of every field would cost a tenth of the decoding. So the first values of a decoder are
looked at, and later a sample.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from streameval.base.nearest import nearest

ALL_OF_THE_FIRST: Final = 1_000
ONE_IN: Final = 512
MOST_NAMES: Final = 100
LONGEST_NAME: Final = 80
MOST_ITEMS: Final = 20
MOST_LISTED: Final = 5
# Among fewer feedbacks a rare kind may be missing by chance.
LEAST_FEEDBACK: Final = 20
# A letter more, less or other in a name of six; shorter names look like too many words.
_CLOSE: Final = 0.85
_SHORTEST: Final = 5

# Words that stand for one of our fields, without regard to case, `_` and `-`.
_SYNONYMS: Final = {
    **dict.fromkeys(("rank", "pos", "index"), "position"),
    "timestamp": "ts",
}
# The same where our field is missing: beside it they may well mean something else.
_MAYBE: Final = {
    **dict.fromkeys(("idx", "slot"), "position"),
    **dict.fromkeys(("time", "eventtime", "datetime"), "ts"),
    **dict.fromkeys(("user", "uid", "visitorid", "customerid"), "user_id"),
    **dict.fromkeys(("item", "productid", "contentid", "docid"), "item_id"),
    **dict.fromkeys(("request", "reqid", "slateid", "listid"), "request_id"),
    **dict.fromkeys(("eventtype", "event"), "type"),
    **dict.fromkeys(("action", "interaction"), "feedback"),
    **dict.fromkeys(("probability", "prob"), "propensity"),
    **dict.fromkeys(("latency", "latencymillis"), "latency_ms"),
    **dict.fromkeys(("itemids", "results", "recommendations"), "items"),
}


class NearMisses:
    """Counts names like ours. `types` has the fields by type of event, `items` those of an item.

    `kinds` are the configured kinds of positives, `labels` the fields of dimensions and arms.
    `parse` returns a value as plain data.
    """

    def __init__(
        self,
        types: Mapping[str, Sequence[str]],
        items: Sequence[str],
        kinds: Sequence[str],
        parse: Callable[[Any], Any],
        labels: Sequence[str] = (),
    ) -> None:
        self._types = {kind: frozenset(fields) | {"type"} for kind, fields in types.items()}
        self._items = frozenset(items)
        self._ours = frozenset().union(*self._types.values(), items)
        self._by_word = {_word(name): name for name in sorted(self._ours)}
        self._kinds, self._kinds_by_word = kinds, {_word(kind): kind for kind in kinds}
        self._parse = parse
        self._seen = self.looked_at = 0
        self._known: dict[str, tuple[str, bool] | None] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._told: set[tuple[str, str]] = set()
        self._labels = labels
        self._lists = 0
        self._fields: Counter[str] = Counter()
        self._feedback: Counter[str] = Counter()
        self._told_absent = False

    def look(self, values: Sequence[Any]) -> None:
        """Look at the next values, or at some of them."""
        begin, self._seen = self._seen, self._seen + len(values)
        step = 1 if begin < ALL_OF_THE_FIRST else ONE_IN
        for index in range(-begin % step, len(values), step):
            fields = None
            # The decoder says what is wrong with a value that cannot be parsed.
            with suppress(Exception):
                fields = self._parse(values[index])
            if isinstance(fields, Mapping):
                self.looked_at += 1
                self._count(fields)
                for found in set(self._found(fields)):
                    if found in self._counts or len(self._counts) < MOST_NAMES:
                        self._counts[found] += 1

    def fresh(self) -> Iterator[str]:
        """Yield a line for each name that was not told before."""
        for (name, meant), count in self._counts.items():
            if (name, meant) not in self._told:
                self._told.add((name, meant))
                yield (
                    f"{name} is not read, in {count:,} of {self.looked_at:,} events looked at; if"
                    f" {meant} is meant, send that"
                )

        if self.looked_at >= ALL_OF_THE_FIRST and not self._told_absent:
            self._told_absent = True
            yield from self.absent()

    def absent(self) -> Iterator[str]:
        """Yield a line for each configured kind and label that no event has, while others do."""
        meant = {name for _, name in self._counts}
        others = [kind for kind, _ in self._feedback.most_common() if kind not in self._kinds]
        enough = others and self._feedback.total() >= LEAST_FEEDBACK
        for kind in self._kinds:
            if enough and kind not in self._feedback and f"feedback {kind!r}" not in meant:
                yield (
                    f"`positives` has {kind!r}, and none of {self._feedback.total():,} feedback"
                    f" events looked at is of that kind; further kinds are {_listed(kind, others)}"
                )
        unread = [name for name, _ in self._fields.most_common() if name not in self._ours]
        for label in self._labels:
            if unread and self._lists and not self._fields[label] and repr(label) not in meant:
                yield (
                    f"none of {self._lists:,} impressions and slates looked at has the field"
                    f" {label!r}; further fields are {_listed(label, unread)}: correct `dimensions`"
                    " (or `arm`), or send it"
                )

    def _count(self, fields: Mapping[Any, Any]) -> None:
        """Count the kind of a feedback, or the fields with a text of what was shown."""
        kind, said = fields.get("type"), fields.get("feedback")
        if kind == "feedback" and isinstance(said, str):
            self._add(self._feedback, [said])
        elif kind in ("impression", "slate"):  # it may not be hashable
            self._lists += 1
            texts = [
                n for n, text in fields.items() if isinstance(n, str) and isinstance(text, str)
            ]
            self._add(self._fields, texts)

    @staticmethod
    def _add(counts: Counter[str], names: Sequence[str]) -> None:
        for name in names:
            short = name[:LONGEST_NAME]
            if short in counts or len(counts) < MOST_NAMES:
                counts[short] += 1

    def _found(self, fields: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
        kind = fields.get("type")
        wanted = self._types.get(kind, self._ours) if isinstance(kind, str) else self._ours
        yield from self._names(fields, wanted)
        items = fields.get("items")
        for item in items[:MOST_ITEMS] if isinstance(items, list | tuple) else ():
            if isinstance(item, Mapping):
                yield from self._names(item, self._items)
        if isinstance(kind, str) and kind not in self._types:
            meant = self._like_a_kind(kind)
            if meant:
                yield f"type {kind[:LONGEST_NAME]!r}", f"type 'feedback' and feedback {meant!r}"
        said = fields.get("feedback")
        if isinstance(said, str) and said not in self._kinds and (meant := self._like_a_kind(said)):
            yield f"feedback {said[:LONGEST_NAME]!r}", f"feedback {meant!r}"

    def _names(
        self, fields: Mapping[Any, Any], wanted: frozenset[str]
    ) -> Iterator[tuple[str, str]]:
        for name in fields:
            if isinstance(name, str) and name not in self._ours:
                near = self._near(name)
                if near is not None and near[0] in wanted and (near[1] or near[0] not in fields):
                    yield f"the field {name[:LONGEST_NAME]!r}", repr(near[0])

    def _near(self, name: str) -> tuple[str, bool] | None:
        """Return the field of ours that a name is like, and whether that is sure."""
        if name not in self._known:
            if len(self._known) >= 10 * MOST_NAMES:
                return None
            self._known[name] = self._compared(_word(name[:LONGEST_NAME]))
        return self._known[name]

    def _compared(self, word: str) -> tuple[str, bool] | None:
        sure = self._by_word.get(word) or _SYNONYMS.get(word)
        if sure is not None:
            return sure, True
        if word in _MAYBE:
            return _MAYBE[word], False
        close = nearest(word, self._by_word, cutoff=_CLOSE) if len(word) >= _SHORTEST else []
        return (self._by_word[close[0]], False) if close else None

    def _like_a_kind(self, text: str) -> str | None:
        word = _word(text[:LONGEST_NAME])
        return self._kinds_by_word.get(word) or self._kinds_by_word.get(word.removesuffix("s"))


def _listed(name: str, others: Sequence[str]) -> str:
    """List some names, those that are like `name` first."""
    first = nearest(name, others, MOST_LISTED)
    rest = [other for other in others if other not in first]
    return ", ".join(repr(other[:LONGEST_NAME]) for other in [*first, *rest][:MOST_LISTED])


def _word(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
