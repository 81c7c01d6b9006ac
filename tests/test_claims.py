"""Every kind of claim, answered from scores whose truth is known; and the file of claims itself."""

import numpy as np
import pandas as pd
import pytest

from lib import claims
from lib.files import PAPER, ROOT
from lib.problem import EVALUATION_SETS

NAN = float("nan")


@pytest.mark.parametrize(
    ("low", "high", "direction", "seeds", "theirs", "margin", "expected"),
    [
        (0.01, 0.05, "higher", 3, NAN, NAN, "reproduced"),
        (0.01, 0.05, "lower", 3, NAN, NAN, "not reproduced"),
        (-0.05, -0.01, "lowest", 3, NAN, NAN, "reproduced"),
        (-0.05, -0.01, "highest", 2, NAN, NAN, "not reproduced"),
        (-0.01, 0.05, "higher", 3, NAN, NAN, "undecided"),
        (-0.01, 0.05, "higher", 3, 0.04, NAN, "undecided"),
        (-0.01, 0.05, "higher", 3, 0.06, NAN, "paper's size excluded"),
        (-0.05, 0.01, "lower", 3, -0.06, NAN, "paper's size excluded"),
        (-0.05, 0.01, "lower", 3, 0.06, NAN, "undecided"),  # theirs is on the other side
        (0.0, 0.0, "lower", 3, NAN, NAN, "undecided"),  # the same answers on every problem
        (-0.01, 0.02, "higher", 3, NAN, 0.03, "level"),
        (-0.02, 0.01, "lower", 3, NAN, 0.03, "level"),
        (-0.01, 0.02, "higher", 3, 0.025, 0.03, "paper's size excluded"),  # what it says more of the paper
        (-0.01, 0.04, "higher", 3, NAN, 0.03, "undecided"),
        (0.01, 0.02, "higher", 3, NAN, 0.03, "reproduced"),  # told apart: what was claimed
        (-0.02, -0.01, "higher", 3, NAN, 0.03, "not reproduced"),
        (-0.01, 0.02, "higher", 1, NAN, 0.03, "one seed"),
        (-0.01, 0.02, "equal", 3, NAN, 0.03, "equivalent"),
        (0.01, 0.02, "equal", 3, NAN, 0.03, "equivalent"),  # told apart, and of no size
        (-0.01, 0.04, "equal", 3, NAN, 0.03, "undecided"),
        (0.04, 0.06, "equal", 3, NAN, 0.03, "not reproduced"),
        (-0.06, -0.04, "zero", 3, NAN, 0.03, "not reproduced"),
        (0.01, 0.05, "higher", 1, 0.9, NAN, "one seed"),
    ],
)
def test_answer(low, high, direction, seeds, theirs, margin, expected):
    assert claims.answer(low, high, direction, seeds, theirs, margin) == expected
    assert expected in claims.ANSWERS


@pytest.mark.parametrize(("freedom", "expected"), [(0, "one seed"), (3, "one seed"), (4, "reproduced")])
def test_one_seed_decides_with_a_variance_that_was_borrowed(freedom, expected):
    assert claims.answer(0.01, 0.05, "higher", 1, freedom=freedom) == expected


def scores(levels, runs=3, problems=400, seed=0):
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
    row |= {"problem_set": "test_50", "paper_metric": "pass@1"} | about
    return pd.DataFrame([{"paper_runs": row["runs"]} | row])


def answered(levels, **about):
    return claims.evaluate(asked(**about), scores(levels)).iloc[0]


def test_a_lead_a_factor_and_a_bound():
    levels = {"rloo/a": 0.5, "rloo/b": 0.3}
    row = answered(levels)
    assert row["answer"] == "reproduced" and row["estimate"] == pytest.approx(0.2, abs=0.02)
    assert row[["against", "seeds", "n_problems", "comparisons"]].tolist() == ["rloo/b", 3, 400, 1]
    assert answered(levels, factor=2)["answer"] == "not reproduced"  # .5 is not double .3
    assert answered(levels | {"rloo/a": 0.7}, factor=2)["answer"] == "reproduced"
    assert answered(levels, runs="rloo/b", direction="lower", bound=0.4)["answer"] == "reproduced"
    assert answered(levels, runs="rloo/a", direction="lower", bound=0.4)["answer"] == "not reproduced"


def test_changes_from_each_ones_own_start():
    levels = {"rloo/a": 0.3, "rloo/b": 0.5, "sft/a": 0.1, "sft/b": 0.45}
    assert answered(levels)["answer"] == "not reproduced"
    row = answered(levels, starts="sft/a;sft/b")  # .2 against .05
    assert row["answer"] == "reproduced" and row["estimate"] == pytest.approx(0.15, abs=0.03)
    row = answered(levels, starts="sft/a;sft/a")  # the same start: cancels
    assert row["estimate"] == pytest.approx(-0.2, abs=0.03)
    row = answered(levels, starts="sft/a;sft/a", factor=0.5)  # .2 is no more than half of .4: .2 - .2
    assert row["estimate"] == pytest.approx(0.0, abs=0.03)
    assert answered(levels, starts="sft/a;sft/a", factor=0.4)["answer"] == "reproduced"


