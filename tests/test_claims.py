"""Every kind of claim, answered from scores for which the truth is known; and the file of claims itself."""

import re
import subprocess

import numpy as np
import pandas as pd
import pytest

from lib.files import PAPER, ROOT
from lib.game.problem import EVALUATION_SETS
from lib.study import claims

NAN = float("nan")


@pytest.mark.parametrize(
    ("low", "high", "direction", "seeds", "margin", "expected"),
    [
        (0.01, 0.05, "higher", 3, NAN, "holds"),
        (0.01, 0.05, "lower", 3, NAN, "reversed"),
        (-0.05, -0.01, "lowest", 3, NAN, "holds"),
        (-0.05, -0.01, "highest", 2, NAN, "reversed"),
        (-0.01, 0.05, "higher", 3, NAN, "open"),
        (0.0, 0.0, "lower", 3, NAN, "open"),  # the same answers on every problem
        (0.01, 0.05, "higher", 1, NAN, "open"),  # one run
        (NAN, NAN, "higher", 3, NAN, "open"),
        (-0.01, 0.02, "equal", 3, 0.03, "holds"),
        (0.01, 0.02, "equal", 3, 0.03, "holds"),  # it differs, and by nothing that matters
        (-0.01, 0.04, "equal", 3, 0.03, "open"),
        (-0.01, 0.03, "equal", 3, 0.03, "open"),  # an end on the margin is neither within it nor beyond it
        (-0.03, 0.01, "zero", 3, 0.03, "open"),
        (0.03, 0.06, "equal", 3, 0.03, "open"),
        (-0.06, -0.03, "zero", 3, 0.03, "open"),
        (0.0, 0.05, "higher", 3, NAN, "open"),
        (0.04, 0.06, "equal", 3, 0.03, "reversed"),
        (-0.06, -0.04, "zero", 3, 0.03, "reversed"),
        (-0.01, 0.02, "equal", 1, 0.03, "open"),
    ],
)
def test_direction(low, high, direction, seeds, margin, expected):
    assert claims.answer(low, high, direction, seeds, margin) == expected
    assert expected in claims.ANSWERS


@pytest.mark.parametrize(
    ("low", "high", "direction", "theirs", "expected"),
    [
        (0.01, 0.05, "higher", 0.04, "as large"),
        (0.01, 0.05, "higher", 0.06, "smaller"),
        (0.01, 0.05, "higher", 0.005, "larger"),
        (0.01, 0.05, "higher", 0.05, "as large"),  # the ends belong to the interval
        (0.01, 0.05, "higher", 0.01, "as large"),
        (0.0, 0.05, "higher", 0.04, "unknown"),
        (-0.01, 0.05, "higher", 0.06, "smaller"),  # whatever its direction
        (-0.01, 0.05, "higher", 0.04, "unknown"),  # it holds both
        (-0.05, -0.01, "higher", 0.04, "smaller"),
        (-0.05, -0.01, "lower", -0.04, "as large"),
        (-0.05, 0.01, "lower", -0.06, "smaller"),
        (0.01, 0.05, "higher", NAN, "unknown"),
        (0.01, 0.05, "higher", -0.02, "unknown"),  # the paper's own number does not support its claim
        (-0.01, 0.01, "equal", 0.0, "unknown"),
    ],
)
def test_size_beside_the_papers(low, high, direction, theirs, expected):
    assert claims.size(low, high, direction, theirs) == expected


def scores(levels, runs=4, problems=400, seed=0):
    """Scores of methods with the same problems: their level, the problem's difficulty, runs that differ by .005."""
    rng, parts = np.random.default_rng(seed), {}
    hard = rng.normal(0, 0.2, problems)
    for method, level in levels.items():
        for run in range(runs if not isinstance(level, tuple) else level[1]):
            mean = level[0] if isinstance(level, tuple) else level
            parts[method, run, "heldout_1000"] = pd.Series(
                mean + hard + rng.normal(0, 0.005) + rng.normal(0, 0.05, problems)
            )
    return pd.concat(parts, names=["method", "seed", "set", "problem"]).to_frame("pass@1")


