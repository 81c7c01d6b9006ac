"""What a notebook needs of a run: its folder, atomic writes, checked reads, a progress line."""

import os
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd

from lib.paths import ROOT, RUNS

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "datasets",
    "numpy",
    "pandas",
    "scipy",
    "papermill",
    "snakemake",
    "vllm",
)


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
        path = self / name
        with atomic(path) as temporary:
            if path.suffix == ".parquet":
                table.to_parquet(temporary, index=False, compression="zstd", compression_level=12)
            elif path.suffix == ".csv":
                table.to_csv(temporary, index=False)
            else:
                raise ValueError(f"{path}: a table is written as .parquet or .csv")
        return path

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


def read_table(path: str | Path) -> pd.DataFrame:
    """Read .parquet or .csv. Raises FileNotFoundError, or ValueError if it is damaged, with what to do."""
    path = ROOT / path
    remedy = (
        f"restore it with `git checkout -- {shown(path)}`"
        if path.is_relative_to(ROOT) and not path.is_relative_to(RUNS)
        else f"delete the folder {shown(path.parent)} and give the same command again: this run is made anew"
    )
    if not path.exists():
        raise FileNotFoundError(f"{shown(path)} is missing: {remedy}")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if not path.read_bytes().endswith(b"\n"):
            raise ValueError("it ends in the middle of a line")
        return pd.read_csv(path)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid and pandas' parser errors are ValueErrors
        raise ValueError(f"{shown(path)} is damaged ({error}): {remedy}") from error


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`, which takes its place when the block ends without an error.

    Raises OSError with a remedy when the file cannot be written (a full disk); the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> OSError:
    """The error once more, with the file's name and what to do."""
    remedy = "make room (`make clean-runs` deletes all runs) and give the same command again"
    return OSError(error.errno, f"cannot write {shown(path)}: {error.strerror or error}; {remedy}")


class Progress:
    """One line every few seconds: what, how far, how long, how long still."""

    def __init__(self, total: int, what: str, every: float = 5.0):
        self.total, self.what, self.every = total, what, every
        self.start = self.printed = time.monotonic()
        self.first = None  # the first call's count: a resumed loop does not start at 0

    def __call__(self, done: int) -> None:
        """Say that `done` of `total` are done; prints only when a line is due."""
        now = time.monotonic()
        self.first = done - 1 if self.first is None else self.first
        if now - self.printed >= self.every or done == self.total:
            elapsed = now - self.start
            left = elapsed / max(done - self.first, 1) * (self.total - done)
            print(f"{self.what} {done}/{self.total}, {clock(elapsed)} elapsed, {clock(left)} left", flush=True)
            self.printed = now


def progress(iterable: Iterable, total: int, what: str) -> Iterator:
    """Pass the items on and print a progress line every few seconds."""
    say = Progress(total, what)
    for done, item in enumerate(iterable, start=1):
        yield item
        say(done)


def clock(seconds: float) -> str:
    """75 -> '1:15', 3700 -> '1:01:40'."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def shown(path: Path) -> str:
    """A path as people should see it: from the repository's root where it lies inside."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def versions() -> dict[str, str]:
    """Installed versions of the packages that results depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit_of(root: Path) -> tuple[str | None, bool]:
    """The commit checked out and whether tracked files differ from it; (None, False) outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, False
