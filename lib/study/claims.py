"""Answers the claims of the papers with our own numbers. data/paper/claims.csv states each claim as
a comparison.

A claim is a contrast of methods (`intervals`) on one problem set and one metric, with a direction,
such as "higher". It says one of these: A is higher than B; A is higher than B by a factor; A has
changed more since its start than B has since its own; A is higher than each of several methods; one
method is higher than a bound; or two methods are equal. Each claim gets two answers, one on its
direction and one on its size. On direction, by the 95% interval of this contrast alone (column
`alone`; `tally` corrects it for the number of contrasts):

holds      the interval lies on the claimed side of zero; for "equal" and "zero", within the margin
reversed   it lies on the other side; for "equal" and "zero", beyond the margin
open       neither, or one of the methods was trained only once
not run    the runs that the claim needs do not exist

On size (column `size`), by the same interval:

excluded         our number and the paper's differ by more than both errors together allow. The
                 paper's number has an error too, since it rests on 50 problems and one run; we
                 estimate this error from our own runs
small            the whole interval of a difference of solved problems lies within 3 percentage
                 points of zero
excluded, small  both
compatible       neither, the interval decides the direction, and the paper's number lies within
                 both errors
no number        neither, the interval decides the direction, and the paper gives no number
uninformative    neither, and the interval does not decide the direction

The 3 points were chosen after most results were known; no direction depends on them.

The column `posed` names the commit in which a claim was first written down. `changed` says what was
changed afterwards, in which commit and why. A claim that was posed again also keeps its first form:
agent-1 is the first, agent-1b the second. data/paper/posed.csv says of each row whether its form is
older than its first result (`lib.study.posed`).
"""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.files import PAPER
from lib.study.intervals import Measured, measured

# weakest first; a claim gets the weakest of its comparisons
ANSWERS = ["not run", "reversed", "open", "holds"]
DIRECTIONS = ["higher", "lower", "highest", "lowest", "equal", "zero"]
FEW = 3  # a claim that rests on so many runs of a method, or fewer, says so
COLUMNS = ["estimate", "low", "high", "n_problems", "seeds", "few", "borrowed", "p", "detectable"]
COLUMNS += ["theirs", "error", "against", "comparisons", "hypothesis", "alone", "size"]
# units of results.csv
PER = {"percent": 100, "percentage points": 100, "of 800": 800, "problems of 50": 50}
# Metrics that are shares of problems solved, and a difference of them that is too small to matter
# here
SOLVED = r"(?:mean )?pass@(?:k<=)?\d+|any(?: of \d+ games)?|likeliest|solved at equal tokens"
NEAR = 0.03
# other sets of the papers have 50
PROBLEMS = {"heldout_400": 400, "levels": 576, "test_50_n3": 24, "test_50_n4": 26}
PROBLEMS |= {f"levels L{group}": 64 for group in range(1, 10)}


def planned(paper: str | None = None) -> pd.DataFrame:
    """The claims of one paper, or of all. Columns id, paper, section, claim, and those that say
    what is compared:

    runs: "A;B" asks for A minus B. "A;B;C" asks for A minus B and A minus C (directions highest and
    lowest) or for each method alone (zero). "A" asks for A alone. starts: the policies that A and B
    were trained from, if their changes since then are compared. bound is subtracted from the
    estimate. factor multiplies B, or the change of B. margin: two values that differ by less count
    as equal. metric and set are ours. problem_set, paper_metric and paper_runs are the paper's;
    empty cells of paper_metric and paper_runs are filled from metric and runs. note: what is
    censored, selected or chosen. posed, changed: see the top of this module.

    Raises ValueError that names the claim if a direction is unknown or a margin is missing.
    """
    empty = dict.fromkeys(("starts", "note", "posed", "changed"), "")
    table = pd.read_csv(PAPER / "claims.csv").fillna(empty | {"bound": 0.0, "factor": 1.0})
    for column in ("metric", "runs"):
        table[f"paper_{column}"] = table[f"paper_{column}"].fillna(table[column])
    for row in table[~table["direction"].isin(DIRECTIONS)].itertuples():
        raise ValueError(
            f"claims.csv, {row.id}: direction {row.direction!r} is none of {', '.join(DIRECTIONS)}"
        )
    for name, runs in zip(table["id"], table["runs"].str.split(";"), strict=True):
        if len(runs) > len({*runs}):
            raise ValueError(
                f"claims.csv, {name}: a method is compared with itself: {';'.join(runs)}"
            )
    for row in table[
        table["direction"].isin(["equal", "zero"]) & ~(table["margin"] > 0)
    ].itertuples():
        raise ValueError(
            f"claims.csv, {row.id}: {row.direction!r} needs a margin within which it holds"
        )
    return table if paper is None else table[table["paper"] == paper].reset_index(drop=True)


