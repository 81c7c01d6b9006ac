"""Checks parameters, above all those that name something: an entry of a table in lib/, a file, a
set of the hub.

Before any run starts, `check` tests the parameters of all declared runs, also against the bounds of
lib.learn.settings. `Run` calls it for a notebook that is run by hand."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import field
from glob import glob
from inspect import signature
from itertools import product
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo
from pydantic.dataclasses import dataclass

from lib.files import PROBLEMS, ROOT, nearest, reading
from lib.learn.settings import (
    PARAMETERS,
    Count,
    Kind,
    PreferenceSettings,
    RLOOSettings,
    SearchSettings,
    Settings,
    SFTSettings,
    explain,
    model_of_all,
)
from lib.runs.hashes import ADAPTER, Given, model_folder, of_lib

Rule = Callable[[Given], Iterator[str]]
# owner/name, and optionally @ and a revision
ON_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")


def is_own_file(value: str) -> bool:
    """Whether a value names a file of the user's own: a file of problems in place of a problem set,
    or `file.py:name` in place of a reward."""
    files = of_lib("game.sets.FILES")
    file = value if value.endswith(files) else value.rpartition(":")[0]
    return file.endswith((*files, ".py")) and (ROOT / file).is_file()


def entry_of(path: str) -> Kind:
    """The type of a parameter that names an entry of the table `path`. A file of the user's own,
    the notebook's default and "" for no curriculum are accepted without a look at the table."""

    def known(value: str, info: ValidationInfo) -> str:
        files = of_lib("game.sets.FILES")
        file = value.rpartition(":")[0] if ".py:" in value else value
        exempt = (info.context or {}).get(info.field_name) == value or is_own_file(value)
        exempt = exempt or (info.field_name == "curriculum" and not value)
        exempt = exempt or (
            info.field_name == "problem_set"
            and ON_HUB.fullmatch(value)
            and not file.endswith(files)
        )
        if not exempt and file.endswith((*files, ".py")) and not (ROOT / file).is_file():
            raise ValueError(f"there is no file {file} in {ROOT}")
        if not exempt and value not in of_lib(path):
            forms = (
                f"; files of problems end in {', '.join(files)}"
                if "." in value and path.startswith("game.sets")
                else ""
            )
            raise ValueError(
                f"there is no such entry in {path}{nearest(value, of_lib(path))}{forms}"
            )
        return value

    return Annotated[str, AfterValidator(known)]


PRETRAINED = ".venv/pretrained/"  # what `make pretrained` makes; who loads it is told to


def folder(value: str, info: ValidationInfo) -> str:
    """Checks a parameter that names a policy or a run. The notebook's default and the parents are
    accepted, and so is any policy that may be on the hub or that `make pretrained` makes."""
    is_run = info.field_name in ("taught", "probes")
    # as in lib.learn.model.checkpoint_of
    local = is_run or not value or value.startswith(("data/", "/", "."))
    there = glob(str(ROOT / value)) if is_run else model_folder(ROOT / value)
    there = there or value.startswith(PRETRAINED)
    if local and value != (info.context or {}).get(info.field_name, "") and not there:
        raise ValueError(f"there is no such {'run' if is_run else 'model'} in {ROOT}")
    return value


FOLDERS = dict.fromkeys(
    ["init", "policy", "value", "taught", "probes"], Annotated[str, AfterValidator(folder)]
)
SET = entry_of("game.sets.EVALUATION_SETS")


@dataclass(frozen=True, kw_only=True)
class Search(SearchSettings):
    """A search of notebook 16."""

    repeats: Count = 1
    sets: Annotated[list[SET], Field(min_length=1)] = field(default_factory=list)  # pyright: ignore[reportInvalidTypeForm]


