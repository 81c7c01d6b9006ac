"""Exact values of the agent's game, against tags read one by one, sampled games, and finite
differences."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from lib.game.mdp import initial, legal_actions, render_action, render_state, step
from lib.game.problem import Problem, as_problems
from lib.game.sets import load_set
from lib.learn.exact import (
    ESTIMATORS,
    OBJECTIVES,
    evaluate,
    exact_pass_at_k,
    expected_weight,
    game_logprobs,
    move_chances,
    open_tree,
    play,
    probabilities,
    solutions,
    success,
    weight,
    worth,
)
from lib.learn.model import build_tokenizer, new_model

PROBLEMS = [
    Problem((3, 5), 8),
    Problem((6, 2), 3),
    Problem((2, 2), 4),
    Problem((2, 3, 7), 13),
    Problem((1, 5, 5), 25),
]


def taught(steps: int = 80):
    """A small policy that wins some of its games of PROBLEMS: it has seen good tags, and others now
    and then."""
    tokenizer = build_tokenizer()
    model = new_model(tokenizer, hidden=32, layers=2, heads=2)
    tree = open_tree(PROBLEMS)
    legal = [(state, move) for state in tree.states for move in legal_actions(state)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        good = probabilities(
            model, tokenizer, [(tree.states[i], move) for i, move, _ in tree.moves]
        )
        (-good.log().mean() - 0.1 * probabilities(model, tokenizer, legal).log().mean()).backward()
        optimizer.step()
    return model.eval(), tokenizer


@pytest.fixture(scope="module")
def policy():
    return taught()


def chance_of(model, tokenizer, state, text: str) -> float:
    """pi(text | state) by the plainest way: one sequence, no tree, token by token."""
    prompt = tokenizer.encode(render_state(state))
    ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
    with torch.inference_mode():
        logps = (
            model(torch.tensor([[*prompt, *ids]]))
            .logits[0, len(prompt) - 1 : -1]
            .double()
            .log_softmax(-1)
        )
    return math.exp(sum(logps[i, token].item() for i, token in enumerate(ids)))


def spelled(move) -> set[str]:
    swapped = move._replace(a=move.b, b=move.a) if move.op in "+*" else move
    return {render_action(move), render_action(swapped)}


def chance_of_move(policy, state, move) -> float:
    """pi(move | state), however the move is spelled."""
    return sum(chance_of(*policy, state, text) for text in spelled(move))


def plain_value(model, tokenizer, state) -> float:
    """V by recursion over all legal actions: nothing merged, nothing left out."""
    if state.terminal:
        return float(state.nums == (state.target,))
    return sum(
        chance_of(model, tokenizer, state, text) * plain_value(model, tokenizer, step(state, move))
        for move in legal_actions(state)
        for text in spelled(move)
    )


@pytest.mark.parametrize(
    ("problem", "tags"),
    [
        (PROBLEMS[0], ["<pick>3, 5, +</pick>", "<pick>5, 3, +</pick>"]),
        (PROBLEMS[1], ["<pick>6, 2, /</pick>"]),
        (PROBLEMS[2], ["<pick>2, 2, +</pick>", "<pick>2, 2, *</pick>"]),
        (Problem((4, 9), 5), ["<pick>9, 4, -</pick>"]),
        (Problem((1, 2), 100), []),
    ],
)
def test_games_of_two_numbers_by_hand(policy, problem, tags):
    by_hand = sum(chance_of(*policy, initial(problem), tag) for tag in tags)
    assert evaluate(*policy, [problem])["success"][0] == pytest.approx(by_hand, rel=1e-5)


def test_games_of_three_numbers_against_plain_recursion(policy):
    found = evaluate(*policy, PROBLEMS, together=2)["success"].to_numpy()
    plain = [plain_value(*policy, initial(problem)) for problem in PROBLEMS]
    assert found == pytest.approx(plain, rel=1e-4) and min(plain) > 1e-5


def test_the_tree_is_merged_and_holds_what_can_be_won_alone():
    problems = [Problem((2, 3, 7), 13), Problem((7, 3, 2), 13), Problem((1, 2), 100)]
    tree = open_tree(problems)
    assert tree.roots[0] == tree.roots[1] and tree.roots[2] == len(tree.states)
    assert len({state.key for state in tree.states}) == len(tree.states)
    wins = [step(tree.states[i], move).nums for i, move, then in tree.moves if then == tree.won]
    assert wins and set(wins) == {(13,)}
    for i, move, then in tree.moves:
        assert then == tree.won or step(tree.states[i], move).key == tree.states[then].key


@pytest.mark.parametrize(
    "problems",
    [
        # 1 * 6 leads from the second to the first
        [Problem((2, 5, 6), 13), Problem((2, 5, 1, 6), 13)],
        [as_problems(load_set("heldout_1000"))[i] for i in (149, 164, 177, 189)],
    ],
)
def test_problems_of_three_and_four_numbers_that_share_states(policy, problems):
    """A state that is reached after one step and after two is one state, and its moves count
    once."""
    tree = open_tree(problems)
    keys = {state.key for problem in problems for state in open_tree([problem]).states}
    assert len(tree.states) == len(keys) and len(set(tree.moves)) == len(tree.moves)
    apart, at_once = (
        evaluate(*policy, problems, together=together) for together in (1, len(problems))
    )
    pd.testing.assert_frame_equal(at_once, apart, rtol=1e-4)
    assert at_once["success"].between(0, 1).all()


def test_all_that_is_legal_leaves_what_is_lost(policy):
    state = initial(PROBLEMS[3])
    chances = probabilities(*policy, [(state, move) for move in legal_actions(state)])
    by_hand = [chance_of_move(policy, state, move) for move in legal_actions(state)]
    assert (
        chances.detach().numpy() == pytest.approx(by_hand, rel=1e-4) and 0 < 1 - chances.sum() < 1
    )


def test_solutions_add_up(policy):
    tree = open_tree(PROBLEMS)
    chances = move_chances(*policy, tree).tolist()
    table = evaluate(*policy, PROBLEMS)
    for i, p in enumerate(success(*policy, tree).tolist()):
        found = solutions(tree, chances, i)
        assert sum(found.values()) == pytest.approx(p) and [*found.values()] == sorted(
            found.values(), reverse=True
        )
        shares = np.array([*found.values()]) / p
        assert table["solutions"][i] == len(found) and 1 <= table["used"][i] <= len(found) + 1e-9
        assert table["used"][i] == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert (
        set(solutions(tree, chances, 2)) == {"2 * 2", "2 + 2"}
        and len(solutions(tree, chances, 4)) > 2
    )
    nothing = open_tree([Problem((1, 2), 100)])
    assert solutions(nothing, [], 0) == {}


def test_twenty_thousand_games(policy):
    """The frequency of games won, within four standard errors of the exact chance."""
    n = 20_000 // len(PROBLEMS)
    games = play(*policy, PROBLEMS, n, torch.Generator().manual_seed(0))
    won = np.zeros(len(PROBLEMS))
    for i, some in enumerate(games):
        won[i] = np.mean([game.won for game in some])
    p = evaluate(*policy, PROBLEMS)["success"].to_numpy()
    assert (np.abs(won - p) < 4 * np.sqrt(p * (1 - p) / n)).all() and (won > 0).all()


def test_a_games_log_probability_is_that_of_its_tags(policy):
    [games] = play(*policy, PROBLEMS[4:], 8, torch.Generator().manual_seed(1))
    found = game_logprobs(*policy, games).exp().tolist()
    _, tokenizer = policy
    compared = set()
    for game, chance in zip(games, found, strict=True):
        if all(ids[-1] == tokenizer.eos_token_id for _, ids in game.turns):
            tags = [
                chance_of(*policy, state, tokenizer.decode(ids[:-1])) for state, ids in game.turns
            ]
            assert chance == pytest.approx(math.prod(tags), rel=1e-4)
            compared.add(len(game.turns))
    assert 2 in compared


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_is_that_of_finite_differences(policy, objective, monkeypatch):
    """Along a random direction, in float64, the norm included."""

    def norm(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    monkeypatch.setattr(Qwen2RMSNorm, "forward", norm)
    _, tokenizer = policy
    model = new_model(tokenizer, hidden=32, layers=2, heads=2)
    model.load_state_dict(policy[0].state_dict())
    model = model.double().eval()
    tree = open_tree(PROBLEMS)
    k = OBJECTIVES[objective]
    parameters = [*model.parameters()]
    generator = torch.Generator().manual_seed(0)
    way = [torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in parameters]

    def at(shift: float) -> torch.Tensor:
        with torch.no_grad():
            for one, some in zip(parameters, way, strict=True):
                one += shift * some
        return worth(success(model, tokenizer, tree), k).mean()

    at(0.0).backward()
    slope = sum((one.grad * some).sum().item() for one, some in zip(parameters, way, strict=True))
    small = 1e-6
    with torch.no_grad():
        high = at(small).item()
        low = at(-2 * small).item()
    assert slope == pytest.approx((high - low) / (2 * small), rel=1e-4) and abs(slope) > 1e-6


@pytest.mark.parametrize("k", OBJECTIVES.values())
def test_weight_is_the_derivative_of_worth(k):
    p = torch.tensor([1e-4, 0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    worth(p, k).sum().backward()
    assert torch.allclose(p.grad, weight(p.detach(), k))


def test_pass_at_k_keeps_its_digits():
    assert exact_pass_at_k(np.array([1e-12, 0.25, 1.0]), 1) == pytest.approx([1e-12, 0.25, 1.0])
    assert exact_pass_at_k(np.array([1e-12]), 10**6) == pytest.approx([1e-6], rel=1e-5)
    assert exact_pass_at_k(np.array([[0.5], [0.0]]), np.array([1, 2])).tolist() == [
        [0.5, 0.75],
        [0.0, 0.0],
    ]


@pytest.mark.parametrize("p", [0.01, 0.3, 0.95])
def test_what_estimators_estimate(p):
    """RLOO the expected reward, PKPO pass@4, MaxRL log-success cut behind the K - 1st of its
    terms."""
    of = {name: expected_weight(name, torch.tensor([p]), 8).item() for name in ESTIMATORS}
    assert of["rloo"] == pytest.approx(1)
    assert of["pkpo"] == pytest.approx(4 * (1 - p) ** 3)
    assert of["maxrl"] == pytest.approx(sum((1 - p) ** j for j in range(7)))
    assert 0 < of["fgrpo"] < of["grpo"]
    for games in (16, 64):  # as many as runs have
        assert expected_weight("pkpo", torch.tensor([p]), games).item() == pytest.approx(
            4 * (1 - p) ** 3
        )


def test_the_mean_of_sampled_gradients_is_the_exact_one(policy):
    """Along the exact gradient, RLOO's estimate of one problem, over many groups."""
    model, tokenizer = policy
    problem = PROBLEMS[4]
    groups = 400
    k = 8
    parameters = [*model.parameters()]
    [p] = success(model, tokenizer, open_tree([problem]))
    way = torch.autograd.grad(p, parameters)
    length = sum(some.square().sum() for some in way)
    [games] = play(model, tokenizer, [problem], groups * k, torch.Generator().manual_seed(2))
    right = torch.tensor([float(game.won) for game in games]).view(groups, k)
    advantages = ESTIMATORS["rloo"](right)
    loss = (advantages.flatten() * game_logprobs(model, tokenizer, games)).mean()
    found = sum(
        (some * one).sum()
        for some, one in zip(way, torch.autograd.grad(loss, parameters), strict=True)
    )
    assert found / length == pytest.approx(1, abs=0.25)
