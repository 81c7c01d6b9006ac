"""Numbers in, numbers out: pass@k, intervals over problems, what the completions look like.

A problem is the unit of every statement: its samples stand or fall together, so intervals resample problems
(a cluster bootstrap) and two methods are compared problem by problem on the same resamples. Where a method has
several runs (seeds) these are resampled, too: what a statement says of the method is then beyond the luck of one run.
"""

import json
from functools import reduce

import numpy as np
import pandas as pd
from scipy import stats

from lib.environment import REJECTIONS
from lib.expression import flattened, parse
from lib.paths import ROOT
from lib.verifiers import STATUSES


def pass_at_k(n, c, k) -> np.ndarray:
    """Unbiased chance that one of k completions is correct: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021).

    `n` samples a problem, `c` of them correct (integers, broadcast against each other); `k` an integer or an
    array of them. Shape: that of n and c, followed by that of k. The ratio is the running product of
    (n-c-i) / (n-i), in which no factorial can overflow. Raises ValueError where k is not within 1..n: there
    is no unbiased estimate beyond n.
    """
    n, c, k = np.asarray(n), np.asarray(c), np.asarray(k)
    if np.any(c < 0) or np.any(c > n):
        raise ValueError("pass@k needs 0 <= c <= n: more correct completions than samples were counted")
    if np.any(k < 1) or np.any(k > n.min()):
        raise ValueError(f"pass@k needs 1 <= k <= n, got k={np.max(k)} with n={n.min()}: draw more samples")
    n, c, draw = n[..., None], c[..., None], np.arange(k.max())
    all_fail = np.cumprod(np.clip((n - c - draw) / (n - draw), 0, None), axis=-1)
    return 1 - all_fail[..., k - 1]


def mean_pass_at_k(n, c, k_max: int) -> np.ndarray:
    """Mean of pass@k over k = 1..k_max, shape of n and c (the last column of `ast`, Table 1)."""
    return pass_at_k(n, c, np.arange(1, k_max + 1)).mean(axis=-1)


def crossover(challenger, baseline) -> int | None:
    """K* of `ast`, Table 2: the smallest k at which the challenger's pass@k is above the baseline's, or None.

    Both are curves over k = 1, 2, ...; only point estimates decide, so read it beside the paired interval.
    """
    above = np.flatnonzero(np.asarray(challenger) > np.asarray(baseline))
    return int(above[0]) + 1 if len(above) else None


def counts(judged: pd.DataFrame, by=("method", "run", "set", "problem")) -> pd.DataFrame:
    """Samples `n` and correct samples `c` of each problem, indexed by `by`.

    `judged` has a column `status`; a row stands for `count` equal completions where that column exists.
    """
    weight = _weight(judged)
    table = judged[list(by)].assign(n=weight, c=weight.where(judged["status"] == "correct", 0))
    return table.groupby(list(by), sort=True)[["n", "c"]].sum()


def problem_scores(counts: pd.DataFrame, ks=(1, 8, 16), mean_to=(16, 128)) -> pd.DataFrame:
    """Every problem's own pass@k for k in `ks` and mean pass@k up to each K of `mean_to`.

    Columns `pass@k` and `mean pass@k<=K`, index as in `counts`; NaN where a problem has too few samples.
    """
    columns = {f"pass@{k}": (pass_at_k, k) for k in ks}
    columns |= {f"mean pass@k<={k}": (mean_pass_at_k, k) for k in mean_to}
    scores = {}
    for name, (estimator, k) in columns.items():
        enough = counts[counts["n"] >= k]
        scores[name] = pd.Series(estimator(enough["n"], enough["c"], k) if len(enough) else [], enough.index)
    return pd.DataFrame(scores, index=counts.index, dtype=float)


