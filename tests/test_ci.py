"""CI's script says how long it took."""

import re
import shutil
import subprocess
from pathlib import Path

RUN = Path(__file__).parent.parent / ".ci" / "run"


def test_a_failed_run_says_how_long_it_took(tmp_path):
    """On a machine without any tool it can install nothing, and ends at once."""
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    command = [shutil.which("bash"), str(RUN)]
    run = subprocess.run(
        command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert re.fullmatch(r"\d+ s in all", run.stdout.splitlines()[-1])
