"""The notebook of a run, executed by papermill in a kernel of its own."""

import json
import os
import re
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import nbclient.client
import nbformat
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill import PapermillExecutionError, execute_notebook
from papermill.clientwrap import PapermillNotebookClient
from papermill.exceptions import strip_color
from traitlets.config import Config

from lib.files import shown, writing
from lib.runs import warm
from lib.runs.execute import Usage, surroundings
from lib.runs.hashes import Given
from lib.runs.machine import RunError
from lib.runs.plan import Project, Spec

# nbclient answers an Output widget (as `interact` makes) on the socket on which it waits for the
# reply of the cell, and may then miss that reply (issue 312 of nbclient). Without the answer, what
# the widget shows becomes output of the cell itself.
PapermillNotebookClient.on_comm_open_jupyter_widget = lambda self, msg: None
# nbclient keeps the last state of a progress line by this expression, whose own takes minutes for a
# line of a million characters: without ^ it is tried from every character.
nbclient.client._RGX_CARRIAGERETURN = re.compile(r"^.*\r(?=[^\n])", re.MULTILINE)
# Lines that the kernel executes first. QUIET: jupyter_client interrupts a kernel before it asks it
# to end. A kernel that is still cleaning up after its last cell would then print an error on the
# user's screen. DIE_WITH_PARENT does what lib.runs.machine.die_with_parent does.
EXEC = "--IPKernelApp.exec_lines="
QUIET = [
    f"{EXEC}get_ipython().kernel.log.addFilter("
    "lambda record: 'KeyboardInterrupt' not in str(record.msg))"
]
DIE_WITH_PARENT = (
    [EXEC + "__import__('ctypes').CDLL(None).prctl(1, 9)"] if sys.platform == "linux" else []
)


def used(kernel_dir: str) -> Usage:
    """What the only kernel of this process has used, which has ended. A forked one is no child of
    this process, and has left a note."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 2**10  # of ru_maxrss, in bytes
    seconds = usage.ru_utime + usage.ru_stime
    memory = usage.ru_maxrss
    with suppress(OSError, ValueError):
        forked = json.loads(Path(kernel_dir, warm.USED).read_text())
        seconds += forked["core_seconds"]
        memory = max(memory, forked["memory"])
    return Usage(seconds, memory * unit)


def run_notebook(project: Project, spec: Spec, parameters: Given, device: str | None) -> Usage:
    """Execute the notebook of a run with papermill, and say what its kernel has used. The kernel
    communicates by IPC, through files in a temporary directory of its own with a short name, so it
    opens no port and cannot collide with another kernel. Raises RunError if a cell fails, the
    kernel dies, or a cell was never executed."""
    # 1. Execute the notebook, and say in which cell it failed
    output_path = spec.folder / "notebook.ipynb"
    identity = spec.folder.stat()
    # named after the run's folder, which is locked: what is there was left by a runner that was
    # killed
    kernel_dir = f"/tmp/run-{os.getuid()}-{identity.st_dev:x}-{identity.st_ino:x}"
    shutil.rmtree(kernel_dir, ignore_errors=True)
    with writing(output_path), (spec.folder / "log.txt").open("w") as log:
        os.mkdir(kernel_dir, 0o700)
        os.environ.update(environment(project, spec, kernel_dir, device))
        try:
            execute_notebook(
                verbatim(project.root / "notebooks" / f"{spec.notebook}.ipynb"),
                verbatim(output_path),
                dict(parameters),
                kernel_name="countdown",
                language="python",
                cwd=project.root,
                progress_bar=False,
                stdout_file=log,
                stderr_file=log,
                config=Config({"KernelManager": {"transport": "ipc", "ip": f"{kernel_dir}/s"}}),
                extra_arguments=DIE_WITH_PARENT + QUIET,
                # the kernel sends its output every 0.2 s, even in the middle of a line
                coalesce_streams=True,
            )
            usage = used(kernel_dir)
        except (
            PapermillExecutionError,
            DeadKernelError,
            RuntimeError,  # it died at the start
        ) as error:
            where = last_cell(output_path)
            log_path = shown(output_path)
            raise RunError(f"failed {where}:\n{reason(error)}\nlog: {log_path}") from error
        finally:
            shutil.rmtree(kernel_dir, ignore_errors=True)
    # 2. A notebook that ended itself early has failed, too
    check_finished(output_path)
    return usage


def check_finished(notebook: Path) -> None:
    """Raises RunError if a cell of an executed notebook was never executed."""
    for cell in code_cells(notebook):
        if cell.execution_count is None:
            location = f"no cell from `{first_line(cell)}` on was executed"
            why = "the cell before ended the notebook (sys.exit?)"
            raise RunError(f"it is not finished: {location}: {why}\nlog: {shown(notebook)}")


def reason(error: Exception) -> str:
    """Why a notebook failed: the end of the traceback of its last cell, if there is one."""
    if not isinstance(error, PapermillExecutionError):
        return (
            "its kernel died; most often the machine's memory was full, or the process was killed"
        )
    lines = strip_color("\n".join(error.traceback)).strip().splitlines()
    return "\n".join(lines[-6:]) or f"{error.ename}: {error.evalue}"


def verbatim(path: Path) -> str:
    """A path with its braces doubled, since papermill would replace text in braces by
    parameters."""
    return str(path).replace("{", "{{").replace("}", "}}")


def environment(
    project: Project, spec: Spec, kernel_dir: str, device: str | None
) -> dict[str, str]:
    """The environment variables of a kernel. `kernel_dir`: the kernel's own directory. Jupyter
    looks for kernel specifications there first, so the kernel runs in this very interpreter, whose
    packages run.json lists, whatever kernels are installed in the user's home."""
    kernel = Path(kernel_dir, "kernels/countdown/kernel.json")
    kernel.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Countdown", "language": "python"}))
    return surroundings(project, spec, device) | {
        "IPYTHONDIR": kernel_dir,  # without the user's start-up files and history
        "JUPYTER_PATH": kernel_dir,
        "JUPYTER_RUNTIME_DIR": kernel_dir,  # not in the user's home
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def code_cells(notebook: Path) -> list[NotebookNode]:
    """The code cells of a notebook that are not empty; none if the notebook was not written."""
    cells = nbformat.read(notebook, 4).cells if notebook.exists() else []
    return [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]


def last_cell(executed: Path) -> str:
    """Says where a notebook ended: in the last cell that was begun, according to papermill's
    metadata."""
    cells = [
        cell
        for cell in code_cells(executed)
        if cell.metadata.get("papermill", {}).get("start_time")
    ]
    return (
        f"in the cell that starts with `{first_line(cells[-1])}`"
        if cells
        else "before its first cell"
    )


def first_line(cell: NotebookNode) -> str:
    return cell.source.strip().splitlines()[0]
