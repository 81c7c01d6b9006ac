"""A benchmark that compares with earlier code goes on where that code is missing or fails."""

import subprocess

import pytest

from lib.files import REFERENCE, ROOT
from tests.bench import history

POLICY = REFERENCE / "cpu/sft/free/0"
there = subprocess.run(
    ["git", "cat-file", "-e", f"{history.COMMIT}^{{commit}}"], cwd=ROOT, capture_output=True
)
needs_history = pytest.mark.skipif(
    there.returncode != 0, reason=f"commit {history.COMMIT} is not in this clone"
)


@needs_history
def test_the_programs_run_in_the_code_of_that_commit():
    """They name its modules, which were moved since."""
    drawn = history.then(history.SAMPLING, POLICY.resolve(), 2, 2, 1)
    assert drawn is not None and drawn > 0
    took = history.then(history.UPDATE, POLICY.resolve(), 2, 2, 2, 12, 4, 1e-6)
    assert took is not None and took > 0


@needs_history
def test_a_comparison_that_fails_says_so_and_ends_nothing(capsys):
    assert history.then("import nothing_of_that_name") is None
    said = capsys.readouterr().out
    assert (
        "fails here, nothing to compare with: ModuleNotFoundError: No module named "
        "'nothing_of_that_name'" in said
    )


def test_a_clone_without_the_commit_has_nothing_to_compare_with(capsys, monkeypatch):
    monkeypatch.setattr(history, "COMMIT", "0" * 40)
    assert history.then("print(1)") is None
    assert "is not in this copy of the repository" in capsys.readouterr().out
