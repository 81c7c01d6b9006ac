"""Rewards: what a completion is worth in training, by name.

    reward = get_reward("ast", {"tau": 2.0})
    scores = reward(completions, problem)  # one group: the completions of one problem

A factory registered with `@register("name")` takes the reward's options and returns that function.
`Score.parts` are logged with the total. Your own reward may be in a notebook, or in a file that its
name points to, as in `reward: my_rewards.py:closer` in papermill_runs.yaml.

Equations are those of "Dense Rewards for RLVR on Countdown via ASTs" (Elbakry), abbreviated `ast`,
unless another paper is named: `dense` is "Enhancing RLOO with Dense Symbolic Rewards and
Bandit-Driven Curricula" (Sangpisit, Thawornbut)."""

import inspect
import runpy
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial, wraps
from itertools import groupby
from math import exp, isfinite
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.files import ROOT, nearest, shown
from lib.game.distance import distance_to_solutions
from lib.game.expression import Expr
from lib.game.problem import Problem, as_problem
from lib.game.prompts import render_prompt
from lib.game.solver import is_solvable
from lib.game.steps import Step, verify_steps
from lib.game.verifiers import (
    CHECKS,
    PROGRAM_WEIGHTS,
    TraceVerdict,
    Verdict,
    verify_answer,
    verify_program,
    verify_trace,
)


class Score(NamedTuple):
    """The reward of a completion, and the parts of which it is made."""

    total: float
    parts: dict[str, float]


Reward = Callable[[Sequence[str], Problem], list[Score]]
REWARDS: dict[str, Callable[..., Reward]] = {}


def register(name: str) -> Callable:
    """A decorator that enters a reward factory in REWARDS. Raises ValueError for a name that exists
    already, unless a cell of a notebook is run again."""

    def enter(factory: Callable[..., Reward]) -> Callable[..., Reward]:
        known = REWARDS.get(name)
        if (
            known
            and not getattr(known, "__module__", None)
            == getattr(factory, "__module__", None)
            == "__main__"
        ):
            raise ValueError(f"a reward {name!r} exists already: give yours another name")
        REWARDS[name] = factory
        return factory

    return enter


# --- the rewards ----------------------------------------------------------------------------------


def _indicators(verdict: Verdict, exact_numbers: bool) -> dict[str, float]:
    """The indicators of Eq. 8 as parts, and wrong_numbers; with `exact_numbers`, answers with wrong
    numbers are not valid."""
    valid = (
        ("correct", "wrong_value") if exact_numbers else ("correct", "wrong_value", "wrong_numbers")
    )
    return {
        "correct": float(verdict.status == "correct"),
        "answer": float(verdict.status != "missing"),
        "valid": float(verdict.status in valid),
        "wrong_numbers": float(verdict.status == "wrong_numbers"),
    }


@register("sparse")
def sparse(lambda_c: float = 1.0, lambda_p: float = 0.1) -> Reward:
    """Eq. 4: lambda_c for a correct answer, lambda_p for any other answer span, and 0 without a
    span. As in Eq. 8, the span does not have to hold an expression.

    Raises ValueError unless lambda_c is above lambda_p and above 0: no wrong answer may earn as
    much as a correct one."""
    if not lambda_c > max(0, lambda_p):
        raise ValueError(
            f"lambda_c must be above lambda_p and above 0: lambda_c={lambda_c}, lambda_p={lambda_p}"
        )

    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        verdicts = (verify_answer(completion, problem) for completion in completions)
        parts = [_indicators(verdict, exact_numbers=True) for verdict in verdicts]
        return [Score(lambda_c if p["correct"] else lambda_p * p["answer"], p) for p in parts]

    return reward


