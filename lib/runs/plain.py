"""The notebook of a run, its cells executed in this very process: what one card needs, where there
may be neither papermill nor Jupyter. What the cells print is in log.txt; they show nothing."""

import os
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lib.runs.execute import Usage, surroundings
from lib.runs.hashes import Given
from lib.runs.machine import RunError
from lib.runs.plan import Project, Spec


def run_cells(project: Project, spec: Spec, parameters: Given, device: str | None) -> Usage:
    """Execute the cells of a run's notebook but those that only report, and say what this process
    has used. Raises RunError if a cell fails, with the end of its traceback.

    It sets environment variables and the working directory, so a process makes one run."""
    os.environ.update(surroundings(project, spec, device) | {"MPLBACKEND": "agg"})
    os.chdir(project.root)
    defaults, cells = project.notebook(spec.notebook)
    names = {"__name__": "__main__", "display": print, **defaults, **parameters}
    log = spec.folder / "log.txt"
    with printing_to(log):
        for cell in cells:
            try:
                exec(compile(cell, f"{spec.notebook}.ipynb", "exec"), names)
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                first = cell.strip().splitlines()[0]
                said = "".join(traceback.format_exception_only(error)).strip()
                raise RunError(
                    f"failed in the cell that starts with `{first}`:\n{said}\nlog: {log}"
                ) from error
    return used()


@contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """What this process and its libraries print goes to a file, line by line."""
    kept = [os.dup(1), os.dup(2)]
    with path.open("w") as log:
        try:
            for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
                stream.flush()
                os.dup2(log.fileno(), number)
            yield
        finally:
            for stream, number, old in ((sys.stdout, 1, kept[0]), (sys.stderr, 2, kept[1])):
                stream.flush()
                os.dup2(old, number)
                os.close(old)


def used() -> Usage:
    """The core-seconds and the memory of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 2**10  # of ru_maxrss, in bytes
    return Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)
