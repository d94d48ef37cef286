"""The report: one file that says everything, needs nothing, and is the same for equal input."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from evaluating import run
from msgspec.structs import replace
from typer.testing import CliRunner

from streameval.base.errors import InputError
from streameval.cli.app import app
from streameval.core.outcome import Outcome
from streameval.evaluation.compared import Compared
from streameval.evaluation.readers.outcomes import files_of
from streameval.evaluation.report.charts import compared_by_step, outcome_charts
from streameval.evaluation.report.curves import curves
from streameval.evaluation.report.plots import chart
from streameval.files.outcome_files import table
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, Scored, compare_ratios

START = 1_700_000_000_000


def slate(number: int, gains: list[float], *, score: float | None, items: list[str]) -> Outcome:
    size = len(gains)
    return Outcome(
        offset=number,
        user=f"u{number % 40}",
        request=f"r{number}",
        labels=("<A>" if number % 2 else "B", ""),
        time=START + number * 30_000,
        items=items,
        positions=[1, None, 3][:size],
        ranks=list(range(1, size + 1)),
        shown=[START] * size,
        scores=[score] * size,
        propensities=[None] * size,
        gains=gains,
        feedback=[],
    )


def outcomes(
    folder: Path, score: float | None = 0.25, count: int = 200, variant: str | None = None
) -> str:
    """Of three items the second is always positive, and `common` stands first in each slate."""
    rows = [
        slate(number, [0.0, 1.0, 0.0], score=score, items=["common", f"i{number % 50}", "last"])
        for number in range(count)
    ]
    rows[::2] = [
        replace(row, labels=(variant or row.labels[0], row.labels[1])) for row in rows[::2]
    ]
    folder.mkdir(exist_ok=True)
    path = folder / "outcomes.parquet"
    pq.write_table(table(0, rows, DIMENSIONS), path)
    return str(path)


def report(target: Path, *arguments: str) -> str:
    command = ["evaluate", *arguments, "--report", str(target)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return target.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    file = outcomes(tmp_path)
    pages = [report(tmp_path / f"{n}.html", file, "--by", "variant") for n in range(2)]
    assert pages[0] == pages[1]


def test_the_page_needs_no_network_and_no_script(tmp_path: Path) -> None:
    found = Elements(report(tmp_path / "r.html", outcomes(tmp_path)))
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    for name, value in found.attributes:
        if name in {"href", "xlink:href", "src"}:
            assert value.startswith("#"), value
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes


@pytest.mark.parametrize("variant", ["$a_$", "_a", "$", "中文", r"\frac", "__other__"])
def test_a_variant_may_have_any_name(
    tmp_path: Path, variant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = outcomes(tmp_path, count=20, variant=variant)
    page = report(tmp_path / "r.html", file, "--by", "variant", "--metrics", "mrr")
    chart = page[page.index('aria-label="Over time"') :].partition("</svg>")[0]
    for name in (variant, "&lt;A&gt;"):
        assert f">{name}</text>" in chart
    assert capsys.readouterr().err == ""


def test_ids_are_unique_and_references_lead_somewhere(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", outcomes(tmp_path))
    ids = [value for name, value in Elements(page).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page))
    assert {a or b for a, b in targets} <= set(ids)


def test_it_shows_figures_charts_formulas_and_checks(tmp_path: Path) -> None:
    checks = tmp_path / "checks.json"
    results = [
        {"name": "freshness", "passed": True, "severity": "error", "message": "5 min old"},
        {"name": "drift", "passed": False, "severity": "warning", "message": "items < moved"},
        {"name": "off_policy", "passed": None, "severity": "error", "message": "no propensities"},
    ]
    checks.write_text(json.dumps({"checks": results}))
    page = report(
        *(tmp_path / "r.html", outcomes(tmp_path), "--by", "variant"),
        *("--metrics", "mrr@10", "--checks", str(checks)),
    )
    for text in (
        *("Over time", "Precision and recall", "By rank", "Long tail", "Calibration"),
        *("mrr@10", "0.5000", "trec_eval recip_rank", "items &lt; moved", "not checked"),
        "&lt;A&gt;",
    ):
        assert text in page, text
    assert "<A>" not in page
    assert page.count("<svg") == 9


def test_colours_are_variables_for_light_and_dark_and_paper(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", outcomes(tmp_path))
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", page))
    assert {"--ink", "--grid", "--line-1"} <= used
    assert used <= set(re.findall(r"(--[a-z0-9-]+):", page))
    assert not re.search(r"#0[123]0[123]0[1-6]", page), "a stand-in for a colour is left"


def test_curves_are_the_counts_of_the_slates(tmp_path: Path) -> None:
    found = curves([outcomes(tmp_path)], ["variant"])
    assert found.rank == [(1, 0.0), (2, 1.0), (3, 0.0)]
    assert found.position == [(1, 0.0), (3, 0.0)], "the second item had no position"
    assert found.calibration == [(0.25, 1 / 3)]
    assert set(found.time) == {"<A>", "B"}
    assert all(y == 1 / 3 for points in found.time.values() for _, y in points)
    # 200 slates, one in 30 s: 100 minutes in steps of 5.
    assert found.step == 300_000
    # common, last and 50 others; the first of 52 has a third of the impressions and no positive.
    assert found.items == 52
    assert found.tail[0] == (0.0, 0.0)
    assert found.tail[1] == (1 / 52, 1 / 3)
    assert found.tail_positives[1] == (1 / 52, 0.0)
    assert found.tail[-1] == found.tail_positives[-1] == (1.0, 1.0)


def test_the_band_over_time_is_clustered_by_user(tmp_path: Path) -> None:
    """The same as from users' own sums; one step, and a segment of one user has no band."""
    gains = [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0]]
    names = ["x", "y", "z"]
    rows = [
        slate(number, each, score=None, items=names[: len(each)])
        for number, each in enumerate(gains * 4)
    ]
    rows = [replace(row, user=f"u{n % 3}", time=START) for n, row in enumerate(rows)]
    rows.append(replace(rows[0], labels=("alone", ""), user="one"))
    path = tmp_path / "outcomes.parquet"
    pq.write_table(table(0, rows, DIMENSIONS), path)
    found = curves([str(path)], ["variant"])
    assert np.isnan(found.time_errors["alone"]).all()
    for arm in ("<A>", "B"):
        sums: dict[str, list[float]] = {}
        for row in rows:
            if row.labels[0] == arm:
                x, y = sums.setdefault(row.user, [0.0, 0.0])
                sums[row.user] = [x + sum(row.gains), y + len(row.gains)]
        positives, impressions = (sum(each) for each in zip(*sums.values(), strict=True))
        ratio = positives / impressions
        without = [(positives - x) / (impressions - y) - ratio for x, y in sums.values()]
        error = (sum(by**2 for by in without) * (len(sums) - 1) / len(sums)) ** 0.5
        assert found.time[arm][0][1] == pytest.approx(ratio)
        assert found.time_errors[arm] == [pytest.approx(error)]


