"""Compares the agent's searches with full answers: scores per problem, with two readings of the agent's pass@1.

A system is a policy together with the settings of its search, such as "sft/pick 16/16 +soft". A search ends with
several games. The column "pass@1" says whether the game that the model's own score ranks first is a solution; "any"
says whether at least one of the games is, which an executor can check without a solver. For full answers "any" is
pass@16.
"""

import pandas as pd

from lib.game.problem import load_set
from lib.study import judging, metrics

SETS = ["heldout_1000", "levels", "test_50"]
DRAWN = 16  # number of full answers that are compared with one search
MEANS = {"pass@1": "mean", "any": "max", "score": "mean", "rejected": "mean", "tokens": "sum", "seconds": "sum"}


def played(patterns) -> pd.DataFrame:
    """`metrics.searched` of the search runs that fit `patterns`; the column "method" names the whole system."""
    searches = metrics.searched(judging.games(patterns))
    return searches.assign(method=searches["method"] + " " + searches["system"])


def systems(*tables: pd.DataFrame) -> pd.DataFrame:
    """The columns MEANS for each problem, indexed by `metrics.KEYS`. `tables`: results of `played`. If a system has
    played a problem in several tables, only the first of them counts."""
    scores = pd.concat([table.groupby(metrics.KEYS).agg(MEANS) for table in tables if len(table)])
    return scores[~scores.index.duplicated()]


def full_answers(answers: pd.DataFrame) -> pd.DataFrame:
    """The same columns for full answers (`judging.samples`), but without seconds. Tokens are those of all the answers
    that pass@16 needs."""
    texts = metrics.text_scores(answers)
    table = metrics.problem_scores(metrics.counts(answers), (1, DRAWN), mean_to=())
    table = table.rename(columns={f"pass@{DRAWN}": "any"})
    score = 0.9 * texts["correct"] + 0.1 * (1 - texts["missing"])
    return table.assign(score=score, tokens=DRAWN * texts["tokens"])


def with_groups(scores: pd.DataFrame) -> pd.DataFrame:
    """`scores`, in which each group of problems of the set "levels" is added as a set of its own, "levels L1" to
    "levels L9"."""
    levels = scores[scores.index.isin(["levels"], level="set")].reset_index()
    levels["set"] = "levels " + levels["problem"].map(groups())
    return pd.concat([scores, levels.set_index(metrics.KEYS)])


def groups() -> pd.Series:
    """The group of each problem of the set "levels": L1 to L9, by its numbers, operators and number of solutions."""
    return pd.Series(load_set("levels")["group"])
