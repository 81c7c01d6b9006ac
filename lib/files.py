"""Paths, files that are whole or not there, the nearest name, and the line that says how far a long loop is."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:  # half a second to import: paths and names are wanted where no table is
    import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
PROBLEMS = DATA / "problems"
MODELS = DATA / "models"
PAPER = DATA / "paper"
REFERENCE = DATA / "reference"
FIGURES = ROOT / "figures"
RUNS = Path(os.environ.get("COUNTDOWN_RUNS") or DATA / "runs").resolve()  # the variable moves the runs
if "COUNTDOWN_RUNS" in os.environ:  # what is started from here works in other folders
    os.environ["COUNTDOWN_RUNS"] = str(RUNS)


def nearest(name: str, known: Iterable) -> str:
    """The end of an error message: the nearest known name, or where none is near all of them, the first thirty."""
    names = list(dict.fromkeys(map(str, known)))
    close = difflib.get_close_matches(str(name), names, 1, cutoff=0.5)
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return f": did you mean {close[0]!r}?" if close else f"; there are: {', '.join(names[:30]) or 'none'}{more}"


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary path in the same folder as `path`, which takes its place when the block ends without an error.

    A power cut leaves the old file or the new one. Raises OSError with a remedy when the file cannot be written (a full
    disk); the temporary file is removed.
    """
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
    """Wait until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn an OSError in writing `path`, or `others` that mean the same, into one with its name and what to do."""
    try:
        yield
    except (OSError, *others) as error:
        remedy = "make room (`make clean-runs` deletes all runs of this checkout) and give the same command again"
        raise OSError(f"cannot write {shown(path)} ({getattr(error, 'strerror', None) or error}): {remedy}") from error


def write_table(table: pd.DataFrame, path: Path, rounded: bool = False) -> Path:
    """Write a table as .parquet (zstd) or .csv, whole or not at all. Raises OSError on a full disk.

    `rounded`: the fractions of a .csv get six significant digits, so that every processor writes the same bytes.
    """
    with atomic(path) as temporary:
        if path.suffix == ".parquet":
            table.to_parquet(temporary, index=False, compression="zstd", compression_level=19)
        elif path.suffix == ".csv":
            if rounded:
                table = table.apply(lambda column: column.map(brief) if column.dtype.kind in "fO" else column)
            table.to_csv(temporary, index=False)
        else:
            raise ValueError(f"{path}: a table is written as .parquet or .csv")
    return path


def brief(cell):
    """A fraction as text with six significant digits; whole numbers, and what is no number, as they are.

    Processors disagree about the sixteenth digit, which decides how a tie is rounded: a first rounding, to twelve,
    removes it. A difference below 1e-12 is one of nothing.
    """
    if not isinstance(cell, float) or not math.isfinite(cell):
        return cell
    cell = float(f"{cell:.12g}")
    if cell.is_integer() or abs(cell) < 1e-12:
        return str(float(round(cell)))  # of -0.0 the same as of 0.0
    return str(float(f"{cell:.6g}"))


def read_table(path: str | Path, without: Collection[str] = ()) -> pd.DataFrame:
    """Read .parquet, `without` some columns, or .csv. Raises FileNotFoundError, or ValueError if it is damaged or not
    what its run.json says, with what to do."""
    import pandas as pd
    from pyarrow.parquet import read_schema

    path = ROOT / path
    if not path.exists():
        raise FileNotFoundError(f"{shown(path)} is missing: {remedy(path)}")
    verify(path)
    with reading(path):
        if path.suffix == ".parquet":
            return pd.read_parquet(path, columns=[n for n in read_schema(path).names if n not in without])
        if not path.read_bytes().endswith(b"\n"):
            raise ValueError("it ends in the middle of a line")
        return pd.read_csv(path, float_precision="round_trip")


def verify(path: Path) -> None:
    """Hold a file of a run, or every file of a folder in it, to the sizes and hashes in the run's run.json.

    Passes where there is no run.json. Raises ValueError for a file that is missing or has another content.
    """
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
                    raise ValueError(f"it was written with {entry['bytes']:,} bytes and has {size:,}")
                if sha256(file) != entry["sha256"]:
                    raise ValueError("its content is not what was written, though as long")


def sha256(path: Path) -> str:
    """The hash of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong in reading a run's file into a ValueError with its name and what to do."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # pyarrow's, pandas', another content
        raise ValueError(f"{shown(path)} is damaged ({error}): {remedy(path)}") from error


def remedy(path: Path) -> str:
    """What brings a run's file back: git where it is published, else the run."""
    if path.is_relative_to(ROOT) and not path.is_relative_to(RUNS):
        return f"restore it with `git checkout -- {shown(path)}`"
    return f"delete the folder {shown(path.parent)} and give the same command again: this run is made anew"


def shown(path: Path) -> str:
    """A path as people, notebooks and records see it: from the repository's root where it lies inside."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def progress(iterable: Iterable | None, total: int, what: str, done: int = 0) -> tqdm:
    """Pass the items on and say every few seconds how far they are, of `total`, `done` of them done before."""
    line = "{desc} {n_fmt}/{total_fmt}{postfix}, {elapsed} elapsed, {remaining} left"
    return tqdm(
        iterable, what, total, initial=done, file=sys.stdout, mininterval=5, miniters=1, delay=2, bar_format=line
    )


clock = tqdm.format_interval  # seconds as people read them: 75 -> "01:15", 3700 -> "1:01:40"
