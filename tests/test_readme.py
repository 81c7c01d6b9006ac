"""The documents are true: their numbers are those of figures/ and of published runs, and everything they name exists.

`python -m tests.test_readme` writes these numbers into README.md and notebooks/README.md.
"""

import json
import math
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from statistics import median
from textwrap import fill

import pandas as pd
import pytest

from lib.files import DATA, FIGURES, PAPER, PROBLEMS, REFERENCE, ROOT
from lib.game.problem import Problem
from lib.game.verifiers import verify_answer
from lib.study import claims, words

README, LIB, LOGS = ROOT / "README.md", ROOT / "lib/README.md", ROOT / "notebooks/README.md"
LISTED = ["git", "ls-files", "-co", "--exclude-standard", "*.md"]  # what is or could be committed
DOCUMENTS = [ROOT / name for name in subprocess.run(LISTED, cwd=ROOT, capture_output=True, text=True).stdout.split()]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STUDIES = ["ast", "program", "dense", "trace", "agent", "coverage"]


def figures(name: str, *index: str) -> pd.DataFrame:
    return pd.read_csv(FIGURES / f"{name}.csv").set_index([*index]).sort_index()


def levels() -> pd.DataFrame:
    """Every method on heldout_1000: from this table alone, so that a number has one interval."""
    made = figures("grand_front", "method", "metric")
    assert {"unanswered", "tokens"} <= {*made}, "figures/grand_front.csv is older than notebook 90: `make figures`"
    return made


def cell(ours: pd.Series, paper: pd.DataFrame) -> str:
    """An estimate in percent, its interval if runs were repeated, and the paper's number if there is one."""
    value, low, high = 100 * ours[["estimate", "low", "high"]].astype(float)
    text = f"{value:.1f} [{low:.1f}, {high:.1f}]" if ours["runs"] > 1 else f"{value:.1f}"
    return f"{text} ({paper['value'].iloc[0]:.1f})" if len(paper) else text


def said(paper: pd.DataFrame, study: str, method: str, metric: str) -> pd.DataFrame:
    """What a study's report says of a method: if several tables do, the first."""
    by = paper["paper"] == study.strip("`")
    return paper[by & (paper["method"] == method) & (paper["metric"] == metric)]


def results(text: str) -> str:
    """The results table. A row's method is the one of its label. Of the agent's search (label, budget) pass@1 is the
    game with the best score, and pass@16 any of those that it keeps; study `exact` samples nothing."""
    methods = pd.read_csv(DATA / "methods.csv").set_index("label")["method"]
    names = ("set", "method", "metric")
    ours, games, exact = (
        levels(),
        *(figures(name, *names).loc["heldout_1000"] for name in ("agent_table4", "exact_pass_at_k")),
    )
    paper = pd.read_csv(PAPER / "results.csv").query("set == 'test_50' and not method.str.endswith('_533')")
    equal = figures("coverage_equal_tokens", "method").filter(like="solved").rename(columns=lambda name: name[8:])
    head, rule, *lines = text.strip().splitlines()
    for i, line in enumerate(lines):
        study, label, *_ = (part.strip() for part in line.strip("|").split("|"))
        plain, _, budget = label.rpartition(", ")
        theirs, unanswered, tokens = [paper[:0], paper[:0]], "", ""
        if study == "`exact`":
            method = methods[label]
            rows = [exact.loc[(method, f"pass@{k}")] for k in (1, 16)]
        elif label in methods:
            method = methods[label]
            rows = [ours.loc[(method, f"pass@{k}")] for k in (1, 16)]
            theirs = [said(paper, study, method, f"pass@{k}") for k in (1, 16)]
            unanswered, tokens = f"{100 * rows[0]['unanswered']:.1f}", f"{rows[0]['tokens']:,.0f}"
        else:
            method = f"{methods[plain]} {budget}"
            rows = [games.loc[(method, metric)] for metric in ("pass@1", "any")]
            theirs, tokens = [paper[:0], said(paper, study, method, "pass@1")], f"{rows[0]['tokens']:,.0f}"
        cells = [study, label, f"{rows[0]['runs']:.0f}", *map(cell, rows, theirs)]
        known = method in equal.index
        cells.append(cell(pd.concat([equal.loc[method], rows[0][["runs"]]]), paper[:0]) if known else "")
        lines[i] = f"| {' | '.join([*cells, unanswered, tokens])} |"
    return "\n".join([head, rule, *lines])


