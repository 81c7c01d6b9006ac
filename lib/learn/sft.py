"""Supervised fine-tuning with TRL's SFTTrainer."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
from datasets import Dataset, disable_progress_bars
from trl import SFTConfig, SFTTrainer

from lib.learn.model import max_micro_batch
from lib.learn.settings import SFTSettings
from lib.learn.trainer import Policy, Resumable, arguments

SFT_NAMES = {  # TRL's metrics -> their names in metrics.csv
    "mean_token_accuracy": "token_accuracy",
    "eval_mean_token_accuracy": "eval_token_accuracy",
    "num_input_tokens_seen": "tokens",
}
SFT_METRICS = ["step", "seconds", "loss", "eval_loss", "grad_norm", "learning_rate", *SFT_NAMES]


class DemonstrationTrainer(Resumable, SFTTrainer):
    """TRL's SFTTrainer, which logs the names of SFT_METRICS into metrics.csv."""

    def log(self, logs, start_time=None):
        self.check_finite(logs)
        super().log(logs | {"seconds": round(time.monotonic() - self.began, 2)}, start_time)
        if "loss" in logs or "eval_loss" in logs:
            self.write_metrics(self.columns_of(pd.DataFrame(self.state.log_history)))

    def columns_of(self, log: pd.DataFrame) -> pd.DataFrame:
        return log.filter(SFT_METRICS).rename(columns=SFT_NAMES)


def batches_by_length(lengths: np.ndarray, batch_size: int, epochs: int, seed: int) -> np.ndarray:
    """An order of rows with random batches of `batch_size` rows of similar lengths. Each epoch is a
    random permutation, sorted by length within pools of 32 batches. Rows that do not fill a last
    batch are left out."""
    rng = np.random.default_rng(seed)
    batches = []
    pool = 32 * batch_size
    for _ in range(epochs):
        permutation = rng.permutation(len(lengths))[: len(lengths) // batch_size * batch_size]
        for start in range(0, len(permutation), pool):
            rows = permutation[start : start + pool]
            rows = rows[np.argsort(lengths[rows], kind="stable")].reshape(-1, batch_size)
            batches.append(rng.permutation(rows))
    return np.concatenate(batches).flatten()


def tokenized(rows: Dataset, tokenizer, end_token: bool) -> Dataset:
    """Rows input_ids and completion_mask (1 on the tokens that are learned) of rows prompt,
    completion. `end_token`: whether the end token follows each completion."""

    def tokens(row: dict) -> dict:
        prompt = tokenizer(row["prompt"]).input_ids
        # which adds no BOS here
        completion = tokenizer(row["completion"], add_special_tokens=False).input_ids
        completion += [tokenizer.eos_token_id] * end_token
        return {
            "input_ids": prompt + completion,
            "completion_mask": [0] * len(prompt) + [1] * len(completion),
        }

    return rows.map(tokens, remove_columns=rows.column_names)


def fitting(rows: Dataset, context: int) -> Dataset:
    """The tokenized rows of at most `context` tokens, the most that the model reads: a longer one
    would be cut, and its answer and end token with it. Prints how many are left out. Raises
    ValueError if none remains."""
    keep = [i for i, ids in enumerate(rows["input_ids"]) if len(ids) <= context]
    if len(keep) < len(rows):
        lost = (
            f"{len(rows) - len(keep):,} of {len(rows):,} demonstrations "
            f"are longer than the context of {context:,}"
        )
        if not keep:
            raise ValueError(
                f"{lost} tokens: take a base model with a longer context, or another design"
            )
        print(f"{lost} tokens, and are left out", flush=True)
        return rows.select(keep)
    return rows


def _config(
    folder: Path, settings: SFTSettings, model, micro_batch: int, updates: int
) -> SFTConfig:
    """The configuration of TRL's trainer; `updates`: how many the whole training has."""
    return SFTConfig(
        **arguments(folder, settings, model),
        num_train_epochs=1,  # the order of the rows contains all epochs
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=settings.batch_size // micro_batch,
        per_device_eval_batch_size=micro_batch,
        warmup_steps=settings.warmup_steps,
        lr_scheduler_type=settings.schedule,
        logging_steps=min(settings.log_every, updates),
        eval_strategy="steps",
        eval_steps=settings.eval_every,
        include_num_input_tokens_seen="non_padding",
        completion_only_loss=True,
        max_length=None,
    )


def train_sft(
    policy: Policy, rows: Dataset, folder: str | Path, settings: SFTSettings, eval_rows: Dataset
) -> None:
    """Fine-tunes on `rows` (columns prompt, completion: text), and saves the policy in
    `folder`/checkpoint.

    The loss is the mean over the tokens of completions, including the end token if `end_token` is
    set; prompts have no loss. Rows that are longer than the model's context are left out.
    `eval_rows` are held back for eval_loss, which is the mean of the means of batches, weighted by
    rows: it depends in its fourth digit on the micro-batch, and therefore on the memory of the
    machine. An interrupted run resumes from `folder`/trainer. Raises ValueError for rows that do
    not fill one batch."""
    folder = Path(folder)
    model, tokenizer = policy
    disable_progress_bars()  # TRL shows one for every step of preparing the rows
    context = model.config.max_position_embeddings
    # 1. Tokenize, and choose the largest micro-batch that fits into memory
    rows = fitting(tokenized(rows, tokenizer, settings.end_token), context)
    eval_rows = fitting(tokenized(eval_rows, tokenizer, settings.end_token), context)
    if len(rows) < settings.batch_size:
        raise ValueError(
            f"{len(rows)} demonstrations do not fill one batch of {settings.batch_size}"
        )
    lengths = np.array([len(ids) for ids in rows["input_ids"]])
    micro_batch = max_micro_batch(model, settings.batch_size, int(lengths.max()), reference=False)
    # 2. Configure TRL's trainer
    updates = len(rows) // settings.batch_size * settings.epochs
    trainer = DemonstrationTrainer(
        model=model,
        args=_config(folder, settings, model, micro_batch, updates),
        train_dataset=rows,
        eval_dataset=eval_rows,
        processing_class=tokenizer,
    )
    trainer.check_memory(
        micro_batch, int(lengths.max()), False, "leave out the longest demonstrations"
    )
    # 3. Train, with completions of similar length in each batch
    order = batches_by_length(lengths, settings.batch_size, settings.epochs, settings.seed)
    trainer.train_dataset = trainer.train_dataset.select(order)
    updates = len(order) // settings.batch_size
    if updates < settings.warmup_steps:
        print(
            f"warmup_steps={settings.warmup_steps} is above the {updates} updates: "
            "learning_rate is never reached"
        )
    trainer.fit(folder, updates, "SFT", ("loss", "token_accuracy"))
