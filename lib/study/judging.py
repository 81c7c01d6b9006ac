"""Reads the completions that runs have saved, and judges them: tables of who wrote what, and of the
verdicts on it.

The record of a run (run.json) gives its method, its seed and the style of prompt that was
completed. Verdicts are cached in the folder `.verdicts` next to the runs, under the hash of the
judged file and the hash of the judging code. A published run has verdicts in its own folder, in
verdicts.parquet, which has the same rows as the file of samples. They are used only if the first
line of data/reference/judged_by.txt is the hash of the present code; its other lines hold the
sha256 of each of these files. `python -m lib.runs verdicts` judges all published runs again and
writes these hashes. Whatever is read has the hash that was written: published verdicts with another
one are refused, and those in `.verdicts` are made again."""

import ast
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from glob import glob
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lib.files import (
    REFERENCE,
    ROOT,
    RUNS,
    atomic,
    nearest,
    read_table,
    reading,
    sha256,
    shown,
    skeleton,
)
from lib.game import expression, programs, steps, traces, verifiers
from lib.game.expression import canonical, leaves, render
from lib.game.problem import Problem
from lib.game.sets import EVALUATION_SETS, FILES
from lib.game.steps import verify_steps
from lib.game.traces import reasoning
from lib.game.verifiers import VERIFIERS, answer_span, verify_program, verify_trace

CACHE = RUNS / ".verdicts"
HASH = ".sha256"  # of a file in the cache, beside it
JUDGED_BY = REFERENCE / "judged_by.txt"
VERDICTS_FILE = "verdicts.parquet"  # of a published run; null where no study asked for a verdict
TEXTS = ["nums", "target", "completion"]  # large columns, read only on request
STEPS = ["equations", "true", "distinct", "signs", "legal", "lost", "attempts"]
TRACE = [
    "goes_on",
    "ungrounded",
    "valid_lines",
    "reached",
    "repaired",
    "trace_muldiv",
    "answer_muldiv",
]

# the folder of a run, a pattern of such folders, or several of them
Patterns = str | Path | Iterable[str | Path]
# a verdict of one kind: its values, in the order of the kind's columns
Values = tuple[str | float, ...]


class VerdictKind(NamedTuple):
    """columns: those of the kind's table. read: the text, its problem, the style of its prompt and
    how it finished, to the values of the columns."""

    columns: list[str]
    read: Callable[[str, Problem, str, str], Values]


def folders(patterns: Patterns, part: str = "") -> list[Path]:
    """The folders of finished runs that are named, or that fit a pattern such as
    "data/reference/cpu/sample/sft_*/*" from the root, each once and sorted. With `part`, only the
    runs whose method has that text in its name. Raises FileNotFoundError for a pattern that fits no
    finished run."""
    found = set()
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        names = [pattern]
        # the name of a folder may hold brackets, as patterns do
        if not (ROOT / pattern / "run.json").exists():
            names = [os.path.dirname(path) for path in glob(f"{pattern}/run.json", root_dir=ROOT)]
        if not names:
            raise FileNotFoundError(
                f"{pattern}: no finished run there (no run.json); `make status` lists the runs"
            )
        found |= {ROOT / name for name in names}
    return sorted(folder for folder in found if not part or part in record(folder)["method"])


def record(folder: Path) -> dict:
    """The content of a run's run.json. Raises ValueError that names the file if the run, method,
    seed or parameters are missing."""
    path = ROOT / folder / "run.json"
    with reading(path):
        fields = json.loads(path.read_text())
        return {key: fields[key] for key in ("run", "method", "seed", "parameters")} | fields


def samples(
    patterns: Patterns,
    sets: str | Sequence[str] | None = None,
    verdicts: Sequence[str] = ("answer",),
    texts: bool = False,
) -> pd.DataFrame:
    """All completions of sampling runs, judged. There is one row per distinct completion of a
    problem, which was drawn `count` times. Columns run, method, seed, style, temperature, set,
    problem, tokens, logprob, finish, count; the columns of each kind of `verdicts` (see `judge`;
    those of "steps" are empty for programs; "check" is what `last_check` finds); and with `texts`
    also nums, target, completion. `sets` restricts the evaluation sets, to one name or to
    several."""
    return _judged(patterns, "generations.parquet", sets, verdicts, texts)


def games(
    patterns: Patterns,
    sets: str | Sequence[str] | None = None,
    verdicts: Sequence[str] = ("answer",),
    texts: bool = False,
) -> pd.DataFrame:
    """All games of search runs (notebook 16), judged: like `samples`, with the columns of
    `lib.learn.search`."""
    return _judged(patterns, "trajectories.parquet", sets, verdicts, texts)


