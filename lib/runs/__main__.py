"""Make runs, look at them, publish their results."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from lib.files import DATA, RUNS, clock, shown, write_table
from lib.runs import make as making
from lib.runs.declare import DeclarationError
from lib.runs.folder import processor, write_json
from lib.runs.hours import expected, show_plan
from lib.runs.machine import PARENT, RunError, cores, die_with_parent, try_lock
from lib.runs.plan import RESULTS, Project, Spec, made_as, other_code, read_record, state

CORES = cores()
PUBLISHED = (
    "metrics.csv",
    *(f"{name}.parquet" for name in ("generations", "trajectories", "calibration")),
)
PUBLISHED += ("exact.parquet", "estimators.parquet", "games.parquet", "checkpoint")
# What other runs read or start from
HELD = ("checkpoint", "generations.parquet", "trajectories.parquet", "exact.parquet")
Cores = Annotated[int, Option(min=1)]
Groups = Annotated[list[str], Argument(help="groups or runs")]
Some = Annotated[list[str] | None, Argument(help="groups or runs; all without", show_default=False)]
app = Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)
project = Project()


@app.command()
def make(
    profile: str,
    groups: Annotated[
        list[str], Argument(help="groups or runs; after --: for Snakemake, as --executor slurm")
    ],
    cores: Cores = CORES,
    machine: Annotated[str, Option(help="where: a folder of lib/runs/machines")] = "local",
) -> None:
    """Make all runs of these groups, or these single runs, that are not finished yet."""
    names = [*takewhile(lambda word: not word.startswith("-"), groups)]
    if not names:
        raise DeclarationError("no group or run is named before the options for Snakemake")
    making.make(
        project,
        project.plan(profile, *" ".join(names).split()),
        cores,
        groups[len(names) :],
        machine,
    )


@app.command()
def plan(profile: str, groups: Groups, cores: Cores = CORES) -> None:
    """Show what `make` would do: the runs, their states, and the time, estimated from recorded
    runs. Starts nothing."""
    names = " ".join(groups).split()  # one argument may hold several names
    plan = project.plan(profile, *names)
    parts = {name: project.plan(profile, name).specs for name in names}
    seconds = expected(project, profile, [plan.specs[run] for run in plan.waiting])
    show_plan(project, plan, seconds, cores, parts if len(names) > 1 else None)


@app.command()
def run(profile: str, run: str, published: bool = False) -> None:
    """Execute one run, by its name with the seed, on this machine at once. Snakemake calls this."""
    from lib.runs.execute import execute  # papermill takes a second to import

    checkout = Project(project.root, published)
    spec = checkout.specs(profile, run)[run]
    try:
        execute(checkout, spec)
    except (
        RunError,
        OSError,
        ValueError,
    ) as error:  # the last two: for example a full disk, a damaged parent
        raise RunError(f"run {run} ({profile}) {error}") from error


@app.command()
def headline(
    groups: Annotated[list[str] | None, Argument(help="groups or runs of profile card")] = None,
    model: Annotated[str, Option(help='a hub name, or a folder; "": that of the profile')] = "",
    cores: Cores = CORES,
    plan: Annotated[
        bool, Option("--plan", help="say what it will take, and start nothing")
    ] = False,
    stage: Annotated[bool, Option("--stage", hidden=True)] = False,
    device: Annotated[str, Option(hidden=True)] = "",
) -> None:
    """Take a pretrained model through SFT, three RLOO runs and their samples on one card, without
    papermill or Snakemake. The same command goes on from where it was stopped."""
    from lib.runs import headline

    names = " ".join(groups or [headline.PROFILE]).split()
    if stage:
        headline.stage(project, names[0], model, device or None)
    else:
        headline.make(project, names, model, cores, plan)


@app.command()
def bundle(
    output: Annotated[Path, Argument(help="a new folder for the parts")],
    model: Annotated[str | None, Option(help='a folder or a hub name; "": none')] = None,
    wheels: Annotated[str, Option(help="packages to pack")] = "",
    have: Annotated[Path | None, Option(help="pip list --format=freeze of that machine")] = None,
    python: Annotated[str, Option(help="the version of Python on that machine")] = "3.12",
) -> None:
    """Pack what `headline` needs for a machine without network, in parts of at most 60 MiB."""
    from lib.runs import bundle

    if model is None:
        model = str(project.declarations.profiles["card"].notebooks["10_train_sft"]["init"])
    bundle.pack(project.root, output.absolute(), model, wheels.split(), have, python)


@app.command()
def status(profile: Annotated[str, Argument()] = "cpu", groups: Some = None) -> None:
    """Print a line for each run of these groups (or each run that was begun), then the number in
    each state by kind."""
    cpu = processor()
    states = {}
    counts = {}
    for spec in project.asked(profile, groups or ["*/*/*"]):
        run_state = state(spec, states)
        times = ""
        count = counts.setdefault(spec.name.partition("/")[0], Counter())
        count["to be made again" if " " in run_state else run_state] += 1
        count["published"] += spec.published
        if run_state == "done" and (record := read_record(spec.folder)):
            other = other_code(project, spec)
            if other is None:
                run_state += ", by unknown code"
            elif other:
                run_state += f", by other code: {', '.join(other)}"
            # equal seeds repeat a run bit by bit on one type of processor only: made here, it would
            # differ
            run_state += ", on another processor" if record.cpu not in (None, cpu) else ""
            times = f"{record.started[:16]}  {clock(record.elapsed):>8}"
        if groups or run_state != "missing":
            print(f"{spec.name:36} {run_state:32} {times}".rstrip())
    for kind, count in counts.items():
        print(
            f"{kind:12} "
            + ", ".join(f"{number} {name}" for name, number in count.most_common() if number)
        )


@app.command()
def check() -> None:
    """Resolve every run in every profile, and read the files of rewards and problems that they
    name. Starts no run."""
    project.check()
    for profile in project.declarations.profiles:
        project.check_own_files(project.specs(profile).values())
    profiles = ", ".join(project.declarations.profiles)
    print(f"all is well with {len(project.expanded())} runs in profiles {profiles}")


@app.command()
def figures(
    profile: Annotated[str, Argument()] = "cpu", groups: Some = None, cores: Cores = CORES
) -> None:
    """Draw the figures and tables of a profile's published studies again from the reference
    results. Trains nothing."""
    making.draw(Project(project.root, published=True), profile, groups or ["study/*"], cores)


@app.command()
def report(profile: Annotated[str, Argument()] = "cpu") -> None:
    """Write the executed studies of a profile as a static website to figures/site. A study that was
    not made on this machine is taken as `figures` executed it."""
    print(f"made {shown(making.report(project, profile))}")


@app.command()
def compare(
    profile: str,
    a: Annotated[str, Argument(help="a method, such as rloo/brief")],
    b: Annotated[str, Argument(help="the method to beat, such as rloo/sparse")],
    csv: Annotated[Path | None, Option(help="write the table to this file")] = None,
) -> None:
    """Say in words what differs between two methods, by their finished samples, own or published.
    Trains and samples nothing."""
    from lib.study import compare

    names = [compare.sampled_as(method) for method in (a, b)]
    outdated = making.outdated(project, profile, names)  # also refuses an unknown profile
    found = compare.compare(a, b, profile)
    print(compare.told(found))
    for line in outdated:
        print(f"! {line}")
    if csv:
        print(compare.save(found, csv))


@app.command()
def documents() -> None:
    """Write the numbers of README.md and notebooks/README.md again, from figures/ and the published
    runs."""
    from lib.study import documents

    documents.refresh()


@app.command()
def spreads() -> None:
    """Make data/spreads.csv again, the spread that methods of few runs borrow, from the published
    samples."""
    from lib.study import spreads

    write_table(spreads.measure(), spreads.TABLE)


@app.command()
def posed() -> None:
    """Make data/paper/posed.csv again: when each claim was written, by the git history, and if
    before its results."""
    from lib.study import posed

    write_table(posed.written(), posed.TABLE)


@app.command()
def removed() -> None:
    """Make data/paper/removed.csv and earlier.csv again: what was published once, by the git
    history. Takes minutes."""
    from lib.study import removed

    gone, earlier = removed.table()
    write_table(gone, removed.REMOVED, rounded=True)
    write_table(earlier, removed.EARLIER, rounded=True)


@app.command()
def rules() -> None:
    """Say in data/paper/rules.csv which answers moved with each change of the rule, from the
    history."""
    from lib.study import rules

    rules.refresh()


@app.command()
def verdicts() -> None:
    """Judge the published samples again after a change of a verifier, and save the verdicts beside
    them."""
    from lib.study import verdicts

    verdicts.refresh()


@app.command()
def clean() -> None:
    """Delete the runs that were made on this machine, and older results of them that were set
    aside. Other files in these places stay."""
    with ExitStack() as stack:
        for lock in (RUNS / ".lock", RUNS / "reference/.lock"):
            if lock.exists() and not try_lock(stack.enter_context(lock.open("a+"))):
                pid = lock.read_text()
                raise RunError(f"process {pid} is making runs here: wait for it, or `kill {pid}`")
        for pattern in ("*/*/*/*", "reference/*/*/*/*", "scratch/*"):
            specs = sorted(RUNS.glob(f"{pattern}/spec.json"))
            for folder in [path.parent for path in specs if is_spec(path)]:
                print(f"{shown(folder)}: {size_mb(folder)}")
                delete(folder)
    caches = (".verdicts", ".cache", ".home", ".snakemake", "reference/.snakemake")
    # on another disk, all but the first may belong to other programs
    is_default = (DATA / "runs").resolve() == RUNS
    for cache in caches if is_default else caches[:1]:
        shutil.rmtree(RUNS / cache, ignore_errors=True)


def delete(folder: Path) -> None:
    """Delete the folder of a run, and those above it that are empty then. What a link points to
    stays."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)
    for parent in takewhile(lambda parent: parent.is_relative_to(RUNS), folder.parents):
        with suppress(OSError):  # it is not empty
            parent.rmdir()


