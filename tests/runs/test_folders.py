"""A run's folder as its notebook sees it: which run began it, what is written into it, and what is
checked on reading."""

import ast
import json
import linecache
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from jupyter_client.manager import start_new_kernel

from lib.files import DATA, PROBLEMS, ROOT, RUNS, clock, progress, read_table, writing
from lib.rewards import REWARDS
from lib.runs import Run
from lib.runs.execute import described
from lib.runs.folder import parameters_of, set_aside
from lib.runs.machine import try_lock
from lib.study import explorer
from lib.study.judging import folders, samples


def test_tests_have_a_folder_of_runs_of_their_own():
    """Whatever lies in data/runs: tests/conftest.py holds every test of the suite to it."""
    assert DATA / "runs" not in (RUNS, *RUNS.parents) and os.environ["COUNTDOWN_RUNS"] == str(RUNS)


# -- a notebook that is run by hand
# ------------------------------------------------------------------


def by_hand(folder: Path, **given) -> Run:
    return Run(
        folder,
        {"output": str(folder), "reward": "sparse", "learning_rate": 1e-3, "init": ""} | given,
    )


def save(folder: Path, step: int) -> Path:
    """What a trainer leaves to resume from."""
    state = folder / f"trainer/checkpoint-{step}/state.txt"
    state.parent.mkdir(parents=True)
    state.write_text("weights")
    state.with_name("complete.json").write_text("{}")
    return state


@pytest.mark.parametrize(
    "other", [{"reward": "ast"}, {"learning_rate": 2e-3}, {"seed": 7}, {"init": "model"}]
)
def test_another_beginning_is_another_run_and_the_same_one_goes_on(
    tmp_path, other, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text(name)
    other = {key: str(tmp_path / value) if key == "init" else value for key, value in other.items()}
    by_hand(folder)
    trained = [save(folder, 40), save(folder, 100)]
    (folder / "metrics.csv").write_text("step\n")
    capsys.readouterr()
    by_hand(folder)
    said = capsys.readouterr().out
    assert (
        "training goes on from its last saved state" in said
        and "name another output or delete this folder" in said
    )
    assert all(path.exists() for path in trained)
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


def test_a_run_without_saved_states_says_that_its_cells_run_again(tmp_path, capsys):
    by_hand(tmp_path)
    by_hand(tmp_path)
    assert not capsys.readouterr().out, "nothing was made yet"
    (tmp_path / "generations.parquet").write_text("rows")
    # of a training that was killed while it saved its first state
    (tmp_path / "trainer/checkpoint-1").mkdir(parents=True)
    by_hand(tmp_path)
    said = capsys.readouterr().out
    assert (
        "with the same parameters and files: all cells run again" in said and "goes on" not in said
    )


def test_a_run_that_was_begun_before_code_was_recorded_goes_on(tmp_path, capsys):
    """The hashes of its rewards were of another kind, under other names."""
    by_hand(tmp_path)
    spec = json.loads((tmp_path / "spec.json").read_text())
    old = {"parameters": spec["parameters"], "inputs": {"reward sparse": "1"}}
    (tmp_path / "spec.json").write_text(json.dumps(old))
    trained = save(tmp_path, 40)
    by_hand(tmp_path)
    assert trained.exists() and "goes on" in capsys.readouterr().out


EDITED = r"""
import json
from pathlib import Path
import lib.rewards
from lib.runs import Run, code

given = {"output": "data/runs/scratch/x", "seed": 0, "reward": "sparse"}
run = Run(given["output"], given)
before = code.executed({})["rewards"]
file = Path(lib.rewards.__file__)
file.write_text(file.read_text() + "\nOTHER = 1\n")
run.footer()
record = json.loads((run / "run.json").read_text())
assert record["executed"]["rewards"] == before != code.module_hash(file.read_bytes())
for once_more in (lambda: Run(given["output"], given), lambda: Run(given["output"])):
    try:
        once_more()
    except RuntimeError as error:
        print("refused:", error)
"""
AFTER = """
from lib.runs import Run
import json
given = {"output": "data/runs/scratch/x", "seed": 0, "reward": "sparse"}
run = Run(given["output"], given)
import lib.rewards
run.footer()
record = json.loads((run / "run.json").read_text())
print(len(record.get("resumed_by", [])), "later stretches")
"""


def test_a_kernel_with_old_code_is_refused_and_a_record_names_what_ran(tmp_path):
    """A file of lib/ is edited, as the README tells users to, after a kernel has loaded it."""
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("COUNTDOWN")}
    env |= {"PYTHONPATH": str(tmp_path)}

    def kernel(code: str) -> str:
        command = [sys.executable, "-c", code]
        made = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert not made.returncode, made.stderr
        return made.stdout

    said = kernel(EDITED)
    assert (
        said.count(
            "refused: lib/rewards.py: edited after this kernel loaded it. Restart the kernel"
        )
        == 2
    )
    assert "lib/rewards.py was edited while this ran" in said
    (tmp_path / "data/runs/scratch/x/metrics.csv").write_text("step")
    said = kernel("import lib.rewards\n" + AFTER)
    assert (
        "It was begun by other code of rewards; its run.json names both" in said
        and "1 later stretches" in said
    )


