"""The rewards against the papers' formulas, taken literally and slowly."""

import json
import math
import time
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distance import distance_to_solutions
from lib.expression import evaluate, parse
from lib.paths import DATA
from lib.problem import Problem
from lib.rewards import REWARDS, get_reward

CASES = [json.loads(line) for line in (DATA / "verifier_cases.jsonl").read_text().splitlines()]
PAPER = Problem((44, 19, 35), 98)


def answer(text: str) -> str:
    return f"<think>\n</think>\n<answer>{text}</answer>"


def value(tree) -> Fraction | None:
    try:
        return evaluate(tree)
    except ZeroDivisionError:
        return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['tag']}")
def test_sparse_on_the_verifier_cases(case):
    reward = get_reward("sparse")([case["completion"]], Problem(tuple(case["nums"]), case["target"]))[0].total
    assert reward in ((0.1, 1.0) if "bomb" in case["tag"] else (case["expected_score_sparse"],))


def test_the_papers_worked_example():
    score = get_reward("ast", {"tau": 2})([answer("(35 + 19) - 44")], PAPER)[0]
    assert score.total == pytest.approx(0.1 + 0.5 * math.exp(-1 / 2)) and round(score.total, 1) == 0.4
    assert distance_to_solutions(parse("(35 + 19) - 44"), PAPER) == 1


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.sampled_from([case["completion"] for case in CASES]), st.text("<answer/>0123459+-*() \n", max_size=60))
)
def test_lambda_a_zero_is_the_sparse_reward(text):
    sparse, ast = get_reward("sparse"), get_reward("ast", {"lambda_a": 0})
    assert ast([text], PAPER)[0].total == sparse([text], PAPER)[0].total


def test_the_ladder():
    """Correct above near above far above a mere span above none, and what may not earn structural credit does not."""
    texts = ["44 + 19 + 35", "44 + 19 - 35", "44 / 19 / 35", "44 + 19", "1 + 1", "so", "44 / (19 - 19) + 35"]
    right, near, far, fewer, trivial, prose, other = (s.total for s in get_reward("ast")([*map(answer, texts)], PAPER))
    assert right == 1 > 0.6 > near > far > fewer == trivial == prose == other == 0.1
    assert get_reward("ast")(["no span"], PAPER)[0].total == 0


def test_a_division_by_zero_over_the_right_numbers_keeps_structural_credit():
    problem = Problem((5, 3, 3), 11)
    score = get_reward("ast")([answer("5 / (3 - 3)")], problem)[0]
    assert 0.1 < score.total < 0.6 and score.parts["valid"] == 1


def test_without_the_gate_trivial_answers_are_paid():
    gated, open_ = (get_reward("ast", {"exact_numbers": gate})([answer("1 + 1")], PAPER)[0] for gate in (True, False))
    assert gated.total == 0.1 < open_.total
    # the root and both subtrees of (1 + 1) differ but for "+": 1 + 1 leaves, and 2 nodes that have no counterpart
    assert open_.total == pytest.approx(0.1 + 0.5 * math.exp(-4 / 2))


def test_a_problem_without_solutions_gives_no_closeness():
    assert get_reward("ast")([answer("2 + 2")], Problem((2, 2), 100))[0].total == 0.1


