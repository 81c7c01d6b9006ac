"""The one rule of intervals: by hand, and by simulation on data like ours (16 samples of a problem, some runs)."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib import intervals
from lib.files import DATA

KEYS = ["method", "seed", "set", "problem"]


def scores_of(tables, metric="pass@1", name="s"):
    """A frame of scores from (runs, problems) arrays by method."""
    parts = {
        (method, seed, name): pd.Series(row)
        for method, table in tables.items()
        for seed, row in enumerate(np.atleast_2d(table))
    }
    return pd.concat(parts, names=KEYS).dropna().to_frame(metric)


def simulated(rng, methods, runs, problems, noise, repetitions):
    """Scores (repetitions, methods, runs, problems): problems differ in difficulty, runs by `noise`, 16 samples of each
    (their mean taken as normal). And the mean that they all have in truth."""
    hard = rng.random((repetitions, 1, 1, problems), dtype=np.float32) < 0.5
    chance = np.where(hard, 0.15, 0.65) + rng.normal(0, noise, (repetitions, methods, runs, 1)).astype(np.float32)
    spread = np.sqrt(chance * (1 - chance) / 16, dtype=np.float32)
    return chance + spread * rng.standard_normal(chance.shape, dtype=np.float32), 0.4


def halves(values):
    """Half-widths of the first method's mean, and of its difference from the second, all of them being one pool."""
    *_, methods, runs, problems = values.shape
    seen, made, freedom = intervals.run_variances(values)
    pool = seen.mean(axis=-1), made.mean(axis=-1), methods * freedom
    gaps = values[:, 0].mean(axis=1) - values[:, 1].mean(axis=1)
    for of_problems, share in ((values[:, 0].mean(axis=1), 1), (gaps, 2)):
        mean, variance = of_problems.mean(axis=-1), of_problems.var(axis=-1, ddof=1) / problems
        yield mean, intervals.half_width(variance, problems, [(share / runs, *pool)])


GRID = [(runs, noise, problems) for runs in (3, 5, 8) for noise in (0.0, 0.01, 0.02) for problems in (200, 1000)]


@pytest.fixture(scope="module")
def missed():
    """Shares of intervals that miss the truth, (cells, 2): of a mean, and of a difference of methods that are the
    same. Four methods of one trainer, as our studies have; 1,000 repetitions a cell tell a share within 1.4 points."""
    found = []
    for runs, noise, problems in GRID:
        rng, cell = np.random.default_rng([runs, problems, int(100 * noise)]), []
        for _ in range(4):  # in parts, for memory
            values, truth = simulated(rng, 4, runs, problems, noise, 250)
            cell.append([np.abs(at - true) > half for (at, half), true in zip(halves(values), (truth, 0), strict=True)])
        found.append(np.mean(cell, axis=(0, 2)))
    return np.array(found)


def test_the_slope_over_a_sweep_is_that_through_its_means():
    rng = np.random.default_rng(0)
    settings = {"rloo/a": 1.0, "rloo/b": 2.0, "rloo/c": 4.0}
    tables = {method: 0.1 * x + rng.normal(0, 0.05, (3, 50)) for method, x in settings.items()}
    found = intervals.slopes(scores_of(tables), {"tau": settings, "half": {**settings, "rloo/nobody": 3.0}})
    assert found["contrast"].tolist() == ["tau"]  # of a grid whose cells are not all there nothing is said
    naive = np.polyfit([*settings.values()], [table.mean() for table in tables.values()], 1)[0]
    assert found["estimate"].item() == pytest.approx(naive, abs=1e-12)
    assert found["low"].item() < 0.1 < found["high"].item()
    doubled = intervals.slopes(scores_of(tables), {"tau": {method: 2 * x for method, x in settings.items()}})
    assert doubled[["estimate", "low"]].to_numpy() == pytest.approx(found[["estimate", "low"]].to_numpy() / 2)


def test_the_interval_covers_the_truth(missed):
    """Asked is 95%, in every cell."""
    assert missed.min() >= 0.03 and missed.max() <= 0.07, missed


def test_identical_methods_are_seldom_told_apart(missed):
    assert missed[:, 1].mean() <= 0.05, missed  # 18,000 pairs: a standard error of .16 points


