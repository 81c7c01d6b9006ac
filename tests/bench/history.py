"""The code of commit 4466187 on today's policy and problems: what later speed is measured against.

Its lib/ has no packages yet: the programs below name its modules where they were then.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile

from lib.files import ROOT

COMMIT = "4466187"
# core-seconds: other work on the machine does not count
CLOCK = "import time; time.perf_counter = time.process_time\n"
UPDATE = """
import sys, tempfile
from pathlib import Path
import pandas as pd, torch
from lib.problem import load
from lib.rewards import get_reward
from lib.training import RLOOSettings, train_rloo
torch.set_num_threads(1)
policy = sys.argv[1]
numbers = map(float, sys.argv[2:])
steps, problems, group_size, max_tokens, micro_batch, learning_rate = numbers
names = "steps prompts group_size max_tokens micro_batch save_every".split()
counts = dict(zip(names, map(int, (steps, problems, group_size, max_tokens, micro_batch, steps))))
settings = RLOOSettings(learning_rate=learning_rate, **counts)
rows = load("3to4", "train").select(range(int(steps * problems)))
with tempfile.TemporaryDirectory() as folder:
    train_rloo(policy, rows, get_reward("sparse", {}), Path(folder), settings)
    table = pd.read_csv(Path(folder) / "metrics.csv")[1:]
print(table.filter(regex="^seconds").sum(axis=1).mean())
"""
SAMPLING = """
import sys, torch
from lib.demonstrations import render_prompt
from lib.generation import Sampling, generate
from lib.model import load_policy
from lib.problem import load
torch.set_num_threads(1)
model, tokenizer = load_policy(sys.argv[1])
count, group, seeds = map(int, sys.argv[2:])
rows = load("3to4", "validation_200").select(range(count))
prompts = [tokenizer(render_prompt(row["nums"], row["target"])).input_ids for row in rows]
sampling, took = Sampling(0.6, max_tokens=160, top_p=0.95, top_k=20), []
for seed in range(seeds + 1):
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    generate(model, prompts, group, sampling, tokenizer.eos_token_id, generator)
    took.append(time.perf_counter() - began)
print(count * group / min(took[1:]))
"""


def then(program: str, *arguments) -> float | None:
    """The number that `program` prints where it runs in a copy of the repository at COMMIT. None,
    with the reason in print, where git lacks the commit or its code fails with what is installed: a
    benchmark goes on without it."""
    wanted = ["git", "archive", COMMIT, "lib", "data/problems", "data/paper", "pyproject.toml"]
    archive = subprocess.run(wanted, cwd=ROOT, capture_output=True)
    if archive.returncode:
        print(f"commit {COMMIT} is not in this copy of the repository: nothing to compare with")
        return None
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        command = [sys.executable, "-c", CLOCK + program, *map(str, arguments)]
        options = {"env": os.environ | {"PYTHONPATH": folder}, "capture_output": True, "text": True}
        ran = subprocess.run(command, cwd=folder, **options)
    if ran.returncode:
        reason = (ran.stderr.strip().splitlines() or ["it says nothing"])[-1]
        print(f"the code of commit {COMMIT} fails here, nothing to compare with: {reason}")
        return None
    return float(ran.stdout.split()[-1])
