"""What supervised training imitates: demonstrations of a search.

Every generator takes a `random.Random`, so a row is a function of its seed alone. Demonstrated arithmetic stays among
the integers 0 to 999, which is what the base model is taught; the verifier knows no such limit.
"""

import random
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import datasets

from lib.environment import Number, initial, moves_of, render_action, render_state, step
from lib.expression import BinOp, Expr, Num, canonical, evaluate, parse, render
from lib.problem import Problem, exclude
from lib.problem import problems as as_problems
from lib.prompts import render_prompt
from lib.solver import is_solvable, solutions
from lib.traces import Pool, full_pool, move, state_line, try_line, values
from lib.verifiers import verify_trace

LARGEST = 999
UNSOLVED = 0.25  # share of the program demonstrations whose answer misses the target
COMPACT = 0.25  # share of them that write an attempt in one line, not an operation
HUB_DEMONSTRATIONS = "Asap7772/cog_behav_all_strategies"


# --- arithmetic steps -------------------------------------------------------------------------------------------------


def bounded(op: str, a: Number, b: Number) -> Number | None:
    """`a op b` if it is an integer from 0 to `LARGEST`, else None."""
    if op == "/":
        return a // b if b and a % b == 0 else None
    value = {"+": a + b, "-": a - b, "*": a * b}[op]
    return value if 0 <= value <= LARGEST else None


def steps_of(expr: Expr) -> list[str] | None:
    """The equations that compute `expr`, innermost and left first; None where a value leaves the integers 0..999.

    >>> steps_of(parse("(44 + 19) + 35"))
    ['44 + 19 = 63', '63 + 35 = 98']
    """
    steps: list[str] = []

    def value_of(node: Expr) -> Number | None:
        if isinstance(node, Num):
            return node.value
        assert isinstance(node, BinOp)
        left, right = value_of(node.left), value_of(node.right)
        value = None if left is None or right is None else bounded(node.op, left, right)
        steps.append(f"{left} {node.op} {right} = {value}")
        return value

    return None if value_of(expr) is None else steps


def _plain_steps(expr: Expr) -> list[str]:
    """`steps_of` of an expression that is known to keep to the integers 0..999."""
    steps = steps_of(expr)
    assert steps is not None, render(expr)
    return steps


def shuffle_operands(expr: Expr, rng: random.Random) -> Expr:
    """The same expression with the operands of each + and * in random order."""
    if isinstance(expr, Num):
        return expr
    assert isinstance(expr, BinOp)
    pair = [shuffle_operands(expr.left, rng), shuffle_operands(expr.right, rng)]
    if expr.op in "+*":
        rng.shuffle(pair)
    return BinOp(expr.op, *pair)


def random_expression(nums, rng: random.Random) -> Expr:
    """A random expression over all of `nums` whose every value is an integer from 0 to 999."""
    return random_end([Num(n) for n in nums], rng)


def random_end(start: Sequence[Expr], rng: random.Random) -> Expr:
    """What random operations make of a whole pool of expressions, if every value stays an integer from 0 to 999."""
    pool = [(expr, int(evaluate(expr))) for expr in start]
    while len(pool) > 1:
        i, j = rng.sample(range(len(pool)), 2)
        (left, a), (right, b) = pool[i], pool[j]
        op = rng.choice("+-*/")
        value = bounded(op, a, b)
        if value is not None:
            pool = [item for k, item in enumerate(pool) if k not in (i, j)] + [(BinOp(op, left, right), value)]
    return pool[0][0]


# --- supervised demonstrations ----------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def plain_solutions(problem: Problem) -> list[Expr]:
    """The solutions whose every value is an integer from 0 to 999: those that can be demonstrated."""
    return [tree for tree in solutions(problem) if steps_of(tree) is not None]


def near_misses(problem: Problem, rng: random.Random, count: int, tries: int = 8) -> list[Expr]:
    """Wrong attempts as made with an eye on the target: of `tries` random expressions for each the `count` that come
    nearest, in random order, no two the same up to commuting (fewer where so many are not found)."""
    different: dict[Expr, Expr] = {}
    while count and not different:
        drawn = [random_expression(problem.nums, rng) for _ in range(tries * count)]
        different = {canonical(attempt): attempt for attempt in drawn if evaluate(attempt) != problem.target}
    nearest = sorted(different.values(), key=lambda attempt: abs(evaluate(attempt) - problem.target))[:count]
    return rng.sample(nearest, len(nearest))