@pytest.mark.parametrize("replicated", [2, 4])
def test_one_run_borrows_the_variance_of_its_trainers_others(replicated):
    """Of one run against the mean of three, and against another that stands alone, as studies have them. For problems
    alone up to a fourth of the intervals would miss."""
    found = []
    for noise, problems in ((0.0, 200), (0.0, 1000), (0.01, 200), (0.01, 1000), (0.02, 200), (0.02, 1000)):
        rng, cell = np.random.default_rng([replicated, problems, int(100 * noise)]), []
        for _ in range(4):
            values, _ = simulated(rng, replicated + 2, 3, problems, noise, 250)
            seen, made, freedom = intervals.run_variances(values[:, :replicated])
            pool, one = (seen.mean(axis=1), made.mean(axis=1), replicated * freedom), values[:, -1, 0]
            gaps = [(one - values[:, 0].mean(axis=1), 4 / 3), (one - values[:, -2, 0], 2.0)]
            spreads = [(gap.mean(axis=1), gap.var(axis=1, ddof=1) / problems, [(n, *pool)]) for gap, n in gaps]
            cell.append([np.abs(mean) > intervals.half_width(var, problems, part) for mean, var, part in spreads])
        found.append(np.mean(cell, axis=(0, 2)))
    assert np.min(found) >= 0.02 and np.max(found) <= 0.085 and np.mean(found) <= 0.06, found
    tables = {f"rloo/{name}": table for name, table in zip("abcdef", values[0], strict=False)}
    last = [*tables][-1]
    row = intervals.differences(scores_of(tables | {last: tables[last][:1]}), [(last, "rloo/a")]).iloc[0]
    assert row["runs"] == 1 and row["freedom"] == 2 * (replicated + 1)  # the other lonely one has three runs here


@pytest.mark.parametrize("runs", [3, 5, 8])
def test_training_logs_are_covered_by_the_same_rule(runs):
    """Numbers of whole runs: the variance between runs alone."""
    values = np.random.default_rng(runs).normal(1, 0.2, (4000, 4, runs, 1))
    seen, made, freedom = intervals.run_variances(values)
    means, pool = values.mean(axis=(2, 3)), (seen.mean(axis=1), made.mean(axis=1), 4 * freedom)
    alone = np.abs(means[:, 0] - 1) <= intervals.half_width(0, 1, [(1 / runs, *pool)])
    gap = np.abs(means[:, 0] - means[:, 1]) <= intervals.half_width(0, 1, [(2 / runs, *pool)])
    assert 0.94 <= alone.mean() <= 0.96 and 0.94 <= gap.mean() <= 0.96


def test_frames_and_arrays_follow_one_rule():
    values, _ = simulated(np.random.default_rng(0), 3, 4, 60, 0.05, 1)
    scores = scores_of({f"rloo/{name}": table for name, table in zip("abc", values[0], strict=True)})
    (mean, half), (gap, width) = (next(zip(*found, strict=True)) for found in halves(values))
    one = intervals.estimates(scores).set_index("method").loc["rloo/a"]
    assert one[["estimate", "low", "high"]].tolist() == pytest.approx([mean, mean - half, mean + half])
    assert one[["n_problems", "runs"]].tolist() == [60, 4]
    two = intervals.differences(scores, [("rloo/a", "rloo/b")]).iloc[0]
    assert two[["estimate", "low", "high"]].tolist() == pytest.approx([gap, gap - width, gap + width])


def test_one_run_by_hand():
    """The interval speaks of problems only, Student's t over them, but where its trainer has runs to borrow from."""
    row = intervals.estimates(scores_of({"sft/a": [0.0, 0.5, 1.0, 0.5]})).iloc[0]
    half = stats.t.ppf(0.975, 3) * np.std([0, 0.5, 1, 0.5], ddof=1) / 2
    assert row[["estimate", "low", "high"]].tolist() == pytest.approx([0.5, 0.5 - half, 0.5 + half])
    assert row[["n_problems", "runs", "freedom"]].tolist() == [4, 1, 0]
    rng = np.random.default_rng(0)
    base = rng.random(300)
    twice = base + np.array([[-0.1], [0.1]])  # run means .2 apart: a variance of .02, of one degree of freedom
    beside = scores_of({"sft/a": base, "sft/b": twice, "rloo/a": base})
    alone, lent = intervals.estimates(beside).set_index("method").loc[["rloo/a", "sft/a"]].itertuples()
    half = stats.t.ppf(0.975, 299) * base.std(ddof=1) / np.sqrt(300)
    assert (alone.freedom, lent.freedom) == (0, 1) and alone.high - alone.estimate == pytest.approx(half)
    assert (lent.high - lent.estimate) ** 2 == pytest.approx(half**2 + stats.t.ppf(0.975, 1) ** 2 * 0.02)
    gap = intervals.differences(beside, [("sft/a", "rloo/a")]).iloc[0]
    assert gap["freedom"] == 0  # of one side nothing is known


