"""A run's folder: what began it, what is set aside, what a fingerprint holds, and what is checked on reading."""

import json
import os
import subprocess
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from lib.files import DATA, ROOT, RUNS, read_table
from lib.runs import Run
from lib.runs.execute import described, merge_streams, prepare, spending
from lib.runs.folder import parameters_of, provenance
from lib.runs.hashes import code_tree, inputs, reward_code
from lib.runs.plan import DeclarationError, Plan, Project, plain_data, read_notebook, read_record
from lib.study.judging import folders
from tests.conftest import linear

BEGAN = {"profile": "cpu", "run": "t/base", "seed": 0, "fingerprint": "1", "parameters": {"steps": 3}, "parents": {}}
MAKER = {"commit": "a", "dirty": False, "lib": "1"}
RECORD = BEGAN | {"method": "t/base", "notebook": "base", "code": "1", "elapsed": 2.0, "files": {}, "id": "first"}


def test_tests_have_a_folder_of_runs_of_their_own():
    """Whatever lies in data/runs: tests/conftest.py holds every test of the suite to it."""
    assert DATA / "runs" not in (RUNS, *RUNS.parents) and os.environ["COUNTDOWN_RUNS"] == str(RUNS)


# -- a notebook that is run by hand ----------------------------------------------------------------


def by_hand(folder: Path, **given) -> Run:
    return Run(folder, {"output": str(folder), "reward": "sparse", "learning_rate": 1e-3, "init": ""} | given)


def save(folder: Path, step: int) -> Path:
    """What a trainer leaves to resume from."""
    state = folder / f"trainer/checkpoint-{step}/state.txt"
    state.parent.mkdir(parents=True)
    state.write_text("weights")
    return state


