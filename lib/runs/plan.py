"""Resolves the runs of papermill_runs.yaml before anything starts, and finds out which of them are
finished.

Only this module decides which runs are stale: those that were asked for something else, or whose
parents were made anew. The code that made a run does not count; `made_by` in lib.runs.code tells of
it."""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from lib.files import ROOT, RUNS, reading
from lib.runs.code import made_by_other, notebook_hash
from lib.runs.declare import (
    PUBLISHED,
    RUN,
    STUDY,
    YAML,
    Declaration,
    DeclarationError,
    Declarations,
    Loader,
    Values,
    explain,
    inputs_of_study,
    known,
    of_seed,
    read_notebook,
    runs_of_grid,
    select,
    split,
    typed,
)
from lib.runs.hashes import Asked, Given, code_tree, differences, digest, inputs, of_lib
from lib.runs.parameters import FOLDERS, check, own_problems, try_out

EVALUATIONS = ("sample/", "search/")  # kinds of runs that evaluate a policy and do not make one
RESULTS = "results-only"  # the state of a restored run that was published without its weights
READABLE = ("done", RESULTS)

# --- resolving runs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """One resolved run. What it is asked for, and hence which run it is, are its notebook's name,
    its parameters, what these name, and its parents."""

    profile: str
    name: str  # kind/name/seed
    method: str  # the run (kind/name) that made the policy which this run is about
    declaration: Declaration
    # all parameters of the notebook except `output` and those that name parents
    params: dict[str, Any]
    defaults: dict[str, Any]  # all parameters of the notebook with their defaults
    inputs: dict[str, str]  # hashes of what `params` name
    parents: dict[str, "Spec"]
    code: str  # a hash of the notebook's code
    folder: Path  # where the run is made or read
    reference: Path  # where its published results are

    @property
    def run(self) -> str:
        """kind/name"""
        return split(self.name)[0]

    @property
    def notebook(self) -> str:
        return self.declaration.notebook

    @property
    def study(self) -> bool:
        """Whether this run only reads results: those of its finished parents, with all their
        seeds."""
        return self.name.startswith(STUDY)

    @property
    def asked(self) -> Asked:
        """What this run is asked for, apart from its parents, in the words of its record."""
        return {"notebook": self.notebook, "parameters": self.params, "inputs": self.inputs}

    @property
    def published(self) -> bool:
        return (self.reference / "run.json").exists()

    @property
    def state(self) -> str:
        """One of "done", "results-only", "missing" and "unfinished", or the reason why a finished
        run has to be made again. A run whose results alone are here is made again only for another
        run that starts from it."""
        return state(self, {})


class Project:
    """A checkout: its declarations, its runs and its reference results.

    With `published`, runs are read from data/reference, and studies of them are made in
    data/runs/reference."""

    def __init__(self, root: Path = ROOT, published: bool = False):
        self.root = Path(root)
        self.published = published
        self.runs = RUNS if self.root == ROOT else self.root / "data/runs"

    @cached_property
    def declarations(self) -> Declarations:
        try:
            return Declarations.model_validate(
                yaml.load((self.root / YAML).read_text(encoding="utf-8"), Loader)
            )
        except ValidationError as error:
            raise DeclarationError("\n".join(map(explain, error.errors()))) from error
        except (OSError, ValueError, OverflowError, RecursionError, yaml.YAMLError) as error:
            raise DeclarationError(f"{YAML}: {error}") from error

    @cache  # noqa: B019 (a project lives as long as the process)
    def notebook(self, name: str) -> tuple[dict[str, Any], list[str]]:
        return read_notebook(self.root / "notebooks" / f"{name}.ipynb")

    @cache  # noqa: B019
    def code(self, notebook: str) -> str:
        """A hash of a notebook's code without its parameters cell. Comments and layout do not
        count."""
        return digest(list(chain(*map(code_tree, self.notebook(notebook)[1]))))

    @cache  # noqa: B019
    def expanded(self) -> dict[str, Declaration]:
        """Declarations by kind/name/seed, with grids multiplied out and parents looked up."""
        runs: dict[str, Declaration] = {}
        for template, declaration in self.declarations.completed():
            location = f"{YAML}: runs.{template}"
            if template.startswith(STUDY):
                declaration = self.with_inputs(declaration)
                if not declaration.parents:
                    raise DeclarationError(
                        f"{location}: a study reads other runs, and neither its needs nor folders "
                        f"{PUBLISHED}... in the parameters cell of its notebook say which"
                    )
            for profile in declaration.only:
                known(profile, self.declarations.profiles, f"{location}.only: profile")
            for name, run in runs_of_grid(template, declaration):
                seed = (self.notebook(run.notebook)[0] | run.params)["seed"]
                if not re.fullmatch(RUN, name):
                    raise DeclarationError(
                        f"{location}: {name!r} is no name of a run, which is kind/name"
                    )
                if f"{name}/{seed}" in runs:
                    raise DeclarationError(f"{location}: two runs are called '{name}/{seed}'")
                runs[f"{name}/{seed}"] = run
        return {name: with_full_names(name, run, runs) for name, run in runs.items()}

    def with_inputs(self, study: Declaration) -> Declaration:
        """A study that also needs the runs that its notebook names."""
        needs = inputs_of_study(self.notebook(study.notebook)[0]) | study.needs
        return study.model_copy(update={"needs": needs})

    @cache  # noqa: B019
    def specs(self, profile: str, *names: str) -> dict[str, Spec]:
        """All runs of a profile, or only those with these full names and what they need; parents
        first. Raises DeclarationError for a run that cannot be resolved and for a name that the
        profile does not have."""
        runs = self.declared(profile)
        specs = {}
        for name in names:
            known(name, runs, f"run of profile {profile}")
        wanted = {*(names or runs)}
        for name in reversed(runs):  # children first
            wanted.update(runs[name].parents if name in wanted else ())
        for name, run in runs.items():
            if name in wanted:
                specs[name] = self.resolve(
                    profile, name, run, {parent: specs[parent] for parent in run.parents}
                )
        return specs

    @cache  # noqa: B019
    def declared(self, profile: str) -> dict[str, Declaration]:
        """The declarations of the runs of a profile, parents first. Runs that belong to other
        profiles only (`only`) and those that this profile is without are left out, and so are runs
        that depend on them."""
        known(profile, self.declarations.profiles, "profile")
        runs = self.of_profile(profile)
        declared = {}
        without = self.declarations.profiles[profile].without
        without = select(without, runs, f"{YAML}: profiles.{profile}.without", seeds=True)
        try:
            order = list(
                TopologicalSorter({name: run.parents for name, run in runs.items()}).static_order()
            )
        except CycleError as error:
            raise DeclarationError(
                f"{YAML}: cycle in needs: {' -> '.join(reversed(error.args[1]))}"
            ) from error
        for name in order:
            run = among(runs[name], declared)
            if run and name not in without and (not run.only or profile in run.only):
                declared[name] = run
        return declared

    def of_profile(self, profile: str) -> dict[str, Declaration]:
        """All declarations, updated with what the profile sets for single runs, which can be other
        parents too."""
        settings = self.declarations.profiles[profile]
        runs = self.expanded()
        location = f"{YAML}: profiles.{profile}"
        notebooks = {run.notebook for run in runs.values()}
        parameters = {parameter for name in notebooks for parameter in self.notebook(name)[0]}
        for parameter in settings.params:
            known(parameter, parameters, f"{location}.params: parameter")
        for name in settings.notebooks:
            known(name, notebooks, f"{location}.notebooks: notebook")
        overrides: dict[str, Values] = {name: {} for name in runs}
        for pattern, values in settings.runs.items():
            for name in select([pattern], runs, f"{location}.runs", seeds=True):
                overrides[name] |= values
        declarations = {}
        for name, run in runs.items():
            memory = max(run.mem_mb, settings.mem_mb)
            update = overridden(name, run, overrides[name], runs, f"{location}.runs")
            declarations[name] = run.model_copy(update=update | {"mem_mb": memory})
        self.refuse_ignored(profile, declarations.values())
        return declarations

    def refuse_ignored(self, profile: str, runs: Collection[Declaration]) -> None:
        """Raise DeclarationError for a value of a profile that none of its runs would take."""
        settings = self.declarations.profiles[profile]
        for notebook in {run.notebook for run in runs}:
            mine = [run for run in runs if run.notebook == notebook]
            for key in settings.params | settings.notebooks.get(notebook, {}):
                is_needed = any(key in run.needs for run in mine)
                if is_needed and all(key in run.needs | run.params for run in mine):
                    raise DeclarationError(
                        f"{YAML}: profiles.{profile}: {key} of {notebook} would be ignored, as "
                        f"needs give it to all runs: write it under profiles.{profile}.runs"
                    )

    def resolve(self, profile: str, name: str, run: Declaration, parents: dict[str, Spec]) -> Spec:
        """Resolve one run. Of each parameter the last of these values counts: the default of the
        notebook, that of the profile, of the profile for this notebook, of the run, and of the
        profile for this run."""
        location = f"{YAML}: profile {profile}, run {name}"
        defaults = self.notebook(run.notebook)[0]
        params = self.parameters(profile, name, run, location)
        try:
            check(params | run.needs, defaults | run.needs, run.notebook)
            input_hashes = inputs(params, self.root)
        except (ValueError, OverflowError) as error:
            raise DeclarationError(f"{location}: {error}") from error
        policy = run.needs.get("policy") if name.startswith(EVALUATIONS) else None
        method = parents[policy].method if isinstance(policy, str) else split(name)[0]
        reference = folder = self.root / "data/reference" / profile / name
        if name.startswith(STUDY) or not self.published:
            folder = self.runs / ("reference" if self.published else "") / profile / name
        return Spec(
            profile=profile,
            name=name,
            method=method,
            declaration=run,
            params=params,
            defaults=defaults,
            inputs=input_hashes,
            parents=parents,
            code=self.code(run.notebook),
            folder=folder,
            reference=reference,
        )

    def parameters(
        self, profile: str, name: str, run: Declaration, location: str
    ) -> dict[str, Any]:
        """The parameters of a run without `output` and those that name parents. Raises
        DeclarationError for one that the notebook does not have, or that cannot be set there."""
        settings = self.declarations.profiles[profile]
        defaults = self.notebook(run.notebook)[0]
        profile_params = {key: value for key, value in settings.params.items() if key in defaults}
        values = profile_params | settings.notebooks.get(run.notebook, {}) | run.params | run.needs
        for key, value in values.items():
            known(key, defaults, f"{location}: parameter of {run.notebook}")
            values[key] = typed(value, defaults[key], f"{location}: {key}")
            is_run = str(value).partition("/")[0] in self.declarations.kinds
            if is_run and key in FOLDERS and key not in run.needs:
                raise DeclarationError(
                    f"{location}: {key} is {value!r}, a run: it belongs in needs"
                )
        if "output" in values:
            raise DeclarationError(f"{location}: output is set by the runner")
        set_elsewhere = {"output", *run.needs}
        params = {k: value for k, value in (defaults | values).items() if k not in set_elsewhere}
        if str(params["seed"]) != split(name)[1]:
            raise DeclarationError(
                f"{location}: seed is set by the run: grid: {{ seed: [0, 1] }}, or its own params"
            )
        return params

    def check(self) -> None:
        """Resolve every run in every profile. Raises DeclarationError."""
        for profile in self.declarations.profiles:
            self.specs(profile)
        for group, names in self.declarations.groups.items():
            select(names, self.expanded(), f"{YAML}: groups.{group}")

    def asked(self, profile: str, names: Iterable[str]) -> list[Spec]:
        """The runs that these names of groups, names of runs, and patterns (as in a group) stand
        for, each once. Raises DeclarationError."""
        runs = self.expanded()
        groups = self.declarations.groups
        specs = self.specs(profile)
        selected = {}
        for name in names:
            if not set("*?[") & set(name):
                known(
                    name,
                    [*groups, *dict.fromkeys(split(run)[0] for run in runs), *runs],
                    "group or run",
                )
            matches = [
                run
                for run in select(groups.get(name, [name]), runs, f"{YAML}: groups")
                if run in specs
            ]
            if not matches:
                reason = (
                    f"{YAML} declares it for other profiles alone, or names it in "
                    f"profiles.{profile}.without"
                )
                raise DeclarationError(f"profile {profile} has no run of {name}: {reason}")
            selected |= {run: specs[run] for run in matches}
        return list(selected.values())

    def plan(self, profile: str, *names: str) -> "Plan":
        """The plan for making these groups and runs, with all runs that they depend on. A study
        does not wait for parents that are neither finished nor asked for themselves: they are not
        part of the plan."""
        if not names:
            raise DeclarationError("no group or run is named")
        self.check()
        specs = self.specs(profile)
        states = {}
        again = set()
        runs = {spec.name for spec in self.asked(profile, names)}
        for name, spec in reversed(specs.items()):  # children first
            if name in runs and (state(spec, states) not in READABLE or name in again):
                runs |= {
                    n
                    for n, parent in spec.parents.items()
                    if not spec.study or state(parent, states) in READABLE
                }
                again |= {
                    n
                    for n, parent in spec.parents.items()
                    if not spec.study and state(parent, states) == RESULTS
                }
        plan = Plan(
            {run: spec for run, spec in specs.items() if run in runs}, states, frozenset(again)
        )
        self.check_own_files(plan.specs[run] for run in plan.waiting)
        return plan

    def check_own_files(self, specs: Iterable[Spec]) -> None:
        """Try out each reward that these runs name, which executes the user's own files (nothing
        else here executes them), and read each file of problems. Raises DeclarationError for any
        error in such a file."""
        for spec in specs:
            try:
                for name in own_problems(spec.params):
                    of_lib("game.sets.from_file")(name)
                for given in (
                    spec.params,
                    *({"reward": name} for name in spec.params.get("eval_rewards", [])),
                ):
                    if given.get("reward"):
                        try_out(given)
            except ValueError as error:
                raise DeclarationError(
                    f"{YAML}: profile {spec.profile}, run {spec.name}: {error}"
                ) from error


def with_full_names(name: str, run: Declaration, runs: Collection[str]) -> Declaration:
    """The run with the full names of its parents."""
    needs: dict[str, str | list[str]] = {}
    for key, value in run.needs.items():
        location = f"{YAML}: runs.{name}.needs.{key}"
        if isinstance(value, str):
            needs[key] = of_seed(value, split(name)[1], runs, location)
        else:
            needs[key] = select(value, runs, location, seeds=name.startswith(STUDY))
    return run.model_copy(update={"needs": needs})


def overridden(
    name: str, run: Declaration, values: Values, runs: Collection[str], location: str
) -> dict[str, Any]:
    """The `needs` and `params` of a run of which a profile sets these values."""
    needs = dict(run.needs)
    params = dict(values)
    for key in needs.keys() & values.keys():
        kind = str(values[key]).partition("/")[0] + "/"
        if any(other.startswith(kind) for other in runs):
            needs[key] = of_seed(str(params.pop(key)), split(name)[1], runs, location)
        else:  # a policy of the hub or a folder, which is no run
            del needs[key]
    return {"needs": needs, "params": run.params | params}


def among(run: Declaration, runs: Collection[str]) -> Declaration | None:
    """The run without those of its listed parents that the profile does not have. None if it cannot
    do without them: a single parent is missing, or no parent is left."""
    needs = {}
    for key, names in run.needs.items():
        needs[key] = [name for name in names if name in runs] if isinstance(names, list) else names
        if isinstance(names, str) and names not in runs:
            return None
    if run.needs and not any(needs.values()):
        return None
    return run if needs == run.needs else run.model_copy(update={"needs": needs})


# --- which runs are finished ----------------------------------------------------------------------


class File(BaseModel, strict=True):
    bytes: int
    sha256: str


class Stretch(BaseModel, strict=True):
    """What a later process used, which went on with an interrupted run."""

    # hashes by module; None if it recorded none
    executed: dict[str, str] | None = None


class Record(Stretch):
    """What plans and times ask of a run.json. Fields with a default are missing in older ones; each
    has fields for people as well, which are not read here."""

    id: str
    run: str
    method: str
    notebook: str
    seed: int
    elapsed: float  # seconds
    parameters: dict[str, Any]
    parents: dict[str, str]  # the `id` of each, by its full name
    files: dict[str, File]
    artifacts: list[str]
    inputs: dict[str, str] = {}
    code: str | None = None
    started: str = ""
    cpu: str | None = None
    gpu: str | None = None
    threads: int = 1
    core_seconds: float = 0
    resumed_by: list[Stretch] = []
    results_only: bool = False

    @property
    def asked(self) -> Asked:
        """What the run was asked for, as in `Spec.asked`."""
        return {
            "notebook": self.notebook,
            "parameters": self.parameters,
            "inputs": self.inputs,
        }


def read_record(folder: Path) -> Record | None:
    """The record of a finished run, from its run.json; None if the run is not finished. Raises
    ValueError with a remedy if the file is damaged."""
    path = folder / "run.json"
    if not path.exists():
        return None
    with reading(path):
        return Record.model_validate(json.loads(path.read_text()))


def state(spec: Spec, states: dict[Path, str]) -> str:
    """The state of a run (see `Spec.state`). `states` caches states by folder, since runs share
    ancestors."""
    if spec.folder not in states:
        states[spec.folder] = state_of_folder(spec, states)
    return states[spec.folder]


def state_of_folder(spec: Spec, states: dict[Path, str]) -> str:
    """The state of a run, from its own folder and from the states of its parents."""
    try:
        record = read_record(spec.folder)
    except ValueError:
        return "damaged run.json"
    if not record:
        return "unfinished" if (spec.folder / "spec.json").exists() else "missing"
    asked = differences(record.asked, spec.asked, spec.defaults)
    asked += other_places(record.parameters, spec)
    if asked:
        return f"another {', '.join(asked)}"
    # a study is drawn in minutes, and nothing is lost
    if spec.study and record.code != spec.code:
        return "other notebook code"
    reason = changed_file(record, spec.folder) or changed_parent(record, spec, states)
    return reason or (RESULTS if record.results_only else "done")


def changed_file(record: Record, folder: Path) -> str | None:
    """Says which file of a finished run is not as it was made. None if all are; contents are
    compared when they are read."""
    for name, file in record.files.items():
        path = folder / name
        if not path.exists():
            return f"{name} is gone"
        if path.stat().st_size != file.bytes:
            return f"{name} is damaged"
    return None


def changed_parent(record: Record, spec: Spec, states: dict[Path, str]) -> str | None:
    """Says which parent of a finished run is no longer the one that it was made from, if one is."""
    for name, parent in spec.parents.items():
        finished = state(parent, states) in READABLE
        if spec.study and not finished and name not in record.parents:
            continue
        # a restored run was made from the published parents, which may differ from those in
        # data/runs
        ids = {made_as(parent.reference), made_as(parent.folder) if finished else None}
        made_from = record.parents.get(name)
        if made_from is None or made_from not in ids:
            return f"{name} made anew" if finished else f"{name} is not finished"
    return None


def other_places(parameters: Given, spec: Spec) -> list[str]:
    """Those of a recorded run's parameters that gave it another parent than the one that they name
    now."""
    names = []
    for name, parent in spec.declaration.needs.items():
        given = parameters.get(name)
        if not given or not isinstance(parent, str):
            continue
        if not f"/{given}".endswith(f"/{spec.profile}/{parent}"):
            names.append(name)
    return names


def other_code(project: Project, spec: Spec) -> list[str] | None:
    """The parts of the code that made a finished run and compute something else now
    (`made_by_other`)."""
    record = read_record(spec.folder)
    if not record:
        return None
    cells = project.notebook(spec.notebook)[1]
    stretches = [stretch.executed for stretch in (record, *record.resumed_by)]
    return made_by_other(stretches, notebook_hash(cells), project.root)


def made_as(folder: Path) -> str | None:
    """The `id` of the finished run in a folder, None if there is none."""
    try:
        record = read_record(folder)
    except ValueError:
        return None
    return record.id if record else None


@dataclass(frozen=True)
class Plan:
    """Runs to be made, parents first."""

    specs: dict[str, Spec]
    states: dict[Path, str] = field(default_factory=dict)
    # runs whose results alone are here, and from which unfinished ones start
    again: frozenset[str] = frozenset()

    @cached_property
    def heights(self) -> dict[str, int]:
        """For each run the length of the longest chain of runs that depend on it. The longest are
        started first."""
        heights = dict.fromkeys(self.specs, 0)
        for name, spec in reversed(self.specs.items()):  # children first
            for parent in heights.keys() & spec.parents.keys():
                heights[parent] = max(heights[parent], heights[name] + 1)
        return heights

    @cached_property
    def waiting(self) -> dict[str, str]:
        """The state of each run that is not finished, is one of `again`, or has a parent that is to
        be made. A run that was made from a published parent stays finished when this parent is made
        `again`."""
        waiting: dict[str, str] = {}
        for name, spec in self.specs.items():  # parents first
            run_state = state(spec, self.states)
            if (
                run_state not in READABLE
                or name in self.again
                or (waiting.keys() - self.again) & spec.parents.keys()
            ):
                waiting[name] = run_state
        return waiting
