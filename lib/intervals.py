r"""One rule for every interval here: of a mean, of a paired difference, of any contrast, and of training logs.

A score $x_{rp}$ is that of a run r (a seed) on a problem p. What is said of a method holds beyond its problems and
beyond its runs. A run's mean is its method's, and what the seed adds to all methods of one start, and what the run adds
of its own. So a contrast $\sum_m w_m \bar x_m$ of methods has the variance

$$\frac{\mathrm{Var}_p(\sum_m w_m \bar x_{m\cdot p})}{P} + \sum_m \frac{w_m^2}{n_m} \hat\tau^2_T
+ \sum_s \Big(\sum_{m \ni s} \frac{w_m}{n_m}\Big)^2 \hat\beta^2_{\mathrm{start}}$$

First, problems: differences are taken within each, which is what pairing means. Second, runs. Those of one seed start
from the same policy and meet the same problems in the same order, and much of what moves one moves all: of rewards on
programs nearly all of it. In a difference of methods with the same seeds that cancels, which is pairing over runs.
`data/methods.csv` names each method's start. Means of runs, a table of methods and seeds, give a mean square of seeds
and one of the rest, from which the variances follow: $\tau^2$ of all methods of a study that one trainer T made ("rloo"
of "rloo/sparse": SFT's runs differ far less than RLOO's), as three runs say little of their own variance; $\beta^2$ of
each start. Seeds that differ by less than the rest count as rest, as in restricted maximum likelihood. Methods whose
start is not known, or whose trainer has but one method in the study, are taken for independent, with
$\hat\sigma^2_T = s_T^2 - e_T^2$, the variance between a method's runs, in $\tau^2$'s place.

From each is taken $e^2$, the part that the finite problems make anyway (the interaction of a two-way table, over P; it
stands in the first term already). Each part has Student's t of its own degrees of freedom, P - 1 and f, by
Satterthwaite's rule where it has two mean squares, and the half-widths add in quadrature. A difference is known less
well than $s^2$, so the square of its quantile is not $t_f^2$ but $t_f^2 + (t_f^2 - t_{P-1}^2) e^2 / s^2$: as if $t_f$
held for $s^2$ and $t_{P-1}$ for what is taken off, but for the factor $\hat\sigma^2 / s^2$ that lets this fade where
runs do not differ. Simulated, 93 to 97% of such intervals hold the truth, and of methods that are the same 4.8% are
told apart (tests/test_intervals.py); where a pool has but two methods of three runs, 7%. Where seeds move all methods
alike these miss 4 to 7.5 times in a hundred; intervals that take runs for independent miss a mean up to 13 times there,
and a difference next to never. A method with one run borrows what the runs of its trainer's other methods say; of such
intervals 3 to 8% miss, fewer where seeds matter. Taken for problems alone up to 26% would, so that is left to methods
whose trainer ran none twice: `freedom`, the degrees of freedom behind the second part, is 0 there. So it is of a
training log's one number: what one method logs may not vary at all in another, as importance weights.

Two systems of one policy ("rloo/sparse" and "rloo/sparse T0.8") have the same runs, and what moves a run moves both. So
they are compared on the runs that both have, and a run adds what moves one system without the other: with weights $w$
on systems of one policy, the factor of the runs' variance is $(\sum w)^2$ instead of $\sum w^2$, and the rest is that
of the interaction of systems and runs, net of problems and pooled over the policies of T just so. Of such intervals 3
to 7% miss; where two systems of three runs are the whole pool, up to 8%.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # Student's t; scipy.stats takes a second to import

from lib.files import DATA

COLUMNS = ["estimate", "low", "high", "n_problems", "runs", "freedom"]


def estimates(scores: pd.DataFrame, confidence=0.95) -> pd.DataFrame:
    """Every method's mean on every set.

    `scores`: a column a statistic, indexed by method, seed, set, problem; all methods of a study, as they share one
    variance between runs. A system of one policy ("sft/pick 16/16") is that policy's run. Problems that a run has no
    score for are left out. Columns set, method, metric, estimate, low, high, n_problems, runs, freedom.
    """
    methods = {method: {method: 1.0} for method in scores.index.unique("method")}
    return contrasts(scores, methods, confidence).rename(columns={"contrast": "method"})


def differences(scores: pd.DataFrame, pairs: Iterable[tuple[str, str]], confidence=0.95) -> pd.DataFrame:
    """Paired differences, method minus baseline, of each (method, baseline) in `pairs`, on sets with both.

    `scores` as in `estimates`. Columns set, method, baseline, metric, estimate, low, high, n_problems, runs, freedom.
    """
    asked = {pair: {pair[0]: 1.0, pair[1]: -1.0} for pair in pairs}
    table = contrasts(scores, asked, confidence)
    sides = pd.DataFrame(table.pop("contrast").tolist(), table.index, columns=["method", "baseline"], dtype=object)
    return pd.concat([table[["set"]], sides, table.drop(columns="set")], axis=1)


def contrasts(scores: pd.DataFrame, weights: Mapping[Any, Mapping[str, float]], confidence=0.95) -> pd.DataFrame:
    """Weighted sums of methods' means: `weights` by name, then by method. A factor is a weight: A - 2 B is above zero
    where A is more than double B.

    `scores` as in `estimates`. One row a set, a contrast whose methods all are there, and a metric; columns set,
    contrast, metric, estimate, low, high, n_problems, runs (the fewest of its methods), freedom (degrees, of the
    variance between runs, the least of its trainers'; 0: of one method nothing is known of it).
    """
    rows = []
    for name, part in scores.groupby("set", sort=False):
        wide = part.droplevel("set").unstack("problem")
        for metric in scores.columns:
            whole = pd.DataFrame(wide[metric]).dropna(how="all")
            tables = {method: pd.DataFrame(whole.xs(method, level="method")) for method in whole.index.unique("method")}
            spreads = Spreads(*_between_runs(tables), *_between_seeds(tables))
            for contrast, signed in weights.items():
                if set(signed) <= set(tables) and (found := _contrast(tables, signed, spreads, confidence)):
                    rows.append((name, contrast, metric, *found))
    return pd.DataFrame(rows, columns=["set", "contrast", "metric", *COLUMNS])


def slopes(scores: pd.DataFrame, grids: Mapping[str, Mapping[str, float]], confidence=0.95) -> pd.DataFrame:
    """Least squares' slope of methods' means on a setting of theirs: what one more of it changes, over a whole sweep.
    `grids`: the setting by method, by name; only grids whose methods all are there. Columns as `contrasts` has them."""
    weights = {}
    for name, settings in grids.items():
        away = np.array([*settings.values()], dtype=float)
        away -= away.mean()
        weights[name] = dict(zip(settings, away / (away @ away), strict=True))
    return contrasts(scores, weights, confidence)


def of_logs(values: pd.DataFrame) -> pd.DataFrame:
    """Scores of a training log, for the functions above. `values`: numbers of whole runs, indexed by method and
    seed."""
    keys = [*values.index.names, "set", "problem"]
    return (
        values.assign(set="training", problem=0)
        .set_index(["set", "problem"], append=True)[list(values)]
        .rename_axis(keys)
    )


def slope(x, y, confidence=0.95) -> tuple[float, float, float, int]:
    """Least squares' slope of y on x over whole runs, with its t interval, and the number of runs."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    centred, freedom = x - x.mean(), len(x) - 2
    estimate = centred @ y / (centred @ centred)
    rest = y - y.mean() - estimate * centred
    half = stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(rest @ rest / freedom / (centred @ centred))
    return estimate, estimate - half, estimate + half, len(x)


def half_width(of_problems, problems: int, of_runs=(), confidence=0.95):
    """Half the interval's width. of_problems: variance of the mean over the problems; of_runs: of each trainer's part
    the factor of its variance, and what `run_variances` says: s^2, e^2, degrees of freedom. Arrays are taken
    elementwise."""
    over_problems = stdtrit(problems - 1, (1 + confidence) / 2) ** 2 if problems > 1 else 0.0
    square = over_problems * of_problems
    for factor, seen, made, freedom in of_runs:
        over_runs, net = stdtrit(freedom, (1 + confidence) / 2) ** 2, np.maximum(0, seen - made)
        lost = (over_runs - over_problems) * made / np.maximum(seen, np.finfo(float).tiny)
        square = square + factor * net * (over_runs + lost)
    return np.sqrt(square)


def run_variances(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Variance between the means of runs, the part of it that their finite problems make, both (...) of values
    (..., runs, problems), and its degrees of freedom. The difference of the two is unbiased, so it may be negative."""
    runs, problems = values.shape[-2:]
    means = values.mean(axis=-1)
    seen = means.var(axis=-1, ddof=1)
    rest = values - values.mean(axis=-2, keepdims=True) - (means - means.mean(axis=-1, keepdims=True))[..., None]
    return seen, (rest**2).sum(axis=(-2, -1)) / ((runs - 1) * max(problems - 1, 1) * problems), runs - 1


def seed_variances(methods: Iterable, seeds: Iterable, means) -> tuple[tuple, tuple]:
    """Means of runs (N, ...), the n-th of the n-th of `methods` and `seeds`, as method + seed + rest. Of the rest: sum
    of squares and degrees of freedom; of seeds: mean square, degrees of freedom, and how many times a seed's variance
    is in it. Seeds that differ by less than the rest are in the rest's sum as well."""
    means = np.asarray(means, float)
    sides = [pd.get_dummies(pd.Series([*names])).to_numpy(float) for names in (methods, seeds)]
    both, count = np.hstack(sides), sides[0].shape[1]
    rest, within = (
        ((means - side @ np.linalg.lstsq(side, means, rcond=None)[0]) ** 2).sum(axis=0) for side in (both, sides[0])
    )
    among = int(np.linalg.matrix_rank(both)) - count
    inside = len(means) - count
    freedom, of_seeds = inside - among, (within - rest) / max(among, 1)
    calm = of_seeds * freedom <= rest if freedom else np.zeros_like(rest, bool)
    return (np.where(calm, within, rest), np.where(calm, inside, freedom)), (of_seeds, among, inside / max(among, 1))


def with_seeds(own, shared, made, rest: tuple, seeds: tuple) -> tuple:
    """The part of `half_width` that methods of one start have. own: the factor of the variance that a run adds of its
    own; shared: of what a seed adds to all; made: e^2. rest: mean square and degrees of freedom; seeds: as
    `seed_variances` has them."""
    (net, freedom), (square, of_seeds, held) = rest, seeds
    more = shared * np.maximum(square - net, 0) / held
    sides = ((own - shared / held) * net) ** 2 / freedom + (shared * square / held) ** 2 / of_seeds
    joint = (own * net + more) ** 2 / np.maximum(sides, np.finfo(float).tiny)  # Satterthwaite's
    return 1.0, own * net + more, own * made, np.where(more > 0, joint, freedom)


@cache
def _listed() -> dict[str, tuple[str, str]]:
    table = pd.read_csv(DATA / "methods.csv", usecols=["method", "trainer", "start"]).fillna("")
    return {method: (trainer, start) for method, trainer, start in table.to_numpy(str).tolist()}


def origin(policy: str) -> tuple[str, str]:
    """What trained a policy ("rloo", of a mixture of its weights too), and the policy of which its runs start from the
    run of their own seed, as data/methods.csv has them; "" for a start that it does not state."""
    return _listed().get(policy, (policy.split("/")[0], ""))


class Spreads(NamedTuple):
    """How far runs differ, of one study, set and metric. whole, apart: `run_variances` by trainer, of runs, and of what
    a run adds to one system of its policy without the others. rest: by trainer, mean square and degrees of freedom of
    what a run adds to its seed; seeds: by trainer and start, of what a seed adds to all (`seed_variances`)."""

    whole: dict[str, tuple]
    apart: dict[str, tuple]
    rest: dict[str, tuple]
    seeds: dict[tuple[str, str], tuple]


def _between_seeds(tables: Mapping[Any, pd.DataFrame]) -> tuple[dict, dict]:
    """Spreads.rest, pooled over starts, and Spreads.seeds."""
    layouts: defaultdict[tuple[str, str], dict[str, pd.Series]] = defaultdict(dict)
    for method, table in tables.items():
        if len(table) > 1 and (block := origin(policy := _policy(method)))[1]:  # of systems of one policy the first
            layouts[block].setdefault(policy, pd.Series(table.dropna(axis=1).mean(axis=1)).dropna())
    rest: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
    seeds = {}
    for block, layout in layouts.items():
        cells = [(policy, seed, mean) for policy, means in layout.items() for seed, mean in means.items()]
        if len(cells) > len(layout):
            left, seeds[block] = seed_variances(*zip(*cells, strict=True))
            rest[block[0]] += np.array(left, float)
    rests = {trainer: (square / freedom, freedom) for trainer, (square, freedom) in rest.items() if freedom}
    return rests, {block: of_seeds for block, of_seeds in seeds.items() if block[0] in rests}


def _between_runs(tables: Mapping[Any, pd.DataFrame]) -> tuple[dict, dict]:
    """Spreads.whole, where systems of one policy are the same runs and count once, and Spreads.apart, pooled over
    policies."""
    whole: dict[str, list] = {}
    apart: dict[str, list] = {}
    policies: dict[str, list[pd.DataFrame]] = {}
    for method, table in tables.items():
        if len(table) > 1:
            policies.setdefault(_policy(method), []).append(table)
    for policy, systems in policies.items():
        trainer, _ = origin(policy)
        of_each = [run_variances(values) for table in systems if (values := table.dropna(axis=1).to_numpy(float)).size]
        if of_each:
            whole.setdefault(trainer, []).append(np.mean(np.array(of_each), axis=0))
        seeds = sorted(set.intersection(*(set(table.index) for table in systems)))
        values = np.stack([table.loc[seeds].to_numpy(float) for table in systems])
        values = values[..., ~np.isnan(values).any(axis=(0, 1))]
        if len(systems) > 1 and len(seeds) > 1 and values.size:
            orthogonal = np.linalg.svd(np.ones((1, len(systems))))[2][1:]  # to what systems have in common
            seen, made, freedom = run_variances(np.tensordot(orthogonal, values, 1))
            apart.setdefault(trainer, []).append((seen.mean(), made.mean(), len(seen) * freedom))
    return _pooled(whole), _pooled(apart)


def _pooled(of_policies: Mapping[str, list]) -> dict[str, tuple[float, float, float]]:
    """Means by degrees of freedom, and their sum."""
    pools = {trainer: np.array(parts) for trainer, parts in of_policies.items()}
    return {
        trainer: (*np.average(parts[:, :2], axis=0, weights=parts[:, 2]), parts[:, 2].sum())
        for trainer, parts in pools.items()
    }


def _contrast(tables: Mapping[Any, pd.DataFrame], signed, spreads: Spreads, confidence) -> tuple | None:
    """COLUMNS of one contrast, or None where its methods share no problem, or two systems of a policy no run."""
    weights: dict[str, list[float]] = {}
    sums: dict[str, pd.DataFrame] = {}  # by policy, of its systems, run by run
    for method, weight in signed.items():
        policy, table = _policy(method), weight * tables[method]
        weights.setdefault(policy, []).append(weight)
        sums[policy] = sums[policy].add(table).dropna(how="all") if policy in sums else table
    runs = [table.to_numpy(float) for table in sums.values()]  # of the same problems
    common = ~np.isnan(np.vstack(runs)).any(axis=0)
    if not common.any() or not all(map(len, runs)):
        return None
    values = np.sum([of_policy[:, common].mean(axis=0) for of_policy in runs], axis=0)
    parts, unknown = _of_runs(weights, sums, spreads, len(values))
    freedom = 0 if unknown else int(min((part[-1] for part in parts if part[0]), default=0))
    problems, least = len(values), min(map(len, sums.values()))
    of_problems = values.var(ddof=1) / problems if problems > 1 else 0.0
    half = half_width(of_problems, problems, parts, confidence)
    if problems == 1 and not freedom:
        half = np.nan
    return values.mean(), values.mean() - half, values.mean() + half, problems, least, freedom


def _of_runs(weights, sums, spreads: Spreads, problems: int) -> tuple[list, bool]:
    """The parts of a contrast's runs, as `half_width` takes them, and whether of some nothing is known. By policy,
    weights of its systems, and their sum run by run."""
    plain: defaultdict[str, float] = defaultdict(float)
    apart: defaultdict[str, float] = defaultdict(float)
    paired: defaultdict[tuple[str, str], float] = defaultdict(float)
    shared: defaultdict[tuple[str, str], Counter] = defaultdict(Counter)
    unknown = False
    for policy, table in sums.items():
        block, runs = origin(policy), len(table)
        trainer = block[0]
        own, together = sum(weight**2 for weight in weights[policy]), sum(weights[policy])
        if runs == problems == 1:  # a training log's one number
            unknown = True
            continue
        if len(weights[policy]) > 1 and trainer in spreads.apart:
            apart[trainer] += max(0.0, own - together**2) / runs
            own = together**2
        if block in spreads.seeds:
            paired[block] += own / runs
            shared[block].update(dict.fromkeys(table.index, together / runs))
        elif trainer in spreads.whole:
            plain[trainer] += own / runs
        else:
            unknown = True
    parts = [(factor, *spreads.whole[trainer]) for trainer, factor in plain.items()]
    parts += [(factor, *spreads.apart[trainer]) for trainer, factor in apart.items()]
    for block, own in paired.items():
        of_seeds = sum(weight**2 for weight in shared[block].values())
        sides = spreads.whole[block[0]][1], spreads.rest[block[0]], spreads.seeds[block]
        parts.append(with_seeds(own, of_seeds, *sides))
    return parts, unknown


def _policy(method: str) -> str:
    """The policy of a system: what stands before the first space."""
    return method.split(" ")[0]
