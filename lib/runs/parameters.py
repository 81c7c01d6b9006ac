"""Checks parameters, above all those that name something: an entry of a table in lib/, a file, a
set of the hub.

Before any run starts, `check` tests the parameters of all declared runs, also against the bounds of
lib.learn.settings. `Run` calls it for a notebook that is run by hand."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from glob import glob
from inspect import signature
from itertools import product
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo
from pydantic.dataclasses import dataclass

from lib.files import PROBLEMS, ROOT, nearest
from lib.learn.settings import PARAMETERS, TRAINERS, Count, SearchSettings, explain, loosely
from lib.runs.hashes import model_folder, table

# owner/name, and optionally @ and a revision
ON_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")


def own(value: str) -> bool:
    """Whether a value names a file of the user's own: a file of problems in place of a problem set,
    or `file.py:name` in place of a reward."""
    files = table("game.sets.FILES")
    file = value if value.endswith(files) else value.rpartition(":")[0]
    return file.endswith((*files, ".py")) and (ROOT / file).is_file()


def entry(path: str) -> Any:
    """The type of a parameter that names an entry of the table `path`. A file of the user's own,
    the notebook's default and "" for no curriculum are accepted without a look at the table."""

    def known(value: str, info: ValidationInfo) -> str:
        files = table("game.sets.FILES")
        file = value.rpartition(":")[0] if ".py:" in value else value
        exempt = (info.context or {}).get(info.field_name) == value or own(value)
        exempt = exempt or (info.field_name == "curriculum" and not value)
        exempt = exempt or (
            info.field_name == "problem_set"
            and ON_HUB.fullmatch(value)
            and not file.endswith(files)
        )
        if not exempt and file.endswith((*files, ".py")) and not (ROOT / file).is_file():
            raise ValueError(f"there is no file {file} in {ROOT}")
        if not exempt and value not in table(path):
            forms = (
                f"; files of problems end in {', '.join(files)}"
                if "." in value and path.startswith("game.sets")
                else ""
            )
            raise ValueError(
                f"there is no such entry in {path}{nearest(value, table(path))}{forms}"
            )
        return value

    return Annotated[str, AfterValidator(known)]


def folder(value: str, info: ValidationInfo) -> str:
    """Checks a parameter that names a policy or a run. The notebook's default and the parents are
    accepted, and so is any policy that may be on the hub."""
    is_run = info.field_name in ("taught", "probes")
    # as in lib.learn.model.checkpoint_of
    local = is_run or not value or value.startswith(("data/", "/", "."))
    there = glob(str(ROOT / value)) if is_run else model_folder(ROOT / value)
    if local and value != (info.context or {}).get(info.field_name, "") and not there:
        raise ValueError(f"there is no such {'run' if is_run else 'model'} in {ROOT}")
    return value


FOLDERS = dict.fromkeys(
    ["init", "policy", "value", "taught", "probes"], Annotated[str, AfterValidator(folder)]
)
SET = entry("game.sets.EVALUATION_SETS")


@dataclass(frozen=True, kw_only=True)
class Search(SearchSettings):
    """A search of notebook 16."""

    repeats: Count = 1
    sets: Annotated[list[SET], Field(min_length=1)] = field(default_factory=list)  # pyright: ignore[reportInvalidTypeForm]


def searched(search: dict[str, Any]) -> dict[str, Any]:
    """Checks a search that may list several values of a setting, each of which is a search."""
    lists: dict[str, Any] = search | {
        name: [v] for name, v in search.items() if name == "sets" or type(v) is not list
    }
    if not all(lists.values()):
        raise ValueError("a setting has no value")
    try:
        for point in product(*lists.values()):
            Search(**dict(zip(lists, point, strict=True)))  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        raise ValueError(explain(error, Search.__dataclass_fields__)) from error
    return search


