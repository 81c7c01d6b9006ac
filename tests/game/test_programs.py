"""Restricted programs: their meaning, what is refused and how fast, and the reward of each
check."""

import random
import re
from fractions import Fraction

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.game.expression import BinOp, ExpressionError, Num, evaluate, leaves, parse, render
from lib.game.problem import Problem, as_problems
from lib.game.programs import MAX_LENGTH, MAX_TOKENS, ExecutionError, ParseError, run_program
from lib.game.prompts import PROMPTS
from lib.game.sets import load
from lib.game.verifiers import CHECKS, VERIFIERS, answer_span, verify_answer, verify_program
from lib.learn.demonstrations import DEMONSTRATIONS, plain_solutions, program_lines, program_search
from lib.learn.model import build_tokenizer
from lib.rewards import get_reward
from lib.study.judging import judge
from tests.conftest import linear

PAPER = Problem((44, 19, 35), 98)


def answer(program: str) -> str:
    return f"<answer>\n{program}\n</answer>"


def earned(program: str, problem: Problem = PAPER) -> float:
    return get_reward("program")([answer(program)], problem)[0].total


# --- what a program is worth ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "nums, target, program, reward",
    [  # the paper's examples (Section 5.2), and one for every check
        ((44, 19, 35), 98, "a = (44 + 19) + 35", 1.0),
        ((95, 11, 56), 28, "a = (56 - 11) + 95 - 9", 0.30),
        ((83, 78, 1, 39), 82, "a = (83 - 78) + 39 - 1", 0.50),
        ((44, 19, 35), 98, "a = 44 + b", 0.15),
        ((44, 19, 35), 98, "so it is 98", 0.05),
        # it is read to its end before anything is computed
        ((44, 19, 35), 98, "a = 44 + b\nso it is 98", 0.05),
    ],
)
def test_what_each_check_earns(nums, target, program, reward):
    score = get_reward("program")([answer(program)], Problem(nums, target))[0]
    assert score.total == pytest.approx(reward)
    assert list(score.parts) == list(CHECKS)
    weights = dict(zip(CHECKS, (0.05, 0.10, 0.15, 0.20, 0.50), strict=True))
    assert sum(weights[check] for check, part in score.parts.items() if part) == pytest.approx(
        reward
    )
    alone, half = (
        get_reward("program", {"early": e})([answer(program)], Problem(nums, target))[0]
        for e in (0.0, 0.5)
    )
    assert alone.total == score.parts["target"] and alone.parts == score.parts == half.parts
    assert half.total == pytest.approx((score.total + alone.total) / 2)


def test_no_answer_earns_nothing_and_the_last_span_counts():
    unclosed = "<answer>a = 44 + 19 + 35"
    assert get_reward("program")(["a = 44 + 19 + 35", unclosed], PAPER) == get_reward("program")(
        ["", ""], PAPER
    )
    assert get_reward("program")([""], PAPER)[0].total == 0
    two = answer("a = 44 + 19 + 35") + answer("a = 44 + 19 - 35")
    assert get_reward("program")([two], PAPER)[0].total == pytest.approx(0.5)


@pytest.mark.parametrize("early", [-0.1, 1.1])
def test_a_share_that_is_none_is_refused(early):
    with pytest.raises(ValueError, match="early must lie between 0 and 1"):
        get_reward("program", {"early": early})


@pytest.mark.parametrize(
    "program, value",
    [
        ("a = 44 + 19\nb = a + 35", 98),  # the last assignment
        ("answer = 98\nb = 1", 98),
        ("result = 98\nb = 1", 98),
        ("result = 1\nfinal = 98\nb = 1", 98),
        ("final = 1\nanswer = 98\nb = 1", 98),
        ("a = 1\na = a + 97", 98),  # a name bound again
        ("\n\n  a = 98 \t\r\n\n", 98),
        ("a = 98 # 97, says the comment", 98),
        ("# a line may be a comment only\na = 97\n  # so\nb = a + 1\n#", 98),
        ("a = 7 / 2 / 3 + -(-(+1))", Fraction(13, 6)),
        ("a = 1 / 3\nanswer = a * 3", 1),
        ("a = 2 - 3 - 4 * 5 / (1 + 1)", -11),
    ],
)
def test_the_value_of_a_program(program, value):
    result = run_program(program)
    assert result.value == evaluate(result.expression) == value


def test_numbers_are_those_behind_the_final_value():
    assert earned("a = 44 + 19\nanswer = a + 35") == 1
    assert earned("a = 44 - 19\nb = a * 35\nc = 44 + 19\nanswer = c + 35") == 1  # tries and drops
    # consumes 44 and 19 thrice
    assert earned("a = 44 + 19\nb = a + 35\nanswer = b + a - a") == pytest.approx(0.3)
    assert earned("a = 44 + 19 + 35\nanswer = a + 0") == pytest.approx(0.3)
    twice = Problem((7, 7, 3), 17)
    # the value stands for a 7 each time, and two are given
    assert earned("a = 7\nanswer = a + a + 3", twice) == 1
    assert earned("a = 7\nanswer = a + 3", twice) == pytest.approx(0.3)


