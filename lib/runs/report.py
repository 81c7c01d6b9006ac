"""`make report`: the executed analysis notebooks as one static HTML site."""

import html
import shutil
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from lib.files import clock
from lib.paths import FIGURES
from lib.runs.plan import Project, Spec, read_record
from lib.runs.process import RunError

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Countdown study</title><style>
body {{ font: 16px/1.5 sans-serif; max-width: 60em; margin: 3em auto; }}
td, th {{ text-align: left; padding-right: 1.2em; }}
</style><h1>Countdown study</h1><p>The analyses of profile {profile}, as they were executed, figures included.</p>
<table><tr><th>analysis<th>from<th>commit<th>made<th>took
{rows}</table></html>
"""


def report(project: Project, profile: str) -> Path:
    """Render every executed analysis, the local one or that of `figures`, to figures/site; the index page.

    Raises RunError if none has been executed.
    """
    site = FIGURES / "site"
    specs = [spec for spec in project.specs(profile).values() if executed(spec)]
    if not specs:
        raise RunError(f"no analysis of profile {profile} has been executed: `make study`, or `make figures`")
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    rows, offline = [], dict.fromkeys(("mathjax_url", "require_js_url"), "")  # a page loads nothing from elsewhere
    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True, **offline)
    for spec in specs:
        folder = executed(spec)
        notebook = nbformat.read(folder / "notebook.ipynb", as_version=4)
        title = notebook.cells[0].source.splitlines()[0].lstrip("# ")
        body, _ = exporter.from_notebook_node(notebook)
        page = spec.name.replace("/", "-") + ".html"
        (site / page).write_text(body)
        record, source = read_record(folder), "local runs" if folder == spec.folder else "data/reference"
        cells = [source, (record["commit"] or "")[:7], record["started"][:16], clock(record["elapsed"])]
        link = f'<a href="{page}">{html.escape(title)}</a> ({spec.name})'
        rows.append((title, f"<tr><td>{link}" + "".join(f"<td>{html.escape(cell)}" for cell in cells)))
    index = site / "index.html"
    index.write_text(PAGE.format(profile=profile, rows="\n".join(row for _, row in sorted(rows))))
    return index


def executed(spec: Spec) -> Path | None:
    """Where an analysis was executed last on what there is: here if it is finished, else on the reference results."""
    if not spec.declaration.analysis:
        return None
    if spec.state == "done":
        return spec.folder
    return spec.remade if read_record(spec.remade) else None
