"""Supervised fine-tuning on TRL's SFTTrainer, and RLOO on transformers' Trainer.

An update of RLOO can be read from top to bottom in `RLOOTrainer`, beginning with `training_step`: problems, rollouts
of our decode loop, a reward that sees a whole group, advantages, and the gradient of `rloo_loss`, micro-batch by
micro-batch. The optimiser, its schedule, clipping and checkpoints are Trainer's, the fused log-probabilities TRL's.

Where this departs from textbook RLOO (Ahmadian et al., 2024):

* The gradient of a rollout is scaled by the truncated importance weight of the whole sequence, policy over
  sampler (paper `ast`, Eq. 3). Our sampler is the policy itself, or vLLM with its weights: with one update per batch
  of rollouts the weight is 1 but for rounding. With more (`num_iterations`) the same rollouts are used again by a
  policy that has moved on.
* The KL penalty is a term of the loss (mean per token), not of the reward, and so is an entropy bonus.
* Token log-probabilities are summed, not averaged over the length; completions cut at the cap count like all
  others, unless `mask_truncated` takes them out of the policy gradient and the baseline (DAPO, arXiv 2503.14476).
* Advantages are not divided by the group's standard deviation, unless `advantage` says so, and there is no PPO
  clipping.
* A token's log-probability can carry a weight; importance weight, entropy and KL ignore it.

A run folder gets `metrics.csv`, `trainer/` (what is needed to resume) and at the end `checkpoint/` (the
policy). A run that was killed and is started again gives the same metrics, but for the columns `seconds*`,
and the same weights.
"""

import copy
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
import transformers
import trl
from datasets import Dataset, disable_progress_bars
from safetensors import SafetensorError
from torch.nn.utils.rnn import pad_sequence
from torch.optim.swa_utils import AveragedModel
from transformers import DynamicCache, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from lib.files import nearest, progress, shown, write_table, writing
from lib.game.problem import Problem, problems
from lib.game.prompts import render_prompt
from lib.game.verifiers import VERIFIERS
from lib.learn.curriculum import Curriculum
from lib.learn.generation import ENGINES, MEMORY_SHARE, Rollouts, Sampling, sample
from lib.learn.losses import advantages_of, rloo_loss
from lib.learn.model import load_policy, machine_memory, max_micro_batch, save_policy, training_memory
from lib.learn.settings import RLOOSettings, SFTSettings
from lib.rewards import Reward, score_group

if not trl.__version__.startswith("1.16."):
    raise ImportError(
        f"lib/learn/training.py leans on private methods of TRL 1.16, but TRL {trl.__version__} is installed: "
        "install the version that requirements.txt pins"
    )

Policy = str | Path | tuple  # a path that lib.learn.model.load_policy knows, or (model, tokenizer)
TokenWeights = Callable[[list[int]], Sequence[float]]  # a completion's token ids -> one weight a token


# --- what all trainers write -------------------------------------------------------------------------------


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.iterdir() if path.name != "complete.json")
    return {path.name: path.stat().st_size for path in files}


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def check_style(prompt_style: str) -> None:
    """Raise ValueError for a style of prompts whose completions no verifier reads."""
    if prompt_style not in VERIFIERS:
        raise ValueError(f"prompt_style {prompt_style!r}: no verifier reads it{nearest(prompt_style, VERIFIERS)}")


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole `checkpoint-<step>` of `folder`. Broken ones (a kill, a cut file) are deleted."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        try:
            if json.loads((checkpoint / "complete.json").read_text()) == _sizes(checkpoint):
                return checkpoint
        except (OSError, ValueError):
            pass
        print(f"{checkpoint} is not whole: resuming from the one before, if there is one")
        shutil.rmtree(checkpoint)
    return None