@register("ast")
def ast_distance(
    lambda_c: float = 1.0,
    lambda_p: float = 0.1,
    lambda_a: float = 0.5,
    lambda_s: float = 0.0,
    tau: float = 2.0,
    exact_numbers: bool = True,
) -> Reward:
    """Eq. 8: lambda_c for a correct answer; otherwise lambda_p for an answer span, and lambda_a
    exp(-d / tau) for a valid expression, where d is its distance to the nearest solution (Eq. 5).
    Any completion also earns lambda_s times the share of the reasoning's different steps whose
    arithmetic holds, as the paper proposes for later.

    With exact_numbers, an expression is valid if it uses exactly the problem's numbers, even if it
    divides by zero. Without it, any expression is valid (as in the paper's early trials, which the
    policy learned to exploit). Parts: correct, answer, valid (the indicators of Eq. 8);
    wrong_numbers; distance (d; it is 0 for a correct answer, the size of a solution if there is no
    tree, and infinite without a solution); closeness (exp(-d / tau) of a valid answer, else 0); and
    with lambda_s arithmetic (the share).

    Raises ValueError unless tau > 0, lambda_s >= 0 and lambda_c > max(0, lambda_p) + max(0,
    lambda_a) + lambda_s, so that every wrong completion scores below every solution."""
    if not (lambda_s >= 0 and lambda_c > max(0, lambda_p) + max(0, lambda_a) + lambda_s):
        given = (
            f"lambda_c={lambda_c}, lambda_p={lambda_p}, lambda_a={lambda_a}, lambda_s={lambda_s}"
        )
        raise ValueError(
            "lambda_a + lambda_s must be below lambda_c - lambda_p, where a negative lambda_a or "
            "lambda_p counts as 0 and lambda_s is at least 0: "
            f"no wrong answer may score like a solution: {given}"
        )
    if not tau > 0:
        raise ValueError(f"tau must be positive: tau={tau}")

    # 1. Score the group; with lambda_s, add the share of correct arithmetic
    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        distance = cache(partial(distance_to_solutions, problem=problem))
        scores = [score(verify_answer(completion, problem), distance) for completion in completions]
        if not lambda_s:
            return scores
        shares = [arithmetic(verify_steps(completion, problem)) for completion in completions]
        return [
            Score(score.total + lambda_s * share, score.parts | {"arithmetic": share})
            for score, share in zip(scores, shares, strict=True)
        ]

    def arithmetic(steps: list[Step]) -> float:
        different = [step.arithmetic_ok for step in steps if not step.repeated]
        return sum(different) / max(len(different), 1)

    # 2. Score one completion (Eq. 8)
    def score(verdict: Verdict, distance: Callable[[Expr | None], float]) -> Score:
        parts = _indicators(verdict, exact_numbers)
        parts["distance"] = 0.0 if parts["correct"] else distance(verdict.expression)
        parts["closeness"] = exp(-parts["distance"] / tau) if parts["valid"] else 0.0
        if parts["correct"]:
            return Score(lambda_c, parts)
        return Score(lambda_p * parts["answer"] + lambda_a * parts["closeness"], parts)

    return reward


@register("program")
def program(early: float = 1.0) -> Reward:
    """The decomposed reward (Eq. 4) of "Programmatic Reasoning for Countdown" (Ivankiv and Zhou):
    the sum of the weights of the checks that a program passes. Parts: each check, 0 or 1. The
    checks before the target keep a share `early` of their weights, and the target gets the rest.
    Raises ValueError unless early is between 0 and 1."""
    if not 0 <= early <= 1:
        raise ValueError(f"early must lie between 0 and 1: {early}")
    weights = {check: early * weight for check, weight in PROGRAM_WEIGHTS.items()}
    weights["target"] = 1 - early * (1 - PROGRAM_WEIGHTS["target"])

    def score(completion: str, problem: Problem) -> Score:
        passed = verify_program(completion, problem).passed
        parts = {check: float(i < passed) for i, check in enumerate(CHECKS)}
        return Score(sum(weights[check] * part for check, part in parts.items()), parts)

    return lambda completions, problem: [score(completion, problem) for completion in completions]


