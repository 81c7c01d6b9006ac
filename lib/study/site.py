"""The website of `make report`: a front page with findings, studies and an explorer of rollouts,
all figures on a page of their own, and a page for each executed study.

The site is made of README.md, figures/README.md, notebooks/README.md and the executed studies. A
study shows its text and its results, and its code when a reader opens it. A
link between files of the repository leads to another page of the site, or becomes plain text if its
target has no page. No page loads a script from the web, so that formulas are MathML, which browsers
draw themselves."""

import posixpath
import re
import shutil
from collections.abc import Iterable
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple

import nbformat
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html

from lib.files import ROOT
from lib.study import documents, plots, standalone

DOCUMENTS = {
    "README.md": "index.html",
    "figures/README.md": "figures.html",
    "notebooks/README.md": "metrics.html",
}
BAR = ("First page", "All figures", "My run does not learn")
TRY = "## Try it"  # the heading of README.md before which the site shows its studies and rollouts
PROBLEMS = 100  # in the explorer
STYLE = """
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
p, li { max-width: 48rem } td > a > img { min-width: 15rem } small { color: #777 }
body { font: 1rem/1.5 system-ui, sans-serif; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.9rem }
th, td { border-bottom: 1px solid #ddd; padding: 0.3rem 0.6rem }
th, td { text-align: left; vertical-align: top }
pre { background: #f6f6f6; padding: 0.8rem; white-space: pre-wrap } img { max-width: 100% }
nav a { margin-right: 1.5rem }
"""
STUDY_STYLE = """
body > nav, body > main { max-width: 66rem; margin: auto }
body > nav { padding: 1rem; font: 1rem/1.5 system-ui, sans-serif }
body > nav a { margin-right: 1.5rem }
.jp-Cell .highlight pre { white-space: pre-wrap; overflow-wrap: anywhere }
details.code > summary { color: #777; font: 0.8rem/1.5 system-ui, sans-serif; cursor: pointer }
"""
# A study's code is folded away
STUDY_TEMPLATE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block input_group -%}
<details class="code"><summary>code</summary>{{ super() }}</details>
{%- endblock -%}
"""
# Formulas between dollars, in a paragraph of their own or in a line; a dollar before a digit behind
# it is money
_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?=\S)((?:[^$\n]|\n(?!\n))+?)(?<=\S)\$(?!\w)", re.DOTALL
)
# the first sentence of what a study learned, which may be the first entry of a list
_FINDING = re.compile(r"\*\*What we learned\.\*\*\s+(?:[*-] |\d\. )?(.*?[.?!])(?=\s|$)", re.DOTALL)
# what holds no formula
_LITERAL = re.compile(r"(<(pre|code|script|style)\b.*?</\2>|<[^>]+>)", re.DOTALL)


class Study(NamedTuple):
    """An executed study, as the front page lists it."""

    page: str  # the file's name on the site
    notebook: str  # its name, without folder and ending
    executed: Path  # the notebook with its outputs
    about: str  # what was executed, shown small
    picture: Path | None = None  # its first figure


def slug(heading: str) -> str:
    """The anchor of a heading as GitHub makes it, from text or HTML: no tags or punctuation, lower
    case, and hyphens for spaces."""
    text = re.sub(r"<[^>]+>|&\w+;", "", heading)
    return re.sub(r"[^\w -]", "", text).strip().lower().replace(" ", "-")


def linked(html: str, folder: str, site: Path, pages: dict[str, str]) -> str:
    """The HTML of a document of the repository's folder `folder`, with its links redirected to
    `pages` and its pictures copied to the site. `pages`: by the path of a file in the repository,
    the name of its page."""

    def target(address: str) -> str:
        path, separator, anchor = address.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path)) if path else ""
        if path.endswith(".png") and (ROOT / path).is_file():
            shutil.copy(ROOT / path, site)
            return Path(path).name
        return pages.get(path, "") + separator + anchor if not path or path in pages else ""

    def link(match: re.Match) -> str:
        address = target(match[1])
        return f'<a href="{address}">{match[2]}</a>' if address else match[2]

    html = re.sub(
        r'<img src="(?!data:)([^"]+)"', lambda match: f'<img src="{target(match[1])}"', html
    )
    return re.sub(r'<a href="((?!https?:)[^"]*)">(.*?)</a>', link, html, flags=re.DOTALL)


def formulas(html: str) -> str:
    """The HTML with its formulas in TeX turned into MathML. Code, scripts and tags stay as they
    are."""
    pieces = []
    at = 0
    for literal in _LITERAL.finditer(html):
        pieces += [_FORMULA.sub(_mathml, html[at : literal.start()]), literal[0]]
        at = literal.end()
    return "".join([*pieces, _FORMULA.sub(_mathml, html[at:])])


def _mathml(formula: re.Match) -> str:
    block, inline = formula.groups()
    return convert(unescape(block or inline), display="block" if block else "inline")


def bar(*further: tuple[str, str]) -> str:
    """The links at the head of every page: those of BAR, and `further` ones, each a label and a
    page."""
    links = [*zip(BAR, DOCUMENTS.values(), strict=True), *further]
    return "<nav>" + "".join(f'<a href="{name}">{label}</a>' for label, name in links) + "</nav>"


def page(text: str, folder: str, site: Path, pages: dict[str, str]) -> str:
    """The page of a Markdown text, with the anchors that GitHub would give its headings. Arguments
    as in `linked`."""
    html = re.sub(r"<a class=\"anchor-link\".*?</a>", "", str(markdown2html(text)))
    html = re.sub(
        r"<h(\d)[^>]*>(.*?)</h\1>",
        lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h{m[1]}>',
        html,
        flags=re.DOTALL,
    )
    title = re.sub(r"^#+ ", "", text.splitlines()[0])
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{STYLE}</style>"
    )
    return f"{head}\n{bar()}\n{formulas(linked(html, folder, site, pages))}</html>\n"


def study_page(html: str, *further: tuple[str, str]) -> str:
    """The page of an executed study in nbconvert's HTML, with the bar of all pages and `further`
    links."""
    html = formulas(html).replace("</head>", f"<style>{STUDY_STYLE}</style></head>", 1)
    return re.sub(r"<body[^>]*>", lambda body: body[0] + bar(*further), html, count=1)


def build(studies: Iterable[Study], site: Path, problems: int = PROBLEMS) -> Path:
    """Write the executed studies and the documents into the folder `site`, which is deleted first.
    The front page has a list of the studies and an explorer of rollouts on so many problems.
    Returns the path of the front page."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    studies = sorted(studies, key=lambda study: (study.notebook, study.page))
    pages = {f"notebooks/{study.notebook}.ipynb": study.page for study in reversed(studies)}
    pages |= DOCUMENTS
    for study in studies:
        pages |= {name: name for name in (study.page, _picture(study))}
    rows = ["## The studies", "", "| | |", "|---|---|"]
    for study, before, after in zip(studies, [None, *studies], [*studies[1:], None], strict=False):
        notebook = nbformat.read(study.executed, 4)
        neighbours = (("‹ Analysis before", before), ("Next analysis ›", after))
        further = [(label, neighbour.page) for label, neighbour in neighbours if neighbour]
        html = linked(_exported(notebook), "notebooks", site, pages)
        (site / study.page).write_text(study_page(html, *further))
        if study.picture:
            shutil.copy(study.picture, site / _picture(study))
        rows.append(_listed(study, notebook))
    listing = "\n".join(rows)
    for source, name in DOCUMENTS.items():
        # only README.md, the front page, has this heading
        text = (ROOT / source).read_text().replace(TRY, f"{listing}\n\n{TRY}")
        (site / name).write_text(page(text, posixpath.dirname(source), site, pages))
    index = site / DOCUMENTS["README.md"]
    explorer = standalone.write([*documents.FRONT], problems, site)
    heading = f'<h2 id="{slug(TRY)}">'
    index.write_text(index.read_text().replace(heading, f"{explorer}\n{heading}", 1))
    return index


