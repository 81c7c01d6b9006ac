"""For now: see lib/files.py."""

from lib.files import DATA, FIGURES, MODELS, PAPER, PROBLEMS, REFERENCE, ROOT, RUNS  # noqa: F401
