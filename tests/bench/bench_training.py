"""Core-seconds of an RLOO update by phase, ours and that of TRL's own RLOOTrainer, in one process.

Both take the published SFT policy, the same problems, group size, token cap, micro-batch, reward
and KL coefficient. Core-seconds, not seconds: other work on the machine does not count. Run:
OMP_NUM_THREADS=1 python -m tests.bench.bench_training"""

import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import RLOOConfig
from trl import RLOOTrainer as TRLTrainer

from lib.files import REFERENCE
from lib.game.problem import Problem
from lib.game.prompts import render_prompt
from lib.game.sets import load
from lib.learn.generation import ENGINES, generate
from lib.learn.model import load_policy
from lib.learn.rloo import RLOOSettings, RLOOTrainer
from lib.learn.trainer import arguments
from lib.rewards import get_reward
from tests.bench import history
from tests.learn.test_training import quick

STEPS = 4  # the first is not counted
ROLLOUTS = 24 * 8  # of a step
PHASES = ["generation", "reward", "update"]
POLICY = REFERENCE / "cpu/sft/free/0"


class Watch(TrainerCallback):
    """Core-seconds of every step of a trainer; what is neither generation nor reward counts as
    update."""

    def __init__(self):
        self.rows: list[dict[str, float]] = []

    def on_step_begin(self, *arguments, **options):
        self.rows.append(dict.fromkeys(PHASES, 0.0))
        self.start = time.process_time()

    def on_step_end(self, *arguments, **options):
        row = self.rows[-1]
        row["update"] = time.process_time() - self.start - row["generation"] - row["reward"]

    def around(self, phase, function):
        """`function`, its time put down to `phase`."""

        def timed(*arguments, **options):
            start = time.process_time()
            result = function(*arguments, **options)
            self.rows[-1][phase] += time.process_time() - start
            return result

        return timed


def ours(problems, settings: RLOOSettings, folder: Path) -> pd.DataFrame:
    watch = Watch()
    reward = watch.around("reward", get_reward("sparse"))
    ENGINES["transformers"] = watch.around("generation", generate)
    trainer = RLOOTrainer(*load_policy(POLICY), problems, reward, folder, settings)
    trainer.add_callback(watch)
    trainer.fit(folder, settings.steps, "RLOO", ("reward", "accuracy"))
    ENGINES["transformers"] = generate
    log = pd.read_csv(folder / "metrics.csv")
    return pd.DataFrame(watch.rows).assign(
        length=log["completion_length"], equal=log["frac_zero_std"]
    )


def theirs(problems, settings: RLOOSettings, folder: Path) -> pd.DataFrame:
    reward = get_reward("sparse")

    def group_reward(completions, nums, target, **columns):
        k = settings.group_size
        totals = []
        for i in range(0, len(completions), k):
            scores = reward(completions[i : i + k], Problem(tuple(nums[i]), target[i]))
            totals += [score.total for score in scores]
        return totals

    watch = Watch()
    trainer = TRLTrainer(
        model=str(POLICY / "checkpoint"),  # by path: TRL loads the reference policy from there
        reward_funcs=watch.around("reward", group_reward),
        args=RLOOConfig(
            **arguments(folder, settings, load_policy(POLICY)[0]),
            max_steps=settings.steps,
            lr_scheduler_type="constant",
            logging_steps=1,
            num_generations=settings.group_size,
            per_device_train_batch_size=settings.micro_batch,
            gradient_accumulation_steps=ROLLOUTS // settings.micro_batch,
            max_completion_length=settings.max_tokens,
            beta=settings.kl_coef,
        ),
        train_dataset=problems.map(
            lambda row: {"prompt": render_prompt(row["nums"], row["target"])}
        ),
        processing_class=load_policy(POLICY)[1],
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)
    trainer._generate_single_turn = watch.around("generation", trainer._generate_single_turn)
    trainer.train()
    log = pd.DataFrame([row for row in trainer.state.log_history if "loss" in row])
    return pd.DataFrame(watch.rows).assign(
        length=log["completions/mean_length"], equal=log["frac_reward_zero_std"]
    )


def main():
    settings = quick(
        steps=STEPS,
        save_every=STEPS,
        problems_per_step=ROLLOUTS // 8,
        group_size=8,
        max_tokens=160,
        micro_batch=24,
        learning_rate=1e-6,
        idle_share=0.125,
        reference_share=0.125,
    )
    table = measured(settings)
    print(
        f"{ROLLOUTS} rollouts a step, cap {settings.max_tokens}, threads: {torch.get_num_threads()}"
    )
    print("core-seconds a step; mean length; share of groups with equal rewards:")
    print(table.round(2).to_string())
    our_step, their_step = table["step"]
    print(f"TRL's takes {their_step / our_step:.2f} times as long")
    before = step_of_earlier_code(settings)
    if before:
        print(
            f"the code of commit {history.COMMIT} takes {before:.2f}: {before / our_step:.2f} "
            f"times as long"
        )
        print(f"TRL's takes {their_step / before:.2f} times as long as that")


def measured(settings: RLOOSettings) -> pd.DataFrame:
    """The mean step of ours and of TRL's, in this order; the first step is not counted."""
    problems = load("3to4", "train").select(range(STEPS * settings.problems_per_step))
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, run in {"lib.learn.rloo": ours, "TRL RLOOTrainer": theirs}.items():
            table = run(problems, settings, Path(scratch) / name)
            results[name] = table[1:].assign(step=table[PHASES].sum(axis=1)).mean()
    return pd.DataFrame(results).T[["step", *PHASES, "length", "equal"]]


def step_of_earlier_code(settings: RLOOSettings) -> float | None:
    """Core-seconds of a step of earlier code with these settings, where it runs."""
    names = (
        "steps",
        "problems_per_step",
        "group_size",
        "max_tokens",
        "micro_batch",
        "learning_rate",
    )
    values = [getattr(settings, name) for name in names]
    return history.then(history.UPDATE, POLICY.resolve(), *values)


if __name__ == "__main__":
    main()
