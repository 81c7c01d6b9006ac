"""Runs through the real runner: papermill, kernels and Snakemake on tiny notebooks in a scratch checkout."""

import json
import math
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import nbformat
import pandas as pd
import pytest
import yaml
from jupyter_client.manager import start_new_kernel

from lib.files import ROOT, clock, nearest, progress, sha256, verify
from lib.runs import Run, read_table
from lib.runs import __main__ as commands
from lib.runs import front as making
from lib.runs import process as machine
from lib.runs.execute import DIE_WITH_PARENT, QUIET, described, execute
from lib.runs.folder import provenance
from lib.runs.front import MACHINES, limits, time_left
from lib.runs.parameters import check
from lib.runs.plan import DeclarationError, Project, Spec, read_record
from lib.runs.process import PARENT, RunError, gpu

TRAIN = """
output = "data/runs/scratch/train"  # where results go
seed = 0
init = "data/runs/laptop/t/base/0"  # the run to start from
steps = 3
rate = 1e-3  # learning rate
pause = 0.0  # seconds a step
fail = False
"""
TRAIN_CODE = """
import time
from pathlib import Path
from lib.runs import Run, atomic, progress
run = Run(output)
checkpoint = run / "checkpoint" / "step.txt"
checkpoint.parent.mkdir(exist_ok=True)
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("starts at step", first)
for step in progress(range(first, steps), steps, "step"):
    time.sleep(pause)
    with atomic(checkpoint) as path:
        path.write_text(str(step + 1))
if fail:
    raise ArithmeticError("the loss is gone")
"""
TRAIN_END = """
import pandas as pd
start = Path(init, "value.txt").read_text() if Path(init, "value.txt").exists() else "base"
(run / "value.txt").write_text(f"{start} {steps}x{rate}")
run.write(pd.DataFrame({"step": range(steps)}), "metrics.csv")
"""
BASE = 'output = "data/runs/scratch/base"\nseed = 0\nsteps = 1\nrate = 0.5\npause = 0.0\nfail = False'
STUDY = 'output = "data/runs/scratch/study"\nseed = 0\nsources = ["data/runs/laptop/a"]'
STUDY_CODE = """
import pandas as pd
from lib.runs import Run
run = Run(output)
run.report(run.write(pd.DataFrame({"sources": sources}), "table.csv"))
run.footer()
"""
DECLARATIONS = {
    "profiles": {"laptop": {}, "smoke": {"notebooks": {"train": {"steps": 1}}}},
    "runs": {
        "t/base": {"notebook": "base", "keep_checkpoint": True},
        "t/train_{rate}": {
            "notebook": "train",
            "grid": {"rate": [0.1, 0.2]},
            "params": {"rate": "{rate}"},
            "needs": {"init": "t/base"},
        },
        "study/study": {"notebook": "study", "needs": {"sources": ["t/train_*"]}},
    },
    "groups": {"all": ["*"]},
}


def write_notebook(path: Path, parameters: str, *cells: str) -> None:
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    rest = [nbformat.v4.new_code_cell(cell) for cell in cells]
    path.parent.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[first, *rest]), path)


class Checkout(Project):
    """A scratch copy of the runner with three notebooks of its own."""

    def declare(self, change=lambda declarations: None) -> None:
        declarations = json.loads(json.dumps(DECLARATIONS))
        change(declarations)
        (self.root / "papermill_runs.yaml").write_text(yaml.safe_dump(declarations))

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        command = [sys.executable, "-m", "lib.runs", *arguments]
        env = {key: value for key, value in options.pop("env", os.environ).items() if key != "COUNTDOWN_RUNS"}
        return subprocess.Popen(
            command, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )

    def call(self, *arguments: str, status: int = 0) -> str:
        process = self.start(*arguments)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == status, said
        return said

    def record(self, run: str, profile: str = "laptop") -> dict:
        return json.loads((self.folder(run, profile) / "run.json").read_text())

    def value(self, run: str) -> str:
        return (self.folder(run) / "value.txt").read_text()

    def folder(self, run: str, profile: str = "laptop") -> Path:
        return self.runs / profile / ("study" if run == "study" else "t") / run / "0"


def test_a_name_that_is_near_no_other_is_answered_by_few():
    names = [f"rloo/run_{i}/{seed}" for i in range(20) for seed in range(3)]
    said = nearest("zzzz", ["headline", *names, *names])
    assert said.startswith("; there are: headline, rloo/run_0/0, ") and said.endswith(" and 31 more")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name in ("lib/__init__.py", "lib/files.py", "Snakefile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "lib/runs", tmp_path / "lib/runs", ignore=shutil.ignore_patterns("__pycache__"))
    write_notebook(tmp_path / "notebooks/base.ipynb", BASE, "init = 'none'\n" + TRAIN_CODE, TRAIN_END)
    write_notebook(tmp_path / "notebooks/train.ipynb", TRAIN, TRAIN_CODE, TRAIN_END)
    write_notebook(tmp_path / "notebooks/study.ipynb", STUDY, STUDY_CODE)
    project = Checkout(tmp_path)
    project.declare()
    return project


# -- refused before anything starts ----------------------------------------------------------------


def set_in(*path, value):
    """A change to the declarations: set the value at a path."""

    def change(declarations: dict) -> None:
        *parents, last = path
        for key in parents:
            declarations = declarations.setdefault(key, {})
        declarations[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_in("runs", "t/base", "params", value={"rat": 0.1}), "run t/base/0: parameter of base 'rat'.*'rate'"),
        (set_in("runs", "t/base", "notebook", value="bas"), "notebook 'bas'.*'base'"),
        (set_in("runs", "t/base", "note", value="base"), "runs.t/base.note: unknown key.*'notebook'"),
        (set_in("profiles", "smoke", "param", value={}), "profiles.smoke.param: unknown key.*'params'"),
        (set_in("group", value={}), "group: unknown key.*'groups'"),
        (
            set_in("profiles", "smoke", "params", value={"sted": 1}),
            "profiles.smoke.params: parameter 'sted'.*'seed'",
        ),
        (set_in("profiles", "smoke", "notebooks", value={"trai": {}}), "notebook 'trai'.*'train'"),
        (set_in("profiles", "smoke", "runs", value={"stud": {}}), "profiles.smoke.runs: run 'stud'.*'study/study'"),
        (
            set_in("profiles", "smoke", "notebooks", "train", value={"stepz": 1}),
            "profile smoke.*'stepz'.*'steps'",
        ),
        (set_in("groups", "all", value=["stdy"]), "groups.all: run 'stdy'.*'study/study'"),
        (set_in("runs", "study/study", "needs", value={"sources": ["t/trian_0.1"]}), "'t/trian_0.1'.*'t/train_0.1'"),
        (set_in("runs", "study/study", "needs", value={"sorces": ["t/base"]}), "'sorces'.*'sources'"),
        (
            set_in("runs", "study/study", "needs", value={"sources": "t/base"}),
            "sources is 't/base/0', a str.*expects a list",
        ),
        (set_in("runs", "t/base", "needs", value={"fail": "study/study"}), "cycle in needs: .*t/base/0 -> "),
        (
            set_in("runs", "t/train_{rate}", "grid", value={"rate": [0.1, 0.1]}),
            "two runs are called 't/train_0.1/0'",
        ),
        (set_in("runs", "t/train_{rate}", "grid", "depth", value=[1]), r"grid.depth: \{depth\} stands nowhere"),
        (set_in("runs", "t/train_{rate}", "grid", value={"rate": []}), "grid.rate"),
        (set_in("runs", "t/train_{rate}", "params", "depth", value="{rat}"), r"\{rat\} is no key of its grid.*rate"),
        (set_in("runs", "t/train_{rate}", "params", "init", value="x"), "init stands in params, and again in needs"),
        (set_in("runs", "study/study", "needs", value={"sources": []}), "its needs must say which"),
        (
            set_in("runs", "t/train_{rate}", "params", value={"rate": "a{rate}"}),
            "rate is 'a0.1', a str.*expects a float",
        ),
        (set_in("runs", "t/base", "params", value={"steps": 1.5}), "steps is 1.5, a float.*expects a int"),
        (set_in("runs", "t/base", "params", value={"steps": True}), "steps is True, a bool.*expects a int"),
        (set_in("runs", "t/base", "params", value={"output": "x"}), "output is set by the runner"),
        (set_in("runs", "a", value={"notebook": "base"}), "'a' is no name of a run"),
        (set_in("runs", "t/..", value={"notebook": "base"}), "'t/..' is no name of a run"),
        (set_in("runs", "t/.", value={"notebook": "base"}), "'t/.' is no name of a run"),
        (set_in("runs", "t/.base", value={"notebook": "base"}), "'t/.base' is no name of a run"),
        (set_in("runs", "-t/base", value={"notebook": "base"}), "'-t/base' is no name of a run"),
        (set_in("groups", "none", value=[]), "groups.none: it names no run"),
        (set_in("groups", "t/base", value=["t/base"]), "'t/base' is no name of a group"),
        (set_in("groups", "-all", value=["t/base"]), "'-all' is no name of a group"),
        (set_in("profiles", "..", value={}), "'..' is no name for a folder of runs"),
        (set_in("profiles", "a/b", value={}), "'a/b' is no name for a folder of runs"),
        (set_in("profiles", "reference", value={}), "'reference' is no name for a folder of runs"),
        (set_in("profiles", "2024", value={}), "'2024' is no name for a folder of runs"),
        (set_in("runs", "t/" + "x" * 101, value={"notebook": "base"}), "is no name of a run"),
    ],
)
def test_refused_with_the_nearest_name(checkout, change, message):
    checkout.declare(change)
    with pytest.raises(DeclarationError, match=message):
        checkout.check()
    assert not checkout.runs.exists()


