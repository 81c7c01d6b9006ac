"""The parameters of the notebooks: the bounds of each, and the conditions that those of a trainer
must meet together.

The type of a field states its bounds, and the comment after it its meaning. Trainers' parameters
have no defaults here; their values are set in the notebook's parameters cell. Nothing in this file
needs torch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from lib.files import nearest

Count = Annotated[int, Field(ge=1, le=10**6)]
Whole = Annotated[int, Field(ge=0, le=10**6)]
Tokens = Annotated[int, Field(ge=1, le=8192)]
# leave-one-out needs at least one other rollout of the problem
Group = Annotated[int, Field(ge=2, le=10**5)]
Positive = Annotated[float, Field(gt=0, le=1e6)]  # all bounds are finite, which excludes nan
Weight = Annotated[float, Field(ge=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]  # a share that must not be 0
# logits are divided by it, and must stay finite
Temperature = Annotated[float, Field(ge=0.01, le=1e6)]
OrGreedy = Temperature | Annotated[float, Field(ge=0, le=0)]  # 0 takes the most probable token
Engine = Literal["transformers", "vllm"]  # keys of lib.learn.generation.ENGINES
# a type that pydantic knows, which is no class if it has bounds
Kind = Any
# the options that each entry of lib.learn.losses.ADVANTAGES needs, and their bounds
ADVANTAGES: dict[str, dict[str, Kind]] = {
    "leave_one_out": {},
    "pass_at_k": {"k": Count},
    "max_rl": {},
    "grpo": {},
    "f_grpo": {"gamma": Weight},
}


def _advantage(name: str) -> str:
    if name not in ADVANTAGES:
        raise ValueError(f"there is no such advantage{nearest(name, ADVANTAGES)}")
    return name


Advantage = Annotated[str, AfterValidator(_advantage)]


class Settings(BaseModel):
    """Base of the settings. Raises ValueError with a sentence for each value that is out of
    bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: object):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(
                f"{type(self).__name__}: {explain(error, type(self).model_fields)}"
            ) from error

    @classmethod
    def of(cls, parameters: Mapping[str, object]) -> Self:
        """The settings among a notebook's parameters: `RLOOSettings.of(globals())`. Raises
        ValueError."""
        return cls(**{name: parameters[name] for name in cls.model_fields if name in parameters})


class Sampling(Settings):
    """How tokens are drawn. The defaults sample from the policy itself, without top-k or top-p."""

    max_tokens: Tokens  # cap of a completion
    temperature: OrGreedy = 1.0
    top_p: Part = 1.0  # nucleus sampling, applied after top_k
    top_k: Whole = 0  # most probable tokens kept; 0: all


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class SearchSettings:
    """The budget B/K, how tags are drawn, and the value of Eq. 10: rerank is none, executor, binary
    or soft (`lib.game.mdp.q_values`) or learned (`lib.learn.search.learned_values`), and `weight`
    is lambda. cascade: several budgets in place of B/K, until a game is won; "16 x 1/1, 16/16" is
    sixteen single games, one after the other, and then a search. redraws: how often a tag that
    names no legal action is drawn again."""

    beams: int = 16
    samples: int = 16
    temperature: OrGreedy = 0.6
    top_p: Part = 0.95
    top_k: Whole = 20
    max_tokens: Tokens = 32
    rerank: Literal["none", "executor", "binary", "soft", "learned"] = "none"
    weight: Weight = 1.0
    alpha: Share = 0.2
    beta: Weight = 0.05
    cascade: str = ""
    redraws: Whole = 0

    def __post_init__(self):
        if any(min(budget) < 1 for budget in self.budgets):
            budget = self.cascade or f"{self.beams}/{self.samples}"
            raise ValueError(f"budget {budget}: at least one path and one sample are needed")

    @property
    def budgets(self) -> list[tuple[int, int]]:
        """B/K of each search, in order."""
        if not self.cascade:
            return [(self.beams, self.samples)]
        matches = [
            re.fullmatch(r"(?:(\d+) x )?(\d+)/(\d+)", stage) for stage in self.cascade.split(", ")
        ]
        if not all(matches):
            raise ValueError(
                f"cascade={self.cascade!r} is not a list of budgets such as '16 x 1/1, 16/16'"
            )
        return [
            (int(match[2]), int(match[3]))
            for match in matches
            if match
            for _ in range(int(match[1] or 1))
        ]

    @property
    def sampling(self) -> Sampling:
        return Sampling.of(asdict(self))


