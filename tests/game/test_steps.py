"""Every equation of a reasoning is found, judged and assigned to its attempt, in honest and in
hostile text."""

import random
import tracemalloc
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.game.expression import MAX_DIGITS
from lib.game.problem import Problem
from lib.game.steps import MAX_LENGTH, MAX_STEPS, verify_steps
from lib.game.verifiers import verify_answer
from lib.learn.demonstrations import free_search
from tests.conftest import linear

PAPER = Problem((44, 19, 35), 98)


def flags(step) -> str:
    """A step in brief: F(ormed) A(rithmetic) P(ool) R(epeated), a dash where not, and the
    attempt."""
    values = (step.well_formed, step.arithmetic_ok, step.in_pool, step.repeated)
    return "".join(c if v else "-" for c, v in zip("FAPR", values, strict=True)) + str(step.attempt)


def steps(text: str, nums=(81, 8, 3)) -> list[tuple[str, str]]:
    return [(step.text, flags(step)) for step in verify_steps(text, Problem(nums, 35))]


C5 = """<think>
Let me look for 35 with these numbers.

The larger numbers first:
81 - 8 = 73
73 - 3 = 70
70 is too far from 35

Another approach:
8 * 3 = 24
24 + 81 = 105
105 - 7 = 108 (too far)

With division:
81 / 3 = 27
27 + 8 = 35

That is it. Once more:
81 / 3 = 27
27 + 8 = 35
</think>

<answer> (81 / 3 + 8) </answer>"""


def test_the_rollout_of_appendix_c5():
    assert steps(C5) == [
        ("81 - 8 = 73", "FAP-0"),
        ("73 - 3 = 70", "FAP-0"),
        ("8 * 3 = 24", "FAP-1"),
        ("24 + 81 = 105", "FAP-1"),
        ("105 - 7 = 108", "F---1"),  # the wrong step of the paper; 7 is nowhere
        ("81 / 3 = 27", "FAP-2"),
        ("27 + 8 = 35", "FAP-2"),
        ("81 / 3 = 27", "FAPR3"),
        ("27 + 8 = 35", "FAPR3"),
    ]
    assert verify_answer(C5, Problem((81, 8, 3), 35)).status == "correct"


def test_the_check_behind_an_attempt_is_no_equation():
    text = "<think>\n81 - 8 = 73, 73 - 3 = 70, 35? no\n81 / 3 = 27, 27 + 8 = 35, 35? yes\n</think>"
    assert [step for step, _ in steps(text)] == [
        "81 - 8 = 73",
        "73 - 3 = 70",
        "81 / 3 = 27",
        "27 + 8 = 35",
    ]
    demonstration = free_search(Problem((81, 8, 3), 35), random.Random(0), failures=2)
    assert demonstration.count("35? no") == 2 and len(
        steps(demonstration)
    ) == 6 == demonstration.count("=")


