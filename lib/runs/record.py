"""`make record METHOD=...`: what a method reaches within a budget, over five seeds, under the study's own evaluator.

An entry is a run of papermill_runs.yaml with a sampling run beside it. Its line of RECORDS.md is read off results that
were made here or are published. What is no fair entry is refused: see `evaluated` and `spent`.
"""

from pathlib import Path

import pandas as pd
import pyarrow.parquet

from lib.files import ROOT, atomic, shown
from lib.intervals import estimates
from lib.judging import games, samples
from lib.metrics import counts, problem_scores, searched, text_scores
from lib.problem import FILES, from_file, keys, problems
from lib.runs import front
from lib.runs.plan import Project, Spec, known, read_record
from lib.runs.process import RunError

SEEDS, CORE_MINUTES, SET = 5, 60, "heldout_1000"
STUDY = "sample/sft_free/0"  # whose notebook and settings are the evaluator of its profile
START = "sft/free/0"
EVALUATOR = ("temperature", "top_p", "top_k", "max_tokens", "limit")
SEARCH, GAME = "16_search", {"beams": 1, "samples": 1}  # an agent's sample is a game, played without a search
RECORDS, END = ROOT / "RECORDS.md", "<!-- records: end -->"


def record(project: Project, profile: str, method: str, cores: int) -> str:
    """Make what is missing of an entry and put its line into RECORDS.md; the line. Raises RunError for what is no
    entry."""
    if missing := [spec.name for spec in evaluated(project, profile, method) if finished(spec) is None]:
        front.make(project, profile, missing, cores, [])
    told, rows = line(profile, method, evaluated(project, profile, method)), RECORDS.read_text().splitlines()
    before = [row for row in rows if row.startswith(told.partition(" | ")[0] + " |")]
    about = before[0].rsplit(" | ", 1)[1] if before else " |"  # a sentence of the entry's author
    rows = [row for row in rows if row not in before]
    rows.insert(rows.index(END), f"{told} | {about}")
    with atomic(RECORDS) as path:
        path.write_text("\n".join(rows) + "\n")
    return told


def evaluated(project: Project, profile: str, method: str) -> list[Spec]:
    """The sampling runs of a method, a seed each. Raises RunError for fewer than SEEDS of them, another notebook or
    other settings than the profile's own evaluator, and training on a problem of an evaluation set."""
    specs = project.specs(profile)
    known(method, dict.fromkeys(spec.method for spec in specs.values()), "method")
    study = specs[STUDY]
    drawn = [spec for spec in specs.values() if spec.method == method and SET in spec.params.get("sets", {})]
    differs = {spec.name: different(spec, study) for spec in drawn}
    entry = [spec for spec in drawn if not differs[spec.name]]  # a policy may be drawn in other ways besides
    if drawn and not entry:
        name, other = differs.popitem()
        raise RunError(f"{method} was drawn with another evaluator than {STUDY}: {name}'s {other} differ")
    if len({spec.params["seed"] for spec in entry}) < SEEDS:
        ask = f"`grid: {{ seed: {list(range(SEEDS))} }}` of {method}, of what it needs, and of its sampling run"
        raise RunError(f"{method} has {len(entry)} sampled seeds of {SET}, an entry has {SEEDS}: {ask}")
    for spec in entry:
        for run in lineage(spec):
            seeds = {other.params["seed"] for other in specs.values() if other.run == run.run}
            if len(seeds) > 1 and spec.params["seed"] not in seeds:
                raise RunError(
                    f"{run.run} has no seed {spec.params['seed']}, and {spec.name} rests on {run.name} instead"
                )
            apart(run, specs[START].params["init"])
    return entry


