"""Rollouts in the explorer: a model's text cannot become markup, and filters and trees show what is
true."""

import json
import os
from collections import ChainMap
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import nbformat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.files import MODELS, ROOT, write_table
from lib.game.distance import distance_to_solutions, nearest_solution
from lib.game.expression import parse
from lib.game.problem import Problem, as_problem
from lib.game.solver import solutions
from lib.game.verifiers import STATUSES, VERIFIERS
from lib.learn.demonstrations import random_expression
from lib.rewards import REWARDS
from lib.study import explorer, judging

PROBLEM = Problem((44, 19, 35), 98)
ANSWER = "<answer>44 + 19 + 35</answer>"
RIGHT = (
    f"<think>\n44 - 19 = 25, 25 + 35 = 60, 60? no\n44 + 19 = 63, 63 + 35 = 98, 98? yes\n"
    f"</think>\n{ANSWER}"
)
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "</pre></div></td><svg onload=window.hacked=1>",
    '"><iframe srcdoc="&lt;script&gt;parent.hacked = 1&lt;/script&gt;"></iframe>',
    "<think>44 + 19 = 63</span><script>window.hacked = 1</script></think><answer>44 + 19 + "
    "35</answer>",
    "<answer><style>*{display:none}</style></answer>",
    "&lt;script&gt; &#60;b&#62;",
    "<think>" + "1 + 1 = 2, " * 20_000 + "</think>",
    "<answer>" + "-" * 100 + "1</answer>",
]
TAGS = {
    "table",
    "tr",
    "td",
    "span",
    "pre",
    "div",
    "b",
    "p",
    "code",
    "svg",
    "line",
    "circle",
    "text",
    "small",
}
PAGE = TAGS | {"style", "details", "summary"}


class Reader(HTMLParser):
    """The tags and attributes of a page, and the text of its <pre>."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.tags = set()
        self.attributes = set()
        self.text = ""
        self.open = 0
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


def made(folder: Path, method="sft/free", **parameters) -> Path:
    """A run's folder, with what made it."""
    folder.mkdir(parents=True)
    name = "/".join(folder.parts[-3:-1])
    record = {"run": name, "method": method, "seed": 0, "parameters": parameters}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def rollouts(texts, folder: Path, style="free", **more) -> pd.DataFrame:
    rows = [
        {"problem": 0, "nums": [44, 19, 35], "target": 98, "completion": text, "count": 1}
        for text in texts
    ]
    table = pd.DataFrame(rows).assign(tokens=7, logprob=-3.5, finish="stop", set="test_50")
    table = judging.judge(table, style if style in VERIFIERS else "free").assign(style=style)
    return explorer.complete(table, folder).assign(run="sample/sft_free/0", place=0, **more)


@pytest.mark.parametrize("style", [*VERIFIERS, "pick"])
def test_model_text_is_only_ever_text(style, tmp_path):
    table = rollouts(HOSTILE, made(tmp_path / "cpu/sample/sft_free/0"), style)
    for position, text in enumerate(HOSTILE):
        page = Reader(
            explorer.page(table, [position], "program" if style.startswith("program") else "ast")
        )
        assert page.tags <= PAGE
        assert not any(name.startswith(("on", "href", "src")) for name in page.attributes)
        assert page.text.endswith(text) or page.text.split("60? no")[-1].count(
            text[: explorer.LONGEST]
        )


def test_whatever_is_shown_is_escaped(tmp_path):
    """Not only completions: a method's name and an agent's tags come from files, too."""
    folder = made(tmp_path / "cpu/sample/x/0", method="<script>1</script>")
    table = rollouts(["<answer>44</answer>"], folder).assign(run="<b>", status="<i>", actions="")
    page = explorer.page(table, [0])
    assert (
        "&lt;script&gt;1" in page
        and "&lt;b&gt;" in page
        and "&lt;i&gt;" in page
        and "<script" not in page
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([*"<>&\"'/=+-*() \n4195", "<think>", "</think>", "try ", "4 + 1 = 5"]))
)
def test_marked_text_reads_as_it_was_written(words):
    text = "".join(words)
    for style in VERIFIERS:
        shown = explorer.markup.marked(explorer.pieces(text, PROBLEM, style))
        page = Reader(f"<pre>{shown}</pre>")
        assert page.text == text and page.tags <= {"pre", "span"}