def asked(**about):
    row = {
        "id": "ast-1",
        "paper": "ast",
        "runs": "rloo/a;rloo/b",
        "starts": "",
        "metric": "pass@1",
    }
    row |= {"set": "heldout_1000", "direction": "higher", "bound": 0.0, "factor": 1.0, "margin": NAN}
    row |= {"problem_set": "test_50", "paper_metric": "pass@1", "changed": ""} | about
    return pd.DataFrame([{"paper_runs": row["runs"]} | row])


def answered(levels, **about):
    return claims.evaluate(asked(**about), scores(levels)).iloc[0]


def test_a_lead_a_factor_and_a_bound():
    levels = {"rloo/a": 0.5, "rloo/b": 0.3}
    row = answered(levels)
    assert row["answer"] == "holds" and row["estimate"] == pytest.approx(0.2, abs=0.02)
    assert row[["against", "seeds", "n_problems", "comparisons"]].tolist() == ["rloo/b", 4, 400, 1]
    assert answered(levels, factor=2)["answer"] == "reversed"  # .5 is not double .3
    assert answered(levels | {"rloo/a": 0.7}, factor=2)["answer"] == "holds"
    assert answered(levels, runs="rloo/b", direction="lower", bound=0.4)["answer"] == "holds"
    assert answered(levels, runs="rloo/a", direction="lower", bound=0.4)["answer"] == "reversed"


def test_changes_from_each_ones_own_start():
    levels = {"rloo/a": 0.3, "rloo/b": 0.5, "sft/a": 0.1, "sft/b": 0.45}
    assert answered(levels)["answer"] == "reversed"
    row = answered(levels, starts="sft/a;sft/b")  # .2 against .05
    assert row["answer"] == "holds" and row["estimate"] == pytest.approx(0.15, abs=0.03)
    row = answered(levels, starts="sft/a;sft/a")  # the same start: cancels
    assert row["estimate"] == pytest.approx(-0.2, abs=0.03)
    row = answered(levels, starts="sft/a;sft/a", factor=0.5)  # .2 is no more than half of .4: .2 - .2
    assert row["estimate"] == pytest.approx(0.0, abs=0.03)
    assert answered(levels, starts="sft/a;sft/a", factor=0.4)["answer"] == "holds"
    claim = next(asked(starts="sft/a;sft/b").itertuples())  # all policies of a paper start from one policy
    assert claims.comparisons(claim, in_paper=True) == [{"rloo/a": 1.0, "rloo/b": -1.0}]


def test_the_weakest_of_several_comparisons_answers():
    levels = {"rloo/a": 0.5, "rloo/b": 0.3, "rloo/c": 0.7, "sft/d": (0.2, 1), "rloo/e": (0.2, 1)}
    row = answered(levels, runs="rloo/a;rloo/b;rloo/c", direction="highest")
    assert row[["answer", "against", "comparisons"]].tolist() == ["reversed", "rloo/c", 2]
    assert answered(levels, runs="rloo/c;rloo/a;rloo/b", direction="highest")["answer"] == "holds"
    row = answered(levels, runs="rloo/c;rloo/a;sft/d", direction="highest")
    assert row[["answer", "seeds", "size"]].tolist() == ["open", 1, "unknown"]  # trained once
    assert np.isnan(row["p"])
    assert answered(levels, runs="rloo/c;rloo/a;rloo/nobody", direction="highest")["answer"] == "not run"
    with pytest.raises(ValueError, match="'higher' compares two methods"):
        answered(levels, runs="rloo/a;rloo/b;rloo/c")


def test_equal_and_zero():
    levels = {"rloo/a": 0.5, "rloo/b": 0.5, "rloo/c": 0.0}
    assert answered(levels, direction="equal", margin=0.05)["answer"] == "holds"
    edge = abs(answered(levels)["estimate"])
    assert answered(levels, direction="equal", margin=edge)["answer"] == "open"
    assert answered(levels, runs="rloo/c", direction="zero", margin=0.1)["answer"] == "holds"
    assert answered(levels, runs="rloo/c;rloo/a", direction="zero", margin=0.1)["answer"] == "reversed"


