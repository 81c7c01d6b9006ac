"""The website of `make report`: it has one front page and no dead link."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from lib.files import ROOT
from lib.study import site as front


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of two studies, whose notebooks were not executed."""
    studies = [
        front.Study("cpu-study-ast-0.html", "20_ast", ROOT / "notebooks/20_ast.ipynb", "profile cpu"),
        front.Study("cpu-study-coverage-0.html", "70_coverage", ROOT / "notebooks/70_coverage.ipynb", "profile cpu"),
    ]
    folder = tmp_path_factory.mktemp("made") / "site"
    assert front.build(studies, folder) == folder / "index.html"
    return folder


def test_the_front_page_has_findings_figure_and_map(site):
    index = (site / "index.html").read_text()
    assert index.count('<li><a href="cpu-study-') == 2
    assert '<img src="grand_front.png"' in index and (site / "grand_front.png").is_file()
    found = re.findall(r"^\d\. \*\*(.+?)\*\*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert 'id="what-we-found"' in index and found and all(f"<strong>{one}</strong>" in index for one in found)
    assert '<a href="cpu-study-ast-0.html">20</a>' in index  # in the map; 21 was not executed here
    assert "<td>21" in index


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