def check_suffix(value: Number, target: Number) -> str:
    """What a search asks of the value it has reached: `", 98? no"`; no equation, so no verifier counts it as a step."""
    return f", {target}? {'yes' if value == target else 'no'}"


def attempt_line(expr: Expr, target: Number) -> str:
    """One attempt as a search writes it: its equations, separated by commas, and whether their value is the target."""
    return ", ".join(_plain_steps(expr)) + check_suffix(evaluate(expr), target)


def draw_attempts(problem: Problem, rng: random.Random, failures: int) -> list[Expr]:
    """At most `failures` attempts that miss and one that works. Raises ValueError without a solution among 0 to 999."""
    plain = plain_solutions(problem)
    if not plain:
        raise ValueError(f"{problem} has no solution with integer values from 0 to {LARGEST}")
    solution = shuffle_operands(rng.choice(plain), rng)
    return [*near_misses(problem, rng, failures), solution]


def free_search(problem: Problem, rng: random.Random, failures: int) -> str:
    """A completion that searches in plain arithmetic: `failures` attempts that miss, one that works, the answer.

    One attempt a line, as `attempt_line` writes it. Raises ValueError without a solution among the integers 0 to 999.
    """
    return _written(draw_attempts(problem, rng, failures), problem)


def given_up(problem: Problem, rng: random.Random) -> str:
    """A search that ends without success: three or four near misses, the last of them as the answer.

    It teaches a policy to close: one that has seen searches of any length, but each with a happy end, goes on to the
    cap on what it cannot solve.
    """
    return _written(near_misses(problem, rng, rng.randint(3, 4)), problem)


def _written(attempts: list[Expr], problem: Problem) -> str:
    lines = [attempt_line(attempt, problem.target) for attempt in attempts]
    return "\n".join(["<think>", *lines, "</think>", f"<answer>{render(attempts[-1])}</answer>"])


def program_lines(expr: Expr, names: Iterator[str]) -> list[str]:
    """A program that computes `expr`, one operation a line in the order of `steps_of`.

    >>> program_lines(parse("(44 + 19) + 35"), iter("abc"))
    ['a = 44 + 19', 'b = a + 35']
    """
    lines: list[str] = []

    def name_of(node: Expr) -> str:
        if isinstance(node, Num):
            return str(node.value)
        assert isinstance(node, BinOp)
        left, right = name_of(node.left), name_of(node.right)
        name = next(names)
        lines.append(f"{name} = {left} {node.op} {right}")
        return name

    name_of(expr)
    return lines


def program_search(problem: Problem, rng: random.Random, failures: int) -> str:
    """A completion that searches in a restricted program: `failures` attempts that miss, then one that works.

    A line holds one operation, in a share of COMPACT a whole attempt; the arithmetic stands in comments, in the words
    of `attempt_line`. The last assignment is the answer: were it named so, the policy would have to say that it has
    found a solution before it has computed one. A share of UNSOLVED ends on a miss: what is taught is the format.
    Raises ValueError without a solution among the integers 0 to 999.
    """
    attempts = draw_attempts(problem, rng, failures)
    if rng.random() < UNSOLVED:
        [attempts[-1]] = near_misses(problem, rng, 1)
    compact, names, lines = rng.random() < COMPACT, iter(string.ascii_lowercase), []
    for attempt in attempts:
        if compact:
            lines.append(f"{next(names)} = {render(attempt)} # {attempt_line(attempt, problem.target)}")
            continue
        *before, end = _plain_steps(attempt)
        comments = [*before, end + check_suffix(evaluate(attempt), problem.target)]
        pairs = zip(program_lines(attempt, names), comments, strict=True)
        lines += [f"{line} # {comment}" for line, comment in pairs]
    return "\n".join(["<answer>", *lines, "</answer>"])


# --- structured search traces -----------------------------------------------------------------------------------------


def operations(expr: Expr, start: Sequence[Expr]) -> list[BinOp]:
    """The operations that make `expr` of the members of `start`, innermost and left first."""
    if expr in start:
        return []
    assert isinstance(expr, BinOp)
    return [*operations(expr.left, start), *operations(expr.right, start), expr]


def walk(pool: Pool, nodes: Sequence[BinOp]) -> Iterator[tuple[Pool, BinOp, Pool]]:
    """(pool, operation, pool behind it) of one operation after the other."""
    for node in nodes:
        before, pool = pool, move(pool, node)
        yield before, node, pool


