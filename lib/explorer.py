"""Rollouts to look at: judged once, chosen by columns, drawn as HTML in which model text is only ever text.

What is not `Markup` is escaped when it is put into markup, so a completion cannot become a tag. Notebook 91 puts the
widgets around this.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from lib import plots
from lib.distance import nearest_solution
from lib.environment import count_solutions, initial, parse_action, render_number, step
from lib.expression import Expr, Neg, Num, children, numbers, render
from lib.files import read_table
from lib.generation import Sampling, sample
from lib.metrics import told
from lib.model import load_policy
from lib.paths import REFERENCE, RUNS
from lib.problem import Problem
from lib.rewards import get_reward
from lib.search import SearchSettings, search_table
from lib.solver import count, solutions
from lib.steps import verify_steps
from lib.verifiers import VERIFIERS, judge, verify_program, verify_trace

LONGEST, WIDEST = 20_000, 63  # characters of a completion, nodes of a tree that are drawn
CSS = Markup("""<style>
.ro { font: 13px/1.45 sans-serif; color: #222; background: #fff; }
.ro > p { margin: 4px 0; } .ro > p span { padding: 1px 4px; }
.ro td { padding: 1px 1em 1px 0; text-align: left; vertical-align: top; } .ro td:first-child { white-space: nowrap; }
.ro pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 12px/1.6 monospace; background: #fafafa; }
.ro-row { display: flex; flex-wrap: wrap; gap: 12px 24px; } .ro svg, .ro code { display: block; }
.ro-card { flex: 1 1 300px; min-width: 300px; border-top: 4px solid; padding: 4px; }
.ro-ok { background: #cdebd3; } .ro-wrong { background: #f7c6c0; } .ro-pool { background: #fbe3b0; }
.ro-form { background: #e3d3ee; } .ro-again { border-bottom: 2px dotted #555; }
</style>""")
FAULTS = {"ro-form": "not in the form", "ro-wrong": "wrong arithmetic or state", "ro-pool": "numbers not available"}
LOOKS = {"ro-ok": "legal"} | FAULTS | {"ro-again": "repeated"}


def join(*parts) -> Markup:
    """The parts one after the other; what is not markup is escaped."""
    return Markup().join(parts)


def tag(name: str, *inside, **attributes) -> Markup:
    """An element. `class_` stands for class, `text_anchor` for text-anchor."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(v)}"' for key, v in attributes.items())
    return Markup(f"<{name}{given}>{join(*inside)}</{name}>")


def as_table(rows: Iterable[tuple]) -> Markup:
    return tag("table", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))


# --- loading and choosing -------------------------------------------------------------------------


def find(profile: str, *files: str) -> dict[str, Path]:
    """Runs of a profile, here and in the reference, that have one of some files: name, with the source, to folder."""
    roots = {"": RUNS / profile, " (reference)": REFERENCE / profile}
    records = [(root, source, path.parent) for source, root in roots.items() for path in sorted(root.rglob("run.json"))]
    found = {
        folder.relative_to(root).as_posix() + source: folder
        for root, source, folder in records
        if any((folder / file).exists() for file in files)
    }
    if not found:
        raise FileNotFoundError(
            f"no run of profile {profile!r} has {' or '.join(files)}: `make study PROFILE={profile}`"
        )
    return found


def parameters(folder: Path) -> dict:
    """What a run was made with."""
    return json.loads((folder / "run.json").read_text())["parameters"]


def load(runs: dict[str, Path]) -> pd.DataFrame:
    """All completions and finished games of some runs, a row each; equal ones are once there where they are saved so.

    Beside the saved columns those of `judged`; run; place (the number of the problem); solved: the share of its run's
    completions of the problem that are correct.
    """
    table = pd.concat([read_judged(folder).assign(run=name) for name, folder in runs.items()], ignore_index=True)
    table = table.astype(dict.fromkeys(("run", "set", "status", "style"), "category"))
    place = table.groupby(["set", "problem"], observed=True).ngroup()
    sums = table[["run"]].assign(place=place, n=table["count"], c=table["count"] * table["correct"])
    sums = sums.groupby(["run", "place"], observed=True)[["n", "c"]].transform("sum")
    return table.assign(place=place, solved=sums["c"] / sums["n"])


@lru_cache
def read_judged(folder: Path) -> pd.DataFrame:
    """What one run wrote, `judged`."""
    game, method = folder / "trajectories.parquet", told(folder)["method"]
    if game.exists():
        return judged(read_table(game), "pick").assign(method=method)
    return judged(read_table(folder / "generations.parquet"), parameters(folder)["prompt_style"]).assign(method=method)


def judged(table: pd.DataFrame, style: str) -> pd.DataFrame:
    """Completions of a prompt style with verdicts and attempts; of the saved columns those that are not there."""
    table = judge(table, style if style in VERIFIERS else "free").assign(style=style)
    defaults = {"set": "typed", "finish": "stop", "actions": "", "logprob": np.nan}  # a search may find no game
    asked = zip(table["nums"], table["target"], table["completion"], strict=True)
    tried = [attempts(style, text, Problem(tuple(map(int, nums)), int(target))) for nums, target, text in asked]
    return table.assign(attempts=tried, **{key: value for key, value in defaults.items() if key not in table})


def attempts(style: str, completion: str, problem: Problem) -> int:
    """The attempts of `verify_steps`, a program's lines that use every number, a trace's ways; a game is one."""
    if style in ("free", "words"):
        return max((one.attempt + 1 for one in verify_steps(completion, problem)), default=0)
    if style in ("program", "program_words"):
        made = verify_program(completion, problem).assignments
        return sum(numbers(expr) == Counter(problem.nums) for expr in made)
    return 1 + (style == "trace") * sum(line.kind == "backtrack" for line in verify_trace(completion, problem).lines)


SORTS = ["as saved", "logprob", "tokens", "attempts", "disagreement"]


def choose(table: pd.DataFrame, runs, name: str, statuses, tried: tuple, differ: bool, sort: str) -> np.ndarray:
    """Positions of the rollouts of some runs on a set with one of some verdicts and `tried` (least, most) attempts.

    differ: only problems that one of these runs has solved and another never. sort: one of SORTS; the likeliest, the
    fewest, and where the runs' shares of correct completions are furthest apart come first.
    """
    there = ((table["set"] == name) & table["run"].isin(list(runs))).to_numpy()
    chosen = there & table["status"].isin(list(statuses)).to_numpy() & table["attempts"].between(*tried).to_numpy()
    if differ or sort == "disagreement":
        share = table.loc[there].groupby("place")["solved"].agg(["min", "max"]).reindex(range(table["place"].max() + 1))
        low, high = share.to_numpy()[table["place"]].T
        chosen &= (low == 0) & (high > 0) if differ else True
    at = np.flatnonzero(chosen)
    if sort == "as saved":
        return at
    key = low - high if sort == "disagreement" else table[sort].to_numpy() * (-1 if sort == "logprob" else 1)
    return at[np.argsort(key[at], kind="stable")]


def beside(table: pd.DataFrame, position: int, runs: Iterable[str], draw: int = 0) -> list[int]:
    """For each run a rollout on the problem of the one at `position`: of its own run this one, of the others their
    first, or the `draw`-th after it."""
    here, found = np.flatnonzero((table["place"] == table["place"].iloc[position]).to_numpy()), []
    for run in runs:
        mine = here[(table["run"].iloc[here] == run).to_numpy()]
        start = np.flatnonzero(mine == position)
        found += mine[[(start.sum() + draw) % len(mine)]].tolist() if len(mine) else []
    return found


# --- one rollout ----------------------------------------------------------------------------------


def problem_of(row) -> Problem:
    return Problem(tuple(map(int, row["nums"])), int(row["target"]))


def line(row) -> str:
    """A rollout in a list: nothing that a model wrote."""
    asked = f"{', '.join(map(str, row.nums))} → {row.target}"
    return f"{row.run} · {asked} · {row.status} · {row.attempts} attempts · {row.tokens} tokens"


def page(table: pd.DataFrame, positions: list[int], reward: str) -> Markup:
    """Rollouts on one problem side by side, under what the colours mean and the problem's solutions."""
    colours = (join(" ", tag("span", what, class_=look)) for look, what in LOOKS.items())
    cards = (card(table, position, reward) for position in positions)
    solved = all_solutions(problem_of(table.iloc[positions[0]]))
    return CSS + tag("div", tag("p", "steps:", *colours), solved, tag("div", *cards, class_="ro-row"), class_="ro")


def card(table: pd.DataFrame, position: int, reward: str) -> Markup:
    """One rollout: verdict, text with its steps coloured or the states of a game, trees, what a reward gives for it."""
    row = table.iloc[position]
    group = table[(table["place"] == row["place"]) & (table["run"] == row["run"])]
    problem, texts = problem_of(row), group.loc[group.index.repeat(group["count"]), "completion"].tolist()
    verdict = VERIFIERS.get(row["style"], VERIFIERS["free"])(row["completion"], problem)
    score = get_reward(reward)(texts, problem)[texts.index(row["completion"])]  # to some rewards the group matters
    status = tag("span", row["status"].replace("_", " "), class_="ro-ok" if row["correct"] else "ro-wrong")
    right = (group["count"] * group["correct"]).sum()
    facts = [
        ("verdict", join(status, "" if verdict.value is None else f", value {verdict.value}")),
        ("log-probability", f"{row['logprob']:.2f}, {row['logprob'] / max(row['tokens'], 1):.3f} a token"),
        ("tokens", f"{row['tokens']}, ended by {'the cap' if row['finish'] == 'length' else 'itself'}"),
        ("attempts", row["attempts"]),
        ("group", f"drawn {row['count']} times of {group['count'].sum()}, {right} of them correct"),
        (f"reward {reward}", f"{score.total:.3f}: " + ", ".join(f"{k} {v:.3g}" for k, v in score.parts.items())),
    ]
    body = game(row, problem) if row["actions"] else tag("pre", marked(row["completion"], problem, row["style"]))
    look = plots.METHODS.get(row.get("method"))
    parts = [tag("b", row["run"]), as_table(facts), body, trees(verdict.expression, problem)]
    return tag("div", *parts, class_="ro-card", style=f"border-color: {look.colour if look else '#999'}")


def marked(text: str, problem: Problem, style: str) -> Markup:
    """The completion, its steps (a trace's lines) on the colour of their verdict, which a tooltip says too."""
    shown, at, parts = text[:LONGEST], 0, []
    for start, end, look, repeated in spans(shown, problem, style):
        why = LOOKS[look] + ", repeated" * repeated
        parts += [shown[at:start], tag("span", shown[start:end], class_=look + " ro-again" * repeated, title=why)]
        at = end
    rest = len(text) - len(shown)
    return join(*parts, shown[at:], f"\n… {rest:,} more characters" if rest else "")


def spans(text: str, problem: Problem, style: str) -> Iterator[tuple[int, int, str, bool]]:
    """(start, end, a key of FAULTS or ro-ok, repeated) of every step, in order."""

    def worst(*faults: bool) -> str:
        return next((look for look, is_so in zip(FAULTS, faults, strict=True) if is_so), "ro-ok")

    if style == "trace":
        for line in verify_trace(text, problem).lines:
            look = worst(line.kind == "other", not (line.arithmetic_ok and line.state_ok), not line.in_pool)
            yield *line.span, look, line.repeated
        return
    for one in verify_steps(text, problem):
        yield *one.span, worst(not one.well_formed, not one.arithmetic_ok, not one.in_pool), one.repeated


def trees(expr: Expr | None, problem: Problem) -> Markup:
    """The answer's tree beside the nearest solution's, the nodes that differ in red."""
    nearest = nearest_solution(expr, problem)
    if expr is None or nearest is None:
        return tag("p", "no tree to draw" if expr is None else "the problem has no solution")
    mine, theirs = labels(expr), labels(nearest)
    differ = {at for at in mine.keys() | theirs.keys() if mine.get(at) != theirs.get(at)}
    sides = {"answer": (expr, mine), f"nearest solution, {len(differ)} nodes differ": (nearest, theirs)}
    drawings = (tag("div", title, drawn(at, differ), tag("code", render(of))) for title, (of, at) in sides.items())
    return tag("div", *drawings, class_="ro-row")


def labels(expr: Expr) -> dict[int, str]:
    """What stands at each position of a tree: 0 is the root, 2i + 1 and 2i + 2 are the children of i."""
    found, stack = {}, [(expr, 0)]
    while stack:
        node, at = stack.pop()
        found[at] = str(node.value) if isinstance(node, Num) else "−" if isinstance(node, Neg) else node.op
        stack += [(child, 2 * at + 1 + side) for side, child in enumerate(children(node)) if child is not None]
    return found


def drawn(names: dict[int, str], differ: set[int]) -> Markup:
    """A tree of `labels` as SVG, from left to right in order."""
    if len(names) > WIDEST:
        return tag("p", f"{len(names)} nodes are too many to draw")

    def in_order(at: int) -> list[int]:
        return [*in_order(2 * at + 1), at, *in_order(2 * at + 2)] if at in names else []

    x = {at: 18 + 26 * i for i, at in enumerate(in_order(0))}
    y = {at: 34 * (at + 1).bit_length() - 18 for at in x}
    ups = [(at, (at - 1) // 2) for at in x if at]
    lines = [tag("line", x1=x[at], y1=y[at], x2=x[up], y2=y[up], stroke="#999") for at, up in ups]
    marks = [tag("circle", cx=x[at], cy=y[at], r=13, fill="#f7c6c0" if at in differ else "#eee") for at in x]
    texts = [tag("text", names[at], x=x[at], y=y[at] + 4, text_anchor="middle", font_size=12) for at in x]
    return tag("svg", *lines, *marks, *texts, width=max(x.values()) + 18, height=max(y.values()) + 18)


def game(row: pd.Series, problem: Problem) -> Markup:
    """An agent's trajectory state by state, with the solutions that each state leaves."""
    states, said = [initial(problem)], re.findall(r"<pick>[^<>]+</pick>", row["actions"])
    for text in said:
        states.append(step(states[-1], parse_action(text, states[-1])))
    left = [tag("span", c, class_="ro-ok" if c else "ro-wrong") for c in count_solutions(states)]
    numbers_left = [", ".join(map(render_number, state.nums)) for state in states]
    return as_table([("action", "numbers", "solutions left"), *zip(["", *said], numbers_left, left, strict=True)])


@lru_cache
def all_solutions(problem: Problem, most: int = 60) -> Markup:
    """How many solutions a problem has, and the first `most` of them."""
    total, texts = count(problem), [render(tree) for tree in islice(solutions(problem), most)]
    title = f"{total} solutions of {', '.join(map(str, problem.nums))} → {problem.target}, up to commuting"
    return tag("details", tag("summary", title), tag("pre", "\n".join([*texts, "…" * (total > most)])))


policy = lru_cache(maxsize=2)(load_policy)


def live(folder: Path, typed: str, target: int, n: int, seed: int) -> pd.DataFrame:
    """`n` rollouts of a run's policy on a problem as typed, in the form of `load`; of the agent a search of budget n/n.

    Raises ValueError where that is no problem."""
    words = re.split(r"[\s,;]+", typed.strip())
    if not 2 <= len(words) <= 6 or not all(re.fullmatch("[1-9][0-9]{0,2}", word) for word in words):
        raise ValueError("two to six numbers from 1 to 999, as in: 44 19 35")
    rows, given = [{"nums": list(map(int, words)), "target": target}], parameters(folder)
    if (style := given.get("prompt_style", "free")) == "pick":
        table = search_table(*policy(folder), rows, SearchSettings(beams=n, samples=n), seed)
    else:
        sampling = Sampling(0.6, top_p=0.95, top_k=20, max_tokens=given.get("max_tokens", 160))
        table = sample(*policy(folder), rows, n, sampling, seed, style)
    return judged(table, style).assign(**told(folder), place=0)
