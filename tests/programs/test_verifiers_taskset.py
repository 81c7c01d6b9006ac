"""The taskset of environments/countdown, used as its README says, with the real package in its own
environment.

`make test-verifiers` builds that environment in .venv/verifiers, or uses the one in
COUNTDOWN_VERIFIERS."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lib.files import ROOT
from lib.game.problem import Problem
from lib.rewards import get_reward
from tests.conftest import copy_of_the_repository

FOLDER = ROOT / "environments/countdown"
README = (FOLDER / "README.md").read_text()
ANSWERS = ("3 * 7 + 5", "3 + 7 + 5", "3 * 7", "no idea")
REPLIES = [f"<think>3 * 7 = 21</think><answer>{text}</answer>" for text in ANSWERS] + ["", None]
SCORE = """
import asyncio, json, sys
import verifiers.v1 as vf

def trace(task, reply):
    node = vf.MessageNode(message=vf.AssistantMessage(content=reply), sampled=True)
    about = vf.TraceTask(type=type(task).__name__, data=task.data)
    agent = vf.AgentInfo(config=vf.AgentConfig(), name="solver", trainable=False)
    return vf.Trace(task=about, state=vf.State(), agent=agent, nodes=[node])

async def scored(task, reply):
    one = trace(task, reply)
    await task.score(one)
    return one.reward, one.metrics

options, replies = map(json.loads, sys.argv[1:])
config_type = vf.taskset_config_type("countdown-rewards")
config = config_type.model_validate({"id": "countdown-rewards"} | options)
tasks = list(vf.load_taskset(config))
found = [asyncio.run(scored(tasks[0], reply)) for reply in replies]
heavy = sorted({"torch", "trl", "transformers", "datasets"} & set(sys.modules))
print(json.dumps([len(tasks), tasks[0].data.prompt, found, heavy]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    return copy_of_the_repository(tmp_path_factory.mktemp("stranger") / "copy")


@pytest.fixture(scope="module")
def binaries() -> Path:
    """The bin/ of an environment with the package, made by the README's commands where there is
    none."""
    folder = Path(os.environ.get("COUNTDOWN_VERIFIERS") or ROOT / ".venv/verifiers")
    if not (folder / "bin/vf-validate").exists():
        for command in commands()[:2]:
            words = (
                command.replace("python3", sys.executable)
                .replace(".venv/verifiers", str(folder))
                .split()
            )
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"{command}: {done.stderr.strip().splitlines()[-1:]}")
    return folder / "bin"


def commands() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[0].strip().splitlines()


def run(copy: Path, *words) -> str:
    """What a command prints in the copy, whose own lib/ and taskset it imports."""
    path = os.pathsep.join([str(copy), str(copy / "environments/countdown")])
    done = subprocess.run(
        words, cwd=copy, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def score(copy: Path, binaries: Path, options: dict) -> list:
    told = run(copy, binaries / "python", "-c", SCORE, json.dumps(options), json.dumps(REPLIES))
    return json.loads(told.splitlines()[-1])


def test_solutions_are_right_and_silence_is_not(copy, binaries):
    command = commands()[-1].split()
    told = run(copy, binaries / Path(command[0]).name, *command[1:])
    summary = json.loads(told[told.index("{") :])
    assert summary["outcomes"]["valid"] == summary["total"] == 20


@pytest.mark.parametrize(
    "reward, options", [("sparse", {"lambda_p": 0.25}), ("ast", {"tau": 2}), ("dense", {})]
)
def test_a_reply_is_paid_as_in_our_trainers(copy, binaries, reward, options):
    task = {"reward": reward, "options": options}
    rows, prompt, found, heavy = score(copy, binaries, {"problems": own_file(copy), "task": task})
    assert rows == 1 and "[3, 5, 7]" in prompt and "26" in prompt and not heavy
    problem = Problem((3, 5, 7), 26)
    for reply, (paid, parts) in zip(REPLIES, found, strict=True):
        [ours] = get_reward(reward, options)([reply or ""], problem)
        assert paid == pytest.approx(ours.total) and parts == pytest.approx(
            ours.parts, nan_ok=True
        ), reply


def own_file(copy: Path) -> str:
    """A problem of one's own, and one of our evaluation sets, which is left out."""
    (copy / "own.csv").write_text("nums,target\n3 5 7,26\n44 19 35,98\n")
    return "own.csv"


def test_its_sets_are_ours(copy, binaries):
    assert score(copy, binaries, {})[0] == 1000
    assert score(copy, binaries, {"problems": "levels"})[0] == 576
