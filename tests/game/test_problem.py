"""The problem sets: their sizes, no overlap, their hashes, and loading from the hub."""

import json
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from itertools import combinations
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pytest

from lib.files import PROBLEMS, REFERENCE, ROOT
from lib.game import sets as problem_sets
from lib.game import solver
from lib.game.expression import MAX_DIGITS
from lib.game.problem import Problem, ProblemSetError, as_problem, as_problems
from lib.runs.declare import read_notebook
from lib.runs.parameters import check
from tests.conftest import this_project

SIZES = {
    "showcase/test": 14, "3to4/test_50": 50, "3to4/validation_200": 200, "3to4/heldout_400": 400,
    "3to4/heldout_1000": 1000, "3to4/train": 50_000, "5num/test_50": 50, "5num/heldout_1000": 1000,
    "5num/train": 14_950, "6num/test_50": 50, "levels/test": 576, "3to4/validation": 1000,
    "3to4/sealed_2000": 2000, "3to4/sealed_1000": 1000, "3to4_low/train": 50_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def sets():
    return {name: as_problems(problem_sets.load(*name.split("/"))) for name in SIZES}


def test_sizes(sets):
    assert {name: len(rows) for name, rows in sets.items()} == SIZES
    assert set(json.loads((PROBLEMS / "manifest.json").read_text())) == set(SIZES)


def test_no_problem_stands_in_two_sets(sets):
    keys = [p.key for rows in sets.values() for p in rows]
    assert len(keys) == len(set(keys))


SEALED = {
    "sealed_2000": {"sealed_sft_free", "sealed_rloo_sparse", "sealed_rloo_sealed_pass4"},
    "sealed_1000": {"restarts_sft_free", "restarts_rloo_sparse", "restarts_rloo_pass4_half_rate"}
    | {"restarts_preference_ipo_half_rate"},
}
for share in ("0.0", "0.15", "0.5"):  # of the demonstrations that give up
    SEALED["sealed_1000"] |= {f"restarts_sft_gives_up_{share}"}
    SEALED["sealed_1000"] |= {f"restarts_preference_gives_up_{share}_ipo"}
    SEALED["sealed_1000"] |= {
        f"restarts_rloo_gives_up_{share}_{way}" for way in ("sparse", "pass4")
    }


@pytest.mark.parametrize("name", SEALED)
def test_a_sealed_set_is_apart_and_sampled_for_its_headline_alone(sets, name):
    """It shares no problem with what is trained on, and no run but those of its headline names
    it."""
    sealed = {p.key for p in sets[f"3to4/{name}"]}
    assert (
        len(sealed) == int(name.removeprefix("sealed_"))
        and not sealed & problem_sets.keys("train")
        and sealed <= problem_sets.keys("evaluation")
    )
    assert problem_sets.load_set(name).num_rows == len(sealed)
    records = {path: path.read_text() for path in REFERENCE.glob("*/*/*/*/run.json")}
    named = {path for path, text in records.items() if f'"{name}"' in text}
    named = {path.parts[-3] for path in named if path.parts[-4] != "study"}  # which only reads
    assert len(records) > 300
    specs = this_project().specs("cpu").values()
    asked = {spec.run for spec in specs if name in json.dumps(spec.params)} - {"study/restarts"}
    assert named == SEALED[name]
    assert asked == {f"sample/{run}" for run in named}


def test_mixture_and_ranges(sets):
    threes = {}
    for name, rows in sets.items():
        threes[name] = sum(len(problem.nums) == 3 for problem in rows)
    assert threes["3to4/test_50"] == 24
    assert threes["3to4/validation_200"] == 100
    assert threes["3to4/validation"] == 500
    assert threes["3to4/sealed_2000"] == 1000
    assert threes["3to4/heldout_400"] == 200
    assert threes["3to4/heldout_1000"] == 500
    assert threes["3to4/train"] == 24_800
    for name, rows in sets.items():
        if name.startswith(("3to4", "5num", "6num")):
            lowest = 1 if name == "3to4_low/train" else 10
            assert all(1 <= v <= 99 for p in rows for v in p.nums)
            assert all(lowest <= p.target <= 100 for p in rows)
    assert {len(p.nums) for p in sets["5num/train"] + sets["5num/test_50"]} == {5}
    assert {len(p.nums) for p in sets["6num/test_50"]} == {6}


def test_train_set_has_the_distribution_of_the_public_data(sets):
    train = sets["3to4/train"]
    assert np.mean([len(set(p.nums)) < len(p.nums) for p in train]) == pytest.approx(
        0.048, abs=0.005
    )
    targets = np.bincount([p.target for p in train], minlength=101)[10:]
    assert targets.min() > 0.75 * targets.mean() and targets.max() < 1.25 * targets.mean()


@pytest.mark.parametrize(
    "name", ["3to4/heldout_1000", "5num/test_50", "6num/test_50", "3to4/train"]
)
def test_integers_suffice(sets, name):
    rows = sets[name][:200]
    for n in {len(p.nums) for p in rows}:
        same = [p for p in rows if len(p.nums) == n]
        nums = np.array([p.nums for p in same])
        targets = np.array([p.target for p in same])
        assert solver.solvable_in_integers(nums, targets).all()


def test_solvable_in_integers_equals_a_search():
    def search(pool, target):
        if len(pool) == 1:
            return pool[0] == target
        for i, j in combinations(range(len(pool)), 2):
            rest = [pool[k] for k in range(len(pool)) if k not in (i, j)]
            low, high = sorted((pool[i], pool[j]))
            results = [low + high, high - low, low * high] + (
                [high // low] if low and high % low == 0 else []
            )
            if low and high == 0:
                results.append(0)
            if any(
                search([*rest, value], target)
                for value in {*results, *([0] if low == 0 < high else [])}
            ):
                return True
        return False

    rng = np.random.default_rng(1)
    nums = rng.integers(1, 30, (300, 4))
    targets = rng.integers(1, 101, 300)
    found = solver.solvable_in_integers(nums, targets)
    assert found.tolist() == [
        search(row, t) for row, t in zip(nums.tolist(), targets.tolist(), strict=True)
    ]
    assert 0 < found.sum() < 300
    # 6 / (1 - 3 / 4) = 24
    fraction = solver.solvable_in_integers(np.array([[1, 3, 4, 6]]), np.array([24]))
    assert solver.solutions(Problem((1, 3, 4, 6), 24)) and not fraction[0]


def test_every_quoted_problem_is_solvable(sets):
    assert all(solver.solutions(p) for p in sets["showcase/test"])
    assert Problem((35, 44, 19), 98).key in problem_sets.keys("evaluation")


def test_keys_hold_all_sets_but_train(sets):
    assert problem_sets.keys("evaluation") == {
        p.key for n, rows in sets.items() if "train" not in n for p in rows
    }


@pytest.mark.parametrize(
    "given",
    [
        (("a", 2), 5),
        ((1.5, 2), 3),
        ([1, 2], 3),
        ((), 3),
        ((1, 2), "3"),
        ((1, 2), 3.0),
        ((True, 2), 3),
    ],
)
def test_what_is_no_problem_is_refused(given):
    with pytest.raises(TypeError, match="tuple of whole numbers and a whole target"):
        Problem(*given)


def test_a_state_of_the_agent_may_hold_fractions():
    assert len(solver.solutions(Problem((Fraction(1, 2), 4), 2))) == 1


def test_load_gives_lists_of_int():
    rows = problem_sets.load("levels", "test")
    assert rows.column_names == ["nums", "target", "group"]
    assert isinstance(rows, datasets.Dataset)
    assert isinstance(rows[0]["nums"], list) and isinstance(rows[0]["nums"][0], int)


def test_seed_orders_train_sets_only():
    plain, shuffled, again = (problem_sets.load("5num", "train", seed=seed) for seed in (0, 3, 3))
    assert plain["target"] != shuffled["target"] and shuffled["target"] == again["target"]
    assert sorted(plain["target"]) == sorted(shuffled["target"])
    assert (
        problem_sets.load("3to4", "test_50", seed=3)["target"]
        == problem_sets.load("3to4", "test_50")["target"]
    )


@pytest.fixture
def copy(tmp_path, monkeypatch):
    folder = shutil.copytree(PROBLEMS, tmp_path / "problems")
    monkeypatch.setattr(problem_sets, "PROBLEMS", folder)
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A file of seven problems as a user writes it, at `path`: two of them are one problem, one we
    train on (`trained`), and one we evaluate on (`held_out`)."""
    train_row = problem_sets.load("3to4", "train")[0]
    held_out_row = problem_sets.load_set("heldout_1000")[0]
    trained = Problem(tuple(train_row["nums"][::-1]), train_row["target"])
    held_out = Problem(tuple(held_out_row["nums"][::-1]), held_out_row["target"])
    rows = [((3, 5, 7), 26), ((7, 3, 5), 26), ((1, 2, 300, 4, 5, 6), 700), ((8, 9), -1)]
    rows += [(problem.nums, problem.target) for problem in (trained, held_out)]
    lines = [f'"{", ".join(map(str, nums))}",{target},note' for nums, target in rows]
    path = tmp_path_factory.mktemp("own") / "own.csv"
    path.write_text("\n".join(["nums,target,why", *lines, "[4 6], 24 ,brackets", ""]))
    return SimpleNamespace(path=path, trained=trained, held_out=held_out)


def test_problems_of_ones_own_come_from_a_csv(own, capsys):
    """Evaluated on without what we train on, trained on without what we evaluate on; nothing
    committed changes."""
    before = (PROBLEMS / "manifest.json").read_bytes()
    evaluated = problem_sets.load_set(str(own.path))
    learnt = problem_sets.load(str(own.path), "train")
    first = [Problem((3, 5, 7), 26), Problem((1, 2, 300, 4, 5, 6), 700), Problem((8, 9), -1)]
    last = Problem((4, 6), 24)
    assert as_problems(evaluated) == [*first, own.held_out, last]
    assert as_problems(learnt) == [*first, own.trained, last]
    assert (
        "5 of 7 problems; the others are in a training set of ours, or repeated"
        in capsys.readouterr().out
    )
    assert (PROBLEMS / "manifest.json").read_bytes() == before


def test_a_parameter_may_name_a_file_of_problems(own):
    path = str(own.path)
    check({"sets": {path: 4}, "eval_set": path, "problem_set": path})


def test_a_set_of_the_hub_needs_its_source():
    pairs, _ = read_notebook(ROOT / "notebooks/12_sample_pairs.ipynb")
    pairs["problem_set"] = "someone/countdown"
    check(pairs | {"source": "hub"}, notebook="12_sample_pairs")
    with pytest.raises(ValueError, match="a set of the hub needs source: hub"):
        check(pairs | {"source": "generated"}, notebook="12_sample_pairs")
    with pytest.raises(ValueError, match="no such entry"):
        check({"eval_set": "someone/countdown"})


@pytest.mark.parametrize(
    "given, message",
    [
        ({"eval_set": "none.csv"}, r"there is no file none\.csv"),
        ({"problem_set": "a/none.csv"}, r"there is no file a/none\.csv"),
        ({"problem_set": "my.xlsx"}, r"files of problems end in \.csv, \.jsonl, \.parquet"),
    ],
)
def test_a_parameter_that_names_no_file_of_problems_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        check(given)


@pytest.mark.parametrize(
    "line, message",
    [
        ("1.5 2,3", "line 3: '1.5 2', '3' is not a problem"),
        ("44,98", "line 3: .*: a problem has two to six numbers, not 1; write"),
        ("1 2 3 4 5 6 7,28", "line 3: .*: a problem has two to six numbers, not 7"),
        ("-4 2,3", "line 3: .*: '-4' is no whole number of at least 1"),
        ("0 2,2", "line 3: .*: '0' is no whole number of at least 1"),
        ("4.5 2,3", "line 3: .*: '4.5' is no whole number of at least 1"),
        ("4 2,six", "line 3: .*: the target 'six' is no whole number"),
        ("4 2,", "line 3: .*: the target is missing"),
        ("4 2,3.5", "line 3: .*: the target '3.5' is no whole number"),
        ("4 2", "line 3: '4 2', None is not a problem: the target is missing"),
        ("4 2,1e3", "line 3: .*: the target '1e3' is no whole number"),
        ("4 2,+6", "line 3: .*: the target '\\+6' is no whole number"),
        ('4 2,"1,540"', "line 3: .*: the target '1,540' is no whole number"),
        ("4 two,3", "line 3: .*: 'two' is no whole number"),
        # a comma of thousands, or of a list?
        ('"1,540 60",600', "line 3: .*: '540 60' is no whole number"),
        ("44 19,35,98", "line 3 has more cells than the header, '98' first"),
        ("44 19 35,98,7", "line 3 has more cells than the header, '7' first"),
    ],
)
def test_a_csv_line_that_is_no_problem_is_named(tmp_path, line, message):
    (tmp_path / "own.csv").write_text(f"nums,target\n3 5 7,26\n{line}\n")
    with pytest.raises(ProblemSetError, match=message):
        problem_sets.load_set(str(tmp_path / "own.csv"))


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("own.csv", "nums,target,target\n44 19 35,98,7\n", "two of its columns are called target"),
        ("own.csv", "nums,nums,target\n44 19 35,1 2,98\n", "two of its columns are called nums"),
        (
            "own.jsonl",
            '{"nums": [3, 5], "target": 8, "target": 7}\n',
            "line 1: two of its fields are called target",
        ),
    ],
)
def test_what_stands_twice_is_refused(tmp_path, name, text, message):
    """Python would take the last one in silence."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ProblemSetError, match=message):
        problem_sets.from_file(tmp_path / name)


def test_another_ending_of_a_name_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "OWN.CSV").write_text("nums,target\n3 5 7,26\n")
    with pytest.raises(
        ProblemSetError, match=r"OWN.CSV is no file of problems: its name must end in .csv"
    ):
        problem_sets.from_file(tmp_path / "OWN.CSV")


def test_a_row_may_have_the_largest_numbers_that_an_answer_can_hold():
    largest = 10**MAX_DIGITS - 1
    assert as_problem([largest, 2], -largest) == Problem((largest, 2), -largest)
    for nums, target in (([largest + 1, 2], 3), ([3, 2], largest + 1)):
        with pytest.raises(ProblemSetError, match="is not a problem"):
            as_problem(nums, target)


def test_a_file_of_which_no_problem_may_be_used_is_refused(tmp_path):
    taken = as_problems(problem_sets.load_set("test_50"))[0]
    (tmp_path / "own.csv").write_text(
        f"nums,target\n{' '.join(map(str, taken.nums))},{taken.target}\n"
    )
    with pytest.raises(
        ProblemSetError, match="no problem is left of 1: all are in an evaluation set"
    ):
        problem_sets.load(str(tmp_path / "own.csv"), "train")


def test_a_csv_that_is_none_is_refused(tmp_path):
    for name in ("own.csv", "own.jsonl", "own.parquet"):
        with pytest.raises(
            ProblemSetError, match=rf"there is no file {tmp_path}/{name}; a path starts at"
        ):
            problem_sets.load_set(str(tmp_path / name))
    (tmp_path / "own.csv").write_text("nums,target\n")
    with pytest.raises(ProblemSetError, match=r"own\.csv has no problems: it has no rows"):
        problem_sets.load_set(str(tmp_path / "own.csv"))
    (tmp_path / "own.csv").write_text("numbers,target\n")
    with pytest.raises(ProblemSetError, match="no column nums; it has numbers, target"):
        problem_sets.load_set(str(tmp_path / "own.csv"))


def test_a_problem_is_imported_without_what_reads_tables():
    code = (
        "import sys, lib.rewards; print(sorted({'pandas', 'datasets', 'torch'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        ).stdout
        == "[]\n"
    )


def test_a_changed_file_is_refused(copy):
    path = copy / "3to4-test_50.parquet"
    rows = pd.read_parquet(path)
    rows.loc[7, "target"] += 1
    rows.to_parquet(path)
    with pytest.raises(
        ValueError,
        match=r"3to4-test_50\.parquet is damaged \(it is not the set of .*manifest\.json",
    ):
        problem_sets.load("3to4", "test_50")
    assert len(problem_sets.load("3to4", "heldout_400")) == 400


def test_a_truncated_or_missing_file_is_refused(copy):
    path = copy / "3to4-test_50.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"3to4-test_50\.parquet is damaged"):
        problem_sets.load("3to4", "test_50")
    manifest = (copy / "manifest.json").read_bytes()
    # a bit of it flipped
    for old, new in [(b"{", b"z"), (b"3", b"\xb3"), (b'"file"', b'"fihe"'), (b'": {', b'": [')]:
        (copy / "manifest.json").write_bytes(manifest.replace(old, new, 1))
        with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
            problem_sets.load("3to4", "heldout_400")
    (copy / "manifest.json").unlink()
    with pytest.raises(ProblemSetError, match=r"manifest\.json is missing"):
        problem_sets.load("3to4", "test_50")


def test_unknown_names_are_refused():
    with pytest.raises(
        ProblemSetError, match=r"no problem set 3to4/test; there are .*3to4/test_50"
    ):
        problem_sets.load("3to4", "test")
    with pytest.raises(ProblemSetError, match="use 'generated' or 'hub'"):
        problem_sets.load("3to4", "train", source="hugging")
    with pytest.raises(ProblemSetError, match="no hub set is known for 'levels'"):
        problem_sets.load("levels", "test", source="hub")


def test_hub_rows_are_filtered_against_evaluation_sets(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    held_out = problem_sets.load("3to4", "heldout_1000")[0]
    rows = {
        "nums": [[44, 19, 35], held_out["nums"][::-1], [1, 2, 3]],
        "target": [98, held_out["target"], 6],
    }
    (tmp_path / "hub").mkdir()
    pd.DataFrame(rows | {"extra": ["a", "b", "c"]}).to_parquet(tmp_path / "hub" / "train.parquet")
    loaded = problem_sets.load(str(tmp_path / "hub"), "train", source="hub")
    assert as_problems(loaded) == [Problem((1, 2, 3), 6)]
    assert loaded.column_names == ["nums", "target"]
    assert "1 of 3 problems; the others are in an evaluation set" in capsys.readouterr().out


def test_a_hub_set_says_its_commit_which_may_be_named(tmp_path, monkeypatch, capsys):
    """A folder's is a hash of its files. Of a hub set `datasets` keeps the commit in its cache,
    from where it loads without a network."""
    cache = tmp_path / "cache"
    own = tmp_path / "own"
    commit = "c" * 40
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    own.mkdir()
    (own / "train.jsonl").write_text('{"nums": [3, 5, 7], "target": 26}')
    assert problem_sets.from_hub(str(own), "train") == MINE[:1]
    said = re.fullmatch(rf"hub set: {own}@([0-9a-f]{{16}})\n", capsys.readouterr().out)
    prepared = cache / "own/default/0.0.0" / said[1]
    shutil.copytree(prepared, cache / "owner___own/default/0.0.0" / commit)
    assert problem_sets.from_hub("owner/own", "train") == MINE[:1]
    assert capsys.readouterr().out == f"hub set: owner/own@{commit}\n"
    asked = []
    rows = problem_sets.hub_rows(str(own), "train")
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, **given: asked.append((name, given)) or rows
    )
    problem_sets.from_hub("owner/own@v1", "train")
    assert asked == [("owner/own", {"split": "train", "revision": "v1"})]
    pairs, _ = read_notebook(ROOT / "notebooks/12_sample_pairs.ipynb")
    check(pairs | {"problem_set": "owner/own@v1", "source": "hub"}, notebook="12_sample_pairs")


def test_a_hub_set_that_cannot_be_loaded_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(ProblemSetError, match=r"cannot be loaded .* source='generated'"):
        problem_sets.load("nobody/nothing", "train", source="hub")
    pd.DataFrame({"query": ["a"]}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ProblemSetError, match="has no column nums, target"):
        problem_sets.load(str(tmp_path), "train", source="hub")


def test_rows_about_evaluation_problems_are_excluded(capsys):
    rows = {"nums": [[35, 19, 44], [1, 2, 3]], "target": [98, 6], "text": ["a", "b"]}
    assert problem_sets.exclude(datasets.Dataset.from_dict(rows))["text"] == ["b"]
    assert "1 of 2 rows dropped" in capsys.readouterr().out


MINE = [Problem((3, 5, 7), 26), Problem((2, 3, 7, 8), 24)]


@pytest.mark.parametrize(
    "text",
    [
        "nums,target\n3 5 7,26\n2 3 7 8,24\n",
        # as a spreadsheet of half of Europe writes it
        "\ufeffnums;target\r\n3 5 7;26\r\n2,3,7,8;24\r\n",
        "nums\ttarget\n3, 5, 7\t26\n2; 3; 7; 8\t24\n",
        'nums, target\n"(3, 5, 7)",26.0\n"[ 2 3  7 8]", 24\n',
        # a name may hold a sign that separates elsewhere
        '"a;b",nums,target\n0,3 5 7,26\n0,2 3 7 8,24\n',
        "nums,target\r3 5 7,26\r2 3 7 8,24\r",  # of an old Mac
        "nums,target,\n3 5 7,26,\n2 3 7 8,24,\n",  # an empty cell at the end of each line
        'id,nums,target\n0,"[3.0, 5.0, 7.0]",26\n\n1,"[2, 3, 7, 8]",24\n',
    ],
)
def test_a_csv_may_be_written_in_many_ways(tmp_path, text):
    (tmp_path / "own.csv").write_bytes(text.encode())
    assert problem_sets.from_file(tmp_path / "own.csv") == MINE


def test_lines_are_counted_as_an_editor_counts_them(tmp_path):
    """Blank lines, and a quoted text of several lines, stand above the line that is not a
    problem."""
    (tmp_path / "own.csv").write_text('nums,target,why\n3 5 7,26,"one\ntwo"\n\n4 2,six,\n')
    with pytest.raises(ProblemSetError, match=r"own\.csv, line 5: '4 2', 'six' is not a problem"):
        problem_sets.from_file(tmp_path / "own.csv")
    (tmp_path / "own.jsonl").write_text('{"nums": [3, 5, 7], "target": 26}\n\n{"nums": [4, 2]}\n')
    with pytest.raises(
        ProblemSetError, match=r"own\.jsonl, line 3: \[4, 2\], None is not a problem"
    ):
        problem_sets.from_file(tmp_path / "own.jsonl")


def test_jsonl_is_cut_at_line_ends_alone(tmp_path):
    """U+2028 and its like are characters of a text; a byte order mark and blank lines are
    nothing."""
    rows = [
        {"question": "a\u2028b\u2029c\u0085d", "nums": [3, 5, 7], "target": 26},
        {"metadata": {"numbers": [2, 3, 7, 8], "target": 24}},
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "own.jsonl").write_text("\ufeff" + "\n\n".join(lines) + "\n\n")
    assert problem_sets.from_file(tmp_path / "own.jsonl") == MINE


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2: Expecting property name"),
        ("[" * 100_000, "line 2: maximum recursion depth"),
        ("[1, 2]", r"line 2: \[1, 2\] is no JSON object"),
        ("5", "line 2: 5 is no JSON object"),
        ('{"nums": 5, "target": 3}', "line 2: 5, 3 is not a problem"),
        ('{"target": 3}', "line 2: None, 3 is not a problem"),
        ('{"nums": [1, true], "target": 2}', "line 2"),
        ('{"nums": [1, 2.5], "target": 2}', "line 2"),
        ('{"metadata": [1]}', r"line 2: \[1\] is no JSON object"),
        ('{"nums": [1, 2], "target": ' + "9" * 4000 + "}", "line 2: .{0,200} is not a problem"),
    ],
)
def test_a_jsonl_line_that_is_no_problem_is_named(tmp_path, line, message):
    (tmp_path / "own.jsonl").write_text('{"nums": [3, 5, 7], "target": 26}\n' + line + "\n")
    with pytest.raises(ProblemSetError, match=rf"own\.jsonl.*{message}"):
        problem_sets.from_file(tmp_path / "own.jsonl")


