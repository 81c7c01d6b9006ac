"""When each claim was written down, and whether before its first result: data/paper/posed.csv, from
the git history.

`python -m lib.runs posed` makes the table again. It has one row per row of data/paper/claims.csv;
times are in UTC.

first, first_time: the commit that first held the claim in any form, under its id or its id without
the last letter. form, form_time: the commit that first held its present form: what is compared, on
which metric and set, in which direction, with which bound, factor and margin. Sentences are no part
of it, and columns may have been renamed. result: the run that first made the claim answerable,
which is the last among the first runs of each compared method. result_time is when that run began,
by its own record; published is the first commit that held it. Empty if a method was never run.
earlier: setup cpu followed another one, `laptop`. Claims of the reports count results of both. But
claims that were first written for cpu (see `for_cpu`) count its results alone; if `laptop` had
answered one by then, this has the time. written: "before" (its form is older than the first result,
and claims.csv names no change), "changed" (only a first, other form is older than the first result
of that form) or "after" (no form is). support: "descent" if the history itself shows this, "times
only" if only times do. The history shows "before" if every run of one compared method names a
commit that contains the form's. It shows the others if the form's commit contains the publication
of a run of every compared method. Empty without a result.

From SINCE on, times alone do not do: a new claim is "before" only by descent.
"""

import csv
import io
import re
from collections.abc import Iterable
from functools import cache

import pandas as pd

from lib.files import PAPER
from lib.study import history, systems
from lib.study.systems import System

TABLE = PAPER / "posed.csv"
COLUMNS = [
    "id",
    "first",
    "first_time",
    "form",
    "form_time",
    "result",
    "result_time",
    "published",
    "earlier",
]
COLUMNS += ["written", "support"]
SINCE = int(pd.Timestamp("2026-11-28", tz="UTC").timestamp())

SETS_NAMED = "86b61add"  # here claims got a set, a bound and a margin of their own
LAPTOP_LEFT = "fd0930f5"  # from here on cpu is the only setup
# here the traces with light backtracking got a name of their own, and sft/trace became others
LIGHT_NAMED = "4fac7c08"
# Metrics as they were called before SETS_NAMED. Numbers of training logs were means over the last
# fifth of the updates already, as notebook 08 of that time says.
OLD_METRICS = {"legal steps": "legal", "lost answers": "lost", "distinct": "distinct completions"}
OLD_METRICS |= {name: f"late {name}" for name in ("eval_entropy", "largest share")}
OLD_METRICS |= dict.fromkeys(("no_signal", "frac_zero_std"), "late frac_zero_std")
# The pretrained model is another variant of the methods of cpu, and has a profile of its own, in
# which some policies have another name
PRETRAINED_PROFILE = "smollm"
PRETRAINED_NAMES = {"sft/free": "sft/link_3", "rloo/sparse": "rloo/sparse_slow"}
# Before SETS_NAMED, changes in the training of study `program` were between tenths of the updates,
# and then of fifths.
TENTHS = " (tenths)"


def form(row: dict) -> tuple:
    """What a row of claims.csv compares; the set is "" where the column did not exist."""
    margin = row.get("margin", "") if row["direction"] in ("equal", "zero") else ""
    numbers = [float(row.get(name) or usual) for name, usual in (("bound", 0), ("factor", 1))]
    runs = tuple(row["runs"].split(";"))
    return (
        runs,
        row.get("starts") or "",
        row["metric"],
        row.get("set") or "",
        row["direction"],
        *numbers,
        margin,
    )


def old_form(row: dict) -> tuple:
    """The same of a row that was written before claims had a set, by the names of today."""
    names = history.renamed()
    runs = []
    for system in row["runs"].split(";"):
        policy, space, settings = system.partition(" ")
        runs.append(names.get(policy, policy) + space + settings)
    translated = row | {
        "runs": ";".join(runs),
        "metric": OLD_METRICS.get(row["metric"], row["metric"]),
    }
    if found := re.fullmatch("at most (.+)", row["direction"]):
        translated |= {"direction": "lower", "bound": found[1]}
    if row["metric"] == "crossover" and found:  # of whole numbers
        translated["bound"] = str(int(found[1]) + 0.5)
    if row["problem_set"] == "training" and "change of" in row["metric"]:
        translated["metric"] += TENTHS
    if row["metric"] == "entropy":  # that of SFT was the one of RLOO's first update
        translated |= {"runs": "rloo/sparse", "metric": "late entropy over the first update's"}
    return form(translated)


