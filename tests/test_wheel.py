"""CI tests the built wheel: a test that imported the source tree would prove nothing about it."""

import os
import pathlib

import pytest

import streameval


def test_continuous_integration_imports_the_wheel_and_not_the_source_tree():
    if not os.environ.get("STREAMEVAL_TEST_WHEEL"):
        pytest.skip("`make test WHEEL=1` tests the wheel, this run the source tree")
    assert "site-packages" in pathlib.Path(streameval.__file__).parts
