"""Compares the agent's searches with full answers: scores per problem, with two readings of the
agent's pass@1.

A system is a policy together with the settings of its search (`lib.study.systems`). A search
ends with several games. The column "pass@1" says whether the game that the model's own score
ranks first is a solution; "any" says whether at least one of the games is, which an executor can
check without a solver. For full answers "any" is pass@16."""

from collections.abc import Sequence

import pandas as pd

from lib.game.sets import load_set
from lib.study import coverage, intervals, metrics, systems

SETS = ["heldout_1000", "levels", "test_50"]
# policies that learn from the solver's labels of actions or states
SOLVER_TAUGHT = ["preference/agent_binary", "preference/agent_hard", "preference/agent_soft"]
SOLVER_TAUGHT += ["sft/value"]
# policies that were trained again: the agent from a start that has seen lost games too, which names
# legal moves, and full-answer DPO with settings that were chosen on validation
LEGAL = ["sft/pick_legal", "sft/distilled_legal", "preference/pick_binary", "preference/pick_hard"]
LEGAL += ["preference/pick_soft", "preference/dpo_tuned", "preference/dpo_chosen"]
DRAWN = 16  # number of full answers that are compared with one search
MEANS = {"pass@1": "mean", "any": "max", "score": "mean", "tokens": "sum", "seconds": "sum"}
MEANS |= {"rejections": "sum", "sampled": "sum"}


def search_scores(*tables: pd.DataFrame) -> pd.DataFrame:
    """The columns MEANS for each problem, indexed by `metrics.KEYS`, and "rejected" (see
    `_rejected`). `tables`: results of `systems.searches`. If a system has played a problem in
    several tables, only the first of them counts."""
    scores = pd.concat([table.groupby(metrics.KEYS).agg(MEANS) for table in tables if len(table)])
    return _rejected(scores[~scores.index.duplicated()])


def _rejected(scores: pd.DataFrame) -> pd.DataFrame:
    """`scores` with the column "rejected": of all tags that a run samples on a set, the share that
    names no legal action (`agent`, Section 4.1), as one score per problem (`metrics.share`)."""
    return scores.assign(rejected=metrics.share(scores["rejections"], scores["sampled"]))


def answer_scores(answers: pd.DataFrame) -> pd.DataFrame:
    """The columns of `search_scores` for full answers (`judging.samples`), but without seconds and
    rejections. Tokens are those of all the answers that pass@16 needs. In the score an answer with
    other numbers, or one that cannot be read, earns nothing: it is no valid path (`agent`, Section
    4.1)."""
    texts = metrics.text_scores(answers)
    table = metrics.problem_scores(metrics.counts(answers), (1, DRAWN), mean_to=())
    table = table.rename(columns={f"pass@{DRAWN}": "any"})
    score = texts["correct"] + 0.1 * texts["wrong_value"]
    return table.assign(score=score, tokens=DRAWN * texts["tokens"])


def any_at_equal_tokens(
    answers: pd.DataFrame, searched: pd.DataFrame, search: str, name: str = "heldout_1000"
) -> pd.Series:
    """The column "any at equal tokens" on one set: what a search solves with any of its games, and
    each policy of full answers with as many samples as the search's tokens pay for, from 1 to DRAWN
    (see `metrics.solved_with`).

    answers: a table of `judging.samples`; searched: a result of `search_scores`; search: the name
    of the system, which may be missing."""
    answers = answers[answers["set"] == name]
    on_set = searched.xs(name, level="set")
    tokens = on_set["tokens"].groupby("method").mean().get(search, 0.0)
    samples = coverage.paid_by(answers, tokens).clip(1, DRAWN)
    of_search = searched.loc[searched.index.isin([search], level="method"), "any"].astype(float)
    parts = [of_search]
    if len(answers):
        parts.append(metrics.solved_with(metrics.counts(answers), samples))
    return pd.concat(parts).rename("any at equal tokens")


