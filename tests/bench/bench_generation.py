"""Completions per core-second of our decode loop, side by side with transformers' `generate`, and
tokens of a larger model with packed weights and without, one thread.

Core-seconds, not seconds: other work on the machine does not count.
"""

import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lib.files import REFERENCE
from lib.game.prompts import render_prompt
from lib.game.sets import load
from lib.learn import decoder
from lib.learn.generation import Sampling, generate
from lib.learn.model import load_policy
from tests.bench import history

PROMPTS = 24
GROUP = 8
SEEDS = (1, 2, 3)
POLICY = REFERENCE / "cpu/sft/free/0"
DRAWS = {  # how tokens are drawn
    "training, temperature 1": {"temperature": 1.0},
    "evaluation, temperature 0.6": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
}
# the shape of SmolLM2-135M, whose speed does not depend on what its weights are
LARGE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
LARGE_TOKENS = 12  # of each completion
NEVER = 10**12  # parameters from which weights are packed


def main() -> None:
    model, tokenizer = load_policy(POLICY)
    rows = load("3to4", "validation_200").select(range(PROMPTS))
    prompts = [tokenizer(render_prompt(row["nums"], row["target"])).input_ids for row in rows]
    print(
        f"generation: {PROMPTS * GROUP} completions of the published SFT policy, at most 160 tokens"
    )
    for name, drawn in DRAWS.items():
        rates = side_by_side(model, tokenizer, prompts, drawn)
        ratio = rates["ours"] / rates["generate"]
        print(
            f"  {name:28} ours {rates['ours']:6.1f}/s   generate {rates['generate']:6.1f}/s   "
            f"{ratio:.2f} times"
        )
    beside_earlier_code(rates)
    packed_weights()


def side_by_side(model, tokenizer, prompts: list[list[int]], drawn: dict) -> dict[str, float]:
    """Completions per core-second of our decode loop and of `generate`, which draw tokens alike."""
    sampling = Sampling(max_tokens=160, **drawn)
    repeated = {"input_ids": [prompt for prompt in prompts for _ in range(GROUP)]}
    padded = tokenizer.pad(repeated, padding_side="left", return_tensors="pt")
    options = {"top_k": 0} | drawn

    def ours(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        generate(model, prompts, GROUP, sampling, tokenizer.eos_token_id, generator)

    def theirs(seed: int) -> None:
        torch.manual_seed(seed)
        model.generate(**padded, do_sample=True, max_new_tokens=160, **options)

    return rates_in_turns({"ours": ours, "generate": theirs})


def rates_in_turns(draws: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """Completions per core-second of functions that draw all of them from a seed, at the best of
    several turns; the first turn is not counted."""
    took = {label: [] for label in draws}
    for seed in (0, *SEEDS):
        for label, draw in draws.items():
            began = time.process_time()
            draw(seed)
            took[label].append(time.process_time() - began)
    return {label: PROMPTS * GROUP / min(times[1:]) for label, times in took.items()}


def beside_earlier_code(rates: dict[str, float]) -> None:
    """Print how fast these rates of evaluation are beside that of earlier code, where it runs."""
    before = history.then(history.SAMPLING, POLICY.resolve(), PROMPTS, GROUP, len(SEEDS))
    if before:
        times = ", ".join(f"{label} {rate / before:.2f}" for label, rate in rates.items())
        print(
            f"the code of commit {history.COMMIT} draws {before:.1f}/s; times as fast as that: "
            f"{times}"
        )


def packed_weights() -> None:
    """Tokens per core-second of a model of 135 million parameters, of many rows and of a few, as at
    the end of a batch."""
    if not decoder.can_pack():
        print("packed weights: this PyTorch multiplies with none")
        return
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LARGE)).eval()
    ours = decoder.PACKED_FROM
    print(f"generation: {LARGE_TOKENS} tokens per row, 135 million parameters with random weights")
    for rows in (192, 8):
        prompts = [list(range(row, row + 21)) for row in range(rows // 8)]
        took = {"packed": [], "as they are": []}
        for _ in range(3):  # in turns, and the first is not counted
            for label, threshold in (("packed", ours), ("as they are", NEVER)):
                decoder.PACKED_FROM = threshold
                sampling = Sampling(max_tokens=LARGE_TOKENS)
                began = time.process_time()
                # no token has the number -1: none ends
                out = generate(model, prompts, 8, sampling, -1, torch.Generator().manual_seed(0))
                took[label].append(time.process_time() - began)
                assert sum(map(len, out.ids)) == rows * LARGE_TOKENS
        rates = {label: rows * LARGE_TOKENS / min(times[1:]) for label, times in took.items()}
        ratio = rates["packed"] / rates["as they are"]
        print(
            f"  {rows:3} rows: weights packed {rates['packed']:6.1f} tokens/s   "
            f"as they are {rates['as they are']:6.1f} tokens/s   {ratio:.2f} times"
        )
    decoder.PACKED_FROM = ours


if __name__ == "__main__":
    main()
