"""The front door.

python -m lib.runs make laptop headline      make a group's runs (or one run), whatever is not finished yet
python -m lib.runs status laptop             which runs are there, and what made them
python -m lib.runs check                     resolve every run in every profile, start nothing
python -m lib.runs figures laptop            all figures again from the reference results, without training
python -m lib.runs publish laptop headline   copy finished runs' results to data/reference
python -m lib.runs run laptop sft            execute one run here and now (what Snakemake calls)
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lib.paths import FIGURES
from lib.runs.front import make
from lib.runs.notebook import atomic, clock, read_table
from lib.runs.plan import DeclarationError, Project, known, lib_digest, read_record, select
from lib.runs.process import RunError, die_with_parent


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lib.runs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

    command = commands.add_parser("make", help="make a group's runs, or one run")
    command.add_argument("profile")
    command.add_argument("group", help="a group or a run")
    command.add_argument("--cores", type=int, default=cores)
    command.add_argument("--with-parent", action="store_true", help="end when the caller (make) ends")
    command.add_argument("snakemake", nargs="*", help="after --: options for Snakemake, as --executor slurm")
    command = commands.add_parser("run", help="execute one run")
    command.add_argument("profile")
    command.add_argument("run")
    command.add_argument("--reference", action="store_true", help="read the reference results")
    commands.add_parser("status", help="list runs").add_argument("profile", nargs="?", default="laptop")
    commands.add_parser("check", help="resolve everything, start nothing")
    command = commands.add_parser("figures", help="figures from the reference results")
    command.add_argument("profile", nargs="?", default="laptop")
    command.add_argument("--cores", type=int, default=cores)
    command = commands.add_parser("publish", help="copy finished runs to data/reference")
    command.add_argument("profile")
    command.add_argument("groups", nargs="+", metavar="group", help="groups or runs")
    arguments = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a polite end cleans up
    project = Project()
    try:
        match arguments.command:
            case "make":
                if arguments.with_parent:
                    die_with_parent()
                make(project, arguments.profile, arguments.group, arguments.cores, arguments.snakemake)
            case "run":
                from lib.runs.execute import execute  # papermill takes a second to import

                die_with_parent()
                specs = project.specs(arguments.profile)
                known(arguments.run, specs, "run")
                execute(project, specs[arguments.run], arguments.reference)
            case "status":
                status(project, arguments.profile)
            case "check":
                project.check()
                profiles = ", ".join(project.declarations.profiles)
                print(f"all is well with {len(project.expanded())} runs in profiles {profiles}")
            case "figures":
                figures(project, arguments.profile, arguments.cores)
            case "publish":
                publish(project, arguments.profile, arguments.groups)
    except (DeclarationError, RunError, OSError) as error:
        print("\n".join(f"! {line}" for line in str(error).splitlines()), file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def status(project: Project, profile: str) -> None:
    """One line a run: its state, what made it, how long it took."""
    code = lib_digest(project.root)
    for name, spec in project.specs(profile).items():
        record, state = read_record(project.folder(spec)), project.state(spec)
        if state == "done" and record["lib"] != code:
            state = "done, by other code in lib/"
        if record is None and project.in_reference(spec):
            state += ", in the reference"
        made = f"{record['started'][:16]}  {clock(record['elapsed']):>8}" if record else ""
        print(f"{name:32} {state:32} {made}")


def figures(project: Project, profile: str, cores: int) -> None:
    """Execute the analyses on the reference results; their figures and tables go to figures/."""
    project.check()
    specs = {name: spec for name, spec in project.specs(profile).items() if spec.declaration.analysis}
    for spec in specs.values():
        for parent in spec.parents:
            if read_record(project.reference / profile / parent) is None:
                if spec.declaration.partial:
                    continue
                remedy = f"`make study`, then `python -m lib.runs publish {profile} {parent}`"
                raise RunError(f"{spec.name} reads data/reference/{profile}/{parent}, which is missing: {remedy}")
            if not project.in_reference(project.specs(profile)[parent]):
                print(f"note: the reference run {parent} was made with other parameters or notebook code")

    def one(name: str) -> None:
        command = [sys.executable, "-m", "lib.runs", "run", profile, name, "--reference"]
        done = subprocess.run(command, cwd=project.root, capture_output=True, text=True)
        if done.returncode:
            raise RunError(done.stderr.replace("! ", "").strip())

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(one, specs))
    for name in specs:
        folder = project.runs / "reference" / profile / name
        for artifact in read_record(folder)["artifacts"]:
            target = FIGURES / Path(artifact).name
            with atomic(target) as temporary:
                shutil.copyfile(folder / artifact, temporary)
            print(f"made {target.relative_to(project.root)}")


def publish(project: Project, profile: str, groups: list[str]) -> None:
    """Copy what analyses and other runs need of finished runs; refuses a run of other parameters."""
    specs = project.specs(profile)
    patterns = [name for group in groups for name in project.declarations.groups.get(group, [group])]
    for name in select(patterns, specs, "publish"):
        spec, folder = specs[name], project.folder(specs[name])
        if project.state(spec) != "done":
            remedy = f"`python -m lib.runs make {profile} {name}`"
            raise RunError(f"{name} is not finished ({project.state(spec)}): {remedy}")
        target = project.reference_folder(spec)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if (folder / "metrics.csv").exists():
            shutil.copyfile(folder / "metrics.csv", target / "metrics.csv")
        if (folder / "generations.parquet").exists():
            table = distinct(read_table(folder / "generations.parquet"))
            with atomic(target / "generations.parquet") as path:
                table.to_parquet(path, index=False, compression="zstd", compression_level=19)
        if spec.declaration.keep_checkpoint:
            shutil.copytree(folder / "checkpoint", target / "checkpoint")
        shutil.copyfile(folder / "run.json", target / "run.json")
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        print(f"data/reference/{profile}/{name}: {size / 1e6:.2f} MB")


def distinct(generations):
    """Equal completions of a problem once, with their `count`; the sample's number goes."""
    keys = [key for key in ("set", "problem", "completion", "finish") if key in generations]
    groups = generations.groupby(keys, sort=False)
    first = generations.drop(columns="sample", errors="ignore").drop_duplicates(keys)
    return first.assign(count=groups[keys[0]].transform("size").loc[first.index])


if __name__ == "__main__":
    sys.exit(main())
