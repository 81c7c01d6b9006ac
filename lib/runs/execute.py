"""Execute one run: one notebook in its own process, alone in its folder, on its own GPU if there is one."""

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

from nbclient.exceptions import DeadKernelError
from papermill import PapermillExecutionError, execute_notebook
from papermill.clientwrap import PapermillNotebookClient
from papermill.exceptions import strip_color
from traitlets.config import Config

from lib.files import atomic, shown, writing
from lib.runs.folder import provenance
from lib.runs.plan import Project, Spec, as_json, digest, lib_digest, read_record
from lib.runs.process import RunError, caches, gpu, locked

# nbclient answers an Output widget (`interact`) on the socket where it awaits the cell's reply, and then may never see
# that (its issue 312). Unanswered, what is shown inside the widget becomes the cell's own output.
PapermillNotebookClient.on_comm_open_jupyter_widget = lambda self, msg: None
# The kernel's first lines. jupyter_client interrupts a kernel before it asks it to end; one that is still tidying up
# behind its last cell speaks of an error then, on everybody's screen. And lib.runs.process.die_with_parent.
EXEC = "--IPKernelApp.exec_lines="
QUIET = [EXEC + "get_ipython().kernel.log.addFilter(lambda record: 'KeyboardInterrupt' not in str(record.msg))"]
DIE_WITH_PARENT = [EXEC + "__import__('ctypes').CDLL(None).prctl(1, 9)"]
OURS = ("spec.json", "run.json", "spent.txt", "log.txt", "notebook.ipynb")  # the runner's files beside the notebook's
PULSE = 1.0  # seconds between two notes of the time spent: what a kill can lose of it


def execute(project: Project, spec: Spec) -> None:
    """Make one run in its folder.

    A folder half-made by the same spec is resumed: a checkpoint its notebook finds there is its own. One of
    another spec is emptied first. Raises RunError naming the run, the cell and the log.
    """
    parents, folder = parent_folders(project, spec), spec.folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, spec.name), nullcontext() if spec.study else gpu() as device:
        if not project.published and spec.state == "done":
            print(f"> {spec.name}: another process has just finished it", flush=True)
            return
        needs = {
            key: shown(parents[value])
            if isinstance(value, str)
            else [shown(parents[one]) for one in value if one in parents]
            for key, value in spec.declaration.needs.items()
            if not isinstance(value, str) or value in parents
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
        if project.published:  # drawn anew, not resumed
            (folder / "spent.txt").unlink(missing_ok=True)
        started = datetime.now(UTC)
        with spending(folder) as spent:
            run_notebook(project, spec, began["parameters"], device)
        shutil.rmtree(folder / "trainer", ignore_errors=True)  # states to resume from: gigabytes, of no use now
        artifacts, peak = folder / "artifacts.txt", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if path.is_file())
        ended = {
            "threads": spec.declaration.threads,
            **provenance(project.root, device),
            "lib": lib_digest(project.root),
            "artifacts": artifacts.read_text().splitlines() if artifacts.exists() else [],
            "files": {name: (folder / name).stat().st_size for name in files if name not in OURS},
            "status": "finished",
            "started": started.isoformat(timespec="seconds"),
            "elapsed": round(spent(), 1),  # all stretches of a run that was resumed
            # of the largest kernel so far, which macOS counts in bytes
            "peak_memory_mb": round(peak / (2**20 if sys.platform == "darwin" else 2**10)),
        }
        with atomic(folder / "run.json") as path:
            path.write_text(as_json(began | ended))


