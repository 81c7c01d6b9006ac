"""pass@k against enumeration, the bootstrap against theory, diagnostics against a table counted by hand."""

import json
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import metrics
from lib.paths import PAPER
from lib.verifiers import judge


def enumerated(n, c, k):
    """Share of the k-subsets of n samples that hold at least one of the first c."""
    subsets = list(combinations(range(n), k))
    return sum(min(subset) < c for subset in subsets) / len(subsets)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets(case):
    assert metrics.pass_at_k(*case) == pytest.approx(enumerated(*case), abs=1e-12)


def test_pass_at_k_by_hand():
    # four samples, one correct: one of four singles, three of six pairs, three of four triples hold it
    np.testing.assert_allclose(metrics.pass_at_k(4, 1, [1, 2, 3, 4]), [1 / 4, 1 / 2, 3 / 4, 1])


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_stable_for_many_samples(case):
    n, c, k = case
    exact = (comb(n, k) - comb(n - c, k)) / comb(n, k)  # integers of any size, one rounding
    assert metrics.pass_at_k(n, c, k) == pytest.approx(exact, abs=1e-12)


def test_pass_at_k_shapes_and_range():
    n, c = np.full((3, 2), 16), np.arange(6).reshape(3, 2)
    curve = metrics.pass_at_k(n, c, np.arange(1, 17))
    assert curve.shape == (3, 2, 16) and metrics.pass_at_k(n, c, 4).shape == (3, 2)
    assert (np.diff(curve) >= 0).all()
    assert (curve[..., 0] == pytest.approx(c / 16)) and (curve[0, 0] == 0).all() and curve[2, 1, 11] == 1


def test_mean_pass_at_k():
    assert metrics.mean_pass_at_k(4, 1, 2) == pytest.approx((1 / 4 + 1 / 2) / 2)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1), ([4, 8], [1, 1], 6)])
def test_pass_at_k_refuses_what_it_cannot_estimate(n, c, k):
    with pytest.raises(ValueError, match=r"pass@k needs"):
        metrics.pass_at_k(n, c, k)


def test_crossover():
    baseline = [0.5, 0.6, 0.7, 0.8]
    assert metrics.crossover([0.4, 0.6, 0.71, 0.7], baseline) == 3  # equal is not above
    assert metrics.crossover([0.6, 0.5, 0.5, 0.5], baseline) == 1
    assert metrics.crossover(baseline, baseline) is None


def test_the_papers_crossover_lies_between_its_reported_points():
    results = pd.read_csv(PAPER / "results.csv").query("paper == 'ast' and table == 'Table 1'")
    table = results.pivot(index="method", columns="metric", values="value")[["pass@1", "pass@8", "pass@16"]]
    second = 2  # of the three points: k = 8
    assert metrics.crossover(table.loc["rloo/ast_tau2"], table.loc["rloo/sparse"]) == second


def judged(rows):
    names = ["method", "run", "set", "problem", "completion", "answer", "status", "tokens", "finish"]
    return pd.DataFrame(rows, columns=names).assign(seed=0)


ROWS = [
    ("sft/free", "sample_sft", "test", 0, "a", "1 + 2", "correct", 10, "stop"),
    ("sft/free", "sample_sft", "test", 0, "a", "1 + 2", "correct", 10, "stop"),
    ("sft/free", "sample_sft", "test", 0, "b", "1 + 2", "correct", 20, "stop"),
    ("sft/free", "sample_sft", "test", 0, "c", "", "missing", 40, "length"),
    ("sft/free", "sample_sft", "test", 1, "d", "3 * 4", "wrong_value", 5, "stop"),
    ("sft/free", "sample_sft", "test", 1, "d", "3 * 4", "wrong_value", 5, "stop"),
    ("sft/free", "sample_sft", "test", 1, "e", "3 + 3", "wrong_numbers", 5, "stop"),
    ("sft/free", "sample_sft", "test", 1, "f", "2 * 6", "correct", 5, "stop"),
]


@pytest.fixture(params=["every completion a row", "equal completions merged"])
def table(request):
    rows = judged(ROWS)
    if request.param.startswith("equal"):
        rows = rows.groupby(list(rows), dropna=False).size().rename("count").reset_index()
        assert len(rows) == 6
    return rows


