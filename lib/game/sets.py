"""The sets of problems, and problems from files of your own.

Notebook 01 makes the sets. They are committed under data/problems/ as parquet files with a
manifest. No problem is in two of them, up to the order of its numbers. Their distribution is that
of the public data with 3 or 4 numbers: a target from 10 to 100, and numbers from 1 to 99 that are
redrawn until a search over non-negative integers solves the problem.

Your own problems come from a file or from a data set of the hub, which has either the columns nums
and target ("44 19 35", 98), or rows of reasoning-gym's Countdown, whose metadata hold both. A run
may use either kind as its training set, and a file as an evaluation set; `admitted` keeps training
and evaluation problems apart."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lib.files import PROBLEMS, ROOT, nearest, reading, uninterrupted
from lib.game.problem import Problem, ProblemSetError, as_problem, as_problems
from lib.game.solver import count_all

if (
    TYPE_CHECKING
):  # their import takes 1.5 seconds, and the command line needs only the names of sets
    import pandas as pd
    from datasets import Dataset

# names of our sets, and the hub's sets of the same kind
HUB = {"3to4": "asingh15/countdown_tasks_3to4", "5num": "aelbakry/countdown_5num_tasks"}

FILES = (".csv", ".jsonl", ".parquet")  # formats of files with your own problems
# How many problems are solved on loading, by the most numbers in one; one of six numbers takes
# 35 ms, one of four 0.02
CHECKED = {2: 10_000, 3: 10_000, 4: 10_000, 5: 1_000, 6: 100}
SIGNS = ",;\t"  # between the columns of a .csv file
TRAINING_SETS = ("3to4", "5num", "3to4_low")  # the last one has targets from 1, the others from 10
# by their names in figures and tables: (name, split) and source
EVALUATION_SETS: dict[str, tuple[str, ...]] = {
    "validation_200": ("3to4", "validation_200"),
    "validation": ("3to4", "validation"),
    "test_50": ("3to4", "test_50"),
    "heldout_400": ("3to4", "heldout_400"),
    "heldout_1000": ("3to4", "heldout_1000"),
    "sealed_2000": ("3to4", "sealed_2000"),  # sampled once, by sample/sealed_* (data/README.md)
    "sealed_1000": ("3to4", "sealed_1000"),  # sampled once, by sample/restarts_*
    "test_5num_50": ("5num", "test_50"),
    "heldout_5num_1000": ("5num", "heldout_1000"),
    "test_6num_50": ("6num", "test_50"),
    "levels": ("levels", "test"),
    "showcase": ("showcase", "test"),
    "hub_test_50": ("3to4", "test", "hub"),  # the papers' problems; needs the network
    "hub_test_5num_50": ("5num", "test", "hub"),  # those of `ast`, Table 5, with five numbers
}


def load(name: str, split: str, source: str = "generated", seed: int = 0) -> Dataset:
    """A problem set with columns nums (list[int]), target (int) and, for "levels", group (L1 to
    L9).

    source "generated": the committed set, whose hash is verified, or the problems of the file
    `name`. source "hub": the split of the hub set that the papers name (HUB), of a hub set
    owner/name, or of a local folder. One source never replaces the other. Problems that are not
    from our own sets pass through `admitted`. A seed other than 0 shuffles a train split. Raises
    ProblemSetError."""
    with uninterrupted():
        from datasets import Dataset

    if source not in ("generated", "hub"):
        raise ProblemSetError(f"source {source!r}: use 'generated' or 'hub'")
    is_train = split == "train"
    if source == "hub":
        table = admitted(from_hub(name, split), name, is_train)
    elif name.endswith(FILES):
        table = admitted(from_file(name), name, is_train)
    else:
        table = read_set(PROBLEMS, name, split)
    rows = Dataset.from_pandas(table, preserve_index=False)
    return rows.shuffle(seed=seed) if seed and is_train else rows


def load_set(name: str) -> Dataset:
    """An evaluation set by its name, a key of EVALUATION_SETS, or by the path of a file. Raises
    ProblemSetError."""
    if name.endswith(FILES):
        return load(name, "test")
    if name not in EVALUATION_SETS:
        raise ProblemSetError(
            f"there is no evaluation set {name!r}{nearest(name, EVALUATION_SETS)}"
        )
    of, split, *source = EVALUATION_SETS[name]
    return load(of, split, source[0] if source else "generated")


# --- problems of your own ---


def from_file(path: str | Path) -> list[Problem]:
    """The problems of a .csv, .jsonl or .parquet file, in the order of the file.

    path: relative to the repository's root, or absolute. The file has columns nums and target as
    `as_problem` reads them, or a column metadata with numbers and target. A CSV file may separate
    its columns by commas, semicolons or tabs. Raises ProblemSetError, which names the line of a
    text file (from 1) or the row of a parquet file (from 0)."""
    kind = Path(path).suffix
    if kind not in FILES:
        raise ProblemSetError(
            f"{path} is no file of problems: its name must end in {', '.join(FILES)}"
        )
    try:
        rows = list(_READERS[kind](ROOT / path))
    except FileNotFoundError as error:
        raise ProblemSetError(
            f"there is no file {path}; a path starts at {ROOT}, or is absolute"
        ) from error
    except (OSError, ValueError, csv.Error) as error:
        raise ProblemSetError(
            f"{path} cannot be read as a {kind} file of problems: {error}"
        ) from error
    return _problems(rows, str(path))


def from_hub(name: str, split: str) -> list[Problem]:
    """The problems of a hub set (owner/name, or a key of HUB) or of a local folder with data files,
    in the form that `from_file` returns. Raises ProblemSetError."""
    repository = name if "/" in name else HUB.get(name)
    if repository is None:
        raise ProblemSetError(
            f"no hub set is known for {name!r} (known: {', '.join(HUB)}); use source='generated'"
        )
    try:
        table = hub_rows(repository, split).to_pandas()
        return _problems(_table_rows(cast("pd.DataFrame", table)), f"hub set {repository!r}")
    except ProblemSetError:
        raise
    except Exception as error:
        raise ProblemSetError(
            f"hub set {repository!r}, split {split!r} cannot be loaded "
            f"({type(error).__name__}: {error}). It needs network access and HF_HUB_OFFLINE unset, "
            "or a folder of data files; or source='generated'."
        ) from error


def hub_rows(name: str, split: str) -> Dataset:
    """The rows of a hub set owner/name, optionally followed by @ and a revision, or of a local
    folder. Prints the commit (for a folder a hash), which the runner copies from the output into
    run.json."""
    with uninterrupted():
        from datasets import load_dataset

    repository, _, revision = (name, "", "") if Path(name).exists() else name.partition("@")
    loaded = load_dataset(repository, split=split, revision=revision or None)
    rows = cast("Dataset", loaded)  # a split is asked for, so that it is not a DatasetDict
    # the cache folder's name
    print(f"hub set: {repository}@{Path(rows.cache_files[0]['filename']).parent.name}")
    return rows


def admitted(found: list[Problem], name: str, train: bool) -> pd.DataFrame:
    """Removes leakage and duplicates, up to the order of numbers: training problems must not be in
    our evaluation sets, and evaluation problems must not be in our training sets. Returns columns
    nums and target. Prints how many problems remain, and which of them have no solution. Raises
    ProblemSetError if none remains."""
    import pandas as pd

    ours = "an evaluation" if train else "a training"
    taken = keys("evaluation" if train else "train")
    different: dict[tuple, Problem] = {}
    for one in found:
        different.setdefault(one.key, one)
    kept = [one for key, one in different.items() if key not in taken]
    if not kept:
        raise ProblemSetError(
            f"{name}: no problem is left of {len(found):,}: all are in {ours} set of ours"
        )
    print(
        f"{name}: {len(kept):,} of {len(found):,} problems; "
        f"the others are in {ours} set of ours, or repeated"
    )
    _print_unsolvable(kept, name)
    return pd.DataFrame(
        {"nums": [list(one.nums) for one in kept], "target": [one.target for one in kept]}
    )


def _print_unsolvable(kept: list[Problem], name: str) -> None:
    """Prints which of the problems have no solution. Of many problems only the first are solved."""
    checked = kept[: CHECKED[max(len(one.nums) for one in kept)]]
    counts = count_all(checked)
    lost = [one for one, solutions in zip(checked, counts, strict=True) if not solutions]
    if not lost:
        return
    of = f"{len(kept):,}"
    if len(checked) < len(kept):
        of = f"the {len(checked):,} that were solved"
    first = "; ".join(f"{', '.join(map(str, one.nums))} -> {one.target}" for one in lost[:5])
    more = "; ..." if len(lost) > 5 else ""
    print(f"{name}: {len(lost):,} of {of} have no solution: {first}{more}")


# --- the rows of files: each reader yields where a row stands, and the row ---


def _csv(path: Path) -> Iterator[tuple[str, dict]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        sign = _separator(file.readline())
        file.seek(0)
        rows = csv.DictReader(file, delimiter=sign, skipinitialspace=True)
        rows.fieldnames = [name.strip() for name in rows.fieldnames or []]
        for row in rows:
            surplus = [cell for cell in row.pop(None, []) if cell.strip()]
            if surplus:
                raise ValueError(
                    f"line {rows.line_num} has more cells than the header, "
                    f'{surplus[0]!r:.40} first; write "44 19 35",98, '
                    'or quote numbers with commas: "44,19,35",98'
                )
            yield f"line {rows.line_num}", row


def _separator(line: str) -> str:
    """The sign between the columns of a .csv file with this first line: one that gives it the
    columns of problems, if there is one. Raises ValueError if there is none."""
    headers = {sign: _columns(line, sign) for sign in SIGNS if sign in line}
    fitting = [
        sign
        for sign, names in headers.items()
        if {"nums", "target"} <= {*names} or "metadata" in names
    ]
    sign = next(iter([*fitting, *headers]), ",")
    _check_columns(_columns(line, sign))
    return sign


def _columns(line: str, sign: str) -> list[str]:
    """The names of the columns in the first line of a .csv file."""
    names = next(csv.reader([line], delimiter=sign, skipinitialspace=True), [])
    return [name.strip() for name in names]


def _check_columns(names: Sequence[str]) -> None:
    """Raises ValueError if a column is there twice, or one that makes problems is missing."""
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise ValueError(f"two of its columns are called {twice[0]}: which one is meant?")
    missing = [name for name in ("nums", "target") if name not in names]
    if missing and "metadata" not in names:
        raise ValueError(
            f"it has no column {', '.join(missing)}; it has {', '.join(map(str, names)) or 'none'}"
        )


def _jsonl(path: Path) -> Iterator[tuple[str, str]]:
    # not splitlines: a text may contain other line ends
    for i, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            yield f"line {i}", line


def _parquet(path: Path) -> Iterator[tuple[str, dict]]:
    import pandas as pd

    return _table_rows(pd.read_parquet(path))


def _table_rows(table: pd.DataFrame) -> Iterator[tuple[str, dict]]:
    _check_columns([*table.columns])
    for i, row in enumerate(table.filter(["nums", "target", "metadata"]).to_dict("records")):
        yield f"row {i}", row


_READERS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}


def _problems(rows: Iterable[tuple[str, dict | str]], where: str) -> list[Problem]:
    """Turns rows, each with the place where it was found, into Problems. A row is a dict, or a JSON
    text. Raises ProblemSetError for a row that is not a problem, and if there is no row."""
    found = []
    for place, row in rows:
        try:
            found.append(_problem(_json_object(row)))
        except (ValueError, RecursionError) as error:
            raise ProblemSetError(f"{where}, {place}: {error}") from error
    if not found:
        raise ProblemSetError(f"{where} has no problems: it has no rows")
    return found


def _problem(row: dict) -> Problem:
    if "nums" not in row and "metadata" in row:  # a row of reasoning-gym
        made = _json_object(row["metadata"])
        return as_problem(made.get("numbers"), made.get("target"))
    return as_problem(row.get("nums"), row.get("target"))


def _json_object(value: object) -> dict:
    """A JSON object, which may still be a text."""
    if isinstance(value, str):
        value = json.loads(value, object_pairs_hook=_without_doubles)
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is no JSON object")
    return value


def _without_doubles(pairs: list[tuple[str, object]]) -> dict:
    """A JSON object without repeated keys: Python would silently keep the last one."""
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"two of its fields are called {twice[0]}")
    return dict(pairs)


# --- our own sets ---


@lru_cache
def keys(split: str) -> frozenset:
    """The keys of all problems of the training splits ("train"), or of every other split
    ("evaluation")."""
    found = set()
    for entry in _manifest(PROBLEMS):
        name, _, part = entry.partition("/")
        if (part == "train") == (split == "train"):
            found |= {problem.key for problem in as_problems(read_set(PROBLEMS, name, part))}
    return frozenset(found)


def exclude(rows: Dataset) -> Dataset:
    """The rows (with nums and target) whose problem is in no evaluation set. Prints how many rows
    are dropped."""
    held_out = keys("evaluation")
    keep = [i for i, problem in enumerate(as_problems(rows)) if problem.key not in held_out]
    print(
        f"{len(rows) - len(keep):,} of {len(rows):,} rows dropped: "
        "their problems are in an evaluation set"
    )
    return rows.select(keep)


def read_set(folder: Path, name: str, split: str) -> pd.DataFrame:
    """A problem set of `folder`, checked against the hash in the manifest. Raises ValueError that
    says what to do."""
    import pandas as pd

    manifest = _manifest(folder)
    entry = manifest.get(f"{name}/{split}")
    if entry is None:
        raise ProblemSetError(
            f"there is no problem set {name}/{split}; there are {', '.join(manifest)}"
        )
    path = folder / entry["file"]
    with reading(path):
        rows = pd.read_parquet(path)
        if content_hash(rows) != entry["sha256"]:
            raise ValueError(f"it is not the set of {folder / 'manifest.json'}")
    return rows


def content_hash(rows: pd.DataFrame) -> str:
    """The sha256 of a table's content, however the parquet file is encoded: one JSON line per row,
    columns in order."""
    columns = []
    for name in rows.columns:
        values = rows[name].tolist()
        if name == "nums":
            values = [list(map(int, nums)) for nums in values]
        columns.append(values)
    lines = (json.dumps(row, separators=(",", ":")) for row in zip(*columns, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _manifest(folder: Path) -> dict[str, dict]:
    path = folder / "manifest.json"
    if not path.exists():
        raise ProblemSetError(
            f"{path} is missing: restore it with `git checkout`, or run notebooks/01_build_problems"
        )
    with reading(path):
        manifest = json.loads(path.read_text())
        if not all({"file", "sha256"} <= entry.keys() for entry in manifest.values()):
            raise ValueError("an entry without file or sha256")
    return manifest
