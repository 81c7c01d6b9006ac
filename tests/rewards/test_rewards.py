"""The rewards against literal and slow versions of the papers' formulas."""

import json
import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import think_format_reward

from lib import rewards
from lib.files import DATA
from lib.game.distance import distance_to_solutions
from lib.game.expression import evaluate, parse
from lib.game.problem import Problem
from lib.rewards import REWARDS, Score, as_trl, from_trl, get_reward, score_group
from lib.runs import parameters
from tests.conftest import linear

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
    reward = get_reward("sparse")(
        [case["completion"]], Problem(tuple(case["nums"]), case["target"])
    )[0].total
    assert reward in ((0.1, 1.0) if "bomb" in case["tag"] else (case["expected_score_sparse"],))


def test_the_papers_worked_example():
    score = get_reward("ast", {"tau": 2})([answer("(35 + 19) - 44")], PAPER)[0]
    assert (
        score.total == pytest.approx(0.1 + 0.5 * math.exp(-1 / 2)) and round(score.total, 1) == 0.4
    )
    assert distance_to_solutions(parse("(35 + 19) - 44"), PAPER) == 1


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.sampled_from([case["completion"] for case in CASES]),
        st.text("<answer/>0123459+-*() \n", max_size=60),
    )
)
def test_lambda_a_zero_is_the_sparse_reward(text):
    sparse = get_reward("sparse")
    ast = get_reward("ast", {"lambda_a": 0})
    assert ast([text], PAPER)[0].total == sparse([text], PAPER)[0].total


def test_the_ladder():
    """Correct above near above far above a mere span above none, and what may not earn structural
    credit does not."""
    texts = [
        "44 + 19 + 35",
        "44 + 19 - 35",
        "44 / 19 / 35",
        "44 + 19",
        "1 + 1",
        "so",
        "44 / (19 - 19) + 35",
    ]
    right, near, far, fewer, trivial, prose, other = (
        s.total for s in get_reward("ast")([*map(answer, texts)], PAPER)
    )
    assert right == 1 > 0.6 > near > far > fewer == trivial == prose == other == 0.1
    assert get_reward("ast")(["no span"], PAPER)[0].total == 0


def test_a_division_by_zero_over_the_right_numbers_keeps_structural_credit():
    problem = Problem((5, 3, 3), 11)
    score = get_reward("ast")([answer("5 / (3 - 3)")], problem)[0]
    assert 0.1 < score.total < 0.6 and score.parts["valid"] == 1


def test_right_arithmetic_is_paid_beside_the_distance():
    """Two of three different steps hold, whoever answers; one that is said again counts once, no
    step earns nothing."""
    steps = "44 + 19 = 63, 63 + 35 = 98, 44 - 19 = 24, 19 + 44 = 63"
    answers = ["44 + 19 + 35", "44 + 19 - 35", "?"]
    texts = [f"<think>{steps}</think><answer>{answer}</answer>" for answer in answers]
    plain = get_reward("ast")(texts, PAPER)
    paid = get_reward("ast", {"lambda_s": 0.3})([*texts, "<answer>44 + 19 + 35</answer>"], PAPER)
    assert [score.parts["arithmetic"] for score in paid] == pytest.approx([2 / 3] * 3 + [0])
    assert [score.total for score in paid] == pytest.approx(
        [score.total + 0.2 for score in plain] + [1.0]
    )
    assert "arithmetic" not in plain[0].parts


def test_the_parts_say_how_far_an_answer_is_and_whether_its_numbers_are_wrong():
    texts = [*map(answer, ["44 + 19 + 35", "44 + 19 - 35", "44 + 19", "so"]), "no span"]
    parts = [score.parts for score in get_reward("ast")(texts, PAPER)]
    # five nodes: the size of a solution
    assert [part["distance"] for part in parts] == [0, 1, 3, 5, 5]
    assert [part["wrong_numbers"] for part in parts] == [0, 0, 1, 0, 0]
    assert (
        get_reward("ast")([answer("2 + 2")], Problem((2, 2), 100))[0].parts["distance"] == math.inf
    )