def test_counts_and_scores(table):
    counts = metrics.counts(table)
    assert counts.loc[("sft/free", "sample_sft", "test")].to_dict("list") == {"n": [4, 4], "c": [3, 1]}
    scores = metrics.problem_scores(counts, ks=(1, 2, 8), mean_to=(2, 16))
    assert list(scores) == ["pass@1", "pass@2", "pass@8", "mean pass@k<=2", "mean pass@k<=16"]
    np.testing.assert_allclose(scores["pass@1"], [3 / 4, 1 / 4])
    np.testing.assert_allclose(scores["pass@2"], [1, 1 / 2])
    np.testing.assert_allclose(scores["mean pass@k<=2"], [7 / 8, 3 / 8])
    assert scores[["pass@8", "mean pass@k<=16"]].isna().all(axis=None)  # four samples say nothing about eight


def test_diagnostics_by_hand(table):
    row = metrics.diagnostics(table).loc[("test", "sft/free")]
    assert row["samples"] == 8
    assert row["distinct completions"] == 3  # a b c, d e f
    assert row["distinct correct answers"] == 1  # "1 + 2" twice written, "2 * 6"
    assert row[metrics.STATUSES].tolist() == [4 / 8, 2 / 8, 1 / 8, 0, 1 / 8]
    assert row["tokens"] == 100 / 8 and row["at cap"] == 1 / 8


def test_diagnostics_of_two_seeds_are_those_of_one(table):
    seeds = pd.concat([table.assign(run=name) for name in ("sample_sft", "sample_sft_seed1")])
    one, two = (metrics.diagnostics(rows).loc[("test", "sft/free")] for rows in (table, seeds))
    assert two["samples"] == 2 * one["samples"] and two.drop("samples").equals(one.drop("samples"))


def test_diagnostics_without_a_correct_answer(table):
    wrong = table[table["status"] != "correct"]
    assert metrics.diagnostics(wrong).loc[("test", "sft/free"), "distinct correct answers"] == 0


def test_bootstrap_interval_matches_the_normal_one():
    values = np.random.default_rng(0).random(1000)
    row = metrics.bootstrap(values).iloc[0]
    half = 1.96 * values.std() / np.sqrt(1000)
    assert row["estimate"] == pytest.approx(values.mean())
    assert row["low"] == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert row["high"] == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_bootstrap_covers_the_truth():
    rng, truth, covered = np.random.default_rng(1), 0.3, 0
    for seed in range(300):
        problems = rng.beta(0.6, 1.4, size=120)  # mean 0.3, problems differ in difficulty
        row = metrics.bootstrap(rng.binomial(16, problems) / 16, draws=500, seed=seed).iloc[0]
        covered += row["low"] <= truth <= row["high"]
    assert 0.91 <= covered / 300 <= 0.98


def test_samples_of_a_problem_are_no_independent_evidence():
    """The interval follows the number of problems; taking the 16 samples as independent would be too sure."""
    rng = np.random.default_rng(2)
    correct = rng.random((200, 16)) < rng.beta(0.3, 0.3, size=(200, 1))
    width = {
        name: np.diff(metrics.bootstrap(values)[["low", "high"]].iloc[0])[0]
        for name, values in [("problems", correct.mean(axis=1)), ("samples", correct.ravel())]
    }
    assert width["problems"] > 2 * width["samples"]


def test_paired_interval_is_narrower_where_problems_decide():
    rng = np.random.default_rng(3)
    base = pd.Series(rng.beta(0.5, 0.5, size=400))
    better = (base + rng.normal(0.03, 0.05, size=400)).rename(base.name)
    paired = metrics.bootstrap(better, base).iloc[0]
    alone = [metrics.bootstrap(values, seed=seed).iloc[0] for seed, values in enumerate([better, base])]
    unpaired = np.hypot(*[row["high"] - row["low"] for row in alone])
    assert paired["estimate"] == pytest.approx(alone[0]["estimate"] - alone[1]["estimate"])
    assert paired["high"] - paired["low"] < unpaired / 4
    assert paired["low"] > 0


