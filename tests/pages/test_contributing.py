"""The instructions of README and CONTRIBUTING for newcomers, followed word for word in a copy of
the repository."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from lib.files import ROOT, read_table
from lib.game.problem import as_problems
from lib.game.sets import load
from tests.conftest import copy_of_the_repository

BLOCK = re.compile(r"```(python|yaml|sh|csv)\n(.*?)```", re.DOTALL)


pytestmark = pytest.mark.usefixtures("warm_kernels")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    return copy_of_the_repository(tmp_path_factory.mktemp("newcomer") / "copy")


def told(document: str, heading: str) -> dict[str, str]:
    """The code of a section: language to text."""
    section = (ROOT / document).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(BLOCK.findall(section))


def declare(copy: Path, entry: str) -> None:
    declared = copy / "papermill_runs.yaml"
    declared.write_text(declared.read_text().replace("\nruns:\n", "\nruns:\n" + entry, 1))


def make(copy: Path, command: str) -> Path:
    """What the command's `make study GROUP=...` does, in profile smoke; the folder of its last run
    of seed 0."""
    targets = re.search(r'GROUP="?([^"\n#]+)', command)[1].split()
    front = [sys.executable, "-m", "lib.runs", "make", "smoke", *targets, "--cores", "2"]
    here = {key: value for key, value in os.environ.items() if not key.startswith("COUNTDOWN")}
    done = subprocess.run(front, cwd=copy, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return copy / "data/runs/smoke" / targets[-1] / "0"


def test_your_own_reward_in_ten_lines(copy):
    parts = told("README.md", "Your own reward in ten lines")
    assert len("".join(parts.values()).strip().splitlines()) <= 14
    with (copy / "lib/rewards.py").open("a") as file:
        file.write("\n\n" + parts["python"])
    declare(copy, parts["yaml"])
    part = re.search(r'"(\w+)":', parts["python"])[1]
    sampled = make(copy, parts["sh"])
    assert (sampled / "generations.parquet").exists()
    trained = copy / "data/runs/smoke/rloo/brief/0"
    assert f"reward_{part}" in read_table(trained / "metrics.csv")


def test_a_slip_in_the_file_of_rewards_is_named_by_its_line(copy):
    """Users write there: no traceback, but the file, the line and what is wrong."""
    file = copy / "lib/rewards.py"
    whole = file.read_text()
    check = [sys.executable, "-m", "lib.runs", "check"]
    try:
        for slip, said in (
            ('@registre("x")\ndef x(): ...', "NameError"),
            ("def x(:", "SyntaxError"),
        ):
            file.write_text(f"{whole}\n{slip}\n")
            done = subprocess.run(check, cwd=copy, capture_output=True, text=True)
            line = len(whole.splitlines()) + 2
            assert done.returncode == 1 and "Traceback" not in done.stderr
            assert f"lib/rewards.py, line {line}: {said}" in done.stderr
    finally:
        file.write_text(whole)


def test_a_short_trial_fits_the_profile(copy):
    """The entry of the fourth step; and without what it sets for this, it is refused."""
    document = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    [params] = re.findall(r"`params: ({ reward: brief, .*?})`", document)
    check = [sys.executable, "-m", "lib.runs", "check"]
    for given, status in (params, 0), (params.replace("warmup_steps: 0, average_from: 0,", ""), 1):
        entry = f"  rloo/trial: {{ params: {given.replace('reward: brief', 'reward: sparse')} }}\n"
        declared = copy / "papermill_runs.yaml"
        before = declared.read_text()
        try:
            declare(copy, entry)
            done = subprocess.run(check, cwd=copy, capture_output=True, text=True)
        finally:
            declared.write_text(before)
        assert done.returncode == status, done.stderr
    assert "warmup_steps=10" in done.stderr and "average_from=100" in done.stderr


def test_a_new_study_notebook(copy, tmp_path):
    parts = told("CONTRIBUTING.md", "A new study notebook")
    cells = [
        nbformat.v4.new_code_cell(text.strip()) for text in parts["python"].split("# %%\n")[1:]
    ]
    cells[1].metadata["tags"] = ["parameters"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# 70 · Two policies"), *cells]
    )
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    declare(copy, parts["yaml"])
    name = re.search(r"notebook: (\w+)", parts["yaml"])[1]
    path = copy / f"notebooks/{name}.ipynb"
    nbformat.write(notebook, path)
    for how in (["check"], ["format", "--check"]):  # as make lint does
        ruff = [sys.executable, "-m", "ruff", *how, "--no-cache", str(path)]
        done = subprocess.run(ruff, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    table = read_table(make(copy, parts["sh"]) / "two_policies.csv")
    assert set(table["method"]) == {"sft/free", "rloo/sparse"} and set(table["metric"]) == {
        "pass@1",
        "pass@4",
    }

    names: dict = {}  # and by hand, on the committed results
    for cell in cells[:3]:
        exec(cell.source, names)
        names["output"] = str(tmp_path)
    assert set(names["table"]["n_problems"]) == {1000} and set(names["table"]["runs"]) == {5}


def test_problems_of_your_own(copy):
    parts = told("CONTRIBUTING.md", "Problems of your own")
    (copy / "my_problems.csv").write_text(parts["csv"])
    declare(copy, parts["yaml"])
    rows = read_table(make(copy, parts["sh"]) / "generations.parquet")
    asked = [
        f"{' '.join(map(str, nums))},{target}"
        for nums, target in zip(rows["nums"], rows["target"], strict=True)
    ]
    assert set(asked) == set(parts["csv"].split("\n")[1:-1]) and set(rows["set"]) == {
        "my_problems.csv"
    }
    assert rows.groupby("problem")["count"].sum().eq(4).all()
    # the run trains on all of them: none is an evaluation problem, which would be left out
    printed = (copy / "data/runs/smoke/rloo/my_problems/0/log.txt").read_text()
    assert "my_problems.csv: 3 of 3 problems; the others are in an evaluation set" in printed
    log = read_table(copy / "data/runs/smoke/rloo/my_problems/0/metrics.csv")
    record = json.loads((copy / "data/runs/smoke/rloo/my_problems/0/run.json").read_text())
    assert log["eval_accuracy"].notna().all() and record["parameters"]["eval_problems"] > len(
        set(asked)
    )


def test_rows_of_reasoning_gym(copy, monkeypatch):
    """The block that writes them, with the committed rows in the package's place."""
    block = told("CONTRIBUTING.md", "Problems of your own")["python"]
    written = (ROOT / "tests/game/reasoning_gym.jsonl").read_text()
    rows = [json.loads(line) for line in written.splitlines()]
    gym = SimpleNamespace(create_dataset=lambda name, size: rows[:size])
    monkeypatch.chdir(copy)
    exec(block, {"json": json, "reasoning_gym": gym})
    assert (
        as_problems(load(str(copy / "gym.jsonl"), "train"))[0].target
        == rows[0]["metadata"]["target"]
    )


def test_a_reward_of_trls(copy):
    # of several blocks in a language the last
    parts = told("CONTRIBUTING.md", "TRL's trainers and rewards")
    (copy / "my_trl.py").write_text(parts["python"])
    declare(copy, parts["yaml"])
    assert len(read_table(make(copy, parts["sh"]) / "metrics.csv")) == 2
