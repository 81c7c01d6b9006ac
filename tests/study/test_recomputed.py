"""Claims of several kinds, recomputed from the published files by independent code: another parser,
another pass@k, the interval written out, and pairs by the hashes in run.json. From lib it uses only
the evaluator that is tested against it and the reader of steps."""

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

from lib.files import FIGURES, REFERENCE, ROOT
from lib.game.problem import Problem
from lib.game.steps import verify_steps
from lib.study import claims, intervals, judging, metrics

CPU = REFERENCE / "cpu"
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
        # an answer without a line solves nothing
        names = {}
        result = (None, ())
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
    return sorted((CPU / name).iterdir())


@cache
def tally(name):
    """Completions of each problem of heldout_1000, and how many are right, a pair of series a
    run."""
    table = []
    for folder in runs_of(f"sample/{name}"):
        rows = pd.read_parquet(folder / "generations.parquet").query("set == 'heldout_1000'")
        asked = zip(rows["completion"], rows["nums"], rows["target"], strict=True)
        right = [
            solves(text, list(nums), target, "program" in name) for text, nums, target in asked
        ]
        table.append(
            [(rows["count"] * weight).groupby(rows.problem).sum() for weight in (1, right)]
        )
    return table


def solved_at(name, k):
    """(runs, problems) of pass@k on heldout_1000."""
    chances = []
    for n, c in tally(name):
        of_run = [1 - math.comb(m - h, k) / math.comb(m, k) for m, h in zip(n, c, strict=True)]
        chances.append(of_run)
    return np.array(chances)


def line(name):
    """Names of the policies behind a run, and the hash by which run.json names the first of
    them."""
    record = json.loads((CPU / name / "run.json").read_text())
    for key in ("init", "policy"):
        parent = "/".join(str(record["parameters"].get(key)).split("/")[-3:])
        if parent in record["parents"]:
            further = line(parent) if (CPU / parent / "run.json").exists() else None
            return further or (parent.rpartition("/")[0], record["parents"][parent])
    return None


def interval(weights, tables, labels=None, lent=None):
    """Of a weighted sum of methods' means: estimate, low, high. tables: (runs, problems) by method;
    labels: by method, of each run, what says which runs are pairs (their number); lent: by method,
    variance and degrees of freedom that fewer than four runs borrow."""
    labels = labels or {method: range(len(table)) for method, table in tables.items()}
    values = sum(weight * tables[method].mean(axis=0) for method, weight in weights.items())
    counts = [len(tables[method]) for method in weights]
    of_runs = None
    if lent and min(counts) < 4 <= max(counts):
        of_runs = with_loans_of_each(weights, tables, lent)
    if of_runs is None and min(counts) == 1:
        of_runs = of_loans_alone(weights, tables, lent) if lent else 0
    elif of_runs is None:
        of_runs = of_pairs(weights, tables, labels, lent)
    of_problems = squared_t(len(values) - 1) * stats.sem(values) ** 2 if len(values) > 1 else 0
    half = np.sqrt(of_problems + of_runs)
    mean = values.mean()
    first_table = tables[next(iter(weights))]
    if list(weights.values()) == [1.0] and first_table.min() >= 0 and first_table.max() <= 1:
        odds = np.log(mean / (1 - mean)) + np.array([-1, 1]) * half / (mean * (1 - mean))
        return np.array([mean, *(1 / (1 + np.exp(-odds)))])
    return mean + np.array([0, -1, 1]) * half


def squared_t(df):
    return stats.t.ppf(0.975, df) ** 2


def with_loans_of_each(weights, tables, lent):
    """The squared half-width that the runs give where each method counts alone, added as Welch
    does; None where none of them may borrow."""
    each = []
    borrows = False
    for method, weight in weights.items():
        runs = len(tables[method])
        problems = tables[method].shape[1]
        variance, more = lent[method]
        rows = tables[method] - tables[method].mean(axis=0)
        df = runs - 1
        share = weight**2 / runs
        mine = share * (rows.mean(axis=1) ** 2).sum() / max(df, 1)
        rest = ((rows - rows.mean(axis=1, keepdims=True)) ** 2).sum() / max(df, 1)
        mistaken = share * rest / problems / (problems - 1)
        if runs < 4 and lends(mine, share * variance + mistaken, df, more):
            mine = (df * mine + more * (share * variance + mistaken)) / (df + more)
            df = df + more
            borrows = True
        each.append((mine, mistaken, mine**2 / df if df else 0))
    if not borrows:
        return None
    seen, noise, below = np.sum(each, axis=0)
    return max(0, squared_t(seen**2 / below) * seen - squared_t(problems - 1) * noise)


