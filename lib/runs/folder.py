"""A run as its notebook sees it: a folder, what began it, what it made, and a footer that says what made it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.files import ROOT, atomic, shown, write_table
from lib.runs.hashes import inputs, lib_digest, literals
from lib.runs.parameters import FIELDS, check

if TYPE_CHECKING:  # the front door writes no table
    import pandas as pd

PACKAGES = {"torch", "transformers", "trl", "datasets", "numpy", "pandas", "scipy", "papermill", "snakemake", "vllm"}


class Run:
    """The folder of one run, made if need be: `run = Run(output, globals())` below a notebook's parameters.

    `given`: the parameters, among other names; ValueError says which cannot be. The repository's root becomes the
    working directory: relative paths mean the same in JupyterLab and here. A notebook that is run by hand goes on with
    what lies in the folder if the same parameters began it; the results of others are set aside (`begin`).
    """

    def __init__(self, output: str | Path, given: Mapping[str, Any] | None = None):
        here = os.environ.get("COUNTDOWN_ROOT", ROOT)  # set by the runner
        if Path(here) != ROOT:
            raise RuntimeError(f"lib was imported from {ROOT} but this run belongs to {here}: unset PYTHONPATH")
        check({name: value for name, value in (given or {}).items() if name in FIELDS or name.endswith("_options")})
        os.chdir(ROOT)
        self.folder = ROOT / output
        self.folder.mkdir(parents=True, exist_ok=True)
        if given is not None and "COUNTDOWN_ROOT" not in os.environ:  # the runner has prepared the folder itself
            begin(self.folder, given)

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


# --- what began a folder ------------------------------------------------------------------------------------


def begin(folder: Path, given: Mapping[str, Any]) -> None:
    """Make a folder ready for a notebook that is run by hand, and say what happens to what lies there.

    spec.json keeps what began the folder: the parameters, and hashes of what they name. The same again goes on from
    what is saved; anything else sets the old content aside. A folder with other files and no saved training is left as
    it is: it is not a run's, as data/problems.
    """
    parameters = {name: value for name, value in parameters_of(given).items() if name != "output"}
    began = json.loads(json.dumps({"parameters": parameters, "inputs": inputs(parameters, ROOT)}))
    before, held = read_spec(folder), [path for path in content(folder) if path.suffix != ".ipynb"]
    saved = sorted(folder.glob("trainer/checkpoint-*"), key=lambda path: (len(path.name), path.name))
    if held and before is None and not saved:
        return
    differs = list(changes(before or {}, began))
    if held and (differs or not before):
        why = f"another {', '.join(differs)}" if before else "nobody knows which parameters"
        print(f"{shown(folder)} was begun with {why}: this run begins anew, and what lay there is in")
        print(shown(set_aside(folder)))
    elif held:
        where = saved[-1].name if saved else "there"
        print(f"{shown(folder)} was begun with the same parameters: goes on from {where}")
    if differs or not before:
        write_json(folder / "spec.json", began)


def changes(before: Mapping[str, Any], began: Mapping[str, Any]) -> Iterator[str]:
    """The parameters and inputs that differ between a spec.json and the present beginning."""
    parameters, named = before.get("parameters", {}), before.get("inputs", {})
    for name, value in began["parameters"].items():
        if parameters.get(name, ...) != value:
            yield name
    for name in {**began["inputs"], **named}:
        if named.get(name) != began["inputs"].get(name):
            yield name


def parameters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters among a notebook's names: what cells of plain literals assign, by IPython's history, if any."""
    assigned = set() if "In" in given else {*given}
    for cell in given.get("In", ()):
        with suppress(SyntaxError, ValueError, TypeError, AttributeError):
            assigned |= literals(cell).keys()
    return {name: value for name, value in given.items() if name in assigned and name[0] != "_" and is_plain(value)}


def is_plain(value: Any) -> bool:
    """Whether a value can stand in a YAML or JSON file."""
    with suppress(TypeError, ValueError):
        return json.loads(json.dumps(value)) == value
    return False


def read_spec(folder: Path) -> dict[str, Any] | None:
    """What began a folder: its spec.json; {} for one that is torn, None where there is none."""
    try:
        found = json.loads((folder / "spec.json").read_text())
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return None
    except (ValueError, OSError):
        return {}


def content(folder: Path) -> list[Path]:
    """What lies in a run's folder. Hidden names are half-written files."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def set_aside(folder: Path) -> Path:
    """Move what lies in a folder into a new one with the time in its name, which this gives back.

    run.json gets another name, so that no pattern of folders takes it for a finished run. spec.json goes last: if this
    is cut off, the folder is still known as the run's.
    """
    aside = folder.with_name(f"{folder.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    while aside.exists():
        aside = aside.with_name(aside.name + "x")
    aside.mkdir()
    for path in sorted(content(folder), key=lambda path: path.name == "spec.json"):
        path.rename(aside / ("run.before.json" if path.name == "run.json" else path.name))
    return aside


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write run.json or spec.json, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")


# --- what made it -------------------------------------------------------------------------------------------


def provenance(root: Path, gpu: str | None = None) -> dict[str, Any]:
    """What makes results here: commit, lib/, Python, processor, GPU and packages.

    `dirty`: tracked files differ from the commit, or lib/ holds others. Notebooks do not count: JupyterLab saves their
    outputs, and a run has a hash of their code.

    Equal seeds repeat a run bit by bit on one kind of processor.
    """
    git = ("git", "-C", str(root))
    here = said(*git, "rev-parse", "--show-cdup") == ""  # no git, or unpacked inside another project: None, ../
    others = said(*git, "ls-files", "--others", "--exclude-standard", "lib")
    return {
        "commit": said(*git, "rev-parse", "HEAD") if here else None,
        "dirty": here and bool(others or said(*git, "diff", "--name-only", "HEAD", "--", ".", ":!*.ipynb")),
        "lib": lib_digest(root),
        "python": platform.python_version(),
        "cpu": processor(),
        **({"gpu": said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", gpu)} if gpu else {}),
        "versions": dict(sorted((one.name, one.version) for one in distributions() if one.name in PACKAGES)),
    }


def said(*command: str) -> str | None:
    """What a command prints; None where it fails or is not installed."""
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


def processor() -> str | None:
    """The processor's name, where the system says it with family and model: one name may cover several kinds."""
    cpuinfo = Path("/proc/cpuinfo")
    first = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.exists() else ""
    fields = dict(line.split("\t: ", 1) for line in first.replace("\t\t", "\t").splitlines() if "\t: " in line)
    known = {"model name": "{}", "cpu family": "family {}", "model": "model {}"}
    named = [form.format(fields[key]) for key, form in known.items() if key in fields]
    return ", ".join(named) or platform.processor() or None