def test_unknown_profile_and_group_are_refused(checkout):
    with pytest.raises(DeclarationError, match="profile 'latpop'.*'laptop'"):
        checkout.plan("latpop", "all")
    with pytest.raises(DeclarationError, match="group or run 'al'.*'all'"):
        checkout.plan("laptop", "al")


def test_unknown_reward_and_option_are_refused(checkout):
    write_notebook(checkout.root / "notebooks/base.ipynb", BASE + '\nreward = "sparse"\nreward_options = {}')
    checkout.declare(set_in("runs", "t/base", "params", value={"reward": "sparce"}))
    with pytest.raises(DeclarationError, match="run t/base/0.*sparce.*sparse"):
        checkout.check()


@pytest.mark.parametrize(
    ("curriculum", "options", "message"),
    [
        ("bandid", {}, "run t/base/0: curriculum is 'bandid'.*'bandit'"),
        ("bandit", {"alfa": 1}, "option .*'alfa'.*'alpha'"),
        ("bandit", {"data": 1}, "option .*'data'"),
        ("mixed", {"cuont": 4}, "option .*'cuont'.*'count'"),
    ],
)
def test_unknown_curriculum_and_option_are_refused(checkout, curriculum, options, message):
    write_notebook(checkout.root / "notebooks/base.ipynb", BASE + '\ncurriculum = ""\ncurriculum_options = {}')
    checkout.declare(
        set_in("runs", "t/base", "params", value={"curriculum": curriculum, "curriculum_options": options})
    )
    with pytest.raises(DeclarationError, match=message):
        checkout.check()


@pytest.mark.parametrize(
    ("parameter", "wrong", "message"),
    [
        ("prompt_style", "fre", "run t/base/0: prompt_style is 'fre'.*'free'"),
        ("engine", "transformer", "run t/base/0: engine is 'transformer'.*'transformers'"),
        ("sets", {"heldout_100": 4}, "run t/base/0: sets.heldout_100 is 'heldout_100'.*'heldout_1000'"),
        ("eval_rewards", ["sparse", "progam"], "run t/base/0: eval_rewards.1 is 'progam'.*'program'"),
    ],
)
def test_unknown_prompt_engine_and_set_are_refused(checkout, parameter, wrong, message):
    defaults = 'prompt_style = "free"\nengine = "transformers"\nsets = {"test_50": 4}\neval_rewards = ["sparse"]'
    write_notebook(checkout.root / "notebooks/base.ipynb", f"{BASE}\n{defaults}")
    checkout.declare(set_in("runs", "t/base", "params", value={parameter: wrong}))
    with pytest.raises(DeclarationError, match=message):
        checkout.check()


IMPOSSIBLE = {
    "learning_rate": [math.nan, -1.0, math.inf, 0.0],
    "temperature": [-1.0, math.nan, math.inf],
    "group_size": [0, 1, -2],
    "max_tokens": [0, 10**9],
    "eval_problems": [-1, 5000],
    "seed": [-1],
    "limit": [-3],
    "importance_cap": [0.0],
    "think_weight": [math.nan],
    "kl_coef": [math.inf],
    "weight_decay": [-1.0],
    "problem_set": ["4num", "6num"],
    "source": ["hubb"],
    "sets": [{"test_50": 0}, {"test_50": "three"}, {}],
    "reward_options": [{"tau": "two"}, {"tau": None}],
}
COUNTS = ["steps", "save_every", "eval_every", "problems_per_step", "micro_batch", "num_iterations", "draws"]
IMPOSSIBLE |= {name: [0, -5, 10**21] for name in COUNTS}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_an_impossible_value_is_refused_before_the_start_and_by_hand(tmp_path, name, value):
    whole = {"reward": "ast", "eval_set": "validation_200", "steps": 4, "save_every": 2, "temperature": 1.0}
    whole |= {"problems_per_step": 2, "group_size": 4, "micro_batch": 4, "num_iterations": 1, "name": "x"}
    check(whole | {"reward_options": {"tau": 2}})
    with pytest.raises(ValueError, match="tau" if name == "reward_options" else name):
        check(whole | {name: value})
    with pytest.raises(ValueError, match="tau" if name == "reward_options" else name):
        Run(tmp_path / "run", globals() | whole | {name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batch": 5}, "micro_batch=5 does not divide the 192 rollouts"),
        ({"num_iterations": 3}, "num_iterations=3 does not divide"),
        ({"temperature": 0.0}, "temperature is 0.0: "),
        ({"average_from": 51}, "steps=50 cannot hold .* average_from=51"),
        ({"decay_steps": 50, "warmup_steps": 1}, "steps=50 cannot hold warmup_steps=1 and decay_steps=50"),
        ({"pass_k": 8, "advantage": "pass_at_k"}, "pass_at_k in groups of 8 has 1 to 7"),
        ({"most_failures": -1}, "most_failures"),
    ],
)
def test_values_that_do_not_fit_each_other_are_refused(change, message):
    whole = Project().specs("laptop")["rloo/sparse/0"].params
    check(whole)
    with pytest.raises(ValueError, match=message):
        check(whole | change)


@pytest.mark.parametrize(
    ("key", "value"),
    [("threads", 0), ("threads", -1), ("mem_mb", -5), ("mem_mb", 99999999), ("grid", {"seed": [1, 1]})],
)
def test_impossible_resources_and_seeds_are_refused(checkout, key, value):
    checkout.declare(set_in("runs", "t/base", key, value=value))
    with pytest.raises(DeclarationError, match=rf"runs.t/base.*{'two runs' if key == 'grid' else key}"):
        checkout.check()


@pytest.mark.parametrize("seed", [-1, "one"])
def test_an_impossible_seed_is_refused(checkout, seed):
    checkout.declare(set_in("runs", "t/base", "grid", value={"seed": [0, seed]}))
    with pytest.raises(DeclarationError, match="t/base: seed is"):
        checkout.check()


def test_a_study_without_runs_is_refused(checkout):
    checkout.declare(set_in("runs", "study/study", "needs", value={}))
    with pytest.raises(DeclarationError, match="runs.study/study: a study reads other runs"):
        checkout.check()


