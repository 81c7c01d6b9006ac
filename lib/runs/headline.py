"""`make gpu-headline`: a pretrained model through SFT, RLOO with three rewards and objectives, and
their evaluation, on one card.

The stages are ordinary runs of profile `card`, with ordinary records: `make compare`, `make status`
and the explorer read them as any others. But each is a plain process that executes the cells of its
notebook (`lib.runs.plain`), so neither papermill nor Snakemake nor Jupyter is needed, and as many
share the card as their predicted memory allows. What is killed goes on from its last saved state
when the same command is given again."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from lib.files import clock, host_memory, shown
from lib.runs.declare import YAML, DeclarationError, select
from lib.runs.execute import execute, surroundings
from lib.runs.folder import processor, said
from lib.runs.hashes import model_folder
from lib.runs.hours import STATES, expected, measured, time_left
from lib.runs.machine import RunError, die_with_parent, gpu
from lib.runs.make import alone
from lib.runs.plain import run_cells
from lib.runs.plan import Plan, Project, Spec, read_record

PROFILE = "card"
TRAINING = ("10_train_sft", "11_train_rloo", "13_train_preference")
LONGEST = 260  # tokens of a demonstration, which is 100 to 200 long
CONTEXT = 0.6 * 2**30  # bytes that CUDA takes for each process; a guess
SHAPE = 134.5e6  # parameters of SmolLM2-135M, for which the minutes are estimated
EVERY = 30.0  # seconds between two reports of progress
PATIENCE = 10.0  # seconds that a stage has to end by itself


@dataclass(frozen=True)
class Card:
    """What the stages share: a GPU, or without one the machine's cores and memory."""

    device: str | None
    name: str
    memory: int  # bytes that stages may take together
    processes: int  # how many stages there is a core for


@dataclass(frozen=True)
class Cost:
    """What a stage is predicted to take."""

    memory: int  # bytes at the peak
    seconds: float
    policy: float  # bytes of the policy that it writes, 0 if it writes none


@dataclass
class Stage:
    """A stage that is running."""

    process: subprocess.Popen
    began: float = field(default_factory=time.monotonic)


@dataclass
class Making:
    """How far the stages of a plan are, by name: those that wait, are running and have failed."""

    plan: Plan
    card: Card
    costs: dict[str, Cost]
    waiting: list[str]
    running: dict[str, Stage] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


# --- what is made ---------------------------------------------------------------------------------


def with_model(project: Project, model: str) -> str:
    """The name of the profile that trains `model`, a folder or a hub name, which is added to the
    declarations if it is not the declared one. So the results of several models lie beside each
    other: in data/runs/card, data/runs/card-Qwen2.5-0.5B and so on. Raises DeclarationError for a
    folder without a model."""
    declared = project.declarations
    card = declared.profiles[PROFILE]
    settings = card.notebooks["10_train_sft"]
    if not model or model == settings["init"]:
        return PROFILE
    is_folder = model.startswith((".", "/")) or (project.root / model).is_dir()
    if is_folder and not model_folder(project.root / model):
        raise DeclarationError(f"MODEL={model}: there is no config.json in that folder")
    name = f"{PROFILE}-{Path(model.partition('@')[0]).name}"
    notebooks = card.notebooks | {"10_train_sft": settings | {"init": model}}
    profiles = declared.profiles | {name: card.model_copy(update={"notebooks": notebooks})}
    project.declarations = declared.model_copy(update={"profiles": profiles})
    return name


def planned(project: Project, profile: str, names: list[str]) -> Plan:
    """The plan for groups or runs of a profile, with what they need. Only these are resolved."""
    runs = project.declared(profile)
    patterns = []
    for name in names:
        patterns += project.declarations.groups.get(name, [name])
    chosen = select(patterns, runs, f"{YAML}: groups")
    plan = Plan(project.specs(profile, *chosen))
    project.check_own_files(plan.specs[run] for run in plan.waiting)
    return plan


