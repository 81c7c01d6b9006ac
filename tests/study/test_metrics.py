"""pass@k against enumeration; scores and diagnostics against tables that were counted by hand."""

from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.files import PAPER
from lib.study import metrics
from lib.study.judging import judge
from tests.game.test_traces import LISTING_2


def enumerated(n, c, k):
    """Share of the k-subsets of n samples that hold at least one of the first c."""
    subsets = list(combinations(range(n), k))
    return sum(min(subset) < c for subset in subsets) / len(subsets)


@given(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
)
def test_pass_at_k_is_the_share_of_subsets(case):
    assert metrics.pass_at_k(*case) == pytest.approx(enumerated(*case), abs=1e-12)


def test_pass_at_k_by_hand():
    # four samples, one correct: one of four singles, three of six pairs, three of four triples hold
    # it
    np.testing.assert_allclose(metrics.pass_at_k(4, 1, [1, 2, 3, 4]), [1 / 4, 1 / 2, 3 / 4, 1])


@given(
    st.integers(1, 1000).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))
    )
)
def test_pass_at_k_is_stable_for_many_samples(case):
    n, c, k = case
    exact = (comb(n, k) - comb(n - c, k)) / comb(n, k)  # integers of any size, one rounding
    assert metrics.pass_at_k(n, c, k) == pytest.approx(exact, abs=1e-12)


def test_pass_at_k_shapes_and_range():
    n = np.full((3, 2), 16)
    c = np.arange(6).reshape(3, 2)
    curve = metrics.pass_at_k(n, c, np.arange(1, 17))
    assert curve.shape == (3, 2, 16) and metrics.pass_at_k(n, c, 4).shape == (3, 2)
    assert (np.diff(curve) >= 0).all()
    assert (
        (curve[..., 0] == pytest.approx(c / 16))
        and (curve[0, 0] == 0).all()
        and curve[2, 1, 11] == 1
    )