def test_one_attempt_a_line():
    text = (
        "<think>\n44 + 19 = 63, 63 * 35 = 2205\n44 + 19 = 63, 63 + 35 = 98\n</think>\n"
        "<answer>(44 + 19) + 35</answer>"
    )
    assert steps(text, (44, 19, 35)) == [
        ("44 + 19 = 63", "FAP-0"),
        ("63 * 35 = 2205", "FAP-0"),
        ("44 + 19 = 63", "FAPR1"),
        ("63 + 35 = 98", "FAP-1"),
    ]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("First: 81 - 8 = 73.", [("81 - 8 = 73", "FAP-0")]),
        ("(81 - 8 = 73)", [("81 - 8 = 73", "FAP-0")]),
        ("( 81 - 8 = 73 )", [("81 - 8 = 73", "FAP-0")]),
        ("1) 81-8=73; 2. 73-3=70", [("81-8 = 73", "FAP-0"), ("73-3 = 70", "FAP-0")]),
        ("- 81 - 8 = 73 -> 73 + 3 = 76!", [("81 - 8 = 73", "FAP-0"), ("73 + 3 = 76", "FAP-0")]),
        ("8 + 3 = 11 - too small", [("8 + 3 = 11", "FAP-0")]),
        ("3 - 8 = -5, -5 + 81 = 76", [("3 - 8 = -5", "FAP-0"), ("-5 + 81 = 76", "FAP-0")]),
        ("81 / 3 = 27.0", [("81 / 3 = 27.0", "FAP-0")]),
        ("27 / 2 = 13.5", [("27 / 2 = 13.5", "FA--0")]),
        ("81 / 8 = 10.12", [("81 / 8 = 10.12", "F-P-0")]),  # no tolerance
        ("0.1 + 0.2 = 0.3", [("0.1 + 0.2 = 0.3", "FA--0")]),
        ("8 / 0 = 0", [("8 / 0 = 0", "F---0")]),
        # ill-formed: more than one operation, or parentheses
        ("81 + 8 + 3 = 92", [("81 + 8 + 3 = 92", "-AP-0")]),
        ("81 + 8 - 3 = 92", [("81 + 8 - 3 = 92", "--P-0")]),
        ("(81 + 8) * 3 = 267", [("(81 + 8) * 3 = 267", "-AP-0")]),
        ("( 8 - (81) ) = -73", [("( 8 - (81) ) = -73", "-AP-0")]),
        ("so (8 + 3) / (3 - 3) = 0", [("(8 + 3) / (3 - 3) = 0", "----0")]),
        ("-8 + 81 + 3 = 76", [("-8 + 81 + 3 = 76", "-A--0")]),  # -8 is not in the pool
        # of a chain of equations, the last
        ("81 + 8 = 89 - 3 = 86", [("89 - 3 = 86", "FA--0")]),
        ("81 - 8 = 73 = 73", [("81 - 8 = 73", "FAP-0")]),
        # no equation, and nothing that was meant as one
        *[
            (text, [])
            for text in ("81 - 8 ≈ 73.", "81 - 8 != 73.", "81 = 81.", "-5 = -5.", "81 - 8\n= 73.")
        ],
        ("we want 98 = target, x = -5.", []),
        ("81 - 8 = 73, 73 - 3 =", [("81 - 8 = 73", "FAP-0")]),  # cut off by the cap
    ],
)
def test_what_is_an_equation(text, expected):
    assert steps(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "48 - 43 == 5", "60 ** 2 = 3600", "44 + = 63", "98 = 44 + 19 + 35", "80 - 80 =",
        "81 - 8 =", "73 = 81 - 8", "2**3 + 1 = 9", "6 // 4 = 1", "5 + 06 = 11",
        "3 + 4 = 7.1.2", "1 + 1 = " + "2" * 19, "1 + " * 60 + "1 = 61",
        "2 ^ 3 = 8", "3 + 4 = 7^2", "8 + 3 = 12 - (1)",
    ],
)  # fmt: skip
def test_what_was_meant_as_an_equation_is_a_malformed_step(text):
    """It is no prose: a policy could hide its faults by misspelling. It changes no pool and starts
    no attempt."""
    said = f"<think>first {text}, then 81 - 8 = 73 and again {text}</think>"
    assert steps(said) == [(text, "----0"), ("81 - 8 = 73", "FAP-0"), (text, "---R0")]
    assert [step.malformed for step in verify_steps(said, Problem((81, 8, 3), 35))] == [
        True,
        False,
        True,
    ]


def test_malformed_steps_that_differ_only_in_spaces_are_the_same():
    assert [flag for _, flag in steps("48 - 43 == 5, 48-43==5, 48 - 43 == 6, so")] == [
        "----0",
        "---R0",
        "----0",
    ]


@pytest.mark.parametrize(
    "text, shown",
    [
        ("3 + 4 = 7x", "3 + 4 = 7"),
        ("3 + 4 = 7%", "3 + 4 = 7"),
        ("x-3 + 2 = 5", "-3 + 2 = 5"),
        ("2 + 3 =? 5", "2 + 3 ="),
    ],
)
def test_a_part_of_something_else_is_no_equation(text, shown):
    assert steps(f"{text}, so") == [(shown, "----0")]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("81 - 8 = 70, 70 + 3 = 73", "F-P-0 FAP-0"),  # a slip counts once: its result goes on
        ("81 - 8 = 73, 81 - 3 = 78", "FAP-0 FAP-1"),  # 81 is spent, so a new attempt
        # 73 and 8 are neither in the pool nor both given
        ("81 - 8 = 73, 73 + 8 = 81", "FAP-0 FA--0"),
        # foreign numbers change no pool
        ("81 + 7 = 88, 88 - 7 = 81, 81 - 8 = 73", "FA--0 FA--0 FAP-0"),
        ("8 + 8 = 16", "FA--0"),  # given once
        ("8 + 3 = 11, 3 + 8 = 11, 8 - 3 = 5, 3 - 8 = -5", "FAP-0 FAPR1 FAP-2 FAP-3"),
        ("8 * 3 = 24, 3 * 8 = 25", "FAP-0 F-PR1"),  # the operation is repeated, whatever its result
        ("81 / 3 = 27, 3 / 81 = 27", "FAP-0 F-P-1"),
        ("8 + 81 + 3 = 92, 8+81\t+3 = 92", "-AP-0 -APR1"),
    ],
)
def test_pool_attempts_and_repetition(text, expected):
    assert " ".join(flag for _, flag in steps(text)) == expected


