"""A policy with a LoRA adapter: what samples, what scores and what trains is the same policy, and
its checkpoint is the adapter alone."""

import json
import os
import signal
from contextlib import nullcontext
from functools import partial

import pandas as pd
import pytest
import torch
from datasets import Dataset
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file, save_file

from lib.learn import adapters, generation
from lib.learn.adapters import frozen_copy, is_adapted, merged, plain_weights
from lib.learn.generation import Sampling, generate, generate_shared, sample
from lib.learn.model import (
    build_tokenizer,
    load_policy,
    max_micro_batch,
    max_rows,
    new_model,
    save_policy,
    training_memory,
)
from lib.learn.preference import train_preference
from lib.learn.rloo import RLOOTrainer, train_rloo
from lib.learn.settings import PreferenceSettings, SFTSettings
from lib.learn.sft import DemonstrationTrainer, train_sft
from lib.learn.trainer import latest_checkpoint
from tests.learn.test_training import (
    PROBLEMS,
    completion_logp,
    gradient_of_update,
    killed_at_call,
    metrics_of,
    odds,
    quick,
    run_in_child,
)

TOKENIZER = build_tokenizer()
PROMPTS = [TOKENIZER(text).input_ids for text in ("Numbers: [44, 19]\n", "Target: 98\nx", "7")]
DRAW = Sampling(max_tokens=12)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    model = new_model(TOKENIZER, hidden=32, layers=2, heads=2)
    return save_policy(model, TOKENIZER, tmp_path_factory.mktemp("base") / "checkpoint")


def adapted(path, seed=0, **given):
    return load_policy(path, **{"lora_r": 4, "lora_alpha": 8, "seed": seed} | given)


