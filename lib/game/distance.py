"""How far an answer is from a solution: Eq. 5 and 6 of "Dense Rewards for RLVR on Countdown via ASTs" (Elbakry, 2026).

`tree_distance` is Eq. 6 as the paper writes it. `distance_to_solutions` is its minimum over all solutions (Eq. 5)
without the recursion: `solver.solution_forms` holds every commuted form of every solution, so the swaps of Eq. 6 are
done, and the least distance is the least number of positions whose labels differ.
"""

from functools import lru_cache
from math import inf

import numpy as np

from lib.game.expression import BinOp, Expr, children, nodes
from lib.game.problem import Problem
from lib.game.solver import label, number_labels, solution_forms, tree


def tree_distance(a: Expr | None, b: Expr | None) -> int:
    """d_tree (Eq. 6): the nodes that differ when two trees are laid on each other root to root, where either may swap
    the operands of a shared + or *. None is the empty tree."""
    if a is None or b is None:
        return sum(1 for _ in nodes(a)) + sum(1 for _ in nodes(b))
    (a_left, a_right), (b_left, b_right) = children(a), children(b)
    cost = tree_distance(a_left, b_left) + tree_distance(a_right, b_right)
    if isinstance(a, BinOp) and isinstance(b, BinOp) and a.op == b.op and a.op in "+*":
        cost = min(cost, tree_distance(a_left, b_right) + tree_distance(a_right, b_left))
    return cost + (_content(a) != _content(b))


def _content(expr: Expr) -> tuple:
    """What a node says without its children: its kind with its number or operator."""
    return type(expr), getattr(expr, "value", None), getattr(expr, "op", None)


def distance_to_solutions(expr: Expr | None, problem: Problem) -> float:
    """d (Eq. 5): the least `tree_distance` from an expression, or from the empty tree None, to a solution of the
    problem, a whole number of nodes; infinite if it has none."""
    differing, outside = _differing(expr, problem)
    return float(int(differing.min()) + outside) if differing.size else inf  # in uint8 the sum would wrap around


def nearest_solution(expr: Expr | None, problem: Problem) -> Expr | None:
    """A solution at that distance, commuted so that just these nodes differ, position by position; None if there is no
    solution."""
    differing, _ = _differing(expr, problem)
    if not differing.size:
        return None
    positions, labels = _solutions(problem.key)
    return tree(positions[:, differing.argmin()].tolist(), list(labels))


def _differing(expr: Expr | None, problem: Problem) -> tuple[np.ndarray, int]:
    """For each form of a solution how many of its positions hold another label than the tree's, uint8 (forms,); and how
    many of the tree's nodes lie outside all forms."""
    positions, labels = _solutions(problem.key)
    if not positions.size:
        return np.empty(0, np.uint8), 0
    row, outside = bytearray(len(positions)), 0
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
    """solution_forms as (positions, forms), so that sums over positions run along the forms; each number's label."""
    return np.ascontiguousarray(solution_forms(Problem(*key)).T), number_labels(key[0])
