"""Short hashes of what a run depends on: code without comments and layout, and the files that parameters name."""

import ast
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

from lib.files import reading, skeleton

MANIFEST = "data/problems/manifest.json"  # holds a sha256 of each problem set
WEIGHTS = ("*.json", "*.safetensors", "*.bin", "tokenizer/*")  # the files of a model's folder
TABLES = ("*.parquet", "text/*.npz", "test.json")  # the results of a run that other runs read


def digest(value: Any) -> str:
    """A short hash of bytes, or of plain data."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def code_tree(source: str) -> list:
    """The syntax of source code as plain data. It does not change if only comments, docstrings, blank lines or line
    breaks change. Text that is not Python, such as a cell with a magic, becomes the list of its lines that are not
    blank.
    """
    try:
        return [skeleton(statement) for statement in ast.parse(source).body]
    except (SyntaxError, ValueError):
        return [line.rstrip() for line in source.splitlines() if line.strip()]


def literals(source: str) -> dict[str, Any]:
    """The values that code assigns, by name. Raises SyntaxError, ValueError, TypeError or AttributeError if the code
    does more than assign plain literals to names."""
    statements: Any = ast.parse(source).body
    return {statement.targets[0].id: ast.literal_eval(statement.value) for statement in statements}


def lib_digest(root: Path) -> str:
    """A hash of all Python files in lib/, comments included."""
    files = sorted((root / "lib").rglob("*.py"))
    return digest([(path.relative_to(root).as_posix(), digest(path.read_bytes())) for path in files])


def inputs(params: dict[str, Any], root: Path) -> dict[str, str]:
    """A hash, by name, of everything that the parameters name: files (the user's own problems or rewards), folders of
    models, problem sets, and the code of rewards in lib/rewards.py or in a cell. What is not in this checkout, such as
    a model on the hub, is left out."""
    hashes, rewards = {}, root / "lib/rewards.py"
    for name in texts(params):
        if "." in name and os.path.isfile(path := root / name):  # False if the text is no valid path
            hashes[name] = file_digest(path, path.stat().st_mtime_ns)
        elif "/" in name and (model := model_folder(root / name)):
            weights = sorted(file for pattern in WEIGHTS for file in model.glob(pattern))
            hashes[name] = digest([file_digest(file, file.stat().st_mtime_ns) for file in weights])
    for name in texts([params.get(key) for key in ("problem_set", "eval_set", "primary_set", "sets")]):
        hashes |= problem_set(name, root)
    for name in texts([params.get("reward"), params.get("eval_rewards")]):
        if rewards.is_file() and (code_hash := cell_code(name) or reward_code(name, rewards.read_text())):
            hashes[f"reward {name}"] = code_hash
    return dict(sorted(hashes.items()))


def results(params: dict[str, Any], root: Path) -> dict[str, str]:
    """A hash, by name, of each table in the folders of runs that the parameters name. The runner knows these runs by
    their records instead."""
    hashes = {}
    for name in texts(params):
        if name and os.path.isdir(folder := root / name):
            for file in sorted(file for pattern in TABLES for file in folder.glob(pattern)):
                hashes[f"{name}/{file.relative_to(folder)}"] = file_digest(file, file.stat().st_mtime_ns)
    return hashes


def model_folder(path: Path) -> Path | None:
    """The folder of a model: `checkpoint` in a run's folder, or the folder itself; None if neither holds a model."""
    return next((folder for folder in (path / "checkpoint", path) if os.path.isfile(folder / "config.json")), None)


@cache
def file_digest(path: Path, changed: int) -> str:
    """A hash of a file's content. `changed`: the time of its last change, part of the cache's key, so that an edited
    file is read again."""
    return digest(path.read_bytes())


def texts(value: Any) -> Iterator[str]:
    """All strings in plain data. After a string such as `file.py:name` comes the file, `file.py`, as a string too."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value
        if ".py:" in value:
            yield value.rpartition(":")[0]


def problem_set(name: str, root: Path) -> dict[str, str]:
    """The hash of a problem set according to the manifest; {} if the name is no problem set. Raises ValueError for a
    damaged manifest."""
    if not name or not (root / MANIFEST).is_file():
        return {}
    from lib.game.problem import EVALUATION_SETS

    key = "/".join(EVALUATION_SETS.get(name, (name, "train")))
    with reading(root / MANIFEST):
        manifest = json.loads((root / MANIFEST).read_text())
        return {f"problems {key}": manifest[key]["sha256"][:16]} if key in manifest else {}


def cell_code(name: str) -> str:
    """A hash of the code of a reward that a cell of this notebook has registered; "" if none has."""
    rewards = sys.modules.get("lib.rewards")  # imported by any cell that registers a reward
    factory = rewards.REWARDS.get(name) if rewards else None
    with suppress(OSError, TypeError):  # of code that is neither in a cell nor in a file
        if factory and getattr(factory, "__module__", None) == "__main__":
            return digest(code_tree(dedent(inspect.getsource(factory))))
    return ""


@cache
def reward_code(name: str, source: str) -> str:
    """A hash of the code of a reward in lib/rewards.py, whose text is `source`: the reward's function, the options that
    are set for it, and everything in the file that the function uses, directly or indirectly; the whole file if it has
    no function of that name, as under a decorator that renames it. "" if there is no such reward."""
    from lib.rewards import REWARDS

    if not (factory := REWARDS.get(name)):
        return ""
    options, function = getattr(factory, "keywords", {}), getattr(factory, "func", factory)
    trees, symbols, stack = definitions(source), set(), [getattr(function, "__name__", "")]
    if stack[0] not in trees:
        return digest(code_tree(source))
    while stack:
        symbol = stack.pop()
        if symbol not in symbols:
            symbols.add(symbol)
            nodes = [node for part in trees[symbol] for node in ast.walk(part)]
            stack += [node.id for node in nodes if isinstance(node, ast.Name) and node.id in trees]
    parts = [skeleton(part) for symbol in sorted(symbols) for part in trees[symbol]]
    return digest([repr(sorted(options.items())), *parts])


@cache
def definitions(source: str) -> dict[str, list]:
    """The syntax trees of all top-level statements of a module that define or change a name, by name. The decorator
    `register` is left out."""
    trees: dict[str, list] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                node.decorator_list = [one for one in node.decorator_list if "register(" not in ast.unparse(one)]
                names = [name]
            case ast.Import() | ast.ImportFrom() | ast.Expr():
                continue
            case _:
                targets = [target for target in ast.walk(node) if isinstance(getattr(target, "ctx", None), ast.Store)]
                names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        for name in dict.fromkeys(names):
            trees.setdefault(name, []).append(node)
    return trees