NAMES: dict[str, Any] = {
    "problem_set": entry("game.sets.TRAINING_SETS"),
    "prompt_style": entry("game.prompts.PROMPTS"),
    "design": entry("learn.demonstrations.DEMONSTRATIONS"),
    "reward": entry("rewards.REWARDS"),
    "game_reward": entry("learn.payoffs.REWARDS"),
    "eval_rewards": list[entry("rewards.REWARDS")],
    "curriculum": entry("learn.curriculum.CURRICULA"),
    "eval_set": SET,
    "primary_set": SET,
    **FOLDERS,
    "searches": list[Annotated[dict[str, Any], AfterValidator(searched)]],
    "sets": Annotated[dict[SET, Count] | list[SET], Field(min_length=1)],
}
FIELDS = PARAMETERS | NAMES
Parameters = loosely(NAMES)


def check(given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
    """Raise ValueError that explains the parameters that are invalid. Values that are not plain
    data are not checked.

    The file of a user's own reward is not executed here, so that a mistake in it does not stop
    other runs. `Project.check_own_files` executes it."""
    plain = int | float | str | list | dict | None
    values: dict[str, Any] = {name: v for name, v in given.items() if isinstance(v, plain)}
    try:
        Parameters.model_validate(values, context=defaults)
    except ValidationError as error:
        raise ValueError(explain(error, FIELDS)) from error
    for settings in TRAINERS:  # whether the parameters fit together
        if settings.required() <= values.keys():
            settings.of(values)
    if values.get("reward") and ":" not in values["reward"]:
        try_out(values)
    if values.get("curriculum"):
        options(
            values["curriculum"],
            values.get("curriculum_options", {}),
            table("learn.curriculum.CURRICULA"),
        )
    for reason in misfits(values):
        raise ValueError(reason)


def try_out(given: Mapping[str, Any]) -> None:
    """Scores a few completions by the reward that these parameters name, which executes a file of
    the user's own. Raises ValueError for any error in it, and if its advantage is not defined for
    what it gives."""
    name = given["reward"]
    advantage = given.get("advantage")
    lowest = table("rewards.lowest")(name, given.get("reward_options") or {})
    if advantage == "max_rl" and lowest < 0:
        raise ValueError(
            f"advantage is 'max_rl': no reward may be below 0, and {name!r} gives {lowest:.3g} to "
            "a completion with a fault; take another advantage, or a reward without a penalty"
        )


def own_problems(given: Mapping[str, Any]) -> list[str]:
    """The files of problems of the user's own that these parameters name."""
    named = [given.get(name) for name in ("problem_set", "eval_set", "primary_set")]
    names = [*named, *(given.get("sets") or [])]
    files = table("game.sets.FILES")
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and name.endswith(files)]