def test_the_verdict_has_the_style_of_the_others():
    verdict = verify_program(answer("b = 44 + 19\nanswer = b + 35"), PAPER)
    assert (verdict.status, verdict.value, verdict.passed) == ("correct", 98, 5)
    assert verdict.expression == parse("44 + 19 + 35") and verdict.assignments[0] == parse(
        "44 + 19"
    )
    assert isinstance(verdict.value, Fraction)
    statuses = [
        verify_program(answer(text), PAPER).status
        for text in ("a = 35", "a = 44 - 19 - 35", "a = b", "?")
    ]
    assert statuses == ["wrong_numbers", "wrong_value", "unparseable", "unparseable"]
    assert verify_program("", PAPER).status == "missing"


def test_saved_programs_are_judged_by_their_own_verifier():
    table = pd.DataFrame(
        {"nums": [PAPER.nums], "target": [98], "completion": [answer("a = 44 + 19\nb = 35 + a")]}
    )
    assert judge(table, "program").loc[0, ["status", "solution"]].tolist() == [
        "correct",
        "19 + 44 + 35",
    ]
    assert judge(table)["status"].tolist() == ["unparseable"]


# --- hostile programs -----------------------------------------------------------------------------

NOT_IN_THE_LANGUAGE = [
    *[
        "import os",
        "a = __import__('os')",
        "a = f(3)",
        "a = (44).real",
        "a = [44][0]",
        "a = {44}",
        "a = [x for x in b]",
    ],
    *[
        "a = f'{44}'",
        "a = (b := 44)",
        "a := 44",
        "a = 44 ** 2",
        "a = 44 // 2",
        "a = 44 % 2",
        "a = 44 @ 2",
        "a = ~44",
    ],
    *[
        "a += 44",
        "a: int = 44",
        "a = b = 44",
        "a, b = 44, 19",
        "a.b = 44",
        "a[0] = 44",
        "a = 44; b = 19",
        "(a) = 44",
    ],
    *[
        "a = True",
        "a = None",
        "a = 44 if 1 else 2",
        "a = 1 or 2",
        "a = not 1",
        "a = 44 < 19",
        "a = lambda: 44",
        "a =",
    ],
    *[
        "a = 4.4",
        "a = 4e4",
        "a = 0x44",
        "a = 4_4",
        "a = 44j",
        "a = 044",
        "a = '44'",
        "a = 44 19",
        "a = 44(19)",
        "44",
    ],
    *[
        "a = ４４",
        "ａ = 44",
        "a = 44 × 19",
        "a = 44\x00",
        "a = (44",
        "a = 44)",
        "a = ()",
        "a = \\\n44",
        "# 44\n\f",  # a form feed is no white space
        "lambda = 4",
        "a = 4 + None",
        "is = 4",
    ],
    *[
        "a = 1" + "0" * 30,
        "a = (yield)",
        "a = await 4",
        "def a(): pass",
        "a = 44 +\n19",
        "a == 44",
        "pass",
        "a",
        "",
    ],
]
UNRUNNABLE = [
    "a = b",
    "a = a",
    "a = a\na = 1",
    "a = 1\nb = 0 / -0 * a",
    "a = 44 / 0",
    "a = 44 / (19 - 19)",
]
UNRUNNABLE += ["a = 9\n" + "a = a * a\n" * 60, "answer = Answer"]


@pytest.mark.parametrize("program", NOT_IN_THE_LANGUAGE)
def test_what_is_not_in_the_language_does_not_parse(program):
    with pytest.raises(ParseError):
        run_program(program)
    assert earned("a = 44 + 19 + 35\n" + program) == pytest.approx(0.05 if program else 1.0)


def test_a_program_of_comments_has_no_value():
    with pytest.raises(ParseError, match="no assignment"):
        run_program("# 98\n\n# nothing")


def test_a_program_and_a_line_may_be_as_long_as_their_limits():
    program = "a = 44 + 19 + 35 #".ljust(MAX_LENGTH, "#")
    assert run_program(program).value == 98
    with pytest.raises(ParseError, match=f"more than {MAX_LENGTH} characters"):
        run_program(program + "#")
    signs = "-" * (MAX_TOKENS - 1)  # and one number
    assert run_program(f"a = {signs}98").value == -98
    with pytest.raises(ParseError, match="line 1 is no assignment"):
        run_program(f"a = -{signs}98")


@pytest.mark.parametrize("program", UNRUNNABLE)
def test_what_has_no_value_does_not_execute(program):
    with pytest.raises(ExecutionError, match="line"):
        run_program(program)
    assert earned(program) == pytest.approx(0.15)


