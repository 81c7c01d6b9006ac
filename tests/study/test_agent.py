"""The agent's searches beside full answers: scores of a problem, counted by hand."""

import pandas as pd
import pytest

from lib.study import agent, metrics


def searches(*rows, method="sft/pick 16/16 sampled", problem=0) -> pd.DataFrame:
    """One row per search: pass@1, any, score, tokens, seconds, rejections, sampled."""
    keys = {"method": method, "seed": 0, "set": "levels", "problem": problem}
    return pd.DataFrame(rows, columns=[*agent.MEANS]).assign(**keys)


def test_searches_of_one_problem_are_one_score_and_cost_what_all_of_them_cost():
    twice = searches(
        (0, 1, 0.1, 100, 3.0, 1, 4), (1, 1, 1.0, 50, 1.0, 3, 4), (0, 0, 0.1, 30, 2.0, 2, 4)
    )
    once = searches((0, 0, 0.0, 10, 1.0, 0, 88), problem=1)
    # the same system on the same problem in a later run
    again = searches((1, 1, 1.0, 1, 1.0, 0, 9), problem=1)
    other = searches((1, 1, 1.0, 1, 1.0, 0, 9), method="sft/pick 1/1")
    scores = agent.search_scores(pd.concat([twice, once]), once[:0], pd.concat([again, other]))
    assert scores.index.tolist() == [
        ("sft/pick 16/16 sampled", 0, "levels", 0),
        ("sft/pick 16/16 sampled", 0, "levels", 1),
        ("sft/pick 1/1", 0, "levels", 0),
    ]
    plain = scores[[*agent.MEANS]]
    assert plain.iloc[0].tolist() == pytest.approx([1 / 3, 1, 0.4, 180, 6.0, 6, 12])
    assert plain.iloc[1].tolist() == [0, 0, 0, 10, 1, 0, 88]
    # six of a hundred tags name no legal action, though the problems' own shares, one half and
    # none, have a mean of 25%
    assert scores["rejected"][:2].mean() == pytest.approx(6 / 100)


def test_a_claim_belongs_to_one_part_of_the_study():
    assert agent.part_of("sft/pick 16/16;rloo/sparse") == "search"
    assert agent.part_of("sft/pick 1/8 +binary;sft/pick 1/8") == "taught"
    assert agent.part_of("preference/agent_hard 16/16;sft/pick 16/16") == "taught"
    assert agent.part_of("sft/pick_legal 1/8 +binary;sft/pick_legal 1/8") == "legal"
    assert agent.part_of("sft/pick_12000 16/16 redrawn=8;sft/pick_12000 16/16") == "legal"


def test_full_answers_are_scored_as_searches_are():
    """Sixteen answers: four are right, two are missing, three use other numbers. `agent` gives 0.1
    for a valid path that misses the target, and nothing for an invalid or broken one."""
    rows = [
        ("right", "correct", 4, 10),
        ("wrong", "wrong_value", 7, 20),
        ("none", "missing", 2, 40),
    ]
    rows += [("other", "wrong_numbers", 3, 20)]
    answers = pd.DataFrame(rows, columns=["completion", "status", "count", "tokens"])
    answers = answers.assign(
        correct=answers["status"] == "correct", solution="1 + 2", finish="stop", style="free"
    )
    [scores] = agent.answer_scores(
        answers.assign(method="sft/free", seed=0, set="levels", problem=0)
    ).to_dict("records")
    assert scores == pytest.approx(
        {
            "pass@1": 4 / 16,
            "any": 1,
            "score": (4 * 1.0 + 7 * 0.1) / 16,
            "tokens": 4 * 10 + 10 * 20 + 2 * 40,
        }
    )


def test_each_group_of_levels_is_a_set_beside_the_whole():
    sizes = agent.groups().value_counts()
    assert sizes.to_dict() == {f"L{number}": 64 for number in range(1, 10)}
    index = pd.MultiIndex.from_product(
        [["sft/pick"], [0], ["levels", "test_50"], range(576)], names=metrics.KEYS
    )
    scores = pd.DataFrame({"pass@1": range(len(index))}, index)
    grouped = agent.with_groups(scores)
    assert grouped.loc[scores.index].equals(scores)
    assert grouped.groupby("set").size().to_dict() == {"levels": 576, "test_50": 576} | {
        f"levels {group}": 64 for group in sizes.index
    }
    problems = grouped.xs("levels L3", level="set").index.get_level_values("problem")
    assert set(agent.groups()[problems]) == {"L3"}


def levels_solved(by_group: dict[str, float], **columns) -> pd.DataFrame:
    """Scores of one run on "levels": in each group this share of its 64 problems is solved,
    elsewhere all are."""
    group = agent.groups()
    rank = group.groupby(group).cumcount()
    solved = (rank < 64 * group.map(by_group).fillna(1.0)).astype(float)
    index = pd.MultiIndex.from_product(
        [["sft/pick 16/16"], [0], ["levels"], group.index], names=metrics.KEYS
    )
    return pd.DataFrame({"any": solved.to_numpy(), **columns}, index)


def test_where_the_failures_are():
    """32 in L9, 16 in L7 and 16 in L1: one in four of all is in L1, whose problems are a quarter of
    the easy ones."""
    found = agent.by_group(levels_solved({"L9": 0.5, "L7": 0.75, "L1": 0.75})).mean()
    assert found["failures in L7 and L9"] == pytest.approx(48 / 64)
    assert found["failures in L9 beyond those in L7"] == pytest.approx(16 / 64)
    assert found["solved in L1, L2, L5 and L6"] == pytest.approx(1 - 16 / 256)


def test_a_failure_is_a_finished_game_if_it_earns_a_tenth():
    # 48 failures, of which those of L9 are finished
    scores = levels_solved({"L9": 0.5, "L7": 0.75})
    finished = agent.groups().eq("L9").to_numpy() & scores["any"].eq(0)
    scores = scores.assign(**{"pass@1": scores["any"], "score": scores["any"] + 0.1 * finished})
    assert agent.finished_failures(scores).mean() == pytest.approx(32 / 48)


def test_single_games_stand_beside_a_search_on_their_set():
    """Of three single games of a problem any may be right. The search has a row for each problem of
    their set and none for others."""
    single = pd.DataFrame(
        [(0, False), (0, True), (0, False), (1, False), (1, False), (1, False)],
        columns=["problem", "correct"],
    ).assign(method="sft/pick 1/1 sampled", seed=0, set="levels")
    rows = [("levels", 0, 0), ("levels", 1, 1), ("test_50", 0, 1)]
    searched = pd.DataFrame(rows, columns=["set", "problem", "any"])
    searched = searched.assign(method="sft/pick 16/16", seed=0).set_index(metrics.KEYS)
    both = agent.any_of_games(single, searched, "sft/pick 16/16")
    assert both.name == "any of 3 games"
    assert both["sft/pick 1/1 sampled"].tolist() == [1, 0]
    assert both["sft/pick 16/16"].tolist() == [0, 1]
