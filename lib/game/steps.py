"""Finds the equations of a free-form reasoning and judges each (`dense`, Section 3.4; `ast`,
Section 5.2).

    44 + 19 = 63, 63 * 35 = 2205
    so 44 + 19 = 63 and 63 + 35 = 98

An equals sign next to arithmetic that is not such an equation (`44 + = 63`, `48 - 43 == 5`, `60 **
2 = 3600`, `98 = 44 + 19 + 35`) is a malformed step. `dense` penalises these too, so that a
misspelling cannot hide a fault. Marks around a result are ignored: `= **63**`, `= \\boxed{63}`, `=
$63$`.

Other signs are read as those of ASCII for which they stand: `×`, `·`, `÷`, `−`, full-width ones,
LaTeX's `\\times`, `\\cdot` and `\\div`, and an x or X between two spaces. Words, dashes and roots
count as prose, and so does the arithmetic behind them: `44 times 2 + 19 = 107` does not say that 2
+ 19 is 107.

A colon between two spaces may divide, as in `44 : 2 + 19 = 41`, or stand behind a label, as in
`Step 1 : 44 + 19 = 63`: it is read as the one of the two with which more equations hold, or else
with which there are more equations, or else as the label.

Numbers may have commas between their thousands, in LaTeX `1{,}540` or `1\\,540`, an apostrophe, or
a space that does not break. A comma before three digits may also end an item of a list, as in `100
+ 200 = 300,400 - 100 = 300`: it is read as the one of the two with which more equations hold. Every
text is read in linear time."""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple

from lib.game.expression import (
    COMMA,
    SEPARATOR,
    THOUSANDS,
    ExpressionError,
    evaluate,
    holds,
    joined,
    number,
    operands,
    parse,
    without,
)
from lib.game.problem import Problem
from lib.game.traces import reasoning

MAX_LENGTH = 100  # characters on an equation's left side
MAX_STEPS = 1000  # read in one completion; 4,096 tokens, the longest cap of a profile, hold fewer


class Step(NamedTuple):
    """One equation of the reasoning, or a text that was meant as one (malformed).

    well_formed: it has the form number, operation, number = number. arithmetic_ok: its two sides
    are exactly equal. in_pool: its operands are available. A malformed step is none of these.
    repeated: the same operation occurs earlier in the completion, with the operands of + and * in
    either order; equations that are not well formed are the same if they differ only in spaces.
    attempt: the index of the attempt to which it belongs, from 0. pool: the numbers that are
    available after it. span: its place in the completion, (start, end)."""

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
        """Whether it is one operation on available numbers and its equation holds (`dense`, Section
        3.4)."""
        return self.well_formed and self.arithmetic_ok and self.in_pool


# The quantifiers are possessive, so they never backtrack, and a text is scanned once. The right
# side of an equation is optional only so that an expression without a right side is passed over as
# a whole.
_NUMBER = rf"-?{THOUSANDS}(?:\.[0-9]{{1,18}}+)?+"
_GROUP = rf"{COMMA}| [0-9]{{3}}(?![0-9])"  # perhaps more digits of the number in front
_TERM = rf"(?:-?\([ \t]*+){{0,8}}+{_NUMBER}(?:[ \t]*+\))*+"
_EQUATION = re.compile(
    # An equation starts where no operand ends; in bold type it starts behind the two asterisks.
    r"(?:(?<![\w.^*/+])(?<!\w-)(?<!\^ )(?<!// )(?<![0-9)] \*\* )"
    r"|(?<=[^\w.)^*/+ \t]\*\*)|(?<=[^0-9.)][ \t]\*\*))"
    rf"(?P<left>{_TERM}(?:[ \t]*+[-+*/][ \t]*+{_TERM})++)"
    # The result may have marks around it, **63** or \boxed{63}.
    r"(?:[ \t]*+=[ \t]*+(?:(?P<bold>\*\*)|(?P<box>\\boxed\{))?"
    rf"(?P<right>{_NUMBER})(?(bold)\*\*)(?(box)\}})"
    rf"(?![\w^%]|\.[0-9]|{_GROUP}|[ \t]*+[-+*/][ \t]*+[-(]?[0-9]))?+"
)
# A run of characters that occur in equations, and the marks that may stand between or around its
# digits.
_BRIDGE = rf"(?<=[0-9])(?={COMMA}){SEPARATOR}|\\boxed\{{-?[0-9.,]++\}}"
_RUN = re.compile(rf"[-+*/^().=0-9 \t]++(?:(?=[,{{\\])(?:{_BRIDGE})[-+*/^().=0-9 \t]*+)*+")
_ARITHMETIC = re.compile(r"[0-9)][ \t]*+[-+*/^]")
_OPERATION = re.compile(rf"({_NUMBER})[ \t]*+([-+*/])[ \t]*+({_NUMBER})")
_SEPARATED = re.compile(f"(?={COMMA}){SEPARATOR}")