class Optimisation(Settings):
    """What every trainer needs: AdamW, clipping, and how often the policy is evaluated and
    saved."""

    learning_rate: Positive
    weight_decay: Weight
    max_grad_norm: Positive  # gradients are clipped to this norm
    eval_every: Count  # updates between two evaluations on held-out problems or rows
    save_every: Count  # updates between two checkpoints to resume from
    seed: Whole


class SFTSettings(Optimisation):
    """Hyperparameters of supervised fine-tuning."""

    epochs: Count
    batch_size: Count  # demonstrations per update
    warmup_steps: Whole  # updates
    # of the learning rate, by its name in transformers
    schedule: Literal["cosine", "linear", "constant"]
    end_token: bool  # whether the end token of a completion is learned
    log_every: Count  # updates between two rows of metrics.csv

    @model_validator(mode="after")
    def fits(self) -> Self:
        for name in ("eval_every", "save_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not a multiple of log_every={self.log_every}"
                )
        return self


class RLOOSettings(Optimisation):
    """Hyperparameters of RLOO. The policy is the model at `temperature`, both in sampling and in
    the loss. To save time, entropy and KL use only a random `idle_share` of the rollouts whose
    advantage is 0, and KL only a random `reference_share` of what is left; both are reweighted, so
    they stay unbiased."""

    steps: Count  # updates
    problems_per_step: Count
    group_size: Group  # rollouts of each problem
    num_iterations: Count  # successive updates that share their rollouts
    max_tokens: Tokens  # cap of a rollout
    temperature: Temperature
    engine: Engine  # the engine that draws the rollouts
    # first updates, over which the learning rate rises from 0, which is that of the first update
    warmup_steps: Whole
    # last updates, over which it falls, to 1 / decay_steps of learning_rate in the last one
    decay_steps: Whole
    # the policy is the mean of the trained weights from this update on; 0: the last weights
    average_from: Whole
    importance_cap: Positive  # cap of the importance weight of a rollout
    entropy_coef: Weight
    kl_coef: Weight  # coefficient of the KL per token to the policy from which training starts
    idle_share: Part
    reference_share: Part
    advantage: Advantage
    advantage_options: dict[str, Any]  # those of ADVANTAGES
    length_price: Weight  # price that a rollout of max_tokens tokens pays, apart from its reward
    micro_batch: Count  # at most this many rollouts per backward pass

    @model_validator(mode="after")
    def fits(self) -> Self:
        check_advantage(self.advantage, self.advantage_options, self.group_size)
        if self.warmup_steps + self.decay_steps > self.steps or self.average_from > self.steps:
            ends = f"warmup_steps={self.warmup_steps} and decay_steps={self.decay_steps}"
            raise ValueError(
                f"steps={self.steps} cannot hold {ends}, "
                f"or end before average_from={self.average_from}"
            )
        # batches of rollouts are whole
        if self.steps % self.num_iterations or self.save_every % self.num_iterations:
            multiples = f"steps={self.steps} and save_every={self.save_every}"
            raise ValueError(f"num_iterations={self.num_iterations} does not divide {multiples}")
        return self


