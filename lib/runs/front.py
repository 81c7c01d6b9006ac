"""`make study`: validate, show the plan and its time, start Snakemake, show what is under way, name what was made."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

import yaml
from rich.live import Live
from rich.text import Text

from lib.files import clock, shown
from lib.runs.plan import Plan, Project, known, read_record
from lib.runs.process import RunError, die_with_parent, gpus, try_lock

MACHINES = Path(__file__).parent / "machines"  # Snakemake's profiles: where runs are made
EVERY = 10.0  # seconds between progress lines where there is no terminal to draw on
QUIET = "--quiet progress host reason --nocolor"  # what is left is shown where a run fails without a word
OPTIONS = f"{QUIET} --nolock --rerun-incomplete --rerun-triggers params mtime --scheduler greedy"


def make(
    project: Project, profile: str, groups: list[str], cores: int, options: list[str], machine: str = "local"
) -> None:
    """Make what is not finished of groups and runs on a machine (a folder of MACHINES). Raises RunError if a run fails
    or another is at work here."""
    known(machine, [folder.name for folder in MACHINES.iterdir()], "machine")
    plan = project.plan(profile, *groups)
    project.runs.mkdir(parents=True, exist_ok=True)
    with (project.runs / ".lock").open("a+") as lock:  # one front door at a time
        if not try_lock(lock):
            lock.seek(0)
            other = lock.read()
            raise RunError(f"these runs are being made by process {other}: wait for it, or `kill {other}`")
        lock.truncate(0)
        print(os.getpid(), end="", file=lock, flush=True)
        seconds = expected(project, plan)
        waiting = show_plan(plan, seconds, cores)
        if waiting:
            options = ["--config", f"profile={profile}", f"group={','.join(groups)}", *limits(machine, cores), *options]
            snakemake(project.root, plan, waiting, options, seconds, cores)
    summary(plan, waiting)


def expected(project: Project, plan: Plan) -> dict[str, float]:
    """Seconds that each run takes by what was recorded in the reference and here: its own time, else that of the run of
    the same notebook with most parameters in common, in proportion to the steps. Without any record it has no entry."""
    profile = next(iter(plan.specs.values())).profile
    roots = (project.root / "data/reference" / profile, project.runs / profile)
    recorded = {
        str(path.parent.relative_to(root)): read_record(path.parent)
        for root in roots
        for path in sorted(root.glob("*/*/*/run.json"))
    }
    seconds = {}
    for run, spec in plan.specs.items():
        alike = [(name == run, record) for name, record in recorded.items() if record["notebook"] == spec.notebook]
        if alike:
            shared = [sum(record["parameters"].get(k) == v for k, v in spec.params.items()) for _, record in alike]
            best = max(range(len(alike)), key=lambda i: (alike[i][0], shared[i]))
            record = alike[best][1]
            steps = [params.get("steps", 1) for params in (spec.params, record["parameters"])]
            seconds[run] = record["elapsed"] * steps[0] / steps[1]
    return seconds


def show_plan(plan: Plan, seconds: dict[str, float], cores: int) -> list[str]:
    """Print what is to be made and how long that takes, what is finished and what is borrowed; the runs to be made."""
    states = {run: spec.state for run, spec in plan.specs.items()}
    waiting = [run for run, state in states.items() if state != "done"]
    whole = [spec for spec in plan.specs.values() if not spec.declaration.allow_missing]
    borrowed = {parent for spec in whole for parent in spec.parents} - set(plan.specs)
    print(f"{len(states)} runs, {len(states) - len(waiting)} of them finished")
    for run in waiting:
        took = clock(seconds[run]) if run in seconds else "?"
        print(f"  {run:36} {plan.specs[run].notebook:24} {took:>8}  {states[run]}")
    for run in sorted(borrowed):
        print(f"  {run:36} {'from data/reference':24} {'':8}  finished")
    unknown = sum(run not in seconds for run in waiting)
    if waiting:
        one, all_of_them = (clock(time_left(plan, waiting, seconds, n)) for n in (1, cores))
        print(f"about {one} of one core by the recorded runs, {all_of_them} on {cores}", end="")
        print(f", and {unknown} runs of which nothing is recorded" if unknown else "")
    sys.stdout.flush()
    return waiting


def summary(plan: Plan, made: list[str]) -> None:
    """Where the time went, and the figures and tables."""
    records = {run: read_record(spec.folder) for run, spec in plan.specs.items()}
    if made:
        print("where the time went")
    for run in made:
        print(f"  {run:36} {clock(records[run]['elapsed']):>8} {records[run]['peak_memory_mb']:>6} MB")
    for run, spec in plan.specs.items():
        for artifact in records[run]["artifacts"]:
            print(f"made {shown(spec.folder / artifact)}")


# --- while runs are made ------------------------------------------------------------------------------------


def snakemake(
    root: Path, plan: Plan, waiting: list[str], options: list[str], seconds: dict[str, float], cores: int
) -> None:
    """Run Snakemake to its end. Raises RunError with the failed run's message, or Snakemake's last lines."""
    stale = [str(plan.specs[run].folder / "run.json") for run in waiting]
    options = [*OPTIONS.split(), "--forcerun", *stale, *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *options],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the front door alone, which then ends the rest
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    said = deque(maxlen=1000)
    reader = Thread(target=listen, args=(process.stdout, said), daemon=True)
    try:
        watch(process, plan, waiting, reader, seconds, cores)
    finally:
        end(process)
    if process.returncode:
        said.append(f"Snakemake ended with status {process.returncode}")
        failures = [line[2:] for line in said if line.startswith("! ")]
        raise RunError("\n".join(failures or [*said][-40:]))


def limits(machine: str, cores: int) -> list[str]:
    """A machine's Snakemake profile, and what this machine has of everything if it is this one that makes the runs."""
    profile = ["--profile", str(MACHINES / machine)]
    if "executor" in yaml.safe_load((MACHINES / machine / "config.yaml").read_text()):
        return profile
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    resources = [f"mem_mb={memory}", *([f"gpu={len(gpus())}"] if gpus() else [])]
    return [*profile, "--cores", str(cores), "--resources", *resources]