def logs(patterns: Patterns, columns: Iterable[str] = ()) -> pd.DataFrame:
    """Training logs (metrics.csv), one row per step, with the columns run, method and seed in
    front. `columns` are present even if no run measured them."""
    empty = pd.DataFrame(columns=["run", "method", "seed", "step", *columns], dtype=float)
    tables = [empty.astype({"run": str, "method": str})]
    for folder in folders(patterns):
        fields = record(folder)
        table = read_table(folder / "metrics.csv")
        tables.append(table.assign(run=fields["run"], method=fields["method"], seed=fields["seed"]))
    return pd.concat(tables, ignore_index=True).infer_objects()


def judge(table: pd.DataFrame, style: str = "free", verdict: str = "answer") -> pd.DataFrame:
    """Adds the columns of one kind of verdict to saved completions (columns nums, target,
    completion, and finish for a trace).

    style: the style of the prompt that was completed, a key of VERIFIERS. verdict: a key of
    VERDICT_KINDS, one of these, with these columns:

    answer: status; correct (bool); solution, the expression of a correct answer in the form of
    `canonical`, which is equal for answers that differ only by commuting ("" if the answer is not
    correct). expression: the same form for every answer, correct or not ("" if there is no answer).
    steps, about free reasoning: equations, the number that `verify_steps` reads; how many of them
    are true and how many distinct; signs, all equals signs of the reasoning; legal, the share of
    legal steps; lost, whether the steps reach the target but the answer is not correct; attempts,
    how often the reasoning starts again from the given numbers. program: passed, the number of
    checks passed (an expression in free text is read as the program of one line `answer = ...`);
    assignments, their number; complete, the number of assigned values that use every number once.
    trace: goes_on, whether text follows the answer or the completion was cut there (nan if no
    answer is closed); ungrounded, whether the answer uses results of the trace as if they were
    given numbers; valid_lines, the share of valid lines (0 without lines); reached, whether the
    trace ends at the target; repaired, whether the answer is correct, or the trace makes the target
    and so holds one that is; trace_muldiv and answer_muldiv, whether * or / occurs in the trace and
    in the answer."""
    if style not in VERIFIERS:
        raise ValueError(f"no verifier for prompt style {style!r}{nearest(style, VERIFIERS)}")
    columns, read = VERDICT_KINDS[verdict]
    finish = table["finish"] if "finish" in table else [""] * len(table)
    known: dict[tuple, Values] = {}  # equal texts are judged once
    rows = []
    for nums, target, text, end in zip(
        table["nums"], table["target"], table["completion"], finish, strict=True
    ):
        asked = (tuple(np.asarray(nums).tolist()), int(target))
        what_is_read = (answer_span(text),) if verdict in OF_THE_ANSWER else (text, end)
        key = (*asked, *what_is_read)
        if key not in known:
            known[key] = read(text, Problem(*asked), style, end)
        rows.append(known[key])
    found = pd.DataFrame(rows, columns=columns, index=table.index)
    return table.assign(**{name: found[name] for name in columns})


def stopped_at_answer(samples: pd.DataFrame) -> pd.DataFrame:
    """The same samples, judged as if each had been stopped at its first answer.

    samples: a table of `samples` with texts. A completion ends with its first `</answer>`; one
    without that tag stays as it is. The columns status, correct and solution are those of the
    texts that remain. All others, such as tokens, still belong to the whole completion. A policy
    that goes on after its answer is judged by its last answer elsewhere, and by its first here."""
    stopped = samples.assign(completion=samples["completion"].map(_stopped))
    judged = [judge(rows, str(style)) for style, rows in stopped.groupby("style", sort=False)]
    return pd.concat([stopped[:0], *judged]).reindex(samples.index)


def _stopped(text: str) -> str:
    before, closed, _ = text.partition("</answer>")
    return before + closed


def _answer(text: str, problem: Problem, style: str, _: str) -> Values:
    verdict = VERIFIERS[style](text, problem)
    correct = verdict.status == "correct"
    return verdict.status, correct, render(canonical(verdict.expression)) if correct else ""


def _expression(text: str, problem: Problem, style: str, _: str) -> Values:
    found = VERIFIERS[style](text, problem).expression
    return ("" if found is None else render(canonical(found)),)


def _steps(text: str, problem: Problem, style: str, _: str) -> Values:
    found = verify_steps(text, problem)
    true = VERIFIERS[style](text, problem).status == "correct"
    legal = [step for step in found if step.legal]
    reached = (problem.target,)
    lost = not true and any(step.pool == reached for step in legal)
    read = [step for step in found if not step.malformed]
    counted = (
        len(read),
        sum(step.arithmetic_ok for step in read),
        sum(not step.repeated for step in read),
    )
    signs = sum(text.count("=", *block) for block in reasoning(text))
    return (
        *counted,
        signs,
        len(legal) / max(len(found), 1),
        float(lost),
        found[-1].attempt + 1 if found else 0,
    )


