"""The README's numbers are those of figures/, and its commands exist."""

import re

import numpy as np
import pandas as pd

from lib import plots
from lib.paths import FIGURES, REFERENCE, ROOT
from lib.runs import read_table
from lib.verifiers import judge

README = (ROOT / "README.md").read_text()
METRICS = ["pass@1", "pass@8", "pass@16", "mean pass@k<=16"]


def results_table() -> str:
    """The README's results table, from the CSV that the analysis of the reference results wrote."""
    table = pd.read_csv(FIGURES / "ast_table1.csv").query("set == 'heldout_1000'").set_index(["method", "metric"])
    lines = ["| method | " + " | ".join(METRICS) + " |", "|---" * (len(METRICS) + 1) + "|"]
    for method in dict.fromkeys(table.index.get_level_values("method")):
        cells = [plots.label(method)]
        for metric in METRICS:
            row = table.loc[(method, metric)]
            ours, low, high, paper = 100 * row[["estimate", "low", "high", "paper"]].astype(float)
            cells.append(f"{ours:.1f} [{low:.1f}, {high:.1f}] ({paper:.1f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_results_table_is_the_one_of_the_reference_results():
    assert results_table() in README, "put this into README.md:\n" + results_table()


def test_the_figures_are_those_of_the_reference_results():
    """Judged again: the shares of correct completions that stand in figures/, and in the README by the test above."""
    table = pd.read_csv(FIGURES / "ast_table1.csv").query("set == 'heldout_1000' and metric == 'pass@1'")
    assert len(table) >= 3
    for method, reported in table.set_index("method")["estimate"].items():
        seeds = REFERENCE.glob(f"laptop/sample/{method.replace('/', '_')}/*")
        shares = []
        for folder in seeds:
            judged = judge(read_table(folder / "generations.parquet").query("set == 'heldout_1000'"))
            shares.append((judged["count"] * judged["correct"]).sum() / judged["count"].sum())
        assert np.isclose(np.mean(shares), reported, atol=1e-9), method


def test_every_make_target_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))
    assert {"study", "test", "figures"} <= named <= targets, named - targets


def test_every_room_and_notebook_stands_in_the_tree():
    tree = README.split("```\nnotebooks/")[1].split("```")[0]
    for path in (ROOT / "lib").glob("*.py"):
        assert path.name in tree or path.name == "__init__.py"
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert path.stem in tree


def test_every_figure_shown_is_there():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path