def of_loans_alone(weights, tables, lent):
    """The same where a method has a single run: nothing is seen of how far its runs differ."""
    alone = sum(weight**2 / len(tables[m]) * lent[m][0] for m, weight in weights.items())
    return squared_t(min(lent[m][1] for m in weights)) * alone


def of_pairs(weights, tables, labels, lent):
    """The same from the moves of runs that are pairs: how far each is from the mean of its
    method."""
    problems = next(iter(tables.values())).shape[1]
    moves = {}
    for method, weight in weights.items():
        table = tables[method]
        count = len(table)
        for label, row in zip(labels[method], table - table.mean(axis=0), strict=True):
            moves.setdefault(label, np.zeros(problems))
            moves[label] += weight * row * np.sqrt(1 / count / (count - 1))
    seen = sum(move.mean() ** 2 for move in moves.values())
    squares = sum(((move - move.mean()) ** 2).sum() for move in moves.values())
    noise = squares / problems / max(problems - 1, 1)
    off = squared_t(problems - 1) * noise if problems > 1 else 0
    counts = [len(tables[method]) for method in weights]
    freedom = min(counts) - 1
    if lent and max(counts) < 4:
        variance = sum(weight**2 / len(tables[m]) * lent[m][0] for m, weight in weights.items())
        more = min(lent[method][1] for method in weights)
        if lends(seen, variance + noise, freedom, more):
            seen = (freedom * seen + more * (variance + noise)) / (freedom + more)
            freedom = freedom + more
    return max(0, squared_t(freedom) * seen - off)


def lends(own, loan, df, more):
    """Whether runs whose mean has the variance `own` may borrow `loan`: where chance makes such a
    ratio in a quarter of cases or more."""
    return df == 0 or stats.f.sf(own / loan, df, more) >= 0.25


def lent_to(weights, metric):
    """What methods with few runs borrow, by method; None where the table has not the metric of all
    their trainers, or where programs, DPO, or unanswered and wrong numbers of traces are
    compared."""
    names = " ".join(weights)
    shares = metric in ("missing", "wrong_numbers") and "trace" in names
    programs = {name for name in weights if name.startswith(("rloo/program", "sft/program"))}
    if shares or programs or "preference/dpo" in names or "agent_" in names:
        return None
    table = pd.read_csv(ROOT / "data/spreads.csv").set_index(["trainer", "metric"])[
        ["variance", "freedom"]
    ]
    found = {method: (method.split("/")[0].replace("mix", "rloo"), metric) for method in weights}
    return (
        {method: tuple(table.loc[key]) for method, key in found.items()}
        if {*found.values()} <= {*table.index}
        else None
    )


def evaluated(paper, ids, names, logs=()):
    """Estimate, low and high of some claims as the evaluator has them, from these methods' runs
    alone."""
    asked = claims.planned(paper).query("id in @ids")
    judged = judging.samples([CPU / f"sample/{name}/*" for name in names], sets=["heldout_1000"])
    scores = metrics.problem_scores(metrics.counts(judged), (1, 2, 16), ()).join(
        metrics.text_scores(judged)
    )
    logged = metrics.log_scores(judging.logs([CPU / name / "*" for name in logs]), asked["metric"])
    answered = claims.evaluate(
        asked, pd.concat([scores, intervals.of_logs(logged)] if logs else [scores])
    )
    return answered.set_index("id")[["estimate", "low", "high"]].astype(float)


def test_accuracy_coverage_and_own_starts():
    names = {"sft/free": "sft_free", "sft/program": "sft_program"}
    names |= {"rloo/program": "rloo_program", "rloo/sparse_k16": "rloo_sparse_k16"}
    found = evaluated("program", ["program-1", "program-4b", "program-16"], names.values())
    one = {method: solved_at(name, 1) for method, name in names.items()}
    sixteen = {method: solved_at(name, 16) for method, name in names.items()}
    rl = {"rloo/sparse_k16": 1, "sft/free": -1}
    programs = {"rloo/program": 1, "sft/program": -1}
    both = programs | {method: -weight for method, weight in rl.items()}
    for claim, weights, tables, metric in (
        ("program-1", rl, one, "pass@1"),
        ("program-16", programs, sixteen, "pass@16"),
        ("program-4b", both, sixteen, "pass@16"),
    ):
        by_hand = interval(weights, tables, lent=lent_to(weights, metric))
        np.testing.assert_allclose(found.loc[claim], by_hand, atol=1e-12, err_msg=claim)


