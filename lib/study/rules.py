"""How the rule of intervals and answers changed, and which answers moved with unchanged data.

data/paper/rules.csv has a row per change: the commit, its date, what changed and why. `python -m
lib.runs rules` fills in the rest from the history of this repository. A change shows in the first
version of figures/grand_claims.csv that was drawn after it. A claim has moved if its answer differs
from the version before, while what it asks, its runs and its estimate are the same.
"""

import io

import pandas as pd

from lib.files import PAPER, write_table
from lib.study import history

TABLE = PAPER / "rules.csv"
ANSWERS = "figures/grand_claims.csv"
FORM = ["runs", "metric", "set", "direction", "bound", "factor", "margin", "seeds", "n_problems"]
SAME = 6e-4  # early tables have three digits after the point
TODAY = {"reproduced": "holds", "not reproduced": "reversed", "contradicted": "reversed"}
TODAY |= {"equivalent": "holds", "not contradicted": "open", "undecided": "open", "level": "open"}
TODAY |= {"one seed": "open", "paper's size excluded": "open"}  # words of former tables


def versions() -> list[str]:
    """The commits that changed the table of answers, the oldest first."""
    return list(dict.fromkeys(commit for commit, _, _ in history.changes(ANSWERS)))


def answers_at(commit: str) -> pd.DataFrame:
    """The table of answers in a commit, indexed by claim, with the answers in today's words."""
    table = pd.read_csv(io.BytesIO(history.git("show", f"{commit}:{ANSWERS}"))).set_index("id")
    words = next(table[name] for name in ("verdict", "answer") if name in table)
    table["answer"] = words.map(lambda word: TODAY.get(str(word), word))
    table["runs"] = table["runs"].str.replace("/", "_")  # as the first tables write them
    if "margin" in table:  # later tables have one only where it matters
        table["margin"] = table["margin"].where(table["direction"].isin(["equal", "zero"]))
    return table


def moved(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """The claims whose answer differs between two tables with the same data, as "ast-1 holds →
    open"."""
    common = before.index.intersection(after.index, sort=False)
    one = before.loc[common]
    other = after.loc[common]
    same = (one["estimate"].astype(float) - other["estimate"].astype(float)).abs() < SAME
    for name in FORM:
        if name in one and name in other:
            same &= _text(one[name]) == _text(other[name])
    changed = same & (one["answer"] != other["answer"])
    pairs = zip(common[changed], one["answer"][changed], other["answer"][changed], strict=True)
    return [f"{name} {old} → {new}" for name, old, new in pairs]


def _text(column: pd.Series) -> pd.Series:
    """Numbers and texts alike as texts; empty is what a column meant before it existed."""
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers.map("{:g}".format).where(numbers.notna(), column.fillna("").astype(str))


def measure(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of rules.csv with the columns `drawn`, the commit that first shows the answers by
    the new rule, and `moved`. Needs the whole history (`history.whole`)."""
    drawn = []
    texts = []
    for commit in table["commit"]:
        after = _first_drawn(history.git("rev-parse", commit).decode().strip())
        number = versions().index(after)
        before = answers_at(versions()[number - 1])
        drawn.append(after[:8])
        texts.append("; ".join(moved(before, answers_at(after))) or "none")
    return table.assign(drawn=drawn, moved=texts)


def refresh() -> None:
    """Writes the columns `drawn` and `moved` of data/paper/rules.csv."""
    write_table(measure(pd.read_csv(TABLE)), TABLE)


def _first_drawn(commit: str) -> str:
    """The first version of the table of answers that contains a commit."""
    return next(version for version in versions() if history.descends(version, commit))
