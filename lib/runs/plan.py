"""papermill_runs.yaml: read, checked and resolved, before anything starts; and what is finished of it.

Every mistake is a `DeclarationError` that names the file, the key and the nearest valid name. What is stale is decided
here alone, by hashes: clocks do not matter.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import filter as fitting
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lib.files import ROOT, RUNS, nearest, shown
from lib.runs.hashes import code_tree, digest, inputs, texts
from lib.runs.parameters import check

YAML = "papermill_runs.yaml"
PLAIN = r"[A-Za-z][A-Za-z0-9_.+-]{0,99}"  # a folder's name that leads nowhere else, is not hidden, no option, no number
RUN = rf"{PLAIN}/[A-Za-z0-9][A-Za-z0-9_.+-]{{0,99}}"
RESERVED = ("reference", "scratch", "solutions")  # folders beside those of the profiles
STUDY = "study/"  # the kind of runs that read results and train nothing: `make figures` executes them
EVALUATIONS = ("sample/", "search/")  # kinds of runs that tell of the policy they are given, not of one they make
RECORD = {  # what every run.json holds
    **dict.fromkeys(("run", "method", "notebook", "code", "fingerprint"), str),
    **{"seed": int, "elapsed": (int, float), "parameters": dict, "parents": dict},
}


class DeclarationError(ValueError):
    """A mistake in papermill_runs.yaml, in a notebook's parameters cell, in a record or on the command line."""


# --- what the YAML holds ------------------------------------------------------------------------------------


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Profile(Strict):
    """Named parameter sets: for every notebook that has the parameter, for one notebook, for single runs (also other
    parents)."""

    params: dict[str, Any] = {}
    notebooks: dict[str, dict[str, Any]] = {}
    runs: dict[str, dict[str, Any]] = {}
    offline: bool = False  # needs nothing from the network, and so may not ask it
    mem_mb: int = 0  # of every run, where it is more than the run's own


class Declaration(Strict):
    """One run, or one for each element of the product of `grid`, whose keys stand as {key} in the others.

    `seed` of the grid is the notebook's parameter; the first is the one that a name without a seed stands for.
    """

    notebook: str
    params: dict[str, Any] = {}
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    needs: dict[str, str | list[str]] = {}  # parameter: the run, or runs, whose folders it gets
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    mem_mb: Annotated[int, Field(ge=100, le=4_000_000)] = 1500
    keep_checkpoint: bool = False  # others start from it: it is published

    @property
    def parents(self) -> list[str]:
        """All runs in `needs`, in order, each once."""
        return list(dict.fromkeys(chain(*([run] if isinstance(run, str) else run for run in self.needs.values()))))


class Declarations(Strict):
    profiles: dict[str, Profile]
    runs: dict[str, Declaration]
    groups: dict[str, list[str]]


def plain_data(text: str) -> Any:
    """What the YAML says, made of plain values that JSON has too. Raises ValueError for anything else.

    Nesting and aliases are looked at before anything is built: the parser itself would crash on 100,000 nested lists,
    and a few aliases of aliases would fill the memory.
    """
    depth, anchored = 0, []
    for event in yaml.parse(text, QUICK):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            anchored.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            anchored.pop()
        elif isinstance(event, yaml.AliasEvent) and any(anchored):
            raise ValueError(f"an alias stands inside an anchor{event.start_mark}")
        if depth > 30:
            raise ValueError(f"lists and mappings are nested more than 30 deep{event.start_mark}")
    found = yaml.load(text, Loader=Loader)
    for value in leaves(found):
        if not isinstance(value, str | float | bool | None) and (not isinstance(value, int) or abs(value) >= 2**63):
            raise ValueError(
                f"{str(value)[:40]!r} is a {type(value).__name__}: only texts, numbers below 2^63 and true can be"
            )
    return found


