"""A Countdown problem, and how one is read from a row of any table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

MAX_NUMBERS = 6  # in one problem: the solver takes no more
NUMBERS = {int, Fraction}
# 98.0 counts as 98: spreadsheets and data frames make floats
_NUMBER = re.compile(r"([1-9][0-9]{0,17})(?:\.0+)?")
_TARGET = re.compile(r"(-?[0-9]{1,18})(?:\.0+)?")


class Rows(Protocol):
    """A table with columns nums and target: a Dataset or a DataFrame."""

    def __getitem__(self, column: str, /) -> Iterable: ...


@dataclass(frozen=True, slots=True)
class Problem:
    """Reach `target` with every number of `nums` used once. All are whole numbers; only the agent's
    states may hold Fractions.

    Raises TypeError for anything else.
    """

    nums: tuple[int | Fraction, ...]
    target: int | Fraction

    def __post_init__(self):
        if (
            type(self.nums) is not tuple
            or not self.nums
            or not {*map(type, (*self.nums, self.target))} <= NUMBERS
        ):
            raise TypeError(
                "a problem is a tuple of whole numbers and a whole target: "
                f"{self.nums!r}, {self.target!r}"
            )

    @property
    def key(self) -> tuple[tuple[int | Fraction, ...], int | Fraction]:
        """The same for two problems if and only if they differ at most in the order of their
        numbers."""
        return tuple(sorted(self.nums)), self.target


class ProblemSetError(ValueError):
    """A row is no problem, or a problem set is unknown, missing, or not what the manifest says."""


def as_problem(nums: object, target: object) -> Problem:
    """The Problem of a row of a file, a data frame, a data set or a tensor.

    nums: two to six whole numbers from 1 upwards, as a list, a tuple, an array, or a text such as
    "44 19 35", which may also have commas or semicolons in place of spaces, and brackets. target: a
    whole number. 98.0 counts as whole, 98.5 does not. Raises ProblemSetError, which says the rule
    that is broken."""
    values = _plain(nums)
    goal = _plain(target)
    words = _words(values) if isinstance(values, str) else values
    numbers = []
    if isinstance(words, list | tuple):
        numbers = [_NUMBER.fullmatch(str(word)) for word in words]
    found = [int(number[1]) for number in numbers if number]
    whole = _TARGET.fullmatch(str(goal).strip())
    if not 2 <= len(found) <= MAX_NUMBERS or len(found) < len(numbers) or not whole:
        rule = _broken_rule(words, numbers, goal)
        raise ProblemSetError(
            f'{values!r:.80}, {goal!r:.80} is not a problem: {rule}; write "44 19 35",98'
        )
    return Problem(tuple(found), int(whole[1]))


def as_problems(rows: Rows) -> list[Problem]:
    """The rows of a problem set as Problems. Raises ProblemSetError for a row that is not a
    problem."""
    return [
        as_problem(nums, target) for nums, target in zip(rows["nums"], rows["target"], strict=True)
    ]


def _plain(value: object) -> object:
    """An array or a tensor as a list or a number."""
    tolist = getattr(value, "tolist", None)
    return value if tolist is None else tolist()


def _words(text: str) -> list[str]:
    """The numbers in a text, which one kind of sign separates: semicolons, commas or white space.
    "1,540 60" has two kinds, so that its comma may stand between thousands; it becomes "1" and "540
    60"."""
    text = text.strip(" \t[]()")
    sign = next((sign for sign in ";," if sign in text), None)
    return [word.strip() for word in text.split(sign)]


def _broken_rule(words: object, matches: Sequence[re.Match | None], target: object) -> str:
    """What is wrong with the numbers `words`, which have these matches, or else with the target."""
    if words is None:
        return "the numbers are missing"
    if not isinstance(words, list | tuple):
        return "the numbers are no list and no text"
    wrong = [word for word, match in zip(words, matches, strict=True) if not match]
    if wrong:
        return f"{wrong[0]!r:.40} is no whole number of at least 1 and at most 18 digits"
    if not 2 <= len(words) <= MAX_NUMBERS:
        return f"a problem has two to six numbers, not {len(words)}"
    if target in (None, ""):
        return "the target is missing"
    return f"the target {target!r:.40} is no whole number"
