"""Seconds and memory of profile `paper`'s RLOO update at full size, by phase: `make bench-gpu`, on
a GPU of 80 GB.

The settings are those of the profile's rloo/sparse, the model is a randomly initialised
Qwen2.5-0.5B (0.49 billion parameters, 151,936 words). Random weights end a text once in 150,000
tokens: every rollout is as long as it may be, which is the most that an update can cost. Prompts
are our own tokenizer's, about 40 tokens.

SIZE=gpu24: the update of profile `gpu24`, on a card of 16 to 24 GB. SIZE=cpu: one update of the
full model with few and short rollouts in the memory of an ordinary machine, saved checkpoint and
policy included; what breaks at that size breaks there first. SIZE=tiny: the same code in seconds.
"""

import os
import resource
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from lib.game.sets import load
from lib.learn.generation import ENGINES, MEMORY_SHARE
from lib.learn.model import build_tokenizer, machine_memory, training_memory
from lib.learn.rloo import RLOOSettings, train_rloo
from lib.rewards import get_reward
from lib.runs.plan import Project

PHASES = ["generation", "reward", "update"]
PEAK = {"H100": 989, "H200": 989, "A100": 312}  # dense bfloat16 TFLOP/s that the maker states
FULL = {  # Qwen/Qwen2.5-0.5B's config.json
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
}
SIZES = {  # shape, the profile whose settings an update has, what it has of its own
    "full": (FULL, "paper", {"steps": 4}),
    "gpu24": (FULL, "gpu24", {"steps": 4}),
    "cpu": (
        FULL,
        "paper",
        {"steps": 1, "problems_per_step": 2, "group_size": 2, "micro_batch": 2, "max_tokens": 48},
    ),
    "tiny": (
        FULL
        | {"vocab_size": 2000, "hidden_size": 28, "intermediate_size": 76, "num_hidden_layers": 2},
        "paper",
        {"steps": 4, "problems_per_step": 2, "group_size": 4, "micro_batch": 4, "max_tokens": 24},
    ),
}


def measure(size: str, engine: str) -> pd.Series:
    """The median update, but for the first where there are several; tokens are those of
    completions."""
    settings = settings_of(size, engine)
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    if cuda := torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    shape = SIZES[size][0]
    model = Qwen2ForCausalLM(
        Qwen2Config(**shape, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id)
    )
    problems = load("3to4", "train").select(range(settings.steps * settings.problems_per_step))
    began = time.perf_counter()
    spent = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        train_rloo((model, tokenizer), problems, get_reward("sparse"), folder, settings)
        table = pd.read_csv(Path(folder) / "metrics.csv").tail(max(settings.steps - 1, 1))
        saved = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    whole = time.perf_counter() - began
    spent = time.process_time() - spent
    row = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "parameters": model.num_parameters(),
        **speed(model, settings, table),
        "seconds in all": round(whole, 1),
        "CPU seconds in all": round(spent, 1),  # other work on the machine does not count
        "GiB at the peak": round(peak_memory() / 2**30, 1),
        "GiB estimated": round(estimated_memory(model, settings) / 2**30, 1),
        "GiB saved": round(saved / 2**30, 1),
        "mean importance weight": round(table["importance_mean"].iloc[-1], 4),
    }
    return pd.Series(row)


def settings_of(size: str, engine: str) -> RLOOSettings:
    """The profile's, with what this size has of its own."""
    _, profile, own = SIZES[size]
    measured = {"engine": engine, "eval_every": 1, "save_every": own["steps"]}
    usual = Project().specs(profile)["rloo/sparse/0"].params
    return RLOOSettings.of(usual | own | measured)


def speed(model, settings: RLOOSettings, table: pd.DataFrame) -> dict[str, float]:
    """Seconds of the median update in `table`, by phase, and what it does per second."""
    seconds = {phase: table[f"seconds_{phase}"].median() for phase in PHASES}
    rollouts = settings.problems_per_step * settings.group_size
    length = table["completion_length"].median()
    # forward, backward, and the reference's forward pass
    work = 8 * model.num_parameters() * rollouts * length / 1e12
    return {
        "rollouts": rollouts,
        "tokens a rollout": length,
        "seconds an update": round(sum(seconds.values()), 2),
        **{f"seconds of {phase}": round(value, 2) for phase, value in seconds.items()},
        "tokens/s drawn": round(rollouts * length / seconds["generation"]),
        "tokens/s learned from": round(rollouts * length / seconds["update"]),
        "TFLOP/s of the update": round(work / seconds["update"], 3),
    }


def peak_memory() -> float:
    """Bytes that the card held at most; without a card, those of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def estimated_memory(model, settings: RLOOSettings) -> float:
    """Bytes that we say an update takes."""
    estimate = training_memory(model, settings.micro_batch, 40 + settings.max_tokens, True)
    if torch.cuda.is_available() and settings.engine == "vllm":
        # its weights and its cache count at the peak, too
        estimate += MEMORY_SHARE * machine_memory()
    return estimate


def main(size: str = "full", target: str = "") -> None:
    if size in ("full", "gpu24") and not torch.cuda.is_available():
        sys.exit(
            f"no GPU is here, and size {size} needs one; `make bench-gpu SIZE=cpu` tries the "
            f"model on a CPU"
        )
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the runner does
    # vLLM's build for CPUs has no kernel for the heads of size tiny
    large = size in ("full", "gpu24")
    engines = [name for name in ENGINES if name != "vllm" or (find_spec("vllm") and large)]
    table = pd.DataFrame({engine: measure(size, engine) for engine in engines})
    print(table.to_string())
    if "vllm" not in engines:
        print(
            "measured with our decode loop alone: vLLM is not installed, or this size is for "
            "machines without a GPU"
        )
    for name, peak in PEAK.items():
        if name in table.loc["device"].iloc[0]:
            shares = ", ".join(
                f"{engine} {table.loc['TFLOP/s of the update', engine] / peak:.0%}"
                for engine in engines
            )
            print(f"update, of the {peak} TFLOP/s that the card can: {shares}")
    if target:
        table.rename_axis("quantity").to_csv(target)
        print(f"written to {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
