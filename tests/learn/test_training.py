"""The RLOO loss against hand-written gradients and TRL's own GRPO; exact resuming; and that
training improves the policy."""

import hashlib
import itertools
import json
import os
import random
import signal
from collections import namedtuple
from functools import cached_property
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

import lib.learn.settings
import lib.learn.sft
from lib.game.problem import Problem, as_problems
from lib.game.prompts import render_prompt
from lib.learn import losses
from lib.learn.curriculum import Bandit
from lib.learn.demonstrations import TRACES
from lib.learn.generation import ENGINES, Rollouts, Sampling, generate, sample
from lib.learn.losses import (
    ADVANTAGES,
    LARGEST_LOG_RATIO,
    f_grpo,
    grpo,
    leave_one_out,
    max_rl,
    pass_at_k,
)
from lib.learn.model import build_tokenizer, load_policy, new_model, save_policy
from lib.learn.rloo import RLOOTrainer, train_rloo
from lib.learn.settings import RLOOSettings, SFTSettings
from lib.learn.sft import batches_by_length, train_sft
from lib.learn.trainer import Resumable, latest_checkpoint, schedule
from lib.rewards import as_trl, get_reward

Score = namedtuple("Score", "total parts")
PROBLEMS = Dataset.from_list([{"nums": [i + 1, i + 2, i + 3], "target": 10 + i} for i in range(24)])
TIMINGS = "^seconds"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_policy(seed=0):
    tokenizer = build_tokenizer()
    return new_model(tokenizer, hidden=32, layers=2, heads=2, seed=seed), tokenizer


def odds(completions, problem):
    """A reward that a policy without any training can learn: the share of odd digits."""
    scores = []
    for text in completions:
        count = sum(text.count(digit) for digit in "13579")
        scores.append(Score(count / 12, {"odds": float(count), "long": float(len(text) > 12)}))
    return scores


def quick(**changes):
    values = {
        "steps": 4,
        "problems_per_step": 4,
        "group_size": 4,
        "num_iterations": 1,
        "max_tokens": 12,
        "temperature": 1.0,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "decay_steps": 0,
        "average_from": 0,
        "weight_decay": 1e-4,
        "max_grad_norm": 1.0,
        "importance_cap": 100.0,
        "entropy_coef": 0.001,
        "kl_coef": 0.001,
        "idle_share": 0.5,
        "reference_share": 0.5,
        "advantage": "leave_one_out",
        "advantage_options": {},
        "length_price": 0.0,
        "micro_batch": 4,
        "engine": "transformers",
        "eval_every": 2,
        "save_every": 2,
        "seed": 0,
    }
    return RLOOSettings(**values | changes)


def make_trainer(folder, policy=None, **options):
    changes = {
        name: options.pop(name) for name in list(options) if name in RLOOSettings.model_fields
    }
    return RLOOTrainer(
        *(policy or tiny_policy()), PROBLEMS, odds, folder, quick(**changes), **options
    )


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


# --- GPUs -----------------------------------------------------------------------------------------


def test_a_batch_is_not_divided_between_the_gpus_that_are_visible(tmp_path, monkeypatch):
    find = TrainingArguments.__dict__["_setup_devices"].func

    def four_gpus(arguments):
        device = find(arguments)
        arguments._n_gpu = 4
        return device

    devices = cached_property(four_gpus)
    devices.__set_name__(TrainingArguments, "_setup_devices")
    monkeypatch.setattr(TrainingArguments, "_setup_devices", devices)
    assert TrainingArguments(output_dir=str(tmp_path), use_cpu=True).n_gpu == 4
    config = make_trainer(tmp_path, problems_per_step=4).args
    assert (config.n_gpu, config.train_batch_size) == (1, 4)


def test_a_cpu_trains_in_bfloat16_if_asked(tmp_path):
    """The update reads what the sampler drew in the same type, so that they differ by rounding
    alone. The weights, which AdamW changes, stay float32."""
    save_policy(*tiny_policy(), tmp_path / "start")
    rows = {}
    for asked in (False, True):
        policy = load_policy(tmp_path / "start", bfloat16=asked)
        trainer = make_trainer(tmp_path / str(asked), policy)
        assert trainer.args.bf16 == asked
        gradient_of_update(trainer)
        assert {weights.dtype for weights in trainer.model.parameters()} == {torch.float32}
        rows[asked] = trainer.row
    assert rows[True]["importance_max"] == pytest.approx(1, abs=0.05)
    difference = abs(rows[True]["entropy"] - rows[False]["entropy"])
    assert 1e-7 < difference < 0.01


def test_a_gpu_without_bfloat16_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Tesla T4")
    with pytest.raises(RuntimeError, match="Tesla T4 has no bfloat16"):
        make_trainer(tmp_path)


# --- advantages -----------------------------------------------------------------------------------


def test_leave_one_out_by_hand():
    # others of the first: (0 + 0.1 + 0.1) / 3; of the second: 1.2 / 3; of the others: 1.1 / 3
    expected = [[1 - 0.2 / 3, 0 - 1.2 / 3, 0.1 - 1.1 / 3, 0.1 - 1.1 / 3]]
    assert torch.allclose(
        leave_one_out(torch.tensor([[1.0, 0.0, 0.1, 0.1]])), torch.tensor(expected)
    )


rewards_of_groups = st.integers(2, 8).flatmap(
    lambda k: st.lists(st.lists(st.floats(-2, 2), min_size=k, max_size=k), min_size=1, max_size=4)
)


@settings(max_examples=50, deadline=None)
@given(rewards_of_groups, st.floats(-5, 5))
def test_advantages_sum_to_zero_and_ignore_a_shift(rewards, shift):
    rewards = torch.tensor(rewards, dtype=torch.float64)
    advantages = leave_one_out(rewards)
    assert advantages.sum(-1).abs().max() < 1e-9
    assert torch.allclose(leave_one_out(rewards + shift), advantages, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "price"), [*((name, 0.0) for name in ADVANTAGES), ("pass_at_k", 0.3)]
)
def test_the_update_has_the_advantages_that_the_settings_name(tmp_path, name, price):
    """Rewards and verdicts reach the function, group by group, and each rollout pays for its own
    tokens."""
    chosen = {"pass_at_k": {"k": 3}, "f_grpo": {"gamma": 2.0}}.get(name, {})
    options = {
        "advantage": name,
        "advantage_options": chosen,
        "length_price": price,
        "max_tokens": 80,
    }
    trainer = make_trainer(tmp_path, idle_share=1.0, **options)
    trainer.is_correct = lambda text, problem: "1" in text
    gradient_of_update(trainer)
    rows = rows_laid_out(trainer)
    texts = trainer.processing_class.batch_decode(
        [row[1][row[2] == 1] for row in rows], skip_special_tokens=True
    )
    totals = torch.tensor([score.total for score in odds(texts, None)]).view(4, 4)
    correct = torch.tensor(["1" in text for text in texts]).view(4, 4)
    found = torch.stack([row[3] for row in rows]).view(4, 4)
    lengths = torch.stack([row[2].sum() for row in rows]).view(4, 4)
    others = (lengths.sum(-1, keepdim=True) - lengths) / 3
    plain = {
        "leave_one_out": leave_one_out(totals),
        "pass_at_k": pass_at_k(totals, 3),
        "max_rl": max_rl(totals),
        "grpo": grpo(totals),
        "f_grpo": f_grpo(totals, correct, 2.0),
    }
    expected = plain[name] - price * (lengths - others) / 80
    assert (
        torch.allclose(found, expected, atol=1e-5) and found.any() and lengths.unique().numel() > 1
    )


FIELDS = ("prompt", "labels", "mask", "advantages")


def rows_laid_out(trainer):
    """`FIELDS` of each rollout of an update, in the order of its prompts."""
    rows = []
    for batch in trainer.micro_batches:
        rows += zip(*map(batch.get, FIELDS), strict=True)
    return sorted(rows, key=lambda row: int(row[0]))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pass_at_7", {}, "there is no such advantage: did you mean 'pass_at_k'"),
        ("leave_one_out", {"k": 2}, "has no option 'k'"),
        ("pass_at_k", {}, "needs advantage_options with k"),
        ("pass_at_k", {"k": 4}, "takes 1 to 3"),
        ("pass_at_k", {"k": 1.5}, "k of 'pass_at_k' is 1.5: "),
        ("f_grpo", {"gamma": -1.0}, "gamma of 'f_grpo' is -1.0: "),
    ],
)
def test_an_advantage_that_a_group_cannot_have_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        quick(advantage=name, advantage_options=options)


