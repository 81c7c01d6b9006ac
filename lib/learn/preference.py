"""Preference optimisation with TRL's DPOTrainer: IPO and DPO.

Equations are those of `dense`: "Enhancing RLOO with Dense Symbolic Rewards and Bandit-Driven
Curricula" (Sangpisit and Thawornbut). TRL's own `ipo` averages log-ratios over tokens, whereas Eq.
3 sums them, so we use our own loss."""

import time
from pathlib import Path

import pandas as pd
import torch
from datasets import Dataset, disable_progress_bars
from trl import DPOConfig, DPOTrainer

from lib.game.prompts import render_prompt
from lib.game.sets import exclude, hub_rows
from lib.learn.adapters import frozen_copy
from lib.learn.demonstrations import query_problem
from lib.learn.losses import preference_loss
from lib.learn.model import max_micro_batch
from lib.learn.settings import PreferenceSettings
from lib.learn.trainer import Policy, Resumable, arguments, schedule

HUB_PAIRS = "asingh15/countdown_tasks_3to4-dpo"
COLUMNS = ["prompt", "chosen", "rejected"]


def preference_pairs(judged: pd.DataFrame, most: int, seed: int) -> Dataset:
    """Rows nums, target, chosen, rejected: a correct and an incorrect completion of the same
    problem.

    `judged`: the result of `judging.judge`, with columns problem and finish. Completions that were
    cut are left out, and equal completions of a problem count once. Both kinds are shuffled, each
    completion is in at most one pair, and a problem has at most `most` pairs."""
    completions = judged[judged["finish"] == "stop"].drop_duplicates(["problem", "completion"])
    rows = []
    for _, group in completions.sample(frac=1, random_state=seed).groupby("problem"):
        is_correct = group["correct"].astype(bool)
        correct = group.loc[is_correct, "completion"]
        wrong = group.loc[~is_correct, "completion"]
        first = group.iloc[0]
        problem = {"nums": [int(n) for n in first["nums"]], "target": int(first["target"])}
        pairs = list(zip(correct, wrong, strict=False))[:most]
        rows += [problem | {"chosen": chosen, "rejected": other} for chosen, other in pairs]
    return Dataset.from_list(rows)


def hub_pairs() -> Dataset:
    """The hub's preference pairs (columns query, response_ws, response_ls) as rows nums, target,
    chosen, rejected; pairs of evaluation problems are dropped."""
    rows = exclude(hub_rows(HUB_PAIRS, "train").map(query_problem, load_from_cache_file=False))
    rows = rows.rename_columns({"response_ws": "chosen", "response_ls": "rejected"})
    return rows.select_columns(["nums", "target", "chosen", "rejected"])


def with_prompts(pairs: Dataset, style: str) -> Dataset:
    """Pairs with the column prompt: that of the agent's pairs, or the prompt of nums and target."""
    if "prompt" in pairs.column_names:
        return pairs
    return pairs.map(lambda row: {"prompt": render_prompt(row["nums"], row["target"], style)})


def hold_back(pairs: Dataset, held: Dataset, count: int, seed: int) -> tuple[Dataset, Dataset]:
    """`pairs` without those of the held-back prompts, and `count` pairs of `held` whose margin says
    how far a policy has moved on what it does not train on. Both have a column prompt.

    The seed alone decides which of `held` they are, so that policies that learn from different
    pairs can be asked about the same ones. Raises ValueError if `held` has fewer."""
    if len(held) < count:
        raise ValueError(f"{count} pairs are to be held back, but there are {len(held)}")
    held = held.shuffle(seed).select(range(count))
    prompts = set(held["prompt"])
    kept = [i for i, prompt in enumerate(pairs["prompt"]) if prompt not in prompts]
    return pairs.select(kept), held


