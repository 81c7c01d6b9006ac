"""The agent's states and actions with the solver's values, by hand, with tags that are written down
here."""

import random

import pytest

from lib.game.mdp import initial, legal_actions, parse_action, render_action, render_state, step
from lib.game.problem import Problem
from lib.game.solver import levels
from lib.learn.valuing import named, played, questions, summary, tried

TIMES, PLUS, MINUS = "<pick>2, 3, *</pick>", "<pick>3, 2, +</pick>", "<pick>3, 2, -</pick>"


def tags_of(*texts):
    """Tags as `sample_tags` returns them; each counts five tokens."""
    return [(text, -1.0, 5) for text in texts]


def test_tags_name_actions_as_often_as_they_are_drawn_and_only_legal_ones():
    state = initial(Problem((2, 3, 7), 13))
    tags = tags_of(TIMES, "<pick>3, 2, *</pick>", "<pick>2, 4, *</pick>", "pick", "", PLUS)
    assert [render_action(move) for move in named(tags, state)] == [
        TIMES,
        TIMES,
        "<pick>2, 3, +</pick>",
    ]


def test_a_game_of_each_problem_is_played_until_two_numbers_are_left():
    problems = [Problem((2, 3, 7, 1), 13), Problem((2, 3, 7), 13), Problem((2, 3, 7), 40)]
    asked = []

    def draw(states):
        asked.append(states)
        return [tags_of(TIMES) for _ in states]

    met, tags = played(problems, draw, random.Random(0))
    assert [i for i, *_ in met] == [0, 1, 2, 0] and [len(state.nums) for _, _, state, _ in met] == [
        4,
        3,
        3,
        3,
    ]
    assert asked == [[state for _, _, state, _ in met[:3]], [state for _, _, state, _ in met[3:]]]
    assert [group for _, group, _, _ in met] == [levels(problems)[i] for i in (0, 1, 2, 0)]
    assert tags == [tags_of(TIMES)] * 4 and not any(solution for *_, solution in met)
    first = met[0][2]
    then = met[3][2]
    assert first == initial(problems[0]) and then in [
        step(first, move) for move in legal_actions(first)
    ]


def test_a_game_goes_on_with_a_drawn_action_or_with_any_other():
    """With either of the two actions drawn in a third of the games or a little more, however often
    each was drawn."""
    problem = Problem((2, 3, 7, 1), 13)
    state = initial(Problem((2, 3, 7, 1), 13))
    met, _ = played(
        [problem] * 300,
        lambda states: [tags_of(TIMES, TIMES, TIMES, PLUS) for _ in states],
        random.Random(0),
    )
    taken = [state.history[0] for _, _, state, _ in met[300:]]
    shares = [taken.count(parse_action(tag, state)) / 300 for tag in (TIMES, PLUS)]
    assert shares == pytest.approx([1 / 3, 1 / 3], abs=0.1) and len(set(taken)) > 10


def test_each_action_of_a_state_is_one_row_with_its_exact_value():
    """Those drawn, that of the solver, and one more at random, which may be one of them."""
    state = initial(Problem((2, 3), 6))
    other = initial(Problem((3, 4), 12))
    solution = parse_action(TIMES, state)
    met = [(7, "L1", state, solution), (8, None, other, None)]
    tags = [
        tags_of(PLUS, MINUS, PLUS, "pick"),
        tags_of("pick", "pick", "<pick>3, 4, *</pick>", "<pick>4, 3, +</pick>"),
    ]
    actions, successors = tried(met, tags, random.Random(0))
    known = actions.iloc[:3]
    assert known["action"].tolist() == ["<pick>2, 3, +</pick>", MINUS, TIMES]
    assert known["drawn"].tolist() == [2, 1, 0] and known["solver"].tolist() == [False, False, True]
    assert known["binary"].tolist() == [0, 0, 1] and set(known["prompt"]) == {render_state(state)}
    assert (
        set(known["problem"]) == {7}
        and set(known["group"]) == {"L1"}
        and set(known["state"]) == {0}
    )
    rest = actions[actions["state"] == 1]
    assert (
        rest["drawn"].tolist()[:2] == [1, 1]
        and rest["binary"].tolist()[:2] == [1, 0]
        and not rest["solver"].any()
    )
    assert set(rest["problem"]) == {8} and not actions.duplicated(["state", "action"]).any()
    assert [successor.nums for successor in successors[:3]] == [(5,), (1,), (6,)] and len(
        successors
    ) == len(actions)
    told = summary(actions, tags)
    assert told["states"] == 2 and told["sampled"] == 8 and told["tokens"] == 40
    assert told["rejected"] == pytest.approx(3 / 8) and told[
        "keeps a solution open"
    ] == pytest.approx(1 / 5)
    assert summary(*silent())["rejected"] == 1 and summary(*silent())["keeps a solution open"] == 0


def silent():
    """The actions of a policy that names none."""
    tags = [tags_of("pick", "pick")]
    actions, _ = tried([(0, None, initial(Problem((2, 3), 6)), None)], tags, random.Random(0))
    return actions, tags


def test_every_unfinished_successor_is_one_question_of_its_problem():
    """2 * 3 and 1 * 6 lead to the same numbers: one question of each problem that reaches them, and
    no more."""
    problems = [Problem((2, 3, 7), 13), Problem((1, 6, 7), 13)]
    states = [initial(problem) for problem in problems]
    met = [(0, None, states[0], None), (0, None, states[0], None), (1, None, states[1], None)]
    met.append((2, None, initial(Problem((2, 3), 6)), None))  # all of its successors are finished
    tags = [tags_of(TIMES, MINUS), tags_of(TIMES), tags_of("<pick>1, 6, *</pick>"), tags_of(TIMES)]
    actions, successors = tried(met, tags, random.Random(0))
    asked = questions(actions, successors)
    assert (
        asked.groupby("problem")["prompt"].nunique().to_dict()
        == asked["problem"].value_counts().to_dict()
    )
    assert set(asked["problem"]) == {0, 1} and set(asked["left"]) == {2}
    for row in asked.itertuples():
        assert row.prompt == render_state(successors[row.at], "value")
        assert row.completion == (" yes" if actions["binary"][row.at] else " no")
    reached = render_state(step(states[0], parse_action(TIMES, states[0])), "value")
    assert asked[asked["prompt"] == reached][["problem", "completion"]].values.tolist() == [
        [0, " yes"],
        [1, " yes"],
    ]
    lost = render_state(step(states[0], parse_action(MINUS, states[0])), "value")
    assert asked[asked["prompt"] == lost]["completion"].tolist() == [" no"]
