"""Short hashes of what a run is asked for: the files, problem sets and rewards that its parameters
name. Also of code, without comments and layout."""

import ast
import hashlib
import inspect
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any, NotRequired, TypedDict

from lib.files import ROOT, reading, shown, skeleton

MANIFEST = "data/problems/manifest.json"  # holds a sha256 of each problem set
WEIGHTS = ("*.json", "*.safetensors", "*.bin", "tokenizer/*")  # the files of a model's folder
ADAPTER = "adapter_config.json"  # of a policy that is an adapter (lib.learn.adapters)
TABLES = ("*.parquet", "text/*.npz", "test.json")  # the results of a run that other runs read

# a run's parameters by name: plain data of any type, which each notebook's settings check
Given = Mapping[str, Any]


class Asked(TypedDict):
    """What a run is asked for, apart from its parents."""

    notebook: str
    parameters: Given
    inputs: NotRequired[dict[str, str]]  # hashes of what the parameters name; early runs had none


def digest(value: object) -> str:
    """A short hash of bytes, or of plain data."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def code_tree(source: str) -> list:
    """The syntax of source code as plain data. It does not change if only comments, docstrings,
    blank lines or line breaks change. Text that is not Python, such as a cell with a magic, becomes
    the list of its lines that are not blank."""
    try:
        return [skeleton(statement) for statement in ast.parse(source).body]
    except (SyntaxError, ValueError):
        return [line.rstrip() for line in source.splitlines() if line.strip()]


def literals(source: str) -> dict[str, Any]:
    """The values that code assigns, by name. Raises SyntaxError, ValueError, TypeError or
    AttributeError if the code does more than assign plain literals to names."""
    statements: Any = ast.parse(source).body
    return {statement.targets[0].id: ast.literal_eval(statement.value) for statement in statements}


def lib_digest(root: Path) -> str:
    """A hash of all Python files in lib/, comments included."""
    files = sorted((root / "lib").rglob("*.py"))
    return digest(
        [(path.relative_to(root).as_posix(), digest(path.read_bytes())) for path in files]
    )


def inputs(params: Given, root: Path) -> dict[str, str]:
    """A hash, by name, of everything that the parameters name: files (the user's own problems or
    rewards), folders of models, problem sets, and the functions of registered rewards. What is not
    in this checkout, such as a model on the hub, is left out."""
    hashes = {}
    for name in texts(params):
        # False if the text is no valid path
        if "." in name and os.path.isfile(path := root / name):
            hashes[name] = file_digest(path, path.stat().st_mtime_ns)
        elif "/" in name and (model := model_folder(root / name)):
            weights = sorted(file for pattern in WEIGHTS for file in model.glob(pattern))
            hashes[name] = digest([file_digest(file, file.stat().st_mtime_ns) for file in weights])
    for name in texts(
        [params.get(key) for key in ("problem_set", "eval_set", "primary_set", "sets")]
    ):
        hashes |= problem_set(name, root)
    for name in texts([params.get("reward"), params.get("eval_rewards")]):
        hashes |= reward_function(name)
    return dict(sorted(hashes.items()))


def _advantage_options(old: Given) -> dict[str, Any]:
    """pass_k and focal_gamma were parameters of every run and used by one advantage each."""
    by_advantage = {
        "pass_at_k": {"k": old.get("pass_k")},
        "f_grpo": {"gamma": old.get("focal_gamma")},
    }
    return by_advantage.get(old.get("advantage", ""), {})


# Parameters that have replaced others: the names of the old ones, and how the new one follows from
# the old parameters of a run. Published records keep the old names.
RENAMED: dict[str, tuple[tuple[str, ...], Callable[[Given], object]]] = {
    "advantage_options": (("pass_k", "focal_gamma"), _advantage_options),
}


# What a notebook did before it had a parameter, where today's default is something else
BEFORE: dict[str, Given] = {"10_train_sft": {"give_up": 0.0}}


def with_new_names(parameters: Given) -> dict[str, Any]:
    """Recorded parameters by today's names."""
    named = dict(parameters)
    for new, (old_names, value) in RENAMED.items():
        if any(name in parameters for name in old_names):
            named[new] = value(parameters)
            for name in old_names:
                named.pop(name, None)
    return named


