"""Seconds of the paper's RLOO update at full size, by phase, on a GPU: `make bench-gpu`; `SIZE=tiny` tries it on a CPU.

The model is a randomly initialised Qwen2.5-0.5B (0.49 billion parameters, 151,936 words), an update 128 problems x 8
rollouts of at most 1,024 tokens. Random weights end a text once in 150,000 tokens: every rollout is as long as it may
be, which is the most that an update can cost. Prompts are our own tokenizer's, about 40 tokens.
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from lib.model import build_tokenizer, training_memory
from lib.problem import load
from lib.rewards import get_reward
from lib.training import train_rloo
from tests.test_training import quick

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
SIZES = {
    "full": (FULL, {"problems_per_step": 128, "group_size": 8, "micro_batch": 8, "max_tokens": 1024}),
    "tiny": (
        FULL | {"vocab_size": 2000, "hidden_size": 28, "intermediate_size": 76, "num_hidden_layers": 2},
        {"problems_per_step": 2, "group_size": 4, "micro_batch": 4, "max_tokens": 24},
    ),
}


def measure(size: str, engine: str) -> pd.Series:
    """The median update of three, after a first one; tokens are those of completions."""
    shape, batch = SIZES[size]
    tokenizer, settings = build_tokenizer(), quick(steps=4, **batch, engine=engine, idle_share=1.0, reference_share=1.0)
    torch.manual_seed(0)
    if cuda := torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id))
    problems = load("3to4", "train").select(range(4 * settings.problems_per_step))
    with tempfile.TemporaryDirectory() as folder:
        train_rloo((model, tokenizer), problems, get_reward("sparse"), folder, settings)
        table = pd.read_csv(Path(folder) / "metrics.csv")[1:]
    seconds = {phase: table[f"seconds_{phase}"].median() for phase in PHASES}
    rollouts, length = settings.problems_per_step * settings.group_size, table["completion_length"].median()
    work = 8 * model.num_parameters() * rollouts * length / 1e12  # forward, backward, and the reference's forward pass
    estimate = training_memory(model, settings.micro_batch, 40 + settings.max_tokens, True)
    row = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "parameters": model.num_parameters(),
        "rollouts": rollouts,
        "tokens a rollout": length,
        "seconds an update": round(sum(seconds.values()), 2),
        **{f"seconds of {phase}": round(value, 2) for phase, value in seconds.items()},
        "tokens/s drawn": round(rollouts * length / seconds["generation"]),
        "tokens/s learned from": round(rollouts * length / seconds["update"]),
        "TFLOP/s of the update": round(work / seconds["update"], 3),
        "peak GiB of torch": round(torch.cuda.max_memory_allocated() / 2**30, 1) if cuda else None,
        "GiB estimated": round(estimate / 2**30, 1),
        "mean importance weight": round(table["importance_mean"].iloc[-1], 4),
    }
    return pd.Series(row)


def main(size: str = "full", target: str = "") -> None:
    if size == "full" and not torch.cuda.is_available():
        sys.exit(
            "no GPU is here: the full size needs one with 80 GB; `make bench-gpu SIZE=tiny` tries the same on a CPU"
        )
    engines = ["transformers", *(["vllm"] if find_spec("vllm") else [])]
    table = pd.DataFrame({engine: measure(size, engine) for engine in engines})
    print(table.to_string())
    if "vllm" not in engines:
        print("vLLM is not installed: measured with our decode loop alone")
    for name, peak in PEAK.items():
        if name in table.loc["device"].iloc[0]:
            shares = ", ".join(
                f"{engine} {table.loc['TFLOP/s of the update', engine] / peak:.0%}" for engine in engines
            )
            print(f"update, of the {peak} TFLOP/s that the card can: {shares}")
    if target:
        table.rename_axis("quantity").to_csv(target)
        print(f"written to {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