class Resumable:
    """What our trainers share. A checkpoint counts once its last file, `complete.json` with the sizes of all others,
    is written. It keeps the trainer's log, from which metrics.csv is written: a resumed run cuts that back."""

    # of the trainer that this is mixed into
    args: Any
    state: Any
    model: Any
    processing_class: Any
    accelerator: Any
    train: Any
    remove_callback: Any
    train_dataset: Any
    settings: Any
    prompt_style: str
    eval_problems: Any
    eval_rewards: dict[str, Reward]

    def check_finite(self, logs: dict) -> None:
        """Raise FloatingPointError for a loss or a gradient that is not finite. Trainer logs an update before it saves
        a checkpoint of it, so none is kept."""
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise FloatingPointError(f"{name} of update {self.state.global_step} is {logs[name]}: training stops")

    def _save_checkpoint(self, model, trial):
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise FloatingPointError(f"weights of update {self.state.global_step} are not finite: training stops")
        with writing(folder, RuntimeError, SafetensorError):  # a full disk has three faces
            super()._save_checkpoint(model, trial)  # pyright: ignore[reportAttributeAccessIssue]
            (folder / "complete.json").write_text(json.dumps(_sizes(folder)))

    def create_model_card(self, *args, **kwargs):
        """No model card beside checkpoints that only serve to resume."""

    def _send_telemetry(self):
        """No telemetry, whatever the environment says."""

    def is_correct(self, completion: str, problem: Problem) -> bool:
        """The word of the verifier that belongs to this style of prompt."""
        return VERIFIERS[self.prompt_style](completion, problem).status == "correct"

    def held_out(self) -> dict[str, float]:
        """eval_accuracy and the mean of each of `eval_rewards` for one completion a problem of `eval_problems`, at
        temperature 1 and a fixed seed; eval_entropy, nats a token: the mean of -log pi over the tokens drawn."""
        sampling, rows = Sampling(max_tokens=self.settings.max_tokens), self.eval_problems
        with self.accelerator.autocast():
            engine = getattr(self.settings, "engine", "transformers")  # SFT and preference training have none
            drawn = self.args.seed, self.prompt_style, engine
            table = sample(self.model, self.processing_class, rows, 1, sampling, *drawn)
        answered = list(zip(table["completion"], problems(rows), strict=True))
        row = {"eval_accuracy": float(np.mean([self.is_correct(text, problem) for text, problem in answered]))}
        for name, reward in self.eval_rewards.items():
            scores = [reward([text], problem)[0].total for text, problem in answered]
            row[f"eval_{name}"] = float(np.mean(scores))
        return row | {"eval_entropy": -table["logprob"].sum() / table["tokens"].sum()}

    def check_memory(self, rows: int, length: int, reference: bool, taken: float = 0.0) -> None:
        """Say how much memory training takes at the most. Raises MemoryError where there is not that much, less the
        share that is `taken`."""
        needed, room = training_memory(self.model, rows, length, reference), (1 - taken) * machine_memory()
        said = f"{needed / 2**30:.1f} GiB at the peak, for {rows} texts of {length} tokens at a time"
        print(f"memory: about {said}; {room / 2**30:.1f} GiB are there", flush=True)
        if needed > room:
            raise MemoryError(f"training needs about {said}, but there are {room / 2**30:.1f} GiB: lower micro_batch")

    def fit(self, folder: Path, steps: int, what: str, shown: tuple[str, ...]) -> None:
        """Train, from the newest whole checkpoint if there is one, and save the policy. `shown`: columns of metrics.csv
        that stand in the progress line."""
        self.folder, self.shown, self.began = folder, list(shown), time.monotonic()
        checkpoint = latest_checkpoint(folder / "trainer")
        self.remove_callback(transformers.PrinterCallback)
        transformers.logging.disable_progress_bar()  # a bar for every file written
        with progress(None, steps, f"{what} step", _step(checkpoint) if checkpoint else 0) as self.line:
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        save_policy(self.policy(), self.processing_class, folder / "checkpoint")

    def policy(self):
        """The model to save."""
        return self.model

    def add(self, row: dict) -> None:
        """Add a row of our own to the log and so to metrics.csv; TRL's metrics are left out."""
        transformers.Trainer.log(self, row)  # pyright: ignore[reportArgumentType]
        self.write_metrics(pd.DataFrame(self.state.log_history).drop(columns="epoch"))

    def write_metrics(self, log: pd.DataFrame) -> None:
        """Write metrics.csv, a row a step, and say how far training is."""
        table = log.sort_index(axis=1).groupby("step", as_index=False).first()
        write_table(table, self.folder / "metrics.csv")
        self.line.set_postfix(
            dict(table[self.shown].ffill().iloc[-1]), refresh=False
        )  # a last row may hold eval_* alone
        self.line.update(self.state.global_step - self.line.n)


