"""What a completion is worth by exact arithmetic: its answer, its program, and each equation of its reasoning.

Completions are hostile: nothing is ever passed to `eval`, each text is read once, in linear time, and an answer
is evaluated only after it is known to hold exactly the given numbers.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import pandas as pd

from lib.expression import (
    Expr,
    ExpressionError,
    Neg,
    Num,
    canonical,
    evaluate,
    leaves,
    numbers,
    parse,
    render,
)
from lib.problem import Problem
from lib.programs import ExecutionError, ParseError, run_program
from lib.traces import HOLDS, Line, replay

STATUSES = ["correct", "wrong_value", "wrong_numbers", "unparseable", "missing"]
CHECKS = ("format", "parse", "execution", "numbers", "target")  # of a program, each presupposing the ones before
MAX_LENGTH = 100  # characters of an equation's left side
MAX_STEPS = 400  # equations read in one completion: the longest cap leaves no room for more of them

# --- the answer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: one of STATUSES. expression: the tree, if the span parses. value: its exact value, if it holds
    exactly the given numbers and divides by no zero."""

    status: str
    expression: Expr | None = None
    value: Fraction | None = None


def answer_span(completion: str) -> str | None:
    """The text of the last innermost complete span: an `<answer>` and the `</answer>` after it with neither
    tag between them. An `<answer>` that is never closed swallows nothing. None if there is no such span."""
    start = completion.rfind("<answer>", 0, max(completion.rfind("</answer>"), 0))
    if start < 0:
        return None
    start += len("<answer>")
    return completion[start : completion.find("</answer>", start)]


def verify_answer(completion: str, problem: Problem) -> Verdict:
    """The verdict on a completion's answer span: each number exactly once, the target hit exactly."""
    span = answer_span(completion)
    if span is None:
        return Verdict("missing")
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
    """passed: how many of CHECKS hold, in order. expression, value: of the final value, over literals; None for a
    program without one. assignments: the expression over literals that each line's value has."""

    passed: int = 0
    assignments: tuple[Expr, ...] = ()


def verify_program(completion: str, problem: Problem) -> ProgramVerdict:
    """The verdict on the restricted program (lib.programs) in a completion's answer span.

    Checks of "Programmatic Reasoning for Countdown" (Section 3): format, there is a span; parse, every line is an
    assignment of the language; execution, every line has a value; numbers, the final value consumed exactly the given
    numbers; target, it is the target, exactly. A value used twice consumes its numbers twice (`b = a + a` with
    a = 44 + 19 has used 44 and 19 twice, which is legal only if both are given twice); what the final value does not
    rest on consumes nothing, so a program may try and drop. A program that cannot be run is "unparseable".
    """
    span = answer_span(completion)
    if span is None:
        return ProgramVerdict("missing")
    try:
        final, assignments = run_program(span)
    except ParseError:
        return ProgramVerdict("unparseable", passed=1)
    except ExecutionError:
        return ProgramVerdict("unparseable", passed=2)
    made = tuple(value.expression for value in assignments)
    status, passed = "correct", 5
    if sorted(leaves(final.expression)) != sorted(problem.nums):
        status, passed = "wrong_numbers", 3
    elif final.value != problem.target:
        status, passed = "wrong_value", 4
    return ProgramVerdict(status, final.expression, Fraction(final.value), passed, made)


@dataclass(frozen=True, slots=True)
class TraceVerdict(Verdict):
    """That of the answer, with the trace's lines, whether it ends at the target (reached), what it last made the target
    of (solution), and where the answer's numbers come from (link).

    link: "original" (exactly the problem's numbers), "generated" (all that are not left are results of the trace: a
    grounding failure, as in `trace`, Listing 2), "other", or "none" (no expression).
    """

    lines: tuple[Line, ...] = ()
    reached: bool = False
    solution: Expr | None = None
    link: str = "none"


def verify_trace(completion: str, problem: Problem) -> TraceVerdict:
    """The verdicts on a structured search trace, line by line, on its answer, and on the link between the two."""
    verdict, trace, link = verify_answer(completion, problem), replay(_reasoning(completion), problem), "none"
    if verdict.status == "wrong_numbers":
        foreign = numbers(verdict.expression) - Counter(problem.nums)
        link = "generated" if foreign and set(foreign) <= trace.results else "other"
    elif verdict.expression is not None:
        link = "original"
    parts = (verdict.status, verdict.expression, verdict.value)
    return TraceVerdict(*parts, trace.lines, trace.reached, trace.solution, link)


def repair(completion: str, problem: Problem) -> str:
    """The completion with its answer read off its own trace, where that ever made the target; else as it is."""
    solution = verify_trace(completion, problem).solution
    if solution is None:
        return completion
    return f"<think>{_reasoning(completion)}</think>\n<answer>{render(solution)}</answer>"