def test_equal_numbers_are_available_as_often_as_given():
    assert [flag for _, flag in steps("8 + 8 = 16, 16 + 8 = 24", (8, 8))] == ["FAP-0", "FA--0"]
    assert [flag for _, flag in steps("8 + 8 = 16, 16 + 8 = 24", (8, 8, 8))] == ["FAP-0", "FAP-0"]


@pytest.mark.parametrize(
    "completion, found",
    [
        ("<think>8 + 3 = 11</think>8 - 3 = 5<answer>1 + 1 = 2</answer>", ["8 + 3 = 11"]),
        ("8 + 3 = 11</think>8 - 3 = 5", ["8 + 3 = 11"]),  # opened in the prompt
        ("8 + 3 = 11\n<think>8 - 3 = 5", ["8 - 3 = 5"]),  # never closed
        ("<think>8 + 3 = 11<answer>8 - 3 = 5</answer>", ["8 + 3 = 11"]),
        ("8 + 3 = 11<answer>8 - 3 = 5</answer>", ["8 + 3 = 11"]),  # no tag of thinking at all
        (
            "<think>8 + 3 = 11</think> 8 - 3 = 5 <think>8 * 3 = 24</think>",
            ["8 + 3 = 11", "8 * 3 = 24"],
        ),
        ("<think>8 + 3 = 11</think> 8 - 3 = 5 <think>8 * 3 = 24", ["8 + 3 = 11", "8 * 3 = 24"]),
        ("<think>8 + 3 =</think><think>11</think>", ["8 + 3 ="]),  # blocks do not run together
        ("", []),
    ],
)
def test_where_the_reasoning_is(completion, found):
    assert [text for text, _ in steps(completion)] == found


@settings(deadline=None)
@given(st.integers(-99, 99), st.sampled_from("+-*/"), st.integers(-99, 99), st.integers(-200, 200))
def test_arithmetic_is_checked_exactly(a, op, b, c):
    (step,) = verify_steps(f"{a} {op} {b} = {c}", Problem((a, b), 0))
    assert step.well_formed and step.in_pool
    value = (
        Fraction(a, b) if op == "/" and b else {"+": a + b, "-": a - b, "*": a * b, "/": None}[op]
    )
    assert step.arithmetic_ok == (value == c)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["81 - 8 = 73", "(8+3 =11)", "( 8 - (81) ) = -73", "<think>", "</think>", "y", "\n"]
        )
    )
)
def test_a_step_knows_where_it_stands(pieces):
    text = " ".join(pieces)
    end = 0
    for step in verify_steps(text, Problem((81, 8, 3), 35)):
        assert step.span[0] >= end
        end = step.span[1]
        left, right = text[slice(*step.span)].split("=")
        assert f"{left.strip()} = {right.strip()}" == step.text


