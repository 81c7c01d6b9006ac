"""A run as its notebook sees it: the folder of its results, with a record of what began them and
what made them."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.files import REFERENCE, ROOT, atomic, shown, write_table, writing
from lib.runs import cells, code
from lib.runs.hashes import Given, inputs, lib_digest, results, with_new_names
from lib.runs.machine import try_lock
from lib.runs.parameters import FIELDS, check

if TYPE_CHECKING:  # the command line writes no tables and need not import pandas
    import pandas as pd

PACKAGES = (
    "datasets",
    "numpy",
    "pandas",
    "papermill",
    "scipy",
    "snakemake",
    "torch",
    "transformers",
    "trl",
    "vllm",
)
_held: int | None = None  # the folder in which this process works by hand, open and locked


class Run:
    """The folder of one run, created if it does not exist. A notebook calls `run = Run(output,
    globals())` below its parameters.

    `given`: a mapping with the parameters, which may have other names as well. `notebook`: the
    notebook's name, if its parameters must also fit together (`lib.runs.parameters.TOGETHER`).
    `shared`: the folder may hold files that no run has made, as data/problems does. Raises
    ValueError that names a parameter with an impossible value, or a folder that is not for
    runs. The root of the repository becomes the working directory, so relative paths mean the same
    in JupyterLab and under the runner. A notebook that is run by hand goes on from what is in the
    folder if the folder was begun with the same parameters; results of other parameters are set
    aside (`begin`).
    """

    def __init__(
        self,
        output: str | Path,
        given: Given | None = None,
        *,
        notebook: str = "",
        shared: bool = False,
    ):
        root = os.environ.get("COUNTDOWN_ROOT", ROOT)  # set by the runner
        if Path(root) != ROOT:
            raise RuntimeError(
                f"lib was imported from {ROOT} but this run belongs to {root}: unset PYTHONPATH"
            )
        names = [
            name
            for name in parameters_of(given or {})
            if name in FIELDS or name.endswith("_options")
        ]
        check({name: (given or {})[name] for name in names}, notebook=notebook)
        os.chdir(ROOT)
        self.folder = ROOT / Path(output).expanduser()
        place = self.folder.resolve()
        if ROOT.is_relative_to(place) or place.is_relative_to(REFERENCE.resolve()):
            raise ValueError(
                f"output is {str(output)!r}, where no run writes: name a folder like "
                "data/runs/scratch/x"
            )
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        has_runner = "COUNTDOWN_ROOT" in os.environ  # which prepares the folder
        self.by_hand = given is not None and not has_runner
        if not has_runner:
            refuse_edited_code()
        self.executed = code.executed({})
        if self.by_hand:
            hold(self.folder)
            spec = asked_now(given or {}, self.executed)
            goes_on = begin(self.folder, spec, shared)
            cells.watch(self.folder, goes_on, partial(begin_anew, self.folder, spec))
        self.note_code()

    def note_code(self) -> None:
        """Leave a note for the runner of which code this kernel has loaded so far."""
        if "COUNTDOWN_ROOT" in os.environ:
            write_json(self / code.FILE, self.executed)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def write(self, table: pd.DataFrame, name: str) -> Path:
        """Write a table as .parquet (zstd) or .csv, completely or not at all. Raises OSError on a
        full disk.

        Fractional numbers in a .csv get six significant digits, except in the training log
        metrics.csv, which keeps all digits."""
        return write_table(table, self / name, rounded=name != "metrics.csv")

    def report(self, *paths: str | Path) -> None:
        """Record the figures and tables that this run has made. `make figures` copies them to
        figures/."""
        with (self / "artifacts.txt").open("a") as file:
            for path in paths:
                print(Path(path).relative_to(self.folder), file=file)
                print(f"made {shown(Path(path))}")

    def footer(self) -> None:
        """Print what these results were made with. The last cell of a notebook calls it.

        A run by hand is then finished, and gets a run.json, by which other notebooks find it. It
        belongs to no profile, its name is its folder, and the hashes of its files are left out,
        since its cells may be executed again."""
        self.executed = code.executed(self.executed)
        self.note_code()
        cells.stop()
        # not of files that were edited since
        origin: dict[str, Any] = provenance(ROOT) | {"lib": code.loaded_lib()}
        if self.by_hand and (spec := read_spec(self.folder)):  # a shared folder has none
            refuse_other_inputs(spec)
            record = {"profile": None, **dict.fromkeys(("run", "method"), shown(self.folder))}
            record |= {"seed": spec["parameters"].get("seed", 0), "parameters": spec["parameters"]}
            record |= {"parents": {}, "files": {}, "status": "finished"} | origin
            write_json(self / "run.json", record | with_earlier(spec, self.executed))
            for path in code.edited():
                print(
                    f"{shown(path)} was edited while this ran; these results are those of the code "
                    "before the edit"
                )
        print(f"run      {shown(self.folder)}")
        changes = " with changes" if origin["dirty"] else ""
        machine = f"{platform.system()} {platform.machine()}, {origin['cpu']}"
        versions = [f"{name} {number}" for name, number in origin["versions"].items()]
        print(f"commit   {origin['commit'] or 'not in git'}{changes}")
        print(f"python   {origin['python']} on {machine}")
        print(f"packages {', '.join(versions)}")


# --- what a folder was begun with -----------------------------------------------------------------


def refuse_edited_code() -> None:
    """Raise RuntimeError if this kernel has loaded a file of lib/ that was edited since: it would
    run the old code."""
    if paths := code.edited():
        names = ", ".join(map(shown, paths))
        raise RuntimeError(
            f"{names}: edited after this kernel loaded it. Restart the kernel, then run all cells"
        )


def refuse_other_inputs(spec: Mapping) -> None:
    """Raise RuntimeError if something that the parameters name, such as a reward in a cell, is no
    longer what it was when the run began: nobody knows which of the two the cells have used."""
    now = inputs(spec["parameters"], ROOT)
    names = [name for name, old in spec.get("inputs", {}).items() if now.get(name, old) != old]
    if names:
        raise RuntimeError(
            f"{', '.join(names)}: edited while this ran, so it is not finished. Run all cells again"
        )


def with_earlier(spec: Mapping, executed: dict[str, str]) -> dict[str, object]:
    """`executed` as fields of run.json; beside that of the kernel which began the run, if this is
    another one."""
    began = spec.get("executed", {})
    if other_modules(began, executed):
        return {"executed": began, "resumed_by": [{"executed": executed}]}
    return {"executed": executed}


def other_modules(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The modules whose code is another one than it was."""
    return [name for name, old in then.items() if now.get(name, old) != old]