def is_spec(path: Path) -> bool:
    """Whether a spec.json is that of a run, which is not in data/reference: `execute` wrote it, or
    a notebook that was run by hand."""
    with suppress(OSError, ValueError, AttributeError):
        keys = json.loads(path.read_text()).keys()
        if keys >= {"profile", "run", "seed"} or keys >= {"parameters", "inputs"}:
            return not path.resolve().is_relative_to(project.root / "data/reference")
    return False


def size_mb(folder: Path) -> str:
    return (
        f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e6:.2f} MB"
    )


@app.command()
def publish(profile: str, groups: Groups) -> None:
    """Copy finished runs to data/reference: those of their files that studies and other runs
    need."""
    states: dict[Path, str] = {}
    for spec in project.asked(profile, groups):
        if (run_state := state(spec, states)) == RESULTS and spec.published:
            print(f"{spec.name}: stays as it is published, since only its results are here")
            continue
        if run_state != "done":
            remedy = f"`.venv/bin/python -m lib.runs make {profile} {spec.name}`"
            raise RunError(f"{spec.name} is not finished ({run_state}): {remedy}")
        if spec.folder.resolve() == spec.reference.resolve():
            raise RunError(
                f"{spec.name} lies in data/reference already: COUNTDOWN_RUNS must be another folder"
            )
        # at any moment one of the three folders holds all that is published
        temporary = spec.reference.with_name(f".{spec.reference.name}")
        old = temporary.with_name(f"{temporary.name}.old")
        shutil.rmtree(temporary, ignore_errors=True)
        copy_published(spec, temporary)
        if spec.reference.exists():
            shutil.rmtree(old, ignore_errors=True)
            spec.reference.rename(old)
        temporary.rename(spec.reference)
        shutil.rmtree(old, ignore_errors=True)
        print(f"{shown(spec.reference)}: {size_mb(spec.reference)}")