def shares(method: str) -> str:
    """Pass@1 and pass@16 of a method: "47.2% and 63.5%"."""
    ours = levels()["estimate"][method]
    return f"{100 * ours['pass@1']:.1f}% and {100 * ours['pass@16']:.1f}%"


def moves(method: str, other: str) -> str:
    """How a method's pass@1 and pass@16 differ from another's, by the intervals of the differences."""
    gaps = pd.read_csv(FIGURES / "ast_differences.csv").query("set == 'heldout_1000'")
    rows = [words.pick(gaps, method=method, baseline=other, metric=f"pass@{k}") for k in (1, 16)]
    one, many = (words.compared(row, "is higher", "is lower", "does not differ significantly") for row in rows)
    if one == many == "does not differ significantly":
        return "neither pass@1 nor pass@16 differs significantly"
    return f"pass@1 {one} and pass@16 {many}"


def counted(runs: float) -> str:
    return "one run" if runs == 1 else f"{runs:.0f} runs"


def findings(_: str) -> str:
    """Three findings with their caveats, and the count of the reports' claims. The verbs follow the intervals."""
    of, rollouts = levels().xs("pass@1", level="metric"), figures("ast_budget", "method")["rollouts"]
    few, many = (rollouts[f"rloo/{name}"].max() for name in ("sparse", "sparse_533"))
    best, start = (of.loc[name, ["unanswered", "tokens"]] for name in ("rloo/cov_pass4", "sft/free"))
    equal = figures("coverage_equal_tokens", "method").filter(like="difference").rename(columns=lambda name: name[12:])
    equal = equal.assign(baseline="").loc["rloo/cov_pass4"]
    level = words.compared(equal, "is higher than", "is lower than", "does not differ significantly from")
    leads = figures("grand_claims", "id").loc[["coverage-19", "coverage-17"], "low"]
    assert (leads > 0).all(), "best of four no longer beats the sparse reward at pass@1 and SFT at pass@16: write anew"
    ours = figures("grand_claims", "id").loc[["exact-5", "coverage-28", "coverage-29"], "answer"]
    assert (ours == "holds").all(), f"write the sentences on our own two studies anew: {ours.to_dict()}"
    gains = figures("grand_claims", "id").loc[["coverage-28", "coverage-29"], "estimate"]
    assert gains.between(0.06, 0.08).all(), f"README says that the best of four raises pass@16 by seven points: {gains}"
    first = claims.tally(reports_claims()).loc["all, as first posed"]
    again = figures("grand_claims", "id").loc[["coverage-40", "coverage-38"], "answer"]
    verbs = again.map({"holds": "is higher", "open": "does not differ significantly", "reversed": "is lower"})
    both = f"pass@1 {verbs.iloc[0]} and pass@16 {verbs.iloc[1]}"
    both = "both leads hold" if (again == "holds").all() else both
    claimed = figures("grand_claims", "id")
    longer = claimed.loc[["coverage-32", "coverage-33"], "answer"]
    assert (longer == "holds").all(), f"write the sentences on {many:,.0f} rollouts anew: {longer.to_dict()}"
    late = words.compared(claimed.loc["coverage-34"], "is higher", "is lower", "does not differ significantly")
    long_runs = of.loc[["rloo/sparse_533", "rloo/cov_pass4_533"], "runs"]
    assert (long_runs == 5).all(), f"say how many runs have {many:,.0f} rollouts: {long_runs.to_dict()}"
    late_ast = claimed.loc[["ast-34", "ast-35"], "answer"]
    assert [*late_ast] == ["holds", "open"], f"write the end of the second finding anew: {late_ast.to_dict()}"
    assert claimed.loc["ast-34", "seeds"] == 5, "say how many runs of the AST reward are long"
    assert claimed.loc["coverage-51", "answer"] == "holds", "write the sentence on equal tokens anew"
    large_runs = figures("coverage_sizes", "method")["runs"].loc["rloo/large_pass4"].min()
    limit = figures("coverage_limits", "method").loc["rloo/cov_pass4_533 T0.8", "limit"]
    smaller, larger = (claimed.loc[[f"coverage-{n}", f"coverage-{n + 1}"], "answer"] for n in (57, 62))
    assert (smaller == "open").all(), f"write the sentence on the smaller base model anew: {smaller.to_dict()}"
    assert [*larger] == ["open", "holds"], f"write the sentence on the larger base model anew: {larger.to_dict()}"
    found = f"""\
1. **Rewarding correctness alone** (the sparse reward: 1 for a correct answer, 0.1 for a wrong one).
After {few:,.0f} rollouts {moves("rloo/sparse", "sft/free")}:
{shares("rloo/sparse")} (SFT: {shares("sft/free")}). With {many:,.0f} rollouts, about as many as in `ast`, it
reaches {shares("rloo/sparse_533")}, within 3 points of SFT's coverage.
2. **Partial credit for near misses** (by abstract syntax trees, AST): {shares("rloo/ast_tau2")}.
Compared with the sparse reward, {moves("rloo/ast_tau2", "rloo/sparse")}; after {many:,.0f} rollouts
only pass@1 is significantly lower.
3. **Rewarding the best of four samples together**, and nothing for a wrong answer, beats the sparse reward at pass@1
and SFT at pass@16: {shares("rloo/cov_pass4")}. But {100 * best["unanswered"]:.1f}% of its samples give no answer
(SFT: {100 * start["unanswered"]:.1f}%), at {best["tokens"]:.0f} tokens per sample (SFT: {start["tokens"]:.0f}).
With the tokens of sixteen SFT samples, its coverage {level} SFT's: {words.estimate(equal)}.
On 2,000 sealed problems {both}; from a base model a quarter as large neither is significant, from one twice
as large ({counted(large_runs)}) only the second. With {many:,.0f} rollouts it has
{shares("rloo/cov_pass4_533")}: pass@16 is higher than the sparse reward's, and pass@1 {late}.
At temperature 0.8, cut at {limit} tokens ({counted(claimed.loc["coverage-51", "seeds"])}), it then beats SFT at equal
tokens by {words.estimate(claimed.loc["coverage-51"])}."""
    parts = [fill(part, 140, subsequent_indent="   ") for part in re.split(r"\n(?=\d\. )", found)]
    counts = f"""We tested **{first[["holds", "open", "reversed"]].sum()} comparisons** of the reports, as
first posed: {first["holds"]} hold, {first["reversed"]} are reversed, {first["open"]} are open;
{first.get("not run", 0)} more not run. In {first["contradict the paper"]} the size differs clearly from the report's
([what this means](#the-claims))."""
    return "\n".join([*parts, "", fill(counts, 140)])


