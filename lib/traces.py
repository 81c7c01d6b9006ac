"""Structured search traces: their lines, written and read (paper `trace`, Section 3.2).

    state [2, 3, 7, 8]            the pool: the numbers that are left
    try 8 - 2 = 6                 one operation on two of them; the state behind it holds its result
    backtrack                     gives the pool up; the next state names the earlier one that the search returns to

Numbers are integers or exact fractions (7/2, without spaces). With provenance a state holds what its numbers were made
of, `state [3, 6 = 8 - 2, 7]`, so that the last one holds the answer.

`replay` keeps the true pool: only a try whose operands are in it and whose arithmetic holds moves it. What a trace only
claims is judged and moves nothing, so a state is worth nothing by being written down.
"""

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from lib.expression import BinOp, Expr, ExpressionError, Num, evaluate, numbers, parse, render
from lib.problem import Problem

MAX_LINES = 400  # of a trace
MAX_LENGTH = 200  # characters of a line: every line is then read in bounded time

_NUMBER = r"-?(?:0|[1-9][0-9]{0,17})(?:/[1-9][0-9]{0,17})?"
_TRY = re.compile(rf"try +({_NUMBER}) *([-+*/]) *({_NUMBER}) *= *({_NUMBER})")
_STATE = re.compile(r"state +\[([^\[\]]+)\]")
_ITEM = re.compile(rf"({_NUMBER})(?: *= *(.+))?")

Pool = tuple[Expr, ...]  # the numbers that are left, as the expressions that they were made by


def state_line(pool: Pool, provenance: bool = False) -> str:
    """The pool in rising order; with `provenance` each result as `value = expression`."""
    items = [(evaluate(expr), "" if isinstance(expr, Num) or not provenance else f" = {render(expr)}") for expr in pool]
    return f"state [{', '.join(f'{value}{made}' for value, made in sorted(items))}]"


def try_line(node: BinOp) -> str:
    """The operation at the root of a tree, on values."""
    return f"try {evaluate(node.left)} {node.op} {evaluate(node.right)} = {evaluate(node)}"


def move(pool: Pool, node: BinOp) -> Pool:
    """The pool after the operation `node` on two of its members. Raises ValueError if it does not hold them."""
    rest = list(pool)
    rest.remove(node.left)
    rest.remove(node.right)
    return (*rest, node)


@dataclass(frozen=True, slots=True)
class Line:
    """One line and its verdicts. kind: state, try, backtrack, or other (outside the grammar).

    in_pool, arithmetic_ok, repeated: of a try. repeated: this action was tried on this pool before, operands of + and *
    in either order. state_ok: a state is the true pool, or behind a backtrack an earlier one; there is a pool to go
    back to. What does not apply to a kind is as in a faultless line.
    """

    kind: str
    in_pool: bool = True
    arithmetic_ok: bool = True
    state_ok: bool = True
    repeated: bool = False

    @property
    def valid(self) -> bool:
        return self.kind != "other" and self.in_pool and self.arithmetic_ok and self.state_ok


@dataclass(frozen=True, slots=True)
class Trace:
    """lines: each with its verdicts. reached: the true pool at the end is the target alone. solution: what the target
    was last made by, if it ever was. results: the values that the tries state."""

    lines: tuple[Line, ...]
    reached: bool
    solution: Expr | None
    results: frozenset


def replay(text: str, problem: Problem) -> Trace:
    """Read and judge a trace line by line, the first MAX_LINES; empty lines are skipped. Exact, in linear time."""
    pools: list[Pool] = [tuple(map(Num, problem.nums))]  # the true pool on top of those that lead to it
    lines, tried, results, solution, returning = [], set(), set(), None, False
    for text_line in islice(filter(None, map(str.strip, text.split("\n"))), MAX_LINES):
        short = text_line if len(text_line) <= MAX_LENGTH else ""
        if action := _TRY.fullmatch(short):
            a, b, result = map(_number, (action[1], action[3], action[4]))
            results.add(result)
            key = (action[2], *(sorted((a, b)) if action[2] in "+*" else (a, b)), _values(pools[-1]))
            node = _operation(pools[-1], action[2], a, b)
            holds = _holds(action[2], a, b, result)
            lines.append(Line("try", node is not None, holds, repeated=key in tried))
            tried.add(key)
            if node and holds:
                pools.append(move(pools[-1], node))
                solution = node if _values(pools[-1]) == (problem.target,) else solution
            returning = False
        elif state := _STATE.fullmatch(short):
            depths = range(len(pools), 0, -1) if returning else [len(pools)]
            depth = next((depth for depth in depths if _names(state[1], pools[depth - 1])), 0)
            lines.append(Line("state", state_ok=depth > 0))
            pools, returning = pools[: depth or None], False
        elif short == "backtrack":
            lines.append(Line("backtrack", state_ok=len(pools) > 1))
            pools, returning = pools[:-1] or pools, True
        else:
            lines.append(Line("other"))
    return Trace(tuple(lines), _values(pools[-1]) == (problem.target,), solution, frozenset(results))


def _number(text: str) -> int | Fraction:
    return Fraction(text) if "/" in text else int(text)


def _values(pool: Pool) -> tuple:
    return tuple(sorted(map(evaluate, pool)))


def _operation(pool: Pool, op: str, a: int | Fraction, b: int | Fraction) -> BinOp | None:
    """The operation on two members of the pool that are worth a and b, if there are two."""
    left = next((i for i, expr in enumerate(pool) if evaluate(expr) == a), None)
    right = next((i for i, expr in enumerate(pool) if evaluate(expr) == b and i != left), None)
    return None if left is None or right is None else BinOp(op, pool[left], pool[right])


def _holds(op: str, a: int | Fraction, b: int | Fraction, result: int | Fraction) -> bool:
    try:
        return evaluate(BinOp(op, Num(a), Num(b))) == result
    except ZeroDivisionError:
        return False


def _names(items: str, pool: Pool) -> bool:
    """Whether a state's items are the pool's values, and what they say they were made of holds and is all there is."""
    read = [_ITEM.fullmatch(item.strip()) for item in items.split(",")]
    if None in read or tuple(sorted(_number(item[1]) for item in read)) != _values(pool):
        return False
    if not any(item[2] for item in read):
        return True
    try:
        made = [parse(item[2]) if item[2] else Num(_number(item[1])) for item in read]
        true = all(evaluate(expr) == _number(item[1]) for expr, item in zip(made, read, strict=True))
    except (ExpressionError, ZeroDivisionError):
        return False
    return true and sum(map(numbers, made), Counter()) == sum(map(numbers, pool), Counter())
