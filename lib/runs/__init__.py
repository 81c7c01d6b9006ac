"""Runs: one notebook, one set of parameters, one folder.

A notebook uses `Run`, `read_table`, `progress` and `atomic`. `lib.runs.plan` reads and checks papermill_runs.yaml,
`lib.runs.execute` executes one run, `python -m lib.runs` is the front door to all of it.
"""

import sys

# papermill brings jsonschema, which would spend more than a core-second on a grammar of web addresses, in every run
sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]

from lib.files import atomic, progress, read_table  # noqa: E402
from lib.runs.folder import Run  # noqa: E402

__all__ = ["Run", "atomic", "progress", "read_table"]