@pytest.mark.parametrize("other", [{"reward": "ast"}, {"learning_rate": 2e-3}, {"seed": 7}, {"init": "model"}])
def test_another_beginning_is_another_run_and_the_same_one_goes_on(tmp_path, other, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, model = tmp_path / "mine", tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text(name)
    other = {key: str(tmp_path / value) if key == "init" else value for key, value in other.items()}
    by_hand(folder)
    trained = [save(folder, 40), save(folder, 100)]
    (folder / "metrics.csv").write_text("step\n")
    capsys.readouterr()
    by_hand(folder)
    assert "goes on from checkpoint-100" in capsys.readouterr().out and all(path.exists() for path in trained)
    by_hand(folder, **other)
    said = capsys.readouterr().out
    [aside] = tmp_path.glob("mine.before-*")
    assert f"begun with another {next(iter(other))}" in said and str(aside) in said
    assert not (folder / "trainer").exists() and not (folder / "metrics.csv").exists()
    assert (aside / "trainer/checkpoint-100/state.txt").read_text() == "weights"
    trained = save(folder, 40)
    by_hand(folder, **other)
    assert trained.exists()
    if "init" in other:  # the same name, another policy
        (model / "model.safetensors").write_text("other weights")
        by_hand(folder, **other)
        assert not trained.exists()


def test_what_a_user_left_in_a_folder_is_not_touched(tmp_path):
    """Nor is a folder of data a run's, as notebook 01 writes to."""
    (tmp_path / "thesis.txt").write_text("years")
    by_hand(tmp_path)
    by_hand(tmp_path, reward="ast")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_results_that_nothing_explains_are_set_aside(tmp_path):
    folder = tmp_path / "old"
    save(folder, 40)
    by_hand(folder)
    assert [path.name for path in folder.iterdir()] == ["spec.json"] and len(list(tmp_path.iterdir())) == 2


def test_parameters_are_what_cells_of_literals_assign():
    """In the names of a kernel that has run the whole notebook before, and was given some by papermill."""
    cells = ["import math", "output = 'x'\nreward = 'sparse'\nrate = 1e-3", "# Parameters\nrate = 0.5", "loss = run(3)"]
    names = {"In": ["", *cells], "output": "x", "reward": "sparse", "rate": 0.5, "loss": 3.0, "step": 7, "_": 3}
    assert parameters_of(names) == {"output": "x", "reward": "sparse", "rate": 0.5}


@pytest.mark.parametrize(
    "name", ["02_base_text", "03_pretrain_base", "10_train_sft", "11_train_rloo", "13_train_preference"]
)
def test_every_trainer_notebook_begins_anew_with_another_parameter(tmp_path, name):
    """Its own cells, up to the one that takes its folder, which comes before anything that resumes."""
    cells = [cell for cell in nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells if cell.cell_type == "code"]
    tagged = next(i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", []))
    start = next(i for i, cell in enumerate(cells) if "Run(output, globals())" in cell.source)
    assert tagged < start and not any("train_" in cell.source for cell in cells[tagged : start + 1])

    def begin(**given) -> None:
        names: dict = {}
        exec(cells[tagged].source, names)
        exec(
            "from lib.runs import Run\nrun = Run(output, globals())", names | {"output": str(tmp_path / "run")} | given
        )

    begin()
    saved = save(tmp_path / "run", 40)
    begin()
    assert saved.exists()
    begin(seed=7)
    assert not saved.exists() and len(list(tmp_path.glob("run.before-*"))) == 1


# -- a run of the runner ---------------------------------------------------------------------------


def test_old_results_are_set_aside_and_nothing_is_deleted(tmp_path, capsys):
    folder = tmp_path / "0"
    folder.mkdir()
    prepare(folder, BEGAN, dict(MAKER), study=False)
    for name in ("metrics.csv", "thesis.txt", "run.json", "log.txt"):
        (folder / name).write_text(name)
    prepare(folder, BEGAN | {"fingerprint": "2"}, dict(MAKER), study=False)
    [aside] = tmp_path.glob("0.before-*")
    assert str(aside) in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["spec.json"]
    assert sorted(path.name for path in aside.iterdir()) == [
        *("log.txt", "metrics.csv", "run.before.json", "spec.json", "thesis.txt")
    ]


def test_what_makes_a_run_is_noted_when_it_starts_and_kept_when_it_goes_on(tmp_path, capsys):
    first = prepare(tmp_path, BEGAN, dict(MAKER), study=False)
    assert [one["commit"] for one in first] == ["a"] and first[0]["started"]
    (tmp_path / "checkpoint").mkdir()
    again = prepare(tmp_path, BEGAN, dict(MAKER), study=False)
    assert again == first and "goes on" not in capsys.readouterr().out
    other = prepare(tmp_path, BEGAN, MAKER | {"lib": "2", "commit": "b"}, study=False)
    assert [one["lib"] for one in other] == ["1", "2"] and other[0] == first[0]
    assert "goes on, though commit, lib differ from when it was begun" in capsys.readouterr().out
    assert (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("torn", ["", "{", "\0" * 200, "[]"])
def test_a_power_cut_locks_no_run_out(tmp_path, torn):
    """What it may leave: a spec.json or a spent.txt without its content, with a log or with more."""
    folder = tmp_path / "0"
    folder.mkdir()
    for name in ("spec.json", "spent.txt", "log.txt"):
        (folder / name).write_text(torn)
    prepare(folder, BEGAN, dict(MAKER), study=False)
    assert not list(tmp_path.glob("0.before-*")), "the runner's own files are no results"
    (folder / "spent.txt").write_text(torn)
    with spending(folder, anew=False) as spent:
        assert spent()[0] < 60
    (folder / "spec.json").write_text(torn)
    (folder / "half.txt").write_text("half")
    prepare(folder, BEGAN, dict(MAKER), study=False)
    assert [path.read_text() for path in tmp_path.glob("0.before-*/half.txt")] == ["half"]


def test_time_adds_up_over_a_kill(tmp_path):
    (tmp_path / "spent.txt").write_text("5000.0 300.0 1\n")
    with spending(tmp_path, anew=False) as spent:
        elapsed, cores = spent()
    assert 5000 <= elapsed < 5060 and cores >= 300
    with spending(tmp_path, anew=True) as spent:
        assert spent()[0] < 60


def test_streams_are_merged_as_a_terminal_shows_them(tmp_path):
    def stream(text, name="stdout"):
        return nbformat.v4.new_output("stream", text=text, name=name)

    shown = nbformat.v4.new_output("display_data", {"text/plain": "a figure"})
    said = [
        stream("x is"),
        stream(" 3\n"),
        stream("step 1\rstep"),
        stream(" 2\r\nend"),
        stream("!", "stderr"),
        shown,
        stream("b"),
    ]
    path = tmp_path / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=said)]), path)
    merge_streams(path)
    outputs = nbformat.read(path, 4).cells[0].outputs
    assert [one.get("text") for one in outputs] == ["x is 3\nstep 2\r\nend", "!", None, "b"]

    def merge(text: str) -> None:
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[stream(text)])]), path)
        merge_streams(path)

    assert linear(merge, "x" * 400_000)


