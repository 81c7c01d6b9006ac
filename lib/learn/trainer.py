"""What our trainers share: checkpoints to resume from, metrics.csv, and the evaluation on held-out
problems.

A run folder gets `metrics.csv`, `trainer/` (to resume from) and at the end `checkpoint/`. A run
that was killed and is started again on a CPU gives the same metrics, except for the columns
`seconds*`, and the same weights. On a GPU it takes the same problems and random numbers, but rounds
differently."""

import json
import math
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from datasets import Dataset
from safetensors import SafetensorError
from torch.optim.swa_utils import AveragedModel

from lib.files import progress, shown, write_table, writing
from lib.game.problem import Problem, as_problems
from lib.game.verifiers import VERIFIERS
from lib.learn.adapters import is_adapted, load_adapter, save_adapter
from lib.learn.generation import Sampling, sample
from lib.learn.model import in_bfloat16, machine_memory, save_policy, training_memory
from lib.rewards import Reward, score_group

KEPT = 2  # checkpoints: the newest, and the one before in case it is damaged
# as lib.learn.model.load_policy returns them
Policy = tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]


def schedule(count: int, draws: int, seed: int) -> np.ndarray:
    """`draws` indices out of `count`, as one random permutation after another."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(count) for _ in range(math.ceil(draws / count))])[:draws]


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.name: path.stat().st_size for path in folder.iterdir() if path.name != "complete.json"
    }


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def checkpoints(folder: Path) -> list[Path]:
    """The `checkpoint-<step>` of `folder`, the newest first. Folders with other names, such as a
    copy made by hand, are not ours: they stay and do not count."""
    ours = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdecimal() and path.is_dir()
    ]
    return sorted(ours, key=_step, reverse=True)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of `folder`; newer ones, cut off by a kill, are deleted."""
    for checkpoint in checkpoints(folder):
        with suppress(OSError, ValueError):
            if json.loads((checkpoint / "complete.json").read_text()) == _sizes(checkpoint):
                return checkpoint
        print(f"{shown(checkpoint)} is not whole: resuming from the one before, if there is one")
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None


