"""Execute one run: one notebook in a process of its own. It locks its folder, and a GPU if there is
one.

`lib.runs.kernel` executes the notebook's cells by papermill, `lib.runs.plain` without it."""

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

from lib.files import clock, sha256, shown
from lib.runs import code
from lib.runs.folder import content, provenance, read_spec, set_aside, write_json
from lib.runs.hashes import Asked, Given, differences, inputs
from lib.runs.machine import RunError, caches, gpu, locked
from lib.runs.plan import RESULTS, Project, Spec, made_as, read_record, state

# the runner's own files in a run's folder
OURS = {"spec.json", "run.json", "log.txt", "notebook.ipynb", code.FILE}


class Description(Asked):
    """The first part of a run's spec.json and of its run.json."""

    profile: str
    run: str
    method: str
    seed: int
    parents: dict[str, str | None]  # the `id` of each, by its full name


class Entry(TypedDict):
    """A file in run.json."""

    bytes: int
    sha256: str


class Usage(NamedTuple):
    """What the kernel of a run has used."""

    core_seconds: float  # without its imports, if it was forked from a process that had them
    memory: int  # bytes at most, shared memory included


# executes the cells of a run with its parameters, on a GPU if one is named
Runner = Callable[[Project, Spec, Given, str | None], Usage]


def execute(
    project: Project, spec: Spec, run: Runner | None = None, device: str | None = None
) -> None:
    """Make one run in its folder. An unfinished run of the same spec is resumed; results of another
    spec are set aside. Raises RunError if the run fails, with the cell and the log.

    run: what executes the notebook; papermill, unless another is given. device: a GPU that the
    caller has locked, which several runs may share; without it the run locks one for itself."""
    if run is None:
        from lib.runs.kernel import run_notebook as run  # papermill takes a second to import
    # 1. Find the parents, and lock the folder and a GPU
    parents = finished_parents(project, spec)
    folder = spec.folder
    folder.mkdir(parents=True, exist_ok=True)
    reserved = nullcontext(device) if spec.study or device else gpu()
    with locked(folder, spec.name), reserved as device:
        if not project.published and spec.state == "done":
            print(f"> {spec.name}: another process has just finished it", flush=True)
            return
        # 2. Write down what the run begins with
        description = describe(project, spec, parents)
        maker = provenance(project.root, device) | {"code": spec.code}
        stretches, earlier_seconds = prepare(folder, description, maker, spec.study, spec.defaults)
        print(f"> begun {spec.name}, its log is {shown(folder / 'log.txt')}", flush=True)
        # 3. Execute the notebook
        start = time.monotonic()
        usage = run(project, spec, description["parameters"], device)
        seconds = time.monotonic() - start
        # saved states for resuming: gigabytes, no longer needed
        shutil.rmtree(folder / "trainer", ignore_errors=True)
        # 4. Record what was made, by what, and in what time
        stretches[-1] |= executed(folder, project.notebook(spec.notebook)[1])
        elapsed = earlier_seconds + seconds
        outcome = made_by(stretches, spec.declaration.threads, hub_commits(folder)) | {
            "artifacts": artifacts(folder),
            "files": files_made(folder),
            "status": "finished",
            "elapsed": round(elapsed, 1),  # the sum over all stretches, if the run was resumed
            # measured in this stretch only; earlier stretches are assumed to have used the cores
            # equally
            "core_seconds": round(usage.core_seconds * elapsed / seconds, 1),
            "peak_memory_mb": round(usage.memory / 2**20),
        }
        write_json(folder / "run.json", {**description, **outcome})
        print(f"> made {spec.name} in {clock(elapsed)}", flush=True)


def made_by(stretches: list[dict], threads: int, hub: list[str]) -> dict[str, object]:
    """What a record says of how its run was made. `hub`: what was loaded from the hub."""
    made = {"id": secrets.token_hex(8), "threads": threads}  # runs record the ids of their parents
    made |= stretches[0]
    if hub:
        made["hub"] = hub
    if stretches[1:]:  # with other code, packages or processors
        made["resumed_by"] = stretches[1:]
    return made