def bootstrap(values, baseline=None, draws=10_000, seed=0, confidence=0.95) -> pd.DataFrame:
    """Mean over problems with its percentile bootstrap interval; with `baseline`, of the paired difference.

    `values`: a frame (or series) with one row a problem and one column a statistic; every statistic sees the
    same resampled problems. With an index of problem and run there is a row for each of both: runs are resampled
    as well, and a problem that a run lacks is left out. `baseline`: the same problems and statistics of another
    method, subtracted problem by problem, and run by run where there are as many. Returns one row a statistic with
    columns estimate, low, high, n_problems. Raises ValueError on missing values or unequal problems.
    """
    sides = [_by_run(values), *([] if baseline is None else [_by_run(baseline)])]
    problems, statistics = sides[0][0].index, sides[0][0].columns
    if any(set(side[0].index) != set(problems) or list(side[0]) != list(statistics) for side in sides):
        raise ValueError("a paired difference needs the same problems and statistics on both sides")
    arrays = [np.stack([run.loc[problems] for run in side]).astype(float) for side in sides]
    if not arrays[0].size or any(np.isnan(array).any() for array in arrays):
        raise ValueError(f"cannot resample {len(problems)} problems with missing scores: too few samples?")
    if len({len(array) for array in arrays} - {1}) < 2:  # run beside run, or each beside the only one
        arrays = [arrays[0] - sum(arrays[1:])]
    estimate, drawn = arrays[0].mean(axis=(0, 1)), _resampled(arrays[0], draws, seed)
    for other in arrays[1:]:
        estimate, drawn = estimate - other.mean(axis=(0, 1)), drawn - _resampled(other, draws, seed)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return pd.DataFrame({"estimate": estimate, "low": low, "high": high, "n_problems": len(problems)}, statistics)


def _by_run(values) -> list[pd.DataFrame]:
    """A frame a run, of the problems that all runs have."""
    values = pd.DataFrame(values)
    if "run" not in values.index.names:
        return [values]
    runs = [run.droplevel("run") for _, run in values.groupby(level="run")]
    shared = reduce(pd.Index.intersection, (run.index for run in runs))
    return [run.loc[shared] for run in runs]


