"""The check of treatment: its table is whole and was not changed after the fact, and its numbers
are what they say."""

import subprocess
from dataclasses import asdict
from fnmatch import fnmatch
from fractions import Fraction
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib.files import DATA, FIGURES, PAPER, REFERENCE, ROOT, read_table
from lib.study import intervals, metrics, systems, treatments

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


def searched():
    """The searches that data/systems.csv lists and that claims name."""
    named = pd.read_csv(PAPER / "claims.csv")["runs"].str.split(";").explode()
    found = [systems.of(name) for name in {*systems.listed(), *named}]
    return [system for system in found if system.search]


def test_every_kind_of_search_has_a_row():
    """Each setting of a search that the study varies is what some row's two systems differ in, and
    each value has a row against the search without it. What a learned value knows of states has
    rows of its own, and the executor's check of a finished game is what it is compared with."""
    rows = treatments.planned()
    pairs = [
        (systems.of(row.method), systems.of(row.baseline))
        for row in rows[rows["source"] == "games"].itertuples()
    ]
    assert all(one.search and one.policy == other.policy for one, other in pairs)
    differ = set()
    for one, other in pairs:
        differ |= {name for name, value in asdict(one).items() if value != asdict(other)[name]}
    varied = {
        name for name in systems.SEARCH if len({asdict(system)[name] for system in searched()}) > 1
    }
    assert {"beams", "samples", "temperature", "rerank", "weight", "redraws"} <= varied <= differ
    values = {system.rerank for system in searched()} - {"none", "executor"}
    guided = {one.rerank for one, other in pairs if other.rerank == "none"}
    assert values == {"binary", "soft", "learned"} == guided - {"none"}
    assert {"sft/value", "sft/value_legal"} <= set(rows["method"])


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
        (
            {"source": "games", "of": "difference", "baseline": "sft/free 7/7"},
            "'sft/free 7/7' is no known system",
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


@pytest.mark.parametrize(
    "of, own, of_baseline",
    [("level", 1.5, 4.0), ("difference", 1.5, 4.0), ("ratio", 2**0.5, 4.0)],
)
def test_both_numbers_stand_beside_what_is_between_them(of, own, of_baseline):
    """The means of runs, and for a ratio the geometric ones."""
    found = treatments.answer(row(of=of), logged(a=[1.0, 2.0], b=[4.0, 4.0]))
    assert found["own"] == pytest.approx(own)
    assert found["of_baseline"] == pytest.approx(of_baseline, nan_ok=True)
    between = {"level": own, "difference": own - 4, "ratio": own / 4}
    assert found["estimate"] == pytest.approx(between[of])
    table = pd.DataFrame([found | {"what": "", "paper": np.nan}], columns=treatments.COLUMNS)
    said = "1.41 against 4" if of == "ratio" else "1.5 against 4"
    assert treatments.shown(table)["own against baseline"].tolist() == [said]


def test_both_numbers_have_an_interval():
    pair = {"a": [1.0, 2.0, 1.0, 2.0], "b": [4.0, 4.4, 4.0, 4.4]}
    for of in ("difference", "ratio"):
        found = treatments.answer(row(of=of), logged(**pair))
        assert found["own_low"] < found["own"] < found["own_high"]
        assert found["baseline_low"] < found["of_baseline"] < found["baseline_high"]
    alone = treatments.answer(row(baseline=""), logged(a=pair["a"]))
    assert (alone["own_low"], alone["own_high"]) == (alone["low"], alone["high"])
    assert np.isnan([alone["of_baseline"], alone["baseline_low"]]).all()


def test_a_reward_adds_nothing_to_itself():
    added = row(metric="added spread of failing groups")
    found = treatments.answer(added, logged(a=[0.1, 0.2]))
    assert (found["of_baseline"], found["baseline_low"], found["baseline_high"]) == (0, 0, 0)


def test_both_numbers_are_those_of_the_runs_that_are_compared():
    """Of two systems of one policy only the runs that both have."""
    values = {"sft/pick 16/16": [3.0, 5.0, 100.0], "sft/pick 1/8": [1.0, 1.0]}
    pair = dict(zip(("method", "baseline"), values, strict=True))
    found = treatments.answer(row(of="difference", **pair), logged(**values))
    assert (found["own"], found["of_baseline"], found["estimate"]) == (4, 1, 3)


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


def played(*games):
    """Games of searches, (search, actions, states), with the target 24."""
    table = pd.DataFrame(games, columns=["search", "actions", "states"])
    table["rank"] = table.groupby("search").cumcount()
    counts = {"sampled": 16, "unreadable": 1, "number not there": 2, "division by zero": 0}
    return table.assign(target=24, **counts)


def test_numbers_of_searches():
    """Three numbers with the target 24: 8, 3 can reach it, 8, 4 and 5/2, 7 cannot. The second
    search finishes no game, and the third has no state between the first and the last."""
    games = played(
        (1, "<pick>4, 4, +</pick><pick>3, 8, *</pick>", "3, 8; 24"),
        (1, "<pick>4, 4, +</pick><pick>3, 8, +</pick>", "3, 8; 11"),
        (1, "<pick>3, 4, +</pick><pick>4, 7, +</pick>", "4, 8; 12"),
        (1, "<pick>5, 2, /</pick><pick>5|2, 7, +</pick>", "5/2, 7; 19/2"),
        (2, "", ""),
        (3, "<pick>4, 6, *</pick>", "24"),
    )
    found = {name: number(games).to_dict() for name, number in treatments.OF_GAMES.items()}
    assert found["games kept"] == {1: 4, 2: 0, 3: 1}
    assert found["first moves"] == {1: 3, 2: 0, 3: 1}
    assert found["moves of a game"] == {1: 2, 3: 1}
    assert found["legal tags"] == {1: 13, 2: 13, 3: 13}
    assert found["solvable states"] == {1: 0.5} and found["solutions left"] == {1: 1}
    # (2 + 2) * 6, (2 * 2) * 6 and (2 * 6) * 2 are left, then none
    one = played((1, "<pick>", "2, 2, 6; 4, 7; 28"))
    assert treatments.solutions_left(one).tolist() == [3, 0]


def solvable(nums, target):
    """Whether a target can be made, by trying all moves."""
    if len(nums) == 1:
        return nums[0] == target
    for i, a in enumerate(nums):
        for j, b in enumerate(nums):
            rest = [n for k, n in enumerate(nums) if k not in (i, j)]
            results = [a + b, a - b, a * b, *([a / b] if b else [])] if i != j else []
            if any(solvable([*rest, made], target) for made in results):
                return True
    return False


def test_the_numbers_of_published_searches_are_those_of_plain_code():
    """Fifty problems: the states that a search keeps with and without the solver's values, and the
    games of two budgets."""
    folder = REFERENCE / "cpu/search/legal_sft/0"
    table = read_table(folder / "trajectories.parquet")
    table = table[(table["set"] == "test_50") & (table["temperature"] == 0.6)]
    names = {"sft/pick_legal 1/8 +binary": (1, 8, "binary"), "sft/pick_legal 1/8": (1, 8, "none")}
    names["sft/pick_legal 16/16"] = (16, 16, "none")
    shares = treatments.of_games([folder], [*names], "solvable states", "test_50").squeeze()
    kept = treatments.of_games([folder], [*names], "games kept", "test_50").squeeze()
    for name, (beams, samples, rerank) in names.items():
        part = table[(table["beams"] == beams) & (table["samples"] == samples)]
        part = part[(part["rerank"] == rerank) & (part["actions"] != "")]
        assert kept[name].sum() == len(part)
        for problem, games in part.groupby("problem"):
            can = []
            for text, target in zip(games["states"], games["target"], strict=True):
                for state in text.split("; ")[:-1]:
                    can.append(solvable([*map(Fraction, state.split(", "))], target))
            assert shares[name].xs(problem, level="problem").item() == pytest.approx(np.mean(can))


def test_a_search_that_two_runs_repeat_counts_once(monkeypatch):
    one = played((1, "<pick>1, 2, +</pick>", "3"), (2, "<pick>1, 2, +</pick>", "3"))
    one = one.assign(run=["first", "second"], seed=0, set="test_50", problem=7, method="a")
    monkeypatch.setattr(treatments.judging, "games", lambda *_, **__: one)
    monkeypatch.setattr(treatments.systems, "searches", lambda games: games)
    assert treatments._played.__wrapped__((), "test_50")["run"].tolist() == ["first"]


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
