"""Countdown as a Markov decision process: states, actions, transition, reward, and the exact value
of every move.

Paper `agent` is "Countdown as an Agentic Optimization Problem" (Sun); the equation numbers are
those of this paper. A state consists of the target and the multiset of the numbers that are left
(exact rationals). An action takes two of these numbers and puts their result back. The numbers are
sorted, so that equal states have equal prompts.

Every number must be used, so a solvable state of n numbers is always n - 1 actions from its end
(`d_min`). In Eq. 9, alpha therefore only separates solvable from unsolvable successors;
`count_solutions` ranks the solvable ones."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import NamedTuple

import numpy as np

from lib.game.expression import COMPUTE, WHOLE, BinOp, Expr, Num, evaluate, operations, without
from lib.game.problem import Problem
from lib.game.prompts import render_prompt
from lib.game.solver import count_all
from lib.game.verifiers import REJECTIONS as REJECTIONS  # the faults that `parse_action` returns

VERDICTS = (" no", " yes")  # a value policy's possible answers about a state, one token each
Number = int | Fraction  # whole numbers are always int

_NUMBER = rf"-?{WHOLE}(?:\|[1-9][0-9]{{0,17}})?"
_TAG = re.compile(rf"<pick>({_NUMBER}), ({_NUMBER}), ([-+*/])</pick>", re.ASCII)


class Action(NamedTuple):
    """Takes `a` and `b` out of the state and puts `a op b` back. Actions are made by the function
    `action`, which orders the operands of + and *."""

    a: Number
    b: Number
    op: str


@dataclass(frozen=True, slots=True)
class State:
    """The numbers that are left, in ascending order; the target; and the actions so far (Eq. 1)."""

    nums: tuple[Number, ...]
    target: Number
    history: tuple[Action, ...] = ()

    @property
    def key(self) -> tuple[tuple[Number, ...], Number]:
        """The state without its history: it determines everything that can follow."""
        return self.nums, self.target

    @property
    def terminal(self) -> bool:
        return len(self.nums) == 1


def initial(problem: Problem) -> State:
    """The first state s_0 of a problem."""
    return State(tuple(sorted(problem.nums)), problem.target)


def action(a: Number, b: Number, op: str) -> Action:
    """The action with the operands of + and * in ascending order: (a, b, +) and (b, a, +) are the
    same action."""
    return Action(*((b, a) if op in "+*" and b < a else (a, b)), op)


def legal_actions(state: State) -> list[Action]:
    """A(s) of Eq. 2, with each action once: any operation on two of the numbers, except a division
    by zero."""
    pairs = permutations(state.nums, 2)
    return list(
        dict.fromkeys(action(a, b, op) for a, b in pairs for op in "+-*/" if op != "/" or b)
    )


def step(state: State, move: Action) -> State:
    """The transition (Eq. 3). Raises ValueError if the state does not have the numbers, and
    ZeroDivisionError."""
    if (rest := without(state.nums, move[:2])) is None:
        raise ValueError(
            f"{render_action(move)}: the numbers left are "
            f"{', '.join(map(render_number, state.nums))}"
        )
    return State(tuple(sorted([*rest, _result(move)])), state.target, (*state.history, move))


def _result(move: Action) -> Number:
    return _plain(COMPUTE[move.op](move.a, move.b))


def _plain(number: Number) -> Number:
    """Returns a whole number as an int."""
    return number.numerator if number.denominator == 1 else number


# --- text -----------------------------------------------------------------------------------------


def render_number(number: Number) -> str:
    """Writes fractions as `p|q`, since a / within a number would look like an operation."""
    return str(number).replace("/", "|")


def render_state(state: State, style: str = "pick") -> str:
    """The prompt p(s). It shows the numbers left and the target, but not the history. Style "value"
    asks for one of VERDICTS."""
    return render_prompt([render_number(n) for n in state.nums], state.target, style)


def render_action(move: Action) -> str:
    """The tag that `parse_action` reads back as this action."""
    return f"<pick>{render_number(move.a)}, {render_number(move.b)}, {move.op}</pick>"


def parse_action(text: str, state: State) -> Action | str:
    """phi(y, s): the legal action that a tag names in this state, or its kind of fault, one of
    REJECTIONS. The whole text must be one tag in the form of `render_action`, except that the
    operands of + and * may come in either order and that a fraction need not be reduced."""
    if (tag := _TAG.fullmatch(text)) is None:
        return "unreadable"
    a, b = (Fraction(number.replace("|", "/")) for number in tag.group(1, 2))
    if without(state.nums, (a, b)) is None:
        return "number not there"
    if tag[3] == "/" and not b:
        return "division by zero"
    return action(_plain(a), _plain(b), tag[3])


def expression(problem: Problem, history: Sequence[Action]) -> Expr:
    """The expression that a finished game has built from the problem's own numbers. Raises
    StopIteration or ValueError if `history` is no finished game of the problem."""
    trees: list[tuple[Number, Expr]] = [(n, Num(n)) for n in problem.nums]
    for move in history:
        operands = []
        for value in move[:2]:  # either tree of two equal values will do: all are used in the end
            at = next(i for i, (number, _) in enumerate(trees) if number == value)
            operands.append(trees.pop(at)[1])
        trees.append((_result(move), BinOp(move.op, *operands)))
    [(_, tree)] = trees
    return tree


def moves_of(tree: Expr) -> Iterator[Action]:
    """The actions that build an expression: inner ones before outer ones, and left before right."""
    for node in operations(tree):
        yield action(_plain(evaluate(node.left)), _plain(evaluate(node.right)), node.op)


# --- exact values ---------------------------------------------------------------------------------


def count_solutions(states: Sequence[State]) -> np.ndarray:
    """c(s) of each state: the number of its solution trees up to commuting, int64. V*(s) is c(s) >
    0 (Eq. 6 and 7)."""
    keys = list(dict.fromkeys(state.key for state in states))
    found = dict(zip(keys, count_all([Problem(*key) for key in keys]).tolist(), strict=True))
    return np.array([found[state.key] for state in states], np.int64)


def q_values(
    successors: Sequence[State], kind: str, alpha: float = 0.2, beta: float = 0.05
) -> np.ndarray:
    """Q(s, a) for the successors s' = T(s, a) of any actions, float64.

    kind "none": 0. "executor": 1 for a game that is won, else 0, which is all that is known without
    a solver. "binary": Q_bin = V*(s') (Eq. 7). "soft": Q_soft = 1 - alpha d_min(s') + beta log(1 +
    c(s')) if s' can be solved, else 0 (Eq. 9). Raises ValueError for any other kind."""
    if kind == "none":
        return np.zeros(len(successors))
    if kind == "executor":
        return np.array([state.nums == (state.target,) for state in successors], float)
    if kind not in ("binary", "soft"):
        raise ValueError(f"value {kind!r} is not known: use 'none', 'executor', 'binary' or 'soft'")
    counts = count_solutions(successors)
    if kind == "binary":
        return (counts > 0).astype(float)
    d_min = np.array([len(state.nums) - 1 for state in successors])
    return np.where(counts > 0, 1 - alpha * d_min + beta * np.log1p(counts), 0.0)