# -- what a fingerprint holds ----------------------------------------------------------------------


def test_code_is_what_runs():
    assert code_tree("a = 1\n\n\n# why\nb = [a,\n     2]") == code_tree("a = 1  # one\nb = [a, 2]\n\n")
    assert code_tree('def f(x):\n    """Doc."""\n    return x') == code_tree("def f(x):\n    return x")
    assert code_tree("a = 1") != code_tree("a = 1.0") != code_tree("a = True") and code_tree("'a'") != code_tree("a")
    assert code_tree("%matplotlib inline\n\na = 1") == code_tree("%matplotlib inline\na = 1\n") != code_tree("a = 1")


def test_a_notebook_that_jupyterlab_saved_is_the_same(tmp_path):
    path = tmp_path / "mine.ipynb"

    def code(*cells: str) -> str:
        first = nbformat.v4.new_code_cell("output = ''\nseed = 0", metadata={"tags": ["parameters"]})
        nbformat.write(nbformat.v4.new_notebook(cells=[first, *map(nbformat.v4.new_code_cell, cells)]), path)
        return read_notebook(path)[1]

    assert code("x = f(1,2)") == code("", "x = f(1, 2)  # two", "  \n", "# nothing") != code("x = f(1, 3)")


REWARDS = '''
WEIGHT = 0.5
def helper(x):
    return x
def other(x):
    return x
@register("sparse")
def sparse(options=1):
    """A docstring."""
    return WEIGHT * helper(options)
'''


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("WEIGHT = 0.5", "WEIGHT = 0.25", False),
        ("def helper(x):\n    return x", "def helper(x):\n    return -x", False),
        ("return WEIGHT", "return 1 + WEIGHT", False),
        ("def other(x):\n    return x", "def other(x):\n    return -x", True),
        ("A docstring.", "Another one.", True),
        ("WEIGHT = 0.5", "# why\nWEIGHT = 0.5", True),
    ],
)
def test_an_edited_reward_is_another_one(before, after, same):
    assert before in REWARDS and reward_code("sparse", REWARDS)
    assert (reward_code("sparse", REWARDS.replace(before, after)) == reward_code("sparse", REWARDS)) == same


def test_a_fingerprint_holds_what_parameters_name():
    """Base models, problem sets and rewards: the parameters hold their names alone."""
    named = {"init": "data/models/base-1m", "problem_set": "3to4", "sets": {"heldout_1000": 4}, "reward": "trace_dense"}
    found = inputs(named | {"eval_rewards": ["ast"], "policy": "Qwen/Qwen2.5-0.5B"}, ROOT)
    problems = {"problems 3to4/heldout_1000", "problems 3to4/train"}
    assert set(found) == problems | {"data/models/base-1m", "reward ast", "reward trace_dense"}
    held = json.loads((DATA / "problems/manifest.json").read_text())
    assert held["3to4/heldout_1000"]["sha256"].startswith(found["problems 3to4/heldout_1000"])
    assert inputs({"reward": "trace_gated"}, ROOT)["reward trace_gated"] != found["reward trace_dense"]
    assert inputs({"a": "x." * 500, "b": "\0.", "c": "a/" * 500}, ROOT) == {}
    for spec in (Project().specs("cpu")[name] for name in ("sft/free/0", "rloo/ast_tau2/0")):
        assert inputs(spec.params, ROOT)


