"""Metrics: pass@k, properties of completions, and summaries of training logs.

The samples of one problem are not independent of each other, so a function here gives one score per
problem (a frame indexed by method, seed, set and problem), and `lib.study.intervals` computes the
interval of the mean of these scores. Only the intervals of crossovers and Pareto fronts come from
resampling the problems."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise, product

import numpy as np
import pandas as pd

from lib.game.expression import flattened, parse
from lib.game.problem import Problem
from lib.game.traces import replay
from lib.game.verifiers import CHECKS, PROGRAM_WEIGHTS, STATUSES
from lib.study.judging import TRACE
from lib.study.words import formatted, with_paper

KEYS = ["method", "seed", "set", "problem"]  # the index of scores
# numbers of training logs
SUMMARY = re.compile("(late change of|change of|growth of|late|highest) (.+)")


def pass_at_k(n, c, k) -> np.ndarray:
    """Unbiased estimate of the chance that at least one of k completions is correct: 1 - C(n-c, k)
    / C(n, k) (Chen et al. 2021).

    `n` samples of a problem, `c` of them correct (integers, broadcast against each other), and an
    integer `k` or an array of them. The result has the shape of n and c, followed by that of k.
    Raises ValueError unless k is within 1..n: beyond n there is no unbiased estimate."""
    n = np.asarray(n)
    c = np.asarray(c)
    k = np.asarray(k)
    if np.any(c < 0) or np.any(c > n):
        raise ValueError(
            "pass@k needs 0 <= c <= n: more correct completions than samples were counted"
        )
    if np.any(k < 1) or np.any(k > n.min()):
        raise ValueError(
            f"pass@k needs 1 <= k <= n, got k={np.max(k)} with n={n.min()}: draw more samples"
        )
    # a running product: no factorial can overflow
    n = n[..., None]
    c = c[..., None]
    draw = np.arange(k.max())
    all_fail = np.cumprod(np.clip((n - c - draw) / (n - draw), 0, None), axis=-1)
    return 1 - all_fail[..., k - 1]


def counts(judged: pd.DataFrame) -> pd.DataFrame:
    """The number of samples `n` and of correct samples `c` of each problem, indexed by KEYS.
    `judged`: a table of `judging.samples`."""
    table = judged[KEYS].assign(
        n=judged["count"], c=judged["count"].where(judged["correct"].astype(bool), 0)
    )
    return table.groupby(KEYS, sort=True)[["n", "c"]].sum()


def problem_scores(counts: pd.DataFrame, ks=(1, 8, 16), mean_to=(16, 128)) -> pd.DataFrame:
    """Every problem's own pass@k for k in `ks`, and its mean over k = 1..K for each K of `mean_to`
    (the last column of `ast`, Table 1).

    Columns `pass@k` and `mean pass@k<=K`, index as in `counts`; NaN where a problem has too few
    samples."""
    ks_by_column = {f"pass@{k}": [k] for k in ks} | {
        f"mean pass@k<={k}": range(1, k + 1) for k in mean_to
    }
    scores = {}
    for name, column_ks in ks_by_column.items():
        rows = counts[counts["n"] >= max(column_ks)]
        chances = pass_at_k(rows["n"], rows["c"], column_ks).mean(axis=-1) if len(rows) else []
        scores[name] = pd.Series(chances, rows.index)
    return pd.DataFrame(scores, index=counts.index, dtype=float)


def solved_with(counts: pd.DataFrame, samples: pd.Series) -> pd.Series:
    """By run and problem, pass@k of each method for the number of samples that `samples` has for
    it, 1 or more (`between`). `counts` as returned by `counts`."""

    def of(method: str, ks: list[int]) -> pd.DataFrame:
        scores = problem_scores(counts.loc[[method]], ks, mean_to=())
        return scores[[f"pass@{k}" for k in ks]].set_axis(ks, axis="columns")

    return between(samples, of)


def between(samples: pd.Series, solved: Callable[[str, list[int]], pd.DataFrame]) -> pd.Series:
    """What each method solves with the number of samples that `samples` has for it. `solved` gives
    a method's scores with columns k, for whole numbers k. The number need not be whole: with 6.9
    samples, nine problems in ten get seven samples and the others six, so that the result is .1 of
    that with 6 and .9 of that with 7."""
    parts = []
    for method, k in samples.items():
        fewer = math.floor(k)
        more = math.ceil(k)
        scores = solved(str(method), sorted({fewer, more}))
        parts.append((1 - k + fewer) * scores[fewer] + (k - fewer) * scores[more])
    return pd.concat(parts)


def text_scores(judged: pd.DataFrame) -> pd.DataFrame:
    """Describes the completions of each problem by shares and means over its samples, indexed by
    KEYS.

    `judged`: a table of `judging.samples`. There are always the share of each verifier status,
    tokens, at cap (the share that the token limit cut off), distinct completions and distinct
    correct answers. The kinds of verdict with which `judged` was read add columns:

    steps: legal, lost, attempts.
    expression: distinct expressions.
    program: the share that passes each check; reward; one line (the share of programs of one line);
    the reward lost at each check; the reward lost to wrong content minus that lost to wrong form
    (see `_checks`). The attempts of a program are the number of its values that use every number.
    trace: the columns TRACE."""
    # Numbers are grouped and compared faster than texts
    groups = judged.groupby(KEYS)
    status = judged["status"].astype("category")
    cell = groups.ngroup()
    columns = {name: status == name for name in STATUSES}
    columns |= {"tokens": judged["tokens"], "at cap": judged["finish"] == "length"}
    columns |= {
        name: judged[name] for name in ("legal", "lost", "attempts", *TRACE) if name in judged
    }
    if "passed" in judged:
        columns |= _checks(judged)
    table = pd.DataFrame(columns, dtype=float)
    weight = judged["count"]
    # some verdicts on a completion are NaN
    known_counts = table.notna().mul(weight, axis=0).groupby(cell).sum()
    scores = table.mul(weight, axis=0).groupby(cell).sum() / known_counts.where(known_counts > 0)
    scores["distinct completions"] = cell.value_counts()
    solutions = judged["solution"].where(judged["correct"].astype(bool))
    scores["distinct correct answers"] = solutions.groupby(cell).nunique()
    if "expression" in judged:
        expressions = judged["expression"].where(judged["expression"] != "")
        scores["distinct expressions"] = expressions.groupby(cell).nunique()
    return scores.set_axis(groups.size().index).astype(float)


def _checks(judged: pd.DataFrame) -> dict[str, pd.Series]:
    """Columns for programs: whether each check is passed, the reward, and at which check the rest
    of the reward was lost. A loss at a check before "numbers" is one of form, a loss at a later
    check is one of meaning."""
    passed = judged["passed"]
    columns: dict[str, pd.Series] = {check: passed > i for i, check in enumerate(CHECKS)}
    reward_for = dict(enumerate(accumulate(PROGRAM_WEIGHTS.values(), initial=0)))
    columns["reward"] = passed.map(reward_for)
    rest = 1 - columns["reward"]
    for i, check in enumerate(CHECKS):
        columns[f"lost at {check}"] = rest * (passed == i)
    in_form = passed < CHECKS.index("numbers")
    columns["lost in meaning - lost in form"] = rest * (1 - 2 * in_form)
    not_program = ~judged["style"].str.startswith("program")
    columns["one line"] = (judged["assignments"] == 1).astype(float).mask(not_program)
    if "attempts" in judged:
        columns["attempts"] = judged["attempts"].where(not_program, judged["complete"])
    return columns


def mean_tokens(judged: pd.DataFrame) -> pd.Series:
    """The mean length of a sample in tokens, by method: the mean over runs and problems. `judged`:
    a table of `judging.samples`."""
    sums = (
        judged[KEYS]
        .assign(n=judged["count"], tokens=judged["count"] * judged["tokens"])
        .groupby(KEYS)
        .sum()
    )
    return (sums["tokens"] / sums["n"]).groupby("method").mean()


def diagnostics(judged: pd.DataFrame, by=("set", "method")) -> pd.DataFrame:
    """One row per group of `by`: the number of samples, and the means over problems of
    `text_scores`."""
    table = text_scores(judged).groupby(list(by)).mean()
    table.insert(0, "samples", judged.groupby(list(by))["count"].sum())
    return table


def share(numerator: pd.Series, denominator: pd.Series) -> pd.Series:
    """A ratio of totals, written as one score per problem. The mean of the scores over a run's
    problems on a set is sum(numerator) / sum(denominator), and their variance is that of this ratio
    (by Taylor linearisation). NaN if sum(denominator) is 0."""
    run_levels = [level for level in numerator.index.names if level != "problem"]
    mean = denominator.groupby(run_levels).transform("mean")
    ratio = numerator.groupby(run_levels).transform("mean") / mean
    return ratio + (numerator - ratio * denominator) / mean


def exploration(judged: pd.DataFrame) -> pd.DataFrame:
    """Scores that describe how the completions of a problem search (`ast`, Table 4, Figure 3).
    `judged`: a table with the verdict "steps".

    equations read: the equations that were read, as a share of all equals signs. recovery: the
    share of correct completions that contain a false equation. distinct correct solutions: the
    number of different solutions among all samples of a problem, where solutions that differ only
    by commuting count as one; in "distinct up to associativity" those that differ only by
    associativity count as one too."""
    correct = judged["correct"].astype(bool)
    keys = [judged[key] for key in KEYS]
    columns = judged[["equations", "distinct", "true", "signs", "tokens"]].assign(
        n=1, correct=correct
    )
    columns["slipped"] = correct & (judged["true"] < judged["equations"])
    columns["wrong_numbers"] = judged["status"] == "wrong_numbers"
    sums = columns.mul(judged["count"], axis=0).groupby(keys).sum()
    solutions = judged["solution"].where(correct)
    shapes = solutions.map({text: flattened(parse(text)) for text in solutions.dropna().unique()})
    scores = {
        "equations per response": sums["equations"] / sums["n"],
        "distinct equations per response": sums["distinct"] / sums["n"],
        "repeated equations": share(sums["equations"] - sums["distinct"], sums["equations"]),
        "correct equations": share(sums["true"], sums["equations"]),
        "recovery": share(sums["slipped"], sums["correct"]),
        "equations read": share(sums["equations"], sums["signs"]),
        "tokens per response": sums["tokens"] / sums["n"],
        "wrong_numbers": sums["wrong_numbers"] / sums["n"],
        "distinct completions": judged.index.to_series().groupby(keys).nunique(),
        "distinct correct solutions": solutions.groupby(keys).nunique(),
        "distinct up to associativity": shapes.groupby(keys).nunique(),
    }
    return pd.DataFrame(scores, dtype=float)


def grounding(judged: pd.DataFrame) -> pd.DataFrame:
    """How the answer of a trace follows from the trace (`trace`, Sections 6 and 7). `judged`: a
    table with the verdict "trace".

    reached where correct: the share of correct completions whose trace ends at the target, which a
    reward for that cannot tell apart. reached without a correct answer: the share of completions
    that lose the target between trace and answer. repair gain: what pass@1 would gain if each
    answer were read off its trace. failures that a repair mends: the same as a share of the
    completions that are not correct."""
    correct = judged["correct"].astype(float)
    reached = judged["reached"].astype(float)
    mended = judged["repaired"].astype(float) - correct
    columns = {"n": 1.0, "correct": correct, "mended": mended}
    columns |= {"both": correct * reached, "lost": (1 - correct) * reached}
    weighted = pd.DataFrame(columns, judged.index).mul(judged["count"], axis=0)
    sums = weighted.groupby([judged[key] for key in KEYS]).sum()
    scores = {
        "reached where correct": share(sums["both"], sums["correct"]),
        "reached without a correct answer": sums["lost"] / sums["n"],
        "repair gain": sums["mended"] / sums["n"],
        "failures that a repair mends": share(sums["mended"], sums["n"] - sums["correct"]),
    }
    return pd.DataFrame(scores, dtype=float)


# at the end of a try: whether its result is the target
CHECK = re.compile(r", (\S+)\? (?:yes|no)$")


def trace_habits(judged: pd.DataFrame) -> pd.DataFrame:
    """What the lines of traces look like, whatever their answers are worth (`trace`, Tables 2 and
    6). `judged`: a table with texts.

    no trace: the share of completions without a line of reasoning. problem copied: of the others,
    the share whose first line is a state that names the problem's numbers. target named right: the
    share of statements about the target that name the problem's. repeated states: the share of
    state lines that follow a state line without a try or a backtrack between. valid tries:
    different valid tries of a completion. Shares are those of one problem's completions, and NaN
    where there is nothing to share."""
    asked = zip(judged["nums"], judged["target"], judged["completion"], strict=True)
    rows = [
        _habits(text, Problem(tuple(map(int, nums)), int(target))) for nums, target, text in asked
    ]
    columns = ["traced", "first", "checks", "named", "states", "again", "valid"]
    weighted = (
        pd.DataFrame(rows, judged.index, columns, dtype=float)
        .assign(n=1.0)
        .mul(judged["count"], axis=0)
    )
    sums = weighted.groupby([judged[key] for key in KEYS]).sum()
    scores = {
        "no trace": 1 - sums["traced"] / sums["n"],
        "problem copied": sums["first"] / sums["traced"],
        "target named right": sums["named"] / sums["checks"],
        "repeated states": sums["again"] / sums["states"],
        "valid tries": sums["valid"] / sums["n"],
    }
    return pd.DataFrame(scores, dtype=float)


def _habits(text: str, problem: Problem) -> tuple:
    """The counts behind `trace_habits`, of one completion."""
    lines = replay(text, problem).lines
    copied = bool(lines) and lines[0].kind == "state" and lines[0].state_ok
    kinds = [line.kind for line in lines if line.kind != "other"]
    states = kinds.count("state")
    again = sum(one == other == "state" for one, other in pairwise(kinds))
    checks = 0
    named = 0  # checks of the target
    valid = 0
    for line in lines:
        if line.kind != "try":
            continue
        valid += line.valid and not line.repeated
        found = CHECK.search(text[slice(*line.span)])
        if found:
            checks += 1
            named += found[1] == str(problem.target)
    return bool(lines), copied, checks, named, states, again, valid


def matched_length(judged: pd.DataFrame, width=16, seed=0) -> pd.DataFrame:
    """Completions of every method, matched in length. For each problem and seed, and each class of
    lengths (`width` tokens wide), every method gets the same number of completions; if a method has
    more, they are drawn at random. What one method then finds beyond the others is not due to
    length. One row per completion, with count 1."""
    rows = judged.loc[judged.index.repeat(judged["count"])].assign(count=1)
    rows = rows.sort_values(["run", "seed", "set", "problem", "completion"])
    rows = rows.sample(frac=1, random_state=seed)
    cells = [rows["set"], rows["problem"], rows["tokens"] // width, rows["seed"]]
    rank = rows.groupby([*cells, "method"]).cumcount()
    sizes = pd.crosstab(cells, rows["method"]).min(axis=1)
    return rows[rank.to_numpy() < sizes.loc[pd.MultiIndex.from_arrays(cells)].to_numpy()]


def log_scores(logs: pd.DataFrame, metrics: Iterable[str]) -> pd.DataFrame:
    """Numbers that summarise whole training runs, by method and seed, for
    `lib.study.intervals.of_logs`.

    logs: a table of `judging.logs`.
    metrics: names of numbers, where x is a column of the logs. "change of x" is the mean of x over
    the last fifth of the steps that measured it, minus the mean over the first fifth; "growth of x"
    is the difference of the logarithms of these means; "late change of x" is the change within the
    second half of these steps; "late x" is the mean over the last fifth; "highest x" is the
    maximum. One more column can be x: "largest share", the probability of the bandit's likeliest
    bucket divided by the uniform probability."""
    buckets = logs.filter(regex=r"^bucket\d+$")
    if len(buckets.columns):
        how_many = buckets.notna().sum(axis=1)
        logs = logs.assign(**{"largest share": buckets.max(axis=1) * how_many})
    summaries = {}
    for name in dict.fromkeys(metrics):
        if (match := SUMMARY.fullmatch(name)) and match[2] in logs:
            runs = logs.dropna(subset=match[2]).groupby(["method", "seed"])[match[2]]
            summaries[name] = runs.agg(lambda x, kind=match[1]: _summary(x.to_numpy(), kind))
    return pd.DataFrame(summaries)


def _summary(x: np.ndarray, kind: str) -> float:
    """A number of `log_scores`, from the values of one run in the order of its steps."""
    if kind == "highest":
        return x.max()
    x = x[len(x) // 2 :] if kind == "late change of" else x
    fifth = -(-len(x) // 5)
    first_mean = x[:fifth].mean()
    last_mean = x[-fifth:].mean()
    if kind == "late":
        return last_mean
    return np.log(last_mean / first_mean) if kind == "growth of" else last_mean - first_mean


def crossover_draws(challenger, baseline, draws=10_000, seed=0) -> np.ndarray:
    """K* of `ast`, Table 2: the smallest k at which the challenger's mean pass@k is above the
    baseline's, or 1 + the largest k if there is no such k. The first value is for all problems, the
    others for each of `draws` resamples of the problems. Shape of challenger and baseline:
    (problems, k)."""
    gaps = np.asarray(challenger) - np.asarray(baseline)
    above = np.vstack([gaps.mean(axis=0), resampled(gaps, draws, seed)]) > 0
    return np.where(above.any(axis=1), above.argmax(axis=1), above.shape[1]) + 1


def crossovers(scores: pd.DataFrame, pairs: Iterable[tuple[str, str]], seed=0) -> pd.DataFrame:
    """K* of each (challenger, baseline) of `pairs` on every set that has both, with its 95%
    interval over resampled problems. The runs of a method are averaged first, so the interval does
    not contain the spread between runs. `scores`: with columns pass@1, pass@2, ... in this order.
    Columns set, method, baseline, estimate, low, high."""
    curves = scores.filter(regex=r"^pass@\d+$").groupby(["set", "method", "problem"]).mean()
    tables = {
        key: part.dropna(axis=1, how="all") for key, part in curves.groupby(["set", "method"])
    }
    rows = []
    for name, pair in product(curves.index.unique("set"), pairs):
        if all((name, method) in tables for method in pair):
            challenger, baseline = (tables[name, method] for method in pair)
            columns = challenger.columns.intersection(baseline.columns, sort=False)
            estimates = crossover_draws(challenger[columns], baseline[columns], seed=seed)
            rows.append(
                (
                    name,
                    *pair,
                    estimates[0],
                    *np.quantile(estimates[1:], [0.025, 0.975], method="nearest"),
                )
            )
    return pd.DataFrame(rows, columns=["set", "method", "baseline", "estimate", "low", "high"])


def resampled(array: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Means over resampled problems, from shape (problems, statistics) to (draws, statistics).
    Equal seeds draw the same problems."""
    rng = np.random.default_rng(seed)
    problems = len(array)
    means = []
    for start in range(0, draws, 1000):  # each chunk of resamples is a matrix of problem weights
        rows = min(1000, draws - start)
        picks = rng.integers(problems, size=(rows, problems)) + problems * np.arange(rows)[:, None]
        weights = np.bincount(picks.ravel(), minlength=rows * problems).reshape(rows, problems)
        means.append(weights @ array / problems)
    return np.concatenate(means)


