"""Answers the claims of the papers with our own numbers. data/paper/claims.csv states each claim as a comparison.

A claim is a contrast of methods (`intervals`) on one problem set and one metric, with a direction, such as "higher". It
says one of these: A is higher than B; A is higher than B by a factor; A has changed more since its start than B has
since its own; A is higher than each of several methods; one method is higher than a bound; or two methods are equal.
Each claim gets two answers, one on its direction and one on its size. On direction, from the 95% interval of the
contrast:

holds      the interval lies on the claimed side of zero; for "equal" and "zero", within the margin
reversed   it lies on the other side; for "equal" and "zero", beyond the margin
open       neither, or one of the methods was trained only once
not run    the runs that the claim needs do not exist

On size: "as large" (the interval contains the paper's number, but not zero), "smaller" or "larger" (our effect is
smaller or larger than the paper's number, which lies outside the interval), "unknown" (the interval contains both the
paper's number and zero, or the paper gives no number). The paper's number has an error too, since it rests on 50
problems and one run. We estimate this error from our own runs. Our result `contradicts` the paper only if the two
numbers differ by more than both errors together allow. `within` says that the whole interval of a difference lies
within 3 percentage points of zero. These 3 points were chosen after most results were known; no answer depends on
them.

The column `posed` names the commit in which a claim was first written down. `changed` says what was changed afterwards,
in which commit and why. A claim that was posed again also keeps its first form: agent-1 is the first, agent-1b the
second.
"""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.files import PAPER
from lib.study.intervals import Measured, measured

ANSWERS = ["not run", "reversed", "open", "holds"]  # weakest first; a claim gets the weakest of its comparisons
DIRECTIONS = ["higher", "lower", "highest", "lowest", "equal", "zero"]
COLUMNS = ["estimate", "low", "high", "n_problems", "seeds", "borrowed", "p", "theirs", "error"]
COLUMNS += ["against", "comparisons", "answer", "size", "within", "contradicts"]
PER = {"percent": 100, "percentage points": 100, "of 800": 800, "problems of 50": 50}  # units of results.csv
# Metrics that are shares of problems solved, and a difference of them that is too small to matter here
SOLVED = r"(?:mean )?pass@(?:k<=)?\d+|any|likeliest|solved at equal tokens"
NEAR = 0.03
PROBLEMS = {"heldout_400": 400, "levels": 576, "test_50_n3": 24, "test_50_n4": 26}  # other sets of the papers have 50
PROBLEMS |= {f"levels L{group}": 64 for group in range(1, 10)}


def planned(paper: str | None = None) -> pd.DataFrame:
    """The claims of one paper, or of all. Columns id, paper, section, claim, and those that say what is compared:

    runs: "A;B" asks for A minus B. "A;B;C" asks for A minus B and A minus C (directions highest and lowest) or for each
    method alone (zero). "A" asks for A alone.
    starts: the policies that A and B were trained from, if their changes since then are compared.
    bound is subtracted from the estimate. factor multiplies B, or the change of B. margin: two values that differ by
    less count as equal.
    metric and set are ours. problem_set, paper_metric and paper_runs are the paper's; empty cells of paper_metric and
    paper_runs are filled from metric and runs.
    note: what is censored, selected or chosen. posed, changed: see the top of this module.

    Raises ValueError that names the claim if a direction is unknown or a margin is missing.
    """
    empty = dict.fromkeys(("starts", "note", "posed", "changed"), "")
    table = pd.read_csv(PAPER / "claims.csv").fillna(empty | {"bound": 0.0, "factor": 1.0})
    for column in ("metric", "runs"):
        table[f"paper_{column}"] = table[f"paper_{column}"].fillna(table[column])
    for row in table[~table["direction"].isin(DIRECTIONS)].itertuples():
        raise ValueError(f"claims.csv, {row.id}: direction {row.direction!r} is none of {', '.join(DIRECTIONS)}")
    for row in table[table["direction"].isin(["equal", "zero"]) & ~(table["margin"] > 0)].itertuples():
        raise ValueError(f"claims.csv, {row.id}: {row.direction!r} needs a margin within which it holds")
    return table if paper is None else table[table["paper"] == paper].reset_index(drop=True)


def comparisons(claim, theirs=False) -> list[dict[str, float]]:
    """The contrasts that a row of `planned` asks for, each as a weight for every method. With `theirs`, the contrasts
    are those of the paper: its own runs, without `starts`, since all policies of a paper start from one policy."""
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


