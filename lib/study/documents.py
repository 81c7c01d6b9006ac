"""Writes the numbers of README.md and notebooks/README.md, from figures/ and the published runs.

A generated part stands between `<!-- name: begin -->` and `<!-- name: end -->`; PARTS has the
function that writes it. `python -m lib.runs documents` writes all of them. A sentence whose verb
does not follow from a table names the answers that it rests on, and if these change,
`DocumentError` says which sentence must be written anew."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from textwrap import fill
from typing import Any

import pandas as pd

from lib.files import DATA, FIGURES, PAPER, REFERENCE, ROOT, read_table, shown
from lib.study import restarts, words

README = ROOT / "README.md"
LOGS = ROOT / "notebooks/README.md"
WIDTH = 140
KS = (1, 16)
Q = 0.05  # from here on a difference may be one of chance among so many


class DocumentError(ValueError):
    """A sentence of a document is no longer true, or the figures are too old to write it."""


def require(stands: bool, message: str) -> None:
    """Raises DocumentError with the message unless `stands`."""
    if not stands:
        raise DocumentError(message)


def figures(name: str, *index: str) -> pd.DataFrame:
    """A table of figures/ with these columns as its sorted index."""
    return pd.read_csv(FIGURES / f"{name}.csv").set_index([*index]).sort_index()


def at(table: pd.DataFrame | pd.Series, *key: str) -> pd.Series:
    """The one row of a table with this key."""
    where: Any = key[0] if len(key) == 1 else key
    return pd.Series(table.loc[where])


# The results table


def levels() -> pd.DataFrame:
    """Every method on heldout_1000: from this table alone, so that a number has one interval."""
    made = figures("grand_front", "method", "metric")
    whole = {"unanswered", "tokens"} <= {*made}
    require(whole, "figures/grand_front.csv is older than notebook 90: `make figures`")
    return made


def cell(ours: pd.Series, paper: pd.DataFrame) -> str:
    """An estimate in percent, its interval if runs were repeated, and the paper's number if there
    is one."""
    value, low, high = 100 * ours[["estimate", "low", "high"]].astype(float)
    text = f"{value:.1f} [{low:.1f}, {high:.1f}]" if ours["runs"] > 1 else f"{value:.1f}"
    return f"{text} ({paper['value'].iloc[0]:.1f})" if len(paper) else text


def said(paper: pd.DataFrame, study: str, method: str, metric: str) -> pd.DataFrame:
    """What a study's report says of a method: if several tables do, the first."""
    by = paper["paper"] == study.strip("`")
    return paper[by & (paper["method"] == method) & (paper["metric"] == metric)]


def results(text: str) -> str:
    """The results table. A row's method is the one of its label. Of the agent's search (label,
    budget) pass@1 is the game with the best score, and pass@16 any of those that it keeps; study
    `exact` samples nothing."""
    head, rule, *lines = text.strip().splitlines()
    rows = [_result(*line.strip("|").split("|")[:2]) for line in lines]
    return "\n".join([head, rule, *rows])


def _result(study: str, label: str) -> str:
    """One row of the results table."""
    study = study.strip()
    label = label.strip()
    methods = pd.read_csv(DATA / "methods.csv").set_index("label")["method"]
    paper = pd.read_csv(PAPER / "results.csv").query("set == 'test_50'")
    paper = paper[~paper["method"].str.endswith("_533")]
    nothing = paper[:0]
    theirs = [nothing, nothing]
    unanswered = ""
    tokens = ""
    if study == "`exact`":
        method = methods[label]
        of_exact = figures("exact_pass_at_k", "set", "method", "metric").loc["heldout_1000"]
        rows = [at(of_exact, method, f"pass@{k}") for k in KS]
    elif label in methods:
        method = methods[label]
        rows = [at(levels(), method, f"pass@{k}") for k in KS]
        theirs = [said(paper, study, method, f"pass@{k}") for k in KS]
        unanswered = f"{100 * rows[0]['unanswered']:.1f}"
        tokens = f"{rows[0]['tokens']:,.0f}"
    else:
        plain, _, budget = label.rpartition(", ")
        method = f"{methods[plain]} {budget}"
        games = figures("agent_table4", "set", "method", "metric").loc["heldout_1000"]
        rows = [at(games, method, metric) for metric in ("pass@1", "any")]
        theirs = [nothing, said(paper, study, method, "pass@1")]
        tokens = f"{rows[0]['tokens']:,.0f}"
    cells = [study, label, f"{rows[0]['runs']:.0f}", *map(cell, rows, theirs)]
    cells.append(_solved(method))
    started = restarted(method, restarts.STARTED)
    cells.append("" if started is None else f"{100 * started['estimate']:.1f} ({_gain(method)})")
    return f"| {' | '.join([*cells, unanswered, tokens])} |"


