"""Demonstrations of a search, which supervised training imitates. A row is a function of its seed
only.

The values in a demonstration are integers from 0 to 999, which is what the base model has learned.
"""

import random
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from lib.files import uninterrupted
from lib.game.expression import BinOp, Expr, Num, canonical, evaluate, operations, render
from lib.game.mdp import (
    Action,
    Number,
    State,
    initial,
    legal_actions,
    moves_of,
    render_action,
    render_state,
    step,
)
from lib.game.problem import Problem, as_problems
from lib.game.prompts import render_prompt
from lib.game.sets import exclude, hub_rows
from lib.game.solver import is_solvable, solutions
from lib.game.traces import Pool, full_pool, move, state_line, try_line, values

if TYPE_CHECKING:  # as in lib.game.sets
    from datasets import Dataset

LARGEST = 999
# share of the program demonstrations that write a whole attempt, not one operation, per line
COMPACT = 0.25
HUB_DEMONSTRATIONS = "Asap7772/cog_behav_all_strategies"


def bounded(op: str, a: Number, b: Number) -> Number | None:
    """`a op b` if it is an integer from 0 to `LARGEST`, else None."""
    if op == "/":
        return a // b if b and a % b == 0 else None
    value = {"+": a + b, "-": a - b, "*": a * b}[op]
    return value if 0 <= value <= LARGEST else None


def steps_of(expr: Expr) -> list[str] | None:
    """The equations that compute `expr`, in the order of `operations`. None if a value is not an
    integer from 0 to 999.

    >>> steps_of(parse("(44 + 19) + 35"))
    ['44 + 19 = 63', '63 + 35 = 98']
    """
    steps = []
    for node in operations(expr):
        left = evaluate(node.left)
        right = evaluate(node.right)
        if (value := bounded(node.op, left, right)) is None:
            return None
        steps.append(f"{left} {node.op} {right} = {value}")
    return steps


def shuffle_operands(expr: Expr, rng: random.Random) -> Expr:
    """The same expression with the operands of each + and * in random order."""
    if not isinstance(expr, BinOp):
        return expr
    pair = [shuffle_operands(expr.left, rng), shuffle_operands(expr.right, rng)]
    if expr.op in "+*":
        rng.shuffle(pair)
    return BinOp(expr.op, *pair)


def random_expression(nums: Sequence[int], rng: random.Random) -> Expr:
    """A random expression over all of `nums` whose values are integers from 0 to 999."""
    return combine([(n, Num(n)) for n in nums], rng)[1]


def combine(pool: Sequence[tuple[Number, Expr]], rng: random.Random) -> tuple[Number, Expr]:
    """The value and expression that random operations make of a whole pool, by way of integers from
    0 to 999."""
    pool = list(pool)
    while (size := len(pool)) > 1:
        i = rng.randrange(size)
        j = rng.randrange(size - 1)
        # draws the same pair as rng.sample(range(size), 2), in a third of its time
        j = size - 1 if j == i else j
        op = "+-*/"[rng.randrange(4)]
        a, left = pool[i]
        b, right = pool[j]
        value = bounded(op, a, b)
        if value is not None:
            others = [item for k, item in enumerate(pool) if k not in (i, j)]
            pool = [*others, (value, BinOp(op, left, right))]
    return pool[0]


# --- supervised demonstrations --------------------------------------------------------------------


@lru_cache(maxsize=16)
def plain_solutions(problem: Problem) -> list[Expr]:
    """The solutions that can be demonstrated: those in which every value is an integer from 0 to
    999."""
    return [tree for tree in solutions(problem) if steps_of(tree) is not None]


def near_misses(problem: Problem, rng: random.Random, count: int) -> list[Expr]:
    """Wrong attempts that aim at the target: the `count` of 8 * `count` random expressions whose
    values are nearest to it, in random order. There are fewer if some of the expressions are the
    same up to commuting."""
    start = [(n, Num(n)) for n in problem.nums]
    misses: dict[Expr, tuple[Number, Expr]] = {}
    while count and not misses:
        samples = [combine(start, rng) for _ in range(8 * count)]
        misses = {
            canonical(attempt): (value, attempt)
            for value, attempt in samples
            if value != problem.target
        }
    nearest = sorted(misses.values(), key=lambda miss: abs(miss[0] - problem.target))[:count]
    return [attempt for _, attempt in rng.sample(nearest, len(nearest))]


def check_suffix(value: Number, target: Number) -> str:
    """The question that a search asks about its value, such as `", 98? no"`. It is not an equation,
    so no verifier counts it as a step."""
    return f", {target}? {'yes' if value == target else 'no'}"


