"""`make record`: an entry from published results in a scratch copy, what is refused, and what RECORDS.md says."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lib.files import ROOT
from lib.judging import samples
from lib.metrics import counts, problem_scores
from lib.problem import load_set
from lib.runs.plan import Project, Spec, read_record
from lib.runs.process import RunError
from lib.runs.record import CORE_MINUTES, RECORDS, evaluated, line
from lib.search import SearchSettings
from tests.conftest import copy_of_the_repository

ENTRIES = re.findall(r"^\| `make record METHOD=(\S+) PROFILE=(\S+)`.*", RECORDS.read_text(), re.MULTILINE)
SEEDS = "grid: {{ seed: [0, 1, 2, 3, 4] }}"
OWN = f"""
  rloo/mine: {{{{ notebook: 11_train_rloo, needs: {{{{ init: {{init}} }}}}, params: {{{{ {{params}} }}}}, {SEEDS} }}}}
  sample/rloo_mine:
    {{{{ notebook: 15_sample_rollouts, needs: {{{{ policy: rloo/mine }}}}, {SEEDS}, params: {{{{ {{sampling}} }}}} }}}}
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """Five seeds of sft/free, published, of which 3 and 4 are 0 and 1 again under another name."""
    root = copy_of_the_repository(tmp_path_factory.mktemp("record") / "copy")
    specs = Project(root).specs("laptop")
    for seed in range(5):
        for name in ("sft/free", "sample/sft_free"):
            folder, spec = root / f"data/reference/laptop/{name}", specs[f"{name}/{seed}"]
            if seed > 2:
                shutil.rmtree(folder / str(seed), ignore_errors=True)
                shutil.copytree(folder / str(seed - 3), folder / str(seed))
            relabel(folder / str(seed), spec)
    return root


def relabel(folder: Path, spec: Spec) -> None:
    """Take a published run for that of a spec."""
    made = json.loads((folder / "run.json").read_text())
    made |= {"seed": spec.params["seed"], "fingerprint": spec.fingerprint, "code": spec.code}
    (folder / "run.json").write_text(json.dumps(made))


def declare(root: Path, before: str, after: str) -> None:
    path = root / "papermill_runs.yaml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after, 1))


def own(copy: Path, tmp_path: Path, params="reward: sparse", sampling="", init="sft/free") -> Project:
    """A copy's declarations with an entry of one's own."""
    for name in ("data", "notebooks"):
        (tmp_path / name).symlink_to(copy / name)
    entry = OWN.format(params=params, sampling=sampling, init=init)
    shutil.copy(copy / "papermill_runs.yaml", tmp_path)
    declare(tmp_path, "\nruns:\n", "\nruns:\n" + entry)
    return Project(tmp_path)


def test_an_entry_from_published_results(copy):
    """As a stranger does it; a second time replaces the line and keeps its sentence."""
    command = [sys.executable, "-m", "lib.runs", "record", "laptop", "sft/free"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (copy / "RECORDS.md").read_text()
    [row] = [row for row in text.splitlines() if row.startswith("| `make record METHOD=sft/free PROFILE=laptop`")]
    (copy / "RECORDS.md").write_text(text.replace(row, row.rpartition("|  |")[0] + "| Where all start. |"))
    assert subprocess.run(command, cwd=copy, capture_output=True, text=True).stdout == done.stdout
    assert (copy / "RECORDS.md").read_text() == text.replace(row, f"{done.stdout.strip()} | Where all start. |")

    cells = [cell.strip() for cell in row.strip("|").split("|")]
    judged = samples(
        [copy / f"data/reference/laptop/sample/sft_free/{seed}" for seed in range(5)], sets=["heldout_1000"]
    )
    scores = problem_scores(counts(judged), ks=(1, 16), mean_to=()).mean()
    assert [float(cell.split(" ")[0]) for cell in cells[1:3]] == [round(100 * scores[f"pass@{k}"], 1) for k in (1, 16)]
    unanswered = judged["count"][judged["status"] == "missing"].sum() / judged["count"].sum()
    assert float(cells[3]) == round(100 * unanswered, 1)
    assert float(cells[4]) == round((judged["tokens"] * judged["count"]).sum() / judged["count"].sum())
    minutes = [read_record(copy / f"data/reference/laptop/sft/free/{seed}")["elapsed"] / 60 for seed in range(5)]
    assert float(cells[5]) == pytest.approx(sum(minutes) / 5, abs=0.051)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"sampling": "temperature: 0.9"}, "another evaluator than sample/sft_free/0: .*'s temperature differ"),
        ({"sampling": "max_tokens: 320"}, "'s max_tokens differ"),
        ({"sampling": "sets: { heldout_1000: 32 }"}, "'s samples a problem or notebook differ"),
        ({"params": "init: data/models/elsewhere", "init": ""}, "starts from data/models/elsewhere"),
        ({"init": "rloo/sparse_200"}, "rloo/sparse_200 has no seed 3"),
    ],
)
def test_what_is_no_fair_entry_is_refused(copy, tmp_path, changes, message):
    project = own(copy, tmp_path, **changes) if changes.get("init", "x") else without_parent(copy, tmp_path, changes)
    with pytest.raises(RunError, match=message):
        evaluated(project, "laptop", "rloo/mine")