def looks(text: str, style: str) -> list[tuple[str, str]]:
    return [(piece, look) for piece, look in explorer.pieces(text, PROBLEM, style) if look]


def test_steps_stand_on_the_colour_of_their_verdict():
    text = "<think>44 + 19 = 63, 63 + 35 = 99, 7 + 7 = 14, 1 + 2 + 3 = 6, 44 + 19=63</think>"
    assert looks(text, "free") == [
        ("44 + 19 = 63", "ro-ok"),
        ("63 + 35 = 99", "ro-wrong"),
        ("7 + 7 = 14", "ro-pool"),
        ("1 + 2 + 3 = 6", "ro-form"),
        ("44 + 19=63", "ro-ok ro-again"),
    ]
    trace = (
        "<think>\nstate [19, 35, 44]\ntry 44 + 19 = 64\ntry 9 + 9 = 18\nhm\ntry 44 + 19 = 63\n"
        "</think>"
    )
    wanted = ["ro-ok", "ro-wrong", "ro-pool", "ro-form", "ro-ok"]
    assert looks(trace, "trace") == list(zip(trace.split("\n")[1:-1], wanted, strict=True))
    assert looks(f"well\nyes {trace}", "trace") == looks(trace, "trace")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_the_nearest_solution_differs_in_as_many_nodes_as_the_reward_counts(seed):
    rng = Random(seed)
    nums = tuple(rng.randrange(1, 12) for _ in range(rng.choice([3, 4])))
    problem = Problem(nums, rng.randrange(1, 60))
    answer = random_expression(nums if rng.random() < 0.8 else (*nums, 5), rng)
    nearest = nearest_solution(answer, problem)
    if not solutions(problem):
        assert nearest is None
        return
    mine = explorer.labels(answer)
    theirs = explorer.labels(nearest)
    differ = sum(mine.get(at) != theirs.get(at) for at in mine.keys() | theirs.keys())
    assert differ == distance_to_solutions(answer, problem)
    assert distance_to_solutions(nearest, problem) == 0


def test_trees_mark_what_differs():
    page = drawn("35 + 19 - 44", PROBLEM)
    # the operator, on both sides
    assert "nearest solution, 1 node differs" in page and page.count("#f7c6c0") == 2
    page = drawn("35 + 19 + 44", PROBLEM)
    assert "answer, a solution" in page and "nearest" not in page and page.count("<svg") == 1
    assert "no tree" in explorer.trees(None, PROBLEM)
    assert "no solution" in drawn("1 + 1", Problem((1, 1), 9))
    assert "199 nodes are too many" in drawn(" + ".join(["1"] * 100), PROBLEM)


def drawn(text: str, problem: Problem) -> str:
    return str(explorer.markup.trees(explorer.trees(parse(text), problem)))


def test_choosing_and_sorting_is_what_it_says():
    rng = np.random.default_rng(0)
    size = 600
    table = pd.DataFrame(
        {
            "run": rng.choice(["a", "b", "c"], size),
            "set": rng.choice(["s", "t"], size),
            "place": rng.integers(0, 40, size),
            "status": rng.choice(["correct", "missing", "wrong_value"], size, p=[0.1, 0.5, 0.4]),
            "logprob": rng.normal(size=size),
            "nums": [[44, 19, 35]] * size,
            "target": 98,
            "style": "free",
            "completion": [f"{RIGHT.splitlines()[1]}, " * n + "1 + 1 = 2" for n in range(5)]
            * (size // 5),
        }
    )
    counts = [*map(explorer.attempts, table["style"], table["completion"], [PROBLEM] * size)]
    assert set(counts) >= {1, 2, 4}
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
        if row["status"] in ("missing", "correct") and counts[i] >= 2 and row["place"] in split
    ]
    asked = (table, ("a", "b"), "s", ("missing", "correct"), 2)
    assert explorer.choose(*asked, True, "as saved").tolist() == naive and 0 < len(naive) < len(
        there
    )
    likeliest = explorer.choose(*asked, True, "logprob")
    assert likeliest.tolist() == sorted(naive, key=lambda i: -table["logprob"][i])
    fewest = explorer.choose(*asked, True, "attempts")
    assert fewest.tolist() == sorted(naive, key=lambda i: counts[i])
    gaps = apart[table["place"].iloc[explorer.choose(*asked, False, "disagreement")]].to_numpy()
    assert (np.diff(gaps) <= 0).all() and gaps[0] > gaps[-1]


