"""The website of `make report`: it has one front page and no dead link, and its explorer shows what
published policies wrote. `tests/pages/test_browser.py` opens it."""

import io
import json
import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pandas as pd
import pytest
from nbconvert.filters import markdown2html

from lib.files import FIGURES, REFERENCE, ROOT
from lib.study import documents, explorer, standalone
from lib.study import site as front


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of two studies, whose notebooks were not executed, with rollouts on three
    problems."""
    studies = [
        front.Study(
            "cpu-study-near-0.html",
            "20_ast",
            ROOT / "notebooks/20_ast.ipynb",
            "profile cpu",
            FIGURES / "ast_fig2_pass_at_k.png",
        ),
        front.Study(
            "cpu-study-exact-0.html",
            "80_exact",
            ROOT / "notebooks/80_exact.ipynb",
            "profile cpu",
        ),
    ]
    folder = tmp_path_factory.mktemp("made") / "site"
    assert front.build(studies, folder, problems=3) == folder / "index.html"
    return folder


def test_the_front_page_has_findings_figure_and_map(site):
    index = (site / "index.html").read_text()
    listed = index.split('<h2 id="the-studies">')[1].split("</table>")[0]
    assert listed.index("20 · ") < listed.index("80 · ")  # in the order of the notebooks
    assert len(re.findall("<small>profile cpu", listed)) == 2
    assert '<img src="cpu-study-near-0.png"' in listed and "cpu-study-exact-0.png" not in listed
    assert (site / "cpu-study-near-0.png").read_bytes() == (
        FIGURES / "ast_fig2_pass_at_k.png"
    ).read_bytes()
    assert index.index("the-studies") < index.index('id="ro-cards"') < index.index('id="try-it"')
    assert '<img src="grand_front.png"' in index and (site / "grand_front.png").is_file()
    found = re.findall(r"^\d\. \*\*(.+?)\*\*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert (
        'id="what-we-found"' in index
        and found
        and all(f"<strong>{one}</strong>" in index for one in found)
    )
    assert '<a href="cpu-study-near-0.html">20</a>' in index
    listed = (site / "metrics.html").read_text()  # the map; 21 was not executed here
    assert '<a href="cpu-study-near-0.html">20</a>' in listed and "<td>21" in listed


STUDY_NOTEBOOKS = [
    path
    for path in sorted((ROOT / "notebooks").glob("[2-9]*.ipynb"))
    if path.stem[:2] not in ("62", "63", "81", "82", "91")
]


@pytest.mark.parametrize("path", STUDY_NOTEBOOKS, ids=lambda path: path.stem)
def test_a_study_begins_with_what_it_learned(path):
    opening, *others = nbformat.read(path, 4).cells
    assert opening.cell_type == "markdown" and others
    sentence = front.finding(opening.source)
    assert len(sentence.split()) >= 4 and "\n" not in sentence


def test_a_finding_may_be_the_first_entry_of_a_list():
    assert front.finding("# A\n\n**What we learned.** It\ngains 1.5 points. More.") == (
        "It gains 1.5 points."
    )
    assert front.finding("**What we learned.**\n\n* It helps. Much.\n* So.") == "It helps."
    assert front.finding("# A\n\n**Question.** Why?") == ""


def test_a_study_is_listed_with_what_it_learned(site):
    """Its own page says it before any code."""
    index = (site / "index.html").read_text()
    for name, page in (("20_ast", "cpu-study-near-0"), ("80_exact", "cpu-study-exact-0")):
        sentence = front.finding(nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells[0].source)
        html = str(markdown2html(sentence)).strip()
        assert html.removeprefix("<p>").removesuffix("</p>") in index
        body = (site / f"{page}.html").read_text().split("<body")[1]
        assert body.index("What we learned.") < body.index('<details class="code">')


def test_the_code_of_a_study_is_folded_away(site):
    page = (site / "cpu-study-near-0.html").read_text()
    cells = nbformat.read(ROOT / "notebooks/20_ast.ipynb", 4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert page.count('<details class="code">') == len(code)
    assert page.count("</details>") >= len(code)
    assert "<title>20 · " in page


def rollouts(folder: Path) -> dict:
    text = (folder / "rollouts.js").read_text()
    assert text.isascii() and text.startswith("const rollouts = ") and text.endswith(";\n")
    return json.loads(text.removeprefix("const rollouts = ").removesuffix(";\n"))


def test_the_explorer_of_the_site_has_the_first_completions_of_each_policy(site):
    """As CSV they are the rows of the published samples, in their order."""
    made = rollouts(site)
    assert len(made["problems"]) == 3
    for place, name in enumerate(documents.FRONT):
        run = f"sample/{name.replace('/', '_')}/0"
        written = pd.read_parquet(REFERENCE / "cpu" / run / "generations.parquet")
        written = written[(written["set"] == "heldout_1000") & (written["problem"] < 3)]
        lines = [line for problem in made["problems"] for line in problem["lines"][place]]
        table = pd.read_csv(io.StringIO(made["columns"] + "".join(lines)))
        first = written.groupby("problem").head(standalone.DRAWS)
        assert (table["run"] == run).all()
        assert table["completion"].tolist() == first["completion"].tolist()
        right = table["count"] * (table["status"] == "correct")
        assert right.sum() <= sum(problem["right"][place] for problem in made["problems"])
        cards = [card for problem in made["problems"] for card in problem["cards"][place]]
        assert len(cards) == len(first)
        assert all(f"<small>{run}</small>" in card for card in cards)


def test_the_explorer_of_the_site_counts_what_is_right(site):
    """Of all sixteen completions, not of those that it shows."""
    name = "sft/free"
    place = [*documents.FRONT].index(name)
    run = REFERENCE / "cpu/sample/sft_free/0"
    table = explorer.load({"one": run})
    table = table[(table["set"] == "heldout_1000") & table["correct"]]
    sums = table.groupby("problem")["count"].sum().reindex(range(3), fill_value=0)
    assert [problem["right"][place] for problem in rollouts(site)["problems"]] == sums.tolist()


def test_a_policy_without_published_samples_is_left_out(tmp_path):
    markup = standalone.write(["rloo/none", "sft/free"], 1, tmp_path)
    assert markup.count('<input type="checkbox" value=') == 1
    assert len(rollouts(tmp_path)["problems"][0]["cards"]) == 1
    assert standalone.write(["rloo/none"], 1, tmp_path) == ""


def test_every_link_of_the_site_leads_to_a_page_of_it(site):
    pages = {path.name: path.read_text() for path in site.glob("*.html")}
    assert len(pages) == 5
    followed = 0
    for name, html in pages.items():
        for address in re.findall(r'<(?:a href|img src|script src)="([^"]+)"', html):
            file, _, anchor = unquote(address).partition("#")
            assert (site / (file or name)).is_file(), f"{name}: {address}"
            assert not anchor or f'id="{anchor}"' in pages[file or name], f"{name}: {address}"
            followed += 1
    assert followed > 100


def test_a_picture_that_a_page_holds_itself_stays(tmp_path):
    page = '<img src="data:image/png;base64,AAAA" alt="figure"><img src="figures/none.png">'
    assert front.linked(page, "", tmp_path, {}) == page.replace("figures/none.png", "")


def test_a_study_leads_back_and_to_the_next(site):
    first, last = ((site / f"cpu-study-{name}-0.html").read_text() for name in ("near", "exact"))
    for html in (first, last):
        assert front.bar()[:-6] in html and all(label in front.bar() for label in front.BAR)
    assert (
        '<a href="cpu-study-exact-0.html">Next analysis ›</a>' in first
        and "Analysis before" not in first
    )
    assert (
        '<a href="cpu-study-near-0.html">‹ Analysis before</a>' in last
        and "Next analysis" not in last
    )


TEX = re.compile(r"\$\$|\\(begin|frac|log|pi|lambda|text|tau|binom|sum)\b")


@pytest.mark.parametrize(
    "notebook", sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")), ids=lambda path: path.stem
)
def test_no_formula_of_a_notebook_stays_tex(notebook):
    """Every formula becomes MathML, which a browser draws without a script."""
    cells = [
        cell["source"]
        for cell in nbformat.read(notebook, 4).cells
        if cell["cell_type"] == "markdown"
    ]
    html = front.formulas(str(markdown2html("\n\n".join(cells))))
    plain = re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.DOTALL)
    assert not TEX.search(plain), TEX.search(plain)


def test_formulas_are_mathml_and_dollars_elsewhere_stay(site):
    html = front.formulas(
        "<p>$e^{-d/\\tau}$ and $$R = 1 &lt; 2$$ <code>$a$</code> for $5 and $6</p>"
    )
    assert html.count("<math") == 2 and 'display="block"' in html and "&#x0003C;" in html
    assert "<code>$a$</code> for $5 and $6" in html
    for path in site.glob("*.html"):
        plain = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert not TEX.search(plain), path.name
    assert (
        "<math" in (site / "cpu-study-near-0.html").read_text()
        and "<math" in (site / "metrics.html").read_text()
    )