VERIFIERS = {  # by prompt style: what its answer span holds
    "free": verify_answer,
    "words": verify_answer,
    "program": verify_program,
    "program_words": verify_program,
    "trace": verify_answer,
}


def judge(table: pd.DataFrame, prompt: str = "free") -> pd.DataFrame:
    """Saved generations (columns nums, target, completion) with four columns more: status, correct (bool), answer, the
    expression up to commuting: that of `canonical`, rendered ("" if there is none); and count, how many equal
    completions a row stands for (1 where the table does not say: a run beside published ones).

    prompt: the style of prompt that was completed, a key of VERIFIERS."""
    verdicts: dict[tuple, tuple[str, bool, str]] = {}  # by answer span, all that these verifiers look at
    rows = []
    for nums, target, completion in zip(table["nums"], table["target"], table["completion"], strict=True):
        key = (tuple(map(int, nums)), int(target), answer_span(completion))
        if key not in verdicts:
            verdict = VERIFIERS[prompt](completion, Problem(*key[:2]))
            answer = "" if verdict.expression is None else render(canonical(verdict.expression))
            verdicts[key] = (verdict.status, verdict.status == "correct", answer)
        rows.append(verdicts[key])
    verdict = pd.DataFrame(rows, columns=["status", "correct", "answer"], index=table.index)
    count = table["count"].fillna(1).astype(int) if "count" in table else 1
    return table.assign(**verdict, count=count)


def judge_steps(judged: pd.DataFrame) -> pd.DataFrame:
    """Generations with four columns more, of each completion's reasoning: equations (that `verify_steps` reads), true
    (those that hold), distinct (those not repeated), signs (its equals signs: what there was to be read)."""
    known: dict[tuple, list[int]] = {}
    rows = []
    for nums, target, completion in zip(judged["nums"], judged["target"], judged["completion"], strict=True):
        key = (tuple(map(int, nums)), int(target), completion)
        if key not in known:
            steps = verify_steps(completion, Problem(*key[:2]))
            true, distinct = (
                sum(flags) for flags in ((s.arithmetic_ok for s in steps), (not s.repeated for s in steps))
            )
            known[key] = [len(steps), true, distinct, _reasoning(completion).count("=")]
        rows.append(known[key])
    columns = ["equations", "true", "distinct", "signs"]
    return judged.assign(**pd.DataFrame(rows, columns=columns, index=judged.index, dtype=int))


TRACE_COLUMNS = ["goes_on", "ungrounded", "valid_lines", "reached", "repaired", "trace_muldiv", "answer_muldiv"]


def judge_traces(judged: pd.DataFrame) -> pd.DataFrame:
    """Generations with TRACE_COLUMNS more, floats: there is more behind the answer, or it was cut there (nan: no answer
    is closed); the answer uses generated values; share of valid lines (0 without lines); the trace ends at the target;
    correct, as it is or by `repair`; * or / stands in the trace, in the answer."""
    known: dict[tuple, list[float]] = {}
    rows = []
    for nums, target, text, finish in zip(
        *(judged[c] for c in ("nums", "target", "completion", "finish")), strict=True
    ):
        key = (tuple(map(int, nums)), int(target), text, finish)
        if key not in known:
            problem = Problem(*key[:2])
            found, (before, closed, behind) = verify_trace(text, problem), text.partition("</answer>")
            trace, _, answer = before.partition("<answer>")
            known[key] = [
                float(bool(behind.strip()) or finish == "length") if closed else float("nan"),
                float(found.link == "generated"),
                sum(line.valid for line in found.lines) / max(len(found.lines), 1),
                float(found.reached),
                float(found.status == "correct" or found.solution is not None),
                float("*" in trace or " / " in trace),
                float("*" in answer or "/" in answer),
            ]
        rows.append(known[key])
    return judged.join(pd.DataFrame(rows, columns=TRACE_COLUMNS, index=judged.index))


# --- the steps of the reasoning -------------------------------------------------------------------


class Step(NamedTuple):
    """One equation of the reasoning.

    well_formed: number, operation, number = number. arithmetic_ok: the two sides are equal, exactly.
    in_pool: the operands are available. repeated: the completion has this operation earlier (operands of + and
    * in either order; an ill-formed one: the same but for spaces). attempt: which attempt it is in, from 0.
    """

    text: str
    well_formed: bool
    arithmetic_ok: bool
    in_pool: bool
    repeated: bool
    attempt: int
    pool: tuple

    @property
    def legal(self) -> bool:
        """Whether it is one operation on available numbers, and holds (`dense`, Section 3.4)."""
        return self.well_formed and self.arithmetic_ok and self.in_pool


