"""Problems and tokens a second of the agent's search, beside one without shared prefixes, one thread."""

import time

import torch

import lib.search
from lib.files import REFERENCE
from lib.generation import generate
from lib.model import load_policy
from lib.problem import load, problems
from lib.search import SearchSettings, search

COUNT = 32


def main() -> None:
    folder = REFERENCE / "laptop/sft/pick/0"
    if not folder.exists():
        print("search: needs the reference run sft/pick, which is not published yet")
        return
    model, tokenizer = load_policy(folder)
    rows = [p for p in problems(load("3to4", "validation_200")) if len(p.nums) == 4][:COUNT]
    print(f"search: {COUNT} problems of four numbers, the laptop's state-action policy")

    def unshared(*arguments, share, **options):
        return generate(*arguments, share=False, **options)

    for beams, samples in ((1, 8), (16, 16), (32, 32)):
        rates = {}
        for name, draw in (("ours", generate), ("unshared", unshared)):
            lib.search.generate = draw
            began = time.perf_counter()
            settings, generator = SearchSettings(beams=beams, samples=samples), torch.Generator().manual_seed(0)
            found = search(model, tokenizer, rows, settings, generator)
            seconds = time.perf_counter() - began
            tokens = sum(tally["tokens"] for _, tally in found)
            rates[name] = f"{name} {COUNT / seconds:5.1f} problems/s {tokens / seconds:8,.0f} tokens/s"
        lib.search.generate = generate
        print(f"  budget {f'{beams}/{samples}':6}  {'   '.join(rates.values())}")


if __name__ == "__main__":
    main()
