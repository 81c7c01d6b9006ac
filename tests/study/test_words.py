"""Numbers as words: a sentence or a title says the same as its row."""

import pandas as pd
import pytest

from lib.study import words

ROWS = [
    ("a", 0.028, -0.013, 0.055, 3),
    ("b", 0.102, 0.083, 0.121, 3),
    ("c", -0.05, -0.06, -0.04, 1),
]
GAPS = pd.DataFrame(ROWS, columns=["method", "estimate", "low", "high", "runs"]).assign(
    baseline="sft/free"
)


def test_pick_finds_the_one_row():
    assert words.pick(GAPS, method="b", baseline="sft/free")["estimate"] == 0.102
    assert words.pick(GAPS, method="d") is None
    with pytest.raises(LookupError, match="3 rows"):
        words.pick(GAPS, baseline="sft/free")


def test_said():
    first, _, last = (words.pick(GAPS, method=method) for method in "abc")
    assert words.estimate(first) == "+2.8 points (95% CI -1.3 to +5.5)"
    assert words.estimate(first, unit="") == "+2.8 [-1.3, +5.5]"
    assert words.estimate(last) == "-5.0 points (95% CI -6.0 to -4.0) (one seed)"
    assert (
        words.estimate(first.drop("baseline"), " equations", scale=1, digits=2)
        == "0.03 equations (95% CI -0.01 to 0.06)"
    )
    assert words.level(first.drop("baseline")) == "2.8% (95% CI -1.3 to 5.5)"
    assert words.estimate(None) == "not run"


def test_a_change_is_a_verb_and_a_size_without_a_sign():
    same, rises, falls = (words.pick(GAPS, method=method) for method in "abc")
    assert words.change(rises) == "rises by 10.2 points (95% CI 8.3 to 12.1)"
    assert words.change(falls) == "falls by 5.0 points (95% CI 4.0 to 6.0) (one seed)"
    assert words.change(same) == "does not change significantly: +2.8 points (95% CI -1.3 to +5.5)"
    assert words.change(None) == "not run"


def test_a_title_names_who_is_ahead():
    titles = [words.ahead([*names], "No reward", "SFT") for names in ("", "A", "AB", "ABC", "ABCD")]
    assert titles == [
        "No reward is ahead of SFT",
        "A is ahead of SFT",
        "A and B are ahead of SFT",
        "A, B and C are ahead of SFT",
        "A, B and 2 more are ahead of SFT",
    ]


def test_compared():
    found = [words.compared(row, "more", "fewer", "as many") for _, row in GAPS.iterrows()]
    touching = [
        words.compared({"low": low, "high": low + 0.1}, "more", "fewer", "as many")
        for low in (0.0, -0.1)
    ]
    assert touching == ["as many"] * 2, "zero is in the interval"
    assert found == ["as many", "more", "fewer"] and words.compared(None, "", "", "") == "not run"


def test_the_papers_number_stands_in_parentheses():
    ours = pd.Series(["1.0", "2.0"])
    assert words.with_paper(ours, pd.Series([57.81, float("nan")])).tolist() == [
        "1.0 (57.8)",
        "2.0",
    ]
