"""Functions that only one notebook has, for tests of them."""

import ast
import json
from typing import Any

from lib.files import ROOT


def of_notebook(notebook: str, name: str) -> Any:
    """The function `name` that a notebook defines, with the notebook's imports; nothing else of the
    notebook is executed."""
    cells = json.loads((ROOT / f"notebooks/{notebook}.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    kept: list[ast.stmt] = []
    for source in sources:
        for statement in ast.parse(source).body:
            is_wanted = isinstance(statement, ast.FunctionDef) and statement.name == name
            if is_wanted or isinstance(statement, ast.Import | ast.ImportFrom):
                kept.append(statement)
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module(kept, []), notebook, "exec"), namespace)
    return namespace[name]
