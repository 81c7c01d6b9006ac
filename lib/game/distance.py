"""The distance of an answer from a solution: Eq. 5 and 6 of "Dense Rewards for RLVR on Countdown
via ASTs" (Elbakry).

Eq. 6 lays two trees on each other, root on root, may swap the operands of a + or * that both trees
have, and counts the nodes that differ. Eq. 5 is the minimum of this over all solutions. No
recursion is needed here: `solver.solution_forms` holds every commuted form of every solution, so
the distance is the least number of positions whose labels differ."""

from functools import lru_cache
from math import inf

import numpy as np

from lib.game.expression import Expr, children
from lib.game.problem import Problem
from lib.game.solver import label, number_labels, solution_forms, tree


def distance_to_solutions(expr: Expr | None, problem: Problem) -> float:
    """d (Eq. 5) of an expression, or of the empty tree None: a number of nodes, or infinite without
    a solution."""
    differing, outside = _differing(expr, problem)
    # a sum in uint8 would wrap around
    return float(int(differing.min()) + outside) if differing.size else inf


def nearest_solution(expr: Expr | None, problem: Problem) -> Expr | None:
    """A solution at that distance, commuted so that exactly these nodes differ, position by
    position. None without a solution."""
    differing, _ = _differing(expr, problem)
    if not differing.size:
        return None
    positions, labels = _solutions(problem.key)
    return tree(positions[:, differing.argmin()].tolist(), list(labels))


def _differing(expr: Expr | None, problem: Problem) -> tuple[np.ndarray, int]:
    """The number of positions at which each form of a solution has another label than the tree,
    uint8 (forms,); and the number of the tree's nodes that lie outside all forms."""
    positions, labels = _solutions(problem.key)
    if not positions.size:
        return np.empty(0, np.uint8), 0
    row = bytearray(len(positions))
    outside = 0
    stack = [(expr, 0)]
    while stack:
        node, at = stack.pop()
        if node is None:
            continue
        if at < len(row):
            row[at] = label(node, labels)
        else:
            outside += 1
        stack += zip(children(node), (2 * at + 1, 2 * at + 2), strict=True)
    mine = np.frombuffer(row, np.uint8)
    return (positions != mine[:, None]).view(np.uint8).sum(axis=0, dtype=np.uint8), outside


@lru_cache(maxsize=256)
def _solutions(key: tuple) -> tuple[np.ndarray, dict]:
    """The `solution_forms` as (positions, forms), which makes sums over positions fast, and each
    number's label."""
    return np.ascontiguousarray(solution_forms(Problem(*key)).T), number_labels(key[0])