def answer(low: float, high: float, direction: str, seeds: int, margin=np.nan) -> str:
    """The answer on direction, from the interval of a contrast. `seeds`: runs of the method that has the fewest."""
    if np.isnan(low) or seeds < 2:
        return "open"
    if direction in ("equal", "zero"):
        if -margin < low and high < margin:
            return "holds"
        return "reversed" if low > margin or high < -margin else "open"
    if direction in ("lower", "lowest"):
        low, high = -high, -low
    return "holds" if low > 0 else "reversed" if high < 0 else "open"


def size(low: float, high: float, direction: str, theirs: float) -> str:
    """The answer on size. `theirs` is the paper's number. Claims of equality, and claims without a number of the paper,
    get "unknown"."""
    if direction in ("lower", "lowest"):
        low, high, theirs = -high, -low, -theirs
    if direction in ("equal", "zero") or not theirs > 0 or np.isnan(low):
        return "unknown"
    if theirs > high:
        return "smaller"
    return "larger" if theirs < low else "as large" if low > 0 else "unknown"


def evaluate(asked: pd.DataFrame, scores: pd.DataFrame, ready: Mapping[str, tuple] | None = None) -> pd.DataFrame:
    """Answers the claims `asked` (rows of `planned`), one row per claim. A claim of several comparisons gets the row of
    the one with the weakest answer; among equally weak ones, the row with the smallest lead.

    scores: the scores of all methods of the study, in the form that `lib.study.intervals` takes. Numbers of training
    logs are brought into it by `intervals.of_logs`.
    ready: for claims that are no contrast of means, such as a crossover, their (estimate, low, high, seeds) by the id
    of the claim.

    Columns estimate, low, high, n_problems, seeds, borrowed (`intervals`); p, the error level at which the answer would
    change; theirs, the paper's value, and error, its standard error; against, the baseline; comparisons, the number of
    comparisons that the claim consists of; answer, size, within, contradicts (see the top of this module).
    """
    paper = pd.read_csv(PAPER / "results.csv")
    paper["value"] /= paper["unit"].map(PER).fillna(1)
    paper = paper.drop_duplicates(["paper", "method", "set", "metric"]).set_index(["paper", "method", "set", "metric"])
    rows = []
    for claim in asked.itertuples():
        theirs = reported(claim, paper["value"])
        if ready and claim.id in ready:
            row = _answers(claim, theirs, *ready[str(claim.id)])
        else:
            row = _weakest(claim, theirs, scores)
        rows.append({"id": claim.id, "comparisons": len(comparisons(claim)), "theirs": theirs} | row)
    return asked.merge(pd.DataFrame(rows, columns=["id", *COLUMNS]), on="id")


def reported(claim, paper: pd.Series) -> float:
    """The paper's value for a claim: with several comparisons the one that is least favourable to the claim. NaN if the
    paper gives no value."""
    found = []
    for weights in comparisons(claim, theirs=True):
        keys = [(claim.paper, method, claim.problem_set, claim.paper_metric) for method in weights]
        difference = (claim.paper, " - ".join(weights), *keys[0][2:])
        if len(keys) > 1 and difference in paper.index:  # the paper gives only the difference
            found.append(paper[difference] - claim.bound)
        else:
            found.append(paper.reindex(keys).to_numpy() @ [*weights.values()] - claim.bound)
    found = [value for value in found if np.isfinite(value)]  # infinite for a crossover that never happened
    if not found:
        return np.nan
    if claim.direction == "zero":
        return max(found, key=abs)
    return max(found) if claim.direction in ("lower", "lowest") else min(found)


def _weakest(claim, theirs: float, scores: pd.DataFrame) -> dict:
    """The weakest of the comparisons of one claim, as a row of `evaluate`. `theirs` is the paper's value."""
    wanted, found = comparisons(claim), {}
    if claim.metric in scores:
        here = scores.loc[scores.index.isin([claim.set], level="set"), [claim.metric]]
        found = measured(here, dict(enumerate(wanted)))
    if len(found) < len(wanted):
        return {"answer": "not run"}
    rows = [_compared(claim, theirs, one, [*weights]) for one, weights in zip(found.values(), wanted, strict=True)]

    def strength(row: dict) -> tuple[int, float]:
        lead = row["estimate"] if claim.direction in ("higher", "highest") else -row["estimate"]
        return ANSWERS.index(row["answer"]), -abs(lead) if claim.direction in ("equal", "zero") else lead

    return min(rows, key=strength)


