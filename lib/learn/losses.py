"""The losses of RLOO and of preference optimisation as pure functions of log-probabilities, and the
advantages of a rollout within its group.

The equations are those of `ast` (Eq. 1 to 3) and of `dense` (Eq. 2 and 3); other advantages name
their source."""

from collections.abc import Callable
from math import comb

import torch
import torch.nn.functional as F

LARGEST_LOG_RATIO = 5.0  # largest log(ref / pi) of a token in the reported KL
NOISE = 1e-6  # relative differences below it are rounding: float32 keeps seven digits
PREFERENCE = ("ipo", "dpo")  # losses of preference optimisation


def centred(rewards: torch.Tensor) -> torch.Tensor:
    """A_i = r_i - mean of the group's rewards, including r_i; argument and result (groups, K).

    The advantage of Dr. GRPO (arXiv 2503.20783), which is (K - 1) / K times the leave-one-out
    advantage."""
    # equal rewards become exact zeros, and so do their advantages
    shifted = rewards - rewards[..., :1]
    return shifted - shifted.mean(-1, keepdim=True)


def leave_one_out(rewards: torch.Tensor) -> torch.Tensor:
    """A_i = r_i - mean of the other rewards of the group (`ast` Eq. 1); argument and result
    (groups, K), K > 1."""
    k = rewards.shape[-1]
    return centred(rewards) * (k / (k - 1))


def pass_at_k(rewards: torch.Tensor, k: int) -> torch.Tensor:
    """Pass@k policy optimisation (arXiv 2505.15201) with a leave-one-out baseline; argument and
    result (groups, K), 1 <= k < K.

        A_i = k (mean_J max(r_i, r_J) - mean_J' max r_J')
        J: any k - 1 of the group's others, J': any k of them

    mean_i A_i grad log pi(y_i) is an unbiased estimate of the gradient of E[max of k rewards],
    which is pass@k if rewards are 0 and 1. The first term is the paper's: K times its k/K for a
    correct rollout, and K times its (k/K) rho(K-1, c, k-1) for a wrong one. The second is a
    baseline, which does not depend on y_i. At k = 1 this is Eq. 1."""
    if k == 1:
        return leave_one_out(rewards)
    n = rewards.shape[-1]
    # advantages that should be zero become exact zeros
    shifted = rewards - rewards.max(-1, keepdim=True).values
    others_of = torch.arange(n - 1) + (torch.arange(n - 1) >= torch.arange(n)[:, None])
    others = shifted[..., others_of].sort(-1).values

    def mean_highest(values: torch.Tensor, size: int) -> torch.Tensor:
        """The mean of the highest value over all choices of `size` of these sorted values."""
        return values @ values.new_tensor(
            [comb(j, size - 1) / comb(n - 1, size) for j in range(n - 1)]
        )

    return k * (mean_highest(others.maximum(shifted[..., None]), k - 1) - mean_highest(others, k))


def max_rl(rewards: torch.Tensor) -> torch.Tensor:
    """Maximum likelihood reinforcement learning (arXiv 2602.02710); argument and result (groups,
    K).

        A_i = (r_i - m) / m,  m the mean of the group's rewards; 0 where m is 0

    If rewards are 0 and 1, mean_i A_i grad log pi(y_i) is an unbiased estimate of the gradient of
    sum_{k < K} pass@k / k. These are the first terms of log pass@1, whose gradient gives a problem
    the weight 1 / pass@1.

    Raises ValueError for a reward below 0: a mean of rewards of both signs may be any small number,
    even rounding noise, and the advantages would have any size."""
    if (rewards < 0).any():
        remedy = "take another advantage, or a reward without a penalty"
        raise ValueError(
            f"max_rl is for rewards of at least 0, and one is {rewards.min().item():g}: {remedy}"
        )
    mean = rewards.mean(-1, keepdim=True)
    return torch.where(mean > 0, centred(rewards) / mean, 0.0)


def grpo(rewards: torch.Tensor) -> torch.Tensor:
    """The advantage of GRPO (arXiv 2402.03300); argument and result (groups, K).

        A_i = (r_i - m) / s,  m and s the mean and the standard deviation of the group's rewards

    It is 0 where s is below NOISE times the largest reward in size: such rewards differ by their
    rounding alone. s^2 is the mean of (r_i - m)^2; some implementations divide by K - 1 instead.
    """
    centred_rewards = centred(rewards)
    deviation = centred_rewards.square().mean(-1, keepdim=True).sqrt()
    size = rewards.abs().amax(-1, keepdim=True)
    return torch.where(deviation > NOISE * size, centred_rewards / deviation, 0.0)


def f_grpo(rewards: torch.Tensor, correct: torch.Tensor, gamma: float) -> torch.Tensor:
    """GRPO's advantage times (1 - p)^gamma, where p is the share of the group that is correct, so
    that problems which are mostly solved count less (F-GRPO, arXiv 2602.06717). rewards, correct
    (bool) and the result: (groups, K)."""
    p = correct.to(rewards.dtype).mean(-1, keepdim=True)
    return (1 - p) ** gamma * grpo(rewards)