def test_differences_are_drawn_as_a_forest_over_time_and_by_arm(tmp_path: Path) -> None:
    file = outcomes(tmp_path)
    arms = ("--by", "variant", "--against", "B", "--metrics", "mrr,ndcg@3")
    page = report(tmp_path / "r.html", file, *arms)
    forest = page[page.index('aria-label="Differences from the control"') :].partition("</svg>")[0]
    for label in ("mrr · &lt;A&gt;", "ndcg@3 · &lt;A&gt;"):
        assert f">{label}</text>" in forest
    assert 'aria-label="Differences over time"' in page
    for title in ("Over time", "Precision and recall", "Precision at recall"):
        drawn = page[page.index(f'aria-label="{title}"') :].partition("</svg>")[0]
        assert ">B</text>" in drawn, "a line for each arm"
    without = report(tmp_path / "w.html", file, "--by", "variant", "--metrics", "mrr")
    assert "Differences" not in without


def test_a_band_is_interrupted_with_its_line() -> None:
    minutes = [(60_000.0 * at, 0.1) for at in (0, 1, 2, 6, 7, 8)]
    band = [(at, value - 0.05, value + 0.05) for at, value in minutes]
    svg = chart("t", {"a": minutes}, x="time", y="rate", time_step=60_000, bands={"a": [band]})
    assert svg.count("fill-opacity: 0.18") == 2


