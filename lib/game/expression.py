"""Exact arithmetic trees: this file reads, evaluates and writes them, and brings equal trees into
one form.

The grammar has ASCII digits without leading zeros, `+ - * / ( )`, and white space (space, tab,
newline, carriage return). Binary operators associate to the left. A sign binds tighter than any of
them, so `-2 * 3` is `(-2) * 3`. There is no `**`, no `//` and no implicit product.

`parse` reads hostile text of any length in linear time: it keeps its own stack, and refuses a
number of more than MAX_DIGITS digits and a tree of more than MAX_NODES nodes (each number,
operation and unary minus is one node). The tree of any text is therefore small, and functions that
walk it may recurse."""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter

MAX_DIGITS = 18
MAX_NODES = 255

# A whole number as it is written in texts: no leading zero, at most MAX_DIGITS digits. The
# quantifiers are possessive.
WHOLE = rf"(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}}+)"
# The same with a separator between the thousands: a comma, in LaTeX also {,} or \\, , in front of
# exactly three digits.
SEPARATOR = r"(?:,|\{,\}|\\,)"
COMMA = SEPARATOR + "[0-9]{3}(?![0-9])"
THOUSANDS = rf"(?>[1-9][0-9]{{0,2}}(?:{COMMA}){{1,{MAX_DIGITS // 3 - 1}}}+(?!{COMMA})|{WHOLE})"

_TOKEN = re.compile(r"[0-9]+|[A-Za-z_][A-Za-z0-9_]*|[^ \t\n\r]")
_DECIMAL_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|[^ \t\n\r]")
_DIGITS = frozenset("0123456789")
_SIGN = "sign"  # a unary minus on the stack of operators
_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, _SIGN: 3}

# a op b, exact, for int and Fraction; a quotient is a Fraction, or raises ZeroDivisionError
COMPUTE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}


@dataclass(frozen=True, slots=True)
class Num:
    """A number in the text: an int, or a Fraction if it was written as a decimal."""

    value: int | Fraction


@dataclass(frozen=True, slots=True)
class Neg:
    """A unary minus. `--a` has two of them: nothing is simplified."""

    child: "Expr"


@dataclass(frozen=True, slots=True)
class BinOp:
    """One of the operations `+`, `-`, `*`, `/`."""

    op: str
    left: "Expr"
    right: "Expr"


Expr = Num | Neg | BinOp


class ExpressionError(ValueError):
    """The text is outside the grammar. The message says why."""


def parse(text: str, decimals: bool = False, names: Mapping[str, Expr] = {}) -> Expr:
    """The tree of an expression; a unary plus leaves no node. Raises ExpressionError.

    decimals: whether decimals such as 13.5 are read too, as exact Fractions. names: the trees for
    which names in the text stand (not together with decimals); a name that is not among them is
    outside the grammar."""
    operands: list[Expr] = []
    operators: list[str] = []
    nodes = 0
    operand_next = True
    # 1. Read the tokens in order, with a stack of operators that wait for their right operand
    for match in (_DECIMAL_TOKEN if decimals else _TOKEN).finditer(text):
        token = match[0]
        if not operand_next:
            operand_next = _takes_operator(token, names, operands, operators)
            nodes += operand_next
        elif token == "(":
            operators.append(token)
        elif token == "-":
            operators.append(_SIGN)
            nodes += 1
        elif token != "+":
            operands.append(_operand_of(token, names))
            nodes += _size(names[token]) if token in names else 1
            operand_next = False
        if nodes > MAX_NODES:
            raise ExpressionError(f"more than {MAX_NODES} numbers and operators")
    # 2. Apply the operators that are left
    if operand_next:
        raise ExpressionError("a number is missing at the end")
    return _root(operands, operators)


def _operand_of(token: str, names: Mapping[str, Expr]) -> Expr:
    """The tree of a number or a name."""
    if token in names:
        return names[token]
    if token[0] not in _DIGITS:
        raise ExpressionError(f"{token!r} where a number should be")
    return Num(_number(token))


def _takes_operator(
    token: str, names: Mapping[str, Expr], operands: list[Expr], operators: list[str]
) -> bool:
    """Takes a token that stands behind an operand: an operator, after which another operand must
    come (True), or a closing parenthesis (False)."""
    if token == ")":
        _reduce(operands, operators, 1)
        if not operators:
            raise ExpressionError("')' without '('")
        operators.pop()
        return False
    if token in "+-*/":
        _reduce(operands, operators, _PRECEDENCE[token])
        operators.append(token)
        return True
    if token == "(" or token[0] in _DIGITS or token in names:
        raise ExpressionError(f"an operator is missing before {token!r}")
    raise ExpressionError(f"{token!r} is not in the grammar")


def _root(operands: list[Expr], operators: list[str]) -> Expr:
    """The whole tree, once all tokens are read."""
    _reduce(operands, operators, 1)
    if operators:
        raise ExpressionError("'(' without ')'")
    return operands[0]


def _number(token: str) -> int | Fraction:
    if len(token) > MAX_DIGITS:  # this also keeps int() from taking quadratic time
        raise ExpressionError(f"a number of more than {MAX_DIGITS} digits")
    if token[0] == "0" and token[1:2] in _DIGITS:
        raise ExpressionError("a leading zero")
    return Fraction(token) if "." in token else int(token)


