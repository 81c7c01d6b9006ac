"""Logging to trackio: it is off by default, one variable turns it on, and it gets the rows of
metrics.csv."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pandas as pd
import pytest
from transformers import TrainerCallback

from lib.files import ROOT
from tests.learn.test_training import make_trainer

TRAIN = """
import sys
from pathlib import Path
from tests.learn.test_training import make_trainer
trainer = make_trainer(Path(sys.argv[1]), steps=2)
trainer.fit(Path(sys.argv[1]), 2, "RLOO", ("reward",))
print("trackio" in sys.modules)
"""


def train(folder, **variables) -> str:
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(folder)],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_what_a_reporter_is_told_is_a_row_of_metrics(tmp_path, monkeypatch):
    """And nothing of trackio is imported, as nobody has asked for it."""
    told = []
    monkeypatch.setenv("COUNTDOWN_REPORT_TO", "")

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            told.append(dict(logs))

    trainer = make_trainer(tmp_path, steps=2)
    assert trainer.args.report_to == [] and trainer.args.project == "countdown"
    trainer.add_callback(Reporter())
    trainer.fit(tmp_path, 2, "RLOO", ("reward",))
    rows = pd.read_csv(tmp_path / "metrics.csv").drop(columns="step").to_dict("records")
    assert len(rows) == 2
    for row, found in zip(rows, told, strict=False):
        assert {name: found[name] for name in row} == pytest.approx(row)
    assert "trackio" not in sys.modules, "no test imports it in this process"


@pytest.mark.skipif(not find_spec("trackio"), reason="`pip install trackio` tries the real one")
def test_trackio_has_the_same_numbers(tmp_path):
    assert (
        train(
            tmp_path / "run", COUNTDOWN_REPORT_TO="trackio", TRACKIO_DIR=str(tmp_path / "trackio")
        )
        == "True"
    )
    assert list((tmp_path / "trackio").glob("countdown*"))
