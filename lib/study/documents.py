"""Writes the numbers of README.md and notebooks/README.md, and the rows of figures/README.md, from
figures/ and the published runs.

A generated part stands between `<!-- name: begin -->` and `<!-- name: end -->`; PARTS has the
function that writes it. `python -m lib.runs documents` writes all of them. A sentence whose verb
does not follow from a table names the answers that it rests on, and if these change,
`DocumentError` says which sentence must be written again."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from html import escape
from statistics import median
from textwrap import fill
from typing import Any

import pandas as pd

from lib.files import DATA, FIGURES, PAPER, REFERENCE, ROOT, read_table, shown
from lib.study import compare, plots, restarts, words

README = ROOT / "README.md"
LOGS = ROOT / "notebooks/README.md"
GALLERY = FIGURES / "README.md"
# Where README links the website. From wherever the repository is on GitHub, this leads to what
# .github/workflows/pages.yml has published; the website's own address is one click shorter.
PAGES = "../../deployments/github-pages"
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


def at(table: pd.DataFrame | pd.Series, *key: str | int) -> pd.Series:
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
    found = [restarted(method, metric) for metric in restarts.CHECKED]
    check = [f"{100 * row['estimate']:.0f}" for row in found if row is not None]
    cells.append(" / ".join(check))
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


def _gain(method: str) -> str:
    """A method's pass@1 minus what its restarted start solves for as many tokens."""
    row = _restarted(method, restarts.GAIN).copy()
    row["baseline"] = ""
    return words.estimate(row, "")


def _solved(method: str) -> str:
    """What a method solves with the tokens of sixteen SFT samples; "" if it cannot be said. A
    method of which sixteen samples cost less solves at least what these solve."""
    solved = figures("grand_equal_tokens", "method")
    if method not in solved.index:
        return ""
    text = cell(at(solved, method), pd.DataFrame())
    return f"≥ {text}" if solved.loc[method, "at_least"] else text


# The front page

FRONT = {
    "sft/free": "demonstrations (SFT), where all others start",
    "rloo/sparse": "right answers; a wrong one earns a tenth (sparse RLOO)",
    "rloo/ast_tau2": "right answers and near misses (AST)",
    "rloo/grpo": "right answers alone; advantages divided by their spread (GRPO)",
    "preference/ipo": "pairs of a right and a wrong answer (IPO)",
    "rloo/cov_pass4": "the best of four tries; a wrong one earns nothing (Best of 4)",
}
GAMES = {
    "a search that keeps sixteen games": "sft/pick_legal 16/16",
    "sixteen games, one after the other": "sft/pick_legal 1/1 sampled",
    "the search with fewer demonstrations": "sft/pick 16/16",
}
SEARCHES = ("agent_table4", "agent_legal_searches")  # the tables that hold them
EXACT = {
    "exact: where training starts": "exact/long_start",
    "exact: trained for right or wrong": "exact/long_expected",
}


def website(_: str) -> str:
    """The link from the first screen to the website."""
    return f"**[The website]({PAGES})** shows every study."


def front(_: str) -> str:
    """The table of the front page, with the half widths of its intervals below it."""
    made = levels()
    rows = [_front(made, method) for method in FRONT]
    shown_rows = made.loc[[*FRONT]].loc[pd.IndexSlice[:, [f"pass@{k}" for k in KS]], :]
    require(bool((shown_rows["runs"] == 5).all()), "README says that each method has five runs")
    widths = 50 * (shown_rows["high"] - shown_rows["low"])
    head = "| the model learns from | one try | sixteen tries | no answer | tokens per try |"
    head += " SFT restarted, for these tokens |"
    rule = "|---|---|---|---|---|---|"
    note = f"95% intervals: ±{widths.min():.0f} to {widths.max():.1f} points."
    return "\n".join([head, rule, *rows, "", note])


def _front(made: pd.DataFrame, method: str) -> str:
    """One row of the front page's table."""
    once = at(made, method, "pass@1")
    often = at(made, method, "pass@16")
    start = restarted(method, restarts.STARTED)
    cells = [FRONT[method]]
    cells += [f"{100 * row['estimate']:.1f}" for row in (once, often)]
    cells += [f"{100 * once['unanswered']:.0f}", f"{once['tokens']:.0f}"]
    cells.append("" if start is None else f"{100 * start['estimate']:.1f}")
    return f"| {' | '.join(cells)} |"


