"""Pages that show rollouts: finds, judges and chooses rollouts, and draws them with the markup of explorer.html.

Jinja escapes all text that is put into the markup, so no completion can inject HTML. The widgets are in
`lib.study.widgets`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib.files import REFERENCE, RUNS
from lib.game.distance import nearest_solution
from lib.game.expression import Expr, Neg, Num, children, numbers, render
from lib.game.mdp import Action, count_solutions, initial, parse_action, render_number, step
from lib.game.problem import Problem, as_problem, problems
from lib.game.solver import solutions
from lib.game.steps import verify_steps
from lib.game.verifiers import VERIFIERS, verify_program, verify_trace
from lib.rewards import get_reward
from lib.study import judging
from lib.study.methods import methods, rank

LONGEST, WIDEST = 20_000, 63  # at most so many characters of a completion and nodes of a tree are shown
LOOKS = {
    "ro-ok": "legal",
    "ro-form": "not in the form",
    "ro-wrong": "wrong arithmetic or state",
    "ro-pool": "numbers not available",
    "ro-again": "repeated",
}
OWN = "its own"  # the reward that a policy was trained with
SORTS = ["disagreement", "as saved", "logprob", "tokens", "attempts"]

_loader = FileSystemLoader(Path(__file__).parent)
_environment = Environment(loader=_loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined)
_environment.globals["looks"] = LOOKS
markup = _environment.get_template("explorer.html").module  # has the macros, which return markup

# --- loading and choosing -------------------------------------------------------------------------


WRITTEN = ("generations.parquet", "trajectories.parquet")  # files of runs that hold rollouts


def profiles() -> list[str]:
    """The names of the profiles that have a finished run with rollouts, whether committed or made on this machine."""
    runs = {path.parent for root in (REFERENCE, RUNS) for file in WRITTEN for path in root.glob(f"*/*/*/*/{file}")}
    return sorted({folder.parts[-4] for folder in runs if (folder / "run.json").exists()})


def find(profile: str, *files: str) -> dict[str, Path]:
    """The folders of a profile's finished runs that hold at least one of `files`, by kind/name/seed, with " (yours)" at
    the end for a run made on this machine. Sampling runs come first; the rest of the order is that of `methods`. Raises
    FileNotFoundError if there is no such run."""
    found = {}
    for root, source in ((REFERENCE / profile, ""), (RUNS / profile, " (yours)")):
        for folder in (path.parent for path in root.rglob("run.json")):
            if any((folder / file).exists() for file in files):
                found[folder.relative_to(root).as_posix() + source] = folder
    if not found:
        wanted = " or ".join(files)
        raise FileNotFoundError(f"no run of profile {profile!r} has {wanted}: `make study PROFILE={profile}`")
    order = sorted((not name.startswith("sample/"), rank(record(found[name])["method"]), name) for name in found)
    return {name: found[name] for *_, name in order}


record = cache(judging.record)


def title(folder: Path) -> str:
    """A run's title: its method's label, and the seed."""
    method = record(folder)["method"]
    return f"{methods()['label'].get(method, method)}, seed {record(folder)['seed']}"


def load(runs: dict[str, Path]) -> pd.DataFrame:
    """All completions and finished games of some runs with their verdicts, one row per distinct completion.

    Columns: those of `judging.samples` or `judging.games`; run (a key of `runs`) and folder; place, a number for each
    problem of each set; solved, the share of the run's completions of this problem that are correct.
    """
    table = pd.concat([_read(folder).assign(run=run) for run, folder in runs.items()], ignore_index=True)
    table = table.astype(dict.fromkeys(("run", "folder", "set", "status", "style"), "category"))
    table["place"] = table.groupby(["set", "problem"], observed=True).ngroup()
    sums = pd.DataFrame({"drawn": table["count"], "right": table["count"] * table["correct"]})
    sums = sums.groupby([table["run"], table["place"]], observed=True).transform("sum")
    return table.assign(solved=sums["right"] / sums["drawn"])


@lru_cache
def _read(folder: Path) -> pd.DataFrame:
    plays = (folder / "trajectories.parquet").exists()
    table = judging.games(folder, texts=True).assign(style="pick") if plays else judging.samples(folder, texts=True)
    return complete(table, folder)


def complete(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Judged rows of a run, to which the columns that this kind of run does not have are added."""
    given = {"set": "typed", "finish": "stop", "actions": "", "logprob": np.nan, "count": 1}
    return table.assign(folder=str(folder), **{key: value for key, value in given.items() if key not in table})


