"""The tokenizer loses nothing, and a checkpoint comes back as it was saved or says what is wrong."""

import re
import shutil
import string
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lib.files import MODELS
from lib.model import build_tokenizer, load_policy, load_tokenizer, new_model, save_policy
from lib.prompts import render_prompt

FORMATS = {
    "free text": "<think>\n44 + 19 = 63, 63 + 35 = 98, 98? yes\n</think>\n<answer>44 + 19 + 35</answer>",
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


@given(st.text(alphabet=string.digits + string.ascii_letters + string.punctuation + " \n\t", max_size=60))
def test_any_ascii_text_survives(text):
    if not any(special in text for special in TOKENIZER.all_special_tokens):
        assert TOKENIZER.decode(TOKENIZER(text).input_ids) == text


def test_other_text_is_unknown_and_prompt_and_completion_never_merge():
    assert TOKENIZER("×").input_ids == [TOKENIZER.unk_token_id]
    prompt, completion = render_prompt([44, 19, 35], 98), FORMATS["free text"]
    assert TOKENIZER(prompt).input_ids + TOKENIZER(completion).input_ids == TOKENIZER(prompt + completion).input_ids


def test_one_digit_one_token_one_operator_one_token():
    assert TOKENIZER.tokenize("44 + 19 = 63") == ["4", "4", " + ", "1", "9", " = ", "6", "3"]
    assert TOKENIZER.tokenize("63, 98? no") == ["6", "3", ", ", "9", "8", "?", " no"]


def test_a_checkpoint_comes_back_from_its_run_folder(saved):
    model, folder = saved
    again, tokenizer = load_policy(folder.parent)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert tokenizer.eos_token_id == model.config.eos_token_id


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


DAMAGE = {
    "weights are cut": ("model.safetensors", cut, "model.safetensors"),
    "weights are missing": ("model.safetensors", Path.unlink, "model.safetensors"),
    "weights are not numbers": ("model.safetensors", poison, "not finite, in model.norm.weight"),
    "config is cut": ("config.json", cut, "config.json"),
    "tokenizer is cut": ("tokenizer/tokenizer.json", cut, "tokenizer/"),
    "tokenizer is missing": ("tokenizer", shutil.rmtree, "tokenizer/"),
}


@pytest.mark.parametrize("file, damage, named", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_names_the_file_and_the_remedy(saved, tmp_path, file, damage, named):
    folder = save_policy(saved[0], TOKENIZER, tmp_path / "checkpoint")
    damage(folder / file)
    with pytest.raises(ValueError, match=rf"{re.escape(str(folder))}: .*{named}.*make the run anew"):
        load_policy(folder)


def test_the_committed_base_model_is_what_the_code_makes():
    model, tokenizer = load_policy(MODELS / "base-1m")
    assert tokenizer.get_vocab() == TOKENIZER.get_vocab()
    assert 0.8e6 < model.num_parameters() < 1.1e6
    assert sum(f.stat().st_size for f in (MODELS / "base-1m").rglob("*") if f.is_file()) < 4 * 2**20
