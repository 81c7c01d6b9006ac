"""Which code made a run: hashes of what a kernel has loaded of lib/, without comments, layout and
plots.

A run records them and is never made again because of them. `made_by_other` says what has changed
since."""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import lib
from lib import SOURCES
from lib.files import ROOT, skeleton
from lib.runs.hashes import code_tree, digest

FILE = "code.json"  # in a run's folder: what its kernel has loaded
# What these modules do changes no result: they run notebooks, and draw.
WITHOUT_RESULTS = (
    "runs",
    "study.plots",
    "study.words",
    "study.widgets",
    "study.explorer",
    "study.site",
    "study.standalone",
)
PLOTS = {"plt", "plots", "plot"}  # a statement of a notebook with one of these names draws
CHANGED = "changed while the run was made"


def loaded() -> dict[str, Path]:
    """The files of the modules of lib/ that this process has loaded and that can change a result,
    by their names without `lib.`."""
    files = {}
    for name, module in sorted(sys.modules.items()):
        short = name.removeprefix("lib.")
        is_ours = name != short and getattr(module, "__file__", None)
        if is_ours and not f"{short}.".startswith(tuple(f"{other}." for other in WITHOUT_RESULTS)):
            files[short] = Path(str(module.__file__))
    return files


def executed(before: Mapping[str, str]) -> dict[str, str]:
    """A hash of each module that this process has loaded. `before`: what this was when the run
    began. A module that was loaded later, and whose file was edited meanwhile, may be either
    version."""
    hashes = {}
    for name, path in loaded().items():
        is_certain = name in before or not is_edited(path)
        hashes[name] = (
            module_hash(SOURCES.get(path) or path.read_bytes()) if is_certain else CHANGED
        )
    return hashes | dict(before)


def is_edited(path: Path) -> bool:
    """Whether a file is no longer what it was when this process began to import lib."""
    return path in SOURCES and (not path.exists() or path.read_bytes() != SOURCES[path])


def edited() -> list[Path]:
    """The files of lib/ that this process has loaded and that were edited since."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("lib.")]
    paths = [Path(str(module.__file__)) for module in modules if getattr(module, "__file__", None)]
    return [path for path in paths if is_edited(path)]


def loaded_lib() -> str:
    """`lib_digest` of the files as this process found them."""
    root = Path(lib.__file__).parents[1]
    files = [(path.relative_to(root), text) for path, text in sorted(SOURCES.items())]
    return digest([(path.as_posix(), digest(text)) for path, text in files])


@cache
def module_hash(source: bytes) -> str:
    """A hash of a module's code."""
    return digest(code_tree(source.decode()))


def notebook_hash(cells: list[str]) -> str:
    """A hash of a notebook's code without the statements that draw."""
    trees = []
    for cell in cells:
        try:
            statements = ast.parse(cell).body
        except (SyntaxError, ValueError):  # a magic
            trees.append(code_tree(cell))
        else:
            trees += [skeleton(statement) for statement in statements if not draws(statement)]
    return digest(trees)


def draws(statement: ast.stmt) -> bool:
    """Whether a statement of a notebook makes a plot."""
    named = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(statement)}
    return not PLOTS.isdisjoint(named)


def made_by_other(
    stretches: Sequence[Mapping[str, str] | None], notebook: str, root: Path = ROOT
) -> list[str] | None:
    """The parts of the code that made a run and compute something else now: modules of lib/, and
    "notebook". None if the run recorded no hashes of them. `stretches`: what each process executed
    that worked at the run. `notebook`: the hash of the run's notebook now."""
    names = set()
    for executed_then in stretches:
        if executed_then is None:
            return None
        names |= {*changed(executed_then, notebook, root)}
    return sorted(names)


def changed(hashes: Mapping[str, str], notebook: str, root: Path) -> Iterator[str]:
    """The names whose code has another hash than the recorded one, or is gone."""
    for name, old in hashes.items():
        files = [root / f"lib/{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")]
        new = next((module_hash(file.read_bytes()) for file in files if file.exists()), None)
        if old != (notebook if name == "notebook" else new):
            yield name