def size(rows: pd.DataFrame) -> str:
    """Says how many rollouts these rows stand for, and how many of them are different. Without rows, says so."""
    if rows.empty:
        return "no rollout passes these filters"
    drawn = int(rows["count"].sum())
    return f"{drawn:,} rollouts" + (f", {len(rows):,} of them different" if len(rows) < drawn else "")


@lru_cache(maxsize=1 << 18)
def attempts(style: str, completion: str, problem: Problem) -> int:
    """The number of attempts that `verify_steps` counts; for a program the number of lines that use every number."""
    if style.startswith("program"):
        made = verify_program(completion, problem).assignments
        return sum(numbers(expr) == Counter(problem.nums) for expr in made)
    return max((one.attempt + 1 for one in verify_steps(completion, problem)), default=0)


def choose(table: pd.DataFrame, runs, name: str, statuses, least: int, differ: bool, sort: str) -> np.ndarray:
    """Positions in `table`, which is one of `load`, int64, of the rollouts of `runs` on the set `name` that have one of
    `statuses` and at least `least` attempts.

    differ: keeps only problems that one of these runs has solved and another one has never solved.
    sort: one of SORTS. First come the problems on which the runs' shares of correct completions differ most
    ("disagreement"), the completions with the highest log-probability ("logprob"), or those with the fewest tokens or
    attempts.
    """
    rows = table[(table["set"] == name) & table["run"].isin(list(runs))]
    shares = rows.groupby("place")["solved"]
    low, high = shares.transform("min"), shares.transform("max")
    wanted = rows["status"].isin(list(statuses))
    if differ:
        wanted &= (low == 0) & (high > 0)
    rows = rows.assign(disagreement=high - low)[wanted]
    if least or sort == "attempts":  # counting attempts takes a second per run
        tried = [*map(attempts, rows["style"], rows["completion"], problems(rows))]
        rows = rows.assign(attempts=tried).query("attempts >= @least")
    if sort != "as saved":
        rows = rows.sort_values(sort, ascending=sort in ("tokens", "attempts"), kind="stable")
    return rows.index.to_numpy()


def beside(table: pd.DataFrame, position: int, runs: Iterable[str], kept: np.ndarray, draw: int = 0) -> list[int]:
    """Positions of one row per run, all on the problem of the row at `position`. The run of that row is represented by
    it, every other run by its first row among `kept` (what a filter has let through), or else by its first row. `draw`
    moves on by so many rows within each run, and after a run's last row starts again at its first."""
    here, found = table[table["place"] == table["place"].iloc[position]], []
    for run in runs:
        mine = here.index[here["run"] == run]
        first = mine.isin([position] if position in mine else kept)
        if len(mine):
            found.append(int(mine[(first.argmax() + draw) % len(mine)]))
    return found


# --- one rollout ----------------------------------------------------------------------------------


def line(row: pd.Series) -> str:
    """The line for a rollout in a list. It contains no text that a model wrote."""
    asked = f"{', '.join(map(str, row['nums']))} → {row['target']}"
    count = attempts(row["style"], row["completion"], as_problem(row["nums"], row["target"]))
    return f"{title(Path(row['folder']))} · {asked} · {row['status']} · {count} attempts · {row['tokens']} tokens"


def page(table: pd.DataFrame, positions: list[int], reward: str = OWN) -> str:
    """The markup of rollouts on one problem, side by side. Above them are the meaning of the colours and the first 60
    solutions of the problem."""
    problem = as_problem(*table.iloc[positions[0]][["nums", "target"]])
    cards, found = [card(table, one, reward) for one in positions], solutions(problem)
    return str(markup.page(cards, problem, len(found), [render(tree) for tree in found[:60]]))  # pyright: ignore[reportAttributeAccessIssue]


def card(table: pd.DataFrame, position: int, reward: str) -> dict:
    """What explorer.html shows of the rollout at `position`: its verdict and reward, its text in coloured pieces or the
    states of its game, and its trees."""
    row = table.iloc[position]
    group = table[(table["place"] == row["place"]) & (table["run"] == row["run"])]
    problem, folder = as_problem(row["nums"], row["target"]), Path(row["folder"])
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
    """A reward's name, and what a rollout earns by it. The whole `group` is scored, since some rewards compare the
    rollouts of a group with each other."""
    name, options = own_reward(Path(row["folder"]), row["style"]) if reward == OWN else (reward, {})
    said = ", ".join([name, *(f"{key} {value}" for key, value in options.items())])
    if name.startswith("program") != row["style"].startswith("program"):
        return f"reward {said}", "is not made for what this completion holds"
    texts = group.loc[group.index.repeat(group["count"]), "completion"].tolist()
    try:
        score = get_reward(name, options)(texts, problem)[texts.index(row["completion"])]
    except ValueError as error:  # such as a reward that was deleted
        return f"reward {said}", str(error)
    return f"reward {said}", f"{score.total:.3f}: " + ", ".join(f"{key} {v:.3g}" for key, v in score.parts.items())


