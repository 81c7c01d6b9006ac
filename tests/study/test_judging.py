"""Judged tables from run folders: the method and style of each row, and verdicts that are kept as
long as they are true."""

import ast
import hashlib
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lib.files import ROOT, read_table, sha256, skeleton, write_table
from lib.study import judging

GIVEN = {"set": "test_50", "problem": 0, "nums": [44, 19, 35], "target": 98}
MEASURED = {"tokens": 9, "logprob": -1.5, "finish": "stop", "count": 2}


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "CACHE", tmp_path / "verdicts")
    return tmp_path / "verdicts"


@pytest.fixture
def made(tmp_path):
    """A function that makes a finished run's folder."""

    def make(name, texts, style="free", seed=0, method="sft/free", file="generations.parquet"):
        folder = tmp_path / "runs" / name / str(seed)
        rows = [GIVEN | MEASURED | {"completion": text} for text in texts]
        write_table(pd.DataFrame(rows), folder / file)
        record = {
            "run": name,
            "method": method,
            "seed": seed,
            "parameters": {"prompt_style": style},
        }
        (folder / "run.json").write_text(json.dumps(record))
        return folder

    return make


RIGHT, PROGRAM = "<answer>44 + 19 + 35</answer>", "<answer>a = 44 + 19\nb = a + 35</answer>"


def test_samples_hold_who_what_and_the_verdict(made, tmp_path):
    made("sample/sft_free", [RIGHT, "nothing"])
    made("sample/rloo_sparse", [RIGHT], seed=1, method="rloo/sparse")
    table = judging.samples([f"{tmp_path}/runs/sample/*/*"])
    assert table["method"].tolist() == ["rloo/sparse", "sft/free", "sft/free"]
    assert table["seed"].tolist() == [1, 0, 0] and table["count"].tolist() == [2, 2, 2]
    assert table["status"].tolist() == ["correct", "correct", "missing"]
    assert table["solution"].tolist() == ["19 + 44 + 35", "19 + 44 + 35", ""]
    assert not set(judging.TEXTS) & set(table)
    assert judging.samples(tmp_path / "runs/sample/sft_free/0", sets=["heldout_1000"]).empty
    assert set(judging.TEXTS) < set(
        judging.samples(tmp_path / "runs/sample/sft_free/0", texts=True)
    )


def test_the_folders_of_runs_whose_method_has_a_part_in_its_name(made, tmp_path):
    trace = made("sample/a", [RIGHT], method="rloo/trace_gated")
    start = made("sample/b", [RIGHT], method="sft/trace")
    free = made("sample/c", [RIGHT], method="sft/free")
    found = [
        judging.folders(f"{tmp_path}/runs/*/*/*", part)
        for part in ("", "trace", "sft/trace", "ast")
    ]
    assert found == [[trace, start, free], [trace, start], [start], []]


def test_one_run_in_two_folders_is_refused(made, tmp_path):
    first = made("sample/sft_free", [RIGHT])
    second = made("sample/copy", [RIGHT])
    assert judging.folders([first, f"{first.parent}/./0"]) == [first]
    for folder in (first, second):
        path = folder / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"id": "same"}))
    with pytest.raises(ValueError, match="hold the same run, which would count twice"):
        judging.samples([first, second])


def test_the_fifty_problems_are_the_hubs_where_all_runs_were_asked_those(made):
    def drawn(name, *sets):
        folder = made(f"sample/{name}", [RIGHT, "nothing"], method=name)
        rows = read_table(folder / "generations.parquet")
        write_table(
            pd.concat([rows.assign(set=one, tokens=len(one)) for one in sets]),
            folder / "generations.parquet",
        )
        record = json.loads((folder / "run.json").read_text())
        record["parameters"] |= {"sets": dict.fromkeys(sets, 2)}
        (folder / "run.json").write_text(json.dumps(record))
        return folder

    both = drawn("both", "test_50", "hub_test_50", "heldout_1000")
    hub = drawn("hub", "hub_test_50")
    neither = drawn("neither", "heldout_1000")
    ours = drawn("ours", "test_50")

    def sets(*folders, **options):
        table = judging.samples(folders, **options)
        assert table["correct"].mean() == 0.5
        return {method: sorted(rows["set"]) for method, rows in table.groupby("method")}

    twice = ["test_50"] * 2
    held = ["heldout_1000"] * 2
    assert {*judging.samples([both, hub], sets=["test_50"])["tokens"]} == {len("hub_test_50")}
    assert sets(both, hub, neither) == {"both": held + twice, "hub": twice, "neither": held}
    assert sets(both, hub, sets=["test_50"]) == {"both": twice, "hub": twice}
    assert sets(both, neither, sets=["heldout_1000"]) == {"both": held, "neither": held}
    assert sets(both, ours, sets=["test_50"]) == {"both": twice, "ours": twice}, (
        "ours, which both have"
    )
    assert sets(both, ours)["both"] == held + ["hub_test_50"] * 2 + twice
    five = drawn("five", "test_5num_50", "hub_test_5num_50")
    assert {*judging.samples([five], sets=["test_5num_50"])["tokens"]} == {len("hub_test_5num_50")}
    assert sets(five, ours) == {"five": ["test_5num_50"] * 2, "ours": twice}


