"""A run as its notebook sees it: a folder, what it made, and a footer that says what made it."""

import os
import platform
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pandas as pd

from lib.files import shown, write_table
from lib.paths import ROOT

PACKAGES = {"torch", "transformers", "trl", "datasets", "numpy", "pandas", "scipy", "papermill", "snakemake", "vllm"}


class Run:
    """The folder of one run, made if need be.

    The repository's root becomes the working directory: relative paths mean the same in JupyterLab and here.
    """

    def __init__(self, output: str | Path):
        here = os.environ.get("COUNTDOWN_ROOT", ROOT)  # set by the runner
        if Path(here) != ROOT:
            raise RuntimeError(f"lib was imported from {ROOT} but this run belongs to {here}: unset PYTHONPATH")
        os.chdir(ROOT)
        self.folder = ROOT / output
        self.folder.mkdir(parents=True, exist_ok=True)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def write(self, table: pd.DataFrame, name: str) -> Path:
        """Write a table as .parquet (zstd) or .csv, whole or not at all. Raises OSError on a full disk."""
        return write_table(table, self / name)

    def report(self, *paths: str | Path) -> None:
        """Name the figures and tables this run made: the front door shows them at its end."""
        with (self / "artifacts.txt").open("a") as file:
            for path in paths:
                print(Path(path).relative_to(self.folder), file=file)
                print(f"made {shown(Path(path))}")

    def footer(self) -> None:
        """The notebook's last cell: what made these results."""
        commit, dirty = commit_of(ROOT)
        print(f"run      {shown(self.folder)}")
        print(f"commit   {commit or 'not in git'}{' with changes' if dirty else ''}")
        print(f"python   {platform.python_version()} on {platform.system()} {platform.machine()}")
        print("packages " + ", ".join(f"{name} {number}" for name, number in versions().items()))


def versions() -> dict[str, str]:
    """Installed versions of the packages that results depend on."""
    return dict(sorted((found.name, found.version) for found in distributions() if found.name in PACKAGES))


def processor() -> str | None:
    """The model of this machine's processor: equal seeds repeat a run bit by bit on one kind only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or None)


def commit_of(root: Path) -> tuple[str | None, bool]:
    """The commit checked out and whether tracked files differ from it; (None, False) outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, False
