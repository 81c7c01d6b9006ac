"""papermill_runs.yaml: read, checked and resolved, before anything starts.

Every mistake is a `DeclarationError` that names the file, the key and the nearest valid name.
"""

import ast
import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from lib.names import nearest
from lib.paths import ROOT, RUNS

YAML = "papermill_runs.yaml"
TABLES = {  # notebook parameters that name an entry of a table in lib/, or several
    "prompt_style": "lib.prompts.PROMPTS",
    "design": "lib.demonstrations.DEMONSTRATIONS",
    "sets": "lib.problem.EVALUATION_SETS",
    "eval_set": "lib.problem.EVALUATION_SETS",
    "eval_rewards": "lib.rewards.REWARDS",
    "engine": "lib.runs.plan.ENGINES",
}
PLAIN = re.compile(r"(?!\.)[A-Za-z0-9_.+-]+")  # a folder's name that leads nowhere else, and is not hidden
NAME = re.compile(rf"{PLAIN.pattern}/{PLAIN.pattern}")  # of a run: kind/name
EVALUATIONS = ("sample", "search")  # kinds of runs that tell of the policy they are given, not of one they make
RESERVED = ("reference", "scratch", "solutions")  # folders beside those of the profiles
ENGINES = ("transformers", "vllm")  # lib.generation's: to import it takes seconds


class DeclarationError(ValueError):
    """A mistake in papermill_runs.yaml, in a notebook's parameters cell or on the command line."""


# --- what the YAML holds ------------------------------------------------------------------------------------


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Profile(Strict):
    """Named parameter sets: for every notebook that has the parameter, for one notebook, for single runs."""

    params: dict[str, Any] = {}
    notebooks: dict[str, dict[str, Any]] = {}
    runs: dict[str, dict[str, Any]] = {}
    offline: bool = False  # needs nothing from the network, and so may not ask it
    mem_mb: int = 0  # of every run, where it is more than the run's own
    needs: dict[str, dict[str, str]] = {}  # other parents for single runs


class Declaration(Strict):
    """One run, or one for each element of the product of `grid`, whose keys stand as {key} in the others.

    `seed` of the grid is the notebook's parameter; the first is the one that a name without a seed stands for.
    """

    notebook: str
    params: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    needs: dict[str, str | list[str]] = {}  # parameter: the run, or runs, whose folders it gets
    allow_missing: bool = False  # of an analysis: it reads what is finished of its parents, of all their seeds
    threads: int = 1
    mem_mb: int = 1500
    analysis: bool = False  # reads results, trains nothing: `make figures` executes it on the reference
    keep_checkpoint: bool = False  # others start from it: that of the first seed is published

    @property
    def parents(self) -> list[str]:
        """All runs in `needs`, in order, each once."""
        lists = ([value] if isinstance(value, str) else value for value in self.needs.values())
        return list(dict.fromkeys(itertools.chain.from_iterable(lists)))


class Declarations(Strict):
    profiles: dict[str, Profile]
    runs: dict[str, Declaration]
    groups: dict[str, list[str]]