def test_without_the_gate_trivial_answers_are_paid():
    gated, open_ = (
        get_reward("ast", {"exact_numbers": gate})([answer("1 + 1")], PAPER)[0]
        for gate in (True, False)
    )
    assert gated.total == 0.1 < open_.total
    # the root and both subtrees of (1 + 1) differ but for "+": 1 + 1 leaves, and 2 nodes that have
    # no counterpart
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
        ("ast", {"lambda_a": 0.9}, "lambda_a . lambda_s must be below"),
        ("ast", {"lambda_a": 0.5, "lambda_s": 0.4}, "lambda_a . lambda_s must be below"),
        ("ast", {"lambda_a": -5, "lambda_s": 5}, "lambda_a . lambda_s must be below"),
        ("ast", {"lambda_p": -5, "lambda_a": 1.5}, "lambda_a . lambda_s must be below"),
        ("ast", {"lambda_c": -1, "lambda_p": -3}, "lambda_a . lambda_s must be below"),
        ("sparse", {"lambda_p": 5}, "lambda_c must be above lambda_p and above 0"),
        ("sparse", {"lambda_p": 1}, "lambda_c must be above lambda_p and above 0"),
        (
            "sparse",
            {"lambda_c": -0.1, "lambda_p": -0.2},
            "lambda_c must be above lambda_p and above 0",
        ),
        ("ast", {"tau": 0}, "tau must be positive"),
        ("ast", {"tau": "two"}, "tau must be a finite number, .*, not 'two'"),
        ("ast", {"tau": True}, "tau must be a finite number, .*, not True"),
        ("ast", {"lambda_a": float("nan")}, "lambda_a must be a finite number, .*, not nan"),
        (
            "sparse",
            {"lambda_c": 1e39},
            "lambda_c must be a finite number, at most 1e6 in size, not 1e.39",
        ),
        ("ast", {"exact_numbers": 1}, "exact_numbers must be true or false, not 1"),
        ("dense", {"aggregate": 3}, "aggregate must be a text, not 3"),
        ("dense", {"aggregate": "sum"}, "aggregate must be 'bounded', 'share' or 'count'"),
        ("dense", {"lambda_2": -0.1}, "lambdas must not be negative"),
        ("dense", {"aggregate": "count", "lambda_3": -0.1}, "lambdas must not be negative"),
        (
            "dense",
            {"lambda_1": 0.8, "lambda_2": 0.1},
            "lambdas must not be negative, and sum to less than 0.9",
        ),
        ("dense", {"aggregate": "bounded", "lambda_3": 0.9}, "lambdas must not be negative"),
        ("trace_guarded", {"strict": "yes"}, "strict must be true or false"),
        ("program_near", {"by": "text"}, "by must be 'tree' or 'value'"),
        ("program_near", {"credit": 0.5}, "credit within .0, 0.5."),
        ("program_near", {"credit": -0.1}, "credit within .0, 0.5."),
        ("program_near", {"tau": 0}, "tau positive"),
        ("nowhere.py:mine", {}, "no file nowhere.py"),
        ("lib/rewards.py:sparse", {}, "unknown reward 'lib/rewards.py:sparse'; there are: none"),
    ],
)
def test_mistakes_are_refused_before_anything_is_scored(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_reward(name, options)


def test_an_option_may_be_as_large_as_the_message_says():
    assert get_reward("sparse", {"lambda_c": 1e6})([answer("44 + 19 + 35")], PAPER)[0].total == 1e6


def test_one_text_in_place_of_a_group_is_refused():
    with pytest.raises(TypeError, match="list of completions"):
        score_group(get_reward("sparse"), answer("44 + 19 + 35"), PAPER)


def test_a_problem_that_is_a_row_of_a_data_set_is_refused():
    with pytest.raises(TypeError, match=r"takes a lib.game.problem.Problem\(nums=.*not {'nums'"):
        row = {"nums": [44, 19, 35], "target": 98}
        score_group(get_reward("sparse"), [answer("44 + 19 + 35")], row)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["sparse", "ast"]),
    st.fixed_dictionaries(
        {name: st.floats(-3, 3) for name in ("lambda_c", "lambda_p", "lambda_a", "lambda_s")}
    ),
)
def test_no_options_pay_a_wrong_text_more_than_a_right_one(name, options):
    options = options if name == "ast" else {key: options[key] for key in ("lambda_c", "lambda_p")}
    try:
        reward = get_reward(name, options)
    except ValueError:
        return
    steps = "<think>44 + 19 = 63</think>"
    right = [answer("44 + 19 + 35"), steps + "<answer>44 + 19 + 35</answer>"]
    wrong = [
        "",
        steps,
        answer("44 + 19 - 35"),
        steps + "<answer>44 + 19 - 35</answer>",
        answer("1 + 1"),
    ]
    scores = [score.total for score in reward([*right, *wrong], PAPER)]
    assert min(scores[:2]) > max(scores[2:])


