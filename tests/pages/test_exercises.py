"""The exercises of the learning track: their solutions run in the unchanged notebook, and give the
stated results.

Those of studies do so in tests/pages/test_defaults.py, which runs these notebooks."""

import ast
import re

import nbformat
import pytest

from lib.files import ROOT
from tests.pages.test_notebooks import by_hand

SMALL = {"max_tokens": 24, "eval_problems": 2, "steps": 1}
GIVEN = {  # parameters of the notebooks that are no studies
    "00_follow_one_completion": {},
    "11_train_rloo": SMALL
    | {"problems_per_step": 2, "group_size": 2, "micro_batch": 4, "eval_every": 1},
    "13_train_preference": SMALL | {"batch_size": 2},
}
FOUND = {  # what the text of each solution states, as its code shows it
    "00_follow_one_completion": [
        ["0.9333", "-0.2667", "-0.4000", "0.0000"],
        ["wrong_value", "0.403", "0.167"],
        ["0.9285", "0.9857"],
    ],
    "11_train_rloo": [
        ["0.403", "[0.1, 0.1, 0.1]"],
        ["0.1429", "-1.0000", "4.0000"],
        ["sparse 0.41 0.34", "ast_tau2 0.01 0.21"],
    ],
    "13_train_preference": [
        ["tensor(1.)", "tensor(0.)"],
        ["'margin': 0.5", "0.4741", "-0.3000"],
        ["ipo 10.0", "dpo -0.0268"],
    ],
    "20_ast": [["0.125", "0.336"], ["A [0.5, 0.5]", "B [0.5, 1.0]"], ["2."]],
    "70_coverage": [["0.370", "0.004"], ["0.8"], ["samples", "rloo/cov_pass4"]],
}


def solutions(notebook: str) -> list[str]:
    cells = nbformat.read(ROOT / f"notebooks/{notebook}.ipynb", as_version=4).cells
    folded = re.findall(
        r"<details>(.*?)</details>", "\n".join(cell.source for cell in cells), re.DOTALL
    )
    return [re.search(r"```python\n(.*?)```", text, re.DOTALL)[1] for text in folded]


def shown(code: str, names: dict) -> str:
    """The last expression of a cell, as the notebook would show it."""
    *body, last = ast.parse(code).body
    exec(compile(ast.Module(body, []), "solution", "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), "solution", "exec"), names)
        return ""
    return str(eval(compile(ast.Expression(last.value), "solution", "eval"), names))


@pytest.mark.parametrize("notebook", GIVEN)
def test_solutions_give_what_they_say(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    solve(notebook, by_hand(notebook, output=str(tmp_path), **GIVEN[notebook]), capsys)


def solve(notebook: str, names: dict, capsys) -> None:
    """Run the solutions with the names that the notebook has defined."""
    codes = solutions(notebook)
    assert len(codes) == len(FOUND[notebook]) == 3
    for code, stated in zip(codes, FOUND[notebook], strict=True):
        capsys.readouterr()
        value = shown(code, names)
        text = capsys.readouterr().out + value
        assert [part for part in stated if part not in text] == [], text
