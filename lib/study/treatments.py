"""The check of treatment: did a method change what it is meant to change?

A method that leaves its training or its search as it was cannot show what its idea is worth,
whatever its policy solves. So data/paper/treatments.csv says for each method, in one number, what
it is meant to change, and from which value on it has. Each row was written down before its number
was computed, or says that the number was known (column `known`); some of the runs were older. A
study shows this table before its results, and `lib.study.tally` calls a contrast with a method that
did not act *untested*.

Columns of the file: study; method and baseline, names of data/methods.csv (a method may hold *),
with " 135M" for those of the pretrained model, and for source games names of systems;
what, in words; metric; source, where the metric comes from; set; of, whether the threshold is for
the method's own number (level), its difference from the baseline, or its ratio to it; direction and
threshold; paper, the paper's number, with paper_source; note; known. The sources are

log          a summary of the training log, as in `metrics.log_scores`; "mean x" is the mean over
             the whole run, and "groups with a signal" is the number of groups of an update whose
             rewards differ
samples      completions of the policy: the columns of `metrics.text_scores`; "first state right",
             the share of texts with a state whose first one holds the problem's numbers; "last
             check says yes"; "reached without a correct answer", traces that end at the target and
             answer wrongly
reward       what the method's reward, or its difference from the baseline's (`added`), does to
             completions of the policy where the method starts, before any training: see
             `of_reward`
search       "rejected", the share of all sampled tags that name no legal action, at 16/16
games        a number of the searches of two systems of one policy, with and without the treatment:
             see `of_games`
calibration  "area under the curve" of a learned value against the solver
exact        how games end after the last update, by tables of notebook 82: won, wrong, illegal,
             entropy, divergence
setting      a parameter of the run: the change is the setting itself
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.files import PAPER, read_table
from lib.game.mdp import State, count_solutions
from lib.game.problem import Problem
from lib.game.verifiers import REJECTIONS
from lib.rewards import get_reward
from lib.study import intervals, judging, metrics, moments, plots, systems
from lib.study.restarts import begun_from
from lib.study.systems import System

SOURCES = ["log", "samples", "reward", "search", "games", "calibration", "exact", "setting"]
# the kind of runs that a source reads, beside training
KINDS = {
    "search": "searches",
    "games": "searches",
    "calibration": "calibration",
    "samples": "samples",
}
COLUMNS = [
    "method",
    "baseline",
    "what",
    "metric",
    "of",
    "direction",
    "threshold",
    "own",
    "own_low",
    "own_high",
    "of_baseline",
    "baseline_low",
    "baseline_high",
    "estimate",
    "low",
    "high",
    "runs",
]
COLUMNS += ["acted", "sure", "paper", "known"]
# of the set, on which rewards are compared: each needs every completion of every group
PROBLEMS = 250
STATE = re.compile(r"state +\[([^\[\]]+)\]", re.IGNORECASE)
MOVE = "<pick>"  # begins each move of a game


def planned(study: str | None = None) -> pd.DataFrame:
    """The rows of the file, of one study or of all. Raises ValueError that names the row and its
    broken rule."""
    texts = ["baseline", "set", "paper_source", "note"]
    table = pd.read_csv(PAPER / "treatments.csv", dtype=dict.fromkeys(texts, "str")).fillna(
        dict.fromkeys(texts, "")
    )
    rules = {
        "source": SOURCES,
        "of": ["level", "difference", "ratio"],
        "direction": ["at least", "at most"],
    }
    for column, allowed in rules.items():
        for row in table[~table[column].isin(allowed)].itertuples():
            raise ValueError(
                f"treatments.csv, {row.method}: {column} must be one of {', '.join(allowed)}"
            )
    for row in table[(table["of"] != "level") & (table["baseline"] == "")].itertuples():
        raise ValueError(f"treatments.csv, {row.method}: a {row.of} needs a baseline")
    for row in table[(table["of"] == "ratio") & (table["source"] != "log")].itertuples():
        raise ValueError(f"treatments.csv, {row.method}: only numbers of a log have a ratio")
    for row in table[table["source"] == "games"].itertuples():
        for name in (row.method, row.baseline):
            if systems.find(str(name)) is None:
                raise ValueError(f"treatments.csv, {row.method}: {name!r} is no known system")
    return table if study is None else table[table["study"] == study].reset_index(drop=True)


class Runs:
    """The finished runs that a study reads, by method. A row is judged if the runs that it needs
    are among them."""

    def __init__(self, training=(), samples=(), searches=(), calibration=()):
        patterns = {
            "training": training,
            "samples": samples,
            "searches": searches,
            "calibration": calibration,
        }
        self.folders = {kind: judging.folders(list(names)) for kind, names in patterns.items()}

    def of(self, kind: str, methods: Iterable[str]) -> list[Path]:
        """The runs of a kind that are about these methods."""
        wanted = set(methods)
        return [folder for folder in self.folders[kind] if about(folder) in wanted]

    def methods(self, kind: str) -> set[str]:
        return {about(folder) for folder in self.folders[kind]}


def about(folder: Path) -> str:
    """The method that a run is about. A run that checks a learned value is about the policy that
    has it; a search by such a value is about the policy that plays."""
    fields = judging.record(folder)
    value = fields["parameters"].get("value", "")
    plays = fields["run"].startswith("search/")
    return "/".join(Path(value).parts[-3:-1]) if value and not plays else fields["method"]


def each(table: pd.DataFrame) -> Iterator[Any]:
    """The rows of a table as named tuples, whose fields have the types of the file."""
    return table.itertuples()


def checked(studies: str | Sequence[str], runs: Runs, primary_set: str) -> pd.DataFrame:
    """The rows of the studies that `runs` can answer, each with its number and a 95% interval.
    Columns COLUMNS. acted: whether the estimate reaches the threshold; sure: whether the whole
    interval does. `primary_set`: for rows that name no set."""
    studies = [studies] if isinstance(studies, str) else studies
    table = planned()
    named = set(table["method"])  # a row with * is about methods without a row of their own
    table = table[table["study"].isin(studies)]
    rows = []
    for row in each(table):
        known = runs.methods(KINDS.get(row.source, "training"))
        if row.source == "games":  # the runs are about policies, and the row about systems
            pair = (row.method, row.baseline)
            known = {name for name in pair if systems.policy_of(name) in known}
        matching = known & {row.method}
        matching |= {name for name in known - named if fnmatch(name, row.method)}
        for method in sorted(matching):
            needs_baseline = row.of != "level" or is_added(row.metric)
            if not needs_baseline or row.baseline in known:
                rows.append(row._replace(method=method, set=row.set or primary_set))
    found = [answer(row, _values(row, runs)) for row in rows]
    return pd.DataFrame([one for one in found if one], columns=COLUMNS)


def is_added(metric: str) -> bool:
    """Whether a number of `of_reward` is about what a reward adds to that of its baseline."""
    return metric.startswith("added ") or metric == "correct texts that earn more"


def answer(row, values: pd.DataFrame) -> dict | None:
    """One row of `checked`, from the values of its metric, as `lib.study.intervals` takes them.
    None if a method lacks them.

    own, of_baseline: the means of the method and of its baseline, with their intervals (own_low to
    baseline_high), over the runs and problems that the estimate rests on, so that it is their
    difference or their ratio (for a ratio the means are geometric). Of a level it is the method's
    own number. A baseline that has no such number leaves NaN."""
    contrast = {row.method: 1.0}
    if row.of != "level":
        contrast[row.baseline] = -1.0
    logarithms = row.of == "ratio"
    if logarithms:
        values = pd.DataFrame(np.log(values))
    numbers, runs = _measured(values, contrast)
    if not runs:
        return None
    pair = values if row.of == "level" else shared(values, row.method, row.baseline)
    own, _ = _measured(pair, {row.method: 1.0})
    of_baseline, _ = _measured(pair, {row.baseline: 1.0})
    if is_added(row.metric):
        of_baseline = np.zeros(3)  # what a reward adds to itself
    if logarithms:
        numbers = np.exp(numbers)
        own = np.exp(own)
        of_baseline = np.exp(of_baseline)
    reached = numbers >= row.threshold if row.direction == "at least" else numbers <= row.threshold
    fields = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)}
    fields |= dict(zip(("estimate", "low", "high"), numbers.tolist(), strict=True))
    fields |= dict(zip(("own", "own_low", "own_high"), own.tolist(), strict=True))
    names = ("of_baseline", "baseline_low", "baseline_high")
    fields |= dict(zip(names, of_baseline.tolist(), strict=True))
    fields["acted"] = bool(reached[0])
    alike = reached.all() or not reached.any()
    fields["sure"] = bool(alike and np.isfinite(numbers).all())
    return fields | {"runs": runs}


def _measured(values: pd.DataFrame, contrast: dict[str, float]) -> tuple[np.ndarray, int]:
    """A contrast's estimate and the ends of its interval, and its runs; NaN and 0 if a method of it
    has no values."""
    found = {} if values.empty else intervals.measured(values, {"check": contrast})
    for result in found.values():
        return np.array([result.estimate, *result.ends()]), result.runs
    return np.full(3, np.nan), 0


def shared(values: pd.DataFrame, method: str, baseline: str) -> pd.DataFrame:
    """The values on problems that all runs of both methods have; for two systems of one policy, of
    the runs that both have."""
    both = values[values.index.isin([method, baseline], level="method")]
    if systems.policy_of(method) == systems.policy_of(baseline):
        seeds = both.index.to_frame(index=False).groupby("seed")["method"].nunique()
        both = both[both.index.isin(seeds.index[seeds == 2], level="seed")]
    runs = both.index.to_frame(index=False)[["method", "seed"]].drop_duplicates()
    having = both.iloc[:, 0].groupby(level=["set", "problem"]).transform("count")
    return both[having == len(runs)]


def _values(row, runs: Runs) -> pd.DataFrame:
    """The metric of a row for its method and its baseline, indexed by metrics.KEYS."""
    methods = [name for name in (row.method, row.baseline) if name]
    if row.source == "log":
        return of_log(runs.of("training", methods), row.metric)
    if row.source == "samples":
        return of_samples(runs.of("samples", methods), row.metric, row.set)
    if row.source == "search":
        return of_search(runs.of("searches", methods), row.set)
    if row.source == "games":
        folders = runs.of("searches", map(systems.policy_of, methods))
        return of_games(folders, methods, row.metric, row.set)
    if row.source == "calibration":
        return of_calibration(runs.of("calibration", methods))
    if row.source == "exact":
        return of_exact(runs.of("training", methods), row.metric, row.set)
    if row.source == "setting":
        return of_setting(runs.of("training", methods), row.metric)
    start = begun_from(row.method, pd.Index(sorted(runs.methods("samples"))))
    folders = tuple(runs.of("samples", [start]))
    rewards = {name: _reward(runs.of("training", [name])) for name in methods}
    asked = {row.method: (rewards[row.method], rewards.get(row.baseline, ("", "")))}
    if row.baseline and rewards[row.baseline][0] and not is_added(row.metric):
        asked[row.baseline] = (rewards[row.baseline], ("", ""))
    parts = {name: of_reward(folders, *pair, row.metric, row.set) for name, pair in asked.items()}
    parts = {name: part for name, part in parts.items() if not part.empty}
    return pd.concat(parts, names=["method"]) if parts else pd.DataFrame()


def of_setting(folders: list[Path], name: str) -> pd.DataFrame:
    """A parameter of trainings, one number per run."""
    rows = []
    for record in map(judging.record, folders):
        setting = _setting(record["parameters"], name)
        rows.append((record["method"], record["seed"], setting))
    numbers = pd.DataFrame(rows, columns=["method", "seed", name])
    return intervals.of_logs(numbers.set_index(["method", "seed"]))


def _setting(parameters: dict, name: str) -> float:
    """A parameter of a run. The k of the pass@k objective was called pass_k in earlier records."""
    if name == "pass_k" and "advantage_options" in parameters:
        return float(parameters["advantage_options"].get("k", 1))
    return float(parameters[name])


def of_exact(folders: list[Path], metric: str, name: str) -> pd.DataFrame:
    """How games end after the last update of exact trainings, one number per problem."""
    tables = []
    for folder in folders:
        record = judging.record(folder)
        ends = read_table(folder / "games.parquet")
        tables.append(ends.assign(method=record["method"], seed=record["seed"]))
    if not tables:
        return pd.DataFrame()
    ends = moments.last(pd.concat(tables))
    return ends[ends["set"] == name].set_index(metrics.KEYS)[[metric]]


def of_log(folders: list[Path], metric: str) -> pd.DataFrame:
    """A summary of training logs, one number per run."""
    logs = judging.logs(folders)
    if metric == "groups with a signal":
        groups = {}
        for record in map(judging.record, folders):
            groups[record["method"]] = record["parameters"]["problems_per_step"]
        logs[metric] = (1 - logs["frac_zero_std"]) * logs["method"].map(groups)
        metric = f"mean {metric}"
    if metric.startswith("mean "):
        column = metric.removeprefix("mean ")
        logs = logs.reindex(columns=["method", "seed", column])
        return intervals.of_logs(logs.groupby(["method", "seed"])[[column]].mean())
    return intervals.of_logs(metrics.log_scores(logs, [metric]))


def of_samples(folders: list[Path], metric: str, name: str) -> pd.DataFrame:
    """A share of completions, one number per problem."""
    of_metric = {
        "parse": "program",
        "goes_on": "trace",
        "reached without a correct answer": "trace",
        "last check says yes": "check",
    }
    verdicts = ["answer"]
    if metric in of_metric:
        verdicts.append(of_metric[metric])
    judged = judging.samples(folders, [name], verdicts, texts=metric == "first state right")
    if judged.empty:
        return pd.DataFrame()
    if metric in metrics.STATUSES or metric in ("parse", "goes_on"):
        return metrics.text_scores(judged)[[metric]]
    counted = pd.Series(1.0, judged.index)
    if metric == "first state right":
        right, counted = first_states(judged)
    elif metric == "last check says yes":
        right = judged["check"] == "yes"
    else:
        right = judged["reached"].astype(bool) & ~judged["correct"].astype(bool)
    weights = pd.DataFrame({"right": right, "counted": counted}, dtype=float).mul(
        judged["count"], axis=0
    )
    sums = weights.groupby([judged[key] for key in metrics.KEYS]).sum()
    return metrics.share(sums["right"], sums["counted"]).to_frame(metric)


def first_states(judged: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Whether the first state of a text holds the problem's numbers, and whether it has a state at
    all."""
    first = judged["completion"].str.extract(STATE, expand=False)
    right = []
    for state, nums in zip(first, judged["nums"], strict=True):
        items = re.findall(r"-?\d+", state) if isinstance(state, str) else []
        right.append(sorted(map(int, items)) == sorted(map(int, nums)))
    return pd.Series(right, judged.index) & first.notna(), first.notna()


