"""Claims of several kinds, computed again from the published files by a way of their own: another parser, another
pass@k, the interval written out. Nothing of lib but the evaluator that is held against it."""

import ast
import json
import math
from collections import Counter
from fractions import Fraction
from functools import cache
from operator import add, mul, sub, truediv

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib import claims, intervals, judging, metrics
from lib.files import FIGURES, ROOT

LAPTOP = ROOT / "data/reference/laptop"
OPERATIONS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}


def read(node, names):
    """Value and numbers of an expression."""
    match node:
        case ast.Constant(value=int(value)):
            return Fraction(value), [value]
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=inside):
            value, used = read(inside, names)
            return -value, used
        case ast.BinOp(left=left, op=op, right=right):
            (a, used), (b, more) = read(left, names), read(right, names)
            return OPERATIONS[type(op)](a, b), used + more
    raise ValueError


def solves(text, nums, target, program):
    try:
        lines = text[text.rindex("<answer>") + 8 : text.rindex("</answer>")].strip().split("\n")
        names = {}
        for line in filter(str.strip, (line.partition("#")[0] for line in lines)):
            name, _, expression = line.rpartition("=") if "=" in line else ("", "", line)
            if program and not name.strip().isidentifier():  # a program's lines all assign
                return False
            result = read(ast.parse(expression.strip(), mode="eval").body, names)
            names[name.strip()] = result
        return result[0] == target and Counter(result[1]) == Counter(nums)
    except (ValueError, KeyError, SyntaxError, ZeroDivisionError):
        return False


def runs_of(name):
    return sorted((LAPTOP / name).iterdir())


@cache
def tally(name):
    """Completions of each problem of heldout_1000, and how many are right, a pair of series a run."""
    table = []
    for folder in runs_of(f"sample/{name}"):
        rows = pd.read_parquet(folder / "generations.parquet").query("set == 'heldout_1000'")
        asked = zip(rows["completion"], rows["nums"], rows["target"], strict=True)
        right = [solves(text, list(nums), target, "program" in name) for text, nums, target in asked]
        table.append([(rows["count"] * weight).groupby(rows.problem).sum() for weight in (1, right)])
    return table


def solved_at(name, k):
    """(runs, problems) of pass@k on heldout_1000."""
    chances = [[1 - math.comb(m - h, k) / math.comb(m, k) for m, h in zip(n, c, strict=True)] for n, c in tally(name)]
    return np.array(chances)


def paired(one, other):
    """Of the difference of two methods of one start, (runs, problems) of the same seeds."""
    problems, seeds = one.shape[1], len(one)
    gap, level = (part.mean(axis=1) for part in (one - other, one + other))
    rest, shared, freedom = gap.var(ddof=1) / 2, level.var(ddof=1) / 2, seeds - 1
    if shared <= rest:
        rest, freedom = (rest + shared) / 2, 2 * freedom
    left = [x - x.mean(axis=0) - x.mean(axis=1, keepdims=True) + x.mean() for x in (one, other)]
    made = sum((x**2).sum() for x in left) / (2 * (seeds - 1) * (problems - 1)) / problems
    first, second = stats.t.ppf(0.975, [problems - 1, freedom]) ** 2
    values = one.mean(axis=0) - other.mean(axis=0)
    square = first * stats.sem(values) ** 2
    square += 2 / seeds * max(0, rest - made) * (second + (second - first) * made / rest)
    return values.mean() + np.array([0, -1, 1]) * np.sqrt(square)


def interval(weights, tables):
    """Of a weighted sum of methods' means; `tables`: (runs, problems) by method, all methods of the study, no two of
    one trainer and start."""
    values = sum(weight * tables[method].mean(axis=0) for method, weight in weights.items())
    problems, pools = len(values), {}
    for method, x in tables.items():
        rest = x - x.mean(axis=0) - x.mean(axis=1, keepdims=True) + x.mean()
        made = (rest**2).sum() / ((len(x) - 1) * max(problems - 1, 1)) / problems if problems > 1 else 0
        pools.setdefault(method.split("/")[0], []).append((x.mean(axis=1).var(ddof=1), made, len(x) - 1))
    first = stats.t.ppf(0.975, problems - 1) ** 2 if problems > 1 else 0
    square = first * stats.sem(values) ** 2 if problems > 1 else 0
    for kind, pool in pools.items():
        freedom = sum(f for *_, f in pool)
        seen, made = (sum(part[i] * part[2] for part in pool) / freedom for i in (0, 1))
        second = stats.t.ppf(0.975, freedom) ** 2
        share = sum(w**2 / len(tables[m]) for m, w in weights.items() if m.split("/")[0] == kind)
        square += share * max(0, seen - made) * (second + (second - first) * made / seen)
    return values.mean() + np.array([0, -1, 1]) * np.sqrt(square)


