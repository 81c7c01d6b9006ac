"""Rewards and objectives over all games of the agent: against enumeration by hand, sampled games,
finite differences, and the rewards that full answers get."""

import math
from copy import deepcopy
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from lib.game import mdp
from lib.game.expression import render
from lib.game.mdp import initial, legal_actions, parse_action, q_values, step
from lib.game.payments import END_REWARDS, REWARDS, STEP_REWARDS, End, paid
from lib.game.problem import Problem
from lib.learn.exact import (
    ESTIMATORS,
    evaluate,
    expected_weight,
    move_chances,
    open_tree,
    play,
    probabilities,
    success,
    values,
)
from lib.learn.losses import leave_one_out, max_rl
from lib.learn.model import build_tokenizer, new_model
from lib.learn.payoffs import (
    BEST_OF,
    OBJECTIVES,
    UP_TO,
    aims,
    best_of,
    divergence,
    end_chances,
    entropy,
    fines,
    game_chances,
    of_success,
    open_games,
    payoffs,
    step_payoffs,
)
from lib.rewards import get_reward
from tests.learn.test_exact import PROBLEMS, chance_of_move, taught

TWO = [Problem((3, 5), 8), Problem((6, 2), 3), Problem((2, 2), 4), Problem((0, 4), 4)]
FEW = [Problem((2, 2, 2), 6), Problem((1, 1, 2), 4)]  # with equal numbers there are few states
THREE = [Problem((2, 3, 7), 13), Problem((1, 5, 5), 25)]


@pytest.fixture(scope="module")
def policy():
    return taught()


@pytest.fixture(scope="module")
def playful():
    """A small policy whose games end in every way: it has learned all legal actions alike."""
    tokenizer = build_tokenizer()
    model = new_model(tokenizer, hidden=32, layers=2, heads=2)
    games = open_games(FEW)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        optimizer.zero_grad()
        pairs = [(games.states[i], move) for i, move in games.moves]
        (-probabilities(model, tokenizer, pairs).log().mean()).backward()
        optimizer.step()
    return model.eval(), tokenizer


def written(end: End, problem: Problem) -> str:
    """A full answer with the expression that a finished game has built."""
    return f"<think></think><answer>{render(mdp.expression(problem, end.history))}</answer>"


# --- all games ------------------------------------------------------------------------------------


def test_games_of_two_numbers_by_hand(policy):
    """3 and 5 with target 8: each legal action ends the game, and whatever is left is illegal."""
    problem = TWO[0]
    games = open_games([problem])
    chances = game_chances(*policy, games)[0].tolist()
    state = initial(problem)
    legal = {move: chance_of_move(policy, state, move) for move in legal_actions(state)}
    by_hand = {(move,): chance for move, chance in legal.items()} | {(): 1 - sum(legal.values())}
    found = {end.history: chance for end, chance in zip(games.ends[0], chances, strict=False)}
    assert found == pytest.approx(by_hand, rel=1e-4, abs=1e-7) and len(found) == 7
    won = legal[mdp.action(3, 5, "+")]
    wrong = sum(legal.values()) - won
    illegal = 1 - won - wrong
    expected = {"outcome": won, "sparse": won + 0.1 * wrong, "fined": won - 0.5 * illegal}
    expected["dense"] = won + 0.1 * wrong + 0.05 / 2 * (won + wrong) - 0.05 / 2 * illegal
    expected["progress"] = 1.25 * won
    expected["values"] = (1 + 0.05 * math.log(2)) * won
    for tau in (1, 2, 4):
        closeness = get_reward("ast", {"tau": float(tau)})
        expected[f"ast{tau}"] = 0.0
        for move, chance in legal.items():
            text = written(End(problem, (move,), (), False), problem)
            expected[f"ast{tau}"] += chance * closeness([text], problem)[0].total
    assert {*expected} == {*REWARDS}
    for reward, value in expected.items():
        aim, p = aims(*policy, [problem], reward=reward)
        assert aim.item() == pytest.approx(value, rel=1e-4) and p.item() == pytest.approx(
            won, rel=1e-4
        )


