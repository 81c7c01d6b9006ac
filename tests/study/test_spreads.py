"""How much runs of one trainer differ (data/spreads.csv), which intervals use for methods with few
runs."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.study import intervals, metrics, systems
from lib.study.spreads import TABLE, measure, prior
from lib.study.systems import System

WARM = systems.named(System("rloo/a", temperature=0.8))
SEARCH = systems.search("rloo/a", 1, 8)
OTHER = systems.search("rloo/b", 1, 8)


def test_the_prior_is_that_of_the_variances_drawn_from_it():
    rng = np.random.default_rng(0)
    for own in (2.0, 6.0):
        variances = 0.04 * own / rng.chisquare(own, 4000)
        at, found = prior(variances * rng.chisquare(4, 4000) / 4, np.full(4000, 4.0))
        assert at == pytest.approx(0.04, rel=0.1) and found == pytest.approx(own, rel=0.15)


def test_the_table_is_that_of_the_published_runs():
    table = pd.read_csv(TABLE)
    assert (table["policies"] >= 4).all() and table["freedom"].between(0.5, 30).all()
    assert {*table["trainer"]} == {"rloo", "sft", "preference"}
    again = measure()
    remedy = "`python -m lib.runs spreads`, then `make figures`"
    assert again[["trainer", "metric"]].equals(table[["trainer", "metric"]]), remedy
    for column in ("variance", "freedom"):
        np.testing.assert_allclose(again[column], table[column], rtol=1e-6, err_msg=remedy)


def test_what_borrows_misses_as_seldom_as_asked_where_spreads_are_unequal():
    """Two and three runs of policies whose spreads differ as the table's do, at one sample and at
    sixteen."""
    rng = np.random.default_rng(0)
    for own, runs in ((2.5, 2), (2.5, 3), (16.0, 2), (16.0, 3)):
        missed = []
        for _ in range(6):
            variance = 1e-4 * own / rng.chisquare(own, (500, 1, 1))
            table = rng.normal(0, np.sqrt(variance), (500, runs, 1)) + rng.normal(
                0, 0.1, (500, runs, 200)
            )
            mean, of_problems, seen, made = intervals.parts(
                [intervals.Side(1.0, range(runs), table)]
            )
            seen, freedom = intervals.moderated(seen, made, runs - 1, 1e-4 / runs, own)
            missed.append(
                np.abs(mean) > intervals.half_width(of_problems, 200, seen, made, freedom)
            )
        assert 0.02 <= np.mean(missed) <= 0.06, (own, runs, np.mean(missed))


def misses(runs, own, ratio, tested=True, repetitions=4000):
    """The share of intervals that miss the truth: of `runs` runs of a policy whose variance between
    runs is `ratio`**2 times that of the table, which has `own` degrees of freedom; None: drawn as
    the table says. Nothing else differs between problems, so that the runs alone decide."""
    rng = np.random.default_rng(0)
    variance = np.full((repetitions, 1), 1e-4 * (ratio or 1) ** 2)
    if ratio is None:
        variance = 1e-4 * own / rng.chisquare(own, (repetitions, 1))
    means = rng.normal(0, np.sqrt(variance), (repetitions, runs))
    seen = means.var(axis=1, ddof=1) / runs
    lent, freedom = intervals.moderated(seen, 0.0, runs - 1, 1e-4 / runs, own)
    refused = intervals.refused(seen, 0.0, runs - 1, 1e-4 / runs, own) & tested
    alone = intervals.half_width(0.0, 1000, seen, 0.0, runs - 1)
    half = np.where(refused, alone, intervals.half_width(0.0, 1000, lent, 0.0, freedom))
    return np.mean(np.abs(means.mean(axis=1)) > half)


@pytest.mark.parametrize(("runs", "most"), [(2, 0.16), (3, 0.10)])
def test_what_the_rule_of_loans_covers(runs, most):
    """The sentences at the top of `intervals`: two runs have one degree of freedom to test a loan
    with."""
    for own in (3.0, 30.0):
        worst = max(misses(runs, own, ratio) for ratio in (0.5, 1, 2, 3, 5, 10))
        assert 0.06 < worst <= most, worst
        assert misses(runs, own, None) <= 0.05
    assert misses(runs, 30.0, 10, tested=False) > 0.5


def test_a_loan_is_refused_to_runs_that_spread_wider(monkeypatch):
    monkeypatch.setattr(intervals, "_spreads", lambda: {("rloo", "pass@1"): (1e-4, 20.0)})
    base = np.random.default_rng(0).normal(0, 0.1, 400)

    def interval(spread, method="rloo/a"):
        runs = {(method, run, "s"): pd.Series(base + spread * (run - 1)) for run in range(3)}
        return intervals.estimates(pd.concat(runs, names=metrics.KEYS).to_frame("pass@1")).iloc[0]

    usual = interval(0.01)
    wide = interval(0.03)
    program = interval(0.01, "rloo/program")
    assert usual["borrowed"] and not wide["borrowed"] and not program["borrowed"]
    alone = stats.t.ppf(0.975, 2) * 0.03 / np.sqrt(3)
    of_problems = stats.t.ppf(0.975, 399) * stats.sem(base)
    assert (wide["high"] - wide["low"]) / 2 == pytest.approx(np.hypot(alone, of_problems))


@pytest.mark.parametrize(
    ("method", "metric", "borrows"),
    [
        ("rloo/sparse", "pass@1", True),
        ("rloo/sparse", "missing", True),
        ("sft/program", "pass@1", False),
        (systems.named(System("rloo/program_target", temperature=0.8)), "pass@16", False),
        ("preference/dpo", "pass@1", False),
        ("exact/agent_soft", "pass@1", False),  # that of an action DPO
        ("preference/ipo", "pass@1", True),
        ("rloo/trace_outcome", "pass@1", True),
        ("rloo/trace_outcome", "wrong_numbers", False),
        ("sft/trace_proof", "missing", False),
        ("sft/pick 16/16", "pass@1", False),
    ],
)
def test_who_borrows(method, metric, borrows):
    assert (intervals.loan_of(method, metric) is not None) == borrows


def test_few_runs_borrow_and_say_so(monkeypatch):
    """Two runs that are equal by chance have the table's spread, four their own; a log's number
    borrows nothing."""
    monkeypatch.setattr(
        intervals, "_spreads", lambda: {("rloo", "pass@1"): (1e-4, 5.0), ("rloo", "kl"): (1.0, 5.0)}
    )
    base = np.random.default_rng(0).normal(0, 0.1, 400)
    index = ["method", "seed", "set", "problem"]

    def frame(runs, metric="pass@1"):
        return pd.concat(
            {("rloo/a", run, "s"): pd.Series(base) for run in range(runs)}, names=index
        ).to_frame(metric)

    few, one, enough, other = (
        intervals.estimates(some).iloc[0]
        for some in (frame(2), frame(1), frame(4), frame(2, "tokens"))
    )
    assert few["borrowed"] and one["borrowed"] and not enough["borrowed"] and not other["borrowed"]
    widths = [row["high"] - row["low"] for row in (one, few, enough)]
    assert widths[0] > widths[1] > widths[2] == pytest.approx(other["high"] - other["low"])
    # samples too, at another temperature
    hot = frame(2).rename({"rloo/a": WARM}, level="method")
    assert intervals.estimates(hot)["borrowed"].all()
    logged = pd.DataFrame({"method": "rloo/a", "seed": [0, 1], "kl": [1.0, 2.0]}).set_index(
        ["method", "seed"]
    )
    assert not intervals.estimates(intervals.of_logs(logged))["borrowed"].any()


def test_samples_that_are_cut_earlier_borrow_as_others_do():
    base = np.random.default_rng(0).random(400)
    runs = {("rloo/a", run, "s"): pd.Series(base + 0.001 * run) for run in (0, 1)}
    scores = pd.concat(runs, names=metrics.KEYS).to_frame(intervals.EQUAL)
    scores[f"{intervals.EQUAL}, best limit"] = scores[intervals.EQUAL]
    one, other = intervals.estimates(scores).drop(columns="metric").itertuples(index=False)
    assert one == other and one.borrowed


@pytest.mark.parametrize("many", [4, 5])
def test_beside_a_method_of_many_runs_each_brings_its_own_spread(monkeypatch, many):
    """Four or five runs that differ much keep their spread beside three; a search borrows
    nothing."""
    monkeypatch.setattr(intervals, "_spreads", lambda: {("rloo", "pass@1"): (5e-6, 20.0)})
    rng = np.random.default_rng(0)
    base = rng.normal(0, 0.1, 400)
    moved = rng.normal(0, 0.05, (many, 1))
    index = ["method", "seed", "set", "problem"]

    def frame(name, rows):
        return pd.concat(
            {(name, run, "s"): pd.Series(row) for run, row in enumerate(rows)}, names=index
        )

    few = base + rng.normal(0, 0.001, (3, 1)) + rng.normal(0, 0.01, (3, 400))
    scores = pd.concat([frame("rloo/a", base + moved), frame("rloo/b", few)]).to_frame("pass@1")
    gap = intervals.differences(scores, [("rloo/a", "rloo/b")]).iloc[0]
    alone = stats.t.ppf(0.975, many - 1) * stats.sem(moved[:, 0])
    assert gap["borrowed"] and (gap["high"] - gap["low"]) / 2 == pytest.approx(alone, rel=0.05)
    searched = pd.concat([frame(SEARCH, few), frame(OTHER, few + 0.1)]).to_frame("pass@1")
    assert not intervals.estimates(searched)["borrowed"].any()
    assert not intervals.differences(searched, [(SEARCH, OTHER)])["borrowed"].any()
    mixed = pd.concat([frame(SEARCH, few), frame("rloo/b", few + 0.1)]).to_frame("pass@1")
    assert not intervals.differences(mixed, [(SEARCH, "rloo/b")])["borrowed"].any()
    warmer = pd.concat([frame("rloo/a", few), frame(WARM, few + moved[:3])]).to_frame("pass@1")
    assert not intervals.differences(warmer, [(WARM, "rloo/a")])["borrowed"].any(), (
        "they share their runs"
    )


def test_identical_methods_of_five_and_of_three_runs_seldom_differ():
    """Spreads of policies as unequal as the table says, one side with its own and one with a
    loan."""
    rng = np.random.default_rng(0)
    missed = []
    for _ in range(3000):
        sides = []
        for weight, runs in ((1.0, 5), (-1.0, 3)):
            spread = np.sqrt(1e-4 * 2.5 / rng.chisquare(2.5))
            table = rng.normal(0, spread, (runs, 1)) + rng.normal(0, 0.1, (runs, 200))
            sides.append(intervals.Side(weight, range(runs), table))
        mean, of_problems, *own = intervals.parts(sides)
        _, found = intervals.with_loans(sides, [(1e-4, 2.5)] * 2, *own, 2.0)
        missed.append(abs(mean) > intervals.half_width(of_problems, 200, *found))
    assert 0.01 <= np.mean(missed) <= 0.06, np.mean(missed)