def actions(pool: Pool, nodes: Sequence[BinOp]) -> set[tuple]:
    """What may be tried only once: operations on values, up to commuting, each with the values of its pool."""
    return {(canonical(parse(try_line(node)[4:].partition(" =")[0])), values(at)) for at, node, _ in walk(pool, nodes)}


def distractor(pool: Pool, target: Number, tried: set[tuple], kind: str, rng: random.Random) -> list[BinOp]:
    """A failing branch of a search: operations from `pool` down to one number that is not the target, none of `tried`.

    The best of 8 draws: "any", the first; "near", the one that ends nearest to the target; "dead", one whose first
    operation leaves the target out of reach, where one is drawn. [] if none of them will do.
    """
    found, start = [], [expr for _, expr in pool]
    for draw in range(8):
        end = random_end(start, rng)
        branch, gap = operations(end, start), abs(evaluate(end) - target)
        if gap and not tried & actions(pool, branch):
            alive = kind == "dead" and is_solvable(values(move(pool, branch[0])), target)
            found.append((gap if kind == "near" else alive, draw, branch))
    return min(found)[2] if found else []


@dataclass(frozen=True)
class TraceDesign:
    """A design of trace demonstrations (`trace`, Table 6). Called like the functions above, it writes one.

    variants: rows of a problem, each drawn anew, on so many fewer problems. canonical: always the same of a problem's
    solutions, and the same failing branches. backtracks: share of rows that search depth-first through failing
    branches (of kind `branch`, see `distractor`) before they find on, 1 to `most` of them: a branch starts where two or
    three numbers are left, and ends in the search's return there. direct: share of rows that are an answer alone.
    converted: attempts of a free search, each from the first state on, their later states left out. faulty: tags in
    capitals, and "= target" in the answer. checked: a try that leaves one number says whether it is the target, as free
    searches do. provenance: states hold what their numbers were made of.
    """

    variants: int = 1
    canonical: bool = False
    backtracks: float = 0.0
    most: int = 2
    branch: str = "any"
    direct: float = 0.0
    converted: bool = False
    faulty: bool = False
    checked: bool = False
    provenance: bool = False

    def __call__(self, problem: Problem, rng: random.Random, failures: int) -> str:
        """One completion, checked by `verify_trace`. Raises ValueError without a solution among the integers 0 to 999,
        and for a row that the verifier finds a fault in."""
        rng = random.Random(str(problem.key)) if self.canonical else rng
        *missed, solution = draw_attempts(problem, rng, failures if self.converted else 0)
        if self.canonical:
            solution = min(plain_solutions(problem), key=render)
        branches = max(1, min(failures, self.most)) if rng.random() < self.backtracks else 0
        if rng.random() < self.direct:
            lines = []
        elif self.converted:
            lines = self._converted(problem, [*missed, solution])
        else:
            lines = self._depth_first(problem, solution, branches, rng)
        text = "\n".join([*(["<think>", *lines, "</think>"] if lines else []), f"<answer>{render(solution)}</answer>"])
        verdict = verify_trace(text, problem)
        faultless = all(line.valid and not line.repeated for line in verdict.lines) and (verdict.reached or not lines)
        if verdict.status != "correct" or not (faultless or (self.converted and verdict.reached)):
            raise ValueError(f"a demonstration of {problem} does not hold: {verdict}\n{text}")
        if self.faulty:
            text = text.replace("</answer>", f" = {problem.target}</answer>")
            text = re.sub("<.*?>", lambda tag: tag[0].upper(), text)
        return text

    def _converted(self, problem: Problem, attempts: list[Expr]) -> list[str]:
        bodies = [
            [state_line(full_pool(problem)), *(f"try {step}" for step in _plain_steps(expr))] for expr in attempts
        ]
        return [line for body in bodies for line in ["backtrack", *body]][1:]

    def _depth_first(self, problem: Problem, solution: Expr, branches: int, rng: random.Random) -> list[str]:
        pool = full_pool(problem)
        path = operations(solution, [expr for _, expr in pool])
        tried, late = actions(pool, path), range(max(len(path) - 2, 0), len(path))
        at = rng.sample(late, min(branches, len(late)))
        lines = [state_line(pool)]
        for i, node in enumerate(path):
            branch = distractor(pool, problem.target, tried, self.branch, rng) if i in at else []
            tried |= actions(pool, branch)
            returns = ["backtrack", state_line(pool, self.provenance)] if branch else []
            for nodes, behind in ((branch, returns), ([node], [])):
                for _, done, after in walk(pool, nodes):
                    asks = check_suffix(evaluate(done), problem.target) if self.checked and len(after) == 1 else ""
                    lines += [try_line(done) + asks, state_line(after, self.provenance)]
                lines += behind
            pool = move(pool, node)
        return lines


