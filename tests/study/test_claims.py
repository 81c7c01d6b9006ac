"""Every kind of claim, answered from scores for which the truth is known; and the file of claims
itself."""

import re
import subprocess

import numpy as np
import pandas as pd
import pytest

from lib.files import PAPER, ROOT
from lib.game.sets import EVALUATION_SETS
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
        # an end on the margin is neither within it nor beyond it
        (-0.01, 0.03, "equal", 3, 0.03, "open"),
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
    ("alone", "excluded", "small", "number", "expected"),
    [
        ("open", True, False, True, "excluded"),
        ("open", True, True, True, "excluded, small"),
        ("holds", False, True, True, "small"),
        ("open", False, True, False, "small"),
        ("holds", False, False, True, "compatible"),
        ("reversed", False, False, True, "compatible"),
        ("reversed", False, False, False, "no number"),
        ("open", False, False, True, "uninformative"),
        ("open", False, False, False, "uninformative"),
    ],
)
def test_size(alone, excluded, small, number, expected):
    assert claims.size(alone, excluded, small, number) == expected


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({}, "rloo/a - rloo/b, pass@1, heldout_1000, beyond 0"),
        (
            {"runs": "rloo/b;rloo/a", "direction": "lower"},
            "rloo/a - rloo/b, pass@1, heldout_1000, beyond 0",
        ),
        ({"bound": 0.1}, "rloo/a - rloo/b, pass@1, heldout_1000, beyond 0.1"),
        (
            {"runs": "rloo/b;rloo/a", "bound": -0.1},
            "rloo/a - rloo/b, pass@1, heldout_1000, beyond 0.1",
        ),
        (
            {"direction": "equal", "margin": 0.03},
            "rloo/a - rloo/b, pass@1, heldout_1000, within 0.03",
        ),
        ({"factor": 2.0}, "rloo/a - 2 rloo/b, pass@1, heldout_1000, beyond 0"),
        ({"runs": "rloo/a", "set": "s"}, "rloo/a, pass@1, s, beyond 0"),
    ],
)
def test_a_hypothesis_is_the_same_whoever_asks_it(about, expected):
    claim = next(asked(**about).itertuples())
    assert claims.hypothesis(claim, claims.comparisons(claim)[0]) == expected


def scores(levels, runs=4, problems=400, seed=0):
    """Scores of methods with the same problems: their level, the problem's difficulty, runs that
    differ by .005."""
    rng = np.random.default_rng(seed)
    parts = {}
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
    row |= {
        "set": "heldout_1000",
        "direction": "higher",
        "bound": 0.0,
        "factor": 1.0,
        "margin": NAN,
    }
    row |= {"problem_set": "test_50", "paper_metric": "pass@1", "changed": ""} | about
    return pd.DataFrame([{"paper_runs": row["runs"]} | row])


def answered(levels, **about):
    return claims.evaluate(asked(**about), scores(levels)).iloc[0]


def test_a_lead_a_factor_and_a_bound():
    levels = {"rloo/a": 0.5, "rloo/b": 0.3}
    row = answered(levels)
    assert row["alone"] == "holds" and row["estimate"] == pytest.approx(0.2, abs=0.02)
    assert row[["against", "seeds", "n_problems", "comparisons"]].tolist() == ["rloo/b", 4, 400, 1]
    assert answered(levels, factor=2)["alone"] == "reversed"  # .5 is not double .3
    assert answered(levels | {"rloo/a": 0.7}, factor=2)["alone"] == "holds"
    assert answered(levels, runs="rloo/b", direction="lower", bound=0.4)["alone"] == "holds"
    assert answered(levels, runs="rloo/a", direction="lower", bound=0.4)["alone"] == "reversed"