class PreferenceTrainer(Resumable, DPOTrainer):
    """TRL's DPOTrainer with `preference_loss`. The frozen reference is a copy of the policy as it
    is given here."""

    def __init__(
        self,
        model,
        tokenizer,
        rows: Dataset,
        folder: Path,
        settings: PreferenceSettings,
        eval_problems,
        prompt_style,
        held: Dataset | None = None,
    ):
        self.settings = settings
        self.prompt_style = prompt_style
        self.eval_problems = eval_problems
        self.eval_rewards = {}
        texts = zip(rows["prompt"], rows["chosen"], rows["rejected"], strict=True)
        length = (
            max(
                len(tokenizer(max(prompt + a, prompt + b, key=len)).input_ids)
                for prompt, a, b in texts
            )
            + 1
        )
        # both sides of a pair
        micro_batch = max_micro_batch(model, settings.batch_size, 2 * length, reference=True)
        config = DPOConfig(
            **arguments(folder, settings, model),
            max_steps=settings.steps,
            lr_scheduler_type="constant",
            logging_steps=1,
            per_device_train_batch_size=micro_batch,
            per_device_eval_batch_size=micro_batch,
            gradient_accumulation_steps=settings.batch_size // micro_batch,
            max_length=None,
        )
        reference = frozen_copy(model)
        super().__init__(
            model=model,
            ref_model=reference,
            args=config,
            train_dataset=rows,
            eval_dataset=held,
            processing_class=tokenizer,
        )
        # the batch's loss is the mean of the micro-batches' losses
        self.model_accepts_loss_kwargs = False
        self._rows: list[dict] = []
        self.check_memory(micro_batch, 2 * length, True, "leave out the longest pairs")

    def _logps(self, model, inputs: dict) -> torch.Tensor:
        """log pi of the completions, (2, B): first the chosen, then the rejected ones."""
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
        out = model(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            labels=labels,
            fused_lm_head=True,
        )
        return out.log_probs.sum(-1).view(2, -1)

    def _compute_loss(self, model, inputs: dict, return_outputs=False) -> torch.Tensor:
        with torch.no_grad():
            reference = self._logps(self.ref_model, inputs)
        chosen, rejected = self._logps(model, inputs) - reference
        loss, row = preference_loss(chosen, rejected, self.settings.beta, self.settings.loss)
        self._rows.append(row)
        return loss

    def log(self, logs, start_time=None):
        """Writes one row of metrics.csv per step, without TRL's own metrics."""
        if "loss" not in logs:  # the last call is a summary
            return
        row = {**pd.DataFrame(self._rows).mean()}
        if self.eval_dataset and self.state.global_step % self.settings.eval_every == 0:
            row |= self.on_held_pairs()
        row["seconds"] = round(time.monotonic() - self.began, 2)
        self.add(logs, row)
        self._rows.clear()

    def on_held_pairs(self) -> dict[str, float]:
        """eval_margin and eval_preferred: margin and preferred of `preference_loss`, as means over
        the pairs held back."""
        gaps = []
        for batch in self.get_eval_dataloader():
            with torch.no_grad():
                ratios = self._logps(self.model, batch) - self._logps(self.ref_model, batch)
            gaps.append(ratios[0] - ratios[1])
        margins = self.settings.beta * torch.cat(gaps)
        preferred = (margins > 0).float()
        return {"eval_margin": margins.mean().item(), "eval_preferred": preferred.mean().item()}


def train_preference(
    policy: Policy,
    pairs: Dataset,
    folder: str | Path,
    settings: PreferenceSettings,
    eval_problems: Dataset,
    prompt_style: str = "free",
    held: Dataset | None = None,
    held_pairs: int = 0,
) -> None:
    """Trains on `pairs` (chosen, rejected, and either nums and target or a prompt) in the order of
    `schedule`, and saves the policy in `folder`/checkpoint. An interrupted run resumes from
    `folder`/trainer. `held_pairs` of `held`, or else of `pairs` themselves, are only looked at (see
    `hold_back`). Raises ValueError if there are no pairs."""
    if not len(pairs):
        raise ValueError(
            "there is no pair to learn from: "
            "no problem has both a correct and an incorrect completion"
        )
    folder = Path(folder)
    model, tokenizer = policy
    disable_progress_bars()  # TRL shows one for every step of preparing the rows
    pairs = with_prompts(pairs, prompt_style)
    looked_at = None
    if held_pairs:
        others = with_prompts(held, prompt_style) if held else pairs
        pairs, looked_at = hold_back(pairs, others, held_pairs, settings.seed)
        looked_at = looked_at.select_columns(COLUMNS)
    order = schedule(len(pairs), settings.steps * settings.batch_size, settings.seed)
    rows = pairs.select_columns(COLUMNS).select(order)
    trainer = PreferenceTrainer(
        model, tokenizer, rows, folder, settings, eval_problems, prompt_style, looked_at
    )
    trainer.fit(folder, settings.steps, settings.loss.upper(), ("loss", "margin"))
