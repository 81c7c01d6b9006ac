"""`make study` and `make figures`: show the plan and its time, start Snakemake, and print which
runs begin and end."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import yaml

from lib.files import FIGURES, atomic, clock, host_memory, shown, writing
from lib.runs import warm
from lib.runs.declare import known
from lib.runs.hours import engine_missing, expected, show_plan, time_left
from lib.runs.machine import RunError, caches, die_with_parent, gpus, try_lock
from lib.runs.plan import READABLE, Plan, Project, read_record, state

# Snakemake profiles, one for each place where runs can be made
MACHINES = Path(__file__).parent / "machines"
OPTIONS = "--nocolor --nolock --rerun-incomplete --forceall --scheduler greedy"


def make(
    project: Project,
    plan: Plan,
    cores: int,
    options: Sequence[str] = (),
    machine: str = "local",
    again: bool = False,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Make the unfinished runs of a plan, or with `again` all of them, on a machine (the name of a
    folder in MACHINES), with more variables in their `environment`. Raises RunError if a run fails
    or if another process is making runs here."""
    known(machine, [folder.name for folder in MACHINES.iterdir()], "machine")
    folder = project.runs / ("reference" if project.published else "")
    with alone(folder):
        # only now, as another process may have been at work
        for spec in plan.specs.values() if again else ():
            (spec.folder / "run.json").unlink(missing_ok=True)
        waiting = [plan.specs[run] for run in plan.waiting]
        seconds = expected(project, waiting[0].profile, waiting) if waiting else {}
        show_plan(project, plan, seconds, cores)
        machine_options = snakemake_options(machine, cores)
        reason = engine_missing(spec.params.get("engine", "") for spec in waiting)
        # if runs are made elsewhere, it need not be installed here
        if reason and "--cores" in machine_options:
            raise RunError(reason)
        if waiting:
            options = [*machine_options, *options]
            snakemake(project, folder, plan, seconds, cores, options, environment or {})
    for spec in plan.specs.values():
        # none after --dry-run
        if spec.study and not project.published and (record := read_record(spec.folder)):
            count = len(record.artifacts)
            print(f"made {count} figures and tables of {spec.run} in {shown(spec.folder)}")
            if (summary := spec.folder / "summary.md").exists():
                print(summary.read_text().strip())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A context in which only this process makes runs in a folder of runs. Raises RunError if
    another one does."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    with (folder / ".lock").open("a+") as lock:
        if not try_lock(lock):
            pid = (folder / ".lock").read_text()
            raise RunError(
                f"these runs are being made by process {pid}: wait for it, or `kill {pid}`"
            )
        lock.truncate(0)
        print(os.getpid(), end="", file=lock, flush=True)
        yield


def snakemake_options(machine: str, cores: int) -> list[str]:
    """Snakemake's options for a machine: its profile and, if the runs are made here, the cores,
    memory and GPUs."""
    profile = ["--profile", str(MACHINES / machine)]
    if "executor" in yaml.safe_load((MACHINES / machine / "config.yaml").read_text()):
        return profile
    devices = gpus()
    resources = [f"mem_mb={host_memory() // 2**20}", *([f"gpu={len(devices)}"] if devices else [])]
    return [*profile, "--cores", str(cores), "--resources", *resources]


def snakemake(
    project: Project,
    folder: Path,
    plan: Plan,
    seconds: dict[str, float],
    cores: int,
    options: list[str],
    environment: Mapping[str, str],
) -> None:
    """Run Snakemake in `folder` to its end. Raises RunError with the failed runs, or with
    Snakemake's last lines."""
    # 1. Start Snakemake
    process = start_snakemake(project, folder, plan, options, environment)
    # 2. Repeat what it says about runs, with the time left
    lines: list[str] = []
    pending = dict.fromkeys(plan.waiting)
    is_local = "--cores" in options
    try:
        for line in map(str.rstrip, process.stdout or ()):
            lines.append(line)
            if line.startswith("> made "):
                pending.pop(line.split()[2], None)
                line += progress_of(plan, pending, seconds, cores)
            # runs elsewhere print nothing here: show all lines
            if not is_local or line.startswith(("> ", "! ")):
                print(line.removeprefix("> "), flush=True)
        process.wait()
    except KeyboardInterrupt:
        print(
            "\n! stopping, which takes some seconds; the same command goes on from here", flush=True
        )
        raise
    finally:
        end(process)
    # 3. Name the runs that failed
    refuse_failed(plan, lines)
    if process.returncode:
        raise RunError(
            "\n".join([*lines[-40:], f"Snakemake ended with status {process.returncode}"])
        )


def progress_of(plan: Plan, pending: Collection[str], seconds: dict[str, float], cores: int) -> str:
    """How many runs are made, and about how long the `pending` ones will take, if it is known."""
    said = f", {len(plan.waiting) - len(pending)} of {len(plan.waiting)}"
    if seconds and pending:
        said += f", about {clock(time_left(plan, pending, seconds, cores))} left"
    return said