def same(one: tuple, other: tuple) -> bool:
    """Whether two forms ask the same; without a set, the primary set was meant."""
    return (
        one[:3] == other[:3]
        and one[4:] == other[4:]
        and (one[3] == other[3] or "" in (one[3], other[3]))
    )


@cache
def versions() -> list[tuple[str, dict]]:
    """The forms in every committed version of claims.csv, by id, the oldest commit first."""
    found = history.changes("data/paper/claims.csv")
    texts = history.contents({blob for _, _, blob in found if blob})
    old = history.times()[history.full(SETS_NAMED)]
    light = history.times()[history.full(LIGHT_NAMED)]
    tables = []
    for commit, _, blob in sorted(found, key=lambda change: history.times()[change[0]]):
        forms = {}
        time = history.times()[commit]
        for row in csv.DictReader(io.StringIO(texts[blob].decode())):
            asked = old_form(row) if time < old else form(row)
            forms[row["id"]] = [asked]
            if time < light:
                renamed = tuple(
                    "sft/trace_light" if name == "sft/trace" else name for name in asked[0]
                )
                forms[row["id"]].append((renamed, *asked[1:]))
        tables.append((commit, forms))
    return tables


def family(name: str) -> str:
    """The id without the letter of a later form."""
    return name.rstrip("bcd")


def first_form(name: str) -> tuple[str, tuple]:
    """The first commit that holds a claim of this family, and the form that it has there."""
    for commit, forms in versions():
        for other in sorted(forms):
            if family(other) == family(name):
                return commit, forms[other][0]
    return "", ()


def written_in(name: str, asked: tuple) -> str:
    """The first commit with a claim of this family in this form. "" if there is none."""
    for commit, forms in versions():
        for other, known in forms.items():
            if family(other) == family(name) and any(same(asked, one) for one in known):
                return commit
    return ""


def searched_with(system: System, search: dict) -> bool:
    """Whether a search of notebook 16 has the settings of a system. `search`: an entry of its
    parameter `searches`, in which a list stands for one search per value."""
    if (search.get("repeats", 1) > 1) != system.repeated:
        return False
    usual = System("", **systems.SIXTEEN)
    for setting in systems.SEARCH:
        given = search.get(setting, getattr(usual, setting))
        values = given if isinstance(given, list) else [given]
        if getattr(system, setting) not in values:
            return False
    return True


def answers(run, method: str, claim: dict) -> bool:
    """Whether a run made scores of a method that the claim compares."""
    system = systems.of(method)
    if (system.variant == systems.PRETRAINED) != (run.profile == PRETRAINED_PROFILE):
        return False
    policy = trained_as(system)
    light = run.method == "sft/trace" and run.profile != "cpu" and policy == "sft/trace_light"
    if run.method != policy and not light:
        return False
    if claim["set"] in ("training", "validation") or policy.startswith("exact/"):
        return run.kind not in ("sample", "search")
    name = re.sub(r" L\d$|_n[34]$", "", claim["set"])
    if run.kind == "search":
        return system.search and _searched(run, system, name, claim)
    return run.kind == "sample" and _sampled(run, system, name, claim)


def trained_as(system: System) -> str:
    """The name, in its own profile, of the policy that a system draws from."""
    if system.variant == systems.PRETRAINED:
        return PRETRAINED_NAMES.get(system.policy, system.policy)
    return system.policy


def _searched(run, system: System, name: str, claim: dict) -> bool:
    """Whether a run of notebook 16 has played the problem set `name` with these settings, and, if
    the claim counts single games, that many."""
    counted = [int(games) for games in re.findall(r"of (\d+) games", claim["metric"])]
    least = max(counted, default=1) if system.repeated else 1
    sets = run.parameters.get("sets", [])
    for search in run.parameters.get("searches", []):
        enough = search.get("repeats", 1) >= least
        if name in search.get("sets", sets) and enough and searched_with(system, search):
            return True
    return False


def _sampled(run, system: System, name: str, claim: dict) -> bool:
    """Whether a run of notebook 15 has drawn enough samples of the problem set `name`, at the
    system's temperature and long enough."""
    parameters = run.parameters
    if name not in parameters.get("sets", {}) or parameters["temperature"] != system.temperature:
        return False
    asked = [int(k) for k in re.findall(r"pass@(\d+)", claim["metric"])]
    many = claim["set"] != "test_50" and max(asked, default=0) > 16
    if many and parameters["sets"][name] <= 16:
        return False
    return "640 tokens" not in claim["metric"] or parameters["max_tokens"] >= 640


