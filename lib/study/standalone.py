"""The explorer of the website: rollouts of published policies on the first problems of a set, for a
page that has no kernel behind it.

`write` puts what it shows into rollouts.js beside the page. A script and not a JSON file, since a
browser lets no page read files of the disk, and the website is also opened from there. The cards
are those of `lib.study.explorer`, so that a completion stays text."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lib.files import REFERENCE
from lib.game.problem import as_problem
from lib.study import explorer
from lib.study.systems import methods

SET = "heldout_1000"
SEED = 0
DRAWS = 4  # distinct completions of a problem by each policy
SHOWN_FIRST = ("sft/free", "rloo/sparse", "rloo/cov_pass4")


def write(names: Sequence[str], problems: int, site: Path) -> str:
    """Writes rollouts.js into the folder `site`, with the first completions of the published
    policies `names` (names of data/methods.csv) on the first problems of SET. Returns the markup of
    the explorer, which goes into a page of that folder. A policy whose samples are not here is left
    out; if none are here, there is no explorer, and the markup is ""."""
    folders = {name: REFERENCE / "cpu/sample" / name.replace("/", "_") for name in names}
    runs = {
        name: f"sample/{folder.name}/{SEED}"
        for name, folder in folders.items()
        if (folder / str(SEED) / "run.json").exists()
    }
    if not runs:
        return ""
    table = explorer.load({run: REFERENCE / "cpu" / run for run in runs.values()})
    table = table[(table["set"] == SET) & (table["problem"] < problems)].reset_index(drop=True)
    entries = [_entry(table, [*runs.values()], rows) for _, rows in table.groupby("problem")]
    columns = ",".join(explorer.exported(table[:0]).columns) + "\n"
    text = json.dumps({"columns": columns, "problems": entries})
    (site / "rollouts.js").write_text(f"const rollouts = {text};\n")
    template = explorer.templates.get_template("standalone.html")
    labels = [methods()["label"][name] for name in runs]
    first = [place for place, name in enumerate(runs) if name in SHOWN_FIRST]
    return template.render(
        css=explorer.markup.css(),
        problems=len(entries),
        name=SET,
        draws=DRAWS,
        labels=labels,
        first=first,
    )


def _entry(table: pd.DataFrame, runs: Sequence[str], rows: pd.DataFrame) -> dict[str, object]:
    """What rollouts.js has of one problem, whose rows in `table` are `rows`: as a menu names it,
    its head, and by run how many of its completions are right, cards and lines of the CSV."""
    problem = as_problem(*rows.iloc[0][["nums", "target"]])
    right = []
    cards = []
    lines = []
    for run in runs:
        drawn = rows[rows["run"] == run]
        first = drawn[:DRAWS]
        right.append(int((drawn["count"] * drawn["correct"]).sum()))
        cards.append([explorer.card_markup(table, position) for position in first.index])
        exported = explorer.exported(first)
        lines.append([_line(exported[i : i + 1]) for i in range(len(exported))])
    return {
        "asked": f"{', '.join(map(str, problem.nums))} → {problem.target}",
        "head": explorer.head(problem),
        "right": right,
        "cards": cards,
        "lines": lines,
    }


def _line(row: pd.DataFrame) -> str:
    """A table of one row as CSV, without a header."""
    return row.to_csv(header=False, index=False, lineterminator="\n")