# --- rewards of one's own -------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a file of one's own; rewards are taken from the folder where it lies."""
    monkeypatch.setattr(rewards, "ROOT", tmp_path)
    monkeypatch.setattr(parameters, "ROOT", tmp_path)

    def write(text: str, file: str = "own.py") -> None:
        (tmp_path / file).write_text(f"from lib.rewards import Score, register\n{text}")

    return write


def registering(name: str, total: object) -> str:
    return (
        f"@register({name!r})\ndef made():\n"
        f"    return lambda texts, problem: [Score({total}, {{}}) for _ in texts]\n"
    )


def earned(name: str, completions=("some text",)) -> list[float]:
    return [score.total for score in get_reward(name)([*completions], PAPER)]


OWN = """
@register("short_answers")
def short_answers(most: int = 10):
    return lambda texts, problem: [Score(float(len(text) <= most), {}) for text in texts]
"""


def test_a_reward_may_stand_in_a_file_of_ones_own(own):
    own(OWN)
    reward = get_reward("own.py:short_answers", {"most": 3})
    assert [score.total for score in reward(["abc", "abcd"], PAPER)] == [1, 0]
    parameters.check({"reward": "own.py:short_answers", "reward_options": {"most": 3}})
    with pytest.raises(ValueError, match="nowhere.py:mine"):
        parameters.check({"reward": "nowhere.py:mine"})
    with pytest.raises(ValueError, match="did you mean 'short_answers'"):
        get_reward("own.py:short_answer")
    for most in (3.5, True):
        with pytest.raises(ValueError, match="most must be a whole number"):
            get_reward("own.py:short_answers", {"most": most})


def test_each_file_has_rewards_of_its_own(own):
    """One name in two files, in any order; ours are not among a file's."""
    own(registering("mine", 1), "a.py")
    own(registering("mine", 2), "b.py")
    assert [earned(f"{file}.py:mine") for file in "aba"] == [[1], [2], [1]]
    assert "mine" not in REWARDS
    with pytest.raises(ValueError, match="unknown reward 'a.py:sparse'; there are: mine"):
        get_reward("a.py:sparse")


def test_an_edit_of_a_file_is_seen(own):
    own(registering("mine", 1))
    assert earned("own.py:mine") == [1]
    own(registering("mine", 2))
    assert earned("own.py:mine") == [2]
    own("def")
    with pytest.raises(ValueError, match="own.py, line 2: SyntaxError"):
        get_reward("own.py:mine")


def test_a_name_that_exists_is_refused(own):
    own(registering("sparse", 9))
    with pytest.raises(
        ValueError, match="own.py, line 2: ValueError: a reward 'sparse' exists already"
    ):
        get_reward("own.py:sparse")
    own(registering("mine", 1) + registering("mine", 2))
    with pytest.raises(ValueError, match="'mine' exists already"):
        get_reward("own.py:mine")
    assert earned("sparse") == [0]