class Resumable(transformers.Trainer):
    """A trainer that resumes exactly. A checkpoint counts only when its last file has been written,
    `complete.json` with the sizes of all other files. metrics.csv is written from the trainer's
    log, which is part of the checkpoint.

    The prompt style of a trainer with `eval_problems` must be a key of VERIFIERS.
    """

    # the mean of the weights, which is saved in their place, if a trainer keeps one
    average: AveragedModel | None = None
    # Trainer's own types also allow None and much else
    args: Any
    model: transformers.PreTrainedModel
    processing_class: Any  # the tokenizer
    train_dataset: Dataset
    settings: Any  # those of the trainer's notebook (lib.learn.settings)
    prompt_style: str
    eval_problems: Dataset | None = None
    eval_rewards: dict[str, Reward]

    def __init__(self, *given, args, **options):
        # Trainer would otherwise divide each batch between all visible GPUs
        args._n_gpu = min(args.n_gpu, 1)
        super().__init__(*given, args=args, **options)

    def check_finite(self, logs: dict) -> None:
        """Raises FloatingPointError for a loss or a gradient that is not finite, before a
        checkpoint is saved."""
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise FloatingPointError(
                    f"{name} of update {self.state.global_step} is {logs[name]}: training stops"
                )

    def _save_checkpoint(self, model, trial):
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise FloatingPointError(
                f"weights of update {self.state.global_step} are not finite: training stops"
            )
        # torch and safetensors raise these on a full disk
        with writing(folder, RuntimeError, SafetensorError):
            super()._save_checkpoint(model, trial)
            (folder / "complete.json").write_text(json.dumps(_sizes(folder)))
        # Trainer itself would count, and delete, every folder whose name begins like these
        for old in checkpoints(folder.parent)[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    def _save(self, output_dir=None, state_dict=None):
        if is_adapted(self.model):  # the base never changes
            save_adapter(self.model, Path(output_dir or self.args.output_dir))
        else:
            super()._save(output_dir, state_dict)

    def _load_from_checkpoint(self, checkpoint, model=None):
        if is_adapted(self.model):
            load_adapter(self.model, Path(checkpoint))
        else:
            super()._load_from_checkpoint(checkpoint, model)

    def create_model_card(self, *args, **kwargs):
        """Writes no model card, since these checkpoints serve only to resume."""

    def _send_telemetry(self):
        """Sends no telemetry, whatever the environment says."""

    def is_correct(self, completion: str, problem: Problem) -> bool:
        """Whether the verifier that belongs to the prompt style finds the completion correct."""
        return VERIFIERS[self.prompt_style](completion, problem).status == "correct"

    def held_out(self) -> dict[str, float]:
        """eval_accuracy, the mean of each of `eval_rewards`, and eval_entropy, the mean of -log pi
        over tokens in nats, from one completion per problem of `eval_problems`, at temperature 1
        and with a fixed seed."""
        sampling = Sampling(max_tokens=self.settings.max_tokens)
        rows = self.eval_problems
        assert rows is not None  # `add` asks for them first
        # preference training has no such setting
        engine = getattr(self.settings, "engine", "transformers")
        table = sample(
            self.model,
            self.processing_class,
            rows,
            1,
            sampling,
            self.args.seed,
            self.prompt_style,
            engine,
        )
        answers = list(zip(table["completion"], as_problems(rows), strict=True))
        row = {"eval_accuracy": float(np.mean([self.is_correct(*pair) for pair in answers]))}
        for name, reward in self.eval_rewards.items():
            scores = [score_group(reward, [text], problem)[0] for text, problem in answers]
            row[f"eval_{name}"] = float(np.mean([score.total for score in scores]))
        return row | {"eval_entropy": -table["logprob"].sum() / table["tokens"].sum()}

    def check_memory(
        self, rows: int, length: int, reference: bool, remedy: str, taken: float = 0.0
    ) -> None:
        """Prints how much memory training needs. Raises MemoryError with the remedy, or else a
        smaller model, if the machine, without the share `taken` of its memory, has less."""
        needed = training_memory(self.model, rows, length, reference)
        room = (1 - taken) * machine_memory()
        estimate = (
            f"{needed / 2**30:.1f} GiB at the peak, for {rows} texts of {length} tokens at a time"
        )
        print(f"memory: about {estimate}; {room / 2**30:.1f} GiB are available", flush=True)
        if needed > room:
            remedy += ", or take a smaller model"
            raise MemoryError(
                f"training needs about {estimate}, but there are {room / 2**30:.1f} GiB: {remedy}"
            )

    def fit(self, folder: Path, steps: int, what: str, shown: tuple[str, ...]) -> None:
        """Trains, from the newest complete checkpoint if there is one, and saves the policy.
        `shown`: the columns in the progress line."""
        self.folder = folder
        self.shown = list(shown)
        self.began = time.monotonic()
        checkpoint = latest_checkpoint(folder / "trainer")
        done = _step(checkpoint) if checkpoint else 0
        if checkpoint:
            is_over = (
                f": all {done} updates are made already, and nothing is trained"
                if done >= steps
                else ""
            )
            print(f"goes on from {checkpoint.name}{is_over}", flush=True)
        self.remove_callback(transformers.PrinterCallback)
        transformers.logging.disable_progress_bar()  # it would show a bar for every file written
        with progress(None, steps, f"{what} step", done) as self.line:
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            # of a training that was over; its log is part of the checkpoint
            if not (folder / "metrics.csv").exists():
                self.write_metrics(self.columns_of(pd.DataFrame(self.state.log_history)))
        policy = self.average.module if self.average else self.model
        save_policy(policy, self.processing_class, folder / "checkpoint")

    def add(self, logs: dict, row: dict) -> None:
        """Adds a row to the log and thereby to metrics.csv: the loss and the gradient norm of
        `logs`, which must be finite, `row`, and `held_out` when it is due. The other metrics of
        `logs` are TRL's, and are left out."""
        self.check_finite(logs)
        row = row | {name: logs[name] for name in ("loss", "grad_norm")}
        if self.eval_problems and self.state.global_step % self.settings.eval_every == 0:
            row |= self.held_out()
        transformers.Trainer.log(self, row)
        self.write_metrics(self.columns_of(pd.DataFrame(self.state.log_history)))

    def columns_of(self, log: pd.DataFrame) -> pd.DataFrame:
        """The columns of the trainer's log that belong in metrics.csv, by their names there."""
        return log.drop(columns="epoch")

    def write_metrics(self, log: pd.DataFrame) -> None:
        """Writes metrics.csv, one row per step, and advances the progress line."""
        table = log.sort_index(axis=1).groupby("step", as_index=False).first()
        write_table(table, self.folder / "metrics.csv")
        latest = table[self.shown].ffill().iloc[-1]  # the last row may hold only eval_*
        self.line.set_postfix(dict(latest), refresh=False)
        self.line.update(self.state.global_step - self.line.n)


def arguments(folder: Path, settings, model) -> dict:
    """The arguments that the configurations of all trainers have in common. Raises RuntimeError for
    a GPU without bfloat16: we train in it, and TRL's kernels need it."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError(
            f"{torch.cuda.get_device_name()} has no bfloat16 (compute capability 8.0 or above has "
            "it), so that it cannot train here; CUDA_VISIBLE_DEVICES= trains on the CPU"
        )
    return {
        **{
            name: getattr(settings, name)
            for name in ("learning_rate", "weight_decay", "max_grad_norm", "seed")
        },
        "output_dir": str(folder / "trainer"),
        "optim": "adamw_torch",
        "train_sampling_strategy": "sequential",  # in the order of `schedule`, or of SFT's batches
        "save_steps": settings.save_every,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available() or in_bfloat16(model),
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "logging_nan_inf_filter": False,  # a loss that is not a number must be visible
        "log_level": "error",
        # "trackio" sends it the rows of metrics.csv
        "report_to": os.environ.get("COUNTDOWN_REPORT_TO") or "none",
        "project": "countdown",
        "run_name": shown(folder),
        "disable_tqdm": True,
    }