def on_front(points: np.ndarray) -> np.ndarray:
    """Which points are on the Pareto front: those for which no other point is at least as high in
    every coordinate and higher in one. Shape (..., points, coordinates) to bool (..., points)."""
    point = points[..., :, None, :]
    other = points[..., None, :, :]
    is_beaten = (other >= point).all(axis=-1) & (other > point).any(axis=-1)
    return np.logical_not(is_beaten.any(axis=-1))


def front(scores: pd.DataFrame, metrics: list[str], draws=2000, seed=0) -> pd.DataFrame:
    """Which methods are on the Pareto front of some metrics on one set. `on front`: whether they
    are by their means. `front`: the share of resamples of the problems in which they are."""
    wide = scores[metrics].groupby(["problem", "method"]).mean().unstack("method")
    methods = wide[metrics[0]].columns
    columns = np.stack([wide[metric][methods] for metric in metrics], axis=-1)
    columns = columns.reshape(len(wide), -1)
    # the first row has the means themselves, the others those of resamples
    means = np.vstack([columns.mean(axis=0), resampled(columns, draws, seed)])
    means = means.reshape(-1, len(methods), len(metrics))
    itself, *resamples = on_front(means.round(12))  # sums in another order differ slightly
    share = np.mean(resamples, axis=0)
    return pd.DataFrame({"on front": itself, "front": share}, index=methods)


