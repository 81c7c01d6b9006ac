"""Run All of each study, with the default parameters that a reader finds."""

import pytest

from lib.files import FIGURES, ROOT
from tests.test_notebooks import STUDIES, by_hand


@pytest.mark.parametrize("notebook", sorted(spec.notebook for spec in STUDIES))
def test_a_study_run_by_hand_gives_the_committed_tables(notebook, tmp_path, monkeypatch):
    """With its own defaults, byte for byte: a reader who runs all cells sees what the README quotes."""
    monkeypatch.chdir(ROOT)
    by_hand(notebook, output=str(tmp_path))
    tables = [name for name in (tmp_path / "artifacts.txt").read_text().split() if name.endswith(".csv")]
    assert tables and not [one for one in tables if (tmp_path / one).read_bytes() != (FIGURES / one).read_bytes()]