def test_the_options_of_the_settings_are_those_of_the_functions():
    given = {"rewards", "correct"}
    options = {name: {*signature(ADVANTAGES[name]).parameters} - given for name in ADVANTAGES}
    assert options == {name: {*bounds} for name, bounds in lib.learn.settings.ADVANTAGES.items()}


# --- the loss -------------------------------------------------------------------------------------

B, T, V = 5, 7, 11


def random_batch(seed=0):
    """Logits of policy and reference, tokens, mask, sampler, weights and advantages, in float64."""
    draw = torch.Generator().manual_seed(seed)
    logits, ref = (torch.randn(B, T, V, generator=draw, dtype=torch.float64) for _ in range(2))
    tokens = torch.randint(V, (B, T), generator=draw)
    mask = torch.zeros(B, T, dtype=torch.float64)
    for i in range(B):
        mask[i, 2 : 3 + i] = 1
    sampler = log_probs(logits, tokens) + 0.3 * torch.randn(
        B, T, generator=draw, dtype=torch.float64
    )
    weights = torch.rand(B, T, generator=draw, dtype=torch.float64)
    advantages = torch.randn(B, generator=draw, dtype=torch.float64)
    return logits.requires_grad_(), ref, tokens, mask, sampler, weights, advantages


def rloo_loss(logps, entropies, sampler, advantages, mask, **options):
    """The loss of a batch that is the whole update and in which each row stands for itself, unless
    `options` differ."""
    whole = {"samples": len(logps), "tokens": int(mask.sum()), "entropy_coef": 0.0, "kl_coef": 0.0}
    whole |= dict.fromkeys(("row_weights", "ref_weights"), torch.ones_like(advantages))
    return losses.rloo_loss(logps, entropies, sampler, advantages, mask, **whole | options)


def log_probs(logits, tokens):
    return logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)


def entropies_of(logits):
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def naive_gradient(batch, clip, entropy_coef, kl_coef, weighted):
    """d loss / d logits, written out token by token; the score d log pi / d logits is onehot -
    p."""
    logits, ref, tokens, mask, sampler, weights, advantages = batch
    p = logits.detach().softmax(-1)
    q = ref.softmax(-1)
    total = mask.sum()
    result = torch.zeros_like(p)
    for i in range(B):
        where = [t for t in range(T) if mask[i, t]]
        log_ratio = sum(p[i, t, tokens[i, t]].log() - sampler[i, t] for t in where)
        rho = min(float(np.exp(log_ratio)), clip)
        for t in where:
            score = -p[i, t].clone()
            score[tokens[i, t]] += 1
            weight = weights[i, t] if weighted else 1.0
            result[i, t] -= rho * advantages[i] * weight * score / B
            entropy = -(p[i, t] * p[i, t].log()).sum()
            result[i, t] -= entropy_coef / total * -p[i, t] * (p[i, t].log() + entropy)
            log_ratio_to_ref = p[i, t, tokens[i, t]].log() - q[i, t, tokens[i, t]].log()
            result[i, t] += kl_coef / total * log_ratio_to_ref * score
    return result


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clip", [100.0, 1.1])
def test_gradient_is_that_of_the_formula(clip, weighted):
    batch = random_batch()
    logits, ref, tokens, mask, sampler, weights, advantages = batch
    loss, metrics = rloo_loss(
        log_probs(logits, tokens),
        entropies_of(logits),
        sampler,
        advantages,
        mask,
        importance_cap=clip,
        entropy_coef=0.3,
        kl_coef=0.7,
        ref_logps=log_probs(ref, tokens),
        token_weights=weights if weighted else None,
    )
    loss.backward()
    assert relative(logits.grad, naive_gradient(batch, clip, 0.3, 0.7, weighted)) < 1e-10
    assert (metrics["importance_max"] == clip) == (clip == 1.1)  # the small bound really cuts


def test_weights_of_tokens_touch_the_policy_term_only():
    logits, ref, tokens, mask, sampler, weights, _ = random_batch()
    arguments = (log_probs(logits, tokens), entropies_of(logits), sampler)
    options = {
        "importance_cap": 100.0,
        "entropy_coef": 0.3,
        "kl_coef": 0.7,
        "ref_logps": log_probs(ref, tokens),
    }
    nothing_to_learn = torch.zeros(B, dtype=torch.float64)
    plain, metrics = rloo_loss(*arguments, nothing_to_learn, mask, **options)
    weighted, same = rloo_loss(*arguments, nothing_to_learn, mask, token_weights=weights, **options)
    assert weighted == plain and metrics == same


def test_expected_kl_gradient_is_the_gradient_of_kl():
    """Averaged over tokens under the policy, value and gradient of the estimate are KL(pi ||
    ref)'s."""
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(V, generator=draw, dtype=torch.float64).requires_grad_()
    ref = torch.randn(V, generator=draw, dtype=torch.float64)
    p = logits.softmax(-1)
    log_p = logits.log_softmax(-1)
    log_q = ref.log_softmax(-1)
    (exact,) = torch.autograd.grad((p * (log_p - log_q)).sum(), logits, retain_graph=True)
    expected = torch.zeros(V, dtype=torch.float64)
    value = 0.0
    column = torch.ones(1, 1, dtype=torch.float64)
    for token in range(V):
        logps = log_p[token].view(1, 1)
        zero = torch.zeros(1, 1, dtype=torch.float64)
        loss, metrics = rloo_loss(
            logps,
            zero,
            logps.detach(),
            zero[0],
            column,
            importance_cap=1.0,
            kl_coef=1.0,
            ref_logps=log_q[token].view(1, 1),
        )
        expected += p[token].item() * torch.autograd.grad(loss, logits, retain_graph=True)[0]
        value += p[token].item() * metrics["kl"]
    assert relative(expected, exact) < 1e-10
    assert value == pytest.approx((p * (log_p - log_q)).sum().item())


def test_the_importance_weight_has_no_gradient_and_is_truncated():
    logps = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]], requires_grad=True)
    sampler = torch.tensor([[-2.0, -2.0], [-9.0, -9.0]])  # log ratios 2 and 16
    ones = torch.ones(2, 2)
    loss, metrics = rloo_loss(
        logps, torch.zeros(2, 2), sampler, torch.ones(2), ones, importance_cap=100.0
    )
    loss.backward()
    e2 = float(np.exp(2))
    assert torch.allclose(logps.grad, torch.tensor([[-e2 / 2] * 2, [-50.0] * 2]))
    assert metrics["importance_max"] == 100.0
    assert metrics["importance_mean"] == pytest.approx((e2 + 100) / 2)
    # of the weights before they are truncated
    assert metrics["importance_log"] == pytest.approx((2 + 16) / 2)


def test_micro_batches_add_up_to_the_update():
    logits, ref, tokens, mask, sampler, weights, advantages = random_batch()
    tensors = [log_probs(logits, tokens), entropies_of(logits), sampler, advantages, mask]
    options = {"importance_cap": 2.0, "entropy_coef": 0.3, "kl_coef": 0.7}
    whole, metrics = rloo_loss(
        *tensors, ref_logps=log_probs(ref, tokens), token_weights=weights, **options
    )
    parts = []
    for rows in (slice(0, 1), slice(1, 5)):
        part = rloo_loss(
            *(x[rows] for x in tensors),
            ref_logps=log_probs(ref, tokens)[rows],
            token_weights=weights[rows],
            samples=B,
            tokens=int(mask.sum()),
            **options,
        )
        parts.append(part)
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(whole.item())
    for name in ("entropy", "kl", "importance_mean"):
        assert sum(part[name] for _, part in parts) == pytest.approx(metrics[name])


# --- the trainer's gradient -----------------------------------------------------------------------


def off_policy_generate(*arguments):
    """The real rollouts, as if the sampler's log-probabilities were off, some by more than
    log(1.5)."""
    out = generate(*arguments)
    noise = np.random.default_rng(0)
    logprobs = []
    for row in out.logprobs:
        logprobs.append([x + float(noise.normal(0, 0.2)) for x in row])
    return out._replace(logprobs=logprobs)


