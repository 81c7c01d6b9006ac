"""The explorer in a real browser: headless Chromium opens its pages, and the tests read what it has
drawn.

`tests/study/test_explorer.py` moves the widgets of notebook 91 without a browser. Here a page
consists of the markup that these widgets show and a script that writes what it finds into the page.
With `PICTURE=figures/explorer.png`, `make test-browser` also takes the picture of figures/README.md
again."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lib.files import REFERENCE
from lib.game.verifiers import VERIFIERS
from lib.study import explorer
from tests.study.test_explorer import HOSTILE, TAGS, made, opened, rollouts

NAMES = (os.environ.get("COUNTDOWN_BROWSER") or "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium here: `apt-get install chromium`, or `make test-browser BROWSER=/its/path`",
)
SFT, SPARSE = "sample/sft_free/0", "sample/rloo_sparse/0"
LOOK = """
const all = selector => [...document.querySelectorAll(selector)];
const green = all('.ro-ok')[0];
const cards = all('.ro-card').map(card => card.getBoundingClientRect());
const seen = {
  texts: all('.ro-card pre').map(pre => pre.textContent),
  tags: [...new Set(all('.ro *').map(element => element.tagName.toLowerCase()))],
  hacked: window.hacked !== undefined,
  green: green ? getComputedStyle(green).backgroundColor : '',
  lefts: cards.map(card => card.x),
  heights: cards.map(card => card.height),
  widths: cards.map(card => card.width),
  red: all('.ro-card').map(card => card.querySelectorAll('circle[fill="#f7c6c0"]').length),
};
document.body.innerHTML = '<xmp id="seen"></xmp>';
document.getElementById('seen').textContent = encodeURIComponent(JSON.stringify(seen));
"""


def chromium(page: Path, *what: str) -> str:
    """What headless Chromium says of a page."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-dev-shm-usage",
    ]
    options += ["--disable-background-networking", "--window-size=1250,1000", "--hide-scrollbars"]
    home = page.parent / "home"
    command = [BROWSER, *options, f"--user-data-dir={home}", *what, page.as_uri()]
    done = subprocess.run(
        command, env=os.environ | {"HOME": str(home)}, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:].decode()
    return done.stdout.decode()


def written(markup: str, folder: Path, script: str = "") -> Path:
    """A page with this markup."""
    page = folder / "page.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><body>{markup}<script>{script}</script>')
    return page


def seen(markup: str, folder: Path) -> dict:
    """What Chromium sees in a page with this markup."""
    from urllib.parse import unquote

    found = re.search(
        '<xmp id="seen">(.*)</xmp>', chromium(written(markup, folder, LOOK), "--dump-dom")
    )
    assert found, "the page's script has not come to its end"
    return json.loads(unquote(html.unescape(found[1])))


def test_what_a_model_writes_stays_text(tmp_path):
    """Every hostile completion of every style on one page: each is the text that it was, and none
    of them runs."""
    markup = ""
    texts = []
    for style in VERIFIERS:
        table = rollouts(HOSTILE, made(tmp_path / f"cpu/sample/{style}/0"), style)
        reward = "program" if style.startswith("program") else "ast"
        markup += "".join(explorer.page(table, [i], reward) for i in range(len(HOSTILE)))
        texts += HOSTILE
    page = seen(markup, tmp_path)
    assert len(page["texts"]) == len(texts)
    for shown, text in zip(page["texts"], texts, strict=True):
        assert shown.startswith(text[: explorer.LONGEST])
    assert set(page["tags"]) <= TAGS | {"style", "details", "summary", "tbody"}
    assert not page["hacked"]
    assert min(page["heights"]) > 100  # nothing hides the page


def test_a_page_that_runs_a_completion_would_be_seen(tmp_path):
    """The test above can fail: the same text, not escaped."""
    page = seen(f"<div class='ro'>{HOSTILE[0]}</div>", tmp_path)
    assert page["hacked"] and "script" in page["tags"]


def test_the_notebook_opens_on_three_cards_side_by_side(tmp_path):
    """Notebook 91 as it stands: the headline's policies, with coloured steps and trees."""
    page = seen(opened()["view"].value, tmp_path)
    assert len(page["texts"]) == 3 and page["lefts"] == sorted(set(page["lefts"]))
    assert min(page["widths"]) >= 300 and page["green"] == "rgb(205, 235, 211)"


def test_the_picture_of_the_figures(tmp_path):
    """Two answers to a problem that only one of two policies solves, each tree beside the nearest
    solution's."""
    table = explorer.load({name: REFERENCE / "cpu" / name for name in (SPARSE, SFT)})
    at = explorer.choose(table, [SPARSE, SFT], "heldout_1000", ["correct"], 0, True, "disagreement")
    markup = explorer.page(table, explorer.beside(table, at[7], [SPARSE, SFT], at))
    page = seen(markup, tmp_path)
    # the one is a solution, the other's nodes differ from the nearest
    assert page["red"][0] == 0 < page["red"][1]
    picture = Path(os.environ.get("COUNTDOWN_PICTURE") or tmp_path / "explorer.png").resolve()
    chromium(written(markup, tmp_path), f"--screenshot={picture}", "--window-size=1250,640")
    assert 20_000 < picture.stat().st_size < 400_000
