"""The runs that were published once and are not any more: data/paper/removed.csv, and what the
earlier setup answered: data/paper/earlier.csv. Both are made from the git history by `python -m
lib.runs removed`, which takes some minutes.

removed.csv has one row per group of runs that left together:

setup (the profile), run (its last name) and seeds.
fate: "removed", or "made again" if another run of the same name and seed took its place.
last: the last commit that had the runs, from which `git checkout` brings them back.
start, updates: the policy that it was trained from, and its updates (of epochs of SFT none is
counted). set, samples: where it was sampled, the first of SETS that it has, and how often per
problem. Empty: no samples. pass@1, pass@16, wrong_numbers, missing: means over problems and runs,
by the verifiers of today. now_runs, now_pass@1, now_pass@16: the same of the runs that are
published under this name, on this set. note: written by hand, and kept when the table is made
again.

earlier.csv has a row per claim that the removed runs of setup `laptop` answer, if its metric needs
no more than answers, traces and training logs: estimate, low, high and seeds, from the runs of that
time and by the evaluator of today. The answer of the published runs is in figures/grand_claims.csv.
"""

import io
import json
import re
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from lib.files import PAPER, REFERENCE, progress
from lib.study import claims, history, intervals, judging, metrics

REMOVED = PAPER / "removed.csv"
EARLIER = PAPER / "earlier.csv"
SETS = [
    "heldout_1000",
    "heldout_5num_1000",
    "heldout_400",
    "levels",
    "validation",
    "validation_200",
    "test_50",
]
MEANS = ["pass@1", "pass@16", "wrong_numbers", "missing"]
KEY = ["setup", "run", "fate", "last"]
ASKED = ["setup", "run", "seeds", "fate", "last", "start", "updates"]
COLUMNS = [*ASKED, "set", "samples", *MEANS, "now_runs", "now_pass@1", "now_pass@16", "note"]


def gone() -> pd.DataFrame:
    """One row per run, analyses left out, that was published and is not any more. Columns setup,
    run, seed, fate, last (a commit) and folder, where that commit has it; parameters."""
    found = history.changes("data/reference/**/run.json")
    texts = history.contents({blob for _, _, blob in found if blob})
    places = {}  # where each run is
    held = {}  # which run is at each place
    left = {}  # how each run left its last place
    records = {}
    for commit, path, blob in found:
        record = json.loads(texts[blob]) if blob else {}
        key = history.run_key(record) if "started" in record else None
        before = held.get(path)
        if before is not None and before != key:
            places[before].discard(path)
            left[before] = commit, path, "made again" if blob else "removed"
        held[path] = key
        if key is not None:
            places.setdefault(key, set()).add(path)
            records[key] = record
    rows = []
    for key, (commit, path, fate) in left.items():
        run = history.today(records[key])
        if not places[key] and not run.startswith("study/"):
            row = {
                "setup": records[key]["profile"],
                "run": run,
                "seed": records[key]["seed"],
                "fate": fate,
            }
            row |= {"last": history.parent(commit), "folder": str(PurePosixPath(path).parent)}
            rows.append(row | {"parameters": records[key]["parameters"]})
    return pd.DataFrame(rows)


def judged(run, verdicts=("answer",)) -> pd.DataFrame:
    """The samples of a run that is gone, with verdicts of today's verifiers, on the first of SETS
    that it has. Like a table of `judging.samples`; empty if it has none."""
    name = f"{run.last}:{run.folder}/generations.parquet"
    content = history.file(name) if run.run.startswith("sample/") else None
    if content is None:
        return pd.DataFrame()
    table = pd.read_parquet(io.BytesIO(content))
    known = [name for name in SETS if name in set(table["set"])]
    if not known:
        return pd.DataFrame()
    table = table[table["set"] == known[0]].reset_index(drop=True)
    style = run.parameters.get("prompt_style") or run.parameters["prompt"]
    for kind in verdicts:
        table = judging.judge(table, style, kind)
    return table.assign(run=run.run, method=history.policy(run.run), seed=run.seed)


