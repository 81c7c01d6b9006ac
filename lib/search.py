"""Beam search of the agent (paper `agent`, Section 3.3) on the decode loop of `lib.generation`.

A budget B/K keeps the best B partial games of a problem and samples K action tags for each. Tags that name no legal
action are dropped and counted. Games that have come to the same state are one: what can follow is the same, so the
likeliest stays. Tags of one state share their computation as long as they begin alike.

Reranking by exact values asks the solver at test time: it says what a perfect value function would add, and is no
method to compare others with.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import pandas as pd
import torch

from lib.environment import (
    REJECTIONS,
    State,
    expression,
    initial,
    legal_actions,
    parse_action,
    q_values,
    render_action,
    render_state,
    step,
)
from lib.expression import render
from lib.generation import Sampling, generate
from lib.problem import Problem


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Budget B/K, how tags are drawn, and Eq. 10's value: rerank none, binary or soft (`q_values`), lambda `weight`."""

    beams: int = 16
    samples: int = 16
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    max_tokens: int = 32
    rerank: str = "none"
    weight: float = 1.0
    alpha: float = 0.2
    beta: float = 0.05
    legal_only: bool = False  # tags that name no legal action cannot be drawn

    def __post_init__(self):
        if min(self.beams, self.samples) < 1:
            raise ValueError(f"budget {self.beams}/{self.samples}: at least one path and one sample are needed")

    @property
    def sampling(self) -> Sampling:
        return Sampling.of(asdict(self))


class Path(NamedTuple):
    """A partial game: `logprob` is L of Eq. 10, `score` is G, with the value of the last action only."""

    state: State
    logprob: float
    score: float


