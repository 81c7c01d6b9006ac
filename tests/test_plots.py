"""Figures: files of equal bytes, one look a method, and the transcribed numbers that stand beside ours."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from lib import plots
from lib.paths import PAPER


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def curves(methods):
    rows = [
        {"method": name, "k": k, "estimate": 1 - (1 - p) ** k, "low": 0.9 * p, "high": 1.0}
        for name, p in methods.items()
        for k in range(1, 17)
    ]
    return pd.DataFrame(rows)


def draw(folder):
    fig, axes = plots.figure(1, 2)
    plots.pass_at_k_curves(axes[0], curves({"rloo/sparse": 0.5, "sft/free": 0.3}), "held out")
    plots.legend(fig, axes)
    return plots.save(fig, folder / "figure")


def test_save_writes_both_files_with_the_same_bytes_every_time(tmp_path):
    first, second = ([path.read_bytes() for path in draw(tmp_path)] for _ in range(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.pdf", "figure.png"]
    assert first[0].startswith(b"\x89PNG") and first[1].startswith(b"%PDF")
    assert first == second
    assert b"CreationDate" not in first[1] and b"Software" not in first[0]


def test_every_method_looks_different():
    looks = [(method.colour, method.marker) for method in plots.METHODS.values()]
    assert len(set(looks)) == len(looks)
    assert len({method.label for method in plots.METHODS.values()}) == len(plots.METHODS)
    main = [name for name in plots.METHODS if not re.search("/trace|/agent|sft/[pd]i", name)]
    for family in (main, [m for m in plots.METHODS if "/trace" in m]):
        assert len({plots.METHODS[name].colour for name in family}) == len(family)


def test_unknown_method_names_the_nearest():
    with pytest.raises(KeyError, match=r"rloo/ast_tau5.*lib/plots\.py: did you mean 'rloo/ast_tau[1-4]'"):
        plots.pass_at_k_curves(plots.figure()[1], curves({"rloo/ast_tau5": 0.5}))


def test_pass_at_k_curves_draw_the_table():
    ax = plots.figure()[1]
    table = curves({"rloo/ast_tau2": 0.4, "sft/free": 0.2})
    plots.pass_at_k_curves(ax, table.sample(frac=1, random_state=0))
    sft, ast = ax.get_lines()  # in the order of METHODS, whatever the table's
    assert sft.get_color() == plots.METHODS["sft/free"].colour and ast.get_label() == "AST τ=2"
    np.testing.assert_array_equal(ast.get_xdata(), np.arange(1, 17))
    np.testing.assert_allclose(ast.get_ydata(), 1 - 0.6 ** np.arange(1, 17))
    assert list(ax.get_xticks()) == [1, 2, 4, 8, 16] and len(ax.collections) == 2
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "4", "8", "16"]


def test_reported_points_are_dotted_and_have_no_band():
    ax = plots.figure()[1]
    plots.pass_at_k_curves(ax, pd.DataFrame({"method": "sft/free", "k": [1, 8, 16], "estimate": [0.3, 0.7, 0.8]}))
    assert ax.get_lines()[0].get_linestyle() == ":" and not ax.collections


def test_legend_names_each_method_once():
    fig, axes = plots.figure(1, 2)
    for ax in axes:
        plots.pass_at_k_curves(ax, curves({"rloo/sparse": 0.5, "sft/free": 0.3}))
    plots.legend(fig, axes)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["SFT", "RLOO, sparse"]


def test_reward_ladder():
    ax = plots.figure()[1]
    table = pd.DataFrame({"method": "rloo/ast_tau2", "distance": [3, 1, 2], "reward": [0.2, 0.4, 0.3]})
    plots.reward_ladder(ax, table, correct=1.0, span=0.1)
    *ends, rung = ax.get_lines()
    assert [line.get_ydata()[0] for line in ends] == [1.0, 0.1]
    assert list(rung.get_xdata()) == [1, 2, 3] and list(rung.get_ydata()) == [0.4, 0.3, 0.2]


def test_training_curves():
    _, axes = plots.figure(1, 3)
    rows = [
        {"method": "rloo/sparse", "step": step, "quantity": name, "value": value}
        for name in ("reward", "KL")
        for step, value in [(0, 0.0), (10, 1.0), (20, np.nan), (30, 2.0)]
    ]
    plots.training_curves(axes, pd.DataFrame(rows), smooth=2)
    assert [ax.get_title(loc="left") for ax in axes[:2]] == ["reward", "KL"] and not axes[2].get_visible()
    faint, strong = axes[0].get_lines()
    assert list(faint.get_xdata()) == [0, 10, 30]  # measured every few steps it is still one line
    assert list(strong.get_ydata()) == [0, 0.5, 1.5]


def test_paper_tables():
    results = pd.read_csv(PAPER / "results.csv")
    key = ["paper", "table", "method", "metric", "set"]
    assert list(results) == [*key, "value", "unit"] and not results.duplicated(key).any()
    assert np.issubdtype(results["value"].dtype, np.floating)
    table = results.query("paper == 'ast' and table == 'Table 1'").pivot(
        index="method", columns="metric", values="value"
    )
    gap = (table.loc["rloo/ast_tau2"] - table.loc["rloo/sparse"]).round(2)
    stated = results.query("table == 'Figure 2' and unit == 'percentage points'").set_index("metric")["value"]
    assert gap[stated.index].tolist() == stated.tolist()  # the text's differences are its table's
    shares = results.query("unit == 'percent'")["value"]
    assert shares.between(0, 100).all()

    claims = pd.read_csv(PAPER / "claims.csv")
    assert claims["id"].is_unique
    assert (claims.groupby("paper").size() >= 8).all()
    parameters = pd.read_csv(PAPER / "hyperparameters.csv")
    assert set(parameters["source"]) == {"stated", "ours"}
    assert not parameters.duplicated(["paper", "parameter"]).any()


def test_dots_stand_at_their_values_in_the_order_of_the_table():
    rows = [("first", "pass@1", 0.2, 0.1), ("first", "pass@16", 0.6, 0.5), ("second", "pass@1", 0.3, 0.4)]
    table = pd.DataFrame(rows, columns=["name", "metric", "estimate", "paper"])
    _, ax = plots.figure()
    plots.dots(ax, table.assign(low=table["estimate"] - 0.1, high=table["estimate"] + 0.2))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["first", "second"] and ax.yaxis_inverted()
    hollow = {line.get_label(): line for line in ax.get_lines() if line.get_label().endswith("paper")}
    assert hollow["pass@1, paper"].get_xydata().tolist() == [[0.1, 0], [0.4, 1]]
    assert hollow["pass@16, paper"].get_xydata().tolist() == [[0.5, 0]]
    (span,) = ax.containers[1].lines[2]
    assert span.get_segments()[0].round(9).tolist() == [[0.5, 0], [0.8, 0]]


def test_trade_off():
    ax = plots.figure()[1]
    rows = [("sft/free", "x", 1.0, 0.5, 1.5), ("sft/free", "y", 3.0, 2.0, 5.0), ("rloo/sparse", "x", 2.0, 2.0, 2.0)]
    rows += [("rloo/sparse", "y", 4.0, 3.0, 4.5), ("sft/free", "other", 0, 0, 0)]
    table = pd.DataFrame(rows, columns=["method", "metric", "estimate", "low", "high"])
    plots.trade_off(ax, table, "x", "y")
    points = [container.lines[0] for container in ax.containers]
    assert [(p.get_xdata()[0], p.get_ydata()[0], p.get_marker()) for p in points] == [(1, 3, "o"), (2, 4, "s")]
    bars = ax.containers[0].lines[2]  # x, then y
    assert [bar.get_segments()[0].tolist() for bar in bars] == [[[0.5, 3], [1.5, 3]], [[1, 2], [1, 5]]]