def of_search(folders: list[Path], name: str) -> pd.DataFrame:
    """The share of all sampled tags that name no legal action, with sixteen games of sixteen
    samples."""
    games = judging.games(folders, [name])
    if games.empty:
        return pd.DataFrame()
    searches = systems.searches(games)
    sixteen = System("", **systems.SIXTEEN).settings
    searches = searches[searches["settings"] == sixteen]
    searches = searches.assign(method=searches["policy"])
    totals = searches.groupby(metrics.KEYS)[["rejections", "sampled"]].sum().astype(float)
    return metrics.share(totals["rejections"], totals["sampled"]).to_frame("rejected")


def of_games(folders: list[Path], names: Sequence[str], metric: str, name: str) -> pd.DataFrame:
    """A number of the searches of some systems, one per problem: the mean of its searches. The
    metrics are

    games kept: how many games a search ends with. first moves: how many different first moves they
    have. moves of a game: their mean length. legal tags: how many of the tags that a search draws
    name a legal action. solvable states: of the states between the first and the last of the kept
    games, the share from which the target can be made. solutions left: the mean number of solutions
    of those that can. A search that has nothing to count has no number, and a difference is taken
    over the problems that have one in all runs."""
    games = _played(tuple(folders), name)
    games = games[games["method"].isin(names)]
    if games.empty:
        return pd.DataFrame()
    searches = games[games["rank"] == 0].set_index("search")
    numbers = OF_GAMES[metric](games).reindex(searches.index).astype(float)
    return numbers.groupby([searches[key] for key in metrics.KEYS]).mean().to_frame(metric)


