"""Beam search against a plain version of Section 3.3, with a policy whose every probability is
known."""

import math
import random
from collections import Counter
from dataclasses import asdict
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import lib.learn.search
from lib.files import ROOT
from lib.game.mdp import (
    REJECTIONS,
    State,
    count_solutions,
    initial,
    legal_actions,
    q_values,
    render_action,
    render_state,
    step,
)
from lib.game.problem import Problem
from lib.learn.generation import Sampling
from lib.learn.model import build_tokenizer, new_model
from lib.learn.search import SearchSettings, learned_values, sample_tags, search, search_table
from lib.runs.declare import read_notebook
from lib.runs.parameters import check
from lib.study import systems
from lib.study.judging import judge
from tests.learn.test_model import bytes_tokenizer

PROBLEMS = [Problem((2, 3, 7), 13), Problem((10, 7, 3, 1), 24), Problem((5, 5, 5), 30)]
FAULTY = {"<pick>99, 98, +</pick>": 0.05, "pick": 0.05}  # of every state's probability


def known_policy(state) -> dict[str, float]:
    """A tag distribution for each state: two kinds of nonsense, and the legal actions with random
    weights."""
    moves = [render_action(move) for move in legal_actions(state)]
    weights = [random.Random(f"{state.key}{tag}").random() ** 3 for tag in moves]
    return FAULTY | {tag: 0.9 * w / sum(weights) for tag, w in zip(moves, weights, strict=True)}


def draws_of(tags, n, generator) -> list[tuple[str, float, int]]:
    """n draws from a distribution of tags: each with its log-probability and its tokens."""
    names = list(tags)
    chances = torch.tensor(list(tags.values()))
    picks = torch.multinomial(chances, n, replacement=True, generator=generator)
    return [(names[i], math.log(tags[names[i]]), 5) for i in picks]


@pytest.fixture
def policy(monkeypatch):
    """`search` draws from `known_policy`; each tag counts five tokens."""

    def draw(model, tokenizer, states, n, sampling, generator):
        drawn = []
        for state in states:
            tags = known_policy(state)
            drawn.append(draws_of(tags, n, generator))
        return drawn

    monkeypatch.setattr(lib.learn.search, "sample_tags", draw)


def run(problems, seed=0, value=None, **settings):
    generator = torch.Generator().manual_seed(seed)
    return search(None, None, problems, SearchSettings(**settings), generator, value)


def any_value(states):
    """A value of each state, known and of no sense."""
    return np.array([random.Random(f"value of {state.key}").random() for state in states])


@pytest.mark.parametrize("rerank", ["none", "executor", "binary", "soft", "learned"])
def test_a_wide_search_is_exhaustive_search(policy, rerank):
    """So many samples that every tag is drawn: then the beam is the B best of all games, level by
    level (Eq. 10). The games that are won are so improbable that only the solver keeps them. The
    executor keeps those that it sees."""
    problem = PROBLEMS[2 if rerank == "executor" else 0]
    beams = 5
    weight = 8.0
    level = {initial(problem).key: (initial(problem), 0.0)}
    for _ in range(2):
        reached = {}
        for state, logprob in level.values():
            for move in legal_actions(state):
                successor = step(state, move)
                total = logprob + math.log(known_policy(state)[render_action(move)])
                if successor.key not in reached or reached[successor.key][1] < total:
                    reached[successor.key] = successor, total
        states = [state for state, _ in reached.values()]
        q = any_value(states) if rerank == "learned" else q_values(states, rerank)
        score = {
            key: reached[key][1] + weight * value for key, value in zip(reached, q, strict=True)
        }
        level = {key: reached[key] for key in sorted(score, key=score.get, reverse=True)[:beams]}
    [(paths, tally)] = run(
        [problem], value=any_value, beams=beams, samples=40_000, rerank=rerank, weight=weight
    )
    won = [path for path in paths if path.state.nums == (problem.target,)]
    assert bool(won) == (rerank in ("executor", "binary", "soft"))
    assert [path.state.key for path in paths] == list(level)
    for path, (_, logprob) in zip(paths, level.values(), strict=True):
        assert path.logprob == pytest.approx(logprob)
        assert path.score == pytest.approx(score[path.state.key])
    assert tally["unreadable"] / tally["sampled"] == pytest.approx(0.05, abs=0.004)
    assert tally["number not there"] / tally["sampled"] == pytest.approx(0.05, abs=0.004)


def test_values_are_computed_with_the_options_of_the_search(policy, monkeypatch):
    asked = []

    def noted(states, **options):
        asked.append(options)
        return q_values(states, **options)

    monkeypatch.setattr(lib.learn.search.mdp, "q_values", noted)
    run(PROBLEMS[:1], beams=1, samples=4, rerank="soft", alpha=0.7, beta=0.3)
    assert asked == [{"kind": "soft", "alpha": 0.7, "beta": 0.3}] * 2


