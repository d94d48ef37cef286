"""The command line as a person calls it, in this process: Python's start costs more than the call.

Tests of signals, pipes, imports and exit codes of a process start one of their own.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from unittest import mock

import pytest

from streameval.cli.app import main


def streameval(*arguments, folder=".", stdin=b"", text=False, **environment):
    """Give the finished call, with what it wrote as bytes or as text.

    `environment` is added to the variables of this process, without those of streameval.
    """
    words = ["streameval", *map(str, arguments)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMEVAL_")}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as given,
        tempfile.TemporaryFile("w+", encoding="utf-8") as printed,
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
    ):
        given.buffer.write(stdin)
        given.seek(0)
        with (
            contextlib.chdir(folder),
            mock.patch.dict(os.environ, clean | environment, clear=True),
            mock.patch.multiple(sys, argv=words, stdin=given, stdout=printed, stderr=said),
            pytest.raises(SystemExit) as end,
        ):
            main()
        written = []
        for stream in (printed, said):
            stream.seek(0)
            written.append(stream.read() if text else stream.buffer.read())
    return subprocess.CompletedProcess(words, end.value.code, *written)
