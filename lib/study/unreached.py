"""What was planned and not made, and how many core-hours it would take: data/paper/unreached.csv.

A row is an experiment that lacks some of its runs. Columns: study; what, in words; methods, names
or patterns as in data/paper/treatments.csv, or runs of another kind, separated by ;, and with their
seeds if not all are meant; runs_made, the published runs that fit (as there, a name with * does not
stand for a method that has a row of its own); runs_asked; core_hours of the missing runs, with one
decimal; like, the published runs that together took as long as one of the missing runs does ("4 x"
before a name: four times as long), by what they computed, or by the clock if their records do not
say that; declared, whether papermill_runs.yaml declares as many runs as are asked.
"""

import pandas as pd

from lib.files import PAPER
from lib.study import treatments


def planned() -> pd.DataFrame:
    """The rows of the file. Raises ValueError that names the row and its broken rule."""
    table = pd.read_csv(PAPER / "unreached.csv")
    studies = {*treatments.planned()["study"]}
    for row in treatments.each(table):
        rules = {
            "study must be one of treatments.csv": row.study in studies,
            "methods must be kind/name or kind/name/seeds": all(
                name.count("/") in (1, 2) for name in row.methods.split(";")
            ),
            "runs_made must be less than runs_asked": 0 <= row.runs_made < row.runs_asked,
            "core_hours must not be negative": row.core_hours >= 0,
            "like must be kind/name/seed": all(
                name.count("/") == 2 for name in row.like.split(";")
            ),
            "declared must be yes or no": row.declared in ("yes", "no"),
        }
        for rule in (rule for rule, kept in rules.items() if not kept):
            raise ValueError(f"unreached.csv, {row.what}: {rule}")
    return table


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table as a notebook prints it. The last row has the sum of the core-hours."""
    columns = {
        "study": table["study"],
        "experiment": table["what"],
        "runs made": table["runs_made"].map(str) + " of " + table["runs_asked"].map(str),
        "core-hours": table["core_hours"].map("{:.1f}".format),
        "declared": table["declared"],
    }
    total = {"study": "all", "core-hours": f"{table['core_hours'].sum():.1f}"}
    return pd.concat([pd.DataFrame(columns), pd.DataFrame([total])]).fillna("").set_index("study")
