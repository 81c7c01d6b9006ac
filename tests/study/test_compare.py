"""`make compare`: two methods by their finished samples, in words."""

import json
import shutil

import pandas as pd
import pytest

from lib.files import FIGURES, REFERENCE, sha256
from lib.study import compare, restarts
from lib.study.compare import BEYOND, EQUAL, NONE, ONCE, RESTARTED, TOKENS, CompareError
from lib.study.restarts import GAIN, STARTED

SET = "heldout_1000"


@pytest.fixture(scope="module")
def published():
    return compare.compare("rloo/ast_tau2", "rloo/sparse", published=True)


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


def test_methods_of_few_runs_have_the_intervals_of_the_figures():
    """They borrow how far runs differ, by the rule of all tables."""
    found = compare.compare("rloo/ast_steps", "rloo/ast_tau2", published=True)
    gaps = pd.read_csv(FIGURES / "ast_steps.csv").query(
        "set == 'heldout_1000' and method == 'rloo/ast_steps' and baseline == 'rloo/ast_tau2'"
    )
    theirs = gaps.set_index("metric").loc["pass@1"]
    assert theirs["borrowed"]
    ends = ["estimate", "low", "high"]
    ours = row(found, ONCE)[[f"difference {end}" for end in ends]]
    assert ours.tolist() == pytest.approx(theirs[ends].tolist(), abs=1e-5)
    assert compare.BORROWED in found.notes


def test_it_is_said_in_words(published):
    text = compare.told(published)
    runs = "5 published runs of rloo/ast_tau2, 5 published runs of rloo/sparse"
    assert f"1,000 problems; {runs}, paired by seed." in text
    assert "With one sample no difference is shown." in text
    gain = row(published, BEYOND)
    low = f"{100 * gain['a low']:+.1f}"
    assert f"rloo/ast_tau2 minus its start, restarted for as many tokens: +2.1 [{low}, " in text
    assert not published.notes


def test_the_start_is_the_sft_policy_that_the_figures_restart():
    """One run of RLOO started from IPO, which itself started from SFT."""
    assert restarts.trained_from("rloo/cov_ipo_pass4") == "sft/free"
    folders = [REFERENCE / "cpu/sample/cov_rloo_cov_ipo_pass4/0"]
    assert compare.start_of(folders) == "sft/free"


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
        return folder

    write()
    return write


def test_a_reward_of_ones_own_needs_no_row_anywhere(own):
    found = compare.compare("rloo/brief", "rloo/sparse")
    assert row(found, RESTARTED).notna()["a estimate"]
    assert row(found, BEYOND).notna()["difference estimate"]
    assert "rloo/brief has one run" in found.notes[0]
    assert found.notes[1:] == [compare.BORROWED]
    assert "1 run made here of rloo/brief, 5 published runs of rloo/sparse" in compare.told(found)


@pytest.mark.parametrize(
    "setting, said",
    [
        ({"max_tokens": 640}, "max_tokens is 640 and 320"),
        ({"temperature": 0.8}, "temperature is 0.8 and 0.6"),
        ({"sets": {"heldout_1000": 64}}, "samples of a problem is 64 and 16"),
    ],
)
def test_another_evaluation_is_named(own, setting, said):
    own(**setting)
    notes = compare.compare("rloo/brief", "rloo/sparse").notes
    assert said in notes[0]


def ask_only(folder, problems):
    """Cuts a run's samples to some of its problems."""
    path = folder / "generations.parquet"
    table = pd.read_parquet(path)
    table[table["problem"].isin(problems)].to_parquet(path)
    (folder / "verdicts.parquet").unlink()
    record = json.loads((folder / "run.json").read_text())
    record["files"]["generations.parquet"] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    (folder / "run.json").write_text(json.dumps(record))


def test_only_problems_that_both_were_asked_count(own, published):
    ask_only(own(limit=100), range(100))
    found = compare.compare("rloo/brief", "rloo/sparse")
    for side in "ab":
        gap = row(found, ONCE)
        assert 0 < gap[f"{side} estimate"] < 1
    difference = gap["a estimate"] - gap["b estimate"]
    assert gap["difference estimate"] == pytest.approx(difference)
    assert gap["problems"] == 100
    assert gap["b estimate"] != row(published, ONCE)["b estimate"]
    assert "limit is 100 and 0" in found.notes[0]


def test_methods_that_share_no_problem_are_refused(own):
    ask_only(own(), [])
    with pytest.raises(CompareError, match="share no problem"):
        compare.compare("rloo/brief", "rloo/sparse")


def test_runs_made_here_are_not_mixed_with_published_ones_of_the_same_name(own):
    folder = own()
    here = folder.parents[1] / "rloo_sparse/0"
    shutil.copytree(folder, here)
    record = json.loads((folder / "run.json").read_text())
    record |= {"run": "sample/rloo_sparse", "method": "rloo/sparse", "id": "another"}
    (here / "run.json").write_text(json.dumps(record))
    folders = compare.evaluations("rloo/sparse", [compare.RUNS / "cpu", REFERENCE / "cpu"], SET)
    assert folders == [here]
    # a restored copy of the published run is none of ours
    published = json.loads((REFERENCE / "cpu/sample/rloo_sparse/0/run.json").read_text())
    (here / "run.json").write_text(json.dumps(published))
    folders = compare.evaluations("rloo/sparse", [compare.RUNS / "cpu", REFERENCE / "cpu"], SET)
    assert [folder.is_relative_to(REFERENCE) for folder in folders] == [True] * 5


@pytest.mark.parametrize(
    "a, said",
    [
        ("rloo/sparce", "did you mean 'rloo/sparse'"),
        ("rloo/sparse", "compared with itself"),
        ("rloo/pass4_double_rate", "make study GROUP=sample/rloo_pass4_double_rate"),
        ("sample/rloo_sparse", "did you mean 'rloo/sparse'"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_a_remedy(a, said):
    with pytest.raises(CompareError, match=said):
        compare.compare(a, "rloo/sparse")


def test_the_table_is_written(published, tmp_path):
    compare.save(published, tmp_path / "compared.csv")
    assert list(pd.read_csv(tmp_path / "compared.csv")["number"])[:1] == [ONCE]
