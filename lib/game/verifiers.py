"""Text in, verdict out: the answer, program or trace of a completion is judged by exact arithmetic.

A completion may be hostile. Therefore nothing is passed to `eval`, each text is read once and in
linear time, and an answer is evaluated only after a check that it holds exactly the given numbers.
"""

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from lib.game.expression import MAX_DIGITS, Expr, ExpressionError, evaluate, leaves, operands, parse
from lib.game.problem import Problem
from lib.game.programs import ExecutionError, ParseError, run_program
from lib.game.traces import Line, reasoning, replay

STATUSES = ["correct", "wrong_value", "wrong_numbers", "unparseable", "missing"]
LARGEST = 10**MAX_DIGITS  # numbers from here on are too long for `parse`
# longest answer (characters) whose verdict is cached: longer ones would fill the memory
MAX_KEPT = 200
_NO_TRACE = re.compile("</?think>|<answer>[^<]*</answer>")
# on a program; each presupposes those before it
CHECKS = ("format", "parse", "execution", "numbers", "target")
# the reward for each check passed
PROGRAM_WEIGHTS = dict(zip(CHECKS, (0.05, 0.10, 0.15, 0.20, 0.50), strict=True))
# why a tag is not a legal action
REJECTIONS = ("unreadable", "number not there", "division by zero")

# --- the answer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: one of STATUSES. expression: the tree, if the span can be parsed. value: the exact
    value, if the expression holds exactly the given numbers and divides by no zero."""

    status: str
    expression: Expr | None = None
    value: Fraction | None = None


def answer_span(completion: str) -> str | None:
    """The text of the last complete innermost span: between an `<answer>` and the `</answer>` after
    it, with no other such tag between them. None if there is no such span. An `<answer>` that is
    never closed is ignored. Raises TypeError if the completion is not a text."""
    if not isinstance(completion, str):
        raise TypeError(f"a completion is a text, not {type(completion).__name__}")
    start = completion.rfind("<answer>", 0, max(completion.rfind("</answer>"), 0))
    if start < 0:
        return None
    start += len("<answer>")
    return completion[start : completion.find("</answer>", start)]


def asked_span(completion: str, problem: Problem) -> str | None:
    """The `answer_span` of a completion that is to be judged. Raises TypeError if `problem` is not
    a Problem, and ValueError for a problem that no answer can solve: the numbers that `parse` reads
    are whole and not negative."""
    if not isinstance(problem, Problem):
        raise TypeError(f"a completion is judged on a Problem, not on {type(problem).__name__}")
    nums = problem.nums
    if not 0 <= min(nums) <= max(nums) < LARGEST or set(map(type, nums)) != {int}:
        what = f"whole numbers from 0, of at most {MAX_DIGITS} digits"
        raise ValueError(f"an answer is judged on {what}, not on {nums!r:.200}")
    return answer_span(completion)


def verify_answer(completion: str, problem: Problem) -> Verdict:
    """The verdict on a completion's answer span: is it an expression that uses each number exactly
    once and equals the target exactly? An answer such as `44 + 19 + 35 = 98` is not an
    expression."""
    span = asked_span(completion, problem)
    if span is None:
        return Verdict("missing")
    return (_verdict if len(span) <= MAX_KEPT else _verdict.__wrapped__)(span, problem)


@lru_cache(maxsize=1 << 12)  # the samples of a problem often have the same answer
def _verdict(span: str, problem: Problem) -> Verdict:
    try:
        expression = parse(span)
    except ExpressionError:
        return Verdict("unparseable")
    if sorted(leaves(expression)) != sorted(problem.nums):
        return Verdict("wrong_numbers", expression)
    try:
        value = evaluate(expression)
    except ZeroDivisionError:
        return Verdict("wrong_value", expression)
    return Verdict("correct" if value == problem.target else "wrong_value", expression, value)


@dataclass(frozen=True, slots=True)
class ProgramVerdict(Verdict):
    """passed: how many of CHECKS hold, in order. expression, value: the final value's expression
    over literals and its value, or None. assignments: for each line, the expression over literals
    that computes its value."""

    passed: int = 0
    assignments: tuple[Expr, ...] = ()


def verify_program(completion: str, problem: Problem) -> ProgramVerdict:
    """The verdict on the restricted program (lib.game.programs) in a completion's answer span.

    The checks are those of "Programmatic Reasoning for Countdown" (Section 3). format: there is a
    span. parse: every line is an assignment of the language. execution: every line has a value.
    numbers: the final value has consumed exactly the given numbers. target: it equals the target
    exactly. `b = a + a` with a = 44 + 19 has used 44 and 19 twice; assignments on which the final
    value does not rest consume nothing. A program that cannot be run is "unparseable"."""
    span = asked_span(completion, problem)
    if span is None:
        return ProgramVerdict("missing")
    try:
        result = run_program(span)
    except ParseError:
        return ProgramVerdict("unparseable", passed=1)
    except ExecutionError:
        return ProgramVerdict("unparseable", passed=2)
    status = "correct"
    passed = 5
    if sorted(leaves(result.expression)) != sorted(problem.nums):
        status = "wrong_numbers"
        passed = 3
    elif result.value != problem.target:
        status = "wrong_value"
        passed = 4
    return ProgramVerdict(status, result.expression, result.value, passed, result.assignments)


@dataclass(frozen=True, slots=True)
class TraceVerdict(Verdict):
    """The verdict on the answer, and the following about the trace. lines: its lines. reached:
    whether it ends at the target. solution: the expression that last made the target. link: where
    the answer's numbers come from.

    link is "original" (exactly the problem's numbers), "generated" (all numbers that are not the
    problem's are results of the trace: a grounding failure, as in `trace`, Listing 2), "other", or
    "none" (no expression). outside: the number of lines that are neither in a think block nor in an
    answer span."""

    lines: tuple[Line, ...] = ()
    reached: bool = False
    solution: Expr | None = None
    link: str = "none"
    outside: int = 0


def verify_trace(completion: str, problem: Problem) -> TraceVerdict:
    """The verdict on a structured search trace: on each of its lines, on its answer, and on the
    link between them."""
    verdict = verify_answer(completion, problem)
    trace = replay(completion, problem)
    link = "none"
    if verdict.status == "wrong_numbers" and verdict.expression is not None:
        signed = operands(verdict.expression)  # -40 may be a result, or the negative of 40
        used = Counter(n if n in trace.results else abs(n) for n in signed)
        foreign = used - Counter(problem.nums)
        link = "generated" if foreign and trace.results.issuperset(foreign) else "other"
    elif verdict.expression is not None:
        link = "original"
    parts = (verdict.status, verdict.expression, verdict.value)
    return TraceVerdict(
        *parts, trace.lines, trace.reached, trace.solution, link, _outside(completion)
    )


def _outside(completion: str) -> int:
    rest = []
    at = 0
    for start, end in reasoning(completion):
        rest.append(completion[at:start])
        at = end
    lines = _NO_TRACE.sub("\n", "\n".join([*rest, completion[at:]])).split("\n")
    return sum(bool(line.strip()) for line in lines)


VERIFIERS = {  # by prompt style, which decides what the answer span holds
    "free": verify_answer,
    "words": verify_answer,
    "chat": verify_answer,
    "program": verify_program,
    "program_words": verify_program,
    "program_chat": verify_program,
    "trace": verify_answer,
}
