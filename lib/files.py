"""Paths, files that are either complete or absent, the syntax of code as plain data, the nearest
known name, the progress line of long loops, and the memory of the machine."""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EROFS
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:  # its import takes half a second, and paths and names are needed without tables
    import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
PROBLEMS = DATA / "problems"
MODELS = DATA / "models"
PAPER = DATA / "paper"
REFERENCE = DATA / "reference"
FIGURES = ROOT / "figures"
# the variable selects another folder
RUNS = Path(os.environ.get("COUNTDOWN_RUNS") or DATA / "runs").resolve()
if "COUNTDOWN_RUNS" in os.environ:  # an absolute path, since child processes work in other folders
    os.environ["COUNTDOWN_RUNS"] = str(RUNS)


def nearest(name: str, known: Iterable) -> str:
    """The end of an error message: the nearest known name, or if no name is near, up to thirty
    names."""
    names = list(dict.fromkeys(map(str, known)))
    matches = difflib.get_close_matches(str(name), names, 1, cutoff=0.5)
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return (
        f": did you mean {matches[0]!r}?"
        if matches
        else f"; there are: {', '.join(names[:30]) or 'none'}{more}"
    )


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder as `path`, which replaces `path` when the block
    ends without an error.

    A power cut leaves either the old file or the new one. Raises OSError with a remedy if the file
    cannot be written (such as on a full disk); the temporary file is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            yield temporary
            synchronise(temporary)
            os.replace(temporary, path)
            synchronise(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def synchronise(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turns an OSError in writing `path`, or one of `others` that means the same, into one with
    path and remedy."""
    try:
        yield
    except (OSError, *others) as error:
        remedy = (
            "make room (`make clean-runs` deletes all runs of this checkout) and give the same "
            "command again"
        )
        misplaced = isinstance(
            error, FileExistsError | FileNotFoundError | NotADirectoryError | PermissionError
        )
        if misplaced or getattr(error, "errno", None) == EROFS:
            remedy = (
                "see that its folder exists and may be written to, and give the same command again"
            )
            remedy += "; runs lie in the folder that COUNTDOWN_RUNS names" * path.is_relative_to(
                RUNS
            )
        raise OSError(
            f"cannot write {shown(path)} ({getattr(error, 'strerror', None) or error}): {remedy}"
        ) from error


def write_table(table: pd.DataFrame, path: Path, rounded: bool = False) -> Path:
    """Writes a table as .parquet (zstd) or .csv, completely or not at all. Raises OSError on a full
    disk.

    `rounded`: the fractions in a .csv get six significant digits, so that every processor writes
    the same bytes."""
    with atomic(path) as temporary:
        if path.suffix == ".parquet":
            table.to_parquet(temporary, index=False, compression="zstd", compression_level=19)
        elif path.suffix == ".csv":
            if rounded:
                table = table.apply(
                    lambda column: column.map(brief) if column.dtype.kind in "fO" else column
                )
            table.to_csv(temporary, index=False)
        else:
            raise ValueError(f"{path}: a table is written as .parquet or .csv")
    return path


def brief(cell):
    """A fraction as text with six significant digits; any other cell is returned unchanged.

    Processors disagree about the sixteenth digit, which decides how a tie is rounded; rounding to
    twelve digits first removes it. A number below 1e-12 in size is taken for a difference of equal
    numbers, and becomes 0."""
    if not isinstance(cell, float) or not math.isfinite(cell):
        return cell
    cell = float(f"{cell:.12g}")
    if cell.is_integer() or abs(cell) < 1e-12:
        return str(float(round(cell)))  # the same text for -0.0 and 0.0
    return str(float(f"{cell:.6g}"))


def read_table(path: str | Path, without: Collection[str] = ()) -> pd.DataFrame:
    """Reads a .parquet file, `without` some columns, or a .csv file. Raises FileNotFoundError, or
    ValueError with a remedy if the file is damaged or differs from what its run.json says."""
    import pandas as pd
    from pyarrow.parquet import read_schema

    path = ROOT / path
    if not path.exists():
        raise FileNotFoundError(f"{shown(path)} is missing: {remedy(path)}")
    verify(path)
    with reading(path):
        if path.suffix == ".parquet":
            return pd.read_parquet(
                path, columns=[n for n in read_schema(path).names if n not in without]
            )
        if not path.read_bytes().endswith(b"\n"):
            raise ValueError("it ends in the middle of a line")
        return pd.read_csv(path)


def verify(path: Path) -> None:
    """Checks a file of a run, or every file of a folder in it, against the sizes and hashes in the
    run's run.json.

    Passes if there is no run.json. Raises ValueError for a file that is missing or has other
    content."""
    record = path.with_name("run.json")
    if not record.exists():
        return
    with reading(record):
        files = json.loads(record.read_text()).get("files", {}).items()
    for name, entry in files:
        if name == path.name or name.startswith(f"{path.name}/"):
            file = path.parent / name
            with reading(file):
                if (size := file.stat().st_size) != entry["bytes"]:
                    raise ValueError(
                        f"it was written with {entry['bytes']:,} bytes and has {size:,}"
                    )
                if sha256(file) != entry["sha256"]:
                    raise ValueError("its content is not what was written, though as long")


def sha256(path: Path) -> str:
    """The sha256 hash of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an error in reading a run's file into a ValueError with the file's path and a
    remedy."""
    try:
        yield
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:  # of pyarrow, pandas or other content
        raise ValueError(f"{shown(path)} is damaged ({error}): {remedy(path)}") from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds Ctrl-C back until the block is done. An interrupt while a large package is imported
    would leave it half loaded: only a restart of the kernel would help."""
    held: list[tuple] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    signal.signal(signal.SIGINT, lambda *interrupt: held.append(interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


def remedy(path: Path) -> str:
    """How to restore a run's file: from git if it is published, otherwise by repeating the run."""
    if path.is_relative_to(ROOT) and not (
        path.is_relative_to(RUNS) or path.is_relative_to(DATA / "runs")
    ):
        return f"restore it with `git checkout -- {shown(path)}`"
    folder = shown(path.parent)
    return f"delete the folder {folder} and give the same command again: this run is made anew"


def shown(path: Path) -> str:
    """A path as it is shown to people and in records: relative to the repository's root if it lies
    inside."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def skeleton(node: object) -> list | str:
    """A syntax tree as plain data that all Python versions agree on: without docstrings, positions
    and empty fields. It therefore changes only if the code does. (`ast.unparse` writes f-strings
    differently from Python 3.12 on.)"""
    if isinstance(node, list):
        return [skeleton(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
    match fields.get("body"):
        case [ast.Expr(ast.Constant(str())), *rest]:
            fields["body"] = rest
    return [type(node).__name__, {name: skeleton(value) for name, value in fields.items()}]


def progress(iterable: Iterable | None, total: int, what: str, done: int = 0) -> tqdm:
    """Passes the items on, and shows every few seconds how many of `total` are done; `done` were
    done before."""
    line = "{desc} {n_fmt}/{total_fmt}{postfix}, {elapsed} elapsed, {remaining} left"
    options = {"file": sys.stdout, "mininterval": 5, "miniters": 1, "delay": 2, "bar_format": line}
    return tqdm(iterable, what, total, initial=done, **options)


def host_memory() -> int:
    """The bytes of memory of this machine, or of its container if that is limited to less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = container_limit("memory.max")
    return min(machine, int(limit)) if limit.isdigit() else machine


def container_limit(name: str) -> str:
    """The limit that the container's control group (cgroup) sets in its file `name`; "" if there is
    no such file."""
    with suppress(OSError):
        return Path("/sys/fs/cgroup", name).read_text().strip()
    return ""


clock = tqdm.format_interval  # formats seconds: 75 -> "01:15", 3700 -> "1:01:40"
