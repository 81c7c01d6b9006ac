r"""One rule for every interval here: of a mean, of a paired difference, of any contrast, and of training logs.

A score $x_{msp}$ is that of method m's run of seed s on problem p. What is stated of a method holds beyond its problems
and beyond its runs, so the interval of a contrast $\sum_m w_m \bar x_m$ has two parts, and the half-widths add in
quadrature:

$$h^2 = t_{P-1}^2 \, \frac{\mathrm{Var}_p(\sum_m w_m \bar x_{m\cdot p})}{P}
+ \max(0, \; t_{S-1}^2 \, \hat\sigma^2 - t_{P-1}^2 \, e^2)$$

First, problems: differences are taken within each, which is what pairing means. Second, runs. The spread between runs
comes from the runs of the contrast's own methods, so that a contrast has one answer wherever it is asked, and a method
whose runs differ much does not widen the intervals of one whose runs differ little. Runs of one seed start from the
same policy and meet the same problems in the same order, and what moves all of them cancels in a difference (runs of
methods from several starts are independent, and so are those of `lib.study.judging.seed_of` from 1000 up):

$$\hat\sigma^2 = \sum_s c_s^2, \qquad
c_s = \sum_m \frac{w_m}{n_m} \sqrt{\frac{n_m}{n_m - 1}} \, (\bar x_{ms} - \bar x_m)$$

With the same seeds in all methods that is $s^2/S$ of the differences run by run, Student's paired rule. Where methods
share no run it is the sum of both variances, as in Welch's rule. $S$ is the number of runs of the method that has the
fewest. $e^2$ is the part of the runs' spread that the finite problems make anyway, by the interaction of runs and
problems. It is in the first term already, and so it is taken off the second. Simulated, at most 5% of
comparisons of identical methods differ in every layout of runs and for every spread, whether the runs of both spread
alike or those of one five times as far (tests/test_intervals.py).

Methods of fewer than four runs know little of their spread, and borrow: data/spreads.csv has how far the runs of a
trainer's policies differ, and how unequal these spreads are, of all published policies that were trained four times or
more. A spread of two runs, of one degree of freedom, is averaged with that by their degrees (Smyth's moderated t). The
more unequal spreads are, the fewer degrees are lent, so that such intervals miss the truth in one of twenty policies,
though not in one of twenty runs of the policy whose runs differ most. The table is one for all notebooks, and what
borrows is marked so. What the table has not, as numbers of a training log, borrows nothing. No claim rests on one run.

A share has an interval within 0 and 1: its half-width is taken on the scale of the logit. Where every score is 0 or
every score is 1, the bound is that of Clopper and Pearson for as many problems: of 50 problems without a solution the
upper end is 7.1%.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit, stdtrit  # Student's t; scipy.stats takes a second to import

from lib.files import DATA

COLUMNS = ["estimate", "low", "high", "n_problems", "runs", "borrowed"]
ENOUGH = 4  # runs of which a spread is taken as it is


def estimates(scores: pd.DataFrame, confidence=0.95) -> pd.DataFrame:
    """Every method's mean on every set.

    `scores`: indexed by method, seed, set, problem; a column each metric. A metric that is missing for some problems is
    averaged over the others. Columns set, method, metric, estimate, low, high, n_problems, runs, borrowed.
    """
    methods = {method: {method: 1.0} for method in scores.index.unique("method")}
    return contrasts(scores, methods, confidence).rename(columns={"contrast": "method"})


def differences(scores: pd.DataFrame, pairs: Iterable[tuple[str, str]], confidence=0.95) -> pd.DataFrame:
    """Paired differences, method minus baseline, of each (method, baseline) in `pairs`, on sets with both.

    `scores` as in `estimates`. Columns set, method, baseline, metric, estimate, low, high, n_problems, runs, borrowed.
    """
    asked = {pair: {pair[0]: 1.0, pair[1]: -1.0} for pair in pairs}
    table = contrasts(scores, asked, confidence)
    sides = pd.DataFrame(table.pop("contrast").tolist(), table.index, columns=["method", "baseline"], dtype=object)
    return pd.concat([table[["set"]], sides, table.drop(columns="set")], axis=1)


def contrasts(scores: pd.DataFrame, weights: Mapping[Any, Mapping[str, float]], confidence=0.95) -> pd.DataFrame:
    """Weighted sums of methods' means: `weights` by name, then by method. A factor is a weight: A - 2 B is above zero
    where A is more than double B.

    `scores` as in `estimates`. One row a set, a contrast all of whose methods have scores, and a metric; columns set,
    contrast, metric, estimate, low, high, n_problems, runs (the fewest of its methods), borrowed (above).
    """
    rows = []
    for (name, contrast, metric), found in measured(scores, weights).items():
        about = (found.problems, found.runs, found.borrowed)
        rows.append((name, contrast, metric, found.estimate, *found.ends(confidence), *about))
    return pd.DataFrame(rows, columns=["set", "contrast", "metric", *COLUMNS])


@dataclass(frozen=True)
class Measured:
    """A contrast's estimate and what moves it. of_problems: the variance of the mean over problems; seen: the variance
    that the runs show; made: the part of it that finite problems make; freedom: its degrees of freedom; single: the
    variance over problems of one run alone, and single_run: that between such runs. share: all scores lie in 0..1,
    level: and it is one method's mean."""

    estimate: float
    problems: int
    runs: int
    of_problems: float
    seen: float
    made: float
    freedom: float
    borrowed: bool
    single: float
    single_run: float
    share: bool
    level: bool

    def half(self, confidence=0.95) -> float:
        """Half of the interval's width; NaN for a training log's one number."""
        if self.problems == 1 and self.runs == 1:
            return np.nan
        if self.share and self.problems > 1 and not self.of_problems and not self.seen:
            return 1 - ((1 - confidence) / 2) ** (1 / self.problems)  # Clopper and Pearson's
        return float(half_width(self.of_problems, self.problems, self.seen, self.made, self.freedom, confidence))

    def ends(self, confidence=0.95) -> tuple[float, float]:
        """The interval, of a share within 0 and 1."""
        at, half = self.estimate, self.half(confidence)
        if self.share and self.level:
            if 0 < at < 1:
                low, high = expit(logit(at) + np.array([-1, 1]) * half / (at * (1 - at)))
                return float(low), float(high)
            return max(0.0, at - half), min(1.0, at + half)
        return at - half, at + half

    def p(self, bound=0.0) -> float:
        """The largest error at which the interval, taken as symmetric, would still hold `bound`."""
        away, low, high = abs(self.estimate - bound), 0.0, 1.0
        if np.isnan(self.half()):
            return np.nan
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.half(1 - middle) >= away else (low, middle)
        return high

    def error_of_one_run(self, problems: int) -> float:
        """The standard error that this contrast would have with one run a method, on so many problems."""
        return float(np.sqrt(self.single / problems + self.single_run))


