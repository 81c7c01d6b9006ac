"""Microseconds a rollout of the rewards, the first look at each problem included, against Eq. 5 and
6 taken literally: the least recursive distance over every commuted form of every solution."""

import random
import time

from lib.game import distance, solver
from lib.game.expression import BinOp, parse, render
from lib.game.problem import as_problems
from lib.game.sets import load
from lib.game.solver import solutions
from lib.learn.demonstrations import random_expression, shuffle_operands
from lib.rewards import get_reward
from tests.game.test_distance import tree_distance

GROUP = 8


def groups(n: int, count: int) -> list:
    """Problems of n numbers with a group of answers each: half of them solutions with one operator
    changed."""
    rng = random.Random(n)
    name = "5num" if n == 5 else "3to4"
    chosen = [
        p for p in as_problems(load(name, "train").select(range(4 * count))) if len(p.nums) == n
    ][:count]
    result = []
    for problem in chosen:
        trees = []
        for i in range(GROUP):
            tree = rng.choice(solutions(problem)) if i % 2 else random_expression(problem.nums, rng)
            tree = shuffle_operands(tree, rng)
            trees.append(BinOp(rng.choice("+-*/"), tree.left, tree.right) if i % 4 == 1 else tree)
        result.append(
            (problem, [f"<think>\n</think>\n<answer>{render(tree)}</answer>" for tree in trees])
        )
    return result


def forget() -> None:
    """Empty the caches of single problems (not the tables that all problems share)."""
    for cached in (solver._solve, distance._solutions):
        cached.cache_clear()


def literal(completion: str, problem) -> int:
    """The least d_tree over S(x), every commuted form built and compared node by node."""

    def forms(tree):
        if not isinstance(tree, BinOp):
            return [tree]
        pairs = [(a, b) for a in forms(tree.left) for b in forms(tree.right)]
        swapped = [(b, a) for a, b in pairs] if tree.op in "+*" else []
        return [BinOp(tree.op, a, b) for a, b in pairs + swapped]

    answer = parse(completion.split("<answer>")[1].removesuffix("</answer>"))
    return min(
        tree_distance(answer, form) for solution in solutions(problem) for form in forms(solution)
    )


def microseconds(function, work, rollouts: int) -> float:
    forget()
    began = time.process_time()
    for problem, texts in work:
        function(texts, problem)
    return (time.process_time() - began) / rollouts * 1e6


def main() -> None:
    print("rewards: microseconds a rollout, groups of 8, each problem seen for the first time")
    for n, count in ((3, 400), (4, 400), (5, 60)):
        work = groups(n, count)
        sparse = microseconds(get_reward("sparse"), work, len(work) * GROUP)
        ast = microseconds(get_reward("ast"), work, len(work) * GROUP)
        few = work[:20]
        slow = microseconds(
            lambda texts, p: [literal(text, p) for text in texts], few, len(few) * GROUP
        )
        print(
            f"  {n} numbers: sparse {sparse:6.1f}   ast {ast:7.1f}   literal {slow:9.0f}   "
            f"{slow / ast:6.0f} times ast"
        )


if __name__ == "__main__":
    main()
