"""A change of the rule of intervals or of answers is seen: on a small table that is fixed here, and
in data/paper/rules.csv, which follows from the history."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lib.study import claims, history, intervals, metrics, rules, systems, tally

SCORES = Path(__file__).with_name("rule_scores.csv")  # a run in a row, its score on each problem
ANSWERS = Path(__file__).with_name("rule_answers.csv")
REMEDY = """The rule of intervals or of answers says something else about the same numbers. If this
is meant, write a row of data/paper/rules.csv (what changed, when, why), and these answers into
tests/study/rule_answers.csv:
"""
LOANS = {("rloo", "pass@16"): (1e-4, 6.0), ("sft", "pass@16"): (5e-5, 3.0)}
SEARCH = systems.search("sft/free", 1, 8)
ASKED = [  # id, runs, direction, bound, factor, margin
    ("ast-1", "rloo/ast_tau1;sft/free", "higher", 0.0, 1.0, np.nan),  # five runs each
    ("ast-2", "rloo/ast_tau1;sft/free", "equal", 0.0, 1.0, 0.03),
    ("ast-3", "rloo/ast_tau1;sft/free", "higher", 0.1, 1.0, np.nan),
    ("ast-4", "rloo/ast_tau1;rloo/ast_tau2", "lower", 0.0, 1.0, np.nan),  # five runs and two
    ("ast-5", "rloo/ast_tau2;rloo/ast_tau3", "higher", 0.0, 1.0, np.nan),  # two runs and three
    # two runs that differ too much to borrow
    ("ast-6", "rloo/ast_tau4;rloo/ast_tau3", "higher", 0.0, 1.0, np.nan),
    ("ast-7", "rloo/program;sft/free", "lower", 0.0, 1.0, np.nan),  # two runs that never borrow
    ("ast-8", "rloo/ast_tau1;rloo/ast_tau2;sft/free", "highest", 0.0, 1.0, np.nan),
    ("ast-9", "rloo/ast_tau3", "higher", 0.5, 1.0, np.nan),
    ("ast-10", "rloo/sparse;sft/free", "higher", 0.0, 1.0, np.nan),  # one run
    ("ast-11", "rloo/ast_tau1;sft/free", "lower", 0.0, 2.0, np.nan),
    ("ast-12", f"rloo/ast_tau1;{SEARCH}", "higher", 0.0, 1.0, np.nan),  # a search
]


def answered() -> pd.DataFrame:
    table = pd.read_csv(SCORES).set_index(["method", "seed"]).rename_axis(columns="problem")
    scores = table.stack().rename("pass@16").reset_index().assign(set="heldout_1000")
    columns = ["id", "runs", "direction", "bound", "factor", "margin"]
    asked = pd.DataFrame(ASKED, columns=columns).assign(
        paper="ast", claim="", starts="", metric="pass@16"
    )
    asked = asked.assign(set="heldout_1000", problem_set="test_50", paper_metric="pass@16")
    asked = asked.assign(paper_runs="rloo/ast_tau2;rloo/sparse")
    found = claims.evaluate(asked, scores.set_index(metrics.KEYS)[["pass@16"]])
    found = found.assign(q=tally.q_values(found))
    columns = [
        "id",
        "estimate",
        "low",
        "high",
        "seeds",
        "few",
        "borrowed",
        "p",
        "q",
        "detectable",
        "error",
        "alone",
    ]
    return found[[*columns, "size"]]


def test_the_rule_says_of_fixed_numbers_what_it_has_said(monkeypatch):
    monkeypatch.setattr(intervals, "_spreads", lambda: LOANS)
    found = answered().set_index("id").astype({"q": float})
    said = pd.read_csv(ANSWERS).set_index("id")
    message = REMEDY + found.to_csv(float_format="%.6g")
    for name in said:
        if said[name].dtype.kind == "f":
            np.testing.assert_allclose(
                found[name].astype(float), said[name], rtol=1e-4, err_msg=message
            )
        else:
            assert found[name].tolist() == said[name].tolist(), message
    assert (
        {*said["alone"]} == {"holds", "reversed", "open"}
        and said["borrowed"].any()
        and said["size"].nunique() > 3
    )


def test_what_moved_with_each_change_is_that_of_the_history():
    table = pd.read_csv(rules.TABLE)
    assert (
        list(table) == ["commit", "date", "changed", "why", "drawn", "moved"]
        and table["date"].is_monotonic_increasing
    )
    assert (table.notna() & (table != "")).all(axis=None)
    if not history.whole():
        pytest.skip(history.SHALLOW)
    pd.testing.assert_frame_equal(rules.measure(table), table)


def test_a_claim_moves_if_its_data_are_the_same_and_its_answer_is_not():
    columns = ["id", "runs", "metric", "set", "direction", "seeds", "estimate", "answer"]
    rows = [
        (f"ast-{i}", "rloo_a;rloo_b", "pass@1", "s", "higher", 5, 0.1, "open") for i in range(4)
    ]
    before = pd.DataFrame(rows, columns=columns).set_index("id")
    after = before.assign(
        answer="holds", seeds=[5, 5, 6, 5], estimate=[0.1, 0.1004, 0.1, 0.12]
    ).iloc[[3, 2, 1, 0]]
    assert rules.moved(before, after) == ["ast-0 open → holds", "ast-1 open → holds"]
    assert rules.moved(before, before) == []