@pytest.mark.parametrize("content", [b"", b"- a\n- b\n", b"\xff\xfe\x00", b"runs: [", None])
def test_a_yaml_that_is_none_is_answered_in_a_sentence(checkout, content):
    path = checkout.root / "papermill_runs.yaml"
    path.unlink() if content is None else path.write_bytes(content)
    for command in (["check"], ["status"], ["make", "laptop", "all"]):
        said = checkout.call(*command, status=1)
        assert said.startswith("! papermill_runs.yaml") and "Traceback" not in said


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["seed = 0"], "base.ipynb: its parameters cell has no `output`"),
        (["output = ''\nseed = 1 + x"], "flat literals only"),
        (["output = ''\nimport os"], "flat literals only: `import os` is no assignment"),
    ],
)
def test_parameters_cell_must_hold_literals(checkout, cells, message):
    write_notebook(checkout.root / "notebooks/base.ipynb", *cells)
    with pytest.raises(DeclarationError, match=message):
        checkout.check()


def test_notebook_without_tag_and_broken_files_are_refused(checkout):
    path = checkout.root / "notebooks/base.ipynb"
    path.write_text(path.read_text().replace('"parameters"', '"parameter"'))
    with pytest.raises(DeclarationError, match="exactly one cell must have the tag `parameters`, 0 have"):
        checkout.check()
    path.write_text(path.read_text()[:100])
    with pytest.raises(DeclarationError, match="base.ipynb is not a notebook"):
        Checkout(checkout.root).check()
    (checkout.root / "papermill_runs.yaml").write_text("runs: {a: {}, a: {}}")
    with pytest.raises(DeclarationError, match="'a' stands twice"):
        Checkout(checkout.root).check()


# -- resolved --------------------------------------------------------------------------------------


def test_numbers_in_yaml(checkout):
    text = (checkout.root / "papermill_runs.yaml").read_text()
    (checkout.root / "papermill_runs.yaml").write_text(text.replace("- 0.1\n", "- 3e-4\n").replace("- 0.2\n", "- 2\n"))
    specs = checkout.specs("laptop")
    assert specs["t/train_0.0003/0"].params["rate"] == 3e-4
    assert type(specs["t/train_2/0"].params["rate"]) is float


def test_grid_layers_and_fingerprints(checkout):
    def change(declarations):
        declarations["profiles"]["smoke"] = {
            "params": {"steps": 7},
            "notebooks": {"train": {"steps": 8, "rate": 9.0}},
            "runs": {"*_0.2": {"pause": 1.0}, "t/base": {"rate": 0.25}},
        }

    checkout.declare(change)
    smoke, laptop = checkout.specs("smoke"), checkout.specs("laptop")
    assert list(smoke) == ["t/base/0", "t/train_0.1/0", "t/train_0.2/0", "study/study/0"]
    assert smoke["t/base/0"].params["steps"] == 7 and smoke["study/study/0"].params == {"seed": 0}
    expected = {"seed": 0, "steps": 8, "rate": 0.2, "pause": 1.0, "fail": False}
    assert smoke["t/train_0.2/0"].params == expected
    assert smoke["study/study/0"].declaration.needs == {"sources": ["t/train_0.1/0", "t/train_0.2/0"]}
    before = {name: spec.fingerprint for name, spec in laptop.items()}
    changed = Checkout(checkout.root)
    changed.declare(set_in("runs", "t/base", "params", value={"steps": 2}))
    after = {name: spec.fingerprint for name, spec in changed.specs("laptop").items()}
    assert all(before[name] != after[name] for name in before), "a change reaches all descendants"


def test_a_run_is_stale_when_a_file_that_it_names_changes(checkout):
    """Problems of one's own, the file of a reward: the parameters hold their names alone."""
    write_notebook(checkout.root / "notebooks/base.ipynb", BASE + "\nmine = {}\nrule = ''", TRAIN_CODE)
    params = {"mine": {"my problems.csv": 4}, "rule": "my_rewards.py:brief"}
    checkout.declare(set_in("runs", "t/base", "params", value=params))

    def now(files: dict[str, str]):
        for name, text in files.items():
            (checkout.root / name).write_text(text)
        return Project(checkout.root).specs("laptop")["t/base/0"]

    without, files = now({}).fingerprint, {"my problems.csv": "nums,target\n1 2,3\n", "my_rewards.py": "1"}
    seen = [without, now(files).fingerprint]
    checkout.call("run", "laptop", "t/base")
    assert now({}).state == "done"
    for name in files:
        changed = now({name: files[name] + " "})
        seen.append(changed.fingerprint)
        assert changed.state == "other parameters or files"
        assert now(files).state == "done"
    assert len(set(seen)) == 4, "each file counts, and so does that there is one"


# -- executed --------------------------------------------------------------------------------------


def test_a_study_from_end_to_end(checkout):
    said = checkout.call("make", "laptop", "all", "--cores", "2")
    assert "where the time went" in said and re.search(r"t +3 runs", said)
    assert said.strip().endswith("made 1 figures and tables of study/study in data/runs/laptop/study/study/0")
    record = checkout.record("train_0.1")
    assert record["status"] == "finished" and record["seed"] == 0 and record["peak_memory_mb"] > 10
    assert record["parameters"]["init"] == "data/runs/laptop/t/base/0"
    assert set(record["parents"]) == {"t/base/0"} and record["versions"]["papermill"]
    assert checkout.value("train_0.1") == "base 1x0.5 3x0.1"

    # nothing changed, nothing runs; one parameter changed: that run and its children alone
    assert "4 of them finished" in checkout.call("make", "laptop", "all")
    made = {run: checkout.record(run)["started"] for run in ("base", "train_0.1", "train_0.2", "study")}
    time.sleep(1)
    checkout.declare(set_in("profiles", "laptop", "runs", value={"t/train_0.2": {"steps": 4}}))
    said = checkout.call("make", "laptop", "all", "--cores", "2")
    assert "train_0.2/0: begun with other parameters" in said
    again = {run for run in made if checkout.record(run)["started"] != made[run]}
    assert again == {"train_0.2", "study"}
    assert checkout.value("train_0.2").endswith("4x0.2")

    # a change in lib/ is shown and makes nothing again
    (checkout.root / "lib/files.py").open("a").write("# changed\n")
    said = checkout.call("status", "laptop")
    assert said.count("done, by other code in lib/") == 4 and re.search(r"^t +3 runs: 3 done$", said, re.MULTILINE)
    assert checkout.call("status", "laptop", "t/base").count("\n") == 3  # the kind, and its run
    assert "4 of these were made by other code in lib/" in checkout.call("make", "laptop", "all")

    # a record that is cut, or not one: named, its run is made again, and no other is in its way
    for text in ("{", "{}", "[]"):
        (checkout.folder("base") / "run.json").write_text(text)
        said = checkout.call("status", "laptop")
        assert (
            re.search(r"t/base/0 +damaged run.json", said)
            and said.count("t/base/0 is not finished") == 2
            and "3 to be made again" in said
        )
    (checkout.folder("base") / "metrics.csv").write_text("step\n")  # ends with a line, but not its last
    with pytest.raises(ValueError, match="metrics.csv is damaged .it was written with 7 bytes and has 5"):
        (checkout.folder("base") / "run.json").write_text('{"files": {"metrics.csv": 7}}')
        read_table(checkout.folder("base") / "metrics.csv")
    checkout.call("make", "laptop", "all", "--cores", "2")
    shutil.rmtree(checkout.folder("base") / "checkpoint")
    assert re.search(r"t/base/0 +checkpoint/step.txt is gone", checkout.call("status", "laptop"))
    said = checkout.call("run", "laptop", "t/train_0.1", status=1)
    assert "t/train_0.1/0 needs t/base/0, which is not finished (checkpoint/step.txt is gone)" in said
    checkout.call("make", "laptop", "all", "--cores", "2")

    # published, the runs serve as parents elsewhere, and figures need no training
    assert "no study is in data/reference, neither study/study/0" in checkout.call("figures", status=1)
    assert "no study is in data/reference/laptop, neither" in checkout.call("figures", "laptop", status=1)
    checkout.call("publish", "laptop", "study/study")
    said = checkout.call("figures", status=1)
    assert "study/study/0 has nothing to read" in said
    checkout.call("publish", "laptop", "all")
    shutil.rmtree(checkout.runs)
    said = checkout.call("restore", "laptop", "all")
    assert "t/base/0: done" in said and "t/train_0.1/0: not published, or without what others need" in said
    assert "t/base/0: stays as it is here, done" in checkout.call("restore", "laptop", "t/base")
    before = checkout.record("base")
    assert "2 runs, 1 of them finished" in checkout.call("make", "laptop", "t/train_0.1")
    assert checkout.record("base") == before and checkout.value("train_0.1").startswith("base 3x")
    assert "did you mean 'study/study'" in checkout.call("figures", "laptop", "study/studi", status=1)
    assert "t/train_0.1 holds none" in checkout.call("figures", "laptop", "t/train_0.1", status=1)
    said = checkout.call("figures", "laptop", "study/study")
    assert "study/study: executing study\n" in said and "study/study: made 1 files in figures, 00:" in said
    spent = checkout.root / "data/runs/reference/laptop/study/study/0/spent.txt"
    spent.write_text("5000.0 5000.0 1\n")  # of an earlier drawing
    assert "study/study: made 1 files in figures, 00:" in checkout.call("figures", "laptop", "study/study")
    table = pd.read_csv(checkout.root / "figures/table.csv")
    assert list(table["sources"]) == ["data/reference/laptop/t/train_0.1/0", "data/reference/laptop/t/train_0.2/0"]

    shutil.rmtree(checkout.runs)
    said = checkout.call("make", "laptop", "study/study", status=1)
    assert "study/study/0 has nothing to read" in said and "make laptop t/train_0.1/0 study/study/0" in said
    assert "no group or run is named" in checkout.call("make", "laptop", "--", "--keep-going", status=1)


