"""What a notebook's parameters may be, in one table: `check` holds the grid to it, and `Run` what is run by hand."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, ValidationInfo, create_model

from lib.files import PROBLEMS, ROOT, nearest
from lib.settings import Advantage, Engine, RLOOSettings, SFTSettings


def table(path: str) -> Any:
    """A table of lib/, as module.NAME; imported late, as it may need torch."""
    module, _, name = path.partition(".")
    return getattr(import_module(f"lib.{module}"), name)


def own(value: str) -> bool:
    """Whether it is a file of problems, which may stand for a set, or `file.py:name`, which may stand for a reward."""
    files = table("problem.FILES")
    file = value if value.endswith(files) else value.rpartition(":")[0]
    return file.endswith((*files, ".py")) and (ROOT / file).is_file()


def entry(path: str) -> Any:
    """A key of a table, "" for none, or a CSV of problems of one's own; a notebook's default needs no look."""

    def known(value: str, info: ValidationInfo) -> str:
        usual = not value or (info.context or {}).get(info.field_name) == value or own(value)
        usual = usual or (info.field_name == "problem_set" and bool(ON_HUB.fullmatch(value)))
        if not usual and value not in table(path):
            raise ValueError(f"there is no such entry in {path}{nearest(value, table(path))}")
        return value

    return Annotated[str, AfterValidator(known)]


Count, Whole = Annotated[int, Field(ge=1, le=10**6)], Annotated[int, Field(ge=0, le=10**6)]
Positive, Weight = Annotated[float, Field(gt=0, le=1e6)], Annotated[float, Field(ge=0, le=1e6)]  # finite, so no nan
ON_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # owner/name
SET = entry("problem.EVALUATION_SETS")
BOUNDS = [  # a parameter that is not here may be anything of its default's type
    (Count, "steps epochs batch_size batch demonstrations problems problems_per_step num_iterations micro_batch"),
    (
        Count,
        "log_every save_every eval_every draws rows width shards worked_lines test_lines threads pass_k pass_k_end",
    ),
    (Count | list | str, "samples"),  # of an analysis: folders
    (Annotated[int, Field(ge=2, le=10**5)], "group_size"),  # leave-one-out needs another rollout
    (Annotated[int, Field(ge=1, le=8192)], "max_tokens"),
    (Whole, "seed eval_problems eval_demonstrations warmup_steps decay_steps average_from limit top_k most_failures"),
    (Whole, "skip"),
    (Positive, "learning_rate importance_cap max_grad_norm beta muon_lr adam_lr"),
    (Weight, "temperature weight_decay entropy_coef kl_coef nll_coef think_weight alpha positive_weight smoothing"),
    (Annotated[float, Field(gt=0, le=1)], "top_p idle_share reference_share"),
    (Annotated[float, Field(ge=0, le=1)], "give_up unlikeliness"),
    (Literal["generated", "hub"], "source"),
    (list, "searches"),
    (str, "value"),
    (Engine, "engine"),
    (Literal["ipo", "ipo_mean", "dpo"], "loss"),
    (Literal["cosine", "linear", "constant"], "schedule"),
    (Advantage, "advantage"),
    (entry("problem.HUB"), "problem_set"),
    (entry("prompts.PROMPTS"), "prompt_style"),
    (entry("demonstrations.DEMONSTRATIONS"), "design"),
    (entry("rewards.REWARDS"), "reward"),
    (entry("curriculum.CURRICULA"), "curriculum"),
    (list[entry("rewards.REWARDS")], "eval_rewards"),
    (SET, "eval_set primary_set"),
    (Annotated[dict[SET, Count] | list[SET], Field(min_length=1)], "sets"),
]
FIELDS: dict[str, Any] = {name: (kind, None) for kind, names in BOUNDS for name in names.split()}
Parameters = create_model("Parameters", __config__=ConfigDict(strict=True, extra="ignore"), **FIELDS)


def check(given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
    """Raise ValueError with a sentence for each parameter that cannot be. What is no plain value is passed over."""
    plain: dict[str, Any] = {name: v for name, v in given.items() if isinstance(v, int | float | str | list | dict)}
    try:
        Parameters.model_validate(plain, context=defaults)
    except ValidationError as error:
        first = {e["loc"][0]: e for e in reversed(error.errors())}.values()  # of each parameter
        places = [([part for part in e["loc"] if part != "[key]"], e) for e in first]
        said = [(dict.fromkeys((at[0], at[-1])), e["input"], e["msg"]) for at, e in places]
        told = (
            f"{'.'.join(map(str, at))} is {value!r}: {why.removeprefix('Value error, ')}" for at, value, why in said
        )
        raise ValueError("; ".join(told)) from error
    if plain.get("reward"):
        from lib.rewards import get_reward

        get_reward(plain["reward"], plain.get("reward_options", {}))
    if plain.get("curriculum"):
        options(plain["curriculum"], plain.get("curriculum_options", {}), table("curriculum.CURRICULA"))
    if ON_HUB.fullmatch(name := plain.get("problem_set", "")) and plain.get("source") != "hub" and not own(name):
        raise ValueError(f"problem_set is {name!r}: a set of the hub needs source: hub")
    for settings in (SFTSettings, RLOOSettings):  # how they fit each other
        if {field.name for field in fields(settings)} <= plain.keys():
            settings.of(plain)
    points = [point for point in plain.get("searches", []) if isinstance(point, dict)]  # of an analysis: folders
    if points and any("learned" in point.get("rerank", "") for point in points) != bool(plain.get("value")):
        raise ValueError(
            f"value is {plain.get('value', '')!r}: searches with rerank learned need one, and no others do"
        )
    if plain.get("eval_set") and (asked := plain.get("eval_problems", 0)) and not own(plain["eval_set"]):
        held = json.loads((PROBLEMS / "manifest.json").read_text())
        ours = held.get("/".join(table("problem.EVALUATION_SETS")[plain["eval_set"]]), {"rows": asked})  # or the hub's
        if asked > (rows := ours["rows"]):
            raise ValueError(f"eval_problems is {asked}, and {plain['eval_set']} has {rows}")


def options(name: str, given: dict[str, Any], entries: dict) -> None:
    """Raise ValueError for an option that the entry of a table does not have, or of another type than its default."""
    found = signature(entries[name]).parameters.values()
    defaults = {one.name: one.default for one in found if one.default is not one.empty}
    for option, value in given.items():
        if option not in defaults:
            raise ValueError(f"{name} has no option {option!r}{nearest(option, defaults)}")
        kind, default = type(value), type(defaults[option])
        if kind is not default and (kind, default) != (int, float):
            raise ValueError(f"option {option} of {name} is {value!r}, and must be a {default.__name__}")