def test_pairing_is_by_problem_not_by_position():
    values = pd.Series([0.1, 0.5, 0.9], index=[3, 1, 2])
    row = metrics.bootstrap(values, values.sort_index()).iloc[0]
    assert row[["estimate", "low", "high"]].tolist() == [0, 0, 0]


def test_bootstrap_is_deterministic_and_shares_resamples():
    values = pd.DataFrame(np.random.default_rng(4).random((50, 2)), columns=["a", "b"])
    first = metrics.bootstrap(values, draws=2500, seed=7)
    pd.testing.assert_frame_equal(first, metrics.bootstrap(values, draws=2500, seed=7))
    pd.testing.assert_frame_equal(first.loc[["b"]], metrics.bootstrap(values[["b"]], draws=2500, seed=7))
    assert not first.equals(metrics.bootstrap(values, draws=2500, seed=8))


def test_bootstrap_refuses_unequal_problems_and_gaps():
    values = pd.Series([0.1, 0.2])
    with pytest.raises(ValueError, match="same problems"):
        metrics.bootstrap(values, pd.Series([0.1, 0.2, 0.3]))
    with pytest.raises(ValueError, match="missing scores"):
        metrics.bootstrap(pd.Series([0.1, np.nan]))


def two_methods(seed=0, problems=60, runs=("a", "b")):
    """Judged completions of two methods, four samples a problem, two runs (seeds) each."""
    rng, rows = np.random.default_rng(seed), []
    for method, shift in [("sft/free", 0.0), ("rloo/sparse", 0.2)]:
        for run in runs:
            correct = rng.random((problems, 4)) < np.linspace(0.1, 0.7, problems)[:, None] + shift
            rows += [
                (method, f"{method}_{run}", "test", i, "correct" if hit else "missing")
                for i, hits in enumerate(correct)
                for hit in hits
            ]
    return pd.DataFrame(rows, columns=["method", "run", "set", "problem", "status"])


def test_estimates_and_differences_agree_with_the_table_by_hand():
    judged = two_methods()
    scores = metrics.problem_scores(metrics.counts(judged), ks=(1, 4, 8), mean_to=(2,))
    table = metrics.estimates(scores, draws=500).set_index(["set", "method", "metric"])
    share = (judged["status"] == "correct").groupby(judged["method"]).mean()
    for method in share.index:
        row = table.loc[("test", method, "pass@1")]
        assert row["estimate"] == pytest.approx(share[method]) and row["low"] < row["estimate"] < row["high"]
        assert row["n_problems"] == 60
    assert set(table.index.get_level_values("metric")) == {"pass@1", "pass@4", "mean pass@k<=2"}  # no pass@8

    pairs = [("rloo/sparse", "sft/free"), ("preference/ipo", "sft/free")]  # nobody ran ipo
    gap = metrics.differences(scores, pairs, draws=500).set_index("metric")
    assert set(gap["method"]) == {"rloo/sparse"} and len(gap) == 3
    assert gap.loc["pass@1", "estimate"] == pytest.approx(share["rloo/sparse"] - share["sft/free"])
    runs = judged.assign(hit=judged["status"] == "correct").groupby(["run", "problem"])["hit"].mean().unstack("run")
    by_run = [(runs[f"rloo/sparse_{run}"] - runs[f"sft/free_{run}"]).to_numpy() for run in "ab"]
    problems = np.random.default_rng(0).integers(60, size=(500, 60))
    chosen = np.random.default_rng([0, 1]).integers(2, size=(500, 1))
    naive = [np.mean([by_run[i][some] for i in of]) for some, of in zip(problems, chosen, strict=True)]
    assert gap.loc["pass@1", ["low", "high"]].tolist() == pytest.approx(np.quantile(naive, [0.025, 0.975]).tolist())


def of_runs(values) -> pd.Series:
    """(runs, problems) as a series by problem and run."""
    return pd.DataFrame(values).rename_axis("run").rename_axis("problem", axis=1).stack()


