"""data/paper/posed.csv holds what the git history says of every claim."""

from functools import cache
from types import SimpleNamespace

import pandas as pd
import pytest

from lib.files import PAPER
from lib.study import history, posed, systems

REMEDY = (
    "commit data/paper/claims.csv, then `python -m lib.runs posed` writes "
    "data/paper/posed.csv again"
)


@cache
def table() -> pd.DataFrame:
    return pd.read_csv(posed.TABLE, keep_default_na=False).set_index("id")


needs_history = pytest.mark.skipif(
    not history.whole(), reason=f"when claims were written is {history.SHALLOW}"
)


@needs_history
def test_the_table_is_that_of_the_history():
    pd.testing.assert_frame_equal(
        posed.written().set_index("id"), table(), obj=f"data/paper/posed.csv ({REMEDY})"
    )


def test_every_claim_has_a_row():
    claims = pd.read_csv(PAPER / "claims.csv", keep_default_na=False)
    assert table().index.tolist() == claims["id"].tolist(), REMEDY
    assert table()["form"].ne("").all(), REMEDY


def test_what_was_changed_says_how():
    """In the column `changed` of claims.csv, or as a row of its own whose first form has one."""
    claims = pd.read_csv(PAPER / "claims.csv", keep_default_na=False).set_index("id")
    late = table().index[table()["written"] == "changed"]
    assert claims.loc[late, "changed"].ne("").all(), (
        claims.loc[late].query("changed == ''").index.tolist()
    )


@needs_history
def test_the_column_posed_names_the_first_commit_of_a_claim():
    claims = pd.read_csv(PAPER / "claims.csv", keep_default_na=False).set_index("id")
    for name, commit in claims["posed"].items():
        assert table().loc[name, "first"].startswith(commit), f"{name}: posed"


@needs_history
@pytest.mark.parametrize(
    "name, written, support",
    [
        ("ast-1", "before", "descent"),  # in the first commit of all
        ("agent-1b", "changed", "descent"),  # the other reading, when both were known
        # its samples are in the parent of the commit that poses it
        ("coverage-1", "after", "descent"),
        ("coverage-14", "after", "descent"),  # read off samples that had been published
        ("agent-25", "after", "descent"),
        ("agent-28", "before", "descent"),
        ("dense-22", "after", "descent"),
        ("coverage-17", "before", "times only"),  # its runs name a tree without it
        ("coverage-24", "before", "times only"),
        ("coverage-38", "before", "descent"),  # on the sealed set
        ("coverage-59", "changed", "descent"),
        ("exact-1", "before", "descent"),
    ],
)
def test_labels_that_were_looked_up_by_hand(name, written, support):
    assert table().loc[name, ["written", "support"]].tolist() == [written, support]


@needs_history
def test_a_new_claim_needs_runs_that_descend_from_it(monkeypatch):
    """A claim like coverage-17, whose times are right: as a new one it is not written before its
    result."""
    claim = pd.read_csv(PAPER / "claims.csv", dtype=str, keep_default_na=False).set_index(
        "id", drop=False
    )
    weak = claim.loc["coverage-17"].to_dict()
    assert posed.label(weak)["written"] == "before"
    monkeypatch.setattr(posed, "SINCE", 0)
    assert posed.label(weak)["written"] == "after"
    assert posed.label(claim.loc["coverage-38"].to_dict())["written"] == "before"
    assert posed.label(weak | {"bound": "0.5"})["written"] == "", (
        "in a form that was never committed"
    )


@needs_history
def test_descent_and_answers_by_hand():
    first = history.full("4fac7c08")
    root = history.FIRST
    assert (
        history.descends(first, root)
        and history.descends(first, first)
        and not history.descends(root, first)
    )
    assert not history.descends("0" * 40, root)


def test_a_search_is_told_by_all_its_settings():
    warm = {"beams": 16, "samples": 16, "temperature": 0.9, "top_k": 50}
    small = {"beams": 1, "samples": 8}

    def has(method, search):
        return posed.searched_with(systems.of(f"sft/pick {method}"), search)

    final = systems.of("preference/agent_soft 16/16 T0.9")
    assert posed.searched_with(final, warm | {"temperature": [0.3, 0.9]})
    assert not posed.searched_with(final, warm | {"top_k": 20})
    assert not has("16/16", warm)
    assert has("1/1", {"beams": 1, "samples": 1, "temperature": 0.0}), "greedy play"
    assert not has("1/1", {"beams": 1, "samples": 1}), "a game at the usual temperature"
    assert not has("1/8 +soft", small | {"rerank": ["none", "binary"]})
    assert has("1/8 +soft λ=4", small | {"rerank": "soft", "weight": [1.0, 4.0]})
    assert not has("1/8", small | {"repeats": 4})


def test_sixteen_single_games_answer_no_claim_about_104():
    played = [{"beams": 1, "samples": 1, "repeats": 16}]
    parameters = {"sets": ["heldout_1000"], "searches": played}
    run = SimpleNamespace(profile="cpu", method="sft/pick", kind="search", parameters=parameters)
    method = systems.search("sft/pick", 1, 1, repeated=True)
    claim = {"set": "heldout_1000", "metric": "any of 16 games"}
    assert posed.answers(run, method, claim)
    assert not posed.answers(run, method, claim | {"metric": "any of 104 games"})
