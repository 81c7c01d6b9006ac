"""One run: what happens to its folder, how its notebook is executed, and what the run holds
meanwhile."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

from lib import files
from lib.files import ROOT, sha256
from lib.runs import code, machine, warm
from lib.runs.execute import describe, execute, prepare
from lib.runs.folder import provenance, write_json
from lib.runs.kernel import DIE_WITH_PARENT, QUIET
from lib.runs.machine import PARENT, RunError, gpu
from lib.runs.plan import Project, other_code
from tests.scratch import BASE, TRAIN_CODE, TRAIN_END, Checkout, set_in, write_notebook

BEGAN = {
    "profile": "cpu",
    "run": "t/base",
    "seed": 0,
    "notebook": "base",
    "parameters": {"steps": 3},
}
BEGAN |= {"inputs": {}, "parents": {}}
MAKER = {"commit": "a", "dirty": False, "lib": "1"}


@pytest.fixture
def here(checkout) -> Iterator[Callable[[str], dict]]:
    """Execute a run of the scratch checkout in this process: its run.json."""

    def run(name: str) -> dict:
        project = Project(checkout.root)
        execute(project, project.specs("cpu")[f"{name}/0"])
        return checkout.record(name)

    with patch.dict(os.environ):
        yield run


# -- its folder
# --------------------------------------------------------------------------------------


def test_old_results_are_set_aside_and_nothing_is_deleted(tmp_path, capsys):
    folder = tmp_path / "0"
    folder.mkdir()
    prepare(folder, BEGAN, dict(MAKER), study=False, defaults={})
    for name in ("metrics.csv", "thesis.txt", "run.json", "log.txt"):
        (folder / name).write_text(name)
    prepare(folder, BEGAN | {"parameters": {"steps": 4}}, dict(MAKER), study=False, defaults={})
    [aside] = tmp_path.glob("0.before-*")
    assert str(aside) in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["spec.json"]
    assert sorted(path.name for path in aside.iterdir()) == [
        *("log.txt", "metrics.csv", "run.before.json", "spec.json", "thesis.txt")
    ]


def test_what_makes_a_run_is_noted_when_it_starts_and_kept_when_it_goes_on(tmp_path, capsys):
    first, _ = prepare(tmp_path, BEGAN, dict(MAKER), study=False, defaults={})
    assert [one["commit"] for one in first] == ["a"] and first[0]["started"]
    (tmp_path / "checkpoint").mkdir()
    again, _ = prepare(tmp_path, BEGAN, dict(MAKER), study=False, defaults={})
    assert again == first and "goes on" not in capsys.readouterr().out
    other, _ = prepare(
        tmp_path, BEGAN, MAKER | {"lib": "2", "commit": "b"}, study=False, defaults={}
    )
    assert [one["lib"] for one in other] == ["1", "2"] and other[0] == first[0]
    assert "goes on, though commit, lib differ from when it was begun" in capsys.readouterr().out
    assert (tmp_path / "checkpoint").exists()


def test_what_a_stretch_reported_is_reported_anew(tmp_path):
    prepare(tmp_path, BEGAN, dict(MAKER), study=False, defaults={})
    for name in ("run.json", "artifacts.txt", "half.txt"):
        (tmp_path / name).write_text(name)
    prepare(tmp_path, BEGAN, dict(MAKER), study=False, defaults={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.txt", "spec.json"]


def test_a_study_is_made_again_in_its_own_folder(tmp_path):
    folder = tmp_path / "0"
    folder.mkdir()
    prepare(folder, BEGAN, dict(MAKER), study=True, defaults={})
    (folder / "table.csv").write_text("old")
    prepare(folder, BEGAN | {"parameters": {"steps": 4}}, dict(MAKER), study=True, defaults={})
    assert [*tmp_path.iterdir()] == [folder] and (folder / "table.csv").exists()


def test_results_that_were_restored_without_weights_are_set_aside(tmp_path, capsys):
    folder = tmp_path / "0"
    folder.mkdir()
    identity = {key: BEGAN[key] for key in ("profile", "run", "seed")}
    (folder / "spec.json").write_text(json.dumps(identity | {"results_only": True}))
    (folder / "metrics.csv").write_text("step")
    prepare(folder, BEGAN, dict(MAKER), study=False, defaults={})
    assert "t/base/0: restored without weights; starts anew" in capsys.readouterr().out
    assert [path.read_text() for path in tmp_path.glob("0.before-*/metrics.csv")] == ["step"]


@pytest.mark.parametrize("other", [{"profile": "smoke"}, {"run": "t/other"}, {"seed": 1}])
def test_the_folder_of_another_run_is_not_touched(tmp_path, other):
    (tmp_path / "spec.json").write_text(json.dumps(BEGAN | other))
    (tmp_path / "metrics.csv").write_text("step")
    with pytest.raises(
        RunError, match="metrics.csv was not made by run t/base/0, whose folder it lies in"
    ):
        prepare(tmp_path, BEGAN, dict(MAKER), study=False, defaults={})
    assert json.loads((tmp_path / "spec.json").read_text()) == BEGAN | other


@pytest.mark.parametrize("torn", ["", "{", "\0" * 200, "[]"])
def test_a_power_cut_locks_no_run_out(tmp_path, torn):
    """What it may leave: a spec.json without its content, with a log or with more."""
    folder = tmp_path / "0"
    folder.mkdir()
    for name in ("spec.json", "log.txt"):
        (folder / name).write_text(torn)
    prepare(folder, BEGAN, dict(MAKER), study=False, defaults={})
    assert not list(tmp_path.glob("0.before-*")), "the runner's own files are no results"
    (folder / "spec.json").write_text(torn)
    (folder / "half.txt").write_text("half")
    prepare(folder, BEGAN, dict(MAKER), study=False, defaults={})
    assert [path.read_text() for path in tmp_path.glob("0.before-*/half.txt")] == ["half"]


def test_time_adds_up_over_kills(tmp_path):
    """A stretch that was killed lasted until its newest file; a study is made anew."""
    assert prepare(tmp_path, BEGAN, dict(MAKER), study=False, defaults={})[1] == 0
    for spent in (50.0, 100.0):
        step = tmp_path / "checkpoint"
        step.write_text("1")
        os.utime(step, (time.time() + 50,) * 2)
        assert prepare(tmp_path, BEGAN, dict(MAKER), study=False, defaults={})[1] == pytest.approx(
            spent, abs=5
        )
    assert prepare(tmp_path, BEGAN, dict(MAKER), study=True, defaults={})[1] == 0


def test_a_folder_that_is_not_the_runs_own_is_never_emptied(checkout, warm_kernels, here, capsys):
    folder = checkout.folder("t/base")
    folder.mkdir(parents=True)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint/thesis.txt").write_text("years")
    (folder / ".spec.json.123").write_text("{")  # what a kill leaves of the first write
    with pytest.raises(
        RunError, match=r"t/base/0/checkpoint was not made by run t/base/0, .*: move it away"
    ):
        here("t/base")
    (folder / "spec.json").write_text('{"profile": "cpu", "run": "study/study", "seed": 0}')
    with pytest.raises(RunError, match="was not made by run t/base/0"):
        here("t/base")
    assert (folder / "checkpoint/thesis.txt").read_text() == "years"
    # begun with other parameters: what lies there is set aside, files of the user's too
    (folder / "spec.json").write_text('{"profile": "cpu", "run": "t/base", "seed": 0}')
    assert here("t/base")["status"] == "finished"
    said, [aside] = capsys.readouterr().out, folder.parent.glob("0.before-*")
    assert "starts anew" in said and f"what it had made is now in {aside}" in said
    assert (aside / "checkpoint/thesis.txt").read_text() == "years"
    assert not (folder / "checkpoint/thesis.txt").exists()


# -- its notebook
# ------------------------------------------------------------------------------------


def test_streams_are_merged_as_a_terminal_shows_them(checkout, warm_kernels, here):
    """What the kernel sends in pieces is one text, and a progress line ends as its last state,
    however long it was."""
    pieces = ["x is", " 3\n", "step 1\rstep", " 2\r", "step 3\n", "end\n"]
    code = (
        f"import sys, time\nfor piece in {pieces}:\n    print(piece, end='', flush=True)\n"
        f"    time.sleep(0.3)\n"
    )
    code += "print('!', file=sys.stderr)"
    long = "print('x' * 300_000, end='\\rdone\\n')\nprint('y' * 300_000)"
    path = checkout.root / "notebooks/base.ipynb"
    write_notebook(path, BASE, "init = 'none'\n" + TRAIN_CODE, code, long, TRAIN_END)
    folder = checkout.folder("t/base")
    folder.mkdir(parents=True)
    identity = folder.stat()
    left = Path(f"/tmp/run-{os.getuid()}-{identity.st_dev:x}-{identity.st_ino:x}")
    (left / "kernels").mkdir(parents=True)  # by a runner that was killed
    here("t/base")
    assert not left.exists()
    cells = nbformat.read(folder / "notebook.ipynb", 4).cells
    said = []
    for cell in cells:
        if cell.source in (code, long):
            said.append({out.name: out.text for out in cell.outputs})
    assert said == [
        {"stdout": "x is 3\nstep 3\nend\n", "stderr": "!\n"},
        {"stdout": "done\n" + "y" * 300_000 + "\n"},
    ]


def test_a_notebook_of_many_output_widgets_comes_to_its_end(checkout, warm_kernels, here):
    """nbclient alone lost one cell's reply in six to seventy, and waited for ever.

    And a line that the kernel sends in two pieces is one."""
    show = "def show(x):\n    print('x is', end=' ', flush=True)\n    print(x)"
    cell = f"import ipywidgets\n\n\n@ipywidgets.interact(x=3)\n{show}"
    write_notebook(
        checkout.root / "notebooks/base.ipynb",
        BASE,
        "init = 'none'\n" + TRAIN_CODE,
        *[cell] * 100,
        TRAIN_END,
    )
    here("t/base")
    cells = nbformat.read(checkout.folder("t/base") / "notebook.ipynb", as_version=4).cells
    shown = [cell for cell in cells if "interact" in cell.source]
    assert len(shown) == 100
    for one in shown:
        assert "x is 3\n" in [out.get("text") for out in one.outputs]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what ends the kernel")
def test_a_kernel_that_is_interrupted_at_its_end_is_not_heard(capfd):
    """Nor does it lose its other words, or its death with the runner."""
    manager, client = start_new_kernel(extra_arguments=DIE_WITH_PARENT + QUIET)
    said = (
        "log = get_ipython().kernel.log; log.error('KeyboardInterrupt caught in kernel.'); "
        "log.error('another')"
    )
    client.execute_interactive(said, timeout=60)
    signal_of = (
        "import ctypes; held = ctypes.c_int(); ctypes.CDLL(None).prctl(2, "
        "ctypes.byref(held)); print(held.value)"
    )
    client.execute_interactive(signal_of, timeout=60)
    manager.shutdown_kernel()
    out, err = capfd.readouterr()
    assert "another" in err and "caught in kernel" not in err and out.strip() == "9"


def test_a_run_that_ends_itself_is_not_finished_and_its_kernel_is_this_python(
    checkout, here, tmp_path, monkeypatch
):
    strange = tmp_path / "strange/kernels"
    for name in ("python3", "countdown"):  # as JupyterHub or a cluster's modules set it
        (strange / name).mkdir(parents=True)
        (strange / name / "kernel.json").write_text(
            '{"argv": ["false"], "display_name": "x", "language": "python"}'
        )
    monkeypatch.setenv("JUPYTER_PATH", str(strange.parent))
    path = checkout.root / "notebooks/base.ipynb"
    write_notebook(path, BASE, "import sys\nsys.exit(0)", "", "print('never')")
    with pytest.raises(RunError, match=r"it is not finished: no cell from `print\('never'\)` on"):
        here("t/base")
    assert not (checkout.folder("t/base") / "run.json").exists()

    # the last cell may end it; what ran is this very Python, and run.json says what it took
    write_notebook(
        path,
        BASE,
        "import sys\nfrom lib.runs import Run",
        "Run(output).folder.joinpath('python.txt').write_text(sys.executable)\nsys.exit(0)",
    )
    made = here("t/base")
    assert (checkout.folder("t/base") / "python.txt").read_text() == sys.executable
    assert (
        made["core_seconds"] > 0.1
        and made["id"]
        and made["lib"]
        and set(made["files"]) == {"python.txt"}
    )
    assert made["files"]["python.txt"]["sha256"] == sha256(checkout.folder("t/base") / "python.txt")
    spec = json.loads((checkout.folder("t/base") / "spec.json").read_text())
    assert spec["made_by"][0].items() <= made.items(), "as it was when the run started"

    # another parameter sets the results aside
    checkout.declare(set_in("runs", "t/base", "params", value={"steps": 2}))
    write_notebook(path, BASE, "made = 2")
    assert here("t/base")["files"] == {}
    assert len(list(checkout.folder("t/base").parent.glob("0.before-*/python.txt"))) == 1


def test_a_failing_cell_is_named_and_the_run_goes_on_where_it_ended(checkout, warm_kernels, here):
    pauses = set_in("runs", "t/base", "params", value={"fail": True, "steps": 2})
    checkout.declare(pauses)
    with pytest.raises(RunError) as caught:
        here("t/base")
    assert "failed in the cell that starts with `init = 'none'`" in str(caught.value)
    assert "ArithmeticError: the loss is gone" in str(caught.value)
    assert f"log: {checkout.folder('t/base')}/notebook.ipynb" in str(caught.value)
    assert Checkout(checkout.root).specs("cpu")["t/base/0"].state == "unfinished"
    with pytest.raises(RunError, match="the loss is gone"):
        here("t/base")
    assert "starts at step 2" in (checkout.folder("t/base") / "log.txt").read_text()
    reason = "needs t/base/0, which is not finished .unfinished.: "
    with pytest.raises(RunError, match=reason + "`.venv/bin/python -m lib.runs make"):
        here("t/train_0.1")


def test_a_study_reads_what_is_finished(checkout, warm_kernels, here):
    with pytest.raises(
        RunError, match="it has nothing to read: .*make cpu t/train_0.1/0 study/study/0"
    ):
        here("study/study")
    checkout.finish("t/base", "t/train_0.2")
    record = here("study/study")
    assert list(record["parents"]) == ["t/train_0.2/0"] and record["artifacts"] == ["table.csv"]
    assert "t/train_0.2/0" in (checkout.folder("study/study") / "table.csv").read_text()
    spec = Checkout(checkout.root).specs("cpu")["study/study/0"]
    assert spec.state == "done"
    checkout.finish("t/train_0.1")  # now finished, it belongs to the study
    assert spec.state == "t/train_0.1/0 made anew"


LEAVES = """
import os
from lib.runs import Run
run = Run(output)
(run / "trainer").mkdir()
for name in ("trainer/state.txt", ".half", "made.txt"):
    (run / name).write_text(os.environ["OMP_NUM_THREADS"])