def measured(scores: pd.DataFrame, weights: Mapping[Any, Mapping[str, float]]) -> dict[tuple, Measured]:
    """By set, name of a contrast and metric what `contrasts` has its intervals from."""
    found = {}
    for name, part in scores.groupby("set", sort=False):
        wide = part.droplevel("set").unstack("problem")
        for metric in scores.columns:
            whole = pd.DataFrame(wide[metric]).dropna(how="all")
            tables = {method: pd.DataFrame(whole.xs(method, level="method")) for method in whole.index.unique("method")}
            for contrast, signed in weights.items():
                if set(signed) <= set(tables) and (one := _measured(tables, signed, metric)):
                    found[name, contrast, metric] = one
    return found


def _measured(tables: Mapping[Any, pd.DataFrame], signed: Mapping[str, float], metric: str) -> Measured | None:
    """One contrast; None where its methods share no problem, or two systems of a policy no run."""
    mine = _same_runs({method: tables[method] for method in signed})
    if not all(map(len, mine.values())):
        return None
    common = ~np.isnan(np.vstack([table.to_numpy(float) for table in mine.values()])).any(axis=0)
    if not common.any():
        return None
    starts = {root(method) for method in mine} - {""}
    of_start = {method: root(method) if len(starts) > 1 else "" for method in mine}  # no pairs of several starts
    sides = [
        (weight, [(of_start[m], seed) for seed in mine[m].index], mine[m].to_numpy(float)[:, common])
        for m, weight in signed.items()
    ]
    estimate, of_problems, seen, made = parts(sides)
    counts = [len(seeds) for _, seeds, _ in sides]
    own = np.square([weight for weight, *_ in sides])
    single = sum(of * _variance(x).mean() for of, (_, _, x) in zip(own, sides, strict=True))
    if shared := set.intersection(*(set(seeds) for _, seeds, _ in sides)):  # a paper's policies answer one test, too
        paired = [sum(weight * x[seeds.index(seed)] for weight, seeds, x in sides) for seed in shared]
        single = _variance(np.array(paired)).mean()
    grown = own.sum() / (own / counts).sum()
    share = common.sum() > 1 and all(((x >= 0) & (x <= 1)).all() for *_, x in sides)
    level = len(sides) == 1 and sides[0][0] == 1
    single_run = grown * max(0.0, seen - made)
    freedom, loan = float(min(counts) - 1), None
    varies = common.sum() > 1 and (of_problems > 0 or seen > 0)  # else Clopper and Pearson's bound is all there is
    if min(counts) < ENOUGH and varies and (loan := _lent(mine, signed, metric)):
        seen, freedom = moderated(seen, made, freedom, *loan)
    return Measured(
        *(float(estimate), int(common.sum()), min(counts)),
        *(float(of_problems), float(seen), float(made), freedom, loan is not None),
        *(float(single), float(single_run), share, level),
    )


