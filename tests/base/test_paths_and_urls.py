"""Paths and URLs are read alike by every Python that streameval runs on."""

from __future__ import annotations

import pytest

from streameval.base import paths
from streameval.base.urls import split_url


@pytest.mark.parametrize("ask", [paths.exists, paths.is_file, paths.is_folder])
def test_a_path_that_cannot_be_looked_at_is_not_taken_for_an_absent_one(ask, tmp_path):
    assert not ask(tmp_path / "absent")
    assert not ask(tmp_path / "nul\0")
    (tmp_path / "file").write_text("")
    assert not ask(tmp_path / "file" / "below")
    with pytest.raises(OSError, match="too long"):
        ask(tmp_path / ("a" * 300))


def test_files_are_told_from_folders(tmp_path):
    (tmp_path / "file").write_text("")
    assert [paths.is_file(tmp_path / "file"), paths.is_folder(tmp_path / "file")] == [True, False]
    assert [paths.is_file(tmp_path), paths.is_folder(tmp_path)] == [False, True]
    assert paths.exists(str(tmp_path))


def test_a_url_may_name_several_hosts_of_which_some_are_addresses():
    url = split_url("REDIS+cluster://user:p@a:1,b:2,[::1]:3/0?x=1#f")
    assert tuple(url) == ("redis+cluster", "user:p@a:1,b:2,[::1]:3", "/0", "x=1", "f")
    assert url.username == "user"
    assert url.geturl() == "redis+cluster://user:p@a:1,b:2,[::1]:3/0?x=1#f"
    assert tuple(split_url("no URL")) == ("", "", "no URL", "", "")