# by name; their options are those of lib.learn.settings.ADVANTAGES
ADVANTAGES: dict[str, Callable[..., torch.Tensor]] = {
    "leave_one_out": leave_one_out,
    "pass_at_k": pass_at_k,
    "max_rl": max_rl,
    "grpo": grpo,
    "f_grpo": f_grpo,
}
READ_VERDICTS = {"f_grpo"}  # also take `correct`, which a reward of many values does not tell


def advantages_by(
    name: str, rewards: torch.Tensor, correct: torch.Tensor, **options: float
) -> torch.Tensor:
    """The advantages that an entry of ADVANTAGES gives, with its options; rewards, correct (bool)
    and the result: (groups, K)."""
    if name in READ_VERDICTS:
        return ADVANTAGES[name](rewards, correct, **options)
    return ADVANTAGES[name](rewards, **options)


def rloo_loss(
    logps: torch.Tensor,
    entropies: torch.Tensor,
    sampler_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    importance_cap: float,
    entropy_coef: float,
    kl_coef: float,
    row_weights: torch.Tensor,
    ref_weights: torch.Tensor,
    samples: int,
    tokens: int,
    ref_logps: torch.Tensor | None = None,
    token_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of `ast` (Eq. 2 and 3) with an entropy bonus and a KL penalty, and its metrics.

        loss  = -1/samples sum_i rho_i A_i sum_t w_it log pi_it  -  entropy_coef H  +  kl_coef KL
        rho_i = min(exp(sum_t log pi_it - sum_t log mu_it), importance_cap), without gradient

    logps (log pi) and entropies carry the gradient; sampler_logps (log mu), ref_logps and
    token_weights (w) do not. All are (B, T); mask (B, T) is 1 on completion tokens, and advantages
    have shape (B,). H and KL (`token_kl`) are means over completion tokens, in nats. Metrics:
    entropy, importance_mean, importance_max, importance_log and, with ref_logps, kl.

    The batch is a micro-batch: `samples` and `tokens` are the numbers of completions and of their
    tokens in the whole update. Losses and metrics of micro-batches then add up, except
    importance_max, of which the maximum must be taken. A row may represent further rows:
    `row_weights` (B,) is the number of rows that it represents in entropy and metrics, and
    `ref_weights` (B,) the number in KL (if 0, its ref_logps are not read). The policy term counts
    each row once."""
    log_rho = ((logps.detach() - sampler_logps) * mask).sum(-1)
    rho = log_rho.exp().clamp(max=importance_cap)
    weights = mask if token_weights is None else mask * token_weights
    policy = -(rho * advantages * (logps * weights).sum(-1)).sum() / samples
    entropy = ((entropies * mask).sum(-1) * row_weights).sum() / tokens
    loss = policy - entropy_coef * entropy
    metrics = {
        "entropy": entropy.item(),
        "importance_mean": (rho * row_weights).sum().item() / samples,
        "importance_max": rho.max().item(),
        "importance_log": (log_rho * row_weights).sum().item() / samples,
    }
    if ref_logps is not None:
        kl = (token_kl(logps, ref_logps, mask).sum(-1) * ref_weights).sum() / tokens
        loss = loss + kl_coef * kl
        metrics["kl"] = kl.item()
    return loss, metrics


def token_kl(logps: torch.Tensor, ref_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """An estimate of the KL of pi to the reference from each token, in nats, 0 outside the mask.
    Arguments and result are (B, T).

    Its gradient is log(pi / ref) d log pi, whose mean under pi is the gradient of the true KL; that
    of k3 would leave rounding noise of the size of ref / pi. Its value is the k3 estimate ref / pi
    - 1 - log(ref / pi), with log(ref / pi) at most LARGEST_LOG_RATIO, so that no token outweighs
    all others."""
    log_ratio = (ref_logps - logps.detach()) * mask
    bounded = log_ratio.clamp(max=LARGEST_LOG_RATIO)
    return (bounded.exp() - bounded - 1 - log_ratio * (logps - logps.detach())) * mask


def preference_loss(
    chosen: torch.Tensor, rejected: torch.Tensor, beta: float, loss: str = "ipo"
) -> tuple[torch.Tensor, dict[str, float]]:
    """`dense` Eq. 3 and its relative, averaged over pairs, and their metrics.

        ipo  (h - 1 / (2 beta))^2,  h = chosen - rejected
        dpo  -log sigmoid(beta h)

    chosen, rejected: log pi / pi_ref of whole completions, (B,). Metrics: the mean rewards of Eq. 2
    of both sides and their mean margin, and preferred, the share of pairs with a positive margin.
    """
    gap = chosen - rejected
    losses = -F.logsigmoid(beta * gap) if loss == "dpo" else (gap - 1 / (2 * beta)) ** 2
    rewards = beta * torch.stack([chosen, rejected]).detach()
    margin = rewards[0] - rewards[1]
    metrics = {
        "reward_chosen": rewards[0].mean().item(),
        "reward_rejected": rewards[1].mean().item(),
        "margin": margin.mean().item(),
        "preferred": (margin > 0).float().mean().item(),
    }
    return losses.mean(), metrics