def test_an_equation_a_number_and_a_reasoning_may_be_as_long_as_their_limits():
    left = "10" + "+1" * (MAX_LENGTH // 2 - 1)
    assert steps(f"{left} = 59, so") == [(f"{left} = 59", "-A--0")] and len(left) == MAX_LENGTH
    assert steps(f"1{left} = 159, so") == [(f"1{left} = 159", "----0")]
    longest = 10**MAX_DIGITS - 1
    for number in (f"{longest}", f"{longest:,}"):
        assert steps(f"{number} - 8 = {number}, so") == [(f"{number} - 8 = {number}", "F---0")]
    for number in (f"{longest + 1}", f"{longest + 1:,}"):
        assert [flag for _, flag in steps(f"{number} - 8 = {number}, so")] == ["----0"]
    assert len(steps("8 + 3 = 11\n" * (MAX_STEPS + 1))) == MAX_STEPS


# --- hostile length -------------------------------------------------------------------------------

LENGTH = 100_000
REPEATED = [
    "1+", "1 ", "1 + 1 = ", "1+1=2,", "1+1+1=3,", "=", "1=", "1", "-1", "1.",
    "(", ")", "( ", "(1", "1)", "1+(", "(1)", "-", "-(", "- ", "+", " ", "\n", "1\n", "1\t",
    "1+1=1-((((", "((((((((1+1))))))))=2 ", "1 + " * 24 + "1 = 25\n",
    "1+" * 300 + "1=3,", "9/7*" * 20 + "1=3,",
    "<answer>", "</answer>", "<answer></answer>", "</answer><answer>",
    "<", "<think>", "</think>", "<think></think>", "<answer>1+1</answer>", "é", "\0",
]  # fmt: skip
HOSTILE = {
    **{f"{piece[:20]!r}...": piece * (LENGTH // len(piece)) for piece in REPEATED},
    "different equations": "\n".join(f"{i} + {i + 1} = {2 * i + 1}" for i in range(5_300)),
    "different chains": "\n".join(f"{i} + 1 + 2 + 3 + 4 + 5 + 6 = {i + 21}" for i in range(2_700)),
    "spaces before =": "1 + 1" + " " * (LENGTH - 7) + "=2",
    "digits after =": "1 + 1 = " + "2" * (LENGTH - 8),
    "a list of three digits": "100," * (LENGTH // 4) + "1 + 1 = 2",
    "equations without spaces": "100+200=300," * (LENGTH // 12),
    "times": "1 times " * (LENGTH // 8),
    "spaces behind a number": "1" + " " * LENGTH,
    "crosses": "1 x " * (LENGTH // 4),
    "colons": "1 : " * (LENGTH // 4),
    "equations behind colons": "1 : 1 + 1 = 2 " * (LENGTH // 14),
    "marks": "= `1" * (LENGTH // 4),
    "dashes": "1–" * (LENGTH // 2),
    "balanced parentheses": "(" * (LENGTH // 2) + "1" + ")" * (LENGTH // 2),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "in tags"])
def test_hostile_length_takes_linear_time(text, wrapped):
    def read(some):
        some = f"<think>{some}</think><answer>{some}</answer>" if wrapped else some
        verify_answer(some, PAPER)
        verify_steps(some, PAPER)

    assert linear(read, text)


def test_a_long_run_of_equations_is_read_and_not_kept():
    """Policies come to write thousands of them in a row, each row once: they would fill the
    memory."""

    def rows(start):
        for n in range(start, start + 20):
            yield " ".join(f"{i} + {n} = {i + n}" for i in range(1000, 1500))

    def read(some):
        for row in some:
            found = verify_steps(f"<think>{row}\n</think>", PAPER)
            assert len(found) == 500 and all(step.arithmetic_ok for step in found)

    read(rows(1))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    read(rows(100))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 1e6  # the rows alone have 0.3 MB, and their equations many times that


@pytest.mark.parametrize(
    "text, expected",
    [
        ("35 * 44 = 1,540", [("35 * 44 = 1,540", "FAP-0")]),
        (
            "35 * 44 = 1,540, 1,540 - 19 = 1,521.",
            [("35 * 44 = 1,540", "FAP-0"), ("1,540 - 19 = 1,521", "FAP-0")],
        ),
        (
            "35 * 44 = 1540, then 1,540 - 19 = 1,521",
            [("35 * 44 = 1540", "FAP-0"), ("1,540 - 19 = 1,521", "FAP-0")],
        ),
        ("35 * 44 - 19 = 1,521", [("35 * 44 - 19 = 1,521", "-AP-0")]),
        ("35 * 44 = 1,541", [("35 * 44 = 1,541", "F-P-0")]),
        ("35 * 44 = 1,540.0", [("35 * 44 = 1,540.0", "FAP-0")]),
        # 19 is a number of its own
        ("44 - 35 = 9,19 + 9 = 28", [("44 - 35 = 9", "FAP-0"), ("19 + 9 = 28", "FAP-0")]),
        ("35 * 44 = 1,54 and", [("35 * 44 = 1", "F-P-0")]),
        # no number has a zero in front: a list
        ("44 - 44 = 0,540 and", [("44 - 44 = 0", "FA--0")]),
    ],
)
def test_commas_between_thousands_belong_to_the_number(text, expected):
    assert steps(f"{text} so", (44, 19, 35)) == expected


@pytest.mark.parametrize(
    "text, shown",
    [
        ("44 + 19 = **63**", "44 + 19 = 63"),
        ("44 + 19 = \\boxed{63}", "44 + 19 = 63"),
        ("**44 + 19 = 63**", "44 + 19 = 63"),
        ("so **44 + 19 = 63** holds", "44 + 19 = 63"),
        ("19 - 44 = −25", "19 - 44 = -25"),
        ("44 + 19 = $63$", "44 + 19 = 63"),
        ("44 + 19 = `63`", "44 + 19 = 63"),
        ("44 + 19 = \\(63\\)", "44 + 19 = 63"),
        ("44 + 19 = <b>63</b>", "44 + 19 = 63"),
        ("44 + 19 = *63*", "44 + 19 = 63"),
        ("44 + 19 = __63__", "44 + 19 = 63"),
    ],
)
def test_marks_around_a_number_are_no_fault(text, shown):
    """Bold type, a box, a typographic minus: bigger models write them, and the arithmetic in them
    is plain."""
    completion = f"<think>first: {text}, so</think>"
    [step] = verify_steps(completion, Problem((44, 19, 35), 98))
    assert (step.text, step.legal) == (shown, True)
    assert completion[slice(*step.span)].strip() in text


@pytest.mark.parametrize(
    "text",
    ["44 + 19 = **63", "44 + 19 = \\boxed{63", "44 + 19 = **", "60 **2 + 3 = 5", "x**2 + 3 = 5"],
)
def test_marks_that_do_not_close_are_malformed(text):
    [step] = verify_steps(f"<think>first: {text}, so</think>", Problem((44, 19, 35), 98))
    assert step.malformed


@pytest.mark.parametrize(
    "text, expected",
    [
        ("44 × 2 + 19 = 107", [("44 * 2 + 19 = 107", "-A--0")]),
        ("44 · 2 + 19 = 107", [("44 * 2 + 19 = 107", "-A--0")]),
        ("44 ÷ 2 + 19 = 41", [("44 / 2 + 19 = 41", "-A--0")]),
        ("44 \\times 19 = 836", [("44 *      19 = 836", "FAP-0")]),
        ("44 x 19 = 836", [("44 * 19 = 836", "FAP-0")]),
        ("44 x 2 + 19 = 107", [("44 * 2 + 19 = 107", "-A--0")]),
        ("44 X 2 + 19 = 107", [("44 * 2 + 19 = 107", "-A--0")]),
        ("44 X 19 = 836", [("44 * 19 = 836", "FAP-0")]),
        ("44 − 19 = 25", [("44 - 19 = 25", "FAP-0")]),
        ("5 − 44 + 19 = -20", [("5 - 44 + 19 = -20", "-A--0")]),
        ("(−9) + 19 = 10", [("(-9) + 19 = 10", "-A--0")]),
        ("44 ＋ 19 ＝ ６３", [("44 + 19 = 63", "FAP-0")]),
        ("44 × 19 = 837", [("44 * 19 = 837", "F-P-0")]),  # false stays false
    ],
)
def test_other_signs_are_read_as_those_for_which_they_stand(text, expected):
    assert steps(f"{text}, so", (44, 19, 35)) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        # it divides
        ("44 : 2 + 19 = 41", [("44 / 2 + 19 = 41", "-A--0")]),
        ("(44 + 19) : 7 = 9", [("(44 + 19) / 7 = 9", "-A--0")]),
        ("44 : 2 : 11 = 2", [("44 / 2 / 11 = 2", "-A--0")]),
        ("44 : 2 = 23", [("44 / 2 = 23", "F---0")]),  # nothing is hidden by it
        # it is the sign behind a label
        ("Step 1 : 44 + 19 = 63", [("44 + 19 = 63", "FAP-0")]),
        ("Step 1 : 44 + 19 = 64", [("44 + 19 = 64", "F-P-0")]),
        ("Step 1 : 44 + = 63", [("44 + = 63", "----0")]),
        ("Step 2 : 44 : 2 = 22", [("2 / 44 / 2 = 22", "----0")]),  # one sign, one meaning
        ("1: 44 + 19 = 63", [("44 + 19 = 63", "FAP-0")]),
        ("44 + 19 = 63 : 19 + 44 = 63", [("44 + 19 = 63", "FAP-0"), ("19 + 44 = 63", "FAPR1")]),
        ("a ratio of 44 : 19, then 63", []),
    ],
)
def test_a_colon_divides_or_stands_behind_a_label(text, expected):
    said = f"so {text}, so"
    assert steps(said, (44, 19, 35)) == expected
    for step in verify_steps(said, PAPER):
        assert said[slice(*step.span)].replace(":", "/").strip() == step.text


@pytest.mark.parametrize(
    "text",
    [
        "98 – 63 + 1 = 36", "98 — 63 + 1 = 36", "44 times 2 + 19 = 107",
        "44 divided by 2 + 19 = 41", "√ 4 + 2 = 4", "√4 + 2 = 4", "107 % 88 + 19 = 38",
    ],
)  # fmt: skip
def test_arithmetic_behind_a_sign_that_is_not_read_is_prose(text):
    """Half of an equation is no equation: nobody wrote that 63 + 1 is 36."""
    assert steps(f"so {text}, and 44 - 19 = 25", (44, 19, 35)) == [("44 - 19 = 25", "FAP-0")]


@pytest.mark.parametrize("text", ["2 ^ 3 + 1 = 9", "6 // 4 + 1 = 2", "60 ** 2 + 3 = 3603"])
def test_arithmetic_behind_an_operator_outside_the_form_is_malformed(text):
    assert [flag for _, flag in steps(f"so {text}, so", (44, 19, 35))] == ["----0"]


@pytest.mark.parametrize(
    "text", ["1{,}540", "1\\,540", "1'540", "1’540", "1\u202f540", "1\u00a0540"]
)
def test_thousands_have_other_separators_too(text):
    [step] = verify_steps(f"so 35 * 44 = {text}, so", PAPER)
    assert step.legal and sorted(step.pool) == [19, 1540]
    [false] = verify_steps(f"so 35 * 44 = {text.replace('540', '541')}, so", PAPER)
    assert not false.arithmetic_ok


def test_a_space_that_breaks_is_no_separator_of_thousands():
    """Nor is 1 the result."""
    [step] = verify_steps("so 35 * 44 = 1 540, so", PAPER)
    assert step.malformed and sorted(step.pool) == [19, 35, 44]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("100 + 200 = 300,400 - 100 = 300", ["100 + 200 = 300", "400 - 100 = 300"]),
        ("44 + 19 = 63,100 + 5 = 105", ["44 + 19 = 63", "100 + 5 = 105"]),
        ("numbers 100,200,300 + 5 = 305", ["300 + 5 = 305"]),
        ("44 + 19 = 63,100", ["44 + 19 = 63"]),
        ("100 + 5 = 105,350 * 4 = 1,400", ["100 + 5 = 105", "350 * 4 = 1,400"]),
        ("350 * 4 = 1,400,100 + 5 = 105", ["350 * 4 = 1,400", "100 + 5 = 105"]),
        ("1,540 - 19 = 1,521", ["1,540 - 19 = 1,521"]),
        ("35 * 44 = 1,540 - 19 = 1,521", ["1,540 - 19 = 1,521"]),  # of a chain the last
    ],
)
def test_a_comma_before_three_digits_may_belong_to_a_list(text, expected):
    found = verify_steps(f"so {text}, so", PAPER)
    assert [step.text for step in found] == expected
    assert all(step.arithmetic_ok for step in found)


def test_a_false_equation_is_false_with_a_comma_and_without():
    assert [flag for _, flag in steps("so 35 * 44 = 1,541, so", (44, 19, 35))] == ["F-P-0"]
    assert [flag for _, flag in steps("so 44 + 19 = 64,100 + 6 = 105, so", (44, 19, 35))] == [
        "F---0"
    ]
