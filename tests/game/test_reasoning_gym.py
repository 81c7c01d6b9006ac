"""reasoning-gym's Countdown: its rows load as the user's own problems, and our verifier is compared
with its scoring.

tests/game/reasoning_gym.jsonl holds rows from the package, each with some answers and the package's
scores for them. `python -m tests.game.test_reasoning_gym` writes the file again if the package is
installed; nothing else needs it.

The package gives 1 for the target with the given numbers, .05 for another number, and .01 for what
it cannot read. It reads answers with sympy and finds their numbers by a regular expression in the
text, so it also gives 1 to answers that Countdown does not allow (DIFFERENCES). An answer that is
correct here gets 1 there."""

import json
import random
import re

import pytest

from lib.files import ROOT
from lib.game.problem import Problem, ProblemSetError, as_problems
from lib.game.sets import load, load_set
from lib.game.verifiers import verify_answer

FILE = ROOT / "tests/game/reasoning_gym.jsonl"
PAID = {"correct": 1.0, "wrong_value": 0.05, "wrong_numbers": 0.05, "unparseable": 0.01}
DIFFERENCES = {  # (numbers, target, answer): what the package pays and we do not, and why
    ((2, 5), 32, "2**5"): (1.0, "unparseable", "a power is no operation of the game"),
    ((4, 1), 24, "4! * 1"): (1.0, "unparseable", "nor is a factorial"),
    ((16, 3), 12, "sqrt(16) * 3"): (1.0, "unparseable", "nor any other function of sympy"),
    ((3, 5), 98, "0x62 + 0e0 * 3 * 5"): (
        1.0,
        "unparseable",
        "0x62 and 0e0 are numbers that its expression misses",
    ),
    ((44, 19, 35), 98, "44 + 19 + 35 # sum"): (
        1.0,
        "unparseable",
        "a comment is Python's, not arithmetic's",
    ),
    ((500, 1, 300), 500, "500 + 1 / 300"): (
        1.0,
        "wrong_value",
        "it compares floats, to a hundred-thousandth",
    ),
    ((5, 7, 7), 5, "5 / (7 - 7)"): (
        0.01,
        "wrong_value",
        "it takes a division by zero for no answer",
    ),
}


def answers(expression: str, nums: list[int], target: int, rng: random.Random) -> list[str]:
    """What a policy may write for a problem: its solution, near misses, and what is none."""
    at = rng.choice([m.start() for m in re.finditer(r"[-+*/]", expression)])
    other = expression[:at] + rng.choice("+-*/".replace(expression[at], "")) + expression[at + 1 :]
    texts = [
        expression,
        f"({expression})",
        other,
        expression.replace(" ", ""),
        " + ".join(map(str, nums)),
        str(target),
    ]
    return [*texts, f"{expression} = {target}", expression + " +", "no idea", f"-({other})"]


def rows() -> list[dict]:
    """Three, four and six numbers as the package draws them, with what it pays for each answer."""
    from reasoning_gym import create_dataset

    rng = random.Random(0)
    found = []
    for n, size in ((3, 12), (4, 12), (6, 12)):
        data = create_dataset(
            "countdown", min_numbers=n, max_numbers=n, min_target=10, size=size, seed=n
        )
        for row in data:
            about = row["metadata"]
            texts = answers(row["answer"], about["numbers"], about["target"], rng)
            found.append(row | {"scored": {text: data.score_answer(text, row) for text in texts}})
    return found


def held() -> list[dict]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def status(text: str, nums, target: int) -> str:
    return verify_answer(f"<answer>{text}</answer>", Problem(tuple(nums), target)).status


def test_our_verifier_agrees_on_its_own_problems():
    scored = [
        (row["metadata"], text, paid) for row in held() for text, paid in row["scored"].items()
    ]
    ours = [status(text, about["numbers"], about["target"]) for about, text, _ in scored]
    assert [PAID[one] for one in ours] == [paid for *_, paid in scored]
    assert len(ours) > 300 and {*ours} == {*PAID}
    assert all(row["scored"][row["answer"]] == 1.0 for row in held())


@pytest.mark.parametrize("case", DIFFERENCES, ids=lambda case: case[2])
def test_where_the_two_differ(case):
    nums, target, text = case
    assert status(text, nums, target) == DIFFERENCES[case][1]


def test_the_package_still_pays_what_is_written_here():
    gym = pytest.importorskip(
        "reasoning_gym", reason="`pip install reasoning-gym` holds the file against it"
    )
    data = gym.create_dataset("countdown", size=1)
    for (nums, target, text), (paid, *_) in DIFFERENCES.items():
        assert (
            data.score_answer(text, {"metadata": {"numbers": list(nums), "target": target}}) == paid
        ), text
    assert json.loads(json.dumps(rows())) == held()


def test_its_rows_load_like_any_problems_of_ones_own(tmp_path, capsys):
    """A file of rows, and a hub's folder whose metadata are text; a problem of our evaluation sets
    is left out."""
    taken = load_set("heldout_1000")[0]
    extra = {
        "question": "?",
        "answer": "?",
        "metadata": {"numbers": taken["nums"][::-1], "target": taken["target"]},
    }
    path = tmp_path / "gym.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*held(), extra]))
    mine = [Problem(tuple(row["metadata"]["numbers"]), row["metadata"]["target"]) for row in held()]
    assert as_problems(load(str(path), "train")) == mine
    assert f"{len(mine)} of {len(mine) + 1} problems" in capsys.readouterr().out
    hub = tmp_path / "hub"
    hub.mkdir()
    lines = [
        json.dumps(row | {"metadata": json.dumps(row["metadata"])}) for row in [*held(), extra]
    ]
    (hub / "train.jsonl").write_text(
        "\n".join(re.sub(r'"scored": {.*?}, ', "", line) for line in lines) + "\n"
    )
    assert as_problems(load(str(hub), "train", source="hub")) == mine
    path.write_text(path.read_text() + '{"question": "?", "metadata": {"numbers": [3]}}\n')
    with pytest.raises(ProblemSetError, match=f"line {len(mine) + 2}: .* is not a problem"):
        load(str(path), "train")


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(row) + "\n" for row in rows()))