@register("program_near")
def program_near(by: str = "tree", credit: float = 0.25, tau: float = 2.0) -> Reward:
    """The reward `program` with partial credit for a wrong value, which its paper leaves to future
    work: a program that uses the given numbers and misses the target also earns credit x closeness.

    closeness is exp(-d / tau), where d is the distance of the program's expression to the nearest
    solution (`ast`, Eq. 5); with by="value" it is 1 / (1 + |value - target|). Parts: those of
    `program`, and closeness (0 for all other programs). Raises ValueError for another `by`, for a
    tau that is not positive, and for a credit outside [0, 0.5), with which a wrong program could
    earn as much as a correct one."""
    if by not in ("tree", "value") or not (0 <= credit < PROGRAM_WEIGHTS["target"] and tau > 0):
        given = f"by={by!r}, credit={credit}, tau={tau}"
        raise ValueError(
            f"by must be 'tree' or 'value', credit within [0, 0.5) and tau positive: {given}"
        )
    checks = program()

    def closeness(completion: str, problem: Problem) -> float:
        verdict = verify_program(completion, problem)
        if by == "value" and verdict.value is not None:
            return float(1 / (1 + abs(verdict.value - problem.target)))
        return exp(-distance_to_solutions(verdict.expression, problem) / tau)

    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        scores = []
        for completion, score in zip(completions, checks(completions, problem), strict=True):
            # the right numbers but a wrong value
            misses = score.parts["numbers"] > score.parts["target"]
            close = closeness(completion, problem) if misses else 0.0
            scores.append(Score(score.total + credit * close, score.parts | {"closeness": close}))
        return scores

    return reward


@register("dense")
def dense(
    lambda_1: float = 0.05,
    lambda_2: float = 0.05,
    lambda_3: float = 0.0,
    aggregate: str = "bounded",
) -> Reward:
    """`dense`, Eq. 6: the sparse reward + lambda_1 R_legal - lambda_2 R_invalid + lambda_3
    R_progress (its Section 7).

    A step of `verify_steps` is legal if it reads `a op b = c`, holds, and takes its operands from
    the pool; otherwise it is invalid. It makes progress if it and every earlier step of its attempt
    are legal, and its pool can still reach the target. The paper leaves open how R sums c such
    steps; therefore there is an option, `aggregate`:

    "bounded": c / (c + n - 1) for c different steps, where a solution of n numbers needs n - 1.
    This lies in [0, 1) and grows with c. "share": c divided by the number of different steps.
    R_legal + R_invalid is then 1, so both lambdas act as one. "count": c of all steps, the literal
    reading; enough legal steps earn more than a correct answer.

    Unless aggregate is "count", a correct answer earns at least 1 - lambda_2 and any other at most
    0.1 + lambda_1 + lambda_3. Parts: correct, answer, valid as for "sparse"; legal, invalid,
    progress (the values of R); steps (how many count). Raises ValueError for another aggregate, for
    a negative lambda, and for lambdas that could close the gap of 0.9."""
    if aggregate not in ("bounded", "share", "count"):
        raise ValueError(f"aggregate must be 'bounded', 'share' or 'count': {aggregate!r}")
    lambdas = (lambda_1, lambda_2, lambda_3)
    if min(lambdas) < 0 or (aggregate != "count" and sum(lambdas) >= 0.9):
        raise ValueError(f"lambdas must not be negative, and sum to less than 0.9: {lambdas}")
    terminal = sparse()

    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        scores = terminal(completions, problem)
        return [
            shaped(score, verify_steps(text, problem), problem)
            for score, text in zip(scores, completions, strict=True)
        ]

    def shaped(score: Score, steps: list[Step], problem: Problem) -> Score:
        progress = _progress(steps, problem) if lambda_3 else [False] * len(steps)
        counted = [i for i, step in enumerate(steps) if aggregate == "count" or not step.repeated]
        # one statement: published runs hold a hash of this function, which is part of what they are
        legal, forward = sum(steps[i].legal for i in counted), sum(progress[i] for i in counted)
        sums = {"legal": legal, "invalid": len(counted) - legal, "progress": forward}
        whole = {"count": 1, "share": max(len(counted), 1)}
        parts = {
            name: c / whole.get(aggregate, max(c + len(problem.nums) - 1, 1))
            for name, c in sums.items()
        }
        shaping = (
            lambda_1 * parts["legal"] - lambda_2 * parts["invalid"] + lambda_3 * parts["progress"]
        )
        return Score(score.total + shaping, score.parts | parts | {"steps": float(len(counted))})

    return reward


def _progress(steps: list[Step], problem: Problem) -> list[bool]:
    """Which steps lead, through legal steps only, to a pool that can still reach the target."""
    progress = []
    clean = True
    attempt = 0
    for step in steps:
        clean = step.legal and (clean or step.attempt > attempt)
        attempt = step.attempt
        progress.append(clean and is_solvable(step.pool, problem.target))
    return progress