def test_changes_from_each_ones_own_start():
    levels = {"rloo/a": 0.3, "rloo/b": 0.5, "sft/a": 0.1, "sft/b": 0.45}
    assert answered(levels)["alone"] == "reversed"
    row = answered(levels, starts="sft/a;sft/b")  # .2 against .05
    assert row["alone"] == "holds" and row["estimate"] == pytest.approx(0.15, abs=0.03)
    row = answered(levels, starts="sft/a;sft/a")  # the same start: cancels
    assert row["estimate"] == pytest.approx(-0.2, abs=0.03)
    # .2 is no more than half of .4: .2 - .2
    row = answered(levels, starts="sft/a;sft/a", factor=0.5)
    assert row["estimate"] == pytest.approx(0.0, abs=0.03)
    assert answered(levels, starts="sft/a;sft/a", factor=0.4)["alone"] == "holds"
    # all policies of a paper start from one policy
    claim = next(asked(starts="sft/a;sft/b").itertuples())
    assert claims.comparisons(claim, in_paper=True) == [{"rloo/a": 1.0, "rloo/b": -1.0}]


def test_the_weakest_of_several_comparisons_answers():
    levels = {"rloo/a": 0.5, "rloo/b": 0.3, "rloo/c": 0.7, "sft/d": (0.2, 1), "rloo/e": (0.2, 1)}
    row = answered(levels, runs="rloo/a;rloo/b;rloo/c", direction="highest")
    assert row[["alone", "against", "comparisons"]].tolist() == ["reversed", "rloo/c", 2]
    assert answered(levels, runs="rloo/c;rloo/a;rloo/b", direction="highest")["alone"] == "holds"
    row = answered(levels, runs="rloo/c;rloo/a;sft/d", direction="highest")
    assert row[["alone", "seeds", "size"]].tolist() == ["open", 1, "uninformative"]  # trained once
    assert np.isnan(row["p"])
    assert (
        answered(levels, runs="rloo/c;rloo/a;rloo/nobody", direction="highest")["alone"]
        == "not run"
    )
    with pytest.raises(ValueError, match="'higher' compares two methods"):
        answered(levels, runs="rloo/a;rloo/b;rloo/c")


def test_equal_and_zero():
    levels = {"rloo/a": 0.5, "rloo/b": 0.5, "rloo/c": 0.0}
    assert answered(levels, direction="equal", margin=0.05)["alone"] == "holds"
    edge = abs(answered(levels)["estimate"])
    assert answered(levels, direction="equal", margin=edge)["alone"] == "open"
    assert answered(levels, runs="rloo/c", direction="zero", margin=0.1)["alone"] == "holds"
    assert (
        answered(levels, runs="rloo/c;rloo/a", direction="zero", margin=0.1)["alone"] == "reversed"
    )


def test_a_claim_says_that_it_rests_on_few_runs():
    levels = {"rloo/a": (0.5, 3), "rloo/b": (0.3, 5)}
    assert answered(levels)["few"] and not answered({"rloo/a": 0.5, "rloo/b": 0.3})["few"]
    row = claims.evaluate(
        asked(), scores({"rloo/a": 0.5}), {"ast-1": (1.0, 0.5, 1.5, 3, 0.01)}
    ).iloc[0]
    assert row["few"] and row["p"] == 0.01


def test_the_detectable_effect_is_that_of_the_interval():
    row = answered({"rloo/a": 0.5, "rloo/b": 0.3})
    half = (row["high"] - row["low"]) / 2
    assert 1.3 * half < row["detectable"] < 1.5 * half
    assert pd.isna(answered({"rloo/a": (0.5, 1), "rloo/b": 0.3})["detectable"])