@lru_cache
def own_reward(folder: Path, style: str) -> tuple[str, dict]:
    """The reward that the policy of a run was trained with, and its options. If it is not known, the simplest reward
    for this prompt style."""
    made, root = record(folder), folder.parents[2]
    trained = root / made["method"] / str(made["seed"])
    given = record(trained)["parameters"] if (trained / "run.json").exists() else {}
    plain = "program" if style.startswith("program") else "trace_outcome" if style == "trace" else "sparse"
    return given.get("reward", plain), given.get("reward_options", {})


def pieces(text: str, problem: Problem, style: str) -> Iterator[tuple[str, str]]:
    """The completion cut into pieces (text, look). A step, or a line of a trace, has a look of LOOKS, and " ro-again"
    as well if it is repeated; other text has the look ""."""
    shown, at = text[:LONGEST], 0
    for one in verify_trace(shown, problem).lines if style == "trace" else verify_steps(shown, problem):
        formed = getattr(one, "well_formed", True) and getattr(one, "kind", "") != "other"
        holds = one.arithmetic_ok and getattr(one, "state_ok", True)
        look = "ro-form" if not formed else "ro-wrong" if not holds else "ro-ok" if one.in_pool else "ro-pool"
        yield shown[at : one.span[0]], ""
        yield shown[slice(*one.span)], look + " ro-again" * one.repeated
        at = one.span[1]
    yield shown[at:], ""
    if len(text) > LONGEST:
        yield f"\n… {len(text) - LONGEST:,} more characters", ""


def trees(expr: Expr | None, problem: Problem) -> list[tuple[str, dict]] | str:
    """The drawn trees of the answer and of the nearest solution, with the nodes in which they differ. If there is no
    tree, a text that says why."""
    nearest = nearest_solution(expr, problem)
    if expr is None or nearest is None:
        return "no tree to draw" if expr is None else "the problem has no solution"
    differ = {at for at, _ in labels(expr).items() ^ labels(nearest).items()}
    if not differ:
        return [("answer, a solution", drawing(expr))]
    what = f"nearest solution, {len(differ)} node{'s' * (len(differ) > 1)} differ{'s' * (len(differ) == 1)}"
    return [("answer", drawing(expr, differ)), (what, drawing(nearest, differ))]


def labels(expr: Expr) -> dict[int, str]:
    """The text of the node at each position of a tree: 0 is the root, 2i + 1 and 2i + 2 are the children of i."""
    found, stack = {}, [(expr, 0)]
    while stack:
        node, at = stack.pop()
        found[at] = str(node.value) if isinstance(node, Num) else "−" if isinstance(node, Neg) else node.op
        stack += [(child, 2 * at + 1 + side) for side, child in enumerate(children(node)) if child is not None]
    return found


def drawing(expr: Expr, differ: Iterable[int] = ()) -> dict:
    """Where explorer.html draws the nodes of a tree, in pixels. The nodes stand from left to right in the order of an
    in-order walk. differ: the positions (keys of `labels`) of the nodes to draw in red."""
    names, text = labels(expr), render(expr)
    if len(names) > WIDEST:
        return {"nodes": [], "size": len(names), "text": text}
    in_order = sorted(names, key=lambda at: Fraction(2 * at + 3, 1 << (at + 1).bit_length()))
    place = {at: (18 + 26 * i, 34 * (at + 1).bit_length() - 18) for i, at in enumerate(in_order)}
    nodes = [(*place[at], names[at], at in differ) for at in in_order]
    edges = [(*place[at], *place[(at - 1) // 2]) for at in in_order if at]
    width, height = np.max(list(place.values()), axis=0) + 18
    return {"nodes": nodes, "edges": edges, "text": text, "width": width, "height": height}


def states(actions: str, problem: Problem) -> Iterator[tuple[str, str, int]]:
    """An agent's game: each action, the numbers that remain after it, and the number of solutions that they still have.
    The first entry is the start, with "" as its action."""
    passed, said = [initial(problem)], re.findall(r"<pick>[^<>]+</pick>", actions)
    for text in said:
        action = parse_action(text, passed[-1])
        assert isinstance(action, Action), action
        passed.append(step(passed[-1], action))
    left = [", ".join(map(render_number, state.nums)) for state in passed]
    return zip(["", *said], left, count_solutions(passed).tolist(), strict=True)