def first_answer(claim: dict, runs: pd.DataFrame) -> tuple[pd.Series, list[pd.DataFrame]] | None:
    """The run that first made a claim answerable, and the runs of each compared method. None
    without a result."""
    methods = dict.fromkeys([*claim["runs"].split(";"), *filter(None, claim["starts"].split(";"))])
    found = []
    for method in methods:
        policy = trained_as(systems.of(method))
        of_policy = runs[runs["method"].isin([policy, policy.removesuffix("_light")])]
        mask = [answers(run, method, claim) for run in of_policy.itertuples()]
        found.append(of_policy[mask])
    if not all(map(len, found)):
        return None
    firsts = [some.loc[some["started"].idxmin()] for some in found]
    return max(firsts, key=lambda run: run["started"]), found


def shown(time: int) -> str:
    return pd.Timestamp(time, unit="s").strftime("%Y-%m-%d %H:%M:%S")


def for_cpu(claim: dict, first: str) -> bool:
    """Whether a claim is about setup cpu alone: our studies of it, and all that was first written
    when it was the only one."""
    only = history.times()[first] > history.times()[history.full(LAPTOP_LEFT)]
    return only or claim["paper"] in ("coverage", "exact")


def as_claim(asked: tuple, claim: dict) -> dict:
    """The claim in another form."""
    runs, starts, metric, set_name = asked[:4]
    return claim | {
        "runs": ";".join(runs),
        "starts": starts,
        "metric": metric,
        "set": set_name or claim["set"],
    }


def contains_results(commit: str, by_method: list[pd.DataFrame]) -> bool:
    """Whether a commit contains the publication of a run of each method."""
    for runs in by_method:
        if not any(history.descends(commit, name) for name in runs["published"]):
            return False
    return True


def is_inherited(commit: str, by_method: list[pd.DataFrame]) -> bool:
    """Whether all runs of a method were made by code that contains a commit."""
    return any(_all_descend(runs["commit"], commit) for runs in by_method)


def _all_descend(later: Iterable[str], earlier: str) -> bool:
    return all(history.descends(name, earlier) for name in later)


def label(claim: dict) -> dict:
    """A row of posed.csv. Without a commit the claim has not been committed in this form."""
    row = dict.fromkeys(COLUMNS, "") | {"id": claim["id"]}
    first, first_asked = first_form(claim["id"])
    commit = written_in(claim["id"], form(claim))
    if not commit:
        return row
    time = history.times()[commit]
    row |= {"first": first[:8], "first_time": shown(history.times()[first])}
    row |= {"form": commit[:8], "form_time": shown(time), "written": "before"}
    runs = history.runs()
    if for_cpu(claim, first):
        of_study = runs["profile"].isin(["cpu", PRETRAINED_PROFILE])
        past = first_answer(claim, runs[~of_study])
        if past and past[0]["started"] < time:
            row["earlier"] = shown(past[0]["started"])
        runs = runs[of_study]
    answered = first_answer(claim, runs)
    if answered is None:
        return row
    result, by_method = answered
    row |= {"result": f"{result['run']}/{result['seed']}", "result_time": shown(result["started"])}
    row["published"] = result["published"][:8]
    inherited = is_inherited(commit, by_method)
    if time < result["started"] and (inherited or time < SINCE) and not claim["changed"]:
        return row | {"support": "descent" if inherited else "times only"}
    at_first = first_answer(as_claim(first_asked, claim), runs)
    fresh = at_first is None or history.times()[first] < at_first[0]["started"]
    row["written"] = "changed" if fresh and (commit != first or claim["changed"]) else "after"
    shows = contains_results(commit, by_method) or (
        at_first and contains_results(commit, at_first[1])
    )
    return row | {"support": "descent" if shows else "times only"}


def written() -> pd.DataFrame:
    """The table, made from the history and from claims.csv as it stands."""
    claims = pd.read_csv(PAPER / "claims.csv", dtype=str, keep_default_na=False)
    return pd.DataFrame([label(claim) for claim in claims.to_dict("records")], columns=COLUMNS)
