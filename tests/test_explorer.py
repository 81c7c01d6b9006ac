"""Rollouts as the explorer shows them: model text stays text, filters and trees say what is so."""

import json
from html.parser import HTMLParser

import nbformat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import explorer
from lib.expression import parse
from lib.paths import MODELS, ROOT
from lib.problem import Problem
from lib.rewards import REWARDS
from lib.verifiers import VERIFIERS

PROBLEM = Problem((44, 19, 35), 98)
ANSWER = "<answer>44 + 19 + 35</answer>"
RIGHT = f"<think>\n44 - 19 = 25, 25 + 35 = 60, 60? no\n44 + 19 = 63, 63 + 35 = 98, 98? yes\n</think>\n{ANSWER}"
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "</pre></div></td><svg onload=window.hacked=1>",
    '"><iframe srcdoc="&lt;script&gt;parent.hacked = 1&lt;/script&gt;"></iframe>',
    "<think>44 + 19 = 63</span><script>window.hacked = 1</script></think><answer>44 + 19 + 35</answer>",
    "<answer><style>*{display:none}</style></answer>",
    "&lt;script&gt; &#60;b&#62;",
    "<think>" + "1 + 1 = 2, " * 20_000 + "</think>",
    "<answer>" + "-" * 100 + "1</answer>",
]
TAGS = {"table", "tr", "td", "span", "pre", "div", "b", "p", "code", "svg", "line", "circle", "text"}


class Reader(HTMLParser):
    """The tags and attributes of a page, and the text of its <pre>."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text, self.open = set(), set(), "", 0
        self.feed(str(page))
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.open += tag == "pre"

    def handle_endtag(self, tag):
        self.open -= tag == "pre"

    def handle_data(self, data):
        self.text += data if self.open else ""


def rollouts(texts, style="free", **more) -> pd.DataFrame:
    rows = [{"problem": 0, "nums": [44, 19, 35], "target": 98, "completion": text} for text in texts]
    table = pd.DataFrame(rows).assign(tokens=7, logprob=-3.5, finish="stop", set="test_50")
    return explorer.judged(table, style).assign(run="sample_sft", place=0, **more)


@pytest.mark.parametrize("style", [*VERIFIERS, "pick"])
def test_model_text_is_only_ever_text(style):
    table = rollouts(HOSTILE, style)
    for position, text in enumerate(HOSTILE):
        page = Reader(explorer.card(table, position, "ast"))
        assert page.tags <= TAGS
        assert not any(name.startswith(("on", "href", "src")) for name in page.attributes)
        assert page.text.startswith(text[: explorer.LONGEST])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([*"<>&\"'/=+-*() \n4195", "<think>", "</think>", "try ", "4 + 1 = 5"])))
def test_marked_text_reads_as_it_was_written(words):
    text = "".join(words)
    for style in VERIFIERS:
        page = Reader(explorer.tag("pre", explorer.marked(text, PROBLEM, style)))
        assert page.text == text and page.tags <= {"pre", "span"}


def test_steps_stand_on_the_colour_of_their_verdict():
    text = "<think>44 + 19 = 63, 63 + 35 = 99, 7 + 7 = 14, 1 + 2 + 3 = 6, 44 + 19=63</think>"
    found = [(text[start:end], look, again) for start, end, look, again in explorer.spans(text, PROBLEM, "free")]
    assert found == [
        ("44 + 19 = 63", "ro-ok", False),
        ("63 + 35 = 99", "ro-wrong", False),
        ("7 + 7 = 14", "ro-pool", False),
        ("1 + 2 + 3 = 6", "ro-form", False),
        ("44 + 19=63", "ro-ok", True),
    ]
    trace = "<think>\nstate [19, 35, 44]\ntry 44 + 19 = 64\ntry 9 + 9 = 18\nhm\ntry 44 + 19 = 63\n</think>"
    looks = [(trace[start:end], look) for start, end, look, _ in explorer.spans(trace, PROBLEM, "trace")]
    wanted = ["ro-ok", "ro-wrong", "ro-pool", "ro-form", "ro-ok"]
    assert looks == list(zip(trace.split("\n")[1:-1], wanted, strict=True))
    behind = [(start, end, look) for start, end, look, _ in explorer.spans(f"well\nyes {trace}", PROBLEM, "trace")]
    assert [(f"well\nyes {trace}"[start:end], look) for start, end, look in behind] == looks


def test_trees_mark_what_differs():
    page = explorer.trees(parse("35 + 19 - 44"), PROBLEM)
    assert "nearest solution, 1 nodes differ" in page and page.count("#f7c6c0") == 2  # the operator, on both sides
    assert "no tree" in explorer.trees(None, PROBLEM)
    assert "no solution" in explorer.trees(parse("1 + 1"), Problem((1, 1), 9))
    long = parse(" + ".join(["1"] * 100))
    assert "too many" in explorer.trees(long, PROBLEM)


def test_choosing_and_sorting_is_what_it_says():
    rng = np.random.default_rng(0)
    size = 600
    table = pd.DataFrame(
        {
            "run": rng.choice(["a", "b", "c"], size),
            "set": rng.choice(["s", "t"], size),
            "place": rng.integers(0, 40, size),
            "status": rng.choice(["correct", "missing", "wrong_value"], size, p=[0.1, 0.5, 0.4]),
            "attempts": rng.integers(0, 5, size),
            "logprob": rng.normal(size=size),
        }
    )
    table["place"] += 40 * (table["set"] == "t")
    right = table["status"] == "correct"
    table["solved"] = right.groupby([table["run"], table["place"]]).transform("mean")
    there = table[(table["set"] == "s") & table["run"].isin(["a", "b"])]
    shares = there.groupby(["place", "run"])["solved"].first().unstack()
    apart = shares.max(axis=1) - shares.min(axis=1)
    split = set(shares.index[(shares.min(axis=1) == 0) & (shares.max(axis=1) > 0)])
    naive = [
        i
        for i, row in there.iterrows()
        if row["status"] in ("missing", "correct") and 1 <= row["attempts"] <= 3 and row["place"] in split
    ]
    asked = (table, ("a", "b"), "s", ("missing", "correct"), (1, 3))
    assert explorer.choose(*asked, True, "as saved").tolist() == naive and 0 < len(naive) < len(there)
    likeliest = explorer.choose(*asked, True, "logprob")
    assert likeliest.tolist() == sorted(naive, key=lambda i: -table["logprob"][i])
    gaps = apart[table["place"].iloc[explorer.choose(*asked, False, "disagreement")]].to_numpy()
    assert (np.diff(gaps) <= 0).all() and gaps[0] > gaps[-1]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Runs of a profile of two policies and of the agent, and two checkpoints of the base model."""
    monkeypatch.setattr(explorer, "RUNS", tmp_path)
    monkeypatch.setattr(explorer, "REFERENCE", tmp_path / "nowhere")

    def write(name, parameters, file=None, table=None):
        folder = tmp_path / "laptop" / name
        folder.mkdir(parents=True)
        about = {"run": name, "method": name, "seed": 0}
        (folder / "run.json").write_text(json.dumps(about | {"parameters": parameters}))
        if table is None:
            (folder / "checkpoint").symlink_to(MODELS / "base-1m")
        else:
            table.drop(columns=["status", "correct", "answer", "attempts", "run", "place"]).to_parquet(folder / file)

    write("sample_sft", {"prompt_style": "free"}, "generations.parquet", rollouts([RIGHT, *HOSTILE, RIGHT[:60]]))
    write("sample_rloo_sparse", {"prompt_style": "free"}, "generations.parquet", rollouts(["<answer>44</answer>"] * 3))
    played = {"actions": "<pick>19, 44, +</pick><pick>35, 63, +</pick>", "states": "35, 63; 98"}
    write("search_agent_sft", {}, "trajectories.parquet", rollouts(["<answer>44 + 19 + 35</answer>"], "pick", **played))
    write("sft", {"prompt_style": "free", "max_tokens": 8})
    write("agent_sft", {"prompt_style": "pick", "max_tokens": 8})


