"""Pages that show rollouts: finds, judges and chooses rollouts, and draws them with the markup of
explorer.html.

Jinja escapes all text that is put into the markup, so no completion can inject HTML. The widgets
are in `lib.study.widgets`."""

import re
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib.files import REFERENCE, RUNS, write_table
from lib.game.distance import nearest_solution
from lib.game.expression import Expr, Neg, Num, children, leaves, render
from lib.game.mdp import Action, count_solutions, initial, parse_action, render_number, step
from lib.game.problem import Problem, as_problem, as_problems
from lib.game.solver import solutions
from lib.game.steps import verify_steps
from lib.game.verifiers import VERIFIERS, verify_program, verify_trace
from lib.rewards import get_reward, score_group
from lib.study import judging
from lib.study.judging import record
from lib.study.systems import methods, rank

# at most so many characters of a completion and nodes of a tree are shown
LONGEST = 20_000
WIDEST = 63
CSS_CLASSES = {
    "ro-ok": "legal",
    "ro-form": "not in the form",
    "ro-wrong": "wrong arithmetic or state",
    "ro-pool": "numbers not available",
    "ro-again": "repeated",
}
OWN = "its own"  # the reward that a policy was trained with
SORTS = ["disagreement", "as saved", "logprob", "tokens", "attempts"]

_loader = FileSystemLoader(Path(__file__).parent)
templates = Environment(
    loader=_loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined
)
templates.globals["css_classes"] = CSS_CLASSES
markup: Any = templates.get_template("explorer.html").module  # has the macros, which return markup

# --- loading and choosing -------------------------------------------------------------------------


WRITTEN = ("generations.parquet", "trajectories.parquet")  # files of runs that hold rollouts


def profiles() -> list[str]:
    """The names of the profiles that have a finished run with rollouts, whether committed or made
    on this machine, and "scratch" if a run by hand has some."""
    places = (REFERENCE, "*/*/*/*"), (RUNS, "*/*/*/*"), (RUNS, "scratch/*")
    files = [
        (root, path)
        for root, place in places
        for file in WRITTEN
        for path in root.glob(f"{place}/{file}")
    ]
    return sorted(
        {
            path.relative_to(root).parts[0]
            for root, path in files
            if path.with_name("run.json").exists()
        }
    )


def find(profile: str, *files: str) -> dict[str, Path]:
    """The folders of a profile's finished runs that hold at least one of `files`, by
    kind/name/seed, with " (yours)" at the end for a run made on this machine. Sampling runs come
    first; the rest of the order is that of `methods`. Raises FileNotFoundError if there is no such
    run."""
    folders = {}
    for root, source in ((REFERENCE / profile, ""), (RUNS / profile, " (yours)")):
        for folder in (path.parent for path in root.rglob("run.json")):
            if any((folder / file).exists() for file in files):
                folders[folder.relative_to(root).as_posix() + source] = folder
    if not folders:
        file_names = " or ".join(files)
        raise FileNotFoundError(
            f"no run of profile {profile!r} has {file_names}: `make study PROFILE={profile}`"
        )
    order = sorted(
        (not name.startswith("sample/"), rank(record(folders[name])["method"]), name)
        for name in folders
    )
    return {name: folders[name] for *_, name in order}


def title(folder: Path) -> str:
    """A run's title: its method's label, and the seed."""
    method = record(folder)["method"]
    return f"{methods()['label'].get(method, method)}, seed {record(folder)['seed']}"


def load(runs: dict[str, Path]) -> pd.DataFrame:
    """All completions and finished games of some runs with their verdicts, one row per distinct
    completion.

    Columns: those of `judging.samples` or `judging.games`; run (a key of `runs`) and folder; place,
    a number for each problem of each set; solved, the share of the run's completions of this
    problem that are correct."""
    tables = []
    for run, folder in runs.items():
        made = (folder / "run.json").stat().st_mtime_ns
        tables.append(_read(folder, made).assign(run=run))
    table = pd.concat(tables, ignore_index=True)
    table = table.astype(dict.fromkeys(("run", "folder", "set", "status", "style"), "category"))
    table["place"] = table.groupby(["set", "problem"], observed=True).ngroup()
    # of each problem in each run
    right = table["count"] * table["correct"]
    keys = [table["run"], table["place"]]
    drawn = pd.DataFrame({"drawn": table["count"], "right": right})
    drawn = drawn.groupby(keys, observed=True).transform("sum")
    return table.assign(solved=drawn["right"] / drawn["drawn"])


