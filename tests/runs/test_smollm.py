"""Profile smollm: a pretrained model on two cores, in links and behind gates."""

import json
import re

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lib.files import REFERENCE, ROOT, read_table
from lib.learn.decoder import PACKED_FROM
from lib.learn.model import checkpoint_of, training_memory
from lib.runs import parameters
from lib.study import judging, metrics, posed
from tests.bench.memory import SMOL
from tests.conftest import this_project

PAGE = (ROOT / "lib/runs/README.md").read_text()
SECTION = PAGE[PAGE.index("## A pretrained model on two cores") : PAGE.index("## One ordinary GPU")]
GROUPS = [
    *("scale_gate1", "scale_gate2", "scale_rate"),
    *("scale_first", "scale_more", "scale_second"),
]
LINKS = ["sft/link_1/0", "sft/link_2/1", "sft/link_3/2"]
DEMONSTRATION = 110  # tokens with its prompt
LONGEST = 190  # tokens of the longest, with its prompt


@pytest.fixture(scope="module")
def specs():
    return this_project().specs("smollm")


def test_the_links_of_sft_go_on_with_one_adapter_and_repeat_nothing(specs):
    links = [specs[name] for name in LINKS]
    assert [[*link.parents] for link in links] == [[], LINKS[:1], LINKS[1:2]]
    assert links[0].params["init"].endswith("SmolLM2-135M-Instruct")
    assert sum(link.params["demonstrations"] for link in links) == 10_000
    assert len({link.params["seed"] for link in links}) == 3, "else each has the same problems"
    text = " ".join(SECTION.split())
    learned = int(re.search(r"SFT learned from (\d+) to \d+ tokens per core-second", text)[1])
    for link in links:
        assert link.params["demonstrations"] * DEMONSTRATION / learned < 2.5 * 3600
        assert link.declaration.keep_checkpoint, "the next machine goes on from it"


def test_every_run_of_rl_starts_from_the_last_link_with_its_adapter(specs):
    trained = [spec for name, spec in specs.items() if name.startswith("rloo/")]
    methods = {spec.run for spec in trained}
    assert methods >= {"rloo/sparse_slow", "rloo/cov_pass4", "rloo/ast_tau2", "rloo/grpo"}
    assert len(trained) == 4 * 2 + 3, "two seeds each, two rates, and the rate that was too high"
    for spec in trained:
        assert [*spec.parents] == LINKS[-1:]
    every = [spec for name, spec in specs.items() if name.startswith(("sft/", "rloo/"))]
    adapters = {(spec.params["lora_r"], spec.params["lora_alpha"]) for spec in every}
    assert adapters == {(8, 16)}
    assert {spec.params["prompt_style"] for spec in specs.values()} == {"free"}


def test_a_checkout_without_the_model_has_all_its_profiles(monkeypatch, tmp_path):
    """The model is made by a command of its own; without it every other profile goes on."""
    monkeypatch.setattr(parameters, "ROOT", tmp_path)
    parameters.check({"init": ".venv/pretrained/SmolLM2-135M-Instruct"})
    with pytest.raises(ValueError, match="there is no such model"):
        parameters.check({"init": "data/models/nothing"})
    with pytest.raises(FileNotFoundError, match="`make pretrained` makes it"):
        checkpoint_of(".venv/pretrained/nothing")


def test_a_policy_is_one_file_that_git_takes_and_its_model_is_packed():
    hidden, inner = SMOL["hidden_size"], SMOL["intermediate_size"]
    keys = hidden * SMOL["num_key_value_heads"] // SMOL["num_attention_heads"]
    shapes = [(hidden, hidden)] * 2 + [(hidden, keys)] * 2 + [(hidden, inner)] * 3
    per_rank = SMOL["num_hidden_layers"] * sum(map(sum, shapes))
    assert per_rank == 305_280
    assert 8 * per_rank * 2 < 8 * 2**20 < 16 * per_rank * 2
    weights = SMOL["num_hidden_layers"] * sum(one * other for one, other in shapes)
    assert weights > PACKED_FROM


def test_two_runs_fit_beside_each_other_on_24_gb(specs):
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SMOL, tie_word_embeddings=True))
    model.requires_grad_(False)
    sft = specs[LINKS[0]]
    rloo = specs["rloo/sparse/0"]
    longest = 21 + rloo.params["max_tokens"]
    needed = [
        training_memory(model, sft.params["batch_size"], longest, False),
        training_memory(model, rloo.params["micro_batch"], longest, True),
    ]
    for spec, memory in zip((sft, rloo), needed, strict=True):
        assert memory < spec.declaration.mem_mb * 2**20 < 12_000 * 2**20


def test_the_memory_of_sft_is_predicted_as_it_was_measured(specs):
    """With float32 in the first link and bfloat16 in the last one."""
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SMOL, tie_word_embeddings=True))
    model.requires_grad_(False)
    model.peft_config = {}
    predicted = []
    for name in (LINKS[0], LINKS[-1]):
        folder = REFERENCE / "smollm" / name
        measured = json.loads((folder / "run.json").read_text())["peak_memory_mb"]
        model._computes_in_bfloat16 = specs[name].params["bfloat16"]
        predicted.append(training_memory(model, 16, LONGEST, False) / 2**20)
        assert predicted[-1] == pytest.approx(measured, rel=0.06)
    assert predicted[0] < 0.95 * predicted[1]


def test_the_notebook_and_the_ledger_know_the_policies_by_the_same_names(specs):
    defaults = this_project().notebook("75_pretrained")[0]
    there = {name: usual for usual, name in posed.PRETRAINED_NAMES.items()}
    assert defaults["policies"] == there
    assert set(there) <= {spec.run for spec in specs.values()}


