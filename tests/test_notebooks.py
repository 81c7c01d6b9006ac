"""Every notebook and every training and reward code path, once, in profile smoke, through the real front door."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from IPython.display import display

from lib.files import ROOT
from lib.runs import read_table
from lib.runs.plan import Project

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FLOORS = [  # a room imports only rooms on lower floors
    ["files"],
    ["prompts", "losses", "settings"],
    ["expression", "problem"],
    ["programs", "traces", "solver"],
    ["steps", "verifiers"],
    ["distance"],
    ["rewards", "curriculum", "demonstrations", "environment", "judging"],
    ["model", "generation"],
    ["training", "preference", "search"],
    ["metrics", "intervals", "plots", "words"],
    ["runs", "claims"],
    ["explorer"],
]
INTERACTIVE = {
    "91_explore_rollouts"
}  # no run: tests/test_explorer.py moves its widgets, tests/test_browser.py in a browser


def front_door(target: str, runs: Path, root: Path = ROOT, kernels: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "lib.runs", "make", "smoke", target, "--cores", "2"]
    environment = os.environ | (kernels or {}) | {"COUNTDOWN_RUNS": str(runs)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def everything(warm, tmp_path_factory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    front_door("paths", runs, kernels=warm)
    return runs / "smoke"


def test_every_notebook_runs(everything):
    specs = Project().plan("smoke", "paths").specs
    assert {spec.notebook for spec in specs.values()} == {path.stem for path in NOTEBOOKS} - INTERACTIVE
    assert len(specs) <= 49
    for name in specs:
        assert json.loads((everything / name / "run.json").read_text())["status"] == "finished", name


@pytest.mark.parametrize("notebook", ["30_program", "40_dense"])
def test_a_partial_study_runs_on_the_start_of_all_methods_alone(everything, tmp_path, notebook):
    """The first of its runs to be finished: no other policy's samples, no training log, no pairs."""
    given = {"output": str(tmp_path), "samples": [str(everything / "sample/sft_free/0")], "draws": 50}
    names = {"display": display}
    for cell in nbformat.read(ROOT / f"notebooks/{notebook}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
            names |= given if "parameters" in cell.metadata.get("tags", []) else {}
    assert set(names["judged"]["method"]) == {"sft/free"} and len(read_table(next(tmp_path.glob("*_table[12].csv"))))


def test_a_set_that_nobody_sampled_is_said(tmp_path):
    given = {"output": str(tmp_path), "samples": ["data/reference/laptop/sample/rloo_sparse_200/0"]}
    names = {"display": display}
    with pytest.raises(ValueError, match="primary_set validation: samples hold heldout_1000, showcase, test_50 alone"):
        for cell in nbformat.read(ROOT / "notebooks/70_coverage.ipynb", as_version=4).cells:
            if cell.cell_type == "code":
                exec(cell.source, names)
                names |= given | {"primary_set": "validation"} if "parameters" in cell.metadata.get("tags", []) else {}


def test_the_same_seed_gives_the_same_run(everything, warm, tmp_path):
    """Metrics, generations and weights of SFT, RLOO and sampling, made twice: identical but for timing columns."""
    front_door("sample/rloo_ast_tau2/0", tmp_path, kernels=warm)
    assert same_results(tmp_path / "smoke", everything) == 5


def same_results(runs: Path, twins: Path) -> int:
    """Hold all metrics, generations, weights and tables of `runs` against those of `twins`; how many there were."""
    compared = 0
    for path in sorted(runs.rglob("*")):
        twin = twins / path.relative_to(runs)
        if path.name in ("metrics.csv", "generations.parquet"):
            first, second = (read_table(p).loc[:, lambda t: ~t.columns.str.startswith("seconds")] for p in (path, twin))
            pd.testing.assert_frame_equal(first, second, check_exact=True)
        elif path.match("checkpoint/*.safetensors") or path.name.startswith("ast_table"):
            assert path.read_bytes() == twin.read_bytes(), path
        else:
            continue
        compared += 1
    return compared


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stripped_and_readable(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert not [line for cell in notebook.cells for line in cell.source.splitlines() if len(line) > 100]
    assert notebook.cells[0].source.startswith(f"# {path.stem[:2]} · ")


def test_imports_run_down_the_floors():
    floor = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
    for path in sorted((ROOT / "lib").rglob("*.py")):
        room = path.relative_to(ROOT / "lib").parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lib."):
                below = node.module.split(".")[1]
                same = {below, room} in (
                    {"verifiers", "programs"},
                    {"verifiers", "traces"},
                    {"verifiers", "steps"},
                    {"steps", "traces"},
                    {"demonstrations", "environment"},
                    {"model", "generation"},
                    {"preference", "training"},
                ) or below == room
                assert floor[below] < floor[room] or same, f"{path}: imports {node.module}"
