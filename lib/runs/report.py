"""`make report`: the executed study notebooks as one static HTML site."""

import shutil
from html import escape
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from lib.files import FIGURES
from lib.runs.plan import Project
from lib.runs.process import RunError


def report(project: Project, profiles: list[str]) -> Path:
    """Render every executed study of some profiles, the local one or that of `figures`, to figures/site; the index.

    Raises RunError if none has been executed.
    """
    offline = dict.fromkeys(("mathjax_url", "require_js_url"), "")  # a page loads nothing from elsewhere
    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True, **offline)
    published, site, lines = Project(project.root, published=True), FIGURES / "site", []
    shutil.rmtree(site, ignore_errors=True)
    for local in [spec for one in profiles for spec in project.specs(one).values() if spec.study]:
        drawn, source = published.specs(local.profile)[local.name].folder, "data/reference"
        if local.state == "done":
            drawn, source = local.folder, "local runs"
        if not (drawn / "run.json").exists() or (
            source != "local runs" and not (local.reference / "run.json").exists()
        ):
            continue
        notebook, page = (
            nbformat.read(drawn / "notebook.ipynb", 4),
            f"{local.profile}-{local.name.replace('/', '-')}.html",
        )
        site.mkdir(parents=True, exist_ok=True)
        (site / page).write_text(exporter.from_notebook_node(notebook)[0])
        title = escape(notebook.cells[0].source.splitlines()[0].lstrip("# "))
        lines.append(f'<li><a href="{page}">{title}</a> ({local.run}, profile {local.profile}, from {source})')
    if not lines:
        raise RunError(f"no study of {', '.join(profiles)} has been executed: `make study`, or `make figures`")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Countdown study</title><h1>Countdown study</h1>'
    (site / "index.html").write_text("\n".join([head, "<ul>", *sorted(lines, key=str.casefold), "</ul></html>\n"]))
    return site / "index.html"