def test_objectives_of_two_numbers_by_enumeration(policy):
    """Every way in which k games can end, each with its chance: by its largest reward, or by how
    many games are won."""
    problem = TWO[0]
    games = open_games([problem])
    chances = game_chances(*policy, games)[0].tolist()
    rewards = ("outcome", "sparse", "fined", "ast2")
    pay = {reward: payoffs(games, reward)[0].tolist() for reward in rewards}
    for k in (2, 4):
        largest = dict.fromkeys(rewards, 0.0)
        for ends in product(range(len(chances)), repeat=k):
            chance = math.prod(chances[end] for end in ends)
            for reward in rewards:
                largest[reward] += chance * max(pay[reward][end] for end in ends)
        for reward, value in largest.items():
            aim, _ = aims(*policy, [problem], f"pass{k}", reward)
            assert aim.item() == pytest.approx(value, rel=1e-4), (reward, k)
    p = aims(*policy, [problem])[1].item()
    by_hand = {f"pass{k}": _any_won(p, k) for k in (2, 4, 16)}
    for terms in (3, 15):
        by_hand[f"upto{terms}"] = sum(_any_won(p, k) / k for k in range(1, terms + 1))
    by_hand |= {"expected": p, "log": math.log(p)}
    assert {*by_hand} == {*OBJECTIVES}
    for objective, value in by_hand.items():
        assert aims(*policy, [problem], objective)[0].item() == pytest.approx(value)


def _any_won(p: float, k: int) -> float:
    """The chance to win any of k games: one, two, and so on to all of them."""
    return sum(math.comb(k, won) * p**won * (1 - p) ** (k - won) for won in range(1, k + 1))


def test_the_number_of_ends():
    """Six actions on two different numbers; 18 and then 6 on three, and an illegal tag in each of
    the 19 states."""
    assert [len(ends) for ends in open_games([TWO[0], THREE[0]]).ends] == [6 + 1, 18 * 6 + 18 + 1]
    assert len(open_games([Problem((0, 4), 4)]).ends[0]) == 5 + 1  # no division by 0


def test_ends_are_all_there_is(policy):
    games = open_games([*TWO, *THREE])
    chances = game_chances(*policy, games)
    assert chances.sum(-1).tolist() == pytest.approx([1.0] * 6) and (chances > -1e-6).all()
    lengths = torch.tensor([len(ends) for ends in games.ends])
    places = torch.arange(chances.shape[1]) < lengths[:, None]
    assert (chances[~places] == 0).all() and (chances[places] != 0).all()
    for i, ends in enumerate(games.ends):
        for end in ends:
            state = initial(end.problem)
            for move in end.history:
                state = step(state, move)
            assert end.problem == [*TWO, *THREE][i] and end.illegal == (not state.terminal)
            assert end.won == (state.nums == (state.target,))


def test_success_is_that_of_the_tree(policy):
    problems = [*TWO, *THREE]
    games = open_games(problems)
    p = (game_chances(*policy, games) * payoffs(games, "outcome")).sum(-1)
    assert p.tolist() == pytest.approx(evaluate(*policy, problems)["success"].tolist(), rel=1e-5)


def test_four_numbers_too():
    problem = Problem((1, 2, 3, 4), 10)
    games = open_games([problem])
    uniform = torch.full((len(games.moves),), 0.02, dtype=torch.float64)
    tree = open_tree([problem])
    p = values(tree, torch.full((len(tree.moves),), 0.02, dtype=torch.float64))[tree.roots].item()
    assert (end_chances(games, uniform) * payoffs(games, "outcome")).sum().item() == pytest.approx(
        p
    )


@pytest.mark.parametrize("reward", STEP_REWARDS)
def test_rewards_of_steps_need_no_other_states(policy, reward):
    """The expected sum over the states that can be won equals that over all games."""
    problems = [
        Problem((2, 3, 7), 13),
        Problem((1, 5, 5), 25),
        Problem((4, 9), 5),
        Problem((1, 2), 100),
    ]
    games = open_games(problems)
    tree = open_tree(problems)
    over_games = (game_chances(*policy, games) * payoffs(games, reward)).sum(-1)
    over_steps = values(tree, move_chances(*policy, tree), step_payoffs(tree, reward))[tree.roots]
    assert over_steps.tolist() == pytest.approx(over_games.tolist(), rel=1e-5)
    assert over_games[3] == 0 and over_games[0] > 0


