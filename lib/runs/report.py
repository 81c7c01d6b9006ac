"""`make report`: the executed study notebooks as one static HTML site."""

import shutil
from pathlib import Path

import nbformat
from jinja2 import Environment
from nbconvert import HTMLExporter

from lib.files import FIGURES, clock
from lib.runs.plan import Project, read_record
from lib.runs.process import RunError

INDEX = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Countdown study</title><style>
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 3em auto }
td, th { text-align: left; padding-right: 1.2em; }
</style><h1>Countdown study</h1><p>The studies as they were executed, figures included.</p>
<table><tr><th>study<th>profile<th>from<th>commit<th>made<th>took
{% for row in rows|sort(attribute="title") %}
<tr><td><a href="{{ row.page }}">{{ row.title }}</a> ({{ row.run }})<td>{{ row.profile }}<td>{{ row.source }}
<td>{{ (row.commit or "")[:7] }}<td>{{ row.started[:16] }}<td>{{ row.took }}{% endfor %}</table></html>
"""


def report(project: Project, profiles: list[str]) -> Path:
    """Render every executed study of some profiles, the local one or that of `figures`, to figures/site; the index.

    Raises RunError if none has been executed.
    """
    offline = dict.fromkeys(("mathjax_url", "require_js_url"), "")  # a page loads nothing from elsewhere
    exporter, rows = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True, **offline), []
    published, site = Project(project.root, published=True), FIGURES / "site"
    shutil.rmtree(site, ignore_errors=True)
    studies = [spec for one in profiles for spec in project.specs(one).values() if spec.study]
    for local in studies:
        here = local.folder if local.state == "done" else published.specs(local.profile)[local.name].folder
        shown = here == local.folder or (local.reference / "run.json").exists()
        if not shown or not (record := read_record(here)):
            continue
        notebook, page = nbformat.read(here / "notebook.ipynb", as_version=4), local.name.replace("/", "-") + ".html"
        page = f"{local.profile}-{page}" if (site / page).exists() else page
        site.mkdir(parents=True, exist_ok=True)
        (site / page).write_text(exporter.from_notebook_node(notebook)[0])
        source = "local runs" if here == local.folder else "data/reference"
        title, took = notebook.cells[0].source.splitlines()[0].lstrip("# "), clock(record["elapsed"])
        rows.append(record | {"title": title, "page": page, "source": source, "took": took})
    if not rows:
        raise RunError(f"no study of {', '.join(profiles)} has been executed: `make study`, or `make figures`")
    (site / "index.html").write_text(Environment(autoescape=True).from_string(INDEX).render(rows=rows))
    return site / "index.html"