def asked_now(given: Given, executed: Mapping[str, str]) -> dict:
    """What spec.json records of a notebook that is run by hand: the parameters, hashes of the files
    that they name, and the code (`executed`)."""
    parameters = {name: value for name, value in parameters_of(given).items() if name != "output"}
    hashes = inputs(parameters, ROOT) | results(parameters, ROOT)
    spec = {"parameters": parameters, "inputs": hashes, "executed": executed}
    return json.loads(json.dumps(spec))


def begin(folder: Path, spec: dict, shared: bool = False) -> bool:
    """Prepare a folder for a notebook that is run by hand, and say what happens to the files in it.
    Returns whether the run goes on from results.

    spec.json records what the folder was begun with, as `asked_now` gives it. If parameters and
    files are the same as now, the run goes on from what is saved; otherwise, and if the folder
    holds a run that `make` has finished (run.json), the old content is set aside, since results are
    never overwritten. A file that did not exist then is no difference: notebook 03 may write its
    text itself. Raises ValueError for a folder with files but without a spec.json, which is not the
    folder of a run, unless it is `shared`."""
    old_spec = read_spec(folder)
    files = [path for path in content(folder) if path.suffix != ".ipynb"]
    if files and old_spec is None:
        if shared:
            return False
        remedy = "give this run another output, or move the file away"
        raise ValueError(
            f"{shown(files[0])} was not made by a run, and this run would write beside it: {remedy}"
        )
    begun = {"parameters": {}, "inputs": {}} | (old_spec or {})
    changed = asked_otherwise(begun, spec)
    by_runner = "profile" in begun
    finished = by_runner and (folder / "run.json").exists()
    begins_anew = changed or finished
    if files and begins_anew:
        reason = "the same parameters, and is finished"
        if changed:
            reason = f"another {', '.join(changed)}"
        print(
            f"{shown(folder)} was begun with {reason}: this run begins anew, and what lay there "
            "is in"
        )
        print(shown(set_aside(folder)))
    has_results = any(path.name != "spec.json" for path in files)
    goes_on = has_results and not begins_anew
    new_spec = spec
    if goes_on:
        began = begun.get("executed", spec["executed"])
        say_that_it_goes_on(folder, other_modules(began, spec["executed"]))
        new_spec = spec | {"executed": began}
    for name in ("run.json", "artifacts.txt"):
        (folder / name).unlink(missing_ok=True)
    if begins_anew or not by_runner:
        write_json(folder / "spec.json", new_spec)
    return goes_on


def begin_anew(folder: Path, spec: dict) -> Path:
    """Set the content of a run's folder aside, because a cell was edited, and begin it with `spec`.
    Returns where the old content is."""
    aside = set_aside(folder)
    write_json(folder / "spec.json", spec)
    return aside


def asked_otherwise(begun: Mapping, now: Mapping) -> list[str]:
    """The parameters that are not those which a folder was begun with; if all are, the files that
    have changed since."""
    then = with_new_names(begun["parameters"])
    parameters = now["parameters"]
    changed = []
    for name in then | parameters:
        if name != "output" and then.get(name, ...) != parameters.get(name, ...):
            changed.append(name)
    hashes = now["inputs"]
    return changed or [
        name for name, old in begun["inputs"].items() if old != hashes.get(name, old)
    ]


