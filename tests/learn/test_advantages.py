"""The advantages of a group: those that claim to be unbiased are tested by enumeration, the others
by hand."""

from itertools import combinations, product
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lib.learn.settings
from lib.learn.generation import ENGINES
from lib.learn.losses import (
    ADVANTAGES,
    PREFERENCE,
    centred,
    f_grpo,
    grpo,
    leave_one_out,
    max_rl,
    pass_at_k,
)
from lib.learn.settings import Engine, PreferenceSettings
from lib.study.metrics import pass_at_k as share_of_k

LOGITS = torch.tensor([0.3, -0.8, 0.1, 0.9], dtype=torch.float64)  # a policy over four texts
N = 4


def expected_gradient(estimate) -> torch.Tensor:
    """The mean over all groups of N texts of mean_i A_i grad log pi(y_i), with A =
    estimate(texts)."""
    logits = LOGITS.clone().requires_grad_()
    logps = logits.log_softmax(-1)
    total = 0.0
    for texts in product(range(4), repeat=N):
        chance = logps[list(texts)].sum().exp().detach()
        total = total + chance * (estimate(torch.tensor(texts)) * logps[list(texts)]).mean()
    return torch.autograd.grad(total, logits)[0]


def gradient_of_best_of(rewards, k) -> torch.Tensor:
    """Of the literal expectation: the chance of each k texts times the highest of their rewards."""
    logits = LOGITS.clone().requires_grad_()
    p = logits.softmax(-1)
    value = sum(
        p[list(texts)].prod() * max(rewards[list(texts)]) for texts in product(range(4), repeat=k)
    )
    return torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rewards", [[1, 0, 0, 0], [0, 1, 1, 0], [1, 0.1, 0, -0.4]])
def test_pass_at_k_is_the_gradient_of_the_best_of_k(rewards, k):
    rewards = torch.tensor(rewards, dtype=torch.float64)
    found = expected_gradient(lambda texts: pass_at_k(rewards[texts][None], k)[0])
    assert torch.allclose(found, gradient_of_best_of(rewards, k), atol=1e-12)


def test_the_baseline_changes_no_mean_and_less_noise():
    """Against the estimator of the paper, k/n (1 or rho(n-1, c, k-1)), on the same
    groups."""
    rewards = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)
    k = 3

    def plain(texts):
        c = int(rewards[texts].sum())
        wrong = share_of_k(N - 1, min(c, N - 1), k - 1) if c < N else 0.0  # of those that are wrong
        return k * torch.where(rewards[texts] == 1, 1.0, float(wrong))

    def ours(texts):
        return pass_at_k(rewards[texts][None], k)[0]

    assert torch.allclose(expected_gradient(plain), expected_gradient(ours), atol=1e-12)
    groups = [torch.tensor(texts) for texts in product(range(4), repeat=N)]
    assert sum(ours(g).square().sum() for g in groups) < 0.2 * sum(
        plain(g).square().sum() for g in groups
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=3, max_size=7), st.integers(2, 6))
def test_pass_at_k_against_all_choices_of_others(rewards, k):
    k = min(k, len(rewards) - 1)
    values = torch.tensor([rewards], dtype=torch.float64)
    expected = []
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        with_it = [max(reward, *some) for some in combinations(others, k - 1)]
        without = [max(some) for some in combinations(others, k)]
        expected.append(k * (sum(with_it) / len(with_it) - sum(without) / len(without)))
    assert torch.allclose(pass_at_k(values, k), torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_what_the_others_do_anyway_is_exactly_zero(k):
    """So no gradient of it is computed."""
    assert (pass_at_k(torch.full((2, 8), 0.1), k) == 0).all()
    mostly = torch.tensor([[0.0, 1, 0, 1, 1, 1, 0, 1]])
    # three are wrong
    assert (pass_at_k(mostly, 4) == 0).all() and (pass_at_k(mostly, 3) != 0).all()


def test_pass_at_one_is_leave_one_out():
    rewards = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(pass_at_k(rewards, 1), leave_one_out(rewards))


# --- those of other objectives --------------------------------------------------------------------


@pytest.mark.parametrize("rewards", [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]])
def test_max_rl_is_the_gradient_of_the_first_terms_of_the_likelihood(rewards):
    """Of log p = -sum_k (1 - p)^k / k those below K, by enumeration of all groups of N = 4
    texts."""
    rewards = torch.tensor(rewards, dtype=torch.float64)
    found = expected_gradient(lambda texts: max_rl(rewards[texts][None])[0])
    expected = sum(gradient_of_best_of(rewards, k) / k for k in range(1, N))
    assert torch.allclose(found, expected, atol=1e-12)


