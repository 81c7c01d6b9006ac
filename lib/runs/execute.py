"""Execute one run: one notebook in its own process, alone in its folder, on its own GPU if there is one."""

import json
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from nbclient.exceptions import DeadKernelError
from papermill import PapermillExecutionError, execute_notebook
from papermill.exceptions import strip_color
from traitlets.config import Config

from lib.runs.notebook import atomic, cannot_write, commit_of, versions
from lib.runs.plan import Project, Spec, file_digest, lib_digest, read_record, relative
from lib.runs.process import RunError, gpu, locked

# the kernel's first line: lib.runs.process.die_with_parent, before anything is imported
DIE_WITH_PARENT = ["--IPKernelApp.exec_lines=__import__('ctypes').CDLL(None).prctl(1, 9)"]


def execute(project: Project, spec: Spec, reference: bool = False) -> None:
    """Make one run; with `reference` from the reference results as parents, in data/runs/reference.

    A folder half-made by the same spec is resumed: a checkpoint its notebook finds there is its own. One of
    another spec is emptied first. Raises RunError naming the run, the cell and the log.
    """
    folder = project.runs / "reference" / spec.profile / spec.name if reference else project.folder(spec)
    parents = parent_folders(project, spec, reference)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, spec.name), nullcontext() if spec.declaration.analysis else gpu() as device:
        began = {
            "profile": spec.profile,
            "run": spec.name,
            "notebook": spec.notebook,
            "code": spec.code,
            "fingerprint": spec.fingerprint,
            "parameters": parameters(project, spec, folder, parents),
            "parents": {name: file_digest(path / "run.json") for name, path in parents.items()},
        }
        if not reference and is_finished(folder, began):
            print(f"> {spec.name}: another process has just finished it", flush=True)
            return
        prepare(folder, began)
        started, clock = datetime.now(UTC), time.monotonic()
        try:
            run_notebook(project, spec, folder, began["parameters"], device)
        except OSError as error:
            raise cannot_write(folder / "notebook.ipynb", error) from error
        commit, dirty = commit_of(project.root)
        record = began | {
            "seed": spec.params.get("seed"),
            "threads": spec.declaration.threads,
            "commit": commit,
            "dirty": dirty,
            "lib": lib_digest(project.root),
            "python": platform.python_version(),
            "versions": versions(),
            "artifacts": read_lines(folder / "artifacts.txt"),
            "status": "finished",
            "started": started.isoformat(timespec="seconds"),
            "elapsed": round(time.monotonic() - clock, 1),
            "peak_memory_mb": peak_memory_mb(),
        }
        with atomic(folder / "run.json") as path:
            path.write_text(json.dumps(record, indent=1) + "\n")


def parent_folders(project: Project, spec: Spec, reference: bool) -> dict[str, Path]:
    """Folders of the finished parents. Raises RunError for one that is missing."""
    folders = {}
    for name in spec.parents:
        parent = project.specs(spec.profile)[name]
        folder = project.reference_folder(parent) if reference else project.source(parent)
        mixed = spec.declaration.analysis and not reference and folder != project.folder(parent)
        if folder is None or mixed or read_record(folder) is None:
            if spec.declaration.partial:
                continue
            remedy = f"`python -m lib.runs make {spec.profile} {name}`"
            raise RunError(f"{spec.name} needs {name}, which is not there: {remedy}")
        folders[name] = folder
    return folders


def parameters(project: Project, spec: Spec, folder: Path, parents: dict[str, Path]) -> dict:
    """What the notebook is given: its parameters, its folder, its parents' folders."""
    paths = {name: relative(path, project.root) for name, path in parents.items()}
    needs = {
        key: paths[value] if isinstance(value, str) else [paths[name] for name in value if name in paths]
        for key, value in spec.declaration.needs.items()
    }
    return spec.params | needs | {"output": relative(folder, project.root)}


def is_finished(folder: Path, began: dict) -> bool:
    record = read_record(folder)
    return record is not None and all(record[key] == value for key, value in began.items())


def prepare(folder: Path, began: dict) -> None:
    """Empty a folder that was begun with another spec; write this one's."""
    spec_file, text = folder / "spec.json", json.dumps(began, indent=1) + "\n"
    if not spec_file.exists() or spec_file.read_text() != text:
        if spec_file.exists():
            print(f"> {began['run']}: begun with other parameters, code or parents; starts anew", flush=True)
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("run.json", "artifacts.txt"):
        (folder / name).unlink(missing_ok=True)
    with atomic(spec_file) as path:
        path.write_text(text)


def run_notebook(project: Project, spec: Spec, folder: Path, parameters: dict, device: str | None) -> None:
    """Papermill, with the kernel over IPC in a short directory of its own: no open port, no collision."""
    executed = folder / "notebook.ipynb"
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as short,
        (folder / "log.txt").open("w") as log,
    ):
        os.environ.update(environment(project, spec, short, device))
        try:
            execute_notebook(
                project.root / "notebooks" / f"{spec.notebook}.ipynb",
                executed,
                parameters,
                kernel_name="python3",
                language="python",
                cwd=project.root,
                progress_bar=False,
                stdout_file=log,
                stderr_file=log,
                config=Config({"KernelManager": {"transport": "ipc", "ip": f"{short}/s"}}),
                extra_arguments=DIE_WITH_PARENT if sys.platform == "linux" else [],
            )
        except (PapermillExecutionError, DeadKernelError) as error:
            raise RunError(explain(project, spec, executed, error)) from error


def environment(project: Project, spec: Spec, short: str, device: str | None) -> dict[str, str]:
    threads = str(spec.declaration.threads)
    return {
        "PYTHONPATH": os.pathsep.join([str(project.root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "COUNTDOWN_ROOT": str(project.root),  # Run checks that lib is this checkout's
        "IPYTHONDIR": short,  # nobody's start-up files, nobody's history
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "SOURCE_DATE_EPOCH": "0",  # no dates in PDFs
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **({"HF_HUB_OFFLINE": "1"} if project.declarations.profiles[spec.profile].offline else {}),
        **({"CUDA_VISIBLE_DEVICES": device} if device is not None else {}),
    }


def explain(project: Project, spec: Spec, executed: Path, error: Exception) -> str:
    """Which run, which cell, why, and where to read on."""
    if isinstance(error, DeadKernelError):
        source = last_source(executed)
        reason = "its kernel died; most often the machine's memory was full, or the process was killed"
    else:
        source = error.source
        lines = strip_color("\n".join(error.traceback)).strip().splitlines()
        reason = "\n".join(lines[-6:]) or f"{error.ename}: {error.evalue}"
    first = next((line for line in source.splitlines() if line.strip()), "")
    where = f"run {spec.name} ({spec.profile}) failed in the cell that starts with `{first}`"
    return f"{where}:\n{reason}\nlog: {relative(executed, project.root)}"


def last_source(executed: Path) -> str:
    """The last code cell that was begun, by papermill's own marks."""
    cells = [cell for cell in json.loads(executed.read_text())["cells"] if cell["cell_type"] == "code"]
    begun = [cell for cell in cells if cell["metadata"].get("papermill", {}).get("start_time")]
    return "".join((begun or cells)[-1]["source"])


def peak_memory_mb() -> int:
    """The largest resident size of any child, the kernel above all."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


def read_lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []
