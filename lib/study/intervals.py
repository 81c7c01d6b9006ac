r"""One rule for all intervals of the study: of a mean, a paired difference, any contrast, and
numbers of training logs.

The run of method m with seed s scores $x_{msp}$ on problem p. A statement about a method should
hold for other problems and for other runs as well. So the interval of a contrast $\sum_m w_m \bar
x_m$ has two parts, whose half-widths add in quadrature:

$$h^2 = t_{P-1}^2 \, \frac{\mathrm{Var}_p(\sum_m w_m \bar x_{m\cdot p})}{P}
+ \max(0, \; t_{S-1}^2 \, \hat\sigma^2 - t_{P-1}^2 \, e^2)$$

The first part is the uncertainty due to the choice of problems; differences are taken within each
problem. The second part is the uncertainty due to runs. Its spread $\hat\sigma$ comes only from
runs of the contrast's own methods. So a contrast has the same interval in every table, and a method
whose runs differ much does not widen the intervals of other methods. Runs of the same seed start
from the same policy and meet the same problems in the same order, so whatever affects all of them
cancels in a difference. Runs of methods that come from different starts are independent.

$$\hat\sigma^2 = \sum_s c_s^2, \qquad
c_s = \sum_m \frac{w_m}{n_m} \sqrt{\frac{n_m}{n_m - 1}} \, (\bar x_{ms} - \bar x_m)$$

If all methods have the same seeds, this is $s^2/S$ of the differences run by run, as in Student's
paired t-test. If the methods share no seed, it is the sum of both variances, as in Welch's test.
$P$ is the number of problems, and $S$ the number of runs of the method with the fewest. $e^2$ is
the part of the spread between runs that comes from the finite number of problems, estimated from
the interaction of runs and problems. The first term already contains this part, so it is subtracted
from the second. In simulations at most 5% of the comparisons of two identical methods come out as
different. This holds in every layout of runs and for every spread, whether the runs of both methods
spread equally or those of one spread five times as far (tests/study/test_intervals.py).

A method with fewer than four runs tells little about its spread, so it borrows from other policies.
For each trainer data/spreads.csv says how far the runs of a policy differ and how much this spread
varies from policy to policy, estimated from all published policies that were trained four times or
more. A trainer with fewer than four such policies has the numbers of all trainers together. The
method's own variance is averaged with that of the table, weighted by their degrees of freedom
(Smyth's moderated t). The more the spread varies between policies, the fewer degrees of freedom the
table lends. In a contrast with a method of four or more runs, this method has its own spread, and
the variances of the methods are added as in Welch's test. Results that borrow are marked.

Nothing is lent where the borrower's runs visibly spread wider than the table says: if the ratio of
both variances is in the upper quarter of what F's distribution allows (LEVEL), the interval rests
on the method's own runs alone. Programs, DPO, and the shares of unanswered and of wrong numbers in
traces never borrow, since their runs are known to spread several times as far. A method of two runs
has one degree of freedom for that test, so the test cannot protect it well. In simulations
(tests/study/test_spreads.py), whatever the true spread, at most 15% of the intervals of two runs
and 9% of those of three miss the truth; without the test it is more than half for a policy whose
runs spread ten times as far as the table says. On average over policies that spread as the table's
do, 4% miss.

A metric that the table lacks, such as a number of a training log, borrows nothing, and neither do
searches, because the table is about samples, nor two temperatures of one policy, because they share
their runs. No claim rests on a single run.

The interval of a share stays within 0 and 1, because its half-width is taken on the logit scale. If
all scores are 0 or all are 1, it ends at the bound of Clopper and Pearson: if none of 50 problems
is solved, the upper end is 7.1%."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

# F and Student's t; scipy.stats takes a second to import
from scipy.special import expit, fdtrc, logit, stdtrit

from lib.files import DATA
from lib.study import systems
from lib.study.systems import lineage, policy_of, root, trainer

COLUMNS = ["estimate", "low", "high", "n_problems", "runs", "borrowed"]
ENOUGH = 4  # from this many runs on, a method's own spread is used without borrowing
LEVEL = 0.25  # a loan is refused if exchangeable policies would show such a spread more seldom
WIDER = ("sft/program", "preference/dpo", "preference/agent_")  # these and what starts from them
SHARES = ("missing", "wrong_numbers")  # of the samples: traces do not borrow their spread either
# lends its spread also to the same metric with samples that are cut earlier
EQUAL = "solved at equal tokens"


def estimates(scores: pd.DataFrame) -> pd.DataFrame:
    """Every method's mean on every set. `scores` is indexed by method, seed, set and problem, and
    has a column per metric, which is averaged over the problems that have a value. Columns set,
    method, metric, estimate, low, high, n_problems, runs, borrowed."""
    return _table(
        scores, {(method,): {method: 1.0} for method in scores.index.unique("method")}, ["method"]
    )


def differences(scores: pd.DataFrame, pairs: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """Paired differences, method minus baseline, of each (method, baseline) in `pairs`, on all sets
    that have both.

    `scores` as in `estimates`. Columns set, method, baseline, metric, estimate, low, high,
    n_problems, runs, borrowed. Raises ValueError for a method that is paired with itself."""
    weights = {(method, baseline): {method: 1.0, baseline: -1.0} for method, baseline in pairs}
    for method in [method for method, baseline in weights if method == baseline]:
        raise ValueError(f"{method} is compared with itself: leave this pair out")
    return _table(scores, weights, ["method", "baseline"])


def _table(
    scores: pd.DataFrame, weights: Mapping[tuple, Mapping[str, float]], names: list[str]
) -> pd.DataFrame:
    """One row per set, contrast and metric. `weights`: as in `measured`; the name of each contrast
    is a tuple, which fills the columns `names`."""
    rows = []
    for (name, contrast, metric), result in measured(scores, weights).items():
        details = (result.problems, result.runs, result.borrowed)
        rows.append((name, *contrast, metric, result.estimate, *result.ends(), *details))
    return pd.DataFrame(rows, columns=["set", *names, "metric", *COLUMNS])


@dataclass(frozen=True)
class Measured:
    """A contrast's estimate and its sources of error."""

    estimate: float
    problems: int
    runs: int
    of_problems: float  # variance of the mean over problems
    of_runs: float  # variance of the estimate that is observed between runs
    interaction: float  # the part of `of_runs` that is due to the finite number of problems
    freedom: float  # degrees of freedom of `seen` and `made`
    borrowed: bool
    single: float  # variance over problems if each method had one run
    single_run: float  # variance between runs if each method had one run
    share: bool  # all scores lie within 0 and 1
    level: bool  # the contrast is the mean of one method

    def half(self, confidence=0.95) -> float:
        """Half of the interval's width. NaN for a number of a training log of which there is only
        one run."""
        if self.problems == 1 and self.runs == 1:
            return np.nan
        if self.share and self.problems > 1 and not self.of_problems and not self.of_runs:
            # the bound of Clopper and Pearson
            return 1 - ((1 - confidence) / 2) ** (1 / self.problems)
        variances = (self.of_problems, self.problems, self.of_runs, self.interaction)
        return float(half_width(*variances, self.freedom, confidence))

    def ends(self) -> tuple[float, float]:
        """Lower and upper end of the 95% interval. That of a share stays within 0 and 1."""
        estimate = self.estimate
        half = self.half()
        if not (self.share and self.level):
            return estimate - half, estimate + half
        if not 0 < estimate < 1:
            return max(0.0, estimate - half), min(1.0, estimate + half)
        low, high = expit(logit(estimate) + np.array([-1, 1]) * half / (estimate * (1 - estimate)))
        return float(low), float(high)

    def p(self, bound=0.0) -> float:
        """The p-value: the largest error level at which the interval, taken as symmetric, still
        contains `bound`."""
        distance = abs(self.estimate - bound)
        low = 0.0
        high = 1.0
        if np.isnan(self.half()):
            return np.nan
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.half(1 - middle) >= distance else (low, middle)
        return high

    def detectable(self) -> float:
        """The smallest difference from zero that is seen with a power of about 80%: in four of five
        repetitions the interval would not contain zero. It is the half-width of the 95% interval
        and the 80% quantile of the error, which is the half-width of a 60% interval."""
        return self.half() + self.half(0.6)

    def error_of_one_run(self, problems: int) -> float:
        """The standard error that this contrast would have with one run per method, on so many
        problems."""
        return float(np.sqrt(self.single / problems + self.single_run))


