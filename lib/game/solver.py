r"""Finds all solutions of countdown problems, exactly, for large batches of problems at once.

A *template* is an expression with holes: a binary tree over the slots 0 .. n-1, which the numbers
of a problem fill in ascending order. Trees that differ only in the order of the operands of a + or
* are one template. There are 108, 3,240 and 136,080 templates of 3, 4 and 5 slots. They are
numbered and not stored:

          *
        /   \
      s1     +
            / \
          s0   s2

This is template 54 of three slots; with 19, 35, 44 it is 35 * (19 + 44). Its id follows from three
choices. The split: {1} on the left and {0, 2} on the right; the splits {0}, {1} and {2} have a
block of 36 ids each, so that this one starts at 36. The operation of the root, one of l + r, l - r,
r - l, l * r, l / r, r / l: the fourth, worth 3 * 6. And a template of each part: there is one of
one slot, and there are six of two slots, s0 + s2 first. 36 + 18 + 0 = 54.

The left part is the smaller one; of two equal parts it is the one that holds slot 0. `_groups`
lists the splits.

A batch is solved in three steps.

1. The values of all templates over all sets of s slots are computed for s = 1, 2, ..., n - 1, as
   exact fractions: two float64 arrays, the numerators and the denominators.
2. The root is never evaluated. For each value of the left part and each operation there is only one
   value that the right part must have, so the two halves are matched by comparing quotients.
3. That comparison is exact. A quotient of two integers is correctly rounded, so equal rationals
   have equal doubles, and different ones have different doubles as long as |n1 * d2| < 2**52.
   Problems beyond that bound are solved in the same way with Python integers and Fractions; no
   problem of six numbers below 100 with a target up to 100 is one of them.

A tree is also written as a row of labels. Position 0 is the root, and positions 2i + 1 and 2i + 2
are the children of position i. A label is 0 for an empty position, 1 to 4 for + - * /, 5 for a
unary minus (never in a solution), and 6 + i for the i-th smallest distinct number. Template 54 is
the row 3, 7, 1, 0, 0, 6, 8."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

from lib.files import progress
from lib.game.expression import BinOp, Expr, Neg, Num
from lib.game.problem import MAX_NUMBERS, Problem

LABEL = {"+": 1, "-": 2, "*": 3, "/": 4, Neg: 5}
# labels of the smallest number, and of a number that is not the problem's
FIRST_NUMBER = 6
FOREIGN = 255
# The six operations of a (left, right) split, in the order of template ids: l+r, l-r, r-l, l*r,
# l/r, r/l.
SPLIT_LABELS = np.array([1, 2, 2, 3, 4, 4], np.uint8)
REVERSED = np.array([False, False, True, False, False, True])
# Problems evaluated together, by their size (measured: larger arrays do not fit into the caches).
BATCH = {2: 8192, 3: 2048, 4: 128, 5: 4, 6: 1}
# `agent`, Table 3. By the count of numbers, for + and -, for *, and for /: the group of problems
# with many solutions, the least number that counts as many, and the group of problems with fewer.
LEVELS = {
    3: [("L1", 3, None), ("L2", 3, "L3"), ("L4", 1, None)],
    4: [("L5", 4, None), ("L6", 6, "L7"), ("L8", 6, "L9")],
}


# --- templates ------------------------------------------------------------------------------------


@lru_cache
def _groups(n: int) -> list[tuple[int, list[tuple[tuple, tuple]]]]:
    """The splits of slots 0..n-1, grouped by the size k of the left part: (k, [(left, right),
    ...])."""
    groups = []
    for k in range(1, n // 2 + 1):
        lefts = [left for left in combinations(range(n), k) if 2 * k < n or 0 in left]
        groups.append((k, [(left, _others(left, n)) for left in lefts]))
    return groups


def _others(part: tuple, n: int) -> tuple:
    """The slots of 0..n-1 that are not in a part."""
    return tuple(i for i in range(n) if i not in part)


@lru_cache
def template_count(n: int) -> int:
    """The number of binary trees over n distinct numbers, up to commuting + and *."""
    if n == 1:
        return 1
    count = 0
    for k, splits in _groups(n):
        count += 6 * len(splits) * template_count(k) * template_count(n - k)
    return count


@lru_cache
def _members(n: int, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The splits of every set of `size` slots out of n, as one pair of arrays (sets, splits) per
    group of `_groups`. The arrays say which set of its size the left part is, and which one the
    right part is."""
    index = {}
    for smaller in range(1, size):
        for i, part in enumerate(combinations(range(n), smaller)):
            index[part] = i

    def index_of(slots: tuple, part: tuple) -> int:
        return index[tuple(slots[i] for i in part)]

    groups = []
    for _, splits in _groups(size):
        lefts = []
        rights = []
        for slots in combinations(range(n), size):
            lefts.append([index_of(slots, left) for left, _ in splits])
            rights.append([index_of(slots, right) for _, right in splits])
        groups.append((np.array(lefts), np.array(rights)))
    return groups


