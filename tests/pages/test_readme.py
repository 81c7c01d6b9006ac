"""The documents are true: their numbers are those of figures/ and of published runs, and everything
they name exists.

`python -m lib.runs documents` writes these numbers into README.md and notebooks/README.md.
"""

import ast
import json
import re
import subprocess
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

from lib.files import DATA, FIGURES, PAPER, PROBLEMS, REFERENCE, ROOT
from lib.game.problem import Problem
from lib.game.verifiers import verify_answer
from lib.study import documents, judging, plots, tally
from lib.study.documents import GALLERY, LOGS, README, figures, refreshed

LIB = ROOT / "lib/README.md"
LISTED = ["git", "ls-files", "-co", "--exclude-standard", "*.md"]  # what is or could be committed
DOCUMENTS = [
    ROOT / name
    for name in subprocess.run(LISTED, cwd=ROOT, capture_output=True, text=True).stdout.split()
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STUDIES = ["ast", "program", "dense", "trace", "agent", "coverage"]


@pytest.mark.parametrize(
    "path, parts",
    [(README, 6), (LOGS, 2), (GALLERY, 13)],
    ids=["README", "notebooks", "figures"],
)
def test_a_document_has_the_numbers_of_the_figures_and_of_the_runs(path, parts):
    text = path.read_text()
    assert text.count(": begin -->") == parts
    assert refreshed(text) == text, (
        f"`.venv/bin/python -m lib.runs documents` writes them into {path}"
    )


LOGGED_BY = {
    "sft": "10",
    "rloo": "11",
    "preference": "13",
    "pairs": "12",
    "actions": "14",
    "mix": "19",
    "exact": "81",
}


@pytest.mark.parametrize("kind, notebook", LOGGED_BY.items())
def test_every_column_of_metrics_csv_is_defined(kind, notebook):
    """In the part of the page about that notebook: all that published runs have written, and
    nothing else."""
    written = {
        name
        for path in REFERENCE.glob(f"*/{kind}/*/*/metrics.csv")
        for name in pd.read_csv(path, nrows=0)
    }
    general, *sections = re.split(
        "\n### ", LOGS.read_text().split("## The columns of metrics.csv")[1]
    )[1:]
    if notebook in ("10", "11", "13"):
        part = next(part for part in sections if f"(notebook {notebook})" in part.splitlines()[0])
        rows = [
            line.split("|")[1] for line in (general + part).splitlines() if line.startswith("| `")
        ]
    else:
        rows = [line for line in sections[-1].splitlines() if line.startswith(f"| [{notebook}]")]
    defined = {name for row in rows for name in re.findall("`([^`]+)`", row)}
    assert {re.sub(r"^bucket\d+$", "bucket0", name) for name in written} - {"step"} <= defined, (
        written - defined
    )
    # the last three: of runs that are not published yet
    unseen = {"step", "bucket1", "predicted", "reward_agrees", "learning_rate"}
    unseen -= {"learning_rate"} if kind != "exact" else set()
    assert defined - unseen <= written, defined - written


def test_no_method_has_two_intervals():
    text = GALLERY.read_text()
    table = text.split("<!-- results: begin -->")[1].split("<!-- results: end -->")[0]
    methods = re.findall(r"^\| `\w+` \|([^|]*)\|", table, re.MULTILINE)
    assert len(methods) >= 10 and len(methods) == len(set(methods))


def test_what_the_table_of_reports_says_has_the_numbers_of_the_figures():
    """Its sentences are written by hand; these are all of their numbers about what we find."""
    said = README.read_text().split("## The five reports")[1].split("<!-- games")[0]
    of = documents.levels()["estimate"]
    lost = 100 * (of["sft/program", "pass@16"] - of["rloo/program", "pass@16"])
    assert f"{lost:.0f}" == "10" and "costs ten points at sixteen tries" in said
    searches = figures("agent_legal_searches", "set", "method", "metric").loc["heldout_1000"]
    illegal = 100 * searches.loc[("sft/pick_legal 16/16", "rejected"), "estimate"]
    assert f"illegal tags: ours {illegal:.1f}%" in said
    tries = figures("agent_legal_tries", "set", "method", "k").loc["heldout_1000"]
    games = tries.loc[("sft/pick_legal 1/1 sampled", 16)]
    answers = tries.loc[("rloo/cov_pass4", 16)]
    assert abs(games["estimate"] - answers["estimate"]) < 0.02
    assert round(answers["tokens"] / games["tokens"]) == 8
    assert "about as much as sixteen answers, for an eighth of the tokens" in said
    once = searches["estimate"].xs("pass@1", level="metric")
    assert once["sft/pick_legal 16/16"] < once["rloo/sparse"] and "one game solves less" in said
    contrasts = figures("grand_claims", "id")
    level = contrasts.loc[["ast-1", "ast-2"]]
    assert (level["low"] < 0).all() and (level["high"] > 0).all()
    assert "No difference shown after short training" in said
    behind = contrasts.loc["ast-34"]
    assert behind["low"] > 0 and f"{100 * behind['estimate']:.0f}" == "1"
    assert "a point behind after long" in said
    acted = figures("grand_treatment", "method", "baseline")["acted"]
    assert acted["rloo/ast_tau2", "rloo/sparse"] and acted["rloo/program", "rloo/program_target"]
    assert not acted["rloo/dense", "rloo/sparse"] and acted["rloo/dense_count", "rloo/sparse"]
    fewer = figures("grand_claims", "id").loc["dense-63"]
    assert (
        fewer["high"] < 0
        and fewer["seeds"] == 5
        and "five runs" in said
        and "finds fewer solutions" in said
    )
    assert not acted["rloo/curriculum", "rloo/sparse"]
    assert "bounded form and bandit did not act" in said
    rewards = acted[acted.index.get_level_values("method").str.startswith("rloo/trace_")].dropna()
    rewards = rewards.drop("rloo/trace_outcome", level="method")
    assert (len(rewards), (~rewards.astype(bool)).sum()) == (9, 3)
    assert "three of nine methods did not act, nor any Table 6 design tried" in said
    copied = figures("grand_treatment", "metric").loc["first state right"].set_index("method")
    designs = copied["acted"].filter(like="sft/trace_").drop("sft/trace_provenance").dropna()
    assert not designs.astype(bool).any()
    start = judging.record(REFERENCE / "cpu/sft/trace/0")["parameters"]
    assert f"{start['demonstrations']:,} worked searches" in said
    teachers = "preference/(agent|pick)_(binary|hard|soft)"
    preferred = acted[acted.index.get_level_values("method").str.fullmatch(teachers)]
    assert not preferred.dropna().astype(bool).any() and "its Action DPO did not act" in said
    search = figures("trace_differences", "set", "baseline", "metric").loc["heldout_1000"]
    gains = search.loc["rloo/trace_outcome"].loc[["pass@1", "pass@16"], "low"]
    assert len(gains) >= 10 and (gains <= 0).all() and "shows no gain" in said


def test_the_line_below_the_front_table_has_the_numbers_of_the_runs():
    """The limit of a text, how many of the texts without an answer reach it, and how often SFT is
    right if its check says yes."""
    said = " ".join(README.read_text().split())
    limits = set()
    for method in ("rloo_sparse", "rloo_grpo", "preference_ipo", "rloo_cov_pass4"):
        folder = REFERENCE / f"cpu/sample/{method}/0"
        limits.add(judging.record(folder)["parameters"]["max_tokens"])
        judged = judging.samples([folder], ["heldout_1000"])
        lengths = judged.loc[judged["status"] == "missing", "tokens"]
        assert (lengths == max(limits)).mean() > 0.9, method
    assert f"*No answer*: mostly cut at {limits.pop()} tokens" in said and not limits
    right = figures("grand_restarts", "set", "method", "metric")["estimate"]
    never = right["heldout_1000", "sft/free", "never yes"]
    right = right["heldout_1000", "sft/free", "precision"]
    check = f"says yes ({100 * right:.0f}% right; never for {100 * never:.0f}% of problems"
    assert check in said


def test_every_word_that_the_readme_counts_is_explained():
    explained = README.read_text().split("### The claims")[1].split("\n## ")[0]
    for name in (*tally.VERDICTS, "untested"):
        assert f"**{name}**" in explained, name
    assert len(re.findall(r"\S*\w\S*", explained)) <= 150


def test_the_rollout_in_the_readme_is_a_policys_and_correct():
    blocks = README.read_text().split("```")
    shown = next(block for block in blocks if block.startswith("\nnumbers "))
    lines = [re.sub(r" +<-.*", "", line) for line in shown.strip().splitlines()]
    nums, target = (list(map(int, re.findall(r"\d+", part))) for part in lines[0].split("target"))
    written = pd.read_parquet(REFERENCE / "cpu/sample/rloo_sparse/0/generations.parquet")
    asked = (written["target"] == target[0]) & written["nums"].map(lambda some: list(some) == nums)
    text = "<think>\n{}\n{}\n</think>\n{}".format(*lines[1:])
    assert (written.loc[asked, "completion"] == text).any()
    assert verify_answer(text, Problem(tuple(nums), target[0])).status == "correct"


def test_the_map_has_every_notebook_once():
    listed = LOGS.read_text().split("<!-- notebooks: begin")[1]
    linked = re.findall(r"\]\((\w+)\.ipynb\)", listed)
    assert sorted(linked) == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_the_table_of_all_claims_has_each_studys_answers():
    grand = pd.read_csv(FIGURES / "grand_claims.csv").set_index("id")["alone"]
    for path in FIGURES.glob("*_claims.csv"):
        said = pd.read_csv(path).set_index("id")["alone"]
        assert (grand[said.index] == said).all(), (
            f"{path.name} is newer or older than grand_claims.csv: `make figures`"
        )


def test_the_first_screen_links_the_website():
    first = README.read_text().split("\n## ")[0]
    assert f"[The website]({documents.PAGES})" in first
    # a published address, or one that GitHub resolves
    assert documents.PAGES.startswith(("https://", "../../"))


def test_the_readme_is_short():
    """Its words without code and marks of generated parts: five minutes, and two of them for what
    was found."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", README.read_text(), flags=re.DOTALL)
    first = text.split("\n## Try it\n")[0]
    counted = [len(re.findall(r"\S*\w\S*", part)) for part in (first, text)]
    assert counted[0] <= 500 and counted[1] <= 1300


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


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, *NOTEBOOKS], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_every_link_leads_somewhere(path):
    """To a file of the repository and, where it names one, to a heading of it, by GitHub's rule for
    anchors."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", written(path), flags=re.DOTALL)
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        if address == documents.PAGES:  # of no file
            continue
        file, _, anchor = address.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists() and ROOT in target.parents, f"{path.name}: {address}"
        headings = re.findall(r"^#+ (.*)", written(target), re.MULTILINE) if anchor else [""]
        anchors = [
            re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
        ]
        assert anchor in anchors, f"{path.name}: {address}"