def gradient_of_update(trainer):
    trainer.model.train().zero_grad()
    trainer.take_rollouts(as_problems(PROBLEMS.select(range(trainer.settings.problems_per_step))))
    trainer.differentiate(trainer.model)
    return gradient(trainer.model)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_gradient_is_that_of_trls_own_grpo(tmp_path, monkeypatch):
    """TRL's luspo with truncated sequence weights is our policy term, but for leave-one-out's K /
    (K - 1)."""
    monkeypatch.setitem(ENGINES, "transformers", off_policy_generate)
    clip = 1.5
    k = 4
    ours = make_trainer(
        tmp_path / "ours", group_size=k, entropy_coef=0.0, kl_coef=0.0, importance_cap=clip
    )
    mine = gradient_of_update(ours)
    assert ours.row["importance_max"] == clip
    theirs = gradient_of_luspo(tmp_path / "theirs", clip, k)
    assert relative(theirs * k / (k - 1), mine) < 1e-5


def gradient_of_luspo(folder, clip, k):
    """The gradient of TRL's luspo in an update of our trainer: the same policy, prompts, groups of
    `k` rollouts and rewards, and sequence weights truncated at `clip`."""
    model, tokenizer = tiny_policy()
    prompts = [render_prompt(row["nums"], row["target"]) for row in PROBLEMS.select(range(4))]
    rows = [{"prompt": prompt} for prompt in prompts for _ in range(k)]

    def reward(prompts, completions, **columns):
        return [score.total for score in odds(completions, None)]

    theirs = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=luspo_settings(folder, clip, k),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        rollout_func=our_rollouts(tokenizer, k),
    )
    # what TRL does where vLLM sampled, without vLLM: the weights count as loaded
    theirs.use_vllm = True
    theirs._last_loaded_step = 0
    theirs.current_gradient_accumulation_steps = 1
    theirs.model.train()
    inputs = theirs._generate_and_score_completions(rows)
    theirs._compute_loss(theirs.model, inputs).backward()
    return gradient(theirs.model)


def luspo_settings(folder, clip, k):
    return GRPOConfig(
        output_dir=str(folder),
        loss_type="luspo",
        importance_sampling_level="token",
        vllm_importance_sampling_mode="sequence_truncate",
        vllm_importance_sampling_clip_max=clip,
        scale_rewards="none",
        beta=0.0,
        num_generations=k,
        per_device_train_batch_size=16,
        max_completion_length=12,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
    )


def our_rollouts(tokenizer, k):
    """What TRL calls for rollouts: those that our trainer draws in its first update."""

    def rollouts(prompts, trainer):
        ids = [tokenizer(prompt).input_ids for prompt in prompts]
        draw = torch.Generator().manual_seed(0)
        out = off_policy_generate(
            trainer.model, ids[::k], k, Sampling(max_tokens=12), tokenizer.eos_token_id, draw
        )
        return {"prompt_ids": ids, "completion_ids": out.ids, "logprobs": out.logprobs}

    return rollouts


def test_gradient_does_not_depend_on_micro_batches(tmp_path):
    whole = make_trainer(
        tmp_path / "a", micro_batch=16, token_weights=lambda ids: np.linspace(0, 1, len(ids))
    )
    parts = make_trainer(
        tmp_path / "b", micro_batch=2, token_weights=lambda ids: np.linspace(0, 1, len(ids))
    )
    assert relative(gradient_of_update(parts), gradient_of_update(whole)) < 1e-5


def test_weights_of_tokens_reach_the_gradient(tmp_path):
    none = make_trainer(
        tmp_path, entropy_coef=0.0, kl_coef=0.0, token_weights=lambda ids: [0.0] * len(ids)
    )
    assert gradient_of_update(none).abs().max() == 0


def test_on_policy_the_importance_weight_is_one_at_every_temperature(tmp_path):
    """The sampler draws from the policy that is updated: the model at this temperature."""
    usual, hot = (
        make_trainer(tmp_path / str(degrees), temperature=degrees) for degrees in (1.0, 1.5)
    )
    for trainer in (usual, hot):
        gradient_of_update(trainer)
        assert trainer.row["importance_mean"] == pytest.approx(1, abs=1e-5)
        assert trainer.row["importance_max"] == pytest.approx(1, abs=1e-5)
        assert trainer.row["importance_log"] == pytest.approx(0, abs=1e-5)
        assert trainer.row["kl"] == pytest.approx(0, abs=1e-6)  # of a policy with itself
    assert hot.row["entropy"] > usual.row["entropy"] + 1e-4


def signs(completions, problem):
    """A reward that about half of the groups agree on."""
    return [Score(float("1" in text), {}) for text in completions]


def differentiated_update(folder, reward=signs, seed=0, **changes):
    """Gradient and metrics of the first update, at advantages that are 0 for some rollouts and not
    for others."""
    trainer = make_trainer(folder, policy=tiny_policy(3), seed=seed, **changes)
    trainer.reward = reward
    with torch.no_grad():
        # away from its reference, so that there is a KL
        for parameter in trainer.model.parameters():
            parameter.add_(
                0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
            )
    return gradient_of_update(trainer), trainer


def rows_read(trainer):
    return sum(len(batch["mask"]) for batch in trainer.micro_batches)


def test_rollouts_without_advantage_need_no_policy_gradient(tmp_path):
    """Left out, the gradient is the full one within rounding, of a quarter of the rollouts fewer at
    the least."""
    coefficients = {"entropy_coef": 0.0, "kl_coef": 0.0, "group_size": 4, "problems_per_step": 8}
    whole, all_of_them = differentiated_update(tmp_path / "a", idle_share=1.0, **coefficients)
    part, trainer = differentiated_update(tmp_path / "b", idle_share=1e-9, **coefficients)
    assert relative(part, whole) < 2e-6
    assert rows_read(all_of_them) == 32
    assert 1 < rows_read(trainer) <= 24