def reports_claims(own=False) -> pd.DataFrame:
    """The answered claims of the five reports; or our own conjectures, which are all of study `coverage` and others."""
    made = pd.read_csv(FIGURES / "grand_claims.csv").fillna({"changed": ""})
    ours = made["paper"].isin(["coverage", "exact"]) | made["claim"].str.startswith("Conjecture")
    return made[ours if own else ~ours]


def tally(made: pd.DataFrame) -> str:
    """How many contrasts of each study were answered in which way: as first posed + as posed again after results."""
    counts = claims.tally(made)
    rows = [["", *counts], ["---"] * (len(counts.columns) + 1)]
    for name in counts.index[~counts.index.str.endswith("posed again")]:
        again = name.removesuffix(", as first posed") + ", posed again"
        more = [f" + {number}" for number in counts.loc[again]] if again in counts.index else [""] * len(counts.columns)
        cells = [f"{number}{extra}" for number, extra in zip(counts.loc[name], more, strict=True)]
        rows.append([name.removesuffix(", as first posed"), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def notebooks(text: str) -> str:
    """The map of notebooks with the median minutes of their committed runs; without such runs, what is written."""
    took = defaultdict(list)
    for path in sorted(REFERENCE.glob("cpu/*/*/*/run.json")):
        record = json.loads(path.read_text())
        took[record["notebook"]].append(record["elapsed"] / 60)
    lines = text.splitlines()
    for i, line in enumerate(lines[2:], start=2):
        if made := took[re.search(r"notebooks/(\w+)\.ipynb", line)[1]]:
            lines[i] = re.sub(r"[^|]*\|$", f" {max(1, round(median(made)))} |", line)
    return "\n".join(lines)


def seen(text: str) -> str:
    """The published runs that show a symptom: means of a column over the first and the last tenth of its rows."""
    head, rule, *lines = text.splitlines()
    for i, line in enumerate(lines):
        run, column = re.findall("`([^`]+)`", line)
        logged = pd.read_csv(REFERENCE / run / "metrics.csv")[column].dropna()
        tenth = math.ceil(len(logged) / 10)
        ends = [f"{part.mean():.3g}" for part in (logged[:tenth], logged[-tenth:])]
        lines[i] = "|".join([*line.split("|")[:4], *(f" {end} " for end in ends), ""])
    return "\n".join([head, rule, *lines])


PARTS = {"findings": findings, "results": results, "notebooks": notebooks, "seen": seen}
PARTS |= {"claims": lambda _: tally(reports_claims()), "conjectures": lambda _: tally(reports_claims(own=True))}


def refreshed(text: str) -> str:
    """A document with its generated parts as figures/ and the committed runs have them."""
    for name in re.findall("<!-- (\\w+): begin -->", text):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        inside, after = rest.split(end)
        text = f"{before}{begin}{PARTS[name](inside.strip())}\n{end}{after}"
    return text


@pytest.mark.parametrize("path, parts", [(README, 5), (LOGS, 1)], ids=["README", "notebooks"])
def test_a_document_has_the_numbers_of_the_figures_and_of_the_runs(path, parts):
    text = path.read_text()
    assert text.count(": begin -->") == parts
    assert refreshed(text) == text, f"`.venv/bin/python -m tests.test_readme` writes them into {path}"


LOGGED_BY = {"sft": "10", "rloo": "11", "preference": "13", "pairs": "12", "actions": "14", "mix": "19", "exact": "81"}


@pytest.mark.parametrize("kind, notebook", LOGGED_BY.items())
def test_every_column_of_metrics_csv_is_defined(kind, notebook):
    """In the part of the page about that notebook: all that published runs have written, and nothing else."""
    written = {name for path in REFERENCE.glob(f"*/{kind}/*/*/metrics.csv") for name in pd.read_csv(path, nrows=0)}
    general, *sections = re.split("\n### ", LOGS.read_text().split("## The columns of metrics.csv")[1])[1:]
    if notebook in ("10", "11", "13"):
        part = next(part for part in sections if f"(notebook {notebook})" in part.splitlines()[0])
        rows = [line.split("|")[1] for line in (general + part).splitlines() if line.startswith("| `")]
    else:
        rows = [line for line in sections[-1].splitlines() if line.startswith(f"| [{notebook}]")]
    defined = {name for row in rows for name in re.findall("`([^`]+)`", row)}
    assert {re.sub(r"^bucket\d+$", "bucket0", name) for name in written} - {"step"} <= defined, written - defined
    unseen = {"step", "bucket1", "predicted", "reward_agrees"}  # the last two: of runs that are not published yet
    assert defined - unseen <= written, defined - written


def test_no_number_of_the_readme_has_two_intervals():
    table = README.read_text().split("<!-- results: begin -->")[1].split("<!-- results: end -->")[0]
    methods = re.findall(r"^\| `\w+` \|([^|]*)\|", table, re.MULTILINE)
    assert len(methods) >= 10 and len(methods) == len(set(methods))


def test_the_reports_claims_are_counted_apart_from_our_own():
    both = [reports_claims(), reports_claims(own=True)]
    assert sum(map(len, both)) == len(figures("grand_claims", "id")) and min(map(len, both)) > 20
    assert not both[0]["claim"].str.startswith("Conjecture").any() and "coverage" not in set(both[0]["paper"])


def test_every_verdict_that_is_counted_is_explained():
    explained = README.read_text().split("How to read a verdict")[1].split("## ")[0]
    for name in {*figures("grand_claims", "id")["answer"]}:
        assert f"**{name}**" in explained, name


STUDY_NOTEBOOKS = [path for path in NOTEBOOKS if path.stem > "2" and path.stem[:2] not in ("62", "63", "81", "91")]


@pytest.mark.parametrize("path", STUDY_NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_study_says_it_learned_has_the_answers_of_its_claims(path):
    """Five sentences, and behind them the claims that they rest on, with today's answers."""
    opening = "".join(json.loads(path.read_text())["cells"][0]["source"])
    sentences, stated = re.search(r"\*\*What we learned\.\*\*(.*?)\*\((.*?)\)\*", opening, re.DOTALL).groups()
    assert len(re.findall(r"[.?!](?=\s)", sentences + "\n")) == 5
    answers = pd.read_csv(FIGURES / "grand_claims.csv").set_index("id")["answer"]
    told = re.findall(r"`(\w+-\w+)`\s+(\w+)", stated)
    assert len(told) >= 4 and {name: answers[name] for name, _ in told} == dict(told), "write the sentences anew"


def test_the_rollout_in_the_readme_is_a_policys_and_correct():
    shown = README.read_text().split("```")[1]
    lines = [re.sub(r" +<-.*", "", line) for line in shown.strip().splitlines()]
    nums, target = (list(map(int, re.findall(r"\d+", part))) for part in lines[0].split("target"))
    written = pd.read_parquet(REFERENCE / "cpu/sample/rloo_sparse/0/generations.parquet")
    asked = (written["target"] == target[0]) & written["nums"].map(lambda some: list(some) == nums)
    text = "<think>\n{}\n{}\n</think>\n{}".format(*lines[1:])
    assert (written.loc[asked, "completion"] == text).any()
    assert verify_answer(text, Problem(tuple(nums), target[0])).status == "correct"


def test_the_map_has_every_notebook_once():
    linked = re.findall(r"\]\(notebooks/(\w+)\.ipynb\)", README.read_text().split("<!-- notebooks: begin")[1])
    assert sorted(linked) == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_the_table_of_all_claims_has_each_studys_answers():
    grand = pd.read_csv(FIGURES / "grand_claims.csv").set_index("id")["answer"]
    for path in FIGURES.glob("*_claims.csv"):
        said = pd.read_csv(path).set_index("id")["answer"]
        assert (grand[said.index] == said).all(), f"{path.name} is newer or older than grand_claims.csv: `make figures`"


def test_the_readme_is_short():
    text = README.read_text()
    first = text.split("\n## The five reports\n")[0]
    counted = [len(re.findall(r"\S*\w\S*", part)) for part in (first, text)]
    assert counted[0] <= 600 and counted[1] <= 2700 and text.count("\n") <= 260


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_make_target_named_exists(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text(), re.MULTILINE))
    assert named <= targets, named - targets
    assert path != README or {"study", "test", "figures"} <= named


def written(path: Path) -> str:
    """The Markdown of a document or of a notebook."""
    if path.suffix == ".md":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("path", [*DOCUMENTS, *NOTEBOOKS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path):
    """To a file of the repository and, where it names one, to a heading of it, by GitHub's rule for anchors."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", written(path), flags=re.DOTALL)
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = address.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists() and ROOT in target.parents, f"{path.name}: {address}"
        headings = re.findall(r"^#+ (.*)", written(target), re.MULTILINE) if anchor else [""]
        anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
        assert anchor in anchors, f"{path.name}: {address}"


def test_a_reference_to_a_notebook_is_a_link():
    """In documents and notebooks: neither `20_ast` in code marks nor a bare "notebook 20"."""
    for path in [*DOCUMENTS, *NOTEBOOKS]:
        text = re.sub(r"```.*?```", "", written(path), flags=re.DOTALL)
        bare = re.findall(r"`\d\d_[a-z_]+`|[Nn]otebooks? \d\d\b", re.sub(r"^#+ .*", "", text, flags=re.MULTILINE))
        assert not bare, f"{path.relative_to(ROOT)}: {bare}"


def test_the_version_is_the_same_everywhere():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation and re.search(
        r"^date-released: \d{4}-\d\d-\d\d$", citation, re.MULTILINE
    )
    assert f"version = {{{version}}}" in README.read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_named_is_there(path):
    """Whatever stands in code marks and looks like a committed file: from the root, or from the document's folder."""
    for name in re.findall(
        r"`((?:lib|data|tests|notebooks|figures|paper|models|problems|reference)/[\w/.-]+)`", path.read_text()
    ):
        if not name.startswith(("data/runs", "notebooks/70_")):  # yours
            assert (ROOT / name).exists() or (path.parent / name).exists(), f"{path.name}: {name}"


def test_the_readme_of_lib_lists_every_file():
    """An indented line names files of the package that is listed above it."""
    listed, package = set(), ""
    for line in LIB.read_text().split("```")[1].strip().splitlines():
        names = re.split(r"  +", line.strip())[0].split(", ")
        package = package if line.startswith(" ") else ""
        listed |= {package + name for name in names}
        package = names[0] if names[0].endswith("/") else package
    paths = [path.relative_to(ROOT / "lib").as_posix() for path in (ROOT / "lib").rglob("*.*")]
    files = {path for path in paths if path.endswith((".py", ".html", ".mplstyle")) and not path.startswith("runs/")}
    files -= {path for path in files if path.endswith("__init__.py")}
    assert listed == files | {"game/", "learn/", "study/", "runs/"}


def test_every_figure_stands_in_the_gallery():
    gallery = (FIGURES / "README.md").read_text()
    for path in FIGURES.glob("*.png"):
        assert f"({path.name})" in gallery, path.name


def test_the_data_card_counts_the_problems():
    manifest = pd.read_json(PROBLEMS / "manifest.json", orient="index")["rows"]
    card = (DATA / "README.md").read_text()
    for name, rows in manifest.items():
        label = {"3to4/train": "`3to4` train", "5num/train": "`5num` train"}.get(name, f"`{name.split('/')[1]}`")
        label = f"`{name.split('/')[0]}`" if name.endswith("/test") else label
        if not name.startswith(("5num/t", "5num/h", "6num")) or name == "5num/train":
            assert re.search(rf"{re.escape(label)}.*\| {rows:,} \|", card), name


@pytest.mark.parametrize(
    "name, columns", [("choices", ["study", "choice", "what", "why"]), ("tried", ["date", "tried", "seen", "instead"])]
)
def test_the_tables_of_choices_are_whole(name, columns):
    table = pd.read_csv(PAPER / f"{name}.csv", keep_default_na=False)
    assert list(table) == columns and (table != "").all(axis=None)
    if name == "choices":
        assert set(table["study"]) <= set(pd.read_csv(DATA / "methods.csv")["study"])
        assert not table.duplicated(["study", "choice"]).any()


if __name__ == "__main__":
    for document in (README, LOGS):
        document.write_text(refreshed(document.read_text()))
        print(f"{document.relative_to(ROOT)} has the numbers of figures/ and of the published runs")