def test_what_is_no_contrast_of_means_is_handed_in():
    row = claims.evaluate(
        asked(metric="crossover"), scores({"rloo/a": 0.5}), {"ast-1": (-3.0, -5.0, -1.0, 3)}
    ).iloc[0]
    assert row[["estimate", "alone"]].tolist() == [-3.0, "reversed"]
    assert answered({"rloo/a": 0.5}, metric="crossover")["alone"] == "not run"
    # in the paper tau 3 never overtakes: of no size
    taus = ";".join(f"rloo/ast_tau{tau}" for tau in (2, 1, 3, 4))
    never = asked(
        metric="crossover", runs=taus, direction="lowest", paper_runs=taus, paper_metric="crossover"
    )
    row = claims.evaluate(never, scores({"rloo/a": 0.5}), {"ast-1": (0.0, -16.0, 16.0, 2)}).iloc[0]
    assert row[["alone", "size"]].tolist() == ["open", "uninformative"]
    assert answered({"rloo/a": 0.5, "rloo/b": 0.5}, set="test_50")["alone"] == "not run"


def test_of_equal_answers_that_with_the_least_lead_stands():
    levels = {"rloo/a": 0.9, "rloo/b": 0.3, "rloo/c": 0.5, "rloo/d": 0.1}
    assert (
        answered(levels, runs="rloo/a;rloo/b;rloo/c;rloo/d", direction="highest")["against"]
        == "rloo/c"
    )
    assert (
        answered(levels, runs="rloo/d;rloo/b;rloo/a;rloo/c", direction="lowest")["against"]
        == "rloo/b"
    )
    best = {"runs": "rloo/d;rloo/b;rloo/a", "direction": "highest"}
    assert answered(levels, **best)[["against", "alone"]].tolist() == ["rloo/a", "reversed"]
    # all within the margin, and b is farthest from zero
    near = {"rloo/a": 0.02, "rloo/b": -0.08, "rloo/c": 0.04}
    row = answered(near, runs="rloo/a;rloo/b;rloo/c", direction="zero", margin=0.3)
    assert row["alone"] == "holds" and row["estimate"] == answered(near, runs="rloo/b")["estimate"]


def test_the_papers_least_lead_is_asked():
    """`dense`: IPO's leads over four RL variants are .08, .08, .04 and .04 (Table 1), whichever is
    least here."""
    runs = "preference/ipo;rloo/sparse;rloo/dense;rloo/curriculum;rloo/hybrid"
    about = {
        "paper": "dense",
        "runs": runs,
        "direction": "highest",
        "metric": "pass@16",
        "paper_metric": "pass@16",
    }
    claim = next(asked(**about).itertuples())
    paper = pd.read_csv(PAPER / "results.csv")
    value = paper.assign(value=paper["value"] / 100).drop_duplicates(
        ["paper", "method", "set", "metric"]
    )
    value = value.set_index(["paper", "method", "set", "metric"])["value"]
    ipo = value["dense", "preference/ipo", "test_50", "pass@16"]
    leads = [ipo - value["dense", other, "test_50", "pass@16"] for other in runs.split(";")[1:]]
    assert claims.reported(claim, value) == pytest.approx(min(leads))
    assert len(set(np.round(leads, 6))) > 1


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"runs": "rloo/a;rloo/b;rloo/c", "direction": "highest"}, 0.1),
        # the lead that helps the claim least
        ({"runs": "rloo/a;rloo/b;rloo/c", "direction": "lowest"}, 0.3),
        ({"runs": "rloo/b;rloo/c", "direction": "zero"}, 0.4),
        # the one that is farthest from zero
        ({"runs": "rloo/d;rloo/b", "direction": "zero"}, -0.6),
        ({"runs": "rloo/a", "bound": 0.45}, 0.05),
        ({"runs": "rloo/a;rloo/b", "bound": 0.05}, 0.05),
        ({"runs": "rloo/a;rloo/b", "factor": 2.0}, -0.3),
        ({"runs": "rloo/d;rloo/e", "bound": 0.05}, 0.15),  # the paper gives the difference alone
        ({"runs": "rloo/a;rloo/e"}, NAN),
    ],
)
def test_the_papers_value_by_hand(about, expected):
    levels = {"rloo/a": 0.5, "rloo/b": 0.4, "rloo/c": 0.2, "rloo/d": -0.6, "rloo/d - rloo/e": 0.2}
    values = pd.Series(
        {("ast", name, "test_50", "pass@1"): level for name, level in levels.items()}
    )
    claim = next(asked(**about).itertuples())
    assert claims.reported(claim, values) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("metric", "expected"), [("correct", 219 / 800), ("any correct", 35 / 50), ("at cap", NAN)]
)
def test_what_a_paper_counts_is_read_as_a_share(metric, expected):
    """`trace`, Table 5: 219 of 800 rollouts of SFT are correct, on 35 problems of 50."""
    row = answered(
        {"sft/trace": 0.3}, paper="trace", runs="sft/trace", bound=0.1, paper_metric=metric
    )
    assert row["theirs"] == pytest.approx(expected - 0.1, nan_ok=True)


