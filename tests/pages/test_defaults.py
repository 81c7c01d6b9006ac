"""Run All of each study, with the default parameters that a reader finds, and then the solutions of
its exercises."""

import pytest

from lib.files import FIGURES, ROOT
from tests.conftest import this_project
from tests.pages.test_exercises import FOUND, GIVEN, solve
from tests.pages.test_notebooks import STUDIES, by_hand

NOTEBOOKS = sorted(this_project().declared("cpu")[name].notebook for name in STUDIES)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_study_run_by_hand_gives_the_committed_tables(
    notebook, tmp_path, monkeypatch, capsys, unrendered
):
    """With its own defaults, byte for byte: a reader who runs all cells sees what the README
    quotes."""
    monkeypatch.chdir(ROOT)
    names = by_hand(notebook, output=str(tmp_path))
    tables = [
        name for name in (tmp_path / "artifacts.txt").read_text().split() if name.endswith(".csv")
    ]
    assert tables and not [
        one for one in tables if (tmp_path / one).read_bytes() != (FIGURES / one).read_bytes()
    ]
    if notebook in FOUND:
        solve(notebook, names, capsys)


def test_no_exercise_is_left_out():
    """Those of other notebooks are solved in tests/pages/test_exercises.py."""
    assert FOUND.keys() - GIVEN.keys() == {"20_ast", "70_coverage"} <= {*NOTEBOOKS}
