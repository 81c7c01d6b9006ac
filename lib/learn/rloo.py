"""RLOO on transformers' Trainer.

One update can be read from top to bottom in `RLOOTrainer`, beginning with `training_step`. The
optimiser, its schedule, clipping and checkpoints are Trainer's, and the fused log-probabilities are
TRL's.

It departs from textbook RLOO (Ahmadian et al., 2024) in these points:

* The gradient of a rollout is scaled by the truncated importance weight of the whole sequence,
  policy over sampler (paper `ast`, Eq. 3). It is 1 up to rounding, unless several updates share
  their rollouts (`num_iterations`). On a GPU both compute logits in bfloat16, and the rounding of a
  long completion's tokens adds up.
* The KL penalty and the entropy bonus are terms of the loss (means per token), not of the reward.
* Token log-probabilities are summed, not averaged over the length. Completions cut at the cap count
  like all others.
* Advantages are not divided by the group's standard deviation, unless `advantage` says so. There is
  no PPO clipping.
* A token's log-probability can have a weight; the importance weight, the entropy and the KL ignore
  it.
* A rollout can pay a price for its length, `length_price` times its share of the cap, with its own
  leave-one-out baseline."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from torch.optim.swa_utils import AveragedModel
from transformers import DynamicCache, TrainingArguments
from trl.trainer.utils import add_fused_lm_head

from lib.game.problem import Problem, as_problems
from lib.game.prompts import render_prompt
from lib.learn.adapters import frozen_copy, is_adapted, without_base
from lib.learn.curriculum import Curriculum
from lib.learn.generation import ENGINES, MEMORY_SHARE, Rollouts, Sampling
from lib.learn.losses import advantages_by, leave_one_out, rloo_loss
from lib.learn.settings import RLOOSettings
from lib.learn.trainer import Policy, Resumable, arguments, schedule
from lib.rewards import Reward, Score, score_group

# a completion's token ids -> one weight per token
TokenWeights = Callable[[list[int]], Sequence[float]]


class RLOOTrainer(Resumable):
    """RLOO of paper `ast`: our rollouts and `rloo_loss` in transformers' Trainer.

    `train_problems` are those of the whole run in order, `settings.problems_per_step` per update; a
    `curriculum` draws its own problems instead. The verifier of `prompt_style` measures accuracy.
    The frozen reference policy is a copy of the policy as it is given here, read at the policy's
    temperature; there is none if kl_coef is 0."""

    def __init__(
        self,
        model,
        tokenizer,
        train_problems: Dataset,
        reward: Reward,
        folder: Path,
        settings: RLOOSettings,
        *,
        eval_problems: Dataset | None = None,
        eval_rewards: dict[str, Reward] | None = None,
        prompt_style: str = "free",
        token_weights: TokenWeights | None = None,
        curriculum: Curriculum | None = None,
    ):
        self.settings = settings
        self.reward = reward
        self.curriculum = curriculum
        self.token_weights = token_weights
        self.prompt_style = prompt_style
        self.eval_problems = eval_problems
        self.eval_rewards = eval_rewards or {}
        self.reference = frozen_copy(model) if settings.kl_coef else None
        add_fused_lm_head(model, settings.temperature, outputs=("log_probs", "entropy"))
        config = TrainingArguments(  # one step of Trainer is one of our updates
            **arguments(folder, settings, model),
            max_steps=settings.steps,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": settings.decay_steps, "decay_type": "linear"},
            warmup_steps=settings.warmup_steps,
            logging_steps=1,
            per_device_train_batch_size=settings.problems_per_step,
            remove_unused_columns=False,
        )
        super().__init__(
            model,
            args=config,
            data_collator=list,
            train_dataset=train_problems,
            processing_class=tokenizer,
        )
        if self.reference is not None:
            add_fused_lm_head(self.reference.to(self.model.device), settings.temperature)
        self.average = AveragedModel(self.model) if settings.average_from else None

    # --- an update, from top to bottom ---

    def training_step(self, model, inputs: list[dict], num_items_in_batch=None) -> torch.Tensor:
        """Computes the gradient of an update on the problems `inputs`, and returns the loss.
        Trainer then clips the gradient, takes a step of AdamW, and calls `log`."""
        self._seconds = {"seconds_generation": 0.0, "seconds_reward": 0.0}
        self._scored = time.perf_counter()
        # else on the last rollouts once more
        if self.state.global_step % self.settings.num_iterations == 0:
            # 1. Take the next problems of the run's order, or those that the curriculum draws
            batch = as_problems(pd.DataFrame(inputs))
            if self.curriculum:
                batch = self.curriculum.draw(
                    self.settings.problems_per_step, self.state.global_step
                )
            # 2. to 5. Draw rollouts, score them, and arrange them in micro-batches
            self.take_rollouts(batch)
        # 6. The gradient
        return self.differentiate(model.train())

    def take_rollouts(self, batch: list[Problem]) -> None:
        """Samples a group of rollouts per problem, scores it, and arranges all rollouts for the
        gradient."""
        k = self.settings.group_size
        start = time.perf_counter()
        # 2. Sample
        prompts, out = self.draw_rollouts(batch)
        sampling_end = time.perf_counter()
        # 3. Score
        texts = self.processing_class.batch_decode(out.ids, skip_special_tokens=True)
        scores, correct = self.score(texts, batch)
        # 4. Compare each rollout with its group
        totals = [score.total for group in scores for score in group]
        rewards = torch.tensor(totals).view(-1, k)
        lengths = torch.tensor([float(len(ids)) for ids in out.ids]).view(-1, k)
        advantages = self.advantages(rewards, correct, lengths)
        self._scored = time.perf_counter()
        self._seconds = {
            "seconds_generation": sampling_end - start,
            "seconds_reward": self._scored - sampling_end,
        }
        self._sampled = {
            "reward": rewards.mean().item(),
            **_mean_parts(scores),
            "accuracy": correct.double().mean().item(),
            "completion_length": lengths.double().mean().item(),
            "truncated": out.finish.count("length") / len(texts),
            "frac_zero_std": (advantages == 0).all(-1).float().mean().item(),
        }
        if self.curriculum:
            signals = advantages.abs().mean(-1).tolist()
            rates = correct.float().mean(-1).tolist()
            self._sampled |= self.curriculum.learn(signals, rates)
        self.lay_out(prompts, out, advantages.flatten().to(self.model.device))

    def lay_out(self, prompts: list[list[int]], out: Rollouts, advantages: torch.Tensor) -> None:
        """Arranges the rollouts that have a gradient in micro-batches, sorted by length to save
        padding.

        The tensors of a micro-batch have the names of the arguments of `rloo_loss`, and in addition
        prompt (B,), an index of `prompts`; ids, the tokens that are read; and labels, the
        completion, both (B, T). All are padded on the right, and column t belongs to the prediction
        of the completion's token t."""
        k = self.settings.group_size
        device = self.model.device
        # 5. Read each prompt once for its whole group. Its last token is read with each completion,
        #    because it predicts the completion's first token
        self.prompts = {"ids": self._padded(ids[:-1] for ids in prompts)}
        self.prompts["attention"] = self._padded([1] * (len(ids) - 1) for ids in prompts)
        with torch.no_grad():
            ref_kv = None if self.reference is None else self._read_prompts(self.reference)
        rows, weights, ref_weights = self.with_gradient(advantages.cpu().numpy())
        lengths = np.array([len(ids) for ids in out.ids])
        self.micro_batches = []
        pieces = math.ceil(len(rows) / self.settings.micro_batch)
        for selection in np.array_split(np.argsort(lengths[rows], kind="stable"), pieces):
            indices = rows[selection]
            batch = {
                "prompt": torch.tensor(indices // k, device=device),
                "ids": self._padded([prompts[i // k][-1], *out.ids[i][:-1]] for i in indices),
                "labels": self._padded(out.ids[i] for i in indices),
                "mask": self._padded([1.0] * len(out.ids[i]) for i in indices),
                "sampler_logps": self._padded(out.logprobs[i] for i in indices),
                "advantages": advantages[indices],
                "row_weights": torch.tensor(weights[selection], dtype=torch.float32, device=device),
                "ref_weights": torch.tensor(
                    ref_weights[selection], dtype=torch.float32, device=device
                ),
                "samples": len(lengths),
                "tokens": lengths.sum(),
            }
            if self.token_weights is not None:
                batch["token_weights"] = self._padded(
                    self.token_weights(out.ids[i]) for i in indices
                ).float()
            # it never changes, so it reads a rollout only once for all updates that share it
            if ref_kv is not None:
                batch["ref_logps"] = self._reference_logps(ref_kv, batch)
            self.micro_batches.append(batch)

    def differentiate(self, model) -> torch.Tensor:
        """Adds the gradient of the update's loss to the model's parameters, and returns the loss.

        The micro-batches add up their gradients at the keys and values of the prompts, which are
        detached from the model. Backward passes through the prompts at the end carry these
        gradients into the model."""
        coefficients = {
            name: getattr(self.settings, name)
            for name in ("importance_cap", "entropy_coef", "kl_coef")
        }
        # 6a. Read the prompts; their keys and values become leaves of the graph
        with torch.no_grad():
            leaves = self._read_prompts(model)
        for leaf in leaves:
            leaf.requires_grad_()
        # 6b. log pi, loss and gradient of each micro-batch; their metrics add up to those of the
        # update
        self.row = dict(self._sampled)
        total = torch.zeros((), device=model.device)
        for batch in self.micro_batches:
            logps, entropies = self._logps(model, leaves, batch)
            terms = {
                name: value
                for name, value in batch.items()
                if name not in ("prompt", "ids", "labels")
            }
            loss, metrics = rloo_loss(logps, entropies, **coefficients, **terms)
            self.accelerator.backward(loss)
            total += loss.detach()
            for name, value in metrics.items():
                previous = self.row.get(name, 0.0)
                self.row[name] = (
                    max(previous, value) if name == "importance_max" else previous + value
                )
        # 6c. Carry the gradients of keys and values through the prompts, a micro-batch of prompts
        # at a time
        for start in range(0, len(self.prompts["ids"]), self.settings.micro_batch):
            chunk = slice(start, start + self.settings.micro_batch)
            gradients = [leaf.grad[chunk] for leaf in leaves]  # pyright: ignore[reportOptionalSubscript]
            torch.autograd.backward(self._read_prompts(model, chunk), gradients)
        return total

    def log(self, logs, start_time=None):
        """Averages the weights after each update, and writes the row of metrics.csv."""
        if "loss" not in logs:  # the last call is a summary
            return
        if self.average and self.state.global_step >= self.settings.average_from:
            self.average.update_parameters(self.model)
        seconds = self._seconds | {"seconds_update": time.perf_counter() - self._scored}
        self.add(logs, self.row | {name: round(value, 3) for name, value in seconds.items()})

    # --- the parts of an update ---

    def draw_rollouts(self, batch: list[Problem]) -> tuple[list[list[int]], Rollouts]:
        """The prompts of the problems as token ids, and a group of rollouts for each. The step
        alone sets the seed, so a resumed run draws what an uninterrupted one would have drawn."""
        settings = self.settings
        tokenizer = self.processing_class
        prompts = [
            tokenizer(render_prompt(p.nums, p.target, self.prompt_style)).input_ids for p in batch
        ]
        seed = settings.seed * 1_000_003 + self.state.global_step
        generator = torch.Generator(self.model.device).manual_seed(seed)
        sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
        asked = prompts, settings.group_size, sampling, tokenizer.eos_token_id, generator
        return prompts, ENGINES[settings.engine](self.model, *asked)

    def score(
        self, texts: list[str], batch: list[Problem]
    ) -> tuple[list[list[Score]], torch.Tensor]:
        """The scores of each group of rollouts, and which rollouts are correct, bool (problems, K).
        A group is scored at a time, since some rewards compare the completions of a problem."""
        k = self.settings.group_size
        scores = []
        correct = []
        for i, problem in enumerate(batch):
            group = texts[i * k : i * k + k]
            scores.append(score_group(self.reward, group, problem))
            correct.append([self.is_correct(text, problem) for text in group])
        return scores, torch.tensor(correct)

    def advantages(
        self, rewards: torch.Tensor, correct: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        """The advantages; all are (problems, K). Apart from its reward, each rollout pays for its
        tokens, also compared with those of its group."""
        settings = self.settings
        paid = advantages_by(settings.advantage, rewards, correct, **settings.advantage_options)
        shares = lengths / settings.max_tokens  # of the cap
        return paid - settings.length_price * leave_one_out(shares)

    def with_gradient(self, advantages: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which rollouts have a gradient, in ascending order: all whose advantage (N,) is not 0,
        and a random share of the others, drawn from [seed, step]. Also how many rollouts each of
        these represents in entropy and metrics, and how many in KL (if 0, the reference does not
        read it), so that weighted sums are unbiased."""
        settings = self.settings
        rng = np.random.default_rng([self.settings.seed, self.state.global_step])
        live = np.flatnonzero(advantages)
        idle = rng.permutation(np.flatnonzero(advantages == 0))
        idle = idle[: math.ceil(settings.idle_share * len(idle))]
        weights = np.ones(len(advantages))
        weights[idle] = (len(advantages) - len(live)) / max(len(idle), 1)
        rows = np.sort(np.concatenate([live, idle]))
        read_count = math.ceil(settings.reference_share * len(rows))
        ref_weights = np.zeros(len(rows))
        ref_weights[rng.permutation(len(rows))[:read_count]] = len(rows) / read_count
        return rows, weights[rows], weights[rows] * ref_weights

    def _padded(self, rows: Iterable) -> torch.Tensor:
        """Rows of numbers, padded on the right with 0 to the length of the longest row."""
        return pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True).to(
            self.model.device
        )

    def _read_prompts(self, model, selection: slice = slice(None)) -> list[torch.Tensor]:
        """The keys and values of every layer for the update's prompts without their last tokens,
        each of shape (prompts, heads, P, width)."""
        ids = self.prompts["ids"][selection]
        attention = self.prompts["attention"][selection]
        with self.accelerator.autocast():
            cache = model.base_model(ids, attention_mask=attention, use_cache=True)
        return [
            part for layer in cache.past_key_values.layers for part in (layer.keys, layer.values)
        ]

    def _logps(self, model, prompt_kv: list[torch.Tensor], rows: dict) -> tuple[torch.Tensor, Any]:
        """log pi of completions, and their entropies unless the model is the reference, both (B,
        T). `prompt_kv`: the keys and values of all prompts."""
        cache = [part[rows["prompt"]] for part in prompt_kv]
        prompt_mask = self.prompts["attention"][rows["prompt"]]
        mask = rows["mask"].long()
        with self.accelerator.autocast():
            out = model(
                rows["ids"],
                attention_mask=torch.cat([prompt_mask, mask], 1),
                position_ids=prompt_mask.sum(-1, keepdim=True)
                + torch.arange(mask.shape[1], device=mask.device),
                past_key_values=DynamicCache(zip(cache[::2], cache[1::2], strict=True)),
                shift_labels=rows["labels"].masked_fill(mask == 0, -100),
                fused_lm_head=True,
            )
        return out.log_probs, out.entropy

    def _reference_logps(self, ref_kv: list[torch.Tensor], batch: dict) -> torch.Tensor:
        """ref_logps (B, T): log pi of the frozen reference for rows whose weight in KL is not 0,
        and 0 for others."""
        result = torch.zeros_like(batch["sampler_logps"])
        selected = batch["ref_weights"] > 0
        if selected.any():
            longest = int(batch["mask"][selected].sum(-1).max())
            rows = {name: batch[name][selected, :longest] for name in ("ids", "labels", "mask")}
            rows["prompt"] = batch["prompt"][selected]
            with torch.no_grad():
                result[selected, :longest], _ = self._logps(self.reference, ref_kv, rows)
        return result

    # --- checkpoints ---

    def _save_optimizer_and_scheduler(self, output_dir):
        """Saves what an update changes besides the policy."""
        super()._save_optimizer_and_scheduler(output_dir)
        average = without_base(self.average.state_dict(), self.model) if self.average else None
        curriculum = self.curriculum.state if self.curriculum else None
        torch.save({"average": average, "curriculum": curriculum}, Path(output_dir) / "rloo.pt")

    def _load_from_checkpoint(self, checkpoint, model=None):
        super()._load_from_checkpoint(checkpoint, model)
        saved = torch.load(Path(checkpoint) / "rloo.pt")
        if self.average:
            # without the frozen weights of a base, which it has already
            self.average.load_state_dict(saved["average"], strict=not is_adapted(self.model))
        if self.curriculum:
            self.curriculum.state = saved["curriculum"]


def _mean_parts(scores: list[list[Score]]) -> dict[str, float]:
    """The mean of each part of the rewards, under its name in metrics.csv."""
    parts = pd.DataFrame([score.parts for group in scores for score in group]).mean()
    return {f"reward_{name}": value for name, value in parts.items()}


def train_rloo(
    policy: Policy,
    train_problems: Dataset,
    reward: Reward,
    folder: str | Path,
    settings: RLOOSettings,
    **options,
) -> None:
    """Trains on `train_problems` (columns nums, target) with `reward`, and saves the policy in
    `folder`/checkpoint.

    metrics.csv has one row per step; notebooks/README.md explains its columns. `options` are those
    of RLOOTrainer. An interrupted run resumes from `folder`/trainer."""
    folder = Path(folder)
    model, tokenizer = policy
    batches = settings.steps // settings.num_iterations
    order = schedule(len(train_problems), batches * settings.problems_per_step, settings.seed)
    # updates that share rollouts
    order = order.reshape(batches, -1).repeat(settings.num_iterations, axis=0).flatten()
    run_problems = train_problems.select_columns(["nums", "target"]).select(order)
    trainer = RLOOTrainer(model, tokenizer, run_problems, reward, folder, settings, **options)
    longest = max(
        (render_prompt(p.nums, p.target, trainer.prompt_style) for p in as_problems(run_problems)),
        key=len,
    )
    length = len(tokenizer(longest).input_ids) + settings.max_tokens
    vllm_share = MEMORY_SHARE * (settings.engine == "vllm" and torch.cuda.is_available())
    remedy = "lower micro_batch or max_tokens"
    trainer.check_memory(settings.micro_batch, length, bool(settings.kl_coef), remedy, vllm_share)
    trainer.fit(folder, settings.steps, "RLOO", ("reward", "accuracy"))
