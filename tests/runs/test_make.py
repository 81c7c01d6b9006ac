"""The commands of `make`: what they do and print, and whole studies through Snakemake, killed,
ended and resumed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lib.files import ROOT, verify
from lib.runs import __main__ as commands
from lib.runs.execute import finished_parents
from lib.runs.folder import write_json
from lib.runs.machine import RunError, try_lock
from lib.runs.make import MACHINES, outdated, snakemake_options
from lib.runs.plan import read_record
from tests.scratch import (
    BASE,
    STUDY,
    STUDY_CODE,
    TRAIN,
    TRAIN_CODE,
    TRAIN_END,
    Checkout,
    processes,
    set_in,
    until,
    write_notebook,
)

# -- commands
# ----------------------------------------------------------------------------------------


def test_status_says_the_state_of_runs_and_what_made_them(checkout):
    checkout.finish()
    said = checkout.ask("status", "cpu")
    assert said.count("done, by unknown code") == 4 and re.search(r"^t +3 done$", said, re.M)
    assert checkout.ask("status", "cpu", "t/base").count("\n") == 2  # the run, and its kind
    (checkout.folder("t/base") / "run.json").write_text("{")
    said = checkout.ask("status", "cpu")
    assert (
        re.search(r"t/base/0 +damaged run.json", said)
        and said.count("t/base/0 is not finished") == 2
    )
    assert "3 to be made again" in said


@pytest.mark.parametrize(("cpu", "other"), [("i486", True), (None, False)])
def test_status_says_which_runs_another_processor_made(checkout, cpu, other):
    checkout.finish("t/base")
    path = checkout.folder("t/base") / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cpu": cpu}))
    assert ("on another processor" in checkout.ask("status", "cpu")) == other


def test_compare_says_which_samples_were_made_for_something_else(checkout):
    """Else a reader who edits a reward and compares would see the old one's numbers as the new
    one's."""
    checkout.finish()
    runs = ["t/train_0.1", "t/train_0.2"]
    assert not outdated(checkout, "cpu", runs)
    checkout.declare(set_in("profiles", "cpu", "runs", value={"t/train_0.2": {"steps": 4}}))
    said = outdated(Checkout(checkout.root), "cpu", runs)
    assert said == [
        "t/train_0.2/0 is out of date (another steps): `make study GROUP=t/train_0.2` makes it "
        "again"
    ]


@pytest.mark.parametrize(
    "profile, method, said",
    [("cpuu", "rloo/sparse", "did you mean 'cpu'"), ("cpu", "rloo/sparce", "'rloo/sparse'")],
)
def test_compare_refuses_what_does_not_exist_in_a_sentence(profile, method, said, capsys):
    with pytest.raises(ValueError, match=said):
        commands.compare(profile, method, "sft/free")
    assert not capsys.readouterr().out


def test_what_is_published_can_be_restored_and_is_held_to_its_record(checkout):
    checkout.finish()
    spec = checkout.specs("cpu")["t/base/0"]
    path = spec.folder / "run.json"
    record = json.loads(path.read_text())
    write_json(path, record | {"parameters": {"output": str(spec.folder)}})
    checkout.ask("publish", "cpu", "t/base", "t/train_0.1")
    published = json.loads((spec.reference / "run.json").read_text())
    assert set(published["files"]) == {"metrics.csv", "checkpoint/step.txt"}, (
        "the record lists what is there"
    )
    assert published["parameters"]["output"] == "data/runs/cpu/t/base/0", "wherever the runs lay"
    shutil.rmtree(checkout.runs)
    said = checkout.ask("restore", "cpu", "t/*")
    assert "t/base/0: done" in said and "t/train_0.1/0: results-only" in said
    assert re.search(r"t/(?!base|train_0.1)\S+/0: not published", said)
    assert "t/base/0: stays as it is here, done" in checkout.ask("restore", "cpu", "t/base")
    (spec.folder / "run.json").rename(spec.folder / "run.away")
    said = checkout.ask("restore", "cpu", "t/base")
    assert re.search("t/base/0: stays as it is here, unfinished; delete .*base/0 to restore", said)
    (spec.folder / "run.away").rename(spec.folder / "run.json")
    assert read_record(spec.folder).id == "made t/base/0" and spec.state == "done"
    assert not checkout.plan("cpu", "t/train_0.1").waiting
    (spec.folder / "checkpoint/step.txt").write_text("2\n")
    with pytest.raises(ValueError, match="step.txt is damaged"):
        verify(spec.folder / "checkpoint")


