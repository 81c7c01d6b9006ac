"""The front door: make runs, look at them, publish their results."""

import os
import shutil
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from lib.files import atomic, clock, read_table, shown
from lib.paths import FIGURES
from lib.runs import front
from lib.runs.plan import DeclarationError, Project, as_json, digest, lib_digest, read_record
from lib.runs.process import RunError, die_with_parent

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
Parent = Annotated[int, Option(help="process id of the caller, to end when that ends")]
Groups = Annotated[list[str], Argument(help="groups or runs")]
app = Typer(help=__doc__, add_completion=False)
project = Project()


@app.command()
def make(
    profile: str,
    groups: Annotated[list[str], Argument(help="groups or runs; after --: for Snakemake, as --executor slurm")],
    cores: int = CORES,
    machine: Annotated[str, Option(help="where: a folder of lib/runs/machines")] = "local",
    parent: Parent = 0,
) -> None:
    """Make the runs of groups, or single runs: whatever is not finished yet."""
    if parent:
        die_with_parent(parent)
    try:
        names = [*takewhile(lambda word: not word.startswith("-"), groups)]
        if not names:
            raise DeclarationError("no group or run is named before the options for Snakemake")
        front.make(project, profile, names, cores, groups[len(names) :], machine)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        raise


@app.command()
def plan(profile: str, groups: Groups, cores: int = CORES) -> None:
    """What `make` would do: the runs, what is there, and the time by recorded runs. Starts nothing."""
    asked = project.plan(profile, *groups)
    front.show_plan(asked, front.expected(project, asked), cores)


@app.command()
def run(
    profile: str,
    run: str,
    reference: Annotated[bool, Option(help="on the reference results")] = False,
    parent: Parent = 0,
) -> None:
    """Execute one run here and now (what Snakemake calls)."""
    from lib.runs.execute import execute  # papermill takes a second to import

    die_with_parent(parent)
    [name] = project.asked(profile, [run])
    execute(project, project.specs(profile)[name], reference)


@app.command()
def status(profile: Annotated[str, Argument()] = "laptop") -> None:
    """One line a run: its state, what made it, how long it took."""
    code = lib_digest(project.root)
    for name, spec in project.specs(profile).items():
        record, state = read_record(spec.folder), spec.state
        if state == "done" and record["lib"] != code:
            state = "done, by other code in lib/"
        if record is None and spec.in_reference:
            state += ", in the reference"
        made = f"{record['started'][:16]}  {clock(record['elapsed']):>8}" if record else ""
        print(f"{name:36} {state:36} {made}")


@app.command()
def check() -> None:
    """Resolve every run in every profile, start nothing."""
    project.check()
    print(f"all is well with {len(project.expanded())} runs in profiles {', '.join(project.declarations.profiles)}")


@app.command()
def figures(
    profile: Annotated[str, Argument()] = "laptop",
    groups: Annotated[list[str], Argument(help="analyses, or groups with some; all without", show_default=False)] = (),
    cores: int = CORES,
) -> None:
    """Figures and tables again from the reference results, without training: those of published analyses."""
    project.check()
    every = project.specs(profile)
    asked = [every[name] for name in project.asked(profile, groups or ["*"])]
    read = [parent for spec in asked if spec.declaration.analysis for parent in spec.parents.values()]
    analyses = {spec.name: spec for spec in (*asked, *read) if spec.declaration.analysis}  # what they read comes along
    specs = {name: spec for name, spec in analyses.items() if read_record(spec.reference)}
    if not analyses:
        raise RunError(f"figures are drawn by analyses, and {' '.join(groups)} holds none: try `make figures` for all")
    if not specs:
        remedy = f"`make study`, then `python -m lib.runs publish {profile} headline`"
        raise RunError(f"no analysis is in data/reference/{profile}, neither {' nor '.join(analyses)}: {remedy}")
    for parent in {name: parent for spec in specs.values() for name, parent in spec.parents.items()}.values():
        if read_record(parent.reference) and not parent.in_reference:
            print(f"note: the reference run {parent.name} was made with other parameters or notebook code")

    from lib.runs.execute import execute  # here, so that what is forked below need not import it again

    last = {name for name, spec in specs.items() if any(one.declaration.analysis for one in spec.parents.values())}
    longest = sorted(specs.keys() - last, key=lambda name: -read_record(specs[name].reference)["elapsed"])
    try:
        with ProcessPoolExecutor(cores, get_context("fork"), die_with_parent) as pool:
            for names in (longest, last):  # what reads other analyses comes last
                list(pool.map(partial(execute, project, reference=True), [specs[name] for name in names]))
    except BrokenProcessPool as error:
        raise RunError("an analysis was killed; most often the memory was full: `figures --cores 1`") from error
    for name in specs:
        folder = specs[name].remade
        for artifact in read_record(folder)["artifacts"]:
            target = FIGURES / Path(artifact).name
            with atomic(target) as temporary:
                shutil.copyfile(folder / artifact, temporary)
            print(f"made {shown(target)}")


@app.command()
def report(profile: Annotated[str, Argument()] = "laptop") -> None:
    """The executed analyses as a static site under figures/site: local ones, else those that `figures` executed."""
    from lib.runs.report import report  # nbconvert takes a second to import

    print(f"made {shown(report(project, profile))}")


@app.command()
def publish(profile: str, groups: Groups) -> None:
    """Copy what analyses and other runs need of finished runs to data/reference."""
    specs = project.specs(profile)
    for spec in (specs[name] for name in project.asked(profile, groups)):
        folder, target = spec.folder, spec.reference
        if spec.state != "done":
            remedy = f"`python -m lib.runs make {profile} {spec.name}`"
            raise RunError(f"{spec.name} is not finished ({spec.state}): {remedy}")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if (folder / "generations.parquet").exists():
            table = read_table(folder / "generations.parquet")
            with atomic(target / "generations.parquet") as path:
                table.to_parquet(path, index=False, compression="zstd", compression_level=19)
        if spec.declaration.keep_checkpoint:
            shutil.copytree(folder / "checkpoint", target / "checkpoint")
        for file in ("metrics.csv", "trajectories.parquet", "run.json"):  # last what says that all is there
            if (folder / file).exists():
                shutil.copyfile(folder / file, target / file)
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        print(f"{shown(target)}: {size / 1e6:.2f} MB")


@app.command()
def stamp(profile: str, groups: Groups) -> None:
    """Published runs become runs of the present notebooks, where parameters are the same: after an edit that changes
    none of their results."""
    specs, before = project.specs(profile), {}
    for spec in specs.values():  # parents first, whose run.json changes
        record, path = read_record(spec.reference), spec.reference / "run.json"
        if record is None:
            continue
        before[spec.name] = digest(path)
        if spec.name in project.asked(profile, groups):
            old = project.notebook(spec.notebook)[0] | record["parameters"]
            if other := [key for key, value in spec.params.items() if old[key] != value]:
                raise RunError(f"{shown(spec.reference)} was made with another {', '.join(other)}: make it again")
            record |= {"code": spec.code, "fingerprint": spec.fingerprint}
        parents = {name: digest(specs[name].reference / "run.json") for name in record["parents"] if name in before}
        record["parents"] |= {name: new for name, new in parents.items() if record["parents"][name] == before[name]}
        with atomic(path) as temporary:
            temporary.write_text(as_json(record))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a polite end cleans up
    try:
        app()
    except (DeclarationError, RunError, OSError) as error:
        print("\n".join(f"! {line}" for line in str(error).splitlines()), file=sys.stderr, flush=True)
        sys.exit(1)
