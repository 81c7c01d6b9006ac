"""Seconds of exact success per problem, beside games sampled from the same policy, one thread."""

import time

import torch

from lib.files import REFERENCE
from lib.game.problem import as_problems
from lib.game.sets import load
from lib.learn.exact import evaluate, play
from lib.learn.model import load_policy

COUNT = 50  # problems of each size
GAMES = 64


def main() -> None:
    model, tokenizer = load_policy(REFERENCE / "cpu/sft/pick/0")
    problems = as_problems(load("3to4", "validation_200"))
    print(f"exact: {COUNT} problems of each size, the published state-action policy")
    for numbers in (3, 4):
        some = [problem for problem in problems if len(problem.nums) == numbers][:COUNT]
        began = time.process_time()
        exact = evaluate(model, tokenizer, some)["success"].mean()
        of_sum = (time.process_time() - began) / len(some)
        began = time.process_time()
        games = play(model, tokenizer, some, GAMES, torch.Generator().manual_seed(0))
        of_game = (time.process_time() - began) / len(some) / GAMES
        won = sum(game.won for of_problem in games for game in of_problem)
        played = len(some) * GAMES
        milliseconds = 1000 * of_sum
        print(
            f"  {numbers} numbers  exact {milliseconds:6.2f} ms a problem, {exact:.1%} won;"
            f" {played:,} sampled games: {won / played:.1%}."
            f"   As long as {of_sum / of_game:.1f} games"
        )


if __name__ == "__main__":
    main()