@pytest.mark.parametrize("shares", [{"idle_share": 0.3}, {"reference_share": 0.3}])
def test_shares_leave_entropy_and_kl_unbiased(tmp_path, shares):
    """Over many draws of the rows, weights and so sums over all rollouts have the mean of the full
    computation."""
    trainer = make_trainer(
        tmp_path, micro_batch=16, **{"idle_share": 1.0, "reference_share": 1.0} | shares
    )
    advantages = np.array(
        [0.0, 1.0, -1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    )
    stands_for = np.zeros(16)
    reads = np.zeros(16)
    for step in range(4000):
        trainer.state.global_step = step
        rows, weights, ref_weights = trainer.with_gradient(advantages)
        assert {1, 2, 6} <= set(rows.tolist()) and weights.sum() == pytest.approx(16)
        assert weights[np.isin(rows, [1, 2, 6])].tolist() == [1, 1, 1]
        stands_for[rows] += weights / 4000
        reads[rows] += ref_weights / 4000
    assert stands_for == pytest.approx(np.ones(16), abs=0.15)
    assert reads == pytest.approx(np.ones(16), abs=0.15)


def test_weighted_rows_stand_for_others_in_entropy_and_kl_alone():
    """Every choice of two of five rows as those that are kept, each of the two with weight 5 / 2,
    averages to all."""
    logits, ref, tokens, mask, sampler, _, _ = random_batch()
    tensors = [
        log_probs(logits, tokens),
        entropies_of(logits),
        sampler,
        torch.zeros(B, dtype=torch.float64),
        mask,
    ]
    options = {"importance_cap": 2.0, "entropy_coef": 0.3, "kl_coef": 0.7}
    ref_logps = log_probs(ref, tokens)
    whole, metrics = rloo_loss(*tensors, ref_logps=ref_logps, **options)
    (expected,) = torch.autograd.grad(whole, logits, retain_graph=True)
    found = torch.zeros_like(expected)
    mean = dict.fromkeys(metrics, 0.0)
    for pair in itertools.combinations(range(B), 2):
        rows = list(pair)
        weights = torch.full((2,), B / 2, dtype=torch.float64)
        options |= {
            "samples": B,
            "tokens": int(mask.sum()),
            "row_weights": weights,
            "ref_weights": weights,
        }
        loss, part = rloo_loss(*(x[rows] for x in tensors), ref_logps=ref_logps[rows], **options)
        found += torch.autograd.grad(loss, logits, retain_graph=True)[0] / 10
        mean = {name: mean[name] + value / 10 for name, value in part.items()}
    assert relative(found, expected) < 1e-10
    for name in ("entropy", "kl", "importance_mean", "importance_log"):
        assert mean[name] == pytest.approx(metrics[name])


def completions_of(model, texts, batch):
    """log pi and entropies of the completions at the end of `texts`, each read on its own, padded
    as in `batch`."""
    result = torch.zeros(2, *batch["mask"].shape)
    for row, (text, labels, mask) in enumerate(
        zip(texts, batch["labels"], batch["mask"] == 1, strict=True)
    ):
        logits = model(input_ids=torch.tensor([text])).logits[0, -int(mask.sum()) :]
        result[0, row, mask] = log_probs(logits, labels[mask])
        result[1, row, mask] = entropies_of(logits)
    return result


def test_shares_of_one_are_the_full_computation(tmp_path):
    """Of every rollout, read as one text with its prompt by policy and reference, and the loss
    written out."""
    mine, trainer = differentiated_update(tmp_path, idle_share=1.0, reference_share=1.0)
    batches = trainer.micro_batches
    assert sum(len(batch["mask"]) for batch in batches) == 16
    assert all(
        (batch[name] == 1).all() for batch in batches for name in ("row_weights", "ref_weights")
    )
    trainer.model.zero_grad()
    tokens = sum(batch["mask"].sum() for batch in batches)
    for batch in batches:
        texts = [
            trainer.prompts["ids"][i][trainer.prompts["attention"][i] == 1].tolist()
            + ids[:1]
            + labels[: n - 1]
            for i, ids, labels, n in zip(
                batch["prompt"],
                batch["ids"].tolist(),
                batch["labels"].tolist(),
                batch["mask"].sum(-1).int().tolist(),
                strict=True,
            )
        ]
        logps, entropies = completions_of(trainer.model, texts, batch)
        with torch.no_grad():
            ref_logps, _ = completions_of(trainer.reference, texts, batch)
        lead = ref_logps - logps
        k3 = (lead.exp() - lead - 1) * (logps - logps.detach()).exp()
        rho = (
            ((logps.detach() - batch["sampler_logps"]) * batch["mask"]).sum(-1).exp().clamp(max=100)
        )
        policy = -(rho * batch["advantages"] * (logps * batch["mask"]).sum(-1)).sum() / 16
        loss = (
            policy
            - 0.001 * (entropies * batch["mask"]).sum() / tokens
            + 0.001 * (k3 * batch["mask"]).sum() / tokens
        )
        loss.backward()
    assert relative(mine, gradient(trainer.model)) < 5e-6


def test_a_token_that_the_policy_gave_up_does_not_swamp_kl():
    """The reference finds it exp(20) times as probable: k3 would say 5e8 and leave rounding of 30
    in its gradient. A token that the reference finds as improbable counts in full."""
    logps = torch.tensor([[-21.0, -1.0, -1.0, -1.0]], requires_grad=True)
    loss, metrics = rloo_loss(
        *(logps, torch.zeros(1, 4), logps.detach(), torch.zeros(1), torch.ones(1, 4)),
        importance_cap=1.0,
        kl_coef=1.0,
        ref_logps=torch.tensor([[-1.0, -1.5, -21.0, -1.0]]),
    )
    loss.backward()
    # log(pi / ref) of each, over four tokens
    assert logps.grad.tolist() == [[-5.0, 0.125, 5.0, 0.0]]
    gave_up = np.exp(LARGEST_LOG_RATIO) - LARGEST_LOG_RATIO - 1
    half = np.exp(-0.5) + 0.5 - 1
    found = 20 - 1
    assert metrics["kl"] == pytest.approx((gave_up + half + found) / 4, rel=1e-5)


def bpe_policy():
    """A tiny policy over a byte-level BPE trained on traces, where a token may reach over the end
    of `</answer>`."""
    rng = random.Random(0)
    problems = [Problem((i + 3, i + 1, 2), 2 * i + 6) for i in range(20)]
    texts = [TRACES["trace_proof"](problem, rng, 0) + "\n" for problem in problems]
    bpe = Tokenizer(models.BPE())
    # like Qwen's: a line's end joins what stands before it
    pieces = Regex(r"[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+\n*|\s+")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pieces, "isolated"), byte_level]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, show_progress=False, special_tokens=["<pad>", "<eos>"]
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>")
    return (new_model(tokenizer, hidden=32, layers=2, heads=2), tokenizer), texts


def completion_logp(model, prompt, ids):
    with torch.inference_mode():
        logps = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
    return sum(logps[len(prompt) + t - 1, token].item() for t, token in enumerate(ids))


def test_token_ids_go_to_the_update_because_a_cut_text_does_not_lead_back_to_them(tmp_path):
    """`trace`, Appendix C: tokens around `</answer>` change when the cut text is tokenised
    again."""
    (model, tokenizer), texts = bpe_policy()
    own = build_tokenizer()
    gaps = []
    for text in texts:
        drawn = tokenizer(text).input_ids
        cut = text.partition("</answer>")[0] + "</answer>"
        again = tokenizer(cut).input_ids
        assert tokenizer.decode(drawn) == text and again != drawn[: len(again)]
        gaps.append(completion_logp(model, [5], again) - completion_logp(model, [5], drawn))
        ours = own(text).input_ids  # one token a digit or a tag: what is cut is tokenised as before
        assert own(cut).input_ids == ours[: len(own(cut).input_ids)]
    # of a policy that knows nothing yet; with the ids drawn it is rounding:
    assert np.abs(gaps).min() > 0.005

    trainer = make_trainer(tmp_path, policy=(model, tokenizer))
    gradient_of_update(trainer)
    assert trainer.row["importance_mean"] == pytest.approx(1, abs=1e-5)
    assert trainer.row["importance_log"] == pytest.approx(0, abs=1e-5)


def test_the_mask_holds_the_completion_and_its_end(tmp_path):
    trainer = make_trainer(tmp_path, group_size=2, idle_share=1e-9)
    ids = [[4], [5], [5], [8, 9, 1]]
    logps = [[-0.4], [-0.5], [-0.5], [-0.1, -0.2, -0.3]]
    rollouts = Rollouts(ids, logps, logps, ["stop"] * 4)
    trainer.lay_out([[2, 6], [2, 3, 7]], rollouts, torch.tensor([1.0, 0.0, 0.0, 2.0]))
    # of the first and the last, and one of the others in their place
    (batch,) = trainer.micro_batches
    # of all four rollouts
    assert len(batch["labels"]) == 3 and (batch["samples"], batch["tokens"]) == (4, 6)
    at = [batch["labels"][:, 0].tolist().index(first) for first in (4, 8)]
    batch = {
        name: batch[name][at].tolist()
        for name in ("prompt", "ids", "labels", "mask", "sampler_logps")
    }
    assert batch["prompt"] == [0, 1]
    assert batch["ids"] == [[6, 0, 0], [7, 8, 9]] and batch["labels"] == [[4, 0, 0], [8, 9, 1]]
    assert batch["mask"] == [[1, 0, 0], [1, 1, 1]]
    assert batch["sampler_logps"] == [
        pytest.approx([-0.4, 0, 0]),
        pytest.approx([-0.1, -0.2, -0.3]),
    ]


class Noted(Bandit):
    """A curriculum that notes what it learns from."""

    def __init__(self, *data):
        super().__init__(*data)
        self.learned = []

    def learn(self, signal, correct):
        self.learned.append((signal, correct))
        return super().learn(signal, correct)