def restarted(method: str, metric: str) -> pd.Series | None:
    """A method's number on heldout_1000 in the table of restarts, None if it has none."""
    made = pd.read_csv(FIGURES / "grand_restarts.csv")
    return words.pick(made, set="heldout_1000", method=method, metric=metric)


def _known(row: pd.Series | None, what: str) -> pd.Series:
    """The row of a table in figures/. Raises DocumentError that names `what` is missing."""
    if row is None:
        raise DocumentError(f"figures/ has no row of {what}: `make figures`")
    return row


def _restarted(method: str, metric: str) -> pd.Series:
    return _known(restarted(method, metric), f"{method}, {metric}")


def _gain(method: str, unit: str = "") -> str:
    """A method's pass@1 minus what its restarted start solves for as many tokens."""
    row = _restarted(method, restarts.GAIN).copy()
    row["baseline"] = ""
    return words.estimate(row, unit)


def _solved(method: str) -> str:
    """What a method solves with the tokens of sixteen SFT samples; "" if it cannot be said. A
    method of which sixteen samples cost less solves at least what these solve."""
    solved = figures("grand_equal_tokens", "method")
    if method not in solved.index:
        return ""
    text = cell(at(solved, method), pd.DataFrame())
    return f"≥ {text}" if solved.loc[method, "at_least"] else text


# The findings


def shares(method: str) -> str:
    """Pass@1 and pass@16 of a method: "47.2% and 63.5%"."""
    ours = levels()["estimate"][method]
    return f"{100 * ours['pass@1']:.1f}% and {100 * ours['pass@16']:.1f}%"


def moves(method: str, other: str) -> str:
    """How a method's pass@1 and pass@16 differ from another's, by the intervals of the
    differences."""
    gaps = pd.read_csv(FIGURES / "ast_differences.csv").query("set == 'heldout_1000'")
    same = "does not differ significantly"
    verbs = []
    for k in KS:
        row = words.pick(gaps, method=method, baseline=other, metric=f"pass@{k}")
        verbs.append(words.compared(row, "is higher", "is lower", same))
    if verbs == [same, same]:
        return "neither differs significantly"
    return f"pass@1 {verbs[0]} and pass@16 {verbs[1]}"


def counted(runs: float) -> str:
    """A number of runs in words."""
    return "one run" if runs == 1 else f"{runs:.0f} runs"


def answered(*names: str) -> pd.Series:
    """The verdicts on these claims."""
    return figures("grand_claims", "id").loc[[*names], "verdict"]


def findings(_: str) -> str:
    """Three findings with their caveats, and the count of the reports' claims. The verbs follow
    the intervals."""
    rollouts = figures("ast_budget", "method")["rollouts"]
    few = rollouts["rloo/sparse"].max()
    many = rollouts["rloo/sparse_533"].max()
    check_findings(many)
    found = [_sparse(few, many), _near_misses(many), _best_of_four(many)]
    parts = [fill(part, WIDTH, subsequent_indent="   ") for part in found]
    return "\n".join([*parts, "", fill(_count(), WIDTH)])


