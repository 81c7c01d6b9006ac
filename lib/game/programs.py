"""Restricted programs: one assignment per line, computed in exact arithmetic and never executed.

    a = 44 + 19  # 63
    answer = a + 35

A line is `name = expression`. An expression holds integers in ASCII digits, names that were bound
on earlier lines, `+ - * /`, signs and parentheses; everything after a `#` is a comment. White space
is space, tab and carriage return. A name may be bound again; a keyword of Python is no name.

Every value carries the expression over literals that computes it, and it has consumed the numbers
of that expression. A value that is used twice therefore consumes its numbers twice, and a value on
which the final value does not rest consumes nothing."""

import re
from fractions import Fraction
from keyword import iskeyword
from typing import NamedTuple

from lib.game.expression import WHOLE, Expr, ExpressionError, Num, evaluate, parse

MAX_LENGTH = 4000  # characters in a program; a longer one is wrong, whatever it computes
MAX_TOKENS = 200  # on a line's right side
FINAL_NAMES = ("answer", "final", "result")

_NAME = re.compile(r"[A-Za-z_]\w*+", re.ASCII)
_LINE = re.compile(
    rf"({_NAME.pattern})[ \t]*+="
    rf"((?:[ \t]*+(?:{WHOLE}(?!\w)|{_NAME.pattern}|[-+*/()])){{1,{MAX_TOKENS}}}+)",
    re.ASCII,
)


class ParseError(ValueError):
    """A line is not an assignment of this language, or there is no line at all."""


class ExecutionError(ValueError):
    """A name is not bound, something is divided by zero, or a value is made of more than MAX_NODES
    numbers and operators."""


class Result(NamedTuple):
    """The final value, the expression over literals that computes it, and this expression of each
    assignment."""

    value: Fraction
    expression: Expr
    assignments: tuple[Expr, ...]


def run_program(text: str) -> Result:
    """Interprets a program. Its final value is that of `answer`; without it that of `final`, then
    of `result`, else the last one.

    Raises ParseError before any line is computed, and ExecutionError. Both name the line.
    """
    trees: dict[str, Expr] = {}  # of the names that are bound, over literals
    # their values; a line is computed from them, so that nothing is computed twice
    values: dict[str, Expr] = {}
    assignments = []
    name = ""
    for number, name, expression in parse_program(text):
        try:
            if unbound := set(_NAME.findall(expression)) - trees.keys():
                raise ExpressionError(f"{min(unbound)} is not bound")
            trees[name] = parse(expression, names=trees)
            values[name] = Num(evaluate(parse(expression, names=values)))
        except ZeroDivisionError as error:
            raise ExecutionError(f"line {number}: a division by zero") from error
        except ExpressionError as error:
            raise ExecutionError(f"line {number}: {error}") from error
        assignments.append(trees[name])
    final = next((name for name in FINAL_NAMES if name in trees), name)
    return Result(evaluate(values[final]), trees[final], tuple(assignments))


def parse_program(text: str) -> list[tuple[int, str, str]]:
    """The line number (from 1), the name and the expression of each assignment. Raises
    ParseError."""
    if len(text) > MAX_LENGTH:
        raise ParseError(f"more than {MAX_LENGTH} characters")
    lines = [
        (i, line.partition("#")[0].strip(" \t\r")) for i, line in enumerate(text.split("\n"), 1)
    ]
    assignments = [(i, *_assignment(i, line)) for i, line in lines if line]
    if not assignments:
        raise ParseError("no assignment")
    return assignments


def _assignment(number: int, line: str) -> tuple[str, str]:
    """The name and the expression of a line. Raises ParseError."""
    match = _LINE.fullmatch(line)
    names = _NAME.findall(line)
    if not match or any(map(iskeyword, names)):
        raise ParseError(
            f"line {number} is no assignment of numbers, names, + - * / and parentheses"
        )
    try:
        parse(match[2], names=dict.fromkeys(names, Num(0)))
    except ExpressionError as error:
        raise ParseError(f"line {number}: {error}") from error
    return match[1], match[2]