def end(process: subprocess.Popen[str]) -> None:
    """End Snakemake and all its runs, if need be by force."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


def start_snakemake(
    project: Project,
    folder: Path,
    plan: Plan,
    options: list[str],
    environment: Mapping[str, str],
) -> subprocess.Popen[str]:
    """Start Snakemake in a process group of its own: Ctrl-C reaches only this process, which then
    ends Snakemake."""
    profile = next(iter(plan.specs.values())).profile
    config = [
        "--config",
        f"profile={profile}",
        f"runs={','.join(plan.waiting)}",
        f"published={int(project.published)}",
    ]
    paths = ["--snakefile", str(project.root / "Snakefile"), "--directory", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", *OPTIONS.split(), *paths, *config, *options],
        cwd=project.root,
        env=os.environ | caches(project.runs) | dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


def refuse_failed(plan: Plan, lines: list[str]) -> None:
    """Raise RunError with the runs that failed according to the lines of Snakemake, and print which
    of them ended without a word."""
    errors = re.findall(
        r"^Error in rule run.*?output: \S+?/(\S+)/run\.json", "\n".join(lines), re.M | re.S
    )
    failed = [run for run in plan.waiting if run in errors]
    for run in failed:
        if not any(f"! run {run} " in line for line in lines):
            log = shown(plan.specs[run].folder / "log.txt")
            print(
                f"! run {run} was killed, most often as the memory was full\n! log: {log}",
                flush=True,
            )
    if failed:
        raise RunError(
            f"{len(failed)} failed: {', '.join(failed)}; the same command goes on from there"
        )


# --- figures and pages ----------------------------------------------------------------------------


def draw(project: Project, profile: str, names: list[str], cores: int) -> None:
    """Execute studies of a profile again with the published runs, and copy their figures and tables
    to figures/. `project` must be one that is `published`. Raises RunError that names the studies
    that failed."""
    project.check()
    specs = project.specs(profile)
    drawn = []
    failed = []
    asked = project.asked(profile, names)
    requested = [spec for spec in asked if spec.study]
    if asked and not requested:
        raise RunError(
            f"{' '.join(names)} is no study, and only studies draw figures: "
            "`make figures` draws all of them, `make figures GROUP=study/ast` one; what a run "
            "learned is in its notebook.ipynb and metrics.csv"
        )
    studies = {
        run.name for spec in requested for run in (spec, *spec.parents.values()) if run.study
    }
    plan = Plan({name: spec for name, spec in specs.items() if name in studies and spec.published})
    if not plan.specs:
        remedy = f"`make study`, then `.venv/bin/python -m lib.runs publish {profile} headline`"
        raise RunError(f"no study among {' '.join(names)} is published in {profile}: {remedy}")
    try:
        with warm.kernels() as environment:
            make(project, plan, cores, ["--keep-going"], again=True, environment=environment)
    except RunError as error:
        print(f"! {error}", flush=True)
    for name, spec in plan.specs.items():
        record = read_record(spec.folder)
        if not record:
            failed.append(name)
            continue
        drawn.append(name)
        for artifact in record.artifacts:
            with atomic(FIGURES / Path(artifact).name) as temporary:
                shutil.copyfile(spec.folder / artifact, temporary)
    if failed:
        share = f"{len(failed)} of {len(plan.specs)} studies"
        raise RunError(
            f"{share} failed: {', '.join(failed)}" + ("; the others are drawn" if drawn else "")
        )
    print(f"the figures and tables of {len(drawn)} studies are in {shown(FIGURES)}")


def outdated(project: Project, profile: str, runs: Collection[str]) -> list[str]:
    """A sentence for each finished run of this machine that was made for something else than is
    asked now, such as before its reward was edited. runs: kind/name, without the seed."""
    states: dict[Path, str] = {}
    sentences = []
    if profile not in project.declarations.profiles and (project.runs / profile).is_dir():
        return []  # another model than the declared one, by `make gpu-headline MODEL=...`
    for spec in project.specs(profile).values():
        if spec.run in runs and read_record(spec.folder):
            why = state(spec, states)
            if why not in READABLE:
                sentences.append(
                    f"{spec.name} is out of date ({why}): `make study GROUP={spec.run}` makes it "
                    "again"
                )
    return sentences


def report(project: Project, profile: str) -> Path:
    """Write the website with the studies of a profile. Of each study it takes the execution in
    data/runs, or else that of `figures`. Returns the path of the front page. Raises RunError if no
    study was executed."""
    from lib.study import site  # nbconvert takes a second to import

    studies = []
    for spec in [spec for spec in project.specs(profile).values() if spec.study]:
        folder = project.runs / "reference" / profile / spec.name
        source = "data/reference"
        if spec.state == "done":
            folder = spec.folder
            source = "local runs"
        elif not (spec.published and (folder / "run.json").exists()):
            continue
        page = f"{profile}-{spec.name}.html".replace("/", "-")
        about = f"{spec.run}, profile {profile}, from {source}"
        record = read_record(folder)
        figures = [name for name in record.artifacts if name.endswith(".png")] if record else []
        picture = folder / figures[0] if figures else None
        studies.append(site.Study(page, spec.notebook, folder / "notebook.ipynb", about, picture))
    if not studies:
        raise RunError(f"no study of {profile} has been executed: `make study`, or `make figures`")
    return site.build(studies, FIGURES / "site")