@lru_cache
def _positions(levels: int, at: int) -> np.ndarray:
    """The positions in a label row that the part of a tree with its root at position `at` takes."""
    depth = np.repeat(np.arange(levels), 2 ** np.arange(levels))
    return np.arange(2**levels - 1) + at * 2**depth


def _decode(n: int, ids: np.ndarray) -> np.ndarray:
    """Label rows (len(ids), 2**n - 1) of templates, with label 6 + i for slot i."""
    rows = np.zeros((len(ids), 2**n - 1), np.uint8)
    if n == 1:
        rows[:] = FIRST_NUMBER
    start = 0
    for k, splits in _groups(n):
        shape = (6, template_count(k), template_count(n - k))
        for parts in splits:
            chosen = np.flatnonzero((ids >= start) & (ids < start + np.prod(shape)))
            operation, *below = np.unravel_index(ids[chosen] - start, shape)
            rows[chosen, 0] = SPLIT_LABELS[operation]
            for is_right, part, template in zip((False, True), parts, below, strict=True):
                names = np.r_[:FIRST_NUMBER, FIRST_NUMBER + np.array(part)].astype(np.uint8)
                for child in (1, 2):
                    mine = 1 + (REVERSED[operation] ^ is_right) == child
                    at = np.ix_(chosen[mine], _positions(len(part), child))
                    rows[at] = names[label_rows(len(part), template[mine])]
            start += np.prod(shape)
    return rows


@lru_cache
def _table(n: int) -> np.ndarray:
    return _decode(n, np.arange(template_count(n)))


def label_rows(n: int, ids: np.ndarray) -> np.ndarray:
    """The label rows of templates over n slots, uint8 (len(ids), 2**n - 1), with label 6 + i for
    slot i."""
    # the table for six would take 460 MB
    return _table(n)[ids] if n < MAX_NUMBERS else _decode(n, ids)


# --- evaluation -----------------------------------------------------------------------------------


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """The quotients; nan, which equals nothing, for 0/0. They are Fractions if the arrays hold
    Python integers."""
    if numerator.dtype != object:
        return numerator / denominator
    return np.frompyfunc(lambda p, q: Fraction(p, q) if q else float("nan"), 2, 1)(
        numerator, denominator
    )  # pyright: ignore[reportReturnType]


def _combine(left: tuple, right: tuple) -> tuple[np.ndarray, np.ndarray]:
    """All six operations on fractions (numerator, denominator) of shapes (..., L, 1, batch) and
    (..., 1, R, batch), as fractions (..., 6, L, R, batch). A division by zero gives 0/0, and so
    does everything that is computed from it."""
    n, d = left
    m, e = right
    x = n * e
    y = m * d
    z = d * e
    numerator = np.empty((*x.shape[:-3], 6, *x.shape[-3:]), x.dtype)
    denominator = np.empty_like(numerator)
    results = [  # in the order of SPLIT_LABELS
        (x + y, z),
        (x - y, z),
        (y - x, z),
        (n * m, z),
        (x * (y != 0), y),
        (y * (x != 0), x),
    ]
    for i, (over, under) in enumerate(results):
        numerator[..., i, :, :, :] = over
        denominator[..., i, :, :, :] = under
    return numerator, denominator


def _needed(left: tuple, target: tuple) -> np.ndarray:
    """The value that the right part must have, for each operation, so that the tree equals the
    target."""
    n, d = left
    p, q = target
    pd = p * d
    nq = n * q
    qd = q * d
    needed = [  # in the order of SPLIT_LABELS
        (pd - nq, qd),
        (nq - pd, qd),
        (pd + nq, qd),
        (pd, q * n),
        (nq, pd * (n != 0)),
        (p * n, qd * (n != 0)),
    ]
    numerators, denominators = zip(*needed, strict=True)
    return _ratio(np.stack(numerators, axis=-4), np.stack(denominators, axis=-4))