def test_max_rl_by_hand():
    rewards = torch.tensor(
        [[1.0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1e-9, 0, 0]]
    )
    expected = [[3, -1, -1, -1], [1 / 3, 1 / 3, 1 / 3, -1], [0] * 4, [0] * 4, [-1, 3, -1, -1]]
    assert torch.allclose(max_rl(rewards), torch.tensor(expected))


def test_max_rl_is_refused_for_rewards_of_both_signs():
    """What `dense` gives eight faulty completions: their mean is 0 up to rounding, by which max_rl
    would divide."""
    rewards = torch.tensor([[-0.025, 0, -0.05 / 3, 0.05 / 3, 0.05 / 3, 0.05 / 3, -0.025, 0.05 / 3]])
    assert abs(rewards.mean()) < 1e-8
    with pytest.raises(ValueError, match="at least 0, and one is -0.025"):
        max_rl(rewards)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 2, width=32), min_size=2, max_size=8))
def test_no_advantage_of_max_rl_is_above_the_size_of_the_group(rewards):
    advantages = max_rl(torch.tensor([rewards], dtype=torch.float64))[0]
    assert (advantages >= -1 - 1e-9).all() and (advantages <= len(rewards) - 1 + 1e-9).all()


def test_grpo_divides_no_rounding_by_rounding():
    noise = torch.tensor([[0.5 + 1e-7 * i for i in range(8)]])
    assert (grpo(noise) == 0).all()
    # small rewards, but not their noise
    assert grpo(torch.tensor([[1e-7, 0.0, 0.0, 0.0]])).abs().max() > 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-2, 2, width=16), min_size=2, max_size=8),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
def test_grpo_and_f_grpo_are_the_literal_formulas(rewards, gamma):
    mean = sum(rewards) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    equal = max(rewards) == min(rewards)
    expected = torch.tensor(
        [0.0 if equal else (reward - mean) / spread for reward in rewards], dtype=torch.float64
    )
    values = torch.tensor([rewards], dtype=torch.float64)
    right = values > 0.5
    share = sum(reward > 0.5 for reward in rewards) / len(rewards)
    assert torch.allclose(grpo(values)[0], expected, atol=1e-9)
    assert torch.allclose(
        f_grpo(values, right, gamma)[0], (1 - share) ** gamma * expected, atol=1e-9
    )
    assert torch.equal(f_grpo(values, right, 0.0), grpo(values))


def test_dr_grpo_differs_from_leave_one_out_by_one_factor():
    rewards = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(centred(rewards), rewards - rewards.mean(-1, keepdim=True))
    assert torch.allclose(centred(rewards), 7 / 8 * leave_one_out(rewards))


@pytest.mark.parametrize("estimate", [leave_one_out, max_rl, grpo, centred])
def test_a_group_of_equal_rewards_teaches_nothing(estimate):
    assert (estimate(torch.full((2, 8), 0.1)) == 0).all() and (
        estimate(torch.zeros(2, 8)) == 0
    ).all()


def test_the_grid_may_name_what_there_is():
    """lib.learn.settings lists the names a second time: importing them would cost every command
    seconds of importing torch."""
    assert tuple(lib.learn.settings.ADVANTAGES) == tuple(ADVANTAGES)
    assert get_args(Engine) == tuple(ENGINES)
    assert get_args(PreferenceSettings.model_fields["loss"].annotation) == PREFERENCE