def change(model, seed=1, size=0.3):
    """Moves the adapter, as training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_" in name:
                weights += size * torch.randn(weights.shape, generator=generator)


def rows_of(out):
    return [(i // 4, ids, sum(out.policy_logprobs[i])) for i, ids in enumerate(out.ids)]


def bits(model):
    return {name: weights.detach().clone() for name, weights in model.named_parameters()}


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


# --- one policy, whoever asks ---------------------------------------------------------------------


@pytest.mark.parametrize("draw", [generate, generate_shared])
def test_the_loop_samples_from_the_adapter_as_it_is_now(base, draw):
    """peft's layers call the base's weights `weight`. A loop that reads them draws from another
    policy than the one that is trained, as soon as the adapter has changed."""
    model, _ = adapted(base)
    draw = partial(draw, model, PROMPTS, 4, DRAW, TOKENIZER.eos_token_id)
    seen = []
    for seed in range(3):
        out = draw(torch.Generator().manual_seed(0))
        for prompt, ids, logp in rows_of(out):
            expected = completion_logp(model.eval(), PROMPTS[prompt], ids)
            assert float(expected) == pytest.approx(logp, abs=1e-4)
        seen.append(out.ids)
        change(model, seed)
    assert seen[0] != seen[1] != seen[2], "the adapter must have moved, or nothing is tested"


def test_a_model_that_the_loop_does_not_fit_samples_from_its_adapter_too(base, monkeypatch, capsys):
    model, _ = adapted(base)
    change(model)
    expected = generate(model, PROMPTS, 4, DRAW, 1, torch.Generator().manual_seed(0))
    model, _ = adapted(base)
    change(model)
    why = "it is made to draw itself"
    monkeypatch.setattr("lib.learn.decoder.why_unsupported", lambda model: why)
    out = generate(model, PROMPTS, 4, DRAW, 1, torch.Generator().manual_seed(0))
    assert why in capsys.readouterr().out
    assert out.ids == expected.ids
    assert sum(out.logprobs[3]) == pytest.approx(sum(expected.logprobs[3]), abs=1e-4)


def test_after_a_draw_every_weight_has_its_own_bits_again(base):
    model, _ = adapted(base)
    change(model)
    before = bits(model)
    with merged(model):
        assert not same(bits(model), before)
    assert same(bits(model), before)
    with pytest.raises(KeyError), merged(model):
        raise KeyError
    for _ in range(3):
        sample(model, TOKENIZER, PROBLEMS.select(range(2)), 2, DRAW, 0)
    assert same(bits(model), before)
    out = model(torch.tensor([PROMPTS[0]])).logits
    change(model)
    assert not torch.equal(model(torch.tensor([PROMPTS[0]])).logits, out), "left merged"


def test_vllm_is_handed_the_effective_weights_by_their_plain_names(base):
    """Without vLLM: what it would be given."""
    model, _ = adapted(base)
    change(model)
    plain = new_model(TOKENIZER, hidden=32, layers=2, heads=2)
    given = {}

    class Engine:
        def collective_rpc(self, what, kwargs=None, args=()):
            given.update(kwargs["weights_iterator"] if kwargs else {})

        def reset_prefix_cache(self):
            pass

    generation.hand_over(model, Engine())
    assert given.keys() == plain.state_dict().keys() - {"lm_head.weight"}
    plain.load_state_dict(given, strict=False)
    ids = torch.tensor([PROMPTS[0]])
    assert torch.allclose(plain(ids).logits, model.eval()(ids).logits, atol=1e-4)
    assert not torch.equal(
        plain_weights(model)["model.layers.0.mlp.up_proj.weight"],
        given["model.layers.0.mlp.up_proj.weight"],
    )


def test_rloo_stays_on_policy_while_its_adapter_learns(base, tmp_path, monkeypatch):
    settings = quick(steps=6, learning_rate=3e-2, importance_cap=100.0, kl_coef=0.01)
    train_rloo(adapted(base), PROBLEMS, odds, tmp_path / "right", settings)
    table = metrics_of(tmp_path / "right")
    assert table["kl"].iloc[-1] > 1e-2, "the policy must have moved"
    assert (table[["importance_mean", "importance_max"]] - 1).abs().max(axis=None) < 1e-3
    # and the test would see a loop that reads peft's `weight`
    monkeypatch.setattr(generation, "merged", nullcontext)
    train_rloo(adapted(base), PROBLEMS, odds, tmp_path / "wrong", settings)
    wrong = metrics_of(tmp_path / "wrong")
    assert (wrong["importance_max"] - 1).abs().max() > 1e-2


def test_the_gradient_is_that_of_the_weights_carried_into_the_adapter(base, tmp_path):
    """By the chain rule: of W + s B A, the gradient of A is s B^T G, and that of B is s G A^T."""
    (tmp_path / "start").mkdir()
    policy = adapted(base)
    change(policy[0])
    start = save_policy(*policy, tmp_path / "start/checkpoint")
    ours = RLOOTrainer(*adapted(start), PROBLEMS, odds, tmp_path / "a", quick())
    full = RLOOTrainer(*load_policy(start), PROBLEMS, odds, tmp_path / "b", quick())
    for trainer in (ours, full):
        gradient_of_update(trainer)
    whole = {name: weights.grad for name, weights in full.model.named_parameters()}
    layers = adapters.adapted_layers(ours.model)
    assert len(layers) == 14, "seven linear layers in each of two"
    for name, layer in layers:
        gradient = whole[f"{name}.weight"]
        a = layer.lora_A["default"].weight
        b = layer.lora_B["default"].weight
        assert torch.allclose(a.grad, 2 * b.T @ gradient, rtol=1e-3, atol=1e-5)
        assert torch.allclose(b.grad, 2 * gradient @ a.T, rtol=1e-3, atol=1e-5)
        assert layer.base_layer.weight.grad is None


# --- checkpoints ----------------------------------------------------------------------------------


def test_a_new_adapter_changes_nothing_and_its_seed_decides_the_rest(base):
    model, _ = adapted(base)
    ids = torch.tensor([PROMPTS[0]])
    assert torch.equal(model(ids).logits, load_policy(base)[0](ids).logits)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    again, _ = adapted(base)
    assert torch.equal(torch.rand(1), expected), "the random numbers of the run are its own"
    assert same(bits(model), bits(again)) and not same(bits(model), bits(adapted(base, seed=1)[0]))
    trained = {name for name, weights in model.named_parameters() if weights.requires_grad}
    assert trained == {name for name in bits(model) if ".lora_" in name} and len(trained) == 28


def test_a_checkpoint_holds_the_adapter_and_opens_for_sampling_and_for_training(base, tmp_path):
    model, tokenizer = adapted(base)
    change(model)
    folder = save_policy(model, tokenizer, tmp_path / "run/checkpoint")
    held = {path.name for path in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= held
    assert not held & {"config.json", "model.safetensors"}
    again, words = adapted(folder.parent)
    assert same(bits(again), bits(model)) and is_adapted(again)
    assert words("44 + 19 yes").input_ids == tokenizer("44 + 19 yes").input_ids
    folded, _ = load_policy(folder.parent)
    assert not is_adapted(folded) and type(folded.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert all(weights.requires_grad for weights in folded.parameters())
    # drawn from either, the same bits
    tables = [sample(m, tokenizer, PROBLEMS, 2, DRAW, 0) for m in (model, folded)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    # a policy like any other
    whole, _ = load_policy(save_policy(folded, tokenizer, tmp_path / "whole"))
    assert same(bits(whole), bits(folded))
    # to peft as well
    theirs = AutoPeftModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([PROMPTS[0]])
    assert torch.allclose(theirs(ids).logits, model.eval()(ids).logits, atol=1e-6)


def test_a_policy_is_rounded_to_the_16_bits_in_which_it_is_saved(base, tmp_path):
    """What is measured after it was saved, in memory or from the folder, is what was saved."""
    model, tokenizer = adapted(base)
    change(model)
    trained = bits(model)
    folder = save_policy(model, tokenizer, tmp_path / "adapter")
    saved = load_file(folder / "adapter_model.safetensors")
    assert {weights.dtype for weights in saved.values()} == {torch.float16}
    for name, weights in bits(adapted(folder)[0]).items():
        expected = trained[name].half().float() if ".lora_" in name else trained[name]
        assert weights.dtype == torch.float32 and torch.equal(weights, expected)
    assert same(bits(model), bits(adapted(folder)[0])) and not same(bits(model), trained)
    tables = [sample(m, tokenizer, PROBLEMS, 2, DRAW, 0) for m in (model, load_policy(folder)[0])]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_a_weight_that_16_bits_cannot_hold_is_refused(base, tmp_path):
    model, tokenizer = adapted(base)
    with torch.no_grad():
        adapters.adapted_layers(model)[3][1].lora_B["default"].weight[0, 0] = 7e4
    with pytest.raises(ValueError, match=r"lora_B.default.weight reaches 7e\+04.* up to 65,504"):
        save_policy(model, tokenizer, tmp_path / "adapter")


def test_a_large_adapter_is_saved_in_files_that_git_takes(base, tmp_path, monkeypatch):
    limit = 2**12
    monkeypatch.setattr(adapters, "LARGEST", limit)
    model, tokenizer = adapted(base)
    change(model)
    folder = save_policy(model, tokenizer, tmp_path / "adapter")
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 3 and files[0].name == "adapter_model-00001-of-00003.safetensors"
    sizes = [sum(weights.nbytes for weights in load_file(file).values()) for file in files]
    assert max(sizes) <= limit and sum(sizes) > 2 * limit
    assert same(bits(adapted(folder)[0]), bits(model))
    with pytest.raises(ValueError, match="other weights than those on which"):
        other = new_model(TOKENIZER, hidden=32, layers=2, heads=2, seed=9)
        adapters.add_adapter(other, str(base), 4, 8, 0)
        adapters.check_adapter(other, folder, 4, 8)
    files[1].unlink()
    with pytest.raises(ValueError, match="a file is missing or damaged"):
        load_policy(folder)


def test_a_file_of_the_largest_size_has_at_most_8_mib(tmp_path):
    """With the longest names of the largest model here, in more matrices than fit."""
    name = adapters.PREFIX + "model.layers.29.self_attn.q_proj.lora_A.weight.{}"
    weights = {name.format(i): torch.zeros(10_000, dtype=torch.float16) for i in range(900)}
    adapters.write_weights(weights, tmp_path, "0" * 64)
    sizes = [file.stat().st_size for file in tmp_path.glob("*.safetensors")]
    assert len(sizes) == 3 and 7.5 * 2**20 < max(sizes) <= 8 * 2**20


def test_every_process_writes_the_names_in_one_order(base, tmp_path):
    """peft has them in a set, whose order depends on the process; runs would look different."""
    folder = save_policy(*adapted(base), tmp_path / "adapter")
    named = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
    assert named == sorted(named) and len(named) == 14


def test_the_base_is_found_where_runs_lie_and_where_they_are_published(base, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    reference = tmp_path / "reference"
    monkeypatch.setattr(adapters, "RUNS", runs)
    monkeypatch.setattr(adapters, "REFERENCE", reference)
    start = save_policy(*load_policy(base), runs / "cpu/sft/free/0/checkpoint")
    folder = save_policy(*adapted(start), tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "data/runs/cpu/sft/free/0/checkpoint"
    expected = bits(load_policy(folder)[0])
    reference.parent.mkdir(exist_ok=True)
    runs.rename(reference)
    assert same(bits(load_policy(folder)[0]), expected)
    reference.rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="data/runs/cpu/sft/free/0/checkpoint"):
        load_policy(folder)


def test_a_base_of_the_hub_is_named_with_its_commit(base, tmp_path):
    model, tokenizer = load_policy(base)
    adapters.add_adapter(model, "someone/model@abc123", 4, 8, 0)
    folder = save_policy(model, tokenizer, tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("someone/model", "abc123")
    assert adapters.base_of(str(folder)) == "someone/model@abc123"


def spoiled(edit):
    def spoil(folder):
        path = folder / "adapter_model.safetensors"
        weights = load_file(path)
        edit(weights)
        save_file(weights, path, {"format": "pt"})

    return spoil


def poison(weights):
    next(iter(weights.values()))[0] = torch.nan


@pytest.mark.parametrize(
    "spoil, message",
    {
        "not finite": (spoiled(poison), "not finite"),
        "one is missing": (spoiled(lambda weights: weights.popitem()), "there is no"),
        "of another kind": (
            spoiled(lambda weights: weights.update({"x.bias": torch.zeros(1)})),
            "no plain LoRA",
        ),
        "cut": (lambda folder: os.truncate(folder / "adapter_model.safetensors", 99), "damaged"),
    }.values(),
)
def test_a_damaged_adapter_is_refused(base, tmp_path, spoil, message):
    folder = save_policy(*adapted(base), tmp_path / "adapter")
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        load_policy(folder)


def test_another_base_or_another_rank_is_refused(base, tmp_path):
    start = save_policy(*load_policy(base), tmp_path / "start")
    folder = save_policy(*adapted(start), tmp_path / "adapter")
    for given in ({"lora_r": 8}, {"lora_alpha": 16}):
        with pytest.raises(ValueError, match="lora_r=4 and lora_alpha=8; with lora_r=0"):
            adapted(folder, **given)
    save_policy(new_model(TOKENIZER, hidden=32, layers=2, heads=2, seed=9), TOKENIZER, start)
    with pytest.raises(ValueError, match="other weights than those on which"):
        load_policy(folder)


# --- training -------------------------------------------------------------------------------------


def rloo(folder, start, reward=odds, **changes):
    options = {"eval_problems": PROBLEMS.select(range(4)), "eval_rewards": {"odds": odds}}
    train_rloo(adapted(start), PROBLEMS, reward, folder, quick(**changes), **options)


def test_rloo_goes_on_with_the_adapter_of_its_start_and_resumes_exactly(base, tmp_path):
    policy = adapted(base)
    change(policy[0])
    start = save_policy(*policy, tmp_path / "start")
    late = {"steps": 6, "warmup_steps": 1, "decay_steps": 3, "average_from": 2, "save_every": 2}
    rloo(tmp_path / "whole", start, **late)
    killed = tmp_path / "killed"
    stopped = run_in_child(lambda: rloo(killed, start, killed_at_call(4 * 5 + 2), **late))
    assert stopped == signal.SIGKILL and (killed / "trainer/checkpoint-4/rloo.pt").exists()
    rloo(killed, start, **late)
    pd.testing.assert_frame_equal(
        metrics_of(killed), metrics_of(tmp_path / "whole"), check_exact=True
    )
    trained = adapted(tmp_path / "whole")[0]
    assert same(bits(adapted(killed)[0]), bits(trained))
    # the base is that of the start, bit for bit, and the adapter has moved
    before = bits(policy[0])
    moved = {name for name, weights in bits(trained).items() if not weights.equal(before[name])}
    assert moved == {name for name in before if ".lora_" in name}
    # what is saved to resume from holds no base
    saved = torch.load(tmp_path / "whole/trainer/checkpoint-6/rloo.pt")["average"]
    assert saved and not any("base_layer" in name or "embed" in name for name in saved)
    last = tmp_path / "whole/trainer/checkpoint-6"
    files = {path.name for path in last.iterdir()}
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    # which has all bits, while the policy has 16
    kept = load_file(last / "adapter_model.safetensors").values()
    assert {weights.dtype for weights in kept} == {torch.float32}
    assert any(not weights.equal(weights.half().float()) for weights in kept)


def test_the_reference_is_the_start_and_not_its_base(base, tmp_path):
    policy = adapted(base)
    change(policy[0])
    start = save_policy(*policy, tmp_path / "start")
    trainer = RLOOTrainer(*adapted(start), PROBLEMS, odds, tmp_path / "run", quick(kl_coef=1.0))
    # the frozen weights are there once; training changes the adapter alone
    first = trainer.model.model.layers[0].mlp.up_proj
    reference = trainer.reference.model.layers[0].mlp.up_proj
    assert reference.base_layer.weight is first.base_layer.weight
    assert reference.lora_A["default"].weight is not first.lora_A["default"].weight
    trainer.fit(tmp_path / "run", 4, "RLOO", ("reward",))
    table = metrics_of(tmp_path / "run")
    assert table["kl"].iloc[0] == pytest.approx(0, abs=1e-6) and table["kl"].iloc[-1] > 1e-3
    ids = torch.tensor([PROMPTS[0]])
    assert torch.equal(trainer.reference(ids).logits, adapted(start)[0](ids).logits)


def test_a_frozen_copy_of_an_ordinary_model_shares_nothing(base):
    model, _ = load_policy(base)
    reference = frozen_copy(model)
    for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.data_ptr() != other.data_ptr() and not other.requires_grad


SFT = {
    "learning_rate": 5e-2,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "eval_every": 2,
    "save_every": 2,
    "seed": 0,
    "epochs": 2,
    "batch_size": 4,
    "warmup_steps": 0,
    "schedule": "constant",
    "end_token": True,
    "log_every": 1,
}


def sft(folder, start, first=0):
    rows = [{"prompt": f"{i} + 1 =", "completion": f" {i + 1}"} for i in range(first, first + 12)]
    rows = Dataset.from_list(rows)
    train_sft(adapted(start), rows, folder, SFTSettings(**SFT), rows.select(range(4)))


def killed_sft(folder, start):
    """Training that ends its process in the fifth of its six updates."""

    class Killed(DemonstrationTrainer):
        def log(self, logs, start_time=None):
            if self.state.global_step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            super().log(logs, start_time)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.learn.sft.DemonstrationTrainer", Killed)
        sft(folder, start)


def test_sft_trains_an_adapter_and_resumes_exactly(base, tmp_path):
    sft(tmp_path / "whole", base)
    table = pd.read_csv(tmp_path / "whole/metrics.csv")
    assert table["loss"].iloc[-1] < table["loss"].iloc[0] - 0.1
    killed = tmp_path / "killed"
    assert run_in_child(lambda: killed_sft(killed, base)) == signal.SIGKILL
    assert latest_checkpoint(killed / "trainer").name == "checkpoint-4"
    sft(killed, base)
    assert same(bits(adapted(killed)[0]), bits(adapted(tmp_path / "whole")[0]))
    # RLOO goes on with it
    rloo(tmp_path / "rloo", tmp_path / "whole", steps=2)
    named = [
        json.loads((tmp_path / run / "checkpoint/adapter_config.json").read_text())
        for run in ("whole", "rloo")
    ]
    assert named[0] == named[1], "of one base"


def test_sft_goes_on_in_links_with_one_adapter(base, tmp_path):
    """Each link starts from what the last one saved, and the base stays the first one."""
    sft(tmp_path / "one", base)
    sft(tmp_path / "two", tmp_path / "one", first=12)
    first = bits(adapted(tmp_path / "one")[0])
    second = bits(adapted(tmp_path / "two")[0])
    moved = {name for name, weights in second.items() if not weights.equal(first[name])}
    assert moved == {name for name in second if ".lora_" in name}
    bases = [adapters.base_of(str(tmp_path / link / "checkpoint")) for link in ("one", "two")]
    assert bases == [str(base)] * 2


def preference(folder, start, steps=4):
    pairs = [
        {"nums": [1, 2, i + 3], "target": 10, "chosen": " 1", "rejected": " 22"} for i in range(8)
    ]
    settings = PreferenceSettings(
        **{"loss": "ipo", "beta": 0.1, "steps": steps, "batch_size": 4, "max_tokens": 8},
        **{"learning_rate": 1e-2, "weight_decay": 0.0, "max_grad_norm": 1.0},
        **{"eval_every": 2, "save_every": 2, "seed": 0},
    )
    train_preference(
        adapted(start), Dataset.from_list(pairs), folder, settings, PROBLEMS.select(range(2))
    )


def test_preference_training_moves_the_adapter_away_from_its_start(base, tmp_path):
    policy = adapted(base)
    change(policy[0])
    start = save_policy(*policy, tmp_path / "start")
    preference(tmp_path / "whole", start)
    table = pd.read_csv(tmp_path / "whole/metrics.csv")
    assert table["margin"].iloc[0] == 0 and table["margin"].iloc[-1] > 0.02
    preference(tmp_path / "short", start, steps=2)
    preference(tmp_path / "short", start)
    assert same(bits(adapted(tmp_path / "short")[0]), bits(adapted(tmp_path / "whole")[0]))


# --- memory ---------------------------------------------------------------------------------------


def test_an_adapter_alone_needs_gradients_moments_and_a_reference(base):
    model, _ = adapted(base)
    full, _ = load_policy(base)
    trained = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
    frozen = sum(weights.numel() for weights in model.parameters() if not weights.requires_grad)
    assert frozen == full.num_parameters() and trained == model.num_parameters() - frozen
    by_reference = [
        training_memory(model, 4, 100, True) - training_memory(model, 4, 100, False),
        training_memory(full, 4, 100, True) - training_memory(full, 4, 100, False),
    ]
    assert by_reference == pytest.approx([4 * trained, 4 * frozen], abs=1)
    saved = training_memory(full, 1, 1, False) - training_memory(model, 1, 1, False)
    # and the policy is opened a second time
    assert saved == pytest.approx(12 * frozen - 16 * trained - 4 * (frozen + trained), rel=0.05)
    assert max_micro_batch(model, 8, 100, True) == 8 and max_rows(model, 8, 100) == 8