def check_findings(many: float) -> None:
    """Raises DocumentError if an answer has changed on which a sentence of the findings rests."""
    claimed = figures("grand_claims", "id")
    leads = claimed.loc[["coverage-19", "coverage-17"], "low"]
    require(
        bool((leads > 0).all()),
        "best of four no longer beats the sparse reward at pass@1 and SFT at pass@16: write anew",
    )
    gains = claimed.loc[["coverage-28", "coverage-29"], "estimate"]
    require(
        bool(gains.between(0.06, 0.08).all()),
        f"README says that the best of four raises pass@16 by seven points: {gains}",
    )
    runs = levels().xs("pass@1", level="metric")["runs"]
    runs = runs[["rloo/sparse_533", "rloo/cov_pass4_533"]]
    require(bool((runs == 5).all()), f"say how many runs have {many:,.0f} rollouts: {dict(runs)}")
    long_ast = claimed.loc["ast-34", "seeds"]
    require(bool(long_ast == 5), "say how many runs of the AST reward are long")
    rests_on = {
        "the sentences on our own two studies": {
            "exact-5": "holds",
            "coverage-28": "holds",
            "coverage-29": "holds",
        },
        "the sentence on the loss of coverage": {"ast-6": "open", "coverage-42": "holds"},
        f"the sentences on {many:,.0f} rollouts": {"coverage-32": "holds", "coverage-33": "holds"},
        "the end of the second finding": {"ast-35": "open"},
        "the sentence on equal tokens": {"coverage-53": "holds"},
        "the sentence on the smaller base model": {"coverage-57": "open", "coverage-58": "open"},
        "the sentence on the larger base model": {"coverage-62": "open", "coverage-63": "holds"},
    }
    for sentence, expected in rests_on.items():
        now = dict(answered(*expected))
        require(now == expected, f"write {sentence} anew: {now}")


def _sparse(few: float, many: float) -> str:
    started = _restarted("rloo/sparse", restarts.STARTED)
    late = _restarted("rloo/sparse_533", restarts.GAIN)
    gain = re.sub(r"[()]", "", _gain("rloo/sparse", " points,"))
    require(late["low"] > 0, "the long run is no longer ahead of its restarted start: write anew")
    return f"""\
1. **Rewarding correctness alone** (the sparse reward). After {few:,.0f} rollouts
{moves("rloo/sparse", "sft/free")} (after correction only on sealed problems):
{shares("rloo/sparse")} (SFT: {shares("sft/free")}). The gain
is mostly longer search: SFT restarted until its own check says yes,
for as many tokens, solves {100 * started["estimate"]:.1f}% (RLOO: {gain}). After {many:,.0f}
rollouts RLOO has {shares("rloo/sparse_533")}, {100 * late["estimate"]:.1f} points above restarts and
within 3 points of SFT's coverage."""


def _near_misses(many: float) -> str:
    row = at(figures("grand_claims", "id"), "ast-34")
    lasts = "also" if row["q"] <= Q else "not"
    return f"""\
2. **Partial credit for near misses** (by abstract syntax trees, AST): {shares("rloo/ast_tau2")}.
Compared with the sparse reward {moves("rloo/ast_tau2", "rloo/sparse")}. After {many:,.0f} rollouts
pass@1 is {100 * row["estimate"]:.1f} points lower, {lasts} significant (q = {row["q"]:.3f})."""


def _best_of_four(many: float) -> str:
    of = levels().xs("pass@1", level="metric")
    best = at(of, "rloo/cov_pass4")
    start = at(of, "sft/free")
    equal = _at_equal_tokens("coverage_equal_tokens", "rloo/cov_pass4")
    sealed = _at_equal_tokens("coverage_sealed_equal_tokens", "rloo/sealed_pass4")
    same = "does not differ significantly"
    level = words.compared(equal, "is higher than", "is lower than", f"{same} from")
    again = answered("coverage-40", "coverage-38")
    require(bool((again == "holds").all()), f"write of the sealed problems anew: {dict(again)}")
    claimed = figures("grand_claims", "id")
    behind = _restarted("rloo/cov_pass4", restarts.GAIN)
    require(behind["high"] < 0, "the best of four is not behind its restarted start: write anew")
    sizes = pd.read_csv(FIGURES / "coverage_sizes_differences.csv")
    at_equal = {"baseline": "sft/small", "metric": "solved at equal tokens"}
    small = _known(words.pick(sizes, method="rloo/small_pass4", **at_equal), "rloo/small_pass4")
    require(small["high"] < 0, "the small best of four is not behind its start: write anew")
    warm = at(claimed, "coverage-53")
    require(warm["low"] > 0, "at temperature 0.8 it no longer beats SFT: write anew")
    large_runs = figures("coverage_sizes", "method")["runs"].loc["rloo/large_pass4"].min()
    limit = figures("coverage_limits", "method").loc["rloo/cov_pass4_533 T0.8", "limit"]
    return f"""\
3. **Rewarding the best of four samples together**, and nothing for a wrong answer:
{shares("rloo/cov_pass4")}, above the sparse reward at pass@1 and SFT at pass@16, also on 2,000
sealed problems. But {100 * best["unanswered"]:.1f}% of its samples give no answer, at
{best["tokens"]:.0f} tokens each (SFT: {start["tokens"]:.0f}).
At equal tokens its coverage {level} SFT's: {words.estimate(equal)}; sealed:
{100 * sealed["estimate"]:+.1f}. One sample solves {-100 * behind["estimate"]:.1f} points less than
restarted SFT. From a base model a quarter as large neither lead is significant, and at equal tokens
it is {-100 * small["estimate"]:.1f} points below its start (95% CI {-100 * small["high"]:.1f} to
{-100 * small["low"]:.1f}); from one twice as large ({counted(large_runs)}) the second is. After
{many:,.0f} rollouts it has {shares("rloo/cov_pass4_533")}; at temperature 0.8, cut at {limit}
tokens ({counted(warm["seeds"])}), it beats SFT at that temperature by {100 * warm["estimate"]:.1f}
points at equal tokens (95% CI {100 * warm["low"]:.1f} to {100 * warm["high"]:.1f})."""


