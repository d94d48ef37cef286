"""Programs that tests start: old ones, broken ones and what PATH names decide nothing."""

import re
from pathlib import Path

import programs
import pytest

HERE = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for look-alikes, the only one that is looked at and the first on PATH."""
    monkeypatch.setattr(programs, "FOLDERS", [str(tmp_path)])
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CI", raising=False)
    programs.look_up.cache_clear()
    yield tmp_path
    programs.look_up.cache_clear()


def look_alike(folder, name, script):
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("name", "said", "version"),
    [
        ("redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1", "7.0.15"),
        ("redis-cli", "redis-cli 8.2.1", "8.2.1"),
        ("kcat", "kcat - tool\nCopyright (c) 2014-2021, N. N.\nVersion 1.7.1 (JSON)", "1.7.1"),
        ("promtool", "promtool, version 2.42.0+ds (branch: debian/sid)\n go: go1.19.8", "2.42.0"),
        ("java", "openjdk 17 2021-09-14\nOpenJDK Runtime Environment (build 17+35)", "17"),
        ("javac", "javac 21.0.4", "21.0.4"),
        ("openssl", "OpenSSL 3.0.19 27 Jan 2026 (Library: OpenSSL 3.0.19)", "3.0.19"),
        ("chromium", "Chromium 156.0.8078.79 built on Debian", "156.0.8078.79"),
    ],
)
def test_a_program_of_a_supported_version_is_used(folder, name, said, version):
    (folder / "said").write_text(said)
    look_alike(folder, name, f"cat {folder}/said")
    assert programs.need(name) == str(folder / name)
    assert programs.version_of(folder / name, programs.PROGRAMS[name].asks) == version


@pytest.mark.parametrize(
    ("name", "script", "wrong"),
    [
        (
            "redis-server",
            "echo Redis server v=6.2.14",
            "is version 6.2.14, tests need 7.0 or later",
        ),
        ("java", "echo 'openjdk 9.0.4 2018-01-16'", "is version 9.0.4, tests need 17 or later"),
        ("promtool", "echo promtool, version 2.9.0", "is version 2.9.0, tests need 2.42 or later"),
        ("kcat", "exit 1", "says no version, tests need 1.7 or later"),
        ("chromium", "echo 200.0; exit 1", "says no version, tests need 110 or later"),
        ("openssl", "echo hello", "says no version, tests need 3.0 or later"),
    ],
)
def test_an_old_or_broken_program_skips_and_fails_in_ci(folder, monkeypatch, name, script, wrong):
    look_alike(folder, name, script)
    cure = f"{folder}/{name} {wrong}: apt-get install {programs.PROGRAMS[name].package}, or .ci/run"
    with pytest.raises(pytest.skip.Exception, match=f"^{re.escape(cure)}"):
        programs.need(name)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"^{re.escape(cure)}"):
        programs.need(name)


def test_what_comes_first_on_path_decides_nothing(folder, monkeypatch, tmp_path):
    """Nor does a server for S3 that lies there: only the pinned one counts."""
    elsewhere = tmp_path / "usr"
    elsewhere.mkdir()
    look_alike(folder, "redis-server", "echo Redis server v=7.0.15; exit 0")
    look_alike(folder, "moto_server", "echo 5.2.1")
    monkeypatch.setattr(programs, "FOLDERS", [str(elsewhere)])
    monkeypatch.setattr(programs, "CACHE", tmp_path)
    monkeypatch.setattr(programs, "MOTO", tmp_path / "s3/bin/moto_server")
    assert programs.find("redis-server") is None
    with pytest.raises(pytest.skip.Exception, match=r"^moto \d.* is missing in .*: make s3$"):
        programs.need_pinned("moto")


def test_another_version_of_moto_than_the_pinned_one_does_not_count(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "CACHE", tmp_path)
    monkeypatch.setattr(programs, "MOTO", tmp_path / "s3/bin/moto_server")
    programs.MOTO.parent.mkdir(parents=True)
    look_alike(programs.MOTO.parent, "moto_server", "exit 0")
    lock = (programs.ROOT / ".ci/requirements-s3.lock").read_text()
    pinned = re.search(r"^moto==(\S+)", lock, re.MULTILINE)[1]
    packages = tmp_path / "s3/lib/python3.11/site-packages"
    (packages / "moto-5.0.0.dist-info").mkdir(parents=True)
    assert programs.PINNED["moto"]()
    (packages / f"moto-{pinned}.dist-info").mkdir()
    assert programs.PINNED["moto"]() == ""


def test_nothing_but_one_module_looks_for_programs():
    found = [
        path.name
        for path in HERE.rglob("*.py")
        if re.search(r"\bwhich\(|\bmoto_server\b", path.read_text())
    ]
    assert sorted(found) == ["programs.py", "test_ci.py", "test_programs.py"]
