"""The agent's searches beside full answers: scores of a problem, counted by hand."""

import pandas as pd
import pytest

from lib.study import agent, metrics


def searches(*rows, method="sft/pick 16/16 sampled", problem=0) -> pd.DataFrame:
    """One row per search: pass@1, any, score, rejected, tokens, seconds."""
    keys = {"method": method, "seed": 0, "set": "levels", "problem": problem}
    return pd.DataFrame(rows, columns=[*agent.MEANS]).assign(**keys)


def test_searches_of_one_problem_are_one_score_and_cost_what_all_of_them_cost():
    twice = searches((0, 1, 0.1, 0.25, 100, 3.0), (1, 1, 1.0, 0.75, 50, 1.0), (0, 0, 0.1, 0.5, 30, 2.0))
    once = searches((0, 0, 0.0, 0.0, 10, 1.0), problem=1)
    again = searches((1, 1, 1.0, 0.0, 1, 1.0), problem=1)  # the same system on the same problem in a later run
    other = searches((1, 1, 1.0, 0.0, 1, 1.0), method="sft/pick 1/1")
    scores = agent.systems(pd.concat([twice, once]), once[:0], pd.concat([again, other]))
    assert scores.index.tolist() == [
        ("sft/pick 16/16 sampled", 0, "levels", 0),
        ("sft/pick 16/16 sampled", 0, "levels", 1),
        ("sft/pick 1/1", 0, "levels", 0),
    ]
    assert scores.iloc[0].tolist() == pytest.approx([1 / 3, 1, 0.4, 0.5, 180, 6.0])
    assert scores.iloc[1].tolist() == [0, 0, 0, 0, 10, 1]


def test_full_answers_are_scored_as_searches_are():
    """Sixteen answers: four are right, two are missing. `agent` gives 0.1 for any finished answer that is wrong."""
    rows = [("right", "correct", 4, 10), ("wrong", "wrong_value", 10, 20), ("none", "missing", 2, 40)]
    answers = pd.DataFrame(rows, columns=["completion", "status", "count", "tokens"])
    answers = answers.assign(correct=answers["status"] == "correct", solution="1 + 2", finish="stop", style="free")
    [scores] = agent.full_answers(answers.assign(method="sft/free", seed=0, set="levels", problem=0)).to_dict("records")
    assert scores == pytest.approx(
        {"pass@1": 4 / 16, "any": 1, "score": (4 * 1.0 + 10 * 0.1) / 16, "tokens": 4 * 10 + 10 * 20 + 2 * 40}
    )


def test_each_group_of_levels_is_a_set_beside_the_whole():
    sizes = agent.groups().value_counts()
    assert sizes.to_dict() == {f"L{number}": 64 for number in range(1, 10)}
    index = pd.MultiIndex.from_product([["sft/pick"], [0], ["levels", "test_50"], range(576)], names=metrics.KEYS)
    scores = pd.DataFrame({"pass@1": range(len(index))}, index)
    grouped = agent.with_groups(scores)
    assert grouped.loc[scores.index].equals(scores)
    assert grouped.groupby("set").size().to_dict() == {"levels": 576, "test_50": 576} | {
        f"levels {group}": 64 for group in sizes.index
    }
    problems = grouped.xs("levels L3", level="set").index.get_level_values("problem")
    assert set(agent.groups()[problems]) == {"L3"}
