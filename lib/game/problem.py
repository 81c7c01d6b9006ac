"""Countdown problems, and the data sets of problems.

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
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.files import PROBLEMS, ROOT, nearest, reading, uninterrupted

if TYPE_CHECKING:  # their import takes 1.5 seconds, and the verifiers need only Problem
    import pandas as pd
    from datasets import Dataset

HUB = {"3to4": "asingh15/countdown_tasks_3to4", "5num": "aelbakry/countdown_5num_tasks"}

FILES = (".csv", ".jsonl", ".parquet")  # formats of files with your own problems
# How many problems are solved on loading, by the most numbers in one; one of six numbers takes 35
# ms, of four 0.02
CHECKED = {2: 10_000, 3: 10_000, 4: 10_000, 5: 1_000, 6: 100}
MAX_NUMBERS = 6  # in one problem: the solver takes no more
SIGNS = ",;\t"  # between the columns of a .csv file
# 98.0: spreadsheets and data frames make floats
_NUMBER = re.compile(r"([1-9][0-9]{0,17})(?:\.0+)?")
_TARGET = re.compile(r"(-?[0-9]{1,18})(?:\.0+)?")

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
NUMBERS = {int, Fraction}


@dataclass(frozen=True, slots=True)
class Problem:
    """Reach `target` with every number of `nums` used once. All are whole numbers; only the agent's
    states may hold Fractions.

    Raises TypeError for anything else.
    """

    nums: tuple[int | Fraction, ...]
    target: int | Fraction

    def __post_init__(self):
        if (
            type(self.nums) is not tuple
            or not self.nums
            or not {*map(type, (*self.nums, self.target))} <= NUMBERS
        ):
            raise TypeError(
                f"a problem is a tuple of whole numbers and a whole target: {self.nums!r}, {self.target!r}"
            )

    @property
    def key(self) -> tuple[tuple[int | Fraction, ...], int | Fraction]:
        """The same for two problems if and only if they differ at most in the order of their
        numbers."""
        return tuple(sorted(self.nums)), self.target


class ProblemSetError(ValueError):
    """A problem set is unknown or missing, or differs from what the manifest says."""


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
    if source == "hub" or name.endswith(FILES):
        found = from_hub(name, split) if source == "hub" else from_file(name)
        table = admitted(found, name, split == "train")
    else:
        table = read(PROBLEMS, name, split)
    rows = Dataset.from_pandas(table, preserve_index=False)
    return rows.shuffle(seed=seed) if seed and split == "train" else rows


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


def from_file(path: str | Path) -> list[Problem]:
    """The problems of a .csv, .jsonl or .parquet file, in the order of the file.

    path: relative to the repository's root, or absolute. The file has columns nums and target as
    `as_problem` reads them, or a column metadata with numbers and target. A CSV file may separate
    its columns by commas, semicolons or tabs. Raises ProblemSetError, which names the line of a
    text file (from 1) or the row of a parquet file (from 0)."""
    if Path(path).suffix not in FILES:
        raise ProblemSetError(
            f"{path} is no file of problems: its name must end in {', '.join(FILES)}"
        )
    try:
        rows = list(_ROWS[Path(path).suffix](ROOT / path))
    except FileNotFoundError as error:
        raise ProblemSetError(
            f"there is no file {path}; a path starts at {ROOT}, or is absolute"
        ) from error
    except (OSError, ValueError, csv.Error) as error:
        raise ProblemSetError(
            f"{path} cannot be read as a {Path(path).suffix} file of problems: {error}"
        ) from error
    return _problems(rows, str(path))


def _csv(path: Path) -> Iterator[tuple[str, dict]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        heads = {sign: _header(head, sign) for sign in SIGNS if sign in head}
        fitting = [
            sign
            for sign, names in heads.items()
            if {"nums", "target"} <= {*names} or "metadata" in names
        ]
        sign = next(iter([*fitting, *heads]), ",")
        _need(_header(head, sign))
        file.seek(0)
        rows = csv.DictReader(file, delimiter=sign, skipinitialspace=True)
        rows.fieldnames = [name.strip() for name in rows.fieldnames or []]
        for row in rows:
            surplus = [cell for cell in row.pop(None, []) if cell.strip()]
            if surplus:
                cells = (
                    f"line {rows.line_num} has more cells than the header, {surplus[0]!r:.40} first"
                )
                raise ValueError(
                    f'{cells}; write "44 19 35",98, or quote numbers with commas: "44,19,35",98'
                )
            yield f"line {rows.line_num}", row


def _header(line: str, sign: str) -> list[str]:
    """The names of the columns in the first line of a .csv file."""
    return [
        name.strip() for name in next(csv.reader([line], delimiter=sign, skipinitialspace=True), [])
    ]


def _jsonl(path: Path) -> Iterator[tuple[str, str]]:
    # a text may contain other line ends
    for i, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            yield f"line {i}", line


def _table(table: pd.DataFrame) -> Iterator[tuple[str, dict]]:
    _need([*table.columns])
    for i, row in enumerate(table.filter(["nums", "target", "metadata"]).to_dict("records")):
        yield f"row {i}", row


def _parquet(path: Path) -> Iterator[tuple[str, dict]]:
    import pandas as pd

    return _table(pd.read_parquet(path))


def _need(columns: Sequence[str]) -> None:
    if twice := [name for name in columns if name and columns.count(name) > 1]:
        raise ValueError(f"two of its columns are called {twice[0]}: which one is meant?")
    missing = [name for name in ("nums", "target") if name not in columns]
    if missing and "metadata" not in columns:
        raise ValueError(
            f"it has no column {', '.join(missing)}; it has {', '.join(map(str, columns)) or 'none'}"
        )


_ROWS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}  # each yields (place, row)


def from_hub(name: str, split: str) -> list[Problem]:
    """The problems of a hub set (owner/name, or a key of HUB) or of a local folder with data files,
    in the form that `from_file` returns. Raises ProblemSetError."""
    if (repository := HUB.get(name, name if "/" in name else None)) is None:
        raise ProblemSetError(
            f"no hub set is known for {name!r} (known: {', '.join(HUB)}); use source='generated'"
        )
    try:
        table: Any = hub_rows(repository, split).to_pandas()
        return _problems(_table(table), f"hub set {repository!r}")
    except ProblemSetError:
        raise
    except Exception as error:
        remedy = "It needs network access and HF_HUB_OFFLINE unset, or a folder of data files; or source='generated'"
        why = f"{type(error).__name__}: {error}"
        raise ProblemSetError(
            f"hub set {repository!r}, split {split!r} cannot be loaded ({why}). {remedy}."
        ) from error


def hub_rows(name: str, split: str) -> Dataset:
    """The rows of a hub set owner/name, optionally followed by @ and a revision, or of a local
    folder. Prints the commit (for a folder a hash), which the runner copies from the output into
    run.json."""
    with uninterrupted():
        from datasets import load_dataset

    repository, _, revision = (name, "", "") if Path(name).exists() else name.partition("@")
    rows: Any = load_dataset(repository, split=split, revision=revision or None)
    # the cache folder's name
    print(f"hub set: {repository}@{Path(rows.cache_files[0]['filename']).parent.name}")
    return rows


def admitted(found: list[Problem], name: str, train: bool) -> pd.DataFrame:
    """Removes leakage and duplicates, up to the order of numbers: training problems must not be in
    our evaluation sets, and evaluation problems must not be in our training sets. Returns columns
    nums and target. Prints how many problems remain, and which of them have no solution. Raises
    ProblemSetError if none remains."""
    import pandas as pd

    from lib.game.solver import count_all  # imported here because it imports this file

    ours, taken = ("an evaluation", keys("evaluation")) if train else ("a training", keys("train"))
    different: dict[tuple, Problem] = {}
    for one in found:
        different.setdefault(one.key, one)
    kept = [one for key, one in different.items() if key not in taken]
    if not kept:
        raise ProblemSetError(
            f"{name}: no problem is left of {len(found):,}: all stand in {ours} set of ours"
        )
    print(
        f"{name}: {len(kept):,} of {len(found):,} problems; the others stand in {ours} set of ours, or twice"
    )
    checked = kept[: CHECKED[max(len(one.nums) for one in kept)]]
    if lost := [
        one for one, solutions in zip(checked, count_all(checked), strict=True) if not solutions
    ]:
        shown = "; ".join(f"{', '.join(map(str, one.nums))} -> {one.target}" for one in lost[:5])
        of = (
            f"the {len(checked):,} that were solved"
            if len(checked) < len(kept)
            else f"{len(kept):,}"
        )
        print(
            f"{name}: {len(lost):,} of {of} have no solution: {shown}{'; ...' if len(lost) > 5 else ''}"
        )
    return pd.DataFrame(
        {"nums": [list(one.nums) for one in kept], "target": [one.target for one in kept]}
    )


def _problems(rows: Iterable[tuple[str, Any]], where: str) -> list[Problem]:
    """Turns rows, each with the place where it was found, into Problems. A row is a dict, or a JSON
    text. Raises ProblemSetError for a row that is not a problem, and if there is no row."""
    found = []
    for place, row in rows:
        try:
            row = _object(row)
            nums = "nums"
            if "nums" not in row and "metadata" in row:  # a row of reasoning-gym
                row = _object(row["metadata"])
                nums = "numbers"
            found.append(as_problem(row.get(nums), row.get("target")))
        except (ValueError, RecursionError) as error:
            raise ProblemSetError(f"{where}, {place}: {error}") from error
    if not found:
        raise ProblemSetError(f"{where} has no problems: it has no rows")
    return found


def _object(value: Any) -> dict:
    """A JSON object, which may still be a text."""
    value = json.loads(value, object_pairs_hook=_once) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is no JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict:
    """A JSON object in which no key stands twice: Python would keep the last one in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"two of its fields are called {next(name for name in names if names.count(name) > 1)}"
        )
    return found


