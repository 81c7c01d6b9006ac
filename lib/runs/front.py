"""`make study`: validate, show the plan and its time, start Snakemake, show what is under way, name what was made."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from threading import Thread

import yaml
from rich.live import Live
from rich.text import Text

from lib.files import clock, shown
from lib.runs import bench
from lib.runs.plan import DeclarationError, Plan, Project, known, read_record
from lib.runs.process import RunError, caches, die_with_parent, gpus, try_lock

MACHINES = Path(__file__).parent / "machines"  # Snakemake's profiles: where runs are made
EVERY = 10.0  # seconds between progress lines where there is no terminal to draw on
OPTIONS = "--quiet progress host reason --nocolor --nolock --rerun-incomplete --forceall --scheduler greedy"
CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]"
)  # colours and cursors, for no terminal to obey


def make(
    project: Project, profile: str, groups: list[str], cores: int, options: list[str], machine: str = "local"
) -> None:
    """Make what is not finished of groups and runs on a machine (a folder of MACHINES). Raises RunError if a run fails
    or another front door is at work here."""
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
        reason = bench.engine_missing(plan.specs[run].params.get("engine", "") for run in waiting)
        if reason and "executor" not in yaml.safe_load((MACHINES / machine / "config.yaml").read_text()):
            raise RunError(reason)  # another machine may have what this one lacks
        if waiting:
            config = ["--config", f"profile={profile}", f"runs={','.join(waiting)}"]
            snakemake(project, plan, View(plan, waiting, seconds, cores), [*config, *limits(machine, cores), *options])
    summary(plan, waiting)


def expected(project: Project, plan: Plan) -> dict[str, float]:
    """Seconds that each run takes by what was recorded in the reference and here: its own time, else that of the run of
    the same notebook with most parameters in common, in proportion to the steps. Without any record it has what
    `lib.runs.bench` says of a GPU, or no entry."""
    profile, recorded, seconds = next(iter(plan.specs.values())).profile, {}, {}
    for root in (project.root / "data/reference" / profile, project.runs / profile):
        for path in sorted(root.glob("*/*/*/run.json")):
            with suppress(DeclarationError):  # a damaged one: its own state says so
                recorded[path.parent.relative_to(root).as_posix()] = read_record(path.parent)
    for run, spec in plan.specs.items():
        alike = {
            (name == run, sum(record["parameters"].get(k) == v for k, v in spec.params.items()), name): record
            for name, record in recorded.items()
            if record["notebook"] == spec.notebook
        }
        if alike:
            record = alike[max(alike)]
            seconds[run] = record["elapsed"] * spec.params.get("steps", 1) / record["parameters"].get("steps", 1)
        elif (bound := bench.seconds(spec)) is not None:
            seconds[run] = bound
    return seconds


def show_plan(plan: Plan, seconds: dict[str, float], cores: int) -> list[str]:
    """Print what is to be made and how long that takes; the runs to be made."""
    states = {run: spec.state for run, spec in plan.specs.items()}
    waiting = []
    for run, spec in plan.specs.items():  # parents first; a study that was finished without them reads what comes now
        if states[run] != "done" or any(parent in waiting for parent in spec.parents):
            waiting.append(run)
    print(f"{len(states)} runs, {len(states) - len(waiting)} of them finished")
    for run in waiting:
        took = clock(seconds[run]) if run in seconds else "?"
        print(f"  {run:36} {plan.specs[run].notebook:24} {took:>8}  {states[run]}")
    unknown = sum(run not in seconds for run in waiting)
    if unknown < len(waiting):
        one, all_of_them = (clock(time_left(plan, waiting, seconds, n)) for n in (1, cores))
        print(f"about {one} of one core by the recorded runs, {all_of_them} on {cores}", end="")
        print(f", and {unknown} runs of which nothing is recorded" if unknown else "")
    elif waiting:
        print("how long they take is not recorded yet")
    specs = [plan.specs[run] for run in waiting]
    if any(spec.profile in bench.RATES for spec in specs):
        kinds = Counter()
        for run in waiting:
            kinds[run.partition("/")[0]] += seconds.get(run, 0)
        print("on one H100 " + ", ".join(f"{kind} {clock(took)}" for kind, took in kinds.items() if took), end="")
        print(f"; {bench.disk(specs):,.0f} GB of disk. Times without a record are bounds (lib/runs/bench.py)")
    if reason := bench.engine_missing(spec.params.get("engine", "") for spec in specs):
        print(f"! {reason}")
    sys.stdout.flush()
    return waiting


def summary(plan: Plan, made: list[str]) -> None:
    """Where the time went, by kinds of runs, and where results lie: of each study its summary, if it wrote one."""
    records = {run: read_record(spec.folder) for run, spec in plan.specs.items()}
    if made:
        print("where the time went")
    for kind, runs in groupby(sorted(made), lambda run: run.partition("/")[0]):
        of_kind = [records[run] for run in runs]
        took, memory = sum(one["elapsed"] for one in of_kind), max(one["peak_memory_mb"] for one in of_kind)
        print(f"  {kind:12} {len(of_kind):>4} runs {clock(took):>9}, at most {memory} MB")
    for run, spec in plan.specs.items():
        if artifacts := records[run]["artifacts"]:
            print(f"made {len(artifacts)} figures and tables of {spec.run} in {shown(spec.folder)}")
        if (told := spec.folder / "summary.md").exists() and told.read_text().strip():
            print(told.read_text().strip())


# --- while runs are made ------------------------------------------------------------------------------------


def snakemake(project: Project, plan: Plan, view: "View", options: list[str]) -> None:
    """Run Snakemake to its end. Raises RunError with the failed runs, or Snakemake's last lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *OPTIONS.split(), *options],
        cwd=project.root,
        env=os.environ | caches(project.runs),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches the front door alone, which then ends the rest
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    said = deque(maxlen=1000)
    reader = Thread(target=listen, args=(process.stdout, said, plan, view.failed), daemon=True)
    try:
        with Live(get_renderable=view, refresh_per_second=2, transient=True) as live:
            reader.start()
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=EVERY)
                if process.returncode is None and not live.console.is_terminal:
                    print(" | ".join(view.lines()), flush=True)
            reader.join(timeout=5)
    finally:
        end(process)
    if view.failed:
        raise RunError(f"{len(view.failed)} failed: {', '.join(view.failed)}; the same command goes on from there")
    if process.returncode:
        raise RunError("\n".join([*said, f"Snakemake ended with status {process.returncode}"][-40:]))