def misfits(given: Mapping[str, Any]) -> Iterator[str]:
    """Reasons why parameters that are valid by themselves do not fit together."""
    problem_set, eval_problems, source = (
        given.get(name) for name in ("problem_set", "eval_problems", "source")
    )
    style = given.get("prompt_style", "free")
    reward = given.get("reward", "")
    value = given.get("value", "")
    if given.get("curriculum") == "mixed" and not given.get("probes", "some"):
        yield (
            "curriculum is 'mixed': it needs a run of probes, "
            "which says how often problems are failed"
        )
    for name in ("probes", "curriculum_options"):
        if given.get("curriculum") == "" and given.get(name):
            yield f"{name} is {given[name]!r}: it needs a curriculum, which would use it"
    if "demonstrations" in given:
        yield from demonstrated(given, style)
    # of 24,800 or more
    if "numbers" in given and given.get("updates", 0) * given.get("problems_per_step", 0) > 24_000:
        yield (
            "updates * problems_per_step is above 24,000: "
            f"3to4 has few more problems of {given['numbers']} numbers"
        )
    if max(given.get("moments", [0])) > given.get("updates", 10**6):
        yield f"moments holds {max(given['moments'])}, which is above updates = {given['updates']}"
    if given.get("checked") and given.get("design", "free") not in table(
        "learn.demonstrations.TRACES"
    ):
        yield f"checked is true, and design {given.get('design', 'free')!r} writes no traces"
    needs_verifier = (
        reward or given.get("sets") or eval_problems or {"samples", "engine"} <= given.keys()
    )
    if needs_verifier and style not in (verifiers := table("game.verifiers.VERIFIERS")):
        yield f"prompt_style is {style!r}: no verifier reads it{nearest(style, verifiers)}"
    reads_program = reward in ("program", "program_near")
    if (style in ("free", "words") and reads_program) or (
        style.startswith("program") and reads_expression(reward)
    ):
        yield f"prompt_style is {style!r}: no completion can be correct by reward {reward!r}"
    if problem_set and ON_HUB.fullmatch(problem_set) and source != "hub" and not own(problem_set):
        yield f"problem_set is {problem_set!r}: a set of the hub needs source: hub"
    points = given.get("searches", [])
    if not points and "together" in given:
        yield "searches is []: it has no search, such as {beams: 16, samples: 16}"
    if points and any("learned" in point.get("rerank", "") for point in points) != bool(value):
        yield f"value is {value!r}: searches with rerank learned need one, and no others do"
    eval_set = given.get("eval_set", "validation_200")  # that of preference training
    of = table("game.sets.EVALUATION_SETS").get(eval_set, ())  # () for a file of the user's own
    if eval_problems and eval_problems > (there := rows("/".join(of))):
        yield f"eval_problems is {eval_problems}, and {eval_set} has {there}"


def demonstrated(given: Mapping[str, Any], style: str) -> Iterator[str]:
    """Reasons of this kind about what SFT imitates."""
    demonstrations = given["demonstrations"]
    five = given.get("five_numbers", 0)
    if five > demonstrations:
        yield f"five_numbers is {five}: it is a part of the {demonstrations} demonstrations"
    problem_set = given.get("problem_set", "3to4")
    for name, count in {
        problem_set: demonstrations + given.get("eval_demonstrations", 0) - five,
        "5num": five,
    }.items():
        there = rows(f"{name}/train")
        if count > there:
            yield (
                f"demonstrations and eval_demonstrations need {count} problems of {name}, "
                f"which has {there}"
            )
    design = given.get("design", "free")
    traces = table("learn.demonstrations.TRACES")
    if given.get("source") == "hub" or style in ("pick", "value"):
        return  # nothing is written by a design
    if given.get("give_up") and design in traces and not traces[design].restarts:
        yield (
            f"give_up is {given['give_up']}: design {design!r} never gives up, "
            "so it needs give_up = 0.0"
        )
    fits = style.startswith("program") == design.startswith("program") and (
        style != "trace" or design in traces
    )
    if not (fits or given.get("taught")):
        yield f"prompt_style is {style!r}: design {design!r} writes demonstrations of another form"


def rows(name: str) -> int:
    """How many problems a set has according to the manifest; no bound for a set of the hub."""
    return json.loads((PROBLEMS / "manifest.json").read_text()).get(name, {}).get("rows", 10**9)


def reads_expression(reward: str) -> bool:
    """Whether a reward is one of ours that read an expression."""
    return reward in ("sparse", "ast", "dense") or (
        bool(reward) and reward in table("rewards.TRACE_REWARDS")
    )


def options(name: str, given: dict[str, Any], entries: dict) -> None:
    """Check the options `given` for the entry `name` of a table. Raises ValueError for an option
    that the entry does not have, that has another type than its default, or that is outside the
    bounds which the entry's `check` tests."""
    parameters = signature(entries[name]).parameters.values()
    defaults = {
        param.name: param.default for param in parameters if param.default is not param.empty
    }
    table("rewards.check_options")(
        name, given, {option: type(default) for option, default in defaults.items()}
    )
    entries[name].check(**defaults | given)