def costs(project: Project, plan: Plan) -> dict[str, Cost]:
    """What each waiting stage is predicted to take, by name. Memory is predicted as the stage
    itself does before it trains; seconds are those of a finished run of this profile, or else
    estimates for SmolLM2-135M, and for a larger model as many times as it has parameters."""
    specs = [plan.specs[run] for run in plan.waiting]
    if not specs:
        return {}
    base = base_model(project, specs[0].profile)
    settings = project.declarations.profiles[specs[0].profile].params
    model = outline(base, int(str(settings.get("lora_r", 0))))
    seconds = expected(project, specs[0].profile, specs)
    found = {}
    for spec in specs:
        estimate = measured(replace(spec, profile=PROFILE)) or 0.0
        larger = max(1.0, model.num_parameters() / SHAPE)
        trained = 4 * model.num_parameters(only_trainable=True)
        found[spec.name] = Cost(
            memory=memory(
                spec, model, longest_prompt(base, spec.params.get("prompt_style", "free"))
            ),
            seconds=seconds.get(spec.name, larger * estimate),
            policy=trained if spec.notebook in TRAINING else 0,
        )
    return found


def base_model(project: Project, profile: str) -> str:
    """The model that the SFT of a profile starts from, a folder or a hub name."""
    init = str(project.declarations.profiles[profile].notebooks["10_train_sft"]["init"])
    folder = model_folder(project.root / init)
    return str(folder) if folder else init


