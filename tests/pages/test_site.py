"""The website of `make report`: it has one front page and no dead link."""

import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbconvert.filters import markdown2html

from lib.files import ROOT
from lib.study import site as front


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of two studies, whose notebooks were not executed."""
    studies = [
        front.Study(
            "cpu-study-ast-0.html", "20_ast", ROOT / "notebooks/20_ast.ipynb", "profile cpu"
        ),
        front.Study(
            "cpu-study-coverage-0.html",
            "70_coverage",
            ROOT / "notebooks/70_coverage.ipynb",
            "profile cpu",
        ),
    ]
    folder = tmp_path_factory.mktemp("made") / "site"
    assert front.build(studies, folder) == folder / "index.html"
    return folder


def test_the_front_page_has_findings_figure_and_map(site):
    index = (site / "index.html").read_text()
    assert index.count('<li><a href="cpu-study-') == 2
    assert '<img src="grand_front.png"' in index and (site / "grand_front.png").is_file()
    found = re.findall(r"^\d\. \*\*(.+?)\*\*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert (
        'id="what-we-found"' in index
        and found
        and all(f"<strong>{one}</strong>" in index for one in found)
    )
    assert '<a href="cpu-study-ast-0.html">20</a>' in index
    listed = (site / "metrics.html").read_text()  # the map; 21 was not executed here
    assert '<a href="cpu-study-ast-0.html">20</a>' in listed and "<td>21" in listed


def test_every_link_of_the_site_leads_to_a_page_of_it(site):
    pages = {path.name: path.read_text() for path in site.glob("*.html")}
    assert len(pages) == 5
    followed = 0
    for name, html in pages.items():
        for address in re.findall(r'<(?:a href|img src)="([^"]+)"', html):
            file, _, anchor = unquote(address).partition("#")
            assert (site / (file or name)).is_file(), f"{name}: {address}"
            assert not anchor or f'id="{anchor}"' in pages[file or name], f"{name}: {address}"
            followed += 1
    assert followed > 100


def test_a_picture_that_a_page_holds_itself_stays(tmp_path):
    page = '<img src="data:image/png;base64,AAAA" alt="figure"><img src="figures/none.png">'
    assert front.linked(page, "", tmp_path, {}) == page.replace("figures/none.png", "")


def test_a_study_leads_back_and_to_the_next(site):
    first, last = ((site / f"cpu-study-{name}-0.html").read_text() for name in ("ast", "coverage"))
    for html in (first, last):
        assert front.bar()[:-6] in html and all(label in front.bar() for label in front.BAR)
    assert (
        '<a href="cpu-study-coverage-0.html">Next analysis ›</a>' in first
        and "Analysis before" not in first
    )
    assert (
        '<a href="cpu-study-ast-0.html">‹ Analysis before</a>' in last
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
        "<math" in (site / "cpu-study-ast-0.html").read_text()
        and "<math" in (site / "metrics.html").read_text()
    )
