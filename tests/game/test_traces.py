"""Traces against examples of the paper and a naive replay; hostile text; the answer that a trace
holds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.game.expression import evaluate, parse, render
from lib.game.problem import Problem
from lib.game.traces import (
    MAX_LENGTH,
    MAX_LINES,
    Line,
    full_pool,
    move,
    replay,
    state_line,
    try_line,
)
from lib.game.verifiers import verify_answer, verify_trace
from lib.learn.demonstrations import random_expression
from tests.conftest import linear

PROBLEM = Problem((8, 2, 7, 3), 24)
LISTING_1 = """<think>
state [2, 3, 7, 8]
try 8 - 2 = 6
state [3, 6, 7]
try 7 - 3 = 4
state [4, 6]
try 4 * 6 = 24
state [24]
</think>
<answer> (8 - 2) * (7 - 3) </answer>"""
LISTING_2 = """<think>
state [8, 27, 47, 79]
try 79 + 47 = 126
state [8, 27, 126]
try 126 - 27 = 99
state [8, 99]
try 99 - 8 = 91
state [91]
</think>
<answer> ((126 - 27) - 8) </answer>"""


def judged(*lines: str, problem=PROBLEM) -> list[Line]:
    return list(replay("\n".join(lines), problem).lines)


def test_the_papers_listing_1_is_valid_and_grounded():
    verdict = verify_trace(LISTING_1, PROBLEM)
    assert [line.kind for line in verdict.lines] == ["state", "try"] * 3 + ["state"]
    assert all(line.valid and not line.repeated for line in verdict.lines)
    assert (verdict.status, verdict.reached, verdict.link) == ("correct", True, "original")


def test_the_papers_listing_2_is_a_grounding_failure_and_repaired():
    problem = Problem((79, 8, 27, 47), 91)
    verdict = verify_trace(LISTING_2, problem)
    assert all(line.valid for line in verdict.lines)
    assert (verdict.status, verdict.reached, verdict.link) == ("wrong_numbers", True, "generated")
    assert verdict.solution == parse("79 + 47 - 27 - 8")


@pytest.mark.parametrize(
    "line, fault",
    [
        ("try 8 - 5 = 3", Line("try", in_pool=False)),
        ("try 8 - 8 = 0", Line("try", in_pool=False)),  # there is one 8
        ("try 8 - 2 = 5", Line("try", arithmetic_ok=False)),
        ("try 8 / 0 = 1", Line("try", in_pool=False, arithmetic_ok=False)),
        ("state [2, 3, 7]", Line("state", state_ok=False)),
        ("state [24]", Line("state", state_ok=False)),
        ("backtrack", Line("backtrack", state_ok=False)),
        ("try 8 - 2", Line("other")),
        ("try 08 - 2 = 6", Line("other")),
        ("the target is 24", Line("other")),
    ],
)
def test_each_fault_by_hand(line, fault):
    """And it moves nothing: what is right afterwards is what would have been right without it."""
    assert judged(line, "state [2, 3, 7, 8]") == [fault, Line("state")]


def test_fractions_are_exact():
    lines = judged(
        "try 2 / 3 = 2/3",
        "state [2/3, 7, 8]",
        "try 8 * 2/3 = 16/3",
        "try 7 + 16/3=37/3",
        "state [37/3]",
    )
    assert all(line.valid for line in lines)
    assert not judged("try 2 / 3 = 6/10")[0].valid


def test_a_backtrack_returns_to_any_earlier_state():
    down = ["try 8 - 2 = 6", "state [3, 6, 7]", "try 7 - 3 = 4", "state [4, 6]", "backtrack"]
    for back, right in [
        ("[3, 6, 7]", True),
        ("[2, 3, 7, 8]", True),
        ("[4, 6]", False),
        ("[2, 3]", False),
    ]:
        assert judged(*down, f"state {back}")[-1].state_ok == right
    assert judged(*down, "try 7 + 3 = 10")[-1].valid  # without a state it goes one step back
    assert not judged(*down[:-1], "state [3, 6, 7]")[-1].valid  # and without a backtrack nowhere
    assert judged(*down, "backtrack", "try 8 - 3 = 5")[-1].valid  # two of them go two steps back
    # the walk goes on from the state named
    assert judged(*down, "state [2, 3, 7, 8]", "try 8 - 3 = 5")[-1].valid
    # each backtrack returns to one state only
    for between in ("state [3, 6, 7]", "try 7 + 3 = 10"):
        assert not judged(*down, between, "state [2, 3, 7, 8]")[-1].valid


def test_what_a_try_says_of_the_target_must_be_true():
    start = ["try 8 - 2 = 6", "try 7 - 3 = 4"]
    says = [(", 24? yes", "*", 24, True), (", 24? no", "*", 24, False), (", 24? no", "+", 10, True)]
    says += [(", 24? yes", "+", 10, False), (", 25? no", "*", 24, False), (", 24?", "*", 24, False)]
    for claim, op, result, right in says:
        assert judged(*start, f"try 6 {op} 4 = {result}{claim}")[-1].valid == right


def test_an_action_is_repeated_only_on_the_same_pool():
    again = judged("try 8 + 2 = 10", "backtrack", "try 2 + 8 = 10")
    assert [line.repeated for line in again] == [False, False, True]
    for op, result, swapped, same in [
        ("*", "16", "16", True),
        ("-", "6", "-6", False),
        ("/", "4", "1/4", False),
    ]:
        lines = judged(f"try 8 {op} 2 = {result}", "backtrack", f"try 2 {op} 8 = {swapped}")
        assert lines[-1].valid and lines[-1].repeated == same
    other = judged("try 8 + 2 = 10", "backtrack", "try 7 - 3 = 4", "try 8 + 2 = 10")
    assert not other[-1].repeated and other[-1].valid


def test_a_slip_that_is_given_up_costs_nothing_behind_it():
    """The failed try moved nothing, so the backtrack gives up the pool that it claimed and not the
    true one."""
    lines = [
        "try 6 * 22 = 132",
        "state [94, 132]",
        "try 94 + 132 = 886",
        "state [226]",
        "backtrack",
        "state [94, 132]",
    ]
    trace = replay("\n".join([*lines, "try 132 - 94 = 38", "state [38]"]), Problem((6, 22, 94), 38))
    assert [line.valid for line in trace.lines] == [
        True,
        True,
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert trace.reached and trace.solution == parse("6 * 22 - 94")


def test_each_backtrack_gives_up_one_claimed_pool_before_a_true_one():
    down = [
        "try 8 - 2 = 6",
        "state [3, 6, 7]",
        "try 7 - 3 = 5",
        "state [5, 6]",
        "try 5 + 6 = 11",
        "state [11]",
    ]
    back = judged(*down, "backtrack", "backtrack", "try 7 - 3 = 4")
    # on [3, 6, 7], the pool of the last sound line
    assert [line.valid for line in back[-3:]] == [True, True, True]
    further = judged(
        *down, "backtrack", "backtrack", "backtrack", "try 7 - 3 = 4", "state [2, 4, 8]"
    )
    assert [line.valid for line in further[-2:]] == [True, True]  # on the whole pool
    again = judged(*down[:4], "try 7 - 3 = 4", "state [4, 6]", "backtrack", "state [3, 6, 7]")
    assert all(line.valid for line in again[4:])  # the slip corrected, its claim is over
    assert judged("try 8 - 2 = 5", "backtrack", "state [2, 3, 7, 8]")[1:] == [
        Line("backtrack"),
        Line("state"),
    ]
    returned = judged(
        "try 8 - 2 = 6", "try 7 - 3 = 5", "state [3, 6, 7]", "backtrack", "try 8 - 3 = 5"
    )
    assert returned[-1].valid  # the true state has already ended the claim


def test_to_correct_a_slip_is_no_repetition():
    slip, right = "try 8 * 2 = 17", "try 8 * 2 = 16"
    assert [line.repeated for line in judged(slip, right)] == [False, False]
    assert [line.repeated for line in judged(slip, slip, right)] == [False, True, False]
    assert [line.repeated for line in judged(right, "backtrack", slip)] == [False, False, True]


def test_a_state_said_again_is_a_repetition():
    """What `trace` names as the collapse of proof-only traces: state lines repeated without a
    try."""
    root = "state [2, 3, 7, 8]"
    assert [line.repeated for line in judged(*[root] * 30)] == [False] + [True] * 29
    assert not any(
        line.repeated
        for line in judged(root, "try 8 - 5 = 3", root, "try 8 - 2 = 6", "backtrack", root)
    )
    assert [line.repeated for line in judged(root, "state [2, 3]", "hm", root)] == [
        False,
        False,
        False,
        True,
    ]


def test_a_line_knows_where_it_stands():
    text = (
        "so\n<think>\n state [2, 3, 7, 8] \n\ntry 8 - 2 = 6\r\n</think> no <think>backtrack\n"
        "<answer>1</answer>"
    )
    lines = [text[slice(*line.span)] for line in replay(text, PROBLEM).lines]
    assert lines == ["state [2, 3, 7, 8]", "try 8 - 2 = 6", "backtrack"]


def test_provenance_must_hold_and_use_the_numbers():
    start = ["try 8 - 2 = 6"]
    for state, right in [
        ("[3, 6 = 8 - 2, 7]", True),
        ("[3 = 3, 6 = 8 - 2, 7]", True),
        ("[3, 6 = 8 + 2, 7]", False),
        ("[3, 6 = 3 * 2, 7]", False),
        ("[3, 6 = 8 - 2, 7 = 8 - 1]", False),
        ("[3, 6 = 8 -, 7]", False),
    ]:
        assert judged(*start, f"state {state}")[-1].state_ok == right


def test_an_answer_of_neither_numbers_nor_results_is_no_grounding_failure():
    for answer, link in [
        ("(8 - 2) * 4", "generated"),
        ("24 + 1", "other"),
        ("8 - 2", "other"),
        ("no", "none"),
    ]:
        assert (
            verify_trace(
                f"{LISTING_1.partition('<answer>')[0]}<answer>{answer}</answer>", PROBLEM
            ).link
            == link
        )
    assert verify_trace("<answer>8 * 3 + 7 - 2</answer>", PROBLEM).link == "original"
    false = "<think>try 8 - 2 = 5</think><answer>5 * 7</answer>"  # the trace states this result too
    assert verify_trace(false, PROBLEM).link == "generated"


def test_a_generated_value_may_be_negative():
    problem = Problem((48, 51, 88, 68), 159)
    made = "<think>try 68 + 51 = 119\ntry 48 - 88 = -40</think>"
    for answer, link in [
        ("119 - -40", "generated"),
        ("119 + 40", "other"),
        ("119 - -48", "generated"),
    ]:
        assert verify_trace(f"{made}<answer>{answer}</answer>", problem).link == link


def test_a_trace_and_a_line_may_be_as_long_as_their_limits():
    said = ["so"] * (MAX_LINES - 1)
    right = "try 8 - 2 = 6"
    assert judged(*said, right)[-1] == Line("try") and len(judged(*said, right, right)) == MAX_LINES
    wide = "try 8 - 2 =".ljust(MAX_LENGTH - 1) + "6"
    assert judged(wide) == [Line("try")] and judged(wide.replace("=", " =")) == [Line("other")]


def test_only_members_of_a_pool_can_be_combined():
    with pytest.raises(ValueError, match=r"8 - 8 needs two members of state \[2, 3, 7, 8\]"):
        move(full_pool(PROBLEM), parse("8 - 8"))


def naive_pools(nums, expr):
    """The pools on the way to `expr`, as lists of values, by plain recursion."""
    pools = [sorted(nums)]

    def value(node):
        if not hasattr(node, "op"):
            return node.value
        left = value(node.left)
        right = value(node.right)
        result = (
            left // right
            if node.op == "/"
            else {"+": left + right, "-": left - right, "*": left * right}[node.op]
        )
        pool = list(pools[-1])
        pool.remove(left)
        pool.remove(right)
        pools.append(sorted([*pool, result]))
        return result

    value(expr)
    return pools


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 99), min_size=2, max_size=5), st.integers(0, 10**6))
def test_what_is_written_is_read_back(nums, seed):
    """A random walk, written line by line, is valid; its states are those of a naive replay; its
    end is an answer."""
    expr = random_expression(nums, random.Random(seed))
    problem = Problem(tuple(nums), int(evaluate(expr)))
    lines = []
    pool = full_pool(problem)
    made = []

    def walk(node):
        nonlocal pool
        if hasattr(node, "op"):
            walk(node.left)
            walk(node.right)
            lines.append(try_line(node))
            pool = move(pool, node)
            made.append(state_line(pool))
            lines.append(state_line(pool, provenance=seed % 2 == 0))

    walk(expr)
    trace = replay("\n".join(lines), problem)
    assert all(line.valid for line in trace.lines) and trace.reached
    assert made == [f"state [{', '.join(map(str, pool))}]" for pool in naive_pools(nums, expr)[1:]]
    assert verify_answer(f"<answer>{render(trace.solution)}</answer>", problem).status == "correct"


LINES = [
    "state [2, 3, 7, 8]",
    "state [24]",
    "try 8 - 2 = 6",
    "try 6 * 4 = 24",
    "try 7 - 3 = 4",
    "backtrack",
    "state [4, 6]",
    "try 8 - 2 = 6\ntry 7 - 3 = 4\ntry 6 * 4 = 24",  # drawn line by line, a solution would be rare
]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from(LINES), st.text("try state[]0123456789+-*/=, \n", max_size=30)),
        max_size=12,
    )
)
def test_no_text_reaches_the_target_unearned(lines):
    """Whatever is claimed, a solution uses the problem's numbers and makes the target."""
    verdict = verify_trace("<think>" + "\n".join(lines), PROBLEM)
    if verdict.reached:
        assert verdict.solution is not None
    if verdict.solution is not None:
        assert (
            verify_answer(f"<answer>{render(verdict.solution)}</answer>", PROBLEM).status
            == "correct"
        )


