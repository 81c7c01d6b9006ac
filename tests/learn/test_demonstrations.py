"""Everything that is imitated is true: demonstrations end in a right answer, equations hold,
evaluation problems stay out."""

import ast
import hashlib
import json
import random
import re
from fractions import Fraction
from functools import cache

import datasets
import numpy as np
import pandas as pd
import pytest

from lib.game.expression import parse
from lib.game.mdp import State, initial, parse_action, render_state, step
from lib.game.problem import Problem
from lib.game.prompts import render_prompt
from lib.game.sets import load
from lib.game.solver import is_solvable
from lib.game.steps import verify_steps
from lib.game.verifiers import VERIFIERS, TraceVerdict, verify_answer, verify_trace
from lib.learn import demonstrations
from lib.learn.demonstrations import (
    TRACES,
    demonstrate,
    free_search,
    hub_demonstrations,
    plain_solutions,
    random_expression,
    steps_of,
)
from lib.learn.model import build_tokenizer
from tests.of_notebook import of_notebook


def test_the_prompt_is_what_the_readme_shows():
    assert render_prompt((44, 19, 35), 98) == "Numbers: [44, 19, 35]\nTarget: 98\n"


def test_steps_of_an_expression_by_hand():
    assert steps_of(parse("(44 + 19) * 2 - 98 / 7")) == [
        "44 + 19 = 63",
        "63 * 2 = 126",
        "98 / 7 = 14",
        "126 - 14 = 112",
    ]
    assert steps_of(parse("3 - 5 + 9")) is None  # leaves the natural numbers
    assert steps_of(parse("7 / 2 * 4")) is None


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_demonstration_is_right_after_so_many_failures(failures):
    for i, row in enumerate(load("3to4", "train").select(range(25))):
        problem = Problem(tuple(row["nums"]), row["target"])
        text = free_search(problem, random.Random(i), failures)
        assert verify_answer(text, problem).status == "correct"
        steps = verify_steps(text, problem)
        assert all(step.well_formed and step.arithmetic_ok and step.in_pool for step in steps)
        assert text.count("\n") == 3 + failures
        assert len(steps) == (1 + failures) * (len(problem.nums) - 1)
        checked = [line.rpartition(" = ")[2] for line in text.split("\n")[1:-2]]
        assert checked[-1] == f"{problem.target}, {problem.target}? yes"
        assert all(re.fullmatch(rf"\d+, {problem.target}\? no", check) for check in checked[:-1])


def test_a_problem_without_a_plain_solution_is_left_out():
    problems = datasets.Dataset.from_list(
        [{"nums": [3, 3, 8, 8], "target": 24}, {"nums": [3, 3, 8], "target": 14}]
    )
    assert len(demonstrate(problems, 2, seed=0)) == 1  # 24 is only 8 / (3 - 8 / 3)


def test_random_expressions_are_a_function_of_the_seed():
    assert random_expression([4, 7, 9, 2], random.Random(5)) == random_expression(
        [4, 7, 9, 2], random.Random(5)
    )


def test_generated_demonstrations_hold_no_evaluation_problem(capsys):
    leaky = datasets.concatenate_datasets(
        [load("3to4", "train").select(range(5)), load("3to4", "test_50").select(range(5))]
    )
    rows = demonstrate(leaky, most_failures=2, seed=0)
    assert len(rows) == 5 and rows.column_names == ["prompt", "completion"]
    assert "5 of 10" in capsys.readouterr().out
    again = demonstrate(leaky, most_failures=2, seed=0)
    assert rows["completion"] == again["completion"]


@pytest.mark.parametrize(
    "design, style", [("free", "free"), ("program_fresh", "program"), ("trace_search", "trace")]
)
def test_a_share_gives_up_and_answers_its_last_near_miss(design, style):
    problems = load("3to4", "train").select(range(60))
    rows = demonstrate(problems, 2, 0, style, design, give_up=0.5)
    ends = []
    attempts = []
    for row, text in zip(problems, rows["completion"], strict=True):
        problem = Problem(tuple(row["nums"]), row["target"])
        ends.append(VERIFIERS[style](text, problem).status)
        asked = re.findall(r"\? (yes|no)", text)
        assert asked == ["no"] * (len(asked) - 1) + ["yes" if ends[-1] == "correct" else "no"]
        if ends[-1] == "wrong_value":
            attempts.append(len(asked))
    assert set(ends) == {"correct", "wrong_value"} and 20 <= ends.count("wrong_value") <= 40
    assert set(attempts) <= {1, 2, 3, 4} and np.mean(attempts) > 2.5