def moderated(seen, made, freedom: float, variance, more: float) -> tuple:
    """A spread and its degrees of freedom, averaged with a borrowed variance (net of problems) of `more` degrees."""
    return (freedom * seen + more * (variance + made)) / (freedom + more), freedom + more


def _lent(mine: Mapping[str, pd.DataFrame], signed: Mapping[str, float], metric: str) -> tuple[float, float] | None:
    """Variance and degrees of freedom that a contrast borrows, as of independent runs; None where the table has not
    the metric for all of its trainers."""
    together: defaultdict[str, float] = defaultdict(float)
    for method, weight in signed.items():
        together[method.split(" ")[0]] += weight
    runs = {method.split(" ")[0]: len(table) for method, table in mine.items()}
    found = [lent for policy in together if (lent := _spreads().get((trainer(policy), metric)))]
    if len(found) < len(signed):  # not of all trainers; or systems of one policy, which share their runs
        return None
    variance = sum(w**2 / runs[policy] * lent[0] for (policy, w), lent in zip(together.items(), found, strict=True))
    return variance, min(lent[1] for lent in found)


@cache
def _spreads() -> dict[tuple[str, str], tuple[float, float]]:
    path = DATA / "spreads.csv"
    table = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["trainer", "metric", "variance", "freedom"])
    keys = zip(table["trainer"].astype(str), table["metric"].astype(str), strict=True)
    return dict(zip(keys, zip(table["variance"], table["freedom"], strict=True), strict=True))