class Loader(yaml.SafeLoader):
    """YAML 1.2's floats (3e-4 is a number) and no key twice."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None and twice != "<<":
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


# --- what it means ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """One resolved run. Equal fingerprints: same notebook code, parameters and ancestors."""

    profile: str
    name: str  # kind/name/seed
    method: str  # the run, without its seed, that made the policy of which this run tells
    declaration: Declaration
    params: dict[str, Any]  # all of the notebook's parameters but `output` and those that name parents
    parents: dict[str, "Spec"]
    code: str
    fingerprint: str
    folder: Path  # where it is made
    reference: Path  # where its published results lie

    @property
    def run(self) -> str:
        """kind/name"""
        return self.name.rpartition("/")[0]

    @property
    def notebook(self) -> str:
        return self.declaration.notebook

    @property
    def state(self) -> str:
        """done, missing, unfinished, or why a finished run has to be made again."""
        record = read_record(self.folder)
        if record is None:
            return "unfinished" if (self.folder / "spec.json").exists() else "missing"
        if record["fingerprint"] != self.fingerprint:
            return "other notebook code" if record["code"] != self.code else "other parameters"
        for name, parent in self.parents.items():
            if self.declaration.allow_missing and parent.state != "done" and name not in record["parents"]:
                continue
            if parent.source is None or record["parents"].get(name) != digest(parent.source / "run.json"):
                return f"{name} made anew"
        return "done"

    @property
    def remade(self) -> Path:
        """Where an analysis is executed on the reference results."""
        return self.folder.parents[3] / "reference" / self.profile / self.name

    @property
    def in_reference(self) -> bool:
        record = read_record(self.reference)
        return record is not None and record["fingerprint"] == self.fingerprint

    @property
    def source(self) -> Path | None:
        """The folder of a finished run: local, else reference, else None."""
        if self.state == "done":
            return self.folder
        return self.reference if self.in_reference else None

    @property
    def lent(self) -> bool:
        """Whether it is not finished here, but the reference has what its children read: no checkpoint is published
        unless its run says so."""
        whole = self.declaration.keep_checkpoint or (self.reference / "generations.parquet").exists()
        return whole and self.source == self.reference


@dataclass(frozen=True)
class Plan:
    """Runs to be made here, parents first, and those of them that were asked for."""

    specs: dict[str, Spec]
    targets: list[str]

    def inputs(self, run: str) -> list[str]:
        """The parents' run.json, made here or borrowed from the reference."""
        spec = self.specs[run]
        made = {name: parent.folder for name, parent in spec.parents.items() if name in self.specs}
        borrowed = (
            {} if spec.declaration.allow_missing else {name: parent.reference for name, parent in spec.parents.items()}
        )
        return [str(folder / "run.json") for folder in (borrowed | made).values()]

    def height(self, run: str) -> int:
        """How many runs must follow it, one after the other: what has most behind it is started first."""
        children = (name for name, spec in self.specs.items() if run in spec.parents)
        return max((1 + self.height(child) for child in children), default=0)