def checked_search(search: dict) -> dict:
    """Checks a search that may list several values of a setting, each of which is a search."""
    lists = search | {
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


NAMES: dict[str, Kind] = {
    "problem_set": entry_of("game.sets.TRAINING_SETS"),
    "prompt_style": entry_of("game.prompts.PROMPTS"),
    "design": entry_of("learn.demonstrations.DEMONSTRATIONS"),
    "reward": entry_of("rewards.REWARDS"),
    "game_reward": entry_of("game.payments.REWARDS"),
    "eval_rewards": list[entry_of("rewards.REWARDS")],
    "curriculum": entry_of("learn.curriculum.CURRICULA"),
    "eval_set": SET,
    "primary_set": SET,
    **FOLDERS,
    "searches": list[Annotated[dict, AfterValidator(checked_search)]],
    "sets": Annotated[dict[SET, Count] | list[SET], Field(min_length=1)],
}
FIELDS = PARAMETERS | NAMES
Parameters = model_of_all(NAMES)


def check(given: Given, defaults: Given | None = None, notebook: str = "") -> None:
    """Raise ValueError that explains the parameters that are invalid. Values that are not plain
    data are not checked.

    `notebook`: the name of the notebook, without .ipynb, that `given` are all parameters of. They
    must also fit together, by its entry in TOGETHER. Without a name each is checked by itself.

    The file of a user's own reward is not executed here, so that a mistake in it does not stop
    other runs. `Project.check_own_files` executes it."""
    plain = int | float | str | list | dict | None
    values = {name: v for name, v in given.items() if isinstance(v, plain)}
    try:
        Parameters.model_validate(values, context=defaults)
    except ValidationError as error:
        raise ValueError(explain(error, FIELDS)) from error
    if values.get("reward") and ":" not in values["reward"]:
        try_out(values)
    if values.get("curriculum"):
        given_options = values.get("curriculum_options", {})
        options(values["curriculum"], given_options, of_lib("learn.curriculum.CURRICULA"))
    if values.keys() == given.keys():
        check_together(notebook, values)


def check_together(notebook: str, given: Given) -> None:
    """Raise ValueError with the first reason why the parameters of a notebook do not fit
    together."""
    for rule in TOGETHER.get(notebook, ()):
        try:
            reasons = list(rule(given))
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is missing: the parameters cell lacks it") from error
        if reasons:
            raise ValueError(reasons[0])


def try_out(given: Given) -> None:
    """Scores a few completions by the reward that these parameters name, which executes a file of
    the user's own. Raises ValueError for any error in it, and if its advantage is not defined for
    what it gives."""
    name = given["reward"]
    advantage = given.get("advantage")
    lowest = of_lib("rewards.lowest")(name, given.get("reward_options") or {})
    if advantage == "max_rl" and lowest < 0:
        raise ValueError(
            f"advantage is 'max_rl': no reward may be below 0, and {name!r} gives {lowest:.3g} to "
            "a completion with a fault; take another advantage, or a reward without a penalty"
        )


def own_problems(given: Given) -> list[str]:
    """The files of problems of the user's own that these parameters name."""
    named = [given.get(name) for name in ("problem_set", "eval_set", "primary_set")]
    names = [*named, *(given.get("sets") or [])]
    files = of_lib("game.sets.FILES")
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and name.endswith(files)]


# --- which parameters of a notebook fit together --------------------------------------------------
# Each rule gets all parameters of its notebook, and yields the reasons why they do not.


def meets(settings: type[Settings]) -> Rule:
    """The rule that the parameters are those of a trainer."""

    def rule(given: Given) -> Iterator[str]:
        settings.of(given)  # raises ValueError
        return iter(())

    return rule


def has_demonstrations(given: Given) -> Iterator[str]:
    """There are as many problems as SFT imitates solutions of."""
    demonstrations = given["demonstrations"]
    five = given["five_numbers"]
    if five > demonstrations:
        yield f"five_numbers is {five}: it is a part of the {demonstrations} demonstrations"
    needed = {
        given["problem_set"]: demonstrations + given["eval_demonstrations"] - five,
        "5num": five,
    }
    for name, count in needed.items():
        there = rows(f"{name}/train")
        if count > there:
            yield (
                f"demonstrations and eval_demonstrations need {count} problems of {name}, "
                f"which has {there}"
            )


def has_a_design(given: Given) -> Iterator[str]:
    """The design of SFT's demonstrations writes what the prompt asks for."""
    style = given["prompt_style"]
    design = given["design"]
    traces = of_lib("learn.demonstrations.TRACES")
    if given["checked"] and design not in traces:
        yield f"checked is true, and design {design!r} writes no traces"
    if given["source"] == "hub" or style in ("pick", "value"):
        return  # nothing is written by a design
    if given["give_up"] and design in traces and not traces[design].restarts:
        yield (
            f"give_up is {given['give_up']}: design {design!r} never gives up, "
            "so it needs give_up = 0.0"
        )
    fits = style.startswith("program") == design.startswith("program")
    fits = fits and (style != "trace" or design in traces)
    if not (fits or given["taught"]):
        yield f"prompt_style is {style!r}: design {design!r} writes demonstrations of another form"


def has_a_curriculum(given: Given) -> Iterator[str]:
    """A curriculum has what it needs; without one there is nothing for it."""
    curriculum = given["curriculum"]
    if curriculum == "mixed" and not given["probes"]:
        yield (
            "curriculum is 'mixed': it needs a run of probes, "
            "which says how often problems are failed"
        )
    for name in ("probes", "curriculum_options"):
        if not curriculum and given[name]:
            yield f"{name} is {given[name]!r}: it needs a curriculum, which would use it"


def can_be_verified(given: Given) -> Iterator[str]:
    """A verifier reads what the prompt asks for."""
    style = given["prompt_style"]
    verifiers = of_lib("game.verifiers.VERIFIERS")
    if style not in verifiers:
        yield f"prompt_style is {style!r}: no verifier reads it{nearest(style, verifiers)}"


def can_be_correct(given: Given) -> Iterator[str]:
    """The reward reads what the prompt asks for."""
    style = given["prompt_style"]
    reward = given["reward"]
    reads_program = reward in ("program", "program_near")
    of_program = style.startswith("program")
    if (style in ("free", "words") and reads_program) or (of_program and reads_expression(reward)):
        yield f"prompt_style is {style!r}: no completion can be correct by reward {reward!r}"


