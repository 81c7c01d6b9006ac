"""The check of treatment: its table is whole and was not changed after the fact, and its numbers
are what they say."""

import subprocess
from fnmatch import fnmatch
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib.files import DATA, FIGURES, PAPER, ROOT
from lib.study import intervals, metrics, treatments

REPORTS = ["all", "ast", "program", "dense", "trace", "agent"]
# the commit that wrote the thresholds down, before the runs that were planned then
FIRST = "ca0f19bd"


def matches(name, patterns):
    return any(fnmatch(name, pattern) for pattern in patterns)


def test_every_method_of_the_reports_has_a_row():
    methods = pd.read_csv(DATA / "methods.csv")
    rows = treatments.planned()["method"]
    listed = methods.loc[methods["study"].isin(REPORTS), "method"]
    missing = [name for name in listed if not matches(name, rows)]
    assert not missing, f"data/paper/treatments.csv: what is {missing} meant to change?"


def test_no_threshold_was_moved_after_it_was_written():
    """The rows of the first version, whatever their methods are called by now."""
    command = ["git", "show", f"{FIRST}:data/paper/treatments.csv"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("the history of this copy does not reach back that far")
    columns = ["study", "what", "metric", "of", "direction", "threshold"]
    now = pd.read_csv(PAPER / "treatments.csv")
    first = pd.read_csv(StringIO(shown.stdout))
    left = set(first[columns].itertuples(index=False, name=None)) - set(
        now[columns].itertuples(index=False, name=None)
    )
    assert not left


@pytest.mark.parametrize(
    "change, says",
    [
        ({"source": "guess"}, "source must be one of log"),
        ({"direction": "about"}, "direction must be one of at least"),
        ({"of": "difference", "baseline": ""}, "a difference needs a baseline"),
        (
            {"of": "ratio", "baseline": "b", "source": "samples"},
            "only numbers of a log have a ratio",
        ),
    ],
)
def test_a_row_that_breaks_a_rule_is_named(change, says, tmp_path, monkeypatch):
    pd.read_csv(PAPER / "treatments.csv").head(1).assign(**change).to_csv(
        tmp_path / "treatments.csv"
    )
    monkeypatch.setattr(treatments, "PAPER", tmp_path)
    with pytest.raises(ValueError, match=f"treatments.csv, sft/free: {says}"):
        treatments.planned()


def row(**fields):
    usual = dict.fromkeys(treatments.COLUMNS, "")
    usual |= {
        "method": "a",
        "baseline": "b",
        "metric": "x",
        "direction": "at least",
        "of": "level",
        "threshold": 0.5,
    }
    return SimpleNamespace(**usual | fields)


def logged(**values):
    """One number per run of each method."""
    index = [(method, seed) for method, numbers in values.items() for seed in range(len(numbers))]
    index = pd.MultiIndex.from_tuples(index, names=["method", "seed"])
    numbers = [number for run in values.values() for number in run]
    return intervals.of_logs(pd.DataFrame({"x": numbers}, index, dtype=float))


@pytest.mark.parametrize(
    "fields, estimate, acted",
    [
        ({}, 1.2, True),
        ({"threshold": 1.3}, 1.2, False),
        ({"direction": "at most"}, 1.2, False),
        ({"of": "difference"}, 0.2, False),
        ({"of": "difference", "threshold": 0.1}, 0.2, True),
        ({"of": "ratio", "threshold": 1.1}, 1.2, True),
        ({"of": "ratio", "direction": "at most", "threshold": 1.1}, 1.2, False),
    ],
)
def test_a_treatment_acted_if_its_number_reaches_the_threshold(fields, estimate, acted):
    found = treatments.answer(row(**fields), logged(a=[1.2, 1.2, 1.2, 1.2], b=[1.0, 1.0, 1.0, 1.0]))
    assert (
        found["estimate"] == pytest.approx(estimate) and found["acted"] is acted and found["sure"]
    )


def test_an_interval_that_holds_the_threshold_is_not_sure():
    found = treatments.answer(row(threshold=1.0), logged(a=[0.7, 1.5, 0.9, 1.3]))
    assert found["acted"] and not found["sure"] and found["low"] < 1 < found["high"]
    # the baseline has no runs
    assert treatments.answer(row(of="difference"), logged(a=[1.0, 2.0])) is None


def test_the_first_state_is_the_first_in_the_text():
    texts = [
        "<think>\nstate [3, 14, 14]\ntry 3 + 14 = 17\nstate [14, 17]",
        "state [3, 14]\nstate [3, 14, 14]",
        "no",
    ]
    judged = pd.DataFrame({"completion": texts, "nums": [[14, 3, 14]] * 3})
    right, counted = treatments.first_states(judged)
    assert right.tolist() == [True, False, False] and counted.tolist() == [True, True, False]


def test_what_a_reward_adds_is_compared_within_groups():
    """Of two problems one is solved once. The dense reward adds little to the texts of the
    other."""
    correct = np.array([False, False, True, True])
    none = np.zeros(4, bool)
    assert treatments.compared_texts("added spread of failing groups", none).all()
    assert not treatments.compared_texts("added spread of failing groups", correct).any()
    assert treatments.compared_texts(
        "added spread of wrong texts in mixed groups", correct
    ).tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert not treatments.compared_texts("added spread of wrong texts in mixed groups", none).any()
    assert (
        treatments.compared_texts("added spread of correct texts", correct).tolist()
        == correct.tolist()
    )
    # one alone
    assert not treatments.compared_texts(
        "added spread of correct texts", correct & (np.arange(4) < 3)
    ).any()
    assert (
        treatments.compared_texts(
            "correct texts that earn more", correct & (np.arange(4) < 3)
        ).sum()
        == 1
    )


def test_collected_has_every_row_of_the_file_and_the_answers_of_the_studies():
    planned = treatments.planned()
    fields = {
        "method": "rloo/dense",
        "metric": "added spread of failing groups",
        "estimate": 0.008,
        "acted": False,
    }
    fields |= {"direction": "at least", "threshold": 0.03, "sure": True, "of": "level"}
    table = treatments.collected([pd.DataFrame([fields]).reindex(columns=treatments.COLUMNS)])
    assert (
        set(planned["method"]) <= set(table["method"])
        and not table.duplicated(["method", "metric"]).any()
    )
    dense = table[table["method"] == "rloo/dense"].squeeze()
    assert dense["reason"] == "added spread of failing groups: 0.008, not at least 0.03"
    assert table.loc[table["method"] != "rloo/dense", "acted"].isna().all()
    assert len(treatments.shown(table)) == len(table)
    nothing = treatments.collected([])
    assert (
        treatments.shown(nothing)["acted"].eq("not run").all()
        and treatments.shown(nothing.iloc[:0]).empty
    )


def test_the_published_table_says_what_the_audits_counted_by_other_code():
    """The dense reward's spread is .008, and the gated bonus goes to 99 in a hundred correct texts
    of the start."""
    published = pd.read_csv(FIGURES / "grand_treatment.csv").set_index(["method", "metric"])
    assert published.loc[
        ("rloo/dense", "added spread of failing groups"), "estimate"
    ] == pytest.approx(0.008, abs=5e-4)
    assert published.loc[("rloo/trace_gated", "correct texts that earn more"), "estimate"] > 0.98
    assert published.loc[("sft/pick", "rejected"), "estimate"] == pytest.approx(0.10, abs=0.01)
    acted = published["acted"]
    idle = {
        ("rloo/dense", "added spread of failing groups"),
        ("rloo/trace_entropy", "late entropy"),
    }
    assert (
        not acted.loc[[*idle]].any()
        and acted.loc[[("rloo/ast_tau2", "added spread of failing groups")]].all()
    )


def test_a_study_names_its_methods_only():
    """Logs of two published policies: the rows of other studies and of methods without runs are
    left out."""
    runs = treatments.Runs(
        training=["data/reference/cpu/rloo/curriculum/*", "data/reference/cpu/rloo/sparse/*"]
    )
    table = treatments.checked("dense", runs, "heldout_1000")
    assert set(table["method"]) == {"rloo/curriculum"} and set(table["metric"]) == {
        "mean frac_zero_std",
        "late largest share",
    }
    share = table.set_index("metric").loc["late largest share"]
    assert share["acted"] and 1.2 < share["low"] < share["high"] < 1.4 and share["runs"] == 5
    assert metrics.as_text(table).str.contains(r"\[").all()