def different(spec: Spec, study: Spec) -> str:
    """What a sampling run's evaluator has other than the study's; "" for nothing. A run of searches has to draw as many
    single games as the study has samples, with the usual settings, which are the study's."""
    played, count = spec.notebook == SEARCH, study.params["sets"][SET]
    other = [key for key in EVALUATOR if spec.params.get(key) != study.params[key] and (key == "limit" or not played)]
    if played:
        points = [{key: value for key, value in search.items() if key != "sets"} for search in spec.params["searches"]]
        other += [] if (single := GAME | {"repeats": count}) in points else [f"searches, of which none is {single},"]
    elif spec.notebook != study.notebook or spec.params["sets"][SET] != count:
        other = other or ["samples a problem or notebook"]
    return ", ".join(other)


def completions(entry: list[Spec]) -> pd.DataFrame:
    """What an entry wrote on SET, judged; of an agent its single games."""
    folders = [finished(spec) for spec in entry]
    if entry[0].notebook != SEARCH:
        return samples(folders, sets=[SET])
    played = searched(games(folders, sets=[SET])).assign(count=1, finish="")
    return played[(played[list(GAME)] == 1).all(axis=1) & (played["repeats"] > 1)]


def lineage(spec: Spec) -> list[Spec]:
    """All runs that a policy comes from, each once; the base model is everybody's, and no part of an entry."""
    before = [run for parent in spec.parents.values() for run in (*lineage(parent), parent)]
    return [run for run in {run.name: run for run in before}.values() if not run.name.startswith("base/")]


def apart(spec: Spec, base: str) -> None:
    """Raise RunError unless all that a run learns from is known, and apart from every evaluation set. base: the model
    that the profile's own SFT starts from."""
    if (start := spec.params.get("init", base)) != base:
        raise RunError(f"{spec.name} starts from {start}, and what that was trained on is not known here")
    name, met = spec.params.get("problem_set", ""), set()
    if name.endswith(FILES):
        met = {problem.key for problem in from_file(name)} & keys("evaluation")
    for path in [] if met else [path for folder in (spec.folder, spec.reference) for path in folder.glob("*.parquet")]:
        if {"nums", "target"} <= set(pyarrow.parquet.read_schema(path).names):
            name, met = shown(path), {p.key for p in problems(pd.read_parquet(path))} & keys("evaluation")
    if met:
        raise RunError(f"{spec.name} trains on {name}, where {len(met)} problems are of our evaluation sets")


def finished(spec: Spec) -> Path | None:
    """Where the results of a run lie: here, or else published by the same notebook, parameters and parents."""
    if spec.state == "done":
        return spec.folder
    return spec.reference if read_record(spec.reference).get("fingerprint") == spec.fingerprint else None


def spent(spec: Spec) -> float:
    """Core-minutes of all training behind a sampling run. Raises RunError above CORE_MINUTES, or where nobody knows."""
    minutes = 0.0
    for run in lineage(spec):
        if not (made := read_record(run.folder) or read_record(run.reference)):
            raise RunError(f"what {run.name} took is not known: neither here nor published")
        minutes += made["elapsed"] * made.get("threads", 1) / 60
    if minutes > CORE_MINUTES:
        raise RunError(f"{spec.name}: {minutes:.0f} core-minutes of training, and {CORE_MINUTES} are allowed")
    return minutes


def line(profile: str, method: str, entry: list[Spec]) -> str:
    """The generated part of an entry's row: percent with intervals over problems and seeds, means of the others."""
    minutes, judged = [spent(spec) for spec in entry], completions(entry)
    table = estimates(problem_scores(counts(judged), ks=(1, 16), mean_to=())).set_index("metric")
    percent = 100 * table.loc[["pass@1", "pass@16"], ["estimate", "low", "high"]]
    texts = text_scores(judged).mean()
    made = {
        (one["commit"] or "not in git")[:8] + "+" * one["dirty"]
        for one in (read_record(folder) for folder in map(finished, entry) if folder)
    }
    cells = [
        f"`make record METHOD={method} PROFILE={profile}`",
        *("{:.1f} [{:.1f}, {:.1f}]".format(*passed) for passed in percent.to_numpy()),
    ]
    cells += [f"{100 * texts['missing']:.1f}", f"{texts['tokens']:.0f}", f"{sum(minutes) / len(minutes):.1f}"]
    return "| " + " | ".join([*cells, ", ".join(sorted(made))])
