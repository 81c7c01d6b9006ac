"""The one rule for intervals: by hand, and by simulation on data like ours (16 samples per problem,
a few runs)."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.files import DATA
from lib.study import intervals, metrics, systems
from tests.conftest import this_project

KEYS = ["method", "seed", "set", "problem"]


def scores_of(tables, metric="solved", name="s"):  # a metric of which nothing is borrowed
    """A frame of scores from (runs, problems) arrays by method."""
    parts = {
        (method, seed, name): pd.Series(row)
        for method, table in tables.items()
        for seed, row in enumerate(np.atleast_2d(table))
    }
    return pd.concat(parts, names=KEYS).dropna().to_frame(metric)


def simulated(rng, runs, spreads, of_seeds, problems, repetitions):
    """Scores of two methods that are the same in truth, (repetitions, runs, problems) each:
    problems differ in difficulty, seeds by `of_seeds` in both methods alike, runs by their method's
    spread; 16 samples of each problem, their mean taken as normal. And the mean that they have in
    truth."""
    chance = np.where(rng.random((repetitions, 1, problems), dtype=np.float32) < 0.5, 0.15, 0.65)
    shared = rng.normal(0, of_seeds, (repetitions, max(runs), 1))
    for count, spread in zip(runs, spreads, strict=True):
        mean = chance + shared[:, :count] + rng.normal(0, spread, (repetitions, count, 1))
        noise = np.sqrt(chance * (1 - chance) / 16) * rng.standard_normal(
            (repetitions, count, problems), dtype="f4"
        )
        yield mean + noise
    yield 0.4


LAYOUTS = [(5, 5), (5, 3), (3, 3), (2, 2)]
SPREADS = [(0.0, 0.0), (0.005, 0.005), (0.02, 0.02), (0.01, 0.05), (0.05, 0.01)]


@pytest.fixture(scope="module")
def missed():
    """By layout, spreads and what seeds share, the shares of intervals that miss the truth: of a
    mean, of a difference run by run, and of one of methods that share no run. 1,000 repetitions a
    cell tell a share within 1.4 points."""
    found = {}
    for runs in LAYOUTS:
        for spreads in SPREADS:
            for of_seeds in (0.0, 0.03):
                rng = np.random.default_rng([*runs, int(1000 * sum(spreads)), int(100 * of_seeds)])
                one, other, truth = simulated(rng, runs, spreads, of_seeds, 100, 1000)
                apart = (
                    other
                    if not of_seeds
                    else list(simulated(rng, runs, spreads, of_seeds, 100, 1000))[1]
                )
                seeds = list(range(runs[0]))
                others = list(range(runs[1]))
                first = intervals.Side(1, seeds, one)
                paired = intervals.Side(-1, others, other)
                unpaired = intervals.Side(-1, [f"other {seed}" for seed in others], apart)
                gaps = {
                    "mean": ([first], truth),
                    "paired": ([first, paired], 0),
                    "unpaired": ([first, unpaired], 0),
                }
                for kind, (sides, true) in gaps.items():
                    if of_seeds and kind == "unpaired":
                        continue  # other problems as well
                    mean, *spread = intervals.parts(sides)
                    least = min(len(side.seeds) for side in sides)
                    half = intervals.half_width(spread[0], 100, *spread[1:], least - 1)
                    found[kind, runs, spreads, of_seeds] = np.mean(np.abs(mean - true) > half)
    return pd.Series(found)


def test_the_interval_covers_the_truth(missed):
    """Asked is 95% in every cell, unequal spreads and all: nothing is borrowed that could be too
    small."""
    assert missed.max() <= 0.068, missed.nlargest(5)
    five = missed[[runs == (5, 5) for _, runs, *_ in missed.index]]
    assert five["mean"].min() >= 0.015, "wider than they need to be"


def test_identical_methods_differ_in_at_most_five_percent(missed):
    for kind in ("paired", "unpaired"):
        assert missed[kind].mean() <= 0.05, missed[kind]
        assert missed[kind].groupby(level=0).mean().max() <= 0.05


def test_a_contrast_has_one_answer_whoever_else_is_there():
    rng = np.random.default_rng(0)
    base = rng.random(100)
    two = {name: base + rng.normal(0, 0.01, (3, 1)) for name in ("rloo/a", "rloo/b")}
    wild = {"rloo/c": base + rng.normal(0, 0.2, (3, 1))}
    alone, beside = (
        intervals.differences(scores_of(some), [tuple(two)]) for some in (two, two | wild)
    )
    pd.testing.assert_frame_equal(alone, beside)


def test_the_paired_rule_is_students_and_the_other_welchs():
    """Of training logs: run by run, and where starts differ as the sum of both variances."""
    one = np.array([0.1, 0.3, 0.26])
    other = np.array([0.24, 0.43, 0.41])
    tables = {"rloo/program": one[:, None], "rloo/program_target": other[:, None]}
    gap = intervals.differences(scores_of(tables), [("rloo/program_target", "rloo/program")]).iloc[
        0
    ]
    low, high = stats.ttest_rel(other, one).confidence_interval()
    assert gap[["low", "high", "runs"]].tolist() == pytest.approx([low, high, 3])
    # from sft/free, from sft/trace
    tables = {"rloo/program": one[:, None], "rloo/trace_outcome": other[:, None]}
    gap = intervals.differences(scores_of(tables), [("rloo/trace_outcome", "rloo/program")]).iloc[0]
    half = stats.t.ppf(0.975, 2) * np.sqrt((one.var(ddof=1) + other.var(ddof=1)) / 3)
    assert gap["high"] - gap["estimate"] == pytest.approx(half)
    mean = intervals.estimates(scores_of(tables)).set_index("method").loc["rloo/program"]
    assert mean["high"] - mean["estimate"] != pytest.approx(half)


def test_an_interval_by_hand():
    """The noise of finitely many problems counts once."""
    rng = np.random.default_rng(0)
    x = np.array([[0.03], [-0.02], [0.01]]) + rng.normal(3, 0.2, 60) + rng.normal(0, 0.1, (3, 60))
    row = intervals.estimates(scores_of({"rloo/a": x})).iloc[0]
    rest = x - x.mean(axis=0) - x.mean(axis=1, keepdims=True) + x.mean()
    noise = (rest**2).sum() / 2 / 59 / 60 / 3
    first, second = stats.t.ppf(0.975, [59, 2]) ** 2
    half = np.sqrt(
        first * (stats.sem(x.mean(axis=0)) ** 2 - noise) + second * stats.sem(x.mean(axis=1)) ** 2
    )
    assert row[["estimate", "low", "high"]].tolist() == pytest.approx(
        [x.mean(), x.mean() - half, x.mean() + half]
    )
    assert row[["n_problems", "runs"]].tolist() == [60, 3]


def test_one_run_speaks_of_problems_alone():
    row = intervals.estimates(scores_of({"sft/a": [0.0, 0.5, 1.5, 0.5]})).iloc[0]
    half = stats.t.ppf(0.975, 3) * np.std([0, 0.5, 1.5, 0.5], ddof=1) / 2
    assert row[["estimate", "low", "high"]].tolist() == pytest.approx(
        [0.625, 0.625 - half, 0.625 + half]
    )
    assert row[["n_problems", "runs"]].tolist() == [4, 1]
    logged = pd.DataFrame({"method": "rloo/a", "seed": [0], "kl": [1.0]}).set_index(
        ["method", "seed"]
    )
    row = intervals.estimates(intervals.of_logs(logged)).iloc[0]
    assert row["estimate"] == 1 and np.isnan(row["low"]) and row["set"] == "training"


def test_shares_stay_within_zero_and_one():
    rng = np.random.default_rng(0)
    rare = np.zeros((5, 200))
    rare[:, 0] = rng.random(5)
    rare[0, :40] = 1
    row = intervals.estimates(scores_of({"rloo/a": rare})).iloc[0]
    assert 0 < row["low"] < row["estimate"] < row["high"] < 1
    mirrored = intervals.estimates(scores_of({"rloo/a": 1 - rare})).iloc[0]
    assert [1 - mirrored["high"], 1 - mirrored["low"]] == pytest.approx([row["low"], row["high"]])
    middle = np.clip(rng.normal(0.5, 0.1, (5, 400)), 0, 1)
    found = intervals.measured(scores_of({"rloo/a": middle}), {"a": {"rloo/a": 1.0}})[
        "s", "a", "solved"
    ]
    assert found.ends() == pytest.approx(
        (found.estimate - found.half(), found.estimate + found.half()), abs=1e-4
    )


def test_nothing_seen_in_fifty_problems_is_not_nothing():
    """Clopper and Pearson's bound for 0 of 50, whatever the number of runs; of a difference too."""
    bound = stats.binomtest(0, 50).proportion_ci(method="exact").high
    none = {name: np.zeros((3, 50)) for name in ("rloo/a", "rloo/b")}
    row = intervals.estimates(scores_of(none)).iloc[0]
    assert row["low"] == 0 and row["high"] == pytest.approx(bound) and bound > 0.07
    assert intervals.estimates(scores_of({"rloo/a": np.ones((3, 50))})).iloc[0][
        "low"
    ] == pytest.approx(1 - bound)
    gap = intervals.differences(scores_of(none), [tuple(none)]).iloc[0]
    assert gap[["low", "high"]].tolist() == pytest.approx([-bound, bound])
    # every problem is solved as often, but the runs differ
    apart = np.repeat([[0.25], [0.5], [0.75]], 50, axis=1)
    found = intervals.measured(scores_of({"rloo/a": apart}), {"a": {"rloo/a": 1.0}})[
        "s", "a", "solved"
    ]
    assert found.half() == pytest.approx(stats.t.ppf(0.975, 2) * stats.sem([0.25, 0.5, 0.75]))


