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

from lib.files import atomic, shown, writing
from lib.runs.folder import commit_of, processor, versions
from lib.runs.plan import Project, Spec, as_json, digest, lib_digest, read_record
from lib.runs.process import RunError, gpu, locked

# the kernel's first line: lib.runs.process.die_with_parent, before anything is imported
DIE_WITH_PARENT = ["--IPKernelApp.exec_lines=__import__('ctypes').CDLL(None).prctl(1, 9)"]


def execute(project: Project, spec: Spec, reference: bool = False) -> None:
    """Make one run; with `reference` from the reference results as parents, in data/runs/reference.

    A folder half-made by the same spec is resumed: a checkpoint its notebook finds there is its own. One of
    another spec is emptied first. Raises RunError naming the run, the cell and the log.
    """
    parents = parent_folders(spec, reference)
    folder = spec.remade if reference else spec.folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, spec.name), nullcontext() if spec.declaration.analysis else gpu() as device:
        if not reference and spec.state == "done":
            print(f"> {spec.name}: another process has just finished it", flush=True)
            return
        shown_parents = {name: shown(path) for name, path in parents.items()}
        needs = {
            key: shown_parents[value]
            if isinstance(value, str)
            else [shown_parents[name] for name in value if name in parents]
            for key, value in spec.declaration.needs.items()
        }
        began = {
            "profile": spec.profile,
            "run": spec.run,
            "method": spec.method,
            "seed": spec.params["seed"],
            "notebook": spec.notebook,
            "code": spec.code,
            "fingerprint": spec.fingerprint,
            "parameters": spec.params | needs | {"output": shown(folder)},
            "parents": {name: digest(path / "run.json") for name, path in parents.items()},
        }
        prepare(folder, began)
        started, clock = datetime.now(UTC), time.monotonic()
        run_notebook(project, spec, folder, began["parameters"], device)
        commit, dirty = commit_of(project.root)
        artifacts, peak = folder / "artifacts.txt", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        ended = {
            "threads": spec.declaration.threads,
            "commit": commit,
            "dirty": dirty,
            "lib": lib_digest(project.root),
            "python": platform.python_version(),
            "cpu": processor(),
            "versions": versions(),
            "artifacts": artifacts.read_text().splitlines() if artifacts.exists() else [],
            "status": "finished",
            "started": started.isoformat(timespec="seconds"),
            "elapsed": round(time.monotonic() - clock, 1),
            # of the largest kernel so far, which macOS counts in bytes
            "peak_memory_mb": round(peak / (2**20 if sys.platform == "darwin" else 2**10)),
        }
        with atomic(folder / "run.json") as path:
            path.write_text(as_json(began | ended))


def parent_folders(spec: Spec, reference: bool) -> dict[str, Path]:
    """Folders of the finished parents, those of an analysis from one source. Raises RunError if one is missing."""
    folders = {}
    for name, parent in spec.parents.items():
        if reference:
            published = parent.remade if parent.declaration.analysis else parent.reference
            folder = published if read_record(published) else None
            remedy = f"`make study`, then `python -m lib.runs publish {spec.profile} {name}`"
        else:
            lent = parent.lent and not spec.declaration.analysis
            folder = parent.folder if parent.state == "done" else parent.reference if lent else None
            remedy = f"`python -m lib.runs make {spec.profile} {name}`"
        if folder is None and spec.declaration.allow_missing:
            continue
        if folder is None:
            where = "in data/reference" if reference else "there"
            raise RunError(f"{spec.name} needs {name}, which is not {where}: {remedy}")
        folders[name] = folder
    if spec.parents and not folders:
        named = f"`python -m lib.runs make {spec.profile} {next(iter(spec.parents))} {spec.name}`"
        raise RunError(
            f"{spec.name} has nothing to read: no run that it compares is finished; ask for some too: {named}"
        )
    return folders


def prepare(folder: Path, began: dict) -> None:
    """Empty a folder that this run began with another spec; write this one's.

    Nothing is deleted where no spec.json says that the folder is this run's. Raises RunError naming what lies there.
    """
    spec_file, there = folder / "spec.json", as_json(began)
    before = spec_file.read_text(errors="replace") if spec_file.exists() else ""
    if before != there:
        held = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".spec.json.")]  # half-written
        if held and not written_for(began, before):
            strange = shown(next((path for path in held if path != spec_file), spec_file))
            raise RunError(f"{strange} was not made by run {began['run']}, whose folder it lies in: move it away")
        if held:
            print(f"> {began['run']}: begun with other parameters, code or parents; starts anew", flush=True)
        for path in held:
            if path != spec_file:  # it stays to the last: if this is cut off, the folder is still known as the run's
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in ("run.json", "artifacts.txt"):
        (folder / name).unlink(missing_ok=True)
    with atomic(spec_file) as path:
        path.write_text(there)


def written_for(began: dict, text: str) -> bool:
    """Whether the text of a spec.json is that of the same run."""
    try:
        spec = json.loads(text)
        return all(spec[key] == began[key] for key in ("profile", "run", "seed"))
    except (ValueError, KeyError, TypeError):
        return False


def run_notebook(project: Project, spec: Spec, folder: Path, parameters: dict, device: str | None) -> None:
    """Papermill, with the kernel over IPC in a short directory of its own: no open port, no collision."""
    executed = folder / "notebook.ipynb"
    with (
        writing(executed),
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
            raise RunError(explain(spec, executed, error)) from error


def environment(project: Project, spec: Spec, short: str, device: str | None) -> dict[str, str]:
    """What a kernel's environment has to say; `short` is its own directory."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **dict.fromkeys(threads, str(spec.declaration.threads)),
        "PYTHONPATH": os.pathsep.join([str(project.root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "COUNTDOWN_ROOT": str(project.root),  # Run checks that lib is this checkout's
        "IPYTHONDIR": short,  # nobody's start-up files, nobody's history
        "TOKENIZERS_PARALLELISM": "false",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "SOURCE_DATE_EPOCH": "0",  # no dates in PDFs
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **({"HF_HUB_OFFLINE": "1"} if project.declarations.profiles[spec.profile].offline else {}),
        **({"CUDA_VISIBLE_DEVICES": device} if device is not None else {}),
    }


def explain(spec: Spec, executed: Path, error: Exception) -> str:
    """Which run, which cell (the last one begun, by papermill's own marks), why, and where to read on."""
    cells = [cell for cell in json.loads(executed.read_text())["cells"] if cell["cell_type"] == "code"]
    begun = [cell for cell in cells if cell["metadata"].get("papermill", {}).get("start_time")]
    source = "".join((begun or cells)[-1]["source"])
    first = next((line for line in source.splitlines() if line.strip()), "")
    reason = "its kernel died; most often the machine's memory was full, or the process was killed"
    if isinstance(error, PapermillExecutionError):
        lines = strip_color("\n".join(error.traceback)).strip().splitlines()
        reason = "\n".join(lines[-6:]) or f"{error.ename}: {error.evalue}"
    where = f"run {spec.name} ({spec.profile}) failed in the cell that starts with `{first}`"
    return f"{where}:\n{reason}\nlog: {shown(executed)}"
