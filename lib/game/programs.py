"""Restricted programs: one assignment per line, computed in exact arithmetic and never executed.

    a = 44 + 19  # 63
    answer = a + 35

A line is `name = expression`. An expression holds integers in ASCII digits, names that were bound on earlier lines,
`+ - * /`, signs and parentheses; everything after a `#` is a comment. White space is space, tab and carriage return.
Each line is checked token by token and then parsed with Python's `ast`; this file walks its tree, in exact rationals. A
name may be bound again.

Every value carries the expression over literals that computes it, and it has consumed the numbers of that expression. A
value that is used twice therefore consumes its numbers twice, and a value on which the final value does not rest
consumes nothing.
"""

import ast
import re
from fractions import Fraction
from typing import Any, NamedTuple

from lib.game.expression import COMPUTE, MAX_NODES, WHOLE, BinOp, Expr, Neg, Num

MAX_LENGTH = 4000  # characters in a program; a longer one is wrong, whatever it computes
MAX_TOKENS = 200  # on a line's right side, so that Python's parser and the walk below do not recurse deeply
FINAL_NAMES = ("answer", "final", "result")

_LINE = re.compile(
    rf"[A-Za-z_]\w*+[ \t]*+=(?:[ \t]*+(?:{WHOLE}(?!\w)|[A-Za-z_]\w*+|[-+*/()])){{1,{MAX_TOKENS}}}+",
    re.ASCII,
)
_OPERATIONS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_NODES = (ast.Constant, ast.Name, ast.Load, ast.UnaryOp, ast.UAdd, ast.USub, ast.BinOp, *_OPERATIONS)


class ParseError(ValueError):
    """A line is not an assignment of this language, or there is no line at all."""


class ExecutionError(ValueError):
    """A name is not bound, something is divided by zero, or a value is made of more than MAX_NODES numbers and
    operators."""


class Value(NamedTuple):
    """A value, the expression over literals that computes it, and the number of nodes of this expression."""

    value: int | Fraction
    expression: Expr
    nodes: int


class Result(NamedTuple):
    """The final value, and the values of all assignments in order."""

    final: Value
    assignments: list[Value]


def run_program(text: str) -> Result:
    """Interprets a program. Its final value is that of `answer`; without it that of `final`, then of `result`, else the
    last one.

    Raises ParseError before any line is computed, and ExecutionError. Both name the line.
    """
    lines = parse_program(text)
    bound: dict[str, Value] = {}
    assignments = []
    for number, name, tree in lines:
        try:
            bound[name] = _compute(tree, bound)
        except ZeroDivisionError as error:
            raise ExecutionError(f"line {number}: a division by zero") from error
        except ExecutionError as error:
            raise ExecutionError(f"line {number}: {error}") from error
        assignments.append(bound[name])
    final = next((bound[name] for name in FINAL_NAMES if name in bound), assignments[-1])
    return Result(final, assignments)


def parse_program(text: str) -> list[tuple[int, str, ast.expr]]:
    """The line number (from 1), the name and the tree of each assignment. Raises ParseError."""
    if len(text) > MAX_LENGTH:
        raise ParseError(f"more than {MAX_LENGTH} characters")
    lines = [(i, line.partition("#")[0].strip(" \t\r")) for i, line in enumerate(text.split("\n"), 1)]
    assignments = [_parse_line(i, line) for i, line in lines if line]
    if not assignments:
        raise ParseError("no assignment")
    return assignments


def _parse_line(number: int, line: str) -> tuple[int, str, ast.expr]:
    """Raises ParseError. `ast` sees only what the pattern lets through; its worst cases need other characters."""
    if not _LINE.fullmatch(line):
        raise ParseError(f"line {number} is no assignment of numbers, names, + - * / and parentheses")
    try:
        statement: Any = ast.parse(line).body[0]  # the pattern ensures that it assigns to a name
    except SyntaxError as error:
        raise ParseError(f"line {number}: {error.msg}") from error
    for node in ast.walk(statement.value):
        if not isinstance(node, _NODES) or (isinstance(node, ast.Constant) and type(node.value) is not int):
            raise ParseError(f"line {number}: {type(node).__name__} is not in the language")
    return number, statement.targets[0].id, statement.value


def _compute(tree: ast.expr, bound: dict[str, Value]) -> Value:
    """Raises ExecutionError and ZeroDivisionError."""
    match tree:
        case ast.Constant(value=int(number)):
            return Value(number, Num(number), 1)
        case ast.Name():
            if tree.id not in bound:
                raise ExecutionError(f"{tree.id} is not bound")
            return bound[tree.id]
        case ast.UnaryOp(op=ast.UAdd()):
            return _compute(tree.operand, bound)
        case ast.UnaryOp():
            value, expression, nodes = _compute(tree.operand, bound)
            return _small(Value(-value, Neg(expression), nodes + 1))
    assert isinstance(tree, ast.BinOp)
    left, right, op = _compute(tree.left, bound), _compute(tree.right, bound), _OPERATIONS[type(tree.op)]
    nodes = left.nodes + right.nodes + 1
    return _small(Value(COMPUTE[op](left.value, right.value), BinOp(op, left.expression, right.expression), nodes))


def _small(value: Value) -> Value:
    """Stops programs that multiply a value with itself again and again, and trees that are too deep to walk."""
    if value.nodes > MAX_NODES:
        raise ExecutionError(f"a value made of more than {MAX_NODES} numbers and operators")
    return value
