"""Profile `paper`: its runs resolve to every value of hyperparameters.csv, and its notebooks run.

Folders of the same names replace the hub's model and data sets: a small randomly initialised Qwen2,
a byte-level tokenizer, and rows with the columns and wording of the hub's."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from datasets import Dataset
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from lib import rewards
from lib.files import PAPER, ROOT
from lib.game.problem import Problem, as_problems
from lib.game.prompts import ENDS, PROMPTS, render_prompt
from lib.game.sets import EVALUATION_SETS, HUB, load, load_set
from lib.learn import model, trainer
from lib.learn.curriculum import Bandit
from lib.learn.demonstrations import HUB_DEMONSTRATIONS, TRACES
from lib.learn.generation import Sampling
from lib.learn.preference import HUB_PAIRS, train_preference
from lib.learn.rloo import RLOOTrainer, train_rloo
from lib.learn.search import SearchSettings
from lib.learn.sft import train_sft
from lib.learn.trainer import arguments
from lib.runs.plan import Project
from tests.conftest import copy_of_the_repository, this_project
from tests.learn.test_preference import settings_of
from tests.learn.test_training import quick, sft_settings

# not the value of a run: a data set's size, a formula, or what choices.csv departs from
ELSEWHERE = {
    ("ast", "sft_examples"),
    ("program", "target_tolerance"),
    ("dense", "ipo_log_ratios"),
    ("dense", "curriculum_difficulty"),
    *(("dense", f"sft_{name}") for name in ("learning_rate", "batch_size", "epochs")),
    ("trace", "sft_gradient_accumulation"),
}
RLOO = {
    "ast": ["rloo/sparse", "rloo/ast_tau2"],
    "program": ["rloo/sparse_k16", "rloo/program"],
    "dense": ["rloo/dense", "rloo/curriculum", "rloo/hybrid"],
    "trace": ["rloo/trace_outcome", "rloo/trace_dense", "rloo/trace_gated"],
}


def common(paper: str, specs) -> dict[str, list]:
    """The settings that several papers state, under each of their names: the value in every run
    concerned."""
    rloo = [specs[name] for name in RLOO[paper]]
    trained = [spec.params for spec in rloo]
    sft = specs["sft/trace" if paper == "trace" else "sft/free"].params
    left_out = ("rloo/sparse", "rloo/trace_dense")
    samples = [
        specs["sample/" + name.replace("/", "_")].params
        for name in RLOO[paper]
        if name not in left_out
    ]
    return {
        **common_of_updates(trained),
        **common_of_rollouts(trained),
        **common_of_sft(sft),
        **common_of_optimizers(),
        **common_of_samples(samples),
        **common_of_the_sparse_reward(),
        "sft_demonstrations": demonstrations(paper, sft),
        **dict.fromkeys(("kl_reference", "initial_policy"), starts(rloo)),
        **asked(each(trained, "prompt_style") + each(samples, "prompt_style")),
        "sampler": each(samples, "engine") + each(trained, "engine"),
        "seeds": [1],  # of a run; the papers have no second one
    }


def each(runs: list[dict], name: str) -> list:
    return [params[name] for params in runs]


def common_of_updates(rloo: list[dict]) -> dict[str, list]:
    """How RLOO changes the policy."""
    usual = ("group_size", "steps", "learning_rate", "weight_decay")
    return {
        **{name: each(rloo, name) for name in usual},
        **dict.fromkeys(("entropy_coef", "entropy_coefficient"), each(rloo, "entropy_coef")),
        **dict.fromkeys(("kl_coef", "kl_coefficient"), each(rloo, "kl_coef")),
        **dict.fromkeys(("problems_per_step", "batch_size"), each(rloo, "problems_per_step")),
        **dict.fromkeys(("importance_cap", "importance_weight_clip"), each(rloo, "importance_cap")),
        "epochs": each(rloo, "steps"),
        "gradient_accumulation_steps": [
            params["problems_per_step"] * params["group_size"] / params["micro_batch"]
            for params in rloo
        ],
        "lr_schedule": ["constant"],  # of RLOO: the trainer has no other
        "schedule": ["constant"],
    }


def common_of_rollouts(rloo: list[dict]) -> dict[str, list]:
    """What RLOO draws its rollouts for, and how."""
    return {
        "train_problems": [
            HUB[params["problem_set"]] for params in rloo if params["source"] == "hub"
        ],
        "max_tokens": each(rloo, "max_tokens"),
        "train_temperature": each(rloo, "temperature"),
        "train_top_p": [Sampling(max_tokens=1).top_p],
        "train_top_k": [Sampling(max_tokens=1).top_k],
    }


def common_of_sft(sft: dict) -> dict[str, list]:
    named = ("learning_rate", "schedule", "weight_decay", "epochs", "batch_size")
    updates = (1000 - sft["eval_demonstrations"]) // sft["batch_size"]
    return {
        **{f"sft_{name}": [sft[name]] for name in named},
        "base_model": [sft["init"]],
        "sft_warmup_ratio": [sft["warmup_steps"] / updates],
        "sft_rows": [sft["demonstrations"]],
        "sft_test_rows": [sft["eval_demonstrations"]],
    }


def common_of_optimizers() -> dict[str, list]:
    """What SFT and RLOO share."""
    on_a_cpu = SimpleNamespace(device=torch.device("cpu"))
    optimizer = [{"adamw_torch": "AdamW"}[arguments(PAPER, quick(), on_a_cpu)["optim"]]]
    norm = [quick().max_grad_norm]
    return {
        **dict.fromkeys(("optimizer", "sft_optimizer"), optimizer),
        **dict.fromkeys(("max_grad_norm", "sft_max_grad_norm"), norm),
    }


def common_of_samples(samples: list[dict]) -> dict[str, list]:
    """How policies are evaluated."""
    sets = each(samples, "sets")
    return {
        "test_split": [hub_split(names) for names in sets],
        "temperature": each(samples, "temperature"),
        "top_p": each(samples, "top_p"),
        "top_k": each(samples, "top_k"),
        "samples_test_50": each(sets, "test_50"),
    }


def common_of_the_sparse_reward() -> dict[str, list]:
    one, other = rewards.sparse()(
        ["<answer>1+2</answer>", "<answer>1-2</answer>"], Problem((1, 2), 3)
    )
    return {"sparse_correct": [one.total], "sparse_span": [other.total]}


def demonstrations(paper: str, sft: dict) -> list[str]:
    """The data set that SFT reads; for `program` also how many of its 1,000 rows are left for
    training."""
    used = f"{1000 - sft['eval_demonstrations']} of " if paper == "program" else ""
    return [used + HUB_DEMONSTRATIONS] * (sft["source"] == "hub")


def starts(runs) -> list[str]:
    """The kind of run that each starts from."""
    return [run.declaration.needs["init"].partition("/")[0] for run in runs]


def published_start() -> str:
    """Where paper program's RLOO starts with the line of lib/runs/README.md, and otherwise as in
    the profile."""
    line = re.search(r"`(rloo/sparse_k16: \{.+?\})`", (ROOT / "lib/runs/README.md").read_text())[1]
    project = Project()
    usual = this_project().specs("paper")["rloo/sparse_k16/0"]
    paper = project.declarations.profiles["paper"]
    paper = paper.model_copy(update={"runs": paper.runs | yaml.safe_load(line)})
    profiles = project.declarations.profiles | {"paper": paper}
    project.declarations = project.declarations.model_copy(update={"profiles": profiles})
    begun = project.specs("paper")["rloo/sparse_k16/0"]
    start = begun.params["init"]
    assert usual.parents and not begun.parents and begun.params == usual.params | {"init": start}
    return start


def asked(styles: list[str]) -> dict[str, list]:
    """What prompts are, and the chat template around them, in runs of these styles."""
    several = sorted({*styles})
    return {
        "prompt": [several] if len(several) > 1 else several,
        "chat_template": ["Qwen2.5" if style in ENDS else "none" for style in several],
    }


def hub_split(sets) -> str:
    """The split of the hub that stands among evaluation sets, under the hub's name."""
    found = [EVALUATION_SETS[name] for name in sets if EVALUATION_SETS[name][2:] == ("hub",)]
    return "; ".join(f"{HUB[name]}/{split}" for name, split, _ in found)