def test_a_log_by_hand():
    table = pd.DataFrame({"method": "rloo/a", "seed": [0, 1, 2], "kl": [1.0, 2.0, 3.0]})
    row = intervals.estimates(intervals.of_logs(table.set_index(["method", "seed"]))).iloc[0]
    half = 4.302653 / np.sqrt(3)  # t of two degrees of freedom, standard deviation 1
    assert row[["estimate", "low", "high"]].tolist() == pytest.approx([2, 2 - half, 2 + half], abs=1e-5)
    assert row["set"] == "training"
    alone = intervals.estimates(intervals.of_logs(table[:1].set_index(["method", "seed"]))).iloc[0]
    assert alone["estimate"] == 1 and np.isnan(alone["low"])  # one run's number says nothing of others
    other = pd.concat([table, table[:1].assign(method="rloo/b")]).set_index(["method", "seed"])
    beside = intervals.estimates(intervals.of_logs(other)).set_index("method").loc["rloo/b"]
    assert np.isnan(beside["low"]) and beside["freedom"] == 0  # nor is anything borrowed: logs differ in kind


def test_the_variance_between_runs_is_unbiased():
    rng = np.random.default_rng(0)
    for noise in (0.0, 0.05):
        shifts = (
            rng.normal(0, noise, (4000, 3, 1)) + rng.normal(0, 0.3, (4000, 1, 50)) + rng.normal(0, 0.2, (4000, 3, 50))
        )
        seen, made, freedom = intervals.run_variances(shifts)
        assert (seen - made).mean() == pytest.approx(noise**2, abs=1e-4) and freedom == 2


def test_trainers_have_variances_of_their_own_and_systems_of_a_policy_count_once():
    rng = np.random.default_rng(0)
    base = rng.random(300)
    wild = base + np.array([[-0.1], [0.0], [0.1]])
    calm = np.stack([base] * 3)
    apart = intervals.estimates(scores_of({"sft/a": calm, "rloo/a": wild})).set_index("method")
    widths = apart["high"] - apart["low"]
    assert widths["rloo/a"] > 3 * widths["sft/a"]
    pooled = intervals.estimates(scores_of({"rloo/b": calm, "rloo/a": wild})).set_index("method")
    assert pooled.loc["rloo/b", "high"] - pooled.loc["rloo/b", "low"] > 2 * widths["sft/a"]
    systems = {"sft/pick 1/8": wild, "sft/pick 16/16": wild}
    once, twice = (intervals.estimates(scores_of(some)).iloc[0] for some in (dict([*systems.items()][:1]), systems))
    assert twice["high"] == pytest.approx(once["high"])  # no degree of freedom was won


LAYOUTS = [[3, 3], [3] * 5, [5, 5], [5, 5, 3], [3, 3, 3, 1], [5, 5, 5, 1, 1]]  # runs of each method


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_runs_of_one_seed_are_paired(layout):
    """What a seed adds to all methods of a start, from nothing to five times what a run adds of its own: of a mean, of
    the difference of the first two, and of the first and the last. Where numbers of runs differ they are compared as
    they stand, and what seeds add does not cancel."""
    rng, methods = np.random.default_rng(len(layout)), range(len(layout))
    runs = [(method, seed) for method in methods for seed in range(layout[method])]
    several = np.array([layout[method] > 1 for method, _ in runs])
    missed = []
    for noise in (0.0, 0.005, 0.01, 0.02, 0.05):
        of_seeds = rng.normal(0, noise, (max(layout), 2000))
        values = np.array([of_seeds[seed] + rng.normal(0, 0.01, 2000) for _, seed in runs])
        left, seeds = intervals.seed_variances(*zip(*np.array(runs)[several], strict=True), values[several])
        means = [values[[run[0] == method for run in runs]].mean(axis=0) for method in methods]
        for weights in ({0: 1}, {0: 1, 1: -1}, {0: 1, methods[-1]: -1}):
            own = sum(weight**2 / layout[method] for method, weight in weights.items())
            each = [sum(w / layout[m] for m, w in weights.items() if seed < layout[m]) for seed in range(max(layout))]
            part = intervals.with_seeds(own, np.square(each).sum(), 0.0, (left[0] / left[1], left[1]), seeds)
            gap = sum(weight * means[method] for method, weight in weights.items())
            missed.append(np.mean(np.abs(gap) > intervals.half_width(0.0, 1, [part])))
    mean, same, other = np.reshape(missed, (-1, 3)).T
    assert max(missed) <= 0.085 and min(*mean, *same) >= 0.03 and np.mean([mean, same]) <= 0.065, missed
    assert layout[0] != layout[-1] or other.min() >= 0.03


