"""The rules and exact values of the agent's game, against plain recursion, the paper's examples and
its propositions."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.game.expression import evaluate, render
from lib.game.mdp import (
    Action,
    State,
    action,
    count_solutions,
    expression,
    initial,
    legal_actions,
    moves_of,
    parse_action,
    q_values,
    render_action,
    render_state,
    step,
)
from lib.game.problem import Problem
from lib.game.solver import solutions
from lib.game.verifiers import verify_answer
from lib.learn.model import build_tokenizer
from tests.conftest import linear

numbers = st.one_of(st.integers(-12, 40), st.fractions(-3, 9, max_denominator=6)).map(
    lambda q: int(q) if q == int(q) else q
)
states = st.builds(
    lambda nums, target: State(tuple(sorted(nums)), target),
    st.lists(numbers, min_size=2, max_size=3),
    st.integers(1, 30),
)


def reward(state: State) -> int:
    """R of Eq. 4: 1 where the target is all that is left."""
    return int(state.nums == (state.target,))


def verify_game(problem: Problem, history):
    """The verdict on a finished game, by the verifier that judges every study's answers."""
    return verify_answer(f"<answer>{render(expression(problem, history))}</answer>", problem)


def solvable(state: State) -> bool:
    """V* by the definition (Eq. 6): some legal continuation reaches reward 1."""
    return bool(reward(state)) or any(solvable(step(state, move)) for move in legal_actions(state))


def play(problem: Problem, rng: random.Random) -> State:
    state = initial(problem)
    while not state.terminal:
        state = step(state, rng.choice(legal_actions(state)))
    return state


# --- rules ----------------------------------------------------------------------------------------


def test_the_papers_rollout():
    """Table 1: 24 from 10, 7, 3, 1."""
    problem = Problem((10, 7, 3, 1), 24)
    state = initial(problem)
    seen = []
    for tag in ("<pick>10, 3, *</pick>", "<pick>30, 7, -</pick>", "<pick>23, 1, +</pick>"):
        state = step(state, parse_action(tag, state))
        seen.append(sorted(state.nums))
    assert seen == [[1, 7, 30], [1, 23], [24]] and reward(state) == 1
    assert verify_game(problem, state.history).status == "correct"


def test_legal_actions_by_hand():
    """Two orders of - and /, one of + and *; of equal numbers one pair; nothing over zero."""
    moves = legal_actions(State((0, 5, 5), 10))
    assert set(moves) == {
        *(Action(0, 5, op) for op in "+-*/"),
        Action(5, 0, "-"),
        *(Action(5, 5, op) for op in "+-*/"),
    }
    assert len(moves) == len(set(moves))
    assert legal_actions(State((2, 5), 10)) == [
        *(Action(2, 5, op) for op in "+-*/"),
        *(Action(5, 2, op) for op in "-/"),
    ]  # always in this order, since runs draw from the list


def test_equal_states_are_equal_whatever_the_order():
    one = initial(Problem((9, 1, 4), 7))
    other = initial(Problem((4, 9, 1), 7))
    assert (
        one == other
        and render_state(one) == render_state(other) == "Numbers: [1, 4, 9]\nTarget: 7\nPick\n"
    )
    assert action(9, 4, "+") == action(4, 9, "+") and action(9, 4, "-") != action(4, 9, "-")


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(0, 10**6))
def test_a_finished_game_is_an_expression_over_the_problems_numbers(nums, seed):
    """Reward 1 exactly where the answer verifier says correct; small numbers make equal ones
    frequent."""
    rng = random.Random(seed)
    problem = Problem(tuple(nums), rng.randint(1, 20))
    end = play(problem, rng)
    verdict = verify_game(problem, end.history)
    assert verdict.value == end.nums[0] == evaluate(expression(problem, end.history))
    assert (verdict.status == "correct") == reward(end)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.integers(1, 40))
@settings(max_examples=25)
def test_every_solution_tree_is_a_winning_game(nums, target):
    problem = Problem(tuple(nums), target)
    for tree in solutions(problem)[:20]:
        state = initial(problem)
        for move in moves_of(tree):
            assert move in legal_actions(state)
            state = step(state, move)
        assert reward(state)


# --- tags -----------------------------------------------------------------------------------------