def _program(text: str, problem: Problem, style: str, _: str) -> Values:
    if not style.startswith("program"):
        text = text.replace("<answer>", "<answer>answer = ")
    verdict = verify_program(text, problem)
    given = sorted(problem.nums)
    whole = [made for made in verdict.assignments if sorted(leaves(made)) == given]
    return verdict.passed, len(verdict.assignments), len(whole)


def _trace(text: str, problem: Problem, _: str, finish: str) -> Values:
    found = verify_trace(text, problem)
    before, closed, behind = text.partition("</answer>")
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


def last_check(completions: Sequence[str] | pd.Series) -> pd.Series:
    """What the last check of each text says: "yes", "no", or "" for a text without one. Our
    demonstrations end every attempt with a check, such as `98? no`; it is the policy's own word,
    and no verifier reads it."""
    texts = pd.Series(completions, dtype="str").fillna("")
    return pd.Series([_check(text) for text in texts.tolist()], texts.index, dtype="str")


def _check(text: str) -> str:
    yes = text.rfind("? yes")
    no = text.rfind("? no")
    if yes == no:  # neither is there
        return ""
    return "yes" if yes > no else "no"


VERDICT_KINDS = {
    "answer": VerdictKind(["status", "correct", "solution"], _answer),
    "expression": VerdictKind(["expression"], _expression),
    "steps": VerdictKind(STEPS, _steps),
    "program": VerdictKind(["passed", "assignments", "complete"], _program),
    "trace": VerdictKind(TRACE, _trace),
}
OF_THE_ANSWER = ("answer", "expression")  # these depend on the text in the answer tag alone
HUB_SETS = {"hub_test_50": "test_50", "hub_test_5num_50": "test_5num_50"}
# kinds of one column that are read off a text, so that no verdict is cached
PLAIN = {"check": last_check}


def _records(patterns: Patterns, file: str) -> dict[Path, dict]:
    """The records of the runs, by folder. Raises an error for a run that wrote no such file, and
    for one run in two folders."""
    records = {folder: record(folder) for folder in folders(patterns)}
    known = {}
    for folder, fields in records.items():
        if file not in (fields.get("files") or {file: ()}):  # a run by hand lists no files
            raise FileNotFoundError(
                f"{shown(folder)}: this run wrote no {file}: sample it, or search with it, first"
            )
        twin = known.setdefault(fields.get("id", folder), folder)
        if twin != folder:
            raise ValueError(
                f"{shown(twin)} and {shown(folder)} hold the same run, which would count twice"
            )
    return records


def _judged(
    patterns: Patterns,
    file: str,
    sets: str | Sequence[str] | None,
    verdicts: Sequence[str],
    texts: bool,
) -> pd.DataFrame:
    columns = ["run", "method", "seed", "style", "temperature"]
    columns += ["set", "problem", "tokens", "finish", "count"]
    for kind in verdicts:
        columns += [kind] if kind in PLAIN else VERDICT_KINDS[kind].columns
    columns += TEXTS * texts
    sets = [sets] if isinstance(sets, str) else sets
    for name in sets or ():
        if name not in ("all", *EVALUATION_SETS) and not name.endswith(FILES):
            raise ValueError(f"there is no evaluation set {name!r}{nearest(name, EVALUATION_SETS)}")
    records = _records(patterns, file)
    set_names = _set_names(records)
    tables = []
    for folder, fields in records.items():
        path = folder / file
        style = fields["parameters"].get("prompt_style", "free")
        table = read_table(path, () if texts else TEXTS)
        run_columns = {key: fields[key] for key in ("run", "method", "seed")} | {"style": style}
        if "temperature" not in table:
            run_columns["temperature"] = fields["parameters"].get("temperature", float("nan"))
        run_columns = pd.DataFrame(run_columns, table.index)
        read_verdicts = partial(
            _verdicts, path, content(path), style, cache(partial(read_table, path))
        )
        kinds = [kind for kind in verdicts if kind != "steps" or not style.startswith("program")]
        for name, rows in table.groupby("set", sort=False) if "set" in table else [("all", table)]:
            set_name = set_names.get(str(name), str(name))
            if set_name and (sets is None or set_name in sets):
                found = [read_verdicts(str(name), rows.index, kind) for kind in kinds]
                rows = rows if set_name == name else rows.assign(set=set_name)
                tables.append(pd.concat([run_columns.loc[rows.index], rows, *found], axis=1))
        columns += list(table.columns)
    if not tables:  # no rows or no runs: an empty table still has its columns
        return pd.DataFrame(columns=[*dict.fromkeys(columns)])
    return pd.concat(tables, ignore_index=True)