# Signs that stand for others. What they become has as many characters, so that places in the text
# stay the same.
_SIGNS = str.maketrans(
    "×✕✖·⋅∙∗＊÷∕／−－＋＝（）０１２３４５６７８９", "********///--+=()0123456789"
)
_LATEX = {"\\times": "*     ", "\\cdot": "*    ", "\\ast": "*   ", "\\div": "/   "}
_COMMAND = re.compile(r"\\(?:times|cdot|ast|div)(?![A-Za-z])")
_THOUSAND = re.compile("(?<=[0-9])['’\\u00a0\\u2009\\u202f](?=[0-9]{3}(?![0-9]))")
_MARKED = re.compile(
    r"(?<== )(`|\$|__|\*|\\\(|<b>)(-?[0-9][0-9.,]*+)(`|\$|__|\*|\\\)|</b>)(?![\w*])"
)
_CROSS = re.compile(r"(?<=[0-9)] )[xX](?= [-0-9(])")
_COLON = re.compile(r"(?<=[0-9)] ):(?= [-0-9(])")
_PROSE = re.compile(
    r"(?:√|(?<=[0-9)])[ \t]*+(?:[–—±√%]|times|plus|minus|over|divided by|multiplied by))"
    r"[ \t]*+(?=[-0-9(])"
)
_OPAQUE = "¤"  # stands for them: no arithmetic is read behind it


class _Equation(NamedTuple):
    text: str
    well_formed: bool
    holds: bool
    operation: object  # operations that are equal up to commuting have equal values
    operands: list[int | Fraction] | None  # None if malformed
    result: int | Fraction
    skipped: int  # characters before it that looked like its beginning


def verify_steps(completion: str, problem: Problem) -> list[Step]:
    """The first MAX_STEPS equations of the completion's reasoning in order, including malformed
    ones.

    An equation is an expression of at most MAX_LENGTH characters, `=`, and a single number, on one
    line and with any text around it. Decimals are read exactly. In `a + b = c + d = e` only `c + d
    = e` is an equation.

    The pool starts as the problem's numbers. A step whose operands are in the pool takes them out
    and puts its stated result in, right or wrong: a slip counts once, and not again in each step
    that builds on it. A step whose operands are not in the pool, but are among the problem's
    numbers, starts a new attempt with a full pool. Any other step leaves the pool unchanged. A new
    line or a check (`98? no`) does not start an attempt. Raises TypeError if the completion is not
    a text."""
    if not isinstance(completion, str):
        raise TypeError(f"a completion is a text, not {type(completion).__name__}")
    pool = list(problem.nums)
    attempt = 0
    seen = set()
    steps = []
    for span, equation in islice(_equations(completion), MAX_STEPS):
        taken = equation.operands
        rest = None if taken is None else without(pool, taken)
        if rest is None and taken is not None:
            rest = without(problem.nums, taken)
            attempt += rest is not None
        if rest is not None:
            pool = [*rest, equation.result]
        repeated = equation.operation in seen
        seen.add(equation.operation)
        verdicts = (equation.well_formed, equation.holds, rest is not None, repeated)
        steps.append(Step(equation.text, *verdicts, attempt, tuple(pool), span, taken is None))
    return steps


def _equations(completion: str) -> Iterator[tuple[tuple[int, int], _Equation]]:
    """The equations of the reasoning with their spans, including malformed ones, but without one
    that the end of the text cuts off."""
    plain = _plain(completion)
    divided = _COLON.sub("/", plain)
    for first, last in reasoning(completion):
        for run in _RUN.finditer(divided, first, last):
            span = run.span()
            found = _of_run(divided, span, last)
            if ":" in plain[slice(*span)]:  # read as the sign of labels too
                parts = _RUN.finditer(plain, *span)
                apart = [_of_run(plain, part.span(), last) for part in parts]
                found = max([*chain(*apart)], found, key=_counts)  # the first of equals
            yield from found