def check_advantage(name: str, options: Mapping[str, Any], group_size: int) -> None:
    """Raises ValueError for options that an advantage does not have, lacks, or cannot have in
    groups of this size."""
    bounds = ADVANTAGES[name]
    for option in options:
        if option not in bounds:
            raise ValueError(
                f"advantage {name!r} has no option {option!r}{nearest(option, bounds)}"
            )
    for option, bound in bounds.items():
        if option not in options:
            raise ValueError(
                f"advantage {name!r} needs advantage_options with {option}, such as {{{option}: 2}}"
            )
        try:
            TypeAdapter(bound).validate_python(options[option], strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ValueError(
                f"advantage_options: {option} of {name!r} is {options[option]!r}: {reason}"
            ) from error
    if name == "pass_at_k" and options["k"] >= group_size:
        raise ValueError(
            f"advantage_options: k of 'pass_at_k' is {options['k']}, "
            f"and in groups of {group_size} it takes 1 to {group_size - 1}"
        )


class PreferenceSettings(Optimisation):
    """Hyperparameters of preference optimisation."""

    loss: Literal["ipo", "dpo"]  # one of lib.learn.losses.PREFERENCE
    beta: Positive  # the smaller it is, the further apart the sides of a pair are pushed
    steps: Count  # updates
    batch_size: Count  # pairs per update
    max_tokens: Tokens  # cap of a held-out completion


SETTINGS = (Sampling, SFTSettings, RLOOSettings, PreferenceSettings)
# all other parameters of the notebooks; their parameters cells say what each means
OTHERS: dict[str, Kind] = {
    **dict.fromkeys(
        ["problems", "demonstrations", "eval_demonstrations", "batch", "together"], Count
    ),
    **dict.fromkeys(["most_pairs", "hard_weight"], Count),
    **dict.fromkeys(["rows", "width", "shards", "threads", "worked_lines", "test_lines"], Count),
    **dict.fromkeys(["train_rows", "train_5num_rows", "train_low_rows"], Count),
    **dict.fromkeys(
        ["heldout_rows", "heldout_small_rows", "validation_rows", "validation_small_rows"], Count
    ),
    **dict.fromkeys(["test_rows", "level_rows", "sealed_rows", "sealed_restarts_rows"], Count),
    **dict.fromkeys(["limit", "five_numbers", "most_failures"], Whole),
    **dict.fromkeys(["updates", "replicates", "eval_problems", "trained", "followed"], Whole),
    "held_pairs": Whole,
    "moments": Annotated[list[Whole], Field(min_length=1)],
    "trials": list[str],
    **dict.fromkeys(["eta", "muon_lr", "adam_lr"], Positive),
    **dict.fromkeys(["give_up", "lost", "alpha"], Share),
    **dict.fromkeys(["checked", "open_rows", "bfloat16"], bool),
    **dict.fromkeys(["reward_options", "curriculum_options"], dict[str, Any]),
    "lora_r": Annotated[int, Field(ge=0, le=1024)],
    "lora_alpha": Count,
    "think_weight": Weight,
    "nums": list[Count],
    "numbers": Annotated[int, Field(ge=3, le=4)],  # of the problems of training set 3to4
    "hidden": Annotated[int, Field(ge=8, le=4096, multiple_of=8)],  # four heads of an even width
    "samples": Count,  # completions of a problem
    # what studies read: folders of runs, or patterns of them
    **dict.fromkeys(["sample_runs", "search_runs"], list[str] | str),
    "mixture": dict[str, Share],
    "source": Literal["generated", "hub"],
    "objective": Literal["expected", "pass2", "pass4", "pass16", "upto3", "upto15", "log", "rloo"],
    "estimator": Literal["", "rloo", "pkpo", "maxrl"],
}


def _parameter_bounds() -> dict[str, Kind]:
    """The bounds of each parameter; for a name in several settings, the union of their bounds."""
    kinds = dict(OTHERS)
    for settings in SETTINGS:
        hints = get_type_hints(settings, include_extras=True)
        for name in settings.model_fields:
            kinds[name] = kinds.get(name, hints[name]) | hints[name]
    return kinds


PARAMETERS = _parameter_bounds()


def explain(error: ValidationError, known: Iterable[str]) -> str:
    """One sentence for each parameter that pydantic refuses; an unknown one gets the nearest of the
    `known` names."""
    sentences: dict[int | str, str] = {}
    for detail in error.errors():
        # "" for parameters that do not fit together
        name = detail["loc"][0] if detail["loc"] else ""
        sentence = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "missing":
            sentence = f"{name} is missing: the parameters cell lacks it"
        elif detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            sentence = f"{name} is not known{nearest(str(name), known)}"
        elif name:
            sentence = f"{name} is {detail['input']!r}: {sentence}{_as_text(str(name), detail)}"
        sentences.setdefault(name, sentence)  # only the first error of each parameter
    return "; ".join(sentences.values())


def _as_text(name: str, detail: ErrorDetails) -> str:
    """How papermill passes a value that arrived as a text and should be something else; "" in any
    other case."""
    ways = {"bool_type": f"-p {name} True, or False", "dict_type": f"-y '{{{name}: {{tau: 2}}}}'"}
    if not isinstance(detail["input"], str) or detail["type"] not in ways:
        return ""
    return f", not a text; papermill passes it with {ways[detail['type']]}"


def model_of_all(extra: Mapping[str, Kind]) -> type[BaseModel]:
    """A model of all parameters at once, each of them optional, and of the `extra` ones by name."""
    kinds = PARAMETERS | dict(extra)
    fields: dict[str, Kind] = {name: (kind, None) for name, kind in kinds.items()}
    return create_model("Parameters", __config__=ConfigDict(strict=True, extra="ignore"), **fields)