def test_a_cell_of_a_notebook_may_be_run_again(own, monkeypatch):
    """Also after a file was read, whose rewards are its own; but no cell takes the name of a reward
    of ours."""
    monkeypatch.setattr(rewards, "REWARDS", dict(REWARDS))
    own(registering("mine", 1))
    assert earned("own.py:mine") == [1]

    def run_cell(name: str, total: int) -> None:
        exec(
            f"from lib.rewards import Score, register\n{registering(name, total)}",
            {"__name__": "__main__"},
        )

    for total in (2, 3):
        run_cell("mine", total)
        assert earned("mine") == [total] and earned("own.py:mine") == [1]
    with pytest.raises(ValueError, match="'sparse' exists already"):
        run_cell("sparse", 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n  x = (", "own.py, line 3: IndentationError"),
        (
            "import nowhere_to_be_found",
            "own.py, line 2: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("raise ValueError('one\\ntwo')", "own.py, line 2: ValueError: one two"),
        ("\n1 / 0", "own.py, line 3: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit()", "own.py, line 3: SystemExit"),
        ("import json\n\njson.loads('{')", "own.py, line 4: JSONDecodeError"),
        (
            "@register('mine')\ndef made(scale):\n    return None",
            "reward 'own.py:mine'.* TypeError: .*'scale'",
        ),
        ("@register('mine')\ndef made():\n    exit(0)", "reward 'own.py:mine'.*SystemExit"),
        (
            "@register('mine')\ndef made():\n    return None",
            "must give a function of completions .* not None",
        ),
    ],
)
def test_whatever_is_wrong_in_a_file_is_one_sentence(own, text, message):
    own(text)
    with pytest.raises(ValueError, match=message) as caught:
        get_reward("own.py:mine")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("Score(float('nan'), {})", "completion 2: the total must be a finite number, not nan"),
        ("Score(float('-inf'), {})", "completion 2: the total must be a finite number, not -inf"),
        (
            "Score(None, {})",
            r"completion 2: it must give .* of numbers, not Score\(total=None, parts={}\)",
        ),
        (
            "Score('one', {})",
            r"completion 2: it must give .* of numbers, not Score\(total='one', parts={}\)",
        ),
        ("0.5", r"completion 2: it must give a Score\(total, parts\) of numbers, not 0.5"),
        ("None", r"completion 2: it must give a Score\(total, parts\) of numbers, not None"),
        (
            "Score(1.0, {'why': 'it is short'})",
            "completion 2: .* of numbers, not .*'why': 'it is short'",
        ),
        ("Score(1.0, {'why': [1, 2]})", r"completion 2: .* of numbers, not .*'why': \[1, 2\]"),
    ],
)
def test_a_score_that_is_none_names_reward_problem_and_completion(own, score, message):
    text = f"{{'bad': lambda: {score}, 'good': lambda: Score(1, {{'why': True}})}}[text]()"
    own(
        f"@register('mine')\ndef made():\n"
        f"    return lambda texts, problem: [{text} for text in texts]"
    )
    assert earned("own.py:mine", ["good", "good"]) == [1, 1]
    with pytest.raises(ValueError, match=rf"reward 'mine' on \(44, 19, 35\) to 98, {message}"):
        score_group(get_reward("own.py:mine"), ["good", "bad"], PAPER)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ("[Score(1.0, {})]", "one Score for each of 3 completions, not .Score"),
        ("[Score(1.0, {})] * 4", "one Score for each of 3 completions, not .Score"),
        ("None", "one Score for each of 3 completions, not None"),
        ("1.0", "one Score for each of 3 completions, not 1.0"),
    ],
)
def test_every_completion_has_one_score(own, scores, message):
    own(f"@register('mine')\ndef made():\n    return lambda texts, problem: {scores}")
    with pytest.raises(
        ValueError,
        match=rf"reward 'mine' on \(44, 19, 35\) to 98: it must give a list with {message}",
    ):
        score_group(get_reward("own.py:mine"), ["a", "b", "c"], PAPER)


def test_programs_that_come_near_the_target_earn_more():
    """44 + 19 - 35 is one operator from the solution 44 + 19 + 35 = 98, and its value, 28, is 70
    from the target."""
    # -10, two operators away
    near, far = "a = 44 + 19\nanswer = a - 35", "a = 44 - 19\nanswer = a - 35"
    texts = [
        answer(text)
        for text in (near, far, "a = 44 + 19\nanswer = a + 35", "answer = 44 + 19", "44 +")
    ] + ["none"]
    plain = get_reward("program")(texts, PAPER)
    for options, closeness in [
        ({}, [math.exp(-1 / 2), math.exp(-2 / 2)]),
        ({"tau": 1.0}, [math.exp(-1), math.exp(-2)]),
        ({"by": "value"}, [1 / 71, 1 / 109]),
    ]:
        scores = get_reward("program_near", options)(texts, PAPER)
        assert [score.parts["closeness"] for score in scores] == pytest.approx(
            [*closeness, 0, 0, 0, 0]
        )
        earned = [score.total - before.total for score, before in zip(scores, plain, strict=True)]
        assert earned == pytest.approx([0.25 * close for close in [*closeness, 0, 0, 0, 0]])
        assert max(score.total for score in scores) == scores[2].total == pytest.approx(1)


def test_a_reward_as_trl_calls_it():
    """By keyword, with columns of the data set and more; a group's members follow each other, texts
    or messages."""
    other = Problem((2, 3), 6)
    texts = [answer("44 + 19 + 35"), answer("44 + 19 - 35"), answer("2 * 3"), "none"]
    columns = {"nums": [[44, 19, 35]] * 2 + [[2, 3]] * 2, "target": [98, 98, 6, 6]}
    ours = [
        score.total
        for part, p in ((texts[:2], PAPER), (texts[2:], other))
        for score in get_reward("ast")(part, p)
    ]
    reward = as_trl(get_reward("ast"))
    assert reward.__name__ == "ast"
    assert (
        reward(
            prompts=["a", "a", "b", "b"],
            completions=texts,
            completion_ids=[],
            trainer_state=None,
            **columns,
        )
        == ours
    )
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert reward(prompts=[[{}]] * 4, completions=messages, **columns) == ours
    hard = as_trl(get_reward("trace_hardness"))  # here the group counts
    right = f"<think>try 2 * 3 = 6</think>{answer('2 * 3')}"
    asked = {"prompts": ["b"] * 2, "nums": [[2, 3]] * 2, "target": [6, 6]}
    assert (
        hard(completions=[right, "none"], **asked)[0] > hard(completions=[right, right], **asked)[0]
    )