def test_different_texts_and_a_training_log():
    different = {}
    for method in ("rloo/trace_gated", "rloo/trace_outcome"):
        files = [
            folder / "generations.parquet"
            for folder in runs_of(f"sample/{method.replace('/', '_')}")
        ]
        tables = [pd.read_parquet(file).query("set == 'heldout_1000'") for file in files]
        different[method] = np.array(
            [table.groupby("problem")["completion"].nunique() for table in tables]
        )
    found = evaluated("trace", ["trace-26"], ["rloo_trace_gated", "rloo_trace_outcome"])
    weights = {"rloo/trace_gated": 1, "rloo/trace_outcome": -1}
    by_hand = interval(weights, different, lent=lent_to(weights, "distinct completions"))
    np.testing.assert_allclose(found.loc["trace-26"], by_hand, atol=1e-12)

    entropy = [
        pd.read_csv(folder / "metrics.csv")["entropy"] for folder in runs_of("rloo/sparse_k16")
    ]
    # fifths of 140 updates
    falls = np.array([[log[-28:].mean() - log[:28].mean()] for log in entropy])
    found = evaluated("program", ["program-12"], ["sft_free"], ["rloo/sparse_k16"])
    np.testing.assert_allclose(
        found.loc["program-12"], interval({"rloo/a": 1}, {"rloo/a": falls}), atol=1e-12
    )


def step_reward(text, problem):
    """Eq. 6 of `dense` for a wrong completion, with two weights of .05 and each count of different
    steps bounded."""
    steps = [step.legal for step in verify_steps(text, problem) if not step.repeated]
    legal, invalid = (
        count / (count + len(problem.nums) - 1) for count in (sum(steps), len(steps) - sum(steps))
    )
    return 0.05 * legal - 0.05 * invalid


def test_the_spread_of_the_dense_reward_where_all_fail():
    spreads = {}
    for folder in runs_of("sample/sft_free"):
        rows = pd.read_parquet(folder / "generations.parquet").query("set == 'heldout_1000'")
        for number, group in rows.groupby("problem"):
            nums = list(group["nums"].iloc[0])
            target = group["target"].iloc[0]
            if not any(solves(text, nums, target, False) for text in group["completion"]):
                problem = Problem(tuple(map(int, nums)), int(target))
                answered = 0.1 * group["completion"].str.contains("</answer>")
                paid = [step_reward(text, problem) for text in group["completion"]] + answered
                spreads["sft/free", int(folder.name), "heldout_1000", number] = paid.repeat(
                    group["count"]
                ).std(ddof=0)
    table = pd.Series(spreads, name="spread").rename_axis(metrics.KEYS).to_frame()
    committed = pd.read_csv(FIGURES / "dense_claims.csv").set_index("id").loc["dense-15b"]
    np.testing.assert_allclose(
        committed["estimate"], intervals.estimates(table)["estimate"][0] - 0.03, rtol=1e-3
    )


@cache
def counted(name):
    """Of each run of a sampling run's seeds on heldout_1000: samples and right ones by problem, by
    the published verdicts; and what says of which other runs it is a pair."""
    found = []
    for folder in runs_of(f"sample/{name}"):
        rows = pd.read_parquet(folder / "generations.parquet", columns=["set", "problem", "count"])
        rows = rows[rows["set"] == "heldout_1000"]
        if not (folder / "verdicts.parquet").exists() or rows.empty:
            return None  # published since the verdicts were
        right = pd.read_parquet(folder / "verdicts.parquet", columns=["correct"]).loc[
            rows.index, "correct"
        ]
        right = right.to_numpy(bool)
        each = [
            (rows["count"] * weight).groupby(rows["problem"]).sum().to_numpy()
            for weight in (1, right)
        ]
        found.append((*each, (folder.name, *line(f"sample/{name}/{folder.name}"))))
    return found


