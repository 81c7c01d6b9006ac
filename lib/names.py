"""A name that is not known, answered with the nearest that is."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable) -> str:
    """The end of an error message: the nearest known name, or all of them where none is near."""
    names = [str(other) for other in known]
    close = difflib.get_close_matches(str(name), names, 1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else f"; there are: {', '.join(sorted(names)) or 'none'}"