def test_a_free_search_that_gives_up_answers_its_last_line():
    for i, row in enumerate(load("3to4", "train").select(range(20))):
        text = free_search(
            Problem(tuple(row["nums"]), row["target"]), random.Random(i), 2, solved=False
        )
        *_, last = text.split("\n")[1:-2]
        assert steps_of(parse(re.search("<answer>(.*)</answer>", text)[1])) == last.split(", ")[:-1]


def test_no_share_that_gives_up_leaves_the_rows_as_they_were():
    problems = load("3to4", "train").select(range(20))
    same = demonstrate(problems, 2, seed=0)
    assert same.to_list() == demonstrate(problems, 2, seed=0, give_up=0.0).to_list()


def test_checked_traces_say_at_every_end_whether_it_is_the_target():
    problems = load("3to4", "train").select(range(40))
    plain, checked = (
        demonstrate(problems, 2, 0, "trace", "trace_backtrack", checked=said)["completion"]
        for said in (False, True)
    )
    assert [re.sub(r", \d+\? (yes|no)", "", text) for text in checked] == list(plain)
    for row, text in zip(problems, checked, strict=True):
        tries = re.findall(r"try .* = (\d+)(, .*)?\nstate \[(.*)\]", text)
        assert tries
        for value, said, state in tries:
            wanted = f", {row['target']}? {'yes' if int(value) == row['target'] else 'no'}"
            assert said == ("" if "," in state else wanted)


def test_a_searching_trace_begins_each_attempt_with_all_numbers_and_tries_nothing_twice():
    searching = 0
    for problem, text, verdict in traces("trace_search"):
        full = f"state [{', '.join(map(str, sorted(problem.nums)))}]"
        first, *later = text.split("backtrack\n")
        assert first.startswith(f"<think>\n{full}\n") and all(
            part.startswith(f"{full}\n") for part in later
        )
        assert all(part.count("try") == len(problem.nums) - 1 for part in (first, *later))
        assert not any(line.repeated for line in verdict.lines)
        searching += bool(later)
    assert searching > 20


def test_demonstrations_stay_what_they_were():
    """The checkpoints that are published were trained on rows like these, known by their hash."""
    problems = load("3to4", "train", seed=0).select(range(40))
    texts = {
        design: "".join(demonstrate(problems, 2, 0, style, design, give_up)["completion"])
        for design, style, give_up in (
            *(
                ("free", "free", 0.0),
                ("program_fresh", "program", 0.3),
                ("trace_light", "trace", 0.0),
            ),
        )
    }
    texts["pick"] = "".join(demonstrate(problems, 2, 0, "pick")["completion"])
    for design in ("trace_backtrack_canonical", "trace_mixed", "trace_search"):
        texts[design] = "".join(text for _, text, _ in traces(design))
    found = {
        design: hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        for design, text in texts.items()
    }
    assert found == {
        "free": "ce8fcd4cefc03029",
        "program_fresh": "5f81411ff8a3a7e7",
        "trace_light": "5d29e807bba8d599",
        "pick": "a6ec4bdd76eb3626",
        "trace_backtrack_canonical": "135bab27837d16f9",
        "trace_mixed": "0de5d009a05b27ac",
        "trace_search": "899d880ec46d620c",
    }


def test_a_lost_game_shows_legal_moves_in_states_that_no_solution_has():
    """The rows of the solutions stay as they are without it, and each lost game follows its own."""
    problems = load("3to4", "train").select(range(60))
    plain = [row["prompt"] for row in demonstrate(problems, 2, 0, "pick")]
    rows = list(demonstrate(problems, 2, 0, "pick", lost=1.0))
    states = [state_of(row["prompt"]) for row in rows]
    lost = [not is_solvable(state.nums, state.target) for state in states]
    assert [row["prompt"] for row, bad in zip(rows, lost, strict=True) if not bad] == plain
    games = [row for row, bad in zip(rows, lost, strict=True) if bad]
    assert len(games) > 60
    for row in games:
        state = state_of(row["prompt"])
        assert not isinstance(parse_action(row["completion"], state), str)
    # each of them goes on to the end: with two numbers left it is the last move of its game
    ends = [len(state.nums) == 2 for state, bad in zip(states, lost, strict=True) if bad]
    assert sum(ends) >= 55
    numbers = "".join(row["prompt"] for row in games)
    assert (
        "|" in numbers and "-" in numbers
    )  # fractions and negative numbers, which no plain row has
    assert "|" not in "".join(plain)
    half = len(demonstrate(problems, 2, 0, "pick", lost=0.5))
    assert len(plain) < half < len(rows)