def games(_: str) -> str:
    """The agent's games and the exact study, which count otherwise than the rest."""
    head = "| method | one try | sixteen tries | tokens | runs |"
    lines = [head, "|---|---|---|---|---|"]
    tables = [figures(name, "set", "method", "metric").loc["heldout_1000"] for name in SEARCHES]
    of_search = pd.concat(tables)
    of_search = of_search[~of_search.index.duplicated()]
    for name, method in GAMES.items():
        rows = [at(of_search, method, metric) for metric in ("pass@1", "any")]
        lines.append(_games(name, rows, f"{rows[0]['tokens']:,.0f}"))
    of_exact = figures("exact_pass_at_k", "set", "method", "metric").loc["heldout_1000"]
    for name, method in EXACT.items():
        lines.append(_games(name, [at(of_exact, method, f"pass@{k}") for k in KS], ""))
    return "\n".join(lines)


def _games(name: str, rows: list[pd.Series], tokens: str) -> str:
    """One row of that table."""
    cells = [name, *(cell(row, pd.DataFrame()) for row in rows), tokens, f"{rows[0]['runs']:.0f}"]
    return f"| {' | '.join(cells)} |"


def answered(*names: str) -> pd.Series:
    """The verdicts on these claims."""
    return figures("grand_claims", "id").loc[[*names], "verdict"]


def findings(_: str) -> str:
    """Four findings and a sentence on the exact study and on pretrained models. Raises
    DocumentError if a sentence no longer follows from the intervals."""
    check_findings()
    found = (_longer(), _extra(), _best(), _one_move())
    parts = [fill(part, WIDTH, subsequent_indent="   ") for part in found]
    return "\n".join([*parts, "", fill(_elsewhere(), WIDTH)])


# What a sentence of the front page rests on: claims, and the answers that it needs
RESTS_ON = {
    "the sentence on the best of four": {"coverage-17": "holds", "coverage-19": "holds"},
    "the sentence on the smaller base model": {"coverage-57": "open", "coverage-58": "open"},
    "the sentence on our exact study": {"exact-13": "holds", "exact-14": "reversed"},
}


def check_findings() -> None:
    """Raises DocumentError if an answer has changed on which a sentence of the findings rests."""
    for sentence, expected in RESTS_ON.items():
        now = dict(answered(*expected))
        require(now == expected, f"write {sentence} again: {now}")


def percent(method: str, metric: str) -> str:
    """What a method solves on heldout_1000: "47.2%"."""
    return f"{100 * at(levels(), method, metric)['estimate']:.1f}%"


# The reports' rewards for near misses and steps, trained as long as sparse RLOO from its start
EXTRA = ["rloo/ast_tau1", "rloo/ast_tau2", "rloo/ast_tau3", "rloo/ast_tau4", "rloo/ast_steps"]
EXTRA += ["rloo/ast_tau2_nogate", "rloo/ast_tau2_alpha01"]
EXTRA += ["rloo/dense", "rloo/dense_share", "rloo/dense_count", "rloo/hybrid"]


def _longer() -> str:
    """What training adds to a longer search: on new problems, and after longer training."""
    new = figures("restarts_result", "method", "metric")
    gain = new.xs(restarts.GAIN, level="metric")
    sparse = gain.loc["rloo/sparse"]
    require(bool(abs(sparse["estimate"]) < 0.015), "sparse RLOO leads restarts: write again")
    behind = -100 * gain.loc[["rloo/pass4_half_rate", "preference/ipo_half_rate"]]
    require(bool((behind["high"] > 0).all()), "restarts do not beat Best of 4 and IPO: write again")
    unaided = gain.loc["rloo/gives_up_0.0_sparse"]
    usual = at(new, "rloo/gives_up_0.0_sparse", restarts.OVER_USUAL)
    require(bool(unaided["low"] > 0), "where no example gives up RLOO adds less: write again")
    require(bool(usual["estimate"] < 0), "RLOO is ahead of usual SFT, restarted: write again")
    later = _restarted("rloo/sparse_533", restarts.GAIN)
    require(later["low"] > 0.03, "the long run is no longer well ahead of restarts: write again")
    require(bool((gain.loc[[*behind.index, "rloo/sparse"], "runs"] == 3).all()), "not three runs")
    require(bool(unaided["runs"] == 3), "where no example gives up there are not three runs")
    once = at(new, "rloo/sparse", "pass@1")["estimate"]
    start = at(new, "rloo/sparse", restarts.STARTED)["estimate"]
    best, pairs = behind["estimate"]
    return f"""\
1. **With one try, short RL training hardly beats a longer search; long training does.** On 1,000
new problems sparse RLOO solves {100 * once:.1f}%, and SFT, restarted for as many tokens,
{100 * start:.1f}% (three runs). Restarted SFT beats Best of 4 by {best:.1f} points and IPO by
{pairs:.1f}, both at [half the learning rate](notebooks/74_restarts.ipynb). From demonstrations
that never give up, sparse RLOO beats its restarted start by {100 * unaided["estimate"]:.1f} points,
but not usual SFT, restarted. After almost four times the updates it beats restarts by
{100 * later["estimate"]:.1f} points, on the table's problems."""