def traced(
    validity: float = 0.0,
    bonus: float = 0.0,
    penalty: float = 0.0,
    effort: float = 0.0,
    hardness: float = 0.0,
    agreement: float = 0.0,
    mixed_groups: bool = False,
    strict: bool = False,
) -> Reward:
    """The sparse reward and what `verify_trace` adds to it: the family of `trace`, Table 1
    (TRACE_REWARDS).

    + validity x share of valid lines (with mixed_groups only if a completion of the group is
    correct) + agreement, for an answer that fits its own trace: it uses the problem's numbers, not
    results of the trace, and it
      is correct if the trace ends at the target
    - penalty x share of faulty lines (those that are not valid or repeat an action; with strict
      also those that repeat a state and every line outside the think block, and the share is 1 if
      there are no lines) and, for a correct answer whose trace ends at the target, + bonus + effort
      x min(extra / 4, 1) + hardness x share of the group that is wrong, where extra counts the
      different valid tries beyond those that a solution needs.

    Parts: those of "sparse"; validity, faults, reached, extra; ungrounded (the answer uses
    generated values); agrees. Raises ValueError for a negative weight, and if a wrong answer could
    earn as much as a correct one."""
    if min(validity, bonus, penalty, effort, hardness, agreement) < 0 or validity + penalty >= 0.9:
        raise ValueError(
            f"weights must not be negative, and validity + penalty below 0.9: {validity}, {penalty}"
        )
    terminal = sparse()

    # the score of each completion of the group: the parts, and then their weighted sum
    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        scores = terminal(completions, problem)
        wrong = 1 - np.mean([score.parts["correct"] for score in scores])
        shaped = []
        for score, text in zip(scores, completions, strict=True):
            verdict = verify_trace(text, problem)
            new = sum(
                line.kind == "try" and line.valid and not line.repeated for line in verdict.lines
            )
            parts = {
                "validity": sum(line.valid for line in verdict.lines) / max(len(verdict.lines), 1),
                "faults": _faulty(verdict, strict),
                "reached": float(verdict.reached),
                "extra": float(max(new - len(problem.nums) + 1, 0)),
                "ungrounded": float(verdict.link == "generated"),
            }
            if agreement:
                parts["agrees"] = float(
                    verdict.link == "original" and score.parts["correct"] >= verdict.reached
                )
            total = score.total - penalty * parts["faults"] + agreement * parts.get("agrees", 0)
            total += validity * parts["validity"] * (wrong < 1 or not mixed_groups)
            if score.parts["correct"] and verdict.reached:
                total += bonus + effort * min(parts["extra"] / 4, 1) + hardness * wrong
            shaped.append(Score(float(total), score.parts | parts))
        return shaped

    return reward


def _faulty(verdict: TraceVerdict, strict: bool) -> float:
    """The share of faulty lines (see `traced`)."""
    faults = [
        not line.valid or (line.repeated and (strict or line.kind == "try"))
        for line in verdict.lines
    ]
    if strict:
        faults += [True] * verdict.outside
    return sum(faults) / len(faults) if faults else float(strict)


# `trace`, Table 1: our weights, since the paper gives none, and the paper's hypotheses (that of v3
# is ours). In an earlier setup a policy trained with trace_guarded learned to close the think block
# at once and to write its trace after it (99.9%): if no line is in the block, there is no fault,
# unless `strict` is set.
TRACE_REWARDS = {
    "trace_outcome": (
        {},
        "final-only: can RL on the answer alone improve a policy that writes traces?",
    ),
    "trace_dense": (
        {"validity": 0.5},
        "process-v1: paying for every true line says which lines were good",
    ),
    "trace_gated": ({"bonus": 0.2}, "process-v2: the trace is paid for only behind a right answer"),
    "trace_guarded": (
        {"bonus": 0.2, "penalty": 0.2},
        "process-v3: a price for faults keeps the bonus from sloppy traces",
    ),
    "trace_group": (
        {"bonus": 0.2, "validity": 0.3, "mixed_groups": True},
        "process-v4: wrong traces are not ranked",
    ),
    "trace_effort": (
        {"bonus": 0.2, "effort": 0.2},
        "process-v5: right traces with extra valid effort should win",
    ),
    "trace_hardness": (
        {"bonus": 0.2, "effort": 0.2, "hardness": 0.5},
        "process-v6: a larger margin on hard prompts",
    ),
    "trace_agreement": (
        {"agreement": 0.2},
        "none of the paper's: the link of trace and answer is paid for itself",
    ),
}
for _name, (_weights, _hypothesis) in TRACE_REWARDS.items():
    REWARDS[_name] = partial(traced, **_weights)
    REWARDS[_name].__doc__ = _hypothesis


