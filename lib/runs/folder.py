"""A run as its notebook sees it: a folder, what it made, and a footer that says what made it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.files import PINNED, ROOT, shown, write_table
from lib.runs.parameters import FIELDS, check

if TYPE_CHECKING:  # the front door writes no table
    import pandas as pd

PACKAGES = {"torch", "transformers", "trl", "datasets", "numpy", "pandas", "scipy", "papermill", "snakemake", "vllm"}


class Run:
    """The folder of one run, made if need be: `run = Run(output, globals())` below a notebook's parameters.

    `given`: the parameters, among other names; ValueError says which cannot be. The repository's root becomes the
    working directory: relative paths mean the same in JupyterLab and here.
    """

    def __init__(self, output: str | Path, given: Mapping[str, Any] | None = None):
        here = os.environ.get("COUNTDOWN_ROOT", ROOT)  # set by the runner
        if Path(here) != ROOT:
            raise RuntimeError(f"lib was imported from {ROOT} but this run belongs to {here}: unset PYTHONPATH")
        check({name: value for name, value in (given or {}).items() if name in FIELDS or name.endswith("_options")})
        os.chdir(ROOT)
        self.folder = ROOT / output
        self.folder.mkdir(parents=True, exist_ok=True)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def write(self, table: pd.DataFrame, name: str) -> Path:
        """Write a table as .parquet (zstd) or .csv, whole or not at all. Raises OSError on a full disk.

        The fractions of a .csv get six significant digits; a training log, metrics.csv, keeps all of them.
        """
        return write_table(table, self / name, rounded=name != "metrics.csv")

    def report(self, *paths: str | Path) -> None:
        """Name the figures and tables this run made: `make figures` puts them into figures/."""
        with (self / "artifacts.txt").open("a") as file:
            for path in paths:
                print(Path(path).relative_to(self.folder), file=file)
                print(f"made {shown(Path(path))}")

    def footer(self) -> None:
        """The notebook's last cell: what made these results."""
        made = provenance(ROOT)
        print(f"run      {shown(self.folder)}")
        print(f"commit   {made['commit'] or 'not in git'}{' with changes' if made['dirty'] else ''}")
        print(f"python   {made['python']} on {platform.system()} {platform.machine()}, {made['cpu']}")
        print("packages " + ", ".join(f"{name} {number}" for name, number in made["versions"].items()))


def provenance(root: Path, gpu: str | None = None) -> dict[str, Any]:
    """What makes results here: commit, whether tracked files differ from it, Python, processor, the GPU of that number,
    kernels and packages.

    Equal seeds repeat a run bit by bit on one kind of processor and one kind of kernels ("pinned" by `make BITWISE=1`).
    """
    try:
        commit, dirty = git(root, "rev-parse", "HEAD").strip(), changed(root)
    except (OSError, ValueError, subprocess.CalledProcessError):  # no git, or not in git
        commit, dirty = None, False
    found = {one.name: one.version for one in distributions() if one.name in PACKAGES}
    return {
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "cpu": processor(),
        **({"gpu": graphics(gpu)} if gpu is not None else {}),
        "kernels": "pinned" if PINNED else "native",
        "versions": dict(sorted(found.items())),
    }


def processor() -> str | None:
    """The processor's name, where the system says it with family and model: one name may cover several kinds."""
    cpuinfo = Path("/proc/cpuinfo")
    first = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.exists() else ""
    said = dict(line.split("\t: ", 1) for line in first.replace("\t\t", "\t").splitlines() if "\t: " in line)
    known = {"model name": "{}", "cpu family": "family {}", "model": "model {}"}
    return (
        ", ".join(form.format(said[key]) for key, form in known.items() if key in said) or platform.processor() or None
    )


def graphics(number: str) -> str | None:
    """The name of a GPU, where its driver says it."""
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", number]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return None


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout


def changed(root: Path) -> bool:
    """Whether tracked files differ from the commit: of notebooks their cells, not the outputs that JupyterLab saves."""

    def cells(text: str) -> list:
        return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]

    for name in git(root, "-c", "core.quotepath=off", "diff", "--name-only", "--relative", "HEAD").splitlines():
        path = root / name
        if path.suffix != ".ipynb" or not path.exists():
            return True
        if cells(path.read_text()) != cells(git(root, "show", f"HEAD:./{name}")):
            return True
    return False