def test_the_notebook_shows_what_its_widgets_ask_for(project):
    notebook = nbformat.read(ROOT / "notebooks/91_explore_rollouts.ipynb", 4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    at: dict = {}
    for cell in cells:
        exec(cell, at)
    shown = at["view"]
    assert list(at["found"]) == ["sample_rloo_sparse", "sample_sft", "search_agent_sft"]
    assert at["said"].value == f"{5 + len(HOSTILE)} rollouts" and len(at["rollouts"].options) == 5 + len(HOSTILE)
    assert shown.value.count('class="ro-card"') == 2  # side by side

    at["verdicts"].value = ("correct",)
    assert at["said"].value == "2 rollouts" and "98? yes" in shown.value and "<script>" not in shown.value
    at["tried"].value = (2, 9)
    assert at["said"].value == "1 rollouts"
    at["verdicts"].value, at["tried"].value = at["STATUSES"], (0, 10**6)
    before = shown.value
    at["draw"].value = 1
    assert shown.value != before
    at["differ"].value = True
    assert at["said"].value == f"{5 + len(HOSTILE)} rollouts"
    at["chosen_runs"].value = ("sample_rloo_sparse",)
    assert at["said"].value == "0 rollouts" and shown.value == ""

    at["differ"].value = False
    at["chosen_runs"].value = ("search_agent_sft",)
    assert "<pick>" not in shown.value
    assert "&lt;pick&gt;35, 63, +&lt;/pick&gt;" in shown.value
    for name in REWARDS:
        at["reward"].value = name
        assert f"reward {name}" in shown.value

    at["samples"].value = 2
    for policy in at["policies"]:
        at["policy"].value = policy
        at["go"].click()
        assert at["judged"].value.count('class="ro-card"') >= 1 and "solutions of 44, 19, 35" in at["judged"].value
    at["typed"].value = "44 <b> 35"
    at["go"].click()
    assert at["judged"].value == "<p>two to six numbers from 1 to 999, as in: 44 19 35</p>"
