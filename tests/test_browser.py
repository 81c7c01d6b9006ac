"""The rollout explorer and the report in a real browser: headless Chromium opens JupyterLab and moves widgets.

Chromium is spoken to in its DevTools protocol: mouse and keyboard, and JavaScript for what only a pop-up of the
operating system would show. `make test-browser` takes the README's picture, too.
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

import pandas as pd
import pytest
from websocket import create_connection

from lib import explorer
from lib.files import REFERENCE, ROOT
from lib.problem import Problem
from lib.solver import count
from lib.verifiers import STATUSES
from tests.conftest import copy_of_the_repository
from tests.test_explorer import HOSTILE, TAGS

BROWSER = shutil.which(os.environ.get("COUNTDOWN_BROWSER", ""))
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="`make test-browser`; it needs Chromium (apt-get install chromium, or BROWSER=/its/path)"
)
PATIENCE = int(os.environ.get("COUNTDOWN_PATIENCE", "240"))  # seconds for what takes three on a machine that is idle
KEYS = {"ArrowLeft": (37, ""), "ArrowRight": (39, ""), "Enter": (13, "\r")}
# what a user reads: widgets write no-break spaces
READ = "const read = e => (e?.innerText ?? '').replaceAll('\\u00a0', ' ').trim();"
SFT, SPARSE, AGENT = "sample/sft_free/0", "sample/rloo_sparse/0", "search/sft_pick/0"
HEADLINE = [SFT, "sample/rloo_sparse_200/0", "sample/rloo_ast_200/0"]
MINE = "sample/my_run/0 (yours)"


@contextmanager
def process(*command, log: Path, **options):
    with log.open("w") as file:
        started = subprocess.Popen(command, stdout=file, stderr=file, **options)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(PATIENCE)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def answer(address: str):
    """What a server says as soon as it is there."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE) as said:
                return json.load(said)
        except OSError:
            assert time.monotonic() < end, f"no answer from {address} within {PATIENCE} s"
            time.sleep(0.2)


