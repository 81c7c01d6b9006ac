"""Finds the equations of a free-form reasoning and judges each (`dense`, Section 3.4; `ast`, Section 5.2).

    44 + 19 = 63, 63 * 35 = 2205
    so 44 + 19 = 63 and 63 + 35 = 98

An equals sign next to arithmetic that is not such an equation (`44 + = 63`, `48 - 43 == 5`, `60 ** 2 = 3600`,
`98 = 44 + 19 + 35`) is a malformed step. `dense` penalises these too, so that a misspelling cannot hide a fault. Words,
and operators outside ASCII, count as prose. Numbers may have commas between their thousands. Marks around a result are
ignored: `= **63**`, `= \\boxed{63}`, and the typographic minus of `= −9`. Every text is read once, in linear time.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from lib.game.expression import COMMA, THOUSANDS, ExpressionError, evaluate, holds, number, operands, parse, without
from lib.game.problem import Problem
from lib.game.traces import reasoning

MAX_LENGTH = 100  # characters on an equation's left side
MAX_STEPS = 1000  # read in one completion; 4,096 tokens, the longest cap of a profile, hold fewer


class Step(NamedTuple):
    """One equation of the reasoning, or a text that was meant as one (malformed).

    well_formed: it has the form number, operation, number = number. arithmetic_ok: its two sides are exactly equal.
    in_pool: its operands are available. A malformed step is none of these. repeated: the same operation occurs earlier
    in the completion, with the operands of + and * in either order; equations that are not well formed are the same if
    they differ only in spaces. attempt: the index of the attempt to which it belongs, from 0. pool: the numbers that
    are available after it. span: its place in the completion, (start, end).
    """

    text: str
    well_formed: bool
    arithmetic_ok: bool
    in_pool: bool
    repeated: bool
    attempt: int
    pool: tuple
    span: tuple[int, int]
    malformed: bool

    @property
    def legal(self) -> bool:
        """Whether it is one operation on available numbers and its equation holds (`dense`, Section 3.4)."""
        return self.well_formed and self.arithmetic_ok and self.in_pool


# The quantifiers are possessive, so they never backtrack, and a text is scanned once. The right side of an equation is
# optional only so that an expression without a right side is passed over as a whole.
_NUMBER = rf"-?{THOUSANDS}(?:\.[0-9]{{1,18}}+)?+"
_TERM = rf"(?:-?\([ \t]*+){{0,8}}+{_NUMBER}(?:[ \t]*+\))*+"
_EQUATION = re.compile(
    # An equation starts where no operand ends; in bold type it starts behind the two asterisks.
    r"(?:(?<![\w.^*/+])(?<!\w-)|(?<=[^\w.)^*/+ \t]\*\*)|(?<=[^0-9.)][ \t]\*\*))"
    rf"(?P<left>{_TERM}(?:[ \t]*+[-+*/][ \t]*+{_TERM})++)"
    # The result may have marks around it, **63** or \boxed{63}, or a typographic minus in front.
    r"(?:[ \t]*+=[ \t]*+(?:(?P<bold>\*\*)|(?P<box>\\boxed\{))?"
    rf"(?P<right>(?:−(?=[0-9]))?{_NUMBER})(?(bold)\*\*)(?(box)\}})"
    rf"(?![\w^%]|\.[0-9]|{COMMA}|[ \t]*+[-+*/][ \t]*+[-(]?[0-9]))?+"
)
# A run of characters that occur in equations, and the marks that may stand between or around its digits.
_BRIDGE = rf"(?<=[0-9])(?={COMMA}),|\\boxed\{{-?[0-9.,]++\}}|(?:(?<==)|(?<== ))−(?=[0-9])"
_RUN = re.compile(rf"[-+*/^().=0-9 \t]++(?:(?=[,\\−])(?:{_BRIDGE})[-+*/^().=0-9 \t]*+)*+")
_ARITHMETIC = re.compile(r"[0-9)][ \t]*+[-+*/^]")
_OPERATION = re.compile(rf"({_NUMBER})[ \t]*+([-+*/])[ \t]*+({_NUMBER})")


class _Equation(NamedTuple):
    text: str
    well_formed: bool
    holds: bool
    operation: object  # operations that are equal up to commuting have equal values
    operands: list[int | Fraction] | None  # None if malformed
    result: int | Fraction
    skipped: int  # characters before it that looked like its beginning


def verify_steps(completion: str, problem: Problem) -> list[Step]:
    """The first MAX_STEPS equations of the completion's reasoning in order, including malformed ones.

    An equation is an expression of at most MAX_LENGTH characters, `=`, and a single number, on one line and with any
    text around it. Decimals are read exactly. In `a + b = c + d = e` only `c + d = e` is an equation.

    The pool starts as the problem's numbers. A step whose operands are in the pool takes them out and puts its stated
    result in, right or wrong: a slip counts once, and not again in each step that builds on it. A step whose operands
    are not in the pool, but are among the problem's numbers, starts a new attempt with a full pool. Any other step
    leaves the pool unchanged. A new line or a check (`98? no`) does not start an attempt.
    """
    pool, attempt, seen, steps = list(problem.nums), 0, set(), []
    for span, equation in islice(_equations(completion), MAX_STEPS):
        rest = None if equation.operands is None else without(pool, equation.operands)
        if rest is None and equation.operands and (rest := without(problem.nums, equation.operands)) is not None:
            attempt += 1
        if rest is not None:
            pool = [*rest, equation.result]
        repeated = equation.operation in seen
        seen.add(equation.operation)
        verdicts = (equation.well_formed, equation.holds, rest is not None, repeated)
        steps.append(Step(equation.text, *verdicts, attempt, tuple(pool), span, equation.operands is None))
    return steps


def _equations(completion: str) -> Iterator[tuple[tuple[int, int], _Equation]]:
    """The equations of the reasoning with their spans, including malformed ones, but without one that the end of the
    text cuts off."""
    for first, last in reasoning(completion):
        for run in _RUN.finditer(completion, first, last):
            start, end = run.span()
            if "=" in (text := run[0]):
                around = completion[max(start - 1, 0) : start], completion[end : min(end + 1, last)]
                read = _read if len(text) <= MAX_LENGTH else _read.__wrapped__  # long runs do not recur
                for (begin, stop), equation in read(text, *around, end == len(completion)):
                    yield (start + begin, start + stop), equation


@lru_cache(maxsize=1 << 16)  # equations recur in a rollout, and in the rollouts of a problem
def _read(run: str, before: str, behind: str, ends: bool) -> list[tuple[tuple[int, int], _Equation]]:
    """The equations of a run of characters, with their spans in it. before, behind: the character on each side of the
    run, or "". ends: whether the completion ends with the run."""
    found, at = [], len(before)
    for match in _EQUATION.finditer(before + run + behind, at):
        left, right = match.group("left", "right")
        if right and len(left) <= MAX_LENGTH and (equation := _equation(left, right)):
            found.append(((match.start() + equation.skipped - at, match.end() - at), equation))
    if not found and not ends and _ARITHMETIC.search(run):
        text = run.strip()
        start = run.index(text)
        found.append(((start, start + len(text)), _Equation(text, False, False, text.replace(" ", ""), None, 0, 0)))
    return found


def _equation(left: str, right: str) -> _Equation | None:
    """An equation, or None if its left side is not an expression."""
    length = len(left)
    if (unclosed := left.count("(") - left.count(")")) > 0:  # as in (44 + 19 = 63)
        left = left[unclosed:].lstrip()
    skipped = length - len(left)
    text, result = f"{left} = {right}", number(right.replace("−", "-"))
    if operation := _OPERATION.fullmatch(left):
        a, op, b = number(operation[1]), operation[2], number(operation[3])
        key = (op, b, a) if op in "+*" and b < a else (op, a, b)
        return _Equation(text, True, holds(op, a, b, result), key, [a, b], result, skipped)
    plain = left.replace(",", "")
    try:
        expr = parse(plain, decimals=True)
        equal = evaluate(expr) == result
    except ExpressionError:
        return None
    except ZeroDivisionError:
        equal = False
    key = plain.replace(" ", "").replace("\t", "")
    return _Equation(text, False, equal, key, operands(expr), result, skipped)
