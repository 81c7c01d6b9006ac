"""The records of published runs are what these runs wrote: asked of the history."""

import json
from functools import cache
from pathlib import Path

import pytest

from lib.files import REFERENCE, shown
from lib.runs.hashes import digest
from lib.runs.migrations.as_written import first_records, restored
from lib.study import history

PUBLISHED = sorted(REFERENCE.rglob("run.json"))


def first_of(record: dict) -> dict:
    """The record with which a run entered the history; itself if it is not committed yet."""
    return firsts().get(history.run_key(record), record)


@cache
def firsts() -> dict[tuple, dict]:
    if not history.whole():
        pytest.skip(f"published records were not compared with their first form; {history.SHALLOW}")
    return first_records()


def test_a_published_record_is_the_one_that_entered_the_history():
    """But for what the one migration says of itself in `migrated`."""
    changed = []
    for path in PUBLISHED:
        record = json.loads(path.read_text())
        if restored(first_of(record), record) != record:
            changed.append(shown(path))
    assert not changed, (
        "rewritten since: `publish` a run that was made, or restore the file from git"
    )


def test_a_record_names_a_commit_of_the_history_and_has_the_hash_of_its_lib():
    """Or a page says that the commit was not kept. With uncommitted changes the hash is another
    one."""
    page = (REFERENCE / "README.md").read_text()
    commits = history.times() if firsts() else {}
    unknown = []
    for path in PUBLISHED:
        record = json.loads(path.read_text())
        is_lost = f"| {record['commit'][:8]} |" in page and f"`{record['run']}` " in page
        has_its_code = record["commit"] in commits and (
            record["dirty"] or lib_at(record["commit"]) == record["lib"]
        )
        if is_lost == has_its_code:
            unknown.append(shown(path))
    assert not unknown, (
        "data/reference/README.md names the runs whose commit is not in the history, and no others"
    )


@cache
def lib_at(commit: str) -> str:
    """The hash of lib/ at a commit, as `lib_digest` computes it from the files."""
    lines = history.git("ls-tree", "-r", commit, "lib").decode().splitlines()
    entries = [line.split("\t") for line in lines if line.endswith(".py")]
    blobs = {path: entry.split()[2] for entry, path in entries}
    found = history.contents(set(blobs.values()))
    return digest([(path, digest(found[blobs[path]])) for path in sorted(blobs, key=Path)])


def test_hashes_were_added_to_the_files_that_a_run_wrote_and_to_no_others():
    for path in PUBLISHED:
        record = json.loads(path.read_text())
        lengths = first_of(record).get("files", {})
        if record.get("migrated", {}).get("files"):
            assert all(
                lengths[name] == entry["bytes"] for name, entry in record["files"].items()
            ), path


def test_an_id_is_that_of_one_execution_unless_the_record_says_that_it_repeats():
    """So no one puts new results under the name by which other runs know the old ones."""
    times: dict[str, set] = {}
    for record in firsts().values():
        if "id" in record and "repeats" not in record:
            times.setdefault(record["id"], set()).add(record["started"])
    assert all(len(started) == 1 for started in times.values())


@pytest.mark.parametrize(
    "change",
    [
        {"code": "0"},
        {"fingerprint": "0"},
        {"commit": "0"},
        {"parents": {"x": "0"}},
        {"seed": 7},
        {"parameters": {}},
        {"new": 1},
    ],
)
@pytest.mark.parametrize("name", ["rloo/cov_pass4_533/0", "sft/free/0"])
def test_a_record_that_somebody_rewrites_is_noticed(name, change):
    """Also in a record that has `migrated`, and whatever that field is made to say."""
    record = json.loads((REFERENCE / "cpu" / name / "run.json").read_text())
    rewritten = record | change
    assert restored(first_of(record), record) == record
    assert restored(first_of(record), rewritten) != rewritten
    told = rewritten | {"migrated": record.get("migrated", {}) | dict.fromkeys(change)}
    assert restored(first_of(record), told) != told


def test_the_first_form_is_found_under_an_earlier_name():
    record = json.loads((REFERENCE / "cpu/sft/pick/0/run.json").read_text())
    first = first_of(record)
    assert first["run"] == "agent_sft" and first["profile"] == "laptop" and "id" not in first
    assert record["migrated"]["run"] == "agent_sft"