def test_what_was_restored_without_weights_is_made_again_for_what_starts_from_it_alone(
    checkout, warm_kernels
):
    """Of t/base the results alone are published: what is finished stays so, and a new run makes it
    again."""
    checkout.declare(set_in("runs", "t/base", "keep_checkpoint", value=False))
    checkout.finish()
    checkout.ask("publish", "cpu", "t/base", "t/train_0.1")
    shutil.rmtree(checkout.runs)
    assert "t/base/0: results-only" in checkout.ask("restore", "cpu", "t/base", "t/train_0.1")
    assert "results-only" in checkout.ask("status", "cpu", "t/base")
    assert list(checkout.plan("cpu", "t/*").waiting) == ["t/base/0", "t/train_0.2/0"]
    assert list(checkout.plan("cpu", "t/train_0.1", "study/study").waiting) == ["study/study/0"]
    published = checkout.specs("cpu")["t/base/0"].reference / "run.json"
    before = published.read_text()
    assert "t/base/0: stays as it is published" in checkout.ask("publish", "cpu", "t/base")
    assert published.read_text() == before
    with pytest.raises(
        RunError, match=r"it needs t/base/0, which is not finished \(results-only\)"
    ):
        finished_parents(checkout, checkout.specs("cpu")["t/train_0.2/0"])
    study = checkout.specs("cpu")["study/study/0"]
    assert list(finished_parents(checkout, study)) == ["t/train_0.1/0"]
    checkout.call("make", "cpu", "t/train_0.2", "--cores", "1")
    assert checkout.record("t/train_0.2")["parents"] == {
        "t/base/0": checkout.record("t/base")["id"]
    }
    assert checkout.record("t/base")["id"] != "made t/base/0"


def test_published_verdicts_stay_beside_the_very_samples_that_they_judge(checkout):
    checkout.finish("t/base")
    checkout.ask("publish", "cpu", "t/base")
    spec = checkout.specs("cpu")["t/base/0"]
    verdicts = spec.reference / "verdicts.parquet"
    verdicts.write_text("judged")
    checkout.ask("publish", "cpu", "t/base")
    assert verdicts.read_text() == "judged", "the same run is published again"
    shutil.rmtree(checkout.runs)
    checkout.ask("restore", "cpu", "t/base")
    assert not (spec.folder / "verdicts.parquet").exists(), "a run's folder holds what the run made"
    path = spec.folder / "run.json"
    write_json(path, json.loads(path.read_text()) | {"id": "made anew"})
    checkout.ask("publish", "cpu", "t/base")
    assert not verdicts.exists() and read_record(spec.reference).id == "made anew"


def test_what_is_not_finished_is_not_published(checkout):
    assert "t/base/0 is not finished (missing)" in checkout.ask(
        "publish", "cpu", "t/base", status=1
    )


def test_runs_are_not_published_onto_themselves(checkout):
    checkout.finish("t/base")
    spec = checkout.specs("cpu")["t/base/0"]
    spec.reference.parent.mkdir(parents=True)
    spec.reference.symlink_to(spec.folder)
    assert "lies in data/reference already" in checkout.ask("publish", "cpu", "t/base", status=1)
    assert (spec.folder / "metrics.csv").exists()