def arguments(folder: Path, settings) -> dict:
    """What the configurations of all trainers have in common."""
    return {
        "output_dir": str(folder / "trainer"),
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "seed": settings.seed,
        "optim": "adamw_torch",
        "save_strategy": "steps",
        "save_steps": settings.save_every,
        "save_total_limit": 2,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available(),
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "logging_nan_inf_filter": False,  # a loss that is not a number shall be seen
        "log_level": "error",
        "report_to": os.environ.get("COUNTDOWN_REPORT_TO", "none"),  # "trackio": the rows of metrics.csv there too
        "project": "countdown",
        "run_name": shown(folder),
        "disable_tqdm": True,
    }


# --- supervised fine-tuning ---------------------------------------------------------------------------------

SFT_COLUMNS = {  # TRL's metrics, as metrics.csv calls them
    "loss": "loss",
    "mean_token_accuracy": "token_accuracy",
    "eval_loss": "eval_loss",
    "eval_mean_token_accuracy": "eval_token_accuracy",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "num_input_tokens_seen": "tokens",
}


class _SFTTrainer(Resumable, SFTTrainer):
    def log(self, logs, start_time=None):
        self.check_finite(logs)
        super().log(logs | {"seconds": round(time.monotonic() - self.began, 2)}, start_time)
        if "loss" in logs or "eval_loss" in logs:
            table = pd.DataFrame(self.state.log_history).filter(["step", "seconds", *SFT_COLUMNS])
            self.write_metrics(table.rename(columns=SFT_COLUMNS))