def published_runs(checkout, *studies: tuple[str, list[str]]) -> Path:
    """Declare studies and what they read, and publish empty records of all that, as if it had been made; the folder."""

    def change(declarations):
        notebook = {"notebook": "study"}
        declarations["runs"] |= {f"study/{name}": notebook | {"needs": {"sources": reads}} for name, reads in studies}
        del declarations["runs"]["study/study"]

    checkout.declare(change)
    reference = checkout.root / "data/reference/laptop"
    for name in ("t/train_0.1", "t/train_0.2", *(f"study/{name}" for name, _ in studies)):
        (reference / name / "0").mkdir(parents=True)
        record = dict.fromkeys(("method", "code", "fingerprint"), "x") | {"run": name, "notebook": "study"}
        record |= {"seed": 0, "elapsed": 1, "parameters": {}, "parents": {}}
        (reference / name / "0/run.json").write_text(json.dumps(record))
    return reference


def test_figures_of_the_other_studies_are_drawn_when_a_published_record_is_cut(checkout):
    reads = ("one", ["t/train_0.1"]), ("other", ["t/train_0.2"]), ("both", ["study/one", "study/other"])
    reference = published_runs(checkout, *reads)
    (reference / "study/other/0/run.json").write_text("{")  # which only says that this study is published
    cut = reference / "t/train_0.1/0/run.json"
    cut.write_text(cut.read_text()[:50])
    said, cut = checkout.call("figures", status=1), cut.relative_to(checkout.root)
    assert re.search(rf"^! study/one/0: {cut} is damaged .*: `git checkout -- {cut}`$", said, re.M)
    assert "study/other: made 1 files in figures" in said and (checkout.root / "figures/table.csv").exists()
    assert "! study/both/0 is not drawn: it reads study/one/0\n" in said
    assert said.endswith("! 2 of 3 studies failed, the others are drawn: study/one/0, study/both/0\n")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_study_that_moved_to_another_profile_is_drawn_there_and_no_longer_read_here(checkout):
    reads = ("one", ["t/train_0.1"]), ("other", ["t/train_0.2"]), ("both", ["study/one", "study/other"])
    laptop = published_runs(checkout, *reads)
    sources = "data/runs/reference/laptop/study/{}/0"

    def read() -> list[str]:
        return list(pd.read_csv(checkout.root / sources.format("both") / "table.csv")["sources"])

    checkout.call("figures", "laptop")
    assert read() == [sources.format("one"), sources.format("other")]
    smoke = shutil.copytree(laptop, laptop.with_name("smoke"))
    for moved in (laptop / "study/one", smoke / "study/other", smoke / "study/both"):
        shutil.rmtree(moved)
    said = checkout.call("figures")  # of every profile
    assert all(f"study/{name}: made 1 files" in said for name in ("one", "other", "both"))
    assert read() == [sources.format("other")]
    assert "made figures/site/index.html" in checkout.call("report")
    index = (checkout.root / "figures/site/index.html").read_text()
    assert 'href="smoke-study-one-0.html"' in index and "laptop-study-one" not in index


def test_a_polite_end_of_figures_waits_for_no_study(checkout):
    published_runs(checkout, ("one", ["t/train_0.1"]))
    write_notebook(checkout.root / "notebooks/study.ipynb", STUDY, "import time; time.sleep(600)")
    process = checkout.start("figures")
    until(lambda: "kernel" in processes(checkout.root))
    process.terminate()
    assert process.wait(timeout=20)
    until(lambda: not processes(checkout.root))


def test_the_time_left_is_the_longest_way_or_a_share_of_the_work(checkout):
    plan = checkout.plan("laptop", "all")
    seconds = {"t/base/0": 1, "t/train_0.1/0": 100, "t/train_0.2/0": 100, "study/study/0": 1}
    assert [time_left(plan, list(seconds), seconds, cores) for cores in (1, 2, 8)] == [202, 102, 102]
    assert time_left(plan, [], {}, 2) == 0


def test_a_partial_analysis_reads_what_is_there(checkout, warm_kernels):
    def sources(folder) -> list:
        return [Path(source).parent.name for source in pd.read_csv(checkout.root / folder / "table.csv")["sources"]]

    def change(declarations):
        declarations["groups"]["some"] = ["t/train_0.2", "study/study"]

    checkout.declare(change)
    checkout.call("make", "laptop", "some", "--cores", "2")
    assert (
        sources("data/runs/laptop/study/study/0") == ["train_0.2"]
        and not (checkout.runs / "laptop/t/train_0.1/0").exists()
    )
    checkout.call("publish", "laptop", "some")
    checkout.call(
        "make", "laptop", "t/train_0.1", "study/study", "--cores", "2", "--", "--keep-going"
    )  # train_0.2 is finished
    assert sources("data/runs/laptop/study/study/0") == ["train_0.1", "train_0.2"]
    checkout.call("figures")
    assert sources("figures") == ["train_0.2"]


