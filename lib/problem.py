"""A countdown problem and its data sets.

The sets are made by notebook 01 and committed under data/problems/ as parquet files with a manifest; no problem stands
in two of them, up to the order of its numbers. Their distribution is that of the public 3-4-number data: a target from
10 to 100, numbers from 1 to 99, redrawn until a search over non-negative integers solves the problem.

Problems of others are a file or a set of the hub: columns nums and target ("44 19 35", 98), or the rows of
reasoning-gym's Countdown, whose metadata hold numbers and target. A file's path or a hub's name may stand where a set's
name stands for training, a file's also for evaluation, and one filter keeps the two apart (`admitted`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.files import PROBLEMS, ROOT, nearest

if TYPE_CHECKING:  # a second and a half to import: the verifiers need a Problem only
    import pandas as pd
    from datasets import Dataset

HUB = {"3to4": "asingh15/countdown_tasks_3to4", "5num": "aelbakry/countdown_5num_tasks"}

FILES = (".csv", ".jsonl", ".parquet")  # of problems of one's own
_NUMS = re.compile(r"\[?[1-9][0-9]{0,17}(?:[ ,;]+[1-9][0-9]{0,17}){1,5}\]?")
_TARGET = re.compile("-?[0-9]{1,18}")

EVALUATION_SETS = {  # as figures and tables call them: (name, split)
    "validation_200": ("3to4", "validation_200"),
    "validation": ("3to4", "validation"),
    "test_50": ("3to4", "test_50"),
    "heldout_400": ("3to4", "heldout_400"),
    "heldout_1000": ("3to4", "heldout_1000"),
    "sealed_2000": ("3to4", "sealed_2000"),  # sampled once, by the last run of a round (data/README.md)
    "test_5num_50": ("5num", "test_50"),
    "heldout_5num_1000": ("5num", "heldout_1000"),
    "test_6num_50": ("6num", "test_50"),
    "levels": ("levels", "test"),
    "showcase": ("showcase", "test"),
}
NUMBERS = {int, Fraction}


@dataclass(frozen=True, slots=True)
class Problem:
    """Reach `target` with every number of `nums` used once. Whole numbers; the agent's states may hold Fractions.

    Raises TypeError for anything else."""

    nums: tuple[int | Fraction, ...]
    target: int | Fraction

    def __post_init__(self):
        if type(self.nums) is not tuple or not self.nums or not {*map(type, (*self.nums, self.target))} <= NUMBERS:
            raise TypeError(f"a problem is a tuple of whole numbers and a whole target: {self.nums!r}, {self.target!r}")

    @property
    def key(self) -> tuple[tuple[int | Fraction, ...], int | Fraction]:
        """What two problems share when they differ in the order of their numbers only."""
        return tuple(sorted(self.nums)), self.target


class ProblemSetError(ValueError):
    """A problem set that is unknown, missing, or not what the manifest says."""


def load(name: str, split: str, source: str = "generated", seed: int = 0) -> Dataset:
    """A problem set with columns nums (list[int]), target (int) and, for "levels", group (L1 to L9).

    source "generated": the committed set, its hash verified, or the problems of the file `name`. source "hub": split
    `split` of the hub set that the papers name (HUB), of the hub's owner/name, or of a local folder. What is not ours
    is `admitted`. A seed other than 0 shuffles a train split; the order of an evaluation set is fixed. Raises
    ProblemSetError; never falls back from one source to the other.
    """
    from datasets import Dataset

    if source not in ("generated", "hub"):
        raise ProblemSetError(f"source {source!r}: use 'generated' or 'hub'")
    if source == "hub":
        table = admitted(from_hub(name, split), name, split == "train")
    else:
        own = name.endswith(FILES)
        table = admitted(from_file(name), name, split == "train") if own else read(PROBLEMS, name, split)
    rows = Dataset.from_pandas(table, preserve_index=False)
    return rows.shuffle(seed=seed) if seed and split == "train" else rows


def load_set(name: str) -> Dataset:
    """An evaluation set by its one-word name, a key of EVALUATION_SETS, or by the path of a file. Raises
    ProblemSetError naming the nearest."""
    if name.endswith(FILES):
        return load(name, "test")
    if name not in EVALUATION_SETS:
        raise ProblemSetError(f"there is no evaluation set {name!r}{nearest(name, EVALUATION_SETS)}")
    return load(*EVALUATION_SETS[name])


def from_file(path: str | Path) -> list[Problem]:
    """The problems of a .csv, .jsonl or .parquet file, as it has them.

    path: from the repository's root, or absolute. Columns nums (two to six whole numbers from 1: a list, or a text with
    spaces or commas between) and target, or metadata with numbers and target. Raises ProblemSetError naming the line.
    """
    import pandas as pd

    suffix, ahead = Path(path).suffix, {".csv": 2, ".jsonl": 1}  # what number the first row's line has
    try:
        if suffix == ".csv":
            table = pd.read_csv(ROOT / path, dtype=str, keep_default_na=False)
        elif suffix == ".jsonl":
            table = pd.DataFrame([json.loads(line) for line in (ROOT / path).read_text().splitlines()])
        else:
            table = pd.read_parquet(ROOT / path)
    except (OSError, ValueError) as error:
        raise ProblemSetError(f"{path} cannot be read as a {suffix} file of problems: {error}") from error
    return _own(table, str(path), "line" if suffix in ahead else "row", ahead.get(suffix, 0))


def from_hub(name: str, split: str) -> list[Problem]:
    """The problems of a hub set (owner/name, or a key of HUB), as `from_file` reads them. Raises ProblemSetError."""
    from datasets import load_dataset

    if (repository := HUB.get(name, name if "/" in name else None)) is None:
        raise ProblemSetError(f"no hub set is known for {name!r} (known: {', '.join(HUB)}); use source='generated'")
    try:
        rows: Any = load_dataset(repository, split=split)
    except Exception as error:
        raise ProblemSetError(
            f"hub set {repository!r}, split {split!r} cannot be loaded ({type(error).__name__}: {error}). "
            "It needs network access and HF_HUB_OFFLINE unset; or choose source='generated'."
        ) from error
    return _own(rows.to_pandas(), f"hub set {repository!r}", "row", 0)


def admitted(found: list[Problem], name: str, train: bool) -> pd.DataFrame:
    """Those that may be used, columns nums and target: for training what is in no evaluation set of ours, for
    evaluation what is in none of our training sets, each once up to the order of its numbers. Prints how many remain.
    """
    import pandas as pd

    first, taken = {}, keys("evaluation" if train else "train")
    for own in found:
        first.setdefault(own.key, own)
    kept = [own for key, own in first.items() if key not in taken]
    ours = "an evaluation" if train else "a training"
    if not kept:
        raise ProblemSetError(f"{name}: no problem is left of {len(found):,}: all stand in {ours} set of ours")
    print(f"{name}: {len(kept):,} of {len(found):,} problems; the others stand in {ours} set of ours, or twice")
    return pd.DataFrame({"nums": [list(own.nums) for own in kept], "target": [own.target for own in kept]})


def _own(table: pd.DataFrame, where: str, unit: str, first: int) -> list[Problem]:
    """The rows of others as Problems. Raises ProblemSetError for a column that is missing or a row that is none."""
    if "metadata" in table and "nums" not in table:  # reasoning-gym's, on the hub as text
        held = [json.loads(row) if isinstance(row, str) else row for row in table["metadata"]]
        rows = [(row.get("numbers"), row.get("target")) for row in held]
    elif missing := {"nums", "target"} - set(table.columns):
        raise ProblemSetError(f"{where} has no column {', '.join(sorted(missing))}")
    else:
        rows = [*zip(table["nums"], table["target"], strict=True)]
    found = []
    for line, (nums, target) in enumerate(rows, first):
        text = nums if isinstance(nums, str) else " ".join(map(str, [] if nums is None else nums))
        if not (_NUMS.fullmatch(text.strip()) and _TARGET.fullmatch(str(target).strip())):
            raise ProblemSetError(f'{where}, {unit} {line}: {nums!r}, {target!r} is no problem; write "44 19 35",98')
        found.append(Problem(tuple(map(int, re.findall("[0-9]+", text))), int(target)))
    return found


def problems(rows: Dataset | pd.DataFrame) -> list[Problem]:
    """The rows of a problem set as Problems."""
    return [Problem(tuple(map(int, nums)), int(t)) for nums, t in zip(rows["nums"], rows["target"], strict=True)]


@lru_cache
def keys(split: str) -> frozenset:
    """The keys of all problems of split "train", or of the evaluation sets ("evaluation"): every other split."""
    sets = [name.split("/") for name in _manifest(PROBLEMS)]
    chosen = [problems(read(PROBLEMS, *each)) for each in sets if (each[1] == "train") == (split == "train")]
    return frozenset(problem.key for some in chosen for problem in some)


def exclude(rows: Any) -> Any:
    """The rows (Dataset or data frame with nums, target) whose problem is in no evaluation set. Prints how
    many were dropped."""
    held_out = keys("evaluation")
    keep = [i for i, p in enumerate(problems(rows)) if p.key not in held_out]
    print(f"{len(rows) - len(keep):,} of {len(rows):,} rows dropped: their problems are in an evaluation set")
    return rows.iloc[keep].reset_index(drop=True) if hasattr(rows, "iloc") else rows.select(keep)


# --- files ----------------------------------------------------------------------------------------


def digest(rows: pd.DataFrame) -> str:
    """sha256 of the content, whatever the parquet file's encoding: one JSON line a row, columns in order."""
    columns = [[list(map(int, v)) for v in rows[c]] if c == "nums" else rows[c].tolist() for c in rows.columns]
    lines = (json.dumps(row, separators=(",", ":")) for row in zip(*columns, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _manifest(folder: Path) -> dict:
    path = folder / "manifest.json"
    if not path.exists():
        raise ProblemSetError(f"{path} is missing: restore it with `git checkout`, or run notebooks/01_build_problems")
    return json.loads(path.read_text())


def read(folder: Path, name: str, split: str) -> pd.DataFrame:
    """A problem set of `folder`, its content checked against the manifest. Raises ProblemSetError."""
    import pandas as pd

    manifest = _manifest(folder)
    if (entry := manifest.get(f"{name}/{split}")) is None:
        raise ProblemSetError(f"there is no problem set {name}/{split}; there are {', '.join(manifest)}")
    path = folder / entry["file"]
    try:
        rows = pd.read_parquet(path)
    except Exception as error:
        raise ProblemSetError(f"{path} cannot be read ({error}): restore it with `git checkout`") from error
    if digest(rows) != entry["sha256"]:
        raise ProblemSetError(f"{path} is not the set of {folder / 'manifest.json'}: restore it with `git checkout`")
    return rows