def test_a_reference_to_a_notebook_is_a_link():
    """In documents and notebooks: neither `20_ast` in code marks nor a bare "notebook 20"."""
    for path in [*DOCUMENTS, *NOTEBOOKS]:
        text = re.sub(r"```.*?```", "", written(path), flags=re.DOTALL)
        bare = re.findall(
            r"`\d\d_[a-z_]+`|[Nn]otebooks? \d\d\b", re.sub(r"^#+ .*", "", text, flags=re.MULTILINE)
        )
        assert not bare, f"{path.relative_to(ROOT)}: {bare}"


def test_the_version_is_the_same_everywhere():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[
        1
    ]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation and re.search(
        r"^date-released: \d{4}-\d\d-\d\d$", citation, re.MULTILINE
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_named_is_there(path):
    """Whatever stands in code marks and looks like a committed file: from the root, or from the
    document's folder."""
    for name in re.findall(
        r"`((?:lib|data|tests|notebooks|figures|paper|models|problems|reference)/[\w/.-]+)`",
        path.read_text(),
    ):
        if not name.startswith(("data/runs", "notebooks/70_")):  # yours
            assert (ROOT / name).exists() or (path.parent / name).exists(), f"{path.name}: {name}"


def test_the_readme_of_lib_lists_every_file():
    """An indented line names files of the package that is listed above it."""
    listed = set()
    package = ""
    for line in LIB.read_text().split("```")[1].strip().splitlines():
        names = re.split(r"  +", line.strip())[0].split(", ")
        package = package if line.startswith(" ") else ""
        listed |= {package + name for name in names}
        package = names[0] if names[0].endswith("/") else package
    paths = [path.relative_to(ROOT / "lib").as_posix() for path in (ROOT / "lib").rglob("*.*")]
    files = {path for path in paths if path.endswith((".py", ".html", ".mplstyle"))}
    files -= {path for path in files if path.endswith("__init__.py")}
    assert listed == files | {"game/", "learn/", "study/", "runs/"}


PICTURES = sorted(FIGURES.glob("*.png"))
ROW = re.compile(
    r'^\| \[<img src="(\w+\.png)" .* alt="(.+?)">\]\(\1\) \| ([^|]+) \| \[\d\d\]\(.+\) \|$',
    re.MULTILINE,
)


def test_the_gallery_has_every_figure_once():
    listed = [row[0] for row in ROW.findall(GALLERY.read_text())]
    assert sorted(listed) == [path.name for path in PICTURES]


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_the_sentence_of_a_figure_is_its_title(path):
    """At most ten words and no full stop."""
    title = plots.title_of(path)
    assert title, "draw it with plots.finding"
    sentences = {name: (alt, sentence) for name, alt, sentence in ROW.findall(GALLERY.read_text())}
    alt, sentence = sentences[path.name]
    assert sentence == title and unescape(alt) == title
    assert len(title.split()) <= 10 and not title.endswith("."), title


def test_a_picture_of_the_readme_has_its_title():
    shown = re.findall(r"!\[(.*?)\]\((figures/\w+\.png)\)", README.read_text())
    assert len(shown) >= 2
    for alt, path in shown:
        assert alt == (plots.title_of(ROOT / path) or alt), path


def test_the_gallery_follows_the_pictures(tmp_path, monkeypatch):
    """A new figure comes last, a figure that is gone leaves, and one without a title is refused."""
    monkeypatch.setattr(documents, "FIGURES", tmp_path)
    for name, title in [
        ("ast_new", 'Says "a" < b'),
        ("ast_old", "Says c"),
        ("astray", "Of no study"),
    ]:
        fig, _ = plots.figure(title=title)
        plots.save(fig, tmp_path / name)
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    notebook = tmp_path / "notebooks/20_any.ipynb"
    notebook.parent.mkdir()
    notebook.write_text(json.dumps('plots.save(fig, run / "ast_new"), run / "ast_old"'))
    text = "\n".join(
        f'| [<img src="{name}.png" width="320" alt="{name}?">]({name}.png) | {name}? |'
        for name in ("ast_gone", "ast_old")
    )
    made = documents.gallery("ast", text)
    assert made.count("[20](../notebooks/20_any.ipynb)") == 2
    rows = ROW.findall(made)
    assert rows == [
        ("ast_old.png", "Says c", "Says c"),
        ("ast_new.png", "Says &quot;a&quot; &lt; b", 'Says "a" < b'),
    ]
    notebook.write_text("{}")
    with pytest.raises(documents.DocumentError, match="no notebook draws figures/ast_old.png"):
        documents.gallery("ast", text)
    fig, _ = plots.figure()
    plots.save(fig, tmp_path / "ast_old")
    with pytest.raises(documents.DocumentError, match="ast_old.png has no title"):
        documents.gallery("ast", text)


def test_the_data_card_counts_the_problems():
    manifest = pd.read_json(PROBLEMS / "manifest.json", orient="index")["rows"]
    card = (DATA / "README.md").read_text()
    for name, rows in manifest.items():
        label = (
            f"`{name.split('/')[0]}` train"
            if name.endswith("/train")
            else f"`{name.split('/')[1]}`"
        )
        label = f"`{name.split('/')[0]}`" if name.endswith("/test") else label
        if not name.startswith(("5num/t", "5num/h", "6num")) or name == "5num/train":
            assert re.search(rf"{re.escape(label)}.*\| {rows:,} \|", card), name


@pytest.mark.parametrize(
    "name, columns",
    [
        ("choices", ["study", "choice", "what", "why"]),
        ("tried", ["date", "tried", "seen", "instead"]),
    ],
)
def test_the_tables_of_choices_are_whole(name, columns):
    table = pd.read_csv(PAPER / f"{name}.csv", keep_default_na=False)
    assert list(table) == columns and (table != "").all(axis=None)
    if name == "choices":
        assert set(table["study"]) <= set(pd.read_csv(DATA / "methods.csv")["study"])
        assert not table.duplicated(["study", "choice"]).any()


def test_a_sentence_whose_answer_has_changed_is_named(monkeypatch):
    def changed(name, *index):
        table = figures(name, *index)
        return table.assign(verdict="open") if name == "grand_claims" else table

    monkeypatch.setattr(documents, "figures", changed)
    with pytest.raises(
        documents.DocumentError,
        match=r"write the sentence on the best of four again: .*coverage-17",
    ):
        documents.findings("")


# on a fresh clone only the Python of .venv has the packages
BARE = re.compile(r"(?<!\.venv/bin/)python -m (lib|tests)\b")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_shows_commands_as_they_can_be_typed(path):
    assert not BARE.search(path.read_text())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "lib").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_message_shows_commands_as_they_can_be_typed(path):
    """Docstrings speak to developers, who know which Python they use."""
    tree = ast.parse(path.read_text())
    docstrings = set()
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstrings.add(ast.get_docstring(node, clean=False))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
        if isinstance(node, ast.JoinedStr):
            texts.append(ast.unparse(node))
    for text in texts:
        assert text in docstrings or not BARE.search(text)
