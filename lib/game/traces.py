"""Structured search traces: how their lines are written, read and judged (paper `trace`, Section
3.2).

    state [2, 3, 7, 8]            the pool: the numbers that are left
    try 8 - 2 = 6                 one operation on two of them; the next state holds its result
    backtrack                     gives the pool up; the next state is the earlier one to which the
                                  search returns

Numbers are integers (1540 or 1,540) or exact fractions (7/2, without spaces). With provenance, a
state also says how its numbers were made: `state [3, 6 = 8 - 2, 7]`. A try may also say whether its
result is the target: `try 4 * 6 = 24, 24? yes`.

`replay` keeps the true pool. Only a try whose operands are in the pool and whose arithmetic holds
changes it. A slip therefore counts as a fault on its own line and on the lines that build on it,
but no further: a `backtrack` after it gives up the pool that was only claimed. A try that no state
line follows is not a fault."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from operator import itemgetter

from lib.game.expression import (
    COMMA,
    THOUSANDS,
    BinOp,
    Expr,
    ExpressionError,
    Num,
    evaluate,
    holds,
    joined,
    leaves,
    number,
    parse,
    render,
)
from lib.game.problem import Problem

MAX_LINES = 1000  # of a trace that are read; 4,096 tokens, the longest cap of a profile, hold fewer
MAX_LENGTH = 200  # characters of a line, so that every line is read in bounded time

_NUMBER = rf"-?{THOUSANDS}(?:/[1-9][0-9]{{0,17}})?"
_TRY = re.compile(
    rf"try +({_NUMBER}) *([-+*/]) *({_NUMBER}) *= *({_NUMBER})(?:, ({_NUMBER})\? (yes|no))?"
)
_STATE = re.compile(r"state +\[([^\[\]]+)\]")
_ITEM = re.compile(rf"({_NUMBER})(?: *= *(.+))?")
_BETWEEN = re.compile(rf"(?!{COMMA}),")  # a comma between items, not one between thousands
_COMMAS = re.compile(",")  # [100,200,300] has no thousands
_LINE = re.compile(r"\S[^\n]*")

# the numbers that are left and how they were made, ascending
Pool = tuple[tuple[int | Fraction, Expr], ...]


def full_pool(problem: Problem) -> Pool:
    """The pool of all the problem's numbers."""
    return tuple((n, Num(n)) for n in sorted(problem.nums))


def values(pool: Sequence[tuple]) -> tuple:
    return tuple(map(itemgetter(0), pool))


def state_line(pool: Pool, provenance: bool = False) -> str:
    """The state line of a pool; with `provenance` each result is written as `value =
    expression`."""
    items = []
    for value, expr in pool:
        is_made = provenance and not isinstance(expr, Num)
        items.append(f"{value} = {render(expr)}" if is_made else str(value))
    return f"state [{', '.join(items)}]"


def try_line(node: BinOp) -> str:
    """The try line of the operation at the root of a tree, written with the values of its
    operands."""
    return f"try {evaluate(node.left)} {node.op} {evaluate(node.right)} = {evaluate(node)}"


def move(pool: Pool, node: BinOp) -> Pool:
    """The pool after the operation `node` on two of its members. Raises ValueError if the pool does
    not hold them."""
    if (at := _find([expr for _, expr in pool], node.left, node.right)) is None:
        raise ValueError(f"{render(node)} needs two members of {state_line(pool, provenance=True)}")
    return _moved(pool, *at, node.op, evaluate(node))


def _moved(pool: Pool, i: int, j: int, op: str, value: int | Fraction) -> Pool:
    rest = [item for k, item in enumerate(pool) if k not in (i, j)]
    return tuple(sorted([*rest, (value, BinOp(op, pool[i][1], pool[j][1]))], key=itemgetter(0)))


@dataclass(frozen=True, slots=True)
class Line:
    """One line and its verdicts. kind: state, try, backtrack, or other (outside the grammar).

    in_pool: both operands of a try are in the true pool. arithmetic_ok: the equation of a try
    holds, and so does its statement about the target. state_ok: a state is the true pool, or after
    a backtrack an earlier one; a backtrack has a pool to return to. repeated: a try repeats an
    operation on the same pool, with the operands of + and * in either order (the correction of a
    slip is not a repetition), or a valid state follows a state without a try or backtrack between
    them. A verdict that does not apply to a kind of line has the value that it has for a faultless
    line. span: the line's place in the completion, (start, end)."""

    kind: str
    in_pool: bool = True
    arithmetic_ok: bool = True
    state_ok: bool = True
    repeated: bool = False
    span: tuple[int, int] = field(default=(0, 0), compare=False)

    @property
    def valid(self) -> bool:
        return self.kind != "other" and self.in_pool and self.arithmetic_ok and self.state_ok


@dataclass(frozen=True, slots=True)
class Trace:
    """lines: the lines with their verdicts. reached: whether the true pool at the end is the target
    alone. solution: the expression that last made the target, or None. results: the values that the
    tries state."""

    lines: tuple[Line, ...]
    reached: bool
    solution: Expr | None
    results: frozenset


def reasoning(completion: str) -> list[tuple[int, int]]:
    """The spans of the text in think blocks, [(start, end), ...]. The first block may have been
    opened in the prompt, and a block that is not closed ends at the answer. Raises TypeError if the
    completion is not a text."""
    if not isinstance(completion, str):
        raise TypeError(f"a completion is a text, not {type(completion).__name__}")
    blocks = []
    start = 0
    *closed, last = completion.split("</think>")
    for block in [*closed, last.partition("<answer>")[0]]:
        if (opened := block.find("<think>")) >= 0:
            blocks.append((start + opened + len("<think>"), start + len(block)))
        elif start == 0:
            blocks.append((0, len(block)))
        start += len(block) + len("</think>")
    return blocks