def default_of(name: str, function) -> object:
    return signature(function).parameters[name].default


def special(specs) -> dict[tuple[str, str], list]:
    """What one paper states alone."""
    params = {name: spec.params for name, spec in specs.items()}
    papers = {
        "ast": special_of_ast(params),
        "program": special_of_program(),
        "dense": special_of_dense(params),
        "agent": special_of_agent(params, specs)
        | budgets_of_agent(params)
        | sweeps_of_agent(params),
    }
    return {(paper, name): found for paper, own in papers.items() for name, found in own.items()}


def special_of_ast(params) -> dict[str, list]:
    options = ("lambda_c", "lambda_p", "lambda_a", "exact_numbers")
    taus = [params[f"rloo/ast_tau{tau}"]["reward_options"]["tau"] for tau in (1, 2, 3, 4)]
    of_3_to_4 = ("rloo/sparse", "sample/rloo_sparse")
    of_5_to_6 = ("sample/numbers56_sft_free", "rloo/ast_tau2_5num")
    return {
        **{name: [default_of(name, rewards.ast_distance)] for name in options},
        "tau": [params["rloo/ast_tau2"]["reward_options"]["tau"]],
        "tau_sweep": [taus],
        "think_token_weight": [params["rloo/ast_tau2"]["think_weight"]],
        "think_token_weight_abandoned": [params["rloo/ast_tau2_alpha01"]["think_weight"]],
        "max_tokens_3to4": [params[name]["max_tokens"] for name in of_3_to_4],
        "max_tokens_5to6num": [params[name]["max_tokens"] for name in of_5_to_6],
        "train_problems_5num": [HUB[params["rloo/ast_tau2_5num"]["problem_set"]]],
    }