def without_parent(copy: Path, tmp_path: Path, changes: dict) -> Project:
    project = own(copy, tmp_path, params=changes["params"])
    declare(tmp_path, "needs: { init: sft/free }, params: { init:", "params: { init:")
    return project


def test_a_policy_may_be_drawn_in_other_ways_besides():
    """Of rloo/sparse at temperature .8, notebook 70."""
    assert [spec.run for spec in evaluated(Project(ROOT), "cpu", "rloo/sparse")] == ["sample/rloo_sparse"] * 5


def test_an_agent_is_told_by_its_single_games():
    """Its searches say nothing of a sample; the settings of a single game are those of every sample."""
    specs = Project(ROOT).specs("laptop")
    entry, study = evaluated(Project(ROOT), "laptop", "sft/pick"), specs["sample/sft_free/0"].params
    assert [spec.params["seed"] for spec in entry] == list(range(5))
    assert {spec.run for spec in entry} == {"search/sft_pick", "search/sft_pick_further"}
    assert all(study[key] == getattr(SearchSettings(), key) for key in ("temperature", "top_p", "top_k"))
    played = pd.concat(pd.read_parquet(spec.reference / "trajectories.parquet") for spec in entry)
    single = played.query("set == 'heldout_1000' and beams == 1 and samples == 1 and temperature == 0.6")
    assert len(single) == 5 * 1000 * 16
    won = single["states"].str.split("; ").str[-1] == single["target"].astype(str)
    assert f"| {100 * won.mean():.1f} [" in line("laptop", "sft/pick", entry)
    with pytest.raises(RunError, match="preference/agent_hard was drawn with another evaluator.*none is {'beams': 1"):
        evaluated(Project(ROOT), "laptop", "preference/agent_hard")


def test_fewer_seeds_are_refused(copy):
    with pytest.raises(RunError, match="rloo/sparse_200 has 3 sampled seeds of heldout_1000, an entry has 5"):
        evaluated(Project(ROOT), "laptop", "rloo/sparse_200")


def test_training_on_an_evaluation_problem_is_refused(copy, tmp_path):
    """In a file of one's own, and in a table that a run saved."""
    held_out = load_set("heldout_1000")[0]
    file = tmp_path / "mine.csv"
    file.write_text(f'nums,target\n"{" ".join(map(str, held_out["nums"][::-1]))}",{held_out["target"]}\n3 5 7,26\n')
    with pytest.raises(RunError, match="mine.csv, where 1 problems are of our evaluation sets"):
        evaluated(own(copy, tmp_path, params=f"reward: sparse, problem_set: {file}"), "laptop", "rloo/mine")
    folder = copy / "data/runs/laptop/sft/free/2"
    folder.mkdir(parents=True)
    pd.DataFrame({"nums": [held_out["nums"]], "target": [held_out["target"]]}).to_parquet(folder / "mine.parquet")
    with pytest.raises(RunError, match="mine.parquet, where 1 problems"):
        evaluated(Project(copy), "laptop", "sft/free")
    shutil.rmtree(folder)


def test_more_core_minutes_than_allowed_are_refused(copy):
    entry, path = evaluated(Project(copy), "laptop", "sft/free"), copy / "data/reference/laptop/sft/free/1/run.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"elapsed": 30 * CORE_MINUTES + 30, "threads": 2}))
    with pytest.raises(RunError, match=f"61 core-minutes of training, and {CORE_MINUTES} are allowed"):
        line("laptop", "sft/free", entry)
    path.unlink()
    with pytest.raises(RunError, match="what sft/free/1 took is not known"):
        line("laptop", "sft/free", entry)
    path.write_text(before)


@pytest.mark.parametrize("method, profile", ENTRIES)
def test_the_records_are_those_of_the_published_results(method, profile):
    told = line(profile, method, evaluated(Project(), profile, method))
    assert f"\n{told} | " in RECORDS.read_text(), f"`make record METHOD={method} PROFILE={profile}` writes it"


@pytest.mark.slow
def test_an_entry_is_made_where_it_is_missing(copy, warm_kernels):
    """SFT and its samples in miniature, through the front door: of five seeds one is here, three are published."""

    def front_door(*arguments: str) -> None:
        command = [sys.executable, "-m", "lib.runs", *arguments, "--cores", "2"]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    front_door("make", "smoke", "sample/sft_free/0")
    specs = Project(copy).specs("smoke")
    for name in ("sft/free", "sample/sft_free"):
        for spec in (specs[f"{name}/{seed}"] for seed in (1, 2, 3)):
            shutil.copytree(specs[f"{name}/0"].folder, spec.reference)
            relabel(spec.reference, spec)
    front_door("record", "smoke", "sft/free")
    assert {path.name for path in specs["sft/free/0"].folder.parent.iterdir()} == {"0", "4"}
    assert "| `make record METHOD=sft/free PROFILE=smoke` | 0.0 [" in (copy / "RECORDS.md").read_text()