@pytest.fixture(scope="module")
def updated(tmp_path_factory):
    """One update of four problems with given rewards: its trainer, the rewards (`totals`), the
    tokens of each completion (`drawn`), and which of them are correct, per problem."""
    curriculum = Noted(as_problems(PROBLEMS), np.arange(24.0), 4, 0)
    trainer = make_trainer(
        tmp_path_factory.mktemp("updated"), idle_share=1.0, max_tokens=80, curriculum=curriculum
    )
    # 1 in the first group, 2 in the second
    trainer.is_correct = lambda text, problem: str(problem.nums[0]) in text
    curriculum.draw(4, 0)
    # two groups of equal rewards
    totals = [[1.0, 0.0, 0.5, 0.5], [0.0] * 4, [1.0, 0.0, 0.0, 0.0], [1.0] * 4]
    groups = iter(totals)
    trainer.reward = lambda texts, problem: [
        Score(total, {"half": total / 2}) for total in next(groups)
    ]
    gradient_of_update(trainer)
    drawn = [labels[mask == 1] for _, labels, mask, _ in rows_laid_out(trainer)]
    texts = trainer.processing_class.batch_decode(drawn, skip_special_tokens=True)
    correct = np.array([str(1 + i // 4) in text for i, text in enumerate(texts)]).reshape(4, 4)
    assert 0 < correct.mean() < 1
    return SimpleNamespace(trainer=trainer, totals=totals, drawn=drawn, correct=correct)


def test_the_row_of_an_update_describes_all_of_its_rollouts(updated):
    end = updated.trainer.processing_class.eos_token_id
    ended = np.mean([ids[-1] == end for ids in updated.drawn])
    assert 0 < ended < 0.5
    expected = {
        "reward": np.mean(updated.totals),
        "reward_half": np.mean(updated.totals) / 2,
        "accuracy": updated.correct.mean(),
        "completion_length": np.mean([len(ids) for ids in updated.drawn]),
        "truncated": 1 - ended,
        "frac_zero_std": 0.5,
    }
    row = updated.trainer.row
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_the_curriculum_learns_from_the_advantages_and_the_share_correct(updated):
    """From the mean |advantage| and the share of correct rollouts of each problem."""
    [(signal, share)] = updated.trainer.curriculum.learned
    assert share == updated.correct.mean(-1).tolist()
    # the advantages of the third group are 1 and three times -1/3
    assert signal == pytest.approx([1 / 3, 0, 0.5, 0])


def test_the_draws_of_an_update_depend_on_the_seed_and_the_step_alone(tmp_path):
    """By the formulas with which the published runs were drawn."""
    trainer = make_trainer(tmp_path, seed=3, prompt_style="words")
    tokenizer = build_tokenizer()
    trainer.state.global_step = 5
    prompts, out = trainer.draw_rollouts(as_problems(PROBLEMS.select(range(2))))
    asked = [render_prompt([i + 1, i + 2, i + 3], 10 + i, "words") for i in range(2)]
    assert prompts == tokenizer(asked).input_ids
    draw = torch.Generator(trainer.model.device).manual_seed(3 * 1_000_003 + 5)
    assert out == generate(
        trainer.model, prompts, 4, Sampling(max_tokens=12), tokenizer.eos_token_id, draw
    )
    rows, *_ = trainer.with_gradient(np.zeros(16))
    assert rows.tolist() == sorted(np.random.default_rng([3, 5]).permutation(16)[:8])


def test_a_prompt_is_read_with_a_gradient_once_in_an_update(tmp_path, monkeypatch):
    """What else the policy reads are completions, each behind its prompt's last token."""
    trainer = make_trainer(tmp_path, idle_share=1.0, reference_share=1.0)
    read = []
    forward = type(trainer.model.base_model).forward

    def counted(self, input_ids=None, attention_mask=None, **options):
        if attention_mask is not None and torch.is_grad_enabled():
            read.append(int(attention_mask[:, -input_ids.shape[1] :].sum()))
        return forward(self, input_ids, attention_mask=attention_mask, **options)

    monkeypatch.setattr(type(trainer.model.base_model), "forward", counted)
    gradient_of_update(trainer)
    prompts = [
        build_tokenizer()(render_prompt(row["nums"], row["target"])).input_ids
        for row in PROBLEMS.select(range(4))
    ]
    completions = sum(int(batch["mask"].sum()) for batch in trainer.micro_batches)
    assert sum(read) == sum(len(ids) - 1 for ids in prompts) + completions


# --- whole runs -----------------------------------------------------------------------------------


def metrics_of(folder):
    table = pd.read_csv(folder / "metrics.csv")
    return table.drop(columns=table.columns[table.columns.str.contains(TIMINGS)])


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def weights_of(folder):
    return flat(load_policy(folder)[0])


def rloo(folder, reward=odds, curriculum=None, **changes):
    options = {
        "eval_problems": PROBLEMS.select(range(4)),
        "eval_rewards": {"odds": odds},
        "curriculum": curriculum,
    }
    train_rloo(tiny_policy(), PROBLEMS, reward, folder, quick(**changes), **options)


def test_rloo_raises_a_trivial_reward(tmp_path):
    rloo(tmp_path, steps=20, problems_per_step=8, micro_batch=16, save_every=20, eval_every=10)
    table = metrics_of(tmp_path)
    assert table["step"].tolist() == list(range(1, 21))
    assert table["reward"].head(3).mean() < 0.05 and table["reward"].tail(3).mean() > 0.3
    assert table["eval_odds"].dropna().index.tolist() == [9, 19]
    assert table["reward_odds"].iloc[-1] == pytest.approx(table["reward"].iloc[-1] * 12, rel=1e-5)
    assert (table["kl"].iloc[0], table["kl"].iloc[-1] > 0.1) == (pytest.approx(0, abs=1e-6), True)
    assert table["entropy"].iloc[-1] < table["entropy"].iloc[0]
    assert (table["accuracy"] == 0).all()  # the verifier's, which no reward of ours moves


def killed_at_call(count):
    """The reward, that ends its process with SIGKILL at call number `count`, in the middle of an
    update."""
    calls = iter(range(1, 1000))

    def reward(completions, problem):
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return odds(completions, problem)

    return reward


def run_in_child(train):
    """Run `train` in a forked process; the signal that ended it, 0 for a normal end."""
    child = os.fork()
    if child == 0:
        try:
            train()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] & 127


def test_a_killed_run_resumes_exactly(tmp_path):
    late = {"steps": 6, "warmup_steps": 1, "decay_steps": 3, "average_from": 2}
    rloo(tmp_path / "whole", **late)
    killed = tmp_path / "killed"
    assert run_in_child(lambda: rloo(killed, killed_at_call(4 * 5 + 2), **late)) == signal.SIGKILL
    assert metrics_of(killed)["step"].tolist() == [1, 2, 3, 4, 5]
    newest = killed / "trainer" / "checkpoint-4"
    assert latest_checkpoint(killed / "trainer") == newest
    # as if the kill had come while it was written
    with open(newest / "optimizer.pt", "r+b") as file:
        # so that it resumes from the one before, in which the mean of the weights has begun
        file.truncate(100)
    rloo(killed, **late)
    pd.testing.assert_frame_equal(
        metrics_of(killed), metrics_of(tmp_path / "whole"), check_exact=True
    )
    assert torch.equal(weights_of(killed), weights_of(tmp_path / "whole"))


def test_the_learning_rate_falls_and_late_weights_are_averaged(tmp_path):
    seen = []
    rates = []

    class Watched(RLOOTrainer):
        def add(self, logs, row):
            seen.append(flat(self.model))
            rates.append(self.optimizer.param_groups[0]["lr"])  # of the next update
            super().add(logs, row)

    trainer = Watched(
        *tiny_policy(),
        PROBLEMS,
        odds,
        tmp_path,
        quick(steps=6, warmup_steps=2, decay_steps=3, average_from=4),
    )
    start = flat(trainer.model)
    trainer.fit(tmp_path, 6, "RLOO", ("reward",))
    # as notebook 11 and the page of the columns say: the first update of a warm-up has rate 0
    assert torch.equal(seen[0], start) and not torch.equal(seen[1], start)
    assert np.allclose(rates, [0.005, 0.01, 0.01, 0.01 * 2 / 3, 0.01 / 3, 0])
    assert torch.allclose(weights_of(tmp_path), torch.stack(seen[3:]).mean(0), atol=1e-6)


def test_an_update_is_a_step_of_adamw_with_a_clipped_gradient_and_decayed_weights(tmp_path):
    """The first step by hand, which moves a weight by g / (|g| + 1e-8). So small a norm makes the
    clipping visible."""
    changes = {
        "learning_rate": 0.01,
        "weight_decay": 0.3,
        "max_grad_norm": 1e-6,
        "steps": 1,
        "save_every": 1,
    }
    other = make_trainer(tmp_path / "other", **changes)
    expected = []
    norm = gradient_of_update(other).norm()
    for name, weights in other.model.named_parameters():
        clipped = weights.grad * min(1.0, 1e-6 / norm)
        kept = 1.0 if "norm" in name or "bias" in name else 1 - 0.01 * 0.3
        expected.append(
            (weights.detach() * kept - 0.01 * clipped / (clipped.abs() + 1e-8)).flatten()
        )
    start = flat(other.model)
    trainer = make_trainer(tmp_path, **changes)
    trainer.fit(tmp_path, 1, "RLOO", ("reward",))
    assert relative(weights_of(tmp_path) - start, torch.cat(expected) - start) < 1e-3


def test_held_out_problems_are_answered_at_temperature_one_with_the_seed_of_the_run(tmp_path):
    """One completion for each, judged by the verifier of the prompt style; at every step with the
    same seed."""
    held_out = PROBLEMS.select(range(8))
    options = {"temperature": 1.7, "max_tokens": 60, "seed": 7}

    def paid(texts, problem):
        return [Score(float(problem.target * len(text)), {}) for text in texts]

    options |= {
        "eval_problems": held_out,
        "eval_rewards": {"paid": paid},
        "prompt_style": "program",
    }
    trainer = make_trainer(tmp_path, **options)
    trainer.is_correct = lambda text, problem: "1" in text
    trainer.state.global_step = 3
    table = sample(
        trainer.model, trainer.processing_class, held_out, 1, Sampling(max_tokens=60), 7, "program"
    )
    texts = table["completion"].tolist()
    expected = {"eval_accuracy": np.mean(["1" in text for text in texts])}
    expected |= {"eval_paid": np.mean([(10 + i) * len(text) for i, text in enumerate(texts)])}
    # a mean over tokens
    expected |= {"eval_entropy": -table["logprob"].sum() / table["tokens"].sum()}
    assert trainer.held_out() == pytest.approx(expected)
    assert table["tokens"].nunique() > 1 and 0 < expected["eval_accuracy"] < 1


def bandit():
    return Bandit(as_problems(PROBLEMS), np.arange(24.0), 6, 0, temperature=0.02)


def test_the_progress_line_shows_the_last_value_of_each_column(tmp_path):
    """Behind the last loss may stand a row that holds eval_loss alone."""
    told = []
    line = SimpleNamespace(
        set_postfix=lambda row, refresh: told.append(dict(row)), update=lambda steps: None, n=0
    )
    trainer = SimpleNamespace(
        folder=tmp_path, line=line, shown=["loss"], state=SimpleNamespace(global_step=3)
    )
    log = pd.DataFrame([{"step": 2, "loss": 0.5}, {"step": 3, "eval_loss": 0.7}])
    Resumable.write_metrics(trainer, log)
    assert told == [{"loss": 0.5}]


def test_a_killed_run_with_a_bandit_resumes_exactly(tmp_path):
    rloo(tmp_path / "whole", steps=6, curriculum=bandit())
    killed = tmp_path / "killed"
    doomed = killed_at_call(4 * 5 + 2)
    assert (
        run_in_child(lambda: rloo(killed, doomed, steps=6, curriculum=bandit())) == signal.SIGKILL
    )
    rloo(killed, steps=6, curriculum=bandit())
    table = metrics_of(tmp_path / "whole")
    pd.testing.assert_frame_equal(metrics_of(killed), table, check_exact=True)
    assert torch.equal(weights_of(killed), weights_of(tmp_path / "whole"))
    # it had learned something
    assert table["bucket0"].iloc[0] == pytest.approx(1 / 6) != table["bucket0"].iloc[-1]


def test_the_bandit_learns_from_the_problems_it_drew_itself(tmp_path):
    """No lag: the advantages of an update reach the buckets of the same update's draw."""
    curriculum = bandit()
    asked = []

    def reward(completions, problem):
        asked.append(problem)
        easy = problem.nums[0] <= 4  # of bucket 0: the only ones with a signal
        return [Score(float(easy and i == 0), {}) for i in range(len(completions))]

    rloo(tmp_path, reward, steps=3, curriculum=curriculum, learning_rate=1e-30)
    assert asked[:4] == bandit().draw(4, 0)  # steps count from 0
    # mean |advantage| of 1, 0, 0, 0: (1 + 3 / 3) / 4
    table = metrics_of(tmp_path)
    level = 0.5
    q = 0.0
    for step, batch in enumerate(asked[i : i + 4] for i in (0, 4, 8)):
        weights = np.exp(np.array([q, 0, 0, 0, 0, 0]) / 0.02)
        assert table["bucket0"].iloc[step] == pytest.approx(weights[0] / weights.sum())
        q = 0.5 * level + 0.5 * q if any(problem.nums[0] <= 4 for problem in batch) else q
    assert curriculum.state == pytest.approx([q, 0, 0, 0, 0, 0])


def test_a_finished_run_started_again_changes_nothing(tmp_path):
    rloo(tmp_path, steps=2)
    metrics = (tmp_path / "metrics.csv").read_bytes()
    weights = weights_of(tmp_path)

    def not_again(completions, problem):
        raise AssertionError("the run was finished")

    rloo(tmp_path, not_again, steps=2)
    assert (tmp_path / "metrics.csv").read_bytes() == metrics
    assert torch.equal(weights_of(tmp_path), weights)


def test_the_seed_decides_the_run(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        rloo(tmp_path / name, steps=2, seed=seed)
    a, b, c = (metrics_of(tmp_path / name) for name in "abc")
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    assert not a["reward"].equals(c["reward"]) and not a["entropy"].equals(c["entropy"])


def test_every_step_draws_anew(tmp_path):
    train_rloo(
        tiny_policy(),
        PROBLEMS.select([0]),
        odds,
        tmp_path,
        quick(problems_per_step=1, learning_rate=1e-30),
    )
    assert metrics_of(tmp_path)["entropy"].nunique() == 4


def test_several_updates_share_their_rollouts(tmp_path):
    """Two batches of rollouts in four updates: fresh ones have weight 1, the same again under a
    moved policy not. The second batch is of the next problems in the run's order."""
    asked = []

    def reward(completions, problem):
        asked.append(problem.nums[0] - 1)
        return odds(completions, problem)

    rloo(tmp_path, reward, steps=4, num_iterations=2, learning_rate=1e-2, seed=5)
    assert asked == schedule(24, 8, seed=5).tolist()
    assert (pd.read_csv(tmp_path / "metrics.csv")["seconds_generation"].iloc[[1, 3]] == 0).all()
    table = metrics_of(tmp_path)
    sampled = table[["reward", "completion_length", "frac_zero_std"]]
    assert sampled.iloc[0].equals(sampled.iloc[1]) and sampled.iloc[2].equals(sampled.iloc[3])
    assert not sampled.iloc[1].equals(sampled.iloc[2])
    assert table["importance_mean"].iloc[[0, 2]].tolist() == pytest.approx([1, 1], abs=1e-4)
    assert (table["importance_mean"].iloc[[1, 3]] - 1).abs().min() > 1e-3


def test_several_updates_resume_exactly(tmp_path):
    rloo(tmp_path / "whole", steps=6, num_iterations=2)
    killed = tmp_path / "killed"
    assert (
        run_in_child(lambda: rloo(killed, killed_at_call(4 * 2 + 2), steps=6, num_iterations=2))
        == signal.SIGKILL
    )
    rloo(killed, steps=6, num_iterations=2)
    pd.testing.assert_frame_equal(
        metrics_of(killed), metrics_of(tmp_path / "whole"), check_exact=True
    )
    assert torch.equal(weights_of(killed), weights_of(tmp_path / "whole"))


def test_accuracy_is_that_of_the_prompts_verifier(tmp_path):
    trainer = make_trainer(tmp_path, prompt_style="program")
    problem = Problem((1, 2, 3), 6)
    assert trainer.is_correct("<answer>a = 1 + 2 + 3</answer>", problem)
    assert not trainer.is_correct("<answer>1 + 2 + 3</answer>", problem)


def from_call(number, scores):
    """The reward `odds`, which from call `number` on gives what `scores` makes of a group
    instead."""
    calls = itertools.count(1)
    return lambda texts, problem: (odds if next(calls) < number else scores)(texts, problem)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            lambda texts, problem: [Score(0.0, {}), *[Score(np.nan, {})] * 3],
            "completion 2: the total must be a finite",
        ),
        (
            lambda texts, problem: [Score(1.0, {})],
            "one Score for each of 4 completions, not .Score",
        ),
        (lambda texts, problem: [1.0] * len(texts), "completion 1: it must give a Score"),
    ],
)
def test_a_reward_that_gives_no_scores_ends_the_run(tmp_path, scores, message):
    """In the third update: the checkpoint of the second is kept, and there is no policy."""
    with pytest.raises(ValueError, match=rf"reward .* on \(\d+, \d+, \d+\) to \d+.*{message}"):
        train_rloo(tiny_policy(), PROBLEMS, from_call(9, scores), tmp_path, quick())
    assert (
        latest_checkpoint(tmp_path / "trainer").name == "checkpoint-2"
        and not (tmp_path / "checkpoint").exists()
    )