"""


def test_the_record_of_a_resumed_run_names_what_began_it_and_what_it_left(
    checkout, warm_kernels, here
):
    """By another commit, a hundred seconds before it was interrupted."""
    write_notebook(checkout.root / "notebooks/base.ipynb", BASE + "\nmine = ''", LEAVES)
    (checkout.root / "my.csv").write_text("nums,target\n1 2,3\n")
    checkout.declare(
        set_in(
            "runs", "t/base", value={"notebook": "base", "params": {"mine": "my.csv"}, "threads": 2}
        )
    )
    spec = checkout.specs("cpu")["t/base/0"]
    spec.folder.mkdir(parents=True)
    prepare(spec.folder, describe(checkout, spec, {}), dict(MAKER), study=False, defaults={})
    begun = json.loads((spec.folder / "spec.json").read_text())
    write_json(spec.folder / "spec.json", begun | {"spent": 100.0})
    record = here("t/base")
    assert record["commit"] == MAKER["commit"] and [
        one["commit"] for one in record["resumed_by"]
    ] == [None]
    assert record["elapsed"] >= 100 and record["inputs"].keys() == {"my.csv"}
    assert record["threads"] == 2 and (spec.folder / "made.txt").read_text() == "2"
    assert record["files"].keys() == {"made.txt"} and not (spec.folder / "trainer").exists()


STARTED = """
import lib.learn.losses
import matplotlib.pyplot as plt
from lib.runs import Run
from lib.study import plots
run = Run(output)
"""
ENDED = "import lib.game.steps\nplt.plot([1], [2], lw=0.8)\nplt.close()\nrun.footer()"


def test_a_run_records_what_it_has_executed_of_lib(checkout, warm_kernels, here):
    """And `status` names code that computes something else, but no other comment or line width."""
    shutil.copytree(ROOT / "lib", checkout.root / "lib", dirs_exist_ok=True)
    path = checkout.root / "notebooks/base.ipynb"
    write_notebook(path, BASE, STARTED, ENDED)
    record = here("t/base")
    assert {"learn.losses", "game.steps", "files", "notebook"} <= record["executed"].keys()
    assert not {"study.plots", "runs.folder", "game.mdp"} & record["executed"].keys()

    def status() -> str:
        return Checkout(checkout.root).ask("status", "cpu", "t/base").splitlines()[0]

    def edited(name: str, before: str, after: str) -> str:
        file = checkout.root / name
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))
        said = status()
        file.write_text(text)
        return said

    assert "by other code" not in status() and "unknown code" not in status()
    assert "done, by other code: game.steps" in edited(
        "lib/game/steps.py", "def verify_steps", "OTHER = 1\n\n\ndef verify_steps"
    )
    assert "by other code" not in edited(
        "lib/game/steps.py", "def verify_steps", "# why\ndef verify_steps"
    )
    assert "by other code" not in edited(
        "lib/study/plots.py", "def style_of", "OTHER = 1\n\n\ndef style_of"
    )
    assert "by other code" not in edited("notebooks/base.ipynb", "lw=0.8", "lw=2")
    assert "by other code: notebook" in edited(
        "notebooks/base.ipynb", "import lib.game.steps", "import lib.game.mdp"
    )
    assert "  1 of these were made by code that computes something else now" in plan_after(checkout)

    record.pop("executed")
    write_json(checkout.folder("t/base") / "run.json", record)
    assert "done, by unknown code" in status()


def plan_after(checkout) -> str:
    """What `plan` says once a loss is ruined."""
    path = checkout.root / "lib/learn/losses.py"
    path.write_text(path.read_text() + "\nleave_one_out = None\n")
    return Checkout(checkout.root).ask("plan", "cpu", "t/base")


def test_an_interrupted_run_goes_on_under_other_code_and_records_both(checkout, warm_kernels, here):
    """Its notebook was edited meanwhile, and it was begun before there was a parameter, with hashes
    of another kind."""
    shutil.copytree(ROOT / "lib", checkout.root / "lib", dirs_exist_ok=True)
    path = checkout.root / "notebooks/base.ipynb"
    write_notebook(path, BASE + "\nnew = 3", STARTED, ENDED)
    spec = checkout.specs("cpu")["t/base/0"]
    spec.folder.mkdir(parents=True)
    began = describe(checkout, spec, {}) | {
        "code": "1",
        "fingerprint": "2",
        "inputs": {"reward sparse": "3"},
    }
    began["parameters"].pop("new")
    prepare(spec.folder, began, MAKER | {"code": "1"}, False, {})
    (spec.folder / "half.txt").write_text("half")
    write_json(spec.folder / code.FILE, {"learn.losses": "4"})
    record = here("t/base")
    assert "half.txt" in record["files"]
    assert record["code"] == "1" and record["executed"] == {"learn.losses": "4"}
    [later] = record["resumed_by"]
    assert later["code"] == spec.code and later["executed"].keys() >= {
        "learn.losses",
        "game.steps",
        "notebook",
    }
    assert other_code(checkout, spec) == ["learn.losses"]


# -- what made it
# ------------------------------------------------------------------------------------


def committed(folder: Path) -> None:
    """Make a repository of a folder, with all that is in it."""
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(
            ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=b", *command], check=True
        )


def test_a_commit_is_that_of_this_checkout_and_new_code_makes_it_dirty(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/code.py").write_text("a = 1\n")
    committed(tmp_path)
    assert provenance(tmp_path)["commit"] and not provenance(tmp_path)["dirty"]
    assert provenance(tmp_path / "lib")["commit"] is None, "unpacked inside another project"
    (tmp_path / "notes.txt").write_text("mine")
    assert not provenance(tmp_path)["dirty"]
    (tmp_path / "lib/extra.py").write_text("b = 2\n")
    assert provenance(tmp_path)["dirty"]
    before = provenance(tmp_path)["lib"]
    (tmp_path / "lib/game").mkdir()
    (tmp_path / "lib/game/rules.py").write_text("c = 3\n")
    assert provenance(tmp_path)["lib"] != before, "the hash is that of all folders of lib/"


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"])
def test_a_commit_is_that_of_this_checkout_whatever_gits_environment_says(
    tmp_path, monkeypatch, name
):
    """A git hook sets these variables for all that it calls."""
    for folder in ("ours", "theirs"):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib/code.py").write_text(folder)
        committed(tmp_path / folder)
    commit = provenance(tmp_path / "ours")["commit"]
    assert commit != provenance(tmp_path / "theirs")["commit"]
    monkeypatch.setenv(
        name,
        str(
            tmp_path / "theirs" / {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index"}.get(name, "")
        ),
    )
    made = provenance(tmp_path / "ours")
    assert made["commit"] == commit and not made["dirty"]


def test_jupyterlabs_outputs_make_no_run_dirty(tmp_path):
    notebook = tmp_path / "größe 1.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")]), notebook)
    (tmp_path / "code.py").write_text("a = 1\n")
    committed(tmp_path)
    assert provenance(tmp_path)["commit"] and not provenance(tmp_path)["dirty"]
    saved = nbformat.read(notebook, 4)
    saved.cells[0].outputs = [nbformat.v4.new_output("stream", text="2")]
    saved.cells[0].execution_count = 7
    nbformat.write(saved, notebook)
    assert not provenance(tmp_path)["dirty"]
    (tmp_path / "code.py").write_text("a = 2\n")
    assert provenance(tmp_path)["dirty"]


def test_a_run_names_its_gpu(tmp_path, monkeypatch):
    driver = tmp_path / "nvidia-smi"
    driver.write_text('#!/bin/sh\necho "GPU of number $4"\n')
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert provenance(ROOT, "1")["gpu"] == "GPU of number 1"
    driver.write_text("#!/bin/sh\nexit 9\n")
    assert provenance(ROOT, "1")["gpu"] is None and "gpu" not in provenance(ROOT)


# -- processes and GPUs
# ------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its end")
@pytest.mark.parametrize("command", ["run", "make"])
def test_what_is_orphaned_while_it_starts_ends(checkout, command):
    gone = subprocess.Popen(["true"])
    gone.wait()
    process = checkout.start(command, "cpu", "t/base", env=os.environ | {PARENT: str(gone.pid)})
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert not (checkout.runs / "cpu/t/base/0").exists()


@pytest.mark.parametrize("when", ["before it starts", "while it waits"])
def test_a_kernel_is_not_waited_for_when_what_would_fork_it_has_ended(tmp_path, when):
    folder = tmp_path / "warm"
    folder.mkdir()
    if when == "before it starts":
        folder.rmdir()
    asking = subprocess.Popen(
        [sys.executable, warm.__file__],
        env=os.environ | {warm.SOCKET: f"{folder}/socket"},
        stderr=subprocess.DEVNULL,
    )
    if when == "while it waits":
        with pytest.raises(subprocess.TimeoutExpired):
            asking.wait(timeout=2)
        folder.rmdir()
    assert asking.wait(timeout=warm.WAIT / 2)


@pytest.mark.skipif(sys.platform != "linux", reason="nothing else ends with its parent")
def test_a_kernel_that_waits_to_be_forked_ends_with_its_runner(tmp_path):
    start = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    runner = subprocess.Popen(
        [sys.executable, "-c", start, sys.executable, warm.__file__],
        env=os.environ | {warm.SOCKET: f"{tmp_path}/socket"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    asking = os.pidfd_open(int(runner.stdout.readline()))
    assert not select.select([asking], [], [], 2)[0]
    runner.kill()
    runner.wait()
    assert select.select([asking], [], [], warm.WAIT / 2)[0]


def test_two_runners_make_one_run_once(checkout, warm_kernels):
    both = [checkout.start("run", "cpu", "t/base/0") for _ in range(2)]
    said = "".join(process.communicate(timeout=60)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0], said
    assert said.count("another process works on it; waiting") == 1
    assert said.count("another process has just finished it") == 1


def test_the_limits_of_a_container_count(monkeypatch):
    found = {"cpu.max": "150000 100000", "memory.max": str(2**30)}
    monkeypatch.setattr(machine, "container_limit", found.get)
    monkeypatch.setattr(files, "container_limit", found.get)
    assert machine.cores() == 1 and files.host_memory() <= 2**30
    found.update({"cpu.max": "max 100000", "memory.max": "max"})
    assert machine.cores() >= 1 and files.host_memory() > 500 * 2**20


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


def test_each_gpu_is_held_by_one_run(monkeypatch):
    first = f"a{os.getpid()}"
    second = f"b{os.getpid()}"
    monkeypatch.setenv("COUNTDOWN_GPUS", f"{first},{second}")
    with gpu() as one, gpu() as two:
        assert (one, two) == (first, second)
    with gpu() as one:
        assert one == first
        # a job has its GPUs to itself, under numbers of its own
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        with gpu() as of_the_job:
            assert of_the_job == first
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", second)
    assert machine.gpus() == [first, second], "ours counts first"
    monkeypatch.delenv("COUNTDOWN_GPUS")
    assert machine.gpus() == [second]
    monkeypatch.setenv("COUNTDOWN_GPUS", "")
    with gpu() as none:
        assert none is None


HOLDER = """
import time
from lib.runs.machine import PARENT, RunError, gpu
with gpu() as mine:
    print(mine, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_run_frees_its_gpu_and_no_two_share_one(monkeypatch):
    """Fake devices, a process each: three for two GPUs; the third gets that of the one that is
    killed."""
    names = [f"{letter}{os.getpid()}" for letter in "cd"]
    monkeypatch.setenv("COUNTDOWN_GPUS", ",".join(names))
    command = [sys.executable, "-c", HOLDER]
    first, second = (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    )
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