def test_what_is_no_contrast_of_means_is_handed_in():
    row = claims.evaluate(asked(metric="crossover"), scores({"rloo/a": 0.5}), {"ast-1": (-3.0, -5.0, -1.0, 3)}).iloc[0]
    assert row[["estimate", "answer"]].tolist() == [-3.0, "reversed"]
    assert answered({"rloo/a": 0.5}, metric="crossover")["answer"] == "not run"
    taus = ";".join(f"rloo/ast_tau{tau}" for tau in (2, 1, 3, 4))  # in the paper tau 3 never overtakes: of no size
    never = asked(metric="crossover", runs=taus, direction="lowest", paper_runs=taus, paper_metric="crossover")
    row = claims.evaluate(never, scores({"rloo/a": 0.5}), {"ast-1": (0.0, -16.0, 16.0, 2)}).iloc[0]
    assert row[["answer", "size"]].tolist() == ["open", "unknown"]
    assert answered({"rloo/a": 0.5, "rloo/b": 0.5}, set="test_50")["answer"] == "not run"


def test_of_equal_answers_that_with_the_least_lead_stands():
    levels = {"rloo/a": 0.9, "rloo/b": 0.3, "rloo/c": 0.5, "rloo/d": 0.1}
    assert answered(levels, runs="rloo/a;rloo/b;rloo/c;rloo/d", direction="highest")["against"] == "rloo/c"
    assert answered(levels, runs="rloo/d;rloo/b;rloo/a;rloo/c", direction="lowest")["against"] == "rloo/b"
    best = {"runs": "rloo/d;rloo/b;rloo/a", "direction": "highest"}
    assert answered(levels, **best)[["against", "answer"]].tolist() == ["rloo/a", "reversed"]
    near = {"rloo/a": 0.02, "rloo/b": -0.08, "rloo/c": 0.04}  # all within the margin, and b is farthest from zero
    row = answered(near, runs="rloo/a;rloo/b;rloo/c", direction="zero", margin=0.3)
    assert row["answer"] == "holds" and row["estimate"] == answered(near, runs="rloo/b")["estimate"]


def test_the_papers_least_lead_is_asked():
    """`dense`: IPO's leads over four RL variants are .08, .08, .04 and .04 (Table 1), whichever is least here."""
    runs = "preference/ipo;rloo/sparse;rloo/dense;rloo/curriculum;rloo/hybrid"
    about = {"paper": "dense", "runs": runs, "direction": "highest", "metric": "pass@16", "paper_metric": "pass@16"}
    claim = next(asked(**about).itertuples())
    paper = pd.read_csv(PAPER / "results.csv")
    value = paper.assign(value=paper["value"] / 100).drop_duplicates(["paper", "method", "set", "metric"])
    value = value.set_index(["paper", "method", "set", "metric"])["value"]
    leads = [value["dense", "preference/ipo", "test_50", "pass@16"] - value["dense", other, "test_50", "pass@16"]
             for other in runs.split(";")[1:]]  # fmt: skip
    assert claims.reported(claim, value) == pytest.approx(min(leads)) and len(set(np.round(leads, 6))) > 1


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"runs": "rloo/a;rloo/b;rloo/c", "direction": "highest"}, 0.1),
        ({"runs": "rloo/a;rloo/b;rloo/c", "direction": "lowest"}, 0.3),  # the lead that helps the claim least
        ({"runs": "rloo/b;rloo/c", "direction": "zero"}, 0.4),
        ({"runs": "rloo/d;rloo/b", "direction": "zero"}, -0.6),  # the one that is farthest from zero
        ({"runs": "rloo/a", "bound": 0.45}, 0.05),
        ({"runs": "rloo/a;rloo/b", "bound": 0.05}, 0.05),
        ({"runs": "rloo/a;rloo/b", "factor": 2.0}, -0.3),
        ({"runs": "rloo/d;rloo/e", "bound": 0.05}, 0.15),  # the paper gives the difference alone
        ({"runs": "rloo/a;rloo/e"}, NAN),
    ],
)
def test_the_papers_value_by_hand(about, expected):
    levels = {"rloo/a": 0.5, "rloo/b": 0.4, "rloo/c": 0.2, "rloo/d": -0.6, "rloo/d - rloo/e": 0.2}
    values = pd.Series({("ast", name, "test_50", "pass@1"): level for name, level in levels.items()})
    claim = next(asked(**about).itertuples())
    assert claims.reported(claim, values) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("metric", "expected"), [("correct", 219 / 800), ("any correct", 35 / 50), ("at cap", NAN)])