@pytest.mark.parametrize("name", ["ast", "trace_hardness"])
def test_a_reward_there_and_back_is_the_same(name):
    """Also one that looks at the whole group."""
    texts = [answer("44 + 19 + 35"), answer("44 + 19 - 35"), "none"]
    reward = get_reward(name)
    back = from_trl(as_trl(reward))
    assert [score.total for score in back(texts, PAPER)] == [
        score.total for score in reward(texts, PAPER)
    ]
    assert back(texts, PAPER) == from_trl(as_trl(reward), messages=True)(texts, PAPER)


def test_a_reward_of_trls_in_our_place():
    """Its own functions read messages; a None counts nothing, and what is logged becomes a part."""
    texts = ["<think>1</think>2", "no thought"]
    assert from_trl(think_format_reward, messages=True)(texts, PAPER) == [
        Score(1.0, {}),
        Score(0.0, {}),
    ]

    def brief(prompts, completions, nums, target, log_metric, log_extra, **_):
        assert prompts == ["Numbers: [44, 19, 35]\nTarget: 98\n"] * 2 and (nums[0], target[1]) == (
            [44, 19, 35],
            98,
        )
        log_extra("length", [*map(len, completions)])
        log_metric("shortest", min(map(len, completions)))
        return [None, 2]

    assert from_trl(brief)(texts, PAPER) == [
        Score(0.0, {"shortest": 10}),
        Score(2.0, {"shortest": 10}),
    ]


# --- the dense process reward ---------------------------------------------------------------------


def think(*lines: str, final: str = "44") -> str:
    return "<think>" + "\n".join(lines) + f"</think><answer>{final}</answer>"


def dense(text: str, problem: Problem = PAPER, aggregate="share", **options):
    return get_reward("dense", {"aggregate": aggregate, **options})([text], problem)[0]


def test_steps_by_hand():
    """One legal, one wrong, one on numbers that are gone, one of another form, each a quarter;
    repeats do not count."""
    lines = [
        "44 + 19 = 63, 63 - 35 = 29, 98? no",
        "19 + 63 = 82, 44 + 19 + 35 = 98",
        "44 + 19 = 63",
    ]
    score = dense(think(*lines))
    assert (score.parts["legal"], score.parts["invalid"], score.parts["steps"]) == (0.25, 0.75, 4)
    assert score.total == pytest.approx(0.1 + 0.05 * 0.25 - 0.05 * 0.75)
    counted = dense(think(*lines), aggregate="count")
    assert (counted.parts["legal"], counted.parts["invalid"]) == (2, 3)
    assert counted.total == pytest.approx(0.1 + 0.05 * 2 - 0.05 * 3)
    # as it is by default: c / (c + n - 1) of different steps
    bounded = get_reward("dense")([think(*lines)], PAPER)[0]
    assert (bounded.parts["legal"], bounded.parts["invalid"]) == pytest.approx((1 / 3, 3 / 5))


def test_a_new_attempt_finds_a_full_pool_and_checks_and_prose_are_no_steps():
    searches = [
        "44 - 19 = 25, 25 + 35 = 60, 98? no",
        "so let me try 19 + 44 = 63. 63 + 35 = 98, 98? yes",
    ]
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
    # legal as it stands, but it builds on a slip
    assert progress("44 + 19 = 133, 133 - 35 = 98") == 0
    assert (
        progress("44 + 19 = 60", "44 + 19 = 63", "35 + 63 = 98") == 0.5
    )  # a repeat does not heal it; 35 + 63 starts over
    assert dense(think("44 + 19 = 63"), lambda_3=0.1).total == pytest.approx(0.1 + 0.05 + 0.1)


TERMS = st.sampled_from(["44", "19", "35", "63", "98", "0", "7"])
STEPS = st.tuples(TERMS, st.sampled_from("+-*/"), TERMS, TERMS).map(
    lambda t: f"{t[0]} {t[1]} {t[2]} = {t[3]}"
)
LINES = st.lists(
    st.one_of(STEPS, st.sampled_from(["44 + 19 = 63", "63 + 35 = 98", "1 + 2 + 3 = 6", "98? no"])),
    max_size=60,
)
LAMBDAS = st.fixed_dictionaries({f"lambda_{i}": st.floats(0, 0.29) for i in (1, 2, 3)})