TRACES = {  # Table 6 in its order; the best one with provenance last
    "trace_smoke": TraceDesign(converted=True, faulty=True),
    "trace_expression": TraceDesign(converted=True),
    "trace_proof": TraceDesign(),
    "trace_backtrack": TraceDesign(backtracks=1),  # without and with the end token
    "trace_proof_augmented": TraceDesign(variants=8),
    "trace_backtrack_augmented": TraceDesign(variants=8, backtracks=1),
    "trace_proof_canonical": TraceDesign(canonical=True),
    "trace_backtrack_canonical": TraceDesign(canonical=True, backtracks=1, most=1, branch="near"),
    "trace_backtrack_diverse": TraceDesign(variants=4, backtracks=1, branch="dead"),
    "trace_mixed": TraceDesign(variants=4, direct=1 / 3, backtracks=0.15, most=1, branch="dead"),
    "trace_light": TraceDesign(variants=4, backtracks=0.15, most=1, branch="dead"),
    "trace_provenance": TraceDesign(variants=4, backtracks=0.15, most=1, branch="dead", provenance=True),
}
DEMONSTRATIONS = {"free": free_search, "program": program_search, **TRACES}  # how a demonstration is written


def action_rows(problem: Problem, rng: random.Random) -> list[dict]:
    """Each state on the way of a random solution among the integers 0 to 999, and the action taken there (`agent`
    Eq. 12): rows prompt, completion."""
    state, rows = initial(problem), []
    for chosen in moves_of(rng.choice(plain_solutions(problem))):
        rows.append({"prompt": render_state(state), "completion": render_action(chosen)})
        state = step(state, chosen)
    return rows


def load_demonstrations(
    source: str,
    problems: datasets.Dataset,
    most_failures: int,
    seed: int,
    prompt_style: str = "free",
    design: str = "free",
    give_up: float = 0.0,
    hub: str = HUB_DEMONSTRATIONS,
) -> datasets.Dataset:
    """Rows `prompt`, `completion` for supervised fine-tuning.

    `generated`: one demonstration by `design` (a key of DEMONSTRATIONS) behind the prompt of style `prompt_style` for
    each of `problems`, with 0 to `most_failures` failing attempts, uniformly; a design of several variants writes as
    many rows, of the first problems. A share `give_up` of design "free" is `given_up`. In style "pick" the states and
    actions of one solution instead.
    `hub`: the demonstrations that the papers use (columns `query`, `completion`), or those of another hub name or local
    folder `hub`. Rows of evaluation problems are dropped. Raises ValueError for an unknown source or an unreadable
    query.
    """
    if source == "hub":
        rows = datasets.load_dataset(hub, split="train").map(query_problem, load_from_cache_file=False)
        return exclude(rows).rename_column("query", "prompt").select_columns(["prompt", "completion"])
    if give_up and design != "free":
        raise ValueError(f"give_up={give_up}: demonstrations of design {design!r} never give up")
    if source != "generated":
        raise ValueError(f"demonstration source {source!r} is not known: use 'generated' or 'hub'")

    rows, variants = [], getattr(DEMONSTRATIONS[design], "variants", 1)
    candidates = as_problems(exclude(problems))
    for index in range(len(candidates)):
        rng, problem = random.Random(f"{seed}/{index}"), candidates[index // variants]
        if not plain_solutions(problem):
            continue
        if prompt_style == "pick":
            rows += action_rows(problem, rng)
        else:
            if give_up and rng.random() < give_up:
                completion = given_up(problem, rng)
            else:
                completion = DEMONSTRATIONS[design](problem, rng, failures=rng.randint(0, most_failures))
            rows.append({"prompt": render_prompt(problem.nums, problem.target, prompt_style), "completion": completion})
    print(f"{len(rows):,} demonstrations; the other problems have no solution among the integers 0 to {LARGEST}")
    return datasets.Dataset.from_list(rows)


def query_problem(row: dict) -> dict:
    """The numbers and the target that a hub demonstration's query asks about."""
    found = re.search(r"\[(\d+(?:,? +\d+)*)\].*?equals? (\d+)", row["query"], re.DOTALL)
    if found is None:
        raise ValueError(f"no numbers and target can be read in the demonstration query {row['query'][:200]!r}")
    return {"nums": [int(n) for n in re.findall(r"\d+", found[1])], "target": int(found[2])}
