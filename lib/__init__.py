"""Countdown: what should a small language model be rewarded for when it learns to solve arithmetic
puzzles?"""

from pathlib import Path

# The text of each module when this process began to import lib. A kernel keeps the code that it has
# loaded, even if a file is edited later: `lib.runs.code` compares the two.
SOURCES = {path: path.read_bytes() for path in Path(__file__).parent.rglob("*.py")}
