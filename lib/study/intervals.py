r"""One rule for every interval here: of a mean, of a paired difference, of any contrast, and of training logs.

Method m's run of seed s scores $x_{msp}$ on problem p. A statement about a method shall hold beyond its problems and
beyond its runs, so the interval of a contrast $\sum_m w_m \bar x_m$ has two parts, whose half-widths add in
quadrature:

$$h^2 = t_{P-1}^2 \, \frac{\mathrm{Var}_p(\sum_m w_m \bar x_{m\cdot p})}{P}
+ \max(0, \; t_{S-1}^2 \, \hat\sigma^2 - t_{P-1}^2 \, e^2)$$

The first part is of problems: differences are taken within each of them. The second part is of runs. Its spread comes
from the runs of the contrast's own methods, so that a contrast has one answer wherever it is asked, and a method whose
runs differ much does not widen the intervals of another. Runs of one seed start from the same policy and meet the same
problems in the same order, so what moves all of them cancels in a difference. Runs of methods from several starts are
independent, and so are those that `lib.study.judging.seed_of` numbers from 1000 up.

$$\hat\sigma^2 = \sum_s c_s^2, \qquad
c_s = \sum_m \frac{w_m}{n_m} \sqrt{\frac{n_m}{n_m - 1}} \, (\bar x_{ms} - \bar x_m)$$

With the same seeds in all methods this is $s^2/S$ of the differences run by run, Student's paired rule. Where methods
share no run it is the sum of both variances, as in Welch's rule. $S$ is the number of runs of the method with the
fewest. $e^2$ is the part of the runs' spread that comes from the finite problems, by the interaction of runs and
problems. The first term has it already, so it is subtracted from the second. In simulations at most 5% of comparisons
of identical methods differ, in every layout of runs and for every spread, whether the runs of both methods spread alike
or those of one five times as far (tests/test_intervals.py).

Methods of fewer than four runs know little about their spread, and borrow. For each trainer data/spreads.csv says how
far the runs of a policy differ and how unequal these spreads are, from all published policies that were trained four
times or more. The method's own spread is averaged with that of the table, weighted by their degrees of freedom (Smyth's
moderated t). The more unequal the spreads are, the fewer degrees the table lends. Such intervals miss the truth for one
policy in twenty, but not for one run in twenty of the policy whose runs differ most. Results that borrow are marked.
What the table lacks, such as numbers of a training log, borrows nothing. No claim rests on one run.

The interval of a share stays within 0 and 1: its half-width is taken on the scale of the logit. Where all scores are 0
or all are 1, it ends at the bound of Clopper and Pearson: for 50 problems without a solution the upper end is 7.1%.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit, stdtrit  # Student's t; scipy.stats takes a second to import

from lib.files import DATA
from lib.study.methods import policy_of, root, trainer

COLUMNS = ["estimate", "low", "high", "n_problems", "runs", "borrowed"]
ENOUGH = 4  # runs of which a spread is taken as it is


def estimates(scores: pd.DataFrame) -> pd.DataFrame:
    """Every method's mean on every set. `scores` is indexed by method, seed, set and problem, and has a column per
    metric, which is averaged over the problems that have it. Columns set, method, metric, estimate, low, high,
    n_problems, runs, borrowed."""
    methods = {method: {method: 1.0} for method in scores.index.unique("method")}
    return contrasts(scores, methods).rename(columns={"contrast": "method"})


def differences(scores: pd.DataFrame, pairs: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """Paired differences, method minus baseline, of each (method, baseline) in `pairs`, on sets with both.

    `scores` as in `estimates`. Columns set, method, baseline, metric, estimate, low, high, n_problems, runs, borrowed.
    """
    asked = {pair: {pair[0]: 1.0, pair[1]: -1.0} for pair in pairs}
    table = contrasts(scores, asked)
    sides = pd.DataFrame(table.pop("contrast").tolist(), table.index, columns=["method", "baseline"], dtype=object)
    return pd.concat([table[["set"]], sides, table.drop(columns="set")], axis=1)


def contrasts(scores: pd.DataFrame, weights: Mapping[Any, Mapping[str, float]]) -> pd.DataFrame:
    """Weighted sums of methods' means. `weights` by name of the contrast, then by method: A - 2 B is above zero where A
    is more than double B. `scores` as in `estimates`. One row per set, contrast whose methods all have scores, and
    metric. Columns set, contrast, metric, estimate, low, high, n_problems, runs (of the method with the fewest),
    borrowed."""
    rows = []
    for (name, contrast, metric), found in measured(scores, weights).items():
        about = (found.problems, found.runs, found.borrowed)
        rows.append((name, contrast, metric, found.estimate, *found.ends(), *about))
    return pd.DataFrame(rows, columns=["set", "contrast", "metric", *COLUMNS])


@dataclass(frozen=True)
class Measured:
    """A contrast's estimate and its sources of error."""

    estimate: float
    problems: int
    runs: int
    of_problems: float  # variance of the mean over problems
    seen: float  # variance that the runs show
    made: float  # the part of it that the finite problems make
    freedom: float  # degrees of freedom of both
    borrowed: bool
    single: float  # variance over problems of one run alone
    single_run: float  # variance between such runs
    share: bool  # all scores lie within 0 and 1
    level: bool  # it is the mean of one method

    def half(self, confidence=0.95) -> float:
        """Half of the interval's width; NaN for the one number of a training log."""
        if self.problems == 1 and self.runs == 1:
            return np.nan
        if self.share and self.problems > 1 and not self.of_problems and not self.seen:
            return 1 - ((1 - confidence) / 2) ** (1 / self.problems)  # Clopper and Pearson's
        return float(half_width(self.of_problems, self.problems, self.seen, self.made, self.freedom, confidence))

    def ends(self) -> tuple[float, float]:
        """The interval, of a share within 0 and 1."""
        at, half = self.estimate, self.half()
        if self.share and self.level:
            if 0 < at < 1:
                low, high = expit(logit(at) + np.array([-1, 1]) * half / (at * (1 - at)))
                return float(low), float(high)
            return max(0.0, at - half), min(1.0, at + half)
        return at - half, at + half

    def p(self, bound=0.0) -> float:
        """The largest error at which the interval, taken as symmetric, would still contain `bound`."""
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
    """The contrasts with their sources of error, by set, contrast and metric."""
    found = {}
    for name, metric, whole in _tables(scores):
        tables = {method: pd.DataFrame(whole.xs(method, level="method")) for method in whole.index.unique("method")}
        for contrast, signed in weights.items():
            if set(signed) <= set(tables) and (one := _measured(tables, signed, metric)):
                found[name, contrast, metric] = one
    return found