@cache
def _played(folders: tuple[Path, ...], name: str) -> pd.DataFrame:
    """The games of a set as a table of `judging.games`, whose column method is the system, with the
    column search, a number per search. Of several runs that search a problem by the same system and
    seed only the first counts."""
    games = judging.games(list(folders), [name], texts=True)
    if games.empty:
        return games
    search = (games["rank"] == 0).cumsum()  # the games of a search follow each other
    best = systems.searches(games)
    method = pd.Series(best["method"].to_numpy(), search[best.index])
    games = games.assign(search=search, method=search.map(method))
    first = games.groupby(metrics.KEYS)["run"].transform("first")
    return games[games["run"] == first]


def _finished(games: pd.DataFrame) -> pd.DataFrame:
    """The games without the rows of searches that finished none."""
    return games[games["actions"] != ""]


def _games_kept(games: pd.DataFrame) -> pd.Series:
    return (games["actions"] != "").groupby(games["search"]).sum()


def _first_moves(games: pd.DataFrame) -> pd.Series:
    first = games["actions"].str.split(MOVE, n=2).str[1]
    return first.groupby(games["search"]).nunique()


def _moves(games: pd.DataFrame) -> pd.Series:
    finished = _finished(games)
    return finished["actions"].str.count(MOVE).groupby(finished["search"]).mean()