class Page:
    """One tab of the browser."""

    def __init__(self, port: int, folder: Path):
        pages = [one for one in answer(f"http://127.0.0.1:{port}/json") if one["type"] == "page"]
        self.socket, self.number = create_connection(pages[0]["webSocketDebuggerUrl"], timeout=PATIENCE), 0
        self.folder = folder
        self.call(
            "Emulation.setFocusEmulationEnabled", enabled=True
        )  # without focus no notebook is JupyterLab's current

    def call(self, method: str, **parameters) -> dict:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            if (said := json.loads(self.socket.recv())).get("id") == self.number:
                return said.get("result", {})  # none where the page is just being left

    def js(self, code: str):
        """The value of an expression."""
        said = self.call("Runtime.evaluate", expression=f"(() => {{ {READ} return {code} }})()", returnByValue=True)
        assert "exceptionDetails" not in said, f"{code}: {said}"
        return said.get("result", {}).get("value")

    def until(self, code: str, is_so=bool):
        """The value of an expression as soon as it is so; AssertionError, with a picture, when patience is over."""
        end = time.monotonic() + PATIENCE
        while not is_so(found := self.js(code)):
            if time.monotonic() > end:
                self.picture(self.folder / "seen.png")
                raise AssertionError(f"not within {PATIENCE} s: {code}, now {found!r}; see {self.folder}/seen.png")
            time.sleep(0.05)
        return found

    def texts(self, selector: str) -> list[str]:
        return self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(read)")

    def click(self, selector: str, text: str | None = None) -> None:
        """On the middle of the first element of a selector (with a text), as soon as it is there."""
        named = "true" if text is None else f"read(e) === {json.dumps(text)}"
        element = f"[...document.querySelectorAll({json.dumps(selector)})].find(e => {named})"
        self.until(f"{element} !== undefined")
        self.js(f"{element}.scrollIntoView({{block: 'nearest'}})")
        x, y = self.js(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({element}.getBoundingClientRect())")
        for event in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=event, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        code, text = KEYS[key]
        for event in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=event, key=key, windowsVirtualKeyCode=code, text=text)

    def picture(self, path: Path, **clip) -> None:
        area = {"clip": clip} if clip else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **area)["data"]))

    # the explorer's widgets, by their labels

    def widget(self, label: str) -> str:
        """JavaScript for the widget with this label."""
        return (
            "[...document.querySelectorAll('.widget-inline-hbox')]"
            f".find(e => e.querySelector('label') && read(e.querySelector('label')) === {json.dumps(label)})"
        )

    def choose(self, label: str, *options: str) -> None:
        """Options of a drop-down or a list."""
        self.js(
            f"""(list => {{
              for (const option of list.options) option.selected = {json.dumps(options)}.includes(read(option));
              list.dispatchEvent(new Event('change', {{bubbles: true}}));
            }})({self.widget(label)}.querySelector('select'))"""
        )

    def runs(self, *names: str) -> None:
        """Take away the runs that are shown; search for others by name, and add them."""
        while self.texts("div.jupyter-widget-tag"):
            left = len(self.texts("div.jupyter-widget-tag"))
            self.click("div.jupyter-widget-tag .close, div.jupyter-widget-tag i")
            self.until(f"document.querySelectorAll('div.jupyter-widget-tag').length < {left}")
        for size, name in enumerate(names, 1):
            self.write("search", name)
            options = f"[...{self.widget('runs')}.querySelectorAll('option')].map(read)"
            self.until(f"{options}.every(text => text.includes({json.dumps(name)}))")
            self.choose("runs", next(text for text in self.js(options) if text.endswith(f"· {name}")))
            self.until(f"document.querySelectorAll('div.jupyter-widget-tag').length === {size}")
            self.write("search", "")
            self.until(f"{options}.length > 20")  # the whole list again

    def rollout(self, position: int) -> None:
        """Choose a rollout of the list."""
        self.click(f".{self.mark('rollouts')} option:nth-child({position})")

    def mark(self, label: str) -> str:
        """A class that a widget's select gets, to be found by."""
        self.js(f"{self.widget(label)}.querySelector('select').classList.add('the-{label}')")
        return f"the-{label}"

    def slide(self, label: str, steps: int) -> None:
        """A slider's first handle some steps up or down, by keyboard."""
        self.js(f"{self.widget(label)}.querySelector('.noUi-handle').focus()")
        for _ in range(abs(steps)):
            self.press("ArrowRight" if steps > 0 else "ArrowLeft")

    def write(self, label: str, text: str) -> None:
        """Text into a box, in the place of what stands there."""
        self.js(f"(box => {{ box.focus(); box.select() }})({self.widget(label)}.querySelector('input'))")
        self.call("Input.insertText", text=text)
        self.press("Enter")

    def lists(self, tokens: list[int]) -> None:
        """Wait until the rollouts listed are of so many tokens."""
        lines = f"[...{self.widget('rollouts')}.querySelectorAll('option')]"
        self.until(f"{lines}.map(e => /[0-9]+(?= tokens$)/.exec(read(e))[0]).join() === '{','.join(map(str, tokens))}'")

    def shows(self, size: int, *runs: str) -> None:
        """Wait until so many rollouts are left, and the first of them stands beside those of these runs."""
        self.until(f"[...document.querySelectorAll('.widget-label')].some(e => read(e) === '{size:,} rollouts')")
        self.beside(*runs)

    def beside(self, *runs: str) -> None:
        """Wait until the rollouts shown are those of these runs."""
        names = "JSON.stringify([...document.querySelectorAll('.ro-card > small')].map(read))"
        self.until(f"{names} === {json.dumps(json.dumps(runs, separators=(',', ':')))}")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    port, home = free_port(), tmp_path_factory.mktemp("browser")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    options += ["--window-size=1250,1250", "--remote-allow-origins=*", "--disable-background-networking"]
    where = [f"--remote-debugging-port={port}", f"--user-data-dir={home}", "about:blank"]
    with process(BROWSER, *options, *where, log=home / "chromium.log", env=os.environ | {"HOME": str(home)}):
        yield Page(port, home)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on the notebook, the reference runs, and a local run that has hostile completions."""
    runs, home, port = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("lab"), free_port()
    hostile = shutil.copytree(REFERENCE / "laptop" / SFT, runs / "laptop/sample/my_run/0")
    table = pd.read_parquet(hostile / "generations.parquet").query("set == 'heldout_1000'").head(len(HOSTILE))
    table.assign(completion=HOSTILE).to_parquet(hostile / "generations.parquet")
    shutil.copy(ROOT / "notebooks/91_explore_rollouts.ipynb", home / "explore.ipynb")
    news = home / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--notebook-dir={home}"]
    here = {"COUNTDOWN_RUNS": str(runs), "PYTHONPATH": str(ROOT), "HOME": str(home), "JUPYTER_NO_CONFIG": "1"}
    here["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    with process(*command, log=home / "lab.log", cwd=ROOT, env=os.environ | here):
        address = f"http://127.0.0.1:{port}"
        answer(f"{address}/api")
        yield address


@pytest.fixture(scope="module")
def explore(lab, page):
    """The notebook, opened and run."""
    page.call("Page.navigate", url=f"{lab}/doc/tree/explore.ipynb")
    page.until("document.querySelector('#jp-bottom-panel')?.innerText.includes('| Idle')")  # else nothing would run
    page.click(".lm-MenuBar-itemLabel", "Run")
    page.click(".lm-Menu-itemLabel", "Run All Cells")
    page.until("document.querySelectorAll('.ro-card').length === 3")
    return page


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """What the explorer is to show of two runs."""
    return explorer.load({name: REFERENCE / "laptop" / name for name in (SPARSE, SFT)})


def test_it_opens_on_the_headline_with_its_code_hidden(explore):
    page = explore
    page.beside(*HEADLINE)
    assert "missing" not in page.texts(".ro-card td span")
    rewards = [re.search(r"reward (\w+)", card)[1] for card in page.texts(".ro-card")]
    assert rewards == ["sparse", "sparse", "ast"]  # each policy's own
    assert len(page.texts("div.jupyter-widget-tag")) == 3
    shown = "[...document.querySelectorAll('.jp-CodeCell .jp-InputArea-editor')].filter(e => e.offsetHeight > 0).length"
    assert page.js(shown) <= 1  # the parameters
    page.runs()
    page.until("[...document.querySelectorAll('.widget-label')].some(e => read(e) === 'choose a run in the list')")
    assert page.js("document.querySelectorAll('.ro-card').length") == 0


def test_what_is_shown_is_what_the_widgets_ask_for(explore, table):
    page, table = explore, table[table["set"] == "heldout_1000"]
    page.runs(SPARSE, SFT)
    page.choose("verdicts", *STATUSES)
    page.choose("sort", "as saved")
    page.shows(len(table), SPARSE, SFT)
    assert all(re.search(r"log-probability\s+-\d+\.\d\d, -0\.\d+ a token", card) for card in page.texts(".ro-card"))

    page.choose("verdicts", "correct")
    right = table[table["correct"]]
    page.shows(len(right), SPARSE, SFT)
    verdict = "document.querySelector('.ro-card td span')"
    page.until(f"read({verdict}) === 'correct'")
    assert page.js(f"getComputedStyle({verdict}).backgroundColor") == "rgb(205, 235, 211)"
    assert page.js("document.querySelectorAll('.ro-card pre span.ro-ok').length") > 1  # coloured steps
    assert page.js("document.querySelector('.ro-card').querySelectorAll('circle').length") >= 5  # its tree
    assert re.search(r"reward sparse\s+1.000: correct 1, ", page.texts(".ro-card")[0])

    page.slide("attempts", 3)
    tried = right[explorer.tried(right) >= 3]
    page.shows(len(tried), SPARSE, SFT)
    page.choose("sort", "tokens")
    page.lists(sorted(tried["tokens"])[:100])
    page.write("page", "2")
    page.lists(sorted(tried["tokens"])[100:200])

    rates = table.groupby(["problem", "run"], observed=True)["correct"].max().unstack()
    differ = rates.nunique(axis=1) == 2
    page.click(".widget-checkbox input")
    page.shows(tried["problem"].isin(rates.index[differ]).sum(), SPARSE, SFT)
    page.click(".widget-checkbox input")
    page.shows(len(tried), SPARSE, SFT)
    page.slide("attempts", -3)
    page.shows(len(right), SPARSE, SFT)


def test_a_rollout_beside_others_on_its_problem(explore, table):
    page, table = explore, table[table["set"] == "showcase"]
    page.choose("verdicts", *STATUSES)
    page.choose("sort", "as saved")
    page.choose("set", "showcase")
    page.runs(SPARSE)
    page.shows((table["run"] == SPARSE).sum(), SPARSE)
    page.runs(SPARSE, SFT)
    page.shows(len(table), SPARSE, SFT)
    page.rollout(6)
    wanted = table.iloc[5]
    page.until(f"document.querySelector('.ro-card pre')?.textContent === {json.dumps(wanted['completion'])}")
    first = page.texts(".ro-card")[0]
    assert wanted["status"].replace("_", " ") in first and f"{wanted['tokens']}, ended by" in first
    there = table.loc[(table["run"] == SFT) & (table["problem"] == wanted["problem"]), "completion"].tolist()
    assert page.js("document.querySelectorAll('.ro-card pre')[1].textContent") == there[0]
    page.slide("draw", 1)
    page.until(f"document.querySelectorAll('.ro-card pre')[1].textContent === {json.dumps(there[1])}")
    page.slide("draw", -1)
    page.until(f"document.querySelectorAll('.ro-card pre')[1].textContent === {json.dumps(there[0])}")

    page.choose("reward", "dense")
    page.until("read(document.querySelector('.ro-card')).includes('reward dense')")
    assert re.search(r"reward dense\s+-?[\d.]+: correct [01], ", page.texts(".ro-card")[0])
    page.choose("reward", explorer.OWN)

    page.runs(AGENT)  # a game, state by state
    page.beside(AGENT)
    title, *states = page.texts(".ro-card table:last-of-type tr")
    assert title.split("\t") == ["action", "numbers", "solutions left"]
    assert all(re.fullmatch(r"<pick>.*</pick>\t[-\d, /]+\t\d+", state) for state in states[1:]), states


def test_the_picture_of_the_readme(explore, table, tmp_path):
    """Two answers to a problem that only one of two policies solves, each tree beside the nearest solution's."""
    page, asked = explore, (["correct"], 0, True, "disagreement")
    at = explorer.choose(table, [SPARSE, SFT], "heldout_1000", *asked)
    page.runs(SPARSE, SFT)
    page.beside(SPARSE, SFT)
    page.choose("sort", "disagreement")
    page.choose("verdicts", "correct")
    page.choose("set", "heldout_1000")
    page.click(".widget-checkbox input")
    page.shows(len(at), SPARSE, SFT)
    page.rollout(8)
    page.until(f"document.querySelector('.ro-card pre').textContent === {json.dumps(table.iloc[at[7]]['completion'])}")
    one, other = page.texts(".ro-card")
    assert "answer, a solution" in one and re.search("nearest solution, [1-7] nodes? differ", other)
    red = "querySelectorAll('circle[fill=\"#f7c6c0\"]').length"
    assert page.js(f"[...document.querySelectorAll('.ro-card')].map(e => e.{red} > 0)") == [False, True]
    page.js(f"{page.widget('search')}.scrollIntoView()")
    picture = Path(os.environ.get("COUNTDOWN_PICTURE") or tmp_path / "explorer.png")
    page.picture(picture)
    assert 20_000 < picture.stat().st_size < 400_000
    page.click(".widget-checkbox input")
    page.choose("verdicts", *STATUSES)
    page.choose("sort", "as saved")


