"""Figures from tidy tables: numbers in, axes out. One style, one colour and marker a method in all studies.

Every table has the columns named in its function's docstring; its column `method` holds keys of `METHODS`.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

from lib.names import nearest

TEXT_WIDTH = 6.5  # inches, the text width of a printed page
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "0.35",
    "axes.labelcolor": "0.15",
    "xtick.color": "0.35",
    "ytick.color": "0.35",
    "xtick.labelcolor": "0.15",
    "ytick.labelcolor": "0.15",
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.91",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,  # text stays text
}


class Method(NamedTuple):
    """How a method is written and drawn."""

    label: str
    colour: str
    marker: str


# Okabe and Ito's and Paul Tol's "muted" colours, told apart with every common colour vision. Within a study
# no colour occurs twice; over all studies no pair of colour and marker does.
METHODS = {
    "sft/free": Method("SFT", "#6E6E6E", "o"),
    "rloo/sparse": Method("RLOO, sparse", "#D55E00", "s"),
    # ast: light to dark as the ladder flattens
    "rloo/ast_tau1": Method("AST τ=1", "#56B4E9", "v"),
    "rloo/ast_tau2": Method("AST τ=2", "#0072B2", "D"),
    "rloo/ast_tau3": Method("AST τ=3", "#332288", "^"),
    "rloo/ast_tau4": Method("AST τ=4", "#882255", "P"),
    "rloo/ast_tau2_nogate": Method("AST τ=2, no gate", "#DDCC77", "X"),
    "rloo/ast_tau2_alpha01": Method("AST τ=2, think × 0.1", "#44AA99", "o"),
    "rloo/sparse_5num": Method("RLOO, sparse, 5 numbers", "#AA4499", "s"),
    "rloo/ast_tau2_5num": Method("AST τ=2, 5 numbers", "#117733", "D"),
    "rloo/sparse_200": Method("RLOO, sparse, 200 updates", "#8C2D04", "P"),
    "rloo/ast_200": Method("AST τ=2, 200 updates", "#004488", "P"),
    # program
    "sft/program": Method("SFT on programs", "#BBBBBB", "D"),
    "rloo/sparse_k16": Method("RLOO, sparse, K=16", "#AA4400", "P"),
    "rloo/sparse_k16_updates4": Method("RLOO, sparse, 4 updates", "#DDAA33", "X"),
    "rloo/program": Method("RLOO, program", "#661100", "X"),
    # dense
    "preference/ipo": Method("IPO", "#CC79A7", "v"),
    "rloo/dense": Method("RLOO, dense", "#009E73", "^"),
    "rloo/curriculum": Method("RLOO, curriculum", "#E69F00", "D"),
    "rloo/curriculum_success": Method("RLOO, own failures", "#6B4C9A", "*"),
    "rloo/hybrid": Method("RLOO, hybrid", "#999933", "P"),
    # trace
    "sft/trace": Method("SFT on traces", "#A9A9A9", "v"),
    "rloo/trace_outcome": Method("Trace, outcome", "#D55E00", "D"),
    "rloo/trace_dense": Method("Trace, validity", "#009E73", "s"),
    "rloo/trace_gated": Method("Trace, gated", "#0072B2", "o"),
    "rloo/trace_entropy": Method("Trace, gated, entropy", "#56B4E9", "P"),
    "rloo/trace_guarded": Method("Trace, guarded", "#332288", "X"),
    "rloo/trace_explore": Method("Trace, explore", "#E69F00", "o"),
    "rloo/trace_group": Method("Trace, group-aware", "#CC79A7", "X"),
    "rloo/trace_difficulty": Method("Trace, difficulty", "#999933", "s"),
    "rloo/trace_effort": Method("Trace, effort", "#882255", "o"),
    "rloo/trace_hardness": Method("Trace, effort + hardness", "#661100", "^"),
    # agent
    "preference/dpo": Method("Full-answer DPO", "#994455", "v"),
    "sft/pick": Method("State-action SFT", "#A9A9A9", "s"),
    "preference/agent_binary": Method("Action DPO", "#E69F00", "^"),
    "preference/agent_hard": Method("Action DPO, hard cases", "#CC79A7", "s"),
    "preference/agent_soft": Method("Action DPO, Q soft", "#0072B2", "P"),
    "sft/distilled": Method("Distilled, Q soft", "#009E73", "D"),
}


def style(method: str) -> Method:
    """Label, colour and marker of a method; KeyError naming the nearest known ones if there is none."""
    if method not in METHODS:
        raise KeyError(f"method {method!r} has no colour in METHODS of lib/plots.py{nearest(method, METHODS)}")
    return METHODS[method]


def label(method: str) -> str:
    """A method's name as tables and legends print it."""
    return style(method).label


def figure(rows=1, cols=1, width=TEXT_WIDTH, height=2.5, **options):
    """`plt.subplots` in the house style, size in inches; options such as sharey are passed on."""
    plt.rcParams.update(STYLE)
    return plt.subplots(rows, cols, figsize=(width, height), layout="constrained", **options)


def legend(fig, axes) -> None:
    """Entries above all panels, each method once, in the order of METHODS: in one row if there is room."""
    entries = {}
    for ax in axes:
        for handle, text in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    names = [method.label for method in METHODS.values() if method.label in entries]
    columns = 4 if len(names) > 6 else 3 if len("".join(names)) > 60 else len(names)
    small = {"fontsize": 6, "handlelength": 1.5, "columnspacing": 1.5} if len(names) > 16 else {}
    fig.legend([entries[name] for name in names], names, loc="outside upper center", ncols=columns, **small)


