"""Reads papermill_runs.yaml and the parameters of notebooks, and finds runs by their names.

Every mistake is a `DeclarationError` that names the file, the key and the nearest valid name.
"""

import json
import re
from collections.abc import Iterable, Iterator
from fnmatch import filter as matching
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator
from pydantic_core import ErrorDetails

from lib.files import nearest
from lib.runs.hashes import Given, literals

YAML = "papermill_runs.yaml"
# a safe folder name: no path, not hidden, no option, no number
PLAIN = r"[A-Za-z][A-Za-z0-9_.+-]{0,99}"
RUN = rf"{PLAIN}/[A-Za-z0-9][A-Za-z0-9_.+-]{{0,99}}"
# the kind of runs that read results and train nothing: `make figures` executes them
STUDY = "study/"
PUBLISHED = "data/reference/cpu/"  # the published runs, which the notebooks of studies name


class DeclarationError(ValueError):
    """A mistake in papermill_runs.yaml, in a notebook's parameters cell or on the command line."""


Values = dict[str, JsonValue]  # parameters by name
Name = Annotated[str, StringConstraints(pattern=rf"\A(?!(reference|scratch|solutions)\Z){PLAIN}\Z")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, regex_engine="python-re")


class Profile(Strict):
    """The parameters of a profile: `params` for every notebook that has the parameter, `notebooks`
    for one notebook, `runs` for single runs, to which they may also give other parents. `without`:
    the runs that it does not have."""

    params: Values = {}
    notebooks: dict[str, Values] = {}
    runs: dict[str, Values] = {}
    without: list[str] = []
    offline: bool = False  # its runs need nothing from the Hugging Face hub and may not access it
    mem_mb: int = 0  # memory of every run, if this is more than the run's own mem_mb


class Declaration(Strict):
    """One run, or one run for each element of the product of `grid`. The name, params and needs
    contain the keys of the grid as {key}.

    `seed` in the grid sets the parameter `seed` of the notebook. A name without a seed means the
    run of the first seed."""

    notebook: str = ""  # if empty, that of its kind
    params: Values = {}
    grid: dict[str, Annotated[list[JsonValue], Field(min_length=1)]] = {}
    # by parameter, the run or runs whose folders it gets; {}: no run
    needs: dict[str, str | list[str]] = {}
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    mem_mb: Annotated[int, Field(ge=100, le=4_000_000)] = 1500
    keep_checkpoint: bool = False  # publish the checkpoint, since other runs start from it
    only: list[str] = []  # the profiles that have this run; if empty, all profiles
    # parameters of a run that samples from this policy, if there is to be one
    evaluate: Values | None = None

    @property
    def parents(self) -> list[str]:
        """All runs in `needs`, in order, each once."""
        return list(
            dict.fromkeys(
                chain(*([run] if isinstance(run, str) else run for run in self.needs.values()))
            )
        )

    @model_validator(mode="after")
    def fits(self) -> Self:
        text = json.dumps([self.params, self.needs])
        for key in self.grid.keys() - {"seed"}:
            if f"{{{key}}}" not in text:
                raise ValueError(f"grid.{key}: {{{key}}} is used nowhere in params or needs")
        for key in re.findall(r"{(\w+)}", text + json.dumps(self.evaluate)):
            if key not in self.grid:
                raise ValueError(f"{{{key}}} is no key of its grid{nearest(key, self.grid)}")
        seed = self.grid.keys() & {"seed"}
        for key in self.params.keys() & (self.needs.keys() | seed):
            raise ValueError(f"{key} is in params, and again in needs or grid")
        for key in (self.evaluate or {}).keys() & {"policy", *seed}:
            raise ValueError(f"{key} is in evaluate, which takes it from this run")
        return self


class Kind(Strict):
    """What the runs of a kind, the first part of their names, have unless their own entry says
    otherwise: another notebook, or for a parameter in `needs` another need or a value."""

    notebook: str
    needs: dict[str, str | list[str]] = {}