def test_p_is_the_error_at_which_the_interval_reaches_zero():
    rng = np.random.default_rng(2)
    x = 0.02 + rng.normal(0, 0.02, (5, 1)) + rng.normal(0, 0.3, (5, 80))
    found = intervals.measured(scores_of({"rloo/a": x}), {"a": {"rloo/a": 1.0}})["s", "a", "solved"]
    assert 0 < found.p() < 1 and found.half(1 - found.p()) == pytest.approx(
        found.estimate, abs=1e-9
    )
    assert found.p(found.estimate) == pytest.approx(1)
    logged = scores_of({"rloo/a": x[:, :1]})
    found = intervals.measured(logged, {"a": {"rloo/a": 1.0}})["s", "a", "solved"]
    assert found.p(0.5) == pytest.approx(stats.ttest_1samp(x[:, 0], 0.5).pvalue)


@pytest.mark.parametrize("runs", [3, 5])
def test_what_is_detectable_is_seen_in_four_of_five_repetitions(runs):
    """About: it varies with the variances that it is computed from, so we take its mean."""
    rng = np.random.default_rng(0)

    def measured(truth):
        x = truth + rng.normal(0, 0.01, (runs, 1)) + rng.normal(0, 0.1, (runs, 100))
        return intervals.measured(scores_of({"rloo/a": x}), {"a": {"rloo/a": 1.0}})[
            "s", "a", "solved"
        ]

    effect = np.sqrt(np.mean([measured(0.0).detectable() ** 2 for _ in range(100)]))
    assert np.mean([measured(effect).ends()[0] > 0 for _ in range(200)]) == pytest.approx(
        0.8, abs=0.1
    )