def test_training_stops_at_the_first_loss_that_is_not_finite(tmp_path):
    """Rewards that are finite until they are float32, as those of the fourth update: its checkpoint
    is not kept."""
    huge = from_call(13, lambda texts, problem: [Score(1e39 * i, {}) for i in range(len(texts))])
    with pytest.raises(FloatingPointError, match="loss of update 4 is nan"):
        train_rloo(tiny_policy(), PROBLEMS, huge, tmp_path, quick())
    assert latest_checkpoint(tmp_path / "trainer").name == "checkpoint-2"
    assert (
        metrics_of(tmp_path)["step"].tolist() == [1, 2, 3]
        and not (tmp_path / "checkpoint").exists()
    )


def test_supervised_training_stops_there_too(tmp_path, monkeypatch):
    original = lib.learn.sft.DemonstrationTrainer.compute_loss
    steps = itertools.count(1)

    def ruined(self, model, inputs, *arguments, **options):
        loss = original(self, model, inputs, *arguments, **options)
        # of update 7: the fifth call is the evaluation
        return loss * (np.nan if next(steps) == 8 else 1.0)

    monkeypatch.setattr(lib.learn.sft.DemonstrationTrainer, "compute_loss", ruined)
    with pytest.raises(FloatingPointError, match="loss of update 8 is nan"):
        sft(tmp_path)
    assert (
        latest_checkpoint(tmp_path / "trainer").name == "checkpoint-4"
        and not (tmp_path / "checkpoint").exists()
    )