def test_scores_stand_in_the_order_of_the_completions():
    texts = [answer("44 + 19 + 35"), "", answer("44 + 19 - 35"), ""]
    totals = [score.total for score in get_reward("ast")(texts, PAPER)]
    assert totals[0] == 1 and totals[1] == totals[3] == 0 and 0.1 < totals[2] < 0.6


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("sparce", {}, "did you mean 'sparse'"),
        ("ast", {"taw": 2}, "did you mean .tau."),
        ("sparse", {"tau": 2}, "no option 'tau'"),
        ("ast", {"lambda_a": 0.9}, "lambda_a must be below"),
        ("ast", {"tau": 0}, "tau must be positive"),
        ("dense", {"aggregate": "sum"}, "aggregate must be 'share' or 'count'"),
        ("dense", {"lambda_1": 0.8, "lambda_2": 0.1}, "lambdas must not be negative, and sum to less than 0.9"),
    ],
)
def test_mistakes_are_refused_before_anything_is_scored(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_reward(name, options)


# --- the dense process reward -----------------------------------------------------------------------------------------


def think(*lines: str, final: str = "44") -> str:
    return "<think>" + "\n".join(lines) + f"</think><answer>{final}</answer>"


def dense(text: str, problem: Problem = PAPER, **options):
    return get_reward("dense", options)([text], problem)[0]


def test_steps_by_hand():
    """One legal, one wrong, one on numbers that are gone, one of another form, each a quarter; repeats do not count."""
    lines = ["44 + 19 = 63, 63 - 35 = 29, 98? no", "19 + 63 = 82, 44 + 19 + 35 = 98", "44 + 19 = 63"]
    score = dense(think(*lines))
    assert (score.parts["legal"], score.parts["invalid"], score.parts["steps"]) == (0.25, 0.75, 4)
    assert score.total == pytest.approx(0.1 + 0.05 * 0.25 - 0.05 * 0.75)
    counted = dense(think(*lines), aggregate="count")
    assert (counted.parts["legal"], counted.parts["invalid"]) == (2, 3)
    assert counted.total == pytest.approx(0.1 + 0.05 * 2 - 0.05 * 3)


def test_a_new_attempt_finds_a_full_pool_and_checks_and_prose_are_no_steps():
    searches = ["44 - 19 = 25, 25 + 35 = 60, 98? no", "so let me try 19 + 44 = 63. 63 + 35 = 98, 98? yes"]
    score = dense(think(*searches, final="19 + 44 + 35"))
    assert (score.parts["legal"], score.parts["invalid"], score.parts["steps"]) == (1, 0, 4)
    assert score.total == pytest.approx(1.05)
    assert dense(think("I will add numbers, 98? no", "yes")).total == 0.1


def test_progress_is_a_legal_step_from_which_the_target_can_still_be_reached():
    def progress(*lines):
        return dense(think(*lines), lambda_3=0.1).parts["progress"]

    assert progress("44 + 19 = 63, 63 + 35 = 98") == 1
    assert progress("44 - 19 = 25, 25 + 35 = 60") == 0  # 25 and 35 cannot make 98
    assert progress("44 + 19 = 63, 63 - 35 = 28") == 0.5
    assert progress("44 + 19 = 133, 133 - 35 = 98") == 0  # legal as it stands, but it builds on a slip
    assert (
        progress("44 + 19 = 60", "44 + 19 = 63", "35 + 63 = 98") == 0.5
    )  # a repeat does not heal it; 35 + 63 starts over
    assert dense(think("44 + 19 = 63"), lambda_3=0.1).total == pytest.approx(0.1 + 0.05 + 0.1)


TERMS = st.sampled_from(["44", "19", "35", "63", "98", "0", "7"])
STEPS = st.tuples(TERMS, st.sampled_from("+-*/"), TERMS, TERMS).map(lambda t: f"{t[0]} {t[1]} {t[2]} = {t[3]}")
LINES = st.lists(
    st.one_of(STEPS, st.sampled_from(["44 + 19 = 63", "63 + 35 = 98", "1 + 2 + 3 = 6", "98? no"])), max_size=60
)
LAMBDAS = st.fixed_dictionaries({f"lambda_{i}": st.floats(0, 0.29) for i in (1, 2, 3)})


@settings(max_examples=200, deadline=None)
@given(LINES, LINES, LAMBDAS)
def test_every_correct_answer_beats_every_other_at_any_length(some, others, lambdas):
    right, wrong = dense(think(*some, final="44 + 19 + 35"), **lambdas), dense(think(*others), **lambdas)
    assert right.total >= 1 - lambdas["lambda_2"] - 1e-9
    assert wrong.total <= 0.1 + lambdas["lambda_1"] + lambdas["lambda_3"] + 1e-9
    assert wrong.total < right.total


def test_counted_steps_can_be_farmed_and_shares_cannot():
    """Legal first steps without end, one repeated or many different ones, against a solution of two steps."""
    right = think("44 + 19 = 63, 63 + 35 = 98", final="44 + 19 + 35")
    repeats = think(*["44 + 19 = 63"] * 30)
    sides = [f"{a} {op} {b}" for a, b in permutations(PAPER.nums, 2) for op in "+-*"]
    several = [f"{side} = {value(parse(side))}" for side in sides]
    for farm in (repeats, think(*several * 3)):
        assert dense(farm, aggregate="count").total > dense(right, aggregate="count").total
        assert dense(farm).total < 0.151 < dense(right).total
    mistakes = think(*["44 + 19 = 60"] * 25, final="44 + 19 + 35")
    assert dense(mistakes, aggregate="count").total < 0 < 0.95 <= dense(mistakes).total


@settings(max_examples=100, deadline=None)
@given(LINES)
def test_without_lambdas_it_is_the_sparse_reward(lines):
    text = think(*lines)
    assert dense(text, lambda_1=0, lambda_2=0).total == get_reward("sparse")([text], PAPER)[0].total


def test_the_dense_reward_answers_hostile_text_at_once():
    began = time.perf_counter()
    for unit in ("44 + 19 = 63, ", "999999999999999999 * 44 = 1\n", "((((44 + ", "4"):
        dense(think(unit * (100_000 // len(unit))), lambda_3=0.1)
    assert time.perf_counter() - began < 4


# --- `trace`, Table 1 ---------------------------------------------------------------------------------------

TRACED = [name for name in REWARDS if name.startswith("trace_")]
GROUP_PROBLEM = Problem((8, 2, 7, 3), 24)
BODY = ["state [2, 3, 7, 8]", "try 8 - 2 = 6", "state [3, 6, 7]", "try 7 - 3 = 4", "state [4, 6]"]
WORKS = [*BODY, "try 4 * 6 = 24", "state [24]"]
DETOUR = [*BODY, "try 4 + 6 = 10", "state [10]", "backtrack", "state [4, 6]", *WORKS[5:]]
MISSES = [*BODY, "try 4 + 6 = 10", "state [10]"]
BROKEN = [*BODY, "try 4 * 7 = 28", "state [24]"]


def traced(lines, text="(8 - 2) * (7 - 3)"):
    return "\n".join(["<think>", *lines, "</think>", f"<answer>{text}</answer>"])


def totals(name, *completions):
    return [score.total for score in get_reward(name)(completions, GROUP_PROBLEM)]


TEXTS = [traced(lines, text) for lines in (WORKS, DETOUR, MISSES, BROKEN, [], WORKS * 3, BROKEN * 60)
         for text in ("(8 - 2) * (7 - 3)", "(8 - 2) * 4", "8 - 2", "none")]  # fmt: skip


@pytest.mark.parametrize("name", TRACED)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(TEXTS), st.just("no span"), st.text(max_size=40)), min_size=2, max_size=8))
def test_in_every_group_a_correct_answer_beats_a_wrong_one(name, group):
    scores = get_reward(name)(group, GROUP_PROBLEM)
    right = [score.total for score in scores if score.parts["correct"]]
    wrong = [score.total for score in scores if not score.parts["correct"]]
    if right and wrong:
        assert min(right) > max(wrong)
    assert all(set(score.parts) == set(scores[0].parts) for score in scores)


def test_each_trace_reward_by_hand():
    """Correct on a short trace, on one with an extra try, without a trace; wrong on a clean trace and a broken one."""
    group = [traced(WORKS), traced(DETOUR), traced([]), traced(MISSES, "8 - 2"), traced(BROKEN, "8 - 2")]
    broken = 5 / 7  # its last try is out of the pool, and the state after it not the true one
    expected = {
        "trace_outcome": [1, 1, 1, 0.1, 0.1],
        "trace_dense": [1.5, 1.5, 1, 0.6, 0.1 + 0.5 * broken],
        "trace_gated": [1.2, 1.2, 1, 0.1, 0.1],
        "trace_guarded": [1.2, 1.2, 1, 0.1, 0.1 - 0.2 * (1 - broken)],
        "trace_group": [1.5, 1.5, 1, 0.4, 0.1 + 0.3 * broken],
        "trace_effort": [1.2, 1.25, 1, 0.1, 0.1],
        "trace_hardness": [1.4, 1.45, 1, 0.1, 0.1],  # two of five are wrong
    }
    assert set(expected) == set(TRACED)
    for name, values in expected.items():
        assert totals(name, *group) == pytest.approx(values), name


def test_what_each_variant_promises():
    clean, broken = traced(MISSES, "8 - 2"), traced(BROKEN, "8 - 2")
    assert totals("trace_dense", clean, broken)[0] > totals("trace_dense", clean, broken)[1]  # ranks wrong traces
    assert totals("trace_group", clean, broken) == pytest.approx([0.1, 0.1])  # but not in an all-wrong group
    assert totals("trace_gated", clean, broken) == pytest.approx([0.1, 0.1])
    hard, easy = [traced(WORKS), clean, clean, clean], [traced(WORKS), traced(WORKS), traced(WORKS), clean]
    assert totals("trace_hardness", *hard)[0] == pytest.approx(totals("trace_hardness", *easy)[0] + 0.25)
    again = traced([*BODY, "backtrack", "state [3, 6, 7]", *BODY[3:], *WORKS[5:]])  # the same action again
    assert totals("trace_effort", again) == totals("trace_effort", traced(WORKS))
    assert totals("trace_guarded", again)[0] < totals("trace_guarded", traced(WORKS))[0]


def test_weights_that_break_the_order_are_refused():
    with pytest.raises(ValueError, match="below 0.9"):
        get_reward("trace_dense", {"weight": 0.9})
    with pytest.raises(ValueError, match="not be negative"):
        get_reward("trace_gated", {"bonus": -0.1})
