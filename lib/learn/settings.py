"""The parameters of the notebooks: the bounds of each, and how those of a trainer fit each other.

A bound stands at its field, and the field's meaning behind it. Trainers' parameters have no defaults here: their home
is the notebook's parameters cell. Nothing in this file needs torch.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from lib.files import nearest

Count = Annotated[int, Field(ge=1, le=10**6)]
Whole = Annotated[int, Field(ge=0, le=10**6)]
Tokens = Annotated[int, Field(ge=1, le=8192)]
Group = Annotated[int, Field(ge=2, le=10**5)]  # leave-one-out needs another rollout of the problem
Positive = Annotated[float, Field(gt=0, le=1e6)]  # finite bounds exclude nan
Weight = Annotated[float, Field(ge=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]  # a share above 0
Engine = Literal["transformers", "vllm"]  # keys of lib.learn.generation.ENGINES
Advantage = Literal["leave_one_out", "pass_at_k", "max_rl", "grpo", "f_grpo"]  # keys of lib.learn.losses.ADVANTAGES


class Settings(BaseModel):
    """Base of the settings. Raises ValueError with a sentence for each value that is out of bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(f"{type(self).__name__}: {explain(error, type(self).model_fields)}") from error

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """The settings among a notebook's parameters: `RLOOSettings.of(globals())`. Raises ValueError."""
        return cls(**{name: parameters[name] for name in cls.model_fields if name in parameters})

    @classmethod
    def required(cls) -> set[str]:
        """The names of the fields without a default."""
        return {name for name, field in cls.model_fields.items() if field.is_required()}


class Sampling(Settings):
    """How tokens are drawn. The defaults are the policy itself, without any cut."""

    max_tokens: Tokens  # of a completion
    temperature: Weight = 1.0  # 0 takes the most probable token
    top_p: Part = 1.0  # nucleus, cut after top_k
    top_k: Whole = 0  # most probable tokens kept; 0: all


class Optimisation(Settings):
    """What every trainer takes: AdamW, clipping, and how often it is evaluated and saved."""

    learning_rate: Positive
    weight_decay: Weight
    max_grad_norm: Positive  # gradients are clipped to this norm
    eval_every: Count  # updates between two evaluations on what is held out
    save_every: Count  # updates between two checkpoints to resume from
    seed: Whole