def test_a_legend_names_bands_within_one_another() -> None:
    points = [(60_000.0 * at, 0.1) for at in range(3)]
    bands = [[(at, value - r, value + r) for at, value in points] for r in (0.2, 0.1)]
    named = {"bands": {"a": bands}, "band_names": ("all looks", "one look"), "signed": True}
    svg = chart("t", {"a": points}, x="time", y="rate", time_step=60_000, **named)
    for text in ("a", "all looks", "one look"):
        assert f">{text}</text>" in svg
    opacities = re.findall(r"(?<!-)\b(?:fill-)?opacity: ([\d.]+)", svg)
    assert sorted({*opacities}) == ["0.18", "0.3276"]


def test_differences_over_time_are_of_all_slates_so_far(tmp_path: Path) -> None:
    """Users come back, so the sums of a user grow: the bounds are those of the users' whole sums.

    Of arm B the last steps have no slates: its sums stay.
    """
    chance = random.Random(11)
    rows = []
    for number in range(3_000):
        user = chance.randrange(700)
        arm = "AB"[user % 2]
        if arm == "B" and number > 2_500:
            continue
        gains = [float(chance.random() < (0.2 if arm == "A" else 0.3)) for _ in range(3)]
        one = slate(number, gains, score=None, items=["x", "y", "z"])
        rows.append(replace(one, user=f"u{user}", labels=(arm, "")))
    path = tmp_path / "outcomes.parquet"
    pq.write_table(table(0, rows, DIMENSIONS), path)
    found = curves([str(path)], ["variant"])
    steps = list(compared_by_step(found.so_far["B"], found.so_far["A"]))
    assert [at for at, _ in steps] == sorted({row.time // found.step * found.step for row in rows})
    bounded = 0
    for at, scored in steps:
        until = [row for row in rows if row.time < at + found.step]
        whole = compare_ratios(*(sums_of(until, arm) for arm in "BA"), Rules())
        for part in ("difference", "low", "high", "once_low", "once_high"):
            assert getattr(scored, part) == pytest.approx(getattr(whole, part)), part
        bounded += scored.low is not None
        if scored.low is not None:
            assert scored.low < scored.once_low < scored.once_high < scored.high
    assert 10 < bounded < len(steps), "the first steps have too few users"
    shown = outcome_charts(found, ["variant"], [compared_arm("B", "A")])
    (drawn,) = (each for each in shown if 'aria-label="Differences over time"' in each)
    for text in ("B − A", "all looks", "one look"):
        assert f">{text}</text>" in drawn


def sums_of(rows: list[Outcome], arm: str) -> ClusterSums:
    """Positives and impressions of an arm by cluster of users."""
    x, y = np.zeros((2, 256), np.int64)
    own = [row for row in rows if row.labels[0] == arm]
    for row in own:
        cluster = crc32(row.user.encode()) % 256
        x[cluster] += int(sum(row.gains))
        y[cluster] += len(row.gains)
    return ClusterSums(x, y, len({row.user for row in own}))


def compared_arm(arm: str, control: str) -> Compared:
    return Compared(metric="mrr", arm=arm, control=control, users=0, scored=Scored(None, None))


def test_the_line_over_time_is_interrupted_where_there_is_no_slate() -> None:
    def lines(points: list[tuple[float, float]]) -> int:
        """How often a line is begun: the `M` of the path that has no markers."""
        svg = chart("t", {"": points}, x="time", y="rate", time_step=60_000)
        (path,) = re.findall(r'<path d="([^"]*)"[^>]*stroke-width: 1.4', svg)
        return path.count("M")

    minutes = [(60_000.0 * at, 0.1) for at in range(10)]
    assert lines(minutes) == 1
    assert lines(minutes[:3] + minutes[6:]) == 2
    assert lines(minutes[:3] + minutes[5:7] + minutes[9:]) == 3


def test_rows_in_many_files_are_drawn_as_those_in_one(tmp_path: Path) -> None:
    one, folder = outcomes(tmp_path, count=225), tmp_path / "many"
    rows = pq.read_table(one)
    folder.mkdir()
    begin, gains = 0, rows.schema.get_field_index("gains")
    for number in range(150):
        part = rows.slice(begin, number % 4)  # some have no row
        begin += len(part)
        if number % 5 == 0:
            wide = part.column(gains).cast(pa.large_list(pa.float64()))
            part = part.set_column(gains, "gains", wide)
        pq.write_table(part, folder / f"{number:03}.parquet")
    assert begin == len(rows) - 2
    pq.write_table(rows.slice(0, begin), one)

    several, alone = (curves(files, ["variant"]) for files in (files_of([str(folder)]), [one]))
    assert repr(several) == repr(alone)
    options = ("--by", "variant", "--metrics", "ndcg@2,hit_rate@2")
    assert run(str(folder), *options) == run(one, *options)


def test_a_column_that_some_of_many_files_lack_is_unknown_there(tmp_path: Path) -> None:
    rows = pq.read_table(outcomes(tmp_path, count=120))
    for number in range(120):
        part = rows.slice(number, 1)
        lacking = part.drop_columns("positions") if number < 20 else part
        pq.write_table(lacking, tmp_path / f"{number:03}.parquet")
    found = curves([str(tmp_path / f"{number:03}.parquet") for number in range(120)], [])
    assert found.rank == [(1, 0.0), (2, 1.0), (3, 0.0)]
    assert found.position == [(1, 0.0), (3, 0.0)]


def test_scores_that_are_no_probabilities_are_not_compared_with_rates(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", outcomes(tmp_path, score=7.5))
    assert "cannot be compared with observed shares" in page
    assert curves([outcomes(tmp_path, score=None)], []).calibration == []


def test_files_without_a_slate_still_give_a_page(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", outcomes(tmp_path, count=0))
    assert "0 ranked lists" in page
    assert "<svg" not in page


def test_a_run_is_reported_with_its_curves_and_its_ties(tmp_path: Path) -> None:
    """Topic 1 has its two items at ranks 2 and 3 of 3, topic 2 its one at rank 1, tied.

    Interpolated precision of topic 1 is 2/3 up to a recall of 1, since it is higher further down.
    """
    run, qrels = tmp_path / "run", tmp_path / "qrels"
    run.write_text(
        "1 Q0 d1 1 3.0 x\n1 Q0 d2 2 2.0 x\n1 Q0 d3 3 1.0 x\n2 Q0 a 1 1.0 x\n2 Q0 b 2 1.0 x\n"
    )
    qrels.write_text("1 0 d2 1\n1 0 d3 1\n2 0 b 1\n")
    page = report(tmp_path / "r.html", "--run", str(run), "--qrels", str(qrels))
    assert page.count("<svg") == 7
    assert "Precision at recall" in page
    cells = re.findall(r'<td class="number">(\d\.\d)</td><td class="number">(\d\.\d{4})</td>', page)
    assert cells == [(f"{level / 10:.1f}", f"{(2 / 3 + 1) / 2:.4f}") for level in range(11)]
    assert "1 of 2 lists that are in order of score have equal scores" in page


def test_figures_without_lists_or_ratings_have_a_page_without_charts(tmp_path: Path) -> None:
    samples = tmp_path / "s.csv"
    samples.write_text("list,item,score,positive\n<l>,a,2,1\n<l>,b,1,0\n")
    page = report(tmp_path / "r.html", "--sampled", str(samples))
    assert "s.csv" in page
    assert "<svg" not in page
    assert "Share of samples in which" in page


def test_results_of_something_else_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    for text in ("{", "[]", '{"checks": [{"name": "x", "passed": "yes"}]}'):
        other.write_text(text)
        with pytest.raises(InputError, match="--checks"):
            report(tmp_path / "r.html", outcomes(tmp_path), "--checks", str(other))
