"""How much runs of one trainer differ: data/spreads.csv, from which methods with few runs borrow.

The table is made from all published policies that were trained at least four times. A trainer with
fewer than four such policies gets the numbers of all trainers together. `python -m lib.runs
spreads` makes it again.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import digamma, polygamma

from lib.files import DATA, REFERENCE, progress
from lib.study import intervals, judging, metrics

TABLE = DATA / "spreads.csv"
SET = "heldout_1000"
KS = (1, 2, 4, 8, 16)
ASKED = [f"pass@{k}" for k in KS]
ASKED += ["mean pass@k<=16", "wrong_numbers", "missing", "distinct completions", intervals.EQUAL]


def prior(seen, freedom) -> tuple[float, float]:
    """Location and degrees of freedom of the scaled inverse chi-square that variances follow whose
    estimates `seen` have so many degrees each: moments of their logarithms (Smyth 2004)."""
    moved = np.log(seen) - digamma(freedom / 2) + np.log(freedom / 2)
    rest = moved.var(ddof=1) - polygamma(1, freedom / 2).mean()
    # Less than half a degree, or more than thirty, no dozen of policies can tell
    grid = np.geomspace(0.5, 30, 2000)
    own = grid[np.abs(polygamma(1, grid / 2) - max(rest, 1e-9)).argmin()]
    return float(np.exp(moved.mean() + digamma(own / 2) - np.log(own / 2))), float(own)


def measure() -> pd.DataFrame:
    """The table, from the published samples. Columns trainer, metric, variance between runs net of
    problems, freedom, policies."""
    found: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    budget = _budget()
    for method, runs in _policies():
        scores = _scores(runs, budget)
        contrasts = intervals.measured(scores[ASKED], {method: {method: 1.0}})
        for (_, _, metric), one in contrasts.items():
            if one.of_runs and one.runs >= intervals.ENOUGH:
                row = (one.of_runs * one.runs, one.interaction * one.runs, one.runs - 1)
                found.setdefault((intervals.trainer(method), metric), []).append(row)
    table = []
    for name, metric in sorted(found):
        each = found[name, metric]
        if len(each) < 4:  # too few to know how unequal spreads are: those of all trainers
            each = [row for (_, other), rows in found.items() if other == metric for row in rows]
        seen, made, freedom = np.array(each).T
        at, own = prior(seen, freedom)
        own = min(own, freedom.sum())  # no more than these policies know
        table.append((name, metric, max(0.0, at - np.median(made)), own, len(each)))
    return pd.DataFrame(table, columns=["trainer", "metric", "variance", "freedom", "policies"])


def _budget() -> float:
    """The mean number of tokens of sixteen samples of SFT."""
    of_start = judging.samples(REFERENCE / "cpu/sample/sft_free/*", [SET])
    return 16 * metrics.text_scores(of_start)["tokens"].mean()


def _policies() -> Iterator[tuple[str, list[Path]]]:
    """Each published policy that was trained four times or more, and the folders of its samples."""
    for folder in progress(sorted(REFERENCE.glob("*/sample/*")), 0, "reading"):
        records = sorted(folder.glob("*/run.json"))
        if len(records) < intervals.ENOUGH:
            continue
        method = json.loads(records[0].read_text())["method"]
        # A folder of another name has other samples of the policy: other sets and temperatures
        if folder.name == method.replace("/", "_"):
            yield method, [path.parent for path in records]


def _scores(runs: list[Path], budget: float) -> pd.DataFrame:
    """The scores of a policy's samples with a column for each metric of ASKED."""
    judged = judging.samples(runs, [SET])
    counts = metrics.counts(judged)
    scores = metrics.problem_scores(counts, KS, (16,)).join(metrics.text_scores(judged))
    paid = (budget / scores["tokens"].groupby("method").mean()).clip(1, 16)
    scores[intervals.EQUAL] = metrics.solved_with(counts, paid)
    return scores
