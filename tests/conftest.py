"""Set before anything imports torch: one thread, no network."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

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