def test_budgets_are_kept_and_everything_is_counted(policy):
    for problem, (paths, tally) in zip(PROBLEMS, run(PROBLEMS, beams=3, samples=7), strict=True):
        depth = len(problem.nums) - 1
        assert 7 + 7 * (depth - 1) <= tally["sampled"] <= 7 + 21 * (depth - 1)
        assert tally["tokens"] == 5 * tally["sampled"]
        assert 0 < len(paths) <= 3 and len({path.state.nums for path in paths}) == len(paths)
        assert [path.score for path in paths] == sorted(
            (path.score for path in paths), reverse=True
        )
        for path in paths:
            assert len(path.state.history) == depth and path.state.terminal


def test_lemma_32_where_no_good_prefix_is_lost(policy):
    """Binary reranking with a large weight keeps a good prefix if one was sampled; then Eq. 11
    bounds the success, with p_t the least chance of a good action over the solvable states at depth
    t."""
    problem = PROBLEMS[2]
    samples = 3
    trials = 600
    chances = []
    level = {initial(problem)}
    for _ in range(2):
        good_chances = []
        following = set()
        for state in level:
            good = [m for m in legal_actions(state) if count_solutions([step(state, m)])[0]]
            tags = known_policy(state)
            good_chances.append(sum(tags[render_action(move)] for move in good))
            following |= {step(state, move) for move in good}
        chances.append(min(good_chances))
        level = following
    bound = math.prod(1 - (1 - p) ** samples for p in chances)
    assert bound == pytest.approx(0.25, abs=0.01)
    found = 0
    settings = {"beams": 1, "samples": samples, "rerank": "binary", "weight": 100}
    for paths, _ in run([problem] * trials, **settings):
        found += any(path.state.nums == (path.state.target,) for path in paths)
    assert found / trials >= bound - 2 * (bound * (1 - bound) / trials) ** 0.5


def test_lemma_32_fails_where_a_good_prefix_can_be_pruned(monkeypatch):
    """One step, p = .3, K = 8, B = 1: the bound says .94. But the likelier bad action, once
    sampled, takes the beam."""
    tags = {"<pick>2, 3, +</pick>": 0.3, "<pick>2, 3, *</pick>": 0.7}

    def draw(model, tokenizer, states, n, sampling, generator):
        drawn = draws_of(tags, n * len(states), generator)
        return [drawn[i : i + n] for i in range(0, len(drawn), n)]

    monkeypatch.setattr(lib.learn.search, "sample_tags", draw)
    rates = []
    for value in ({}, {"rerank": "binary"}):
        found = run([Problem((2, 3), 5)] * 2000, beams=1, samples=8, **value)
        rates.append(sum(paths[0].state.nums == (5,) for paths, _ in found) / 2000)
    bound = 1 - (1 - 0.3) ** 8
    assert bound == pytest.approx(0.94, abs=0.01)
    assert rates[0] < 0.01  # .3 ** 8: only where all eight are good
    assert rates[1] == pytest.approx(bound, abs=0.02)


def test_a_learned_value_that_is_exact_is_the_solvers(policy):
    exact = partial(q_values, kind="binary")
    for settings in ({"beams": 1, "samples": 8}, {"beams": 4, "samples": 8, "weight": 1000.0}):
        learned = run(PROBLEMS, value=exact, rerank="learned", **settings)
        assert [paths for paths, _ in learned] == [
            paths for paths, _ in run(PROBLEMS, rerank="binary", **settings)
        ]


def test_a_value_is_asked_of_unfinished_states_once_and_counted(policy):
    asked = []

    def value(states):
        asked.extend(states)
        return any_value(states)

    found = run(PROBLEMS, value=value, beams=3, samples=7, rerank="learned")
    open_ = Counter(state.target for state in asked if not state.terminal)
    assert [tally["valued"] for _, tally in found] == [
        open_[problem.target] for problem in PROBLEMS
    ]
    assert len({state.key for state in asked}) == len(asked)
    assert not any(tally["valued"] for _, tally in run(PROBLEMS, beams=3, samples=7))


def test_searches_by_a_learned_value_repeat_and_cascade(policy):
    settings = {"beams": 4, "samples": 8, "rerank": "learned"}
    one = run(PROBLEMS, seed=3, value=any_value, **settings)
    assert (
        one
        == run(PROBLEMS, seed=3, value=any_value, **settings)
        != run(PROBLEMS, seed=3, **settings | {"rerank": "none"})
    )
    row = SearchSettings(cascade="4/8", rerank="learned")
    assert search(None, None, PROBLEMS, row, torch.Generator().manual_seed(3), any_value) == one


