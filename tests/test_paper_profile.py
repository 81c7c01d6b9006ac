"""Profile `paper`: every value that a paper states is what its runs resolve to."""

import math
from inspect import signature

import pandas as pd
import pytest

from lib import rewards
from lib.curriculum import Bandit
from lib.demonstrations import HUB_DEMONSTRATIONS
from lib.generation import Sampling
from lib.paths import PAPER
from lib.problem import HUB, Problem, load
from lib.runs.plan import Project
from lib.search import SearchSettings
from lib.training import RLOOSettings, arguments

ELSEWHERE = {  # stated, and not the value of a run: a data set's size, a formula, or what "Choices" departs from
    ("ast", "sft_examples"),
    ("program", "target_tolerance"),
    ("dense", "ipo_log_ratios"),
    ("dense", "curriculum_difficulty"),
    ("trace", "sft_gradient_accumulation"),
}
RLOO = {
    "ast": ["rloo_sparse", "rloo_ast_tau2"],
    "program": ["rloo_sparse_k16", "rloo_program"],
    "dense": ["rloo_dense", "rloo_curriculum", "rloo_hybrid"],
    "trace": ["trace_outcome", "trace_dense", "trace_gated"],
}


def common(paper: str, specs) -> dict[str, list]:
    """The settings that several papers state, under each of their names: the value in every run concerned."""
    rloo, sft = [specs[name] for name in RLOO[paper]], specs["trace_sft" if paper == "trace" else "sft"].params
    samples = [specs[f"sample_{name}"].params for name in RLOO[paper] if name not in ("rloo_sparse", "trace_dense")]

    def of(name, runs=rloo):
        return [getattr(run, "params", run)[name] for run in runs]

    one, other = rewards.sparse()(["<answer>1+2</answer>", "<answer>1-2</answer>"], Problem((1, 2), 3))
    optimizer = [{"adamw_torch": "AdamW"}[arguments(PAPER, RLOOSettings())["optim"]]]
    updates = (1000 - sft["eval_demonstrations"]) // sft["batch_size"]
    return {
        **{name: of(name) for name in ("group_size", "steps", "learning_rate", "weight_decay", "clip", "max_tokens")},
        **dict.fromkeys(("entropy_coef", "entropy_coefficient"), of("entropy_coef")),
        **dict.fromkeys(("kl_coef", "kl_coefficient"), of("kl_coef")),
        **dict.fromkeys(("prompts", "batch_size"), of("prompts")),
        **dict.fromkeys(("optimizer", "sft_optimizer"), optimizer),
        **{
            f"sft_{name}": [sft[name]] for name in ("learning_rate", "schedule", "weight_decay", "epochs", "batch_size")
        },
        "importance_weight_clip": of("clip"),
        "epochs": of("steps"),
        "gradient_accumulation_steps": [
            run.params["prompts"] * run.params["group_size"] / run.params["micro_batch"] for run in rloo
        ],
        "max_grad_norm": [RLOOSettings.max_grad_norm],
        "base_model": [sft["init"]],
        "sft_demonstrations": [HUB_DEMONSTRATIONS] * (sft["source"] == "hub"),
        "train_problems": [HUB[run.params["problem_set"]] for run in rloo if run.params["source"] == "hub"],
        "kl_reference": [run.declaration.needs["init"].removeprefix("trace_") for run in rloo],
        "train_temperature": of("temperature"),
        "train_top_p": [Sampling().top_p],
        "train_top_k": [Sampling().top_k],
        "temperature": of("temperature", samples),
        "top_p": of("top_p", samples),
        "top_k": of("top_k", samples),
        "sampler": of("engine", samples),
        "samples_test_50": [sets["test_50"] for sets in of("sets", samples)],
        "sparse_correct": [one.total],
        "sparse_span": [other.total],
        "sft_warmup_ratio": [sft["warmup_steps"] / updates],
        "sft_rows": [sft["demonstrations"]],
        "lr_schedule": ["constant"],  # of RLOO: the trainer has no other
        "schedule": ["constant"],
        "seeds": [1],  # of a run; the papers have no second one
    }