@settings(max_examples=200, deadline=None)
@given(LINES, LINES, LAMBDAS)
def test_every_correct_answer_beats_every_other_at_any_length(some, others, lambdas):
    right = dense(think(*some, final="44 + 19 + 35"), **lambdas)
    wrong = dense(think(*others), **lambdas)
    assert right.total >= 1 - lambdas["lambda_2"] - 1e-9
    assert wrong.total <= 0.1 + lambdas["lambda_1"] + lambdas["lambda_3"] + 1e-9
    assert wrong.total < right.total


@settings(max_examples=200, deadline=None)
@given(LINES, LINES, LAMBDAS)
def test_bounded_sums_keep_the_order_at_any_length(some, others, lambdas):
    lambdas |= {"aggregate": "bounded"}
    right = dense(think(*some, final="44 + 19 + 35"), **lambdas)
    wrong = dense(think(*others), **lambdas)
    assert right.total > 1 - lambdas["lambda_2"] - 1e-9
    assert wrong.total < right.total
    assert all(
        0 <= score.parts[name] < 1
        for score in (right, wrong)
        for name in ("legal", "invalid", "progress")
    )


def test_bounded_sums_are_two_numbers_and_shares_are_one():
    """A legal step more leaves R_invalid alone; by shares whoever gains in one loses in the
    other."""
    few = think("44 + 19 = 63, 1 + 1 = 3")
    more = think("44 + 19 = 63, 63 + 35 = 98, 1 + 1 = 3")
    for aggregate, (legal, legal_too), (invalid, invalid_too) in [
        ("bounded", (1 / 3, 2 / 4), (1 / 3, 1 / 3)),
        ("share", (1 / 2, 2 / 3), (1 / 2, 1 / 3)),
        ("count", (1, 2), (1, 1)),
    ]:
        one = dense(few, aggregate=aggregate).parts
        two = dense(more, aggregate=aggregate).parts
        assert [one["legal"], two["legal"]] == pytest.approx([legal, legal_too])
        assert [one["invalid"], two["invalid"]] == pytest.approx([invalid, invalid_too])

    def gap(text, aggregate):  # between the pair of the published sweep
        one = {"lambda_1": 0.05, "lambda_2": 0.1}
        other = {"lambda_1": 0.1, "lambda_2": 0.05}
        return (
            dense(text, aggregate=aggregate, **one).total
            - dense(text, aggregate=aggregate, **other).total
        )

    # a placebo: the two differ by a constant
    assert gap(few, "share") == pytest.approx(gap(more, "share"))
    assert gap(few, "bounded") != pytest.approx(gap(more, "bounded"))


def test_counted_steps_can_be_farmed_and_shares_cannot():
    """Legal first steps without end, one repeated or many different ones, against a solution of two
    steps."""
    right = think("44 + 19 = 63, 63 + 35 = 98", final="44 + 19 + 35")
    repeats = think(*["44 + 19 = 63"] * 30)
    sides = [f"{a} {op} {b}" for a, b in permutations(PAPER.nums, 2) for op in "+-*"]
    several = [f"{side} = {value(parse(side))}" for side in sides]
    for farm in (repeats, think(*several * 3)):
        assert dense(farm, aggregate="count").total > dense(right, aggregate="count").total
        assert dense(farm).total < 0.151 < dense(right).total
    # so the lambdas of a count have no bound either
    dear = dense(repeats, aggregate="count", lambda_1=1.0)
    assert dear.total == pytest.approx(0.1 + 30)
    mistakes = think(*["44 + 19 = 60"] * 25, final="44 + 19 + 35")
    assert dense(mistakes, aggregate="count").total < 0 < 0.95 <= dense(mistakes).total


@settings(max_examples=100, deadline=None)
@given(LINES)
def test_without_lambdas_it_is_the_sparse_reward(lines):
    text = think(*lines)
    assert dense(text, lambda_1=0, lambda_2=0).total == get_reward("sparse")([text], PAPER)[0].total


def test_a_problem_of_one_number_needs_no_step():
    assert dense(think(final="7"), Problem((7,), 7), aggregate="bounded").total == 1


