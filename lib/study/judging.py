"""From folders of runs to judged tables: who wrote what, and what it is worth.

A run's own record (run.json) says its method, its seed and the style of prompt that was completed. Verdicts are cached
below the runs, under the hash of the file that was judged and of the code that judged it. Published runs have theirs in
a folder `verdicts` of their own, which count where data/reference/judged_by.txt names the present code; `python -m
tests.test_verdicts` judges all published runs again and names it.
"""

import ast
import hashlib
import inspect
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from glob import glob
from pathlib import Path

import numpy as np
import pandas as pd

from lib.files import REFERENCE, ROOT, RUNS, atomic, nearest, read_table, reading
from lib.game import expression, programs, steps, traces, verifiers
from lib.game.expression import canonical, numbers, render
from lib.game.problem import Problem
from lib.game.steps import verify_steps
from lib.game.traces import reasoning
from lib.game.verifiers import VERIFIERS, answer_span, verify_program, verify_trace

CACHE = RUNS / ".verdicts"
JUDGED_BY = REFERENCE / "judged_by.txt"
TEXTS = ["nums", "target", "completion"]  # large: they are read only where they are asked for
TRACE = ["goes_on", "ungrounded", "valid_lines", "reached", "repaired", "trace_muldiv", "answer_muldiv"]


def folders(patterns, part="") -> list[Path]:
    """The folders of finished runs that are named, or that fit a pattern such as "data/reference/cpu/sample/sft_*/*"
    from the root, each once and sorted; with `part`, of policies whose name has it. Raises FileNotFoundError for a
    pattern that fits no finished run."""
    found = []
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        inside = Path(pattern).relative_to(ROOT) if Path(pattern).is_relative_to(ROOT) else Path(pattern)
        some = [str(inside)] if (ROOT / inside / "run.json").exists() else []  # a folder's name may hold brackets
        some = some or [os.path.dirname(path) for path in glob(str(inside / "run.json"), root_dir=ROOT)]
        if not some:
            raise FileNotFoundError(f"{pattern}: no finished run there (no run.json); `make status` lists the runs")
        found += [ROOT / folder for folder in some]
    return sorted(folder for folder in set(found) if part in record(folder)["method"]) if part else sorted(set(found))


def record(folder: Path) -> dict:
    """A run's run.json. Raises ValueError that names it where it lacks the run, method, seed or parameters."""
    path = ROOT / folder / "run.json"
    with reading(path):
        found = json.loads(path.read_text())
        return {key: found[key] for key in ("run", "method", "seed", "parameters")} | found


def seed_of(folder: Path) -> int:
    """The seed by which a run is paired with others (`intervals`): its own, if the policy behind it began from the copy
    of its start that the start's published samples are of. Runs from another copy, which may have been trained again
    on another processor, pair only with one another, and have a number from 1000 up."""
    home, names = (ROOT / folder).parents[2], record(folder)
    name, drawn = "", ""
    while parent := _began_at(names):
        name, drawn = parent
        if not (home / name / "run.json").exists():
            break
        names = record(home / name)
    for kind in ("sample", "search"):
        own = home / kind / name.rpartition("/")[0].replace("/", "_") / name.rpartition("/")[2]
        if name and (own / "run.json").exists():
            published = record(own)["parents"].get(name)
            return record(folder)["seed"] + (drawn != published) * 1000 * (1 + int(drawn[:4], 16))
    return record(folder)["seed"]


def _began_at(names: dict) -> tuple[str, str] | None:
    """Name and hash of the policy that a run sampled or was trained from; None for the first of a line."""
    for key in ("init", "policy"):
        parent = "/".join(Path(str(names["parameters"].get(key, ""))).parts[-3:])
        if parent in names.get("parents", {}):
            return parent, names["parents"][parent]
    return None


def samples(patterns, sets=None, looks=("answer",), texts=False) -> pd.DataFrame:
    """All generations of sampling runs, judged: one row per different completion of a problem, which was drawn `count`
    times. Columns run, method, seed, style, set, problem, tokens, logprob, finish, count, those of each look (`judge`;
    `steps` is empty for programs), and with `texts` nums, target, completion. `sets` restricts the evaluation sets."""
    return _judged(patterns, "generations.parquet", sets, looks, texts)