def _at_equal_tokens(table: str, method: str) -> pd.Series:
    """A method's difference from SFT with the tokens of sixteen SFT samples."""
    made = figures(table, "method").filter(like="difference")
    made = made.rename(columns=lambda name: name.removeprefix("difference, "))
    return at(made.assign(baseline=""), method)


def _count() -> str:
    """How many claims of the reports hold that were written before any result."""
    first = at(figures("grand_tally", "study", "written"), "all", "before")
    answered = first[["holds", "reversed", "open"]].sum()
    return f"""\
Of **{answered} comparisons** of the reports, written before any result, {first["holds"]} hold,
{first["reversed"]} are reversed, {first["open"]} are open; {first["excluded"]} exclude the report's
size, at our scale; {first["untested"]} are untested ([meaning](#the-claims))."""


# Tables about runs


def notebooks(text: str) -> str:
    """The map of notebooks with the median minutes of their committed runs; without such runs, what
    is written."""
    took = _minutes()
    lines = text.splitlines()
    for i, line in enumerate(lines[2:], start=2):
        match = re.search(r"notebooks/(\w+)\.ipynb", line)
        made = took.get(match[1], []) if match else []
        if made:
            lines[i] = re.sub(r"[^|]*\|$", f" {max(1, round(median(made)))} |", line)
    return "\n".join(lines)


def _minutes() -> dict[str, list[float]]:
    """How many minutes each published run of a notebook took."""
    took = defaultdict(list)
    for path in sorted(REFERENCE.glob("cpu/*/*/*/run.json")):
        record = json.loads(path.read_text())
        took[record["notebook"]].append(record["elapsed"] / 60)
    return dict(took)


def seen(text: str) -> str:
    """The published runs that show a symptom: means of a column over the first and the last tenth
    of its rows."""
    head, rule, *lines = text.splitlines()
    for i, line in enumerate(lines):
        run, column = re.findall("`([^`]+)`", line)
        logged = read_table(REFERENCE / run / "metrics.csv")[column].dropna()
        tenth = math.ceil(len(logged) / 10)
        ends = [f" {part.mean():.3g} " for part in (logged[:tenth], logged[-tenth:])]
        lines[i] = "|".join([*line.split("|")[:4], *ends, ""])
    return "\n".join([head, rule, *lines])


PARTS: dict[str, Callable[[str], str]] = {
    "findings": findings,
    "results": results,
    "notebooks": notebooks,
    "seen": seen,
}


def refreshed(text: str) -> str:
    """A document with its generated parts as figures/ and the published runs have them."""
    for name in re.findall("<!-- (\\w+): begin -->", text):
        begin = f"<!-- {name}: begin -->\n"
        end = f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        inside, after = rest.split(end)
        text = f"{before}{begin}{PARTS[name](inside.strip())}\n{end}{after}"
    return text


def refresh() -> None:
    """Writes the generated parts of both documents."""
    for document in (README, LOGS):
        document.write_text(refreshed(document.read_text()))
        print(f"{shown(document)} has the numbers of figures/ and of the published runs")
