"""Notices edited cells of a notebook that is run by hand a second time in the folder of its first
results.

A kernel learns a cell only when it is executed. So each cell that follows `Run` is compared then
with the one that was executed in its place before. The first other one says so in its own output,
and sets the earlier results aside, so that nothing goes on from them."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lib.files import shown
from lib.runs.hashes import code_tree, digest

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell

# hashes of the cells that followed `Run`, in order; hidden, as it is no result
FILE = ".cells.json"
_watching: Callable[[ExecutionInfo], None] | None = None  # what this kernel calls with each cell
# hashes of the cells up to the first `Run` of this kernel: imports and parameters
_before: set[str] = set()


def watch(folder: Path, goes_on: bool, begin_anew: Callable[[], Path]) -> None:
    """Note the cells that this kernel executes from now on. If the run `goes_on`, compare them with
    those that were noted before. `begin_anew` sets the folder's content aside and returns where it
    is. Nothing happens outside of IPython."""
    global _watching
    if (shell := current_shell()) is None:
        return
    stop()
    if not _before:
        _before.update(map(cell_hash, shell.user_ns["In"]))
    _watching = follower(folder, noted(folder) if goes_on else [], begin_anew)
    shell.events.register("pre_run_cell", _watching)


def stop() -> None:
    """Note no more cells: the run is finished."""
    global _watching
    if _watching and (shell := current_shell()):
        shell.events.unregister("pre_run_cell", _watching)
    _watching = None


def follower(
    folder: Path, known: list[str], begin_anew: Callable[[], Path]
) -> Callable[[ExecutionInfo], None]:
    """A function that is called with each cell before it is executed. `known`: the hashes of
    earlier cells.

    An edited cell in front of all that writes begins the run anew: a training would go on from the
    states of the earlier cells. Once a cell has written something, the training is behind it, and
    what follows is made again anyway."""
    executed: list[str] = []
    before = written(folder)
    differs = False

    def follow(info: ExecutionInfo) -> None:
        nonlocal differs
        source = info.raw_cell or ""
        cell = cell_hash(source)
        # The notebook is run again from its first cell, or a cell is executed twice
        if cell in _before or cell in executed or is_parameters(source):
            return
        place = len(executed)
        executed.append(cell)
        if place < len(known) and known[place] != cell and not differs:
            differs = True
            print(f"This cell is another one than that which ran here before in {shown(folder)}.")
            if written(folder) == before:
                known.clear()
                known.extend(executed[:-1])
                print(f"What lay there is in {shown(begin_anew())}, and nothing goes on from it.")
                print("If a cell above has read something there, run all cells again.")
        known[place : place + 1] = [cell]
        with suppress(OSError):
            (folder / FILE).write_text(json.dumps(known))

    return follow


def written(folder: Path) -> dict[Path, int]:
    """When each file in a folder was last written, in nanoseconds; without hidden files."""
    files = [path for path in folder.rglob("*") if not path.name.startswith(".")]
    return {path: path.lstat().st_mtime_ns for path in files}


def is_parameters(source: str) -> bool:
    """Whether a cell is that of the parameters, which `Run` compares."""
    return {"output", "seed"} <= assigned(source)


def assigned(source: str) -> set[str]:
    """The names that a cell assigns; none if it is not Python."""
    with suppress(SyntaxError, ValueError):
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
        return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return set()


def cell_hash(source: str) -> str:
    """A hash of a cell's code, without comments and layout."""
    return digest(code_tree(source))


def noted(folder: Path) -> list[str]:
    """The hashes of the cells that were executed in a folder; [] if none were noted."""
    with suppress(OSError, ValueError):
        return json.loads((folder / FILE).read_text())
    return []


def current_shell() -> InteractiveShell | None:
    """The IPython shell of this process; None if there is none."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None