def test_what_a_paper_counts_is_read_as_a_share(metric, expected):
    """`trace`, Table 5: 219 of 800 rollouts of SFT are correct, on 35 problems of 50."""
    row = answered({"sft/trace": 0.3}, paper="trace", runs="sft/trace", bound=0.1, paper_metric=metric)
    assert row["theirs"] == pytest.approx(expected - 0.1, nan_ok=True)


ABOUT = {"runs": "rloo/ast_tau2;rloo/sparse", "paper_runs": "rloo/ast_tau2;rloo/sparse", "paper_metric": "pass@16"}


def test_the_papers_number_has_an_error_too():
    """AST's lead of 4.77 points at sixteen samples (Table 1), of 50 problems and one run a side. Where there is none
    here, our number is smaller; but such a run may well show 4.77 by chance. Thirty points less it does not show."""
    levels = {"rloo/ast_tau2": 0.5, "rloo/sparse": 0.5}
    noisy = pd.concat({seed: scores(levels, runs=5, seed=seed) for seed in range(10)})
    rng = np.random.default_rng(0)
    noisy["pass@1"] += rng.normal(0, 0.15, len(noisy))
    rows = pd.concat(claims.evaluate(asked(**ABOUT), noisy.loc[seed]) for seed in range(10))
    np.testing.assert_allclose(rows["theirs"].astype(float), 0.0477, atol=1e-4)
    assert (rows["size"] == "smaller").sum() >= 8 and not rows["contradicts"].any()
    np.testing.assert_allclose(rows["error"].astype(float), np.sqrt(2) * np.hypot(0.158 / np.sqrt(50), 0.005), rtol=0.2)
    never = scores(levels, runs=5) * 0
    assert claims.evaluate(asked(**ABOUT), never)["contradicts"].isna().all()  # what a run would miss by is not known
    far = claims.evaluate(asked(**ABOUT), scores({"rloo/ast_tau2": 0.2, "rloo/sparse": 0.5}, runs=5)).iloc[0]
    assert far["contradicts"] and far["answer"] == "reversed"


def test_a_wide_interval_of_ours_contradicts_no_paper():
    """Two runs that differ by ten points allow for a paper's lead that lies thirty points away."""
    table = scores({"rloo/ast_tau2": 0.85, "rloo/sparse": 0.5}, runs=2).rename(columns={"pass@1": "solved"})
    moved = table["solved"].add(0.05 - 0.1 * table.index.get_level_values("seed").to_numpy())
    table["solved"] = moved.where(table.index.get_level_values("method") == "rloo/ast_tau2", table["solved"])
    row = claims.evaluate(asked(metric="solved", **ABOUT), table).iloc[0]
    assert abs(row["estimate"] - row["theirs"]) > 1.96 * row["error"] > 0 and not row["borrowed"]
    assert row["low"] < row["theirs"] < row["high"] and not row["contradicts"]


def test_the_error_of_the_papers_number_is_that_of_its_set():
    levels = {"rloo/ast_tau2": 0.5, "rloo/sparse": 0.5}
    few, many = (answered(levels, **ABOUT, problem_set=name) for name in ("test_50", "heldout_400"))
    assert many["theirs"] == pytest.approx(0.0375)
    assert many["error"] < few["error"] < np.sqrt(8) * many["error"], "of 400 problems in place of 50"


def test_within_three_points_is_asked_of_shares_of_problems_solved():
    levels = {"rloo/a": 0.515, "rloo/b": 0.5, "rloo/c": 0.7}
    row = claims.evaluate(asked(), scores(levels, runs=8)).iloc[0]
    assert row["within"] and row["answer"] == "holds"  # it differs, and by nothing that matters
    assert not answered(levels, runs="rloo/c;rloo/b")["within"]
    tokens = scores(levels).rename(columns={"pass@1": "tokens"})
    assert pd.isna(claims.evaluate(asked(metric="tokens"), tokens).iloc[0]["within"])
    assert pd.isna(answered(levels, bound=0.1)["within"])
    assert pd.isna(answered(levels, factor=1.03)["within"])