def finding(opening: str) -> str:
    """The first sentence of what a study learned, from the Markdown of its first cell; "" if it
    says nothing."""
    found = _FINDING.search(opening)
    return " ".join(found[1].split()) if found else ""


def _title(notebook: nbformat.NotebookNode) -> str:
    return notebook.cells[0].source.splitlines()[0].lstrip("# ")


def _exported(notebook: nbformat.NotebookNode) -> str:
    """nbconvert's HTML of an executed study, its code folded away."""
    # a page loads no scripts from the web
    script_urls = dict.fromkeys(("mathjax_url", "require_js_url"), "")
    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True, **script_urls)
    exporter.raw_template = STUDY_TEMPLATE
    resources = {"metadata": {"name": _title(notebook)}}
    return exporter.from_notebook_node(notebook, resources)[0]


def _picture(study: Study) -> str:
    """The name of a study's picture on the site."""
    return f"{Path(study.page).stem}.png"


def _listed(study: Study, notebook: nbformat.NotebookNode) -> str:
    """A study's row on the front page: its first figure, its title and what it found."""
    picture = ""
    if study.picture:
        alt = escape(plots.title_of(study.picture))
        picture = f'[<img src="{_picture(study)}" width="280" alt="{alt}">]({study.page})'
    sentence = finding(notebook.cells[0].source)
    about = f"<small>{study.about}</small>"
    return f"| {picture} | [{_title(notebook)}]({study.page})<br>{sentence}<br>{about} |"
