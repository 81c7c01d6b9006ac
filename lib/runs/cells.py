"""Notices edited cells of a notebook that is run by hand a second time in the folder of its first
results.

A kernel learns a cell only when it is executed. So each cell that follows `Run` is compared then
with the one that was executed in its place when the results were begun, and the first other one is
named, in its own output."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lib.files import shown
from lib.runs.hashes import code_tree, digest

# hashes of the cells that followed `Run`, in order; hidden, as it is no result
FILE = ".cells.json"
_watching: Callable[[Any], None] | None = None  # what this kernel calls with each cell
# hashes of the cells up to the first `Run` of this kernel: imports and parameters
_before: set[str] = set()


def watch(folder: Path, goes_on: bool) -> None:
    """Note the cells that this kernel executes from now on. If the run `goes_on`, compare them with
    those that were noted before. Nothing happens outside of IPython."""
    global _watching
    if (shell := current_shell()) is None:
        return
    stop()
    if not _before:
        _before.update(map(cell_hash, shell.user_ns["In"]))
    _watching = follower(folder, noted(folder) if goes_on else [])
    shell.events.register("pre_run_cell", _watching)


def stop() -> None:
    """Note no more cells: the run is finished."""
    global _watching
    if _watching:
        current_shell().events.unregister("pre_run_cell", _watching)
    _watching = None


def follower(folder: Path, known: list[str]) -> Callable[[Any], None]:
    """A function that is called with each cell before it is executed. `known`: the hashes of
    earlier cells."""
    place = 0
    differs = False

    def follow(info: Any) -> None:
        nonlocal place, differs
        cell = cell_hash(info.raw_cell)
        if cell in _before:  # the notebook is run again from its first cell
            return
        if place == len(known):
            known.append(cell)
            with suppress(OSError):
                (folder / FILE).write_text(json.dumps(known))
        elif known[place] != cell and not differs:
            differs = True
            print(
                f"This cell is another one than that which ran here when {shown(folder)} was begun."
            )
            print(
                "Results there may be those of the earlier cells: name another output, or delete "
                "this folder"
            )
        place += 1

    return follow


def cell_hash(source: str) -> str:
    """A hash of a cell's code, without comments and layout."""
    return digest(code_tree(source))


def noted(folder: Path) -> list[str]:
    """The hashes of the cells that were executed in a folder; [] if none were noted."""
    with suppress(OSError, ValueError):
        return json.loads((folder / FILE).read_text())
    return []


def current_shell() -> Any:
    """The IPython shell of this process; None if there is none."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None