def test_the_style_is_that_of_the_run(made):
    program = made("sample/sft_program", [PROGRAM], style="program", method="sft/program")
    free = made("sample/sft_free", [PROGRAM])
    statuses = judging.samples([program, free]).set_index("method")["status"]
    assert statuses["sft/program"] == "correct" and statuses["sft/free"] == "unparseable"
    with pytest.raises(ValueError, match="no verifier for prompt style 'programm'.*'program'"):
        judging.samples(made("sample/other", [PROGRAM], style="programm"))


def test_verdicts_are_kept_by_file_and_by_code(made, kept, monkeypatch):
    folder = made("sample/sft_free", [RIGHT])
    judged = []
    judge = judging.judge
    monkeypatch.setattr(judging, "judge", lambda *args: judged.append(args) or judge(*args))
    first = judging.samples(folder)
    again = judging.samples(folder)
    pd.testing.assert_frame_equal(first, again)
    assert len(judged) == 1 and len(list(kept.glob("*.parquet"))) == 1
    made("sample/sft_free", ["nothing"])  # another file in its place
    assert judging.samples(folder)["status"].tolist() == ["missing"] and len(judged) == 2
    monkeypatch.setattr(judging, "code", lambda: "changed")
    judging.samples(folder)
    assert len(judged) == 3
    file = next(kept.glob("*changed*.parquet"))
    whole = file.read_bytes()
    assert b"missing" in whole
    for torn in (b"torn", whole.replace(b"missing", b"correct")):  # a damaged one is judged again
        file.write_bytes(torn)
        assert judging.samples(folder)["status"].tolist() == ["missing"]
        assert read_table(file)["status"].tolist() == ["missing"]
    assert len(judged) == 5


def test_verdicts_are_kept_apart_by_set_and_by_look(made):
    folder = made("sample/sft_free", [RIGHT, "nothing"])
    rows = read_table(folder / "generations.parquet")
    other = rows.assign(set="heldout_1000", completion=["<answer>44</answer>", RIGHT])
    write_table(pd.concat([rows, other], ignore_index=True), folder / "generations.parquet")
    for _ in range(2):  # judged, and as it is kept
        table = judging.samples(folder, verdicts=("answer", "expression"))
        assert table["status"].tolist() == ["correct", "missing", "wrong_numbers", "correct"]
        assert table["expression"].tolist() == ["19 + 44 + 35", "", "44", "19 + 44 + 35"]


def test_steps_are_read_in_free_text_and_not_in_programs(made):
    folders = [
        made("sample/p", [PROGRAM], style="program", method="sft/program"),
        made("sample/f", [RIGHT]),
    ]
    table = judging.samples(folders, verdicts=("answer", "steps")).set_index("method")
    assert table.loc["sft/free", "attempts"] == 0 and np.isnan(table.loc["sft/program", "attempts"])


