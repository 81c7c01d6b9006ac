"""Gives the published records back what their runs wrote.

On 25 November 2026 four commits (0727c010, d33ed1f3, 40946908, e09de1fc) put new values of `code`
and `fingerprint` into 448 to 723 published run.json files, so that an edited notebook would not
make its runs again, and the first of them gave the records their present form. This program takes
each record as it entered the history, and keeps of the later changes only what other records and
the studies rest on. A field of its own, `migrated`, names those fields, each with what the run had
written there:

* `id`: nothing. Runs wrote no `id` before that day; the one that was added is what the records of
  its children name.
* `files`: the lengths of all files that the run had made, or nothing. The hashes were added, of the
  published files.
* `profile`, `run`, `method`, `notebook`, `parameters`, `parents`: of runs that were made in an
  earlier profile, under other names. Of parameters only those that were changed are listed; null
  stands for one that the run did not have.
* `parameters`, `inputs`: of runs whose folder lay elsewhere on the disk of the machine that made
  them. The paths were shortened to those of a checkout, as `publish` does now.

`python -m lib.runs.migrations.as_written` writes the records. Made twice it changes nothing, and a
test compares all records with the history."""

import json
from pathlib import Path
from typing import Any

from lib.files import REFERENCE, shown
from lib.runs.folder import write_json
from lib.study import history

Record = dict[str, Any]
MOVED = ("profile", "run", "method", "notebook", "parameters", "parents")
ELSEWHERE = ("parameters", "inputs")
NO_HASHES = "lengths alone, of these files and of others that are not published"
NO_PATHS = "the same paths below another folder"


def first_records() -> dict[tuple, Record]:
    """Each record that was ever published, as it entered the history, by what tells its run from
    all others."""
    first: dict[tuple, Record] = {}
    for _, _, record in history.records():
        first.setdefault(history.run_key(record), record)
    return first


def restored(first: Record, now: Record) -> Record:
    """The record of a run as it entered the history, with the fields of `now` that have to stay,
    and `migrated`."""
    kept: Record = {}
    migrated: Record = {}
    if "id" not in first:
        kept["id"] = now["id"]
        migrated["id"] = None
        kept["files"] = now["files"]
        migrated["files"] = NO_HASHES if "files" in first else None
    if first["profile"] != now["profile"]:
        for name in MOVED:
            if first.get(name) != now[name]:
                kept[name] = now[name]
                migrated[name] = first.get(name)
        migrated["parameters"] = others(first["parameters"], now["parameters"])
    elif Path(first["parameters"]["output"]).is_absolute():
        for name in ELSEWHERE:
            if first[name] != now[name]:
                kept[name] = now[name]
                migrated[name] = NO_PATHS
    record = first | kept | ({"migrated": migrated} if migrated else {})
    order = [name for name in now if name in record and name != "migrated"]  # as in the file
    return {name: record[name] for name in [*order, *record]}


def others(first: Record, now: Record) -> Record:
    """The values of `first` that are others in `now`."""
    names = [*first, *(name for name in now if name not in first)]
    return {name: first.get(name) for name in names if first.get(name) != now.get(name)}


def with_new_parameters(first: Record, now: Record) -> Record:
    """A moved record in the parameters that its notebook has now. SFT had no `give_up` when the
    first policies of the game were trained: none gave up, which is not what the notebook's default
    says now."""
    if first.get("run", "").startswith("agent_sft"):
        return now | {"parameters": now["parameters"] | {"give_up": 0.0}}
    return now


def main() -> None:
    if not history.whole():
        raise SystemExit(history.SHALLOW)
    first = first_records()
    for path in sorted(REFERENCE.rglob("run.json")):
        now: Record = json.loads(path.read_text())
        # a record that is not committed yet is its own first form
        as_written: Record = first.get(history.run_key(now), now)
        record = restored(as_written, with_new_parameters(as_written, now))
        if list(record.items()) != list(now.items()):
            write_json(path, record)
            print(shown(path))


if __name__ == "__main__":
    main()