@given(states)
def test_tags_read_back_as_the_action_they_were_written_for(state):
    for move in legal_actions(state):
        assert parse_action(render_action(move), state) == move


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<pick>5, 7, *</pick>", Action(5, 7, "*")),
        ("<pick>7, 5, *</pick>", Action(5, 7, "*")),
        ("<pick>7, 5, -</pick>", Action(7, 5, "-")),
        ("<pick>1|2, -3, /</pick>", Action(Fraction(1, 2), -3, "/")),
        ("<pick>2|4, -3, /</pick>", Action(Fraction(1, 2), -3, "/")),
        ("<pick>5, 5, +</pick>", "number not there"),
        ("<pick>5, 8, +</pick>", "number not there"),
        ("<pick>5, 0, /</pick>", "division by zero"),
        ("<pick>0, 5, /</pick>", Action(0, 5, "/")),
        ("<pick>9, 0, /</pick>", "number not there"),
        ("<pick>5,7,*</pick>", "unreadable"),
        (" <pick>5, 7, *</pick>", "unreadable"),
        ("<pick>5, 7, *</pick>\n", "unreadable"),
        ("<pick>5, 7, **</pick>", "unreadable"),
        ("<pick>05, 7, *</pick>", "unreadable"),
        ("<pick>5, 7|0, *</pick>", "unreadable"),
        ("<pick>5/1, 7, *</pick>", "unreadable"),
        ("<pick>\u0665, 7, *</pick>", "unreadable"),
        ("<pick>5, 7, *</pick><pick>5, 7, *</pick>", "unreadable"),
        ("5, 7, *", "unreadable"),
        ("", "unreadable"),
    ],
)
def test_parsing_is_strict_and_names_the_fault(text, found):
    assert parse_action(text, State((-3, 0, Fraction(1, 2), 5, 7), 35)) == found


@pytest.mark.parametrize(
    "text", ["<pick>" + "9" * 100_000, "<pick>" * 20_000, "<pick>5" + ", 7" * 50_000, "-" * 100_000]
)
def test_hostile_tags_are_read_in_linear_time(text):
    assert parse_action(text, State((5, 7), 35)) == "unreadable"
    assert linear(lambda some: parse_action(some, State((5, 7), 35)), text)


def test_prompts_and_tags_survive_the_tokenizer():
    tokenizer = build_tokenizer()
    state = State((-3, Fraction(7, 2), 12), 24)
    for text in (render_state(state), *map(render_action, legal_actions(state))):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text and tokenizer.unk_token_id not in ids


# --- exact values ---------------------------------------------------------------------------------


@given(st.lists(states, min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_proposition_31(some):
    """V* is plain recursion's, and the maximum of Q_bin over the legal actions (Eq. 8)."""
    assert (count_solutions(some) > 0).tolist() == list(map(solvable, some))
    for state in some:
        successors = [step(state, move) for move in legal_actions(state)]
        q = q_values(successors, "binary")
        assert q.tolist() == [float(solvable(s)) for s in successors]
        assert max(q) == solvable(state)


@given(states, st.floats(0, 0.3), st.floats(0, 0.3))
@settings(max_examples=30, deadline=None)
def test_q_soft_is_equation_9(state, alpha, beta):
    successors = [step(state, move) for move in legal_actions(state)]
    for successor, q in zip(successors, q_values(successors, "soft", alpha, beta), strict=True):
        c = len(solutions(Problem(*successor.key)))
        expected = 1 - alpha * shortest_game(successor) + beta * math.log(1 + c) if c else 0
        assert q == pytest.approx(expected)


def shortest_game(state: State) -> float:
    """d_min by breadth-first search: the fewest actions to reward 1."""
    frontier = {state}
    depth = 0
    while frontier and not any(map(reward, frontier)):
        frontier = {step(s, move) for s in frontier for move in legal_actions(s)}
        depth += 1
    return depth if frontier else math.inf


def test_values_by_hand():
    done = State((24,), 24)
    wrong = State((23,), 24)
    open_ = State((1, 23), 24)
    assert count_solutions([done, wrong, open_, done]).tolist() == [1, 0, 1, 1]
    # with the paper's alpha and beta
    assert q_values([done, wrong, open_], "soft").tolist() == pytest.approx(
        [1 + 0.05 * math.log(2), 0, 0.8 + 0.05 * math.log(2)]
    )
    assert q_values([done, wrong], "none").tolist() == [0, 0]
    assert q_values([done, wrong, open_], "executor").tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="'hard'"):
        q_values([done], "hard")


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 2)), min_size=2, max_size=6),
    st.floats(0.2, 3),
    st.floats(0.2, 3),
    st.integers(0, 10**6),
)
def test_proposition_33(actions, kappa, beta, seed):
    """Eq. 16 with eta = beta / kappa is the optimum of Eq. 15, and the population minimum of the
    DPO loss (Eq. 17)."""
    weights, q = np.array(actions).T
    reference = weights / weights.sum()
    eta = beta / kappa
    tilted = reference * np.exp((q - q.max()) / eta)
    tilted /= tilted.sum()
    rng = np.random.default_rng(seed)

    def objective(pi):
        return pi @ q - eta * (pi * np.log(pi / reference)).sum()

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def loss(pi):
        h = np.log(pi / reference)
        prefer = sigmoid(kappa * (q[:, None] - q))
        return -(prefer * np.log(sigmoid(beta * (h[:, None] - h)))).sum()

    for _ in range(5):
        other = tilted * np.exp(rng.normal(scale=0.3, size=len(q)))
        other /= other.sum()
        assert objective(other) <= objective(tilted) + 1e-12
        assert loss(other) >= loss(tilted) - 1e-9
    odds = np.log(tilted) - np.log(reference)
    np.testing.assert_allclose(odds[:, None] - odds, kappa / beta * (q[:, None] - q), atol=1e-8)
