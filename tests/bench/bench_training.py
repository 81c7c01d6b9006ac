"""Seconds of an RLOO update by phase, ours and that of TRL's own RLOOTrainer, in one process.

Both take the same policy, problems, group size, token cap, micro-batch, reward and KL coefficient. The policy
is untrained: its end token comes once in about 128 tokens, so completions are as long as a trained one's.
Run: OMP_NUM_THREADS=1 python -m tests.bench.bench_training
"""

import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import RLOOConfig, RLOOTrainer

from lib.model import build_tokenizer, load_policy, new_model, save_policy
from lib.problem import Problem, load
from lib.prompts import render_prompt
from lib.rewards import get_reward
from lib.training import RLOOSettings, arguments, train_rloo

STEPS = 5  # the first is not counted
PHASES = ["generation", "reward", "update"]


class Watch(TrainerCallback):
    """Seconds of every update of TRL's trainer; what is neither generation nor reward counts as update."""

    def __init__(self):
        self.rows: list[dict[str, float]] = []

    def on_step_begin(self, *arguments, **options):
        self.rows.append(dict.fromkeys(PHASES, 0.0))
        self.start = time.perf_counter()

    def on_step_end(self, *arguments, **options):
        row = self.rows[-1]
        row["update"] = time.perf_counter() - self.start - row["generation"] - row["reward"]

    def around(self, phase, function):
        """`function`, its time put down to `phase`."""

        def timed(*arguments, **options):
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.rows[-1][phase] += time.perf_counter() - start
            return result

        return timed


def ours(policy: Path, problems, reward, settings: RLOOSettings, folder: Path) -> pd.DataFrame:
    train_rloo(policy, problems, reward, folder, settings)
    table = pd.read_csv(folder / "metrics.csv")
    table = table[[*(f"seconds_{phase}" for phase in PHASES), "completion_length"]]
    return table.rename(columns=lambda name: name.removeprefix("seconds_"))


def theirs(policy: Path, problems, reward, settings: RLOOSettings, folder: Path) -> pd.DataFrame:
    def group_reward(completions, nums, target, **columns):
        k, totals = settings.group_size, []
        for i in range(0, len(completions), k):
            scores = reward(completions[i : i + k], Problem(tuple(nums[i]), target[i]))
            totals += [score.total for score in scores]
        return totals

    watch = Watch()
    trainer = RLOOTrainer(
        model=str(policy / "checkpoint"),  # by path: TRL loads the reference policy from there
        reward_funcs=watch.around("reward", group_reward),
        args=RLOOConfig(
            **arguments(folder, settings),
            max_steps=settings.steps,
            lr_scheduler_type="constant",
            logging_steps=1,
            num_generations=settings.group_size,
            per_device_train_batch_size=settings.micro_batch,
            gradient_accumulation_steps=settings.problems_per_step * settings.group_size // settings.micro_batch,
            max_completion_length=settings.max_tokens,
            beta=settings.kl_coef,
        ),
        train_dataset=problems.map(lambda row: {"prompt": render_prompt(row["nums"], row["target"])}),
        processing_class=load_policy(policy)[1],
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)
    trainer._generate_single_turn = watch.around("generation", trainer._generate_single_turn)
    trainer.train()
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "loss" in row]
    return pd.DataFrame(watch.rows).assign(completion_length=lengths)


def main():
    settings = RLOOSettings(steps=STEPS, save_every=STEPS, learning_rate=1e-6)
    problems, reward = load("3to4", "train").select(range(1000)), get_reward("sparse", {})
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        policy, tokenizer = Path(scratch) / "policy", build_tokenizer()
        save_policy(new_model(tokenizer), tokenizer, policy / "checkpoint")
        for name, run in {"lib.training": ours, "TRL RLOOTrainer": theirs}.items():
            table = run(policy, problems, reward, settings, Path(scratch) / name)
            results[name] = table[1:].assign(step=table[PHASES].sum(axis=1)).median()
    table = pd.DataFrame(results).T[["step", *PHASES, "completion_length"]]
    rollouts = settings.problems_per_step * settings.group_size
    print(f"{rollouts} rollouts a step, cap {settings.max_tokens}, threads: {torch.get_num_threads()}; seconds:")
    print(table.round(2).to_string())
    print(f"ratio ours / TRL's: {table['step'].iloc[0] / table['step'].iloc[1]:.2f}")


if __name__ == "__main__":
    main()