class Declarations(Strict):
    profiles: dict[Name, Profile]
    kinds: dict[str, Kind] = {}
    runs: dict[str, Declaration]
    groups: dict[Name, Annotated[list[str], Field(min_length=1)]]

    def completed(self) -> Iterator[tuple[str, Declaration]]:
        """All declarations by kind/name, with what their kinds give, and after each policy with
        `evaluate` the run that samples from it. Raises DeclarationError for a run without a
        notebook."""
        for template, run in self.runs.items():
            kind = self.kinds.get(template.partition("/")[0])
            fields = kind.model_dump() if kind else {}
            update = {name: fields[name] for name in fields.keys() - run.model_fields_set}
            if run.needs or "needs" in update:  # `needs: {}` means none
                needs = {
                    key: value
                    for key, value in fields.get("needs", {}).items()
                    if key not in run.params
                }
                update["needs"] = needs | run.needs
            run = run.model_copy(update=update)
            if not run.notebook:
                known(
                    template.partition("/")[0],
                    self.kinds,
                    f"{YAML}: runs.{template} has no notebook, and its kind",
                )
            yield template, run
            if run.evaluate is not None:
                known("sample", self.kinds, f"{YAML}: runs.{template}.evaluate: kind")
                fields = {
                    "notebook": self.kinds["sample"].notebook,
                    "params": run.evaluate,
                    "grid": run.grid,
                }
                yield (
                    f"sample/{template.replace('/', '_')}",
                    Declaration(**fields, needs={"policy": template}),
                )


# with libyaml, if installed, ten times faster
SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(SAFE):
    """A loader that reads floats as in YAML 1.2 (3e-4 is a number) and refuses a key that occurs
    twice in a mapping."""

    def construct_mapping(self, node, deep=False):
        keys = [
            self.construct_object(key, deep=True)
            for key, _ in node.value
            if not key.tag.endswith(":merge")
        ]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} appears twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def explain(error: ErrorDetails) -> str:
    """An error of pydantic as one line, with the nearest valid key if a key is unknown."""
    path = [str(part) for part in error["loc"]]
    model = (
        {"profiles": Profile, "kinds": Kind, "runs": Declaration}.get(path[0])
        if len(path) > 2
        else Declarations
    )
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden" and model:
        reason = f"unknown key{nearest(path[-1], model.model_fields)}"
    elif error["type"] == "string_pattern_mismatch":
        reason = f"{error['input']!r} is no name of a profile or group"
    return f"{YAML}: {'.'.join(path)}: {reason}"


def read_notebook(path: Path) -> tuple[dict[str, Any], list[str]]:
    """A notebook's parameters with their defaults, read as literals, and the text of its other code
    cells. Cells tagged `report` only show what the others made, so that a run does not depend on
    them. Raises DeclarationError."""
    if not path.exists():
        known(path.stem, [other.stem for other in path.parent.glob("*.ipynb")], f"{YAML}: notebook")
    try:
        cells = [
            cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"
        ]
        [parameters_cell] = [
            cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])
        ]
        # not code that makes results: a report on them, and what papermill wrote into the notebook
        others_tags = {"parameters", "injected-parameters", "report"}
        made = [cell for cell in cells if not others_tags & {*cell["metadata"].get("tags", [])}]
        others = ["".join(cell["source"]) for cell in made]
        defaults = literals("".join(parameters_cell["source"]))
        if not {"output", "seed"} <= defaults.keys():
            raise KeyError("output and seed")
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        form = (
            "a notebook with one cell tagged `parameters` of flat literals, `output` and `seed` "
            "among them"
        )
        raise DeclarationError(f"{path.name} is not {form}: {error!r}") from error
    return defaults, others


# --- names of runs, and the runs of a declaration -------------------------------------------------