def table(*rows):
    names = ["id", "paper", "answer", "estimate", "p", "changed", "metric"]
    about = {"runs": "rloo/a;rloo/b", "against": "rloo/b", "set": "s", "n_problems": 9, "bound": 0.0}
    about |= {"paper_metric": "pass@1", "within": True, "contradicts": pd.NA, "direction": "higher"}
    return pd.DataFrame(rows, columns=names).assign(**about)


def test_a_claim_of_equality_asks_something_else_than_one_of_a_direction():
    both = table(*[(name, "ast", "open", 0.1, 0.01, "", "pass@16") for name in ("ast-1", "ast-2", "ast-3")])
    assert len(claims.distinct(both)) == 1
    assert len(claims.distinct(both.assign(direction=["lower", "equal", "higher"]))) == 2


def test_claims_are_of_the_same_numbers_if_methods_set_and_size_are_the_same():
    both = table(*[(name, "ast", "open", 0.1, 0.01, "", "pass@16") for name in ("ast-1", "ast-2")])
    swapped = {"runs": ["rloo/a;rloo/b", "rloo/b;rloo/a"], "against": ["rloo/b", "rloo/a"], "estimate": [0.1, -0.1]}
    assert len(claims.distinct(both.assign(**swapped))) == 1
    assert len(claims.distinct(both.assign(estimate=[0.1, 0.05], bound=[0.0, 0.05]))) == 1  # both are a lead of .1
    assert len(claims.distinct(both.assign(set=["s", "t"]))) == 2
    assert len(claims.distinct(both.assign(estimate=NAN, answer="not run"))) == 2


def test_what_several_claims_ask_of_the_same_numbers_counts_once():
    found = claims.tally(
        table(
            ("ast-1", "ast", "holds", 0.1, 0.01, "", "pass@16"),
            ("ast-2", "ast", "reversed", -0.1, 0.01, "", "pass@16"),  # asked the other way round
            ("ast-3", "ast", "holds", 0.1, 0.01, "", "pass@1"),
            ("ast-3b", "ast", "open", 0.2, 0.5, "abc: asked otherwise", "pass@1"),
            ("coverage-1", "coverage", "holds", 0.1, 0.01, "", "pass@16"),
            ("agent-1", "agent", "reversed", -0.3, 0.01, "", "pass@1"),
            ("agent-1b", "agent", "holds", 0.4, 0.01, "abc: the other reading", "any"),
        )
    )
    assert list(found.columns) == ["holds", "open", "reversed", "not run", "within 3 points", "contradict the paper"]
    assert found.loc["`ast`"].tolist() == [2, 0, 0, 0, 2, 0]
    assert found.loc["`ast`, posed again"].tolist() == [0, 1, 0, 0, 1, 0]
    assert found.loc["`coverage`"].tolist()[:3] == [1, 0, 0]
    assert found.loc["all, as first posed"].tolist()[:3] == [2, 0, 1]  # ast-1, ast-2 and coverage-1 are one
    assert found.loc["`agent`, the trajectory that is selected"].tolist()[:3] == [0, 0, 1]
    assert found.loc["`agent`, any trajectory that is kept"].tolist()[:3] == [1, 0, 0]


def test_q_is_of_a_papers_tests_together():
    """In the published table that notebook 90 writes: p m / rank, the least of these from the largest p down."""
    published = pd.read_csv(ROOT / "figures/grand_claims.csv")
    tested = published[published["p"].notna()]
    assert len(tested) > 150 and published["q"].notna().equals(published["p"].notna())
    for _, one in tested.groupby("paper"):
        ordered = one.sort_values("p")
        shares = ordered["p"] * len(one) / np.arange(1, len(one) + 1)
        assert ordered["q"].tolist() == pytest.approx(shares[::-1].cummin()[::-1].tolist(), rel=1e-4)


def test_p_of_equality_is_small_far_from_the_margin_on_either_side():
    same = answered({"rloo/a": 0.5, "rloo/b": 0.5}, direction="equal", margin=0.2)
    edge = answered({"rloo/a": 0.5, "rloo/b": 0.5}, direction="equal", margin=abs(same["estimate"]))
    apart = answered({"rloo/a": 0.7, "rloo/b": 0.5}, direction="equal", margin=0.03)
    assert same["p"] < 0.001 and edge["p"] > 0.9 and apart["p"] < 0.001 and apart["answer"] == "reversed"