def _reduce(operands: list[Expr], operators: list[str], precedence: int) -> None:
    """Applies the operators on top of the stack that bind at least as tightly as `precedence`."""
    while operators and _PRECEDENCE[operators[-1]] >= precedence:
        op = operators.pop()
        right = operands.pop()
        operands.append(Neg(right) if op is _SIGN else BinOp(op, operands.pop(), right))


def _size(expr: Expr) -> int:
    """The number of nodes."""
    return 1 + sum(_size(child) for child in children(expr) if child)


def evaluate(expr: Expr) -> Fraction:
    """The exact value of an expression. Raises ZeroDivisionError."""
    return Fraction(_value(expr))


def _value(expr: Expr) -> int | Fraction:
    """Integers stay integers until they are divided, which is several times faster than
    Fractions."""
    match expr:
        case Num(value):
            return value
        case Neg(child):
            return -_value(child)
    return COMPUTE[expr.op](_value(expr.left), _value(expr.right))


def joined(text: str) -> str:
    """A text without the separators between its thousands."""
    return re.sub(SEPARATOR, "", text) if "," in text else text


def number(text: str) -> int | Fraction:
    """The exact value of a number as it is written in texts: 1540 or 1,540, 13.5 (a Fraction),
    7/2."""
    text = joined(text)
    return Fraction(text) if "." in text or "/" in text else int(text)


def holds(op: str, a: int | Fraction, b: int | Fraction, c: int | Fraction) -> bool:
    """Whether a op b equals c exactly. Nothing equals a division by zero."""
    return COMPUTE[op](a, b) == c if op != "/" else b != 0 and a == b * c


def without(pool: Sequence, taken: Sequence) -> list | None:
    """The members of `pool` that remain, in order, when those of `taken` are removed; None if the
    pool does not hold them all. A member that is taken twice must be in the pool twice."""
    rest = list(pool)
    for one in taken:
        if one not in rest:
            return None
        rest.remove(one)
    return rest


def children(expr: Expr) -> tuple[Expr | None, Expr | None]:
    """T_L and T_R of Eq. 6. A number has no children; a unary minus has its operand as the left
    child."""
    match expr:
        case Num():
            return None, None
        case Neg(child):
            return child, None
    return expr.left, expr.right


def leaves(expr: Expr) -> list:
    """The numbers in an expression, from left to right."""
    if isinstance(expr, Num):
        return [expr.value]
    return [value for child in children(expr) if child for value in leaves(child)]


def operands(expr: Expr) -> list[int | Fraction]:
    """The numbers of an expression from left to right, with their signs: of `119 - -40` they are
    119 and -40."""
    match expr:
        case Num(value):
            return [value]
        case Neg(Num(value)):
            return [-value]
    return [value for child in children(expr) if child for value in operands(child)]


def operations(expr: Expr, start: Sequence[Expr] = ()) -> list[BinOp]:
    """The operations that make `expr` from numbers and the members of `start`: inner before outer,
    and left before right."""
    if isinstance(expr, Num) or expr in start:
        return []
    assert isinstance(expr, BinOp), "no search negates a number"
    return [*operations(expr.left, start), *operations(expr.right, start), expr]


def render(expr: Expr) -> str:
    """The text with the fewest parentheses that `parse` reads back as exactly this tree."""
    match expr:
        case Num(value):
            return str(value)
        case Neg(child):
            return f"-{_operand(child, _PRECEDENCE[_SIGN])}"
    precedence = _PRECEDENCE[expr.op]
    return f"{_operand(expr.left, precedence)} {expr.op} {_operand(expr.right, precedence + 1)}"


def _operand(expr: Expr, precedence: int) -> str:
    bare = not isinstance(expr, BinOp) or _PRECEDENCE[expr.op] >= precedence
    return render(expr) if bare else f"({render(expr)})"


def canonical(expr: Expr) -> Expr:
    """The tree with the operands of every + and * in one fixed order: equal for trees equal up to
    commuting."""
    return _canonical(expr)[1]


def _canonical(expr: Expr) -> tuple[str, Expr]:
    """A text to sort by, and the canonical tree."""
    match expr:
        case Num(value):
            return str(value), expr
        case Neg(child):
            text, child = _canonical(child)
            return f"-{text}", Neg(child)
    operands = [_canonical(expr.left), _canonical(expr.right)]
    if expr.op in "+*":
        operands.sort(key=itemgetter(0))
    (left_text, left), (right_text, right) = operands
    return f"({left_text}{expr.op}{right_text})", BinOp(expr.op, left, right)


def flattened(expr: Expr) -> str:
    """A text that is the same for all trees that are equal up to commuting and associativity: sums
    and differences become one sum of signed terms, products and quotients become one product. A
    unary minus is a term, like a number."""
    match expr:
        case Num(value):
            return str(value)
        case Neg(child):
            return f"-{flattened(child)}"
    return f"({''.join(sorted(_terms(expr, '+-' if expr.op in '+-' else '*/', False)))})"


def _terms(expr: Expr, ops: str, inverse: bool) -> list[str]:
    """The operands of a chain of the two operators `ops`, each with its sign in front."""
    if isinstance(expr, BinOp) and expr.op in ops:
        return _terms(expr.left, ops, inverse) + _terms(
            expr.right, ops, inverse ^ (expr.op == ops[1])
        )
    return [ops[inverse] + flattened(expr)]