def _legal_tags(games: pd.DataFrame) -> pd.Series:
    best = games[games["rank"] == 0].set_index("search")
    return best["sampled"] - best[list(REJECTIONS)].sum(axis=1)


def _solvable(games: pd.DataFrame) -> pd.Series:
    solutions = solutions_left(games)
    return (solutions > 0).groupby(level="search").mean()


def _solutions(games: pd.DataFrame) -> pd.Series:
    solutions = solutions_left(games)
    return solutions[solutions > 0].groupby(level="search").mean()


OF_GAMES = {
    "games kept": _games_kept,
    "first moves": _first_moves,
    "moves of a game": _moves,
    "legal tags": _legal_tags,
    "solvable states": _solvable,
    "solutions left": _solutions,
}


def solutions_left(games: pd.DataFrame) -> pd.Series:
    """How many solutions are left in each state between the first and the last of each game, by the
    solver, indexed by search. games: columns search, actions, states and target."""
    finished = _finished(games).set_index("search")
    texts = finished["states"].str.split("; ").str[:-1].explode().dropna()
    target = finished["target"].groupby(level="search").first().reindex(texts.index)
    states = pd.DataFrame({"text": texts, "target": target})
    distinct = states.drop_duplicates()
    found = [
        State(tuple(sorted(_number(part) for part in text.split(", "))), int(target))
        for text, target in distinct.itertuples(index=False)
    ]
    counts = pd.Series(count_solutions(found), pd.MultiIndex.from_frame(distinct))
    return pd.Series(counts.reindex(pd.MultiIndex.from_frame(states)).to_numpy(), states.index)