def special_of_program() -> dict[str, list]:
    weights = {f"weight_{check}": [weight] for check, weight in rewards.PROGRAM_WEIGHTS.items()}
    return weights | {"initial_policy": [published_start()]}


def special_of_dense(params) -> dict[str, list]:
    annealed = params["rloo/curriculum_annealed"]["curriculum_options"]
    sizes = [params["rloo/dense"]["problems_per_step"], params["preference/ipo"]["batch_size"]]
    return {
        "batch_size": sizes,
        "lambda_2": [default_of("lambda_2", rewards.dense)],
        "curriculum_buckets": [Bandit.count],
        "bandit_alpha": [Bandit.alpha],
        "bandit_temperature": [default_of("temperature", Bandit)],
        "bandit_final_temperature_proposed": [annealed["final_temperature"]],
    }


def special_of_agent(params, specs) -> dict[str, list]:
    """Its problems, its prompt and what an answer earns."""
    levels = load("levels", "test").to_pandas()["group"].value_counts()
    trained = [spec for name, spec in specs.items() if name.startswith("preference/agent_")]
    of_test = [
        "search/sft_pick",
        "search/preference_agent_binary",
        "search/preference_agent_hard",
    ]
    splits = [
        hub_split(one.get("sets", params[run]["sets"]))
        for run in of_test
        for one in params[run]["searches"]
    ]
    right, wrong, none = (
        rewards.sparse()([text], Problem((1, 2), 3))[0].total
        for text in ("<answer>1+2</answer>", "<answer>1</answer>", "")
    )
    return {
        "test_prompts_custom": [levels.sum()],
        "initial_policy": starts(trained),
        **asked([params["sft/pick"]["prompt_style"]]),
        "test_split": splits,
        "groups": [len(levels)],
        "prompts_per_group": levels.tolist(),
        "score_correct": [right],
        "score_wrong_value": [wrong],
        "score_invalid": [none],
    }


def budgets_of_agent(params) -> dict[str, list]:
    """How it searches."""
    search = SearchSettings()
    of_soft = params["search/preference_agent_soft"]["searches"]
    final = next(one for one in of_soft if one.get("top_k") == 50)
    budgets = {f"{one['beams']}/{one['samples']}" for one in params["search/sft_pick"]["searches"]}
    return {
        "budget": [f"{search.beams}/{search.samples}"],
        "budgets": [sorted(budgets)],
        "final_temperature": [final["temperature"]],
        "final_top_p": [final.get("top_p", search.top_p)],
        "final_top_k": [final["top_k"]],
    }


def sweeps_of_agent(params) -> dict[str, list]:
    """The temperatures and the parameters of its values."""
    search = SearchSettings()
    of_soft = params["search/preference_agent_soft"]["searches"]
    tried = [one for one in of_soft if "test_50" in one.get("sets", ["test_50"])]
    temperatures = [t for one in tried for t in pd.Series(one.get("temperature", [])).explode()]
    return {
        "temperature_sweep": [sorted(temperatures)],
        "value_weight_lambda": [search.weight],
        "alpha": [search.alpha, params["actions/pick"]["alpha"]],
        "beta": [search.beta, params["actions/pick"]["beta"]],
        "beta_sweep": [params["search/values"]["searches"][0]["beta"]],
    }