def _tables(scores: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Each set and metric with its scores: runs (method, seed) in rows, problems in columns."""
    for name, part in scores.groupby("set", sort=False):
        wide = part.droplevel("set").unstack("problem")
        for metric in scores.columns:
            yield str(name), metric, pd.DataFrame(wide[metric]).dropna(how="all")


def _measured(tables: Mapping[Any, pd.DataFrame], signed: Mapping[str, float], metric: str) -> Measured | None:
    """One contrast; None where its methods share no problem, or two systems of one policy share no run."""
    # 1. Scores of each method on the problems that all have. Systems of one policy ("rloo/sparse", "rloo/sparse T0.8")
    #    keep the runs that all of them have, so that what moves a run cancels in their difference
    mine = {}
    for method in signed:
        systems = [set(tables[other].index) for other in signed if policy_of(other) == policy_of(method)]
        mine[method] = tables[method].loc[sorted(set.intersection(*systems))]
    if not all(map(len, mine.values())):
        return None
    common = ~np.isnan(np.vstack([table.to_numpy(float) for table in mine.values()])).any(axis=0)
    if not common.any():
        return None
    several = len({root(method) for method in mine} - {""}) > 1  # runs of several starts do not pair
    sides = [
        (signed[m], [(root(m) * several, seed) for seed in table.index], table.to_numpy(float)[:, common])
        for m, table in mine.items()
    ]
    # 2. The variances over problems and over runs
    estimate, of_problems, seen, made = parts(sides)
    counts = [len(seeds) for _, seeds, _ in sides]
    # 3. What one run of each method would have as its error
    own = np.square([weight for weight, *_ in sides])
    single = sum(of * _variance(x).mean() for of, (_, _, x) in zip(own, sides, strict=True))
    if shared := set.intersection(*(set(seeds) for _, seeds, _ in sides)):  # a paper's policies answer one test, too
        paired = [sum(weight * x[seeds.index(seed)] for weight, seeds, x in sides) for seed in shared]
        single = _variance(np.array(paired)).mean()
    single_run = own.sum() / (own / counts).sum() * max(0.0, seen - made)
    # 4. Methods of few runs borrow
    freedom, loan = float(min(counts) - 1), None
    varies = common.sum() > 1 and (of_problems > 0 or seen > 0)  # otherwise only Clopper and Pearson's bound is known
    if min(counts) < ENOUGH and varies and (loan := _lent(mine, signed, metric)):
        seen, freedom = moderated(seen, made, freedom, *loan)
    return Measured(
        estimate=float(estimate),
        problems=int(common.sum()),
        runs=min(counts),
        of_problems=float(of_problems),
        seen=float(seen),
        made=float(made),
        freedom=freedom,
        borrowed=loan is not None,
        single=float(single),
        single_run=float(single_run),
        share=common.sum() > 1 and all(((x >= 0) & (x <= 1)).all() for *_, x in sides),
        level=len(sides) == 1 and sides[0][0] == 1,
    )


def moderated(seen, made, freedom: float, variance, more: float) -> tuple:
    """A spread and its degrees of freedom, averaged with a borrowed variance (net of problems) of `more` degrees."""
    return (freedom * seen + more * (variance + made)) / (freedom + more), freedom + more


def _lent(mine: Mapping[str, pd.DataFrame], signed: Mapping[str, float], metric: str) -> tuple[float, float] | None:
    """Variance and degrees of freedom that a contrast borrows, for independent runs; None where the table lacks the
    metric for one of its trainers, or two systems of one policy share their runs."""
    runs = {policy_of(method): len(table) for method, table in mine.items()}
    together: defaultdict[str, float] = defaultdict(float)
    for method, weight in signed.items():
        together[policy_of(method)] += weight
    lent = [one for policy in together if (one := _spreads().get((trainer(policy), metric)))]
    if len(lent) < len(signed):
        return None
    variance = sum(w**2 / runs[policy] * one for (policy, w), (one, _) in zip(together.items(), lent, strict=True))
    return variance, min(freedom for _, freedom in lent)


@cache
def _spreads() -> dict[tuple[str, str], tuple[float, float]]:
    """By trainer and metric, the variance between runs that data/spreads.csv lends, and its degrees of freedom."""
    columns = ["trainer", "metric", "variance", "freedom"]
    table = pd.read_csv(DATA / "spreads.csv", usecols=columns, na_filter=False)[columns]
    return {(one, metric): (variance, freedom) for one, metric, variance, freedom in table.itertuples(index=False)}


def parts(sides: Iterable[tuple[float, list, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """A contrast's estimate, the variance of its mean over problems, the variance that its runs show (0 where a method
    has one run), and the part of that which the finite problems make, each of shape (...). `sides`: of each method its
    weight, the seeds of its runs, and its scores (..., runs, problems)."""
    sides = list(sides)
    values = np.sum([weight * x.mean(axis=-2) for weight, _, x in sides], axis=0)
    problems = values.shape[-1]
    of_problems = _variance(values) / problems
    if min(len(seeds) for _, seeds, _ in sides) == 1:
        return values.mean(axis=-1), of_problems, np.zeros_like(of_problems), np.zeros_like(of_problems)
    moved: defaultdict[Any, Any] = defaultdict(float)  # by seed, how far its runs move the contrast
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
    """Variance over problems, the last axis; 0 for the one number of a training log."""
    return values.var(axis=-1, ddof=1) if values.shape[-1] > 1 else np.zeros(values.shape[:-1])


def half_width(of_problems, problems: int, seen=0.0, made=0.0, freedom=0.0, confidence=0.95):
    """Half the interval's width, elementwise, from the variances of `parts`. freedom: degrees of freedom of the last
    two, 0 where there is one run."""
    over_problems = stdtrit(problems - 1, (1 + confidence) / 2) ** 2 if problems > 1 else 0.0
    over_runs = stdtrit(freedom, (1 + confidence) / 2) ** 2 if freedom > 0 else 0.0
    return np.sqrt(over_problems * of_problems + np.maximum(0, over_runs * seen - over_problems * made))


def of_logs(values: pd.DataFrame) -> pd.DataFrame:
    """Scores of a training log for the functions above. `values`: numbers of whole runs by method and seed."""
    keys = [*values.index.names, "set", "problem"]
    return (
        values.assign(set="training", problem=0)
        .set_index(["set", "problem"], append=True)[list(values)]
        .rename_axis(keys)
    )