@pytest.mark.parametrize(
    ("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1), ([4, 8], [1, 1], 6)]
)
def test_pass_at_k_refuses_what_it_cannot_estimate(n, c, k):
    with pytest.raises(ValueError, match=r"pass@k needs"):
        metrics.pass_at_k(n, c, k)


def crossover(challenger, baseline) -> int:
    return metrics.crossover_draws([challenger], [baseline], draws=1)[0]


def test_crossover():
    baseline = [0.5, 0.6, 0.7, 0.8]
    assert crossover([0.4, 0.6, 0.71, 0.7], baseline) == 3  # equal is not above
    assert crossover([0.6, 0.5, 0.5, 0.5], baseline) == 1
    assert crossover(baseline, baseline) == 5  # none: one beyond the last


def test_the_papers_crossover_lies_between_its_reported_points():
    results = pd.read_csv(PAPER / "results.csv").query("paper == 'ast' and table == 'Table 1'")
    table = results.pivot(index="method", columns="metric", values="value")[
        ["pass@1", "pass@8", "pass@16"]
    ]
    second = 2  # of the three points: k = 8
    assert crossover(table.loc["rloo/ast_tau2"], table.loc["rloo/sparse"]) == second


NAMES = [
    "method",
    "run",
    "seed",
    "set",
    "problem",
    "completion",
    "solution",
    "status",
    "tokens",
    "finish",
    "count",
]
ROWS = [
    ("sft/free", "sample/sft_free", 0, "test", 0, "a", "1 + 2", "correct", 10, "stop", 2),
    ("sft/free", "sample/sft_free", 0, "test", 0, "b", "1 + 2", "correct", 20, "stop", 1),
    ("sft/free", "sample/sft_free", 0, "test", 0, "c", "", "missing", 40, "length", 1),
    ("sft/free", "sample/sft_free", 0, "test", 1, "d", "3 * 4", "wrong_value", 5, "stop", 2),
    ("sft/free", "sample/sft_free", 0, "test", 1, "e", "3 + 3", "wrong_numbers", 5, "stop", 1),
    ("sft/free", "sample/sft_free", 0, "test", 1, "f", "2 * 6", "correct", 5, "stop", 1),
]


def judged(rows, **columns):
    table = pd.DataFrame(rows, columns=NAMES).assign(style="free", **columns)
    return table.assign(correct=table["status"] == "correct")


def test_counts_and_scores():
    counts = metrics.counts(judged(ROWS))
    assert counts.index.names == metrics.KEYS and counts.to_dict("list") == {
        "n": [4, 4],
        "c": [3, 1],
    }
    scores = metrics.problem_scores(counts, ks=(1, 2, 4, 8), mean_to=(2, 16))
    assert list(scores) == [
        "pass@1",
        "pass@2",
        "pass@4",
        "pass@8",
        "mean pass@k<=2",
        "mean pass@k<=16",
    ]
    np.testing.assert_allclose(scores["pass@1"], [3 / 4, 1 / 4])
    np.testing.assert_allclose(scores["pass@2"], [1, 1 / 2])
    np.testing.assert_allclose(scores["pass@4"], [1, 1])  # four samples are enough for four
    np.testing.assert_allclose(scores["mean pass@k<=2"], [7 / 8, 3 / 8])
    # four samples say nothing about eight
    assert scores[["pass@8", "mean pass@k<=16"]].isna().all(axis=None)


def test_a_number_of_samples_that_is_not_whole():
    index = pd.MultiIndex.from_tuples(
        [("a", 0, "s", 0), ("a", 0, "s", 1), ("b", 0, "s", 0)], names=metrics.KEYS
    )
    counts = pd.DataFrame({"n": [4, 4, 4], "c": [1, 0, 2]}, index=index)
    found = metrics.solved_with(counts, pd.Series({"a": 2.25, "b": 3.0}))
    assert found.tolist() == pytest.approx([0.75 * 2 / 4 + 0.25 * 3 / 4, 0.0, 1.0])
    with pytest.raises(ValueError, match="k=0"):
        metrics.solved_with(counts, pd.Series({"a": 0.5}))


def test_the_mean_length_is_that_of_all_text_scores():
    table = judged([*ROWS, (*ROWS[0][:4], 2, *ROWS[0][5:])])  # a third problem, with fewer samples
    expected = metrics.text_scores(table)["tokens"].groupby("method").mean()
    pd.testing.assert_series_equal(metrics.mean_tokens(table), expected, check_names=False)


def test_text_scores_and_diagnostics_by_hand():
    first, second = metrics.text_scores(judged(ROWS)).to_dict("records")
    assert (
        first["correct"] == 3 / 4 and second["wrong_value"] == 1 / 2 and first["missing"] == 1 / 4
    )
    assert first["tokens"] == 20 and first["at cap"] == 1 / 4 and second["at cap"] == 0
    assert first["distinct completions"] == second["distinct completions"] == 3
    assert first["distinct correct answers"] == 1  # "1 + 2" twice written
    both = pd.concat([judged(ROWS), judged(ROWS).assign(seed=1)])
    one, two = (
        metrics.diagnostics(rows).loc[("test", "sft/free")] for rows in (judged(ROWS), both)
    )
    assert (
        one["samples"] == 8
        and two["samples"] == 16
        and two.drop("samples").equals(one.drop("samples"))
    )
    assert one[metrics.STATUSES].tolist() == [4 / 8, 2 / 8, 1 / 8, 0, 1 / 8]
    answers = judged(ROWS, expression=["1 + 2", "1 + 2", "", "3 * 4", "3 + 3", "2 * 6"])
    # right or wrong; "" is none
    assert metrics.text_scores(answers)["distinct expressions"].tolist() == [1, 3]
    none = metrics.text_scores(judged([row for row in ROWS if row[7] != "correct"]))
    assert none["distinct correct answers"].tolist() == [0, 0]


def test_the_checks_of_programs_by_hand():
    columns = {
        "passed": [5, 5, 0, 4, 3, 5],
        "assignments": [1, 2, 0, 2, 1, 1],
        "complete": [1, 1, 0, 1, 0, 1],
    }
    table = judged(ROWS, **columns, attempts=7).assign(style="program")
    first, second = metrics.text_scores(table).to_dict("records")
    assert first["parse"] == 3 / 4 and first["reward"] == 3 / 4 and first["lost at format"] == 1 / 4
    assert second["reward"] == pytest.approx((0.5 * 2 + 0.3 + 1) / 4)
    assert second["lost at target"] == pytest.approx(0.25) and second[
        "lost at numbers"
    ] == pytest.approx(0.175)
    assert first["lost in meaning - lost in form"] == -1 / 4 and first["attempts"] == 3 / 4
    assert first["one line"] == 1 / 2 and second["one line"] == 1 / 2
    free = metrics.text_scores(judged(ROWS, **columns, attempts=7))
    assert free["one line"].isna().all() and (free["attempts"] == 7).all()


def test_a_look_may_say_nothing_of_a_completion():
    table = judged(
        ROWS, **{"goes_on": [1.0, 0.0, float("nan"), float("nan"), float("nan"), float("nan")]}
    )
    scores = metrics.text_scores(table)["goes_on"].tolist()
    assert scores[0] == pytest.approx(2 / 3) and np.isnan(scores[1])


def test_share_is_a_ratio_of_totals_with_its_interval():
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([["m"], [0, 1], ["s"], range(400)], names=metrics.KEYS)
    whole = pd.Series(rng.poisson(20 * rng.gamma(1, size=800)), index, dtype=float)
    part = pd.Series(rng.binomial(whole.astype(int), rng.beta(1, 5, size=800)), index, dtype=float)
    score = metrics.share(part, whole)
    for run in (0, 1):
        mine = [values.xs(run, level="seed").to_numpy() for values in (part, whole, score)]
        assert mine[2].mean() == pytest.approx(mine[0].sum() / mine[1].sum())
        picks = rng.integers(400, size=(4000, 400))
        direct = np.std(mine[0][picks].sum(axis=1) / mine[1][picks].sum(axis=1))
        assert mine[2].std(ddof=1) / 20 == pytest.approx(direct, rel=0.1)
    assert metrics.share(0 * part, 0 * whole).isna().all()


def searched(rows, merged=True):
    names = [
        "method",
        "run",
        "seed",
        "set",
        "problem",
        "completion",
        "solution",
        "status",
        "tokens",
    ]
    table = pd.DataFrame(rows, columns=[*names, "equations", "true", "distinct", "signs", "count"])
    return table.assign(correct=table["status"] == "correct")


def test_exploration_by_hand():
    rows = [
        ("a", "r", 0, "s", 0, "t1", "1 + (2 + 3)", "correct", 10, 4, 3, 3, 4, 2),
        ("a", "r", 0, "s", 0, "t2", "3 + (1 + 2)", "correct", 20, 2, 2, 2, 5, 1),
        ("a", "r", 0, "s", 0, "t3", "3 * (1 + 1)", "wrong_numbers", 40, 0, 0, 0, 1, 1),
        ("a", "r", 0, "s", 1, "t4", "", "missing", 40, 10, 10, 5, 10, 1),
    ]
    scores = metrics.exploration(searched(rows)).loc[("a", 0, "s")]
    means = scores.mean()
    assert scores["equations per response"].tolist() == [10 / 4, 10]
    assert scores["distinct equations per response"].tolist() == [8 / 4, 5]
    assert means["repeated equations"] == pytest.approx(7 / 20)
    assert means["correct equations"] == pytest.approx(18 / 20)
    assert means["recovery"] == pytest.approx(2 / 3)
    assert means["equations read"] == pytest.approx(20 / 24)
    assert scores["wrong_numbers"].tolist() == [1 / 4, 0] and scores[
        "tokens per response"
    ].tolist() == [20, 40]
    assert scores["distinct completions"].tolist() == [3, 1]
    assert scores["distinct correct solutions"].tolist() == [2, 0]
    assert scores["distinct up to associativity"].tolist() == [1, 0]
    # one row per completion, as matched_length gives them
    apart = searched(rows).loc[[0, 0, 1, 2, 3]].assign(count=1)
    assert metrics.exploration(apart).loc[("a", 0, "s"), "distinct completions"].tolist() == [3, 1]


def test_matched_length():
    def of(method, lengths, seed=0):
        return [
            (method, method, seed, "s", 0, f"{method}{i}", "", "", n, 0, 0, 0, 0, 1)
            for i, n in enumerate(lengths)
        ]

    rows = searched([*of("a", [1, 2, 3, 20, 40]), *of("b", [5, 21, 22, 60])])
    kept = metrics.matched_length(rows, width=16)
    classes = kept.groupby("method")["tokens"].agg(lambda tokens: sorted(n // 16 for n in tokens))
    assert classes["a"] == classes["b"] == [0, 1] and (kept["count"] == 1).all()
    assert metrics.matched_length(rows, width=16, seed=0).equals(kept)
    # seed with seed
    assert metrics.matched_length(searched([*of("a", [1, 1], 0), *of("b", [1, 1], 1)])).empty
    assert len(metrics.matched_length(rows.assign(count=3))) == 3 * len(kept)
    elsewhere = rows.where(rows["method"] == "b", rows.assign(problem=1))
    assert metrics.matched_length(elsewhere, width=16).empty  # problem with problem
    assert metrics.matched_length(
        elsewhere.assign(set=elsewhere["problem"].map(str), problem=0), width=16
    ).empty


def test_matched_completions_are_drawn_at_random_and_by_the_seed_alone():
    lengths = {"a": [1] * 8, "b": [1]}
    rows = [
        (m, m, 0, "s", 0, f"{m}{i}", "", "", n, 0, 0, 0, 0, 1)
        for m in lengths
        for i, n in enumerate(lengths[m])
    ]
    table = searched(rows)
    drawn = [set(metrics.matched_length(table, seed=seed)["completion"]) for seed in range(5)]
    assert all(len(one) == 2 for one in drawn) and len(set(map(frozenset, drawn))) > 1
    assert [
        set(metrics.matched_length(table[::-1], seed=seed)["completion"]) for seed in range(5)
    ] == drawn


def test_what_a_log_says_by_hand():
    steps = {
        "step": range(1, 11),
        "kl": np.arange(10.0),
        "bucket0": 0.5,
        "bucket1": np.linspace(0.5, 0.9, 10),
    }
    log = pd.DataFrame({"method": "rloo/a", "seed": 0} | steps)
    wanted = [
        "change of kl",
        "growth of kl",
        "late change of kl",
        "late kl",
        "highest kl",
        "late nothing",
    ]
    wanted += ["highest largest share"]
    found = metrics.log_scores(log, [*wanted, "pass@1"]).loc[("rloo/a", 0)]
    # first fifth 0 and 1, last 8 and 9; of the second half 5..9 the first 5, the last 9
    by_hand = {
        "change of kl": 8,
        "growth of kl": np.log(8.5 / 0.5),
        "late change of kl": 4,
        "late kl": 8.5,
    }
    assert found.to_dict() == pytest.approx(
        by_hand | {"highest kl": 9, "highest largest share": 1.8}
    )
    # measured every other step: 1 3 5 7 9
    gaps = log.assign(kl=log["kl"].where(log["step"] % 2 == 0))
    assert metrics.log_scores(gaps, wanted).loc[("rloo/a", 0), "change of kl"] == 8
    # of seven steps a fifth is two, and the second half is the last four, of which a fifth is one
    seven = metrics.log_scores(log[:7], wanted).loc[("rloo/a", 0)]
    assert seven[["change of kl", "late change of kl"]].tolist() == [5.5 - 0.5, 6 - 3]


def test_the_largest_share_counts_the_buckets_of_its_own_run():
    log = pd.DataFrame(
        {"method": "rloo/a", "seed": [0, 1], "bucket0": [0.75, 0.75], "bucket1": [0.25, 0.125]}
    )
    log["bucket2"] = [np.nan, 0.125]  # only the second run has three buckets
    assert metrics.log_scores(log, ["late largest share"])["late largest share"].tolist() == [
        1.5,
        2.25,
    ]


def test_intervals_as_text():
    table = pd.DataFrame(
        {"estimate": [0.5781, -0.0012], "low": [0.541, -0.02], "high": [0.612, 0.0]}
    )
    assert metrics.as_text(table).tolist()[0] == "57.8 [54.1, 61.2]"
    assert metrics.as_text(table, signed=True).tolist()[1] == "-0.1 [-2.0, +0.0]"
    # some metrics are differences, and stand in one table with others
    named = table.assign(metric=["pass@1 minus start", *["pass@1"] * (len(table) - 1)])
    assert metrics.as_text(named).tolist()[0] == "+57.8 [+54.1, +61.2]"
    assert metrics.as_text(named).tolist()[1:] == metrics.as_text(table).tolist()[1:]


def test_crossover_draws():
    rng = np.random.default_rng(0)
    baseline = rng.uniform(size=(200, 8))
    # never above: one beyond the last
    assert set(metrics.crossover_draws(baseline, baseline, draws=50)) == {9}
    later = baseline + np.where(np.arange(8) < 3, -0.1, 0.1)
    assert set(metrics.crossover_draws(later, baseline, draws=50)) == {4}
    noisy = baseline + rng.normal(0, 1, size=(200, 8))
    drawn = metrics.crossover_draws(noisy, baseline, draws=500)
    assert drawn[0] == crossover(noisy.mean(axis=0), baseline.mean(axis=0))
    assert len(drawn) == 501 and len(set(drawn)) > 3
    assert (drawn == metrics.crossover_draws(noisy, baseline, draws=500)).all()


def test_crossovers_by_their_draws():
    """Of the means over runs, on every set that has both methods, up to the largest k that both
    have."""
    rng = np.random.default_rng(0)
    ks = np.arange(1, 61)
    problems = pd.MultiIndex.from_product([["s"], range(40)], names=metrics.KEYS[2:])
    chances = {("sft/a", seed): np.full((40, 60), 0.5) for seed in (0, 1)}
    gaps = 0.02 * (ks - 30) + rng.normal(0, 1, (40, 1))
    chances |= {("rloo/b", seed): 0.5 + gaps + shift for seed, shift in ((0, 0.3), (1, -0.3))}
    columns = [f"pass@{k}" for k in ks]
    parts = {key: pd.DataFrame(table, problems, columns) for key, table in chances.items()}
    scores = pd.concat(parts, names=metrics.KEYS[:2])
    found = metrics.crossovers(scores.assign(tokens=9), [("rloo/b", "sft/a"), ("rloo/c", "sft/a")])
    assert found[["set", "method", "baseline"]].values.tolist() == [["s", "rloo/b", "sft/a"]]
    drawn = metrics.crossover_draws(gaps, 0 * gaps)
    ends = [np.sort(drawn[1:])[round(share * 9999)] for share in (0.025, 0.975)]
    assert found[["estimate", "low", "high"]].iloc[0].tolist() == [drawn[0], *ends]
    few = {key: part.iloc[:, :2] if key[0] == "sft/a" else part for key, part in parts.items()}
    few_samples = metrics.crossovers(pd.concat(few, names=metrics.KEYS[:2]), [("rloo/b", "sft/a")])
    assert few_samples["estimate"].tolist() == [3]  # at one and at two samples it is not above


def test_a_table_of_text_by_hand():
    rows = [
        ("b", "pass@1", 0.5, 0.4, 0.6),
        ("a", "pass@1", 0.25, 0.2, 0.3),
        ("b", "pass@16", 0.9, 0.8, 1.0),
    ]
    table = pd.DataFrame(
        [*rows, ("b", "tokens", 1, 1, 1)], columns=["method", "metric", "estimate", "low", "high"]
    )
    paper = pd.Series({("b", "pass@1"): 47.25, ("c", "pass@1"): 3.0})
    shown = metrics.as_table(table, ["a", "b", "c"], ["pass@16", "pass@1"], paper, digits=2)
    assert shown.index.tolist() == ["a", "b"] and shown.columns.tolist() == ["pass@16", "pass@1"]
    assert shown.values.tolist() == [
        ["", "25.0 [20.0, 30.0]"],
        ["90.0 [80.0, 100.0]", "50.0 [40.0, 60.0] (47.25)"],
    ]
    differences = metrics.as_table(table.assign(baseline="c"), ["a"], ["pass@1"])
    assert differences.values.tolist() == [["+25.0 [+20.0, +30.0]"]]


def test_a_wide_table_of_text_by_hand():
    columns = ["set", "method", "metric", "estimate", "low", "high"]
    rows = [("s", "b", "pass@1", 0.5, 0.4, 0.6), ("s", "a", "pass@16", 0.9, 0.8, 1.0)]
    table = pd.DataFrame(rows, columns=columns)
    shown = metrics.as_wide(table, ["pass@16", "pass@1", "tokens"])
    assert [*shown.columns] == ["pass@16", "pass@1", "tokens"]
    assert shown.loc[("s", "b"), "pass@1"] == "50.0 [40.0, 60.0]"
    assert shown.loc[("s", "a")].isna().tolist() == [False, True, True]
    counts = metrics.as_wide(table, ["pass@1"], ["method"], scale=1, digits=2)
    assert counts.loc["b", "pass@1"] == "0.50 [0.40, 0.60]"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8))
def test_the_front_is_what_nothing_dominates(points):
    def beats(other, one):
        return other != one and all(b >= a for a, b in zip(one, other, strict=True))

    def beaten(one):
        return any(beats(other, one) for other in points)

    assert metrics.on_front(np.array(points)).tolist() == [not beaten(one) for one in points]


def test_the_front_over_resampled_problems():
    rng = np.random.default_rng(0)
    means = {"first": (0.6, 0.5), "covers": (0.3, 0.9), "beaten": (0.2, 0.4), "close": (0.3, 0.9)}
    rows = {
        (method, 0, "s", problem): (rng.random(2) < mean).astype(float)
        for method, mean in means.items()
        for problem in range(200)
    }
    scores = pd.DataFrame(rows, index=["pass@1", "pass@16"]).T.rename_axis(metrics.KEYS)
    table = metrics.front(scores, ["pass@1", "pass@16"], draws=600)
    assert table.loc["first"].tolist() == [True, 1] and table.loc["beaten", "front"] == 0
    assert 0.2 < table.loc["covers", "front"] + table.loc["close", "front"] <= 2
    assert (
        table["on front"].tolist()
        == metrics.on_front(scores.groupby("method").mean().to_numpy()).tolist()
    )


def test_equal_means_are_equal_in_whatever_order_they_were_added_up():
    scores = {("a", 0, "s", problem): (x, 1.0) for problem, x in enumerate((0.1, 0.2, 0.3))}
    scores |= {("b", 0, "s", problem): (x, 1.0) for problem, x in enumerate((0.3, 0.2, 0.1))}
    table = pd.DataFrame(scores, index=["pass@1", "pass@16"]).T.rename_axis(metrics.KEYS)
    assert metrics.front(table, ["pass@1", "pass@16"], draws=1)["on front"].all()


# `trace`, Listing 2, whose answer uses what the trace made, and a right answer in its place
RIGHT = LISTING_2.replace("((126 - 27) - 8)", "79 + 47 - 27 - 8")
GUESSED = "<think>\nstate [8, 27, 47, 79]\n</think>\n<answer>79 + 47 - 27 - 8</answer>"
LOOPED = """<think>
state [8, 27, 47, 80]
state [8, 27, 47, 80]
try 8 + 27 = 35
try 8 + 27 = 35, 91? no
try 79 - 47 = 32, 19? no
</think>
<answer>8</answer>"""


def traces(*texts: tuple[str, int]) -> pd.DataFrame:
    """Completions of one problem, each drawn so many times, judged as traces."""
    table = pd.DataFrame(texts, columns=["completion", "count"])
    table = table.assign(nums=[[79, 8, 27, 47]] * len(texts), target=91, finish="stop")
    for kind in ("answer", "trace"):
        table = judge(table, "trace", kind)
    return table.assign(method="sft/trace", seed=0, set="heldout_1000", problem=0)


def test_how_an_answer_follows_from_its_trace():
    """Of ten completions six are right, one of them without a trace to the target; three lose the
    target at the end."""
    found = metrics.grounding(traces((LISTING_2, 3), (RIGHT, 5), (GUESSED, 1), (LOOPED, 1))).iloc[0]
    assert found["reached where correct"] == pytest.approx(5 / 6)
    assert (
        found["reached without a correct answer"] == found["repair gain"] == pytest.approx(3 / 10)
    )
    assert found["failures that a repair mends"] == pytest.approx(3 / 4)


def test_what_the_lines_of_traces_look_like():
    broken = RIGHT.replace("state [8, 27, 47, 79]", "state 8, 27, 47, 79]")
    table = traces(
        (RIGHT, 2), (LOOPED, 1), ("<think>\n</think>\n<answer>8</answer>", 1), (broken, 1)
    )
    found = metrics.trace_habits(table).iloc[0]
    assert found["no trace"] == pytest.approx(1 / 5)
    assert found["problem copied"] == pytest.approx(2 / 4), (
        "80 for 79; no trace; a bracket is missing"
    )
    assert found["target named right"] == pytest.approx(1 / 2), "91 and 19"
    assert found["repeated states"] == pytest.approx(1 / 13), "one of 2 x 4 + 2 + 3"
    assert found["valid tries"] == pytest.approx((3 * 3 + 1) / 5), (
        "8 + 27 again, and 79 - 47 from a pool without them"
    )


def test_a_text_says_nothing_of_what_was_not_measured():
    """No estimate: no text. No interval, as of a single run: the estimate alone."""
    nan = float("nan")
    rows = [(0.5, 0.4, 0.6), (0.5, nan, nan), (nan, nan, nan)]
    table = pd.DataFrame(rows, columns=["estimate", "low", "high"])
    assert [*metrics.as_text(table)] == ["50.0 [40.0, 60.0]", "50.0", ""]
