"""Figures: files of equal bytes, one look per method, titles that are true, and the papers' numbers
as transcribed."""

import ast
import json
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import PolyCollection

from lib.files import DATA, PAPER, ROOT
from lib.study import plots


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def curves(**methods):
    rows = [
        {"method": name, "k": k, "estimate": 1 - (1 - p) ** k, "low": 0.9 * p, "high": 1.0}
        for name, p in methods.items()
        for k in range(1, 17)
    ]
    return pd.DataFrame(rows)


def draw(folder):
    fig, axes = plots.figure(1, 2)
    plots.pass_at_k_curves(axes[0], curves(**{"rloo/sparse": 0.5, "sft/free": 0.3}), "held out")
    plots.legend(fig, axes)
    return plots.save(fig, folder / "figure")


def test_save_writes_both_files_with_the_same_bytes_every_time(tmp_path):
    first = [path.read_bytes() for path in draw(tmp_path)]
    second = [path.read_bytes() for path in draw(tmp_path)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.pdf", "figure.png"]
    assert first[0].startswith(b"\x89PNG") and first[1].startswith(b"%PDF")
    assert first == second
    assert b"CreationDate" not in first[1] and b"Software" not in first[0]


def test_a_file_of_a_figure_knows_its_title(tmp_path):
    long = "Longer search pays as much as training does, and it takes no update at all"
    fig, _ = plots.figure(width=3, title=long)
    png, pdf = plots.save(fig, tmp_path / "figure")
    assert plots.title_of(png) == long, "on one line, though it is wrapped in the picture"
    assert long.encode("ascii") in pdf.read_bytes()
    assert plots.title_of(plots.save(plots.figure()[0], tmp_path / "none")[0]) == ""


def test_a_finding_is_a_title_only_where_its_numbers_bear_it_out():
    ahead = pd.Series([0.5, 0.6])
    assert plots.finding("Both are ahead", ahead > 0.4, "Accuracy") == "Both are ahead"
    assert plots.finding("Both are ahead", ahead > 0.5, "Accuracy") == "Accuracy"
    assert plots.finding("Both are ahead", False, "Accuracy") == "Accuracy"


def test_the_picture_in_a_notebook_says_its_titles(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    fig, ax = plots.figure(title="More is <better>")
    ax.set_title("held out")
    plots.save(fig, tmp_path / "figure")
    assert 'alt="More is &lt;better&gt;. held out"' in shown[0]._repr_html_()
    assert not plt.get_fignums()  # it is not drawn once more


def test_no_metric_has_the_colour_of_a_method():
    assert not {colour for colour, _ in [*plots.METRICS.values(), *plots.OTHERS]} & {
        *plots.methods()["colour"]
    }


def test_every_method_looks_different():
    table = pd.read_csv(DATA / "methods.csv")
    assert not table.duplicated(["colour", "marker"]).any() and table["label"].is_unique
    assert set(table["trainer"]) == {"sft", "rloo", "preference", "exact"}
    assert set(table["study"]) == {
        "all",
        "screen",
        "ast",
        "program",
        "dense",
        "trace",
        "agent",
        "coverage",
        "exact",
    }


def test_an_unknown_method_gets_a_look_of_its_own_and_keeps_it():
    mine = plots.style_of("rloo/mine")
    other = plots.style_of("rloo/other")
    assert (
        mine.label == "rloo/mine"
        and mine.colour != other.colour
        and plots.style_of("rloo/mine") == mine
    )
    plots.pass_at_k_curves(plots.figure()[1], curves(**{"rloo/mine": 0.5, "sft/free": 0.4}))
    assert plots.ordered(["rloo/other", "rloo/mine", "rloo/sparse", "sft/free", "rloo/mine"]) == [
        *["sft/free", "rloo/sparse"],
        *["rloo/mine", "rloo/other"],
    ]
    many = [plots.style_of(f"rloo/mine{i}") for i in range(36)]
    assert len({(method.colour, method.marker) for method in many}) == 36


def test_an_index_is_shown_with_labels():
    columns = ["set", "baseline", "method", "estimate"]
    rows = [("sft/free", "sft/free", "rloo/sparse", 0.1)]
    table = pd.DataFrame(rows, columns=columns).set_index(columns[:3])
    shown = plots.labelled(table).index[0]
    assert shown == ("sft/free", plots.label("sft/free"), plots.label("rloo/sparse"))
    assert shown[2] != "rloo/sparse"


def test_a_search_system_looks_like_its_policy_and_is_written_with_its_budget():
    policy = plots.style_of("preference/agent_soft")
    system = plots.style_of("preference/agent_soft 16/16 T0.9")
    assert system == policy._replace(label="Action DPO, Q soft 16/16 T0.9")


def test_pass_at_k_curves_draw_the_table():
    ax = plots.figure()[1]
    table = curves(**{"rloo/ast_tau2": 0.4, "sft/free": 0.2})
    plots.pass_at_k_curves(ax, table.sample(frac=1, random_state=0))
    sft, ast = ax.get_lines()  # in the order of the table of methods, whatever this table's
    assert sft.get_color() == plots.style_of("sft/free").colour and ast.get_label() == "AST τ=2"
    np.testing.assert_array_equal(ast.get_xdata(), np.arange(1, 17))
    np.testing.assert_allclose(ast.get_ydata(), 1 - 0.6 ** np.arange(1, 17))
    assert list(ax.get_xticks()) == [1, 2, 4, 8, 16] and len(ax.collections) == 2
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "4", "8", "16"]


def test_bars_of_few_problems_stand_side_by_side():
    ax = plots.figure()[1]
    plots.pass_at_k_curves(ax, curves(**{"rloo/sparse": 0.5, "sft/free": 0.3}), band=False)
    assert not any(isinstance(collection, PolyCollection) for collection in ax.collections)
    at = [container.lines[0].get_xdata() for container in ax.containers]
    assert len(at[0]) == 5 and all(one < two for one, two in zip(*at, strict=True))


def test_what_a_paper_reports_is_hollow_and_not_joined():
    ax = plots.figure()[1]
    plots.pass_at_k_curves(
        ax, pd.DataFrame({"method": "sft/free", "k": [1, 8, 16], "estimate": [0.3, 0.7, 0.8]})
    )
    (line,) = ax.get_lines()
    assert (
        line.get_linestyle() == "None"
        and line.get_markerfacecolor() == "none"
        and not ax.collections
    )
    assert list(line.get_xdata()) == [1, 8, 16]


def test_legend_names_each_method_once_and_never_covers_a_panel():
    for many in (2, 7):
        fig, axes = plots.figure(1, 2)
        for ax in axes:
            plots.pass_at_k_curves(ax, curves(**{f"rloo/{i}": 0.5 for i in range(many)}))
        plots.legend(fig, axes)
        assert [text.get_text() for text in fig.legends[0].get_texts()] == [
            f"rloo/{i}" for i in range(many)
        ]
        fig.draw_without_rendering()
        box = fig.legends[0].get_window_extent()
        assert (box.x0 > axes[1].bbox.x1) == (many > 5), "many names stand on the right, few below"
        assert not any(box.overlaps(ax.get_tightbbox()) for ax in axes)


def extent_of_title(fig):
    [title] = [text for text in fig.texts if text.get_text() == fig.get_suptitle()]
    return title.get_window_extent()


def test_the_title_stands_above_the_panels():
    fig, ax = plots.figure(title="RL sharpens")
    ax.set_title("held out")
    fig.draw_without_rendering()
    assert not extent_of_title(fig).overlaps(ax.title.get_window_extent())


@pytest.mark.parametrize("width", [4.5, 6.5])
def test_a_long_title_stays_on_the_figure(width):
    fig, ax = plots.figure(
        width=width, title="Pass@16 is significantly lower than that of the start " * 3
    )
    ax.set_title("held out")
    fig.draw_without_rendering()
    assert extent_of_title(fig).x1 <= fig.bbox.x1
    assert not extent_of_title(fig).overlaps(ax.title.get_window_extent())


def test_panels_that_share_an_axis_have_its_label_once_per_row(tmp_path):
    fig, axes = plots.figure(2, 2, sharey=True)
    apart, (left, right) = plots.figure(1, 2)
    for ax in [*axes.flat, left, right]:
        ax.set_ylabel("pass@k")
    for figure in (fig, apart):
        plots.save(figure, tmp_path / "figure")
    assert [ax.get_ylabel() for ax in axes.flat] == ["pass@k", "", "pass@k", ""]
    assert left.get_ylabel() == right.get_ylabel() == "pass@k"


def test_training_curves():
    _, axes = plots.figure(1, 3)
    rows = [
        {
            "method": "rloo/sparse",
            "seed": seed,
            "step": step,
            "quantity": name,
            "value": value + seed,
        }
        for name in ("reward", "groups without signal")
        for seed in (0, 1)
        for step, value in [(0, 0.0), (10, 3.0), (20, np.nan), (30, 6.0)]
    ]
    plots.training_curves(axes, pd.DataFrame(rows), smooth=3, shares=["groups without signal"])
    assert [ax.get_title(loc="left") for ax in axes[:2]] == ["reward", "groups without signal"]
    assert not axes[2].get_visible()
    *runs, mean = axes[0].get_lines()
    # measured every few steps it is still one line
    assert len(runs) == 2 and list(mean.get_xdata()) == [0, 10, 30]
    assert list(mean.get_ydata()) == [2, 3.5, 5]  # each with its neighbours: the curve is not late
    assert axes[1].yaxis.get_major_formatter()(0.125, 0) == "12.5%"


def titles(path) -> Iterator[tuple[str, bool]]:
    """The titles over the figures of a notebook: the text that its cells have for them, and whether
    it is computed.

    These are the arguments `title` of `plots.figure` and of `ax.set`, and what is assigned to a
    name `title`."""
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or "plots.figure" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            given = [word.value for word in getattr(node, "keywords", []) if word.arg == "title"]
            if isinstance(node, ast.Assign | ast.AugAssign):
                named = node.targets if isinstance(node, ast.Assign) else [node.target]
                given += [node.value] * any(getattr(name, "id", "") == "title" for name in named)
            for value in given:
                if isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "finding":
                    yield written(value.args[0]), True  # stands where the numbers bear it out
                    [value] = [word.value for word in value.keywords if word.arg == "otherwise"]
                yield written(value), not isinstance(value, ast.Constant)


def written(node: ast.AST) -> str:
    """The literal text of an expression for a string, without what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # "...".format(...)
        return written(node.func.value)
    inner = [
        child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FormattedValue)
    ]
    return (
        "".join(map(written, inner))
        if isinstance(node, ast.JoinedStr | ast.BinOp | ast.IfExp)
        else ""
    )


ANALYSES = [
    ROOT / "notebooks/18_choose_a_regime.ipynb",
    *sorted((ROOT / "notebooks").glob("[2-9]*.ipynb")),
]
RESULTS = (
    r"\b(more(?! updates)|less|fewer|better|worse|no|gains?|loses?|falls?|rises?|leaves?|grows?"
    r"|teaches|buys|(?<!the )leads?)\b"  # "the leads" is a noun
)


@pytest.mark.parametrize("path", ANALYSES, ids=lambda path: path.stem)
def test_a_title_has_no_number_or_result_that_is_not_computed(path):
    for text, computed in titles(path):
        bare = re.sub(r"(?i)pass@\d+|best of \d|\w+_\d+|{[^}]*}", "", text)
        assert not re.search(r"\d", bare), text
        assert computed or not re.search(RESULTS, text.lower()), text


def test_titles_are_found():
    assert sum(len(text) > 10 for path in ANALYSES for text, _ in titles(path)) >= 35


def test_paper_tables():
    results = pd.read_csv(PAPER / "results.csv")
    key = ["paper", "table", "method", "metric", "set"]
    assert list(results) == [*key, "value", "unit"] and not results.duplicated(key).any()
    assert np.issubdtype(results["value"].dtype, np.floating)
    table = results.query("paper == 'ast' and table == 'Table 1'").pivot(
        index="method", columns="metric", values="value"
    )
    gap = (table.loc["rloo/ast_tau2"] - table.loc["rloo/sparse"]).round(2)
    stated = results.query("table == 'Figure 2' and unit == 'percentage points'").set_index(
        "metric"
    )["value"]
    assert gap[stated.index].tolist() == stated.tolist()  # the text's differences are its table's
    shares = results.query("unit == 'percent'")["value"]
    assert shares.between(0, 100).all()

    claims = pd.read_csv(PAPER / "claims.csv")
    assert claims["id"].is_unique
    assert (claims["paper"].value_counts().drop("scale") >= 8).all()
    parameters = pd.read_csv(PAPER / "hyperparameters.csv")
    assert set(parameters["source"]) == {"stated", "ours"}
    assert not parameters.duplicated(["paper", "parameter"]).any()


def test_dots_stand_at_their_values_in_the_order_of_the_table():
    rows = [
        ("first", "pass@1", 0.2, 0.1),
        ("first", "pass@16", 0.6, 0.5),
        ("second", "pass@1", 0.3, np.nan),
    ]
    table = pd.DataFrame(rows, columns=["name", "metric", "estimate", "paper"])
    _, ax = plots.figure()
    plots.dots(ax, table.assign(low=table["estimate"] - 0.1, high=table["estimate"] + 0.2))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [
        "first",
        "second",
    ] and ax.yaxis_inverted()
    hollow = {
        line.get_label(): line for line in ax.get_lines() if line.get_label().endswith("report")
    }
    assert hollow["pass@1, report"].get_xydata()[0].round(9).tolist() == [0.1, -0.1]
    assert hollow["pass@16, report"].get_xydata().round(9).tolist() == [[0.5, 0.1]]
    (span,) = ax.containers[1].lines[2]
    assert span.get_segments()[0].round(9).tolist() == [[0.5, 0.1], [0.8, 0.1]]


def test_dots_in_panels_with_one_axis_keep_the_order_of_the_table():
    table = pd.DataFrame(
        {"name": ["first", "second"], "metric": "pass@16", "estimate": 0.2, "low": 0.1, "high": 0.3}
    )
    axes = plots.figure(1, 2, sharey=True)[1]
    for ax in axes:
        plots.dots(ax, table)
    assert all(ax.yaxis_inverted() for ax in axes)
    assert axes[0].containers[0].lines[0].get_color() == plots.METRICS["pass@16"][0]


def test_differences_are_in_points_and_shares_in_percent():
    table = pd.DataFrame(
        {"name": ["first"], "metric": "pass@1", "estimate": 0.2, "low": 0.1, "high": 0.3}
    )
    shares, differences = plots.figure(1, 2)[1]
    plots.dots(shares, table)
    plots.dots(differences, table.assign(baseline="sft/free"))
    written = [ax.xaxis.get_major_formatter()(0.125, 0) for ax in (shares, differences)]
    assert written == ["12.5%", "+12.5"]
    assert [ax.get_xlabel() for ax in (shares, differences)] == [
        "problems solved",
        "difference, percentage points",
    ]
    assert [[*line.get_xdata()] for line in differences.get_lines()][-1] == [0, 0] and len(
        shares.get_lines()
    ) == 1


def ends():
    rows = [
        ("sft/free", "x", 1.0, 0.5, 1.5),
        ("sft/free", "y", 3.0, 2.0, 5.0),
        ("rloo/sparse", "x", 2.0, 1.0, 2.0),
    ]
    rows += [("rloo/sparse", "y", 4.0, 3.0, 4.5), ("sft/free", "other", 0, 0, 0)]
    return pd.DataFrame(rows, columns=["method", "metric", "estimate", "low", "high"])


def test_trade_off():
    ax = plots.figure()[1]
    plots.trade_off(ax, ends(), "x", "y")
    points = [container.lines[0] for container in ax.containers]
    assert [(p.get_xdata()[0], p.get_ydata()[0], p.get_marker()) for p in points] == [
        (1, 3, "o"),
        (2, 4, "s"),
    ]
    bars = ax.containers[0].lines[2]  # x, then y
    assert [bar.get_segments()[0].tolist() for bar in bars] == [
        [[0.5, 3], [1.5, 3]],
        [[1, 2], [1, 5]],
    ]
    plots.trade_off(ax, ends().replace("x", "pass@1"), "pass@1", "y")
    assert ax.xaxis.get_major_formatter()(0.125, 0) == "12.5%", (
        "only shares of problems are in percent"
    )
    assert ax.yaxis.get_major_formatter()(0.125, 0) != "12.5%"


def test_an_interval_that_ends_at_its_estimate_is_drawn_though_rounding_puts_it_beside():
    rows = [("first", 1.0, 0.9, 1 - 1e-16), ("second", 0.0, 1e-16, 0.1)]
    ax = plots.figure()[1]
    plots.dots(
        ax, pd.DataFrame(rows, columns=["name", "estimate", "low", "high"]).assign(metric="pass@1")
    )
    ends = [
        segment[:, 0].round(9).tolist() for segment in ax.containers[0].lines[2][0].get_segments()
    ]
    assert ends == [[0.9, 1.0], [0.0, 0.1]]


def test_names_of_points_stand_clear_of_each_other():
    _, ax = plots.figure()
    names = [f"rloo/variant_{i}" for i in range(6)]
    rows = [(name, axis, 0.5 + 0.01 * i) for i, name in enumerate(names) for axis in "xy"]
    plots.trade_off(ax, pd.DataFrame(rows, columns=["method", "metric", "estimate"]), "x", "y")
    plots.name_points(ax)
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) == 6
    assert not any(one.overlaps(two) for i, one in enumerate(boxes) for two in boxes[:i])


def test_lines_by_tokens_are_named_at_their_ends_without_overlap():
    """Four policies that end near each other, and one that ends earlier: a band for the start
    alone."""
    ends = {
        "sft/free": (600, 0.62),
        "rloo/sparse": (1200, 0.6),
        "rloo/ast_tau2": (1190, 0.6),
        "preference/ipo": (1210, 0.601),
    }
    rows = [
        (name, attempts, tokens * attempts / 16, solved * (attempts / 16) ** 0.2)
        for name, (tokens, solved) in ends.items()
        for attempts in range(1, 17)
    ]
    table = pd.DataFrame(rows, columns=["method", "attempts", "tokens", "estimate"])
    _, ax = plots.figure()
    plots.by_tokens(
        ax, table.assign(low=table["estimate"] - 0.1, high=table["estimate"] + 0.1), band="sft/free"
    )
    plots.name_lines(ax)
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert sorted(text.get_text() for text in ax.texts) == sorted(map(plots.label, ends))
    assert not any(one.overlaps(two) for i, one in enumerate(boxes) for two in boxes[:i])
    assert len([one for one in ax.collections if isinstance(one, PolyCollection)]) == 1
    assert ax.get_xscale() == "log" and {100, 200, 400, 800} == set(ax.get_xticks())