def attempt_line(expr: Expr, target: Number) -> str:
    """One attempt of a search: its equations, separated by commas, and a statement whether it makes
    the target."""
    return ", ".join(steps_of(expr) or []) + check_suffix(evaluate(expr), target)


def draw_attempts(
    problem: Problem, rng: random.Random, failures: int, solved: bool = True
) -> list[Expr]:
    """At most `failures` attempts that miss the target, and then one that reaches it. If not
    `solved`, the last attempt misses too, and is the answer of a search that gives up: a policy
    that has seen only successes would continue to the token limit."""
    if not solved:
        return near_misses(problem, rng, failures + 1)
    solution = shuffle_operands(rng.choice(plain_solutions(problem)), rng)
    return [*near_misses(problem, rng, failures), solution]


def free_search(problem: Problem, rng: random.Random, failures: int, solved: bool = True) -> str:
    """A completion in plain arithmetic: the attempts of `draw_attempts`, one per line; the last one
    is the answer."""
    attempts = draw_attempts(problem, rng, failures, solved)
    lines = [attempt_line(attempt, problem.target) for attempt in attempts]
    return "\n".join(["<think>", *lines, "</think>", f"<answer>{render(attempts[-1])}</answer>"])


def program_lines(expr: Expr, names: Iterator[str]) -> list[str]:
    """A program that computes `expr`, one operation per line in the order of `steps_of`.

    >>> program_lines(parse("(44 + 19) + 35"), iter("abc"))
    ['a = 44 + 19', 'b = a + 35']
    """
    lines = []
    variables = {}
    for node in operations(expr):
        left, right = (variables.get(id(side)) or render(side) for side in (node.left, node.right))
        variables[id(node)] = name = next(names)
        lines.append(f"{name} = {left} {node.op} {right}")
    return lines


def program_search(problem: Problem, rng: random.Random, failures: int, solved: bool = True) -> str:
    """A completion that is a restricted program: the attempts of `draw_attempts`, of which the last
    one is its value.

    A line holds one operation, or in a share COMPACT of the programs a whole attempt; its comment
    shows the arithmetic. The answer has no name of its own, because a policy would have to announce
    a solution before it has computed one. The names of each attempt begin at a."""
    attempts = draw_attempts(problem, rng, failures, solved)
    compact = rng.random() < COMPACT
    lines = []
    for attempt in attempts:
        names = iter(string.ascii_lowercase)
        if compact:
            lines.append(
                f"{next(names)} = {render(attempt)} # {attempt_line(attempt, problem.target)}"
            )
            continue
        *equations, last_equation = steps_of(attempt) or []
        comments = [*equations, last_equation + check_suffix(evaluate(attempt), problem.target)]
        lines += map("{} # {}".format, program_lines(attempt, names), comments)
    return "\n".join(["<answer>", *lines, "</answer>"])


# --- structured search traces ---------------------------------------------------------------------


def actions(pool: Pool, nodes: Sequence[BinOp]) -> set[tuple]:
    """The operations of a branch in the form in which a search compares them, so that it tries none
    twice: on values, up to commuting, and together with the pool."""
    keys = set()
    for node in nodes:
        pair = evaluate(node.left), evaluate(node.right)
        keys.add((values(pool), node.op, *(sorted(pair) if node.op in "+*" else pair)))
        pool = move(pool, node)
    return keys


def distractor(
    pool: Pool, target: Number, tried: set[tuple], kind: str, rng: random.Random
) -> list[BinOp]:
    """A failing branch of a search: operations from `pool` down to one number that is not the
    target, none of them in `tried`.

    Of 8 draws, kind "any" takes the first; "near" the one that ends nearest to the target; "dead"
    one whose first operation makes the target unreachable, if there is one. Returns [] if every
    draw reaches the target or repeats something tried."""
    candidates = []
    for draw in range(8):
        value, tree = combine(pool, rng)
        branch = operations(tree, [expr for _, expr in pool])
        gap = abs(value - target)
        if gap and not tried & actions(pool, branch):
            alive = kind == "dead" and is_solvable(values(move(pool, branch[0])), target)
            candidates.append((gap if kind == "near" else alive, draw, branch))
    return min(candidates)[2] if candidates else []


