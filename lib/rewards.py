"""Rewards: a completion's worth for training, by name.

    reward = get_reward("ast", {"tau": 2.0})
    scores = reward(completions, problem)  # one group: the completions of one problem

A factory registered with `@register("name")` takes the reward's options and returns that function. `Score.parts`
are logged beside the total, so every completion gets the same parts.

Equations are those of "Dense Rewards for RLVR on Countdown via ASTs" (Elbakry, 2026), short `ast`, unless another paper
is named: `dense` is "Enhancing RLOO with Dense Symbolic Rewards and Bandit-Driven Curricula" (Sangpisit, Thawornbut).
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import exp
from typing import NamedTuple

import numpy as np

from lib.distance import distance_to_solutions
from lib.expression import Expr
from lib.names import nearest
from lib.problem import Problem
from lib.solver import is_solvable
from lib.steps import Step, verify_steps
from lib.verifiers import CHECKS, Verdict, verify_answer, verify_program, verify_trace


class Score(NamedTuple):
    """What a completion earns, and what that is made of."""

    total: float
    parts: dict[str, float]


Reward = Callable[[Sequence[str], Problem], list[Score]]
REWARDS: dict[str, Callable[..., Reward]] = {}


def register(name: str) -> Callable:
    """Decorator: enter a reward factory in REWARDS."""

    def enter(factory: Callable[..., Reward]) -> Callable[..., Reward]:
        REWARDS[name] = factory
        return factory

    return enter


def get_reward(name: str, options: dict | None = None) -> Reward:
    """The reward `name` with these options. Raises ValueError that names the nearest reward or option."""
    if name not in REWARDS:
        raise ValueError(f"unknown reward {name!r}{nearest(name, REWARDS)}")
    known = inspect.signature(REWARDS[name]).parameters
    for option in options or {}:
        if option not in known:
            raise ValueError(f"reward {name!r} has no option {option!r}{nearest(option, known)}")
    return REWARDS[name](**options or {})


@register("sparse")
def sparse(lambda_c: float = 1.0, lambda_p: float = 0.1) -> Reward:
    """Eq. 4: lambda_c for a correct answer, lambda_p for any other answer span (as in Eq. 8, also for one that
    is no expression), 0 without a span."""

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
    tau: float = 2.0,
    exact_numbers: bool = True,
) -> Reward:
    """Eq. 8: lambda_c for a correct answer, else lambda_p for an answer span and lambda_a exp(-d / tau) for a
    valid expression, d its distance to the nearest solution (Eq. 5).

    exact_numbers: valid means parseable and over exactly the problem's numbers; otherwise parseable is enough
    (the paper's early trials, which the policy learnt to exploit). A division by zero over the right numbers
    is valid. Parts: correct, answer, valid (the indicators of Eq. 8), wrong_numbers, distance (d; 0 for a correct
    answer; the size of a solution where there is no tree; infinite if the problem has no solution) and closeness
    (exp(-d / tau) of a valid answer, 0 of any other).

    Raises ValueError unless tau > 0 and lambda_a < lambda_c - lambda_p: a near miss scores below a solution.
    """
    if not lambda_a < lambda_c - lambda_p:
        raise ValueError(
            f"lambda_a must be below lambda_c - lambda_p, so that no near miss scores like a solution: "
            f"lambda_a={lambda_a}, lambda_c={lambda_c}, lambda_p={lambda_p}"
        )
    if not tau > 0:
        raise ValueError(f"tau must be positive: tau={tau}")

    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        distance = cache(partial(distance_to_solutions, problem=problem))
        return [score(verify_answer(completion, problem), distance) for completion in completions]

    def score(verdict: Verdict, distance: Callable[[Expr | None], float]) -> Score:
        parts = _indicators(verdict, exact_numbers)
        parts["distance"] = 0.0 if parts["correct"] else distance(verdict.expression)
        parts["closeness"] = exp(-parts["distance"] / tau) if parts["valid"] else 0.0
        if parts["correct"]:
            return Score(lambda_c, parts)
        return Score(lambda_p * parts["answer"] + lambda_a * parts["closeness"], parts)

    return reward


PROGRAM_WEIGHTS = dict(zip(CHECKS, (0.05, 0.10, 0.15, 0.20, 0.50), strict=True))


@register("program")
def program() -> Reward:
    """The decomposed reward (Eq. 4) of "Programmatic Reasoning for Countdown" (Ivankiv and Zhou): the sum of the
    weights of the checks that a program passes. Parts: each check, 0 or 1."""

    def score(completion: str, problem: Problem) -> Score:
        passed = verify_program(completion, problem).passed
        parts = {check: float(i < passed) for i, check in enumerate(CHECKS)}
        return Score(sum(PROGRAM_WEIGHTS[check] * part for check, part in parts.items()), parts)

    return lambda completions, problem: [score(completion, problem) for completion in completions]


@register("dense")
def dense(lambda_1: float = 0.05, lambda_2: float = 0.05, lambda_3: float = 0.0, aggregate: str = "share") -> Reward:
    """`dense`, Eq. 6: the sparse reward + lambda_1 R_legal - lambda_2 R_invalid + lambda_3 R_progress (its Section 7).

    A step of `verify_steps` is legal if it reads `a op b = c`, holds, and takes its operands from the pool; else it is
    invalid. It makes progress if it is legal, like every step of its attempt before it, and its pool can still reach
    the target. aggregate "share": R are shares of the completion's different steps, so at any length a correct answer
    earns at least 1 - lambda_2, any other completion at most 0.1 + lambda_1 + lambda_3. "count", the literal reading:
    R are counts of all steps, and enough legal ones are worth more than a correct answer.

    Parts: correct, answer, valid as for "sparse"; legal, invalid, progress (the R); steps (how many count). Raises
    ValueError for another aggregate, a negative lambda, or shares that could close the gap of 0.9 between the two.
    """
    if aggregate not in ("share", "count"):
        raise ValueError(f"aggregate must be 'share' or 'count': {aggregate!r}")
    lambdas = (lambda_1, lambda_2, lambda_3)
    if min(lambdas) < 0 or (aggregate == "share" and sum(lambdas) >= 0.9):
        raise ValueError(f"lambdas must not be negative, and sum to less than 0.9: {lambdas}")
    terminal = sparse()

    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        scores = terminal(completions, problem)
        return [
            shaped(score, verify_steps(text, problem), problem) for score, text in zip(scores, completions, strict=True)
        ]

    def shaped(score: Score, steps: list[Step], problem: Problem) -> Score:
        progress = _progress(steps, problem) if lambda_3 else [False] * len(steps)
        counted = [i for i, step in enumerate(steps) if aggregate == "count" or not step.repeated]
        unit = 1 if aggregate == "count" else max(len(counted), 1)
        legal, forward = sum(steps[i].legal for i in counted), sum(progress[i] for i in counted)
        sums = {"legal": legal, "invalid": len(counted) - legal, "progress": forward}
        parts = {name: value / unit for name, value in sums.items()}
        shaping = lambda_1 * parts["legal"] - lambda_2 * parts["invalid"] + lambda_3 * parts["progress"]
        return Score(score.total + shaping, score.parts | parts | {"steps": float(len(counted))})

    return reward


def _progress(steps: list[Step], problem: Problem) -> list[bool]:
    """Which steps lead, by legal steps alone, to a pool that can reach the target."""
    progress, clean, attempt = [], True, 0
    for step in steps:
        clean = step.legal and (clean or step.attempt > attempt)
        attempt = step.attempt
        progress.append(clean and is_solvable(step.pool, problem.target))
    return progress


def _traced(
    validity: float = 0.0,
    bonus: float = 0.0,
    penalty: float = 0.0,
    effort: float = 0.0,
    hardness: float = 0.0,
    mixed_groups: bool = False,
) -> Reward:
    """The sparse reward with what `verify_trace` says added: the family of `trace`, Table 1, which gives no weights.

    + validity x share of valid lines (with mixed_groups only where a completion of the group is correct)
    - penalty x share of faulty lines (not valid, or a repeated action)
    and of a correct answer whose trace ends at the target
    + bonus + effort x min(extra / 4, 1) + hardness x share of the group that is wrong,
    where extra are the different valid tries beyond those that a solution needs.

    Parts: those of "sparse"; validity, faults, reached, extra; ungrounded (the answer uses generated values). Raises
    ValueError for a negative weight, and where a wrong answer could earn what a correct one does.
    """
    if min(validity, bonus, penalty, effort, hardness) < 0 or validity + penalty >= 0.9:
        raise ValueError(f"weights must not be negative, and validity + penalty below 0.9: {validity}, {penalty}")
    terminal = sparse()

    def reward(completions: Sequence[str], problem: Problem) -> list[Score]:
        scores = terminal(completions, problem)
        wrong = 1 - np.mean([score.parts["correct"] for score in scores])
        shaped = []
        for score, text in zip(scores, completions, strict=True):
            verdict = verify_trace(text, problem)
            count, tries = max(len(verdict.lines), 1), [line for line in verdict.lines if line.kind == "try"]
            new = sum(line.valid and not line.repeated for line in tries)
            parts = {
                "validity": sum(line.valid for line in verdict.lines) / count,
                "faults": sum(not line.valid or line.repeated for line in verdict.lines) / count,
                "reached": float(verdict.reached),
                "extra": float(max(new - len(problem.nums) + 1, 0)),
                "ungrounded": float(verdict.link == "generated"),
            }
            total = score.total - penalty * parts["faults"]
            total += validity * parts["validity"] * (wrong < 1 or not mixed_groups)
            if score.parts["correct"] and verdict.reached:
                total += bonus + effort * min(parts["extra"] / 4, 1) + hardness * wrong
            shaped.append(Score(float(total), score.parts | parts))
        return shaped

    return reward


@register("trace_outcome")
def trace_outcome() -> Reward:
    """Outcome-only structured RLOO (final-only): structured traces can improve under the sparse final verifier alone.

    With larger groups, a higher temperature and a stronger entropy bonus (run trace_explore): these can expand coverage
    without changing rewards. With problems drawn by `lib.curriculum.MixedSuccess`: run trace_difficulty."""
    return _traced()


@register("trace_dense")
def trace_dense(weight: float = 0.5) -> Reward:
    """Dense validity (process-v1): rewards for valid transitions and matching states improve credit assignment."""
    return _traced(validity=weight)


@register("trace_gated")
def trace_gated(bonus: float = 0.2) -> Reward:
    """Success-gated bonus (process-v2): process credit should apply only when the strict final answer is right.

    With a stronger entropy bonus (run trace_entropy): that can recover the diversity which shaping loses."""
    return _traced(bonus=bonus)


@register("trace_guarded")
def trace_guarded(bonus: float = 0.2, penalty: float = 0.2) -> Reward:
    """Penalty-guarded (process-v3; the paper leaves its hypothesis out, ours): a price for invalid lines and repeated
    actions keeps the gated bonus from being earned by sloppy traces."""
    return _traced(bonus=bonus, penalty=penalty)


@register("trace_group")
def trace_group(bonus: float = 0.2, weight: float = 0.3) -> Reward:
    """Group-aware bonus (process-v4): all-wrong groups should stay outcome-only: wrong traces are not ranked."""
    return _traced(bonus=bonus, validity=weight, mixed_groups=True)


@register("trace_effort")
def trace_effort(bonus: float = 0.2, effort: float = 0.2) -> Reward:
    """Effort-gated bonus (process-v5): right traces with extra unique valid effort should win over short ones."""
    return _traced(bonus=bonus, effort=effort)


@register("trace_hardness")
def trace_hardness(bonus: float = 0.2, effort: float = 0.2, hardness: float = 0.5) -> Reward:
    """Effort + hardness (process-v6): right samples of hard prompts need a larger margin over wrong ones."""
    return _traced(bonus=bonus, effort=effort, hardness=hardness)


def _indicators(verdict: Verdict, exact_numbers: bool) -> dict[str, float]:
    """The indicators of Eq. 8, and what the gate is there to keep out."""
    valid = ("correct", "wrong_value") if exact_numbers else ("correct", "wrong_value", "wrong_numbers")
    return {
        "correct": float(verdict.status == "correct"),
        "answer": float(verdict.status != "missing"),
        "valid": float(verdict.status in valid),
        "wrong_numbers": float(verdict.status == "wrong_numbers"),
    }