TRAIN = """
saved = run / "trainer/checkpoint-1/complete.json"
print("made by", saved.read_text() if saved.exists() else score)
if not saved.exists():
    saved.parent.mkdir(parents=True)
    saved.write_text(str(score))
"""
FINISHED = ("score = 1", TRAIN, "plot = 1", "run.footer()")  # the cells of a run to its end


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all tests that run a notebook in it."""
    manager, client = start_new_kernel(cwd=str(ROOT))
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


class Notebook:
    """A notebook with results in `folder`, which is run again and again in one kernel, each time
    from its first cell."""

    def __init__(self, client, folder: Path):
        self.client = client
        self.folder = folder
        self.seed = 0

    def said(self, *cells: str) -> list[str]:
        """What each of these cells prints, behind the parameters and `Run`."""
        self.execute(f"output = {str(self.folder)!r}\nseed = {self.seed}")
        self.execute("from lib.runs import Run\nrun = Run(output, globals())")
        return [self.execute(cell) for cell in cells]

    def execute(self, cell: str) -> str:
        messages: list[dict] = []
        reply = self.client.execute_interactive(cell, timeout=120, output_hook=messages.append)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(message["content"].get("text", "") for message in messages)

    def aside(self) -> list[str]:
        """Which scores had made the results that were set aside."""
        names = self.folder.parent.glob("mine.before-*/trainer/checkpoint-1/complete.json")
        return sorted(path.read_text() for path in names)


@pytest.fixture
def notebook(kernel, tmp_path) -> Notebook:
    return Notebook(kernel, tmp_path / "mine")


def test_a_notebook_goes_on_after_edits_that_change_nothing(notebook):
    """A cell that is run twice, another comment, one more cell at the end."""
    first = notebook.said("score = 1", "score = 1", TRAIN, "plot = 1", "run.footer()")
    again = notebook.said("score = 1  # one", TRAIN, "plot = 1", "run.footer()", "more = 1")
    assert first[2] == again[1] == "made by 1\n" and not notebook.aside()
    assert not any("another one" in text for text in first + again)


def test_an_edited_training_begins_anew_and_an_edit_behind_it_does_not(notebook):
    notebook.said(*FINISHED)
    reported = f"{TRAIN}run.report(saved)"
    plotted = notebook.said("score = 1", reported, "plot = 2", "run.footer()")
    assert "another one" in plotted[1] and notebook.aside() == ["1"]
    plotted = notebook.said("score = 1", reported, "plot = 3", "run.footer()")
    assert plotted[1].startswith("made by 1\n") and notebook.aside() == ["1"]
    assert "another one" in plotted[2] and "is in" not in plotted[2]


def test_nothing_goes_on_from_the_results_of_an_edited_cell(notebook):
    """After an edit of `score = ...` in front of the training: of a finished run, and then of one
    that was interrupted, after which the training would go on."""
    notebook.said(*FINISHED)
    edited = notebook.said("score = 2", TRAIN)
    assert "This cell is another one than that which ran here before" in edited[0]
    assert f"What lay there is in {notebook.folder}.before-" in edited[0]
    assert edited[1] == "made by 2\n" and notebook.aside() == ["1"]
    spec = json.loads((notebook.folder / "spec.json").read_text())
    assert spec["parameters"] == {"seed": 0}
    interrupted = notebook.said("score = 3", TRAIN)
    assert interrupted[1] == "made by 3\n" and notebook.aside() == ["1", "2"]


def test_a_cell_that_is_gone_is_an_edit(notebook):
    notebook.said("score = 3", TRAIN)
    assert notebook.said("score = 3", "score = 4", TRAIN)[2] == "made by 4\n"
    assert notebook.said("score = 3", TRAIN)[1].endswith("made by 3\n")


def test_other_parameters_begin_anew_whatever_was_edited(notebook):
    notebook.said("score = 3", TRAIN)
    notebook.seed = 1
    assert "another one" not in notebook.said("score = 5", TRAIN)[0]


def test_a_reward_in_a_cell_that_was_edited_while_its_run_was_made_does_not_finish_it(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(REWARDS, "mine", in_a_cell(1))
    run = by_hand(tmp_path / "mine", reward="mine")
    monkeypatch.setitem(REWARDS, "mine", in_a_cell(2))
    with pytest.raises(RuntimeError, match="function of reward mine: edited while this ran"):
        run.footer()
    assert not (run / "run.json").exists()


def in_a_cell(points: int):
    """The factory of a reward that a cell has defined."""
    name = f"cell {points}"
    names = {"__name__": "__main__"}
    code = "from lib.rewards import Score\ndef mine():\n"
    code += f"    return lambda texts, problem: [Score({points}, {{}}) for _ in texts]\n"
    linecache.cache[name] = len(code), None, code.splitlines(True), name  # as IPython does
    exec(compile(code, name, "exec"), names)
    return names["mine"]


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")))
def test_a_second_run_in_one_kernel_takes_no_variable_of_the_notebook_for_a_parameter(
    name, tmp_path
):
    """Every name that its cells assign holds something that no parameter may be."""
    cells = [
        cell
        for cell in nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells
        if cell.cell_type == "code"
    ]
    kernel: dict = {"In": ["", *(cell.source for cell in cells)]}
    for cell in cells:
        nodes = ast.walk(ast.parse(cell.source))
        names = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        kernel |= {name: [("a", "table")] for name in names}
    [parameters] = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    exec(parameters, kernel)
    Run(tmp_path / "run", kernel)


def test_what_the_runner_has_begun_stays_its_own_when_its_notebook_goes_on(tmp_path):
    folder = tmp_path / "mine"
    by_hand(folder)
    begun = json.loads((folder / "spec.json").read_text()) | {
        "profile": "cpu",
        "run": "rloo/mine",
        "seed": 0,
    }
    (folder / "spec.json").write_text(json.dumps(begun))
    trained = save(folder, 40)
    by_hand(folder)
    assert trained.exists() and json.loads((folder / "spec.json").read_text()) == begun


def test_what_is_set_aside_within_one_second_is_kept_apart(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for text in "123":
        (folder / "metrics.csv").write_text(text)
        set_aside(folder)
    assert sorted(path.read_text() for path in tmp_path.glob("mine.before-*/metrics.csv")) == [
        *"123"
    ]


def test_the_notebook_of_a_finished_run_begins_beside_its_results(tmp_path, capsys):
    folder = tmp_path / "mine"
    by_hand(folder)
    (folder / "spec.json").write_text(
        json.dumps(json.loads((folder / "spec.json").read_text()) | {"profile": "cpu"})
    )
    (folder / "run.json").write_text("{}")
    (folder / "metrics.csv").write_text("step\n")
    by_hand(folder)
    assert (
        "begun with the same parameters, and is finished: this run begins anew"
        in capsys.readouterr().out
    )
    [aside] = tmp_path.glob("mine.before-*")
    assert (aside / "metrics.csv").exists() and [path.name for path in folder.iterdir()] == [
        "spec.json"
    ]


def test_what_a_user_left_in_a_folder_is_not_touched(tmp_path):
    (tmp_path / "mine.ipynb").write_text("{}")
    by_hand(tmp_path)  # the notebook itself may lie there
    (tmp_path / "spec.json").unlink()
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(
        ValueError, match=r"thesis.txt was not made by a run, .*: give this run another output"
    ):
        by_hand(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.ipynb", "thesis.txt"]
    with pytest.raises(ValueError, match="was not made by a run"):
        by_hand(PROBLEMS)
    before = sorted(PROBLEMS.iterdir())
    Run(PROBLEMS, {"output": str(PROBLEMS), "train_rows": 50_000}, shared=True)  # notebook 01
    assert sorted(PROBLEMS.iterdir()) == before


@pytest.mark.parametrize("output", ["", ".", "..", "data/reference/cpu/rloo/mine/0"])
def test_no_run_writes_among_the_code_or_the_published_results(output):
    with pytest.raises(ValueError, match="where no run writes"):
        Run(output)
    assert not (DATA / "reference/cpu/rloo/mine").exists()


def test_the_users_home_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Run("~/x").folder == tmp_path / "x" and not (ROOT / "~").exists()


def test_two_notebooks_do_not_work_in_one_folder(tmp_path):
    """A kernel holds the folder of its last run. A second kernel is here a second handle on the
    folder."""
    by_hand(tmp_path / "one")
    handle = os.open(tmp_path / "one", os.O_RDONLY)
    try:
        assert not try_lock(handle)
        by_hand(tmp_path / "one")  # the cell is executed again
        by_hand(tmp_path / "two")
        assert try_lock(handle)
        with pytest.raises(
            ValueError, match=r"another notebook works in .*one: give this one another output"
        ):
            by_hand(tmp_path / "one")
    finally:
        os.close(handle)


def test_a_run_by_hand_is_found_once_its_last_cell_has_run(tmp_path, monkeypatch):
    monkeypatch.setattr(explorer, "RUNS", tmp_path)
    folder = tmp_path / "scratch/mine"
    run = by_hand(folder, seed=3, prompt_style="free")
    row = {
        "problem": 0,
        "nums": [44, 19, 35],
        "target": 98,
        "completion": "<answer>44 + 19 + 35</answer>",
        "count": 1,
    }
    run.write(
        pd.DataFrame([row | {"tokens": 9, "logprob": -1.0, "finish": "stop"}]),
        "generations.parquet",
    )
    with pytest.raises(FileNotFoundError, match="no finished run there"):
        samples(folder)
    run.report(run / "generations.parquet")
    run.footer()
    [judged] = samples(folder).to_dict("records")
    assert (
        judged["correct"]
        and judged["method"] == judged["run"] == str(folder)
        and judged["seed"] == 3
    )
    assert json.loads((folder / "run.json").read_text())["profile"] is None
    assert "scratch" in explorer.profiles() and list(
        explorer.find("scratch", *explorer.WRITTEN)
    ) == ["mine (yours)"]
    by_hand(folder, seed=3, prompt_style="free")  # its cells are executed again
    assert sorted(path.name for path in folder.iterdir()) == ["generations.parquet", "spec.json"]


def test_a_reward_that_was_edited_in_its_cell_begins_another_run(tmp_path, monkeypatch):
    for points, goes_on in ((1, False), (1, True), (2, False)):
        monkeypatch.setitem(REWARDS, "mine", in_a_cell(points))
        by_hand(tmp_path / "mine", reward="mine")
        assert (tmp_path / "mine/trainer").exists() == goes_on
        if not goes_on:
            save(tmp_path / "mine", 40)


@pytest.mark.parametrize("name", ["generations.parquet", "text/train.npz", "test.json"])
def test_other_results_in_a_folder_that_a_parameter_names_begin_another_run(tmp_path, name):
    """But not results that were not there before: notebook 03 may have its text written."""
    folder = tmp_path / "mine"
    pairs = tmp_path / "pairs"
    by_hand(folder, pairs=str(pairs))
    trained = save(folder, 40)
    (pairs / name).parent.mkdir(parents=True)
    (pairs / name).write_text("pairs")
    by_hand(folder, pairs=str(pairs))
    assert trained.exists()
    (pairs / name).write_text("other pairs")
    by_hand(folder, pairs=str(pairs))
    assert not trained.exists()


def test_results_that_nothing_explains_are_set_aside(tmp_path):
    """A power cut may leave a spec.json without its content."""
    folder = tmp_path / "old"
    save(folder, 40)
    (folder / "spec.json").write_text("")
    by_hand(folder)
    assert [path.name for path in folder.iterdir()] == ["spec.json"] and len(
        list(tmp_path.iterdir())
    ) == 2


def test_parameters_are_what_the_cell_with_output_and_seed_assigns():
    """In the names of a kernel that has run the whole notebook before, and was given some by
    papermill."""
    first = (
        "get_ipython().run_line_magic('load_ext', 'x')\noutput = 'x'\nseed = 0\n"
        "rate = 3 * 1e-4\nsets = {1}"
    )
    cells = ["import math", first, "# Parameters\nrate = 0.5", "loss = run(3)", "n = 3"]
    names = {"output": "x", "seed": 0, "rate": 0.5, "sets": {1}, "loss": 3.0, "n": 3, "_": 3}
    found = {"output": "x", "seed": 0, "rate": 0.5, "sets": "{1}"}
    assert parameters_of(names | {"In": ["", *cells]}) == found
    assert parameters_of(names | {"In": ["output = 'x'", "seed = 0"]}).keys() == names.keys() - {
        "sets",
        "_",
    }


def test_a_parameter_that_is_gone_is_another_beginning(tmp_path):
    folder = tmp_path / "mine"
    by_hand(folder, kl=1)
    trained = save(folder, 40)
    by_hand(folder)
    assert not trained.exists()


@pytest.mark.parametrize(
    "name",
    ["02_base_text", "03_pretrain_base", "10_train_sft", "11_train_rloo", "13_train_preference"],
)
def test_every_trainer_notebook_begins_anew_with_another_parameter(tmp_path, name):
    """Its own cells, up to the one that takes its folder, which comes before anything that
    resumes."""
    cells = [
        cell
        for cell in nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells
        if cell.cell_type == "code"
    ]
    tagged = next(
        i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])
    )
    start = next(i for i, cell in enumerate(cells) if "Run(output, globals()" in cell.source)
    before = "".join(cell.source for cell in cells[tagged : start + 1])
    assert tagged < start and not re.search(r"\btrain_\w+\(", before)

    def begin(**given) -> None:
        names: dict = {}
        exec(cells[tagged].source, names)
        exec(
            "from lib.runs import Run\nrun = Run(output, globals())",
            names | {"output": str(tmp_path / "run")} | given,
        )

    begin()
    saved = save(tmp_path / "run", 40)
    begin()
    assert saved.exists()
    begin(seed=7)
    assert not saved.exists() and len(list(tmp_path.glob("run.before-*"))) == 1


# -- what is written and read
# ------------------------------------------------------------------------


def test_a_folder_with_brackets_in_its_name_is_found(tmp_path):
    folder = tmp_path / "disk [1]/sample/sft/0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    assert folders([str(folder)]) == [folder]


def test_a_file_with_another_content_of_the_same_length_is_refused(tmp_path):
    pd.DataFrame({"step": [1, 2]}).to_csv(tmp_path / "metrics.csv", index=False)
    (tmp_path / "run.json").write_text(
        json.dumps({"files": {"metrics.csv": described(tmp_path / "metrics.csv")}})
    )
    assert len(read_table(tmp_path / "metrics.csv")) == 2
    record = json.loads((tmp_path / "run.json").read_text())
    # another file, which is not there
    record["files"]["metrics.csv.old"] = record["files"]["metrics.csv"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert len(read_table(tmp_path / "metrics.csv")) == 2
    (tmp_path / "metrics.csv").write_text("step\n1\n3\n")
    with pytest.raises(
        ValueError, match=r"metrics.csv is damaged .its content is not what was written"
    ):
        read_table(tmp_path / "metrics.csv")


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
    with pytest.raises(ValueError, match=r"table.txt: a table is written as .parquet or .csv"):
        run.write(table, "table.txt")
    assert not list(run.folder.glob("*.txt*")) and not list(run.folder.glob(".*"))


def full_disk_write(run: Run, name: str) -> None:
    """Write a table in a process that may write no file over 4 KB, as on a disk with no room
    left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        run.write(pd.DataFrame({"x": range(100_000)}), name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_of_runs_that_cannot_be_one_is_said():
    remedy = r"File exists\): see that its folder exists and may be written to, .* COUNTDOWN_RUNS"
    with pytest.raises(OSError, match=remedy), writing(RUNS / "cpu"):
        raise FileExistsError(17, "File exists")


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
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "step 6/10, loss=0.25, 00:10 elapsed, 00:40 left"
    )
    assert [clock(seconds) for seconds in (5, 75, 3700)] == ["00:05", "01:15", "1:01:40"]
