"""Beam search against a plain rewriting of Section 3.3, with a policy whose every probability is known."""

import math
import random
from collections import Counter

import pytest
import torch

import lib.search
from lib.environment import (
    REJECTIONS,
    count_solutions,
    initial,
    legal_actions,
    parse_action,
    q_values,
    render_action,
    step,
)
from lib.generation import Sampling
from lib.judging import judge
from lib.model import build_tokenizer, new_model
from lib.problem import Problem
from lib.search import SearchSettings, sample_tags, search, search_table

PROBLEMS = [Problem((2, 3, 7), 13), Problem((10, 7, 3, 1), 24), Problem((5, 5, 5), 30)]
FAULTY = {"<pick>99, 98, +</pick>": 0.05, "pick": 0.05}  # of every state's probability


def known_policy(state) -> dict[str, float]:
    """A tag distribution for each state: two kinds of nonsense, and the legal actions with random weights."""
    moves = [render_action(move) for move in legal_actions(state)]
    weights = [random.Random(f"{state.key}{tag}").random() ** 3 for tag in moves]
    return FAULTY | {tag: 0.9 * w / sum(weights) for tag, w in zip(moves, weights, strict=True)}


@pytest.fixture
def policy(monkeypatch):
    """`search` draws from `known_policy`; each tag counts five tokens."""

    def draw(model, tokenizer, states, n, sampling, generator, legal_only):
        drawn = []
        for state in states:
            tags = known_policy(state)
            picks = torch.multinomial(torch.tensor(list(tags.values())), n, replacement=True, generator=generator)
            drawn.append([(tag, math.log(tags[tag]), 5) for tag in (list(tags)[i] for i in picks)])
        return drawn

    monkeypatch.setattr(lib.search, "sample_tags", draw)


def run(problems, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    return search(None, None, problems, SearchSettings(**settings), generator)


@pytest.mark.parametrize("rerank", ["none", "binary", "soft"])
def test_a_wide_search_is_exhaustive_search(policy, rerank):
    """So many samples that every tag is drawn: then the beam is the B best of all games, level by level (Eq. 10)."""
    problem, beams, weight = PROBLEMS[0], 5, 1.5
    level = {initial(problem).key: (initial(problem), 0.0)}
    for _ in range(2):
        reached = {}
        for state, logprob in level.values():
            for move in legal_actions(state):
                successor, total = step(state, move), logprob + math.log(known_policy(state)[render_action(move)])
                if successor.key not in reached or reached[successor.key][1] < total:
                    reached[successor.key] = successor, total
        q = q_values([state for state, _ in reached.values()], rerank)
        score = {key: reached[key][1] + weight * value for key, value in zip(reached, q, strict=True)}
        level = {key: reached[key] for key in sorted(score, key=score.get, reverse=True)[:beams]}
    [(paths, tally)] = run([problem], beams=beams, samples=40_000, rerank=rerank, weight=weight)
    assert [path.state.key for path in paths] == list(level)
    for path, (_, logprob) in zip(paths, level.values(), strict=True):
        assert path.logprob == pytest.approx(logprob)
        assert path.score == pytest.approx(score[path.state.key])
    assert tally["unreadable"] / tally["sampled"] == pytest.approx(0.05, abs=0.004)
    assert tally["number not there"] / tally["sampled"] == pytest.approx(0.05, abs=0.004)


def test_budgets_are_kept_and_everything_is_counted(policy):
    for problem, (paths, tally) in zip(PROBLEMS, run(PROBLEMS, beams=3, samples=7), strict=True):
        depth = len(problem.nums) - 1
        assert 7 + 7 * (depth - 1) <= tally["sampled"] <= 7 + 21 * (depth - 1)
        assert tally["tokens"] == 5 * tally["sampled"]
        assert 0 < len(paths) <= 3 and len({path.state.nums for path in paths}) == len(paths)
        assert [path.score for path in paths] == sorted((path.score for path in paths), reverse=True)
        for path in paths:
            assert len(path.state.history) == depth and path.state.terminal


def test_lemma_32_where_no_good_prefix_is_lost(policy):
    """Binary reranking with a large weight keeps a good prefix if one was sampled; then Eq. 11 bounds the success, with
    p_t the least chance of a good action over the solvable states at depth t."""
    problem, samples, trials = PROBLEMS[2], 3, 600
    chances, level = [], {initial(problem)}
    for _ in range(2):
        good = {state: [m for m in legal_actions(state) if count_solutions([step(state, m)])[0]] for state in level}
        chances.append(min(sum(known_policy(s)[render_action(m)] for m in moves) for s, moves in good.items()))
        level = {step(state, move) for state, moves in good.items() for move in moves}
    bound = math.prod(1 - (1 - p) ** samples for p in chances)
    assert bound == pytest.approx(0.25, abs=0.01)
    found = [
        any(path.state.nums == (path.state.target,) for path in paths)
        for paths, _ in run([problem] * trials, beams=1, samples=samples, rerank="binary", weight=100)
    ]
    assert sum(found) / trials >= bound - 2 * (bound * (1 - bound) / trials) ** 0.5


def test_lemma_32_fails_where_a_good_prefix_can_be_pruned(monkeypatch):
    """One step, p = .3, K = 8, B = 1: the bound says .94. But the likelier bad action, once sampled, takes the beam."""
    tags = {"<pick>2, 3, +</pick>": 0.3, "<pick>2, 3, *</pick>": 0.7}

    def draw(model, tokenizer, states, n, sampling, generator, legal_only):
        picks = torch.multinomial(torch.tensor([0.3, 0.7]), n * len(states), replacement=True, generator=generator)
        drawn = [(tag, math.log(tags[tag]), 5) for tag in (list(tags)[i] for i in picks)]
        return [drawn[i : i + n] for i in range(0, len(drawn), n)]

    monkeypatch.setattr(lib.search, "sample_tags", draw)
    rates = [
        sum(paths[0].state.nums == (5,) for paths, _ in run([Problem((2, 3), 5)] * 2000, beams=1, samples=8, **value))
        / 2000
        for value in ({}, {"rerank": "binary"})
    ]
    bound = 1 - (1 - 0.3) ** 8
    assert bound == pytest.approx(0.94, abs=0.01)
    assert rates[0] < 0.01  # .3 ** 8: only where all eight are good
    assert rates[1] == pytest.approx(bound, abs=0.02)


# --- with a model ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untrained():
    tokenizer = build_tokenizer()
    model = new_model(tokenizer, hidden=32, layers=2, heads=2)
    return model.eval(), tokenizer


def test_a_tags_log_probability_is_the_models_at_temperature_1_with_the_end_token(untrained):
    model, tokenizer = untrained
    state = initial(PROBLEMS[0])
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=10, max_tokens=400)
    [drawn] = sample_tags(model, tokenizer, [state], 6, sampling, torch.Generator().manual_seed(0))
    prompt = tokenizer(lib.search.render_state(state)).input_ids
    ended = [tag for tag in drawn if tag[0]]
    for text, logprob, tokens in ended:
        ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert len(ids) == tokens
        assert logprob == pytest.approx(logits.gather(-1, torch.tensor(ids)[:, None]).sum().item(), abs=1e-3)
    assert ended