def differences(then: Asked, now: Asked, defaults: Given) -> list[str]:
    """What two descriptions of a run ask for differently, by name. Each has `notebook`,
    `parameters` and, if they were recorded, `inputs`.

    A parameter that `then` lacks did not exist in its notebook: what was done then is today's
    default, or what BEFORE says. One that the notebook no longer has does not count. Neither does
    code: it says what made a run and not what was asked."""
    if then["notebook"] != now["notebook"]:
        return ["notebook"]
    before = BEFORE.get(now["notebook"], {})
    given = {**defaults, **before, **with_new_names(then["parameters"])}
    hashes = then.get("inputs", {})
    names = [
        name
        for name, value in now["parameters"].items()
        if name not in given or given[name] != value
    ]
    return names + [
        name for name, value in now.get("inputs", {}).items() if hashes.get(name, value) != value
    ]


def results(params: Given, root: Path) -> dict[str, str]:
    """A hash, by name, of each table in the folders of runs that the parameters name. The runner
    knows these runs by their records instead."""
    hashes = {}
    for name in texts(params):
        if name and os.path.isdir(folder := root / name):
            for file in sorted(file for pattern in TABLES for file in folder.glob(pattern)):
                hashes[f"{name}/{file.relative_to(folder)}"] = file_digest(
                    file, file.stat().st_mtime_ns
                )
    return hashes


def model_folder(path: Path) -> Path | None:
    """The folder of a model or an adapter: `checkpoint` in a run's folder, or the folder itself;
    None if neither holds one."""
    for folder in (path / "checkpoint", path):
        # an adapter's file names its base, and a hash in its weights says which one that was
        if any(os.path.isfile(folder / name) for name in ("config.json", ADAPTER)):
            return folder
    return None


@cache
def file_digest(path: Path, changed: int) -> str:
    """A hash of a file's content. `changed`: the time of its last change, part of the cache's key,
    so that an edited file is read again."""
    return digest(path.read_bytes())


def texts(value: object) -> Iterator[str]:
    """All strings in plain data. After a string such as `file.py:name` comes the file, `file.py`,
    as a string too."""
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
    """The hash of a problem set according to the manifest; {} if the name is no problem set. Raises
    ValueError for a damaged manifest."""
    if not name or not (root / MANIFEST).is_file():
        return {}
    from lib.game.sets import EVALUATION_SETS

    key = "/".join(EVALUATION_SETS.get(name, (name, "train")))
    with reading(root / MANIFEST):
        manifest = json.loads((root / MANIFEST).read_text())
        return {f"problems {key}": manifest[key]["sha256"][:16]} if key in manifest else {}


def reward_function(name: str) -> dict[str, str]:
    """The hash of a registered reward, in lib/rewards.py or in a cell of this notebook: its
    function, without comments and layout, and the options that are set for it. What else the
    function calls does not count; `executed` has it. {} if there is no such reward."""
    if not name or not (factory := of_lib("rewards.REWARDS").get(name)):
        return {}
    options = getattr(factory, "keywords", {})
    hashed = _reward_digest(getattr(factory, "func", factory), repr(sorted(options.items())))
    return {f"function of reward {name}": hashed} if hashed else {}


@cache
def _reward_digest(function: Callable, options: str) -> str:
    """A hash of a reward's function and options, made once, as hundreds of runs name the same
    reward. "" for code that is neither in a cell nor in a file."""
    try:
        source = dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""
    return digest([options, code_tree(source)])


def of_lib(path: str) -> Any:
    """The table or function of lib/ that `path` (module.NAME) names, as "rewards.REWARDS". It is
    imported only now, as it may need torch."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(f"lib.{module}"), name)
    except Exception as error:
        # `lib/rewards.py` is a file that users write in: say where their slip is
        raise ValueError(f"{_where(error)}: {type(error).__name__}: {error}") from error


def _where(error: Exception) -> str:
    """The file and line of lib/ at which an import failed."""
    if isinstance(error, SyntaxError):
        return f"{shown(Path(error.filename or ''))}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT / "lib")]
    return f"{shown(Path(ours[-1].filename))}, line {ours[-1].lineno}"