def test_published_verdicts_count_for_the_code_and_the_content_that_they_name(
    made, kept, monkeypatch, tmp_path
):
    folder = made("sample/sft_free", [RIGHT, "nothing"])
    named = tmp_path / "judged_by.txt"
    samples = folder / "generations.parquet"
    ours = judging.samples(folder)["status"].tolist()
    verdicts = read_table(next(kept.glob("*.parquet"))).assign(status="as published")
    content = judging.content(samples)
    monkeypatch.setattr(judging, "JUDGED_BY", named)
    for code, of, rows, said in [
        (judging.code(), content, 2, ["as published"] * 2),
        ("another", content, 2, ours),
        (judging.code(), "another", 2, ours),
        (judging.code(), content, 1, ours),  # no verdict on the second row
    ]:
        columns = {
            name: [*verdicts[name].tolist()[:rows], *[None] * (2 - rows)] for name in verdicts
        }
        table = pa.table(columns).replace_schema_metadata({"content": of})
        file = folder / judging.VERDICTS_FILE
        pq.write_table(table, file)
        named.write_text(f"{code}\n{sha256(file)}  {file.relative_to(tmp_path)}\n")
        judging.trusted.cache_clear()
        found = judging.samples(folder)
        assert found["status"].tolist() == said
        assert found["correct"].dtype.kind == "b"
    named.write_text(f"{judging.code()}\n{'0' * 64}  {file.relative_to(tmp_path)}\n")
    judging.trusted.cache_clear()
    with pytest.raises(
        ValueError,
        match=r"verdicts.parquet is damaged .its content is not the one that judged_by.txt",
    ):
        judging.samples(folder)
    named.write_text(f"{judging.code()}\n")  # a file that is not listed is not used
    judging.trusted.cache_clear()
    assert judging.samples(folder)["status"].tolist() == ours
    # of which none is published
    of_other_kind = judging.samples(folder, verdicts=("expression",))["expression"].tolist()
    assert of_other_kind == ["19 + 44 + 35", ""]
    judging.trusted.cache_clear()


def test_the_code_that_judges_is_known_by_what_it_does():
    """A comment or a docstring changes no verdict, and neither does another version of Python."""

    def known(source):
        return hashlib.blake2b(
            json.dumps(skeleton(ast.parse(source))).encode(), digest_size=8
        ).hexdigest()

    source = (
        '''def f(x):\n    """What."""\n    return f"{', '.join(x)}: {x[0]!r:.60}" 'end'  # why\n'''
    )
    assert (
        known(source)
        == known(source.replace("What", "Other").replace("  # why", ""))
        == "27f7452d21082fd3"
    )
    assert known(source) != known(source.replace("x[0]", "x[1]"))


def test_a_folder_that_cannot_be_written_is_judged_all_the_same(made, kept):
    kept.write_text("no folder")  # not even root writes into this
    folder = made("sample/sft_free", [RIGHT])
    assert judging.samples(folder)["correct"].tolist() == [True]
    assert kept.read_text() == "no folder"