@pytest.mark.parametrize(
    "program",
    [
        "a = 1\n" * 100_000,
        "a=1\n" * 999,
        "a = " + "(" * 100_000,
        "a = " + "(" * 90 + "1" + ")" * 90,
        "a = " + "-" * 100_000 + "1",
        ("a = " + "-" * 199 + "1\n") * 19,
        "a = 9\n" + "a = a * a\n" * 390,
        "a = 1" + " + 1" * 25_000,
        "a = " + "9" * 100_000,
        ("a = " + "lambda " * 90 + "\n") * 6,
        ("a = " + "not " * 199 + "1\n") * 4,
        ("a = 1" + " if 1 else 1" * 45 + "\n") * 6,
        "<answer>" * 12_000,
        "a = " + "x" * 100_000 + " = 1",
        "a" + " " * 100_000 + "1",
        "#" * 100_000,
        "\n" * 100_000,
    ],
    ids=lambda program: f"{program[:12]!r}-{len(program)}",
)
def test_hostile_programs_get_their_verdict_in_linear_time(program):
    assert linear(lambda some: verify_program(answer(some), PAPER), program)


# --- properties -----------------------------------------------------------------------------------

SOME = st.integers(0, 12)
TREES = st.recursive(
    SOME.map(Num), lambda t: st.builds(BinOp, st.sampled_from("+-*/"), t, t), max_leaves=8
)


@settings(max_examples=200, deadline=None)
@given(TREES.filter(lambda tree: isinstance(tree, BinOp)), st.booleans())
def test_a_program_computes_what_its_expression_does(tree, compact):
    """Against the exact trees: as one line, and as one operation a line."""
    names = (f"v{i}" for i in range(20))
    text = f"a = {render(tree)}" if compact else "\n".join(program_lines(tree, names))
    try:
        value = evaluate(tree)
    except ZeroDivisionError:
        with pytest.raises(ExecutionError, match="division by zero"):
            run_program(text)
        return
    result = run_program(text)
    assert result.value == value and result.expression == tree


@settings(max_examples=200, deadline=None)
@given(
    st.text("0123459+-*/() ", max_size=24)
    | st.permutations(PAPER.nums).map(lambda n: "{} + {} + {}".format(*n))
    | TREES.map(render)
)
def test_a_free_answer_is_a_one_line_program(span):
    """What the study leans on to score standard completions by stage: the verdicts agree."""
    free = f"<answer>{span}</answer>"
    program = f"<answer>answer = {span}</answer>"
    one = verify_answer(free, PAPER)
    other = verify_program(program, PAPER)
    try:
        parse(span)
    except ExpressionError:
        assert other.passed == 1
    else:
        assert other.passed >= 2 and (one.status == "correct") == (other.passed == 5)


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text("ab=+-*/() 0123456789#\nanswer<>/", max_size=80))
def test_any_text_gets_a_verdict_whose_checks_are_nested(text):
    for completion in (text, answer(text)):
        verdict = verify_program(completion, PAPER)
        assert (
            (verdict.passed == 0)
            == (answer_span(completion) is None)
            == (verdict.status == "missing")
        )
        assert (verdict.expression is None) == (verdict.passed < 3)
        assert (verdict.passed >= 4) == (
            verdict.expression is not None
            and sorted(leaves(verdict.expression)) == sorted(PAPER.nums)
        )


# --- demonstrations -------------------------------------------------------------------------------


@pytest.mark.parametrize("solved", [True, False])
def test_demonstrated_programs_run_and_say_what_they_do(solved):
    verdicts = []
    lengths = []
    tokenizer = build_tokenizer()
    for i, problem in enumerate(as_problems(load("3to4", "train").select(range(200)))):
        if solved and not plain_solutions(problem):
            continue
        text = program_search(problem, random.Random(i), failures=i % 2, solved=solved)
        verdict = verify_program(text, problem)
        assert verdict.passed == (5 if solved else 4) and ("yes" in text) == solved
        assert text.count("\na = ") == text.count("?")
        attempts = [e for e in verdict.assignments if sorted(leaves(e)) == sorted(problem.nums)]
        assert len(attempts) == 1 + i % 2 == text.count("?")
        for line, expr in zip(text.split("\n")[1:-1], verdict.assignments, strict=True):
            # a comment's equations end in the line's value
            *_, last = line.partition(" # ")[2].split(", ")
            stated = (
                line.partition(" # ")[2].removesuffix(f", {last}")
                if "?" in last
                else line.partition(" # ")[2]
            )
            assert int(stated.rpartition(" = ")[2]) == evaluate(expr)
        verdicts.append(verdict)
        lengths.append(len(tokenizer(text).input_ids))
    assert 0.05 < sum(len(v.assignments) == 1 for v in verdicts) / len(verdicts) < 0.4
    assert max(lengths) < 160 and tokenizer.unk_token_id not in tokenizer(text).input_ids


def test_every_style_that_is_demonstrated_has_its_prompt_and_its_verifier():
    """Other wordings and templates of a prompt go with the same demonstrations and verifiers."""
    styles = {re.sub("_?(words|chat)$", "", name) or "free" for name in VERIFIERS}
    assert {name.partition("_")[0] for name in DEMONSTRATIONS} == styles and set(VERIFIERS) <= set(
        PROMPTS
    )