def chosen(specs) -> dict[tuple[str, str], list]:
    """What no paper states, beyond `common`: values of ours."""
    params = {name: spec.params for name, spec in specs.items()}
    names = [f"sample/heldout400_{name}" for name in ("sft_free", "rloo_sparse", "rloo_ast_tau2")]
    papers = {
        "ast": {"samples_heldout_400": [params[name]["sets"]["heldout_400"] for name in names]},
        "dense": chosen_for_dense(params),
        "agent": chosen_for_agent(params),
        "trace": chosen_for_trace(params) | weights_of_trace(),
    }
    return {(paper, name): found for paper, own in papers.items() for name, found in own.items()}


def chosen_for_dense(params) -> dict[str, list]:
    six = as_problems(load("3to4", "train").select(range(6)))
    stepwise = [params[name]["reward_options"] for name in ("rloo/dense", "rloo/hybrid")]
    return {
        "preference_pairs": [HUB_PAIRS] * (params["preference/ipo"]["source"] == "hub"),
        "ipo_beta": [params["preference/ipo"]["beta"]],
        "lambda_1": [default_of("lambda_1", rewards.dense)],
        "step_aggregate": [options["aggregate"] for options in stepwise],
        "bandit_initial_value": Bandit(six, np.arange(6), 1, 0).state,
    }


def chosen_for_agent(params) -> dict[str, list]:
    action_dpo = [params[f"preference/agent_{teacher}"] for teacher in ("binary", "hard", "soft")]
    sweep = params["search/values"]["searches"][0]
    search = SearchSettings()
    seeds = Counter(spec.run for spec in this_project().specs("paper").values())
    searched = ("search/sft_distilled", "search/sft_pick")
    actions = params["actions/pick"]
    return {
        "base_model": [params["sft/pick"]["init"]],
        **{name: [getattr(search, name)] for name in ("temperature", "top_p", "top_k")},
        "lambda_sweep": [sweep["weight"]],
        "alpha_sweep": [sweep["alpha"]],
        "beta_dpo": [run["beta"] for run in action_dpo],
        "dpo_steps": [run["steps"] for run in action_dpo],
        "dpo_batch_pairs": [run["batch_size"] for run in action_dpo],
        "dpo_learning_rate": [run["learning_rate"] for run in action_dpo],
        "sft_problems": [params["sft/pick"]["demonstrations"]],
        "pairs_per_state": [actions["most_pairs"]],
        "actions_drawn_per_state": [actions["samples"]],
        "hard_case_weight": [actions["hard_weight"]],
        "distillation_eta": [actions["eta"]],
        "max_tokens_tag": [actions["max_tokens"], search.max_tokens],
        "seeds": [sorted(seeds[name] for name in searched)],
    }


def chosen_for_trace(params) -> dict[str, list]:
    explore = params["rloo/trace_explore"]
    stronger = [params["rloo/trace_entropy"]["entropy_coef"], explore["entropy_coef"]]
    return {
        "problems_per_step_of_200_updates": [params["rloo/sparse_200"]["problems_per_step"]],
        "light_backtracking_share": [TRACES[params["sft/trace"]["design"]].backtracks],
        "variants_of_a_problem": [sorted({design.variants for design in TRACES.values()})],
        "entropy_coefficient_stronger": stronger,
        "explore_group_size": [explore["group_size"]],
        "explore_temperature": [explore["temperature"]],
        "probe_samples": [params["pairs/trace_probes"]["samples"]],
    }


def weights_of_trace() -> dict[str, list]:
    """The weights of its shaped rewards."""
    shaped = ("dense", "gated", "guarded", "group", "effort", "hardness")
    weights = {name: rewards.TRACE_REWARDS[f"trace_{name}"][0] for name in shaped}
    return {
        "validity_weight": [weights["dense"]["validity"]],
        "success_bonus": [weights[name]["bonus"] for name in weights if name != "dense"],
        "fault_penalty": [weights["guarded"]["penalty"]],
        "group_aware_validity_weight": [weights["group"]["validity"]],
        "effort_weight": [weights[name]["effort"] for name in ("effort", "hardness")],
        "effort_tries_for_the_full_weight": [tries_for_the_full_effort()],
        "hardness_weight": [weights["hardness"]["hardness"]],
    }


