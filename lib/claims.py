"""What the papers claim, asked of our numbers: data/paper/claims.csv says beforehand what is compared, here it is
answered.

A claim is a contrast of methods (`lib.intervals`) on one set and one metric, with a direction: A above B; above it by a
factor; its change from its own start above that of B; above each of several; or one method against a bound. Answers:

reproduced             the interval lies on the claimed side
not reproduced         it lies on the other side; of "equal", beyond the margin
equivalent             of "equal" and "zero": it lies within the margin
paper's size excluded  it holds zero, and the paper's effect lies beyond it: here the effect is smaller, if there is any
level                  it holds zero and lies within the margin: the claimed difference is too small to matter here
undecided              it holds zero, or reaches over the margin, and no more can be said
one seed               one of the methods was trained once, and how far its runs differ cannot be borrowed from others
not run                there are no such runs
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.files import PAPER
from lib.intervals import contrasts

ANSWERS = [  # the weakest first: a claim of several comparisons has the weakest of their answers
    *["not run", "one seed", "not reproduced", "paper's size excluded", "level"],
    *["undecided", "equivalent", "reproduced"],
]
DIRECTIONS = ["higher", "lower", "highest", "lowest", "equal", "zero"]
COLUMNS = ["estimate", "low", "high", "n_problems", "seeds", "freedom", "theirs", "against", "comparisons", "answer"]
BORROWED = 4  # degrees of freedom from which a variance between runs may be borrowed (`lib.intervals`)
PER = {"percent": 100, "percentage points": 100, "of 800": 800, "problems of 50": 50}  # units of results.csv


def planned(paper: str | None = None) -> pd.DataFrame:
    """The claims of one paper, or all, as data/paper/claims.csv plans them. Raises ValueError naming a claim that
    says too little. Columns id, paper, section, claim, and what is compared:

    runs: A;B for A minus B, A;B;C for A minus each other (direction highest, lowest) or each alone (zero), A for A
    alone.
    starts: the policies that A and B began from, where their changes are compared. bound: taken off; factor: of B, or
    of its change; margin: within which equal is equal, and a difference too small to matter. metric, set: ours;
    problem_set, paper_metric, paper_runs: the paper's, filled in where they are the same. note: what is censored,
    selected or chosen.
    """
    table = pd.read_csv(PAPER / "claims.csv").fillna({"starts": "", "note": "", "bound": 0.0, "factor": 1.0})
    for column in ("metric", "runs"):
        table[f"paper_{column}"] = table[f"paper_{column}"].fillna(table[column])
    for row in table[~table["direction"].isin(DIRECTIONS)].itertuples():
        raise ValueError(f"claims.csv, {row.id}: direction {row.direction!r} is none of {', '.join(DIRECTIONS)}")
    for row in table[table["direction"].isin(["equal", "zero"]) & ~(table["margin"] > 0)].itertuples():
        raise ValueError(f"claims.csv, {row.id}: {row.direction!r} needs a margin within which it holds")
    return table if paper is None else table[table["paper"] == paper].reset_index(drop=True)


def comparisons(claim, theirs=False) -> list[dict[str, float]]:
    """The contrasts that a row of `planned` asks for, as weights of methods. theirs: as the paper made them, where all
    policies of a study began from one."""
    first, *others = (claim.paper_runs if theirs else claim.runs).split(";")
    if claim.metric.startswith("slope of "):  # over all their runs, one number
        return [dict.fromkeys((first, *others), 1.0)]
    if claim.direction == "zero" or not others:
        return [{method: 1.0} for method in (first, *others)]
    if len(others) > 1 and claim.direction not in ("highest", "lowest"):
        raise ValueError(f"claims.csv, {claim.id}: {claim.direction!r} compares two methods, not {claim.runs}")
    asked = [{first: 1.0, other: -claim.factor} for other in others]
    if claim.starts and not theirs:  # A - A's start - factor (B - B's start)
        for start, sign in zip(claim.starts.split(";"), (-1.0, claim.factor), strict=True):
            asked[0][start] = asked[0].get(start, 0.0) + sign
    return [{method: weight for method, weight in weights.items() if weight} for weights in asked]


def answer(low: float, high: float, direction: str, seeds: int, theirs=np.nan, margin=np.nan, freedom=0) -> str:
    """What the interval of a contrast says to a claim (above). theirs: the paper's value of it; NaN where it has
    none. freedom: of the variance between runs."""
    if seeds < 2 and freedom < BORROWED:
        return "one seed"
    within = -margin < low and high < margin
    if direction in ("equal", "zero"):
        if within:
            return "equivalent"
        return "not reproduced" if low > margin or high < -margin else "undecided"
    if direction in ("lower", "lowest"):
        low, high, theirs = -high, -low, -theirs
    if low > 0 or high < 0:
        return "reproduced" if low > 0 else "not reproduced"
    if theirs > high:
        return "paper's size excluded"
    return "level" if within else "undecided"


def evaluate(
    asked: pd.DataFrame,
    scores: pd.DataFrame,
    ready: Mapping[str, tuple] | None = None,
    chosen: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The answers to `asked`, rows of `planned`.

    `scores`: of all methods of the study, as `lib.intervals` takes them; training logs as `of_logs` makes them.
    ready: by claim, the (estimate, low, high, seeds) of what is no contrast of means, such as a crossover.
    chosen: scores in the regime that was chosen, where a study has some of its methods there: a claim rests on these
    where they have its metric and, on its set, all of its methods.
    One row a claim: that of its weakest comparison, with estimate, low, high, n_problems, seeds, freedom; theirs, the
    paper's value; against, the baseline of that comparison; comparisons, how many it rests on; answer.
    """
    paper = pd.read_csv(PAPER / "results.csv")
    paper["value"] /= paper["unit"].map(PER).fillna(1)
    paper = paper.drop_duplicates(["paper", "method", "set", "metric"]).set_index(["paper", "method", "set", "metric"])
    chosen = scores[:0] if chosen is None else chosen
    there = set(chosen.groupby(["set", "method"]).groups)
    rows = []
    for claim in asked.itertuples():
        needed = {(claim.set, method) for weights in comparisons(claim) for method in weights}
        better = needed <= there and str(claim.metric) in chosen
        rows.append(_weakest(claim, paper["value"], chosen if better else scores, ready or {}))
    return asked.merge(pd.DataFrame(rows, columns=["id", *COLUMNS]), on="id")


