"""The explorer and the website in a real browser: headless Chromium opens their pages, and the
tests read what it has drawn.

`tests/study/test_explorer.py` moves the widgets of notebook 91 without a browser. Here a page
consists of the markup that these widgets show and a script that writes what it finds into the page.
With `PICTURE=figures/explorer.png`, `make test-browser` also takes the picture of figures/README.md
again."""

import html
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lib.files import FIGURES, REFERENCE, ROOT
from lib.game.verifiers import VERIFIERS
from lib.study import explorer
from lib.study import site as front
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
    return read(written(markup, folder, LOOK))


def read(page: Path) -> dict:
    """What the last script of a page has found."""
    dumped = chromium(page, "--dump-dom", "--virtual-time-budget=20000")
    found = re.search('<xmp id="seen">(.*)</xmp>', dumped)
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
    # the one is a solution, of the other one node differs, here and in the nearest solution
    assert page["red"] == [0, 2]
    picture = Path(os.environ.get("COUNTDOWN_PICTURE") or tmp_path / "explorer.png").resolve()
    chromium(written(markup, tmp_path), f"--screenshot={picture}", "--window-size=1250,640")
    title = PngInfo()
    title.add_itxt("Title", "One answer is right, the other one node away")
    with Image.open(picture) as taken:
        taken.save(picture, pnginfo=title, optimize=True)
    assert 20_000 < picture.stat().st_size < 400_000


# --- the website ----------------------------------------------------------------------------------

# what is true of every page: `found` is written into the page by TELL
PAGE = """
const all = selector => [...document.querySelectorAll(selector)];
const found = {
  broken: all('img').filter(img => !img.naturalWidth).map(img => img.src.slice(0, 80)),
  loaded: performance.getEntriesByType('resource').map(entry => entry.name),
  text: document.body.innerText,
  back: all('nav a')[0].href,
  formulas: all('math').map(math => math.getBoundingClientRect().height),
  code: all('details.code .jp-Cell-inputWrapper').map(cell => cell.checkVisibility()),
  wide: document.documentElement.scrollWidth - innerWidth,
};
"""
TELL = """
document.body.innerHTML = '<xmp id="seen"></xmp>';
document.getElementById('seen').textContent = encodeURIComponent(JSON.stringify(found));
"""
# a visitor's clicks
CLICKS = """
const by = id => document.getElementById(id);
const change = (menu, value) => { menu.value = value; menu.dispatchEvent(new Event('change')); };
const look = () => ({
  asked: by('ro-problem').selectedOptions[0].text,
  listed: by('ro-problem').options.length,
  head: by('ro-head').textContent,
  runs: all('#ro-cards .ro-card > small').map(small => small.textContent),
  texts: all('#ro-cards pre').map(pre => pre.textContent),
  tops: all('#ro-cards .ro-card').map(card => card.getBoundingClientRect().y),
});
found.steps = [look()];
by('ro-next').click();
found.steps.push(look());
change(by('ro-draw'), '1');
found.steps.push(look());
all('#ro-policies input')[2].click();
found.steps.push(look());
by('ro-differ').click();
found.steps.push(look());
let saved;
URL.createObjectURL = blob => { saved = blob; return '#'; };
by('ro-save').click();
found.said = by('ro-said').textContent;
saved.text().then(text => { found.csv = text; TELL });
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of one study, which was not executed, with rollouts on eight problems."""
    notebook = ROOT / "notebooks/80_exact.ipynb"
    picture = FIGURES / "exact_pass_at_k.png"
    study = front.Study("cpu-study-exact-0.html", notebook.stem, notebook, "", picture)
    return front.build([study], tmp_path_factory.mktemp("made") / "site", problems=8).parent


def visited(page: Path, script: str) -> dict:
    """What a script finds in a page of the site."""
    copy = page.with_name(f"visited_{page.name}")
    copy.write_text(f"{page.read_text()}<script>{script}</script>")
    return read(copy)


@pytest.mark.parametrize("name", ["index", "figures", "metrics", "cpu-study-exact-0"])
def test_a_page_of_the_site_is_whole(site, name):
    """Every picture is drawn and nothing comes from the web; formulas are drawn, code is folded
    away, and the first link leads to the first page."""
    page = visited(site / f"{name}.html", f"onload = () => {{ {PAGE} {TELL} }};")
    assert not page["broken"]
    assert all(address.startswith(("file:", "data:")) for address in page["loaded"])
    assert not re.search(r"\$\$|\\(begin|frac|log|pi|lambda|text|tau|binom|sum)\b", page["text"])
    assert page["back"].endswith("/index.html")
    assert page["wide"] <= 0  # nothing is cut off at the right
    if name == "cpu-study-exact-0":
        assert len(page["formulas"]) > 20 and min(page["formulas"]) > 0
        assert len(page["code"]) > 10 and not any(page["code"])
        assert page["text"].index("What we learned.") < 1000  # before anything else


def test_the_explorer_of_the_front_page_works_without_a_kernel(site):
    script = f"onload = () => {{ {PAGE} {CLICKS.replace('TELL', TELL)} }};"
    page = visited(site / "index.html", script)
    first, second, other, more, differ = page["steps"]
    shown_first = [f"sample/{name}/0" for name in ("sft_free", "rloo_sparse", "rloo_cov_pass4")]
    assert first["runs"] == shown_first and first["listed"] == 8
    assert len(set(first["tops"])) == 1  # side by side
    assert second["asked"] != first["asked"] and second["head"] != first["head"]
    assert second["asked"].split(" (")[0] in second["head"]
    assert other["asked"] == second["asked"] and other["texts"] != second["texts"]
    assert more["runs"] == [*shown_first[:2], "sample/rloo_ast_tau2/0", shown_first[2]]
    right = [json.loads(f"[{re.search('[(](.*) right', differ['asked'])[1]}]")]
    assert differ["listed"] < 8 and all(min(one) == 0 < max(one) for one in right)
    table = pd.read_csv(io.StringIO(page["csv"]))
    assert page["said"] == f"{len(table)} completions"
    assert set(table["run"]) == set(more["runs"])
    assert table["problem"].nunique() == differ["listed"]
    for text in differ["texts"]:
        assert text in set(table["completion"])
