"""The verdict on an answer, for honest and for hostile completions; and whole tables that are
judged."""

import json
import tracemalloc
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.files import DATA
from lib.game.expression import MAX_DIGITS, parse
from lib.game.problem import Problem
from lib.game.steps import verify_steps
from lib.game.verifiers import (
    STATUSES,
    VERIFIERS,
    Verdict,
    answer_span,
    verify_answer,
    verify_trace,
)

CASES = [json.loads(line) for line in (DATA / "verifier_cases.jsonl").read_text().splitlines()]
SCORES = {"correct": 1.0, "missing": 0.0}  # any other status: 0.1
PAPER = Problem((44, 19, 35), 98)

# --- the answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['tag']}")
def test_case(case):
    verdict = verify_answer(case["completion"], Problem(tuple(case["nums"]), case["target"]))
    allowed = {case["expected_score_sparse"]}
    if case["tag"] in ("bomb", "unary_bomb"):  # a verifier may cap the size of an answer
        allowed |= {0.1, 1.0}
    assert SCORES.get(verdict.status, 0.1) in allowed, case["reason"]


def test_case_ids_are_unique():
    assert len({case["id"] for case in CASES}) == len(CASES) >= 100


@pytest.mark.parametrize(
    "answer, status, value",
    [
        ("44 + 19 + 35", "correct", 98),
        ("44 - 19 + 35", "wrong_value", 60),
        ("44 / 19 + 35", "wrong_value", Fraction(709, 19)),
        ("44 + 19", "wrong_numbers", None),
        ("999999 * 999999", "wrong_numbers", None),  # not evaluated
        ("44 + 19 +", "unparseable", None),
        ("", "unparseable", None),
    ],
)
def test_verdict(answer, status, value):
    expression = None if status == "unparseable" else parse(answer)
    expected = Verdict(status, expression, value)
    assert verify_answer(f"<answer>{answer}</answer>", PAPER) == expected
    assert expected.status in STATUSES


def test_division_by_zero_over_the_right_numbers_is_a_wrong_value():
    verdict = verify_answer("<answer>5 / (3 - 3)</answer>", Problem((5, 3, 3), 5))
    assert verdict == Verdict("wrong_value", parse("5 / (3 - 3)"), None)


def test_no_span_is_missing():
    assert verify_answer("44 + 19 + 35", PAPER) == Verdict("missing", None, None)


def reference_span(text: str) -> str | None:
    """The last pair of neighbouring tags that opens and closes, from a list of all tags."""
    tags = sorted(
        (i, tag)
        for tag in ("<answer>", "</answer>")
        for i in range(len(text))
        if text.startswith(tag, i)
    )
    neighbours = [
        (i + len(a), j) for (i, a), (j, b) in pairwise(tags) if (a, b) == ("<answer>", "</answer>")
    ]
    return text[slice(*neighbours[-1])] if neighbours else None


PIECES = st.lists(
    st.sampled_from(["<answer>", "</answer>", "<answer", "</", "1 + 1", "a", ">"]), max_size=12
)


@settings(deadline=None)
@given(PIECES.map("".join))
def test_the_span_is_the_last_innermost_complete_one(text):
    assert answer_span(text) == reference_span(text)


TEXT = (
    st.text() | PIECES.map("".join) | st.text("<>/answerthinkd 0123456789.+-*/()=\n", max_size=80)
)


@settings(deadline=None)
@given(TEXT, st.booleans())
def test_no_text_makes_the_verifiers_raise(text, wrapped):
    text = f"<think>{text}</think><answer>{text}</answer>" if wrapped else text
    assert verify_answer(text, PAPER).status in STATUSES
    verify_steps(text, PAPER)


@pytest.mark.parametrize("text", [None, b"<answer>1</answer>", 7])
@pytest.mark.parametrize("verify", [*VERIFIERS.values(), verify_trace, verify_steps])
def test_what_is_no_text_is_refused(verify, text):
    with pytest.raises(TypeError, match=f"a completion is a text, not {type(text).__name__}"):
        verify(text, PAPER)


@pytest.mark.parametrize("problem", [None, 98, {"nums": [1, 2], "target": 3}, ((1, 2), 3)])
@pytest.mark.parametrize("verify", [*VERIFIERS.values(), verify_trace])
def test_only_a_problem_is_answered(verify, problem):
    with pytest.raises(
        TypeError, match=f"a completion is judged on a Problem, not on {type(problem).__name__}"
    ):
        verify("<answer>1 + 2</answer>", problem)


@pytest.mark.parametrize("nums", [(-3, 5), (Fraction(1, 2), 4), (10**400, 2), (10**MAX_DIGITS, 2)])
@pytest.mark.parametrize("verify", [*VERIFIERS.values(), verify_trace])
def test_a_problem_that_no_answer_can_solve_is_refused(verify, nums):
    with pytest.raises(
        ValueError, match="judged on whole numbers from 0, of at most 18 digits, not on"
    ):
        verify("<answer>-3 + 5</answer>", Problem(nums, 2))


def test_a_problem_may_have_the_largest_number_that_an_answer_can_hold():
    largest = 10**MAX_DIGITS - 1
    assert (
        verify_answer(f"<answer>{largest} - 2</answer>", Problem((largest, 2), largest - 2)).status
        == "correct"
    )


def test_long_answers_are_judged_and_not_kept():
    """4,096 kept answers of 100,000 characters each would take 400 MB."""
    tracemalloc.start()
    for i in range(200):
        text = f"<answer>{i} + {'(' * 20_000}1</answer>"
        assert verify_answer(text, PAPER).status == "unparseable"
        del text
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000_000
