"""Every notebook and every code path of training and rewards, once, in profile smoke and through
the real `make` command."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest
from IPython.display import display

from lib.files import PROBLEMS, REFERENCE, ROOT
from lib.game import sets as problem_sets
from lib.runs import read_table
from lib.runs.declare import STUDY
from lib.runs.plan import read_record
from lib.study import judging
from tests.conftest import this_project

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# no run: tests/study/test_explorer.py moves its widgets, tests/pages/test_browser.py in a browser
INTERACTIVE = {"91_explore_rollouts"}


def front_door(
    target: str, runs: Path, root: Path = ROOT, kernels: dict[str, str] | None = None
) -> None:
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
    specs = this_project().plan("smoke", "paths").specs
    assert {spec.notebook for spec in specs.values()} == {
        path.stem for path in NOTEBOOKS
    } - INTERACTIVE
    assert len(specs) <= 71  # of miniature runs, in seconds each: a study adds few
    for name in specs:
        assert json.loads((everything / name / "run.json").read_text())["status"] == "finished", (
            name
        )


def test_notebook_01_makes_the_committed_evaluation_sets(everything):
    """Evaluation sets are drawn before the training sets, so a small build has the same ones."""
    output = everything / "problems/all/0"
    made, committed = (json.loads((f / "manifest.json").read_text()) for f in (output, PROBLEMS))
    training = {"3to4/train", "5num/train", "3to4_low/train"}
    # drawn after the training sets
    behind = training | {"3to4/validation", "3to4/sealed_2000", "3to4/sealed_1000"}
    assert {n: e for n, e in made.items() if n not in behind} == {
        n: e for n, e in committed.items() if n not in behind
    }
    assert len(problem_sets.read_set(output, "3to4", "train")) == 100


def by_hand(notebook: str, **given) -> dict:
    """The names that a notebook has defined when all of its cells have run, with some other
    parameters than its own."""
    names = {"display": display, **given}
    for cell in nbformat.read(ROOT / f"notebooks/{notebook}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
            names |= given if "parameters" in cell.metadata.get("tags", []) else {}
    return names


@pytest.mark.parametrize("notebook", ["30_program", "40_dense"])
def test_a_partial_study_runs_on_the_start_of_all_methods_alone(everything, tmp_path, notebook):
    """The first of its runs to be finished: no other policy's samples, no training log, no
    pairs."""
    given = {"output": str(tmp_path), "sample_runs": [str(everything / "sample/sft_free/0")]}
    names = by_hand(notebook, **given)
    assert set(names["judged"]["method"]) == {"sft/free"} and len(
        read_table(next(tmp_path.glob("*_table[12].csv")))
    )


def test_a_set_that_nobody_sampled_is_said(tmp_path):
    given = {"sample_runs": ["data/reference/cpu/sample/rloo_sparse/0"], "finals": []}
    with pytest.raises(
        ValueError,
        match="primary_set validation: samples hold heldout_1000, showcase, test_50 alone",
    ):
        by_hand("72_coverage_choices", output=str(tmp_path), primary_set="validation", **given)


# --- what a notebook opens on ---------------------------------------------------------------------


STUDIES = [name for name in this_project().declared("cpu") if name.startswith(STUDY)]


def test_every_study_is_published_once():
    published = {
        path.parent.relative_to(REFERENCE).as_posix()
        for path in REFERENCE.glob("*/study/*/*/run.json")
    }
    assert published == {f"cpu/{name}" for name in STUDIES} and len(STUDIES) >= 10


@pytest.mark.parametrize("study", STUDIES)
def test_the_defaults_of_a_study_are_those_of_the_published_one(study: str):
    """The same values, and patterns that fit exactly the folders that `make figures` gives it."""
    spec = this_project().specs("cpu")[study]
    defaults = this_project().notebook(spec.notebook)[0]
    for name, value in spec.params.items():
        assert defaults[name] == value, name
    for name, needed in spec.declaration.needs.items():
        parents = [spec.parents[one] for one in ([needed] if isinstance(needed, str) else needed)]
        # it reads what these answered, which `make figures` has put there
        if parents and parents[0].study:
            assert defaults[name] == ["figures"]
            continue
        published = {
            parent.reference for parent in parents if (parent.reference / "run.json").exists()
        }
        assert set(judging.folders(defaults[name]) if defaults[name] else []) == published, name


def test_the_order_in_which_runs_are_named_changes_nothing():
    """So equal sets of folders give equal tables, whether patterns or the runner's list named
    them."""
    one, other = (f"data/reference/cpu/sample/{name}/*" for name in ("rloo_sparse", "sft_free"))
    found = judging.folders([one, other])
    assert found == judging.folders([other, *found]) and len(found) == 10


def test_what_trains_and_samples_opens_on_the_published_start():
    """Each policy that a notebook starts from is there, and is sampled up to the cap that it was
    published with."""
    opened = 0
    for path in NOTEBOOKS:
        defaults = this_project().notebook(path.stem)[0] if path.stem not in INTERACTIVE else {}
        for name in {"init", "policy"} & defaults.keys():
            folder = ROOT / defaults[name]
            if folder.is_relative_to(REFERENCE):
                assert (folder / "checkpoint").is_dir(), f"{path.stem}: {name}"
            if folder == REFERENCE / "cpu/sft/free/0" and "max_tokens" in defaults:
                assert defaults["max_tokens"] == read_record(folder).parameters["max_tokens"], (
                    path.stem
                )
                opened += 1
    assert opened == 6  # 00, 11, 12, 13, 15, 17


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_tour_computes_with_every_rollout(seed, monkeypatch, tmp_path):
    """On a problem of whose eight rollouts some are equal: nothing is merged, and the numbers are
    those by hand."""
    monkeypatch.chdir(ROOT)
    shown = []
    given = {
        "nums": [68, 85, 46],
        "target": 29,
        "seed": seed,
        "display": lambda *all: shown.extend(all),
    }
    names = by_hand("00_follow_one_completion", output=str(tmp_path), **given)
    table = names["table"]
    right = (names["table"]["status"] == "correct").sum()
    assert len(table) == names["group_size"] == 8 and names["group"]["completion"].nunique() < 8
    paid = table["status"].map({"correct": 1.0, "missing": 0.0}).fillna(0.1)
    assert table["sparse reward"].tolist() == paid.tolist()
    for name in ("sparse", "ast"):
        rewards = table[f"{name} reward"].tolist()
        hand = [one - sum(rewards[:i] + rewards[i + 1 :]) / 7 for i, one in enumerate(rewards)]
        assert table[f"{name} advantage"].tolist() == pytest.approx(hand)
    said = " ".join(str(getattr(one, "data", "")) for one in shown)
    assert f"{right} of 8 are right" in said and "the other 7 rewards" in said
    assert f"= {table['sparse advantage'].iloc[0]:.3f}," in said


def test_the_same_seed_gives_the_same_run(everything, warm, tmp_path):
    """Metrics, generations and weights of SFT, RLOO and sampling, made twice: identical but for
    timing columns."""
    front_door("sample/rloo_ast_tau2/0", tmp_path, kernels=warm)
    assert same_results(tmp_path / "smoke", everything) == 5


def same_results(runs: Path, twins: Path) -> int:
    """Hold all metrics, generations, weights and tables of `runs` against those of `twins`; how
    many there were."""
    compared = 0
    for path in sorted(runs.rglob("*")):
        twin = twins / path.relative_to(runs)
        if path.name in ("metrics.csv", "generations.parquet"):
            first, second = (
                read_table(p).loc[:, lambda t: ~t.columns.str.startswith("seconds")]
                for p in (path, twin)
            )
            pd.testing.assert_frame_equal(first, second, check_exact=True)
        elif path.match("checkpoint/*.safetensors") or path.name.startswith("ast_table"):
            assert path.read_bytes() == twin.read_bytes(), path
        else:
            continue
        compared += 1
    return compared


@pytest.mark.parametrize(("steps", "named"), [(2, [2]), (5, [5]), (7, [5, 7])])
def test_updates_of_a_trl_training_are_named_by_the_last_of_them(steps, named):
    """Notebook 17 shows means of five updates; a short training has fewer."""
    cells = nbformat.read(ROOT / "notebooks/17_trl_trainer.ipynb", 4).cells
    [source] = [cell.source for cell in cells if "state.log_history" in cell.source]
    code, shown = source.rstrip().rsplit("\n", 1)
    columns = ["loss", "rewards/mine/mean", "rewards/sparse/mean", "completions/mean_length"]
    columns += ["frac_reward_zero_std", "entropy", "grad_norm"]
    history = [dict.fromkeys(columns, 0.0) | {"step": i + 1} for i in range(steps)]
    names = {
        "pd": pd,
        "theirs": SimpleNamespace(__name__="mine"),
        "trainer": SimpleNamespace(state=SimpleNamespace(log_history=history)),
        "run": SimpleNamespace(write=lambda table, name: None),
    }
    exec(code, names)
    assert eval(shown, names).index.tolist() == named


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stripped_and_readable(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert not [
        line for cell in notebook.cells for line in cell.source.splitlines() if len(line) > 100
    ]
    assert notebook.cells[0].source.startswith(f"# {path.stem[:2]} · ")
    ends = [cell.source.rstrip().splitlines()[-1] for cell in cells]
    # it would print a path
    assert not [end for end in ends if end.startswith("run.write(") and not end.endswith(";")]
    for name in re.findall(
        r"\]\(([\w.]+\.ipynb)\)", " ".join(cell.source for cell in notebook.cells)
    ):
        assert (path.parent / name).is_file(), name


def test_a_check_of_treatment_comes_before_the_results():
    """A study says which methods acted before it shows what differs between them. What its first
    four cells compute, it has not shown yet."""
    checking = 0
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        code = [cell.source if cell.cell_type == "code" else "" for cell in cells]
        checks = [i for i, source in enumerate(code) if "treatments.checked(" in source]
        results = ("intervals.differences(", "claims.evaluate(")
        shown = [i for i, source in enumerate(code) if any(word in source for word in results)]
        checking += len(checks)
        if checks:
            assert checks[0] < min(i for i in shown if i > 3), path.stem
    assert checking >= 12


def test_game_comes_before_rewards_and_these_before_learn_and_study():
    """Imports run one way only: game <- rewards <- learn, study <- runs; learn and study do not
    know each other."""
    may = {"files": set(), "game": {"files"}, "rewards": {"files", "game"}}
    may |= {name: {"files", "game", "rewards"} for name in ("learn", "study")}
    may["runs"] = {*may}
    for path in sorted((ROOT / "lib").rglob("*.py")):
        package = path.relative_to(ROOT / "lib").parts[0].removesuffix(".py")
        imported = set(re.findall(r"^ *(?:from|import) lib\.(\w+)", path.read_text(), re.MULTILINE))
        assert package == "__init__" or imported <= may[package] | {package}, path