def _resampled(array: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Means over resampled problems, and over resampled runs if there are several: (draws, statistics).

    `array`: (runs, problems, statistics), or (problems, statistics) of one run. Equal seeds resample equal problems,
    and of equally many runs the same ones. Of three runs two are drawn with replacement: three would make the
    variance of their mean a third too small (Rao and Wu 1988).
    """
    array = array if array.ndim == 3 else array[None]
    (runs, problems, _), means = array.shape, []
    rng, of_runs = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    for start in range(0, draws, 1000):  # a chunk of resamples is a matrix of problem weights
        rows = min(1000, draws - start)
        weights = _weights(rng, rows, problems, problems)
        shares = _weights(of_runs, rows, runs, runs - 1) if runs > 1 else np.ones((rows, 1))
        means.append(sum(shares[:, [i]] * (weights @ array[i]) for i in range(runs)))
    return np.concatenate(means)


def _weights(rng: np.random.Generator, draws: int, units: int, size: int) -> np.ndarray:
    """The share that each unit has of `size` units drawn with replacement: (draws, units)."""
    picks = rng.integers(units, size=(draws, size)) + units * np.arange(draws)[:, None]
    return np.bincount(picks.ravel(), minlength=draws * units).reshape(draws, units) / size


def crossover_draws(challenger, baseline, draws=10_000, seed=0) -> np.ndarray:
    """`crossover` of two curves over k = 1, 2, ... (frames: the same problems in rows, a column a k): first as it
    stands, then on each resample of the problems. 1 + the largest k stands for none. Paired: the same seed resamples
    the same problems."""
    gaps = np.asarray(challenger) - np.asarray(baseline)
    above = np.vstack([gaps.mean(axis=0), _resampled(gaps, draws, seed)]) > 0
    return np.where(above.any(axis=1), above.argmax(axis=1), above.shape[1]) + 1


def estimates(scores: pd.DataFrame, draws=10_000, seed=0) -> pd.DataFrame:
    """Every method's mean over problems on every set, all methods of a set on the same resamples.

    `scores`: of `problem_scores`, indexed by method, run, set, problem; a method's runs are its seeds.
    Columns set, method, metric, estimate, low, high, n_problems.
    """
    tables = {(name, runs): bootstrap(wide, draws=draws, seed=seed) for name, runs, wide in _by_set(scores)}
    table = pd.concat(tables).rename_axis(["set", "runs", "metric", "method"]).reset_index()
    return table[["set", "method", "metric", "estimate", "low", "high", "n_problems"]]


def differences(scores: pd.DataFrame, pairs, draws=10_000, seed=0) -> pd.DataFrame:
    """Paired differences, method minus baseline, of each (method, baseline) in `pairs`, on sets with both.

    `scores` as in `estimates`. Columns set, method, baseline, metric, estimate, low, high, n_problems.
    """
    sides, tables = {}, {}
    for name, _, wide in _by_set(scores):
        for method in wide.columns.unique("method"):
            sides[name, method] = wide.xs(method, axis=1, level="method")
    for name in scores.index.unique("set"):
        for method, baseline in pairs:
            if (name, method) in sides and (name, baseline) in sides:
                ours, theirs = sides[name, method], sides[name, baseline]
                both = ours.columns.intersection(theirs.columns)  # the samples reach
                tables[name, method, baseline] = bootstrap(ours[both], theirs[both], draws=draws, seed=seed)
    if not tables:
        return pd.DataFrame(columns=["set", "method", "baseline", "metric", "estimate", "low", "high", "n_problems"])
    return pd.concat(tables).rename_axis(["set", "method", "baseline", "metric"]).reset_index()


def _by_set(scores: pd.DataFrame):
    """(set, number of runs, the scores there of the methods with so many runs: problems and runs in rows, (metric,
    method) in columns), without what the samples do not reach."""
    table = scores.rename_axis("metric", axis=1).reset_index("run")
    names = table.groupby(["set", "method"])["run"]
    table["run"], number = names.transform(lambda run: run.factorize(sort=True)[0]), names.transform("nunique")
    for (name, runs), part in table.groupby(["set", number]):
        wide = part.set_index("run", append=True).droplevel("set").unstack("method")
        yield name, runs, wide.dropna(axis=1, how="all")


def across_seeds(estimates, confidence=0.95) -> tuple[float, float, float]:
    """Mean over seeds with its Student t interval: (mean, low, high); with one seed low and high are NaN."""
    estimates = np.asarray(estimates, float)
    mean, seeds = estimates.mean(), len(estimates)
    if seeds < 2:
        return float(mean), np.nan, np.nan
    half = stats.t.ppf((1 + confidence) / 2, seeds - 1) * stats.sem(estimates)
    return float(mean), float(mean - half), float(mean + half)


def diagnostics(judged: pd.DataFrame, by=("set", "method")) -> pd.DataFrame:
    """What the completions look like, one row a group of `by`.

    Columns: `samples`; `distinct completions` and `distinct correct answers` (up to commuting, as the verifier renders
    them) a problem, of each run by itself where there is a column `run`; the share of each verifier status; `tokens`,
    the mean length; `at cap`, the share cut off by the token limit. Needs columns problem, completion, status, answer,
    tokens, finish (and `count` where equal completions are merged).
    """
    weight, by = _weight(judged), list(by)
    flags = {status: judged["status"] == status for status in STATUSES}
    flags |= {"tokens": judged["tokens"], "at cap": judged["finish"] == "length"}
    sums = judged[by].assign(samples=weight, **{name: flag * weight for name, flag in flags.items()})
    table = sums.groupby(by).sum()
    table[list(flags)] = table[list(flags)].div(table["samples"], axis=0)
    cell = [*by, "problem", *judged.columns.intersection(["run"])]  # a run has as many samples as any other
    problems = judged.drop_duplicates(cell).groupby(by).size()
    distinct = judged.drop_duplicates([*cell, "completion"]).groupby(by).size()
    correct = judged[judged["status"] == "correct"].drop_duplicates([*cell, "answer"])
    answers = correct.groupby(by).size().reindex(table.index, fill_value=0)
    table.insert(1, "distinct completions", distinct / problems)
    table.insert(2, "distinct correct answers", answers / problems)
    return table


def share(part: pd.Series, whole: pd.Series) -> pd.Series:
    """A share of totals as a score a problem: its mean over a run's problems on a set is sum(part) / sum(whole), and
    resampling it gives that ratio's interval (Taylor linearisation). NaN where the whole is nothing."""
    runs = [level for level in part.index.names if level != "problem"]
    mean = whole.groupby(runs).transform("mean")
    ratio = part.groupby(runs).transform("mean") / mean
    return ratio + (part - ratio * whole) / mean


def exploration(judged: pd.DataFrame, by=("method", "run", "set", "problem")) -> pd.DataFrame:
    """What a problem's completions search through (`ast`, Table 4 and Figure 3), as scores for `estimates`.

    `judged`: of `judge` and `judge_steps`. Of equations: how many and how many distinct ones a response; the share
    repeated, correct, and read, of all equals signs. Recovery: of correct answers, those behind a false equation.
    Distinct correct solutions: of all samples of a problem, up to commuting, and up to associativity as well.
    """
    weight, by = _weight(judged), list(by)
    correct = judged["status"] == "correct"
    flags = {"correct": correct, "slipped": correct & (judged["true"] < judged["equations"])}
    flags |= {"wrong numbers": judged["status"] == "wrong_numbers"}
    flags |= {name: judged[name] for name in ("equations", "distinct", "true", "signs", "tokens")}
    sums = judged[by].assign(n=weight, **{name: flag * weight for name, flag in flags.items()}).groupby(by).sum()
    answers = judged.loc[correct, [*by, "answer"]].drop_duplicates()
    answers["shape"] = answers["answer"].map(lambda text: flattened(parse(text)))
    found = answers.groupby(by)[["answer", "shape"]].nunique().reindex(sums.index, fill_value=0)
    scores = {
        "equations per response": sums["equations"] / sums["n"],
        "distinct equations per response": sums["distinct"] / sums["n"],
        "repeated equations": share(sums["equations"] - sums["distinct"], sums["equations"]),
        "correct equations": share(sums["true"], sums["equations"]),
        "recovery": share(sums["slipped"], sums["correct"]),
        "equations read": share(sums["equations"], sums["signs"]),
        "tokens per response": sums["tokens"] / sums["n"],
        "wrong_numbers": sums["wrong numbers"] / sums["n"],
        "distinct completions": judged.groupby(by)["completion"].nunique(),
        "distinct correct solutions": found["answer"],
        "distinct up to associativity": found["shape"],
    }
    return pd.DataFrame(scores, dtype=float)


def matched_length(judged: pd.DataFrame, width=16, seed=0) -> pd.DataFrame:
    """Of each problem's completions equally many of each length (classes of `width` tokens) from every method, drawn at
    random from those with more: what a method finds beyond the others is then no matter of length. A row a completion;
    seeds are matched one by one."""
    rows = judged.loc[judged.index.repeat(_weight(judged))].drop(columns="count", errors="ignore")
    rows = rows.sort_values(["run", "set", "problem", "completion"])  # published and local rows are drawn alike
    rows = rows.sample(frac=1, random_state=seed)
    cells = [rows["set"], rows["problem"], rows["tokens"] // width, rows["seed"]]
    rank = rows.groupby([*cells, "method"]).cumcount()
    sizes = pd.crosstab(cells, rows["method"]).min(axis=1)
    return rows[rank.to_numpy() < sizes.loc[pd.MultiIndex.from_arrays(cells)].to_numpy()]


SEARCH = ["set", "beams", "samples", "temperature", "rerank", "weight", "alpha", "beta"]  # what one is made with


def partial_credit(judged: pd.DataFrame) -> pd.Series:
    """The score of `agent`, Section 4.1: 1 for a solution, 0.1 for a game or an answer that is none, 0 for neither."""
    return judged["correct"].astype(float).where(judged["correct"] | (judged["status"] == "missing"), 0.1)


def searched(judged: pd.DataFrame) -> pd.DataFrame:
    """Saved searches (of notebook 16, after `judge`), one row each: that of their best game, with columns more.

    pass@1: the game of the best score is a solution. any: one of the games kept is, as the executor sees. score.
    rejected: share of sampled tags that name no legal action. repeats: searches of the same problem. system: what was
    searched with, as in "16/16 +soft T0.9 sampled": rerank and temperature where they are not usual, and repeats.
    """
    games = judged.groupby([*SEARCH, "problem", "sample"], sort=False)["correct"]
    repeats = judged.groupby(SEARCH)["sample"].transform("max") + 1
    best = judged.assign(any=games.transform("any").astype(float), repeats=repeats).query("rank == 0")
    scores = {"pass@1": best["correct"].astype(float), "score": partial_credit(best)}
    scores["rejected"] = best[list(REJECTIONS)].sum(axis=1) / best["sampled"]
    return best.assign(**scores, system=[_system(row) for row in best.itertuples()])


def _system(row) -> str:
    rerank = "" if row.rerank == "none" else f" +{row.rerank}"
    warmth = "" if row.temperature in (0, 0.6) else f" T{row.temperature:g}"
    return f"{row.beams}/{row.samples}{rerank}{warmth}{' sampled' if row.repeats > 1 else ''}"


def on_front(points: np.ndarray) -> np.ndarray:
    """Which points no other dominates: is at least as high in every coordinate and higher in one. Shape (..., points,
    coordinates) to bool (..., points)."""
    one, other = points[..., :, None, :], points[..., None, :, :]
    return ~((other >= one).all(axis=-1) & (other > one).any(axis=-1)).any(axis=-1)


def front(scores: pd.DataFrame, metrics: list[str], draws=10_000, seed=0) -> pd.DataFrame:
    """Which methods are on the Pareto front of some metrics: `on front` by their means, and `front`, the share of
    resamples of the problems in which they are. `scores` as in `estimates`, of one set."""
    wide = scores[metrics].groupby(["problem", "method"]).mean().unstack("method")
    methods = wide[metrics[0]].columns
    columns = np.stack([wide[metric][methods] for metric in metrics], axis=-1).reshape(len(wide), -1)
    means = np.vstack([columns.mean(axis=0), _resampled(columns, draws, seed)]).reshape(-1, len(methods), len(metrics))
    found = np.concatenate([on_front(part) for part in np.array_split(means, draws // 500 + 1)])  # for the memory
    return pd.DataFrame({"on front": found[0], "front": found[1:].mean(axis=0)}, index=methods)


ANSWERS = [  # to claims, the weakest first: the answer to a claim of several comparisons is its weakest
    *["not run", "one seed", "two seeds"],
    *["not reproduced", "undecided", "not contradicted", "reproduced"],
]


def answer(low: float, high: float, direction: str, seeds: int) -> str:
    """What the interval of a paired difference says to a claim that it is "higher" or "lower" than zero, or "equal".

    "reproduced", "not reproduced" (the interval lies on the other side) or "undecided" (it holds zero); to "equal"
    "not contradicted" (it holds zero) or "not reproduced". With fewer than three seeds nothing is decided, and the
    answer says so.
    """
    if direction not in ("higher", "lower", "equal"):
        raise ValueError(f"direction {direction!r}: a difference is claimed to be 'higher', 'lower' or 'equal'")
    if seeds < 3:
        return "one seed" if seeds == 1 else "two seeds"
    if direction == "equal":
        return "not contradicted" if low <= 0 <= high else "not reproduced"
    if low <= 0 <= high:
        return "undecided"
    return "reproduced" if (low > 0) == (direction == "higher") else "not reproduced"


def as_text(table: pd.DataFrame, signed=False, scale=100, digits=1) -> pd.Series:
    """Rows with estimate, low, high as text, by default in percent: "57.8 [54.1, 61.2]", with signs for differences."""
    one = f"{{:{'+' if signed else ''}.{digits}f}}"
    rows = (scale * table[["estimate", "low", "high"]]).itertuples(index=False)
    return pd.Series([f"{one} [{one}, {one}]".format(*row) for row in rows], index=table.index, dtype=object)


def told(folder) -> dict:
    """What the run.json in a run's folder says of it: run (kind/name/seed), method and seed, for `assign`."""
    record = json.loads((ROOT / folder / "run.json").read_text())
    return {"method": record["method"], "run": f"{record['run']}/{record['seed']}", "seed": record["seed"]}


def _weight(judged: pd.DataFrame) -> pd.Series:
    """How many completions each row stands for."""
    return judged["count"] if "count" in judged else pd.Series(1, index=judged.index)
