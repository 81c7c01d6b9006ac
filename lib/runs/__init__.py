"""Runs: one notebook, one set of parameters, one folder.

A notebook uses `Run`, `read_table` and `progress` (`lib.runs.notebook`). `lib.runs.plan` reads and checks
papermill_runs.yaml, `lib.runs.execute` executes one run, `python -m lib.runs` is the front door to all of it.
"""

from lib.runs.notebook import Progress, Run, atomic, progress, read_table

__all__ = ["Progress", "Run", "atomic", "progress", "read_table"]