def leaves(value: Any) -> Iterable[Any]:
    """The keys and values of nested data that hold no others."""
    inside = chain(value, value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inside is None:
        yield value
    for inner in inside or ():
        yield from leaves(inner)


QUICK: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where there is one: a tenth of the time


class Loader(QUICK):
    """YAML 1.2's floats (3e-4 is a number) and no key twice."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if not key.tag.endswith(":merge")]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


# --- what it means ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """One resolved run. Equal fingerprints: same notebook code, parameters, files that these name, and ancestors."""

    profile: str
    name: str  # kind/name/seed
    method: str  # the run, without its seed, that made the policy of which this run tells
    declaration: Declaration
    params: dict[str, Any]  # all of the notebook's parameters but `output` and those that name parents
    parents: dict[str, "Spec"]
    code: str
    fingerprint: str
    folder: Path  # where it is made, or read
    reference: Path  # where its published results lie

    @property
    def run(self) -> str:
        """kind/name"""
        return split(self.name)[0]

    @property
    def notebook(self) -> str:
        return self.declaration.notebook

    @property
    def study(self) -> bool:
        """Whether it reads results alone: those of its parents that are finished, of all their seeds."""
        return self.name.startswith(STUDY)

    @property
    def state(self) -> str:
        """done, missing, unfinished, or why a finished run has to be made again."""
        return state(self, {})


def state(spec: Spec, known: dict[Path, str]) -> str:
    """`spec.state`; `known` keeps the states that were looked up, by folder, as runs have ancestors in common."""
    if spec.folder not in known:
        known[spec.folder] = look_up(spec, known)
    return known[spec.folder]


def look_up(spec: Spec, known: dict[Path, str]) -> str:
    """The state of one run by its folder, and by the states of its parents."""
    try:
        record = read_record(spec.folder)
    except DeclarationError:
        return "damaged run.json"
    if not record:
        return "unfinished" if (spec.folder / "spec.json").exists() else "missing"
    if record["fingerprint"] != spec.fingerprint:
        return "other notebook code" if record["code"] != spec.code else "other parameters or files"
    for name, entry in record["files"].items():
        path, size = spec.folder / name, entry if isinstance(entry, int) else entry["bytes"]
        if not path.exists() or path.stat().st_size != size:
            return f"{name} is {'damaged' if path.exists() else 'gone'}"
    for name, parent in spec.parents.items():
        finished = state(parent, known) == "done"
        if spec.study and not finished and name not in record["parents"]:
            continue
        makes = [made_as(parent.folder)] * finished + [
            made_as(parent.reference)
        ]  # a restored run's parents may be there
        if record["parents"].get(name) not in makes:
            return f"{name} made anew" if finished else f"{name} is not finished"
    return "done"


def made_as(folder: Path) -> str | None:
    """The `id` of the finished run in a folder, None if there is none."""
    try:
        return read_record(folder).get("id")
    except DeclarationError:
        return None


@dataclass(frozen=True)
class Plan:
    """Runs to be made, parents first, and those of them that were asked for."""

    specs: dict[str, Spec]
    targets: list[str]
    states: dict[Path, str] = field(default_factory=dict)

    @cached_property
    def heights(self) -> dict[str, int]:
        """How many runs must follow each, one after the other: what has most behind it is started first."""
        found = dict.fromkeys(self.specs, 0)
        for name, spec in reversed(self.specs.items()):  # children first
            for parent in found.keys() & spec.parents.keys():
                found[parent] = max(found[parent], found[name] + 1)
        return found

    @cached_property
    def waiting(self) -> dict[str, str]:
        """The runs that are not finished, or whose parents are made now, and the state of each."""
        found: dict[str, str] = {}
        for name, spec in self.specs.items():  # parents first
            if (now := state(spec, self.states)) != "done" or found.keys() & spec.parents.keys():
                found[name] = now
        return found


class Project:
    """A checkout: its declarations, its runs and its reference results.

    `published`: runs are read where they are published, and studies made of them, in data/runs/reference.
    """

    def __init__(self, root: Path = ROOT, published: bool = False):
        self.root, self.published = Path(root), published
        self.runs = RUNS if self.root == ROOT else self.root / "data/runs"

    @cached_property
    def declarations(self) -> Declarations:
        try:
            found = plain_data((self.root / YAML).read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise DeclarationError(
                    f"{YAML} holds no profiles, runs and groups: `git checkout {YAML}`, or write them"
                )
            return Declarations.model_validate(found)
        except (OSError, UnicodeDecodeError) as error:
            raise DeclarationError(f"{YAML} cannot be read ({error}): `git checkout {YAML}`") from error
        except yaml.YAMLError as error:
            raise DeclarationError(f"{YAML}: {error}") from error
        except ValidationError as error:
            raise DeclarationError("\n".join(map(describe, error.errors()))) from error
        except (ValueError, OverflowError, RecursionError) as error:
            raise DeclarationError(f"{YAML}: {error}") from error

    @cache  # noqa: B019 (a project lives as long as the process)
    def notebook(self, name: str) -> tuple[dict[str, Any], str]:
        return read_notebook(self.root / "notebooks" / f"{name}.ipynb")

    def check(self) -> None:
        """Resolve every run in every profile. Raises DeclarationError."""
        for profile in self.declarations.profiles:
            specs = self.specs(profile)
            for group, names in self.declarations.groups.items():
                if not re.fullmatch(PLAIN, group):
                    raise DeclarationError(f"{YAML}: groups.{group}: {group!r} is no name of a group (no / in it)")
                if not names:
                    raise DeclarationError(f"{YAML}: groups.{group}: it names no run: say which, or leave it out")
                select(names, specs, f"{YAML}: groups.{group}")

    @cache  # noqa: B019
    def specs(self, profile: str) -> dict[str, Spec]:
        """All runs of a profile, parents first."""
        known(profile, self.declarations.profiles, "profile")
        runs, specs = dict(self.expanded()), {}
        self.check_profile(profile, runs)
        body, told = self.declarations.profiles[profile], {name: {} for name in runs}
        for pattern, given in body.runs.items():
            for name in select([pattern], runs, YAML, seeds=True):
                told[name] |= given
        for name, run in runs.items():  # what the profile says of it, parents among it
            said = told[name]
            needs = {key: of_seed(said.pop(key), split(name)[1], runs) for key in run.needs.keys() & said.keys()}
            update = {"needs": run.needs | needs, "params": run.params | said, "mem_mb": max(run.mem_mb, body.mem_mb)}
            runs[name] = run.model_copy(update=update)
        try:
            for name in TopologicalSorter({name: run.parents for name, run in runs.items()}).static_order():
                parents = {parent: specs[parent] for parent in runs[name].parents}
                specs[name] = self.resolve(profile, name, runs[name], parents)
        except CycleError as error:
            cycle = " -> ".join(reversed(error.args[1]))
            raise DeclarationError(f"{YAML}: cycle in needs: {cycle}") from error
        return specs

    @cache  # noqa: B019
    def expanded(self) -> dict[str, Declaration]:
        """Declarations by kind/name/seed, with grids multiplied out and parents looked up."""
        runs = {}
        for template, declaration in self.declarations.runs.items():
            where = f"{YAML}: runs.{template}"
            body, grid = declaration.model_dump(include={"params", "needs"}), declaration.grid
            if template.startswith(STUDY) and not declaration.parents:
                raise DeclarationError(f"{where}: a study reads other runs: its needs must say which")
            for key in grid:
                if f"{{{key}}}" not in json.dumps(body) and key != "seed":
                    raise DeclarationError(f"{where}.grid.{key}: {{{key}}} stands nowhere in params or needs")
            for key in declaration.params.keys() & (declaration.needs.keys() | grid.keys() & {"seed"}):
                raise DeclarationError(f"{where}: {key} stands in params, and again in needs or grid")
            for values in product(*grid.values()):
                point = dict(zip(grid, values, strict=True))
                name = str(fill(template, {key: str(value).replace("/", "_") for key, value in point.items()}))
                if not re.fullmatch(RUN, name):
                    raise DeclarationError(f"{where}: {name!r} is no name of a run, which is kind/name")
                update = fill(body, point)
                for key in re.findall(r"{\w+}", json.dumps(update)):
                    raise DeclarationError(f"{where}: {key} is no key of its grid{nearest(key, grid)}")
                update["params"] |= {key: value for key, value in point.items() if key == "seed"}
                seed = (self.notebook(declaration.notebook)[0] | update["params"])["seed"]
                if type(seed) is not int or seed < 0:
                    raise DeclarationError(f"{where}: seed is {seed!r}, and must be a whole number from 0")
                if f"{name}/{seed}" in runs:
                    raise DeclarationError(f"{where}: two runs are called '{name}/{seed}'")
                runs[f"{name}/{seed}"] = declaration.model_copy(update=update)
        for name, declaration in runs.items():
            for key, value in declaration.needs.items():
                where = f"{YAML}: runs.{name}.needs.{key}"
                if isinstance(value, str):
                    declaration.needs[key] = of_seed(value, split(name)[1], runs, where)
                else:
                    declaration.needs[key] = select(value, runs, where, seeds=name.startswith(STUDY))
        return runs

    def check_profile(self, profile: str, runs: dict[str, Declaration]) -> None:
        """Every name in a profile must mean something: a parameter of some notebook, a notebook, a run."""
        where, body = f"{YAML}: profiles.{profile}", self.declarations.profiles[profile]
        if not re.fullmatch(PLAIN, profile) or profile in RESERVED:
            raise DeclarationError(f"{where}: {profile!r} is no name for a folder of runs")
        notebooks = {declaration.notebook for declaration in runs.values()}
        parameters = {parameter for name in notebooks for parameter in self.notebook(name)[0]}
        for parameter in body.params:
            known(parameter, parameters, f"{where}.params: parameter")
        for name in body.notebooks:
            known(name, notebooks, f"{where}.notebooks: notebook")
        select(list(body.runs), runs, f"{where}.runs")

    def resolve(self, profile: str, name: str, declaration: Declaration, parents: dict[str, Spec]) -> Spec:
        """Parameters of one run: notebook < profile < profile's notebook < run < profile's run."""
        body, needs, notebook = self.declarations.profiles[profile], declaration.needs, declaration.notebook
        defaults, code = self.notebook(notebook)
        where = f"{YAML}: profile {profile}, run {name}"
        layers = [
            {key: value for key, value in body.params.items() if key in defaults},
            body.notebooks.get(notebook, {}),
            declaration.params,
            needs,
        ]
        params = dict(defaults)
        for key, value in chain.from_iterable(layer.items() for layer in layers):
            known(key, params, f"{where}: parameter of {notebook}")
            params[key] = typed(value, defaults[key], f"{where}: {key}")
        if params["output"] != defaults["output"]:
            raise DeclarationError(f"{where}: output is set by the runner")
        if str(params["seed"]) != split(name)[1]:
            raise DeclarationError(f"{where}: seed is set by the run: grid: {{ seed: [0, 1] }}, or its own params")
        params = {key: value for key, value in params.items() if key != "output" and key not in needs}
        try:
            check({key: value for key, value in (params | needs).items() if not own_reward(params, key)}, defaults)
            named = inputs(params, self.root)
        except (ValueError, OverflowError) as error:
            raise DeclarationError(f"{where}: {error}") from error
        ancestors = {parent: spec.fingerprint for parent, spec in parents.items()}
        fingerprint = digest([notebook, code, params, needs, ancestors, named])
        evaluated = needs.get("policy") if name.startswith(EVALUATIONS) else None
        method = parents[evaluated].method if isinstance(evaluated, str) else split(name)[0]
        reference = folder = self.root / "data/reference" / profile / name
        if name.startswith(STUDY) or not self.published:
            folder = self.runs / ("reference" if self.published else ".") / profile / name
        return Spec(profile, name, method, declaration, params, parents, code, fingerprint, folder, reference)

    def asked(self, profile: str, names: Iterable[str]) -> list[str]:
        """The runs that groups, runs and patterns (as in a group) stand for. Raises DeclarationError."""
        specs, groups = self.specs(profile), self.declarations.groups
        for name in names:
            if "*" not in name:
                known(name, [*groups, *(spec.run for spec in specs.values()), *specs], "group or run")
        return select([pattern for name in names for pattern in groups.get(name, [name])], specs, f"{YAML}: groups")

    def plan(self, profile: str, *names: str) -> Plan:
        """What groups and runs take, with all that they rest on. A study goes without those of its parents that are
        neither finished nor part of the group."""
        self.check()
        specs, targets, wanted = self.specs(profile), self.asked(profile, names), set()
        states: dict[Path, str] = {}

        def require(spec: Spec) -> None:
            wanted.add(spec.name)
            for parent in spec.parents.values() if state(spec, states) != "done" else ():
                if parent.name not in wanted and not (spec.study and state(parent, states) != "done"):
                    require(parent)

        for target in targets:
            require(specs[target])
        plan = Plan({run: spec for run, spec in specs.items() if run in wanted}, targets, states)
        self.check_own_rewards(plan.specs[run] for run in plan.waiting)
        return plan

    def check_own_rewards(self, specs: Iterable[Spec]) -> None:
        """Run each file of rewards that these runs name. Raises DeclarationError in a sentence, whatever the file does.

        Only this runs such a file: to look at other runs, nothing of a user's is executed."""
        seen = set()
        for spec in specs:
            for name in texts([spec.params.get("reward"), spec.params.get("eval_rewards")]):
                options = spec.params.get("reward_options", {}) if name == spec.params.get("reward") else {}
                if ".py:" not in name or (key := f"{name} {options}") in seen:
                    continue
                seen.add(key)
                from lib.rewards import get_reward

                try:
                    get_reward(name, options)
                except (Exception, SystemExit) as error:
                    why = str(error) if isinstance(error, ValueError) else f"{name}: {type(error).__name__}: {error}"
                    raise DeclarationError(f"{YAML}: profile {spec.profile}, run {spec.name}: {why}") from error


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
    rest = [code_tree("".join(cell["source"])) for cell in cells if cell is not tagged[0]]
    return defaults, digest([statement for statements in rest for statement in statements])


def own_reward(params: Mapping[str, Any], key: str) -> bool:
    """Whether a parameter belongs to a reward in a user's file, which `check_own_rewards` runs."""
    return key in ("reward", "reward_options") and ".py:" in str(params.get("reward"))


def typed(value: Any, default: Any, where: str) -> Any:
    """The value in the type of the notebook's default; None takes anything. Raises DeclarationError."""
    if default is None or type(value) is type(default):
        return value
    if type(default) is float and type(value) is int:
        return float(value)
    expected = type(default).__name__
    raise DeclarationError(f"{where} is {value!r}, a {type(value).__name__}; the notebook expects a {expected}")


def describe(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors, with the nearest valid key where one is unknown."""
    *path, last = location = [str(part) for part in error["loc"]]
    model = {"profiles": Profile, "runs": Declaration}.get(location[0]) if len(location) > 2 else Declarations
    if error["type"] == "extra_forbidden" and model:
        return f"{YAML}: {'.'.join([*path, last])}: unknown key{nearest(last, model.model_fields)}"
    return f"{YAML}: {'.'.join(location)}: {error['msg']}"


def known(name: str, names: Iterable, what: str) -> None:
    """Raise DeclarationError with the nearest valid name unless `name` is one of `names`."""
    if name not in (names := list(names)):
        raise DeclarationError(f"{what} {name!r} does not exist{nearest(name, names)}")


def split(name: str) -> tuple[str, str]:
    """kind/name/seed -> kind/name and seed."""
    run, _, seed = name.rpartition("/")
    return run, seed


def select(patterns: list[str], runs: Iterable[str], where: str, seeds: bool = False) -> list[str]:
    """The runs that patterns (exact, or with *) stand for, each once. Raises DeclarationError.

    A pattern of kind/name stands for the first seed of each run, or with `seeds` for all of them; kind/name/seed for
    what it says.
    """
    found, run_of = {}, {name: split(name)[0] for name in runs}
    methods = dict.fromkeys(run_of.values())
    for pattern in patterns:
        meant, seed_said = {*fitting(methods, pattern)}, pattern.count("/") == 2
        matches = fitting(run_of, pattern) if seed_said else [name for name, run in run_of.items() if run in meant]
        if not matches:
            known(pattern, methods, f"{where}: run")
        if not seeds and not seed_said:
            matches = list({run_of[name]: name for name in reversed(matches)}.values())[::-1]
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


def read_record(folder: Path) -> dict[str, Any]:
    """A finished run's run.json; empty for a run that is not finished. Raises DeclarationError if it is damaged."""
    path = folder / "run.json"
    try:
        text = path.read_text()
        record = json.loads(text)
        for key, kind in RECORD.items():
            if not isinstance(record[key], kind):
                raise ValueError(f"its {key} is {record[key]!r:.40}")
        files = record.setdefault("files", {})
        sizes = [entry if isinstance(entry, int) else entry["bytes"] for entry in files.values()]
        if not all(isinstance(size, int) for size in sizes) or not isinstance(record.get("artifacts", []), list):
            raise ValueError("its files or artifacts are of another type")
        record.setdefault("id", digest(text.encode()))  # records of before runs had an id: children noted this hash
        return record
    except FileNotFoundError:
        return {}
    except KeyError as error:
        why = f"it has no {error.args[0]}"
    except (ValueError, TypeError, AttributeError, OSError) as error:
        why = str(error)
    published = path.is_relative_to(ROOT) and not path.is_relative_to(RUNS)
    remedy = f"`git checkout -- {shown(path)}`" if published else "the same command makes this run again"
    raise DeclarationError(f"{shown(path)} is damaged ({why}): {remedy}")
