"""LoRA adapters: small trained matrices beside the frozen weights of a base model (Hu et al., 2021,
"LoRA: Low-Rank Adaptation of Large Language Models"), by the library `peft`.

An adapted model is an ordinary model of transformers in whose linear layers peft's are inserted. A
layer with weights W computes with W + (lora_alpha / lora_r) B A, and only A and B are trained. The
other parts of this library never read W: peft's `weight` is that of the base, so that a decode loop
that takes it would sample without the adapter and say nothing. They sample in `merged`, take
weights from `plain_weights`, and otherwise call the model.

The checkpoint of an adapted policy holds the adapter, in the form of peft, and the name of its
base; the tokenizer is saved beside it as for any policy. The adapter of a policy has 16 bits, and
what training needs to resume has 32. Above LARGEST bytes the weights are in several files, with the
names that transformers gives to those of a model; peft itself reads only one file."""

import copy
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from safetensors.torch import load_file

from lib.files import REFERENCE, ROOT, RUNS, shown

NAME = "default"  # peft's name of a model's first adapter, which is the only one here
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"  # which file holds which weights, if there is more than one
LARGEST = 8 * 2**20 - 2**18  # bytes of weights in a file, which with its header has at most 8 MiB
PREFIX = "base_model.model."  # of the names in WEIGHTS, by peft
OURS = "data/runs/"  # stands for the folder of all runs, wherever that is


def is_adapted(model) -> bool:
    return hasattr(model, "peft_config")


def adapted_layers(model) -> list[tuple[str, Any]]:
    """The layers that have an adapter, by name; none in a model without adapters."""
    if not is_adapted(model):
        return []
    from peft.tuners.lora import LoraLayer  # takes a second, and most runs never need it

    return [entry for entry in model.named_modules() if isinstance(entry[1], LoraLayer)]


def add_adapter(model, base: str, lora_r: int, lora_alpha: int, seed: int) -> None:
    """Puts a new adapter of rank `lora_r` into all linear layers of `model` except its head, and
    freezes everything else. B is 0, so that the model computes the same as before; A is drawn from
    the seed. `base`: the checkpoint that was loaded, a folder or a hub name with its commit."""
    from peft import LoraConfig, inject_adapter_in_model

    name, _, revision = base.partition("@")
    is_folder = Path(base).is_dir()
    config = LoraConfig(
        base_model_name_or_path=_named(Path(base)) if is_folder else name,
        revision=None if is_folder else revision or None,
        task_type="CAUSAL_LM",
        target_modules="all-linear",
        r=lora_r,
        lora_alpha=lora_alpha,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, NAME)


# --- sampling -------------------------------------------------------------------------------------


@contextmanager
def merged(model) -> Iterator[None]:
    """A context in which the adapter is added to the weights, so that whatever reads them reads the
    policy. Afterwards each layer has its own tensor again, the same bits: subtracting would leave a
    rounding error each time. Does nothing to a model without an adapter."""
    layers = [layer for _, layer in adapted_layers(model)]
    bases = [layer.get_base_layer() for layer in layers]
    kept = [base.weight.data for base in bases]
    try:
        for layer, base in zip(layers, bases, strict=True):
            base.weight.data = _effective(layer)
            layer.merged_adapters.append(NAME)
        yield
    finally:
        for layer, base, weights in zip(layers, bases, kept, strict=True):
            base.weight.data = weights
            layer.merged_adapters.clear()


@torch.no_grad()
def _effective(layer) -> torch.Tensor:
    """The weights with which a layer computes: those of its base and of its adapter."""
    weights = layer.get_base_layer().weight.data
    with torch.autocast(weights.device.type, enabled=False):
        return weights + layer.get_delta_weight(NAME)


def plain_weights(model) -> dict[str, torch.Tensor]:
    """The weights of `model` by the names that they have without an adapter, in `merged` those of
    the policy."""
    return {
        name.replace(".base_layer.", "."): weights.detach()
        for name, weights in model.state_dict().items()
        if ".lora_" not in name
    }


def fold(model) -> None:
    """Adds the adapter to the weights for good, which leaves an ordinary model, all of it
    trainable."""
    for name, layer in adapted_layers(model):
        base = layer.get_base_layer()
        base.weight.data = _effective(layer)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, base)
    del model.peft_config
    model.requires_grad_(True)


# --- training -------------------------------------------------------------------------------------


def frozen_copy(model):
    """A copy that no training changes: the reference. It shares those weights that `model` does not
    train either, so it must not be read in `merged`."""
    shared = {id(weights): weights for weights in model.parameters() if not weights.requires_grad}
    return copy.deepcopy(model, shared).eval().requires_grad_(False)


def without_base(state: dict[str, torch.Tensor], model) -> dict[str, torch.Tensor]:
    """A state dict without the frozen weights of an adapted model, which its checkpoint names."""
    if not is_adapted(model):
        return state
    return {
        name: value for name, value in state.items() if ".lora_" in name or name == "n_averaged"
    }


# --- checkpoints ----------------------------------------------------------------------------------


@torch.no_grad()
def round_adapter(model) -> None:
    """Rounds the adapter of `model` to 16 bits, in place: a policy is rounded before it is
    evaluated, so that what is published is what was measured. Raises ValueError for a weight beyond
    the range of float16."""
    for name, weights in model.named_parameters():
        if ".lora_" in name:
            rounded = weights.half()
            if not rounded.isfinite().all():
                raise ValueError(
                    f"{name} reaches {weights.abs().max():.3g}, and a policy's adapter is saved in "
                    f"16 bits, up to {torch.finfo(torch.float16).max:,.0f}: lower learning_rate"
                )
            weights.copy_(rounded)


