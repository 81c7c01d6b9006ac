"""Trees are read, evaluated and written exactly, and equal trees get one form."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.game.expression import (
    MAX_DIGITS,
    MAX_NODES,
    BinOp,
    Expr,
    ExpressionError,
    Neg,
    Num,
    canonical,
    evaluate,
    flattened,
    holds,
    leaves,
    number,
    operations,
    parse,
    render,
    without,
)

TREES = st.recursive(
    st.integers(0, 99).map(Num),
    lambda tree: tree.map(Neg) | st.builds(BinOp, st.sampled_from("+-*/"), tree, tree),
    max_leaves=12,
)


def commuted(expr: Expr, draw) -> Expr:
    """The tree with the operands of + and * swapped wherever `draw()` says so."""
    match expr:
        case Num():
            return expr
        case Neg(child):
            return Neg(commuted(child, draw))
    left = commuted(expr.left, draw)
    right = commuted(expr.right, draw)
    swap = expr.op in "+*" and draw()
    return BinOp(expr.op, *((right, left) if swap else (left, right)))


# --- parse, evaluate, render ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, value",
    [
        ("7", 7),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("10 - 4 - 3", 3),
        ("10 - (4 - 3)", 9),
        ("24 / 4 / 2", 3),
        ("24 / (4 / 2)", 12),
        ("8 / (3 - 8 / 3)", 24),
        ("1 / 3 * 3", 1),
        ("-2 * 3", -6),
        ("2 * -3", -6),
        ("2--3", 5),
        ("--5", 5),
        ("+5 - +2", 3),
        ("-(2 + 3)", -5),
        (" \t\r\n1\n+\t1 ", 2),
        ("0", 0),
        ("9" * MAX_DIGITS, 10**MAX_DIGITS - 1),
    ],
)
def test_values_by_hand(text, value):
    assert evaluate(parse(text)) == value


def test_the_tree_of_a_text():
    assert parse("1 - 2 - 3") == BinOp("-", BinOp("-", Num(1), Num(2)), Num(3))
    assert parse("1 + 2 * 3") == BinOp("+", Num(1), BinOp("*", Num(2), Num(3)))
    assert parse("-2 * 3") == BinOp("*", Neg(Num(2)), Num(3))
    assert parse("--2") == Neg(Neg(Num(2)))
    assert parse("+(2)") == Num(2)


@given(TREES)
def test_rendered_text_reads_back_as_the_same_tree(tree):
    assert parse(render(tree)) == tree


@given(TREES)
def test_the_value_is_that_of_python_fractions(tree):
    """`eval` of a text this test writes itself, every node in parentheses and every number a
    Fraction."""

    def spelled(expr: Expr) -> str:
        match expr:
            case Num(value):
                return f"Fraction({value})"
            case Neg(child):
                return f"(-{spelled(child)})"
        return f"({spelled(expr.left)} {expr.op} {spelled(expr.right)})"

    def value_or_error(compute):
        try:
            return compute()
        except ZeroDivisionError:
            return "division by zero"

    expected = value_or_error(lambda: eval(spelled(tree), {"Fraction": Fraction}))
    assert value_or_error(lambda: evaluate(tree)) == expected


@given(TREES, st.data())
def test_no_parentheses_of_a_rendered_text_can_go(tree, data):
    text = render(tree)
    if "(" not in text:
        return
    opening = data.draw(st.sampled_from([i for i, c in enumerate(text) if c == "("]))
    depth = 1
    closing = opening
    while depth:
        closing += 1
        depth += {"(": 1, ")": -1}.get(text[closing], 0)
    without = text[:opening] + text[opening + 1 : closing] + text[closing + 1 :]
    assert parse(without) != tree


def test_division_by_zero_raises():
    with pytest.raises(ZeroDivisionError):
        evaluate(parse("5 / (3 - 3)"))


def test_numbers_and_operations_from_left_to_right():
    tree = parse("5 * (3 - 3) + 7 / 2")
    assert leaves(tree) == [5, 3, 3, 7, 2]
    assert list(map(render, operations(tree))) == ["3 - 3", "5 * (3 - 3)", "7 / 2", render(tree)]
    assert list(map(render, operations(tree, [parse("3 - 3")]))) == [
        "5 * (3 - 3)",
        "7 / 2",
        render(tree),
    ]


def test_decimals_are_exact_and_read_on_request_only():
    assert evaluate(parse("13.5 + 0.1", decimals=True)) == Fraction(136, 10)
    with pytest.raises(ExpressionError):
        parse("13.5")
    for text in (".5", "5.", "1.2.3", "0x1", "1e1"):
        with pytest.raises(ExpressionError):
            parse(text, decimals=True)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "number"),
        ("  ", "number"),
        ("1 +", "number"),
        ("1 + * 2", "number"),
        ("1 ** 2", "number"),
        ("1 // 2", "number"),
        ("()", "number"),
        ("1 2", "operator"),
        ("2(3)", "operator"),
        ("(2)(3)", "operator"),
        ("1)", r"'\)' without '\('"),
        ("(1", r"'\(' without '\)'"),
        ("044", "leading zero"),
        ("1 + 00", "leading zero"),
        ("1 = 1", "not in the grammar"),
        ("1 + 1²", "not in the grammar"),
        ("1 \x0b+ 1", "not in the grammar"),
        ("4_4", "not in the grammar"),
        ("1 + " + "9" * (MAX_DIGITS + 1), "digits"),
    ],
)
def test_an_error_tells_why(text, reason):
    with pytest.raises(ExpressionError, match=reason):
        parse(text)


def test_a_name_stands_for_a_tree():
    """And for all of its nodes: a text of few names may be too large."""
    names = {"a": parse("44 + 19"), "b_2": parse("-35")}
    assert parse("a * b_2 - a", names=names) == parse("(44 + 19) * -35 - (44 + 19)")
    for text in ("c", "a c", "a b_2", "a2", "2a", "A", "a(1)", "_", "é"):
        with pytest.raises(ExpressionError):
            parse(text, names=names)
    terms = (MAX_NODES + 1) // 4  # each of three nodes, with an operator between two
    assert evaluate(parse("+".join(["a"] * terms), names=names)) == 63 * terms
    with pytest.raises(ExpressionError, match=f"more than {MAX_NODES}"):
        parse("+".join(["a"] * (terms + 1)), names=names)
    with pytest.raises(ExpressionError, match="not in the grammar|a number should be"):
        parse("a * b_2")


def test_large_texts_are_refused_and_parentheses_cost_nothing():
    terms = MAX_NODES // 2 + 1
    assert evaluate(parse("+".join("1" * terms))) == terms
    with pytest.raises(ExpressionError, match=f"more than {MAX_NODES}"):
        parse("+".join("1" * (terms + 1)))
    with pytest.raises(ExpressionError, match=f"more than {MAX_NODES}"):
        parse("-" * 100_000 + "1")
    assert parse("(" * 50_000 + "1" + ")" * 50_000) == Num(1)
    for deep in (parse("1-(" * 120 + "1" + ")" * 120), parse("-" * (MAX_NODES - 1) + "1")):
        assert parse(render(deep)) == deep == canonical(deep)


@given(st.text("0123456789.+-*/() \t\n\x0b٣²", max_size=40) | st.text())
def test_any_text_parses_or_raises_expression_error(text):
    try:
        tree = parse(text)
    except ExpressionError:
        return
    assert parse(render(tree)) == tree


@given(TREES, st.data())
def test_commuting_keeps_value_and_canonical_form(tree, data):
    other = commuted(tree, lambda: data.draw(st.booleans()))
    assert canonical(tree) == canonical(other)
    assert sorted(leaves(tree)) == sorted(leaves(other))
    try:
        value = evaluate(tree)
    except ZeroDivisionError:
        return
    assert value == evaluate(other)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("(a + b) + c", "c + (a + b)", True),
        ("a - (b - c)", "(a + c) - b", True),
        ("a / (b / c)", "a * c / b", True),
        ("a - b - c", "a - (b + c)", True),
        ("a * (b + c)", "a * b + c", False),
        ("(a - b) * c", "(b - a) * c", False),  # another function, and a sign is no grouping
        ("a - -b", "a + b", False),  # a unary minus is a node
        ("a + b * c", "c * b + a", True),
    ],
)
def test_flattened_by_hand(a, b, same):
    first, second = (
        flattened(parse(text.translate(str.maketrans("abc", "579")))) for text in (a, b)
    )
    assert (first == second) == same


@given(TREES, st.data())
def test_flattened_is_coarser_than_canonical(tree, data):
    other = commuted(tree, lambda: data.draw(st.booleans()))
    assert flattened(tree) == flattened(other)


@given(TREES, TREES, TREES, st.sampled_from(["+-", "*/"]))
def test_flattened_is_the_same_for_every_grouping(a, b, c, ops):
    op, inverse = ops
    assert flattened(BinOp(op, BinOp(op, a, b), c)) == flattened(BinOp(op, a, BinOp(op, b, c)))
    assert flattened(BinOp(inverse, BinOp(inverse, a, b), c)) == flattened(
        BinOp(inverse, a, BinOp(op, b, c))
    )
    assert flattened(BinOp(op, BinOp(inverse, a, b), c)) == flattened(
        BinOp(inverse, a, BinOp(inverse, b, c))
    )


@pytest.mark.parametrize(
    "text, value",
    [
        ("1540", 1540),
        ("1,540", 1540),
        ("-12,345,678", -12345678),
        ("13.5", Fraction(27, 2)),
        ("7/2", 3.5),
    ],
)
def test_a_number_is_read_exactly(text, value):
    assert number(text) == value


def test_nothing_equals_a_division_by_zero():
    assert holds("/", 7, 2, Fraction(7, 2)) and holds("/", 0, 2, 0)
    assert not any(holds("/", a, 0, c) for a in (0, 7) for c in (0, 1, 7))


def test_what_is_taken_out_of_a_pool_must_stand_in_it_as_often():
    assert without((3, 5, 3), (3,)) == [5, 3] and without((3, 5, 3), (3, 3)) == [5]
    assert without((3, 5), (3, 3)) is None and without((3, 5), ()) == [3, 5]