def special(specs) -> dict[tuple[str, str], list]:
    """What one paper states alone."""

    def options(name, function):
        return signature(function).parameters[name].default

    params = {name: spec.params for name, spec in specs.items()}
    search, levels = SearchSettings(), load("levels", "test").to_pandas()["group"].value_counts()
    final = next(one for one in params["search_agent_dpo_soft"]["searches"] if one.get("top_k") == 50)
    budgets = [f"{one['beams']}/{one['samples']}" for one in params["search_agent_sft"]["searches"]]
    tried = [one for one in params["search_agent_dpo_soft"]["searches"] if "test_50" in one.get("sets", ["test_50"])]
    temperatures = [t for one in tried for t in pd.Series(one.get("temperature", [])).explode()]
    sweep = params["search_values"]["searches"][0]
    right, wrong, none = (
        rewards.sparse()([text], Problem((1, 2), 3))[0].total
        for text in ("<answer>1+2</answer>", "<answer>1</answer>", "")
    )
    return {
        **{
            ("ast", name): [options(name, rewards.ast)]
            for name in ("lambda_c", "lambda_p", "lambda_a", "exact_numbers")
        },
        ("ast", "tau"): [params["rloo_ast_tau2"]["reward_options"]["tau"]],
        ("ast", "tau_sweep"): [[params[f"rloo_ast_tau{tau}"]["reward_options"]["tau"] for tau in (1, 2, 3, 4)]],
        ("ast", "think_token_weight"): [params["rloo_ast_tau2"]["think_weight"]],
        ("ast", "think_token_weight_abandoned"): [params["rloo_ast_tau2_alpha01"]["think_weight"]],
        ("ast", "max_tokens_3to4"): [params[name]["max_tokens"] for name in ("rloo_sparse", "sample_rloo_sparse")],
        ("ast", "max_tokens_5to6num"): [params[name]["max_tokens"] for name in ("sample56_sft", "rloo_ast_tau2_5num")],
        ("ast", "train_problems_5num"): [HUB[params["rloo_ast_tau2_5num"]["problem_set"]]],
        **{("program", f"weight_{check}"): [weight] for check, weight in rewards.PROGRAM_WEIGHTS.items()},
        ("dense", "batch_size"): [params["rloo_dense"]["prompts"], params["ipo"]["batch_size"]],
        ("dense", "lambda_2"): [options("lambda_2", rewards.dense)],
        ("dense", "curriculum_buckets"): [options("count", Bandit)],
        ("dense", "bandit_alpha"): [options("alpha", Bandit)],
        ("dense", "bandit_temperature"): [options("temperature", Bandit)],
        ("dense", "bandit_final_temperature_proposed"): [
            params["rloo_curriculum_annealed"]["curriculum_options"]["final_temperature"]
        ],
        ("agent", "test_prompts_custom"): [levels.sum()],
        ("agent", "groups"): [len(levels)],
        ("agent", "prompts_per_group"): levels.tolist(),
        ("agent", "budget"): [f"{search.beams}/{search.samples}"],
        ("agent", "budgets"): [sorted(set(budgets))],
        ("agent", "final_temperature"): [final["temperature"]],
        ("agent", "final_top_p"): [final.get("top_p", search.top_p)],
        ("agent", "final_top_k"): [final["top_k"]],
        ("agent", "temperature_sweep"): [sorted(temperatures)],
        ("agent", "value_weight_lambda"): [search.weight],
        ("agent", "alpha"): [search.alpha, params["agent_actions"]["alpha"]],
        ("agent", "beta"): [search.beta, params["agent_actions"]["beta"]],
        ("agent", "beta_sweep"): [sweep["beta"]],
        ("agent", "score_correct"): [right],
        ("agent", "score_wrong_value"): [wrong],
        ("agent", "score_invalid"): [none],
    }


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


STATED = pd.read_csv(PAPER / "hyperparameters.csv", dtype=str).query("source == 'stated'")


@pytest.fixture(scope="module")
def settings():
    specs = Project().specs("paper")
    shared = {(paper, name): values for paper in RLOO for name, values in common(paper, specs).items()}
    return shared | special(specs)


@pytest.mark.parametrize("paper", STATED["paper"].unique())
def test_what_a_paper_states_is_what_its_runs_resolve_to(settings, paper):
    for _, name, value, _ in STATED[STATED["paper"] == paper].itertuples(index=False):
        if (paper, name) not in ELSEWHERE:
            values = settings[paper, name]
            assert values, f"{paper} states {name}, and no run has it"
            for found in values:
                expected = read(value)
                exact = isinstance(expected, (str, bool)) or isinstance(found, list)
                same = found == (expected if exact else pytest.approx(expected, rel=1e-3))
                assert same, f"{paper}: {name} is {found}, stated {value}"
