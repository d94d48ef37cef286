"""Lists of random tables against the rules written out a list at a time in plain Python."""

import math
import random

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from test_evaluate_tables import written

from streameval.core.windows.tables import cluster_of
from streameval.evaluation.readers import ranked_tables
from streameval.evaluation.readers.ranked_tables import Tables, read_tables
from streameval.files.tables import batches


def random_rows(chance, ids, *, ranks, scores, by):
    """Slates in any order of rows: repeats, gaps, equal scores, scores that are empty."""
    lists = [ids(number) for number in range(12)]
    shown = []
    for _ in range(chance.randrange(1, 90)):
        name = chance.choice(lists)
        row = {"list": name, "item": ids(chance.randrange(9)), "user": f"of {name}"}
        if ranks:
            row["rank"] = chance.randrange(1, 15)
        if scores:
            near = chance.choice([0.0, -0.0, 1e-9])
            row["score"] = chance.choice([-1.5, 0.25, 0.25 + near, 3.0])
            if scores == "some" and chance.random() < 0.1:
                row["score"] = None
        if by:
            row["model"] = f"m{str(name)[-1] in '02468'}"
        shown.append(row)
    keys = [
        (ids(chance.randrange(15)), ids(chance.randrange(11)))
        for _ in range(chance.randrange(1, 60))
    ]
    gains = {key: chance.choice([-1.0, 0.0, 1.0, 2.5]) for key in keys}
    labels = [{"list": key[0], "item": key[1], "gain": gains[key]} for key in keys]
    if chance.random() < 0.3:
        for row in labels:
            row["gain"] = 1.0
    return shown, labels


def expected(shown, labels, *, ties, complete):
    """What each list is by the rules: see the docstring of `ranked_tables`."""
    single = np.float32 if ties == "trec" else float
    found = {}
    names = {row["list"] for row in shown} | {row["list"] for row in labels if complete}
    for name in names:
        rows = [(row, line) for line, row in enumerate(shown) if str(row["list"]) == str(name)]
        if ties == "trec":
            rows.sort(key=lambda row: str(row[0]["item"]).encode(), reverse=True)
        score = {line: row.get("score") for row, line in rows}
        # Sorting is stable; equal rows of `trec` lie in the order of the file.
        rows.sort(
            key=lambda row: -math.inf if score[row[1]] is None else single(score[row[1]]),
            reverse=True,
        )
        rows.sort(key=lambda row: row[0].get("rank") or math.inf)
        seen, kept = set(), []
        for row, line in rows:
            if str(row["item"]) not in seen:
                seen.add(str(row["item"]))
                kept.append((row, line))
        ranks, gap = [], 0
        for number, (row, _) in enumerate(kept, 1):
            gap = max(gap, (row.get("rank") or 0) - number)
            ranks.append(number + gap)
        scores = [score[line] for _, line in kept]
        places = [math.nan] * len(kept)
        if all(value is None for value in scores):
            places = [float(number) for number in range(1, len(kept) + 1)]
        elif None not in scores:
            places = [1 + sum(b > a for b in scores) + (scores.count(a) - 1) / 2 for a in scores]
        by_score = [
            single(row["score"])
            for row, _ in kept
            if row.get("rank") is None and row.get("score") is not None
        ]
        all_scores = [single(value) for value in scores if value is not None]
        gains = {}
        for row in labels:
            if str(row["list"]) == str(name):
                gains[str(row["item"])] = row["gain"]
        items = [str(row["item"]) for row, _ in kept]
        relevant = [
            (rank, gains[item], place)
            for rank, item, place in zip(ranks, items, places, strict=True)
            if gains.get(item, 0) > 0
        ]
        missing = sorted((g for i, g in gains.items() if g > 0 and i not in items), reverse=True)
        first = next((row for row in shown if row["list"] == name), {})
        found[str(name)] = (
            [*relevant, *((0, gain, 0.0) for gain in missing)],
            len(kept),
            cluster_of(str(first.get("user", name))),
            first.get("model", ""),
            bool(by_score),
            any(all_scores.count(value) > 1 for value in by_score),
        )
    return found


def as_read(batches):
    """The lists of batches in the same form, and how many are tied and scored."""
    found, tied, scored = {}, 0, 0
    for batch in batches:
        ends = np.cumsum(batch.relevant)
        flat = list(zip(batch.ranks, batch.gains, batch.score_ranks, strict=True))
        tied, scored = tied + batch.tied[0], scored + batch.tied[1]
        for row, name in enumerate(batch.ids):
            assert name not in found, "a list comes once"
            model = batch.names[batch.segments[row]]
            found[name] = (
                flat[ends[row] - batch.relevant[row] : ends[row]],
                batch.length[row],
                batch.checksums[row] & 255,
                model[0] if model else "",
            )
    return found, tied, scored


