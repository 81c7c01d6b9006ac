"""The losses of training as pure functions of log-probabilities: RLOO, and those of preference optimisation.

Equations are those of `ast` (Eq. 1 to 3) and of `dense` (Eq. 2 and 3).
"""

import torch
import torch.nn.functional as F

LARGEST_LEAD = 5.0  # log(ref / pi) of a token, at the most, in the reported KL
PREFERENCE = ("ipo", "ipo_mean", "dpo")  # losses of preference optimisation


def leave_one_out(rewards: torch.Tensor) -> torch.Tensor:
    """A_i = r_i - mean of the group's other rewards (`ast` Eq. 1); argument and result (groups, K), K > 1."""
    k = rewards.shape[-1]
    shifted = rewards - rewards[..., :1]  # makes equal rewards exact zeros, and so their advantages
    return (shifted - shifted.mean(-1, keepdim=True)) * (k / (k - 1))


def rloo_loss(
    logps: torch.Tensor,
    entropies: torch.Tensor,
    sampler_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    importance_cap: float,
    entropy_coef: float = 0.0,
    kl_coef: float = 0.0,
    ref_logps: torch.Tensor | None = None,
    token_weights: torch.Tensor | None = None,
    row_weights: torch.Tensor | None = None,
    ref_weights: torch.Tensor | None = None,
    samples: int | None = None,
    tokens: int | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of `ast` (Eq. 2 and 3) with entropy bonus and KL penalty, and its metrics.

        loss  = -1/samples sum_i rho_i A_i sum_t w_it log pi_it  -  entropy_coef H  +  kl_coef KL
        rho_i = min(exp(sum_t log pi_it - sum_t log mu_it), importance_cap), without gradient

    logps (log pi) and entropies carry the gradient; sampler_logps (log mu), ref_logps, token_weights (w)
    don't, all (B, T); mask (B, T) is 1 on completion tokens; advantages (B,). H and KL are means over completion
    tokens, in nats. Metrics: entropy, importance_mean, importance_max, importance_log and, with ref_logps, kl.

    KL has the gradient log(pi / ref) d log pi of a token, whose mean under pi is that of the true KL. Its value is the
    k3 estimate ref / pi - 1 - log(ref / pi), with log(ref / pi) at most LARGEST_LEAD: one token that the policy has all
    but given up (exp(20) = 5e8) would outweigh all others in the metric, and as k3's own gradient takes ref / pi away
    from itself, rounding would leave noise of that size.

    For a micro-batch, `samples` and `tokens` are the rollouts and completion tokens of the whole update: losses and
    metrics of the micro-batches then add up to those of the update (but importance_max, of which take the maximum).
    Where a row stands for others of the update too, `row_weights` (B,) says for how many in entropy and metrics, and
    `ref_weights` (B,) in KL (0: ref_logps of this row are not read); the policy term is of each row once.
    """
    samples = samples or len(logps)
    tokens = tokens or int(mask.sum())
    rows = torch.ones_like(advantages) if row_weights is None else row_weights
    log_rho = ((logps.detach() - sampler_logps) * mask).sum(-1)
    rho = log_rho.exp().clamp(max=importance_cap)
    weights = mask if token_weights is None else mask * token_weights
    policy = -(rho * advantages * (logps * weights).sum(-1)).sum() / samples
    entropy = ((entropies * mask).sum(-1) * rows).sum() / tokens
    loss = policy - entropy_coef * entropy
    metrics = {
        "entropy": entropy.item(),
        "importance_mean": (rho * rows).sum().item() / samples,
        "importance_max": rho.max().item(),
        "importance_log": (log_rho * rows).sum().item() / samples,
    }
    if ref_logps is not None:
        lead = (ref_logps - logps.detach()) * mask
        bounded = lead.clamp(max=LARGEST_LEAD)
        each = (bounded.exp() - bounded - 1 - lead * (logps - logps.detach())) * mask
        kl = (each.sum(-1) * (rows if ref_weights is None else ref_weights)).sum() / tokens
        loss = loss + kl_coef * kl
        metrics["kl"] = kl.item()
    return loss, metrics


def preference_loss(
    chosen: torch.Tensor, rejected: torch.Tensor, lengths: torch.Tensor, beta: float, loss: str = "ipo"
) -> tuple[torch.Tensor, dict[str, float]]:
    """`dense` Eq. 3 and its relatives, averaged over pairs, and their metrics.

        ipo       (h - 1 / (2 beta))^2,  h = chosen - rejected
        ipo_mean  the same with each log-ratio divided by its completion's length (TRL's "ipo")
        dpo       -log sigmoid(beta h)

    chosen, rejected: log pi / pi_ref of whole completions, (B,); lengths: their tokens, (2, B). Metrics: Eq. 2's
    rewards of both sides and their margin (means), and preferred, the share of pairs with a positive margin.
    """
    units = lengths if loss == "ipo_mean" else (1, 1)
    gap = chosen / units[0] - rejected / units[1]
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