def test_further_seeds_and_an_analysis_of_analyses(checkout, warm_kernels):
    def change(declarations):
        runs = declarations["runs"]
        declarations["profiles"]["laptop"]["runs"] = {"t/train_0.1": {"steps": 2}}
        runs["t/base"]["grid"] = {"seed": [0, 1, 2]}
        runs["t/train_{rate}"]["grid"]["seed"] = [0, 2]
        runs["study/study"]["needs"] = {"sources": ["t/train_0.2"]}
        runs["study/summary"] = runs["study/study"] | {"needs": {"sources": ["study/study", "t/train_0.1"]}}
        declarations["groups"] |= {
            "trained": ["t/train_*"],
            "some": ["t/train_0.2/2", "t/train_0.2", "study/study", "study/summary"],
        }

    checkout.declare(change)
    specs = Project(checkout.root).specs("laptop")
    assert [name for name in specs if name.startswith("t/base")] == ["t/base/0", "t/base/1", "t/base/2"]
    assert set(Project(checkout.root).plan("laptop", "trained").targets) == {"t/train_0.1/0", "t/train_0.2/0"}
    assert "t/train_0.1/1" not in specs and specs["t/train_0.1/2"].params["seed"] == 2
    assert specs["t/train_0.1/2"].params["steps"] == 2  # what a profile says of a run holds for all its seeds
    assert list(specs["t/train_0.1/2"].parents) == ["t/base/2"] and list(specs["t/train_0.1/0"].parents) == ["t/base/0"]
    assert list(specs["study/study/0"].parents) == ["t/train_0.2/0", "t/train_0.2/2"]  # pooled by what reads the first
    kept = {name for name, spec in specs.items() if spec.declaration.keep_checkpoint}
    assert kept == {"t/base/0", "t/base/1", "t/base/2"}

    said = checkout.call("plan", "laptop", "some")
    assert "6 runs, 0 of them finished" in said and "how long they take is not recorded yet" in said
    assert "00:00" not in said
    assert not (checkout.runs / "laptop").exists()
    checkout.call("make", "laptop", "some", "--cores", "2")
    said = checkout.call("plan", "laptop", "t/train_0.1/2")
    assert re.search(r"train_0.1/2 +train +00:\d\d +missing", said) and "about 00:" in said

    # the reference's figures: what reads other analyses is made after them, from them; then all of it as a site
    checkout.call("publish", "laptop", "some")
    shutil.rmtree(checkout.runs)
    assert "has been executed" in checkout.call("report", status=1)
    checkout.call("figures", "laptop", "study/summary")  # and what it reads
    table = pd.read_csv(checkout.runs / "reference/laptop/study/summary/0/table.csv")
    assert list(table["sources"]) == ["data/runs/reference/laptop/study/study/0"]
    assert "made figures/site/index.html" in checkout.call("report")
    index = (checkout.root / "figures/site/index.html").read_text()
    assert (
        all(f'href="laptop-study-{name}-0.html"' in index for name in ("study", "summary"))
        and "data/reference" in index
    )
    pages = [page.read_text() for page in (checkout.root / "figures/site").glob("*.html")]
    elsewhere = re.compile(r'<(script|link)[^>]*(src|href)="(https?:)?//')
    assert len(pages) == 3 and not any(map(elsewhere.search, pages))


def test_a_profile_may_give_other_parents_and_more_memory(checkout):
    other = {"mem_mb": 9000, "runs": {"t/train_0.2": {"init": "t/train_0.1"}}}
    checkout.declare(set_in("profiles", "large", value=other))
    large, laptop = checkout.specs("large"), checkout.specs("laptop")
    assert list(large["t/train_0.2/0"].parents) == ["t/train_0.1/0"] and large["t/base/0"].declaration.mem_mb == 9000
    assert list(laptop["t/train_0.2/0"].parents) == ["t/base/0"] and laptop["t/base/0"].declaration.mem_mb == 1500
    for wrong, message in (
        ({"t/train_0.3": {}}, "t/train_0.2"),
        ({"study/study": {"init": "t/base"}}, "parameter of study"),
    ):
        checkout.declare(set_in("profiles", "large", value={"runs": wrong}))
        with pytest.raises(DeclarationError, match=message):
            Checkout(checkout.root).check()


@pytest.mark.parametrize("group", ["program_all", "dense_all", "trace", "agent"])
def test_a_studys_group_names_all_that_its_partial_analysis_reads(group):
    """A partial analysis has nothing made: what its group leaves out, its tables would lack without a word.

    Further seeds are a group of their own."""
    plan = Project().plan("smoke", group)
    studies = [spec for name, spec in plan.specs.items() if spec.study]
    read = {name for study in studies for name in study.parents if name.endswith(("/0", "/100"))}
    assert read and read <= set(plan.targets)


def test_every_method_is_trained_on_as_many_completions():
    """README, "Choices": the budget of RL is completions sampled, of offline methods those that their pairs cost."""
    specs = Project().specs("laptop")

    def drawn(name):
        params = specs[name].params
        if specs[name].notebook == "12_sample_pairs":
            return params["problems"] * params["samples"]
        probes = sum(drawn(parent) for parent in specs[name].parents if "probes" in parent)
        return params["problems_per_step"] * params["group_size"] * params["steps"] // params["num_iterations"] + probes

    budgets = {
        name: drawn(name)
        for name, spec in specs.items()
        if spec.notebook == "11_train_rloo" or name.startswith("pairs/free")
    }
    more = {"rloo/sparse_200": 4, "rloo/ast_200": 4, "rloo/sparse_k16_updates4": 0.24}  # as their names say
    more |= dict.fromkeys(("rloo/sparse_533", "rloo/ast_533"), 533 / 50)
    for name, budget in budgets.items():
        times = more.get(name.rpartition("/")[0], 1)
        assert budget == pytest.approx(times * budgets["rloo/sparse/0"], rel=0.011), name


def test_a_notebook_of_many_output_widgets_comes_to_its_end(checkout):
    """nbclient alone lost one cell's reply in six to seventy, and waited for ever.

    And a line that the kernel sends in two pieces is one."""
    show = "def show(x):\n    print('x is', end=' ', flush=True)\n    print(x)"
    cell = f"import ipywidgets\n\n\n@ipywidgets.interact(x=3)\n{show}"
    write_notebook(
        checkout.root / "notebooks/base.ipynb", BASE, "init = 'none'\n" + TRAIN_CODE, *[cell] * 100, TRAIN_END
    )
    checkout.call("run", "laptop", "t/base/0")
    cells = nbformat.read(checkout.folder("base") / "notebook.ipynb", as_version=4).cells
    said = [[out.get("text") for out in cell.outputs] for cell in cells if "interact" in cell.source]
    assert len(said) == 100 and all("x is 3\n" in texts for texts in said)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what ends the kernel")
def test_a_kernel_that_is_interrupted_at_its_end_is_not_heard(capfd):
    """Nor does it lose its other words, or its death with the runner."""
    manager, client = start_new_kernel(extra_arguments=DIE_WITH_PARENT + QUIET)
    said = "log = get_ipython().kernel.log; log.error('KeyboardInterrupt caught in kernel.'); log.error('another')"
    client.execute_interactive(said, timeout=60)
    signal_of = (
        "import ctypes; held = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(held)); print(held.value)"
    )
    client.execute_interactive(signal_of, timeout=60)
    manager.shutdown_kernel()
    out, err = capfd.readouterr()
    assert "another" in err and "caught in kernel" not in err and out.strip() == "9"


@pytest.fixture
def here(checkout) -> Iterator[Callable[[str], dict]]:
    """Execute a run of the scratch checkout in this process: its run.json."""

    def run(name: str) -> dict:
        execute(project := Project(checkout.root), project.specs("laptop")[f"{name}/0"])
        return checkout.record(name.partition("/")[2])

    with patch.dict(os.environ):
        yield run


