"""What parameters may be that name something: an entry of a table of lib/, a file, a set of the hub. `check` holds the
grid to this and to the bounds of lib.learn.settings before anything starts, and `Run` what is run by hand."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import signature
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from lib.files import PROBLEMS, ROOT, nearest
from lib.learn.settings import PARAMETERS, TRAINERS, Count, explain, loosely

ON_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")  # owner/name, @ and a revision


def table(path: str) -> Any:
    """A table of lib/, as module.NAME; imported late, as it may need torch."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"lib.{module}"), name)


def own(value: str) -> bool:
    """Whether it is a file of problems, which may stand for a set, or `file.py:name`, which may stand for a reward."""
    files = table("game.problem.FILES")
    file = value if value.endswith(files) else value.rpartition(":")[0]
    return file.endswith((*files, ".py")) and (ROOT / file).is_file()


def entry(path: str) -> Any:
    """The type of a parameter that names an entry of a table. A file of one's own, "" for none, and a notebook's
    default are taken as they are."""

    def known(value: str, info: ValidationInfo) -> str:
        usual = not value or (info.context or {}).get(info.field_name) == value or own(value)
        usual = usual or (info.field_name == "problem_set" and bool(ON_HUB.fullmatch(value)))
        if not usual and value not in table(path):
            raise ValueError(f"there is no such entry in {path}{nearest(value, table(path))}")
        return value

    return Annotated[str, AfterValidator(known)]


SET = entry("game.problem.EVALUATION_SETS")
NAMES: dict[str, Any] = {
    "problem_set": entry("game.problem.HUB"),
    "prompt_style": entry("game.prompts.PROMPTS"),
    "design": entry("learn.demonstrations.DEMONSTRATIONS"),
    "reward": entry("rewards.REWARDS"),
    "eval_rewards": list[entry("rewards.REWARDS")],
    "curriculum": entry("learn.curriculum.CURRICULA"),
    "eval_set": SET,
    "primary_set": SET,
    "sets": Annotated[dict[SET, Count] | list[SET], Field(min_length=1)],
}
FIELDS = PARAMETERS | NAMES
Parameters = loosely(NAMES)


def check(given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
    """Raise ValueError with a sentence for each parameter that cannot be. What is no plain value is passed over.

    A reward's own file is not run here, so that a mistake in it stops no other run: `check_rewards` runs it.
    """
    plain: dict[str, Any] = {name: v for name, v in given.items() if isinstance(v, int | float | str | list | dict)}
    try:
        Parameters.model_validate(plain, context=defaults)
    except ValidationError as error:
        raise ValueError(explain(error, FIELDS)) from error
    for settings in TRAINERS:  # how they fit each other
        if settings.required() <= plain.keys():
            settings.of(plain)
    if plain.get("reward") and ":" not in plain["reward"]:
        table("rewards.get_reward")(plain["reward"], plain.get("reward_options", {}))
    if plain.get("curriculum"):
        options(plain["curriculum"], plain.get("curriculum_options", {}), table("learn.curriculum.CURRICULA"))
    for why in misfits(plain):
        raise ValueError(why)


def check_rewards(given: Mapping[str, Any]) -> None:
    """Make each reward that the parameters name, which runs files of one's own. Raises ValueError with a sentence."""
    if given.get("reward"):
        table("rewards.get_reward")(given["reward"], given.get("reward_options", {}))
    for name in given.get("eval_rewards", []):
        table("rewards.get_reward")(name)


def misfits(given: Mapping[str, Any]) -> Iterator[str]:
    """Why parameters, each of which could be, cannot be together."""
    problems, evaluated, asked = (given.get(name) for name in ("problem_set", "eval_set", "eval_problems"))
    style, reward, value = given.get("prompt_style", "free"), given.get("reward", ""), given.get("value", "")
    if given.get("curriculum") == "mixed" and not given.get("probes", "some"):
        yield "curriculum is 'mixed': it needs a run of probes, which says how often problems are failed"
    judged = reward or given.get("sets") or asked or {"samples", "engine"} <= given.keys()
    if judged and style not in (verifiers := table("game.verifiers.VERIFIERS")):
        yield f"prompt_style is {style!r}: no verifier reads it{nearest(style, verifiers)}"
    expressions = ("sparse", "ast", "dense", *table("rewards.TRACE_REWARDS"))  # rewards of ours that read an expression
    if (reward in expressions and style.startswith("program")) or (
        reward in ("program", "program_near") and style in ("free", "words")
    ):
        yield f"prompt_style is {style!r}: no completion can be correct by reward {reward!r}"
    if problems and ON_HUB.fullmatch(problems) and given.get("source") != "hub" and not own(problems):
        yield f"problem_set is {problems!r}: a set of the hub needs source: hub"
    points = [point for point in given.get("searches", []) if isinstance(point, dict)]  # of an analysis: folders
    if points and any("learned" in point.get("rerank", "") for point in points) != bool(value):
        yield f"value is {value!r}: searches with rerank learned need one, and no others do"
    if evaluated and asked and not own(evaluated):
        held = json.loads((PROBLEMS / "manifest.json").read_text())
        ours = held.get("/".join(table("game.problem.EVALUATION_SETS")[evaluated]))  # None: the hub's
        if ours and asked > ours["rows"]:
            yield f"eval_problems is {asked}, and {evaluated} has {ours['rows']}"


def options(name: str, given: dict[str, Any], entries: dict) -> None:
    """Raise ValueError for an option that the entry of a table does not have, of another type than its default, or out
    of the bounds that the entry's `check` knows."""
    found = signature(entries[name]).parameters.values()
    defaults = {one.name: one.default for one in found if one.default is not one.empty}
    for option, value in given.items():
        if option not in defaults:
            raise ValueError(f"{name} has no option {option!r}{nearest(option, defaults)}")
        kind, default = type(value), type(defaults[option])
        if (kind is not default and (kind, default) != (int, float)) or (kind is float and not math.isfinite(value)):
            raise ValueError(f"option {option} of {name} is {value!r}, and must be a {default.__name__}")
    entries[name].check(**defaults | given)
