"""The front door: make runs, look at them, publish their results."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import takewhile
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from lib.files import FIGURES, RUNS, atomic, clock, shown
from lib.runs import front
from lib.runs.folder import processor, write_json
from lib.runs.hashes import lib_digest
from lib.runs.plan import DeclarationError, Project, Spec, read_record, state
from lib.runs.process import PARENT, RunError, cores, die_with_parent

CORES = cores()
PUBLISHED = (  # run.json last, that all is there
    *("generations.parquet", "metrics.csv", "trajectories.parquet", "calibration.parquet", "exact.parquet"),
    "estimators.parquet",
)
ALL = "all"  # in a profile's place
Cores = Annotated[int, Option(min=1)]
Groups = Annotated[list[str], Argument(help="groups or runs")]
Some = Annotated[list[str] | None, Argument(help="groups or runs; all without", show_default=False)]
app = Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)
project = Project()


@app.command()
def make(
    profile: str,
    groups: Annotated[list[str], Argument(help="groups or runs; after --: for Snakemake, as --executor slurm")],
    cores: Cores = CORES,
    machine: Annotated[str, Option(help="where: a folder of lib/runs/machines")] = "local",
) -> None:
    """Make the runs of groups, or single runs: whatever is not finished yet."""
    try:
        names = [*takewhile(lambda word: not word.startswith("-"), groups)]
        if not names:
            raise DeclarationError("no group or run is named before the options for Snakemake")
        front.make(project, profile, names, cores, groups[len(names) :], machine)
    except KeyboardInterrupt as stop:
        print(f"\nstopped{stop}; the same command goes on from here", file=sys.stderr)
        raise


@app.command()
def plan(profile: str, groups: Groups, cores: Cores = CORES) -> None:
    """What `make` would do: the runs, what is there, and the time by recorded runs. Starts nothing."""
    asked = project.plan(profile, *groups)
    seconds = front.expected(project, profile, [asked.specs[run] for run in asked.waiting])
    front.show_plan(project, asked, seconds, cores)


@app.command()
def run(profile: str, run: str) -> None:
    """Execute one run here and now (what Snakemake calls)."""
    from lib.runs.execute import execute  # papermill takes a second to import

    names = project.asked(profile, [run])
    if len(names) > 1:
        raise DeclarationError(
            f"{run} is {len(names)} runs, and `run` executes one: {', '.join(names[:4])} ...; or `make`"
        )
    spec = project.specs(profile)[names[0]]
    try:
        project.check_own_rewards([spec])
        execute(project, spec)
    except (OSError, ValueError) as error:  # a full disk, a damaged parent
        raise RunError(f"run {spec.name}: {error}") from error


@app.command()
def status(profile: Annotated[str, Argument()] = "cpu", groups: Some = None) -> None:
    """How many runs of each kind are in which state, then a line a run: of groups, or of all that were begun."""
    asked = [project.specs(profile)[name] for name in project.asked(profile, groups or ["*/*/*"])]
    known, here, code, lines = {}, processor(), lib_digest(project.root), []
    states = {spec.name: state(spec, known) for spec in asked}
    for spec in asked:
        now, when = states[spec.name], ""
        if now == "done":
            record = read_record(spec.folder)
            now += ", by other code in lib/" if record.get("lib") != code else ""
            now += ", on another processor" if record.get("cpu") not in (None, here) else ""
            when = f"{record.get('started', '')[:16]}  {clock(record['elapsed']):>8}"
        if groups or now != "missing":
            lines.append(f"{spec.name:36} {now:32} {when}".rstrip())
    for kind in dict.fromkeys(spec.name.partition("/")[0] for spec in asked):
        of_kind = [states[spec.name] for spec in asked if spec.name.startswith(f"{kind}/")]
        plain = ("done", "missing", "unfinished")
        found = Counter(state if state in plain else "to be made again" for state in of_kind)
        published = sum((spec.reference / "run.json").exists() for spec in asked if spec.name.startswith(f"{kind}/"))
        counts = ", ".join(f"{number} {state}" for state, number in found.most_common())
        print(f"{kind:12} {found.total():>4} runs: {counts}" + (f"; {published} published" if published else ""))
    print("\n".join(["", *lines]) if lines else "\nnone of them was begun here")
    if any("on another processor" in line for line in lines):
        print("\nequal seeds repeat bit by bit on one kind of processor: here these runs would be other draws")


@app.command()
def check() -> None:
    """Resolve every run in every profile, run the files of rewards that they name, start nothing else."""
    project.check()
    for profile in project.declarations.profiles:
        project.check_own_rewards(project.specs(profile).values())
    print(f"all is well with {len(project.expanded())} runs in profiles {', '.join(project.declarations.profiles)}")


@app.command()
def figures(profile: Annotated[str, Argument()] = ALL, groups: Some = None, cores: Cores = CORES) -> None:
    """Figures and tables again from the reference results, without training: those of published studies, of a profile
    or of all."""
    published = Project(project.root, published=True)
    published.check()
    drawn: list[Spec] = []
    for one in profiles(profile):
        every = published.specs(one)
        asked = [every[name] for name in published.asked(one, groups or ["study/*"])]
        studies = {s.name: s for spec in asked if spec.study for s in (spec, *spec.parents.values()) if s.study}
        drawn += [spec for spec in studies.values() if (spec.reference / "run.json").exists()]
        if not studies:
            raise RunError(
                f"figures are drawn by studies, and {' '.join(groups or [])} holds none: try `make figures` for all"
            )
    if not drawn:
        where = "data/reference" if profile == ALL else f"data/reference/{profile}"
        remedy = "`make study`, then `python -m lib.runs publish cpu headline`"
        raise RunError(f"no study is in {where}, neither {' nor '.join(studies)}: {remedy}")
    if failed := draw_all(published, drawn, cores):
        raise RunError(f"{len(failed)} of {len(drawn)} studies failed, the others are drawn: {', '.join(failed)}")


def profiles(name: str) -> list[str]:
    """One profile, or all by name."""
    return sorted(project.declarations.profiles) if name == ALL else [name]


def draw_all(published: Project, specs: list[Spec], cores: int) -> list[str]:
    """Draw studies side by side, the longest first, and say why some fail; these. What reads another study comes last,
    and not at all where that one failed; the comparison also reads what studies of another profile answered."""
    seconds, failed = {}, []
    for one in dict.fromkeys(spec.profile for spec in specs):
        of_profile = [spec for spec in specs if spec.profile == one]
        seconds |= {(one, name): took for name, took in front.expected(published, one, of_profile).items()}
    longest = sorted(specs, key=lambda spec: -seconds.get((spec.profile, spec.name), 0))
    reads = [any(parent.study for parent in spec.parents.values()) for spec in longest]
    try:
        with ProcessPoolExecutor(cores, get_context("fork"), die_with_parent) as pool:
            try:
                for last in (False, True):
                    some = [spec for spec, late in zip(longest, reads, strict=True) if late == last]
                    tasks = {pool.submit(draw, published, spec, [*failed]): spec.name for spec in some}
                    for made in as_completed(tasks):
                        try:
                            print(made.result(), flush=True)
                        except (DeclarationError, RunError, OSError) as error:
                            failed.append(name := tasks[made])
                            tell(error if name in str(error) else f"{name}: {error}")
            except KeyboardInterrupt:
                for worker in active_children():  # the pool would wait for them
                    worker.kill()
                raise
    except BrokenProcessPool as error:
        raise RunError("a study was killed, most often as the memory was full: `figures --cores 1`") from error
    return failed


def draw(published: Project, spec: Spec, failed: list[str]) -> str:
    """Make a study from what is published and put its figures and tables into figures/; what that took."""
    from lib.runs.execute import execute

    if missing := [name for name in failed if name in spec.parents]:
        raise RunError(f"{spec.name} is not drawn: it reads {', '.join(missing)}")
    print(f"{spec.run}: executing {spec.notebook}", flush=True)
    execute(published, spec)
    record = read_record(spec.folder)
    for artifact in record["artifacts"]:
        with atomic(FIGURES / Path(artifact).name) as temporary:
            shutil.copyfile(spec.folder / artifact, temporary)
    return f"{spec.run}: made {len(record['artifacts'])} files in {shown(FIGURES)}, {clock(record['elapsed'])}"


@app.command()
def report(profile: Annotated[str, Argument()] = ALL) -> None:
    """The executed studies as a static site under figures/site: local ones, else those that `figures` executed."""
    from lib.runs.report import report  # nbconvert takes a second to import

    print(f"made {shown(report(project, profiles(profile)))}")


@app.command()
def clean() -> None:
    """Delete the runs that were made here, with what was set aside of them, and nothing else that lies there."""
    places = ("*/*/*/*", "reference/*/*/*/*", "scratch/*")
    names = ("spec.json", "run.json", "run.before.json")
    records = [path for place in places for name in names for path in RUNS.glob(f"{place}/{name}") if is_record(path)]
    for folder in sorted({path.parent for path in records}):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{shown(folder)}: {size / 1e6:.1f} MB")
        shutil.rmtree(folder)
        for parent in takewhile(lambda parent: parent.is_relative_to(RUNS), folder.parents):
            with suppress(OSError):  # it holds something else
                parent.rmdir()
    for cache in (".verdicts", ".cache", ".home", ".snakemake"):
        shutil.rmtree(RUNS / cache, ignore_errors=True)


def is_record(path: Path) -> bool:
    """Whether a file is a record that the runner, or a notebook run by hand, wrote for a run that is not published."""
    try:
        keys = json.loads(path.read_text()).keys()
    except (OSError, ValueError, AttributeError):
        return False
    ours = keys >= {"profile", "run", "seed"} or keys >= {"parameters", "inputs"}
    return ours and not path.resolve().is_relative_to(project.root / "data/reference")


@app.command()
def publish(profile: str, groups: Groups) -> None:
    """Copy what studies and other runs need of finished runs to data/reference."""
    known: dict[Path, str] = {}
    for spec in (project.specs(profile)[name] for name in project.asked(profile, groups)):
        if (now := state(spec, known)) != "done":
            remedy = f"`python -m lib.runs make {profile} {spec.name}`"
            raise RunError(f"{spec.name} is not finished ({now}): {remedy}")
        if spec.folder.resolve() == spec.reference.resolve():
            raise RunError(f"{spec.name} lies in data/reference already: COUNTDOWN_RUNS must be another folder")
        record, half = read_record(spec.folder), spec.reference.with_name(f".{spec.reference.name}")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        if spec.declaration.keep_checkpoint:
            shutil.copytree(spec.folder / "checkpoint", half / "checkpoint")
        for file in PUBLISHED:
            if (spec.folder / file).exists():
                shutil.copyfile(spec.folder / file, half / file)
        files = {name: entry for name, entry in record["files"].items() if (half / name).exists()}
        write_json(half / "run.json", record | {"files": files})
        shutil.rmtree(spec.reference, ignore_errors=True)  # what was published before goes once all is copied
        half.rename(spec.reference)
        size = sum(path.stat().st_size for path in spec.reference.rglob("*") if path.is_file())
        print(f"{shown(spec.reference)}: {size / 1e6:.2f} MB")


@app.command()
def restore(profile: str, groups: Groups) -> None:
    """Copy published runs that are not here to data/runs, where they count as finished: those that were published
    whole, with what others read or start from."""
    for spec in (project.specs(profile)[name] for name in project.asked(profile, groups)):
        record, held = read_record(spec.reference), ("checkpoint", "generations.parquet", "trajectories.parquet")
        if not record or not any((spec.reference / name).exists() for name in held):
            print(f"{spec.name}: not published, or without what others need of it")
        elif spec.folder.exists() and any(spec.folder.iterdir()):
            print(f"{spec.name}: stays as it is here, {spec.state}")
        else:
            aside = shutil.ignore_patterns("verdicts")
            shutil.copytree(spec.reference, spec.folder, ignore=aside, dirs_exist_ok=True)
            write_json(spec.folder / "spec.json", {key: record[key] for key in ("profile", "run", "seed")})
            print(f"{spec.name}: {spec.state}")


def tell(error: Exception | str) -> None:
    print("\n".join(f"! {line}" for line in str(error).splitlines()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite end says and does what Ctrl-C does
    if PARENT in os.environ:
        parent = os.environ.pop(PARENT)
        die_with_parent(int(parent) if parent.isdigit() else 0)
    try:
        app()
    except (DeclarationError, RunError, OSError) as error:
        tell(error)
        sys.exit(1)
