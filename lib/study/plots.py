"""Figures from tidy tables, in one style. Each method looks the same in all studies.

The docstring of each function names the columns of its table. The column `method` holds names of
data/methods.csv or of search systems. Any other method, such as one with your own reward, gets the
next free colour, and its name is its label. The numbers of a paper are drawn as hollow markers. No
line joins them, since a line would suggest values that nobody reported."""

import sys
from base64 import b64encode
from functools import cache
from itertools import count, cycle
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import PIL.Image
from matplotlib.patheffects import withStroke

from lib.study import systems
from lib.study.systems import methods, rank

TEXT_WIDTH = 6.5  # inches, the text width of a printed page
METRICS = {"pass@1": ("#3B0F70", "o"), "pass@16": ("#B5367A", "s")}  # no method has these colours
OTHERS = [("#7A7A00", "D"), ("#004D4D", "^")]  # colours and markers of other metrics
# no listed method has these colours
FREE = ["#17A2B8", "#B8860B", "#8C564B", "#D6336C", "#4C6B22", "#5F3DC4"]


class Method(NamedTuple):
    """How a method is written and drawn."""

    label: str
    colour: str
    marker: str


_unlisted = count()  # numbers the methods that data/methods.csv does not list


@cache
def style_of(method: str) -> Method:
    """Label, colour and marker of a method or a search system. The listed colours are Okabe and
    Ito's and Paul Tol's "muted" ones, which people with a colour vision deficiency can
    distinguish."""
    system = systems.find(method)
    if system and system.settings:
        style = style_of(system.policy)
        return style._replace(label=f"{style.label} {system.settings}")
    if method in methods().index:
        return Method(*map(str, methods().loc[method, ["label", "colour", "marker"]]))
    index = next(_unlisted)
    return Method(method, FREE[index % len(FREE)], "phH*<>"[index // len(FREE) % 6])


def label(method: str) -> str:
    """A method's name as tables and legends print it."""
    return style_of(method).label


def labelled(table: pd.DataFrame) -> pd.DataFrame:
    """A table with the labels of methods for their names, in the levels method and baseline of its
    index."""
    for level in ("method", "baseline"):
        if level in table.index.names:
            table = table.rename(label, level=level)
    return table


def ordered(names) -> list[str]:
    """The methods in `names`, each once, in the order of data/methods.csv; methods not listed there
    come last."""
    # much faster for a column of millions of rows
    names = names.unique() if isinstance(names, pd.Series) else names
    return sorted(set(names), key=lambda method: (rank(method), method))


def figure(rows=1, cols=1, width=TEXT_WIDTH, height=2.5, title="", **options):
    """`plt.subplots` in the style of this study. Width and height in inches; `title` is put above
    all panels."""
    plt.style.use(Path(__file__).with_suffix(".mplstyle"))
    fig, axes = plt.subplots(rows, cols, figsize=(width, height), layout="constrained", **options)
    if title:
        fig.suptitle(fill(title, int(12.5 * width)), x=0.005, ha="left")
    return fig, axes


def finding(title: str, holds, otherwise: str) -> str:
    """`title`, which says in at most ten words what a figure shows, where the numbers that are
    drawn bear it out (`holds`: the comparisons of the table that it rests on), else `otherwise`,
    which names what is drawn and claims nothing.

    So a title is written by hand, and cannot stay on a figure of other numbers."""
    return title if np.all(holds) else otherwise


def legend(fig, axes, beside=None) -> None:
    """Show each entry of all panels once: below them, or on their right if there are more than five
    (`beside`)."""
    entries = {}
    for ax in np.atleast_1d(axes).flat:
        for handle, text in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    beside = len(entries) > 5 if beside is None else beside
    columns = 5 if len("".join(entries)) < 65 else 3  # as many as fit on the page
    place = (
        {"loc": "outside right center"}
        if beside
        else {"loc": "outside lower center", "ncols": columns}
    )
    fig.legend(entries.values(), entries.keys(), **place)


def save(fig, stem) -> list[Path]:
    """Write `stem`.png and `stem`.pdf without dates, so that equal figures give equal bytes.
    Both files also hold the title as text (`title_of`). Returns the paths.

    If all panels share a y axis, only the first of each row keeps its label.

    A notebook also displays the PNG, with the titles as alternative text for readers who cannot see
    it."""
    for ax in fig.axes:
        if (
            ax.get_shared_y_axes().joined(ax, fig.axes[0])
            and not ax.get_subplotspec().is_first_col()
        ):
            ax.set_ylabel("")
    paths = [Path(f"{stem}.png"), Path(f"{stem}.pdf")]
    title = " ".join(fig.get_suptitle().split())  # on one line, where it was wrapped
    fig.savefig(paths[0], dpi=200, metadata={"Software": None, "Title": title})
    fig.set_layout_engine("none")  # keep the layout as it is now
    fig.savefig(
        paths[1],
        metadata={"CreationDate": None, "Creator": None, "Producer": None, "Title": title},
    )
    plt.close(fig)
    if "IPython" in sys.modules:  # a program without a notebook need not have it
        display_picture(fig, paths[0])
    return paths


def display_picture(fig, png: Path) -> None:
    """Shows a saved figure in the notebook, with its titles as alternative text."""
    from IPython.display import Image, display

    titles = [fig.get_suptitle(), *(ax.get_title(loc="left") for ax in fig.axes)]
    picture = b64encode(png.read_bytes()).decode()
    width = round(100 * fig.get_figwidth())
    display(
        Image(
            url=f"data:image/png;base64,{picture}", width=width, alt=". ".join(filter(None, titles))
        )
    )


def title_of(png: Path) -> str:
    """The title of a figure that `save` wrote, "" where it has none."""
    with PIL.Image.open(png) as picture:
        return picture.info.get("Title", "")


def percent(*axes) -> None:
    """Write the shares on these axes (`ax.yaxis`) in percent."""
    for axis in axes:
        axis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")


def _spans(table: pd.DataFrame) -> list[pd.Series]:
    """How far the intervals reach below and above the estimates."""
    return [(table["estimate"] - table["low"]).clip(0), (table["high"] - table["estimate"]).clip(0)]


def points(ax, x, table: pd.DataFrame, method: str, **options) -> None:
    """Draw the estimates of one method at `x` with their intervals. A table without low and high,
    which has a paper's numbers, is drawn with hollow markers."""
    style = style_of(method)
    arguments = (
        {"yerr": _spans(table), "elinewidth": 0.8}
        if "low" in table
        else {"markerfacecolor": "none"}
    )
    arguments |= {
        "color": style.colour,
        "marker": style.marker,
        "label": style.label,
        "linestyle": "",
        **options,
    }
    ax.errorbar(x, table["estimate"], **arguments)


def pass_at_k_curves(ax, table: pd.DataFrame, title="", band=True) -> None:
    """Pass@k against k on a log-2 axis. Columns method, k, estimate, and low and high if the
    numbers are ours. `band`: draw the intervals as bands, otherwise as bars at powers of two. With
    few problems bands are so wide that they cover each other."""
    names = ordered(table["method"])
    has_intervals = "low" in table
    for i, method in enumerate(names):
        style = style_of(method)
        rows = table[table["method"] == method].sort_values("k")
        marker_rows = [row for row, k in enumerate(rows["k"]) if k & (k - 1) == 0]
        # bars side by side
        x = rows["k"] * (1 if band else 2 ** (0.08 * (i - (len(names) - 1) / 2)))
        if has_intervals:
            arguments = {
                "color": style.colour,
                "marker": style.marker,
                "markevery": marker_rows,
                "label": style.label,
            }
            ax.plot(x, rows["estimate"], **arguments)
        if has_intervals and band:
            ax.fill_between(
                x, rows["low"], rows["high"], color=style.colour, alpha=0.15, linewidth=0
            )
        else:
            points(
                ax,
                x.iloc[marker_rows],
                rows.iloc[marker_rows],
                method,
                label="" if has_intervals else style.label,
            )
    ax.set_xscale("log", base=2)
    ticks = [2**i for i in range(int(max(table["k"], default=1)).bit_length())]
    ax.set_xticks(ticks, ticks)
    ax.minorticks_off()
    percent(ax.yaxis)
    ax.set(xlabel="samples k", ylabel="pass@k", title=title)


def trade_off(ax, table: pd.DataFrame, x: str, y: str, title="") -> None:
    """One point per method, with its intervals in both directions. `x` and `y` are names of
    metrics. Columns method, metric, estimate, low, high."""
    for method in ordered(table["method"]):
        rows = table[table["method"] == method].set_index("metric")
        x_rows = rows.loc[[x]]
        points(
            ax,
            x_rows["estimate"],
            rows.loc[[y]],
            method,
            xerr=_spans(x_rows) if "low" in rows else None,
        )
    percent(
        *[axis for axis, metric in ((ax.xaxis, x), (ax.yaxis, y)) if metric.startswith("pass@")]
    )
    ax.set(xlabel=x, ylabel=y, title=title)


# from a point to the label beside it, in points, the nearest first
LABEL_OFFSETS = [
    (dx, dy)
    for n in range(9)
    for dy in (4 + 4 * n, -9 - 4 * n)  # above, and below
    for dx in (4, -4)
]


def _overlap(box: tuple, other: tuple) -> bool:
    """Whether two boxes (left, bottom, right, top) have an area in common."""
    beside = box[2] <= other[0] or other[2] <= box[0]
    above = box[3] <= other[1] or other[3] <= box[1]
    return not (beside or above)


def name_points(ax) -> None:
    """Instead of a legend, write the label of each entry beside its first point, at the nearest of
    the places with the fewest overlaps."""
    ax.figure.draw_without_rendering()  # gives the panel its final size
    entries = list(zip(*ax.get_legend_handles_labels(), strict=True))
    scale = ax.figure.dpi / 72
    spots = [
        ax.transData.transform(handle.lines[0].get_xydata()[0]) / scale for handle, _ in entries
    ]
    boxes = [(x - 3, y - 3, x + 3, y + 3) for x, y in spots]
    left, _, right, _ = ax.bbox.extents / scale
    for (handle, text), (x, y) in zip(entries, spots, strict=True):
        width = 3.7 * len(text)
        candidates = []
        for dx, dy in LABEL_OFFSETS:
            at = x + dx
            box = (at - width * (dx < 0), y + dy, at + width * (dx > 0), y + dy + 6)
            overlaps = sum(_overlap(box, other) for other in boxes)
            is_outside = box[0] < left or box[2] > right
            candidates.append((overlaps, is_outside, len(candidates), box, (dx, dy)))
        *_, box, offset = min(candidates)
        boxes.append(box)
        arguments = {
            "ha": "left" if offset[0] > 0 else "right",
            "fontsize": 6.5,
            "color": handle.lines[0].get_color(),
        }
        # legible on top of an error bar
        arguments["path_effects"] = [withStroke(linewidth=2, foreground="white")]
        ax.annotate(
            text, handle.lines[0].get_xydata()[0], offset, textcoords="offset points", **arguments
        )


def name_lines(ax, gap=7.5) -> None:
    """Instead of a legend, write the label of each line at its right end. Labels of lines that end
    near each other keep their order, `gap` points apart at least."""
    ax.figure.draw_without_rendering()  # gives the panel its final size
    scale = ax.figure.dpi / 72
    lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    ends = [ax.transData.transform(line.get_xydata()[-1]) / scale for line in lines]
    placed = []
    for line, (x, y) in sorted(zip(lines, ends, strict=True), key=lambda pair: pair[1][1]):
        height = max([y, *(other + gap for at, other in placed if abs(at - x) < 60)])
        placed.append((x, height))
        arguments = {
            "fontsize": 6.5,
            "color": line.get_color(),
            "va": "center",
            "annotation_clip": False,
        }
        # legible on top of another line
        arguments["path_effects"] = [withStroke(linewidth=2, foreground="white")]
        ax.annotate(
            line.get_label(),
            line.get_xydata()[-1],
            (5, height - y),
            textcoords="offset points",
            **arguments,
        )


def by_tokens(ax, table: pd.DataFrame, band: str = "") -> None:
    """Problems solved against mean tokens on a logarithmic axis, one line per method, with a marker
    at each power of two of the attempts. Columns method, attempts, tokens, estimate, low, high.
    `band`: the method whose intervals are drawn, since those of all would cover each other."""
    for method in ordered(table["method"]):
        style = style_of(method)
        rows = table[table["method"] == method].sort_values("attempts")
        marked = [
            i for i, attempts in enumerate(rows["attempts"]) if attempts & (attempts - 1) == 0
        ]
        arguments = {
            "color": style.colour,
            "marker": style.marker,
            "markevery": marked,
            "label": style.label,
        }
        ax.plot(rows["tokens"], rows["estimate"], **arguments)
        if method == band:
            ax.fill_between(
                rows["tokens"],
                rows["low"],
                rows["high"],
                color=style.colour,
                alpha=0.15,
                linewidth=0,
            )
    ax.set_xscale("log")
    ticks = [100 * 2**i for i in range(8)]
    ax.set_xticks([tick for tick in ticks if tick < table["tokens"].max()])
    ax.minorticks_off()
    ax.xaxis.set_major_formatter("{x:,.0f}")
    percent(ax.yaxis)
    ax.set(xlabel="mean tokens per problem", ylabel="problems solved")


def dots(ax, table: pd.DataFrame, title="", xlabel=None) -> None:
    """Estimates in rows, the first on top. Columns name, metric (which decides the colour),
    estimate, low, high, and optionally paper, the paper's number, drawn as a hollow marker. A table
    with a column baseline holds differences; they are written in percentage points, with a line at
    zero."""
    rows = list(dict.fromkeys(table["name"]))
    metrics = list(dict.fromkeys(table["metric"]))
    other_styles = cycle(OTHERS)
    for i, metric in enumerate(metrics):
        colour, marker = METRICS.get(metric) or next(other_styles)
        part = table[table["metric"] == metric]
        heights = [rows.index(name) + 0.2 * (i - (len(metrics) - 1) / 2) for name in part["name"]]
        arguments = {"xerr": _spans(part), "elinewidth": 0.8}
        ax.errorbar(part["estimate"], heights, fmt=marker, color=colour, label=metric, **arguments)
        if "paper" in part and part["paper"].notna().any():
            ax.plot(
                part["paper"], heights, marker, mfc="none", color=colour, label=f"{metric}, report"
            )
    ax.set_yticks(range(len(rows)), rows)
    ax.yaxis.set_inverted(True)
    percent(ax.xaxis)
    ax.set(title=title, xlabel=xlabel or "problems solved")
    if "baseline" in table:
        ax.xaxis.set_major_formatter(lambda share, _: f"{100 * share:+.3g}" if share else "0")
        ax.axvline(0, color="0.35", linewidth=0.8)
        ax.set_xlabel(xlabel or "difference, percentage points")


def training_curves(axes, table: pd.DataFrame, smooth=5, shares=()) -> None:
    """One panel per quantity, over updates. Columns method, seed, step, quantity, value. All lines
    are smoothed over windows of `smooth` updates. Strong lines are means over the runs of a method,
    faint lines are single runs. The quantities in `shares` are written in percent."""
    quantities = list(dict.fromkeys(table["quantity"]))
    for ax, quantity in zip(axes, quantities, strict=False):
        part = table[table["quantity"] == quantity].dropna(subset="value")
        for method in ordered(part["method"]):
            style = style_of(method)
            rows = part[part["method"] == method]
            runs = rows.pivot(index="step", columns="seed", values="value")
            runs = runs.rolling(smooth, min_periods=1, center=True).mean()
            if runs.shape[1] > 1:
                ax.plot(runs, color=style.colour, alpha=0.3, linewidth=0.6)
            arguments = {"marker": style.marker if len(runs) < 16 else "", "label": style.label}
            ax.plot(runs.mean(axis=1), color=style.colour, **arguments)
        percent(*[ax.yaxis] * (quantity in shares))
        ax.set(title=quantity, xlabel="update")
    for ax in axes[len(quantities) :]:
        ax.set_visible(False)