def as_problem(nums: Any, target: Any) -> Problem:
    """The Problem of a row of a file, a data frame, a data set or a tensor.

    nums: two to six whole numbers from 1 upwards, as a list, a tuple, an array, or a text such as
    "44 19 35", which may also have commas or semicolons in place of spaces, and brackets. target: a
    whole number. 98.0 counts as whole, 98.5 does not. Raises ProblemSetError, which says the rule
    that is broken."""
    values, to = (value.tolist() if hasattr(value, "tolist") else value for value in (nums, target))
    words = _words(values) if isinstance(values, str) else values
    read = (
        [_NUMBER.fullmatch(str(word)) for word in words] if isinstance(words, list | tuple) else []
    )
    goal = _TARGET.fullmatch(str(to).strip())
    if not (2 <= len(read) <= MAX_NUMBERS and all(read) and goal):
        rule = _broken_rule(words, read, to)
        raise ProblemSetError(
            f'{values!r:.80}, {to!r:.80} is not a problem: {rule}; write "44 19 35",98'
        )
    return Problem(tuple(int(number[1]) for number in read if number), int(goal[1]))


def _words(text: str) -> list[str]:
    """The numbers in a text, which one kind of sign separates: semicolons, commas or white space.
    "1,540 60" has two kinds, so that its comma may stand between thousands; it becomes "1" and "540
    60"."""
    text = text.strip(" \t[]()")
    sign = next((sign for sign in ";," if sign in text), None)
    return [word.strip() for word in text.split(sign)]


