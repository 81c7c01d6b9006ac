"""All policies of a headline in one table and one figure: `make gpu-headline`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lib.files import write_table
from lib.study import compare, intervals, judging, metrics, plots, restarts

PROBLEMS = "heldout_1000"
ALONE = 1  # attempts of a policy without a check of its own, which cannot know when to start again


@dataclass(frozen=True)
class Headline:
    """levels: a row per method and number, as `intervals.estimates` gives it. lines: accuracy and
    tokens of each method by the attempts that its own check may spend. budget: the tokens of a
    problem at equal tokens."""

    levels: pd.DataFrame
    lines: pd.DataFrame
    budget: float


def report(folders: list[Path], output: Path) -> Headline:
    """What the samples in these folders of finished runs show, on `heldout_1000`; written to
    `output` as headline.csv, headline_lines.csv, headline.png and headline.pdf."""
    judged = judging.samples(folders, PROBLEMS, verdicts=("answer", "check"))
    starts = {judging.record(folder)["method"]: compare.start_of([folder]) for folder in folders}
    scores, budget = compare.scores(judged, starts)
    levels = intervals.estimates(scores)
    found = Headline(levels, by_attempts(judged, levels), budget)
    write_table(found.levels, output / "headline.csv", rounded=True)
    write_table(found.lines, output / "headline_lines.csv", rounded=True)
    draw(found.lines, output / "headline")
    return found


def by_attempts(judged: pd.DataFrame, levels: pd.DataFrame) -> pd.DataFrame:
    """Accuracy and mean tokens of every method, restarted by its own check up to as many times as
    it was sampled; of a method without a check, one sample."""
    lines = restarts.summary(restarts.tallies(judged))
    once = levels[levels["metric"].eq("pass@1") & ~levels["method"].isin(lines["method"])]
    tokens = once["method"].map(metrics.mean_tokens(judged))
    once = once.assign(attempts=ALONE, tokens=tokens).drop(columns="metric")
    parts = [table for table in (lines, once[lines.columns]) if len(table)]
    return pd.concat(parts, ignore_index=True)


def draw(lines: pd.DataFrame, stem: Path) -> None:
    """Accuracy against tokens, a line per method."""
    title = "What each policy solves for its tokens"
    fig, axes = plots.figure(width=6.5, height=3.6, title=title)
    ax: Any = axes  # there is one
    plots.by_tokens(ax, lines, band="sft/free")
    ax.set_title("each policy starts again until its own check says yes")
    ax.set_xlim(right=2.0 * ax.get_xlim()[1])  # room for the names
    plots.name_lines(ax)
    plots.save(fig, stem)


def told(found: Headline) -> str:
    """The table as text: a row per method, shares in percent with 95% intervals."""
    levels = found.levels
    is_count = levels["metric"].eq("tokens")
    shares = metrics.as_text(levels[~is_count])
    tokens = metrics.as_text(levels[is_count], scale=1, digits=0)
    rows = levels.assign(text=pd.concat([shares, tokens]))
    methods = plots.ordered(rows["method"])
    names = dict.fromkeys(rows["metric"])
    wide = rows.pivot(index="method", columns="metric", values="text").reindex(methods)[[*names]]
    wide = wide.rename(columns=compare.named, index=plots.label)
    wide.columns.name = None
    wide.index.name = None
    lines = [wide.T.fillna("").to_string(), ""]
    problems = int(levels["n_problems"].max())
    lines.append(
        f"{problems:,} problems, shares in percent with 95% intervals; equal tokens are "
        f"{found.budget:,.0f} per problem."
    )
    if levels["runs"].max() == 1:
        lines.append("One run of each method: nobody knows how much its runs differ.")
    if levels["borrowed"].any():
        lines.append(compare.BORROWED)
    return "\n".join(lines)