def _extra() -> str:
    """What extra credit adds."""
    solved = levels()["estimate"].xs("pass@1", level="metric")
    best = solved[EXTRA].max()
    require(
        bool(best < solved["rloo/sparse"]), "a reward solves more than sparse RLOO: write again"
    )
    longer = solved["rloo/ast_533"] < solved["rloo/sparse_533"]
    require(bool(longer), "after the longer training AST solves more: write again")
    # at the rate that its own trials chose, too
    compared = figures("ast_table2", "method", "baseline", "metric")
    tuned = at(compared, "rloo/ast_tau2_double_rate", "rloo/sparse", "pass@1")
    require(bool(tuned["low"] <= 0), "AST at its own rate solves more: write again")
    require(bool(tuned["runs"] == 3), "AST at its own rate has not three runs")
    return """\
2. **Extra credit solves no more.** No reward for near misses or legal steps beats sparse RLOO with
one try."""


def _best() -> str:
    """What Best of 4 solves with sixteen tries, and for equal tokens."""
    equal = figures("coverage_equal_tokens", "method").filter(like="difference")
    equal = equal.rename(columns=lambda name: name.removeprefix("difference, "))
    row = at(equal, "rloo/cov_pass4")
    require(row["low"] < 0 < row["high"], "Best of 4 and SFT are no longer level: write again")
    solved = figures("grand_equal_tokens", "method")["estimate"]
    best = 100 * solved["rloo/cov_pass4"]
    start = 100 * solved["sft/free"]
    return f"""\
3. **Above, Best of 4 leads with sixteen tries, and pays in tokens.** With the tokens of sixteen SFT
tries no difference is shown: {best:.1f}% and {start:.1f}%."""


def _one_move() -> str:
    """What sixteen games of the agent find, and for how many tokens."""
    found = figures("agent_legal_tries", "set", "method", "k").loc["heldout_1000"]
    games = at(found, "sft/pick_legal 1/1 sampled", 16)
    answers = at(found, "rloo/cov_pass4", 16)
    start = at(found, "sft/free", 16)
    cheaper = 7 * games["tokens"] < answers["tokens"]
    require(bool(cheaper), "the agent's games are not far cheaper: write again")
    level = abs(games["estimate"] - answers["estimate"]) < 0.03
    require(bool(level), "the agent's games find less or more than Best of 4: write again")
    require(bool(games["low"] > start["estimate"]), "games do not find more than SFT: write again")
    require(games["runs"] == 3, "the agent has not three runs")
    longer = figures("agent_legal_games", "set", "method", "k").loc["heldout_1000"]
    number = int(longer.index.get_level_values("k").max())
    more = at(longer, "sft/pick_legal 1/1 sampled", number)
    ahead = more["tokens"] < answers["tokens"] and more["low"] > answers["high"]
    require(bool(ahead), "many games do not solve more than sixteen tries: write again")
    require(more["runs"] == 3, "many games have not three runs")
    return f"""\
4. **Writing one operation at a time is far cheaper.** Sixteen games of such an agent solve
{100 * games["estimate"]:.1f}%, and sixteen tries of Best of 4 {100 * answers["estimate"]:.1f}%. The
games take {games["tokens"]:.0f} tokens, the tries {answers["tokens"]:,.0f}. {number} games solve
{100 * more["estimate"]:.1f}%, for {more["tokens"]:,.0f} tokens. The agent saw more demonstrations
([64](notebooks/64_agent_legal.ipynb))."""


def _elsewhere() -> str:
    """One sentence on the exact study, one on pretrained models."""
    found = figures("pretrained_differences", "method", "baseline", "metric")
    pair = ("rloo/sparse 135M", "sft/free 135M")
    once = at(found, *pair, "pass@1")
    often = at(found, *pair, "pass@16")
    stands = bool(once["low"] > 0 and often["high"] < 0 and once["runs"] == 1)
    require(stands, "the pretrained model has other results: write again")
    exact = figures("exact_differences", "set", "method", "baseline", "metric").loc["heldout_1000"]
    trained = ("exact/long_expected", "exact/long_start")
    gain = at(exact, *trained, "pass@1")
    loss = at(exact, *trained, "pass@1024")
    require(bool(gain["low"] > 0 and loss["high"] < 0), "exact training differs: write again")
    return f"""\
[Trained without sampling](notebooks/80_exact.ipynb), the agent gains
{100 * gain["estimate"]:.1f} points with one game and loses {-100 * loss["estimate"]:.1f} with a
thousand. In one run on a pretrained model sparse RLOO gains {100 * once["estimate"]:.1f} points
with one try and loses {-100 * often["estimate"]:.1f} with sixteen
([75](notebooks/75_pretrained.ipynb))."""