def test_the_bootstrap_of_several_runs():
    rng = np.random.default_rng(0)
    one = rng.random(200)
    alone, thrice = metrics.bootstrap(pd.Series(one)), metrics.bootstrap(of_runs([one, one, one]))
    pd.testing.assert_frame_equal(alone, thrice)  # runs that agree tell nothing more
    spread = metrics.bootstrap(of_runs([one - 0.1, one, one + 0.1])).iloc[0]
    assert spread["low"] < alone["low"].item() - 0.03 and spread["high"] > alone["high"].item() + 0.03
    assert spread["estimate"] == pytest.approx(one.mean())
    paired = metrics.bootstrap(of_runs([one - 0.1, one, one + 0.1]), of_runs([one - 0.2, one - 0.1, one])).iloc[0]
    assert paired[["estimate", "low", "high"]].tolist() == pytest.approx([0.1] * 3)  # run beside run
    mixed = metrics.bootstrap(of_runs([one, one, one]), pd.Series(one)).iloc[0]  # three runs against one
    assert mixed[["estimate", "low", "high"]].tolist() == pytest.approx([0] * 3)
    lacking = metrics.bootstrap(of_runs([one, one]).drop(index=(1, 7))).iloc[0]
    assert lacking["n_problems"] == 199


def test_the_interval_over_runs_covers_a_method_beyond_its_runs():
    rng, covered, narrow = np.random.default_rng(1), 0, 0
    for seed in range(200):
        runs = 0.5 + rng.normal(0, 0.02, (4, 1)) + rng.normal(0, 0.2, (4, 100))
        wide, average = of_runs(runs), pd.Series(runs.mean(axis=0))
        intervals = [metrics.bootstrap(values, draws=400, seed=seed).iloc[0] for values in (wide, average)]
        hits = [row["low"] <= 0.5 <= row["high"] for row in intervals]
        covered, narrow = covered + hits[0], narrow + hits[1]
    assert covered > 0.88 * 200 > narrow


def test_methods_of_a_set_must_answer_the_same_problems():
    judged = two_methods()
    scores = metrics.problem_scores(metrics.counts(judged), ks=(1,), mean_to=())
    lost = scores.drop(index=[key for key in scores.index if key[0] == "sft/free" and key[3] == 7])
    with pytest.raises(ValueError, match="missing scores"):
        metrics.estimates(lost, draws=100)


def test_across_seeds():
    mean, low, high = metrics.across_seeds([1.0, 2.0, 3.0])
    half = 4.302653 / np.sqrt(3)  # t quantile of two degrees of freedom, standard deviation 1
    assert (mean, low, high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-5)
    assert metrics.across_seeds([0.4])[0] == 0.4 and np.isnan(metrics.across_seeds([0.4])[1:]).all()


def test_what_a_run_is_stands_in_its_record(tmp_path):
    record = {"run": "sample/numbers56_sft_free", "method": "sft/free", "seed": 2, "profile": "laptop"}
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert metrics.told(tmp_path) == {"run": "sample/numbers56_sft_free/2", "method": "sft/free", "seed": 2}


@pytest.mark.parametrize(
    ("low", "high", "direction", "seeds", "expected"),
    [
        (0.01, 0.05, "higher", 3, "reproduced"),
        (0.01, 0.05, "lower", 3, "not reproduced"),
        (-0.05, -0.01, "lower", 3, "reproduced"),
        (-0.05, -0.01, "higher", 3, "not reproduced"),
        (-0.01, 0.05, "higher", 3, "undecided"),
        (0.0, 0.0, "lower", 3, "undecided"),  # the same answers on every problem
        (-0.01, 0.05, "equal", 3, "not contradicted"),
        (0.01, 0.05, "equal", 3, "not reproduced"),
        (0.01, 0.05, "higher", 1, "one seed"),
        (0.01, 0.05, "higher", 2, "two seeds"),
    ],
)
def test_answer(low, high, direction, seeds, expected):
    assert metrics.answer(low, high, direction, seeds) == expected


def test_answer_knows_no_other_direction():
    with pytest.raises(ValueError, match="'highest'"):
        metrics.answer(0, 1, "highest", 3)


def test_intervals_as_text():
    table = pd.DataFrame({"estimate": [0.5781, -0.0012], "low": [0.541, -0.02], "high": [0.612, 0.0]})
    assert metrics.as_text(table).tolist()[0] == "57.8 [54.1, 61.2]"
    assert metrics.as_text(table, signed=True).tolist()[1] == "-0.1 [-2.0, +0.0]"


