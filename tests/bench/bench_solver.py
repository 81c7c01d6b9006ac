"""How fast the solver is, one thread, against enumerating every expression in Fractions.

Every problem is solvable, every solution tree is found, and the numbers of solutions must agree.
Run it by `make bench` or `python tests/bench/bench_solver.py`."""

import sys
import time
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from lib.game import sets as problem_sets
from lib.game import solver
from lib.game.problem import Problem, as_problems

REQUIRED = {3: 300_000, 4: 20_000, 5: 300}  # problems per second, one thread
MEASURED = {3: 40_000, 4: 10_000, 5: 400, 6: 20}  # problems timed
NAIVE = {3: 300, 4: 10, 5: 1}


def naive_solutions(nums, target) -> set:
    """All solution trees up to commuting, as nested tuples (operator, left, right), by trying
    everything."""
    found = set()

    def tree(op, left, right):
        return (op, *sorted((left, right), key=repr)) if op in "+*" else (op, left, right)

    def search(pool):
        if len(pool) == 1 and pool[0][0] == target:
            found.add(pool[0][1])
        for i, j in combinations(range(len(pool)), 2):
            rest = [pool[k] for k in range(len(pool)) if k not in (i, j)]
            (a, s), (b, t) = pool[i], pool[j]
            search([*rest, (a + b, tree("+", s, t))])
            search([*rest, (a * b, tree("*", s, t))])
            for (x, u), (y, v) in ((pool[i], pool[j]), (pool[j], pool[i])):
                search([*rest, (x - y, tree("-", u, v))])
                if y:
                    search([*rest, (x / y, tree("/", u, v))])

    search([(Fraction(value), value) for value in nums])
    return found


def seconds(work, *arguments) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def solvable_problems(n: int, count: int) -> list[Problem]:
    """`count` problems of n numbers, from the committed sets, repeated if there are too few."""
    name, split = (
        ("3to4", "train") if n < 5 else ("5num", "train") if n == 5 else ("6num", "test_50")
    )
    rows = [p for p in as_problems(problem_sets.load(name, split)) if len(p.nums) == n]
    return (rows * (count // len(rows) + 1))[:count]


def main() -> None:
    print("numbers   problems/s   required   naive/s   ratio   solutions a problem")
    for n, count in MEASURED.items():
        problems = solvable_problems(n, count)
        nums = np.array([p.nums for p in problems])
        targets = np.array([p.target for p in problems])
        found, _ = solver.enumerate_solutions(nums, targets)
        rate = count / min(seconds(solver.enumerate_solutions, nums, targets) for _ in range(3))
        naive, ratio = compare(problems[: NAIVE[n]], rate) if n in NAIVE else ("-", "-")
        required = f"{REQUIRED[n]:,}" if n in REQUIRED else "-"
        print(
            f"{n:7} {rate:12,.0f} {required:>10} {naive:>9} {ratio:>7} {len(found) / count:21.1f}",
            flush=True,
        )

    data = solvable_problems(3, 245_157) + solvable_problems(4, 245_157)
    print(
        f"count_all {len(data):,} problems of 3 and 4 numbers: "
        f"{seconds(solver.count_all, data):.1f} s"
    )

    fours = solvable_problems(4, 2000)
    solver._solve.cache_clear()
    first = seconds(lambda: [solver.solution_forms(p) for p in fours]) / len(fours)
    print(f"solution_forms, first call, 4 numbers: {1000 * first:.3f} ms a problem")


def compare(problems: list[Problem], rate: float) -> tuple[str, str]:
    """Problems per second by `naive_solutions`, and how many times as fast `rate` is."""
    start = time.perf_counter()
    counts = [len(naive_solutions(p.nums, p.target)) for p in problems]
    naive = len(problems) / (time.perf_counter() - start)
    assert counts == solver.count_all(problems).tolist()
    return f"{naive:,.1f}", f"{rate / naive:,.0f}"


if __name__ == "__main__":
    main()