def test_what_is_not_finite_is_refused_before_it_is_saved(tmp_path):
    trainer = make_trainer(tmp_path)
    for name, value in itertools.product(("loss", "grad_norm"), (np.nan, np.inf)):
        with pytest.raises(FloatingPointError, match=f"{name} of update 0 is {value}"):
            trainer.check_finite({"loss": 1.0, "grad_norm": 1.0} | {name: value})
    with torch.no_grad():
        next(trainer.model.parameters())[0, 0] = np.inf
    with pytest.raises(FloatingPointError, match="weights of update 0 are not finite"):
        trainer._save_checkpoint(trainer.model, None)
    assert latest_checkpoint(tmp_path / "trainer") is None


def test_without_a_kl_term_there_is_no_reference(tmp_path):
    trainer = make_trainer(tmp_path, kl_coef=0.0)
    gradient_of_update(trainer)
    assert trainer.reference is None and "kl" not in trainer.row


def test_a_checkpoint_counts_only_when_whole(tmp_path):
    for step in (2, 10, 4):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_text("x" * step)
        (folder / "complete.json").write_text(json.dumps({"weights": step}))
    (tmp_path / "checkpoint-10" / "weights").write_text("x")
    (tmp_path / "checkpoint-4" / "complete.json").unlink()
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-2"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
    for name in ("checkpoint-2-copy", "checkpoint-best", "checkpoint-"):  # of a person's own
        (tmp_path / name).mkdir()
    assert (
        latest_checkpoint(tmp_path) == tmp_path / "checkpoint-2" and len([*tmp_path.iterdir()]) == 4
    )


def test_what_a_person_left_beside_the_checkpoints_stays(tmp_path):
    """A backup by hand and a link; two checkpoints of our own are kept."""
    trainer = tmp_path / "trainer"
    for name in ("checkpoint-1-copy", "checkpoint-best"):
        (trainer / name).mkdir(parents=True)
    (trainer / "checkpoint-9").symlink_to(tmp_path / "nowhere")
    own = {path.name for path in trainer.iterdir()}
    for steps in (2, 5):
        rloo(tmp_path, steps=steps, save_every=1)
        kept = {path.name for path in trainer.iterdir()}
        assert kept == own | {f"checkpoint-{steps - 1}", f"checkpoint-{steps}"}


@pytest.mark.parametrize("name", ["save_every", "eval_every"])
def test_sft_saves_and_evaluates_only_where_it_logs(name):
    with pytest.raises(ValueError, match=f"{name}=15 is not a multiple"):
        sft_settings(**{name: 15})


def test_rloo_saves_only_between_two_batches_of_rollouts():
    with pytest.raises(
        ValueError, match="num_iterations=2 does not divide steps=4 and save_every=3"
    ):
        quick(num_iterations=2, save_every=3)


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"cannot write .*checkpoint-2 .*No space left.*make room"):
        rloo(tmp_path, steps=2)


# --- orders ---------------------------------------------------------------------------------------


def test_schedule_goes_through_all_problems_before_any_comes_again():
    order = schedule(10, 25, seed=3)
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert len(set(order[20:])) == 5
    assert (schedule(10, 12, seed=3) == order[:12]).all()


def test_batches_by_length_hold_each_row_once_and_similar_lengths():
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 200, 330)
    order = batches_by_length(lengths, batch_size=16, epochs=2, seed=0)
    first, second = np.split(order, 2)
    assert len(first) == 320 and len(set(first)) == len(set(second)) == 320
    spread = np.ptp(lengths[first].reshape(-1, 16), axis=1)
    unsorted = np.ptp(lengths[rng.permutation(first)].reshape(-1, 16), axis=1)
    assert spread.mean() < 20 < 120 < unsorted.mean()
    # each epoch is a permutation of its own, and leaves out other rows
    assert set(first) != set(second)
    means = lengths[first].reshape(-1, 16).mean(1)
    # the batches themselves are in random order
    assert (np.diff(means) < 0).any() and (np.diff(means) > 0).any()


def test_orders_stay_what_they_were():
    """The checkpoints that are published were trained in orders like these."""
    assert schedule(5, 12, seed=3).tolist() == [4, 2, 1, 3, 0, 3, 0, 2, 1, 4, 0, 1]
    lengths = np.random.default_rng(0).integers(20, 200, 330)
    # an epoch is sorted in three pools
    order = batches_by_length(lengths, batch_size=4, epochs=2, seed=3)
    assert (
        hashlib.blake2b(str(order.tolist()).encode(), digest_size=8).hexdigest()
        == "fdb3b1cd8ef9acb0"
    )


# --- supervised -----------------------------------------------------------------------------------

ANSWERS = ["<answer>1 + 2 + 3</answer>", "<answer>2 * 3</answer>"]
DEMONSTRATIONS = Dataset.from_list(
    [
        {"prompt": render_prompt([i % 2 + 1, 2, 3], 10), "completion": ANSWERS[i % 2]}
        for i in range(64)
    ]
)


def sft_settings(**changes):
    values = {
        "learning_rate": 1e-2,
        "epochs": 3,
        "batch_size": 8,
        "warmup_steps": 2,
        "schedule": "cosine",
        "end_token": True,
        "weight_decay": 1e-4,
        "max_grad_norm": 1.0,
        "log_every": 2,
        "eval_every": 4,
        "save_every": 4,
        "seed": 0,
    }
    return SFTSettings(**values | changes)


def sft(folder, rows=DEMONSTRATIONS, **changes):
    train_sft(tiny_policy(), rows, folder, sft_settings(**changes), DEMONSTRATIONS.select(range(8)))


def test_sft_on_a_batch_in_pieces_is_the_same_update(tmp_path, monkeypatch, capsys):
    """Where memory lacks: every token of the batch counts alike, in whichever piece it is."""
    rows = DEMONSTRATIONS.select(range(60))  # so that one batch holds completions of both lengths
    sft(tmp_path / "whole", rows, epochs=1, log_every=1, warmup_steps=9)
    assert "warmup_steps=9 is above the 7 updates" in capsys.readouterr().out
    monkeypatch.setattr(lib.learn.sft, "max_micro_batch", lambda *arguments, **options: 2)
    sft(tmp_path / "pieces", rows, epochs=1, log_every=1, warmup_steps=9)
    columns = ["step", "loss", "grad_norm", "learning_rate", "tokens", "eval_loss"]
    whole, pieces = (metrics_of(tmp_path / name)[columns] for name in ("whole", "pieces"))
    # a mean of the means of batches, as the page of the columns says
    assert not whole["eval_loss"].equals(pieces["eval_loss"])
    pd.testing.assert_frame_equal(whole, pieces, rtol=1e-3)
    assert whole["learning_rate"].to_numpy() == pytest.approx(1e-2 / 9 * np.arange(7))