Name = TypeVar("Name", bound=Hashable)  # of a contrast


class Table(NamedTuple):
    """The scores of one method: its seeds, and an array (runs, problems), with NaN for a problem
    that a run was not asked."""

    seeds: list[Hashable]
    scores: np.ndarray

    def of(self, seeds: Sequence[Hashable]) -> np.ndarray:
        """The scores of some of its runs."""
        return self.scores[[self.seeds.index(seed) for seed in seeds]]


class Side(NamedTuple):
    """One method of a contrast: its weight, what its runs are paired by (their start and seed), and
    its scores, (..., runs, problems)."""

    weight: float
    seeds: Sequence[Hashable]
    scores: np.ndarray


def measured(
    scores: pd.DataFrame, weights: Mapping[Name, Mapping[str, float]]
) -> dict[tuple, Measured]:
    """Contrasts, which are weighted sums of the means of methods, with their sources of error, by
    set, contrast and metric. `weights`: by the name of the contrast, then by method. For example, A
    - 2 B is above zero if A is more than double B. `scores` as in `estimates`. A contrast is left
    out where one of its methods has no scores. Raises ValueError for two rows of one problem."""
    twice = scores.index[scores.index.duplicated()]
    if len(twice):
        raise ValueError(f"scores has two rows of {', '.join(map(str, twice[0]))}: leave one out")
    results = {}
    for name, part in scores.groupby("set", sort=False):
        wide = part.droplevel("set").unstack("problem")
        for metric in scores.columns:
            # (method, seed) in rows, problems in columns
            runs = pd.DataFrame(wide[metric]).dropna(how="all")
            tables = {
                str(method): Table([*rows.index.get_level_values("seed")], rows.to_numpy(float))
                for method, rows in runs.groupby(level="method", sort=False)
            }
            for contrast, method_weights in weights.items():
                if set(method_weights) <= set(tables) and (
                    result := _measured(tables, method_weights, metric)
                ):
                    results[str(name), contrast, metric] = result
    return results