@dataclass(frozen=True)
class TraceDesign:
    """A design of trace demonstrations (`trace`, Table 6), called like `free_search`.

    A row is a depth-first search: a failing branch starts when two or three numbers are left, and
    ends when the search returns to them. With `restarts` each attempt starts from the first state;
    only such a search can give up."""

    # rows per problem, each drawn by itself; the same number of rows is then about fewer problems
    variants: int = 1
    canonical: bool = False  # a problem always has the same solution and the same failing branches
    backtracks: float = 0.0  # share of the rows with failing branches
    most: int = 2  # most failing branches of such a row, which has at least one
    branch: str = "any"  # their kind: any, near or dead (see `distractor`)
    direct: float = 0.0  # share of the rows that consist of an answer only
    restarts: bool = False  # a free search instead of failing branches
    stated: bool = True  # the pool is stated after every try, and nothing is tried twice
    faulty: bool = False  # tags in capitals, and "= target" in the answer
    # a try that leaves one number says whether it is the target, as free searches do
    checked: bool = False
    provenance: bool = False  # states say how their numbers were made

    def __call__(
        self, problem: Problem, rng: random.Random, failures: int, solved: bool = True
    ) -> str:
        """One completion. Only a design with `restarts` can be asked for one that is not
        `solved`."""
        # 1. Draw the attempts, and the number of failing branches
        rng = random.Random(str(problem.key)) if self.canonical else rng
        *misses, answer = draw_attempts(problem, rng, failures if self.restarts else 0, solved)
        if self.canonical:
            answer = min(plain_solutions(problem), key=render)
        branches = max(1, min(failures, self.most)) if rng.random() < self.backtracks else 0
        # 2. Write the search, unless the row is an answer only
        direct = rng.random() < self.direct
        lines = (
            []
            if direct
            else ["<think>", *self._search(problem, answer, misses, branches, rng), "</think>"]
        )
        text = "\n".join([*lines, f"<answer>{render(answer)}</answer>"])
        if self.faulty:
            text = text.replace("</answer>", f" = {problem.target}</answer>")
            text = re.sub("<.*?>", lambda tag: tag[0].upper(), text)
        return text

    def _search(
        self, problem: Problem, answer: Expr, misses: list[Expr], branches: int, rng: random.Random
    ) -> list[str]:
        """The lines of a search that ends with `answer`: the `misses` fail from its first state,
        and one branch fails from each of `branches` of its last two states that have more than one
        number. If states are stated, no try is repeated."""
        pool = full_pool(problem)
        path = operations(answer)
        tried = actions(pool, path)
        candidates = range(max(len(path) - 2, 0), len(path))
        positions = rng.sample(candidates, min(branches, len(candidates)))
        lines = [state_line(pool)]
        for i, node in enumerate(path):
            failing = [operations(miss) for miss in misses] if i == 0 else []
            if i in positions:
                failing.append(distractor(pool, problem.target, tried, self.branch, rng))
            for branch in failing:
                if branch and not (self.stated and tried & actions(pool, branch)):
                    tried |= actions(pool, branch)
                    lines += [*self._walked(pool, branch, problem.target), "backtrack"]
                    lines.append(state_line(pool, self.provenance))
            lines += self._walked(pool, [node], problem.target)
            pool = move(pool, node)
        return lines

    def _walked(self, pool: Pool, nodes: Sequence[BinOp], target: Number) -> list[str]:
        """The lines of the operations: each try, and the state after it."""
        lines = []
        for node in nodes:
            pool = move(pool, node)
            check = check_suffix(evaluate(node), target) if self.checked and len(pool) == 1 else ""
            lines += [
                try_line(node) + check,
                *([state_line(pool, self.provenance)] if self.stated else []),
            ]
        return lines


# in the order of Table 6; then the best one with provenance; then free searches as traces, which
# are ours
TRACES = {
    "trace_smoke": TraceDesign(restarts=True, stated=False, faulty=True),
    "trace_expression": TraceDesign(restarts=True, stated=False),
    "trace_proof": TraceDesign(),
    "trace_backtrack": TraceDesign(backtracks=1),  # trained without and with the end token
    "trace_proof_augmented": TraceDesign(variants=8),
    "trace_backtrack_augmented": TraceDesign(variants=8, backtracks=1),
    "trace_proof_canonical": TraceDesign(canonical=True),
    "trace_backtrack_canonical": TraceDesign(canonical=True, backtracks=1, most=1, branch="near"),
    "trace_backtrack_diverse": TraceDesign(variants=4, backtracks=1, branch="dead"),
    "trace_mixed": TraceDesign(variants=4, direct=1 / 3, backtracks=0.15, most=1, branch="dead"),
    "trace_light": TraceDesign(variants=4, backtracks=0.15, most=1, branch="dead"),
    "trace_provenance": TraceDesign(
        variants=4, backtracks=0.15, most=1, branch="dead", provenance=True
    ),
    "trace_search": TraceDesign(restarts=True, checked=True),
    "trace_search_provenance": TraceDesign(restarts=True, checked=True, provenance=True),
}
# name of a design -> function that writes a demonstration
DEMONSTRATIONS: dict[str, Callable[..., str]] = {
    "free": free_search,
    "program_fresh": program_search,
    **TRACES,
}


