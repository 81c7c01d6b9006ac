"""Numbers as words: the sentences under a study and the titles over its figures are made from its tables."""

import pandas as pd


def pick(table: pd.DataFrame, **where) -> pd.Series | None:
    """The one row whose columns have these values; None where there is none (a run that is not there yet).

    Raises LookupError where several rows fit.
    """
    for column, value in where.items():
        table = table[table[column] == value]
    if len(table) > 1:
        raise LookupError(f"{len(table)} rows have {where}: name more columns")
    return table.iloc[0] if len(table) else None


def said(row, unit=" points", scale=100.0, digits=1) -> str:
    """A row with estimate, low, high as text: "+2.8 points [-1.3, +5.5]"; "not run" where there is no row.

    Differences (rows with a baseline) and contrasts carry signs. What rests on one run says so.
    """
    if row is None:
        return "not run"
    sign = "+" if {"baseline", "contrast"} & {*row.index} else ""
    value, low, high = (f"{scale * row[end]:{sign}.{digits}f}" for end in ("estimate", "low", "high"))
    return f"{value}{unit} [{low}, {high}]" + (" (one seed)" if row.get("runs", 0) == 1 else "")


def level(row) -> str:
    """A share as text: "34.8% [30.6, 38.5]"."""
    return said(row, unit="%")


def compared(row, above: str, below: str, same: str) -> str:
    """Which of three words fits a difference: its interval lies above zero, below, or holds it."""
    if row is None:
        return "not run"
    return above if row["low"] > 0 else below if row["high"] < 0 else same


def beside(ours: pd.Series, paper: pd.Series, digits=1, signed=False) -> pd.Series:
    """Texts with the paper's number in parentheses behind them, where it has one."""
    theirs = paper.map(f" ({{:{'+' if signed else ''}.{digits}f}})".format, na_action="ignore")
    return ours + theirs.fillna("").astype(str)
