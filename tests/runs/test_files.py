"""Tables in files: a table of a study has the same bytes on every processor, and a training log
keeps every digit."""

import signal

import numpy as np
import pandas as pd
import pytest

from lib.files import read_table, uninterrupted
from lib.runs import Run


def written(folder, table: pd.DataFrame, name="table.csv") -> bytes:
    return Run(folder).write(table, name).read_bytes()


@pytest.fixture
def numbers() -> pd.Series:
    """Shares of counts, whose seventh digit is often a five; means, and numbers of any size."""
    random = np.random.default_rng(0)
    shares = random.integers(0, 80_000, 2000) / 80_000
    wide = random.normal(size=2000) * 10.0 ** random.integers(-9, 9, 2000)
    return pd.Series(
        np.concatenate([shares, shares / 3, wide, [0.4718875, 1234567.5, 26880.0, 0.0]])
    )


@pytest.mark.parametrize("noise", [1e-15, 1e-14, -1e-14])
def test_tables_are_equal_where_processors_disagree_about_a_last_digit(tmp_path, numbers, noise):
    other = numbers * (1 + noise * np.random.default_rng(1).random(len(numbers)))
    assert (other != numbers).any()
    first, second = (
        written(tmp_path, pd.DataFrame({"estimate": column})) for column in (numbers, other)
    )
    assert first == second


def test_a_difference_of_nothing_is_zero(tmp_path):
    nothing = pd.DataFrame({"difference": [0.1 + 0.2 - 0.3, 0.3 - 0.1 - 0.2, -0.0, 0.0]})
    assert written(tmp_path, nothing) == b"difference\n" + 4 * b"0.0\n"


def test_six_digits_are_kept_and_whole_numbers_are_whole(tmp_path, numbers):
    table = pd.DataFrame(
        {"estimate": numbers, "count": range(len(numbers)), "tokens": 4_204_649.0, "name": "AST"}
    )
    back = read_table(Run(tmp_path).write(table, "table.csv"))
    np.testing.assert_allclose(back["estimate"], numbers, rtol=5.1e-6)
    pd.testing.assert_frame_equal(
        back.drop(columns="estimate"), table.drop(columns="estimate"), check_dtype=False
    )
    assert max(len(line.split(b",")[0]) for line in written(tmp_path, table).splitlines()) <= len(
        "-1.23456e-09"
    )


def test_missing_and_mixed_cells_stay_what_they_are(tmp_path):
    mixed = pd.DataFrame({"estimate": [1 / 3, np.nan, np.inf], "steps": [1 / 3, "many", None]})
    assert written(tmp_path, mixed).decode().splitlines()[1:] == [
        "0.333333,0.333333",
        ",many",
        "inf,",
    ]


def test_columns_of_whole_numbers_stay_whole_where_some_are_missing(tmp_path):
    table = pd.DataFrame(
        {"runs": pd.array([5, None], dtype="Int64"), "held": [True, False], "nums": [(1, 2), (3,)]}
    )
    assert written(tmp_path, table) == written(tmp_path, table, "metrics.csv")
    assert written(tmp_path, table).splitlines()[1].startswith(b"5,True")
    assert written(tmp_path, table[:0]) == b"runs,held,nums\n"


def test_a_training_log_and_samples_keep_every_digit(tmp_path):
    table = pd.DataFrame({"step": range(500), "reward": np.random.default_rng(0).random(500)})
    for name in ("metrics.csv", "generations.parquet"):
        assert (
            read_table(Run(tmp_path).write(table, name))["reward"].tolist()
            == table["reward"].tolist()
        )


def test_an_interrupt_waits_for_the_end_of_an_import():
    """It would leave half a package loaded, which only a restart of the kernel mends. A job in the
    background of a shell ignores Ctrl-C, so the test sets what a kernel has."""
    done = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("the import goes on")
        assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    with uninterrupted():
        done.append("nothing is held back")
    assert len(done) == 2
