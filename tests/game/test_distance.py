"""Eq. 5 and 6 of `ast`: by hand, by their properties, and against the literal minimum over all
permutations."""

import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.game.distance import distance_to_solutions, nearest_solution
from lib.game.expression import BinOp, Expr, Neg, Num, canonical, children, evaluate, parse, render
from lib.game.problem import Problem
from lib.game.sets import load
from lib.game.solver import solutions
from lib.learn.demonstrations import random_expression

PAPER = Problem((44, 19, 35), 98)
TREES = st.recursive(
    st.integers(0, 99).map(Num),
    lambda tree: tree.map(Neg) | st.builds(BinOp, st.sampled_from("+-*/"), tree, tree),
    max_leaves=12,
)


def size(expr: Expr | None) -> int:
    return 0 if expr is None else 1 + sum(map(size, children(expr)))


def tree_distance(a: Expr | None, b: Expr | None) -> int:
    """Eq. 6 as the paper writes it; None is the empty tree."""
    if a is None or b is None:
        return size(a) + size(b)
    (a_left, a_right), (b_left, b_right) = children(a), children(b)
    cost = tree_distance(a_left, b_left) + tree_distance(a_right, b_right)
    if isinstance(a, BinOp) and isinstance(b, BinOp) and a.op == b.op and a.op in "+*":
        cost = min(cost, tree_distance(a_left, b_right) + tree_distance(a_right, b_left))
    return cost + (positions(a)[0] != positions(b)[0])


def reaches(tree: Expr, target: int) -> bool:
    try:
        return evaluate(tree) == target
    except ZeroDivisionError:
        return False


def positions(expr: Expr | None, at: int = 0) -> dict:
    """The node at each position of a tree: 0 is the root, 2i + 1 and 2i + 2 are the children of
    i."""
    if expr is None:
        return {}
    (left, right), node = (
        children(expr),
        (type(expr), getattr(expr, "value", getattr(expr, "op", ""))),
    )
    return {at: node} | positions(left, 2 * at + 1) | positions(right, 2 * at + 2)


def every_tree(nums):
    """Every binary tree over `nums` in this order, with every choice of operators."""
    if len(nums) == 1:
        yield Num(nums[0])
    for cut in range(1, len(nums)):
        for left in every_tree(nums[:cut]):
            for right in every_tree(nums[cut:]):
                yield from (BinOp(op, left, right) for op in "+-*/")


def literal_solutions(problem: Problem) -> list:
    """S(x) of `ast`, Section 3.3, step 2: a tree for every permutation, kept if it reaches the
    target."""
    trees = (tree for order in set(permutations(problem.nums)) for tree in every_tree(order))
    return [tree for tree in trees if reaches(tree, problem.target)]


@pytest.mark.parametrize(
    "a, b, d",
    [
        ("(35 + 19) - 44", "(35 + 19) + 44", 1),  # the paper's: one operator
        ("44 + 19", "44 + 19", 0),
        ("44 + 19", "19 + 44", 0),  # + and * commute
        ("44 - 19", "19 - 44", 2),  # - and / do not
        ("44 - 19", "19 + 44", 3),  # a swap takes the same operator on both sides
        ("(1 + 2) + 3", "1 + (2 + 3)", 2),  # swapped at the root, 1 and 3 differ
        ("7", "7", 0),
        ("7", "8", 1),
        ("7", "7 + 8", 3),  # the root differs, and two leaves have no counterpart
        ("1 + (2 * 3)", "1 + 4", 3),  # the label, and the two leaves under it
        ("-7", "7", 2),
        ("-7", "-8", 1),
        ("--7", "-7", 2),
        ("-7", "7 + 1", 2),  # the operand of a sign lies on the left, on 7
        ("(1 * 2) + (3 * 4)", "(4 * 3) + (2 * 1)", 0),  # swaps at every level
    ],
)
def test_distances_by_hand(a, b, d):
    assert tree_distance(parse(a), parse(b)) == tree_distance(parse(b), parse(a)) == d


def test_a_missing_tree_costs_the_size_of_the_other():
    assert tree_distance(None, None) == 0
    assert (
        tree_distance(parse("(35 + 19) - 44"), None)
        == tree_distance(None, parse("(35 + 19) - 44"))
        == 5
    )


@given(TREES, TREES)
def test_distance_is_symmetric_and_bounded(a, b):
    d = tree_distance(a, b)
    assert d == tree_distance(b, a)
    assert abs(size(a) - size(b)) <= d <= max(size(a) + size(b) - 1, 0)  # two roots share one place


@given(TREES, TREES)
def test_distance_zero_means_equal_up_to_commuting(a, b):
    assert (tree_distance(a, b) == 0) == (canonical(a) == canonical(b))
    assert tree_distance(a, canonical(a)) == 0


@pytest.mark.parametrize("n, count", [(3, 12), (4, 3)])
def test_the_distance_is_the_minimum_over_every_permutation(n, count):
    """The literal definition, min of Eq. 6 over S(x), for answers near and far, with repeated
    numbers and signs."""
    rng = random.Random(n)
    rows = [row for row in load("3to4", "heldout_1000") if len(row["nums"]) == n]
    problems = [Problem(tuple(row["nums"]), row["target"]) for row in rng.sample(rows, count)]
    if n == 3:
        problems += [Problem((5, 5, 10), 20), Problem((7, 7, 2), 2)]
    for problem in problems:
        reference = literal_solutions(problem)
        assert reference
        trees = list(every_tree(rng.sample(problem.nums, n)))
        answers = [*rng.sample(trees, 4), rng.choice(reference), Num(problem.nums[0])]
        answers += [
            parse(f"-({render(answers[0])})"),
            parse(f"{problem.nums[0]} + 1 * 2 * 3 * 4 * 5 * 6"),
        ]
        for tree in answers:
            assert distance_to_solutions(tree, problem) == min(
                tree_distance(tree, solution) for solution in reference
            )


def test_a_tree_of_more_nodes_than_a_byte_counts_is_far_away():
    tree = parse("-" * 250 + "(44 + 19 - 35)")
    assert (
        distance_to_solutions(tree, PAPER)
        == min(tree_distance(tree, s) for s in literal_solutions(PAPER))
        > 250
    )


def test_one_representative_a_solution_is_not_enough():
    """Why the minimum runs over commuted forms: Eq. 6 swaps only where both operators agree."""
    tree = parse("35 - (44 + 19)")
    problem = PAPER
    kept = min(tree_distance(tree, solution) for solution in solutions(problem))
    assert (
        distance_to_solutions(tree, problem)
        == min(tree_distance(tree, s) for s in literal_solutions(problem))
        <= kept
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_the_nearest_solution_differs_in_as_many_nodes_as_the_reward_counts(seed):
    rng = random.Random(seed)
    nums = tuple(rng.randrange(1, 12) for _ in range(rng.choice([3, 4])))
    problem = Problem(nums, rng.randrange(1, 60))
    answer = random_expression(nums if rng.random() < 0.8 else (*nums, 5), rng)
    nearest = nearest_solution(answer, problem)
    if not solutions(problem):
        assert nearest is None
        return
    mine = positions(answer)
    theirs = positions(nearest)
    differ = sum(mine.get(at) != theirs.get(at) for at in mine.keys() | theirs.keys())
    assert differ == distance_to_solutions(answer, problem)
    assert distance_to_solutions(nearest, problem) == 0
