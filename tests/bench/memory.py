"""`python -m tests.bench.memory gpu24 22`: the memory that a profile's training runs are predicted
to take on a GPU.

By `model.training_memory`, as a run says it before it trains, for the real shape of the base model
and prompts of PROMPT tokens at most. The second number is the GiB of the card. RLOO's micro-batch
is the profile's own; SFT and preference training take the largest that fits. Nothing is allocated.
"""

import sys
from unittest.mock import patch

import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import lib.learn.model
from lib.learn.generation import MEMORY_SHARE
from lib.runs.plan import Project
from tests.bench.bench_gpu import FULL

PROMPT = 200  # tokens of the longest prompt, that of style `words`
SMOL = {  # HuggingFaceTB/SmolLM2-135M's config.json
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
TRAINERS = {"10_train_sft": "SFT", "11_train_rloo": "RLOO", "13_train_preference": "preference"}


def base(project: Project, profile: str):
    """A model of the shape of a profile's base, without memory for it."""
    init = project.declarations.profiles[profile].notebooks["10_train_sft"]["init"]
    with torch.device("meta"):
        if init == "HuggingFaceTB/SmolLM2-135M":
            return LlamaForCausalLM(LlamaConfig(**SMOL, tie_word_embeddings=True))
        return Qwen2ForCausalLM(Qwen2Config(**FULL, tie_word_embeddings=True))


def predicted(profile: str, card: float) -> pd.DataFrame:
    """One row per training run: trainer, rows and tokens of a micro-batch, accumulation steps, GiB,
    and the GiB that are there (where vLLM draws, it holds its share of the card)."""
    project = Project()
    rows = []
    model = base(project, profile)
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(lib.learn.model, "machine_memory", lambda: card * 2**30),
    ):
        for spec in project.specs(profile).values():
            if spec.notebook not in TRAINERS:
                continue
            trainer = TRAINERS[spec.notebook]
            params = spec.params
            length = PROMPT + params.get("max_tokens", 1024)
            texts = 2 * length if trainer == "preference" else length  # both sides of a pair
            reference = trainer != "SFT"
            batch = params.get("batch_size", 0)
            fitted = params.get("micro_batch") or lib.learn.model.max_micro_batch(
                model, batch, texts, reference
            )
            whole = batch or params["problems_per_step"] * params["group_size"]
            needed = lib.learn.model.training_memory(model, fitted, texts, reference) / 2**30
            there = card * (1 - MEMORY_SHARE * (params.get("engine") == "vllm"))
            rows.append((spec.name, trainer, fitted, texts, whole // fitted, needed, there))
    columns = ["run", "trainer", "rows", "tokens", "accumulation", "GiB", "there"]
    return pd.DataFrame(rows, columns=columns).set_index("run")


if __name__ == "__main__":
    table = predicted(sys.argv[1], float(sys.argv[2]))
    print(table.round(1).to_string())