def test_a_run_that_ends_itself_is_not_finished_and_its_kernel_is_this_python(checkout, here, tmp_path, monkeypatch):
    strange = tmp_path / "strange/kernels"
    for name in ("python3", "countdown"):  # as JupyterHub or a cluster's modules set it
        (strange / name).mkdir(parents=True)
        (strange / name / "kernel.json").write_text('{"argv": ["false"], "display_name": "x", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(strange.parent))
    path = checkout.root / "notebooks/base.ipynb"
    write_notebook(path, BASE, "import sys\nsys.exit(0)", "", "print('never')")
    with pytest.raises(RunError, match=r"run t/base/0 \(laptop\) is not finished: no cell from `print\('never'\)` on"):
        here("t/base")
    assert not (checkout.folder("base") / "run.json").exists()

    # the last cell may end it; what ran is this very Python, and run.json says what it took
    write_notebook(
        path,
        BASE,
        "import sys\nfrom lib.runs import Run",
        "Run(output).folder.joinpath('python.txt').write_text(sys.executable)\nsys.exit(0)",
    )
    made = here("t/base")
    assert (checkout.folder("base") / "python.txt").read_text() == sys.executable
    assert made["core_seconds"] > 0.1 and made["id"] and made["lib"] and set(made["files"]) == {"python.txt"}
    assert made["files"]["python.txt"]["sha256"] == sha256(checkout.folder("base") / "python.txt")
    spec = json.loads((checkout.folder("base") / "spec.json").read_text())
    assert spec["made_by"][0].items() <= made.items(), "as it was when the run started"

    # a saved look changes nothing; another code sets the results aside
    saved = nbformat.read(path, 4)
    saved.cells.append(nbformat.v4.new_code_cell(""))
    saved.cells[1].source = "# our imports\n" + saved.cells[1].source
    nbformat.write(saved, path)
    assert Project(checkout.root).specs("laptop")["t/base/0"].state == "done"
    write_notebook(path, BASE, "made = 2")
    assert Project(checkout.root).specs("laptop")["t/base/0"].state == "other notebook code"
    assert here("t/base")["files"] == {}
    assert len(list(checkout.folder("base").parent.glob("0.before-*/python.txt"))) == 1


def test_a_failing_cell_is_named(checkout):
    checkout.declare(set_in("runs", "t/base", "params", value={"fail": True}))
    said = checkout.call("make", "laptop", "t/train_0.1", status=1)
    last = said[said.index("! run t/base") :]
    assert "run t/base/0 (laptop) failed in the cell that starts with `init = 'none'`" in last
    assert "ArithmeticError: the loss is gone" in last
    assert "! log: data/runs/laptop/t/base/0/notebook.ipynb" in last
    assert last.strip().endswith("! 1 failed: t/base/0; the same command goes on from there")
    assert not (checkout.runs / "laptop/t/base/0/run.json").exists()
    said = checkout.call("run", "laptop", "t/train_0.1/0", status=1)
    assert (
        "t/train_0.1/0 needs t/base/0, which is not finished (unfinished): `python -m lib.runs make laptop t/base/0`"
        in said
    )


def processes(folder: Path) -> dict[str, int]:
    """Process ids at work for a checkout: the front door, Snakemake, the runner and its kernel."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if Path(os.readlink(entry / "cwd")) not in (folder, folder / "data/runs"):  # Snakemake works in the second
                continue
        except OSError:
            continue
        for role, sign in (
            ("front", "lib.runs make"),
            ("snakemake", "-m snakemake"),
            ("runner", "lib.runs run"),
            ("kernel", "ipykernel_launcher"),
        ):
            if sign in command:
                assert role not in found, f"two copies of the {role}"
                found[role] = int(entry.name)
    return found


def command_of(entry: Path) -> str:
    """The command line of a process, by its folder in /proc."""
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def until(condition, seconds: float = 60):
    """Wait for a condition; its value."""
    for _ in range(int(seconds / 0.1)):
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError("waited in vain")


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its end")
@pytest.mark.parametrize("command", ["run", "make"])
def test_what_is_orphaned_while_it_starts_ends(checkout, command):
    gone = subprocess.Popen(["true"])
    gone.wait()
    process = checkout.start(command, "laptop", "t/base", env=os.environ | {PARENT: str(gone.pid)})
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert not (checkout.runs / "laptop/t/base/0").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kill_9_of_any_process_then_the_same_command(checkout, monkeypatch):
    checkout.declare(set_in("profiles", "laptop", "runs", value={"t/train_0.1": {"pause": 0.5, "steps": 100}}))
    step = checkout.runs / "laptop/t/train_0.1/0/checkpoint/step.txt"
    started = None
    for role in ("kernel", "runner", "snakemake", "front"):
        before = int(step.read_text()) if step.exists() else 0
        front = checkout.start("make", "laptop", "t/train_0.1")
        until(lambda before=before: step.exists() and int(step.read_text()) > before)
        if role == "kernel":
            said = checkout.call("make", "laptop", "t/train_0.1", status=1)
            assert f"these runs are being made by process {front.pid}" in said
        os.kill(processes(checkout.root)[role], signal.SIGKILL)
        said = front.communicate(timeout=60)[0]
        until(lambda: not processes(checkout.root))  # none goes on alone
        assert front.returncode == (-signal.SIGKILL if role == "front" else 1), said
        assert role != "kernel" or "its kernel died" in said
        if role == "runner":
            assert (
                "! run t/train_0.1/0 was killed" in said
                and "Traceback" not in said
                and "CalledProcessError" not in said
            )
            assert said.strip().endswith("! 1 failed: t/train_0.1/0; the same command goes on from there")
        assert not (step.parent.parent / "run.json").exists()
        started = started or checkout.record("base")["started"]
        assert checkout.record("base")["started"] == started, "a finished run is kept"

    (checkout.runs / ".snakemake/locks").mkdir(exist_ok=True)
    (checkout.runs / ".snakemake/locks/0.output.lock").write_text("laptop/t/train_0.1/0/run.json\n")
    step.write_text("99")
    checkout.call("make", "laptop", "t/train_0.1")
    assert checkout.value("train_0.1") == "base 1x0.5 100x0.1"
    assert "starts at step 99" in (step.parent.parent / "log.txt").read_text(), "resumed, not begun anew"
    assert checkout.record("base")["started"] == started
    # the log is that of the last stretch, and elapsed that of all: each of the four took at least one step
    assert checkout.record("train_0.1")["elapsed"] > 4 * 0.5 + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_end_leaves_nothing_behind(checkout, how):
    checkout.declare(set_in("profiles", "laptop", "runs", value={"t/base": {"pause": 0.5, "steps": 100}}))
    # a terminal's Ctrl-C: not ignored, as it is by what a script starts in the background
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    front = checkout.start("make", "laptop", "t/base", preexec_fn=heed)
    until(lambda: (checkout.runs / "laptop/t/base/0/checkpoint/step.txt").exists())
    front.send_signal(how)
    said = front.communicate(timeout=60)[0]
    assert "stopped t/base/0; the same command goes on from here" in said and "killed" not in said
    until(lambda: sys.platform != "linux" or not processes(checkout.root), 5)


def test_a_folder_that_is_not_the_runs_own_is_never_emptied(checkout):
    folder = checkout.runs / "laptop/t/base/0"
    folder.mkdir(parents=True)
    (folder / ".spec.json.123").write_text("{")  # what a kill leaves of the first write
    checkout.call("run", "laptop", "t/base/0")
    (folder / "spec.json").unlink()
    (folder / "run.json").unlink()
    (folder / "checkpoint/thesis.txt").write_text("years")
    said = checkout.call("run", "laptop", "t/base/0", status=1)
    assert (
        "data/runs/laptop/t/base/0/checkpoint was not made by run t/base/0, whose folder it lies in: move it away"
        in said
    )
    (folder / "spec.json").write_text('{"profile": "laptop", "run": "study/study", "seed": 0}')
    assert "was not made by run t/base/0" in checkout.call("run", "laptop", "t/base/0", status=1)
    said = checkout.call("make", "laptop", "t/base", status=1)
    assert "was not made by run t/base/0" in said and "killed" not in said and "1 failed: t/base/0" in said
    assert (folder / "checkpoint/thesis.txt").read_text() == "years"
    # begun with other parameters: what lies there is set aside, files of the user's too
    (folder / "spec.json").write_text('{"profile": "laptop", "run": "t/base", "seed": 0}')
    said = checkout.call("run", "laptop", "t/base/0")
    [aside] = folder.parent.glob("0.before-*")
    assert "starts anew" in said and f"what it had made is now in {aside.relative_to(checkout.root)}" in said
    assert (aside / "checkpoint/thesis.txt").read_text() == "years" and checkout.record("base")["status"] == "finished"
    assert not (folder / "checkpoint/thesis.txt").exists()


@pytest.mark.slow
def test_a_hostile_machine(checkout, tmp_path):
    """A folder with spaces and umlauts, a home that cannot be written, a parent's record from the future, no git."""
    moved = Checkout(checkout.root.rename(tmp_path.parent / f"{tmp_path.name} größer als 'sonst'"))
    env = os.environ | {"HOME": "/proc/none", "PYTHONPATH": ""}
    for name in ("XDG_CACHE_HOME", "MPLCONFIGDIR"):
        env.pop(name, None)
    write_notebook(moved.root / "notebooks/study.ipynb", STUDY, STUDY_CODE, "import matplotlib.pyplot")

    def make(*runs):
        process = moved.start("make", "laptop", *runs, env=env)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0, said

    make("t/base")
    os.utime(moved.folder("base") / "run.json", (time.time() + 86400,) * 2)
    make("all")
    assert moved.record("train_0.1")["commit"] is None and moved.record("study")["status"] == "finished"
    said = (moved.folder("study") / "log.txt").read_text()
    assert "run      data" in said and "temporary cache" not in said  # Matplotlib's, which would be made in every run


def test_status_says_which_runs_another_processor_made(checkout):
    checkout.call("run", "laptop", "t/base")
    path = checkout.folder("base") / "run.json"
    made = json.loads(path.read_text())
    assert "another processor" not in checkout.call("status", "laptop")
    for cpu, told in (("i486", True), (None, False)):
        path.write_text(json.dumps(made | {"cpu": cpu}))
        assert ("done, on another processor" in checkout.call("status", "laptop")) == told


def test_jupyterlabs_outputs_make_no_run_dirty(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=b", *arguments], check=True)

    notebook = tmp_path / "größe 1.ipynb"
    git("init", "-q")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")]), notebook)
    (tmp_path / "code.py").write_text("a = 1\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    assert provenance(tmp_path)["commit"] and not provenance(tmp_path)["dirty"]
    saved = nbformat.read(notebook, 4)
    saved.cells[0].outputs, saved.cells[0].execution_count = [nbformat.v4.new_output("stream", text="2")], 7
    nbformat.write(saved, notebook)
    assert not provenance(tmp_path)["dirty"]
    saved.cells[0].source = "1 + 2"
    nbformat.write(saved, notebook)
    assert provenance(tmp_path)["dirty"]
    git("checkout", "-q", ".")
    (tmp_path / "code.py").write_text("a = 2\n")
    assert provenance(tmp_path)["dirty"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_kernel_is_named_while_its_sibling_works_on(checkout):
    pauses = {"t/train_0.1": {"pause": 0.5, "steps": 1000}, "t/train_0.2": {"pause": 0.5, "steps": 1000}}
    checkout.declare(set_in("profiles", "laptop", "runs", value=pauses))
    front = checkout.start("make", "laptop", "t/train_*", "--cores", "2")
    steps = [checkout.folder(run) / "checkpoint/step.txt" for run in ("train_0.1", "train_0.2")]
    until(lambda: all(step.exists() for step in steps))
    kernels = [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if "ipykernel_launcher" in command_of(entry) and os.readlink(entry / "cwd") == str(checkout.root)
    ]
    assert len(kernels) == 2
    os.kill(kernels[0], signal.SIGKILL)
    said = next(line for line in front.stdout if line.startswith("! run t/train_0."))
    assert front.poll() is None and "failed in the cell" in said  # the other one is still at work
    front.send_signal(signal.SIGTERM)
    front.communicate(timeout=60)


def test_jupyterlab_starts_as_root_and_where_the_home_cannot_be_written(tmp_path):
    (tmp_path / "jupyter").write_text("#!/bin/sh\necho $HOME, $@\n")
    (tmp_path / "jupyter").chmod(0o755)
    ready = f"{tmp_path}/.installed"
    command = ["make", "-s", "-o", ready, "lab", f"BIN={tmp_path}", f"READY={ready}"]  # -s: else it names its folder
    for home, there in (tmp_path, tmp_path), ("/proc/none", ROOT / "data/runs/.home"):
        env = os.environ | {"HOME": str(home)}
        said = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
        assert said == f"{there}, lab {'--allow-root ' * (os.getuid() == 0)}notebooks\n"


def test_clean_runs_takes_folders_with_a_record_of_ours_and_nothing_else(tmp_path, monkeypatch, capsys):
    for name in ("scratch/photos/one.png", "paper/thesis/text.tex", "mine/rloo/x/0/spec.json", "cpu/rloo/x/0/run.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text('{"profile": "cpu", "run": "rloo/x", "seed": 0}')
    (tmp_path / "cpu/rloo/x/0.before-1").mkdir()
    shutil.copy(tmp_path / "cpu/rloo/x/0/run.json", tmp_path / "cpu/rloo/x/0.before-1/run.before.json")
    (tmp_path / "other/project/of/mine").mkdir(parents=True)
    (tmp_path / "other/project/of/mine/run.json").write_text('{"speed": 3}')
    monkeypatch.setattr(commands, "RUNS", tmp_path)
    commands.clean()
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert (
        left == ["other/project/of/mine/run.json", "paper/thesis/text.tex", "scratch/photos/one.png"]
        and not (tmp_path / "cpu").exists()
    )
    assert capsys.readouterr().out.count(" MB\n") == 3


def publishable(checkout, monkeypatch) -> Spec:
    """A finished run of the scratch checkout, as if it had been made, whose commands are called in this process."""
    spec = checkout.specs("laptop")["t/base/0"]
    (spec.folder / "checkpoint").mkdir(parents=True)
    files = {name: spec.folder / name for name in ("metrics.csv", "value.txt", "checkpoint/weights")}
    for path in files.values():
        path.write_text("1\n")
    record = {"profile": "laptop", "run": "t/base", "method": "t/base", "notebook": "base", "seed": 0, "elapsed": 1.0}
    record |= {"code": spec.code, "fingerprint": spec.fingerprint, "parameters": spec.params, "parents": {}, "id": "a"}
    record |= {"files": {name: described(path) for name, path in files.items()}}
    (spec.folder / "run.json").write_text(json.dumps(record))
    assert spec.state == "done"
    monkeypatch.setattr(commands, "project", checkout)
    return spec


def test_what_is_published_can_be_restored_and_is_held_to_its_record(checkout, monkeypatch):
    spec = publishable(checkout, monkeypatch)
    commands.publish("laptop", ["t/base"])
    published = json.loads((spec.reference / "run.json").read_text())
    assert set(published["files"]) == {"metrics.csv", "checkpoint/weights"}, "the record lists what is there"
    shutil.rmtree(spec.folder)
    commands.restore("laptop", ["t/base"])
    assert spec.state == "done" and read_record(spec.folder)["id"] == "a"
    (spec.folder / "checkpoint/weights").write_text("2\n")
    with pytest.raises(ValueError, match="weights is damaged"):
        verify(spec.folder / "checkpoint")


def test_runs_are_not_published_onto_themselves(checkout, monkeypatch):
    spec = publishable(checkout, monkeypatch)
    spec.reference.parent.mkdir(parents=True)
    spec.reference.symlink_to(spec.folder)
    with pytest.raises(RunError, match="lies in data/reference already"):
        commands.publish("laptop", ["t/base"])
    assert (spec.folder / "metrics.csv").exists()


@pytest.mark.parametrize("text", ["import sys\nsys.exit()", "def f(:", "import nothing_of_that_name", "1 / 0"])
def test_a_broken_file_of_rewards_concerns_the_runs_that_name_it_alone(checkout, text):
    write_notebook(checkout.root / "notebooks/base.ipynb", BASE + "\nreward = ''\nreward_options = {}", TRAIN_CODE)
    (checkout.root / "mine.py").write_text(text)
    checkout.declare(set_in("runs", "t/base", "params", value={"reward": f"{checkout.root}/mine.py:best"}))
    spec = checkout.specs("laptop")["t/base/0"]  # nothing was executed
    with pytest.raises(DeclarationError, match=r"run t/base/0: .*mine.py"):
        checkout.check_own_rewards([spec])
    checkout.check_own_rewards([checkout.specs("laptop")["t/train_0.1/0"]])


def test_the_limits_of_a_container_count(monkeypatch):
    found = {"cpu.max": "150000 100000", "memory.max": str(2**30)}
    monkeypatch.setattr(machine, "limit", found.get)
    assert machine.cores() == 1 and machine.memory_mb() <= 1024
    found.update({"cpu.max": "max 100000", "memory.max": "max"})
    assert machine.cores() >= 1 and machine.memory_mb() > 500


def test_time_is_planned_by_computing_and_not_by_waiting():
    record = {"elapsed": 100.0, "core_seconds": 40.0, "threads": 2}
    assert making.took(record) == 20 and making.took({"elapsed": 100.0}) == 100
    assert making.took(record | {"gpu": "H100"}) == 100, "there the cores wait"


def test_a_lock_of_a_gpu_follows_no_link_and_empties_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("COUNTDOWN_GPUS", "MIG-GPU-aa/1/0")
    with machine.gpu() as held:
        assert held == "MIG-GPU-aa/1/0"
        [lock] = tmp_path.iterdir()
    (tmp_path / "precious").write_text("years")
    lock.unlink()
    lock.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError), machine.gpu():
        pass
    assert (tmp_path / "precious").read_text() == "years"


def test_a_run_that_said_why_it_failed_was_not_killed():
    """A full disk is named by the path alone, which hides the run's name; so the runner puts it in front."""
    told = [
        "rule run:",
        "! run t/a/0: cannot write /disk/t/a/0/log.txt (No space left on device)",
        "! t/c/0 needs t/b/0",
    ]
    assert making.failures(["t/a/0", "t/a/01", "t/b/0", "t/c/0"], ["t/a/0", "t/b/0"], told) == (
        ["t/a/0", "t/c/0"],
        ["t/b/0"],
    )


def test_the_plan_says_how_many_runs_other_code_made(checkout, monkeypatch, capsys):
    publishable(checkout, monkeypatch)
    plan = checkout.plan("laptop", "t/base")
    making.show_plan(checkout, plan, {}, 1)
    assert "1 of these were made by other code in lib/" in capsys.readouterr().out


def test_two_runners_make_one_run_once(checkout):
    both = [checkout.start("run", "laptop", "t/base/0") for _ in range(2)]
    said = "".join(process.communicate(timeout=60)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0], said
    assert said.count("another process works on it; waiting") == 1
    assert said.count("another process has just finished it") == 1


HOLDER = """
import time
from lib.runs.process import PARENT, RunError, gpu
with gpu() as mine:
    print(mine, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_run_frees_its_gpu_and_no_two_share_one(monkeypatch):
    """Fake devices, a process each: three for two GPUs; the third gets that of the one that is killed."""
    names = [f"{letter}{os.getpid()}" for letter in "cd"]
    monkeypatch.setenv("COUNTDOWN_GPUS", ",".join(names))
    command = [sys.executable, "-c", HOLDER]
    first, second = (subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2))
    held = {first.stdout.readline().strip(): first, second.stdout.readline().strip(): second}
    assert set(held) == set(names)
    third = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    time.sleep(2)
    assert third.poll() is None and not select.select([third.stdout], [], [], 0)[0], "it waits"
    held[names[1]].kill()
    assert third.stdout.readline().strip() == names[1]
    for process in (first, second, third):
        process.kill()
        process.wait()


@pytest.mark.slow
def test_runs_at_the_same_time_have_different_gpus(checkout, monkeypatch):
    """Through Snakemake: both trainings at once, each kernel with a device of its own; the analysis has none."""
    names = [f"{letter}{os.getpid()}" for letter in "ef"]
    monkeypatch.setenv("COUNTDOWN_GPUS", ",".join(names))
    see = "import os\nprint('device', os.environ.get('CUDA_VISIBLE_DEVICES', 'none'))\n"
    for name, parameters, code in (("train", TRAIN, TRAIN_CODE), ("study", STUDY, STUDY_CODE)):
        write_notebook(checkout.root / f"notebooks/{name}.ipynb", parameters, see + code, TRAIN_END * (name == "train"))
    checkout.declare(set_in("runs", "t/train_{rate}", "params", value={"rate": "{rate}", "pause": 1.0}))
    checkout.call("make", "laptop", "all", "--cores", "2", "--machine", "gpus")

    def device(run):
        return re.search(r"device (\S+)", (checkout.folder(run) / "log.txt").read_text()).group(1)

    starts = {run: pd.Timestamp(checkout.record(run)["started"]) for run in ("train_0.1", "train_0.2")}
    ends = {run: start + pd.Timedelta(seconds=checkout.record(run)["elapsed"]) for run, start in starts.items()}
    assert max(starts.values()) < min(ends.values()), "side by side"
    assert {device("train_0.1"), device("train_0.2")} == set(names) and device("study") == "none"


@pytest.mark.parametrize("machine", ["local", "gpus", "slurm", "kubernetes"])
def test_snakemake_reads_the_profile_of_every_machine(checkout, machine):
    executor = limits(machine, 2)
    plugin = yaml.safe_load((MACHINES / machine / "config.yaml").read_text()).get("executor")
    assert ("--cores" in executor) == (plugin is None)
    if plugin and not find_spec(f"snakemake_executor_plugin_{plugin}"):
        pytest.skip(f"the executor {plugin} is not installed (lib/runs/machines/{plugin}/config.yaml says how)")
    options = [*executor, "--config", "profile=laptop", "runs=t/base/0,t/train_0.1/0", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *options], cwd=checkout.root, capture_output=True, text=True
    )
    assert done.returncode == 0 and "train_0.1" in done.stdout, done.stdout + done.stderr


def test_an_unknown_machine_is_refused(checkout):
    assert "machine 'slrum' does not exist: did you mean 'slurm'?" in checkout.call(
        "make", "laptop", "all", "--machine", "slrum", status=1
    )


@pytest.mark.parametrize("command", ["make", "plan"])
def test_no_cores_are_refused(checkout, command):
    assert "greater than or equal to 1" in checkout.call(command, "laptop", "all", "--cores", "0", status=2)


def test_run_executes_one_run(checkout):
    said = checkout.call("run", "laptop", "t/train_*", status=1)
    assert "t/train_* is 2 runs, and `run` executes one: t/train_0.1/0" in said and "Traceback" not in said


def test_a_run_names_its_gpu(tmp_path, monkeypatch):
    driver = tmp_path / "nvidia-smi"
    driver.write_text('#!/bin/sh\necho "GPU of number $4"\n')
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert provenance(ROOT, "1")["gpu"] == "GPU of number 1"
    driver.write_text("#!/bin/sh\nexit 9\n")
    assert provenance(ROOT, "1")["gpu"] is None and "gpu" not in provenance(ROOT)


def test_each_gpu_is_held_by_one_run(monkeypatch):
    first, second = f"a{os.getpid()}", f"b{os.getpid()}"
    monkeypatch.setenv("COUNTDOWN_GPUS", f"{first},{second}")
    with gpu() as one, gpu() as two:
        assert (one, two) == (first, second)
    with gpu() as one:
        assert one == first
    monkeypatch.setenv("COUNTDOWN_GPUS", "")
    with gpu() as none:
        assert none is None


# -- in the notebook -------------------------------------------------------------------------------


def test_tables_whole_or_not_at_all(tmp_path):
    run = Run(tmp_path / "run")
    table = pd.DataFrame({"nums": [[1, 2], [3]], "text": ["a", "b"]})
    path = run.write(table, "generations.parquet")
    assert read_table(path)["text"].tolist() == ["a", "b"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"generations.parquet is damaged .*delete the folder"):
        read_table(path)
    path = run.write(table, "metrics.csv")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"metrics.csv is damaged .*middle of a line"):
        read_table(path)
    with pytest.raises(FileNotFoundError, match=r"nothing.csv is missing: .*same command"):
        read_table(run / "nothing.csv")


def full_disk_write(run: Run, name: str) -> None:
    """Write a table in a process that may write no file over 4 KB, as on a disk with no room left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        run.write(pd.DataFrame({"x": range(100_000)}), name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["big.parquet", "big.csv"])
def test_a_full_disk_keeps_the_old_file_and_leaves_no_half_one(tmp_path, name):
    run = Run(tmp_path)
    old = run.write(pd.DataFrame({"x": [1]}), name)
    with pytest.raises(OSError, match=rf"cannot write .*{re.escape(name)}.*make clean-runs"):
        full_disk_write(run, name)
    assert read_table(old)["x"].tolist() == [1]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_progress_line_takes_up_where_a_resumed_loop_does(capsys):
    line = progress(None, 10, "step", done=5)
    line.start_t -= 10  # as if ten seconds had passed
    line.set_postfix(loss=0.25, refresh=False)
    line.update()
    line.close()
    assert capsys.readouterr().out.splitlines()[-1] == "step 6/10, loss=0.25, 00:10 elapsed, 00:40 left"
    assert [clock(seconds) for seconds in (5, 75, 3700)] == ["00:05", "01:15", "1:01:40"]