def test_what_a_model_writes_stays_text(explore):
    page = explore
    page.runs(MINE)
    page.shows(len(HOSTILE), MINE)
    for i, text in enumerate(HOSTILE):
        page.rollout(i + 1)
        shown = json.dumps(text[: explorer.LONGEST])
        page.until(f"document.querySelector('.ro-card pre')?.textContent.startsWith({shown})")
        tags = page.js("[...new Set([...document.querySelectorAll('.ro *')].map(e => e.tagName.toLowerCase()))]")
        assert set(tags) <= TAGS | {"details", "summary", "tbody"}
    assert page.js("window.hacked === undefined")
    assert page.js("document.querySelector('.ro-card').getBoundingClientRect().height") > 100  # nothing hides the page


def test_a_problem_of_your_own(explore):
    page = explore
    page.click(".lm-TabBar-tabLabel", "ask a policy")
    page.choose("policy", "SFT, seed 0 · sft/free/0")
    page.write("numbers", "3 5 <b> 7")
    page.click("button", "sample and judge")
    page.until("document.body.innerText.includes('two to six numbers from 1 to 999, as in: 44 19 35')")
    page.write("numbers", "3 5 7")
    page.write("target", "26")
    page.write("samples", "2")
    page.click("button", "sample and judge")
    page.until("document.querySelectorAll('.ro').length === 2")
    assert page.js("document.querySelectorAll('.ro')[1].querySelectorAll('.ro-card').length") == 2
    assert f"{count(Problem((3, 5, 7), 26))} solutions of 3, 5, 7 → 26, up to commuting" in page.texts(".ro summary")


def test_the_report(page, tmp_path):
    """`make figures` and `make report`, and every page that the index leads to."""
    root = copy_of_the_repository(tmp_path / "repository")
    clean = {key: value for key, value in os.environ.items() if key != "COUNTDOWN_RUNS"}
    for command in ("figures", "report"):
        subprocess.run([sys.executable, "-m", "lib.runs", command], cwd=root, env=clean, check=True)
    page.call("Page.navigate", url=(root / "figures/site/index.html").as_uri())
    page.until("document.querySelector('h1')?.innerText === 'Countdown study'")
    links = page.js("[...document.querySelectorAll('li a')].map(a => [read(a), a.href])")
    assert len(links) == len(list(REFERENCE.glob("*/study/*/*/run.json")))
    for title, address in links:
        page.call("Page.navigate", url=address)
        page.until(f"read(document.querySelector('h1')).startsWith({json.dumps(title)})")
        assert page.js("document.querySelectorAll('img').length") > 0, address
        page.until("[...document.images].every(image => image.naturalWidth > 300)")
        assert page.js("document.querySelectorAll('.jp-OutputArea table').length") > 0, address
        assert "Traceback" not in page.js("document.body.innerText")
