"""The front page of `make report`: findings, results and the map of notebooks, with all figures on a page of their own.

`python -m lib.study.site` writes it over the list of executed studies in figures/site/index.html, from README.md,
figures/README.md and notebooks/README.md. A link leads to another page of the site, or becomes plain text.
"""

import posixpath
import re
import shutil
from pathlib import Path

from nbconvert.filters import markdown2html

from lib.files import FIGURES, ROOT, shown

DOCUMENTS = {"README.md": "index.html", "figures/README.md": "figures.html", "notebooks/README.md": "metrics.html"}
BAR = ("Findings", "All figures", "My run does not learn")
STYLE = """
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.9rem }
th, td { border-bottom: 1px solid #ddd; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top }
pre { background: #f6f6f6; padding: 0.8rem; overflow-x: auto } img { max-width: 100% } nav a { margin-right: 1.5rem }
"""


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it: text or HTML without its marks, in lower case, joined by hyphens."""
    text = re.sub(r"<[^>]+>|&\w+;", "", heading)
    return re.sub(r"[^\w -]", "", text).strip().lower().replace(" ", "-")


def studies(site: Path) -> dict[str, str]:
    """The executed page of each notebook that has one, by the notebook's path from the root."""
    pages = {}
    for page in sorted(site.glob("*-study-*.html")):
        number = re.search(r"<h1[^>]*>(\d\d) · ", page.read_text())
        for notebook in ROOT.glob(f"notebooks/{number[1]}_*.ipynb") if number else []:
            pages.setdefault(notebook.relative_to(ROOT).as_posix(), page.name)
    return pages


def linked(html: str, folder: str, site: Path, pages: dict[str, str]) -> str:
    """HTML of a text that lies in `folder`, with its links led to `pages` and its pictures copied to the site."""

    def target(address: str) -> str:
        path, mark, anchor = address.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path)) if path else ""
        if path.endswith(".png") and (ROOT / path).is_file():
            shutil.copy(ROOT / path, site)
            return Path(path).name
        if not path or path in pages:
            return pages.get(path, "") + mark + anchor
        return address if address in pages.values() else ""

    def link(match: re.Match) -> str:
        address = target(match[1])
        return f'<a href="{address}">{match[2]}</a>' if address else match[2]

    html = re.sub(r'<img src="([^"]+)"', lambda match: f'<img src="{target(match[1])}"', html)
    return re.sub(r'<a href="((?!https?:)[^"]*)">(.*?)</a>', link, html, flags=re.DOTALL)


def page(text: str, folder: str, site: Path, pages: dict[str, str]) -> str:
    """A Markdown text as a page, with the anchors of GitHub."""
    html = re.sub(r"<a class=\"anchor-link\".*?</a>", "", str(markdown2html(text)))
    html = re.sub(
        r"<h(\d)[^>]*>(.*?)</h\1>", lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h{m[1]}>', html, flags=re.DOTALL
    )
    title = re.sub(r"^#+ ", "", text.splitlines()[0])
    bar = "".join(f'<a href="{name}">{label}</a>' for label, name in zip(BAR, DOCUMENTS.values(), strict=True))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"{head}\n<nav>{bar}</nav>\n{linked(html, folder, site, pages)}</html>\n"


def build(site: Path = FIGURES / "site") -> Path:
    """Write the documents and the list of studies into a site of executed studies, and link all its pages; the index.

    Raises FileNotFoundError where no study was rendered.
    """
    listed = re.findall(r"<li><a href=[^\n]*", (site / "index.html").read_text())
    notebooks = studies(site)
    pages = notebooks | DOCUMENTS
    for name in set(notebooks.values()):
        html = (site / name).read_text()
        (site / name).write_text(linked(html, "notebooks", site, pages))
    for source, name in DOCUMENTS.items():
        text = (ROOT / source).read_text()
        if name == "index.html":
            analyses = "\n".join(["## Executed analyses", "", "<ul>", *listed, "</ul>", "", ""])
            text = text.replace("## Hardware and", f"{analyses}## Hardware and")
        (site / name).write_text(page(text, posixpath.dirname(source), site, pages))
    return site / "index.html"


if __name__ == "__main__":
    print(f"made {shown(build())}")
