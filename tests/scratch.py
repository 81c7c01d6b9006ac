"""A scratch checkout: a copy of the runner with three tiny notebooks that exist only for tests."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import nbformat
import yaml
from typer.testing import CliRunner

from lib.runs import __main__ as commands
from lib.runs import make as making
from lib.runs.execute import described
from lib.runs.machine import RunError
from lib.runs.plan import Project

TRAIN = """
output = "data/runs/scratch/train"  # where results go
seed = 0
init = "data/runs/cpu/t/base/0"  # the run to start from
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
BASE = (
    'output = "data/runs/scratch/base"\nseed = 0\nsteps = 1\nrate = 0.5\npause = 0.0\nfail = False'
)
STUDY = 'output = "data/runs/scratch/study"\nseed = 0\nsources = ["data/runs/cpu/a"]'
STUDY_CODE = """
import pandas as pd
from lib.runs import Run
run = Run(output)
run.report(run.write(pd.DataFrame({"sources": sources}), "table.csv"))
run.footer()
"""
DECLARATIONS = {
    "profiles": {"cpu": {}, "smoke": {"notebooks": {"train": {"steps": 1}}}},
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


def set_in(*path, value):
    """A change to the declarations: set the value at a path."""

    def change(declarations: dict) -> None:
        *parents, last = path
        for key in parents:
            declarations = declarations.setdefault(key, {})
        declarations[last] = value

    return change


class Checkout(Project):
    """A scratch copy of the runner with three notebooks of its own."""

    def declare(self, *changes) -> None:
        declarations = json.loads(json.dumps(DECLARATIONS))
        for change in changes:
            change(declarations)
        (self.root / "papermill_runs.yaml").write_text(yaml.safe_dump(declarations))

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        """The front door in a process of its own."""
        command = [sys.executable, "-m", "lib.runs", *arguments]
        env = {
            key: value
            for key, value in options.pop("env", os.environ).items()
            if key != "COUNTDOWN_RUNS"
        }
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    def call(self, *arguments: str, status: int = 0) -> str:
        """What a command says, in a process of its own."""
        process = self.start(*arguments)
        said = process.communicate(timeout=240)[0]
        assert process.returncode == status, said
        return said

    def ask(self, *arguments: str, status: int = 0) -> str:
        """What a command says, in this process."""
        again = Checkout(self.root)
        with (
            patch.object(commands, "project", again),
            patch.object(making, "FIGURES", self.root / "figures"),
        ):
            result = CliRunner().invoke(commands.app, arguments)
        if isinstance(result.exception, ValueError | RunError | OSError):
            assert status == 1, result.exception
            return f"{result.output}! {result.exception}\n"
        assert result.exit_code == status, result.output + repr(result.exception)
        return result.output

    def finish(self, *names: str) -> None:
        """Runs as if they had been made, parents first, each with a table and a checkpoint; all
        without names."""
        for name, spec in Checkout(self.root).specs("cpu").items():
            if names and name.rpartition("/")[0] not in names:
                continue
            (spec.folder / "checkpoint").mkdir(parents=True, exist_ok=True)
            files = {
                file: spec.folder / file
                for file in ("metrics.csv", "value.txt", "checkpoint/step.txt")
            }
            for path in files.values():
                path.write_text("1\n")
            parents = {parent: self.record(parent)["id"] for parent in spec.parents}
            record = {
                "profile": "cpu",
                "run": spec.run,
                "method": spec.run,
                "notebook": spec.notebook,
                "seed": 0,
            }
            record |= {"elapsed": 1.0, "code": spec.code, "inputs": spec.inputs, "parents": parents}
            record |= {"parameters": spec.params, "id": f"made {name}", "artifacts": []}
            record |= {"files": {file: described(path) for file, path in files.items()}}
            (spec.folder / "run.json").write_text(json.dumps(record))
            (spec.folder / "spec.json").write_text(
                json.dumps({key: record[key] for key in ("profile", "run", "seed")})
            )

    def record(self, run: str) -> dict:
        return json.loads((self.folder(run) / "run.json").read_text())

    def value(self, run: str) -> str:
        return (self.folder(run) / "value.txt").read_text()

    def folder(self, run: str) -> Path:
        """The folder of a run of profile cpu, kind/name or kind/name/seed."""
        return self.runs / "cpu" / (run if run.count("/") == 2 else f"{run}/0")


def processes(folder: Path) -> dict[str, int]:
    """Process ids at work for a checkout: the front door, Snakemake, the runner and its kernel."""
    found = {}
    commands = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if Path(os.readlink(entry / "cwd")) not in (
                folder,
                folder / "data/runs",
                folder / "data/runs/reference",
            ):
                continue  # Snakemake works in a folder of runs
        except OSError:
            continue
        signs = {"front": "lib.runs make", "snakemake": "-m snakemake", "runner": "lib.runs run"}
        for role, sign in (signs | {"kernel": "ipykernel_launcher"}).items():
            if sign in command:
                commands[entry.name] = role, parent, command
    for name, (role, parent, command) in commands.items():
        if commands.get(parent, ("", "", ""))[2] == command:
            continue  # a fork that has not begun its own program yet
        assert role not in found, f"two copies of the {role}"
        found[role] = int(name)
    return found


def until(condition, seconds: float = 120):
    """Wait for a condition; its value."""
    for _ in range(int(seconds / 0.1)):
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError("waited in vain")