def _measured(
    tables: Mapping[str, Table], weights: Mapping[str, float], metric: str
) -> Measured | None:
    """One contrast. None if its methods share no problem, or if two systems of one policy share no
    run."""
    sides = _sides(tables, weights)
    if not sides:
        return None
    estimate, of_problems, of_runs, interaction = parts(sides)
    single, single_run = _with_one_run(sides, max(0.0, float(of_runs - interaction)))
    problems = sides[0].scores.shape[-1]
    runs = min(len(side.seeds) for side in sides)
    freedom = float(runs - 1)
    # borrow for methods of few runs, where there is anything that varies: else Clopper and
    # Pearson's bound
    varies = problems > 1 and (of_problems > 0 or of_runs > 0)
    # systems of one policy share their runs
    independent = len({policy_of(method) for method in weights}) == len(weights)
    loans = [loan for method in weights if (loan := loan_of(method, metric))]
    borrowed = False
    if runs < ENOUGH and varies and independent and len(loans) == len(sides):
        own = (of_runs, interaction, freedom)
        borrowed, (of_runs, interaction, freedom) = with_loans(sides, loans, *own)
    return Measured(
        estimate=float(estimate),
        problems=problems,
        runs=runs,
        of_problems=float(of_problems),
        of_runs=float(of_runs),
        interaction=float(interaction),
        freedom=freedom,
        borrowed=borrowed,
        single=float(single),
        single_run=float(single_run),
        share=problems > 1 and all(map(_within_0_and_1, sides)),
        level=len(sides) == 1 and sides[0].weight == 1,
    )


