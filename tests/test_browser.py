"""The rollout explorer and the report in a real browser: headless Chromium opens JupyterLab and moves widgets.

Chromium is spoken to in its DevTools protocol. Runs where it is named: COUNTDOWN_BROWSER=chromium make test
"""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from websocket import create_connection

from lib.paths import FIGURES, REFERENCE, ROOT
from lib.runs import report
from lib.runs.plan import Project
from tests.test_explorer import HOSTILE

BROWSER = os.environ.get("COUNTDOWN_BROWSER")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="COUNTDOWN_BROWSER names no Chromium")
PATIENCE = int(os.environ.get("COUNTDOWN_PATIENCE", "120"))  # seconds for what takes one on a machine that is idle


@contextmanager
def process(*command, **options):
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(PATIENCE)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until(what):
    """The first true value of a function; AssertionError when patience is over."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if found := what():
                return found
        except (OSError, KeyError):
            pass
        time.sleep(0.3)
    raise AssertionError(f"not within {PATIENCE} s")


class Page:
    """One tab of the browser."""

    def __init__(self, port: int):
        pages = until(lambda: [p for p in self.fetch(port) if p["type"] == "page"])
        self.socket, self.number = create_connection(pages[0]["webSocketDebuggerUrl"], timeout=PATIENCE), 0

    @staticmethod
    def fetch(port: int) -> list:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=5) as answer:
            return json.load(answer)

    def call(self, method: str, **parameters) -> dict:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            if (said := json.loads(self.socket.recv())).get("id") == self.number:
                return said["result"]

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def js(self, code: str):
        """The value of an expression."""
        return self.call("Runtime.evaluate", expression=code, returnByValue=True)["result"].get("value")

    def text(self, selector: str = "body") -> str:
        return (
            self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText).join('\\n')") or ""
        )

    def choose(self, label: str, options: list[str]) -> None:
        """Select options of the drop-down or list with this label, as a user would."""
        self.js(
            f"""(() => {{
              const box = [...document.querySelectorAll('.widget-inline-hbox')].find(
                e => e.querySelector('label')?.innerText === {json.dumps(label)});
              const list = box.querySelector('select');
              const wanted = {json.dumps(options)};
              for (const option of list.options) option.selected = wanted.includes(option.innerText.trim());
              list.dispatchEvent(new Event('change', {{bubbles: true}}));
            }})()"""
        )

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    port, home = free_port(), tmp_path_factory.mktemp("browser")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1500,1700"]
    where = [f"--remote-debugging-port={port}", "--remote-allow-origins=*", f"--user-data-dir={home}", "about:blank"]
    with process(BROWSER, *options, *where, env=os.environ | {"HOME": str(home)}):
        yield Page(port)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on a copy of the notebook and of two reference runs, one of them with hostile completions."""
    runs, home, port = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("home"), free_port()
    for name in ("sample_sft", "sample_rloo_sparse"):
        folder = shutil.copytree(REFERENCE / "laptop" / name, runs / "seen" / name)
        table = pd.read_parquet(folder / "generations.parquet").groupby("set").head(200)
        if name == "sample_sft":
            first = table[table["set"] == "heldout_1000"].index[: len(HOSTILE)]
            table.loc[first, "completion"] = HOSTILE
        table.to_parquet(folder / "generations.parquet")
    shutil.copytree(REFERENCE / "laptop/sft", runs / "seen/sft")
    notebook = nbformat.read(ROOT / "notebooks/17_explore_rollouts.ipynb", 4)
    for cell in notebook.cells:
        cell.source = cell.source.replace('profile = "laptop"', 'profile = "seen"')
    nbformat.write(notebook, home / "explore.ipynb")
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--notebook-dir={home}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    clean = os.environ | {
        "COUNTDOWN_RUNS": str(runs),
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "JUPYTER_NO_CONFIG": "1",
    }
    with process(*command, cwd=ROOT, env=clean):
        address = f"http://127.0.0.1:{port}"
        until(lambda: urllib.request.urlopen(f"{address}/api", timeout=5).status == 200)
        yield address