def test_a_learned_value_without_a_policy_is_refused_and_a_policy_without_a_use():
    given, _ = read_notebook(ROOT / "notebooks/16_search.ipynb")
    for searches, value in (
        ([{"rerank": ["none", "learned"]}], ""),
        ([{"rerank": "binary"}, {"beams": 1}], "sft/value/0"),
    ):
        with pytest.raises(ValueError, match="rerank learned need"):
            check(given | {"searches": searches, "value": value}, given, "16_search")
    searches = [{"rerank": ["none", "learned"]}, {"beams": 1}]
    check(given | {"searches": searches, "value": "owner/value"}, given, "16_search")


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
    prompt = tokenizer(render_state(state)).input_ids
    ended = [tag for tag in drawn if tag[0]]
    for text, logprob, tokens in ended:
        ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
        logits = (
            model(input_ids=torch.tensor([prompt + ids]))
            .logits[0, len(prompt) - 1 : -1]
            .log_softmax(-1)
        )
        assert len(ids) == tokens
        assert logprob == pytest.approx(
            logits.gather(-1, torch.tensor(ids)[:, None]).sum().item(), abs=1e-3
        )
    assert ended


def test_a_value_is_the_share_of_yes_in_the_next_token(untrained):
    """Against one plain forward pass a state; whatever stands beside it, and in whatever order."""
    model, tokenizer = untrained
    open_ = [
        State((2, 3), 6),
        State((-8, Fraction(5, 3), 19), 98),
        State((1, 2, 3, 4), 24),
        State((10, 20), 30),
    ]
    states = [*open_, State((24,), 24), State((23,), 24), open_[1]]
    expected = []
    for state in open_:
        prompt = render_state(state, "value")
        assert (
            prompt.endswith(f"Target: {state.target}?")
            and tokenizer.decode(tokenizer(prompt).input_ids) == prompt
        )
        chances = (
            model(input_ids=tokenizer(prompt, return_tensors="pt").input_ids)
            .logits[0, -1]
            .softmax(-1)
        )
        no, yes = (
            chances[token].item() for token in tokenizer.convert_tokens_to_ids([" no", " yes"])
        )
        expected.append(yes / (yes + no))
    expected += [1.0, 0.0, expected[1]]
    assert len(set(expected)) == 6
    for batch in (1, 2, 2048):
        assert learned_values(model, tokenizer, states, batch) == pytest.approx(expected, abs=1e-5)
    assert learned_values(model, tokenizer, states[::-1])[::-1] == pytest.approx(expected, abs=1e-5)
    assert learned_values(model, tokenizer, states[4:6]).tolist() == [1, 0] and not len(
        learned_values(*untrained, [])
    )


def test_with_a_value_policy_games_are_legal_and_come_again(policy, untrained):
    settings = SearchSettings(cascade="2 x 1/1, 2/8", rerank="learned")
    found = [
        search(
            None,
            None,
            PROBLEMS,
            settings,
            torch.Generator().manual_seed(0),
            partial(learned_values, *untrained),
        )
        for _ in range(2)
    ]
    assert found[0] == found[1]
    for problem, (paths, tally) in zip(PROBLEMS, found[0], strict=True):
        assert paths and tally["valued"]
        for path in paths:
            state = initial(problem)
            for move in path.state.history:
                assert move in legal_actions(state)
                state = step(state, move)
            assert path.score == pytest.approx(path.logprob + (state.nums == (problem.target,)))


def test_an_untrained_policy_finishes_nothing_and_the_table_says_so(untrained):
    rows = [{"nums": list(p.nums), "target": p.target} for p in PROBLEMS]
    table = search_table(
        *untrained, rows, SearchSettings(beams=2, samples=4, max_tokens=6), seed=0, repeats=2
    )
    assert table[["problem", "sample", "rank"]].values.tolist() == [
        [i, j, 0] for i in range(3) for j in range(2)
    ]
    assert set(judge(table)["status"]) == {"missing"}
    assert (table["sampled"] == 4).all() and (table["unreadable"] == 4).all()


def test_the_table_holds_every_game_judged_by_the_common_verifier(policy):
    class Anywhere:
        device = "cpu"

    rows = [{"nums": list(p.nums), "target": p.target} for p in PROBLEMS]
    table = search_table(
        Anywhere, None, rows, SearchSettings(beams=4, samples=8), seed=1, together=2
    )
    alone = search_table(
        Anywhere, None, rows[:2], SearchSettings(beams=4, samples=8), seed=1, together=2
    )
    timeless = table.drop(columns="seconds")
    assert timeless[: len(alone)].equals(alone.drop(columns="seconds"))
    again = search_table(
        Anywhere, None, rows[1:2] * 2, SearchSettings(beams=4, samples=8), seed=1, together=1
    )
    one, other = (games["actions"].tolist() for _, games in again.groupby("problem"))
    assert one != other  # searches that are not made together do not share their draws
    assert Counter(table["rank"])[0] == 3 and set(REJECTIONS) <= set(table)
    for row in judge(table).itertuples():
        assert row.status in ("correct", "wrong_value")
        assert (row.status == "correct") == (row.states.split("; ")[-1] == str(row.target))