def hub_commits(folder: Path) -> list[str]:
    """The models and sets that a run says it has loaded from the hub, as name@commit."""
    log = (folder / "log.txt").read_text(errors="replace")
    return sorted({*re.findall(r"(?:base model|hub set): (\S+@\w+)", log)})


def artifacts(folder: Path) -> list[str]:
    """The figures and tables that a run has reported, by their names in its folder."""
    path = folder / "artifacts.txt"
    return path.read_text().splitlines() if path.exists() else []


def files_made(folder: Path) -> dict[str, Entry]:
    """The entry of each file that a run has left in its folder, by its name there. Hidden files and
    the runner's own are none of its results."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_hidden = "/." in f"/{name}"
        if path.is_file() and not is_hidden and name not in OURS:
            entries[name] = described(path)
    return entries


def described(path: Path) -> Entry:
    """The entry of a file in run.json. Its length is compared whenever the state of the run is
    computed, its hash when the file is read."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def finished_parents(project: Project, spec: Spec) -> dict[str, Spec]:
    """The parents that are finished. Raises RunError if one is not; a study needs only one of its
    parents."""
    finished = {}
    states = {}
    command = f".venv/bin/python -m lib.runs make {spec.profile}"
    for name, parent in spec.parents.items():
        parent_state = (
            "done" if project.published and read_record(parent.folder) else state(parent, states)
        )
        ready = parent_state == "done" or (spec.study and parent_state == RESULTS)
        # a run.json of `figures` may be outdated
        if ready and (parent.published or not project.published):
            finished[name] = parent
        elif not spec.study:
            raise RunError(
                f"it needs {name}, which is not finished ({parent_state}): `{command} {name}`"
            )
    if spec.parents and not finished:
        remedy = f"`{command} {next(iter(spec.parents))} {spec.name}`"
        raise RunError(
            "it has nothing to read: no run that it compares is finished; ask for some too: "
            f"{remedy}"
        )
    return finished


def describe(project: Project, spec: Spec, parents: dict[str, Spec]) -> Description:
    """The description of a run, which is the first part of its spec.json and of its run.json."""
    parameters = dict(spec.params)
    for key, value in spec.declaration.needs.items():
        if isinstance(value, list):
            parameters[key] = [shown(parents[name].folder) for name in value if name in parents]
        elif value in parents:
            parameters[key] = shown(parents[value].folder)
    return {
        "profile": spec.profile,
        "run": spec.run,
        "method": spec.method,
        "notebook": spec.notebook,
        "seed": spec.params["seed"],
        "parameters": parameters | {"output": shown(spec.folder)},
        "inputs": inputs(parameters, project.root),
        "parents": {name: made_as(parent.folder) for name, parent in parents.items()},
    }


def prepare(
    folder: Path,
    began: Description,
    maker: dict,
    study: bool,
    defaults: Given,
) -> tuple[list[dict], float]:
    """Prepare a folder for a run. A stretch is the time from one start of the run to its end or
    interruption. Returns the provenance of each stretch, this one included, and the seconds that
    earlier stretches took. `defaults`: all parameters of the notebook, for a spec from before one
    of them existed.

    Results of another spec are set aside, but a study, which only reads runs, is made again in the
    same folder. If the folder has files and no spec.json that names this run, nothing is touched,
    and RunError names one of the files."""
    began = json.loads(json.dumps(began))
    old_spec = read_spec(folder)
    name = f"{began['run']}/{began['seed']}"
    refuse_foreign(folder, began, old_spec)
    results = [path for path in content(folder) if path.name not in OURS - {"run.json"}]
    maker |= {"started": datetime.now(UTC).isoformat(timespec="seconds")}
    stretches = [maker]
    earlier_seconds = 0.0
    if old_spec and not study and goes_on(old_spec, began, defaults):
        stretches = continued(folder, old_spec, maker, name)
        # an interrupted stretch is assumed to have lasted until its newest file was written
        newest = max(path.stat().st_mtime for path in folder.rglob("*") if path.exists())
        since = old_spec.get("since", newest)
        earlier_seconds = old_spec.get("spent", 0.0) + max(newest - since, 0.0)
    elif results and not study:
        old = shown(set_aside(folder))
        why = "begun with other parameters, files or parents"
        if old_spec and old_spec.get("results_only"):
            why = "restored without weights"
        print(f"> {name}: {why}; starts anew", flush=True)
        print(f"> {name}: what it had made is now in {old}", flush=True)
    for leftover in ("run.json", "artifacts.txt", code.FILE):
        (folder / leftover).unlink(missing_ok=True)
    notes = {"made_by": stretches, "spent": earlier_seconds, "since": time.time()}
    write_json(folder / "spec.json", {**began, **notes})
    return stretches, earlier_seconds