def limits(machine: str, cores: int) -> list[str]:
    """A machine's Snakemake profile, and what this machine has of everything if it is this one that makes the runs."""
    profile = ["--profile", str(MACHINES / machine)]
    if "executor" in yaml.safe_load((MACHINES / machine / "config.yaml").read_text()):
        return profile
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    resources = [f"mem_mb={memory}", *([f"gpu={len(gpus())}"] if gpus() else [])]
    return [*profile, "--cores", str(cores), "--resources", *resources]


def listen(stream, said: deque, plan: Plan, failed: dict[str, None]) -> None:
    """Pass on at once what runs say to people ("> ") and why they failed ("! "), and name those that were killed before
    they could say it; keep the rest for the case that Snakemake itself fails."""
    folders, error = {str(spec.folder / "run.json"): run for run, spec in plan.specs.items()}, False
    for line in map(str.rstrip, stream):
        said.append(line)
        error = line.startswith("Error in rule") or (error and line.startswith(" "))
        if line.startswith("> "):
            print(line[2:], flush=True)
        elif line.startswith("! "):
            print(line, flush=True)
            failed |= {run: None for run in plan.specs if re.search(rf"(^! |\brun ){re.escape(run)}(?![\w/])", line)}
        elif error and line.strip().startswith("output: "):
            run = folders.get(line.partition("output: ")[2].removesuffix(" (corrupted)"))
            if run and run not in failed:
                failed[run] = None
                log = shown(plan.specs[run].folder / "log.txt")
                print(f"! run {run} was killed, most often as the memory was full\n! log: {log}", flush=True)