def test_the_weakest_of_several_comparisons_answers():
    levels = {"rloo/a": 0.5, "rloo/b": 0.3, "rloo/c": 0.7, "sft/d": (0.2, 1), "rloo/e": (0.2, 1)}
    row = answered(levels, runs="rloo/a;rloo/b;rloo/c", direction="highest")
    assert row[["answer", "against", "comparisons"]].tolist() == ["not reproduced", "rloo/c", 2]
    assert answered(levels, runs="rloo/c;rloo/a;rloo/b", direction="highest")["answer"] == "reproduced"
    assert answered(levels, runs="rloo/c;rloo/a;sft/d", direction="highest")["answer"] == "one seed"
    assert answered(levels, runs="rloo/c;rloo/a;rloo/e", direction="highest")["answer"] == "reproduced"
    less = {"rloo/a": 0.5, "rloo/e": (0.2, 1)}  # two degrees of freedom to borrow
    assert answered(less, runs="rloo/a;rloo/e")[["answer", "freedom"]].tolist() == ["one seed", 2]
    assert answered(levels, runs="rloo/c;rloo/a;rloo/nobody", direction="highest")["answer"] == "not run"
    with pytest.raises(ValueError, match="'higher' compares two methods"):
        answered(levels, runs="rloo/a;rloo/b;rloo/c")


def test_the_chosen_regime_answers_what_it_has():
    here, there = scores({"rloo/a": 0.5, "rloo/b": 0.3, "rloo/c": 0.1}), scores({"rloo/a": 0.3, "rloo/b": 0.5})
    rows = [asked(), asked(id="c", runs="rloo/a;rloo/c"), asked(id="set", set="test_50"), asked(id="m", metric="legal")]
    rows = pd.concat(rows, ignore_index=True)
    found = claims.evaluate(rows, here.assign(legal=here["pass@1"]), chosen=there).set_index("id")["answer"]
    assert found.to_dict() == {"ast-1": "not reproduced", "c": "reproduced", "set": "not run", "m": "reproduced"}
    assert claims.evaluate(rows[:1], here)["answer"].tolist() == ["reproduced"]


def test_equal_and_zero():
    levels = {"rloo/a": 0.5, "rloo/b": 0.5, "rloo/c": 0.0}
    assert answered(levels, direction="equal", margin=0.05)["answer"] == "equivalent"
    assert answered(levels, direction="equal", margin=0.001)["answer"] == "undecided"
    assert answered(levels, runs="rloo/c", direction="zero", margin=0.1)["answer"] == "equivalent"
    assert answered(levels, runs="rloo/c;rloo/a", direction="zero", margin=0.1)["answer"] == "not reproduced"


def test_what_is_no_contrast_of_means_is_handed_in():
    row = claims.evaluate(asked(metric="crossover"), scores({"rloo/a": 0.5}), {"ast-1": (-3.0, -5.0, -1.0, 3)}).iloc[0]
    assert row[["estimate", "answer"]].tolist() == [-3.0, "not reproduced"]
    assert answered({"rloo/a": 0.5}, metric="crossover")["answer"] == "not run"
    taus = ";".join(f"rloo/ast_tau{tau}" for tau in (2, 1, 3, 4))  # in the paper tau 3 never overtakes: of no size
    never = asked(metric="crossover", runs=taus, direction="lowest", paper_runs=taus, paper_metric="crossover")
    row = claims.evaluate(never, scores({"rloo/a": 0.5}), {"ast-1": (0.0, -16.0, 16.0, 2)}).iloc[0]
    assert row["answer"] == "undecided"
    assert answered({"rloo/a": 0.5, "rloo/b": 0.5}, set="test_50")["answer"] == "not run"


def test_the_papers_size():
    """AST's lead of 4.77 points at sixteen samples (Table 1); here there is none."""
    about = {"runs": "rloo/ast_tau2;rloo/sparse", "paper_runs": "rloo/ast_tau2;rloo/sparse", "paper_metric": "pass@16"}
    drawn = [scores({"rloo/ast_tau2": 0.5, "rloo/sparse": 0.5}, seed=seed) for seed in range(20)]
    rows = pd.concat(claims.evaluate(asked(**about), draw) for draw in drawn)
    np.testing.assert_allclose(rows["theirs"].astype(float), 0.0477, atol=1e-4)
    assert (rows["answer"] == "paper's size excluded").sum() >= 17  # one draw in twenty misses the truth


@pytest.mark.parametrize(("lead", "expected"), [(0.0, 0.8), (0.03, 0.1)])
def test_level_is_rarely_said_of_a_lead_that_matters(lead, expected):
    """Of a true lead as large as the margin two draws in a hundred say so; of none nearly all."""
    drawn = [scores({"rloo/a": 0.5 + lead, "rloo/b": 0.5}, seed=seed) for seed in range(40)]
    said = pd.concat(claims.evaluate(asked(margin=0.03), draw) for draw in drawn)["answer"].eq("level").mean()
    assert said <= expected if lead else said >= expected


def test_the_file_of_claims():
    planned = claims.planned()
    assert planned["id"].is_unique and len(planned) >= 132
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
    assert sum(len(claims.comparisons(claim)) for claim in planned.itertuples()) == COMPARISONS
    solved = planned["metric"].str.fullmatch(r"(mean )?pass@(k<=)?\d+|any|likeliest") & planned["direction"].ne("zero")
    plain = solved & planned["bound"].eq(0) & planned["factor"].eq(1) & planned["id"].ne("coverage-11")
    assert (planned.loc[plain, "margin"] == 0.03).all(), "one margin for all shares of problems solved"


COMPARISONS = 213  # said by 90_compare_all: planned beforehand, and no more


@pytest.mark.parametrize(
    ("change", "says"),
    [({"direction": "above"}, "'above' is none of"), ({"direction": "equal", "margin": NAN}, "needs a margin")],
)
def test_a_claim_that_says_too_little_is_named(change, says, tmp_path, monkeypatch):
    pd.read_csv(PAPER / "claims.csv").head(3).assign(**change).to_csv(tmp_path / "claims.csv")
    monkeypatch.setattr(claims, "PAPER", tmp_path)
    with pytest.raises(ValueError, match=f"claims.csv, ast-1: .*{says}"):
        claims.planned()
