"""The website of `make report`: one front page, and no link that leads nowhere."""

import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbconvert import HTMLExporter

from lib.files import ROOT
from lib.study import site as front

STUDIES = {"20_ast": "cpu-study-ast-0.html", "70_coverage": "cpu-study-coverage-0.html"}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """What `python -m lib.runs report` leaves, of two studies, and the front page over it."""
    folder, exporter = tmp_path_factory.mktemp("site"), HTMLExporter(mathjax_url="", require_js_url="")
    for stem, page in STUDIES.items():
        notebook = nbformat.read(ROOT / f"notebooks/{stem}.ipynb", 4)
        (folder / page).write_text(exporter.from_notebook_node(notebook)[0])
    listed = [f'<li><a href="{page}">{stem}</a> (profile cpu)' for stem, page in STUDIES.items()]
    (folder / "index.html").write_text("\n".join(["<h1>Countdown study</h1>", "<ul>", *listed, "</ul></html>"]))
    front.build(folder)
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