def test_action_values_are_those_of_equation_9():
    for end in open_games([THREE[0]]).ends[0]:
        state = initial(THREE[0])
        earned = 0.0
        for move in end.history:
            state = step(state, move)
            earned += q_values([state], "soft")[0]
        assert paid(end, "values") == pytest.approx(earned)


# --- which rewards coincide -----------------------------------------------------------------------


@pytest.mark.parametrize("problem", [*TWO[:2], *THREE, Problem((1, 2, 3, 4), 10)])
@pytest.mark.parametrize(
    ("reward", "name", "options"),
    [
        ("sparse", "sparse", {}),
        ("ast1", "ast", {"tau": 1.0}),
        ("ast2", "ast", {"tau": 2.0}),
        ("ast4", "ast", {"tau": 4.0}),
        ("ast2", "ast", {"tau": 2.0, "exact_numbers": False}),
    ],
)
def test_a_finished_game_earns_what_its_expression_earns_as_an_answer(
    problem, reward, name, options
):
    """So the gate of `ast` against other numbers changes nothing here."""
    [ends] = open_games([problem]).ends
    finished = [end for end in ends if not end.illegal][:: max(1, len(ends) // 150)]
    scores = get_reward(name, options)([written(end, problem) for end in finished], problem)
    assert [paid(end, reward) for end in finished] == pytest.approx(
        [score.total for score in scores]
    )


def test_a_finished_game_pays_dense_as_its_steps_do():
    problem = Problem((2, 3, 7), 13)
    score = get_reward("dense", {"lambda_1": 0.05, "lambda_2": 0.05})
    for end in open_games([problem]).ends[0]:
        if not end.illegal and end.history[0].op in "+*":
            state = initial(problem)
            lines = []
            for move in end.history:
                state = step(state, move)
                result = _result(move)
                lines.append(f"{move.a} {move.op} {move.b} = {result}")
            results = " ".join(line.partition("=")[2] for line in lines)
            if not set(results) & set("/-"):
                text = written(end, problem).replace("<think>", "<think>" + "\n".join(lines))
                assert paid(end, "dense") == pytest.approx(score([text], problem)[0].total), text


def _result(move) -> str:
    return mdp.render_number(step(mdp.State(tuple(sorted(move[:2])), 0), move).nums[0]).replace(
        "|", "/"
    )


@pytest.mark.parametrize("problem", [Problem((2, 3, 7), 13), Problem((1, 2, 3, 4), 10)])
def test_rewards_that_are_fines(problem):
    n = len(problem.nums)
    assert fines(problem, "outcome") == [0] * (n - 1)
    assert fines(problem, "sparse") == pytest.approx([1 / 9] * (n - 1))
    assert fines(problem, "fined") == [0.5] * (n - 1)
    dense = [(0.1 + 0.05 / 2 + 0.05 / n - 0.05 * j / (j + n - 1)) / 0.9 for j in range(n - 1)]
    assert fines(problem, "dense") == pytest.approx(dense)
    assert all(fines(problem, reward) is None for reward in ("progress", "values"))
    assert n == 4 or all(fines(problem, reward) is None for reward in ("ast1", "ast2", "ast4"))


def gradient(aim, model) -> torch.Tensor:
    parts = torch.autograd.grad(
        aim.sum(), [*model.parameters()], allow_unused=True, retain_graph=True
    )
    return torch.cat([part.flatten().double() for part in parts if part is not None])


def test_fines_are_all_that_tells_such_rewards_apart(policy):
    """grad of the sparse reward = .9 grad p - .1 grad of the chance of an illegal tag; and they may
    well differ."""
    model, _ = policy
    games = open_games(THREE)
    chances = game_chances(*policy, games)
    is_illegal = torch.zeros_like(chances)
    for i, ends in enumerate(games.ends):
        is_illegal[i, : len(ends)] = torch.tensor([float(end.illegal) for end in ends])
    slopes = {
        r: gradient((chances * payoffs(games, r)).sum(-1), model)
        for r in ("outcome", "sparse", "fined")
    }
    illegal = gradient((chances * is_illegal).sum(-1), model)
    assert torch.allclose(slopes["sparse"], 0.9 * slopes["outcome"] - 0.1 * illegal, atol=1e-6)
    assert torch.allclose(slopes["fined"], slopes["outcome"] - 0.5 * illegal, atol=1e-6)
    assert torch.cosine_similarity(slopes["outcome"], slopes["fined"], dim=0) < 0.999


def test_potential_based_shaping_changes_nothing(policy):
    """F = phi(s') - phi(s) with phi = V*, and 0 where a game ends: the sum over a game is
    -phi(s_0), won or not."""
    model, _ = policy
    games = open_games(THREE)
    chances = game_chances(*policy, games)
    pay = payoffs(games, "outcome")
    shaped = pay.clone()
    for i, ends in enumerate(games.ends):
        for e, end in enumerate(ends):
            potential = [1.0, *(float(count > 0) for count in end.counts)]
            if end.illegal:
                potential.append(0.0)
            else:
                potential[-1] = 0.0
            shaped[i, e] += sum(after - before for before, after in pairwise(potential))
    real = chances != 0
    assert torch.allclose((pay - shaped)[real], torch.ones(int(real.sum()), dtype=torch.float64))
    for i, ends in enumerate(games.ends):  # of eight games two are won, and one is the last end
        won = [e for e, end in enumerate(ends) if end.won]
        drawn = [*won[:2], *range(5), len(ends) - 1]
        advantages = leave_one_out(pay[i, drawn][None])
        assert advantages.abs().max() > 0.5 and torch.allclose(
            advantages, leave_one_out(shaped[i, drawn][None])
        )
    one, other = (gradient((chances * some).sum(-1), model) for some in (pay, shaped))
    assert torch.cosine_similarity(one, other, dim=0) > 0.9999 and torch.allclose(
        one, other, atol=1e-5
    )


def test_sums_of_values_are_no_potential(policy):
    model, _ = policy
    games = open_games(THREE)
    chances = game_chances(*policy, games)
    one, other = (
        gradient((chances * payoffs(games, r)).sum(-1), model) for r in ("outcome", "values")
    )
    assert torch.cosine_similarity(one, other, dim=0) < 0.99


# --- objectives -----------------------------------------------------------------------------------


def test_best_of_k_by_enumeration():
    """All k-tuples of ends, with ties, an end that never happens, and two problems at once."""
    chances = torch.tensor([[0.2, 0.5, 0.3, 0.0], [0.1, 0.1, 0.7, 0.1]], dtype=torch.float64)
    pay = torch.tensor([[0.1, 0.0, 1.0, 5.0], [0.3, 0.3, -0.5, 0.6]], dtype=torch.float64)
    for k in (1, 2, 4):
        plain = []
        for p, v in zip(chances.tolist(), pay.tolist(), strict=True):
            tuples = np.stack(np.meshgrid(*[range(4)] * k), -1).reshape(-1, k)
            total = 0.0
            for some in tuples.tolist():
                total += math.prod(p[i] for i in some) * max(v[i] for i in some)
            plain.append(total)
        assert best_of(chances, pay, k).tolist() == pytest.approx(plain)
    assert torch.allclose(best_of(chances, pay, 1), (chances * pay).sum(-1))


def test_best_of_k_of_two_values_is_pass_at_k(policy):
    games = open_games(THREE)
    chances = game_chances(*policy, games)
    p = (chances * payoffs(games, "outcome")).sum(-1)
    for objective, k in BEST_OF.items():
        assert torch.allclose(
            best_of(chances, payoffs(games, "outcome"), k), of_success(p, objective)
        )
    illegal = torch.zeros_like(p)
    for i, ends in enumerate(games.ends):
        for end, chance in zip(ends, chances[i], strict=False):
            if end.illegal:
                illegal[i] += chance
    by_hand = 0.9 * (1 - (1 - p) ** 4) + 0.1 * (1 - illegal**4)
    assert torch.allclose(best_of(chances, payoffs(games, "sparse"), 4), by_hand)


def test_the_family_between_expected_and_log():
    p = torch.tensor([1e-4, 0.03, 0.5, 0.95], dtype=torch.float64, requires_grad=True)
    for objective in ("upto3", "upto15"):
        [slope] = torch.autograd.grad(of_success(p, objective).sum(), p)
        terms = UP_TO[objective]
        assert torch.allclose(slope, (1 - (1 - p) ** terms) / p) and (slope >= 1).all()
        assert torch.allclose(
            slope.float(), expected_weight("maxrl", p.detach(), terms + 1).float(), rtol=1e-4
        )
        by_hand = sum((1 - (1 - 0.03) ** j) / j for j in range(1, terms + 1))
        assert of_success(p, objective)[1].item() == pytest.approx(by_hand)
    assert ESTIMATORS["maxrl"] is max_rl


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objectives_rise_with_success(objective):
    p = torch.linspace(0.01, 0.99, 50, dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(of_success(p, objective).sum(), p)
    assert (slope > 0).all()


def test_entropy_by_the_chain_rule(policy):
    """The sum over states of the chance to be there times the entropy of what is done there."""
    problem = THREE[0]
    games = open_games([problem])
    found = entropy(game_chances(*policy, games)).item()

    def plain(state) -> float:
        if state.terminal:
            return 0.0
        legal = {move: chance_of_move(policy, state, move) for move in legal_actions(state)}
        rest = 1 - sum(legal.values())
        here = -sum(c * math.log(c) for c in [*legal.values(), rest])
        return here + sum(c * plain(step(state, m)) for m, c in legal.items())

    assert found == pytest.approx(plain(initial(problem)), rel=1e-4)


def test_divergence():
    games = open_games([TWO[0]])
    one = torch.tensor([0.3, 0.1, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    other = torch.tensor([0.1, 0.2, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    p = end_chances(games, one)
    q = end_chances(games, other)
    by_hand = 0.3 * math.log(3) + 0.1 * math.log(0.5) + 0.2 * math.log(0.2 / 0.3)
    assert divergence(p, q).item() == pytest.approx(by_hand) and divergence(p, p).item() == 0


def test_twenty_thousand_games_are_paid_as_computed(playful):
    """The mean reward and the means of the best of 2, 4 and 16, within four standard errors of the
    exact values; and so the entropy of how a game goes, and its divergence from another policy."""
    n = 10_000
    generator = torch.Generator().manual_seed(0)
    sampled = play(*playful, FEW, n, generator)
    games = open_games(FEW)
    chances = game_chances(*playful, games).detach()
    reference = deepcopy(playful[0])
    with torch.no_grad():
        for weights in reference.parameters():
            noise = torch.randn(weights.shape, generator=generator)
            weights += 0.6 * weights.std() * noise
    before = game_chances(reference, playful[1], games).detach()
    for i, problem in enumerate(FEW):
        known = {(end.history, end.illegal): end for end in games.ends[i]}
        ends = [known[_end_of(*playful, game, problem)] for game in sampled[i]]
        assert (
            sum(end.illegal for end in ends) > 100
            and sum(not (end.won or end.illegal) for end in ends) > 100
        )
        for reward in REWARDS:
            earned = {end: paid(end, reward) for end in known.values()}
            of_games = np.array([earned[end] for end in ends])
            pay = payoffs(games, reward)[i]
            for k in BEST_OF.values():
                mean = best_of(chances[i], pay, k).item()
                # of 1 + pay, which is positive
                square = best_of(chances[i], (1 + pay) ** 2, k).item()
                error = math.sqrt((square - (1 + mean) ** 2) / (n / k))
                assert abs(of_games.reshape(-1, k).max(1).mean() - mean) < 4 * error, (reward, k)
        logs = chances[i, : len(games.ends[i])].log()
        others = before[i, : len(games.ends[i])].log()
        places = {end: place for place, end in enumerate(games.ends[i])}
        found = [places[end] for end in ends]
        surprise = -logs[found]
        distance = (logs - others)[found]
        for drawn, exact in ((surprise, entropy(chances)), (distance, divergence(chances, before))):
            error = drawn.std() / math.sqrt(n)
            assert abs(drawn.mean() - exact[i]) < 4 * error and error < 0.1 * abs(exact[i])


def _end_of(model, tokenizer, game, problem) -> tuple:
    state = initial(problem)
    for _, ids in game.turns:
        text = tokenizer.decode(ids[:-1]) if ids[-1] == tokenizer.eos_token_id else ""
        move = parse_action(text, mdp.State(*state.key))
        if isinstance(move, str):
            return state.history, True
        state = step(state, move)
    return state.history, False


CASES = [
    *((objective, "outcome", 0.0, 0.0) for objective in OBJECTIVES),
    *(("expected", reward, 0.0, 0.0) for reward in REWARDS[1:]),
    ("pass4", "sparse", 0.0, 0.0),
    ("pass4", "ast2", 0.0, 0.0),
    ("expected", "outcome", 0.1, 0.0),
    ("expected", "outcome", 0.0, 0.1),
    ("log", "outcome", 0.1, 0.1),
]


@pytest.mark.parametrize(("objective", "reward", "entropy_coef", "kl_coef"), CASES)
def test_the_gradient_is_that_of_finite_differences(
    policy, objective, reward, entropy_coef, kl_coef, monkeypatch
):
    """Along a random direction, in float64, the norm included."""

    def norm(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    monkeypatch.setattr(Qwen2RMSNorm, "forward", norm)
    taught_model, tokenizer = policy
    model, reference = (new_model(tokenizer, hidden=32, layers=2, heads=2) for _ in range(2))
    model.load_state_dict(taught_model.state_dict())
    model = model.double().eval()
    reference = reference.double().eval()
    generator = torch.Generator().manual_seed(0)
    way = [
        torch.randn(one.shape, generator=generator, dtype=torch.float64)
        for one in model.parameters()
    ]

    def at(shift: float) -> torch.Tensor:
        with torch.no_grad():
            for one, some in zip(model.parameters(), way, strict=True):
                one += shift * some
        return aims(model, tokenizer, THREE, objective, reward, entropy_coef, kl_coef, reference)[
            0
        ].mean()

    at(0.0).backward()
    slope = sum(
        (one.grad * some).sum().item() for one, some in zip(model.parameters(), way, strict=True)
    )
    small = 1e-6
    with torch.no_grad():
        high = at(small).item()
        low = at(-2 * small).item()
    assert slope == pytest.approx((high - low) / (2 * small), rel=1e-4) and abs(slope) > 1e-6


@pytest.mark.parametrize(
    ("objective", "reward", "says"),
    [
        ("log", "sparse", "function of success"),
        ("pass4", "values", "use the objective 'expected'"),
    ],
)
def test_what_is_not_computed_is_refused(policy, objective, reward, says):
    with pytest.raises(ValueError, match=says):
        aims(*policy, TWO, objective, reward)


def test_without_bonuses_the_aim_is_success(policy):
    aim, p = aims(*policy, THREE)
    assert aim.tolist() == pytest.approx(success(*policy, open_tree(THREE)).tolist())
    assert aim.tolist() == pytest.approx(p.tolist())


def test_bonuses_are_what_they_say(policy):
    reference = new_model(policy[1], hidden=32, layers=2, heads=2).eval()
    games = open_games(THREE)
    chances = game_chances(*policy, games)
    before = game_chances(reference, policy[1], games)
    aim, p = aims(*policy, THREE, "pass4", "outcome", 0.2, 0.3, reference)
    by_hand = of_success(p, "pass4") + 0.2 * entropy(chances) - 0.3 * divergence(chances, before)
    assert (
        aim.tolist() == pytest.approx(by_hand.tolist())
        and (divergence(chances, before) > 0.1).all()
    )


def test_tables_name_each_reward_once():
    assert (
        len(REWARDS) == len({*STEP_REWARDS, *END_REWARDS})
        and set(PROBLEMS)
        and len(OBJECTIVES) == 7
    )