def save_adapter(model, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Writes the adapter as peft does, with weights in `dtype`. Their metadata hold a hash of the
    base's weights."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    config = model.peft_config[NAME].to_dict()
    # peft would write the names of a set in an order that changes from process to process
    ordered = {key: sorted(v) if isinstance(v, set) else v for key, v in config.items()}
    (folder / CONFIG).write_text(json.dumps(ordered, indent=2, sort_keys=True))
    # else peft looks on the hub whether the vocabulary has grown
    found = get_peft_model_state_dict(model, adapter_name=NAME, save_embedding_layers=False)
    weights = {PREFIX + name: value.to(dtype) for name, value in found.items()}
    write_weights(weights, folder, _base_digest(model))


def write_weights(weights: dict[str, torch.Tensor], folder: Path, base: str) -> None:
    """Writes weights in as many files as they need; `base`: the hash that the metadata hold."""
    save_torch_state_dict(
        weights,
        folder,
        filename_pattern=WEIGHTS.replace(".", "{suffix}."),
        max_shard_size=LARGEST,
        metadata={"format": "pt", "base": base},
    )


def _weight_files(folder: Path) -> list[Path]:
    if not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    return [folder / name for name in sorted(set(places.values()))]


def _metadata(folder: Path) -> dict[str, str]:
    if (folder / INDEX).is_file():
        return json.loads((folder / INDEX).read_text())["metadata"]
    with safe_open(folder / WEIGHTS, "pt") as file:
        return file.metadata() or {}


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    weights = {}
    for file in _weight_files(folder):
        weights |= load_file(file)
    return weights


def base_of(checkpoint: str) -> str:
    """The base that the adapter in a folder names, a checkpoint or a hub name with its commit; ""
    if the folder holds no adapter."""
    if not (Path(checkpoint) / CONFIG).is_file():
        return ""
    config = json.loads((Path(checkpoint) / CONFIG).read_text())
    name = config["base_model_name_or_path"]
    if config.get("revision"):
        return f"{name}@{config['revision']}"
    places = [ROOT / name]
    if name.startswith(OURS):
        inside = name.removeprefix(OURS)
        places = [RUNS / inside, ROOT / name, REFERENCE / inside]
    return next((str(place) for place in places if place.is_dir()), name)


def _named(base: Path) -> str:
    """The name of a base's folder, which stays true when runs lie elsewhere or are published."""
    base = Path(os.path.abspath(base))
    if base.is_relative_to(RUNS):
        return OURS + base.relative_to(RUNS).as_posix()
    return shown(base)


def open_adapter(model, folder: Path) -> None:
    """Puts the adapter of a folder into its base `model`, ready to be trained further. Raises
    ValueError for an adapter of another kind, and as `load_adapter` does."""
    from peft import LoraConfig, PeftConfig, inject_adapter_in_model

    config = PeftConfig.from_pretrained(str(folder))
    names = _read_weights(folder)
    is_plain = all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in names)
    if not isinstance(config, LoraConfig) or not is_plain:
        raise ValueError("it is no plain LoRA of linear layers, which is all that is read here")
    config.inference_mode = False
    with torch.random.fork_rng():
        inject_adapter_in_model(config, model, NAME)
    load_adapter(model, folder)


def load_adapter(model, folder: Path) -> None:
    """Reads the weights of the adapter that `model` has. Raises ValueError if some are missing or
    not finite."""
    from peft import set_peft_model_state_dict

    weights = _read_weights(folder)
    nonfinite = [name for name, value in weights.items() if not value.isfinite().all()]
    if nonfinite:
        raise ValueError(f"weights that are not finite, in {nonfinite[0]} first")
    plain = {name.removeprefix(PREFIX): value for name, value in weights.items()}
    result = set_peft_model_state_dict(model, plain, NAME)
    absent = [name for name in result.missing_keys if ".lora_" in name]
    if absent or result.unexpected_keys:
        raise ValueError(f"there is no {[*absent, *result.unexpected_keys][0]}")


def check_adapter(model, folder: Path, lora_r: int, lora_alpha: int) -> None:
    """Raises ValueError if the adapter of a folder, which `model` has, was trained on other weights
    of its base, or has another rank or scale than is asked for (lora_r = 0: any)."""
    trained_on = _metadata(folder).get("base", "")  # only ours say it
    config = model.peft_config[NAME]
    if trained_on and trained_on != _base_digest(model):
        raise ValueError(
            f"{shown(folder)}: its base {config.base_model_name_or_path} has other weights than "
            "those on which this adapter was trained: restore them, or train it again"
        )
    if lora_r and (config.r, config.lora_alpha) != (lora_r, lora_alpha):
        raise ValueError(
            f"lora_r={lora_r} and lora_alpha={lora_alpha}: the adapter in {shown(folder)}, with "
            f"which training goes on, has lora_r={config.r} and lora_alpha={config.lora_alpha}; "
            "with lora_r=0 it is added to the weights, and all of them are trained"
        )


def _base_digest(model) -> str:
    """A hash of all weights of the base, by their names."""
    found = hashlib.sha256()
    for name, weights in sorted(model.named_parameters()):
        if ".lora_" not in name:
            found.update(name.replace(".base_layer.", ".").encode())
            found.update(weights.detach().cpu().flatten().view(torch.uint8).numpy())
    return found.hexdigest()