def test_the_error_of_one_run_on_few_problems_and_on_many():
    """What a paper's difference of one run a side would miss by, from our runs: simulated."""
    rng = np.random.default_rng(0)

    def runs(count, problems):
        hard = rng.normal(0, 0.2, problems)
        return [
            hard + rng.normal(0, 0.02, (count, 1)) + rng.normal(0, 0.4, (count, problems))
            for _ in range(2)
        ]

    seen = []
    for _ in range(30):
        tables = scores_of(dict(zip(("rloo/a", "rloo/b"), runs(5, 400), strict=True)))
        found = intervals.measured(tables, {"gap": {"rloo/a": 1.0, "rloo/b": -1.0}})[
            "s", "gap", "solved"
        ]
        seen.append([found.error_of_one_run(problems) ** 2 for problems in (50, 400)])
    for mean, problems in zip(np.mean(seen, axis=0), (50, 400), strict=True):
        gaps = []
        for _ in range(3000):
            one, other = runs(1, problems)
            gaps.append(one.mean() - other.mean())
        assert mean == pytest.approx(np.var(gaps), rel=0.2), problems


def test_the_error_of_one_run_is_the_same_however_many_runs_each_method_has():
    """Four runs of one method and two of another, which spread equally and start from different
    policies."""
    four = np.array([-1, -1, 1, 1]) * np.sqrt(3) / 2
    two = np.array([-1, 1]) / np.sqrt(2)
    assert four.var(ddof=1) == pytest.approx(1) == pytest.approx(two.var(ddof=1))
    tables = {"rloo/program": four, "rloo/trace_outcome": two}
    tables = {name: np.repeat(0.01 * runs[:, None], 60, axis=1) for name, runs in tables.items()}
    weights = {"gap": dict(zip(tables, (1.0, -1.0), strict=True))}
    found = intervals.measured(scores_of(tables), weights)["s", "gap", "solved"]
    assert found.error_of_one_run(50) == pytest.approx(np.sqrt(2) * 0.01)