def as_text(table: pd.DataFrame, signed=False, scale=100, digits=1) -> pd.Series:
    """Estimates with their intervals as text, by default in percent, such as "57.8 [54.1, 61.2]".
    `table` has columns estimate, low, high. signed: write a sign, for differences; a metric called
    "a minus b" has one in any case. A row without an estimate is empty text, and one without an
    interval has its estimate alone."""
    texts = []
    for row in table.to_dict("records"):
        is_difference = signed or " minus " in str(row.get("metric", ""))
        estimate, low, high = formatted(row, is_difference, scale, digits)
        if pd.isna(row["estimate"]):
            texts.append("")
        elif pd.isna(row["low"]):
            texts.append(estimate)
        else:
            texts.append(f"{estimate} [{low}, {high}]")
    return pd.Series(texts, index=table.index, dtype=object)


def as_table(
    table: pd.DataFrame,
    methods: list[str],
    metrics: list[str],
    paper: pd.Series | None = None,
    digits=1,
) -> pd.DataFrame:
    """Estimates or differences on one set as a table of text: a row per method, in the order of
    `methods`, and a column per metric.

    `table`: a table of `lib.study.intervals`. `paper`: the paper's numbers in percent, indexed by
    method and metric; they are put in parentheses. A method without a row in `table` is left out,
    and a cell without a number is empty."""
    rows = table[table["metric"].isin(metrics) & table["method"].isin(methods)]
    text = as_text(rows, signed="baseline" in rows)
    if paper is not None:
        keys = pd.MultiIndex.from_frame(rows[["method", "metric"]])
        text = with_paper(text, paper.reindex(keys).set_axis(rows.index), digits)
    wide = rows.assign(text=text).pivot(index="method", columns="metric", values="text")
    there = [method for method in methods if method in wide.index]
    return wide.reindex(index=there, columns=metrics).fillna("")


def as_wide(
    table: pd.DataFrame, columns: Iterable[str], index: Sequence[str] = ("set", "method"), **how
) -> pd.DataFrame:
    """Estimates or differences as a table of text: a row for each value of the columns `index`, and
    a column per metric of `columns`, empty for a metric that `table` does not have. `how`: the
    options of `as_text`."""
    text = table.assign(text=as_text(table, **how))
    wide = text.pivot(index=[*index], columns="metric", values="text")
    return wide.reindex(columns=[*columns])
