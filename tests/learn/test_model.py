"""The tokenizer loses nothing, and a checkpoint is loaded as it was saved, or the error says what
is wrong."""

import json
import re
import shutil
import string
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lib.files import MODELS
from lib.game.prompts import render_prompt
from lib.learn.model import (
    PROBES,
    build_tokenizer,
    load_policy,
    load_tokenizer,
    max_rows,
    new_model,
    reasoning_end,
    save_policy,
)
from tests.of_notebook import of_notebook

FORMATS = {
    "free text": "<think>\n44 + 19 = 63, 63 + 35 = 98, 98? yes\n</think>\n"
    "<answer>44 + 19 + 35</answer>",
    "program": "<answer>\na = 44 + 19\nanswer = a + 35\n</answer>",
    "trace": "<think>\nstate [19, 35, 44]\ntry 44 - 19 = 25\nbacktrack\n</think>",
    "trace, uppercase": "<THINK>\n</THINK>\n<ANSWER> 44 + 19 + 35 = 98 </ANSWER>",
    "agent": "Target: 98\nNumbers: [5|3, 19]\n<pick>5|3, 19, *</pick>",
    "prose": "Let me try 105 - 7 = 108 (too far)\tno!",
}
TOKENIZER = build_tokenizer()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy") / "checkpoint"
    model = new_model(TOKENIZER, hidden=32, layers=1, heads=2)
    return model, save_policy(model, TOKENIZER, folder)


@pytest.mark.parametrize("text", FORMATS.values(), ids=FORMATS)
def test_every_format_survives_and_a_reloaded_tokenizer_agrees(text, saved):
    ids = TOKENIZER(text).input_ids
    assert TOKENIZER.decode(ids) == text
    assert load_tokenizer(saved[1])(text).input_ids == ids
    assert TOKENIZER.unk_token_id not in ids


@given(
    st.text(
        alphabet=string.digits + string.ascii_letters + string.punctuation + " \n\t", max_size=60
    )
)
def test_any_ascii_text_survives(text):
    if not any(special in text for special in TOKENIZER.all_special_tokens):
        assert TOKENIZER.decode(TOKENIZER(text).input_ids) == text


def test_other_text_is_unknown_and_prompt_and_completion_never_merge():
    assert TOKENIZER("×").input_ids == [TOKENIZER.unk_token_id]
    prompt = render_prompt([44, 19, 35], 98)
    completion = FORMATS["free text"]
    assert (
        TOKENIZER(prompt).input_ids + TOKENIZER(completion).input_ids
        == TOKENIZER(prompt + completion).input_ids
    )


def test_one_digit_one_token_one_operator_one_token():
    assert TOKENIZER.tokenize("44 + 19 = 63") == ["4", "4", " + ", "1", "9", " = ", "6", "3"]
    assert TOKENIZER.tokenize("63, 98? no") == ["6", "3", ", ", "9", "8", "?", " no"]


def test_a_checkpoint_comes_back_from_its_run_folder(saved):
    model, folder = saved
    again, tokenizer = load_policy(folder.parent)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert tokenizer.eos_token_id == model.config.eos_token_id


def test_a_checkpoint_is_replaced_only_by_a_whole_one(saved, tmp_path):
    """Whatever an earlier attempt has left beside it."""
    folder = tmp_path / "checkpoint"
    stale = tmp_path / "checkpoint.tmp" / "tokenizer"
    save_policy(saved[0], TOKENIZER, folder)

    class Full:
        def save_pretrained(self, folder):
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        save_policy(saved[0], Full(), folder)
    load_policy(folder)
    stale.mkdir(parents=True, exist_ok=True)
    (stale / "old.json").write_text("{}")
    save_policy(saved[0], TOKENIZER, folder)
    assert not (folder / "tokenizer/old.json").exists() and not stale.parent.exists()


def test_a_folder_without_a_checkpoint_is_an_error_not_a_hub_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="finish the run that makes it"):
        load_policy(tmp_path)
    with pytest.raises(FileNotFoundError, match="data/runs/nowhere"):
        load_policy("data/runs/nowhere")


def cut(path, by=100):
    path.write_bytes(path.read_bytes()[:-by])


def poison(path):
    weights = load_file(path)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})


def lose(path):
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})


def widen(path):
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))


DAMAGE = {
    "weights are cut": ("model.safetensors", cut, "model.safetensors"),
    "weights are missing": ("model.safetensors", Path.unlink, "model.safetensors"),
    "weights are not numbers": ("model.safetensors", poison, "not finite, in model.norm.weight"),
    "a weight is missing": ("model.safetensors", lose, "there is no model.norm.weight"),
    "config is of another model": ("config.json", widen, "config.json and model.safetensors"),
    "config is cut": ("config.json", cut, "config.json"),
    "tokenizer is cut": ("tokenizer/tokenizer.json", cut, "tokenizer/"),
    "tokenizer is missing": ("tokenizer", shutil.rmtree, "tokenizer/"),
}