def _lines(completion: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The non-empty lines of the reasoning, without white space around them, and the span of
    each."""
    for block in reasoning(completion):
        for match in _LINE.finditer(completion, *block):
            line = match[0].rstrip()
            yield line, (match.start(), match.start() + len(line))


def replay(completion: str, problem: Problem) -> Trace:
    """Reads and judges the first MAX_LINES lines of the think blocks, or of the whole text if it
    has no think block. The arithmetic is exact, and the time is linear."""
    search = _Replay(problem)
    lines = [search.read(line, span) for line, span in islice(_lines(completion), MAX_LINES)]
    return Trace(tuple(lines), search.reached, search.solution, frozenset(search.results))


class _Replay:
    """What is known of a search between two lines of its trace."""

    def __init__(self, problem: Problem):
        self.target = problem.target
        self.pools = [full_pool(problem)]  # the true pool, last, and those before it
        self.claimed = 0  # pools above the true one that tries only claimed
        self.stated = False  # was the pool stated since the last action?
        self.returning = False  # was the last line of the grammar a backtrack?
        self.tried: dict[tuple, bool] = {}  # was this operation on this pool ever right?
        self.results: set[int | Fraction] = set()
        self.solution: Expr | None = None

    @property
    def reached(self) -> bool:
        """Whether the true pool is the target alone."""
        return values(self.pools[-1]) == (self.target,)

    def read(self, line: str, span: tuple[int, int]) -> Line:
        """The verdicts on the next line."""
        if len(line) > MAX_LENGTH:
            return Line("other", span=span)
        if action := _TRY.fullmatch(line):
            return self._try(action, span)
        if state := _STATE.fullmatch(line):
            return self._state(state[1], span)
        if line == "backtrack":
            return self._backtrack(span)
        return Line("other", span=span)

    def _try(self, action: re.Match, span: tuple[int, int]) -> Line:
        """Judges a try. If it is right, it leads to another pool."""
        op = action[2]
        a, b, result = map(number, action.group(1, 3, 4))
        pool = values(self.pools[-1])
        at = _find(pool, a, b)
        correct = holds(op, a, b, result)
        if action[5]:  # it also says whether the target is reached
            says_reached = action[6] == "yes"
            correct &= number(action[5]) == self.target
            correct &= (result == self.target) == says_reached
        right = at is not None and correct
        operation = (op, *(sorted((a, b)) if op in "+*" else (a, b)), pool)
        before = self.tried.get(operation)
        self.tried[operation] = before or right
        self.results.add(result)
        if at and right:
            self.pools.append(_moved(self.pools[-1], *at, op, result))
            if self.reached:
                self.solution = self.pools[-1][0][1]
        self.claimed = 0 if right else self.claimed + 1
        self.returning = False
        self.stated = False
        repeated = before or before == right
        return Line("try", at is not None, correct, repeated=repeated, span=span)

    def _state(self, items: str, span: tuple[int, int]) -> Line:
        """Finds the pool that a state names; after a backtrack it may be an earlier one."""
        depths = range(len(self.pools), 0, -1) if self.returning else [len(self.pools)]
        depth = next((depth for depth in depths if _names(items, self.pools[depth - 1])), 0)
        repeated = self.stated and depth > 0
        self.returning = False
        if depth:
            self.pools = self.pools[:depth]
            self.claimed = 0
            self.stated = True
        return Line("state", state_ok=depth > 0, repeated=repeated, span=span)

    def _backtrack(self, span: tuple[int, int]) -> Line:
        """Leaves the pool of the last try."""
        leaves_one = self.claimed > 0 or len(self.pools) > 1
        if self.claimed:
            self.claimed -= 1
        elif leaves_one:
            self.pools = self.pools[:-1]
        self.returning = True
        self.stated = False
        return Line("backtrack", state_ok=leaves_one, span=span)


def _find(pool: Sequence, a: object, b: object) -> tuple[int, int] | None:
    """The positions of a and b in a pool; None if the pool does not hold both."""
    if a not in pool or b not in pool or (a == b and pool.count(a) < 2):
        return None
    i = pool.index(a)
    return i, pool.index(b, i + 1) if a == b else pool.index(b)


def _names(items: str, pool: Pool) -> bool:
    """Whether the items of a state are the values of the pool. If the state says how its numbers
    were made, this must be true as well, and must use up the same numbers as the pool."""
    read = _items(items, _BETWEEN)
    if values(read) != values(pool):
        read = _items(items, _COMMAS)
    if values(read) != values(pool):
        return False
    if not any(how for _, _, how in read):
        return True
    used = []
    for value, text, how in read:
        expr = _expression(how or text)
        if expr is None or evaluate(expr) != value:
            return False
        used += leaves(expr)
    there = [n for _, expr in pool for n in leaves(expr)]
    return sorted(used) == sorted(there)


@lru_cache(maxsize=4096)  # the same states and items recur in many traces
def _items(items: str, between: re.Pattern) -> tuple[tuple[int | Fraction, str, str], ...]:
    """The value, the text and the provenance ("" if there is none) of each item of a state, in
    ascending order; the empty tuple if something is not an item. between: what stands between two
    items."""
    read = []
    for text in between.split(items):
        item = _ITEM.fullmatch(text.strip())
        if item is None:
            return ()
        read.append((number(item[1]), item[1], item[2] or ""))
    return tuple(sorted(read))


@lru_cache(maxsize=4096)
def _expression(text: str) -> Expr | None:
    try:
        evaluate(expr := parse(joined(text)))
    except (ExpressionError, ZeroDivisionError):
        return None
    return expr
