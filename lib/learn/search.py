"""Beam search of the agent (paper `agent`, Section 3.3) with the decode loop of
`lib.learn.generation`.

A budget B/K keeps the best B partial games of a problem and samples K action tags for each. Tags
that do not name a legal action are dropped and counted, or drawn again a few times (`redraws`). Of
several games in the same state only the most probable stays, because the same continuations are
open to all.

Reranking by exact values uses the solver at test time. It shows what a perfect value function would
add, and cannot be compared with other methods, unlike reranking by a learned value."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from lib.game import mdp
from lib.game.expression import render
from lib.game.mdp import State
from lib.game.problem import Problem, as_problem
from lib.learn.generation import Sampling, generate_shared
from lib.learn.model import max_rows
from lib.learn.settings import SearchSettings

AT_ONCE = 4096  # tags drawn at once
Value = Callable[[Sequence[State]], np.ndarray]  # maps states to V, float64


class Path(NamedTuple):
    """A partial game. `logprob` is L of Eq. 10, and `score` is G, which includes the value of the
    last action only."""

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
) -> list[list[tuple[str, float, int]]]:
    """`n` action tags in each state: (text, log-probability, tokens), including the end token, at
    temperature 1 and without top-k or top-p. A tag that is cut at the length cap gets an empty
    text, so that it is no action."""
    tags = []
    eos = tokenizer.eos_token_id
    longest = max(
        (len(tokenizer(mdp.render_state(state)).input_ids) for state in states[:1]), default=0
    )
    # 2 as states differ in length
    size = max(1, max_rows(model, AT_ONCE, 2 * longest + sampling.max_tokens) // n)
    for start in range(0, len(states), size):
        chunk = states[start : start + size]
        prompts = tokenizer([mdp.render_state(state) for state in chunk]).input_ids
        out = generate_shared(model, prompts, n, sampling, eos, generator)
        unique_ids = list(dict.fromkeys(map(tuple, out.ids)))
        texts = dict(
            zip(unique_ids, tokenizer.batch_decode([ids[:-1] for ids in unique_ids]), strict=True)
        )
        chunk_tags = [
            (texts[tuple(ids)] if finish == "stop" else "", sum(logprobs), len(ids))
            for ids, logprobs, finish in zip(out.ids, out.policy_logprobs, out.finish, strict=True)
        ]
        tags += [chunk_tags[i : i + n] for i in range(0, len(chunk_tags), n)]
    return tags


def learned_values(model, tokenizer, states: Sequence[State], batch: int = 2048) -> np.ndarray:
    """V(s) of each state by a value policy, float64: P(yes) / (P(yes) + P(no)) of the token after
    its prompt.

    A state of one number is won or lost, which needs no policy. Equal states are read once, at most
    `batch` prompts of one length at a time. Raises ValueError if yes or no is not one token."""
    words = [tokenizer.encode(word, add_special_tokens=False) for word in mdp.VERDICTS]
    if any(len(ids) != 1 for ids in words):
        raise ValueError(
            f"{mdp.VERDICTS} are one token each in a value policy's tokenizer; "
            f"here they are {words}"
        )
    values = {state.key: float(state.nums == (state.target,)) for state in states}
    prompts = {
        state.key: mdp.render_state(state, "value") for state in states if not state.terminal
    }
    inputs = [*zip(prompts, map(tokenizer.encode, prompts.values()), strict=True)]
    verdict_weights = model.get_output_embeddings().weight[[ids[0] for ids in words]]
    for _, same_length in groupby(
        sorted(inputs, key=lambda item: len(item[1])), lambda item: len(item[1])
    ):
        keys, ids = zip(*same_length, strict=True)
        with torch.inference_mode():
            parts = torch.tensor(ids, device=model.device).split(batch)
            hidden = [
                model.base_model(part, use_cache=False).last_hidden_state[:, -1] for part in parts
            ]
            solvable = (torch.cat(hidden) @ verdict_weights.T).float().softmax(-1)[:, 1]
        values.update(zip(keys, solvable.tolist(), strict=True))
    return np.array([values[state.key] for state in states])


def search(
    model,
    tokenizer,
    problems: Sequence[Problem],
    settings: SearchSettings,
    generator: torch.Generator,
    value: Value | None = None,
) -> list[tuple[list[Path], Counter]]:
    """The finished games of each problem's last search, best first, and a tally of all searches of
    the problem.

    The `budgets` of `settings` are used in turn, until a game has reached the problem's target. The
    tally counts sampled, tokens, each of REJECTIONS, and valued (unfinished states that `value`,
    for rerank "learned", has read)."""
    if settings.rerank != "learned":
        value = partial(
            mdp.q_values, kind=settings.rerank, alpha=settings.alpha, beta=settings.beta
        )
    games: list[list[Path]] = [[] for _ in problems]
    tallies = [Counter() for _ in problems]
    unsolved = list(range(len(problems)))
    for beams, samples in settings.budgets:
        budget = replace(settings, beams=beams, samples=samples)
        results = _search(
            model, tokenizer, [problems[i] for i in unsolved], budget, generator, value
        )
        for i, (paths, tally) in zip(unsolved, results, strict=True):
            games[i] = paths
            tallies[i].update(tally)
        unsolved = [i for i in unsolved if not _is_won(games[i], problems[i])]
    return list(zip(games, tallies, strict=True))


def _is_won(paths: list[Path], problem: Problem) -> bool:
    """Whether one of the paths ends at the target."""
    return any(path.state.nums == (problem.target,) for path in paths)


def _search(
    model, tokenizer, problems: Sequence[Problem], settings: SearchSettings, generator, value
) -> list[tuple]:
    """The same as `search`, with one budget and with any value function."""
    beams = [[Path(mdp.initial(problem), 0.0, 0.0)] for problem in problems]
    tallies = [Counter() for _ in problems]
    while active := [
        (i, path) for i, paths in enumerate(beams) for path in paths if not path.state.terminal
    ]:
        # 1. Draw tags in the state of every unfinished game of every problem
        states = [path.state for _, path in active]
        sampling = settings.sampling
        tag_lists = sample_tags(model, tokenizer, states, settings.samples, sampling, generator)
        draw_one = partial(
            sample_tags, model, tokenizer, n=1, sampling=sampling, generator=generator
        )
        for _ in range(settings.redraws):
            _draw_illegal_again(active, tag_lists, tallies, draw_one)
        # 2. Play them, and keep the most probable game in each state
        candidates: dict[int, dict] = {i: {} for i, _ in active}
        for (i, path), tags in zip(active, tag_lists, strict=True):
            tallies[i].update(sampled=len(tags), tokens=sum(tokens for *_, tokens in tags))
            for (text, logprob), times in Counter(tag[:2] for tag in tags).items():
                move = mdp.parse_action(text, path.state)
                if isinstance(move, str):
                    tallies[i][move] += times
                    continue
                successor = mdp.step(path.state, move)
                total = path.logprob + logprob
                if (
                    successor.key not in candidates[i]
                    or total > candidates[i][successor.key].logprob
                ):
                    candidates[i][successor.key] = Path(successor, total, total)
        # 3. Score the games of all problems at once (Eq. 10), and keep the best of each
        values = iter(
            value([path.state for paths in candidates.values() for path in paths.values()])
        )
        for i, paths in candidates.items():
            scored = [
                path._replace(score=path.logprob + settings.weight * next(values))
                for path in paths.values()
            ]
            beams[i] = sorted(scored, key=lambda path: -path.score)[: settings.beams]
            if settings.rerank == "learned":
                tallies[i]["valued"] += sum(not path.state.terminal for path in paths.values())
    return list(zip(beams, tallies, strict=True))


def _draw_illegal_again(
    active: list[tuple[int, Path]],
    tag_lists: list[list[tuple[str, float, int]]],
    tallies: list[Counter],
    draw_one: Callable[..., list],
) -> None:
    """Puts one new tag in the place of each tag that names no legal action. The tags that are
    replaced have been paid for: the tallies of their problems count them and their faults."""
    places = []
    for game, tags in enumerate(tag_lists):
        i, path = active[game]
        for place, (text, _, tokens) in enumerate(tags):
            fault = mdp.parse_action(text, path.state)
            if isinstance(fault, str):
                places.append((game, place))
                tallies[i].update({"sampled": 1, "tokens": tokens, fault: 1})
    drawn = draw_one(states=[active[game][1].state for game, _ in places])
    for (game, place), [tag] in zip(places, drawn, strict=True):
        tag_lists[game][place] = tag


def search_table(
    model,
    tokenizer,
    rows,
    settings: SearchSettings,
    seed: int,
    repeats: int = 1,
    together: int = 16,
    progress: Callable[[Iterable, int, str], Iterable] = lambda batches, total, what: batches,
    value: Value | None = None,
) -> pd.DataFrame:
    """Searches every problem of `rows` (nums, target) `repeats` times, `together` problems at once.

    The table has one row per finished game; a search without one has a row of rank 0 with empty
    texts. Columns: problem (its index), nums, target, sample (the repeat), rank (0 is the best
    score), completion (the answer that the game has built), actions, states (after each action),
    logprob, score; and for the whole search sampled, each of REJECTIONS, tokens, valued (states)
    and seconds (its share of the time of `together`)."""
    searches = [(i, sample, row) for i, row in enumerate(rows) for sample in range(repeats)]
    table = []
    starts = range(0, len(searches), together)
    for start in progress(starts, len(starts), "batches"):
        chunk = searches[start : start + together]
        problems = [as_problem(row["nums"], row["target"]) for *_, row in chunk]
        generator = torch.Generator(model.device).manual_seed(seed * 1_000_003 + start)
        start_time = time.perf_counter()
        results = search(model, tokenizer, problems, settings, generator, value)
        seconds = (time.perf_counter() - start_time) / len(chunk)
        for (i, sample, _), problem, (paths, tally) in zip(chunk, problems, results, strict=True):
            counts: dict[str, float] = {
                name: tally[name] for name in ("sampled", *mdp.REJECTIONS, "tokens", "valued")
            }
            counts["seconds"] = round(seconds, 4)
            fields = {
                "problem": i,
                "nums": list(problem.nums),
                "target": problem.target,
                "sample": sample,
            }
            games = [_game(problem, path) for path in paths] or [
                dict.fromkeys(("completion", "actions", "states"), "")
            ]
            table += [fields | {"rank": rank} | game | counts for rank, game in enumerate(games)]
    return pd.DataFrame(table)


def _game(problem: Problem, path: Path) -> dict:
    moves = path.state.history
    _, *states = accumulate(moves, mdp.step, initial=mdp.initial(problem))
    return {
        "completion": f"<answer>{render(mdp.expression(problem, moves))}</answer>",
        "actions": "".join(map(mdp.render_action, moves)),
        "states": "; ".join(", ".join(map(str, state.nums)) for state in states),
        "logprob": round(path.logprob, 3),
        "score": round(path.score, 3),
    }