def _sides(tables: Mapping[str, Table], weights: Mapping[str, float]) -> list[Side]:
    """The sides of a contrast: the scores of each method on the problems that all of them have; []
    if there are none.

    Systems of one policy ("rloo/sparse", "rloo/sparse T0.8") keep only the runs that all of them
    have, so that effects of a run cancel in the difference."""
    shared = {}  # the runs of each policy that all its systems have
    for method in weights:
        policy = policy_of(method)
        own = set(tables[method].seeds)
        shared[policy] = shared.get(policy, own) & own
    if not all(shared.values()):
        return []
    scores = {method: tables[method].of(sorted(shared[policy_of(method)])) for method in weights}
    common = ~np.isnan(np.concatenate(list(scores.values()))).any(axis=0)
    if not common.any():
        return []
    # runs of several starts do not pair, even if their seeds are equal
    roots = {method: root(method) for method in scores}
    several_roots = len(set(roots.values()) - {""}) > 1
    sides = []
    for method, values in scores.items():
        start = roots[method] if several_roots else ""
        seeds = [(start, seed) for seed in sorted(shared[policy_of(method)])]
        sides.append(Side(weights[method], seeds, values[:, common]))
    return sides


def _with_one_run(sides: Sequence[Side], of_runs: float) -> tuple[float, float]:
    """The variances that a contrast would have with one run per method: over problems, and over
    runs, whose variance with all runs is `of_runs`. As in a paper, all policies answer the same
    test, and runs with a seed that all methods have are paired."""
    single = sum(side.weight**2 * _variance(side.scores).mean() for side in sides)
    shared_seeds = set.intersection(*(set(side.seeds) for side in sides))
    if shared_seeds:
        seed_scores = [_of_seed(sides, seed) for seed in shared_seeds]
        single = _variance(np.array(seed_scores)).mean()
    squared_weights = np.square([side.weight for side in sides])
    counts = [len(side.seeds) for side in sides]
    # a mean of the counts, in which a method counts as its variance does
    runs_per_method = squared_weights.sum() / (squared_weights / counts).sum()
    return single, runs_per_method * of_runs


def _of_seed(sides: Sequence[Side], seed: Hashable) -> np.ndarray:
    """The contrast of the runs with one seed, by problem."""
    scores = [side.weight * side.scores[side.seeds.index(seed)] for side in sides]
    return np.sum(scores, axis=0)


def _within_0_and_1(side: Side) -> bool:
    return bool(((side.scores >= 0) & (side.scores <= 1)).all())


def moderated(of_runs, interaction, freedom, variance, extra) -> tuple:
    """The variance between runs and its degrees of freedom, after averaging with a borrowed
    `variance` that has `extra` degrees of freedom. The borrowed variance does not contain the part
    that is due to the finite number of problems, so `interaction` is added to it."""
    return (freedom * of_runs + extra * (variance + interaction)) / (
        freedom + extra
    ), freedom + extra


def refused(of_runs, interaction, freedom, variance, extra):
    """Whether a loan is refused, elementwise: the variance between runs, with its degrees of
    freedom, lies in the upper part LEVEL of what runs would show that spread as the borrowed
    `variance` says, which has `extra` degrees of freedom. Never with one run, which shows no
    variance."""
    freedom = np.asarray(freedom, dtype=float)
    ratio = of_runs / (variance + interaction)
    tested = freedom > 0
    return tested & (fdtrc(np.where(tested, freedom, 1.0), extra, ratio) < LEVEL)


def loan_of(method: str, metric: str) -> tuple[float, float] | None:
    """The variance between runs that a method borrows and its degrees of freedom. None for those
    that never borrow (see the top of this module)."""
    chain = lineage(method)
    never = WIDER if metric not in SHARES else (*WIDER, "sft/trace")
    if systems.of(method).search or any(policy.startswith(never) for policy in chain):
        return None
    return _spreads().get((trainer(method), metric))