def outline(base: str, lora_r: int):
    """A model of the shape of `base`, with an adapter of this rank, that holds no weights. Of the
    hub's model only config.json is read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from lib.learn.adapters import add_adapter
    from lib.learn.model import source

    config = AutoConfig.from_pretrained(**source(base))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if lora_r:
            add_adapter(model, base, lora_r, lora_r, seed=0)
    return model


@cache
def longest_prompt(base: str, style: str) -> int:
    """The tokens of the longest prompt of four numbers."""
    from lib.game.prompts import render_prompt
    from lib.learn.model import load_tokenizer

    return len(load_tokenizer(base)(render_prompt([99, 99, 99, 99], 999, style)).input_ids)


def memory(spec: Spec, model, prompt: int) -> int:
    """The bytes that a stage is predicted to take at its peak: in training, or in drawing texts.
    prompt: the most tokens of a prompt."""
    import torch

    from lib.learn.generation import AT_ONCE
    from lib.learn.model import max_micro_batch, sampling_memory, training_memory

    given = spec.params
    length = prompt + given.get("max_tokens", LONGEST)
    peak = 0
    if spec.notebook in TRAINING:
        texts = 2 * length if spec.notebook == "13_train_preference" else length
        reference = spec.notebook != "10_train_sft"
        batch = given.get("batch_size", 0)
        rows = given.get("micro_batch") or max_micro_batch(model, batch, texts, reference)
        peak = training_memory(model, rows, texts, reference)
    if "max_tokens" in given:
        rows = given.get("batch") or given.get("problems_per_step", 1) * given.get("group_size", 1)
        at_once = rows if torch.cuda.is_available() else min(rows, AT_ONCE)
        peak = max(peak, sampling_memory(model, at_once, length))
    return int(peak + CONTEXT * torch.cuda.is_available())


# --- what it will take ----------------------------------------------------------------------------


@contextmanager
def reserved(cores: int) -> Iterator[Card]:
    """The first free card, locked, or without one this machine."""
    with gpu() as device:
        name = processor() or "this machine"
        room = 0.9 * host_memory()
        if device is not None:
            asked = ("--query-gpu=name,memory.free", "--format=csv,noheader,nounits", "-i", device)
            answer = said("nvidia-smi", *asked) or ""
            name, _, free = answer.rpartition(", ")
            room = 0.9 * float(free) * 2**20 if free.strip().isdigit() else total_memory()
        yield Card(device, name or "a GPU", int(room), cores)


def total_memory() -> float:
    """Nine tenths of the memory of the GPU that PyTorch sees, where its driver cannot be asked."""
    from lib.learn.model import machine_memory

    return 0.9 * machine_memory()


def side_by_side(card: Card, costs: Mapping[str, Cost]) -> int:
    """How many of the trainings after SFT fit at once: at least one, which then adapts to the
    memory that there is, or says that it cannot."""
    needs = [cost.memory for name, cost in costs.items() if cost.policy and name[:4] != "sft/"]
    fits = [n for n in range(1, len(needs) + 1) if sum(sorted(needs)[-n:]) <= card.memory]
    return max(1, min(card.processes, max(fits, default=1)))


def what_it_takes(plan: Plan, card: Card, costs: dict[str, Cost], model: str) -> str:
    """The stages with their minutes and memory, in words and before anything starts."""
    finished = len(plan.specs) - len(costs)
    lines = [f"{model} on {card.name}: {len(plan.specs)} stages, {finished} of them finished"]
    if not costs:
        return lines[0]
    lines.append(f"  {'stage':24} {'minutes':>8} {'GiB':>6}")
    for name, cost in costs.items():
        minutes = cost.seconds / 60
        lines.append(f"  {name:24} {minutes:8.1f} {cost.memory / 2**30:6.1f}  {plan.waiting[name]}")
    seconds = {name: cost.seconds for name, cost in costs.items()}
    together = side_by_side(card, costs)
    shortest = time_left(plan, costs, seconds, together)
    alone = time_left(plan, costs, seconds, 1)
    policies = [cost.policy for cost in costs.values()]
    disk = sum(policies) + STATES * together * max(policies)
    free = shutil.disk_usage(existing(plan.specs[next(iter(costs))].folder)).free
    lines += [
        f"{card.memory / 2**30:.0f} GiB may be used, for {together} of the trainings after SFT at "
        "a time",
        f"about {clock(shortest)} if they do not slow each other down, {clock(alone)} one after "
        "the other",
        f"disk {disk / 1e9:.1f} GB, of {free / 1e9:.0f} GB that are free, and the model itself",
        "Minutes are estimates: most are rates of parts that were measured on an H100, with every "
        "completion as long as it may be. The stages as a whole were never run on a card. Memory "
        "is the prediction that each training makes before it begins.",
    ]
    large = [name for name, cost in costs.items() if cost.policy and cost.memory > card.memory]
    if large:
        lines.append(f"! too large for it: {', '.join(large)}; lower micro_batch in profile card")
    if card.device is None:
        lines.append(
            "! there is no GPU here: the minutes are those of an H100, not of this machine"
        )
    if disk > free:
        lines.append("! the disk is too full: COUNTDOWN_RUNS=/big/disk puts the runs elsewhere")
    return "\n".join(lines)


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


# --- making it ------------------------------------------------------------------------------------


def make(
    project: Project,
    names: list[str],
    model: str = "",
    cores: int = 1,
    only_plan: bool = False,
    every: float = EVERY,
) -> None:
    """Make the stages of these groups or runs that are not finished, on one card, and show the
    results. Raises RunError that names the stages that failed."""
    profile = with_model(project, model)
    base = base_model(project, profile)
    with alone(project.runs), reserved(cores) as card:
        plan = planned(project, profile, names)
        predicted = costs(project, plan)
        print(what_it_takes(plan, card, predicted, base), flush=True)
        if only_plan:
            return
        making = Making(plan, card, predicted, [*predicted])
        run_stages(project, making, model, every)
    results(project, plan, project.runs / profile)
    if failed := making.failed:
        raise RunError(
            f"{len(failed)} failed: {', '.join(failed)}; the same command goes on from there"
        )


def run_stages(project: Project, making: Making, model: str, every: float) -> None:
    """Run all waiting stages, each once those are finished that it needs, as many at once as fit.
    If this process is stopped, it stops them."""
    told = time.monotonic()
    try:
        while True:
            for name in startable(making):
                spec = making.plan.specs[name]
                making.running[name] = Stage(started(project, spec, making.card.device, model))
                making.waiting.remove(name)
            if not making.running:
                return
            time.sleep(min(1.0, every))
            collect(making)
            if time.monotonic() - told >= every and making.running:
                told = time.monotonic()
                print(progress(making), flush=True)
    except KeyboardInterrupt:
        print("\n! stopping; the same command goes on from here", flush=True)
        raise
    finally:
        end([stage.process for stage in making.running.values()])


def startable(making: Making) -> list[str]:
    """The stages to start now: what others wait for comes first. One that fits nowhere runs
    alone."""
    plan = making.plan
    chosen: list[str] = []
    unfinished = {*making.waiting, *making.running, *making.failed}
    for name in sorted(making.waiting, key=lambda name: -plan.heights[name]):
        now = [*making.running, *chosen]
        memory = sum(making.costs[other].memory for other in [*now, name])
        fits = not now or memory <= making.card.memory
        ready = not unfinished & plan.specs[name].parents.keys()
        if ready and fits and len(now) < making.card.processes:
            chosen.append(name)
    return chosen


def collect(making: Making) -> None:
    """Take the stages that have ended from those that are running, and say which have failed."""
    for name, stage in [*making.running.items()]:
        if stage.process.poll() is None:
            continue
        del making.running[name]
        if stage.process.returncode:
            making.failed.append(name)
            log = shown(making.plan.specs[name].folder / "log.txt")
            print(f"! {name} failed, its log is {log}", flush=True)


def started(project: Project, spec: Spec, device: str | None, model: str) -> subprocess.Popen:
    """The process of one stage, which ends with this one."""
    command = [sys.executable, "-m", "lib.runs", "headline", spec.name, "--model", model]
    command += ["--stage", *(["--device", device] if device else [])]
    environment = os.environ | surroundings(project, spec, device) | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        cwd=project.root,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


def stage(project: Project, name: str, model: str, device: str | None) -> None:
    """Make one stage in this process: what `started` starts."""
    profile = with_model(project, model)
    spec = project.specs(profile, name)[name]
    try:
        execute(project, spec, run_cells, device)
    except (RunError, OSError, ValueError) as error:
        raise RunError(f"run {name} ({profile}) {error}") from error


def end(processes: list[subprocess.Popen]) -> None:
    """End processes with all that they have started, if need be by force."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        living = [process for process in processes if process.poll() is None]
        for process in living:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signum)
        until = time.monotonic() + PATIENCE
        for process in living:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.1, until - time.monotonic()))