def _set_names(records: dict[Path, dict]) -> dict[str, str | None]:
    """The sets that are read under another name (None: not at all). If all runs that were asked
    fifty problems were asked the papers' own ones from the hub, these take the place of ours."""
    names: dict[str, str | None] = {}
    asked = [_asked_sets(fields["parameters"]) for fields in records.values()]
    for hub, ours in HUB_SETS.items():
        either = [sets for sets in asked if sets & {hub, ours}]
        if either and all(hub in sets for sets in either):
            names |= {hub: ours, ours: None}
    return names


def _asked_sets(parameters: dict) -> set[str]:
    """The problem sets of a run of notebook 15, or of all searches of one of notebook 16."""
    sets = set(parameters.get("sets", ()))
    for search in parameters.get("searches", ()):
        sets |= set(search.get("sets", ()))
    return sets


def _verdicts(
    path: Path, digest: str, style: str, reader: Callable, name: str, rows: pd.Index, kind: str
) -> pd.DataFrame:
    """Verdicts for the rows of one problem set of a file. They come from the cache if the file (its
    hash is `digest`) and the code are unchanged, and are otherwise computed and cached. `reader`
    reads the file with its texts."""
    if kind in PLAIN:
        return PLAIN[kind](reader().loc[rows, "completion"]).to_frame(kind)
    columns = VERDICT_KINDS[kind].columns
    if (table := published(path, digest, rows, columns)) is not None:
        return table.set_axis(rows)
    cache_file = CACHE / f"{digest}-{name}-{code()}-{style}-{kind}.parquet"
    if (kept := cached(cache_file)) is not None:
        return kept.set_axis(rows)
    verdicts = judge(reader().loc[rows], style, kind)[columns]
    with suppress(OSError):  # not cached if the disk is full or write-protected
        with atomic(cache_file) as temporary:
            verdicts.to_parquet(temporary, index=False)
        with atomic(cache_file.with_suffix(HASH)) as temporary:
            temporary.write_text(sha256(cache_file))
    return verdicts


def cached(file: Path) -> pd.DataFrame | None:
    """The verdicts of a file in the cache; None if it is missing, or is no longer what was
    written."""
    with suppress(OSError, ValueError):
        if file.with_suffix(HASH).read_text() == sha256(file):
            return read_table(file)
    return None


def content(path: Path) -> str:
    """The hash under which the verdicts of a file are cached."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def published(path: Path, digest: str, rows: pd.Index, columns: list[str]) -> pd.DataFrame | None:
    """The published verdicts on some rows of the file `path`, whose content has the hash `digest`.
    None if there are none by the present code, on this content, and on all these rows. Raises
    ValueError if the file has changed."""
    file = path.with_name(VERDICTS_FILE)
    name = os.path.relpath(file, JUDGED_BY.parent)
    if name not in trusted() or not file.exists():
        return None
    table = _all_published(file, trusted()[name])
    if not {*columns} <= {*table.column_names}:
        return None
    if (table.schema.metadata or {}).get(b"content") != digest.encode():
        return None
    part = table.select(columns).take(rows.to_numpy())
    return None if any(column.null_count for column in part.columns) else part.to_pandas()


@lru_cache(maxsize=2)  # the sets and kinds of one file are asked for one after the other
def _all_published(file: Path, digest: str) -> pa.Table:
    """A file of verdicts, whose sha256 must be `digest`."""
    with reading(file):
        content = file.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"its content is not the one that {JUDGED_BY.name} names")
        return pq.read_table(pa.BufferReader(content))


@cache
def trusted() -> dict[str, str]:
    """The sha256 of each published file of verdicts that was made by this code, by its path in
    data/reference."""
    made_by, *lines = JUDGED_BY.read_text().splitlines() if JUDGED_BY.exists() else [""]
    if made_by != code():
        return {}
    pairs = [line.split(maxsplit=1) for line in lines]  # as sha256sum writes them
    return {name: content_hash for content_hash, name in pairs}


@cache
def code() -> str:
    """The hash of all code that makes verdicts, without comments and docstrings: the same on all
    Python versions."""
    parts = (
        expression,
        Problem,
        programs,
        steps,
        traces,
        verifiers,
        judge,
        *(kind.read for kind in VERDICT_KINDS.values()),
    )
    trees = [skeleton(ast.parse(inspect.getsource(part))) for part in parts]
    return hashlib.blake2b(json.dumps(trees).encode(), digest_size=8).hexdigest()