class Project:
    """A checkout: its declarations, its runs and its reference results."""

    def __init__(self, root: Path = ROOT):
        self.root = Path(root)
        self.runs = RUNS if self.root == ROOT else self.root / "data/runs"

    @cached_property
    def declarations(self) -> Declarations:
        try:
            return Declarations.model_validate(yaml.load((self.root / YAML).read_text(), Loader=Loader))
        except yaml.YAMLError as error:
            raise DeclarationError(f"{YAML}: {error}") from error
        except ValidationError as error:
            raise DeclarationError("\n".join(map(describe, error.errors()))) from error

    @cache  # noqa: B019 (a project lives as long as the process)
    def notebook(self, name: str) -> tuple[dict[str, Any], str]:
        return read_notebook(self.root / "notebooks" / f"{name}.ipynb")

    def check(self) -> None:
        """Resolve every run in every profile. Raises DeclarationError."""
        for profile in self.declarations.profiles:
            specs = self.specs(profile)
            for group, names in self.declarations.groups.items():
                select(names, specs, f"{YAML}: groups.{group}")

    @cache  # noqa: B019
    def specs(self, profile: str) -> dict[str, Spec]:
        """All runs of a profile, parents first."""
        known(profile, self.declarations.profiles, "profile")
        runs = self.expanded()
        self.check_profile(profile, runs)
        body = self.declarations.profiles[profile]
        for name, run in runs.items():
            run_name, seed = split(name)
            others = {key: of_seed(parent, seed, runs) for key, parent in body.needs.get(run_name, {}).items()}
            runs[name] = run.model_copy(update={"mem_mb": max(run.mem_mb, body.mem_mb), "needs": run.needs | others})
        specs = {}
        try:
            for name in TopologicalSorter({name: run.parents for name, run in runs.items()}).static_order():
                parents = {parent: specs[parent] for parent in runs[name].parents}
                specs[name] = self.resolve(profile, name, runs[name], parents)
        except CycleError as error:
            cycle = " -> ".join(reversed(error.args[1]))
            raise DeclarationError(f"{YAML}: cycle in needs: {cycle}") from error
        return specs

    def expanded(self) -> dict[str, Declaration]:
        """Declarations by kind/name/seed, with grids multiplied out and parents looked up."""
        runs = {}
        for template, declaration in self.declarations.runs.items():
            where = f"{YAML}: runs.{template}"
            body, grid = declaration.model_dump(include={"params", "needs"}), declaration.grid
            for key in grid:
                if f"{{{key}}}" not in json.dumps(body) and key != "seed":
                    raise DeclarationError(f"{where}.grid.{key}: {{{key}}} stands nowhere in params or needs")
            for values in itertools.product(*grid.values()):
                point = dict(zip(grid, values, strict=True))
                name = str(fill(template, {key: str(value).replace("/", "_") for key, value in point.items()}))
                if not NAME.fullmatch(name):
                    raise DeclarationError(f"{where}: {name!r} is no name of a run, which is kind/name")
                update = fill(body, point)
                update["params"] |= {key: value for key, value in point.items() if key == "seed"}
                seed = (self.notebook(declaration.notebook)[0] | update["params"])["seed"]
                if type(seed) is not int or seed < 0:
                    raise DeclarationError(f"{where}: seed is {seed!r}, and must be a whole number from 0")
                if f"{name}/{seed}" in runs:
                    raise DeclarationError(f"{where}: two runs are called '{name}/{seed}'")
                update["keep_checkpoint"] = declaration.keep_checkpoint and seed == grid.get("seed", [seed])[0]
                runs[f"{name}/{seed}"] = declaration.model_copy(update=update)
        for name, declaration in runs.items():
            for key, value in declaration.needs.items():
                where = f"{YAML}: runs.{name}.needs.{key}"
                if isinstance(value, str):
                    declaration.needs[key] = of_seed(value, split(name)[1], runs, where)
                else:
                    declaration.needs[key] = select(value, runs, where, seeds=declaration.allow_missing)
        return runs

    def check_profile(self, profile: str, runs: dict[str, Declaration]) -> None:
        """Every name in a profile must mean something: a parameter of some notebook, a notebook, a run."""
        where, body = f"{YAML}: profiles.{profile}", self.declarations.profiles[profile]
        if not PLAIN.fullmatch(profile) or profile in RESERVED:
            raise DeclarationError(f"{where}: {profile!r} is no name for a folder of runs")
        notebooks = {declaration.notebook for declaration in runs.values()}
        parameters = {parameter for name in notebooks for parameter in self.notebook(name)[0]}
        for parameter in body.params:
            known(parameter, parameters, f"{where}.params: parameter")
        for name in body.notebooks:
            known(name, notebooks, f"{where}.notebooks: notebook")
        select(list(body.runs), runs, f"{where}.runs")
        for name, parents in body.needs.items():
            for run in select([name], runs, f"{where}.needs"):
                for key, value in parents.items():
                    known(key, runs[run].needs, f"{where}.needs.{name}: parameter")
                    of_seed(value, "0", runs, f"{where}.needs.{name}.{key}")

    def resolve(self, profile: str, name: str, declaration: Declaration, parents: dict[str, Spec]) -> Spec:
        """Parameters of one run: notebook < profile < profile's notebook < run < profile's run."""
        body, needs, notebook = self.declarations.profiles[profile], declaration.needs, declaration.notebook
        defaults, code = self.notebook(notebook)
        where = f"{YAML}: profile {profile}, run {name}"
        layers = [
            {key: value for key, value in body.params.items() if key in defaults},
            body.notebooks.get(notebook, {}),
            declaration.params,
            *(params for pattern, params in body.runs.items() if fits(name, pattern)),
            needs,
        ]
        params = dict(defaults)
        for key, value in itertools.chain.from_iterable(layer.items() for layer in layers):
            known(key, params, f"{where}: parameter of {notebook}")
            params[key] = fit(value, defaults[key], f"{where}: {key}")
        if params["output"] != defaults["output"]:
            raise DeclarationError(f"{where}: output is set by the runner")
        if str(params["seed"]) != split(name)[1]:
            raise DeclarationError(f"{where}: seed is set by the run: grid: {{ seed: [0, 1] }}, or its own params")
        params = {key: value for key, value in params.items() if key != "output" and key not in needs}
        check_names(params, defaults, where)
        ancestors = {parent: spec.fingerprint for parent, spec in parents.items()}
        fingerprint = digest([notebook, code, params, needs, ancestors])
        folder, reference = self.runs / profile / name, self.root / "data/reference" / profile / name
        evaluated = needs.get("policy") if name.startswith(EVALUATIONS) else None
        method = parents[evaluated].method if evaluated else split(name)[0]
        return Spec(profile, name, method, declaration, params, parents, code, fingerprint, folder, reference)

    def asked(self, profile: str, names: Iterable[str]) -> list[str]:
        """The runs that groups, runs and patterns (as in a group) stand for. Raises DeclarationError."""
        specs, groups = self.specs(profile), self.declarations.groups
        for name in names:
            if "*" not in name:
                known(name, [*groups, *{spec.run: None for spec in specs.values()}, *specs], "group or run")
        patterns = [pattern for name in names for pattern in groups.get(name, [name])]
        return select(patterns, specs, f"{YAML}: groups")

    def plan(self, profile: str, *names: str) -> Plan:
        """What groups and runs take: made here, but for parents outside them that the reference has.

        The parents of an analysis are always made here: its runs come from one source. A partial one reads those that
        are finished or part of the group.
        """
        self.check()
        specs, targets, here = self.specs(profile), self.asked(profile, names), set()

        def require(spec: Spec) -> None:
            here.add(spec.name)
            for parent in spec.parents.values():
                borrowed = parent.lent and not spec.declaration.analysis
                left_out = spec.declaration.allow_missing and parent.state != "done"
                if parent.name not in here and not borrowed and not left_out:
                    require(parent)

        for target in targets:
            require(specs[target])
        return Plan({run: spec for run, spec in specs.items() if run in here}, targets)