def test_the_explorer_in_jupyterlab(lab, page, tmp_path):
    page.open(f"{lab}/lab/tree/explore.ipynb")
    until(lambda: page.js("!!document.querySelector('.jp-Notebook .jp-CodeCell')"))
    for event in ("mousePressed", "mouseReleased"):  # into the notebook: its commands are then enabled
        page.call("Input.dispatchMouseEvent", type=event, x=900, y=115, button="left", clickCount=1)
    until(lambda: page.js("window.jupyterapp.commands.isEnabled('notebook:run-all-cells')"))
    page.js("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    until(lambda: page.js("document.querySelectorAll('.ro-card').length") == 2)
    cards = page.text(".ro-card")
    assert "sample_rloo_sparse" in cards and "sample_sft" in cards and "log-probability" in cards
    assert page.js("document.querySelectorAll('.ro-card pre span.ro-ok').length") > 0  # coloured steps
    assert page.js("document.querySelectorAll('.ro-card svg circle').length") > 6  # trees

    page.choose("verdicts", ["correct"])
    until(lambda: set(re.findall(r"verdict\s+(\w+)", page.text(".ro-card"))) >= {"correct"})
    assert re.search(r"^[\d,]+ rollouts$", page.text(), re.MULTILINE)
    if picture := os.environ.get("COUNTDOWN_SCREENSHOT"):
        page.js("document.querySelector('.ro').scrollIntoView({block: 'end'})")
        page.picture(Path(picture))

    page.choose("runs", ["sample_sft"])  # the hostile ones come first
    page.choose("verdicts", ["correct", "wrong_value", "wrong_numbers", "unparseable", "missing"])
    until(lambda: HOSTILE[0] in page.text(".ro-card pre"))
    lines = page.js("[...document.querySelectorAll('select')].find(e => e.size === 8).options.length")
    assert lines == 100
    for i, hostile in enumerate(HOSTILE[:6]):
        page.js(
            f"""(() => {{ const list = [...document.querySelectorAll('select')].find(e => e.size === 8);
            list.selectedIndex = {i}; list.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"""
        )
        until(lambda text=hostile: text in page.text(".ro-card pre"))
    assert page.js("window.hacked === undefined && !document.querySelector('.ro iframe, .ro img, .ro script')")

    page.js("[...document.querySelectorAll('button')].find(b => b.innerText === 'sample and judge').click()")
    until(lambda: page.js("document.querySelectorAll('.ro').length") == 2)
    assert page.js("document.querySelectorAll('.ro')[1].querySelectorAll('.ro-card').length") == 4
    assert "solutions of 44, 19, 35" in page.text(".ro summary")


def test_the_report_in_a_browser(page, monkeypatch, tmp_path):
    """The index leads to a page with the analysis and its figures."""
    notebook = nbformat.read(ROOT / "notebooks/06_ast_study.ipynb", 4)
    figure = base64.b64encode((FIGURES / "ast_fig2_pass_at_k.png").read_bytes()).decode()
    code = next(cell for cell in notebook.cells if "ast_fig2" in cell.source)
    code.outputs = [nbformat.v4.new_output("display_data", {"image/png": figure})]
    nbformat.write(notebook, tmp_path / "notebook.ipynb")
    shutil.copy(REFERENCE / "laptop/ast_study/run.json", tmp_path)
    monkeypatch.setattr(report, "FIGURES", tmp_path)
    monkeypatch.setattr(report, "executed", lambda spec: tmp_path if spec.name == "ast_study" else None)
    index = report.report(Project(), "laptop")
    page.open(index.as_uri())
    until(lambda: "06 · The AST reward" in page.text("td"))
    page.js("document.querySelector('td a').click()")
    until(lambda: page.js("document.querySelector('img')?.naturalWidth > 500"))
    assert "Table 1" in page.text("h2") and page.js("location.pathname").endswith("site/ast_study.html")
