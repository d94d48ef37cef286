"""Evaluate on large outcome files: six metrics at 10, Parquet on disk to figures.

The same lists as slates and labels are the second way. Each run is a process of its own: its CPU
seconds (start and imports included) and its largest memory. Files are made once by a seed, in the
folder given. RecTools and pytrec_eval run on the smaller file where they are installed (`pip
install rectools pytrec-eval-terrier`); reading the file counts for them too.

    python benchmarks/offline.py --folder .cache/offline --slates 1000000 --slates 10000000
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streameval.files.outcome_files import ROW_GROUP, schema_of

ITEMS: Final = 10
CATALOGUE: Final = 50_000
POSITIVE: Final = 0.08
SLATES_A_USER: Final = 5
PEER_SLATES: Final = 1_000_000
"""What the other libraries are given: they hold the file in memory, several times."""

SCHEMA = schema_of(("variant", "surface"))


def rows(start: int, count: int, users: int, chance: np.random.Generator) -> pa.Table:
    """`count` slates of ten items, from offset `start` on."""
    size = count * ITEMS
    starts = pa.array(np.arange(count + 1, dtype=np.int32) * ITEMS)
    times = 1_700_000_000_000 + np.arange(start, start + count) * 100
    user = chance.integers(0, users, count)
    gains = (chance.random(size) < POSITIVE) * chance.choice([1.0, 3.0], size, p=[0.9, 0.1])
    where = np.flatnonzero(gains)
    clicks = (gains > 0).reshape(count, ITEMS).sum(axis=1)
    feedback = pa.StructArray.from_arrays(
        [
            pa.array((where % ITEMS).astype(np.int16)),
            pa.array(["click"] * len(where)),
            pa.array(np.ones(len(where))),
            pa.array(chance.integers(0, 900_000, len(where))),
            pa.array(np.zeros(len(where), bool)),
        ],
        fields=list(SCHEMA.field("feedback").type.value_type),
    )
    # No item twice in a slate: a random first one and those after it, far apart.
    first = chance.integers(0, CATALOGUE, count)
    item = (first[:, None] + np.arange(ITEMS) * 4_999) % CATALOGUE
    places = np.tile(np.arange(1, ITEMS + 1, dtype=np.int16), count)
    flat = {
        "items": pa.array([f"item-{number:05d}" for number in range(CATALOGUE)]).take(
            pa.array(item.ravel())
        ),
        "positions": places,
        "ranks": places,
        "shown": np.repeat(times, ITEMS),
        "scores": chance.random(size).round(4),
        "propensities": np.full(size, 0.1),
        "gains": gains,
    }
    columns: dict[str, Any] = {
        "partition": np.zeros(count, np.int32),
        "offset": np.arange(start, start + count),
        "request": [f"request-{number}" for number in range(start, start + count)],
        "user": [f"user-{number}" for number in user],
        "variant": np.array(["control", "treatment"])[user % 2],
        "surface": ["home"] * count,
        "time": times,
        "feedback": pa.ListArray.from_arrays(
            pa.array(np.concatenate(([0], np.cumsum(clicks))).astype(np.int32)), feedback
        ),
        **{
            name: pa.ListArray.from_arrays(
                starts, pa.array(values, SCHEMA.field(name).type.value_type)
            )
            for name, values in flat.items()
        },
    }
    # What no figure here needs (whether a list is a fallback, its latency) is unknown.
    unknown = [None] * count
    return pa.table(
        [pa.array(columns.get(field.name, unknown), field.type) for field in SCHEMA], SCHEMA
    )


def made(folder: pathlib.Path, slates: int) -> pathlib.Path:
    """The file of so many slates, written if it is not there."""
    path = folder / f"slates-{slates}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        chance = np.random.default_rng(1)
        passing = path.with_suffix(".partial")
        with pq.ParquetWriter(passing, SCHEMA, compression="zstd") as writer:
            for start in range(0, slates, ROW_GROUP):
                count = min(ROW_GROUP, slates - start)
                part = rows(start, count, max(slates // SLATES_A_USER, 2), chance)
                writer.write_table(part, row_group_size=ROW_GROUP)
        passing.rename(path)
    return path


def as_tables(path: pathlib.Path) -> None:
    """Write the same lists as slates and labels beside a file, if they are not there."""
    shown, labels = _tables_beside(path)
    if shown.exists():
        return
    with contextlib.ExitStack() as open_files:
        writers = {}
        for part in pq.ParquetFile(path).iter_batches(columns=["request", "items", "gains"]):
            item, gain = (pc.list_flatten(part.column(name)) for name in ("items", "gains"))
            whose = part.column("request").take(pa.array(np.arange(len(item)) // ITEMS))
            rank = np.tile(np.arange(1, ITEMS + 1), len(part))
            rows = pa.table({"list": whose, "item": item, "rank": rank, "gain": gain})
            for file, table in (
                (shown, rows.drop_columns("gain")),
                (labels, rows.filter(pc.greater(gain, 0)).drop_columns("rank")),
            ):
                if file not in writers:
                    writer = pq.ParquetWriter(file, table.schema, compression="zstd")
                    writers[file] = open_files.enter_context(writer)
                writers[file].write_table(table)


def _tables_beside(path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    return path.with_suffix(".shown.parquet"), path.with_suffix(".labels.parquet")


def tables(path: str) -> dict[str, float]:
    shown, labels = _tables_beside(pathlib.Path(path))
    return streameval(str(shown), "--labels", str(labels))


def streameval(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "streameval.cli.app", "evaluate", *arguments, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout)["figures"]
    return {name: figure["value"] for name, figure in figures.items()}


def lists_of(path: str) -> tuple[list[list[str]], list[list[float]]]:
    table = pq.read_table(path, columns=["items", "gains"])
    return table["items"].to_pylist(), table["gains"].to_pylist()


def pytrec_eval(path: str) -> dict[str, float]:
    import pytrec_eval as library

    names = {
        "P_10": "precision@10",
        "recall_10": "recall@10",
        "ndcg_cut_10": "ndcg@10",
        "map_cut_10": "map@10",
        "recip_rank": "mrr@10",
        "success_10": "hit_rate@10",
    }
    run, qrels = {}, {}
    for number, (items, gains) in enumerate(zip(*lists_of(path), strict=True)):
        run[str(number)] = {item: float(ITEMS - place) for place, item in enumerate(items)}
        qrels[str(number)] = {item: int(gain) for item, gain in zip(items, gains, strict=True)}
    measures = {"P.10", "recall.10", "ndcg_cut.10", "map_cut.10", "recip_rank", "success.10"}
    found = library.RelevanceEvaluator(qrels, measures).evaluate(run)
    return {
        name: sum(scores[measure] for scores in found.values()) / len(found)
        for measure, name in names.items()
    }


def rectools(path: str) -> dict[str, float]:
    import pandas as pd
    from rectools import Columns, metrics

    table = pq.read_table(path, columns=["items", "gains"])
    items = pc.list_flatten(table["items"]).combine_chunks().dictionary_encode().indices
    gains = pc.list_flatten(table["gains"]).to_numpy()
    slates = table.num_rows
    shown = pd.DataFrame(
        {
            Columns.User: np.repeat(np.arange(slates), ITEMS),
            Columns.Item: items.to_numpy(),
            Columns.Rank: np.tile(np.arange(1, ITEMS + 1), slates),
        }
    )
    relevant = shown.loc[gains > 0, [Columns.User, Columns.Item]]
    wanted = {
        "precision@10": metrics.Precision(k=ITEMS),
        "recall@10": metrics.Recall(k=ITEMS),
        "ndcg@10": metrics.NDCG(k=ITEMS),
        "map@10": metrics.MAP(k=ITEMS),
        "mrr@10": metrics.MRR(k=ITEMS),
        "hit_rate@10": metrics.HitRate(k=ITEMS),
    }
    found = metrics.calc_metrics(wanted, reco=shown, interactions=relevant)
    # Lists without a positive are left out of its means.
    share = relevant[Columns.User].nunique() / slates
    return {name: value * share for name, value in found.items()}


WAYS: Final = {
    "streameval": streameval,
    "slates and labels": tables,
    "pytrec_eval": pytrec_eval,
    "rectools": rectools,
}


def measure(way: str, path: pathlib.Path) -> None:
    """Run one way in a process of its own and print its line."""
    began = time.perf_counter()
    command = [sys.executable, __file__, "--way", way, "--file", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"| {way} | {path.stem} | failed: {done.stderr.strip().splitlines()[-1]} | | | |")
        return
    answer = json.loads(done.stdout)
    print(
        f"| {way} | {path.stem} | {answer['cpu']:.2f} | {time.perf_counter() - began:.1f} |"
        f" {answer['memory']:.0f} | {answer['figures']['map@10']:.9f} |",
        flush=True,
    )


def child(way: str, path: str) -> None:
    figures = WAYS[way](path)
    # streameval is a child of its own: only its process counts.
    ours = way in ("streameval", "slates and labels")
    who = resource.RUSAGE_CHILDREN if ours else resource.RUSAGE_SELF
    used = resource.getrusage(who)
    answer = {
        "cpu": used.ru_utime + used.ru_stime,
        "memory": used.ru_maxrss / 1024,
        "figures": figures,
    }
    print(json.dumps(answer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(".cache/offline"))
    parser.add_argument("--slates", type=int, action="append")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        child(options.way, options.file)
        return
    sizes = options.slates or [1_000_000, 10_000_000]
    print("| way | file | CPU s | seconds | MB | map@10 |\n| --- | --- | --- | --- | --- | --- |")
    for slates in sizes:
        path = made(options.folder, slates)
        measure("streameval", path)
        as_tables(path)
        measure("slates and labels", path)
        for peer in ("pytrec_eval", "rectools"):
            if slates <= PEER_SLATES and importlib.util.find_spec(peer):
                measure(peer, path)


if __name__ == "__main__":
    main()
