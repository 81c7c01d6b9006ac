"""What the git history of this repository says about the runs that were ever published: when each
was made, and by which commit; and which commits contain which.

Everything is read through a few git processes (`git cat-file --batch`), so that asking takes
seconds. A clone without the whole history can answer nothing; `whole` asks for that, and tests skip
then with the sentence `SHALLOW`."""

import json
import re
import subprocess
from collections import defaultdict
from functools import cache

import pandas as pd

from lib.files import ROOT

FIRST = "6945215839c02a51fc80b2d6e7787c95cba186ef"  # the first commit of the repository
SHALLOW = "left out: this clone has not the whole history, which `git fetch --unshallow` brings"


def git(*arguments: str, said: str = "") -> bytes:
    """What a git command prints; `said` is its input."""
    command = ["git", "-c", "core.quotepath=off", *arguments]
    return subprocess.run(
        command, cwd=ROOT, input=said.encode(), capture_output=True, check=True
    ).stdout


@cache
def whole() -> bool:
    """Whether the whole history is here."""
    command = ["git", "rev-list", "--max-parents=0", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True)
    return FIRST in found.stdout.decode().split()


@cache
def times() -> dict[str, int]:
    """When each commit of this history was made, in seconds, by its full name."""
    lines = git("log", "--format=%H %ct").decode().splitlines()
    pairs = [line.split() for line in lines]
    return {name: int(time) for name, time in pairs}


@cache
def ancestors() -> dict[str, int]:
    """Of each commit, its ancestors and itself, as a set of bits."""
    found = {}
    lines = git("rev-list", "--topo-order", "--reverse", "--parents", "HEAD").decode().splitlines()
    for place, line in enumerate(lines):
        name, *parents = line.split()
        found[name] = 1 << place
        for parent in parents:
            found[name] |= found[parent]
    return found


def descends(later: str, earlier: str) -> bool:
    """Whether the commit `later` is `earlier` or has it among its ancestors. A commit that is not
    in the history has no ancestors that anyone could know."""
    known = ancestors()
    return later in known and known[later] & known[earlier] == known[earlier]


def contents(blobs: set[str]) -> dict[str, bytes]:
    """The content of each blob, by its name."""
    batch = git("cat-file", "--batch", said="".join(f"{blob}\n" for blob in sorted(blobs)))
    found = {}
    start = 0
    while start < len(batch):
        end = batch.index(b"\n", start)
        name, _, size = batch[start:end].decode().split()
        found[name] = batch[end + 1 : end + 1 + int(size)]
        start = end + 1 + int(size) + 1
    return found


def changes(*paths: str) -> list[tuple[str, str, str]]:
    """All changes of the files that fit `paths`, parents before children: commit, path, and the
    blob that the file then is, "" if the commit removed it."""
    options = [
        "--full-history",
        "--topo-order",
        "--reverse",
        "--raw",
        "--no-renames",
        "--no-abbrev",
    ]
    found = []
    commit = ""
    for line in git("log", *options, "--format=@%H", "--", *paths).decode().splitlines():
        if line.startswith("@"):
            commit = line[1:]
        elif line.startswith(":"):
            about, path = line.split("\t")
            blob = about.split()[3]
            found.append((commit, path, "" if set(blob) == {"0"} else blob))
    return found


@cache
def records() -> list[tuple[str, str, dict]]:
    """Every version of the record of every run that was ever committed, parents before children:
    commit, path, content. A record without a time is that of no run."""
    versions = [version for version in changes("data/reference/**/run.json") if version[2]]
    texts = contents({blob for _, _, blob in versions})
    read = {blob: json.loads(text) for blob, text in texts.items()}
    return [
        (commit, path, read[blob]) for commit, path, blob in versions if "started" in read[blob]
    ]


@cache
def renamed() -> dict[str, str]:
    """The name of today, such as rloo/sparse, of each run that was first published under a name
    such as rloo_sparse_seed1. A run that was moved or renamed keeps its times, by which it is
    known."""
    new = {run_key(record): record["run"] for _, _, record in records() if "method" in record}
    names = {"rloo_ast_200": "rloo/ast_200", "agent_first": "sft/pick"}  # these were never renamed
    for _, _, record in records():
        if "method" not in record and run_key(record) in new:
            names[record["run"].partition("_seed")[0]] = new[run_key(record)]
    return names


def run_key(record: dict) -> tuple:
    """What tells a run from all others, whatever its name became."""
    return record["started"], record["seed"], record["elapsed"]


@cache
def runs() -> pd.DataFrame:
    """One row per run that was ever published, analyses left out. By its last names: run, kind,
    method, seed, profile. As it was first recorded: commit, started (in seconds), parameters,
    published (the first commit that had it)."""
    versions = defaultdict(list)
    for commit, _, record in records():
        versions[run_key(record)].append((commit, record))
    rows = []
    for found in versions.values():
        published, first = min(found, key=lambda version: times()[version[0]])
        _, last = found[-1]
        run = today(last)
        kind = run.partition("/")[0]
        row = {"run": run, "kind": kind, "method": last.get("method", policy(run))}
        row |= {name: first[name] for name in ("seed", "commit", "parameters")}
        row["profile"] = last["profile"]
        row["started"] = int(pd.Timestamp(first["started"]).timestamp())
        rows.append(row | {"published": published})
    table = pd.DataFrame(rows)
    return table[table["kind"].ne("study") & table["run"].str.contains("/")].reset_index(drop=True)


def full(name: str) -> str:
    """The full name of a commit of this history, from its first letters."""
    return next(commit for commit in times() if commit.startswith(name))


@cache
def parent(commit: str) -> str:
    """The first parent of a commit."""
    return git("rev-parse", f"{commit}^").decode().strip()


def file(name: str) -> bytes | None:
    """The content of a file of a commit, "commit:path". None if the commit has no such file."""
    head, _, rest = git("cat-file", "--batch", said=f"{name}\n").partition(b"\n")
    return None if head.endswith(b"missing") else rest[:-1]


def today(record: dict) -> str:
    """The name of a run by the names of today."""
    name: str = record["run"]
    return name if "method" in record else renamed().get(name.partition("_seed")[0]) or name


def policy(run: str) -> str:
    """The policy of a run of samples, such as rloo/sparse of sample/heldout400_rloo_sparse; of
    another run, itself."""
    return re.sub(r"^(?:sample|search)/.*?(sft|rloo|preference|mix)_", r"\1/", run)