def scores(table: pd.DataFrame) -> pd.DataFrame:
    """Scores of problems, of a table of `judged`."""
    counts = metrics.counts(table)
    return metrics.problem_scores(counts, (1, 2, 4, 16), (16,)).join(metrics.text_scores(table))


def published(run: str, name: str) -> dict:
    """What the runs published under a name have on a set today."""
    folders = sorted(REFERENCE.glob(f"cpu/{run}/*/generations.parquet"))
    if not folders:
        return {}
    table = judging.samples([path.parent for path in folders], [name])
    if table.empty:
        return {}
    means = scores(table)[["pass@1", "pass@16"]].mean()
    return {
        "now_runs": table["seed"].nunique(),
        "now_pass@1": means["pass@1"],
        "now_pass@16": means["pass@16"],
    }


def table() -> tuple[pd.DataFrame, pd.DataFrame]:
    """removed.csv and earlier.csv, made from the history and the published runs."""
    runs = gone()
    rows = []
    of_laptop = []
    for key, group in progress(list(runs.groupby(KEY)), 0, "judging"):
        row = asked_of(key, group)
        verdicts = ("answer", "trace") if "trace" in row["run"] else ("answer",)
        parts = [judged(run, verdicts) for run in group.itertuples()]
        samples = pd.concat(parts) if parts else pd.DataFrame()
        if len(samples):
            found = scores(samples)
            row["set"] = samples["set"].iloc[0]
            row["samples"] = int(metrics.counts(samples)["n"].min())
            row |= found.groupby(["method", "seed"])[MEANS].mean().mean().to_dict()
            row |= published(row["run"], row["set"])
            if row["setup"] == "laptop" and row["fate"] == "removed":
                of_laptop.append(found)
        rows.append(row)
    made = pd.DataFrame(rows, columns=COLUMNS)
    if REMOVED.exists():
        notes = pd.read_csv(REMOVED, keep_default_na=False).set_index(KEY)["note"]
        made["note"] = [notes.get(key, "") for key in made[KEY].itertuples(index=False, name=None)]
    logs = pd.concat(
        [log(run) for run in runs.itertuples() if run.setup == "laptop" and run.fate == "removed"]
    )
    of_samples = pd.concat(of_laptop)
    return made, earlier(of_samples[~of_samples.index.duplicated(keep="last")], logs)


def asked_of(key: tuple, group: pd.DataFrame) -> dict[str, Any]:
    """What a group of removed runs was asked: the first columns of its row."""
    row: dict[str, Any] = dict(zip(KEY, key, strict=True))
    row["last"] = row["last"][:8]
    row["seeds"] = " ".join(map(str, sorted(group["seed"])))
    used = group.iloc[0]["parameters"]
    row["start"] = re.sub(r"^data/(runs|reference)/|(/|_seed)\d+$", "", used.get("init", ""))
    row["updates"] = used.get("steps", "")
    return row


def log(run) -> pd.DataFrame:
    """The training log of a run that is gone, with the columns of `judging.logs`."""
    content = history.file(f"{run.last}:{run.folder}/metrics.csv")
    if content is None or run.run.partition("/")[0] not in ("sft", "rloo", "preference"):
        return pd.DataFrame()
    return pd.read_csv(io.BytesIO(content)).assign(run=run.run, method=run.run, seed=run.seed)


def earlier(of_samples: pd.DataFrame, logs: pd.DataFrame) -> pd.DataFrame:
    """earlier.csv, from the scores and the logs of the removed runs."""
    planned = claims.planned()
    logged = metrics.log_scores(logs, planned["metric"])
    # The warm start of that time learned from traces that now have a name of their own
    light = of_samples[of_samples.index.isin(["sft/trace"], level="method")]
    light = light.rename(index={"sft/trace": "sft/trace_light"}, level="method")
    answered = claims.evaluate(planned, pd.concat([of_samples, light, intervals.of_logs(logged)]))
    answered = answered[answered["estimate"].notna()]
    return answered[["id", "estimate", "low", "high", "seeds"]].replace({None: np.nan})
