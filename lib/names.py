"""For now: see lib/files.py."""

from lib.files import nearest  # noqa: F401