def test_starts_are_those_of_the_declared_runs():
    listed = pd.read_csv(DATA / "methods.csv").set_index("method")["start"].fillna("")
    runs = this_project().of_profile("cpu")  # also those that the profile is without
    starts = {name.rpartition("/")[0]: run.needs.get("init", "") for name, run in runs.items()}
    declared = {
        run: start.rpartition("/")[0] for run, start in starts.items() if start and run in listed
    }
    assert len(declared) > 60 and dict(listed[[*declared]]) == declared
    assert set(listed[listed != ""].index) == set(declared)
    assert intervals.root("mix/sparse_0.7") == intervals.root("rloo/program") == "sft/free"
    assert (
        intervals.root("rloo/trace_gated") == "sft/trace"
        and intervals.root("rloo/of_your_own") == ""
    )
    assert intervals.trainer("mix/sparse_0.7") == intervals.trainer("rloo/of_your_own") == "rloo"


@pytest.mark.parametrize(
    ("start", "why"), [("rloo/mine", "starts from itself"), ("sft/fre", "is not a method of")]
)
def test_a_start_that_cannot_be_is_refused(monkeypatch, start, why):
    listed = pd.DataFrame({"start": ["", start]}, index=["sft/free", "rloo/mine"])
    monkeypatch.setattr(systems, "methods", lambda: listed)
    with pytest.raises(ValueError, match=f"the start of rloo/mine, {why}"):
        intervals.root("rloo/mine")


def test_a_method_compared_with_itself_is_refused():
    index = pd.MultiIndex.from_product(
        [["sft/free"], [0], ["heldout_1000"], [0, 1]], names=metrics.KEYS
    )
    scores = pd.DataFrame({"pass@1": [0.0, 1.0]}, index)
    with pytest.raises(ValueError, match="sft/free is compared with itself"):
        intervals.differences(scores, [("sft/free", "sft/free")])


def test_two_rows_of_one_problem_are_refused():
    index = pd.MultiIndex.from_product([["sft/free"], [0], ["heldout_1000"], [0, 1]])
    scores = pd.DataFrame({"pass@1": [0.0, 1.0]}, index.set_names(metrics.KEYS))
    with pytest.raises(ValueError, match="two rows of sft/free, 0, heldout_1000, 1: leave one out"):
        intervals.estimates(pd.concat([scores, scores.iloc[1:]]))