def inputs_of_study(defaults: Given) -> dict[str, str | list[str]]:
    """The runs that a study reads, by the parameter that names them in its notebook: folders of
    published runs, whose names follow PUBLISHED there."""
    needs: dict[str, str | list[str]] = {}
    for name, value in defaults.items():
        folders = value if isinstance(value, list) else [value]
        if folders and all(str(folder).startswith(PUBLISHED) for folder in folders):
            # without the seed: a study reads the runs of all seeds
            runs = [folder.removeprefix(PUBLISHED).removesuffix("/*") for folder in folders]
            needs[name] = runs if isinstance(value, list) else runs[0]
    return needs


def runs_of_grid(template: str, declaration: Declaration) -> Iterator[tuple[str, Declaration]]:
    """The runs of one declaration, by kind/name: one per point of its grid."""
    for values in product(*declaration.grid.values()):
        point = dict(zip(declaration.grid, values, strict=True))
        name = fill(template, {key: str(value).replace("/", "_") for key, value in point.items()})
        update = fill(declaration.model_dump(include={"params", "needs"}), point)
        update["params"] |= {key: value for key, value in point.items() if key == "seed"}
        yield str(name), declaration.model_copy(update=update)


def fill(value: Any, point: Given) -> Any:
    """Replace {key} by its value at a grid point in all strings of a template, however deeply
    nested. A string that is only {key} becomes the value itself, with its type."""
    if isinstance(value, dict):
        return {key: fill(inner, point) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, point) for inner in value]
    for key, inner in point.items() if isinstance(value, str) else ():
        if value == f"{{{key}}}":
            return inner
        value = value.replace(f"{{{key}}}", str(inner))
    return value


def typed(value: Any, default: Any, where: str) -> Any:
    """The value, turned into a float if the default of the notebook is a float. A default of None
    accepts any value; otherwise a value of another type than the default raises
    DeclarationError."""
    if type(default) is float and type(value) is int and abs(value) < 2**63:
        return float(value)
    if default is None or type(value) is type(default):
        return value
    expected = type(default).__name__
    raise DeclarationError(
        f"{where} is {value!r:.40}, a {type(value).__name__}; the notebook expects a {expected}"
    )


def split(name: str) -> tuple[str, str]:
    """Splits kind/name/seed into kind/name and seed."""
    run, _, seed = name.rpartition("/")
    return run, seed


def select(patterns: list[str], runs: Iterable[str], where: str, seeds: bool = False) -> list[str]:
    """The runs that the patterns match, each once. A pattern is an exact name or contains *. The
    pattern kind/name stands for the first seed of each run that it matches, or with `seeds` for all
    seeds; kind/name/seed is matched with full names. Raises DeclarationError."""
    seeds_of = _by_run(tuple(runs))
    selected: dict[str, None] = {}
    for pattern in patterns:
        if pattern.count("/") == 2:
            matches = matching(runs, pattern)
        else:
            # a name without a wildcard is looked up, as most are
            wild = any(sign in pattern for sign in "*?[")
            found = matching(seeds_of, pattern) if wild else {pattern} & seeds_of.keys()
            matches = [name for run in found for name in seeds_of[run][: None if seeds else 1]]
        if not matches:
            known(pattern, seeds_of, f"{where}: run")
        selected |= dict.fromkeys(matches)
    return list(selected)


@lru_cache(maxsize=8)
def _by_run(names: tuple[str, ...]) -> dict[str, list[str]]:
    """The full names of the seeds of each kind/name. Hundreds of patterns are looked up among the
    same runs, so that these are sorted out once."""
    seeds_of: dict[str, list[str]] = {}
    for name in names:
        seeds_of.setdefault(split(name)[0], []).append(name)
    return seeds_of


def of_seed(run: str, seed: str, runs: Iterable[str], where: str) -> str:
    """The full name of a run. For kind/name it is the run with `seed`, or with the first seed if
    there is no such run; kind/name/seed stays as it is."""
    return f"{run}/{seed}" if f"{run}/{seed}" in runs else select([run], runs, where)[0]


def known(name: str, names: Iterable, what: str) -> None:
    """Raise DeclarationError with the nearest valid name unless `name` is one of `names`."""
    if name not in (names := list(names)):
        raise DeclarationError(f"{what} {name!r} does not exist{nearest(name, names)}")
