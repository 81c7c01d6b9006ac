"""The policy: its tokenizer, the base model of one million parameters, and the loading and saving
of checkpoints.

Our model is an ordinary Qwen2 (the architecture of the papers' Qwen2.5-0.5B) with a vocabulary of
our own: some words of the studies' formats, then every printable ASCII character. Digits are single
tokens, and an operator is one token together with the spaces around it. A checkpoint is an ordinary
folder of transformers, but a tokenizer with our vocabulary is in a sub-folder `tokenizer/`, because
`AutoTokenizer` would silently add Qwen2's pre-tokenizer to it."""

import os
import re
import shutil
import string
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import shorten
from typing import Any, cast

import torch
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from lib.files import host_memory, remedy, verify
from lib.game.prompts import ENDS, PROMPTS
from lib.learn.adapters import (
    CONFIG,
    WEIGHTS,
    add_adapter,
    base_of,
    check_adapter,
    fold,
    is_adapted,
    open_adapter,
    round_adapter,
    save_adapter,
)

SPECIAL = ["<pad>", "<eos>", "<unk>"]
WORDS = [
    *["<think>", "</think>", "<answer>", "</answer>", "<pick>", "</pick>"],
    *["<THINK>", "</THINK>", "<ANSWER>", "</ANSWER>"],
    *[" + ", " - ", " * ", " / ", " = ", ", ", " yes", " no"],
    *["Numbers: ", "Target: ", "Program", "Trace", "Proof", "Pick"],
    *["state ", "try ", "backtrack", "answer", "result", "final"],
]
CHARACTERS = [*string.digits, *string.ascii_letters, *string.punctuation, " ", "\n", "\t"]
PROCESS = 0.8 * 2**30  # bytes that a kernel with PyTorch and transformers takes


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Our tokenizer: it looks for WORDS first, then for single ASCII characters; anything else is
    `<unk>`."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *WORDS, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    longest_first = sorted(WORDS, key=len, reverse=True)
    pattern = "|".join([*map(re.escape, longest_first), r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    special = dict(zip(("pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special
    )


def new_model(
    tokenizer, hidden: int = 128, layers: int = 4, heads: int = 4, seed: int = 0
) -> Qwen2ForCausalLM:
    """A randomly initialised Qwen2 for `tokenizer`; the defaults give 0.87 million parameters."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def machine_memory() -> int:
    """The bytes of memory of the GPU, or without a GPU those of the machine or its container. The
    memory that other programs use is not subtracted, so that the same run always has the same
    micro-batches."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    return host_memory()


def training_memory(model, rows: int, length: int, reference: bool) -> int:
    """Estimated bytes at the peak of training on micro-batches of `rows` texts of `length` tokens.

    This counts the weights, gradients and AdamW's two moments in float32, the frozen `reference`,
    and what a forward pass keeps. An adapter alone has gradients, moments and a reference of its
    own (`frozen_copy`). A CPU also needs memory for the process, and half as much again
    as a pass keeps, since the allocator does not return small pieces. It keeps these while a
    notebook opens the trained policy at its end, for which an adapter's gradients and moments leave
    no room. `make test-pretrained` checks the estimate on a model of 135 million parameters."""
    half = torch.cuda.is_available()
    trained = model.num_parameters(only_trainable=True)
    weights = (4 + 2 * half) * model.num_parameters() + (4 + 8 + 4 * reference) * trained
    activations = kept_memory(model.config, rows * length)
    if half:
        return weights + activations
    opened = 4 * model.num_parameters() * is_adapted(model)
    copies = 0
    if in_bfloat16(model):  # in addition to what float32 keeps, as measured with SmolLM2-135M
        copies = 2 * model.num_parameters() + 0.15 * activations
    return int(PROCESS + weights + opened + copies + 1.5 * activations)


def kept_memory(config, tokens: int) -> int:
    """Estimated bytes that a forward pass over `tokens` tokens keeps for the backward pass: 12
    hidden widths, 6 key widths and 4 feed-forward widths per token and layer, in bfloat16 on a GPU,
    and three tiles of logits of 4,096 tokens by 32,768 words (TRL's fused head)."""
    size = 2 if torch.cuda.is_available() else 4
    # GPT-2 has no such field
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    layer = 12 * config.hidden_size + 6 * key_width(config) + 4 * inner
    return tokens * size * config.num_hidden_layers * layer + 3 * 4 * min(tokens, 4096) * min(
        config.vocab_size, 32768
    )


def key_width(config) -> int:
    """The count of numbers in the keys of one token and layer."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


def max_rows(model, rows: int, length: int) -> int:
    """How many of `rows` texts of `length` tokens our decode loop can draw at once, at least one,
    in nine tenths of the memory that the model leaves, or on a GPU all tensors of this process.

    It needs `copies_memory` and for each row `row_memory`."""
    # 0 without a GPU
    allocated = max(model.num_parameters() * model.dtype.itemsize, torch.cuda.memory_allocated())
    room = 0.9 * (machine_memory() - allocated) - copies_memory(model)
    return max(1, min(rows, int(room // row_memory(model.config, length))))


def copies_memory(model) -> int:
    """Bytes of the copies of the weights from which our decode loop draws: one, and a second one if
    they have an adapter (`merged`)."""
    size = 2 if torch.cuda.is_available() else 4
    return (size + model.dtype.itemsize * is_adapted(model)) * model.num_parameters()


def row_memory(config, length: int) -> int:
    """Bytes that our decode loop needs for a text of `length` tokens: keys and values of all
    columns, and four rows of logits in float32."""
    size = 2 if torch.cuda.is_available() else 4
    columns = -(-length // 32) * 32
    keys_and_values = 2 * config.num_hidden_layers * key_width(config) * columns
    return size * keys_and_values + 4 * 4 * config.vocab_size


def sampling_memory(model, rows: int, length: int) -> int:
    """Estimated bytes at the peak of drawing `rows` texts of `length` tokens at once."""
    weights = model.num_parameters() * model.dtype.itemsize + copies_memory(model)
    process = 0 if torch.cuda.is_available() else int(PROCESS)
    return process + weights + rows * row_memory(model.config, length)


def max_micro_batch(model, batch: int, length: int, reference: bool) -> int:
    """The most rows, a divisor of `batch`, that one training pass can read in nine tenths of the
    memory; 1 if none fits. It is estimated, because a CPU kills the process without the exception
    for which accelerate's search waits."""
    room = 0.9 * machine_memory()
    sizes = (rows for rows in range(batch, 0, -1) if batch % rows == 0)
    return next(
        (rows for rows in sizes if training_memory(model, rows, length, reference) <= room), 1
    )


def save_policy(model, tokenizer, folder: str | Path) -> Path:
    """Writes a checkpoint, completely, before it replaces an old one: the tokenizer with the
    weights if `AutoTokenizer` opens it unchanged from there, and otherwise in `tokenizer/`. Of a
    model with an adapter, only the adapter is saved, with the name of its base. The adapter is
    rounded to the 16 bits in which it is saved, in `model` as well, so that whatever is measured
    afterwards is measured of the policy that was saved."""
    folder = Path(folder)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    if is_adapted(model):
        round_adapter(model)
        save_adapter(model, temporary, torch.float16)
    else:
        model.save_pretrained(temporary)
    files = tokenizer.save_pretrained(temporary)
    if not opens_alike(temporary, tokenizer):
        (temporary / "tokenizer").mkdir()
        for file in filter(Path.is_file, map(Path, files)):
            file.rename(temporary / "tokenizer" / file.name)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)
    return folder


def checkpoint_of(path: str | Path) -> str:
    """The checkpoint that `path` names: the `checkpoint/` of a run folder, a checkpoint folder
    itself, or a hub name, which may be followed by @ and a revision (commit, tag or branch).

    Raises FileNotFoundError if `path` is meant as a folder (it is one, or starts like one) but has
    no checkpoint."""
    folder = Path(path)
    for candidate in (folder / "checkpoint", folder):
        if any((candidate / name).is_file() for name in ("config.json", CONFIG)):
            return str(candidate)
    if folder.exists() or str(path).startswith(("data/", "/", ".")):
        first = "finish the run that makes it first"
        if "pretrained" in folder.parts:
            first = "`make pretrained` makes it"
        raise FileNotFoundError(f"{path}: no checkpoint there (config.json is missing); {first}")
    return str(path)


def source(checkpoint: str) -> dict[str, str]:
    """The arguments of `from_pretrained` for a checkpoint, which is a folder, or a hub name with
    its revision."""
    name, _, revision = checkpoint.partition("@")
    options = {"revision": revision} if revision and not Path(checkpoint).is_dir() else {}
    return {"pretrained_model_name_or_path": name if options else checkpoint} | options


PROBE = (
    "Numbers: [44, 19, 35]\nTarget: 98\n<think>\n44 + 19 = 63\t(no)\n</think>  "
    "<answer>x_1 = 007</answer>"
)
PROBES = [PROBE, *PROMPTS.values()]  # texts that show whether two tokenizers are the same


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint: its `tokenizer/` folder if there is one; its tokenizer.json,
    read unchanged, if that gives PROBES other ids than `AutoTokenizer` does; and otherwise what
    `AutoTokenizer` returns. It never adds the end token to a text (`without_end`)."""
    return without_end(_read_tokenizer(path))


def without_end(tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer, changed if it adds the end token to every text: a prompt would end with it,
    and a completion would have two. Tokens that it puts in front stay. Raises ValueError if it
    cannot be changed."""
    ids = tokenizer("1").input_ids
    bare = tokenizer("1", add_special_tokens=False).input_ids
    if ids[-1:] != [tokenizer.eos_token_id]:
        return tokenizer
    wanted = ids[:-1]
    prefix = tokenizer.convert_ids_to_tokens(wanted[: len(wanted) - len(bare)])
    template = " ".join([*prefix, "$A"])
    special_tokens = [(token, tokenizer.convert_tokens_to_ids(token)) for token in prefix]
    if hasattr(tokenizer, "add_eos_token"):
        tokenizer.add_eos_token = False
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=special_tokens
    )
    if tokenizer("1").input_ids != wanted:
        raise ValueError(
            "the tokenizer adds its end token to every text, and cannot be kept from it"
        )
    return tokenizer


def _read_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    checkpoint = checkpoint_of(path)
    folder = Path(checkpoint)
    with _errors_with_remedy(checkpoint, "tokenizer/"):
        if (folder / "tokenizer").is_dir():
            return PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
        if folder.is_dir() and not any(folder.glob("*token*")):
            # transformers would create an empty one
            raise FileNotFoundError("there is no tokenizer")
        auto_tokenizer = AutoTokenizer.from_pretrained(**source(checkpoint))
        if (folder / "tokenizer.json").is_file():
            file_tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
            if file_tokenizer(PROBES).input_ids != auto_tokenizer(PROBES).input_ids:
                return file_tokenizer
        return auto_tokenizer


def opens_alike(folder: Path, tokenizer) -> bool:
    """Whether `AutoTokenizer` opens a folder as the tokenizer that was saved there, by PROBES and
    the end token."""
    with suppress(Exception):  # after any error: others cannot open the folder either
        auto = AutoTokenizer.from_pretrained(folder)
        return (auto(PROBES).input_ids, auto.eos_token) == (
            tokenizer(PROBES).input_ids,
            tokenizer.eos_token,
        )
    return False


def reasoning_end(tokenizer, ids: Sequence[int]) -> int:
    """How many of a completion's tokens belong to its reasoning, including the closing tag (several
    tokens in most vocabularies); all of them if that tag is missing."""
    return bisect_left(
        range(len(ids)), True, key=lambda end: "</think>" in tokenizer.decode(ids[:end])
    )


def load_policy(
    path: str | Path,
    style: str = "",
    lora_r: int = 0,
    lora_alpha: int = 32,
    seed: int = 0,
    bfloat16: bool = False,
):
    """The model, in float32 and on the GPU if there is one, and the tokenizer of what
    `checkpoint_of` finds at `path`.

    lora_r: the rank of the adapter that is to be trained (`lib.learn.adapters`): that of `path`, or
    else a new one, which is drawn from `seed`. With 0 the model is an ordinary one, and an adapter
    at `path` is added to its weights.

    bfloat16: compute in bfloat16 on a CPU as well, in training and in draws (`in_bfloat16`).

    style: the prompt style with which the policy is trained or sampled. If this style has an end
    token of its own, it becomes the tokenizer's end token: it is learned, it stops the draws, and
    it is saved with the policy. For a hub name, `base_model` in the config says which commit was
    loaded; every checkpoint made from it keeps that. Raises FileNotFoundError for a folder without
    a checkpoint, or an adapter whose base is not there; ValueError if a file or weights are
    missing, damaged or not finite, if the style's end token is not in the tokenizer, or if an
    adapter at `path` has another rank or scale; RuntimeError if the run has a GPU reserved that
    PyTorch does not see."""
    checkpoint = checkpoint_of(path)
    base = base_of(checkpoint)
    model = _read_model(checkpoint_of(base) if base else checkpoint, path)
    if base:
        _read_adapter(model, checkpoint, lora_r, lora_alpha)
    elif lora_r:
        # of a hub name, the commit that was loaded
        loaded = checkpoint if Path(checkpoint).is_dir() else model.config.base_model
        add_adapter(model, loaded, lora_r, lora_alpha, seed)
    _need_gpu()
    model.to("cuda" if torch.cuda.is_available() else "cpu")  # pyright: ignore[reportArgumentType]
    model._computes_in_bfloat16 = bfloat16  # pyright: ignore[reportArgumentType]
    tokenizer = load_tokenizer(checkpoint)
    end = ENDS.get(style)
    if end:
        ids = tokenizer.encode(end, add_special_tokens=False)
        if ids != [tokenizer.convert_tokens_to_ids(end)]:
            raise ValueError(
                f"{path}: prompt style {style} ends with {end}, which is no token of this tokenizer"
            )
        tokenizer.eos_token = end
    return model, tokenizer


def in_bfloat16(model) -> bool:
    """Whether `model` is trained and sampled in bfloat16, with weights in float32. A GPU always
    does so, and a CPU if `load_policy` was asked to."""
    return model.device.type == "cuda" or getattr(model, "_computes_in_bfloat16", False)


def _read_model(checkpoint: str, path: str | Path) -> PreTrainedModel:
    """The model of a checkpoint, in float32 and on the CPU; `path`: what the user calls it."""
    with _errors_with_remedy(checkpoint, "config.json and model.safetensors"):
        verify(Path(checkpoint))
        options = {"dtype": torch.float32, "output_loading_info": True}
        model, loading_info = cast(
            Any, AutoModelForCausalLM.from_pretrained(**source(checkpoint), **options)
        )
        if loading_info["missing_keys"]:  # transformers draws these at random
            raise ValueError(f"there is no {min(loading_info['missing_keys'])}")
        nonfinite = [
            name for name, weights in model.named_parameters() if not weights.isfinite().all()
        ]
        if nonfinite:
            raise ValueError(f"weights that are not finite, in {nonfinite[0]} first")
    try:
        model.generation_config.validate(strict=True)
    # it could be loaded, and only the first checkpoint would tell that it cannot be saved
    except ValueError as error:
        reason = shorten(str(error), 160, placeholder=" ...")
        print(
            f"{path}: its generation_config.json cannot be saved ({reason}), and is left out: "
            "nothing here reads it"
        )
        model.generation_config = GenerationConfig.from_model_config(model.config)
    if not Path(checkpoint).is_dir():
        model.config.base_model = f"{checkpoint.partition('@')[0]}@{model.config._commit_hash}"
        print(f"base model: {model.config.base_model}")
    return model


def _read_adapter(model, checkpoint: str, lora_r: int, lora_alpha: int) -> None:
    """Puts the adapter of a checkpoint into its base, or adds it to the weights if `lora_r` is
    0."""
    with _errors_with_remedy(checkpoint, f"{CONFIG} and {WEIGHTS}"):
        verify(Path(checkpoint))
        open_adapter(model, Path(checkpoint))
    check_adapter(model, Path(checkpoint), lora_r, lora_alpha)
    if not lora_r:
        fold(model)


def _need_gpu() -> None:
    """Raises RuntimeError if the runner has reserved a GPU for this run, and PyTorch sees none."""
    gpu = os.environ.get("COUNTDOWN_GPU")  # set by the runner
    if gpu and not torch.cuda.is_available():
        build = "CPUs"
        if torch.version.cuda:
            build = f"CUDA {torch.version.cuda}, for which the driver may be too old"
        raise RuntimeError(
            f"PyTorch sees no GPU, and this run holds {gpu}: it was built for {build}; "
            "COUNTDOWN_GPUS= takes none"
        )


@contextmanager
def _errors_with_remedy(checkpoint: str, files: str):
    """Turns an error in reading these files of a folder into a ValueError that names them and says
    what to do."""
    try:
        yield
    except (
        SafetensorError,
        EOFError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RuntimeError,
    ) as error:
        if not Path(checkpoint).is_dir():  # for a hub name, the original error says more
            raise
        said = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{checkpoint}: {files} cannot be used, a file is missing or damaged ({said}): "
            f"{remedy(Path(checkpoint).resolve())}"
        ) from error