# Quantifiers are possessive: what is read is never given back, so a text is scanned once. The equation's right
# side is optional only so that an expression without one is passed over as a whole.
_NUMBER = r"-?(?:0|[1-9][0-9]{0,17}+)(?:\.[0-9]{1,18}+)?+"
_TERM = rf"(?:-?\([ \t]*+){{0,8}}+{_NUMBER}(?:[ \t]*+\))*+"
_EQUATION = re.compile(
    rf"(?<![\w.^*/+])(?P<left>{_TERM}(?:[ \t]*+[-+*/][ \t]*+{_TERM})++)"
    rf"(?:[ \t]*+=[ \t]*+(?P<right>{_NUMBER})(?![\w^%]|\.[0-9]|[ \t]*+[-+*/][ \t]*+[-(]?[0-9]))?+"
)
_OPERATION = re.compile(rf"({_NUMBER})[ \t]*+([-+*/])[ \t]*+({_NUMBER})")


class _Equation(NamedTuple):
    text: str
    well_formed: bool
    holds: bool
    operation: object  # equal for operations that are equal up to commuting
    operands: list[int | Fraction]
    result: int | Fraction


def verify_steps(completion: str, problem: Problem) -> list[Step]:
    """Every equation of the completion's reasoning, in order, the first MAX_STEPS of them.

    An equation is an expression of at most MAX_LENGTH characters, `=`, and a single number, on one line and
    with any text around it; decimals are read exactly. Of `a + b = c + d = e` only `c + d = e` is one.

    The pool starts as the problem's numbers. A step whose operands are in it takes them out and puts its
    stated result in, right or wrong: a slip counts once, not again in each step that builds on it. A step whose
    operands are not in the pool, but are among the problem's numbers, starts a new attempt with a full pool.
    Any other step leaves the pool as it is. Neither a new line nor a check (`98? no`) starts one: a text may write
    a step a line, or check half an attempt.
    """
    pool, attempt, seen, steps = list(problem.nums), 0, set(), []
    for equation in islice(_equations(_reasoning(completion)), MAX_STEPS):
        rest = _without(pool, equation.operands)
        if rest is None and (rest := _without(problem.nums, equation.operands)) is not None:
            attempt += 1
        if rest is not None:
            pool = [*rest, equation.result]
        repeated = equation.operation in seen
        seen.add(equation.operation)
        verdicts = (equation.well_formed, equation.holds, rest is not None, repeated)
        steps.append(Step(equation.text, *verdicts, attempt, tuple(pool)))
    return steps


def _reasoning(completion: str) -> str:
    """The text of the think blocks. The first may have been opened in the prompt, and one that is not closed
    ends at the answer."""
    *closed, last = completion.split("</think>")
    blocks = [block.partition("<think>") for block in [*closed, last.partition("<answer>")[0]]]
    return "\n".join(inside if tag else before for i, (before, tag, inside) in enumerate(blocks) if tag or i == 0)


def _equations(text: str) -> Iterator[_Equation]:
    for left, right in _EQUATION.findall(text):
        if right and len(left) <= MAX_LENGTH and (equation := _equation(left, right)):
            yield equation


@lru_cache(maxsize=1 << 15)  # rollouts of a problem, and attempts of a rollout, repeat each other
def _equation(left: str, right: str) -> _Equation | None:
    """An equation read; None if its left side is no expression."""
    if (unclosed := left.count("(") - left.count(")")) > 0:  # (44 + 19 = 63)
        left = left[unclosed:].lstrip()
    result = _value(right)
    if operation := _OPERATION.fullmatch(left):
        a, op, b = _value(operation[1]), operation[2], _value(operation[3])
        key = (op, b, a) if op in "+*" and b < a else (op, a, b)
        return _Equation(f"{left} = {right}", True, HOLDS[op](a, b, result), key, [a, b], result)
    if expression := _expression(left):
        value, operands = expression
        key = left.replace(" ", "").replace("\t", "")
        return _Equation(f"{left} = {right}", False, value == result, key, operands, result)
    return None


def _value(number: str) -> int | Fraction:
    return Fraction(number) if "." in number else int(number)


def _expression(text: str) -> tuple[Fraction | None, list[int | Fraction]] | None:
    """The value (None: a division by zero) and the operands; None if the text is no expression."""
    try:
        expr = parse(text, decimals=True)
    except ExpressionError:
        return None
    try:
        return evaluate(expr), _operands(expr)
    except ZeroDivisionError:
        return None, _operands(expr)


def _operands(expr: Expr) -> list[int | Fraction]:
    """The numbers of an expression, with their signs: results in the pool may be negative."""
    match expr:
        case Num(value):
            return [value]
        case Neg(Num(value)):
            return [-value]
        case Neg(child):
            return _operands(child)
    return _operands(expr.left) + _operands(expr.right)


def _without(pool, operands: list) -> list | None:
    """The pool with the operands taken out, or None if they are not all in it."""
    rest = list(pool)
    for operand in operands:
        if operand not in rest:
            return None
        rest.remove(operand)
    return rest
