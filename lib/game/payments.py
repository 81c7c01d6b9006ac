"""What rewards pay a game of the agent: by how it ends, or action by action.

The rewards keep the weights of lib/rewards.py, and lib/learn/payoffs.py, which computes with them,
says which of them coincide. Nothing here needs torch, so that a run's reward can be checked before
anything heavy is loaded. `ast` is Eq. 8 of "Dense Rewards for RLVR on Countdown via ASTs", `dense`
Eq. 6 of "Enhancing RLOO with Dense Symbolic Rewards", `values` Eq. 9 of "Countdown as an Agentic
Optimization Problem"."""

from collections.abc import Callable
from math import exp
from typing import NamedTuple

import numpy as np

from lib.game import mdp
from lib.game.distance import distance_to_solutions
from lib.game.mdp import Action
from lib.game.problem import Problem


class End(NamedTuple):
    """One way in which a game can end: after these legal actions, all of them or the last tag
    illegal. counts: the number of solutions of the state behind each action, 1 for a game that is
    won."""

    problem: Problem
    history: tuple[Action, ...]
    counts: tuple[int, ...]
    illegal: bool

    @property
    def won(self) -> bool:
        return not self.illegal and self.counts[-1] > 0


# What one legal action earns, from c, the solutions of the state behind it, and the count of
# numbers left there
STEP_REWARDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "outcome": lambda c, left: 1.0 * ((c > 0) & (left == 1)),
    # R_progress of `dense`, Section 7, read as a count, with a weight of a quarter
    "progress": lambda c, left: 1.0 * ((c > 0) & (left == 1)) + 0.25 * (c > 0),
    "values": lambda c, left: np.where(c > 0, 1 - 0.2 * (left - 1) + 0.05 * np.log1p(c), 0.0),
}


def _sparse(end: End) -> float:
    """Eq. 4 of `ast`: a finished game is an answer, and an illegal tag is none."""
    return 1.0 if end.won else 0.0 if end.illegal else 0.1


def _fined(end: End) -> float:
    """Right or wrong, and a fine of a half for an illegal tag: more than four times that of
    `sparse`."""
    return 1.0 if end.won else -0.5 if end.illegal else 0.0


def _dense(end: End) -> float:
    """Eq. 6 of `dense` with the weights .05, .05 and 0, bounded: each legal action is a legal
    step."""
    room = len(end.problem.nums) - 1
    legal = len(end.history) / (len(end.history) + room)
    invalid = 1 / (1 + room) if end.illegal else 0.0
    return _sparse(end) + 0.05 * legal - 0.05 * invalid


def _ast(tau: float) -> Callable[[End], float]:
    """Eq. 8 of `ast`: the sparse reward, and closeness for a finished wrong game."""

    def paid(end: End) -> float:
        if end.won or end.illegal:
            return _sparse(end)
        built = mdp.expression(end.problem, end.history)
        return 0.1 + 0.5 * exp(-distance_to_solutions(built, end.problem) / tau)

    return paid


END_REWARDS: dict[str, Callable[[End], float]] = {
    "sparse": _sparse,
    "fined": _fined,
    "dense": _dense,
}
END_REWARDS |= {f"ast{tau}": _ast(tau) for tau in (1, 2, 4)}
REWARDS = [*STEP_REWARDS, *END_REWARDS]


def paid(end: End, reward: str) -> float:
    """What a reward of REWARDS pays a game that ends so."""
    if reward in END_REWARDS:
        return END_REWARDS[reward](end)
    counts = np.array(end.counts, int)
    # how many numbers are left after each action
    left = len(end.problem.nums) - 1 - np.arange(len(counts))
    return float(STEP_REWARDS[reward](counts, left).sum())