def tries_for_the_full_effort() -> int:
    """After how many valid tries beyond the needed one the bonus for effort of `trace` stops
    growing."""
    problem = Problem((1, 2), 3)
    reward = rewards.get_reward("trace_effort")
    misses = ["2 - 1 = 1", "1 * 2 = 2", "2 / 1 = 2", "1 - 2 = -1", "1 / 2 = 1/2"]

    def paid(extra: int) -> float:
        tried = "".join(f"state [1, 2]\ntry {miss}\nbacktrack\n" for miss in misses[:extra])
        trace = f"{tried}state [1, 2]\ntry 1 + 2 = 3\nstate [3]"
        return reward([f"<think>\n{trace}\n</think>\n<answer>1 + 2</answer>"], problem)[0].total

    totals = [paid(extra) for extra in range(len(misses) + 1)]
    return totals.index(max(totals))


def read(value: str):
    """A cell of the table: a number, a truth, e to a power, a list of such, or a word."""
    if ";" in value:
        return sorted(map(read, value.split(";")))
    if value.startswith("exp("):
        return math.exp(read(value[4:-1]))
    try:
        return {"true": True}[value] if value == "true" else float(value)
    except ValueError:
        return value


# what the papers state, and what we chose
LISTED = pd.read_csv(PAPER / "hyperparameters.csv", dtype=str)


def test_every_paper_has_prompt_template_test_split_and_initial_policy():
    resolved = LISTED["parameter"].isin(["prompt", "chat_template", "test_split", "initial_policy"])
    assert LISTED[resolved].groupby("paper").size().to_dict() == dict.fromkeys(
        ("agent", "ast", "dense", "program", "trace"), 4
    )


@pytest.fixture(scope="module")
def settings():
    # of the first seed
    specs = {spec.run: spec for spec in reversed(this_project().specs("paper").values())}
    shared = {
        (paper, name): values for paper in RLOO for name, values in common(paper, specs).items()
    }
    return shared | special(specs) | chosen(specs)


@pytest.mark.parametrize("paper", LISTED["paper"].unique())
def test_every_value_of_a_paper_stated_or_ours_is_what_its_runs_resolve_to(settings, paper):
    for _, name, value, source in LISTED[LISTED["paper"] == paper].itertuples(index=False):
        if (paper, name) not in ELSEWHERE:
            values = settings[paper, name]
            assert values, (
                f"hyperparameters.csv has {name} of {paper} ({source}), and no run has it"
            )
            for found in values:
                expected = read(value)
                exact = isinstance(expected, (str, bool)) or isinstance(found, list)
                same = found == (expected if exact else pytest.approx(expected, rel=1e-3))
                assert same, (
                    f"{paper}: {name} is {found}, and {value} in hyperparameters.csv ({source})"
                )


# --- its notebooks --------------------------------------------------------------------------------