def names_the_hub(given: Given) -> Iterator[str]:
    """A problem set of the hub is asked for as such."""
    name = given["problem_set"]
    source = given.get("source", "generated")  # notebook 17 has no source
    if ON_HUB.fullmatch(name) and source != "hub" and not is_own_file(name):
        yield f"problem_set is {name!r}: a set of the hub needs source: hub"


def evaluates(given: Given) -> Iterator[str]:
    """The held-out set has as many problems as training is evaluated on."""
    eval_set = given.get("eval_set", "validation_200")  # that of preference training
    of = of_lib("game.sets.EVALUATION_SETS").get(eval_set, ())  # () for a file of the user's own
    there = rows("/".join(of))
    if given["eval_problems"] > there:
        yield f"eval_problems is {given['eval_problems']}, and {eval_set} has {there}"


def can_be_evaluated(given: Given) -> Iterator[str]:
    """Training that is evaluated on problems writes what a verifier reads."""
    if given["eval_problems"]:
        yield from can_be_verified(given)


def has_searches(given: Given) -> Iterator[str]:
    """There is a search, and a learned value where one is used."""
    searches = given["searches"]
    value = given["value"]
    if not searches:
        yield "searches is []: it has no search, such as {beams: 16, samples: 16}"
        return
    is_learned = any("learned" in search.get("rerank", "") for search in searches)
    if is_learned != bool(value):
        yield f"value is {value!r}: searches with rerank learned need one, and no others do"


def goes_on_with_its_adapter(given: Given) -> Iterator[str]:
    """An adapter at the start is trained further as it is, or added to the weights. A start that is
    not made yet is checked when it is loaded."""
    folder = model_folder(ROOT / given["init"])
    if not (given["lora_r"] and folder and (folder / ADAPTER).is_file()):
        return
    with reading(folder / ADAPTER):
        adapter = json.loads((folder / ADAPTER).read_text())
        found = {"lora_r": adapter["r"], "lora_alpha": adapter["lora_alpha"]}
    for name, value in found.items():
        if given[name] != value:
            yield (
                f"{name} is {given[name]}: the adapter of {given['init']} has {value}, and "
                "training goes on with it as it is; with lora_r = 0 it is added to the weights, "
                "and all of them are trained"
            )


def has_games(given: Given) -> Iterator[str]:
    """3to4 has 24,800 problems of either number of numbers, or a few more."""
    if given["updates"] * given["problems_per_step"] > 24_000:
        yield (
            "updates * problems_per_step is above 24,000: "
            f"3to4 has few more problems of {given['numbers']} numbers"
        )


def ends_after_its_moments(given: Given) -> Iterator[str]:
    """Every moment at which a policy is evaluated comes while it is trained."""
    last = max(given["moments"])
    if last > given["updates"]:
        yield f"moments holds {last}, which is above updates = {given['updates']}"


# by the name of a notebook; of the others each parameter is checked by itself
TOGETHER: dict[str, tuple[Rule, ...]] = {
    "10_train_sft": (
        meets(SFTSettings),
        has_demonstrations,
        has_a_design,
        names_the_hub,
        goes_on_with_its_adapter,
    ),
    "11_train_rloo": (
        meets(RLOOSettings),
        has_a_curriculum,
        can_be_verified,
        can_be_correct,
        names_the_hub,
        evaluates,
        goes_on_with_its_adapter,
    ),
    "12_sample_pairs": (can_be_verified, names_the_hub),
    "13_train_preference": (
        meets(PreferenceSettings),
        can_be_evaluated,
        evaluates,
        goes_on_with_its_adapter,
    ),
    "15_sample_rollouts": (can_be_verified,),
    "16_search": (has_searches,),
    "17_trl_trainer": (can_be_verified, can_be_correct, names_the_hub),
    "81_train_exact": (has_games,),
    "82_train_to_the_end": (has_games, ends_after_its_moments),
}


def rows(name: str) -> int:
    """How many problems a set has according to the manifest; no bound for a set of the hub."""
    return json.loads((PROBLEMS / "manifest.json").read_text()).get(name, {}).get("rows", 10**9)


def reads_expression(reward: str) -> bool:
    """Whether a reward is one of ours that read an expression."""
    return reward in ("sparse", "ast", "dense") or (
        bool(reward) and reward in of_lib("rewards.TRACE_REWARDS")
    )


def options(name: str, given: Given, entries: dict) -> None:
    """Check the options `given` for the entry `name` of a table. Raises ValueError for an option
    that the entry does not have, that has another type than its default, or that is outside the
    bounds which the entry's `check` tests."""
    parameters = signature(entries[name]).parameters.values()
    defaults = {
        param.name: param.default for param in parameters if param.default is not param.empty
    }
    of_lib("rewards.check_options")(
        name, given, {option: type(default) for option, default in defaults.items()}
    )
    entries[name].check(**{**defaults, **given})
