"""Problems and tokens per second of the agent's search, beside one without shared prefixes and one
that asks a value at every step, one thread."""

import time
from functools import partial

import torch

import lib.learn.search
from lib.files import REFERENCE
from lib.game.problem import as_problems
from lib.game.sets import load
from lib.learn.generation import generate, generate_shared
from lib.learn.model import load_policy
from lib.learn.search import SearchSettings, learned_values, search

COUNT = 32


def main() -> None:
    folder = REFERENCE / "cpu/sft/pick/0"
    if not folder.exists():
        print("search: needs the reference run sft/pick, which is not published yet")
        return
    model, tokenizer = load_policy(folder)
    value = partial(learned_values, model, tokenizer)  # any policy takes as long
    rows = [p for p in as_problems(load("3to4", "validation_200")) if len(p.nums) == 4][:COUNT]
    print(f"search: {COUNT} problems of four numbers, the published state-action policy")

    for beams, samples in ((1, 8), (16, 16), (32, 32)):
        rates = {}
        took = {}
        for name, draw, rerank in (
            ("ours", generate_shared, "none"),
            ("unshared", generate, "none"),
            ("valued", generate_shared, "learned"),
        ):
            lib.learn.search.generate_shared = draw
            settings = SearchSettings(beams=beams, samples=samples, rerank=rerank)
            began = time.process_time()
            generator = torch.Generator().manual_seed(0)
            found = search(model, tokenizer, rows, settings, generator, value)
            took[name] = seconds = time.process_time() - began
            tokens = sum(tally["tokens"] for _, tally in found)
            rates[name] = (
                f"{name} {COUNT / seconds:5.1f} problems/s {tokens / seconds:8,.0f} tokens/s"
            )
        lib.learn.search.generate_shared = generate_shared
        ratio = f"a value costs {took['valued'] / took['ours'] - 1:+.0%}"
        print(f"  budget {f'{beams}/{samples}':6}  {'   '.join(rates.values())}   {ratio}")


if __name__ == "__main__":
    main()