QWEN = {
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
}
SMALL = QWEN | {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def qwen(**changes):
    """A randomly initialised Qwen2, and a tokenizer as the hub has it: bytes and the end of the
    text."""
    alphabet = sorted(
        {chr(byte) for byte in range(33, 127)} | {"\u0120", "\u010a"}
    )  # space and newline as bytes are written
    vocabulary = {token: i for i, token in enumerate([*alphabet, "<|endoftext|>"])}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[])
    torch.manual_seed(0)
    config = Qwen2Config(
        **SMALL | changes, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return Qwen2ForCausalLM(config), tokenizer


def in_the_hubs_place(root: Path) -> None:
    policy, tokenizer = qwen(vocab_size=1000)  # more rows than tokens, as in the hub's
    policy.save_pretrained(root / "Qwen/Qwen2.5-0.5B")
    tokenizer.save_pretrained(root / "Qwen/Qwen2.5-0.5B")
    problems = load("3to4", "train").select(range(12)).to_list()
    problems = [
        problem | {"prompt": render_prompt(**problem, style="chat")} for problem in problems
    ]
    rows = [
        {"query": p["prompt"], "completion": f"<answer>{p['target']}</answer>"} for p in problems
    ]
    files = {
        f"{HUB_DEMONSTRATIONS}/train": rows,
        f"{HUB['3to4']}/train": problems,
        f"{HUB['3to4']}/test": TESTED,
    }
    for name, table in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.jsonl").write_text("\n".join(map(json.dumps, table)))


TESTED = [  # as the hub's test split has them, with a prompt of its own
    {"target": 36, "nums": [79, 17, 60], "prompt": render_prompt([79, 17, 60], 36, "chat")},
    {"target": 24, "nums": [14, 45, 9, 1], "prompt": render_prompt([14, 45, 9, 1], 24, "chat")},
]


def test_the_hubs_test_prompts_are_an_evaluation_set(tmp_path, monkeypatch, capsys):
    """As they come, but for those that our own training sets hold."""
    monkeypatch.chdir(tmp_path)
    in_the_hubs_place(tmp_path)
    path = tmp_path / HUB["3to4"] / "test.jsonl"
    ours = load("3to4", "train")[0]
    path.write_text(
        path.read_text() + "\n" + json.dumps(ours | {"nums": ours["nums"][::-1], "prompt": ""})
    )
    rows = load_set("hub_test_50").to_list()
    assert rows == [{"nums": row["nums"], "target": row["target"]} for row in TESTED]
    assert "2 of 3 problems" in capsys.readouterr().out
    assert "[14 45  9  1]" in render_prompt(**rows[1], style="chat")
    path.unlink()
    with pytest.raises(
        ValueError, match="asingh15/countdown_tasks_3to4', split 'test' cannot be loaded"
    ):
        load_set("hub_test_50")


REDUCED = {
    "10_train_sft": {
        "batch_size": 4,
        "eval_demonstrations": 4,
        "log_every": 1,
        "eval_every": 2,
    },
    "11_train_rloo": {
        "steps": 2,
        "problems_per_step": 2,
        "group_size": 8,
        "micro_batch": 4,
        "max_tokens": 8,
        "eval_problems": 2,
        "eval_every": 1,
        "save_every": 1,
        "engine": "transformers",
    },
    "15_sample_rollouts": {"limit": 2, "max_tokens": 8, "engine": "transformers"},
}


def make_small(path: Path) -> None:
    """Make the runs of profile paper small, in a file of declarations."""
    declared = yaml.safe_load(path.read_text())
    notebooks = declared["profiles"]["paper"]["notebooks"]
    for notebook, given in REDUCED.items():
        notebooks[notebook] |= given
    sampled = notebooks["15_sample_rollouts"]
    sampled["sets"] = dict.fromkeys(sampled["sets"].keys() - {"heldout_1000", "showcase"}, 2)
    path.write_text(yaml.safe_dump(declared))


@pytest.fixture(scope="module")
def made(tmp_path_factory, warm) -> Path:
    """Reduced runs of profile paper up to the samples of rloo/sparse, made once for all tests."""
    folder = tmp_path_factory.mktemp("paper")
    copy = copy_of_the_repository(folder / "copy")
    in_the_hubs_place(copy)
    make_small(copy / "papermill_runs.yaml")
    command = [sys.executable, "-m", "lib.runs", "make", "paper", "sample/rloo_sparse"]
    command += ["--cores", "2"]
    environment = os.environ | warm | {"COUNTDOWN_RUNS": str(folder / "runs")}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "runs/paper"


def test_its_notebooks_run_with_a_qwen_in_the_hubs_place(made):
    record = json.loads((made / "sft/free/0/run.json").read_text())
    assert record["parameters"]["init"] == "Qwen/Qwen2.5-0.5B"


@pytest.mark.parametrize("run", ["sft/free/0", "rloo/sparse/0"])
def test_a_training_of_it_predicts_its_memory_and_leaves_a_policy_alone(made, run):
    assert "memory: about " in (made / run / "log.txt").read_text()
    assert not (made / run / "trainer").exists(), "states to resume from are gigabytes"
    policy, tokenizer = model.load_policy(made / run)
    assert policy.config.vocab_size == 1000 > len(tokenizer)
    text = PROMPTS["words"].format(nums="1, 2", target=3)
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("sft/free/0", HUB_DEMONSTRATIONS),
        ("rloo/sparse/0", HUB["3to4"]),
        ("sample/rloo_sparse/0", HUB["3to4"]),
    ],
)
def test_its_records_name_what_they_read_from_the_hub(made, run, name):
    """With a folder's hash, where a hub's commit stands."""
    (found,) = json.loads((made / run / "run.json").read_text())["hub"]
    assert re.fullmatch(f"{name}@[0-9a-f]+", found)


