"""`make compare`: two methods by their finished samples, in words."""

import json
import shutil

import pandas as pd
import pytest

from lib.files import FIGURES, REFERENCE
from lib.study import compare
from lib.study.compare import BEYOND, EQUAL, NONE, ONCE, RESTARTED, TOKENS, CompareError
from lib.study.restarts import GAIN, STARTED


@pytest.fixture(scope="module")
def published():
    return compare.compare("rloo/ast_tau2", "rloo/sparse")


def row(found, number):
    return found.table.set_index("number").loc[number]


def test_two_published_methods_have_the_numbers_of_the_figures(published):
    levels = pd.read_csv(FIGURES / "grand_front.csv").set_index(["method", "metric"])
    equal = pd.read_csv(FIGURES / "grand_equal_tokens.csv").set_index("method")
    restarted = pd.read_csv(FIGURES / "grand_restarts.csv").query("set == 'heldout_1000'")
    restarted = restarted.set_index(["method", "metric"])
    for side, method in (("a", "rloo/ast_tau2"), ("b", "rloo/sparse")):
        for number, metric in ((ONCE, "pass@1"), (compare.several(16), "pass@16")):
            theirs = levels.loc[(method, metric), ["estimate", "low", "high"]]
            ours = row(published, number)[[f"{side} {name}" for name in theirs.index]]
            assert ours.tolist() == pytest.approx(theirs.tolist(), abs=1e-5)
        asked = levels.loc[(method, "pass@1")]
        assert row(published, NONE)[f"{side} estimate"] == pytest.approx(asked["unanswered"], 1e-4)
        assert row(published, TOKENS)[f"{side} estimate"] == pytest.approx(asked["tokens"], 1e-4)
        solved = row(published, EQUAL)[f"{side} estimate"]
        assert solved == pytest.approx(equal.loc[method, "estimate"], abs=1e-5)
        for number, metric in ((RESTARTED, STARTED), (BEYOND, GAIN)):
            theirs = restarted.loc[(method, metric), "estimate"]
            assert row(published, number)[f"{side} estimate"] == pytest.approx(theirs, abs=1e-5)
    gaps = pd.read_csv(FIGURES / "ast_differences.csv").query(
        "set == 'heldout_1000' and method == 'rloo/ast_tau2' and baseline == 'rloo/sparse'"
    )
    theirs = gaps.set_index("metric").loc["pass@1", ["estimate", "low", "high"]]
    ours = row(published, ONCE)[["difference estimate", "difference low", "difference high"]]
    assert ours.tolist() == pytest.approx(theirs.tolist(), abs=1e-5)


def test_it_is_said_in_words(published):
    text = compare.told(published)
    assert "1,000 problems, at least 5 runs of each" in text
    assert "With one sample no difference is shown." in text
    assert not published.notes


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A reward of one's own with one run, which no table of the repository names: published samples
    under another name."""
    runs = tmp_path / "runs"
    monkeypatch.setattr(compare, "RUNS", runs)
    trained = runs / "cpu/rloo/brief/0"
    trained.mkdir(parents=True)
    start = {"parameters": {"init": "data/runs/cpu/sft/free/0"}}
    (trained / "run.json").write_text(json.dumps(start))
    folder = runs / "cpu/sample/rloo_brief/0"
    shutil.copytree(REFERENCE / "cpu/sample/rloo_dense/0", folder)
    record = json.loads((folder / "run.json").read_text())
    record |= {"run": "sample/rloo_brief", "method": "rloo/brief", "id": "own"}
    record["parameters"] |= {"policy": str(trained), "output": str(folder)}

    def write(**parameters):
        record["parameters"] |= parameters
        (folder / "run.json").write_text(json.dumps(record))

    write()
    return write


def test_a_reward_of_ones_own_needs_no_row_anywhere(own):
    found = compare.compare("rloo/brief", "rloo/sparse")
    assert row(found, RESTARTED).notna()["a estimate"]
    assert row(found, BEYOND).notna()["difference estimate"]
    assert len(found.notes) == 1 and "rloo/brief has one run" in found.notes[0]
    assert "at least 1 run of each" in compare.told(found)


def test_another_evaluation_is_named(own):
    own(max_tokens=640)
    notes = compare.compare("rloo/brief", "rloo/sparse").notes
    assert "max_tokens is 640 and 320" in notes[0]


@pytest.mark.parametrize(
    "a, said",
    [
        ("rloo/sparce", "did you mean 'rloo/sparse'"),
        ("rloo/sparse", "compared with itself"),
        ("rloo/pass4_double_rate", "evaluate"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_a_remedy(a, said):
    with pytest.raises(CompareError, match=said):
        compare.compare(a, "rloo/sparse")


def test_the_table_is_written(published, tmp_path):
    compare.save(published, tmp_path / "compared.csv")
    assert list(pd.read_csv(tmp_path / "compared.csv")["number"])[:1] == [ONCE]