def sample_tags(
    model,
    tokenizer,
    states: Sequence[State],
    n: int,
    sampling: Sampling,
    generator: torch.Generator,
    batch: int = 4096,
    legal_only: bool = False,
) -> list[list[tuple[str, float, int]]]:
    """`n` action tags of each state: (text, log-probability, tokens), end token included, at temperature 1 and uncut.

    At most `batch` tags are drawn at once. With `legal_only` numbers that are not there are masked, and whatever else
    the environment would reject; the log-probability stays the policy's own. A tag cut at the length cap keeps no text,
    so that it is unreadable.
    """
    tags, eos = [], tokenizer.eos_token_id
    for start in range(0, len(states), max(1, batch // n)):
        chosen = states[start : start + max(1, batch // n)]
        prompts = tokenizer([render_state(state) for state in chosen]).input_ids
        choices = [legal_tags(tokenizer, state) for state in chosen] if legal_only else None
        out = generate(model, prompts, n, sampling, eos, generator, share=True, choices=choices)
        kinds = list(dict.fromkeys(map(tuple, out.ids)))
        texts = dict(zip(kinds, tokenizer.batch_decode([ids[:-1] for ids in kinds]), strict=True))
        drawn = [
            (texts[tuple(ids)] if finish == "stop" else "", sum(logprobs), len(ids))
            for ids, logprobs, finish in zip(out.ids, out.policy_logprobs, out.finish, strict=True)
        ]
        tags += [drawn[i : i + n] for i in range(0, len(drawn), n)]
    return tags


def legal_tags(tokenizer, state: State) -> list[tuple[int, ...]]:
    """The token ids of every tag that names a legal action, end token included; + and * in either order."""
    moves = legal_actions(state)
    moves += [move._replace(a=move.b, b=move.a) for move in moves if move.op in "+*"]
    return [(*ids, tokenizer.eos_token_id) for ids in tokenizer(list(map(render_action, moves))).input_ids]


def search(
    model, tokenizer, problems: Sequence[Problem], settings: SearchSettings, generator: torch.Generator
) -> list[tuple[list[Path], Counter]]:
    """Of each problem its finished games, best first, at most B, and a tally: sampled, tokens, each of REJECTIONS."""
    beams = [[Path(initial(problem), 0.0, 0.0)] for problem in problems]
    tallies = [Counter() for _ in problems]
    while active := [(i, path) for i, paths in enumerate(beams) for path in paths if not path.state.terminal]:
        states = [path.state for _, path in active]
        asked = (states, settings.samples, settings.sampling, generator)
        drawn = sample_tags(model, tokenizer, *asked, legal_only=settings.legal_only)
        found: list[dict] = [{} for _ in problems]
        for (i, path), tags in zip(active, drawn, strict=True):
            tallies[i].update(sampled=len(tags), tokens=sum(tokens for *_, tokens in tags))
            for (text, logprob), times in Counter(tag[:2] for tag in tags).items():
                move = parse_action(text, path.state)
                if isinstance(move, str):
                    tallies[i][move] += times
                    continue
                successor, total = step(path.state, move), path.logprob + logprob
                if successor.key not in found[i] or total > found[i][successor.key].logprob:
                    found[i][successor.key] = Path(successor, total, total)
        for i in {i for i, _ in active}:
            beams[i] = list(found[i].values())
        _rank([beams[i] for i in {i for i, _ in active}], settings)
    return list(zip(beams, tallies, strict=True))


def _rank(beams: list[list[Path]], settings: SearchSettings) -> None:
    """Score every path by Eq. 10, all in one call of the solver, and keep the best of each problem, best first."""
    values = iter(
        q_values([path.state for paths in beams for path in paths], settings.rerank, settings.alpha, settings.beta)
    )
    for paths in beams:
        scored = [path._replace(score=path.logprob + settings.weight * next(values)) for path in paths]
        paths[:] = sorted(scored, key=lambda path: -path.score)[: settings.beams]


def search_table(
    model,
    tokenizer,
    rows,
    settings: SearchSettings,
    seed: int,
    repeats: int = 1,
    together: int = 16,
    progress: Callable[[Iterable, int, str], Iterable] = lambda batches, total, what: batches,
) -> pd.DataFrame:
    """Search every problem of `rows` (nums, target) `repeats` times, `together` at once: the table that is saved.

    One row a finished game; a search that finished none has one row of rank 0 with empty texts. Columns: problem (its
    index), nums, target, sample (the repeat), rank (0 is the best score), completion (the answer that the game has
    built, for `lib.judging.judge`), actions, states (after each action), logprob, score, and of the whole search, the
    same in all its rows: sampled, each of REJECTIONS, tokens, seconds (its share of those it was searched with).
    """
    asked = [(i, sample, row) for i, row in enumerate(rows) for sample in range(repeats)]
    table = []
    starts = range(0, len(asked), together)
    for start in progress(starts, len(starts), "batches"):
        chunk = asked[start : start + together]
        problems = [Problem(tuple(map(int, row["nums"])), int(row["target"])) for *_, row in chunk]
        generator = torch.Generator(model.device).manual_seed(seed * 1_000_003 + start)
        began = time.perf_counter()
        searched = search(model, tokenizer, problems, settings, generator)
        seconds = (time.perf_counter() - began) / len(chunk)
        for (i, sample, _), problem, (paths, tally) in zip(chunk, problems, searched, strict=True):
            counts = {name: tally[name] for name in ("sampled", *REJECTIONS, "tokens")} | {"seconds": round(seconds, 4)}
            about = {"problem": i, "nums": list(problem.nums), "target": problem.target, "sample": sample}
            games = [_game(problem, path) for path in paths] or [dict.fromkeys(("completion", "actions", "states"), "")]
            table += [about | {"rank": rank} | game | counts for rank, game in enumerate(games)]
    return pd.DataFrame(table)


def _game(problem: Problem, path: Path) -> dict:
    state, states = initial(problem), []
    for move in path.state.history:
        state = step(state, move)
        states.append(", ".join(map(str, state.nums)))
    return {
        "completion": f"<answer>{render(expression(problem, path.state.history))}</answer>",
        "actions": "".join(map(render_action, path.state.history)),
        "states": "; ".join(states),
        "logprob": round(path.logprob, 3),
        "score": round(path.score, 3),
    }
