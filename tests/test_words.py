"""The retired words of the house, in names and in text: one thing has one name everywhere.

Each word has the reason and the name to use. `STILL` lists the words that a package still has. An
entry that is no longer needed fails too, so the list only shrinks.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "streameval"

RETIRED = {
    # six meanings
    "shown": "items, shown_at, format_…, redacted: name the thing",
    "showing": "open slate, impression",
    "showings": "open slates, impressions",
    # five meanings
    "place": "topic_partition, labels, location, position",
    "places": "topic_partitions, labels, locations, positions",
    # a batch that waits for its commit, and an @k
    "cut": "pending_commit, cutoff",
    "cuts": "pending_commits, cutoffs",
    # kinds of input; `sort` stays the verb of the algorithm
    "sort": "input_kind",
    "sorts": "input_kinds",
    # metrics, items and a flag
    "catalogue": "metrics, items, list_metrics",
    # Each was a private metaphor; the field has a term.
    "verdict": "relevance",
    "owned": "assigned_partition",
    "particulars": "slate_details",
    "singles": "requestless impressions",
    "soft": "provisional",
    "crowd": "indexed user",
    "crowds": "indexed users",
    "keeper": "StateStore",
    "patience": "retry",
    "rereading": "range_reader",
    "takeover": "restore",
    "outbox": "outcome_writer, undelivered",
    # a letter is posted; a record is dead-lettered
    "bury": "dead_letter",
    "buried": "dead_lettered",
    # a function returns
    "answers": "returns",
}
PHRASES = {
    "given_up": "finalized",
    "taken_back": "retracted",
}
MODULES = {
    "tools": "kafka.admin",
    "reasons": "connection_errors",
    "columns": "record_batches",
    "scan": "user_scan",
}
"""Words that are fine in names and were poor names of modules."""

TEXT = {
    r"cut-offs?|cuts? at k|with a cut|the cut is": "cutoff",
    r"(row|rows|name) of the catalogue|catalogue of metrics": "metric, metrics",
    r"showings": "open slates, impressions",
    r"sorts? of": "kinds of",
    r"keepers?": "store",
    r"(is|are|was|were|be) taken back": "retracted",
    r"particulars": "slate details",
    r"crowds|singles": "indexed users, requestless impressions",
    r"soft feedback": "provisional feedback",
    r"takeovers?|rereading|outbox|patience": "restore, range reader, outcome writer, retry",
    r"bury|buries|buried": "dead-letter",
}
"""Retired words as text has them: alone they may be plain English (a place, a sort, a verdict)."""

STILL: dict[str, str] = {
    "checks": "catalogue",  # a key of the specification: catalogue_size
    "core": "catalogue shown",  # `shown` is a column of outcome files
    "stats": "verdict",  # of a test, not of feedback
}
"""Package -> the words that it still has. Take an entry out with the last name that has it."""


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of a module's classes, functions, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words(name: str) -> str:
    """Write a name in snake case: `_CutOff` is `cut_off`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")


def retired(name: str) -> set[str]:
    """Return the retired words and phrases in a name."""
    plain = words(name)
    return {word for word in plain.split("_") if word in RETIRED} | {
        phrase for phrase in PHRASES if phrase in plain
    }


def found(package: Path) -> dict[str, set[str]]:
    """Return each retired word of a package, with the files and names that have it."""
    uses: dict[str, set[str]] = defaultdict(set)
    for path in sorted(package.rglob("*.py")):
        for word in retired(path.stem) | ({path.stem} & MODULES.keys()):
            uses[word].add(path.name)
        for name in names(ast.parse(path.read_text(encoding="utf-8"))):
            for word in retired(name):
                uses[word].add(f"{path.name}: {name}")
    return uses


TEXTS = [
    *PACKAGE.rglob("*.py"),
    *(PACKAGE.parent / "docs").glob("*.md"),
    *PACKAGE.parent.glob("*.md"),
]


@pytest.mark.parametrize("words", TEXT, ids=TEXT.values())
def test_no_text_of_code_and_docs_has_a_retired_word(words):
    pattern = re.compile(rf"\b(?:{words})\b".replace(" ", r"\s+"), re.IGNORECASE)
    uses = {
        f"{path.relative_to(PACKAGE.parent)}: {found[0]}"
        for path in TEXTS
        for found in pattern.finditer(path.read_text(encoding="utf-8"))
    }
    assert uses == set(), f"say {TEXT[words]}"


PACKAGES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_no_retired_word(package):
    uses, known = found(PACKAGE / package), STILL.get(package, "").split()
    advice = RETIRED | PHRASES | MODULES
    fresh = {word: (advice[word], sorted(uses[word])) for word in uses.keys() - set(known)}
    assert fresh == {}


def test_the_list_of_words_that_stand_still_has_none_that_is_gone():
    gone = {
        name: set(known.split()) - found(PACKAGE / name).keys() for name, known in STILL.items()
    }
    assert {name: words for name, words in gone.items() if words} == {}, "take them out of STILL"


def test_the_list_names_packages_that_exist():
    assert STILL.keys() <= set(PACKAGES)


def test_a_retired_word_is_found_in_every_kind_of_name():
    code = "class CutOff:\n    def taken_back(self, place):\n        self.shown = (sorts := place)"
    assert set().union(*map(retired, names(ast.parse(code)))) == {
        "cut",
        "taken_back",
        "place",
        "shown",
        "sorts",
    }


MOST_LINES = 60


def test_no_function_is_too_long_to_be_seen_at_once():
    long = [
        f"{path.relative_to(PACKAGE)}:{node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= MOST_LINES
    ]
    assert long == []


def test_code_cites_documents_and_rules_that_exist():
    root = PACKAGE.parent
    rules = set(re.findall(r"\*\*(R\d+)\.", (root / "docs" / "rules.md").read_text("utf-8")))
    for folder in (PACKAGE, root / "tests", root / "benchmarks"):
        for path in folder.rglob("*.py"):
            text = path.read_text("utf-8")
            cited = set(re.findall(r"\bdocs/[\w-]+\.md", text))
            assert [name for name in cited if not (root / name).exists()] == [], path
            numbers = re.findall(r"(R\d+)(?: to (R\d+))? of docs/rules\.md", text)
            assert {one for pair in numbers for one in pair if one} <= rules, path
            assert path == Path(__file__) or "DESIGN" not in text, f"{path}: cite docs/rules.md"
