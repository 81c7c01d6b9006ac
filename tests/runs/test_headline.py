"""`make gpu-headline` in miniature, on a CPU: a tiny random model, its stages stopped and gone on
with, and results that others read. Its packages for Jupyter cannot be imported."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from lib.files import ROOT
from lib.learn import model
from lib.runs import headline
from lib.runs.declare import DeclarationError
from lib.runs.headline import Card, Cost, Making, Stage, side_by_side, startable
from lib.runs.machine import locked
from lib.runs.make import outdated
from lib.runs.plan import Plan, Project, other_code
from lib.study import compare, explorer, plots
from tests.bench.memory import SMOL
from tests.conftest import copy_of_the_repository, this_project
from tests.runs.test_paper_profile import qwen

ABSENT = [
    "papermill",
    "snakemake",
    "IPython",
    "nbformat",
    "nbclient",
    "ipykernel",
    "jupyter_client",
]
UPDATES = 30  # of SFT: it is stopped after the first
SMALL = {
    "10_train_sft": {"eval_demonstrations": 4, "batch_size": 4, "log_every": 1, "save_every": 1},
    "11_train_rloo": {
        **{"steps": 2, "warmup_steps": 0, "average_from": 0, "save_every": 1, "eval_every": 2},
        **{"problems_per_step": 2, "group_size": 8, "micro_batch": 8, "max_tokens": 8},
        "eval_problems": 2,
    },
    "15_sample_rollouts": {"sets": {"heldout_1000": 16}, "limit": 3, "max_tokens": 8},
}
STAGES = ["sample/sft_free", "sample/rloo_cov_pass4"]  # and what these need: four stages


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A copy of the repository with a small profile `card`, a model, and an environment."""
    folder = tmp_path_factory.mktemp("headline")
    root = copy_of_the_repository(folder / "copy")
    declared = yaml.safe_load((root / "papermill_runs.yaml").read_text())
    card = declared["profiles"]["card"]
    card["params"]["lora_r"] = 2
    for notebook, given in SMALL.items():
        card["notebooks"][notebook] |= given
    card["runs"]["sft/free"] |= {"demonstrations": 4 * UPDATES + 12}
    (root / "papermill_runs.yaml").write_text(yaml.safe_dump(declared))
    policy, tokenizer = qwen(vocab_size=1000)
    policy.save_pretrained(folder / "tiny")
    tokenizer.save_pretrained(folder / "tiny")
    for name in ABSENT:
        (folder / "absent" / name).mkdir(parents=True)
        (folder / "absent" / name / "__init__.py").write_text("raise ImportError('not on a card')")
    return folder


def command(place: Path, *words: str) -> dict:
    """The arguments of subprocess for a command of `python -m lib.runs` in the copy."""
    paths = [str(place / "copy"), str(place / "absent")]
    return {
        "args": [sys.executable, "-m", "lib.runs", *words],
        "cwd": place / "copy",
        "env": os.environ
        | {"COUNTDOWN_RUNS": str(place / "runs"), "PYTHONPATH": os.pathsep.join(paths)},
        "text": True,
    }


def headline_of(place: Path) -> dict:
    return command(place, "headline", *STAGES, "--model", str(place / "tiny"), "--cores", "2")


