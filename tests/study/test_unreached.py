"""The table of what was not reached: it is whole, and says what is published and declared now."""

from fnmatch import fnmatch
from functools import cache

import pandas as pd
import pytest

from lib.files import FIGURES, PAPER, REFERENCE
from lib.study import judging, treatments, unreached
from tests.conftest import this_project

SETUP = REFERENCE / "cpu"
FILE = "data/paper/unreached.csv"
ROWS = list(treatments.each(unreached.planned()))


@pytest.fixture(scope="module")
def published():
    """The published runs, as kind/name/seed."""
    paths = SETUP.glob("*/*/*/run.json")
    return sorted(path.parent.relative_to(SETUP).as_posix() for path in paths)


@cache
def with_own_row() -> set[str]:
    return {*treatments.planned()["method"]}


def fitting(runs, methods: str) -> set[str]:
    """The runs that `methods` stands for."""
    found = set()
    for name in methods.split(";"):
        pattern = name if name.count("/") == 2 else f"{name}/*"
        for run in fitted(runs, pattern):
            method = run.rpartition("/")[0]
            if pattern.startswith(f"{method}/") or method not in with_own_row():
                found.add(run)
    return found


def fitted(runs, pattern: str) -> list[str]:
    return [run for run in runs if fnmatch(run, pattern)]


def seconds(like: str) -> float:
    """The core-seconds of the runs of `like` together."""
    total = 0.0
    for part in like.split(";"):
        times, _, name = part.rpartition(" x ")
        record = judging.record(SETUP / name)
        took = record.get("core_seconds") or record["elapsed"] * record["threads"]
        total += int(times or 1) * took
    return total


def test_a_name_with_a_star_leaves_out_methods_with_a_row_of_their_own():
    runs = ["rloo/ast_tau2_alpha01/0", "rloo/ast_tau2_a0.25/0", "rloo/ast_tau2_a0.25/1"]
    assert fitting(runs, "rloo/ast_tau*_a*") == {*runs[1:]}
    assert fitting(runs, "rloo/ast_tau*_a*/1;rloo/ast_tau2_alpha01") == {runs[0], runs[2]}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_row_says_how_many_runs_are_published(row, published):
    made = len(fitting(published, row.methods))
    assert row.runs_made == made, (
        f"{FILE}, {row.what}: {made} of {row.runs_asked} runs are published now; "
        f"{'take the row out' if made >= row.runs_asked else 'mend runs_made and core_hours'}"
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_core_hours_are_those_of_runs_that_are_alike(row):
    hours = (row.runs_asked - row.runs_made) * seconds(row.like) / 3600
    # half of the last decimal
    assert row.core_hours == pytest.approx(hours, abs=0.051), f"{FILE}, {row.what}"


def test_a_row_says_whether_its_runs_are_declared():
    runs = this_project().expanded()
    runs = [name for name, run in runs.items() if not run.only or "cpu" in run.only]
    for row in ROWS:
        enough = len(fitting(runs, row.methods)) >= row.runs_asked
        assert row.declared == ("yes" if enough else "no"), f"{FILE}, {row.what}"


def test_no_run_is_in_two_rows():
    runs = this_project().expanded()
    named = [run for row in ROWS for run in fitting(runs, row.methods)]
    assert len(named) == len({*named})


def test_every_method_whose_treatment_has_no_answer_is_in_a_row(published):
    """The study `exact` goes on: papermill_runs.yaml says what it lacks."""
    table = pd.read_csv(FIGURES / "grand_treatment.csv")
    planned = treatments.planned()
    left_out = {*planned.loc[planned["study"] == "exact", "method"]}
    names = ["/".join(name.split("/")[:2]) for row in ROWS for name in row.methods.split(";")]
    for method in {*table.loc[table["acted"].isna(), "method"]} - left_out:
        policy = method.partition(" ")[0]
        covered = any(fnmatch(policy, name) or fnmatch(name, policy) for name in names)
        assert covered or fitting(published, policy), f"{FILE}: {method} was not run and has no row"


@pytest.mark.parametrize(
    "change, says",
    [
        ({"study": "guess"}, "study must be one of treatments.csv"),
        ({"methods": "free"}, "methods must be kind/name"),
        ({"runs_made": 9, "runs_asked": 9}, "runs_made must be less than runs_asked"),
        ({"core_hours": -1.0}, "core_hours must not be negative"),
        ({"like": "sft/free"}, "like must be kind/name/seed"),
        ({"declared": "perhaps"}, "declared must be yes or no"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named(change, says, tmp_path, monkeypatch):
    row = pd.read_csv(PAPER / "unreached.csv").head(1).assign(what="a", **change)
    row.to_csv(tmp_path / "unreached.csv", index=False)
    monkeypatch.setattr(unreached, "PAPER", tmp_path)
    with pytest.raises(ValueError, match=f"unreached.csv, a: {says}"):
        unreached.planned()


def test_the_last_row_is_the_sum():
    table = pd.DataFrame(
        {
            "study": ["ast", "trace"],
            "what": ["one", "other"],
            "runs_made": [0, 2],
            "runs_asked": [3, 3],
            "core_hours": [1.25, 0.5],
            "declared": ["no", "yes"],
        }
    )
    rows = unreached.shown(table)
    assert rows.loc["trace", "runs made"] == "2 of 3"
    assert rows.index[-1] == "all" and rows["core-hours"].iloc[-1] == "1.8"