@cache
def chance(n, c, ks):
    """Mean over ks of pass@k, of n samples with c right ones."""
    return np.mean([1 - math.comb(n - c, k) / math.comb(n, k) for k in ks])


@cache
def passed(method, metric):
    """(runs, problems) of pass@k or its mean up to k, and the runs' labels; None where nothing is
    published."""
    policy, _, warmth = method.partition(" ")
    name = (f"hot_{policy}_{warmth}" if warmth else policy).replace("/", "_")
    if " " in warmth or not (CPU / "sample" / name).exists():
        return None
    runs = counted(name)
    k = int(metric.rpartition("@")[2].removeprefix("k<="))
    ks = (k,) if metric.startswith("pass@") else tuple(range(1, k + 1))
    if runs is None or min(n.min() for n, *_ in runs) < k:
        return None
    table = []
    for n, c, _ in runs:
        table.append([chance(m, h, ks) for m, h in zip(n.tolist(), c.tolist(), strict=True)])
    return np.array(table), [label for *_, label in runs]


def stated(low, high, direction, margin, seeds):
    if seeds == 1:
        return "open"
    if direction == "equal":
        return (
            "holds"
            if max(-low, high) < margin
            else "reversed"
            if max(low, -high) > margin
            else "open"
        )
    low, high = (-high, -low) if direction.startswith("low") else (low, high)
    return "holds" if low > 0 else "reversed" if high < 0 else "open"


def compared(claim):
    """Answer, estimate, low and high of the weakest comparison of a claim; None where a method has
    no samples."""
    first, *others = claim.runs.split(";")
    found = []
    for other in others or [None]:
        weights = Counter({first: 1.0})
        if other:
            weights[other] -= claim.factor
        if claim.starts:
            one, two = claim.starts.split(";")
            weights[one] -= 1
            weights[two] += claim.factor
        known = {
            method: passed(method, claim.metric) for method, weight in weights.items() if weight
        }
        if not all(known.values()):
            return None
        tables = {method: table for method, (table, _) in known.items()}
        labels = {method: label for method, (_, label) in known.items()}
        weights = {method: weights[method] for method in known}
        estimate, *ends = (
            interval(weights, tables, labels, lent_to(weights, claim.metric)) - claim.bound
        )
        seeds = min(map(len, tables.values()))
        found.append((stated(*ends, claim.direction, claim.margin, seeds), estimate, *ends))
    sign = -1 if claim.direction.startswith("low") else 1
    return min(found, key=lambda one: (["reversed", "open", "holds"].index(one[0]), sign * one[1]))


# others have one of their name
TABLES = {"ast": ["ast_sweeps", "ast_numbers"], "trace": ["trace", "trace_designs"]}


@pytest.mark.parametrize("paper", ["ast", "program", "dense", "trace", "coverage"])
def test_the_committed_answers_follow_from_the_published_files(paper):
    """Every claim on pass@k of heldout_1000, by the code above alone."""
    committed = pd.concat(
        pd.read_csv(FIGURES / f"{name}_claims.csv") for name in TABLES.get(paper, [paper])
    )
    if "alone" not in committed:
        pytest.skip("figures/ holds answers of an earlier form: make figures")
    asked = committed[
        (committed["set"] == "heldout_1000")
        & committed["metric"].str.fullmatch(r"(?:mean )?pass@(?:k<=)?\d+")
    ]
    asked = asked[
        asked["direction"].isin(["higher", "lower", "highest", "lowest", "equal"])
        & asked["n_problems"].notna()
    ]
    seen = 0
    for claim in asked.fillna({"starts": ""}).itertuples():
        if found := compared(claim):
            assert found[0] == claim.alone, claim.id
            numbers = [claim.estimate, claim.low, claim.high]
            # rounded
            np.testing.assert_allclose(found[1:], numbers, rtol=1e-5, atol=1e-9, err_msg=claim.id)
            seen += 1
    assert seen >= 0.6 * len(asked) >= 4, (seen, len(asked))


def test_every_reference_run_says_who_wrote_what():
    paths = sorted(REFERENCE.glob("*/*/*/*/run.json"))
    assert len(paths) > 500
    for path in paths:
        record = json.loads(path.read_text())
        assert {"profile", "run", "method", "seed"} <= set(record), path
        named = f"{record['profile']}/{record['run']}/{record['seed']}"
        assert path.parent.relative_to(REFERENCE).as_posix() == named