@pytest.fixture(scope="module")
def stopped(place) -> tuple[str, int]:
    """What the command says if it is stopped in the middle of SFT, and the update that was saved
    last."""
    saved = place / "runs/card-tiny/sft/free/0/trainer"
    process = subprocess.Popen(
        **headline_of(place), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not list(saved.glob("checkpoint-*/complete.json")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode, said
    return said, max(int(path.name.partition("-")[2]) for path in saved.glob("checkpoint-*"))


@pytest.fixture(scope="module")
def gone_on(place, stopped) -> str:
    """What the same command says when it is given again."""
    done = subprocess.run(**headline_of(place), capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def of_the_place(place, monkeypatch) -> Path:
    """Tables of studies read the runs of the copy."""
    for module in (compare, explorer):
        monkeypatch.setattr(module, "RUNS", place / "runs")
    return place / "runs/card-tiny"


def test_it_is_stopped_with_all_that_it_has_started(place, stopped, capsys):
    said, newest = stopped
    assert "4 stages, 0 of them finished" in said and "minutes are those of an H100" in said
    assert "goes on from here" in said
    assert newest < UPDATES, "it was not stopped in time"
    with locked(place / "runs/card-tiny/sft/free/0", "sft"):  # it would wait for what goes on
        assert "waiting" not in capsys.readouterr().out


def test_it_goes_on_to_the_table_and_the_figure(gone_on, of_the_place):
    trained = of_the_place / "sft/free/0"
    assert "goes on from checkpoint-" in (trained / "log.txt").read_text()
    log = pd.read_csv(trained / "metrics.csv")
    assert [*log["step"]] == [*range(1, len(log) + 1)] and log["loss"].notna().all()
    assert len(log) >= UPDATES
    assert "Best of 4" in gone_on and "solved with one sample" in gone_on
    levels = pd.read_csv(of_the_place / "headline.csv")
    assert {*levels["method"]} == {"sft/free", "rloo/cov_pass4"}
    lines = pd.read_csv(of_the_place / "headline_lines.csv")
    assert {*lines["method"]} == {*levels["method"]} and (lines["tokens"] > 0).all()
    assert plots.title_of(of_the_place / "headline.png")


def test_its_records_are_those_of_any_run(place, gone_on, of_the_place):
    for name in ("sft/free", "rloo/cov_pass4", "sample/sft_free", "sample/rloo_cov_pass4"):
        record = json.loads((of_the_place / name / "0/run.json").read_text())
        assert record["status"] == "finished" and record["profile"] == "card-tiny"
        assert record["core_seconds"] > 1 and record["peak_memory_mb"] > 100
        assert {"files", "game.problem", "learn.model", "notebook"} <= record["executed"].keys()
    project = Project(place / "copy")
    project.runs = place / "runs"
    profile = headline.with_model(project, str(place / "tiny"))
    plan = headline.planned(project, profile, STAGES)
    assert len(plan.specs) == 4 and not plan.waiting
    assert not any(other_code(project, spec) for spec in plan.specs.values())


def test_compare_and_the_explorer_find_its_results(gone_on, of_the_place):
    found = compare.compare("rloo/cov_pass4", "sft/free", "card-tiny")
    assert found.table["problems"].max() == 3 and "made here" in compare.told(found)
    assert [*explorer.find("card-tiny", "generations.parquet")] == [
        "sample/sft_free/0 (yours)",
        "sample/rloo_cov_pass4/0 (yours)",
    ]
    project = Project(ROOT)
    project.runs = of_the_place.parent
    assert outdated(project, "card-tiny", ["sample/sft_free"]) == []
    with pytest.raises(DeclarationError, match="'card-tin'"):
        outdated(project, "card-tin", [])


def test_once_more_it_trains_nothing(place, gone_on, of_the_place):
    record = of_the_place / "sample/sft_free/0/run.json"
    written = record.stat().st_mtime_ns
    said = subprocess.run(**headline_of(place), capture_output=True).stdout
    assert "4 stages, 4 of them finished" in said and "Best of 4" in said
    assert record.stat().st_mtime_ns == written


def test_a_stage_that_fails_is_named_and_what_needs_it_is_left(tmp_path, monkeypatch, capsys):
    """The others are made. Processes of the shell stand in for stages."""
    plan = headline.planned(this_project(), "card", ["card"])
    costs = costs_of(plan, 1, 1)
    began = []

    def started(project, spec, device, model):
        began.append(spec.name)
        return subprocess.Popen(["false" if spec.name == "rloo/ast_tau2/0" else "true"])

    monkeypatch.setattr(headline, "started", started)
    making = Making(plan, Card(None, "", 80 * GIB, 8), costs, [*costs])
    headline.run_stages(this_project(), making, "", every=0.01)
    assert making.failed == ["rloo/ast_tau2/0"] and began[0] == "sft/free/0"
    assert {*began} == {*plan.specs} - {"sample/rloo_ast_tau2/0"}
    assert "! rloo/ast_tau2/0 failed, its log is" in capsys.readouterr().out


def test_it_ends_its_stages_when_it_is_stopped(monkeypatch):
    """Those too that do not listen at once."""
    plan = headline.planned(this_project(), "card", ["sft/free"])
    deaf = "trap '' TERM; while true; do sleep 0.05; done"
    options = {"start_new_session": True, "stdin": subprocess.DEVNULL}
    process = subprocess.Popen(["sh", "-c", deaf], **options)
    monkeypatch.setattr(headline, "started", lambda *given: process)
    monkeypatch.setattr(headline, "PATIENCE", 0.2)
    answers = iter([["sft/free/0"]])

    def startable(*given):
        for answer in answers:
            return answer
        raise KeyboardInterrupt  # as Ctrl-C does, a moment later

    monkeypatch.setattr(headline, "startable", startable)
    costs = costs_of(plan, 1, 1)
    making = Making(plan, Card(None, "", GIB, 1), costs, [*costs])
    with pytest.raises(KeyboardInterrupt):
        headline.run_stages(this_project(), making, "", every=1)
    assert process.poll() is not None


def test_the_group_is_the_headline():
    project = this_project()
    assert [*headline.planned(project, "card", ["card"]).specs] == [
        *["sft/free/0", "sample/sft_free/0", "rloo/sparse/0", "rloo/ast_tau2/0"],
        *["rloo/cov_pass4/0", "sample/rloo_sparse/0", "sample/rloo_ast_tau2/0"],
        "sample/rloo_cov_pass4/0",
    ]


GIB = 2**30


def costs_of(plan: Plan, training: float, sampling: float) -> dict[str, Cost]:
    """Stages that need so many GiB."""
    costs = {}
    for name in plan.specs:
        samples = name.startswith("sample/")
        costs[name] = Cost(
            int((sampling if samples else training) * GIB), 60.0, 0 if samples else 9
        )
    return costs


@pytest.mark.parametrize(
    ("gib", "cores", "trainings"), [(80, 16, 3), (30, 16, 3), (29, 16, 2), (9, 16, 1), (80, 2, 2)]
)
def test_as_many_trainings_share_the_card_as_its_memory_and_the_cores_allow(gib, cores, trainings):
    plan = headline.planned(this_project(), "card", ["card"])
    costs = costs_of(plan, training=10, sampling=8)
    card = Card("GPU-1", "a card", gib * GIB, cores)
    assert side_by_side(card, costs) == trainings
    making = Making(plan, card, costs, [*costs])
    assert startable(making) == ["sft/free/0"], "all others wait for it"
    making.waiting.remove("sft/free/0")
    first = startable(making)
    assert [name for name in first if name[:4] == "rloo"] == first[:trainings], "samples come last"
    assert len([name for name in first if name[:4] == "rloo"]) == trainings
    assert sum(costs[name].memory for name in first) <= max(card.memory, 10 * GIB)
    assert len(first) <= cores
    for name in first:
        making.running[name] = Stage(process=None)
        making.waiting.remove(name)
    assert not startable(making)


def test_what_depends_on_a_failed_stage_is_not_started():
    plan = headline.planned(this_project(), "card", ["card"])
    costs = costs_of(plan, 1, 1)
    waiting = [name for name in costs if name.startswith("sample/")]
    making = Making(plan, Card(None, "", 80 * GIB, 8), costs, waiting, failed=["rloo/sparse/0"])
    assert startable(making) == [
        "sample/sft_free/0",
        "sample/rloo_ast_tau2/0",
        "sample/rloo_cov_pass4/0",
    ]


def test_it_says_what_it_will_take(place, monkeypatch):
    """Of a model in the shape of SmolLM2-135M, on a card of 80 GiB: within half an hour, if three
    trainings share it. What each training says before it begins is what is predicted here."""
    project = Project(ROOT)
    plan = headline.planned(project, "card", ["card"])
    with torch.device("meta"):
        smol = LlamaForCausalLM(LlamaConfig(**SMOL, tie_word_embeddings=True))
    monkeypatch.setattr(headline, "outline", lambda base, lora_r: smol)
    monkeypatch.setattr(headline, "longest_prompt", lambda base, style: 22)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(model, "machine_memory", lambda: 80 * GIB)
    costs = headline.costs(project, plan)
    rloo = costs["rloo/sparse/0"]
    expected = model.training_memory(smol, 24, 22 + 320, True) + headline.CONTEXT
    assert rloo.memory == int(expected)
    seconds = 140 * 24 * 8 * 320 * (1 / 27_400 + 1 / 16_400)  # every rollout as long as it may be
    assert rloo.seconds == pytest.approx(seconds)
    said = headline.what_it_takes(plan, Card("GPU-1", "a card", 72 * GIB, 16), costs, "SmolLM2")
    assert "SmolLM2 on a card: 8 stages, 0 of them finished" in said
    assert "for 3 of the trainings" in said and "never run on a card" in said
    minutes = float(re.search(r"about (\d+):\d\d if", said)[1])
    assert 15 < minutes < 30
    small = headline.what_it_takes(plan, Card("GPU-1", "a card", 6 * GIB, 16), costs, "SmolLM2")
    assert "! too large for it: sft/free/0, rloo/sparse/0" in small and "micro_batch" in small


def test_a_larger_model_is_taken_to_be_slower(place, monkeypatch):
    """As many times as it has parameters, where no stage of it is recorded."""
    project = Project(ROOT)
    plan = headline.planned(
        project, headline.with_model(project, str(place / "tiny")), ["sft/free"]
    )
    small = headline.costs(project, plan)["sft/free/0"].seconds
    with torch.device("meta"):
        large = LlamaForCausalLM(LlamaConfig(**SMOL | {"num_hidden_layers": 120}))
    monkeypatch.setattr(headline, "outline", lambda base, lora_r: large)
    times = large.num_parameters() / headline.SHAPE
    assert times > 3
    assert headline.costs(project, plan)["sft/free/0"].seconds == pytest.approx(times * small)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(DeclarationError, match=r"there is no config\.json"):
        headline.with_model(Project(ROOT), str(tmp_path))


def test_the_last_line_of_a_log_is_that_of_its_progress(tmp_path):
    log = tmp_path / "log.txt"
    assert headline.last_line(log) == "begins"
    log.write_text(
        "memory: about 1 GiB\nRLOO step 1/3, 0:01 elapsed\rRLOO step 2/3, 0:02 elapsed\r\n"
    )
    assert headline.last_line(log) == "RLOO step 2/3, 0:02 elapsed"