@lru_cache
def _read(folder: Path, _made: int) -> pd.DataFrame:
    """The judged rollouts of a run, read again if the run was `_made` again."""
    is_search = (folder / "trajectories.parquet").exists()
    table = (
        judging.games(folder, texts=True).assign(style="pick")
        if is_search
        else judging.samples(folder, texts=True)
    )
    return complete(table, folder)


def complete(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Judged rows of a run, to which the columns that this kind of run does not have are added."""
    defaults = {"set": "typed", "finish": "stop", "actions": "", "logprob": np.nan, "count": 1}
    return table.assign(
        folder=str(folder), **{key: value for key, value in defaults.items() if key not in table}
    )


def size(rows: pd.DataFrame) -> str:
    """Says how many rollouts these rows stand for, and how many of them are different. Without
    rows, says so."""
    if rows.empty:
        return "no rollout passes these filters"
    total = int(rows["count"].sum())
    text = f"{total:,} rollout" + "s" * (total != 1)
    return f"{text}, {len(rows):,} of them different" if len(rows) < total else text


@lru_cache(maxsize=1 << 18)
def attempts(style: str, completion: str, problem: Problem) -> int:
    """The number of attempts that `verify_steps` counts; for a program the number of lines that use
    every number."""
    if style.startswith("program"):
        assignments = verify_program(completion, problem).assignments
        return sum(sorted(leaves(expr)) == sorted(problem.nums) for expr in assignments)
    return max((step.attempt + 1 for step in verify_steps(completion, problem)), default=0)


def choose(
    table: pd.DataFrame, runs, name: str, statuses, least: int, differ: bool, sort: str
) -> np.ndarray:
    """Positions in `table`, which is one of `load`, int64, of the rollouts of `runs` on the set
    `name` that have one of `statuses` and at least `least` attempts.

    differ: keeps only problems that one of these runs has solved and another one has never solved.
    sort: one of SORTS. First come the problems on which the runs' shares of correct completions
    differ most ("disagreement"), the completions with the highest log-probability ("logprob"), or
    those with the fewest tokens or attempts."""
    rows = table[(table["set"] == name) & table["run"].isin(list(runs))]
    shares = rows.groupby("place")["solved"]
    low = shares.transform("min")
    high = shares.transform("max")
    mask = rows["status"].isin(list(statuses))
    if differ:
        mask &= (low == 0) & (high > 0)
    rows = rows.assign(disagreement=high - low)[mask]
    if least or sort == "attempts":  # counting attempts takes a second per run
        attempt_counts = [*map(attempts, rows["style"], rows["completion"], as_problems(rows))]
        rows = rows.assign(attempts=attempt_counts).query("attempts >= @least")
    if sort != "as saved":
        rows = rows.sort_values(sort, ascending=sort in ("tokens", "attempts"), kind="stable")
    return rows.index.to_numpy()


def beside(
    table: pd.DataFrame, position: int, runs: Iterable[str], filtered: np.ndarray, draw: int = 0
) -> list[int]:
    """Positions of one row per run, all on the problem of the row at `position`. The run of that
    row is represented by it, every other run by its first row among `filtered` (what a filter has
    let through), or else by its first row. `draw` moves on by so many rows within each run, and
    after a run's last row starts again at its first."""
    rows = table[table["place"] == table["place"].iloc[position]]
    positions = []
    for run in runs:
        run_rows = rows.index[rows["run"] == run]
        preferred = run_rows.isin([position] if position in run_rows else filtered)
        if len(run_rows):
            positions.append(int(run_rows[(preferred.argmax() + draw) % len(run_rows)]))
    return positions


def export(table: pd.DataFrame, positions: Iterable[int], path: Path) -> Path:
    """Writes the rollouts at these positions of `table` as a .csv file, one line each. Raises
    OSError on a full disk."""
    return write_table(exported(table.iloc[list(positions)]), path)


def exported(rows: pd.DataFrame) -> pd.DataFrame:
    """Rollouts as a .csv file has them: run, set, problem, nums (as a problem's file has them),
    target, completion, status, tokens, count and solved."""
    nums = [" ".join(map(str, one)) for one in rows["nums"]]
    columns = ["run", "set", "problem", "nums", "target"]
    columns += ["completion", "status", "tokens", "count", "solved"]
    return rows.assign(nums=nums)[columns]


# --- one rollout ----------------------------------------------------------------------------------


def line(row: pd.Series) -> str:
    """The line for a rollout in a list. It contains no text that a model wrote."""
    problem = f"{', '.join(map(str, row['nums']))} → {row['target']}"
    count = attempts(row["style"], row["completion"], as_problem(row["nums"], row["target"]))
    parts = [title(Path(row["folder"])), problem, row["status"]]
    parts += [f"{count} attempts", f"{row['tokens']} tokens"]
    return " · ".join(parts)


def page(table: pd.DataFrame, positions: list[int], reward: str = OWN) -> str:
    """The markup of rollouts on one problem, side by side. Above them are the meaning of the
    colours and the first 60 solutions of the problem."""
    problem = as_problem(*table.iloc[positions[0]][["nums", "target"]])
    cards = [card(table, position, reward) for position in positions]
    return str(markup.page(cards, problem, *_solved(problem)))


def head(problem: Problem) -> str:
    """The markup above the cards of a problem."""
    return str(markup.head(problem, *_solved(problem)))


def card_markup(table: pd.DataFrame, position: int, reward: str = OWN) -> str:
    """The markup of one rollout."""
    return str(markup.card(card(table, position, reward)))


def _solved(problem: Problem) -> tuple[int, list[str]]:
    """How many solutions a problem has, and the first 60 of them."""
    found = solutions(problem)
    return len(found), [render(tree) for tree in found[:60]]


def card(table: pd.DataFrame, position: int, reward: str) -> dict:
    """What explorer.html shows of the rollout at `position`: its verdict and reward, its text in
    coloured pieces or the states of its game, and its trees."""
    row = table.iloc[position]
    group = table[(table["place"] == row["place"]) & (table["run"] == row["run"])]
    problem = as_problem(row["nums"], row["target"])
    folder = Path(row["folder"])
    verdict = VERIFIERS.get(row["style"], VERIFIERS["free"])(row["completion"], problem)
    return row.to_dict() | {
        "title": title(folder),
        "colour": methods()["colour"].get(record(folder)["method"], "#999999"),
        "value": verdict.value,
        "scored": scored(group, row, problem, reward),
        "attempts": attempts(row["style"], row["completion"], problem),
        "drawn": group["count"].sum(),
        "right": (group["count"] * group["correct"]).sum(),
        "states": list(states(row["actions"], problem)) if row["actions"] else [],
        "pieces": list(pieces(row["completion"], problem, row["style"])),
        "trees": trees(verdict.expression, problem),
    }


def scored(group: pd.DataFrame, row: pd.Series, problem: Problem, reward: str) -> tuple[str, str]:
    """A reward's name, and what a rollout earns by it. The whole `group` is scored, since some
    rewards compare the rollouts of a group with each other."""
    name, options = own_reward(Path(row["folder"]), row["style"]) if reward == OWN else (reward, {})
    heading = ", ".join([name, *(f"{key} {value}" for key, value in options.items())])
    if name.startswith("program") != row["style"].startswith("program"):
        return f"reward {heading}", "is not made for what this completion holds"
    texts = group.loc[group.index.repeat(group["count"]), "completion"].tolist()
    try:
        scores = score_group(get_reward(name, options), texts, problem)
        score = scores[texts.index(row["completion"])]
    except Exception as error:  # a reward of the user's own may raise anything
        return f"reward {heading}", str(error) if isinstance(error, ValueError) else repr(error)
    return f"reward {heading}", f"{score.total:.3f}: " + ", ".join(
        f"{key} {v:.3g}" for key, v in score.parts.items()
    )


def own_reward(folder: Path, style: str) -> tuple[str, dict]:
    """The reward that the policy of a run was trained with, and its options. If it is not known,
    the simplest reward for this prompt style."""
    fields = record(folder)
    root = folder.parents[2]
    training_run = root / fields["method"] / str(fields["seed"])
    parameters = record(training_run)["parameters"] if (training_run / "run.json").exists() else {}
    default = (
        "program"
        if style.startswith("program")
        else "trace_outcome"
        if style == "trace"
        else "sparse"
    )
    return parameters.get("reward", default), parameters.get("reward_options", {})


def pieces(text: str, problem: Problem, style: str) -> Iterator[tuple[str, str]]:
    """The completion cut into pieces (text, look). A step, or a line of a trace, has a look of
    CSS_CLASSES, and " ro-again" as well if it is repeated; other text has the look ""."""
    excerpt = text[:LONGEST]
    position = 0
    for item in (
        verify_trace(excerpt, problem).lines if style == "trace" else verify_steps(excerpt, problem)
    ):
        well_formed = getattr(item, "well_formed", True) and getattr(item, "kind", "") != "other"
        is_true = item.arithmetic_ok and getattr(item, "state_ok", True)
        look = (
            "ro-form"
            if not well_formed
            else "ro-wrong"
            if not is_true
            else "ro-ok"
            if item.in_pool
            else "ro-pool"
        )
        yield excerpt[position : item.span[0]], ""
        yield excerpt[slice(*item.span)], look + " ro-again" * item.repeated
        position = item.span[1]
    yield excerpt[position:], ""
    if len(text) > LONGEST:
        yield f"\n… {len(text) - LONGEST:,} more characters", ""


def trees(expr: Expr | None, problem: Problem) -> list[tuple[str, dict]] | str:
    """The drawn trees of the answer and of the nearest solution, with the nodes in which they
    differ. If there is no tree, a text that says why."""
    nearest = nearest_solution(expr, problem)
    if expr is None or nearest is None:
        return "no tree to draw" if expr is None else "the problem has no solution"
    diff = {index for index, _ in labels(expr).items() ^ labels(nearest).items()}
    if not diff:
        return [("answer, a solution", drawing(expr))]
    caption = (
        f"nearest solution, {len(diff)} node{'s' * (len(diff) > 1)} differ{'s' * (len(diff) == 1)}"
    )
    return [("answer", drawing(expr, diff)), (caption, drawing(nearest, diff))]


def labels(expr: Expr) -> dict[int, str]:
    """The text of the node at each position of a tree: 0 is the root, 2i + 1 and 2i + 2 are the
    children of i."""
    texts = {}
    stack = [(expr, 0)]
    while stack:
        node, index = stack.pop()
        texts[index] = (
            str(node.value) if isinstance(node, Num) else "−" if isinstance(node, Neg) else node.op
        )
        stack += [
            (child, 2 * index + 1 + side)
            for side, child in enumerate(children(node))
            if child is not None
        ]
    return texts


def left_to_right(nodes: Container[int], root: int = 0) -> list[int]:
    """The nodes of a binary tree in the order of its text: left branch, node, right branch. Node i
    has the branches 2i + 1 and 2i + 2."""
    if root not in nodes:
        return []
    left = left_to_right(nodes, 2 * root + 1)
    right = left_to_right(nodes, 2 * root + 2)
    return [*left, root, *right]


def drawing(expr: Expr, diff: Iterable[int] = ()) -> dict:
    """Where explorer.html draws the nodes of a tree, in pixels. The nodes stand from left to right
    in the order of an in-order walk. diff: the positions (keys of `labels`) of the nodes to draw in
    red."""
    texts = labels(expr)
    text = render(expr)
    if len(texts) > WIDEST:
        return {"nodes": [], "size": len(texts), "text": text}
    in_order = left_to_right(texts)
    points = {}
    for i, index in enumerate(in_order):
        level = (index + 1).bit_length()
        points[index] = (18 + 26 * i, 34 * level - 18)
    nodes = [(*points[index], texts[index], index in diff) for index in in_order]
    edges = [(*points[index], *points[(index - 1) // 2]) for index in in_order if index]
    width, height = np.max(list(points.values()), axis=0) + 18
    return {"nodes": nodes, "edges": edges, "text": text, "width": width, "height": height}


def states(actions: str, problem: Problem) -> Iterator[tuple[str, str, int]]:
    """An agent's game: each action, the numbers that remain after it, and the number of solutions
    that they still have. The first entry is the start, with "" as its action."""
    game_states = [initial(problem)]
    tags = re.findall(r"<pick>[^<>]+</pick>", actions)
    for text in tags:
        action = parse_action(text, game_states[-1])
        assert isinstance(action, Action), action
        game_states.append(step(game_states[-1], action))
    remaining = [", ".join(map(render_number, state.nums)) for state in game_states]
    return zip(["", *tags], remaining, count_solutions(game_states).tolist(), strict=True)
