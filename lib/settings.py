"""Settings of a run: frozen dataclasses without defaults. A number's one home is the notebook's parameters cell.

Nothing here needs torch: the grid is held to these rules before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

import numpy as np

Engine = Literal["transformers", "vllm"]  # keys of lib.generation.ENGINES
Advantage = Literal["leave_one_out", "pass_at_k", "pass_at_k_normalised"]  # of lib.losses.ADVANTAGES


class Settings:
    """Base of the settings dataclasses."""

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """The settings among a notebook's parameters: `RLOOSettings.of(globals())`.

        Raises ValueError with the names of settings that are no parameters.
        """
        names = [field.name for field in fields(cls)]  # pyright: ignore[reportArgumentType]
        if missing := [name for name in names if name not in parameters]:
            raise ValueError(f"{cls.__name__}: the parameters cell lacks {', '.join(missing)}")
        return cls(**{name: parameters[name] for name in names})


@dataclass(frozen=True, kw_only=True)
class SFTSettings(Settings):
    """Hyperparameters of supervised fine-tuning; `schedule` is transformers' name of one. Without `end_token` a
    completion is taught without its end."""

    learning_rate: float
    epochs: int
    batch_size: int
    warmup_steps: int
    schedule: str
    end_token: bool
    weight_decay: float
    max_grad_norm: float
    log_every: int
    eval_every: int
    save_every: int
    seed: int

    def __post_init__(self):
        for name in ("eval_every", "save_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(f"{name}={getattr(self, name)} is not a multiple of log_every={self.log_every}")


@dataclass(frozen=True, kw_only=True)
class RLOOSettings(Settings):
    """Hyperparameters of RLOO.

    An update takes `problems_per_step` problems, `group_size` rollouts each, drawn by `engine`, in micro-batches of at
    most `micro_batch` rollouts. `num_iterations` successive updates, of the `steps` in all, share their rollouts. The
    policy is the model at `temperature`, in sampling and in the loss alike. A rollout whose advantage is 0 has no
    policy gradient: a random `idle_share` of these rollouts stands for all of them in entropy and KL, and a random
    `reference_share` of what is left in KL. Both estimates stay unbiased; shares of 1 leave nothing out.

    The learning rate rises in the first `warmup_steps` updates, is constant, and falls to 0 in the last `decay_steps`.
    The policy that is saved is the mean of the weights behind update `average_from` and each one after it; of the last
    update alone where that is 0.

    From `advantage` to `smoothing`: see `advantages_of`; its k goes from `pass_k` to `pass_k_end` over the run. With
    `mask_truncated` rollouts cut at the cap are not kept: they have no advantage, and stand in entropy and KL alone.
    """

    steps: int
    problems_per_step: int
    group_size: int
    num_iterations: int
    max_tokens: int
    temperature: float
    learning_rate: float
    warmup_steps: int
    decay_steps: int
    average_from: int
    weight_decay: float
    max_grad_norm: float
    importance_cap: float
    entropy_coef: float
    kl_coef: float
    idle_share: float
    reference_share: float
    advantage: str
    pass_k: int
    pass_k_end: int
    positive_weight: float
    unlikeliness: float
    smoothing: float
    mask_truncated: bool
    micro_batch: int
    engine: str
    eval_every: int
    save_every: int
    seed: int

    @property
    def rollouts(self) -> int:
        """Of an update."""
        return self.problems_per_step * self.group_size

    def shaping(self, step: int) -> dict[str, Any]:
        """The options of `advantages_of` in update `step`, from 0."""
        k = round(np.interp(step, [0, max(self.steps - 1, 1)], [self.pass_k, self.pass_k_end]))
        names = ("advantage", "positive_weight", "unlikeliness", "smoothing")
        return {name: getattr(self, name) for name in names} | {"k": k}

    def __post_init__(self):
        for name, choices in (("engine", get_args(Engine)), ("advantage", get_args(Advantage))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known: choose from {', '.join(choices)}")
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature}: training draws at random")
        if self.group_size < 2:
            raise ValueError(f"group_size={self.group_size}: leave-one-out needs two rollouts of a problem")
        ks, room = (self.pass_k, self.pass_k_end), 2 if self.advantage == "leave_one_out" else self.group_size
        if not 1 <= min(ks) <= max(ks) < room:
            raise ValueError(
                f"pass_k, pass_k_end={ks}: {self.advantage} in groups of {self.group_size} has 1 to {room - 1}"
            )
        if self.warmup_steps + self.decay_steps > self.steps or self.average_from > self.steps:
            raise ValueError(
                f"steps={self.steps} cannot hold warmup_steps={self.warmup_steps} and decay_steps={self.decay_steps}, "
                f"or end before average_from={self.average_from}"
            )
        if self.rollouts % self.micro_batch:
            raise ValueError(
                f"micro_batch={self.micro_batch} does not divide the {self.rollouts} rollouts of an update "
                "(problems_per_step * group_size)"
            )
        if self.steps % self.num_iterations or self.save_every % self.num_iterations:
            raise ValueError(
                f"num_iterations={self.num_iterations} does not divide steps={self.steps} and "
                f"save_every={self.save_every}: a run ends, and resumes, between two batches of rollouts"
            )
        for name in ("idle_share", "reference_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: a share is above 0 and at most 1")