def test_a_cascade_of_one_budget_is_a_search(policy):
    for budget in ("1/1", "4/8"):
        beams, samples = map(int, budget.split("/"))
        generator = torch.Generator().manual_seed(3)
        found = search(None, None, PROBLEMS, SearchSettings(cascade=budget), generator)
        assert found == run(PROBLEMS, seed=3, beams=beams, samples=samples)


def test_a_cascade_goes_on_with_what_is_not_won_and_counts_all_it_drew(policy):
    """By hand: single games until one is won, then two searches of those left, from the same stream
    of draws."""
    problems = [
        Problem(nums, target)
        for nums in ((3, 5), (2, 9), (4, 6), (7, 8))
        for target in (sum(nums), nums[0] * nums[1], 997)
    ]
    settings = SearchSettings(cascade="3 x 1/1, 3/3, 4/8")
    found = search(None, None, problems, settings, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    left = list(range(len(problems)))
    spent = Counter()
    last = {}
    tried = Counter()
    for beams, samples in ((1, 1), (1, 1), (1, 1), (3, 3), (4, 8)):
        asked = [problems[i] for i in left]
        settings = SearchSettings(beams=beams, samples=samples)
        searched = search(None, None, asked, settings, generator)
        lost = []
        for i, (paths, tally) in zip(left, searched, strict=True):
            last[i] = paths
            spent[i] += tally["tokens"]
            tried[i] += 1
            reached = [number for path in paths for number in path.state.nums]
            if problems[i].target not in reached:
                lost.append(i)
        left = lost
    assert [paths for paths, _ in found] == [last[i] for i in range(len(problems))]
    assert [tally["tokens"] for _, tally in found] == [spent[i] for i in range(len(problems))]
    # some are won early, some never
    assert len(set(tried.values())) > 1 and max(tried.values()) == 5
    assert any(
        tried[i] == 4 and last[i][0].state.nums != (problem.target,)
        for i, problem in enumerate(problems)
    )  # by another game than the best one


def test_searches_of_a_cascade_are_one_system_of_their_own(policy):
    class Anywhere:
        device = "cpu"

    rows = [{"nums": list(p.nums), "target": p.target} for p in PROBLEMS]
    tables = []
    for settings in (SearchSettings(beams=4, samples=8), SearchSettings(cascade="2 x 1/1, 4/8")):
        table = search_table(Anywhere, None, rows, settings, seed=1)
        tables.append(table.assign(run="r", method="m", seed=0, set="s", **asdict(settings)))
    tables[0] = tables[0].drop(columns="cascade")  # as published before there were any
    best = systems.searches(judge(pd.concat(tables)))
    assert set(best["settings"]) == {"4/8", "2 x 1/1, 4/8"} and len(best) == 2 * len(PROBLEMS)


def test_illegal_tags_are_drawn_again_and_paid_for(policy):
    """A tenth of all tags is illegal, and of those drawn again a tenth. With one redraw one tag in
    a hundred stays so, and one in ten more is drawn."""
    options = {"beams": 1, "samples": 40_000}
    [(_, once)] = run(PROBLEMS[:1], redraws=1, **options)
    steps = len(PROBLEMS[0].nums) - 1
    assert once["sampled"] == pytest.approx(1.1 * steps * 40_000, rel=0.01)
    assert once["tokens"] == 5 * once["sampled"]
    faults = sum(once[name] for name in REJECTIONS)
    assert faults == pytest.approx((0.1 + 0.01) * steps * 40_000, rel=0.05)
    # until all are legal, a search draws as many legal tags as it may
    [(paths, many)] = run(PROBLEMS[:1], redraws=8, **options)
    assert many["sampled"] - sum(many[name] for name in REJECTIONS) == steps * 40_000
    assert paths[0].state.terminal


@pytest.mark.parametrize("wrong", ["16/16;32/32", "x 1/1", "0/4", "1/1,2/2"])
def test_impossible_budgets_are_refused(wrong):
    with pytest.raises(ValueError, match="0/4"):
        SearchSettings(beams=0, samples=4)
    with pytest.raises(ValueError, match="budget"):
        SearchSettings(cascade=wrong)


def test_a_value_needs_a_tokenizer_in_which_yes_and_no_are_one_token_each():
    tokenizer = bytes_tokenizer()
    model = new_model(tokenizer, hidden=32, layers=1, heads=2)
    with pytest.raises(ValueError, match="one token each"):
        learned_values(model, tokenizer, [initial(PROBLEMS[0])])