# --- how it is read and checked -----------------------------------------------------------------------------


def read_notebook(path: Path) -> tuple[dict[str, Any], str]:
    """A notebook's parameters, read as literals, and a hash of its other code. Raises DeclarationError."""
    if not path.exists():
        known(path.stem, [other.stem for other in path.parent.glob("*.ipynb")], f"{YAML}: notebook")
    try:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise DeclarationError(f"{path.name} is not a notebook ({error!r}): restore it with git checkout") from error
    tagged = [cell for cell in cells if "parameters" in cell.get("metadata", {}).get("tags", [])]
    if len(tagged) != 1:
        raise DeclarationError(f"{path.name}: exactly one cell must have the tag `parameters`, {len(tagged)} have")
    defaults = {}
    try:
        for statement in ast.parse("".join(tagged[0]["source"])).body:
            if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
                raise ValueError(f"`{ast.unparse(statement)}` is no assignment")
            defaults[statement.targets[0].id] = ast.literal_eval(statement.value)
    except (SyntaxError, ValueError) as error:
        raise DeclarationError(f"{path.name}: its parameters cell must hold flat literals only: {error}") from error
    for name in ("output", "seed"):
        if name not in defaults:
            raise DeclarationError(f"{path.name}: its parameters cell has no `{name}`")
    return defaults, digest(["".join(cell["source"]) for cell in cells if cell is not tagged[0]])


def fit(value: Any, default: Any, where: str) -> Any:
    """The value in the type of the notebook's default; None takes anything. Raises DeclarationError."""
    if default is None or type(value) is type(default):
        return value
    if type(default) is float and type(value) is int:
        return float(value)
    expected = type(default).__name__
    raise DeclarationError(f"{where} is {value!r}, a {type(value).__name__}; the notebook expects a {expected}")