def state_of(prompt: str) -> State:
    """The state that a prompt of the agent shows."""
    found = re.fullmatch(r"Numbers: \[(.*)\]\nTarget: (\d+)\nPick\s*", prompt)
    numbers = [Fraction(number.replace("|", "/")) for number in found[1].split(", ")]
    return State(tuple(numbers), int(found[2]))


def test_state_action_rows_win_the_game_one_tag_at_a_time():
    problems = load("3to4", "train").select(range(20))
    rows = iter(demonstrate(problems, most_failures=2, seed=0, prompt_style="pick"))
    for row in problems:
        problem = Problem(tuple(row["nums"]), row["target"])
        if not plain_solutions(problem):
            continue
        state = initial(problem)
        while not state.terminal:
            shown = next(rows)
            assert shown["prompt"] == render_state(state)
            state = step(state, parse_action(shown["completion"], state))
        assert state.nums == (state.target,)
    assert next(rows, None) is None


def test_hub_demonstrations_load_by_the_same_call_and_lose_evaluation_problems(
    tmp_path, monkeypatch
):
    """A local folder in the hub's place: columns and wording as the papers' data set has them."""
    ask = (
        "Using the numbers {}, create an equation that equals {}. Show your work in <think> "
        "</think> tags."
    )
    seen = load("3to4", "test_50")[0]
    rows = [
        {"query": ask.format("[ 44 19 35]", 500), "completion": "<think>no</think>"},
        {"query": ask.format(seen["nums"], seen["target"]), "completion": "<think>leak</think>"},
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(demonstrations, "HUB_DEMONSTRATIONS", str(tmp_path))
    for style in ("words", "chat"):  # asked as RLOO and evaluation will ask
        found = hub_demonstrations(style)
        prompt = render_prompt([44, 19, 35], 500, style)
        assert found.to_list() == [{"prompt": prompt, "completion": rows[0]["completion"]}]
    (tmp_path / "train.jsonl").write_text(json.dumps({"query": "What?", "completion": ""}))
    with pytest.raises(ValueError, match="What"):
        hub_demonstrations("words")


@cache
def traces(
    design: str, count=40, give_up=0.0, checked=False
) -> list[tuple[Problem, str, TraceVerdict]]:
    """Completions by a design of Table 6, as they are checked: without the faults that one of them
    has on purpose."""
    problems = load("3to4", "train", seed=0).select(range(count))
    rows = demonstrate(problems, 2, 0, "trace", design, give_up, checked)
    found = []
    for row in rows:
        nums, target = (
            ast.literal_eval(line.partition(": ")[2]) for line in row["prompt"].split("\n")[:2]
        )
        problem = Problem(tuple(nums), target)
        text = re.sub("<.*?>", lambda tag: tag[0].lower(), row["completion"]).replace(
            f" = {problem.target}</", "</"
        )
        found.append((problem, row["completion"], verify_trace(text, problem)))
    return found


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    ("design", "give_up"),
    [
        (name, share)
        for name, design in TRACES.items()
        for share in (0.0, 1.0)
        if design.restarts or not share
    ],
)
def test_every_row_of_every_trace_design_passes_both_verifiers(design, checked, give_up):
    """In each form: as it is declared and with the checks of a free search, and where it gives
    up."""
    tokenizer = build_tokenizer()
    rows = traces(design, 40, give_up, checked)
    assert len(rows) >= 32
    for problem, text, verdict in rows:
        assert (
            verdict.status == ("wrong_value" if give_up else "correct")
            and verdict.link == "original"
        )
        assert all(line.valid for line in verdict.lines)
        assert verdict.reached == (bool(verdict.lines) and not give_up)
        assert not verdict.lines or verdict.lines[0].kind == "state"
        if TRACES[design].stated:
            assert not any(line.repeated for line in verdict.lines)
        assert verify_answer(text, problem).status == (
            "missing" if design == "trace_smoke" else verdict.status
        )
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text and len(ids) < 0.75 * len(text)