@pytest.fixture
def all_kinds_of_folders(tmp_path, monkeypatch) -> Path:
    """What `make clean-runs` may find where runs lie: runs of ours, what only looks like them, and
    other files."""
    spec = '{"profile": "cpu", "run": "rloo/x", "seed": 0}'
    texts = {
        "scratch/photos/one.png": spec,
        "paper/thesis/text.tex": spec,
        "mine/rloo/x/0/spec.json": spec,
        "cpu/rloo/x/0/spec.json": spec,
        "other/project/of/mine/spec.json": '{"speed": 3}',
        "another/project/of/mine/run.json": spec,
        ".lock": "123",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(tmp_path / "cpu/rloo/x/0", tmp_path / "cpu/rloo/x/0.before-1")
    shutil.copytree(tmp_path / "cpu/rloo/x/0", tmp_path / "elsewhere")
    (tmp_path / "cpu/rloo/y").mkdir()
    (tmp_path / "cpu/rloo/y/0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".cache").mkdir()  # of the disk that COUNTDOWN_RUNS names
    monkeypatch.setattr(commands, "RUNS", tmp_path)
    return tmp_path


def files_in(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in files)


def test_clean_runs_takes_nothing_while_runs_are_being_made(all_kinds_of_folders):
    before = files_in(all_kinds_of_folders)
    with (all_kinds_of_folders / ".lock").open() as lock:
        assert try_lock(lock)
        with pytest.raises(RunError, match="process 123 is making runs here"):
            commands.clean()
    assert files_in(all_kinds_of_folders) == before


def test_clean_runs_takes_folders_with_a_record_of_ours_and_nothing_else(
    all_kinds_of_folders, capsys
):
    commands.clean()
    assert (all_kinds_of_folders / ".cache").exists()
    assert files_in(all_kinds_of_folders) == [
        ".lock",
        "another/project/of/mine/run.json",
        "elsewhere/spec.json",
        "other/project/of/mine/spec.json",
        "paper/thesis/text.tex",
        "scratch/photos/one.png",
    ]
    assert not (all_kinds_of_folders / "cpu").exists()
    assert capsys.readouterr().out.count(" MB\n") == 4


def test_a_picture_is_taken_again_only_where_it_is_asked_for():
    """`make test-browser` alone leaves the committed one as it is."""
    command = ["make", "-n", "-s", "-o", ".venv/.installed", "test-browser"]
    for asked in "", "figures/explorer.png":
        given = [*command, f"PICTURE={asked}"] if asked else command
        env = os.environ | {"PICTURE": ""}
        said = subprocess.run(given, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        assert f" COUNTDOWN_PICTURE={asked} exec" in said.stdout


def test_jupyterlab_starts_as_root_and_where_the_home_cannot_be_written(tmp_path):
    (tmp_path / "jupyter").write_text("#!/bin/sh\necho $HOME, $@\n")
    (tmp_path / "jupyter").chmod(0o755)
    ready = f"{tmp_path}/.installed"
    # -s: else it names its folder
    command = ["make", "-s", "-o", ready, "lab", f"BIN={tmp_path}", f"READY={ready}"]
    for home, there in (tmp_path, tmp_path), ("/proc/none", ROOT / "data/runs/.home"):
        env = os.environ | {"HOME": str(home)}
        said = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
        ).stdout
        assert said == f"{there}, lab {'--allow-root ' * (os.getuid() == 0)}notebooks\n"


def test_a_command_that_cannot_be_followed_is_answered_in_a_sentence(checkout):
    said = checkout.ask("make", "cpu", "all", "--machine", "slrum", status=1)
    assert "machine 'slrum' does not exist: did you mean 'slurm'?" in said
    for command in (
        ["make", "cpu", "--", "--keep-going"],
        ["make", "cpu", " "],
        ["plan", "cpu", ""],
    ):
        assert "no group or run is named" in checkout.ask(*command, status=1)
    said = checkout.ask("run", "cpu", "t/train_0.1", status=1)
    assert "run of profile cpu 't/train_0.1' does not exist: did you mean 't/train_0.1/0'?" in said
    for command in ("make", "plan"):
        checkout.ask(command, "cpu", "all", "--cores", "0", status=2)
    assert "did you mean 'study/study'" in checkout.ask("figures", "cpu", "study/studi", status=1)
    said = checkout.ask("figures", "cpu", "t/train_0.1", status=1)
    assert "t/train_0.1 is no study, and only studies draw figures" in said
    assert "no study among study/* is published in cpu" in checkout.ask("figures", status=1)
    assert "no study of cpu has been executed" in checkout.ask("report", status=1)
    assert "2 runs, 0 of them finished" in checkout.ask("plan", "cpu", "t/train_0.1")


def test_the_front_door_says_its_errors_without_a_traceback(checkout):
    said = checkout.call("make", "cup", "all", status=1)
    assert said == "! profile 'cup' does not exist: did you mean 'cpu'?\n"


# -- studies through Snakemake
# -----------------------------------------------------------------------


def test_a_study_from_end_to_end(checkout, warm_kernels):
    said = checkout.call("make", "cpu", "all", "--cores", "2")
    assert "begun t/base/0, its log is data/runs/cpu/t/base/0/log.txt" in said
    assert re.search(r"^made t/base/0 in 00:\d\d, 1 of 4$", said, re.M) and re.search(
        "^made study.*, 4 of 4", said, re.M
    )
    assert said.strip().endswith(
        "made 1 figures and tables of study/study in data/runs/cpu/study/study/0"
    )
    record = checkout.record("t/train_0.1")
    assert record["status"] == "finished" and record["seed"] == 0 and record["peak_memory_mb"] > 10
    assert record["parameters"]["init"] == "data/runs/cpu/t/base/0"
    assert set(record["parents"]) == {"t/base/0"} and record["versions"]["papermill"]
    assert checkout.value("t/train_0.1") == "base 1x0.5 3x0.1"
    assert "4 of them finished" in checkout.ask("make", "cpu", "all"), (
        "nothing changed, nothing runs"
    )

    # published, its figures need no training
    checkout.ask("publish", "cpu", "all")
    shutil.rmtree(checkout.runs)
    said = checkout.call("figures", "cpu", "study/study")
    assert re.search(r"^made study/study/0 in 00:\d\d, 1 of 1$", said, re.M)
    assert said.endswith("the figures and tables of 1 studies are in figures\n")
    table = pd.read_csv(checkout.root / "figures/table.csv")
    assert list(table["sources"]) == [
        "data/reference/cpu/t/train_0.1/0",
        "data/reference/cpu/t/train_0.2/0",
    ]


def test_a_failing_run_is_named_and_what_rests_on_it_is_not_begun(checkout, warm_kernels):
    checkout.declare(set_in("runs", "t/base", "params", value={"fail": True}))
    said = checkout.call("make", "cpu", "t/train_0.1", status=1)
    last = said[said.index("! run t/base") :]
    assert "run t/base/0 (cpu) failed in the cell that starts with `init = 'none'`" in last
    assert "ArithmeticError: the loss is gone" in last and "killed" not in last
    assert "! log: data/runs/cpu/t/base/0/notebook.ipynb" in last
    assert last.strip().endswith("! 1 failed: t/base/0; the same command goes on from there")
    assert (
        not (checkout.folder("t/base") / "run.json").exists()
        and not checkout.folder("t/train_0.1").exists()
    )


def test_what_does_not_rest_on_a_run_that_failed_goes_on(checkout, warm_kernels):
    """The run that fails is over before the other's parent is, so that everything would end with
    it."""
    waits = (
        "for _ in range(3000):\n    if Path('goes_on').exists():\n        break\n"
        "    time.sleep(0.1)"
    )
    write_notebook(
        checkout.root / "notebooks/base.ipynb",
        BASE,
        f"init = 'none'\n{TRAIN_CODE}",
        waits,
        TRAIN_END,
    )
    other = {"notebook": "train", "params": {"fail": True, "init": "x"}}
    checkout.declare(set_in("runs", "t/other", value=other))
    front = checkout.start("make", "cpu", "t/other", "t/train_0.1", "--cores", "2")
    next(line for line in front.stdout if line.startswith("! run t/other/0 (cpu) failed"))
    if sys.platform == "linux":  # the message is its last, and its end is what Snakemake sees
        until(
            lambda: (
                not any(
                    "lib.runs run cpu t/other/0" in command_of(one)
                    for one in Path("/proc").glob("[0-9]*")
                )
            )
        )
    (checkout.root / "goes_on").touch()
    said = front.communicate(timeout=240)[0]
    assert front.returncode == 1 and "1 failed: t/other/0" in said, said
    assert (checkout.folder("t/train_0.1") / "run.json").exists()


def published_runs(checkout, *studies: tuple[str, list[str]]) -> Path:
    """Declare studies and what they read, and publish empty records of all that, as if it had been
    made; the folder."""

    def change(declarations):
        notebook = {"notebook": "study"}
        declarations["runs"] |= {
            f"study/{name}": notebook | {"needs": {"sources": reads}} for name, reads in studies
        }
        del declarations["runs"]["study/study"]

    checkout.declare(change)
    reference = checkout.root / "data/reference/cpu"
    for name in ("t/train_0.1", "t/train_0.2", *(f"study/{name}" for name, _ in studies)):
        (reference / name / "0").mkdir(parents=True)
        record = dict.fromkeys(("method", "code", "fingerprint"), "x") | {
            "run": name,
            "notebook": "study",
        }
        record |= {
            "seed": 0,
            "elapsed": 1,
            "parameters": {},
            "parents": {},
            "files": {},
            "artifacts": [],
            "id": "x",
        }
        (reference / name / "0/run.json").write_text(json.dumps(record))
    return reference


# three studies: what each reads
READS = (
    ("one", ["t/train_0.1"]),
    ("other", ["t/train_0.2"]),
    ("both", ["study/one", "study/other"]),
)


def test_figures_of_the_other_studies_are_drawn_when_a_published_record_is_cut(
    checkout, warm_kernels
):
    reference = published_runs(checkout, *READS)
    # which only says that this study is published
    (reference / "study/other/0/run.json").write_text("{")
    cut = reference / "t/train_0.1/0/run.json"
    cut.write_text(cut.read_text()[:50])
    said = checkout.call("figures", "cpu", status=1)
    cut = cut.relative_to(checkout.root)
    assert re.search(
        rf"^! run study/one/0 \(cpu\) {cut} is damaged .*`git checkout -- {cut}`$", said, re.M
    )
    assert (checkout.root / "figures/table.csv").exists()
    assert said.endswith(
        "! 2 of 3 studies failed: study/one/0, study/both/0; the others are drawn\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_study_that_is_no_longer_published_is_neither_drawn_nor_read_nor_shown(
    checkout, warm_kernels
):
    reference = published_runs(checkout, *READS)
    sources = "data/runs/reference/cpu/study/{}/0"

    def read() -> list[str]:
        return list(pd.read_csv(checkout.root / sources.format("both") / "table.csv")["sources"])

    checkout.call("figures", "cpu")
    assert read() == [sources.format("one"), sources.format("other")], (
        "what reads other studies is drawn after them"
    )
    shutil.rmtree(reference / "study/one")
    said = checkout.call("figures")
    assert said.endswith("the figures and tables of 2 studies are in figures\n")
    assert read() == [sources.format("other")]
    assert "made" in checkout.ask("report")
    index = (checkout.root / "figures/site/index.html").read_text()
    assert 'href="cpu-study-both-0.html"' in index and "cpu-study-one" not in index
    assert "<small>study/both, profile cpu, from data/reference</small>" in index
    pages = [page.read_text() for page in (checkout.root / "figures/site").glob("*.html")]
    elsewhere = re.compile(r'<(script|link)[^>]*(src|href)="(https?:)?//')
    assert len(pages) == 5 and not any(map(elsewhere.search, pages))


def test_a_polite_end_of_figures_waits_for_no_study(checkout):
    published_runs(checkout, ("one", ["t/train_0.1"]))
    write_notebook(checkout.root / "notebooks/study.ipynb", STUDY, "import time; time.sleep(600)")
    process = checkout.start("figures", "cpu")
    until(lambda: "kernel" in processes(checkout.root))
    process.terminate()
    assert process.wait(timeout=60)
    until(lambda: not processes(checkout.root))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kill_9_of_any_process_then_the_same_command(checkout):
    checkout.declare(
        set_in("profiles", "cpu", "runs", value={"t/train_0.1": {"pause": 0.5, "steps": 100}})
    )
    run = checkout.runs / "cpu/t/train_0.1/0"
    step = run / "checkpoint/step.txt"
    started = None
    for role in ("kernel", "runner", "snakemake", "front"):
        front = one_step_further(checkout, step)
        if role == "kernel":
            said = checkout.ask("make", "cpu", "t/train_0.1", status=1)
            assert f"these runs are being made by process {front.pid}" in said
        said = said_when_killed(checkout, front, role)
        names_what_was_killed(said, role)
        assert not (run / "run.json").exists()
        started = started or checkout.record("t/base")["started"]
        assert checkout.record("t/base")["started"] == started, "a finished run is kept"

    leave_a_lock_of_snakemake(checkout)
    step.write_text("99")
    checkout.call("make", "cpu", "t/train_0.1")
    assert checkout.value("t/train_0.1") == "base 1x0.5 100x0.1"
    assert "starts at step 99" in (run / "log.txt").read_text(), "resumed, not begun anew"
    assert checkout.record("t/base")["started"] == started
    # the log is that of the last stretch, and elapsed that of all: each of the four took at least
    # one step
    assert checkout.record("t/train_0.1")["elapsed"] > 4 * 0.5 + 0.5


def one_step_further(checkout, step: Path) -> subprocess.Popen:
    """The front door that makes t/train_0.1, as soon as `step` counts another step."""
    before = int(step.read_text()) if step.exists() else 0
    front = checkout.start("make", "cpu", "t/train_0.1")
    until(lambda: step.exists() and int(step.read_text()) > before)
    return front


def said_when_killed(checkout, front: subprocess.Popen, role: str) -> str:
    """What the front door says when one of its processes, or itself, is killed. All end with it."""
    os.kill(processes(checkout.root)[role], signal.SIGKILL)
    said = front.communicate(timeout=120)[0]
    until(lambda: not processes(checkout.root))  # none goes on alone
    assert front.returncode == (-signal.SIGKILL if role == "front" else 1), said
    return said


def names_what_was_killed(said: str, role: str) -> None:
    assert role != "kernel" or "its kernel died" in said
    if role == "runner":
        assert (
            "! run t/train_0.1/0 was killed" in said
            and "Traceback" not in said
            and "CalledProcessError" not in said
        )
        assert said.strip().endswith(
            "! 1 failed: t/train_0.1/0; the same command goes on from there"
        )


def leave_a_lock_of_snakemake(checkout) -> None:
    """As a Snakemake that was killed may leave it."""
    locks = checkout.runs / ".snakemake/locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").write_text("cpu/t/train_0.1/0/run.json\n")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_end_leaves_nothing_behind(checkout, how):
    checkout.declare(
        set_in("profiles", "cpu", "runs", value={"t/base": {"pause": 0.5, "steps": 100}})
    )
    # a terminal's Ctrl-C: not ignored, as it is by what a script starts in the background
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    front = checkout.start("make", "cpu", "t/base", preexec_fn=heed)
    until(lambda: (checkout.runs / "cpu/t/base/0/checkpoint/step.txt").exists())
    front.send_signal(how)
    said = front.communicate(timeout=60)[0]
    assert (
        "stopping, which takes some seconds; the same command goes on from here" in said
        and "killed" not in said
    )
    until(lambda: sys.platform != "linux" or not processes(checkout.root), 5)


@pytest.mark.slow
def test_a_hostile_machine(checkout, tmp_path):
    """A folder with spaces and umlauts, a home that cannot be written, a parent's record from the
    future, no git."""
    moved = Checkout(checkout.root.rename(tmp_path.parent / f"{tmp_path.name} größer als 'sonst'"))
    env = os.environ | {"HOME": "/proc/none", "PYTHONPATH": ""}
    for name in ("XDG_CACHE_HOME", "MPLCONFIGDIR"):
        env.pop(name, None)
    write_notebook(
        moved.root / "notebooks/study.ipynb", STUDY, STUDY_CODE, "import matplotlib.pyplot"
    )

    def make(*runs):
        process = moved.start("make", "cpu", *runs, env=env)
        said = process.communicate(timeout=240)[0]
        assert process.returncode == 0, said

    make("t/base")
    os.utime(moved.folder("t/base") / "run.json", (time.time() + 86400,) * 2)
    make("all")
    assert (
        moved.record("t/train_0.1")["commit"] is None
        and moved.record("study/study")["status"] == "finished"
    )
    said = (moved.folder("study/study") / "log.txt").read_text()
    # Matplotlib's, which would be made in every run
    assert "run      data" in said and "temporary cache" not in said


def command_of(entry: Path) -> str:
    """The command line of a process, by its folder in /proc."""
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_kernel_is_named_while_its_sibling_works_on(checkout):
    pauses = {
        "t/train_0.1": {"pause": 0.5, "steps": 1000},
        "t/train_0.2": {"pause": 0.5, "steps": 1000},
    }
    checkout.declare(set_in("profiles", "cpu", "runs", value=pauses))
    front = checkout.start("make", "cpu", "t/train_*", "--cores", "2")
    steps = [
        checkout.folder(f"t/{run}") / "checkpoint/step.txt" for run in ("train_0.1", "train_0.2")
    ]
    until(lambda: all(step.exists() for step in steps))
    kernels = [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if "ipykernel_launcher" in command_of(entry)
        and os.readlink(entry / "cwd") == str(checkout.root)
    ]
    assert len(kernels) == 2
    os.kill(kernels[0], signal.SIGKILL)
    said = next(line for line in front.stdout if line.startswith("! run t/train_0."))
    assert front.poll() is None and "failed in the cell" in said  # the other one is still at work
    front.send_signal(signal.SIGTERM)
    front.communicate(timeout=60)


@pytest.mark.slow
def test_runs_at_the_same_time_have_different_gpus(checkout, warm_kernels, monkeypatch):
    """Through Snakemake: both trainings at once, each kernel with a device of its own; the analysis
    has none."""
    names = [f"{letter}{os.getpid()}" for letter in "ef"]
    monkeypatch.setenv("COUNTDOWN_GPUS", ",".join(names))
    see = "import os\nprint('device', os.environ.get('CUDA_VISIBLE_DEVICES', 'none'))\n"
    for name, parameters, code in (("train", TRAIN, TRAIN_CODE), ("study", STUDY, STUDY_CODE)):
        write_notebook(
            checkout.root / f"notebooks/{name}.ipynb",
            parameters,
            see + code,
            TRAIN_END * (name == "train"),
        )
    checkout.declare(
        set_in("runs", "t/train_{rate}", "params", value={"rate": "{rate}", "pause": 1.0})
    )
    checkout.call("make", "cpu", "all", "--cores", "2")

    def device(run):
        return re.search(r"device (\S+)", (checkout.folder(run) / "log.txt").read_text()).group(1)

    starts = {
        run: pd.Timestamp(checkout.record(run)["started"]) for run in ("t/train_0.1", "t/train_0.2")
    }
    ends = {
        run: start + pd.Timedelta(seconds=checkout.record(run)["elapsed"])
        for run, start in starts.items()
    }
    assert max(starts.values()) < min(ends.values()), "side by side"
    assert {device("t/train_0.1"), device("t/train_0.2")} == set(names) and device(
        "study/study"
    ) == "none"


@pytest.mark.parametrize("machine", ["local", "slurm"])
def test_snakemake_reads_the_profile_of_every_machine(checkout, machine):
    executor = snakemake_options(machine, 2)
    plugin = yaml.safe_load((MACHINES / machine / "config.yaml").read_text()).get("executor")
    assert ("--cores" in executor) == (plugin is None)
    if plugin and not find_spec(f"snakemake_executor_plugin_{plugin}"):
        pytest.skip(
            f"the executor {plugin} is not installed (lib/runs/machines/{plugin}/config.yaml says "
            f"how)"
        )
    options = [*executor, "--config", "profile=cpu", "runs=t/base/0,t/train_0.1/0", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *options],
        cwd=checkout.root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "train_0.1" in done.stdout, done.stdout + done.stderr