def test_missing_and_damaged_runs_are_named(made, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nobody/\*: no finished run there"):
        judging.samples([tmp_path / "runs/nobody/*"])
    folder = made("sample/sft_free", [RIGHT])
    for text, why in ('{"run": "sample/sft_free"}', "method"), ("[]", "list"), ("{", "Expecting"):
        (folder / "run.json").write_text(text)
        with pytest.raises(
            ValueError, match=rf"run.json is damaged .*{why}.*this run is made anew"
        ):
            judging.samples(folder)
    with pytest.raises(ValueError, match=r"run.json is damaged .*this run is made anew"):
        read_table(folder / "generations.parquet")


def test_a_set_that_does_not_exist_and_a_run_without_completions_are_named(made):
    folder = made("rloo/sparse", [RIGHT])
    with pytest.raises(
        ValueError, match="no evaluation set 'heldout_100': did you mean 'heldout_1000'"
    ):
        judging.samples(folder, sets=["heldout_100"])
    for known in (["heldout_1000"], ["my.csv"], ["all"], "heldout_1000"):
        assert judging.samples(folder, sets=known).empty
    record = json.loads((folder / "run.json").read_text()) | {"files": {"metrics.csv": {}}}
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(FileNotFoundError, match="this run wrote no generations.parquet: sample it"):
        judging.samples(folder)


def test_no_folders_give_an_empty_table(made):
    table = judging.samples([], verdicts=("answer", "trace"))
    assert table.empty and {"method", "seed", "set", "status", "goes_on"} <= set(table)
    assert judging.logs([]).empty and judging.logs([], ["kl"]).columns.tolist()[-1] == "kl"


def test_logs(made, tmp_path):
    for seed in (0, 1):
        folder = made("rloo/sparse", [RIGHT], seed=seed, method="rloo/sparse")
        write_table(pd.DataFrame({"step": [1, 2], "kl": [0.0, 0.1 + seed]}), folder / "metrics.csv")
    log = judging.logs(f"{tmp_path}/runs/rloo/*/*")
    assert log.columns.tolist() == ["run", "method", "seed", "step", "kl"]
    assert log["seed"].tolist() == [0, 0, 1, 1] and log["kl"].tolist() == [0, 0.1, 0, 1.1]
    assert judging.logs(f"{tmp_path}/runs/rloo/*/*", ["entropy"])["entropy"].isna().all()


def judged_one(text, name, style="free", finish="stop", nums=(44, 19, 35), target=98):
    row = {"nums": list(nums), "target": target, "completion": text, "finish": finish}
    return judging.judge(pd.DataFrame([row]), style, name).iloc[0]


def test_the_look_at_steps_by_hand():
    text = "<think>44 + 19 = 63, 63 + 35 = 98\n44 + 19 = 62</think><answer>44 + 19</answer>"
    row = judged_one(text, "steps")
    assert row[["equations", "true", "distinct", "signs"]].tolist() == [3, 2, 2, 3]
    assert row["legal"] == pytest.approx(2 / 3) and row["lost"] == 1 and row["attempts"] == 2
    assert judged_one("no", "steps")[judging.VERDICT_KINDS["steps"].columns].tolist() == [
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
    assert judged_one(text.replace("44 + 19</a", "44 + 19 + 35</a"), "steps")["lost"] == 0


def test_the_look_at_programs_by_hand():
    assert judged_one(PROGRAM, "program", "program")[
        judging.VERDICT_KINDS["program"].columns
    ].tolist() == [5, 2, 1]
    # read as one line of a program
    assert judged_one(RIGHT, "program")[judging.VERDICT_KINDS["program"].columns].tolist() == [
        5,
        1,
        1,
    ]
    assert judged_one("<answer>44 + 19</answer>", "program")["passed"] == 3
    assert judged_one("nothing", "program")[judging.VERDICT_KINDS["program"].columns].tolist() == [
        0,
        0,
        0,
    ]


# Listing 2 of paper trace
TRACE_LINES = [
    "state [8, 27, 47, 79]",
    "try 79 + 47 = 126",
    "state [8, 27, 126]",
    "try 126 - 27 = 99",
    "state [8, 99]",
    "try 99 - 8 = 91",
    "state [91]",
]
LISTING = "\n".join(["<think>", *TRACE_LINES, "</think>", "<answer>((126 - 27) - 8)</answer>"])


def traced_one(text, finish="stop"):
    return judged_one(text, "trace", "trace", finish, nums=(79, 8, 27, 47), target=91)


def test_the_look_at_traces_by_hand():
    """Every line holds, the answer uses a value that the trace made."""
    assert traced_one(LISTING)[judging.TRACE].tolist() == [0, 1, 1, 1, 1, 0, 0]


def test_a_trace_goes_on_where_its_text_does_not_end_with_its_answer():
    assert traced_one(LISTING + " more")["goes_on"] == 1
    assert traced_one(LISTING, "length")["goes_on"] == 1
    open_end = traced_one(LISTING.partition("</answer>")[0])
    assert pd.isna(open_end["goes_on"]) and open_end["reached"] == 1


def test_one_trace_may_have_ended_in_two_ways():
    ends = pd.DataFrame(
        {
            "nums": [[79, 8, 27, 47]] * 2,
            "target": 91,
            "completion": LISTING,
            "finish": ["stop", "length"],
        }
    )
    assert judging.judge(ends, "trace", "trace")["goes_on"].tolist() == [0, 1]


WRONG = "<answer>44</answer>"


@pytest.mark.parametrize(
    "text, whole, stopped",
    [
        (RIGHT + " more", "correct", "correct"),
        (RIGHT + WRONG, "wrong_numbers", "correct"),
        (WRONG + RIGHT, "correct", "wrong_numbers"),
        (RIGHT, "correct", "correct"),
        ("44 + 19 = 63", "missing", "missing"),
        ("</answer>" + RIGHT, "correct", "missing"),
    ],
)
def test_a_sample_that_is_stopped_is_judged_by_its_first_answer(made, text, whole, stopped):
    read = judging.samples(made("sample/sft_free", [text]), texts=True)
    assert read["status"].tolist() == [whole]
    found = judging.stopped_at_answer(read)
    assert found["status"].tolist() == [stopped]
    assert found["correct"].tolist() == [stopped == "correct"]
    assert found["completion"].str.count("</answer>").le(1).all()
    kept = ["method", "seed", "set", "problem", "tokens", "count"]
    pd.testing.assert_frame_equal(found[kept], read[kept])


def test_stopped_samples_keep_their_order_and_their_verifier(made, tmp_path):
    made("sample/sft_program", [PROGRAM + RIGHT], "program", method="sft/program")
    made("sample/sft_free", [RIGHT + PROGRAM, RIGHT])
    read = judging.samples([f"{tmp_path}/runs/sample/*/*"], texts=True)
    read = read.sample(frac=1, random_state=1)
    found = judging.stopped_at_answer(read)
    assert found.index.equals(read.index) and found["correct"].all()
    assert found.columns.equals(read.columns)
    assert judging.stopped_at_answer(read[:0]).empty


def test_products_and_quotients_of_a_trace_and_of_its_answer_are_found():
    by = traced_one("<think>try 79 / 8 = 9</think><answer>79 + 8</answer>")
    assert by[["trace_muldiv", "answer_muldiv"]].tolist() == [1, 0]
    times = traced_one("<think>try 8 * 79 = 632</think><answer>79 / 8</answer>")
    assert times[["trace_muldiv", "answer_muldiv", "reached"]].tolist() == [1, 1, 0]


HYGIENE = """
import sys, importlib
heavy = {"torch", "transformers", "trl", "datasets", "scipy.stats", "matplotlib"}
for room in ("game.verifiers", "study.judging", "study.metrics", "study.explorer", "runs.plan"):
    module = importlib.import_module(f"lib.{room}")
    print(room, sorted(heavy & set(sys.modules)))
module.Project().specs("cpu")
print("resolved", sorted(heavy & set(sys.modules)))
"""


def test_what_judges_texts_starts_without_what_trains():
    """Seconds of every kernel that only reads results, of every command, and of who tries a
    verifier in a shell."""
    done = subprocess.run([sys.executable, "-c", HYGIENE], capture_output=True, text=True, cwd=ROOT)
    said = done.stdout.splitlines()
    assert len(said) == 6 and all(line.endswith(" []") for line in said), done.stdout + done.stderr


def test_judge_adds_its_columns_and_keeps_the_rows():
    completions = [
        "<answer>35 + 19 + 44</answer>",
        "<answer>44</answer>",
        "<answer>?</answer>",
        "nothing",
    ]
    table = pd.DataFrame(
        {
            # arrays as read from parquet, or lists
            "nums": [np.array([44, 19, 35])] * 4 + [[1, 2]],
            "target": [98] * 4 + [3],
            "completion": [*completions, "<answer>1 + 2</answer>"],
        },
        index=[7, 5, 3, 1, 0],
    )
    judged = judging.judge(table)
    assert judged["status"].tolist() == [
        "correct",
        "wrong_numbers",
        "unparseable",
        "missing",
        "correct",
    ]
    assert judged["correct"].tolist() == [True, False, False, False, True]
    assert judged["correct"].dtype == bool
    assert judged["solution"].tolist()[1:] == ["", "", "", "1 + 2"]
    assert judging.judge(table, verdict="expression")["expression"].tolist()[1:] == [
        "44",
        "",
        "",
        "1 + 2",
    ]
    assert judged.index.tolist() == table.index.tolist()
    assert list(table.columns) == ["nums", "target", "completion"]


def test_judge_writes_commuted_answers_alike_and_others_not():
    answers = ["(44 + 19) + 35", "35 + (19 + 44)", "44 + (19 + 35)", "44 - 19 + 35", "19 - 44 + 35"]
    rows = [
        {"nums": [44, 19, 35], "target": 98, "completion": f"<answer>{a}</answer>"} for a in answers
    ]
    first, commuted, other, minus, swapped = judging.judge(
        pd.DataFrame(rows), verdict="expression"
    )["expression"]
    assert first == commuted != other
    assert minus != swapped


def test_judge_takes_an_empty_table():
    judged = judging.judge(pd.DataFrame({"nums": [], "target": [], "completion": []}))
    assert len(judged) == 0 and {"status", "correct", "solution"} <= set(judged.columns)


def test_judge_steps_by_hand():
    c5 = (
        "<think>\n81 - 8 = 73\n73 - 3 = 70\n105 - 7 = 108 (too far)\n81 / 3 = 27\n81 / 3 = 27\n"
        "</think>"
    )
    texts = [c5, "<think>8 + 3 = 11, 3 + 8 = 12, 81 - 8 =? 73</think>", "nothing"]
    table = pd.DataFrame(
        {"nums": [[81, 8, 3]] * 3, "target": 35, "completion": texts}, index=[4, 2, 9]
    )
    judged = judging.judge(table, verdict="steps")
    columns = ["equations", "true", "distinct", "signs"]
    assert judged[columns].to_numpy().tolist() == [[5, 4, 4, 5], [2, 1, 1, 3], [0, 0, 0, 0]]
    assert list(judged.index) == [4, 2, 9] and len(judging.judge(table[:0], verdict="steps")) == 0
