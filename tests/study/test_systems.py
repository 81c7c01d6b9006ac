"""Systems: policies and settings as columns, and the names that they are printed by."""

import pandas as pd
import pytest

from lib.files import PAPER
from lib.learn.settings import SearchSettings
from lib.study import intervals, judging, systems
from lib.study.judging import judge
from lib.study.systems import System


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    """Names that a test makes are not known to other tests."""
    monkeypatch.setattr(systems, "_named", {})


def games(**settings) -> pd.DataFrame:
    """One search of one problem, which keeps a game that misses and one that wins."""
    about = {"run": "search/a", "method": "sft/pick", "seed": 0, "set": "test_50", "problem": 0}
    about |= {"sample": 0, "nums": [2, 3], "target": 6, "sampled": 16, "unreadable": 3}
    about |= {"number not there": 1, "division by zero": 0}
    about |= {"beams": 16, "samples": 16, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    about |= {"max_tokens": 32, "rerank": "none", "weight": 1.0, "alpha": 0.2, "beta": 0.05}
    about |= {"cascade": "", "redraws": 0} | settings
    texts = ["<answer>2 + 3</answer>", "<answer>2 * 3</answer>"]
    return pd.DataFrame([about | {"rank": i, "completion": text} for i, text in enumerate(texts)])


SETTINGS = {"temperature": 0.0, "top_k": 5, "top_p": 0.8, "max_tokens": 64, "beams": 4}
SETTINGS |= {"samples": 4, "rerank": "executor", "cascade": "2 x 1/1, 16/16", "redraws": 8}


@pytest.mark.parametrize("setting", SETTINGS)
def test_searches_that_differ_in_one_setting_are_two_systems(setting):
    """One keeps a game that wins, the other none: neither lends the other its win."""
    wins = games()
    misses = games(**{setting: SETTINGS[setting]}).assign(completion="<answer>2 + 3</answer>")
    found = systems.searches(judge(pd.concat([wins, misses], ignore_index=True)))
    assert found["any"].tolist() == [1, 0]
    assert found["method"].nunique() == 2
    assert found["method"].iloc[0] == "sft/pick 16/16"


def test_every_setting_of_a_search_tells_it_from_others():
    assert set(systems.SEARCH) == set(SearchSettings.__dataclass_fields__)
    for name, usual in vars(SearchSettings()).items():
        if not name.startswith("_") and name not in ("beams", "samples"):
            assert getattr(System, name) == usual, name


@pytest.mark.parametrize(
    ("settings", "printed"),
    [
        ({}, "16/16"),
        ({"temperature": 0.0}, "16/16 T0"),
        ({"beams": 1, "samples": 1, "temperature": 0.0}, "1/1"),
        ({"beams": 1, "samples": 1}, "1/1 T0.6"),
        ({"beams": 1, "samples": 1, "repeated": True}, "1/1 sampled"),
        ({"temperature": 0.9, "top_k": 50}, "16/16 T0.9"),
        ({"temperature": 0.9}, "16/16 T0.9 top-k=20"),
        ({"rerank": "soft", "weight": 4.0, "alpha": 0.0}, "16/16 +soft λ=4 α=0"),
        ({"cascade": "16 x 1/1, 16/16", "max_tokens": 64}, "16 x 1/1, 16/16 cap=64"),
        ({"redraws": 8}, "16/16 redrawn=8"),
    ],
)
def test_a_name_prints_what_is_unusual(settings, printed):
    name = systems.named(System("sft/pick", **systems.SIXTEEN | settings))
    assert name == f"sft/pick {printed}"
    row = systems.columns([name]).loc[name]
    assert row["policy"] == "sft/pick" and row["settings"] == printed and row["search"]
    assert all(row[setting] == value for setting, value in settings.items())


def test_two_systems_of_one_name_are_refused():
    systems.variant("sft/mine", "T0.8")
    with pytest.raises(ValueError, match="two systems are called 'sft/mine T0.8'.*temperature"):
        systems.named(System("sft/mine", temperature=0.8))


def test_a_name_is_read_by_no_grammar():
    assert systems.of("rloo/sparse") == System("rloo/sparse")
    assert systems.of("rloo/sparse T0.8") == System("rloo/sparse", temperature=0.8)
    with pytest.raises(LookupError, match="data/systems.csv"):
        systems.of("rloo/mine T0.8")
    name = systems.named(System("rloo/mine", temperature=0.8))
    assert systems.of(name).temperature == 0.8 and systems.at_start(name, "sft/b") == "sft/b T0.8"


def test_the_claims_and_the_papers_name_known_systems():
    claims = pd.read_csv(PAPER / "claims.csv")
    names = claims[["runs", "starts", "paper_runs"]].stack().dropna().str.split(";").explode()
    results = pd.read_csv(PAPER / "results.csv")["method"].dropna()
    names = pd.concat([names, results[~results.str.contains(" - ")]])
    assert not systems.columns(names)["policy"].str.contains(" ").any()


def test_samples_at_another_temperature_are_a_system_of_their_own():
    judged = pd.DataFrame({"method": ["a/b"] * 3, "temperature": [0.6, 0.8, 0.6]}, index=[4, 2, 9])
    assert systems.at_temperature(judged)["method"].tolist() == ["a/b", "a/b T0.8", "a/b"]
    assert systems.at_temperature(judged[:0]).empty


def test_samples_say_at_which_temperature_they_were_drawn():
    hot = judging.samples("data/reference/cpu/sample/hot_rloo_sparse_T0.8/0", ["heldout_1000"])
    assert set(hot["temperature"]) == {0.8}


GAME = {  # of a search that is run twice, with a value
    "run": "search/sft_pick",
    "method": "sft/pick",
    "seed": 0,
    "set": "test_50",
    "problem": 0,
    "nums": [2, 3],
    "target": 6,
    "beams": 16,
    "samples": 16,
    "rerank": "soft",
    "temperature": 0.9,
    "weight": 4.0,
    "alpha": 0.2,
    "beta": 0.05,
    "sampled": 16,
    "unreadable": 3,
    "number not there": 1,
    "division by zero": 0,
    "sample": 0,
    "rank": 0,
}
MISSES = "<answer>2 + 3</answer>"
# Two searches of one problem: the best game misses and the second hits; no game at all
TWO_SEARCHES = [
    GAME | {"completion": MISSES},
    GAME | {"rank": 1, "completion": "<answer>2 * 3</answer>"},
    GAME | {"sample": 1, "completion": ""},
]


def searches_of(rows) -> pd.DataFrame:
    return systems.searches(judge(pd.DataFrame(rows)))


def test_searched_by_hand():
    table = searches_of(TWO_SEARCHES)
    assert table[["pass@1", "any", "score", "rejected"]].values.tolist() == [
        [0, 1, 0.1, 0.25],
        [0, 0, 0, 0.25],
    ]
    assert set(table["settings"]) == {"16/16 +soft T0.9 λ=4 sampled"}


def test_searches_of_another_problem_are_rows_of_their_own():
    table = searches_of([*TWO_SEARCHES, GAME | {"problem": 1, "completion": MISSES}])
    assert table[["problem", "any"]].values.tolist() == [[0, 1], [0, 0], [1, 0]]


def test_a_run_that_searches_each_problem_once_is_not_called_sampled():
    by_seed = searches_of([*TWO_SEARCHES, GAME | {"seed": 1, "completion": ""}]).groupby("seed")
    assert by_seed["settings"].first().tolist() == [
        "16/16 +soft T0.9 λ=4 sampled",
        "16/16 +soft T0.9 λ=4",
    ]


def test_a_search_is_named_by_the_settings_that_count_in_it():
    usual = pd.DataFrame(TWO_SEARCHES).assign(weight=1.0, temperature=0.6).query("sample == 0")
    assert set(searches_of(usual)["settings"]) == {"16/16 +soft"}
    plain = usual.assign(rerank="none", weight=2.0)  # no value, so its weight is none of its name
    assert set(searches_of(plain)["settings"]) == {"16/16"}
    learned = plain.assign(rerank="learned")
    assert set(searches_of(learned)["settings"]) == {"16/16 +learned λ=2"}


def test_the_settings_of_no_searches_are_text():
    """Notebook 60 joins them to other text."""
    none = judge(pd.DataFrame(TWO_SEARCHES)).iloc[:0]
    assert systems.searches(none)["settings"].dtype == "str"


def test_the_pretrained_model_has_policies_of_its_own():
    """So its runs pair with each other, and never with those of the small model by their seeds."""
    trained = "rloo/sparse 135M"
    start = "sft/free 135M"
    assert systems.start_of(trained) == start == systems.root(trained) == systems.root(start)
    assert systems.lineage(trained) == (trained, start)
    assert systems.root("rloo/sparse") == "sft/free"
    assert [systems.trainer(name) for name in (trained, start)] == ["rloo", "sft"]
    assert systems.of(trained).policy == "rloo/sparse"
    # the usual start has two runs, and both count in the difference
    rows = [("sft/free", 0, 0.2), ("sft/free", 1, 0.4), (start, 0, 0.2)]
    scores = pd.DataFrame(rows, columns=["method", "seed", "pass@1"])
    scores = scores.merge(pd.DataFrame({"problem": range(8)}), how="cross").assign(set="x")
    scores = scores.set_index(["method", "seed", "set", "problem"])
    [gap] = intervals.differences(scores, [(start, "sft/free")])["estimate"]
    assert gap == pytest.approx(-0.1)