def _answers(claim, theirs: float, estimate: float, low: float, high: float, seeds: int) -> dict:
    """The columns that each answered claim has."""
    row = {"estimate": estimate, "low": low, "high": high, "seeds": seeds}
    row["answer"] = answer(low, high, claim.direction, seeds, claim.margin)
    row["size"] = size(low, high, claim.direction, theirs) if seeds > 1 else "unknown"
    return row


def _compared(claim, theirs: float, found: Measured, methods: list[str]) -> dict:
    """The columns of `evaluate` for one comparison, whose contrast is `found`."""
    low, high = (end - claim.bound for end in found.ends())
    estimate, equality = found.estimate - claim.bound, claim.direction in ("equal", "zero")
    row = _answers(claim, theirs, estimate, low, high, found.runs)
    row |= {"n_problems": found.problems, "borrowed": found.borrowed, "against": "".join(methods[1:2])}
    if found.runs < 2:
        return row
    edge = np.copysign(claim.margin, estimate) if equality else 0.0
    row["p"] = found.p(claim.bound + edge)
    if re.fullmatch(SOLVED, str(claim.metric)) and not claim.bound and claim.factor == 1:
        row["within"] = low > -NEAR and high < NEAR
    if np.isfinite(theirs):
        error = found.error_of_one_run(PROBLEMS.get(claim.problem_set, 50))
        row["error"] = error or np.nan  # unknown where all our scores are equal
        if row["error"] > 0:
            row["contradicts"] = abs(estimate - theirs) > np.hypot((high - low) / 2, 1.96 * row["error"])
    return row


def with_q(answered: pd.DataFrame) -> pd.DataFrame:
    """Adds the column q: `p` corrected for the number of claims of the paper that were tested (Benjamini and Hochberg).
    Among the claims of a paper with q below .05, one in twenty is expected to be a false discovery."""
    from scipy.stats import false_discovery_control  # this import takes a second

    tested = answered["p"].notna()
    q = answered[tested].groupby("paper")["p"].transform(lambda p: false_discovery_control(p.astype(float)))
    return answered.assign(q=q)


def distinct(answered: pd.DataFrame) -> pd.DataFrame:
    """One row per contrast: claims that compare the same numbers count once. A claim of equality is kept apart from a
    claim of a direction about the same numbers."""
    where = ["metric", "set", "n_problems"]
    size = (answered["estimate"].astype(float) + answered["bound"]).abs().round(9)
    sides = zip(answered["runs"].str.split(";").str[0], answered["against"].fillna("").astype(str), strict=True)
    pairs = [" ".join(sorted(side)) for side in sides]  # A against B is B against A
    equal = answered["direction"] == "equal"
    seen = answered[where].assign(size=size, pair=pairs, equal=equal).duplicated() & answered["estimate"].notna()
    return answered[~seen]


def tally(answered: pd.DataFrame) -> pd.DataFrame:
    """Counts the contrasts with each answer, and those with `within` and with `contradicts`. There are two rows per
    paper, of its claims as first posed and as posed again after results were known; one row for each of the two
    readings of pass@1 in `agent`; and two rows for all papers together."""
    again, rows = answered["changed"] != "", {}
    for paper in answered["paper"].unique():
        mine = answered["paper"] == paper
        rows[f"`{paper}`"], rows[f"`{paper}`, posed again"] = answered[mine & ~again], answered[mine & again]
    both = answered[answered["paper"].eq("agent") & answered["paper_metric"].eq("pass@1")]
    both = both[both["id"].str.rstrip("b").duplicated(keep=False)]
    rows["`agent`, the trajectory that is selected"] = both[both["metric"] == "pass@1"]
    rows["`agent`, any trajectory that is kept"] = both[both["metric"] == "any"]
    rows["all, as first posed"], rows["all, posed again"] = answered[~again], answered[again]
    counts = {name: distinct(part) for name, part in rows.items() if len(part)}
    table = pd.DataFrame({name: part["answer"].value_counts() for name, part in counts.items()}).T
    table = table.reindex(columns=ANSWERS[::-1]).fillna(0).astype(int)
    for column, name in (("within", "within 3 points"), ("contradicts", "contradict the paper")):
        table[name] = [part[column].eq(True).sum() for part in counts.values()]
    return table