def _number(text: str) -> int | Fraction:
    """A number of a saved state, such as "7" or "5/2"."""
    return int(text) if "/" not in text else Fraction(text)


def of_calibration(folders: list[Path]) -> pd.DataFrame:
    """The chance that a state which can be solved has a higher learned value than one which cannot;
    ties count half."""
    numbers = {}
    for folder in folders:
        table = read_table(folder / "calibration.parquet")
        ranks = table["learned"].rank()
        exact = table["exact"].astype(bool)
        yes = exact.sum()
        no = (~exact).sum()
        key = (about(folder), judging.record(folder)["seed"])
        numbers[key] = (ranks[exact].sum() - yes * (yes + 1) / 2) / (yes * no)
    index = pd.MultiIndex.from_tuples(numbers, names=["method", "seed"])
    return intervals.of_logs(pd.DataFrame({"area under the curve": [*numbers.values()]}, index))


def _reward(folders: list[Path]) -> tuple[str, str]:
    """The reward of the first of some runs, its name and its options as JSON; ("", "") if there is
    none."""
    params = judging.record(folders[0])["parameters"] if folders else {}
    return params.get("reward", ""), json.dumps(params.get("reward_options") or {}, sort_keys=True)


@cache
def of_reward(
    folders: tuple[Path, ...],
    reward: tuple[str, str],
    baseline: tuple[str, str],
    metric: str,
    name: str,
) -> pd.DataFrame:
    """What a reward does to the completions of a start, one number per problem, indexed by seed,
    set and problem.

    reward, baseline: names and options, as `_reward` gives them. A group is the samples of one
    problem. In these metrics "added" is the reward minus that of the baseline:

    spread of failing groups, added spread of failing groups: the standard deviation within a group
    without a correct answer, of the reward or of what it adds. added spread of wrong texts in mixed
    groups, added spread of correct texts: the same among the wrong texts of a group that has
    correct ones, and among the correct ones. correct texts that earn more: their share. added
    spread between problems, correct texts: how far the mean of what it adds differs between
    problems; one number per run."""
    rewards = [one for one in (reward, baseline) if one[0]]
    rewards = rewards if is_added(metric) else rewards[:1]
    rows = {}
    for key, problem, texts, correct in _groups(folders, name):
        wanted = compared_texts(metric, correct)
        if wanted.any():
            totals = [_totals(one, problem, texts) for one in rewards]
            rows[key] = (totals[0] - totals[1] if len(totals) > 1 else totals[0])[wanted]
    if not rows:
        return pd.DataFrame()
    index = pd.MultiIndex.from_tuples([*rows], names=metrics.KEYS[1:])
    of_problems = pd.Series([*rows.values()], index, dtype=object)
    if metric == "correct texts that earn more":
        sums = of_problems.map(lambda totals: np.count_nonzero(np.asarray(totals) > 1e-9)).astype(
            float
        )
        return metrics.share(sums, of_problems.map(len).astype(float)).to_frame(metric)
    if metric.startswith("added spread between problems"):
        means = of_problems.map(np.mean).astype(float)
        spread = means.groupby("seed").std(ddof=0).to_frame(metric)
        of_the_set = spread.assign(set=name, problem=0)
        return of_the_set.set_index(["set", "problem"], append=True)
    return of_problems.map(np.std).astype(float).to_frame(metric)


