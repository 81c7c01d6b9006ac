"""What exact training does to success, moment by moment, from tables of notebook 82.

`rows` are those of exact.parquet (set, problem, update, numbers, success and more), with the
columns method and seed. A start has rows after 0 updates, and a trained run after several numbers
of them."""

import numpy as np
import pandas as pd

from lib.study.metrics import KEYS

RUN = ["set", "seed"]
RARE = 1e-6  # below it, a million games are won less than once on average


def by_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, and once more with the count of numbers in the name of the set: heldout_1000_n3."""
    named = rows.assign(set=rows["set"] + "_n" + rows["numbers"].astype(str))
    return pd.concat([rows, named], ignore_index=True)


def last(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows after the last update of each run."""
    final = rows.groupby(["method", "seed"])["update"].transform("max")
    return rows[rows["update"] == final]


def at(rows: pd.DataFrame, update: int) -> pd.DataFrame:
    """The rows after that number of updates."""
    return rows[rows["update"] == update]


def before(rows: pd.DataFrame, start_of: dict[str, str]) -> pd.Series:
    """The success at the start of each row, of the same seed and problem, with the index of `rows`.
    start_of: the start of each method. NaN for a start that is not there."""
    keys = rows[KEYS].assign(method=rows["method"].map(start_of))
    starts = at(rows, 0).set_index(KEYS)["success"]
    return pd.Series(starts.reindex(pd.MultiIndex.from_frame(keys)).to_numpy(), rows.index)


def crossings(rows: pd.DataFrame, start_of: dict[str, str]) -> pd.DataFrame:
    """Which problems began below RARE, rose from below it, fell below it, doubled and halved since
    the start: 0 or 1 after the last update, indexed by KEYS. Runs without a start are left out."""
    ends = last(rows).assign(start=before(rows, start_of)).dropna(subset="start")
    ends = ends[ends["update"] > 0]
    started = ends["start"]
    success = ends["success"]
    table = {
        "began below 1e-6": started < RARE,
        "up across 1e-6": (started < RARE) & (success >= RARE),
        "down across 1e-6": (started >= RARE) & (success < RARE),
        "doubled": success >= 2 * started,
        "halved": success <= started / 2,
    }
    return pd.DataFrame(table).astype(float).set_axis(pd.MultiIndex.from_frame(ends[KEYS]))


def over_stopping_early(
    rows: pd.DataFrame, method: str, path: str, metric: str = "pass@1"
) -> pd.DataFrame:
    """How far a method's end is above another one that stops early: above `path` at the moment at
    which its mean of `metric` is first as high as the method's after its last update.

    rows: with the columns of `lib.study.metrics.KEYS`, update, and scores, all that begin with
    pass@; those of `path` begin with its start, after 0 updates. Returns differences of the scores,
    indexed by KEYS, for the sets and seeds that both have. Between two moments, `path` is a mixture
    of its policies that draws one of them for a problem and plays all games with it: its scores are
    linear in the share of each. A path that never gets so high has its last moment.
    """
    scores = [*rows.columns[rows.columns.str.startswith("pass@")]]
    ends = last(rows[rows["method"] == method]).set_index(KEYS)[scores]
    steps = rows[rows["method"] == path].set_index([*RUN, "problem", "update"])[scores]
    by_update = steps.unstack("update")
    problems = pd.MultiIndex.from_frame(ends.index.to_frame()[by_update.index.names])
    shared = problems.isin(by_update.index)
    if not shared.any():
        return ends.head(0)
    ends = ends[shared]
    by_update = by_update.loc[problems[shared]]
    goals = ends[metric].groupby(level=RUN).mean()
    means = by_update[metric].groupby(level=RUN).mean()
    shares = [_mixture(means.loc[one].to_numpy(), goals[one]) for one in means.index]
    of_problems = pd.MultiIndex.from_frame(by_update.index.to_frame()[RUN])
    weights = pd.DataFrame(shares, means.index).loc[of_problems]
    for score in scores:
        ends[score] -= (by_update[score].to_numpy() * weights.to_numpy()).sum(axis=1)
    return ends


def mixed_games(rows: pd.DataFrame, method: str, first: str, second: str) -> pd.Series:
    """The success of games each of which one of two policies plays, `first` or `second` after their
    last updates, in the share of each at which their mean success is that of `method` at its end.

    Two policies that are mixed so solve with k games 1 - (1 - p)^k of the mixed success p of a
    problem. rows: with the columns of KEYS, update and success. Returns the mixed success, indexed
    by KEYS as the method's own rows, for the sets and seeds that all three have. Beyond the two
    policies' means, the nearer one plays all games.
    """
    ends = {}
    for name in (method, first, second):
        of_name = last(rows[rows["method"] == name])
        ends[name] = of_name.assign(method=method).set_index(KEYS)["success"]
    table = pd.DataFrame(ends).dropna()
    means = table.groupby(level=["set", "seed"]).transform("mean")
    share = ((means[method] - means[first]) / (means[second] - means[first])).clip(0, 1)
    return table[first] + share * (table[second] - table[first])


def _mixture(means: np.ndarray, goal: float) -> np.ndarray:
    """The share of each moment in the mixture of two adjacent ones whose mean is first `goal`."""
    shares = np.zeros(len(means))
    reached = np.flatnonzero(means >= goal)
    first = reached[0] if len(reached) else len(means) - 1
    shares[first] = 1
    if len(reached) and first > 0:
        previous = first - 1
        shares[first] = (goal - means[previous]) / (means[first] - means[previous])
        shares[previous] = 1 - shares[first]
    return shares


def games_worth(exact: pd.Series, sampled: pd.Series, games: float, after: int = 100) -> float:
    """How many games an exact update is worth: the games until the sampled run is as good as the
    exact one is after `after` updates, divided by `after`.

    exact, sampled: a measure of quality by the number of updates, from 0 on; between these it is
    taken to be linear. games: sampled per update. If the sampled run never gets there, it is all
    games of the run divided by `after`, which is then a lower bound.
    """
    goal = np.interp(after, exact.index, exact)
    updates = np.arange(sampled.index.max() + 1)
    reached = np.flatnonzero(np.interp(updates, sampled.index, sampled) >= goal)
    return games * float(updates[reached[0]] if len(reached) else updates[-1]) / after