def test_beside_a_rollout_stand_those_that_the_filter_keeps():
    table = pd.DataFrame({"run": [*"aaabbb"], "place": 0})
    kept = np.array([2, 4, 5])
    assert explorer.beside(table, 2, "ab", kept) == [2, 4]
    assert explorer.beside(table, 2, "ab", kept, draw=1) == [0, 5]
    # of the other the filter keeps none: its first
    assert explorer.beside(table, 4, "ba", np.array([4])) == [4, 0]


# what the explorer adds to the rows of a file
JUDGED = ["status", "correct", "solution", "run", "place", "folder", "style"]


def trained(folder: Path, method: str, style: str) -> None:
    """A training that is finished; its policy is the base model."""
    made(folder, method, prompt_style=style, max_tokens=8)
    (folder / "checkpoint").symlink_to(MODELS / "base-1m")


def sampled(folder: Path, texts, method="sft/free") -> None:
    """A run that has sampled these texts, as its file holds them."""
    table = rollouts(texts, made(folder, method, prompt_style="free"))
    table.drop(columns=JUDGED).to_parquet(folder / "generations.parquet")


def searched(folder: Path, texts, actions: str, states: str) -> None:
    """A search of an agent that ended with these texts; each game is a row, which has no count."""
    table = rollouts(texts, made(folder, "sft/pick"), actions=actions, states=states)
    table.drop(columns=[*JUDGED, "count"]).to_parquet(folder / "trajectories.parquet")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Runs of two profiles: of `cpu` two policies sampled, the agent's search and two checkpoints
    of the base model, and of `smoke` another sample."""
    monkeypatch.setattr(judging, "CACHE", tmp_path / "verdicts")
    runs = tmp_path / "runs"
    reference = tmp_path / "reference"
    monkeypatch.setattr(explorer, "RUNS", runs)
    monkeypatch.setattr(explorer, "REFERENCE", reference)
    sampled(reference / "cpu/sample/sft_free/0", [RIGHT, *HOSTILE, RIGHT[:60]])
    sampled(runs / "cpu/sample/sft_free/0", ["<answer>44</answer>"] * 3, "rloo/ast_tau2")
    searched(
        reference / "cpu/search/sft_pick/0",
        [ANSWER],
        actions="<pick>19, 44, +</pick><pick>35, 63, +</pick>",
        states="35, 63; 98",
    )
    trained(reference / "cpu/rloo/ast_tau2/0", "rloo/ast_tau2", "free")
    trained(reference / "cpu/sft/pick/0", "sft/pick", "pick")
    sampled(runs / "smoke/sample/rloo_sparse/0", [RIGHT], "rloo/sparse")
    begun = runs / "paper/sample/sft_free/0"  # and not finished
    begun.mkdir(parents=True)
    (begun / "generations.parquet").touch()


def test_the_own_reward_of_a_policy_is_the_one_that_trained_it(tmp_path):
    sampled = made(tmp_path / "sample/rloo_ast_tau2/0", "rloo/ast_tau2")
    assert explorer.own_reward(sampled, "free") == ("sparse", {})  # its training is not there
    made(tmp_path / "rloo/ast_tau2/0", "rloo/ast_tau2", reward="ast", reward_options={"tau": 3})
    assert explorer.own_reward(sampled, "free") == ("ast", {"tau": 3})
    program = rollouts(
        ["<answer>\na = 44 + 19 + 35\n</answer>"],
        made(tmp_path / "sample/sft_program/0"),
        "program",
    )
    shown = explorer.page(program, [0])
    # a correct program is worth a program's reward
    assert "reward program" in shown and "1.000: format 1" in shown
    assert "is not made for what this completion holds" in explorer.page(program, [0], "ast")
    gone = made(tmp_path / "rloo/gone/0", "rloo/gone", reward="my_rewards.py:gone")
    assert "there is no file my_rewards.py" in explorer.page(
        rollouts(["<answer>44</answer>"], gone), [0]
    )


def test_a_reward_that_fails_is_said_and_the_page_shows_the_rest(tmp_path, monkeypatch):
    def broken():
        return lambda completions, problem: 1 / 0

    monkeypatch.setattr(explorer, "get_reward", lambda name, options: broken())
    assert "ZeroDivisionError" in explorer.page(
        rollouts([RIGHT], made(tmp_path / "rloo/mine/0")), [0], "sparse"
    )


def test_a_run_that_is_made_again_is_read_again(project, tmp_path):
    folder = tmp_path / "runs/cpu/sample/sft_free/0"
    first = explorer.load({"mine": folder})
    (folder / "generations.parquet").unlink()
    columns = ["problem", "nums", "target", "tokens", "finish", "count", "set"]
    write_table(first[columns].assign(completion="none"), folder / "generations.parquet")
    os.utime(folder / "run.json", ns=(1, 1))
    assert set(explorer.load({"mine": folder})["completion"]) == {"none"}


def test_a_completion_counts_as_often_as_it_was_drawn(tmp_path, monkeypatch):
    """In the share of a problem's correct rollouts, and in the group that a reward compares."""
    monkeypatch.setattr(judging, "CACHE", tmp_path / "verdicts")
    folder = made(tmp_path / "cpu/sample/sft_free/0", prompt_style="free")
    rows = rollouts([RIGHT, "<answer>44</answer>"], folder).assign(count=[3, 1])
    columns = [
        "problem",
        "nums",
        "target",
        "completion",
        "tokens",
        "logprob",
        "finish",
        "count",
        "set",
    ]
    write_table(rows[columns], folder / "generations.parquet")
    table = explorer.load({"mine": folder})
    assert table["solved"].tolist() == [0.75, 0.75]
    groups = []
    get_reward = explorer.get_reward
    monkeypatch.setattr(
        explorer,
        "get_reward",
        lambda *asked: (
            lambda texts, problem: groups.append(texts) or get_reward(*asked)(texts, problem)
        ),
    )
    assert "drawn once in 4 rollouts, of which 3 are correct" in explorer.page(table, [1], "sparse")
    assert groups == [[RIGHT] * 3 + ["<answer>44</answer>"]]


