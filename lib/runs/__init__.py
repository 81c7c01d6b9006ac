"""Runs. A run is one notebook, executed with one set of parameters, with its results in one folder.

A notebook uses `Run`, `read_table`, `progress` and `atomic`. `lib.runs.declare` reads
papermill_runs.yaml, `lib.runs.plan` resolves its runs, `lib.runs.execute` executes one run, and
`python -m lib.runs` is the command line for all of it."""

import sys

# papermill imports jsonschema. In every run jsonschema would spend more than a core-second on a
# grammar of web addresses, unless this module cannot be imported.
sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]

from lib.files import atomic, progress, read_table  # noqa: E402
from lib.runs.folder import Run  # noqa: E402

__all__ = ["Run", "atomic", "progress", "read_table"]
