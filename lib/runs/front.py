"""`make study`: validate, show the plan and its time, start Snakemake, show what is under way, name what was made."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Thread

import yaml
from rich.live import Live
from rich.text import Text

from lib.files import clock, shown
from lib.runs import bench
from lib.runs.hashes import lib_digest
from lib.runs.plan import DeclarationError, Plan, Project, Spec, known, read_record
from lib.runs.process import RunError, caches, die_with_parent, gpus, memory_mb, try_lock

MACHINES = Path(__file__).parent / "machines"  # Snakemake's profiles: where runs are made
EVERY = 10.0  # seconds between progress lines where there is no terminal to draw on
MANY = 50  # runs: a longer plan is shown by kinds
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
        seconds = expected(project, profile, [plan.specs[run] for run in plan.waiting])
        show_plan(project, plan, seconds, cores)
        reason = bench.engine_missing(plan.specs[run].params.get("engine", "") for run in plan.waiting)
        if reason and "executor" not in yaml.safe_load((MACHINES / machine / "config.yaml").read_text()):
            raise RunError(reason)  # another machine may have what this one lacks
        if plan.waiting:
            snakemake(project, plan, View(plan, seconds, cores), [*limits(machine, cores), *options])
    summary(plan)


def expected(project: Project, profile: str, specs: Sequence[Spec]) -> dict[str, float]:
    """Seconds that runs of a profile take by what was recorded in the reference and here: its own time, else that
    of the run of the same notebook with most parameters in common, in proportion to the steps. Without any record a run
    has what `lib.runs.bench` measured on a GPU, or no entry."""
    recorded, seconds = {}, {}
    for root in (project.root / "data/reference" / profile, project.runs / profile):
        for path in sorted(root.glob("*/*/*/run.json")) if specs else ():
            with suppress(DeclarationError):  # a damaged one: its own state says so
                record = read_record(path.parent)
                recorded.setdefault(record["notebook"], {})[path.parent.relative_to(root).as_posix()] = record
    for spec in specs:
        alike = {
            (name == spec.name, sum(record["parameters"].get(k) == v for k, v in spec.params.items()), name): record
            for name, record in recorded.get(spec.notebook, {}).items()
        }
        if alike:
            record = alike[max(alike)]
            steps = spec.params.get("steps", 1) / (record["parameters"].get("steps", 1) or 1)
            seconds[spec.name] = took(record) * steps
        elif (bound := bench.seconds(spec)) is not None:
            seconds[spec.name] = bound
    return seconds


def took(record: dict) -> float:
    """The seconds of a finished run on cores of its own; on a GPU the cores wait, so wall time counts."""
    computed = record.get("core_seconds", 0) / record.get("threads", 1)
    return record["elapsed"] if "gpu" in record or not computed else computed


def show_plan(project: Project, plan: Plan, seconds: dict[str, float], cores: int) -> None:
    """Print what is to be made, how long that takes, and how many finished runs other code made."""
    waiting, finished = plan.waiting, plan.specs.keys() - plan.waiting.keys()
    print(f"{len(plan.specs)} runs, {len(finished)} of them finished")
    records = [read_record(plan.specs[run].folder) for run in finished]
    present = lib_digest(project.root) if records else ""
    if others := sum(record.get("lib") != present for record in records):
        print(f"  {others} of these were made by other code in lib/ than the present: `make status` names them")
    for run in waiting if len(waiting) <= MANY else ():
        time_of_it = clock(seconds[run]) if run in seconds else "?"
        print(f"  {run:36} {plan.specs[run].notebook:24} {time_of_it:>8}  {waiting[run]}")
    for kind, runs in by_kind(waiting) if len(waiting) > MANY else ():
        print(f"  {kind:12} {len(runs):>5} runs {clock(sum(seconds.get(run, 0) for run in runs)):>9}")
    unknown = sum(run not in seconds for run in waiting)
    if unknown < len(waiting):
        one, all_of_them = (clock(time_left(plan, waiting, seconds, n)) for n in (1, cores))
        print(f"about {one} of one core by the recorded runs, {all_of_them} on {cores}", end="")
        print(f", and {unknown} runs of which nothing is recorded" if unknown else "")
    elif waiting:
        print("how long they take is not recorded yet")
    specs = [plan.specs[run] for run in waiting]
    if any(spec.profile in bench.RATES for spec in specs):
        kinds = {kind: sum(seconds.get(run, 0) for run in runs) for kind, runs in by_kind(waiting)}
        print("on one H100 " + ", ".join(f"{kind} {clock(took)}" for kind, took in kinds.items() if took), end="")
        print(f"; {bench.disk(specs):,.0f} GB of disk. Times without a record are bounds (lib/runs/bench.py)")
    if reason := bench.engine_missing(spec.params.get("engine", "") for spec in specs):
        print(f"! {reason}")
    sys.stdout.flush()


def by_kind(runs: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Runs by the first part of their names."""
    return [(kind, list(some)) for kind, some in groupby(sorted(runs), lambda run: run.partition("/")[0])]