def action_rows(problem: Problem, rng: random.Random, lost: float = 0.0) -> list[dict]:
    """Rows `prompt`, `completion` (`agent`, Eq. 12): each state of a random solution among the
    integers 0 to 999, and the action that the solution takes there; with probability `lost` also
    those of `lost_game`."""
    moves = list(moves_of(rng.choice(plain_solutions(problem))))
    states = list(accumulate(moves, step, initial=initial(problem)))
    played = list(zip(states, moves, strict=False))  # no action follows the last state
    if lost and rng.random() < lost:
        played += lost_game(states[:-2], rng)
    return [
        {"prompt": render_state(state), "completion": render_action(action)}
        for state, action in played
    ]


def lost_game(path: Sequence[State], rng: random.Random) -> list[tuple[State, Action]]:
    """The states of a game that leaves `path` by a move after which the target cannot be made, each
    with the move that is taken there, drawn uniformly from the legal ones.

    A solution never shows such states, and a search is mostly in them. No move is better than
    another there, so what they teach is which moves are legal: among negative numbers, large ones
    and fractions too. [] if eight random moves all keep a solution open. `path`: states of at
    least three numbers."""
    for _ in range(8):
        state = rng.choice(path)
        state = step(state, rng.choice(legal_actions(state)))
        if is_solvable(state.nums, state.target):
            continue
        game = []
        while not state.terminal:
            action = rng.choice(legal_actions(state))
            game.append((state, action))
            state = step(state, action)
        return game
    return []


def demonstrate(
    problems: "Dataset",
    most_failures: int,
    seed: int,
    prompt_style: str = "free",
    design: str = "free",
    give_up: float = 0.0,
    checked: bool = False,
    lost: float = 0.0,
) -> "Dataset":
    """Rows `prompt`, `completion` for supervised fine-tuning on `problems`. Evaluation problems are
    dropped.

    A problem gets one demonstration by `design` (a key of DEMONSTRATIONS) with 0 to `most_failures`
    failing attempts. A design with several variants writes the same number of rows, about fewer
    problems (the first ones). A share `give_up` of the rows gives up, one attempt later than a
    solution would have come. checked: the field of TraceDesign. In style "pick" the rows are the
    states and actions of one solution, and for a share `lost` of the problems those of a lost game
    too."""
    with uninterrupted():
        from datasets import Dataset

    write = replace(TRACES[design], checked=True) if checked else DEMONSTRATIONS[design]
    rows = []
    variants = getattr(write, "variants", 1)
    candidates = as_problems(exclude(problems))
    for index in range(len(candidates)):
        rng = random.Random(f"{seed}/{index}")
        problem = candidates[index // variants]
        if not plain_solutions(problem):
            continue
        if prompt_style == "pick":
            rows += action_rows(problem, rng, lost)
        else:
            solved = not give_up or rng.random() >= give_up
            completion = write(problem, rng, rng.randint(0, most_failures) + (not solved), solved)
            rows.append(
                {
                    "prompt": render_prompt(problem.nums, problem.target, prompt_style),
                    "completion": completion,
                }
            )
    print(
        f"{len(rows):,} demonstrations; "
        f"the other problems have no solution among the integers 0 to {LARGEST}"
    )
    return Dataset.from_list(rows)


def hub_demonstrations(prompt_style: str) -> "Dataset":
    """Rows `prompt`, `completion` of the demonstrations that the papers use (columns `query`,
    `completion`). The prompt is that of `prompt_style` for the problem of the query. Rows about
    evaluation problems are dropped. Raises ValueError for a query that cannot be read."""

    def prompt_row(row: dict) -> dict:  # the prompt that every later run uses
        return {"prompt": render_prompt(row["nums"], row["target"], prompt_style)}

    rows = exclude(
        hub_rows(HUB_DEMONSTRATIONS, "train").map(query_problem, load_from_cache_file=False)
    )
    return rows.map(prompt_row, load_from_cache_file=False).select_columns(["prompt", "completion"])


def query_problem(row: dict) -> dict:
    """The numbers and the target that a hub demonstration's query asks about."""
    match = re.search(r"\[ *(\d+(?:,? +\d+)*) *\].*?equals? (\d+)", row["query"], re.DOTALL)
    if match is None:
        raise ValueError(
            f"no numbers and target can be read in the demonstration query {row['query'][:200]!r}"
        )
    return {"nums": [int(n) for n in re.findall(r"\d+", match[1])], "target": int(match[2])}