def _weakest(claim, paper: pd.Series, scores: pd.DataFrame, ready: Mapping[str, tuple]) -> dict:
    """The weakest answer among the comparisons of one claim, as `evaluate` returns it."""
    found, wanted, reported = [], comparisons(claim), comparisons(claim, theirs=True)
    ours = {}
    if claim.metric in scores:
        here = scores.loc[scores.index.isin([claim.set], level="set"), [claim.metric]]
        ours = contrasts(here, dict(enumerate(wanted))).set_index("contrast").to_dict("index")
    for i, weights in enumerate(wanted):
        keys = [(claim.paper, method, claim.problem_set, claim.paper_metric) for method in reported[i]]
        theirs = paper.reindex(keys).to_numpy() @ [*reported[i].values()] - claim.bound
        lead = (claim.paper, " - ".join(reported[i]), *keys[0][2:])
        if len(keys) > 1 and lead in paper.index:
            theirs = paper[lead]  # the paper says the difference alone
        theirs = theirs if np.isfinite(theirs) else np.nan  # a lead that never came has no size
        row: dict = {"against": [*weights][1] if len(weights) > 1 else "", "theirs": theirs, "answer": "not run"}
        if claim.id in ready:
            row |= dict(zip(("estimate", "low", "high", "seeds"), ready[claim.id], strict=True))
        elif i in ours:
            row |= {end: ours[i][end] - claim.bound for end in ("estimate", "low", "high")}
            row |= {"n_problems": ours[i]["n_problems"], "seeds": ours[i]["runs"], "freedom": ours[i]["freedom"]}
        if "low" in row:
            found_in = (row["low"], row["high"], claim.direction, row["seeds"], theirs, claim.margin)
            row["answer"] = answer(*found_in, freedom=row.get("freedom", 0))
        found.append(row)
    weakest = min(found, key=lambda row: ANSWERS.index(row["answer"]))
    return {"id": claim.id, "comparisons": len(wanted)} | weakest
