"""`make study`: validate, show the plan, start Snakemake, show what is under way, end with what was made."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from threading import Thread

from lib.runs.notebook import clock
from lib.runs.plan import Plan, Project, read_record, relative
from lib.runs.process import RunError, die_with_parent, gpus

EVERY = 10.0  # seconds between progress lines where there is no terminal to draw on
OPTIONS = "--quiet all --nocolor --nolock --rerun-incomplete --rerun-triggers params mtime --scheduler greedy"


def make(project: Project, profile: str, group: str, cores: int, options: list[str]) -> None:
    """Make what is not finished of a group. Raises RunError if a run fails or another is at work here."""
    plan = project.plan(profile, group)
    project.runs.mkdir(parents=True, exist_ok=True)
    with (project.runs / ".lock").open("a+") as lock:
        hold(lock)
        states = {run: project.state(spec) for run, spec in plan.specs.items()}
        waiting = [run for run, state in states.items() if state != "done"]
        show_plan(plan, states)
        if waiting:
            config = ["--config", f"profile={profile}", f"group={group}"]
            engine(plan, states, ["--cores", str(cores), *config, *options])
    summary(plan, waiting)


def hold(lock) -> None:
    """Be the only front door of these runs; the system drops the lock when its holder dies."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        other = lock.read().strip()
        raise RunError(f"these runs are being made by process {other}: wait for it, or `kill {other}`") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


def engine(plan: Plan, states: dict[str, str], options: list[str]) -> None:
    """Run Snakemake to its end. Raises RunError with the failed run's message, or Snakemake's last lines."""
    fresh = ("done", "missing", "unfinished")
    stale = [plan.output(run) for run, state in states.items() if state not in fresh]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    resources = ["--resources", f"mem_mb={memory}", *([f"gpu={len(gpus())}"] if gpus() else [])]
    force = ["--forcerun", *stale] if stale else []  # Snakemake sees it too, if it made the run itself
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *OPTIONS.split(), *resources, *force, *options],
        cwd=plan.project.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the front door alone, which then ends the rest
        preexec_fn=die_with_parent,
    )
    view = View(plan, [run for run, state in states.items() if state != "done"])
    said = deque(maxlen=40)
    reader = Thread(target=listen, args=(process.stdout, said, view.messages), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            view.draw()
            time.sleep(0.3)
        reader.join(timeout=5)
    finally:
        view.clear()
        end(process)
    if process.returncode:
        failures = [line[2:] for line in said if line.startswith("! ")]
        raise RunError("\n".join(failures or said or [f"Snakemake ended with status {process.returncode}"]))


def listen(stream, said: deque, messages: deque) -> None:
    """Pass on what runs say to people ("> "), keep the rest for the case of a failure."""
    for line in map(str.rstrip, stream):
        if line.startswith("> "):
            messages.append(line[2:])
        elif line:
            said.append(line)


def end(process: subprocess.Popen) -> None:
    """End Snakemake and all runs below it: politely, then surely."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, stop)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                continue


class View:
    """What is under way: each running run's last printed line; in place on a terminal, else now and then."""

    def __init__(self, plan: Plan, waiting: list[str]):
        self.plan, self.waiting, self.start = plan, waiting, time.time()
        self.terminal = sys.stdout.isatty()
        self.drawn, self.last, self.messages = 0, time.time(), deque()

    def draw(self) -> None:
        while self.messages:
            self.clear()
            print(self.messages.popleft(), flush=True)
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            lines = [line[:width] for line in self.lines()]
            self.clear()
            print("\n".join(lines), flush=True)
            self.drawn = len(lines)
        elif time.time() - self.last >= EVERY:
            self.last = time.time()
            print(" | ".join(self.lines()), flush=True)

    def clear(self) -> None:
        if self.drawn:
            print(f"\x1b[{self.drawn}F\x1b[J", end="", flush=True)
            self.drawn = 0

    def lines(self) -> list[str]:
        running, done = {}, []
        for run in self.waiting:
            folder = self.plan.project.folder(self.plan.specs[run])
            if written(folder / "run.json") >= self.start:
                done.append(run)
            elif written(folder / "spec.json") >= self.start:
                running[run] = folder
        seconds = {run: time.time() - written(folder / "spec.json") for run, folder in running.items()}
        left = time_left(self.plan, [run for run in self.waiting if run not in done], seconds)
        head = f"{clock(time.time() - self.start)}  {len(done)} of {len(self.waiting)} runs made"
        return [head + (f", about {clock(left)} left" if left is not None else "")] + [
            f"{run} {clock(seconds[run])}: {last_line(folder / 'log.txt') or 'starting'}"
            for run, folder in running.items()
        ]


def time_left(plan: Plan, open_runs: list[str], seconds: dict[str, float]) -> float | None:
    """The longest way through the open runs by what they took in the reference; None if one is not there."""
    left = {}
    for run in plan.specs:  # parents first
        if run in open_runs:
            record = read_record(plan.project.reference_folder(plan.specs[run]))
            if record is None:
                return None
            own = max(record["elapsed"] - seconds.get(run, 0), 0)
            left[run] = own + max((left.get(parent, 0) for parent in plan.specs[run].parents), default=0)
    return max(left.values(), default=0)


def show_plan(plan: Plan, states: dict[str, str]) -> None:
    borrowed = {parent for spec in plan.specs.values() for parent in spec.parents} - set(plan.specs)
    done = [run for run, state in states.items() if state == "done"]
    print(f"profile {plan.profile}: {len(plan.specs)} runs, {len(done)} of them finished")
    for run, state in states.items():
        if state != "done":
            print(f"  {run:32} {plan.specs[run].notebook:24} {state}")
    for run in sorted(borrowed):
        print(f"  {run:32} {'from data/reference':24} finished")
    sys.stdout.flush()


def summary(plan: Plan, made: list[str]) -> None:
    """Where the time went, and the figures and tables."""
    records = {run: read_record(plan.project.folder(spec)) for run, spec in plan.specs.items()}
    if made:
        print("where the time went")
        for run in made:
            print(f"  {run:32} {clock(records[run]['elapsed']):>8} {records[run]['peak_memory_mb']:>6} MB")
    for run, record in records.items():
        for artifact in record["artifacts"]:
            print(f"made {relative(plan.project.folder(plan.specs[run]) / artifact, plan.project.root)}")


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