def parent_folders(project: Project, spec: Spec) -> dict[str, Path]:
    """Folders of the finished parents. Raises RunError if one is missing; a study reads those that are there."""
    found = {}
    for name, parent in spec.parents.items():
        state = parent.state
        if project.published:  # a study that was drawn here may have moved to another profile
            state = "done" if read_record(parent.folder) and (parent.reference / "run.json").exists() else "missing"
        if state == "done":
            found[name] = parent.folder
        elif not spec.study:
            remedy = f"`python -m lib.runs make {spec.profile} {name}`"
            raise RunError(f"{spec.name} needs {name}, which is not finished ({state}): {remedy}")
    if spec.parents and not found:
        remedy = f"`python -m lib.runs make {spec.profile} {next(iter(spec.parents))} {spec.name}`"
        raise RunError(
            f"{spec.name} has nothing to read: no run that it compares is finished; ask for some too: {remedy}"
        )
    return found


def prepare(folder: Path, began: dict) -> None:
    """Empty a folder that this run began with another spec; write this one's.

    Nothing is deleted where no spec.json says that the folder is this run's. Raises RunError naming what lies there.
    """
    spec_file, there, name = folder / "spec.json", as_json(began), f"{began['run']}/{began['seed']}"
    before = spec_file.read_text(errors="replace") if spec_file.exists() else ""
    if before != there:
        held = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".spec.json.")]  # half-written
        if held and not written_for(began, before):
            strange = shown(next((path for path in held if path != spec_file), spec_file))
            raise RunError(f"{strange} was not made by run {name}, whose folder it lies in: move it away")
        if held:
            print(f"> {name}: begun with other parameters, code or parents; starts anew", flush=True)
        for path in held:
            if path != spec_file:  # it stays to the last: if this is cut off, the folder is still known as the run's
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for old in ("run.json", "artifacts.txt"):
        (folder / old).unlink(missing_ok=True)
    with atomic(spec_file) as path:
        path.write_text(there)


def written_for(began: dict, text: str) -> bool:
    """Whether the text of a spec.json is that of the same run."""
    try:
        spec = json.loads(text)
        return all(spec[key] == began[key] for key in ("profile", "run", "seed"))
    except (ValueError, KeyError, TypeError):
        return False


@contextmanager
def spending(folder: Path) -> Iterator:
    """Note the seconds spent in spent.txt every PULSE, so that a resumed run adds them up; yields what says them.

    A pulse stands behind them, different each time: who looks on sees that the run is at work.
    """
    file, clock, over = folder / "spent.txt", time.monotonic(), Event()
    before = float((file.read_text().split() or [0])[0]) if file.exists() else 0.0

    def spent() -> float:
        return before + time.monotonic() - clock

    def note() -> None:
        while True:
            with atomic(file) as path:
                path.write_text(f"{spent():.1f} {time.time_ns()}\n")
            if over.wait(PULSE):
                return

    thread = Thread(target=note, daemon=True)
    thread.start()
    try:
        yield spent
    finally:
        over.set()
        thread.join()


def run_notebook(project: Project, spec: Spec, parameters: dict, device: str | None) -> None:
    """Papermill, with the kernel over IPC in a short directory of its own: no open port, no collision."""
    executed = spec.folder / "notebook.ipynb"
    with (
        writing(executed),
        tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as short,
        (spec.folder / "log.txt").open("w") as log,
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
                coalesce_streams=True,  # the kernel sends what waits every .2 s, in the middle of a line too
                config=Config({"KernelManager": {"transport": "ipc", "ip": f"{short}/s"}}),
                extra_arguments=(DIE_WITH_PARENT if sys.platform == "linux" else []) + QUIET,
            )
        except (PapermillExecutionError, DeadKernelError) as error:
            raise RunError(explain(spec, executed, error)) from error


def environment(project: Project, spec: Spec, short: str, device: str | None) -> dict[str, str]:
    """What a kernel's environment has to say; `short` is its own directory."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **caches(project.runs),
        **dict.fromkeys(threads, str(spec.declaration.threads)),
        "PYTHONPATH": os.pathsep.join([str(project.root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "COUNTDOWN_ROOT": str(project.root),  # Run checks that lib is this checkout's
        "IPYTHONDIR": short,  # nobody's start-up files, nobody's history
        "JUPYTER_RUNTIME_DIR": short,  # nothing is written to a home
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