@pytest.mark.parametrize(
    "unit", ["44 + 19 = 63, ", "999999999999999999 * 44 = 1\n", "((((44 + ", "4"]
)
def test_the_dense_reward_reads_hostile_text_in_linear_time(unit):
    assert linear(lambda text: dense(think(text), lambda_3=0.1), unit * (100_000 // len(unit)))


# --- `trace`, Table 1 -----------------------------------------------------------------------------

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


TEXTS = [
    traced(lines, text)
    for lines in (WORKS, DETOUR, MISSES, BROKEN, [], WORKS * 3, BROKEN * 60)
    for text in ("(8 - 2) * (7 - 3)", "(8 - 2) * 4", "8 - 2", "none")
]


@pytest.mark.parametrize("name", TRACED)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from(TEXTS), st.just("no span"), st.text(max_size=40)),
        min_size=2,
        max_size=8,
    )
)
def test_in_every_group_a_correct_answer_beats_a_wrong_one(name, group):
    scores = get_reward(name)(group, GROUP_PROBLEM)
    right = [score.total for score in scores if score.parts["correct"]]
    wrong = [score.total for score in scores if not score.parts["correct"]]
    if right and wrong:
        assert min(right) > max(wrong)
    assert all(set(score.parts) == set(scores[0].parts) for score in scores)


def test_each_trace_reward_by_hand():
    """Correct on a short trace, on one with an extra try, without a trace; wrong on a clean trace
    and a broken one."""
    group = [
        traced(WORKS),
        traced(DETOUR),
        traced([]),
        traced(MISSES, "8 - 2"),
        traced(BROKEN, "8 - 2"),
    ]
    broken = 5 / 7  # its last try is out of the pool, and the state after it not the true one
    expected = {
        "trace_outcome": [1, 1, 1, 0.1, 0.1],
        "trace_dense": [1.5, 1.5, 1, 0.6, 0.1 + 0.5 * broken],
        "trace_gated": [1.2, 1.2, 1, 0.1, 0.1],
        "trace_guarded": [1.2, 1.2, 1, 0.1, 0.1 - 0.2 * (1 - broken)],
        "trace_group": [1.5, 1.5, 1, 0.4, 0.1 + 0.3 * broken],
        "trace_effort": [1.2, 1.25, 1, 0.1, 0.1],
        "trace_hardness": [1.4, 1.45, 1, 0.1, 0.1],  # two of five are wrong
        "trace_agreement": [1.2, 1.2, 1.2, 0.1, 0.1],  # 8 - 2 leaves numbers out
    }
    assert set(expected) == set(TRACED)
    for name, values in expected.items():
        assert totals(name, *group) == pytest.approx(values), name


def test_an_answer_agrees_that_its_trace_bears_out():
    """Wrong over the right numbers: in agreement where the trace misses too, not where it ends at
    the target; an answer over a result of the trace never is, nor is one that leaves numbers out,
    which is no grounding failure."""
    texts = [
        traced(MISSES, "8 - 2 + 7 - 3"),
        traced(WORKS, "8 - 2 + 7 - 3"),
        traced(WORKS, "6 * (7 - 3)"),
    ]
    texts += [traced(WORKS, "8 - 2")]
    scores = get_reward("trace_agreement")(texts, GROUP_PROBLEM)
    assert [score.parts["agrees"] for score in scores] == [1, 0, 0, 0]
    assert [score.parts["ungrounded"] for score in scores] == [0, 0, 1, 0]
    assert [score.total for score in scores] == pytest.approx([0.3, 0.1, 0.1, 0.1])
    assert "agrees" not in get_reward("trace_gated")(texts, GROUP_PROBLEM)[0].parts


def test_what_each_variant_promises():
    clean = traced(MISSES, "8 - 2")
    broken = traced(BROKEN, "8 - 2")
    # ranks wrong traces
    assert totals("trace_dense", clean, broken)[0] > totals("trace_dense", clean, broken)[1]
    # but not in an all-wrong group
    assert totals("trace_group", clean, broken) == pytest.approx([0.1, 0.1])
    assert totals("trace_gated", clean, broken) == pytest.approx([0.1, 0.1])
    hard = [traced(WORKS), clean, clean, clean]
    easy = [traced(WORKS), traced(WORKS), traced(WORKS), clean]
    assert totals("trace_hardness", *hard)[0] == pytest.approx(
        totals("trace_hardness", *easy)[0] + 0.25
    )
    # the same action again
    again = traced([*BODY, "backtrack", "state [3, 6, 7]", *BODY[3:], *WORKS[5:]])
    assert totals("trace_effort", again) == totals("trace_effort", traced(WORKS))
    assert totals("trace_guarded", again)[0] < totals("trace_guarded", traced(WORKS))[0]