def comparisons(claim, in_paper=False) -> list[dict[str, float]]:
    """The contrasts that a row of `planned` asks for, each as a weight for every method. With
    `in_paper`, the contrasts are those of the paper: its own runs, without `starts`, since all
    policies of a paper start from one policy."""
    first, *others = (claim.paper_runs if in_paper else claim.runs).split(";")
    if claim.metric.startswith("slope of "):  # over all their runs, one number
        return [dict.fromkeys((first, *others), 1.0)]
    if claim.direction == "zero" or not others:
        return [{method: 1.0} for method in (first, *others)]
    if len(others) > 1 and claim.direction not in ("highest", "lowest"):
        raise ValueError(
            f"claims.csv, {claim.id}: {claim.direction!r} compares two methods, not {claim.runs}"
        )
    contrasts = [{first: 1.0, other: -claim.factor} for other in others]
    if claim.starts and not in_paper:  # A - A's start - factor (B - B's start)
        for start, sign in zip(claim.starts.split(";"), (-1.0, claim.factor), strict=True):
            contrasts[0][start] = contrasts[0].get(start, 0.0) + sign
    return [_without_zeros(weights) for weights in contrasts]


def _without_zeros(weights: dict[str, float]) -> dict[str, float]:
    """The methods that take part in a contrast."""
    return {method: weight for method, weight in weights.items() if weight}


def answer(low: float, high: float, direction: str, seeds: int, margin=np.nan) -> str:
    """The answer on direction, from the interval of a contrast. `seeds`: runs of the method that
    has the fewest."""
    if np.isnan(low) or seeds < 2:
        return "open"
    if direction in ("equal", "zero"):
        if -margin < low and high < margin:
            return "holds"
        return "reversed" if low > margin or high < -margin else "open"
    if direction in ("lower", "lowest"):
        return answer(-high, -low, "higher", seeds)
    return "holds" if low > 0 else "reversed" if high < 0 else "open"


def size(alone: str, excluded: bool, small: bool, number: bool) -> str:
    """The answer on size, from the answer on direction, whether our interval excludes the paper's
    number, whether the effect is small, and whether the paper gives a number (see the top of this
    module)."""
    if excluded or small:
        return ", ".join(["excluded"] * excluded + ["small"] * small)
    if alone == "open":
        return "uninformative"
    return "compatible" if number else "no number"


def hypothesis(claim, weights: Mapping[str, float]) -> str:
    """What is tested, as a text that is the same for every claim that tests it: contrast, metric,
    set, and the value that the contrast is compared with. A claim that A is higher than B and one
    that B is higher than A test the same. For example "rloo/sparse - sft/free, pass@1,
    heldout_1000, beyond 0"."""
    terms = sorted(weights.items())
    sign = np.sign(terms[0][1])
    parts = []
    for method, weight in terms:
        factor = "" if abs(weight) == 1 else f"{abs(weight):g} "
        parts.append(f"{'-' if sign * weight < 0 else '+'} {factor}{method}")
    if claim.direction in ("equal", "zero"):
        value = f"within {claim.margin:g}" + (f" of {sign * claim.bound:g}" if claim.bound else "")
    else:
        value = f"beyond {sign * claim.bound if claim.bound else 0:g}"
    return ", ".join([" ".join(parts).removeprefix("+ "), claim.metric, claim.set, value])


def evaluate(
    claims: pd.DataFrame, scores: pd.DataFrame, ready: Mapping[str, tuple] | None = None
) -> pd.DataFrame:
    """Answers the `claims` (rows of `planned`), one row per claim. A claim of several comparisons
    gets the row of the one with the weakest answer; among equally weak ones, the row with the
    smallest lead.

    scores: the scores of all methods of the study, in the form that `lib.study.intervals` takes.
    Numbers of training logs are brought into it by `intervals.of_logs`. ready: for claims that are
    no contrast of means, such as a crossover, their (estimate, low, high, seeds) by the id of the
    claim, and as a fifth number their p if they have one.

    Columns estimate, low, high, n_problems, seeds, borrowed (`intervals`); few, whether a method
    has three runs or fewer; p, the error level at which the answer would change; detectable, the
    smallest effect that is seen with a power of 80%; theirs, the paper's value, and error, its
    standard error; against, the baseline; comparisons, the number of comparisons that the claim
    consists of; hypothesis (see the function); alone and size, the two answers."""
    paper = pd.read_csv(PAPER / "results.csv")
    paper["value"] /= paper["unit"].map(PER).fillna(1)
    paper = paper.drop_duplicates(["paper", "method", "set", "metric"]).set_index(
        ["paper", "method", "set", "metric"]
    )
    rows = []
    for claim in claims.itertuples():
        paper_value = reported(claim, paper["value"])
        if ready and claim.id in ready:
            row = _ready(claim, paper_value, *ready[str(claim.id)])
        else:
            row = _weakest(claim, paper_value, scores)
        rows.append(
            {"id": claim.id, "comparisons": len(comparisons(claim)), "theirs": paper_value} | row
        )
    return claims.merge(pd.DataFrame(rows, columns=["id", *COLUMNS]), on="id")