def batches_by_length(lengths: np.ndarray, batch_size: int, epochs: int, seed: int, pool: int = 32) -> np.ndarray:
    """An order of rows in which every `batch_size` are of similar length, with the batches in random order.

    Each epoch is a random permutation, sorted by length inside pools of `pool` batches; rows that do not fill
    a last batch are left out.
    """
    rng, batches = np.random.default_rng(seed), []
    for _ in range(epochs):
        drawn = rng.permutation(len(lengths))[: len(lengths) // batch_size * batch_size]
        for start in range(0, len(drawn), pool * batch_size):
            rows = drawn[start : start + pool * batch_size]
            rows = rows[np.argsort(lengths[rows], kind="stable")].reshape(-1, batch_size)
            batches.append(rng.permutation(rows))
    return np.concatenate(batches).flatten()


def train_sft(
    policy: Policy, rows: Dataset, folder: str | Path, settings: SFTSettings, eval_rows: Dataset | None = None
) -> None:
    """Fine-tune on `rows` (columns prompt, completion: text) and leave the policy in `folder`/checkpoint.

    The loss is the mean over the tokens of completions, end token included unless settings say otherwise; prompts are
    read, not learned.
    Batches are of similar length. metrics.csv: every `log_every` steps loss, token_accuracy, grad_norm,
    learning_rate, tokens (seen), seconds (since the start), and every `eval_every` steps eval_loss and
    eval_token_accuracy. A run that was interrupted resumes from `folder`/trainer.
    """
    folder, (model, tokenizer) = Path(folder), _load(policy)
    disable_progress_bars()  # of every small thing that TRL does to the rows
    if len(rows) < settings.batch_size:
        raise ValueError(f"{len(rows)} demonstrations do not fill one batch of {settings.batch_size}")

    def tokenized(row: dict) -> dict:
        prompt = tokenizer(row["prompt"]).input_ids
        completion = tokenizer(row["completion"], add_special_tokens=False).input_ids  # a second BOS would be learned
        completion += [tokenizer.eos_token_id] * settings.end_token
        return {"input_ids": prompt + completion, "completion_mask": [0] * len(prompt) + [1] * len(completion)}

    rows = rows.map(tokenized, remove_columns=rows.column_names)
    lengths = np.minimum([len(ids) for ids in rows["input_ids"]], model.config.max_position_embeddings)
    micro_batch = max_micro_batch(model, settings.batch_size, int(lengths.max()), reference=False)
    config = SFTConfig(
        **arguments(folder, settings),
        num_train_epochs=1,  # the order below holds all epochs
        train_sampling_strategy="sequential",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=settings.batch_size // micro_batch,
        per_device_eval_batch_size=micro_batch,
        warmup_steps=settings.warmup_steps,
        lr_scheduler_type=settings.schedule,
        logging_steps=settings.log_every,
        eval_strategy="no" if eval_rows is None else "steps",
        eval_steps=settings.eval_every,
        include_num_input_tokens_seen="non_padding",
        completion_only_loss=True,
        max_length=model.config.max_position_embeddings,
    )
    trainer = _SFTTrainer(
        model=model,
        args=config,
        train_dataset=rows,
        eval_dataset=None if eval_rows is None else eval_rows.map(tokenized, remove_columns=eval_rows.column_names),
        processing_class=tokenizer,
    )
    trainer.check_memory(micro_batch, int(lengths.max()), reference=False)
    order = batches_by_length(lengths, settings.batch_size, settings.epochs, settings.seed)
    trainer.train_dataset = trainer.train_dataset.select(order)
    trainer.fit(folder, len(order) // settings.batch_size, "SFT", ("loss", "token_accuracy"))


# --- RLOO ---------------------------------------------------------------------------------------------------


class RLOOTrainer(Resumable, Trainer):
    """RLOO of paper `ast`: our rollouts and `rloo_loss` in transformers' Trainer. See the module's docstring.

    `train_problems` are those of the whole run in order, `settings.problems_per_step` per update; a `curriculum` draws
    its own instead, and its state is part of a checkpoint. `prompt_style` also says how an answer is verified for the
    accuracy. The frozen reference is the policy as it is given here, read at the policy's temperature; it costs a
    forward pass, and at kl_coef 0 is left out (there is no column kl then). Raises ValueError for a style of prompts
    without a verifier.
    """

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
        check_style(prompt_style)
        self.settings, self.reward, self.prompt_style, self.curriculum = settings, reward, prompt_style, curriculum
        self.eval_problems, self.eval_rewards = eval_problems, eval_rewards or {}
        self.token_weights = token_weights
        self.reference = copy.deepcopy(model).eval().requires_grad_(False) if settings.kl_coef else None
        config = TrainingArguments(
            **arguments(folder, settings),
            max_steps=settings.steps,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": settings.decay_steps, "decay_type": "linear"},
            warmup_steps=settings.warmup_steps,
            logging_steps=1,
            per_device_train_batch_size=settings.problems_per_step,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
        )
        add_fused_lm_head(model, settings.temperature, outputs=("log_probs", "entropy"))
        super().__init__(model, config, cast(Any, list), train_problems, processing_class=tokenizer)
        if self.reference is not None:
            add_fused_lm_head(self.reference.to(self.model.device), settings.temperature)
        self.average = AveragedModel(self.model) if settings.average_from else None

    # --- an update, from top to bottom ---

    def training_step(self, model, inputs: list[dict], num_items_in_batch=None) -> torch.Tensor:
        """The gradient of an update on the problems `inputs`; returns the loss. Trainer then clips the gradient, takes
        a step of AdamW, and calls `log`."""
        if self.state.global_step % self.settings.num_iterations == 0:
            # 1. The problems are the next of the run's order, or what the curriculum draws
            batch = problems(pd.DataFrame(inputs))
            if self.curriculum:
                batch = self.curriculum.draw(self.settings.problems_per_step, self.state.global_step)
            # 2. to 5. Rollouts, their scores and advantages, laid out in micro-batches
            self._rollouts(batch)
        else:  # a further update on the rollouts of the last one, by a policy that has moved on
            self._seconds, self._scored = dict.fromkeys(self._seconds, 0.0), time.perf_counter()
        # 6. The gradient
        return self._differentiate(model.train())

    def _rollouts(self, batch: list[Problem]) -> None:
        """Sample a group of rollouts per problem, score it, and lay all of them out for the gradient."""
        settings, k, tokenizer = self.settings, self.settings.group_size, self.processing_class
        # 2. Sample, seeded by the step alone: a resumed run draws what the uninterrupted one would have drawn
        began = time.perf_counter()
        prompts = [tokenizer(render_prompt(p.nums, p.target, self.prompt_style)).input_ids for p in batch]
        generator = torch.Generator(self.model.device)
        generator.manual_seed(settings.seed * 1_000_003 + self.state.global_step)
        sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
        with self.accelerator.autocast():
            out = ENGINES[settings.engine](self.model, prompts, k, sampling, tokenizer.eos_token_id, generator)
        sampled = time.perf_counter()
        # 3. Score, a group at a time: some rewards compare the completions of a problem
        texts = tokenizer.batch_decode(out.ids, skip_special_tokens=True)
        scores = [score_group(self.reward, texts[i * k : i * k + k], problem) for i, problem in enumerate(batch)]
        rewards = torch.tensor([[score.total for score in group] for group in scores])
        correct = [self.is_correct(text, batch[i // k]) for i, text in enumerate(texts)]
        # 4. Compare each rollout with its group: the advantages, (problems, K)
        kept = [not settings.mask_truncated or finish != "length" for finish in out.finish]
        known = [torch.tensor(row).view(-1, k) for row in (correct, [sum(row) for row in out.logprobs], kept)]
        advantages = advantages_of(rewards, *known, **settings.shaping(self.state.global_step))
        self._scored = time.perf_counter()
        parts = pd.DataFrame([score.parts for group in scores for score in group]).mean()
        self._sampled = {
            "reward": rewards.mean().item(),
            **{f"reward_{name}": value for name, value in parts.items()},
            "accuracy": float(np.mean(correct)),
            "completion_length": float(np.mean([len(ids) for ids in out.ids])),
            "truncated": out.finish.count("length") / len(texts),
            "frac_zero_std": (advantages == 0).all(-1).float().mean().item(),
        }
        if self.curriculum:
            of_problems = (advantages.abs(), known[0].float())
            self._sampled |= self.curriculum.learn(*(values.mean(-1).tolist() for values in of_problems))
        self._seconds = {"seconds_generation": sampled - began, "seconds_reward": self._scored - sampled}
        self._lay_out(prompts, out, advantages.flatten().to(self.model.device))

    def _lay_out(self, prompts: list[list[int]], out: Rollouts, advantages: torch.Tensor) -> None:
        """Micro-batches of the rollouts that a gradient is taken of, by length, to save padding."""
        k = self.settings.group_size
        # 5. A prompt is read once for its whole group, but for its last token, behind which the completions stand
        self._prompts = {"ids": self._padded(ids[:-1] for ids in prompts)}
        self._prompts["attention"] = self._padded([1] * (len(ids) - 1) for ids in prompts)
        with torch.no_grad():
            frozen = None if self.reference is None else self._read_prompts(self.reference)
        rows, weights, ref_weights = self._differentiated(advantages.cpu().numpy())
        lengths = np.array([len(ids) for ids in out.ids])
        self._micro_batches = []
        pieces = math.ceil(len(rows) / self.settings.micro_batch)
        for chosen in np.array_split(np.argsort(lengths[rows], kind="stable"), pieces):
            some: dict = self._collate(
                [(i // k, prompts[i // k][-1], out.ids[i], out.logprobs[i]) for i in rows[chosen]]
            )
            for name, values in (("row_weights", weights), ("ref_weights", ref_weights)):
                some[name] = torch.as_tensor(values[chosen], dtype=torch.float32, device=advantages.device)
            some |= {"samples": len(lengths), "tokens": lengths.sum(), "advantages": advantages[rows[chosen]]}
            # the reference never changes, so it reads a rollout once for all updates on it
            self._micro_batches.append(some | self._reference_logps(frozen, some))

    def _differentiate(self, model) -> torch.Tensor:
        """Add the gradient of the update's loss to the model's parameters; the loss.

        A prompt is read once for all its completions. Micro-batches take its keys and values as leaves, and the
        gradients that gather in these go through the prompts last, as many prompts at a time as a micro-batch has rows.
        """
        coefficients = {name: getattr(self.settings, name) for name in ("importance_cap", "entropy_coef", "kl_coef")}
        # 6a. Keys and values of the prompts, cut off from the model
        with torch.no_grad():
            leaves = self._read_prompts(model)
        for leaf in leaves:
            leaf.requires_grad_()
        # 6b. log pi, loss and gradient of each micro-batch; its metrics add up to those of the update
        self._row, total = dict(self._sampled), torch.zeros((), device=model.device)
        for batch in self._micro_batches:
            logps, entropies = self._logps(model, leaves, batch)
            terms = {name: value for name, value in batch.items() if name not in ("prompt", "ids", "labels")}
            loss, metrics = rloo_loss(logps, entropies, **coefficients, **terms)
            self.accelerator.backward(loss)
            total += loss.detach()
            for name, value in metrics.items():
                so_far = self._row.get(name, 0.0)
                self._row[name] = max(so_far, value) if name == "importance_max" else so_far + value
        # 6c. The gradients of keys and values, through the prompts into the model
        for start in range(0, len(self._prompts["ids"]), self.settings.micro_batch):
            some = slice(start, start + self.settings.micro_batch)
            gradients = [leaf.grad[some] for leaf in leaves]  # pyright: ignore[reportOptionalSubscript]
            torch.autograd.backward(self._read_prompts(model, some), gradients)
        return total

    def log(self, logs, start_time=None):
        """What follows an update: its row of metrics.csv, and the average of the weights."""
        if "loss" not in logs:  # the summary at the end
            return
        self.check_finite(logs)
        if self.average and self.state.global_step >= self.settings.average_from:
            self.average.update_parameters(self.model)
        seconds = self._seconds | {"seconds_update": time.perf_counter() - self._scored}
        row = {"loss": logs["loss"], **self._row, "grad_norm": logs["grad_norm"]}
        if self.eval_problems and self.state.global_step % self.settings.eval_every == 0:
            row |= self.held_out()
        self.add(row | {name: round(value, 3) for name, value in seconds.items()})

    # --- what the update is made of ---

    def _differentiated(self, advantages: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rollouts of an update that a gradient is taken of, in ascending order; how many each stands for in
        entropy and metrics; and in KL, where the reference reads only those above 0.

        All whose advantage (N,) is not 0, and a random share of the others, drawn from [seed, step] alone. Each draw is
        uniform, so with these weights sums over all keep their mean.
        """
        settings, rng = self.settings, np.random.default_rng([self.settings.seed, self.state.global_step])
        live, idle = np.flatnonzero(advantages), rng.permutation(np.flatnonzero(advantages == 0))
        idle = idle[: math.ceil(settings.idle_share * len(idle))]
        weights = np.ones(len(advantages))
        weights[idle] = (len(advantages) - len(live)) / max(len(idle), 1)
        rows = np.sort(np.concatenate([live, idle]))
        read = math.ceil(settings.reference_share * len(rows))
        ref_weights = np.zeros(len(rows))
        ref_weights[rng.permutation(len(rows))[:read]] = len(rows) / read
        return rows, weights[rows], weights[rows] * ref_weights

    def _padded(self, rows: Iterable) -> torch.Tensor:
        """Rows of numbers, padded on the right with 0 to the longest."""
        return pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True).to(self.model.device)

    def _collate(self, rollouts: list[tuple[int, int, list[int], list[float]]]) -> dict[str, torch.Tensor]:
        """(index of the prompt, its last token, completion ids, log mu) of rollouts -> tensors.

        prompt: (B,), an index of `_prompts`. ids (what is read), labels (the completion), mask, sampler_logps and
        token_weights: (B, T), padded on the right; column t belongs to the prediction of the completion's token t.
        """
        which, last, ids, logps = zip(*rollouts, strict=True)
        tensors = {
            "prompt": torch.tensor(which, device=self.model.device),
            "ids": self._padded([token, *row[:-1]] for token, row in zip(last, ids, strict=True)),
            "labels": self._padded(ids),
            "mask": self._padded([1.0] * len(row) for row in ids),
            "sampler_logps": self._padded(logps),
        }
        if self.token_weights is not None:
            tensors["token_weights"] = self._padded(map(self.token_weights, ids)).float()
        return tensors

    def _read_prompts(self, model, which: slice = slice(None)) -> list[torch.Tensor]:
        """Keys and values of prompts of the update but for their last tokens: of every layer (prompts, heads, P,
        width)."""
        ids, attention = self._prompts["ids"][which], self._prompts["attention"][which]
        with self.accelerator.autocast():
            cache = model.base_model(ids, attention_mask=attention, use_cache=True)
        return [part for layer in cache.past_key_values.layers for part in (layer.keys, layer.values)]

    def _logps(self, model, read: list[torch.Tensor], rows: dict) -> tuple[torch.Tensor, Any]:
        """log pi of the completions behind prompts that are `read`, and entropies (but of the reference): (B, T)."""
        own = [part[rows["prompt"]] for part in read]
        seen, mask = self._prompts["attention"][rows["prompt"]], rows["mask"].long()
        with self.accelerator.autocast():
            out = model(
                rows["ids"],
                attention_mask=torch.cat([seen, mask], 1),
                position_ids=seen.sum(-1, keepdim=True) + torch.arange(mask.shape[1], device=mask.device),
                past_key_values=DynamicCache(zip(own[::2], own[1::2], strict=True)),
                shift_labels=rows["labels"].masked_fill(mask == 0, -100),
                fused_lm_head=True,
            )
        return out.log_probs, out.entropy

    def _reference_logps(self, frozen: list[torch.Tensor] | None, batch: dict) -> dict[str, torch.Tensor]:
        """ref_logps, log pi of the frozen reference (B, T): 0 but in rows with a weight, which alone it reads."""
        if frozen is None:
            return {}
        result, read = torch.zeros_like(batch["sampler_logps"]), batch["ref_weights"] > 0
        if read.any():
            longest = int(batch["mask"][read].sum(-1).max())
            rows = {name: batch[name][read, :longest] for name in ("ids", "labels", "mask")}
            rows["prompt"] = batch["prompt"][read]
            with torch.no_grad():
                result[read, :longest], _ = self._logps(self.reference, frozen, rows)
        return {"ref_logps": result}

    # --- what a checkpoint keeps, and what is saved ---

    def _save_checkpoint(self, model, trial):
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if self.curriculum:
                (folder / "curriculum.json").write_text(json.dumps(self.curriculum.state))
            if self.average:
                torch.save(self.average.state_dict(), folder / "average.pt")
        super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, checkpoint, model=None):
        super()._load_from_checkpoint(checkpoint, model)
        if self.curriculum:
            self.curriculum.state = json.loads((Path(checkpoint) / "curriculum.json").read_text())
        if self.average:
            self.average.load_state_dict(torch.load(Path(checkpoint) / "average.pt"))

    def policy(self):
        return self.average.module if self.average else self.model


def schedule(count: int, draws: int, seed: int) -> np.ndarray:
    """`draws` indices out of `count`: one random permutation after another."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(count) for _ in range(math.ceil(draws / count))])[:draws]


def train_rloo(
    policy: Policy,
    train_problems: Dataset,
    reward: Reward,
    folder: str | Path,
    settings: RLOOSettings,
    **options,
) -> None:
    """Train on `train_problems` (columns nums, target) with `reward`; the policy goes to `folder`/checkpoint.

    metrics.csv, a row a step: loss, reward, reward_<part>, accuracy (the verifier's, apart from the
    reward), completion_length, truncated (share cut at the cap), frac_zero_std (share of groups that teach nothing:
    all of their advantages are 0), entropy, importance_mean, importance_max, importance_log
    (mean of its log, not capped), kl, grad_norm, seconds_generation, seconds_reward, seconds_update. `options` are
    RLOOTrainer's. With `eval_problems`: eval_accuracy and eval_<name> of each of `eval_rewards`, and
    eval_entropy, every `eval_every` steps. With a curriculum: bucket<k>, how probable bucket k was. A run
    that was interrupted resumes from `folder`/trainer.
    """
    folder, (model, tokenizer) = Path(folder), _load(policy)
    batches = settings.steps // settings.num_iterations
    order = schedule(len(train_problems), batches * settings.problems_per_step, settings.seed)
    order = order.reshape(batches, -1).repeat(settings.num_iterations, axis=0).flatten()  # updates that share rollouts
    in_order = train_problems.select_columns(["nums", "target"]).select(order)
    trainer = RLOOTrainer(model, tokenizer, in_order, reward, folder, settings, **options)
    longest = max((render_prompt(p.nums, p.target, trainer.prompt_style) for p in problems(in_order)), key=len)
    length = len(tokenizer(longest).input_ids) + settings.max_tokens
    taken = MEMORY_SHARE * (settings.engine == "vllm" and torch.cuda.is_available())
    trainer.check_memory(settings.micro_batch, length, reference=bool(settings.kl_coef), taken=taken)
    trainer.fit(folder, settings.steps, "RLOO", ("reward", "accuracy"))


def _load(policy: Policy) -> tuple:
    return policy if isinstance(policy, tuple) else load_policy(policy)