def _broken_rule(words: Any, read: Sequence, target: Any) -> str:
    """What is wrong with the numbers `words`, of which `read` are matches or None, or else with the
    target."""
    if not isinstance(words, list | tuple):
        return "the numbers are missing" if words is None else "the numbers are no list and no text"
    if wrong := [word for word, match in zip(words, read, strict=True) if not match]:
        return f"{wrong[0]!r:.40} is no whole number of at least 1 and at most 18 digits"
    if not 2 <= len(words) <= MAX_NUMBERS:
        return f"a problem has two to six numbers, not {len(words)}"
    return (
        "the target is missing"
        if target in (None, "")
        else f"the target {target!r:.40} is no whole number"
    )


def problems(rows: Dataset | pd.DataFrame) -> list[Problem]:
    """The rows of a problem set as Problems. Raises ProblemSetError for a row that is not a
    problem."""
    return [
        as_problem(nums, target) for nums, target in zip(rows["nums"], rows["target"], strict=True)
    ]


@lru_cache
def keys(split: str) -> frozenset:
    """The keys of all problems of the training splits ("train"), or of every other split
    ("evaluation")."""
    sets = [name.partition("/")[::2] for name in _manifest(PROBLEMS)]
    chosen = [
        problems(read(PROBLEMS, *each))
        for each in sets
        if (each[1] == "train") == (split == "train")
    ]
    return frozenset(problem.key for some in chosen for problem in some)


def exclude(rows: Dataset) -> Dataset:
    """The rows (with nums and target) whose problem is in no evaluation set. Prints how many rows
    are dropped."""
    held_out = keys("evaluation")
    keep = [i for i, p in enumerate(problems(rows)) if p.key not in held_out]
    print(
        f"{len(rows) - len(keep):,} of {len(rows):,} rows dropped: their problems are in an evaluation set"
    )
    return rows.select(keep)


# --- files ----------------------------------------------------------------------------------------


def digest(rows: pd.DataFrame) -> str:
    """The sha256 of the content, however the parquet file is encoded: one JSON line per row,
    columns in order."""
    columns = [
        [list(map(int, v)) for v in rows[c]] if c == "nums" else rows[c].tolist()
        for c in rows.columns
    ]
    lines = (json.dumps(row, separators=(",", ":")) for row in zip(*columns, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _manifest(folder: Path) -> dict:
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


def read(folder: Path, name: str, split: str) -> pd.DataFrame:
    """A problem set of `folder`, checked against the hash in the manifest. Raises ValueError that
    says what to do."""
    import pandas as pd

    manifest = _manifest(folder)
    if (entry := manifest.get(f"{name}/{split}")) is None:
        raise ProblemSetError(
            f"there is no problem set {name}/{split}; there are {', '.join(manifest)}"
        )
    path = folder / entry["file"]
    with reading(path):
        rows = pd.read_parquet(path)
        if digest(rows) != entry["sha256"]:
            raise ValueError(f"it is not the set of {folder / 'manifest.json'}")
    return rows
