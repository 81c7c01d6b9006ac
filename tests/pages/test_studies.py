"""Every study notebook in the prompt styles of the GPU profiles, in miniature: published results,
reduced to a few problems and two seeds, whose records name the style that the same run has in the
profile."""

import json
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from IPython.display import display

from lib.files import REFERENCE, ROOT, read_table
from lib.runs.declare import STUDY
from lib.runs.plan import Spec
from lib.study import judging
from tests.conftest import this_project

STUDIES = sorted(name for name in this_project().declared("paper") if name.startswith(STUDY))
PROBLEMS = 25  # of each set
HUBS = 20  # in the place of the hub's fifty: the first of ours
SEEDS = ("0", "1")


def relabelled(spec: Spec, source: Path, folder: Path) -> None:
    """The published results of a run, cut short, as if `spec` had made them."""
    folder.mkdir(parents=True)
    record = json.loads((source / "run.json").read_text())
    style = spec.params.get("prompt_style")
    changed = {"prompt_style": style} if style else {}
    hub = "hub_test_50" in spec.params.get("sets", [])
    changed |= {"sets": spec.params["sets"]} if hub else {}
    record |= {"parameters": record["parameters"] | changed, "files": {}}
    (folder / "run.json").write_text(json.dumps(record))
    for path in source.iterdir():
        if path.name in ("generations.parquet", "trajectories.parquet"):
            table = read_table(path)
            table = table[table["problem"] < PROBLEMS]
            if hub:  # the profile samples the hub's problems beside ours
                theirs = table[(table["set"] == "test_50") & (table["problem"] < HUBS)]
                table = pd.concat([table, theirs.assign(set="hub_test_50")])
            # read once or twice
            table.to_parquet(folder / path.name, index=False, compression=None)
        elif path.is_file() and path.name != "run.json":
            shutil.copy(path, folder)


@pytest.fixture(scope="module")
def relabel(tmp_path_factory):
    """The folder of a run as the profile would have made it; "" where nothing of it is
    published."""
    root = tmp_path_factory.mktemp("runs")
    made = {}

    def folder(spec: Spec) -> str:
        style = spec.params.get("prompt_style", "")
        if (key := (spec.name, style)) not in made:
            made[key] = ""
            source = REFERENCE / "cpu" / spec.name
            if (source / "run.json").exists() and spec.name.rpartition("/")[2] in SEEDS:
                made[key] = str(root / (style or "none") / spec.name)
                relabelled(spec, source, Path(made[key]))
        return made[key]

    return folder


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """A cache of verdicts for all studies of this file: they are kept by content, style and
    look."""
    return tmp_path_factory.mktemp("verdicts")


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_runs_in_the_styles_of_the_gpu_profiles(
    study, relabel, verdicts, tmp_path, monkeypatch, unrendered
):
    monkeypatch.setattr(judging, "CACHE", verdicts)
    spec = this_project().specs("paper")[study]
    given = dict(spec.params) | {"output": str(tmp_path / "study")}
    for parameter, runs in spec.declaration.needs.items():
        runs = [runs] if isinstance(runs, str) else runs
        folders = [
            name for run in runs if run in spec.parents and (name := relabel(spec.parents[run]))
        ]
        given[parameter] = (
            folders if not isinstance(spec.declaration.needs[parameter], str) else folders[0]
        )
    names: dict = {"display": display, "In": [""]}
    cells = nbformat.read(ROOT / f"notebooks/{spec.notebook}.ipynb", as_version=4).cells

    def run(cell) -> None:
        names["In"].append(cell.source)
        exec(cell.source, names)
        names.update(given if "parameters" in cell.metadata.get("tags", []) else {})

    for cell in cells:
        if cell.cell_type == "code":
            run(cell)
    tables = [read_table(path) for path in (tmp_path / "study").glob("*.csv")]
    assert tables
    for table in (table for table in tables if {"set", "n_problems"} <= {*table}):
        assert "hub_test_50" not in {*table["set"]}
        assert (table.loc[table["set"] == "test_50", "n_problems"].dropna() <= HUBS).all(), (
            "test_50 is the hub's"
        )

    # what the notebook has left in its kernel stands in the way of no second run
    started = next(
        i
        for i, cell in enumerate(cells)
        if cell.cell_type == "code" and "Run(output" in cell.source
    )
    for cell in cells[: started + 1]:
        if cell.cell_type == "code":
            run(cell)