def copy_published(spec: Spec, target: Path) -> None:
    """Copy what is published of a finished run to a new folder."""
    target.mkdir(parents=True)
    for name in PUBLISHED if spec.declaration.keep_checkpoint else PUBLISHED[:-1]:
        path = spec.folder / name
        if path.is_dir():
            shutil.copytree(path, target / name)
        elif path.exists():
            shutil.copyfile(path, target / name)
    verdicts = spec.reference / "verdicts.parquet"
    # they are on these very samples
    if verdicts.exists() and made_as(spec.reference) == made_as(spec.folder):
        shutil.copyfile(verdicts, target / verdicts.name)
    record = json.loads((spec.folder / "run.json").read_text())
    record["files"] = {
        name: entry for name, entry in record["files"].items() if (target / name).exists()
    }
    # runs may lie in another folder (COUNTDOWN_RUNS), whose path means nothing to others
    write_json(target / "run.json", with_prefix(record, f"{shown(project.runs)}/", "data/runs/"))


def with_prefix(value: Any, old: str, new: str) -> Any:
    """Plain data in which each text that begins with `old` begins with `new`."""
    if isinstance(value, dict):
        return {key: with_prefix(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_prefix(inner, old, new) for inner in value]
    if isinstance(value, str) and value.startswith(old):
        return new + value.removeprefix(old)
    return value


@app.command()
def restore(profile: str, groups: Groups) -> None:
    """Copy published runs to data/runs, where they count as finished, unless they exist there. A
    run that was published without its weights is made again once another run is to start from
    it."""
    for spec in project.asked(profile, groups):
        if spec.study:
            print(f"{spec.name}: a study, which `make` draws")
        elif not read_record(spec.reference):
            print(f"{spec.name}: not published")
        elif spec.folder.exists() and any(spec.folder.iterdir()):
            remedy = "" if spec.state == "done" else f"; delete {shown(spec.folder)} to restore it"
            print(f"{spec.name}: stays as it is here, {spec.state}{remedy}")
        else:
            temporary = spec.folder.with_name(f".{spec.folder.name}")  # renamed once it is whole
            shutil.rmtree(temporary, ignore_errors=True)
            copy_restored(spec.reference, temporary)
            temporary.rename(spec.folder)  # which is absent or empty
            print(f"{spec.name}: {spec.state}")


def copy_restored(reference: Path, target: Path) -> None:
    """Copy a published run to a new folder, with the records of a run that was made there."""
    shutil.copytree(reference, target, ignore=shutil.ignore_patterns("verdicts.parquet"))
    record = json.loads((target / "run.json").read_text())
    identity = {key: record[key] for key in ("profile", "run", "seed")}
    if not any((target / name).exists() for name in HELD):
        record["results_only"] = True
        identity["results_only"] = True
    write_json(target / "run.json", record)
    write_json(target / "spec.json", identity)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handle SIGTERM like Ctrl-C
    if PARENT in os.environ:
        parent = os.environ.pop(PARENT)
        die_with_parent(int(parent) if parent.isdigit() else 0)
    try:
        app()
    except (RunError, OSError, ValueError) as error:  # ValueError: also a DeclarationError
        sys.exit("\n".join(f"! {line}" for line in str(error).splitlines()))