def test_a_folder_with_brackets_in_its_name_is_found(tmp_path):
    folder = tmp_path / "disk [1]/sample/sft/0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    assert folders([str(folder)]) == [folder]


# -- what is written and read ----------------------------------------------------------------------


def test_a_file_with_another_content_of_the_same_length_is_refused(tmp_path):
    pd.DataFrame({"step": [1, 2]}).to_csv(tmp_path / "metrics.csv", index=False)
    (tmp_path / "run.json").write_text(json.dumps({"files": {"metrics.csv": described(tmp_path / "metrics.csv")}}))
    assert len(read_table(tmp_path / "metrics.csv")) == 2
    (tmp_path / "metrics.csv").write_text("step\n1\n3\n")
    with pytest.raises(ValueError, match=r"metrics.csv is damaged .its content is not what was written"):
        read_table(tmp_path / "metrics.csv")
    (tmp_path / "run.json").write_text(json.dumps({"files": {"metrics.csv": 9}}))  # of before hashes were noted
    assert len(read_table(tmp_path / "metrics.csv")) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"elapsed": "2"}, {"files": []}, {"files": {"a": {}}}, {"files": {"a": "b"}}, {"parents": []}, {"artifacts": 3}],
)
def test_a_record_of_other_types_is_answered_in_a_sentence(tmp_path, wrong):
    (tmp_path / "run.json").write_text(json.dumps(RECORD))
    assert read_record(tmp_path)["id"] == "first"
    (tmp_path / "run.json").write_text(json.dumps(RECORD | wrong))
    with pytest.raises(DeclarationError, match=r"run.json is damaged \("):
        read_record(tmp_path)


DEEP = "[" * 100_000 + "]" * 100_000
BOMB = "a: &a [1, 2]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
)


@pytest.mark.parametrize(
    "text",
    ["a: 2026-11-25", f"a: {'9' * 401}", f"a: {'9' * 5001}", "a: &a [*a]", f"a: {DEEP}", BOMB, "a: !!binary abcd"],
)
def test_a_hostile_yaml_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / "papermill_runs.yaml").write_text(text)
    with pytest.raises(DeclarationError, match="papermill_runs.yaml: "):
        Project(tmp_path).declarations  # noqa: B018


def test_an_alias_of_plain_values_is_taken():
    assert plain_data("a: &x {b: 1}\nc: {<<: *x, d: 2.5}") == {"a": {"b": 1}, "c": {"b": 1, "d": 2.5}}


def test_a_chain_of_rounds_is_planned_in_linear_time():
    """Each round rests on the two before it, so that 2 to the 40 ways lead through the chain."""

    looked: list[str] = []

    class Round:
        def __init__(self, name, parents):
            self.name, self.folder, self.reference = name, Missing(looked, name), Missing([], name)
            self.parents = {parent.name: parent for parent in parents}

    rounds: list = []
    for i in range(40):
        rounds.append(Round(f"t/{i}", rounds[-2:]))
    plan = Plan({one.name: one for one in rounds}, [])  # pyright: ignore[reportArgumentType]
    assert plan.heights["t/0"] == 39 and len(plan.waiting) == 40 and len(looked) == 40


class Missing:
    """A folder without a run, which counts how often it is asked."""

    def __init__(self, looked: list[str], name: str):
        self.looked, self.name = looked, name

    def __truediv__(self, name: str) -> Path:
        self.looked += [self.name] * (name == "run.json")
        return Path("/nowhere") / name


# -- what made it ----------------------------------------------------------------------------------


def test_a_commit_is_that_of_this_checkout_and_new_code_makes_it_dirty(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=b", *arguments], check=True)

    git("init", "-q")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/code.py").write_text("a = 1\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    assert provenance(tmp_path)["commit"] and not provenance(tmp_path)["dirty"]
    assert provenance(tmp_path / "lib")["commit"] is None, "unpacked inside another project"
    (tmp_path / "notes.txt").write_text("mine")
    assert not provenance(tmp_path)["dirty"]
    (tmp_path / "lib/extra.py").write_text("b = 2\n")
    assert provenance(tmp_path)["dirty"]
