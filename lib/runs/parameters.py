"""Checks parameters, above all those that name something: an entry of a table in lib/, a file, a set of the hub.

Before any run starts, `check` tests the parameters of all declared runs, also against the bounds of lib.learn.settings.
`Run` calls it for a notebook that is run by hand.
"""

import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import signature
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from lib.files import PROBLEMS, ROOT, nearest
from lib.learn.settings import PARAMETERS, TRAINERS, Count, explain, loosely

ON_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")  # owner/name, and optionally @ and a revision


def table(path: str) -> Any:
    """The table or function of lib/ that `path` (module.NAME) names. It is imported only now, as it may need torch."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"lib.{module}"), name)


def own(value: str) -> bool:
    """Whether a value names a file of the user's own: a file of problems in place of a problem set, or `file.py:name`
    in place of a reward."""
    files = table("game.problem.FILES")
    file = value if value.endswith(files) else value.rpartition(":")[0]
    return file.endswith((*files, ".py")) and (ROOT / file).is_file()


def entry(path: str) -> Any:
    """The type of a parameter that names an entry of the table `path`. A file of the user's own, "" (for none) and the
    notebook's default are accepted without a look at the table."""

    def known(value: str, info: ValidationInfo) -> str:
        exempt = not value or (info.context or {}).get(info.field_name) == value or own(value)
        exempt = exempt or (info.field_name == "problem_set" and bool(ON_HUB.fullmatch(value)))
        file = value.rpartition(":")[0] if ".py:" in value else value
        if not exempt and file.endswith((*table("game.problem.FILES"), ".py")) and not (ROOT / file).is_file():
            raise ValueError(f"there is no file {file} in {ROOT}")
        if not exempt and value not in table(path):
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
    """Raise ValueError that explains the parameters that are invalid. Values that are not plain data are not checked.

    The file of a user's own reward is not executed here, so that a mistake in it does not stop other runs.
    `Project.check_own_rewards` executes it.
    """
    values: dict[str, Any] = {name: v for name, v in given.items() if isinstance(v, int | float | str | list | dict)}
    try:
        Parameters.model_validate(values, context=defaults)
    except ValidationError as error:
        raise ValueError(explain(error, FIELDS)) from error
    for settings in TRAINERS:  # whether the parameters fit together
        if settings.required() <= values.keys():
            settings.of(values)
    if values.get("reward") and ":" not in values["reward"]:
        table("rewards.get_reward")(values["reward"], values.get("reward_options", {}))
    if values.get("curriculum"):
        options(values["curriculum"], values.get("curriculum_options", {}), table("learn.curriculum.CURRICULA"))
    for reason in misfits(values):
        raise ValueError(reason)


def misfits(given: Mapping[str, Any]) -> Iterator[str]:
    """Reasons why parameters that are valid by themselves do not fit together."""
    problem_set, eval_set, eval_problems = (given.get(name) for name in ("problem_set", "eval_set", "eval_problems"))
    style, reward, value = given.get("prompt_style", "free"), given.get("reward", ""), given.get("value", "")
    if given.get("curriculum") == "mixed" and not given.get("probes", "some"):
        yield "curriculum is 'mixed': it needs a run of probes, which says how often problems are failed"
    if given.get("checked") and given.get("design", "free") not in table("learn.demonstrations.TRACES"):
        yield f"checked is true, and design {given.get('design', 'free')!r} writes no traces"
    needs_verifier = reward or given.get("sets") or eval_problems or {"samples", "engine"} <= given.keys()
    if needs_verifier and style not in (verifiers := table("game.verifiers.VERIFIERS")):
        yield f"prompt_style is {style!r}: no verifier reads it{nearest(style, verifiers)}"
    reads_program = reward in ("program", "program_near")
    if (style in ("free", "words") and reads_program) or (style.startswith("program") and reads_expression(reward)):
        yield f"prompt_style is {style!r}: no completion can be correct by reward {reward!r}"
    if problem_set and ON_HUB.fullmatch(problem_set) and given.get("source") != "hub" and not own(problem_set):
        yield f"problem_set is {problem_set!r}: a set of the hub needs source: hub"
    points = [point for point in given.get("searches", []) if isinstance(point, dict)]  # in analyses: folders
    if points and any("learned" in point.get("rerank", "") for point in points) != bool(value):
        yield f"value is {value!r}: searches with rerank learned need one, and no others do"
    if eval_set and eval_problems and not own(eval_set):
        manifest = json.loads((PROBLEMS / "manifest.json").read_text())
        set_entry = manifest.get("/".join(table("game.problem.EVALUATION_SETS")[eval_set]))  # None for a set of the hub
        if set_entry and eval_problems > set_entry["rows"]:
            yield f"eval_problems is {eval_problems}, and {eval_set} has {set_entry['rows']}"


def reads_expression(reward: str) -> bool:
    """Whether a reward is one of ours that read an expression."""
    return reward in ("sparse", "ast", "dense") or (bool(reward) and reward in table("rewards.TRACE_REWARDS"))


def options(name: str, given: dict[str, Any], entries: dict) -> None:
    """Check the options `given` for the entry `name` of a table. Raises ValueError for an option that the entry does
    not have, that has another type than its default, or that is outside the bounds which the entry's `check` tests."""
    parameters = signature(entries[name]).parameters.values()
    defaults = {param.name: param.default for param in parameters if param.default is not param.empty}
    table("rewards.check_options")(name, given, {option: type(default) for option, default in defaults.items()})
    entries[name].check(**defaults | given)