def test_crossover_draws():
    rng = np.random.default_rng(0)
    baseline = rng.uniform(size=(200, 8))
    assert set(metrics.crossover_draws(baseline, baseline, draws=50)) == {9}  # never above: one beyond the last
    later = baseline + np.where(np.arange(8) < 3, -0.1, 0.1)
    assert set(metrics.crossover_draws(later, baseline, draws=50)) == {4}
    noisy = baseline + rng.normal(0, 1, size=(200, 8))
    drawn = metrics.crossover_draws(noisy, baseline, draws=500)
    assert drawn[0] == (metrics.crossover(noisy.mean(axis=0), baseline.mean(axis=0)) or 9)
    assert len(drawn) == 501 and len(set(drawn)) > 3
    assert (drawn == metrics.crossover_draws(noisy, baseline, draws=500)).all()


def test_share_is_a_ratio_of_totals_with_its_interval():
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([["m"], ["r1", "r2"], ["s"], range(400)], names=NAMES)
    whole = pd.Series(rng.poisson(20 * rng.gamma(1, size=800)), index, dtype=float)
    part = pd.Series(rng.binomial(whole.astype(int), rng.beta(1, 5, size=800)), index, dtype=float)
    score = metrics.share(part, whole)
    for run in ("r1", "r2"):
        mine = [values.xs(run, level="run").to_numpy() for values in (part, whole, score)]
        assert mine[2].mean() == pytest.approx(mine[0].sum() / mine[1].sum())
        picks = rng.integers(400, size=(4000, 400))
        direct = np.quantile(mine[0][picks].sum(axis=1) / mine[1][picks].sum(axis=1), [0.025, 0.975])
        found = metrics.bootstrap(pd.Series(mine[2]), draws=4000).iloc[0]
        np.testing.assert_allclose(found[["low", "high"]].astype(float), direct, atol=0.15 * np.ptp(direct))
    assert metrics.share(0 * part, 0 * whole).isna().all()


NAMES = ["method", "run", "set", "problem"]


def searched(rows):
    names = [*NAMES, "completion", "answer", "status", "tokens", "equations", "true", "distinct", "signs"]
    return pd.DataFrame(rows, columns=names).assign(seed=0)


SEARCHED = [
    ("a", "r", "s", 0, "t1", "1 + (2 + 3)", "correct", 10, 4, 3, 3, 4),
    ("a", "r", "s", 0, "t1", "1 + (2 + 3)", "correct", 10, 4, 3, 3, 4),
    ("a", "r", "s", 0, "t2", "3 + (1 + 2)", "correct", 20, 2, 2, 2, 5),
    ("a", "r", "s", 0, "t3", "3 * (1 + 1)", "wrong_numbers", 40, 0, 0, 0, 1),
    ("a", "r", "s", 1, "t4", "", "missing", 40, 10, 10, 5, 10),
]


@pytest.mark.parametrize("merged", [False, True])
def test_exploration_by_hand(merged):
    rows = searched(SEARCHED)
    if merged:
        rows = rows.groupby(list(rows)).size().rename("count").reset_index()
    scores = metrics.exploration(rows).loc[("a", "r", "s")]
    means = scores.mean()
    assert scores["equations per response"].tolist() == [10 / 4, 10]
    assert scores["distinct equations per response"].tolist() == [8 / 4, 5]
    assert means["repeated equations"] == pytest.approx(7 / 20)
    assert means["correct equations"] == pytest.approx(18 / 20)
    assert means["recovery"] == pytest.approx(2 / 3)
    assert means["equations read"] == pytest.approx(20 / 24)
    assert scores["wrong_numbers"].tolist() == [1 / 4, 0] and scores["tokens per response"].tolist() == [20, 40]
    assert scores["distinct completions"].tolist() == [3, 1]
    assert scores["distinct correct solutions"].tolist() == [2, 0]
    assert scores["distinct up to associativity"].tolist() == [1, 0]