def progress(making: Making) -> str:
    """A line for each stage that is running, from its log, and about how long all will take."""
    lines = []
    left = {name: making.costs[name].seconds for name in making.waiting}
    for name, stage in making.running.items():
        elapsed = time.monotonic() - stage.began
        left[name] = max(0.0, making.costs[name].seconds - elapsed)
        lines.append(f"  {name:24} {last_line(making.plan.specs[name].folder / 'log.txt')}")
    total = time_left(making.plan, left, left, side_by_side(making.card, making.costs))
    return "\n".join([*lines, f"  about {clock(total)} left in all, by the estimate"])


def last_line(log: Path) -> str:
    """What a stage has printed last, such as its progress line with the time that it has left."""
    with suppress(OSError):
        end_of_log = log.read_bytes()[-2000:].decode(errors="replace")
        lines = end_of_log.replace("\r", "\n").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "begins")
    return "begins"


def results(project: Project, plan: Plan, folder: Path) -> None:
    """Print the table of all finished evaluations, and write it and the figure into a folder."""
    done = []
    for spec in plan.specs.values():
        if spec.name.startswith("sample/") and read_record(spec.folder):
            done.append(spec.folder)
    if not done:
        return
    from lib.study import headline

    print(headline.told(headline.report(done, folder)))
    for name in ("headline.csv", "headline_lines.csv", "headline.png"):
        print(f"made {shown(folder / name)}")
    print(
        f"make compare PROFILE={folder.name} A=rloo/sparse B=sft/free compares two of them; "
        f"notebook 91 shows what they write, with profile = {folder.name!r}"
    )