@cache
def _groups(folders: tuple[Path, ...], name: str) -> list[tuple]:
    """The groups of a set: seed, set and problem; the problem itself; its texts; and which of them
    are correct."""
    judged = judging.samples(list(folders), [name], texts=True)
    judged = judged[judged["problem"].isin(sorted(judged["problem"].unique())[:PROBLEMS])]
    columns = ["nums", "target", "completion", "correct", "count"]
    groups = []
    for key, group in judged.groupby(metrics.KEYS[1:])[columns]:
        first = group.iloc[0]
        problem = Problem(tuple(map(int, first["nums"])), int(first["target"]))
        counts = group["count"].to_numpy()
        texts = group["completion"].to_numpy(object).repeat(counts)
        correct = group["correct"].astype(bool).to_numpy().repeat(counts)
        groups.append((key, problem, tuple(texts), correct))
    return groups


@cache
def _totals(reward: tuple[str, str], problem: Problem, texts: tuple[str, ...]) -> np.ndarray:
    """What a reward (name and options) gives to a group. Several metrics and baselines ask for the
    same."""
    name, options = reward
    scores = get_reward(name, json.loads(options))(texts, problem)
    return np.array([score.total for score in scores])


def compared_texts(metric: str, correct: np.ndarray) -> np.ndarray:
    """The completions of a group that a metric of `of_reward` is about."""
    none = np.zeros(len(correct), bool)
    if metric.endswith("failing groups"):
        return none if correct.any() else ~none
    if metric.endswith("wrong texts in mixed groups"):
        return ~correct if correct.any() else none
    if "spread of" in metric and correct.sum() < 2:  # one number has no spread
        return none
    return correct


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """A table of `checked` or `collected` as a notebook prints it."""
    names = {"level": "", "difference": " (difference)", "ratio": " (ratio)"}
    acted = table["acted"].map({True: "yes", False: "no"}).astype(object).fillna("not run")
    baseline = table["baseline"].fillna("")
    threshold = table["threshold"].map("{:g}".format)
    columns = {
        "method": table["method"].astype(str).map(plots.label),
        "compared with": baseline.map(lambda name: plots.label(str(name)) if name else ""),
        "is meant to": table["what"],
        "number": table["metric"] + table["of"].map(names).astype(object),
        "ours": metrics.as_text(table, scale=1, digits=3).where(table["estimate"].notna(), ""),
        "own against baseline": _levels(table),
        "acts from": table["direction"] + " " + threshold.astype(object),
        "report": table["paper"].map("{:g}".format).replace("nan", ""),
        "acted": acted + np.where(table["sure"].eq(False), ", not sure", ""),
    }
    return pd.DataFrame(columns).set_index("method")