def test_sft_on_fewer_rows_than_a_batch_is_refused(tmp_path):
    with pytest.raises(ValueError, match="3 demonstrations do not fill one batch of 8"):
        sft(tmp_path, DEMONSTRATIONS.select(range(3)))


def test_sft_learns_the_completions_and_to_end(tmp_path):
    sft(tmp_path, epochs=6)
    table = metrics_of(tmp_path)
    assert table["step"].tolist() == list(range(2, 50, 2))
    assert table["loss"].iloc[-1] < 0.3 * table["loss"].iloc[0]
    assert table["eval_loss"].dropna().iloc[-1] < table["eval_loss"].dropna().iloc[0]
    assert table["token_accuracy"].iloc[0] < 0.3 and table["token_accuracy"].iloc[-1] > 0.6
    assert table["eval_token_accuracy"].dropna().iloc[-1] > 0.6
    # updates before the one whose learning rate is logged; the first two rise
    before = table["step"].to_numpy() - 1
    share = np.where(before < 2, before / 2, (1 + np.cos(np.pi * (before - 2) / (48 - 2))) / 2)
    assert table["learning_rate"].to_numpy() == pytest.approx(1e-2 * share)
    model, tokenizer = load_policy(tmp_path)
    prompt = tokenizer(DEMONSTRATIONS[0]["prompt"]).input_ids
    out = generate(
        model, [prompt], 4, Sampling(temperature=0, max_tokens=40), tokenizer.eos_token_id
    )
    assert out.finish == ["stop"] * 4


def test_sft_of_fewer_updates_than_it_logs_is_logged_at_its_end_and_saved(tmp_path):
    sft(tmp_path, epochs=1, log_every=100, eval_every=100, save_every=100)
    table = metrics_of(tmp_path)
    assert table["step"].iloc[-1] == 8 and table[["loss", "token_accuracy"]].iloc[-1].notna().all()
    load_policy(tmp_path)


@pytest.mark.parametrize("end_token", [True, False])
def test_sft_batches_learn_the_completion_and_its_end_only(tmp_path, monkeypatch, end_token):
    """And without the end token there is none in any batch: TRL would append one by itself."""
    seen = []
    original = lib.learn.sft.DemonstrationTrainer.compute_loss

    def spy(self, model, inputs, *arguments, **options):
        seen.append({name: inputs[name].clone() for name in ("input_ids", "labels")})
        return original(self, model, inputs, *arguments, **options)

    monkeypatch.setattr(lib.learn.sft.DemonstrationTrainer, "compute_loss", spy)
    sft(tmp_path, epochs=1, end_token=end_token)
    tokenizer = build_tokenizer()
    assert any((batch["input_ids"] == tokenizer.eos_token_id).any() for batch in seen) == end_token
    texts = {row["prompt"] + row["completion"]: row["completion"] for row in DEMONSTRATIONS}
    for ids, labels in zip(seen[0]["input_ids"], seen[0]["labels"], strict=True):
        learned = labels[labels != -100].tolist()
        assert (learned[-1] == tokenizer.eos_token_id) == end_token
        assert (
            tokenizer.decode(learned[: len(learned) - end_token])
            == texts[tokenizer.decode(ids, skip_special_tokens=True)]
        )


def test_a_tokenizer_that_begins_with_bos_begins_no_completion_with_it(tmp_path, monkeypatch):
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    bos = tokenizer.bos_token_id
    begin = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    tokenizer.backend_tokenizer.post_processor = begin
    assert tokenizer("1").input_ids[0] == bos
    seen = []
    original = lib.learn.sft.DemonstrationTrainer.compute_loss

    def spy(self, model, inputs, *arguments, **options):
        seen.append(inputs["input_ids"].clone())
        return original(self, model, inputs, *arguments, **options)

    monkeypatch.setattr(lib.learn.sft.DemonstrationTrainer, "compute_loss", spy)
    model = new_model(tokenizer, hidden=32, layers=2, heads=2)
    rows = DEMONSTRATIONS.select(range(8))
    train_sft((model, tokenizer), rows, tmp_path, sft_settings(epochs=1, log_every=1), rows)
    assert (seen[0][:, 0] == bos).all() and ((seen[0] == bos).sum(-1) == 1).all()


def test_demonstrations_longer_than_the_context_are_left_out_and_counted(tmp_path, capsys):
    """They would be cut, and lose their answers and their end tokens first."""
    tokenizer = build_tokenizer()
    model = new_model(tokenizer, hidden=32, layers=2, heads=2)
    rows = [{"prompt": "1 + 1", "completion": " = 2"}] * 15 + [
        {"prompt": "1 + 1", "completion": "2" * 60}
    ]
    longest = len(tokenizer("1 + 1" + "2" * 60).input_ids) + 1  # with the end token
    options = sft_settings(epochs=1, log_every=1)
    for context, kept in ((longest, 16), (longest - 1, 15)):
        model.config.max_position_embeddings = context
        folder = tmp_path / str(context)
        train_sft(
            (model, tokenizer), Dataset.from_list(rows), folder, options, Dataset.from_list(rows)
        )
        lost = (
            f"1 of 16 demonstrations are longer than the context of {context} tokens, and are "
            f"left out"
        )
        assert (capsys.readouterr().out.count(lost) == 2) == (kept == 15)
        assert len(pd.read_csv(folder / "metrics.csv")) == kept // 8
    model.config.max_position_embeddings = 4
    with pytest.raises(
        ValueError,
        match="16 of 16 demonstrations are longer than the context of 4 tokens: take a base",
    ):
        train_sft(
            (model, tokenizer),
            Dataset.from_list(rows),
            tmp_path / "none",
            options,
            Dataset.from_list(rows),
        )


def test_a_killed_sft_resumes_exactly(tmp_path, monkeypatch):
    sft(tmp_path / "whole")
    killed = tmp_path / "killed"

    def train_and_die():
        save = lib.learn.sft.DemonstrationTrainer._save_checkpoint

        def save_then_die(self, *arguments):
            save(self, *arguments)
            if self.state.global_step == 12:  # in the middle of the second epoch
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(lib.learn.sft.DemonstrationTrainer, "_save_checkpoint", save_then_die)
        sft(killed)

    assert run_in_child(train_and_die) == signal.SIGKILL
    sft(killed)
    pd.testing.assert_frame_equal(
        metrics_of(killed), metrics_of(tmp_path / "whole"), check_exact=True
    )
    assert torch.equal(weights_of(killed), weights_of(tmp_path / "whole"))


@pytest.mark.parametrize(
    "train", [lambda folder: rloo(folder, steps=4), lambda folder: sft(folder)]
)
def test_a_training_that_is_over_says_so_and_writes_its_lost_log_again(tmp_path, capsys, train):
    """Its log is part of the last checkpoint, so nobody need train a policy again for a deleted
    metrics.csv."""
    train(tmp_path)
    log = (tmp_path / "metrics.csv").read_bytes()
    weights = weights_of(tmp_path)
    (tmp_path / "metrics.csv").unlink()
    capsys.readouterr()
    train(tmp_path)
    assert (tmp_path / "metrics.csv").read_bytes() == log and torch.equal(
        weights_of(tmp_path), weights
    )
    steps = metrics_of(tmp_path)["step"].max()
    assert (
        f"all {steps} updates are made already, and nothing is trained" in capsys.readouterr().out
    )


def test_trls_own_trainer_takes_our_rewards(tmp_path):
    """By `as_trl`, also one that looks at the whole group; the data set has the problem beside the
    prompt."""
    model, tokenizer = tiny_policy()
    rows = PROBLEMS.map(lambda row: {"prompt": render_prompt(row["nums"], row["target"])})
    options = {
        "max_steps": 1,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 8,
    }
    config = GRPOConfig(
        str(tmp_path), use_cpu=True, save_strategy="no", report_to=[], logging_steps=1, **options
    )
    rewards = [as_trl(get_reward(name)) for name in ("ast", "trace_hardness")]
    theirs = GRPOTrainer(model, rewards, config, rows, processing_class=tokenizer)
    theirs.train()
    assert {"rewards/ast/mean", "rewards/trace_hardness/mean"} <= set(theirs.state.log_history[0])