def test_pairing_by_hand():
    """Two rewards from one start, of logs: the difference is Student's paired one, and a mean knows as much as three
    seeds tell. Runs of methods whose start nobody states are independent."""
    one, other = np.array([0.1, 0.3, 0.26]), np.array([0.24, 0.43, 0.41])
    tables = {"rloo/program": one[:, None], "rloo/program_target": other[:, None]}
    assert {intervals.origin(method) for method in tables} == {("rloo", "sft/program")}
    scores = scores_of(tables)
    gap = intervals.differences(scores, [(method, before) for before, method in [[*tables]]]).iloc[0]
    low, high = stats.ttest_rel(other, one).confidence_interval()
    assert gap[["low", "high", "freedom"]].tolist() == pytest.approx([low, high, 2])
    rest = np.var(other - one, ddof=1) / 2
    seeds = 2 * np.var((one + other) / 2, ddof=1)
    seen = (rest + seeds) / 2  # the mean of both variances
    freedom = (rest + seeds) ** 2 / (rest**2 / 2 + seeds**2 / 2)
    mean = intervals.estimates(scores).set_index("method").loc["rloo/program"]
    assert mean["high"] - mean["estimate"] == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(seen / 3))
    assert int(freedom) == mean["freedom"] == 2
    unstated = scores_of({"rloo/a": one[:, None], "rloo/b": other[:, None]})
    gap = intervals.differences(unstated, [("rloo/b", "rloo/a")]).iloc[0]
    low, high = stats.ttest_ind(other, one).confidence_interval()
    assert gap[["low", "high", "freedom"]].tolist() == pytest.approx([low, high, 4])


def test_seeds_that_differ_by_less_than_the_rest_are_no_seeds():
    """As restricted maximum likelihood has it: then all runs are one pool, whatever their start."""
    one, other = np.array([0.1, 0.2, 0.3]), np.array([0.3, 0.2, 0.12])
    stated = scores_of({"rloo/sparse": one[:, None], "rloo/dense": other[:, None]})
    gap = intervals.differences(stated, [("rloo/dense", "rloo/sparse")]).iloc[0]
    low, high = stats.ttest_ind(other, one).confidence_interval()
    assert gap[["low", "high", "freedom"]].tolist() == pytest.approx([low, high, 4])


def test_starts_are_those_of_the_declared_runs():
    from lib.runs.plan import Project

    listed = pd.read_csv(DATA / "methods.csv").set_index("method")["start"].fillna("")
    declared = {}
    for profile in ("laptop", "cpu"):
        for spec in Project().specs(profile).values():
            if "init" in spec.declaration.needs and spec.run in listed:
                declared[spec.run] = spec.declaration.needs["init"].rpartition("/")[0]
    assert len(declared) > 60 and dict(listed[[*declared]]) == declared
    assert set(listed[listed != ""].index) == set(declared)
    assert intervals.origin("mix/sparse_0.7") == intervals.origin("rloo/sparse") == ("rloo", "sft/free")
    assert intervals.origin("rloo/of_your_own") == ("rloo", "")


@pytest.mark.parametrize(("runs", "systems"), [(3, 3), (3, 4), (5, 2), (5, 3), (8, 2)])
def test_systems_of_one_policy_are_compared_run_by_run(runs, systems):
    """What moves a run moves all its systems (.02 here); `noise` is what tells two of them apart."""
    found = []
    for noise in (0.0, 0.01, 0.02):
        rng, cell = np.random.default_rng([runs, systems, int(100 * noise)]), []
        for _ in range(8):
            values, _ = simulated(rng, systems, runs, 200, noise / np.sqrt(2), 250)
            values += rng.normal(0, 0.02, (250, 1, runs, 1))
            apart = values - values.mean(axis=1, keepdims=True)
            seen, made, freedom = intervals.run_variances(apart)
            pool = [part.sum(axis=1) / (systems - 1) for part in (seen, made)]
            gap = (values[:, 0] - values[:, 1]).mean(axis=1)
            spread = [(2 / runs, *pool, freedom * (systems - 1))]
            half = intervals.half_width(gap.var(axis=1, ddof=1) / 200, 200, spread)
            cell.append(np.abs(gap.mean(axis=1)) > half)
        found.append(np.mean(cell))
    scores = scores_of({f"rloo/a {i}": table for i, table in enumerate(values[0])})
    row = intervals.differences(scores, [("rloo/a 0", "rloo/a 1")]).iloc[0]
    assert row["high"] - row["estimate"] == pytest.approx(half[0]) and row["runs"] == runs
    assert min(found) >= 0.03 and max(found) <= 0.075 and np.mean(found) <= 0.06, found