# --- by name --------------------------------------------------------------------------------------

KINDS = {
    float: "a finite number, at most 1e6 in size",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
}


def get_reward(name: str, options: dict | None = None) -> Reward:
    """The reward `name`, or `file.py:name` (with the file's path from the repository's root), with
    these options.

    Raises ValueError that names the nearest reward or option, the type of an option, or the error
    in the file. `score_group` calls the reward and checks what it gives."""
    options = options or {}
    file, _, short = name.rpartition(":")
    rewards = rewards_of(file) if file else REWARDS
    if short not in rewards:
        raise ValueError(f"unknown reward {name!r}{nearest(short, rewards)}")
    parameters = inspect.signature(rewards[short]).parameters.values()
    check_options(
        f"reward {name!r}", options, {param.name: param.annotation for param in parameters}
    )
    try:
        reward = rewards[short](**options)
    except (Exception, SystemExit) as error:
        raise ValueError(f"reward {name!r} with options {options}: {_sentence(error)}") from error
    if not callable(reward):
        raise ValueError(
            f"reward {name!r} must give a function of completions and a problem, not {reward!r:.60}"
        )
    with suppress(AttributeError):  # of a callable object that takes no name
        reward.__name__ = short
    return reward


# completions of the problem 44, 19, 35 to 98: none, a false step, a wrong answer, and a right one
TYPICAL = [
    "",
    "<think>\n44 + 19 = 64\n</think>",
    "<think>\n44 + 19 = 63\n</think>\n<answer>(44 + 19) * 35</answer>",
    "<think>\n44 + 19 = 63, 63 + 35 = 98\n</think>\n<answer>(44 + 19) + 35</answer>",
]


def lowest(name: str, options: dict | None = None) -> float:
    """The lowest total that the reward `get_reward(name, options)` gives one of TYPICAL, which
    tries it out before a run starts. Raises ValueError for any error in it, with the file and the
    line."""
    reward = get_reward(name, options)
    try:
        return min(score.total for score in score_group(reward, TYPICAL, Problem((44, 19, 35), 98)))
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{shown(Path(frame.filename))}, line {frame.lineno}"
        raise ValueError(
            f"reward {name!r} cannot score a completion: {place}: {_sentence(error)}"
        ) from error


def check_options(owner: str, options: dict, kinds: dict[str, type]) -> None:
    """Raises ValueError for an option that `owner` does not have, or whose value is not of its kind
    (a key of KINDS; a value of any other kind passes)."""
    for option, value in options.items():
        if option not in kinds:
            raise ValueError(f"{owner} has no option {option!r}{nearest(option, kinds)}")
        if not _fits(value, kinds[option]):
            raise ValueError(f"{owner}: {option} must be {KINDS[kinds[option]]}, not {value!r}")