def watch(
    process: subprocess.Popen, plan: Plan, waiting: list[str], reader: Thread, seconds: dict[str, float], cores: int
) -> None:
    """Show what is under way until the process ends: in place on a terminal, else a line now and then."""
    start = time.time()

    def view() -> Text:
        return Text("\n".join(under_way(plan, waiting, start, seconds, cores)), no_wrap=True, overflow="ellipsis")

    with Live(get_renderable=view, refresh_per_second=2, transient=True) as live:
        reader.start()
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=EVERY)
            if process.returncode is None and not live.console.is_terminal:
                print(" | ".join(under_way(plan, waiting, start, seconds, cores)), flush=True)
        reader.join(timeout=5)


def listen(stream, said: deque) -> None:
    """Pass on what runs say to people ("> "), keep the rest for the case of a failure."""
    for line in map(str.rstrip, stream):
        if line.startswith("> "):
            print(line[2:], flush=True)
        elif line:
            said.append(line)


def end(process: subprocess.Popen) -> None:
    """End Snakemake and all runs below it: politely, then surely."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, stop)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


def under_way(plan: Plan, waiting: list[str], start: float, expected: dict[str, float], cores: int) -> list[str]:
    """How far all is, and of each run at work how long it takes so far and the last thing it printed."""
    done = [run for run in waiting if written(plan.specs[run].folder / "run.json") >= start]
    begun = {run: written(plan.specs[run].folder / "spec.json") for run in waiting if run not in done}
    seconds = {run: time.time() - when for run, when in begun.items() if when >= start}
    known = all(run in expected for run in begun)
    left = {run: max(expected[run] - seconds.get(run, 0), 0) for run in begun if run in expected}
    head = f"{clock(time.time() - start)}  {len(done)} of {len(waiting)} runs made"
    return [head + (f", about {clock(time_left(plan, list(begun), left, cores))} left" if known else "")] + [
        f"{run} {clock(took)}: {last_line(plan.specs[run].folder / 'log.txt') or 'starting'}"
        for run, took in seconds.items()
    ]


def time_left(plan: Plan, runs: list[str], seconds: dict[str, float], cores: int) -> float:
    """What runs that are open still take by what each does: the longest way through them, or their share of the
    cores."""
    work = sum(seconds.get(run, 0) * plan.specs[run].declaration.threads for run in runs)
    left = {}
    for run in runs:  # parents first
        before = max((left.get(parent, 0) for parent in plan.specs[run].parents), default=0)
        left[run] = seconds.get(run, 0) + before
    return max(work / cores, *left.values()) if left else 0


def last_line(path: Path) -> str:
    """The last line a notebook printed."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 4096, 0))
            lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def written(path: Path) -> float:
    """When a file was last written; 0 if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
