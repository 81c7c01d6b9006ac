"""Run All, as a person does it: every notebook of a copy of the repository, from top to bottom,
with its own parameters.

`make test-notebooks`, or `python -m tests.programs.run_all 20 40` for some of them. It takes half
an hour, so CI leaves it out."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib.files import clock
from tests.conftest import copy_of_the_repository


def main(*numbers: str) -> int:
    """How many of the notebooks that begin with `numbers`, or of all, fail; each is named with its
    last words."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="run-all-") as folder:
        root = copy_of_the_repository(Path(folder))
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("COUNTDOWN_")
        }
        for path in sorted(root.glob("notebooks/*.ipynb")):
            if numbers and not path.name.startswith(numbers):
                continue
            began = time.monotonic()
            command = [
                sys.executable,
                "-m",
                "papermill",
                path,
                "/dev/null",
                "--kernel",
                "python3",
                "--no-progress-bar",
            ]
            done = subprocess.run(
                command,
                cwd=root / "notebooks",  # where JupyterLab starts a kernel
                env=environment | {"PYTHONPATH": str(root)},
                capture_output=True,
                text=True,
            )
            failed += done.returncode != 0
            print(
                f"{path.stem:32} {clock(time.monotonic() - began):>8}  "
                f"{'FAILED' if done.returncode else 'ok'}",
                flush=True,
            )
            if done.returncode:
                print(done.stderr[-1500:])
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