def test_a_game_shows_the_numbers_after_each_action_and_how_many_solutions_they_have():
    tags = ["<pick>19, 44, -</pick>", "<pick>-25, 35, +</pick>"]
    game = [
        ("", "19, 35, 44", len(solutions(PROBLEM))),
        (tags[0], "-25, 35", 0),
        (tags[1], "10", 0),
    ]
    assert list(explorer.states("".join(tags), PROBLEM)) == game
    won = list(explorer.states("<pick>19, 44, +</pick> <pick>35, 63, +</pick>", PROBLEM))
    assert [after for _, after, _ in won] == ["19, 35, 44", "35, 63", "98"] and [
        n for *_, n in won
    ][1:] == [1, 1]


def opened() -> ChainMap:
    """The widgets of notebook 91 when all of its cells have run, and the notebook's other names."""
    notebook = nbformat.read(ROOT / "notebooks/91_explore_rollouts.ipynb", 4)
    names = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
    return ChainMap(vars(names["at"]), names)


def test_the_tour_shows_what_the_ast_reward_changes(monkeypatch, tmp_path):
    """Notebook 00, run as it stands: near misses, so that the columns differ, and no raw
    dictionary."""
    monkeypatch.chdir(ROOT)
    names = {"display": lambda *shown: None}
    for cell in nbformat.read(ROOT / "notebooks/00_follow_one_completion.ipynb", 4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
            names["output"] = str(tmp_path)
    table = names["table"]
    wrong = table[table["status"] == "wrong_value"]
    assert (table["status"] == "missing").mean() < 0.5 and (table["status"] == "correct").any()
    assert wrong["sparse advantage"].nunique() == 1 and wrong["ast advantage"].nunique() > 1
    # .1 + .5 exp(-1 / 2)
    assert "in this group" in names["ladder"].value and "0.403" in names["ladder"].value
    names["slider"].value = 0.5
    # .1 + .5 exp(-2)
    assert "0.168" in names["ladder"].value and "0.403" not in names["ladder"].value


def test_the_notebook_opens_on_the_headline_and_hides_its_code():
    at = opened()
    assert at["source"].value == "cpu"
    methods = [explorer.record(at["found"][name])["method"] for name in at["runs"]]
    assert at["chosen"].value == at["runs"] and methods == [
        "sft/free",
        "rloo/sparse",
        "rloo/cov_pass4",
    ]
    assert at["view"].value.count('class="ro-card"') == 3
    assert "missing" not in at["verdicts"].value and "missing" not in at["rollouts"].options[0][0]
    cells = [
        c
        for c in nbformat.read(ROOT / "notebooks/91_explore_rollouts.ipynb", 4).cells
        if c.cell_type == "code"
    ]
    shown = [cell for cell in cells if not cell.metadata.get("jupyter", {}).get("source_hidden")]
    parameters, comparison = shown
    assert parameters.metadata["tags"] == ["parameters"]
    assert "compare(" in comparison.source  # it names two methods, which readers change
    assert "display(at.tabs)" in cells[-1].source  # where Run All Cells ends, the explorer stands


def test_the_notebook_switches_between_profiles(project):
    at = opened()
    assert (
        at["source"].options == ("cpu", "smoke") and at["source"].value == "cpu" and at["policies"]
    )
    at["source"].value = "smoke"
    assert (
        [name for _, name in at["listed"].options]
        == ["sample/rloo_sparse/0 (yours)"]
        == list(at["found"])
    )
    assert (
        at["said"].value == "choose a run in the list"
        and at["view"].value == ""
        and not at["policy"].options
    )
    at["go"].click()
    assert at["answered"].value == "profile smoke holds no policy"
    at["listed"].value = "sample/rloo_sparse/0 (yours)"
    assert at["said"].value == "1 rollout" and "98? yes" in at["view"].value
    at["source"].value = "cpu"
    assert at["chosen"].value == ["sample/sft_free/0"] and at["policy"].options
    assert at["view"].value.count('class="ro-card"') == 1


def test_equal_completions_are_counted_as_often_as_they_were_drawn(project):
    rows = pd.DataFrame({"count": [3, 1]})
    assert (explorer.size(rows), explorer.size(rows[1:])) == (
        "4 rollouts, 2 of them different",
        "1 rollout",
    )


ALL = 2 + len(HOSTILE)  # rollouts of sample/sft_free/0


def cards(widget):
    return widget.value.count('class="ro-card"')


def test_the_notebook_lists_runs_and_sets_those_that_are_chosen_side_by_side(project):
    at = opened()
    names = ["sample/sft_free/0", "sample/sft_free/0 (yours)", "search/sft_pick/0"]
    assert list(at["found"]) == names
    assert at["chosen"].value == ["sample/sft_free/0"]
    at["search"].value = "Ast YOURS"
    assert [name for _, name in at["listed"].options] == ["sample/sft_free/0 (yours)"]
    said = []
    at["said"].observe(lambda change: said.append(change["new"]), "value")
    at["listed"].value = "sample/sft_free/0 (yours)"
    assert at["chosen"].value == ["sample/sft_free/0", "sample/sft_free/0 (yours)"]
    assert said[0] == "loading sample/sft_free/0, sample/sft_free/0 (yours) ..."
    assert at["listed"].value is None
    assert cards(at["view"]) == 2
    at["search"].value = ""
    assert len(at["listed"].options) == 3
    at["chosen"].value = []
    assert at["said"].value == "choose a run in the list" and at["table"] is None


def test_the_notebook_shows_the_rollouts_that_its_filters_pass(project):
    at = opened()
    shown = at["view"]
    at["verdicts"].value = STATUSES
    assert at["said"].value == f"{ALL} rollouts" and len(at["rollouts"].options) == ALL
    at["listed"].value = "sample/sft_free/0 (yours)"
    at["verdicts"].value = ("correct",)
    assert at["said"].value == "2 rollouts"
    assert "98? yes" in shown.value and "<script>" not in shown.value
    at["least"].value = 2
    assert at["said"].value == "1 rollout"
    at["verdicts"].value = STATUSES
    at["least"].value = 0
    before = shown.value
    at["draw"].value = 1
    assert shown.value != before
    at["differ"].value = True
    assert at["said"].value == f"{ALL + 3} rollouts"
    # one run differs from none, so that the filter leaves nothing
    at["chosen"].value = ["sample/sft_free/0 (yours)"]
    assert at["said"].value == "no rollout passes these filters"
    assert shown.value == "" and len(at["rollouts"].options) == 0


def test_the_notebook_shows_games_and_what_every_reward_gives_them(project):
    at = opened()
    at["verdicts"].value = STATUSES
    at["chosen"].value = ["search/sft_pick/0"]
    assert "<pick>" not in at["view"].value
    assert "&lt;pick&gt;35, 63, +&lt;/pick&gt;" in at["view"].value
    for name in REWARDS:
        at["reward"].value = name
        assert f"reward {name}" in at["view"].value


def test_the_notebook_asks_policies_for_answers(project):
    at = opened()
    at["samples"].value = 2
    for name, policy in at["policies"].items():
        at["policy"].value = name
        at["go"].click()
        assert policy.parent.name == "pick" or at["answered"].value == "2 rollouts"
        assert cards(at["judged"]) >= 1
        assert "solutions of 44, 19, 35" in at["judged"].value
    at["typed"].value = "44 <b> 35"
    at["go"].click()
    assert at["judged"].value == ""
    assert at["answered"].value == "two to six numbers from 1 to 999, as in: 44 19 35"


def test_a_damaged_run_is_said_and_shows_nothing(project):
    at = opened()
    (at["found"]["sample/sft_free/0 (yours)"] / "generations.parquet").write_bytes(b"PAR1")
    at["chosen"].value = ["sample/sft_free/0 (yours)"]
    assert (
        "is damaged" in at["said"].value and at["view"].value == "" and at["rollouts"].options == ()
    )


def test_a_policy_that_cannot_be_sampled_is_said(project):
    at = opened()
    at.maps[0]["draw_rollouts"] = lambda *asked: {}["weights"]
    at["go"].click()
    assert (
        at["answered"].value == "the policy cannot be sampled (KeyError: 'weights')"
        and at["judged"].value == ""
    )


def test_a_new_filter_draws_the_first_page_once(project, monkeypatch):
    """Also from another page, and when the filter leaves so few rollouts that this page is no
    more."""
    at = opened()
    drawn = []
    draw = explorer.page
    at.maps[0]["page"] = 2
    at["verdicts"].value = STATUSES
    at["number"].value = 4
    monkeypatch.setattr(explorer, "page", lambda *asked: drawn.append(asked) or draw(*asked))
    at["sort"].value = "logprob"
    assert len(drawn) == 1 and at["number"].value == 1
    at["number"].value = 4
    at["verdicts"].value = ("correct",)
    assert len(drawn) == 3 and at["number"].value == at["number"].max == 1


def test_what_passes_the_filters_is_saved_as_a_table(monkeypatch, tmp_path):
    """All of it, not one page; its problems are written as a file of problems writes them."""
    monkeypatch.setattr("lib.study.widgets.RUNS", tmp_path)
    widget = opened().maps[1]["at"]
    widget.differ.value = True
    widget.export()
    path = tmp_path / "scratch/rollouts.csv"
    table = pd.read_csv(path, keep_default_na=False)
    assert len(table) == len(widget.at) > widget.page and widget.saved.value.startswith(
        f"{len(table):,} lines in "
    )
    chosen = widget.table.iloc[widget.at]
    assert table["completion"].tolist() == chosen["completion"].tolist() and set(table["run"]) <= {
        *widget.runs
    }
    first = chosen.iloc[0]
    assert as_problem(table["nums"][0], table["target"][0]) == as_problem(
        first["nums"], first["target"]
    )