@pytest.mark.parametrize("tries", [0, 2, 4, 6])
def test_extra_tries_are_paid_up_to_four(tries):
    """Tries that are taken back, before a trace that works."""
    some = ["8 + 2 = 10", "8 + 3 = 11", "8 + 7 = 15", "8 * 2 = 16", "8 * 3 = 24", "8 * 7 = 56"][
        :tries
    ]
    text = traced([line for action in some for line in (f"try {action}", "backtrack")] + WORKS)
    [score] = get_reward("trace_effort")([text], GROUP_PROBLEM)
    assert score.parts["extra"] == tries
    assert score.total == pytest.approx(1.2 + 0.2 * min(tries, 4) / 4)


def test_a_trace_that_leaves_the_target_again_has_not_reached_it():
    [left, none] = get_reward("trace_effort")(
        [traced([*WORKS, "backtrack"]), traced([])], GROUP_PROBLEM
    )
    assert left.parts["reached"] == none.parts["reached"] == none.parts["extra"] == 0
    assert left.total == none.total == 1


def test_strictly_guarded_nothing_is_hidden_from_the_faults():
    """The published run closed its think block at once and wrote behind it, where no line is
    read."""

    def faults(text, **options):
        return get_reward("trace_guarded", options)([text], GROUP_PROBLEM)[0].parts["faults"]

    solved = "<answer>(8 - 2) * (7 - 3)</answer>"
    behind = "\n".join(["</think>", *WORKS, "</think>", solved])
    for text, loose, strict in [
        (traced(WORKS), 0, 0),
        (behind, 0, 1),
        (solved, 0, 1),
        ("", 0, 1),
        (traced(WORKS) + "\nand so on", 0, 1 / 8),
        ("well\n" + traced(WORKS) + "\n\n", 0, 1 / 8),
        # an answer span divides its line
        (traced(WORKS).replace("<answer>", "so <answer>") + " it is", 0, 2 / 9),
        (traced([BODY[0]] * 4), 0, 3 / 4),
        (traced(BROKEN), 2 / 7, 2 / 7),
    ]:
        assert faults(text) == pytest.approx(loose) and faults(text, strict=True) == pytest.approx(
            strict
        )
    order = [traced(WORKS), behind, traced(MISSES, "8 - 2"), traced([], "8 - 2")]
    totals = [
        score.total for score in get_reward("trace_guarded", {"strict": True})(order, GROUP_PROBLEM)
    ]
    assert totals == pytest.approx([1.2, 0.8, 0.1, -0.1])


def test_weights_that_break_the_order_are_refused():
    with pytest.raises(ValueError, match="below 0.9"):
        get_reward("trace_dense", {"validity": 0.9})
    with pytest.raises(ValueError, match="below 0.9"):
        get_reward("trace_guarded", {"validity": 0.4, "penalty": 0.5})
    with pytest.raises(ValueError, match="not be negative"):
        get_reward("trace_gated", {"bonus": -0.1})


def test_trl_may_hand_over_numbers_in_any_form():
    """A data set's columns come as lists, arrays or tensors; a target that is not whole is never
    cut to one that is."""
    reward = as_trl(get_reward("sparse"))
    text = "<answer>44 + 19 + 35</answer>"
    forms = [
        [44, 19, 35],
        (44, 19, 35),
        "44 19 35",
        "[44, 19, 35]",
        np.array([44, 19, 35]),
        torch.tensor([44, 19, 35]),
    ]
    targets = [98, "98", 98.0, np.int64(98), torch.tensor(98), np.float32(98)]
    size = len(forms)
    assert reward(["p"] * size, [text] * size, nums=forms, target=targets) == [1.0] * size
    for target in (98.5, "98.5", True, None, float("nan")):
        with pytest.raises(ValueError, match="is not a problem"):
            reward(["p"], [text], nums=[[44, 19, 35]], target=[target])
    with pytest.raises(ValueError, match="is not a problem"):
        reward(["p"], [text], nums=[[44.5, 19, 35]], target=[98])


@pytest.mark.parametrize(
    "completion, total",
    [
        ([], 0.0),
        ([{"role": "assistant", "content": None}], 0.0),
        ([{"role": "assistant"}], 0.0),
        ([{"role": "assistant", "content": [{"type": "image"}]}], 0.0),
        (
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "<answer>44 + 19"},
                        {"type": "text", "text": " + 35</answer>"},
                    ],
                }
            ],
            1.0,
        ),
    ],
)
def test_a_message_without_a_text_is_a_missing_answer(completion, total):
    """One odd completion does not end a training of hours."""
    reward = as_trl(get_reward("sparse"))
    right = [{"role": "assistant", "content": "<answer>44 + 19 + 35</answer>"}]
    assert reward(["p", "p"], [completion, right], nums=[[44, 19, 35]] * 2, target=[98] * 2) == [
        total,
        1.0,
    ]
