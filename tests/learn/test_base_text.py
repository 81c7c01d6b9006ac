"""The text of notebook 02: its statements are true, evaluation problems stay out, and it is a
function of its seed."""

import hashlib
import random
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest

from lib.files import ROOT
from lib.game.expression import evaluate, leaves, parse
from lib.game.problem import Problem
from lib.game.sets import keys


def executed(folder: Path, **parameters) -> SimpleNamespace:
    """The notebook's names after its run with these parameters."""
    names = {}
    for cell in nbformat.read(ROOT / "notebooks/02_base_text.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
            names |= (
                parameters | {"output": str(folder)}
                if "parameters" in cell.metadata.get("tags", [])
                else {}
            )
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return executed(
        tmp_path_factory.mktemp("text"), rows=768, width=64, shards=3, seed=1, test_lines=50
    )


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def test_the_committed_base_models_text_comes_again(text, tmp_path):
    """As the code made it that the base model was trained with: rows, what is learned of them, and
    the test."""
    opened = executed(tmp_path, rows=768, width=64, shards=3, seed=1, test_lines=50, open_rows=True)
    for made, expected in ((text, "0eed99e667ff8a38"), (opened, "5e2ffcf6b6730ac0")):
        with np.load(made.run / "text/001.npz") as part:
            assert part["ids"].shape == part["learned"].shape == (256, 64)
            assert digest(part["ids"].tobytes() + part["learned"].tobytes()) == expected
    found = {kind: digest("\n".join(lines).encode()) for kind, lines in text.test.items()}
    assert found == {
        "+": "aa69d2ae773308bc",
        "-": "32674fd5f25b32e6",
        "*": "0ed46aef644d6915",
        "/": "a64eace4d9280fae",
        "compare": "966b15f4783d78e6",
    }


def test_a_run_that_was_stopped_goes_on_at_the_next_file(text, tmp_path):
    settings = {"rows": 768, "width": 64, "shards": 3, "seed": 1, "test_lines": 50}
    stopped = executed(tmp_path, **settings).run
    (stopped / "text/000.npz").write_bytes(b"made before")
    (stopped / "text/002.npz").unlink()
    again = executed(tmp_path, **settings)
    assert (again.run / "text/000.npz").read_bytes() == b"made before"
    assert (again.run / "text/002.npz").read_bytes() == (text.run / "text/002.npz").read_bytes()


def test_equations_hold_and_the_held_out_ones_stay_out(text):
    rng = random.Random(0)
    for op in "+-*/":
        for test in (False, True):
            for _ in range(200):
                left, right = text.equation(op, rng, test).split(" = ")
                a, _, b = left.split(" ")
                assert evaluate(parse(left)) == int(right) <= 999
                assert op in "*/" or text.held_out(int(a), int(b)) == test


def test_comparisons_are_true_and_half_of_them_equal(text):
    rng = random.Random(3)
    told = []
    for _ in range(400):
        value, target, verdict = re.fullmatch(
            r"(\d+), (\d+)\? (yes|no)", text.comparison(rng)
        ).groups()
        assert (value == target) == (verdict == "yes")
        told.append(verdict)
    assert 150 < told.count("yes") < 250


def test_worked_expressions_use_every_number_and_show_no_evaluation_problem(text):
    rng = random.Random(1)
    for _ in range(100):
        head, asked, *lines, answer = text.worked_expression(rng, 3).split("\n")
        target = int(asked.removeprefix("Target: "))
        nums = tuple(map(int, head.removeprefix("Numbers: [").removesuffix("]").split(", ")))
        expr = parse(answer.removeprefix("<answer>").removesuffix("</answer>"))
        assert sorted(leaves(expr)) == sorted(nums) and evaluate(expr) == target
        values = [int(line.rpartition(" = ")[2].partition(",")[0]) for line in lines]
        assert 1 <= len(lines) <= 3 and values[-1] == target and target not in values[:-1]
        assert [line.rpartition(f", {target}? ")[2] for line in lines] == ["no"] * (
            len(lines) - 1
        ) + ["yes"]
        assert not any(Problem(nums, value).key in keys("evaluation") for value in values)


def test_state_walks_move_as_they_say(text):
    rng = random.Random(2)
    for _ in range(50):
        lines = text.state_walk(rng).split("\n")
        pools = [
            sorted(map(int, line.removeprefix("state [").removesuffix("]").split(", ")))
            for line in lines[::2]
        ]
        for before, move, after in zip(pools, lines[1::2], pools[1:], strict=False):
            left, value = move.removeprefix("try ").split(" = ")
            a, _, b = left.split(" ")
            assert evaluate(parse(left)) == int(value)
            before.remove(int(a))
            before.remove(int(b))
            assert sorted([*before, int(value)]) == after
        assert len(pools[-1]) == 1