def check_names(params: dict[str, Any], defaults: dict[str, Any], where: str) -> None:
    """Refuse a reward or a curriculum, or an option of one, and an entry of one of TABLES that does not exist."""
    if "reward" in params:
        from lib.rewards import get_reward

        try:
            get_reward(params["reward"], params.get("reward_options", {}))
        except (TypeError, ValueError) as error:
            raise DeclarationError(f"{where}: {error}") from error
    if params.get("curriculum"):
        from lib.curriculum import CURRICULA

        known(params["curriculum"], CURRICULA, f"{where}: curriculum")
        accepted = inspect.signature(CURRICULA[params["curriculum"]]).parameters.items()
        options = [name for name, option in accepted if option.default is not option.empty]
        for option in params["curriculum_options"]:
            known(option, options, f"{where}: option of curriculum {params['curriculum']}")
    for key, table in TABLES.items():
        if key in params and params[key] != defaults[key]:  # a default is right: torch need not be imported for it
            module, _, name = table.rpartition(".")
            for value in [params[key]] if isinstance(params[key], str) else params[key]:
                if key in ("sets", "eval_set") and value.endswith(".csv") and (ROOT / value).is_file():
                    continue  # problems of one's own
                known(value, getattr(import_module(module), name), f"{where}: {key}")


def describe(error: dict) -> str:
    """One of pydantic's errors, with the nearest valid key where one is unknown."""
    *path, last = location = [str(part) for part in error["loc"]]
    model = {"profiles": Profile, "runs": Declaration}.get(location[0]) if len(location) > 2 else Declarations
    if error["type"] == "extra_forbidden" and model:
        return f"{YAML}: {'.'.join([*path, last])}: unknown key{nearest(last, model.model_fields)}"
    return f"{YAML}: {'.'.join(location)}: {error['msg']}"


def known(name: str, names: Iterable, what: str) -> None:
    """Raise DeclarationError with the nearest valid name unless `name` is one of `names`."""
    if name not in names:
        raise DeclarationError(f"{what} {name!r} does not exist{nearest(name, names)}")


def split(name: str) -> tuple[str, str]:
    """kind/name/seed -> kind/name and seed."""
    run, _, seed = name.rpartition("/")
    return run, seed


def fits(name: str, pattern: str) -> bool:
    """Whether kind/name/seed is one of the runs that a pattern means: of any seed, unless it says which."""
    return fnmatchcase(name if pattern.count("/") == 2 else split(name)[0], pattern)


def select(patterns: list[str], runs: Iterable[str], where: str, seeds: bool = False) -> list[str]:
    """The runs that patterns (exact, or with *) stand for, each once. Raises DeclarationError.

    A pattern of kind/name stands for the first seed of each run, or with `seeds` for all of them; kind/name/seed for
    what it says.
    """
    found = {}
    for pattern in patterns:
        matches = [name for name in runs if fits(name, pattern)]
        if not matches:
            known(pattern, dict.fromkeys(split(name)[0] for name in runs), f"{where}: run")
        if not seeds and pattern.count("/") < 2:
            firsts = {}
            for name in matches:
                firsts.setdefault(split(name)[0], name)
            matches = firsts.values()
        found.update(dict.fromkeys(matches))
    return list(found)


def of_seed(run: str, seed: str, runs: Iterable[str], where: str = YAML) -> str:
    """The run of a name, kind/name or kind/name/seed: with this seed if there is one, else its first."""
    return f"{run}/{seed}" if f"{run}/{seed}" in runs else select([run], runs, where)[0]


def fill(value: Any, point: dict[str, Any]) -> Any:
    """Put a grid point into templates, all the way down; a string that is just {name} takes that type."""
    if isinstance(value, dict):
        return {key: fill(inner, point) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, point) for inner in value]
    if not isinstance(value, str):
        return value
    if value[1:-1] in point and value == f"{{{value[1:-1]}}}":
        return point[value[1:-1]]
    for key, inner in point.items():
        value = value.replace(f"{{{key}}}", str(inner))
    return value


def read_record(folder: Path) -> dict | None:
    """A finished run's run.json, or None. Raises DeclarationError if it is damaged."""
    path = folder / "run.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DeclarationError(f"{path} is damaged ({error}): delete the folder and start again") from error


def as_json(record: dict) -> str:
    """As run.json and spec.json are written."""
    return json.dumps(record, indent=1) + "\n"


def digest(value: Any) -> str:
    """A short hash of a file, or of plain data."""
    data = value.read_bytes() if isinstance(value, Path) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def lib_digest(root: Path) -> str:
    """A hash of all code in lib/."""
    return digest([(str(path.relative_to(root)), digest(path)) for path in sorted((root / "lib").rglob("*.py"))])