@pytest.mark.parametrize("file, damage, named", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_names_the_file_and_the_remedy(saved, tmp_path, file, damage, named):
    folder = save_policy(saved[0], TOKENIZER, tmp_path / "checkpoint")
    damage(folder / file)
    with pytest.raises(
        ValueError, match=rf"{re.escape(str(folder))}: .*{named}.*this run is made anew"
    ):
        load_policy(folder)


@pytest.mark.parametrize(
    ("name", "parameters"), [("base-0.2m", 222_656), ("base-1m", 871_296), ("base-2m", 1_945_920)]
)
def test_a_committed_base_model_is_what_the_code_makes(name, parameters):
    model, tokenizer = load_policy(MODELS / name)
    assert tokenizer.get_vocab() == TOKENIZER.get_vocab()
    assert model.num_parameters() == parameters
    assert sum(f.stat().st_size for f in (MODELS / name).rglob("*") if f.is_file()) < 8 * 2**20


def test_every_file_of_the_base_models_is_held_to_its_hash():
    held = json.loads((MODELS / "run.json").read_text())["files"]
    files = {p.relative_to(MODELS).as_posix() for p in MODELS.glob("*/**/*") if p.is_file()}
    assert set(held) == {name for name in files if not name.endswith("/arithmetic.json")}


def test_a_flipped_bit_of_the_base_model_is_refused(tmp_path):
    """data/models/run.json holds the hashes of the base models, as run.json does those of a run."""
    shutil.copytree(MODELS / "base-1m", tmp_path / "base-1m")
    shutil.copy(MODELS / "run.json", tmp_path)
    weights = bytearray((tmp_path / "base-1m/model.safetensors").read_bytes())
    weights[-1000] ^= 1
    (tmp_path / "base-1m/model.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match="its content is not what was written, though as long"):
        load_policy(tmp_path / "base-1m")


def test_mixed_weights_are_the_sum_of_shares(tmp_path):
    mix_policies = of_notebook("19_mix_policies", "mix_policies")
    models = [new_model(TOKENIZER, hidden=32, layers=1, heads=2, seed=seed) for seed in range(2)]
    paths = [save_policy(model, TOKENIZER, tmp_path / str(i)) for i, model in enumerate(models)]
    start, end = (model.state_dict() for model in models)
    for alpha, policy in ((0.0, start), (1.0, end)):  # an end is that policy
        mixed, _ = mix_policies(*paths, alpha)
        assert all(
            torch.equal(weights, policy[name]) for name, weights in mixed.state_dict().items()
        )
    mixed, tokenizer = mix_policies(*paths, 0.3)
    for name, weights in mixed.state_dict().items():
        assert torch.allclose(weights, 0.7 * start[name] + 0.3 * end[name], atol=1e-7)
    again, _ = load_policy(save_policy(mixed, tokenizer, tmp_path / "mixed"))
    assert again(torch.tensor([[5, 6]])).logits.equal(mixed(torch.tensor([[5, 6]])).logits)


def test_what_cannot_be_mixed_is_refused(tmp_path):
    mix_policies = of_notebook("19_mix_policies", "mix_policies")
    small, wide = (new_model(TOKENIZER, hidden=hidden, layers=1, heads=2) for hidden in (32, 64))
    paths = [
        save_policy(model, TOKENIZER, tmp_path / str(i)) for i, model in enumerate((small, wide))
    ]
    with pytest.raises(ValueError, match="of one shape"):
        mix_policies(*paths, 0.5)


# --- other base models ----------------------------------------------------------------------------


def bytes_tokenizer(bos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer in which no tag is one token; with `bos`, one that puts <s> before
    every text."""
    words = {
        token: i for i, token in enumerate([*pre_tokenizers.ByteLevel.alphabet(), "<s>", "</s>"])
    }
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            "<s> $A", special_tokens=[("<s>", words["<s>"])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


@pytest.mark.parametrize(
    "tokenizer", [TOKENIZER, bytes_tokenizer(), bytes_tokenizer(bos=True)], ids=["1m", "bpe", "bos"]
)
def test_the_end_of_the_reasoning_is_found_in_the_text(tokenizer):
    thought, answer = "<think>\n1 + 2 = 3\n</think>", "\n<answer>1 + 2</answer>"
    ids = tokenizer(thought + answer, add_special_tokens=False).input_ids
    end = reasoning_end(tokenizer, ids)
    assert tokenizer.decode(ids[:end]) == thought and tokenizer.decode(ids[end:]) == answer
    unfinished = tokenizer("<think>\n1 + 2", add_special_tokens=False).input_ids
    assert reasoning_end(tokenizer, unfinished) == len(unfinished)


def test_an_own_tokenizer_in_a_folder_is_not_replaced(tmp_path):
    """A Qwen2 with a vocabulary of its own, whose tokenizer.json lies where `AutoTokenizer`
    looks."""
    new_model(TOKENIZER, hidden=32, layers=1, heads=2).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    text = "Target: 98\n<think>\n44 + 19 = 63"
    assert load_tokenizer(tmp_path)(text).input_ids == TOKENIZER(text).input_ids


def small(tokenizer, family: str = "qwen2"):
    """A randomly initialised model of a family for a tokenizer."""
    if family == "qwen2":
        return new_model(tokenizer, hidden=32, layers=1, heads=2)
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**shape, vocab_size=len(tokenizer)))


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("bos", [False, True])
def test_a_checkpoint_is_an_ordinary_folder(family, bos, tmp_path):
    """Others open it by `AutoTokenizer`, which reads the same ids; and again after a second
    training."""
    tokenizer = bytes_tokenizer(bos)
    folder = save_policy(small(tokenizer, family), tokenizer, tmp_path / "first")
    folder = save_policy(*load_policy(folder), tmp_path / "second")
    usual = AutoTokenizer.from_pretrained(folder)
    assert not (folder / "tokenizer").exists() and usual.eos_token == "</s>"
    assert (
        usual(PROBES).input_ids
        == tokenizer(PROBES).input_ids
        == load_tokenizer(folder)(PROBES).input_ids
    )
    assert (tokenizer.bos_token_id == usual(PROBES[0]).input_ids[0]) == bos


@pytest.mark.parametrize(
    "family, tokenizer", [("qwen2", TOKENIZER), ("qwen2", "digits"), ("llama", TOKENIZER)]
)
def test_a_tokenizer_that_others_would_read_otherwise_lies_apart(family, tokenizer, tmp_path):
    """Ours, and one that cuts digits as no Qwen2 does: beside the weights of one they would be
    opened as Qwen2's."""
    if tokenizer == "digits":
        tokenizer = bytes_tokenizer()
        pieces = [
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
        words = tokenizer.get_vocab() | {"44": 258, "19": 259}
        own = Tokenizer(models.BPE(words, [("4", "4"), ("1", "9")]))
        own.pre_tokenizer = pre_tokenizers.Sequence(pieces)
        own.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=own, eos_token="</s>", pad_token="</s>"
        )
        assert tokenizer.tokenize("44")[0] == "44"
    folder = save_policy(small(tokenizer, family), tokenizer, tmp_path / "checkpoint")
    alike = AutoTokenizer.from_pretrained(folder)(PROBES).input_ids == tokenizer(PROBES).input_ids
    assert (folder / "tokenizer").is_dir() != alike
    assert alike == (family == "llama")
    assert load_tokenizer(folder)(PROBES).input_ids == tokenizer(PROBES).input_ids


def test_a_checkpoint_knows_from_which_commit_of_the_hub_it_comes(tmp_path, monkeypatch, capsys):
    """Through the hub library's own cache, as it lies on a disk without a network."""
    commits = {"main": "a" * 40, "older": "b" * 40}
    repository = tmp_path / "models--owner--small"
    tokenizer = bytes_tokenizer()
    for seed, (name, commit) in enumerate(commits.items()):
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / name).write_text(commit)
        new_model(tokenizer, 32, 1, 2, seed).save_pretrained(repository / "snapshots" / commit)
        tokenizer.save_pretrained(repository / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    norms = {}
    for path, commit in (
        ("owner/small", "a"),
        ("owner/small@older", "b"),
        (f"owner/small@{'b' * 40}", "b"),
    ):
        model, words = load_policy(path)
        assert f"base model: owner/small@{commit * 40}" in capsys.readouterr().out
        assert words(PROBES).input_ids == tokenizer(PROBES).input_ids
        again, _ = load_policy(save_policy(model, words, tmp_path / "checkpoint"))
        assert again.config.base_model == f"owner/small@{commit * 40}"
        norms.setdefault(commit, set()).add(again.lm_head.weight.norm().item())
    assert [len(found) for found in norms.values()] == [1, 1] and norms["a"] != norms["b"]


def test_a_run_that_holds_a_gpu_does_not_fall_back_to_the_cpu(saved, monkeypatch):
    monkeypatch.setenv("COUNTDOWN_GPU", "GPU-9a3b-11")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RuntimeError, match="PyTorch sees no GPU, and this run holds GPU-9a3b-11"):
        load_policy(saved[1])


def test_rows_follow_the_room_there_is(monkeypatch):
    model = new_model(TOKENIZER, hidden=32, layers=2, heads=2)
    assert max_rows(model, 512, 200) == 512
    weights = 4 * model.num_parameters()
    row = 4 * (2 * 2 * 32 * 224 + 4 * len(TOKENIZER))
    for rows in (1, 7, 100):
        needed = weights + rows * row  # 200 tokens take 224 columns
        monkeypatch.setattr("lib.learn.model.machine_memory", lambda: weights + needed / 0.9 + 1)  # noqa: B023
        assert max_rows(model, 512, 200) == rows
        # on a GPU the optimiser holds twice as much as the model, and draws are in bfloat16
        needed = weights / 2 + rows * (2 * 2 * 2 * 32 * 224 + 4 * 4 * len(TOKENIZER))
        with monkeypatch.context() as gpu:
            gpu.setattr("torch.cuda.is_available", lambda: True)
            gpu.setattr("torch.cuda.memory_allocated", lambda: 3 * weights)
            gpu.setattr("lib.learn.model.machine_memory", lambda: 3 * weights + needed / 0.9 + 1)  # noqa: B023
            assert max_rows(model, 512, 200) == rows
    monkeypatch.setattr("lib.learn.model.machine_memory", lambda: 0)
    assert max_rows(model, 512, 200) == 1


def test_a_chat_style_gives_the_tokenizer_its_end_token_which_a_checkpoint_keeps(tmp_path):
    tokenizer = bytes_tokenizer()
    save_policy(new_model(tokenizer, hidden=32, layers=1, heads=2), tokenizer, tmp_path / "plain")
    with pytest.raises(ValueError, match="no token of this tokenizer"):
        load_policy(tmp_path / "plain", style="chat")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    save_policy(new_model(tokenizer, hidden=32, layers=1, heads=2), tokenizer, tmp_path / "chat")
    assert load_policy(tmp_path / "chat", style="words")[1].eos_token == "</s>"
    model, taught = load_policy(tmp_path / "chat", style="chat")
    save_policy(model, taught, tmp_path / "taught")
    assert load_policy(tmp_path / "taught")[1].eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    "generation",
    [
        {"do_sample": False, "temperature": 0.6, "top_p": 0.9},
        {"do_sample": False, "top_p": 0.9},
        {"early_stopping": True, "num_beams": 1},
        {"pad_token_id": -1},
    ],
)
def test_a_base_whose_generation_config_cannot_be_saved_is_read_without_it(
    generation, tmp_path, capsys
):
    """It would load, and the first save of a training would fail, and lose all until then."""
    folder = save_policy(
        new_model(TOKENIZER, hidden=32, layers=1, heads=2), TOKENIZER, tmp_path / "base"
    )
    (folder / "generation_config.json").write_text(json.dumps(generation))
    model, tokenizer = load_policy(folder)
    said = capsys.readouterr().out
    assert "generation_config.json cannot be saved" in said
    assert next(iter(generation)) in said, "what is wrong with it"
    saved_again = save_policy(model, tokenizer, tmp_path / "trained")
    load_policy(saved_again)
    assert "cannot be saved" not in capsys.readouterr().out


@pytest.mark.parametrize("template, kept", [("$A <eos>", []), ("<unk> $A <eos>", ["<unk>"])])
def test_a_tokenizer_that_adds_the_end_token_to_every_text_is_kept_from_it(
    template, kept, tmp_path
):
    """A prompt would end with it, and a completion of preference training would have two."""
    tokenizer = build_tokenizer()
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<eos>", "<unk>")]
    processor = processors.TemplateProcessing(single=template, special_tokens=special)
    tokenizer.backend_tokenizer.post_processor = processor
    assert tokenizer("1").input_ids[-1] == tokenizer.eos_token_id
    folder = save_policy(
        new_model(TOKENIZER, hidden=32, layers=1, heads=2), tokenizer, tmp_path / "base"
    )
    loaded = load_tokenizer(folder)
    wanted = [*loaded.convert_tokens_to_ids(kept), *build_tokenizer()("1 + 2").input_ids]
    assert loaded("1 + 2").input_ids == wanted
    save_policy(new_model(TOKENIZER, hidden=32, layers=1, heads=2), loaded, tmp_path / "trained")
    assert load_tokenizer(tmp_path / "trained")("1 + 2").input_ids == wanted