def test_it_samples_the_hubs_test_split_beside_ours(made):
    written = pd.read_parquet(made / "sample/rloo_sparse/0/generations.parquet")
    assert written.groupby("set")["count"].sum().to_dict() == {"hub_test_50": 4, "test_50": 4}
    assert written.loc[written["set"] == "hub_test_50", "target"].unique().tolist() == [36, 24]


def test_the_reasoning_weighs_less_in_a_vocabulary_where_its_end_is_no_token():
    """`rloo/ast_tau2_alpha01`, by the very cell of notebook 11."""
    tokenizer = qwen()[1]
    text = "<think>\n44 + 19 = 63\n</think>\n<answer>44 + 19</answer>"
    cells = [cell.source for cell in nbformat.read(ROOT / "notebooks/11_train_rloo.ipynb", 4).cells]
    (cell,) = (
        cell[cell.index("def down_weighted") :] for cell in cells if "def down_weighted" in cell
    )
    names = {"policy": (None, tokenizer), "think_weight": 0.1, "reasoning_end": model.reasoning_end}
    exec(cell, names)
    ids = tokenizer(text).input_ids
    weights = names["down_weighted"](ids)
    assert len(weights) == len(ids) and tokenizer.unk_token_id not in ids
    answer = [i for i, weight in zip(ids, weights, strict=True) if weight == 1]
    assert tokenizer.decode(answer) == text.partition("</think>")[2]
    assert {*weights} == {0.1, 1.0}


# --- memory ---------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most elements that a tensor had which was computed meanwhile."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_logits_are_never_there_for_a_whole_batch(tmp_path):
    settings = quick(
        steps=1, problems_per_step=2, group_size=8, micro_batch=16, max_tokens=60, idle_share=1.0
    )
    rows = load("3to4", "train").select(range(2))
    ours = RLOOTrainer(*qwen(), rows, rewards.sparse(), tmp_path, settings)
    ours.take_rollouts(as_problems(rows))
    (batch,) = ours.micro_batches
    assert batch["mask"].sum() > 800
    with Largest() as seen:
        ours.differentiate(ours.model)
    weights = QWEN["vocab_size"] * SMALL["hidden_size"]
    assert weights <= seen.elements < batch["mask"].numel() * QWEN["vocab_size"] / 4


def test_the_estimate_is_what_a_forward_pass_keeps():
    """Of a model whose layers, not whose vocabulary, take the memory: as measured, within a
    fifth."""
    policy, _ = qwen(
        vocab_size=128,
        hidden_size=128,
        intermediate_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    ids = torch.randint(64, (4, 100))
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = policy.base_model(ids)  # held, so that no address is used twice
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}
    measured = sum(size for address, size in kept.items() if address not in weights)
    assert out.last_hidden_state.shape == (4, 100, 128)
    estimated = model.kept_memory(policy.config, 400) - 3 * 4 * 400 * 128
    assert estimated == pytest.approx(measured, rel=0.2)


def test_what_cannot_fit_is_refused_before_it_starts(tmp_path, monkeypatch, capsys):
    for module in (model, trainer):
        monkeypatch.setattr(module, "machine_memory", lambda: 2**20)
    rows = load("3to4", "train").select(range(8))
    with pytest.raises(
        MemoryError, match="but there are 0.0 GiB: lower micro_batch or max_tokens, or"
    ):
        train_rloo(qwen(), rows, rewards.sparse(), tmp_path, quick(steps=1, problems_per_step=2))
    assert "GiB at the peak, for 4 texts of " in capsys.readouterr().out
    rows = Dataset.from_list(
        [{"prompt": "1", "completion": "2", "chosen": "2", "rejected": "3"}] * 8
    )
    with pytest.raises(MemoryError, match="0.0 GiB: leave out the longest demonstrations, or"):
        train_sft(
            qwen(), rows.select_columns(["prompt", "completion"]), tmp_path, sft_settings(), rows
        )
    with pytest.raises(MemoryError, match="0.0 GiB: leave out the longest pairs, or"):
        train_preference(qwen(), rows, tmp_path, settings_of(steps=1), None)
    assert (
        not (tmp_path / "metrics.csv").exists()
        and model.max_micro_batch(qwen()[0], 12, 100, True) == 1
    )
    # 5 rows fit, which do not divide 12
    room = model.training_memory(qwen()[0], 5, 100, True) / 0.9
    monkeypatch.setattr(model, "machine_memory", lambda: room + 1)
    assert model.max_micro_batch(qwen()[0], 12, 100, True) == 4