def end(process: subprocess.Popen) -> None:
    """End Snakemake and all runs below it: politely, then surely."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, stop)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


class View:
    """How far a study is, by what runs write into their folders. No clock but this process's own is asked."""

    def __init__(self, plan: Plan, waiting: list[str], expected: dict[str, float], cores: int):
        self.plan, self.waiting, self.expected, self.cores = plan, waiting, expected, cores
        self.start, self.failed = time.monotonic(), {}
        self.before = {run: (self.stamp(run), self.pulse(run)) for run in waiting}

    def stamp(self, run: str) -> int:
        """Which run.json lies there, 0 if none."""
        with suppress(OSError):
            return (self.plan.specs[run].folder / "run.json").stat().st_mtime_ns
        return 0

    def pulse(self, run: str) -> str:
        """What a run at work last noted: the seconds spent, and a number that is never twice the same."""
        with suppress(OSError):
            return (self.plan.specs[run].folder / "spent.txt").read_text()
        return ""

    def __call__(self) -> Text:
        return Text("\n".join(self.lines()), no_wrap=True, overflow="ellipsis")

    def lines(self) -> list[str]:
        """How far all is, and of each run at work how long it takes so far and the last thing it printed."""
        done = [run for run in self.waiting if self.stamp(run) not in (0, self.before[run][0])]
        left = [run for run in self.waiting if run not in done and run not in self.failed]
        pulses = {run: self.pulse(run) for run in left}  # none where a run has just emptied its folder, to start anew
        work = {run: float(now.split()[0]) for run, now in pulses.items() if now not in ("", self.before[run][1])}
        last = {run: last_line(self.plan.specs[run].folder / "log.txt") for run in work}
        head = f"{clock(time.monotonic() - self.start)}  {len(done)} of {len(self.waiting)} runs made"
        head += f", {len(self.failed)} failed" if self.failed else ""
        if not work and not done:
            head += ", Snakemake is starting"
        elif any(run in self.expected for run in left):
            unknown = sum(run not in self.expected for run in left)
            head += f", about {clock(self.time_left(done, left, work, last))} left"
            head += f" and {unknown} runs of unknown length" if unknown else ""
        return [head, *(f"{run} {clock(took)}: {last[run] or 'starting'}" for run, took in work.items())]

    def time_left(self, done: list[str], left: list[str], work: dict[str, float], last: dict[str, str]) -> float:
        """Seconds by the recorded ones, corrected by the pace of the runs that were made since; a run at work takes no
        less than it says itself."""
        known = [run for run in done if self.expected.get(run)]
        paces = [read_record(self.plan.specs[run].folder)["elapsed"] / self.expected[run] for run in known]
        pace = median(paces) if paces else 1
        own = {run: re.search(r"([\d:]+) left$", line) for run, line in last.items()}
        said = {run: seconds_of(found[1]) for run, found in own.items() if found}
        seconds = {
            run: max(self.expected[run] * pace - work.get(run, 0), said.get(run, 0))
            for run in left
            if run in self.expected
        }
        return time_left(self.plan, left, seconds, self.cores)


def time_left(plan: Plan, runs: list[str], seconds: dict[str, float], cores: int) -> float:
    """What runs that are open still take by what each does: the longest way through them, or their share of the
    cores."""
    work = sum(seconds.get(run, 0) * plan.specs[run].declaration.threads for run in runs)
    left = {}
    for run in runs:  # parents first
        before = max((left.get(parent, 0) for parent in plan.specs[run].parents), default=0)
        left[run] = seconds.get(run, 0) + before
    return max(work / cores, *left.values()) if left else 0


def seconds_of(said: str) -> int:
    """A `clock` read back: "01:15" -> 75."""
    return sum(60**i * int(part) for i, part in enumerate(reversed(said.split(":"))))


def last_line(path: Path) -> str:
    """The last line a notebook printed, as plain text."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 4096, 0))
            lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        return ""
    return next((text for line in reversed(lines) if (text := CONTROL.sub("", line).strip())), "")