def _meet(left: tuple, right: np.ndarray, target: tuple) -> np.ndarray:
    """Which combinations reach the target, bool (splits, 6, L, R, batch): those whose right part
    has the needed value. left: fractions (splits, L, 1, batch). right: values (splits, 1, R,
    batch)."""
    hit = _needed(left, target) == right[:, None]
    if not target[0].all():  # 0 * r = 0 and 0 / r = 0 do not determine r
        valid = right == right
        free = (target[0] == 0) & (left[0] == 0) & (left[1] != 0)
        hit[:, 3] |= free & valid
        hit[:, 4] |= free & valid & (right != 0)
    return hit


@np.errstate(divide="ignore", invalid="ignore")  # `_ratio` divides by zero
def _evaluate(numbers: tuple, target: tuple) -> tuple[np.ndarray, np.ndarray]:
    """(problem, template id) of every template that reaches the target, ordered by problem. Numbers
    and target are fractions (numerator, denominator), as arrays (n, batch) and (batch,)."""
    n, batch = numbers[0].shape
    # 1. The values of all templates over all smaller sets of slots
    # set size -> fractions (sets, templates, batch)
    values = {1: tuple(v[:, None] for v in numbers)}
    for size in range(2, n):
        parts = []
        for (k, _), (left, right) in zip(_groups(size), _members(n, size), strict=True):
            lefts = tuple(v[left][:, :, :, None] for v in values[k])
            rights = tuple(v[right][:, :, None] for v in values[size - k])
            results = _combine(lefts, rights)
            parts.append([v.reshape(comb(n, size), -1, batch) for v in results])
        values[size] = tuple(np.concatenate(v, axis=1) for v in zip(*parts, strict=True))

    # 2. At the root, the left parts whose right part has the value that it must have
    problems = []
    templates = []
    start = 0
    for (k, _), (left, right) in zip(_groups(n), _members(n, n), strict=True):
        lefts = tuple(v[left[0]][:, :, None] for v in values[k])
        rights = _ratio(*values[n - k])[right[0]][:, None]
        hit = _meet(lefts, rights, target)
        template, problem = np.divmod(np.flatnonzero(hit), batch)
        problems.append(problem)
        templates.append(template + start)
        start += hit.size // batch
    problem = np.concatenate(problems)
    template = np.concatenate(templates)
    order = np.argsort(problem, kind="stable")
    return problem[order], template[order]