def save(fig, stem) -> list[Path]:
    """Write `stem`.png and `stem`.pdf, without dates: equal figures give equal bytes. Returns the paths."""
    paths = [Path(f"{stem}.png"), Path(f"{stem}.pdf")]
    fig.savefig(paths[0], dpi=200, metadata={"Software": None})
    fig.savefig(paths[1], metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return paths


def pass_at_k_curves(ax, table: pd.DataFrame, title="") -> None:
    """Pass@k against k on a log-2 axis. Columns method, k, estimate, and low, high for a band.

    Without low and high the rows are reported points, joined by dots only. Markers at powers of two tell
    methods apart without colour.
    """
    whole = "low" in table
    for method in _ordered(table):
        look, rows = style(method), table[table["method"] == method].sort_values("k")
        marked = [i for i, k in enumerate(rows["k"]) if k & (k - 1) == 0]
        drawn = {"color": look.colour, "marker": look.marker, "markevery": marked, "label": look.label}
        ax.plot(rows["k"], rows["estimate"], linestyle="-" if whole else ":", **drawn)
        if whole:
            ax.fill_between(rows["k"], rows["low"], rows["high"], color=look.colour, alpha=0.15, linewidth=0)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator([2**i for i in range(int(max(table["k"], default=1)).bit_length())]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set(xlabel="samples k", ylabel="pass@k", title=title)


def reward_ladder(ax, table: pd.DataFrame, correct: float, span: float) -> None:
    """Reward of a wrong answer against its tree distance d. Columns method, distance, reward.

    `correct` and `span`: what a correct answer and a mere answer span earn, drawn as the ladder's ends.
    """
    last = table["distance"].max()
    ends = [(correct, "correct answer", 3), (span, "sparse reward of every wrong answer", -10)]
    for height, text, above in ends:
        ax.axhline(height, color="0.35", linewidth=0.8, linestyle=(0, (4, 3)))
        ax.annotate(text, (last, height), (0, above), textcoords="offset points", ha="right", color="0.35")
    for method in _ordered(table):
        look, rows = style(method), table[table["method"] == method].sort_values("distance")
        ax.plot(rows["distance"], rows["reward"], color=look.colour, marker=look.marker, label=look.label)
    ax.xaxis.set_major_locator(FixedLocator(sorted(table["distance"].unique())))
    ax.set(xlabel="edits to the nearest solution d", ylabel="reward", ylim=(0, correct * 1.08))


def points(ax, x, table: pd.DataFrame, mark: str, **look) -> None:
    """Estimates with their intervals at `x`. Columns estimate, low, high."""
    spans = [table["estimate"] - table["low"], table["high"] - table["estimate"]]
    ax.errorbar(x, table["estimate"], yerr=spans, fmt=mark, elinewidth=0.8, **look)


def dots(ax, table: pd.DataFrame, title="") -> None:
    """Estimates in rows, the first on top. Columns name, metric (two, a colour each), estimate, low, high, and paper,
    drawn hollow."""
    rows, shades = list(dict.fromkeys(table["name"])), ["#0072B2", "#D55E00"]
    for metric, colour in zip(dict.fromkeys(table["metric"]), shades, strict=False):
        part = table[table["metric"] == metric]
        heights = [rows.index(name) for name in part["name"]]
        spans = [part["estimate"] - part["low"], part["high"] - part["estimate"]]
        ax.errorbar(part["estimate"], heights, xerr=spans, fmt="o", color=colour, elinewidth=0.8, label=metric)
        ax.plot(part["paper"], heights, "o", markerfacecolor="none", color=colour, label=f"{metric}, paper")
    ax.set_yticks(range(len(rows)), rows)
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_title(title)


def trade_off(ax, table: pd.DataFrame, x: str, y: str, title="") -> None:
    """One point a method with both its intervals. Columns method, metric (x and y are two of them), estimate, low,
    high."""
    for method in _ordered(table):
        look, rows = style(method), table[table["method"] == method].set_index("metric")
        span = {
            f"{axis}err": [[row["estimate"] - row["low"]], [row["high"] - row["estimate"]]]
            for axis, row in (("x", rows.loc[x]), ("y", rows.loc[y]))
        }
        at = rows.loc[[x, y], "estimate"]
        ax.errorbar(*at, **span, color=look.colour, marker=look.marker, label=look.label, elinewidth=0.8)
    for axis in [axis for axis, metric in ((ax.xaxis, x), (ax.yaxis, y)) if metric.startswith("pass@")]:
        axis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")  # half a percent where ticks are that near
    ax.set(xlabel=x, ylabel=y, title=title)


def training_curves(axes, table: pd.DataFrame, smooth=5) -> None:
    """One panel a quantity, over training steps. Columns method, step, quantity, value; first quantity first.

    Faint: each step, the mean of a method's runs; strong: the mean of the last `smooth` steps.
    """
    quantities = list(dict.fromkeys(table["quantity"]))
    for ax, quantity in zip(axes, quantities, strict=False):
        for method in _ordered(table):
            look = style(method)
            chosen = (table["quantity"] == quantity) & (table["method"] == method)
            values = table[chosen].dropna(subset="value").groupby("step")["value"].mean()
            ax.plot(values, color=look.colour, alpha=0.25, linewidth=0.7)
            ax.plot(values.rolling(smooth, min_periods=1).mean(), color=look.colour, label=look.label)
        ax.set(title=quantity, xlabel="step")
    for ax in axes[len(quantities) :]:
        ax.set_visible(False)


def _ordered(table: pd.DataFrame) -> list[str]:
    """The table's methods in the order of METHODS; unknown ones raise."""
    present = list(table["method"].unique())
    return sorted(present, key=lambda method: list(METHODS).index(method) if style(method) else 0)