class SFTSettings(Optimisation):
    """Hyperparameters of supervised fine-tuning."""

    epochs: Count
    batch_size: Count  # demonstrations per update
    warmup_steps: Whole  # updates
    schedule: Literal["cosine", "linear", "constant"]  # of the learning rate, a transformers name
    end_token: bool  # whether the end of a completion is taught
    log_every: Count  # updates between two rows of metrics.csv

    @model_validator(mode="after")
    def fits(self) -> Self:
        for name in ("eval_every", "save_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(f"{name}={getattr(self, name)} is not a multiple of log_every={self.log_every}")
        return self


class RLOOSettings(Optimisation):
    """Hyperparameters of RLOO. The policy is the model at `temperature`, in sampling and in the loss alike. To save
    time, entropy and KL use a random `idle_share` of the rollouts without advantage, and KL a random `reference_share`
    of what is left, reweighted so that both estimates stay unbiased."""

    steps: Count  # updates
    problems_per_step: Count
    group_size: Group  # rollouts of each problem
    num_iterations: Count  # successive updates that share their rollouts
    max_tokens: Tokens  # cap of a rollout
    temperature: Positive
    engine: Engine  # draws the rollouts
    warmup_steps: Whole  # first updates, over which the learning rate rises
    decay_steps: Whole  # last updates, over which it falls to 0
    average_from: Whole  # the policy is the mean of the weights after this update and each later one; 0: the last ones
    importance_cap: Positive  # of the importance weight of a rollout
    entropy_coef: Weight
    kl_coef: Weight  # of the KL per token from the policy that training starts from
    idle_share: Part
    reference_share: Part
    advantage: Advantage
    pass_k: Count  # k of pass_at_k; 1 for the other advantages
    focal_gamma: Weight  # gamma of f_grpo
    length_price: Weight  # what a rollout of max_tokens tokens costs, beside its reward
    micro_batch: Count  # rollouts per backward pass, at most

    @property
    def rollouts(self) -> int:
        """Rollouts per update."""
        return self.problems_per_step * self.group_size

    @model_validator(mode="after")
    def fits(self) -> Self:
        most = self.group_size - 1 if self.advantage == "pass_at_k" else 1
        if self.pass_k > most:
            raise ValueError(f"pass_k={self.pass_k}: {self.advantage} in groups of {self.group_size} takes 1 to {most}")
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
        return self


class PreferenceSettings(Optimisation):
    """Hyperparameters of preference optimisation."""

    loss: Literal["ipo", "ipo_mean", "dpo"]  # of lib.learn.losses.PREFERENCE
    beta: Positive  # the smaller, the further apart the sides of a pair are pushed
    steps: Count  # updates
    batch_size: Count  # pairs per update
    max_tokens: Tokens  # cap of a held-out completion


class Notebooks(Settings):
    """The other parameters of all notebooks. None is required, and a name has one meaning in all of them."""

    # problems and policies
    source: Literal["generated", "hub"] = "generated"  # of problems, demonstrations or pairs
    nums: list[Count] = []  # of one problem
    probes: str = ""  # a run to whose problems training is restricted
    limit: Whole = 0  # problems taken from a set; 0: all
    skip: Whole = 0  # how many times as many problems as a run draws are passed over
    problems: Count = 1
    draws: Count = 1
    eval_problems: Whole = 0  # problems watched during training
    # demonstrations, pairs and actions
    demonstrations: Count = 1
    eval_demonstrations: Whole = 0
    five_numbers: Whole = 0  # demonstrations with five numbers
    most_failures: Whole = 0  # failing attempts in a demonstration, at most
    give_up: Share = 0.0  # share of the demonstrations that end in a near miss
    samples: Count | list | str = 1  # completions of a problem; folders, where a study reads them
    batch: Count = 1  # completions decoded at once
    most_pairs: Count = 1  # pairs of one problem or state
    hard_weight: Count = 1  # how many times a pair of a hard problem counts
    think_weight: Weight = 1.0  # of the reasoning's tokens in the policy gradient
    alpha: Share = 0.0  # of Q_soft (`agent` Eq. 9); of the second policy in a mixture
    beta: Positive = 1.0  # of Q_soft; of a preference loss
    eta: Positive = 1.0  # temperature of the distilled policy (`agent` Eq. 16)
    # searches
    value: str = ""  # a policy that says whether a state can be solved
    searches: list = []
    together: Count = 1  # problems searched at once
    # the exact study
    objective: Literal["expected", "pass4", "pass16", "log", "rloo"] = "expected"  # what the gradient raises
    updates: Whole = 0  # of the policy; 0: it is only evaluated
    numbers: Annotated[int, Field(ge=2, le=6)] = 3  # of a training problem
    replicates: Whole = 0  # estimates of the gradient at each stage of training
    # the base model
    rows: Count = 1  # rows of text
    width: Count = 1  # tokens per row
    shards: Count = 1
    mixture: dict[str, Share] = {}  # share of the rows for each kind of text
    threads: Count = 1
    muon_lr: Positive = 1.0
    adam_lr: Positive = 1.0


TRAINERS = (Sampling, SFTSettings, RLOOSettings, PreferenceSettings)
SIZES = [  # of the problem sets, and of the tests of base text
    *("sealed_rows", "train_rows", "train_5num_rows", "heldout_rows", "heldout_small_rows", "validation_rows"),
    *("validation_small_rows", "test_rows", "level_rows", "worked_lines", "test_lines"),
]


def _of_any() -> dict[str, Any]:
    """The bound of each parameter; of a name in several settings, the union of their bounds."""
    kinds: dict[str, Any] = dict.fromkeys(SIZES, Count)
    for settings in (*TRAINERS, Notebooks):
        for name, field in settings.model_fields.items():
            kind = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            kinds[name] = kinds[name] | kind if name in kinds and kinds[name] != kind else kind
    return kinds


PARAMETERS = _of_any()


def explain(error: ValidationError, known: Mapping[str, Any]) -> str:
    """One sentence per parameter that pydantic refuses; an unknown one gets the nearest of the `known` names."""
    sentences: dict[Any, str] = {}
    for one in error.errors():
        place = [part for at, part in enumerate(one["loc"]) if not at or not _is_kind(part)]
        name = place[0] if place else ""
        if one["type"] == "missing":
            why = f"{name} is missing: the parameters cell lacks it"
        elif one["type"] == "extra_forbidden":
            why = f"{name} is not known{nearest(str(name), known)}"
        elif one["type"] == "value_error" and not place:
            why = one["msg"].removeprefix("Value error, ")
        else:
            where = ".".join(map(str, dict.fromkeys((place[0], place[-1]))))
            why = f"{where} is {one['input']!r}: {one['msg'].removeprefix('Value error, ')}"
        sentences.setdefault(name, why)  # the first of each parameter
    return "; ".join(sentences.values())


def _is_kind(part: str | int) -> bool:
    """Whether a part of an error's location is pydantic's name of a type, or its word for a key, and not a key."""
    kinds = ("[key]", "int", "float", "str", "bool")
    return isinstance(part, str) and (part in kinds or "constrained-" in part or "[" in part)


def loosely(extra: Mapping[str, Any]) -> type[BaseModel]:
    """A model of all parameters at once, each of them optional, and of `extra` ones by name."""
    fields: dict[str, Any] = {name: (kind, None) for name, kind in {**PARAMETERS, **extra}.items()}
    return create_model("Parameters", __config__=ConfigDict(strict=True, extra="ignore"), **fields)