def kinds_of(one):
    """The kind of each line of a trace."""
    *_, verified = one
    return [line.kind for line in verified.lines]


def test_the_designs_differ_as_table_6_says():
    kinds = {name: list(map(kinds_of, traces(name))) for name in TRACES}
    backtracking = {}
    for name, rows in kinds.items():
        backtracking[name] = np.mean(["backtrack" in row for row in rows])
    assert {name for name, share in backtracking.items() if share == 0} == {
        *("trace_proof", "trace_proof_augmented", "trace_proof_canonical")
    }
    for name in (
        "trace_backtrack",
        "trace_backtrack_augmented",
        "trace_backtrack_canonical",
        "trace_backtrack_diverse",
    ):
        assert backtracking[name] > 0.9
    assert 0 < backtracking["trace_light"] < 0.4
    assert 0.15 < np.mean([not row for row in kinds["trace_mixed"]]) < 0.5
    assert max(row.count("backtrack") for row in kinds["trace_backtrack"]) == 2
    assert max(row.count("backtrack") for row in kinds["trace_backtrack_canonical"]) == 1
    for name in TRACES:
        rows = traces(name)
        assert len({problem for problem, *_ in rows}) == pytest.approx(
            len(rows) / TRACES[name].variants, abs=1
        )
        assert (
            len({text for _, text, _ in rows}) > len({problem for problem, *_ in rows})
            or TRACES[name].variants == 1
        )
    assert all("<ANSWER>" in text and "= " in text[-20:] for _, text, _ in traces("trace_smoke"))


def test_canonical_traces_are_a_function_of_the_problem():
    for name, equal in [
        ("trace_proof_canonical", True),
        ("trace_backtrack_canonical", True),
        ("trace_proof", False),
    ]:
        problem = Problem((44, 19, 35, 2), 96)
        texts = {TRACES[name](problem, random.Random(seed), 2) for seed in range(8)}
        assert (len(texts) == 1) == equal


def test_dead_branches_lead_where_the_target_is_out_of_reach():
    """Behind the first operation of a failing branch no solution is left, where there is such a
    branch."""
    out_of_reach = []
    for problem, text, _ in traces("trace_backtrack_diverse"):
        lines = text.splitlines()
        for i, line in enumerate(lines):
            if line == "backtrack":
                start = max(k for k in range(i) if lines[k] == lines[i + 1])
                pool = ast.literal_eval(lines[start + 2].removeprefix("state "))
                out_of_reach.append(not is_solvable(pool, problem.target))
    assert len(out_of_reach) >= 40 and np.mean(out_of_reach) > 0.9


@pytest.mark.parametrize("design", ["trace_provenance", "trace_search_provenance"])
def test_provenance_holds_the_answer(design):
    for _, text, _ in traces(design):
        last = [line for line in text.splitlines() if line.startswith("state ")][-1]
        assert last.partition(" = ")[2] == re.search("<answer>(.*)</answer>", text)[1] + "]"


def test_a_repair_stage_reads_a_trace_and_learns_the_answer_that_it_makes():
    repair_stage = of_notebook("12_sample_pairs", "repair_stage")
    trace = (
        "<think>\nstate [19, 35, 44]\ntry 44 + 19 = 63\nstate [35, 63]\ntry 63 + 35 = 98\n"
        "state [98]\n</think>\n"
    )
    missed = "<think>\nstate [19, 35, 44]\ntry 44 + 19 = 63\n</think>\n<answer>44 + 19</answer>"
    texts = [
        trace + "<answer>63 + 35</answer>",
        trace + "<answer>1 + 1</answer> and on",
        trace,
        missed,
    ]
    rows = repair_stage(
        pd.DataFrame([{"nums": (44, 19, 35), "target": 98, "completion": text} for text in texts])
    )
    # one is cut off, one made no target
    assert list(rows.columns) == ["prompt", "completion"] and len(rows) == 2
    assert set(rows["prompt"]) == {render_prompt((44, 19, 35), 98, "trace") + trace}
    for answer in rows["completion"]:
        assert verify_answer(trace + answer, Problem((44, 19, 35), 98)).status == "correct"
    assert repair_stage(pd.DataFrame(columns=["nums", "target", "completion"])).empty
