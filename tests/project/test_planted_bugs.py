"""The bugs that `make planted-bugs` plants can still be planted, and its table names them all."""

import pytest
from planted_bugs import BEGIN, BUGS, PAGE, ROOT


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_each_planted_bug_has_one_place(bug):
    """Whoever changes that place changes the patch with it."""
    path = ROOT / bug.file
    if not path.exists():
        pytest.skip("the sources are not part of what is installed")
    assert path.read_text().count(bug.old) == 1, f"{bug.file}: {bug.old}"


def test_the_table_of_planted_bugs_is_that_of_the_command():
    text = PAGE.read_text()
    assert BEGIN in text
    missing = [bug.what for bug in BUGS if f"| {bug.what} |" not in text]
    assert not missing, "run make planted-bugs"
    assert "**not found**" not in text, "a bug that nothing finds is a missing test"