def test_with_legal_tags_alone_an_untrained_policy_finishes_every_game(untrained):
    """Every tag is read and legal, each can come, and its log-probability is the policy's, not the mask's."""
    model, tokenizer = untrained
    settings = SearchSettings(beams=2, samples=8, legal_only=True)
    generator = torch.Generator().manual_seed(0)
    for paths, tally in search(model, tokenizer, PROBLEMS, settings, generator):
        assert paths and not any(tally[reason] for reason in REJECTIONS)
    state = initial(PROBLEMS[0])
    plain = Sampling(max_tokens=32)
    [drawn] = sample_tags(model, tokenizer, [state], 600, plain, generator, legal_only=True)
    assert {parse_action(text, state) for text, *_ in drawn} == set(legal_actions(state))
    assert max(logprob for _, logprob, _ in drawn) < -20  # of an untrained policy, that has no such habit


def test_an_untrained_policy_finishes_nothing_and_the_table_says_so(untrained):
    rows = [{"nums": list(p.nums), "target": p.target} for p in PROBLEMS]
    table = search_table(*untrained, rows, SearchSettings(beams=2, samples=4, max_tokens=6), seed=0, repeats=2)
    assert table[["problem", "sample", "rank"]].values.tolist() == [[i, j, 0] for i in range(3) for j in range(2)]
    assert set(judge(table)["status"]) == {"missing"}
    assert (table["sampled"] == 4).all() and (table["unreadable"] == 4).all()


def test_the_table_holds_every_game_judged_by_the_common_verifier(policy):
    class Anywhere:
        device = "cpu"

    rows = [{"nums": list(p.nums), "target": p.target} for p in PROBLEMS]
    table = search_table(Anywhere, None, rows, SearchSettings(beams=4, samples=8), seed=1, together=2)
    alone = search_table(Anywhere, None, rows[:2], SearchSettings(beams=4, samples=8), seed=1, together=2)
    timeless = table.drop(columns="seconds")
    assert timeless[: len(alone)].equals(alone.drop(columns="seconds"))
    assert Counter(table["rank"])[0] == 3 and set(REJECTIONS) <= set(table)
    for row in judge(table).itertuples():
        assert row.status in ("correct", "wrong_value")
        assert (row.status == "correct") == (row.states.split("; ")[-1] == str(row.target))


def test_impossible_budgets_are_refused():
    with pytest.raises(ValueError, match="0/4"):
        SearchSettings(beams=0, samples=4)