def test_what_is_measured_on_which_problems(specs):
    for name, spec in specs.items():
        if name.startswith("sample/gate_"):
            assert spec.params["sets"] == {"validation_200": 8}
        elif name.startswith("sample/"):
            assert spec.params["sets"] == {"heldout_1000": 16} and spec.params["limit"] == 400


def test_the_groups_of_the_page_make_everything_in_this_order(specs):
    commands = re.findall(r"^make study PROFILE=smollm GROUP=(\w+)", SECTION, re.M)
    table = re.findall(r"^\| `(\w+)` \|", SECTION, re.M)
    assert commands == table == GROUPS
    plans = [this_project().plan("smollm", group).specs.keys() for group in GROUPS]
    made = set()
    for group, plan in zip(GROUPS, plans, strict=True):
        assert plan - made, group
        made |= plan
    assert made | {"sample/gate_sft_link_2/0"} == specs.keys()
    seconds = plans[-1] - set().union(*plans[:-1])
    assert seconds and all(name.endswith("/1") for name in seconds)


def test_the_command_that_reads_the_gates_does_so(tmp_path):
    """On published samples of another profile, which have the same form."""
    (code,) = re.findall(r'python -c "\n(.*?)"\n```', SECTION, re.S)
    folder = "data/runs/smollm/sample/gate_*/*"
    assert folder in code
    shown = []
    exec(
        code.replace(folder, str(ROOT / "data/reference/cpu/sample/sft_free/0")),
        {"print": shown.append},
    )
    pass_1, true = (float(table.iloc[0]) for table in shown)
    assert len(shown[0]) == 1 and 0.3 < pass_1 < 0.6 and 0.5 < true < 1


def test_the_table_of_gates_is_that_of_the_published_samples():
    rows = re.findall(
        r"^\| ([\d,]+) \| (\d+)% \| (\d+)% \| (\d+)% \| (\d+)% \| (\d+) \|$", PAGE, re.M
    )
    folders = sorted((REFERENCE / "smollm/sample").glob("gate_*/0"))
    judged = judging.samples(folders, verdicts=("answer", "steps"))
    found = metrics.exploration(judged).join(
        metrics.problem_scores(metrics.counts(judged), (1, 8), mean_to=())
    )
    means = found.groupby("method").mean()
    assert len(rows) == len(means) >= 1
    learned = {"sft/link_1": 3000, "sft/link_2": 6500, "sft/link_3": 10_000}
    for row, (method, mean) in zip(rows, means.iterrows(), strict=True):
        asked, *told = (float(number.replace(",", "")) for number in row)
        shares = mean[["correct equations", "wrong_numbers", "pass@1", "pass@8"]] * 100
        assert asked == learned[str(method)]
        assert told == pytest.approx([*shares, mean["tokens per response"]], abs=0.51)


def test_what_the_page_says_of_the_trials_is_in_their_logs(specs):
    """Problems solved after ten updates, how far both policies went, and tokens per second."""
    folders = {rate: REFERENCE / f"smollm/rloo/rate_{rate}/0" for rate in (0.0001, 0.0003)}
    logs = {rate: read_table(folder / "metrics.csv") for rate, folder in folders.items()}
    text = " ".join(SECTION.split())
    solved = re.search(r"1e-4 solved (\d+) of 100 .*? 3e-4 solved (\d+)\.", text)
    moved = re.search(r"was ([\d.]+) nats .*? 1e-4 was ([\d.]+)\.", text)
    for place, log in enumerate(logs.values(), start=1):
        assert log["eval_accuracy"].iloc[-1] * 100 == pytest.approx(int(solved[place]))
        kl = log["kl"].tail(5).mean()
        assert kl == pytest.approx(float(moved[3 - place]), abs=5e-4)
    better = max(logs, key=lambda rate: logs[rate]["eval_accuracy"].iloc[-1])
    assert specs["rloo/sparse/0"].params["learning_rate"] == better, "and it was too high"
    assert specs["rloo/sparse_slow/0"].params["learning_rate"] == min(logs)
    both = pd.concat(logs.values())
    tokens = both["completion_length"] * 128
    told = re.search(r"RLOO drew (\d+) tokens per second and learned from (\d+)", text)
    for place, phase in enumerate(("generation", "update"), start=1):
        assert (tokens / both[f"seconds_{phase}"]).median() == pytest.approx(
            int(told[place]), abs=0.5
        )


def test_what_the_page_says_of_the_rate_that_was_too_high():
    """Problems solved on the way and at the end, tokens per text, and groups without a signal."""
    log = read_table(REFERENCE / "smollm/rloo/sparse/0/metrics.csv").set_index("step")
    text = " ".join(SECTION.split())
    numbers = r"update 40 it solved (\d+) .*? of (\d+) tokens where it began with (\d+)\."
    told = [int(number) for number in re.search(numbers, text).groups()]
    length = log["completion_length"]
    found = [100 * log["eval_accuracy"][40], length[41:50].mean(), length[:10].mean()]
    assert told == pytest.approx(found, abs=0.51)
    solved, silent = re.search(r"which the run saves, solved (\d+)\. In (\d+)%", text).groups()
    assert 100 * log["eval_accuracy"][60] == pytest.approx(int(solved))
    assert 100 * log["frac_zero_std"].mean() == pytest.approx(int(silent), abs=0.51)
    record = json.loads((REFERENCE / "smollm/rloo/sparse/0/run.json").read_text())["parameters"]
    assert record["steps"] - record["average_from"] + 1 == 16 and record["learning_rate"] == 3e-4