ABOUT = {
    "runs": "rloo/ast_tau2;rloo/sparse",
    "paper_runs": "rloo/ast_tau2;rloo/sparse",
    "paper_metric": "pass@16",
}


def test_the_papers_number_has_an_error_too():
    """AST's lead of 4.77 points at sixteen samples (Table 1), of 50 problems and one run a side.
    Where there is none here, our number is smaller; but such a run may well show 4.77 by chance.
    Thirty points less it does not show."""
    levels = {"rloo/ast_tau2": 0.5, "rloo/sparse": 0.5}
    noisy = pd.concat({seed: scores(levels, runs=5, seed=seed) for seed in range(10)})
    rng = np.random.default_rng(0)
    noisy["pass@1"] += rng.normal(0, 0.15, len(noisy))
    rows = pd.concat(claims.evaluate(asked(**ABOUT), noisy.loc[seed]) for seed in range(10))
    np.testing.assert_allclose(rows["theirs"].astype(float), 0.0477, atol=1e-4)
    assert (rows["size"] == "small").sum() >= 8 and not rows["size"].str.contains("excluded").any()
    np.testing.assert_allclose(
        rows["error"].astype(float), np.sqrt(2) * np.hypot(0.158 / np.sqrt(50), 0.005), rtol=0.2
    )
    never = scores(levels, runs=5) * 0
    row = claims.evaluate(asked(**ABOUT), never).iloc[0]
    # what a run would miss by is not known
    assert pd.isna(row["error"]) and "excluded" not in row["size"]
    far = claims.evaluate(
        asked(**ABOUT), scores({"rloo/ast_tau2": 0.2, "rloo/sparse": 0.5}, runs=5)
    ).iloc[0]
    assert far["size"] == "excluded" and far["alone"] == "reversed"


def test_a_wide_interval_of_ours_excludes_no_number():
    """Two runs that differ by ten points allow for a paper's lead that lies thirty points away."""
    table = scores({"rloo/ast_tau2": 0.85, "rloo/sparse": 0.5}, runs=2).rename(
        columns={"pass@1": "solved"}
    )
    moved = table["solved"].add(0.05 - 0.1 * table.index.get_level_values("seed").to_numpy())
    table["solved"] = moved.where(
        table.index.get_level_values("method") == "rloo/ast_tau2", table["solved"]
    )
    row = claims.evaluate(asked(metric="solved", **ABOUT), table).iloc[0]
    assert abs(row["estimate"] - row["theirs"]) > 1.96 * row["error"] > 0 and not row["borrowed"]
    assert row["low"] < row["theirs"] < row["high"] and row["size"] == "uninformative"


def test_the_error_of_the_papers_number_is_that_of_its_set():
    levels = {"rloo/ast_tau2": 0.5, "rloo/sparse": 0.5}
    few, many = (answered(levels, **ABOUT, problem_set=name) for name in ("test_50", "heldout_400"))
    assert many["theirs"] == pytest.approx(0.0375)
    assert many["error"] < few["error"] < np.sqrt(8) * many["error"], (
        "of 400 problems in place of 50"
    )