@pytest.mark.parametrize("case", range(30))
def test_lists_of_random_tables_are_those_of_the_rules(case, tmp_path, monkeypatch):
    """Ranks, scores or both; ties; ids as text or integers; several files and portions."""
    chance = random.Random(case)
    kind = chance.choice(["parquet", "jsonl"])
    ids = chance.choice([int, "é{}".format])
    ranks, scores = chance.choice([(None, "all"), ("all", None), ("all", "some"), ("all", "all")])
    by = ["model"] if chance.random() < 0.5 else []
    shown, labels = random_rows(chance, ids, ranks=ranks, scores=scores, by=by)
    if chance.random() < 0.5:  # rows of a list that lie together are cut in another way
        shown.sort(key=lambda row: str(row["list"]))
    if chance.random() < 0.5:
        for row in shown:
            del row["user"]
    cut = chance.randrange(len(shown))
    files = [
        written(tmp_path / f"s{number}.{kind}", rows)
        for number, rows in enumerate([shown[:cut], shown[cut:]])
        if rows
    ]
    told = [written(tmp_path / f"l.{kind}", labels)]
    for ties in ("input", "trec"):
        for complete in (True, False):
            wanted = expected(shown, labels, ties=ties, complete=complete)
            in_small_parts(monkeypatch, chance)
            tables = Tables(files, told, "tables", by, ties, complete)
            found, tied, scored = as_read(read_tables(tables, lambda _: None, []))
            assert repr(plain(found)) == repr(
                plain({name: row[:4] for name, row in wanted.items()})
            )
            assert scored == sum(row[4] for row in wanted.values())
            assert tied == sum(row[5] for row in wanted.values())


def in_small_parts(monkeypatch, chance):
    """Let rows come from DuckDB some at a time, and cut batches of a few lists."""
    parts = chance.choice([1, 3, 1_000_000])

    def few(rows):
        for part in batches(rows):
            yield from (part.slice(first, parts) for first in range(0, len(part), parts))

    monkeypatch.setattr(ranked_tables, "batches", few)
    monkeypatch.setattr(ranked_tables, "ROWS", chance.choice([1, 4, 1_000_000]))


def test_labels_of_lists_that_nobody_was_shown_are_lists_without_items(tmp_path):
    shown = tmp_path / "s.parquet"
    columns = {"list": pa.string(), "item": pa.string(), "rank": pa.int64()}
    pq.write_table(pa.table({name: pa.array([], sort) for name, sort in columns.items()}), shown)
    labels = [{"list": name, "item": "i", "gain": 1.0} for name in "abcde"]
    told = written(tmp_path / "l.parquet", labels)
    for complete, ids in ((True, set("abcde")), (False, set())):
        tables = Tables([str(shown)], [told], "tables", complete=complete)
        found, _, _ = as_read(read_tables(tables, lambda _: None, []))
        assert found.keys() == ids


def plain(lists):
    return {
        name: ([tuple(map(float, item)) for item in items], int(length), int(cluster), model)
        for name, (items, length, cluster, model) in sorted(lists.items())
    }


@pytest.mark.parametrize("case", range(12))
def test_what_was_seen_leaves_its_places_to_the_items_below(case, tmp_path):
    """Equal ranks, gaps and repeats among them: first every item has its place, then some go."""
    chance = random.Random(case)
    shown = [
        {"list": name, "item": f"i{chance.randrange(12)}", "user": f"u{name}"}
        | {"rank": chance.randrange(1, 12)}
        for name in "abcdef"
        for _ in range(8)
    ]
    seen = {(f"u{chance.choice('abcdef')}", f"i{chance.randrange(12)}") for _ in range(20)}
    wanted = {}
    for name in "abcdef":
        rows = sorted((row for row in shown if row["list"] == name), key=lambda row: row["rank"])
        places, gap, left_out = {}, 0, 0
        for row in rows:
            if row["item"] in places:
                continue
            number = len(places) + 1
            gap = max(gap, row["rank"] - number)
            left_out += (row["user"], row["item"]) in seen
            places[row["item"]] = number + gap - left_out
        kept = {item: place for item, place in places.items() if (f"u{name}", item) not in seen}
        wanted[name] = sorted(place for item, place in kept.items() if int(item[1:]) % 2)
    labels = [
        {"list": name, "item": f"i{item}", "gain": 1.0}
        for name in "abcdef"
        for item in (1, 3, 5, 7, 9, 11)
    ]
    files = [
        written(tmp_path / "shown.parquet", shown),
        written(tmp_path / "labels.parquet", labels),
        written(
            tmp_path / "seen.csv", [{"user": user, "item": item} for user, item in sorted(seen)]
        ),
    ]
    tables = Tables(files[:1], files[1:2], "tables", seen=files[2:])
    found, _, _ = as_read(read_tables(tables, lambda _: None, []))
    assert {
        name: [int(rank) for rank, _, _ in rows if rank] for name, (rows, *_) in found.items()
    } == wanted