def say_that_it_goes_on(folder: Path, other: list[str]) -> None:
    """Print what a run by hand finds in its folder. `other`: the modules that have changed since
    the folder was begun."""
    is_training = any(folder.glob("trainer/checkpoint-*/complete.json"))
    what = "all cells run again"
    if is_training:
        what = "training goes on from its last saved state, unless all updates are made"
    print(f"{shown(folder)} was begun with the same parameters and files: {what}")
    print("For the results of other code, name another output or delete this folder")
    if other:
        print(f"It was begun by other code of {', '.join(other)}; its run.json names both")


def parameters_of(given: Given) -> dict[str, Any]:
    """The parameters among the names of a notebook: those that the cell which assigns both `output`
    and `seed` has assigned, according to IPython's history. Without such a cell every name counts
    if its value is plain. A value that is not plain is represented by its text."""
    names = set()
    for cell in filter(cells.is_parameters, given.get("In", ())):
        names |= cells.assigned(cell)
    # or not finite
    plain = {name for name, value in given.items() if is_plain(value) or isinstance(value, float)}
    names = names or plain - {"In", "Out"}
    found = {}
    for name, value in given.items():
        if name in names and name[0] != "_":
            found[name] = value if is_plain(value) else repr(value)
    return found


def hold(folder: Path) -> None:
    """Lock a folder until this process ends or holds another. Raises ValueError if another process
    has locked it."""
    global _held
    if _held is not None:
        os.close(_held)
    _held = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # of a file system without locks
        if not try_lock(_held):
            raise ValueError(
                f"another notebook works in {shown(folder)}: give this one another output"
            )


def is_plain(value: object) -> bool:
    """Whether a value can be written to a JSON file and read back unchanged."""
    with suppress(TypeError, ValueError):
        return json.loads(json.dumps(value)) == value
    return False


def read_spec(folder: Path) -> dict | None:
    """The content of a folder's spec.json: {} if the file is damaged, None if there is none."""
    try:
        spec = json.loads((folder / "spec.json").read_text())
        return spec if isinstance(spec, dict) else {}
    except FileNotFoundError:
        return None
    except (ValueError, OSError):
        return {}


def content(folder: Path) -> list[Path]:
    """The files and folders in a run's folder, without hidden ones, which are half-written
    files."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def set_aside(folder: Path) -> Path:
    """Move the content of a folder into a new folder with the time in its name. Returns the new
    folder.

    run.json gets another name, so that no search for finished runs finds it. spec.json is moved
    last: if the process is killed before that, the old folder can still be recognised as that of
    the run."""
    backup = folder.with_name(f"{folder.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    while backup.exists():
        backup = backup.with_name(backup.name + "x")
    backup.mkdir()
    for path in sorted(content(folder), key=lambda path: path.name == "spec.json"):
        path.rename(backup / ("run.before.json" if path.name == "run.json" else path.name))
    return backup


def write_json(path: Path, record: Mapping) -> None:
    """Write run.json or spec.json, completely or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")


# --- what results were made with ------------------------------------------------------------------


def provenance(root: Path, gpu: str | None = None) -> dict[str, Any]:
    """What results are made with here: commit, hash of lib/, Python, processor, GPU and packages.

    `dirty`: tracked files differ from the commit, or lib/ contains untracked files. Notebooks do
    not count, since JupyterLab saves their outputs, and the runner records a hash of their code.

    The processor matters because equal seeds repeat a run bit by bit on one type of processor only.
    """
    git = ("git", "-C", str(root))  # whose GIT_DIR and the like `said` leaves out
    # None without git, ../ inside another project
    is_repository = said(*git, "rev-parse", "--show-cdup") == ""
    untracked = said(*git, "ls-files", "--others", "--exclude-standard", "lib")
    # `git diff` would compare the files of a fresh clone anew each time; this remembers them
    changed = said(*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.ipynb")
    return {
        "commit": said(*git, "rev-parse", "HEAD") if is_repository else None,
        "dirty": is_repository and bool(untracked or changed),
        "lib": lib_digest(root),  # of all files, comments included: equal hashes are equal code
        "python": platform.python_version(),
        "cpu": processor(),
        **(
            {"gpu": said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", gpu)}
            if gpu
            else {}
        ),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The version of each of PACKAGES that is installed, by name."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def said(*command: str) -> str | None:
    """What a command prints; None if it fails or is not installed. Variables such as GIT_DIR, which
    a hook sets, would make git speak of another repository."""
    env = {
        name: value for name, value in os.environ.items() if not re.match("GIT_(?!CONFIG)", name)
    }
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=env
        ).stdout.strip()
    return None


def processor() -> str | None:
    """The name of the processor, on Linux with family and model, since processors of one name may
    be of several types. None if the system does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    block = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.exists() else ""
    fields = dict(
        line.split("\t: ", 1) for line in block.replace("\t\t", "\t").splitlines() if "\t: " in line
    )
    formats = {"model name": "{}", "cpu family": "family {}", "model": "model {}"}
    parts = [form.format(fields[key]) for key, form in formats.items() if key in fields]
    return ", ".join(parts) or platform.processor() or None
