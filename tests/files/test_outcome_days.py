"""Days of outcome files: the same rows through copies, which are of the files that are there."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clean_service import clean, results
from default_events import DIMENSIONS
from test_outcomes import HOUR, OWNER, TIME, an_outcome

from streameval.base.errors import InputError, UnreachableError
from streameval.core.outcome import Span
from streameval.files import outcome_days, outcome_reader, users_past
from streameval.files.locations import UnreadableError
from streameval.files.outcome_days import FEW, OutcomeDays, discard_unused
from streameval.files.outcome_files import OutcomeFolder, dataset, schema_at
from streameval.files.users_past import SERVED_MS, files_before, rows_before

DAY, NEXT = "2023-11-14", "2023-11-15"
FILES = FEW + 3


@pytest.fixture
def folder(tmp_path):
    """Many files in the hour of `TIME`, one in the next hour, and one on the next day."""
    opened = OutcomeFolder(str(tmp_path / "out"), OWNER, {"version": "0"}, DIMENSIONS)
    opened.check()
    for number in range(FILES):
        put(opened, number)
    put(opened, FILES, TIME + HOUR)
    put(opened, FILES + 1, TIME + 2 * HOUR)
    return opened


def put(folder, number, time=TIME):
    span = Span(0, number, number + 1, "aa")
    folder.write(span, [an_outcome(number, time)])
    folder.publish(span.name)


def days_of(folder, dimensions=DIMENSIONS):
    return OutcomeDays(folder.root, dimensions, copies_of(folder))


def copies_of(folder):
    return Path(folder.root).parent / "copies"


def copies(folder):
    return sorted(copies_of(folder).rglob("*.parquet"))


def rows_of(source):
    return sorted(source.to_table().to_pylist(), key=lambda row: row["offset"])


def a_file(folder, number):
    (path,) = Path(folder.root).glob(f"dt=*/hour=*/p0-{number}-*.parquet")
    return path


# --- the same rows --------------------------------------------------------------------------------


def test_the_rows_are_those_of_the_files_and_an_hour_of_many_is_one_copy(folder):
    days = days_of(folder)
    assert days.days == [DAY, NEXT]
    whole = rows_of(days.dataset(DAY, NEXT))
    assert whole == rows_of(dataset(folder.root, DIMENSIONS))
    assert [row["offset"] for row in whole] == list(range(FILES + 2))
    (copy,) = copies(folder)
    assert copy.parent == copies_of(folder) / "dt=2023-11-14" / "hour=22"
    assert rows_of(days.dataset(NEXT, NEXT)) == whole[-1:]
    assert rows_of(days.dataset("2023-11-16", "2023-11-17")) == []


def test_a_folder_may_be_named_from_here(folder, monkeypatch):
    monkeypatch.chdir(Path(folder.root).parent)
    days = OutcomeDays("out", DIMENSIONS, Path("copies"))
    assert rows_of(days.dataset(DAY, NEXT)) == rows_of(dataset(folder.root, DIMENSIONS))
    assert len(copies(folder)) == 1


@pytest.mark.parametrize("group", [1, 3, FILES - 1, FILES, 65_536])
def test_a_copy_is_written_in_portions(folder, monkeypatch, group):
    monkeypatch.setattr(outcome_reader, "ROW_GROUP", group)
    found = rows_of(days_of(folder).dataset(DAY, NEXT))
    assert found == rows_of(dataset(folder.root, DIMENSIONS))


def test_a_file_without_a_dimension_has_null_for_it_in_a_copy_too(folder):
    dimensions = [*DIMENSIONS, "added"]
    found = rows_of(days_of(folder, dimensions).dataset(DAY, DAY))
    assert {row["added"] for row in found} == {None}
    assert [row["offset"] for row in found] == list(range(FILES + 1))
    plain = rows_of(days_of(folder).dataset(DAY, DAY))
    assert "added" not in plain[0]
    assert len(copies(folder)) == 2


def test_checks_find_the_same_over_copies(tmp_path, monkeypatch):
    service = clean(tmp_path)

    def found():
        return [replace(one, seconds=0.0) for one in results(service).values()]

    before = found()
    monkeypatch.setattr(outcome_days, "FEW", 0)
    assert found() == before
    assert {one.passed for one in before} == {True}


def rows_of_a_day(folder, end, column="variant"):
    files = list(files_before(folder.root, copies_of(folder), column, end))
    return files, list(rows_before(files, column, end))


def test_slates_before_an_experiment_are_read_from_copies(folder, monkeypatch):
    """Its past never changes, and each snapshot looks at it."""
    end = TIME + HOUR + 1
    files, rows = rows_of_a_day(folder, end)
    assert [str(copies_of(folder)) in file for file in files] == [False, True], "newest hour first"
    assert sorted(rows) == sorted((f"u{number}", "A") for number in range(FILES + 1))
    alone = {str(a_file(folder, number)): schema_at(files[0]) for number in (FILES, FILES + 1)}
    monkeypatch.setattr(users_past, "schema_at", alone.__getitem__)
    assert rows_of_a_day(folder, end) == (files, rows)
    assert rows_of_a_day(folder, TIME - HOUR) == ([], [])
    _, after = rows_of_a_day(folder, TIME + HOUR + SERVED_MS)
    assert sorted(after) == [(f"u{number}", "A") for number in (FILES, FILES + 1)]


def test_a_store_that_does_not_answer_once_leaves_no_copy_without_its_rows(folder, monkeypatch):
    away = str(a_file(folder, 2))

    def hiccup(name):
        if name == away:
            raise UnreachableError("away")
        return schema_at(name)

    monkeypatch.setattr(users_past, "schema_at", hiccup)
    with pytest.raises(UnreachableError):
        rows_of_a_day(folder, TIME + HOUR)
    monkeypatch.setattr(users_past, "schema_at", schema_at)
    assert len(rows_of_a_day(folder, TIME + HOUR)[1]) == FILES


def test_files_that_tell_nothing_of_the_time_before_are_left_out(folder):
    lacking = a_file(folder, 1)
    pq.write_table(pq.ParquetFile(lacking).read().drop_columns(["variant"]), lacking)
    a_file(folder, 3).write_bytes(b"not Parquet")
    rest = sorted((f"u{number}", "A") for number in range(FILES) if number not in {1, 3})
    files, rows = rows_of_a_day(folder, TIME + HOUR)
    assert (len(files), sorted(rows)) == (1, rest)
    damaged = a_file(folder, 4)
    content = damaged.read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    damaged.write_bytes(content[:4] + bytes(end - 4) + content[end:])
    files, rows = rows_of_a_day(folder, TIME + HOUR)
    assert (len(files), sorted(rows)) == (FILES, [row for row in rest if row[0] != "u4"])
    assert rows_of_a_day(folder, TIME + HOUR, "absent")[1] == []


# --- which copy -----------------------------------------------------------------------------------


def test_a_copy_is_found_again_until_the_files_change(folder):
    """As they do while rows come, and where a store went back and rows were written again."""
    days_of(folder).dataset(DAY, DAY)
    (first,) = copies(folder)
    written = first.stat().st_ino
    days_of(folder).dataset(DAY, DAY)
    assert [path.stat().st_ino for path in copies(folder)] == [written]
    a_file(folder, 2).unlink()
    again = Span(0, 2, 3, "bb")
    folder.write(again, [an_outcome(2, items=["c", "d"])])
    folder.publish(again.name)
    found = rows_of(days_of(folder).dataset(DAY, DAY))
    assert found[2]["items"] == ["c", "d"]
    assert len(copies(folder)) == 2


def test_a_file_that_was_written_over_is_another_one(folder):
    days_of(folder).dataset(DAY, DAY)
    path = a_file(folder, 1)
    rows = pq.ParquetFile(path).read().to_pylist()
    schema = pq.ParquetFile(path).schema_arrow
    pq.write_table(pa.Table.from_pylist([rows[0] | {"user": "x" * 99}], schema), path)
    assert rows_of(days_of(folder).dataset(DAY, DAY))[1]["user"] == "x" * 99


def test_two_folders_share_a_folder_of_copies(folder, tmp_path):
    other = OutcomeFolder(str(tmp_path / "other"), OWNER, {"version": "0"}, DIMENSIONS)
    other.check()
    for number in range(FILES):
        put(other, number + 100)
    assert len(rows_of(days_of(folder).dataset(DAY, DAY))) == FILES + 1
    assert rows_of(days_of(other).dataset(DAY, DAY))[0]["offset"] == 100


def test_copies_that_nobody_uses_go(folder):
    days_of(folder).dataset(DAY, DAY)
    (first,) = copies(folder)
    left = first.with_name("_99-left.parquet")  # of a process that died
    left.touch()
    for path in (first, left):
        os.utime(path, (0, 0))
    put(folder, FILES + 5)
    begun = time.time()
    days_of(folder).dataset(DAY, DAY)
    discard_unused(copies_of(folder), begun)
    (second,) = copies(folder)
    assert second != first
    days_of(folder).dataset(DAY, DAY)
    discard_unused(copies_of(folder), begun)
    assert copies(folder) == [second], "what was used again stays"
    discard_unused(copies_of(folder), time.time() + 1)
    assert list(copies_of(folder).iterdir()) == []
    discard_unused(copies_of(folder) / "none", time.time())


# --- what goes wrong ------------------------------------------------------------------------------


def test_only_the_days_that_are_asked_for_are_opened(folder):
    a_file(folder, FILES + 1).write_bytes(b"not Parquet")
    assert len(rows_of(days_of(folder).dataset(DAY, DAY))) == FILES + 1


def test_a_damaged_file_is_an_error_and_leaves_no_copy(folder):
    a_file(folder, 3).write_bytes(b"not Parquet")
    with pytest.raises(UnreadableError, match=r"^outcomes: a file cannot be read \(.*p0-3-4-aa"):
        days_of(folder).dataset(DAY, DAY)
    assert [path for path in copies_of(folder).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["{}", "file://{}"])
def test_a_damaged_file_is_no_store_that_is_away(folder, name):
    """Whoever waits for the store would wait for ever."""
    path = a_file(folder, 3)
    path.write_bytes(b"not Parquet")
    with pytest.raises(UnreadableError, match="p0-3-4-aa"):
        schema_at(name.format(path))


@pytest.mark.parametrize("number", [1, FILES])
def test_a_file_of_another_shape_is_named(folder, number):
    path = a_file(folder, number)
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["gains"]), path)
    with pytest.raises(InputError, match=f"p0-{number}-.*: no column gains: not an outcome file"):
        days_of(folder).dataset(DAY, DAY)


def test_a_file_that_goes_before_it_is_copied_is_an_error_of_the_world(folder, monkeypatch):
    whole_rows, gone = outcome_days.whole_rows, a_file(folder, 3)

    def late(*given):
        gone.unlink(missing_ok=True)
        return whole_rows(*given)

    monkeypatch.setattr(outcome_days, "whole_rows", late)
    with pytest.raises(UnreachableError, match="outcomes: a file cannot be read"):
        days_of(folder).dataset(DAY, DAY)


def test_copies_that_cannot_be_written_are_an_error_of_the_world(folder):
    copies_of(folder).touch()
    with pytest.raises(UnreachableError, match=r"copies/dt=.* cannot be used now \(.*Not a dir"):
        days_of(folder).dataset(DAY, DAY)