def test_p_of_a_bound_is_the_error_at_which_the_interval_reaches_it():
    level = answered({"rloo/b": 0.5}, runs="rloo/b")["estimate"]
    at, below = (answered({"rloo/b": 0.5}, runs="rloo/b", bound=bound)["p"] for bound in (level, level - 0.2))
    assert at > 0.999 and below < 0.001


def test_the_file_of_claims():
    planned = claims.planned()
    assert planned["id"].is_unique and len(planned) >= 183
    written = pd.read_csv(PAPER / "claims.csv")
    for column in ("metric", "runs"):  # those of the paper are ours unless the file says otherwise
        paper_column = written[f"paper_{column}"]
        assert planned[f"paper_{column}"].equals(paper_column.where(paper_column.notna(), written[column]))
        assert 0 < paper_column.isna().sum() < len(planned)
    methods = pd.read_csv(ROOT / "data/methods.csv")["method"]
    for claim in planned.itertuples():
        for weights in claims.comparisons(claim):
            assert {method.split(" ")[0] for method in weights} <= set(methods), claim.id
            assert len(weights) <= 4 and claim.claim.endswith("."), claim.id
    assert set(planned["set"].str.split().str[0]) <= {
        *EVALUATION_SETS,
        "training",
        "heldout_1000_n3",
        "heldout_1000_n4",
    }
    margins = planned["direction"].isin(["equal", "zero"])
    assert planned.loc[~margins, "margin"].isna().all(), "no direction needs a margin"
    plain = planned["metric"].str.fullmatch(claims.SOLVED) & planned["direction"].eq("equal")
    assert (planned.loc[plain & planned["id"].ne("coverage-11"), "margin"] == 0.03).all()


def test_what_was_posed_again_keeps_its_first_form():
    planned = claims.planned().set_index("id")
    assert planned["posed"].ne("").all()
    again = [name for name in planned.index if name[-1] in "bc"]
    assert len(again) >= 35 and planned.loc[again, "changed"].ne("").all()
    what = ["runs", "starts", "metric", "set", "direction", "bound", "factor", "margin"]
    for name in again:
        first = name.rstrip("bc")
        assert first in planned.index, name
        assert planned.loc[name, what].fillna(0).tolist() != planned.loc[first, what].fillna(0).tolist(), name
    readings = planned[
        planned["paper"].eq("agent") & planned["metric"].eq("any") & planned["paper_metric"].eq("pass@1")
    ]
    assert len(readings) == 27
    for name in readings.index:  # both readings of the paper's pass@1
        assert planned.loc[name[:-1] if name.endswith("b") else name + "b", "metric"] == "pass@1"


def test_commits_named_are_in_the_history():
    """posed and changed name commits; a clone without history has none to hold them against."""
    planned = claims.planned()
    named = set(planned["posed"]) | set(planned["changed"].str.extract(r"^([0-9a-f]{7}):", expand=False).dropna())
    named = {name for name in named if re.fullmatch("[0-9a-f]{7}", name)}
    assert len(named) >= 10
    found = subprocess.run(["git", "log", "--format=%h", "--", "data/paper/claims.csv"], cwd=ROOT, capture_output=True)
    commits = {line[:7] for line in found.stdout.decode().split()}
    if not {"6945215"} <= commits:
        pytest.skip("no history here")
    assert named <= commits


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"direction": "above"}, "'above' is none of"),
        ({"direction": "equal", "margin": NAN}, "needs a margin"),
        ({"direction": "zero", "margin": 0.0}, "needs a margin"),
        ({"runs": "rloo/a;rloo/b;rloo/a"}, "a method is compared with itself: rloo/a;rloo/b;rloo/a"),
    ],
)
def test_a_claim_that_says_too_little_is_named(change, says, tmp_path, monkeypatch):
    pd.read_csv(PAPER / "claims.csv").head(3).assign(**change).to_csv(tmp_path / "claims.csv")
    monkeypatch.setattr(claims, "PAPER", tmp_path)
    with pytest.raises(ValueError, match=f"claims.csv, ast-1: .*{says}"):
        claims.planned()