def _as_fractions(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numerators and denominators of an array of integers, or of objects (int, Fraction)."""
    if values.dtype != object:
        return values, np.ones_like(values)
    numerator, denominator = (
        np.frompyfunc(lambda v, a=a: getattr(v, a), 1, 1) for a in ("numerator", "denominator")
    )
    return numerator(values), denominator(values)


def enumerate_solutions(nums: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All solutions of many problems: two arrays (problem, template id), ordered by problem. nums
    (problems, n) and targets (problems,) hold integers, or objects (int, Fraction). If equal
    numbers give several templates the same tree, only the first of these is returned. Raises
    ValueError for more than six numbers."""
    nums = np.sort(nums, axis=1)
    targets = np.asarray(targets)
    problems, n = nums.shape
    if not 1 <= n <= MAX_NUMBERS:
        raise ValueError(f"a problem of {n} numbers: the solver takes 1 to {MAX_NUMBERS}")
    if n == 1:
        problem = np.flatnonzero(nums[:, 0] == targets)
        return problem, np.zeros_like(problem)
    numbers = _as_fractions(nums)
    target = _as_fractions(targets)
    larger = (np.maximum(np.maximum(abs(p), q), 1) for p, q in (numbers, target))
    # a float cannot hold 10**400
    weights = [np.minimum(size, 2**52).astype(float) for size in larger]
    # bounds |n1 * d2| of any two values compared
    exact = 2.0 ** (n - 1) * weights[0].prod(axis=1) * weights[1] < 2**52
    found = []
    for start in range(0, problems, BATCH[n]):
        chunk = slice(start, start + BATCH[n])
        kind = float if exact[chunk].all() else object
        problem, template = _evaluate(
            tuple(np.ascontiguousarray(v[chunk].T.astype(kind)) for v in numbers),
            tuple(v[chunk].astype(kind) for v in target),
        )
        found.append((problem + start, template))
    problem, template = (np.concatenate(v) for v in zip(*found, strict=True))
    return _merge_equal_numbers(nums, problem, template)


def _merge_equal_numbers(nums: np.ndarray, problem: np.ndarray, template: np.ndarray) -> tuple:
    """Of the solutions of a problem that equal numbers make the same tree, the first one alone."""
    repeats = (nums[:, 1:] == nums[:, :-1]).any(axis=1)[problem]
    if not repeats.any():
        return problem, template
    at = np.flatnonzero(repeats)
    slots = label_rows(nums.shape[1], template[at])
    rows = _rename(slots, _slot_labels(nums[problem[at]]))
    trees = np.stack([problem[at], _tree_keys(rows)])
    _, first = np.unique(trees, axis=1, return_index=True)
    keep = ~repeats
    keep[at[first]] = True
    return problem[keep], template[keep]


def _tree_keys(rows: np.ndarray) -> np.ndarray:
    """A number for each label row. Rows get equal numbers if they are the same tree up to
    commuting."""
    depth = rows.shape[1].bit_length()
    starts = 2 ** np.arange(1, depth) - 1  # of the levels below the root
    levels = np.split(rows.astype(np.int64), starts, axis=1)
    keys = levels.pop()
    for labels in reversed(levels):  # computes the keys of a level's trees from their children's
        left = keys[:, ::2]
        right = keys[:, 1::2]
        swap = _commutative(labels) & (left > right)
        first = np.where(swap, right, left)
        second = np.where(swap, left, right)
        base = keys.max() + 1
        codes = (labels * base + first) * base + second
        keys = np.unique(codes, return_inverse=True)[1].reshape(codes.shape)
    return keys[:, 0]


def _commutative(labels: np.ndarray) -> np.ndarray:
    return (labels == 1) | (labels == 3)


def _slot_labels(nums: np.ndarray) -> np.ndarray:
    """The label of the number in each slot, for sorted nums (..., n); equal numbers share one
    label."""
    steps = np.diff(nums, axis=-1, prepend=nums[..., :1]) != 0
    return (FIRST_NUMBER + np.cumsum(steps, axis=-1)).astype(np.uint8)


def _rename(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Replaces slot labels by number labels. rows: (r, width); labels: (n,) or (r, n)."""
    names = np.empty((len(rows), FIRST_NUMBER + labels.shape[-1]), np.uint8)
    names[:, :FIRST_NUMBER] = np.arange(FIRST_NUMBER)  # operations keep their labels
    names[:, FIRST_NUMBER:] = labels
    return np.take_along_axis(names, rows.astype(np.intp), axis=1)


# --- one problem ----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _solve(nums: tuple, target: int | Fraction) -> np.ndarray:
    """Label rows (solutions, 2**n - 1) of the problem; `nums` must be sorted."""
    numbers = np.array(nums, object)
    _, template = enumerate_solutions(numbers[None], np.array([target], object))
    return _rename(label_rows(len(nums), template), _slot_labels(numbers))


def number_labels(nums: Iterable) -> dict:
    """The label of each different number of a problem, in ascending order."""
    return {number: FIRST_NUMBER + i for i, number in enumerate(sorted(set(nums)))}


def label(node: Expr, numbers: dict) -> int:
    """The label of a node in a label row. numbers: the result of `number_labels`."""
    match node:
        case Num(value):
            return numbers.get(value, FOREIGN)
        case Neg():
            return LABEL[Neg]
    return LABEL[node.op]


def tree(row: Sequence[int], numbers: Sequence, i: int = 0) -> Expr:
    """The tree below position i of a label row. numbers: the problem's distinct numbers, in
    ascending order."""
    if row[i] >= FIRST_NUMBER:
        return Num(numbers[row[i] - FIRST_NUMBER])
    left = tree(row, numbers, 2 * i + 1)
    right = tree(row, numbers, 2 * i + 2)
    return BinOp(" +-*/"[row[i]], left, right)


def solutions(problem: Problem) -> list[Expr]:
    """All solution trees of a problem, up to commuting + and *. Trees that equal numbers make alike
    appear once. The problem's numbers and target may be Fractions."""
    numbers = sorted(set(problem.nums))
    return [tree(row, numbers) for row in _solve(*problem.key).tolist()]


def is_solvable(nums: Iterable, target: int | Fraction) -> bool:
    """Whether some expression that uses each number once equals the target. The numbers are
    integers or Fractions."""
    return len(_solve(tuple(sorted(nums)), target)) > 0


def solvable_in_integers(nums: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Which problems have a solution whose intermediate results are all integers: bool (problems,).
    nums (problems, n) and targets (problems,) are integers.

    For targets from 0 upwards, negative intermediate results are never needed: differences can be
    reversed, (b - a) for (a - b), which moves the signs up to the root."""
    problem, template = enumerate_solutions(nums, targets)
    rows = label_rows(nums.shape[1], template)
    # the value at each position of each tree: its numbers, then from the bottom up its results
    of_label = np.pad(np.sort(nums, axis=1), [(0, 0), (FIRST_NUMBER, 0)])
    values = of_label.astype(float)[problem[:, None], rows]
    whole = np.ones(len(rows), bool)
    for i in reversed(range(rows.shape[1] // 2)):
        left = values[:, 2 * i + 1]
        right = values[:, 2 * i + 2]
        nothing = np.full_like(left, np.nan)
        results = {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "/": np.divide(left, right, out=nothing, where=right != 0),
        }
        is_operation = [rows[:, i] == LABEL[op] for op in results]
        values[:, i] = np.select(is_operation, list(results.values()), values[:, i])
        whole &= values[:, i] == np.floor(values[:, i])
    return np.bincount(problem[whole], minlength=len(nums)) > 0


def solution_forms(problem: Problem) -> np.ndarray:
    """Every commuted form of every solution, which is literally S(x) of `ast` (method, step 2):
    label rows, uint8 (forms, 2**n - 1). The distance of Eq. 5-6 to S(x) is the smallest Hamming
    distance to a row, plus one for each node of the answer outside the row."""
    rows = _solve(*problem.key)
    n = len(problem.nums)
    for i in range(2 ** (n - 1) - 1):  # from the top down, so that each set of swaps is made once
        levels = n - (i + 1).bit_length()  # below position i
        left = _positions(levels, 2 * i + 1)
        right = _positions(levels, 2 * i + 2)
        order = np.arange(2**n - 1)
        order[left] = right
        order[right] = left
        rows = np.concatenate([rows, rows[_commutative(rows[:, i])][:, order]])
    return np.unique(rows, axis=0) if len(set(problem.nums)) < n else rows


# --- data sets ------------------------------------------------------------------------------------


def count_all(problems: Sequence[Problem]) -> np.ndarray:
    """The exact number of solutions of each problem, int64 (problems,). Long work prints a progress
    line."""
    counts = np.zeros(len(problems), np.int64)
    with progress(None, len(problems), "problems solved") as line:
        for where, nums, targets in _blocks(problems, 512):
            problem, _ = enumerate_solutions(nums, targets)
            counts[where] = np.bincount(problem, minlength=len(where))
            line.update(len(where))
    return counts


def profiles(problems: Sequence[Problem]) -> tuple[np.ndarray, np.ndarray]:
    """The number of solutions of each problem, and the simplest operators that suffice: 0 for + and
    -; 1 if * is needed; 2 if / is needed; 3 if the problem has no solution. Both are int64
    (problems,)."""
    counts = np.zeros(len(problems), np.int64)
    simplest = np.full(len(problems), 3)
    for where, nums, targets in _blocks(problems):
        problem, template = enumerate_solutions(nums, targets)
        rows = label_rows(nums.shape[1], template)
        multiplies = (rows == LABEL["*"]).any(axis=1)
        divides = (rows == LABEL["/"]).any(axis=1)
        operators = np.where(divides, 2, multiplies)
        counts[where] = np.bincount(problem, minlength=len(where))
        np.minimum.at(simplest, where[problem], operators)
    return counts, simplest


def levels(problems: Sequence[Problem]) -> list[str | None]:
    """The difficulty group L1 to L9 of each problem (`agent`, Table 3), or None if the table has no
    group for it.

    We take the table's "uses only" and "without" to mean the simplest operators that suffice, + and
    - before * before /, and its "unique solutions" to mean all of `solutions`. With this reading
    the paper's own examples (Table 7) fall into the groups that the paper gives."""
    groups = []
    for problem, count, operator in zip(problems, *profiles(problems), strict=True):
        places = LEVELS.get(len(problem.nums), [])
        many, threshold, few = places[operator] if operator < len(places) else (None, 0, None)
        groups.append(many if count >= threshold else few)
    return groups


def _blocks(problems: Sequence[Problem], size: int = 8192) -> Iterator[tuple]:
    """(indices, nums, targets) of blocks of problems that all have the same count of numbers."""
    lengths = np.array([len(p.nums) for p in problems], int)
    for n in np.unique(lengths):
        indices = np.flatnonzero(lengths == n)
        for start in range(0, len(indices), size):
            where = indices[start : start + size]
            block = [problems[i] for i in where]
            yield where, _exact([p.nums for p in block]), _exact([p.target for p in block])


def _exact(values: list) -> np.ndarray:
    """An array of integers, or of objects where numpy would turn integers beyond 64 bits into
    floats."""
    array = np.array(values)
    return array if array.dtype.kind == "i" else np.array(values, object)