def reported(claim, paper: pd.Series) -> float:
    """The paper's value for a claim: with several comparisons the one that is least favourable to
    the claim. NaN if the paper gives no value."""
    values = []
    for weights in comparisons(claim, in_paper=True):
        keys = [(claim.paper, method, claim.problem_set, claim.paper_metric) for method in weights]
        difference = (claim.paper, " - ".join(weights), *keys[0][2:])
        if len(keys) > 1 and difference in paper.index:  # the paper gives only the difference
            values.append(paper[difference] - claim.bound)
        else:
            values.append(paper.reindex(keys).to_numpy() @ [*weights.values()] - claim.bound)
    # infinite for a crossover that never happened
    values = [value for value in values if np.isfinite(value)]
    if not values:
        return np.nan
    if claim.direction == "zero":
        return max(values, key=abs)
    return max(values) if claim.direction in ("lower", "lowest") else min(values)


def _weakest(claim, paper_value: float, scores: pd.DataFrame) -> dict:
    """The weakest of the comparisons of one claim, as a row of `evaluate`. `paper_value` is the
    paper's value."""
    contrasts = comparisons(claim)
    results = {}
    if claim.metric in scores:
        claim_scores = scores.loc[scores.index.isin([claim.set], level="set"), [claim.metric]]
        results = measured(claim_scores, dict(enumerate(contrasts)))
    if len(results) < len(contrasts):
        return {"alone": "not run", "hypothesis": hypothesis(claim, contrasts[0])}
    rows = []
    for result, weights in zip(results.values(), contrasts, strict=True):
        row = _compared(claim, paper_value, result)
        row |= {"against": "".join([*weights][1:2]), "hypothesis": hypothesis(claim, weights)}
        rows.append(row)

    def strength(row: dict) -> tuple[int, float]:
        lead = row["estimate"] if claim.direction in ("higher", "highest") else -row["estimate"]
        return ANSWERS.index(row["alone"]), -abs(lead) if claim.direction in (
            "equal",
            "zero",
        ) else lead

    return min(rows, key=strength)


def _ready(claim, paper_value: float, estimate, low, high, seeds, p=np.nan) -> dict:
    """The columns of `evaluate` for a claim whose interval was computed elsewhere."""
    row = {
        "estimate": estimate,
        "low": low,
        "high": high,
        "seeds": seeds,
        "few": seeds <= FEW,
        "p": p,
    }
    row["hypothesis"] = hypothesis(claim, comparisons(claim)[0])
    row["alone"] = answer(low, high, claim.direction, seeds, claim.margin)
    row["size"] = size(row["alone"], False, False, np.isfinite(paper_value))
    return row


def _compared(claim, paper_value: float, contrast: Measured) -> dict:
    """The columns of `evaluate` for one comparison, from its `contrast`."""
    low, high = (end - claim.bound for end in contrast.ends())
    estimate = contrast.estimate - claim.bound
    row = {"estimate": estimate, "low": low, "high": high, "n_problems": contrast.problems}
    row |= {"seeds": contrast.runs, "few": contrast.runs <= FEW, "borrowed": contrast.borrowed}
    row["alone"] = answer(low, high, claim.direction, contrast.runs, claim.margin)
    if contrast.runs < 2:
        return row | {"size": "uninformative"}
    edge = np.copysign(claim.margin, estimate) if claim.direction in ("equal", "zero") else 0.0
    row["p"] = contrast.p(claim.bound + edge)
    row["detectable"] = contrast.detectable()
    of_solved = re.fullmatch(SOLVED, str(claim.metric)) and not claim.bound and claim.factor == 1
    small = bool(of_solved) and low > -NEAR and high < NEAR
    excluded = False
    number = bool(np.isfinite(paper_value))
    if number:
        error = contrast.error_of_one_run(PROBLEMS.get(claim.problem_set, 50))
        row["error"] = error or np.nan  # unknown where all our scores are equal
        if error > 0:
            excluded = bool(abs(estimate - paper_value) > np.hypot((high - low) / 2, 1.96 * error))
    row["size"] = size(row["alone"], excluded, small, number)
    return row
