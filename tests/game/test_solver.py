"""The solver against enumeration, known counts and the literal definitions."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from bench.bench_solver import naive_solutions
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.game import sets as problem_sets
from lib.game import solver
from lib.game.expression import BinOp, Num, evaluate, flattened, leaves, render
from lib.game.problem import Problem, as_problems

SYMBOLS = {"+": 1, "-": 2, "*": 3, "/": 4}


def as_tuple(expr):
    """A tree in the notation of `naive_solutions`."""
    if isinstance(expr, Num):
        return expr.value
    left = as_tuple(expr.left)
    right = as_tuple(expr.right)
    return (
        (expr.op, *sorted((left, right), key=repr)) if expr.op in "+*" else (expr.op, left, right)
    )


def held_out(n, count):
    name = {3: "3to4", 4: "3to4", 5: "5num"}[n]
    return [p for p in as_problems(problem_sets.load(name, "heldout_1000")) if len(p.nums) == n][
        :count
    ]


@pytest.mark.parametrize(
    ("n", "count"), [(1, 1), (2, 6), (3, 108), (4, 3240), (5, 136_080), (6, 7_348_320)]
)
def test_number_of_templates(n, count):
    assert solver.template_count(n) == count


def all_templates(n):
    return solver.label_rows(n, np.arange(solver.template_count(n))).tolist()


@pytest.mark.parametrize(("n", "functions"), [(3, 68), (4, 1170)])
def test_templates_are_all_trees_up_to_commuting(n, functions):
    # no relation among these but those that hold for all numbers
    generic = [1009, 2003, 4001, 8009][:n]
    trees = [solver.tree(row, generic) for row in all_templates(n)]
    assert len({as_tuple(tree) for tree in trees}) == solver.template_count(n)
    assert all(sorted(leaves(tree)) == sorted(generic) for tree in trees)
    assert len({evaluate(tree) for tree in trees}) == functions


@pytest.mark.parametrize(("n", "count"), [(2, 6), (3, 68), (4, 1260), (5, 32_632)])
def test_number_of_templates_up_to_associativity(n, count):
    generic = [1009, 2003, 4001, 8009, 16001][:n]
    trees = (solver.tree(row, generic) for row in all_templates(n))
    assert len({flattened(tree) for tree in trees}) == count


small = st.integers(-3, 12)
fractions = st.builds(Fraction, st.integers(-6, 6), st.integers(1, 6))
# beyond what doubles decide
huge = st.sampled_from([1, 3, 7, 10**6 + 3, 10**7, 10**7 + 19, 3 * 10**9])
numbers_and_target = st.one_of(
    *(
        st.tuples(st.lists(kind, min_size=1, max_size=size), kind)
        for kind, size in ((small, 4), (fractions, 3))
    ),
    st.tuples(st.lists(st.integers(1, 99), min_size=3, max_size=4), st.integers(1, 100)),
    st.tuples(st.lists(huge, min_size=2, max_size=3), huge),
)


@settings(max_examples=120, deadline=None)
@given(numbers_and_target)
def test_solutions_equal_enumeration(case):
    nums, target = case
    expected = naive_solutions(nums, target)
    trees = [as_tuple(tree) for tree in solver.solutions(Problem(tuple(nums), target))]
    assert len(trees) == len(set(trees))
    assert set(trees) == expected
    assert solver.is_solvable(nums, target) == bool(expected)


@pytest.mark.parametrize(
    "nums", [(7, 7, 3), (5, 5, 5), (9, 2, 9, 2), (4, 4, 4, 6), (3, 3, 3, 3), (1, 2, 3, 5)]
)
def test_equal_numbers_are_merged(nums):
    for target in range(13):
        trees = [as_tuple(tree) for tree in solver.solutions(Problem(nums, target))]
        assert set(trees) == naive_solutions(nums, target) and len(trees) == len(set(trees))


@pytest.mark.parametrize(("n", "count"), [(3, 60), (4, 25)])
def test_real_problems_equal_enumeration(n, count):
    for p in held_out(n, count):
        assert {as_tuple(tree) for tree in solver.solutions(p)} == naive_solutions(p.nums, p.target)


@pytest.mark.parametrize(("n", "count"), [(3, 200), (4, 100), (5, 10)])
def test_solutions_reach_the_target_with_all_numbers(n, count):
    for p in held_out(n, count):
        trees = solver.solutions(p)
        assert trees
        for tree in trees:
            assert evaluate(tree) == p.target
            assert sorted(leaves(tree)) == sorted(p.nums)


def test_six_numbers():
    p = Problem((97, 89, 83, 79, 73, 71), 100)
    trees = solver.solutions(p)
    assert len({as_tuple(tree) for tree in trees}) == len(trees) > 0
    assert all(evaluate(tree) == 100 and sorted(leaves(tree)) == sorted(p.nums) for tree in trees)
    assert solver.solutions(Problem((1, 1, 1, 1, 1, 1), 100)) == []
    with pytest.raises(ValueError, match="7 numbers"):
        solver.is_solvable(range(1, 8), 100)


@pytest.mark.parametrize(("n", "double_factorial"), [(3, 3), (4, 15), (5, 105), (6, 945)])
def test_sums_of_n_numbers(n, double_factorial):
    """There are (2n - 3)!! binary trees over n labelled leaves, up to commuting."""
    nums = (11, 17, 29, 47, 83, 97)[:n]
    sums = [
        t
        for t in map(repr, map(as_tuple, solver.solutions(Problem(nums, sum(nums)))))
        if not {*"-*/"} & {*t}
    ]
    assert len(sums) == double_factorial


def test_counts_have_the_known_quantiles():
    train = as_problems(problem_sets.load("3to4", "train"))[:6000]
    counts = solver.count_all(train)
    size = np.array([len(p.nums) for p in train])
    assert np.quantile(counts[size == 3], [0.5, 0.95]).tolist() == [5, 5]
    assert np.quantile(counts[size == 4], [0.5, 0.95]).tolist() == [5, 33]


def test_batches_agree_with_single_problems():
    mixed = (
        held_out(5, 5)
        + held_out(3, 60)
        + held_out(4, 160)
        + [Problem((2, 2, 4), 100), Problem((7,), 7)]
    )
    assert solver.count_all(mixed).tolist() == [len(solver.solutions(p)) for p in mixed]


def test_pure_sums_and_differences():
    assert len(solver.solutions(Problem((88, 58, 53), 23))) == 5  # 58 + 53 - 88
    assert len(solver.solutions(Problem((80, 40, 20, 9), 109))) == 33  # 80 + 40 - 20 + 9


def closure(expr):
    """All commuted forms of a tree, by the definition."""
    if isinstance(expr, Num):
        return {expr}
    pairs = list(product(closure(expr.left), closure(expr.right)))
    forms = {BinOp(expr.op, a, b) for a, b in pairs}
    return forms | {BinOp(expr.op, b, a) for a, b in pairs} if expr.op in "+*" else forms


def labels(expr, nums):
    row = [0] * (2 ** len(nums) - 1)
    distinct = sorted(set(nums))

    def fill(node, i):
        if isinstance(node, Num):
            row[i] = 6 + distinct.index(node.value)
        else:
            row[i] = SYMBOLS[node.op]
            fill(node.left, 2 * i + 1)
            fill(node.right, 2 * i + 2)

    fill(expr, 0)
    return tuple(row)


six = Problem((97, 89, 83, 79, 73, 2), 9)
repeating = [Problem((7, 7, 3), 17), Problem((6, 6, 6, 6), 24), Problem((65, 41, 65, 17), 67)]


@pytest.mark.parametrize(
    "p", [*held_out(3, 5), *held_out(4, 15), *held_out(5, 2), six, *repeating], ids=str
)
def test_forms_are_the_closure_under_commuting(p):
    expected = {labels(form, p.nums) for tree in solver.solutions(p) for form in closure(tree)}
    forms = solver.solution_forms(p)
    assert forms.dtype == np.uint8
    assert len(forms) == len(expected)
    assert set(map(tuple, forms.tolist())) == expected


def test_a_division_by_zero_is_no_part_of_a_solution():
    """Not even as a factor where the target is 0: 5 / 0 * (1 + 2) has no value."""
    trees = solver.solutions(Problem((0, 5, 1, 2), 0))
    assert trees and all(evaluate(tree) == 0 for tree in trees)


def test_states_may_hold_fractions():
    assert solver.is_solvable([Fraction(1, 3), 3], 1)
    assert evaluate(solver.solutions(Problem((Fraction(8, 3), 3, 8), 0))[0]) == 0
    assert not solver.is_solvable([Fraction(1, 3), 3], 2)


def test_levels_of_the_papers_own_examples():
    table7 = [
        ((24, 92, 65, 5), 37),
        ((62, 43, 11, 38), 13),
        ((78, 68, 73), 2),
        ((41, 65, 65, 17), 67),
    ]
    assert solver.levels([Problem(*case) for case in table7]) == ["L7", "L9", "L4", "L9"]


def test_levels_follow_table_3():
    rows = problem_sets.load("levels", "test").to_pandas()
    for group, n, needed, low, high in [
        ("L1", 3, "", 3, 999), ("L2", 3, "*", 3, 999), ("L3", 3, "*", 1, 2), ("L4", 3, "/", 1, 999),
        ("L5", 4, "", 4, 999), ("L6", 4, "*", 6, 999), ("L7", 4, "*", 1, 5), ("L8", 4, "/", 6, 999),
        ("L9", 4, "/", 1, 5),
    ]:  # fmt: skip
        members = as_problems(rows[rows["group"] == group])
        assert len(members) == 64 and solver.levels(members) == [group] * 64
        for p in members[:20]:
            trees = [repr(as_tuple(tree)) for tree in solver.solutions(p)]
            assert len(p.nums) == n and low <= len(trees) <= high
            assert any("/" not in tree for tree in trees) == (needed != "/")
            assert any("/" not in tree and "*" not in tree for tree in trees) == (needed == "")


def test_what_table_3_leaves_out_has_no_level():
    outside = [
        Problem((1, 1, 1), 100),
        Problem((1, 2, 3, 4), 10_000),
        Problem((1, 2, 3, 4, 5), 15),
        Problem((3, 4), 7),
    ]
    assert solver.levels(outside) == [None] * 4
    assert solver.profiles(outside)[1].tolist() == [3, 3, 0, 0]


@pytest.mark.parametrize(
    "nums, target, count",
    [
        ((10**400, 2), 3, 0),
        ((10**400, 2), 2 * 10**400, 1),
        ((2**63, 1), 2**63 - 1, 1),  # numpy would make floats of these two
        ((2**63, -1), 2**63 - 1, 1),
        ((Fraction(1, 2**53), Fraction(1, 2**53 + 1)), 0, 0),  # equal as doubles
    ],
)
def test_numbers_of_any_size_are_solved_exactly(nums, target, count):
    problem = Problem(nums, target)
    assert len(solver.solutions(problem)) == count == solver.count_all([problem])[0]


def test_the_template_that_the_module_draws():
    row = solver.label_rows(3, np.array([54]))[0].tolist()
    assert (
        row == [3, 7, 1, 0, 0, 6, 8] and render(solver.tree(row, (19, 35, 44))) == "35 * (19 + 44)"
    )
