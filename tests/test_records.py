"""The records of published runs are what these runs wrote: asked of the history."""

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lib.files import REFERENCE, ROOT, shown
from lib.runs.hashes import digest
from lib.runs.migrations import as_written
from lib.runs.migrations.as_written import execution, first_records, git, restored

PUBLISHED = sorted(REFERENCE.rglob("run.json"))


def first_of(record: dict) -> dict:
    """The record with which a run entered the history; itself if it is not committed yet."""
    return history().get(execution(record), record)


@cache
def history() -> dict[tuple, dict]:
    if not as_written.is_complete():
        pytest.skip("a clone without the whole history: published records were not compared with their first form")
    return first_records()


def test_a_published_record_is_the_one_that_entered_the_history():
    """But for what the one migration says of itself in `migrated`."""
    changed = []
    for path in PUBLISHED:
        record = json.loads(path.read_text())
        if restored(first_of(record), record) != record:
            changed.append(shown(path))
    assert not changed, "rewritten since: `publish` a run that was made, or restore the file from git"


def test_a_record_names_a_commit_of_the_history_and_has_the_hash_of_its_lib():
    """Or a page says that the commit was not kept. With uncommitted changes the hash is another one."""
    page = (REFERENCE / "README.md").read_text()
    commits = {*git("rev-list", "HEAD").split()} if history() else set()
    unknown = []
    for path in PUBLISHED:
        record = json.loads(path.read_text())
        is_lost = f"| {record['commit'][:8]} |" in page and f"`{record['run']}` " in page
        has_its_code = record["commit"] in commits and (record["dirty"] or lib_at(record["commit"]) == record["lib"])
        if is_lost == has_its_code:
            unknown.append(shown(path))
    assert not unknown, "data/reference/README.md names the runs whose commit is not in the history, and no others"


@cache
def lib_at(commit: str) -> str:
    """The hash of lib/ at a commit, as `lib_digest` computes it from the files."""
    files = [line.split("\t") for line in git("ls-tree", "-r", commit, "lib").splitlines() if line.endswith(".py")]
    hashes = [(path, blob_hash(entry.split()[2])) for entry, path in files]
    return digest(sorted(hashes, key=lambda one: Path(one[0])))


@cache
def blob_hash(blob: str) -> str:
    return digest(subprocess.run(["git", "-C", ROOT, "cat-file", "blob", blob], capture_output=True, check=True).stdout)


def test_hashes_were_added_to_the_files_that_a_run_wrote_and_to_no_others():
    for path in PUBLISHED:
        record = json.loads(path.read_text())
        lengths = first_of(record).get("files", {})
        if record.get("migrated", {}).get("files"):
            assert all(lengths[name] == entry["bytes"] for name, entry in record["files"].items()), path


def test_an_id_is_that_of_one_execution_unless_the_record_says_that_it_repeats():
    """So no one puts new results under the name by which other runs know the old ones."""
    times: dict[str, set] = {}
    for record in history().values():
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


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(as_written, "ROOT", tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)

    def commit(path: str, record: dict) -> None:
        file = tmp_path / path / "run.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1) + "\n" * (record["seed"] % 2))  # some without a last line break
        git("add", "-A")
        git("-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "results")

    return commit


def test_the_first_form_is_found_under_an_earlier_name(repository):
    wrote = {"started": "1", "commit": "a", "elapsed": 2.0, "seed": 0, "profile": "laptop", "run": "agent_sft"}
    now = wrote | {"profile": "cpu", "run": "sft/pick"}
    repository("data/reference/laptop/agent_sft", wrote)
    repository("data/reference/cpu/sft/pick/0", now)
    repository("data/reference/cpu/sft/pick/1", now | {"seed": 1, "started": "2"})
    assert [record["seed"] for record in first_records().values()] == [0, 1]
    assert first_records()[execution(now)] == wrote