def test_systems_of_one_policy_are_compared_on_the_runs_that_both_have():
    rng = np.random.default_rng(1)
    base = rng.random(300)
    cold = np.stack([base + shift for shift in (-0.1, 0, 0.1)])
    warm = systems.named(systems.System("rloo/a", temperature=0.8))
    frame = scores_of({"rloo/a": cold, warm: cold + 0.02, "rloo/b": cold[[1, 2, 0]]})
    gaps = intervals.differences(frame, [(warm, "rloo/a"), (warm, "rloo/b")])
    paired, apart = gaps["high"] - gaps["low"]
    assert (
        paired < 1e-9 and apart > 0.1 and gaps["estimate"].tolist() == pytest.approx([0.02, 0.02])
    )
    other = frame.drop(index=[("rloo/a", 0)])
    gap = intervals.differences(other, [(warm, "rloo/a")]).iloc[0]
    # not .03, as without the first run of one
    assert gap["runs"] == 2 and gap["estimate"] == pytest.approx(0.02)
    alone = frame.drop(index=[("rloo/a", 0), (warm, 1), (warm, 2)])
    assert intervals.differences(alone, [(warm, "rloo/a")]).empty
    doubled = {"more than double": {warm: 1.0, "rloo/a": -2.0}, "alone": {"rloo/a": 1.0}}
    halves = {
        contrast: one.half() for (_, contrast, _), one in intervals.measured(frame, doubled).items()
    }
    # a run moves both: 1 - 2 of it is left
    assert halves["more than double"] == pytest.approx(halves["alone"])


def test_pairing_is_by_problem_and_only_where_all_runs_have_scores():
    rng = np.random.default_rng(3)
    base = rng.beta(0.5, 0.5, size=400)
    better = base + rng.normal(0.03, 0.05, size=400)
    scores = scores_of({"sft/a": base, "rloo/a": better}).sample(frac=1, random_state=0)
    gap = intervals.differences(scores, [("rloo/a", "sft/a")]).iloc[0]
    singles = intervals.estimates(scores)
    unpaired = np.hypot(*(singles["high"] - singles["low"]))
    assert (
        gap["estimate"] == pytest.approx((better - base).mean())
        and gap["high"] - gap["low"] < unpaired / 4
    )
    lacking = scores.drop(index=[("rloo/a", 0, "s", 7)])
    gap = intervals.differences(lacking, [("rloo/a", "sft/a"), ("rloo/a", "rloo/nobody")])
    assert gap["n_problems"].tolist() == [399]
    assert intervals.differences(scores, [("rloo/nobody", "sft/a")]).empty


def test_a_run_without_a_metric_does_not_count_for_this_metric():
    scores = scores_of({"rloo/a": np.random.default_rng(0).random((3, 50))})
    scores["measured twice"] = scores["solved"].drop(2, level="seed")
    rows = intervals.estimates(scores).set_index("metric")
    assert (
        rows["runs"].to_dict() == {"solved": 3, "measured twice": 2}
        and (rows["n_problems"] == 50).all()
    )
    assert rows.loc["measured twice", "estimate"] == pytest.approx(scores["measured twice"].mean())


def test_contrasts_by_hand():
    """A factor and a change from a start are weights."""
    rng = np.random.default_rng(1)
    a, b, start = rng.random((3, 50))
    scores = scores_of({"rloo/a": a, "rloo/b": b, "sft/s": start})
    asked = {
        "double": {"rloo/a": 1, "rloo/b": -2},
        "changes": {"rloo/a": 1, "rloo/b": -1, "sft/s": 0.5},
    }
    found = intervals.measured(scores, asked)
    for name, values in (("double", a - 2 * b), ("changes", a - b + start / 2)):
        half = stats.t.ppf(0.975, 49) * values.std(ddof=1) / np.sqrt(50)
        one = found["s", name, "solved"]
        assert one.estimate == pytest.approx(values.mean())
        assert one.ends() == pytest.approx((values.mean() - half, values.mean() + half))


def test_more_problems_and_more_runs_make_an_interval_narrower():
    values = next(simulated(np.random.default_rng(0), (8, 8), (0.02, 0.02), 0.0, 1000, 1))[0]

    def width(runs, problems):
        row = intervals.estimates(scores_of({"rloo/a": values[:runs, :problems]})).iloc[0]
        return row["high"] - row["low"]

    for steps in (
        pairwise([width(3, 100), width(3, 1000)]),
        pairwise([width(3, 1000), width(8, 1000)]),
    ):
        assert all(wide > narrow for wide, narrow in steps)