def games(patterns, sets=None, looks=("answer",), texts=False) -> pd.DataFrame:
    """All games of searches (notebook 16), judged: as `samples`, with the columns of `lib.learn.search`."""
    return _judged(patterns, "trajectories.parquet", sets, looks, texts)


def logs(patterns, columns=()) -> pd.DataFrame:
    """Training logs (metrics.csv), one row per step, with run, method and seed in front, and `columns` even where no
    run measured them."""
    empty = pd.DataFrame(columns=["run", "method", "seed", "step", *columns], dtype=float)
    tables = [empty.astype({"run": str, "method": str})]
    for folder in folders(patterns):
        names, table = record(folder), read_table(folder / "metrics.csv")
        who = {key: names[key] for key in ("run", "method")} | {"seed": seed_of(folder)}
        who = pd.DataFrame(who, table.index)
        tables.append(pd.concat([who, table], axis=1))
    return pd.concat(tables, ignore_index=True).infer_objects()


def judge(table: pd.DataFrame, style: str = "free", look: str = "answer") -> pd.DataFrame:
    """Saved generations (columns nums, target, completion, and finish for a trace) with the columns of a look more.

    style: of the prompt that was completed, a key of VERIFIERS. Looks:
    answer: status; correct (bool); solution, of a correct answer the expression up to commuting, by `canonical`, of
    others "". expression: the same of every answer ("": there is none).
    steps, of the free reasoning: equations that `verify_steps` reads; how many of them are true, how many distinct; its
    equals signs (what there was to read); legal, the share of legal steps; lost, the steps reach the target and the
    answer is wrong; attempts, how often the numbers are used afresh.
    program: checks passed (an expression in free text is read as the one line `answer = ...`); assignments; complete,
    those of its values that use every number once.
    trace: goes_on, there is more behind the answer, or it was cut there (nan: none is closed); ungrounded, the answer
    uses generated values; valid_lines, their share (0 without lines); reached, the trace ends at the target;
    repaired, correct as it is or by `repair`; * or / stands in the trace, in the answer.
    """
    if style not in VERIFIERS:
        raise ValueError(f"no verifier for prompt style {style!r}{nearest(style, VERIFIERS)}")
    columns, read = LOOKS[look]
    finish = table["finish"] if "finish" in table else [""] * len(table)
    known, rows = {}, []
    for nums, target, text, end in zip(table["nums"], table["target"], table["completion"], finish, strict=True):
        asked = (tuple(np.asarray(nums).tolist()), int(target))
        key = (*asked, answer_span(text)) if look in ("answer", "expression") else (*asked, text, end)
        if key not in known:
            known[key] = read(text, Problem(*asked), style, end)
        rows.append(known[key])
    found = pd.DataFrame(rows, columns=columns, index=table.index)
    return table.assign(**{name: found[name] for name in columns})


def _answer(text, problem, style, _):
    verdict = VERIFIERS[style](text, problem)
    correct = verdict.status == "correct"
    return verdict.status, correct, render(canonical(verdict.expression)) if correct else ""


def _expression(text, problem, style, _):
    found = VERIFIERS[style](text, problem).expression
    return ("" if found is None else render(canonical(found)),)


def _steps(text, problem, style, _):
    found, true = verify_steps(text, problem), VERIFIERS[style](text, problem).status == "correct"
    legal, reached = [step for step in found if step.legal], (problem.target,)
    lost = not true and any(step.pool == reached for step in legal)
    read = [step for step in found if not step.malformed]
    counted = (len(read), sum(step.arithmetic_ok for step in read), sum(not step.repeated for step in read))
    signs = sum(text.count("=", *block) for block in reasoning(text))
    return *counted, signs, len(legal) / max(len(found), 1), float(lost), found[-1].attempt + 1 if found else 0


def _program(text, problem, style, _):
    if not style.startswith("program"):
        text = text.replace("<answer>", "<answer>answer = ")
    verdict, given = verify_program(text, problem), sorted(problem.nums)
    whole = [made for made in verdict.assignments if sorted(numbers(made).elements()) == given]
    return verdict.passed, len(verdict.assignments), len(whole)


