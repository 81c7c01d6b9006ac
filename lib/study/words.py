"""Turns numbers into words. The sentences of a study and the titles of its figures are computed
from its tables."""

from collections.abc import Sequence

import pandas as pd


def pick(table: pd.DataFrame, **conditions) -> pd.Series | None:
    """The one row whose columns have the values `conditions`, or None if there is no such row (its
    run does not exist yet). Raises LookupError if there are several."""
    for column, value in conditions.items():
        table = table[table[column] == value]
    if len(table) > 1:
        raise LookupError(f"{len(table)} rows have {conditions}: name more columns")
    return table.iloc[0] if len(table) else None


def formatted(row, signed: bool, scale=100.0, digits=1) -> list[str]:
    """estimate, low and high of a row as texts."""
    return [
        f"{scale * row[end]:{'+' if signed else ''}.{digits}f}"
        for end in ("estimate", "low", "high")
    ]


def estimate(row, unit=" points", scale=100.0, digits=1) -> str:
    """A row with estimate, low and high as text: "+2.8 points (95% CI -1.3 to +5.5)"; with unit ""
    it is "+2.8 [-1.3, +5.5]". If row is None: "not run". Differences get signs. A result of only
    one training run is marked."""
    if row is None:
        return "not run"
    value, low, high = formatted(row, "baseline" in row, scale, digits)
    interval = f"(95% CI {low} to {high})" if unit else f"[{low}, {high}]"
    return f"{value}{unit} {interval}" + (" (one seed)" if row.get("runs", 0) == 1 else "")


def change(row) -> str:
    """A difference as a phrase with a verb: "rises by 9.6 points (95% CI 7.5 to 11.7)", "falls by
    ...", or, if the interval contains zero, "does not change significantly: +0.4 points (95% CI
    -1.0 to +1.8)"."""
    verb = compared(row, "rises", "falls", "does not change significantly")
    if verb not in ("rises", "falls"):
        return verb if row is None else f"{verb}: {estimate(row)}"
    if verb == "falls":
        row = pd.Series(
            {**row, "estimate": -row["estimate"], "low": -row["high"], "high": -row["low"]}
        )
    return f"{verb} by {estimate(row.drop('baseline', errors='ignore'))}"


def level(row) -> str:
    """A share as text: "34.8% (95% CI 30.6 to 38.5)"."""
    return estimate(row, unit="%")


def compared(row, above: str, below: str, same: str) -> str:
    """One of three words for a difference: `above` or `below` if its interval lies above or below
    zero, and `same` if the interval contains zero."""
    if row is None:
        return "not run"
    return above if row["low"] > 0 else below if row["high"] < 0 else same


def ahead(names: Sequence[str], default: str, baseline: str) -> str:
    """A title that says who is ahead of `baseline`, such as "A and B are ahead of SFT". If `names`
    is empty, its subject is `default`, as in "No reward is ahead of SFT"."""
    if len(names) < 2:
        return f"{[*names, default][0]} is ahead of {baseline}"
    parts = [*names] if len(names) < 4 else [*names[:2], f"{len(names) - 2} more"]
    return f"{', '.join(parts[:-1])} and {parts[-1]} are ahead of {baseline}"


def with_paper(texts: pd.Series, paper: pd.Series, digits=1) -> pd.Series:
    """The `texts`, each followed by the paper's number in parentheses if the paper has one."""
    suffixes = paper.map(f" ({{:.{digits}f}})".format, na_action="ignore")
    return texts + suffixes.fillna("").astype(str)
