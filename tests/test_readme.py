"""The documents say what is so: the README's numbers are those of figures/, its commands, links and tree exist.

`python -m tests.test_readme` writes the numbers of figures/ into README.md; sentences stay as they are.
"""

import re

import pandas as pd
import pytest

from lib.claims import tally
from lib.files import DATA, FIGURES, PAPER, PROBLEMS, ROOT

README = ROOT / "README.md"
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "data/README.md", "figures/README.md")]
DOCUMENTS += [ROOT / name for name in ("RECORDS.md", "lib/runs/README.md", "environments/countdown/README.md")]
DOCUMENTS += [ROOT / f"data/{name}/README.md" for name in ("models", "problems", "reference")]
OWN = {"`ast`": "ast_table1", "`program`": "program_table2"}  # studies in profile cpu
OWN |= {"`trace`": "trace_searching", "`coverage`": "coverage_finals"}


def cell(ours: pd.Series, paper: pd.DataFrame) -> str:
    """An estimate in percent with its interval, and the paper's number if it has one."""
    text = "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * ours[["estimate", "low", "high"]].astype(float)))
    return f"{text} ({paper['value'].iloc[0]:.1f})" if len(paper) else text


def row(table: pd.DataFrame, method: str, metric: str) -> pd.Series:
    assert (method, metric) in table.index, (
        f"figures/ is older than the methods' names, {method} is not there: `make figures`"
    )
    return table.loc[(method, metric)]


def results(text: str) -> str:
    """The results table with the numbers of figures/: a row's method is the one of its label, in studies of another
    regime (OWN) as that study has it; of the agent's search (label, budget) one sample is the game with the best score,
    sixteen are any of those that it keeps."""
    methods = pd.read_csv(DATA / "methods.csv").set_index("label")["method"]
    tables = {}
    for name in ("grand_pass_at_k", "agent_table4", *OWN.values()):
        table = pd.read_csv(FIGURES / f"{name}.csv").query("set == 'heldout_1000'")
        tables[name] = table.set_index(["method", "metric"])
    games = tables["agent_table4"]
    paper = pd.read_csv(PAPER / "results.csv").query("set == 'test_50'")
    lines = []
    for line in text.strip().splitlines():
        study, label, *_, sentence = (part.strip() for part in line.strip("|").split("|"))
        plain, _, budget = label.rpartition(", ")
        if label in methods:
            method, ours = methods[label], tables[OWN.get(study, "grand_pass_at_k")]
            one, sixteen = (
                cell(row(ours, method, f"pass@{k}"), said(paper, study, method, f"pass@{k}")) for k in (1, 16)
            )
        elif plain in methods:
            method = f"{methods[plain]} {budget}"
            one = cell(row(games, method, "pass@1"), paper[:0])
            sixteen = cell(row(games, method, "any"), said(paper, study, method, "pass@1"))
        else:
            lines.append(line)
            continue
        lines.append(f"| {study} | {label} | {one} | {sixteen} | {sentence} |")
    return "\n".join(lines)


def said(paper: pd.DataFrame, study: str, method: str, metric: str) -> pd.DataFrame:
    """What a study's paper reports of a method: of several tables the first."""
    by = {"all": "ast"}.get(study, study.strip("`"))
    return paper[(paper["paper"] == by) & (paper["method"] == method) & (paper["metric"] == metric)]


def claims(_: str) -> str:
    """How many contrasts of each paper were answered in which way, as first posed + as posed again after results."""
    table = pd.read_csv(FIGURES / "grand_claims.csv").fillna({"changed": ""})
    counts = tally(table)
    head = [f"| claims | {' | '.join(counts.columns)} |", "|---" * (len(counts.columns) + 1) + "|"]
    rows = []
    for name in counts.index[~counts.index.str.startswith("all") & ~counts.index.str.endswith("posed again")]:
        again = counts.loc[[f"{name}, posed again"]].iloc[0] if f"{name}, posed again" in counts.index else None
        cells = counts.loc[name].map(str) if again is None else counts.loc[name].map(str) + " + " + again.map(str)
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(head + rows)


def refreshed(text: str) -> str:
    """The README with its generated parts as figures/ has them."""
    for name, write in (("claims", claims), ("results", results)):
        begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
        before, rest = text.split(begin)
        inside, behind = rest.split(end)
        text = before + begin + write(inside) + end + behind
    return text


def test_the_readme_has_the_numbers_of_the_figures():
    text = README.read_text()
    assert refreshed(text) == text, "`.venv/bin/python -m tests.test_readme` writes them into README.md"


def test_the_table_of_all_claims_has_each_studys_answers():
    grand = pd.read_csv(FIGURES / "grand_claims.csv").set_index("id")["answer"]
    for path in FIGURES.glob("*_claims.csv"):
        said = pd.read_csv(path).set_index("id")["answer"]
        assert (grand[said.index] == said).all(), f"{path.name} is newer or older than grand_claims.csv: `make figures`"


def test_the_readme_is_short():
    text = README.read_text()
    words = [word for word in text.split() if re.search(r"\w", word)]
    assert len(words) <= 1500 and text.count("\n") <= 185


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_make_target_named_exists(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text(), re.MULTILINE))
    assert named <= targets, named - targets
    assert path != README or {"study", "test", "figures"} <= named


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path):
    for address in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        file, _, heading = address.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{path.name}: {address}"
        headings = (
            [
                re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
                for line in target.read_text().splitlines()
                if line.startswith("#")
            ]
            if heading
            else [""]
        )
        assert heading in headings, f"{path.name}: {address}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_named_is_there(path):
    """Whatever stands in code marks and looks like a committed file: from the root, or from the document's folder."""
    for name in re.findall(
        r"`((?:lib|data|tests|notebooks|figures|paper|models|problems|reference)/[\w/.-]+)`", path.read_text()
    ):
        if not name.startswith(("data/runs", "notebooks/70_")):  # yours
            assert (ROOT / name).exists() or (path.parent / name).exists(), f"{path.name}: {name}"


def tree() -> tuple[list[str], dict[str, list[str]]]:
    """The README's tree: what stands in the root, and in each of its folders."""
    top, inside = [], {}
    for line in README.read_text().split("\n## The tree\n")[1].split("```")[1].strip().splitlines():
        names = [name.strip() for name in re.split(r"  +", line.strip())[0].split(",")]
        if line.startswith("  "):
            inside.setdefault(top[-1], []).extend(names)
        else:
            top += names
    return top, inside


def test_the_tree_is_the_one_that_is_there():
    top, inside = tree()
    assert all((ROOT / name).exists() for name in top)
    assert inside["notebooks/"] == [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    files = {path.name for path in (ROOT / "lib").iterdir() if path.suffix in (".py", ".html", ".mplstyle")}
    assert set(inside["lib/"]) == files - {"__init__.py"} | {"runs/"}


def test_rooms_import_only_from_rooms_above_them_in_the_tree():
    _, inside = tree()
    rooms = [name.removesuffix(".py").strip("/") for name in inside["lib/"]]
    for height, room in enumerate(rooms):
        for path in (ROOT / "lib").glob(f"{room}.py"):
            text = path.read_text()
            imported = re.findall(r"^ *from lib\.(\w+)[\w.]* import", text, re.MULTILINE)
            imported += [
                name
                for names in re.findall(r"^ *from lib import (.+)", text, re.MULTILINE)
                for name in names.split(", ")
            ]
            assert set(imported) <= set(rooms[:height]), f"{path.name}: {set(imported) - set(rooms[:height])}"


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
    README.write_text(refreshed(README.read_text()))
    print("README.md has the numbers of figures/")
