"""How much runs of one trainer differ (data/spreads.csv), which intervals use for methods with few runs."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.study import intervals, metrics
from lib.study.spreads import TABLE, measure, prior


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
    again, remedy = measure(), "`python -m lib.runs spreads`, then `make figures`"
    assert again[["trainer", "metric"]].equals(table[["trainer", "metric"]]), remedy
    for column in ("variance", "freedom"):
        np.testing.assert_allclose(again[column], table[column], rtol=1e-6, err_msg=remedy)


def test_what_borrows_misses_as_seldom_as_asked_where_spreads_are_unequal():
    """Two and three runs of policies whose spreads differ as the table's do, at one sample and at sixteen."""
    rng = np.random.default_rng(0)
    for own, runs in ((2.5, 2), (2.5, 3), (16.0, 2), (16.0, 3)):
        missed = []
        for _ in range(6):
            variance = 1e-4 * own / rng.chisquare(own, (500, 1, 1))
            table = rng.normal(0, np.sqrt(variance), (500, runs, 1)) + rng.normal(0, 0.1, (500, runs, 200))
            mean, of_problems, seen, made = intervals.parts([(1.0, [*range(runs)], table)])
            seen, freedom = intervals.moderated(seen, made, runs - 1, 1e-4 / runs, own)
            missed.append(np.abs(mean) > intervals.half_width(of_problems, 200, seen, made, freedom))
        assert 0.02 <= np.mean(missed) <= 0.06, (own, runs, np.mean(missed))


def test_few_runs_borrow_and_say_so(monkeypatch):
    """Two runs that are equal by chance have the table's spread, four their own; a log's number borrows nothing."""
    monkeypatch.setattr(intervals, "_spreads", lambda: {("rloo", "pass@1"): (1e-4, 5.0), ("rloo", "kl"): (1.0, 5.0)})
    base = np.random.default_rng(0).normal(0, 0.1, 400)
    index = ["method", "seed", "set", "problem"]

    def frame(runs, metric="pass@1"):
        return pd.concat({("rloo/a", run, "s"): pd.Series(base) for run in range(runs)}, names=index).to_frame(metric)

    few, one, enough, other = (
        intervals.estimates(some).iloc[0] for some in (frame(2), frame(1), frame(4), frame(2, "tokens"))
    )
    assert few["borrowed"] and one["borrowed"] and not enough["borrowed"] and not other["borrowed"]
    widths = [row["high"] - row["low"] for row in (one, few, enough)]
    assert widths[0] > widths[1] > widths[2] == pytest.approx(other["high"] - other["low"])
    hot = frame(2).rename({"rloo/a": "rloo/a T0.8"}, level="method")  # samples too, at another temperature
    assert intervals.estimates(hot)["borrowed"].all()
    logged = pd.DataFrame({"method": "rloo/a", "seed": [0, 1], "kl": [1.0, 2.0]}).set_index(["method", "seed"])
    assert not intervals.estimates(intervals.of_logs(logged))["borrowed"].any()


def test_samples_that_are_cut_earlier_borrow_as_others_do():
    runs = {("rloo/a", run, "s"): pd.Series(np.random.default_rng(run).random(400)) for run in (0, 1)}
    scores = pd.concat(runs, names=metrics.KEYS).to_frame(intervals.EQUAL)
    scores[f"{intervals.EQUAL}, best limit"] = scores[intervals.EQUAL]
    one, other = intervals.estimates(scores).drop(columns="metric").itertuples(index=False)
    assert one == other and one.borrowed


@pytest.mark.parametrize("many", [4, 5])
def test_beside_a_method_of_many_runs_each_brings_its_own_spread(monkeypatch, many):
    """Four or five runs that differ much keep their spread beside three; a search borrows nothing."""
    monkeypatch.setattr(intervals, "_spreads", lambda: {("rloo", "pass@1"): (1e-6, 20.0)})
    rng = np.random.default_rng(0)
    base, moved = rng.normal(0, 0.1, 400), rng.normal(0, 0.05, (many, 1))
    index = ["method", "seed", "set", "problem"]

    def frame(name, rows):
        return pd.concat({(name, run, "s"): pd.Series(row) for run, row in enumerate(rows)}, names=index)

    few = base + rng.normal(0, 0.001, (3, 1)) + rng.normal(0, 0.01, (3, 400))
    scores = pd.concat([frame("rloo/a", base + moved), frame("rloo/b", few)]).to_frame("pass@1")
    gap = intervals.differences(scores, [("rloo/a", "rloo/b")]).iloc[0]
    alone = stats.t.ppf(0.975, many - 1) * stats.sem(moved[:, 0])
    assert gap["borrowed"] and (gap["high"] - gap["low"]) / 2 == pytest.approx(alone, rel=0.05)
    systems = pd.concat([frame("rloo/a 1/8", few), frame("rloo/b 1/8", few + 0.1)]).to_frame("pass@1")
    assert not intervals.estimates(systems)["borrowed"].any()
    assert not intervals.differences(systems, [("rloo/a 1/8", "rloo/b 1/8")])["borrowed"].any()
    mixed = pd.concat([frame("rloo/a 1/8", few), frame("rloo/b", few + 0.1)]).to_frame("pass@1")
    assert not intervals.differences(mixed, [("rloo/a 1/8", "rloo/b")])["borrowed"].any()
    warmer = pd.concat([frame("rloo/a", few), frame("rloo/a T0.8", few + moved[:3])]).to_frame("pass@1")
    assert not intervals.differences(warmer, [("rloo/a T0.8", "rloo/a")])["borrowed"].any(), "they share their runs"


def test_identical_methods_of_five_and_of_three_runs_seldom_differ():
    """Spreads of policies as unequal as the table says, one side with its own and one with a loan."""
    rng, missed = np.random.default_rng(0), []
    for _ in range(3000):
        sides = []
        for weight, runs in ((1.0, 5), (-1.0, 3)):
            spread = np.sqrt(1e-4 * 2.5 / rng.chisquare(2.5))
            table = rng.normal(0, spread, (runs, 1)) + rng.normal(0, 0.1, (runs, 200))
            sides.append((weight, [*range(runs)], table))
        mean, of_problems, *own = intervals.parts(sides)
        found = intervals._with_loans(sides, [(1e-4, 2.5)] * 2, *own)
        missed.append(abs(mean) > intervals.half_width(of_problems, 200, *found))
    assert 0.01 <= np.mean(missed) <= 0.06, np.mean(missed)