def _levels(table: pd.DataFrame) -> pd.Series:
    """The method's own number and its baseline's, such as "0.31 against 0.29". Empty where the
    baseline has none."""
    own = table["own"].map("{:.3g}".format).astype(object)
    baseline = table["of_baseline"].map("{:.3g}".format).astype(object)
    return (own + " against " + baseline).where(table["of_baseline"].notna(), "")


def collected(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One row for each row of the file: the answer that some study's table of `checked` has, or an
    empty one. A row with * that no method fits stays as it is. Columns COLUMNS and reason: why the
    method did not act."""
    keys = ["method", "metric"]
    answered = pd.concat([pd.DataFrame(columns=COLUMNS), *tables], ignore_index=True)
    answered = answered.drop_duplicates(keys)
    rows = []
    for row in each(planned()):
        fits = answered["method"].eq(row.method)
        if not fits.any() and "*" in row.method:
            fits = pd.Series([fnmatch(str(name), row.method) for name in answered["method"]])
            fits = fits.set_axis(answered.index).astype(bool)
        part = answered[fits & answered["metric"].eq(row.metric)]
        empty = pd.DataFrame([{name: getattr(row, name, None) for name in COLUMNS}])
        rows.append(part if len(part) else empty)
    table = pd.concat(rows, ignore_index=True).drop_duplicates(keys)
    numbers = [name for name in COLUMNS if name.startswith(("own", "of_b", "baseline_"))]
    numbers += ["threshold", "estimate", "low", "high", "paper"]
    table = table.astype(dict.fromkeys(numbers, float))
    idle = table["acted"].eq(False)
    estimate = table["estimate"].map("{:.3g}".format)
    table["reason"] = ""
    asked = table["direction"] + " " + table["threshold"].map("{:g}".format)
    said = table["metric"] + ": " + estimate + ", not " + asked
    table.loc[idle, "reason"] = said[idle]
    return table[[*COLUMNS, "reason"]]