def _trace(text, problem, _, finish):
    found, (before, closed, behind) = verify_trace(text, problem), text.partition("</answer>")
    trace, _, answer = before.partition("<answer>")
    return (
        float(bool(behind.strip()) or finish == "length") if closed else float("nan"),
        float(found.link == "generated"),
        sum(line.valid for line in found.lines) / max(len(found.lines), 1),
        float(found.reached),
        float(found.status == "correct" or found.solution is not None),
        float("*" in trace or " / " in trace),
        float("*" in answer or "/" in answer),
    )


LOOKS = {
    "answer": (["status", "correct", "solution"], _answer),
    "expression": (["expression"], _expression),
    "steps": (["equations", "true", "distinct", "signs", "legal", "lost", "attempts"], _steps),
    "program": (["passed", "assignments", "complete"], _program),
    "trace": (TRACE, _trace),
}


def _judged(patterns, file, sets, looks, texts) -> pd.DataFrame:
    columns = ["run", "method", "seed", "style", "set", "problem", "tokens", "finish", "count"]
    columns += [column for look in looks for column in LOOKS[look][0]]
    records = {folder: record(folder) for folder in folders(patterns)}
    fifty = [given for one in records.values() if 'test_50"' in (given := json.dumps(one["parameters"]))]
    hub = fifty and all("hub_test_50" in given for given in fifty)
    tables, renamed = [], {"hub_test_50": "test_50", "test_50": None} if hub else {}
    for folder, names in records.items():
        path, style = folder / file, names["parameters"].get("prompt_style", "free")
        table = read_table(path, () if texts else TEXTS)
        who = {"run": names["run"], "method": names["method"], "seed": seed_of(folder), "style": style}
        who = pd.DataFrame(who, table.index)
        verdicts = partial(_verdicts, path, content(path), style, cache(partial(read_table, path)))
        readable = [look for look in looks if look != "steps" or not style.startswith("program")]
        for name, rows in table.groupby("set", sort=False) if "set" in table else [("all", table)]:
            shown = renamed.get(str(name), str(name))
            if shown and (sets is None or shown in sets):
                judged = [verdicts(str(name), rows.index, look) for look in readable]
                rows = rows if shown == name else rows.assign(set=shown)
                tables.append(pd.concat([who.loc[rows.index], rows, *judged], axis=1))
        columns += list(table.columns)
    if not tables:  # no rows, or no runs: it still has its columns
        return pd.DataFrame(columns=[*dict.fromkeys(columns)])
    return pd.concat(tables, ignore_index=True)


def _verdicts(path: Path, held: str, style: str, whole: Callable, name: str, rows: pd.Index, look: str) -> pd.DataFrame:
    """Verdicts for the rows of one set of a file: from the cache if file (hash `held`) and code are unchanged, else
    computed and cached. `whole` reads the file with its texts."""
    cached, (columns, _) = CACHE / f"{held}-{name}-{_code()}-{style}-{look}.parquet", LOOKS[look]
    for place in [published(path, held, name, look), cached] if _trusted() else [cached]:
        with suppress(FileNotFoundError, ValueError):  # there is none, or it is damaged
            return read_table(place).set_axis(rows)
    verdicts = judge(whole().loc[rows], style, look)[columns]
    with suppress(OSError), atomic(cached) as temporary:  # a full disk, or no right to write: judged again next time
        verdicts.to_parquet(temporary, index=False)
    return verdicts


def content(path: Path) -> str:
    """The hash under which the verdicts of a file are cached."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def published(path: Path, held: str, name: str, look: str) -> Path:
    """Where the verdicts of a look at a set of a published file lie; `held` is the hash of its content."""
    return path.parent / "verdicts" / f"{name}-{look}-{held[:12]}.parquet"


@cache
def _trusted() -> bool:
    """Whether the published verdicts were made by this code."""
    return JUDGED_BY.exists() and JUDGED_BY.read_text().strip() == _code()


@cache
def _code() -> str:
    """The hash of all code that makes verdicts."""
    rooms = (expression, Problem, programs, steps, traces, verifiers, judge, *(read for _, read in LOOKS.values()))
    text = "".join(bare(inspect.getsource(room)) for room in rooms)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def bare(source: str) -> str:
    """Source without comments and docstrings."""
    tree = ast.parse(source)
    for body in (getattr(node, "body", None) for node in ast.walk(tree)):
        match body:
            case [ast.Expr(ast.Constant() as docstring), *_]:
                docstring.value = ""
    return ast.unparse(tree)