def with_loans(
    sides: Sequence[Side],
    loans: Sequence[tuple[float, float]],
    of_runs,
    interaction,
    freedom: float,
) -> tuple[bool, tuple]:
    """Whether a contrast with methods of few runs borrows, and the variance between its runs, the
    part of it that is due to the finite number of problems, and its degrees of freedom. sides: as
    in `parts`. loans: the loan of each method, as in `_spreads`. of_runs, interaction, freedom:
    those of the contrast without loans. Borrowed spreads are those of independent runs."""
    weights = np.array([side.weight for side in sides])
    counts = np.array([len(side.seeds) for side in sides], dtype=float)
    variances, extra = np.array(loans).T
    variances = weights**2 / counts * variances
    if counts.max() < ENOUGH:  # all borrow: what they have in common cancels in their differences
        loan = (variances.sum(), extra.min())
        if refused(of_runs, interaction, freedom, *loan):
            return False, (of_runs, interaction, freedom)
        moderated_runs, freedom = moderated(of_runs, interaction, freedom, *loan)
        return True, (moderated_runs, interaction, freedom)
    _, _, own_runs, own_interaction = np.array([parts([side]) for side in sides]).T
    own = (own_runs, own_interaction, counts - 1)
    borrows = (counts < ENOUGH) & ~refused(*own, variances, extra)
    if not borrows.any():
        return False, (of_runs, interaction, freedom)
    moderated_runs, moderated_freedom = moderated(*own, variances, extra)
    runs = np.where(borrows, moderated_runs, own_runs)
    degrees = np.where(borrows, moderated_freedom, counts - 1)
    denominator = (runs**2 / degrees).sum() or 1.0  # 0 only if all runs are equal
    # Welch and Satterthwaite
    return True, (runs.sum(), own_interaction.sum(), runs.sum() ** 2 / denominator)


@cache
def _spreads() -> dict[tuple[str, str], tuple[float, float]]:
    """By trainer and metric, the variance between runs that data/spreads.csv lends, and its degrees
    of freedom."""
    table = pd.read_csv(DATA / "spreads.csv", index_col=["trainer", "metric"])[
        ["variance", "freedom"]
    ]
    loans = dict(zip(table.index, table.itertuples(index=False, name=None), strict=True))
    return loans | {
        (name, f"{EQUAL}, best limit"): loan
        for (name, metric), loan in loans.items()
        if metric == EQUAL
    }


def parts(sides: Sequence[Side]) -> tuple[np.ndarray, ...]:
    """A contrast's estimate, the variance of its mean over problems, the variance that is observed
    between runs (0 if a method has one run), and the part of the latter that is due to the finite
    number of problems, each of shape (...)."""
    values = np.sum([side.weight * side.scores.mean(axis=-2) for side in sides], axis=0)
    problems = values.shape[-1]
    of_problems = _variance(values) / problems
    if min(len(side.seeds) for side in sides) == 1:
        unknown = np.zeros_like(of_problems)
        return values.mean(axis=-1), of_problems, unknown, unknown
    # by seed, how far its runs move the contrast on each problem
    shifts: dict[Hashable, np.ndarray] = {}
    for side in sides:
        runs = len(side.seeds)
        factor = side.weight / np.sqrt(runs * (runs - 1))
        deviations = factor * (side.scores - side.scores.mean(axis=-2, keepdims=True))
        for i, seed in enumerate(side.seeds):
            shifts[seed] = shifts.get(seed, 0.0) + deviations[..., i, :]
    by_seed = np.stack([*shifts.values()])
    means = by_seed.mean(axis=-1)
    interaction = _variance(by_seed).sum(axis=0) / problems
    return values.mean(axis=-1), of_problems, (means**2).sum(axis=0), interaction


def _variance(values: np.ndarray) -> np.ndarray:
    """Variance over problems, the last axis. 0 for numbers of a training log, which have no
    problems."""
    if values.shape[-1] < 2:
        return np.zeros(values.shape[:-1])
    return values.var(axis=-1, ddof=1)


def half_width(of_problems, problems: int, of_runs, interaction, freedom, confidence=0.95):
    """Half of the interval's width, elementwise, from the variances that `parts` returns. freedom:
    degrees of freedom of `of_runs` and `interaction`, 0 if there is one run."""
    over_problems = stdtrit(problems - 1, (1 + confidence) / 2) ** 2 if problems > 1 else 0.0
    over_runs = stdtrit(freedom, (1 + confidence) / 2) ** 2 if freedom > 0 else 0.0
    return np.sqrt(
        over_problems * of_problems
        + np.maximum(0, over_runs * of_runs - over_problems * interaction)
    )


def of_logs(values: pd.DataFrame) -> pd.DataFrame:
    """Numbers of training logs in the form of `scores`, for the functions above. `values`: one
    number per run and column, indexed by method and seed. Each run gets one set, "training", with
    one problem."""
    return values.assign(set="training", problem=0).set_index(["set", "problem"], append=True)
