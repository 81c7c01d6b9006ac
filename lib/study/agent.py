"""The agent's searches beside full answers: one score per problem for each, in the two readings of its pass@1.

A system is a policy with the settings of its search, such as "sft/pick 16/16 +soft". A search ends with several games:
pass@1 asks whether the game that the model's own score ranks first is a solution, and any whether one of them is, which
an executor sees without a solver. For full answers any is pass@16.
"""

import pandas as pd

from lib.game.problem import load_set
from lib.study import judging, metrics

SETS = ["heldout_1000", "levels", "test_50"]
DRAWN = 16  # full answers that stand beside one search
MEANS = {"pass@1": "mean", "any": "max", "score": "mean", "rejected": "mean", "tokens": "sum", "seconds": "sum"}


def played(patterns) -> pd.DataFrame:
    """`metrics.searched` of search runs, where a method is named with its system."""
    found = metrics.searched(judging.games(patterns))
    return found.assign(method=found["method"] + " " + found["system"])


def systems(*tables: pd.DataFrame) -> pd.DataFrame:
    """The columns MEANS of each problem, indexed by `metrics.KEYS`, of tables of `played`. A problem that a system has
    played in several tables counts as in the first of them."""
    scores = pd.concat([table.groupby(metrics.KEYS).agg(MEANS) for table in tables if len(table)])
    return scores[~scores.index.duplicated()]


def full_answers(answers: pd.DataFrame) -> pd.DataFrame:
    """The same of full answers (`judging.samples`), without seconds; tokens are those of all that pass@16 takes."""
    texts = metrics.text_scores(answers)
    tries = metrics.problem_scores(metrics.counts(answers), (1, DRAWN), mean_to=()).loc[texts.index]
    score = 0.9 * texts["correct"] + 0.1 * (1 - texts["missing"])
    columns = {"pass@1": tries["pass@1"], "any": tries[f"pass@{DRAWN}"], "score": score}
    return pd.DataFrame(columns | {"tokens": DRAWN * texts["tokens"]})


def with_groups(scores: pd.DataFrame) -> pd.DataFrame:
    """`scores` with each group of the levels as a set of its own: "levels L1" to "levels L9"."""
    hard = scores[scores.index.isin(["levels"], level="set")].reset_index()
    hard["set"] = "levels " + hard["problem"].map(groups())
    return pd.concat([scores, hard.set_index(metrics.KEYS)])


def groups() -> pd.Series:
    """The group of each problem of the levels, L1 to L9 by numbers, operators and number of solutions."""
    return pd.Series(load_set("levels")["group"])