def test_matched_length():
    def of(method, lengths, run="r"):
        return [(method, run, "s", 0, f"{method}{i}", "", "missing", n, 0, 0, 0, 0) for i, n in enumerate(lengths)]

    rows = searched([*of("a", [1, 2, 3, 20, 40]), *of("b", [5, 21, 22, 60])])
    kept = metrics.matched_length(rows, width=16)
    classes = kept.groupby("method")["tokens"].agg(lambda tokens: sorted(n // 16 for n in tokens))
    assert classes["a"] == classes["b"] == [0, 1]
    assert metrics.matched_length(rows, width=16, seed=0).equals(kept)
    seeds = searched([*of("a", [1, 1]), *of("b", [1, 1])]).assign(seed=[0, 0, 1, 1])
    assert metrics.matched_length(seeds).empty  # a seed is matched with the same seed
    merged = metrics.matched_length(rows.assign(count=3))
    each = pd.concat([rows.iloc[::-1]] * 3, ignore_index=True)  # the same completions, a row of its own for each
    apart = metrics.matched_length(each)
    assert len(merged) == 3 * len(kept)
    pd.testing.assert_frame_equal(merged.reset_index(drop=True), apart.reset_index(drop=True))


def test_differences_where_a_method_lacks_a_statistic_or_all():
    scores = metrics.problem_scores(metrics.counts(two_methods()), ks=(1,), mean_to=())
    scores["only"] = scores["pass@1"].where(scores.index.get_level_values("method") == "sft/free")
    found = metrics.differences(scores, [("rloo/sparse", "sft/free")], draws=50)
    assert "only" not in set(found["metric"]) and "pass@1" in set(found["metric"])
    none = metrics.differences(scores, [("rloo/sparse", "nobody")], draws=50)
    assert none.empty and list(none) == list(found)


def test_searched_by_hand():
    """Two searches of one problem: the best game misses and the second hits; no game at all."""
    about = {"set": "test_50", "problem": 0, "nums": [2, 3], "target": 6, "beams": 16, "samples": 16, "rerank": "soft"}
    about |= {"temperature": 0.9, "weight": 1.0, "alpha": 0.2, "beta": 0.05, "sampled": 16}
    about |= {"unreadable": 3, "number not there": 1, "division by zero": 0}
    games = [(0, 0, "<answer>2 + 3</answer>"), (0, 1, "<answer>2 * 3</answer>"), (1, 0, "")]
    rows = [about | {"sample": sample, "rank": rank, "completion": game} for sample, rank, game in games]
    table = metrics.searched(judge(pd.DataFrame(rows)))
    assert table[["pass@1", "any", "score", "rejected"]].values.tolist() == [[0, 1, 0.1, 0.25], [0, 0, 0, 0.25]]
    assert set(table["system"]) == {"16/16 +soft T0.9 sampled"}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8))
def test_the_front_is_what_nothing_dominates(points):
    def beaten(one):
        return any(all(b >= a for a, b in zip(one, other, strict=True)) and other != one for other in points)

    assert metrics.on_front(np.array(points)).tolist() == [not beaten(one) for one in points]


def test_the_front_over_resampled_problems():
    rng = np.random.default_rng(0)
    names = ["method", "run", "set", "problem"]
    means = {"first": (0.6, 0.5), "covers": (0.3, 0.9), "beaten": (0.2, 0.4), "close": (0.3, 0.9)}
    rows = {
        (method, method, "s", problem): (rng.random(2) < mean).astype(float)
        for method, mean in means.items()
        for problem in range(200)
    }
    scores = pd.DataFrame(rows, index=["pass@1", "pass@16"]).T.rename_axis(names)
    table = metrics.front(scores, ["pass@1", "pass@16"], draws=600)
    assert table.loc["first"].tolist() == [True, 1] and table.loc["beaten", "front"] == 0
    assert 0.2 < table.loc["covers", "front"] + table.loc["close", "front"] <= 2
    assert table["on front"].tolist() == metrics.on_front(scores.groupby("method").mean().to_numpy()).tolist()


def test_answers_are_all_known():
    asked = [
        (low, high, direction, seeds)
        for low, high in [(-1, 1), (1, 2), (-2, -1)]
        for direction in ("higher", "equal")
        for seeds in (1, 2, 3)
    ]
    assert {metrics.answer(*each) for each in asked} | {"not run"} == set(metrics.ANSWERS)
