"""Success moment by moment, on tables by hand."""

import pandas as pd
import pytest

from lib.study.metrics import KEYS
from lib.study.moments import (
    before,
    by_numbers,
    crossings,
    games_worth,
    last,
    mixed_games,
    over_stopping_early,
)

ROWS = pd.DataFrame(
    [
        ("exact/long_start", 0, "held", 0, 0, 3, 0.5),
        ("exact/long_start", 0, "held", 1, 0, 4, 1e-7),
        ("exact/long_start", 0, "held", 2, 0, 4, 1e-3),
        ("exact/long_log", 0, "held", 0, 10, 3, 0.4),
        ("exact/long_log", 0, "held", 1, 10, 4, 1e-7),
        ("exact/long_log", 0, "held", 2, 10, 4, 1e-4),
        ("exact/long_log", 0, "held", 0, 20, 3, 0.9),
        ("exact/long_log", 0, "held", 1, 20, 4, 1e-5),
        ("exact/long_log", 0, "held", 2, 20, 4, 1e-8),
        ("exact/long_log", 1, "held", 0, 20, 3, 0.9),
    ],
    columns=["method", "seed", "set", "problem", "update", "numbers", "success"],
)
START = {"exact/long_log": "exact/long_start"}


def test_sets_by_numbers():
    rows = by_numbers(ROWS)
    assert rows["set"].value_counts().to_dict() == {"held": 10, "held_n4": 6, "held_n3": 4}


def test_the_last_update_is_that_of_each_run():
    assert last(ROWS)["update"].tolist() == [0, 0, 0, 20, 20, 20, 20]


def test_the_start_is_that_of_the_seed():
    found = before(ROWS, START)
    assert (
        found[3:9].tolist() == [0.5, 1e-7, 1e-3] * 2
        and found[9:].isna().all()
        and found[:3].isna().all()
    )


def test_crossings():
    table = crossings(ROWS, START)
    assert list(table.index.names) == KEYS and len(table) == 3
    assert table.to_dict("list") == {
        "began below 1e-6": [0, 1, 0],
        "up across 1e-6": [0, 1, 0],
        "down across 1e-6": [0, 0, 1],
        "doubled": [0, 1, 0],
        "halved": [0, 0, 1],
    }


@pytest.mark.parametrize(
    ("sampled", "worth"),
    [
        ({0: 0.1, 100: 0.3, 200: 0.5}, 128 * 100 / 100),  # as fast as the exact gradient
        ({0: 0.1, 100: 0.2, 200: 0.3}, 128 * 200 / 100),  # half as fast
        ({0: 0.1, 100: 0.15, 200: 0.2}, 128 * 200 / 100),  # never there: a lower bound
        ({0: 0.1, 50: 0.3, 200: 0.5}, 128 * 50 / 100),  # twice as fast
    ],
)
def test_games_that_an_exact_update_is_worth(sampled, worth):
    exact = pd.Series({0: 0.1, 100: 0.3, 200: 0.4})
    assert games_worth(exact, pd.Series(sampled), games=128) == pytest.approx(worth)


PATH = [  # right or wrong, with two problems: pass@1 0.2, 0.4, 0.6 in the mean
    ("slow", 0, 0.1, 1.0),
    ("slow", 1, 0.3, 0.8),
    ("slow", 0, 0.2, 0.9),
    ("slow", 1, 0.6, 0.7),
    ("slow", 0, 0.5, 0.6),
    ("slow", 1, 0.7, 0.7),
]


def rows_of(success: tuple[float, float], seed=0):
    path = [("slow", 0, "held", problem, one, many) for _, problem, one, many in PATH]
    updates = [0, 0, 10, 10, 20, 20, 500, 500]
    ends = [("log", seed, "held", problem, success[problem], 0.9) for problem in (0, 1)]
    table = pd.DataFrame([*path, *ends], columns=[*KEYS, "pass@1", "pass@16"])
    return table.assign(update=updates)


@pytest.mark.parametrize(
    ("success", "many"),
    [
        ((0.1, 0.9), (0.15, 0.2)),  # 0.5, halfway between the last two moments
        ((0.3, 0.5), (0.0, 0.2)),  # 0.4, at the second moment
        ((0.1, 0.1), (-0.1, 0.1)),  # below the start, which is then taken
        ((0.9, 0.9), (0.3, 0.2)),  # above all moments: the last one
    ],
)
def test_a_method_is_compared_with_a_path_that_stops_early(success, many):
    found = over_stopping_early(rows_of(success), "log", "slow")
    assert list(found.index.names) == KEYS and found.index.unique("method").tolist() == ["log"]
    assert found["pass@16"].tolist() == pytest.approx(many)


def test_at_the_moment_of_stopping_both_solve_as_much_with_one_game():
    found = over_stopping_early(rows_of((0.35, 0.75)), "log", "slow")
    assert found["pass@1"].mean() == pytest.approx(0)


def test_each_run_stops_at_a_moment_of_its_own():
    first = rows_of((0.1, 0.9))
    second = rows_of((0.3, 0.5))
    # the second path is also listed in another order of problems and moments
    second = second.assign(set="other", seed=1)[::-1]
    found = over_stopping_early(pd.concat([first, second]), "log", "slow")
    alone = [over_stopping_early(part, "log", "slow") for part in (first, second)]
    pd.testing.assert_frame_equal(found.sort_index(), pd.concat(alone).sort_index())
    of_second = found.xs("other", level="set")["pass@16"].sort_index()
    assert of_second.tolist() == pytest.approx([0, 0.2])


def test_a_seed_without_the_path_is_left_out():
    assert over_stopping_early(rows_of((0.5, 0.5), seed=1), "log", "slow").empty


@pytest.mark.parametrize(
    ("success", "mixed"),
    [
        ((0.4, 0.4), (0.3, 0.5)),  # 0.4: half of the games with each, which solve 0.2 and 0.6
        ((0.2, 0.2), (0.1, 0.3)),  # the first alone
        ((0.9, 0.9), (0.5, 0.7)),  # above both: the second alone
    ],
)
def test_games_of_two_policies_are_mixed_until_they_win_as_often(success, mixed):
    ends = {"sft": (0.1, 0.3), "slow": (0.5, 0.7), "log": success}
    rows = [
        (method, 0, "held", problem, 500, chance)
        for method, chances in ends.items()
        for problem, chance in enumerate(chances)
    ]
    table = pd.DataFrame(rows, columns=[*KEYS, "update", "success"])
    found = mixed_games(table, "log", "sft", "slow")
    assert found.tolist() == pytest.approx(mixed)
    assert found.index.unique("method").tolist() == ["log"]
