"""The equations of a free-form reasoning, read and judged one by one (`dense`, Section 3.4; paper `ast`, Appendix C.5).

    44 + 19 = 63, 63 * 35 = 2205
    so 44 + 19 = 63 and 63 + 35 = 98

Everything is exact, and read once: 100,000 hostile characters take as long as 100,000 harmless ones.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from lib.expression import HOLDS, Expr, ExpressionError, Neg, Num, evaluate, parse
from lib.problem import Problem
from lib.traces import reasoning

MAX_LENGTH = 100  # characters of an equation's left side
MAX_STEPS = 400  # equations read in one completion: the longest cap leaves no room for more of them


class Step(NamedTuple):
    """One equation of the reasoning.

    well_formed: number, operation, number = number. arithmetic_ok: the two sides are equal, exactly.
    in_pool: the operands are available. repeated: the completion has this operation earlier (operands of + and
    * in either order; an ill-formed one: the same but for spaces). attempt: which attempt it is in, from 0. pool: the
    numbers available after it. span: where it stands in the completion, (start, end).
    """

    text: str
    well_formed: bool
    arithmetic_ok: bool
    in_pool: bool
    repeated: bool
    attempt: int
    pool: tuple
    span: tuple[int, int]

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
    skipped: int  # characters before it that were taken for its beginning


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
    for span, equation in islice(_equations(completion), MAX_STEPS):
        rest = _without(pool, equation.operands)
        if rest is None and (rest := _without(problem.nums, equation.operands)) is not None:
            attempt += 1
        if rest is not None:
            pool = [*rest, equation.result]
        repeated = equation.operation in seen
        seen.add(equation.operation)
        verdicts = (equation.well_formed, equation.holds, rest is not None, repeated)
        steps.append(Step(equation.text, *verdicts, attempt, tuple(pool), span))
    return steps


def _equations(completion: str) -> Iterator[tuple[tuple[int, int], _Equation]]:
    """The equations of the reasoning, each behind its span."""
    for block in reasoning(completion):
        for match in _EQUATION.finditer(completion, *block):
            left, right = match.group("left", "right")
            if right and len(left) <= MAX_LENGTH and (equation := _equation(left, right)):
                yield (match.start() + equation.skipped, match.end()), equation


@lru_cache(maxsize=1 << 15)  # rollouts of a problem, and attempts of a rollout, repeat each other
def _equation(left: str, right: str) -> _Equation | None:
    """An equation read; None if its left side is no expression."""
    length = len(left)
    if (unclosed := left.count("(") - left.count(")")) > 0:  # (44 + 19 = 63)
        left = left[unclosed:].lstrip()
    skipped = length - len(left)
    result = _value(right)
    if operation := _OPERATION.fullmatch(left):
        a, op, b = _value(operation[1]), operation[2], _value(operation[3])
        key = (op, b, a) if op in "+*" and b < a else (op, a, b)
        return _Equation(f"{left} = {right}", True, HOLDS[op](a, b, result), key, [a, b], result, skipped)
    if expression := _expression(left):
        value, operands = expression
        key = left.replace(" ", "").replace("\t", "")
        return _Equation(f"{left} = {right}", False, value == result, key, operands, result, skipped)
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
