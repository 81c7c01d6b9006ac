"""Runs: one notebook, one set of parameters, one folder.

A notebook uses `Run`, `read_table`, `progress` and `atomic`. `lib.runs.plan` reads and checks papermill_runs.yaml,
`lib.runs.execute` executes one run, `python -m lib.runs` is the front door to all of it.
"""

from lib.files import atomic, progress, read_table
from lib.runs.folder import Run

__all__ = ["Run", "atomic", "progress", "read_table"]