def compared(_: str) -> str:
    """What `make compare` prints of two published methods."""
    found = compare.compare("rloo/ast_tau2", "rloo/sparse", published=True)
    return f"```\n{compare.told(found)}\n```"


def counted(_: str) -> str:
    """How many claims of the reports hold that were written before any result."""
    first = at(figures("grand_tally", "study", "written"), "all", "before")
    answers = first[["holds", "reversed", "open"]].sum()
    verb = "is" if first["reversed"] == 1 else "are"
    text = f"""\
Of {answers} comparisons of the reports that were written before any result, {first["holds"]} hold,
{first["reversed"]} {verb} reversed and {first["open"]} are open; {first["untested"]} more are
untested, {first["not run"]} not run. Notebook
[90](notebooks/90_compare_all.ipynb#every-claim) has every claim, what was written after its
results, and how our rules changed."""
    return fill(text, WIDTH)


# The gallery

# What the names of figures begin with: each has a table of its own
GALLERIES = ("grand", "screen", "ast", "program", "dense", "trace", "agent", "coverage", "exact")
GALLERIES += ("restarts", "pretrained", "explorer")


def gallery(study: str, text: str) -> str:
    """A table of the figures whose names begin with `study`, in the order in which `text` has them;
    new figures come last, and those whose file is gone are left out. Each has the notebook that
    draws it.

    The sentence of a figure is its title, so that it says what its notebook has checked."""
    order = re.findall(r"\((\w+)\.png\) \|", text)
    names = sorted(path.stem for path in FIGURES.glob("*.png"))
    drawn = [name for name in names if name.split("_")[0] == study]
    listed = [name for name in order if name in drawn]
    new = [name for name in drawn if name not in order]
    pictures = [_picture(name) for name in [*listed, *new]]
    return "\n".join(["| | | notebook |", "|---|---|---|", *pictures])


def _picture(name: str) -> str:
    """One row of the gallery."""
    sentence = plots.title_of(FIGURES / f"{name}.png")
    require(bool(sentence), f"figures/{name}.png has no title: draw it with plots.finding")
    alt = escape(sentence, quote=False).replace('"', "&quot;")
    picture = f'<img src="{name}.png" width="320" alt="{alt}">'
    by = _drawn_by(name)
    return f"| [{picture}]({name}.png) | {sentence} | [{by[:2]}](../notebooks/{by}.ipynb) |"


def _drawn_by(figure: str) -> str:
    """The notebook that names a figure in its code."""
    if figure == "explorer":  # a picture that a browser takes
        return "91_explore_rollouts"
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if f'\\"{figure}\\"' in path.read_text():
            return path.stem
    raise DocumentError(f"no notebook draws figures/{figure}.png: `git rm figures/{figure}.*`")


def _shown(picture: re.Match) -> str:
    """A picture of a document, with its title as alternative text."""
    name = picture[1]
    return f"![{plots.title_of(FIGURES / f'{name}.png')}](figures/{name}.png)"


# Tables about runs


def notebooks(text: str) -> str:
    """The map of notebooks with the median minutes of their committed runs; without such runs, what
    is written."""
    took = _minutes()
    lines = text.splitlines()
    for i, line in enumerate(lines[2:], start=2):
        match = re.search(r"\]\((\w+)\.ipynb", line)
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
    "website": website,
    "front": front,
    "findings": findings,
    "games": games,
    "claims": counted,
    "compared": compared,
    "results": results,
    "notebooks": notebooks,
    "seen": seen,
}
PARTS |= {f"gallery_{study}": partial(gallery, study) for study in GALLERIES}


def refreshed(text: str) -> str:
    """A document with its generated parts, and the titles of its pictures, as figures/ and the
    published runs have them."""
    text = re.sub(r"!\[.*?\]\(figures/(\w+)\.png\)", _shown, text)
    for name in re.findall("<!-- (\\w+): begin -->", text):
        begin = f"<!-- {name}: begin -->\n"
        end = f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        inside, after = rest.split(end)
        text = f"{before}{begin}{PARTS[name](inside.strip())}\n{end}{after}"
    return text


def refresh() -> None:
    """Writes the generated parts of the documents."""
    for document in (README, LOGS, GALLERY):
        document.write_text(refreshed(document.read_text()))
        print(f"{shown(document)} has what figures/ and the published runs say")