def test_within_three_points_is_asked_of_shares_of_problems_solved():
    levels = {"rloo/a": 0.515, "rloo/b": 0.5, "rloo/c": 0.7}
    row = claims.evaluate(asked(), scores(levels, runs=8)).iloc[0]
    # it differs, and by nothing that matters
    assert row["size"] == "small" and row["alone"] == "holds"
    assert answered(levels, runs="rloo/c;rloo/b")["size"] == "no number"
    tokens = scores(levels).rename(columns={"pass@1": "tokens"})
    assert claims.evaluate(asked(metric="tokens"), tokens).iloc[0]["size"] == "uninformative"
    assert answered(levels, bound=0.1)["size"] == "no number"
    near = answered({"rloo/a": 0.515, "rloo/b": 0.5}, factor=1.03)
    assert near["alone"] == "open" and near["size"] == "uninformative"


def test_p_of_equality_is_small_far_from_the_margin_on_either_side():
    same = answered({"rloo/a": 0.5, "rloo/b": 0.5}, direction="equal", margin=0.2)
    edge = answered({"rloo/a": 0.5, "rloo/b": 0.5}, direction="equal", margin=abs(same["estimate"]))
    apart = answered({"rloo/a": 0.7, "rloo/b": 0.5}, direction="equal", margin=0.03)
    assert (
        same["p"] < 0.001
        and edge["p"] > 0.9
        and apart["p"] < 0.001
        and apart["alone"] == "reversed"
    )


def test_p_of_a_bound_is_the_error_at_which_the_interval_reaches_it():
    level = answered({"rloo/b": 0.5}, runs="rloo/b")["estimate"]
    at, below = (
        answered({"rloo/b": 0.5}, runs="rloo/b", bound=bound)["p"] for bound in (level, level - 0.2)
    )
    assert at > 0.999 and below < 0.001


def test_the_file_of_claims():
    planned = claims.planned()
    assert planned["id"].is_unique and len(planned) >= 183
    written = pd.read_csv(PAPER / "claims.csv")
    for column in ("metric", "runs"):  # those of the paper are ours unless the file says otherwise
        paper_column = written[f"paper_{column}"]
        assert planned[f"paper_{column}"].equals(
            paper_column.where(paper_column.notna(), written[column])
        )
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
        assert (
            planned.loc[name, what].fillna(0).tolist()
            != planned.loc[first, what].fillna(0).tolist()
        ), name
    readings = planned[
        planned["paper"].eq("agent")
        & planned["metric"].eq("any")
        & planned["paper_metric"].eq("pass@1")
    ]
    assert len(readings) == 40
    for name in readings.index:  # both readings of the paper's pass@1
        assert planned.loc[name[:-1] if name.endswith("b") else name + "b", "metric"] == "pass@1"


def test_commits_named_are_in_the_history():
    """posed and changed name commits; a clone without history has none to hold them against."""
    planned = claims.planned()
    named = set(planned["posed"]) | set(
        planned["changed"].str.extract(r"^([0-9a-f]{7}):", expand=False).dropna()
    )
    named = {name for name in named if re.fullmatch("[0-9a-f]{7}", name)}
    assert len(named) >= 10
    found = subprocess.run(
        ["git", "log", "--format=%h", "--", "data/paper/claims.csv"], cwd=ROOT, capture_output=True
    )
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
        (
            {"runs": "rloo/a;rloo/b;rloo/a"},
            "a method is compared with itself: rloo/a;rloo/b;rloo/a",
        ),
    ],
)
def test_a_claim_that_says_too_little_is_named(change, says, tmp_path, monkeypatch):
    pd.read_csv(PAPER / "claims.csv").head(3).assign(**change).to_csv(tmp_path / "claims.csv")
    monkeypatch.setattr(claims, "PAPER", tmp_path)
    with pytest.raises(ValueError, match=f"claims.csv, ast-1: .*{says}"):
        claims.planned()