@pytest.mark.parametrize(
    "text",
    [
        "state [" + "1, " * 33_000 + "1]",
        "try 1 " * 17_000,
        "try " + "1" * 100_000,
        "try 8 - 2 = 6\nbacktrack\n" * 4_300,
        "state [2 = " + "(" * 90 + "2\n" * 900,
        "state [3, 6 = 8 - 2, 7]\n" * 4_000,
        "\n" * 100_000,
        "backtrack" * 11_000,
    ],
)
def test_hostile_text_is_read_in_linear_time(text):
    assert linear(lambda some: verify_trace("<think>" + some, PROBLEM), text)


def test_commas_between_thousands_belong_to_the_number():
    lines = [
        "state [19, 35, 44]",
        "try 35 * 44 = 1,540",
        "state [19, 1,540]",
        "try 1,540 - 19 = 1,521",
        "state [1,521]",
    ]
    trace = replay("\n".join(lines), Problem((44, 19, 35), 1521))
    assert all(line.valid for line in trace.lines) and trace.reached
    plain = [line.replace("1,", "1") for line in lines]
    assert replay("\n".join(plain), Problem((44, 19, 35), 1521)) == trace  # spans apart
    told = replay(
        "\n".join([*lines[:2], "state [19, 1,540 = 35 * 44]"]), Problem((44, 19, 35), 1521)
    )
    assert told.lines[-1].valid


def test_a_state_may_list_numbers_of_three_digits_without_spaces():
    problem = Problem((100, 200, 300), 600)
    for state in ("state [100,200,300]", "state [100, 200, 300]", "state [300,100,200]"):
        [line] = replay(f"<think>\n{state}\n</think>", problem).lines
        assert line.valid, state
    [line] = replay("<think>\nstate [1,540,60]\n</think>", Problem((1540, 60), 600)).lines
    assert line.valid
    [line] = replay("<think>\nstate [100,200,301]\n</think>", problem).lines
    assert not line.valid