def parts(sides: Iterable[tuple[float, list, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Of a contrast its estimate, the variance of its mean over problems, and the variance that its runs show with the
    part that finite problems make of it, each of shape (...). sides: a method's weight, the seeds of its runs, and its
    scores (..., runs, problems). A method with one run shows no variance: all methods then count as of one run."""
    sides = list(sides)
    values = np.sum([weight * x.mean(axis=-2) for weight, _, x in sides], axis=0)
    problems = values.shape[-1]
    of_problems = _variance(values) / problems
    if min(len(seeds) for _, seeds, _ in sides) == 1:
        return values.mean(axis=-1), of_problems, np.zeros_like(of_problems), np.zeros_like(of_problems)
    moved: defaultdict[Any, Any] = defaultdict(float)  # by seed, what it adds to the contrast
    for weight, seeds, x in sides:
        runs = len(seeds)
        away = weight / np.sqrt(runs * (runs - 1)) * (x - x.mean(axis=-2, keepdims=True))
        for i, seed in enumerate(seeds):
            moved[seed] = moved[seed] + away[..., i, :]
    by_seed = np.stack([*moved.values()])
    means = by_seed.mean(axis=-1)
    made = ((by_seed - means[..., None]) ** 2).sum(axis=(0, -1)) / (problems * max(problems - 1, 1))
    return values.mean(axis=-1), of_problems, (means**2).sum(axis=0), made


def _variance(values: np.ndarray) -> np.ndarray:
    """Over problems, the last axis; 0 of the one number that a training log is."""
    return values.var(axis=-1, ddof=1) if values.shape[-1] > 1 else np.zeros(values.shape[:-1])


def half_width(of_problems, problems: int, seen=0.0, made=0.0, freedom=0.0, confidence=0.95):
    """Half the interval's width, elementwise. of_problems, seen, made: as `parts` has them; freedom: degrees of freedom
    of the latter two, 0 where one run shows nothing."""
    over_problems = stdtrit(problems - 1, (1 + confidence) / 2) ** 2 if problems > 1 else 0.0
    over_runs = stdtrit(freedom, (1 + confidence) / 2) ** 2 if freedom > 0 else 0.0
    return np.sqrt(over_problems * of_problems + np.maximum(0, over_runs * seen - over_problems * made))


def _same_runs(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Systems of one policy ("rloo/sparse" and "rloo/sparse T0.8") on the runs that all of them have: what moves a run
    moves both, and cancels only so."""
    policies = {method: method.split(" ")[0] for method in tables}
    kept = {}
    for method, table in tables.items():
        systems = [other.index for name, other in tables.items() if policies[name] == policies[method]]
        kept[method] = table.loc[sorted(set.intersection(*map(set, systems)))]
    return kept


@cache
def _starts() -> dict[str, str]:
    table = pd.read_csv(DATA / "methods.csv", usecols=["method", "start"]).fillna("")
    return dict(table[["method", "start"]].to_numpy(str).tolist())


@cache
def _trainers() -> dict[str, str]:
    return dict(pd.read_csv(DATA / "methods.csv", usecols=["method", "trainer"]).to_numpy(str).tolist())


def trainer(method: str) -> str:
    """What made a policy, by data/methods.csv: "rloo" of a mixture of its weights too."""
    policy = method.split(" ")[0]
    return _trainers().get(policy, policy.split("/")[0])


def root(method: str) -> str:
    """The policy that a method's line began with, by data/methods.csv: sft/free of rloo/program, which starts from
    sft/program. "" of a method that is not there: its runs count as paired by their seeds."""
    policy, starts = method.split(" ")[0], _starts()
    while start := starts.get(policy, ""):
        policy = start
    return policy if policy in starts else ""


def slopes(scores: pd.DataFrame, grids: Mapping[str, Mapping[str, float]], confidence=0.95) -> pd.DataFrame:
    """Least squares' slope of runs' means on a setting of theirs: what one more of it changes, over a whole sweep. How
    far runs lie from the line says how far they differ, so a cell of the sweep may have one run. `grids`: the setting
    by method, by name; only grids all of whose methods have scores. Columns as `contrasts` has them; runs: of all."""
    rows = []
    for name, part in scores.groupby("set", sort=False):
        wide = part.droplevel("set").unstack("problem")
        for metric in scores.columns:
            whole = pd.DataFrame(wide[metric]).dropna(how="all")
            for grid, settings in grids.items():
                if set(settings) <= set(whole.index.unique("method")):
                    runs = whole[whole.index.isin([*settings], level="method")].dropna(axis=1)
                    x = runs.index.get_level_values("method").map(settings).to_numpy(float)
                    rows.append((name, grid, metric, *_slope(x, runs.to_numpy(float), confidence)))
    return pd.DataFrame(rows, columns=["set", "contrast", "metric", *COLUMNS])


def _slope(x: np.ndarray, values: np.ndarray, confidence: float) -> tuple:
    """COLUMNS of the slope of values (runs, problems) on x (runs,)."""
    runs, problems = values.shape
    centred = x - x.mean()
    squares = centred @ centred
    each = centred @ values / squares
    rest = values - values.mean(axis=0) - np.outer(centred, each)
    means = rest.mean(axis=1)
    freedom = max(runs - 2, 1) * squares
    seen = means @ means / freedom
    made = ((rest - means[:, None]) ** 2).sum() / freedom / (problems * max(problems - 1, 1))
    half = half_width(_variance(each) / problems, problems, seen, made, runs - 2, confidence)
    return each.mean(), each.mean() - half, each.mean() + half, problems, runs, False


def of_logs(values: pd.DataFrame) -> pd.DataFrame:
    """Scores of a training log, for the functions above. `values`: numbers of whole runs, indexed by method and
    seed."""
    keys = [*values.index.names, "set", "problem"]
    return (
        values.assign(set="training", problem=0)
        .set_index(["set", "problem"], append=True)[list(values)]
        .rename_axis(keys)
    )
