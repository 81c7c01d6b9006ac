"""Set before anything imports torch: one thread, no network."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.warm import SOCKET

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")


def copy_of_the_repository(folder: Path) -> Path:
    """All files that are or could be committed, in `folder`."""
    from lib.files import ROOT

    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def warm() -> Iterator[dict[str, str]]:
    """What an environment has to say for kernels to be forked from one process (tests/warm.py).

    Nothing where the system cannot watch over a fork, which Linux can.
    """
    if not hasattr(os, "pidfd_open"):
        yield {}
        return
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COUNTDOWN_")}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    with tempfile.TemporaryDirectory(prefix="warm-", dir="/tmp") as folder:  # short: the name of a socket has 100 bytes
        spec, program = Path(folder) / "kernels/python3/kernel.json", str(Path(__file__).parent / "warm.py")
        spec.parent.mkdir(parents=True)
        command = [sys.executable, "-I", "-S", program, "-f", "{connection_file}"]
        spec.write_text(json.dumps({"argv": command, "display_name": "Python 3", "language": "python"}))
        server = subprocess.Popen([sys.executable, "-I", program, f"{folder}/socket"], env=environment)
        yield {"JUPYTER_PATH": folder, SOCKET: f"{folder}/socket"}
        server.kill()
        server.wait()


@pytest.fixture
def warm_kernels(warm, monkeypatch) -> None:
    """Runs of this test start their kernels warm."""
    for key, value in warm.items():
        monkeypatch.setenv(key, value)


def linear(read: Callable[[str], object], text: str) -> bool:
    """Whether four times the text takes about four times as long, at the best of five tries: in quadratic time it takes
    sixteen. The clock is this process's own, and 20 ms are its noise; no bound in seconds holds on every machine."""

    def seconds(some: str) -> float:
        began = time.process_time()
        read(some)
        return time.process_time() - began

    quarter = text[: len(text) // 4]
    return any(seconds(text) < 8 * seconds(quarter) + 0.02 for _ in range(5))


# The longest files first (--dist loadfile --no-loadscope-reorder), lest one worker is left alone with them at the end.
LONGEST = [
    f"test_{name}"
    for name in ("notebooks", "runs", "paper_profile", "contributing", "record", "recomputed", "training", "explorer")
]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