def test_a_parquet_file_may_hold_floats_and_no_bytes(tmp_path):
    table = pd.DataFrame({"nums": [[3, 5, 7], [2, 3, 7, 8]], "target": [26.0, 24.0]})
    table.to_parquet(tmp_path / "own.parquet")
    assert problem_sets.from_file(tmp_path / "own.parquet") == MINE
    table.assign(nums=[b"3 5 7", b"2 3 7 8"]).to_parquet(tmp_path / "own.parquet")
    with pytest.raises(ProblemSetError, match="row 0: b'3 5 7', 26.0 is not a problem"):
        problem_sets.from_file(tmp_path / "own.parquet")


def test_problems_without_a_solution_are_counted_and_named(tmp_path, capsys):
    (tmp_path / "own.csv").write_text("nums,target\n3 5 7,26\n1 1,50\n2 2,90\n1 2 3 4 5,6\n")
    # they stay: pass@k has a lower ceiling
    assert len(problem_sets.load_set(str(tmp_path / "own.csv"))) == 4
    assert "own.csv: 2 of 4 have no solution: 1, 1 -> 50; 2, 2 -> 90\n" in capsys.readouterr().out


@pytest.mark.parametrize(("lost", "more"), [(5, ""), (6, "; ...")])
def test_only_five_problems_without_a_solution_are_named(tmp_path, capsys, lost, more):
    lines = [f"1 {n},{50 + n}" for n in range(1, lost + 1)]
    (tmp_path / "own.csv").write_text("\n".join(["nums,target", "3 5 7,26", *lines]))
    problem_sets.load_set(str(tmp_path / "own.csv"))
    named = "; ".join(f"1, {n} -> {50 + n}" for n in range(1, 6))
    assert (
        f"own.csv: {lost} of {lost + 1} have no solution: {named}{more}\n"
        in capsys.readouterr().out
    )


def test_how_many_problems_are_solved_on_loading_depends_on_the_largest(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(problem_sets.CHECKED, 5, 2)
    (tmp_path / "own.csv").write_text("nums,target\n3 5 7,26\n1 1,50\n2 2,90\n1 2 3 4 5,6\n")
    assert len(problem_sets.load_set(str(tmp_path / "own.csv"))) == 4
    assert (
        "own.csv: 1 of the 2 that were solved have no solution: 1, 1 -> 50\n"
        in capsys.readouterr().out
    )


INTERRUPTED = """
import os, signal, sys, threading, time

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
from lib.game.sets import load_set

def interrupt():
    while "datasets.features.features" not in sys.modules:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    load_set("validation_200")
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted,", len(load_set("validation_200")))
"""


def test_an_interrupt_while_datasets_is_imported_leaves_it_whole():
    """Python would keep one half of the package, and every later use of it would fail."""
    command = [sys.executable, "-c", INTERRUPTED]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert made.stdout == "interrupted, 200\n", made.stderr