def test_systems_of_one_policy_are_compared_on_the_runs_that_both_have():
    rng = np.random.default_rng(1)
    base = rng.random(300)
    cold = np.stack([base + shift for shift in (-0.1, 0, 0.1)])
    frame = scores_of({"rloo/a": cold, "rloo/a T0.8": cold + 0.02, "rloo/b": cold})
    gaps = intervals.differences(frame, [("rloo/a T0.8", "rloo/a"), ("rloo/a T0.8", "rloo/b")])
    paired, apart = gaps["high"] - gaps["low"]
    assert paired < 1e-9 and apart > 0.1 and gaps["estimate"].tolist() == pytest.approx([0.02, 0.02])
    other = frame.drop(index=[("rloo/a", 0)])
    gap = intervals.differences(other, [("rloo/a T0.8", "rloo/a")]).iloc[0]
    assert gap["runs"] == 2 and gap["estimate"] == pytest.approx(0.02)  # not .03, as without the first run of one
    alone = frame.drop(index=[("rloo/a", 0), ("rloo/a T0.8", 1), ("rloo/a T0.8", 2)])
    assert intervals.differences(alone, [("rloo/a T0.8", "rloo/a")]).empty
    doubled = {"more than double": {"rloo/a T0.8": 1.0, "rloo/a": -2.0}, "alone": {"rloo/a": 1.0}}
    widths = intervals.contrasts(frame, doubled).set_index("contrast").eval("high - low")
    assert widths["more than double"] == pytest.approx(widths["alone"])  # a run moves both: 1 - 2 of it is left


def test_pairing_is_by_problem_and_only_where_all_runs_have_scores():
    rng = np.random.default_rng(3)
    base = rng.beta(0.5, 0.5, size=400)
    better = base + rng.normal(0.03, 0.05, size=400)
    scores = scores_of({"sft/a": base, "rloo/a": better}).sample(frac=1, random_state=0)
    gap = intervals.differences(scores, [("rloo/a", "sft/a")]).iloc[0]
    singles = intervals.estimates(scores)
    unpaired = np.hypot(*(singles["high"] - singles["low"]))
    assert gap["estimate"] == pytest.approx((better - base).mean()) and gap["high"] - gap["low"] < unpaired / 4
    lacking = scores.drop(index=[("rloo/a", 0, "s", 7)])
    gap = intervals.differences(lacking, [("rloo/a", "sft/a"), ("rloo/a", "rloo/nobody")])
    assert gap["n_problems"].tolist() == [399]
    assert intervals.differences(scores, [("rloo/nobody", "sft/a")]).empty


def test_contrasts_by_hand():
    """A factor and a change from a start are weights."""
    rng = np.random.default_rng(1)
    a, b, start = rng.random((3, 50))
    scores = scores_of({"rloo/a": a, "rloo/b": b, "sft/s": start})
    asked = {"double": {"rloo/a": 1, "rloo/b": -2}, "changes": {"rloo/a": 1, "rloo/b": -1, "sft/s": 0.5}}
    found = intervals.contrasts(scores, asked).set_index("contrast")
    for name, values in (("double", a - 2 * b), ("changes", a - b + start / 2)):
        half = stats.t.ppf(0.975, 49) * values.std(ddof=1) / np.sqrt(50)
        row = found.loc[name, ["estimate", "low", "high"]].tolist()
        assert row == pytest.approx([values.mean(), values.mean() - half, values.mean() + half])


def test_more_problems_and_more_runs_make_an_interval_narrower():
    rng = np.random.default_rng(0)
    values, _ = simulated(rng, 4, 8, 1000, 0.02, 1)

    def width(runs, problems):
        tables = {f"rloo/{name}": table[:runs, :problems] for name, table in zip("abcd", values[0], strict=True)}
        row = intervals.estimates(scores_of(tables)).iloc[0]
        return row["high"] - row["low"]

    for steps in (pairwise([width(3, 100), width(3, 1000)]), pairwise([width(3, 1000), width(8, 1000)])):
        assert all(wide > narrow for wide, narrow in steps)


def test_a_slope_over_runs():
    x, y = [0.1, 0.2, 0.3, 0.4], [1.0, 2.1, 2.9, 4.0]
    (estimate, low, high, runs), line = intervals.slope(x, y), np.polyfit(x, y, 1, cov=True)
    half = stats.t.ppf(0.975, 2) * np.sqrt(line[1][0, 0])
    assert (estimate, low, high, runs) == pytest.approx((line[0][0], line[0][0] - half, line[0][0] + half, 4))