def summary(plan: Plan) -> None:
    """Where the time went, by kinds of runs, and where results lie: of each study its summary, if it wrote one."""
    records = {run: read_record(spec.folder) for run, spec in plan.specs.items()}
    if plan.waiting:
        print("where the time went")
    for kind, runs in by_kind(plan.waiting):
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
    """Run Snakemake to its end. Raises RunError with the failed runs, or Snakemake's last lines, and KeyboardInterrupt
    with the runs that a person stopped."""
    profile = next(iter(plan.specs.values())).profile
    config = ["--config", f"profile={profile}", f"runs={','.join(plan.waiting)}"]
    place = ["--snakefile", str(project.root / "Snakefile"), "--directory", str(project.runs)]
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *OPTIONS.split(), *place, *config, *options],
        cwd=project.root,
        env=os.environ | caches(project.runs),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches the front door alone, which then ends the rest
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    told: list[str] = []
    reader = Thread(target=pass_on, args=(process.stdout, told), daemon=True)
    try:
        with Live(get_renderable=view, refresh_per_second=2, transient=True) as live:
            reader.start()
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=EVERY)
                if process.returncode is None and not live.console.is_terminal:
                    print(" | ".join(view.lines()), flush=True)
            reader.join(timeout=5)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(" ".join(["", *view.at_work()])) from None
    finally:
        end(process)
    named, killed = failures(plan.waiting, view.at_work(), told)
    for run in killed:
        log = shown(plan.specs[run].folder / "log.txt")
        print(f"! run {run} was killed, most often as the memory was full\n! log: {log}", flush=True)
    if failed := [run for run in plan.waiting if run in named or run in killed]:
        raise RunError(f"{len(failed)} failed: {', '.join(failed)}; the same command goes on from there")
    if process.returncode:
        raise RunError("\n".join([*told[-40:], f"Snakemake ended with status {process.returncode}"]))


def failures(waiting: Iterable[str], at_work: list[str], told: list[str]) -> tuple[list[str], list[str]]:
    """Of a Snakemake that has ended: the runs that said why they failed, and those that were begun and said nothing."""
    reasons = [line for line in told if line.startswith("! ")]
    named = [
        run for run in waiting if any(re.search(rf"(^! |\brun ){re.escape(run)}(?![\w/])", why) for why in reasons)
    ]
    return named, [run for run in at_work if run not in named]


def limits(machine: str, cores: int) -> list[str]:
    """A machine's Snakemake profile, and what this machine has of everything if it is this one that makes the runs."""
    profile = ["--profile", str(MACHINES / machine)]
    if "executor" in yaml.safe_load((MACHINES / machine / "config.yaml").read_text()):
        return profile
    resources = [f"mem_mb={memory_mb()}", *([f"gpu={len(gpus())}"] if gpus() else [])]
    return [*profile, "--cores", str(cores), "--resources", *resources]


def pass_on(stream: Iterable[str], told: list[str]) -> None:
    """Print at once what runs say to people ("> ") and why they failed ("! "); keep everything."""
    for line in map(str.rstrip, stream):
        told.append(line)
        if line.startswith(("> ", "! ")):
            print(line.removeprefix("> "), flush=True)


def end(process: subprocess.Popen) -> None:
    """End Snakemake and all runs below it: politely, then surely."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, stop)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


class View:
    """How far a study is, by what runs write into their folders. No clock but this process's own is asked."""

    def __init__(self, plan: Plan, expected: dict[str, float], cores: int):
        self.plan, self.expected, self.cores, self.start = plan, expected, cores, time.monotonic()
        self.before = {run: (self.record(run), self.pulse(run)) for run in plan.waiting}

    def record(self, run: str) -> int:
        """Which run.json lies there, 0 if none."""
        with suppress(OSError):
            return (self.plan.specs[run].folder / "run.json").stat().st_mtime_ns
        return 0

    def pulse(self, run: str) -> str:
        """What a run at work last noted: the seconds spent, and a number that is never twice the same."""
        with suppress(OSError):
            return (self.plan.specs[run].folder / "spent.txt").read_text()
        return ""

    def made(self) -> list[str]:
        return [run for run in self.plan.waiting if self.record(run) not in (0, self.before[run][0])]

    def begun(self) -> list[str]:
        """Runs that were begun, or taken up, since this view was opened."""
        return [run for run in self.plan.waiting if self.pulse(run) not in ("", self.before[run][1])]

    def at_work(self) -> list[str]:
        made = self.made()
        return [run for run in self.begun() if run not in made]

    def __call__(self) -> Text:
        return Text("\n".join(self.lines()), no_wrap=True, overflow="ellipsis")

    def lines(self) -> list[str]:
        """How far all is, and of each run at work how long it takes so far and the last thing it printed."""
        made, waiting = self.made(), self.plan.waiting
        spent = {run: float((self.pulse(run).split() or [0])[0]) for run in self.at_work()}
        head = f"{clock(time.monotonic() - self.start)}  {len(made)} of {len(waiting)} runs made"
        left = {run: max(self.expected.get(run, 0) - spent.get(run, 0), 0) for run in waiting if run not in made}
        if not spent and not made:
            head += ", Snakemake is starting"
        elif any(left.values()):
            head += f", about {clock(time_left(self.plan, left, left, self.cores))} left"
        last = {run: last_line(self.plan.specs[run].folder / "log.txt") for run in spent}
        return [head, *(f"{run} {clock(seconds)}: {last[run] or 'starting'}" for run, seconds in spent.items())]


def time_left(plan: Plan, runs: Iterable[str], seconds: dict[str, float], cores: int) -> float:
    """Estimated seconds until `runs`, parents first, are made: the longest chain of them, or all work divided by the
    cores, whichever is more."""
    work, ends = 0.0, {}
    for run in runs:
        spec = plan.specs[run]
        work += seconds.get(run, 0) * spec.declaration.threads
        ends[run] = seconds.get(run, 0) + max((ends.get(parent, 0) for parent in spec.parents), default=0)
    return max(work / cores, *ends.values()) if ends else 0


def last_line(path: Path) -> str:
    """The last line a notebook printed, as plain text."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 4096, 0))
            lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        return ""
    return next((text for line in reversed(lines) if (text := CONTROL.sub("", line).strip())), "")
