"""Every path of the project, in one place; the environment variable COUNTDOWN_RUNS moves the runs."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
PROBLEMS = DATA / "problems"
MODELS = DATA / "models"
PAPER = DATA / "paper"
REFERENCE = DATA / "reference"
FIGURES = ROOT / "figures"
RUNS = Path(os.environ.get("COUNTDOWN_RUNS") or DATA / "runs").resolve()
if "COUNTDOWN_RUNS" in os.environ:  # what is started from here works in other folders
    os.environ["COUNTDOWN_RUNS"] = str(RUNS)