def evaluated(paper, ids, names, logs=()):
    """Estimate, low and high of some claims as the evaluator has them, from these methods' runs alone."""
    asked = claims.planned(paper).query("id in @ids")
    judged = judging.samples([LAPTOP / f"sample/{name}/*" for name in names], sets=["heldout_1000"])
    scores = metrics.problem_scores(metrics.counts(judged), (1, 2, 16), ()).join(metrics.text_scores(judged))
    logged = metrics.log_scores(judging.logs([LAPTOP / name / "*" for name in logs]), asked["metric"])
    answered = claims.evaluate(asked, pd.concat([scores, intervals.of_logs(logged)] if logs else [scores]))
    return answered.set_index("id")[["estimate", "low", "high"]].astype(float)


def test_accuracy_coverage_and_own_starts():
    names = {"sft/free": "sft_free", "sft/program": "sft_program"}
    names |= {"rloo/program": "rloo_program", "rloo/sparse_k16": "rloo_sparse_k16"}
    found = evaluated("program", ["program-1", "program-4", "program-16"], names.values())
    one, sixteen = ({method: solved_at(name, k) for method, name in names.items()} for k in (1, 16))
    rl, programs = {"rloo/sparse_k16": 1, "sft/free": -1}, {"rloo/program": 1, "sft/program": -1}
    both = programs | {method: -weight for method, weight in rl.items()}
    for claim, weights, tables in (
        ("program-1", rl, one),
        ("program-16", programs, sixteen),
        ("program-4", both, sixteen),
    ):
        np.testing.assert_allclose(found.loc[claim], interval(weights, tables), atol=1e-12, err_msg=claim)


def test_different_texts_and_a_training_log():
    different = {}
    for method in ("rloo/trace_gated", "rloo/trace_outcome"):
        files = [folder / "generations.parquet" for folder in runs_of(f"sample/{method.replace('/', '_')}")]
        tables = [pd.read_parquet(file).query("set == 'heldout_1000'") for file in files]
        different[method] = np.array([table.groupby("problem")["completion"].nunique() for table in tables])
    found = evaluated("trace", ["trace-26"], ["rloo_trace_gated", "rloo_trace_outcome"])
    np.testing.assert_allclose(found.loc["trace-26"], paired(*different.values()), atol=1e-12)

    entropy = [pd.read_csv(folder / "metrics.csv")["entropy"] for folder in runs_of("rloo/sparse_k16")]
    falls = np.array([[log[-10:].mean() - log[:10].mean()] for log in entropy])  # fifths of 50 updates
    found = evaluated("program", ["program-12"], ["sft_free"], ["rloo/sparse_k16"])
    np.testing.assert_allclose(found.loc["program-12"], interval({"rloo/a": 1}, {"rloo/a": falls}), atol=1e-12)


@pytest.mark.parametrize(
    ("study", "paper", "profile"),
    [("ast_sweeps", "ast_all", "laptop"), ("program", "program", "cpu"), ("dense", "dense", "laptop")],
)
def test_the_committed_answers_are_the_evaluators(study, paper, profile):
    """Every claim on pass@k of heldout_1000, from the runs that the study reads."""
    from lib.runs.plan import Project

    committed = pd.read_csv(FIGURES / f"{paper}_claims.csv")
    if "comparisons" not in committed:
        pytest.skip("figures/ holds answers of an earlier form: make figures")
    spec = Project().specs(profile)[f"study/{study}/0"]
    folders = [parent.reference for parent in spec.parents.values() if parent.name.startswith("sample/")]
    folders = [folder for folder in folders if (folder / "run.json").exists()]  # as the study: what is there
    asked = claims.planned(paper.removesuffix("_all")).query("set == 'heldout_1000' and metric.str.startswith('pass@')")
    here = pd.DataFrame()
    for some in filter(len, (folders, spec.params.get("claimed", []))):  # the last one that has the policies answers
        judged = judging.samples(some, ["heldout_1000"])
        held = asked["runs"].str.split(";").map(lambda runs, there=set(judged["method"]): set(runs) <= there)
        scores = metrics.problem_scores(metrics.counts(judged), (1, 2, 4, 16), ())
        answered = claims.evaluate(asked if here.empty else asked[held], scores).set_index("id")
        here = answered.combine_first(here) if len(here) else answered
    here = here.loc[asked["id"]]
    there = committed.set_index("id").loc[here.index]
    assert len(here) >= 7 and here["answer"].tolist() == there["answer"].tolist()
    numbers = ["estimate", "low", "high", "theirs"]
    np.testing.assert_allclose(here[numbers].astype(float), there[numbers].astype(float), rtol=1e-5, atol=1e-9)


def test_every_reference_run_says_who_wrote_what():
    for path in LAPTOP.glob("*/*/*/run.json"):
        record = json.loads(path.read_text())
        assert {"run", "method", "seed"} <= set(record), path
        assert path.parent.relative_to(LAPTOP).as_posix() == f"{record['run']}/{record['seed']}"