def _of_run(text: str, span: tuple[int, int], last: int) -> list[tuple[tuple[int, int], _Equation]]:
    """The equations in one run of a text, with their spans in the text. last: where the block of
    reasoning ends."""
    start, end = span
    run = text[start:end]
    if "=" not in run:
        return []
    before = text[max(start - 1, 0) : start]
    behind = text[end : min(end + 1, last)]
    read = _read if len(run) <= MAX_LENGTH else _read.__wrapped__  # long runs do not recur
    found = read(run, before, behind, end == len(text))
    return [((start + begin, start + stop), equation) for (begin, stop), equation in found]


def _counts(found: list[tuple[tuple[int, int], _Equation]]) -> tuple[int, int]:
    """How many equations hold, and how many there are: of two readings the larger one is right."""
    return sum(equation.holds for _, equation in found), len(found)


def _plain(text: str) -> str:
    """The text, as long as it was, with other signs replaced by those of ASCII for which they
    stand."""
    text = _THOUSAND.sub(",", text.translate(_SIGNS))
    text = _COMMAND.sub(lambda command: _LATEX[command[0]], text)
    text = _MARKED.sub(
        lambda result: f"{' ' * len(result[1])}{result[2]}{' ' * len(result[3])}", text
    )
    return _PROSE.sub(lambda prose: _OPAQUE * len(prose[0]), _CROSS.sub("*", text))


@lru_cache(maxsize=1 << 16)  # equations recur in a rollout, and in the rollouts of a problem
def _read(
    run: str, before: str, behind: str, ends: bool
) -> list[tuple[tuple[int, int], _Equation]]:
    """The equations of a run of characters, with their spans in it. before, behind: the character
    on each side of the run, or "". ends: whether the completion ends with the run."""
    if before == _OPAQUE:
        return []
    # 1. Find the equations. Commas of a list are taken out where more equations hold without them:
    #    each by itself, or in a long run all at once, since each costs a reading
    found = _found(run, before, behind)
    places = [match.span() for match in _SEPARATED.finditer(run)]
    trials = [[place] for place in places]
    if len(run) > MAX_LENGTH and places:
        trials = [places]
    for some in trials:
        listed = run
        for start, end in some:
            listed = listed[:start] + ";" * (end - start) + listed[end:]
        again = _found(listed, before, behind)
        if _counts(again)[0] > _counts(found)[0]:
            run = listed
            found = again
    # 2. Without an equation, arithmetic beside an equals sign is malformed
    if not found and not ends and _ARITHMETIC.search(run):
        text = run.strip()
        start = run.index(text)
        malformed = _Equation(text, False, False, text.replace(" ", ""), None, 0, 0)
        found.append(((start, start + len(text)), malformed))
    return found


def _found(run: str, before: str, behind: str) -> list[tuple[tuple[int, int], _Equation]]:
    """The equations of a run that have the form of one."""
    found = []
    at = len(before)
    for match in _EQUATION.finditer(before + run + behind, at):
        left, right = match.group("left", "right")
        if right and len(left) <= MAX_LENGTH and (equation := _equation(left, right)):
            found.append(((match.start() + equation.skipped - at, match.end() - at), equation))
    return found


def _equation(left: str, right: str) -> _Equation | None:
    """An equation, or None if its left side is not an expression."""
    length = len(left)
    if (unclosed := left.count("(") - left.count(")")) > 0:  # as in (44 + 19 = 63)
        left = left[unclosed:].lstrip()
    skipped = length - len(left)
    text = f"{left} = {right}"
    result = number(right)
    if operation := _OPERATION.fullmatch(left):
        a = number(operation[1])
        op = operation[2]
        b = number(operation[3])
        key = (op, b, a) if op in "+*" and b < a else (op, a, b)
        return _Equation(text, True, holds(op, a, b, result), key, [a, b], result, skipped)
    plain = joined(left)
    try:
        expr = parse(plain, decimals=True)
        equal = evaluate(expr) == result
    except ExpressionError:
        return None
    except ZeroDivisionError:
        equal = False
    key = plain.replace(" ", "").replace("\t", "")
    return _Equation(text, False, equal, key, operands(expr), result, skipped)