def score_group(reward: Reward, completions: Sequence[str], problem: Problem) -> list[Score]:
    """The scores of a problem's completions: one `Score` each, with a finite total and with numbers
    as parts.

    Raises TypeError for a single text and for anything other than a `Problem`, and ValueError for
    other scores, which names the reward, the problem and the completion (counted from 1)."""
    if isinstance(completions, str):
        raise TypeError(
            "a reward takes a list of completions, the group of one problem, not a single text"
        )
    if not isinstance(problem, Problem):
        raise TypeError(
            "a reward takes a lib.game.problem.Problem(nums=(...), target=...), "
            f"not {problem!r:.80}"
        )
    given = reward(completions, problem)
    scores = []
    name = getattr(reward, "__name__", "of your own")
    about = f"reward {name!r} on {problem.nums} to {problem.target}"
    if not isinstance(given, list | tuple) or len(given) != len(completions):
        wanted = f"a list with one Score for each of {len(completions)} completions"
        raise ValueError(f"{about}: it must give {wanted}, not {given!r:.60}")
    for number, score in enumerate(given, 1):
        try:
            total = float(score.total)
            parts = {part: float(value) for part, value in score.parts.items()}
        except (
            AttributeError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:  # RuntimeError: a tensor of many numbers
            wanted = f"it must give a Score(total, parts) of numbers, not {score!r:.100}"
            raise ValueError(f"{about}, completion {number}: {wanted}") from error
        if not isfinite(total):
            raise ValueError(
                f"{about}, completion {number}: the total must be a finite number, not {total}"
            )
        scores.append(Score(total, parts))
    return scores


def rewards_of(file: str) -> dict[str, Callable[..., Reward]]:
    """The rewards that a file registers, by name. The file runs in its own namespace, and runs
    again when its text has changed.

    Raises ValueError with the file and the line for any error in it, including `sys.exit()`.
    """
    path = ROOT / file
    if not path.is_file():
        raise ValueError(f"there is no file {file} to take a reward from")
    return _registered(file, str(path), path.read_bytes())


@cache
def _registered(file: str, path: str, text: bytes) -> dict[str, Callable[..., Reward]]:
    """`text` is the file's content: it is part of the cache's key."""
    ours = dict(REWARDS)
    try:
        runpy.run_path(path)
        return {name: factory for name, factory in REWARDS.items() if name not in ours}
    except (Exception, SystemExit) as error:
        lines = {
            frame.filename: frame.lineno for frame in traceback.extract_tb(error.__traceback__)
        }
        # a file with a syntax error has no frame
        line = lines.get(path, getattr(error, "lineno", 1))
        raise ValueError(f"{file}, line {line}: {_sentence(error)}") from error
    finally:
        REWARDS.clear()
        REWARDS.update(ours)


def _sentence(error: BaseException) -> str:
    """The kind of an error and its message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _fits(value: object, kind: type) -> bool:
    if kind is float:
        # nor is nan
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e6
    return kind not in KINDS or type(value) is kind


# --- TRL ------------------------------------------------------------------------------------------


def as_trl(reward: Reward) -> Callable[..., list[float]]:
    """The reward in the form in which TRL's trainers call it:
    `GRPOTrainer(reward_funcs=as_trl(get_reward("ast")), ...)`.

    The data set has columns nums and target, as `as_problem` reads them, and prompts, which may be
    texts or messages. The completions of one problem follow each other, as in TRL's batches, and
    form its group."""

    @wraps(reward)
    def totals(prompts: list, completions: list, nums: list, target: list, **_) -> list[float]:
        texts = [text if isinstance(text, str) else _message_text(text) for text in completions]
        asked = [as_problem(*row) for row in zip(nums, target, strict=True)]
        earned = []
        for (_, problem), group in groupby(
            zip(prompts, asked, texts, strict=True), key=itemgetter(0, 1)
        ):
            texts_of_group = [text for *_, text in group]
            scores = score_group(reward, texts_of_group, problem)
            earned += [score.total for score in scores]
        return earned

    return totals


def _message_text(messages: list[dict]) -> str:
    """The text of the last message, whose content may be a list of parts; "" if it has none."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def from_trl(function: Callable[..., list], messages: bool = False) -> Reward:
    """The reverse of `as_trl`: turns a TRL reward function into a reward for our trainers, which
    can be given to `train_rloo` or registered.

    The function is called with one group: prompts of style "free", completions (with `messages` in
    the form of TRL's conversational data sets), the columns nums and target, trainer_state (None),
    log_metric and log_extra, but without completion_ids. None counts as 0, and what the function
    logs becomes a part."""

    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        size = len(completions)
        parts = {}
        texts = [*completions]
        prompts = [render_prompt(problem.nums, problem.target)] * size
        if messages:
            prompts = [[{"role": "user", "content": text}] for text in prompts]
            texts = [[{"role": "assistant", "content": text}] for text in texts]
        columns = {"nums": [list(problem.nums)] * size, "target": [problem.target] * size}
        logs = {
            "trainer_state": None,
            "log_metric": parts.__setitem__,
            "log_extra": lambda column, values: None,
        }
        earned = function(prompts=prompts, completions=texts, **columns, **logs)
        return [Score(float(total or 0.0), dict(parts)) for total in earned]

    return reward