def by_tries(
    answers: pd.DataFrame,
    games: pd.DataFrame,
    costs: pd.DataFrame,
    ks: Sequence[int] = (1, 2, 4, 8, DRAWN),
) -> pd.DataFrame:
    """What k independent full answers or single games solve if any of them is right, and what they
    cost, for each k of `ks`.

    answers: a table of `judging.samples`; games: one of `systems.searches`, of which those with
    repeats count; costs: tokens and seconds of the most of `ks` tries, indexed by set and method.
    Columns set, method, k, estimate, low, high, runs, tokens, seconds."""
    single = games[games["repeats"] > 1].assign(count=1)
    tries = pd.concat([metrics.counts(table) for table in (answers, single) if len(table)])
    tries = metrics.problem_scores(tries, ks, mean_to=())
    curve = intervals.estimates(tries)
    curve["k"] = curve["metric"].str.removeprefix("pass@").astype(int)
    curve = curve.join(costs / ks[-1], on=["set", "method"])
    spent = ["tokens", "seconds"]
    curve[spent] = curve[spent].mul(curve["k"], axis=0)
    return curve[["set", "method", "k", "estimate", "low", "high", "runs", *spent]]


def any_of_games(single: pd.DataFrame, searched: pd.DataFrame, search: str) -> pd.Series:
    """What all single games of a problem solve if any of them is right, and what a search solves
    with any of its games, on the set of the single games: the column "any of N games".

    single: a table of `systems.searches` with N repeats of each problem; searched: a result of
    `search_scores`; search: the name of the system."""
    counts = metrics.counts(single.assign(count=1))
    number = int(counts["n"].min())
    solved = metrics.problem_scores(counts, (number,), mean_to=())[f"pass@{number}"]
    on_set = searched.index.isin(counts.index.unique("set"), level="set")
    of_search = on_set & searched.index.isin([search], level="method")
    games = searched.loc[of_search, "any"].astype(float)
    return pd.concat([solved, games]).rename(f"any of {number} games")


def with_groups(scores: pd.DataFrame) -> pd.DataFrame:
    """`scores`, in which each group of problems of the set "levels" is added as a set of its own,
    "levels L1" to "levels L9"."""
    levels = scores[scores.index.isin(["levels"], level="set")].reset_index()
    levels["set"] = "levels " + levels["problem"].map(groups())
    levels = levels.set_index(metrics.KEYS)
    return pd.concat([scores, _rejected(levels) if "sampled" in levels else levels])


def by_group(scores: pd.DataFrame, column: str = "any") -> pd.DataFrame:
    """What `agent`, Table 3 and Section 4.3, says of its nine groups, on the set "levels" alone:
    where the failures are, and how much of the easy groups is solved. `scores`: a result of
    `search_scores`; `column`: the reading of pass@1. One score per problem.

    failures in L7 and L9: the share of all failures that are in these two. failures in L9 beyond
    those in L7: L7 has the second most in the paper. solved in L1, L2, L5 and L6: the share of
    their problems."""
    solved = scores.loc[scores.index.isin(["levels"], level="set"), column].astype(float).dropna()
    group = solved.index.get_level_values("problem").map(groups().to_dict())
    failures = 1 - solved
    hardest = failures.where(group == "L9", 0.0)
    second = failures.where(group == "L7", 0.0)
    easy = pd.Series(group.isin(["L1", "L2", "L5", "L6"]), solved.index).astype(float)
    return pd.DataFrame(
        {
            "failures in L7 and L9": metrics.share(hardest + second, failures),
            "failures in L9 beyond those in L7": metrics.share(hardest - second, failures),
            "solved in L1, L2, L5 and L6": metrics.share(solved * easy, easy),
        }
    )


def finished_failures(scores: pd.DataFrame) -> pd.Series:
    """Of the searches whose chosen game is no solution, the share in which that game was finished:
    it earns 0.1 in the score. One score per problem."""
    failures = 1 - scores["pass@1"]
    return metrics.share(10 * (scores["score"] - scores["pass@1"]), failures)


def part_of(runs: str) -> str:
    """The part of the study that a claim about these runs (`claims.planned`) belongs to.

    legal: about policies whose start has seen lost games too, about full-answer DPO with chosen
    settings, or about a filter of actions. taught: what a policy or a search learns from the
    solver, which is Action DPO, a learned value, or a value that guides a search. search: the
    others."""
    about = [systems.of(name) for name in runs.split(";")]
    if any(system.policy in LEGAL or system.redraws for system in about):
        return "legal"
    if any(system.policy in SOLVER_TAUGHT or system.rerank != "none" for system in about):
        return "taught"
    return "search"


def groups() -> pd.Series:
    """The group of each problem of the set "levels": L1 to L9, by its numbers, operators and number
    of solutions."""
    return pd.Series(load_set("levels")["group"])