def refuse_foreign(folder: Path, began: Description, old_spec: dict | None) -> None:
    """Raise RunError if a folder has files and was not begun by this run."""
    files = content(folder)
    keys = ("profile", "run", "seed")
    # of a damaged spec nobody knows whose it is
    is_ours = old_spec is not None and (
        not old_spec or all(old_spec.get(key) == began[key] for key in keys)
    )
    if files and not is_ours:
        others = [path for path in files if path.name != "spec.json"]
        name = f"{began['run']}/{began['seed']}"
        raise RunError(
            f"{shown((others or files)[0])} was not made by run {name}, whose folder it lies in: "
            "move it away"
        )


def continued(folder: Path, old_spec: dict, maker: dict, name: str) -> list[dict]:
    """The provenance of the earlier stretches of a run that goes on, and of this one if it differs
    from the last."""
    stretches = old_spec.get("made_by") or [maker]
    last = stretches[-1]
    differing = [key for key, value in maker.items() if key != "started" and last.get(key) != value]
    if not differing:
        return stretches
    what = ", ".join(differing)
    print(f"> {name}: goes on, though {what} differ from when it was begun", flush=True)
    stretches[-1] |= executed(folder)
    return [*stretches, maker]


def goes_on(old_spec: dict, began: Description, defaults: Given) -> bool:
    """Whether what was begun in a folder is what is asked for now. An edited notebook or lib/ is no
    difference: each stretch of a run is recorded with its code."""
    if not {"notebook", "parameters", "parents"} <= old_spec.keys():
        return False
    return old_spec["parents"] == began["parents"] and not differences(
        cast(Asked, old_spec), began, defaults
    )


def executed(folder: Path, cells: list[str] | None = None) -> dict[str, dict[str, str]]:
    """What the last kernel in a folder has left about its code, and the hash of its notebook's
    `cells`. {} if it left nothing, since its notebook did not call `Run`."""
    try:
        hashes = json.loads((folder / code.FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {"executed": hashes | ({"notebook": code.notebook_hash(cells)} if cells else {})}


def surroundings(project: Project, spec: Spec, device: str | None) -> dict[str, str]:
    """The environment variables of what executes a notebook."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **caches(project.runs),
        **dict.fromkeys(threads, str(spec.declaration.threads)),
        "PYTHONPATH": os.pathsep.join(
            [str(project.root), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "COUNTDOWN_ROOT": str(project.root),  # `Run` checks that lib is imported from here
        "TOKENIZERS_PARALLELISM": "false",
        "SOURCE_DATE_EPOCH": "0",  # no dates in PDFs
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **({"HF_HUB_OFFLINE": "1"} if project.declarations.profiles[spec.profile].offline else {}),
        # on a GPU, memory freed by batches of one length can serve batches of another
        "PYTORCH_ALLOC_CONF": os.environ.get("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
        **(
            dict.fromkeys(("CUDA_VISIBLE_DEVICES", "COUNTDOWN_GPU"), device)
            if device is not None
            else {}
        ),
    }
